//! `advance`: objects that a rule pauses, and objects that wake.

use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::state::State;
use crate::support::console::Console;
use crate::support::{Redis, control};
use crate::{BOUNDS, attached, objects};

/// The values of a rule in force, and of a lifted one.
const IN_FORCE: &str = "1 0 0 3 0 adanot yet";
const LIFTED: &str = "1 0 1 3 0 adanot yet";

/// Makes a call for 10 free slots. Returns the claimed objects.
async fn claimed(state: &mut State, bounds: Bounds) -> Vec<String> {
    let mut call = Advance::new(&state.keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..10).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    objects(&answer).into_iter().map(str::to_owned).collect()
}

/// Makes paused objects.
async fn pause(state: &mut State, objects: &[String]) {
    for object in objects {
        state
            .run("SET", &[&state.keys.event_worker(object), "held"])
            .await;
        state
            .run("ZADD", &[&state.keys.objects_paused(), "0", object])
            .await;
    }
}

async fn paused(console: &Console) -> Vec<String> {
    console
        .run(&["ZRANGE", &console.keys.objects_paused(), "0", "-1"])
        .await
}

/// A rule pauses an object that has events. It does not pause another object, an object without
/// events, or one in the set of held objects. The last id of a paused object does not expire.
#[tokio::test]
async fn a_rule_pauses_its_objects_that_have_events() {
    for forget_after in [None, Some(Duration::from_secs(100))] {
        for last in [None, Some(5)] {
            let redis = Redis::start();
            let mut state = attached(&redis).await;
            let (keys, console) = (state.keys.clone(), redis.console().await);
            state.given(5).await;
            if let Some(id) = last {
                state.delivered("work:1", id).await;
                state
                    .run("PEXPIRE", &[&keys.last_event_id("work:1"), "100000"])
                    .await;
            }
            for object in ["work:1", "work:2", "work:3", "work:4"] {
                state.emit(object, "1").await;
            }
            for object in ["work:1", "work:3", "work:4"] {
                state
                    .rule(&format!("pause {object}"), IN_FORCE, "never")
                    .await;
            }
            state.run("DEL", &[&keys.events("work:3")]).await;
            state
                .run("ZADD", &[&keys.objects_held(), "inf", "work:4"])
                .await;
            assert_eq!(
                claimed(
                    &mut state,
                    Bounds {
                        forget_after,
                        ..BOUNDS
                    }
                )
                .await,
                ["work:2"]
            );
            assert_eq!(paused(&console).await, ["work:1"]);
            // The owner key of a held object was lost.
            assert_eq!(
                console.text(&keys.event_worker("work:4")).await.as_deref(),
                Some("held")
            );
            assert_eq!(console.list(&keys.events("work:1")).await, ["1"]);
            assert_eq!(
                console.text(&keys.event_worker("work:1")).await.as_deref(),
                Some("held")
            );
            assert_eq!(console.text(&keys.event_worker("work:3")).await, None);
            let expires = console
                .run::<i64>(&["PTTL", &keys.last_event_id("work:1")])
                .await
                > 0;
            assert_eq!(expires, last.is_some() && forget_after.is_none());
        }
    }
}

/// Two pops have moved the same name, of an object without events. A call that reads the rules of
/// this object for one slot does not read them again for the other.
#[tokio::test]
async fn a_call_reads_the_rules_of_an_object_once() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.rule("pause work:2", IN_FORCE, "never").await;
    for slot in ["w.0", "w.1"] {
        let list = state.keys.worker_object(slot);
        state.run("LPUSH", &[&list, "work:1"]).await;
    }
    state.emit("work:3", "1").await;
    assert_eq!(claimed(&mut state, BOUNDS).await, ["work:3"]);
}

/// A call wakes 64 objects of a lifted rule, and later calls go on behind them. The last call
/// deletes the rule.
#[tokio::test]
async fn a_lifted_rule_wakes_so_many_objects_in_a_call() {
    for count in [1, 63, 64, 130] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        let names: Vec<_> = (0..count).map(|n| format!("work:{n:03}")).collect();
        pause(&mut state, &names).await;
        state.rule("pause work:*", LIFTED, "0").await;
        for from in (0..=count).step_by(64) {
            claimed(
                &mut state,
                Bounds {
                    claims: 0,
                    ..BOUNDS
                },
            )
            .await;
            let until = count.min(from + 64);
            assert_eq!(paused(&console).await, names[until..]);
            let held: Vec<String> = console
                .run(&["ZRANGE", &keys.objects_held(), "0", "-1"])
                .await;
            assert_eq!(held.len(), until);
            let cursor = if until - from == 64 {
                Some(format!("1 0 1 3 8 ada{}not yet", names[until - 1]))
            } else {
                None
            };
            assert_eq!(
                console
                    .run::<Option<String>>(&["HGET", &keys.event_rules(), "pause work:*"])
                    .await,
                cursor
            );
        }
        assert!(
            !console.run::<bool>(&["EXISTS", &keys.event_rules()]).await,
            "{count} objects"
        );
    }
}

