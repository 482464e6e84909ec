//! The real Redis. Calls go to it through the library, and all its keys are compared with the
//! reference.
//!
//! In the reference, the number of the step replaces each time that a script takes from Redis'
//! clock. A time that a step writes to Redis must lie between the look before the step and the look
//! after it. The test then replaces this time in Redis with the number of the step. So both have
//! the same order of due objects.

mod calls;
mod expected;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use seriatim::keys::Keys;
use seriatim::wire::operator::By;

use super::operator::{WHO, WHY};
use super::reference::{Broken, FAR, Failure, Name, Reference, Reply, SENT_MS};
use super::schedules::{
    END_MS, INBOX, INBOX_MS, PENDING_MS, QUEUED, REFERENCE, Scheduled, member, postponed,
};
use super::world::Call;
use expected::{differences, wanted};

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

/// The operator and the reason of all actions.
const BY: By<'static> = By { who: WHO, why: WHY };
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A last sign of life that is more than a day old.
const LONG_AGO: u64 = 1000;
/// The age of every batch at the time of its report.
const AGE_MS: u64 = 1000;
/// A time to live may be this much shorter than in the reference. No schedule runs so long.
const SLACK_MS: u64 = 600_000;

/// Type and value of each key. The fields of hashes and the members of sorted sets are sorted.
pub type Dump = BTreeMap<Vec<u8>, (String, Vec<Vec<u8>>)>;

/// A group that waits for an object in hand has a score above this in event.groups.blocked.
const LATER: u64 = 1_000_000_000_000_000;
/// Every id of the reference is lower than this. Every id after a jump to the time is higher.
const TIME_US: u64 = 1_000_000_000_000_000;

/// Lowers an id by `difference`, if it comes from a jump to the time.
fn id_at_jump(id: u64, difference: u64) -> u64 {
    if id >= TIME_US { id - difference } else { id }
}

/// Lowers the id in a tag, or the counter, as [`id_at_jump`] does.
fn at_jump(tag: &[u8], difference: u64) -> Vec<u8> {
    let digits = tag.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (first, rest) = tag.split_at(digits);
    match std::str::from_utf8(first).unwrap_or_default().parse() {
        Ok(id) => [id_at_jump(id, difference).to_string().as_bytes(), rest].concat(),
        Err(_) => tag.to_owned(),
    }
}

/// Returns the fields and values of a hash, or the members and scores of a sorted set.
fn pairs<'a>(dump: &'a mut Dump, key: &str) -> impl Iterator<Item = &'a mut [Vec<u8>]> {
    let value = dump.get_mut(key.as_bytes()).into_iter();
    value.flat_map(|(_, value)| value.chunks_mut(2))
}

pub struct Server {
    conn: MultiplexedConnection,
    keys: Keys,
    /// Time of the last look at all keys of Redis, in ms.
    looked_ms: u64,
    /// Entry id of each dead letter ever made, by the serial number of the reference.
    dead_ids: BTreeMap<u64, String>,
    /// Number of log rows that have the time at which their event was taken.
    taken: usize,
}

