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

/// Returns the middle value, or the mean of the two middle values; `None` for an empty list.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    let lower = if sorted.len() % 2 == 1 {
        upper
    } else {
        *sorted.get(half.checked_sub(1)?)?
    };
    Some((lower + upper) / 2.0)
}

/// Returns the percentile: the smallest value such that `percent` percent of all values are not
/// larger.
pub(super) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Returns the smallest and the largest value; `None` for an empty list.
pub(super) fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    Some((*sorted.first()?, *sorted.last()?))
}

/// Computes for each repetition the ratio of its two values, and returns the median of these
/// ratios. A disturbance of the machine affects both values of a repetition, so their ratio is
/// stable.
pub(super) fn ratio(values: &[f64], others: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = values
        .iter()
        .zip(others)
        .map(|(value, other)| value / other)
        .filter(|r| r.is_finite())
        .collect();
    median(&ratios)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), Some(100.0));
        assert_eq!(percentile(&values, 99.0), Some(198.0));
        assert_eq!(percentile(&values, 100.0), Some(200.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 99.0), None);
    }

    #[test]
    fn ratios_are_taken_repetition_by_repetition() {
        assert_eq!(ratio(&[1.0, 10.0, 4.0], &[2.0, 20.0, 1.0]), Some(0.5));
        assert_eq!(ratio(&[1.0, 2.0], &[0.0, 2.0]), Some(1.0));
        assert_eq!(ratio(&[1.0], &[]), None);
    }
}
