//! A comparison with another program: `redis-benchmark`, which comes with Redis, shows the speed of
//! this machine.

use std::process::Stdio;

use tokio::process::Command;

use super::place::Target;

const PROGRAM: &str = "redis-benchmark";

/// The results of `redis-benchmark`, or the reason why there are none.
pub(super) struct Lpush {
    pub(super) payload_bytes: usize,
    pub(super) requests: u64,
    pub(super) per_second: Result<Vec<f64>, &'static str>,
}

impl Lpush {
    pub(super) fn new(place: &Target, payload_bytes: usize, events: u64) -> Self {
        // It runs only on a private Redis, because `redis-benchmark` writes to a key outside the
        // namespace.
        let per_second = if place.is_private() {
            Ok(Vec::new())
        } else {
            Err("not run: it writes outside of the namespace; see --private")
        };
        Self {
            payload_bytes,
            requests: (events * 10).clamp(1_000, 1_000_000),
            per_second,
        }
    }

    /// Runs `redis-benchmark` once. If it cannot run, the reason goes to the report, and the bench
    /// goes on.
    pub(super) async fn run(&mut self, place: &Target, record: bool) -> anyhow::Result<()> {
        let Ok(samples) = &mut self.per_second else {
            return Ok(());
        };
        place.clean().await?;
        let port = place.url.rsplit(':').next().unwrap_or_default();
        let output = Command::new(PROGRAM)
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                port,
                "-t",
                "lpush",
                "-P",
                "64",
                "-q",
                "--csv",
            ])
            .args([
                "-d",
                &self.payload_bytes.to_string(),
                "-n",
                &self.requests.to_string(),
            ])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        match output.map(|output| read(&String::from_utf8_lossy(&output.stdout))) {
            Ok(Some(per_second)) if record => samples.push(per_second),
            Ok(Some(_)) => {}
            Ok(None) => self.per_second = Err("not measured: its output is unreadable"),
            Err(_) => self.per_second = Err("not measured: it is not on the PATH"),
        }
        place.clean().await
    }
}

/// Parses the requests per second from the line `"LPUSH","1234567.00",…`.
fn read(csv: &str) -> Option<f64> {
    let line = csv
        .lines()
        .find(|line| line.to_ascii_uppercase().starts_with("\"LPUSH"))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"LPUSH\",\"1234567.00\",\"0.1\"\n";
        assert_eq!(super::read(csv), Some(1_234_567.0));
        assert_eq!(super::read("Could not connect"), None);
    }
}
