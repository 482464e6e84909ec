//! Limits of the queues: the maximum number of queued events of an object, and of markers.
//!
//! The emitters of this crate and the commands refuse an emit that would exceed a limit. Limits do
//! not bind producers that send a plain `MULTI`, emits of handlers, promoted schedules, cron jobs
//! and retried dead letters.

use std::num::NonZeroU64;

use redis::RedisResult;
use serde::{Deserialize, Serialize};

use super::rules::Selector;
use super::{Control, ControlError};
use crate::wire::operator::{self, By, LimitStep};

pub use crate::wire::operator::LimitDone;

/// Maximum number of limits at the same time. Each emitter reads all of them.
pub const LIMITS_MAX: u64 = 1000;

/// The limit of one selector. Its JSON, without the selector, is the value in `event.limits`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueLimit {
    /// The objects: `*`, or a prefix as in `work:*`. If several selectors match an object, the
    /// limit of the longest one counts.
    #[serde(default)]
    pub selector: String,
    /// Maximum number of queued events of an object; none if any number is allowed.
    pub queued_max: Option<u64>,
    /// Maximum number of markers of the namespace; none if any number is allowed. Only the selector
    /// `*` can have this limit.
    pub markers_max: Option<u64>,
    /// The actor who set the limit.
    pub actor: String,
    /// The reason that the actor gave.
    pub reason: String,
    /// Time at which the limit was set, ms since the epoch.
    pub set_ms: u64,
}

impl Control {
    /// Sets a limit for all objects or a prefix: the maximum number of queued events of an object,
    /// and of markers of the namespace. `None` allows any number. So a longer prefix can be without
    /// a limit. Only the selector `*` can limit the markers. If the selector has a limit already,
    /// it is replaced. Emitters obey the limit within 5 s. The step is recorded in the
    /// [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// [`ControlError::LimitSelector`] for the name of one object, or for a prefix with a limit of
    /// markers. [`ControlError::Limits`] if there are [`LIMITS_MAX`] limits already. Other errors
    /// if Redis cannot be asked or forbids it.
    pub async fn set_limit(
        &self,
        by: By<'_>,
        selector: &Selector,
        queued_max: Option<NonZeroU64>,
        markers_max: Option<NonZeroU64>,
    ) -> Result<LimitDone, ControlError> {
        let text = self.limit_selector(selector)?;
        if markers_max.is_some() && text != "*" {
            return Err(ControlError::LimitSelector(text.to_owned()));
        }
        let (queued_max, markers_max) = (
            queued_max.map(NonZeroU64::get),
            markers_max.map(NonZeroU64::get),
        );
        let step = LimitStep::Set {
            queued_max,
            markers_max,
            limits_max: LIMITS_MAX,
        };
        match operator::limit(&mut self.connection(), &self.keys, by, text, step).await? {
            LimitDone::TooMany(limits) => Err(ControlError::Limits(limits)),
            done => Ok(done),
        }
    }

    /// Removes a limit. Returns [`LimitDone::Removed`] or [`LimitDone::NotSet`]. Emitters notice
    /// the change within a second. The step is recorded in the [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// As [`set_limit`](Self::set_limit).
    pub async fn remove_limit(
        &self,
        by: By<'_>,
        selector: &Selector,
    ) -> Result<LimitDone, ControlError> {
        let text = self.limit_selector(selector)?;
        Ok(operator::limit(
            &mut self.connection(),
            &self.keys,
            by,
            text,
            LimitStep::Remove,
        )
        .await?)
    }

    /// Reads all limits, sorted by selector. There are at most [`LIMITS_MAX`]. The call only reads,
    /// and may be repeated.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `event.limits` is not a hash.
    pub async fn limits(&self) -> Result<Vec<QueueLimit>, ControlError> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.event_limits());
        let answer: RedisResult<Vec<(Vec<u8>, Vec<u8>)>> =
            ask.query_async(&mut self.connection()).await;
        let fields = answer.map_err(ControlError::redis("event.limits"))?;
        let read = |(selector, value): (Vec<u8>, Vec<u8>)| {
            let limit: QueueLimit = serde_json::from_slice(&value).ok()?;
            let selector = String::from_utf8_lossy(&selector).into_owned();
            Some(QueueLimit { selector, ..limit })
        };
        let mut limits: Vec<_> = fields.into_iter().filter_map(read).collect();
        limits.sort();
        Ok(limits)
    }

    fn limit_selector<'a>(&self, selector: &'a Selector) -> Result<&'a str, ControlError> {
        let text = selector.as_str();
        match text.strip_suffix('*') {
            _ if text == "*" => Ok(text),
            Some(prefix) if prefix.ends_with(':') => {
                self.keys.object(prefix)?;
                Ok(text)
            }
            _ => Err(ControlError::LimitSelector(text.to_owned())),
        }
    }
}
