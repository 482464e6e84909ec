//! Schedules: events that are pushed to their queue when they are due.
#![cfg(feature = "worker")]

mod emit;
mod keyed;
mod operator;
mod promote;
