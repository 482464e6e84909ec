//! Groups: while many objects wait, their names are grouped by group, and the groups take turns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim::control::By;
use seriatim::control::forget::Forgot;
use seriatim::control::held::Released;
use seriatim::control::rules::{Kind, Selector};
use seriatim::control::shares::Share;
use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, merged};
use crate::support::recorder::{Act, Gate, Offer, Recorder};
use crate::support::running::{Running, start};
use crate::support::{Redis, assert_matches, until};

const ADA: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// Starts a worker with one slot.
fn one_slot(redis: &Redis, name: &str, sink: &Recorder, depth: usize) -> Running {
    start(redis, name, sink, |config| {
        config.concurrency = 1;
        config.group_depth = depth;
    })
}

/// Returns a sink whose first delivery waits at the gate.
fn stopped_at(gate: &Gate) -> Recorder {
    let (gate, is_first) = (gate.clone(), AtomicBool::new(true));
    Recorder::with(move |_| {
        if is_first.swap(false, Ordering::SeqCst) {
            Act::Wait(gate.clone())
        } else {
            Act::Send
        }
    })
}

async fn grouped(console: &Console) -> u64 {
    console.number(&console.keys.event_groups_waiting()).await
}

async fn until_grouped(console: &Console, names: u64) {
    until(
        &format!("{names} names are grouped"),
        PATIENCE,
        async || (grouped(console).await == names).then_some(()),
    )
    .await;
}

/// Emits one event for each object, oldest first.
async fn emit(console: &Console, objects: impl IntoIterator<Item = impl AsRef<str>>) {
    for object in objects {
        console.emit(object.as_ref(), "1").await;
    }
}

fn numbered(group: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{group}:{n:03}")).collect()
}

/// Returns the objects that were sent, in order.
fn objects(sink: &Recorder) -> Vec<String> {
    sink.sent().into_iter().map(|offer| offer.object).collect()
}

/// Returns the position of an object among those that were sent.
fn place(sink: &Recorder, object: &str) -> usize {
    objects(sink)
        .iter()
        .position(|sent| sent == object)
        .unwrap_or_else(|| panic!("{object} was not sent"))
}

/// Tests that the groups take turns, and that the order of the markers stays within each group.
#[tokio::test]
async fn groups_take_turns_in_the_order_of_their_markers() {
    let (redis, console) = Redis::start().with_console().await;
    emit(
        &console,
        [
            numbered("a", 40),
            numbered("b", 5),
            vec!["c:001".to_owned()],
        ]
        .concat(),
    )
    .await;
    let sink = Recorder::new();
    let worker = one_slot(&redis, "w", &sink, 1);
    sink.until_sent(46).await;
    worker.finish().await;
    for group in ["a", "b"] {
        let of_group: Vec<_> = objects(&sink)
            .into_iter()
            .filter(|object| object.starts_with(group))
            .collect();
        assert!(of_group.is_sorted(), "{of_group:?}");
    }
    assert!(
        place(&sink, "c:001") < 4 && place(&sink, "b:005") < 13,
        "{:?}",
        objects(&sink)
    );
    console.until_at_rest().await;
}

/// Tests that the whole name is the group if the name has no colon, also at a larger depth.
#[tokio::test]
async fn a_name_without_a_colon_is_a_group() {
    for depth in [1, 2, 8] {
        let (redis, console) = Redis::start().with_console().await;
        emit(&console, numbered("a:x:x:x:x:x:x:x", 40)).await;
        emit(&console, ["b", "c"]).await;
        let sink = Recorder::new();
        let worker = one_slot(&redis, "w", &sink, depth);
        sink.until_sent(42).await;
        worker.finish().await;
        assert!(
            place(&sink, "b") < 6 && place(&sink, "c") < 6,
            "{depth}: {:?}",
            objects(&sink)
        );
        console.until_at_rest().await;
    }
}

