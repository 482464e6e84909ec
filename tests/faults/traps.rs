//! Pitfalls of the design, one test each. Pitfalls about memory and lost writes have their own
//! files.

use std::time::{Duration, Instant};

use seriatim::worker::WorkerError;

use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{start, start_at};
use crate::support::{Redis, until};

/// The replies of a pop and of the call behind it are lost. The slot then has a batch, and the
/// process does not know it. The next call returns the batch. Calls name all free slots every 5 s
/// anyway, so without this the test would take 25 s.
#[tokio::test]
async fn a_lost_reply_of_a_pop_leaves_no_object_behind() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.block = Duration::from_secs(1);
        config.sweep = Duration::from_secs(60);
    });
    let began = Instant::now();
    for n in 1..=5 {
        console.until_idle(1).await;
        // The pop under way has already passed the proxy. The proxy loses the reply of the next
        // pop.
        proxy.lose_next(&["BLMOVE"], Lose::Reply, false);
        console.emit("work:1", n.to_string()).await;
        sink.until_sent(2 * n - 1).await;
        console.until_idle(1).await;
        console.emit("work:2", n.to_string()).await;
        sink.until_sent(2 * n).await;
        proxy.until_lost(n).await;
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    worker.finish().await;
    assert_eq!(
        (
            sink.applied_of("work:1").len(),
            sink.applied_of("work:2").len()
        ),
        (5, 5)
    );
    console.until_at_rest().await;
}

/// After lost replies a slot's list may hold several names. A worker removes each name by value,
/// and no two slots serve the same name.
#[tokio::test]
async fn two_names_in_the_list_of_one_slot() {
    let (redis, console) = Redis::start().with_console().await;
    let first = start(&redis, "w", &Recorder::new(), |config| {
        config.concurrency = 1
    });
    console.until_lease("w").await;
    first.finish().await;
    // The list as several pops may leave it: three names, one of them twice, and an empty one.
    let keys = &console.keys;
    for object in ["work:1", "work:2", "", "work:2", "work:3"] {
        if !object.is_empty() {
            let _: u64 = console.run(&["LPUSH", &keys.events(object), "1"]).await;
        }
        let _: u64 = console
            .run(&["LPUSH", &keys.worker_object("w.0"), object])
            .await;
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    sink.until_sent(4).await;
    worker.finish().await;
    assert_eq!(sink.applied_of("work:2"), ["1", "1"]);
    assert_eq!(sink.overlaps(), Vec::<String>::new());
    console.until_at_rest().await;
}

/// A pop may end after its slot was given another object. The popped name must not wait until the
/// slot is free.
#[tokio::test]
async fn a_name_that_arrives_at_a_busy_slot_goes_back_to_the_markers() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.object == "slow" {
            Act::Wait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 2;
        config.lease = Duration::from_secs(3);
    });
    console.emit("slow", "1").await;
    gate.until_reached(1).await;
    let slot = sink.offered()[0].worker.clone();
    for object in ["work:1", "work:2"] {
        let _: u64 = console
            .run(&["LPUSH", &console.keys.events(object), "1"])
            .await;
        let _: u64 = console
            .run(&["LPUSH", &console.keys.worker_object(&slot), object])
            .await;
    }
    // The next renewal returns the names to the markers, and the other slot takes them.
    sink.until_sent(2).await;
    assert_eq!(
        console.list(&console.keys.worker_object(&slot)).await,
        ["slow"]
    );
    gate.open();
    worker.finish().await;
    console.until_at_rest().await;
}

/// The process of a pop has died or departed. Redis still executes its pop, which moves a marker,
/// until the block time ends.
#[tokio::test]
async fn a_ghost_pop_of_a_departed_process_is_found() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    for departed in ["left", "died"] {
        let worker = start(&redis, departed, &Recorder::new(), |_| {});
        console.until_lease(departed).await;
        if departed == "left" {
            worker.finish().await;
        } else {
            worker.crash().await;
            console.end_lease(departed).await;
        }
    }
    // The pops of both processes have ended. From now on only the pops below wait.
    console.until_idle(0).await;
    for departed in ["left", "died"] {
        let mut ghost = redis.connect().await;
        let keys = console.keys.clone();
        let pop = tokio::spawn(async move {
            let mut pop = redis::cmd("BLMOVE");
            pop.arg(keys.objects_with_events())
                .arg(keys.worker_object(&format!("{departed}.2")))
                .arg("RIGHT")
                .arg("LEFT")
                .arg(0);
            pop.query_async::<String>(&mut ghost).await
        });
        console.until_idle(1).await;
        console.emit(departed, "1").await;
        assert_eq!(pop.await.expect("no panic").expect("a marker"), departed);
        assert_eq!(
            console.list(&console.keys.objects_with_events()).await,
            Vec::<String>::new()
        );
    }
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(2).await;
    assert!(
        sink.sent().iter().all(|offer| offer.crashes == 0),
        "there was no batch in flight"
    );
    worker.finish().await;
    console.until_at_rest().await;
}

