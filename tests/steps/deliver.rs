//! Deliver: the effect of the sink's results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim::sink::Stop;

use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{policy, retrying, start};
use crate::support::until;

#[tokio::test]
async fn a_transient_failure_comes_again_with_the_same_id_and_prev() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("2", 0..3) => Act::Stop(Stop::transient("connection refused")),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    let second: Vec<_> = sink
        .offered()
        .into_iter()
        .filter(|offer| offer.text() == "2")
        .collect();
    let tries: Vec<_> = second
        .iter()
        .map(|offer| (offer.id, offer.prev, offer.before))
        .collect();
    assert_eq!(tries, [(2, 1, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3)]);
    // The first delivery was in a batch behind another event. The later ones were alone, with the
    // earlier failures counted.
    let alone: Vec<_> = second[1..]
        .iter()
        .map(|offer| (offer.batch, offer.attempts, offer.crashes))
        .collect();
    assert_eq!(alone, [(1, 1, 0), (1, 2, 0), (1, 3, 0)]);
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev, offer.attempts))
        .collect();
    assert_eq!(sent[2], ("3".to_owned(), 3, 2, 0));
    console.until_at_rest().await;
}

#[tokio::test]
async fn while_an_object_waits_its_slot_serves_others() {
    let (redis, console) = Redis::start().with_console().await;
    let failing = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&failing);
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        "bad" if fails.load(Ordering::SeqCst) => Act::Stop(Stop::transient("connection refused")),
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.retry = policy("fixed:1h");
    });
    console.emit_all("bad", ["1", "2"]).await;
    let held = console.until_held("bad", "retry: connection refused").await;
    assert!(held.starts_with("1 0 1 0 "), "{held}");
    assert_eq!(console.owner("bad").await.as_deref(), Some("held"));
    for n in 0..20 {
        console.emit("bad", (n + 3).to_string()).await;
        console.emit(&format!("good:{n}"), "1").await;
    }
    sink.until_sent(20).await;
    assert_eq!(
        sink.offered().len(),
        21,
        "the failed event is not tried before its time"
    );
    failing.store(false, Ordering::SeqCst);
    console.release("bad").await;
    sink.until_sent(42).await;
    worker.finish().await;
    assert_eq!(
        sink.applied_of("bad"),
        (1..=22).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    console.until_at_rest().await;
}

#[tokio::test]
async fn the_wait_doubles_and_a_sink_may_name_its_own() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.object.as_str() {
        "named" => {
            let retry_after = Some(Duration::from_secs(5000));
            Act::Stop(Stop::Transient {
                error: "busy".to_owned(),
                retry_after,
            })
        }
        _ => Act::Stop(Stop::transient("down")),
    });
    let worker = start(&redis, "w", &sink, retrying("exponential:100s..1000s"));
    let wait_s = async |object: &str, tries: usize| {
        console.until_held(object, "").await;
        until("it was tried", PATIENCE, async || {
            let held = console.held_id(object).await?;
            (held.split(' ').nth(2) == Some(tries.to_string().as_str())).then_some(())
        })
        .await;
        let (now_s, _): (f64, f64) = console.run(&["TIME"]).await;
        console.due(object).await.expect("held") / 1000.0 - now_s
    };
    console.emit("work:1", "1").await;
    for (tries, most) in [
        (1, 100.0),
        (2, 200.0),
        (3, 400.0),
        (4, 800.0),
        (5, 1000.0),
        (6, 1000.0),
    ] {
        let wait = wait_s("work:1", tries).await;
        assert!(
            wait > most / 2.0 - 40.0 && wait < most + 2.0,
            "after {tries}: {wait} s"
        );
        console.release("work:1").await;
    }
    console.emit("named", "1").await;
    let wait = wait_s("named", 1).await;
    // The wait is spread: it is up to a quarter longer.
    assert!(wait > 4950.0 && wait < 6252.0, "{wait} s");
    worker.finish().await;
}

