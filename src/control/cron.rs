//! Cron jobs: events that are queued again and again, by a schedule.

use std::fmt;

use redis::RedisError;
use redis::aio::ConnectionLike;
use serde::{Serialize, Serializer};

use super::{Control, ControlError, Cursor, RowEvent, reply};
use crate::cron::{CronSchedule, Missed};
use crate::escape;
use crate::event::{EVENT_BYTES_MAX, IntoEvent, ScheduleKey};
use crate::keys::Keys;
use crate::wire::operator::{self, By, CronQuery, CronReply, CronStep};
use crate::wire::values::{CronLast, CronValue, DueTime};

pub use crate::wire::operator::CronDone;

/// Maximum number of cron jobs of a namespace.
pub const JOBS_MAX: u64 = 10_000;

/// Maximum number of jobs that one call reads. If the namespace has few jobs, a call may return all
/// of them, up to 128.
pub const PER_CALL_MAX: usize = 100;

/// How often [`Control::resume_cron`] reads the job again. It does so if somebody else changes the
/// job between the read and the write.
const TRIES: usize = 8;

/// A cron job.
///
/// It serializes as `{"name":"invoices","schedule":"0 6 1 * *","zone":"Europe/Berlin","object":
/// "billing","event":{…},"missed":"once","paused":false,"next_ms":1700,"last_ms":1600}`.
/// An event above 16 KiB is left out, and `event_bytes` has its size. A job that this version of
/// seriatim cannot read has only a name and `"invalid":true`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronJob {
    /// Name of the job; bytes that are not UTF-8 are shown as U+FFFD.
    pub name: String,
    /// [Escaped](crate::escape::name) form of `name`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_escaped: Option<String>,
    /// All other values of the job; none if this version of seriatim cannot read the job.
    #[serde(flatten, serialize_with = "or_invalid")]
    pub detail: Option<CronDetail>,
}

/// The settings and times of a [`CronJob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronDetail {
    /// The schedule, in the text with which it was set.
    pub schedule: String,
    /// The time zone.
    pub zone: String,
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// The event; left out if it has more than about 16 KiB.
    #[serde(flatten)]
    pub event: RowEvent,
    /// Treatment of ticks that came while no worker ran.
    pub missed: Missed,
    /// Whether the job is paused.
    pub paused: bool,
    /// Time of the next tick, ms since the epoch; none if the job is paused, or never due again. If
    /// a tick could not fire, the time of the next try.
    pub next_ms: Option<u64>,
    /// Time of the last run, ms since the epoch; none before the first run.
    pub last_ms: Option<u64>,
    /// The reason why the job does not fire, and the remedy; none if it fires as its schedule says,
    /// or is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Serializes the settings of a job; if the job cannot be read, that it is invalid.
fn or_invalid<S: Serializer>(
    detail: &Option<CronDetail>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match detail {
        Some(detail) => detail.serialize(serializer),
        None => serializer.collect_map([("invalid", true)]),
    }
}

/// One page of cron jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronPage {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The jobs, in no order.
    pub jobs: Vec<CronJob>,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

/// A cron job to set: made by [`CronDraft::new`], passed to [`Control::set_cron`].
///
/// ```no_run
/// use seriatim::control::{By, Control, CronDraft};
/// use seriatim::cron::{CronSchedule, Missed};
/// use seriatim::event::Json;
///
/// # async fn run(control: &Control) -> Result<(), Box<dyn std::error::Error>> {
/// let schedule = CronSchedule::new("30 9 * * MON-FRI", Some("Europe/Berlin"))?;
/// let event = Json::new(r#"{"type":"daily"}"#);
/// let job = CronDraft::new("report", schedule, "reports", event).missed(Missed::Skip);
/// control.set_cron(By { who: "reports@host", why: "start" }, job).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is set before Control::set_cron"]
pub struct CronDraft<E> {
    name: String,
    schedule: CronSchedule,
    object: String,
    event: E,
    missed: Missed,
    now: bool,
}

