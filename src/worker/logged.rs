//! Log lines about objects and batches.

use tracing::{debug, error, warn};

use crate::escape;
use crate::event::ObjectName;
use crate::wire::{BatchResult, Report};

/// Logs an object that a call of advance has quarantined, or a name that it has dropped. `object`
/// is escaped.
pub(crate) fn put_aside(object: &str, why: &str) {
    match why.starts_with("foreign: ") {
        true => warn!(%object, why, "claim: the marker is dropped"),
        false => error!(%object, why, "claim: the object is held until an operator releases it"),
    }
}

/// Logs the result of a batch.
pub(crate) fn result(object: &ObjectName, report: &Report) {
    let object = escape::name(object.as_str());
    match &report.then {
        BatchResult::Hold { rest, delay: Some(delay), reason } => {
            warn!(%object, id = rest.first, why = %reason, attempts = rest.attempts, ?delay, "deliver: failed, will be retried");
        }
        BatchResult::Hold { rest, delay: None, reason } => {
            error!(%object, id = rest.first, why = %reason, "deliver: the object is held until an operator releases it or skips the event");
        }
        BatchResult::Reject { id, error, attempts, .. } => warn!(%object, id, error, attempts, "deliver: a dead letter"),
        BatchResult::Complete { id, error, attempts, .. } => {
            warn!(%object, id, error, attempts, "deliver: completed with errors")
        }
        _ => debug!(%object, events = report.count, "deliver"),
    }
}
