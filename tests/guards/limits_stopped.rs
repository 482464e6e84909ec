//! Limits of shares with a clock that stands still: the time of the next look at groups that wait,
//! to the ms, and their scores.

use std::time::Duration;

use seriatim::control::shares::Share;
use seriatim::wire::{self, Advance, Advanced, ClaimFirst};

use crate::limits::{LATER, block, blocked, limit, pair, park, set};
use crate::scene::{ATTACH, BOUNDS, Scene, bounds};
use crate::stopped::{NOW, NOW_US};

/// Returns a scene with a share of all objects, and a worker with two slots.
async fn limited() -> Scene {
    let scene = Scene::stopped_at(NOW_US).await;
    scene.attach(&ATTACH).await;
    set(&scene, "*", Share::new().in_flight(1000)).await;
    scene
}

/// Makes a call. Returns its objects, and the time in ms after which the next call is due.
async fn call(scene: &Scene) -> String {
    let answer = scene.free(0..2, BOUNDS).await;
    let due = answer
        .next_due
        .map(|due| format!("in {} ms", due.as_millis()));
    format!("{}{}", answer.objects().join(" "), due.unwrap_or_default())
}

/// One worker looks when a look is of use. Another one takes its place if it is more than 10 ms
/// late, or looks more than 2 ms after that time. Otherwise the other one looks later, by a time
/// that depends on its name and on the number of workers.
#[tokio::test]
async fn the_next_look_is_exact() {
    let scene = limited().await;
    set(&scene, "r:*", Share::new().rate(0.2)).await;
    park(&scene, "r", 2.0).await;
    for (due, next_look, after, by) in [
        (5000, None, 5000, "w"),
        (20, None, 20, "w"),
        (19, None, 20, "w"),
        (5000, Some((NOW - 10, "a")), 5016, "a"),
        (5000, Some((NOW - 11, "a")), 5000, "w"),
        (5000, Some((NOW + 5002, "a")), 5016, "a"),
        (5000, Some((NOW + 5003, "a")), 5000, "w"),
        (5000, Some((NOW + 4000, "w")), 5000, "w"),
        (5000, Some((0, "")), 5000, "w"),
    ] {
        scene.add("DEL event.groups.look").await;
        block(&scene, "r", NOW + due).await;
        if let Some((at, name)) = next_look {
            scene
                .add(&format!("SET event.groups.look '{at} {name}'"))
                .await;
        }
        assert_eq!(
            call(&scene).await,
            format!("in {after} ms"),
            "{due} {next_look:?}"
        );
        let at = next_look
            .filter(|(_, name)| *name == by && by != "w")
            .map_or(NOW + after, |(at, _)| at);
        let look = scene.text(&scene.keys.event_groups_look()).await;
        assert_eq!(look, Some(format!("{at} {by}")), "{due} {next_look:?}");
    }
}

/// Each other worker looks up to 20 ms later for each worker name, up to 400 ms later at the most:
/// by the first half of this time, and by a part of the other half that its name decides.
#[tokio::test]
async fn the_looks_of_other_workers_are_exact() {
    // The first digits of the SHA-1 of these names are aff0 and 8000.
    for (name, names, later) in [
        ("w", 1, 16),
        ("w", 19, 320),
        ("w", 20, 337),
        ("w", 21, 337),
        ("w13926", 20, 300),
    ] {
        let scene = limited().await;
        set(&scene, "r:*", Share::new().rate(0.2)).await;
        park(&scene, "r", 2.0).await;
        block(&scene, "r", NOW + 5000).await;
        scene
            .add(&format!("SET event.groups.look '{} a'", NOW + 5000))
            .await;
        scene.add("DEL event.workers.watched").await;
        for n in 0..names {
            scene
                .add(&format!("ZADD event.workers.watched 1 {n}"))
                .await;
        }
        let given = format!("SET event.worker:{name}:lease 'token-1 host 1 1' PX 600000");
        scene.add(&given).await;
        let mut call = Advance::new(&scene.keys, name, "token-1", BOUNDS, ClaimFirst::Markers);
        call.free(0);
        let answer = wire::advance(&mut scene.conn().await, &call).await;
        let Ok(Advanced::Ok { next_due, .. }) = answer else {
            panic!("{answer:?}")
        };
        let expected = Some(Duration::from_millis(5000 + later));
        assert_eq!(next_due, expected, "{name} {names}");
    }
}

/// However slow a rate is, a group is looked at again after 10 s. A call that takes no event
/// changes nothing at the figures of a share.
#[tokio::test]
async fn a_slow_rate_is_looked_at_after_10_seconds() {
    let scene = limited().await;
    set(&scene, "a:*", Share::new().rate(0.001).burst(1)).await;
    let used = format!("9 {} 3 4 5", NOW_US + 1_000_000_000);
    scene
        .add(&format!("HSET event.shares.used a:* '{used}'"))
        .await;
    scene.add("emit a:1 1").await;
    // A part of a ms counts as a whole one.
    assert_eq!(call(&scene).await, "in 10001 ms");
    assert_eq!(blocked(&scene).await, [pair("a", (NOW + 10_001) as f64)]);
    let words = ["HGET", &scene.keys.event_shares_used(), "a:*"];
    assert_eq!(scene.run::<String>(&words).await, used);
}

