//! Reports: the progress and the last log lines of the event under delivery, for people. No decision
//! depends on them. They live in the worker process, as long as the event is under delivery. Once
//! per second the process writes new ones to Redis, where `inspect` reads them.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Maximum number of bytes of the progress of an event, as JSON: 1 KiB.
pub const PROGRESS_BYTES_MAX: usize = 1024;
/// Maximum number of lines that a report keeps: the last 10.
pub const REPORT_LINES_MAX: usize = 10;
/// Maximum number of bytes that a report keeps of a line: the first 1,000.
pub const REPORT_LINE_BYTES_MAX: usize = 1000;

/// The progress and the last log lines of an event under delivery, as its handlers have reported
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Id of the event.
    pub id: u64,
    /// Time of the last report, ms since the epoch by the clock of the worker.
    pub at_ms: u64,
    /// The last progress, as JSON text; none if only lines were reported.
    #[serde(default, serialize_with = "as_json", deserialize_with = "text_of")]
    pub progress: Option<String>,
    /// The last lines, oldest first.
    #[serde(default)]
    pub log: VecDeque<ReportLine>,
}

/// A log line of an event under delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportLine {
    /// Time of the line, ms since the epoch by the clock of the worker.
    pub at_ms: u64,
    /// The text, without control characters.
    pub text: String,
}

impl Report {
    /// Replaces the progress. `json` is one JSON text of at most [`PROGRESS_BYTES_MAX`] bytes.
    pub(super) fn set_progress(&mut self, json: String) {
        self.at_ms = now_ms();
        self.progress = Some(json);
    }

    /// Adds a line. The oldest line goes if there are too many.
    pub(super) fn add_line(&mut self, text: String) {
        self.at_ms = now_ms();
        if self.log.len() >= REPORT_LINES_MAX {
            self.log.pop_front();
        }
        self.log.push_back(ReportLine {
            at_ms: self.at_ms,
            text,
        });
    }
}

/// Returns a text as a line of a report: its beginning, with blanks for control characters, because
/// JSON needs 6 bytes for each of them.
pub(super) fn line_of(text: &str) -> String {
    let end = (0..=REPORT_LINE_BYTES_MAX.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    text[..end].trim_end().replace(char::is_control, " ")
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

/// Serializes a JSON text unchanged, on one line. A text that is not JSON is written as a JSON string.
pub(crate) fn as_json<S: Serializer>(
    text: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Some(text) = text else {
        return serializer.serialize_none();
    };
    let in_one_line = text.replace(['\r', '\n'], " ");
    match serde_json::from_str::<&RawValue>(&in_one_line) {
        Ok(json) => json.serialize(serializer),
        Err(_) => serializer.serialize_str(text),
    }
}

fn text_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let json = Option::<Box<RawValue>>::deserialize(deserializer)?;
    Ok(json.map(|json| json.get().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_between_characters_and_has_no_line_ends() {
        assert_eq!(line_of("a\nb\r\n"), "a b");
        assert_eq!(line_of(&"é".repeat(600)).len(), REPORT_LINE_BYTES_MAX);
        assert_eq!(line_of(&format!("a{}", "é".repeat(600))).len(), 999);
    }

    #[test]
    fn a_report_keeps_the_last_lines_and_the_last_progress() {
        let mut report = Report::default();
        for number in 0..25 {
            report.add_line(format!("line {number}"));
            report.set_progress(number.to_string());
        }
        let texts: Vec<_> = report.log.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            (texts.len(), texts[0], texts[9]),
            (10, "line 15", "line 24")
        );
        let json = serde_json::to_string(&report).expect("JSON");
        assert!(json.contains(r#""progress":24,"#), "{json}");
        assert_eq!(
            serde_json::from_str::<Report>(&json).expect("a report"),
            report
        );
    }
}
