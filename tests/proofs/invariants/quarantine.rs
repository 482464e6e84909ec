//! A key of a wrong type under an object stops only this object. A shared key of a wrong type stops
//! the call before it writes.

use std::time::Duration;

use rstest::rstest;
use seriatim::wire::{self, BatchResult, Bounds};

use super::puppet::WIDE;
use super::rig::Rig;
use super::state::Name;

const A: Name = Name::from_static(b"a");

/// The wrong key is found when the object is claimed, from its marker or from a pop. The same call
/// claims another object.
#[rstest]
#[case(":events", "a set")]
#[case(":last.event.id", "a set")]
#[case(":last.event.id", "no id")]
#[tokio::test]
async fn an_object_with_a_wrong_key_is_held_and_stops_nothing(
    #[case] suffix: &str,
    #[case] defect: &str,
    #[values(false, true)] popped: bool,
) {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 1, 0).await;
    if popped {
        rig.pop("p.0").await.expect("a marker");
    }
    let (wrong, aside) = (rig.key(b"a", suffix), rig.key(b"a", ":data"));
    let moved = suffix == ":events";
    if moved {
        rig.redis::<()>("RENAME", &[&wrong, &aside]).await;
    }
    match defect {
        "a set" => rig.redis("SADD", &[&wrong, b"x"]).await,
        _ => rig.set(&wrong, b"no number").await,
    }
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!((&p.hand(0).object[..], given.next_due), (&b"b"[..], None));
    assert_eq!(
        given.quarantined,
        [("a".to_owned(), format!("quarantine: a{suffix} is {defect}"))]
    );
    let state = rig.look().await;
    assert_eq!(
        (state.due[&A], state.object(b"a").owner.as_deref()),
        (f64::INFINITY, Some("held"))
    );
    assert_eq!(
        state.object(b"a").held_id,
        Some(format!("0 0 0 0 quarantine: a{suffix} is {defect}"))
    );
    assert_eq!(state.worker("p.0").objects, [&b"b"[..]]);
    // After the key is repaired and the object is released, the object continues.
    rig.del(&wrong).await;
    if moved {
        rig.redis::<()>("RENAME", &[&aside, &wrong]).await;
    }
    rig.release(b"a").await;
    rig.drain(&mut p).await;
}

/// The wrong queue is found when the slot goes on with the object. The delivered events are
/// committed all the same.
#[tokio::test]
async fn a_queue_that_turns_wrong_in_mid_work_is_found_when_the_object_goes_on() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 2, 0).await;
    let bounds = Bounds { batch: 1, ..WIDE };
    rig.advance(&mut p, bounds).await;
    let queue = rig.key(b"a", ":events");
    rig.set(&queue, b"wrong").await;
    rig.deliver(&mut p);
    let given = rig.advance(&mut p, bounds).await;
    assert_eq!(
        (given.slots.len(), given.quarantined.len()),
        (1, 1),
        "{given:?}"
    );
    let state = rig.look().await;
    assert_eq!(
        (state.due[&A], state.object(b"a").last.as_deref()),
        (f64::INFINITY, Some("1"))
    );
    rig.del(&queue).await;
    rig.release(b"a").await;
    rig.drain(&mut p).await;
}

/// The wrong key is found when the held batch is claimed. The batch keeps its numbers.
#[rstest]
#[case(":events.held")]
#[case(":last.event.id")]
#[tokio::test]
async fn a_held_object_with_a_wrong_key_stays_held(#[case] suffix: &str) {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 2, 0).await;
    rig.advance(&mut p, WIDE).await;
    let rest = "1 0 1".parse().expect("a tag");
    p.tell(
        0,
        0,
        BatchResult::Hold {
            rest,
            delay: Some(Duration::ZERO),
            reason: "retry: no".into(),
        },
    );
    rig.advance(&mut p, Bounds { claims: 0, ..WIDE }).await;
    let (wrong, aside) = (rig.key(b"a", suffix), rig.key(b"a", ":data"));
    let moved = suffix == ":events.held";
    if moved {
        rig.redis::<()>("RENAME", &[&wrong, &aside]).await;
    }
    rig.redis::<()>("SADD", &[&wrong, b"x"]).await;
    rig.emit(b"b", 1, 0).await;
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!(
        (&p.hand(0).object[..], given.quarantined.len()),
        (&b"b"[..], 1)
    );
    let state = rig.look().await;
    let expected = format!("1 0 1 0 quarantine: a{suffix} is a set");
    assert_eq!(
        (state.due[&A], state.object(b"a").held_id),
        (f64::INFINITY, Some(expected))
    );
    rig.del(&wrong).await;
    if moved {
        rig.redis::<()>("RENAME", &[&aside, &wrong]).await;
    }
    rig.release(b"a").await;
    rig.drain(&mut p).await;
}

/// If a shared key has a wrong type, the call fails before its first write.
#[rstest]
#[case("next.event.id")]
#[case("objects.with.events")]
#[case("objects.held")]
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_stops_the_call_before_it_writes(#[case] name: &str) {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 2, 0).await;
    rig.advance(&mut p, Bounds { batch: 1, ..WIDE }).await;
    rig.emit(b"b", 1, 0).await;
    let wrong = rig.key(b"", name);
    rig.del(&wrong).await;
    rig.redis::<()>("SADD", &[&wrong, b"x"]).await;
    rig.deliver(&mut p);
    let before = format!("{:?}", rig.look().await);
    let failed = wire::advance(&mut rig.conn, &p.call(&rig.keys, WIDE, &[0])).await;
    let failed = failed.expect_err("a wrong type");
    assert!(failed.is_wrong_type(), "{failed}");
    assert_eq!(format!("{:?}", rig.look().await), before);
}

/// An `OBJ:event.worker` of a wrong type counts as an absent owner, so the object can be claimed.
#[tokio::test]
async fn an_owner_of_a_wrong_type_is_nobody() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 2, 0).await;
    let wrong = rig.key(b"a", ":event.worker");
    rig.redis::<()>("SADD", &[&wrong, b"x"]).await;
    rig.advance(&mut p, WIDE).await;
    rig.sound().await;
    rig.drain(&mut p).await;
}
