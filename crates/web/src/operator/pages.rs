//! The results of looks.

use serde::Serialize;
use seriatim::control::ended::Ended;
use seriatim::control::{CheckReport, Cursor, Inspection};

/// A page of a list.
#[derive(Debug, Serialize)]
pub(crate) struct Page<T> {
    /// The time of Redis, ms since the epoch; absent if the list does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now_ms: Option<u64>,
    pub(crate) rows: Vec<T>,
    /// The number of rows that were looked at, if a filter has left some of them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) looked_at: Option<u64>,
    /// The value for the parameter `after` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<Cursor>,
    /// The value for the parameter `after` to get the rows that come later; only the last page of
    /// the log in its order has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) later: Option<Cursor>,
    /// The end of the log at the moment of the read, and the number of rows ever written until then;
    /// only rows of the log have it.
    #[serde(skip)]
    pub(crate) log_end: Option<(Cursor, u64)>,
    /// Whether large rows have ended the page; only rows of the log and dead letters have it.
    #[serde(skip)]
    pub(crate) is_cut: bool,
}

impl<T> Page<T> {
    pub(super) fn new(rows: impl IntoIterator<Item = T>, next: Option<Cursor>) -> Self {
        Self {
            now_ms: None,
            rows: rows.into_iter().collect(),
            looked_at: None,
            next,
            later: None,
            log_end: None,
            is_cut: false,
        }
    }

    pub(super) fn at(mut self, now_ms: u64) -> Self {
        self.now_ms = Some(now_ms);
        self
    }
}

/// An object, and how its last events ended.
#[derive(Debug, Serialize)]
pub(crate) struct Inspected {
    #[serde(flatten)]
    pub(crate) inspection: Inspection,
    pub(crate) ended: Ended,
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    #[serde(flatten)]
    pub(super) report: CheckReport,
    /// Settings of Redis that break the guarantees.
    pub(super) warnings: Vec<String>,
}
