//! Former bugs, each with its story.

use std::time::Duration;

use seriatim::wire::{self, Attached, BatchResult, Bounds, Renewed};

use super::check::held_tag;
use super::puppet::{Puppet, WIDE, rest};
use super::rig::Rig;
use super::state::Name;

/// Story: the reply of a pop was lost. So two pops for one slot brought two markers of the same
/// object. *Advance* gave the object to the slot for the first marker. For the second marker it saw
/// an owned object without a batch, and held the object. The batch stayed behind in the slot's list
/// of events, and the next commit dropped it.
#[tokio::test]
async fn an_object_popped_twice_keeps_its_batch() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"a", 1, 0).await;
    rig.pop("p.0").await.expect("a marker");
    rig.pop("p.0").await.expect("a marker");
    rig.advance(&mut p, WIDE).await;
    let state = rig.sound().await;
    assert_eq!(
        (state.worker("p.0").objects.len(), p.hand(0).events.len()),
        (1, 2)
    );
    rig.drain(&mut p).await;
}

/// Story: the list of a dead slot had the same object twice, after two pops. So its death counted
/// two crashes.
#[tokio::test]
async fn an_object_popped_twice_counts_one_crash() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    rig.emit(b"a", 1, 0).await;
    rig.pop("p.0").await.expect("a marker");
    rig.expire("p").await;
    let again = Puppet::new("p", "token-again", 1);
    let attached = again.attach(&mut rig.conn, &rig.keys, "").await;
    let (kept, held, lost) = (1, 0, Vec::new());
    let expected = Attached::Attached { kept, held, lost };
    assert_eq!(attached.expect("attach"), expected);
    let state = rig.sound().await;
    assert_eq!(state.worker("p.0").tag.as_deref(), Some("1 0 0 1"));
}

/// Story: a process was restarted under its name with fewer slots. A pop of the former process then
/// moved a marker, for a slot that the new process does not have. Renewals looked only at the slots
/// of the new process, and sweeps skip a name with a lease. So the object waited as long as the new
/// process lived.
#[tokio::test]
async fn a_pop_for_a_slot_that_is_run_no_more_is_found_by_a_renewal() {
    let mut rig = Rig::start().await;
    rig.process("p", 3).await;
    rig.expire("p").await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    rig.pop("p.2").await.expect("a marker");
    let (strays, lost) = (1, Vec::new());
    assert_eq!(rig.renew(&p).await, Renewed::Renewed { strays, lost });
    rig.drain(&mut p).await;
}

/// Two pops have moved the same object into the list of its slot. One copy is enough, so the next
/// renewal removes the other.
#[tokio::test]
async fn a_list_has_one_copy_of_an_object_after_a_renewal() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    rig.add("LPUSH event.worker:p.0:object a").await;
    rig.renew(&p).await;
    assert_eq!(rig.look().await.worker("p.0").objects, [&b"a"[..]]);
    rig.drain(&mut p).await;
}

/// Story: a name was stored with the time of its attach. A process had run for over a day, and was
/// paused without batches. The first sweep removed its name. When the process continued, it was
/// fenced instead of lapsed. A marker that its pop still moved was never found.
#[tokio::test]
async fn a_name_is_forgotten_a_day_after_its_last_renewal() {
    let (mut rig, p) = Rig::with_process(1).await;
    let long_ago = format!("HSET event.workers p '1 {} 1000'", p.token);
    rig.add(&long_ago).await;
    rig.renew(&p).await;
    rig.expire("p").await;
    rig.adopt().await;
    assert_eq!(rig.renew(&p).await, Renewed::Lapsed);
    rig.add(&long_ago).await;
    rig.adopt().await;
    assert!(rig.sound().await.registry.is_empty());
}

