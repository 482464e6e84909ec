//! Counts the parts of the system, by a bounded number of cheap commands.

mod names;

use std::time::Instant;

use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult, Value};
use serde::Serialize;

pub use self::names::{NameStats, WORKERS_MAX};
pub(super) use self::names::{read as read_names, registered, sinks_down};
use super::marks::{GroupedAges, Marks, age_grouped};
use super::names::{NameSet, Walk};
use super::shares::ShareFigures;
use super::streams::{self, StreamsStats};
use super::{Control, ControlError, cron, reply};
use crate::keys::Keys;
use crate::wire::values::{DueTime, Position};

/// Maximum number of names that [`Control::stats`] lists. Further names are counted but not listed.
pub const NAMES_MAX: usize = 1000;

/// Maximum number of shares that [`Control::stats`] lists. Further shares are counted but not
/// listed.
pub const SHARES_LISTED_MAX: usize = 20;

/// Number of commands that are sent to Redis at once.
pub(super) const COMMANDS_PER_CALL: usize = 1000;

/// One projection of the event log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProjectionStats {
    /// Name of the projection.
    pub name: String,
    /// Id of the row that was applied last; empty before the first row.
    pub log_id: String,
    /// Number of rows not yet applied.
    pub lag: u64,
    /// Number of rows that were trimmed before the projection applied them, as far as it is known.
    pub missed: u64,
    /// Whether a process runs this projection.
    pub running: bool,
}

/// Counts of held objects, by the condition that ends the hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldStats {
    /// All objects in `objects.held`.
    pub total: u64,
    /// Objects that are due now. A free worker takes them.
    pub due: u64,
    /// Objects that wait for their due time.
    pub waiting: u64,
    /// Objects that wait for an operator.
    pub until_released: u64,
    /// Time for which the first of the due objects has been due, ms; 0 if no object is due. While a
    /// group waits for the limit or the rate of a share, objects that are grouped
    /// do not count: `oldest_waiting_ms` and `oldest_limited_ms` of the stats include them.
    /// Objects that are due at once, e.g. because an operator has released them, have no due time and do
    /// not count.
    pub overdue_ms: u64,
}

/// Counts of groups, whose objects take turns while more objects wait than workers can claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupStats {
    /// Number of groups with a list of names. A group whose last name was taken counts until its
    /// next turn.
    pub waiting: u64,
    /// Number of names of objects that are grouped in these lists, not counting marks. An object
    /// may have several names in a list.
    pub names: u64,
}

/// Shares of groups, and how far they are used.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShareStats {
    /// Number of shares that are set.
    pub total: u64,
    /// The shares for which most names wait, at most [`SHARES_LISTED_MAX`].
    pub listed: Vec<ShareFigures>,
}

/// Counts of pauses and blocks. Together there are at most 1,000.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RuleStats {
    /// Rules that hold objects.
    pub in_force: u64,
    /// Rules that are lifted or past their end and whose objects are still being woken.
    pub lifting: u64,
}

/// Counts of schedules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduleStats {
    /// All schedules whose events are not queued yet.
    pub total: u64,
    /// Schedules that are due now. Workers usually queue their events at once. Schedules stay due
    /// only if no worker runs, or while too many are due at once.
    pub due: u64,
    /// Due time of the first schedule whose event is not queued yet, ms since the epoch; none if
    /// there is no such schedule. Schedules that are due at once have no due time and do not count.
    pub next_ms: Option<u64>,
    /// Numbers of promoted events, by lateness. Lateness is the time from the due time until the
    /// event was queued. Each pair has an upper bound in ms and a number of events. The number
    /// counts the events above the bound of the pair before and up to this bound. The last pair has
    /// no upper bound. The counts begin when the namespace is created.
    pub lateness: Vec<(Option<u64>, u64)>,
}

/// Counts of the idempotency keys of emits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EmittedStats {
    /// Number of idempotency keys. A key whose window is over still counts until a later emit with
    /// an idempotency key removes it.
    pub keys: u64,
    /// Approximate number of bytes that the idempotency keys take in Redis; none if Redis does not
    /// report it.
    pub bytes: Option<u64>,
}

/// Counts of cron jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronStats {
    /// All cron jobs.
    pub total: u64,
    /// Jobs that are not paused.
    pub active: u64,
    /// Jobs that are due now. They stay due only if no worker runs.
    pub due: u64,
    /// Jobs of which no tick fires for a time, because Redis' clock was ahead: pause and resume
    /// them.
    pub ahead: u64,
    /// Time of the next tick of any job, ms since the epoch; none if no job has a next tick.
    pub next_ms: Option<u64>,
}

