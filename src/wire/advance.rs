//! The call of `advance`: results in, batches out.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};

use super::error::ScriptError;
use super::lua::ADVANCE;
use super::reply::{Reply, millis};
use super::suspects::Suspects;
use super::values::{HeldId, Reason, Tag};
use crate::escape;
use crate::keys::Keys;

/// Where the script looks first for the next object to claim; due held objects and markers take
/// turns.
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

/// What became of the batch in a slot's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The object, as it stands in Redis.
    pub object: Bytes,
    /// The tag the batch was handed out with.
    pub tag: Tag,
    /// How many events, from the front, are delivered.
    pub count: usize,
    /// The id of the last of them; nothing where `count` is 0.
    pub last: Option<u64>,
    /// What follows.
    pub then: BatchResult,
}

/// What follows on a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchResult {
    /// All delivered: go on with the object.
    Done,
    /// All delivered: let other objects have a turn.
    Yield,
    /// The rest stays in hand under a new tag.
    Part {
        /// The tag of the rest.
        next: Tag,
    },
    /// The rest is held.
    Hold {
        /// The numbers of the rest.
        rest: Tag,
        /// How long; nothing: until an operator releases it.
        delay: Option<Duration>,
        /// Why the object is held.
        reason: Reason,
    },
    /// The event after the delivered ones is a dead letter.
    Reject {
        /// The tag of what follows it; nothing where it was the last one.
        next: Option<Tag>,
        /// Its id.
        id: u64,
        /// What is wrong with it.
        error: String,
        /// How often its delivery has failed; the rejection itself is no failure.
        attempts: u32,
    },
    /// The event after the delivered ones is over, with errors.
    Complete {
        /// The tag of what follows it; nothing where it was the last one.
        next: Option<Tag>,
        /// Its id.
        id: u64,
        /// How it failed at last.
        error: String,
        /// How often its delivery has failed.
        attempts: u32,
    },
}

