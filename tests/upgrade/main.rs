//! A rolling upgrade from the previous version. Its scripts (`tests/upgrade/previous`) claim, hold,
//! emit and pause. Then this version takes over everything.
#![cfg(feature = "worker")]

#[path = "../support/mod.rs"]
mod support;

use crate::support::{control, until};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use rstest::rstest;
use seriatim::control::By;
use seriatim::control::rules::Kind;
use seriatim::keys::Keys;
use seriatim::wire::{self, Emits, ScriptError, Seen};
use support::Redis;
use support::console::{Console, PATIENCE};
use support::recorder::Recorder;
use support::running::start;

const CONNECT: &str = include_str!("previous/connect.lua");
const ATTACH: &str = include_str!("previous/attach.lua");
const ADVANCE: &str = include_str!("previous/advance.lua");
const HANDLED: &str = include_str!("previous/handled_emits.lua");
const RULE: &str = include_str!("previous/rule.lua");
const BY: By<'_> = By { who: "ada", why: "upgraded" };

/// A process of the previous version, called `old`, with eight slots.
struct Previous {
    conn: MultiplexedConnection,
    keys: Keys,
}

impl Previous {
    async fn call(&mut self, script: &str, key: String, args: &[&str]) -> Vec<Value> {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(script).arg(1).arg(key).arg(self.keys.prefix()).arg(args);
        cmd.query_async(&mut self.conn).await.expect("an answer")
    }

    async fn connect(&mut self) -> Vec<String> {
        let reply = self.call(CONNECT, self.keys.meta(), &["", "0", "0", "1000000", "0"]).await;
        reply.into_iter().map(|value| String::from_redis_value(value).expect("text")).collect()
    }

    /// Attaches to the name for an hour.
    async fn attach(&mut self) {
        let args = ["old", "token-1", "host 1 1", "3600000", "8", "", "", "5"];
        let reply = self.call(ATTACH, self.keys.worker_lease("old"), &args).await;
        assert_eq!(reply[0], Value::BulkString(b"attached".to_vec()));
    }

    /// Calls *advance* with these slots and results. Returns the object and the tag of each batch.
    async fn advance(&mut self, slots: &[&str]) -> Vec<(String, String)> {
        let bounds = ["old", "token-1", "2", "1048576", "8388608", "8", "4096", "markers", "0"];
        let reply = self.call(ADVANCE, self.keys.worker_lease("old"), &[&bounds, slots].concat()).await;
        assert_eq!(reply[0], Value::BulkString(b"ok".to_vec()), "{reply:?}");
        let batches = Vec::<Vec<String>>::from_redis_value(reply[4].clone()).expect("batches");
        batches.into_iter().map(|batch| (batch[1].clone(), batch[2].clone())).collect()
    }

    /// Records that a handler of the slot's event has finished, and has emitted an event for
    /// another object.
    async fn emit(&mut self, slot: &str, object: &str, tag: &str, to: &str, event: &str) {
        let mut emits = Emits::default();
        emits.push(to.as_bytes(), event.as_bytes());
        let value = String::from_utf8(emits.value(0)).expect("text");
        let args = ["old", "token-1", slot, object, tag, tag, "handler:files", "1", "emit:files", &value];
        let reply = self.call(HANDLED, self.keys.worker_lease("old"), &args).await;
        assert_eq!(reply[0], Value::BulkString(b"kept".to_vec()), "{reply:?}");
    }
}

