//! Single emits of many tasks in few transactions.
//!
//! An emit that finds no other one on its way is sent at once, by its own task. All others go
//! through a queue. One task per connection takes whatever is queued and sends it as a group: one
//! transaction with one LPUSH per emit and one LPUSH of markers. No timer waits for a group to
//! grow. The task only lets tasks that are ready run first, because they may be about to emit.
//!
//! - Order: the queue is first in, first out, and so are the commands of a group.
//! - Errors: each emit gets the result of its own command. If Redis refuses commands and so
//!   discards the transaction, the other emits are sent again; it is certain that they were not
//!   applied.
//! - Bounds: an emit with data, or with more than [`EMIT_BYTES_MAX`], goes alone. With the limits
//!   below, the queue holds at most 1 MiB of events, and the groups on their way about 16 MiB.
//! - Cancellation: the task sends, not the callers. An emit whose future is dropped while it is
//!   queued is not sent.
//!
//! If the connection is lost, the outcome of each group on its way is unknown. What is still queued
//! was not sent: it goes over the next connection.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::ConnectionLike as _;
use redis::{Pipeline, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{unconstrained, yield_now};

use super::draft::Draft;
use super::error::{Failed, read_answer, refused, refused_commands};
use crate::connection::PatientConnection;

/// The most emits in a group.
const EMITS_MAX: usize = 64;
/// The most bytes of events of an emit that joins a group.
const EMIT_BYTES_MAX: usize = 4 * 1024;
/// The most emits that are queued. More callers wait, in their order.
const QUEUE_MAX: usize = 256;
/// With so many groups on their way none is added.
const GROUPS_MAX: usize = 64;

/// The results of the commands of one emit: the LPUSH of its events, and that of the markers.
type Answer = Result<Vec<Value>, Failed>;

/// Whether an emit may share a transaction: its events are few bytes and its one command is a push.
pub(super) fn may_join(draft: &Draft) -> bool {
    draft.data.is_none() && draft.bytes <= EMIT_BYTES_MAX
}

/// The way of single emits to one connection.
#[derive(Clone)]
pub(super) struct Gate {
    queue: mpsc::Sender<Queued>,
    /// Emits on their way, sent or not.
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
    /// The connection was lost before.
    Unsent(Draft),
}

/// Counts an emit as under way, until dropped.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// Starts the task of a connection. It ends with the last clone of the gate.
    pub(super) fn open(wire: PatientConnection, gone: Arc<AtomicBool>) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(send_groups(Connection { wire, gone }, queued));
        Self { queue, under_way: Arc::default() }
    }

    /// Counts an emit, and returns whether no other one is under way.
    pub(super) fn enter(&self) -> (UnderWay, bool) {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        (UnderWay(Arc::clone(&self.under_way)), others == 0)
    }

    /// Sends an emit in a group, and returns the results of its commands. Returns the emit if it was
    /// not sent because the connection was lost.
    pub(super) async fn emit(&self, draft: Draft, markers_key: Arc<str>) -> Result<Answer, Draft> {
        let (outcome, told) = oneshot::channel();
        let queued = self.queue.send(Queued { draft, markers_key, outcome });
        // Without this, the runtime would put off every call of a task after so many that were
        // ready, and take the last one up first.
        if let Err(closed) = unconstrained(queued).await {
            return Err(closed.0.draft);
        }
        match told.await {
            Ok(Outcome::Sent(answer)) => Ok(answer),
            Ok(Outcome::Unsent(draft)) => Err(draft),
            // The runtime of the connection ended.
            Err(_) => Ok(Err(Failed::Unknown(io::Error::from(io::ErrorKind::BrokenPipe).into()))),
        }
    }
}

#[derive(Clone)]
struct Connection {
    wire: PatientConnection,
    gone: Arc<AtomicBool>,
}

async fn send_groups(connection: Connection, mut queue: mpsc::Receiver<Queued>) {
    let mut on_their_way = FuturesUnordered::new();
    loop {
        // Drives what is sent until there is something to send, and room for it.
        let first = poll_fn(|cx| {
            while let Poll::Ready(Some(())) = on_their_way.poll_next_unpin(cx) {}
            if on_their_way.len() >= GROUPS_MAX {
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
            let Ok(next) = queue.try_recv() else { break };
            let fits = group.len() < EMITS_MAX && group.first().is_none_or(|first| first.markers_key == next.markers_key);
            if !fits {
                on_their_way.push(send(connection.clone(), std::mem::take(&mut group)));
            }
            group.push(next);
        }
        on_their_way.push(send(connection.clone(), group));
    }
}

/// Sends a group, and again without the refused emits as long as Redis refuses some: in each round
/// at least one less.
async fn send(mut connection: Connection, mut group: Vec<Queued>) {
    group.retain(|emit| !emit.outcome.is_closed());
    while let Some(first) = group.first() {
        if connection.gone.load(Ordering::Acquire) {
            return group.into_iter().for_each(|emit| tell(emit.outcome, Outcome::Unsent(emit.draft)));
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
        let answer = connection.wire.req_packed_commands(&pipe, pipe.len() + 1, 1).await;
        let Some(errors) = answer.as_ref().err().and_then(|error| refused_commands(error, group.len())) else {
            let answer = read_answer(answer, pipe.len());
            if let Err(Failed::Unknown(_)) = &answer {
                // No reply, or a late one: nothing more is sent over this connection.
                connection.gone.store(true, Ordering::Release);
            }
            return tell_all(group, answer);
        };
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

/// Tells each emit of a group the result of its command and of the markers.
fn tell_all(group: Vec<Queued>, answer: Answer) {
    match answer {
        Ok(mut results) => {
            let marked = results.pop().unwrap_or(Value::Nil);
            for (emit, pushed) in group.into_iter().zip(results) {
                tell(emit.outcome, Outcome::Sent(Ok(vec![pushed, marked.clone()])));
            }
        }
        Err(failed) => group.into_iter().for_each(|emit| tell(emit.outcome, Outcome::Sent(Err(failed.clone())))),
    }
}

fn tell(caller: oneshot::Sender<Outcome>, outcome: Outcome) {
    // A caller that is gone wants to know nothing.
    drop(caller.send(outcome));
}
