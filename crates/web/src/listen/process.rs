//! The figures of this process, such as processor time and memory. Their names are those that all
//! Prometheus clients use.

use std::fmt;
use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use seriatim::metrics::prometheus_client::collector::Collector;
use seriatim::metrics::prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use seriatim::metrics::prometheus_client::metrics::MetricType;

/// A collector that reads `/proc`. Figures that cannot be read are absent.
#[derive(Debug)]
pub(super) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: f64| {
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&value)
        };
        if let Some(Stat {
            resident, start, ..
        }) = Stat::read()
        {
            gauge("process_resident_memory_bytes", "Resident memory", resident)?;
            gauge(
                "process_start_time_seconds",
                "Start of the process since 1970",
                start,
            )?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open files", files.count() as f64)?;
        }
        if let Some(Stat { cpu, .. }) = Stat::read() {
            let mut counter = encoder.encode_descriptor(
                "process_cpu_seconds",
                "Processor time of the process",
                None,
                MetricType::Counter,
            )?;
            counter.encode_counter::<NoLabelSet, _, u64>(&cpu, None)?;
        }
        Ok(())
    }
}

/// The figures of `/proc/self/stat`.
struct Stat {
    /// Processor time, in seconds.
    cpu: f64,
    /// Resident memory, in bytes.
    resident: f64,
    /// The start of the process, in seconds since 1970.
    start: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // Field 2 is the name of the process in parentheses, which may have blanks. So the fields
        // are counted from the last parenthesis: field 3, the state, comes first.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = clock_ticks_per_second() as f64;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = boot
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?
            .trim()
            .parse()
            .ok()?;
        Some(Self {
            cpu: (field(14)? + field(15)?) / ticks,
            resident: field(24)? * page_size() as f64,
            start: boot + field(22)? / ticks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_figures() {
        let stat = Stat::read().expect("the system is Linux");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64();
        assert!(
            (0.0..3600.0).contains(&stat.cpu) && stat.resident > 100_000.0,
            "{} {}",
            stat.cpu,
            stat.resident
        );
        assert!(
            (now - 3600.0..now + 2.0).contains(&stat.start),
            "{} {now}",
            stat.start
        );
    }
}
