//! The thread that keeps the lease. It renews the lease, sweeps, writes the status and promotes
//! schedules, with its own runtime and connections. So if a handler blocks the worker's threads, the
//! process keeps its lease, and sweeps and promotions go on. The thread renews the lease only as long
//! as the worker's loop turns (`activity`). If the loop stands still for `stall_max`, the thread lets
//! the lease go.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::subscriber::NoSubscriber;
use tracing::{info, warn};

use super::connect::{Connection, Redis, give_up, is_lasting};
use super::lease::{Lost, Session, failed, renew};
use super::promote::promote;
use super::recover::{mark, sweep};
use crate::connection::errors::describe;
use crate::wire::ScriptError;
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::times::growing_wait::{GrowingWait, jitter};
use crate::worker::watch::activity::{Activity, Watch};
use crate::worker::watch::reports::ReportWriter;
use crate::worker::watch::status::{self, StatusWriter};

/// The interval at which the log repeats that the Sentinels do not name the master.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// A message from the thread that keeps the lease.
#[derive(Debug)]
pub(crate) enum Notice {
    /// There may be something to claim.
    Wake,
    /// The lease is lost.
    Lost(Lost),
    /// The thread cannot go on because of this error.
    Failed(WorkerError),
}

/// The handle of the thread that keeps the lease. The thread ends soon after the handle is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    closed: CancellationToken,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Starts the thread that keeps the session's lease and watches the deliveries. `timeout` is the
/// longest time of a delivery, as the sink states. `telling` writes the status of the process and its
/// reports, if given.
pub(crate) fn keeper(
    redis: &Redis,
    config: &Arc<WorkerConfig>,
    session: &Session,
    activity: &Arc<Activity>,
    timeout: Duration,
    telling: Option<(StatusWriter, ReportWriter)>,
) -> Result<(Keeper, mpsc::Receiver<Notice>), WorkerError> {
    let (notify, notices) = mpsc::channel(16);
    let closed = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(WorkerError::Thread)?;
    let watch = Watch::new(Arc::clone(activity), config.stall_max, timeout).run();
    let keeping = Keeping {
        redis: redis.apart(),
        config: Arc::clone(config),
        session: session.clone(),
        activity: Arc::clone(activity),
        telling,
    };
    let keep = keep(keeping, notify);
    let promote = Box::pin(promote(redis.apart(), Arc::clone(config)));
    let until = closed.clone();
    let work = async move {
        tokio::select! {
            biased;
            () = until.cancelled() => {}
            // The watch goes on after the lease is lost, so that it still finds a blocked thread.
            _ = futures_util::future::join(keep, watch) => {}
            () = promote => {}
        }
    };
    // If a log subscriber is set only for the caller's thread, the new thread gets the same
    // subscriber.
    let subscriber = tracing::dispatcher::get_default(|found| {
        (!found.is::<NoSubscriber>()).then(|| found.clone())
    });
    let thread = std::thread::Builder::new().name("seriatim-lease".to_owned());
    let run = move || {
        let _told = subscriber.as_ref().map(tracing::dispatcher::set_default);
        runtime.block_on(work);
        runtime.shutdown_background();
    };
    thread.spawn(run).map_err(WorkerError::Thread)?;
    Ok((Keeper { closed }, notices))
}

/// The times at which the parts of the periodic work are due.
struct Due {
    renew: Instant,
    sweep: Instant,
    /// The next status; `None` if the process writes none.
    tell: Option<Instant>,
    /// Whether the first sweep, and the first status, are still to come.
    first: (bool, bool),
}

impl Due {
    fn new(config: &WorkerConfig, tells: bool) -> Self {
        let now = Instant::now();
        // Processes that start together, e.g. in a deploy, must not renew and sweep together ever
        // after. So the first wait of each kind is a random part of its interval.
        Self {
            renew: now + jitter(config.lease / 3),
            sweep: now,
            tell: tells.then_some(now),
            first: (true, true),
        }
    }

    fn next(&self) -> Instant {
        self.renew
            .min(self.sweep)
            .min(self.tell.unwrap_or(self.sweep))
    }

    /// Plans the work after this turn.
    fn after(&mut self, turn: &Turn, done: &Done, config: &WorkerConfig) {
        let wait = |first: &mut bool, interval| {
            if std::mem::take(first) {
                jitter(interval)
            } else {
                interval
            }
        };
        if turn.renews {
            self.renew = turn.now + config.lease / 3;
        } else if done.may_have_lapsed {
            self.renew = turn.now;
        }
        if turn.sweeps {
            self.sweep = turn.now + wait(&mut self.first.0, config.sweep);
        }
        if turn.tells {
            self.tell = Some(turn.now + wait(&mut self.first.1, status::EVERY));
        }
    }
}

/// The work that is due now.
struct Turn {
    now: Instant,
    renews: bool,
    sweeps: bool,
    tells: bool,
    /// Whether the worker's loop stands still, so that a due renewal is left out.
    lets_go: bool,
}

impl Turn {
    fn of(due: &Due, activity: &Activity) -> Self {
        let now = Instant::now();
        let renews = due.renew <= now;
        let tells = due.tell.is_some_and(|at| at <= now);
        Self {
            now,
            renews,
            sweeps: due.sweep <= now,
            tells,
            lets_go: renews && activity.is_stalled(),
        }
    }
}

