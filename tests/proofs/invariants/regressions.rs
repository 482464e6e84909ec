//! Former bugs, each with its story.

use std::time::Duration;

use seriatim::wire::{self, Attached, BatchResult, Renewed};

use super::check::held_tag;
use super::puppet::{CRASHES_MAX, LEASE, Puppet, WIDE, rest};
use super::rig::Rig;
use super::state::Name;
use crate::support::sweep::sweep;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Story: the reply of a pop was lost. So two pops for one slot brought two markers of the same
/// object. *Advance* gave the object to the slot for the first marker. For the second marker it saw
/// an owned object without a batch, and held the object. The batch stayed behind in the slot's list
/// of events, and the next commit dropped it.
#[tokio::test]
async fn an_object_popped_twice_keeps_its_batch() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"a", 1, 0).await;
    rig.pop("p.0").await.expect("a marker");
    rig.pop("p.0").await.expect("a marker");
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
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
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    rig.emit(b"a", 1, 0).await;
    rig.pop("p.0").await.expect("a marker");
    rig.expire("p").await;
    let again = Puppet::new("p", "token-again", 1);
    let attached = again
        .attach(&mut rig.conn, &rig.keys, "")
        .await
        .expect("attach");
    assert_eq!(
        attached,
        Attached::Attached {
            kept: 1,
            held: 0,
            lost: Vec::new()
        }
    );
    assert_eq!(
        rig.sound().await.worker("p.0").tag.as_deref(),
        Some("1 0 0 1")
    );
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
    let renewed = wire::renew(&mut rig.conn, &rig.keys, "p", &p.token, LEASE, 1)
        .await
        .expect("renew");
    assert_eq!(
        renewed,
        Renewed::Renewed {
            strays: 1,
            lost: Vec::new()
        }
    );
    rig.drain(&mut p).await;
}

/// Two pops have moved the same object into the list of its slot. One copy is enough, so the next
/// renewal removes the other.
#[tokio::test]
async fn a_list_has_one_copy_of_an_object_after_a_renewal() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    let list = rig.keys.worker_object("p.0");
    rig.redis::<i64>("LPUSH", &[list.as_bytes(), b"a"]).await;
    wire::renew(&mut rig.conn, &rig.keys, "p", &p.token, LEASE, 1)
        .await
        .expect("renew");
    assert_eq!(
        rig.redis::<Vec<String>>("LRANGE", &[list.as_bytes(), b"0", b"-1"])
            .await,
        ["a"]
    );
    rig.drain(&mut p).await;
}

/// Story: a name was stored with the time of its attach. A process had run for over a day, and was
/// paused without batches. The first sweep removed its name. When the process continued, it was
/// fenced instead of lapsed. A marker that its pop still moved was never found.
#[tokio::test]
async fn a_name_is_forgotten_a_day_after_its_last_renewal() {
    let mut rig = Rig::start().await;
    let p = rig.process("p", 1).await;
    let workers = rig.keys.event_workers();
    let long_ago = format!("1 {} 1000", p.token);
    rig.redis::<i64>("HSET", &[workers.as_bytes(), b"p", long_ago.as_bytes()])
        .await;
    wire::renew(&mut rig.conn, &rig.keys, "p", &p.token, LEASE, 1)
        .await
        .expect("renew");
    rig.expire("p").await;
    sweep(&mut rig.conn, &rig.keys, "q", CRASHES_MAX, DAY)
        .await
        .expect("adopt");
    let renewed = wire::renew(&mut rig.conn, &rig.keys, "p", &p.token, LEASE, 1)
        .await
        .expect("renew");
    assert_eq!(renewed, Renewed::Lapsed);
    rig.redis::<i64>("HSET", &[workers.as_bytes(), b"p", long_ago.as_bytes()])
        .await;
    sweep(&mut rig.conn, &rig.keys, "q", CRASHES_MAX, DAY)
        .await
        .expect("adopt");
    assert!(rig.sound().await.registry.is_empty());
}

/// Story: a name had no lease, and one of its keys had a wrong type. Sweeps could not take over
/// such a name, and after a day they removed it with its objects. So repairing the key did not
/// bring the objects back.
#[tokio::test]
async fn a_name_that_has_something_is_never_forgotten() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 2).await;
    rig.emit(b"a", 1, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    rig.expire("p").await;
    let wrong = rig.keys.worker_object("p.1");
    rig.redis::<()>("SET", &[wrong.as_bytes(), b"?"]).await;
    let workers = rig.keys.event_workers();
    rig.redis::<i64>("HSET", &[workers.as_bytes(), b"p", b"2 token-of-p 1000"])
        .await;
    sweep(&mut rig.conn, &rig.keys, "q", CRASHES_MAX, DAY)
        .await
        .expect("adopt");
    rig.redis::<i64>("DEL", &[wrong.as_bytes()]).await;
    let adopted = sweep(&mut rig.conn, &rig.keys, "q", CRASHES_MAX, DAY)
        .await
        .expect("adopt");
    assert_eq!((adopted.held, adopted.names), (1, vec!["p".to_owned()]));
}

