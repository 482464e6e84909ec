//! Explorations of the model of shares: with all guards, and without each of them.
use super::properties::{APART, COUNT, LIMIT, LOOK, RATE, REST_COMES};
use super::*;
use crate::check::{explore, shortest};

/// Returns the model with all guards.
fn shares(bounds: Bounds) -> Shares {
    Shares {
        bounds,
        guards: ON,
        only: None,
    }
}

fn holds(title: &str, bounds: Bounds) {
    let found = explore(title, shares(bounds), 2);
    assert!(found.broken.is_empty(), "{title}: {:#?}", found.broken);
}

/// Asserts that this property breaks without the guard that `off` turns off, and that no property breaks with all guards.
fn matters(bounds: &Bounds, property: &'static str, off: impl FnOnce(&mut Guards)) {
    holds("with all guards", bounds.clone());
    let mut model = shares(bounds.clone());
    off(&mut model.guards);
    let trace = shortest(model, property);
    println!("without a guard: {property}\n  {}", trace.join("\n  "));
    assert!(!trace.is_empty(), "`{property}` should break");
}

/// Two objects of `a`, each with an event. At most one of them may be in hand.
fn two_of_a() -> Bounds {
    Bounds {
        events: [1, 1, 0],
        shares: vec![(A, in_flight(1))],
        ..Bounds::default()
    }
}

#[test]
fn one_limit() {
    let faults = Bounds {
        removals: 1,
        crashes: 1,
        retries: 1,
        ..Bounds::default()
    };
    let of_a = Bounds {
        events: [2, 1, 1],
        shares: vec![(A, in_flight(1))],
        ..faults.clone()
    };
    holds("one limit", of_a);
    holds(
        "a limit of all objects",
        Bounds {
            events: [1, 1, 1],
            shares: vec![(ALL, in_flight(1))],
            ..faults
        },
    );
}

#[test]
fn limits_that_are_nested() {
    let shares = vec![(A_X, in_flight(1)), (A, in_flight(1)), (ALL, in_flight(1))];
    holds(
        "nested limits",
        Bounds {
            events: [1, 1, 1],
            shares: shares.clone(),
            crashes: 1,
            ..Bounds::default()
        },
    );
    holds(
        "nested limits, removed",
        Bounds {
            events: [1, 1, 0],
            shares,
            removals: 2,
            retries: 1,
            ..Bounds::default()
        },
    );
}

#[test]
fn rates() {
    let rate_of_a = Bounds {
        events: [2, 1, 0],
        shares: vec![(A, rate(1))],
        refills: 2,
        ..Bounds::default()
    };
    holds(
        "a rate",
        Bounds {
            removals: 1,
            crashes: 1,
            retries: 1,
            ..rate_of_a.clone()
        },
    );
    let shares = vec![(A_X, in_flight(1)), (A, rate(1))];
    holds(
        "a limit under a rate",
        Bounds {
            shares,
            crashes: 1,
            retries: 1,
            ..rate_of_a.clone()
        },
    );
    let shares = vec![(A_X, rate(1)), (A, in_flight(1))];
    holds(
        "a rate under a limit",
        Bounds {
            shares,
            removals: 1,
            retries: 1,
            ..rate_of_a
        },
    );
}

/// Explores nested limits and rates within large bounds.
#[test]
fn large_shares() {
    if std::env::var("SERIATIM_MODEL").as_deref() != Ok("large") {
        println!("SERIATIM_MODEL=large cargo test --release --test model -- --nocapture large");
        return;
    }
    let faults = Bounds {
        events: [1, 1, 1],
        removals: 1,
        crashes: 1,
        retries: 1,
        refills: 2,
        ..Bounds::default()
    };
    for (title, shares) in [
        (
            "nested limits",
            vec![(A_X, in_flight(1)), (A, in_flight(1)), (ALL, in_flight(1))],
        ),
        (
            "a limit, a rate, a limit",
            vec![(A_X, in_flight(1)), (A, rate(1)), (ALL, in_flight(2))],
        ),
        (
            "a rate, a limit, a rate",
            vec![(A_X, rate(1)), (A, in_flight(1)), (ALL, rate(2))],
        ),
        (
            "two operators and a limit of all",
            vec![(A, in_flight(2)), (A, in_flight(1)), (ALL, in_flight(1))],
        ),
    ] {
        holds(
            title,
            Bounds {
                shares,
                ..faults.clone()
            },
        );
    }
}

