//! Sends single emits of many tasks in few transactions.
//!
//! If no other emit is under way, a task sends its emit itself, at once. All other emits go through
//! a queue. For each connection, one sender task takes all queued emits and sends them as a group:
//! one transaction with one LPUSH per emit and one LPUSH of markers. The sender task does not wait
//! for a group to grow. It only yields to tasks that are ready, because they may be about to emit.
//!
//! - Order: the queue is first in, first out. The commands of a group have the same order.
//! - Errors: each emit gets the result of its own command. If Redis refuses commands and so
//!   discards the transaction, the sender task sends the other emits again. They were certainly not
//!   applied.
//! - Bounds: an emit with data, or with more than [`EMIT_BYTES_MAX`], is sent alone. With the
//!   limits below, the queue holds at most 1 MiB of events, and the groups under way about 16 MiB.
//! - Cancellation: the sender task sends the emits, not their callers. If the future of a queued
//!   emit is dropped, the emit is not sent.
//!
//! If the connection is lost, the outcome of each group under way is unknown. Emits that were still
//! in the queue were not sent. They go over the next connection.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{unconstrained, yield_now};

use super::draft::Draft;
use super::error::{Failed, Replies, read_answer, refused, refused_commands, replies};
use super::wire::Wire;

/// Maximum number of emits in a group.
const EMITS_MAX: usize = 64;
/// Maximum size in bytes of the events of an emit that may join a group.
const EMIT_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of queued emits. If the queue is full, callers wait in order.
const QUEUE_MAX: usize = 256;
/// Maximum number of groups under way.
const GROUPS_MAX: usize = 64;
/// Maximum number of groups under way if emits wait for replicas. It is small, because Redis reads
/// the next group only when the wait is over.
const GROUPS_MAX_WITH_WAIT: usize = 2;

/// The results of the two commands of one emit: the LPUSH of its events, and the LPUSH of markers.
type Answer = Result<Replies, Failed>;

/// Returns whether an emit may share a transaction with others: it has few bytes and no data.
pub(super) fn may_join(draft: &Draft) -> bool {
    draft.data.is_none() && draft.bytes <= EMIT_BYTES_MAX
}

/// The entry through which single emits reach one connection.
#[derive(Clone)]
pub(super) struct Gate {
    queue: mpsc::Sender<Queued>,
    /// Number of emits under way. They are sent or queued.
    under_way: Arc<AtomicUsize>,
}

/// An emit that waits for its group.
struct Queued {
    draft: Draft,
    markers_key: Arc<str>,
    outcome: oneshot::Sender<Outcome>,
}

enum Outcome {
    Sent(Answer),
    /// The connection was lost before the emit was sent, so the emit is given back.
    Unsent(Draft),
}

/// Counts an emit as under way until this value is dropped.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// Starts the sender task of a connection. The task ends when the last clone of the gate is
    /// dropped.
    pub(super) fn open(wire: Wire, gone: Arc<AtomicBool>, waits: bool) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let groups_max = if waits {
            GROUPS_MAX_WITH_WAIT
        } else {
            GROUPS_MAX
        };
        tokio::spawn(send_groups(Connection { wire, gone }, queued, groups_max));
        Self {
            queue,
            under_way: Arc::default(),
        }
    }

    /// Counts an emit, and returns whether it is the only one under way.
    pub(super) fn enter(&self) -> (UnderWay, bool) {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        (UnderWay(Arc::clone(&self.under_way)), others == 0)
    }

    /// Sends an emit in a group, and returns the results of its commands. If the connection was
    /// lost before the emit was sent, returns the emit itself.
    pub(super) async fn emit(&self, draft: Draft, markers_key: Arc<str>) -> Result<Answer, Draft> {
        let (outcome, answer) = oneshot::channel();
        let queued = self.queue.send(Queued {
            draft,
            markers_key,
            outcome,
        });
        // `unconstrained` keeps the order of two emits. Without it, the runtime would defer calls
        // of a task that has made many ready calls, and could then reverse the order.
        if let Err(closed) = unconstrained(queued).await {
            return Err(closed.0.draft);
        }
        match answer.await {
            Ok(Outcome::Sent(answer)) => Ok(answer),
            Ok(Outcome::Unsent(draft)) => Err(draft),
            // The runtime of the connection has ended, so the outcome is unknown.
            Err(_) => Ok(Err(Failed::Unknown(
                io::Error::from(io::ErrorKind::BrokenPipe).into(),
            ))),
        }
    }
}

