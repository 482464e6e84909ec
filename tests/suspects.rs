//! Events that may have killed their worker: few of them are in hand at a time, so that a death puts nothing else aside.
#![cfg(feature = "worker")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rstest::rstest;
use seriatim::worker::UsedUp;
use support::console::{Console, PATIENCE};
use support::recorder::{Act, Gate, Offer, Recorder};
use support::running::{Running, start};
use support::{Redis, until};

/// Drops the worker in the middle of its work; its lease ends.
async fn kill(console: &Console, worker: Running) {
    worker.crash().await;
    console.end_lease("w").await;
}

/// The crashes of all batches in hand.
async fn crashes_in_hand(console: &Console) -> Vec<u32> {
    let pattern = format!("{}event.worker:*:event.id", console.keys.prefix());
    let keys: Vec<String> = console.run(&["KEYS", &pattern]).await;
    let mut crashes = Vec::new();
    for key in keys {
        let tag = console.text(&key).await.unwrap_or_default();
        crashes.push(tag.split(' ').nth(3).map_or(0, |text| text.parse().expect("a number")));
    }
    crashes
}

/// A sink stood still, and five deaths of its process put 256 healthy objects aside for an operator, with the one that was the cause. From two crashes
/// on, few such events are in hand at a time, and the last one is alone.
#[tokio::test]
async fn five_deaths_put_only_the_killer_aside() {
    const OBJECTS: usize = 300;
    let redis = Redis::start();
    let console = redis.console().await;
    let (all_hang, hangs) = (Arc::new(AtomicBool::new(true)), Gate::closed());
    let (hanging, gate) = (Arc::clone(&all_hang), hangs.clone());
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        "killer" => Act::Wait(gate.clone()),
        _ if hanging.load(Ordering::SeqCst) => Act::Wait(gate.clone()),
        _ => Act::Send,
    });
    let run = || start(&redis, "w", &sink, |config| config.concurrency = 256);
    console.emit("killer", "0").await;
    for n in 1..OBJECTS {
        console.emit(&format!("work:{n}"), "1").await;
    }
    // All that are in hand count two crashes.
    for deaths in 0..2 {
        let worker = run();
        let full = |crashes: &Vec<u32>| crashes.iter().filter(|crashes| **crashes == deaths).count() == 256;
        until("all slots are full", PATIENCE, async || Some(crashes_in_hand(&console).await).filter(full)).await;
        kill(&console, worker).await;
    }
    all_hang.store(false, Ordering::SeqCst);
    let of_killer = |crashes: u32| move |offer: &Offer| offer.object == "killer" && offer.crashes == crashes;
    for (crashes, most) in [(2, 8), (3, 4), (4, 1)] {
        let worker = run();
        until("the killer is in hand", PATIENCE, async || sink.offered().iter().any(of_killer(crashes)).then_some(())).await;
        let suspects = crashes_in_hand(&console).await.into_iter().filter(|crashes| *crashes >= 2).count();
        assert!((1..=most).contains(&suspects), "{suspects} suspects in hand beside {crashes} crashes");
        kill(&console, worker).await;
    }
    let worker = run();
    let held = console.until_held("killer", "crashes: died 5 times with this event in hand").await;
    let delivered = || sink.sent().into_iter().map(|offer| offer.object).collect::<BTreeSet<_>>().len();
    until("all others are delivered", PATIENCE, async || (delivered() == OBJECTS - 1).then_some(())).await;
    worker.finish().await;
    let waiting: Vec<String> = console.run(&["ZRANGE", &console.keys.objects_held(), "0", "-1"]).await;
    assert_eq!(waiting, ["killer"], "{held}");
    console.check().await;
}

/// An event that has killed too many workers may end as attempts do. Nothing else delivers it again, and its object goes on.
#[rstest]
#[case::dead_letter(UsedUp::DeadLetter)]
#[case::complete(UsedUp::CompleteWithErrors)]
#[tokio::test]
async fn a_killer_ends_as_it_is_said(#[case] then: UsedUp) {
    let redis = Redis::start();
    let console = redis.console().await;
    let gate = Gate::closed();
    let sink = Recorder::with(move |offer| if offer.text() == "0" { Act::Wait(gate.clone()) } else { Act::Send });
    let run = || start(&redis, "w", &sink, |config| (config.crashes_max, config.crashes_then) = (2, then));
    console.emit_all("work:1", ["0", "1"]).await;
    for deaths in 1..=2 {
        let worker = run();
        until("it is in hand", PATIENCE, async || {
            (sink.offered().iter().filter(|offer| offer.text() == "0").count() == deaths).then_some(())
        })
        .await;
        kill(&console, worker).await;
    }
    let worker = run();
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["1"]);
    assert_eq!(sink.offered().iter().filter(|offer| offer.text() == "0").count(), 2, "not delivered again");
    let stream = if then == UsedUp::DeadLetter { console.keys.events_dead() } else { console.keys.event_log() };
    let entries: Vec<(String, Vec<String>)> = console.run(&["XRANGE", &stream, "-", "+"]).await;
    let fields: Vec<String> = entries.into_iter().flat_map(|(_, fields)| fields).collect();
    assert!(fields.contains(&"crashes: died 2 times with this event in hand".to_owned()), "{fields:?}");
    console.until_at_rest().await;
}
