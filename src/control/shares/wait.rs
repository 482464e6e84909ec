//! Whether a share stops an object, and for which of its limits.

use std::collections::BTreeMap;
use std::fmt;

use redis::Value;
use serde::Serialize;

use super::super::stats::ask;
use super::super::{Control, ControlError, reply};
use super::figures::{Counters, counters, items, prefix_of};
use super::{SelectorShare, read};
use crate::escape;
use crate::wire::values::ShareUsed;

/// The groups with this score or a higher one wait for a limit, as in `lua/values/shares.lua`.
const PARKED: f64 = 4_398_046_511_104.0 - 1_099_511_627_776.0;

/// The share whose limit an object waits for. As text, it is the share and its limit, as in `its
/// share acme:*: 50 of 50 in hand`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShareWait {
    /// The selector of the share.
    pub selector: String,
    /// Number of its objects in hand; none if the object waits for the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_hand: Option<u64>,
    /// Maximum number of its objects in hand; none if the object waits for the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Maximum number of its events per second; none if the object waits for an object in hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

impl fmt::Display for ShareWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its share {}: ", escape::name(&self.selector))?;
        match (self.in_hand, self.in_flight, self.rate) {
            (Some(in_hand), Some(in_flight), _) => write!(f, "{in_hand} of {in_flight} in hand"),
            (_, _, Some(1.0)) => write!(f, "1 event per second is taken"),
            (_, _, rate) => write!(f, "{} events per second are taken", rate.unwrap_or(0.0)),
        }
    }
}

/// A share that matches an object, and how far it is used.
#[derive(Debug, Clone)]
pub(in crate::control) struct Matching {
    pub(in crate::control) share: SelectorShare,
    counters: Counters,
    /// Whether the group of this prefix waits for the share, and whether other groups do.
    awaited: Awaited,
}

#[derive(Debug, Clone, Copy, Default)]
struct Awaited {
    by_group: bool,
    by_others: bool,
}

impl Matching {
    /// Parses a share from a part of the reply of `lua/inspect.lua`: the objects in hand or `-`, `1`
    /// or `0` for each part of [`Awaited`], and the lengths of the three texts at the end. These are
    /// the events taken, the selector, and the value of the share.
    pub(in crate::control) fn parse(value: &Value) -> Option<Self> {
        let bytes = reply::bytes(value)?;
        let mut parts = bytes.splitn(6, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let (in_hand, by_group, by_others) = (word()?.parse().ok(), word()? == "1", word()? == "1");
        let (used_bytes, selector_bytes) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let (used, rest) = parts.next()?.split_at_checked(used_bytes)?;
        let (selector, value) = rest.split_at_checked(selector_bytes)?;
        let counters = Counters {
            in_hand,
            used: Some(ShareUsed::read(used)),
        };
        Some(Self {
            share: read(selector, value)?,
            counters,
            awaited: Awaited {
                by_group,
                by_others,
            },
        })
    }

    /// Returns the limit that stops an object now. `events`: the number of events that a claim of the
    /// object takes. `is_parked`: whether its group waits for a limit. `group`: the group.
    fn stops(&self, events: u64, is_parked: bool, group: &str, now_us: u64) -> Option<ShareWait> {
        let Self {
            share,
            counters,
            awaited,
        } = self;
        let wait = |in_hand, in_flight, rate| {
            Some(ShareWait {
                selector: share.selector.clone(),
                in_hand,
                in_flight,
                rate,
            })
        };
        if let (Some(in_flight), Some(in_hand)) = (share.in_flight, counters.in_hand)
            && in_hand >= in_flight
        {
            return wait(Some(in_hand), Some(in_flight), None);
        }
        let is_own = prefix_of(&share.selector) == Some(group);
        let (rate, used) = (share.rate.filter(|rate| *rate > 0.0)?, counters.used?);
        let burst = share.burst.unwrap_or(1) as f64;
        let ahead = (used.tat_us as f64 - now_us as f64).clamp(0.0, burst * 1e6 / rate);
        let allowed = (burst - ahead * rate / 1e6 + 1e-6).floor();
        // Events may be allowed for a moment before the group has a turn again.
        let is_awaited = is_parked
            && ahead > 0.0
            && if is_own {
                awaited.by_group
            } else {
                awaited.by_others
            };
        if allowed < (events.max(1) as f64).min(burst) || is_awaited {
            wait(None, None, Some(rate))
        } else {
            None
        }
    }
}

/// Returns the share that stops an object. `matching`: the shares that match the object, that with the
/// longest prefix last. For the other arguments, see [`Matching::stops`].
pub(in crate::control) fn stopping(
    matching: &[Matching],
    events: u64,
    is_parked: bool,
    group: &str,
    now_us: u64,
) -> Option<ShareWait> {
    matching
        .iter()
        .rev()
        .find_map(|matching| matching.stops(events, is_parked, group, now_us))
}

/// Returns whether the share of a selector is for this object.
fn matches(selector: &str, object: &[u8]) -> bool {
    prefix_of(selector).is_none_or(|prefix| {
        let rest = object.strip_prefix(prefix.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b':'))
    })
}

