//! Limits of shares: objects in hand, and events per second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::Emitter;
use seriatim::control::By;
use seriatim::control::shares::Share;
use seriatim::emit::Cancelled;
use seriatim::event::Json;
use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{Running, policy, start};
use crate::support::{Redis, control, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The time in which a worker would claim an object that it may claim.
const SOON: Duration = Duration::from_millis(1500);

async fn set(redis: &Redis, selector: &str, share: Share) {
    let conn = redis.connect().await;
    control(&conn, redis.keys())
        .set_share(BY, &selector.parse().expect("a selector"), share)
        .await
        .expect("set");
}

async fn remove(redis: &Redis, selector: &str) {
    let conn = redis.connect().await;
    control(&conn, redis.keys())
        .remove_share(BY, &selector.parse().expect("a selector"))
        .await
        .expect("removed");
}

fn in_flight(objects: u64) -> Share {
    Share::new().in_flight(objects)
}

/// Removes all shares, and waits until nothing is left.
async fn end(redis: &Redis, console: &Console, selectors: &[&str]) {
    for selector in selectors {
        remove(redis, selector).await;
    }
    console.add("DEL objects.with.events").await;
    console.until_at_rest().await;
}

/// Emits one event for each object.
async fn emit(console: &Console, objects: &[&str]) {
    for object in objects {
        console.emit(object, "1").await;
    }
}

/// A sink whose deliveries wait at a gate for each object.
#[derive(Clone)]
struct Gates {
    gates: Arc<Mutex<HashMap<String, Gate>>>,
    sink: Recorder,
}

impl Gates {
    fn new() -> Self {
        let gates: Arc<Mutex<HashMap<String, Gate>>> = Arc::default();
        let of_rule = Arc::clone(&gates);
        let sink = Recorder::with(move |offer| Act::Wait(gate(&of_rule, &offer.object)));
        Self { gates, sink }
    }

    fn open(&self, objects: &[&str]) {
        objects
            .iter()
            .for_each(|object| gate(&self.gates, object).open());
    }

    /// Waits until these objects are at their gates, and then asserts that no others come.
    async fn until_only(&self, objects: &[&str]) {
        let mut expected: Vec<String> = objects.iter().map(|object| (*object).to_owned()).collect();
        expected.sort();
        until(&format!("{expected:?} are in hand"), PATIENCE, async || {
            (self.seen() == expected).then_some(())
        })
        .await;
        tokio::time::sleep(SOON).await;
        assert_eq!(self.seen(), expected);
    }

    /// Returns the objects that have reached their gates, open or not.
    fn seen(&self) -> Vec<String> {
        let mut seen: Vec<String> = self
            .gates
            .lock()
            .expect("no panic")
            .keys()
            .cloned()
            .collect();
        seen.sort();
        seen
    }
}

fn gate(gates: &Mutex<HashMap<String, Gate>>, object: &str) -> Gate {
    gates
        .lock()
        .expect("no panic")
        .entry(object.to_owned())
        .or_insert_with(Gate::closed)
        .clone()
}

fn worker(redis: &Redis, name: &str, sink: &Recorder) -> Running {
    start(redis, name, sink, |config| config.concurrency = 8)
}

async fn in_hand(console: &Console) -> Vec<String> {
    console
        .run(&["ZRANGE", &console.keys.objects_in_hand(), "0", "-1"])
        .await
}

/// Tests that an object behind a limit is claimed when another object leaves its slot, and not before.
#[tokio::test]
async fn an_object_goes_when_another_one_is_done() {
    let (redis, console) = Redis::start().with_console().await;
    set(&redis, "a:*", in_flight(2)).await;
    emit(&console, &["a:1", "a:2", "a:3", "a:4", "b:1"]).await;
    let gates = Gates::new();
    let workers = [
        worker(&redis, "v", &gates.sink),
        worker(&redis, "w", &gates.sink),
    ];
    gates.until_only(&["a:1", "a:2", "b:1"]).await;
    assert_eq!(in_hand(&console).await, ["a:1:", "a:2:", "b:1:"]);
    console.check().await;
    gates.open(&["a:2"]);
    gates.until_only(&["a:1", "a:2", "a:3", "b:1"]).await;
    gates.open(&["a:1", "a:3", "a:4", "b:1"]);
    gates.sink.until_sent(5).await;
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!(in_hand(&console).await, [""; 0]);
    end(&redis, &console, &["a:*"]).await;
}

/// Tests that an object is claimed only if all shares that match it allow it. The object with the name
/// of a prefix is one of its objects.
#[tokio::test]
async fn all_limits_of_an_object_count() {
    let (redis, console) = Redis::start().with_console().await;
    set(&redis, "*", in_flight(4)).await;
    set(&redis, "a:*", in_flight(2)).await;
    set(&redis, "a:x:*", in_flight(1)).await;
    emit(&console, &["a:x:1", "a:x:2", "a", "a:1", "ab", "c", "d"]).await;
    let gates = Gates::new();
    let worker = worker(&redis, "w", &gates.sink);
    until("four objects are in hand", PATIENCE, async || {
        (gates.seen().len() == 4).then_some(())
    })
    .await;
    tokio::time::sleep(SOON).await;
    let seen = gates.seen();
    let of = |prefix: &str| {
        seen.iter()
            .filter(|name| *name == prefix || name.starts_with(&format!("{prefix}:")))
            .count()
    };
    assert!(
        seen.len() == 4 && of("a") <= 2 && of("a:x") <= 1,
        "{seen:?}"
    );
    console.check().await;
    gates.open(&["a:x:1", "a:x:2", "a", "a:1", "ab", "c", "d"]);
    gates.sink.until_sent(7).await;
    worker.finish().await;
    end(&redis, &console, &["*", "a:*", "a:x:*"]).await;
}

/// Tests that a new limit counts the objects that slots had before. So nothing is claimed until enough
/// of them are done.
#[tokio::test]
async fn objects_that_were_in_hand_before_count() {
    let (redis, console) = Redis::start().with_console().await;
    emit(&console, &["a:1", "a:2", "a:3", "b:1"]).await;
    let gates = Gates::new();
    let worker = worker(&redis, "w", &gates.sink);
    gates.until_only(&["a:1", "a:2", "a:3", "b:1"]).await;
    // A member that no slot owns is removed.
    console.add("ZADD objects.in.hand 0 a:9:").await;
    set(&redis, "a:*", in_flight(2)).await;
    assert_eq!(in_hand(&console).await, ["a:1:", "a:2:", "a:3:", "b:1:"]);
    console.check().await;
    emit(&console, &["a:4"]).await;
    gates.open(&["a:1"]);
    gates.until_only(&["a:1", "a:2", "a:3", "b:1"]).await;
    gates.open(&["a:2"]);
    gates.until_only(&["a:1", "a:2", "a:3", "a:4", "b:1"]).await;
    gates.open(&["a:3", "a:4", "b:1"]);
    gates.sink.until_sent(5).await;
    worker.finish().await;
    end(&redis, &console, &["a:*"]).await;
}

/// Tests that a held object that is due waits for its limit, and keeps its batch and its order.
#[tokio::test]
async fn a_held_batch_waits_for_its_limit() {
    let (redis, console) = Redis::start().with_console().await;
    set(&redis, "a:*", in_flight(1)).await;
    console.emit_all("a:1", ["1", "2", "3"]).await;
    let gate = Gate::closed();
    let (of_rule, failed) = (gate.clone(), Mutex::new(false));
    let sink = Recorder::with(move |offer| match (&offer.object[..], &offer.text()[..]) {
        ("a:2", _) => Act::Wait(of_rule.clone()),
        ("a:1", "1") if !std::mem::replace(&mut *failed.lock().expect("no panic"), true) => {
            Act::Stop(Stop::transient("no"))
        }
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 4;
        config.retry = policy("fixed:1h");
    });
    console.until_held("a:1", "retry: ").await;
    emit(&console, &["a:2"]).await;
    gate.until_reached(1).await;
    console.release("a:1").await;
    tokio::time::sleep(SOON).await;
    assert!(sink.sent().is_empty(), "{:?}", sink.sent());
    console.check().await;
    gate.open();
    sink.until_sent(4).await;
    let of_1: Vec<_> = sink
        .sent()
        .into_iter()
        .filter(|offer| offer.object == "a:1")
        .map(|offer| offer.text())
        .collect();
    assert_eq!(of_1, ["1", "2", "3"]);
    worker.finish().await;
    end(&redis, &console, &["a:*"]).await;
}

/// Tests that all objects of a limit are claimed when it is removed.
#[tokio::test]
async fn a_removed_limit_lets_its_objects_go() {
    let (redis, console) = Redis::start().with_console().await;
    for (selector, share) in [
        ("a:*", in_flight(1)),
        ("*", in_flight(2)),
        ("a:*", Share::new().rate(0.001)),
    ] {
        set(&redis, selector, share).await;
        let gates = Gates::new();
        emit(&console, &["a:1", "a:2", "a:3"]).await;
        let worker = worker(&redis, "w", &gates.sink);
        until("an object is in hand", PATIENCE, async || {
            (!gates.seen().is_empty()).then_some(())
        })
        .await;
        tokio::time::sleep(SOON).await;
        assert!(gates.seen().len() < 3, "{:?}", gates.seen());
        remove(&redis, selector).await;
        gates.until_only(&["a:1", "a:2", "a:3"]).await;
        gates.open(&["a:1", "a:2", "a:3"]);
        gates.sink.until_sent(3).await;
        worker.finish().await;
        let keys = &console.keys;
        let left = [
            "EXISTS",
            &keys.event_shares_summary(),
            &keys.event_shares_used(),
            &keys.objects_in_hand(),
            &keys.event_groups_blocked(),
        ];
        assert_eq!(console.run::<u64>(&left).await, 0);
        end(&redis, &console, &[]).await;
    }
}

/// Tests that names that were grouped for another group keep a limit that comes later.
#[tokio::test]
async fn names_of_an_old_group_keep_a_new_limit() {
    let (redis, console) = Redis::start().with_console().await;
    let objects: Vec<String> = (0..30)
        .map(|n| format!("a:{}:{n}", if n % 2 == 0 { "x" } else { "y" }))
        .collect();
    emit(
        &console,
        &objects.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let gates = Gates::new();
    let worker = start(&redis, "w", &gates.sink, |config| {
        config.concurrency = 1;
        config.group_depth = 1;
    });
    until("the names are grouped", PATIENCE, async || {
        (console.number(&console.keys.event_groups_waiting()).await == 29).then_some(())
    })
    .await;
    set(&redis, "a:x:*", in_flight(1)).await;
    let more = start(&redis, "v", &gates.sink, |config| config.concurrency = 20);
    until("all of y are in hand", PATIENCE, async || {
        (gates
            .seen()
            .iter()
            .filter(|name| name.starts_with("a:y:"))
            .count()
            == 15)
            .then_some(())
    })
    .await;
    tokio::time::sleep(SOON).await;
    assert_eq!(
        gates
            .seen()
            .iter()
            .filter(|name| name.starts_with("a:x:"))
            .count(),
        1
    );
    console.check().await;
    gates.open(&objects.iter().map(String::as_str).collect::<Vec<_>>());
    gates.sink.until_sent(30).await;
    worker.finish().await;
    more.finish().await;
    end(&redis, &console, &["a:x:*"]).await;
}

/// Story: the groups that waited for the limit of a shorter prefix all came back with the same pass, so
/// the first one by name got all claims. A group that came new began below the groups that waited, and
/// got all claims for as many objects as these had had.
#[tokio::test]
async fn groups_behind_a_common_limit_take_turns() {
    let (redis, console) = Redis::start().with_console().await;
    for selector in ["p:a:*", "p:z:*", "c:*"] {
        set(&redis, selector, Share::new().weight(1)).await;
    }
    set(&redis, "p:*", in_flight(1)).await;
    for n in 0..100 {
        emit(
            &console,
            &[&format!("p:a:{n}"), &format!("p:z:{n}"), &format!("c:{n}")],
        )
        .await;
    }
    let sink = Recorder::new();
    let running = start(&redis, "w", &sink, |config| config.concurrency = 2);
    sink.until_sent(150).await;
    // A new group.
    set(&redis, "h:*", Share::new().weight(1)).await;
    for n in 0..100 {
        emit(&console, &[&format!("h:{n}")]).await;
    }
    sink.until_sent(400).await;
    running.finish().await;
    let sent: Vec<String> = sink.sent().into_iter().map(|offer| offer.object).collect();
    let count = |prefix: &str, most: usize| {
        sent[..most]
            .iter()
            .filter(|name| name.starts_with(prefix))
            .count()
    };
    println!(
        "of 60: p:a {}, p:z {}, c {}",
        count("p:a:", 60),
        count("p:z:", 60),
        count("c:", 60)
    );
    assert!(
        count("p:a:", 60) >= 5 && count("p:z:", 60) >= 5 && count("c:", 60) >= 5,
        "{:?}",
        &sent[..60]
    );
    let began = sent
        .iter()
        .position(|name| name.starts_with("h:"))
        .expect("h was sent");
    let others = sent[began..began + 40]
        .iter()
        .filter(|name| !name.starts_with("h:"))
        .count();
    assert!(others >= 10, "{:?}", &sent[began..began + 40]);
    end(&redis, &console, &["p:a:*", "p:z:*", "c:*", "p:*", "h:*"]).await;
}

/// A batch has no more events than the rate allows, and a rate counts all events of a batch.
#[tokio::test]
async fn a_rate_counts_each_event_of_a_batch() {
    let (redis, console) = Redis::start().with_console().await;
    set(&redis, "r:*", Share::new().rate(0.001).burst(7)).await;
    console
        .emit_all("r:1", (0..20).map(|event| event.to_string()))
        .await;
    let sink = Recorder::new();
    let running = start(&redis, "w", &sink, |config| {
        config.concurrency = 2;
        config.batch = 3;
    });
    sink.until_sent(7).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(
        sink.sent()
            .iter()
            .map(|offer| offer.batch)
            .collect::<Vec<_>>(),
        [3, 3, 3, 3, 3, 3, 1]
    );
    remove(&redis, "r:*").await;
    sink.until_sent(20).await;
    running.finish().await;
    console.add("DEL objects.with.events").await;
    console.until_at_rest().await;
}

/// Story: after a slow rate was replaced by a fast one, the share waited for the time of the slow one.
/// A time far ahead, from a clock that has stepped back, stopped a share until then.
#[tokio::test]
async fn a_time_far_ahead_stops_no_share() {
    let (redis, console) = Redis::start().with_console().await;
    set(&redis, "r:*", Share::new().rate(0.01)).await;
    emit(&console, &["r:1", "r:2", "r:3"]).await;
    let sink = Recorder::new();
    let running = worker(&redis, "w", &sink);
    sink.until_sent(1).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(sink.sent().len(), 1);
    set(&redis, "r:*", Share::new().rate(1000.0)).await;
    sink.until_sent(3).await;
    let ahead = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_micros()
        + 3_600_000_000;
    let used = format!("3 {ahead} 1 1 1");
    let _: () = console
        .run(&["HSET", &console.keys.event_shares_used(), "r:*", &used])
        .await;
    emit(&console, &["r:4"]).await;
    sink.until_sent(4).await;
    running.finish().await;
    end(&redis, &console, &["r:*"]).await;
}

/// Tests that names come to be claimed although the list of their group has a wrong type, and that a
/// deleted event.groups.blocked stops no group.
#[tokio::test]
async fn broken_keys_stop_no_group() {
    let (redis, console) = Redis::start().with_console().await;
    let list = format!("{}event.group:a:waiting", console.keys.prefix());
    let _: () = console.run(&["SET", &list, "x"]).await;
    set(&redis, "a:*", in_flight(1)).await;
    let gates = Gates::new();
    let running = worker(&redis, "w", &gates.sink);
    emit(&console, &["a:1", "a:2", "a:3"]).await;
    gates.until_only(&["a:1"]).await;
    let _: () = console.run(&["DEL", &list]).await;
    emit(&console, &["a:4"]).await;
    tokio::time::sleep(SOON).await;
    console.add("DEL event.groups.blocked").await;
    gates.open(&["a:1", "a:2", "a:3", "a:4"]);
    gates.sink.until_sent(4).await;
    running.finish().await;
    end(&redis, &console, &["a:*"]).await;
}

/// Tests that an event with a key can be cancelled while its object waits for a limit: one that is
/// queued, and one that waited for a retry.
#[tokio::test]
async fn an_event_can_be_cancelled_while_its_object_waits() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys());
    set(&redis, "a:*", in_flight(1)).await;
    let (gate, failed) = (Gate::closed(), Gate::closed());
    let sink = Recorder::with({
        let (gate, failed) = (gate.clone(), failed.clone());
        move |offer| match offer.object.as_str() {
            "a:1" => Act::Wait(gate.clone()),
            "a:retry" => {
                failed.open();
                Act::Stop(Stop::transient("down"))
            }
            _ => Act::Send,
        }
    });
    let running = worker(&redis, "w", &sink);
    let emitter = Emitter::new(redis.connect().await).with_keys(keys.clone());
    let schedule = async |object: &str| {
        emitter
            .schedule(object, Json::new("1"))
            .key("renew")
            .send()
            .await
            .expect("scheduled");
    };
    schedule("a:retry").await;
    failed.pass().await;
    emit(&console, &["a:1"]).await;
    gate.until_reached(1).await;
    schedule("a:queued").await;
    emit(&console, &["a:2"]).await;
    until("three names are grouped", PATIENCE, async || {
        (console.number(&keys.event_groups_waiting()).await == 3).then_some(())
    })
    .await;
    for object in ["a:retry", "a:queued"] {
        assert_eq!(
            emitter.cancel(object, "renew").await.expect("cancelled"),
            Cancelled::Cancelled,
            "{object}"
        );
    }
    let offered = sink
        .offered()
        .iter()
        .filter(|offer| offer.object == "a:retry")
        .count();
    console.check().await;
    gate.open();
    sink.until_sent(2).await;
    end(&redis, &console, &["a:*"]).await;
    running.finish().await;
    let sent: Vec<_> = sink.sent().into_iter().map(|offer| offer.object).collect();
    assert_eq!(sent, ["a:1", "a:2"]);
    assert_eq!(
        sink.offered()
            .iter()
            .filter(|offer| offer.object == "a:retry")
            .count(),
        offered,
        "no further try"
    );
}
