//! The limits of one call of *advance*: events, bytes, claims, markers, ids. At a limit, no event
//! is lost or reordered, and no object waits for ever.

use std::time::Duration;

use rstest::rstest;
use seriatim::wire::{self, BatchResult, Bounds, ClaimFirst, ScriptError};

use super::puppet::{Given, Puppet, Slot, WIDE};
use super::rig::Rig;

fn bytes(puppet: &Puppet, slot: usize) -> usize {
    let events = puppet.hand(slot).events.iter();
    events.map(|event| event.len()).sum()
}

/// Returns the number of events of all slots that got a batch.
fn events(puppet: &Puppet, given: &Given) -> usize {
    let slots = given.slots.iter();
    slots.map(|slot| puppet.hand(*slot).events.len()).sum()
}

/// Returns the number of batches, whether the call leaves more to do, and the number of markers
/// left.
async fn left(rig: &mut Rig, given: &Given) -> (usize, bool, usize) {
    let markers = rig.sound().await.markers.len();
    (given.slots.len(), given.more, markers)
}

/// A script knows the size of an event only after it has taken the event. If large events follow
/// small ones, the script takes too many events. It puts the surplus back in order.
#[tokio::test]
async fn events_put_back_for_their_size_keep_their_order() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    for (count, len) in [
        (40, 2),
        (3, 300),
        (25, 2),
        (1, 2000),
        (30, 40),
        (2, 999),
        (60, 1),
    ] {
        rig.emit(b"a", count, len).await;
    }
    let bounds = Bounds {
        batch: 50,
        batch_bytes: 1000,
        ..WIDE
    };
    while !rig.advance(&mut p, bounds).await.slots.is_empty() {
        let queue = rig.sound().await.object(b"a").queue;
        let (taken, events) = (bytes(&p, 0), &p.hand(0).events);
        let last = events.last().expect("not empty").len();
        assert!(
            taken - last < 1000,
            "{taken} bytes, the last event has {last}"
        );
        assert!(
            taken >= 1000 || events.len() == 50 || queue.is_empty(),
            "{} events of {taken} bytes",
            events.len()
        );
        rig.deliver(&mut p);
    }
    assert!(rig.world.undone().is_empty());
}

#[tokio::test]
async fn a_reply_is_bounded_in_bytes_and_the_rest_comes_next() {
    let (mut rig, mut p) = Rig::with_process(5).await;
    for object in 0..5u8 {
        rig.emit(&[b'a' + object], 4, 100).await;
    }
    let bounds = Bounds {
        batch: 2,
        reply_bytes: 350,
        ..WIDE
    };
    let given = rig.advance(&mut p, bounds).await;
    // Each claiming slot first gets one event. Only when all of them have one, a slot gets more.
    assert_eq!((given.slots.len(), given.more), (4, true));
    rig.sound().await;
    // Results are reported, but the reply has room for few batches. If an object would go on but
    // has no room, it is held, due at once, and loses no event.
    for _ in 0..30 {
        rig.deliver(&mut p);
        let given = rig.advance(&mut p, bounds).await;
        rig.sound().await;
        let total: usize = given.slots.iter().map(|slot| bytes(&p, *slot)).sum();
        assert!(total < 350 + 200, "{total} bytes: {given:?}");
        assert!(given.more || rig.world.undone().len() <= 4, "{given:?}");
    }
    assert!(rig.world.undone().is_empty());
}

/// Story: a call took as many events as its slots and bytes allowed. 512 slots with 1,000 small
/// events each stopped Redis for 90 ms. Now a call takes at most 4,096 events, and the first event
/// of each batch counts as four. The next call continues.
#[tokio::test]
async fn a_call_takes_so_many_events_and_no_more() {
    let (mut rig, mut p) = Rig::with_process(8).await;
    for object in 0..8u8 {
        rig.emit(&[b'a' + object], 1000, 2).await;
    }
    let given = rig.advance(&mut p, WIDE).await;
    let taken = events(&p, &given);
    assert!(
        (4096..=4096 + 999 + 8).contains(&taken) && given.more,
        "{taken} events: {given:?}"
    );
    rig.sound().await;
    // The batches in flight are given again, within the same limits.
    p.forget();
    let again = rig.advance(&mut p, WIDE).await;
    let given_again = events(&p, &again);
    assert!(
        (4096..=taken).contains(&given_again),
        "{given_again} events again: {again:?}"
    );
    rig.drain(&mut p).await;
}

