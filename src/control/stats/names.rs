//! Reads the state of worker processes: their leases, their statuses and the sizes of their batches.

use redis::aio::ConnectionLike;
use serde::Serialize;

use super::super::names::slots_in;
use super::super::{ControlError, reply};
use super::{COMMANDS_PER_CALL, ask};
use crate::keys::Keys;
use crate::wire::values::Registration;
use crate::worker::WorkerStatus;

/// Maximum number of bytes of a status that are read. No worker writes a longer status.
const STATUS_BYTES_MAX: usize = 8192;

/// Maximum number of workers whose batches [`Control::stats`](crate::control::Control::stats)
/// counts. Further slots are not read.
pub const WORKERS_MAX: u64 = 20_000;

/// The state of one worker process in Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NameStats {
    /// NAME of the process.
    pub name: String,
    /// Number of slots registered.
    pub slots: u32,
    /// Whether the process has a lease.
    pub alive: bool,
    /// Time until the lease ends if it is not renewed, ms.
    pub lease_ttl_ms: Option<u64>,
    /// Host of the process, as the lease names it.
    pub host: Option<String>,
    /// Process id on the host of the process.
    pub pid: Option<String>,
    /// Start time of the process, as the lease names it.
    pub process_start: Option<String>,
    /// Last time, in ms since the epoch, at which the process attached, renewed its lease or
    /// detached, or at which another process took over from it; 0 if unknown.
    pub last_seen_ms: u64,
    /// The last status that the process wrote; none if the status is gone, or if the process has a
    /// version that writes no status.
    pub status: Option<WorkerStatus>,
    /// Number of slots that were read for the two counts below. It is less than `slots` only if
    /// there are more slots than one call reads.
    pub slots_read: u32,
    /// Number of these slots that have a batch.
    pub slots_busy: u64,
    /// Number of events in their batches.
    pub events_in_flight: u64,
}

/// Makes the entry of a registered name from its value in `event.workers`. The other fields are
/// still empty.
pub(in super::super) fn registered(name: String, value: &str) -> NameStats {
    let last_seen_ms = value
        .parse::<Registration>()
        .map_or(0, |registration| registration.last_seen_ms);
    NameStats {
        name,
        slots: slots_in(value).unwrap_or(0),
        last_seen_ms,
        ..NameStats::default()
    }
}

/// Reads the lease, the status and the batches of each of these names. Of the slots, only the first
/// `slots_max` are read, in the order of the names.
pub(in super::super) async fn read<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    workers: &mut [NameStats],
    slots_max: u64,
) -> Result<(), ControlError> {
    leases(conn, keys, workers).await?;
    batches(conn, keys, workers, slots_max).await
}

async fn leases<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    workers: &mut [NameStats],
) -> Result<(), ControlError> {
    for some in workers.chunks_mut(COMMANDS_PER_CALL / 3) {
        let mut pipe = redis::pipe();
        for name in &*some {
            let lease = keys.worker_lease(&name.name);
            pipe.cmd("GET").arg(&lease).cmd("PTTL").arg(lease);
            pipe.cmd("GETRANGE")
                .arg(keys.worker_status(&name.name))
                .arg(0)
                .arg(STATUS_BYTES_MAX - 1);
        }
        let answers = ask(conn, "the leases", &mut pipe).await?;
        for (name, three) in some.iter_mut().zip(answers.chunks_exact(3)) {
            let Some(lease) = three[0].as_ref().ok().and_then(reply::text) else {
                continue;
            };
            let mut parts = lease.split(' ').skip(1).map(str::to_owned);
            name.alive = true;
            (name.host, name.pid, name.process_start) = (parts.next(), parts.next(), parts.next());
            name.lease_ttl_ms = three[1].as_ref().ok().and_then(reply::number);
            let status = three[2].as_ref().ok().and_then(reply::text);
            name.status = status.and_then(|status| serde_json::from_str(&status).ok());
        }
    }
    Ok(())
}

/// Returns the error of a sink if the sinks of all these processes are unavailable. A process without
/// a status counts as one that delivers.
pub(in super::super) async fn sinks_down<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    names: Vec<String>,
) -> Result<Option<String>, ControlError> {
    let named = |name| NameStats {
        name,
        ..NameStats::default()
    };
    let mut workers: Vec<_> = names.into_iter().map(named).collect();
    leases(conn, keys, &mut workers).await?;
    let alive = workers.into_iter().filter(|worker| worker.alive);
    let errors: Option<Vec<String>> = alive
        .map(|worker| {
            let status = worker.status?;
            status.sink_down_ms.map(|_| status.sink_error)
        })
        .collect();
    Ok(errors.and_then(|errors| errors.into_iter().next()))
}

/// Counts the batches of the slots, of at most `slots_max` slots in total.
async fn batches<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    workers: &mut [NameStats],
    slots_max: u64,
) -> Result<(), ControlError> {
    let mut left = slots_max;
    for name in workers {
        let slots: Vec<u32> =
            (0..name.slots.min(u32::try_from(left).unwrap_or(u32::MAX))).collect();
        left -= slots.len() as u64;
        name.slots_read = slots.len() as u32;
        for some in slots.chunks(COMMANDS_PER_CALL) {
            let mut pipe = redis::pipe();
            for slot in some {
                pipe.cmd("LLEN")
                    .arg(keys.worker_event(&format!("{}.{slot}", name.name)));
            }
            for answer in ask(conn, "the batches", &mut pipe).await? {
                let events = answer.as_ref().ok().and_then(reply::number).unwrap_or(0);
                name.slots_busy += u64::from(events > 0);
                name.events_in_flight += events;
            }
        }
    }
    Ok(())
}
