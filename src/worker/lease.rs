//! The lease: how a process takes its worker name, keeps it, and gives it back.
//!
//! A worker name is *free* (it has no lease) or *taken* (it has a lease with a token). A process
//! does not decide by its own clock whether it still has the lease: every script compares the token
//! in Redis. So a process that was paused for longer than its lease notices the loss at its next
//! call. If the process dies, the lease ends. Then other processes adopt the name's objects
//! (`recover`), or the next process of the name attaches.
//!
//! A separate thread renews the lease, sweeps and promotes schedules, with its own runtime and
//! connections. So if a handler blocks the worker's threads, the process keeps its lease, and
//! sweeps and promotions go on. The thread renews the lease only as long as the worker's loop turns
//! (`activity`). If the loop stands still for `stall_max`, the thread lets the lease go.

use std::sync::Arc;
use std::time::Duration;

use redis::ErrorKind;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::subscriber::NoSubscriber;
use tracing::{debug, info, warn};

use super::activity::{Activity, Watch};
use super::config::WorkerConfig;
use super::connect::{Connection, Redis, give_up, is_lasting};
use super::error::WorkerError;
use super::figures::Call;
use super::growing_wait::{GrowingWait, jitter};
use super::logged;
use super::promote::promote;
use super::recover::{mark, sweep};
use super::status::{self, StatusWriter};
use crate::connection::errors::{is_outage, told};
use crate::failpoints::around;
use crate::keys::{Keys, SHARED_KINDS, WORKER_KINDS, is_of_process, type_of};
use crate::wire::values::{Holder, Registration};
use crate::wire::{self, Attach, Attached, Detached, Renewed, ScriptError};

/// The time, beyond its grace, for which a stopping process waits for Redis to detach it.
pub(crate) const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// The interval at which the log repeats that the Sentinels do not name the master.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// A session: the time from an attach until the lease ends.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// The token that the fence compares.
    pub(crate) token: Arc<str>,
    /// The number of changed histories of Redis (failovers, restarts) that the process had found
    /// before the attach.
    pub(crate) changes: u64,
    /// Whether this process had the name before, and its lease lapsed. If so, batches may come
    /// again under the same tags.
    pub(crate) again: bool,
    /// Whether the lease was let go because the loop stood still. If so, the next attach counts a
    /// crash for each unfinished batch.
    pub(crate) let_go: bool,
}

/// The way in which a session lost its lease.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The lease is gone, and no other process has attached since.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token. The text is
    /// the present lease.
    Fenced(String),
}

/// Returns the wait before a process that lost its lease attaches again.
///
/// # Errors
/// [`WorkerError::Fenced`] if another process has the name.
pub(crate) async fn attach_again_after(
    lost: Lost,
    redis: &Redis,
    config: &WorkerConfig,
    session: &mut Session,
    activity: &Activity,
) -> Result<Duration, WorkerError> {
    let name = &config.name;
    let is_changed = redis.changes() != session.changes;
    match lost {
        Lost::Lapsed if !is_changed || is_registered(redis, config).await => {
            session.let_go = activity.has_let_go();
            let counts = if session.let_go { "; this counts as a crash" } else { "" };
            warn!(%name, "recover: the lease lapsed; dropping the batches in hand and attaching again{counts}");
            Ok(Duration::ZERO)
        }
        Lost::Fenced(lease) if !is_changed => Err(WorkerError::Fenced { name: name.clone(), lease }),
        // Redis went back to an earlier state, in which an old lease may exist again, or came back
        // empty. Another process may not have noticed yet. So this one waits for one lease.
        Lost::Lapsed | Lost::Fenced(_) => {
            warn!(%name, "recover: Redis has lost writes; attaching again after one lease");
            Ok(config.lease)
        }
    }
}

/// Returns whether the worker name is registered; false if Redis does not tell.
async fn is_registered(redis: &Redis, config: &WorkerConfig) -> bool {
    let Ok(mut conn) = redis.connect().await else { return false };
    redis::cmd("HEXISTS").arg(config.keys.event_workers()).arg(&config.name).query_async(&mut conn).await.unwrap_or(false)
}

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

/// The end of the token of a process with a random name (`lua/lib/registry.lua`).
const ONCE: &str = "-once";

