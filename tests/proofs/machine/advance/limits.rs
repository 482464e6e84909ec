//! Limits of shares: objects in hand, and events per second. Groups that a limit stops wait until it
//! may allow a claim again.

use std::collections::BTreeSet;

use super::super::reference::Name;
use super::super::shares::{CLASS, PARKED, prefixes_of};
use super::Call;

/// A group that has waited goes before the others by a part of a claim.
const AHEAD: f64 = 0.5;
/// The most groups that a call lets have turns again.
const UNPARK_MAX: usize = 64;

impl Call<'_> {
    /// Returns the events that the rate of a prefix allows; none without a rate.
    fn tokens(&self, prefix: &Name) -> Option<i64> {
        let burst = self.state.shares.get(prefix)?.burst?;
        let spent = self.state.spent.get(prefix).copied().unwrap_or(0);
        Some(burst as i64 - spent as i64)
    }

    /// Returns the objects of a group that may still be claimed, and the prefix that allows the
    /// fewest.
    pub(super) fn room_of(&mut self, group: &Name) -> (i64, Name) {
        let (mut least, mut by) = (i64::MAX, Name::new());
        for prefix in self.state.limits_of(group) {
            let room = self
                .state
                .room_in_hand(&prefix)
                .unwrap_or(i64::MAX)
                .min(self.tokens(&prefix).unwrap_or(i64::MAX));
            if room < least {
                (least, by) = (room, prefix);
            }
        }
        (least, by)
    }

    /// Returns the number of events to count if the object may be claimed, else the prefix that does
    /// not allow it. `held`: the events of its held batch.
    pub(super) fn admitted(&mut self, group: &Name, held: Option<usize>) -> Result<u64, Name> {
        let mut asked = 1;
        for prefix in self.state.limits_of(group) {
            if self
                .state
                .room_in_hand(&prefix)
                .is_some_and(|room| room <= 0)
            {
                return Err(prefix);
            }
            if let Some(tokens) = self.tokens(&prefix) {
                asked = held.unwrap_or(1).max(1) as u64;
                let burst = self.state.shares[&prefix].burst.unwrap_or(1);
                if tokens < asked.min(burst) as i64 {
                    return Err(prefix);
                }
            }
        }
        Ok(asked)
    }

    /// Counts events for the rates of an object.
    pub(super) fn charge(&mut self, name: &Name, events: u64) {
        let group = self.state.group_of(name, self.depth);
        for prefix in self.state.limits_of(&group) {
            if self.tokens(&prefix).is_some() {
                *self.state.spent.entry(prefix).or_default() += events;
            }
        }
    }

    /// Counts events for the figures of the shares of an object.
    pub(super) fn count(&mut self, name: &Name, events: u64) {
        for prefix in self.state.owners_of(name) {
            *self.state.taken.entry(prefix).or_default() += events;
        }
    }

    /// Counts events that a slot has taken beside the claim of their object.
    pub(super) fn took(&mut self, name: &Name, events: u64) {
        if events > 0 {
            self.count(name, events);
            self.charge(name, events);
        }
    }

    /// Returns the number of further events that a slot may take of its object.
    pub(super) fn events_left(&mut self, name: &Name) -> usize {
        let group = self.state.group_of(name, self.depth);
        let limits = self.state.limits_of(&group);
        let least = limits.iter().filter_map(|prefix| self.tokens(prefix)).min();
        least.map_or(usize::MAX, |tokens| tokens.max(0) as usize)
    }

    /// Lets groups have turns again if their limits may allow a claim.
    pub(super) fn unpark(&mut self) {
        let due: Vec<Name> = self
            .state
            .blocked
            .iter()
            .filter(|(_, is_due)| **is_due)
            .map(|(member, _)| member.clone())
            .take(UNPARK_MAX)
            .collect();
        let (of_prefixes, own): (Vec<Name>, Vec<Name>) = due
            .iter()
            .cloned()
            .partition(|member| member.ends_with(b"\n"));
        let prefixes: BTreeSet<&[u8]> = of_prefixes
            .iter()
            .map(|member| &member[..member.len() - 1])
            .collect();
        let mut groups: BTreeSet<Name> = own.into_iter().collect();
        self.state.blocked.retain(|member, _| !due.contains(member));
        // A group that also waits for another limit is left out until that one is due.
        let blocked = &self.state.blocked;
        let waits_still = |group: &Name| {
            let of_prefix =
                |prefix: &&[u8]| blocked.contains_key(&[prefix, &b"\n"[..]].concat()[..]);
            blocked.contains_key(group) || prefixes_of(group).iter().any(of_prefix)
        };
        let waits = |group: &Name| {
            prefixes_of(group)
                .iter()
                .any(|prefix| prefixes.contains(prefix))
                && !waits_still(group)
        };
        let parked = self
            .state
            .groups
            .iter()
            .filter(|(group, pass)| **pass >= PARKED - CLASS && waits(group));
        groups.extend(parked.map(|(group, _)| group.clone()));
        let groups: Vec<Name> = groups.into_iter().collect();
        self.unparked = self.state.unpark(&groups, AHEAD);
    }
}
