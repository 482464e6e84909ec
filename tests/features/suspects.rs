//! Suspects: events that may have killed their worker. Only few of them are in flight at a time, so
//! that a death holds no other event.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rstest::rstest;
use seriatim::sink::Stop;
use seriatim::worker::{Claimed, Claims, UsedUp, Worker, WorkerConfig};
use tokio::runtime::Runtime;

use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Offer, Recorder};
use crate::support::running::{Running, config, start};
use crate::support::{Redis, until};

/// Kills the worker during its work, and ends its lease.
async fn kill(console: &Console, worker: Running) {
    worker.crash().await;
    console.end_lease("w").await;
}

/// Returns the numbers of crashes of all batches in flight.
async fn crashes_in_hand(console: &Console) -> Vec<u32> {
    let pattern = format!("{}event.worker:*:event.id", console.keys.prefix());
    let keys: Vec<String> = console.run(&["KEYS", &pattern]).await;
    let mut crashes = Vec::new();
    for key in keys {
        let value = console.text(&key).await.unwrap_or_default();
        let tag = value.lines().next().unwrap_or_default();
        crashes.push(
            tag.split(' ')
                .nth(3)
                .map_or(0, |text| text.parse().expect("a number")),
        );
    }
    crashes
}

/// Story: a sink hung, and its process died five times. So 256 healthy objects were held for an
/// operator, together with the object of the event that killed. Now only few events with two or
/// more crashes are in flight at a time, and one with three or more is the only one of them.
#[tokio::test]
async fn five_deaths_quarantine_only_the_killer() {
    const OBJECTS: usize = 300;
    let (redis, console) = Redis::start().with_console().await;
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
    // After two deaths, all events in flight have two crashes.
    for deaths in 0..2 {
        let worker = run();
        let full = |crashes: &Vec<u32>| {
            crashes.iter().filter(|crashes| **crashes == deaths).count() == 256
        };
        until("all slots are full", PATIENCE, async || {
            Some(crashes_in_hand(&console).await).filter(full)
        })
        .await;
        kill(&console, worker).await;
    }
    all_hang.store(false, Ordering::SeqCst);
    let of_killer =
        |crashes: u32| move |offer: &Offer| offer.object == "killer" && offer.crashes == crashes;
    for (crashes, most) in [(2, 4), (3, 1), (4, 1)] {
        let worker = run();
        until("the killer is in hand", PATIENCE, async || {
            sink.offered().iter().any(of_killer(crashes)).then_some(())
        })
        .await;
        let suspects = crashes_in_hand(&console)
            .await
            .into_iter()
            .filter(|crashes| *crashes >= 2)
            .count();
        assert!(
            (1..=most).contains(&suspects),
            "{suspects} suspects in hand beside {crashes} crashes"
        );
        kill(&console, worker).await;
    }
    let worker = run();
    let held = console
        .until_held("killer", "crashes: died 5 times with this event in hand")
        .await;
    let delivered = || {
        sink.sent()
            .into_iter()
            .map(|offer| offer.object)
            .collect::<BTreeSet<_>>()
            .len()
    };
    until("all others are delivered", PATIENCE, async || {
        (delivered() == OBJECTS - 1).then_some(())
    })
    .await;
    worker.finish().await;
    let waiting: Vec<String> = console
        .run(&["ZRANGE", &console.keys.objects_held(), "0", "-1"])
        .await;
    assert_eq!(waiting, ["killer"], "{held}");
    console.check().await;
}

/// A program that claims by hand. It has a runtime of its own, so that the test can kill it.
struct Program {
    runtime: Runtime,
    claims: Arc<Claims>,
}

impl Program {
    async fn start(redis: &Redis, change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let mut config = config(redis, "w");
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let claims = Worker::builder(redis.url()).config(config).claims();
        let claims = Arc::new(
            runtime
                .spawn(claims)
                .await
                .expect("no panic")
                .expect("the name is free"),
        );
        Self { runtime, claims }
    }

    /// Calls `try_next` in the runtime of the program.
    async fn try_next(&self) -> Option<Claimed> {
        let claims = Arc::clone(&self.claims);
        self.runtime
            .spawn(async move { claims.try_next().await })
            .await
            .expect("no panic")
            .expect("asked")
    }

    /// Calls `next` in the runtime of the program.
    async fn next(&self) -> Claimed {
        let claims = Arc::clone(&self.claims);
        let next = self.runtime.spawn(async move { claims.next().await });
        tokio::time::timeout(PATIENCE, next)
            .await
            .expect("one is due")
            .expect("no panic")
            .expect("claimed")
    }

    /// Kills the program, and ends its lease.
    async fn kill(self, console: &Console, in_hand: Vec<Claimed>) {
        // The program gives back no event, because the tasks for this end with its runtime.
        let over = tokio::task::spawn_blocking(move || self.runtime.shutdown_timeout(PATIENCE));
        over.await.expect("no panic");
        drop((in_hand, self.claims));
        console.end_lease("w").await;
    }
}

