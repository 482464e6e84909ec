//! The position of a projection in the event log.

/// The progress of a projection in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// The id of the last row applied; empty before the first row.
    pub log_id: String,
    /// The number of rows written to the log up to `log_id`, trimmed rows included.
    pub rows: u64,
    /// The number of rows that were trimmed before the projection applied them.
    pub missed: u64,
}

impl Position {
    /// Returns the value as stored in `event.projections`: `ROWS MISSED LOG_ID`.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.rows, self.missed, self.log_id)
    }

    /// Reads the text that [`Position::text`] returns. Returns `None` if the text is invalid.
    pub fn of(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let (rows, missed) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self {
            log_id: parts.next()?.to_owned(),
            rows,
            missed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_printed() {
        let text = "12 3 1700-0";
        assert_eq!(Position::of(text).expect(text).text(), text);
        for text in ["", "12", "12 3", "x 3 1700-0"] {
            assert_eq!(Position::of(text), None, "{text:?}");
        }
    }
}
