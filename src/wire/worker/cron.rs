//! The call of the script `cron`: it fires ticks of cron jobs, and returns the jobs that are due. A
//! tick is one time of a job's schedule; to fire it means to queue the job's event.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::CRON;
use crate::wire::reply::Reply;

/// The most jobs that one call fires or returns.
pub const JOBS_MAX: usize = 16;

/// A cron job that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJob {
    /// The job's name.
    pub name: Vec<u8>,
    /// The job's id, which changes when the job is set differently or resumed.
    pub id: Vec<u8>,
    /// The job without its event, as JSON: a [`CronValue`](crate::wire::values::CronValue).
    pub json: Vec<u8>,
    /// The size of the job's event in bytes.
    pub event_bytes: usize,
    /// The time up to which the job's ticks are handled (fired or skipped), in ms since the epoch.
    pub handled_ms: u64,
}

/// The ticks of one job that the call fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticks {
    /// The job, as the previous call returned it.
    pub job: DueJob,
    /// The time up to which the job's ticks are handled after this call, in ms since the epoch.
    pub handled_ms: u64,
    /// The time of the next tick, in ms since the epoch; `None` if there is no next tick.
    pub next_ms: Option<u64>,
    /// The number of times that the call queues the event, up to 1,000; `None`: the call only
    /// postpones the job for a minute.
    pub events: Option<usize>,
}

/// The result of one call of `cron`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The time of Redis in ms since the epoch.
    pub now_ms: u64,
    /// The time until the next job is due; `None` if no job will be due.
    pub next_due: Option<Duration>,
    /// The number of jobs that have fired.
    pub jobs: u64,
    /// The number of events queued.
    pub events: u64,
    /// The names of the jobs that could not fire, each with the reason.
    pub wrong: Vec<(Vec<u8>, String)>,
    /// The jobs that are due now.
    pub due: Vec<DueJob>,
}

/// Fires these ticks, of at most [`JOBS_MAX`] jobs, and returns up to [`JOBS_MAX`] jobs that are
/// due.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call: a tick that is
/// handled does not fire again.
pub async fn cron(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    ticks: &[Ticks],
) -> Result<Fired, ScriptError> {
    let mut cmd = CRON.with_key(&keys.events_cron_next());
    cmd.arg(keys.prefix()).arg(JOBS_MAX);
    for Ticks {
        job,
        handled_ms,
        next_ms,
        events,
    } in ticks
    {
        cmd.arg(&job.name)
            .arg(&job.id)
            .arg(job.handled_ms)
            .arg(*handled_ms);
        cmd.arg(next_ms.map_or_else(|| "inf".to_owned(), |ms| ms.to_string()));
        cmd.arg(events.map_or_else(|| "-1".to_owned(), |events| events.to_string()));
    }
    let mut reply = Reply::of("cron", CRON.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "cron" => {}
        "denied" => return Err(ScriptError::Denied(reply.text()?)),
        word => return Err(reply.wrong(format!("unknown status {word:?}"))),
    }
    let (now_ms, next) = (reply.number()?, reply.int()?);
    let next_due = u64::try_from(next).ok().map(Duration::from_millis);
    let (jobs, events) = (reply.count()?, reply.count()?);
    let (mut pairs, mut wrong) = (reply.array()?, Vec::new());
    while pairs.len() > 0 {
        wrong.push((pairs.bytes()?, pairs.lossy()?));
    }
    let mut due = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut job = reply.array()?;
        let (name, id, json) = (job.bytes()?, job.bytes()?, job.bytes()?);
        let event_bytes = usize::try_from(job.count()?).unwrap_or(usize::MAX);
        due.push(DueJob {
            name,
            id,
            json,
            event_bytes,
            handled_ms: job.number()?,
        });
    }
    Ok(Fired {
        now_ms,
        next_due,
        jobs,
        events,
        wrong,
        due,
    })
}
