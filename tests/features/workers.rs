//! Pages of registered worker names, and the slots of one name.

use std::collections::BTreeSet;

use seriatim::control::inspect::Tries;
use seriatim::control::{Control, ControlError, Cursor};

use crate::state::State;
use crate::support::{Redis, assert_matches};

async fn start() -> (Redis, State, Control) {
    let (redis, state) = Redis::start().with_state().await;
    let control = redis.control().await;
    (redis, state, control)
}

/// Returns the names of all pages, in their order, and the number of pages.
async fn all_names(control: &Control, count: usize) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut next) = (Vec::new(), 0, None::<Cursor>);
    loop {
        let page = control.workers(next.as_ref(), count).await.expect("a page");
        assert!(page.workers.len() <= count, "{} names", page.workers.len());
        names.extend(page.workers.into_iter().map(|worker| worker.name));
        pages += 1;
        next = page.next;
        if next.is_none() {
            return (names, pages);
        }
        assert!(pages < 10_000, "the list does not end");
    }
}

/// Tests a name with its slots: the object in hand, a stray, batches with and without tries, and a
/// name without a lease.
#[tokio::test]
async fn a_name_is_shown_with_its_slots() {
    let (_redis, mut state, control) = start().await;
    assert!(
        control
            .worker("a", None, 10)
            .await
            .expect("a look")
            .is_none()
    );
    state.clean().await;
    state
        .add("SET event.worker:gone.0:event.id '14 1 2 3'")
        .await;
    let seen = control
        .worker("a", None, 10)
        .await
        .expect("a look")
        .expect("registered");
    let name = &seen.worker;
    assert_eq!(
        (&name.name[..], name.slots, name.alive, name.host.as_deref()),
        ("a", 3, true, Some("host-1"))
    );
    assert_eq!(
        (name.slots_read, name.slots_busy, name.events_in_flight),
        (3, 1, 2)
    );
    let first = &seen.slots[0];
    let objects: Vec<_> = first
        .objects
        .iter()
        .map(|object| &object.object[..])
        .collect();
    assert_eq!(
        (
            first.slot,
            &first.worker[..],
            objects,
            first.objects_not_shown
        ),
        (0, "a.0", vec!["work:2", "work:3"], 0)
    );
    let batch = first.batch.as_ref().expect("a batch");
    assert_eq!(
        (batch.id, batch.events, batch.tries),
        (Some(12), 2, Tries::default())
    );
    assert_eq!(
        (
            seen.slots.len(),
            &seen.slots[2].batch,
            seen.slots[2].objects.len()
        ),
        (3, &None, 0)
    );
    let gone = control
        .worker("gone", None, 10)
        .await
        .expect("a look")
        .expect("registered");
    assert!(!gone.worker.alive);
    let batch = gone.slots[0].batch.as_ref().expect("a batch");
    assert_eq!(
        (
            batch.id,
            batch.tries.handouts,
            batch.tries.attempts,
            batch.tries.crashes
        ),
        (Some(14), 1, 2, 3)
    );
    // The same name as the list of all names has it.
    let page = control.workers(None, 10).await.expect("a page");
    assert_eq!(
        page.workers.iter().find(|worker| worker.name == "gone"),
        Some(&gone.worker)
    );
}

