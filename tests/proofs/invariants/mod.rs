//! The invariants of `docs/design.md`, section 5, checked against a real Redis.
//!
//! [`random`] runs the scripts in random schedules of producers, workers and crashes. The other
//! modules build situations that such schedules seldom reach. After every step the whole state
//! ([`state`]) is checked by a separate checker ([`check`]).
#![allow(unreachable_pub)]

mod bounds;
mod check;
mod drain;
mod log;
mod names;
mod puppet;
mod quarantine;
mod random;
mod regressions;
mod rig;
mod rules;
mod run;
mod state;
mod world;

pub(crate) use run::Rng;
