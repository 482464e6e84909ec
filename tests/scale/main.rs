//! Large numbers: of objects, of names, of letters and rows. No call takes longer for them, and
//! nobody waits for them.
#![cfg(feature = "worker")]

#[path = "../support/mod.rs"]
mod support;

mod bounded;
mod departed;
mod fairness;
mod rules_million;
