//! `promote` with a clock that stands still: the reply and each key after a call.

use std::time::Duration;

use seriatim::wire::{self, Promoted, ScriptError};

use crate::scene::Scene;
use crate::stopped::{NOW, NOW_US};

const MIB: usize = 1 << 20;

/// The reply to a call that does nothing.
const NOTHING: Promoted = Promoted {
    events: 0,
    next_due: None,
    markers: 0,
    names: 0,
    next_cron: None,
    wrong_count: 0,
    wrong: Vec::new(),
};

/// Stores a schedule. Its event itself is queued, because no user has chosen the key, if the key
/// begins with `-`.
async fn schedule(scene: &Scene, object: &str, key: &str, due: u64, event: &str) {
    let entry = format!("ZADD events.scheduled {due} '{object}\n{key}'");
    scene
        .add(&format!(
            "HSET {object}:events.scheduled '{key}' {event}; {entry}"
        ))
        .await;
}

async fn promote(scene: &Scene, events: usize, bytes: usize) -> Promoted {
    try_promote(scene, events, bytes).await.expect("a reply")
}

async fn try_promote(scene: &Scene, events: usize, bytes: usize) -> Result<Promoted, ScriptError> {
    wire::promote(&mut scene.conn().await, &scene.keys, events, bytes).await
}

/// The lateness of an event is counted for the lowest bound that is not below it. A schedule that
/// is due now is queued. The reply has the times until the next schedule and the next cron job.
#[tokio::test]
async fn each_event_is_counted_for_the_bound_of_its_lateness() {
    const BOUNDS: [u64; 16] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000,
    ];
    let scene = Scene::stopped_at(NOW_US).await;
    schedule(&scene, "work:1", "-now", NOW, "0").await;
    for bound in BOUNDS {
        schedule(&scene, "work:1", &format!("-{bound}"), NOW - bound, "1").await;
        let above = format!("-above {bound}");
        schedule(&scene, "work:1", &above, NOW - bound - 1, "2").await;
    }
    schedule(&scene, "work:1", "-next", NOW + 1, "3").await;
    scene
        .add(&format!("ZADD events.cron.next {} job", NOW + 7))
        .await;
    scene.add("ZADD event.workers.watched 1 a 1 b").await;
    let expected = Promoted {
        events: 33,
        next_due: Some(Duration::from_millis(1)),
        markers: 1,
        names: 2,
        next_cron: Some(Duration::from_millis(7)),
        ..NOTHING
    };
    assert_eq!(promote(&scene, 100, MIB).await, expected);
    // The newest event is due last.
    let changes = "
        events.scheduled = <work:1\\n-next: NOW+1ms>
        events.scheduled.lateness = {10000: 2, 1000: 2, 100: 2, 10: 2, 1: 2, 2000: 2, 200: 2, 20: 2, 2: 2, 3600000: 2, 5000: 2, 500: 2, 50: 2, 5: 2, 600000: 2, 60000: 2, inf: 1}
        objects.with.events = [work:1]
        work:1: events = [2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 0]; events.scheduled = {-next: 3}
    ";
    scene.changed(changes).await;
}

/// A schedule that cannot be queued is due again after a minute. The reply has the number of all of
/// them, and names the first 16.
#[tokio::test]
async fn what_cannot_be_queued_is_due_again_after_a_minute() {
    let scene = Scene::stopped_at(NOW_US).await;
    let given = "SET bad:1:events x; SET bad:2:events.scheduled x";
    scene.add(given).await;
    let member = |n| format!("bad:1\nk{n:02}");
    let entry = |n| format!("ZADD events.scheduled {} '{}'; ", NOW - 100 + n, member(n));
    scene.add(&(0..16).map(entry).collect::<String>()).await;
    scene
        .add(&format!("ZADD events.scheduled {NOW} 'bad:2\nk'"))
        .await;
    let wrong = (0..16).map(|n| (member(n).into_bytes(), "wrong bad:1:events".to_owned()));
    let expected = Promoted {
        next_due: Some(Duration::from_secs(60)),
        wrong_count: 17,
        wrong: wrong.collect(),
        ..NOTHING
    };
    assert_eq!(promote(&scene, 100, MIB).await, expected);
    let members = (0..16).map(member).chain(["bad:2\nk".to_owned()]);
    let at = (NOW + 60_000) as f64;
    let expected: Vec<_> = members.map(|member| (member, at)).collect();
    assert_eq!(scene.scores("events.scheduled").await, expected);
}

/// A call queues so many schedules at most. It removes entries that lead to no event, and names
/// them.
#[tokio::test]
async fn entries_that_lead_to_no_event_are_removed() {
    let scene = Scene::stopped_at(NOW_US).await;
    let given = "ZADD events.scheduled 1 odd 2 '\nk' 3 'gone:1\nk' 4 'gone:1\n-'";
    scene.add(given).await;
    for n in 5..=7 {
        schedule(&scene, "work:1", &format!("-{n}"), n, "1").await;
    }
    let wrong = [
        ("odd", "name"),
        ("\nk", "name"),
        ("gone:1\nk", "absent"),
        ("gone:1\n-", "absent"),
    ];
    let wrong = wrong.map(|(member, why)| (member.as_bytes().to_vec(), why.to_owned()));
    let expected = Promoted {
        events: 2,
        next_due: Some(Duration::ZERO),
        markers: 1,
        wrong_count: 4,
        wrong: wrong.to_vec(),
        ..NOTHING
    };
    assert_eq!(promote(&scene, 6, MIB).await, expected);
    assert_eq!(scene.at("events.scheduled").await, "<work:1\\n-7: 7>");
}

