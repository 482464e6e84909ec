//! `adopt`: the correction of a clock that has stepped, and times that must not move.

use std::time::Duration;

use seriatim::wire::{self, Marked, Sweep};

use crate::state::State;
use crate::support::Redis;
use crate::support::sweep::{LOOK, sweep};

const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn now_ms(state: &mut State) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME")
        .query_async(&mut state.conn)
        .await
        .expect("TIME");
    seconds * 1000 + micros / 1000
}

async fn meta(state: &mut State, field: &str, value: u64) {
    state
        .run("HSET", &[&state.keys.meta(), field, &value.to_string()])
        .await;
}

async fn due_ms(state: &mut State, object: &str) -> u64 {
    let score: f64 = redis::cmd("ZSCORE")
        .arg(state.keys.objects_held())
        .arg(object)
        .query_async(&mut state.conn)
        .await
        .expect("a due time");
    score as u64
}

/// Story: the clock stepped ahead by an hour, and back again. A pause set before then ended an hour
/// early, and a retry came an hour early: all times moved by the whole step, including those that
/// were right again.
#[tokio::test]
async fn what_was_written_before_a_step_ahead_stays_when_the_clock_steps_back() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let now = now_ms(&mut state).await;
    for (object, due) in [
        ("before", now + 30 * MINUTE_MS),
        ("since", now + HOUR_MS + 10 * MINUTE_MS),
    ] {
        state
            .run(
                "ZADD",
                &[&state.keys.objects_held(), &due.to_string(), object],
            )
            .await;
    }
    let rule = |set: u64, ends: u64| format!("{set} {ends} 0 3 0 ada");
    let ends = now + 2 * HOUR_MS;
    state
        .rule("pause before", &rule(now - MINUTE_MS, ends), "never")
        .await;
    state
        .rule(
            "pause since",
            &rule(now + HOUR_MS - MINUTE_MS, ends),
            "never",
        )
        .await;
    for field in ["clock", "clock.ahead"] {
        meta(&mut state, field, now + HOUR_MS).await;
    }
    meta(&mut state, "clock.gained", HOUR_MS).await;
    let keys = state.keys.clone();
    for _ in 0..5 {
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
    }
    assert_eq!(due_ms(&mut state, "before").await, now + 30 * MINUTE_MS);
    let moved = due_ms(&mut state, "since").await;
    assert!(
        moved.abs_diff(now + 10 * MINUTE_MS) < MINUTE_MS,
        "due in {} ms",
        moved - now
    );
    let console = redis.console().await;
    let field = async |field: &str| {
        console
            .run::<String>(&["HGET", &keys.event_rules(), field])
            .await
    };
    assert_eq!(field("pause before").await, rule(now - MINUTE_MS, ends));
    let since = field("pause since").await;
    let ends_since: u64 = since
        .split(' ')
        .nth(1)
        .and_then(|end| end.parse().ok())
        .expect("an end");
    assert!(ends_since.abs_diff(now + HOUR_MS) < MINUTE_MS, "{since}");
}

/// Story: the rules key had become a string when the clock stepped back. The call that moves the
/// times failed after its first write. The step was forgotten, and held objects waited for an hour,
/// even after the repair.
#[tokio::test]
async fn rules_of_a_wrong_type_do_not_keep_held_objects_from_moving() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let now = now_ms(&mut state).await;
    state
        .run("SET", &[&state.keys.event_rules(), "wrong"])
        .await;
    state
        .run(
            "ZADD",
            &[
                &state.keys.objects_held(),
                &(now + HOUR_MS + MINUTE_MS).to_string(),
                "work:1",
            ],
        )
        .await;
    meta(&mut state, "clock", now + HOUR_MS).await;
    let keys = state.keys.clone();
    for _ in 0..5 {
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
    }
    let due = due_ms(&mut state, "work:1").await;
    assert!(
        due.abs_diff(now + MINUTE_MS) < MINUTE_MS,
        "due in {} ms",
        due - now
    );
}

