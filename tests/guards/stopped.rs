//! `adopt` with a clock that stands still: each time in Redis after each call.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Sweep};

use crate::scene::Scene;
use crate::support::sweep::LOOK;

/// The time at which the clock stands still, in microseconds and in ms.
pub(crate) const NOW_US: u64 = 1_800_000_000_123_456;
pub(crate) const NOW: u64 = NOW_US / 1000;
const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;

async fn sweep(scene: &Scene) -> Adopted {
    let sweep = Sweep {
        own: "w",
        crashes_max: 5,
        look: LOOK,
        forget: Duration::from_secs(86_400),
        since: None,
        notice: LOOK,
    };
    let swept = wire::adopt(&mut scene.conn().await, &scene.keys, &sweep).await;
    swept.expect("a sweep")
}

/// Returns the fields of seriatim.meta whose names begin with `clock`.
async fn clock_fields(scene: &Scene) -> String {
    let all: Vec<(String, String)> = scene.run(&["HGETALL", &scene.keys.meta()]).await;
    let fields = all
        .into_iter()
        .filter(|(name, _)| name.starts_with("clock"));
    let mut fields: Vec<_> = fields
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    fields.sort();
    fields.join(", ")
}

/// Returns the fields of the clock after a step back whose times are moved up to here.
fn step(moved: &str) -> String {
    format!("clock {NOW}, clock.step {moved}")
}

fn now() -> String {
    format!("clock {NOW}")
}

/// A clock is behind the written time by more than a second if it has stepped back. The time is
/// written if it is absent, or a second old.
#[tokio::test]
async fn a_step_back_is_one_by_more_than_a_second() {
    for (noted, fields) in [
        ((NOW + 1001).to_string(), step("1001 held 0")),
        ((NOW + 999).to_string(), format!("clock {}", NOW + 999)),
        ((NOW - 999).to_string(), format!("clock {}", NOW - 999)),
        ((NOW - 1000).to_string(), now()),
        ("never".to_owned(), now()),
    ] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene
            .add(&format!("HSET seriatim.meta clock {noted}"))
            .await;
        let swept = sweep(&scene).await;
        let is_step = fields.contains("step");
        assert_eq!((swept.more, swept.moved), (is_step, 0), "{noted}");
        assert_eq!(clock_fields(&scene).await, fields, "{noted}");
    }
    // Without a step, no times move, however many there are.
    let scene = Scene::stopped_at(NOW_US).await;
    let name = |n| format!(" {} m{n}", NOW + HOUR);
    let names: String = (0..1000).map(name).collect();
    scene
        .add(&format!("ZADD event.workers.departed{names}"))
        .await;
    assert!(!sweep(&scene).await.more);
    assert_eq!(clock_fields(&scene).await, now());
}