/// Two operators set a share of the same prefix.
#[test]
fn two_operators() {
    let shares = vec![(A, in_flight(2)), (A, in_flight(1))];
    holds(
        "two operators",
        Bounds {
            shares,
            removals: 2,
            crashes: 1,
            ..two_of_a()
        },
    );
}

/// The call of another slot comes between a claim and its count.
#[test]
fn the_claim_counts_the_object() {
    matters(&two_of_a(), LIMIT, |g| g.counted_with_the_owner = false);
}

/// A slot claims an object after the operator has looked at the slot, and before the share is set.
#[test]
fn objects_are_counted_from_the_first_step_on() {
    matters(&two_of_a(), LIMIT, |g| g.counted_from_the_start = false);
}

/// A slot has owned an object since before the first step.
#[test]
fn an_operator_looks_at_all_slots() {
    matters(&two_of_a(), LIMIT, |g| g.slots_are_looked_at = false);
}

/// Another operator removes the last share, so that objects are not counted any more, while the first
/// operator looks at slots.
#[test]
fn a_share_is_set_only_if_objects_were_counted_all_the_time() {
    let bounds = Bounds {
        shares: vec![(A, in_flight(1)), (ALL, in_flight(2))],
        removals: 1,
        ..two_of_a()
    };
    matters(&bounds, LIMIT, |g| g.epoch = false);
}

/// The object of a dead process would use its limit for ever.
#[test]
fn a_takeover_uncounts_the_object() {
    let bounds = Bounds {
        crashes: 1,
        ..two_of_a()
    };
    matters(&bounds, COUNT, |g| g.takeover_uncounts = false);
    matters(&bounds, REST_COMES, |g| g.takeover_uncounts = false);
}

#[test]
fn an_object_that_leaves_its_slot_opens_the_way() {
    matters(&two_of_a(), LOOK, |g| g.looks_again = false);
    matters(&two_of_a(), REST_COMES, |g| g.looks_again = false);
}

/// A group waits for a limit that is removed or raised while another share has a limit.
#[test]
fn a_changed_share_opens_the_way() {
    let shares = vec![(A, in_flight(1)), (ALL, in_flight(2))];
    matters(
        &Bounds {
            shares,
            removals: 1,
            ..two_of_a()
        },
        LOOK,
        |g| g.change_ends_waits = false,
    );
    let shares = vec![(A, in_flight(1)), (A, in_flight(2))];
    matters(
        &Bounds {
            shares,
            ..two_of_a()
        },
        LOOK,
        |g| g.change_ends_waits = false,
    );
}

/// A name was grouped before its prefix got a share.
#[test]
fn the_shares_of_the_object_count() {
    let bounds = Bounds {
        shares: vec![(A, in_flight(1)), (ALL, in_flight(2))],
        ..two_of_a()
    };
    matters(&bounds, LIMIT, |g| g.own_group = false);
}

/// Objects of a group whose limit is used up come before `b`.
#[test]
fn a_group_waits_apart() {
    let bounds = Bounds {
        events: [1, 1, 1],
        ..two_of_a()
    };
    matters(&bounds, APART, |g| g.waits_apart = false);
}

/// An object comes back after a retry while another one has its place.
#[test]
fn a_held_object_waits_for_its_limit() {
    matters(
        &Bounds {
            retries: 1,
            ..two_of_a()
        },
        LIMIT,
        |g| g.held_too = false,
    );
}

#[test]
fn a_popped_object_waits_for_its_limit() {
    matters(&two_of_a(), LIMIT, |g| g.popped_too = false);
}

/// An object in hand has more events than its rate allows.
#[test]
fn a_rate_counts_further_events() {
    let bounds = Bounds {
        events: [2, 0, 0],
        shares: vec![(A, rate(1))],
        ..Bounds::default()
    };
    matters(&bounds, RATE, |g| g.further_events = false);
}
