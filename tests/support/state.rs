//! States of the protocol, built with plain Redis commands, as producers and workers leave them.
#![allow(dead_code, unreachable_pub)]

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;

use crate::support::Redis;
use crate::support::console::Console;

impl Redis {
    /// Returns this Redis and a builder of states in it.
    pub async fn with_state(self) -> (Self, State) {
        let state = State::new(self.connect().await, self.keys().clone());
        (self, state)
    }

    /// Returns this Redis with an object of each kind, as [`State::clean`] describes it.
    pub async fn with_clean_state(self) -> (Self, State) {
        let (redis, mut state) = self.with_state().await;
        state.clean().await;
        (redis, state)
    }
}

/// Builds states under the given keys.
pub struct State {
    pub conn: MultiplexedConnection,
    pub keys: Keys,
}

impl State {
    pub fn new(conn: MultiplexedConnection, keys: Keys) -> Self {
        Self { conn, keys }
    }

    /// Runs one command and ignores its reply.
    pub async fn run(&mut self, command: &str, arguments: &[&str]) {
        let answer = redis::cmd(command)
            .arg(arguments)
            .query_async::<redis::Value>(&mut self.conn)
            .await;
        answer.unwrap_or_else(|error| panic!("{command} {arguments:?}: {error}"));
    }

    /// Runs commands, as [`Console::add`](crate::support::console::Console::add) does.
    pub async fn add(&mut self, commands: &str) {
        self.console().add(commands).await;
    }

    /// Returns a console over the same connection.
    pub fn console(&self) -> Console {
        Console::new(self.conn.clone(), self.keys.clone())
    }

    /// Returns the handle of an operator.
    pub fn control(&self) -> seriatim::control::Control {
        crate::support::control(&self.conn, &self.keys)
    }

    /// Emits one event as a producer.
    pub async fn emit(&mut self, object: &str, event: &str) {
        let (queue, markers) = (self.keys.events(object), self.keys.objects_with_events());
        let mut multi = redis::pipe();
        multi
            .atomic()
            .cmd("LPUSH")
            .arg(queue)
            .arg(event)
            .cmd("LPUSH")
            .arg(markers)
            .arg(object);
        multi
            .query_async::<()>(&mut self.conn)
            .await
            .expect("an emit");
    }

    /// Registers a name without a lease.
    pub async fn register(&mut self, name: &str, slots: u32) {
        let value = format!("{slots} token-of-{name} 0");
        self.run("HSET", &[&self.keys.event_workers(), name, &value])
            .await;
    }

    /// Gives the name a lease.
    pub async fn lease(&mut self, name: &str) {
        let value = format!("token-of-{name} host-1 4711 99");
        self.run(
            "SET",
            &[&self.keys.worker_lease(name), &value, "PX", "600000"],
        )
        .await;
    }

    /// Makes a worker that owns an object and has these events in flight, with ids from `first` on.
    pub async fn own(&mut self, worker: &str, object: &str, first: u64, batch: &[&str]) {
        self.run("SET", &[&self.keys.event_worker(object), worker])
            .await;
        self.run("LPUSH", &[&self.keys.worker_object(worker), object])
            .await;
        self.batch(worker, first, batch).await;
        let tag = format!("{first}\n{object}");
        self.run("SET", &[&self.keys.worker_event_id(worker), &tag])
            .await;
    }

    pub async fn batch(&mut self, worker: &str, first: u64, batch: &[&str]) {
        let list = self.keys.worker_event(worker);
        self.run("LPUSH", &[&[list.as_str()], batch].concat()).await;
        self.run(
            "SET",
            &[&self.keys.worker_event_id(worker), &first.to_string()],
        )
        .await;
        self.given(first + batch.len() as u64 - 1).await;
    }

    /// Makes a held object with this batch (may be empty), due at this score.
    pub async fn hold(&mut self, object: &str, score: &str, batch: &[&str], numbers_and_why: &str) {
        self.run("SET", &[&self.keys.event_worker(object), "held"])
            .await;
        self.run("ZADD", &[&self.keys.objects_held(), score, object])
            .await;
        self.run("SET", &[&self.keys.events_held_id(object), numbers_and_why])
            .await;
        if !batch.is_empty() {
            let list = self.keys.events_held(object);
            self.run("LPUSH", &[&[list.as_str()], batch].concat()).await;
        }
        let first: u64 = numbers_and_why
            .split(' ')
            .next()
            .and_then(|id| id.parse().ok())
            .expect("numbers");
        self.given((first + batch.len() as u64).saturating_sub(1))
            .await;
    }

