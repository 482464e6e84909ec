//! The run after the loss: a producer, pops, and processes. A process knows only its own replies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, RuleStep, ShareStep};
use seriatim::wire::{
    self, Advance, Advanced, Attached, BatchResult, Bounds, ClaimFirst, Renewed, Report,
    ScriptError, Suspects, Tag,
};

use super::{BY, ROUNDS, SLOTS};
use crate::machine::reference::{Event, NAMES, Name, Reference};
use crate::machine::shares::selector;
use crate::support::sweep::sweep;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(3600);

/// A process, as it sees itself.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) token: String,
    pub(super) attached: bool,
    /// By slot: the batch in hand.
    pub(super) in_hand: BTreeMap<usize, (Name, Tag, usize)>,
}

pub struct Run<'a> {
    pub conn: MultiplexedConnection,
    pub keys: &'a Keys,
    pub(super) processes: BTreeMap<&'static str, Process>,
    /// The object of each event ever emitted.
    pub objects: BTreeMap<Event, Name>,
    pub(super) ids: BTreeMap<u64, Event>,
    pub(super) id_of: BTreeMap<Event, u64>,
    /// Events in the order of their first hand-out after the loss.
    pub(super) given: Vec<Event>,
    /// The object of the lost key, if it is a key of an object.
    pub(super) hurt: Option<Name>,
    /// By object: the events that a producer has emitted after the loss.
    pub(super) later: BTreeMap<Name, Vec<Event>>,
    pub(super) delivered: BTreeSet<Event>,
    /// The texts in replies about lost keys.
    pub texts: Vec<(String, String)>,
    /// Whether a repair has given events new ids, because their ids were lost.
    pub has_new_ids: bool,
    pub(super) random: u64,
    pub(super) tokens: u32,
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
    pub(super) fn gets(&mut self, object: &Name, id: u64, event: &Event) -> Result<(), String> {
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
            self.texts.extend(lost);
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
        // Deliveries of the object that has lost a key fail often.
        let fails = self.hurt.as_ref() == Some(&object) && self.random(2) == 0;
        let kind = if fails { 3 } else { self.random(10) };
        Some(match if at_end { 9 } else { kind } {
            0..=2 => return None,
            3 => {
                let rest = Tag {
                    attempts: tag.attempts + 1,
                    ..tag
                };
                let then = BatchResult::Hold {
                    rest,
                    delay: Some([Duration::ZERO, DAY][self.random(2) as usize]),
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
            6 => Report {
                object,
                tag,
                count: 0,
                last: None,
                then: BatchResult::Reject {
                    next: (len > 1).then(|| tag.after(1, 1)),
                    id: tag.first,
                    error: "no".to_owned(),
                    attempts: tag.attempts + 1,
                },
            },
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
        self.texts.extend(quarantined);
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
        let any = &names[self.random(names.len() as u64) as usize];
        // Half of the events are of the object that has lost a key.
        let hurt = self.hurt.clone().filter(|_| self.random(2) == 0);
        let name = hurt.as_ref().unwrap_or(any);
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
        let texts = |error: ScriptError| error.to_string();
        if at_end {
            self.release(state).await.map_err(texts)?;
        }
        if round.is_multiple_of(4) {
            let swept = sweep(&mut self.conn, self.keys, "other", 0, DAY)
                .await
                .map_err(texts)?;
            self.texts.extend(swept.lost);
        }
        wire::promote(&mut self.conn, self.keys, 256, 1 << 20)
            .await
            .map_err(texts)?;
        for name in NAMES {
            if !self
                .processes
                .get(name)
                .is_some_and(|process| process.attached)
            {
                self.attach(name).await.map_err(texts)?;
            }
            if round % 4 == 2 {
                let token = self.processes[name].token.clone();
                match wire::renew(&mut self.conn, self.keys, name, &token, LEASE, SLOTS)
                    .await
                    .map_err(texts)?
                {
                    Renewed::Renewed { lost, .. } => self.texts.extend(lost),
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
