//! Claim by hand: for a program that owns its loop, and asks for the next event when it wants one.
//!
//! The process has a name, a lease and slots as any worker; but it claims only when it is asked to,
//! one event of one object for one slot, and lets go of the object with the answer, so that a
//! program that does not come back for more keeps nobody waiting. Every call is made by a task of
//! its own: dropping the future of the one who waits takes nothing back, and loses nothing. If the
//! process dies, what was claimed comes again elsewhere.

mod finder;
mod term;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::term::{Place, Term, settle};
use super::activity::Activity;
use super::config::WorkerConfig;
use super::connect::Redis;
use super::error::WorkerError;
use super::lease::{Notice, Session, attach, detach, keeper};
use super::retry::RetryPolicy;
use super::slots::{Hand, failed, shortened};
use super::{DETACH_PATIENCE, WorkerBuilder};
use crate::event::Event;
use crate::sink::Batch;
use crate::wire::values::ReasonCode;
use crate::wire::{Report, Results};

/// The loop turns at least so often.
const TURN: Duration = Duration::from_millis(250);

/// Why an event could not be claimed, or an answer not be taken.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The lease lapsed, another process took the name, or the claims were closed: the event comes
    /// again, here or elsewhere, with the same id.
    #[error("the event is not this worker's any more; it comes again, here or elsewhere")]
    Lost,
    /// The worker cannot go on at all.
    #[error(transparent)]
    Ended(Arc<WorkerError>),
}

/// Claims events one by one, for a program that owns its loop.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::worker::Worker;
///
/// let worker = Worker::builder("redis://127.0.0.1").name("by-hand").concurrency(4).claims().await?;
/// loop {
///     let mut claimed = worker.next().await?;
///     println!("{} {}", claimed.event().object, claimed.event().id);
///     claimed.commit().await?;
/// }
/// # }
/// ```
///
/// As many events as the process has slots can be claimed at the same time, of as many objects; the
/// events of an object come one at a time and in order, over all processes. Of events with two
/// crashes or more at most 8 can be claimed at the same time; with three 4, with four 1. Dropping
/// it gives everything back, as [`close`](Self::close) does, without waiting for that.
#[derive(Debug)]
pub struct Claims {
    now: watch::Receiver<Now>,
    closed: CancellationToken,
    supervisor: Option<JoinHandle<()>>,
}

/// What the supervisor says: who the process is at present, or why it is nobody any more.
type Now = Result<Arc<Term>, ClaimError>;

impl WorkerBuilder {
    /// Takes the name, and claims only what is asked for: see [`Claims`]. No sink is needed; of the
    /// settings, `batch` and `turn_max` have no meaning here.
    ///
    /// # Errors
    /// Those of [`build`](Self::build) but for the sink, and those of a start: see
    /// [`Worker::run`](super::Worker::run).
    pub async fn claims(self) -> Result<Claims, WorkerError> {
        let mut config = self.config;
        // What is not asked for is not taken.
        config.batch = 1;
        config.validate()?;
        let (redis, config) = (Redis::new(&self.url, &config)?, Arc::new(config));
        let session = attach(&redis, &config, None).await?;
        let closed = CancellationToken::new();
        let (say, now) = watch::channel(Ok(Term::begin(&redis, &config, &session).await));
        let supervisor = tokio::spawn(supervise(redis, config, session, say, closed.clone()));
        Ok(Claims { now, closed, supervisor: Some(supervisor) })
    }
}

impl Claims {
    /// Claims the next event, and waits for one, and for a slot where all are in use. Cancellation
    /// safe: an event that was claimed for nobody is given back.
    ///
    /// # Errors
    /// [`ClaimError::Ended`] where the worker cannot go on: another process took the name, or a key
    /// has a wrong type. A Redis that goes away is waited for.
    pub async fn next(&self) -> Result<Claimed, ClaimError> {
        loop {
            let term = self.term()?;
            match term.claim(true).await {
                Ok(Some(claimed)) => return Ok(claimed),
                Ok(None) => {}
                Err(ClaimError::Lost) => self.another_term(&term).await?,
                Err(ended) => return Err(ended),
            }
        }
    }

