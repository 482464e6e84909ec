//! Shares of groups: the weight and the priority with which groups of objects take turns, and limits
//! of the objects in hand and of the events per second.
//!
//! All workers of a namespace must have this version before a share is set. Older workers keep no
//! limit.
//!
//! - `figures`: how far the shares are used
//! - `wait`: whether a share stops an object

mod figures;
mod wait;

use redis::RedisResult;
use serde::Serialize;

use super::names::{self, NameSet, Walk};
use super::rules::{COLONS_MAX, Selector};
use super::{Control, ControlError};
use crate::wire::operator::{self, By, InHand, ShareParts, ShareStep};
use crate::wire::values::ShareValue;

pub use self::figures::ShareFigures;
pub use self::wait::ShareWait;
pub(super) use self::wait::{Matching, stopping};
pub use crate::wire::operator::ShareDone;
pub use crate::wire::values::Priority;

/// Maximum number of shares at the same time. To give many groups a share, use a short prefix.
pub const SHARES_MAX: u64 = 1024;

/// Maximum weight of a share. The minimum is 1, the weight of groups without a share that sets one.
pub const WEIGHT_MAX: u64 = 100;

/// Minimum and maximum rate of a share, in events per second.
pub const RATES: std::ops::RangeInclusive<f64> = 0.001..=1_000_000.0;

/// Maximum burst of a share, and maximum number of its objects in hand. The minimum of both is 1; see
/// also [`Share::burst`].
pub const NUMBER_MAX: u64 = 1_000_000;

/// Maximum size of the prefix of a share, in bytes, without `:*`. A change of a share compares the
/// prefixes of all shares with the names of all groups that wait.
pub const PREFIX_BYTES_MAX: usize = 256;

/// Number of slots, or of objects in hand, that one call looks at when objects in hand are counted.
const COUNTED_PER_CALL: usize = 500;
/// Maximum number of times that the objects in hand are counted for one change of a share.
const COUNTS_MAX: usize = 3;

/// A share to set, passed to [`Control::set_share`]. It has at least one part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[must_use = "nothing is set before Control::set_share"]
pub struct Share {
    parts: ShareParts,
}

impl Share {
    /// Returns a share without any part.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the weight, 1 to [`WEIGHT_MAX`]. Default: the weight of a shorter prefix with a share
    /// that sets one, or else 1.
    pub fn weight(mut self, weight: u64) -> Self {
        self.parts.weight = Some(weight);
        self
    }

    /// Sets the priority. Default: the priority of a shorter prefix with a share that sets one, or
    /// else [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.parts.priority = Some(priority);
        self
    }

    /// Sets the maximum number of objects in hand at the same time, over all processes, 1 to
    /// [`NUMBER_MAX`]. Default: any number.
    pub fn in_flight(mut self, objects: u64) -> Self {
        self.parts.in_flight = Some(objects);
        self
    }

    /// Sets the maximum number of events per second, over all processes, in [`RATES`]. Default: any
    /// number. An event counts each time that a worker takes it, also after a retry.
    pub fn rate(mut self, events_per_second: f64) -> Self {
        self.parts.rate = Some(events_per_second);
        self
    }

    /// Sets the maximum number of events above the rate. They can be taken at once if fewer events
    /// were taken before. Minimum: the events of 100 ms, at least 1, and at least 2 for a rate above
    /// 2; with fewer, workers would not reach the rate. Maximum: [`NUMBER_MAX`]. Default: about the
    /// events of 250 ms, at least 1. A burst needs a rate.
    pub fn burst(mut self, events: u64) -> Self {
        self.parts.burst = Some(events);
        self
    }

    /// Returns the parts, if all of them are valid. `of_all`: whether the share is for all objects.
    fn checked(self, of_all: bool) -> Result<ShareParts, ControlError> {
        let parts = self.parts;
        let wrong = |part, wanted: String| Err(ControlError::SharePart { part, wanted });
        let count = 1..=NUMBER_MAX;
        match parts {
            ShareParts {
                weight: Some(weight),
                ..
            } if !(1..=WEIGHT_MAX).contains(&weight) => wrong(
                "the weight",
                format!("a whole number from 1 to {WEIGHT_MAX}"),
            ),
            ShareParts {
                in_flight: Some(objects),
                ..
            } if !count.contains(&objects) => wrong(
                "the number of objects in hand",
                format!("a whole number from 1 to {NUMBER_MAX}"),
            ),
            ShareParts {
                rate: Some(rate), ..
            } if !RATES.contains(&rate) => wrong(
                "the rate",
                format!(
                    "from {} to {} events per second",
                    RATES.start(),
                    RATES.end()
                ),
            ),
            ShareParts {
                burst: Some(events),
                ..
            } if !count.contains(&events) => wrong(
                "the burst",
                format!("a whole number from 1 to {NUMBER_MAX}"),
            ),
            ShareParts {
                burst: Some(events),
                rate: Some(rate),
                ..
            } if events < least_burst(rate) => {
                let least = least_burst(rate);
                wrong(
                    "the burst",
                    format!(
                        "at least {least} for {rate} events per second; with fewer, the rate is not reached"
                    ),
                )
            }
            ShareParts {
                burst: Some(_),
                rate: None,
                ..
            } => wrong("a burst", "set together with a rate".to_owned()),
            ShareParts {
                weight, priority, ..
            } if of_all && (weight.is_some() || priority.is_some()) => wrong(
                "a weight or a priority",
                "for a prefix such as acme:*; for all objects it has no effect".to_owned(),
            ),
            parts if parts == ShareParts::default() => Err(ControlError::ShareEmpty),
            ShareParts {
                rate: Some(rate),
                burst: None,
                ..
            } => Ok(ShareParts {
                burst: Some(default_burst(rate)),
                ..parts
            }),
            parts => Ok(parts),
        }
    }
}

