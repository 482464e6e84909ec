//! Formats log lines. The values of fields are escaped, so that none can begin a new line or send
//! an escape sequence to the terminal.

use std::fmt;
use std::io;

use seriatim::escape;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Formats the fields of a text line: the message, then `name=value` for each field.
pub struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = Visitor {
            writer,
            is_first: true,
            written: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct Visitor<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    written: fmt::Result,
}

impl Visitor<'_> {
    fn write(&mut self, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        let value = format!("{value:?}");
        let value = escape::text(&value);
        match (field.name(), self.writer.has_ansi_escapes()) {
            ("message", _) => write!(self.writer, "{value}"),
            (name, true) => write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
            (name, false) => write!(self.writer, "{name}={value}"),
        }
    }
}

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Records of the crate `log` have `log.*` fields that repeat the text. These fields are
        // left out.
        if self.written.is_ok() && !field.name().starts_with("log.") {
            self.written = self.write(field, value);
        }
    }
}

/// A writer to standard error for JSON lines. It removes all control characters except line ends.
pub struct JsonLines;

impl io::Write for JsonLines {
    /// Writes the text. The logger passes only whole lines.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        io::stderr()
            .lock()
            .write_all(escape::lines(&String::from_utf8_lossy(lines)).as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_field_begins_no_line_and_no_escape_sequence() {
        let kept = Kept::default();
        let writer = kept.clone();
        let logs = tracing_subscriber::fmt()
            .fmt_fields(Fields)
            .with_ansi(false)
            .without_time()
            .with_target(false);
        let logs = logs.with_writer(move || writer.clone()).finish();
        let hostile = "a\n ERROR forged\u{1b}[2J\u{85}\u{2028}\u{202e}";
        tracing::subscriber::with_default(logs, || {
            tracing::warn!(object = %hostile, why = hostile, id = 7, "{hostile}");
        });
        let line = String::from_utf8(kept.0.lock().expect("the lines").clone()).expect("UTF-8");
        let shown = r"a\n ERROR forged\u{1b}[2J\u{85}\u{2028}\u{202e}";
        assert_eq!(
            line,
            format!(" WARN {shown} object={shown} why=\"{shown}\" id=7\n")
        );
    }
}
