//! The metrics of one worker.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::writer::Writer;
use crate::wire::Way;
use crate::worker::{Vitals, WorkerFigures};

/// The metrics of one worker: a collector for a registry. It has fewer than 300 series.
///
/// The names of the metrics have no prefix. Register the collector in a registry with the prefix
/// `seriatim`. Then the names are those in `docs/operations.md`.
#[derive(Debug, Clone)]
pub struct WorkerMetrics(Vitals);

impl WorkerMetrics {
    /// Returns the metrics of the worker with these vitals.
    #[must_use]
    pub fn new(vitals: Vitals) -> Self {
        Self(vitals)
    }
}

impl Collector for WorkerMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Writer(encoder);
        let figures = self.0.figures();
        out.version()?;
        events(&mut out, &figures)?;
        redis(&mut out, &figures)?;
        state(&mut out, &figures)
    }
}

fn events(out: &mut Writer<'_>, figures: &WorkerFigures) -> fmt::Result {
    let delivery = &figures.delivery;
    out.counters(
        "events",
        "Events by outcome; transient counts failed attempts",
        "outcome",
        [
            ("delivered", figures.delivered),
            ("rejected", figures.rejected),
            ("completed_with_errors", figures.completed_with_errors),
            ("transient", delivery.transient.count()),
        ],
    )?;
    out.histogram(
        "event_attempts",
        "Tries of each finished event, with the last one",
        None,
        &figures.attempts,
    )?;
    out.histogram(
        "batch_events",
        "Events of each committed batch",
        None,
        &figures.batch,
    )?;
    out.histograms(
        "delivery_duration",
        "Time of each delivery of a batch to the sink",
        "outcome",
        [
            ("delivered", &delivery.delivered),
            ("transient", &delivery.transient),
            ("rejected", &delivery.rejected),
            ("unavailable", &delivery.unavailable),
            ("postponed", &delivery.postponed),
            ("unknown", &delivery.unknown),
            ("crashed", &delivery.crashed),
        ],
    )?;
    let oldest = figures
        .longest
        .as_ref()
        .map_or(0.0, |longest| longest.since.as_secs_f64());
    out.seconds(
        "delivery_oldest",
        "Age of the longest delivery under way; 0 without any",
        oldest,
    )?;
    let seconds = Some(&Unit::Seconds);
    out.histogram(
        "commit_duration",
        "Time from the sink's answer to the commit in Redis",
        seconds,
        &figures.commit,
    )?;
    out.histogram(
        "event_age",
        "Time from each event's own time to its commit",
        seconds,
        &figures.event_age,
    )?;
    out.counter(
        "event_time_missing",
        "Committed events without a time of their own",
        figures.without_time,
    )
}

fn redis(out: &mut Writer<'_>, figures: &WorkerFigures) -> fmt::Result {
    let (calls, errors, attaches) = (&figures.calls, &figures.errors, &figures.attaches);
    out.histograms(
        "redis_call_duration",
        "Time of each call to Redis, by script",
        "call",
        [
            ("advance", &calls.advance),
            ("renew", &calls.renew),
            ("adopt", &calls.adopt),
            ("handled", &calls.handled),
            ("promote", &calls.promote),
            ("sent", &calls.sent),
        ],
    )?;
    out.counters(
        "redis_errors",
        "Failed calls to Redis and connection attempts",
        "kind",
        [
            ("connection", errors.connection),
            ("timeout", errors.timeout),
            ("oom", errors.out_of_memory),
            ("denied", errors.denied),
            ("other", errors.other),
        ],
    )?;
    out.gauge(
        "functions",
        "1 if Redis runs the script that commits and claims as a function, 0 if as a script",
        u32::from(figures.way == Way::Function),
    )?;
    out.gauge(
        "attached",
        "1 if the worker has its name",
        u32::from(figures.is_attached),
    )?;
    out.counters(
        "attaches",
        "Times that the worker took its name, by the state that it found",
        "how",
        [
            ("fresh", attaches.fresh),
            ("resumed", attaches.resumed),
            ("lapsed", attaches.lapsed),
        ],
    )?;
    out.counter(
        "takeovers",
        "Names without a lease whose objects the worker took over",
        figures.takeovers,
    )?;
    out.counter(
        "lost_keys",
        "Keys that were deleted by hand or evicted, as the worker met them",
        figures.lost_keys,
    )
}

fn state(out: &mut Writer<'_>, figures: &WorkerFigures) -> fmt::Result {
    let (slots, holds) = (&figures.slots, &figures.holds);
    out.gauges(
        "slots",
        "Slots by state",
        "state",
        [
            ("free", slots.free as u64),
            ("asked", slots.asked as u64),
            ("delivering", slots.delivering as u64),
            ("reported", slots.reported as u64),
            ("parked", slots.parked as u64),
        ],
    )?;
    out.counters(
        "holds",
        "Times that the worker let an object wait, by reason",
        "why",
        [
            ("retry", holds.retry),
            ("attempts", holds.attempts),
            ("crashes", holds.crashes),
            ("unavailable", holds.unavailable),
            ("quarantine", holds.quarantine),
            ("yield", holds.yielded),
            ("stop", holds.stop),
            ("unknown", holds.unknown),
            ("rejected", holds.rejected),
        ],
    )?;
    out.gauge(
        "sink_up",
        "1 if the sink is available",
        u32::from(figures.sink.down_for.is_none()),
    )?;
    out.counter(
        "sink_outages",
        "Times that the sink became unavailable",
        figures.sink.outages,
    )
}