/// A rule that was set before the clock went wrong stays. If no rule moves, the call still goes on
/// to the held objects.
#[tokio::test]
async fn rules_that_stay_do_not_keep_held_objects_from_moving() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let now = now_ms(&mut state).await;
    let rule = format!("{} {} 0 3 0 ada", now - MINUTE_MS, now + 2 * HOUR_MS);
    state.rule("pause work:2", &rule, "never").await;
    state
        .run(
            "ZADD",
            &[
                &state.keys.objects_held(),
                &(now + HOUR_MS + MINUTE_MS).to_string(),
                "work:1",
            ],
        )
        .await;
    meta(&mut state, "clock", now + HOUR_MS).await;
    let keys = state.keys.clone();
    for _ in 0..5 {
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
    }
    let due = due_ms(&mut state, "work:1").await;
    assert!(
        due.abs_diff(now + MINUTE_MS) < MINUTE_MS,
        "due in {} ms",
        due - now
    );
    let kept: String = redis
        .console()
        .await
        .run(&["HGET", &keys.event_rules(), "pause work:2"])
        .await;
    assert_eq!(kept, rule);
}

/// Shortly after a step ahead, nothing is taken over. A name without a lease gets a later look,
/// like a name with a lease. So it is not the first name of each sweep.
#[tokio::test]
async fn a_name_is_looked_at_later_after_a_step_ahead() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    state.register("dead", 1).await;
    state
        .run("LPUSH", &[&keys.worker_object("dead.0"), "work:1"])
        .await;
    state
        .run("ZADD", &[&keys.event_workers_watched(), "1", "dead"])
        .await;
    let now = now_ms(&mut state).await;
    for field in ["clock", "clock.ahead"] {
        meta(&mut state, field, now).await;
    }
    sweep(&mut state.conn, &keys, "other", 5, DAY)
        .await
        .expect("a sweep");
    let mut ask = redis::cmd("ZSCORE");
    let next: f64 = ask
        .arg(keys.event_workers_watched())
        .arg("dead")
        .query_async(&mut state.conn)
        .await
        .expect("a time");
    assert!(next > now as f64, "{next}");
}

/// The clock steps ahead, and then back by the same time, or by up to 5 s more. Times that were
/// written before both steps do not move.
#[tokio::test]
async fn a_step_back_undoes_a_step_ahead_of_its_length() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, now) = (state.keys.clone(), now_ms(&mut state).await);
    let ahead = now - MINUTE_MS;
    for (back, first) in [(HOUR_MS + 5000, ahead - 5000), (HOUR_MS + 5001, 0)] {
        for (field, value) in [
            ("clock", now),
            ("clock.ahead", ahead),
            ("clock.gained", HOUR_MS),
        ] {
            meta(&mut state, field, value).await;
        }
        state
            .run(
                "HSET",
                &[&keys.meta(), "clock.step", &format!("{back} rules 0")],
            )
            .await;
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
        let mut ask = redis::cmd("HGET");
        let step: String = ask
            .arg(keys.meta())
            .arg("clock.step")
            .query_async(&mut state.conn)
            .await
            .expect("a step");
        assert_eq!(step, format!("{back} held {first}"));
    }
}

/// The clock has gone on by more than 2 s more than the caller's time since its sweep before. This
/// gain is noted, because a step back by more than the gain does not undo the step ahead.
#[tokio::test]
async fn the_gain_of_a_step_ahead_is_noted() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, now) = (state.keys.clone(), now_ms(&mut state).await);
    let (since_ms, gap_ms) = (10 * MINUTE_MS, 10 * MINUTE_MS + 2001);
    meta(&mut state, "clock", now - gap_ms).await;
    let since = Some(Duration::from_millis(since_ms));
    let sweep = Sweep {
        own: "other",
        crashes_max: 5,
        look: LOOK,
        forget: DAY,
        since,
        notice: LOOK,
    };
    assert!(
        wire::adopt(&mut state.conn, &keys, &sweep)
            .await
            .expect("a sweep")
            .is_ahead
    );
    let mut ask = redis::cmd("HMGET");
    ask.arg(keys.meta()).arg(&["clock.ahead", "clock.gained"]);
    let (ahead, gained): (u64, u64) = ask.query_async(&mut state.conn).await.expect("two times");
    assert!((now..=now_ms(&mut state).await).contains(&ahead), "{ahead}");
    assert_eq!(gained, ahead - (now - gap_ms) - since_ms);
}

