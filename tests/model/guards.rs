//! Tests that every guard of the protocol is needed. If a guard is off, the checker finds a
//! violation. If all guards are on, the checker finds none within the same bounds.
use crate::check::{explore, shortest};
use crate::protocol::{Bounds, EmitsAre, Fault, Guards, Jump, Protocol, Special};

/// Explores with and without a guard. Asserts that this property breaks only without it.
fn matters(guard: &str, bounds: Bounds, without: Guards, property: &str) {
    let with = explore(
        &format!("with {guard}"),
        Protocol {
            bounds: bounds.clone(),
            ..Protocol::default()
        },
        1,
    );
    assert!(with.broken.is_empty(), "{:?}", with.broken);
    let found = explore(
        &format!("without {guard}"),
        Protocol {
            bounds,
            guards: without,
            ..Protocol::default()
        },
        1,
    );
    assert!(
        found.breaks(property),
        "without {guard}, `{property}` should break: {:?}",
        found.broken
    );
}

/// With equal slot counts, the check of the batch alone would protect the receiver, even without
/// the fence. So this test has two processes of one name, with 2 slots and 1 slot.
#[test]
fn fence() {
    let bounds = Bounds {
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        faults: 1,
        fault_kinds: &[Fault::Takeover],
        ..Bounds::default()
    };
    matters(
        "fence",
        bounds,
        Guards {
            fence: false,
            ..Guards::default()
        },
        "I6 accepted calls come from the newest token",
    );
}

/// A late second copy of a call reports a batch as delivered. Without the guard, the call removes
/// events that were never sent.
#[test]
fn batch_check() {
    let bounds = Bounds {
        batch_max: 1,
        faults: 1,
        fault_kinds: &[Fault::RepeatedCall],
        ..Bounds::default()
    };
    let without = Guards {
        batch_first: false,
        ..Guards::default()
    };
    matters(
        "the check of the first id",
        bounds.clone(),
        without.clone(),
        "a result counts once",
    );
    // The consequence is an event that is never delivered.
    let trace = shortest(
        Protocol {
            bounds,
            guards: without,
            ..Protocol::default()
        },
        "I7 nothing is lost",
    );
    assert!(!trace.is_empty(), "the second copy should lose an event");
}

/// A second copy of a call that holds an object arrives after the object was handed out again with
/// the same first id. Without the guard, the call holds the object again.
#[test]
fn hand_outs_of_a_batch() {
    let bounds = Bounds {
        events: 1,
        faults: 1,
        fault_kinds: &[Fault::RepeatedCall],
        outcomes: 1,
        outcome_kinds: &[Special::Retry, Special::Hold],
        ..Bounds::default()
    };
    let without = Guards {
        batch_handouts: false,
        ..Guards::default()
    };
    matters(
        "the check of the hand-outs",
        bounds.clone(),
        without,
        "a result counts once",
    );
    let held_only = Bounds {
        outcome_kinds: &[Special::Hold],
        ..bounds
    };
    matters(
        "a hand-out more per claim",
        held_only,
        Guards {
            handouts: false,
            ..Guards::default()
        },
        "a result counts once",
    );
}

/// After a pop whose reply was lost, two names are in one `event.worker:W:object`. Without the
/// guard, the worker removes a name by its place in the list, and that is the wrong one.
#[test]
fn remove_by_value() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        faults: 1,
        fault_kinds: &[Fault::GhostPop],
        outcomes: 1,
        outcome_kinds: &[Special::Retry],
        ..Bounds::default()
    };
    let without = Guards {
        remove_by_value: false,
        ..Guards::default()
    };
    matters(
        "removal by value",
        bounds,
        without,
        "I2 owners and held objects are where they belong",
    );
}

/// A pop ends after its slot was given another object. The popped object must not wait until the
/// slot is done with the other object.
#[test]
fn return_of_strays() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        faults: 1,
        fault_kinds: &[Fault::GhostPop],
        stall: true,
        ..Bounds::default()
    };
    let without = Guards {
        strays: false,
        ..Guards::default()
    };
    matters(
        "the return of strays",
        bounds.clone(),
        without.clone(),
        "L2 a slow object holds up only itself",
    );
    // Without a process that runs the worker name, the popped object would wait for ever.
    let bounds = Bounds {
        stall: false,
        outcomes: 1,
        outcome_kinds: &[Special::Detach],
        ..bounds
    };
    matters(
        "the return of strays",
        bounds,
        without,
        "L1 nothing waits for ever",
    );
}