#[derive(Clone)]
struct Connection {
    wire: Wire,
    gone: Arc<AtomicBool>,
}

async fn send_groups(connection: Connection, mut queue: mpsc::Receiver<Queued>, groups_max: usize) {
    let mut on_their_way = FuturesUnordered::new();
    loop {
        // Drives the groups under way until an emit is queued and another group may be sent.
        let first = poll_fn(|cx| {
            while let Poll::Ready(Some(())) = on_their_way.poll_next_unpin(cx) {}
            if on_their_way.len() >= groups_max {
                return Poll::Pending;
            }
            match queue.poll_recv(cx) {
                Poll::Ready(None) if !on_their_way.is_empty() => Poll::Pending,
                polled => polled,
            }
        });
        let Some(first) = first.await else { return };
        yield_now().await;
        let mut group = vec![first];
        for _ in 0..QUEUE_MAX {
            if group.len() >= EMITS_MAX && on_their_way.len() + 1 >= groups_max {
                break;
            }
            let Ok(next) = queue.try_recv() else { break };
            let fits = group.len() < EMITS_MAX
                && group
                    .first()
                    .is_none_or(|first| first.markers_key == next.markers_key);
            if !fits {
                on_their_way.push(send(connection.clone(), std::mem::take(&mut group)));
            }
            group.push(next);
        }
        on_their_way.push(send(connection.clone(), group));
    }
}

/// Sends a group. If Redis refuses some of its emits, sends the group again without them. Each
/// round has at least one emit fewer, so the loop ends.
async fn send(mut connection: Connection, mut group: Vec<Queued>) {
    group.retain(|emit| !emit.outcome.is_closed());
    while let Some(first) = group.first() {
        if connection.gone.load(Ordering::Acquire) || connection.wire.is_closed() {
            return group
                .into_iter()
                .for_each(|emit| tell(emit.outcome, Outcome::Unsent(emit.draft)));
        }
        let mut mark = redis::cmd("LPUSH");
        mark.arg(&*first.markers_key);
        let mut named = HashSet::with_capacity(group.len());
        let mut pipe = Pipeline::with_capacity(group.len() + 1);
        pipe.atomic();
        for emit in &mut group {
            pipe.add_command(std::mem::take(&mut emit.draft.push));
            if named.insert(&emit.draft.object) {
                mark.arg(emit.draft.object.as_str());
            }
        }
        pipe.add_command(mark);
        let (answer, waited) = connection.wire.transact(&pipe).await;
        let errors = refused_commands(&answer, group.len());
        if errors.is_empty() {
            let answer = replies(read_answer(answer, pipe.len()), waited);
            if let Err(Failed::Unknown(_)) = &answer {
                // There was no reply, or the reply may still come late. So nothing more is sent
                // over this connection.
                connection.gone.store(true, Ordering::Release);
            }
            return tell_all(group, answer);
        }
        let mut rest = Vec::with_capacity(group.len());
        for (at, (mut emit, push)) in group.into_iter().zip(pipe.cmd_iter()).enumerate() {
            match errors.iter().find(|(refused_at, _)| *refused_at == at) {
                Some((_, error)) => tell(emit.outcome, Outcome::Sent(Err(refused(error)))),
                None => {
                    emit.draft.push = push.clone();
                    rest.push(emit);
                }
            }
        }
        group = rest;
    }
}

/// Sends to the caller of each emit the result of its command and of the push of markers.
fn tell_all(group: Vec<Queued>, answer: Answer) {
    match answer {
        Ok(Replies {
            mut results,
            too_few,
        }) => {
            let marked = results.pop().unwrap_or(Value::Nil);
            for (emit, pushed) in group.into_iter().zip(results) {
                let results = vec![pushed, marked.clone()];
                tell(
                    emit.outcome,
                    Outcome::Sent(Ok(Replies { results, too_few })),
                );
            }
        }
        Err(failed) => group
            .into_iter()
            .for_each(|emit| tell(emit.outcome, Outcome::Sent(Err(failed.clone())))),
    }
}

fn tell(caller: oneshot::Sender<Outcome>, outcome: Outcome) {
    // The caller may be gone. In that case the outcome is dropped.
    drop(caller.send(outcome));
}
