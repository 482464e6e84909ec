//! A key disappears: it is deleted by hand, or Redis evicts it. A schedule of the state machine makes
//! the state. Then one key of those that exist is deleted, so a new key of the protocol is covered
//! by itself. From then on the reference cannot tell the state. So a producer emits further events,
//! pops move markers, and processes go on, or start again, until Redis is at rest. The promises are
//! checked:
//!
//! - no event comes under the name of another object
//! - no two events have the same id, and no event has two ids
//! - the events of an object come in their order
//! - an event that Redis still has is delivered, or `check` reports a violation
//!
//! The loss of `OBJ:event.worker` is an exception to the order. Until the key is written again,
//! another slot may take later events of the object.

mod run;

use std::collections::{BTreeMap, BTreeSet};

use redis::aio::MultiplexedConnection;
use seriatim::control::dead::PER_CALL_MAX;
use seriatim::keys::{
    GROUP_KINDS, Keys, OBJECT_KINDS, PROJECTION_KINDS, SHARED_KINDS, WORKER_KINDS,
};
use seriatim::wire::Tag;
use seriatim::wire::operator::By;

use super::operator::{WHO, WHY};
use super::reference::{Event, NAMES, Name, Reference};
use super::repaired;
use super::server::{Dump, Server};
use super::world::{Call, Step, World};
use crate::support::control;

use self::run::Process;
pub use self::run::Run;

pub const BY: By<'static> = By { who: WHO, why: WHY };
const SLOTS: usize = 4;
/// Rounds with results of every kind, and then rounds in which everything is delivered.
pub const ROUNDS: u32 = 12;
const ROUNDS_AT_END: u32 = 30;

/// Returns the kind of a key, as `src/keys.rs` names it.
pub fn kind_of(key: &[u8], prefix: &str) -> &'static str {
    let key = key.strip_prefix(prefix.as_bytes()).unwrap_or(key);
    let find = |kinds: &'static [(&'static str, &'static str)], key: &[u8]| {
        kinds
            .iter()
            .find(|(_, suffix)| key.ends_with(suffix.as_bytes()))
            .map(|(kind, _)| *kind)
    };
    if let Some((kind, _)) = SHARED_KINDS
        .iter()
        .find(|(_, shared)| shared.as_bytes() == key)
    {
        return kind;
    }
    let slot_or_name = key
        .strip_prefix(b"event.worker:")
        .filter(|rest| NAMES.iter().any(|name| rest.starts_with(name.as_bytes())));
    let group = key.strip_prefix(b"event.group:");
    let found = match (slot_or_name, group) {
        // The object `event.worker:p.0` has keys of its own.
        (Some(rest), _)
            if rest.iter().filter(|byte| **byte == b':').count() == 1
                || rest.ends_with(b":event.id") =>
        {
            find(WORKER_KINDS, rest).filter(|kind| !kind.is_empty())
        }
        (_, Some(rest)) => find(GROUP_KINDS, rest),
        _ => None,
    };
    found
        .or_else(|| find(OBJECT_KINDS, key))
        .or_else(|| find(PROJECTION_KINDS, key))
        .unwrap_or("?")
}

/// Returns all events of the dump among those that were emitted, by key.
pub fn events_in(dump: &Dump, objects: &BTreeMap<Event, Name>) -> BTreeMap<Event, Vec<u8>> {
    let mut found = BTreeMap::new();
    for (key, (kind, values)) in dump {
        // The events of the schedule are short numbers, as are the values of some other hashes.
        if kind != "list" && !(kind == "hash" && key.ends_with(b":events.scheduled")) {
            continue;
        }
        for value in values {
            // Emits of handlers are parts of longer texts; they are not looked at.
            if objects.contains_key(&value[..]) {
                found.insert(Event::from(value.clone()), key.clone());
            }
        }
    }
    found
}

/// The names of all kinds of keys.
pub fn kinds() -> impl Iterator<Item = &'static str> + Clone {
    let all = [
        OBJECT_KINDS,
        WORKER_KINDS,
        GROUP_KINDS,
        PROJECTION_KINDS,
        SHARED_KINDS,
    ];
    all.into_iter().flatten().map(|(kind, _)| *kind)
}

/// Returns the keys of a dump by kind, without the statuses of processes.
fn by_kind<'a>(dump: &'a Dump, prefix: &str) -> BTreeMap<&'static str, Vec<&'a Vec<u8>>> {
    let mut by_kind: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for key in dump.keys().filter(|key| !key.ends_with(b":status")) {
        by_kind.entry(kind_of(key, prefix)).or_default().push(key);
    }
    by_kind
}

