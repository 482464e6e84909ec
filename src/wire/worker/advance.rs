//! The call of the script `advance`: it commits results and returns new batches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};

use super::library::{Library, Ways};
use super::suspects::Suspects;
use crate::escape;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::ADVANCE;
use crate::wire::reply::{Reply, millis};
use crate::wire::values::{HeldId, Reason, Tag};

/// The source that the script tries first for the next claim. The two sources, due held objects and
/// markers, take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimFirst {
    /// Due held objects.
    Held,
    /// Markers.
    Markers,
}

impl ClaimFirst {
    fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Markers => "markers",
        }
    }
}

/// The result of the batch in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The object's name, as stored in Redis.
    pub object: Bytes,
    /// The tag under which the batch was handed out.
    pub tag: Tag,
    /// The number of delivered events, from the front of the batch.
    pub count: usize,
    /// The id of the last delivered event; `None` if `count` is 0.
    pub last: Option<u64>,
    /// The next step for the rest of the batch.
    pub then: BatchResult,
}

/// The next step for the rest of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchResult {
    /// Every event is delivered: the slot takes more events of the object.
    Done,
    /// Every event is delivered: the object yields its slot to other objects.
    Yield,
    /// The rest stays in flight in this slot, under a new tag.
    Part {
        /// The tag of the rest.
        next: Tag,
    },
    /// The object is held, with the rest as its held batch.
    Hold {
        /// The tag of the rest.
        rest: Tag,
        /// The time until the object is due; `None`: the object is held until an operator releases
        /// it.
        delay: Option<Duration>,
        /// The reason for the hold.
        reason: Reason,
    },
    /// The first undelivered event becomes a dead letter.
    Reject {
        /// The tag of the events after the dead letter; `None` if the batch has no event after it.
        next: Option<Tag>,
        /// The id of the dead letter's event.
        id: u64,
        /// The error of the rejection.
        error: String,
        /// The number of failed deliveries of the event, without the rejection.
        attempts: u32,
    },
    /// The first undelivered event is completed with errors.
    Complete {
        /// The tag of the events after the completed event; `None` if the batch has no event after
        /// it.
        next: Option<Tag>,
        /// The id of the completed event.
        id: u64,
        /// The last error.
        error: String,
        /// The number of failed deliveries of the event.
        attempts: u32,
    },
}

/// The effect of a result on its slot.
struct Effect {
    /// The word that names the result in a call. lua/advance/results.lua lists the fields of each
    /// word.
    word: &'static str,
    /// Whether the whole batch is delivered.
    is_whole: bool,
    /// Whether the object leaves the slot and is held.
    lets_go: bool,
}

impl BatchResult {
    /// Returns the effect of the result on the slot.
    fn effect(&self) -> Effect {
        match self {
            Self::Done => Effect {
                word: "done",
                is_whole: true,
                lets_go: false,
            },
            Self::Yield => Effect {
                word: "yield",
                is_whole: true,
                lets_go: true,
            },
            Self::Part { .. } => Effect {
                word: "part",
                is_whole: false,
                lets_go: false,
            },
            Self::Hold { .. } => Effect {
                word: "hold",
                is_whole: false,
                lets_go: true,
            },
            Self::Reject { .. } => Effect {
                word: "reject",
                is_whole: false,
                lets_go: false,
            },
            Self::Complete { .. } => Effect {
                word: "complete",
                is_whole: false,
                lets_go: false,
            },
        }
    }

    /// Returns whether the whole batch is delivered.
    pub fn is_whole(&self) -> bool {
        self.effect().is_whole
    }

    /// Returns whether the object leaves the slot and is held.
    pub fn lets_go(&self) -> bool {
        self.effect().lets_go
    }

    /// Returns the tag of the rest that stays in flight in the slot; `None` if no rest stays.
    pub fn in_hand(&self) -> Option<Tag> {
        match self {
            Self::Part { next } => Some(*next),
            Self::Reject { next, .. } | Self::Complete { next, .. } => *next,
            _ => None,
        }
    }

