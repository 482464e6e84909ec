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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::{Deref, Range};
use std::panic::Location;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, Attach, Attached, BatchReply, BatchResult, Bounds, ClaimFirst,
    Detached, Renewed, Report, ScriptError, Suspects, Tag,
};

use crate::state::State;
use crate::support::Redis;
use crate::support::clock::Clock;
use crate::support::console::Console;

/// Limits that no test reaches by chance.
pub const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 10,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

/// The length of the lease of the process of a scene.
pub const LEASE: Duration = Duration::from_secs(600);

/// The arguments with which the process of a scene attaches.
pub const ATTACH: Attach<'static> = Attach {
    name: "w",
    token: "token-1",
    holder: "host 1 1",
    lease: LEASE,
    slots: 2,
    displace: "",
    before: "",
    crashes_max: 5,
    suspects: Suspects::NONE,
};

/// Lua that returns all keys that begin with `ARGV[1]`, or only the one that goes on with `ARGV[2]`: of
/// each the name without this prefix, the
/// type, whether it expires, and its items. Lists have the oldest item first.
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
    began_ms: u64,
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
        let scene = Self::bare(redis).await;
        scene.attach(&ATTACH).await;
        scene.changes().await;
        scene
    }

    /// Returns a scene with the process `w`, in a Redis of its own, with these keys.
    pub async fn under(keys: Keys) -> Self {
        let redis = Redis::own(&[]);
        let mut console = redis.console().await;
        console.keys = keys;
        let scene = Self::with(redis, console).await;
        scene.attach(&ATTACH).await;
        scene.changes().await;
        scene
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
        let mut scene = Self {
            redis,
            console,
            clock: None,
            began_ms: 0,
            seen: Mutex::default(),
        };
        scene.began_ms = scene.now_ms().await;
        scene.changes().await;
        scene
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

    /// Runs commands, one in each line or after each `; `. Their changes count as given. Single
    /// quotes hold a word with blanks together. A command is one of Redis, whose first argument is a
    /// key without the prefix, or one of these:
    ///
    /// - `emit OBJECT EVENT…`: emits events, as a producer
    /// - `own WORKER OBJECT FIRST EVENT…`: gives a worker this object, with a batch from this id on
    /// - `hold OBJECT DUE 'NUMBERS REASON' EVENT…`: holds an object with this batch
    /// - `delivered OBJECT ID`: sets the last id
    /// - `batch WORKER FIRST EVENT…`: gives the slot of a worker a batch only
    /// - `pop WORKER`: moves the oldest marker to the list of a worker
    /// - `each OBJECT…`: emits the event `1` for each object
    /// - `due MS OBJECT…`: holds objects with the event `1`, each due 1 ms later than the one before
    /// - `names GROUP PASS NAME…`: adds names to the list of a group with this pass
    /// - `queue GROUP PASS NAME…`: the same, and each object has the event `1`
    ///
    /// The word `a:1..3` is short for `a:1 a:2 a:3`.
    pub async fn add(&self, commands: &str) {
        for words in commands_of(commands) {
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
            ["delivered", object, id] => state.delivered(object, number(id)).await,
            ["pop", worker] => {
                let (from, to) = (keys.objects_with_events(), keys.worker_object(worker));
                state.run("LMOVE", &[&from, &to, "RIGHT", "LEFT"]).await;
            }
            ["each", ref objects @ ..] => {
                let of_object = |object: &&str| {
                    let queue = ["LPUSH".to_owned(), keys.events(object), "1".to_owned()];
                    let name = (*object).to_owned();
                    let marker = ["LPUSH".to_owned(), keys.objects_with_events(), name];
                    [queue.to_vec(), marker.to_vec()]
                };
                self.run_all(objects.iter().flat_map(of_object)).await;
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
                let (list, count) = (keys.group_waiting(group), names.len().to_string());
                let mut all = vec![
                    vec![
                        "ZADD".to_owned(),
                        keys.event_groups(),
                        pass.to_owned(),
                        group.to_owned(),
                    ],
                    vec!["INCRBY".to_owned(), keys.event_groups_waiting(), count],
                ];
                for name in names {
                    all.push(vec!["LPUSH".to_owned(), list.clone(), (*name).to_owned()]);
                    if kind == "queue" {
                        all.push(vec!["LPUSH".to_owned(), keys.events(name), "1".to_owned()]);
                    }
                }
                self.run_all(all).await;
            }
            [command, key, ref rest @ ..] => {
                let key = format!("{}{key}", keys.prefix());
                state.run(command, &[&[key.as_str()], rest].concat()).await;
            }
            _ => panic!("{words:?}"),
        }
    }

    /// Runs commands in one round trip.
    async fn run_all(&self, commands: impl IntoIterator<Item = Vec<String>>) {
        let mut pipe = redis::pipe();
        for words in commands {
            pipe.cmd(&words[0]).arg(&words[1..]).ignore();
        }
        if !pipe.is_empty() {
            pipe.query_async::<()>(&mut self.console.conn())
                .await
                .expect("run");
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
    /// `NOW` is a time of the last minute, and `NOW+5m` a time of the minute that begins in 5 min. The
    /// same words with `_US` are for times in µs.
    #[track_caller]
    pub fn changed(&self, expected: &str) -> impl Future<Output = ()> {
        let (at, expected) = (Location::caller(), lines_of(expected));
        async move {
            let found = self.changes().await;
            assert!(
                found == expected,
                "{at}: changed:\n{}\n{at}: expected:\n{}",
                found.join("\n"),
                expected.join("\n")
            );
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

    /// Returns the value of a key without the prefix, as [`Self::changed`] describes it.
    pub async fn at(&self, key: &str) -> String {
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
        rows.map(|(key, kind, expires, items)| (key, (kind, expires, items)))
            .collect()
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
    fn steady(&self, text: &str) -> String {
        const MINUTE: i128 = 60_000;
        let (mut steady, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = rest[at..].find(|c: char| !c.is_ascii_digit());
            let end = digits.map_or(rest.len(), |digits| at + digits);
            let number: i128 = rest[at..end].parse().unwrap_or_default();
            steady += &rest[..at];
            let minutes = |ms: i128| (ms - i128::from(self.began_ms)).div_euclid(MINUTE);
            let is_near = |ms: i128| minutes(ms).abs() < 60 * 24 * 30;
            let (ms, word) = match number {
                _ if is_near(number) => (number, "NOW"),
                _ if is_near(number / 1000) => (number / 1000, "NOW_US"),
                _ => (0, &rest[at..end]),
            };
            steady += word;
            if ms > 0 && minutes(ms) != 0 {
                write!(steady, "{:+}m", minutes(ms)).expect("a text");
            }
            rest = &rest[end..];
        }
        steady + rest
    }

    /// Returns what a check of the keys finds.
    pub async fn report_of_check(&self) -> seriatim::control::CheckReport {
        let control = crate::support::control(&self.console.conn(), &self.keys);
        control.check().await.expect("checked")
    }

    /// Attaches a process.
    pub async fn attach(&self, args: &Attach<'_>) -> Attached {
        let attached = wire::attach(&mut self.conn().await, &self.keys, args).await;
        attached.expect("an answer")
    }

    /// Renews the lease of `w`.
    pub async fn renew(&self, token: &str) -> Renewed {
        let (mut conn, keys) = (self.conn().await, &self.keys);
        let renewed = wire::renew(&mut conn, keys, "w", token, LEASE, 2).await;
        renewed.expect("an answer")
    }

    /// Gives the name `w` back.
    pub async fn detach(&self, token: &str) -> Result<Detached, ScriptError> {
        wire::detach(&mut self.conn().await, &self.keys, "w", token).await
    }

    /// Makes a call of `advance` as the process `w`. `fill` adds slots. If `w` may claim, it takes
    /// markers first.
    pub async fn advance(&self, bounds: Bounds, fill: impl FnOnce(&mut Advance)) -> Answer {
        self.advance_from(ClaimFirst::Markers, bounds, fill).await
    }

    /// Makes a call of `advance` that claims from this source first.
    pub async fn advance_from(
        &self,
        from: ClaimFirst,
        bounds: Bounds,
        fill: impl FnOnce(&mut Advance),
    ) -> Answer {
        let answer = self.try_advance(from, bounds, fill).await;
        Answer::of(answer.expect("an answer"))
    }

    /// Makes a call of `advance` that may fail.
    pub async fn try_advance(
        &self,
        from: ClaimFirst,
        bounds: Bounds,
        fill: impl FnOnce(&mut Advance),
    ) -> Result<Advanced, ScriptError> {
        let mut call = Advance::new(&self.keys, "w", "token-1", bounds, from);
        fill(&mut call);
        wire::advance(&mut self.conn().await, &call).await
    }

    /// Makes a call that fails.
    pub async fn fails(&self, bounds: Bounds, fill: impl FnOnce(&mut Advance)) -> ScriptError {
        let answer = self.try_advance(ClaimFirst::Markers, bounds, fill).await;
        answer.expect_err("a call that fails")
    }

    /// Makes a call for these free slots.
    pub async fn free(&self, slots: Range<usize>, bounds: Bounds) -> Answer {
        let fill = |call: &mut Advance| slots.for_each(|slot| call.free(slot));
        self.advance(bounds, fill).await
    }

    /// Makes a call with one result.
    pub async fn report(&self, slot: usize, report: &Report, bounds: Bounds) -> Answer {
        self.advance(bounds, |call| call.report(slot, report)).await
    }
}

/// The reply to a call of `advance`.
#[derive(Debug)]
pub struct Answer {
    pub batches: Vec<BatchReply>,
    pub next_due: Option<Duration>,
    pub more: bool,
    pub unsorted: bool,
    pub from: ClaimFirst,
    quarantined: Vec<(String, String)>,
}

impl Answer {
    fn of(answer: Advanced) -> Self {
        match answer {
            Advanced::Ok {
                batches,
                next_due,
                more,
                unsorted,
                from,
                quarantined,
            } => Self {
                batches,
                next_due,
                more,
                unsorted,
                from,
                quarantined,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Returns the objects of the batches.
    pub fn objects(&self) -> Vec<&str> {
        self.batches
            .iter()
            .map(|batch| std::str::from_utf8(&batch.object).expect("a name"))
            .collect()
    }

    /// Returns the batches, each as `SLOT OBJECT TAG after PREV: EVENT…`.
    pub fn batches(&self) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let events = |batch: &BatchReply| {
            let events: Vec<_> = batch.events.iter().map(|event| text(event)).collect();
            events.join(" ")
        };
        let batch = |batch: &BatchReply| {
            let BatchReply {
                slot, tag, prev, ..
            } = batch;
            let object = text(&batch.object);
            format!("{slot} {object} {tag} after {prev}: {}", events(batch))
        };
        self.batches.iter().map(batch).collect()
    }

    /// Returns the objects of the batches, and the words `more` and `unsorted` if another call is of
    /// use, or is of use even without a free slot.
    pub fn summary(&self) -> String {
        let more = if self.more { ", more" } else { "" };
        let unsorted = if self.unsorted { ", unsorted" } else { "" };
        format!("{}{more}{unsorted}", self.objects().join(" "))
    }

    /// Returns whether another call is of use, and whether it is of use even without a free slot.
    pub fn of_use(&self) -> (bool, bool) {
        (self.more, self.unsorted)
    }

    /// Returns the number of events of each batch.
    pub fn lengths(&self) -> Vec<usize> {
        self.batches
            .iter()
            .map(|batch| batch.events.len())
            .collect()
    }

    /// Returns what the call has told about keys, each as `NAME: TEXT`.
    pub fn told(&self) -> Vec<String> {
        let told = self.quarantined.iter();
        told.map(|(name, text)| format!("{name}: {text}")).collect()
    }
}

/// Returns [`BOUNDS`] with a change.
pub fn bounds(change: impl FnOnce(&mut Bounds)) -> Bounds {
    let mut bounds = BOUNDS;
    change(&mut bounds);
    bounds
}

/// Returns the result of a batch with this tag, of which so many events are delivered.
pub fn result(object: &str, tag: &str, count: usize, then: BatchResult) -> Report {
    let tag: Tag = tag.parse().expect("a tag");
    Report {
        object: object.to_owned().into(),
        tag,
        count,
        last: (count > 0).then(|| tag.first + count as u64 - 1),
        then,
    }
}

/// Adds slots to a call: results for the first ones, and then free ones.
pub fn slots(results: &[Report], free: Range<usize>) -> impl FnOnce(&mut Advance) {
    move |call| {
        (0..)
            .zip(results)
            .for_each(|(slot, result)| call.report(slot, result));
        free.for_each(|slot| call.free(slot));
    }
}

/// Returns the result that holds a batch with this rest, due after `delay`.
pub fn hold(rest: &str, delay: Option<Duration>, reason: &str) -> BatchResult {
    BatchResult::Hold {
        rest: rest.parse().expect("a tag"),
        delay,
        reason: reason.into(),
    }
}

/// Returns the result that makes the event with this id a dead letter.
pub fn reject(next: Option<&str>, id: u64, attempts: u32) -> BatchResult {
    BatchResult::Reject {
        next: next.map(|next| next.parse().expect("a tag")),
        id,
        error: "no".to_owned(),
        attempts,
    }
}

/// Returns the report of a batch of one delivered event.
pub fn done(object: &str, id: u64) -> Report {
    result(object, &id.to_string(), 1, BatchResult::Done)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}

fn lines_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Returns the words for which `a:1..3` is short.
fn numbered(word: &str) -> Vec<String> {
    let range = |word: &str| {
        let (begin, last) = word.split_once("..")?;
        let (name, first) = begin.rsplit_once(':')?;
        let numbers = first.parse::<u64>().ok()?..=last.parse().ok()?;
        Some(numbers.map(|n| format!("{name}:{n}")).collect())
    };
    range(word).unwrap_or_else(|| vec![word.to_owned()])
}

/// Returns the words of each command.
fn commands_of(text: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut is_quoted) = (None::<String>, false);
    for c in text.chars().chain(['\n']) {
        match c {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            ' ' | '\n' | ';' if !is_quoted => {
                words.extend(word.take().iter().flat_map(|word| numbered(word)));
                if c != ' ' && !words.is_empty() {
                    commands.push(std::mem::take(&mut words));
                }
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    assert!(!is_quoted, "a quote has no end: {text}");
    commands
}
