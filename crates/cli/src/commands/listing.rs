//! The parts that the commands which print a list share: pages, `--json`, `--limit`, and the
//! message for an empty list.

use std::fmt::Write as _;

use serde::Serialize;
use seriatim::control::{ControlError, Cursor, RowEvent};
use seriatim_console::exit::Exit;
use seriatim_console::shown::{self, Level};

/// One page of a list, and the time of Redis at which it was read.
pub(super) type Page<T> = (Vec<T>, u64, Option<Cursor>);

/// A list that is being printed.
pub(super) struct Listing {
    json: bool,
    limit: Option<u64>,
    printed: u64,
}

impl Listing {
    /// Begins a list: one JSON object per line, or text; at most `limit` rows.
    pub(super) fn new(json: bool, limit: Option<u64>) -> Self {
        Self {
            json,
            limit,
            printed: 0,
        }
    }

    /// Returns the number of rows that may still be printed.
    fn left(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit - self.printed)
    }

    /// Prints rows, up to the limit. Returns false if nobody reads them any more.
    pub(super) fn print<T: Serialize>(
        &mut self,
        rows: &[T],
        write: impl Fn(&mut String, &T) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut out = String::new();
        for row in rows
            .iter()
            .take(usize::try_from(self.left()).unwrap_or(usize::MAX))
        {
            match self.json {
                true => writeln!(out, "{}", serde_json::to_string(row)?)?,
                false => write(&mut out, row)?,
            }
            self.printed += 1;
        }
        shown::print(&out)
    }

    /// Reads pages of at most `per_page` rows after this position, and prints them, until the list
    /// or the limit ends. Returns false if nobody reads the rows any more.
    pub(super) async fn print_pages<T: Serialize>(
        &mut self,
        mut after: Option<Cursor>,
        per_page: usize,
        read: impl AsyncFn(Option<&Cursor>, usize) -> Result<Page<T>, ControlError>,
        write: impl Fn(&mut String, &T, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        while self.left() > 0 {
            let count = per_page.min(usize::try_from(self.left()).unwrap_or(usize::MAX));
            let (rows, now_ms, next) = read(after.as_ref(), count).await.map_err(shown::failure)?;
            if !self.print(&rows, |out, row| write(out, row, now_ms))? {
                return Ok(false);
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok(true)
    }

    /// Prints this message if the list was empty.
    pub(super) fn end(&self, empty: &str) -> anyhow::Result<Exit> {
        if self.printed == 0 && self.limit != Some(0) {
            shown::tell(Level::Info, empty);
        }
        Ok(Exit::Done)
    }
}

/// Says that a search has ended before the end of the list, and how to continue.
pub(super) fn tell_more(json: bool, searched: &str, after: &str) -> anyhow::Result<()> {
    shown::tell(
        Level::Info,
        &format!("searched {searched}; continue with --after {after}"),
    );
    if json {
        shown::print(&format!("{}\n", serde_json::json!({ "after": after })))?;
    }
    Ok(())
}

/// Returns the beginning of an event, on one line.
pub(super) fn beginning(event: &RowEvent) -> String {
    match event {
        RowEvent::LeftOut {
            whole_bytes: Some(bytes),
        } => format!("of {bytes} bytes"),
        RowEvent::LeftOut { whole_bytes: None } => "none; `seriatim check` shows more".to_owned(),
        // Only the part that is shown is converted to text, because an event may be large.
        event => {
            let head = &event.bytes()[..event.bytes().len().min(400)];
            shown::shortened(&String::from_utf8_lossy(head), 70)
        }
    }
}
