//! Promotes schedules: pushes their events when they are due. Also fires cron jobs.
//!
//! Every process can promote, at any time, in bounded steps of one script. With many processes,
//! most calls could find nothing to promote. These rules keep such calls few:
//!
//! - *Wake.* A producer that schedules an event for soon adds a member to `events.scheduled.wake`.
//!   One process pops this member, and asks Redis when the first schedule is due.
//! - *Timer.* A process that was woken, or has promoted something, calls again when the next
//!   schedule is due. If another process was faster, the call finds no due schedule. With more than
//!   20 processes, a process whose call found none sets no further timer. So every call by a timer,
//!   except the last one, promotes an event.
//! - *Look.* Each process looks from time to time. The more processes there are, the more rarely
//!   each of them looks. So schedules are promoted if the process with the timer dies.
//!
//! If the process dies during a call, Redis has run the whole step or nothing of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use crate::connection::PatientConnection;
use crate::connection::errors::describe;
use crate::escape;
use crate::failpoints::around;
use crate::wire::{self, PROMOTED_MAX, Promoted};
use crate::worker::config::WorkerConfig;
use crate::worker::session::connect::{Connection, Redis, give_up, is_lasting};
use crate::worker::session::cron;
use crate::worker::session::lease::failed;
use crate::worker::times::growing_wait::{GrowingWait, jitter};
use crate::worker::watch::figures::Call;
use crate::worker::watch::logged;

/// The bytes of events after which one call promotes no further event.
const BYTES: usize = 1024 * 1024;
/// The shortest time between two calls. It bounds the number of calls if schedules are due all the
/// time.
const CALLS_APART: Duration = Duration::from_millis(5);
/// The longest time for which the server blocks a wait for a wake.
const BLOCK: Duration = Duration::from_secs(10);
/// The time between two looks of a process: 100 ms for each live process, but at least 2 s and at
/// most 30 s. So all processes together look at most ten to twenty times a second.
const LOOK_PER_NAME: Duration = Duration::from_millis(100);
const LOOK_MIN: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(30);
/// A look sets a timer for a schedule that is due within this time, because the next look of any
/// process may come only after the schedule is due.
const LOOK_AHEAD: Duration = LOOK_MIN;
/// The number of processes up to which each of them keeps a timer that may be in vain.
const FEW_NAMES: u64 = 20;
/// With this many markers or more, calls are rare and take few schedules, because events that are
/// emitted now wait behind all these markers.
const MARKERS_MANY: u64 = 1000;
const PAUSE_MANY: Duration = Duration::from_millis(100);
/// The longest pause between two calls while more schedules are due.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The reason for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A producer has scheduled an event for soon.
    Wake,
    /// The next schedule is due.
    Timer,
    /// A look from time to time.
    Look,
}

/// Promotes schedules that are due, until the future is dropped.
pub(crate) async fn promote(redis: Redis, config: Arc<WorkerConfig>) {
    let mut promoter = Promoter {
        conn: None,
        timer: None,
        look_at: Instant::now(),
        backoff: new_backoff(),
        redis,
        config,
    };
    let wait = |redis: &Redis, config: &Arc<WorkerConfig>, conn| {
        Box::pin(wake(redis.clone(), Arc::clone(config), conn))
    };
    let mut wakes = wait(&promoter.redis, &promoter.config, None);
    let mut called_at: Option<Instant> = None;
    loop {
        let timer = promoter
            .timer
            .unwrap_or(promoter.look_at)
            .min(promoter.look_at);
        let cause = tokio::select! {
            biased;
            () = sleep_until(timer) => {
                let is_timer = promoter.timer.is_some_and(|at| at <= Instant::now());
                if is_timer { Cause::Timer } else { Cause::Look }
            }
            conn = &mut wakes => {
                wakes = wait(&promoter.redis, &promoter.config, Some(conn));
                Cause::Wake
            }
        };
        if let Some(before) = called_at {
            sleep_until(before + CALLS_APART).await;
        }
        promoter.run(cause).await;
        called_at = Some(Instant::now());
    }
}

fn new_backoff() -> GrowingWait {
    GrowingWait::new(Duration::from_millis(20), Duration::from_secs(1))
}

struct Promoter {
    redis: Redis,
    config: Arc<WorkerConfig>,
    conn: Option<Connection>,
    /// The time at which the next schedule is due, if this process promotes it.
    timer: Option<Instant>,
    look_at: Instant,
    backoff: GrowingWait,
}

impl Promoter {
    /// Promotes all schedules that are due, in steps. Then sets the times of the next timer and of
    /// the next look.
    async fn run(&mut self, cause: Cause) {
        let mut promotes = cause == Cause::Wake;
        loop {
            let Some((promoted, took)) = self.step().await else {
                continue;
            };
            promotes |= promoted.events > 0;
            let replied_at = Instant::now();
            let mut next_cron = promoted.next_cron.map(|due| replied_at + due);
            if promoted.next_cron == Some(Duration::ZERO) {
                let (events, next) = self.fire().await;
                promotes |= events > 0;
                next_cron = next;
                if next.is_some_and(|at| at <= Instant::now()) {
                    sleep(CALLS_APART).await;
                    continue;
                }
            }
            if promoted.next_due == Some(Duration::ZERO) {
                sleep(pause(&promoted, took)).await;
                continue;
            }
            // The script rounds times up to ms. A timer may be early by less than 1 ms, so 1 ms is
            // added.
            let next = promoted
                .next_due
                .map(|due| replied_at + due)
                .into_iter()
                .chain(next_cron)
                .min();
            let at = next.map(|due| due + Duration::from_millis(1));
            // With few processes, each of them may keep its timer even after a call that promoted
            // nothing. Then perhaps the schedule was moved or cancelled, and perhaps no other
            // process has a timer.
            let keeps = cause == Cause::Look || promoted.names <= FEW_NAMES;
            let is_near = keeps && next.is_some_and(|due| due <= Instant::now() + LOOK_AHEAD);
            let had_timer = cause == Cause::Look && self.timer.is_some();
            self.timer = at.filter(|_| promotes || is_near || had_timer);
            let look = LOOK_PER_NAME
                .saturating_mul(u32::try_from(promoted.names).unwrap_or(u32::MAX))
                .clamp(LOOK_MIN, LOOK_MAX);
            self.look_at = Instant::now() + jitter(look);
            return;
        }
    }

