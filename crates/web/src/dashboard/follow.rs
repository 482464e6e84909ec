//! New rows of the event log for all pages that follow it. One look at Redis per second serves all
//! followers; without followers there is no look.
//!
//! A look reads the rows that have come since the last look, at most 300. If more have come, it reads
//! only the newest 200, or 500 if the last look was long ago. The last 500 rows are kept, also without followers. So a page whose connection
//! was cut gets the rows that it has missed. The number of rows ever written, which is a part of each
//! position, tells how many others there were.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seriatim::control::{Cursor, EventStatus, LogEntry, LogPage};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, sleep};

use super::live::until_watched;
use super::pages;
use crate::listen::problem::Problem;
use crate::operator::Looks;

/// The time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The time until the next look, if rows are so large that they end a page.
const EVERY_IF_LARGE: Duration = Duration::from_secs(5);
/// The rows of one read, which takes Redis about 0.4 ms, and the most reads of one look.
const READ_ROWS: usize = 100;
const READS: usize = 2;
/// The reads of the first look, and the most rows that are kept.
const FIRST_READS: usize = 3;
pub(super) const KEPT_ROWS: usize = FIRST_READS * READ_ROWS;
/// The most bytes of kept rows.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A position in the log: the id of a row, and the number of rows ever written until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// The two parts of the row's id.
    id: (u64, u64),
    written: u64,
}

impl Position {
    /// Returns the position of this row; `None` if the cursor is not of the log.
    pub(super) fn new(row: &Cursor, written: u64) -> Option<Self> {
        Some(Self {
            id: id(row.as_str())?,
            written,
        })
    }

    fn cursor(&self) -> Cursor {
        format!("{}-{}", self.id.0, self.id.1).into()
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}.{}", self.id.0, self.id.1, self.written)
    }
}

impl FromStr for Position {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let parts = text.split_once('.').and_then(|(row, written)| {
            Some(Self {
                id: id(row)?,
                written: written.parse().ok()?,
            })
        });
        parts.ok_or_else(|| {
            Problem::bad_request(
                "the parameter after is not a position in the log: load the page Log again",
            )
        })
    }
}

fn id(text: &str) -> Option<(u64, u64)> {
    let (ms, number) = text.split_once('-')?;
    Some((ms.parse().ok()?, number.parse().ok()?))
}

/// A row of the log as HTML, which is the same for all users.
#[derive(Debug)]
pub(super) struct Row {
    id: (u64, u64),
    pub(super) object: String,
    pub(super) object_escaped: Option<String>,
    pub(super) status: EventStatus,
    pub(super) html: String,
}

impl Row {
    fn new(base: &str, entry: LogEntry) -> Self {
        let html = pages::log::row(base, &entry).into_string();
        let LogEntry {
            log_id,
            object,
            object_escaped,
            status,
            ..
        } = entry;
        Self {
            id: id(log_id.as_str()).unwrap_or_default(),
            object,
            object_escaped,
            status,
            html,
        }
    }

    fn bytes(&self) -> usize {
        let escaped = self.object_escaped.as_ref().map_or(0, String::len);
        self.html.len() + self.object.len() + escaped + size_of::<Self>()
    }
}

/// The rows after a position.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Oldest first.
    pub(super) rows: Vec<Arc<Row>>,
    /// The number of rows between the position and the first row. They are not kept.
    pub(super) passed_over: u64,
    /// Whether the log ends before the position.
    pub(super) is_ahead: bool,
}

/// The newest rows, without a gap between them.
#[derive(Default)]
struct Kept {
    rows: VecDeque<Arc<Row>>,
    bytes: usize,
    /// The position of the last row that was looked at; `None` before the first look.
    end: Option<Position>,
    /// Whether more rows came than the last look has read.
    is_overrun: bool,
}

