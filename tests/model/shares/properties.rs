//! The properties of the model of shares.
use super::*;

pub const LIMIT: &str = "no claim is above a limit";
pub const RATE: &str = "no event is above a rate";
pub const COUNT: &str = "the objects in hand are those that slots own";
pub const COVERED: &str = "I1 every object with events is covered";
pub const LOOK: &str = "a group that may claim is looked at";
pub const REST_COMES: &str = "L1 nothing waits for ever";
pub const APART: &str =
    "L2 an object whose delivery never ends delays only those with a common limit";

pub fn all() -> Vec<Property<Shares>> {
    vec![
        Property::always(LIMIT, |_, s: &State| !s.is_above_limit),
        Property::always(RATE, |_, s: &State| !s.is_above_rate),
        Property::always(COUNT, |_, s: &State| {
            let is_part = s.in_hand & !s.owned_by_slots() == 0;
            is_part && (!s.is_limited() || s.in_hand | s.uncounted == s.owned_by_slots())
        }),
        Property::always(COVERED, |_, s: &State| is_covered(s)),
        Property::always(LOOK, |_, s: &State| {
            (0..PREFIXES).all(|group| is_looked_at(s, group))
        }),
        Property::always(REST_COMES, |model: &Shares, s: &State| {
            model.comes_to_rest(s, None)
        }),
        Property::always(APART, |model: &Shares, s: &State| {
            (0..SLOTS)
                .filter(|slot| s.owned(*slot).is_some())
                .all(|slot| model.comes_to_rest(s, Some(slot)))
        }),
    ]
}

/// Returns whether a call finds every object: it is in hand, held, or one of the lists has its name. A
/// group whose list has names has turns, or waits for one.
fn is_covered(s: &State) -> bool {
    let has_name = |at: usize| s.lists.iter().any(|list| list.contains(at as u8 + 1));
    let is_known = |at: usize| match s.objects[at].owner {
        Owner::Nobody => {
            let popped = s
                .slots
                .iter()
                .any(|slot| slot.popped.contains(at as u8 + 1));
            s.objects[at].queue == 0 || popped || has_name(at) || s.markers.contains(at as u8 + 1)
        }
        Owner::Slot(_) => true,
        // If no name is grouped, a call looks at all held objects.
        Owner::Held { aside, .. } => !aside || has_name(at) || s.are_lists_empty(),
    };
    (0..OBJECTS).all(is_known)
        && (0..PREFIXES).all(|group| s.lists[group].is_empty() || s.turns[group] != Turn::Absent)
}

/// Returns whether the next call looks at a group that waits, if its limits allow a claim now. This
/// holds without the look once per second.
fn is_looked_at(s: &State, group: usize) -> bool {
    let is_due = || {
        s.own[group] == Look::Due
            || prefixes_of(group)
                .iter()
                .any(|prefix| s.others[*prefix] == Look::Due)
    };
    s.turns[group] != Turn::Waits || s.full_by(group).is_some() || is_due()
}

impl Shares {
    /// Returns whether all events are delivered, in a fair run without further faults, whichever group has
    /// the first turn in each call. With `stalled`, the delivery of that slot never ends. Then all events
    /// of objects must come that have no limit in common with the object of the slot.
    fn comes_to_rest(&self, s: &State, stalled: Option<usize>) -> bool {
        // A broken property is reported on its own.
        s.is_above_limit
            || s.is_above_rate
            || (0..PREFIXES).all(|first| self.comes_to_rest_with(s.clone(), stalled, first))
    }

    fn comes_to_rest_with(&self, mut s: State, stalled: Option<usize>, first: usize) -> bool {
        for _ in 0..24 {
            for at in 0..self.bounds.shares.len() {
                self.apply(&mut s, Action::Set(at));
            }
            for at in 0..OBJECTS {
                self.apply(&mut s, Action::Due(at));
                if s.uncounted & 1 << at != 0 {
                    self.apply(&mut s, Action::Count(at));
                }
            }
            for prefix in 0..PREFIXES {
                let burst = s.shares[prefix]
                    .and_then(|share| share.burst)
                    .unwrap_or_default();
                if s.tokens[prefix] < burst {
                    self.apply(&mut s, Action::Refill(prefix));
                }
            }
            for slot in (0..SLOTS).filter(|slot| Some(*slot) != stalled) {
                if s.slots[slot].is_dead {
                    self.apply(&mut s, Action::Adopt(slot));
                }
                self.apply(
                    &mut s,
                    Action::Advance {
                        slot,
                        retry: false,
                        first,
                    },
                );
            }
            if self.all_came(&s, stalled) {
                return true;
            }
        }
        false
    }

    fn all_came(&self, s: &State, stalled: Option<usize>) -> bool {
        let stalled = stalled.and_then(|slot| s.owned(slot));
        let has_common_limit = |at: usize, other: usize| {
            let common = |prefix: &&usize| {
                prefixes_of(other).contains(prefix) && s.shares[**prefix].is_some()
            };
            prefixes_of(at).iter().any(|prefix| common(&prefix))
        };
        let may_wait =
            |at: usize| stalled.is_some_and(|other| at == other || has_common_limit(at, other));
        // The marker that a pop has moved waits until its slot has a call.
        let is_popped = |at: usize| {
            stalled.is_some()
                && s.slots
                    .iter()
                    .any(|slot| slot.popped.contains(at as u8 + 1))
        };
        (0..OBJECTS)
            .all(|at| may_wait(at) || s.objects[at].delivered == s.pushed[at] || is_popped(at))
    }
}
