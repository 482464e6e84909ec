//! The checker: compares a state with the invariants of docs/design.md and with the test's own
//! records.
//!
//! It checks I4, I7 and the order of I5 together. The batch of an object (its owner's batch or the
//! held batch) followed by its queue must be exactly the end of its pushed events. Every event
//! before them must be delivered or dead.

use std::collections::BTreeMap;

use seriatim::wire::Tag;

use super::state::{Name, Object, State, text};
use super::world::{Number, World, number};
use super::{log, rules};

/// Returns an error for the first violation.
pub fn check(state: &State, world: &mut World) -> Result<(), String> {
    if let Some(strange) = state.strange.first() {
        return Err(format!("a key of no known kind or type: {strange}"));
    }
    world.bury(state)?;
    counter(state, world)?;
    let owned = owned(state)?;
    batches(state, &owned)?;
    rules::check(state, world, &owned)?;
    log::check(state, world)?;
    names(state)?;
    groups(state)?;
    let objects = world
        .pushed
        .keys()
        .chain(state.objects.keys())
        .chain(state.due.keys())
        .chain(&state.paused)
        .cloned();
    for name in objects.collect::<std::collections::BTreeSet<_>>() {
        let object = state.object(&name);
        held(state, &name, &object)?;
        covered(state, &name, &object)?;
        places(state, world, &name, &object)?;
    }
    dead_letters(state, world)
}

fn counter(state: &State, world: &mut World) -> Result<(), String> {
    let counter: u64 = state
        .counter
        .as_deref()
        .unwrap_or("0")
        .parse()
        .map_err(|_| format!("ids: the counter is {:?}", state.counter))?;
    if counter < world.counter {
        return Err(format!(
            "ids: the counter went back from {} to {counter}",
            world.counter
        ));
    }
    world.counter = counter;
    Ok(())
}

/// Checks that every registered name is either watched or departed.
fn names(state: &State) -> Result<(), String> {
    let mut looked_at = state.looked_at.clone();
    looked_at.sort();
    if !looked_at.iter().eq(state.registry.keys()) {
        return Err(format!(
            "names: {looked_at:?} are looked at, {:?} are registered",
            state.registry
        ));
    }
    Ok(())
}

/// Checks the names that are grouped: each list has turns, and all names are counted.
fn groups(state: &State) -> Result<(), String> {
    let count: usize = state.grouped.values().map(Vec::len).sum();
    if state.waiting.as_deref() != (count > 0).then(|| count.to_string()).as_deref() {
        return Err(format!(
            "groups: {count} names are grouped, {:?} are counted",
            state.waiting
        ));
    }
    if let Some(group) = state
        .grouped
        .keys()
        .find(|group| !state.groups.contains_key(*group))
    {
        return Err(format!(
            "groups: {} has names and no turns: {:?}",
            text(group),
            state.groups
        ));
    }
    Ok(())
}

/// Checks I2 and I6: a worker that owns an object has it in its list, and owns no other object.
fn owned(state: &State) -> Result<BTreeMap<&str, &Name>, String> {
    let mut owned: BTreeMap<&str, &Name> = BTreeMap::new();
    for (name, object) in &state.objects {
        let Some(owner) = object.owner.as_deref().filter(|owner| *owner != "held") else {
            continue;
        };
        if !state
            .workers
            .get(owner)
            .is_some_and(|worker| worker.objects.contains(name))
        {
            return Err(format!(
                "I2: {owner} owns {} and does not have it in its list",
                text(name)
            ));
        }
        if let Some(other) = owned.insert(owner, name) {
            return Err(format!(
                "I6: {owner} owns {} and {}",
                text(other),
                text(name)
            ));
        }
    }
    Ok(owned)
}

/// Checks I3: only a worker that owns an object has a batch, and between two scripts it always has
/// one. A tag exists exactly if a batch exists.
fn batches(state: &State, owned: &BTreeMap<&str, &Name>) -> Result<(), String> {
    for (w, worker) in &state.workers {
        let owns = owned.contains_key(w.as_str());
        if worker.batch.is_empty() == owns {
            return Err(format!(
                "I3: {w} owns {:?} and has a batch of {}",
                owned.get(w.as_str()),
                worker.batch.len()
            ));
        }
        if worker.tag.is_some() == worker.batch.is_empty() {
            return Err(format!(
                "I3: {w} has a batch of {} and the tag {:?}",
                worker.batch.len(),
                worker.tag
            ));
        }
        let owned = owned.get(w.as_str()).copied();
        if worker.named.as_ref() != owned {
            return Err(format!(
                "I3: {w} owns {owned:?}, but its tag names {:?}",
                worker.named
            ));
        }
    }
    Ok(())
}

/// Checks I2: the owner key is `held` exactly if the object is in one of `objects.held` and
/// `objects.paused`.
fn held(state: &State, name: &Name, object: &Object) -> Result<(), String> {
    let (is_held, waits) = (
        object.owner.as_deref() == Some("held"),
        state.due.contains_key(name),
    );
    let is_paused = state.paused.contains(name);
    if waits && is_paused || is_held != (waits || is_paused) {
        let owner = &object.owner;
        return Err(format!(
            "I2: {} has the owner {owner:?}, is in objects.held: {waits}, in objects.paused: {is_paused}",
            text(name)
        ));
    }
    if !is_held && (object.held_id.is_some() || !object.held.is_empty()) {
        return Err(format!(
            "I3: {} is not held and has a held batch: {object:?}",
            text(name)
        ));
    }
    if state.due.get(name).is_some_and(|due| *due < 0.0) && !is_grouped(state, name) {
        return Err(format!(
            "groups: {} is due since {:?}, and in no list of a group",
            text(name),
            state.due[name]
        ));
    }
    let first = object
        .held_id
        .as_deref()
        .map_or("0", |id| id.split(' ').next().unwrap_or_default());
    if object.held.is_empty() != (first == "0") {
        return Err(format!(
            "I3: {} has a held batch of {} and the numbers {:?}",
            text(name),
            object.held.len(),
            object.held_id
        ));
    }
    Ok(())
}

