//! Calls of `advance`: how a session makes them and reads their replies, the same for `serve` and
//! `by_hand`.

use std::sync::Arc;
use std::time::Duration;

use super::config::WorkerConfig;
use super::connect::Redis;
use super::lease::{Lost, Session};
use super::logged;
use crate::connection::PatientConnection;
use crate::failpoints::around;
use crate::wire::{self, Advance, Advanced, BatchReply, Bounds, ClaimFirst, ScriptError};

/// Calls under way at once, for disjoint slots: Redis works on one while the process works on the
/// reply to the other.
pub(crate) const CALLS_MAX: usize = 2;
/// Free slots that a call names beside those with results, at least: naming more than can be given
/// something costs Redis time for nothing.
pub(crate) const NAMED_MIN: usize = 4;
/// Waits before a connection whose call or pop failed is replaced: the reason may be a lasting one.
pub(crate) const FAILED_MIN: Duration = Duration::from_millis(20);
pub(crate) const FAILED_MAX: Duration = Duration::from_secs(1);
/// While Redis is out of memory and moves no markers for a pop, advance looks itself, this often.
pub(crate) const OOM_WAIT: Duration = Duration::from_millis(100);
/// Markers looked at in one call: enough to pass over those a busy object has left, few enough to
/// leave Redis to others.
const MARKERS_MAX: usize = 1024;

/// Makes the calls of one session.
pub(crate) struct Caller {
    redis: Redis,
    config: Arc<WorkerConfig>,
    token: Arc<str>,
}

/// The reply of a call.
pub(crate) struct Found {
    /// When the next held object is due; none if none waits for a time.
    pub(crate) next_due: Option<Duration>,
    /// More can be claimed at once.
    pub(crate) more: bool,
    /// Where to claim first next time.
    pub(crate) claim_first: ClaimFirst,
    pub(crate) batches: Vec<BatchReply>,
}

impl Caller {
    pub(crate) fn new(redis: &Redis, config: &Arc<WorkerConfig>, session: &Session) -> Self {
        Self { redis: redis.clone(), config: Arc::clone(config), token: Arc::clone(&session.token) }
    }

    /// A call that names no slot yet. `in_hand`: the crashes of the batches in hand, if the call may
    /// take suspects beside them.
    pub(crate) fn new_call(
        &self,
        claims: usize,
        reply_bytes: usize,
        claim_first: ClaimFirst,
        in_hand: Option<impl Iterator<Item = u32>>,
    ) -> Advance {
        let mut suspects = self.config.suspects();
        match in_hand {
            Some(in_hand) => in_hand.for_each(|crashes| suspects.has(crashes)),
            None => suspects = suspects.full(),
        }
        let bounds = Bounds {
            batch: self.config.batch,
            batch_bytes: self.config.batch_bytes.min(reply_bytes),
            reply_bytes,
            claims,
            markers: MARKERS_MAX,
            forget_after: self.config.forget_after,
            suspects,
        };
        let (keys, name) = (&self.config.keys, &self.config.name);
        let mut call = Advance::beyond(keys, name, &self.token, bounds, claim_first, self.redis.highest());
        if let Some(log) = self.config.event_log {
            call.log(log);
        }
        call
    }

    /// Reads a reply, and logs the objects that the call has put aside.
    pub(crate) fn read(&self, reply: Advanced) -> Result<Found, Lost> {
        match reply {
            Advanced::Ok { next_due, more, from, batches, quarantined } => {
                for (object, why) in quarantined {
                    logged::put_aside(&object, &why);
                }
                for batch in &batches {
                    self.redis.saw(batch.tag.first + batch.events.len() as u64 - 1);
                }
                Ok(Found { next_due, more, claim_first: from, batches })
            }
            Advanced::Lapsed => Err(Lost::Lapsed),
            Advanced::Fenced { lease } => Err(Lost::Fenced(lease)),
        }
    }

    /// How long to wait until the next look, at most `block`.
    pub(crate) fn next_look(&self, next_due: Option<Duration>) -> Duration {
        let block = self.config.block;
        next_due.map_or(block, |due| due.min(block)).max(Duration::from_millis(1))
    }
}

/// Makes a call.
pub(crate) async fn send(redis: &Redis, conn: &mut PatientConnection, call: &Advance) -> Result<Advanced, ScriptError> {
    let reply = around!("advance", wire::advance(conn, call)).await;
    if reply.is_ok() {
        redis.outage().answered(conn.made_at());
    }
    reply
}

/// How many free slots the next call may name, after one that has named so many and found something
/// for so many of them.
pub(crate) fn named_after(named: usize, given: usize) -> usize {
    if given >= named { (2 * named).max(NAMED_MIN) } else { given.max(NAMED_MIN) }
}

/// The room for suspects. One call under way at a time has it; no other may take any.
#[derive(Debug, Default)]
pub(crate) struct SuspectRoom {
    is_taken: bool,
}

impl SuspectRoom {
    /// Takes the room if it is wanted and free. Returns whether it was.
    pub(crate) fn take_if(&mut self, wanted: bool) -> bool {
        let takes = wanted && !self.is_taken;
        self.is_taken |= takes;
        takes
    }

    /// A call is over that had the room, or had not.
    pub(crate) fn over(&mut self, had: bool) {
        self.is_taken &= !had;
    }
}
