//! Options for the wait for replicas.

use std::time::Duration;

use crate::console::units::time;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Replicas {
    /// Wait until N replicas have what was written: a worker before it gives events to the sink, an
    /// emit before it counts as done
    #[arg(long, env = "SERIATIM_WAIT", value_name = "N", default_value_t = 0)]
    pub(crate) wait: u32,
    /// The longest of these waits; a worker then begins another one, an emit fails
    #[arg(long, env = "SERIATIM_WAIT_TIMEOUT", value_name = "TIME", default_value = "1s", value_parser = time)]
    pub(crate) wait_timeout: Duration,
    /// Also wait until it is on the disk of the master and of N replicas (WAITAOF, Redis 7.2)
    #[arg(long, env = "SERIATIM_WAIT_LOCAL")]
    pub(crate) wait_local: bool,
}