/// Returns the smallest burst of a rate: the events of 100 ms, and at least 2 above 2 events per second.
/// Looks at all rates are 20 ms apart, and each look is some ms late. Time in which the burst is full is
/// lost: at 2 events per second, 25 ms of lateness are 5 %.
fn least_burst(rate: f64) -> u64 {
    let least = if rate > 2.0 { 2 } else { 1 };
    ((rate / 10.0).ceil() as u64).max(least)
}

/// Returns the burst of a rate that is set without one: about the events of 250 ms. So workers may look
/// at the rate a few times per second, and any 10 s have at most about 5 % more events.
fn default_burst(rate: f64) -> u64 {
    let about = if rate < 4.0 {
        1
    } else {
        (rate / 4.0).ceil() as u64 + 1
    };
    about.max(least_burst(rate))
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
    /// Maximum number of objects in hand; none if the share sets none.
    pub in_flight: Option<u64>,
    /// Maximum number of events per second; none if the share sets none.
    pub rate: Option<f64>,
    /// Maximum number of events above the rate; none if the share sets none.
    pub burst: Option<u64>,
    /// The actor who set the share.
    pub actor: String,
    /// The reason that the actor gave.
    pub reason: String,
    /// Time at which the share was set, ms since the epoch.
    pub set_ms: u64,
}

/// Reads a share from its field of `event.shares`. Returns `None` if the value is invalid.
fn read(selector: &[u8], value: &[u8]) -> Option<SelectorShare> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ShareValue {
        weight,
        priority,
        in_flight,
        rate,
        burst,
        set_ms,
        who,
        why,
    } = ShareValue::read(value)?;
    let (selector, actor, reason) = (text(selector), text(&who), text(&why));
    Some(SelectorShare {
        selector,
        weight,
        priority,
        in_flight,
        rate,
        burst,
        actor,
        reason,
        set_ms,
    })
}

impl Control {
    /// Sets the share of a prefix or of all objects. If the selector has a share already, the whole
    /// share is replaced. If the priority of a group that waits changes, the group begins one claim
    /// behind the first group of its new priority. The step is recorded in the
    /// [actions](Control::actions).
    ///
    /// The call first counts the objects in hand, in steps of at most 500 slots. Then one atomic step
    /// sets the share. From then on workers keep its limits. Calling again is safe, and corrects the
    /// count. Dropping the future may leave the share as it was before, or set.
    ///
    /// # Errors
    /// [`ControlError::ShareSelector`] for any selector but `*` and `PREFIX:*`, where PREFIX has 1 to 8
    /// parts and at most [`PREFIX_BYTES_MAX`] bytes.
    /// [`ControlError::ShareEmpty`] for a share without any part. [`ControlError::SharePart`] for a
    /// part that is out of range, or that the selector cannot have. [`ControlError::Shares`] if there
    /// are [`SHARES_MAX`] shares already. [`ControlError::SharesChanged`] if another operator removed
    /// the last share at the same time. Other errors if Redis cannot be asked or forbids it.
    pub async fn set_share(
        &self,
        by: By<'_>,
        selector: &Selector,
        share: Share,
    ) -> Result<ShareDone, ControlError> {
        let text = self.share_selector(selector)?;
        let parts = share.checked(text == "*")?;
        for _ in 0..COUNTS_MAX {
            let Some(counted_since) = self.count_in_hand(by).await? else {
                continue;
            };
            let step = ShareStep::Set {
                counted_since,
                parts,
            };
            match operator::share(&mut self.connection(), &self.keys, by, text, step).await? {
                ShareDone::Restart => {}
                ShareDone::TooMany(shares) => return Err(ControlError::Shares(shares)),
                done => return Ok(done),
            }
        }
        Err(ControlError::SharesChanged)
    }

