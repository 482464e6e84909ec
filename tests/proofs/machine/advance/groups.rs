//! The turns of groups: markers and due held objects are grouped by group, and claimed group by
//! group.

use std::collections::{BTreeMap, BTreeSet};

use super::super::reference::{Name, remove};
use super::super::shares::{ALL, CLASS, PARKED, REST, class_of};
use super::{Call, Got, Slot};

/// The most groups whose turns a call takes, and the fewest names per turn in a call with many
/// claims.
const TURNS_MAX: usize = 64;
const NAMES_MIN: usize = 4;
const CHUNK_MAX: usize = 512;

/// Of so many names, the classes after the highest one that waits get one each.
const ROUND: u64 = 16;
/// If no name led to a claim, a turn reads so many times as many the next time, up to a maximum.
const PATIENCE: i64 = 4;
const PATIENCE_MAX: i64 = 64;

struct Turn {
    group: Name,
    /// The place of the class: 0 is high, 1 is normal, 2 is low.
    class: usize,
    weight: f64,
    /// The pass before the call.
    start: f64,
    /// The pass that counts the names taken in this call.
    pass: f64,
    /// The objects claimed in this call.
    claimed: u64,
    /// Whether the group waits for a limit.
    is_parked: bool,
    /// Whether the group is removed, although names of it may still come back from the chunk.
    has_left: bool,
    /// The names read in this chunk, and whether one of them has led to a claim.
    pending: i64,
    has_led: bool,
    /// The names that the turn reads at least.
    patience: i64,
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
    /// The turns whose passes are written.
    served: BTreeSet<usize>,
    /// Whether the limit of all objects allows no claim.
    is_full: bool,
    /// Turns that wait for the end of the chunk.
    paused: Vec<usize>,
    /// The groups whose turns were read. By class, the number of those that are still there and do not
    /// wait for a limit.
    known: BTreeSet<Name>,
    in_set: [usize; 3],
}

impl Turns {
    /// Puts a turn back among the turns of its class.
    fn insert(&mut self, at: usize) {
        let Turn { class, pass, .. } = self.all[at];
        let order = &self.order[class];
        let place = order
            .iter()
            .rposition(|other| self.all[*other].pass <= pass)
            .map_or(0, |place| place + 1);
        self.order[class].insert(place, at);
    }

    /// Returns the class with the next turn, and the most names of the turn.
    fn next_class(&self) -> Option<(usize, usize)> {
        let classes: Vec<usize> = (0..3)
            .filter(|class| !self.order[*class].is_empty())
            .collect();
        let (first, last) = (*classes.first()?, *classes.last()?);
        let Some(place) = self.place.map(|place| (place % ROUND) as usize) else {
            return Some((first, usize::MAX));
        };
        Some(match place {
            15 => (last, 1),
            7 if classes.len() == 3 => (1, 1),
            0..7 if classes.len() == 3 => (first, 7 - place),
            _ => (first, 15 - place),
        })
    }
}

