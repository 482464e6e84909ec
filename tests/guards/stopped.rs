//! `adopt` with a clock that stands still: each time in Redis after each call.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Sweep};

use crate::state::State;
use crate::support::Redis;
use crate::support::clock::Clock;
use crate::support::sweep::LOOK;

/// The time at which the clock stands still, in microseconds and in ms.
pub(crate) const NOW_US: u64 = 1_800_000_000_123_456;
pub(crate) const NOW: u64 = NOW_US / 1000;
const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;

/// Returns a state whose clock stands still.
pub(crate) async fn scene() -> (Clock, Redis, State) {
    let clock = Clock::new();
    let redis = Redis::with_stopped_clock(&clock);
    let state = State::new(redis.connect().await, redis.keys().clone());
    clock.stop_at(NOW_US);
    (clock, redis, state)
}

async fn sweep(state: &mut State) -> Adopted {
    let keys = state.keys.clone();
    let sweep = Sweep {
        own: "w",
        crashes_max: 5,
        look: LOOK,
        forget: Duration::from_secs(86_400),
        since: None,
        notice: LOOK,
    };
    wire::adopt(&mut state.conn, &keys, &sweep)
        .await
        .expect("a sweep")
}

/// Returns the fields of seriatim.meta whose names begin with `clock`.
async fn clock_fields(state: &mut State) -> Vec<String> {
    let all: Vec<(String, String)> = redis::cmd("HGETALL")
        .arg(state.keys.meta())
        .query_async(&mut state.conn)
        .await
        .expect("fields");
    let mut fields: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| name.starts_with("clock"))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    fields.sort();
    fields
}