/// The pop of a dead process moves a marker after the takeover, so the name must be swept again.
#[test]
fn sweep_again() {
    let bounds = Bounds {
        events: 1,
        faults: 2,
        fault_kinds: &[Fault::Crash, Fault::GhostPop],
        ..Bounds::default()
    };
    let without = Guards {
        resweep: false,
        ..Guards::default()
    };
    matters(
        "the repeated sweep",
        bounds.clone(),
        without,
        "L1 nothing waits for ever",
    );
    let bounds = Bounds {
        faults: 1,
        ..bounds
    };
    matters(
        "takeover",
        bounds,
        Guards {
            takeover: false,
            ..Guards::default()
        },
        "L1 nothing waits for ever",
    );
}

/// An event is pushed between the read of the empty queue and the release of the object. Without
/// the guard, these are two steps.
#[test]
fn atomic_release() {
    let without = Guards {
        atomic_release: false,
        ..Guards::default()
    };
    matters(
        "the atomic release",
        Bounds::default(),
        without,
        "I1 every queued event is covered",
    );
}

/// Without the guard, a process uses its own copy of the rules. If the copy is old, the process
/// claims paused objects, and pauses objects without a rule.
#[test]
fn rules_read_by_the_script() {
    let bounds = Bounds {
        events: 1,
        outcomes: 1,
        outcome_kinds: &[Special::Rule],
        ..Bounds::default()
    };
    let without = Guards {
        rules_in_script: false,
        ..Guards::default()
    };
    matters(
        "rules read by the script",
        bounds,
        without,
        "a paused object is not claimed",
    );
}

/// A rule over all objects is woken in steps. If the rule is set again meanwhile, the next waking
/// must begin with the first object again. Otherwise the objects that the cursor has already passed
/// stay paused. If the rule is deleted too early, its remaining objects wait for ever.
#[test]
fn waking() {
    let bounds = Bounds {
        processes: vec![(0, 1)],
        attached: 1,
        objects: 2,
        events: 1,
        faults: 0,
        outcomes: 2,
        outcome_kinds: &[Special::RuleOfAll],
        ..Bounds::default()
    };
    let without = Guards {
        waking_anew: false,
        ..Guards::default()
    };
    matters(
        "a cursor that begins anew",
        bounds.clone(),
        without,
        "L1 nothing waits for ever",
    );
    let without = Guards {
        waking_to_the_end: false,
        ..Guards::default()
    };
    matters(
        "waking to the end",
        bounds,
        without,
        "L1 nothing waits for ever",
    );
}

/// After a failover the counter is back at an earlier value. Without a jump it would give ids that
/// are already in use.
#[test]
fn counter_jump() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        faults: 1,
        fault_kinds: &[Fault::Rollback],
        ..Bounds::default()
    };
    let without = Guards {
        jump: Jump::Nowhere,
        ..Guards::default()
    };
    matters(
        "the jump of the counter",
        bounds,
        without,
        "I5 no two events share an id",
    );
}

/// A second failover may undo the jump of the first one. If the second jump is shorter, it leads to
/// ids below those that receivers already have.
#[test]
fn jump_to_the_time() {
    // The process that connects first must not have seen the ids of the first jump. For this, a
    // second process of the same name is enough.
    let processes = vec![(0, 1), (0, 1)];
    let bounds = Bounds {
        objects: 2,
        events: 1,
        faults: 2,
        fault_kinds: &[Fault::Rollback],
        processes,
        attached: 1,
        ..Bounds::default()
    };
    let equal = Guards {
        jump: Jump::AsFar,
        ..Guards::default()
    };
    matters(
        "a jump that is no other's",
        bounds.clone(),
        equal,
        "I5 no two events share an id",
    );
    let random = Guards {
        jump: Jump::AtRandom,
        ..Guards::default()
    };
    matters(
        "a jump to the time",
        Bounds {
            objects: 1,
            events: 2,
            ..bounds
        },
        random,
        "L1 nothing waits for ever",
    );
}

/// Redis came back empty, and no process was left that remembered an id. Without the guard, the new
/// ids are the same as the old ones.
#[test]
fn emptied() {
    let processes = vec![(0, 1), (0, 1)];
    let bounds = Bounds {
        faults: 1,
        fault_kinds: &[Fault::Emptied],
        processes,
        attached: 1,
        ..Bounds::default()
    };
    let without = Guards {
        emptied_begins_at_the_time: false,
        ..Guards::default()
    };
    matters(
        "a new namespace begins at the time",
        bounds,
        without,
        "I5 no two events share an id",
    );
}