/// Tests that with depth 2 the first two parts are the group.
#[tokio::test]
async fn a_group_may_have_two_parts() {
    let (redis, console) = Redis::start().with_console().await;
    emit(
        &console,
        [
            numbered("a:1", 30),
            numbered("a:2", 30),
            vec!["a:3:x".to_owned(), "a:4".to_owned()],
        ]
        .concat(),
    )
    .await;
    let gate = Gate::closed();
    let sink = stopped_at(&gate);
    let worker = one_slot(&redis, "w", &sink, 2);
    until_grouped(&console, 61).await;
    let mut groups: Vec<String> = console
        .run(&["ZRANGE", &console.keys.event_groups(), "0", "-1"])
        .await;
    groups.sort();
    assert_eq!(groups, ["a:1", "a:2", "a:3", "a:4"]);
    gate.open();
    sink.until_sent(62).await;
    worker.finish().await;
    assert!(
        place(&sink, "a:3:x") < 8 && place(&sink, "a:4") < 8,
        "{:?}",
        objects(&sink)
    );
    console.until_at_rest().await;
}

/// Tests that at most 1,024 groups have lists of their own, and that the names of further groups
/// share one list.
#[tokio::test]
async fn further_groups_share_a_list() {
    let (redis, console) = Redis::start().with_console().await;
    emit(&console, (0..1500).map(|n| format!("group{n}:1"))).await;
    let gate = Gate::closed();
    let sink = stopped_at(&gate);
    let worker = one_slot(&redis, "w", &sink, 1);
    until_grouped(&console, 1499).await;
    let groups: usize = console.run(&["ZCARD", &console.keys.event_groups()]).await;
    let rest: Vec<String> = console.list(&console.keys.group_waiting("\0rest")).await;
    let rest = rest.iter().filter(|name| !name.starts_with("\0t")).count();
    // The worker has claimed one object, from this list or from the list of a group.
    assert!(
        groups == 1025 && [475, 476].contains(&rest),
        "{groups} groups, {rest} names in the shared list"
    );
    gate.open();
    sink.until_sent(1500).await;
    worker.finish().await;
    assert_eq!(
        objects(&sink).into_iter().collect::<HashSet<_>>().len(),
        1500
    );
    console.until_at_rest().await;
}

/// Tests that a group with 256 bytes has a list of its own, and a longer one shares the list of further
/// groups, with and without shares.
#[tokio::test]
async fn groups_with_long_names_share_a_list() {
    for shares in [false, true] {
        let (redis, console) = Redis::start().with_console().await;
        if shares {
            let selector = "s:*".parse().expect("a selector");
            redis
                .control()
                .await
                .set_share(ADA, &selector, Share::new().weight(2))
                .await
                .expect("set");
        }
        let (fits, long) = ("x".repeat(256), "y".repeat(257));
        emit(&console, [numbered(&fits, 3), numbered(&long, 3)].concat()).await;
        let gate = Gate::closed();
        let sink = stopped_at(&gate);
        let worker = one_slot(&redis, "w", &sink, 1);
        until_grouped(&console, 5).await;
        let names = async |group: &str| {
            let names = console.list(&console.keys.group_waiting(group)).await;
            names
                .into_iter()
                .filter(|name| !name.starts_with('\0'))
                .collect::<Vec<_>>()
        };
        // The worker has claimed one object.
        let (of_fits, of_rest) = (names(&fits).await, names("\0rest").await);
        assert!(
            of_fits.len() >= 2 && of_fits.iter().all(|name| name.starts_with(&fits)),
            "{of_fits:?}"
        );
        assert!(
            of_rest.len() >= 2 && of_rest.iter().all(|name| name.starts_with(&long)),
            "{of_rest:?}"
        );
        gate.open();
        sink.until_sent(6).await;
        worker.finish().await;
        if shares {
            let selector = "s:*".parse().expect("a selector");
            redis
                .control()
                .await
                .remove_share(ADA, &selector)
                .await
                .expect("removed");
            console.add("DEL objects.with.events").await;
        }
        console.until_at_rest().await;
    }
}

