//! The finalized events of one object, newest first: from the event log and from the dead letters.
//!
//! Both streams are sorted by time. A dead event may be in both; then it is one row. A page goes
//! back only as far as both streams were looked at, so no later page has a newer row.

use redis::aio::ConnectionLike;
use serde::Serialize;

use super::ended::EndedEvent;
use super::of_object::{Found, Search};
use super::{Control, ControlError, Cursor, RowId, reply};
use crate::event::EventStatus;
use crate::keys::Keys;

/// Maximum number of rows of both streams together at which one call of [`Control::chain`] looks.
/// Redis needs about 5 microseconds for one row.
pub const LOOKED_MAX: u64 = 300;
/// The same for the first page, which is smaller, because it is shown together with other lists.
pub const LOOKED_FIRST_MAX: u64 = 120;
/// Maximum number of rows of a page.
pub const PER_CALL_MAX: usize = 100;
/// Maximum number of bytes of each event in a page, without [`Control::with_event_bytes_max`].
pub const EVENT_BYTES_MAX: usize = 4096;

/// Maximum number of bytes of the results of an event. Longer results are left out.
const RESULTS_BYTES_MAX: usize = 65_536;
/// Maximum number of bytes of an error.
const ERROR_BYTES_MAX: usize = 4096;
/// Maximum number of ms between the two rows of one event. One script writes both, so the
/// difference is at most the time of this script. It is longer only after Redis' clock was set back.
/// Then such an event may become two rows, if one page has its first row and a later page the other.
const APART_MS: u64 = 100;

/// One page of finalized events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChainPage {
    /// The events, newest first.
    pub rows: Vec<EndedEvent>,
    /// Cursor of the next page; none if all rows of both streams were looked at.
    pub next: Option<Cursor>,
    /// Number of log rows that were looked at for this page.
    pub log_rows: u64,
    /// Number of dead letters that were looked at for this page.
    pub dead_letters: u64,
    /// Keys of a wrong type, which could not be read.
    pub unreadable: Vec<String>,
}

impl Control {
    /// Reads up to `count` finalized events of the object (1 to [`PER_CALL_MAX`]), newest first.
    /// Begins after the position `after`; without `after`, at the newest event. Without
    /// `--event-log`, the log has only events completed with errors.
    ///
    /// Each call looks at no more than [`LOOKED_MAX`] log rows and dead letters, of all objects, or
    /// at 1 MiB of each. Without `after`, the bound is [`LOOKED_FIRST_MAX`]. So a page may have fewer
    /// than `count` rows, or none, although a next page exists. The cursor then leads further back.
    ///
    /// An event that is in both streams is one row, with the id of its dead letter. Its event has
    /// at most [`EVENT_BYTES_MAX`] bytes, or those of [`Control::with_event_bytes_max`].
    ///
    /// The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name, [`ControlError::Cursor`] if `after` is a
    /// cursor of another list. Other errors if Redis cannot be asked. A stream of a wrong type is
    /// not an error: it is listed in `unreadable`.
    pub async fn chain(
        &self,
        object: impl AsRef<[u8]>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<ChainPage, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let object = keys.found(&object)?;
        let count = count.clamp(1, PER_CALL_MAX);
        let [log_place, dead_place] =
            after.map_or(Ok([Position::Start, Position::Start]), places)?;
        let event_bytes_max = if self.event_bytes_max == 0 {
            EVENT_BYTES_MAX
        } else {
            self.event_bytes_max
        };
        let look = |looked_max| Look {
            object,
            looked_max,
            found_max: count,
            ends_by_bytes: true,
            event_bytes_max: Some(event_bytes_max),
        };
        let looked_max = if after.is_some() {
            LOOKED_MAX
        } else {
            LOOKED_FIRST_MAX
        };
        let dead = look(looked_max / 2)
            .run(&mut conn, keys, keys.events_dead(), dead_place)
            .await?;
        // Most systems have few dead letters. Then the call looks at more log rows.
        let log = look(looked_max - dead.looked)
            .run(&mut conn, keys, keys.event_log(), log_place)
            .await?;
        let mut page = ChainPage {
            log_rows: log.looked,
            dead_letters: dead.looked,
            ..ChainPage::default()
        };
        for (side, key) in [(&log, keys.event_log()), (&dead, keys.events_dead())] {
            page.unreadable.extend(side.is_wrong_type.then_some(key));
        }
        let (rows, [log_place, dead_place]) = merged(&log, &dead, count);
        page.rows = rows;
        if [&log_place, &dead_place]
            .iter()
            .any(|place| **place != Position::End)
        {
            page.next = Some(Cursor::from(format!(
                "{}{} {}",
                CHAIN,
                log_place.text(),
                dead_place.text()
            )));
        }
        Ok(page)
    }
}