/// The result of [`Control::stats`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// Time of one round trip to Redis, µs.
    pub round_trip_us: u64,
    /// Worker processes, by NAME.
    pub workers: Vec<NameStats>,
    /// Number of names that are not listed, because there are more than [`NAMES_MAX`].
    pub workers_not_shown: u64,
    /// Number of markers, not counting marks. Includes the names that are grouped. An
    /// object that waits for a worker may have several markers.
    pub markers: u64,
    /// Groups, and the grouped names.
    pub groups: GroupStats,
    /// Shares of groups.
    pub shares: ShareStats,
    /// Time for which the oldest marker has waited that a worker could take now, ms, exact to 2 s
    /// or 5 %; 0 without markers. A marker that is grouped still waits, but not if
    /// the group waits for a limit. None if it is unknown, because no process has pushed a mark
    /// since the marker came. Paused objects do not count.
    pub oldest_waiting_ms: Option<u64>,
    /// Time for which the oldest marker has waited whose group waits for the limit or the rate of a
    /// share, ms, as exact; 0 if no such group has names. None if it is unknown.
    pub oldest_limited_ms: Option<u64>,
    /// Number of events in the batches of the listed workers.
    pub events_in_flight: u64,
    /// Counts of the objects in `objects.held`.
    pub held: HeldStats,
    /// Number of objects in `objects.paused`.
    pub paused: u64,
    /// Pauses and blocks.
    pub rules: RuleStats,
    /// Schedules.
    pub schedules: ScheduleStats,
    /// Cron jobs.
    pub cron: CronStats,
    /// Idempotency keys of emits.
    pub idempotency_keys: EmittedStats,
    /// Number of dead letters.
    pub dead_letters: u64,
    /// Sizes of the event log, the dead letters and the actions of operators.
    pub streams: StreamsStats,
    /// The last id given to an event; 0 if none was given.
    pub last_id: u64,
    /// Projections of the event log, by name. If there are more than about [`NAMES_MAX`], only some
    /// of them are listed.
    pub projections: Vec<ProjectionStats>,
    /// Shared keys that could not be counted, because they have a wrong type. `check` gives
    /// details.
    pub unreadable: Vec<String>,
}

impl Control {
    /// Counts workers, markers, held objects, rules and dead letters. The counts are read one after
    /// the other, so they do not belong to exactly the same moment.
    ///
    /// Cost: a few commands, the last runs of all cron jobs, three more for each registered worker
    /// name, one for each slot, and two for each share. They are pipelined, and SCAN is not used.
    /// The call only reads. It may be repeated, and its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked. A shared key of a wrong type is not an error: it
    /// is listed in `unreadable`.
    pub async fn stats(&self) -> Result<Stats, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let began = Instant::now();
        let now_ms = reply::now_ms(&mut conn).await?;
        let round_trip_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut stats = Stats {
            now_ms,
            round_trip_us,
            ..Stats::default()
        };
        counts(&mut conn, keys, &mut stats).await?;
        stats.streams = streams::read(&mut conn, keys, &mut stats.unreadable).await?;
        rules(self, &mut stats).await?;
        shares(self, &mut stats).await?;
        schedules(&mut conn, keys, &mut stats).await?;
        emitted(&mut conn, keys, &mut stats).await?;
        registered_names(&mut conn, keys, &mut stats).await?;
        // Watched names come first in the list. They have a lease, or something in their slots.
        read_names(&mut conn, keys, &mut stats.workers, WORKERS_MAX).await?;
        stats.workers.sort_by(|a, b| a.name.cmp(&b.name));
        projections(self, &mut stats).await?;
        stats.events_in_flight = stats.workers.iter().map(|name| name.events_in_flight).sum();
        Ok(stats)
    }
}

/// Reads up to [`NAMES_MAX`] names: first the watched names, then others.
async fn registered_names<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    stats: &mut Stats,
) -> Result<(), ControlError> {
    for mut walk in [Walk::of(conn, keys, NameSet::Watched).await?, Walk::all()] {
        while stats.workers.len() < NAMES_MAX
            && let Some(page) = walk.next(conn, keys).await?
        {
            for (name, value) in page {
                if stats.workers.len() < NAMES_MAX
                    && !stats.workers.iter().any(|shown| shown.name == name)
                {
                    stats.workers.push(registered(name, &value));
                }
            }
        }
    }
    let total: RedisResult<u64> = redis::cmd("HLEN")
        .arg(keys.event_workers())
        .query_async(conn)
        .await;
    let total = match total {
        Ok(total) => total,
        Err(error) if error.code() == Some("WRONGTYPE") => 0,
        Err(error) => return Err(ControlError::redis("the names of event.workers")(error)),
    };
    stats.workers_not_shown = total.saturating_sub(stats.workers.len() as u64);
    Ok(())
}

