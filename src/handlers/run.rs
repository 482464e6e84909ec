//! Runs the handlers of one event.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::context::{EventRun, HandlerContext};
use super::emits::{Done, Emitting};
use super::failure::Failure;
use super::set::{HandlerSet, Registered, Unhandled};
use crate::event::{Event, type_of};
use crate::sink::{Context, Progress, Stop};

/// State that the handlers of one event share: how many have not ended yet, and whether one has
/// failed or has emitted.
struct Ends {
    left: AtomicUsize,
    failed: AtomicBool,
    emitted: AtomicBool,
}

/// Whether the step that finalizes the event has further work to do for the event's handlers.
pub(super) enum Leaves {
    Nothing,
    /// The step must push events, or write a result.
    Something,
}

impl Leaves {
    fn of(has_emitted: bool) -> Self {
        if has_emitted {
            Self::Something
        } else {
            Self::Nothing
        }
    }
}

/// The outcome of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerOutcome {
    /// The handler returned `Ok`. If a record of this was needed, the ledger has it.
    Succeeded,
    /// The handler succeeded in an earlier run, so it did not run again.
    SucceededBefore,
    /// The handler returned this failure, or its success could not be recorded.
    Failed(Failure),
    /// The handler panicked, with this text. A panic is a transient failure.
    Panicked(String),
    /// The handler ran longer than this timeout. A timeout is a transient failure.
    TimedOut(Duration),
    /// The delivery was cancelled, and the handler's future was dropped before the handler ended.
    Cancelled,
}

impl HandlerOutcome {
    /// Returns the failure that corresponds to this outcome; `None` if the handler has succeeded or
    /// was cancelled.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Self::Succeeded | Self::SucceededBefore | Self::Cancelled => None,
            Self::Failed(failure) => Some(failure.clone()),
            Self::Panicked(text) => Some(Failure::transient(format!("it panicked: {text}"))),
            Self::TimedOut(timeout) => Some(Failure::transient(format!(
                "it took longer than {timeout:?}"
            ))),
        }
    }
}

impl HandlerSet {
    /// Runs the handlers that have not finished in an earlier run, and returns the outcome of the
    /// event.
    pub(super) async fn run(
        &self,
        event: Event,
        attempts: u32,
        cx: &Context,
        known: Progress,
    ) -> Result<Leaves, Stop> {
        self.run_and_tell(&mut Vec::new(), None, event, attempts, cx, known)
            .await
    }

    /// Runs the handlers like [`run`](Self::run). `ended` gets the position and the outcome of each
    /// handler as soon as the handler ends. So these outcomes are not lost if this future is
    /// dropped. `timeout` replaces the timeouts of the handlers.
    pub(super) async fn run_and_tell(
        &self,
        ended: &mut Vec<(usize, HandlerOutcome)>,
        timeout: Option<Duration>,
        event: Event,
        attempts: u32,
        cx: &Context,
        known: Progress,
    ) -> Result<Leaves, Stop> {
        let event_type = type_of(&event.payload);
        let handlers = self.handlers_of(event_type.as_deref());
        let keeps = || {
            cx.ledger
                .as_ref()
                .is_some_and(|ledger| ledger.keeps_results())
        };
        let was_emitted = known.emitted.0 > 0 || known.results > 0 && keeps();
        if handlers.is_empty() {
            return self
                .unhandled(event_type.as_deref())
                .map(|()| Leaves::of(was_emitted));
        }
        let todo: Vec<_> = handlers
            .into_iter()
            .filter(|at| !known.finished.contains_key(&self.all[*at].fields.finished))
            .collect();
        let event_run = Arc::new(EventRun::new(
            event,
            event_type,
            attempts,
            cx.clone(),
            &known,
        ));
        let emitted = AtomicBool::new(was_emitted);
        let ends = Ends {
            left: AtomicUsize::new(todo.len()),
            failed: AtomicBool::new(false),
            emitted,
        };
        let run = |at: usize| {
            let (registered, event_run, ends) = (&self.all[at], &event_run, &ends);
            let timeout = timeout.unwrap_or(registered.timeout);
            async move { (at, run_one(registered, timeout, event_run, ends).await) }
        };
        let mut running: FuturesUnordered<_> = todo.into_iter().map(run).collect();
        while let Some((at, outcome)) = running.next().await {
            ended.push((at, outcome));
        }
        // Sorted in the order of registration, so that the same failures give the same text.
        ended.sort_by_key(|(at, _)| *at);
        let failures = ended
            .iter()
            .filter_map(|(at, outcome)| Some((*at, outcome.failure()?)))
            .collect();
        self.judge(failures)
            .map(|()| Leaves::of(ends.emitted.load(Ordering::Relaxed)))
    }

