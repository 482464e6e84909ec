//! Shares of groups: the weight and the priority with which groups of objects take turns.
//!
//! Shares bind only workers with groups ([`WorkerConfig::group_depth`]), and only while more objects
//! wait than these workers can claim.
//!
//! [`WorkerConfig::group_depth`]: crate::worker::WorkerConfig::group_depth

use redis::RedisResult;
use serde::Serialize;

use super::rules::{COLONS_MAX, Selector};
use super::{Control, ControlError};
use crate::wire::operator::{self, By, ShareStep};
use crate::wire::values::ShareValue;

pub use crate::wire::operator::ShareDone;
pub use crate::wire::values::Priority;

/// Maximum number of shares at the same time. To give many groups a share, use a short prefix.
pub const SHARES_MAX: u64 = 1024;

/// Maximum weight of a share. The minimum is 1, the weight of groups without a share that sets one.
pub const WEIGHT_MAX: u64 = 100;

/// A share to set, passed to [`Control::set_share`]. It has a weight, a priority, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "nothing is set before Control::set_share"]
pub struct Share {
    weight: Option<u64>,
    priority: Option<Priority>,
}

impl Share {
    /// Returns a share without any part.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the weight, 1 to [`WEIGHT_MAX`]. Default: the weight of a shorter prefix with a share
    /// that sets one, or else 1.
    pub fn weight(mut self, weight: u64) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Sets the priority. Default: the priority of a shorter prefix with a share that sets one, or
    /// else [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }
}

/// The share of one selector.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SelectorShare {
    /// The objects: a prefix as in `acme:*`. The object that has the name of the prefix, `acme`, is
    /// one of them. If several selectors match a group, each part comes from the longest one that
    /// sets it.
    pub selector: String,
    /// Weight of the groups, 1 to [`WEIGHT_MAX`]; none if the share sets no weight.
    pub weight: Option<u64>,
    /// Priority of the groups; none if the share sets no priority.
    pub priority: Option<Priority>,
    /// Maximum number of objects in flight; none if the share sets none. Workers of this version
    /// do not use it.
    pub in_flight: Option<u64>,
    /// Maximum number of objects claimed per second; none if the share sets none. Workers of this
    /// version do not use it.
    pub rate: Option<f64>,
    /// Maximum number of objects claimed at once after a pause; none if the share sets none.
    /// Workers of this version do not use it.
    pub burst: Option<u64>,
    /// The actor who set the share.
    pub actor: String,
    /// The reason that the actor gave.
    pub reason: String,
    /// Time at which the share was set, ms since the epoch.
    pub set_ms: u64,
}

impl Control {
    /// Sets the share of a prefix: the weight and the priority of its groups. If the selector has a
    /// share already, the whole share is replaced. If the priority of a group that waits changes,
    /// the group begins one claim behind the first group of its new priority. The step is recorded
    /// in the [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// [`ControlError::ShareSelector`] for any selector but `PREFIX:*` with 1 to 8 parts.
    /// [`ControlError::ShareEmpty`] for a share without any part. [`ControlError::ShareWeight`] for
    /// a weight out of range. [`ControlError::Shares`] if there are [`SHARES_MAX`] shares already.
    /// Other errors if Redis cannot be asked or forbids it.
    pub async fn set_share(&self, by: By<'_>, selector: &Selector, share: Share) -> Result<ShareDone, ControlError> {
        let text = self.share_selector(selector)?;
        let Share { weight, priority } = share;
        match weight {
            None if priority.is_none() => return Err(ControlError::ShareEmpty),
            Some(weight) if !(1..=WEIGHT_MAX).contains(&weight) => return Err(ControlError::ShareWeight(weight)),
            _ => {}
        }
        let step = ShareStep::Set { weight, priority };
        match operator::share(&mut self.connection(), &self.keys, by, text, step).await? {
            ShareDone::TooMany(shares) => Err(ControlError::Shares(shares)),
            done => Ok(done),
        }
    }

    /// Removes a share. Returns [`ShareDone::Removed`] or [`ShareDone::NotSet`]. Groups whose
    /// priority changes move as with [`set_share`](Self::set_share). The step is recorded in the
    /// [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// As [`set_share`](Self::set_share).
    pub async fn remove_share(&self, by: By<'_>, selector: &Selector) -> Result<ShareDone, ControlError> {
        let text = self.share_selector(selector)?;
        Ok(operator::share(&mut self.connection(), &self.keys, by, text, ShareStep::Remove).await?)
    }

    /// Reads all shares, sorted by selector. There are at most [`SHARES_MAX`]. The call only reads,
    /// and may be repeated.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `event.shares` is not a hash.
    pub async fn shares(&self) -> Result<Vec<SelectorShare>, ControlError> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.event_shares());
        let answer: RedisResult<Vec<(Vec<u8>, Vec<u8>)>> = ask.query_async(&mut self.connection()).await;
        let fields = answer.map_err(ControlError::redis("event.shares"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let read = |(selector, value): (Vec<u8>, Vec<u8>)| {
            let ShareValue { weight, priority, in_flight, rate, burst, set_ms, who, why } = ShareValue::read(&value)?;
            let (selector, actor, reason) = (text(&selector), text(&who), text(&why));
            Some(SelectorShare { selector, weight, priority, in_flight, rate, burst, actor, reason, set_ms })
        };
        let mut shares: Vec<_> = fields.into_iter().filter_map(read).collect();
        shares.sort_by(|one, other| one.selector.cmp(&other.selector));
        Ok(shares)
    }

    fn share_selector<'a>(&self, selector: &'a Selector) -> Result<&'a str, ControlError> {
        let text = selector.as_str();
        let refused = |reason: String| Err(ControlError::ShareSelector { selector: text.to_owned(), reason });
        match text.strip_suffix(":*") {
            _ if text == "*" => {
                refused("a weight and a priority of all objects have no effect; write a prefix such as acme:*".into())
            }
            None => refused(format!(
                "a share is for a prefix such as acme:*; for this one object write {:?}, because a share for PREFIX:* also covers \
                 the object PREFIX itself",
                [text, ":*"].concat()
            )),
            Some("") => refused("the prefix is empty; write a prefix such as acme:*".into()),
            Some(prefix) if prefix.matches(':').count() >= COLONS_MAX => {
                refused(format!("the prefix has more than {COLONS_MAX} parts; parts end at colons"))
            }
            Some(prefix) => {
                self.keys.object(prefix)?;
                Ok(text)
            }
        }
    }
}
