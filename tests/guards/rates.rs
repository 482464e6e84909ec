//! Events per second of a share: the time up to which its events use the rate, and when a group that
//! waits for the rate is due. The rates are so low that no test gets events in addition to the burst.

use std::time::Duration;

use seriatim::control::shares::Share;
use seriatim::wire::values::ShareUsed;
use seriatim::wire::{Advance, BatchResult};

use crate::limits::{block, blocked, pair, set};
use crate::scene::{BOUNDS, Scene, bounds, done, result};

/// A rate with which each event takes so many microseconds.
const RATE: f64 = 0.001;
const EVENT_US: u64 = 1_000_000_000;

async fn now_us(scene: &Scene) -> u64 {
    scene.now_ms().await * 1000
}

/// Returns a scene with a rate for `a:*`. Its 9 events so far use the rate up to `ahead_us` after now.
/// Also returns this time.
async fn with_rate(rate: f64, burst: u64, ahead_us: u64) -> (Scene, u64) {
    let scene = Scene::new().await;
    set(&scene, "a:*", Share::new().rate(rate).burst(burst)).await;
    let tat_us = now_us(&scene).await + ahead_us;
    scene
        .add(&format!("HSET event.shares.used a:* '9 {tat_us} 0 0 0'"))
        .await;
    (scene, tat_us)
}

/// Returns the events that were taken, and the time up to which they use the rate.
async fn used(scene: &Scene) -> (u64, u64) {
    let words = ["HGET", &scene.keys.event_shares_used(), "a:*"];
    let used = ShareUsed::read(&scene.run::<Vec<u8>>(&words).await);
    (used.taken, used.tat_us)
}

/// Makes a call that claims nothing. Returns the time after which the next call is due.
async fn next_due(scene: &Scene) -> Option<Duration> {
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), [""; 0]);
    answer.next_due
}

/// The rate counts each event of a batch, in the call that claims the object, and in a call that goes
/// on with it.
#[tokio::test]
async fn each_event_of_a_batch_uses_the_rate() {
    let (scene, tat_us) = with_rate(RATE, 10, EVENT_US).await;
    scene.add("emit a:1 1 2 3 4 5").await;
    let three = bounds(|b| b.batch = 3);
    assert_eq!(scene.free(0..2, three).await.objects(), ["a:1"]);
    assert_eq!(used(&scene).await, (12, tat_us + 3 * EVENT_US));
    let report = result("a:1", "1", 3, BatchResult::Done);
    assert_eq!(scene.report(0, &report, three).await.objects(), ["a:1"]);
    assert_eq!(used(&scene).await, (14, tat_us + 5 * EVENT_US));
}

/// All events of a held batch count when it is claimed. A batch that is larger than the burst only
/// needs the whole burst, and then uses the rate for all of its events.
#[tokio::test]
async fn each_event_of_a_held_batch_uses_the_rate() {
    for (burst, ahead_us, batch) in [
        (10, EVENT_US, "1 2 3"),
        (10, EVENT_US, "1"),
        (2, 0, "1 2 3"),
    ] {
        let (scene, tat_us) = with_rate(RATE, burst, ahead_us).await;
        scene
            .add(&format!("hold a:1 1 '1 0 1 0 retry: no' {batch}"))
            .await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["a:1"]);
        let (taken, now_tat_us) = used(&scene).await;
        let events = batch.split(' ').count() as u64;
        assert_eq!(taken, 9 + events);
        if ahead_us > 0 {
            assert_eq!(now_tat_us, tat_us + events * EVENT_US);
        } else {
            // Time that has passed before the claim is not used later.
            let after_us = now_us(&scene).await + 1000;
            assert!(
                (tat_us + 3 * EVENT_US..=after_us + 3 * EVENT_US).contains(&now_tat_us),
                "{now_tat_us} {tat_us}"
            );
        }
    }
}

/// A held batch of a wrong type counts as one event. So its object soon waits for an operator.
#[tokio::test]
async fn a_held_batch_of_a_wrong_type_counts_as_one_event() {
    let (scene, tat_us) = with_rate(RATE, 3, 2 * EVENT_US).await;
    scene
        .add("hold a:1 1 '1 0 1 0 retry: no'; SET a:1:events.held wrong")
        .await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    assert_eq!(scene.due("a:1").await, Some(f64::INFINITY));
    assert_eq!(used(&scene).await, (9, tat_us));
}