/// One loss of a key.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    /// The kind of the key: its number in `kinds`, or the next kind that Redis has.
    pub kind: usize,
    /// Chooses the key among those of this kind, and the results of processes.
    pub which: u64,
    /// Whether all processes die with the loss.
    pub restart: bool,
    /// Whether an operator also repairs right after the loss, before the processes go on.
    pub is_repaired_first: bool,
}

/// The kind of the deleted key, and all kinds that Redis had then.
pub struct Lost {
    pub kind: &'static str,
    pub there: BTreeSet<&'static str>,
}

/// Makes the steps, deletes a key, and checks the promises, before and after a repair.
pub async fn vanish(
    conn: MultiplexedConnection,
    keys: &Keys,
    steps: &[Step],
    loss: Loss,
) -> Result<Lost, String> {
    let Loss {
        which,
        restart,
        is_repaired_first,
        ..
    } = loss;
    let mut server = Server::empty(conn.clone(), keys.clone()).await;
    let mut world = World::begin();
    let mut run = Run {
        conn: conn.clone(),
        keys,
        processes: BTreeMap::new(),
        objects: BTreeMap::new(),
        ids: BTreeMap::new(),
        id_of: BTreeMap::new(),
        given: Vec::new(),
        hurt: None,
        later: BTreeMap::new(),
        delivered: BTreeSet::new(),
        texts: Vec::new(),
        has_new_ids: false,
        random: which,
        tokens: 0,
    };
    for step in steps {
        // A counter that goes back without a sign, or a key of a wrong type, is another fault.
        if matches!(step, Step::Lose(_) | Step::Wrong(..) | Step::Broken(..)) {
            continue;
        }
        let (broken, call, reply) = world.apply(step);
        match &call {
            Call::Emit(pushes) => {
                pushes.iter().for_each(|(object, events)| {
                    events
                        .iter()
                        .for_each(|event| drop(run.objects.insert(event.clone(), object.clone())))
                });
            }
            Call::Schedule { object, event, .. } => {
                drop(run.objects.insert(event.clone(), object.clone()))
            }
            Call::Finish(args) => {
                let emits = args
                    .finished
                    .iter()
                    .filter_map(|(_, _, emits)| emits.as_ref())
                    .flat_map(|(_, emits)| &emits.events);
                emits.for_each(|(object, event)| {
                    drop(run.objects.insert(event.clone(), object.clone()))
                });
            }
            _ => {}
        }
        server.step(broken, &call, &reply, &world.state).await?;
    }
    let state = world.state;
    repaired::settings(&mut run.conn, keys).await;
    let (before, _) = server.look().await;
    let by_kind = by_kind(&before, keys.prefix());
    let there: BTreeSet<_> = by_kind.keys().copied().collect();
    let Some(kind) = kinds()
        .cycle()
        .skip(loss.kind)
        .take(kinds().count())
        .find(|kind| there.contains(kind))
    else {
        return Err(format!("no kind of keys, but {there:?}"));
    };
    let key = by_kind[kind][which as usize % by_kind[kind].len()].clone();
    run.hurt = state
        .objects
        .keys()
        .filter(|name| keys.found(name).is_ok())
        .find(|name| {
            let own = [keys.prefix().as_bytes(), name, b":"].concat();
            key.starts_with(&own)
        })
        .cloned();
    // The ids that slots have now.
    for (name, lease) in &state.leases {
        let mut process = Process {
            token: lease.token.clone(),
            attached: !restart,
            in_hand: BTreeMap::new(),
        };
        for slot in 0..SLOTS {
            let w = format!("{name}.{slot}");
            let Some(worker) = state.workers.get(&w) else {
                continue;
            };
            let owned = worker
                .objects
                .iter()
                .find(|object| state.owner(object).as_ref() == Some(&w));
            let (Some(tag), Some(object)) = (&worker.tag, owned) else {
                continue;
            };
            let tag: Tag = tag.parse().map_err(|_| format!("tag {tag:?}"))?;
            for (id, event) in (tag.first..).zip(&worker.batch) {
                run.gets(object, id, event)?;
            }
            if !restart {
                process
                    .in_hand
                    .insert(slot, (object.clone(), tag, worker.batch.len()));
            }
        }
        if restart {
            process.token = "token-gone".to_owned();
        }
        run.processes.insert(name, process);
    }
    for (name, object) in &state.objects {
        if let (Some(batch), Some(numbers)) = (
            object.held.right(),
            crate::machine::reference::Numbers::of_held(&object.held_id),
        ) {
            for (id, event) in (numbers.first..).zip(batch) {
                run.gets(name, id, event)?;
            }
        }
    }
    let _: () = redis::cmd("DEL")
        .arg(&key)
        .query_async(&mut run.conn)
        .await
        .map_err(|error| error.to_string())?;
    let what = format!(
        "after the loss of {} ({kind}), restart {restart}, repaired first {is_repaired_first}",
        String::from_utf8_lossy(&key)
    );
    let end = async {
        if is_repaired_first {
            repaired::repair(&mut run, &mut server).await?;
        }
        for round in 0..ROUNDS + ROUNDS_AT_END {
            run.round(round, &state).await?;
        }
        judge(&mut run, &mut server, &state, &before, &key, kind).await?;
        repaired::until_done(&mut run, &mut server, &state).await?;
        none_is_buried(&run, kind).await
    };
    end.await
        .map(|()| Lost { kind, there })
        .map_err(|error| format!("{error}\n{what}\ntold {:?}\n{}", run.texts, shown(&before)))
}

