//! Repairs: puts keys right that belong together, after one of them was deleted by hand or evicted.
//!
//! [`Control::repair`] walks over all keys as [`Control::check`] does. A script looks at each
//! suspicion alone, in one atomic step, and rebuilds what can be rebuilt from the other keys. So a
//! repair may run beside workers and producers. Each event keeps its object, its order, and its ids
//! if they are known.
//!
//! A repair never guesses. It leaves, with a reason, what only a person can decide.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::check::{Subject, mend};
use super::{By, Control, ControlError};

/// Settings of a repair.
#[derive(Debug, Clone, PartialEq)]
pub struct Repair {
    /// Only describe the steps. Default: `true`.
    pub dry_run: bool,
    /// The due time, in ms since 1970, of schedules that have lost theirs. Default: none, which
    /// leaves them as they are.
    pub schedules_due_ms: Option<u64>,
    /// Ids of workers that are dead, although no worker process of seriatim had them, e.g. workers of
    /// the plain algorithm. `*` stands for all such ids. A repair frees the objects that they own. A
    /// worker that still runs would deliver its event a second time. Default: none.
    pub dead_owners: Vec<String>,
    /// Without a namespace: whether a list `X:events` is a queue if no other key shows that seriatim
    /// knows the object X. Default: `false`.
    pub all_lists: bool,
    /// The most steps that the report lists. It counts all of them. Default: 100.
    pub steps_max: usize,
    /// The most of Redis' time that the repair takes, as a part of 1. Default: 0.5.
    pub share: f64,
}

impl Default for Repair {
    fn default() -> Self {
        Self {
            dry_run: true,
            schedules_due_ms: None,
            dead_owners: Vec::new(),
            all_lists: false,
            steps_max: super::check::VIOLATIONS_MAX,
            share: 0.5,
        }
    }
}

/// One step of a repair, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RepairStep {
    /// The subject.
    pub subject: Subject,
    /// The kind of the step, e.g. `held`, `marker` or `requeued`; `left` if there is none.
    pub kind: String,
    /// Description of the step, or the reason and a remedy, in one line.
    pub what: String,
}

/// The result of [`Control::repair`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RepairReport {
    /// Whether the steps were only described.
    pub dry_run: bool,
    /// Number of all steps.
    pub steps_total: u64,
    /// Number of steps of each kind.
    pub kinds: BTreeMap<String, u64>,
    /// The first steps, up to the limit of the call.
    pub steps: Vec<RepairStep>,
    /// Number of subjects that were left as they are.
    pub left_total: u64,
    /// The first of them, up to the limit of the call.
    pub left: Vec<RepairStep>,
    /// The longest time of one call of the script, with the way to Redis.
    #[serde(skip)]
    pub slowest_call: Duration,
}

impl Control {
    /// Puts right what can be rebuilt from other keys. By default only describes the steps.
    ///
    /// Walks over all keys in bounded steps, with pauses. Each step is atomic and looks at the
    /// present state again. The call may be repeated, and its future may be dropped at any time: a
    /// further call does what is left. All steps share one row of the [actions](Control::actions),
    /// `repair`.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked or forbids it, or if a shared key has a wrong type.
    pub async fn repair(&self, by: By<'_>, repair: &Repair) -> Result<RepairReport, ControlError> {
        mend::run(self.connection(), &self.keys, by, repair).await
    }
}
