//! Runs a worker until no work is left.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::PatientConnection;

use super::emitted::{self, EmittedEvent, EventPattern};
pub use super::watch::EVENTS_MAX;
use super::watch::{DrainedEvent, Fate, Shared, Watched, event_of, locked};
use crate::control::dead::PER_CALL_MAX;
use crate::control::held::WaitsFor;
use crate::control::names::{NameSet, Walk, slots_in};
use crate::control::{Control, ControlError, Cursor, HeldObject};
use crate::worker::{Shutdown, Worker, WorkerBuilder, WorkerError};

/// Maximum number of held objects that [`Drained`] lists. Also the maximum number of paused
/// objects.
pub const LEFT_MAX: usize = 1000;

/// Wait between two looks at the remaining work.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Maximum number of keys in one command.
const KEYS_MAX: usize = 1024;

/// The reason why [`drain`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The worker did not start, or failed later.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The remaining work could not be read from Redis.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The worker did not finish within the given time.
    #[error("after {patience:?} the worker is not done: {unfinished}")]
    Patience {
        /// The given time.
        patience: Duration,
        /// Remaining work at the last look before the time was over. If the time was too short for
        /// a look: when the worker had stopped. If it was too short for a connection: nothing.
        unfinished: Unfinished,
        /// Results up to that moment.
        drained: Box<Drained>,
    },
    /// The worker ended before it was stopped. This should never happen.
    #[error("the worker ended before it was asked to stop")]
    Ended,
}

/// The remaining work in a namespace, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Number of markers of objects that wait for a worker. Includes the names that are grouped.
    pub markers: u64,
    /// Number of workers (slots), of any process, that have an object.
    pub busy: u64,
    /// Whether a held object is due now or in a moment. Objects that wait for a retry do not count.
    pub due: bool,
    /// Whether objects of a lifted rule are being woken.
    pub waking: bool,
}

impl Unfinished {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            markers,
            busy,
            due,
            waking,
        } = self;
        write!(f, "{markers} markers, {busy} busy slots")?;
        if *due {
            f.write_str(", a held object is due")?;
        }
        if *waking {
            f.write_str(", objects are being woken")?;
        }
        Ok(())
    }
}

/// The results of a worker's run, and the remaining objects.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Drained {
    /// The events in the order of their first delivery to the sink. Includes events that became
    /// dead letters in this run without a delivery to the sink. At most [`EVENTS_MAX`].
    pub events: Vec<DrainedEvent>,
    /// Number of times that the sink got an event that is not in `events`, because `events` was
    /// full.
    pub events_not_kept: u64,
    /// Held objects. Those that wait for their due time come first, those that wait for an operator
    /// last. At most [`LEFT_MAX`].
    pub held: Vec<HeldObject>,
    /// Objects that wait until a rule is lifted; at most [`LEFT_MAX`].
    pub paused: Vec<HeldObject>,
}

impl Drained {
    /// Returns the events of one object, in their order.
    pub fn of(&self, object: &str) -> impl Iterator<Item = &DrainedEvent> {
        self.events
            .iter()
            .filter(move |seen| seen.event.object.as_str() == object)
    }

    /// Returns the number of delivered events.
    pub fn delivered(&self) -> usize {
        self.events
            .iter()
            .filter(|seen| seen.fate == Fate::Delivered)
            .count()
    }

    /// Returns the emits of all handlers. They are in the order of the events whose handlers have
    /// emitted them.
    pub fn emitted(&self) -> Vec<EmittedEvent> {
        self.events.iter().flat_map(DrainedEvent::emitted).collect()
    }

    /// Asserts that every event was delivered, and that no object is held or paused.
    ///
    /// # Panics
    /// If an event was not delivered, or an object is held or paused.
    #[track_caller]
    pub fn assert_all_delivered(&self) -> &Self {
        let all =
            self.delivered() == self.events.len() && self.held.is_empty() && self.paused.is_empty();
        assert!(all, "not all events were delivered{}", self.describe());
        self
    }