impl Server {
    /// Empties Redis and sets only the counter. Returns the server.
    pub async fn empty(mut conn: MultiplexedConnection, keys: Keys) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL").set(keys.next_event_id(), 0);
        pipe.exec_async(&mut conn).await.expect("FLUSHALL and SET");
        let mut server = Self {
            conn,
            keys,
            looked_ms: 0,
            dead_ids: BTreeMap::new(),
            taken: 0,
        };
        server.look().await;
        server
    }

    async fn run(&mut self, command: &str, args: &[&[u8]]) -> Value {
        let mut cmd = cmd(command);
        for arg in args {
            cmd.arg(*arg);
        }
        // An error is allowed, because some schedules make a key's type wrong.
        cmd.query_async(&mut self.conn).await.unwrap_or(Value::Nil)
    }

    fn key(&self, object: &[u8], suffix: &str) -> Vec<u8> {
        [self.keys.prefix().as_bytes(), object, suffix.as_bytes()].concat()
    }

    /// Makes the call. Compares the reply and all keys with the reference.
    pub async fn step(
        &mut self,
        broken: Option<Broken>,
        call: &Call,
        expected: &Reply,
        state: &Reference,
    ) -> Result<(), String> {
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
                // The times at which groups wait no longer for a limit are not those of the reference.
                if state.is_limited() || is_due(due, wanted.due, state, before, self.looked_ms) {
                    got.due = wanted.due;
                }
                for given in &mut got.batches {
                    let tag = at_jump(given.tag.as_bytes(), jumped);
                    given.tag = String::from_utf8_lossy(&tag).into_owned();
                }
                Reply::Advanced(got)
            }
            (Ok((Reply::Connected { changed, counter }, _)), _) => Reply::Connected {
                changed,
                counter: id_at_jump(counter, jumped),
            },
            (Ok((Reply::Sent(number), _)), _) => Reply::Sent(id_at_jump(number, jumped)),
            (Ok((reply, _)), _) => reply,
            (Err(error), _) => {
                return Err(format!("the call failed: {error}; expected {expected:?}"));
            }
        };
        if reply != *expected {
            return Err(format!(
                "the reply was\n    {reply:?}\nexpected\n    {expected:?}"
            ));
        }
        let wanted = wanted(state, self.keys.prefix());
        self.set_clock(&mut dump, state, before).await;
        self.set_dead_ids(&mut dump, state).await;
        self.set_taken(&mut dump, before);
        self.set_failed(&mut dump, state, before);
        self.forget_looks(&mut dump);
        self.forget_times_and_marks(&mut dump);
        differences(&dump, &wanted)?;
        let leases = state.leases.iter();
        let leases =
            leases.map(|(name, lease)| (self.keys.worker_lease(name).into_bytes(), lease.ms));
        let fading = state.objects.iter();
        let fading = fading
            .filter_map(|(name, object)| Some((self.key(name, ":last.event.id"), object.fades?)));
        let sent = state.objects.iter();
        let sent = sent.filter(|(_, object)| object.sent.is_some());
        let sent = sent.map(|(name, _)| (self.key(name, ":event.sent"), SENT_MS));
        let ends = state.ends.iter().map(|(member, end)| {
            let ms = if end.is_some() { END_MS } else { PENDING_MS };
            (self.key(member, ":event.end"), ms)
        });
        let inbox = Name::from(format!("\n{INBOX}").into_bytes());
        let inbox = (!state.inbox.is_empty()).then(|| (self.key(&inbox, ":event.ends"), INBOX_MS));
        let ends = ends.chain(inbox);
        let lives: BTreeMap<_, _> = leases.chain(fading).chain(sent).chain(ends).collect();
        for key in lives.keys().chain(ttls.keys()) {
            let (wanted, left) = (lives.get(key).copied(), ttls.get(key).copied());
            let agree = wanted.zip(left).is_some_and(|(ms, left)| {
                (ms as i64 - SLACK_MS as i64..=ms as i64).contains(&left)
            });
            if !agree {
                let key = String::from_utf8_lossy(key);
                return Err(format!(
                    "{key} lives for {left:?} ms, expected {wanted:?} ms"
                ));
            }
        }
        Ok(())
    }

    /// Undoes a jump of the counter to the time. The reference jumps only by
    /// [`JUMP`](reference::JUMP). So the counter in Redis, and the ids that were given after the
    /// jump, are lowered to the values of the reference. Returns the difference.
    async fn jump_back(&mut self, dump: &mut Dump, state: &Reference, before: u64) -> u64 {
        let key = self.keys.next_event_id().into_bytes();
        let id = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let found = dump.get(&key).and_then(|(_, value)| id(value.first()?));
        // The counter may be beyond the time, because ids were given after the jump.
        let window = before * 1000..(self.looked_ms + 1) * 1000 + 1_000_000;
        let (Some(found), Some(counter)) =
            (found.filter(|found| window.contains(found)), state.counter)
        else {
            return 0;
        };
        let difference = found - counter;
        let is_id = |other: &[u8]| {
            other == key
                || other.ends_with(b":event.id")
                || other.ends_with(b":event.key")
                || other.ends_with(b":event.sent")
        };
        for (key, (_, value)) in dump.iter_mut().filter(|(other, _)| is_id(other)) {
            let [text] = &mut value[..] else { continue };
            let there = at_jump(text, difference);
            if *text != there && !key.ends_with(b":last.event.id") {
                self.run("SET", &[key, &there, b"KEEPTTL"]).await;
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
            Broken::Shares => keys.event_shares(),
            Broken::Paused => keys.objects_paused(),
            Broken::Meta => keys.meta(),
            Broken::Scheduled => keys.events_scheduled(),
            Broken::Marks => keys.event_marks(),
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

    /// Returns all keys, and the keys with a time to live.
    pub async fn look(&mut self) -> (Dump, BTreeMap<Vec<u8>, i64>) {
        let all: Vec<Value> = cmd("EVAL_RO")
            .arg(DUMP)
            .arg(0)
            .query_async(&mut self.conn)
            .await
            .expect("a look at Redis");
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
            // A stream without entries still exists, but counts as absent here.
            if kind != "stream" || !value.is_empty() {
                dump.insert(key, (kind, value));
            }
        }
        (dump, ttls)
    }

    /// Records the entry ids of new dead letters. Replaces entry ids in the dump with serial
    /// numbers.
    async fn set_dead_ids(&mut self, dump: &mut Dump, state: &Reference) {
        if state
            .dead
            .last()
            .is_some_and(|dead| !self.dead_ids.contains_key(&dead.serial))
        {
            let mut ask = cmd("XRANGE");
            ask.arg(self.keys.events_dead()).arg("-").arg("+");
            let entries: Vec<(String, Value)> = ask
                .query_async(&mut self.conn)
                .await
                .expect("the dead letters");
            let serials = state.dead.iter().map(|dead| dead.serial);
            let ids = entries.into_iter().map(|(id, _)| id);
            self.dead_ids.extend(serials.zip(ids));
        }
        for pair in pairs(dump, &self.keys.operator_actions()) {
            let mut ids = self.dead_ids.iter();
            if pair[0] == b"dead_id"
                && let Some((serial, _)) = ids.find(|(_, id)| id.as_bytes() == pair[1])
            {
                pair[1] = serial.to_string().into_bytes();
            }
        }
    }

    /// Replaces the time at which a logged event was taken with a word, if the time is valid.
    fn set_taken(&mut self, dump: &mut Dump, before: u64) {
        let (known, mut seen) = (self.taken, 0);
        for pair in pairs(dump, &self.keys.event_log()).filter(|pair| pair[0] == b"taken") {
            seen += 1;
            let since = if seen > known { before } else { 0 };
            let at: u64 = String::from_utf8_lossy(&pair[1]).parse().unwrap_or(0);
            if (since..=self.looked_ms).contains(&(at + AGE_MS)) {
                pair[1] = b"then".to_vec();
            }
        }
        self.taken = seen;
    }

    /// Replaces the time of each failed attempt with the number of the step, if the time is valid.
    fn set_failed(&self, dump: &mut Dump, state: &Reference, before: u64) {
        for (name, object) in &state.objects {
            let Some(failures) = object.errors.right() else {
                continue;
            };
            let kept = dump.get_mut(&self.key(name, ":event.errors"));
            for (line, Failure { at, .. }) in
                kept.into_iter().flat_map(|(_, lines)| lines).zip(failures)
            {
                let during = if *at == state.now {
                    before..=self.looked_ms
                } else {
                    1..=before
                };
                let text = String::from_utf8_lossy(line).into_owned();
                if let Some((ms, rest)) = text.split_once(' ')
                    && ms.parse().is_ok_and(|ms: u64| during.contains(&ms))
                {
                    *line = format!("{at} {rest}").into_bytes();
                }
            }
        }
    }

    /// Removes the times of the next looks at names, because in these tests every sweep looks at
    /// all names.
    fn forget_looks(&self, dump: &mut Dump) {
        for set in [
            self.keys.event_workers_watched(),
            self.keys.event_workers_departed(),
        ] {
            if let Some((_, value)) = dump.get_mut(set.as_bytes()) {
                let mut names: Vec<_> = value.chunks(2).map(|pair| pair[0].clone()).collect();
                names.sort();
                *value = names;
            }
        }
        // The lateness of schedules depends on the clock, but the number of counted events does
        // not.
        if let Some((_, value)) = dump.get_mut(self.keys.events_scheduled_lateness().as_bytes()) {
            let number = |pair: &[Vec<u8>]| String::from_utf8_lossy(&pair[1]).parse().unwrap_or(0);
            let sum: u64 = value.chunks(2).map(number).sum();
            *value = vec![sum.to_string().into_bytes()];
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

    /// Removes the times of groups and of shares, and the marks in the lists of groups. No claim
    /// depends on them.
    fn forget_times_and_marks(&self, dump: &mut Dump) {
        // A pass is printed with 17 digits or fewer, which depends on the server's version.
        for pair in pairs(dump, &self.keys.event_groups()) {
            let pass: f64 = String::from_utf8_lossy(&pair[1]).parse().expect("a pass");
            pair[1] = pass.to_string().into_bytes();
        }
        for pair in pairs(dump, &self.keys.event_shares_used()) {
            pair[1].truncate(pair[1].iter().position(|byte| *byte == b' ').unwrap_or(0));
        }
        for pair in pairs(dump, &self.keys.event_groups_blocked()) {
            if pair[1] != b"0" {
                pair[1] = b"later".to_vec();
            }
        }
        if let Some((_, value)) = dump.get_mut(self.keys.event_shares_summary().as_bytes()) {
            let text = String::from_utf8_lossy(&value[0]).into_owned();
            value[0] =
                format!("{} 0", text.rsplit_once(' ').expect("three numbers").0).into_bytes();
        }
        for pair in pairs(dump, &self.keys.event_shares()) {
            let text = String::from_utf8_lossy(&pair[1]).into_owned();
            let mut parts: Vec<&str> = text.splitn(7, ' ').collect();
            parts[5] = "0";
            pair[1] = parts.join(" ").into_bytes();
        }
        dump.remove(self.keys.event_groups_times().as_bytes());
        if dump.contains_key(self.keys.event_groups_waiting().as_bytes()) {
            dump.remove(self.keys.event_groups_look().as_bytes());
        }
        for (key, (_, names)) in dump.iter_mut() {
            if key.ends_with(b":waiting") {
                names.retain(|name| !name.starts_with(b"\0t"));
            }
        }
    }

    /// Replaces the times that this step has written with the times of the reference, in the dump
    /// and in Redis.
    async fn set_clock(&mut self, dump: &mut Dump, state: &Reference, before: u64) {
        let during = before..=self.looked_ms;
        let mut changes = redis::pipe();
        let (held, workers) = (self.keys.objects_held(), self.keys.event_workers());
        let blocked = self.keys.event_groups_blocked();
        // The key has a real time, on which the next step of a script would depend.
        changes.del(self.keys.event_groups_look()).ignore();
        // Groups that wait for a limit do so until a step makes a call look at them.
        for pair in pairs(dump, &blocked) {
            if pair[1] != b"0" {
                changes.zadd(&blocked, &pair[0], LATER + 2 * FAR).ignore();
            }
        }
        for pair in pairs(dump, &held) {
            let Some(due) = state.due.get(&pair[0][..]).copied() else {
                continue;
            };
            // The time of an object that is grouped is negative.
            let was = String::from_utf8_lossy(&pair[1])
                .parse::<i64>()
                .ok()
                .filter(|ms| ms.signum() == due.signum());
            let (was, at) = (was.map(i64::unsigned_abs), due.unsigned_abs());
            let is_new = at == state.now && was.is_some_and(|ms| during.contains(&ms))
                || at == FAR + state.now
                    && was.is_some_and(|ms| during.contains(&ms.saturating_sub(FAR)))
                || at == postponed(state.now)
                    && was.is_some_and(|ms| during.contains(&ms.saturating_sub(60_000)));
            if is_new {
                pair[1] = due.to_string().into_bytes();
                changes.zadd(&held, &pair[0], due).ignore();
            }
        }
        for pair in pairs(dump, &workers) {
            let text = String::from_utf8_lossy(&pair[1]).into_owned();
            let Some((rest, ms)) = text.rsplit_once(' ') else {
                continue;
            };
            let at = state
                .registered(&String::from_utf8_lossy(&pair[0]))
                .and_then(|last| last.at);
            if at == Some(state.now) && ms.parse().is_ok_and(|ms: u64| during.contains(&ms)) {
                pair[1] = format!("{rest} {}", FAR + state.now).into_bytes();
                changes.hset(&workers, &pair[0], &pair[1]).ignore();
            }
        }
        self.set_queued(dump, state, before, &mut changes);
        // A schedule that could not be promoted is due again in a minute.
        let scheduled = self.keys.events_scheduled();
        for pair in pairs(dump, &scheduled) {
            let is_it =
                |((object, key), _): &(&(Name, &str), &Scheduled)| member(object, key) == pair[0];
            let Some((_, Scheduled { due, .. })) = state.schedules.iter().find(is_it) else {
                continue;
            };
            let was: Option<u64> = String::from_utf8_lossy(&pair[1]).parse().ok();
            if *due == postponed(state.now)
                && was.is_some_and(|ms| during.contains(&ms.saturating_sub(60_000)))
            {
                pair[1] = due.to_string().into_bytes();
                changes.zadd(&scheduled, &pair[0], due).ignore();
            }
        }
        self.set_clock_of_rules(dump, state, during, &mut changes);
        if !changes.is_empty() {
            let _: () = changes
                .query_async(&mut self.conn)
                .await
                .expect("times are written");
        }
    }

    /// Replaces the times in references to schedules, and in the scores of these schedules.
    fn set_queued(
        &self,
        dump: &mut Dump,
        state: &Reference,
        before: u64,
        changes: &mut redis::Pipeline,
    ) {
        let during = before * 1000..(self.looked_ms + 1) * 1000;
        let time_of = |text: &[u8]| {
            std::str::from_utf8(text)
                .ok()?
                .parse::<u64>()
                .ok()
                .filter(|us| during.contains(us))
        };
        for (name, object) in &state.objects {
            let Some(queue) = object.queue.right() else {
                continue;
            };
            let key = self.key(name, ":events");
            let found = dump
                .get_mut(&key)
                .into_iter()
                .flat_map(|(_, values)| values);
            for (at, (value, expected)) in found.zip(queue.iter().rev()).enumerate() {
                let time = value
                    .strip_prefix(REFERENCE)
                    .and_then(|rest| time_of(rest.split(|byte| *byte == b' ').next()?));
                if time.is_some() && expected.starts_with(REFERENCE) {
                    let now = format!("{} ", state.now);
                    let rest = value[REFERENCE.len()..]
                        .splitn(2, |byte| *byte == b' ')
                        .nth(1)
                        .unwrap_or_default();
                    *value = [REFERENCE, now.as_bytes(), rest].concat();
                    changes.lset(&key, at as isize, &value[..]).ignore();
                }
            }
        }
        let scheduled = self.keys.events_scheduled();
        for pair in pairs(dump, &scheduled) {
            let score = pair[1]
                .strip_prefix(b"-")
                .and_then(|score| std::str::from_utf8(score).ok()?.parse::<u64>().ok());
            if score.is_some_and(|score| score > QUEUED && during.contains(&(score - QUEUED))) {
                pair[1] = format!("-{}", QUEUED + state.now).into_bytes();
                changes.zadd(&scheduled, &pair[0], &pair[1]).ignore();
            }
        }
    }

    /// Replaces the times at which rules were set, and the times at which they end.
    fn set_clock_of_rules(
        &self,
        dump: &mut Dump,
        state: &Reference,
        during: RangeInclusive<u64>,
        changes: &mut redis::Pipeline,
    ) {
        let rules = self.keys.event_rules();
        let was = |text: &str, wanted: u64| match text.parse::<u64>() {
            Ok(ms) if wanted == state.now && during.contains(&ms) => wanted.to_string(),
            Ok(ms) if wanted == FAR + state.now && during.contains(&ms.saturating_sub(FAR)) => {
                wanted.to_string()
            }
            _ => text.to_owned(),
        };
        for pair in pairs(dump, &rules) {
            let text = String::from_utf8_lossy(&pair[1]).into_owned();
            let parts: Vec<_> = text.splitn(3, ' ').collect();
            let now = match (state.rules.get(&pair[0][..]), &parts[..]) {
                (Some(rule), [set, end, rest]) => {
                    let set = was(set, rule.set);
                    let end = rule
                        .end
                        .map_or((*end).to_owned(), |wanted| was(end, wanted));
                    format!("{set} {end} {rest}")
                }
                _ if pair[0] == b"next" => state
                    .next_rule()
                    .map_or(text.clone(), |wanted| was(&text, wanted)),
                _ => continue,
            };
            if now != text {
                pair[1] = now.into_bytes();
                changes.hset(&rules, &pair[0], &pair[1]).ignore();
            }
        }
    }
}

/// Returns whether the time to the next due object matches the reference.
fn is_due(
    got: Option<Duration>,
    wanted: Option<u64>,
    state: &Reference,
    before: u64,
    after: u64,
) -> bool {
    let (got, now) = (got.map(|left| left.as_millis() as u64), state.now);
    // During this step, a postponed object still has a real due time, a minute from now. All other
    // future times are the reference's times, which are far later.
    let is_postponed = state.due.values().any(|due| *due == postponed(now) as i64);
    match wanted {
        None => got.is_none(),
        Some(due) if due <= now => got == Some(0),
        Some(_) if is_postponed => got == Some(60_000),
        Some(due) if due == FAR + now => got == Some(FAR),
        Some(due) => got.is_some_and(|left| (due - after..=due - before).contains(&left)),
    }
}
