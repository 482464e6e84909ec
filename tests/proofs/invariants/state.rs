//! The whole state of a namespace, read in one step and parsed by the names of keys in
//! docs/protocol.md. This file repeats these names, so that the tests do not rely on `keys.rs`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use redis::aio::MultiplexedConnection;

/// An object's name, as stored in Redis.
pub type Name = Bytes;

/// A script that returns the whole state as one string of parts `LENGTH:BYTES`. For every key the
/// parts are its name, its type, the number of its values, and the values. Parsing a reply with
/// many values would take most of the test's time.
const DUMP: &str = r"
local all = {}
local function put(text)
  all[#all + 1] = #text .. ':' .. text
end
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
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
      value[#value + 1] = tostring(#entry[2])
      for _, field in ipairs(entry[2]) do
        value[#value + 1] = field
      end
    end
  end
  put(key)
  put(kind)
  put(tostring(#value))
  for _, part in ipairs(value) do
    put(part)
  end
end
return table.concat(all)";

/// The keys of one object.
#[derive(Debug, Default, Clone)]
pub struct Object {
    /// Queued events, oldest first.
    pub queue: Vec<Bytes>,
    pub last: Option<String>,
    pub owner: Option<String>,
    /// Events of the held batch, oldest first.
    pub held: Vec<Bytes>,
    pub held_id: Option<String>,
    /// Errors of the failed attempts of the first event, oldest first.
    pub errors: Vec<Bytes>,
}

/// The keys of one worker (a slot).
#[derive(Debug, Default, Clone)]
pub struct Worker {
    pub objects: Vec<Name>,
    /// Events of the batch, oldest first.
    pub batch: Vec<Bytes>,
    pub tag: Option<String>,
    /// The object of the batch, as the value of the tag names it.
    pub named: Option<Name>,
}

/// A dead letter, or an event completed with errors. For receivers there is no difference.
#[derive(Debug, Clone)]
pub struct Dead {
    pub id: u64,
    pub prev: u64,
    pub object: Name,
    pub event: Bytes,
    pub error: String,
    pub attempts: u32,
}

/// A row of the event log.
#[derive(Debug, Clone)]
pub struct Row {
    pub status: String,
    pub entry: Dead,
}

#[derive(Debug, Default, Clone)]
pub struct State {
    pub objects: BTreeMap<Name, Object>,
    pub workers: BTreeMap<String, Worker>,
    pub leases: BTreeMap<String, String>,
    /// Markers from the head of the list on. The last one is taken next.
    pub markers: Vec<Name>,
    /// Names that are grouped, by group. The last one is taken next.
    pub grouped: BTreeMap<Name, Vec<Name>>,
    /// The groups that have turns, with their passes.
    pub groups: BTreeMap<Name, u64>,
    /// The number of names that are grouped.
    pub waiting: Option<String>,
    /// Due times of held objects in ms; `inf` if an operator must release the object. Below 0 if the
    /// object's name was grouped.
    pub due: BTreeMap<Name, f64>,
    /// Objects that rules hold: the members of `objects.paused`.
    pub paused: BTreeSet<Name>,
    /// Fields of `event.rules`, one for each rule.
    pub rules: BTreeSet<String>,
    pub counter: Option<String>,
    pub registry: BTreeMap<String, String>,
    /// All watched and all departed names.
    pub looked_at: Vec<String>,
    pub dead: Vec<Dead>,
    /// Rows of the log, oldest first.
    pub log: Vec<Row>,
    /// Keys that no script should make, and keys of a wrong type.
    pub strange: Vec<String>,
}

impl State {
    /// Reads all keys that begin with `prefix`.
    pub async fn read(conn: &mut MultiplexedConnection, prefix: &str) -> Self {
        let all: Vec<u8> = redis::cmd("EVAL_RO")
            .arg(DUMP)
            .arg(0)
            .arg(prefix)
            .query_async(conn)
            .await
            .expect("the dump");
        let mut all = Bytes::from(all);
        let mut state = Self::default();
        while !all.is_empty() {
            let (key, kind) = (part(&mut all), part(&mut all));
            let count: usize = text(&part(&mut all)).parse().expect("how many values");
            let value = (0..count).map(|_| part(&mut all)).collect();
            state.put(&key[prefix.len()..], &text(&kind), value);
        }
        state
    }

    pub fn object(&self, name: &[u8]) -> Object {
        self.objects.get(name).cloned().unwrap_or_default()
    }

    pub fn worker(&self, w: &str) -> Worker {
        self.workers.get(w).cloned().unwrap_or_default()
    }

    /// Returns the number of slots registered for a name.
    pub fn slots(&self, name: &str) -> usize {
        self.registry
            .get(name)
            .and_then(|value| value.split(' ').next()?.parse().ok())
            .unwrap_or(0)
    }

    fn put(&mut self, key: &[u8], kind: &str, mut value: Vec<Bytes>) {
        match (key, kind) {
            (b"objects.with.events", "list") => self.markers = value,
            (b"objects.held", "zset") => {
                self.due = value
                    .chunks(2)
                    .map(|pair| (pair[0].clone(), text(&pair[1]).parse().expect("a score")))
                    .collect();
            }
            (b"event.groups", "zset") => {
                let pass =
                    |pair: &[Bytes]| (pair[0].clone(), text(&pair[1]).parse().expect("a pass"));
                self.groups = value.chunks(2).map(pass).collect();
            }
            (b"event.groups.waiting", "string") => self.waiting = Some(text(&value[0])),
            (b"next.event.id", "string") => self.counter = Some(text(&value[0])),
            (b"event.workers", "hash") => {
                self.registry = value
                    .chunks(2)
                    .map(|pair| (text(&pair[0]), text(&pair[1])))
                    .collect();
            }
            (b"objects.paused", "zset") => {
                self.paused = value.chunks(2).map(|pair| pair[0].clone()).collect()
            }
            (b"event.rules", "hash") => {
                self.rules = value
                    .chunks(2)
                    .map(|pair| text(&pair[0]))
                    .filter(|field| field != "next")
                    .collect();
            }
            (b"events.dead", "stream") => self.dead.extend(rows(&value).into_iter().map(dead)),
            (b"event.log", "stream") => {
                self.log = rows(&value)
                    .into_iter()
                    .map(|row| Row {
                        status: text(&row[1]),
                        entry: dead(&row[2..]),
                    })
                    .collect();
                let completed = self
                    .log
                    .iter()
                    .filter(|row| row.status == "completed_with_errors");
                self.dead.extend(completed.map(|row| row.entry.clone()));
            }
            (b"event.workers.watched" | b"event.workers.departed", "zset") => {
                self.looked_at
                    .extend(value.chunks(2).map(|pair| text(&pair[0])));
            }
            (b"seriatim.meta" | b"event.groups.times", "hash")
            | (b"operator.actions", "stream") => {}
            _ => {
                let group = key
                    .strip_prefix(b"event.group:")
                    .and_then(|rest| rest.strip_suffix(b":waiting"));
                if let (Some(group), "list") = (group, kind) {
                    // The marks between the names only tell their age.
                    value.retain(|name| !name.starts_with(b"\0t"));
                    self.grouped.insert(Bytes::copy_from_slice(group), value);
                    return;
                }
                let strange = format!("{} is a {kind}", text(&Bytes::copy_from_slice(key)));
                // Redis has the newest event at the head of the list. In the reversed list the
                // oldest comes first.
                value.reverse();
                // An object may have the name of a worker. The suffixes of the keys tell the two
                // apart.
                let worker = key
                    .strip_prefix(b"event.worker:")
                    .is_some_and(|rest| self.put_worker(rest, kind, &mut value));
                if !worker && !self.put_object(key, kind, &mut value) {
                    self.strange.push(strange);
                }
            }
        }
    }

    fn put_worker(&mut self, key: &[u8], kind: &str, value: &mut Vec<Bytes>) -> bool {
        let Some((w, suffix)) = split(key) else {
            return false;
        };
        let w = text(&w);
        match (suffix, kind) {
            (b":object", "list") => {
                self.workers.entry(w).or_default().objects = std::mem::take(value)
            }
            (b":event", "list") => self.workers.entry(w).or_default().batch = std::mem::take(value),
            (b":event.id", "string") => {
                let line_feed = value[0].iter().position(|byte| *byte == b'\n');
                let worker = self.workers.entry(w).or_default();
                let end = line_feed.unwrap_or(value[0].len());
                worker.tag = Some(text(&value[0].slice(..end)));
                worker.named = line_feed.map(|at| value[0].slice(at + 1..));
            }
            (b":lease", "string") => drop(self.leases.insert(w, text(&value[0]))),
            _ => return false,
        }
        true
    }

    fn put_object(&mut self, key: &[u8], kind: &str, value: &mut Vec<Bytes>) -> bool {
        let Some((name, suffix)) = split(key) else {
            return false;
        };
        let object = self.objects.entry(name).or_default();
        let value = std::mem::take(value);
        match (suffix, kind) {
            (b":events", "list") => object.queue = value,
            (b":last.event.id", "string") => object.last = Some(text(&value[0])),
            (b":event.worker", "string") => object.owner = Some(text(&value[0])),
            (b":events.held", "list") => object.held = value,
            (b":events.held.id", "string") => object.held_id = Some(text(&value[0])),
            (b":event.errors", "list") => object.errors = value,
            _ => return false,
        }
        true
    }
}

/// Splits a key at its last colon: the name before the colon, and the suffix with the colon.
fn split(key: &[u8]) -> Option<(Name, &[u8])> {
    let at = key.iter().rposition(|byte| *byte == b':')?;
    Some((Bytes::copy_from_slice(&key[..at]), &key[at..]))
}

/// Returns the fields of each entry of a stream.
fn rows(mut value: &[Bytes]) -> Vec<&[Bytes]> {
    let mut rows = Vec::new();
    while let Some((count, rest)) = value.split_first() {
        let (row, rest) = rest.split_at(text(count).parse().expect("how many fields"));
        rows.push(row);
        value = rest;
    }
    rows
}

fn dead(fields: &[Bytes]) -> Dead {
    let field = |at: usize, name: &str| {
        assert_eq!(text(&fields[at]), name, "a dead letter's fields");
        fields[at + 1].clone()
    };
    let number = |at, name| text(&field(at, name)).parse::<u64>().expect("a number");
    Dead {
        id: number(0, "id"),
        prev: number(2, "prev"),
        object: field(4, "object"),
        event: field(6, "event"),
        error: text(&field(8, "error")),
        attempts: number(10, "attempts") as u32,
    }
}

/// Removes the next part `LENGTH:BYTES` from the text, and returns its bytes.
fn part(all: &mut Bytes) -> Bytes {
    let colon = all.iter().position(|byte| *byte == b':').expect("a length");
    let length: usize = text(&all.split_to(colon)).parse().expect("a length");
    let _ = all.split_to(1);
    all.split_to(length)
}

pub fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
