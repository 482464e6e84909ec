//! Writes metrics of the usual kinds.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::worker::Distribution;

/// A writer for the metrics of one collector. The names that are passed to it have neither a prefix
/// nor a unit.
pub(super) struct Writer<'a>(pub(super) DescriptorEncoder<'a>);

impl Writer<'_> {
    /// Writes a gauge.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    /// Writes a gauge of a time in seconds.
    pub(super) fn seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&seconds)
    }

    /// Writes the gauges of a time in seconds of one name, which differ in one label.
    pub(super) fn seconds_of(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, f64)>,
    ) -> fmt::Result {
        let mut encoder =
            self.0
                .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        for (of, seconds) in values {
            encoder
                .encode_family(&[(label, of.as_ref())])?
                .encode_gauge(&seconds)?;
        }
        Ok(())
    }

    /// Writes a counter.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes the gauges of one name, which differ in one label.
    pub(super) fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, V)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (of, value) in values {
            encoder
                .encode_family(&[(label, of.as_ref())])?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes the counters of one name, which differ in one label.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (of, value) in values {
            encoder
                .encode_family(&[(label, of.as_ref())])?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes a histogram.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: &Distribution,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(values.sum, values.count(), &buckets(values), None)
    }

    /// Writes the histograms of times of one name, which differ in one label.
    pub(super) fn histograms<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [(&str, &Distribution); N],
    ) -> fmt::Result {
        let mut encoder =
            self.0
                .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (of, values) in values {
            let labels = [(label, of)];
            let mut encoder = encoder.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabelSet>(
                values.sum,
                values.count(),
                &buckets(values),
                None,
            )?;
        }
        Ok(())
    }

    /// Writes a metric with the constant value 1 and the program's version as label.
    pub(super) fn version(&mut self) -> fmt::Result {
        let mut encoder =
            self.0
                .encode_descriptor("build", "Version of the program", None, MetricType::Info)?;
        encoder.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

/// Returns the ranges of a histogram: the upper bound of each range, and the number of values in
/// the range.
fn buckets(values: &Distribution) -> Vec<(f64, u64)> {
    let bounds = values.bounds.iter().copied().chain([f64::INFINITY]);
    bounds.zip(values.counts.iter().copied()).collect()
}
