//! The metrics of a namespace: the figures that `seriatim stats` shows.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::writer::Writer;
use crate::control::shares::ShareFigures;
use crate::control::stats::NameStats;
use crate::control::{Control, ControlError, Stats};

/// The most projections with series of their own.
const PROJECTIONS_MAX: usize = 50;
/// The most shares with series of their own.
const SHARES_MAX: usize = 100;
/// The most prefixes with series of their own.
pub const PREFIXES_MAX: usize = 20;
/// The part of Redis' time that a count of the queued events takes: 1 %.
const COUNT_SHARE: f64 = 0.01;

/// The part of Redis' time that a check takes: 1 %.
const CHECK_SHARE: f64 = 0.01;

/// The metrics of a namespace: a collector for a registry. It writes the results of the last look
/// at Redis.
///
/// Call [`look`](Self::look) before each scrape, or at an interval.
#[derive(Debug, Clone, Default)]
pub struct NamespaceMetrics(
    Arc<Mutex<Look>>,
    Arc<Mutex<Option<Queues>>>,
    Arc<Mutex<Checks>>,
);

/// The results of the last checks.
#[derive(Debug, Default)]
struct Checks {
    /// Violations at the last look at the shared keys.
    shared: Option<u64>,
    /// Violations that the last whole check found, and its end.
    whole: Option<(u64, Instant)>,
}

/// The results of the last count of the queued events.
#[derive(Debug)]
struct Queues {
    counted_at: Instant,
    /// For each prefix: the prefix, the number of objects with events, and the number of queued
    /// events.
    depths: Vec<(String, u64, u64)>,
}

/// The results of the last look at Redis.
#[derive(Debug, Default)]
struct Look {
    /// The figures; `None` before the first look, and if the last look failed.
    stats: Option<Stats>,
    /// The figures of the first shares, by selector.
    shares: Vec<ShareFigures>,
    took: Duration,
}

impl NamespaceMetrics {
    /// Looks at Redis once, with [`Control::stats`]. Also reads the figures of the first 100
    /// shares. If the look fails, `seriatim_up` is 0, and the metrics of Redis are absent until a
    /// look succeeds.
    ///
    /// # Errors
    /// The errors of [`Control::stats`].
    pub async fn look(&self, control: &Control) -> Result<(), ControlError> {
        let began = Instant::now();
        let (look, failed) = match look(control).await {
            Ok((stats, shares)) => (
                Look {
                    stats: Some(stats),
                    shares,
                    took: began.elapsed(),
                },
                Ok(()),
            ),
            Err(error) => (
                Look {
                    took: began.elapsed(),
                    ..Look::default()
                },
                Err(error),
            ),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = look;
        failed
    }

    /// Counts the queued events with 1 % of Redis' time, by [`Control::paced_depth_of`]. Each of the
    /// first [`PREFIXES_MAX`] `prefixes` has its own series, and all other objects have one series
    /// together. If `prefixes` is empty, all objects have one series. Before the first count these
    /// metrics are absent.
    ///
    /// # Errors
    /// The errors of [`Control::paced_depth_of`]. After an error, the metrics still show the last
    /// count.
    pub async fn count(&self, control: &Control, prefixes: &[String]) -> Result<(), ControlError> {
        let named = &prefixes[..prefixes.len().min(PREFIXES_MAX)];
        let depth = control.paced_depth_of(named, COUNT_SHARE).await?;
        let rest = if named.is_empty() { "*" } else { "other" };
        let mut depths: Vec<_> = named
            .iter()
            .map(String::as_str)
            .chain([rest])
            .map(|of| (of.to_owned(), 0, 0))
            .collect();
        for found in depth.by_prefix {
            let at = named
                .iter()
                .position(|of| *of == found.prefix)
                .unwrap_or(named.len());
            depths[at].1 += found.objects;
            depths[at].2 += found.events;
        }
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = Some(Queues {
            counted_at: Instant::now(),
            depths,
        });
        Ok(())
    }

    /// Checks the shared keys, by [`Control::check_shared`]. Before the first check this metric is
    /// absent.
    ///
    /// # Errors
    /// The errors of [`Control::check_shared`]. The metric is absent until a check succeeds.
    pub async fn check_shared(&self, control: &Control) -> Result<(), ControlError> {
        let found = control.check_shared().await;
        let shared = found.as_ref().ok().map(|found| found.len() as u64);
        self.2.lock().unwrap_or_else(PoisonError::into_inner).shared = shared;
        found.map(drop)
    }

    /// Checks all keys with 1 % of Redis' time, by [`Control::paced_check`]. Before the first check
    /// these metrics are absent.
    ///
    /// # Errors
    /// The errors of [`Control::paced_check`]. After an error, the metrics still show the last check.
    pub async fn check(&self, control: &Control) -> Result<(), ControlError> {
        let report = control.paced_check(0, CHECK_SHARE).await?;
        let whole = Some((report.violations_total, Instant::now()));
        self.2.lock().unwrap_or_else(PoisonError::into_inner).whole = whole;
        Ok(())
    }

    /// Forgets the results of the last look. Call this if a new look takes too long: then
    /// `seriatim_up` is 0.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Look::default();
    }
}

