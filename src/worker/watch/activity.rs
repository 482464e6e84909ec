//! The activity of the process, which a thread outside the worker's runtime watches: whether the
//! worker's loop turns, and which deliveries block their thread.
//!
//! The loop and the deliveries only count; [`Watch`] compares the counts over time. Time during
//! which the whole process was paused (SIGSTOP, a suspended machine) must not count. So a step of
//! the watch adds at most twice the planned length of a step.

use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use crate::sink::{Post, Reported};
use crate::worker::watch::figures::{Figures, LongestDelivery, WorkerFigures};

/// A poll of a delivery that takes at least this long is logged as blocking.
const LONG: Duration = Duration::from_secs(1);
/// The time after which a blocked delivery is logged again.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The most objects named in one log line.
const NAMED_MAX: usize = 8;
/// The longest time between two turns of a loop that is not blocked.
pub(crate) const TURN_EVERY: Duration = Duration::from_millis(250);
/// The exit code if a blocked delivery ends the process. It is the code of every worker that cannot
/// go on.
const EXIT: i32 = 4;

/// The counts that the loop, the deliveries and the watch of a worker share, over all sessions of
/// the worker.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    turns: AtomicU64,
    attached: AtomicBool,
    /// Whether the loop has stood still for `stall_max`.
    stalled: AtomicBool,
    /// Whether the lease was not renewed because the loop stood still.
    let_go: AtomicBool,
    /// The figures. The connections to Redis add to them, too.
    pub(crate) figures: Arc<Figures>,
    /// One post for each slot of the session, and those posts of earlier sessions whose delivery
    /// still blocks its thread. A post records the deliveries of a slot.
    posts: Mutex<Vec<Arc<Post>>>,
}

impl Activity {
    /// Records one more turn of the loop.
    pub(crate) fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs a step outside of a session, and counts turns until the step ends. Such a step may wait
    /// for long, but this is no loop that stands still. The step is on the heap, so that the
    /// worker's future stays small.
    pub(crate) async fn turning<T>(&self, mut step: Pin<Box<impl Future<Output = T>>>) -> T {
        loop {
            self.turned();
            if let Ok(done) = timeout(TURN_EVERY, step.as_mut()).await {
                return done;
            }
        }
    }

    /// Records whether the process has its worker name now.
    pub(crate) fn attached(&self, attached: bool) {
        self.attached.store(attached, Ordering::Relaxed);
    }

    /// Returns whether the loop has stood still for `stall_max`. If so, the lease must not be
    /// renewed.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Records the outcome of a renewal that was due: whether the lease was let go instead of
    /// renewed.
    pub(crate) fn renewal(&self, let_go: bool) {
        self.let_go.store(let_go, Ordering::Relaxed);
    }

    /// Returns whether the lease was let go because the loop stood still.
    pub(crate) fn has_let_go(&self) -> bool {
        self.let_go.load(Ordering::Relaxed)
    }

    /// Begins a session with this number of slots. Returns one new post for each slot.
    pub(crate) fn posts(&self, slots: usize) -> Vec<Arc<Post>> {
        let new: Vec<_> = (0..slots)
            .map(|slot| Arc::new(Post::of_slot(slot)))
            .collect();
        let mut posts = self.all();
        // Keeps only posts that are polled now: at most as many as the runtime has threads.
        posts.retain(|post| post.is_polled());
        posts.extend(new.iter().cloned());
        self.stalled.store(false, Ordering::Relaxed);
        self.renewal(false);
        new
    }

    /// Returns the delivery that has been under way for the longest time.
    fn longest(&self) -> Option<LongestDelivery> {
        let posts = self.all();
        let (began, post) = posts
            .iter()
            .filter_map(|post| Some((post.began()?, post)))
            .min_by_key(|(began, _)| *began)?;
        Some(LongestDelivery {
            object: post.object(),
            id: post.id(),
            since: began.elapsed(),
        })
    }

