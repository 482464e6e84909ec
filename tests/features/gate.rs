//! Tests the receiver's rule (I5) with random histories of deliveries.

use futures_util::FutureExt as _;
use proptest::prelude::*;
use seriatim::consume::{Gate, GateError, GateStore, Memory, NumbersError, Start, Verdict};

use crate::support::assert_matches;

/// One event of an object. The history of the object is a list of these, in the order of the push.
#[derive(Debug, Clone)]
struct Pushed {
    id: u64,
    /// Whether the event became a dead letter, perhaps after a delivery. The chain continues
    /// without a dead letter.
    dead: bool,
}

/// One delivery: the index of the event, and the index of the event that `prev` names, if any.
#[derive(Debug, Clone, Copy)]
struct Send {
    event: usize,
    prev: Option<usize>,
}

fn pushed() -> impl Strategy<Value = Vec<Pushed>> {
    let gap = prop_oneof![3 => Just(1u64), 1 => 2..1_000_000_000u64];
    prop::collection::vec((gap, prop::bool::weighted(0.2)), 1..40).prop_map(|steps| {
        let mut id = 0;
        let next = |(gap, dead)| {
            id += gap;
            Pushed { id, dead }
        };
        steps.into_iter().map(next).collect()
    })
}

/// Returns the deliveries of a history, as workers make them. A batch begins at or before the
/// delivered position, so an event may come twice. If a batch is delivered with an event that later
/// becomes a dead letter, the event behind it has the dead letter as `prev`.
fn sends(pushed: &[Pushed], batches: &[(usize, usize, bool)]) -> Vec<Send> {
    let alive_before = |at: usize| (0..at).rev().find(|&j| !pushed[j].dead);
    let mut sends = Vec::new();
    let mut delivered = 0;
    let mut send = |from: usize, to: usize, with_dead: bool| {
        let mut prev = alive_before(from);
        for event in (from..to).filter(|&at| with_dead || !pushed[at].dead) {
            sends.push(Send { event, prev });
            prev = Some(event);
        }
    };
    for &(back, length, with_dead) in batches {
        let from = delivered - back.min(delivered);
        let to = (from + length).min(pushed.len());
        send(from, to, with_dead);
        delivered = delivered.max(to);
    }
    // The last batch delivers all events except the dead letters.
    send(0, pushed.len(), false);
    sends
}

/// Moves each delivery by at most `reach` places. The keys are part of the test case, so a seed
/// repeats the order.
fn reorder(sends: &mut Vec<Send>, keys: &[usize], reach: usize) {
    let mut keyed: Vec<_> = sends
        .iter()
        .enumerate()
        .map(|(at, send)| (at + keys[at % keys.len()] % (reach + 1), *send))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    *sends = keyed.into_iter().map(|(_, send)| send).collect();
}

fn numbers(pushed: &[Pushed], send: Send) -> (u64, u64) {
    (
        pushed[send.event].id,
        send.prev.map_or(0, |at| pushed[at].id),
    )
}

/// Asks the gate about an event. If the verdict is to apply the event, records the event as
/// applied.
fn offer(gate: &mut Gate, (id, prev): (u64, u64)) -> Verdict {
    let verdict = gate
        .check("o", id, prev)
        .now_or_never()
        .expect("memory never waits")
        .expect("sound numbers");
    if verdict == Verdict::Apply {
        gate.applied("o", id, prev)
            .now_or_never()
            .expect("memory never waits")
            .expect("it is the next one");
    }
    verdict
}

