//! Checks the invariants of `docs/design.md` with a real Redis.
//!
//! [`random`] runs the scripts in random schedules of producers, workers and crashes. The other
//! modules build situations that such schedules seldom reach. After every step, a separate checker
//! ([`check`]) checks the whole state ([`state`]).
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
