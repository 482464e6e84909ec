//! The waits of an emitter for the ends of events. One task looks for all of them. It begins with
//! the first wait, and ends some seconds after the last one, with its connection. So calls one after
//! another share a connection.
//!
//! Ten times a second, the task reads the ends of all awaited events. Between these looks, it waits
//! for its inbox: the step that ends an event of this emitter pushes the key of the end there. So
//! the producer gets the end at once. The looks find the ends of other emitters' events, and those
//! whose entry in the inbox is lost.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, FromRedisValue, RedisError, RedisResult, from_redis_value};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::end::{EventEnd, WaitError};
use crate::connection::PatientConnection;
use crate::emit::link::{Given, Link};
use crate::keys::Keys;

/// The time between two looks at the same event.
const ROUND: Duration = Duration::from_millis(100);
/// The longest wait after a failure of the connection.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// The longest wait, longer than any end is kept.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The time for which the task stays without a wait.
const LINGER: Duration = Duration::from_secs(5);
/// The most events of one command. An end has up to 64 KiB for each handler with a result.
const PER_LOOK: usize = 32;

/// The waits of an emitter and its clones.
#[derive(Debug)]
pub(in crate::emit) struct Waits {
    state: Arc<Mutex<State>>,
    /// Notified when a wait begins.
    begun: Arc<Notify>,
    inbox: String,
    inbox_key: Arc<str>,
}

#[derive(Debug, Default)]
struct State {
    /// Those who wait, by the key of the end.
    waiting: HashMap<String, Vec<oneshot::Sender<Result<EventEnd, RedisError>>>>,
    /// Whether the task runs.
    is_watched: bool,
    /// The last error, if Redis could not be asked.
    unreachable: Option<RedisError>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waits {
    /// Returns waits with a new inbox among these keys.
    pub(in crate::emit) fn of(keys: &Keys) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let inbox = format!("{:016x}{:016x}", random(), random());
        Self {
            state: Arc::default(),
            begun: Arc::default(),
            inbox_key: keys.event_ends(&format!("\n{inbox}")).into(),
            inbox,
        }
    }

    /// Returns the name of the inbox, for an emit over this link. Over a connection of the caller
    /// nobody reads it.
    pub(super) fn inbox(&self, link: &Link) -> &str {
        match link {
            Link::Own(_) => &self.inbox,
            Link::Given { .. } => "",
        }
    }

    /// Waits for the end under this key. If it does not come in this time, returns the last error,
    /// if Redis could not be asked.
    ///
    /// # Errors
    /// [`WaitError::Refused`].
    pub(super) async fn wait(
        &self,
        link: &Arc<Link>,
        key: String,
        within: Duration,
    ) -> Result<Result<EventEnd, Option<RedisError>>, WaitError> {
        // Even the shortest wait looks once.
        let over = Instant::now() + within.clamp(ROUND, LONGEST);
        loop {
            match timeout_at(over, self.joined(link, &key)).await {
                Ok(Ok(Ok(end))) => return Ok(Ok(end)),
                Ok(Ok(Err(refused))) => return Err(WaitError::Refused(refused)),
                // The runtime of the task has ended. The next turn begins another task.
                Ok(Err(_)) => sleep(Duration::from_millis(1)).await,
                Err(_) => return Ok(Err(lock(&self.state).unreachable.clone())),
            }
        }
    }

    /// Waits until the task tells the end under this key. Begins the task, if it does not run.
    ///
    /// # Errors
    /// The task was dropped.
    async fn joined(
        &self,
        link: &Arc<Link>,
        key: &str,
    ) -> Result<Result<EventEnd, RedisError>, RecvError> {
        let (sender, ended) = oneshot::channel();
        let begins = {
            let mut state = lock(&self.state);
            let waiting = state.waiting.entry(key.to_owned()).or_default();
            waiting.push(sender);
            !std::mem::replace(&mut state.is_watched, true)
        };
        if begins {
            let watch = Watch {
                state: Arc::clone(&self.state),
                begun: Arc::clone(&self.begun),
                inbox_key: Arc::clone(&self.inbox_key),
                has_inbox: true,
                is_over: false,
                link: Arc::clone(link),
                reader: None,
            };
            tokio::spawn(watch.run());
        }
        self.begun.notify_one();
        // The event may have ended before, and the next look of the task may be 100 ms away.
        let now = if begins {
            None
        } else {
            found_now(link, key).await
        };
        match now {
            Some(end) => Ok(Ok(end)),
            None => ended.await,
        }
    }
}

/// Reads the end under this key over the connection of the emits. Returns `None` if there is none, or
/// Redis does not tell.
async fn found_now(link: &Link, key: &str) -> Option<EventEnd> {
    let get = redis::cmd("GET").arg(key).to_owned();
    let reply = link.ask(&get).await.ok()?;
    EventEnd::of(&from_redis_value::<Option<Vec<u8>>>(reply).ok()??)
}