impl BatchResult {
    /// The word of the result; lua/advance/results.lua lists its fields.
    fn word(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Yield => "yield",
            Self::Part { .. } => "part",
            Self::Hold { .. } => "hold",
            Self::Reject { .. } => "reject",
            Self::Complete { .. } => "complete",
        }
    }

    /// Returns whether the whole batch is delivered.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Done | Self::Yield)
    }

    /// Returns whether the slot lets go of its object.
    pub fn lets_go(&self) -> bool {
        matches!(self, Self::Yield | Self::Hold { .. })
    }

    /// The tag of the rest that stays in the slot's hands.
    pub fn in_hand(&self) -> Option<Tag> {
        match self {
            Self::Part { next } => Some(*next),
            Self::Reject { next, .. } | Self::Complete { next, .. } => *next,
            _ => None,
        }
    }

    /// The id of the event that ends without delivery.
    pub fn buried(&self) -> Option<u64> {
        match self {
            Self::Reject { id, .. } | Self::Complete { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The log of events: what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventLog {
    /// About so many rows, the newest. 1 to 10^12, default 100,000.
    pub keep: u64,
    /// Rows that are younger. 1 s to 10 years, default: however old.
    pub keep_for: Option<Duration>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { keep: 100_000, keep_for: None }
    }
}

/// One call.
pub struct Advance {
    cmd: Cmd,
    logs: bool,
}

/// The bounds of a call.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Events per batch.
    pub batch: usize,
    /// Bytes per batch.
    pub batch_bytes: usize,
    /// Bytes per reply.
    pub reply_bytes: usize,
    /// Slots that may claim.
    pub claims: usize,
    /// Markers looked at.
    pub markers: usize,
    /// How long the last id of an object is kept after a slot has released it; nothing: for ever.
    pub forget_after: Option<Duration>,
    /// Room for batches that may kill the process.
    pub suspects: Suspects,
}

impl Advance {
    /// A call that names no slot yet, of a caller that has seen no id.
    pub fn new(keys: &Keys, name: &str, token: &str, bounds: Bounds, from: ClaimFirst) -> Self {
        Self::beyond(keys, name, token, bounds, from, 0)
    }

    /// The same, of a caller that has seen this id: new ids are above it.
    pub fn beyond(keys: &Keys, name: &str, token: &str, bounds: Bounds, from: ClaimFirst, highest: u64) -> Self {
        let mut cmd = ADVANCE.with_key(&keys.worker_lease(name));
        cmd.arg(keys.prefix()).arg(name).arg(token).arg(bounds.batch).arg(bounds.batch_bytes).arg(bounds.reply_bytes);
        cmd.arg(bounds.claims).arg(bounds.markers).arg(from.word());
        cmd.arg(bounds.forget_after.map_or(0, millis));
        cmd.arg(highest).arg(bounds.suspects.to_string());
        Self { cmd, logs: false }
    }

    /// Has the call log what it finalizes. Comes before any slot is named.
    pub fn log(&mut self, log: EventLog) {
        let keep_for = log.keep_for.map_or(0, millis);
        self.cmd.arg("log").arg(log.keep).arg(keep_for);
        self.logs = true;
    }

    /// Names a slot that has, as far as the caller knows, no batch.
    pub fn free(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("free");
    }

    /// Names a slot that is busy, but for which a pop may have moved a name.
    pub fn look(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("look");
    }

    /// Says of the slot that is named next: with what it reports, the event is over of which
    /// handlers have finished something.
    pub fn handled(&mut self, slot: usize) {
        self.cmd.arg(slot).arg("handled");
    }

    /// Names a slot and what became of its batch.
    pub fn report(&mut self, slot: usize, report: &Report) {
        self.report_taken(slot, report, Duration::ZERO);
    }

    /// The same with how long ago it was given the batch, which the log keeps.
    pub fn report_taken(&mut self, slot: usize, report: &Report, ago: Duration) {
        let cmd = &mut self.cmd;
        cmd.arg(slot).arg(report.then.word()).arg(&report.object[..]).arg(report.tag.to_string());
        match report.last {
            Some(last) => cmd.arg(last),
            None => cmd.arg(""),
        };
        match &report.then {
            BatchResult::Done | BatchResult::Yield => {}
            BatchResult::Part { next } => {
                cmd.arg(report.count).arg(next.to_string());
            }
            BatchResult::Hold { rest, delay, reason } => {
                cmd.arg(report.count);
                match delay {
                    Some(delay) => cmd.arg(millis(*delay)),
                    None => cmd.arg("inf"),
                };
                cmd.arg(HeldId { tag: Some(*rest), reason: reason.clone() }.to_string());
            }
            BatchResult::Reject { next, id, error, attempts } | BatchResult::Complete { next, id, error, attempts } => {
                cmd.arg(report.count).arg(next.map_or(String::new(), |next| next.to_string()));
                cmd.arg(*id).arg(error.as_str()).arg(*attempts);
            }
        }
        if self.logs {
            self.cmd.arg(millis(ago));
        }
    }
}

/// The reply of a call.
#[derive(Debug)]
pub enum Advanced {
    /// The call was taken.
    Ok {
        /// When the next held object is due; nothing: none waits for a time.
        next_due: Option<Duration>,
        /// More can be claimed at once.
        more: bool,
        /// Where to claim first next time.
        from: ClaimFirst,
        /// The slots that have a batch; all others of the call are free.
        batches: Vec<BatchReply>,
        /// Objects that were held because one of their keys has a wrong type, and names that were
        /// dropped because they may belong to another namespace: the escaped name, and why.
        quarantined: Vec<(String, String)>,
    },
    /// The lease is gone, and nobody took the name since.
    Lapsed,
    /// The name has another lease, or another registration.
    Fenced {
        /// The lease, empty if there is none.
        lease: String,
    },
}

/// A batch for a slot.
pub struct BatchReply {
    /// The slot.
    pub slot: usize,
    /// The object, as it stands in Redis.
    pub object: Bytes,
    /// The tag.
    pub tag: Tag,
    /// The id of the object's last delivered event.
    pub prev: u64,
    /// The events, oldest first.
    pub events: Vec<Bytes>,
}

impl fmt::Debug for BatchReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = escape::name(&self.object);
        write!(f, "{} {object} {} after {} x{}", self.slot, self.tag, self.prev, self.events.len())
    }
}