    /// Calls `look` with each slot, in the order of the slots, and what `find` finds in the report on
    /// the event that the slot delivers.
    pub(crate) fn reports<T>(&self, find: impl Fn(usize, &Reported) -> T) -> Vec<(usize, T)> {
        let posts = self.all();
        // Posts of earlier sessions come first.
        let first = posts.iter().rposition(|post| post.slot() == 0);
        let now = &posts[first.unwrap_or(posts.len())..];
        let found = now.iter().filter_map(|post| {
            let slot = post.slot();
            Some((slot, post.report(|reported| find(slot, reported))?))
        });
        found.collect()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Post>>> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle to the state of a running worker, for probes and supervisors. The handle is cheap to
/// clone. [`turns`](Self::turns) and [`is_attached`](Self::is_attached) cost nothing,
/// [`figures`](Self::figures) costs a little.
///
/// ```no_run
/// # fn example(worker: &seriatim::worker::Worker) {
/// let vitals = worker.vitals();
/// // In a thread of its own: compare the turns with those of a while ago.
/// let (is_ready, turns) = (vitals.is_attached(), vitals.turns());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Vitals(pub(in crate::worker) Arc<Activity>);

impl Vitals {
    /// Returns the number of turns of the worker's loop. The number grows at least once per second,
    /// whatever Redis and the sink do, unless something blocks the thread of the loop.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }

    /// Returns the figures so far. Costs some hundred reads and a lock for each slot.
    #[must_use]
    pub fn figures(&self) -> WorkerFigures {
        WorkerFigures {
            is_attached: self.is_attached(),
            longest: self.0.longest(),
            ..self.0.figures.look()
        }
    }

    /// Returns whether the worker has its name. While Redis is away, the worker counts as attached,
    /// because only a reply of Redis shows whether the lease is lost.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.0.attached.load(Ordering::Relaxed)
    }
}

/// Watches a process: compares, in each step, its counts with the counts of the previous step.
pub(crate) struct Watch {
    activity: Arc<Activity>,
    stall_max: Duration,
    /// The longest time that a delivery may take, as the sink states.
    timeout: Duration,
    turns: u64,
    stalled_for: Duration,
    posts: Vec<WatchedPost>,
    /// The runtime of the deliveries, and the last task that was spawned to wake one of its
    /// threads.
    runtime: Handle,
    nudge: Option<JoinHandle<()>>,
}

/// A post, with its counts at the last step.
struct WatchedPost {
    post: Arc<Post>,
    polls: u64,
    blocked_for: Duration,
    /// The blocked time at which the post is logged next.
    tell_at: Duration,
}

impl Watch {
    /// Returns a watch. Must be called in the runtime of the deliveries.
    pub(crate) fn new(activity: Arc<Activity>, stall_max: Duration, timeout: Duration) -> Self {
        let watched = |post: &Arc<Post>| WatchedPost {
            post: Arc::clone(post),
            polls: 0,
            blocked_for: Duration::ZERO,
            tell_at: LONG,
        };
        let posts = activity.all().iter().map(watched).collect();
        let turns = activity.turns.load(Ordering::Relaxed);
        let runtime = Handle::current();
        Self {
            activity,
            stall_max,
            timeout,
            turns,
            stalled_for: Duration::ZERO,
            posts,
            runtime,
            nudge: None,
        }
    }

    /// Watches until dropped. If a delivery blocks its thread for `stall_max` beyond its timeout,
    /// ends the process.
    pub(crate) async fn run(mut self) {
        let tick = (self.stall_max / 8).min(Duration::from_millis(250));
        let mut last = Instant::now();
        loop {
            sleep(tick).await;
            let now = Instant::now();
            self.step((now - last).min(2 * tick));
            last = now;
            if let Some(fatal) = self.fatal() {
                end(&fatal);
            }
        }
    }

    fn step(&mut self, passed: Duration) {
        for watched in &mut self.posts {
            watched.step(passed);
        }
        self.nudge();
        let turns = self.activity.turns.load(Ordering::Relaxed);
        if turns != self.turns {
            (self.turns, self.stalled_for) = (turns, Duration::ZERO);
            if self.activity.stalled.swap(false, Ordering::Relaxed) {
                info!("recover: the worker's loop turns again");
            }
            return;
        }
        self.stalled_for += passed;
        if self.stalled_for >= self.stall_max
            && !self.activity.stalled.swap(true, Ordering::Relaxed)
        {
            error!(
                stood_still_for = ?self.stalled_for,
                blocking = self.blocking(),
                "recover: the worker's loop stands still, its lease is not renewed any more; move blocking work into spawn_blocking"
            );
        }
    }

    /// Wakes a thread of the runtime if a delivery blocks another thread. The blocked thread may
    /// have been the one that polled sockets and timers. The other threads sleep until they get a
    /// task, so this function spawns an empty task.
    fn nudge(&mut self) {
        let blocks = self
            .posts
            .iter()
            .any(|watched| !watched.blocked_for.is_zero());
        // If the runtime has only the blocked thread, it cannot run the task. So a new task is
        // spawned only after the last one has ended.
        if blocks && self.nudge.as_ref().is_none_or(JoinHandle::is_finished) {
            self.nudge = Some(self.runtime.spawn(async {}));
        }
    }