impl<E: IntoEvent> CronDraft<E> {
    /// Begins the draft of a job. `name` has 1 to 256 bytes of UTF-8 without control characters.
    pub fn new(
        name: impl Into<String>,
        schedule: CronSchedule,
        object: impl Into<String>,
        event: E,
    ) -> Self {
        Self {
            name: name.into(),
            schedule,
            object: object.into(),
            event,
            missed: Missed::Once,
            now: false,
        }
    }

    /// Sets the treatment of ticks that come while no worker runs. Default: [`Missed::Once`].
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// The event is also queued once when the job is set, if the job is new or changed.
    pub fn now(mut self) -> Self {
        self.now = true;
        self
    }
}

impl Control {
    /// Sets a cron job: a worker process queues its event at each tick of its schedule. If a job of
    /// this name exists, it is replaced; if that job was paused, the new one is paused, too. If the
    /// existing job has the same schedule, object and event, nothing changes. So a program may set
    /// its jobs at each start. The change takes effect within a second. It is recorded in the
    /// [actions](Control::actions).
    ///
    /// Returns [`CronDone::New`], [`CronDone::Replaced`] or [`CronDone::Same`]. The call is one
    /// atomic step. Calling again is safe. Dropping the future does not undo the step.
    ///
    /// # Errors
    /// [`ControlError::Cron`] for a schedule without a tick in the future.
    /// [`ControlError::CronName`], [`ControlError::Name`] and [`ControlError::Event`] for an
    /// invalid name, object or event. [`ControlError::CronJobs`] if there are [`JOBS_MAX`] jobs
    /// already. Other errors if Redis cannot be asked or forbids it.
    pub async fn set_cron<E: IntoEvent>(
        &self,
        by: By<'_>,
        job: CronDraft<E>,
    ) -> Result<CronDone, ControlError> {
        let name = ScheduleKey::new(job.name).map_err(ControlError::CronName)?;
        let object = self.keys.object(&job.object)?;
        let event = job
            .event
            .into_event(EVENT_BYTES_MAX)
            .map_err(ControlError::Event)?;
        let mut conn = self.connection();
        let now_ms = reply::now_ms(&mut conn).await?;
        let next_ms = first_tick(&job.schedule, now_ms, now_ms)?;
        let value = CronValue {
            id: new_id(),
            is_paused: false,
            since_ms: now_ms,
            object: object.as_str().to_owned(),
            schedule: job.schedule.as_str().to_owned(),
            zone: job.schedule.zone().to_owned(),
            missed: job.missed,
            event: event.into(),
        };
        let step = CronStep::Set {
            job: &value,
            next_ms: Some(next_ms),
            now: job.now,
            jobs_max: JOBS_MAX,
        };
        match operator::cron(&mut conn, &self.keys, by, name.as_str(), step).await? {
            CronDone::TooMany(jobs) => Err(ControlError::CronJobs(jobs)),
            done => Ok(done),
        }
    }

    /// Removes a cron job. Returns [`CronDone::Removed`] or [`CronDone::NotSet`]. Events of the job
    /// that are already queued stay in the queue. The step is recorded in the
    /// [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// As [`set_cron`](Self::set_cron).
    pub async fn remove_cron(&self, by: By<'_>, name: &str) -> Result<CronDone, ControlError> {
        self.cron_step(by, name, CronStep::Remove).await
    }

    /// Pauses a cron job: it has no ticks until it is resumed. Returns [`CronDone::Paused`] or
    /// [`CronDone::NotSet`]. The step is recorded in the [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// As [`set_cron`](Self::set_cron).
    pub async fn pause_cron(&self, by: By<'_>, name: &str) -> Result<CronDone, ControlError> {
        self.cron_step(by, name, CronStep::Pause).await
    }

