//! Shares: an operator sets and removes the weight and the priority of the objects of a prefix. A
//! prefix with a share is a group.

use super::operator::Action;
use super::reference::{Broken, Name, Reference, Reply};

/// The prefixes that may have a share. One of them is part of another one. `*` is for all objects.
pub const PREFIXES: [&[u8]; 5] = [b"a", b"b", b"a:events", b"event.worker", ALL];
pub const ALL: &[u8] = b"*";
pub const WEIGHTS: [Option<u32>; 4] = [None, Some(1), Some(3), Some(100)];
/// The priorities: -1 is high, 0 is normal, 1 is low.
pub const CLASSES: [Option<i8>; 4] = [None, Some(-1), Some(0), Some(1)];
/// The most objects in hand, and the most events. The rate is so low that no test gets events in
/// addition to the burst.
pub const LIMITS: [Option<u64>; 4] = [None, None, Some(1), Some(3)];
pub const RATE: f64 = 0.001;
/// The group of names that have no other group.
pub const REST: &[u8] = b"\0rest";
/// The size of the range of passes of one priority.
pub const CLASS: f64 = 1_099_511_627_776.0;
/// The scores of groups that wait for a limit are higher by this number.
pub const PARKED: f64 = 4.0 * CLASS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub weight: Option<u32>,
    pub class: Option<i8>,
    pub in_flight: Option<u64>,
    /// The events that the rate allows.
    pub burst: Option<u64>,
}

/// Returns the first parts of a name, the shortest first. The last one is the whole name.
pub fn prefixes_of(name: &[u8]) -> Vec<&[u8]> {
    let colons = name.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(at, _)| &name[..at]).chain([name]).collect()
}

/// Returns the selector of a prefix.
pub fn selector(prefix: &[u8]) -> String {
    let prefix = String::from_utf8_lossy(prefix);
    if prefix.as_bytes() == ALL {
        prefix.into_owned()
    } else {
        format!("{prefix}:*")
    }
}

/// Returns the value of the share's field in `event.shares`, with 0 for the time.
pub fn value(share: &Share) -> String {
    let (who, why) = (super::operator::WHO, super::operator::WHY);
    let weight = share
        .weight
        .map_or("-".to_owned(), |weight| weight.to_string());
    let priority = share
        .class
        .map_or("-", |class| ["high", "normal", "low"][(class + 1) as usize]);
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let rate = share.burst.map_or("-".to_owned(), |_| RATE.to_string());
    format!(
        "{weight} {priority} {} {rate} {} 0 {} {who}{why}",
        number(share.in_flight),
        number(share.burst),
        who.len()
    )
}

impl Reference {
    /// Returns the most parts of a prefix with a share; 0 without shares.
    pub fn parts(&self) -> usize {
        self.shares
            .keys()
            .filter(|prefix| &prefix[..] != ALL)
            .map(|prefix| prefixes_of(prefix).len())
            .max()
            .unwrap_or(0)
    }

    /// Returns the share of a prefix. If the key is broken, no prefix has one.
    fn share_of(&self, prefix: &[u8]) -> Option<&Share> {
        self.shares
            .get(prefix)
            .filter(|_| !self.is_broken(&[Broken::Shares]))
    }

    /// Returns whether a share has a limit.
    pub fn is_limited(&self) -> bool {
        self.shares
            .values()
            .any(|share| share.in_flight.is_some() || share.burst.is_some())
    }

    /// Returns the prefixes of an object or a group that have a share.
    pub fn owners_of(&self, name: &Name) -> Vec<Name> {
        let prefixes = [ALL]
            .into_iter()
            .filter(|_| self.is_limited())
            .chain(prefixes_of(name));
        prefixes
            .filter(|prefix| self.share_of(prefix).is_some())
            .map(Name::copy_from_slice)
            .collect()
    }

    /// Returns the prefixes of a group whose shares have a limit.
    pub fn limits_of(&self, group: &Name) -> Vec<Name> {
        let has_limit = |prefix: &Name| {
            self.shares[prefix].in_flight.is_some() || self.shares[prefix].burst.is_some()
        };
        self.owners_of(group)
            .into_iter()
            .filter(has_limit)
            .collect()
    }

    /// Returns whether a slot owns the object.
    pub fn is_in_hand(&self, name: &Name) -> bool {
        self.owner(name).is_some_and(|owner| owner != "held")
    }

    /// Returns how many more objects of a prefix may be in hand; none without such a limit.
    pub fn room_in_hand(&self, prefix: &Name) -> Option<i64> {
        let most = self.shares.get(prefix)?.in_flight?;
        let is_of = |name: &Name| &prefix[..] == ALL || prefixes_of(name).contains(&&prefix[..]);
        let in_hand = self
            .objects
            .keys()
            .filter(|name| is_of(name) && self.is_in_hand(name))
            .count();
        Some(most as i64 - in_hand as i64)
    }

    /// Makes calls look again at the groups that wait for a limit, if a slot owns the object, which it
    /// is about to leave.
    pub fn leave_hand(&mut self, name: &Name) {
        if !self.shares.is_empty() && self.is_in_hand(name) {
            for prefix in prefixes_of(name) {
                for end in [&b""[..], b"\n"] {
                    if let Some(is_due) = self.blocked.get_mut(&[prefix, end].concat()[..]) {
                        *is_due = true;
                    }
                }
            }
        }
    }

    /// Returns whether a group has a share of its own.
    pub fn has_own(&self, group: &Name) -> bool {
        self.share_of(group).is_some()
    }