/// A group is due again when its rate allows what waits: one event, a held batch as a whole, or the
/// burst if the batch is larger. It waits for the events of 20 ms at the least.
#[tokio::test]
async fn a_group_is_due_when_its_rate_allows_what_waits() {
    const SOON_US: u64 = 9_000_000;
    let one = "emit a:1 1";
    let three = "hold a:1 1 '1 0 1 0 retry: no' 1 2 3";
    let seven = &format!("{three} 4 5 6 7")[..];
    // Of each case: the rate, the burst, what waits, and the time that is waited for.
    for (rate, burst, waits, asked_us) in [
        (0.01, 5, one, 100_000_000),
        (0.01, 5, three, 300_000_000),
        (0.01, 5, seven, 500_000_000),
        (RATE, 1_000_000, one, EVENT_US),
        (100.0, 1_000_000, one, 20_000),
    ] {
        let before_us = (burst as f64 * 1e6 / rate) as u64 - asked_us;
        let (scene, tat_us) = with_rate(rate, burst, before_us + SOON_US).await;
        scene.add(waits).await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!(answer.objects(), [""; 0], "{rate} {burst}");
        let expected = [pair("a", ((tat_us - before_us) / 1000) as f64)];
        assert_eq!(blocked(&scene).await, expected, "{rate} {burst}");
        assert_eq!(used(&scene).await, (9, tat_us), "{rate} {burst}");
    }
}

/// A share with both limits waits for its rate as long as its objects in hand allow a further one.
#[tokio::test]
async fn a_share_with_both_limits_waits_for_the_one_that_allows_nothing() {
    for (in_hand, is_due) in [("0 a:8:", true), ("0 a:8: 0 a:9:", false)] {
        let (scene, tat_us) = with_rate(0.01, 1, 9_000_000).await;
        set(&scene, "a:*", Share::new().rate(0.01).burst(1).in_flight(2)).await;
        scene
            .add(&format!("ZADD objects.in.hand {in_hand}; emit a:1 1"))
            .await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
        let blocked = blocked(&scene).await;
        assert_eq!(
            blocked == [pair("a", (tat_us / 1000) as f64)],
            is_due,
            "{blocked:?}"
        );
    }
}

/// If no event has used the rate, the whole burst may be taken at once, and one event without a burst.
#[tokio::test]
async fn a_batch_has_at_most_the_events_of_the_burst() {
    let (scene, _) = with_rate(20.0, 2, 0).await;
    scene.add("hold a:1 1 '1 0 1 0 retry: no' 1 2").await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["a:1"]);
    for (burst, events) in [("3", 3), ("-", 1)] {
        let (scene, _) = with_rate(RATE, 3, 0).await;
        let share = format!("HSET event.shares a:* '- - - {RATE} {burst} 0 0 '");
        scene.add(&format!("{share}; emit a:1 1 2 3 4")).await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!(answer.lengths(), [events], "{burst}");
    }
}

/// Due objects without a batch use the rate when slots claim them.
#[tokio::test]
async fn each_due_object_without_a_batch_uses_the_rate() {
    let (scene, _) = with_rate(RATE, 1, 0).await;
    for object in ["a:1", "a:2"] {
        let queue = format!("LPUSH {object}:events 1");
        scene
            .add(&format!("hold {object} 1 '0 0 0 0 yield'; {queue}"))
            .await;
    }
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["a:1"]);
}

/// A slot goes on with its object if the rate allows one event. Otherwise the object is held, due
/// now. An object without further events is released in any case.
#[tokio::test]
async fn a_slot_goes_on_if_the_rate_allows_an_event() {
    for (ahead_us, taken) in [(EVENT_US, 1), (2 * EVENT_US, 0)] {
        let (scene, _) = with_rate(RATE, 2, ahead_us).await;
        let given = "
            own w.0 a:1 1 1; LPUSH a:1:events 2 3; own w.1 a:2 2 1
            ZADD objects.in.hand 0 a:1: 0 a:2:
        ";
        scene.add(given).await;
        let fill = |call: &mut Advance| {
            call.report(0, &done("a:1", 1));
            call.report(1, &done("a:2", 2));
        };
        let answer = scene.advance(bounds(|b| b.claims = 0), fill).await;
        assert_eq!(answer.batches(), ["0 a:1 3 after 1: 2"][..taken]);
        let owner = if taken == 1 { "w.0" } else { "held" };
        assert_eq!(scene.at("a:1:event.worker").await, owner);
        assert_eq!(scene.at("a:2:event.worker").await, "nil");
        let queue = scene.list(&scene.keys.events("a:1")).await;
        assert_eq!(queue, ["2", "3"][taken..]);
        scene.check().await;
    }
}

/// A worker looks after 20 ms at groups that the present call has no time for.
#[tokio::test]
async fn a_worker_looks_soon_at_groups_that_are_due() {
    let (scene, _) = with_rate(RATE, 1, EVENT_US).await;
    scene.add("emit a:1 1").await;
    // Of five prefixes, a call leaves one for the next call.
    for n in 0..5 {
        block(&scene, &format!("p{n}\n"), 1).await;
    }
    assert_eq!(next_due(&scene).await, Some(Duration::from_millis(20)));
}

