//! Times.
//!
//! - `retry`: the retry policies
//! - `event_time`: the age of events, from the time that each event itself has
//! - `growing_wait`, `pending`: helpers for waits

pub(in crate::worker) mod event_time;
pub(in crate::worker) mod growing_wait;
pub(in crate::worker) mod pending;
pub(in crate::worker) mod retry;
