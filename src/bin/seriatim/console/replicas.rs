//! Options for the wait for replicas.

use std::time::Duration;

use crate::console::units::time;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Replicas {
    /// Wait until N replicas, 0 to 100, have the data: a worker waits before it delivers a batch,
    /// an emit waits before it succeeds
    #[arg(long, env = "SERIATIM_WAIT", value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) wait: u32,
    /// The time limit of one such wait, 10ms to 1m; after it an emit fails, and a worker waits
    /// again
    #[arg(long, env = "SERIATIM_WAIT_TIMEOUT", value_name = "TIME", default_value = "1s", value_parser = wait_time)]
    pub(crate) wait_timeout: Duration,
    /// Also wait until the data is on the disks of the master and of N replicas (WAITAOF, Redis
    /// 7.2)
    #[arg(long, env = "SERIATIM_WAIT_LOCAL")]
    pub(crate) wait_local: bool,
}

fn wait_time(text: &str) -> Result<Duration, String> {
    let found = time(text)?;
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if range.contains(&found) { Ok(found) } else { Err("it must be 10ms to 1m".to_owned()) }
}
