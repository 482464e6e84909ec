//! Calls in the very ms of a bound, with a clock that stands still.

use std::time::Duration;

use seriatim::wire::operator::{self, By, Record, ReleaseMany};
use seriatim::wire::{self, Sent, SlotBatch};

use crate::scene::{ATTACH, BOUNDS, Scene};
use crate::stopped::{NOW, NOW_US};

/// Ticks fire if the last sweep was not more than 65 s ago.
#[tokio::test]
async fn ticks_fire_65_s_after_a_sweep() {
    let scene = Scene::stopped_at(NOW_US).await;
    let job = crate::support::jobs::value("id 0", "work:1", "1");
    let set = ["HSET", &scene.keys.events_cron(), "tick", &job];
    scene.run::<()>(&set).await;
    scene.add("ZADD events.cron.next 1 tick").await;
    for (noted_ms, jobs) in [
        (NOW - 65_000, 1),
        (NOW - 65_001, 0),
        (NOW + 65_000, 1),
        (NOW + 65_001, 0),
    ] {
        scene
            .add(&format!("HSET seriatim.meta clock {noted_ms}"))
            .await;
        let fired = wire::cron(&mut scene.conn().await, &scene.keys, &[]).await;
        assert_eq!(fired.expect("an answer").due.len(), jobs, "{noted_ms}");
    }
}

/// The record of a request has no time left, but is still there. It is not made longer.
#[tokio::test]
async fn a_record_in_its_last_ms_keeps_its_end() {
    let scene = Scene::stopped_at(NOW_US).await;
    scene.attach(&ATTACH).await;
    scene.add("own w.0 work:1 5 1").await;
    let batch = SlotBatch {
        name: "w",
        token: "token-1",
        slot: 0,
        object: b"work:1",
        tag: "5".parse().expect("a tag"),
    };
    let (mut conn, limit) = (scene.conn().await, Duration::from_secs(30));
    let sent = wire::sent(&mut conn, &scene.keys, &batch, "one", limit, 0).await;
    assert!(matches!(sent, Ok(Sent::Sent { .. })), "{sent:?}");
    scene.add("PEXPIRE work:1:event.sent 1").await;
    scene
        .clock
        .as_ref()
        .expect("a clock")
        .stop_at(NOW_US + 1000);
    let sent = wire::sent(&mut conn, &scene.keys, &batch, "two", limit, 0).await;
    assert_eq!(sent.expect("an answer"), Sent::Earlier(Duration::ZERO));
    let key = scene.keys.event_sent("work:1");
    assert_eq!(scene.run::<u64>(&["PEXPIRETIME", &key]).await, NOW + 1);
}

/// A held object is claimed in the ms in which it is due.
#[tokio::test]
async fn a_held_object_is_claimed_when_it_is_due() {
    for (due, expected) in [(NOW + 1, &[] as &[&str]), (NOW, &["work:1"])] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene.attach(&ATTACH).await;
        scene
            .add(&format!(
                "hold work:1 {due} '0 0 0 0 yield'; LPUSH work:1:events 1"
            ))
            .await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), expected, "{due}");
    }
}

/// A rule is over in the ms of its end: its objects are due, and a slot claims them.
#[tokio::test]
async fn a_rule_is_over_at_its_end() {
    for (ends, expected) in [(NOW + 1, &[] as &[&str]), (NOW, &["work:1"])] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene.attach(&ATTACH).await;
        let rule = format!("HSET event.rules 'pause work:1' '1 {ends} 0 3 0 ada' next {ends}");
        let paused = "SET work:1:event.worker held; ZADD objects.paused 0 work:1";
        scene
            .add(&format!("{rule}; {paused}; LPUSH work:1:events 1"))
            .await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), expected, "{ends}");
    }
}

/// A release of many objects spreads their due times evenly: the first one is due now, and behind the
/// last one as much time is left as between two of them.
#[tokio::test]
async fn due_times_are_spread_evenly() {
    let scene = Scene::stopped_at(NOW_US).await;
    scene.add("ZADD objects.held inf a inf b inf c inf d").await;
    let (mut conn, selected) = (scene.conn().await, b"*");
    let filter = ReleaseMany {
        until_released: false,
        text: "",
        over: Duration::from_secs(8),
    };
    let by = By {
        who: "ada",
        why: "a test",
    };
    let record = Record { selected, row: "" };
    let objects = ["a", "b", "c", "d"];
    let released = operator::release_many(&mut conn, &scene.keys, by, filter, record, &objects);
    released.await.expect("an answer");
    let held = "<a: NOW, b: NOW+2s, c: NOW+4s, d: NOW+6s>";
    assert_eq!(scene.at("objects.held").await, held);
}
