//! The lease: how a process takes its worker name, keeps it, and gives it back.
//!
//! A worker name is *free* (it has no lease) or *taken* (it has a lease with a token). A process
//! does not decide by its own clock that it still has the lease: every script compares the token
//! in Redis. So a process that was paused for longer than its lease notices the loss at its next
//! call. If the process dies, the lease ends. Then other processes adopt the name's objects
//! (`recover`), or the next process of the name attaches.
//!
//! A separate thread renews the lease (`keeper`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::ErrorKind;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::keeper::Notice;
use crate::connection::errors::is_outage;
use crate::failpoints::around;
use crate::keys::{Keys, SHARED_KINDS, WORKER_KINDS, is_of_process, type_of};
use crate::wire::values::{Holder, Registration};
use crate::wire::{self, Attach, Attached, Detached, Renewed, ScriptError};
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::session::connect::{Connection, Redis, give_up, is_lasting};
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::watch::activity::Activity;
use crate::worker::watch::figures::Call;
use crate::worker::watch::logged;

/// The time, beyond its grace, for which a stopping process waits for Redis to detach it.
pub(crate) const DETACH_PATIENCE: Duration = Duration::from_secs(2);

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
    /// The time until which the lease is held.
    pub(crate) held: Arc<Held>,
}

/// The time until which a lease is held for certain, by the clock of this process. The lease itself
/// is in Redis, so it may be held for longer.
#[derive(Debug)]
pub(crate) struct Held(Mutex<Instant>);

impl Held {
    /// Returns the time of a lease that a call has made or renewed. The call was sent at this time.
    fn since(sent: Instant, lease: Duration) -> Self {
        Self(Mutex::new(sent + lease))
    }

    fn renewed(&self, sent: Instant, lease: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sent + lease;
    }

    /// Returns whether the lease may have ended: the process has stood still, or Redis is away.
    /// Another process may have its objects.
    pub(crate) fn may_be_over(&self) -> bool {
        Instant::now() >= *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            let counts = if session.let_go {
                "; this counts as a crash"
            } else {
                ""
            };
            warn!(%name, "recover: the lease lapsed; dropping the batches in hand and attaching again{counts}");
            Ok(Duration::ZERO)
        }
        Lost::Fenced(lease) if !is_changed => Err(WorkerError::Fenced {
            name: name.clone(),
            lease,
        }),
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
    let Ok(mut conn) = redis.connect().await else {
        return false;
    };
    redis::cmd("HEXISTS")
        .arg(config.keys.event_workers())
        .arg(&config.name)
        .query_async(&mut conn)
        .await
        .unwrap_or(false)
}

/// The end of the token of a process with a random name (`lua/values/registry.lua`).
const ONCE: &str = "-once";

