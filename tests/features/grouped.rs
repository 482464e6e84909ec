//! Names of objects that are grouped: every look at Redis counts them.

use std::num::NonZeroU64;

use seriatim::Emitter;
use seriatim::control::By;
use seriatim::control::held::{HeldFilter, ReleaseFilter, Released, Skipped, WaitsFor};
use seriatim::control::inspect::{EventState, Standing};
use seriatim::emit::Full;
use seriatim::event::Json;
use seriatim::handlers::Handlers;
use seriatim::testing::drain;
use seriatim::worker::Worker;
use seriatim::{EmitError, wire};

use crate::state::State;
use crate::support::console::PATIENCE;
use crate::support::operator::Reads;
use crate::support::running::config;
use crate::support::{Redis, assert_matches};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// Groups names, as a worker does: the oldest name at the tail of its group's list.
async fn grouped(state: &mut State, groups: &[(&str, &[&str])]) {
    let keys = state.keys.clone();
    for (group, names) in groups {
        state.run("ZADD", &[&keys.event_groups(), "3", group]).await;
        state
            .run(
                "LPUSH",
                &[&[keys.group_waiting(group).as_str()], *names].concat(),
            )
            .await;
        state
            .run(
                "INCRBY",
                &[&keys.event_groups_waiting(), &names.len().to_string()],
            )
            .await;
    }
}

async fn fresh() -> (Redis, State) {
    let (redis, state) = Redis::start().with_state().await;
    (redis, state)
}

#[tokio::test]
async fn stats_count_what_is_grouped() {
    let (_redis, mut state) = fresh().await;
    let (keys, control) = (state.keys.clone(), state.control());
    state.emit("work:1", "{}").await;
    grouped(&mut state, &[("a", &["a:1", "a:2", "a:1"]), ("b", &["b"])]).await;
    let stats = control.stats().await.expect("stats");
    assert_eq!(
        (stats.markers, stats.groups.waiting, stats.groups.names),
        (5, 2, 4),
        "{stats:?}"
    );
    let json = serde_json::to_value(&stats).expect("JSON");
    assert_eq!(
        json["groups"],
        serde_json::json!({"waiting": 2, "names": 4})
    );

    // Of the held objects, two are grouped, and one came later. The first has been due longest.
    let now = stats.now_ms;
    for (object, score) in [("h:1", now - 7000), ("h:2", now - 9000)] {
        state
            .hold(object, &format!("-{score}"), &[], "0 0 0 0 yield")
            .await;
    }
    state
        .hold("h:3", &(now - 5000).to_string(), &[], "0 0 0 0 yield")
        .await;
    let held = control.stats().await.expect("stats").held;
    assert_eq!((held.total, held.due, held.waiting), (3, 3, 0));
    assert!((9000..20_000).contains(&held.overdue_ms), "{held:?}");
    state.add("ZREM objects.held h:2 h:1").await;
    let held = control.stats().await.expect("stats").held;
    assert!((5000..9000).contains(&held.overdue_ms), "{held:?}");

    state
        .add("DEL event.groups event.groups.waiting; SET event.groups x")
        .await;
    state.add("LPUSH event.groups.waiting x").await;
    let stats = control.stats().await.expect("stats");
    assert_eq!(
        (stats.markers, stats.groups.waiting, stats.groups.names),
        (1, 0, 0)
    );
    assert_eq!(
        stats.unreadable,
        [keys.event_groups(), keys.event_groups_waiting()]
    );
}

