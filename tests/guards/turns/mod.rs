//! `advance`: the turns of groups. Each test makes single calls, and compares what is then
//! grouped.

mod counts;
mod grouping;
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

use seriatim::wire::Bounds;

use crate::scene::{BOUNDS, Scene};

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

/// Returns [`GROUPED`] with a change.
fn grouped(change: impl FnOnce(&mut Bounds)) -> Bounds {
    let mut bounds = GROUPED;
    change(&mut bounds);
    bounds
}

/// Makes a call for this number of free slots. Returns the objects of the slots' batches.
async fn claim(scene: &Scene, slots: usize, bounds: Bounds) -> Vec<String> {
    let answer = scene.free(0..slots, bounds).await;
    answer.objects().into_iter().map(str::to_owned).collect()
}

/// Emits one event for each object, oldest first.
async fn emit(scene: &Scene, objects: impl IntoIterator<Item = impl Display>) {
    scene.add(&format!("each {}", words(objects))).await;
}

/// Holds objects with an event each. The first one is due at this time, each other one 1 ms later.
async fn hold(scene: &Scene, due: u64, objects: impl IntoIterator<Item = impl Display>) {
    scene.add(&format!("due {due} {}", words(objects))).await;
}

fn words(words: impl IntoIterator<Item = impl Display>) -> String {
    let quoted = words.into_iter().map(|word| format!("'{word}'"));
    quoted.collect::<Vec<_>>().join(" ")
}

fn numbered(group: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{group}:{n}")).collect()
}

/// Returns all that is grouped: of each group its pass, and its names, the oldest first; and the
/// number of names. The groups are in the order of their turns.
async fn all_grouped(scene: &Scene) -> String {
    let key = scene.keys.event_groups();
    let words = ["ZRANGE", &key, "0", "-1", "WITHSCORES"];
    let groups: Vec<(String, String)> = scene.run(&words).await;
    let mut all = String::new();
    for (group, pass) in groups {
        let names = scene.list(&scene.keys.group_waiting(&group)).await;
        all += &format!("{} {pass}: {}; ", group.escape_default(), names.join(" "));
    }
    let count = scene.text(&scene.keys.event_groups_waiting()).await;
    all + count.as_deref().unwrap_or("none")
}

/// Returns the numbers of names that are grouped, of markers, and of held objects that are
/// grouped.
async fn counts(scene: &Scene) -> (u64, usize, usize) {
    let keys = &scene.keys;
    let markers = scene.run(&["LLEN", &keys.objects_with_events()]).await;
    let sorted = scene.number(&keys.event_groups_waiting()).await;
    (sorted, markers, held_grouped(scene).await)
}

async fn held_grouped(scene: &Scene) -> usize {
    let held = scene.keys.objects_held();
    scene.run(&["ZCOUNT", &held, "-inf", "(0"]).await
}
