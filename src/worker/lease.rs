//! The lease: how a process takes its name, keeps it, and gives it back.
//!
//! State of a name: *free* (no lease), *held* (a lease with a token). A process trusts its lease
//! only through Redis: every script compares the token, so a process that was paused for longer
//! than its lease finds out at its next call, whatever its own clock says. If the process dies, the
//! lease runs out and the name's objects are adopted (`recover`), or the next process of the name
//! attaches.
//!
//! A thread of its own renews the lease and sweeps, with a runtime and connections of its own: a
//! handler that blocks the threads of the worker's runtime neither loses the lease nor keeps this
//! process from taking over what others left. The thread renews only while the worker's loop turns
//! (`activity`); once the loop has stood still for `stall_max`, the lease is let go.

use std::sync::Arc;
use std::time::Duration;

use redis::ErrorKind;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::subscriber::NoSubscriber;
use tracing::{debug, info, warn};

use super::activity::{Activity, Watch};
use super::config::WorkerConfig;
use super::connect::{Connection, Redis, give_up, is_lasting};
use super::error::WorkerError;
use super::growing_wait::GrowingWait;
use super::recover::sweep;
use crate::connection::errors::is_outage;
use crate::failpoints::around;
use crate::keys::{Keys, SHARED_KINDS, WORKER_KINDS, type_of};
use crate::wire::values::{Holder, Registration};
use crate::wire::{self, Attach, Attached, Detached, Renewed, ScriptError};

/// How long a process that stops waits for Redis to take its name back, beyond its grace.
pub(crate) const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// From an attach to its end.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// The fence.
    pub(crate) token: Arc<str>,
    /// How often Redis had changed its history when the name was taken.
    pub(crate) changes: u64,
    /// This process had the name before, and its lease lapsed: batches may come again under the
    /// tags they had.
    pub(crate) again: bool,
    /// The lease was let go, because the loop stood still: the next attach counts that as a crash.
    pub(crate) let_go: bool,
}

/// How a session has lost its lease.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The lease is gone, and nobody took the name since.
    Lapsed,
    /// The name has another lease, or none and another registration.
    Fenced(String),
}

/// Returns how long to wait before the name is taken again, behind a session that has lost its
/// lease.
///
/// # Errors
/// [`WorkerError::Fenced`] if another process has the name.
pub(crate) fn attach_again_after(
    lost: Lost,
    redis: &Redis,
    config: &WorkerConfig,
    session: &mut Session,
    activity: &Activity,
) -> Result<Duration, WorkerError> {
    let name = &config.name;
    match lost {
        Lost::Lapsed => {
            session.let_go = activity.has_let_go();
            let counts = if session.let_go { "; that is a crash of it" } else { "" };
            warn!(%name, "recover: the lease lapsed; dropping what was in hand and attaching again{counts}");
            Ok(Duration::ZERO)
        }
        Lost::Fenced(lease) if redis.changes() == session.changes => Err(WorkerError::Fenced { name: name.clone(), lease }),
        // Redis went back to an earlier state, which may have revived an old lease: nobody may hold
        // it any more.
        Lost::Fenced(_) => {
            warn!(%name, "recover: Redis has lost writes; attaching again after one lease");
            Ok(config.lease)
        }
    }
}

/// What the keeper of the lease has to say.
#[derive(Debug)]
pub(crate) enum Notice {
    /// There may be something to claim.
    Wake,
    /// The lease is lost.
    Lost(Lost),
    /// The keeper cannot go on.
    Failed(WorkerError),
}

/// Takes the name. `before` is the session that lapsed; without one, a Redis that cannot be reached
/// is waited for up to the connect timeout.
pub(crate) async fn attach(redis: &Redis, config: &WorkerConfig, before: Option<&Session>) -> Result<Session, WorkerError> {
    let token: Arc<str> = uuid::Uuid::new_v4().to_string().into();
    // With the length of the lease: Redis keeps only its end, and its clock may step.
    let holder = Holder::current().with_length(config.lease);
    let mut displace = String::new();
    let mut awaited: Option<(String, Instant)> = None;
    let deadline = before.is_none().then(|| Instant::now() + config.connect_timeout);
    let mut backoff = GrowingWait::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        let mut conn = redis.connect_until(deadline).await?;
        let args = Attach {
            name: &config.name,
            token: &token,
            holder: &holder,
            lease: config.lease,
            slots: config.concurrency,
            displace: &displace,
            // Without the token of the process before, an unfinished batch tells of a crash.
            before: before.filter(|session| !session.let_go).map_or("", |session| &session.token),
            crashes_max: config.crashes_held(),
            suspects: config.suspects(),
        };
        match around!("attach", wire::attach(&mut conn, &config.keys, &args)).await {
            Ok(Attached::Attached { kept, held }) => {
                redis.outage().answered(conn.made_at());
                info!(name = %config.name, slots = config.concurrency, kept, held, "recover: attached");
                return Ok(Session { token, changes: redis.changes(), again: before.is_some(), let_go: false });
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
            // A repeated call changes nothing.
            Err(error) => {
                let made_at = conn.made_at();
                give_up(conn);
                failed(redis, config, made_at, error).await;
                backoff.wait().await;
            }
        }
    }
}

