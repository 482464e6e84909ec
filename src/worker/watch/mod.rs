//! The observation of a process: counts, health, log lines, status and spans.
//!
//! - `activity`: finds out whether the worker's loop turns, and which deliveries block their thread
//! - `figures`: counts and times since the worker's start, and its present state
//! - `health`: whether the sink is available
//! - `outage`: records whether Redis is away, and writes log lines about it
//! - `logged`: log lines about objects and batches
//! - `reports`: the reports of handlers on the events under delivery, for the command `inspect`
//! - `status`: the status that the process writes into Redis, for the command `stats`
//! - `traces`: a span for each delivery (feature `traces`)

pub(in crate::worker) mod activity;
pub(in crate::worker) mod figures;
pub(in crate::worker) mod health;
pub(in crate::worker) mod logged;
pub(in crate::worker) mod outage;
pub(in crate::worker) mod reports;
pub(in crate::worker) mod status;
#[cfg_attr(not(feature = "traces"), path = "no_traces.rs")]
pub(in crate::worker) mod traces;