    fn unhandled(&self, event_type: Option<&str>) -> Result<(), Stop> {
        let error = match event_type {
            Some(name) => format!("no handler is registered for events of type {name:?}"),
            None => "no handler is registered for events without a type".to_owned(),
        };
        match self.unhandled {
            Unhandled::Wait => Err(Stop::unknown(error)),
            Unhandled::DeadLetter => Err(Stop::rejected(error)),
            Unhandled::Complete => Ok(()),
            Unhandled::Retry => Err(Stop::transient(error)),
        }
    }

    /// Returns the stop that these failures cause. If one failure is unrecoverable, the event is
    /// rejected. Otherwise the event comes again after the longest wait that a failure requests.
    fn judge(&self, failures: Vec<(usize, Failure)>) -> Result<(), Stop> {
        if failures.is_empty() {
            return Ok(());
        }
        let errors: Vec<_> = failures
            .iter()
            .map(|(at, failure)| format!("{}: {}", self.all[*at].id, failure.error()))
            .collect();
        let error = errors.join("; ");
        let mut retry_after = None;
        for (_, failure) in failures {
            match failure {
                Failure::Unrecoverable { .. } => return Err(Stop::Rejected { error }),
                Failure::Transient {
                    retry_after: wait, ..
                } => retry_after = retry_after.max(wait),
            }
        }
        Err(Stop::Transient { error, retry_after })
    }
}

/// Runs a handler, and records that it has finished, with its emits and its result. One success is
/// not recorded: that of the last handler of a successful event, if it has no emits and no result.
/// The commit follows at once, so the record is not needed.
async fn run_one(
    registered: &Registered,
    timeout: Duration,
    event_run: &Arc<EventRun>,
    ends: &Ends,
) -> HandlerOutcome {
    let (mut ended, done) = within(registered, timeout, event_run).await;
    let emitted = done.emits.events() > 0 || done.result.is_some() && event_run.keeps_results();
    // A handler with emits still fails if its emits cannot be stored. So until they are stored, the
    // other handlers must not count this handler as finished.
    let is_last = !emitted && ends.left.fetch_sub(1, Ordering::Relaxed) == 1;
    let succeeded = ended == HandlerOutcome::Succeeded;
    if succeeded
        && (!is_last || ends.failed.load(Ordering::Relaxed))
        && let Err(error) = event_run.keep_finished(&registered.fields, &done).await
    {
        ended = HandlerOutcome::Failed(error.into());
    }
    if emitted {
        ends.left.fetch_sub(1, Ordering::Relaxed);
    }
    if ended != HandlerOutcome::Succeeded {
        ends.failed.store(true, Ordering::Relaxed);
        event_run.room.give_back(&done);
    } else if emitted {
        ends.emitted.store(true, Ordering::Relaxed);
    }
    ended
}