    /// Returns the id of the event that is finalized without delivery; `None` if there is no such
    /// event.
    pub fn buried(&self) -> Option<u64> {
        match self {
            Self::Reject { id, .. } | Self::Complete { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The limits of the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventLog {
    /// The approximate number of newest rows that are kept: 1 to 10^12, default 100,000.
    pub keep: u64,
    /// The age at which rows are dropped: 1 s to 10 years. Default: `None`, rows of any age are
    /// kept.
    pub keep_for: Option<Duration>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            keep: 100_000,
            keep_for: None,
        }
    }
}

/// The arguments of one call of `advance`.
pub struct Advance {
    cmd: Cmd,
    ways: Arc<Ways>,
    logs: bool,
}

/// The limits of a call.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The most events per batch.
    pub batch: usize,
    /// The most bytes per batch.
    pub batch_bytes: usize,
    /// The most bytes per reply.
    pub reply_bytes: usize,
    /// The number of slots without a batch. So many may claim at most.
    pub claims: usize,
    /// The most markers that the call reads.
    pub markers: usize,
    /// The time for which an object's last id is kept after its release; `None`: for ever.
    pub forget_after: Option<Duration>,
    /// The number of suspects that the process may still take. A suspect is a batch that may kill
    /// its worker.
    pub suspects: Suspects,
    /// The number of parts of an object's name that are its group; 0: objects have no groups.
    pub group_depth: usize,
}

impl Bounds {
    /// Returns the bounds that are usually the same in all calls of a worker, in one text. A library
    /// remembers such texts (lua/values/bounds.lua).
    fn usual(&self) -> String {
        let forget_ms = self.forget_after.map_or(0, millis);
        format!(
            "{} {} {} {} {forget_ms} {}",
            self.batch, self.batch_bytes, self.reply_bytes, self.markers, self.group_depth
        )
    }
}

impl Advance {
    /// Returns a call that names no slots yet, for a caller that has seen no event id.
    pub fn new(keys: &Keys, name: &str, token: &str, bounds: Bounds, from: ClaimFirst) -> Self {
        Self::beyond(keys, name, token, bounds, from, 0, &Arc::default())
    }

    /// Returns a call that names no slots yet. `highest` is the highest event id that the caller
    /// has seen. All ids that the call gives are above it. `ways`: the ways in which Redis may run
    /// the call.
    pub fn beyond(
        keys: &Keys,
        name: &str,
        token: &str,
        bounds: Bounds,
        from: ClaimFirst,
        highest: u64,
        ways: &Arc<Ways>,
    ) -> Self {
        let mut cmd = ADVANCE.begin(ways.of_call(), &keys.worker_lease(name));
        cmd.arg(keys.prefix())
            .arg(name)
            .arg(token)
            .arg(bounds.usual())
            .arg(bounds.claims)
            .arg(from.word())
            .arg(highest)
            .arg(bounds.suspects.to_string());
        Self {
            cmd,
            ways: Arc::clone(ways),
            logs: false,
        }
    }

    /// Makes the call write the events that it finalizes to the event log. Must be called before
    /// the first slot is added.
    pub fn log(&mut self, log: EventLog) {
        let keep_for = log.keep_for.map_or(0, millis);
        self.cmd.arg("log").arg(log.keep).arg(keep_for);
        self.logs = true;
    }

    /// Adds a slot that has no batch, as far as the caller knows.
    pub fn free(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("free");
    }

    /// Adds a busy slot. A pop may have moved an object's name into the slot's list, and the script
    /// moves such a name back to the markers.
    pub fn look(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("look");
    }

    /// Marks the slot whose result is added next. This result may end the event whose handler
    /// progress is stored.
    pub fn handled(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("handled");
    }

    /// Adds a slot with the result of its batch.
    pub fn report(&mut self, slot: usize, report: &Report) {
        self.report_taken(slot, report, Duration::ZERO);
    }

