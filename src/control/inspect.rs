//! One object at one moment: where its events are, and why they wait.

use std::collections::{BTreeMap, HashMap};

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};
use serde::Serialize;

use super::names::{self, Walk, Which};
use super::rules::{self, Kind, Rule};
use super::{ControlError, reply};
use crate::escape;
use crate::keys::Keys;
use crate::wire;
use crate::wire::values::Holder;

/// An object that nothing seems to cover has moved while its workers were looked at: so often it is
/// looked at again.
const LOOKS_MAX: usize = 3;

/// How much of an event is read, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Where an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// There is no key of it.
    Unknown,
    /// Nothing is queued, in flight or held.
    Idle,
    /// A worker whose process lives owns it.
    Owned,
    /// A worker whose process has no lease owns it.
    OwnerGone,
    /// It is held.
    Held,
    /// A rule holds it, and no block is over it.
    Paused,
    /// A rule holds it, and a block is over it.
    Blocked,
    /// A worker has taken its marker and is about to claim it.
    Taken,
    /// It has a marker and waits for a free worker.
    Marked,
    /// It has events and nothing covers them: I1 is broken.
    Uncovered,
}

/// What is the matter with the event at an object's head: the one in hand, or else the oldest that
/// is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventState {
    /// It waits for a worker.
    Queued,
    /// A worker has it in hand, or had it when its process went away.
    InFlight,
    /// It was in hand and comes again: at the time that `due_ms` tells, or where an operator
    /// releases it.
    Waiting,
    /// A rule holds it, or will before anything more of the object is claimed, and no block is over
    /// it.
    Paused,
    /// The same where a block is over it.
    Blocked,
}

/// An attempt of an event that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which attempt it was, counted from 1.
    pub attempt: u64,
    /// When it failed, ms since the epoch by Redis' clock.
    pub at_ms: u64,
    /// How: the first 500 bytes of its error.
    pub error: String,
}

/// Where events are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// In the batch of the owner.
    Batch,
    /// In the held batch.
    HeldBatch,
    /// In the queue.
    Queue,
}

/// The event to be delivered next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextEvent {
    /// Where it is.
    pub place: Place,
    /// Its id; none while it is queued.
    pub id: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
    /// It, or its first [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// How often a batch was tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tries {
    /// How often it was handed out before.
    pub handouts: u64,
    /// How often its delivery failed.
    pub attempts: u64,
    /// How often its process died with it.
    pub crashes: u64,
}

/// Results of handlers that have succeeded, of an event that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptResults {
    /// The event's id.
    pub id: Option<u64>,
    /// The results by the ids of the handlers: the text of one JSON object. As many as have
    /// together at most 64 KiB.
    #[serde(serialize_with = "reply::as_json")]
    pub results: Option<String>,
}

impl KeptResults {
    /// The results by the ids of the handlers: JSON text on one line each.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results.as_deref().map(reply::members).unwrap_or_default()
    }
}

/// What Redis has of one object at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// Its name; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// Its [escaped](crate::escape::name) name, if that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Redis's time, ms since the epoch.
    pub now_ms: u64,
    /// Where it stands.
    pub standing: Standing,
    /// What is the matter with its head event; none without one.
    pub state: Option<EventState>,
    /// The same as a sentence, with what will happen next or what to do.
    pub why: String,
    /// Events in its queue.
    pub events_queued: u64,
    /// Events in its owner's batch.
    pub events_in_flight: u64,
    /// Events in its held batch.
    pub events_held: u64,
    /// Its owner: a worker id, or `held`.
    pub owner: Option<String>,
    /// Id of the last event delivered.
    pub last_event_id: Option<u64>,
    /// The event to be delivered next.
    pub next_event: Option<NextEvent>,
    /// How often the batch in flight or held was tried; none without one.
    pub tries: Option<Tries>,
    /// How the event in hand has failed at last, the newest first; at most 20. Deaths of its worker
    /// are no attempts.
    pub errors: Vec<FailedAttempt>,
    /// The results that handlers of the event in hand have kept; none without results.
    pub kept_results: Option<KeptResults>,
    /// Why it is held, as it was noted.
    pub held_why: Option<String>,
    /// The rules that are over it, blocks first, and those that are lifted but still being woken.
    /// While one is in force, nothing more of the object is claimed, wherever it stands.
    pub rules: Vec<Rule>,
    /// When it is due, ms since the epoch; none if it is not held, or held until an operator or a
    /// rule releases it.
    pub due_ms: Option<u64>,
    /// How many markers will be taken before its first one; none if it has no marker among the
    /// first 10,000.
    pub markers_before: Option<u64>,
    /// Its first marker is not among the first 10,000, and there are more: it waits behind them, or
    /// has no marker.
    pub markers_beyond: bool,
    /// Registered workers that have it in their list.
    pub taken_by: Vec<String>,
    /// Worker processes whose lease is there, of all names.
    pub names_alive: u64,
    /// Its keys of wrong types.
    pub wrong_types: Vec<String>,
}

