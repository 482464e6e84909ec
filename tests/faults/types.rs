//! Keys of a wrong type. Lua does not roll back, so a script finds such a key before its first
//! write. A wrong key of an object quarantines only that object. A wrong shared key stops all work
//! until an operator has moved it away, and the workers log its name.

use seriatim::sink::Stop;

use crate::support::answering::Answering;
use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, merged, sent_to};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{start, start_at};
use crate::support::{Redis, until};

async fn others_are_served(console: &Console, sink: &Recorder) {
    let before = sink.sent().len();
    for n in 0..10 {
        console.emit(&format!("good:{n}"), n.to_string()).await;
    }
    sink.until_sent(before + 10).await;
}

#[tokio::test]
async fn a_queue_of_a_wrong_type_quarantines_its_object() {
    let (redis, console) = Redis::start().with_console().await;
    console
        .add("SET bad:events 'not a list'; LPUSH objects.with.events bad")
        .await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let held = console.until_held("bad", "quarantine").await;
    assert_eq!(held, "0 0 0 0 quarantine: bad:events is a string");
    assert_eq!(console.due("bad").await, Some(f64::INFINITY));
    others_are_served(&console, &sink).await;

    // The operator repairs the queue of the object and releases the object.
    console.add("DEL bad:events").await;
    console.emit("bad", "1").await;
    console.release("bad").await;
    sink.until_sent(11).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("bad"), ["1"]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_queue_that_becomes_another_type_while_it_is_worked_on_quarantines_its_object() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = crate::support::recorder::Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.object == "bad" {
            Act::Wait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("bad", "1").await;
    gate.until_reached(1).await;
    console.add("SET bad:events 'not a list'").await;
    gate.open();
    console.until_held("bad", "quarantine").await;
    assert_eq!(
        console.number(&console.keys.last_event_id("bad")).await,
        1,
        "what was delivered is committed"
    );
    others_are_served(&console, &sink).await;
    worker.finish().await;
}

#[tokio::test]
async fn a_last_id_that_is_none_quarantines_its_object() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    console
        .add("LPUSH list:last.event.id 1; SET text:last.event.id abc")
        .await;
    for object in ["list", "text"] {
        console.emit(object, "1").await;
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let held = console.until_held("list", "quarantine").await;
    assert_eq!(held, "0 0 0 0 quarantine: list:last.event.id is a list");
    let held = console.until_held("text", "quarantine").await;
    assert_eq!(held, "0 0 0 0 quarantine: text:last.event.id is no id");
    others_are_served(&console, &sink).await;
    for object in ["list", "text"] {
        let _: u64 = console.run(&["DEL", &keys.last_event_id(object)]).await;
        console.release(object).await;
    }
    sink.until_sent(12).await;
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_held_batch_of_a_wrong_type_quarantines_its_object() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    for (n, object) in ["bad", "gone"].into_iter().enumerate() {
        let _: () = console
            .run(&["SET", &keys.event_worker(object), "held"])
            .await;
        let _: () = console
            .run(&[
                "SET",
                &keys.events_held_id(object),
                &format!("{} 1 2 0 retry: down", n + 1),
            ])
            .await;
        let _: u64 = console
            .run(&["ZADD", &keys.objects_held(), "1", object])
            .await;
    }
    console
        .add("SET bad:events.held 'not a list'; SET next.event.id 2")
        .await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let held = console.until_held("bad", "quarantine").await;
    assert_eq!(held, "1 1 2 0 quarantine: bad:events.held is a string");
    let held = console.until_held("gone", "quarantine").await;
    assert_eq!(held, "0 0 0 0 quarantine: gone:events.held is absent");
    others_are_served(&console, &sink).await;
    worker.finish().await;
}

/// An owner key of a wrong type counts as an absent owner. A key of a wrong type for the numbers of
/// a held batch counts as absent numbers.
#[tokio::test]
async fn an_owner_or_numbers_of_a_wrong_type_stop_nothing() {
    let (redis, console) = Redis::start().with_console().await;
    console.add("LPUSH owner:event.worker x").await;
    console.emit("owner", "1").await;
    console
        .add("LPUSH numbers:events.held.id x; SET numbers:event.worker held")
        .await;
    console
        .add("ZADD objects.held 1 numbers; LPUSH numbers:events 1")
        .await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(2).await;
    others_are_served(&console, &sink).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// If an event cannot be written to the dead letters, the event is held and not lost.
#[tokio::test]
async fn dead_letters_of_a_wrong_type_hold_the_event() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    console.add("SET events.dead 'not a stream'").await;
    let sink = Recorder::with(
        |offer| match (offer.object.as_str(), offer.text().as_str()) {
            ("bad", "2") => Act::Stop(Stop::rejected("never")),
            _ => Act::Send,
        },
    );
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit_all("bad", ["1", "2", "3"]).await;
    let held = console.until_held("bad", "quarantine: events.dead").await;
    assert!(
        held.starts_with("2 0 0 0 quarantine: events.dead: WRONGTYPE "),
        "{held}"
    );
    assert_eq!(console.list(&keys.events_held("bad")).await, ["2", "3"]);
    others_are_served(&console, &sink).await;
    console.add("DEL events.dead").await;
    console.release("bad").await;
    until("it is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(sink.applied_of("bad"), ["1", "3"]);
}

/// Waits until the worker has logged the name and type of the key, and the remedy.
async fn until_named(worker: &Process, key: &str, found: &str, expected: &str) {
    worker
        .until_logged(&format!(
            "the key {key} is a {found}, not a {expected}; move it away, and workers go on"
        ))
        .await;
}

/// Story: with the documented rights, a producer could stop every worker: `SET objects.held x`
/// ended each worker with an error. Now the workers log the name of the key and wait. They continue
/// when an operator has moved the key away.
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_is_waited_for() {
    for at in 0..5 {
        let (redis, console) = Redis::start().with_console().await;
        let keys = &console.keys;
        let (key, expected) = [
            (keys.objects_with_events(), "list"),
            (keys.objects_held(), "zset"),
            (keys.event_workers(), "hash"),
            (keys.worker_object("w.1"), "list"),
            (keys.worker_event("w.1"), "list"),
        ][at]
            .clone();
        let _: () = console.run(&["SET", &key, "wrong"]).await;
        console.add("LPUSH work:1:events 1").await;
        let mut worker = Process::start(&redis, "w", "null", &["--concurrency", "4"]);
        until_named(&worker, &key, "string", expected).await;
        assert_eq!(console.list(&keys.events("work:1")).await, ["1"]);
        let _: u64 = console.run(&["DEL", &key]).await;
        console.emit("work:1", "2").await;
        worker.until_logged("Redis answers again").await;
        console.until_at_rest_after(2).await;
        worker.terminate();
        assert!(worker.ended().await.success(), "{}", worker.log());
    }
}

/// A shared key gets a wrong type while the worker has work. After the repair, acknowledged events
/// are delivered once and in order.
#[tokio::test]
async fn a_shared_key_that_becomes_a_wrong_type_holds_work_up_until_it_is_repaired() {
    for at in 0..2 {
        let (redis, console) = Redis::start().with_console().await;
        let keys = &console.keys;
        let (key, expected) =
            [(keys.objects_held(), "zset"), (keys.event_rules(), "hash")][at].clone();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("events");
        let sink = format!("file:{}", file.display());
        let mut worker =
            Process::start(&redis, "w", &sink, &["--concurrency", "4", "--lease", "1s"]);
        console.emit("work:1", "1").await;
        console.until_at_rest_after(1).await;
        let _: () = console.run(&["SET", &key, "wrong"]).await;
        console.emit_all("work:1", ["2", "3"]).await;
        until_named(&worker, &key, "string", expected).await;
        let _: u64 = console.run(&["DEL", &key]).await;
        console.emit("work:1", "4").await;
        until("all are delivered", PATIENCE, async || {
            (sent_to(&file).len() == 4).then_some(())
        })
        .await;
        console.until_at_rest().await;
        worker.terminate();
        assert!(worker.ended().await.success(), "{}", worker.log());
        let events: Vec<_> = merged(&[file])
            .remove("work:1")
            .unwrap_or_default()
            .into_iter()
            .map(|sent| sent.event)
            .collect();
        assert_eq!(events, ["1", "2", "3", "4"]);
        console.check().await;
    }
}

/// A worker that waits for the repair of a key can be stopped. The stop does not wait for the
/// operator.
#[tokio::test]
async fn a_worker_that_waits_for_a_repair_can_be_stopped() {
    let (redis, console) = Redis::start().with_console().await;
    let key = console.keys.event_workers();
    let _: () = console.run(&["SET", &key, "wrong"]).await;
    let mut worker = Process::start(&redis, "w", "null", &[]);
    until_named(&worker, &key, "string", "hash").await;
    worker.terminate();
    assert!(worker.ended().await.success(), "{}", worker.log());
}

/// Story: the first script on a connection failed on a counter or `seriatim.meta` of a wrong type.
/// The worker treated this as an unreachable Redis, or ended with a bare WRONGTYPE.
#[tokio::test]
async fn a_counter_or_meta_of_a_wrong_type_is_named() {
    for at in 0..2 {
        let (redis, console) = Redis::start().with_console().await;
        let (key, expected) = match at {
            0 => (console.keys.next_event_id(), "string"),
            _ => (console.keys.meta(), "hash"),
        };
        let worker = Process::start(&redis, "w", "null", &[]);
        for event in ["1", "2"] {
            console.emit("work:1", event).await;
            console.until_at_rest().await;
        }
        let mut pipe = redis::pipe();
        pipe.atomic()
            .cmd("DEL")
            .arg(&key)
            .cmd("LPUSH")
            .arg(&key)
            .arg("wrong");
        let () = pipe
            .query_async(&mut redis.connect().await)
            .await
            .expect("set");
        // The second worker finds the wrong type at its start. The first worker finds it during its
        // work, if the key is the counter.
        let second = Process::start(&redis, "second", "null", &[]);
        until_named(&second, &key, "list", expected).await;
        if at == 0 {
            console.emit("work:1", "3").await;
            until_named(&worker, &key, "list", expected).await;
            assert_eq!(console.list(&console.keys.events("work:1")).await, ["3"]);
        }
    }
}

/// Story: a text in `next.event.id` that is no number ended every worker at once, so one wrong write
/// stopped all work until somebody started them again.
#[tokio::test]
async fn a_counter_that_becomes_no_number_is_waited_for() {
    let (redis, console) = Redis::start().with_console().await;
    let counter = console.keys.next_event_id();
    let mut worker = Process::start(&redis, "w", "null", &[]);
    console.emit("work:1", "1").await;
    console.until_at_rest_after(1).await;
    let given: String = console.run(&["GET", &counter]).await;
    let _: () = console.run(&["SET", &counter, "abc"]).await;
    console.emit("work:1", "2").await;
    let text = "next.event.id holds \\\"abc\\\", which is not a valid counter";
    worker.until_logged(text).await;
    let mut second = Process::start(&redis, "second", "null", &[]);
    second.until_logged(text).await;
    let _: () = console.run(&["SET", &counter, &given]).await;
    for worker in [&worker, &second] {
        worker.until_logged("Redis answers again").await;
    }
    console.until_at_rest_after(2).await;
    for worker in [&mut worker, &mut second] {
        worker.terminate();
        assert!(worker.ended().await.success(), "{}", worker.log());
    }
    console.check().await;
}

/// Story: the first script of a worker failed on `seriatim.meta`. Then an operator moved the key
/// away, so the worker found no key of a wrong type, and ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_moved_away_in_time_ends_no_worker() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let meta = console.keys.meta();
    let _: () = console.run(&["SET", &meta, "wrong"]).await;
    // The worker looks at the type of the key after the script has failed.
    let (looked, mut looks) = tokio::sync::mpsc::unbounded_channel();
    let proxy = Answering::before(&redis, move |words| {
        let is_look = words[0] == "TYPE" && looked.send(()).is_ok();
        is_look.then(|| "+none\r\n".to_owned())
    });
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |_| {});
    looks.recv().await.expect("a look");
    let _: u64 = console.run(&["DEL", &meta]).await;
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    worker.finish().await;
}

/// Story: under a Redis user with LMOVE but without RPOP, events moved into a batch that no process
/// knew. Under a user without LMOVE, healthy objects were quarantined as if a key had a wrong type.
#[tokio::test]
async fn a_user_without_a_right_that_the_scripts_need_is_refused_at_the_start() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    console.emit("work:1", "1").await;
    for command in ["lmove", "rpop", "zrange", "blmove"] {
        let _: String = console
            .run(&[
                "ACL",
                "SETUSER",
                "weak",
                "reset",
                "on",
                ">weak",
                "~*",
                "&*",
                "+@all",
                &format!("-{command}"),
            ])
            .await;
        let url = redis.url().replace("unix://", "redis+unix://") + "?user=weak&pass=weak";
        let sink = Recorder::new();
        let error = start_at(&url, &redis, "w", &sink, |_| {})
            .ended()
            .await
            .expect_err("it is refused")
            .to_string();
        assert!(
            error.contains(&format!("may not use {}", command.to_uppercase())),
            "{error}"
        );
        assert!(sink.sent().is_empty());
    }
    console.check().await;
}
