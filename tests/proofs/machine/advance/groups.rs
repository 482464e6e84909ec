//! The turns of groups: markers and due held objects are set aside by group, and claimed group by
//! group.

use std::collections::{BTreeMap, BTreeSet};

use super::super::reference::{Key, Name, remove};
use super::super::shares::class_of;
use super::{Call, Got, Slot};

/// The most groups whose turns a call takes, and the fewest names per turn in a call with many
/// claims.
const TURNS_MAX: usize = 64;
const NAMES_MIN: usize = 4;
const CHUNK_MAX: usize = 512;

/// Of so many names, the classes after the highest one that waits get one each.
const ROUND: u64 = 16;

struct Turn {
    group: Name,
    weight: f64,
    /// The pass before the call.
    start: f64,
    /// The pass that counts the names taken in this call.
    pass: f64,
}

/// The turns of a call.
#[derive(Default)]
struct Turns {
    all: Vec<Turn>,
    /// By class, the highest first: the turns to come.
    order: [Vec<usize>; 3],
    /// Turns of groups without names.
    gone: BTreeSet<usize>,
    /// The names taken in this round, if groups of several classes wait.
    place: Option<u64>,
}

impl Turns {
    /// Returns the class with the next turn, and the most names of the turn.
    fn next_class(&self) -> Option<(usize, usize)> {
        let classes: Vec<usize> = (0..3).filter(|class| !self.order[*class].is_empty()).collect();
        let (first, last) = (*classes.first()?, *classes.last()?);
        let Some(place) = self.place.map(|place| (place % ROUND) as usize) else { return Some((first, usize::MAX)) };
        Some(match place {
            15 => (last, 1),
            7 if classes.len() == 3 => (1, 1),
            0..7 if classes.len() == 3 => (first, 7 - place),
            _ => (first, 15 - place),
        })
    }
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
        // All new groups of a class begin with the same pass.
        let firsts = [-1, 0, 1].map(|class| self.state.first_pass(class));
        for name in names {
            let group = self.state.group_of(&name, self.depth);
            let class = self.state.weigh(&group).1;
            self.state.groups.entry(group.clone()).or_insert(firsts[(class + 1) as usize]);
            self.state.set_aside.entry(group).or_default().insert(0, name);
        }
    }

    /// Returns the turns of all groups. Without shares, all groups have the same class.
    fn turns(&mut self) -> Turns {
        let has_shares = !self.state.shares.is_empty();
        let mut groups: Vec<_> = self.state.groups.iter().map(|(group, pass)| (*pass, group.clone())).collect();
        groups.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        assert!(groups.len() <= TURNS_MAX, "the reference reads the turns of all groups");
        let mut turns = Turns::default();
        for (at, (start, group)) in groups.into_iter().enumerate() {
            let weight = self.state.weigh(&group).0;
            turns.order[if has_shares { (class_of(start) + 1) as usize } else { 1 }].push(at);
            turns.all.push(Turn { group, weight, start, pass: start });
        }
        let classes = turns.order.iter().filter(|order| !order.is_empty()).count();
        turns.place = (classes > 1).then(|| self.state.round.unwrap_or(0));
        self.state.classed += u64::from(classes > 1);
        self.state.weighed += u64::from(turns.order.iter().any(|order| {
            let weights: Vec<f64> = order.iter().map(|at| turns.all[*at].weight).collect();
            weights.windows(2).any(|two| two[0] != two[1])
        }));
        turns
    }

    /// Takes names from the lists of groups, in turns. Returns each name with the place of its turn.
    /// Groups without names lose their turns.
    fn take_names(&mut self, turns: &mut Turns, size: usize) -> Vec<(Name, usize)> {
        let most = [0, 1, 2].map(|class| size.div_ceil(turns.order[class].len().max(1)).max((size / 8).min(NAMES_MIN)));
        let mut chunk = Vec::new();
        while chunk.len() < size {
            let Some((class, names_max)) = turns.next_class() else { break };
            let at = turns.order[class].remove(0);
            let turn = &mut turns.all[at];
            let names = self.state.set_aside.entry(turn.group.clone()).or_default();
            let count = most[class].min(size - chunk.len()).min(names_max).min(names.len());
            if count == 0 {
                turns.gone.insert(at);
                continue;
            }
            chunk.extend(names.drain(names.len() - count..).rev().map(|name| (name, at)));
            turn.pass += count as f64 / turn.weight;
            turns.place = turns.place.map(|place| place + count as u64);
            let pass = turn.pass;
            let order = &turns.order[class];
            let place = order.iter().rposition(|other| turns.all[*other].pass <= pass).map_or(0, |place| place + 1);
            turns.order[class].insert(place, at);
        }
        chunk
    }

    /// Claims for all free slots, in turns of the groups.
    pub(super) fn claim_grouped(&mut self, slots: &mut [Slot], claims: usize) {
        if self.has_groups {
            self.set_aside();
        }
        let claims_after = self.claims - claims;
        let mut turns = if claims > 0 { self.turns() } else { Turns::default() };
        let mut served = BTreeMap::<usize, u64>::new();
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
            let chunk = self.take_names(&mut turns, size);
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
                self.state.set_aside.entry(turns.all[*at].group.clone()).or_default().push(name.clone());
                turns.gone.remove(at);
            }
            turns.place = turns.place.map(|place| place - (chunk.len() - used) as u64);
            used_last = used;
            self.progress |= used > 0;
        }
        for (at, claimed) in served {
            let turn = &turns.all[at];
            if !turns.gone.contains(&at) {
                self.state.groups.insert(turn.group.clone(), turn.start + claimed as f64 / turn.weight);
            }
        }
        for at in turns.gone {
            self.state.groups.remove(&turns.all[at].group);
        }
        self.state.round = turns.place.map(|place| place % ROUND).or(self.state.round);
        self.state.set_aside.retain(|_, names| !names.is_empty());
        if self.waiting() == 0 {
            self.state.groups.clear();
            self.state.round = None;
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