/// A worker name stays registered after its process has ended. A sweep removes the name a day after
/// its last takeover.
#[tokio::test]
async fn a_departed_name_is_forgotten_after_a_day() {
    let (redis, console) = Redis::start().with_console().await;
    let (now_s, _): (u64, u64) = console.run(&["TIME"]).await;
    let hours_ago = |hours: u64| format!("4 token {}", (now_s - hours * 3600) * 1000);
    for (name, hours) in [("lately", 23), ("long-ago", 25), ("has-something", 25)] {
        let _: u64 = console
            .run(&[
                "HSET",
                &console.keys.event_workers(),
                name,
                &hours_ago(hours),
            ])
            .await;
    }
    console
        .add("LPUSH event.worker:has-something.3:object work:1")
        .await;
    console.add("LPUSH work:1:events 1").await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    until("it is forgotten", PATIENCE, async || {
        let names: Vec<String> = console.run(&["HKEYS", &console.keys.event_workers()]).await;
        (!names.contains(&"long-ago".to_owned())).then_some(())
    })
    .await;
    let names: Vec<String> = console.run(&["HKEYS", &console.keys.event_workers()]).await;
    assert!(
        names.contains(&"lately".to_owned()) && names.contains(&"has-something".to_owned()),
        "{names:?}"
    );
    worker.finish().await;
}

/// Lua prints numbers from 1e14 as 1e+14, and numbers above 2^53 are not exact.
#[tokio::test]
async fn ids_above_1e14_are_exact() {
    let (redis, console) = Redis::start().with_console().await;
    console.add("SET next.event.id 100000000000000").await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("2", 0) => Act::Stop(seriatim::sink::Stop::transient("down")),
        ("3", _) => Act::Stop(seriatim::sink::Stop::rejected("never")),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2", "3", "4"]).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    const E: u64 = 100_000_000_000_000;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev))
        .collect();
    assert_eq!(sent, [(E + 1, 0), (E + 2, E + 1), (E + 4, E + 2)]);
    assert_eq!(
        console.text(&console.keys.next_event_id()).await.as_deref(),
        Some("100000000000004")
    );
    assert_eq!(
        console
            .text(&console.keys.last_event_id("work:1"))
            .await
            .as_deref(),
        Some("100000000000004")
    );
    assert_eq!(console.dead().await[0][0].1, b"100000000000003");
    console.until_at_rest().await;
}

/// A worker takes nothing while the counter is no number, and goes on when an operator has corrected
/// it.
#[tokio::test]
async fn a_counter_that_is_no_number_is_waited_for() {
    for value in ["1e99", "1.5", "-1", "nan", "0x10", "abc"] {
        let (redis, console) = Redis::start().with_console().await;
        let counter = console.keys.next_event_id();
        let _: () = console.run(&["SET", &counter, value]).await;
        console.emit("work:1", "1").await;
        let worker = Process::start(&redis, "w", "null", &[]);
        let text = format!("next.event.id holds \\\"{value}\\\", which is not a valid counter");
        worker.until_logged(&text).await;
        let queue = console.keys.events("work:1");
        assert_eq!(console.list(&queue).await, ["1"], "nothing was taken");
        let _: () = console.run(&["SET", &counter, "5"]).await;
        console.until_at_rest_after(6).await;
    }
}

/// A worker ends if the counter is at its end, because it would raise a corrected counter again.
#[tokio::test]
async fn a_counter_at_its_end_stops_the_worker() {
    for value in ["9007199254740990", "9007199254740993"] {
        let (redis, console) = Redis::start().with_console().await;
        let counter = console.keys.next_event_id();
        let _: () = console.run(&["SET", &counter, value]).await;
        console.emit("work:1", "1").await;
        let sink = Recorder::new();
        let worker = start(&redis, "w", &sink, |_| {});
        let error = worker.ended().await.expect_err("no usable counter");
        let text = format!("next.event.id holds \"{value}\"");
        assert!(error.to_string().contains(&text), "{error}");
        assert_eq!(sink.offered(), []);
        let queue = console.keys.events("work:1");
        assert_eq!(console.list(&queue).await, ["1"], "nothing was taken");
    }
}

/// Payloads are never decoded or encoded: the sink and a dead letter get the pushed bytes.
#[tokio::test]
async fn payloads_are_bytes() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let events = [
        r#"9007199254740993"#,
        r#"{"a":1,"a":2}"#,
        r#"{ "big" : 123456789012345678901234567890.10 , "e":1E400 }"#,
        r#""\u0041\ud83d\ude00 / \/""#,
        "\"\u{1F600}\u{7f}\u{2028}\"",
        "\n [ ] \r\n",
        "-0.0",
        "{}",
    ];
    console.emit_all("work:1", events).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(events.len()).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), events);
    console.until_at_rest().await;
}