/// Tests that the slots come in pages, and that a name may have more slots than are counted.
#[tokio::test]
async fn slots_come_in_pages() {
    let (_redis, mut state, control) = start().await;
    state.register("w", 1500).await;
    state.own("w.999", "work:1", 1, &["1"]).await;
    state.own("w.1000", "work:2", 2, &["1"]).await;
    let (mut slots, mut next) = (Vec::new(), None::<Cursor>);
    loop {
        let page = control
            .worker("w", next.as_ref(), 10_000)
            .await
            .expect("a look")
            .expect("registered");
        assert_eq!(
            (
                page.worker.slots,
                page.worker.slots_read,
                page.worker.slots_busy
            ),
            (1500, 1000, 1)
        );
        assert!(page.slots.len() <= 256);
        slots.extend(page.slots);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert!(slots.iter().map(|slot| slot.slot).eq(0..1500));
    let busy: Vec<_> = slots
        .iter()
        .filter(|slot| slot.batch.is_some())
        .map(|slot| &slot.worker[..])
        .collect();
    assert_eq!(busy, ["w.999", "w.1000"]);
    let beyond = control
        .worker("w", Some(&Cursor::from("1500")), 10)
        .await
        .expect("a look")
        .expect("registered");
    assert_eq!((beyond.slots.len(), beyond.next), (0, None));
    let refused = control.worker("w", Some(&Cursor::from("x")), 10).await;
    assert_matches!(refused, Err(ControlError::Cursor(_)));
}

/// Tests that all names come once if nothing changes: before the first pass over the names and
/// after it, from sets that Redis stores in a compact form and from others.
#[tokio::test]
async fn all_names_come_watched_ones_first() {
    let (redis, mut state, control) = start().await;
    let keys = redis.keys();
    assert_eq!(all_names(&control, 10).await, (vec![], 1));
    for (watched, departed) in [(3, 40), (30, 700)] {
        let name = |n: usize| format!("host-{n:04}");
        let names: Vec<String> = (0..watched + departed).map(name).collect();
        for name in &names {
            state.register(name, 2).await;
        }
        for count in [1, 7, 256] {
            let (all, _) = all_names(&control, count).await;
            assert_eq!(
                (all.len(), all.into_iter().collect::<BTreeSet<_>>()),
                (names.len(), names.iter().cloned().collect())
            );
        }
        // The names with the highest numbers are watched.
        for (n, name) in names.iter().enumerate() {
            let set = if n < departed {
                keys.event_workers_departed()
            } else {
                keys.event_workers_watched()
            };
            state.run("ZADD", &[&set, "1", name]).await;
        }
        state
            .add("ZADD event.workers.departed 1 not-registered")
            .await;
        state.add("HSET seriatim.meta names.indexed 1").await;
        for count in [1, 7, 256] {
            let (all, _) = all_names(&control, count).await;
            let first: BTreeSet<_> = all[..watched].iter().collect();
            assert_eq!(
                first,
                names[departed..].iter().collect(),
                "watched names come first"
            );
            assert_eq!(
                (all.len(), all.into_iter().collect::<BTreeSet<_>>()),
                (names.len(), names.iter().cloned().collect())
            );
        }
        state
            .add("DEL event.workers.departed event.workers.watched seriatim.meta")
            .await;
    }
    assert_eq!(
        control.workers(None, 1).await.expect("a page").registered,
        730
    );
}

/// Tests that a page ends before its names have too many slots, and that a single name with more
/// slots has a page of its own.
#[tokio::test]
async fn a_page_of_names_has_a_bounded_number_of_slots() {
    let (_redis, mut state, control) = start().await;
    for (name, slots) in [("a", 600), ("b", 400), ("c", 5000), ("d", 1)] {
        state.register(name, slots).await;
    }
    let mut next = None::<Cursor>;
    for expected in [&["a", "b"][..], &["c"], &["d"]] {
        let page = control.workers(next.as_ref(), 10).await.expect("a page");
        let names: Vec<_> = page.workers.iter().map(|worker| &worker.name[..]).collect();
        assert_eq!((names, page.registered), (expected.to_vec(), 4));
        if expected == ["c"] {
            assert_eq!(
                (page.workers[0].slots, page.workers[0].slots_read),
                (5000, 1000)
            );
        }
        next = page.next;
    }
    assert_eq!(next, None);
    let refused = control.workers(Some(&Cursor::from("1700-0")), 10).await;
    assert_matches!(refused, Err(ControlError::Cursor(_)));
    state
        .add("DEL event.workers; SET event.workers 'a string'")
        .await;
    assert!(
        control
            .workers(None, 10)
            .await
            .expect("a page")
            .workers
            .is_empty()
    );
    assert!(
        control
            .worker("a", None, 10)
            .await
            .expect("a look")
            .is_none()
    );
}