/// Claims all events that it can get. If the event that kills is not among them, commits them and
/// repeats.
async fn claim_the_killer(program: &Program) -> Vec<Claimed> {
    loop {
        let in_hand = claim_all(program).await;
        if in_hand
            .iter()
            .any(|claimed| claimed.event().object.as_str() == "killer")
        {
            return in_hand;
        }
        for mut claimed in in_hand {
            claimed.commit().await.expect("committed");
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn claim_all(program: &Program) -> Vec<Claimed> {
    let mut in_hand = Vec::new();
    while let Some(claimed) = program.try_next().await {
        in_hand.push(claimed);
    }
    in_hand
}

/// Programs that claim by hand keep to the limits of suspects, too. Story: a program claimed all
/// events and died five times, and all events were held.
#[tokio::test]
async fn five_deaths_of_a_program_quarantine_only_the_killer() {
    const OBJECTS: usize = 40;
    let (redis, console) = Redis::start().with_console().await;
    let run = async || Program::start(&redis, |config| config.concurrency = 64).await;
    console.emit("killer", "0").await;
    for n in 1..OBJECTS {
        console.emit(&format!("work:{n}"), "1").await;
    }
    // After two deaths, all events have two crashes. Each time all of them were in flight.
    for deaths in 0..2 {
        let program = run().await;
        let in_hand = claim_all(&program).await;
        assert_eq!(in_hand.len(), OBJECTS);
        assert!(in_hand.iter().all(|claimed| claimed.crashes() == deaths));
        program.kill(&console, in_hand).await;
    }
    for (crashes, most) in [(2, 4), (3, 1), (4, 1)] {
        let program = run().await;
        let in_hand = tokio::time::timeout(PATIENCE, claim_the_killer(&program))
            .await
            .expect("the killer is due");
        let killer = in_hand
            .iter()
            .find(|claimed| claimed.event().object.as_str() == "killer")
            .map(Claimed::crashes);
        assert_eq!(killer, Some(crashes));
        let suspects = crashes_in_hand(&console)
            .await
            .into_iter()
            .filter(|crashes| *crashes >= 2)
            .count();
        assert!(
            (1..=most).contains(&suspects),
            "{suspects} suspects in hand beside {crashes} crashes"
        );
        program.kill(&console, in_hand).await;
    }
    let program = run().await;
    let held = console
        .until_held("killer", "crashes: died 5 times with this event in hand")
        .await;
    until("all others are delivered", PATIENCE, async || {
        for mut claimed in claim_all(&program).await {
            assert_ne!(claimed.event().object.as_str(), "killer");
            claimed.commit().await.expect("committed");
        }
        let waiting: Vec<String> = console
            .run(&["ZRANGE", &console.keys.objects_held(), "0", "-1"])
            .await;
        (waiting == ["killer"]).then_some(held.clone())
    })
    .await;
    console.check().await;
    program.kill(&console, Vec::new()).await;
}

/// A program with one slot waits for an event, and a suspect becomes due. The call behind the pop
/// must allow this suspect.
#[tokio::test]
async fn who_waits_gets_a_suspect() {
    let (redis, console) = Redis::start().with_console().await;
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for crashes in 0..5 {
        let program = Program::start(&redis, |config| {
            (config.concurrency, config.block) = (1, Duration::from_secs(1))
        })
        .await;
        let (seconds, _): (u64, u64) = console.run(&["TIME"]).await;
        let (due, held) = (
            (seconds + 1) * 1000,
            format!("{} 0 0 {crashes} takeover", crashes + 1),
        );
        let object = format!("work:{crashes}");
        state.hold(&object, &due.to_string(), &["1"], &held).await;
        let mut claimed = program.next().await;
        assert_eq!(claimed.event().object.as_str(), object);
        assert_eq!((claimed.crashes(), claimed.attempt()), (crashes, 1));
        claimed.commit().await.expect("committed");
        program.kill(&console, vec![claimed]).await;
    }
}

/// Story: the call behind a pop allowed no suspects, and put off the suspect that was due. A worker
/// with one free slot makes no other call, so the event was never delivered.
#[tokio::test]
async fn a_worker_with_one_slot_gets_a_suspect() {
    let (redis, console) = Redis::start().with_console().await;
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.hold("work:1", "1", &["1"], "1 0 0 2 takeover").await;
    let again = || Stop::Transient {
        error: "busy".to_owned(),
        retry_after: Some(Duration::from_millis(200)),
    };
    let sink = Recorder::with(move |offer| {
        if offer.attempts == 0 {
            Act::Stop(again())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| {
        (config.concurrency, config.block) = (1, Duration::from_secs(1))
    });
    sink.until_sent(1).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// An event has killed too many workers. The setting `crashes_then` makes it a dead letter or
/// completes it with errors. The event is not delivered again, and its object continues.
#[rstest]
#[case::dead_letter(UsedUp::DeadLetter)]
#[case::complete(UsedUp::CompleteWithErrors)]
#[tokio::test]
async fn a_killer_ends_as_it_is_said(#[case] then: UsedUp) {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "0" {
            Act::Wait(gate.clone())
        } else {
            Act::Send
        }
    });
    let run = || {
        start(&redis, "w", &sink, |config| {
            (config.crashes_max, config.crashes_then) = (2, then)
        })
    };
    console.emit_all("work:1", ["0", "1"]).await;
    for deaths in 1..=2 {
        let worker = run();
        until("it is in hand", PATIENCE, async || {
            (sink
                .offered()
                .iter()
                .filter(|offer| offer.text() == "0")
                .count()
                == deaths)
                .then_some(())
        })
        .await;
        kill(&console, worker).await;
    }
    let worker = run();
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["1"]);
    assert_eq!(
        sink.offered()
            .iter()
            .filter(|offer| offer.text() == "0")
            .count(),
        2,
        "not delivered again"
    );
    let stream = if then == UsedUp::DeadLetter {
        console.keys.events_dead()
    } else {
        console.keys.event_log()
    };
    let entries: Vec<(String, Vec<String>)> = console.run(&["XRANGE", &stream, "-", "+"]).await;
    let fields: Vec<String> = entries.into_iter().flat_map(|(_, fields)| fields).collect();
    assert!(
        fields.contains(&"crashes: died 2 times with this event in hand".to_owned()),
        "{fields:?}"
    );
    console.until_at_rest().await;
}