/// After a restart, all slots have a batch, and the reply has room for one at a time.
#[tokio::test]
async fn batches_that_do_not_fit_into_the_reply_stay_for_the_next_call() {
    let (mut rig, mut p) = Rig::with_process(3).await;
    for object in 0..3u8 {
        rig.emit(&[b'a' + object], 2, 100).await;
    }
    rig.advance(&mut p, WIDE).await;
    p.forget();
    let bounds = Bounds {
        reply_bytes: 1,
        ..WIDE
    };
    for slot in 0..3 {
        let given = rig.advance(&mut p, bounds).await;
        assert_eq!(given.slots, [slot]);
        assert!(given.more);
        rig.sound().await;
    }
    rig.drain(&mut p).await;
}

#[tokio::test]
async fn markers_that_lead_nowhere_are_passed_over_within_the_bound() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    for n in 0..10 {
        let nothing = format!("nothing:{n}");
        rig.mark("LPUSH", &[nothing.as_bytes()]).await;
    }
    rig.emit(b"a", 1, 0).await;
    let bounds = Bounds { markers: 4, ..WIDE };
    for markers in [7, 3] {
        let given = rig.advance(&mut p, bounds).await;
        assert_eq!(left(&mut rig, &given).await, (0, true, markers));
    }
    let given = rig.advance(&mut p, bounds).await;
    assert_eq!(left(&mut rig, &given).await, (1, false, 0));
}

/// There are more markers than the script reads at a time. The only object with events is behind
/// all of them.
#[tokio::test]
async fn a_long_run_of_markers_is_passed_over_in_one_call() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"busy", 1, 0).await;
    rig.advance(&mut p, Bounds { claims: 1, ..WIDE }).await;
    let many = vec![&b"busy"[..]; 3000];
    rig.mark("LPUSH", &many).await;
    rig.emit(b"a", 1, 0).await;
    let given = rig.advance(&mut p, Bounds { claims: 1, ..WIDE }).await;
    assert_eq!(left(&mut rig, &given).await, (1, false, 0));
}

/// A call passes over at most 256 objects that cannot be claimed. A marker that leads to no event
/// does not count as such an object. So 300 such markers between others end no call.
#[tokio::test]
async fn markers_that_lead_nowhere_between_others_end_no_call() {
    let (mut rig, mut p) = Rig::with_process(1000).await;
    for n in 0..300 {
        let nothing = format!("nothing:{n}");
        rig.mark("LPUSH", &[nothing.as_bytes()]).await;
        rig.emit(format!("a{n}").as_bytes(), 1, 0).await;
    }
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!(left(&mut rig, &given).await, (300, false, 0));
}

/// Returns a process with four slots. The objects h0 to h3 are held and due, and the objects m0 to
/// m3 have events.
async fn held_and_marked() -> (Rig, Puppet) {
    let (mut rig, mut p) = Rig::with_process(4).await;
    for n in 0..4 {
        rig.emit(format!("h{n}").as_bytes(), 1, 0).await;
    }
    rig.advance(&mut p, WIDE).await;
    for slot in 0..4 {
        p.hold(slot, Some(Duration::ZERO));
    }
    rig.advance(&mut p, Bounds { claims: 0, ..WIDE }).await;
    for n in 0..4 {
        rig.emit(format!("m{n}").as_bytes(), 1, 0).await;
    }
    rig.sound().await;
    (rig, p)
}

