//! The SINK argument of the command line: the names of sinks, and how they are opened.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::SinkError;
use super::{File, Null, Sink, stdout};

/// A sink as the command line names it: `stdout`, `file:PATH` or `null`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spec {
    /// One envelope per line on standard output: [`Stdout`](super::Stdout).
    Stdout,
    /// One envelope per line in this file: [`File`].
    File(PathBuf),
    /// No target; the events are consumed: [`Null`].
    Null,
}

/// The reason why a text is not a sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no sink of this name.
    #[error("the sink {0:?} does not exist; the sinks are stdout, file:PATH and null")]
    Unknown(String),
    /// `file:` has no path.
    #[error("the sink file: needs a path, e.g. file:events.ndjson")]
    NoPath,
}

impl Spec {
    /// Opens the sink. May block: for the disk, and up to 1 s for the lock of a file.
    pub fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(match self {
            Self::Stdout => Box::new(stdout()?),
            Self::File(path) => Box::new(File::open(path)?),
            Self::Null => Box::new(Null),
        })
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "null" => Ok(Self::Null),
            _ => match text.strip_prefix("file:") {
                Some("") => Err(SpecError::NoPath),
                Some(path) => Ok(Self::File(path.into())),
                None => Err(SpecError::Unknown(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Null => f.write_str("null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_named_as_it_is_shown() {
        for text in ["stdout", "null", "file:out.ndjson", "file:/a b/c:d"] {
            assert_eq!(text.parse::<Spec>().expect("a sink").to_string(), text);
        }
    }

    #[test]
    fn what_is_no_sink_is_told_what_exists() {
        assert_eq!("file:".parse::<Spec>(), Err(SpecError::NoPath));
        for text in ["", "Stdout", "out.ndjson", "files:x"] {
            let error = text.parse::<Spec>().expect_err("no sink").to_string();
            assert_eq!(error, format!("the sink {text:?} does not exist; the sinks are stdout, file:PATH and null"));
        }
    }
}
