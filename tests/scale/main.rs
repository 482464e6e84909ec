//! Large numbers of objects, names, dead letters and rows. No call takes longer because of them,
//! and no worker waits for them.

#[path = "../support/mod.rs"]
mod support;

mod bounded;
mod cost;
mod dashboard;
mod departed;
#[cfg(feature = "metrics")]
mod exporter;
mod fairness;
mod groups;
mod idle;
mod looks;
mod pages;
mod repair;
mod rules_million;
mod searches;
mod shares;
