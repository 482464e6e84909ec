//! The calls that set, remove, pause, resume, run or list cron jobs.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::{CRON_SET, CRONS};
use crate::wire::reply::Reply;
use crate::wire::values::CronValue;

/// The change of a cron job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CronStep<'a> {
    /// Set the job.
    Set {
        /// The job, with a new id. Whether it is paused, and since when its schedule is set, does
        /// not matter.
        job: &'a CronValue,
        /// The time of the first tick, in ms since the epoch; `None` if there is no tick.
        next_ms: Option<u64>,
        /// Whether the event is also queued now.
        now: bool,
        /// The most jobs that a namespace may have.
        jobs_max: u64,
    },
    /// Remove the job.
    Remove,
    /// Pause the job.
    Pause,
    /// Resume the job.
    Resume {
        /// The id of the paused job.
        id: &'a str,
        /// A new id for the job.
        new_id: &'a str,
        /// The time of the next tick, in ms since the epoch; `None` if there is no tick.
        next_ms: Option<u64>,
    },
    /// Run the job now: queue its event once.
    Run,
}

/// The result of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CronDone {
    /// The job is set. Before, no job had this name.
    New,
    /// The job is set. It has replaced another job of this name.
    Replaced,
    /// The job was set before with the same schedule, object and event. Nothing has changed.
    Same,
    /// The job is removed.
    Removed,
    /// The job is paused.
    Paused,
    /// The job is resumed.
    Resumed,
    /// The event is queued.
    Ran,
    /// No job has this name.
    NotSet,
    /// The job was not resumed: it has another id by now, or it is not paused.
    Changed,
    /// The stored job is invalid. Only setting or removing the job is possible.
    Invalid,
    /// The maximum number of jobs is reached; the value is the present number. The call changed
    /// nothing.
    TooMany(u64),
}

/// Changes a cron job. It is safe to repeat any call except [`CronStep::Run`], which queues the
/// event each time.
pub async fn cron(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    name: &str,
    step: CronStep<'_>,
) -> Result<CronDone, ScriptError> {
    let tick = |next_ms: Option<u64>| next_ms.map_or_else(|| "inf".to_owned(), |ms| ms.to_string());
    let mut cmd = begin(&CRON_SET, &keys.events_cron(), keys, by);
    match step {
        CronStep::Set {
            job,
            next_ms,
            now,
            jobs_max,
        } => {
            cmd.arg("set")
                .arg(name)
                .arg(job.json())
                .arg(&job.event)
                .arg(tick(next_ms));
            cmd.arg(u8::from(now)).arg(jobs_max);
        }
        CronStep::Remove => drop(cmd.arg("remove").arg(name)),
        CronStep::Pause => drop(cmd.arg("pause").arg(name)),
        CronStep::Resume {
            id,
            new_id,
            next_ms,
        } => {
            cmd.arg("resume")
                .arg(name)
                .arg(id)
                .arg(new_id)
                .arg(tick(next_ms));
        }
        CronStep::Run => drop(cmd.arg("run").arg(name)),
    }
    let (word, mut reply) = call(conn, "cron", &CRON_SET, &cmd).await?;
    match word.as_str() {
        "set" => match reply.text()?.as_str() {
            "new" => Ok(CronDone::New),
            "replaced" => Ok(CronDone::Replaced),
            "same" => Ok(CronDone::Same),
            word => Err(reply.wrong(format!("unknown result {word:?}"))),
        },
        "removed" => Ok(CronDone::Removed),
        "paused" => Ok(CronDone::Paused),
        "resumed" => Ok(CronDone::Resumed),
        "ran" => Ok(CronDone::Ran),
        "not_set" => Ok(CronDone::NotSet),
        "changed" => Ok(CronDone::Changed),
        "invalid" => Ok(CronDone::Invalid),
        "too_many" => Ok(CronDone::TooMany(reply.count()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

/// A cron job, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronReply {
    /// The job's name.
    pub name: Vec<u8>,
    /// The job's value in `events.cron`, or the first 16 KiB of the value.
    pub value: Vec<u8>,
    /// The size of the whole value.
    pub value_bytes: u64,
    /// The time of the next tick, as stored in Redis; empty if there is no next tick.
    pub next: String,
    /// The value of `events.cron.last`, which has the last run; empty if there is no value.
    pub last: String,
}

/// The jobs to read.
#[derive(Debug, Clone, Copy)]
pub enum CronQuery<'a> {
    /// The job of this name.
    One(&'a [u8]),
    /// A page of all jobs. The numbers: the cursor that came with the previous page (0 for the
    /// first page), and the approximate number of jobs in the page (1 to 100).
    All(u64, usize),
}

/// Returns the time of Redis in ms since the epoch, the cursor of the next page (0 after the last
/// page), and the jobs.
pub async fn crons(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    which: CronQuery<'_>,
) -> Result<(u64, u64, Vec<CronReply>), ScriptError> {
    let mut cmd = CRONS.with_key(&keys.events_cron());
    cmd.arg(keys.prefix());
    match which {
        CronQuery::One(name) => cmd.arg("one").arg(name),
        CronQuery::All(cursor, count) => cmd.arg("all").arg(cursor).arg(count),
    };
    let mut reply = Reply::of("crons", CRONS.call(conn, &cmd).await?)?;
    let word = reply.text()?;
    if word != "crons" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let (now_ms, cursor) = (reply.number()?, reply.number()?);
    let mut jobs = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut one = reply.array()?;
        let (name, value, value_bytes) = (one.bytes()?, one.bytes()?, one.count()?);
        jobs.push(CronReply {
            name,
            value,
            value_bytes,
            next: one.text()?,
            last: one.lossy()?,
        });
    }
    Ok((now_ms, cursor, jobs))
}