/// An object stays paused as long as another rule in force applies to it.
#[tokio::test]
async fn an_object_of_two_rules_wakes_with_the_last_one() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    pause(&mut state, &["a:1", "b:1", "b:2"].map(str::to_owned)).await;
    state.rule("pause *", LIFTED, "0").await;
    state.rule("block b:*", IN_FORCE, "0").await;
    claimed(
        &mut state,
        Bounds {
            claims: 0,
            ..BOUNDS
        },
    )
    .await;
    assert_eq!(paused(&console).await, ["b:1", "b:2"]);
    assert!(console.due("a:1").await.is_some_and(f64::is_finite));
    let rules: Vec<String> = console.run(&["HGETALL", &keys.event_rules()]).await;
    let mut rules: Vec<_> = rules.chunks(2).map(|rule| rule.join(": ")).collect();
    rules.sort_unstable();
    assert_eq!(
        rules,
        [format!("block b:*: {IN_FORCE}"), "next: never".to_owned()]
    );
}

/// The next call is due when the next held object is due, or when the next rule ends.
#[tokio::test]
async fn the_next_call_is_due_at_the_end_of_a_rule() {
    for (held, expected) in [(None, 50), (Some(20), 20), (Some(90), 50), (Some(-1), 0)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let now_ms = control(&state.conn, &state.keys)
            .now_ms()
            .await
            .expect("a time");
        let end = (now_ms + 50_000).to_string();
        state
            .rule("pause a:1", &format!("1 {end} 0 3 0 ada"), &end)
            .await;
        if let Some(seconds) = held {
            let due = (now_ms as i64 + seconds * 1000).to_string();
            state.hold("b:1", &due, &["1"], "1 0 1 0 retry: down").await;
        }
        let mut call = Advance::new(
            &state.keys,
            "w",
            "token-1",
            Bounds {
                claims: 0,
                ..BOUNDS
            },
            ClaimFirst::Markers,
        );
        call.free(0);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok {
            next_due: Some(due),
            ..
        } = answer
        else {
            panic!("{answer:?}")
        };
        assert!(
            due.as_secs() <= expected && due.as_secs() + 15 > expected,
            "{held:?}: {due:?}"
        );
    }
}

/// The time of the next wake was changed by hand. If it is no number, the call looks at all rules and
/// writes the time again. A rule in force still counts, and no call fails.
#[tokio::test]
async fn a_time_of_the_next_wake_that_is_no_number_is_written_again() {
    for next in ["x", "", "nan", "-nan"] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.rule("pause work:1", IN_FORCE, next).await;
        state.emit("work:1", "1").await;
        state.emit("work:2", "2").await;
        assert_eq!(claimed(&mut state, BOUNDS).await, ["work:2"], "{next:?}");
        assert_eq!(paused(&console).await, ["work:1"], "{next:?}");
        let written: String = console.run(&["HGET", &keys.event_rules(), "next"]).await;
        assert_eq!(written, "never", "{next:?}");
    }
}

/// A reply has room for any time that Redis can store, of a held object or of the end of a rule.
#[tokio::test]
async fn a_time_that_is_no_whole_number_of_ms_is_told_as_a_late_one() {
    for late in ["1e300", "99999999999999999999"] {
        for is_rule in [true, false] {
            let redis = Redis::start();
            let mut state = attached(&redis).await;
            if is_rule {
                state.rule("pause work:1", IN_FORCE, late).await;
            } else {
                state.hold("work:1", late, &[], "0 0 0 0 stop").await;
            }
            let call = Advance::new(&state.keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
            let answer = wire::advance(&mut state.conn, &call).await;
            let Ok(Advanced::Ok {
                next_due: Some(due),
                ..
            }) = answer
            else {
                panic!("{late}, rule: {is_rule}: {answer:?}")
            };
            assert!(due > Duration::from_secs(1 << 30), "{due:?}");
        }
    }
}