fn objects(p: &Puppet) -> Vec<String> {
    let name = |slot: &Slot| {
        if let Slot::Has(hand) = slot {
            String::from_utf8_lossy(&hand.object).into_owned()
        } else {
            String::new()
        }
    };
    p.slots.iter().map(name).collect()
}

#[rstest]
#[case(ClaimFirst::Held, ["h0", "m0", "h1", "m1"])]
#[case(ClaimFirst::Markers, ["m0", "h0", "m1", "h1"])]
#[tokio::test]
async fn held_objects_and_markers_take_turns(
    #[case] from: ClaimFirst,
    #[case] expected: [&str; 4],
) {
    let (mut rig, mut p) = held_and_marked().await;
    p.from = from;
    rig.advance(&mut p, WIDE).await;
    assert_eq!(objects(&p), expected);
    rig.sound().await;
}

/// With one claim per call, held objects and markers still take turns from call to call. A marker
/// that leads to no event uses no turn.
#[tokio::test]
async fn turns_go_on_over_calls() {
    let (mut rig, mut p) = held_and_marked().await;
    rig.mark("RPUSH", &[b"nothing", b"", b"h3"]).await;
    p.from = ClaimFirst::Markers;
    for _ in 0..4 {
        let given = rig.advance(&mut p, Bounds { claims: 1, ..WIDE }).await;
        assert_eq!((given.slots.len(), given.more), (1, true));
    }
    assert_eq!(objects(&p), ["m0", "h0", "m1", "h1"]);
    // If no object of one kind is left, claims continue with the other kind.
    for _ in 0..2 {
        rig.deliver(&mut p);
        rig.advance(&mut p, WIDE).await;
        rig.sound().await;
    }
    assert!(rig.world.undone().is_empty());
}

/// Another object is behind more markers of busy objects than one call reads. Until these markers
/// are dropped, no busy object has a further turn.
#[tokio::test]
async fn a_turn_of_the_markers_goes_on_with_the_next_call() {
    let (mut rig, mut p) = held_and_marked().await;
    rig.mark("RPUSH", &[b"h2", b"h3", b"h2", b"h3"]).await;
    let bounds = Bounds { markers: 2, ..WIDE };
    p.from = ClaimFirst::Held;
    let mut given = Vec::new();
    for _ in 0..3 {
        let Given { slots, more, .. } = rig.advance(&mut p, bounds).await;
        given.push((slots.len(), more));
        rig.sound().await;
    }
    assert_eq!(given, [(1, true), (0, true), (3, true)]);
    assert_eq!(objects(&p), ["h0", "m0", "h1", "m1"]);
}

#[tokio::test]
async fn markers_of_one_object_give_it_to_one_slot() {
    let (mut rig, mut p) = Rig::with_process(3).await;
    for _ in 0..5 {
        rig.emit(b"a", 1, 0).await;
    }
    rig.mark("LPUSH", &[b"", b"", b"a"]).await;
    let given = rig.advance(&mut p, Bounds { batch: 2, ..WIDE }).await;
    assert_eq!(
        (given.slots, given.more, p.hand(0).events.len()),
        (vec![0], false, 2)
    );
    assert!(rig.sound().await.markers.is_empty());
}

/// One call releases an object and claims it again. The result is a yield, or a hold that is due at
/// once.
#[rstest]
#[case(1, BatchResult::Yield, "2")]
#[case(0, BatchResult::Hold { rest: "1 0 1".parse().expect("a tag"), delay: Some(Duration::ZERO), reason: "retry: no".into() }, "1 1 1")]
#[tokio::test]
async fn an_object_is_let_go_of_and_claimed_in_one_call(
    #[case] count: usize,
    #[case] then: BatchResult,
    #[case] tag: &str,
) {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 2, 0).await;
    let bounds = Bounds { batch: 1, ..WIDE };
    rig.advance(&mut p, bounds).await;
    rig.world.receive(p.hand(0), count).expect("sound");
    p.tell(0, count, then);
    let given = rig.advance(&mut p, bounds).await;
    assert_eq!(
        (given.slots, p.hand(0).tag.to_string()),
        (vec![0], tag.to_owned())
    );
    rig.sound().await;
    rig.drain(&mut p).await;
}