#[tokio::test]
async fn a_part_of_a_batch_is_delivered_and_the_rest_comes_again() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("3", 0) => Act::Stop(Stop::transient("down")),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2", "3", "4", "5"]).await;
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    let held = console.until_held("work:1", "retry").await;
    assert_eq!(held, "3 0 1 0 retry: down");
    assert_eq!(
        console.list(&console.keys.events_held("work:1")).await,
        ["3", "4", "5"]
    );
    assert_eq!(console.last_id("work:1").await, 2);
    console.release("work:1").await;
    sink.until_sent(5).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev))
        .collect();
    assert_eq!(sent, [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]);
    console.until_at_rest().await;
}

fn dead_letter(fields: [(&str, &str); 6]) -> Vec<(String, Vec<u8>)> {
    fields
        .into_iter()
        .map(|(field, value)| (field.to_owned(), value.as_bytes().to_vec()))
        .collect()
}

#[tokio::test]
async fn a_rejected_event_is_a_dead_letter_and_the_chain_goes_on() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.text().as_str() {
        text if text.contains("bad") => {
            Act::Stop(Stop::rejected(format!("no such thing as {text}")))
        }
        _ => Act::Send,
    });
    let events = [
        r#""bad 1""#,
        "1",
        r#"{ "a" : "bad 2" }"#,
        r#""bad 3""#,
        "2",
        "3",
        r#""bad 4""#,
    ];
    console.emit_all("work:1", events).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    console.until_at_rest().await;
    console.emit("work:1", "4").await;
    sink.until_sent(4).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.prev))
        .collect();
    let ids: Vec<_> = sink.sent().into_iter().map(|offer| offer.id).collect();
    // Each dead letter has an id, but no event has this id as its `prev`.
    let prevs = [0, ids[0], ids[1], ids[2]];
    assert_eq!(
        sent,
        ["1", "2", "3", "4"]
            .into_iter()
            .map(str::to_owned)
            .zip(prevs)
            .collect::<Vec<_>>()
    );
    let dead = console.dead().await;
    assert_eq!(dead.len(), 4);
    let error = r#"no such thing as { "a" : "bad 2" }"#;
    let second = dead_letter([
        ("id", "3"),
        ("prev", "2"),
        ("object", "work:1"),
        ("event", events[2]),
        ("error", error),
        ("attempts", "0"),
    ]);
    assert_eq!(dead[1], second);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_dead_letter_tells_how_often_the_event_had_failed() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.before {
        0 | 1 => Act::Stop(Stop::transient("down")),
        _ => Act::Stop(Stop::rejected("now I know")),
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    until("it is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    worker.finish().await;
    let expected = [
        ("id", "1"),
        ("prev", "0"),
        ("object", "work:1"),
        ("event", "1"),
        ("error", "now I know"),
        ("attempts", "2"),
    ];
    assert_eq!(console.dead().await, [dead_letter(expected)]);
    assert_eq!(
        console.text(&console.keys.last_event_id("work:1")).await,
        None
    );
    console.until_at_rest().await;
}

#[tokio::test]
async fn what_is_not_json_is_a_dead_letter_verbatim() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let events: [&[u8]; 7] = [
        b"1",
        b"{\"a\":",
        b"",
        b"\xff\xfe\x00",
        b"2",
        b"{} {}",
        b"NaN",
    ];
    console.emit_all("work:1", events).await;
    let worker = start(&redis, "w", &sink, |_| {});
    until("they are dead", PATIENCE, async || {
        (console.dead().await.len() == 5).then_some(())
    })
    .await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(sink.applied_of("work:1"), ["1", "2"]);
    for (fields, event) in console
        .dead()
        .await
        .iter()
        .zip([events[1], events[2], events[3], events[5], events[6]])
    {
        assert_eq!(fields[3], ("event".to_owned(), event.to_vec()));
        assert!(
            fields[4].1.starts_with(b"not JSON: "),
            "{:?}",
            String::from_utf8_lossy(&fields[4].1)
        );
    }
}

