//! The set of registered handlers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fields::HandlerFields;
use super::handler::AnyHandler;

/// The fate of an event for which no handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unhandled {
    /// The event waits for a process that has a handler for it, and no attempt is counted. After
    /// [`unknown_max`](crate::worker::WorkerConfig::unknown_max) the event is rejected. So
    /// processes of an older version do not reject new types while a new version is rolled out.
    #[default]
    Wait,
    /// The event is rejected. The retry policy decides its fate, by default a dead letter.
    DeadLetter,
    /// The event counts as delivered.
    Complete,
    /// The event fails transiently and is retried. Another process may have a handler for it, or
    /// this process may have one after its next start.
    Retry,
}

pub(super) struct Registered {
    pub(super) id: String,
    pub(super) fields: HandlerFields,
    pub(super) timeout: Duration,
    pub(super) handler: Box<dyn AnyHandler>,
}

pub(super) struct HandlerSet {
    pub(super) all: Vec<Registered>,
    /// Positions in `all` of the handlers for each type.
    pub(super) types: BTreeMap<String, Vec<usize>>,
    pub(super) every: Vec<usize>,
    pub(super) other: Vec<usize>,
    pub(super) unhandled: Unhandled,
}

impl HandlerSet {
    /// Returns the positions of the handlers for an event of this type, in the order of
    /// registration.
    pub(super) fn handlers_of(&self, event_type: Option<&str>) -> Vec<usize> {
        let of_type = event_type
            .and_then(|name| self.types.get(name))
            .unwrap_or(&self.other);
        let mut handlers: Vec<_> = of_type.iter().chain(&self.every).copied().collect();
        handlers.sort_unstable();
        handlers
    }
}