/// Story: `tonumber` of Lua accepts `nan`, `1e5`, `0x10` and ` 7`. A counter `nan` gave every batch
/// the id `nan`. A last id `1e5` reached the worker process as an unreadable `prev`. This process
/// stopped, and every other process after it.
#[tokio::test]
async fn what_is_no_id_is_not_taken_for_one() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 2).await;
    let counter = rig.keys.next_event_id();
    for bad in [
        "nan",
        "inf",
        "1e5",
        "0x10",
        " 7",
        "-1",
        "1.5",
        "",
        "9007199254740992",
    ] {
        rig.redis::<()>("SET", &[counter.as_bytes(), bad.as_bytes()])
            .await;
        let call = p.call(&rig.keys, WIDE, &[0]);
        let refused = wire::advance(&mut rig.conn, &call).await;
        assert!(
            matches!(&refused, Err(wire::ScriptError::Counter(text)) if text == bad),
            "{bad:?}: {refused:?}"
        );
        let refused = wire::connect(&mut rig.conn, &rig.keys, "", wire::Connect::default()).await;
        assert!(
            matches!(&refused, Err(wire::ScriptError::Counter(text)) if text == bad),
            "{bad:?}: {refused:?}"
        );
    }
    rig.redis::<i64>("DEL", &[counter.as_bytes()]).await;
    let last = rig.key(b"a", ":last.event.id");
    for bad in ["nan", "1e5", "0x10", " 7", "-1", "1.5", ""] {
        rig.redis::<()>("SET", &[&last, bad.as_bytes()]).await;
        rig.redis::<i64>("LPUSH", &[&rig.key(b"a", ":events"), b"0"])
            .await;
        rig.redis::<i64>("LPUSH", &[rig.keys.objects_with_events().as_bytes(), b"a"])
            .await;
        let given = p.advance(&mut rig.conn, &rig.keys, WIDE).await;
        assert_eq!(given.quarantined.len(), 1, "{bad:?}: {given:?}");
        assert_eq!(given.slots, [] as [usize; 0]);
        rig.redis::<i64>(
            "DEL",
            &[
                rig.keys.objects_held().as_bytes(),
                &rig.key(b"a", ":event.worker"),
                &rig.key(b"a", ":events.held.id"),
            ],
        )
        .await;
    }
}

/// Story: the numbers of a held batch were absent or had a wrong type. The batch was left out, as
/// if the object had yielded. Later events overtook the batch, and the next hold of the object
/// overwrote it.
#[tokio::test]
async fn a_held_batch_without_numbers_is_not_passed_over() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 2).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 1, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    for slot in 0..2 {
        let tag = p.hand(slot).tag;
        p.tell(
            slot,
            0,
            BatchResult::Hold {
                rest: tag,
                delay: Some(Duration::ZERO),
                reason: "retry: no".into(),
            },
        );
    }
    p.advance(&mut rig.conn, &rig.keys, wire::Bounds { claims: 0, ..WIDE })
        .await;
    let id_of_a = rig.sound().await.object(b"a").held_id.expect("numbers");
    let (numbers, queue) = (rig.key(b"a", ":events.held.id"), rig.key(b"a", ":events"));
    rig.redis::<i64>("DEL", &[&numbers]).await;
    rig.redis::<i64>("HSET", &[&numbers, b"wrong", b"type"])
        .await;
    rig.redis::<i64>("LPUSH", &[&queue, b"9"]).await;
    let given = p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    assert_eq!(
        (given.slots.len(), given.quarantined.len()),
        (1, 1),
        "{given:?}"
    );
    assert!(
        given.quarantined[0]
            .1
            .contains("a:events.held.id is a hash"),
        "{given:?}"
    );
    let state = rig.look().await;
    assert_eq!(
        (
            state.object(b"a").held.len(),
            state.due[&Name::from_static(b"a")]
        ),
        (1, f64::INFINITY)
    );
    // After an operator has repaired the numbers and released the object, the held batch comes
    // first.
    rig.redis::<()>("SET", &[&numbers, id_of_a.as_bytes()])
        .await;
    rig.release(b"a").await;
    p.tell_done();
    let given = p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    assert_eq!(p.hand(given.slots[0]).events, [&b"0"[..]]);
}