/// If a user has chosen the key, a reference with the time is queued, and the event stays. A
/// further reference to the same key replaces the newest entry of the queue.
#[tokio::test]
async fn a_reference_has_the_time_at_which_it_was_queued() {
    let scene = Scene::stopped_at(NOW_US).await;
    for us in [NOW_US, NOW_US + 5] {
        scene.clock.as_ref().expect("a clock").stop_at(us);
        schedule(&scene, "work:1", "k", NOW, "{}").await;
        assert_eq!(promote(&scene, 100, MIB).await.events, 1);
        let queue = scene.list(&scene.keys.events("work:1")).await;
        assert_eq!(queue, [format!("\0queued {us} k")]);
        let score = -((1_000_000_000_000_000 + us) as f64);
        assert_eq!(
            scene.scores("events.scheduled").await,
            [("work:1\nk".to_owned(), score)]
        );
        assert_eq!(scene.at("work:1:events.scheduled").await, "{k: {}}");
    }
}

/// A call queues schedules until their events have the given number of bytes.
#[tokio::test]
async fn a_call_queues_events_up_to_a_number_of_bytes() {
    for (bytes, events) in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3)] {
        let scene = Scene::stopped_at(NOW_US).await;
        for (n, event) in (0..).zip(["a", "bbb", "c"]) {
            schedule(&scene, &format!("work:{n}"), "-", NOW - 9 + n, event).await;
        }
        let done = promote(&scene, 100, bytes).await;
        let next = (events < 3).then_some(Duration::ZERO);
        assert_eq!(
            (done.events, done.markers, done.next_due),
            (events, events, next)
        );
    }
}

/// Names that are grouped count as markers, as far as their number is one. With many
/// markers, a call takes few schedules.
#[tokio::test]
async fn names_that_are_grouped_count_as_markers() {
    for (waits, events, counted) in [
        ("SET event.groups.waiting 990", 9, 991),
        ("SET event.groups.waiting 993", 8, 994),
        ("SET event.groups.waiting many", 20, 1),
        ("LPUSH event.groups.waiting 990", 20, 1),
    ] {
        let scene = Scene::stopped_at(NOW_US).await;
        for n in 0..20 {
            schedule(&scene, &format!("work:{n}"), "-", 7, "1").await;
        }
        scene
            .add(&format!("{waits}; LPUSH objects.with.events work:0"))
            .await;
        let done = promote(&scene, 100, MIB).await;
        assert_eq!(
            (done.events, done.markers),
            (events, counted + events),
            "{waits}"
        );
    }
}

/// Without one of three rights, no schedule is queued. If none is due, a call needs none of them.
#[tokio::test]
async fn without_one_of_three_rights_nothing_is_queued() {
    for command in ["HDEL", "ZREM", "ZADD"] {
        for (due, is_due) in [(NOW + 1, false), (NOW, true)] {
            let scene = Scene::stopped_at(NOW_US).await;
            schedule(&scene, "work:1", "-", due, "1").await;
            scene
                .login(&format!("~* +@all -{}", command.to_lowercase()))
                .await;
            match try_promote(&scene, 100, MIB).await {
                Ok(done) => assert_eq!((done.events, is_due), (0, false), "{command}"),
                Err(ScriptError::Denied(denied)) => assert_eq!((&*denied, is_due), (command, true)),
                Err(error) => panic!("{command}: {error}"),
            }
            scene.changed("").await;
        }
    }
}

/// The push to one queue fails. The events before it are queued with their markers, and counted;
/// those behind it stay.
#[tokio::test]
async fn a_push_that_fails_stops_only_the_events_behind_it() {
    let scene = Scene::stopped_at(NOW_US).await;
    for n in 1..=3 {
        schedule(&scene, &format!("work:{n}"), "-", n, "1").await;
    }
    let own = [
        "events.scheduled*",
        "work:?:events.scheduled",
        "work:1:*",
        "work:3:*",
    ];
    let own = own.iter().chain(&["objects.with.events"]);
    let own = own.map(|end| format!(" ~{}{end}", scene.keys.prefix()));
    scene
        .login(&format!("+@all %R~*{}", own.collect::<String>()))
        .await;
    let refused = try_promote(&scene, 100, MIB).await.expect_err("refused");
    let refused = refused.to_string();
    // Redis and Valkey word this error differently.
    let words = ["access", "ermission", "NOPERM"];
    assert!(words.iter().any(|word| refused.contains(word)), "{refused}");
    assert!(
        !refused.contains("ERR "),
        "the code is no part of the text: {refused}"
    );
    let changes = "
        events.scheduled = <work:2\\n-: 2, work:3\\n-: 3>
        events.scheduled.lateness = {inf: 1}
        objects.with.events = [work:1]
        work:1: events = [1]; events.scheduled = nil
    ";
    scene.changed(changes).await;
}

/// One wake stays, because its member may still be needed. Several wakes are done together.
#[tokio::test]
async fn several_wakes_are_done_together() {
    let scene = Scene::stopped_at(NOW_US).await;
    for (wakes, left) in [("0 0", "<0: 0>"), ("0 0 0 1", "nil")] {
        scene
            .add(&format!("ZADD events.scheduled.wake {wakes}"))
            .await;
        promote(&scene, 100, MIB).await;
        assert_eq!(scene.at("events.scheduled.wake").await, left);
    }
    scene.add("SET events.scheduled.wake x").await;
    promote(&scene, 100, MIB).await;
    scene.changed("").await;
}