/// Story: a name had no lease, and one of its keys had a wrong type. Sweeps could not take over
/// such a name, and after a day they removed it with its objects. So repairing the key did not
/// bring the objects back.
#[tokio::test]
async fn a_name_that_has_something_is_never_forgotten() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    rig.expire("p").await;
    let wrong = rig.keys.worker_object("p.1");
    rig.set(&wrong, b"?").await;
    rig.add("HSET event.workers p '2 token-of-p 1000'").await;
    rig.adopt().await;
    rig.del(&wrong).await;
    let adopted = rig.adopt().await;
    assert_eq!((adopted.held, adopted.names), (1, vec!["p".to_owned()]));
}

/// Story: `tonumber` of Lua accepts `nan`, `1e5`, `0x10` and ` 7`. A counter `nan` gave every batch
/// the id `nan`. A last id `1e5` reached the worker process as an unreadable `prev`. This process
/// stopped, and every other process after it.
#[tokio::test]
async fn what_is_no_id_is_not_taken_for_one() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    let counter = rig.keys.next_event_id();
    let numbers = ["nan", "inf", "1e5", "0x10", " 7", "-1", "1.5", ""];
    for bad in [&numbers[..], &["9007199254740992"]].concat() {
        rig.set(&counter, bad).await;
        let call = p.call(&rig.keys, WIDE, &[0]);
        let advance = wire::advance(&mut rig.conn, &call).await;
        let connect = wire::connect(&mut rig.conn, &rig.keys, "", wire::Connect::default()).await;
        for refused in [advance.err(), connect.err()] {
            assert!(
                matches!(&refused, Some(wire::ScriptError::Counter(text)) if text == bad),
                "{bad:?}: {refused:?}"
            );
        }
    }
    rig.del(&counter).await;
    let last = rig.key(b"a", ":last.event.id");
    for bad in ["nan", "1e5", "0x10", " 7", "-1", "1.5", ""] {
        rig.set(&last, bad).await;
        rig.add("LPUSH a:events 0; LPUSH objects.with.events a")
            .await;
        let given = rig.advance(&mut p, WIDE).await;
        assert_eq!(given.quarantined.len(), 1, "{bad:?}: {given:?}");
        assert_eq!(given.slots, [] as [usize; 0]);
        rig.add("DEL objects.held a:event.worker a:events.held.id")
            .await;
    }
}

/// Story: the numbers of a held batch were absent or had a wrong type. The batch was left out, as
/// if the object had yielded. Later events overtook the batch, and the next hold of the object
/// overwrote it.
#[tokio::test]
async fn a_held_batch_without_numbers_is_not_passed_over() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    for slot in 0..2 {
        p.hold(slot, Some(Duration::ZERO));
    }
    rig.advance(&mut p, Bounds { claims: 0, ..WIDE }).await;
    let id_of_a = rig.sound().await.object(b"a").held_id.expect("numbers");
    rig.add("DEL a:events.held.id; HSET a:events.held.id wrong type; LPUSH a:events 9")
        .await;
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!(
        (given.slots.len(), given.quarantined.len()),
        (1, 1),
        "{given:?}"
    );
    let why = &given.quarantined[0].1;
    assert!(why.contains("a:events.held.id is a hash"), "{given:?}");
    let state = rig.look().await;
    let due = state.due[&Name::from_static(b"a")];
    assert_eq!((state.object(b"a").held.len(), due), (1, f64::INFINITY));
    // After an operator has repaired the numbers and released the object, the held batch comes
    // first.
    rig.set(rig.key(b"a", ":events.held.id"), id_of_a).await;
    rig.release(b"a").await;
    p.tell_done();
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!(p.hand(given.slots[0]).events, [&b"0"[..]]);
}