/// Reads everything about one object in one atomic step, then in bounded steps which workers have
/// it in their lists.
///
/// # Errors
/// [`ControlError::Name`] for a name that no object can have; others if Redis cannot be asked. An
/// object that nobody has ever emitted an event for is no error: [`Standing::Unknown`].
pub async fn inspect<C: ConnectionLike>(conn: &mut C, keys: &Keys, object: impl AsRef<[u8]>) -> Result<Inspection, ControlError> {
    let object = keys.found(&object)?;
    let mut fields = Fields::default();
    for _ in 0..LOOKS_MAX {
        fields = look(conn, keys, object).await?;
        fields.add_taken(conn, keys, object, Which::Watched).await?;
        if fields.standing() == Standing::Uncovered {
            fields.add_taken(conn, keys, object, Which::Departed).await?;
        }
        if fields.standing() != Standing::Uncovered {
            break;
        }
    }
    Ok(fields.inspection(keys, object))
}

async fn look<C: ConnectionLike>(conn: &mut C, keys: &Keys, object: &[u8]) -> Result<Fields, ControlError> {
    const WHAT: &str = "lua/inspect.lua";
    let mut call = wire::INSPECT.invoke();
    call.key(keys.event_workers());
    call.arg(keys.prefix()).arg(object).arg(TEXT_BYTES_MAX);
    let answer: RedisResult<Value> = call.invoke_async(conn).await;
    let flat = reply::after("inspected", answer.map_err(ControlError::redis(WHAT))?);
    Ok(Fields::read(&flat.map_err(|answer| ControlError::reply(WHAT, answer))?))
}

/// The fields of the reply; see `lua/inspect.lua`.
#[derive(Default)]
struct Fields {
    once: HashMap<String, String>,
    /// Workers that have the object in their lists.
    taken: Vec<String>,
    names_alive: u64,
    wrong: Vec<String>,
    rules: Vec<Rule>,
    errors: Vec<FailedAttempt>,
    results: Vec<String>,
}

impl Fields {
    fn read(flat: &[Value]) -> Self {
        let mut fields = Self::default();
        for pair in flat.chunks_exact(2) {
            let (Some(field), Some(value)) = (reply::text(&pair[0]), reply::text(&pair[1])) else { continue };
            match field.as_str() {
                "wrong" => fields.wrong.push(value),
                "result" => fields.results.push(value),
                "error" => fields.errors.extend(failed_attempt(&value)),
                "rule" => fields.rules.extend(rules::told(&pair[1], fields.number("now_ms").unwrap_or(0))),
                _ => drop(fields.once.insert(field, value)),
            }
        }
        fields
    }

