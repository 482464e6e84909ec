//! Looks for a page that shows the system: events are cut, and each call reads a bounded amount.

mod actions;
mod chain;
mod cut;
mod held;
mod slots;