impl Collector for NamespaceMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Writer(encoder);
        let look = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.version()?;
        out.gauge(
            "up",
            "1 if Redis has replied to the last look",
            u32::from(look.stats.is_some()),
        )?;
        out.seconds(
            "collect_duration",
            "Time of the last look at Redis",
            look.took.as_secs_f64(),
        )?;
        let Some(stats) = &look.stats else {
            return Ok(());
        };
        out.seconds(
            "redis_rtt",
            "Time of one round trip to Redis",
            stats.round_trip_us as f64 / 1e6,
        )?;
        objects(&mut out, stats)?;
        shares(&mut out, stats, &look.shares)?;
        workers(&mut out, stats)?;
        times(&mut out, stats)?;
        streams(&mut out, stats)?;
        checks(
            &mut out,
            &self.2.lock().unwrap_or_else(PoisonError::into_inner),
        )?;
        match &*self.1.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queues) => depths(&mut out, queues),
            None => Ok(()),
        }
    }
}

/// Reads the figures of the namespace, and of its first shares by selector.
async fn look(control: &Control) -> Result<(Stats, Vec<ShareFigures>), ControlError> {
    let mut stats = control.stats().await?;
    let mut figures = std::mem::take(&mut stats.shares.listed);
    if stats.shares.total > figures.len() as u64 {
        // The stats have only the shares for which most names wait. These change all the time.
        let mut shares = control.shares().await?;
        shares.truncate(SHARES_MAX);
        figures = control.figures_of(shares).await?;
    }
    figures.sort_by(|one, other| one.share.selector.cmp(&other.share.selector));
    Ok((stats, figures))
}

fn shares(out: &mut Writer<'_>, stats: &Stats, shares: &[ShareFigures]) -> fmt::Result {
    let values = |value: fn(&ShareFigures) -> Option<u64>| {
        shares
            .iter()
            .filter_map(move |figures| Some((&figures.share.selector, value(figures)?)))
    };
    out.gauge(
        "shares",
        "Shares of groups that are set",
        stats.shares.total,
    )?;
    let waiting = values(|figures| figures.waiting);
    out.gauges(
        "share_waiting",
        "Names of objects that wait in the group of a share",
        "selector",
        waiting,
    )?;
    let in_hand = values(|figures| figures.in_hand);
    out.gauges(
        "share_in_hand",
        "Objects of a share in hand, over all processes",
        "selector",
        in_hand,
    )?;
    let in_flight = values(|figures| figures.share.in_flight);
    out.gauges(
        "share_in_flight_limit",
        "Most objects of a share in hand; absent without this limit",
        "selector",
        in_flight,
    )?;
    out.counters(
        "share_taken",
        "Events of a share that were taken",
        "selector",
        values(|figures| figures.taken),
    )?;
    let oldest = shares
        .iter()
        .filter_map(|figures| match (figures.waiting?, figures.oldest_ms) {
            (0, _) => Some((&figures.share.selector, 0.0)),
            (_, oldest_ms) => Some((&figures.share.selector, oldest_ms.map_or(f64::NAN, seconds))),
        });
    out.seconds_of(
        "share_oldest",
        "Time for which the oldest name of a share has waited; NaN if unknown",
        "selector",
        oldest,
    )
}

