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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use seriatim::control::dead::PER_CALL_MAX;
use seriatim::keys::{
    GROUP_KINDS, Keys, OBJECT_KINDS, PROJECTION_KINDS, SHARED_KINDS, WORKER_KINDS,
};
use seriatim::wire::operator::{self, By, RuleStep, ShareStep};
use seriatim::wire::{
    self, Advance, Advanced, Attached, BatchResult, Bounds, ClaimFirst, Renewed, Report,
    ScriptError, Suspects, Tag,
};

use super::operator::{WHO, WHY};
use super::reference::{Event, NAMES, Name, Reference};
use super::repaired;
use super::server::{Dump, Server};
use super::shares::selector;
use super::world::{Call, Step, World};
use crate::support::control;
use crate::support::sweep::sweep;

pub const BY: By<'static> = By { who: WHO, why: WHY };
const DAY: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(3600);
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

/// A process, as it sees itself.
#[derive(Debug, Default)]
struct Process {
    token: String,
    attached: bool,
    /// By slot: the batch in hand.
    in_hand: BTreeMap<usize, (Name, Tag, usize)>,
}

pub struct Run<'a> {
    pub conn: MultiplexedConnection,
    pub keys: &'a Keys,
    processes: BTreeMap<&'static str, Process>,
    /// The object of each event ever emitted.
    pub objects: BTreeMap<Event, Name>,
    ids: BTreeMap<u64, Event>,
    id_of: BTreeMap<Event, u64>,
    /// Events in the order of their first hand-out after the loss.
    given: Vec<Event>,
    /// By object: the events that a producer has emitted after the loss.
    later: BTreeMap<Name, Vec<Event>>,
    delivered: BTreeSet<Event>,
    /// What the calls have told about lost keys.
    pub told: Vec<(String, String)>,
    /// Whether a repair has given events new ids, because their ids were lost.
    pub has_new_ids: bool,
    random: u64,
    tokens: u32,
}