/// The result of a turn.
#[derive(Default)]
struct Done {
    notice: Option<Notice>,
    /// Whether Redis' clock has stepped ahead, or Redis was away.
    may_have_lapsed: bool,
}

/// The parts of the periodic work.
struct Keeping {
    redis: Redis,
    config: Arc<WorkerConfig>,
    session: Session,
    activity: Arc<Activity>,
    telling: Option<(StatusWriter, ReportWriter)>,
}

impl Keeping {
    /// Does what is due. Ends after the renewal if the lease is lost.
    async fn turn(&mut self, turn: &Turn, conn: &mut Connection) -> Result<Done, ScriptError> {
        if turn.renews && !turn.lets_go {
            let notice = renew(&self.redis, conn, &self.config, &self.session).await?;
            if notice.is_some() {
                return Ok(Done {
                    notice,
                    ..Done::default()
                });
            }
        }
        let done = if turn.sweeps {
            self.sweep(conn).await?
        } else {
            Done::default()
        };
        match &mut self.telling {
            // If the loop stands still for `stall_max`, the lease is not renewed. A status written
            // then could replace the status of the next process of this name. A failed status would
            // lose the notice of a sweep, so a turn with a notice writes none.
            Some((status, reports))
                if turn.tells && done.notice.is_none() && !self.activity.is_stalled() =>
            {
                status.write(conn).await?;
                reports.write(conn).await?;
            }
            _ => {}
        }
        Ok(done)
    }

    /// Looks at other names, and pushes a mark if one is due.
    ///
    /// `redis.sweeps()` records the time of this sweep even if the sweep fails. So the first
    /// successful sweep after an outage states only a short time since the sweep before. From this
    /// the script sees that there was an outage, in which live processes may have lost their
    /// leases. Then the script takes nothing over for a while.
    async fn sweep(&self, conn: &mut Connection) -> Result<Done, ScriptError> {
        let swept = sweep(&self.redis, conn, &self.config, self.redis.sweeps()).await?;
        if swept.mark {
            mark(conn, &self.config).await?;
        }
        Ok(Done {
            notice: swept.found.then_some(Notice::Wake),
            may_have_lapsed: swept.is_ahead,
        })
    }
}

/// Renews the lease as long as the worker's loop turns, sweeps over other worker names, and writes
/// the status. Ends when the lease is lost, or after a lasting error.
async fn keep(mut keeping: Keeping, notices: mpsc::Sender<Notice>) {
    let (redis, config, activity) = (
        keeping.redis.clone(),
        Arc::clone(&keeping.config),
        Arc::clone(&keeping.activity),
    );
    let fresh = || GrowingWait::new(Duration::from_millis(20), config.lease / 10);
    let (mut due, mut backoff) = (Due::new(&config, keeping.telling.is_some()), fresh());
    let mut conn: Option<Connection> = None;
    let _asking = ask_for_master(redis.clone(), config.lease / 3);
    loop {
        sleep_until(due.next()).await;
        let mut open = match conn.take() {
            Some(open) => open,
            None => match redis.reconnect().await {
                Ok(open) => open,
                Err(error) => return drop(notices.send(Notice::Failed(error)).await),
            },
        };
        let turn = Turn::of(&due, &activity);
        match keeping.turn(&turn, &mut open).await {
            Ok(done) => {
                redis.outage().answered(open.made_at());
                conn = Some(open);
                backoff = fresh();
                due.after(&turn, &done, &config);
                if turn.renews && !matches!(done.notice, Some(Notice::Lost(Lost::Lapsed))) {
                    activity.renewal(turn.lets_go);
                }
                match done.notice {
                    // If the channel is full, the worker's loop stands still, and enough notices
                    // already wait for it. So this notice is dropped.
                    Some(Notice::Wake) => drop(notices.try_send(Notice::Wake)),
                    Some(last) => return drop(notices.send(last).await),
                    None => {}
                }
            }
            Err(error) if is_lasting(&error) => {
                return drop(notices.send(Notice::Failed(error.into())).await);
            }
            Err(error) => {
                let made_at = open.made_at();
                give_up(open);
                failed(&redis, &config, made_at, error).await;
                backoff.wait().await;
            }
        }
    }
}

/// If there are Sentinels, spawns a task that asks them every `interval` which server is the
/// master. The task ends when the returned set is dropped. A renewal that hangs because the master
/// is gone does not delay this task.
fn ask_for_master(redis: Redis, interval: Duration) -> JoinSet<()> {
    let mut asking = JoinSet::new();
    if redis.has_sentinels() {
        asking.spawn(async move {
            let mut told_at: Option<Instant> = None;
            loop {
                sleep(interval).await;
                match redis.ask_for_master().await {
                    Ok(()) => {
                        if told_at.take().is_some() {
                            info!("recover: the Sentinels name the master again");
                        }
                    }
                    Err(error) if told_at.is_none_or(|at| at.elapsed() >= TELL_AGAIN) => {
                        told_at = Some(Instant::now());
                        warn!(
                            error = describe(&error),
                            "recover: the Sentinels do not name the master; the connections stay"
                        );
                    }
                    Err(_) => {}
                }
            }
        });
    }
    asking
}
