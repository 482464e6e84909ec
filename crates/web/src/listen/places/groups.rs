//! Connections in groups: the strangers of each address, and the connections of each user.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// A connection in the order of the last requests.
pub(super) type Turn = (u64, u64);

/// Connections by group, each group with its oldest first.
pub(super) struct Groups<K> {
    pub(super) members: HashMap<K, BTreeSet<Turn>>,
    pub(super) sizes: BTreeSet<(usize, K)>,
    pub(super) all: BTreeSet<Turn>,
}

impl<K> Default for Groups<K> {
    fn default() -> Self {
        Self {
            members: HashMap::new(),
            sizes: BTreeSet::new(),
            all: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Groups<K> {
    pub(super) fn add(&mut self, group: &K, turn: Turn) {
        let before = self.size(group);
        if self.members.entry(group.clone()).or_default().insert(turn) {
            self.all.insert(turn);
            self.resize(group, before);
        }
    }

    pub(super) fn remove(&mut self, group: &K, turn: Turn) {
        let before = self.size(group);
        if self
            .members
            .get_mut(group)
            .is_some_and(|members| members.remove(&turn))
        {
            self.all.remove(&turn);
            self.resize(group, before);
        }
    }

    /// Gives a member another turn.
    pub(super) fn renew(&mut self, group: &K, turn: Turn, other: Turn) {
        if let Some(members) = self.members.get_mut(group)
            && members.remove(&turn)
        {
            members.insert(other);
            self.all.remove(&turn);
            self.all.insert(other);
        }
    }

    fn resize(&mut self, group: &K, before: usize) {
        self.sizes.remove(&(before, group.clone()));
        match self.size(group) {
            0 => drop(self.members.remove(group)),
            size => drop(self.sizes.insert((size, group.clone()))),
        }
    }

    pub(super) fn size(&self, group: &K) -> usize {
        self.members.get(group).map_or(0, BTreeSet::len)
    }

    pub(super) fn largest(&self) -> Option<&(usize, K)> {
        self.sizes.last()
    }

    pub(super) fn oldest_of(&self, group: &K) -> Option<Turn> {
        self.members.get(group)?.first().copied()
    }
}
