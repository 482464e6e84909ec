//! A person at `redis-cli`: emits with a plain `MULTI`, reads keys, and acts as an operator.

use std::time::Duration;

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;

use super::{Redis, until};

/// Maximum wait of a test for a state; far more than needed.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A connection, and the keys of one test.
#[derive(Clone)]
pub struct Console {
    conn: MultiplexedConnection,
    pub keys: Keys,
}

impl Redis {
    /// Opens a console.
    pub async fn console(&self) -> Console {
        Console {
            conn: self.connect().await,
            keys: self.keys().clone(),
        }
    }

    /// Opens a console. Returns this Redis, too.
    pub async fn with_console(self) -> (Self, Console) {
        let console = self.console().await;
        (self, console)
    }
}

impl Console {
    /// Returns a console over this connection.
    pub fn new(conn: MultiplexedConnection, keys: Keys) -> Self {
        Self { conn, keys }
    }

    /// Returns the connection.
    pub fn conn(&self) -> MultiplexedConnection {
        self.conn.clone()
    }

    /// Returns the handle of an operator.
    pub fn control(&self) -> seriatim::control::Control {
        super::control(&self.conn, &self.keys)
    }

    /// Runs one command, given word by word.
    pub async fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_run(words)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs one command. Returns an error instead of failing.
    pub async fn try_run<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, redis::RedisError> {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query_async(&mut self.conn.clone()).await
    }

    /// Sets an option of the server, which must be the test's own.
    pub async fn config(&self, name: &str, value: &str) {
        self.run::<()>(&["CONFIG", "SET", name, value]).await;
    }