/// Sends many commands at once, and returns a reply for each.
pub(super) async fn ask<C: ConnectionLike>(
    conn: &mut C,
    what: &'static str,
    pipe: &mut Pipeline,
) -> Result<Vec<RedisResult<Value>>, ControlError> {
    if pipe.is_empty() {
        return Ok(Vec::new());
    }
    pipe.ignore_errors()
        .query_async(conn)
        .await
        .map_err(ControlError::redis(what))
}

async fn counts<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    stats: &mut Stats,
) -> Result<(), ControlError> {
    const WHAT: &str = "the counts";
    let held = keys.objects_held();
    let questions = [
        ("LLEN", keys.objects_with_events(), vec![]),
        ("ZCARD", held.clone(), vec![]),
        (
            "ZCOUNT",
            held.clone(),
            vec!["-inf".to_owned(), stats.now_ms.to_string()],
        ),
        ("ZCOUNT", held, vec!["+inf".to_owned(), "+inf".to_owned()]),
        ("ZCARD", keys.objects_paused(), vec![]),
        ("XLEN", keys.events_dead(), vec![]),
        ("GET", keys.next_event_id(), vec![]),
        ("ZCARD", keys.event_groups(), vec![]),
        ("GET", keys.event_groups_waiting(), vec![]),
    ];
    let mut pipe = redis::pipe();
    for (command, key, arguments) in &questions {
        pipe.cmd(command).arg(key).arg(arguments);
    }
    let mut numbers = Vec::with_capacity(questions.len());
    for ((_, key, _), answer) in questions.iter().zip(ask(conn, WHAT, &mut pipe).await?) {
        numbers.push(match answer {
            Ok(Value::Nil) => 0,
            Ok(value) => reply::number(&value).unwrap_or(0),
            Err(error) if error.code() == Some("WRONGTYPE") => {
                if !stats.unreadable.contains(key) {
                    stats.unreadable.push(key.clone());
                }
                0
            }
            Err(error) => return Err(ControlError::redis(WHAT)(error)),
        });
    }
    let [
        markers,
        total,
        due,
        until_released,
        paused,
        dead_letters,
        last_id,
        waiting_groups,
        grouped,
    ] = <[u64; 9]>::try_from(numbers).map_err(|numbers| {
        ControlError::reply(WHAT, format!("{} replies to 9 commands", numbers.len()))
    })?;
    stats.groups = GroupStats {
        waiting: waiting_groups,
        names: grouped,
    };
    let waiting = total.saturating_sub(due).saturating_sub(until_released);
    stats.held = HeldStats {
        total,
        due,
        waiting,
        until_released,
        overdue_ms: 0,
    };
    let marks = Marks::read(conn, keys, &mut stats.unreadable).await?;
    // Advance removes marks at the tail of the list. So if the list has any member, it has a
    // marker.
    let markers = markers.saturating_sub(marks.waiting).max(markers.min(1));
    stats.markers = markers.saturating_add(grouped);
    stats.oldest_waiting_ms = marks.age_ms(markers, stats.now_ms);
    stats.oldest_limited_ms = Some(0);
    let mut ages = GroupedAges::default();
    if grouped > 0 {
        ages = age_grouped(conn, keys, stats.now_ms, &mut stats.unreadable).await?;
        if ages.is_any_limited {
            stats.oldest_limited_ms = ages.limited;
        }
        // If all names belong to groups that wait for a limit, no other name is grouped.
        if ages.free.is_some() || ages.limited.is_none_or(|ms| ms == 0) {
            stats.oldest_waiting_ms = ages
                .free
                .map(|age_ms| age_ms.max(stats.oldest_waiting_ms.unwrap_or(0)));
        }
    }
    stats.held.overdue_ms = overdue(conn, keys, stats.now_ms, !ages.is_any_limited).await?;
    (stats.paused, stats.dead_letters, stats.last_id) = (paused, dead_letters, last_id);
    Ok(())
}