impl Run<'_> {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// Notes an event that a slot has got.
    fn gets(&mut self, object: &Name, id: u64, event: &Event) -> Result<(), String> {
        match self.objects.get(event) {
            Some(own) if own == object => {}
            own => {
                return Err(format!(
                    "event {event:?} of {own:?} came under the name {object:?} with id {id}"
                ));
            }
        }
        match self.ids.insert(id, event.clone()) {
            Some(other) if other != *event => {
                return Err(format!("id {id} is of {other:?} and of {event:?}"));
            }
            _ => {}
        }
        match self.id_of.insert(event.clone(), id) {
            Some(other) if other != id && !self.has_new_ids => {
                Err(format!("event {event:?} has the ids {other} and {id}"))
            }
            _ => Ok(()),
        }
    }

    async fn attach(&mut self, name: &'static str) -> Result<(), ScriptError> {
        self.tokens += 1;
        let lease: Option<String> = redis::cmd("GET")
            .arg(self.keys.worker_lease(name))
            .query_async(&mut self.conn)
            .await?;
        let process = self.processes.entry(name).or_default();
        // After a lapse the process attaches again, and still has its batches in hand.
        let before = std::mem::replace(&mut process.token, format!("token-v{}", self.tokens));
        let args = wire::Attach {
            name,
            token: &process.token,
            holder: "host 3 3",
            lease: LEASE,
            slots: SLOTS,
            displace: lease.as_deref().unwrap_or_default(),
            before: &before,
            crashes_max: 0,
            suspects: Suspects::of(0, false),
        };
        if let Attached::Attached { lost, .. } =
            wire::attach(&mut self.conn, self.keys, &args).await?
        {
            self.told.extend(lost);
            process.attached = true;
        }
        Ok(())
    }

    /// Returns the result of a batch in hand.
    fn result(&mut self, batch: &(Name, Tag, usize), at_end: bool) -> Option<Report> {
        let (object, tag, len) = batch.clone();
        let all = |then| Report {
            object: object.clone(),
            tag,
            count: len,
            last: Some(tag.first + len as u64 - 1),
            then,
        };
        Some(match if at_end { 9 } else { self.random(10) } {
            0..=2 => return None,
            3 => {
                let rest = Tag {
                    attempts: tag.attempts + 1,
                    ..tag
                };
                let then = BatchResult::Hold {
                    rest,
                    delay: Some(Duration::ZERO),
                    reason: "retry: no".into(),
                };
                Report {
                    object,
                    tag,
                    count: 0,
                    last: None,
                    then,
                }
            }
            4 if len > 1 => {
                let then = BatchResult::Part {
                    next: tag.after(1, 1),
                };
                Report {
                    object,
                    tag,
                    count: 1,
                    last: Some(tag.first),
                    then,
                }
            }
            5 => all(BatchResult::Yield),
            _ => all(BatchResult::Done),
        })
    }

    /// Makes a call with results of some slots, and takes in its reply.
    async fn advance(&mut self, name: &'static str, at_end: bool) -> Result<(), String> {
        let bounds = Bounds {
            batch: [1000, 2][self.random(2) as usize],
            batch_bytes: 1 << 20,
            reply_bytes: 1 << 24,
            claims: SLOTS,
            markers: 4096,
            forget_after: None,
            suspects: Suspects::of(0, false),
            group_depth: 0,
        };
        let from = [ClaimFirst::Held, ClaimFirst::Markers][self.random(2) as usize];
        let in_hand = self.processes[name].in_hand.clone();
        let reports: Vec<_> = (0..SLOTS)
            .map(|slot| in_hand.get(&slot).map(|batch| self.result(batch, at_end)))
            .collect();
        let token = self.processes[name].token.clone();
        let mut call = Advance::new(self.keys, name, &token, bounds, from);
        let (mut named, mut done) = (BTreeSet::new(), Vec::new());
        for (slot, report) in reports.iter().enumerate() {
            match report {
                None => call.free(slot),
                Some(None) => continue,
                Some(Some(report)) => {
                    call.handled(slot);
                    call.report(slot, report);
                    done.push((slot, report));
                }
            }
            named.insert(slot);
        }
        let reply = wire::advance(&mut self.conn, &call)
            .await
            .map_err(|error| format!("advance of {name}: {error}"))?;
        let Advanced::Ok {
            batches,
            quarantined,
            ..
        } = reply
        else {
            self.processes.get_mut(name).expect("a process").attached = false;
            return Ok(());
        };
        for (_, report) in done {
            let ids = report.tag.first..report.last.map_or(report.tag.first, |last| last + 1);
            self.delivered
                .extend(ids.filter_map(|id| self.ids.get(&id).cloned()));
        }
        self.told.extend(quarantined);
        let process = self.processes.get_mut(name).expect("a process");
        process.in_hand.retain(|slot, _| !named.contains(slot));
        for batch in batches {
            self.given.extend(
                batch
                    .events
                    .iter()
                    .filter(|event| !self.given.contains(event))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
            for (id, event) in (batch.tag.first..).zip(&batch.events) {
                self.gets(&batch.object, id, event)?;
            }
            let process = self.processes.get_mut(name).expect("a process");
            process
                .in_hand
                .insert(batch.slot, (batch.object, batch.tag, batch.events.len()));
        }
        Ok(())
    }

    /// Emits an event of an object that the schedule has, as a producer does.
    async fn emit(&mut self, state: &Reference) -> redis::RedisResult<()> {
        let names: Vec<_> = state
            .objects
            .keys()
            .filter(|name| self.keys.found(name).is_ok())
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = &names[self.random(names.len() as u64) as usize];
        let number: usize = self.later.values().map(Vec::len).sum();
        let event = Event::from(format!("later {number}"));
        let queue = [self.keys.prefix().as_bytes(), name, b":events"].concat();
        redis::pipe()
            .atomic()
            .cmd("LPUSH")
            .arg(queue)
            .arg(&event[..])
            .cmd("LPUSH")
            .arg(self.keys.objects_with_events())
            .arg(&name[..])
            .query_async::<()>(&mut self.conn)
            .await?;
        self.objects.insert(event.clone(), name.clone());
        self.later.entry(name.clone()).or_default().push(event);
        Ok(())
    }

    /// Moves the next marker to a slot that has no batch in hand, as a pop does: to the slot that owns
    /// the object, if it is such a slot, or else to any one of the process.
    async fn pop(&mut self, name: &'static str) -> redis::RedisResult<()> {
        let markers = self.keys.objects_with_events();
        let next: Option<Vec<u8>> = redis::cmd("LINDEX")
            .arg(&markers)
            .arg(-1)
            .query_async(&mut self.conn)
            .await?;
        let Some(object) = next else {
            return Ok(());
        };
        let key = [self.keys.prefix().as_bytes(), &object, b":event.worker"].concat();
        let owner: Vec<Option<String>> = redis::cmd("MGET")
            .arg(key)
            .query_async(&mut self.conn)
            .await?;
        let owner = owner.into_iter().next().flatten().unwrap_or_default();
        let any = format!("{name}.{}", self.random(SLOTS as u64));
        let free = [owner, any].into_iter().find(|w| {
            let slot = w.rsplit_once('.').map(|(name, slot)| (name, slot.parse()));
            matches!(slot, Some((name, Ok(slot))) if self.processes.get(name).is_some_and(
                |process| slot < SLOTS && !process.in_hand.contains_key(&slot)
            ))
        });
        let Some(slot) = free else {
            return Ok(());
        };
        redis::cmd("LMOVE")
            .arg(markers)
            .arg(self.keys.worker_object(&slot))
            .arg("RIGHT")
            .arg("LEFT")
            .query_async(&mut self.conn)
            .await
    }

    /// Makes everything due, and ends all rules and shares.
    async fn release(&mut self, state: &Reference) -> Result<(), ScriptError> {
        for field in state.rules.keys() {
            let (kind, at) = if field.starts_with(b"block") {
                ("block", 6)
            } else {
                ("pause", 6)
            };
            operator::rule(
                &mut self.conn,
                self.keys,
                BY,
                RuleStep::Lift,
                kind,
                &field[at..],
                1000,
            )
            .await?;
        }
        for prefix in state.shares.keys() {
            operator::share(
                &mut self.conn,
                self.keys,
                BY,
                &selector(prefix),
                ShareStep::Remove,
            )
            .await?;
        }
        let (held, scheduled) = (self.keys.objects_held(), self.keys.events_scheduled());
        let names: Vec<Bytes> = redis::cmd("ZRANGEBYSCORE")
            .arg(&held)
            .arg(0)
            .arg("+inf")
            .query_async::<Vec<Vec<u8>>>(&mut self.conn)
            .await?
            .into_iter()
            .map(Bytes::from)
            .collect();
        for name in names {
            redis::cmd("ZADD")
                .arg(&held)
                .arg("XX")
                .arg(0)
                .arg(&name[..])
                .query_async::<()>(&mut self.conn)
                .await?;
        }
        let due: Vec<Vec<u8>> = redis::cmd("ZRANGEBYSCORE")
            .arg(&scheduled)
            .arg(0)
            .arg("+inf")
            .query_async(&mut self.conn)
            .await?;
        for member in due {
            redis::cmd("ZADD")
                .arg(&scheduled)
                .arg("XX")
                .arg(1)
                .arg(member)
                .query_async::<()>(&mut self.conn)
                .await?;
        }
        Ok(())
    }

    pub async fn round(&mut self, round: u32, state: &Reference) -> Result<(), String> {
        let at_end = round >= ROUNDS;
        let told = |error: ScriptError| error.to_string();
        if at_end {
            self.release(state).await.map_err(told)?;
        }
        if round.is_multiple_of(4) {
            let swept = sweep(&mut self.conn, self.keys, "other", 0, DAY)
                .await
                .map_err(told)?;
            self.told.extend(swept.lost);
        }
        wire::promote(&mut self.conn, self.keys, 256, 1 << 20)
            .await
            .map_err(told)?;
        for name in NAMES {
            if !self
                .processes
                .get(name)
                .is_some_and(|process| process.attached)
            {
                self.attach(name).await.map_err(told)?;
            }
            if round % 4 == 2 {
                let token = self.processes[name].token.clone();
                match wire::renew(&mut self.conn, self.keys, name, &token, LEASE, SLOTS)
                    .await
                    .map_err(told)?
                {
                    Renewed::Renewed { lost, .. } => self.told.extend(lost),
                    _ => self.processes.get_mut(name).expect("a process").attached = false,
                }
            }
            if !at_end && self.random(2) == 0 {
                self.emit(state).await.map_err(|error| error.to_string())?;
                self.pop(name).await.map_err(|error| error.to_string())?;
            }
            if self.processes[name].attached {
                self.advance(name, at_end).await?;
            }
        }
        Ok(())
    }
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
        later: BTreeMap::new(),
        delivered: BTreeSet::new(),
        told: Vec::new(),
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
            super::reference::Numbers::of_held(&object.held_id),
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
        .map_err(|error| format!("{error}\n{what}\ntold {:?}\n{}", run.told, shown(&before)))
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
    for (event, at) in events_in(before, &run.objects) {
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
