//! Complete explorations of the protocol with all guards on: small ones in every run of the tests,
//! large ones on demand.
use std::sync::atomic::Ordering::Relaxed;

use crate::check::{Verdict, explore};
use crate::protocol::{
    Bounds, FAULTS, Fault, HANDLERS, OPERATOR, Protocol, RULES, SPECIALS, Special,
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
    let two = Bounds {
        objects: 2,
        events: 1,
        ..one.clone()
    };
    holds(
        vec![
            ("two names", one.clone()),
            (
                "two names, two faults",
                Bounds {
                    faults: 2,
                    outcomes: 0,
                    ..one.clone()
                },
            ),
            (
                "two names, two objects",
                Bounds {
                    stall: true,
                    ..two.clone()
                },
            ),
            (
                "two names of two slots",
                Bounds {
                    processes: vec![(0, 2), (1, 2)],
                    outcomes: 0,
                    stall: true,
                    ..two.clone()
                },
            ),
            (
                "one name, a successor",
                same_name(Bounds {
                    faults: 2,
                    outcomes: 0,
                    ..one.clone()
                }),
            ),
            (
                "two names, a successor",
                with_successor(Bounds {
                    outcomes: 0,
                    ..one.clone()
                }),
            ),
            (
                "two names, single events",
                Bounds {
                    batch_max: 1,
                    ..one.clone()
                },
            ),
            (
                "two names, an operator",
                Bounds {
                    faults: 0,
                    outcomes: 3,
                    outcome_kinds: OPERATOR,
                    ..one.clone()
                },
            ),
            (
                "two names, an operator and a fault",
                Bounds {
                    outcomes: 2,
                    outcome_kinds: OPERATOR,
                    ..one.clone()
                },
            ),
            (
                "two names, two objects, rules",
                Bounds {
                    faults: 0,
                    outcomes: 2,
                    outcome_kinds: RULES,
                    ..two.clone()
                },
            ),
            (
                "two names, rules and a fault",
                Bounds {
                    events: 1,
                    outcomes: 2,
                    outcome_kinds: RULES,
                    ..one.clone()
                },
            ),
            (
                "two names, failover",
                with_failover(Bounds {
                    faults: 1,
                    outcomes: 0,
                    ..two
                }),
            ),
            (
                "two names, failover, forgotten",
                Bounds {
                    fault_kinds: &[Fault::Rollback],
                    outcome_kinds: &[Special::Forget],
                    ..one.clone()
                },
            ),
            (
                "two names, emptied",
                Bounds {
                    faults: 2,
                    outcomes: 0,
                    fault_kinds: &[Fault::Crash, Fault::Emptied],
                    ..one.clone()
                },
            ),
            (
                "two names, two objects, counter evicted",
                Bounds {
                    objects: 2,
                    events: 1,
                    faults: 2,
                    outcomes: 0,
                    fault_kinds: &[Fault::Crash, Fault::Evicted],
                    ..one.clone()
                },
            ),
            (
                "one name, failover",
                with_failover(same_name(Bounds {
                    faults: 2,
                    outcomes: 0,
                    events: 1,
                    ..one
                })),
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
                Bounds {
                    faults: 0,
                    outcomes: 3,
                    ..one.clone()
                },
            ),
            ("two names, handlers and a fault", one.clone()),
            (
                "two names, two objects, handlers",
                Bounds {
                    objects: 2,
                    events: 1,
                    faults: 0,
                    ..one.clone()
                },
            ),
            (
                "one name, a successor with another sink",
                same_name(one.clone()),
            ),
            (
                "two names, handlers, failover",
                with_failover(Bounds { events: 1, ..one }),
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
                Bounds {
                    handlers: &[0, 1],
                    ..all.clone()
                },
            ),
            (
                "two names, handlers, three outcomes",
                Bounds {
                    faults: 1,
                    outcomes: 3,
                    ..all.clone()
                },
            ),
            (
                "two names, handlers, other outcomes",
                Bounds {
                    faults: 1,
                    outcome_kinds: others,
                    ..all.clone()
                },
            ),
            (
                "two names, three events, handlers",
                Bounds {
                    events: 3,
                    faults: 1,
                    ..all.clone()
                },
            ),
            (
                "two names, two objects, handlers",
                Bounds {
                    objects: 2,
                    events: 1,
                    faults: 1,
                    ..all.clone()
                },
            ),
            (
                "one name, a successor with another sink",
                same_name(all.clone()),
            ),
            (
                "two names, a successor, handlers",
                with_successor(Bounds {
                    faults: 1,
                    ..all.clone()
                }),
            ),
            // After a failover an emit may be repeated. The repeated event needs its own event
            // number.
            (
                "two names, handlers, a failover",
                with_failover(Bounds {
                    faults: 1,
                    outcomes: 1,
                    ..all.clone()
                }),
            ),
            (
                "two names, handlers, failovers",
                with_failover(Bounds {
                    events: 1,
                    outcomes: 1,
                    ..all
                }),
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
            (
                "two names, an operator",
                Bounds {
                    outcomes: 3,
                    ..all.clone()
                },
            ),
            (
                "two names, three events, an operator",
                Bounds {
                    events: 3,
                    faults: 1,
                    outcomes: 3,
                    ..all.clone()
                },
            ),
            (
                "two names, two objects, an operator",
                Bounds {
                    objects: 2,
                    events: 1,
                    outcomes: 3,
                    ..all.clone()
                },
            ),
            (
                "two names, a busy operator",
                Bounds {
                    faults: 1,
                    outcomes: 5,
                    ..all.clone()
                },
            ),
            (
                "two names, a successor, an operator",
                with_successor(all.clone()),
            ),
            (
                "two names, an operator, a failover",
                with_failover(Bounds {
                    faults: 1,
                    outcomes: 3,
                    ..all
                }),
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
    let two = Bounds {
        objects: 2,
        ..all.clone()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // These explorations have at most one special outcome each. So one exploration per kind of
    // outcome covers all of them, with less memory.
    let by_kind = |at| {
        (
            "two names, two objects, one kind of outcome",
            Bounds {
                outcome_kinds: &SPECIALS[at..=at],
                ..two.clone()
            },
        )
    };
    holds((0..SPECIALS.len()).map(by_kind).collect(), threads);
    holds(
        vec![
            (
                "two names, two objects, a slow one",
                Bounds {
                    outcomes: 0,
                    stall: true,
                    ..two.clone()
                },
            ),
            (
                "two names, two objects, three faults",
                Bounds {
                    faults: 3,
                    outcomes: 0,
                    ..two.clone()
                },
            ),
            (
                "two names, two objects, two outcomes",
                Bounds {
                    events: 1,
                    outcomes: 2,
                    ..two.clone()
                },
            ),
            (
                "two names, three outcomes",
                Bounds {
                    outcomes: 3,
                    ..all.clone()
                },
            ),
            (
                "two names, five faults",
                Bounds {
                    faults: 5,
                    outcomes: 0,
                    ..all.clone()
                },
            ),
            (
                "two names, three events",
                Bounds {
                    events: 3,
                    ..all.clone()
                },
            ),
            (
                "two names of two slots",
                Bounds {
                    processes: vec![(0, 2), (1, 2)],
                    events: 1,
                    outcomes: 0,
                    stall: true,
                    ..two.clone()
                },
            ),
            ("two names, a successor", with_successor(all.clone())),
            (
                "two names, a successor, two objects",
                with_successor(Bounds {
                    events: 1,
                    outcomes: 0,
                    stall: true,
                    ..two.clone()
                }),
            ),
            (
                "two names, failovers",
                with_failover(Bounds {
                    outcomes: 0,
                    ..all.clone()
                }),
            ),
            (
                "two names, two objects, a failover",
                with_failover(Bounds {
                    faults: 1,
                    outcomes: 0,
                    ..two.clone()
                }),
            ),
            (
                "two names, two failovers",
                Bounds {
                    events: 1,
                    outcomes: 0,
                    fault_kinds: &[Fault::Rollback],
                    ..two.clone()
                },
            ),
        ],
        threads,
    );
}