/// Only the counter is lost. All connections stay open, so no process calls `connect`.
#[test]
fn counter_lost() {
    let bounds = Bounds {
        faults: 1,
        fault_kinds: &[Fault::Evicted],
        ..Bounds::default()
    };
    let without = Guards {
        lost_counter_jumps: false,
        last_id_lifts_the_counter: false,
        ..Guards::default()
    };
    matters(
        "the jump of a lost counter",
        bounds.clone(),
        without,
        "I5 no two events share an id",
    );
    let without = Guards {
        lost_counter_jumps: false,
        ..Guards::default()
    };
    let two = Bounds {
        objects: 2,
        events: 1,
        ..bounds.clone()
    };
    matters(
        "the jump of a lost counter, before anything is claimed",
        two,
        without,
        "I5 no two events share an id",
    );
    // A process that has not seen the lost ids checks the last id of the object that it claims.
    let set_back = Bounds {
        fault_kinds: &[Fault::SetBack],
        events: 3,
        ..bounds
    };
    let without = Guards {
        last_id_lifts_the_counter: false,
        ..Guards::default()
    };
    matters(
        "the last id of the object",
        set_back,
        without,
        "I5 no two events share an id",
    );
}

/// A receiver never gets a dead letter. If a dead letter became the last id of its object, every
/// later event would be early for the receiver.
#[test]
fn dead_letter_leaves_last_event_id() {
    let bounds = Bounds {
        outcomes: 1,
        outcome_kinds: &[Special::Reject],
        ..Bounds::default()
    };
    let without = Guards {
        dead_letter_leaves_last: false,
        ..Guards::default()
    };
    matters(
        "`a dead letter leaves last.event.id`",
        bounds.clone(),
        without.clone(),
        "I5 a receiver is never early",
    );
    // An event that an operator skips becomes a dead letter, too.
    let skipped = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Wait, Special::Skip],
        ..bounds
    };
    matters(
        "`a skipped event leaves last.event.id`",
        skipped,
        without,
        "I5 a receiver is never early",
    );
}

/// A retried dead letter is pushed like any emit: behind all other events, and with a marker.
#[test]
fn retry_of_a_dead_letter() {
    let bounds = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Reject, Special::Again],
        faults: 0,
        events: 3,
        ..Bounds::default()
    };
    let without = Guards {
        again_with_marker: false,
        ..Guards::default()
    };
    matters(
        "the marker of a retried dead letter",
        bounds.clone(),
        without,
        "I1 every queued event is covered",
    );
    let without = Guards {
        again_at_the_end: false,
        ..Guards::default()
    };
    matters(
        "the place of a retried dead letter",
        bounds,
        without,
        "I5 none is skipped",
    );
}

#[test]
fn owner_check() {
    let without = Guards {
        owner_check: false,
        ..Guards::default()
    };
    matters(
        "the look at the owner",
        Bounds::default(),
        without,
        "I3 who owns nothing has an empty batch",
    );
}

/// A process whose lease has ended must not take the lease back from its successor.
#[test]
fn renewal_never_creates_a_lease() {
    let bounds = Bounds {
        events: 1,
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        faults: 2,
        fault_kinds: &[Fault::Pause],
        ..Bounds::default()
    };
    let without = Guards {
        renew_never_creates: false,
        ..Guards::default()
    };
    matters(
        "`renewal never creates a lease`",
        bounds,
        without,
        "I6 accepted calls come from the newest token",
    );
}

/// A pop of the former process moves a marker to a slot that the new process does not run. No sweep
/// finds the marker, because the name has a lease.
#[test]
fn renewal_looks_at_every_registered_slot() {
    let bounds = Bounds {
        events: 1,
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        faults: 2,
        fault_kinds: &[Fault::Crash, Fault::GhostPop],
        ..Bounds::default()
    };
    let without = Guards {
        renew_every_slot: false,
        ..Guards::default()
    };
    matters(
        "renewal of every registered slot",
        bounds,
        without,
        "L1 nothing waits for ever",
    );
}

/// After a late pop of a second marker, the name of an owned object is twice in its worker's list.
/// Without the guard, the object's batch counts two crashes for one death.
#[test]
fn owned_object_is_dealt_with_once() {
    let bounds = Bounds {
        processes: vec![(0, 1)],
        attached: 1,
        faults: 2,
        fault_kinds: &[Fault::Crash, Fault::GhostPop],
        crashes_max: 5,
        ..Bounds::default()
    };
    let without = Guards {
        owned_once: false,
        ..Guards::default()
    };
    matters(
        "`an owned object is dealt with once`",
        bounds,
        without,
        "a death counts as one crash",
    );
}