/// Runs a handler within its timeout, and catches its panics. Returns the handler's outcome, its
/// emits and its result.
async fn within(
    registered: &Registered,
    timeout: Duration,
    event_run: &Arc<EventRun>,
) -> (HandlerOutcome, Done) {
    let (cancelled, emitting) = (event_run.cx.cancelled.child_token(), Emitting::new());
    let cx = HandlerContext {
        run: Arc::clone(event_run),
        cancelled: cancelled.clone(),
        emitting: emitting.clone(),
    };
    let running = AssertUnwindSafe(async { registered.handler.run(cx).await }).catch_unwind();
    let ended = match tokio::time::timeout(timeout, running).await {
        Ok(Ok(Ok(()))) => HandlerOutcome::Succeeded,
        Ok(Ok(Err(failure))) => HandlerOutcome::Failed(failure),
        Ok(Err(panic)) => HandlerOutcome::Panicked(text_of(&*panic).to_owned()),
        Err(_) => {
            cancelled.cancel();
            HandlerOutcome::TimedOut(timeout)
        }
    };
    (ended, emitting.end())
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use serde_json::{Value, json};
    use tokio::sync::Notify;

    use super::*;
    use crate::event::{NameError, ObjectName};
    use crate::handlers::Handlers;
    use crate::sink::{Batch, Ledger, LedgerError, Sink as _, With};

    /// A ledger that cannot store emits. Its error comes only after the other handler has ended.
    #[derive(Debug, Default)]
    struct Full {
        asked: Notify,
        other_ended: Notify,
        kept: Mutex<Vec<String>>,
        keeps: bool,
    }

    #[async_trait::async_trait]
    impl Ledger for Full {
        async fn read(&self) -> Result<Progress, LedgerError> {
            Ok(Progress::default())
        }

        async fn write(&self, _: u64, field: &str, with: With<'_>) -> Result<(), LedgerError> {
            if with.emits.is_some() {
                self.asked.notify_one();
                self.other_ended.notified().await;
                return Err(LedgerError::Failed("full".to_owned()));
            }
            self.kept.lock().expect("no panic").push(field.to_owned());
            Ok(())
        }

        fn keeps_results(&self) -> bool {
            self.keeps
        }

        fn object(&self, name: &str) -> Result<ObjectName, NameError> {
            ObjectName::new(name)
        }
    }

    /// Tests that a handler is recorded if it ends before the emits of another handler are stored.
    /// If storing them fails, the other handler runs again, but this handler must not.
    #[tokio::test]
    async fn the_last_one_is_kept_while_what_another_has_emitted_is_not() {
        let ledger = Arc::new(Full::default());
        let also = Arc::clone(&ledger);
        let handlers = Handlers::builder()
            .register_all("emits", |_: Value, cx: HandlerContext| async move {
                cx.emit("b", &json!({}))?;
                Ok(())
            })
            .register_all("last", move |_: Value, _| {
                let ledger = Arc::clone(&also);
                async move {
                    ledger.asked.notified().await;
                    ledger.other_ended.notify_one();
                    Ok(())
                }
            })
            .build()
            .expect("a set");
        let batch = Batch::new(
            ObjectName::new("a").expect("a name"),
            1,
            0,
            vec![Bytes::from_static(b"{}")],
        );
        let cx = Context {
            ledger: Some(Arc::clone(&ledger) as Arc<dyn Ledger>),
            ..Context::detached()
        };
        let delivered = handlers.deliver(&batch, &cx).await;
        assert!(
            matches!(delivered.stop(), Some(Stop::Transient { error, .. }) if error.contains("full")),
            "{delivered:?}"
        );
        assert_eq!(*ledger.kept.lock().expect("no panic"), ["handler:last"]);
    }

    /// Tests that the ledger is not called without need. The commit follows the success of the last
    /// handler. So the ledger records this success only if its result must be logged.
    #[tokio::test]
    async fn a_result_costs_a_call_only_where_it_is_logged() {
        for (keeps, has_result, kept, so_far) in
            [(true, false, 0, 2), (false, true, 0, 2), (true, true, 1, 1)]
        {
            let ledger = Arc::new(Full {
                keeps,
                ..Full::default()
            });
            let result = move |_: Value, cx: HandlerContext| async move {
                if has_result {
                    cx.result(&1)?;
                }
                Ok(())
            };
            let handlers = Handlers::builder()
                .register_all("one", result)
                .build()
                .expect("a set");
            let events = vec![Bytes::from_static(b"1"), Bytes::from_static(b"2")];
            let batch = Batch::new(ObjectName::new("a").expect("a name"), 1, 0, events);
            let cx = Context {
                ledger: Some(Arc::clone(&ledger) as Arc<dyn Ledger>),
                ..Context::detached()
            };
            let delivered = handlers.deliver(&batch, &cx).await;
            assert_eq!(
                (delivered.count(2), delivered.stop()),
                (so_far, None),
                "{keeps} {has_result}"
            );
            assert_eq!(
                ledger.kept.lock().expect("no panic").len(),
                kept,
                "{keeps} {has_result}"
            );
        }
    }
}
