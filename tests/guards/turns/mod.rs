//! `advance`: the turns of groups. Each test makes single calls, and compares what is then set
//! aside.

mod aside;
mod counts;
mod in_turn;
mod limited;
mod markers;
mod moved;
mod order;
mod popped;
mod priorities;
mod shares;
mod stays;
mod times;

use std::fmt::Display;
use std::ops::Range;

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst, ScriptError};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;
use crate::{BOUNDS, attached, objects};

/// Limits of calls of a process whose objects have groups.
const GROUPED: Bounds = Bounds {
    claims: 1024,
    markers: 4096,
    group_depth: 1,
    ..BOUNDS
};

/// Limits of calls of such a process while no slot is free.
const NO_SLOT: Bounds = Bounds {
    claims: 0,
    ..GROUPED
};

/// Makes a call for these free slots.
async fn ask_for(
    state: &mut State,
    slots: Range<usize>,
    bounds: Bounds,
) -> Result<Advanced, ScriptError> {
    let mut call = Advance::new(&state.keys, "w", "token-1", bounds, ClaimFirst::Markers);
    slots.for_each(|slot| call.free(slot));
    wire::advance(&mut state.conn, &call).await
}

/// Makes a call for this number of free slots.
async fn ask(state: &mut State, slots: usize, bounds: Bounds) -> Result<Advanced, ScriptError> {
    ask_for(state, 0..slots, bounds).await
}

/// Makes a call for this number of free slots. Returns the objects of the slots' batches.
async fn claim(state: &mut State, slots: usize, bounds: Bounds) -> Vec<String> {
    let answer = ask(state, slots, bounds).await.expect("an answer");
    objects(&answer).into_iter().map(str::to_owned).collect()
}

/// Returns whether another call is of use, and whether it is of use even without a free slot.
fn more(answer: &Advanced) -> (bool, bool) {
    let Advanced::Ok { more, unsorted, .. } = answer else {
        panic!("{answer:?}")
    };
    (*more, *unsorted)
}

/// Runs commands in one round trip.
async fn run_all(state: &mut State, commands: impl IntoIterator<Item = Vec<String>>) {
    let mut pipe = redis::pipe();
    for words in commands {
        pipe.cmd(&words[0]).arg(&words[1..]).ignore();
    }
    if !pipe.is_empty() {
        pipe.query_async::<()>(&mut state.conn).await.expect("run");
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Emits one event for each object, oldest first.
async fn emit(state: &mut State, objects: impl IntoIterator<Item = impl Display>) {
    let keys = state.keys.clone();
    let of_object = |object: String| {
        [
            words(&["LPUSH", &keys.events(&object), "1"]),
            words(&["LPUSH", &keys.objects_with_events(), &object]),
        ]
    };
    run_all(
        state,
        objects
            .into_iter()
            .flat_map(|object| of_object(object.to_string())),
    )
    .await;
}

/// Holds objects with an event each. The first one is due at this time, each other one 1 ms later.
async fn hold(state: &mut State, due: u64, objects: impl IntoIterator<Item = impl Display>) {
    let keys = state.keys.clone();
    let of_object = |(due, object): (u64, String)| {
        [
            words(&["SET", &keys.event_worker(&object), "held"]),
            words(&["ZADD", &keys.objects_held(), &due.to_string(), &object]),
            words(&["SET", &keys.events_held_id(&object), "1 0 1 0 retry: down"]),
            words(&["LPUSH", &keys.events_held(&object), "1"]),
        ]
    };
    state.given(1).await;
    run_all(
        state,
        (due..)
            .zip(objects)
            .flat_map(|(due, object)| of_object((due, object.to_string()))),
    )
    .await;
}

/// Adds names, the oldest first, to the list of a group with this pass.
async fn set_aside(state: &mut State, group: &str, pass: impl Display, names: &[impl AsRef<str>]) {
    let (list, count) = (state.keys.group_waiting(group), names.len().to_string());
    let (groups, waiting) = (state.keys.event_groups(), state.keys.event_groups_waiting());
    let mut commands = vec![
        words(&["ZADD", &groups, &pass.to_string(), group]),
        words(&["INCRBY", &waiting, &count]),
    ];
    commands.extend(
        names
            .iter()
            .map(|name| words(&["LPUSH", &list, name.as_ref()])),
    );
    run_all(state, commands).await;
}

/// Adds names of objects with an event each to the list of a group with this pass.
async fn queue_aside(
    state: &mut State,
    group: &str,
    pass: impl Display,
    names: &[impl AsRef<str>],
) {
    let keys = state.keys.clone();
    run_all(
        state,
        names
            .iter()
            .map(|name| words(&["LPUSH", &keys.events(name.as_ref()), "1"])),
    )
    .await;
    set_aside(state, group, pass, names).await;
}

fn numbered(group: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{group}:{n}")).collect()
}

/// Returns all that is set aside: of each group its pass, and its names, the oldest first; and the
/// number of names. The groups are in the order of their turns.
async fn aside(console: &Console) -> String {
    let keys = &console.keys;
    let groups: Vec<(String, String)> = console
        .run(&["ZRANGE", &keys.event_groups(), "0", "-1", "WITHSCORES"])
        .await;
    let mut all = String::new();
    for (group, pass) in groups {
        let names = console.list(&keys.group_waiting(&group)).await;
        all += &format!("{} {pass}: {}; ", group.escape_default(), names.join(" "));
    }
    let count = console.text(&keys.event_groups_waiting()).await;
    all + count.as_deref().unwrap_or("none")
}

/// Returns the numbers of names that are set aside, of markers, and of held objects that were set
/// aside.
async fn counts(console: &Console) -> (u64, usize, usize) {
    let keys = &console.keys;
    let markers = console.run(&["LLEN", &keys.objects_with_events()]).await;
    (
        console.number(&keys.event_groups_waiting()).await,
        markers,
        held_aside(console).await,
    )
}

async fn held_aside(console: &Console) -> usize {
    console
        .run(&["ZCOUNT", &console.keys.objects_held(), "-inf", "(0"])
        .await
}

async fn rig(redis: &Redis) -> (State, Console) {
    (attached(redis).await, redis.console().await)
}
