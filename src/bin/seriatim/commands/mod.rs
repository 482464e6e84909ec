//! The commands: one file or folder each, with its arguments, its output and its exit codes.
//!
//! Each reads its arguments, calls the library, and prints. Only `demo` and `bench` have rooms of
//! their own.

pub(crate) mod actions;
pub(crate) mod check;
pub(crate) mod dead;
pub(crate) mod emit;
pub(crate) mod forget;
pub(crate) mod held;
pub(crate) mod inspect;
pub(crate) mod log;
pub(crate) mod rules;
pub(crate) mod stats;
pub(crate) mod verify;
pub(crate) mod worker;