    async fn add_taken<C: ConnectionLike>(
        &mut self,
        conn: &mut C,
        keys: &Keys,
        object: &[u8],
        which: Which,
    ) -> Result<(), ControlError> {
        let mut walk = Walk::of(conn, keys, which).await?;
        while let Some(page) = walk.next(conn, keys).await? {
            let taken = names::taken(conn, keys, object, &page).await?;
            self.names_alive += taken.alive;
            self.taken.extend(taken.objects.into_iter().map(|(worker, _)| worker));
        }
        self.taken.sort();
        self.taken.dedup();
        Ok(())
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.once.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    /// When a held object is due, ms; infinity until an operator releases it.
    fn due(&self) -> Option<f64> {
        self.text("due_ms")?.parse().ok()
    }

    fn next_event(&self) -> Option<NextEvent> {
        let places = [
            (Place::Batch, "batch_text", "batch_bytes", self.first("batch_id")),
            (Place::HeldBatch, "held_text", "held_bytes", self.first("held_id")),
            (Place::Queue, "queued_text", "queued_bytes", None),
        ];
        places.into_iter().find_map(|(place, text, bytes, id)| {
            Some(NextEvent { place, id, bytes: self.number(bytes)?, text: self.text(text)?.to_owned() })
        })
    }

    /// The first id in a batch's numbers.
    fn first(&self, field: &str) -> Option<u64> {
        self.text(field)?.split(' ').next()?.parse().ok().filter(|first| *first > 0)
    }

    fn kept_results(&self) -> Option<KeptResults> {
        let results = (!self.results.is_empty()).then(|| format!("{{{}}}", self.results.join(",")))?;
        Some(KeptResults { id: self.number("handled_id"), results: Some(results) })
    }

    fn tries(&self) -> Option<Tries> {
        let numbers = self.text("batch_id").or(self.text("held_id"))?;
        let mut counts = numbers.split(' ').skip(1).map_while(|part| part.parse().ok());
        let mut next = || counts.next().unwrap_or(0);
        Some(Tries { handouts: next(), attempts: next(), crashes: next() })
    }

    /// What follows the four numbers of a held batch.
    fn held_why(&self) -> Option<String> {
        let why = self.text("held_id")?.splitn(5, ' ').nth(4)?;
        (!why.is_empty()).then(|| why.to_owned())
    }

    fn standing(&self) -> Standing {
        let events = ["queued", "batch", "held"].iter().any(|place| self.number(place).is_some_and(|n| n > 0));
        let held = self.text("due_ms").is_some() || self.text("paused").is_some();
        match self.text("owner") {
            Some("held") if self.text("paused").is_some() && self.text("due_ms").is_none() => match self.rule() {
                Some(Rule { kind: Kind::Block, .. }) => Standing::Blocked,
                _ => Standing::Paused,
            },
            Some("held") => Standing::Held,
            None if held => Standing::Held,
            Some(_) if self.text("lease").is_some() => Standing::Owned,
            Some(_) => Standing::OwnerGone,
            None if !self.taken.is_empty() => Standing::Taken,
            None if self.text("markers_before").is_some() => Standing::Marked,
            None if events && self.text("markers_beyond").is_some() => Standing::Marked,
            None if events => Standing::Uncovered,
            None if self.text("last").is_some() || !self.wrong.is_empty() => Standing::Idle,
            None => Standing::Unknown,
        }
    }

    fn state(&self, standing: Standing) -> Option<EventState> {
        let has = |place: &str| self.number(place).is_some_and(|n| n > 0);
        let ruled = || self.rule().map(|rule| if rule.kind == Kind::Block { EventState::Blocked } else { EventState::Paused });
        let queued = || has("queued").then(|| ruled().unwrap_or(EventState::Queued));
        let now = self.number("now_ms").unwrap_or(0) as f64;
        match standing {
            Standing::Paused => Some(EventState::Paused),
            Standing::Blocked => Some(EventState::Blocked),
            Standing::Owned | Standing::OwnerGone if has("batch") => Some(EventState::InFlight),
            Standing::Held if has("held") && self.due().is_some_and(|due| due <= now) => {
                Some(ruled().unwrap_or(EventState::Waiting))
            }
            Standing::Held if has("held") || self.due().is_some_and(f64::is_infinite) => Some(EventState::Waiting),
            _ => queued(),
        }
    }

    /// The first rule that is in force, blocks before pauses.
    fn rule(&self) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.in_force)
    }

    fn why(&self, standing: Standing, keys: &Keys, object: &str) -> String {
        let owner = self.text("owner").unwrap_or("nobody");
        let nobody = if self.names_alive == 0 { ", but no worker process is running" } else { "" };
        match standing {
            Standing::Unknown => {
                "nothing is known of it: no event of it waits, and none was delivered, under this name and namespace".to_owned()
            }
            Standing::Idle if self.text("last").is_none() => "it has no events".to_owned(),
            Standing::Idle => "all its events are delivered or dead letters".to_owned(),
            Standing::Owned => {
                let holder = self.text("lease").and_then(Holder::of_lease);
                let (host, pid) = holder.as_ref().map_or(("?", 0), |holder| (holder.host_name(), holder.pid()));
                let ttl = seconds(self.number("lease_ttl_ms").unwrap_or(0) as f64);
                format!("worker {owner} has it: process {pid} on {host}, whose lease lasts {ttl} more unless renewed")
            }
            Standing::OwnerGone => {
                format!(
                    "its owner {owner} has no lease, so its process is gone: any worker process takes the object over{nobody}"
                )
            }
            Standing::Held => self.why_held(object, nobody),
            Standing::Paused | Standing::Blocked => self.why_ruled(nobody),
            Standing::Taken => format!("worker {} has taken its marker and is about to claim it{nobody}", self.taken.join(", ")),
            Standing::Marked => {
                let before = self.number("markers_before");
                let before = before.map_or_else(|| "more than 10000".to_owned(), |before| before.to_string());
                format!("it waits for a free worker, after {before} other markers{nobody}")
            }
            Standing::Uncovered => format!(
                "I1 is broken: it has events, but no marker, no owner, and is not held; LPUSH {} {} lets a worker find it",
                keys.objects_with_events(),
                quoted(object)
            ),
        }
    }

    fn why_held(&self, object: &str, nobody: &str) -> String {
        let why = self.held_why().unwrap_or_else(|| "yield".to_owned());
        if self.text("owner") != Some("held") {
            return "I2 is broken: it waits among the held objects, but its owner is not `held`".to_owned();
        }
        let now = self.number("now_ms").unwrap_or(0) as f64;
        match self.due() {
            None => format!(
                "I2 is broken: held ({why}), but in neither set of held objects; only `seriatim held release` lets it go on"
            ),
            Some(due) if due.is_infinite() => {
                format!("held until an operator releases it ({why}); `seriatim held release {}` does", quoted(object))
            }
            Some(due) if due <= now => format!("held ({why}), and due now: a free worker takes it{nobody}"),
            Some(due) => format!("held ({why}), due in {}{nobody}", seconds(due - now)),
        }
    }

    fn why_ruled(&self, nobody: &str) -> String {
        let Some(rule) = self.rule() else {
            return match self.rules.first() {
                Some(rule) => format!("the {rule} that held it is lifted, and worker processes are waking its objects{nobody}"),
                None => "I2 is broken: it waits for a rule to be lifted, but no rule is over it, so that nothing will wake it"
                    .to_owned(),
            };
        };
        let (done, lift) = match rule.kind {
            Kind::Block => ("blocked", "unblock"),
            Kind::Pause => ("paused", "resume"),
        };
        let reason = if rule.reason.is_empty() { String::new() } else { format!(": {}", rule.reason) };
        let selector = quoted(rule.selector.as_str());
        format!("{done} by the rule for {} (set by {}{reason}); `seriatim {lift} {selector}` lifts it", rule.selector, rule.actor)
    }

    fn inspection(self, keys: &Keys, object: &[u8]) -> Inspection {
        let standing = self.standing();
        let (state, tries) = (self.state(standing), self.tries());
        let has_failed = tries.is_some_and(|tries| tries.attempts > 0);
        Inspection {
            object: String::from_utf8_lossy(object).into_owned(),
            object_escaped: escape::differing(object),
            now_ms: self.number("now_ms").unwrap_or(0),
            standing,
            state,
            why: self.why(standing, keys, &escape::name(object)),
            events_queued: self.number("queued").unwrap_or(0),
            events_in_flight: self.number("batch").unwrap_or(0),
            events_held: self.number("held").unwrap_or(0),
            owner: self.text("owner").map(str::to_owned),
            last_event_id: self.number("last"),
            next_event: self.next_event(),
            tries,
            kept_results: self.kept_results(),
            held_why: self.held_why(),
            due_ms: self.due().filter(|due| due.is_finite()).map(|due| due as u64),
            markers_before: self.number("markers_before"),
            markers_beyond: self.text("markers_beyond").is_some(),
            names_alive: self.names_alive,
            // What is left behind of another event is a finding of `check`.
            errors: if has_failed { self.errors } else { Vec::new() },
            taken_by: self.taken,
            rules: self.rules,
            wrong_types: self.wrong,
        }
    }
}

/// An entry of `OBJ:event.errors`: `MS ATTEMPT ERROR`.
fn failed_attempt(kept: &str) -> Option<FailedAttempt> {
    let mut parts = kept.splitn(3, ' ');
    let (at_ms, attempt) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(FailedAttempt { attempt, at_ms, error: parts.next()?.to_owned() })
}

fn seconds(ms: f64) -> String {
    format!("{:.1} s", ms / 1000.0)
}

/// An object's name as a shell takes it.
fn quoted(object: &str) -> String {
    format!("'{}'", object.replace('\'', r"'\''"))
}
