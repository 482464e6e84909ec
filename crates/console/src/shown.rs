//! Prints results to standard output, for a terminal 80 columns wide, without control characters.

use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::control::ControlError;
use seriatim::escape;

use crate::describe::describe;
use crate::exit::{Exit, Failure};

/// Maximum width of tables.
pub const COLUMNS: u16 = 80;

/// Prints a text to standard output and flushes it. Removes all control characters except line
/// ends. Returns false if nobody reads standard output any more (`| head`); the command then ends
/// without an error.
pub fn print(text: &str) -> anyhow::Result<bool> {
    print_bytes(escape::lines(text).as_bytes())
}

/// Prints bytes unchanged, and otherwise does the same as [`print`].
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
    }
}

/// Prints one line on standard error. If the write fails, this is ignored, because an error could
/// not be shown.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", escape::lines(line));
}

/// The severity of a message on standard error.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// Whether messages on standard error are JSON lines, like the log lines.
static JSON_LINES: AtomicBool = AtomicBool::new(false);

/// Switches messages to JSON lines, for `--log-format json`.
pub fn tell_in_json() {
    JSON_LINES.store(true, Ordering::Relaxed);
}

/// Writes one message to standard error: `seriatim: MESSAGE`, or a JSON line with the members of a
/// log line. The message is written whatever `--log` says.
pub fn tell(level: Level, message: &str) {
    let message = message.replace(['\r', '\n'], " ");
    if !JSON_LINES.load(Ordering::Relaxed) {
        return say(&format!("seriatim: {message}"));
    }
    let level = match level {
        Level::Info => "INFO",
        Level::Warn => "WARN",
        Level::Error => "ERROR",
    };
    let timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let fields = serde_json::json!({ "message": message });
    say(&serde_json::json!({ "timestamp": timestamp, "level": level, "fields": fields, "target": "seriatim" }).to_string());
}

/// Formats text from Redis on one line of at most `chars_max` characters. Escapes control
/// characters. If the text is too long, cuts its end off and adds an ellipsis.
pub fn shortened(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    let mut chars = 0;
    for (at, c) in text.char_indices() {
        let shown = escape::text(&text[at..at + c.len_utf8()]).to_string();
        chars += shown.chars().count();
        if chars > chars_max.saturating_sub(1) && line.len() + c.len_utf8() < text.len()
            || chars > chars_max
        {
            line.push('…');
            return line;
        }
        line.push_str(&shown);
    }
    line
}

/// Breaks one line at spaces, so that each part has at most `chars_max` characters. A longer word,
/// and text between two backticks, is not broken.
pub fn wrapped(line: &str, chars_max: usize, indent: usize) -> String {
    let (mut out, mut column, mut rest) = (String::new(), 0, line);
    while !rest.is_empty() {
        let quoted = rest
            .strip_prefix('`')
            .and_then(|quoted| quoted.find('`'))
            .map_or(0, |at| at + 2);
        let end = rest[quoted..]
            .find(' ')
            .map_or(rest.len(), |at| quoted + at);
        let (word, behind) = rest.split_at(end);
        let chars = word.chars().count();
        if column > 0 && column + 1 + chars > chars_max {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += chars;
        rest = behind.strip_prefix(' ').unwrap_or(behind);
    }
    out
}

/// Shortens a long name by cutting out its middle, because similar names often differ only at their
/// ends.
pub fn middle_cut(name: &str, chars_max: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= chars_max {
        return shortened(name, chars_max);
    }
    let end = chars_max / 2;
    let (head, tail) = (
        chars[..chars_max - 1 - end].iter(),
        chars[chars.len() - end..].iter(),
    );
    shortened(
        &head.chain(&['…']).chain(tail).collect::<String>(),
        chars_max,
    )
}

/// The last millisecond of the year 9999. Later times are shown as this one, so that the year has
/// four digits.
const MS_MAX: u64 = 253_402_300_799_999;

/// Formats a time, ms since the epoch, in UTC: `2026-01-01T12:00:00.000Z`.
pub fn time(ms: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(MS_MAX)))
}

/// Formats a duration for people: `850 ms`, `4.2 s`, `3 min`, `5 h`, `2 d`.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..86_400_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// Converts the error of an operator's action into an error with an exit code. If the connection
/// was lost, the exit code says that the outcome is unknown.
pub fn action_failure(error: ControlError) -> anyhow::Error {
    match &error {
        ControlError::Redis { source, .. }
            if source.is_io_error() || source.is_timeout() || source.is_connection_dropped() =>
        {
            let text = describe(source);
            Failure::with(
                Exit::Unknown,
                format!(
                    "the outcome is unknown: {text}; `seriatim actions` shows the recorded actions"
                ),
            )
        }
        _ => failure(error),
    }
}

/// Converts an error of the library into an error with an exit code.
pub fn failure(error: ControlError) -> anyhow::Error {
    let exit = match error {
        ControlError::Redis { .. } => Exit::Redis,
        ref invalid if invalid.is_invalid_input() => Exit::Input,
        ControlError::Denied(_) => Exit::Redis,
        _ => Exit::Broken,
    };
    match &error {
        ControlError::Redis { what, source } => Failure::with(
            exit,
            format!("Redis did not answer {what}: {}", describe(source)),
        ),
        _ => Failure::with(exit, error),
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn a_line_is_broken_at_spaces_and_commands_stay_whole() {
        for (line, expected) in [
            ("", ""),
            ("one two", "one two"),
            ("one two three", "one two\n  three"),
            ("one  two é three", "one  two é\n  three"),
            ("too-long-a-word x", "too-long-a-word\n  x"),
            ("`a b c d`, it is", "`a b c d`,\n  it is"),
            ("one `a b c` it", "one\n  `a b c` it"),
            ("an odd ` is none", "an odd `\n  is none"),
        ] {
            assert_eq!(wrapped(line, 10, 2), expected, "{line:?}");
        }
    }
}
