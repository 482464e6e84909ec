//! Calls in the very ms of a bound, with a clock that stands still.

use std::time::Duration;

use seriatim::wire::{self, Sent, SlotBatch, Tag};

use crate::stopped::{NOW, NOW_US, scene};
use crate::{BOUNDS, ask, attach, objects};

/// Ticks fire if the last sweep was not more than 65 s ago.
#[tokio::test]
async fn ticks_fire_65_s_after_a_sweep() {
    let (_clock, _redis, mut state) = scene().await;
    let keys = state.keys.clone();
    state
        .run(
            "HSET",
            &[
                &keys.events_cron(),
                "tick",
                &crate::support::jobs::value("id 0", "work:1", "1"),
            ],
        )
        .await;
    state
        .run("ZADD", &[&keys.events_cron_next(), "1", "tick"])
        .await;
    for (noted_ms, jobs) in [
        (NOW - 65_000, 1),
        (NOW - 65_001, 0),
        (NOW + 65_000, 1),
        (NOW + 65_001, 0),
    ] {
        state
            .run("HSET", &[&keys.meta(), "clock", &noted_ms.to_string()])
            .await;
        let fired = wire::cron(&mut state.conn, &keys, &[])
            .await
            .expect("an answer");
        assert_eq!(fired.due.len(), jobs, "{noted_ms}");
    }
}

/// The record of a request has no time left, but is still there. It is not made longer.
#[tokio::test]
async fn a_record_in_its_last_ms_keeps_its_end() {
    let (clock, redis, mut state) = scene().await;
    let keys = state.keys.clone();
    attach(&mut state.conn, &keys, "token-1", "").await;
    state.own("w.0", "work:1", 5, &["1"]).await;
    let batch = SlotBatch {
        name: "w",
        token: "token-1",
        slot: 0,
        object: b"work:1",
        tag: Tag {
            first: 5,
            ..Tag::default()
        },
    };
    let limit = Duration::from_secs(30);
    let sent = wire::sent(&mut state.conn, &keys, &batch, "one", limit, 0).await;
    assert!(matches!(sent, Ok(Sent::Sent { .. })), "{sent:?}");
    let key = keys.event_sent("work:1");
    state.run("PEXPIRE", &[&key, "1"]).await;
    clock.stop_at(NOW_US + 1000);
    let sent = wire::sent(&mut state.conn, &keys, &batch, "two", limit, 0)
        .await
        .expect("an answer");
    assert_eq!(sent, Sent::Earlier(Duration::ZERO));
    let end: u64 = redis.console().await.run(&["PEXPIRETIME", &key]).await;
    assert_eq!(end, NOW + 1);
}

/// A held object is claimed in the ms in which it is due.
#[tokio::test]
async fn a_held_object_is_claimed_when_it_is_due() {
    let (_clock, _redis, mut state) = scene().await;
    let keys = state.keys.clone();
    attach(&mut state.conn, &keys, "token-1", "").await;
    for (due, expected) in [(NOW + 1, &[] as &[&str]), (NOW, &["work:1"])] {
        state
            .hold("work:1", &due.to_string(), &[], "0 0 0 0 yield")
            .await;
        state
            .run(
                "DEL",
                &[&keys.events("work:1"), &keys.objects_with_events()],
            )
            .await;
        state.run("LPUSH", &[&keys.events("work:1"), "1"]).await;
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        assert_eq!(objects(&answer), expected, "{due}");
    }
}