    /// Claims the next event if there is one and a slot is free. Waits for nothing but the answer
    /// of Redis.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), and [`ClaimError::Lost`] where the lease has lapsed and the
    /// name is not taken again yet.
    pub async fn try_next(&self) -> Result<Option<Claimed>, ClaimError> {
        self.term()?.claim(false).await
    }

    /// Gives everything back: what is claimed and not answered comes again elsewhere at once, with
    /// no attempt more.
    pub async fn close(mut self) {
        self.closed.cancel();
        if let Some(supervisor) = self.supervisor.take() {
            // It cannot panic, and ends within its patience.
            let _ = supervisor.await;
        }
    }

    fn term(&self) -> Now {
        self.now.borrow().clone()
    }

    /// Waits until the name is taken again, or the end.
    async fn another_term(&self, old: &Arc<Term>) -> Result<(), ClaimError> {
        let mut now = self.now.clone();
        let other = now.wait_for(|now| now.as_ref().map_or(true, |term| !Arc::ptr_eq(term, old))).await;
        other.map(drop).map_err(|_| ClaimError::Lost)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Keeps the lease, takes the name again after a lapse, and gives it back at the end.
async fn supervise(redis: Redis, config: Arc<WorkerConfig>, first: Session, say: watch::Sender<Now>, closed: CancellationToken) {
    let mut session = first;
    let activity = Arc::new(Activity::default());
    let ended = loop {
        activity.posts(0);
        let (keeper, mut notices) = match keeper(&redis, &config, &session, &activity, Duration::ZERO) {
            Ok(kept) => kept,
            Err(error) => break ClaimError::Ended(Arc::new(error)),
        };
        let notice = loop {
            activity.turned();
            tokio::select! {
                biased;
                () = closed.cancelled() => break None,
                notice = notices.recv() => match notice {
                    Some(Notice::Wake) => {}
                    notice => break notice,
                },
                // The runtime may have nothing else to do for a while: that is not standing still.
                () = sleep(TURN) => {}
            }
        };
        drop(keeper);
        session.let_go = activity.has_let_go();
        if let Ok(term) = &*say.borrow() {
            term.over.cancel();
        }
        let again = match notice {
            None => {
                detach(&redis, &config, &session, Instant::now() + DETACH_PATIENCE).await;
                break ClaimError::Lost;
            }
            Some(Notice::Failed(error)) => break ClaimError::Ended(Arc::new(error)),
            Some(Notice::Fenced(lease)) if redis.changes() == session.changes => {
                break ClaimError::Ended(Arc::new(WorkerError::Fenced { name: config.name.clone(), lease }));
            }
            // Redis went back to an earlier state, which may have revived an old lease: nobody may
            // hold it any more.
            Some(Notice::Fenced(_)) => config.lease,
            Some(Notice::Lapsed | Notice::Wake) => Duration::ZERO,
        };
        warn!(name = %config.name, "recover: the lease is lost; attaching again");
        let attached = async {
            sleep(again).await;
            let session = attach(&redis, &config, Some(&session)).await?;
            Ok((Term::begin(&redis, &config, &session).await, session))
        };
        let term;
        (term, session) = tokio::select! {
            () = closed.cancelled() => break ClaimError::Lost,
            attached = attached => match attached {
                Ok(attached) => attached,
                Err(error) => break ClaimError::Ended(Arc::new(error)),
            },
        };
        drop(say.send_replace(Ok(term)));
    };
    drop(say.send_replace(Err(ended)));
}

/// The whole batch, for whoever comes next.
fn give_back(hand: &Hand) -> Report {
    hand.report(0, Results::Hold { rest: hand.tag, delay: Some(Duration::ZERO), reason: ReasonCode::Yield.into() })
}

fn reject(hand: &Hand, error: &str) -> Report {
    let (next, id) = (hand.behind(0), hand.batch.first);
    hand.report(0, Results::Reject { next, id, error: shortened(error), attempts: hand.tag.attempts })
}

/// An event that was claimed by hand. One answer counts, the first; giving another one, or the same
/// again, does nothing and says what became of the first.
///
/// An answer is given by a task of its own: dropping the future that waits for it takes nothing
/// back. Dropped without an answer, the event counts as failed for a time.
#[must_use]
pub struct Claimed {
    event: Event,
    hand: Hand,
    cancelled: CancellationToken,
    /// Nothing once it is answered.
    place: Option<Place>,
    /// The future that asked for it has returned it to the program.
    seen: bool,
    answer: Option<JoinHandle<Result<(), ClaimError>>>,
    answered: Option<Result<(), ClaimError>>,
}

impl Claimed {
    fn new(place: Place, hand: Hand) -> Self {
        let Batch { object, first, prev, payloads, .. } = &hand.batch;
        let event = Event { id: *first, prev: *prev, object: object.clone(), payload: payloads[0].clone() };
        let cancelled = place.term.over.clone();
        Self { event, hand, cancelled, place: Some(place), seen: false, answer: None, answered: None }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is, from 1. Attempts count failures: after a crash the attempt is the
    /// same.
    pub fn attempt(&self) -> u32 {
        self.hand.tag.attempts.saturating_add(1)
    }

    /// How often a worker died with the event in hand.
    pub fn crashes(&self) -> u32 {
        self.hand.tag.crashes
    }

    /// Fires when the event is not this worker's any more: what is done after that is done in vain.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The event is delivered; the object's next one follows, for whoever asks.
    ///
    /// # Errors
    /// [`ClaimError::Lost`]: the event comes again, unless the commit was taken just before. The other answers fail in the same way.
    pub async fn commit(&mut self) -> Result<(), ClaimError> {
        // What is left of a batch that another worker had taken goes on elsewhere, with its ids.
        let (rest, delay) = (self.hand.tag.after(1, 1), Some(Duration::ZERO));
        let then = match self.hand.batch.len() {
            1 => Results::Yield,
            _ => Results::Hold { rest, delay, reason: ReasonCode::Yield.into() },
        };
        let report = self.hand.report(1, then);
        self.give(report, true).await
    }

    /// The event, again later: after this time, or else as the retry policy says, which also says
    /// what becomes of it when its attempts are used up.
    pub async fn retry(&mut self, error: impl fmt::Display, retry_after: Option<Duration>) -> Result<(), ClaimError> {
        let (report, over) = self.failure(&error.to_string(), retry_after);
        self.give(report, over).await
    }

    /// The event, never: it goes to the dead letters.
    pub async fn reject(&mut self, error: impl fmt::Display) -> Result<(), ClaimError> {
        let report = reject(&self.hand, &error.to_string());
        self.give(report, true).await
    }

    /// The report, and whether the event is over with it.
    fn failure(&self, error: &str, retry_after: Option<Duration>) -> (Report, bool) {
        let policy = match &self.place {
            Some(place) => place.term.config.retry_of(&self.event.payload),
            None => RetryPolicy::default(),
        };
        let then = failed(&self.hand, 0, shortened(error), retry_after, policy);
        let over = !matches!(then, Results::Hold { .. });
        (self.hand.report(0, then), over)
    }

    /// Gives the first answer, and waits for what becomes of it.
    async fn give(&mut self, report: Report, over: bool) -> Result<(), ClaimError> {
        if let Some(place) = self.place.take() {
            let handled = over && self.hand.handled.is_some();
            self.answer = Some(tokio::spawn(settle(place, report, handled, self.hand.taken)));
        }
        if let Some(answer) = &mut self.answer {
            self.answered = Some(answer.await.unwrap_or(Err(ClaimError::Lost)));
            self.answer = None;
        }
        self.answered.clone().unwrap_or(Err(ClaimError::Lost))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.place.is_none() {
            return;
        }
        let (report, over) =
            if self.seen { self.failure("dropped without an answer", None) } else { (give_back(&self.hand), false) };
        if let Some(place) = self.place.take() {
            let runtime = place.term.runtime.clone();
            runtime.spawn(settle(place, report, over && self.hand.handled.is_some(), self.hand.taken));
        }
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed")
            .field("object", &self.event.object.as_str())
            .field("id", &self.event.id)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
