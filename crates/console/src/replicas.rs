//! Options for the wait for replicas, and the emitter that they describe.

use std::time::Duration;

use seriatim::Emitter;
use seriatim::keys::Keys;

use crate::failures;
use crate::global::Global;
use crate::units::time;

#[derive(Debug, Clone, clap::Args)]
pub struct Replicas {
    /// Wait until N replicas, 0 to 100, have the data: a worker waits before it delivers a batch,
    /// an emit waits before it succeeds
    #[arg(long, env = "SERIATIM_WAIT", value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub wait: u32,
    /// The time limit of one such wait, 10ms to 1m; after it an emit fails, and a worker waits
    /// again
    #[arg(long, env = "SERIATIM_WAIT_TIMEOUT", value_name = "TIME", default_value = "1s", value_parser = wait_time)]
    pub wait_timeout: Duration,
    /// Also wait until the data is on the disks of the master and of N replicas (WAITAOF, Redis
    /// 7.2)
    #[arg(long, env = "SERIATIM_WAIT_LOCAL")]
    pub wait_local: bool,
}

impl Replicas {
    /// Returns an emitter that waits for the replicas. Its first call connects.
    pub fn emitter(&self, global: &Global, keys: Keys) -> anyhow::Result<Emitter> {
        let builder = Emitter::builder(global.server())
            .keys(keys)
            .wait(self.wait, self.wait_timeout);
        builder
            .wait_local(self.wait_local)
            .unconnected()
            .map_err(failures::emit)
    }
}

fn wait_time(text: &str) -> Result<Duration, String> {
    let found = time(text)?;
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if range.contains(&found) {
        Ok(found)
    } else {
        Err("it must be 10ms to 1m".to_owned())
    }
}
