//! Reads the event log from Redis while it grows, and compares it with the history at the end of
//! the run.
//!
//! One step finalizes an event and writes its row. So Redis loses either both or none of them.
//! There are three checks. No event has two rows. The ids and `prev` of an object's rows form a
//! chain. Each acknowledged or received event has a row, unless Redis may have lost its emit.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use seriatim::control::log::PER_CALL_MAX;
use seriatim::control::{Control, Cursor, EventStatus, LogEntry, RowId};

use tokio::time::Instant;

use crate::excused::Excused;
use crate::receiver::name_in;

/// Maximum number of faults that are printed one by one.
const TOLD: usize = 10;

#[derive(Default)]
pub(crate) struct EventLog {
    rows: Vec<Row>,
    /// The id of the last row read.
    read_to: Option<RowId>,
    /// The id of the newest row at several times in the last seconds. These times show the age of
    /// rows. The row ids do not, because Redis' clock may step.
    newest: VecDeque<(Instant, String)>,
    /// For each restart of Redis without data: the number of rows read before it.
    emptied: Vec<usize>,
}

#[derive(Debug)]
struct Row {
    status: EventStatus,
    object: String,
    id: u64,
    prev: u64,
    event: String,
    /// Whether a repair has made the event a dead letter, because a later event of the object was
    /// delivered before. Such a row is outside the chain.
    is_late: bool,
}

impl Row {
    fn of(entry: LogEntry) -> anyhow::Result<Self> {
        let (id, prev) = entry.id.zip(entry.prev).context("a row without numbers")?;
        let event = name_in(&String::from_utf8_lossy(entry.event.bytes()))?;
        let is_late = entry.status == EventStatus::Dead
            && entry
                .error
                .as_deref()
                .is_some_and(|error| error.starts_with("repair:"));
        Ok(Self {
            status: entry.status,
            object: entry.object,
            id,
            prev,
            event,
            is_late,
        })
    }
}

impl EventLog {
    /// Records that Redis was restarted without data, so that every object begins a new chain.
    pub(crate) fn emptied(&mut self) {
        self.emptied.push(self.rows.len());
        self.read_to = None;
        self.newest.clear();
    }

    /// Reads all rows. If `settled` is given, reads only rows older than `settled`, which Redis can
    /// no longer lose, and deletes the rows read.
    pub(crate) async fn read(
        &mut self,
        conn: &mut MultiplexedConnection,
        settled: Option<Duration>,
    ) -> anyhow::Result<()> {
        let end = match settled {
            None => None,
            Some(age) => match self.settled_to(conn, age).await? {
                Some(end) => Some(end),
                None => return Ok(()),
            },
        };
        loop {
            let after = self.read_to.as_ref().map(Cursor::from);
            let page = Control::new(conn.clone())
                .log(after.as_ref(), PER_CALL_MAX)
                .await?
                .entries;
            let count = page.len();
            let is_settled =
                |entry: &LogEntry| end.is_none_or(|end| stream_id(entry.log_id.as_str()) <= end);
            let page: Vec<LogEntry> = page.into_iter().take_while(is_settled).collect();
            let is_last = page.len() < PER_CALL_MAX || count < PER_CALL_MAX;
            for entry in page {
                let log_id = entry.log_id.clone();
                self.rows.push(Row::of(entry)?);
                self.read_to = Some(log_id);
            }
            if is_last {
                break;
            }
        }
        if let (Some(read_to), Some(_)) = (&self.read_to, settled) {
            redis::cmd("XTRIM")
                .arg("event.log")
                .arg("MINID")
                .arg(read_to.as_str())
                .exec_async(conn)
                .await?;
        }
        Ok(())
    }