/// Story: a dead letter could not be written. So the batch was held, with all its numbers reset to
/// zero. After its release the batch got a tag that an earlier hand-out had had. So a late call
/// about the earlier hand-out would have counted.
#[tokio::test]
async fn a_dead_letter_that_cannot_be_written_keeps_its_numbers() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 2, 0).await;
    rig.advance(&mut p, WIDE).await;
    for _ in 0..2 {
        p.hold(0, Some(Duration::ZERO));
        rig.advance(&mut p, WIDE).await;
    }
    let dead = rig.keys.events_dead();
    rig.set(&dead, b"wrong").await;
    let tag = p.hand(0).tag;
    assert_eq!(tag.handouts, 2);
    p.reject(0);
    rig.advance(&mut p, WIDE).await;
    rig.del(&dead).await;
    let state = rig.sound().await;
    let held_id = state.object(b"a").held_id.expect("held");
    let handouts = held_tag(&held_id).expect("numbers").handouts;
    assert_eq!(handouts, 2, "{held_id}");
    assert!(held_id.contains("quarantine: events.dead"), "{held_id}");
    rig.release(b"a").await;
    rig.drain(&mut p).await;
}

/// Story: a process attached again after a lapse. The reply was lost, the new lease lapsed as well,
/// and the process repeated the attach. This counted a crash, although the process lived all the
/// time.
#[tokio::test]
async fn an_attach_repeated_after_its_own_lease_lapsed_counts_no_crash() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    p.before = std::mem::replace(&mut p.token, "token-second".to_owned());
    p.forget();
    for _ in 0..2 {
        rig.expire("p").await;
        p.attach(&mut rig.conn, &rig.keys, "")
            .await
            .expect("attach");
        assert_eq!(rig.sound().await.worker("p.0").tag.as_deref(), Some("1"));
    }
}

/// Story: a call committed the batch of one slot and then failed on a key of a wrong type. A tag
/// without its batch was left. From then on every sweep over the name failed. The next process of
/// the name got a batch without events, and stopped.
#[tokio::test]
async fn a_call_that_fails_half_way_leaves_no_tag_without_a_batch() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 2, 0).await;
    rig.advance(&mut p, WIDE).await;
    let b = usize::from(p.hand(0).object == "a");
    let a = 1 - b;
    rig.world.receive(p.hand(a), 1).expect("sound");
    let tag = p.hand(b).tag;
    p.tell(a, 1, BatchResult::Done);
    p.tell(b, 1, BatchResult::Part { next: rest(tag, 1) });
    let wrong = rig.keys.worker_event(&p.w(b));
    let aside = [wrong.as_bytes(), b".aside"].concat();
    rig.redis::<()>("RENAME", &[wrong.as_bytes(), &aside]).await;
    rig.set(&wrong, b"wrong").await;
    let call = p.call(&rig.keys, WIDE, &[a, b]);
    let failed = wire::advance(&mut rig.conn, &call).await;
    let failed = failed.expect_err("a wrong type");
    // The script once returned this error as `ERR WRONGTYPE …`. A worker process treated this as a
    // failure that passes, and repeated the call for ever.
    assert!(failed.is_wrong_type(), "{failed}");
    rig.redis::<()>("RENAME", &[&aside, wrong.as_bytes()]).await;
    rig.expire("p").await;
    let adopted = rig.adopt().await;
    assert_eq!(adopted.held, 2);
    let mut q = rig.process("q", 2).await;
    rig.drain(&mut q).await;
}

/// Story: the batch key of a slot had a wrong type. Every object that this slot claimed was held
/// for an operator, and the reason named the object's queue.
#[tokio::test]
async fn a_wrong_type_of_a_batch_is_not_blamed_on_the_object() {
    let (mut rig, p) = Rig::with_process(1).await;
    rig.emit(b"a", 1, 0).await;
    let wrong = rig.keys.worker_event("p.0");
    rig.set(&wrong, b"wrong").await;
    let call = p.call(&rig.keys, WIDE, &[0]);
    let failed = wire::advance(&mut rig.conn, &call).await;
    let failed = failed.expect_err("a wrong type");
    assert!(failed.is_wrong_type(), "{failed}");
    rig.del(&wrong).await;
    assert!(rig.sound().await.due.is_empty());
}