async fn scores(state: &mut State, key: &str) -> Vec<(String, f64)> {
    redis::cmd("ZRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .arg("WITHSCORES")
        .query_async(&mut state.conn)
        .await
        .expect("scores")
}

/// A clock is behind the written time by more than a second if it has stepped back. The time is
/// written if it is absent, or a second old.
#[tokio::test]
async fn a_step_back_is_one_by_more_than_a_second() {
    let (_clock, _redis, mut state) = scene().await;
    let meta = state.keys.meta();
    for (noted, fields) in [
        (
            (NOW + 1001).to_string(),
            vec![format!("clock {NOW}"), "clock.step 1001 held 0".to_owned()],
        ),
        (
            (NOW + 999).to_string(),
            vec![format!("clock {}", NOW + 999)],
        ),
        (
            (NOW - 999).to_string(),
            vec![format!("clock {}", NOW - 999)],
        ),
        ((NOW - 1000).to_string(), vec![format!("clock {NOW}")]),
        ("never".to_owned(), vec![format!("clock {NOW}")]),
    ] {
        state.run("DEL", &[&meta]).await;
        state.run("HSET", &[&meta, "clock", &noted]).await;
        let swept = sweep(&mut state).await;
        assert_eq!((swept.more, swept.moved), (fields.len() > 1, 0), "{noted}");
        assert_eq!(clock_fields(&mut state).await, fields, "{noted}");
    }
    // Without a step, no times move, however many there are.
    let departed = state.keys.event_workers_departed();
    for n in 0..1000 {
        state
            .run(
                "ZADD",
                &[&departed, &(NOW + HOUR).to_string(), &format!("m{n}")],
            )
            .await;
    }
    state.run("DEL", &[&meta]).await;
    assert!(!sweep(&mut state).await.more);
    assert_eq!(clock_fields(&mut state).await, [format!("clock {NOW}")]);
}

/// After a step back by an hour, the first call moves rules, the second one held objects, and the
/// third one departed names. A time that is due stays, and no time moves below the present one.
#[tokio::test]
async fn each_kind_of_times_moves_in_its_call() {
    let (_clock, _redis, mut state) = scene().await;
    let (meta, rules, keys) = (
        state.keys.meta(),
        state.keys.event_rules(),
        state.keys.clone(),
    );
    let text = |set: u64, ends: u64| format!("{set} {ends} 0 3 0 ada");
    // Of each rule: when it was set, its end, and what both are after the call.
    let of_rules = [
        (
            "pause now",
            text(NOW, NOW + 2 * HOUR),
            text(NOW, NOW + 2 * HOUR),
        ),
        (
            "pause since",
            text(NOW + 1, NOW + 2 * HOUR),
            text(NOW + 1 - HOUR, NOW + HOUR),
        ),
        ("block ever", text(NOW + HOUR, 0), text(NOW, 0)),
        ("block over", text(NOW + HOUR, HOUR), text(NOW, 1)),
        ("block early", text(NOW + HOUR, HOUR + 2), text(NOW, 2)),
        ("pause odd", "odd".to_owned(), "odd".to_owned()),
    ];
    for (field, before, _) in &of_rules {
        state.rule(field, before, "7").await;
    }
    let times = [
        ("due", NOW - 5, NOW - 5),
        ("now", NOW, NOW),
        ("next", NOW + 1, NOW),
        ("half", NOW + HOUR / 2, NOW),
        ("hour", NOW + HOUR, NOW),
        ("later", NOW + HOUR + 1, NOW + 1),
        ("late", NOW + HOUR + MINUTE, NOW + MINUTE),
    ];
    let mut expected: Vec<_> = times
        .iter()
        .map(|(member, _, after)| ((*member).to_owned(), *after as f64))
        .collect();
    let mut before: Vec<_> = times
        .iter()
        .map(|(member, before, _)| ((*member).to_owned(), *before as f64))
        .collect();
    for pairs in [&mut expected, &mut before] {
        pairs.push(("never".to_owned(), f64::INFINITY));
        pairs.sort_by(|(a, at), (b, then)| at.total_cmp(then).then_with(|| a.cmp(b)));
    }
    let (held, departed) = (keys.objects_held(), keys.event_workers_departed());
    for (member, at) in &before {
        for key in [&held, &departed] {
            state.run("ZADD", &[key, &at.to_string(), member]).await;
        }
    }
    // A step back of half an hour before this one has not moved times yet. A gain counts only once.
    let step = format!("{} held 0", HOUR / 2);
    state
        .run(
            "HSET",
            &[
                &meta,
                "clock",
                &(NOW + HOUR / 2).to_string(),
                "clock.step",
                &step,
                "clock.gained",
                "5",
            ],
        )
        .await;

    let swept = sweep(&mut state).await;
    assert_eq!((swept.more, swept.moved), (true, 0));
    assert_eq!(
        clock_fields(&mut state).await,
        [format!("clock {NOW}"), format!("clock.step {HOUR} held 0")]
    );
    for (field, _, after) in &of_rules {
        let rule: String = redis::cmd("HGET")
            .arg(&rules)
            .arg(field)
            .query_async(&mut state.conn)
            .await
            .expect("a rule");
        assert_eq!(rule, *after, "{field}");
    }
    let next: String = redis::cmd("HGET")
        .arg(&rules)
        .arg("next")
        .query_async(&mut state.conn)
        .await
        .expect("a time");
    assert_eq!(next, "1");
    assert_eq!(
        (
            scores(&mut state, &held).await,
            scores(&mut state, &departed).await
        ),
        (before.clone(), before.clone())
    );

    let swept = sweep(&mut state).await;
    assert_eq!((swept.more, swept.moved), (true, 5));
    assert_eq!(
        clock_fields(&mut state).await,
        [
            format!("clock {NOW}"),
            format!("clock.step {HOUR} departed 0")
        ]
    );
    assert_eq!(
        (
            scores(&mut state, &held).await,
            scores(&mut state, &departed).await
        ),
        (expected.clone(), before)
    );

    let swept = sweep(&mut state).await;
    assert!(swept.moved == 0, "{swept:?}");
    assert_eq!(clock_fields(&mut state).await, [format!("clock {NOW}")]);
    assert_eq!(scores(&mut state, &held).await, expected);
    // The call has also looked at the departed names that are due.
    let not_due = |pairs: Vec<(String, f64)>| {
        pairs
            .into_iter()
            .filter(|(_, at)| *at > NOW as f64)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        not_due(scores(&mut state, &departed).await),
        not_due(expected)
    );
}

/// A rule was set at 0 at the earliest, however far the clock steps back.
#[tokio::test]
async fn a_rule_does_not_move_below_0() {
    let (_clock, redis, mut state) = scene().await;
    let (meta, keys) = (state.keys.meta(), state.keys.clone());
    state
        .rule("pause a", &format!("{} 0 0 3 0 ada", NOW + 1), "never")
        .await;
    state
        .run(
            "HSET",
            &[
                &meta,
                "clock",
                &NOW.to_string(),
                "clock.step",
                &format!("{} rules 0", NOW + HOUR),
            ],
        )
        .await;
    sweep(&mut state).await;
    assert_eq!(
        clock_fields(&mut state).await[1],
        format!("clock.step {} held 0", NOW + HOUR)
    );
    let rule: String = redis
        .console()
        .await
        .run(&["HGET", &keys.event_rules(), "pause a"])
        .await;
    assert_eq!(rule, "0 0 0 3 0 ada");
}

/// A call moves 1,000 times. The next call goes on with the highest time that the call has moved.
#[tokio::test]
async fn a_call_moves_1000_times() {
    let (_clock, _redis, mut state) = scene().await;
    let (meta, keys) = (state.keys.meta(), state.keys.clone());
    for (key, kind, left) in [
        (keys.objects_held(), "held", Some("departed")),
        (keys.event_workers_departed(), "departed", None),
    ] {
        for members in [1000, 1001] {
            state
                .run(
                    "DEL",
                    &[&keys.objects_held(), &keys.event_workers_departed(), &meta],
                )
                .await;
            state
                .run(
                    "HSET",
                    &[
                        &meta,
                        "clock",
                        &NOW.to_string(),
                        "clock.step",
                        &format!("{HOUR} {kind} 0"),
                    ],
                )
                .await;
            let pairs: Vec<String> = (1..=members)
                .flat_map(|n| [(NOW + 2 * HOUR + n).to_string(), format!("m{n}")])
                .collect();
            let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
            state
                .run("ZADD", &[&[key.as_str()], &pairs[..]].concat())
                .await;
            let moved = |count: usize| if kind == "held" { count as u64 } else { 0 };
            let swept = sweep(&mut state).await;
            assert_eq!(
                (swept.more, swept.moved),
                (true, moved(1000)),
                "{kind} {members}"
            );
            let step = format!("clock.step {HOUR} {kind} {}", NOW + 2 * HOUR + 1000);
            assert_eq!(
                clock_fields(&mut state).await,
                [format!("clock {NOW}"), step],
                "{kind} {members}"
            );
            let least = NOW + HOUR + 1;
            let expected = |moved: u64| -> Vec<(String, f64)> {
                let at = |n: u64| {
                    if n <= moved {
                        least - 1 + n
                    } else {
                        NOW + 2 * HOUR + n
                    }
                };
                (1..=members)
                    .map(|n| (format!("m{n}"), at(n) as f64))
                    .collect()
            };
            assert_eq!(
                scores(&mut state, &key).await,
                expected(1000),
                "{kind} {members}"
            );
            let swept = sweep(&mut state).await;
            assert_eq!(
                swept.moved,
                moved(members as usize - 1000),
                "{kind} {members}"
            );
            let step = left.map(|left| format!("clock.step {HOUR} {left} 0"));
            assert_eq!(
                clock_fields(&mut state).await[1..],
                step.into_iter().collect::<Vec<_>>(),
                "{kind} {members}"
            );
            assert_eq!(
                scores(&mut state, &key).await,
                expected(members),
                "{kind} {members}"
            );
        }
    }
}

/// A step back ends a glitch if it is as long as the step ahead, give or take 5 s, and if less time
/// than that has passed since the step ahead. Then the jobs are due now. A job whose ticks are not
/// handled up to a time ahead keeps its value. Keys of a wrong type are left as they are.
#[tokio::test]
async fn only_the_end_of_a_glitch_moves_jobs() {
    for (gained, since, wrong, is_glitch) in [
        (HOUR, 1, "", true),
        (HOUR - 5000, 1, "", true),
        (HOUR - 5001, 1, "", false),
        (HOUR + 5000, 1, "", true),
        (HOUR + 5001, 1, "", false),
        (HOUR, HOUR - 1, "", true),
        (HOUR, HOUR, "", false),
        (HOUR, 1, "next", true),
        (HOUR, 1, "last", true),
    ] {
        let (_clock, redis, mut state) = scene().await;
        let keys = state.keys.clone();
        let (next, last) = (keys.events_cron_next(), keys.events_cron_last());
        let (tick, handled) = ((NOW + HOUR).to_string(), format!("{} 7", NOW - 1));
        match wrong {
            "next" => state.run("SET", &[&next, "x"]).await,
            _ => state.run("ZADD", &[&next, &tick, "tick"]).await,
        }
        match wrong {
            "last" => state.run("SET", &[&last, "x"]).await,
            _ => state.run("HSET", &[&last, "tick", &handled]).await,
        }
        let [noted, ahead] = [0, since].map(|ms| (NOW + HOUR - ms).to_string());
        let fields = [
            ["clock", &noted],
            ["clock.ahead", &ahead],
            ["clock.gained", &gained.to_string()],
        ];
        let fields = fields.concat();
        state
            .run("HSET", &[&[&*keys.meta()], &fields[..]].concat())
            .await;
        sweep(&mut state).await;
        let step = clock_fields(&mut state).await.pop().expect("a step");
        let moves = if is_glitch { "rules" } else { "held" };
        let begins = format!("clock.step {HOUR} {moves} ");
        assert!(step.starts_with(&begins), "{gained} {since}: {step}");
        if wrong != "next" {
            let moved = is_glitch && wrong.is_empty();
            let due = if moved { NOW } else { NOW + HOUR };
            assert_eq!(
                scores(&mut state, &next).await,
                [("tick".to_owned(), due as f64)],
                "{gained} {since}"
            );
        }
        if wrong != "last" {
            let console = redis.console().await;
            let left: String = console.run(&["HGET", &last, "tick"]).await;
            assert_eq!(left, handled);
        }
    }
}
