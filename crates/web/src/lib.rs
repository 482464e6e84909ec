//! The servers of the program `seriatim`.
//!
//! - [`listen`]: everything that listens for HTTP
//! - `operator`: the looks and the actions of operators, for both servers
//! - [`serve`]: `seriatim serve`
//! - [`dashboard`]: `seriatim dashboard`
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
// All output goes through the functions of `shown`, which do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod dashboard;
pub mod listen;
mod operator;
pub mod serve;
