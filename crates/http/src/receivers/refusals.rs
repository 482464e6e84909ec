//! The objects whose events a receiver has refused with an answer that may concern the whole
//! receiver, such as 404 or 503.

use std::collections::HashMap;
use std::sync::Arc;

use seriatim::event::ObjectName;
use tokio::time::Instant;

/// Maximum number of remembered objects, over all receivers. If there are more, the older half is
/// forgotten. They need up to 10 MB.
const OBJECTS_MAX: usize = 10_000;

/// The refused objects, by receiver and object.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<(Arc<str>, ObjectName), Refusal>);

/// The refusal of one object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    /// The time of the first refusal.
    pub(super) at: Instant,
    /// Whether the cause is known to be the object, because the receiver took events of other
    /// objects after the refusal.
    pub(super) is_own: bool,
}

impl Refusals {
    pub(super) fn get(&mut self, origin: &Arc<str>, object: &ObjectName) -> Option<&mut Refusal> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get_mut(&(origin.clone(), object.clone()))
    }

    pub(super) fn add(&mut self, origin: &Arc<str>, object: &ObjectName, at: Instant) {
        if self.0.len() >= OBJECTS_MAX {
            let mut times: Vec<_> = self.0.values().map(|refusal| refusal.at).collect();
            let middle = times.len() / 2;
            let (_, &mut median, _) = times.select_nth_unstable(middle);
            self.0.retain(|_, refusal| refusal.at > median);
        }
        self.0.insert(
            (origin.clone(), object.clone()),
            Refusal { at, is_own: false },
        );
    }

    /// Forgets an object that the receiver has accepted.
    pub(super) fn remove(&mut self, origin: &Arc<str>, object: &ObjectName) {
        if !self.0.is_empty() {
            self.0.remove(&(origin.clone(), object.clone()));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
