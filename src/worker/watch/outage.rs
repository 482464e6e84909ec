//! The outage: Redis is away, refuses calls, or has a key of a wrong type. Every part of a process
//! meets the same outage, so its log lines are written here: one when the outage begins, one each
//! minute, and one when it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

/// The time after which an outage is logged again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// The outage state that all parts of the process share.
#[derive(Debug)]
pub(crate) struct Outage {
    /// The host and port, or the socket.
    address: String,
    /// Whether there is an outage; readable without the lock.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Option<Now>,
    /// The end of the last outage.
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Now {
    began: Instant,
    logged: Instant,
    /// The last key of a wrong type that was logged.
    obstacle: Option<String>,
}

/// The log line for a failure.
#[derive(Debug, PartialEq)]
enum Tell {
    Begin,
    Still(Duration),
    Nothing,
}

impl State {
    fn failed(&mut self, at: Instant, made_at: Instant, obstacle: Option<&str>) -> Tell {
        let Some(now) = &mut self.now else {
            // An old connection may be found broken long after new ones were made. So a failure
            // does not count if its connection was made before the last outage ended.
            if self.ended.is_some_and(|ended| made_at < ended) {
                return Tell::Nothing;
            }
            self.now = Some(Now {
                began: at,
                logged: at,
                obstacle: obstacle.map(str::to_owned),
            });
            return Tell::Begin;
        };
        let another = obstacle.is_some() && now.obstacle.as_deref() != obstacle;
        if !another && at.duration_since(now.logged) < TELL_AGAIN {
            return Tell::Nothing;
        }
        now.logged = at;
        now.obstacle = obstacle.map(str::to_owned).or(now.obstacle.take());
        Tell::Still(at.duration_since(now.began))
    }

    /// Returns the length of the outage if this success ends it. Only a connection that was made
    /// after the outage began can end it.
    fn answered(&mut self, at: Instant, made_at: Instant) -> Option<Duration> {
        let now = self.now.take_if(|now| made_at >= now.began)?;
        self.ended = Some(at);
        Some(at.duration_since(now.began))
    }
}

impl Outage {
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            is_on: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Records a failed call or connection attempt. `made_at`: the time at which the connection was
    /// made, or the attempt began.
    pub(crate) fn failed(&self, made_at: Instant, error: &str) {
        self.tell(made_at, error, None);
    }

    /// Records a key of a wrong type that stops this part of the process. `what` names the key.
    pub(crate) fn obstructed(&self, made_at: Instant, what: &str) {
        self.tell(made_at, what, Some(what));
    }

    fn tell(&self, made_at: Instant, error: &str, obstacle: Option<&str>) {
        let mut state = self.state();
        let tell = state.failed(Instant::now(), made_at, obstacle);
        self.is_on.store(state.now.is_some(), Ordering::Relaxed);
        drop(state);
        let redis = &self.address;
        match tell {
            Tell::Begin => warn!(%redis, error, "waiting for Redis"),
            Tell::Still(since) => warn!(%redis, error, ?since, "still waiting for Redis"),
            Tell::Nothing => debug!(%redis, error, "waiting for Redis"),
        }
    }

    /// Records a successful call of the protocol.
    pub(crate) fn answered(&self, made_at: Instant) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        let after = state.answered(Instant::now(), made_at);
        self.is_on.store(state.now.is_some(), Ordering::Relaxed);
        drop(state);
        if let Some(after) = after {
            info!(redis = %self.address, ?after, "Redis answers again");
        }
    }

    /// Returns whether the next failure is logged. Finding a key of a wrong type takes many calls,
    /// so callers look for the key only if it will be logged.
    pub(crate) fn is_due(&self) -> bool {
        self.state()
            .now
            .as_ref()
            .is_none_or(|now| now.obstacle.is_none() || now.logged.elapsed() >= TELL_AGAIN)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: every attempt logged a line of four parts, up to fifty times a second.
    #[tokio::test]
    async fn an_outage_is_told_when_it_begins_each_minute_and_when_it_ends() {
        let (s, began) = (Duration::from_secs, Instant::now());
        let mut state = State::default();
        assert_eq!(state.failed(began, began, None), Tell::Begin);
        let lines =
            (1..=300).map(|second| state.failed(began + s(second), began + s(second), None));
        let lines: Vec<_> = lines.filter(|tell| *tell != Tell::Nothing).collect();
        assert_eq!(
            lines,
            [60, 120, 180, 240, 300].map(|second| Tell::Still(s(second)))
        );
        let old = began - s(1).min(began.elapsed());
        assert_eq!(
            state.answered(began + s(301), old - Duration::from_nanos(1)),
            None,
            "an old connection proves nothing"
        );
        assert_eq!(state.answered(began + s(301), began + s(300)), Some(s(301)));
        assert_eq!(
            state.failed(began + s(310), began, None),
            Tell::Nothing,
            "a connection of before"
        );
        assert_eq!(
            state.failed(began + s(320), began + s(305), None),
            Tell::Begin
        );
    }

    #[tokio::test]
    async fn a_key_of_a_wrong_type_is_told_at_once() {
        let (s, began) = (Duration::from_secs, Instant::now());
        let mut state = State::default();
        state.failed(began, began, None);
        assert_eq!(
            state.failed(began + s(1), began, Some("a")),
            Tell::Still(s(1))
        );
        assert_eq!(state.failed(began + s(2), began, Some("a")), Tell::Nothing);
        assert_eq!(state.failed(began + s(3), began, None), Tell::Nothing);
        assert_eq!(
            state.failed(began + s(4), began, Some("b")),
            Tell::Still(s(4))
        );
        assert_eq!(
            state.failed(began + s(64), began, Some("b")),
            Tell::Still(s(64))
        );
    }
}
