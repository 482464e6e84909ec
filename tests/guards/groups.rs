//! Names that are set aside for groups: their ages, and numbers that are wrong.

use seriatim::control::Control;
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, ask, attached, objects};

/// Marks, and names that came between them, each with its time: `GROUP:MS`.
async fn push(state: &mut State, control: &Control, seconds: u64) -> u64 {
    let base = control.now_ms().await.expect("a time") - seconds * 1000;
    let keys = state.keys.clone();
    state
        .run("ZADD", &[&keys.event_marks(), &base.to_string(), "met"])
        .await;
    for second in 0..seconds {
        let at = base + second * 1000;
        let mut names = Vec::new();
        if second > 0 {
            state
                .run(
                    "ZADD",
                    &[&keys.event_marks(), &at.to_string(), &at.to_string()],
                )
                .await;
            names.push(format!("\0t{at}"));
        }
        // One group came early, one late, and one all the time. The last has an empty name.
        let third = seconds / 3;
        names.push(format!("all:{}", at + 300));
        names.push(format!(
            "{}:{}",
            if second < third { "early" } else { "" },
            at + 600
        ));
        if second > 2 * third {
            names.push(format!("late:{}", at + 900));
        }
        let markers = keys.objects_with_events();
        let names: Vec<&str> = [markers.as_str()]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        state.run("LPUSH", &names).await;
    }
    base
}

/// Returns the time of the oldest name that waits, which is in its name.
async fn oldest(state: &mut State) -> Option<u64> {
    let keys = state.keys.clone();
    let lists = ["all", "early", "late", ""].map(|group| keys.group_waiting(group));
    let mut pipe = redis::pipe();
    for list in [keys.objects_with_events()].iter().chain(&lists) {
        pipe.cmd("LRANGE").arg(list).arg(-2).arg(-1);
    }
    let tails: Vec<Vec<String>> = pipe.query_async(&mut state.conn).await.expect("the lists");
    let times = tails
        .iter()
        .flatten()
        .filter(|name| !name.starts_with('\0'));
    times
        .filter_map(|name| name.rsplit(':').next()?.parse().ok())
        .min()
}

/// Story: names were set aside, and their marks were met. So the age of the oldest marker was 0
/// while names had waited for an hour.
#[tokio::test]
async fn the_age_of_names_that_are_set_aside_is_known() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let (keys, control) = (state.keys.clone(), control(&state.conn, &state.keys));
    let base = push(&mut state, &control, 3600).await;
    let (mut calls, mut worst, mut aside_most) = (0, 0, 0);
    while let Some(oldest_ms) = oldest(&mut state).await {
        let stats = control.stats().await.expect("stats");
        let (is, shown) = (
            stats.now_ms - oldest_ms,
            stats
                .oldest_waiting_ms
                .unwrap_or_else(|| panic!("the age is unknown: {stats:?}")),
        );
        worst = worst.max(is.abs_diff(shown));
        aside_most = aside_most.max(stats.groups.set_aside);
        assert!(
            is.abs_diff(shown) <= 1100,
            "after {calls} calls: {is} ms, shown {shown} ms, base {base}: {stats:?}"
        );
        if calls % 20 == 0 {
            let report = control.check().await.expect("a report");
            assert!(report.is_clean(), "after {calls} calls: {report:#?}");
        }
        // A worker without groups drains the lists, too.
        let depth = usize::from(calls % 3 < 2);
        let bounds = Bounds {
            markers: 90 + calls % 7,
            group_depth: depth,
            claims: 2,
            ..BOUNDS
        };
        ask(&mut state, bounds).await.expect("an answer");
        calls += 1;
        assert!(calls < 1000, "the names are used up: {stats:?}");
    }
    println!(
        "{calls} calls, at most {aside_most} names set aside, the age was wrong by at most {worst} ms"
    );
    assert!(
        calls > 80 && aside_most > 3000,
        "{calls} calls, {aside_most} names"
    );
    ask(
        &mut state,
        Bounds {
            group_depth: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    for key in [
        keys.event_groups(),
        keys.event_groups_waiting(),
        keys.event_groups_times(),
    ] {
        assert_eq!(
            redis.console().await.run::<u64>(&["EXISTS", &key]).await,
            0,
            "{key}"
        );
    }
    assert_eq!(
        control.stats().await.expect("stats").oldest_waiting_ms,
        Some(0)
    );
}

/// Without marks there are no times, and the age is unknown. A key of a wrong type stops no claim.
#[tokio::test]
async fn without_marks_the_age_of_names_that_are_set_aside_is_unknown() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let (keys, control) = (state.keys.clone(), control(&state.conn, &state.keys));
    for wrong in [false, true] {
        if wrong {
            state.run("SET", &[&keys.event_groups_times(), "x"]).await;
            state.run("ZADD", &[&keys.event_marks(), "1", "met"]).await;
        }
        for object in ["a:1", "a:2", "a:3", "a:4", "b"] {
            state.emit(&format!("{object}{wrong}"), "{}").await;
        }
        let mut got = Vec::new();
        let answer = ask(
            &mut state,
            Bounds {
                group_depth: 1,
                claims: 2,
                ..BOUNDS
            },
        )
        .await
        .expect("an answer");
        got.extend(objects(&answer).into_iter().map(str::to_owned));
        assert_eq!(got, [format!("a:1{wrong}"), format!("b{wrong}")]);
        let stats = control.stats().await.expect("stats");
        assert_eq!(
            (stats.markers, stats.oldest_waiting_ms),
            (3, None),
            "{stats:?}"
        );
        assert_eq!(
            stats.unreadable,
            if wrong {
                vec![keys.event_groups_times()]
            } else {
                vec![]
            }
        );
        state.run("FLUSHDB", &[]).await;
        state = attached(&redis).await;
    }
}

