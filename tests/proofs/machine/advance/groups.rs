//! The turns of groups: markers and due held objects are set aside by group, and claimed group by
//! group.

use std::collections::{BTreeMap, BTreeSet};

use super::super::reference::{Key, Name, remove};
use super::{Call, Got, Slot};

/// The most groups whose turns a call takes, and the fewest names per turn in a call with many
/// claims.
const TURNS_MAX: usize = 64;
const NAMES_MIN: usize = 4;
const CHUNK_MAX: usize = 512;

struct Turn {
    group: Name,
    /// The pass before the call.
    start: u64,
    /// The pass that counts the names taken in this call.
    pass: u64,
}

/// Returns the group of an object: its name up to the first colon.
fn group_of(name: &Name) -> Name {
    name.slice(..name.iter().position(|byte| *byte == b':').unwrap_or(name.len()))
}

impl Call<'_> {
    /// Returns the number of names that are set aside.
    pub(super) fn waiting(&self) -> usize {
        self.state.set_aside.values().map(Vec::len).sum()
    }

    /// Returns whether the groups take turns. `claims`: the number of objects that the call may
    /// claim. `was_due`: whether a held object was due when the call began.
    pub(super) fn is_grouped(&self, claims: usize, was_due: bool) -> bool {
        let now = self.state.now as i64;
        let (markers, due) = (self.state.markers.len(), self.state.due.values().filter(|due| **due <= now).count());
        if self.waiting() > 0 {
            return claims > 0 || self.has_groups && (markers > 0 || due > 0);
        }
        self.has_groups && claims > 0 && (markers > claims || was_due && due > claims)
    }

    /// Moves all markers and all due held objects to the lists of their groups, behind the names
    /// that are there. A held object stays due, with a negative time.
    fn set_aside(&mut self) {
        let now = self.state.now as i64;
        let mut due: Vec<_> = self.state.due.iter().filter(|(_, due)| (0..=now).contains(*due)).collect();
        due.sort_by_key(|(name, due)| (**due, *name));
        let mut names: Vec<Name> = due.into_iter().map(|(name, _)| name.clone()).collect();
        for name in &names {
            let due = self.state.due.get_mut(name).expect("it is due");
            *due = -(*due).max(1);
        }
        let mut markers = std::mem::take(&mut self.state.markers);
        self.progress |= !names.is_empty() || !markers.is_empty();
        // The newest known mark counts, so the others are met before it.
        let mut marks: Vec<Name> = markers.iter().filter(|name| name.starts_with(b"\0t")).cloned().collect();
        marks.sort();
        for mark in &marks {
            self.state.meet(mark);
        }
        markers.reverse();
        names.extend(markers.into_iter().filter(|name| !name.is_empty() && !name.starts_with(b"\0t")));
        let first = self.state.groups.values().copied().min().map_or(0, |lowest| lowest + 1);
        for name in names {
            let group = group_of(&name);
            self.state.groups.entry(group.clone()).or_insert(first);
            self.state.set_aside.entry(group).or_default().insert(0, name);
        }
    }

    /// Takes names from the lists of groups, in turns. Returns each name with the place of its turn.
    /// Groups without names lose their turns.
    fn take_names(
        &mut self,
        turns: &mut [Turn],
        order: &mut Vec<usize>,
        gone: &mut BTreeSet<usize>,
        size: usize,
    ) -> Vec<(Name, usize)> {
        let most = size.div_ceil(order.len().max(1)).max((size / 8).min(NAMES_MIN)).max(1);
        let mut chunk = Vec::new();
        while chunk.len() < size && !order.is_empty() {
            let at = order.remove(0);
            let turn = &mut turns[at];
            let names = self.state.set_aside.entry(turn.group.clone()).or_default();
            let count = most.min(size - chunk.len()).min(names.len());
            if count == 0 {
                gone.insert(at);
                continue;
            }
            chunk.extend(names.drain(names.len() - count..).rev().map(|name| (name, at)));
            turn.pass += count as u64;
            let pass = turn.pass;
            let place = order.iter().rposition(|other| turns[*other].pass <= pass).map_or(0, |place| place + 1);
            order.insert(place, at);
        }
        chunk
    }

    /// Claims for all free slots, in turns of the groups.
    pub(super) fn claim_grouped(&mut self, slots: &mut [Slot], claims: usize) {
        if self.has_groups {
            self.set_aside();
        }
        let claims_after = self.claims - claims;
        let mut turns: Vec<Turn> =
            self.state.groups.iter().map(|(group, pass)| Turn { group: group.clone(), start: *pass, pass: *pass }).collect();
        turns.sort_by_key(|turn| (turn.pass, turn.group.clone()));
        assert!(turns.len() <= TURNS_MAX, "the reference reads the turns of all groups");
        let mut order: Vec<usize> = (0..if claims > 0 { turns.len() } else { 0 }).collect();
        let (mut gone, mut served) = (BTreeSet::new(), BTreeMap::<usize, u64>::new());
        let (mut size, mut used_last) = (0, 0);
        loop {
            let free = |call: &Self, slots: &[Slot]| {
                let has_room = call.claims > claims_after && call.reply_bytes > 0;
                slots.iter().position(|slot| !slot.has).filter(|_| has_room)
            };
            size = (size * 2).max(self.claims - claims_after).min(CHUNK_MAX).min(self.markers).min(self.waiting());
            self.progress |= used_last > 0;
            if size == 0 || free(self, slots).is_none() {
                break;
            }
            let chunk = self.take_names(&mut turns, &mut order, &mut gone, size);
            self.markers -= chunk.len();
            for (_, at) in &chunk {
                served.entry(*at).or_default();
            }
            let mut used = 0;
            for (place, (name, at)) in chunk.iter().enumerate() {
                let owner = self.state.owner(name);
                if owner.is_some() && owner.as_deref() != Some("held") {
                    continue;
                }
                let Some(number) = free(self, slots) else { break };
                // An owner key of a wrong type does not hide the held batch of an object that is set aside.
                let is_aside = self.state.due.get(name).is_some_and(|due| *due < 0);
                let got = if owner.is_some() || is_aside && self.state.object(name).held_id != Key::default() {
                    self.claim_aside(&mut slots[number], name)
                } else {
                    self.own(&mut slots[number], name, false)
                };
                used = place + 1;
                if got == Got::Claimed {
                    *served.entry(*at).or_default() += 1;
                }
            }
            if free(self, slots).is_some() {
                used = chunk.len();
            }
            for (name, at) in chunk[used..].iter().rev() {
                self.state.set_aside.entry(turns[*at].group.clone()).or_default().push(name.clone());
                gone.remove(at);
            }
            used_last = used;
            self.progress |= used > 0;
        }
        for (at, claimed) in served {
            if !gone.contains(&at) {
                self.state.groups.insert(turns[at].group.clone(), turns[at].start + claimed);
            }
        }
        for at in gone {
            self.state.groups.remove(&turns[at].group);
        }
        self.state.set_aside.retain(|_, names| !names.is_empty());
        if self.waiting() == 0 {
            self.state.groups.clear();
        }
        for slot in slots.iter_mut() {
            if let Some(left) = slot.left.take() {
                remove(&mut self.state.worker(&slot.w).objects, &left);
            }
        }
    }

    /// Claims a held object whose name was set aside, if it is still due.
    fn claim_aside(&mut self, slot: &mut Slot, name: &Name) -> Got {
        match self.state.due.get(name) {
            Some(due) if *due <= self.state.now as i64 => self.claim_due(slot, name.clone()),
            _ => Got::Dropped,
        }
    }
}