    /// Queues the event of a cron job now, also if the job is paused. The time of the next tick
    /// stays the same. Returns [`CronDone::Ran`] or [`CronDone::NotSet`]. The step is recorded in
    /// the [actions](Control::actions).
    ///
    /// The call is one atomic step. A second call queues a second event. Dropping the future does
    /// not undo the step.
    ///
    /// # Errors
    /// As [`set_cron`](Self::set_cron).
    pub async fn run_cron(&self, by: By<'_>, name: &str) -> Result<CronDone, ControlError> {
        self.cron_step(by, name, CronStep::Run).await
    }

    /// Resumes a paused cron job. Ticks that the job missed during the pause do not fire later.
    /// Returns [`CronDone::Resumed`], [`CronDone::NotSet`], or [`CronDone::Changed`] if the job was
    /// not paused. The step is recorded in the [actions](Control::actions).
    ///
    /// Calling again is safe. Dropping the future does not undo the step.
    ///
    /// # Errors
    /// As [`set_cron`](Self::set_cron).
    pub async fn resume_cron(&self, by: By<'_>, name: &str) -> Result<CronDone, ControlError> {
        let name = ScheduleKey::new(name).map_err(ControlError::CronName)?;
        let mut conn = self.connection();
        for _ in 0..TRIES {
            let which = CronQuery::One(name.as_str().as_bytes());
            let (now_ms, _, jobs) = operator::crons(&mut conn, &self.keys, which).await?;
            let Some(job) = jobs.into_iter().next() else {
                return Ok(CronDone::NotSet);
            };
            let value = CronValue::read(&job.value).ok_or_else(|| invalid(&name))?;
            if !value.is_paused {
                return Ok(CronDone::Changed);
            }
            let schedule = value.schedule().map_err(ControlError::Cron)?;
            let next_ms = Some(first_tick(&schedule, now_ms, value.since_ms)?);
            let step = CronStep::Resume {
                id: &value.id,
                new_id: &new_id(),
                next_ms,
            };
            match operator::cron(&mut conn, &self.keys, by, name.as_str(), step).await? {
                CronDone::Changed => {}
                CronDone::Invalid => return Err(invalid(&name)),
                done => return Ok(done),
            }
        }
        Ok(CronDone::Changed)
    }

