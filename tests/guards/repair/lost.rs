//! `event.worker:W:lost`: a batch whose object is not known. A repair gives it back to its object, or
//! makes its events dead letters without an object. An operator then emits these by hand.

use seriatim::control::Repair;
use seriatim::control::dead::{Settle, Settled};

use super::{BY, call_with, doing, lines, repair};
use crate::check::{broken_by, findings_of, scene};
use crate::support::control;
use crate::support::recorder::Recorder;
use crate::support::running::start;

/// A step writes at most 1,000 dead letters, so a long batch needs several. Each keeps its id.
#[tokio::test]
async fn a_long_batch_of_an_unknown_object_takes_several_steps() {
    let events: String = (1..=2500).rev().map(|n| format!(" {n}")).collect();
    let commands = format!("SET next.event.id 2519; RPUSH event.worker:gone.0:lost 20{events}");
    let scene = scene().await;
    broken_by(&scene, &commands).await;
    let done = repair(&scene, &doing()).await;
    let line = |count| {
        format!(
            "dead worker gone.0: {count} events of an object that is not known become dead letters without an object"
        )
    };
    assert_eq!(lines(&done), [line(1500), line(2500), line(500)]);
    let dead = scene.dead().await;
    assert_eq!(dead.len(), 2500);
    for (at, letter) in (0..).zip(dead) {
        let field = |name: &str| letter.iter().find(|(field, _)| field == name);
        let value = |name: &str| field(name).map(|(_, value)| value.clone());
        let number = |number: u32| Some(number.to_string().into_bytes());
        assert_eq!(value("id"), number(20 + at));
        assert_eq!(value("event"), number(1 + at));
    }
    assert_eq!(findings_of(&scene).await, [""; 0]);
}

/// A dead letter without an object cannot be emitted again by `dead retry`. The operator knows the
/// object from the event, emits it, and drops the dead letter.
#[tokio::test]
async fn an_operator_emits_events_of_an_unknown_object_by_hand() {
    let scene = scene().await;
    let lost = "RPUSH event.worker:gone.0:lost 6 work:1,2 work:1,1; SET next.event.id 7";
    scene
        .add("HSET event.workers gone '1 token-of-gone 0'")
        .await;
    scene.add(lost).await;
    let expected = [
        "dead worker gone.0: 2 events of an object that is not known become dead letters without an object",
    ];
    let dry = Repair {
        dry_run: true,
        ..doing()
    };
    assert_eq!(lines(&repair(&scene, &dry).await), expected);
    scene.changed("").await;
    assert_eq!(lines(&repair(&scene, &doing()).await), expected);
    assert_eq!(lines(&repair(&scene, &doing()).await), [""; 0]);
    let control = control(&scene.conn().await, &scene.keys);
    let page = control.dead_letters(None, 10).await.expect("dead letters");
    for letter in page.letters {
        let error = "repair: keys were lost, and the object of this event is not known";
        assert_eq!((letter.object.len(), letter.error.as_str()), (0, error));
        let ids = [letter.dead_id.clone()];
        let settled = control.settle(BY, Settle::Retry, &ids).await;
        assert_eq!(settled.expect("an answer"), [Settled::Unreadable]);
        let event = std::str::from_utf8(letter.event.bytes()).expect("text");
        let (object, event) = event.split_once(',').expect("an object");
        scene.emit(object, event).await;
        let settled = control.settle(BY, Settle::Drop, &ids).await;
        assert_eq!(settled.expect("an answer"), [Settled::Dropped]);
    }
    let sink = Recorder::new();
    let worker = start(&scene.redis, "w", &sink, |_| ());
    sink.until_sent(2).await;
    assert_eq!(sink.sent_of("work:1"), ["1", "2"]);
    worker.finish().await;
    scene.check().await;
}

/// Story: a slot had lost its list, and a late pop had moved the marker of another object into the new
/// one. A repair made the slot the owner of that object, which got the events of the batch. Now the
/// object that the slot owns gets them.
#[tokio::test]
async fn a_batch_is_of_the_object_that_its_slot_owns() {
    let scene = scene().await;
    let given = "
        HSET event.workers gone '1 token-of-gone 0'; ZADD event.workers.watched 1 gone
        own gone.0 zz:1 30 1; DEL event.worker:gone.0:object; emit aa:1 2; pop gone.0
        SET next.event.id 30
    ";
    scene.add(given).await;
    // The repair may come to the worker before it comes to the object.
    let words = call_with(&scene, &[("worker", "gone.0")], "").await;
    assert_eq!(words, [(0, "left".to_owned())]);
    repair(&scene, &doing()).await;
    assert_eq!(scene.at("aa:1:event.worker").await, "nil");
    assert_eq!(scene.at("aa:1:events.held").await, "nil");
    let sink = Recorder::new();
    let worker = start(&scene.redis, "w", &sink, |_| ());
    sink.until_sent(2).await;
    let of_batch = sink.sent().into_iter().find(|offer| offer.id == 30);
    assert_eq!(of_batch.map(|offer| offer.object).as_deref(), Some("zz:1"));
    worker.finish().await;
}
