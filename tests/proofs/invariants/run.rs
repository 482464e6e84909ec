//! One random schedule. Each step follows from one number. So a schedule can be repeated, and steps
//! can be left out.

use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Attached, BatchResult, Bounds, ClaimFirst, Connect, Forgot, Renewed, Suspects,
    Tag,
};

use super::check::check;
use super::puppet::{Answer, CRASHES_MAX, LEASE, Puppet, Slot, WIDE, agrees, rest};
use super::state::{Name, State, text};
use super::world::{Hand, World, payload};
use crate::support::sweep::sweep;

const NAMES: [&str; 3] = ["p", "q", "r"];
const OBJECTS: [&[u8]; 5] = [
    b"a",
    b"work:1",
    b"{x}:events",
    b"event.worker:p.0",
    b"\xff %s 1",
];
const SLOTS_MAX: u64 = 3;
const PUPPETS_MAX: usize = 5;
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// The splitmix64 generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn at(&mut self, len: usize) -> usize {
        self.below(len.max(1) as u64) as usize
    }
}

pub(super) fn holds_lease(puppet: &Puppet, state: &State) -> bool {
    state
        .leases
        .get(&puppet.name)
        .is_some_and(|lease| lease.starts_with(&puppet.token))
}

/// The settings of a whole schedule.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Whether all processes have the event log on.
    pub logs: bool,
    /// Whether the schedule sets and lifts rules.
    pub rules: bool,
    /// The depths of groups, from which each call draws one.
    pub depths: [usize; 2],
    /// Whether a fresh process takes over at the end.
    pub fresh: bool,
}

pub struct Run {
    pub(super) conn: MultiplexedConnection,
    pub(super) keys: Keys,
    pub(super) kind: Kind,
    pub(super) rng: Rng,
    pub(super) world: World,
    pub(super) state: State,
    pub(super) puppets: Vec<Puppet>,
    tokens: u32,
    /// Calls whose callers no longer wait. They arrive late, for the first or the second time.
    pub(super) late: Vec<Advance>,
    /// Batches that a sink may still deliver, although their process no longer waits for the
    /// result.
    stale: Vec<Hand>,
    /// A line for each step made.
    pub trace: Vec<String>,
}