    /// Reads about `count` cron jobs (1 to [`PER_CALL_MAX`]), in no order. A page may be empty
    /// although a next page exists. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `events.cron` is not a hash.
    pub async fn crons(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<CronPage, ControlError> {
        let number = |cursor: &Cursor| {
            let number = cursor
                .as_str()
                .strip_prefix(SCAN)
                .and_then(|text| text.parse().ok());
            number.ok_or_else(|| ControlError::Cursor(cursor.to_string()))
        };
        let which = CronQuery::All(
            after.map(number).transpose()?.unwrap_or(0),
            count.clamp(1, PER_CALL_MAX),
        );
        let (now_ms, cursor, jobs) =
            operator::crons(&mut self.connection(), &self.keys, which).await?;
        let next = (cursor != 0).then(|| Cursor::from(format!("{SCAN}{cursor}")));
        Ok(CronPage {
            now_ms,
            jobs: jobs.into_iter().map(|found| job(found, now_ms)).collect(),
            next,
        })
    }

    async fn cron_step(
        &self,
        by: By<'_>,
        name: &str,
        step: CronStep<'_>,
    ) -> Result<CronDone, ControlError> {
        let name = ScheduleKey::new(name).map_err(ControlError::CronName)?;
        match operator::cron(&mut self.connection(), &self.keys, by, name.as_str(), step).await? {
            CronDone::Invalid => Err(invalid(&name)),
            done => Ok(done),
        }
    }
}

/// Beginning of a cursor of cron jobs. The cursor of HSCAN follows it.
const SCAN: &str = "cron ";

fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn invalid(name: impl fmt::Display) -> ControlError {
    let answer = format!(
        "the cron job \"{name}\" has a form that this version does not know; set or remove it"
    );
    ControlError::Reply {
        what: "events.cron",
        answer,
    }
}

fn first_tick(schedule: &CronSchedule, now_ms: u64, since_ms: u64) -> Result<u64, ControlError> {
    let never = || ControlError::Cron(crate::cron::CronError::Never(schedule.as_str().to_owned()));
    schedule
        .next_after(now_ms, since_ms)
        .map_err(ControlError::Cron)?
        .ok_or_else(never)
}

/// The least time by which the handled ticks of a job are ahead of Redis' clock if they count as
/// ahead. The clock may have been set back by less without harm.
const AHEAD_MS: u64 = 60_000;

/// Returns the problem of a job whose ticks are handled up to a time ahead of Redis' clock, because
/// the clock was wrong or was set back.
pub(super) fn problem_of_clock(last: &str, now_ms: u64) -> Option<String> {
    let ahead_ms = CronLast::read(last)
        .handled_ms
        .checked_sub(now_ms)
        .filter(|ahead_ms| *ahead_ms > AHEAD_MS)?;
    Some(format!(
        "no tick fires for {} s, because Redis' clock was ahead by this time: to let it fire from now on, run `seriatim cron \
         pause` and `seriatim cron resume`",
        ahead_ms / 1000
    ))
}

/// Counts the jobs of which no tick fires for a time, because Redis' clock was ahead. Reads the
/// last run of each job, at most [`JOBS_MAX`].
///
/// # Errors
/// The error of Redis. `None`: the key has a wrong type.
pub(super) async fn ahead<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    now_ms: u64,
) -> Result<Option<u64>, RedisError> {
    let lasts = redis::cmd("HGETALL")
        .arg(keys.events_cron_last())
        .query_async::<Vec<(Vec<u8>, Vec<u8>)>>(conn)
        .await;
    match lasts {
        Ok(lasts) => Ok(Some(
            lasts
                .iter()
                .filter(|(_, last)| {
                    problem_of_clock(&String::from_utf8_lossy(last), now_ms).is_some()
                })
                .count() as u64,
        )),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the reason why a job does not fire, and the remedy.
fn problem(value: &CronValue, found: &CronReply, now_ms: u64) -> Option<String> {
    if value.is_paused {
        return None;
    }
    let next = value
        .schedule()
        .and_then(|schedule| schedule.next_after(now_ms, value.since_ms));
    match next {
        Err(error) => Some(format!("{error}; workers try again each minute")),
        Ok(Some(_)) if matches!(found.next.as_str(), "" | "inf") => {
            Some("it has no next tick: to let it fire again, run `seriatim cron pause` and `seriatim cron resume`".to_owned())
        }
        Ok(_) => problem_of_clock(&found.last, now_ms),
    }
}

fn job(found: CronReply, now_ms: u64) -> CronJob {
    let (name, name_escaped) = (
        String::from_utf8_lossy(&found.name).into_owned(),
        escape::differing(&found.name),
    );
    let read = || {
        let value = CronValue::read(&found.value)?;
        let event_at = (found.value.len() - value.event.len()) as u64;
        let event_bytes = found.value_bytes.saturating_sub(event_at);
        let last = CronLast::read(&found.last);
        Some(CronDetail {
            problem: problem(&value, &found, now_ms),
            schedule: value.schedule,
            zone: value.zone,
            object_escaped: escape::differing(value.object.as_bytes()),
            object: value.object,
            event: RowEvent::if_whole(value.event, Some(event_bytes)),
            missed: value.missed,
            paused: value.is_paused,
            next_ms: found
                .next
                .parse()
                .ok()
                .map(DueTime::read)
                .and_then(DueTime::ms),
            last_ms: (last.fired_ms > 0).then_some(last.fired_ms),
        })
    };
    CronJob {
        detail: read(),
        name,
        name_escaped,
    }
}
