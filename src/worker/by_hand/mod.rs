//! Claiming by hand, for a program that has its own loop and asks for each event.
//!
//! The process has a name, a lease and slots like any worker. But it claims only on request: one
//! event of one object for one slot. The object is released with the event's result. So a program
//! that stops asking keeps no object from other workers. A separate task makes every call, so
//! dropping the future of a caller loses no event. If the process dies, other workers deliver its
//! claimed events again.

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
use super::config::WorkerConfig;
use super::error::WorkerError;
use crate::worker::session::connect::Redis;
use crate::worker::session::keeper::{Notice, keeper};
use crate::worker::session::lease::{DETACH_PATIENCE, Session, attach, attach_again_after, detach};
use crate::worker::watch::activity::{Activity, TURN_EVERY};

/// Claims events one by one, for a program that has its own loop.
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
/// At most one event per slot is claimed at a time, each of another object. The events of an object
/// come one at a time and in order, over all processes. Events with crashes have smaller limits.
/// With the default `crashes_max`, at most 4 events with two crashes are claimed at a time. An event
/// with three or four crashes has no other event with two or more beside it.
///
/// Dropping a `Claims` gives back the name and all claimed events, as [`close`](Self::close) does,
/// but does not wait for Redis.
#[derive(Debug)]
pub struct Claims {
    now: watch::Receiver<Now>,
    closed: CancellationToken,
    supervisor: Option<JoinHandle<()>>,
}

/// The present session, or the reason why there is none any more.
type Now = Result<Arc<ClaimSession>, ClaimError>;

impl WorkerBuilder {
    /// Takes the name, and claims only on request: see [`Claims`]. Needs no sink. The settings
    /// `batch` and `turn_max` have no effect.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), except for an absent sink, and the errors of a start:
    /// see [`Worker::run`](super::Worker::run).
    pub async fn claims(self) -> Result<Claims, WorkerError> {
        let mut config = self.config;
        // With one event per batch, no event is taken that the program did not ask for.
        config.batch = 1;
        config.validate()?;
        let (redis, config) = (
            Redis::new(&self.server, &config, &Arc::default())?,
            Arc::new(config),
        );
        let session = attach(&redis, &config, None).await?;
        let closed = CancellationToken::new();
        let (say, now) = watch::channel(Ok(ClaimSession::begin(&redis, &config, &session).await));
        let supervisor = tokio::spawn(supervise(redis, config, session, say, closed.clone()));
        Ok(Claims {
            now,
            closed,
            supervisor: Some(supervisor),
        })
    }
}

impl Claims {
    /// Claims the next event. Waits for an event, and for a free slot if all slots are in use.
    /// Cancellation safe: if the future is dropped, an event that was claimed for it is given back.
    ///
    /// # Errors
    /// [`ClaimError::Ended`] if the worker cannot go on, for example because another process took
    /// the name. If Redis goes away, or a key has a wrong type, the call waits until Redis is back,
    /// or an operator has moved the key away.
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

    /// Claims the next event if there is one and a slot is free. Waits only for the reply of Redis.
    ///
    /// # Errors
    /// The errors of [`next`](Self::next), and [`ClaimError::Lost`] if the lease has lapsed and the
    /// name is not taken again yet.
    pub async fn try_next(&self) -> Result<Option<Claimed>, ClaimError> {
        self.session()?.claim(false).await
    }

    /// Gives back the name and all claimed events. Claimed events without a result come again
    /// elsewhere at once, and count no attempt.
    pub async fn close(mut self) {
        self.closed.cancel();
        if let Some(supervisor) = self.supervisor.take() {
            // The task cannot panic. It ends soon, because it waits for the detach at most for
            // `DETACH_PATIENCE`.
            let _ = supervisor.await;
        }
    }

    fn session(&self) -> Now {
        self.now.borrow().clone()
    }

    /// Waits until the name is taken again, or until the worker has ended.
    async fn another_session(&self, old: &Arc<ClaimSession>) -> Result<(), ClaimError> {
        let mut now = self.now.clone();
        let other = now
            .wait_for(|now| {
                now.as_ref()
                    .map_or(true, |session| !Arc::ptr_eq(session, old))
            })
            .await;
        other.map(drop).map_err(|_| ClaimError::Lost)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Keeps the lease, takes the name again after a lapse, and gives the name back at the end.
async fn supervise(
    redis: Redis,
    config: Arc<WorkerConfig>,
    first: Session,
    say: watch::Sender<Now>,
    closed: CancellationToken,
) {
    let mut session = first;
    let activity = Arc::new(Activity::default());
    let ended = loop {
        activity.posts(0);
        let (keeper, mut notices) =
            match keeper(&redis, &config, &session, &activity, Duration::ZERO, None) {
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
                // The loop must turn from time to time even if nothing happens, or an idle program
                // would look like a loop that stands still.
                () = sleep(TURN_EVERY) => {}
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
        let again = match lost {
            Ok(lost) => attach_again_after(lost, &redis, &config, &mut session, &activity).await,
            Err(error) => Err(error),
        };
        let again = match again {
            Ok(again) => again,
            Err(error) => break ClaimError::Ended(Arc::new(error)),
        };
        let attached = async {
            sleep(again).await;
            let session = attach(&redis, &config, Some(&session)).await?;
            Ok((
                ClaimSession::begin(&redis, &config, &session).await,
                session,
            ))
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
