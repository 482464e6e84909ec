//! `promote` with a clock that stands still: the reply and each key after a call.

use std::time::Duration;

use seriatim::keys::Keys;
use seriatim::wire::{self, Promoted};

use crate::state::State;
use crate::stopped::{NOW, NOW_US, scene};
use crate::support::Redis;

const MIB: usize = 1 << 20;

/// Stores a schedule. Its event itself is queued, because no user has chosen the key, if the key
/// begins with `-`.
async fn schedule(state: &mut State, object: &str, key: &str, due: u64, event: &str) {
    let keys = state.keys.clone();
    state
        .run("HSET", &[&keys.events_scheduled_of(object), key, event])
        .await;
    state
        .run(
            "ZADD",
            &[
                &keys.events_scheduled(),
                &due.to_string(),
                &format!("{object}\n{key}"),
            ],
        )
        .await;
}

async fn promote(state: &mut State, events: usize, bytes: usize) -> Promoted {
    let keys = state.keys.clone();
    wire::promote(&mut state.conn, &keys, events, bytes)
        .await
        .expect("a reply")
}

async fn scores(state: &mut State) -> Vec<(String, f64)> {
    let key = state.keys.events_scheduled();
    redis::cmd("ZRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .arg("WITHSCORES")
        .query_async(&mut state.conn)
        .await
        .expect("scores")
}

async fn list(state: &mut State, key: String) -> Vec<String> {
    redis::cmd("LRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .query_async(&mut state.conn)
        .await
        .expect("a list")
}

fn pair(member: &str, score: f64) -> (String, f64) {
    (member.to_owned(), score)
}

/// The lateness of an event is counted for the lowest bound that is not below it. A schedule that
/// is due now is queued. The reply has the times until the next schedule and the next cron job.
#[tokio::test]
async fn each_event_is_counted_for_the_bound_of_its_lateness() {
    const BOUNDS: [u64; 16] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000,
    ];
    let (_clock, redis, mut state) = scene().await;
    let keys = state.keys.clone();
    schedule(&mut state, "work:1", "-now", NOW, "0").await;
    for bound in BOUNDS {
        schedule(&mut state, "work:1", &format!("-{bound}"), NOW - bound, "1").await;
        schedule(
            &mut state,
            "work:1",
            &format!("-above {bound}"),
            NOW - bound - 1,
            "2",
        )
        .await;
    }
    schedule(&mut state, "work:1", "-next", NOW + 1, "3").await;
    state
        .run(
            "ZADD",
            &[&keys.events_cron_next(), &(NOW + 7).to_string(), "job"],
        )
        .await;
    state
        .run("ZADD", &[&keys.event_workers_watched(), "1", "a", "1", "b"])
        .await;
    let expected = Promoted {
        events: 33,
        next_due: Some(Duration::from_millis(1)),
        markers: 1,
        names: 2,
        next_cron: Some(Duration::from_millis(7)),
        wrong_count: 0,
        wrong: vec![],
    };
    assert_eq!(promote(&mut state, 100, MIB).await, expected);
    let mut late: Vec<(String, u64)> = redis
        .console()
        .await
        .run(&["HGETALL", &keys.events_scheduled_lateness()])
        .await;
    late.sort();
    let mut expected: Vec<_> = BOUNDS.iter().map(|bound| (bound.to_string(), 2)).collect();
    expected.push(("inf".to_owned(), 1));
    expected.sort();
    assert_eq!(late, expected);
    assert_eq!(
        scores(&mut state).await,
        [pair("work:1\n-next", (NOW + 1) as f64)]
    );
    let left: Vec<String> = redis
        .console()
        .await
        .run(&["HKEYS", &keys.events_scheduled_of("work:1")])
        .await;
    assert_eq!(left, ["-next"]);
    assert_eq!(
        list(&mut state, keys.objects_with_events()).await,
        ["work:1"]
    );
    assert_eq!(list(&mut state, keys.events("work:1")).await.len(), 33);
    assert_eq!(
        list(&mut state, keys.events("work:1")).await[..3],
        ["0", "1", "2"],
        "the newest is due last"
    );
}

/// A schedule that cannot be queued is due again after a minute. The reply has the number of all of
/// them, and names the first 16.
#[tokio::test]
async fn what_cannot_be_queued_is_due_again_after_a_minute() {
    let (_clock, _redis, mut state) = scene().await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.events("bad:1"), "x"]).await;
    state
        .run("SET", &[&keys.events_scheduled_of("bad:2"), "x"])
        .await;
    for n in 0..16 {
        state
            .run(
                "ZADD",
                &[
                    &keys.events_scheduled(),
                    &(NOW - 100 + n).to_string(),
                    &format!("bad:1\nk{n:02}"),
                ],
            )
            .await;
    }
    state
        .run(
            "ZADD",
            &[&keys.events_scheduled(), &NOW.to_string(), "bad:2\nk"],
        )
        .await;
    let done = promote(&mut state, 100, MIB).await;
    let next_due = Some(Duration::from_secs(60));
    let wrong = (0..16)
        .map(|n| {
            (
                format!("bad:1\nk{n:02}").into_bytes(),
                "wrong bad:1:events".to_owned(),
            )
        })
        .collect();
    let expected = Promoted {
        events: 0,
        next_due,
        markers: 0,
        names: 0,
        next_cron: None,
        wrong_count: 17,
        wrong,
    };
    assert_eq!(done, expected);
    let at = (NOW + 60_000) as f64;
    let mut expected: Vec<_> = (0..16)
        .map(|n| pair(&format!("bad:1\nk{n:02}"), at))
        .collect();
    expected.push(pair("bad:2\nk", at));
    assert_eq!(scores(&mut state).await, expected);
}