    /// Runs commands, one in each line or after each `; `. The first argument of a command is a key
    /// without the prefix, and so is each argument of `DEL`. Single quotes hold a word with blanks
    /// together. The word `a:1..3` is short for `a:1 a:2 a:3`.
    pub async fn add(&self, commands: &str) {
        for words in commands_of(commands) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.add_one(&words).await;
        }
    }

    /// Runs such a command.
    pub async fn add_one(&self, words: &[&str]) {
        let key = |key: &str| format!("{}{key}", self.keys.prefix());
        let (command, keys, rest) = match *words {
            ["DEL", ref names @ ..] => ("DEL", names, &[][..]),
            [command, _, ref rest @ ..] => (command, &words[1..2], rest),
            _ => panic!("{words:?}"),
        };
        let mut cmd = redis::cmd(command);
        keys.iter().for_each(|name| _ = cmd.arg(key(name)));
        let done = cmd.arg(rest).exec_async(&mut self.conn()).await;
        done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }

    /// Runs `MULTI; LPUSH OBJ:events event; LPUSH objects.with.events OBJ; EXEC`.
    pub async fn emit(&self, object: &str, event: impl AsRef<[u8]>) {
        self.emit_all(object, [event]).await;
    }

    /// Emits each of these events, in one round trip.
    pub async fn emit_all(&self, object: &str, events: impl IntoIterator<Item = impl AsRef<[u8]>>) {
        self.try_emit_all(object, events).await.expect("emitted");
    }

    /// Emits these events. Returns an error instead of failing.
    pub async fn try_emit_all(
        &self,
        object: &str,
        events: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<(), redis::RedisError> {
        let mut pipe = redis::pipe();
        for event in events {
            pipe.cmd("MULTI").ignore();
            pipe.cmd("LPUSH")
                .arg(self.keys.events(object))
                .arg(event.as_ref())
                .ignore();
            pipe.cmd("LPUSH")
                .arg(self.keys.objects_with_events())
                .arg(object)
                .ignore();
            pipe.cmd("EXEC").ignore();
        }
        pipe.query_async(&mut self.conn.clone()).await
    }

    /// Returns the whole number at a key; 0 if it is absent.
    pub async fn number(&self, key: &str) -> u64 {
        self.run::<Option<u64>>(&["GET", key]).await.unwrap_or(0)
    }

    /// Returns the tag of the batch of a slot.
    pub async fn tag(&self, worker: &str) -> Option<String> {
        let value = self.text(&self.keys.worker_event_id(worker)).await?;
        Some(value.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns the text at a key.
    pub async fn text(&self, key: &str) -> Option<String> {
        self.run(&["GET", key]).await
    }

    /// Returns the list at a key, oldest first.
    pub async fn list(&self, key: &str) -> Vec<String> {
        let mut list: Vec<String> = self.run(&["LRANGE", key, "0", "-1"]).await;
        list.reverse();
        list
    }

    /// Returns the queue of an object, oldest first.
    pub async fn queue(&self, object: &str) -> Vec<String> {
        self.list(&self.keys.events(object)).await
    }

    /// Returns the markers, oldest first.
    pub async fn markers(&self) -> Vec<String> {
        self.list(&self.keys.objects_with_events()).await
    }

    /// Returns the owner of an object.
    pub async fn owner(&self, object: &str) -> Option<String> {
        self.text(&self.keys.event_worker(object)).await
    }

    /// Returns the last id of an object; 0 if it is absent.
    pub async fn last_id(&self, object: &str) -> u64 {
        self.number(&self.keys.last_event_id(object)).await
    }

    /// Returns the numbers and the reason of a held object.
    pub async fn held_id(&self, object: &str) -> Option<String> {
        self.text(&self.keys.events_held_id(object)).await
    }

    /// Waits until an object is held for a reason with this beginning. Returns the whole value.
    pub async fn until_held(&self, object: &str, why: &str) -> String {
        until(&format!("{object} is held: {why}"), PATIENCE, async || {
            let held = self.held_id(object).await?;
            held.splitn(5, ' ')
                .nth(4)
                .is_some_and(|text| text.starts_with(why))
                .then_some(held)
        })
        .await
    }

    /// Returns the due time of a held object.
    pub async fn due(&self, object: &str) -> Option<f64> {
        self.run(&["ZSCORE", &self.keys.objects_held(), object])
            .await
    }

    /// Makes the held object due now, as an operator does.
    pub async fn release(&self, object: &str) {
        let changed: u64 = self
            .run(&["ZADD", &self.keys.objects_held(), "XX", "CH", "0", object])
            .await;
        assert_eq!(changed, 1, "{object} is held");
    }

    /// Ends the lease of a name, as time would.
    pub async fn end_lease(&self, name: &str) {
        let _: u64 = self.run(&["DEL", &self.keys.worker_lease(name)]).await;
    }

    /// Waits until the name has a lease. Returns the lease.
    pub async fn until_lease(&self, name: &str) -> String {
        until("the name has a lease", PATIENCE, async || {
            self.text(&self.keys.worker_lease(name)).await
        })
        .await
    }

    /// Waits until this many clients are blocked in a pop. Each idle process has one such client.
    pub async fn until_idle(&self, processes: usize) {
        until("the processes wait for markers", PATIENCE, async || {
            let clients: String = self.run(&["CLIENT", "LIST"]).await;
            let blocked = clients
                .lines()
                .filter(|line| line.contains(" cmd=blmove ") && line.contains(" flags=b"))
                .count();
            (blocked == processes).then_some(())
        })
        .await;
    }

    /// Returns the dead letters, each as fields and values.
    pub async fn dead(&self) -> Vec<Vec<(String, Vec<u8>)>> {
        type Entry = (String, Vec<(String, Vec<u8>)>);
        let dead: Vec<Entry> = self
            .run(&["XRANGE", &self.keys.events_dead(), "-", "+"])
            .await;
        dead.into_iter().map(|(_, fields)| fields).collect()
    }

    /// Returns the present keys of the test, without the prefix. Leaves out the marks and the
    /// statuses of processes, which are written at any time.
    pub async fn left(&self) -> Vec<String> {
        let prefix = self.keys.prefix();
        let keys: Vec<String> = self.run(&["KEYS", &format!("{prefix}*")]).await;
        let is_status = |key: &&str| key.starts_with("event.worker:") && key.ends_with(":status");
        keys.iter()
            .filter_map(|key| key.strip_prefix(prefix))
            .filter(|key| !is_status(key) && *key != "event.marks")
            .map(str::to_owned)
            .collect()
    }

    /// Fails if an invariant is broken.
    pub async fn check(&self) {
        let report = self.control().check().await.expect("checked");
        assert!(report.is_clean(), "{:#?}", report.violations);
    }

    /// Waits until this many ids were given, and no work is under way.
    pub async fn until_at_rest_after(&self, ids: u64) {
        let key = self.keys.next_event_id();
        until(&format!("{ids} ids are given"), PATIENCE, async || {
            (self.number(&key).await >= ids).then_some(())
        })
        .await;
        self.until_at_rest().await;
    }

    /// Waits until no work is under way: no event is queued, in flight or held, no object has an
    /// owner, and no marker is left.
    pub async fn until_at_rest(&self) {
        let mut busy = Vec::new();
        let lasting = |key: &String| {
            key.ends_with(":last.event.id")
                || key.ends_with(":lease")
                || key.starts_with("event.workers")
                || key.starts_with("events.cron")
                || [
                    "next.event.id",
                    "seriatim.meta",
                    "events.dead",
                    "events.scheduled.lateness",
                    "event.log",
                    "operator.actions",
                ]
                .contains(&key.as_str())
        };
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < deadline {
            busy = self.left().await;
            busy.retain(|key| !lasting(key));
            if busy.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        panic!("not at rest: {busy:?}");
    }
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
pub fn commands_of(text: &str) -> Vec<Vec<String>> {
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