/// After a step ahead, nothing is taken over until processes can have noticed that their leases have
/// ended: for 2 s more than they need for this, and at least for 5 s. A time ahead of the clock gets
/// closer during the test, and a time in the past gets farther away. So no delay changes the result.
#[tokio::test]
async fn after_a_step_ahead_processes_can_notice_the_end_of_their_leases() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, second) = (state.keys.clone(), Duration::from_secs(1));
    for (notice, patience_ms) in [(second, 5000), (10 * second, 12_000)] {
        let sweep = Sweep {
            own: "other",
            crashes_max: 5,
            look: LOOK,
            forget: DAY,
            since: None,
            notice,
        };
        let now = now_ms(&mut state).await;
        for (ahead, is_ahead) in [(now + patience_ms - 1, true), (now - patience_ms, false)] {
            meta(&mut state, "clock.ahead", ahead).await;
            let swept = wire::adopt(&mut state.conn, &keys, &sweep)
                .await
                .expect("a sweep");
            assert_eq!(swept.is_ahead, is_ahead, "{notice:?}, {ahead}");
        }
    }
}

/// The end of a rule moves back to 1 at the earliest, because 0 means that the rule never ends. So a
/// rule that is over stays over, however often the clock steps back.
#[tokio::test]
async fn a_rule_that_is_over_does_not_become_one_without_an_end() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, now) = (state.keys.clone(), now_ms(&mut state).await);
    let rules = [("pause a", 1, 1), ("pause b", 5, 1), ("pause c", 0, 0)];
    for (field, ends, _) in rules {
        state
            .rule(
                field,
                &format!("{} {ends} 0 3 0 ada", now + HOUR_MS - MINUTE_MS),
                "1",
            )
            .await;
    }
    meta(&mut state, "clock", now + HOUR_MS).await;
    for _ in 0..5 {
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
    }
    let console = redis.console().await;
    for (field, _, ends) in rules {
        let rule: String = console.run(&["HGET", &keys.event_rules(), field]).await;
        let (set, rest) = rule.split_once(' ').expect("a time");
        assert!(set.parse::<u64>().expect("a time") < now, "{field}: {rule}");
        assert_eq!(rest, format!("{ends} 0 3 0 ada"), "{field}");
    }
}

/// A call that moves times only moves times. It does not ask for a mark that is not due.
#[tokio::test]
async fn a_call_that_moves_times_asks_for_no_mark() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, now) = (state.keys.clone(), now_ms(&mut state).await);
    assert_eq!(
        wire::mark(&mut state.conn, &keys).await.expect("a reply"),
        Marked::Noted
    );
    meta(&mut state, "clock", now + HOUR_MS).await;
    let swept = sweep(&mut state.conn, &keys, "other", 5, DAY)
        .await
        .expect("a sweep");
    assert!(swept.more && !swept.mark, "{swept:?}");
}

/// A held object that is set aside for its group is due, whatever the clock does. Its score, which is
/// its due time below 0, does not move.
#[tokio::test]
async fn what_is_set_aside_stays_due_when_the_clock_steps_back() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let now = now_ms(&mut state).await;
    let (aside, timed) = (
        format!("-{}", now + HOUR_MS),
        (now + HOUR_MS + 10 * MINUTE_MS).to_string(),
    );
    state
        .run(
            "ZADD",
            &[&state.keys.objects_held(), &aside, "aside", &timed, "timed"],
        )
        .await;
    meta(&mut state, "clock", now + HOUR_MS).await;
    let keys = state.keys.clone();
    for _ in 0..5 {
        sweep(&mut state.conn, &keys, "other", 5, DAY)
            .await
            .expect("a sweep");
    }
    let moved = due_ms(&mut state, "timed").await;
    assert!(
        moved.abs_diff(now + 10 * MINUTE_MS) < MINUTE_MS,
        "due in {} ms",
        moved - now
    );
    let score: f64 = redis
        .console()
        .await
        .run(&["ZSCORE", &keys.objects_held(), "aside"])
        .await;
    assert_eq!(score, -((now + HOUR_MS) as f64));
}