/// Takes the worker name. `before` is this process' session that lapsed. At a start, `before` is
/// `None`; then this function waits at most `connect_timeout` for a Redis that cannot be reached.
/// With `before`, it waits without a limit.
pub(crate) async fn attach(redis: &Redis, config: &WorkerConfig, before: Option<&Session>) -> Result<Session, WorkerError> {
    let token = uuid::Uuid::new_v4().to_string();
    // The scripts forget a name with such a token soon after its process has detached.
    let token: Arc<str> = if config.has_random_name() { token + ONCE } else { token }.into();
    // The holder includes the length of the lease, because Redis itself keeps only the time at
    // which a lease ends, and Redis' clock may step.
    let holder = Holder::current().with_length(config.lease);
    let mut displace = String::new();
    let mut awaited: Option<(String, Instant)> = None;
    let deadline = before.is_none().then(|| Instant::now().checked_add(config.connect_timeout).unwrap_or_else(far_away));
    let mut backoff = GrowingWait::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        let mut conn = redis.connect_until(deadline).await?;
        // Read before the call, because a change of Redis' history during the call may undo the
        // attach.
        let changes = redis.changes();
        let args = Attach {
            name: &config.name,
            token: &token,
            holder: &holder,
            lease: config.lease,
            slots: config.concurrency,
            displace: &displace,
            // The token of the session before proves that this process did not die. Without this
            // token, the script counts a crash for each unfinished batch.
            before: before.filter(|session| !session.let_go).map_or("", |session| &session.token),
            crashes_max: config.crashes_held(),
            suspects: config.suspects(),
        };
        match around!("attach", wire::attach(&mut conn, &config.keys, &args)).await {
            Ok(Attached::Attached { kept, held, lost }) => {
                redis.figures().lost_keys(logged::put_aside_all(&lost));
                redis.outage().answered(conn.made_at());
                redis.figures().attached(kept > 0, before.is_some());
                info!(name = %config.name, slots = config.concurrency, kept, held, "recover: attached");
                return Ok(Session { token, changes, again: before.is_some(), let_go: false });
            }
            Ok(Attached::InUse { lease, left }) => {
                let gone = Holder::of_lease(&lease).is_some_and(|holder| holder.is_gone());
                if config.takeover || gone {
                    debug!(lease, gone, "recover: displacing the lease");
                    displace = lease;
                    continue;
                }
                wait_for_lease(config, lease, left, &mut awaited).await?;
            }
            Err(error) if is_lasting(&error) => return Err(error.into()),
            Err(ScriptError::Redis(source))
                if deadline.is_some_and(|deadline| Instant::now() >= deadline || !is_outage(&source))
                    && source.code() != Some("WRONGTYPE") =>
            {
                return match source.kind() {
                    ErrorKind::Server(_) => Err(ScriptError::Redis(source).into()),
                    _ => Err(redis.unreachable(source)),
                };
            }
            // The call can be repeated safely.
            Err(error) => {
                let made_at = conn.made_at();
                give_up(conn);
                failed(redis, config, made_at, error).await;
                backoff.wait().await;
            }
        }
    }
}

/// Returns a time that does not come while the process runs.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 24 * 60 * 60)
}

/// Logs a failed call that will be repeated: Redis is away, or a key has a wrong type.
pub(crate) async fn failed(redis: &Redis, config: &WorkerConfig, made_at: Instant, error: ScriptError) {
    if !error.is_wrong_type() {
        redis.outage().failed(made_at, &error.told());
    } else if redis.outage().is_due() {
        let error = wrong_type(redis, config, error).await.to_string();
        redis.outage().obstructed(made_at, &error);
    }
}

/// Waits a little for the lease of another process to end.
///
/// # Errors
/// [`WorkerError::InUse`] if that lease was renewed meanwhile. A renewal shows that the process of
/// the lease lives.
async fn wait_for_lease(
    config: &WorkerConfig,
    lease: String,
    left: Duration,
    awaited: &mut Option<(String, Instant)>,
) -> Result<(), WorkerError> {
    let ends = Instant::now() + left;
    // Clocks and round trips are not exact, so a smaller difference is no renewal. A renewal adds a
    // third of a lease, which is at least 100 ms.
    let slack = Duration::from_millis(80);
    match awaited {
        Some((seen, end)) if *seen == lease && ends <= *end + slack => {}
        Some(_) => return Err(in_use(config, &lease)),
        None => {
            info!(name = %config.name, left = ?left, "recover: the name is in use, waiting for its lease to end");
            *awaited = Some((lease, ends));
        }
    }
    sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(100))).await;
    Ok(())
}