    /// Records the id of the newest row. Returns the id up to which all rows are older than `age`;
    /// `None` if no such id is known.
    async fn settled_to(
        &mut self,
        conn: &mut MultiplexedConnection,
        age: Duration,
    ) -> anyhow::Result<Option<StreamId>> {
        let mut newest = redis::cmd("XREVRANGE");
        newest
            .arg("event.log")
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1);
        let newest: Vec<(String, redis::Value)> = newest.query_async(conn).await?;
        if let Some((id, _)) = newest.into_iter().next() {
            self.newest.push_back((Instant::now(), id));
        }
        let settled = self
            .newest
            .iter()
            .take_while(|(at, _)| at.elapsed() >= age)
            .count();
        let end = self.newest.drain(..settled).next_back();
        Ok(end.map(|(_, id)| stream_id(&id)))
    }

    /// Compares the rows with the history, and prints the faults found. Events that were lost with a
    /// deleted key need no row. Returns whether there is no fault.
    pub(crate) fn judge(
        &self,
        history: &Path,
        lossy: bool,
        excused: &Excused,
    ) -> anyhow::Result<bool> {
        let (known, mut faults) = (Known::read(history)?, Vec::new());
        let (mut ids, mut events, mut last) = (
            HashSet::new(),
            HashSet::new(),
            HashMap::<&str, (u64, u64)>::new(),
        );
        let ids_gone = known.ids_of(&excused.gone);
        for (at, row) in self.rows.iter().enumerate() {
            if self.emptied.contains(&at) {
                last.values_mut().for_each(|(_, prev)| *prev = 0);
            }
            if !ids.insert(row.id) || !events.insert(row.event.as_str()) {
                faults.push(format!("logged twice: {row:?}"));
            }
            // `before`: the last id of the object in the log. `prev`: its last delivered id.
            let (before, prev) = last.entry(&row.object).or_default();
            let follows = row.prev == *prev
                || row.prev > *prev && ids_gone.contains(&(row.object.as_str(), row.prev));
            if !row.is_late && (row.id <= *before || !follows) {
                faults.push(format!(
                    "behind {before} and the delivered {prev} there is {row:?}"
                ));
            }
            *before = row.id.max(*before);
            let came = (row.object.clone(), row.id, row.prev);
            let is_known = match row.status {
                EventStatus::Completed => {
                    *prev = row.id;
                    known
                        .received
                        .get(&row.event)
                        .is_some_and(|(_, all)| all.contains(&came))
                }
                EventStatus::Dead => known.dead.get(&row.event) == Some(&came),
                _ => false,
            };
            if !is_known
                || known
                    .emits
                    .get(&row.event)
                    .is_none_or(|emit| emit.failed || emit.object != row.object)
            {
                faults.push(format!("nothing of the kind became of the event: {row:?}"));
            }
        }
        let (mut lost, mut with_keys) = (0, 0);
        for (event, emit) in &known.emits {
            let received = known.received.get(event).map(|(first, _)| *first);
            if events.contains(event.as_str())
                || !(emit.acknowledged || received.is_some() || known.dead.contains_key(event))
            {
                continue;
            }
            // An emit with an unknown outcome may have taken effect after its reply was given up,
            // but before its event was received.
            let end = emit
                .end
                .max(received.filter(|_| !emit.acknowledged).unwrap_or_default());
            let in_window = known
                .windows
                .iter()
                .any(|(from, to)| emit.begin <= *to && *from <= end);
            if excused.gone.contains(event) {
                with_keys += 1;
            } else if lossy && in_window && !known.dead.contains_key(event) {
                lost += 1;
            } else {
                faults.push(format!("{event} of {} has no row", emit.object));
            }
        }
        let mut by_status = BTreeMap::<&str, u64>::new();
        self.rows
            .iter()
            .for_each(|row| *by_status.entry(row.status.as_str()).or_default() += 1);
        println!(
            "event log: {} rows, {by_status:?}; {lost} lost by Redis with their emits, {with_keys} with their keys; {} faults",
            self.rows.len(),
            faults.len()
        );
        faults
            .iter()
            .take(TOLD)
            .for_each(|fault| println!("  EVENT LOG: {fault}"));
        Ok(faults.is_empty())
    }
}