    /// Adds a slot with the result of its batch. `ago` is the time since the slot took the batch;
    /// only the event log uses it.
    pub fn report_taken(&mut self, slot: usize, report: &Report, ago: Duration) {
        let cmd = &mut self.cmd;
        cmd.arg(slot)
            .arg(report.then.effect().word)
            .arg(&report.object[..])
            .arg(report.tag.stored(&report.object));
        match report.last {
            Some(last) => cmd.arg(last),
            None => cmd.arg(""),
        };
        match &report.then {
            BatchResult::Done | BatchResult::Yield => {}
            BatchResult::Part { next } => {
                cmd.arg(report.count).arg(next.to_string());
            }
            BatchResult::Hold {
                rest,
                delay,
                reason,
            } => {
                cmd.arg(report.count);
                match delay {
                    Some(delay) => cmd.arg(millis(*delay)),
                    None => cmd.arg("inf"),
                };
                cmd.arg(
                    HeldId {
                        tag: Some(*rest),
                        reason: reason.clone(),
                    }
                    .to_string(),
                );
            }
            BatchResult::Reject {
                next,
                id,
                error,
                attempts,
            }
            | BatchResult::Complete {
                next,
                id,
                error,
                attempts,
            } => {
                cmd.arg(report.count)
                    .arg(next.map_or(String::new(), |next| next.to_string()));
                cmd.arg(*id).arg(error.as_str()).arg(*attempts);
            }
        }
        if self.logs {
            self.cmd.arg(millis(ago));
        }
    }
}

/// The reply to a call of `advance`.
#[derive(Debug)]
pub enum Advanced {
    /// The script has run.
    Ok {
        /// The time until the next held object is due or the next rule ends, whichever is sooner;
        /// `None` if neither has a known time.
        next_due: Option<Duration>,
        /// Whether another call can claim or wake more objects now.
        more: bool,
        /// Whether markers wait that belong to unknown groups. Then another call is of use even without
        /// a free slot.
        unsorted: bool,
        /// The source to try first in the next call.
        from: ClaimFirst,
        /// The batches of the slots that have one now. Every other slot that the call named is
        /// free.
        batches: Vec<BatchReply>,
        /// Pairs of an escaped name and an error. Either one of the object's keys has a wrong type
        /// or is lost, and the object is held. Or a lost key was put right, or the object of a batch
        /// is not known. Or the name may belong to another namespace, and its marker was dropped.
        quarantined: Vec<(String, String)>,
    },
    /// The lease is gone, and no other process has attached since.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token.
    Fenced {
        /// The present lease; empty if there is none.
        lease: String,
    },
}

/// The batch of a slot.
pub struct BatchReply {
    /// The slot's number.
    pub slot: usize,
    /// The object's name, as stored in Redis.
    pub object: Bytes,
    /// The tag of the batch.
    pub tag: Tag,
    /// The id of the object's last delivered event.
    pub prev: u64,
    /// The events, oldest first.
    pub events: Vec<Bytes>,
}

impl fmt::Debug for BatchReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = escape::name(&self.object);
        write!(
            f,
            "{} {object} {} after {} x{}",
            self.slot,
            self.tag,
            self.prev,
            self.events.len()
        )
    }
}

/// Calls the script `advance`.
///
/// Cancellation: a call that was sent may still run. It is safe to send the same call again.
pub async fn advance(
    conn: &mut impl ConnectionLike,
    call: &Advance,
) -> Result<Advanced, ScriptError> {
    advanced(ADVANCE.call(conn, &call.ways, &call.cmd).await?)
}

/// Sends a blocking pop and the call of `advance` behind it, in one round trip. Redis runs the call
/// as soon as the pop ends, even if the pop failed. Returns both results; the outer error is an
/// error of the connection.
///
/// If the server does not know the function or the script, the call follows once more, with another
/// round trip. Cancellation: both commands may still run.
pub(crate) async fn pop_and_advance(
    conn: &mut impl ConnectionLike,
    pop: Cmd,
    call: &Advance,
) -> Result<(Result<(), RedisError>, Result<Advanced, ScriptError>), RedisError> {
    let mut both = redis::pipe();
    both.add_command(pop).add_command(call.cmd.clone());
    let mut replies = conn.req_packed_commands(&both, 0, 2).await?.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
    let (popped, reply) = (next(), next());
    let reply = match reply {
        Err(error) if Library::has_not_run(&error) => advance(conn, call).await,
        Ok(reply) => {
            call.ways.ran(&call.cmd);
            advanced(reply)
        }
        Err(error) => Err(error.into()),
    };
    Ok((popped.map(drop), reply))
}

