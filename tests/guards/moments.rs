//! Calls in the very ms of a bound, with a clock that stands still.

use std::time::Duration;

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