/// Lets the previous version attach, set a pause for `paused:*`, and claim. Two events of each of
/// six objects are emitted. Returns the object and the tag of each of the five batches.
async fn at_work(console: &Console, previous: &mut Previous) -> Vec<(String, String)> {
    assert_eq!(previous.connect().await[0], "ok");
    previous.attach().await;
    let pause = ["ada", "not yet", "set", "pause", "paused:*", "0", "1000"];
    assert_eq!(previous.call(RULE, previous.keys.event_rules(), &pause).await[0], Value::BulkString(b"set".to_vec()));
    for object in ["flight", "emits", "fails", "dead", "waits", "paused:1"] {
        console.emit_all(object, [r#"{"n":1}"#, r#"{"n":2}"#]).await;
    }
    let free = ["0", "free", "1", "free", "2", "free", "3", "free", "4", "free"];
    let mut given = previous.advance(&free).await;
    given.sort();
    assert_eq!(
        given.iter().map(|(object, _)| object.as_str()).collect::<Vec<_>>(),
        ["dead", "emits", "fails", "flight", "waits"]
    );
    given
}

#[rstest]
#[case::by_another_name("new")]
#[case::by_its_own_name("old")]
#[tokio::test]
async fn what_the_previous_version_has_is_taken_over(#[case] name: &str) {
    let redis = Redis::start();
    let console = redis.console().await;
    let mut previous = Previous { conn: redis.connect().await, keys: redis.keys().clone() };
    let given = at_work(&console, &mut previous).await;
    let tag = |object: &str| given.iter().find(|(other, _)| other == object).expect("given").1.clone();
    let slot = async |object: &str| {
        let owner = console.text(&console.keys.event_worker(object)).await.expect("an owner");
        owner.split_once('.').expect("a slot").1.to_owned()
    };
    previous.emit(&slot("emits").await, "emits", &tag("emits"), "emitted", r#"{"from":"emits"}"#).await;
    let after = |tag: &str| (tag.parse::<u64>().expect("an id") + 1).to_string();
    let (fails, waits, dead) = (tag("fails"), tag("waits"), tag("dead"));
    let held = format!("{fails} 0 1 0 retry: no");
    previous.advance(&[&slot("fails").await, "hold", "fails", &fails, "", "0", "3600000", &held]).await;
    let held = format!("{waits} 0 3 0 attempts: no");
    previous.advance(&[&slot("waits").await, "hold", "waits", &waits, "", "0", "inf", &held]).await;
    let rejected = [&slot("dead").await, "reject", "dead", &dead, "", "0", &after(&dead), &dead, "no", "1"].map(str::to_owned);
    previous.advance(&rejected.each_ref().map(String::as_str)).await;
    console.emit("queued", r#"{"n":1}"#).await;

    // Both versions run for a while. The new version connects, and the old version continues with
    // its batches.
    let sink = Recorder::new();
    let other = start(&redis, "beside", &sink, |config| config.concurrency = 8);
    sink.until_sent(1).await;
    assert_eq!(sink.sent_of("queued"), [r#"{"n":1}"#]);
    let refused = previous.connect().await;
    assert_eq!(refused, ["schema", "2"], "it does not connect anew");
    previous.advance(&[&slot("dead").await, "done", "dead", &after(&dead), &after(&dead)]).await;
    other.finish().await;

    // The process of the previous version ends, and a process of this version replaces it.
    console.end_lease("old").await;
    let worker = start(&redis, name, &sink, |config| config.concurrency = 8);
    sink.until_sent(1 + 2 + 2 + 1).await;
    for object in ["fails", "waits"] {
        console.release(object).await;
    }
    let conn = redis.connect().await;
    let selector = "paused:*".parse().expect("a selector");
    control(&conn, redis.keys()).lift_rule(BY, Kind::Pause, &selector).await.expect("lifted");
    sink.until_sent(1 + 2 + 2 + 1 + 2 + 2 + 2).await;
    console.until_at_rest().await;
    worker.finish().await;
    for object in ["flight", "emits", "fails", "waits", "paused:1"] {
        assert_eq!(sink.applied_of(object), [r#"{"n":1}"#, r#"{"n":2}"#], "{object}");
    }
    assert_eq!(sink.applied_of("emitted"), [r#"{"from":"emits"}"#], "what its handler had emitted is not lost");
    let sent = sink.sent();
    let first = |object: &str| sent.iter().find(|offer| offer.object == object).expect("sent");
    for object in ["flight", "emits", "fails", "waits"] {
        assert_eq!(first(object).id.to_string(), tag(object), "{object} keeps its id");
    }
    assert_eq!((first("fails").attempts, first("waits").attempts), (1, 3));
    assert_eq!(console.dead().await.len(), 1);
    console.check().await;
}

/// Both versions run, and this version pushes a mark. A process of the previous version does not
/// know marks. It drops the mark like the marker of an object without events: it claims nothing for
/// it, and leaves no key. Then this version shows the age 0, and removes the mark from
/// `event.marks`.
#[tokio::test]
async fn the_previous_version_drops_a_mark() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, control(&redis.connect().await, redis.keys()));
    let mut previous = Previous { conn: redis.connect().await, keys: redis.keys().clone() };
    assert_eq!(previous.connect().await[0], "ok");
    previous.attach().await;
    console.emit("before", "1").await;
    control.mark().await.expect("marked");
    console.emit("behind", "1").await;
    let (list, marks) = (console.keys.objects_with_events(), console.keys.event_marks());
    let waiting: Vec<String> = console.run(&["LRANGE", &list, "0", "-1"]).await;
    assert!(waiting.len() == 3 && waiting[1].starts_with("\0t"), "{waiting:?}");
    let before = previous.advance(&["0", "free"]).await;
    let behind = previous.advance(&["1", "free"]).await;
    let claimed = [&before[..], &behind[..]].map(|given| given.iter().map(|(object, _)| object.as_str()).collect::<Vec<_>>());
    assert_eq!(claimed, [["before"], ["behind"]]);
    for (slot, object, tag) in [("0", "before", &before[0].1), ("1", "behind", &behind[0].1)] {
        assert_eq!(previous.advance(&[slot, "done", object, tag, tag]).await, []);
    }
    console.until_at_rest().await;
    // No key has the mark in its name, and no list has the mark.
    let mut keys: Vec<Vec<u8>> = console.run(&["KEYS", &format!("{}*", console.keys.prefix())]).await;
    keys.retain(|key| key.windows(2).any(|part| part == b"\0t"));
    assert_eq!(keys, Vec::<Vec<u8>>::new());
    let lists = (0..8).map(|slot| console.keys.worker_object(&format!("old.{slot}"))).chain([list]);
    for list in lists {
        assert_eq!(console.run::<u64>(&["LLEN", &list]).await, 0, "{list}");
    }
    assert_eq!(console.run::<u64>(&["ZCARD", &marks]).await, 1, "the previous version leaves the mark there");
    let stats = control.stats().await.expect("stats");
    assert_eq!((stats.markers, stats.oldest_waiting_ms, stats.unreadable), (0, Some(0), vec![]));
    until("the mark is removed", PATIENCE, async || {
        control.mark().await.expect("noted");
        let left: Vec<String> = console.run(&["ZRANGE", &marks, "0", "-1"]).await;
        (left == ["met"]).then_some(())
    })
    .await;
    console.check().await;
}

/// This version refuses data of a later version, because it does not know all rules of the later
/// protocol.
#[tokio::test]
async fn data_of_a_later_version_is_refused() {
    let redis = Redis::start();
    let (mut conn, console) = (redis.connect().await, redis.console().await);
    for version in ["3", "10", "two"] {
        let _: u64 = console.run(&["DEL", &console.keys.meta()]).await;
        let _: u64 = console.run(&["HSET", &console.keys.meta(), "schema", version]).await;
        let error = wire::connect(&mut conn, redis.keys(), "", Seen::default()).await.expect_err("refused");
        assert!(matches!(&error, ScriptError::Schema(found) if found == version), "{error:?}");
        let expected =
            format!("the data is of protocol version {version}, this program knows 1 and 2; run a version that knows it");
        assert_eq!(error.to_string(), expected);
    }
    let error = start(&redis, "w", &Recorder::new(), |_| {}).ended().await.expect_err("refused");
    assert!(error.to_string().contains("protocol version two"), "{error}");
}

/// The first worker of this version raises the version of the data, and changes nothing else.
/// Further workers find it raised.
#[tokio::test]
async fn the_version_is_raised() {
    let redis = Redis::start();
    let console = redis.console().await;
    let mut previous = Previous { conn: redis.connect().await, keys: redis.keys().clone() };
    assert_eq!(previous.connect().await, ["ok", "0", "0"]);
    let counter = console.number(&console.keys.next_event_id()).await;
    for _ in 0..2 {
        let mut conn = redis.connect().await;
        let connected = wire::connect(&mut conn, redis.keys(), "", Seen::default()).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter), (false, counter));
        let version: String = console.run(&["HGET", &console.keys.meta(), "schema"]).await;
        assert_eq!(version, "2");
    }
}