    /// Makes workers count the objects in hand, and counts those that slots own already. Returns the
    /// time since when workers count; `None` if they do not count any more.
    async fn count_in_hand(&self, by: By<'_>) -> Result<Option<u64>, ControlError> {
        let mut conn = self.connection();
        let since = operator::count_in_hand(&mut conn, &self.keys, by).await?;
        let mut walk = Walk::of(&mut conn, &self.keys, NameSet::Watched).await?;
        while let Some(page) = walk.next(&mut conn, &self.keys).await? {
            let taken = names::taken(&mut conn, &self.keys, b"", &page).await?;
            let mut slots: Vec<String> = taken.objects.into_iter().map(|(slot, _)| slot).collect();
            slots.dedup();
            for slots in slots.chunks(COUNTED_PER_CALL) {
                if operator::in_hand(&mut conn, &self.keys, since, InHand::Slots(slots))
                    .await?
                    .is_none()
                {
                    return Ok(None);
                }
            }
        }
        let mut after = Vec::new();
        loop {
            let look = InHand::Members {
                after: &after,
                count: COUNTED_PER_CALL,
            };
            match operator::in_hand(&mut conn, &self.keys, since, look).await? {
                None => return Ok(None),
                Some(last) if last.is_empty() => return Ok(Some(since)),
                Some(last) => after = last,
            }
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
    pub async fn remove_share(
        &self,
        by: By<'_>,
        selector: &Selector,
    ) -> Result<ShareDone, ControlError> {
        let text = self.share_selector(selector)?;
        Ok(operator::share(
            &mut self.connection(),
            &self.keys,
            by,
            text,
            ShareStep::Remove,
        )
        .await?)
    }

    /// Reads all shares, sorted by selector. There are at most [`SHARES_MAX`]. The call only reads,
    /// and may be repeated.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `event.shares` is not a hash.
    pub async fn shares(&self) -> Result<Vec<SelectorShare>, ControlError> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.event_shares());
        let answer: RedisResult<Vec<(Vec<u8>, Vec<u8>)>> =
            ask.query_async(&mut self.connection()).await;
        let fields = answer.map_err(ControlError::redis("event.shares"))?;
        let mut shares: Vec<_> = fields
            .into_iter()
            .filter_map(|(selector, value)| read(&selector, &value))
            .collect();
        shares.sort_by(|one, other| one.selector.cmp(&other.selector));
        Ok(shares)
    }

    fn share_selector<'a>(&self, selector: &'a Selector) -> Result<&'a str, ControlError> {
        let text = selector.as_str();
        let refused = |reason: String| {
            Err(ControlError::ShareSelector {
                selector: text.to_owned(),
                reason,
            })
        };
        match text.strip_suffix(":*") {
            _ if text == "*" => Ok(text),
            None => refused(format!(
                "a share is for a prefix such as acme:*; for this one object write {:?}, because a share for PREFIX:* also covers \
                 the object PREFIX itself",
                [text, ":*"].concat()
            )),
            Some("") => refused("the prefix is empty; write a prefix such as acme:*".into()),
            Some(prefix) if prefix.matches(':').count() >= COLONS_MAX => refused(format!(
                "the prefix has more than {COLONS_MAX} parts; parts end at colons"
            )),
            Some(prefix) if prefix.len() > PREFIX_BYTES_MAX => refused(format!(
                "the prefix has {} bytes; at most {PREFIX_BYTES_MAX} are allowed",
                prefix.len()
            )),
            Some(prefix) => {
                self.keys.object(prefix)?;
                Ok(text)
            }
        }
    }
}