/// Redis may forget its scripts at any time. The process then sends the text of a forgotten script
/// again.
#[tokio::test]
async fn scripts_are_loaded_again_after_a_flush() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let other = start(&redis, "other", &sink, |_| {});
    for n in 0..300 {
        console
            .emit(&format!("work:{}", n % 5), n.to_string())
            .await;
        if n % 10 == 0 {
            let _: () = console.run(&["SCRIPT", "FLUSH"]).await;
        }
    }
    sink.until_sent(300).await;
    worker.finish().await;
    other.finish().await;
    assert_eq!((sink.sent().len(), sink.applied().len()), (300, 5));
    console.until_at_rest().await;
}

/// A pop may wait for a marker for longer than the response timeout of other commands.
#[tokio::test]
async fn a_pop_may_last_longer_than_the_response_timeout() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.response_timeout = Duration::from_millis(250);
        config.block = Duration::from_secs(1);
        config.sweep = Duration::from_secs(60);
    });
    console.until_idle(1).await;
    let pops = async |console: &Console| -> u64 {
        let stats: String = console.run(&["INFO", "commandstats"]).await;
        let line = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_blmove:"))
            .unwrap_or("cmdstat_blmove:calls=0,");
        line.split(['=', ','])
            .nth(1)
            .expect("calls=N")
            .parse()
            .expect("a number")
    };
    let before = pops(&console).await;
    let clients: String = console.run(&["CLIENT", "LIST"]).await;
    let waiting = |clients: &str| -> Option<String> {
        let line = clients.lines().find(|line| line.contains(" cmd=blmove "))?;
        line.split(' ').next().map(str::to_owned)
    };
    let client = waiting(&clients).expect("it waits");
    until("two pops found nothing", PATIENCE, async || {
        (pops(&console).await >= before + 2).then_some(())
    })
    .await;
    console.until_idle(1).await;
    let clients: String = console.run(&["CLIENT", "LIST"]).await;
    assert_eq!(waiting(&clients), Some(client), "on the same connection");
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    worker.finish().await;
}

/// The data in Redis has another protocol version. The worker reports this once and ends, and no
/// key is changed.
#[tokio::test]
async fn data_of_another_version_is_refused() {
    let redis = Redis::start().empty();
    let console = redis.console().await;
    console.add("HSET seriatim.meta schema 3").await;
    let error = start(&redis, "w", &Recorder::new(), |_| {})
        .ended()
        .await
        .expect_err("another version");
    assert!(matches!(error, WorkerError::Refused(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the data is of protocol version 3, this program knows version 1; run a version that knows it"
    );
    assert_eq!(console.left().await, ["seriatim.meta"]);
}

/// Story: a pop for slot 0 ended after *advance* had given the slot another object. The popped name
/// waited for the next renewal, a third of a lease, although another slot of the same process was
/// free.
#[tokio::test]
async fn a_name_that_came_late_to_a_busy_slot_goes_to_a_free_one_at_once() {
    use seriatim::wire::{
        Advance, Advanced, Attach, Bounds, ClaimFirst, Suspects, advance, attach,
    };
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    let mut conn = redis.connect().await;
    let name = Attach {
        name: "w",
        token: "t",
        holder: "h 1 1",
        lease: Duration::from_secs(60),
        slots: 2,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    attach(&mut conn, keys, &name).await.expect("attached");
    let bounds = Bounds {
        batch: 10,
        batch_bytes: 1000,
        reply_bytes: 10_000,
        claims: 2,
        markers: 10,
        forget_after: None,
        group_depth: 0,
        suspects: Suspects::NONE,
    };
    let mut gave = Vec::new();
    for (object, busy) in [("work:1", false), ("work:2", true)] {
        console.emit(object, "1").await;
        let mut call = Advance::new(keys, "w", "t", bounds, ClaimFirst::Markers);
        if busy {
            let (markers, taken) = (keys.objects_with_events(), keys.worker_object("w.0"));
            let _: String = console
                .run(&["LMOVE", &markers, &taken, "RIGHT", "LEFT"])
                .await;
            call.look(0);
            call.free(1);
        } else {
            call.free(0);
        }
        match advance(&mut conn, &call).await.expect("advanced") {
            Advanced::Ok { batches, .. } => {
                gave.extend(batches.into_iter().map(|batch| (batch.slot, batch.object)))
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(gave, [(0, "work:1".into()), (1, "work:2".into())]);
    console.check().await;
}
