//! The real thing: calls go to Redis through the library, and the whole of Redis is held against the reference.
//!
//! Where a script takes the time from its clock, the reference has the number of the step. What was written in this step must lie between the
//! looks before and after it; then it is replaced in Redis by what the reference has, so that the order among due objects is known.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use seriatim::keys::Keys;
use seriatim::scripts::operator::{self, By, Released, RuleStep, Ruled, Settle, Settled, Skipped};
use seriatim::scripts::{
    self, Advanced, Attached, Detached, EventLog, Finished, From, Handled, InHand, Renewed, Report, Results, ScriptError, Seen,
    Tag,
};

use super::advance::{Advance, Delay, ERROR, Then, Told};
use super::operator::{WHO, WHY};
use super::reference::{
    self, Broken, Dead, Emits, Event, FAR, Failure, Given, Key, Numbers, OPERATOR, Reference, Reply, result_of,
};
use super::rules;
use super::world::{Call, Part};
use crate::support::sweep::sweep;

const DUMP: &str = r"
local time = redis.call('TIME')
local all = { time[1] * 1000 + math.floor(time[2] / 1000) }
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = {}
  if kind == 'string' then
    value = { redis.call('GET', key) }
  elseif kind == 'list' then
    value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'hash' then
    value = redis.call('HGETALL', key)
  elseif kind == 'stream' then
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      for _, field in ipairs(entry[2]) do
        value[#value + 1] = field
      end
    end
  end
  all[#all + 1] = { key, kind, value, redis.call('PTTL', key) }
end
return all";

/// The operator.
const BY: By<'static> = By { who: WHO, why: WHY };
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The time of a name's last sign of life that is more than a day ago.
const LONG_AGO: u64 = 1000;
/// How long ago every batch was taken.
const AGE_MS: u64 = 1000;
/// How much shorter a lease may be than what was asked for: a schedule takes less than this.
const SLACK_MS: u64 = 600_000;

/// A key's type and its value; the fields of hashes and the members of sorted sets are sorted.
pub type Dump = BTreeMap<Vec<u8>, (String, Vec<Vec<u8>>)>;

/// The counter of the reference never comes so far, the time long has.
const TIME_US: u64 = 1_000_000_000_000_000;

/// A tag, or the counter, with an id beyond a jump to the time moved back by so much.
fn at_jump(tag: &str, difference: u64) -> String {
    let (first, rest) = tag.split_at(tag.find(' ').unwrap_or(tag.len()));
    match first.parse::<u64>() {
        Ok(id) if id >= TIME_US => format!("{}{rest}", id - difference),
        _ => tag.to_owned(),
    }
}

pub struct Server {
    conn: MultiplexedConnection,
    keys: Keys,
    /// When Redis was last looked at.
    looked_ms: u64,
    /// The id of the entry of each dead letter there ever was, by its serial.
    dead_ids: BTreeMap<u64, String>,
    /// How many rows of the log have said when their event was taken.
    taken: usize,
}

impl Server {
    /// A Redis without anything but a counter.
    pub async fn empty(mut conn: MultiplexedConnection, keys: Keys) -> Self {
        let _: () = cmd("FLUSHALL").query_async(&mut conn).await.expect("FLUSHALL");
        let () = cmd("SET").arg(keys.next_event_id()).arg(0).query_async(&mut conn).await.expect("SET");
        let mut server = Self { conn, keys, looked_ms: 0, dead_ids: BTreeMap::new(), taken: 0 };
        server.look().await;
        server
    }

    async fn run(&mut self, command: &str, args: &[&[u8]]) -> Value {
        let mut cmd = cmd(command);
        for arg in args {
            cmd.arg(*arg);
        }
        // A wrong type is what some schedules want.
        cmd.query_async(&mut self.conn).await.unwrap_or(Value::Nil)
    }

    fn key(&self, object: &[u8], suffix: &str) -> Vec<u8> {
        [self.keys.prefix().as_bytes(), object, suffix.as_bytes()].concat()
    }

    /// Makes the call, and holds the reply and everything in Redis against the reference after it.
    pub async fn step(&mut self, broken: Option<Broken>, call: &Call, expected: &Reply, state: &Reference) -> Result<(), String> {
        let before = self.looked_ms;
        if let Some(broken) = broken {
            self.break_key(broken, true).await;
        }
        let reply = self.call(call).await;
        if let Some(broken) = broken {
            self.break_key(broken, false).await;
        }
        let (mut dump, ttls) = self.look().await;
        let jumped = self.jump_back(&mut dump, state, before).await;
        let reply = match (reply, expected) {
            (Ok((Reply::Advanced(mut got), due)), Reply::Advanced(wanted)) => {
                if is_due(due, wanted.due, state.now, before, self.looked_ms) {
                    got.due = wanted.due;
                }
                for given in &mut got.batches {
                    given.tag = at_jump(&given.tag, jumped);
                }
                Reply::Advanced(got)
            }
            (Ok((Reply::Connected { changed, counter }, _)), _) => {
                let counter = if counter >= TIME_US { counter - jumped } else { counter };
                Reply::Connected { changed, counter }
            }
            (Ok((reply, _)), _) => reply,
            (Err(error), _) => return Err(format!("the call failed: {error}; expected {expected:?}")),
        };
        if reply != *expected {
            return Err(format!("the reply was\n    {reply:?}\nexpected\n    {expected:?}"));
        }
        let wanted = wanted(state, self.keys.prefix());
        self.set_clock(&mut dump, state, before).await;
        self.set_dead_ids(&mut dump, state).await;
        self.set_taken(&mut dump, before);
        self.set_failed(&mut dump, state, before);
        self.forget_looks(&mut dump);
        differences(&dump, &wanted)?;
        let leases = state.leases.iter().map(|(name, lease)| (self.keys.worker_lease(name).into_bytes(), lease.ms));
        let fading = state.objects.iter().filter_map(|(name, object)| Some((self.key(name, ":last.event.id"), object.fades?)));
        let lives: BTreeMap<_, _> = leases.chain(fading).collect();
        for key in lives.keys().chain(ttls.keys()) {
            let (wanted, left) = (lives.get(key).copied(), ttls.get(key).copied());
            let agree = wanted.zip(left).is_some_and(|(ms, left)| (ms as i64 - SLACK_MS as i64..=ms as i64).contains(&left));
            if !agree {
                let key = String::from_utf8_lossy(key);
                return Err(format!("{key} lives for {left:?} ms, expected {wanted:?} ms"));
            }
        }
        Ok(())
    }

    /// The counter jumps to the time. The reference has its own stand-in for that: Redis is given it too, and so are the batches that got ids beyond it.
    /// Answers the difference.
    async fn jump_back(&mut self, dump: &mut Dump, state: &Reference, before: u64) -> u64 {
        let key = self.keys.next_event_id().into_bytes();
        let id = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let found = dump.get(&key).and_then(|(_, value)| id(value.first()?));
        // Ids were given from there on.
        let window = before * 1000..(self.looked_ms + 1) * 1000 + 1_000_000;
        let (Some(found), Some(counter)) = (found.filter(|found| window.contains(found)), state.counter) else { return 0 };
        let difference = found - counter;
        for (key, (_, value)) in dump.iter_mut().filter(|(other, _)| **other == key || other.ends_with(b":event.id")) {
            let [text] = &mut value[..] else { continue };
            let there = at_jump(&String::from_utf8_lossy(text), difference).into_bytes();
            if *text != there && !key.ends_with(b":last.event.id") {
                self.run("SET", &[key, &there]).await;
                *text = there;
            }
        }
        difference
    }

    async fn break_key(&mut self, broken: Broken, is_broken: bool) {
        let keys = &self.keys;
        let key = match broken {
            Broken::Markers => keys.objects_with_events(),
            Broken::Held => keys.objects_held(),
            Broken::Workers => keys.event_workers(),
            Broken::Counter | Broken::CounterText => keys.next_event_id(),
            Broken::Dead => keys.events_dead(),
            Broken::Log => keys.event_log(),
            Broken::Actions => keys.operator_actions(),
            Broken::Rules => keys.event_rules(),
            Broken::Paused => keys.objects_paused(),
            Broken::Meta => keys.meta(),
        };
        let (key, aside) = (key.as_bytes(), b"aside");
        if is_broken {
            self.run("RENAME", &[key, aside]).await;
            match broken {
                Broken::CounterText => self.run("SET", &[key, b"nan"]).await,
                _ => self.run("SADD", &[key, b"wrong"]).await,
            };
        } else {
            self.run("DEL", &[key]).await;
            self.run("RENAME", &[aside, key]).await;
        }
    }

    /// The reply, and when the next object is due.
    async fn call(&mut self, call: &Call) -> Result<(Reply, Option<Duration>), String> {
        let reply = match call {
            Call::Advance(args) => match self.advance(args).await {
                Ok(reply) => return Ok(reply),
                Err(error) => Err(error),
            },
            Call::Attach(args) => {
                let args = scripts::Attach {
                    name: args.name,
                    token: &args.token,
                    holder: args.holder,
                    lease: Duration::from_millis(args.lease_ms),
                    slots: args.slots,
                    displace: &args.displace,
                    before: &args.before,
                    crashes_max: args.crashes_max,
                    suspects: suspects(&args.room),
                };
                scripts::attach(&mut self.conn, &self.keys, &args).await.map(|attached| match attached {
                    Attached::Attached { kept, held } => Reply::Attached { kept, held },
                    Attached::InUse { lease, .. } => Reply::InUse(lease),
                })
            }
            Call::Renew { name, token, lease_ms, slots } => {
                let lease = Duration::from_millis(*lease_ms);
                scripts::renew(&mut self.conn, &self.keys, name, token, lease, *slots).await.map(|renewed| match renewed {
                    Renewed::Renewed { strays } => Reply::Renewed { strays },
                    Renewed::Lapsed => Reply::Lapsed,
                    Renewed::Fenced { lease } => Reply::Fenced(lease),
                })
            }
            Call::Adopt { own, crashes_max } => sweep(&mut self.conn, &self.keys, own, *crashes_max, DAY)
                .await
                .map(|swept| Reply::Swept { held: swept.held, strays: swept.strays, names: swept.names }),
            Call::Detach { name, token } => {
                scripts::detach(&mut self.conn, &self.keys, name, token).await.map(|detached| match detached {
                    Detached::Detached { held } => Reply::Detached { held },
                    Detached::Lapsed => Reply::Lapsed,
                    Detached::Fenced { lease } => Reply::Fenced(lease),
                })
            }
            Call::Finish(args) => {
                let (name, token, slot, tag) = (args.name, args.token.as_str(), args.slot, tag(args.tag));
                let batch = InHand { name, token, slot, object: &args.object, tag };
                let emits = args.finished.as_ref().and_then(|(_, _, emits)| emits.as_ref());
                let emits = emits.map(|(field, emits)| (*field, emits_text(emits)));
                let result = args.finished.as_ref().and_then(|(id, field, _)| result_of(*id, field));
                let finished = args.finished.as_ref().map(|(id, field, _)| Finished {
                    id: *id,
                    field,
                    emits: emits.as_ref().map(|(field, text)| (*field, &text[..])),
                    result: result.as_ref().map(|(field, text)| (field.as_str(), text.as_bytes())),
                });
                scripts::handled(&mut self.conn, &self.keys, &batch, finished).await.map(|handled| match handled {
                    Handled::Kept { id, finished, emitted, results } => Reply::Kept(id, finished, emitted, results),
                    Handled::Unpushed { id } => Reply::Unpushed(id),
                    Handled::Other => Reply::OtherBatch,
                    Handled::Lapsed => Reply::Lapsed,
                    Handled::Fenced { lease } => Reply::Fenced(lease),
                })
            }
            Call::Settle { retry, serials } => {
                let settle = if *retry { Settle::Retry } else { Settle::Drop };
                let ids: Vec<&str> =
                    serials.iter().map(|serial| self.dead_ids.get(serial).map_or("1-1", String::as_str)).collect();
                operator::dead(&mut self.conn, &self.keys, BY, settle, &ids).await.map(|settled| {
                    let word = |settled| match settled {
                        Settled::Retried => "retried",
                        Settled::Dropped => "dropped",
                        Settled::Gone => "gone",
                        Settled::WrongType => "wrong_type",
                        _ => "unreadable",
                    };
                    Reply::Settled(settled.into_iter().map(word).collect())
                })
            }
            Call::SetFree(object) => {
                operator::release(&mut self.conn, &self.keys, BY, object).await.map(|released| match released {
                    Released::Released(why) => Reply::Released(why),
                    Released::NotHeld(owner) => Reply::NotHeld(owner),
                    Released::Paused => Reply::Paused,
                })
            }
            Call::Skip(object, expected) => {
                operator::skip(&mut self.conn, &self.keys, BY, object, *expected).await.map(|skipped| match skipped {
                    Skipped::Skipped { id, left, .. } => Reply::Skipped { id, left },
                    Skipped::NotHeld(owner) => Reply::NotHeld(owner),
                    Skipped::Paused => Reply::Paused,
                    Skipped::NoBatch(why) => Reply::NoBatch(why),
                    Skipped::Other(id) => Reply::OtherHead(id),
                })
            }
            Call::Rule(kind, selector, set) => {
                let step = match set {
                    Some(ends) => RuleStep::Set(ends.then(|| Duration::from_millis(FAR))),
                    None => RuleStep::Lift,
                };
                operator::rule(&mut self.conn, &self.keys, BY, step, kind, selector, 1000).await.map(|ruled| {
                    Reply::Ruled(match ruled {
                        Ruled::New => "new",
                        Ruled::Again => "again",
                        Ruled::Revived => "revived",
                        Ruled::Lifted => "lifted",
                        Ruled::Lifting => "lifting",
                        Ruled::NotSet => "not set",
                        _ => "?",
                    })
                })
            }
            Call::Connect { replication_id, highest, first_id, log } => {
                let seen = Seen { highest: *highest, first_id: *first_id, event_log: log.then(EventLog::default) };
                scripts::connect(&mut self.conn, &self.keys, replication_id, seen)
                    .await
                    .map(|found| Reply::Connected { changed: found.changed, counter: found.counter })
            }
            Call::Forget(names) => {
                let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                scripts::forget(&mut self.conn, &self.keys, &names).await.map(Reply::Forgot)
            }
            plain => {
                self.plain(plain).await;
                Ok(Reply::Done)
            }
        };
        match reply {
            Ok(reply) => Ok((reply, None)),
            Err(ScriptError::Counter(text)) => Ok((Reply::Counter(text), None)),
            Err(error) if error.is_wrong_type() => Ok((Reply::WrongType, None)),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn advance(&mut self, args: &Advance) -> Result<(Reply, Option<Duration>), ScriptError> {
        let bounds = scripts::Bounds {
            batch: args.batch,
            batch_bytes: args.batch_bytes,
            reply_bytes: args.reply_bytes,
            claims: args.claims,
            markers: args.markers,
            forget_after: (args.forget_ms > 0).then(|| Duration::from_millis(args.forget_ms)),
            suspects: suspects(&args.room),
        };
        let from = if args.from_held { From::Held } else { From::Markers };
        let mut call = scripts::Advance::beyond(&self.keys, args.name, &args.token, bounds, from, args.highest);
        if args.log {
            call.log(EventLog::default());
        }
        for (slot, told) in &args.slots {
            match told {
                Some(told) => {
                    if told.handled {
                        call.handled(*slot);
                    }
                    call.report_taken(*slot, &report(told), Duration::from_millis(AGE_MS));
                }
                None => call.free(*slot),
            }
        }
        args.looks.iter().for_each(|slot| call.look(*slot));
        Ok(match scripts::advance(&mut self.conn, &call).await? {
            Advanced::Ok { next_due, more, from, batches, quarantined } => {
                let given = batches.into_iter().map(|batch| Given {
                    slot: batch.slot,
                    object: batch.object,
                    tag: batch.tag.to_string(),
                    prev: batch.prev,
                    events: batch.events,
                });
                let advanced =
                    reference::Advanced { due: None, more, from_held: from == From::Held, batches: given.collect(), quarantined };
                (Reply::Advanced(advanced), next_due)
            }
            Advanced::Lapsed => (Reply::Lapsed, None),
            Advanced::Fenced { lease } => (Reply::Fenced(lease), None),
        })
    }

    /// What frontends, operators and time do.
    async fn plain(&mut self, call: &Call) {
        let markers = self.keys.objects_with_events();
        match call {
            Call::Emit(pushes) => {
                let mut pipe = redis::pipe();
                for (object, events) in pushes {
                    let events: Vec<&[u8]> = events.iter().map(|event| &event[..]).collect();
                    pipe.cmd("LPUSH").arg(self.key(object, ":events")).arg(events);
                    pipe.cmd("LPUSH").arg(&markers).arg(&object[..]);
                }
                // Not in a transaction, and a queue of a wrong type is what some schedules want.
                let _ = pipe.query_async::<Value>(&mut self.conn).await;
            }
            Call::Marker(object) => drop(self.run("LPUSH", &[markers.as_bytes(), object]).await),
            Call::Pop(w) => {
                let to = self.keys.worker_object(w);
                self.run("LMOVE", &[markers.as_bytes(), to.as_bytes(), b"RIGHT", b"LEFT"]).await;
            }
            Call::Expire(name) => drop(self.run("DEL", &[self.keys.worker_lease(name).as_bytes()]).await),
            Call::Lose(counter) => {
                let key = self.keys.next_event_id();
                match counter {
                    Some(counter) => self.run("SET", &[key.as_bytes(), counter.to_string().as_bytes()]).await,
                    None => self.run("DEL", &[key.as_bytes()]).await,
                };
            }
            Call::Day(name) => {
                let workers = self.keys.event_workers();
                if let Value::BulkString(value) = self.run("HGET", &[workers.as_bytes(), name.as_bytes()]).await {
                    let text = String::from_utf8_lossy(&value).into_owned();
                    let (rest, _) = text.rsplit_once(' ').expect("slots, token, time");
                    self.run("HSET", &[workers.as_bytes(), name.as_bytes(), format!("{rest} {LONG_AGO}").as_bytes()]).await;
                }
            }
            Call::Release(names) => {
                let held = self.keys.objects_held();
                let mut args: Vec<&[u8]> = vec![held.as_bytes(), b"XX"];
                args.extend(names.iter().flat_map(|name| [&b"0"[..], name]));
                self.run("ZADD", &args).await;
            }
            Call::Fade(object) => {
                let key = self.key(object, ":last.event.id");
                if matches!(self.run("PTTL", &[&key]).await, Value::Int(1..)) {
                    self.run("DEL", &[&key]).await;
                }
            }
            Call::EndRule(field) => {
                let rules = self.keys.event_rules();
                if let Value::BulkString(value) = self.run("HGET", &[rules.as_bytes(), field]).await {
                    let text = String::from_utf8_lossy(&value).into_owned();
                    let (set, rest) = text.split_once(' ').expect("numbers");
                    let (_, rest) = rest.split_once(' ').expect("numbers");
                    self.run("HSET", &[rules.as_bytes(), field, format!("{set} 1 {rest}").as_bytes()]).await;
                    if self.run("HGET", &[rules.as_bytes(), b"next"]).await != Value::BulkString(b"0".to_vec()) {
                        self.run("HSET", &[rules.as_bytes(), b"next", b"1"]).await;
                    }
                }
            }
            Call::Wrong(object, Part::LastText) => drop(self.run("SET", &[&self.key(object, ":last.event.id"), b"1e5"]).await),
            Call::Wrong(object, part) => {
                let key = self.key(object, suffix(*part));
                self.run("DEL", &[&key]).await;
                self.run("HSET", &[&key, b"wrong", b"type"]).await;
            }
            Call::Heal(object) => {
                for part in [Part::Queue, Part::Last, Part::Held, Part::HeldId, Part::Errors] {
                    let key = self.key(object, suffix(part));
                    if self.run("TYPE", &[&key]).await == Value::SimpleString("hash".to_owned())
                        || part == Part::Last && self.run("GET", &[&key]).await == Value::BulkString(b"1e5".to_vec())
                    {
                        self.run("DEL", &[&key]).await;
                    }
                }
            }
            script => unreachable!("{script:?} is a script's"),
        }
    }

    /// Everything in Redis, and what has a time to live.
    async fn look(&mut self) -> (Dump, BTreeMap<Vec<u8>, i64>) {
        let all: Vec<Value> = cmd("EVAL_RO").arg(DUMP).arg(0).query_async(&mut self.conn).await.expect("a look at Redis");
        let mut all = all.into_iter();
        self.looked_ms = match all.next() {
            Some(Value::Int(ms)) => ms as u64,
            other => panic!("a time was expected, not {other:?}"),
        };
        let (mut dump, mut ttls) = (Dump::new(), BTreeMap::new());
        for entry in all {
            let (key, kind, mut value, ttl): (Vec<u8>, String, Vec<Vec<u8>>, i64) =
                redis::from_redis_value(entry).expect("an entry");
            if kind == "hash" || kind == "zset" {
                let mut pairs: Vec<_> = value.chunks(2).map(<[Vec<u8>]>::to_vec).collect();
                pairs.sort();
                value = pairs.concat();
            }
            if ttl >= 0 {
                ttls.insert(key.clone(), ttl);
            }
            // A stream stays when its last entry goes.
            if kind != "stream" || !value.is_empty() {
                dump.insert(key, (kind, value));
            }
        }
        (dump, ttls)
    }

    /// Takes in the ids of new dead letters, and puts their serials in the place of ids in what was seen.
    async fn set_dead_ids(&mut self, dump: &mut Dump, state: &Reference) {
        if state.dead.last().is_some_and(|dead| !self.dead_ids.contains_key(&dead.serial)) {
            let mut ask = cmd("XRANGE");
            ask.arg(self.keys.events_dead()).arg("-").arg("+");
            let entries: Vec<(String, Value)> = ask.query_async(&mut self.conn).await.expect("the dead letters");
            self.dead_ids.extend(state.dead.iter().map(|dead| dead.serial).zip(entries.into_iter().map(|(id, _)| id)));
        }
        let actions = self.keys.operator_actions();
        for pair in dump.get_mut(actions.as_bytes()).iter_mut().flat_map(|(_, value)| value.chunks_mut(2)) {
            if pair[0] == b"dead_id"
                && let Some((serial, _)) = self.dead_ids.iter().find(|(_, id)| id.as_bytes() == pair[1])
            {
                pair[1] = serial.to_string().into_bytes();
            }
        }
    }

    /// Puts a word in the place of each time at which an event in the log was taken, where it is one.
    fn set_taken(&mut self, dump: &mut Dump, before: u64) {
        let times = dump.get_mut(self.keys.event_log().as_bytes()).into_iter().flat_map(|(_, value)| value.chunks_mut(2));
        let (known, mut seen) = (self.taken, 0);
        for pair in times.filter(|pair| pair[0] == b"taken") {
            seen += 1;
            let since = if seen > known { before } else { 0 };
            let at: u64 = String::from_utf8_lossy(&pair[1]).parse().unwrap_or(0);
            if (since..=self.looked_ms).contains(&(at + AGE_MS)) {
                pair[1] = b"then".to_vec();
            }
        }
        self.taken = seen;
    }

    /// Puts the step in the place of each time at which an event has failed, where it is one.
    fn set_failed(&self, dump: &mut Dump, state: &Reference, before: u64) {
        for (name, object) in &state.objects {
            let Some(failures) = object.errors.right() else { continue };
            let kept = dump.get_mut(&self.key(name, ":event.errors"));
            for (line, Failure { at, .. }) in kept.into_iter().flat_map(|(_, lines)| lines).zip(failures) {
                let during = if *at == state.now { before..=self.looked_ms } else { 1..=before };
                let text = String::from_utf8_lossy(line).into_owned();
                if let Some((ms, rest)) = text.split_once(' ')
                    && ms.parse().is_ok_and(|ms: u64| during.contains(&ms))
                {
                    *line = format!("{at} {rest}").into_bytes();
                }
            }
        }
    }

    /// When a name is looked at next does not matter here: every sweep looks at all.
    fn forget_looks(&self, dump: &mut Dump) {
        for set in [self.keys.event_workers_watched(), self.keys.event_workers_departed()] {
            if let Some((_, value)) = dump.get_mut(set.as_bytes()) {
                let mut names: Vec<_> = value.chunks(2).map(|pair| pair[0].clone()).collect();
                names.sort();
                *value = names;
            }
        }
        let meta = self.keys.meta().into_bytes();
        if let Some((_, value)) = dump.get_mut(&meta) {
            *value = value
                .chunks(2)
                .filter(|pair| !pair[0].starts_with(b"names.") && !pair[0].starts_with(b"clock"))
                .flatten()
                .cloned()
                .collect();
            if value.is_empty() {
                dump.remove(&meta);
            }
        }
    }

    /// Times that were written in this step become those of the reference, in what was seen and in Redis.
    async fn set_clock(&mut self, dump: &mut Dump, state: &Reference, before: u64) {
        let during = before..=self.looked_ms;
        let mut changes = redis::pipe();
        let (held, workers) = (self.keys.objects_held(), self.keys.event_workers());
        for pair in dump.get_mut(held.as_bytes()).iter_mut().flat_map(|(_, value)| value.chunks_mut(2)) {
            let Some(due) = state.due.get(&pair[0][..]).copied() else { continue };
            let was: Option<u64> = String::from_utf8_lossy(&pair[1]).parse().ok();
            let is_new = due == state.now && was.is_some_and(|ms| during.contains(&ms))
                || due == FAR + state.now && was.is_some_and(|ms| during.contains(&ms.saturating_sub(FAR)));
            if is_new {
                pair[1] = due.to_string().into_bytes();
                changes.cmd("ZADD").arg(&held).arg("XX").arg(due).arg(&pair[0]).ignore();
            }
        }
        for pair in dump.get_mut(workers.as_bytes()).iter_mut().flat_map(|(_, value)| value.chunks_mut(2)) {
            let text = String::from_utf8_lossy(&pair[1]).into_owned();
            let Some((rest, ms)) = text.rsplit_once(' ') else { continue };
            let at = state.registered(&String::from_utf8_lossy(&pair[0])).and_then(|last| last.at);
            if at == Some(state.now) && ms.parse().is_ok_and(|ms: u64| during.contains(&ms)) {
                pair[1] = format!("{rest} {}", FAR + state.now).into_bytes();
                changes.cmd("HSET").arg(&workers).arg(&pair[0]).arg(&pair[1]).ignore();
            }
        }
        self.set_clock_of_rules(dump, state, during, &mut changes);
        if !changes.is_empty() {
            let _: () = changes.query_async(&mut self.conn).await.expect("times are written");
        }
    }

    /// When rules were set, and when they end.
    fn set_clock_of_rules(&self, dump: &mut Dump, state: &Reference, during: RangeInclusive<u64>, changes: &mut redis::Pipeline) {
        let rules = self.keys.event_rules();
        let was = |text: &str, wanted: u64| match text.parse::<u64>() {
            Ok(ms) if wanted == state.now && during.contains(&ms) => wanted.to_string(),
            Ok(ms) if wanted == FAR + state.now && during.contains(&ms.saturating_sub(FAR)) => wanted.to_string(),
            _ => text.to_owned(),
        };
        for pair in dump.get_mut(rules.as_bytes()).iter_mut().flat_map(|(_, value)| value.chunks_mut(2)) {
            let text = String::from_utf8_lossy(&pair[1]).into_owned();
            let now = match (state.rules.get(&pair[0][..]), &text.splitn(3, ' ').collect::<Vec<_>>()[..]) {
                (Some(rule), [set, end, rest]) => {
                    format!(
                        "{} {} {rest}",
                        was(set, rule.set),
                        rule.end.map_or_else(|| (*end).to_owned(), |wanted| was(end, wanted))
                    )
                }
                _ if pair[0] == b"next" => state.next_rule().map_or(text.clone(), |wanted| was(&text, wanted)),
                _ => continue,
            };
            if now != text {
                pair[1] = now.into_bytes();
                changes.cmd("HSET").arg(&rules).arg(&pair[0]).arg(&pair[1]).ignore();
            }
        }
    }
}

/// What may not be taken waits until the far future.
fn suspects(room: &reference::Room) -> scripts::Suspects {
    let mut suspects = scripts::Suspects::of(room.crashes_max, room.settles).put_off(FAR);
    room.in_hand.iter().for_each(|crashes| suspects.has(*crashes));
    suspects
}

fn suffix(part: Part) -> &'static str {
    match part {
        Part::Queue => ":events",
        Part::Last | Part::LastText => ":last.event.id",
        Part::Owner => ":event.worker",
        Part::Held => ":events.held",
        Part::HeldId => ":events.held.id",
        Part::Errors => ":event.errors",
    }
}

/// Whether the time to the next due object is what the reference says.
fn is_due(got: Option<Duration>, wanted: Option<u64>, now: u64, before: u64, after: u64) -> bool {
    let got = got.map(|left| left.as_millis() as u64);
    match wanted {
        None => got.is_none(),
        Some(due) if due <= now => got == Some(0),
        Some(due) if due == FAR + now => got == Some(FAR),
        Some(due) => got.is_some_and(|left| (due - after..=due - before).contains(&left)),
    }
}

fn report(told: &Told) -> Report {
    let then = match &told.then {
        Then::Done => Results::Done,
        Then::Yield => Results::Yield,
        Then::Part { next } => Results::Part { next: tag(*next) },
        Then::Hold { rest, delay, why } => {
            let delay = match delay {
                Delay::Zero => Some(Duration::ZERO),
                Delay::Far => Some(Duration::from_millis(FAR)),
                Delay::Operator => None,
            };
            Results::Hold { rest: tag(*rest), delay, why: (*why).to_owned() }
        }
        Then::Reject { next, id, attempts, complete } => {
            let (next, id, error, attempts) = (next.map(tag), *id, ERROR.to_owned(), *attempts);
            if *complete {
                Results::Complete { next, id, error, attempts }
            } else {
                Results::Reject { next, id, error, attempts }
            }
        }
    };
    Report { object: told.object.clone(), tag: tag(told.tag), count: told.count, last: told.last, then }
}

/// `PLACE EVENTS BYTES `, then for each event `NAME_BYTES EVENT_BYTES `, the object's name and the event.
fn emits_text(emits: &Emits) -> Vec<u8> {
    let mut text = format!("{} {} {} ", emits.place, emits.events.len(), emits.bytes()).into_bytes();
    for (object, event) in &emits.events {
        text.extend([format!("{} {} ", object.len(), event.len()).as_bytes(), object, event].concat());
    }
    text
}

fn tag(numbers: Numbers) -> Tag {
    let Numbers { first, handouts, attempts, crashes } = numbers;
    Tag { first, handouts, attempts, crashes }
}

/// The reference as Redis must hold it, keys spelled as in `docs/protocol.md`.
fn wanted(state: &Reference, prefix: &str) -> Dump {
    let mut dump = Dump::new();
    let text = |text: String| text.into_bytes();
    let mut put = |name: &[u8], suffix: &str, kind: &str, value: Vec<Vec<u8>>| {
        if !value.is_empty() {
            dump.insert([prefix.as_bytes(), name, suffix.as_bytes()].concat(), (kind.to_owned(), value));
        }
    };
    let newest_first = |events: &Vec<Event>| events.iter().rev().map(|event| event.to_vec()).collect::<Vec<_>>();
    for (name, object) in &state.objects {
        let mut any = |suffix: &str, kind: &str, value: Option<Vec<Vec<u8>>>| match value {
            Some(value) => put(name, suffix, kind, value),
            None => put(name, suffix, "hash", vec![b"wrong".to_vec(), b"type".to_vec()]),
        };
        let string =
            |key: &Key<Option<String>>| key.right().map(|value| value.iter().map(|text| text.clone().into_bytes()).collect());
        any(":events", "list", object.queue.right().map(newest_first));
        any(":last.event.id", "string", string(&object.last));
        any(":event.worker", "string", string(&object.owner));
        any(":events.held", "list", object.held.right().map(newest_first));
        let handled = object.handled.iter().flat_map(|kept| {
            let done = kept.finished.iter().flat_map(|field| [text(field.clone()), b"1".to_vec()]);
            let emits = kept.emits.iter().flat_map(|(field, emits)| [text(field.clone()), emits_text(emits)]);
            let results = kept.results.iter().flat_map(|(field, value)| [text(field.clone()), text(value.clone())]);
            done.chain(emits).chain(results).chain([b"id".to_vec(), text(kept.id.to_string())])
        });
        any(":event.handled", "hash", Some(sorted(handled.collect())));
        let errors = |failures: &Vec<Failure>| {
            let line = |failure: &Failure| text(format!("{} {} {}", failure.at, failure.attempt, failure.error));
            failures.iter().map(line).collect::<Vec<_>>()
        };
        any(":event.errors", "list", object.errors.right().map(errors));
        any(":events.held.id", "string", object.held_id.right().map(|value| value.iter().map(|text| text.to_vec()).collect()));
    }
    for (w, worker) in &state.workers {
        let name = [b"event.worker:", w.as_bytes()].concat();
        put(&name, ":object", "list", worker.objects.iter().map(|name| name.to_vec()).collect());
        put(&name, ":event", "list", newest_first(&worker.batch));
        put(&name, ":event.id", "string", worker.tag.iter().map(|tag| tag.clone().into_bytes()).collect());
    }
    for (name, lease) in &state.leases {
        put(format!("event.worker:{name}").as_bytes(), ":lease", "string", vec![text(lease.text())]);
    }
    let score = |due: u64| if due == OPERATOR { "inf".to_owned() } else { due.to_string() };
    let due = state.due.iter().flat_map(|(name, due)| [name.to_vec(), text(score(*due))]).collect();
    let mut registry: Vec<_> = state.registry.iter().collect();
    registry.sort_by_key(|(name, _)| *name);
    let registry = registry.into_iter().flat_map(|(name, last)| {
        let at = last.at.map_or(LONG_AGO, |step| FAR + step);
        [text((*name).to_owned()), text(format!("{} {} {at}", last.slots, last.token))]
    });
    let letter = |dead: &Dead| {
        let fields: [(&str, Vec<u8>); 6] = [
            ("id", text(dead.id.to_string())),
            ("prev", text(dead.prev.clone())),
            ("object", dead.object.to_vec()),
            ("event", dead.event.to_vec()),
            ("error", dead.error.to_vec()),
            ("attempts", text(dead.attempts.to_string())),
        ];
        fields.into_iter().flat_map(|(field, value)| [text(field.to_owned()), value]).collect::<Vec<_>>()
    };
    let dead = state.dead.iter().flat_map(letter);
    let log = state.log.iter().flat_map(|row| {
        let words = |words: [&str; 2]| words.map(|word| text(word.to_owned()));
        let taken = row.taken.then(|| words(["taken", "then"])).into_iter().flatten();
        let results = row.results.iter().flat_map(move |results| words(["results", results]));
        words(["status", row.status]).into_iter().chain(letter(&row.event)).chain(taken).chain(results)
    });
    let meta = state.meta.iter().flat_map(|id| {
        let mut fields = if state.log_on { vec!["event.log", "on"] } else { vec![] };
        fields.extend(state.log_was_on.then_some(["event.log.keep", "100000"]).into_iter().flatten());
        fields.extend(["partitions", "1"]);
        fields.extend(id.iter().flat_map(|id| ["replication.id", id]));
        fields.extend(["schema", "2"]);
        fields.into_iter().map(|field| text(field.to_owned())).collect::<Vec<_>>()
    });
    let actions = state.actions.iter().flat_map(|done| {
        let mut fields: Vec<(&str, Vec<u8>)> = vec![
            ("action", text(done.action.to_owned())),
            ("who", text(WHO.to_owned())),
            ("why", text(WHY.to_owned())),
            ("object", done.object.to_vec()),
            ("id", text(done.id.clone())),
        ];
        fields.extend(done.dead.map(|serial| ("dead_id", text(serial.to_string()))));
        fields.extend(done.error.as_ref().map(|error| ("error", error.to_vec())));
        fields.extend(done.event.as_ref().map(|event| ("event", event.to_vec())));
        fields.into_iter().flat_map(|(field, value)| [text(field.to_owned()), value]).collect::<Vec<_>>()
    });
    put(b"operator.actions", "", "stream", actions.collect());
    put(b"objects.with.events", "", "list", state.markers.iter().map(|name| name.to_vec()).collect());
    put(b"objects.held", "", "zset", due);
    put(b"objects.paused", "", "zset", state.paused.iter().flat_map(|name| [name.to_vec(), text("0".to_owned())]).collect());
    let mut rules: Vec<[Vec<u8>; 2]> =
        state.rules.iter().map(|(field, rule)| [field.to_vec(), rules::value(rule).to_vec()]).collect();
    if !rules.is_empty() {
        rules.push([text("next".to_owned()), text(state.next_rule().map_or("never".to_owned(), |at| at.to_string()))]);
    }
    rules.sort();
    put(b"event.rules", "", "hash", rules.concat());
    put(b"next.event.id", "", "string", state.counter.iter().map(|counter| text(counter.to_string())).collect());
    put(b"event.workers", "", "hash", registry.collect());
    for (key, names) in [("event.workers.watched", &state.watched), ("event.workers.departed", &state.departed)] {
        put(key.as_bytes(), "", "zset", names.iter().map(|name| text((*name).to_owned())).collect());
    }
    put(b"events.dead", "", "stream", dead.collect());
    put(b"event.log", "", "stream", log.collect());
    put(b"seriatim.meta", "", "hash", meta.collect());
    dump
}

/// The fields of a hash, each with its value, in order.
fn sorted(fields: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut pairs: Vec<_> = fields.chunks(2).map(<[Vec<u8>]>::to_vec).collect();
    pairs.sort();
    pairs.concat()
}

fn differences(got: &Dump, wanted: &Dump) -> Result<(), String> {
    if got == wanted {
        return Ok(());
    }
    let shown = |dump: &Dump, key: &Vec<u8>| match dump.get(key) {
        Some((kind, value)) => format!("{kind} {:?}", value.iter().map(|v| v.escape_ascii().to_string()).collect::<Vec<_>>()),
        None => "nothing".to_owned(),
    };
    let mut keys: Vec<_> = got.keys().chain(wanted.keys()).filter(|key| got.get(*key) != wanted.get(*key)).collect();
    keys.sort();
    keys.dedup();
    let lines = keys
        .iter()
        .map(|key| format!("{}: Redis has\n    {}\nexpected\n    {}", key.escape_ascii(), shown(got, key), shown(wanted, key)));
    Err(lines.collect::<Vec<_>>().join("\n"))
}