/// Beginning of a cursor of the events of one object. The places in both streams follow it.
const CHAIN: &str = "chain ";

/// A place in one stream, from which the look goes on to older rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Position {
    /// Before the newest row.
    Start,
    /// After the row with this id.
    After(String),
    /// After the oldest row.
    End,
}

impl Position {
    fn of(text: &str) -> Option<Self> {
        match text {
            "+" => Some(Self::Start),
            "-" => Some(Self::End),
            id => reply::is_entry_id(id).then(|| Self::After(id.to_owned())),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Start => "+",
            Self::After(id) => id,
            Self::End => "-",
        }
    }
}

fn places(cursor: &Cursor) -> Result<[Position; 2], ControlError> {
    let read = || {
        let (log, dead) = cursor.as_str().strip_prefix(CHAIN)?.split_once(' ')?;
        Some([Position::of(log)?, Position::of(dead)?])
    };
    read().ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

/// A look at one stream for the rows of an object.
pub(super) struct Look<'a> {
    pub object: &'a [u8],
    pub looked_max: u64,
    pub found_max: usize,
    pub ends_by_bytes: bool,
    /// Maximum number of bytes of each event; none without the events.
    pub event_bytes_max: Option<usize>,
}

/// The rows of an object in one stream, newest first.
#[derive(Debug)]
pub(super) struct Side {
    /// The events, each with the id of its row.
    pub rows: Vec<(RowId, EndedEvent)>,
    pub looked: u64,
    pub is_wrong_type: bool,
    /// The place at which the look has begun.
    start: Position,
    /// The place at which the look has ended.
    reached: Position,
}

impl Side {
    /// Returns whether all rows of the stream were looked at.
    pub(super) fn is_complete(&self) -> bool {
        self.reached == Position::End
    }

    /// Returns whether the look has passed all rows of this time and of the `apart_ms` before it.
    fn has_passed(&self, ms: u64, apart_ms: u64) -> bool {
        match &self.reached {
            Position::End => true,
            Position::After(id) => reply::ms_of(id) + apart_ms < ms,
            Position::Start => false,
        }
    }

    /// Returns the place after this number of the rows.
    fn place_after(&self, used: usize) -> Position {
        match used.checked_sub(1).and_then(|last| self.rows.get(last)) {
            _ if used >= self.rows.len() => self.reached.clone(),
            Some((id, _)) => Position::After(id.as_str().to_owned()),
            // Rows that are added before the next page are newer than all of this page.
            None if self.start == Position::Start => self
                .rows
                .first()
                .map_or(Position::Start, |(id, _)| before(id.as_str())),
            None => self.start.clone(),
        }
    }
}

/// Returns the place right before this row: after an id that is higher by one.
fn before(id: &str) -> Position {
    let higher =
        |(ms, n): (&str, &str)| Some(format!("{ms}-{}", n.parse::<u64>().ok()?.checked_add(1)?));
    id.split_once('-')
        .and_then(higher)
        .map_or(Position::Start, Position::After)
}

impl Look<'_> {
    pub(super) async fn run<C: ConnectionLike>(
        &self,
        conn: &mut C,
        keys: &Keys,
        stream: String,
        start: Position,
    ) -> Result<Side, ControlError> {
        let fields = [
            ("status", ERROR_BYTES_MAX),
            ("id", ERROR_BYTES_MAX),
            ("prev", ERROR_BYTES_MAX),
            ("attempts", ERROR_BYTES_MAX),
            ("error", ERROR_BYTES_MAX),
            ("taken", ERROR_BYTES_MAX),
            ("results", RESULTS_BYTES_MAX),
            ("event", self.event_bytes_max.unwrap_or_default()),
        ];
        let fields = if self.event_bytes_max.is_some() {
            &fields[..]
        } else {
            &fields[..7]
        };
        let after = match &start {
            Position::Start => None,
            Position::After(id) => Some(id.as_str()),
            Position::End => {
                return Ok(Side {
                    rows: Vec::new(),
                    looked: 0,
                    is_wrong_type: false,
                    start,
                    reached: Position::End,
                });
            }
        };
        let &Look {
            object,
            looked_max,
            found_max,
            ends_by_bytes,
            ..
        } = self;
        let search = Search {
            stream: &stream,
            object,
            newest: true,
            looked_max,
            found_max,
            ends_by_bytes,
            fields,
        };
        let Found {
            rows,
            looked,
            last,
            complete,
            wrong_type,
        } = search.run(conn, keys, after).await?;
        let reached = match last {
            _ if complete => Position::End,
            Some(last) => Position::After(last),
            None => start.clone(),
        };
        Ok(Side {
            rows: rows.into_iter().map(event).collect(),
            looked,
            is_wrong_type: wrong_type.is_some(),
            start,
            reached,
        })
    }
}

