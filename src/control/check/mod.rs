//! Checks the invariants of `docs/design.md` ("Invariants") on a live Redis. Violations name the
//! invariant by its number.
//!
//! The system changes during the check. So the walk over the keys only finds *suspicions*. Then a
//! script looks at each suspicion alone, in one atomic step. The check reports only the violations
//! that this second look finds. A violation that is repaired before the second look is not
//! reported. In a system at rest, no violation is missed.
//!
//! Names of objects that are grouped count like markers.
//!
//! No atomic step could read all markers: it would stop Redis for too long. So the check collects
//! the objects that seem uncovered, searches for their markers in several steps, and looks at the
//! objects again. A producer pushes a marker with each event. A worker that takes an event changes
//! the queue or the last id. If queue and last id of an object are the same before and after the
//! search, the object really has no marker. Otherwise the check repeats the search, up to three
//! times.
//!
//! - `walk`: the walk over the keys, which collects the subjects
//! - `state`: the subjects and names that the walk has seen
//! - `confirm`: the second look at each suspicion, and the search for markers of uncovered objects
//! - `mend`: a repair, which puts right each suspicion of the walk
//! - `paced`: a connection with pauses
//! - `script`: the call of `lua/check.lua`, and its findings
//! - `report`: invariants, violations and counts
//!
//! Memory of the check: the reported violations; 8 bytes for each marker and each object with
//! events, up to 32 MiB each; 4,096 objects to search for; and all registered names. Beyond 32 MiB
//! or 4,096 objects the check is still correct, but slower.

mod confirm;
pub(super) mod mend;
mod paced;
mod report;
mod script;
mod state;
mod walk;

use self::paced::Paced;
pub use self::report::{
    CheckReport, Invariant, LookedAt, NOT_READABLE, NotReadable, Subject, Violation,
};
use self::state::Walk;
use super::{Control, ControlError};

/// Maximum number of violations that [`Control::check`] lists. The total counts all of them.
pub const VIOLATIONS_MAX: usize = 100;

impl Control {
    /// Checks the invariants on a live Redis. Lists at most [`VIOLATIONS_MAX`] violations.
    ///
    /// Walks over all keys in bounded steps. The call only reads. It may be repeated, and its
    /// future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked. Broken invariants and keys of wrong types are not
    /// errors: the report lists them.
    pub async fn check(&self) -> Result<CheckReport, ControlError> {
        self.check_up_to(VIOLATIONS_MAX).await
    }

    /// Like [`Control::check`], but lists at most `violations_max` violations. Each listed
    /// violation takes some hundred bytes of memory.
    ///
    /// # Errors
    /// As [`Control::check`].
    pub async fn check_up_to(&self, violations_max: usize) -> Result<CheckReport, ControlError> {
        Walk::new(&mut self.connection(), &self.keys, violations_max)
            .run()
            .await
    }

    /// Checks only the keys that all objects share, and compares the lengths of indexes. So it finds
    /// some lost keys without a look at each object: a lost `objects.held` only
    /// shows in a whole [`check`](Self::check).
    ///
    /// One call of a script, which takes up to 5 ms of Redis' time with 2,000 groups, and 0.1 ms
    /// without groups.
    ///
    /// # Errors
    /// As [`Control::check`].
    pub async fn check_shared(&self) -> Result<Vec<Violation>, ControlError> {
        let subject = (script::Kind::Shared, &b""[..], "counts");
        let reply = script::look(&mut self.connection(), &self.keys, [subject]).await?;
        let violation = |found: script::Finding| {
            Ok(Violation {
                invariant: found.invariant()?,
                subject: Subject::Shared,
                what: found.what,
            })
        };
        reply.findings.into_iter().map(violation).collect()
    }

    /// Like [`check_up_to`](Self::check_up_to), but in the background: takes at most about the part
    /// `share` of Redis' time (0.2 means 20 %; at least 0.001).
    ///
    /// # Errors
    /// As [`Control::check`].
    pub async fn paced_check(
        &self,
        violations_max: usize,
        share: f64,
    ) -> Result<CheckReport, ControlError> {
        let mut conn = Paced::new(self.connection(), share.clamp(0.001, 1.0));
        Walk::new(&mut conn, &self.keys, violations_max).run().await
    }
}