/// Tests that names of a group share the list of further groups if the group's key has a wrong
/// type. The shared list then has its turns like any group.
///
/// Story: the shared list began with pass 0, and so went before all others.
#[tokio::test]
async fn a_key_of_a_wrong_type_loses_no_name() {
    let (redis, console) = Redis::start().with_console().await;
    let wrong = console.keys.group_waiting("a");
    let () = console.run(&["SET", &wrong, "x"]).await;
    console
        .add("ZADD event.groups 1000 b; SET event.groups.waiting 0")
        .await;
    emit(&console, [numbered("a", 40), numbered("b", 40)].concat()).await;
    let gate = Gate::closed();
    let sink = stopped_at(&gate);
    let worker = one_slot(&redis, "w", &sink, 1);
    until_grouped(&console, 79).await;
    let rest: Vec<String> = console.list(&console.keys.group_waiting("\0rest")).await;
    assert!(
        rest.len() >= 39
            && rest
                .iter()
                .all(|name| name.starts_with("a:") || name.starts_with("\0t")),
        "{rest:?}"
    );
    gate.open();
    sink.until_sent(80).await;
    worker.finish().await;
    let first: Vec<_> = objects(&sink).into_iter().take(20).collect();
    assert!(
        first
            .iter()
            .filter(|object| object.starts_with("b:"))
            .count()
            >= 8,
        "{first:?}"
    );
    let _: u64 = console.run(&["DEL", &wrong]).await;
    console.until_at_rest().await;
}

/// Tests that a worker without groups delivers what a worker with groups has grouped, and then
/// the markers.
#[tokio::test]
async fn a_worker_without_groups_drains_the_lists() {
    let (redis, console) = Redis::start().with_console().await;
    emit(&console, [numbered("a", 30), numbered("b", 30)].concat()).await;
    let (gate, sink) = (Gate::closed(), Recorder::new());
    let stopped = stopped_at(&gate);
    let with = one_slot(&redis, "w", &stopped, 1);
    until_grouped(&console, 59).await;
    // The call that has grouped the names has also claimed an object. Its delivery begins later.
    until("an object is offered", PATIENCE, async || {
        (!stopped.offered().is_empty()).then_some(())
    })
    .await;
    with.crash().await;
    console.end_lease("w").await;
    emit(&console, numbered("c", 30)).await;
    let without = one_slot(&redis, "v", &sink, 0);
    sink.until_sent(90).await;
    without.finish().await;
    let sent: Vec<_> = objects(&sink)
        .into_iter()
        .filter(|object| object != &stopped.offered()[0].object)
        .collect();
    // Names that were grouped are older. But a pop takes a marker, if the first call was slow.
    let new = sent
        .iter()
        .take(59)
        .filter(|object| object.starts_with("c:"))
        .count();
    assert!(new <= 1, "{sent:?}");
    console.until_at_rest().await;
}

/// Tests that workers with different depths lose and reorder nothing.
#[tokio::test]
async fn workers_may_have_different_depths() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let workers: Vec<_> = (0..3)
        .map(|depth| one_slot(&redis, &format!("w{depth}"), &sink, depth))
        .collect();
    for round in 0..4 {
        for object in [numbered("a:1", 40), numbered("a:2", 10), numbered("b", 10)].concat() {
            console.emit(&object, round.to_string()).await;
        }
    }
    sink.until_sent(240).await;
    for worker in workers {
        worker.finish().await;
    }
    let applied = sink.applied();
    assert_eq!(applied.len(), 60);
    for (object, events) in applied {
        let texts: Vec<_> = events.into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["0", "1", "2", "3"], "{object}");
    }
    assert_eq!(sink.overlaps(), [""; 0]);
    console.until_at_rest().await;
}