impl Kept {
    fn add(&mut self, rows: impl IntoIterator<Item = Row>, end: Position) {
        for row in rows {
            self.bytes += row.bytes();
            self.rows.push_back(Arc::new(row));
        }
        while self.rows.len() > KEPT_ROWS || self.bytes > KEPT_BYTES_MAX {
            let Some(oldest) = self.rows.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        self.end = Some(end);
    }

    /// Adds the newest rows. If there is a gap before them, forgets the rows before it.
    fn add_newest(&mut self, rows: Vec<Row>, end: Position) {
        let before = self.end.filter(|before| {
            before.id <= end.id && end.written.saturating_sub(before.written) <= rows.len() as u64
        });
        let is_overrun = self.end.is_some() && before.is_none();
        match before {
            Some(before) => self.add(rows.into_iter().filter(|row| row.id > before.id), end),
            None => {
                *self = Self::default();
                self.add(rows, end);
            }
        }
        self.is_overrun = is_overrun;
    }

    /// Moves the position to the end, and returns the rows between.
    fn after(&self, position: &mut Position) -> News {
        let end = self.end.unwrap_or_default();
        if position.id > end.id {
            return News {
                is_ahead: true,
                ..News::default()
            };
        }
        let first = self.rows.partition_point(|row| row.id <= position.id);
        let rows: Vec<_> = self.rows.range(first..).cloned().collect();
        let passed_over = end
            .written
            .saturating_sub(position.written)
            .saturating_sub(rows.len() as u64);
        *position = end;
        News {
            rows,
            passed_over,
            is_ahead: false,
        }
    }
}

/// The result of the last look.
#[derive(Clone)]
struct Looked {
    at: Instant,
    every: Duration,
    result: Result<(), Problem>,
}

/// Looks at the log for all followers.
pub(super) struct Followed {
    looks: Looks,
    /// The path before all links.
    base: String,
    kept: Mutex<Kept>,
    looked: watch::Sender<Option<Looked>>,
    /// Held during a look, so that only one look is under way.
    looking: AsyncMutex<()>,
    came: Notify,
}

/// A page that follows the log. It hears of each look.
pub(super) struct Follower(watch::Receiver<Option<Looked>>);

impl Follower {
    /// Waits for the next look. Returns whether it has succeeded.
    pub(super) async fn next_look(&mut self) -> bool {
        self.0.changed().await.is_ok()
            && self
                .0
                .borrow_and_update()
                .as_ref()
                .is_some_and(|looked| looked.result.is_ok())
    }
}

impl Followed {
    pub(super) fn new(looks: Looks, base: String) -> Self {
        let (looked, _) = watch::channel(None);
        Self {
            looks,
            base,
            kept: Mutex::default(),
            looked,
            looking: AsyncMutex::default(),
            came: Notify::new(),
        }
    }

    /// Returns a follower, and the position of the end of the log. Looks, if the last look is old.
    pub(super) async fn follow(&self) -> Result<(Follower, Position), Problem> {
        let mut follower = Follower(self.looked.subscribe());
        self.came.notify_waiters();
        self.look_if_old().await.result?;
        follower.0.mark_unchanged();
        Ok((follower, self.end()))
    }

    /// Returns the position of the end of the log at the last look.
    pub(super) fn end(&self) -> Position {
        self.lock().end.unwrap_or_default()
    }

    /// Moves the position to the end of the log, and returns the rows between.
    pub(super) fn after(&self, position: &mut Position) -> News {
        self.lock().after(position)
    }

    /// Looks again and again while there are followers, until the future is dropped.
    pub(super) async fn run(&self) {
        loop {
            until_watched(&self.looked, &self.came).await;
            let looked = self.look_if_old().await;
            sleep(looked.every.saturating_sub(looked.at.elapsed())).await;
        }
    }

    async fn look_if_old(&self) -> Looked {
        let is_new = |looked: &Option<Looked>| {
            looked
                .clone()
                .filter(|looked| looked.at.elapsed() < looked.every)
        };
        if let Some(looked) = is_new(&self.looked.borrow()) {
            return looked;
        }
        let _looking = self.looking.lock().await;
        if let Some(looked) = is_new(&self.looked.borrow()) {
            return looked;
        }
        let at = Instant::now();
        let found = self.look().await;
        let every = if let Ok(true) = found {
            EVERY_IF_LARGE
        } else {
            EVERY
        };
        let looked = Looked {
            at,
            every,
            result: found.map(drop),
        };
        self.looked.send_replace(Some(looked.clone()));
        looked
    }

    /// Reads the rows since the last look. Returns whether they are large.
    async fn look(&self) -> Result<bool, Problem> {
        let (end, is_overrun) = {
            let kept = self.lock();
            (kept.end, kept.is_overrun)
        };
        let is_late = self
            .looked
            .borrow()
            .as_ref()
            .is_none_or(|looked| looked.at.elapsed() > EVERY * 3);
        let Some(end) = end.filter(|_| !is_late || !is_overrun) else {
            return self.read_newest(FIRST_READS).await;
        };
        if is_overrun {
            // A read of the oldest rows would be in vain, if they come too fast again.
            return self.read_newest(READS - 1).await;
        }
        let after = end.cursor();
        let mut page = self
            .looks
            .log_of_all(false, Some(&after), READ_ROWS)
            .await?;
        if page.ends_before(&after) {
            // Redis has lost rows.
            return self.read_newest(FIRST_READS).await;
        }
        let come = page.written.saturating_sub(end.written);
        if come > (READS * READ_ROWS) as u64 || is_large(&page) {
            return self
                .read_newest(if is_late { FIRST_READS } else { READS - 1 })
                .await;
        }
        let mut rows = Vec::new();
        for read in 1..=READS {
            rows.append(&mut page.entries);
            let next = page.next.take().filter(|next| *next != page.end);
            let Some(next) = next else { break };
            if read == READS || is_large(&page) {
                // The other rows have come during this look. The next one reads them.
                let position = Position::new(&next, end.written.saturating_add(rows.len() as u64));
                let rows = self.rows(rows);
                self.lock().add(rows, position.unwrap_or_default());
                return Ok(false);
            }
            page = self.looks.log_of_all(false, Some(&next), READ_ROWS).await?;
        }
        let (rows, end) = (self.rows(rows), Position::new(&page.end, page.written));
        self.lock().add(rows, end.unwrap_or_default());
        Ok(false)
    }