/// Two pops of one idle slot, the first without a reply, move two markers of one object into the
/// slot's list. The call claims the object by the first copy of the name. Without the guard, the
/// second copy makes the same call hold the object without its batch.
#[test]
fn claimed_object_is_claimed_once() {
    let bounds = Bounds {
        faults: 1,
        fault_kinds: &[Fault::GhostPop],
        ..Bounds::default()
    };
    let without = Guards {
        claimed_once: false,
        ..Guards::default()
    };
    matters(
        "`a claimed object is claimed once`",
        bounds,
        without,
        "I3 who owns nothing has an empty batch",
    );
}

/// Gives process 0 handlers, which may emit. The other process has another sink.
fn with_handlers(bounds: Bounds) -> Bounds {
    Bounds {
        handlers: &[0],
        ..bounds
    }
}

/// The event log gets rows only for a result that counts. Otherwise a late copy of a result would
/// write rows, too.
#[test]
fn rows_of_the_event_log() {
    let bounds = Bounds {
        batch_max: 1,
        faults: 1,
        fault_kinds: &[Fault::RepeatedCall],
        ..Bounds::default()
    };
    let without = Guards {
        rows_of_results_that_count: false,
        ..Guards::default()
    };
    matters(
        "rows of results that count",
        bounds.clone(),
        without,
        "an event that is over has one row in the log",
    );
    let skipped = Bounds {
        faults: 0,
        outcomes: 2,
        outcome_kinds: &[Special::Wait, Special::Skip],
        ..bounds
    };
    let without = Guards {
        skip_has_a_row: false,
        ..Guards::default()
    };
    matters(
        "the row of a skip",
        skipped,
        without,
        "an event that is over has one row in the log",
    );
}

/// A second copy of a handler's success arrives after the event is over. Without the guard, the
/// success would be stored for a finished event, or its emits would be pushed again.
#[test]
fn tag_of_what_handlers_have_finished() {
    let bounds = with_handlers(Bounds {
        faults: 1,
        fault_kinds: &[Fault::RepeatedCall],
        batch_max: 1,
        outcomes: 1,
        outcome_kinds: &[Special::Finish],
        ..Bounds::default()
    });
    let without = Guards {
        handled_looks_at_the_tag: false,
        ..Guards::default()
    };
    matters(
        "the tag of what is finished",
        bounds.clone(),
        without.clone(),
        "nothing is kept of an event that is over",
    );
    // The consequence is a second push of the emits: if the next event is held once, its end may
    // also end the record that the second copy has written.
    let bounds = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Hold],
        ..bounds
    };
    let trace = shortest(
        Protocol {
            bounds,
            guards: without,
            ..Protocol::default()
        },
        "what is emitted is pushed once, when its event ends",
    );
    assert!(!trace.is_empty(), "the second copy should push twice");
}

/// After a lapse, the same process may have its name again, and its batch under the same tag. So
/// only the token refuses a late copy of a call from before the lapse.
#[test]
fn fence_of_what_handlers_have_finished() {
    let bounds = with_handlers(Bounds {
        events: 1,
        faults: 2,
        fault_kinds: &[Fault::RepeatedCall, Fault::Pause],
        outcomes: 1,
        outcome_kinds: &[Special::Finish],
        ..Bounds::default()
    });
    let without = Guards {
        handled_is_fenced: false,
        ..Guards::default()
    };
    matters(
        "the fence of what is finished",
        bounds,
        without,
        "I6 accepted calls come from the newest token",
    );
}

/// A second copy of a handler's success may arrive when the next event of the batch is under way.
/// The record of the next event must stay.
#[test]
fn later_events_of_the_batch_stay() {
    let bounds = with_handlers(Bounds {
        faults: 1,
        fault_kinds: &[Fault::RepeatedCall],
        outcomes: 3,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..Bounds::default()
    });
    let without = Guards {
        later_stays: false,
        ..Guards::default()
    };
    matters(
        "what is kept of a later event stays",
        bounds.clone(),
        without.clone(),
        "nothing is kept of an event that is over",
    );
    // The consequence is that the successes of the later event are lost.
    let protocol = Protocol {
        bounds,
        guards: without,
        ..Protocol::default()
    };
    let trace = shortest(
        protocol,
        "what is written down as finished does not run again",
    );
    assert!(
        !trace.is_empty(),
        "a handler of the later event should run again"
    );
}

