//! A test of a script call in three parts: the keys that are given, the call, and the keys that the
//! call has changed.
//!
//! ```text
//! let scene = Scene::given("own w.0 work:1 7 1; emit work:2 2").await;
//! let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
//! assert_eq!(answer.objects(), ["work:2"]);
//! scene.changed("
//!     work:1: event.worker = nil; last.event.id = 7
//!     …
//! ").await;
//! ```
//!
//! The changes are those of *all* keys of the test, so each other key is as it was.
#![allow(dead_code, unreachable_pub)]

#[path = "calls.rs"]
mod calls;

pub use self::calls::*;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;

use crate::state::State;
use crate::support::Redis;
use crate::support::clock::Clock;
use crate::support::console::{Console, commands_of};

/// Lua that returns all keys that begin with `ARGV[1]`, or only the one that goes on with `ARGV[2]`:
/// of each the name without this prefix, the type, whether it expires, and its items. Lists have the
/// oldest item first.
const READ: &str = r"
local all = {}
for _, key in ipairs(ARGV[2] and { ARGV[1] .. ARGV[2] } or redis.call('KEYS', ARGV[1] .. '*')) do
  local kind, items = redis.call('TYPE', key).ok, {}
  if kind == 'string' then
    items[1] = redis.call('GET', key)
  elseif kind == 'list' then
    local list = redis.call('LRANGE', key, 0, -1)
    for n = #list, 1, -1 do items[#items + 1] = list[n] end
  elseif kind == 'none' then
    break
  elseif kind == 'set' then
    items = redis.call('SMEMBERS', key)
  elseif kind == 'stream' then
    for n, row in ipairs(redis.call('XRANGE', key, '-', '+')) do
      items[n] = row[1] .. ' ' .. table.concat(row[2], ' ')
    end
  else
    local words = kind == 'hash' and { 'HGETALL', key } or { 'ZRANGE', key, 0, -1, 'WITHSCORES' }
    local pairs_of = redis.call(unpack(words))
    for n = 1, #pairs_of, 2 do table.insert(items, pairs_of[n] .. ': ' .. pairs_of[n + 1]) end
    if kind == 'hash' then table.sort(items) end
  end
  local text = table.concat(items, '\n')
  if #text > 4000 then items = { #items .. ' items with the digest ' .. redis.sha1hex(text) } end
  all[#all + 1] = { string.sub(key, #ARGV[1] + 1), kind, redis.call('PTTL', key) > 0 and 1 or 0, items }
end
return all";

/// All keys without the prefix: of each the type, whether it expires, and its items.
type All = BTreeMap<Vec<u8>, (String, bool, Vec<Vec<u8>>)>;

/// A Redis with the keys of one test.
pub struct Scene {
    pub redis: Redis,
    console: Console,
    /// The clock of Redis, if it stands still.
    pub clock: Option<Clock>,
    began_us: AtomicU64,
    has_process: bool,
    /// The commands of the present case.
    case: Mutex<String>,
    /// All keys when the test last looked. Looking takes long, so it waits until a call is made.
    seen: Mutex<Option<All>>,
}

/// A scene is also a console.
impl Deref for Scene {
    type Target = Console;

    fn deref(&self) -> &Console {
        &self.console
    }
}

impl Scene {
    /// Returns a scene with the process `w`, which has two slots.
    pub async fn new() -> Self {
        Self::on(Redis::start()).await
    }

    /// Returns such a scene with these keys.
    pub async fn given(commands: &str) -> Self {
        let scene = Self::new().await;
        scene.add(commands).await;
        scene
    }

    /// Returns a scene with the process `w` in this Redis.
    pub async fn on(redis: Redis) -> Self {
        Self::bare(redis).await.with_process().await
    }

    /// Returns a scene with the process `w`, in a Redis of its own, with these keys.
    pub async fn under(keys: Keys) -> Self {
        Self::bare_under(keys).await.with_process().await
    }

    async fn with_process(mut self) -> Self {
        self.has_process = true;
        self.attach(&ATTACH).await;
        self.changes().await;
        self
    }

    /// Returns a scene without a process, in a Redis of its own, with these keys.
    pub async fn bare_under(keys: Keys) -> Self {
        let redis = Redis::own(&[]);
        let mut console = redis.console().await;
        console.keys = keys;
        Self::with(redis, console).await
    }

    /// Returns a scene without a process, in which it is this time, in µs.
    pub async fn stopped_at(us: u64) -> Self {
        let clock = Clock::new();
        let redis = Redis::with_stopped_clock(&clock);
        clock.stop_at(us);
        let mut scene = Self::bare(redis).await;
        scene.clock = Some(clock);
        scene
    }

    /// Returns a scene without a process.
    pub async fn bare(redis: Redis) -> Self {
        let console = redis.console().await;
        Self::with(redis, console).await
    }

    async fn with(redis: Redis, console: Console) -> Self {
        let scene = Self {
            redis,
            console,
            clock: None,
            began_us: AtomicU64::default(),
            has_process: false,
            case: Mutex::default(),
            seen: Mutex::default(),
        };
        scene.begin().await;
        scene.changes().await;
        scene
    }

    async fn begin(&self) {
        let (seconds, micros): (u64, u64) = self.run(&["TIME"]).await;
        let us = seconds * 1_000_000 + micros;
        self.began_us.store(us, Ordering::Relaxed);
    }

    fn began_us(&self) -> i128 {
        self.began_us.load(Ordering::Relaxed).into()
    }

    /// Begins another case: deletes all keys, attaches the process anew, and adds these keys.
    pub async fn again(&self, commands: &str) {
        self.delete_all().await;
        self.redis.begin_ids(&self.keys);
        self.case.lock().expect("no test has failed").clear();
        self.begin().await;
        if self.has_process {
            self.attach(&ATTACH).await;
        }
        self.add(commands).await;
    }

    async fn delete_all(&self) {
        let prefix = self.keys.prefix();
        let keys: Vec<Vec<u8>> = self.run(&["KEYS", &format!("{prefix}*")]).await;
        let mut pipe = redis::pipe();
        for key in keys {
            pipe.del(key).ignore();
        }
        self.run_all(pipe).await;
    }

    /// Returns the connection for a call. Looks at the keys that are given.
    pub async fn conn(&self) -> MultiplexedConnection {
        if self.seen().is_none() {
            self.changes().await;
        }
        self.console.conn()
    }

    /// Returns the time of Redis, ms since the epoch.
    pub async fn now_ms(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.run(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }

    /// Runs commands, as a console does. Their changes count as given. These are commands, too:
    ///
    /// - `emit OBJECT EVENT…`: emits events, as a producer
    /// - `own WORKER OBJECT ID EVENT…`: gives a worker this object, with a batch from this id on
    /// - `hold OBJECT DUE 'NUMBERS REASON' EVENT…`: holds an object with this batch
    /// - `delivered OBJECT ID`: sets the last id
    /// - `batch WORKER ID EVENT…`: gives the slot of a worker a batch only
    /// - `pop WORKER`: moves the oldest marker to the list of a worker
    /// - `each OBJECT…`: emits the event `1` for each object
    /// - `due MS OBJECT…`: holds objects with the event `1`, each due 1 ms later than the one before
    /// - `names GROUP PASS NAME…`: adds names to the list of a group with this pass
    /// - `queue GROUP PASS NAME…`: the same, and each object has the event `1`
    /// - `clean`: makes an object of each kind, as `State::clean` describes it
    /// - `empty`: deletes all keys
    ///
    /// `NOW` is the time at which the test began, in ms,
    /// and `NOW-5m` is 5 minutes before; `s` and `ms` are units, too.
    pub async fn add(&self, commands: &str) {
        *self.case.lock().expect("no test has failed") += &format!("{commands}\n");
        for words in commands_of(&self.with_times(commands)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.add_one(&words).await;
        }
        *self.seen() = None;
    }

    async fn add_one(&self, words: &[&str]) {
        let mut state = State::new(self.console.conn(), self.keys.clone());
        let keys = &self.keys;
        let number = |word: &str| word.parse::<u64>().expect("a number");
        match *words {
            ["emit", object, ref events @ ..] => self.emit_all(object, events).await,
            ["own", worker, object, first, ref events @ ..] => {
                state.own(worker, object, number(first), events).await;
            }
            ["batch", worker, first, ref events @ ..] => {
                state.batch(worker, number(first), events).await;
            }
            ["hold", object, due, why, ref events @ ..] => {
                state.hold(object, due, events, why).await;
            }
            ["clean"] => state.clean().await,
            ["empty"] => self.delete_all().await,

            ["delivered", object, id] => state.delivered(object, number(id)).await,
            ["pop", worker] => {
                let (from, to) = (keys.objects_with_events(), keys.worker_object(worker));
                state.run("LMOVE", &[&from, &to, "RIGHT", "LEFT"]).await;
            }
            ["each", ref objects @ ..] => {
                let mut pipe = redis::pipe();
                for object in objects {
                    pipe.lpush(keys.events(object), "1").ignore();
                    pipe.lpush(keys.objects_with_events(), object).ignore();
                }
                self.run_all(pipe).await;
            }
            ["due", first, ref objects @ ..] => {
                for (due, object) in (number(first)..).zip(objects) {
                    let due = due.to_string();
                    state
                        .hold(object, &due, &["1"], "1 0 1 0 retry: down")
                        .await;
                }
            }
            [kind @ ("names" | "queue"), group, pass, ref names @ ..] => {
                let mut pipe = redis::pipe();
                pipe.zadd(keys.event_groups(), group, pass).ignore();
                pipe.incr(keys.event_groups_waiting(), names.len()).ignore();
                for name in names {
                    pipe.lpush(keys.group_waiting(group), name).ignore();
                    if kind == "queue" {
                        pipe.lpush(keys.events(name), "1").ignore();
                    }
                }
                self.run_all(pipe).await;
            }
            _ => self.console.add_one(words).await,
        }
    }

    async fn run_all(&self, pipe: redis::Pipeline) {
        if !pipe.is_empty() {
            let done = pipe.exec_async(&mut self.console.conn()).await;
            done.expect("all commands run");
        }
    }

    /// Fails unless these are all changes since the keys were given or last looked at. A line is
    /// `KEY = VALUE`, or `KEY = nil` for a deleted key. The keys of one object, or of one worker, are
    /// in one line: `NAME: KEY = VALUE; KEY = VALUE`. All is in the order of the keys.
    ///
    /// A list is `[ITEM, …]`, the oldest first; a hash and a stream are `{…}`, a sorted set is
    /// `<…>`. A key that ends by its time to live has the word `expires` at the end. Of a long value
    /// there is the digest.
    ///
    /// `NOW` is a time of the last minute, and `NOW+5m` a time of the minute that begins in 5 min. If
    /// the clock stands still, `NOW` and `NOW+5m` are these times exactly, and `s` and `ms` are units,
    /// too. The same words with `_US` are for times in µs. The id of a row of a stream is its time.
    ///
    /// The lines may be in any order.
    #[track_caller]
    pub fn changed(&self, expected: &str) -> impl Future<Output = ()> {
        let (at, mut expected) = (Location::caller(), lines_of(expected));
        async move {
            let mut found = self.changes().await;
            found.sort_unstable();
            expected.sort_unstable();
            if found != expected {
                let given = self.case.lock().expect("no test has failed").clone();
                let given: String = given.chars().take(1000).collect();
                let without = |lines: &[String], others: &[String]| {
                    let lines = lines.iter().filter(|line| !others.contains(line));
                    lines.map(|line| format!("{line}\n")).collect::<String>()
                };
                panic!(
                    "{at}: given:\n{given}{at}: changed, but not expected:\n{}\
                     {at}: expected, but not changed:\n{}",
                    without(&found, &expected),
                    without(&expected, &found)
                );
            }
        }
    }

    /// Returns all changes, as [`Self::changed`] describes them, and looks anew.
    pub async fn changes(&self) -> Vec<String> {
        let now = self.dump(&[]).await;
        let before = self.seen().replace(now.clone()).unwrap_or_default();
        let keys: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        let mut groups = BTreeMap::<String, Vec<String>>::new();
        for key in keys {
            let (old, new) = (before.get(key), now.get(key));
            // Two times of one minute have the same text.
            if old == new || self.shown(old) == self.shown(new) {
                continue;
            }
            let (value, key) = (self.shown(new), text(key));
            match key.rsplit_once(':') {
                Some((name, kind)) => {
                    groups
                        .entry(name.to_owned())
                        .or_default()
                        .push(format!("{kind} = {value}"));
                }
                None => _ = groups.insert(key, vec![format!("= {value}")]),
            }
        }
        let line = |(name, values): (String, Vec<String>)| {
            let colon = if values[0].starts_with("= ") { "" } else { ":" };
            format!("{name}{colon} {}", values.join("; "))
        };
        groups.into_iter().map(line).collect()
    }

    /// Returns the value of a key without the prefix, as [`Self::changed`] describes it; of a tag
    /// without the object that it names.
    pub async fn at(&self, key: &str) -> String {
        if key.ends_with(":event.id") && !key.ends_with(":last.event.id") {
            let all = self.dump(&[]).await;
            return self.shown(all.get(key.as_bytes()));
        }
        self.shown(self.dump(&[key]).await.values().next())
    }

    /// Returns the members and the scores of the sorted set at this key without the prefix.
    pub async fn scores(&self, key: &str) -> Vec<(String, f64)> {
        let key = format!("{}{key}", self.keys.prefix());
        self.run(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await
    }

    /// Goes on as a user with these rules. The server must be the test's own.
    pub async fn login(&self, rules: &str) {
        let mut conn = self.conn().await;
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg(&["weak", "on", ">weak"]);
        rules.split(' ').for_each(|rule| _ = user.arg(rule));
        user.exec_async(&mut conn).await.expect("a user");
        let login = redis::cmd("AUTH").arg(&["weak", "weak"]).to_owned();
        login.exec_async(&mut conn).await.expect("logged in");
    }

    /// Lets the server count its commands from here on. The server must be the test's own.
    pub async fn count_calls(&self) {
        let mut conn = self.conn().await;
        let reset = redis::cmd("CONFIG").arg("RESETSTAT").to_owned();
        reset.exec_async(&mut conn).await.expect("reset");
    }

    /// Returns how often the server has run a command. The server must be the test's own.
    pub async fn calls_of(&self, command: &str) -> usize {
        let stats: String = self.run(&["INFO", "commandstats"]).await;
        let begin = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&begin));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    fn seen(&self) -> MutexGuard<'_, Option<All>> {
        self.seen.lock().expect("no test has failed")
    }

    async fn dump(&self, only: &[&str]) -> All {
        type Row = (Vec<u8>, String, bool, Vec<Vec<u8>>);
        let words = [&["EVAL", READ, "0", self.keys.prefix()], only].concat();
        let all: Vec<Row> = self.run(&words).await;
        let rows = all.into_iter();
        let mut all: All = rows
            .map(|(key, kind, expires, items)| (key, (kind, expires, items)))
            .collect();
        if only.is_empty() {
            Self::hide_objects_of_tags(&mut all);
        }
        all
    }

    /// Leaves out the object that a tag names, as long as the list of its slot, or the owner of the
    /// object, says the same; `TAG of OBJECT` is a wrong one.
    fn hide_objects_of_tags(all: &mut All) {
        let agrees = |worker: &[u8], object: &[u8]| {
            let list = all.get(&[worker, b":object"].concat());
            let owner = all.get(&[object, b":event.worker"].concat());
            list.is_some_and(|(_, _, names)| names.iter().any(|name| name == object))
                || owner.is_some_and(|(_, _, owner)| worker.ends_with(&owner[0]))
        };
        let shown = |key: &Vec<u8>| {
            let worker = key.strip_suffix(b":event.id")?;
            let value = &all[key].2[0];
            let at = value.iter().position(|byte| *byte == b'\n')?;
            let (tag, object) = (&value[..at], &value[at + 1..]);
            let shown = match agrees(worker, object) {
                true => tag.to_vec(),
                false => [tag, b" of ", object].concat(),
            };
            Some((key.clone(), shown))
        };
        let tags: Vec<_> = all.keys().filter_map(shown).collect();
        for (key, tag) in tags {
            all.insert(key, ("string".to_owned(), false, vec![tag]));
        }
    }

    fn shown(&self, value: Option<&(String, bool, Vec<Vec<u8>>)>) -> String {
        let Some((kind, expires, items)) = value else {
            return "nil".to_owned();
        };
        let items: Vec<_> = items.iter().map(|item| self.steady(&text(item))).collect();
        let (begin, end) = match kind.as_str() {
            "string" => ("", ""),
            "list" => ("[", "]"),
            "zset" => ("<", ">"),
            _ => ("{", "}"),
        };
        let expires = if *expires { " expires" } else { "" };
        format!("{begin}{}{end}{expires}", items.join(", "))
    }

    /// Replaces the times of the test by words.
    pub fn steady(&self, text: &str) -> String {
        let (mut steady, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let end = at + digits(&rest[at..]);
            let number: i128 = rest[at..end].parse().unwrap_or_default();
            steady += &rest[..at];
            let word = &rest[at..end];
            rest = &rest[end..];
            // The clock may stand still within a millisecond.
            if let Some(ms) = self.since_began(number, 1000) {
                write!(steady, "NOW{ms}").expect("a text");
                // Rows of one time differ by a number behind their time.
                let row = rest.strip_prefix('-').map_or(0, digits);
                rest = &rest[if row > 0 { 1 + row } else { 0 }..];
            } else if let Some(us) = self.since_began(number, 1) {
                write!(steady, "NOW_US{us}").expect("a text");
            } else {
                steady += word;
            }
        }
        steady + rest
    }

    /// Returns whether [`Self::changed`] describes this time, in ms, as `NOW`.
    pub fn is_now(&self, ms: u64) -> bool {
        self.since_began(ms.into(), 1000).as_deref() == Some("")
    }

    /// Returns the time from the beginning of the test to this one, in its unit of so many µs, if it is
    /// a time of these days.
    fn since_began(&self, number: i128, unit_us: i128) -> Option<String> {
        let us = (number - self.began_us() / unit_us) * unit_us;
        let is_near = us.abs() < 30 * 24 * 60 * 60_000_000;
        let units = if self.clock.is_some() {
            &UNITS[..]
        } else {
            &UNITS[..1]
        };
        is_near.then(|| match units.iter().find(|(_, size)| us % size == 0) {
            _ if us == 0 => String::new(),
            Some((unit, size)) => format!("{:+}{unit}", us / size),
            None if (0..60_000_000).contains(&us) => String::new(),
            None => format!("{:+}m", us.div_euclid(60_000_000)),
        })
    }

    /// Replaces `NOW`, and the time from it, by the time.
    fn with_times(&self, text: &str) -> String {
        let mut parts = text.split("NOW");
        let mut all = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_part = |c: char| "+-".contains(c) || c.is_ascii_alphanumeric();
            let end = part.find(|c| !is_part(c)).unwrap_or(part.len());
            let count = part[..end].trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let size = UNITS
                .iter()
                .find(|(unit, _)| *unit == &part[count.len()..end]);
            let us = match (count, size) {
                ("", _) => 0,
                (_, Some((_, size))) => size * count.parse::<i128>().expect("a number"),
                (_, None) => panic!("a time without a unit: {part}"),
            };
            write!(all, "{}", (self.began_us() + us) / 1000).expect("a text");
            all += &part[end..];
        }
        all
    }

    /// Returns what a check of the keys finds.
    pub async fn report_of_check(&self) -> seriatim::control::CheckReport {
        let control = crate::support::control(&self.console.conn(), &self.keys);
        control.check().await.expect("checked")
    }
}

/// The units of times, and their sizes in µs.
const UNITS: [(&str, i128); 4] = [("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)];

/// Returns the number of digits with which a text begins.
fn digits(text: &str) -> usize {
    let end = text.find(|c: char| !c.is_ascii_digit());
    end.unwrap_or(text.len())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}

fn lines_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}