    /// Reads the newest rows.
    async fn read_newest(&self, reads: usize) -> Result<bool, Problem> {
        let mut page = self.looks.log_of_all(true, None, READ_ROWS).await?;
        let end = Position::new(&page.end, page.written);
        let (mut rows, mut is_large) = (Vec::new(), is_large(&page));
        for read in 1..=reads {
            is_large |= self::is_large(&page);
            rows.append(&mut page.entries);
            let Some(next) = page.next.take().filter(|_| read < reads && !is_large) else {
                break;
            };
            page = self.looks.log_of_all(true, Some(&next), READ_ROWS).await?;
        }
        rows.reverse();
        let rows = self.rows(rows);
        self.lock().add_newest(rows, end.unwrap_or_default());
        Ok(is_large)
    }

    fn rows(&self, entries: Vec<LogEntry>) -> Vec<Row> {
        entries
            .into_iter()
            .map(|entry| Row::new(&self.base, entry))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the bytes of the rows have ended the page.
fn is_large(page: &LogPage) -> bool {
    page.next.is_some() && page.entries.len() < READ_ROWS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u64, bytes: usize) -> Row {
        let html = "x".repeat(bytes);
        Row {
            id: (number, 0),
            object: String::new(),
            object_escaped: None,
            status: EventStatus::Completed,
            html,
        }
    }

    fn at(number: u64) -> Position {
        Position {
            id: (number, 0),
            written: number,
        }
    }

    #[test]
    fn a_position_is_a_row_and_a_number() {
        let position = Position::new(&Cursor::from("1700-3"), 12).expect("a position");
        assert_eq!(
            (position.to_string().as_str(), position.cursor().as_str()),
            ("1700-3.12", "1700-3")
        );
        assert_eq!(
            "1700-3.12".parse::<Position>().expect("a position"),
            position
        );
        for bad in [
            "",
            "1700-3",
            "1700.3",
            "1700-3.",
            "-3.1",
            "a-3.1",
            "1700-3.12.1",
        ] {
            assert!(bad.parse::<Position>().is_err(), "{bad}");
        }
        assert_eq!(Position::new(&Cursor::from("a:1"), 1), None);
    }

    #[test]
    fn a_follower_gets_each_row_once_and_the_number_of_the_others() {
        let (mut kept, mut position) = (Kept::default(), at(3));
        kept.add((1..=5).map(|number| row(number, 1)), at(5));
        let mut next = |kept: &Kept| {
            let News {
                rows,
                passed_over,
                is_ahead,
            } = kept.after(&mut position);
            (
                rows.iter().map(|row| row.id.0).collect::<Vec<_>>(),
                passed_over,
                is_ahead,
            )
        };
        assert_eq!(next(&kept), (vec![4, 5], 0, false));
        assert_eq!(next(&kept), (vec![], 0, false));
        kept.add([row(9, 1)], at(9));
        assert_eq!(next(&kept), (vec![9], 3, false));
        // Redis has lost rows.
        kept = Kept::default();
        kept.add([row(2, 1)], at(2));
        assert_eq!(next(&kept), (vec![], 0, true));
        kept.add(
            [row(10, 1)],
            Position {
                id: (10, 0),
                written: 3,
            },
        );
        assert_eq!(next(&kept), (vec![10], 0, false));
    }

    #[test]
    fn kept_rows_are_bounded() {
        let mut kept = Kept::default();
        for number in 1..=2 * KEPT_ROWS as u64 {
            kept.add([row(number, 100)], at(number));
        }
        let News {
            rows, passed_over, ..
        } = kept.after(&mut at(1));
        assert_eq!((rows.len(), passed_over), (KEPT_ROWS, KEPT_ROWS as u64 - 1));
        for number in 1..=20 {
            kept.add(
                [row(10_000 + number, KEPT_BYTES_MAX / 8)],
                at(10_000 + number),
            );
            assert!(
                kept.bytes <= KEPT_BYTES_MAX
                    && kept.bytes == kept.rows.iter().map(|row| row.bytes()).sum::<usize>()
            );
        }
        assert_eq!(kept.rows.len(), 7);
    }
}
