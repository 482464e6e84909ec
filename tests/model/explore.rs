//! Complete explorations of the protocol with all guards on: small ones in every run of the tests,
//! large ones on demand.
use std::sync::atomic::Ordering::Relaxed;

use crate::check::{Verdict, explore};
use crate::protocol::{
    Bounds, FAULTS, Fault, HANDLERS, OPERATOR, PROGRAM, Protocol, RULES, SPECIALS, Special,
};

/// Returns bounds with two processes of one name, with 2 and 1 slots. The first is attached.
fn same_name(bounds: Bounds) -> Bounds {
    Bounds {
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        ..bounds
    }
}

fn with_successor(bounds: Bounds) -> Bounds {
    Bounds {
        processes: vec![(0, 2), (0, 1), (1, 1)],
        attached: 1,
        ..bounds
    }
}

fn with_failover(bounds: Bounds) -> Bounds {
    Bounds {
        fault_kinds: &[
            Fault::Crash,
            Fault::LostReply,
            Fault::LateSend,
            Fault::Rollback,
        ],
        ..bounds
    }
}

/// Gives the first process handlers. All other processes have another sink.
fn with_handlers(bounds: Bounds) -> Bounds {
    Bounds {
        handlers: &[0],
        outcome_kinds: HANDLERS,
        ..bounds
    }
}

/// Returns bounds with a change.
fn with(bounds: &Bounds, change: impl FnOnce(&mut Bounds)) -> Bounds {
    let mut bounds = bounds.clone();
    change(&mut bounds);
    bounds
}

/// Explores all states within each of these bounds, asserts that no property breaks, and prints the
/// sizes.
fn holds(explorations: Vec<(&str, Bounds)>, threads: usize) {
    let (mut generated, mut unique) = (0, 0);
    for (title, bounds) in explorations {
        let Bounds {
            objects,
            events,
            batch_max,
            faults,
            outcomes,
            outcome_kinds,
            ..
        } = bounds;
        let title = format!(
            "{title}: {objects} objects x {events} events, batches of {batch_max}, {faults} faults, {outcomes} special outcomes{}",
            if outcome_kinds.len() == 1 {
                format!(" ({:?})", outcome_kinds[0])
            } else {
                String::new()
            }
        );
        let protocol = Protocol {
            bounds,
            ..Protocol::default()
        };
        let verdict: Verdict = explore(&title, protocol.clone(), threads);
        assert!(verdict.broken.is_empty(), "{title}: {:?}", verdict.broken);
        let [lost, again] = [&protocol.allowed.lost, &protocol.allowed.redelivered]
            .map(|count| count.load(Relaxed));
        if protocol.allows(Fault::Rollback) || protocol.allows(Fault::Emptied) {
            println!(
                "  allowed after a loss: {lost} times an event lost, {again} times one applied again under a new id"
            );
            assert!(lost > 0, "{title}: no loss cost anything");
        }
        assert!(
            !protocol.allows(Fault::Rollback) || again > 0,
            "{title}: no delivery was forgotten"
        );
        generated += verdict.generated;
        unique += verdict.unique;
    }
    println!(
        "in all: {generated} states generated, {unique} unique, nothing broken{}",
        memory()
    );
}

/// Returns the peak memory of this process, if the system provides it.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map(|peak| format!(", at most {} of memory", peak.trim()))
        .unwrap_or_default()
}

