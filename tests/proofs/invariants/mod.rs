//! The invariants of `docs/design.md`, section 5, held against a real Redis.
//!
//! [`random`] drives the scripts through random schedules of frontends, workers and crashes; the
//! other modules put them into situations that such schedules seldom meet. Every step is followed
//! by a look at the whole state ([`state`]) with a checker of its own ([`check`]).
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
