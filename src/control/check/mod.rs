//! The invariants ("Invariants" in `docs/design.md`), read off a live Redis by number.
//!
//! The system moves while it is looked at. So the walk over the keys only finds *suspicions*; each
//! is looked at again, alone, by a script that reads all it needs in one atomic step, and only what
//! is broken there is reported. A violation that heals between the two is none; in a system at
//! rest, nothing is missed.
//!
//! No atomic step could look through all markers: Redis would stand still meanwhile. Objects that
//! nothing seems to cover are therefore gathered, searched for in steps, and looked at again. A
//! producer pushes a marker with each event, and a worker that takes one changes the queue or the
//! last id. If both are as they were before the search, what the search did not find is not there.
//! Otherwise it is searched for again, up to three times.
//!
//! - `walk`: the walk over the keys, which gathers the subjects
//! - `state`: the subjects and names that the walk has met
//! - `confirm`: the second look at each suspicion, and the search for what may cover an object
//! - `script`: the call of `lua/check.lua`, and its findings
//! - `report`: invariants, violations and counts
//!
//! Memory: the violations reported, 8 bytes for each marker and each object with events, up to 32
//! MiB of either, and 4,096 objects to be searched for; beyond that the check goes on and only
//! takes longer. Besides, all registered names.

mod confirm;
mod report;
mod script;
mod state;
mod walk;

pub use self::report::{CheckReport, Invariant, LookedAt, NOT_READABLE, NotReadable, Subject, Violation};
use self::state::Walk;
use super::{Control, ControlError};

/// How many violations [`Control::check`] reports one by one; all are counted.
pub const VIOLATIONS_MAX: usize = 100;

impl Control {
    /// Reads the invariants off a live Redis; reports at most [`VIOLATIONS_MAX`] one by one.
    ///
    /// It walks over all keys in bounded steps, and takes as long as that. Only reads; may be
    /// called again, and dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked. Broken invariants and keys of wrong types are no
    /// errors: they are in the report.
    pub async fn check(&self) -> Result<CheckReport, ControlError> {
        self.check_up_to(VIOLATIONS_MAX).await
    }

    /// The same with another limit for the violations that are reported one by one. Each takes some
    /// hundred bytes of memory.
    ///
    /// # Errors
    /// As [`Control::check`].
    pub async fn check_up_to(&self, violations_max: usize) -> Result<CheckReport, ControlError> {
        Walk::new(&mut self.connection(), &self.keys, violations_max).run().await
    }
}