/// After a step back by an hour, the first call moves rules, the second one held objects, and the
/// third one departed names. A time that is due stays, and no time moves below the present one.
#[tokio::test]
async fn each_kind_of_times_moves_in_its_call() {
    let scene = Scene::stopped_at(NOW_US).await;
    let text = |set: u64, ends: u64| format!("{set} {ends} 0 3 0 ada");
    // Of each rule: when it was set, its end, and what both are after the call.
    let of_rules = [
        ("block early", text(NOW + HOUR, HOUR + 2), text(NOW, 2)),
        ("block ever", text(NOW + HOUR, 0), text(NOW, 0)),
        ("block over", text(NOW + HOUR, HOUR), text(NOW, 1)),
        (
            "pause now",
            text(NOW, NOW + 2 * HOUR),
            text(NOW, NOW + 2 * HOUR),
        ),
        ("pause odd", "odd".to_owned(), "odd".to_owned()),
        (
            "pause since",
            text(NOW + 1, NOW + 2 * HOUR),
            text(NOW + 1 - HOUR, NOW + HOUR),
        ),
    ];
    for (field, before, _) in &of_rules {
        scene
            .add(&format!("HSET event.rules '{field}' '{before}' next 7"))
            .await;
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
    let before = times.map(|(member, at, _)| (member.to_owned(), at as f64));
    let after = times.map(|(member, _, at)| (member.to_owned(), at as f64));
    let [before, after] = [before, after].map(|pairs| {
        let mut pairs = [&pairs[..], &[("never".to_owned(), f64::INFINITY)]].concat();
        pairs.sort_by(|(a, at), (b, then)| at.total_cmp(then).then_with(|| a.cmp(b)));
        pairs
    });
    for (member, at) in &before {
        let pair = format!("{at} {member}");
        scene
            .add(&format!(
                "ZADD objects.held {pair}; ZADD event.workers.departed {pair}"
            ))
            .await;
    }
    // A step back of half an hour before this one has not moved times yet. A gain counts only once.
    let half = HOUR / 2;
    let clock = format!(
        "clock {} clock.step '{half} held 0' clock.gained 5",
        NOW + half
    );
    scene.add(&format!("HSET seriatim.meta {clock}")).await;
    let held = async || scene.scores("objects.held").await;
    let departed = async || scene.scores("event.workers.departed").await;

    let swept = sweep(&scene).await;
    assert_eq!((swept.more, swept.moved), (true, 0));
    assert_eq!(clock_fields(&scene).await, step(&format!("{HOUR} held 0")));
    let rules: Vec<(String, String)> = scene.run(&["HGETALL", &scene.keys.event_rules()]).await;
    let rules: std::collections::BTreeMap<_, _> = rules.into_iter().collect();
    let expected = of_rules
        .into_iter()
        .map(|(field, _, after)| (field.to_owned(), after));
    assert_eq!(
        rules,
        expected
            .chain([("next".to_owned(), "1".to_owned())])
            .collect()
    );
    assert_eq!(
        (held().await, departed().await),
        (before.clone(), before.clone())
    );

    let swept = sweep(&scene).await;
    assert_eq!((swept.more, swept.moved), (true, 5));
    assert_eq!(
        clock_fields(&scene).await,
        step(&format!("{HOUR} departed 0"))
    );
    assert_eq!((held().await, departed().await), (after.clone(), before));

    let swept = sweep(&scene).await;
    assert!(swept.moved == 0, "{swept:?}");
    assert_eq!(clock_fields(&scene).await, now());
    assert_eq!(held().await, after);
    // The call has also looked at the departed names that are due.
    let mut of_departed = departed().await;
    of_departed.retain(|(_, at)| *at > NOW as f64);
    let is_later = |(_, at): &(String, f64)| *at > NOW as f64;
    assert_eq!(
        of_departed,
        after.into_iter().filter(is_later).collect::<Vec<_>>()
    );
}

/// A rule was set at 0 at the earliest, however far the clock steps back.
#[tokio::test]
async fn a_rule_does_not_move_below_0() {
    let scene = Scene::stopped_at(NOW_US).await;
    let far = NOW + HOUR;
    let rule = format!(
        "HSET event.rules 'pause a' '{} 0 0 3 0 ada' next never",
        NOW + 1
    );
    let clock = format!("HSET seriatim.meta clock {NOW} clock.step '{far} rules 0'");
    scene.add(&format!("{rule}; {clock}")).await;
    sweep(&scene).await;
    assert_eq!(clock_fields(&scene).await, step(&format!("{far} held 0")));
    let words = ["HGET", &scene.keys.event_rules(), "pause a"];
    assert_eq!(scene.run::<String>(&words).await, "0 0 0 3 0 ada");
}

/// A call moves 1,000 times. The next call goes on with the highest time that the call has moved.
#[tokio::test]
async fn a_call_moves_1000_times() {
    let far = NOW + 2 * HOUR;
    for (key, kind, left) in [
        ("objects.held", "held", step(&format!("{HOUR} departed 0"))),
        ("event.workers.departed", "departed", now()),
    ] {
        for members in [1000, 1001] {
            let case = format!("{kind} {members}");
            let scene = Scene::stopped_at(NOW_US).await;
            let clock = format!("clock {NOW} clock.step '{HOUR} {kind} 0'");
            let pairs: String = (1..=members)
                .map(|n| format!(" {} m{n}", far + n))
                .collect();
            scene
                .add(&format!("HSET seriatim.meta {clock}; ZADD {key}{pairs}"))
                .await;
            let moved = |count: u64| if kind == "held" { count } else { 0 };
            let swept = sweep(&scene).await;
            assert_eq!((swept.more, swept.moved), (true, moved(1000)), "{case}");
            let on = step(&format!("{HOUR} {kind} {}", far + 1000));
            assert_eq!(clock_fields(&scene).await, on, "{case}");
            let expected = |moved: u64| -> Vec<(String, f64)> {
                let at = |n| if n <= moved { far - HOUR + n } else { far + n };
                (1..=members)
                    .map(|n| (format!("m{n}"), at(n) as f64))
                    .collect()
            };
            assert_eq!(scene.scores(key).await, expected(1000), "{case}");
            assert_eq!(sweep(&scene).await.moved, moved(members - 1000), "{case}");
            assert_eq!(clock_fields(&scene).await, left, "{case}");
            assert_eq!(scene.scores(key).await, expected(members), "{case}");
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
        let scene = Scene::stopped_at(NOW_US).await;
        let (tick, handled) = (NOW + HOUR, format!("{} 7", NOW - 1));
        let next = match wrong {
            "next" => "SET events.cron.next x".to_owned(),
            _ => format!("ZADD events.cron.next {tick} tick"),
        };
        let last = match wrong {
            "last" => "SET events.cron.last x".to_owned(),
            _ => format!("HSET events.cron.last tick '{handled}'"),
        };
        let clock = format!(
            "clock {tick} clock.ahead {} clock.gained {gained}",
            tick - since
        );
        scene
            .add(&format!("{next}; {last}; HSET seriatim.meta {clock}"))
            .await;
        sweep(&scene).await;
        let fields = clock_fields(&scene).await;
        let moves = if is_glitch { "rules" } else { "held" };
        let begins = format!("clock.step {HOUR} {moves} ");
        assert!(fields.contains(&begins), "{gained} {since}: {fields}");
        if wrong != "next" {
            let moved = is_glitch && wrong.is_empty();
            let due = if moved { NOW } else { NOW + HOUR };
            let expected = [("tick".to_owned(), due as f64)];
            assert_eq!(
                scene.scores("events.cron.next").await,
                expected,
                "{gained} {since}"
            );
        }
        if wrong != "last" {
            let words = ["HGET", &scene.keys.events_cron_last(), "tick"];
            assert_eq!(scene.run::<String>(&words).await, handled);
        }
    }
}