/// Tests that nothing is lost or reordered if processes are killed while names are grouped.
#[tokio::test]
async fn names_that_were_grouped_survive_a_kill() {
    const OBJECTS: usize = 1000;
    let (redis, console) = Redis::start().with_console().await;
    let mut pipe = redis::pipe();
    for n in 0..2 * OBJECTS {
        let object = format!("{}:{}", if n % 10 == 0 { "b" } else { "a" }, n % OBJECTS);
        pipe.cmd("LPUSH")
            .arg(console.keys.events(&object))
            .arg(n / OBJECTS)
            .ignore();
        pipe.cmd("LPUSH")
            .arg(console.keys.objects_with_events())
            .arg(object)
            .ignore();
    }
    let () = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("emitted");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let files: Vec<_> = (0..4).map(|n| dir.path().join(n.to_string())).collect();
    let options = [
        "--concurrency",
        "4",
        "--batch",
        "1",
        "--lease",
        "1s",
        "--group-depth",
        "1",
    ];
    let run = |n: usize| {
        Process::start(
            &redis,
            &format!("w{n}"),
            &format!("file:{}", files[n].display()),
            &options,
        )
    };
    for n in 0..3 {
        let mut process = run(n);
        let before = console.number(&console.keys.next_event_id()).await;
        until(
            "some are delivered while others are grouped",
            PATIENCE,
            async || {
                (grouped(&console).await > 0
                    && console.number(&console.keys.next_event_id()).await > before + 100)
                    .then_some(())
            },
        )
        .await;
        process.kill();
        assert!(
            grouped(&console).await > 0,
            "killed too late to say anything"
        );
    }
    let mut last = run(3);
    console.until_at_rest_after(2 * OBJECTS as u64).await;
    last.terminate();
    assert!(last.ended().await.success(), "{}", last.log());
    let merged = merged(&files);
    assert_eq!(merged.len(), OBJECTS);
    for (object, sent) in merged {
        let events: Vec<_> = sent.iter().map(|sent| sent.event.as_str()).collect();
        assert_eq!(events, ["0", "1"], "{object}");
    }
}

