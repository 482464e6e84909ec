//! Schedules: events that are queued when they are due.
#![cfg(feature = "worker")]

mod emit;
mod keyed;
mod promote;