#[tokio::test]
async fn a_limit_of_markers_counts_what_is_grouped() {
    let (redis, mut state) = fresh().await;
    let limit = state.control();
    limit
        .set_limit(
            BY,
            &"*".parse().expect("a selector"),
            None,
            NonZeroU64::new(4),
        )
        .await
        .expect("set");
    let emitter = Emitter::builder(redis.url())
        .keys(redis.keys().clone())
        .connect()
        .await
        .expect("a connection");
    grouped(&mut state, &[("a", &["a:1", "a:2"]), ("b", &["b"])]).await;
    emitter
        .emit("work:1", Json::new("1".to_owned()))
        .await
        .expect("queued");
    let error = emitter
        .emit("work:2", Json::new("1".to_owned()))
        .await
        .expect_err("full");
    assert_matches!(
        error,
        EmitError::Full {
            full: Full::Markers {
                markers: 4,
                limit: 4
            },
            ..
        }
    );
    // A number that cannot be read counts nothing.
    for (object, command) in [("work:3", "SET"), ("work:4", "LPUSH")] {
        state.add("DEL event.groups.waiting").await;
        state
            .run(command, &[&redis.keys().event_groups_waiting(), "1e9"])
            .await;
        emitter
            .emit(object, Json::new("1".to_owned()))
            .await
            .expect("queued");
    }
}

#[tokio::test]
async fn with_many_names_grouped_few_schedules_are_promoted() {
    let (redis, mut state) = fresh().await;
    let keys = redis.keys();
    for n in 0..300 {
        let object = format!("work:{n}");
        state
            .run("HSET", &[&keys.events_scheduled_of(&object), "k", "1"])
            .await;
        state
            .run(
                "ZADD",
                &[&keys.events_scheduled(), "1", &format!("{object}\nk")],
            )
            .await;
    }
    grouped(&mut state, &[("busy", &["busy:1"; 900])]).await;
    let mut promoted = Vec::new();
    for _ in 0..2 {
        let step = wire::promote(&mut state.conn, keys, 256, 1 << 20)
            .await
            .expect("promoted");
        promoted.push((step.events, step.markers));
    }
    assert_eq!(promoted, [(100, 1000), (8, 1008)]);
    state
        .add("DEL event.groups.waiting; LPUSH event.groups.waiting x")
        .await;
    assert_eq!(
        wire::promote(&mut state.conn, keys, 64, 1 << 20)
            .await
            .expect("promoted")
            .events,
        64
    );
}

/// A drain is not over while names are grouped, also if the worker has no groups.
#[tokio::test]
async fn a_drain_waits_for_names_that_are_grouped() {
    let (redis, mut state) = fresh().await;
    let keys = state.keys.clone();
    for object in ["a:1", "a:2", "b"] {
        state
            .run("LPUSH", &[&keys.events(object), "{\"type\":\"x\"}"])
            .await;
    }
    grouped(&mut state, &[("a", &["a:1", "a:2"]), ("b", &["b"])]).await;
    let handlers =
        Handlers::builder().register_type("x", "x", |_: serde_json::Value, _| async { Ok(()) });
    let handlers = handlers.build().expect("a set");
    let worker = Worker::builder(redis.url())
        .config(config(&redis, "w"))
        .sink(handlers);
    let drained = drain(worker, PATIENCE).await.expect("drained");
    assert_eq!(drained.delivered(), 3);
}