/// Makes the call.
///
/// Dropping the future does not take back a call that was sent; calling again with the same results
/// is safe.
pub async fn advance(conn: &mut impl ConnectionLike, call: &Advance) -> Result<Advanced, ScriptError> {
    advanced(ADVANCE.call(conn, &call.cmd).await?)
}

/// Makes the call behind a blocking pop, in one round trip: Redis runs it as soon as the pop is
/// over, whatever became of that. Answers what became of both; the connection failed where the
/// whole is an error.
///
/// A script that the server does not know is not loaded: that is left to the next call of
/// [`advance`]. Dropping the future takes nothing back.
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
    Ok((popped.map(drop), reply.map_err(ScriptError::from).and_then(advanced)))
}

fn advanced(reply: Value) -> Result<Advanced, ScriptError> {
    let mut reply = Reply::of("advance", reply)?;
    match reply.text()?.as_str() {
        "ok" => ok(&mut reply),
        "lapsed" => Ok(Advanced::Lapsed),
        "fenced" => Ok(Advanced::Fenced { lease: reply.text()? }),
        "counter" => Err(ScriptError::Counter(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

fn ok(reply: &mut Reply) -> Result<Advanced, ScriptError> {
    let due = reply.int()?;
    let more = reply.int()? == 1;
    let from = match reply.text()?.as_str() {
        "held" => ClaimFirst::Held,
        "markers" => ClaimFirst::Markers,
        word => return Err(reply.wrong(format!("no place to claim from: {word:?}"))),
    };
    let mut entries = reply.array()?;
    let mut batches = Vec::with_capacity(entries.len());
    while entries.len() > 0 {
        batches.push(batch(&mut entries.array()?)?);
    }
    let mut pairs = reply.array()?;
    let mut quarantined = Vec::new();
    while pairs.len() > 0 {
        let object = escape::name(&pairs.bytes()?).into_owned();
        quarantined.push((object, String::from_utf8_lossy(&pairs.bytes()?).into_owned()));
    }
    let next_due = u64::try_from(due).ok().map(Duration::from_millis);
    Ok(Advanced::Ok { next_due, more, from, batches, quarantined })
}

fn batch(entry: &mut Reply) -> Result<BatchReply, ScriptError> {
    let (slot, object) = (entry.number()?, entry.bytes()?.into());
    let tag = entry.text()?;
    let tag = tag.parse().map_err(|_| entry.wrong(format!("no tag: {tag:?}")))?;
    let prev = entry.number()?;
    let mut events = Vec::with_capacity(entry.len());
    while entry.len() > 0 {
        events.push(entry.bytes()?.into());
    }
    if events.is_empty() {
        return Err(entry.wrong("a batch without events"));
    }
    Ok(BatchReply { slot, object, tag, prev, events })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::values::ReasonCode;

    /// The fields of each result, as lua/advance/results.lua lists them.
    fn fields(word: &str) -> usize {
        let lua = include_str!("../../lua/advance/results.lua");
        let line = lua.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{word} = {{ ")));
        line.unwrap_or_else(|| panic!("results.lua has no {word}")).split(", ").count()
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
        };
        let (error, attempts) = (String::from("no"), 1);
        let results = [
            BatchResult::Done,
            BatchResult::Yield,
            BatchResult::Part { next: Tag::default() },
            BatchResult::Hold { rest: Tag::default(), delay: None, reason: ReasonCode::Stop.into() },
            BatchResult::Reject { next: None, id: 1, error: error.clone(), attempts },
            BatchResult::Complete { next: None, id: 1, error, attempts },
        ];
        for then in results {
            let mut call = Advance::new(&Keys::new(), "w", "token", bounds, ClaimFirst::Held);
            let before = call.cmd.args_iter().count();
            call.report(0, &Report { object: "a".into(), tag: Tag::default(), count: 0, last: None, then });
            let texts = call.cmd.args_iter().skip(before).map(|arg| match arg {
                redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            });
            let texts: Vec<_> = texts.collect();
            // The number of the slot and the word come first.
            assert_eq!(texts.len() - 2, fields(&texts[1]), "{texts:?}");
        }
    }
}