    /// Returns the events whose delivery blocks a thread, the longest first.
    fn blocking(&self) -> String {
        let mut blocking: Vec<_> = self
            .posts
            .iter()
            .filter(|watched| !watched.blocked_for.is_zero())
            .collect();
        blocking.sort_by_key(|watched| std::cmp::Reverse(watched.blocked_for));
        let mut named: Vec<_> = blocking
            .iter()
            .take(NAMED_MAX)
            .map(|watched| watched.named())
            .collect();
        if named.is_empty() {
            named.push("no delivery; something else blocks the runtime".to_owned());
        }
        named.join(", ")
    }

    fn fatal(&self) -> Option<String> {
        let limit = self.timeout.saturating_add(self.stall_max);
        let watched = self
            .posts
            .iter()
            .find(|watched| watched.blocked_for >= limit)?;
        Some(format!(
            "the delivery of {} blocks its thread, its timeout is {:?}; the process ends, which counts as a crash of the event",
            watched.named(),
            self.timeout
        ))
    }
}

impl WatchedPost {
    fn step(&mut self, passed: Duration) {
        let polls = self.post.polls();
        if polls != self.polls || polls.is_multiple_of(2) {
            (self.polls, self.blocked_for, self.tell_at) = (polls, Duration::ZERO, LONG);
            return;
        }
        self.blocked_for += passed;
        if self.blocked_for >= self.tell_at {
            self.tell_at += TELL_EVERY;
            let (object, id) = (self.post.object(), self.post.id());
            warn!(object, id, blocked_for = ?self.blocked_for, "deliver: a delivery blocks its thread; move blocking work into spawn_blocking");
        }
    }

    fn named(&self) -> String {
        format!(
            "event {} of {} (for {:?})",
            self.post.id(),
            self.post.object(),
            self.blocked_for
        )
    }
}

/// Ends the process, because nothing else frees a blocked thread.
fn end(why: &str) -> ! {
    error!("deliver: {why}");
    if !tracing::enabled!(tracing::Level::ERROR) {
        // If writing to stderr fails, there is no other place to report to.
        let _ = writeln!(std::io::stderr(), "seriatim: {why}");
    }
    std::process::exit(EXIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ObjectName;
    use crate::sink::Polled;

    const TICK: Duration = Duration::from_millis(250);

    fn watch(slots: usize, timeout: Duration) -> (Arc<Activity>, Vec<Arc<Post>>, Watch) {
        let activity = Arc::new(Activity::default());
        let posts = activity.posts(slots);
        let watch = Watch::new(Arc::clone(&activity), Duration::from_secs(2), timeout);
        (activity, posts, watch)
    }

    #[tokio::test]
    async fn a_loop_that_turns_is_never_stalled() {
        let (activity, _, mut watch) = watch(1, Duration::ZERO);
        for _ in 0..100 {
            activity.turned();
            watch.step(TICK);
            assert!(!activity.is_stalled());
        }
        for at in 1..=8 {
            watch.step(TICK);
            assert_eq!(activity.is_stalled(), at == 8);
        }
        activity.turned();
        watch.step(TICK);
        assert!(!activity.is_stalled());
    }

    /// Tests that each event of a batch has its own time: the time of a blocked delivery begins
    /// anew with each event.
    #[tokio::test]
    async fn a_blocked_delivery_is_found_and_named() {
        let (activity, posts, mut watch) = watch(2, Duration::from_secs(1));
        let object = ObjectName::new("work:1").expect("a name");
        posts[1].note(&object, 1, async {}).await;
        let polled = Polled::begin(&posts[1]);
        posts[1].event(7);
        for _ in 0..9 {
            watch.step(TICK);
        }
        posts[1].event(8);
        watch.step(TICK);
        assert!(watch.fatal().is_none() && watch.blocking().starts_with("no delivery"));
        for at in 1..=12 {
            activity.turned();
            watch.step(TICK);
            assert_eq!(watch.fatal().is_some(), at == 12, "{at}");
        }
        assert_eq!(watch.blocking(), "event 8 of work:1 (for 3s)");
        drop(polled);
        watch.step(TICK);
        assert!(watch.fatal().is_none());
    }

    /// Tests that a new session keeps the post of a delivery that still blocks its thread, and
    /// drops the posts of all other deliveries.
    #[tokio::test]
    async fn what_still_blocks_is_kept_over_sessions() {
        let (activity, posts, _) = watch(3, Duration::ZERO);
        let polled = Polled::begin(&posts[0]);
        activity.posts(2);
        assert_eq!(activity.all().len(), 3);
        drop(polled);
        activity.posts(2);
        assert_eq!(activity.all().len(), 2);
    }
}
