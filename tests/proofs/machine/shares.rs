//! Shares: an operator sets and removes the weight and the priority of the objects of a prefix. A
//! prefix with a share is a group.

use super::operator::Action;
use super::reference::{Broken, Name, Reference, Reply};

/// The prefixes that may have a share. One of them is part of another one.
pub const PREFIXES: [&[u8]; 4] = [b"a", b"b", b"a:events", b"event.worker"];
pub const WEIGHTS: [Option<u32>; 4] = [None, Some(1), Some(3), Some(100)];
/// The priorities: -1 is high, 0 is normal, 1 is low.
pub const CLASSES: [Option<i8>; 4] = [None, Some(-1), Some(0), Some(1)];
/// The group of names that have no other group.
const REST: &[u8] = b"\0rest";
/// The size of the range of passes of one priority.
const CLASS: f64 = 1_099_511_627_776.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub weight: Option<u32>,
    pub class: Option<i8>,
}

/// Returns the first parts of a name, the shortest first. The last one is the whole name.
fn prefixes_of(name: &[u8]) -> Vec<&[u8]> {
    let colons = name.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(at, _)| &name[..at]).chain([name]).collect()
}

/// Returns the value of the share's field in `event.shares`, with 0 for the time.
pub fn value(share: &Share) -> String {
    let (who, why) = (super::operator::WHO, super::operator::WHY);
    let weight = share.weight.map_or("-".to_owned(), |weight| weight.to_string());
    let priority = share.class.map_or("-", |class| ["high", "normal", "low"][(class + 1) as usize]);
    format!("{weight} {priority} - - - 0 {} {who}{why}", who.len())
}

impl Reference {
    /// Returns the most parts of a prefix with a share; 0 without shares.
    pub fn parts(&self) -> usize {
        self.shares.keys().map(|prefix| prefixes_of(prefix).len()).max().unwrap_or(0)
    }

    /// Returns the share of a prefix. If the key is broken, no prefix has one.
    fn share_of(&self, prefix: &[u8]) -> Option<&Share> {
        self.shares.get(prefix).filter(|_| !self.is_broken(&[Broken::Shares]))
    }

    /// Returns the group of an object. `depth`: 1 if the first part of a name is a group, else 0.
    pub fn group_of(&self, name: &Name, depth: usize) -> Name {
        let prefixes = prefixes_of(name);
        let own = prefixes.iter().rfind(|prefix| self.share_of(prefix).is_some());
        let group = own.copied().unwrap_or(if depth > 0 { prefixes[0] } else { REST });
        Name::copy_from_slice(group)
    }

    /// Returns the weight and the class of a group.
    pub fn weigh(&self, group: &Name) -> (f64, i8) {
        let of = prefixes_of(group).into_iter().rev().filter_map(|prefix| self.share_of(prefix)).collect::<Vec<_>>();
        let weight = of.iter().find_map(|share| share.weight).unwrap_or(1);
        (f64::from(weight), of.iter().find_map(|share| share.class).unwrap_or(0))
    }

    /// Returns the pass with which a new group of this class begins.
    pub fn first_pass(&self, class: i8) -> f64 {
        let lowest = self.groups.values().copied().filter(|pass| class_of(*pass) == class).reduce(f64::min);
        lowest.map_or(f64::from(class) * CLASS, |lowest| lowest + 1.0)
    }

    /// Sets or removes a share.
    pub fn share(&mut self, prefix: &Name, share: Option<Share>) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Actions, Broken::Shares]) {
            return Reply::WrongType;
        }
        let old = self.shares.remove(prefix);
        let (action, done) = match (share, old) {
            (Some(share), old) => {
                self.shares.insert(prefix.clone(), share);
                ("share-set", if old.is_some() { "again" } else { "new" })
            }
            (None, Some(_)) => ("share-remove", "removed"),
            (None, None) => return Reply::Shared("not set"),
        };
        if self.shares.is_empty() {
            self.round = None;
        }
        // All groups leave their old classes before any of them enters a new one.
        let mut moved = Vec::new();
        for (group, pass) in &self.groups {
            let class = self.weigh(group).1;
            if &group[..] != REST && class_of(*pass) != class {
                moved.push((group.clone(), class));
            }
        }
        self.groups.retain(|group, _| moved.iter().all(|(other, _)| other != group));
        let firsts = [-1, 0, 1].map(|class| self.first_pass(class));
        for (group, class) in moved {
            self.groups.insert(group, firsts[(class + 1) as usize]);
        }
        self.markers.push(Name::new());
        let object = [prefix, &b":*"[..]].concat().into();
        self.actions.push(Action { action, object, id: String::new(), dead: None, error: None, event: None, key: None });
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