#[tokio::test]
async fn inspect_tells_the_place_in_the_list_of_the_group() {
    let (_redis, mut state) = fresh().await;
    let (keys, control) = (state.keys.clone(), state.control());
    for object in ["a:b:1", "bare", "z:9", "lost"] {
        state.run("LPUSH", &[&keys.events(object), "{}"]).await;
    }
    grouped(
        &mut state,
        &[
            ("a:b", &["a:b:2", "a:b:3", "a:b:1", "a:b:1"]),
            ("bare", &["bare"]),
            ("\0rest", &["y", "z:9"]),
        ],
    )
    .await;
    for (object, group, before, why) in [
        (
            "a:b:1",
            "a:b",
            2,
            "in its group 'a:b': 2 names before it, 3 groups wait",
        ),
        (
            "bare",
            "bare",
            0,
            "in its group 'bare': 0 names before it, 3 groups wait",
        ),
        (
            "z:9",
            "\0rest",
            1,
            "in the list of the groups beyond the first 1024: 1 name before it, 3 groups wait",
        ),
    ] {
        let seen = control.inspection_of(object).await;
        assert_eq!(
            (seen.standing, seen.state),
            (Standing::Marked, Some(EventState::Queued)),
            "{object}"
        );
        assert_eq!(
            (
                seen.group.as_deref(),
                seen.group_before,
                seen.groups_waiting
            ),
            (Some(group), Some(before), 3)
        );
        assert_eq!(
            seen.why,
            format!("it waits for a free worker {why}, but no worker process is running")
        );
        assert_eq!((seen.markers_before, seen.group_beyond), (None, false));
    }
    let lost = control.inspection_of("lost").await;
    assert_eq!(
        (lost.standing, lost.group, lost.groups_waiting),
        (Standing::Uncovered, None, 3)
    );

    // The search for the name is bounded.
    let many: Vec<String> = (0..10_001).map(|n| format!("a:b:c{n}")).collect();
    for some in many.chunks(1000) {
        let names: Vec<&str> = some.iter().map(String::as_str).collect();
        grouped(&mut state, &[("a:b", &names)]).await;
    }
    state.add("LPUSH a:b:c10000:events {}").await;
    let seen = control.inspection_of("a:b:c10000").await;
    assert_eq!(
        (seen.standing, seen.group, seen.group_beyond),
        (Standing::Marked, None, true),
        "{}",
        seen.why
    );
    state.add("DEL event.groups").await;
    assert_eq!(
        control.inspection_of("bare").await.standing,
        Standing::Uncovered
    );
}

/// A held object that is grouped keeps its due time below 0. It is shown as due at that time.
#[tokio::test]
async fn a_held_object_that_is_grouped_is_shown_as_due() {
    let (_redis, mut state) = fresh().await;
    let (keys, control) = (state.keys.clone(), state.control());
    let now = control.now_ms().await.expect("a time");
    let (early, late) = (now - 9000, now - 4000);
    for (object, score) in [
        ("a:1", format!("-{late}")),
        ("a:2", format!("-{early}")),
        ("a:3", "-1".to_owned()),
        ("a:4", format!("-{late}")),
        ("b:1", (now - 2000).to_string()),
        ("b:2", (now + 3_600_000).to_string()),
        ("b:3", "inf".to_owned()),
        // The clock was set back since.
        ("c:1", format!("-{}", now + 7_200_000)),
    ] {
        state
            .hold(object, &score, &["{}", "{}"], "7 1 2 0 retry: it failed")
            .await;
    }
    grouped(&mut state, &[("a", &["a:2", "a:1"])]).await;
    // The same order whatever the size of the pages.
    // The object a:3 is due at once: its score is no time.
    let dues = [
        None,
        Some(early),
        Some(late),
        Some(late),
        None,
        Some(now - 2000),
        Some(now + 3_600_000),
        None,
    ];
    for size in [1, 2, 3, 8] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = control
                .held(false, after.as_ref(), size)
                .await
                .expect("a page");
            seen.extend(page.objects);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let names: Vec<&str> = seen.iter().map(|held| held.object.as_str()).collect();
        assert_eq!(
            names,
            ["a:3", "a:2", "a:4", "a:1", "c:1", "b:1", "b:2", "b:3"],
            "{size}"
        );
        for (held, due) in seen.iter().zip(dues) {
            assert_eq!(held.at_once, held.object == "a:3", "{held:?}");
            let is_right = held.object == "c:1" || held.due_ms == due;
            assert!(
                is_right
                    && held
                        .due_ms
                        .is_none_or(|due| held.object == "b:2" || due <= now + 60_000),
                "{held:?}"
            );
        }
    }
    let due = HeldFilter {
        due: true,
        waits_for: Some(WaitsFor::Retry),
        ..HeldFilter::default()
    };
    let page = control.held_where(&due, None, 5).await.expect("a page");
    let rest = control
        .held_where(&due, page.next.as_ref(), 5)
        .await
        .expect("a page");
    let names: Vec<&str> = page
        .objects
        .iter()
        .chain(&rest.objects)
        .map(|held| held.object.as_str())
        .collect();
    assert_eq!(names, ["a:3", "a:2", "a:4", "a:1", "c:1", "b:1"]);

    let seen = control.inspection_of("a:2").await;
    assert_eq!(
        (seen.standing, seen.due_ms, seen.state),
        (Standing::Held, Some(early), Some(EventState::Waiting))
    );
    let why = "held (retry: it failed), and due now: it waits for a free worker in its group 'a': 0 names before it, 1 group waits, \
               but no worker process is running";
    assert_eq!(seen.why, why);
    let seen = control.inspection_of("c:1").await;
    assert!(
        seen.why.contains("due now: a free worker takes it"),
        "{}",
        seen.why
    );

    // An operator may act on the object, as on any held object that is due.
    let all = control
        .release_all(
            BY,
            &ReleaseFilter {
                prefix: "a:",
                ..ReleaseFilter::default()
            },
            |_| {},
        )
        .await
        .expect("released");
    assert_eq!((all.released, all.due), (0, 4));
    assert_eq!(
        control.release(BY, "a:1").await.expect("released"),
        Released::Released("retry: it failed".to_owned())
    );
    let skipped = control.skip(BY, "a:2", Some(7)).await.expect("skipped");
    assert_matches!(skipped, Skipped::Skipped { id: 7, left: 1, .. });
    let forgotten = control.forget(&["a:2"]).await.expect("an answer");
    assert!(format!("{forgotten:?}").contains("Held"), "{forgotten:?}");
    let checked = control.check().await.expect("a report");
    // No list of the group has the names of the others.
    let mut alone: Vec<_> = checked
        .violations
        .iter()
        .map(|found| format!("{:?} {}", found.subject, found.what))
        .collect();
    alone.sort();
    let expected = ["a:3", "a:4", "c:1"].map(|name| {
        format!("Object({name:?}) is held and due, and its name was grouped, but no list of a group has it: it waits until no name is grouped")
    });
    assert_eq!(alone, expected);
    let score: Option<f64> = redis::cmd("ZSCORE")
        .arg(keys.objects_held())
        .arg("a:4")
        .query_async(&mut state.conn)
        .await
        .expect("a score");
    assert_eq!(
        score,
        Some(-(late as f64)),
        "what nobody has acted on is as it was"
    );
}