/// A call queues so many schedules at most. It removes entries that lead to no event, and names
/// them.
#[tokio::test]
async fn entries_that_lead_to_no_event_are_removed() {
    let (_clock, _redis, mut state) = scene().await;
    let keys = state.keys.clone();
    state
        .run(
            "ZADD",
            &[
                &keys.events_scheduled(),
                "1",
                "odd",
                "2",
                "\nk",
                "3",
                "gone:1\nk",
                "4",
                "gone:1\n-",
            ],
        )
        .await;
    for n in 5..=7 {
        schedule(&mut state, "work:1", &format!("-{n}"), n, "1").await;
    }
    let done = promote(&mut state, 6, MIB).await;
    let wrong = [
        ("odd", "name"),
        ("\nk", "name"),
        ("gone:1\nk", "absent"),
        ("gone:1\n-", "absent"),
    ];
    let wrong = wrong
        .map(|(member, why)| (member.as_bytes().to_vec(), why.to_owned()))
        .to_vec();
    let next_due = Some(Duration::ZERO);
    assert_eq!(
        done,
        Promoted {
            events: 2,
            next_due,
            markers: 1,
            names: 0,
            next_cron: None,
            wrong_count: 4,
            wrong
        }
    );
    assert_eq!(scores(&mut state).await, [pair("work:1\n-7", 7.0)]);
}

/// If a user has chosen the key, a reference with the time is queued, and the event stays. A
/// further reference to the same key replaces the newest entry of the queue.
#[tokio::test]
async fn a_reference_has_the_time_at_which_it_was_queued() {
    let (clock, redis, mut state) = scene().await;
    let keys = state.keys.clone();
    for (us, queued) in [
        (NOW_US, &["\0queued 1800000000123456 k"][..]),
        (NOW_US + 5, &["\0queued 1800000000123461 k"]),
    ] {
        clock.stop_at(us);
        schedule(&mut state, "work:1", "k", NOW, "{}").await;
        assert_eq!(promote(&mut state, 100, MIB).await.events, 1);
        assert_eq!(list(&mut state, keys.events("work:1")).await, queued);
        assert_eq!(
            scores(&mut state).await,
            [pair("work:1\nk", -((1_000_000_000_000_000 + us) as f64))]
        );
        let event: String = redis
            .console()
            .await
            .run(&["HGET", &keys.events_scheduled_of("work:1"), "k"])
            .await;
        assert_eq!(event, "{}");
    }
}

/// A call queues schedules until their events have the given number of bytes.
#[tokio::test]
async fn a_call_queues_events_up_to_a_number_of_bytes() {
    for (bytes, events) in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3)] {
        let (_clock, _redis, mut state) = scene().await;
        for (n, event) in ["a", "bbb", "c"].iter().enumerate() {
            schedule(
                &mut state,
                &format!("work:{n}"),
                "-",
                NOW - 9 + n as u64,
                event,
            )
            .await;
        }
        let done = promote(&mut state, 100, bytes).await;
        let next = if events < 3 {
            Some(Duration::ZERO)
        } else {
            None
        };
        assert_eq!(
            (done.events, done.markers, done.next_due),
            (events, events, next),
            "{bytes}"
        );
    }
}

/// Names that are set aside for groups count as markers, as far as their number is one. With many
/// markers, a call takes few schedules.
#[tokio::test]
async fn names_that_are_set_aside_count_as_markers() {
    let (_clock, _redis, mut state) = scene().await;
    let (waiting, markers) = (
        state.keys.event_groups_waiting(),
        state.keys.objects_with_events(),
    );
    for (command, waits, events, counted) in [
        ("SET", "990", 9, 991),
        ("SET", "993", 8, 994),
        ("SET", "many", 20, 1),
        ("LPUSH", "990", 20, 1),
    ] {
        state.run("FLUSHDB", &[]).await;
        for n in 0..20 {
            schedule(&mut state, &format!("work:{n}"), "-", 7, "1").await;
        }
        state.run(command, &[&waiting, waits]).await;
        state.run("LPUSH", &[&markers, "work:0"]).await;
        let done = promote(&mut state, 100, MIB).await;
        assert_eq!(
            (done.events, done.markers),
            (events, counted + events),
            "{command} {waits}"
        );
    }
}