    /// Asserts that a handler has emitted an event for this object that matches the pattern: see
    /// [`EventPattern`]. Returns the first such event.
    ///
    /// # Panics
    /// If no event matches.
    #[track_caller]
    pub fn assert_emitted(&self, object: &str, pattern: impl EventPattern) -> EmittedEvent {
        match emitted::find(&self.emitted(), object, &pattern) {
            Some(event) => event.clone(),
            None => panic!(
                "no event was emitted for {object} like {}{}",
                pattern.shown(),
                self.describe()
            ),
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for seen in &self.events {
            let event = &seen.event;
            let payload = String::from_utf8_lossy(&event.payload);
            text += &format!(
                "\n  event {} of {}: {:?}, given {} times: {payload}",
                event.id, event.object, seen.fate, seen.deliveries
            );
        }
        for object in self.held.iter().chain(&self.paused) {
            text += &format!(
                "\n  {} waits ({:?}): {}",
                object.object, object.waits_for, object.why
            );
        }
        text + "\nemitted:" + &emitted::shown(&self.emitted())
    }
}

/// Runs a worker until no work is left: there is no marker, no due held object, and no object owned
/// by any process. Then stops the worker and returns the results. Events that handlers emit are
/// handled, too.
///
/// Does not wait for objects that wait for a retry, an operator or a rule. [`Drained::held`] and
/// [`Drained::paused`] list these objects. `patience` is the time limit; the time for the stop
/// comes on top. Other processes may work in the namespace at the same time. If one of them has
/// died, its work is left until its lease ends.
///
/// The function looks at the remaining work again and again. Each look reads one key for each slot
/// of each name that has a lease or something in its slots. So use this function in tests only.
///
/// If the future is dropped, the worker stops at once, as in a crash.
///
/// ```no_run
/// # async fn example(handlers: seriatim::handlers::Handlers) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use seriatim::testing::drain;
/// use seriatim::worker::Worker;
///
/// let emitter = seriatim::Emitter::connect("redis://127.0.0.1").await?;
/// emitter.emit("order:1", &serde_json::json!({"type": "placed"})).await?;
/// let drained = drain(Worker::builder("redis://127.0.0.1").sink(handlers), Duration::from_secs(30)).await?;
/// drained.assert_all_delivered();
/// assert_eq!(drained.of("order:1").count(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`DrainError::Patience`] if work is left when the time `patience` is over. This error has the
/// results so far. Other errors if the worker fails, or Redis cannot be asked.
pub async fn drain(worker: WorkerBuilder, patience: Duration) -> Result<Drained, DrainError> {
    let mut worker = worker.build()?;
    let seen = Shared::default();
    let (config, watched) = (Arc::clone(worker.config()), Arc::clone(&seen));
    let keys = config.keys.clone();
    worker.map_sink(|sink| {
        Arc::new(Watched {
            sink,
            config,
            seen: watched,
        })
    });
    let deadline = tokio::time::Instant::now() + patience;
    let timed_out = |unfinished, drained| DrainError::Patience {
        patience,
        unfinished,
        drained: Box::new(drained),
    };
    let Ok(conn) = tokio::time::timeout_at(deadline, worker.connection()).await else {
        return Err(timed_out(Unfinished::default(), Drained::default()));
    };
    let mut conn = conn?;
    let control = Control::new(conn.clone()).with_keys(keys);
    let last_dead = control
        .newest_dead_letters(None, 1)
        .await?
        .letters
        .pop()
        .map(|letter| Cursor::from(&letter.dead_id));

    let mut unfinished = Unfinished::default();
    let is_done = run_until_done(worker, &mut conn, &control, deadline, &mut unfinished).await?;
    let drained = look_back(&control, &seen, last_dead).await?;
    if is_done {
        Ok(drained)
    } else {
        Err(timed_out(unfinished, drained))
    }
}

/// Runs the worker. Returns whether its work was done before the deadline.
async fn run_until_done(
    worker: Worker,
    conn: &mut PatientConnection,
    control: &Control,
    deadline: tokio::time::Instant,
    unfinished: &mut Unfinished,
) -> Result<bool, DrainError> {
    let shutdown = Shutdown::new();
    let mut running = std::pin::pin!(worker.run(shutdown.clone()));
    let looking = async {
        loop {
            *unfinished = look(conn, control).await?;
            if unfinished.is_nothing() {
                return Ok::<_, ControlError>(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let looked = tokio::select! {
        ended = &mut running => return Err(ended.map_or_else(DrainError::Worker, |_| DrainError::Ended)),
        looked = tokio::time::timeout_at(deadline, looking) => looked,
    };
    match looked {
        Ok(Ok(())) => shutdown.stop(),
        _ => shutdown.stop_at_once(),
    }
    running.await?;
    match looked {
        Ok(looked) => looked?,
        // No look has ended before the time was over.
        Err(_) if unfinished.is_nothing() => *unfinished = look(conn, control).await?,
        Err(_) => {}
    }
    Ok(unfinished.is_nothing())
}

/// Reads the remaining work, and the time, in one atomic step. Otherwise an object could be missed,
/// because it moves from a marker to a slot, or from a slot to the held objects, in one step.
async fn look(conn: &mut PatientConnection, control: &Control) -> Result<Unfinished, ControlError> {
    const WHAT: &str = "what is left to do";
    let keys = control.keys();
    let mut lists = Vec::new();
    let mut walk = Walk::of(conn, keys, NameSet::Watched).await?;
    while let Some(page) = walk.next(conn, keys).await? {
        for (name, value) in page {
            lists.extend(
                (0..slots_in(&value).unwrap_or(0))
                    .map(|slot| keys.worker_object(&format!("{name}.{slot}"))),
            );
        }
    }
    let mut all = redis::pipe();
    all.atomic();
    all.cmd("TIME");
    all.cmd("ZRANGE")
        .arg(keys.objects_held())
        .arg(0)
        .arg(0)
        .arg("WITHSCORES");
    all.cmd("LLEN").arg(keys.objects_with_events());
    all.cmd("HGET").arg(keys.event_rules()).arg("next");
    all.cmd("GET").arg(keys.event_groups_waiting());
    for lists in lists.chunks(KEYS_MAX) {
        all.cmd("EXISTS").arg(lists);
    }
    let replies: Vec<redis::Value> = all
        .query_async(conn)
        .await
        .map_err(ControlError::redis(WHAT))?;
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or(redis::Value::Nil);
    let unreadable = |error: redis::ParsingError| ControlError::redis(WHAT)(error.into());
    let (seconds, micros): (u64, u64) = redis::from_redis_value(next()).map_err(unreadable)?;
    let soonest: Vec<(Vec<u8>, f64)> = redis::from_redis_value(next()).map_err(unreadable)?;
    let now_ms = seconds * 1000 + micros / 1000;
    let mut number = || {
        redis::from_redis_value::<Option<String>>(next())
            .ok()
            .flatten()
            .and_then(|count| count.parse::<u64>().ok())
    };
    let mut left = Unfinished {
        markers: number().unwrap_or(0),
        due: false,
        waking: number().is_some_and(|next| next <= now_ms),
        busy: 0,
    };
    left.markers += number().unwrap_or(0);
    left.busy = lists.chunks(KEYS_MAX).filter_map(|_| number()).sum();
    if let Some((object, due)) = soonest.first() {
        left.due = *due <= now_ms as f64 || !waits_for_later(control, object, *due).await?;
    }
    Ok(left)
}

/// Returns whether this object, which was held until `due`, still is, and waits for a retry, an
/// operator or a rule. Other objects only wait for a free worker. An object that a worker has taken
/// in the meantime is not done either.
async fn waits_for_later(control: &Control, object: &[u8], due: f64) -> Result<bool, ControlError> {
    let soonest = control.held(false, None, 1).await?.objects;
    Ok(soonest.first().is_some_and(|held| {
        held.object == String::from_utf8_lossy(object)
            && held.due_ms.is_none_or(|due_ms| due_ms as f64 == due)
            && matches!(
                held.waits_for,
                WaitsFor::Retry | WaitsFor::Operator | WaitsFor::Rule
            )
    }))
}

async fn look_back(
    control: &Control,
    seen: &Shared,
    mut last_dead: Option<Cursor>,
) -> Result<Drained, ControlError> {
    loop {
        let page = control
            .dead_letters(last_dead.as_ref(), PER_CALL_MAX)
            .await?;
        for letter in page.letters {
            let event = event_of(
                &letter.object,
                letter.id.unwrap_or(0),
                letter.prev.unwrap_or(0),
                letter.event.into_bytes(),
            );
            locked(seen).dead(event, letter.error);
        }
        last_dead = page.next;
        if last_dead.is_none() || locked(seen).not_kept > 0 {
            break;
        }
    }
    let held = control.held(false, None, LEFT_MAX).await?.objects;
    let paused = control.paused(None, LEFT_MAX).await?.objects;
    let mut seen = locked(seen);
    let (events, events_not_kept) = (std::mem::take(&mut seen.events), seen.not_kept);
    Ok(Drained {
        events,
        events_not_kept,
        held,
        paused,
    })
}