    /// Fires cron jobs. Returns the number of events queued, and the time at which the next job is
    /// due. After a failure, this is the time of the next attempt.
    async fn fire(&mut self) -> (u64, Option<Instant>) {
        let again = Some(Instant::now() + LOOK_MIN);
        let Some(mut conn) = self.conn.take() else {
            return (0, again);
        };
        match cron::fire(&mut conn, &self.config.keys).await {
            Ok(fired) => {
                self.conn = Some(conn);
                fired
            }
            Err(error) => {
                if is_lasting(&error) || error.is_wrong_type() {
                    self.conn = Some(conn);
                    warn!(%error, "cron: jobs cannot fire; they are tried again in {LOOK_MAX:?}");
                    return (0, Some(Instant::now() + LOOK_MAX));
                }
                let made_at = conn.made_at();
                give_up(conn);
                failed(&self.redis, &self.config, made_at, error).await;
                (0, again)
            }
        }
    }

    /// Makes one call. Returns its result and the time it took; `None` after a failure and a wait.
    async fn step(&mut self) -> Option<(Promoted, Duration)> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => match self.redis.reconnect().await {
                Ok(conn) => conn,
                // The part of the process that keeps the lease meets the same error, and ends the
                // session.
                Err(_) => {
                    self.backoff.wait().await;
                    return None;
                }
            },
        };
        let began = Instant::now();
        let call = around!(
            "promote",
            wire::promote(&mut conn, &self.config.keys, PROMOTED_MAX, BYTES)
        );
        let called = self.redis.timed(Call::Promote, call).await;
        let took = began.elapsed();
        match called {
            Ok(promoted) => {
                self.redis.outage().answered(conn.made_at());
                self.conn = Some(conn);
                self.backoff = new_backoff();
                tell(&promoted);
                Some((promoted, took))
            }
            Err(error) => {
                let made_at = conn.made_at();
                give_up(conn);
                if is_lasting(&error) {
                    warn!(%error, "promote: the schedules cannot be promoted");
                } else {
                    failed(&self.redis, &self.config, made_at, error).await;
                }
                self.backoff.wait().await;
                None
            }
        }
    }
}

/// Returns the pause before the next call while more schedules are due. The pause is so long that
/// all processes together leave Redis half of its time for other work.
fn pause(promoted: &Promoted, took: Duration) -> Duration {
    let names = u32::try_from(promoted.names.max(1)).unwrap_or(u32::MAX);
    let pause = match promoted.markers >= MARKERS_MANY {
        true => return PAUSE_MANY.saturating_mul(names),
        false => took.saturating_mul(names.saturating_mul(2) - 1),
    };
    pause.min(PAUSE_MAX.max(PAUSE_MANY.saturating_mul(names)))
}

fn tell(promoted: &Promoted) {
    if promoted.events > 0 {
        debug!(events = promoted.events, "promote");
    }
    for (member, why) in &promoted.wrong {
        let escaped = escape::name(member);
        let schedule = logged::cut(&escaped);
        match why.as_str() {
            "absent" => {
                warn!(%schedule, "promote: the schedule has no event; its due time is removed")
            }
            "name" => {
                warn!(%schedule, "promote: the schedule names no object of this namespace; its due time is removed")
            }
            why => {
                warn!(%schedule, why, "promote: the event cannot be queued; it is tried again in a minute")
            }
        }
    }
    let more = promoted
        .wrong_count
        .saturating_sub(promoted.wrong.len() as u64);
    if more > 0 {
        warn!(
            more,
            "promote: further schedules of this step are wrong as well"
        );
    }
}

/// Waits for a wake, on a connection that only these waits use. Returns this connection for the
/// next wait.
async fn wake(
    redis: Redis,
    config: Arc<WorkerConfig>,
    mut conn: Option<PatientConnection>,
) -> PatientConnection {
    let (mut backoff, mut has_told) = (new_backoff(), false);
    let key = config.keys.events_scheduled_wake();
    let mut pop = redis::cmd("BZPOPMIN");
    pop.arg(&key).arg(BLOCK.as_secs());
    loop {
        let mut open = match conn.take() {
            Some(open) => open,
            None => match redis.reconnect().await {
                Ok(open) => Connection::take(open),
                Err(_) => {
                    backoff.wait().await;
                    continue;
                }
            },
        };
        open.set_block(BLOCK);
        let made_at = open.made_at();
        let popped: Result<Option<(String, String, String)>, _> = pop.query_async(&mut open).await;
        match popped {
            Ok(Some(_)) => return open,
            Ok(None) => {
                redis.outage().answered(made_at);
                conn = Some(open);
            }
            Err(error) if error.code() == Some("WRONGTYPE") => {
                if !std::mem::replace(&mut has_told, true) {
                    warn!(
                        key,
                        "promote: the key has a wrong type; schedules that are due soon are promoted up to {LOOK_MAX:?} late"
                    );
                }
                backoff.wait().await;
                conn = Some(open);
            }
            Err(error) => {
                redis.outage().failed(made_at, &describe(&error));
                backoff.wait().await;
            }
        }
    }
}
