//! The SINK argument of the command line: the names of sinks.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use seriatim::event::{Pointer, PointerError};
use seriatim_exec::{Command, CommandError};
use seriatim_http::{HttpError, Target};

/// A sink, as the command line names it: `stdout`, `file:PATH`, `null`, a URL,
/// `event-url[:/pointer]`, `exec:COMMAND`, `exec-each:COMMAND`, or `stdio`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spec {
    /// Writes one envelope per line to standard output: [`sink::stdout`](seriatim::sink::stdout).
    Stdout,
    /// Writes one envelope per line to this file: [`File`](seriatim::sink::File).
    File(PathBuf),
    /// Consumes the events without a target: [`Null`](seriatim::sink::Null).
    Null,
    /// Sends a request for each event, or for a list of events, to this URL: [`Http`](seriatim_http::Http).
    Http(Target),
    /// Sends a request for each event to the URL at this pointer of the event. Default: `/url`.
    EventUrl(Pointer),
    /// Hands events to a program: [`Exec`](seriatim_exec::Exec).
    Exec(Command),
    /// Starts a process for each event: [`ExecEach`](seriatim_exec::ExecEach).
    ExecEach(Command),
    /// Hands events to the parent of the worker: [`Exec::parent`](seriatim_exec::Exec::parent).
    Stdio,
}

/// The reason why a text does not name a sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    /// There is no sink of this name.
    #[error("the sink {0:?} does not exist; the sinks are {SINKS}")]
    Unknown(
        /// The text up to its first colon. The rest is left out, because it may be a misspelled URL
        /// with a password.
        String,
    ),
    /// `file:` has no path.
    #[error("the sink file: needs a path, e.g. file:events.ndjson")]
    NoPath,
    /// The URL is invalid.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The pointer behind `event-url:` is invalid.
    #[error("the sink {0:?} has no JSON pointer: {1}; write e.g. event-url:/url")]
    Pointer(String, #[source] PointerError),
    /// The command behind `exec:` is invalid. The error repeats no part of it, because it may have a
    /// password.
    #[error("the sink {0}: is invalid: {1}")]
    Command(&'static str, #[source] CommandError),
}

const SINKS: &str = "stdout, file:PATH, null, http://…, https://…, event-url[:/pointer], exec:COMMAND, exec-each:COMMAND and stdio";

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "null" => Ok(Self::Null),
            "stdio" => Ok(Self::Stdio),
            _ if text.starts_with("http://") || text.starts_with("https://") => {
                Ok(Self::Http(text.parse()?))
            }
            "event-url" => Ok(Self::EventUrl(Pointer::member("url"))),
            _ if text.starts_with("event-url:") => {
                let pointer = text["event-url:".len()..].parse();
                pointer
                    .map(Self::EventUrl)
                    .map_err(|why| SpecError::Pointer(text.to_owned(), why))
            }
            _ if text.starts_with("exec:") => {
                command("exec", &text["exec:".len()..]).map(Self::Exec)
            }
            _ if text.starts_with("exec-each:") => {
                command("exec-each", &text["exec-each:".len()..]).map(Self::ExecEach)
            }
            _ => match text.strip_prefix("file:") {
                Some("") => Err(SpecError::NoPath),
                Some(path) => Ok(Self::File(path.into())),
                None => Err(SpecError::Unknown(
                    text.split_inclusive(':')
                        .next()
                        .unwrap_or_default()
                        .to_owned(),
                )),
            },
        }
    }
}

/// Parses the command of this sink.
fn command(sink: &'static str, text: &str) -> Result<Command, SpecError> {
    text.parse()
        .map_err(|error| SpecError::Command(sink, error))
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Null => f.write_str("null"),
            Self::Http(target) => write!(f, "{target}"),
            Self::EventUrl(pointer) => write!(f, "event-url:{pointer}"),
            Self::Exec(command) => write!(f, "exec:{command}"),
            Self::ExecEach(command) => write!(f, "exec-each:{command}"),
            Self::Stdio => f.write_str("stdio"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_named_as_it_is_shown() {
        for text in [
            "stdout",
            "null",
            "file:out.ndjson",
            "file:/a b/c:d",
            "exec:a",
            "exec-each:a",
            "stdio",
        ] {
            assert_eq!(text.parse::<Spec>().expect("a sink").to_string(), text);
        }
    }

    #[test]
    fn what_is_no_sink_is_told_what_exists() {
        assert_eq!("file:".parse::<Spec>(), Err(SpecError::NoPath));
        for (text, named) in [
            ("", ""),
            ("Stdout", "Stdout"),
            ("out.ndjson", "out.ndjson"),
            ("HTTPS://a:hunter2@b", "HTTPS:"),
        ] {
            let error = text.parse::<Spec>().expect_err("no sink").to_string();
            assert_eq!(
                error,
                format!("the sink {named:?} does not exist; the sinks are {SINKS}")
            );
        }
    }
}