fn advanced(reply: Value) -> Result<Advanced, ScriptError> {
    let mut reply = Reply::of("advance", reply)?;
    match reply.text()?.as_str() {
        "ok" => ok(&mut reply),
        "lapsed" => Ok(Advanced::Lapsed),
        "fenced" => Ok(Advanced::Fenced {
            lease: reply.text()?,
        }),
        "counter" => Err(ScriptError::Counter(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

fn ok(reply: &mut Reply) -> Result<Advanced, ScriptError> {
    let next_due = match reply.int()? {
        -1 => None,
        ms => {
            let ms = u64::try_from(ms)
                .map_err(|_| reply.wrong(format!("a time was expected, not {ms}")))?;
            Some(Duration::from_millis(ms))
        }
    };
    let more = reply.int()?;
    let (more, unsorted) = (more > 0, more == 2);
    let from = match reply.text()?.as_str() {
        "held" => ClaimFirst::Held,
        "markers" => ClaimFirst::Markers,
        word => return Err(reply.wrong(format!("unknown source of claims {word:?}"))),
    };
    let quarantined = reply.texts()?;
    let mut batches = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        batches.push(batch(&mut reply.array()?)?);
    }
    Ok(Advanced::Ok {
        next_due,
        more,
        unsorted,
        from,
        batches,
        quarantined,
    })
}

fn batch(entry: &mut Reply) -> Result<BatchReply, ScriptError> {
    let (slot, object) = (entry.number()?, entry.bytes()?.into());
    let tag = entry.text()?;
    let tag = tag
        .parse()
        .map_err(|_| entry.wrong(format!("invalid tag {tag:?}")))?;
    let prev = entry.number()?;
    let mut events = Vec::with_capacity(entry.len());
    while entry.len() > 0 {
        events.push(entry.bytes()?.into());
    }
    if events.is_empty() {
        return Err(entry.wrong("a batch without events"));
    }
    Ok(BatchReply {
        slot,
        object,
        tag,
        prev,
        events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::values::ReasonCode;

    /// Returns the number of fields of a result word, as lua/advance/results.lua lists them.
    fn fields(word: &str) -> usize {
        let lua = include_str!("../../../lua/advance/results.lua");
        let line = lua
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(&format!("{word} = {{ ")));
        line.unwrap_or_else(|| panic!("results.lua has no {word}"))
            .split(", ")
            .count()
    }

    /// Returns the number of result words that lua/advance/results.lua lists.
    fn words() -> usize {
        let lua = include_str!("../../../lua/advance/results.lua");
        let list = lua
            .split_once("local FIELDS = {")
            .and_then(|(_, rest)| rest.split_once("\n}\n"))
            .expect("the list")
            .0;
        list.lines().filter(|line| line.contains(" = { ")).count()
    }

    #[test]
    fn every_result_has_the_fields_that_the_script_reads() {
        let bounds = Bounds {
            batch: 1,
            batch_bytes: 1,
            reply_bytes: 1,
            claims: 1,
            markers: 1,
            forget_after: None,
            suspects: Suspects::NONE,
            group_depth: 0,
        };
        let (error, attempts) = (String::from("no"), 1);
        let results = [
            BatchResult::Done,
            BatchResult::Yield,
            BatchResult::Part {
                next: Tag::default(),
            },
            BatchResult::Hold {
                rest: Tag::default(),
                delay: None,
                reason: ReasonCode::Stop.into(),
            },
            BatchResult::Reject {
                next: None,
                id: 1,
                error: error.clone(),
                attempts,
            },
            BatchResult::Complete {
                next: None,
                id: 1,
                error,
                attempts,
            },
        ];
        assert_eq!(results.len(), words(), "this test has every result");
        for then in results {
            let mut call = Advance::new(&Keys::new(), "w", "token", bounds, ClaimFirst::Held);
            let before = call.cmd.args_iter().count();
            call.report(
                0,
                &Report {
                    object: "a".into(),
                    tag: Tag::default(),
                    count: 0,
                    last: None,
                    then,
                },
            );
            let texts = call.cmd.args_iter().skip(before).map(|arg| match arg {
                redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            });
            let texts: Vec<_> = texts.collect();
            // The first two texts are the slot's number and the result word.
            assert_eq!(texts.len() - 2, fields(&texts[1]), "{texts:?}");
        }
    }
}