#[tokio::test]
async fn an_unavailable_sink_stops_the_claims_and_costs_no_attempt() {
    let (redis, console) = Redis::start().with_console().await;
    let up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&up);
    let sink = Recorder::with(move |_| match answers.load(Ordering::SeqCst) {
        true => Act::Send,
        false => Act::Stop(Stop::unavailable("down")),
    });
    for n in 0..12 {
        console.emit_all(&format!("work:{n}"), ["1", "2"]).await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    // Each of the four slots fails once. Then one slot at a time tries the sink again, each time with
    // another object.
    sink.until_offered(4 + 5).await;
    let claimed = console
        .left()
        .await
        .into_iter()
        .filter(|key| key.ends_with(":event.worker"))
        .count();
    assert!(
        (4..=4 + 5).contains(&claimed),
        "each try claims at most one object more: {claimed}"
    );
    let offered = sink.offered();
    assert!(
        offered
            .iter()
            .all(|offer| (offer.attempts, offer.crashes) == (0, 0))
    );
    let mut workers: Vec<_> = offered.iter().map(|offer| &offer.worker).collect();
    workers.sort();
    workers.dedup();
    assert_eq!(workers.len(), 4);

    up.store(true, Ordering::SeqCst);
    sink.until_sent(24).await;
    worker.finish().await;
    assert!(
        sink.sent()
            .iter()
            .all(|offer| (offer.attempts, offer.crashes) == (0, 0))
    );
    assert_eq!((sink.sent().len(), sink.applied().len()), (24, 12));
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_sink_that_becomes_unavailable_inside_a_batch_keeps_what_it_delivered() {
    let (redis, console) = Redis::start().with_console().await;
    let up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&up);
    let sink = Recorder::with(move |offer| match offer.text().as_str() {
        "1" => Act::Send,
        _ if answers.load(Ordering::SeqCst) => Act::Send,
        _ => Act::Stop(Stop::unavailable("disk full")),
    });
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_offered(5).await;
    assert_eq!(console.last_id("work:1").await, 1);
    up.store(true, Ordering::SeqCst);
    sink.until_sent(3).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev, offer.attempts))
        .collect();
    assert_eq!(sent, [(1, 0, 0), (2, 1, 0), (3, 2, 0)]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_panic_of_the_sink_is_a_transient_failure() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.object.as_str(), offer.before) {
        ("bad", 0) if offer.text() == "1" => Act::Panic,
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    console.emit_all("bad", ["1", "2"]).await;
    assert_eq!(
        console.until_held("bad", "retry").await,
        "1 0 1 0 retry: the sink panicked: boom"
    );
    console.emit("good", "1").await;
    sink.until_sent(1).await;
    console.release("bad").await;
    sink.until_sent(3).await;
    worker.finish().await;
    assert_eq!(sink.applied_of("bad"), ["1", "2"]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn the_sink_is_told_worker_and_token_and_when_it_sends_in_vain() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    console.emit("work:1", "1").await;
    gate.until_reached(1).await;
    let offer = sink.offered().remove(0);
    assert_eq!(offer.worker, "w.0");
    let lease = console
        .text(&console.keys.worker_lease("w"))
        .await
        .expect("a lease");
    assert!(lease.starts_with(&format!("{} ", offer.token)), "{lease}");
    gate.open();
    worker.finish().await;
}

/// The error of a failed attempt is stored with the object, but shortened, so that a sink cannot
/// fill Redis.
#[tokio::test]
async fn a_long_error_is_shortened() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|_| Act::Stop(Stop::rejected("x".repeat(100_000))));
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    until("it is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    worker.finish().await;
    assert_eq!(console.dead().await[0][4].1.len(), 1000);
}