impl Call<'_> {
    /// Returns the number of names that are grouped.
    pub(super) fn waiting(&self) -> usize {
        self.state.grouped.values().map(Vec::len).sum()
    }

    /// Returns whether the groups take turns. `claims`: the number of objects that the call may
    /// claim. `was_due`: whether a held object was due when the call began.
    pub(super) fn is_grouped(&self, claims: usize, was_due: bool) -> bool {
        let now = self.state.now as i64;
        let (markers, due) = (
            self.state.markers.len(),
            self.state.due.values().filter(|due| **due <= now).count(),
        );
        if self.limited && claims > 0 {
            return true;
        } else if self.waiting() > 0 {
            return claims > 0 || self.has_groups && (markers > 0 || due > 0);
        }
        self.has_groups && claims > 0 && (markers > claims || was_due && due > claims)
    }

    /// Moves all markers and all due held objects to the lists of their groups, behind the names
    /// that are there. A held object stays due, with a negative time.
    fn sort(&mut self) {
        let now = self.state.now as i64;
        // Without names that are grouped, names of held objects were lost.
        let first_due = if self.waiting() > 0 { 0 } else { i64::MIN };
        let mut due: Vec<_> = self
            .state
            .due
            .iter()
            .filter(|(_, due)| (first_due..=now).contains(*due))
            .collect();
        due.sort_by_key(|(name, due)| (**due, *name));
        let mut names: Vec<Name> = due.into_iter().map(|(name, _)| name.clone()).collect();
        for name in &names {
            let due = self.state.due.get_mut(name).expect("it is due");
            *due = -(*due).max(1);
        }
        let mut markers = std::mem::take(&mut self.state.markers);
        self.progress |= !names.is_empty() || !markers.is_empty();
        // The newest known mark counts, so the others are met before it.
        let mut marks: Vec<Name> = markers
            .iter()
            .filter(|name| name.starts_with(b"\0t"))
            .cloned()
            .collect();
        marks.sort();
        for mark in &marks {
            self.state.meet(mark);
        }
        markers.reverse();
        names.extend(
            markers
                .into_iter()
                .filter(|name| !name.is_empty() && !name.starts_with(b"\0t")),
        );
        // All new groups of a class begin with the same pass.
        let firsts = [-1, 0, 1].map(|class| self.state.first_pass(class));
        for name in names {
            let group = self.state.group_of(&name, self.depth);
            let class = self.state.weigh(&group).1;
            self.state
                .groups
                .entry(group.clone())
                .or_insert(firsts[(class + 1) as usize]);
            self.state.grouped.entry(group).or_default().insert(0, name);
        }
    }

    /// Adds the turns of the groups of a class that have none yet. Without shares, all groups have the
    /// same class.
    fn read_turns(&mut self, turns: &mut Turns, class: usize) {
        let has_shares = self.state.parts() > 0;
        let class_of = |pass: f64| {
            if has_shares {
                (class_of(pass) + 1) as usize
            } else {
                1
            }
        };
        let groups = self
            .state
            .groups
            .iter()
            .filter(|(_, pass)| **pass < 2.0 * CLASS && class_of(**pass) == class);
        let mut groups: Vec<_> = groups.map(|(group, pass)| (*pass, group.clone())).collect();
        groups.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        assert!(
            groups.len() <= TURNS_MAX,
            "the reference reads the turns of all groups"
        );
        let rank = if self.limited { turns.in_set[class] } else { 0 };
        for (start, group) in groups.into_iter().skip(rank) {
            if self.limited && turns.known.contains(&group) {
                continue;
            }
            turns.known.insert(group.clone());
            turns.in_set[class] += 1;
            let weight = self.state.weigh(&group).0;
            turns.order[class].push(turns.all.len());
            let turn = Turn {
                group,
                class,
                weight,
                start,
                pass: start,
                claimed: 0,
                is_parked: false,
                has_left: false,
                pending: 0,
                has_led: false,
                patience: 1,
            };
            turns.all.push(turn);
        }
    }

    /// Begins the turns of all groups.
    fn begin_round(&mut self, turns: &mut Turns) {
        (0..3).for_each(|class| self.read_turns(turns, class));
        let classes = turns.order.iter().filter(|order| !order.is_empty()).count();
        turns.place = (classes > 1).then(|| self.state.round.unwrap_or(0));
        self.state.classed += u64::from(classes > 1);
        self.state.weighed += u64::from(turns.order.iter().any(|order| {
            let weights: Vec<f64> = order.iter().map(|at| turns.all[*at].weight).collect();
            weights.windows(2).any(|two| two[0] != two[1])
        }));
    }

    /// Removes the groups without names.
    fn leave(&mut self, turns: &mut Turns) {
        for at in std::mem::take(&mut turns.gone) {
            self.state.groups.remove(&turns.all[at].group);
            turns.in_set[turns.all[at].class] -= 1;
            turns.all[at].has_left = true;
        }
    }

    /// Ends the turn of a group, because the limit of the prefix `by` allows no claim.
    fn wait_for(&mut self, turns: &mut Turns, at: usize, by: &Name) {
        if &by[..] == ALL {
            turns.is_full = true;
            turns.order = Default::default();
            return;
        }
        let turn = &mut turns.all[at];
        turn.is_parked = true;
        turns.in_set[turn.class] -= usize::from(!turn.has_left);
        let member = if *by == turn.group {
            by.clone()
        } else {
            [by, &b"\n"[..]].concat().into()
        };
        self.state.blocked.entry(member).or_insert(false);
        self.state.parked += 1;
        if let Some(pass) = self.state.groups.get_mut(&turn.group) {
            *pass = turn.start + turn.claimed as f64 / turn.weight + PARKED;
        }
    }

    /// Moves a name to the list of its group.
    fn move_name(&mut self, turns: &mut Turns, name: &Name) {
        let group = self.state.group_of(name, self.depth);
        let first = self.state.first_pass(self.state.weigh(&group).1);
        self.state.groups.entry(group.clone()).or_insert(first);
        self.state
            .grouped
            .entry(group.clone())
            .or_default()
            .insert(0, name.clone());
        if let Some(at) = turns
            .gone
            .iter()
            .copied()
            .find(|at| turns.all[*at].group == group)
        {
            turns.gone.remove(&at);
            turns.served.insert(at);
            turns.insert(at);
        }
    }

    /// Takes names from the lists of groups, in turns. Returns each name with the place of its turn.
    /// Groups without names lose their turns.
    fn take_names(&mut self, turns: &mut Turns, size: usize) -> Vec<(Name, usize)> {
        let most = [0, 1, 2].map(|class| {
            size.div_ceil(turns.order[class].len().max(1))
                .max((size / 8).min(NAMES_MIN))
        });
        let mut chunk = Vec::new();
        while chunk.len() < size {
            let Some((class, names_max)) = turns.next_class() else {
                break;
            };
            let at = turns.order[class].remove(0);
            let (is_parked, group) = (turns.all[at].is_parked, turns.all[at].group.clone());
            let limit = if self.limited && !is_parked {
                self.room_of(&group)
            } else {
                (i64::MAX, Name::new())
            };
            let mut count = 0;
            let Turn {
                pending, patience, ..
            } = turns.all[at];
            if limit.0 <= 0 {
                self.wait_for(turns, at, &limit.1);
            } else if pending > 0 && pending >= limit.0 {
                turns.paused.push(at);
            } else if !is_parked {
                let names = self.state.grouped.entry(group).or_default();
                let allowed = (limit.0 - pending).max(patience) as usize;
                count = most[class]
                    .min(size - chunk.len())
                    .min(names_max)
                    .min(allowed)
                    .min(names.len());
                if count == 0 {
                    turns.gone.insert(at);
                    turns.served.remove(&at);
                } else {
                    chunk.extend(
                        names
                            .drain(names.len() - count..)
                            .rev()
                            .map(|name| (name, at)),
                    );
                    turns.all[at].pass += count as f64 / turns.all[at].weight;
                    turns.all[at].pending += count as i64;
                    turns.place = turns.place.map(|place| place + count as u64);
                    turns.served.insert(at);
                    turns.insert(at);
                }
            }
            if count == 0 && turns.order[class].is_empty() && !turns.is_full {
                self.leave(turns);
                self.read_turns(turns, class);
            }
        }
        chunk
    }

    /// Claims for all free slots, in turns of the groups.
    pub(super) fn claim_grouped(&mut self, slots: &mut [Slot], claims: usize) {
        if self.has_groups {
            self.sort();
        }
        let claims_after = self.claims - claims;
        let mut turns = Turns::default();
        if self.limited && claims > 0 {
            self.unpark();
            turns.is_full = self.room_of(&Name::from_static(REST)).0 <= 0;
        }
        if claims > 0 && !turns.is_full {
            self.begin_round(&mut turns);
        }
        let (mut size, mut used_last, mut seen, mut has_moved) = (0, 0, BTreeSet::new(), false);
        loop {
            let free = |call: &Self, slots: &[Slot]| {
                let has_room = call.claims > claims_after && call.reply_bytes > 0;
                slots.iter().position(|slot| !slot.has).filter(|_| has_room)
            };
            size = (size * 2)
                .max(self.claims - claims_after)
                .min(CHUNK_MAX)
                .min(self.markers)
                .min(self.waiting());
            self.progress |= used_last > 0;
            if size == 0 || free(self, slots).is_none() {
                break;
            }
            let chunk = self.take_names(&mut turns, size);
            if chunk.is_empty() {
                break;
            }
            self.markers -= chunk.len();
            // A call looks at a name once, unless it has pushed the name to another list.
            let is_new: Vec<bool> = chunk
                .iter()
                .map(|(name, _)| seen.insert(name.clone()))
                .collect();
            let (mut used, mut stopped) = (0, BTreeMap::<usize, usize>::new());
            for (place, (name, at)) in chunk.iter().enumerate() {
                let owner = self.state.owner(name);
                if owner.is_some() && owner.as_deref() != Some("held") || !is_new[place] {
                    continue;
                }
                let Some(number) = free(self, slots) else {
                    break;
                };
                if self.limited && self.excluded.contains(name) {
                    continue;
                }
                used = place + 1;
                // An owner key of a wrong type does not hide that an object that is grouped is held.
                let is_grouped = self.state.due.get(name).is_some_and(|due| *due < 0);
                let is_held = owner.is_some() || is_grouped;
                let mut charged = 0;
                if self.limited {
                    let group = self.state.group_of(name, self.depth);
                    if stopped.contains_key(at) {
                        continue;
                    } else if group != turns.all[*at].group && self.state.has_own(&group) {
                        self.move_name(&mut turns, name);
                        seen.remove(name);
                        has_moved = true;
                        continue;
                    }
                    let held =
                        is_held.then(|| self.state.object(name).held.right().map_or(1, Vec::len));
                    match self.admitted(&group, held) {
                        Ok(asked) => charged = asked,
                        Err(by) => {
                            stopped.insert(*at, place);
                            self.wait_for(&mut turns, *at, &by);
                            continue;
                        }
                    }
                }
                let got = if is_held {
                    self.claim_waiting(&mut slots[number], name)
                } else {
                    self.own(&mut slots[number], name, false)
                };
                if got == Got::Claimed {
                    turns.all[*at].claimed += 1;
                    turns.all[*at].has_led = true;
                    if self.limited {
                        self.charge(name, charged);
                    }
                }
            }
            if free(self, slots).is_some() {
                used = chunk.len();
            }
            let mut kept = 0;
            for (place, (name, at)) in chunk.iter().enumerate().rev() {
                let stays = stopped.get(at).is_some_and(|from| place >= *from);
                if place >= used || stays {
                    self.state
                        .grouped
                        .entry(turns.all[*at].group.clone())
                        .or_default()
                        .push(name.clone());
                    turns.gone.remove(at);
                    turns.served.insert(*at);
                    kept += u64::from(place < used);
                }
            }
            turns.place = turns
                .place
                .map(|place| place - (chunk.len() - used) as u64 - kept);
            for turn in turns.all.iter_mut().filter(|turn| turn.pending > 0) {
                turn.patience = if turn.has_led {
                    1
                } else {
                    (turn.patience * PATIENCE).min(PATIENCE_MAX)
                };
                (turn.pending, turn.has_led) = (0, false);
            }
            let paused = std::mem::take(&mut turns.paused);
            if !turns.is_full {
                paused.into_iter().for_each(|at| turns.insert(at));
            }
            used_last = used;
            self.progress |= used > 0;
        }
        for at in turns.served.clone() {
            let turn = &turns.all[at];
            let pass = turn.start
                + turn.claimed as f64 / turn.weight
                + if turn.is_parked { PARKED } else { 0.0 };
            self.state.groups.insert(turn.group.clone(), pass);
        }
        self.leave(&mut turns);
        self.state.round = turns.place.map(|place| place % ROUND).or(self.state.round);
        self.state.grouped.retain(|_, names| !names.is_empty());
        if self.waiting() == 0 {
            self.state.groups.clear();
            self.state.round = None;
            self.state.blocked.clear();
        }
        let can_claim = self.claims > claims_after && self.reply_bytes > 0 && self.markers > 0;
        let is_over = self.limited && can_claim && turns.next_class().is_none();
        let ready = !turns.is_full && (!is_over || has_moved) && self.waiting() > 0;
        self.ready = Some(ready);
        self.wakes = self.unparked && ready && self.claims == claims_after;
        for slot in slots.iter_mut() {
            if let Some(left) = slot.left.take() {
                remove(&mut self.state.worker(&slot.w).objects, &left);
            }
        }
    }

    /// Claims a held object whose name was grouped, if it is still due.
    fn claim_waiting(&mut self, slot: &mut Slot, name: &Name) -> Got {
        match self.state.due.get(name) {
            Some(due) if *due <= self.state.now as i64 => self.claim_due(slot, name.clone()),
            _ => Got::Dropped,
        }
    }
}
