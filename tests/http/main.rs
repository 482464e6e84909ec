//! HTTP: the sinks, against a real server in good and bad weather, `seriatim serve`, and the access to
//! `seriatim dashboard`.
#![cfg(feature = "http")]

#[path = "../support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "../support/mod.rs"]
mod support;

mod answers;
mod bulk;
mod causes;
mod connections;
#[cfg(feature = "cli")]
mod cursors;
#[cfg(feature = "cli")]
mod dashboard;
#[cfg(feature = "cli")]
mod documents;
#[cfg(feature = "cli")]
mod doors;
mod early;
#[cfg(feature = "cli")]
mod entrances;
mod event_url;
#[cfg(feature = "cli")]
mod exclusive;
#[cfg(feature = "cli")]
mod in_hand;
#[cfg(feature = "cli")]
mod parameters;
mod receiver;
mod requests;
#[cfg(feature = "cli")]
mod scores;
mod secured;
#[cfg(feature = "cli")]
mod serve;
#[cfg(feature = "cli")]
mod serve_guard;
#[cfg(feature = "cli")]
mod serving;
#[cfg(feature = "cli")]
mod shares;
mod streams;
#[cfg(feature = "cli")]
mod task;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(feature = "cli")]
mod walks;
mod weather;
