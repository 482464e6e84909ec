//! Claim by hand: for a program that owns its loop, and asks for the next event when it wants one.
//!
//! The process has a name, a lease and slots as any worker; but it claims only when it is asked to,
//! one event of one object for one slot, and lets go of the object with the answer, so that a
//! program that does not come back for more keeps nobody waiting. Every call is made by a task of
//! its own: dropping the future of the one who waits takes nothing back, and loses nothing. If the
//! process dies, what was claimed comes again elsewhere.

mod claimed;
mod error;
mod finder;
mod session;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::claimed::Claimed;
pub use self::error::ClaimError;

use self::session::ClaimSession;
use super::WorkerBuilder;
use super::activity::Activity;
use super::config::WorkerConfig;
use super::connect::Redis;
use super::error::WorkerError;
use super::lease::{DETACH_PATIENCE, Notice, Session, attach, attach_again_after, detach, keeper};

/// The loop turns at least so often.
const TURN: Duration = Duration::from_millis(250);

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
type Now = Result<Arc<ClaimSession>, ClaimError>;

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
        let (say, now) = watch::channel(Ok(ClaimSession::begin(&redis, &config, &session).await));
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
            let session = self.session()?;
            match session.claim(true).await {
                Ok(Some(claimed)) => return Ok(claimed),
                Ok(None) => {}
                Err(ClaimError::Lost) => self.another_session(&session).await?,
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
        self.session()?.claim(false).await
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

    fn session(&self) -> Now {
        self.now.borrow().clone()
    }

    /// Waits until the name is taken again, or the end.
    async fn another_session(&self, old: &Arc<ClaimSession>) -> Result<(), ClaimError> {
        let mut now = self.now.clone();
        let other = now.wait_for(|now| now.as_ref().map_or(true, |session| !Arc::ptr_eq(session, old))).await;
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
        let lost = loop {
            activity.turned();
            tokio::select! {
                biased;
                () = closed.cancelled() => break None,
                notice = notices.recv() => match notice {
                    Some(Notice::Wake) => {}
                    Some(Notice::Lost(lost)) => break Some(Ok(lost)),
                    Some(Notice::Failed(error)) => break Some(Err(error)),
                    None => break None,
                },
                // The runtime may have nothing else to do for a while: that is not standing still.
                () = sleep(TURN) => {}
            }
        };
        drop(keeper);
        if let Ok(claims) = &*say.borrow() {
            claims.end();
        }
        let lost = match lost {
            None => {
                detach(&redis, &config, &session, Instant::now() + DETACH_PATIENCE).await;
                break ClaimError::Lost;
            }
            Some(lost) => lost,
        };
        let again = lost.and_then(|lost| attach_again_after(lost, &redis, &config, &mut session, &activity));
        let again = match again {
            Ok(again) => again,
            Err(error) => break ClaimError::Ended(Arc::new(error)),
        };
        let attached = async {
            sleep(again).await;
            let session = attach(&redis, &config, Some(&session)).await?;
            Ok((ClaimSession::begin(&redis, &config, &session).await, session))
        };
        let claims;
        (claims, session) = tokio::select! {
            () = closed.cancelled() => break ClaimError::Lost,
            attached = attached => match attached {
                Ok(attached) => attached,
                Err(error) => break ClaimError::Ended(Arc::new(error)),
            },
        };
        drop(say.send_replace(Ok(claims)));
    };
    drop(say.send_replace(Err(ended)));
}