/// An object is released while one of its markers is left. This marker leads to no event, so the
/// object is not claimed.
#[tokio::test]
async fn a_marker_left_over_gives_nothing() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 1, 0).await;
    rig.advance(&mut p, WIDE).await;
    rig.mark("LPUSH", &[b"a", b"a"]).await;
    rig.deliver(&mut p);
    let given = rig.advance(&mut p, WIDE).await;
    assert_eq!((given.slots.len(), given.more), (0, false));
    let state = rig.sound().await;
    assert!(state.markers.is_empty() && state.workers.is_empty());
}

#[tokio::test]
async fn batches_of_a_thousand() {
    let (mut rig, mut p) = Rig::with_process(2).await;
    rig.emit(b"a", 2500, 0).await;
    rig.emit(b"b", 1001, 30).await;
    let mut sizes = Vec::new();
    loop {
        let given = rig.advance(&mut p, WIDE).await;
        if given.slots.is_empty() {
            break;
        }
        sizes.extend(given.slots.iter().map(|slot| p.hand(*slot).events.len()));
        rig.sound().await;
        rig.deliver(&mut p);
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 500, 1000, 1000, 1000]);
    assert!(rig.world.undone().is_empty());
}

/// Lua's `tostring` would print numbers from 1e14 on as `1e+14`.
#[rstest]
#[case("99999999999998")]
#[case("1000000000000000")]
#[case("9007199254738000")]
#[tokio::test]
async fn large_ids_are_written_in_full(#[case] counter: &str) {
    let (mut rig, mut p) = Rig::with_process(1).await;
    let key = rig.keys.next_event_id();
    rig.set(&key, counter).await;
    rig.emit(b"a", 8, 0).await;
    let bounds = Bounds { batch: 2, ..WIDE };
    rig.advance(&mut p, bounds).await;
    let first = counter.parse::<u64>().expect("a number") + 1;
    assert_eq!((p.hand(0).tag.first, p.hand(0).prev), (first, 0));
    rig.deliver(&mut p);
    rig.advance(&mut p, bounds).await;
    assert_eq!(
        (p.hand(0).tag.first, p.hand(0).prev),
        (first + 2, first + 1)
    );
    p.reject(0);
    rig.advance(&mut p, bounds).await;
    rig.sound().await;
    rig.expire("p").await;
    let mut q = rig.process("q", 1).await;
    rig.adopt().await;
    rig.advance(&mut q, bounds).await;
    assert_eq!(q.hand(0).tag.to_string(), format!("{} 1 0 1", first + 3));
    rig.sound().await;
    for _ in 0..4 {
        rig.deliver(&mut q);
        rig.advance(&mut q, bounds).await;
        rig.sound().await;
    }
    assert!(rig.world.undone().is_empty());
}

#[tokio::test]
async fn no_id_is_given_behind_the_last_one() {
    let (mut rig, mut p) = Rig::with_process(1).await;
    rig.emit(b"a", 2, 0).await;
    let key = rig.keys.next_event_id();
    let bounds = Bounds { batch: 1, ..WIDE };
    let last_usable = (1u64 << 53) - 1 - 1024;
    rig.set(&key, (last_usable + 1).to_string()).await;
    let before = format!("{:?}", rig.look().await);
    let refused = wire::advance(&mut rig.conn, &p.call(&rig.keys, bounds, &[0])).await;
    assert!(
        matches!(refused, Err(ScriptError::Counter(_))),
        "{refused:?}"
    );
    assert_eq!(format!("{:?}", rig.look().await), before);
    rig.set(&key, last_usable.to_string()).await;
    rig.advance(&mut p, bounds).await;
    assert_eq!(p.hand(0).tag.first, last_usable + 1);
}