impl Control {
    /// Returns for each of these objects the share that stops it. Each object has the number of events
    /// that a claim takes. The objects are those of one page.
    pub(in crate::control) async fn share_waits(
        &self,
        objects: &[(&[u8], u64)],
    ) -> Result<Vec<Option<ShareWait>>, ControlError> {
        const WHAT: &str = "the groups that wait for a limit";
        let nothing = || Ok(vec![None; objects.len()]);
        if objects.is_empty() {
            return nothing();
        }
        let mut shares = match self.shares().await {
            // `check` and the list of shares report the wrong type.
            Err(ControlError::Redis { source, .. }) if source.code() == Some("WRONGTYPE") => {
                return nothing();
            }
            shares => shares?,
        };
        if shares
            .iter()
            .all(|share| share.in_flight.is_none() && share.rate.is_none())
        {
            return nothing();
        }
        shares.sort_by_key(|share| share.selector.len());
        let of_object: Vec<Vec<usize>> = objects
            .iter()
            .map(|(object, _)| {
                (0..shares.len())
                    .filter(|at| matches(&shares[*at].selector, object))
                    .collect()
            })
            .collect();
        // The places of the shares that match an object, each with its place among them.
        let mut places: BTreeMap<usize, usize> =
            of_object.iter().flatten().map(|at| (*at, 0)).collect();
        places
            .values_mut()
            .enumerate()
            .for_each(|(place, value)| *value = place);
        if places.is_empty() {
            return nothing();
        }
        let (mut conn, keys) = (self.connection(), &self.keys);
        let now_us = reply::now_ms(&mut conn).await? * 1000;
        let selectors: Vec<&str> = places
            .keys()
            .map(|at| shares[*at].selector.as_str())
            .collect();
        let counters = counters(&mut conn, keys, &selectors).await?;
        let mut pipe = redis::pipe();
        let prefixes: Vec<&str> = selectors
            .iter()
            .map(|selector| prefix_of(selector).unwrap_or(selector))
            .collect();
        pipe.cmd("ZMSCORE").arg(keys.event_groups()).arg(&prefixes);
        pipe.cmd("ZMSCORE")
            .arg(keys.event_groups_blocked())
            .arg(&prefixes);
        let others: Vec<String> = prefixes
            .iter()
            .map(|prefix| format!("{prefix}\n"))
            .collect();
        pipe.cmd("ZMSCORE")
            .arg(keys.event_groups_blocked())
            .arg(&others);
        let mut answers = ask(&mut conn, WHAT, &mut pipe).await?.into_iter();
        let mut scores = || -> Result<Vec<Option<f64>>, ControlError> {
            let items = items(WHAT, answers.next())?.unwrap_or_default();
            Ok(items
                .map(|score| reply::text(&score)?.parse().ok())
                .collect())
        };
        let (of_groups, by_group, by_others) = (scores()?, scores()?, scores()?);
        let score = |scores: &[Option<f64>], place: usize| scores.get(place).copied().flatten();
        let matching = |at: &usize| {
            let place = places.get(at).copied().unwrap_or_default();
            let (by_group, by_others) = (
                score(&by_group, place).is_some(),
                score(&by_others, place).is_some(),
            );
            let counters = counters.get(place).copied().unwrap_or_default();
            Matching {
                share: shares[*at].clone(),
                counters,
                awaited: Awaited {
                    by_group,
                    by_others,
                },
            }
        };
        let wait = |((_, events), of_object): (&(&[u8], u64), &Vec<usize>)| {
            // The group of the object is the longest prefix that has a share.
            let group = of_object.last()?;
            let is_parked =
                score(&of_groups, *places.get(group)?).is_some_and(|score| score >= PARKED);
            let matching: Vec<Matching> = of_object.iter().map(matching).collect();
            let group = prefix_of(&shares[*group].selector).unwrap_or_default();
            stopping(&matching, *events, is_parked, group, now_us)
        };
        Ok(objects.iter().zip(&of_object).map(wait).collect())
    }
}