/// An event's emits are pushed in the step that ends the event: not before, not after. The record
/// of the next event of the batch must not overwrite emits that are not pushed yet.
#[test]
fn emits_with_the_commit() {
    const PUSHED: &str = "what is emitted is pushed once, when its event ends";
    let bounds = with_handlers(Bounds {
        outcomes: 1,
        outcome_kinds: &[Special::Emit],
        ..Bounds::default()
    });
    for emits_are in [EmitsAre::PushedAtOnce, EmitsAre::NotPushed] {
        matters(
            "the push with the commit",
            bounds.clone(),
            Guards {
                emits_are,
                ..Guards::default()
            },
            PUSHED,
        );
    }
    let finish = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Finish],
        ..bounds
    };
    let without = Guards {
        unpushed_stays: false,
        ..Guards::default()
    };
    matters(
        "what is to be pushed is not written over",
        finish.clone(),
        without,
        PUSHED,
    );
    let without = Guards {
        handled_goes_with_the_commit: false,
        ..Guards::default()
    };
    matters(
        "what is kept goes with the commit",
        finish,
        without,
        "nothing is kept of an event that is over",
    );
}

/// An operator who skips an event ends it, too. So the skip pushes the emits of the event's
/// handlers, and deletes their record.
#[test]
fn emits_of_a_skipped_event() {
    let outcome_kinds = &[Special::Emit, Special::Wait, Special::Skip];
    let bounds = with_handlers(Bounds {
        outcomes: 3,
        outcome_kinds,
        ..Bounds::default()
    });
    let without = Guards {
        skip_ends_handled: false,
        ..Guards::default()
    };
    matters(
        "a skip ends what handlers have finished",
        bounds.clone(),
        without.clone(),
        "nothing is kept of an event that is over",
    );
    matters(
        "a skip pushes what was emitted",
        bounds,
        without,
        "what is emitted is pushed once, when its event ends",
    );
}

/// After a crash, a process with another sink ends the event. This process does not know that the
/// event has a record of handlers.
#[test]
fn another_sink_ends_the_event() {
    let bounds = with_handlers(Bounds {
        faults: 1,
        fault_kinds: &[Fault::Crash],
        outcomes: 1,
        outcome_kinds: &[Special::Emit],
        ..Bounds::default()
    });
    let without = Guards {
        word_of_what_comes_again: false,
        ..Guards::default()
    };
    matters(
        "the word of what comes again",
        bounds.clone(),
        without,
        "nothing is kept of an event that is over",
    );
    // The process may also end an event before the event with the record. Then the record must
    // stay.
    let without = Guards {
        only_what_ends: false,
        ..Guards::default()
    };
    let part = "what is emitted is pushed once, when its event ends";
    matters("only what ends goes", bounds.clone(), without.clone(), part);
    let finish = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..bounds
    };
    matters(
        "only what ends goes",
        finish,
        without,
        "what is written down as finished does not run again",
    );
}

/// A process with another sink, started under the same name, rejects an event before the event with
/// the record. The rest of the batch still counts as delivered again, although the rejection does
/// not hand it out again.
#[test]
fn rest_behind_a_rejected_event() {
    let bounds = with_handlers(Bounds {
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        faults: 1,
        fault_kinds: &[Fault::Takeover],
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Reject],
        ..Bounds::default()
    });
    let without = Guards {
        rejection_keeps_crashes: false,
        ..Guards::default()
    };
    matters(
        "crashes after a rejection",
        bounds.clone(),
        without.clone(),
        "nothing is kept of an event that is over",
    );
    matters(
        "crashes after a rejection",
        bounds,
        without,
        "what is emitted is pushed once, when its event ends",
    );
}

/// The next process that gets the event reads its record of handlers. A process always reads if the
/// batch was in other hands, or if the process has lapsed.
#[test]
fn what_is_finished_is_read() {
    const RAN: &str = "what is written down as finished does not run again";
    let bounds = with_handlers(Bounds {
        events: 1,
        faults: 1,
        fault_kinds: &[Fault::Crash, Fault::Pause],
        outcomes: 2,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..Bounds::default()
    });
    matters(
        "what is finished is read",
        bounds.clone(),
        Guards {
            handled_is_read: false,
            ..Guards::default()
        },
        RAN,
    );
    let without = Guards {
        handled_read_after_a_lapse: false,
        ..Guards::default()
    };
    matters(
        "what is finished is read after a lapse",
        Bounds {
            outcomes: 1,
            ..bounds.clone()
        },
        without,
        RAN,
    );
    let without = Guards {
        part_between_events: false,
        ..Guards::default()
    };
    matters(
        "a part ends between two events",
        Bounds {
            events: 2,
            ..bounds
        },
        without,
        RAN,
    );
}
