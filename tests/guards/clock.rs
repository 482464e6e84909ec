//! `adopt`: the correction of a clock that has stepped, and times that must not move.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Marked, Sweep};

use crate::scene::Scene;
use crate::support::Redis;
use crate::support::sweep::{LOOK, sweep};

const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns a scene, and the time at its beginning.
async fn scene() -> (Scene, u64) {
    let scene = Scene::bare(Redis::start()).await;
    let now = scene.now_ms().await;
    (scene, now)
}

async fn swept(scene: &Scene) -> Adopted {
    let swept = sweep(&mut scene.conn().await, &scene.keys, "other", 5, DAY).await;
    swept.expect("a sweep")
}

/// Sweeps as often as it takes to move all times. The clock has stepped back by an hour.
async fn step_back(scene: &Scene, now: u64) {
    scene
        .add(&format!("HSET seriatim.meta clock {}", now + HOUR_MS))
        .await;
    for _ in 0..5 {
        swept(scene).await;
    }
}

async fn adopt(scene: &Scene, since: Option<Duration>, notice: Duration) -> Adopted {
    let sweep = Sweep {
        own: "other",
        crashes_max: 5,
        look: LOOK,
        forget: DAY,
        since,
        notice,
    };
    let swept = wire::adopt(&mut scene.conn().await, &scene.keys, &sweep).await;
    swept.expect("a sweep")
}

async fn rule(scene: &Scene, field: &str) -> String {
    scene.run(&["HGET", &scene.keys.event_rules(), field]).await
}

/// Asserts that an object is due at this time, give or take a minute.
async fn assert_due(scene: &Scene, object: &str, at: u64) {
    let due = scene.due(object).await.expect("a due time") as u64;
    assert!(due.abs_diff(at) < MINUTE_MS, "due {due}, not {at}");
}

/// Story: the clock stepped ahead by an hour, and back again. A pause set before then ended an hour
/// early, and a retry came an hour early: all times moved by the whole step, including those that
/// were right again.
#[tokio::test]
async fn what_was_written_before_a_step_ahead_stays_when_the_clock_steps_back() {
    let (scene, now) = scene().await;
    let (before, since) = (now + 30 * MINUTE_MS, now + HOUR_MS + 10 * MINUTE_MS);
    scene
        .add(&format!("ZADD objects.held {before} before {since} since"))
        .await;
    let text = |set: u64| format!("{set} {} 0 3 0 ada", now + 2 * HOUR_MS);
    for (field, set) in [
        ("pause before", now - MINUTE_MS),
        ("pause since", now + HOUR_MS - MINUTE_MS),
    ] {
        scene
            .add(&format!(
                "HSET event.rules '{field}' '{}' next never",
                text(set)
            ))
            .await;
    }
    let ahead = format!("clock.ahead {} clock.gained {HOUR_MS}", now + HOUR_MS);
    scene.add(&format!("HSET seriatim.meta {ahead}")).await;
    step_back(&scene, now).await;
    assert_eq!(scene.due("before").await, Some(before as f64));
    assert_due(&scene, "since", now + 10 * MINUTE_MS).await;
    assert_eq!(rule(&scene, "pause before").await, text(now - MINUTE_MS));
    let since = rule(&scene, "pause since").await;
    let ends: u64 = since
        .split(' ')
        .nth(1)
        .expect("an end")
        .parse()
        .expect("a time");
    assert!(ends.abs_diff(now + HOUR_MS) < MINUTE_MS, "{since}");
}

/// Story: the rules key had become a string when the clock stepped back. The call that moves the
/// times failed after its first write. The step was forgotten, and held objects waited for an hour,
/// even after the repair.
#[tokio::test]
async fn rules_of_a_wrong_type_do_not_keep_held_objects_from_moving() {
    let (scene, now) = scene().await;
    let due = now + HOUR_MS + MINUTE_MS;
    scene
        .add(&format!(
            "SET event.rules wrong; ZADD objects.held {due} work:1"
        ))
        .await;
    step_back(&scene, now).await;
    assert_due(&scene, "work:1", now + MINUTE_MS).await;
}

/// A rule that was set before the clock went wrong stays. If no rule moves, the call still goes on
/// to the held objects.
#[tokio::test]
async fn rules_that_stay_do_not_keep_held_objects_from_moving() {
    let (scene, now) = scene().await;
    let text = format!("{} {} 0 3 0 ada", now - MINUTE_MS, now + 2 * HOUR_MS);
    scene
        .add(&format!(
            "HSET event.rules 'pause work:2' '{text}' next never"
        ))
        .await;
    scene
        .add(&format!(
            "ZADD objects.held {} work:1",
            now + HOUR_MS + MINUTE_MS
        ))
        .await;
    step_back(&scene, now).await;
    assert_due(&scene, "work:1", now + MINUTE_MS).await;
    assert_eq!(rule(&scene, "pause work:2").await, text);
}

/// Shortly after a step ahead, nothing is taken over. A name without a lease gets a later look,
/// like a name with a lease. So it is not the first name of each sweep.
#[tokio::test]
async fn a_name_is_looked_at_later_after_a_step_ahead() {
    let (scene, now) = scene().await;
    let given = "HSET event.workers dead '1 t 0'; LPUSH event.worker:dead.0:object work:1";
    scene.add(given).await;
    scene.add("ZADD event.workers.watched 1 dead").await;
    scene
        .add(&format!("HSET seriatim.meta clock {now} clock.ahead {now}"))
        .await;
    swept(&scene).await;
    let watched = scene.scores("event.workers.watched").await;
    assert!(
        watched.len() == 1 && watched[0].1 > now as f64,
        "{watched:?}"
    );
}

