//! Former differences between the scripts and the reference, each with its story. Each test makes
//! the same steps in both.

use super::advance::{Choice, Delay};
use super::reference::{Advanced, Broken, Reply};
use super::schedules::Mode;
use super::server::Server;
use super::world::{AttachStep, Bounds, Part, Step, Token, World};
use crate::support::Redis;

/// Limits that no call reaches.
const WIDE: Bounds = Bounds {
    has_groups: false,
    batch: 1000,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 24,
    claims: 1024,
    markers: 4096,
    highest: 0,
    forget: false,
    log: false,
    room: 0,
};
const ATTACH: Step = attach(1);
const TWO_SLOTS: Step = attach(2);

const fn attach(slots: usize) -> Step {
    Step::Attach(AttachStep {
        name: 0,
        slots,
        again: false,
        displace: None,
        before: false,
        long: true,
        crashes_max: 5,
        room: 0,
    })
}

fn advance(choice: Choice) -> Step {
    within(WIDE, [choice, Choice::Skip, Choice::Skip])
}

/// Makes a call of the first process within these limits.
fn within(bounds: Bounds, choices: [Choice; 3]) -> Step {
    Step::Advance(0, Token::Mine, bounds, choices)
}

/// Makes a call for one slot that claims nothing.
fn without_claims(choice: Choice) -> Step {
    let bounds = Bounds { claims: 0, ..WIDE };
    within(bounds, [choice, Choice::Skip, Choice::Skip])
}

fn advanced(reply: Reply) -> Advanced {
    match reply {
        Reply::Advanced(advanced) => advanced,
        other => panic!("{other:?}"),
    }
}

/// Makes the steps in Redis and in the reference, and compares both. Returns the last reply.
async fn walk(steps: &[Step]) -> Reply {
    let redis = Redis::own(&[]);
    let mut server = Server::empty(redis.connect().await, redis.keys().clone()).await;
    let mut world = World::begin();
    let mut last = Reply::Done;
    for step in steps {
        let (broken, call, reply) = world.apply(step);
        server
            .step(broken, &call, &reply, &world.state)
            .await
            .unwrap_or_else(|what| panic!("{call:?}: {what}"));
        last = reply;
    }
    last
}

/// Story: Lua's `string.format` ends a text at its first NUL. So the reason of a hold named only
/// the part of the object's name before the NUL, and did not name the key.
#[tokio::test]
async fn a_name_with_a_nul_is_told_in_full() {
    let odd = 4;
    for part in [Part::Queue, Part::Last] {
        let last = walk(&[
            ATTACH,
            Step::Emit(vec![(odd, vec![1])]),
            Step::Wrong(odd, part),
            advance(Choice::Free),
        ])
        .await;
        let advanced = advanced(last);
        assert_eq!(advanced.quarantined.len(), 1, "{advanced:?}");
        assert!(
            advanced.quarantined[0].0.ends_with(r"\u{0}"),
            "{advanced:?}"
        );
    }
}

/// Story: while a batch of an object was in flight, the object's last id was overwritten with an
/// invalid id. After a restart the batch was handed out with this invalid id as its `prev`. No
/// process could read it. The process stopped with an error, and so did the next process of its
/// name.
#[tokio::test]
async fn a_last_id_that_is_none_stops_no_worker() {
    let last = walk(&[
        Step::Emit(vec![(1, vec![1, 1])]),
        ATTACH,
        advance(Choice::Free),
        Step::Wrong(1, Part::LastText),
        advance(Choice::Free),
        advance(Choice::Part(1)),
        advance(Choice::Done),
    ])
    .await;
    assert!(matches!(last, Reply::Advanced(_)), "{last:?}");
}

/// Story: a pop moved an empty marker, which only wakes a worker, to a busy slot. The look at this
/// slot dropped the marker, but counted it as returned to the markers. So a free slot of the same
/// call looked for a marker that did not exist. The call then failed, after its commits, on `MGET`
/// without keys.
#[tokio::test]
async fn an_empty_marker_popped_for_a_busy_slot_fails_no_call() {
    let last = walk(&[
        TWO_SLOTS,
        Step::Emit(vec![(0, vec![1])]),
        advance(Choice::Free),
        Step::Marker(None),
        Step::Pop(0, 0),
        within(WIDE, [Choice::Look, Choice::Free, Choice::Skip]),
    ])
    .await;
    assert!(
        matches!(&last, Reply::Advanced(advanced) if !advanced.more),
        "{last:?}"
    );
}

