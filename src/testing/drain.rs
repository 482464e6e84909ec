//! Runs a worker until nothing is left to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::PatientConnection;

use super::emitted::{self, EmittedEvent, EventPattern};
pub use super::watch::EVENTS_MAX;
use super::watch::{DrainedEvent, Fate, Shared, Watched, event_of, locked};
use crate::control::dead::PER_CALL_MAX;
use crate::control::held::WaitsFor;
use crate::control::names::{Walk, Which, slots_in};
use crate::control::{Control, ControlError, Cursor, HeldObject};
use crate::worker::{Shutdown, Worker, WorkerBuilder, WorkerError};

/// The most held objects, and the most paused ones, that [`Drained`] lists.
pub const LEFT_MAX: usize = 1000;

/// How long to wait before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The most keys in one command.
const KEYS_MAX: usize = 1024;

/// Why [`drain`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The worker did not start, or did not go on.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Redis could not be asked what is left.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// After this time something was still left to do.
    #[error("after {patience:?} the worker is not done: {unfinished}")]
    Patience {
        /// The time that was given.
        patience: Duration,
        /// What was left to do at the last look.
        unfinished: Unfinished,
        /// What has happened until then.
        drained: Box<Drained>,
    },
    /// The worker ended by itself, which it does not do.
    #[error("the worker ended before it was told to stop")]
    Ended,
}

/// What is left to do in a namespace, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Markers of objects that wait for a worker.
    pub markers: u64,
    /// Workers (slots) of any process that have an object in hand.
    pub busy: u64,
    /// Held objects that are due, or will be in a moment: not those that wait for a retry.
    pub due: u64,
    /// Whether objects are being woken of which a rule was lifted.
    pub waking: bool,
}

impl Unfinished {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { markers, busy, due, waking } = self;
        let waking = if *waking { ", and objects are being woken" } else { "" };
        write!(f, "{markers} markers, {busy} busy slots, {due} objects due{waking}")
    }
}

/// What happened while a worker ran, and what is left.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Drained {
    /// The events that were given to the sink, in the order in which they were given first, and new
    /// dead letters that were not. At most [`EVENTS_MAX`].
    pub events: Vec<DrainedEvent>,
    /// How often an event beyond [`EVENTS_MAX`] was seen.
    pub events_not_kept: u64,
    /// Held objects that wait for their time, first, or for an operator; at most [`LEFT_MAX`].
    pub held: Vec<HeldObject>,
    /// Objects that wait for a rule to be lifted; at most [`LEFT_MAX`].
    pub paused: Vec<HeldObject>,
}

impl Drained {
    /// The events of an object, in order.
    pub fn of(&self, object: &str) -> impl Iterator<Item = &DrainedEvent> {
        self.events.iter().filter(move |seen| seen.event.object.as_str() == object)
    }

    /// How many events were delivered.
    pub fn delivered(&self) -> usize {
        self.events.iter().filter(|seen| seen.fate == Fate::Delivered).count()
    }

    /// What handlers have emitted, event by event.
    pub fn emitted(&self) -> Vec<EmittedEvent> {
        self.events.iter().flat_map(DrainedEvent::emitted).collect()
    }

    /// Asserts that every event was delivered, and that no object is held or paused.
    ///
    /// # Panics
    /// An event was not, or an object is.
    #[track_caller]
    pub fn assert_all_delivered(&self) -> &Self {
        let all = self.delivered() == self.events.len() && self.held.is_empty() && self.paused.is_empty();
        assert!(all, "not all events were delivered{}", self.told());
        self
    }

    /// Asserts that a handler has emitted an event for this object that matches: see
    /// [`EventPattern`]. Returns the first one.
    ///
    /// # Panics
    /// No event matches.
    #[track_caller]
    pub fn assert_emitted(&self, object: &str, pattern: impl EventPattern) -> EmittedEvent {
        match emitted::find(&self.emitted(), object, &pattern) {
            Some(event) => event.clone(),
            None => panic!("no event was emitted for {object} like {}{}", pattern.shown(), self.told()),
        }
    }

    fn told(&self) -> String {
        let mut told = String::new();
        for seen in &self.events {
            let event = &seen.event;
            let payload = String::from_utf8_lossy(&event.payload);
            told += &format!(
                "\n  event {} of {}: {:?}, given {} times: {payload}",
                event.id, event.object, seen.fate, seen.deliveries
            );
        }
        for object in self.held.iter().chain(&self.paused) {
            told += &format!("\n  {} waits ({:?}): {}", object.object, object.waits_for, object.why);
        }
        told + "\nemitted:" + &emitted::shown(&self.emitted())
    }
}