fn is_grouped(state: &State, name: &Name) -> bool {
    state.grouped.values().any(|names| names.contains(name))
}

/// Checks I1: an object with queued events is covered.
fn covered(state: &State, name: &Name, object: &Object) -> Result<(), String> {
    let covered = object.queue.is_empty()
        || state.markers.contains(name)
        || is_grouped(state, name)
        || state
            .workers
            .values()
            .any(|worker| worker.objects.contains(name))
        || state.due.contains_key(name)
        || state.paused.contains(name);
    covered.then_some(()).ok_or_else(|| {
        format!(
            "I1: {} has {} events and is covered by nothing",
            text(name),
            object.queue.len()
        )
    })
}

fn places(state: &State, world: &mut World, name: &Name, object: &Object) -> Result<(), String> {
    let (batch, tag) = match object.owner.as_deref() {
        Some("held") => (
            object.held.clone(),
            object.held_id.as_deref().map(held_tag).transpose()?,
        ),
        Some(w) => (
            state.worker(w).batch,
            state
                .worker(w)
                .tag
                .map(|tag| tag.parse().map_err(|_| tag))
                .transpose()?,
        ),
        None => (Vec::new(), None),
    };
    // Each failed attempt of the first event has left its error, at most 20 errors. No other event
    // has errors.
    let attempts = tag.map_or(0, |tag| tag.attempts as usize);
    if object.errors.len() != attempts.min(20) {
        return Err(format!(
            "{} has {attempts} failed attempts and the errors {:?}",
            text(name),
            object.errors
        ));
    }
    let here: Vec<Number> = batch
        .iter()
        .chain(&object.queue)
        .map(|event| number(event))
        .collect();
    let pushed = world.pushed.get(name).cloned().unwrap_or_default();
    let gone = pushed.len().checked_sub(here.len());
    let Some(gone) = gone.filter(|gone| pushed[*gone..] == here) else {
        return Err(format!(
            "I4, I7: {} was pushed {pushed:?}, there is {here:?} (in hand {})",
            text(name),
            batch.len()
        ));
    };
    for (at, number) in here.iter().take(batch.len()).enumerate() {
        world.saw(*number, tag.map_or(0, |tag| tag.first) + at as u64)?;
        world.attempts.insert(
            *number,
            tag.filter(|_| at == 0).map_or(0, |tag| tag.attempts),
        );
    }
    if world.logs {
        if let Some(unlogged) = pushed[..gone]
            .iter()
            .find(|number| !world.logged.contains(number))
        {
            return Err(format!(
                "event {unlogged} of {} is over, and not logged",
                text(name)
            ));
        } else if let Some(early) = here.iter().find(|number| world.logged.contains(number)) {
            return Err(format!(
                "event {early} of {} is logged, and not over",
                text(name)
            ));
        }
    }
    if let Some(lost) = pushed[..gone]
        .iter()
        .find(|number| !world.applied.contains(number) && !world.dead.contains(number))
    {
        return Err(format!("I7: event {lost} of {} is nowhere", text(name)));
    }
    if let Some(both) = here.iter().find(|number| world.dead.contains(number)) {
        return Err(format!(
            "I4: event {both} of {} is a dead letter, and not gone",
            text(name)
        ));
    }
    let ids: Vec<u64> = pushed
        .iter()
        .map_while(|number| world.id_of.get(number).copied())
        .collect();
    if !ids.is_sorted()
        || ids.len() < gone + batch.len()
        || ids.last().is_some_and(|id| *id > world.counter)
    {
        return Err(format!(
            "I5: the ids of {} are {ids:?}, the counter is {}",
            text(name),
            world.counter
        ));
    }
    let delivered = pushed[..gone]
        .iter()
        .rev()
        .find(|number| !world.dead.contains(number));
    let last = delivered.map(|number| world.id_of[number]);
    let is_forgotten =
        object.last.is_none() && last.is_some_and(|last| world.forgotten.contains(&last));
    let last = last.map(|last| last.to_string());
    if object.last != last && !is_forgotten {
        return Err(format!(
            "I5: the last id of {} is {:?}, it should be {last:?}",
            text(name),
            object.last
        ));
    }
    Ok(())
}

/// Returns the numbers of a held batch, which stand before the reason.
pub fn held_tag(held_id: &str) -> Result<Tag, String> {
    let numbers: Vec<&str> = held_id.splitn(5, ' ').take(4).collect();
    numbers
        .join(" ")
        .parse()
        .map_err(|_| format!("not the numbers of a held batch: {held_id:?}"))
}

fn dead_letters(state: &State, world: &World) -> Result<(), String> {
    for dead in &state.dead {
        let prev = world.prev_of(&dead.object, world.place[&number(&dead.event)]);
        if dead.prev != prev && !(dead.prev == 0 && world.forgotten.contains(&prev)) {
            return Err(format!(
                "I5: a dead letter's prev should be {prev}: {dead:?}"
            ));
        }
    }
    Ok(())
}
