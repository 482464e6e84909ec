//! A private Redis, the benchmark and the demo of the program `seriatim`.
//!
//! - [`bench`]: `seriatim bench`
//! - [`demo`]: `seriatim demo`
//! - `private`: a private Redis for both
//! - `random`: numbers from a seed
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
// All output goes through the functions of `shown`, which do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod demo;
mod private;
