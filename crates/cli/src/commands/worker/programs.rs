//! The metrics of the programs of the sinks `exec` and `stdio`.

use std::fmt;

use seriatim::metrics::prometheus_client::collector::Collector;
use seriatim::metrics::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use seriatim::metrics::prometheus_client::metrics::counter::ConstCounter;
use seriatim::metrics::prometheus_client::metrics::gauge::ConstGauge;
use seriatim_exec::{Exec, Figures};

/// A collector for a registry with the prefix `seriatim`.
pub(super) struct ProgramMetrics(pub(super) Exec);

impl fmt::Debug for ProgramMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgramMetrics")
    }
}

impl Collector for ProgramMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures: Figures = self.0.figures();
        for (name, help, value) in [
            ("programs", "Programs that the sink keeps", figures.programs),
            (
                "programs_ready",
                "Programs that run and have said hello",
                figures.ready,
            ),
            (
                "program_batches",
                "Batches that programs have",
                figures.batches,
            ),
        ] {
            let gauge = ConstGauge::new(u32::try_from(value).unwrap_or(u32::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        for (name, help, value) in [
            ("program_starts", "Starts of programs", figures.starts),
            (
                "program_crashes",
                "Programs that ended or were killed with a batch in hand",
                figures.crashes,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