/// After operators have acted on objects that are grouped, each event is delivered once.
#[tokio::test]
async fn what_is_grouped_is_delivered_once_after_a_release_and_a_skip() {
    let (redis, mut state) = fresh().await;
    let (keys, control) = (state.keys.clone(), state.control());
    for (object, score) in [
        ("a:1", "-1700000000000"),
        ("a:2", "-1700000000001"),
        ("a:3", "-1"),
    ] {
        state
            .hold(
                object,
                score,
                &["{\"type\":\"x\"}", "{\"type\":\"x\"}"],
                "7 1 2 0 retry: it failed",
            )
            .await;
    }
    grouped(&mut state, &[("a", &["a:1", "a:2", "a:3"])]).await;
    control.release(BY, "a:1").await.expect("released");
    control.skip(BY, "a:2", None).await.expect("skipped");
    let handlers =
        Handlers::builder().register_type("x", "x", |_: serde_json::Value, _| async { Ok(()) });
    let handlers = handlers.build().expect("a set");
    for depth in [1, 0] {
        let mut config = config(&redis, &format!("w{depth}"));
        config.group_depth = depth;
        let worker = Worker::builder(redis.url())
            .config(config)
            .sink(handlers.clone());
        let drained = drain(worker, PATIENCE).await.expect("drained");
        assert_eq!(
            (drained.delivered(), drained.held.len()),
            (if depth == 1 { 5 } else { 0 }, 0),
            "{drained:?}"
        );
        let stats = control.stats().await.expect("stats");
        assert_eq!(
            (stats.markers, stats.groups.names, stats.held.total),
            (0, 0, 0),
            "{stats:?}"
        );
        let left: u64 = redis::cmd("EXISTS")
            .arg(keys.group_waiting("a"))
            .query_async(&mut state.conn)
            .await
            .expect("a number");
        assert_eq!(left, 0);
    }
}