/// The id of a stream entry as numbers, in the order of the stream.
type StreamId = (u64, u64);

fn stream_id(text: &str) -> StreamId {
    let (ms, sequence) = text.split_once('-').unwrap_or((text, "0"));
    (
        ms.parse().unwrap_or_default(),
        sequence.parse().unwrap_or_default(),
    )
}

/// One event of an emit: its object, and the times and the result of the emit.
struct Emit {
    object: String,
    begin: u64,
    end: u64,
    acknowledged: bool,
    failed: bool,
}

/// An arrival of an event: its object, its id, and its `prev`.
type Came = (String, u64, u64);

/// The content of the history. The keys of the maps are the names of events.
#[derive(Default)]
struct Known {
    emits: HashMap<String, Emit>,
    /// For each received event: the time of its first arrival, and all its arrivals.
    received: HashMap<String, (u64, HashSet<Came>)>,
    dead: HashMap<String, Came>,
    windows: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Line {
    Invoke {
        t: u64,
        emit: String,
        object: String,
        events: Vec<String>,
    },
    Ok {
        t: u64,
        emit: String,
    },
    Failed {
        t: u64,
        emit: String,
    },
    Unknown {
        t: u64,
        emit: String,
    },
    Receive {
        t: u64,
        object: String,
        id: u64,
        prev: u64,
        event: String,
    },
    Dead {
        object: String,
        id: u64,
        prev: u64,
        event: String,
    },
    RedisLost {
        from: u64,
        to: u64,
    },
    ClockAhead {},
}

impl Known {
    fn read(history: &Path) -> anyhow::Result<Self> {
        let mut known = Self::default();
        let mut events_of = HashMap::<String, Vec<String>>::new();
        for line in BufReader::new(File::open(history)?).lines() {
            match serde_json::from_str(&line?).context("a line of the history")? {
                Line::Invoke {
                    t,
                    emit,
                    object,
                    events,
                } => {
                    for event in &events {
                        let emit = Emit {
                            object: object.clone(),
                            begin: t,
                            end: u64::MAX,
                            acknowledged: false,
                            failed: false,
                        };
                        known.emits.insert(event.clone(), emit);
                    }
                    events_of.insert(emit, events);
                }
                Line::Ok { t, emit } => {
                    known.answered(events_of.remove(&emit), t, |emit| emit.acknowledged = true)
                }
                Line::Failed { t, emit } => {
                    known.answered(events_of.remove(&emit), t, |emit| emit.failed = true)
                }
                Line::Unknown { t, emit } => known.answered(events_of.remove(&emit), t, |_| ()),
                Line::Receive {
                    t,
                    object,
                    id,
                    prev,
                    event,
                } => {
                    known
                        .received
                        .entry(event)
                        .or_insert_with(|| (t, HashSet::new()))
                        .1
                        .insert((object, id, prev));
                }
                Line::Dead {
                    object,
                    id,
                    prev,
                    event,
                } => drop(known.dead.insert(event, (object, id, prev))),
                Line::RedisLost { from, to } => known.windows.push((from, to)),
                Line::ClockAhead {} => {}
            }
        }
        Ok(known)
    }

    /// Returns the ids under which these events were received, each with its object. A worker counts
    /// such an event as delivered. Its row is absent, because its text was lost with the key.
    fn ids_of(&self, gone: &HashSet<String>) -> HashSet<(&str, u64)> {
        let received = gone.iter().filter_map(|event| self.received.get(event));
        received
            .flat_map(|(_, all)| all.iter().map(|(object, id, _)| (object.as_str(), *id)))
            .collect()
    }

    fn answered(&mut self, events: Option<Vec<String>>, t: u64, how: impl Fn(&mut Emit)) {
        for event in events.unwrap_or_default() {
            if let Some(emit) = self.emits.get_mut(&event) {
                emit.end = t;
                how(emit);
            }
        }
    }
}
