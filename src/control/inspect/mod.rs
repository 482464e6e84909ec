//! Inspects one object at one moment: shows the places of its events, and why the events wait.
//!
//! - `inspection`: the result
//! - `fields`: the reply of `lua/inspect.lua`, and the values in it
//! - `search`: the search in the lists of the workers
//! - `why`: the state of the object and of its first event, and an explanation in one sentence

mod fields;
mod inspection;
mod search;
mod why;

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};

use self::fields::{Fields, look};
pub use self::inspection::{
    EventState, FailedAttempt, Inspection, KeptResults, Location, NextEvent, NextSchedule,
    Standing, TEXT_BYTES_MAX, Tries,
};
pub use self::search::Searched;
use self::search::{Extent, Search};
use super::names::NameSet;
use super::{Control, ControlError};
use super::{reply, stats};
use crate::escape;
use crate::keys::Keys;
use crate::sink::Report;
use crate::wire::values::DueTime;

/// Maximum number of looks at an object that seems uncovered. One look is not enough, because the
/// object may move while its workers are read.
const LOOKS_MAX: usize = 3;

/// The most worker processes whose sinks [`Control::inspect`] looks at. Of more processes, the sink of
/// one is usually available.
const SINKS_MAX: usize = 32;

/// The most bytes of a report that are read. A worker writes at most 22 KiB.
const REPORT_BYTES_MAX: u64 = 128 * 1024;

/// Maximum part of Redis' time that [`Control::inspect`] takes for the lists of the workers.
const SHARE: f64 = 0.2;

impl Control {
    /// Reads all keys of one object in one atomic step. Then finds the workers that have the object
    /// in their lists, in bounded steps with pauses. The steps take at most 20 % of Redis' time: a
    /// second for 10,000 names with 4 slots each.
    ///
    /// With [`Control::with_event_bytes_max`], the lists of the workers are read only if no marker
    /// of the object is found, although the object has queued events, no owner and no hold.
    /// Otherwise `taken_by` is empty. Only as many lists are read as take Redis about half a
    /// millisecond; `searched` shows how many. Then `names_alive` is the number of names that have a
    /// lease or work.
    ///
    /// The call only reads. It may be repeated, and its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name. Other errors if Redis cannot be asked.
    /// For an object without any key the result is [`Standing::Unknown`], not an error.
    pub async fn inspect(&self, object: impl AsRef<[u8]>) -> Result<Inspection, ControlError> {
        let extent = if self.event_bytes_max > 0 {
            Extent::Bounded
        } else {
            Extent::All { share: SHARE }
        };
        self.inspected(object.as_ref(), extent, |_| {}).await
    }

    /// Like [`inspect`](Self::inspect), but always reads the lists of all workers, in the
    /// background: takes at most the part `share` of Redis' time for them (0.01 means 1 %; at least
    /// 0.0001). Calls `progress` after each step.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub async fn paced_inspect(
        &self,
        object: impl AsRef<[u8]>,
        share: f64,
        progress: impl FnMut(&Searched),
    ) -> Result<Inspection, ControlError> {
        self.inspected(
            object.as_ref(),
            Extent::All {
                share: share.clamp(0.0001, 1.0),
            },
            progress,
        )
        .await
    }

    async fn inspected(
        &self,
        object: &[u8],
        extent: Extent,
        progress: impl FnMut(&Searched),
    ) -> Result<Inspection, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let object = keys.found(&object)?;
        let is_bounded = matches!(extent, Extent::Bounded);
        let mut search = Search::new(keys, object, extent, progress);
        let mut fields = Fields::default();
        for _ in 0..LOOKS_MAX {
            fields = look(&mut conn, keys, object).await?;
            // If the object has an owner, a hold or a marker, the lists of the workers cannot change
            // the result much. They are many in a large system, and a page is read again and again.
            if is_bounded {
                fields.names_alive = watched(&mut conn, keys).await?;
                // Before the first pass over the names, none of them is known to be watched.
                if fields.names_alive > 0 && !fields.may_be_taken() {
                    break;
                }
                if !search.searched.all {
                    // The second look was only for an object that has moved on since the first.
                    fields.add(&search);
                    break;
                }
            }
            search.again();
            search.read(&mut conn, NameSet::Watched).await?;
            fields.add(&search);
            if fields.standing() == Standing::Uncovered {
                search.read(&mut conn, NameSet::Departed).await?;
                fields.add(&search);
            }
            if !matches!(fields.standing(), Standing::Uncovered | Standing::Unclear) {
                break;
            }
        }
        if !matches!(
            fields.standing(),
            Standing::Unknown | Standing::Idle | Standing::Owned
        ) {
            fields.sinks_down = sinks_down(&mut conn, keys).await?;
        }
        fields.report = report(&mut conn, keys, &fields).await?;
        Ok(inspection(fields, keys, object))
    }
}