/// Groups take turns if more objects wait than there are free slots, even if the caller has room
/// for more, or if a slot has become free because it has lost its tag. The end of the last group is
/// no loss.
#[tokio::test]
async fn groups_take_turns_if_more_objects_wait_than_free_slots() {
    for is_lost in [false, true] {
        let redis = Redis::own(&[]);
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        let depth = Bounds {
            group_depth: 1,
            ..BOUNDS
        };
        let mut call = Advance::new(&keys, "w", "token-1", depth, ClaimFirst::Markers);
        call.free(0);
        if is_lost {
            state.own("w.1", "work:1", 7, &["1"]).await;
            state.run("DEL", &[&keys.worker_event_id("w.1")]).await;
            call.free(1);
        }
        let slots = 1 + usize::from(is_lost);
        for n in 0..=slots {
            state.emit(&format!("a:{n}"), "{}").await;
        }
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(objects(&answer).len(), slots);
        let console = redis.console().await;
        let last = format!("a:{slots}");
        assert_eq!(console.list(&keys.group_waiting("a")).await, [&*last]);
        // Both slots are free again.
        for worker in ["w.0", "w.1"] {
            let batch = [keys.worker_event(worker), keys.worker_event_id(worker)];
            state.run("DEL", &[&batch[0], &batch[1]]).await;
        }
        let mut call = Advance::new(&keys, "w", "token-1", depth, ClaimFirst::Markers);
        call.free(0);
        call.free(1);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(objects(&answer), [&*last]);
        assert!(
            matches!(&answer, Advanced::Ok { quarantined, .. } if quarantined.is_empty()),
            "{answer:?}"
        );
        assert_eq!(console.text(&keys.event_groups_waiting()).await, None);
    }
}

/// A number of names that is too high, as after the loss of all lists, does not stop Redis. The
/// loss is told.
#[tokio::test]
async fn a_number_of_names_that_is_too_high_is_corrected() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    for groups in [&[] as &[&str], &["a", "b"]] {
        for depth in [0, 1] {
            state.run("SET", &[&keys.event_groups_waiting(), "1"]).await;
            for group in groups {
                state.run("ZADD", &[&keys.event_groups(), "1", group]).await;
            }
            let answer = ask(
                &mut state,
                Bounds {
                    group_depth: depth,
                    ..BOUNDS
                },
            )
            .await
            .expect("an answer");
            let Advanced::Ok {
                batches,
                quarantined,
                ..
            } = &answer
            else {
                panic!("{answer:?}")
            };
            assert!(batches.is_empty(), "{answer:?}");
            let told: Vec<&str> = quarantined.iter().map(|(name, _)| &**name).collect();
            assert_eq!(told, ["event.groups"], "{groups:?} {depth}");
            let left: u64 = redis
                .console()
                .await
                .run(&["EXISTS", &keys.event_groups(), &keys.event_groups_waiting()])
                .await;
            assert_eq!(left, 0, "{groups:?} {depth}");
        }
    }
}