/// Takes the worker name. `before` is this process' session that lapsed. At a start, `before` is
/// `None`; then this function waits at most `connect_timeout` for a Redis that cannot be reached.
/// With `before`, it waits without a limit.
pub(crate) async fn attach(
    redis: &Redis,
    config: &WorkerConfig,
    before: Option<&Session>,
) -> Result<Session, WorkerError> {
    let token = uuid::Uuid::new_v4().to_string();
    // The scripts forget a name with such a token soon after its process has detached.
    let token: Arc<str> = if config.has_random_name() {
        token + ONCE
    } else {
        token
    }
    .into();
    // The holder includes the length of the lease, because Redis itself keeps only the time at
    // which a lease ends, and Redis' clock may step.
    let holder = Holder::current().with_length(config.lease);
    let mut displace = String::new();
    let mut awaited: Option<(String, Instant)> = None;
    let deadline = before.is_none().then(|| {
        Instant::now()
            .checked_add(config.connect_timeout)
            .unwrap_or_else(far_away)
    });
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
            before: before
                .filter(|session| !session.let_go)
                .map_or("", |session| &session.token),
            crashes_max: config.crashes_held(),
            suspects: config.suspects(),
        };
        let sent = Instant::now();
        match around!("attach", wire::attach(&mut conn, &config.keys, &args)).await {
            Ok(Attached::Attached { kept, held, lost }) => {
                redis.figures().lost_keys(logged::quarantined_all(&lost));
                redis.outage().answered(conn.made_at());
                redis.figures().attached(kept > 0, before.is_some());
                info!(name = %config.name, slots = config.concurrency, kept, held, "recover: attached");
                return Ok(Session {
                    token,
                    changes,
                    again: before.is_some(),
                    let_go: false,
                    held: Arc::new(Held::since(sent, config.lease)),
                });
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
                if deadline
                    .is_some_and(|deadline| Instant::now() >= deadline || !is_outage(&source))
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

/// Logs a failed call that will be repeated: Redis is away, or a shared key is wrong.
pub(crate) async fn failed(
    redis: &Redis,
    config: &WorkerConfig,
    made_at: Instant,
    error: ScriptError,
) {
    if !error.is_obstacle() {
        redis.outage().failed(made_at, &error.describe());
    } else if !error.is_wrong_type() {
        redis.outage().obstructed(made_at, &error.to_string());
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
    let (host, pid) = Holder::of_lease(lease).map_or_else(
        || (lease.to_owned(), 0),
        |by| (by.host_name().to_owned(), by.pid()),
    );
    WorkerError::InUse {
        name: config.name.clone(),
        host,
        pid,
    }
}

pub(super) async fn renew(
    redis: &Redis,
    conn: &mut Connection,
    config: &WorkerConfig,
    session: &Session,
) -> Result<Option<Notice>, ScriptError> {
    let call = wire::renew(
        conn,
        &config.keys,
        &config.name,
        &session.token,
        config.lease,
        config.concurrency,
    );
    let sent = Instant::now();
    match redis.timed(Call::Renew, around!("renew", call)).await? {
        Renewed::Renewed { strays, lost } => {
            session.held.renewed(sent, config.lease);
            redis.figures().lost_keys(logged::quarantined_all(&lost));
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
pub(crate) async fn detach(
    redis: &Redis,
    config: &WorkerConfig,
    session: &Session,
    deadline: Instant,
) -> Option<u64> {
    let detached = tokio::time::timeout_at(deadline, async {
        loop {
            let Ok(mut conn) = redis.reconnect().await else {
                return None;
            };
            match around!(
                "detach",
                wire::detach(&mut conn, &config.keys, &config.name, &session.token)
            )
            .await
            {
                Ok(Detached::Detached { held, lost }) => {
                    redis.figures().lost_keys(logged::quarantined_all(&lost));
                    return Some(held);
                }
                Ok(Detached::Lapsed | Detached::Fenced { .. }) => return Some(0),
                Err(error) if is_lasting(&error) || error.is_wrong_type() => {
                    warn!(%error, "recover: detach failed");
                    return None;
                }
                Err(error) => {
                    redis.outage().failed(conn.made_at(), &error.describe());
                    give_up(conn);
                }
            }
        }
    });
    detached.await.ok().flatten()
}

/// Finds the key whose wrong type made a script fail, and returns an error that names it. If no
/// such key is found or Redis does not reply, returns the given error.
pub(crate) async fn wrong_type(
    redis: &Redis,
    config: &WorkerConfig,
    error: ScriptError,
) -> WorkerError {
    let looked = tokio::time::timeout(config.response_timeout, async {
        let mut conn = match redis.connect().await {
            Ok(conn) => conn,
            // The first script on the new connection met the same key, and its error names the key.
            Err(named @ WorkerError::WrongType { .. }) => return Some(named),
            Err(_) => return None,
        };
        let registered: Result<Option<String>, _> = redis::cmd("HGET")
            .arg(config.keys.event_workers())
            .arg(&config.name)
            .query_async(&mut conn)
            .await;
        // The scripts look at every slot that the name ever had.
        let registered = registered
            .ok()
            .flatten()
            .and_then(|value| value.parse::<Registration>().ok());
        let slots = registered.map_or(0, |registered| registered.slots as usize);
        for (key, expected) in typed_keys(&config.keys, &config.name, config.concurrency.max(slots))
        {
            let found: String = redis::cmd("TYPE")
                .arg(&key)
                .query_async(&mut conn)
                .await
                .ok()?;
            if found != expected && found != "none" {
                return Some(WorkerError::WrongType {
                    key,
                    found,
                    expected,
                });
            }
        }
        None
    });
    looked.await.ok().flatten().unwrap_or_else(|| error.into())
}

fn typed_keys(keys: &Keys, name: &str, slots: usize) -> Vec<(String, &'static str)> {
    let expected = |kind: &str| type_of(kind).unwrap_or("string");
    let mut all: Vec<_> = SHARED_KINDS
        .iter()
        .map(|(kind, key)| ([keys.prefix(), key].concat(), expected(kind)))
        .collect();
    all.push((keys.worker_lease(name), "string"));
    for slot in 0..slots {
        for (kind, suffix) in WORKER_KINDS.iter().filter(|(kind, _)| !is_of_process(kind)) {
            all.push((
                format!("{}event.worker:{name}.{slot}{suffix}", keys.prefix()),
                expected(kind),
            ));
        }
    }
    all
}