    /// Returns the group of an object. `depth`: 1 if the first part of a name is a group, else 0.
    pub fn group_of(&self, name: &Name, depth: usize) -> Name {
        let prefixes = prefixes_of(name);
        let own = prefixes
            .iter()
            .rfind(|prefix| self.share_of(prefix).is_some());
        let group = own
            .copied()
            .unwrap_or(if depth > 0 { prefixes[0] } else { REST });
        Name::copy_from_slice(group)
    }

    /// Returns the weight and the class of a group.
    pub fn weigh(&self, group: &Name) -> (f64, i8) {
        let of = prefixes_of(group)
            .into_iter()
            .rev()
            .filter_map(|prefix| self.share_of(prefix))
            .collect::<Vec<_>>();
        let weight = of.iter().find_map(|share| share.weight).unwrap_or(1);
        (
            f64::from(weight),
            of.iter().find_map(|share| share.class).unwrap_or(0),
        )
    }

    /// Returns the lowest pass of the groups of this class. If all of them wait for a limit, these count.
    fn lowest_pass(&self, class: i8) -> Option<f64> {
        let is_of = |pass: &f64| class_of(*pass) == class && *pass < 2.0 * CLASS;
        let lowest = self.groups.values().copied().filter(is_of).reduce(f64::min);
        let parked = self
            .groups
            .values()
            .map(|pass| pass - PARKED)
            .filter(|pass| *pass >= -CLASS && class_of(*pass) == class);
        lowest.or(parked.reduce(f64::min))
    }

    /// Returns the pass with which a new group of this class begins.
    pub fn first_pass(&self, class: i8) -> f64 {
        self.lowest_pass(class)
            .map_or(f64::from(class) * CLASS, |lowest| lowest + 1.0)
    }

    /// Lets these groups have turns again. Their passes rise to `ahead` below the lowest of the others, by
    /// the same number for all groups of a class.
    pub fn unpark(&mut self, groups: &[Name], ahead: f64) -> bool {
        // The sums are rounded as those of the scripts: `lowest + 1 - 1` may differ from `lowest`.
        let firsts = [-1, 0, 1].map(|class| match ahead > 0.0 {
            true => (self.first_pass(class) - 1.0 - ahead).max(f64::from(class) * CLASS),
            false => self.lowest_pass(class).unwrap_or(0.0),
        });
        let passes: Vec<(Name, f64)> = groups
            .iter()
            .filter_map(|group| Some((group.clone(), self.groups.get(group)? - PARKED)))
            .filter(|(_, pass)| *pass >= -CLASS)
            .collect();
        for class in -1..=1 {
            let of_class = || {
                passes
                    .iter()
                    .filter(move |(_, pass)| class_of(*pass) == class)
            };
            let lowest = of_class().map(|(_, pass)| *pass).fold(f64::MAX, f64::min);
            let shift = (firsts[(class + 1) as usize] - lowest).max(0.0);
            for (group, pass) in of_class() {
                self.groups.insert(group.clone(), pass + shift);
            }
        }
        !passes.is_empty()
    }

    /// Counts the objects in hand, as an operator does before setting a share.
    pub fn count_in_hand(&mut self) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Actions, Broken::Shares]) {
            return Reply::WrongType;
        }
        self.counting = true;
        Reply::Shared("counted")
    }

    /// Sets or removes a share.
    pub fn share(&mut self, prefix: &Name, share: Option<Share>) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Actions, Broken::Shares]) {
            return Reply::WrongType;
        }
        self.counting |= share.is_some();
        let old = self.shares.remove(prefix);
        let (action, done) = match (share, old) {
            (Some(share), old) => {
                self.shares.insert(prefix.clone(), share);
                ("share-set", if old.is_some() { "again" } else { "new" })
            }
            (None, Some(_)) => ("share-remove", "removed"),
            (None, None) => return Reply::Shared("not set"),
        };
        if action == "share-remove" {
            self.taken.remove(prefix);
            self.spent.remove(prefix);
        }
        if self.shares.is_empty() {
            self.counting = false;
            self.round = None;
            self.taken.clear();
            self.spent.clear();
        }
        self.blocked.clear();
        let burst = share.and_then(|share| share.burst);
        if let (Some(burst), Some(spent)) = (burst, self.spent.get_mut(prefix)) {
            *spent = (*spent).min(burst);
        }
        // All groups leave their old classes before any of them enters a new one.
        let mut moved = Vec::new();
        for (group, pass) in &self.groups {
            let class = self.weigh(group).1;
            let pass = if *pass >= PARKED - CLASS {
                pass - PARKED
            } else {
                *pass
            };
            if &group[..] != REST && class_of(pass) != class {
                moved.push((group.clone(), class));
            }
        }
        self.groups
            .retain(|group, _| moved.iter().all(|(other, _)| other != group));
        let firsts = [-1, 0, 1].map(|class| self.first_pass(class));
        let waiting: Vec<Name> = self
            .groups
            .iter()
            .filter(|(_, pass)| **pass >= PARKED - CLASS)
            .map(|(group, _)| group.clone())
            .collect();
        self.unpark(&waiting, 0.0);
        for (group, class) in moved {
            self.groups.insert(group, firsts[(class + 1) as usize]);
        }
        self.markers.push(Name::new());
        let object = selector(prefix).into_bytes().into();
        self.actions.push(Action {
            action,
            object,
            id: String::new(),
            dead: None,
            error: None,
            event: None,
            key: None,
        });
        Reply::Shared(done)
    }
}

/// Returns the class of a pass.
pub fn class_of(pass: f64) -> i8 {
    if pass < 0.0 {
        -1
    } else if pass < CLASS {
        0
    } else {
        1
    }
}