/// Checks that a repair has made no event a dead letter without an object, except if the owner of its
/// object was lost: only then nothing tells the object.
async fn none_is_buried(run: &Run<'_>, kind: &'static str) -> Result<(), String> {
    let page = control(&run.conn, run.keys)
        .dead_letters(None, PER_CALL_MAX)
        .await
        .map_err(|error| error.to_string())?;
    let buried: Vec<_> = page
        .letters
        .iter()
        .filter(|letter| letter.object.is_empty())
        .collect();
    if buried.is_empty() || kind == "event_worker" {
        Ok(())
    } else {
        Err(format!("dead letters without an object: {buried:?}"))
    }
}

pub fn shown(dump: &Dump) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let line = |(key, (_, values)): (&Vec<u8>, &(String, Vec<Vec<u8>>))| {
        format!(
            "  {} {:?}\n",
            text(key),
            values.iter().map(|value| text(value)).collect::<Vec<_>>()
        )
    };
    dump.iter()
        .filter(|(_, (kind, _))| kind != "stream")
        .map(line)
        .collect()
}

async fn judge(
    run: &mut Run<'_>,
    server: &mut Server,
    state: &Reference,
    before: &Dump,
    key: &[u8],
    kind: &'static str,
) -> Result<(), String> {
    let (after, _) = server.look().await;
    let left = events_in(&after, &run.objects);
    let dead: BTreeSet<Event> = after
        .values()
        .filter(|(kind, _)| kind == "stream")
        .flat_map(|(_, values)| values)
        .map(|value| Event::from(value.clone()))
        .collect();
    let lost: BTreeSet<Event> = before
        .get(key)
        .iter()
        .flat_map(|(_, values)| values)
        .map(|value| Event::from(value.clone()))
        .collect();
    let later = run.later.iter().flat_map(|(name, events)| {
        let at = [name, &b":events"[..]].concat();
        events.iter().map(move |event| (event.clone(), at.clone()))
    });
    for (event, at) in events_in(before, &run.objects).into_iter().chain(later) {
        // A reference leads to the event of a schedule, whose due time may be the lost key.
        if !run.delivered.contains(&event)
            && !left.contains_key(&event)
            && !dead.contains(&event)
            && !lost.contains(&event)
            && kind != "events_scheduled"
        {
            return Err(format!(
                "{event:?} of {:?} is lost",
                String::from_utf8_lossy(&at)
            ));
        }
    }
    if kind != "event_worker" {
        for (name, object) in &state.objects {
            let w = state.owner(name).unwrap_or_default();
            let in_hand = state
                .workers
                .get(&w)
                .map(|worker| worker.batch.clone())
                .unwrap_or_default();
            let held = object.held.right().cloned().unwrap_or_default();
            let queue = object.queue.right().cloned().unwrap_or_default();
            let later = run.later.get(name).cloned().unwrap_or_default();
            let order: Vec<_> = in_hand
                .into_iter()
                .chain(held)
                .chain(queue)
                .chain(later)
                .collect();
            let came = run
                .given
                .iter()
                .filter_map(|event| order.iter().position(|other| other == event));
            if !came.is_sorted() {
                return Err(format!(
                    "events of {name:?} came in another order: {order:?}, {:?}",
                    run.given
                ));
            }
        }
    }
    if !left.is_empty() {
        let report = control(&run.conn, run.keys)
            .check()
            .await
            .map_err(|error| error.to_string())?;
        if report.is_clean() {
            return Err(format!(
                "{left:?} are left, but check is clean\nleft\n{}",
                shown(&after)
            ));
        }
    }
    Ok(())
}
