//! Calls of `advance` for `serve` and `by_hand`: making a call and reading its reply.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::PatientConnection;
use crate::failpoints::around;
use crate::wire::{self, Advance, Advanced, BatchReply, Bounds, ClaimFirst, ScriptError};
use crate::worker::config::WorkerConfig;
use crate::worker::session::connect::Redis;
use crate::worker::session::lease::{Lost, Session};
use crate::worker::watch::figures::Call;
use crate::worker::watch::logged;

/// The most calls under way at the same time. No slot is named in two of them. Redis works on one
/// call while the process works on the reply to the other call.
pub(crate) const CALLS_MAX: usize = 2;
/// The smallest limit on the free slots that a call names beside the slots with results. There is a
/// limit because naming slots that get no batch costs Redis time.
pub(crate) const NAMED_MIN: usize = 4;
/// The shortest and the longest wait before a failed connection is replaced. The process waits
/// because the cause may last.
pub(crate) const FAILED_MIN: Duration = Duration::from_millis(20);
pub(crate) const FAILED_MAX: Duration = Duration::from_secs(1);
/// The interval of calls while Redis is out of memory. Then pops move no markers, so only the
/// claims of calls find objects.
pub(crate) const OOM_WAIT: Duration = Duration::from_millis(100);
/// The most markers read in one call. The number is large enough to skip the markers that a busy
/// object has left, and small enough that Redis soon serves other clients.
const MARKERS_MAX: usize = 1024;

/// Makes the calls of one session.
pub(crate) struct Caller {
    redis: Redis,
    config: Arc<WorkerConfig>,
    token: Arc<str>,
}

/// The reply to a call.
pub(crate) struct Found {
    /// The time until the next held object is due or the next rule ends, whichever is sooner;
    /// `None` if neither has a known time.
    pub(crate) next_due: Option<Duration>,
    /// Whether another call can claim or wake more objects now.
    pub(crate) more: bool,
    /// Whether markers of unknown groups wait. Then another call is of use even without a free slot.
    pub(crate) unsorted: bool,
    /// The source to try first in the next call.
    pub(crate) claim_first: ClaimFirst,
    pub(crate) batches: Vec<BatchReply>,
}

impl Caller {
    pub(crate) fn new(redis: &Redis, config: &Arc<WorkerConfig>, session: &Session) -> Self {
        Self {
            redis: redis.clone(),
            config: Arc::clone(config),
            token: Arc::clone(&session.token),
        }
    }

    /// Returns a call of `advance` without slots. `in_hand`: the number of crashes of each batch in
    /// hand, which limits the suspects that the call may take. `None`: the call may take no
    /// suspects. A suspect is a batch that may kill its worker.
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
            group_depth: self.config.group_depth,
        };
        let (keys, name) = (&self.config.keys, &self.config.name);
        let mut call = Advance::beyond(
            keys,
            name,
            &self.token,
            bounds,
            claim_first,
            self.redis.highest(),
            self.redis.ways(),
        );
        if let Some(log) = self.config.event_log {
            call.log(log);
        }
        call
    }

    /// Reads a reply. Logs the objects that the call has held because of a wrong type, and the
    /// names that it has dropped.
    pub(crate) fn read(&self, reply: Advanced) -> Result<Found, Lost> {
        match reply {
            Advanced::Ok {
                next_due,
                more,
                unsorted,
                from,
                batches,
                quarantined,
            } => {
                self.redis
                    .figures()
                    .lost_keys(logged::quarantined_all(&quarantined));
                for batch in &batches {
                    self.redis
                        .saw(batch.tag.first + batch.events.len() as u64 - 1);
                }
                Ok(Found {
                    next_due,
                    more,
                    unsorted,
                    claim_first: from,
                    batches,
                })
            }
            Advanced::Lapsed => Err(Lost::Lapsed),
            Advanced::Fenced { lease } => Err(Lost::Fenced(lease)),
        }
    }

    /// Returns the time until the next claim is tried, at most `block`.
    pub(crate) fn next_look(&self, next_due: Option<Duration>) -> Duration {
        let block = self.config.block;
        next_due
            .map_or(block, |due| due.min(block))
            .max(Duration::from_millis(1))
    }
}

/// Sends a call and returns the reply. If the worker waits for replicas, returns only when enough
/// replicas have the batches of the reply.
pub(crate) async fn send(
    redis: &Redis,
    conn: &mut PatientConnection,
    call: &Advance,
) -> Result<Advanced, ScriptError> {
    let reply = redis
        .timed(Call::Advance, around!("advance", wire::advance(conn, call)))
        .await?;
    until_replicated(redis, conn, &reply).await?;
    redis.outage().answered(conn.made_at());
    Ok(reply)
}

/// Waits until enough replicas have the batches of a reply. A sink must not get an id that a
/// failover can lose. This wait has no limit, like the wait for a Redis that is away.
///
/// The call has written every batch of its reply, even a batch that it gives again. So `WAIT` on
/// the connection of the call covers all of them.
///
/// # Errors
/// The connection failed. The next call gives the same batches again.
pub(crate) async fn until_replicated(
    redis: &Redis,
    conn: &mut PatientConnection,
    reply: &Advanced,
) -> Result<(), ScriptError> {
    if !matches!(reply, Advanced::Ok { batches, .. } if !batches.is_empty()) {
        return Ok(());
    }
    replicated(redis, conn).await
}

/// Waits until enough replicas have all writes of this connection, if the worker waits for replicas.
///
/// # Errors
/// The connection failed.
pub(crate) async fn replicated(
    redis: &Redis,
    conn: &mut PatientConnection,
) -> Result<(), ScriptError> {
    let Some(wait) = redis.wait() else {
        return Ok(());
    };
    conn.set_block(wait.timeout().max(conn.block()));
    let mut failed = false;
    while let Err(too_few) = around!("wait", wait.run(conn)).await? {
        failed = true;
        redis.outage().failed(
            Instant::now(),
            &format!("too few replicas, so nothing is delivered: {too_few}"),
        );
    }
    if failed {
        redis.outage().answered(Instant::now());
    }
    Ok(())
}

/// Returns the number of free slots that the next call may name. The call before named `named` free
/// slots, and `given` of them got a batch.
pub(crate) fn named_after(named: usize, given: usize) -> usize {
    if given >= named {
        (2 * named).max(NAMED_MIN)
    } else {
        given.max(NAMED_MIN)
    }
}

/// The permission to take suspects (batches that may kill their worker). Only one call under way at
/// a time has the permission, so that two calls together do not take too many suspects.
#[derive(Debug, Default)]
pub(crate) struct SuspectRoom {
    is_taken: bool,
}

impl SuspectRoom {
    /// Takes the permission if it is `wanted` and free. Returns whether it was taken.
    pub(crate) fn take_if(&mut self, wanted: bool) -> bool {
        let takes = wanted && !self.is_taken;
        self.is_taken |= takes;
        takes
    }

    /// Records the end of a call. `had`: whether the call had the permission.
    pub(crate) fn over(&mut self, had: bool) {
        self.is_taken &= !had;
    }
}