/// Returns the time since the first held object became due, in ms. If an object is grouped,
/// its score is its due time below 0. The scores 0 and -1 are no times. `with_grouped`: whether
/// these objects count.
async fn overdue<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    now_ms: u64,
    with_grouped: bool,
) -> Result<u64, ControlError> {
    const WHAT: &str = "the first held object";
    let (mut pipe, mut first_ms) = (redis::pipe(), None);
    let parts = [("(0", "+inf", None), ("(-1", "-inf", Some("REV"))];
    for (from, to, order) in parts.into_iter().take(if with_grouped { 2 } else { 1 }) {
        let ask = pipe
            .cmd("ZRANGE")
            .arg(keys.objects_held())
            .arg(from)
            .arg(to)
            .arg("BYSCORE")
            .arg(order);
        ask.arg("LIMIT").arg(0).arg(1).arg("WITHSCORES");
    }
    for first in ask(conn, WHAT, &mut pipe).await? {
        match first.and_then(|first| Ok(redis::from_redis_value::<Vec<(Vec<u8>, f64)>>(first)?)) {
            Ok(first) => {
                first_ms = first
                    .iter()
                    .filter_map(|(_, score)| DueTime::of_held(*score, now_ms).ms())
                    .chain(first_ms)
                    .min()
            }
            // The wrong type of this key is reported with the counts of held objects.
            Err(error) if error.code() == Some("WRONGTYPE") => {}
            Err(error) => return Err(ControlError::redis(WHAT)(error)),
        }
    }
    Ok(first_ms.map_or(0, |first_ms| now_ms.saturating_sub(first_ms)))
}

/// Lower bound for the scores of schedules whose events are not queued yet. Queued schedules have
/// lower scores.
const FIRST_DUE: &str = "(-1000000000000000";

async fn schedules<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    stats: &mut Stats,
) -> Result<(), ControlError> {
    let (set, lateness) = (keys.events_scheduled(), keys.events_scheduled_lateness());
    let (jobs, ticks) = (keys.events_cron(), keys.events_cron_next());
    let mut pipe = redis::pipe();
    pipe.cmd("ZCOUNT").arg(&set).arg(FIRST_DUE).arg("+inf");
    pipe.cmd("ZCOUNT")
        .arg(&set)
        .arg(FIRST_DUE)
        .arg(stats.now_ms);
    // The score 0 is no time: such a schedule is due at once.
    pipe.cmd("ZRANGE")
        .arg(&set)
        .arg("(0")
        .arg("+inf")
        .arg("BYSCORE")
        .arg("LIMIT")
        .arg(0)
        .arg(1)
        .arg("WITHSCORES");
    pipe.cmd("HGETALL").arg(&lateness);
    pipe.cmd("HLEN").arg(&jobs);
    pipe.cmd("ZCARD").arg(&ticks);
    pipe.cmd("ZCOUNT").arg(&ticks).arg("-inf").arg(stats.now_ms);
    pipe.cmd("ZRANGE")
        .arg(&ticks)
        .arg(0)
        .arg(0)
        .arg("WITHSCORES");
    let answers = ask(conn, "the schedules", &mut pipe).await?;
    let mut answers = answers
        .into_iter()
        .zip([&set, &set, &set, &lateness, &jobs, &ticks, &ticks, &ticks])
        .map(|(answer, key)| match answer {
            Ok(value) => Ok(value),
            Err(error) if error.code() == Some("WRONGTYPE") => {
                if !stats.unreadable.contains(key) {
                    stats.unreadable.push(key.clone());
                }
                Ok(Value::Nil)
            }
            Err(error) => Err(ControlError::redis("the schedules")(error)),
        });
    let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
    let (total, due, first, by_bound) = (next()?, next()?, next()?, next()?);
    let texts = |value: Value| -> Vec<String> {
        reply::array(value)
            .unwrap_or_default()
            .iter()
            .filter_map(reply::text)
            .collect()
    };
    let time_of = |first: Value| DueTime::read(texts(first).get(1)?.parse().ok()?).ms();
    let mut lateness: Vec<(Option<u64>, u64)> = texts(by_bound)
        .chunks_exact(2)
        .map(|pair| (pair[0].parse().ok(), pair[1].parse().unwrap_or(0)))
        .collect();
    lateness.sort_by_key(|(bound, _)| bound.unwrap_or(u64::MAX));
    stats.schedules = ScheduleStats {
        total: reply::number(&total).unwrap_or(0),
        due: reply::number(&due).unwrap_or(0),
        next_ms: time_of(first),
        lateness,
    };
    let count = |value: Value| reply::number(&value).unwrap_or(0);
    let (total, active, due) = (count(next()?), count(next()?), count(next()?));
    let next_ms = time_of(next()?);
    // Without jobs there is nothing to read.
    let ahead = if total == 0 {
        Some(0)
    } else {
        cron::ahead(conn, keys, stats.now_ms)
            .await
            .map_err(ControlError::redis("events.cron.last"))?
    };
    if ahead.is_none() {
        stats.unreadable.push(keys.events_cron_last());
    }
    stats.cron = CronStats {
        total,
        active,
        due,
        ahead: ahead.unwrap_or(0),
        next_ms,
    };
    Ok(())
}