/// A call looks at groups that are due, and at those that have waited for an object in hand for a
/// second. It also looks at those whose time is 20 s ahead or more, because such a time comes from
/// another clock.
#[tokio::test]
async fn a_call_looks_at_groups_by_their_times() {
    let times = [
        ("due", NOW, true),
        ("soon", NOW + 1, false),
        ("near", NOW + 19_999, false),
        ("far", NOW + 20_000, true),
        ("last", LATER - 1, true),
        ("long", LATER + NOW - 1000, true),
        ("fresh", LATER + NOW - 999, false),
    ];
    let scene = limited().await;
    limit(&scene, &times.map(|(group, ..)| group)).await;
    for (group, score, _) in times {
        park(&scene, group, 2.0).await;
        block(&scene, group, score).await;
    }
    scene.free(0..2, bounds(|b| b.claims = 1)).await;
    let left: Vec<_> = times
        .iter()
        .filter(|(.., looked)| !looked)
        .map(|(group, score, _)| pair(group, *score as f64))
        .collect();
    assert_eq!(blocked(&scene).await, left);
}

/// The groups of a prefix have one time. A group that waits for the rate only lowers it. A group
/// that waits for an object in hand replaces it.
#[tokio::test]
async fn the_time_of_a_prefix_is_the_soonest_for_its_rate() {
    for (before, in_hand, after) in [
        (NOW + 1000, "0 a:8:", NOW + 1000),
        (NOW + 9500, "0 a:8:", NOW + 9001),
        (LATER + NOW - 1, "0 a:8:", NOW + 9001),
        (NOW + 1000, "0 a:8: 0 a:9:", LATER + NOW),
    ] {
        let scene = limited().await;
        set(&scene, "a:*", Share::new().rate(0.01).burst(1).in_flight(2)).await;
        set(&scene, "a:x:*", Share::new().weight(1)).await;
        let used = format!(
            "HSET event.shares.used a:* '9 {} 0 0 0'",
            NOW_US + 9_000_000
        );
        scene
            .add(&format!("{used}; ZADD objects.in.hand {in_hand}"))
            .await;
        block(&scene, "a\n", before).await;
        scene.add("emit a:x:1 1").await;
        assert_eq!(
            scene.free(0..2, BOUNDS).await.objects(),
            [""; 0],
            "{before}"
        );
        assert_eq!(
            blocked(&scene).await,
            [pair("a\n", after as f64)],
            "{before}"
        );
    }
}

/// A group waits for two limits, and one of them is due. The group has no turn before the other one
/// is.
#[tokio::test]
async fn a_group_that_also_waits_for_another_prefix_is_left_out() {
    for other in [false, true] {
        let scene = limited().await;
        set(&scene, "p:*", Share::new().in_flight(9)).await;
        set(&scene, "p:x:*", Share::new().in_flight(9)).await;
        set(&scene, "p:x:y:*", Share::new().weight(1)).await;
        park(&scene, "p:x:y", 2.0).await;
        block(&scene, "p\n", 0).await;
        block(&scene, if other { "p:x\n" } else { "p:z\n" }, LATER + NOW).await;
        let expected: &[&str] = if other { &[] } else { &["p:x:y:1"] };
        assert_eq!(
            scene.free(0..2, BOUNDS).await.objects(),
            expected,
            "{other}"
        );
    }
}

/// Of two limits that are exceeded by the same number of objects, a group waits for that of the
/// shorter prefix.
#[tokio::test]
async fn of_equal_limits_a_group_waits_for_that_of_the_shorter_prefix() {
    let scene = limited().await;
    set(&scene, "a:*", Share::new().in_flight(1)).await;
    set(&scene, "a:x:*", Share::new().in_flight(1)).await;
    scene
        .add("ZADD objects.in.hand 0 a:x:9:; emit a:x:1 1")
        .await;
    assert_eq!(call(&scene).await, "");
    assert_eq!(blocked(&scene).await, [pair("a\n", (LATER + NOW) as f64)]);
}

/// A group that has waited with a higher pass than the others keeps its pass.
#[tokio::test]
async fn a_group_does_not_come_back_with_a_higher_pass() {
    let scene = limited().await;
    limit(&scene, &["a", "b"]).await;
    for (group, pass) in [("a", 5.0), ("b", 50.0)] {
        park(&scene, group, pass).await;
    }
    scene.add("ZADD event.groups 20 a").await;
    block(&scene, "b", 0).await;
    scene.free(0..2, bounds(|b| b.claims = 1)).await;
    assert_eq!(
        scene.scores("event.groups").await,
        [pair("a", 21.0), pair("b", 50.0)]
    );
}