/// Runs a worker until nothing is left to do: no marker, no held object that is due, and nothing in
/// the hands of any process. Then it stops the worker, and returns what happened. Events that
/// handlers emit are handled, too.
///
/// Objects that wait for a retry, for an operator or for a rule are not waited for: they are in
/// [`Drained::held`] and [`Drained::paused`]. `patience` is the longest time until then, the stop
/// not included. Other processes may work in the namespace at the same time; a process that died is
/// waited for until its lease is over.
///
/// Every look asks Redis for one key of each slot of each name that is alive or has something. It
/// is meant for tests.
///
/// Dropping the future stops the worker at once, as a crash would.
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
/// [`DrainError::Patience`] if something is left after that time, with what has happened; others if
/// the worker fails, or Redis cannot be asked.
pub async fn drain(worker: WorkerBuilder, patience: Duration) -> Result<Drained, DrainError> {
    let mut worker = worker.build()?;
    let seen = Shared::default();
    let (config, watched) = (Arc::clone(worker.config()), Arc::clone(&seen));
    let keys = config.keys.clone();
    worker.map_sink(|sink| Arc::new(Watched { sink, config, seen: watched }));
    let deadline = tokio::time::Instant::now() + patience;
    let timed_out = |unfinished, drained| DrainError::Patience { patience, unfinished, drained: Box::new(drained) };
    let Ok(conn) = tokio::time::timeout_at(deadline, worker.connection()).await else {
        return Err(timed_out(Unfinished::default(), Drained::default()));
    };
    let mut conn = conn?;
    let control = Control::new(conn.clone()).with_keys(keys);
    let last_dead = control.newest_dead_letters(None, 1).await?.letters.pop().map(|letter| Cursor::from(&letter.dead_id));

    let mut unfinished = Unfinished::default();
    let is_done = run_until_done(worker, &mut conn, &control, deadline, &mut unfinished).await?;
    let drained = look_back(&control, &seen, last_dead).await?;
    if is_done { Ok(drained) } else { Err(timed_out(unfinished, drained)) }
}

/// Whether it was done before the deadline.
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
        Ok(looked) => looked.map(|()| true).map_err(DrainError::from),
        Err(_) => Ok(false),
    }
}

/// What is left to do. An object passes from a marker to a slot, or from a slot to the held
/// objects, in one step: so all is read in one step.
async fn look(conn: &mut PatientConnection, control: &Control) -> Result<Unfinished, ControlError> {
    const WHAT: &str = "what is left to do";
    let keys = control.keys();
    let mut lists = Vec::new();
    let mut walk = Walk::of(conn, keys, Which::Watched).await?;
    while let Some(page) = walk.next(conn, keys).await? {
        for (name, value) in page {
            lists.extend((0..slots_in(&value).unwrap_or(0)).map(|slot| keys.worker_object(&format!("{name}.{slot}"))));
        }
    }
    let now_ms = control.now_ms().await?;
    let mut all = redis::pipe();
    all.atomic();
    all.cmd("LLEN").arg(keys.objects_with_events());
    all.cmd("ZCOUNT").arg(keys.objects_held()).arg("-inf").arg(now_ms);
    all.cmd("HGET").arg(keys.event_rules()).arg("next");
    for lists in lists.chunks(KEYS_MAX) {
        all.cmd("EXISTS").arg(lists);
    }
    let counts: Vec<Option<String>> = all.query_async(conn).await.map_err(ControlError::redis(WHAT))?;
    let number = |at: usize| counts.get(at).and_then(|count| count.as_deref()?.parse::<u64>().ok());
    let busy = (3..counts.len()).filter_map(number).sum();
    let waking = number(2).is_some_and(|next| next <= now_ms);
    let mut left = Unfinished { markers: number(0).unwrap_or(0), busy, due: number(1).unwrap_or(0), waking };
    if left.is_nothing() {
        let soon = control.held(false, None, 1).await?.objects;
        left.due = soon.iter().filter(|object| !is_for_later(object)).count() as u64;
    }
    Ok(left)
}

/// Whether the object waits for a retry, an operator or a rule, and not only for a free worker.
fn is_for_later(object: &HeldObject) -> bool {
    matches!(object.waits_for, WaitsFor::Retry | WaitsFor::Operator | WaitsFor::Rule)
}

async fn look_back(control: &Control, seen: &Shared, mut last_dead: Option<Cursor>) -> Result<Drained, ControlError> {
    loop {
        let page = control.dead_letters(last_dead.as_ref(), PER_CALL_MAX).await?;
        for letter in page.letters {
            let event = event_of(&letter.object, letter.id.unwrap_or(0), letter.prev.unwrap_or(0), letter.event);
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
    Ok(Drained { events, events_not_kept, held, paused })
}
