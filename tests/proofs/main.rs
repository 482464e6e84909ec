//! Proofs over many schedules. The scripts are compared with a reference, and the invariants are
//! checked after every step. Parsers get random bytes, and each command meets a fault.

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod failpoints;
mod fresh;
mod fuzz_inputs;
mod fuzz_redis;
mod invariants;
mod jobs;
mod machine;
mod pages;
mod seeds;
mod words;
