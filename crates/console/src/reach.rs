//! The start of a long-running command while Redis is away: the command serves, its probe `/readyz`
//! says that it is not ready, and it waits for Redis without a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::RedisError;
use seriatim::EmitError;
use seriatim::control::ControlError;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::describe::{describe, is_outage};
use crate::failures;
use crate::shown;

/// Module name for log filters.
const LOG: &str = "seriatim::console::reach";

/// The first and the longest wait between two tries.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The time after which the outage is logged again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// An error of a try to reach Redis.
pub trait Unreached {
    /// Returns the error of Redis, if the try failed with one.
    fn source(&self) -> Option<&RedisError>;
    fn into_failure(self) -> anyhow::Error;
}

impl Unreached for ControlError {
    fn source(&self) -> Option<&RedisError> {
        match self {
            Self::Redis { source, .. } => Some(source),
            _ => None,
        }
    }

    fn into_failure(self) -> anyhow::Error {
        shown::failure(self)
    }
}

impl Unreached for EmitError {
    fn source(&self) -> Option<&RedisError> {
        match self {
            Self::Connect { source, .. } => Some(source),
            _ => None,
        }
    }

    fn into_failure(self) -> anyhow::Error {
        failures::emit(self)
    }
}

/// Whether Redis has answered since the start of the process.
#[derive(Debug, Clone, Default)]
pub struct Reached(Arc<AtomicBool>);

impl Reached {
    /// Tries once to reach Redis. If Redis is away, the result is `Ok`, and the command goes on with
    /// [`until`](Self::until).
    ///
    /// # Errors
    /// An error that time does not repair, for example a wrong password.
    pub async fn first<T, E: Unreached>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<()> {
        match asked.await {
            Ok(_) => {
                self.0.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => match error
                .source()
                .filter(|source| is_outage(source))
                .map(describe)
            {
                Some(error) => {
                    warn!(target: LOG, error, "Redis cannot be reached; waiting for it, not ready until then");
                    Ok(())
                }
                None => Err(error.into_failure()),
            },
        }
    }

    /// Tries again until Redis has answered, and then never ends. Cancellation safe.
    ///
    /// # Errors
    /// An error that time does not repair.
    pub async fn until<T, E: Unreached>(
        &self,
        ask: impl AsyncFn() -> Result<T, E>,
    ) -> anyhow::Result<()> {
        let (mut wait, mut told_at, began) = (WAIT_FIRST, Instant::now(), Instant::now());
        while !self.0.load(Ordering::Relaxed) {
            sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            match ask().await {
                Ok(_) => {
                    self.0.store(true, Ordering::Relaxed);
                    info!(target: LOG, after = ?began.elapsed(), "Redis answers");
                }
                Err(error) => match error
                    .source()
                    .filter(|source| is_outage(source))
                    .map(describe)
                {
                    Some(error) if told_at.elapsed() >= TELL_AGAIN => {
                        told_at = Instant::now();
                        warn!(target: LOG, error, since = ?began.elapsed(), "still waiting for Redis");
                    }
                    Some(_) => {}
                    None => return Err(error.into_failure()),
                },
            }
        }
        std::future::pending().await
    }

    /// Returns the reason why the command is not ready, if Redis has not answered yet.
    pub fn ready(&self) -> Result<(), &'static str> {
        if self.0.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("Redis has not answered yet")
        }
    }
}