/// Returns the event of a row, without the id of a dead letter.
fn event((id, fields): reply::Entry) -> (RowId, EndedEvent) {
    let event = EndedEvent {
        id: fields.number("id"),
        prev: fields.number("prev"),
        // Dead letters have no status.
        status: fields
            .text("status")
            .map_or(EventStatus::Dead, EventStatus::of),
        attempts: fields.number("attempts"),
        error: fields.filled("error"),
        results: fields
            .filled("results")
            .filter(|_| fields.bytes("results_bytes").is_none()),
        taken_ms: fields.number("taken"),
        at_ms: reply::ms_of(&id),
        dead_id: None,
        event: fields.event(),
    };
    (id.into(), event)
}

/// Returns for each row of the log the index of the dead letter of the same event. The indexes
/// increase, because both streams have the events of one object in the same order.
pub(super) fn paired(log: &Side, dead: &Side) -> Vec<Option<usize>> {
    let mut rest = 0;
    let pair = |(_, event): &(RowId, EndedEvent)| {
        let is_dead = event.status == EventStatus::Dead && event.id.is_some();
        let same = |(_, letter): &(RowId, EndedEvent)| letter.id == event.id;
        let at = rest
            + dead.rows[rest..]
                .iter()
                .position(same)
                .filter(|_| is_dead)?;
        rest = at + 1;
        Some(at)
    };
    log.rows.iter().map(pair).collect()
}

/// Merges the rows of both streams. Returns at most `count` events, and the places from which the
/// next page goes on.
///
/// The page ends before a row if the other stream may have a newer row, or the other row of the
/// same event, that was not looked at. Then the look at the other stream has not ended, so the next
/// page looks further there.
fn merged(log: &Side, dead: &Side, count: usize) -> (Vec<EndedEvent>, [Position; 2]) {
    let pairs = paired(log, dead);
    let (mut rows, mut i, mut j) = (Vec::new(), 0, 0);
    while rows.len() < count {
        let next_pair = pairs
            .iter()
            .enumerate()
            .skip(i)
            .find_map(|(at, pair)| Some((at, (*pair)?)));
        let is_letter_paired = next_pair.is_some_and(|(_, letter)| letter == j);
        let (row, letter) = (log.rows.get(i), dead.rows.get(j));
        let takes_log = match (row, letter) {
            (None, None) => break,
            (Some((_, event)), None) => {
                let apart_ms = if event.status == EventStatus::Dead {
                    APART_MS
                } else {
                    0
                };
                if !dead.has_passed(event.at_ms, apart_ms) {
                    break;
                }
                true
            }
            (None, Some((_, letter))) => {
                if !log.has_passed(letter.at_ms, APART_MS) {
                    break;
                }
                false
            }
            // A letter waits for the log row of its event, and a log row for its letter.
            (Some(_), Some(_)) if pairs[i].is_some() => pairs[i] == Some(j),
            (Some(_), Some(_)) if is_letter_paired => true,
            (Some((_, event)), Some((_, letter))) => {
                (event.at_ms, event.id) >= (letter.at_ms, letter.id)
            }
        };
        let letter = letter.filter(|_| !takes_log || pairs[i].is_some());
        let dead_id = letter.map(|(dead_id, _)| dead_id.clone());
        let event = if takes_log { row } else { letter };
        rows.extend(event.map(|(_, event)| EndedEvent {
            dead_id,
            ..event.clone()
        }));
        i += usize::from(takes_log);
        j += usize::from(letter.is_some());
    }
    (rows, [log.place_after(i), dead.place_after(j)])
}

#[cfg(test)]
mod tests {
    use super::super::rows::Fields;
    use super::*;

    /// A stream, newest first: the id of each row, and the event if the row is of the object.
    type Rows = Vec<(String, Option<(u64, EventStatus)>)>;