/// A connection for looks.
pub(in crate::emit) enum Reader {
    /// The emitter's own one, besides that of its emits. The wait for the inbox blocks it.
    Own(PatientConnection),
    /// That of the caller, which must not be blocked.
    Given(Box<dyn Given>),
}

/// The task that looks.
struct Watch {
    state: Arc<Mutex<State>>,
    begun: Arc<Notify>,
    inbox_key: Arc<str>,
    /// Whether the user may wait for the inbox.
    has_inbox: bool,
    /// Whether the task has ended because nobody waits.
    is_over: bool,
    link: Arc<Link>,
    reader: Option<Reader>,
}

/// If the task is dropped with its runtime, those who wait learn it, and begin another one.
impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = lock(&self.state);
            state.is_watched = false;
            state.waiting.clear();
        }
    }
}

impl Watch {
    async fn run(mut self) {
        let mut again = ROUND;
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                let is_over = timeout(LINGER, self.begun.notified()).await.is_err();
                self.is_over = is_over && self.ends();
                if self.is_over {
                    return;
                }
                continue;
            }
            match self.round(&keys).await {
                Ok(()) => {
                    again = ROUND;
                    lock(&self.state).unreachable = None;
                }
                Err(error) => {
                    lock(&self.state).unreachable = Some(error);
                    self.reader = None;
                    sleep(again).await;
                    again = (again * 2).min(AGAIN_MAX);
                }
            }
        }
    }

    /// Returns whether nobody waits. Then the next wait begins another task.
    fn ends(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_watched = !state.waiting.is_empty();
        !state.is_watched
    }

    /// Returns the keys that somebody still waits for.
    fn keys(&self) -> Vec<String> {
        let mut state = lock(&self.state);
        state.waiting.retain(|_, waiting| {
            waiting.retain(|sender| !sender.is_closed());
            !waiting.is_empty()
        });
        state.waiting.keys().cloned().collect()
    }

    /// Tells an end, or a refusal, to all who wait for this key.
    fn tell(&self, key: &str, found: &Result<EventEnd, RedisError>) {
        let waiting = lock(&self.state).waiting.remove(key);
        for sender in waiting.into_iter().flatten() {
            // Nobody waits any more.
            let _ = sender.send(found.clone());
        }
    }

    /// Looks at all these keys, and then waits for the inbox until the next look is due.
    async fn round(&mut self, keys: &[String]) -> RedisResult<()> {
        let next = Instant::now() + ROUND;
        let is_usable = match &self.reader {
            Some(Reader::Own(connection)) => !connection.is_closed(),
            Some(Reader::Given(_)) => true,
            None => false,
        };
        if !is_usable {
            self.reader = Some(self.link.reader(ROUND).await?);
        }
        for keys in keys.chunks(PER_LOOK) {
            self.look(keys).await?;
        }
        while self.has_inbox && matches!(self.reader, Some(Reader::Own(_))) {
            let left = next.saturating_duration_since(Instant::now());
            if left < Duration::from_millis(1) {
                return Ok(());
            }
            let told = self.told_within(left).await?;
            if !told.is_empty() {
                self.look(&told).await?;
            }
        }
        sleep_until(next).await;
        Ok(())
    }

    /// Waits for the inbox, and returns the keys of ends in it.
    async fn told_within(&mut self, left: Duration) -> RedisResult<Vec<String>> {
        let mut pop = redis::cmd("BLMPOP");
        pop.arg(left.as_secs_f64()).arg(1).arg(&*self.inbox_key);
        pop.arg("RIGHT").arg("COUNT").arg(PER_LOOK);
        match self.ask::<Option<(String, Vec<String>)>>(&pop).await {
            Ok(told) => Ok(told.map(|(_, keys)| keys).unwrap_or_default()),
            Err(error) if is_lasting(&error) => {
                self.has_inbox = false;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the ends under these keys, and tells those that are there.
    async fn look(&mut self, keys: &[String]) -> RedisResult<()> {
        let mut get = redis::cmd("MGET");
        get.arg(keys);
        let found = match self.ask::<Vec<Option<Vec<u8>>>>(&get).await {
            Err(error) if is_lasting(&error) => {
                for key in keys {
                    self.tell(key, &Err(error.clone()));
                }
                return Ok(());
            }
            found => found?,
        };
        for (key, value) in keys.iter().zip(found) {
            if let Some(end) = value.as_deref().and_then(EventEnd::of) {
                self.tell(key, &Ok(end));
            }
        }
        Ok(())
    }

    async fn ask<T: FromRedisValue>(&mut self, cmd: &Cmd) -> RedisResult<T> {
        let reply = match &mut self.reader {
            Some(Reader::Own(connection)) => connection.req_packed_command(cmd).await?,
            Some(Reader::Given(connection)) => connection.req_packed_command(cmd).await?,
            None => redis::Value::Nil,
        };
        Ok(from_redis_value(reply.extract_error()?)?)
    }
}

/// Returns whether the same command would fail again: the user may not call it, the server does not
/// know it, or the inbox has a wrong type.
fn is_lasting(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOPERM" | "WRONGTYPE" | "ERR"))
}
