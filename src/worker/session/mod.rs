//! The session of a process.
//!
//! - `lease`: takes the worker name, renews its lease, and gives it back
//! - `keeper`: the thread that renews the lease, and does the other periodic work
//! - `connect`: connections, each checked before its first use
//! - `memory`: the highest id, and the servers that the process has met
//! - `recover`: sweeps, which take over the objects of dead processes
//! - `promote`: queues scheduled events when they are due
//! - `cron`: fires cron jobs

pub(in crate::worker) mod connect;
pub(in crate::worker) mod cron;
pub(in crate::worker) mod keeper;
pub(in crate::worker) mod lease;
pub(in crate::worker) mod memory;
pub(in crate::worker) mod promote;
pub(in crate::worker) mod recover;