    /// Raises the last id given to at least this id.
    pub async fn given(&mut self, id: u64) {
        let key = self.keys.next_event_id();
        let now: Option<u64> = redis::cmd("GET")
            .arg(&key)
            .query_async(&mut self.conn)
            .await
            .expect("GET");
        if now.unwrap_or(0) < id {
            self.run("SET", &[&key, &id.to_string()]).await;
        }
    }

    pub async fn delivered(&mut self, object: &str, id: u64) {
        self.run("SET", &[&self.keys.last_event_id(object), &id.to_string()])
            .await;
        self.given(id).await;
    }

    /// Adds a rule. Sets `next`, the time at which workers must next wake objects of a rule.
    pub async fn rule(&mut self, field: &str, value: &str, next: &str) {
        self.run(
            "HSET",
            &[&self.keys.event_rules(), field, value, "next", next],
        )
        .await;
    }

    pub async fn dead_letter(&mut self, dead_id: &str, object: &str, event: &[u8]) {
        let mut add = redis::cmd("XADD");
        add.arg(self.keys.events_dead())
            .arg(dead_id)
            .arg(&["id", "12", "prev", "7", "object", object, "event"]);
        add.arg(event).arg(&["error", "no\nway", "attempts", "3"]);
        add.query_async::<String>(&mut self.conn)
            .await
            .expect("XADD");
    }

    /// Adds dead letters with the ids `TIME-N`. The event of each is `N`.
    pub async fn dead_letters(
        &mut self,
        time: &str,
        numbers: impl IntoIterator<Item = u32>,
        object: &str,
    ) {
        for n in numbers {
            let (dead_id, event) = (format!("{time}-{n}"), n.to_string());
            self.dead_letter(&dead_id, object, event.as_bytes()).await;
        }
    }

    /// Builds a valid state with at least one object of each kind: queued, taken, owned, held in
    /// every way, delivered. It also has a stray.
    pub async fn clean(&mut self) {
        self.register("a", 3).await;
        self.lease("a").await;
        self.register("gone", 1).await;
        self.delivered("work:1", 7).await;
        self.emit("work:1", "{\"n\":1}").await;
        self.emit("work:1", "{\"n\":2}").await;
        self.own("a.0", "work:2", 12, &["{\"n\":3}", "{\"n\":4}"])
            .await;
        self.delivered("work:2", 11).await;
        self.run("LPUSH", &[&self.keys.events("work:2"), "{}"])
            .await;
        // After a late pop, the list of the worker a.0 has a second name. The worker does not own
        // this object.
        self.run("LPUSH", &[&self.keys.events("work:3"), "{}"])
            .await;
        self.run("LPUSH", &[&self.keys.worker_object("a.0"), "work:3"])
            .await;
        self.own("gone.0", "work:4", 14, &["{}"]).await;
        self.hold(
            "work:5",
            "1",
            &["{\"n\":5}"],
            "15 1 3 0 retry: connection refused",
        )
        .await;
        self.run("LPUSH", &[&self.keys.events("work:5"), "{}"])
            .await;
        self.hold("work:6", "99999999999999", &["{}"], "16 0 1 0 retry: soon")
            .await;
        self.hold(
            "work:7",
            "inf",
            &[],
            "0 0 0 0 crashes: died 5 times with this event in hand",
        )
        .await;
        self.hold("work:8", "1", &[], "0 0 0 0 yield").await;
        self.run("DEL", &[&self.keys.events_held_id("work:8")])
            .await;
        self.run("SET", &[&self.keys.event_worker("work:9"), "held"])
            .await;
        self.run("ZADD", &[&self.keys.objects_paused(), "0", "work:9"])
            .await;
        self.rule("pause work:9", "1 0 0 3 0 adanot yet", "never")
            .await;
        self.delivered("bare", 16).await;
        self.run("SET", &[&self.keys.data("work:1"), "{}"]).await;
        self.run("LPUSH", &[&self.keys.objects_with_events(), ""])
            .await;
    }
}
