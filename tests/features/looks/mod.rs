//! Looks for a page that shows the system: events are cut, and each call reads a bounded amount.
#![cfg(feature = "cli")]

mod cut;