fn checks(out: &mut Writer<'_>, checks: &Checks) -> fmt::Result {
    if let Some(broken) = checks.shared {
        out.gauge(
            "shared_keys_broken",
            "Findings of the last look at the shared keys; seriatim check names them",
            broken,
        )?;
    }
    let Some((violations, at)) = checks.whole else {
        return Ok(());
    };
    out.gauge(
        "check_violations",
        "Violations that the last check of all keys has found",
        violations,
    )?;
    out.seconds(
        "check_age",
        "Time since the last check of all keys",
        at.elapsed().as_secs_f64(),
    )
}

fn depths(out: &mut Writer<'_>, queues: &Queues) -> fmt::Result {
    let objects = queues
        .depths
        .iter()
        .map(|(prefix, objects, _)| (prefix, *objects));
    out.gauges(
        "objects_with_events",
        "Objects with queued events, at the last count",
        "prefix",
        objects,
    )?;
    let events = queues
        .depths
        .iter()
        .map(|(prefix, _, events)| (prefix, *events));
    out.gauges(
        "events_queued",
        "Queued events, at the last count",
        "prefix",
        events,
    )?;
    out.seconds(
        "depth_age",
        "Time since the last count of the queues",
        queues.counted_at.elapsed().as_secs_f64(),
    )
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn objects(out: &mut Writer<'_>, stats: &Stats) -> fmt::Result {
    let (held, rules) = (&stats.held, &stats.rules);
    out.gauge(
        "markers",
        "Markers; an object that waits for a worker has at least one",
        stats.markers,
    )?;
    out.gauge(
        "names_grouped",
        "Names of objects that are grouped; markers includes them",
        stats.groups.names,
    )?;
    out.gauge(
        "groups_waiting",
        "Groups with names that are grouped",
        stats.groups.waiting,
    )?;
    let oldest = stats.oldest_waiting_ms.map_or(f64::NAN, seconds);
    out.seconds(
        "queue_oldest",
        "Time for which the oldest marker has waited that a worker could take; NaN if unknown",
        oldest,
    )?;
    let limited = stats.oldest_limited_ms.map_or(f64::NAN, seconds);
    out.seconds(
        "queue_oldest_limited",
        "Time for which the oldest marker has waited for a limit; NaN if unknown",
        limited,
    )?;
    out.gauges(
        "objects_held",
        "Held objects: due, waiting for their time, or for an operator",
        "waits_for",
        [
            ("worker", held.due),
            ("time", held.waiting),
            ("operator", held.until_released),
        ],
    )?;
    out.seconds(
        "held_overdue",
        "Time since the first due held object became due",
        seconds(held.overdue_ms),
    )?;
    out.gauge(
        "objects_paused",
        "Objects that wait for a rule to be lifted",
        stats.paused,
    )?;
    out.gauges(
        "rules",
        "Pauses and blocks",
        "state",
        [("in_force", rules.in_force), ("lifting", rules.lifting)],
    )?;
    out.gauge(
        "events_in_flight",
        "Events in the batches of slots",
        stats.events_in_flight,
    )?;
    out.gauge(
        "ids_given",
        "The last id given; it jumps after Redis has lost writes",
        stats.last_id,
    )?;
    out.gauge(
        "idempotency_keys",
        "Idempotency keys of emits",
        stats.idempotency_keys.keys,
    )?;
    out.gauge(
        "keys_unreadable",
        "Shared keys of a wrong type",
        stats.unreadable.len() as u64,
    )
}

fn workers(out: &mut Writer<'_>, stats: &Stats) -> fmt::Result {
    let count = |which: fn(&NameStats) -> bool| {
        stats.workers.iter().filter(|name| which(name)).count() as u64
    };
    let slots = |of: fn(&NameStats) -> u64| stats.workers.iter().map(of).sum::<u64>();
    let gone = count(|name| !name.alive && name.slots_busy == 0) + stats.workers_not_shown;
    out.gauges(
        "workers",
        "Worker names with a lease, without one, and without one but with batches",
        "state",
        [
            ("alive", count(|name| name.alive)),
            ("gone", gone),
            (
                "gone_with_work",
                count(|name| !name.alive && name.slots_busy > 0),
            ),
        ],
    )?;
    let is_down = |name: &NameStats| {
        name.status
            .as_ref()
            .is_some_and(|status| status.sink_down_ms.is_some())
    };
    out.gauge(
        "workers_sink_down",
        "Workers whose sink is unavailable",
        count(is_down),
    )?;
    let met_unknown = |name: &NameStats| {
        name.status
            .as_ref()
            .is_some_and(|status| status.minute.unknown > 0)
    };
    out.gauge(
        "workers_met_unknown",
        "Workers whose sink did not know an event in the last minute",
        count(met_unknown),
    )?;
    let longest = stats
        .workers
        .iter()
        .filter_map(|name| Some(name.status.as_ref()?.longest.as_ref()?.since_ms))
        .max();
    out.seconds(
        "worker_delivery_oldest",
        "Age of the longest delivery of any worker",
        seconds(longest.unwrap_or(0)),
    )?;
    out.gauge(
        "slots_registered",
        "Slots of workers with a lease",
        slots(|name| if name.alive { u64::from(name.slots) } else { 0 }),
    )?;
    out.gauge(
        "slots_busy",
        "Slots with a batch",
        slots(|name| name.slots_busy),
    )
}

fn times(out: &mut Writer<'_>, stats: &Stats) -> fmt::Result {
    let (schedules, cron) = (&stats.schedules, &stats.cron);
    let waiting = schedules.total.saturating_sub(schedules.due);
    out.gauges(
        "schedules",
        "Schedules whose events are not queued yet",
        "state",
        [("due", schedules.due), ("waiting", waiting)],
    )?;
    let overdue = schedules
        .next_ms
        .map_or(0, |next| stats.now_ms.saturating_sub(next));
    out.seconds(
        "schedule_overdue",
        "Time since the first due schedule became due",
        seconds(overdue),
    )?;
    let mut sum = 0;
    let promoted = schedules.lateness.iter().map(|(bound, events)| {
        sum += events;
        (
            bound.map_or_else(|| "+Inf".to_owned(), |bound| seconds(bound).to_string()),
            sum,
        )
    });
    out.counters(
        "schedules_promoted",
        "Events queued from schedules, at most so many seconds late",
        "within",
        promoted,
    )?;
    let paused = cron.total.saturating_sub(cron.active);
    out.gauges(
        "cron_jobs",
        "Cron jobs",
        "state",
        [
            ("active", cron.active),
            ("due", cron.due),
            ("paused", paused),
            ("ahead", cron.ahead),
        ],
    )
}

fn streams(out: &mut Writer<'_>, stats: &Stats) -> fmt::Result {
    let streams = &stats.streams;
    let oldest = streams
        .dead
        .oldest_ms
        .map_or(0, |oldest| stats.now_ms.saturating_sub(oldest));
    out.gauge("dead_letters", "Dead letters", streams.dead.rows)?;
    out.seconds(
        "dead_letter_oldest",
        "Age of the oldest dead letter; 0 without any",
        seconds(oldest),
    )?;
    out.counter(
        "dead_letters_written",
        "Dead letters ever written",
        streams.dead.written,
    )?;
    out.gauge("log_rows", "Rows of the event log", streams.log.rows)?;
    out.counter(
        "log_rows_written",
        "Rows ever written to the event log",
        streams.log.written,
    )?;
    out.counter(
        "operator_actions",
        "Actions of operators",
        streams.actions.written,
    )?;
    let projections = || stats.projections.iter().take(PROJECTIONS_MAX);
    out.gauges(
        "projection_rows_behind",
        "Rows that a projection has not applied yet",
        "projection",
        projections().map(|projection| (&projection.name, projection.lag)),
    )?;
    out.counters(
        "projection_rows_missed",
        "Rows that were trimmed before a projection applied them",
        "projection",
        projections().map(|projection| (&projection.name, projection.missed)),
    )?;
    out.gauges(
        "projection_running",
        "1 if a process runs the projection",
        "projection",
        projections().map(|projection| (&projection.name, u64::from(projection.running))),
    )
}
