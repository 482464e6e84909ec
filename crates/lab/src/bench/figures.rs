//! The figures that the bench measures, and the statistics over their samples: medians,
//! percentiles, spreads, ratios.

use std::collections::BTreeMap;

/// A quantity that the bench measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Figure {
    EnqueueBulk,
    EnqueueBulkCpu,
    EnqueueSingle,
    EnqueueSingleCpu,
    DrainBulk,
    DrainBulkCpu,
    DrainSingle,
    DrainSingleCpu,
    Both,
    BothCpu,
    LatencyP50,
    LatencyP99,
    LatencyCpu,
    LateP99,
    BytesQueued,
    BytesIdle,
    OutOfOrder,
    Handled,
}

impl Figure {
    /// Returns the figure's name for people, its name in JSON, and its unit.
    fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::EnqueueBulk => ("enqueue, bulk", "enqueue_bulk", "events/s"),
            Self::EnqueueBulkCpu => ("  Redis CPU", "enqueue_bulk_redis_cpu", "µs/event"),
            Self::EnqueueSingle => ("enqueue, single", "enqueue_single", "events/s"),
            Self::EnqueueSingleCpu => ("  Redis CPU", "enqueue_single_redis_cpu", "µs/event"),
            Self::DrainBulk => ("drain after bulk", "drain_bulk", "events/s"),
            Self::DrainBulkCpu => ("  Redis CPU", "drain_bulk_redis_cpu", "µs/event"),
            Self::DrainSingle => ("drain after single", "drain_single", "events/s"),
            Self::DrainSingleCpu => ("  Redis CPU", "drain_single_redis_cpu", "µs/event"),
            Self::Both => ("both at once", "both", "events/s"),
            Self::BothCpu => ("  Redis CPU", "both_redis_cpu", "µs/event"),
            Self::LatencyP50 => ("latency p50", "latency_p50", "ms"),
            Self::LatencyP99 => ("latency p99", "latency_p99", "ms"),
            Self::LatencyCpu => ("  Redis CPU", "latency_redis_cpu", "µs/event"),
            Self::LateP99 => ("emits late p99", "latency_late_p99", "ms"),
            Self::BytesQueued => ("memory, queued", "memory_queued", "B/event"),
            Self::BytesIdle => ("memory, idle", "memory_idle", "B/object"),
            Self::OutOfOrder => ("out of order", "out_of_order", "events"),
            Self::Handled => ("handled", "handled", "events"),
        }
    }

    pub(super) fn title(self) -> &'static str {
        self.texts().0
    }

    pub(super) fn key(self) -> &'static str {
        self.texts().1
    }

    pub(super) fn unit(self) -> &'static str {
        self.texts().2
    }
}

/// All samples of a run: for each figure and system, one sample per repetition.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<(Figure, &'static str), Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, figure: Figure, system: &'static str, value: f64) {
        self.0.entry((figure, system)).or_default().push(value);
    }

    pub(super) fn of(&self, figure: Figure, system: &'static str) -> &[f64] {
        self.0.get(&(figure, system)).map_or(&[], Vec::as_slice)
    }

    /// Returns the figures that have samples, each once.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = self.0.keys().map(|(figure, _)| *figure).collect();
        figures.dedup();
        figures
    }
}
