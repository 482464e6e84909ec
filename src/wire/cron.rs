//! The call of the script `cron`: it fires ticks of cron jobs, and returns the jobs that are due.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::CRON;
use super::reply::Reply;
use crate::keys::Keys;

/// The most jobs that one call fires or returns.
pub const JOBS_MAX: usize = 16;

/// A cron job that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJob {
    /// The job's name.
    pub name: Vec<u8>,
    /// Its id, which changes with every change of the job.
    pub id: Vec<u8>,
    /// The time of its last change, in ms since the epoch.
    pub since_ms: u64,
    /// Its schedule, as JSON.
    pub plan: Vec<u8>,
    /// The size of its event.
    pub event_bytes: usize,
    /// Its ticks up to this time are handled, in ms since the epoch.
    pub handled_ms: u64,
}

/// The ticks of a job to fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticks {
    /// The job, as the call before returned it.
    pub job: DueJob,
    /// The ticks up to this time are handled with this call.
    pub handled_ms: u64,
    /// The next tick; `None` if there is none.
    pub next_ms: Option<u64>,
    /// How often the event is queued, up to 1,000; `None`: the job is postponed for a minute.
    pub events: Option<usize>,
}

/// The result of one call of `cron`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The time of Redis in ms since the epoch.
    pub now_ms: u64,
    /// The time until the next job is due; `None` if none will be.
    pub next_due: Option<Duration>,
    /// The number of jobs that have fired.
    pub jobs: u64,
    /// The number of events queued.
    pub events: u64,
    /// The jobs that could not fire, each with the reason.
    pub wrong: Vec<(Vec<u8>, String)>,
    /// The jobs that are due now.
    pub due: Vec<DueJob>,
}

/// Fires these ticks (at most [`JOBS_MAX`]), and returns up to [`JOBS_MAX`] jobs that are due.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call: ticks that are
/// handled do not fire again.
pub async fn cron(conn: &mut impl ConnectionLike, keys: &Keys, ticks: &[Ticks]) -> Result<Fired, ScriptError> {
    let mut cmd = CRON.with_key(&keys.events_cron_next());
    cmd.arg(keys.prefix()).arg(JOBS_MAX);
    for Ticks { job, handled_ms, next_ms, events } in ticks {
        cmd.arg(&job.name).arg(&job.id).arg(job.handled_ms).arg(*handled_ms);
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
    let (mut told, mut wrong) = (reply.array()?, Vec::new());
    while told.len() > 0 {
        wrong.push((told.bytes()?, told.lossy()?));
    }
    let mut due = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut job = reply.array()?;
        let (name, id, since_ms, plan) = (job.bytes()?, job.bytes()?, job.number()?, job.bytes()?);
        let event_bytes = usize::try_from(job.count()?).unwrap_or(usize::MAX);
        due.push(DueJob { name, id, since_ms, plan, event_bytes, handled_ms: job.number()? });
    }
    Ok(Fired { now_ms, next_due, jobs, events, wrong, due })
}