impl Run {
    pub fn new(conn: MultiplexedConnection, keys: Keys, kind: Kind) -> Self {
        Self {
            conn,
            keys,
            kind,
            rng: Rng(0),
            world: World::of_processes(kind.logs),
            state: State::default(),
            puppets: Vec::new(),
            tokens: 0,
            late: Vec::new(),
            stale: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// Makes one step, and then checks the whole state.
    pub async fn step(&mut self, number: u64) -> Result<(), String> {
        self.rng = Rng(number);
        match self.rng.below(if self.kind.rules { 106 } else { 100 }) {
            0..18 => self.emit().await,
            18..20 => self.wake().await,
            20..25 => self.start().await,
            25..50 => self.advance().await?,
            50..66 => self.deliver()?,
            66..68 => self.forget().await,
            68..73 => self.pop().await,
            73..75 => self.renew().await?,
            75..79 => self.adopt().await,
            79..81 => self.detach().await,
            81..83 => self.expire().await,
            83..86 => self.crash(),
            86..90 => self.release().await,
            90..95 => self.arrive_late().await,
            95..99 => self.deliver_late()?,
            99 => self.connect().await,
            _ => self.rule().await,
        }
        self.look().await
    }

    pub(super) async fn look(&mut self) -> Result<(), String> {
        self.state = State::read(&mut self.conn, self.keys.prefix()).await;
        check(&self.state, &mut self.world)?;
        self.beliefs()
    }

    /// Checks I6 from the side of the processes: a process that passes the fence still has the
    /// batches that it was given. Even a late call of the process does not remove them.
    fn beliefs(&self) -> Result<(), String> {
        let passes = |puppet: &&Puppet| puppet.attached && holds_lease(puppet, &self.state);
        for puppet in self.puppets.iter().filter(passes) {
            for slot in 0..puppet.slots.len() {
                if matches!(puppet.slots[slot], Slot::Has(_)) {
                    agrees(puppet, slot, &self.state)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn say(&mut self, what: String) {
        self.trace.push(what);
    }

    fn key(&self, object: &[u8], suffix: &str) -> Vec<u8> {
        [self.keys.prefix().as_bytes(), object, suffix.as_bytes()].concat()
    }

    async fn emit(&mut self) {
        let object: Name = Bytes::from_static(OBJECTS[self.rng.at(OBJECTS.len())]);
        let count = 1 + self
            .rng
            .at(if self.rng.0.is_multiple_of(8) { 12 } else { 3 });
        let new = self.world.push(&object, count);
        let len = [0, 10, 60][self.rng.at(3)];
        let events: Vec<String> = new.iter().map(|number| payload(*number, len)).collect();
        let queue = self.key(&object, ":events");
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("LPUSH").arg(queue).arg(&events);
        pipe.cmd("LPUSH")
            .arg(self.keys.objects_with_events())
            .arg(&object[..]);
        let _: () = pipe.query_async(&mut self.conn).await.expect("emit");
        self.say(format!("emit {} {new:?}", text(&object)));
    }

    async fn wake(&mut self) {
        let end = ["LPUSH", "RPUSH"][self.rng.at(2)];
        let _: () = redis::cmd(end)
            .arg(self.keys.objects_with_events())
            .arg("")
            .query_async(&mut self.conn)
            .await
            .expect("wake");
        self.say("wake".to_owned());
    }

    async fn start(&mut self) {
        if self.puppets.len() >= PUPPETS_MAX {
            let gone = self.puppets.remove(0);
            self.say(format!("{} {} is no more", gone.name, gone.token));
        }
        let name = NAMES[self.rng.at(NAMES.len())];
        let slots = 1 + self.rng.below(SLOTS_MAX) as usize;
        self.tokens += 1;
        let puppet = Puppet::new(name, &format!("token-{:06}", self.tokens), slots);
        self.puppets.push(Puppet {
            logs: self.kind.logs,
            ..puppet
        });
        self.attach(self.puppets.len() - 1).await;
    }

    async fn attach(&mut self, p: usize) {
        let lease = self
            .state
            .leases
            .get(&self.puppets[p].name)
            .cloned()
            .unwrap_or_default();
        let displace = if self.rng.percent(50) {
            lease
        } else {
            String::new()
        };
        let puppet = &mut self.puppets[p];
        let answer = puppet
            .attach(&mut self.conn, &self.keys, &displace)
            .await
            .expect("attach");
        let lost = self.rng.percent(15);
        if !lost && matches!(answer, Attached::Attached { .. }) {
            puppet.attached = true;
        }
        let line = format!(
            "attach {} {} x{} displacing {displace:?}: {answer:?}",
            puppet.name,
            puppet.token,
            puppet.slots.len()
        );
        self.say(if lost { line + ", lost" } else { line });
    }

    fn bounds(&mut self) -> Bounds {
        let rng = &mut self.rng;
        let mut one_of = |values: [usize; 4]| values[rng.at(4)];
        Bounds {
            batch: one_of([1, 2, 5, 1000]),
            batch_bytes: one_of([1, 70, 200, 1 << 20]),
            reply_bytes: one_of([1, 70, 1 << 20, 1 << 20]),
            claims: one_of([0, 1, 3, 1024]),
            markers: one_of([1, 2, 8, 4096]),
            // A day is longer than any schedule takes.
            forget_after: [None, Some(DAY)][one_of([0, 0, 0, 1])],
            group_depth: self.kind.depths[one_of([0, 0, 1, 1])],
            suspects: Suspects::NONE,
        }
    }

    async fn advance(&mut self) -> Result<(), String> {
        if self.puppets.is_empty() {
            return Ok(());
        }
        let p = self.rng.at(self.puppets.len());
        if !self.puppets[p].attached {
            self.attach(p).await;
            return Ok(());
        }
        let mut named = Vec::new();
        for slot in 0..self.puppets[p].slots.len() {
            let percent = if matches!(self.puppets[p].slots[slot], Slot::Has(_)) {
                4
            } else {
                85
            };
            if self.rng.percent(percent) {
                named.push(slot);
            }
        }
        let bounds = self.bounds();
        if self.rng.percent(20) {
            self.puppets[p].from = [ClaimFirst::Held, ClaimFirst::Markers][self.rng.at(2)];
        }
        let call = self.puppets[p].call(&self.keys, bounds, &named);
        let who = format!(
            "advance {} {} {named:?} {bounds:?}",
            self.puppets[p].name, self.puppets[p].token
        );
        let fate = self.rng.below(100);
        if fate < 8 {
            self.say(format!("{who}: comes late"));
            self.late.push(call);
            return Ok(());
        }
        let mut reply = wire::advance(&mut self.conn, &call)
            .await
            .map_err(|error| error.to_string())?;
        if fate < 20 {
            self.look().await?;
            reply = wire::advance(&mut self.conn, &call)
                .await
                .map_err(|error| error.to_string())?;
        }
        if self.rng.percent(20) {
            self.late.push(call);
        }
        if (20..30).contains(&fate) {
            self.say(format!("{who}: {reply:?}, lost"));
            return Ok(());
        }
        self.say(format!(
            "{who}{}: {reply:?}",
            if fate < 20 { ", twice" } else { "" }
        ));
        let answer = self.puppets[p].answered(&named, reply);
        self.look().await?;
        self.believe(p, &named, answer, bounds)
    }

    /// Checks that the reply fits the lease, and updates the beliefs of the process. The batches
    /// were already compared by `look`.
    fn believe(
        &mut self,
        p: usize,
        named: &[usize],
        answer: Answer,
        bounds: Bounds,
    ) -> Result<(), String> {
        let puppet = &mut self.puppets[p];
        let lease = self.state.leases.get(&puppet.name);
        let is_ours = holds_lease(puppet, &self.state);
        match answer {
            Answer::Given(given) if is_ours => {
                let is_free = |slot: &&usize| self.state.worker(&puppet.w(**slot)).batch.is_empty();
                let is_wide = bounds.reply_bytes == 1 << 20;
                match named
                    .iter()
                    .find(|slot| !given.slots.contains(slot) && !is_free(slot))
                {
                    Some(slot) if is_wide => Err(format!(
                        "{} has a batch that it was not given",
                        puppet.w(*slot)
                    )),
                    _ => Ok(()),
                }
            }
            Answer::Lapsed if lease.is_none() => {
                let fresh = format!("token-{:06}", self.tokens + 1);
                self.tokens += 1;
                puppet.before = std::mem::replace(&mut puppet.token, fresh);
                puppet.forget();
                Ok(())
            }
            Answer::Fenced if !is_ours => {
                // Most fenced processes stop. A fenced process that continues does no harm.
                if self.rng.percent(70) {
                    self.puppets.remove(p);
                }
                Ok(())
            }
            other => Err(format!(
                "I6: {} {} was answered {other:?}, the lease is {lease:?}",
                puppet.name, puppet.token
            )),
        }
    }

    /// Delivers a batch to the receiver, wholly or in part. The report of the process may name
    /// fewer events.
    fn deliver(&mut self) -> Result<(), String> {
        let all = self
            .puppets
            .iter()
            .enumerate()
            .flat_map(|(p, puppet)| (0..puppet.slots.len()).map(move |slot| (p, slot)));
        let having: Vec<_> = all
            .filter(|(p, slot)| matches!(self.puppets[*p].slots[*slot], Slot::Has(_)))
            .collect();
        if having.is_empty() {
            return Ok(());
        }
        let (p, slot) = having[self.rng.at(having.len())];
        let hand = self.puppets[p].hand(slot).clone();
        let len = hand.events.len();
        let sent = if self.rng.percent(60) {
            len
        } else {
            self.rng.at(len + 1)
        };
        self.world.receive(&hand, sent)?;
        let count = if self.rng.percent(90) {
            sent
        } else {
            self.rng.at(sent + 1)
        };
        let then = self.outcome(&hand, count);
        let who = format!("{} {}", self.puppets[p].w(slot), self.puppets[p].token);
        self.say(format!(
            "deliver {who} {} {}: {sent} of {len}, says {count} {then:?}",
            text(&hand.object),
            hand.tag
        ));
        self.puppets[p].tell(slot, count, then);
        if self.rng.percent(15) {
            self.stale.push(hand);
        }
        Ok(())
    }

    fn outcome(&mut self, hand: &Hand, count: usize) -> BatchResult {
        let len = hand.events.len();
        if count == len {
            return if self.rng.percent(25) {
                BatchResult::Yield
            } else {
                BatchResult::Done
            };
        }
        let tag = rest(hand.tag, count);
        match self.rng.below(10) {
            0..3 => BatchResult::Part { next: tag },
            3..5 => {
                let next = (count + 1 < len).then(|| rest(hand.tag, count + 1));
                let (id, error, attempts) = (tag.first, "bad".to_owned(), tag.attempts);
                match self.rng.percent(70) {
                    true => BatchResult::Reject {
                        next,
                        id,
                        error,
                        attempts,
                    },
                    false => BatchResult::Complete {
                        next,
                        id,
                        error,
                        attempts,
                    },
                }
            }
            what => {
                let delay = [
                    Some(Duration::ZERO),
                    Some(Duration::ZERO),
                    Some(LEASE),
                    None,
                ][what as usize % 4];
                // The hold counts a failed attempt, or holds the object for another reason.
                let failed = u32::from(self.rng.percent(60));
                BatchResult::Hold {
                    rest: Tag {
                        attempts: tag.attempts + failed,
                        ..tag
                    },
                    delay,
                    reason: "retry: no".into(),
                }
            }
        }
    }

    /// Makes a pop for a slot of a registered name, whether or not a process runs this slot.
    async fn pop(&mut self) {
        let names: Vec<String> = self.state.registry.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = &names[self.rng.at(names.len())];
        let mut w = format!("{name}.{}", self.rng.at(self.state.slots(name)));
        // Often chooses a slot that is not free: as after a lost reply, or with a late pop.
        let busy: Vec<&String> = self.state.workers.keys().collect();
        if self.rng.percent(40) && !busy.is_empty() {
            w.clone_from(busy[self.rng.at(busy.len())]);
        }
        let mut cmd = redis::cmd("LMOVE");
        cmd.arg(self.keys.objects_with_events())
            .arg(self.keys.worker_object(&w))
            .arg("RIGHT")
            .arg("LEFT");
        let moved: Option<Vec<u8>> = cmd.query_async(&mut self.conn).await.expect("a pop");
        self.say(format!(
            "pop {w}: {:?}",
            moved.map(|name| text(&name.into()))
        ));
    }

    async fn renew(&mut self) -> Result<(), String> {
        if self.puppets.is_empty() {
            return Ok(());
        }
        let p = self.rng.at(self.puppets.len());
        let puppet = &self.puppets[p];
        if !puppet.attached {
            return Ok(());
        }
        let slots = puppet.slots.len();
        let renewed = wire::renew(
            &mut self.conn,
            &self.keys,
            &puppet.name,
            &puppet.token,
            LEASE,
            slots,
        )
        .await;
        let renewed = renewed.map_err(|error| error.to_string())?;
        self.say(format!(
            "renew {} {}: {renewed:?}",
            self.puppets[p].name, self.puppets[p].token
        ));
        let answer = match renewed {
            Renewed::Renewed { .. } => return Ok(()),
            Renewed::Lapsed => Answer::Lapsed,
            Renewed::Fenced { .. } => Answer::Fenced,
        };
        self.believe(p, &[], answer, WIDE)
    }

    async fn adopt(&mut self) {
        let own = ["p", "q", "r", "nobody"][self.rng.at(4)];
        let adopted = sweep(&mut self.conn, &self.keys, own, CRASHES_MAX, DAY)
            .await
            .expect("adopt");
        self.say(format!("adopt by {own}: {adopted:?}"));
    }

    /// Detaches a process once or twice. The process ends after any reply.
    async fn detach(&mut self) {
        if self.puppets.is_empty() {
            return;
        }
        let puppet = self.puppets.remove(self.rng.at(self.puppets.len()));
        let mut detached = None;
        for _ in 0..1 + self.rng.at(2) {
            detached = Some(
                wire::detach(&mut self.conn, &self.keys, &puppet.name, &puppet.token)
                    .await
                    .expect("detach"),
            );
        }
        self.say(format!(
            "detach {} {}: {detached:?}",
            puppet.name, puppet.token
        ));
    }

    /// Ends a lease.
    async fn expire(&mut self) {
        let names: Vec<String> = self.state.leases.keys().cloned().collect();
        if !names.is_empty() {
            let name = names[self.rng.at(names.len())].clone();
            self.delete_lease(&name).await;
            self.say(format!("the lease of {name} is over"));
        }
    }

    pub(super) async fn delete_lease(&mut self, name: &str) {
        let _: () = redis::cmd("DEL")
            .arg(self.keys.worker_lease(name))
            .query_async(&mut self.conn)
            .await
            .expect("DEL");
    }

    /// Kills a process. Its deliveries under way may still reach the receiver.
    fn crash(&mut self) {
        if !self.puppets.is_empty() {
            let gone = self.puppets.remove(self.rng.at(self.puppets.len()));
            let hands = gone.slots.into_iter().filter_map(|slot| {
                if let Slot::Has(hand) = slot {
                    Some(hand)
                } else {
                    None
                }
            });
            self.stale.extend(hands);
            self.say(format!("crash {} {}", gone.name, gone.token));
        }
    }

    /// Makes a held object due, as its time or an operator does.
    async fn release(&mut self) {
        let held: Vec<Name> = self.state.due.keys().cloned().collect();
        if !held.is_empty() {
            let object = held[self.rng.at(held.len())].clone();
            self.release_one(&object).await;
            self.say(format!("release {}", text(&object)));
        }
    }

    pub(super) async fn release_one(&mut self, object: &Name) {
        let mut cmd = redis::cmd("ZADD");
        cmd.arg(self.keys.objects_held())
            .arg("XX")
            .arg(0)
            .arg(&object[..]);
        let _: () = cmd.query_async(&mut self.conn).await.expect("ZADD");
    }

    /// Acts as an operator who forgets an object. Only an idle object is forgotten.
    async fn forget(&mut self) {
        let object = OBJECTS[self.rng.at(OBJECTS.len())];
        let forgot = wire::forget(&mut self.conn, &self.keys, &[object])
            .await
            .expect("forget")
            .remove(0);
        self.say(format!(
            "forget {}: {forgot:?}",
            text(&Name::from_static(object))
        ));
        if let Forgot::Forgotten { last_event_id } = forgot {
            self.world
                .forgotten
                .insert(last_event_id.parse().expect("an id"));
        }
    }

    async fn arrive_late(&mut self) {
        if !self.late.is_empty() {
            let at = self.rng.at(self.late.len());
            let reply = wire::advance(&mut self.conn, &self.late[at]).await;
            self.say(format!("a late call: {reply:?}"));
            if self.rng.percent(50) {
                self.late.remove(at);
            }
        }
    }

    fn deliver_late(&mut self) -> Result<(), String> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let at = self.rng.at(self.stale.len());
        let hand = if self.rng.percent(50) {
            self.stale.swap_remove(at)
        } else {
            self.stale[at].clone()
        };
        self.say(format!(
            "a late delivery: {} {} x{}",
            text(&hand.object),
            hand.tag,
            hand.events.len()
        ));
        self.world.receive(&hand, hand.events.len())
    }

    async fn connect(&mut self) {
        let replication_id = ["1st", "2nd"][self.rng.at(2)];
        let highest = if self.rng.percent(90) {
            0
        } else {
            self.world.counter
        };
        let seen = Connect {
            highest,
            first_id: 1 + self.rng.below(20),
            ..Connect::default()
        };
        let connected = wire::connect(&mut self.conn, &self.keys, replication_id, seen)
            .await
            .expect("connect");
        self.say(format!("connect {replication_id}: {connected:?}"));
    }

    /// Empties Redis for the next schedule.
    pub async fn clear(&mut self) {
        let _: () = redis::cmd("FLUSHDB")
            .query_async(&mut self.conn)
            .await
            .expect("FLUSHDB");
    }
}