/// Story: the owner key of a held object got a wrong type, and no claim took the held batch. The
/// first claim released the object. The next marker gave later events of the object to a worker,
/// before the batch. The next hold overwrote the batch.
#[tokio::test]
async fn a_held_object_whose_owner_cannot_be_told_keeps_its_batch() {
    let held = [
        ATTACH,
        Step::Emit(vec![(0, vec![1])]),
        advance(Choice::Free),
    ];
    let claim = [
        Step::Wrong(0, Part::Owner),
        Step::Emit(vec![(0, vec![1])]),
        advance(Choice::Free),
    ];
    let release = [Step::Release(0), advance(Choice::Free)];
    // The claim finds the object as a due held object, or through a marker.
    for delay in [Delay::Zero, Delay::Far] {
        let mut steps = held.to_vec();
        steps.push(without_claims(Choice::Hold(0, delay, true)));
        steps.extend(claim.iter().chain(&release).cloned());
        let advanced = advanced(walk(&steps).await);
        let batches = advanced.batches.iter();
        let given = batches.map(|batch| (batch.tag.as_str(), batch.events.len()));
        assert_eq!(given.collect::<Vec<_>>(), [("1 1 1", 1)], "{delay:?}");
    }
}

/// Story: a call had read the due held objects. Then it met a marker of one of these objects, whose
/// owner key had a wrong type, and quarantined the object. Later it found the object among the due
/// ones, and handed out its batch all the same.
#[tokio::test]
async fn what_a_call_quarantines_it_does_not_hand_out() {
    let (a, b) = (0, 1);
    let last = walk(&[
        TWO_SLOTS,
        Step::Wrong(a, Part::Queue),
        Step::Marker(Some(a)),
        advance(Choice::Free),
        Step::Emit(vec![(b, vec![1])]),
        advance(Choice::Free),
        without_claims(Choice::Hold(0, Delay::Zero, true)),
        Step::ReleaseAll,
        Step::Emit(vec![(b, vec![1])]),
        Step::Wrong(b, Part::Owner),
        // The call has two free slots, so that it reads both objects as due.
        within(WIDE, [Choice::Free, Choice::Free, Choice::Skip]),
    ])
    .await;
    let advanced = advanced(last);
    assert_eq!(
        (advanced.batches.len(), advanced.quarantined.len()),
        (0, 2),
        "{advanced:?}"
    );
}

/// Story: two markers were popped for a busy slot, and the second one named the slot's own object.
/// So the slot's list had this name twice. When the slot left the object for another one, the
/// reference replaced the newer of the two names. The script replaces the older one, so that an
/// owned object stays the last of the list.
#[tokio::test]
async fn the_next_object_takes_the_oldest_place_where_a_name_is_there_twice() {
    let (a, b, c) = (0, 1, 2);
    let last = walk(&[
        ATTACH,
        Step::Emit(vec![(a, vec![1])]),
        advance(Choice::Free),
        Step::Emit(vec![(b, vec![1])]),
        Step::Marker(Some(a)),
        Step::Pop(0, 0),
        Step::Pop(0, 0),
        Step::Emit(vec![(c, vec![1])]),
        advance(Choice::Done),
    ])
    .await;
    let advanced = advanced(last);
    assert_eq!(advanced.batches.len(), 1, "{advanced:?}");
}

/// Story: an object without a batch was held, and its `events.held.id` had a leftover value. Its
/// queue began with a reference, but `events.scheduled` had a wrong type. So the object was held
/// for a minute, and the leftover stayed as the reason of this hold.
#[tokio::test]
async fn an_object_that_is_postponed_keeps_no_old_reason() {
    walk(&[
        Step::Emit(vec![(1, vec![1])]),
        ATTACH,
        advance(Choice::Free),
        Step::Wrong(1, Part::HeldId),
        Step::Schedule(1, 0, true, 1, 1, Mode::Replace),
        Step::Promote(256, 1 << 20),
        without_claims(Choice::Yield),
        Step::Broken(Broken::Scheduled, Box::new(advance(Choice::Free))),
    ])
    .await;
}

/// Story: the name of an object that was held without a batch was grouped. Then its queue and its
/// owner key had a wrong type. The script blamed the owner key, which says that the object is held;
/// the reference took the object for a free one, and blamed the queue.
#[tokio::test]
async fn an_object_that_is_grouped_is_held_whatever_its_owner_key_is() {
    let (a, b, c) = (0, 1, 3);
    let one = |choice, other, bounds| within(bounds, [choice, other, Choice::Skip]);
    let claims = |claims| Bounds {
        batch: 1,
        claims,
        ..WIDE
    };
    let last = walk(&[
        TWO_SLOTS,
        Step::Emit(vec![(b, vec![1, 1])]),
        one(Choice::Free, Choice::Skip, claims(1)),
        one(Choice::Yield, Choice::Skip, claims(0)),
        Step::Emit(vec![(a, vec![1])]),
        Step::Emit(vec![(c, vec![1])]),
        // More objects wait than the call can claim, so their names are grouped.
        one(
            Choice::Free,
            Choice::Skip,
            Bounds {
                has_groups: true,
                ..claims(1)
            },
        ),
        Step::Wrong(b, Part::Queue),
        Step::Wrong(b, Part::Owner),
        one(Choice::Skip, Choice::Free, WIDE),
    ])
    .await;
    let advanced = advanced(last);
    let reasons = [(
        "b".to_owned(),
        "quarantine: b:event.worker is a hash".to_owned(),
    )];
    assert_eq!(advanced.quarantined, reasons, "{advanced:?}");
}