/// Tells of a call that failed and will be repeated: Redis is away, or a key has a wrong type.
pub(crate) async fn failed(redis: &Redis, config: &WorkerConfig, made_at: Instant, error: ScriptError) {
    if !error.is_wrong_type() {
        redis.outage().failed(made_at, &error.told());
    } else if redis.outage().is_due() {
        let error = wrong_type(redis, config, error).await.to_string();
        redis.outage().obstructed(made_at, &error);
    }
}

/// Waits a little for a lease that is not renewed any more; refuses the name once it was renewed,
/// because then its process lives.
async fn wait_for_lease(
    config: &WorkerConfig,
    lease: String,
    left: Duration,
    awaited: &mut Option<(String, Instant)>,
) -> Result<(), WorkerError> {
    let ends = Instant::now() + left;
    // Clocks and round trips are not exact; a renewal adds a third of a lease, at least 100 ms.
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

/// The thread that keeps the lease. It ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    closed: CancellationToken,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Starts the thread that keeps the session's lease and watches over the deliveries, which take
/// `timeout` at most by their own account.
pub(crate) fn keeper(
    redis: &Redis,
    config: &Arc<WorkerConfig>,
    session: &Session,
    activity: &Arc<Activity>,
    timeout: Duration,
) -> Result<(Keeper, mpsc::Receiver<Notice>), WorkerError> {
    let (notify, notices) = mpsc::channel(16);
    let closed = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(WorkerError::Thread)?;
    let watch = Watch::new(Arc::clone(activity), config.stall_max, timeout).run();
    let keep = keep(redis.apart(), Arc::clone(config), session.clone(), notify, Arc::clone(activity));
    let until = closed.clone();
    let work = async move {
        tokio::select! {
            biased;
            () = until.cancelled() => {}
            // What blocks its thread is watched also once the lease is lost.
            _ = futures_util::future::join(keep, watch) => {}
        }
    };
    // A subscriber that is set for the caller's thread alone is told as well.
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

/// Renews the lease while the loop turns, and sweeps over other names, until the lease is lost.
async fn keep(redis: Redis, config: Arc<WorkerConfig>, session: Session, notices: mpsc::Sender<Notice>, activity: Arc<Activity>) {
    let mut conn: Option<Connection> = None;
    let mut renew_at = Instant::now() + config.lease / 3;
    let mut sweep_at = Instant::now();
    let mut backoff = GrowingWait::new(Duration::from_millis(20), config.lease / 10);
    loop {
        sleep_until(renew_at.min(sweep_at)).await;
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
        let done = if renews && !lets_go { renew(&mut open, &config, &session).await } else { Ok(None) };
        let mut may_have_lapsed = false;
        let done = match done {
            // A sweep that failed counts as well: behind an outage, leases may have ended whose
            // processes live.
            Ok(None) if sweeps => sweep(&mut open, &config, redis.sweeps()).await.map(|swept| {
                may_have_lapsed = swept.is_ahead;
                swept.found.then_some(Notice::Wake)
            }),
            done => done,
        };
        match done {
            Ok(notice) => {
                redis.outage().answered(open.made_at());
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
                    sweep_at = now + config.sweep;
                }
                match notice {
                    // A loop that stands still has been told often enough.
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

async fn renew(conn: &mut Connection, config: &WorkerConfig, session: &Session) -> Result<Option<Notice>, ScriptError> {
    let call = wire::renew(conn, &config.keys, &config.name, &session.token, config.lease, config.concurrency);
    match around!("renew", call).await? {
        Renewed::Renewed { strays: 0 } => Ok(None),
        Renewed::Renewed { strays } => {
            debug!(strays, "recover: strays went back to the markers");
            Ok(Some(Notice::Wake))
        }
        Renewed::Lapsed => Ok(Some(Notice::Lost(Lost::Lapsed))),
        Renewed::Fenced { lease } => Ok(Some(Notice::Lost(Lost::Fenced(lease)))),
    }
}

/// Gives the name back; what the slots still own is held, due at once. Answers how many objects
/// that were, or nothing if `deadline` passed before Redis answered.
pub(crate) async fn detach(redis: &Redis, config: &WorkerConfig, session: &Session, deadline: Instant) -> Option<u64> {
    let detached = tokio::time::timeout_at(deadline, async {
        loop {
            let Ok(mut conn) = redis.reconnect().await else { return None };
            match around!("detach", wire::detach(&mut conn, &config.keys, &config.name, &session.token)).await {
                Ok(Detached::Detached { held }) => return Some(held),
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

/// Finds the key of a wrong type that made a script fail. Where Redis does not answer, the error
/// says no more than it did.
pub(crate) async fn wrong_type(redis: &Redis, config: &WorkerConfig, error: ScriptError) -> WorkerError {
    let looked = tokio::time::timeout(config.response_timeout, async {
        let mut conn = match redis.connect().await {
            Ok(conn) => conn,
            // The first script on the new connection met the same key, and names it.
            Err(named @ WorkerError::WrongType { .. }) => return Some(named),
            Err(_) => return None,
        };
        let registered: Result<Option<String>, _> =
            redis::cmd("HGET").arg(config.keys.event_workers()).arg(&config.name).query_async(&mut conn).await;
        // The scripts look at every slot the name ever had.
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
        for (kind, suffix) in WORKER_KINDS.iter().filter(|(kind, _)| *kind != "worker_lease") {
            all.push((format!("{}event.worker:{name}.{slot}{suffix}", keys.prefix()), expected(kind)));
        }
    }
    all
}