fn in_use(config: &WorkerConfig, lease: &str) -> WorkerError {
    let (host, pid) = Holder::of_lease(lease).map_or_else(|| (lease.to_owned(), 0), |by| (by.host_name().to_owned(), by.pid()));
    WorkerError::InUse { name: config.name.clone(), host, pid }
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
/// longest time of a delivery, as the sink states. `status` writes the status of the process, if
/// given.
pub(crate) fn keeper(
    redis: &Redis,
    config: &Arc<WorkerConfig>,
    session: &Session,
    activity: &Arc<Activity>,
    timeout: Duration,
    status: Option<StatusWriter>,
) -> Result<(Keeper, mpsc::Receiver<Notice>), WorkerError> {
    let (notify, notices) = mpsc::channel(16);
    let closed = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(WorkerError::Thread)?;
    let watch = Watch::new(Arc::clone(activity), config.stall_max, timeout).run();
    let keep = keep(redis.apart(), Arc::clone(config), session.clone(), notify, Arc::clone(activity), status);
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
    let subscriber = tracing::dispatcher::get_default(|found| (!found.is::<NoSubscriber>()).then(|| found.clone()));
    let thread = std::thread::Builder::new().name("seriatim-lease".to_owned());
    let run = move || {
        let _told = subscriber.as_ref().map(tracing::dispatcher::set_default);
        runtime.block_on(work);
        runtime.shutdown_background();
    };
    thread.spawn(run).map_err(WorkerError::Thread)?;
    Ok((Keeper { closed }, notices))
}

/// Renews the lease as long as the worker's loop turns, and sweeps over other worker names. Ends
/// when the lease is lost, or after a lasting error.
async fn keep(
    redis: Redis,
    config: Arc<WorkerConfig>,
    session: Session,
    notices: mpsc::Sender<Notice>,
    activity: Arc<Activity>,
    mut status: Option<StatusWriter>,
) {
    let mut conn: Option<Connection> = None;
    // Processes that start together, e.g. in a deploy, must not renew and sweep together ever
    // after. So the first wait of each kind is a random part of its interval.
    let mut renew_at = Instant::now() + jitter(config.lease / 3);
    let (mut sweeps_first, mut tells_first) = (true, true);
    let wait = |first: &mut bool, interval| if std::mem::take(first) { jitter(interval) } else { interval };
    let mut sweep_at = Instant::now();
    let mut tell_at = status.is_some().then(Instant::now);
    let mut backoff = GrowingWait::new(Duration::from_millis(20), config.lease / 10);
    let _asking = ask_for_master(redis.clone(), config.lease / 3);
    loop {
        sleep_until(renew_at.min(sweep_at).min(tell_at.unwrap_or(sweep_at))).await;
        let mut open = match conn.take() {
            Some(open) => open,
            None => match redis.reconnect().await {
                Ok(open) => open,
                Err(error) => return drop(notices.send(Notice::Failed(error)).await),
            },
        };
        let now = Instant::now();
        let (renews, sweeps) = (renew_at <= now, sweep_at <= now);
        let lets_go = renews && activity.is_stalled();
        let done = if renews && !lets_go { renew(&redis, &mut open, &config, &session).await } else { Ok(None) };
        let mut may_have_lapsed = false;
        let done = match done {
            // `redis.sweeps()` records the time of this sweep even if the sweep fails. So the first
            // successful sweep after an outage states only a short time since the sweep before.
            // From this the script sees that there was an outage, in which live processes may have
            // lost their leases. Then the script takes nothing over for a while.
            Ok(None) if sweeps => match sweep(&redis, &mut open, &config, redis.sweeps()).await {
                Ok(swept) => {
                    may_have_lapsed = swept.is_ahead;
                    let marked = if swept.mark { mark(&mut open, &config).await } else { Ok(()) };
                    marked.map(|()| swept.found.then_some(Notice::Wake))
                }
                Err(error) => Err(error),
            },
            done => done,
        };
        let tells = tell_at.is_some_and(|at| at <= now);
        let done = match (done, &mut status) {
            // If the loop stands still for `stall_max`, the lease is not renewed. A status written
            // then could replace the status of the next process of this name.
            (Ok(None), Some(status)) if tells && !activity.is_stalled() => {
                status.write(&mut open).await.map(|()| None).map_err(ScriptError::Redis)
            }
            (done, _) => done,
        };
        match done {
            Ok(notice) => {
                redis.outage().answered(open.made_at());
                if tells {
                    tell_at = Some(now + wait(&mut tells_first, status::EVERY));
                }
                conn = Some(open);
                backoff = GrowingWait::new(Duration::from_millis(20), config.lease / 10);
                if renews {
                    renew_at = now + config.lease / 3;
                } else if may_have_lapsed {
                    renew_at = now;
                }
                if renews && !matches!(notice, Some(Notice::Lost(Lost::Lapsed))) {
                    activity.renewal(lets_go);
                }
                if sweeps {
                    sweep_at = now + wait(&mut sweeps_first, config.sweep);
                }
                match notice {
                    // If the channel is full, the worker's loop stands still, and enough notices
                    // already wait for it. So this notice is dropped.
                    Some(Notice::Wake) => drop(notices.try_send(Notice::Wake)),
                    Some(last) => return drop(notices.send(last).await),
                    None => {}
                }
            }
            Err(error) if is_lasting(&error) => return drop(notices.send(Notice::Failed(error.into())).await),
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
                        warn!(error = told(&error), "recover: the Sentinels do not name the master; the connections stay");
                    }
                    Err(_) => {}
                }
            }
        });
    }
    asking
}