async fn emitted<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    stats: &mut Stats,
) -> Result<(), ControlError> {
    let (hash, ends) = (keys.events_emitted(), keys.events_emitted_ends());
    let mut pipe = redis::pipe();
    pipe.cmd("ZCARD").arg(&ends);
    for key in [&hash, &ends] {
        pipe.cmd("MEMORY").arg("USAGE").arg(key);
    }
    let answers = ask(conn, "the idempotency keys", &mut pipe).await?;
    if answers.first().is_some_and(|answer| {
        answer
            .as_ref()
            .is_err_and(|error| error.code() == Some("WRONGTYPE"))
    }) {
        stats.unreadable.push(ends.clone());
    }
    let numbers: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().ok().and_then(reply::number))
        .collect();
    let count = numbers.first().copied().flatten().unwrap_or(0);
    let bytes = numbers
        .get(1)
        .copied()
        .flatten()
        .zip(numbers.get(2).copied().flatten())
        .map(|(hash, ends)| hash + ends);
    stats.idempotency_keys = EmittedStats { keys: count, bytes };
    Ok(())
}

async fn rules(control: &Control, stats: &mut Stats) -> Result<(), ControlError> {
    match control.rules().await {
        Ok(all) => {
            let in_force = all.rules.iter().filter(|rule| rule.in_force).count() as u64;
            stats.rules = RuleStats {
                in_force,
                lifting: all.rules.len() as u64 - in_force,
            };
            Ok(())
        }
        Err(ControlError::Redis { source, .. }) if source.code() == Some("WRONGTYPE") => {
            stats.unreadable.push(control.keys.event_rules());
            Ok(())
        }
        Err(error) => Err(error),
    }
}

async fn shares(control: &Control, stats: &mut Stats) -> Result<(), ControlError> {
    match control.most_waiting(SHARES_LISTED_MAX).await {
        Ok((total, listed)) => {
            stats.shares = ShareStats { total, listed };
            Ok(())
        }
        Err(ControlError::Redis { source, .. }) if source.code() == Some("WRONGTYPE") => {
            stats.unreadable.push(control.keys.event_shares());
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Reads how many rows of the log each projection has not applied yet. A key of a wrong type counts
/// as no projection, and `check` reports it.
async fn projections(control: &Control, stats: &mut Stats) -> Result<(), ControlError> {
    const WHAT: &str = "the projections";
    let (mut conn, keys) = (control.connection(), &control.keys);
    let mut ask_for = redis::cmd("HSCAN");
    ask_for
        .arg(keys.event_projections())
        .arg(0)
        .arg("COUNT")
        .arg(NAMES_MAX);
    let (_, flat) = match ask_for.query_async::<(u64, Vec<String>)>(&mut conn).await {
        Ok(page) => page,
        Err(error) if error.code() == Some("WRONGTYPE") => {
            stats.unreadable.push(keys.event_projections());
            return Ok(());
        }
        Err(error) => return Err(ControlError::redis(WHAT)(error)),
    };
    if flat.is_empty() {
        return Ok(());
    }
    let written = stats.streams.log.written;
    let mut pipe = redis::pipe();
    for pair in flat.chunks_exact(2) {
        let Some(Position {
            log_id,
            rows,
            missed,
            ..
        }) = Position::of(&pair[1])
        else {
            continue;
        };
        let lag = written.saturating_sub(rows);
        stats.projections.push(ProjectionStats {
            name: pair[0].clone(),
            log_id,
            lag,
            missed,
            running: false,
        });
        pipe.cmd("EXISTS")
            .arg(keys.event_projection_lease(&pair[0]));
    }
    for (projection, answer) in stats
        .projections
        .iter_mut()
        .zip(ask(&mut conn, WHAT, &mut pipe).await?)
    {
        projection.running = answer.is_ok_and(|answer| reply::number(&answer) == Some(1));
    }
    stats.projections.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}