    fn looked_at(
        rows: &Rows,
        start: &Position,
        looked_max: usize,
        found_max: usize,
        is_dead: bool,
    ) -> Side {
        let from = match start {
            Position::Start => 0,
            Position::After(id) => rows
                .iter()
                .position(|(row, _)| parts(row) < parts(id))
                .unwrap_or(rows.len()),
            Position::End => rows.len(),
        };
        let (mut side, mut at) = (
            Side {
                rows: Vec::new(),
                looked: 0,
                is_wrong_type: false,
                start: start.clone(),
                reached: Position::End,
            },
            from,
        );
        while at < rows.len() && at - from < looked_max && side.rows.len() < found_max {
            let (row, event) = &rows[at];
            if let Some((id, status)) = event {
                let mut fields = vec![("id".to_owned(), id.to_string().into_bytes())];
                if !is_dead {
                    fields.push(("status".to_owned(), status.as_str().into()));
                }
                side.rows.push(super::event((row.clone(), Fields(fields))));
            }
            at += 1;
        }
        // As in Redis, a look that has all it may have does not know that it has reached the end.
        if at - from == looked_max || side.rows.len() == found_max {
            side.reached = if at == 0 {
                start.clone()
            } else {
                Position::After(rows[at - 1].0.clone())
            };
        }
        side
    }

    fn parts(id: &str) -> [u64; 2] {
        let (ms, n) = id.split_once('-').expect("an id");
        [ms, n].map(|part| part.parse().expect("a number"))
    }

    /// Adds a row at this time, as `XADD` does.
    fn add(rows: &mut Rows, ms: u64, event: Option<(u64, EventStatus)>) -> String {
        let next = match rows.first().and_then(|(id, _)| id.split_once('-')) {
            Some((last, n)) if last == ms.to_string() => n.parse::<u64>().expect("a number") + 1,
            _ => 0,
        };
        rows.insert(0, (format!("{ms}-{next}"), event));
        rows[0].0.clone()
    }

    /// Reads random streams in pages. All pages together have each event once, newest first, with
    /// the id of its dead letter if there is one, whatever the sizes of the looks and pages are.
    #[test]
    fn pages_have_each_event_once_and_in_order() {
        for seed in 0..3000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut log, mut dead, mut expected, mut ms) =
                (Rows::new(), Rows::new(), Vec::new(), 1000);
            for id in 1..=random.u64(..40) {
                ms += [0, 0, 1, 300][random.usize(..4)];
                let is_logged = random.u64(..4) > 0;
                let (kind, is_ours) = (random.u64(..3), random.u64(..2) > 0);
                let ours = |status: EventStatus| is_ours.then_some((id, status));
                let mut dead_id = None;
                if kind == 0 {
                    let letter =
                        (random.u64(..4) > 0).then(|| add(&mut dead, ms, ours(EventStatus::Dead)));
                    ms += random.u64(..3);
                    if is_logged {
                        add(&mut log, ms, ours(EventStatus::Dead));
                    }
                    dead_id = letter;
                } else if is_logged {
                    add(&mut log, ms, ours(EventStatus::Completed));
                }
                if is_ours && (is_logged || dead_id.is_some()) {
                    expected.insert(0, (Some(id), dead_id));
                }
            }
            let (count, looked_max) = (1 + random.usize(..5), 1 + random.usize(..6));
            let (mut seen, mut places) = (Vec::new(), [Position::Start, Position::Start]);
            for page in 0.. {
                assert!(page < 1000, "seed {seed}: the pages have no end");
                let sides = [
                    looked_at(&log, &places[0], looked_max, count, false),
                    looked_at(&dead, &places[1], looked_max, count, true),
                ];
                let (rows, next) = merged(&sides[0], &sides[1], count);
                assert!(rows.len() <= count, "seed {seed}");
                seen.extend(
                    rows.into_iter()
                        .map(|row| (row.id, row.dead_id.map(|id| id.as_str().to_owned()))),
                );
                if next == [Position::End, Position::End] {
                    break;
                }
                assert!(next != places, "seed {seed}: no progress from {places:?}");
                // A cursor keeps both places.
                places = super::places(&Cursor::from(format!(
                    "{CHAIN}{} {}",
                    next[0].text(),
                    next[1].text()
                )))
                .expect("places");
                assert_eq!(places, next);
            }
            assert_eq!(
                seen, expected,
                "seed {seed}: pages of {count}, looks at {looked_max}\nlog {log:?}\ndead {dead:?}"
            );
        }
    }
}