/// Story: a dead letter could not be written. So the batch was held, with all its numbers reset to
/// zero. After its release the batch got a tag that an earlier hand-out had had. So a late call
/// about the earlier hand-out would have counted.
#[tokio::test]
async fn a_dead_letter_that_cannot_be_written_keeps_its_numbers() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 2, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    for _ in 0..2 {
        let tag = p.hand(0).tag;
        p.tell(
            0,
            0,
            BatchResult::Hold {
                rest: tag,
                delay: Some(Duration::ZERO),
                reason: "retry: no".into(),
            },
        );
        p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    }
    let dead = rig.keys.events_dead();
    rig.redis::<()>("SET", &[dead.as_bytes(), b"wrong"]).await;
    let tag = p.hand(0).tag;
    assert_eq!(tag.handouts, 2);
    p.tell(
        0,
        0,
        BatchResult::Reject {
            next: Some(rest(tag, 1)),
            id: tag.first,
            error: "bad".to_owned(),
            attempts: 0,
        },
    );
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    rig.redis::<i64>("DEL", &[dead.as_bytes()]).await;
    let state = rig.sound().await;
    let held_id = state.object(b"a").held_id.expect("held");
    assert_eq!(
        held_tag(&held_id).expect("numbers").handouts,
        2,
        "{held_id}"
    );
    assert!(held_id.contains("quarantine: events.dead"), "{held_id}");
    rig.release(b"a").await;
    rig.drain(&mut p).await;
}

/// Story: a process attached again after a lapse. The reply was lost, the new lease lapsed as well,
/// and the process repeated the attach. This counted a crash, although the process lived all the
/// time.
#[tokio::test]
async fn an_attach_repeated_after_its_own_lease_lapsed_counts_no_crash() {
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
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
    let mut rig = Rig::start().await;
    let mut p = rig.process("p", 2).await;
    rig.emit(b"a", 1, 0).await;
    rig.emit(b"b", 2, 0).await;
    p.advance(&mut rig.conn, &rig.keys, WIDE).await;
    let (a, b) = if p.hand(0).object == "a" {
        (0, 1)
    } else {
        (1, 0)
    };
    rig.world.receive(p.hand(a), 1).expect("sound");
    let tag = p.hand(b).tag;
    p.tell(a, 1, BatchResult::Done);
    p.tell(b, 1, BatchResult::Part { next: rest(tag, 1) });
    let wrong = rig.keys.worker_event(&p.w(b));
    let aside = [wrong.as_bytes(), b".aside"].concat();
    rig.redis::<()>("RENAME", &[wrong.as_bytes(), &aside]).await;
    rig.redis::<()>("SET", &[wrong.as_bytes(), b"wrong"]).await;
    let call = p.call(&rig.keys, WIDE, &[a, b]);
    let failed = wire::advance(&mut rig.conn, &call)
        .await
        .expect_err("a wrong type");
    // The script once returned this error as `ERR WRONGTYPE …`. A worker process treated this as a
    // failure that passes, and repeated the call for ever.
    assert!(failed.is_wrong_type(), "{failed}");
    rig.redis::<()>("RENAME", &[&aside, wrong.as_bytes()]).await;
    rig.expire("p").await;
    let adopted = sweep(&mut rig.conn, &rig.keys, "q", CRASHES_MAX, DAY)
        .await
        .expect("adopt");
    assert_eq!(adopted.held, 2);
    let mut q = rig.process("q", 2).await;
    rig.drain(&mut q).await;
}

/// Story: the batch key of a slot had a wrong type. Every object that this slot claimed was held
/// for an operator, and the reason named the object's queue.
#[tokio::test]
async fn a_wrong_type_of_a_batch_is_not_blamed_on_the_object() {
    let mut rig = Rig::start().await;
    let p = rig.process("p", 1).await;
    rig.emit(b"a", 1, 0).await;
    let wrong = rig.keys.worker_event("p.0");
    rig.redis::<()>("SET", &[wrong.as_bytes(), b"wrong"]).await;
    let call = p.call(&rig.keys, WIDE, &[0]);
    let failed = wire::advance(&mut rig.conn, &call)
        .await
        .expect_err("a wrong type");
    assert!(failed.is_wrong_type(), "{failed}");
    rig.redis::<i64>("DEL", &[wrong.as_bytes()]).await;
    assert!(rig.sound().await.due.is_empty());
}