/// Explores every kind of fault and of outcome, within bounds that take seconds.
#[test]
fn small() {
    let one = Bounds {
        faults: 1,
        outcomes: 1,
        ..Bounds::default()
    };
    let two = with(&one, |b| (b.objects, b.events) = (2, 1));
    holds(
        vec![
            ("two names", one.clone()),
            (
                "two names, two faults",
                with(&one, |b| (b.faults, b.outcomes) = (2, 0)),
            ),
            ("two names, two objects", with(&two, |b| b.stall = true)),
            (
                "two names of two slots",
                with(&two, |b| {
                    (b.processes, b.outcomes, b.stall) = (vec![(0, 2), (1, 2)], 0, true)
                }),
            ),
            (
                "one name, a successor",
                same_name(with(&one, |b| (b.faults, b.outcomes) = (2, 0))),
            ),
            (
                "two names, a successor",
                with_successor(with(&one, |b| b.outcomes = 0)),
            ),
            ("two names, single events", with(&one, |b| b.batch_max = 1)),
            (
                "two names, an operator",
                with(&one, |b| {
                    (b.faults, b.outcomes, b.outcome_kinds) = (0, 3, OPERATOR)
                }),
            ),
            (
                "two names, an operator and a fault",
                with(&one, |b| (b.outcomes, b.outcome_kinds) = (2, OPERATOR)),
            ),
            (
                "two names, a program that dies",
                with(&one, |b| {
                    (b.faults, b.outcomes, b.outcome_kinds, b.crashes_max) = (1, 2, PROGRAM, 2)
                }),
            ),
            (
                "two names, two objects, rules",
                with(&two, |b| {
                    (b.faults, b.outcomes, b.outcome_kinds) = (0, 2, RULES)
                }),
            ),
            (
                "two names, rules and a fault",
                with(&one, |b| {
                    (b.events, b.outcomes, b.outcome_kinds) = (1, 2, RULES)
                }),
            ),
            (
                "two names, failover",
                with_failover(with(&two, |b| (b.faults, b.outcomes) = (1, 0))),
            ),
            (
                "two names, failover, forgotten",
                with(&one, |b| {
                    (b.fault_kinds, b.outcome_kinds) = (&[Fault::Rollback], &[Special::Forget])
                }),
            ),
            (
                "two names, emptied",
                with(&one, |b| {
                    (b.faults, b.outcomes, b.fault_kinds) = (2, 0, &[Fault::Crash, Fault::Emptied])
                }),
            ),
            (
                "two names, two objects, counter evicted",
                with(&one, |b| {
                    (b.objects, b.events, b.faults, b.outcomes, b.fault_kinds) =
                        (2, 1, 2, 0, &[Fault::Crash, Fault::Evicted])
                }),
            ),
            (
                "one name, failover",
                with_failover(same_name(with(&one, |b| {
                    (b.faults, b.outcomes, b.events) = (2, 0, 1)
                }))),
            ),
        ],
        1,
    );
}

/// Explores processes with handlers, within small bounds.
#[test]
fn small_handlers() {
    let one = with_handlers(Bounds {
        faults: 1,
        outcomes: 2,
        ..Bounds::default()
    });
    holds(
        vec![
            (
                "two names, handlers",
                with(&one, |b| (b.faults, b.outcomes) = (0, 3)),
            ),
            ("two names, handlers and a fault", one.clone()),
            (
                "two names, two objects, handlers",
                with(&one, |b| (b.objects, b.events, b.faults) = (2, 1, 0)),
            ),
            (
                "one name, a successor with another sink",
                same_name(one.clone()),
            ),
            (
                "two names, handlers, failover",
                with_failover(with(&one, |b| b.events = 1)),
            ),
        ],
        1,
    );
}

/// Explores processes with handlers, within large bounds.
#[test]
fn large_handlers() {
    if std::env::var("SERIATIM_MODEL").as_deref() != Ok("large") {
        println!("SERIATIM_MODEL=large cargo test --release --test model -- --nocapture large");
        return;
    }
    let all = with_handlers(Bounds {
        faults: 2,
        outcomes: 2,
        ..Bounds::default()
    });
    let others = &[
        Special::Finish,
        Special::Emit,
        Special::Yield,
        Special::Rule,
        Special::Detach,
    ];
    holds(
        vec![
            ("two names, handlers", all.clone()),
            (
                "two names, handlers on both",
                with(&all, |b| b.handlers = &[0, 1]),
            ),
            (
                "two names, handlers, three outcomes",
                with(&all, |b| (b.faults, b.outcomes) = (1, 3)),
            ),
            (
                "two names, handlers, other outcomes",
                with(&all, |b| (b.faults, b.outcome_kinds) = (1, others)),
            ),
            (
                "two names, three events, handlers",
                with(&all, |b| (b.events, b.faults) = (3, 1)),
            ),
            (
                "two names, two objects, handlers",
                with(&all, |b| (b.objects, b.events, b.faults) = (2, 1, 1)),
            ),
            (
                "one name, a successor with another sink",
                same_name(all.clone()),
            ),
            (
                "two names, a successor, handlers",
                with_successor(with(&all, |b| b.faults = 1)),
            ),
            // After a failover an emit may be repeated. The repeated event needs its own event
            // number.
            (
                "two names, handlers, a failover",
                with_failover(with(&all, |b| (b.faults, b.outcomes) = (1, 1))),
            ),
            (
                "two names, handlers, failovers",
                with_failover(with(&all, |b| (b.events, b.outcomes) = (1, 1))),
            ),
        ],
        std::thread::available_parallelism().map_or(1, usize::from),
    );
}