/// Returns whether a receiver may apply `next` after `last` by I5: `next` is later, and only dead
/// letters are left out.
fn follows(pushed: &[Pushed], last: Option<usize>, next: usize) -> bool {
    let from = last.map_or(0, |at| at + 1);
    from <= next && pushed[from..next].iter().all(|skipped| skipped.dead)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Deliveries arrive in any order. The applied events are in order, and only dead letters are
    /// left out. An early event really has an earlier event to wait for. If the early events are
    /// offered again, in the end every event is applied.
    #[test]
    fn what_passes_is_the_chain(
        pushed in pushed(),
        batches in prop::collection::vec((0usize..8, 1usize..8, any::<bool>()), 0..20),
        keys in prop::collection::vec(any::<usize>(), 1..200),
        reach in prop_oneof![Just(0usize), 1..5usize, Just(1000)],
    ) {
        let mut coming = sends(&pushed, &batches);
        reorder(&mut coming, &keys, reach);
        let mut gate = Gate::new(Start::Origin);
        let mut last = None;
        let mut rounds = 0;
        while !coming.is_empty() {
            let before = coming.len();
            let mut early = Vec::new();
            for &send in &coming {
                match offer(&mut gate, numbers(&pushed, send)) {
                    Verdict::Apply => {
                        prop_assert!(follows(&pushed, last, send.event), "{:?} was let through after {:?}", send, last);
                        last = Some(send.event);
                    }
                    Verdict::Duplicate => prop_assert!(last >= Some(send.event), "{:?} was dropped after {:?}", send, last),
                    Verdict::Early => {
                        prop_assert!(last < send.prev, "{:?} was held back after {:?}", send, last);
                        early.push(send);
                    }
                }
            }
            coming = early;
            rounds += 1;
            prop_assert!(coming.len() < before, "stuck after {rounds} rounds with {:?}", coming);
        }
        prop_assert!(follows(&pushed, last, pushed.len()), "{:?} is not the end", last);
    }

    /// A receiver that joins late begins at the first `prev` that it sees. From there on it applies
    /// events by the same rule.
    #[test]
    fn a_late_joiner_follows_from_the_first_prev_it_sees(
        pushed in pushed(),
        batches in prop::collection::vec((0usize..8, 1usize..8, any::<bool>()), 0..20),
        joins in any::<prop::sample::Index>(),
    ) {
        let all = sends(&pushed, &batches);
        let Some(first) = (!all.is_empty()).then(|| joins.index(all.len())) else { return Ok(()) };
        let mut gate = Gate::new(Start::FirstSeen);
        let mut last = all[first].prev;
        prop_assert_eq!(offer(&mut gate, numbers(&pushed, all[first])), Verdict::Apply);
        prop_assert!(follows(&pushed, last, all[first].event));
        last = Some(all[first].event);
        for &send in &all[first + 1..] {
            match offer(&mut gate, numbers(&pushed, send)) {
                Verdict::Apply => {
                    prop_assert!(follows(&pushed, last, send.event), "{:?} was let through after {:?}", send, last);
                    last = Some(send.event);
                }
                Verdict::Duplicate => prop_assert!(last >= Some(send.event)),
                Verdict::Early => prop_assert!(last < send.prev),
            }
        }
        // The last batch of a history is complete and arrives in order, so in the end no event is
        // missing.
        prop_assert!(first + 1 == all.len() || follows(&pushed, last, pushed.len()));
    }
}

#[tokio::test]
async fn the_first_seen_counts_even_if_it_was_not_applied() {
    let mut gate = Gate::new(Start::FirstSeen);
    assert_eq!(gate.check("o", 12, 7).await.expect("sound"), Verdict::Apply);
    // The receiver did not apply event 12, and recorded nothing. So event 13 must not pass before
    // event 12.
    assert_eq!(
        gate.check("o", 13, 12).await.expect("sound"),
        Verdict::Early
    );
    assert_eq!(gate.check("o", 12, 7).await.expect("sound"), Verdict::Apply);
    assert_eq!(
        gate.check("another", 3, 0).await.expect("sound"),
        Verdict::Apply
    );
}

#[tokio::test]
async fn nonsense_is_refused_and_leaves_no_trace() {
    let mut gate = Gate::new(Start::FirstSeen);
    for (id, prev, why) in [
        (0, 0, NumbersError::IdZero),
        (5, 5, NumbersError::PrevNotBelow { id: 5, prev: 5 }),
        (1 << 53, 1, NumbersError::IdTooLarge(1 << 53)),
    ] {
        assert_matches!(
            gate.check("o", id, prev).await,
            Err(GateError::Numbers(found)) if *found == why
        );
        assert_matches!(
            gate.applied("o", id, prev).await,
            Err(GateError::Numbers(found)) if *found == why
        );
    }
    assert!(gate.store().is_empty());
}

#[tokio::test]
async fn of_two_consumers_over_one_store_one_is_overtaken() {
    let mut store = Memory::default();
    assert_eq!(
        Gate::over(&mut store, Start::Origin)
            .check("o", 1, 0)
            .await
            .expect("sound"),
        Verdict::Apply
    );
    assert_eq!(
        Gate::over(&mut store, Start::Origin)
            .check("o", 1, 0)
            .await
            .expect("sound"),
        Verdict::Apply
    );
    Gate::over(&mut store, Start::Origin)
        .applied("o", 1, 0)
        .await
        .expect("the first one");
    let second = Gate::over(&mut store, Start::Origin)
        .applied("o", 1, 0)
        .await;
    assert_matches!(second, Err(GateError::Overtaken { id: 1, .. }));
    assert_eq!(store.last("o", 0).await.expect("memory"), 1);
}