/// The clock steps ahead, and then back by the same time, or by up to 5 s more. Times that were
/// written before both steps do not move.
#[tokio::test]
async fn a_step_back_undoes_a_step_ahead_of_its_length() {
    let (scene, now) = scene().await;
    let ahead = now - MINUTE_MS;
    for (back, first) in [(HOUR_MS + 5000, ahead - 5000), (HOUR_MS + 5001, 0)] {
        let clock = format!("clock {now} clock.ahead {ahead} clock.gained {HOUR_MS}");
        scene
            .add(&format!(
                "HSET seriatim.meta {clock} clock.step '{back} rules 0'"
            ))
            .await;
        swept(&scene).await;
        let words = ["HGET", &scene.keys.meta(), "clock.step"];
        assert_eq!(
            scene.run::<String>(&words).await,
            format!("{back} held {first}")
        );
    }
}

/// The clock has gone on by more than 2 s more than the caller's time since its sweep before. This
/// gain is noted, because a step back by more than the gain does not undo the step ahead.
#[tokio::test]
async fn the_gain_of_a_step_ahead_is_noted() {
    let (scene, now) = scene().await;
    let (since_ms, gap_ms) = (10 * MINUTE_MS, 10 * MINUTE_MS + 2001);
    scene
        .add(&format!("HSET seriatim.meta clock {}", now - gap_ms))
        .await;
    let since = Some(Duration::from_millis(since_ms));
    assert!(adopt(&scene, since, LOOK).await.is_ahead);
    let words = ["HMGET", &scene.keys.meta(), "clock.ahead", "clock.gained"];
    let (ahead, gained): (u64, u64) = scene.run(&words).await;
    assert!((now..=scene.now_ms().await).contains(&ahead), "{ahead}");
    assert_eq!(gained, ahead - (now - gap_ms) - since_ms);
}

/// After a step ahead, nothing is taken over until processes can have noticed that their leases have
/// ended: for 2 s more than they need for this, and at least for 5 s. A time ahead of the clock gets
/// closer during the test, and a time in the past gets farther away. So no delay changes the result.
#[tokio::test]
async fn after_a_step_ahead_processes_can_notice_the_end_of_their_leases() {
    let (scene, _) = scene().await;
    let second = Duration::from_secs(1);
    for (notice, patience_ms) in [(second, 5000), (10 * second, 12_000)] {
        let now = scene.now_ms().await;
        for (ahead, is_ahead) in [(now + patience_ms - 1, true), (now - patience_ms, false)] {
            scene
                .add(&format!("HSET seriatim.meta clock.ahead {ahead}"))
                .await;
            let swept = adopt(&scene, None, notice).await;
            assert_eq!(swept.is_ahead, is_ahead, "{notice:?}, {ahead}");
        }
    }
}

/// The end of a rule moves back to 1 at the earliest, because 0 means that the rule never ends. So a
/// rule that is over stays over, however often the clock steps back.
#[tokio::test]
async fn a_rule_that_is_over_does_not_become_one_without_an_end() {
    let (scene, now) = scene().await;
    let rules = [("pause a", 1, 1), ("pause b", 5, 1), ("pause c", 0, 0)];
    let set = now + HOUR_MS - MINUTE_MS;
    for (field, ends, _) in rules {
        scene
            .add(&format!(
                "HSET event.rules '{field}' '{set} {ends} 0 3 0 ada' next 1"
            ))
            .await;
    }
    step_back(&scene, now).await;
    for (field, _, ends) in rules {
        let rule = rule(&scene, field).await;
        let (set, rest) = rule.split_once(' ').expect("a time");
        assert!(set.parse::<u64>().expect("a time") < now, "{field}: {rule}");
        assert_eq!(rest, format!("{ends} 0 3 0 ada"), "{field}");
    }
}

/// A call that moves times only moves times. It does not ask for a mark that is not due.
#[tokio::test]
async fn a_call_that_moves_times_asks_for_no_mark() {
    let (scene, now) = scene().await;
    let marked = wire::mark(&mut scene.conn().await, &scene.keys).await;
    assert_eq!(marked.expect("a reply"), Marked::Noted);
    scene
        .add(&format!("HSET seriatim.meta clock {}", now + HOUR_MS))
        .await;
    let swept = swept(&scene).await;
    assert!(swept.more && !swept.mark, "{swept:?}");
}

/// A held object that is grouped is due, whatever the clock does. Its score, which is
/// its due time below 0, does not move.
#[tokio::test]
async fn what_is_grouped_stays_due_when_the_clock_steps_back() {
    let (scene, now) = scene().await;
    let (aside, timed) = (now + HOUR_MS, now + HOUR_MS + 10 * MINUTE_MS);
    scene
        .add(&format!("ZADD objects.held -{aside} aside {timed} timed"))
        .await;
    step_back(&scene, now).await;
    assert_due(&scene, "timed", now + 10 * MINUTE_MS).await;
    assert_eq!(scene.due("aside").await, Some(-(aside as f64)));
}

/// Story: a cursor that was no number in `clock.step` ended every sweep, so no dead name was taken over.
#[tokio::test]
async fn a_damaged_step_ends_no_sweep() {
    for step in [
        "5 held nan",
        "5 glitch nan",
        "5 departed inf",
        "nan rules 0",
        "x",
    ] {
        let (scene, now) = scene().await;
        let given = format!(
            "HSET seriatim.meta clock {now} clock.step '{step}'; hold x:1 {} '7 0 1 0 no' 1",
            now + HOUR_MS
        );
        scene.add(&given).await;
        assert_eq!(swept(&scene).await.moved, 0, "{step}");
        assert_due(&scene, "x:1", now + HOUR_MS).await;
    }
}
