//! Proofs over many schedules: the scripts against a reference, the invariants after every step,
//! random bytes, a fault at every command.
#![cfg(feature = "worker")]

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod failpoints;
mod fuzz_inputs;
mod fuzz_redis;
mod invariants;
mod machine;
mod usual;