/// Tests that a pause over a group whose names are grouped takes effect, and that its end lets all
/// of them go on.
#[tokio::test]
async fn a_group_that_waits_can_be_paused_and_resumed() {
    let redis = Redis::start();
    let (console, operator) = (redis.console().await, redis.control().await);
    emit(&console, [numbered("a", 40), numbered("b", 40)].concat()).await;
    let gate = Gate::closed();
    let sink = stopped_at(&gate);
    let worker = one_slot(&redis, "w", &sink, 1);
    until_grouped(&console, 79).await;
    let selector: Selector = "b:*".parse().expect("a selector");
    operator
        .set_rule(ADA, Kind::Pause, &selector, None)
        .await
        .expect("set");
    gate.open();
    sink.until_sent(40).await;
    until("all of the group are paused", PATIENCE, async || {
        let paused: usize = console
            .run(&["ZCARD", &console.keys.objects_paused()])
            .await;
        (paused == 40 && grouped(&console).await == 0).then_some(())
    })
    .await;
    assert!(
        objects(&sink).iter().all(|object| object.starts_with("a:")),
        "{:?}",
        objects(&sink)
    );
    operator
        .lift_rule(ADA, Kind::Pause, &selector)
        .await
        .expect("lifted");
    sink.until_sent(80).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// Tests the acts of operators on objects whose names are grouped. An object with a queued event is
/// not forgotten. A held object is delivered once, although its name is grouped again when an
/// operator releases it.
#[tokio::test]
async fn operators_can_act_on_objects_that_wait_for_their_group() {
    let redis = Redis::start();
    let (console, operator) = (redis.console().await, redis.control().await);
    let (gate, down) = (Gate::closed(), Arc::new(AtomicBool::new(true)));
    let sink = Recorder::with({
        let (gate, down) = (gate.clone(), Arc::clone(&down));
        move |offer: &Offer| match offer.object.as_str() {
            "gate" => Act::Wait(gate.clone()),
            object if object.starts_with("held:") && down.load(Ordering::SeqCst) => {
                Act::Stop(Stop::transient("down"))
            }
            _ => Act::Send,
        }
    });
    let worker = one_slot(&redis, "w", &sink, 1);
    emit(&console, numbered("held", 20)).await;
    until("all have failed", PATIENCE, async || {
        let failed: HashSet<_> = sink
            .offered()
            .into_iter()
            .map(|offer| offer.object)
            .collect();
        (failed.len() == 20).then_some(())
    })
    .await;
    emit(&console, ["gate"]).await;
    gate.until_reached(1).await;
    emit(&console, numbered("a", 20)).await;
    // A second worker groups all names, because it has no slot for them either.
    let (other_gate, others) = (Gate::closed(), AtomicBool::new(true));
    let other_sink = Recorder::with({
        let (gate, sink_down) = (other_gate.clone(), Arc::clone(&down));
        move |offer: &Offer| match others.swap(false, Ordering::SeqCst) {
            true => Act::Wait(gate.clone()),
            false if offer.object.starts_with("held:") && sink_down.load(Ordering::SeqCst) => {
                Act::Stop(Stop::transient("down"))
            }
            false => Act::Send,
        }
    });
    let other = one_slot(&redis, "v", &other_sink, 1);
    other_gate.until_reached(1).await;
    until("held objects are grouped", PATIENCE, async || {
        let aside: usize = console
            .run(&["ZCOUNT", &console.keys.objects_held(), "-inf", "(0"])
            .await;
        (aside > 0).then_some(())
    })
    .await;
    assert_matches!(
        operator.forget(&["a:020"]).await.expect("asked")[..],
        [Forgot::Queued { .. }]
    );
    let aside: Vec<String> = console
        .run(&["ZRANGE", &console.keys.objects_held(), "0", "0"])
        .await;
    let released = operator.release(ADA, &aside[0]).await.expect("released");
    assert_matches!(released, Released::Released { .. });
    down.store(false, Ordering::SeqCst);
    gate.open();
    other_gate.open();
    console.until_at_rest().await;
    worker.finish().await;
    other.finish().await;
    let mut sent: HashMap<String, usize> = HashMap::new();
    for offer in sink.sent().into_iter().chain(other_sink.sent()) {
        *sent.entry(offer.object).or_default() += 1;
    }
    assert_eq!(
        (sent.len(), sent.values().max()),
        (41, Some(&1)),
        "{sent:?}"
    );
}

/// Tests that a small group has its turn although markers of a large group come all the time.
#[tokio::test]
async fn a_small_group_has_its_turn_although_markers_keep_coming() {
    let redis = Arc::new(Redis::start());
    let console = redis.console().await;
    let done = Arc::new(AtomicBool::new(false));
    let feeder = tokio::spawn({
        let (console, done) = (console.clone(), Arc::clone(&done));
        async move {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                emit(&console, (n..n + 20).map(|n| format!("a:{n}"))).await;
                n += 20;
            }
            n
        }
    });
    let sink = Recorder::with(|_| {
        std::thread::sleep(Duration::from_millis(3));
        Act::Send
    });
    let worker = one_slot(&redis, "w", &sink, 1);
    until("many wait", PATIENCE, async || {
        (grouped(&console).await > 500).then_some(())
    })
    .await;
    for n in 0..5 {
        let before = sink.sent().len();
        let object = format!("b:{n}");
        console.emit(&object, "1").await;
        until("b is delivered", PATIENCE, async || {
            (!sink.sent_of(&object).is_empty()).then_some(())
        })
        .await;
        let further = place(&sink, &object) - before;
        assert!(
            further < 50,
            "{further} objects of the large group came before {object}"
        );
    }
    done.store(true, Ordering::Relaxed);
    let emitted = feeder.await.expect("fed");
    sink.until_sent(emitted + 5).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// Tests that the number of names that are grouped is corrected if a list or the number is lost.
///
/// Story: with a number that was too high, the script never ended: it took names from empty lists
/// again and again. With a text that is no number, every call failed.
#[tokio::test]
async fn a_wrong_number_of_names_is_corrected() {
    for number in ["7", "many", "1e999", "-3"] {
        let (redis, console) = Redis::start().with_console().await;
        let () = console
            .run(&["SET", &console.keys.event_groups_waiting(), number])
            .await;
        let sink = Recorder::new();
        let worker = one_slot(&redis, "w", &sink, 1);
        emit(&console, numbered("a", 30)).await;
        sink.until_sent(30).await;
        until("the number is deleted", PATIENCE, async || {
            console
                .text(&console.keys.event_groups_waiting())
                .await
                .is_none()
                .then_some(())
        })
        .await;
        worker.finish().await;
        console.until_at_rest().await;
    }
}
