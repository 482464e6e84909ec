//! A private Redis, the benchmark and the demo of the program `seriatim`.
//!
//! - [`bench`]: `seriatim bench`
//! - [`demo`]: `seriatim demo`
//! - [`statistics`]: medians of measured values, also for the programs in `benches`
//! - `private`: a private Redis for both
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
// All output goes through the functions of `shown`, which do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod demo;
mod private;
pub mod statistics;
