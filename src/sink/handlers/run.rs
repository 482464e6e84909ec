//! The handlers of one event.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::context::{HandlerContext, InHand};
use super::handler::{Failure, HandlerResult};
use super::{Inner, Registered, Unhandled};
use crate::event::Event;
use crate::sink::{Context, Stop};
use crate::worker::type_of;

/// What those that have ended so far tell those that end later.
struct Progress {
    left: AtomicUsize,
    failed: AtomicBool,
}

impl Inner {
    /// Runs the handlers that have not finished before, and says what that makes of the event.
    pub(super) async fn run(&self, event: Event, attempts: u32, cx: &Context, finished: BTreeSet<String>) -> Result<(), Stop> {
        let event_type = type_of(&event.payload);
        let handlers = self.handlers_of(event_type.as_deref());
        if handlers.is_empty() {
            return self.unhandled(event_type.as_deref());
        }
        let todo: Vec<_> = handlers.into_iter().filter(|at| !finished.contains(&self.all[*at].field)).collect();
        let in_hand = Arc::new(InHand::new(event, event_type, attempts, cx.clone(), &finished));
        let progress = Progress { left: AtomicUsize::new(todo.len()), failed: AtomicBool::new(false) };
        let run = |at: usize| {
            let (registered, in_hand, progress) = (&self.all[at], &in_hand, &progress);
            async move { (at, run_one(registered, in_hand, progress).await) }
        };
        let mut running: FuturesUnordered<_> = todo.into_iter().map(run).collect();
        let mut failures = Vec::new();
        while let Some((at, ended)) = running.next().await {
            failures.extend(ended.err().map(|failure| (at, failure)));
        }
        // As they were registered, so that an event that fails twice in the same way says so in the same words.
        failures.sort_by_key(|(at, _)| *at);
        self.judge(failures)
    }

    fn handlers_of(&self, event_type: Option<&str>) -> Vec<usize> {
        let of_type = event_type.and_then(|name| self.types.get(name)).unwrap_or(&self.other);
        let mut handlers: Vec<_> = of_type.iter().chain(&self.every).copied().collect();
        handlers.sort_unstable();
        handlers
    }

    fn unhandled(&self, event_type: Option<&str>) -> Result<(), Stop> {
        let error = match event_type {
            Some(name) => format!("no handler is registered for events of type {name:?}"),
            None => "no handler is registered for events without a type".to_owned(),
        };
        match self.unhandled {
            Unhandled::DeadLetter => Err(Stop::rejected(error)),
            Unhandled::Complete => Ok(()),
            Unhandled::Retry => Err(Stop::transient(error)),
        }
    }

    /// One that will never succeed decides; else the event comes again after the longest wait that was asked for.
    fn judge(&self, failures: Vec<(usize, Failure)>) -> Result<(), Stop> {
        if failures.is_empty() {
            return Ok(());
        }
        let errors: Vec<_> = failures.iter().map(|(at, failure)| format!("{}: {}", self.all[*at].id, failure.error())).collect();
        let error = errors.join("; ");
        let mut retry_after = None;
        for (_, failure) in failures {
            match failure {
                Failure::Unrecoverable { .. } => return Err(Stop::Rejected { error }),
                Failure::Transient { retry_after: wait, .. } => retry_after = retry_after.max(wait),
            }
        }
        Err(Stop::Transient { error, retry_after })
    }
}

/// Runs a handler, and keeps that it has finished where the event is not over with it: the last one of an event of which all have succeeded is
/// followed by the commit.
async fn run_one(registered: &Registered, in_hand: &Arc<InHand>, progress: &Progress) -> HandlerResult {
    let mut ended = within(registered, in_hand).await;
    let others = progress.left.fetch_sub(1, Ordering::Relaxed) > 1 || progress.failed.load(Ordering::Relaxed);
    if ended.is_ok() && others {
        ended = in_hand.keep(&registered.field).await.map_err(Failure::from);
    }
    if ended.is_err() {
        progress.failed.store(true, Ordering::Relaxed);
    }
    ended
}

/// Within its time, and whatever it does.
async fn within(registered: &Registered, in_hand: &Arc<InHand>) -> HandlerResult {
    let cancelled = in_hand.cx.cancelled.child_token();
    let cx = HandlerContext { in_hand: Arc::clone(in_hand), cancelled: cancelled.clone() };
    let running = AssertUnwindSafe(async { registered.handler.run(cx).await }).catch_unwind();
    match tokio::time::timeout(registered.timeout, running).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(panic)) => Err(Failure::transient(format!("it panicked: {}", text_of(&*panic)))),
        Err(_) => {
            cancelled.cancel();
            Err(Failure::transient(format!("it took longer than {:?}", registered.timeout)))
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default()
}