/// Returns the error of a sink if the sinks of all worker processes are unavailable.
async fn sinks_down<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
) -> Result<Option<String>, ControlError> {
    let answer: RedisResult<Vec<String>> = redis::cmd("ZRANGE")
        .arg(keys.event_workers_watched())
        .arg(0)
        .arg(SINKS_MAX)
        .query_async(conn)
        .await;
    match answer {
        Ok(names) if names.len() <= SINKS_MAX => stats::sinks_down(conn, keys, names).await,
        Ok(_) => Ok(None),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) => Err(ControlError::redis("event.workers.watched")(error)),
    }
}

/// Returns the report of the object's owner on an event of the batch; none if there is none.
async fn report<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    fields: &Fields,
) -> Result<Option<Report>, ControlError> {
    let (Some(owner), Some(tag)) = (fields.text("owner"), fields.batch_tag()) else {
        return Ok(None);
    };
    let Some((name, slot)) = owner.rsplit_once('.') else {
        return Ok(None);
    };
    let key = keys.worker_reports(name);
    let mut ask = async |command: &str| -> RedisResult<Value> {
        let mut asked = redis::cmd(command);
        asked.arg(&key).arg(slot).query_async(conn).await
    };
    let size = match ask("HSTRLEN").await {
        Ok(size) => reply::number(&size).unwrap_or(0),
        Err(error) if error.code() == Some("WRONGTYPE") => 0,
        Err(error) => return Err(ControlError::redis("the reports")(error)),
    };
    if size == 0 || size > REPORT_BYTES_MAX {
        return Ok(None);
    }
    let text = ask("HGET")
        .await
        .map_err(ControlError::redis("the reports"))?;
    let report: Option<Report> =
        reply::text(&text).and_then(|text| serde_json::from_str(&text).ok());
    // The slot may have another object by now, whose reports the caller may not see.
    let end = tag
        .first
        .saturating_add(fields.number("batch").unwrap_or(0));
    Ok(report.filter(|report| (tag.first..end).contains(&report.id)))
}

/// Returns the number of names that have a lease or work, as far as it is known.
async fn watched<C: ConnectionLike>(conn: &mut C, keys: &Keys) -> Result<u64, ControlError> {
    let answer: RedisResult<u64> = redis::cmd("ZCARD")
        .arg(keys.event_workers_watched())
        .query_async(conn)
        .await;
    match answer {
        Ok(names) => Ok(names),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(0),
        Err(error) => Err(ControlError::redis("event.workers.watched")(error)),
    }
}

/// Builds the result from the fields of the last look.
fn inspection(fields: Fields, keys: &Keys, object: &[u8]) -> Inspection {
    let standing = fields.standing();
    let (state, tries) = (fields.state(standing), fields.tries());
    let has_failed = tries.is_some_and(|tries| tries.attempts > 0);
    Inspection {
        object: String::from_utf8_lossy(object).into_owned(),
        object_escaped: escape::differing(object),
        now_ms: fields.number("now_ms").unwrap_or(0),
        standing,
        state,
        why: fields.why(standing, keys, &escape::name(object)),
        events_queued: fields.number("queued").unwrap_or(0),
        events_in_flight: fields.number("batch").unwrap_or(0),
        events_held: fields.number("held").unwrap_or(0),
        owner: fields.text("owner").map(str::to_owned),
        last_event_id: fields.number("last"),
        next_event: fields.next_event(),
        tries,
        kept_results: fields.kept_results(),
        report: fields.report.clone(),
        held_why: fields.held_why(),
        waits_for_share: fields
            .share_wait()
            .filter(|_| matches!(standing, Standing::Marked | Standing::Held)),
        due_ms: fields.due().and_then(DueTime::ms),
        at_once: fields.due() == Some(DueTime::AtOnce),
        until_released: fields.due() == Some(DueTime::Never),
        schedules: fields.number("schedules").unwrap_or(0),
        markers_before: fields.number("markers_before"),
        waits_ms: fields.waits_ms(),
        group: fields.text("group").map(str::to_owned),
        group_before: fields.number("group_before"),
        group_beyond: fields.text("group_beyond").is_some(),
        groups_waiting: fields.number("groups").unwrap_or(0),
        markers_beyond: fields.text("markers_beyond").is_some(),
        next_schedules: fields.schedules,
        names_alive: fields.names_alive,
        // Errors are shown only if this event has failed. Otherwise they were left over from
        // another event, which `check` reports.
        errors: if has_failed {
            fields.errors
        } else {
            Vec::new()
        },
        taken_by: fields.taken,
        searched: fields.searched,
        rules: fields.rules,
        shares: fields
            .shares
            .into_iter()
            .map(|matching| matching.share)
            .collect(),
        wrong_types: fields.wrong,
    }
}