/// Explores operators within large bounds: events that wait for an operator, and the actions.
#[test]
fn large_operator() {
    if std::env::var("SERIATIM_MODEL").as_deref() != Ok("large") {
        println!("SERIATIM_MODEL=large cargo test --release --test model -- --nocapture large");
        return;
    }
    let all = Bounds {
        faults: 2,
        outcomes: 2,
        outcome_kinds: OPERATOR,
        ..Bounds::default()
    };
    holds(
        vec![
            ("two names, an operator", with(&all, |b| b.outcomes = 3)),
            (
                "two names, three events, an operator",
                with(&all, |b| (b.events, b.faults, b.outcomes) = (3, 1, 3)),
            ),
            (
                "two names, two objects, an operator",
                with(&all, |b| (b.objects, b.events, b.outcomes) = (2, 1, 3)),
            ),
            (
                "two names, a busy operator",
                with(&all, |b| (b.faults, b.outcomes) = (1, 5)),
            ),
            (
                "two names, a successor, an operator",
                with_successor(all.clone()),
            ),
            (
                "two names, an operator, a failover",
                with_failover(with(&all, |b| (b.faults, b.outcomes) = (1, 3))),
            ),
        ],
        std::thread::available_parallelism().map_or(1, usize::from),
    );
}

/// Explores the largest bounds that fit in two hours and 8 GB: at least ten million states. Runs
/// with `SERIATIM_MODEL=large`, in a release build.
#[test]
fn large() {
    if std::env::var("SERIATIM_MODEL").as_deref() != Ok("large") {
        println!("SERIATIM_MODEL=large cargo test --release --test model -- --nocapture large");
        return;
    }
    let all = Bounds {
        faults: 2,
        outcomes: 1,
        fault_kinds: FAULTS,
        outcome_kinds: SPECIALS,
        ..Bounds::default()
    };
    let two = with(&all, |b| b.objects = 2);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // These explorations have at most one special outcome each. So one exploration per kind of
    // outcome covers all of them, with less memory.
    let by_kind = |at| {
        (
            "two names, two objects, one kind of outcome",
            with(&two, |b| b.outcome_kinds = &SPECIALS[at..=at]),
        )
    };
    holds((0..SPECIALS.len()).map(by_kind).collect(), threads);
    holds(
        vec![
            (
                "two names, two objects, a slow one",
                with(&two, |b| (b.outcomes, b.stall) = (0, true)),
            ),
            (
                "two names, two objects, three faults",
                with(&two, |b| (b.faults, b.outcomes) = (3, 0)),
            ),
            (
                "two names, two objects, two outcomes",
                with(&two, |b| (b.events, b.outcomes) = (1, 2)),
            ),
            ("two names, three outcomes", with(&all, |b| b.outcomes = 3)),
            (
                "two names, five faults",
                with(&all, |b| (b.faults, b.outcomes) = (5, 0)),
            ),
            ("two names, three events", with(&all, |b| b.events = 3)),
            (
                "two names of two slots",
                with(&two, |b| {
                    (b.processes, b.events, b.outcomes, b.stall) =
                        (vec![(0, 2), (1, 2)], 1, 0, true)
                }),
            ),
            ("two names, a successor", with_successor(all.clone())),
            (
                "two names, a successor, two objects",
                with_successor(with(&two, |b| {
                    (b.events, b.outcomes, b.stall) = (1, 0, true)
                })),
            ),
            (
                "two names, failovers",
                with_failover(with(&all, |b| b.outcomes = 0)),
            ),
            (
                "two names, two objects, a failover",
                with_failover(with(&two, |b| (b.faults, b.outcomes) = (1, 0))),
            ),
            (
                "two names, two failovers",
                with(&two, |b| {
                    (b.events, b.outcomes, b.fault_kinds) = (1, 0, &[Fault::Rollback])
                }),
            ),
        ],
        threads,
    );
}