async fn renew(
    redis: &Redis,
    conn: &mut Connection,
    config: &WorkerConfig,
    session: &Session,
) -> Result<Option<Notice>, ScriptError> {
    let call = wire::renew(conn, &config.keys, &config.name, &session.token, config.lease, config.concurrency);
    match redis.timed(Call::Renew, around!("renew", call)).await? {
        Renewed::Renewed { strays, lost } => {
            redis.figures().lost_keys(logged::put_aside_all(&lost));
            if strays == 0 {
                return Ok(None);
            }
            debug!(strays, "recover: strays went back to the markers");
            Ok(Some(Notice::Wake))
        }
        Renewed::Lapsed => Ok(Some(Notice::Lost(Lost::Lapsed))),
        Renewed::Fenced { lease } => Ok(Some(Notice::Lost(Lost::Fenced(lease)))),
    }
}

/// Gives the name back. The objects of its slots are held, due at once. Returns the number of these
/// objects; `None` if the call failed, or Redis did not reply before `deadline`.
pub(crate) async fn detach(redis: &Redis, config: &WorkerConfig, session: &Session, deadline: Instant) -> Option<u64> {
    let detached = tokio::time::timeout_at(deadline, async {
        loop {
            let Ok(mut conn) = redis.reconnect().await else { return None };
            match around!("detach", wire::detach(&mut conn, &config.keys, &config.name, &session.token)).await {
                Ok(Detached::Detached { held, lost }) => {
                    redis.figures().lost_keys(logged::put_aside_all(&lost));
                    return Some(held);
                }
                Ok(Detached::Lapsed | Detached::Fenced { .. }) => return Some(0),
                Err(error) if is_lasting(&error) || error.is_wrong_type() => {
                    warn!(%error, "recover: detach failed");
                    return None;
                }
                Err(error) => {
                    redis.outage().failed(conn.made_at(), &error.told());
                    give_up(conn);
                }
            }
        }
    });
    detached.await.ok().flatten()
}

/// Finds the key whose wrong type made a script fail, and returns an error that names it. If no
/// such key is found or Redis does not reply, returns the given error.
pub(crate) async fn wrong_type(redis: &Redis, config: &WorkerConfig, error: ScriptError) -> WorkerError {
    let looked = tokio::time::timeout(config.response_timeout, async {
        let mut conn = match redis.connect().await {
            Ok(conn) => conn,
            // The first script on the new connection met the same key, and its error names the key.
            Err(named @ WorkerError::WrongType { .. }) => return Some(named),
            Err(_) => return None,
        };
        let registered: Result<Option<String>, _> =
            redis::cmd("HGET").arg(config.keys.event_workers()).arg(&config.name).query_async(&mut conn).await;
        // The scripts look at every slot that the name ever had.
        let registered = registered.ok().flatten().and_then(|value| value.parse::<Registration>().ok());
        let slots = registered.map_or(0, |registered| registered.slots as usize);
        for (key, expected) in typed_keys(&config.keys, &config.name, config.concurrency.max(slots)) {
            let found: String = redis::cmd("TYPE").arg(&key).query_async(&mut conn).await.ok()?;
            if found != expected && found != "none" {
                return Some(WorkerError::WrongType { key, found, expected });
            }
        }
        None
    });
    looked.await.ok().flatten().unwrap_or_else(|| error.into())
}

fn typed_keys(keys: &Keys, name: &str, slots: usize) -> Vec<(String, &'static str)> {
    let expected = |kind: &str| type_of(kind).unwrap_or("string");
    let mut all: Vec<_> = SHARED_KINDS.iter().map(|(kind, key)| ([keys.prefix(), key].concat(), expected(kind))).collect();
    all.push((keys.worker_lease(name), "string"));
    for slot in 0..slots {
        for (kind, suffix) in WORKER_KINDS.iter().filter(|(kind, _)| !is_of_process(kind)) {
            all.push((format!("{}event.worker:{name}.{slot}{suffix}", keys.prefix()), expected(kind)));
        }
    }
    all
}
