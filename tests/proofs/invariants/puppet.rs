//! A simulated worker process: its beliefs about its slots, and the calls that follow from them. It
//! shares no code with `src/worker`, so that it does not repeat a mistake there.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, Attach, Attached, BatchResult, Bounds, ClaimFirst, EventLog, Report,
    ScriptError, Suspects, Tag,
};

use super::state::{Name, State};
use super::world::Hand;

/// Lease of the test processes. Tests end a lease by deleting it, never by waiting.
pub const LEASE: Duration = Duration::from_secs(3600);
/// The number of crashes after which an event waits for an operator. It is small, so that schedules
/// reach it.
pub const CRASHES_MAX: u32 = 3;
/// Limits so wide that a call reaches them only if a test wants this.
pub const WIDE: Bounds = Bounds {
    batch: 1000,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 24,
    claims: 1024,
    markers: 4096,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

/// The belief of a process about one of its slots.
#[derive(Debug, Clone, Default)]
pub enum Slot {
    #[default]
    Free,
    Has(Hand),
    Reported(Report),
}

pub struct Puppet {
    pub name: String,
    pub token: String,
    /// The token before the last lapse.
    pub before: String,
    pub attached: bool,
    pub slots: Vec<Slot>,
    pub from: ClaimFirst,
    /// Whether its event log is on.
    pub logs: bool,
}

impl Puppet {
    pub fn new(name: &str, token: &str, slots: usize) -> Self {
        Self {
            name: name.to_owned(),
            token: token.to_owned(),
            before: String::new(),
            attached: false,
            slots: vec![Slot::Free; slots],
            from: ClaimFirst::Held,
            logs: false,
        }
    }

    /// Returns a process that is attached to its name.
    pub async fn start(
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        name: &str,
        token: &str,
        slots: usize,
    ) -> Self {
        let mut puppet = Self::new(name, token, slots);
        let attached = puppet.attach(conn, keys, "").await.expect("attach");
        assert!(
            matches!(attached, Attached::Attached { .. }),
            "{attached:?}"
        );
        puppet.attached = true;
        puppet
    }

    pub fn w(&self, slot: usize) -> String {
        format!("{}.{slot}", self.name)
    }

    /// Attaches to the name. The caller updates the beliefs from the reply.
    pub async fn attach(
        &self,
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        displace: &str,
    ) -> Result<Attached, ScriptError> {
        let args = Attach {
            name: &self.name,
            token: &self.token,
            holder: "host 1 1",
            lease: LEASE,
            slots: self.slots.len(),
            displace,
            before: &self.before,
            crashes_max: CRASHES_MAX,
            suspects: Suspects::NONE,
        };
        wire::attach(conn, keys, &args).await
    }

    /// Returns a call that names these slots, each with a report or as free, as the process
    /// believes.
    pub fn call(&self, keys: &Keys, bounds: Bounds, slots: &[usize]) -> Advance {
        let mut call = Advance::new(keys, &self.name, &self.token, bounds, self.from);
        if self.logs {
            call.log(EventLog::default());
        }
        for &slot in slots {
            match &self.slots[slot] {
                Slot::Reported(report) => call.report(slot, report),
                Slot::Free | Slot::Has(_) => call.free(slot),
            }
        }
        call
    }

    /// Updates the beliefs from the reply to a call that named these slots.
    pub fn answered(&mut self, named: &[usize], reply: Advanced) -> Answer {
        match reply {
            Advanced::Ok {
                next_due,
                more,
                from,
                batches,
                quarantined,
                ..
            } => {
                self.from = from;
                for &slot in named {
                    self.slots[slot] = Slot::Free;
                }
                let mut given = Vec::new();
                for batch in batches {
                    let hand = Hand {
                        object: batch.object,
                        tag: batch.tag,
                        prev: batch.prev,
                        events: batch.events,
                    };
                    self.slots[batch.slot] = Slot::Has(hand);
                    given.push(batch.slot);
                }
                Answer::Given(Given {
                    slots: given,
                    next_due,
                    more,
                    quarantined,
                })
            }
            Advanced::Lapsed => Answer::Lapsed,
            Advanced::Fenced { .. } => Answer::Fenced,
        }
    }

    /// Calls *advance* for all slots and updates the beliefs from the reply. For tests that lose no
    /// reply.
    pub async fn advance(
        &mut self,
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        bounds: Bounds,
    ) -> Given {
        let named: Vec<usize> = (0..self.slots.len())
            .filter(|slot| !matches!(self.slots[*slot], Slot::Has(_)))
            .collect();
        let call = self.call(keys, bounds, &named);
        let reply = wire::advance(conn, &call).await.expect("advance");
        match self.answered(&named, reply) {
            Answer::Given(given) => given,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the batch of a slot.
    pub fn hand(&self, slot: usize) -> &Hand {
        match &self.slots[slot] {
            Slot::Has(hand) => hand,
            other => panic!("{} has no batch: {other:?}", self.w(slot)),
        }
    }

    /// Records that the first `count` events of the slot's batch are delivered, and the result of
    /// the batch.
    pub fn tell(&mut self, slot: usize, count: usize, then: BatchResult) {
        let hand = self.hand(slot);
        let last = count.checked_sub(1).map(|at| hand.tag.first + at as u64);
        self.slots[slot] = Slot::Reported(Report {
            object: hand.object.clone(),
            tag: hand.tag,
            count,
            last,
            then,
        });
    }

    /// Records that the slot holds its whole batch, for this time or for an operator.
    pub fn hold(&mut self, slot: usize, delay: Option<Duration>) {
        let hold = BatchResult::Hold {
            rest: self.hand(slot).tag,
            delay,
            reason: "retry: no".into(),
        };
        self.tell(slot, 0, hold);
    }

    /// Records that the first event of the slot's batch is a dead letter. Others are behind it.
    pub fn reject(&mut self, slot: usize) {
        let tag = self.hand(slot).tag;
        let reject = BatchResult::Reject {
            next: Some(rest(tag, 1)),
            id: tag.first,
            error: "bad".to_owned(),
            attempts: 0,
        };
        self.tell(slot, 0, reject);
    }

    /// Records that every batch is delivered completely.
    pub fn tell_done(&mut self) {
        for slot in 0..self.slots.len() {
            if let Slot::Has(hand) = &self.slots[slot] {
                let count = hand.events.len();
                self.tell(slot, count, BatchResult::Done);
            }
        }
    }

    /// Makes the process forget its batches and that it is attached, as after a lapse or a restart.
    pub fn forget(&mut self) {
        self.attached = false;
        self.slots.fill(Slot::Free);
        self.from = ClaimFirst::Held;
    }
}

/// Returns the tag of the batch that remains after its first `count` events.
pub fn rest(tag: Tag, count: usize) -> Tag {
    match count {
        0 => tag,
        _ => Tag {
            first: tag.first + count as u64,
            attempts: 0,
            crashes: tag.crashes.min(1),
            handouts: tag.handouts,
            is_keyed: false,
        },
    }
}

#[derive(Debug)]
pub struct Given {
    /// Slots that got a batch.
    pub slots: Vec<usize>,
    pub next_due: Option<Duration>,
    pub more: bool,
    pub quarantined: Vec<(String, String)>,
}

#[derive(Debug)]
pub enum Answer {
    Given(Given),
    Lapsed,
    Fenced,
}

/// Checks that Redis has the batch that the process was given for this slot. This proves I6: a
/// process that passes the fence owns the object, so no other process owns it.
pub fn agrees(puppet: &Puppet, slot: usize, state: &State) -> Result<(), String> {
    let (w, hand) = (puppet.w(slot), puppet.hand(slot));
    let (worker, object) = (state.worker(&w), state.object(&hand.object));
    let name: &Name = &hand.object;
    if object.owner.as_deref() != Some(&w) {
        return Err(format!(
            "I6: {w} was given {name:?}, its owner is {:?}",
            object.owner
        ));
    }
    if worker.batch != hand.events || worker.tag != Some(hand.tag.to_string()) {
        return Err(format!(
            "I3: {w} was given {} x{}, it has {:?} x{}",
            hand.tag,
            hand.events.len(),
            worker.tag,
            worker.batch.len()
        ));
    }
    let last = object.last.unwrap_or_else(|| "0".to_owned());
    if last != hand.prev.to_string() {
        return Err(format!(
            "I5: {w} was given {name:?} with prev {}, the last id is {last}",
            hand.prev
        ));
    }
    Ok(())
}