/// Logs in as a user with these rules.
async fn user(redis: &Redis, state: &mut State, rules: &[&str]) -> State {
    state
        .run(
            "ACL",
            &[
                &["SETUSER", "worker", "reset", "on", "nopass", "+@all"],
                rules,
            ]
            .concat(),
        )
        .await;
    let mut conn = redis.connect().await;
    redis::cmd("AUTH")
        .arg("worker")
        .arg("x")
        .query_async::<()>(&mut conn)
        .await
        .expect("logged in");
    State::new(conn, state.keys.clone())
}

/// Without one of three rights, no schedule is queued. If none is due, a call needs none of them.
#[tokio::test]
async fn without_one_of_three_rights_nothing_is_queued() {
    let (_clock, redis, mut state) = scene().await;
    let keys: Keys = state.keys.clone();
    for command in ["HDEL", "ZREM", "ZADD"] {
        let mut worker = user(
            &redis,
            &mut state,
            &["~*", &format!("-{}", command.to_lowercase())],
        )
        .await;
        schedule(&mut state, "work:1", "-", NOW + 1, "1").await;
        assert_eq!(promote(&mut worker, 100, MIB).await.events, 0, "{command}");
        schedule(&mut state, "work:1", "-", NOW, "1").await;
        let denied = wire::promote(&mut worker.conn, &keys, 100, MIB).await;
        assert!(
            matches!(&denied, Err(wire::ScriptError::Denied(denied)) if denied == command),
            "{command}: {denied:?}"
        );
        assert_eq!(
            list(&mut state, keys.events("work:1")).await,
            [""; 0],
            "{command}"
        );
        assert_eq!(
            scores(&mut state).await,
            [pair("work:1\n-", NOW as f64)],
            "{command}"
        );
    }
}

/// The push to one queue fails. The events before it are queued with their markers, and counted;
/// those behind it stay.
#[tokio::test]
async fn a_push_that_fails_stops_only_the_events_behind_it() {
    let (_clock, redis, mut state) = scene().await;
    let keys = state.keys.clone();
    for n in 1..=3 {
        schedule(&mut state, &format!("work:{n}"), "-", n, "1").await;
    }
    let own = |end: &str| format!("~{}{end}", keys.prefix());
    let rules = [
        "%R~*",
        &own("events.scheduled*"),
        &own("work:?:events.scheduled"),
        &own("work:1:*"),
        &own("work:3:*"),
    ];
    let mut worker = user(
        &redis,
        &mut state,
        &[&rules[..], &[&own("objects.with.events")]].concat(),
    )
    .await;
    let refused = wire::promote(&mut worker.conn, &keys, 100, MIB)
        .await
        .expect_err("refused")
        .to_string();
    // Redis and Valkey word this error differently.
    assert!(
        ["access", "ermission", "NOPERM"]
            .iter()
            .any(|word| refused.contains(word)),
        "{refused}"
    );
    assert!(
        !refused.contains("ERR "),
        "the code is no part of the text: {refused}"
    );
    let queued = [
        list(&mut state, keys.events("work:1")).await.len(),
        list(&mut state, keys.events("work:3")).await.len(),
    ];
    assert_eq!(queued, [1, 0]);
    assert_eq!(
        list(&mut state, keys.objects_with_events()).await,
        ["work:1"]
    );
    assert_eq!(
        scores(&mut state).await,
        [pair("work:2\n-", 2.0), pair("work:3\n-", 3.0)]
    );
    let late: Vec<(String, u64)> = redis
        .console()
        .await
        .run(&["HGETALL", &keys.events_scheduled_lateness()])
        .await;
    assert_eq!(late, [("inf".to_owned(), 1)]);
}

/// One wake stays, because its member may still be needed. Several wakes are done together.
#[tokio::test]
async fn several_wakes_are_done_together() {
    let (_clock, redis, mut state) = scene().await;
    let wake = state.keys.events_scheduled_wake();
    for (wakes, left) in [(1, 1), (2, 0)] {
        for n in 0..wakes {
            state.run("ZADD", &[&wake, "0", &n.to_string()]).await;
        }
        promote(&mut state, 100, MIB).await;
        assert_eq!(
            redis.console().await.run::<u64>(&["ZCARD", &wake]).await,
            left
        );
    }
    state.run("SET", &[&wake, "x"]).await;
    promote(&mut state, 100, MIB).await;
    assert_eq!(
        redis.console().await.text(&wake).await.as_deref(),
        Some("x")
    );
}
