//! Checks the invariants ("Invariants" in `docs/design.md`) on a live Redis, by number.
//!
//! The system changes during the check. So the walk over the keys only finds *suspicions*. A script
//! then looks at each suspicion alone, in one atomic step, and only violations found there are
//! reported. A violation that is repaired between the two looks is not reported. In a system at
//! rest, no violation is missed.
//!
//! No atomic step could read all markers: it would stop Redis for too long. So possibly uncovered
//! objects are collected, searched for in steps, and looked at again. A producer pushes a marker
//! with each event. A worker that takes an event changes the queue or the last id. If queue and
//! last id are the same before and after the search, the object really has no marker. Otherwise the
//! search is repeated, up to three times.
//!
//! - `walk`: the walk over the keys, which collects the subjects
//! - `state`: the subjects and names that the walk has seen
//! - `confirm`: the second look at each suspicion, and the search for markers of uncovered objects
//! - `script`: the call of `lua/check.lua`, and its findings
//! - `report`: invariants, violations and counts
//!
//! Memory: the reported violations; 8 bytes for each marker and each object with events, up to 32
//! MiB each; 4,096 objects to search for; and all registered names. Beyond these limits the check
//! is still correct, but slower.

mod confirm;
mod report;
mod script;
mod state;
mod walk;

pub use self::report::{CheckReport, Invariant, LookedAt, NOT_READABLE, NotReadable, Subject, Violation};
use self::state::Walk;
use super::{Control, ControlError};

/// Maximum number of violations that [`Control::check`] lists. The total counts all of them.
pub const VIOLATIONS_MAX: usize = 100;

impl Control {
    /// Checks the invariants on a live Redis. Lists at most [`VIOLATIONS_MAX`] violations.
    ///
    /// Walks over all keys in bounded steps. Only reads; may be called again, and dropped at any
    /// time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked. Broken invariants and keys of wrong types are not
    /// errors: the report lists them.
    pub async fn check(&self) -> Result<CheckReport, ControlError> {
        self.check_up_to(VIOLATIONS_MAX).await
    }

    /// Does the same as [`Control::check`], with another limit for the listed violations. Each
    /// takes some hundred bytes of memory.
    ///
    /// # Errors
    /// As [`Control::check`].
    pub async fn check_up_to(&self, violations_max: usize) -> Result<CheckReport, ControlError> {
        Walk::new(&mut self.connection(), &self.keys, violations_max).run().await
    }
}