/// A worker looks again after 10 s, however slow a rate is. A held object that is due earlier comes
/// first. Without an object that waits, there is no time.
#[tokio::test]
async fn a_worker_looks_at_a_slow_rate_after_10_seconds() {
    for selector in ["a:*", "*"] {
        let scene = Scene::new().await;
        set(&scene, selector, Share::new().rate(RATE).burst(1)).await;
        let tat_us = now_us(&scene).await + EVENT_US;
        scene
            .add(&format!(
                "HSET event.shares.used {selector} '9 {tat_us} 0 0 0'"
            ))
            .await;
        assert_eq!(next_due(&scene).await, None, "{selector}");
        scene.add("emit a:1 1").await;
        let next = next_due(&scene).await.expect("a time");
        assert!(
            (Duration::from_millis(10_000)..=Duration::from_millis(10_001)).contains(&next),
            "{next:?}"
        );
        let due_ms = now_us(&scene).await / 1000 + 9_000;
        scene
            .add(&format!("hold b:1 {due_ms} '1 0 1 0 retry: no' 1"))
            .await;
        let next = next_due(&scene).await.expect("a time");
        assert!(next <= Duration::from_millis(9_000), "{next:?}");
    }
}

/// No time wakes a worker for a group that waits for an object in hand, even if the group has a held
/// object that is due. A held object that is due later has its time.
#[tokio::test]
async fn a_worker_has_no_time_for_groups_that_wait_for_objects_in_hand() {
    for waits in ["emit a:1 1", "hold a:1 1 '1 0 1 0 retry: no' 1"] {
        let scene = Scene::new().await;
        set(&scene, "a:*", Share::new().in_flight(1)).await;
        scene.add("ZADD objects.in.hand 0 a:9:").await;
        scene.add(waits).await;
        assert_eq!(next_due(&scene).await, None);
        let due_ms = now_us(&scene).await / 1000 + 9_000;
        scene
            .add(&format!("hold b:1 {due_ms} '1 0 1 0 retry: no' 1"))
            .await;
        let next = next_due(&scene).await.expect("a time");
        let least = Duration::from_millis(due_ms.saturating_sub(now_us(&scene).await / 1000));
        assert!(
            (least..=Duration::from_millis(9_000)).contains(&next),
            "{next:?}"
        );
    }
}

/// A time that is too far ahead comes from a clock that has stepped back. The share then waits for its
/// burst and 1,000 events, and no event counts as taken.
#[tokio::test]
async fn after_a_step_back_a_share_waits_for_its_burst_and_1000_events() {
    let (scene, _) = with_rate(RATE, 3, 5000 * EVENT_US).await;
    scene.add("emit a:1 1").await;
    let (before_us, wait_us) = (now_us(&scene).await, 1003 * EVENT_US);
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    let after_us = now_us(&scene).await + 1000;
    let (taken, tat_us) = used(&scene).await;
    assert_eq!(taken, 9);
    assert!(
        (before_us + wait_us..=after_us + wait_us).contains(&tat_us),
        "{before_us} {tat_us} {after_us}"
    );
}

/// A new rate keeps the number of events that were taken, and waits at most for one burst.
#[tokio::test]
async fn a_new_rate_keeps_the_events_that_were_taken() {
    let (scene, tat_us) = with_rate(RATE, 7, 4 * EVENT_US).await;
    set(&scene, "a:*", Share::new().rate(RATE).burst(5)).await;
    assert_eq!(used(&scene).await, (9, tat_us));
    let before_us = now_us(&scene).await;
    set(&scene, "a:*", Share::new().rate(RATE).burst(2)).await;
    let after_us = now_us(&scene).await + 1000;
    let (taken, tat_us) = used(&scene).await;
    assert_eq!(taken, 9);
    // The time is one of a call in ms, so it may be lower by 1 ms.
    assert!(
        (before_us + 2 * EVENT_US..=after_us + 2 * EVENT_US).contains(&tat_us),
        "{before_us} {tat_us} {after_us}"
    );
}

/// One command reads or writes at most 500 fields, so a call with more shares makes several. Each share
/// counts each event once.
#[tokio::test]
async fn more_than_500_shares_count_their_events_once() {
    let scene = Scene::new().await;
    set(&scene, "x:b:c:d:e:f:g:h:*", Share::new().weight(1)).await;
    let objects: Vec<String> = (0..70).map(|n| format!("a{n}:b:c:d:e:f:g:h:1")).collect();
    let selectors: Vec<String> = objects
        .iter()
        .flat_map(|object| {
            object
                .match_indices(':')
                .map(|(at, _)| format!("{}:*", &object[..at]))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(selectors.len(), 560);
    let fields = selectors
        .iter()
        .map(|selector| format!(" {selector} '1 - - - - 0 0 '"));
    let share = format!("HSET event.shares{}", fields.collect::<String>());
    scene
        .add(&format!("{share}; each {}", objects.join(" ")))
        .await;
    let answer = scene.free(0..70, bounds(|b| b.claims = 100)).await;
    assert_eq!(answer.objects().len(), 70);
    let used: Vec<Vec<u8>> = scene.run(&["HVALS", &scene.keys.event_shares_used()]).await;
    let taken = used.iter().map(|value| ShareUsed::read(value).taken);
    assert_eq!(taken.collect::<Vec<_>>(), [1; 560]);
}
