//! Tests that every guard of the protocol is needed. If a guard is off, the checker finds a
//! violation. If all guards are on, the checker finds none within the same bounds.
use crate::check::{explore, shortest};
use crate::protocol::{Bounds, EmitsAre, Fault, Guards, Jump, Protocol, Special};

// Properties that several guards keep.
const COVERED: &str = "I1 every queued event is covered";
const EMPTY_BATCH: &str = "I3 who owns nothing has an empty batch";
const NO_SHARED_ID: &str = "I5 no two events share an id";
const NEVER_EARLY: &str = "I5 a receiver is never early";
const NEWEST_TOKEN: &str = "I6 accepted calls come from the newest token";
const NOTHING_WAITS: &str = "L1 nothing waits for ever";
const COUNTS_ONCE: &str = "a result counts once";
const NOTHING_KEPT: &str = "nothing is kept of an event that is over";
const ONE_ROW: &str = "an event that is over has one row in the log";
const PUSHED_ONCE: &str = "what is emitted is pushed once, when its event ends";
const RUNS_ONCE: &str = "what is written down as finished does not run again";

/// Returns the protocol within these bounds, without the guards that `off` turns off.
fn protocol(bounds: &Bounds, off: impl FnOnce(&mut Guards)) -> Protocol {
    let mut protocol = Protocol {
        bounds: bounds.clone(),
        ..Protocol::default()
    };
    off(&mut protocol.guards);
    protocol
}

/// Explores with and without a guard. Asserts that this property breaks only without it.
fn matters(guard: &str, bounds: &Bounds, property: &str, off: impl FnOnce(&mut Guards)) {
    let with = explore(&format!("with {guard}"), protocol(bounds, |_| ()), 1);
    assert!(with.broken.is_empty(), "{:?}", with.broken);
    let found = explore(&format!("without {guard}"), protocol(bounds, off), 1);
    assert!(
        found.breaks(property),
        "without {guard}, `{property}` should break: {:?}",
        found.broken
    );
}

/// Returns bounds with this number of faults, of these kinds.
fn faults(faults: u8, fault_kinds: &'static [Fault]) -> Bounds {
    Bounds {
        faults,
        fault_kinds,
        ..Bounds::default()
    }
}

/// Returns bounds with this number of special outcomes, of these kinds.
fn outcomes(outcomes: u8, outcome_kinds: &'static [Special]) -> Bounds {
    Bounds {
        outcomes,
        outcome_kinds,
        ..Bounds::default()
    }
}

/// With equal slot counts, the check of the batch alone would protect the receiver, even without
/// the fence. So this test has two processes of one name, with 2 slots and 1 slot.
#[test]
fn fence() {
    let bounds = Bounds {
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        ..faults(1, &[Fault::Takeover])
    };
    matters("fence", &bounds, NEWEST_TOKEN, |g| g.fence = false);
}

/// A late second copy of a call reports a batch as delivered. Without the guard, the call removes
/// events that were never sent.
#[test]
fn batch_check() {
    let bounds = Bounds {
        batch_max: 1,
        ..faults(1, &[Fault::RepeatedCall])
    };
    matters("the check of the first id", &bounds, COUNTS_ONCE, |g| {
        g.batch_first = false
    });
    // The consequence is an event that is never delivered.
    let trace = shortest(
        protocol(&bounds, |g| g.batch_first = false),
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
        outcomes: 1,
        outcome_kinds: &[Special::Retry, Special::Hold],
        ..faults(1, &[Fault::RepeatedCall])
    };
    matters("the check of the hand-outs", &bounds, COUNTS_ONCE, |g| {
        g.batch_handouts = false
    });
    let held_only = Bounds {
        outcome_kinds: &[Special::Hold],
        ..bounds
    };
    matters("a hand-out more per claim", &held_only, COUNTS_ONCE, |g| {
        g.handouts = false
    });
}

/// After a pop whose reply was lost, two names are in one `event.worker:W:object`. Without the
/// guard, the worker removes a name by its place in the list, and that is the wrong one.
#[test]
fn remove_by_value() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        outcomes: 1,
        outcome_kinds: &[Special::Retry],
        ..faults(1, &[Fault::GhostPop])
    };
    matters(
        "removal by value",
        &bounds,
        "I2 owners and held objects are where they belong",
        |g| g.remove_by_value = false,
    );
}

/// A pop ends after its slot was given another object. The popped object must not wait until the
/// slot is done with the other object.
#[test]
fn return_of_strays() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        stall: true,
        ..faults(1, &[Fault::GhostPop])
    };
    matters(
        "the return of strays",
        &bounds,
        "L2 a slow object holds up only itself",
        |g| g.strays = false,
    );
    // Without a process that runs the worker name, the popped object would wait for ever.
    let bounds = Bounds {
        stall: false,
        outcomes: 1,
        outcome_kinds: &[Special::Detach],
        ..bounds
    };
    matters("the return of strays", &bounds, NOTHING_WAITS, |g| {
        g.strays = false
    });
}

/// The pop of a dead process moves a marker after the takeover, so the name must be swept again.
#[test]
fn sweep_again() {
    let bounds = Bounds {
        events: 1,
        ..faults(2, &[Fault::Crash, Fault::GhostPop])
    };
    matters("the repeated sweep", &bounds, NOTHING_WAITS, |g| {
        g.resweep = false
    });
    let bounds = Bounds {
        faults: 1,
        ..bounds
    };
    matters("takeover", &bounds, NOTHING_WAITS, |g| g.takeover = false);
}

/// An event is pushed between the read of the empty queue and the release of the object. Without
/// the guard, these are two steps.
#[test]
fn atomic_release() {
    matters("the atomic release", &Bounds::default(), COVERED, |g| {
        g.atomic_release = false
    });
}

/// Without the guard, a process uses its own copy of the rules. If the copy is old, the process
/// claims paused objects, and pauses objects without a rule.
#[test]
fn rules_read_by_the_script() {
    let bounds = Bounds {
        events: 1,
        ..outcomes(1, &[Special::Rule])
    };
    matters(
        "rules read by the script",
        &bounds,
        "a paused object is not claimed",
        |g| g.rules_in_script = false,
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
        ..outcomes(2, &[Special::RuleOfAll])
    };
    matters("a cursor that begins anew", &bounds, NOTHING_WAITS, |g| {
        g.waking_anew = false
    });
    matters("waking to the end", &bounds, NOTHING_WAITS, |g| {
        g.waking_to_the_end = false
    });
}

/// After a failover the counter is back at an earlier value. Without a jump it would give ids that
/// are already in use.
#[test]
fn counter_jump() {
    let bounds = Bounds {
        objects: 2,
        events: 1,
        ..faults(1, &[Fault::Rollback])
    };
    matters("the jump of the counter", &bounds, NO_SHARED_ID, |g| {
        g.jump = Jump::Nowhere
    });
}

/// A second failover may undo the jump of the first one. If the second jump is shorter, it leads to
/// ids below those that receivers already have.
#[test]
fn jump_to_the_time() {
    // The process that connects first must not have seen the ids of the first jump. For this, a
    // second process of the same name is enough.
    let bounds = Bounds {
        objects: 2,
        events: 1,
        processes: vec![(0, 1), (0, 1)],
        attached: 1,
        ..faults(2, &[Fault::Rollback])
    };
    matters("a jump that is no other's", &bounds, NO_SHARED_ID, |g| {
        g.jump = Jump::AsFar
    });
    matters(
        "a jump to the time",
        &Bounds {
            objects: 1,
            events: 2,
            ..bounds
        },
        NOTHING_WAITS,
        |g| g.jump = Jump::AtRandom,
    );
}

/// Redis came back empty, and no process was left that remembered an id. Without the guard, the new
/// ids are the same as the old ones.
#[test]
fn emptied() {
    let bounds = Bounds {
        processes: vec![(0, 1), (0, 1)],
        attached: 1,
        ..faults(1, &[Fault::Emptied])
    };
    matters(
        "a new namespace begins at the time",
        &bounds,
        NO_SHARED_ID,
        |g| g.emptied_begins_at_the_time = false,
    );
}

/// Only the counter is lost. All connections stay open, so no process calls `connect`.
#[test]
fn counter_lost() {
    let bounds = faults(1, &[Fault::Evicted]);
    matters("the jump of a lost counter", &bounds, NO_SHARED_ID, |g| {
        g.lost_counter_jumps = false;
        g.last_id_lifts_the_counter = false;
    });
    let two = Bounds {
        objects: 2,
        events: 1,
        ..bounds.clone()
    };
    matters(
        "the jump of a lost counter, before anything is claimed",
        &two,
        NO_SHARED_ID,
        |g| g.lost_counter_jumps = false,
    );
    // A process that has not seen the lost ids checks the last id of the object that it claims.
    let set_back = Bounds {
        fault_kinds: &[Fault::SetBack],
        events: 3,
        ..bounds
    };
    matters("the last id of the object", &set_back, NO_SHARED_ID, |g| {
        g.last_id_lifts_the_counter = false
    });
}

/// A receiver never gets a dead letter. If a dead letter became the last id of its object, every
/// later event would be early for the receiver.
#[test]
fn dead_letter_leaves_last_event_id() {
    let bounds = outcomes(1, &[Special::Reject]);
    matters(
        "`a dead letter leaves last.event.id`",
        &bounds,
        NEVER_EARLY,
        |g| g.dead_letter_leaves_last = false,
    );
    // An event that an operator skips becomes a dead letter, too.
    let skipped = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Wait, Special::Skip],
        ..bounds
    };
    matters(
        "`a skipped event leaves last.event.id`",
        &skipped,
        NEVER_EARLY,
        |g| g.dead_letter_leaves_last = false,
    );
}

/// A retried dead letter is pushed like any emit: behind all other events, and with a marker.
#[test]
fn retry_of_a_dead_letter() {
    let bounds = Bounds {
        events: 3,
        ..outcomes(2, &[Special::Reject, Special::Again])
    };
    matters(
        "the marker of a retried dead letter",
        &bounds,
        COVERED,
        |g| g.again_with_marker = false,
    );
    matters(
        "the place of a retried dead letter",
        &bounds,
        "I5 none is skipped",
        |g| g.again_at_the_end = false,
    );
}

#[test]
fn owner_check() {
    matters(
        "the look at the owner",
        &Bounds::default(),
        EMPTY_BATCH,
        |g| g.owner_check = false,
    );
}

/// A process whose lease has ended must not take the lease back from its successor.
#[test]
fn renewal_never_creates_a_lease() {
    let bounds = Bounds {
        events: 1,
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        ..faults(2, &[Fault::Pause])
    };
    matters(
        "`renewal never creates a lease`",
        &bounds,
        NEWEST_TOKEN,
        |g| g.renew_never_creates = false,
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
        ..faults(2, &[Fault::Crash, Fault::GhostPop])
    };
    matters(
        "renewal of every registered slot",
        &bounds,
        NOTHING_WAITS,
        |g| g.renew_every_slot = false,
    );
}

/// After a late pop of a second marker, the name of an owned object is twice in its worker's list.
/// Without the guard, the object's batch counts two crashes for one death.
#[test]
fn owned_object_is_dealt_with_once() {
    let bounds = Bounds {
        processes: vec![(0, 1)],
        attached: 1,
        crashes_max: 5,
        ..faults(2, &[Fault::Crash, Fault::GhostPop])
    };
    matters(
        "`an owned object is dealt with once`",
        &bounds,
        "a death counts as one crash",
        |g| g.owned_once = false,
    );
}

/// Two pops of one idle slot, the first without a reply, move two markers of one object into the
/// slot's list. The call claims the object by the first copy of the name. Without the guard, the
/// second copy makes the same call hold the object without its batch.
#[test]
fn claimed_object_is_claimed_once() {
    let bounds = faults(1, &[Fault::GhostPop]);
    matters(
        "`a claimed object is claimed once`",
        &bounds,
        EMPTY_BATCH,
        |g| g.claimed_once = false,
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
        ..faults(1, &[Fault::RepeatedCall])
    };
    matters("rows of results that count", &bounds, ONE_ROW, |g| {
        g.rows_of_results_that_count = false
    });
    let skipped = Bounds {
        faults: 0,
        outcomes: 2,
        outcome_kinds: &[Special::Wait, Special::Skip],
        ..bounds
    };
    matters("the row of a skip", &skipped, ONE_ROW, |g| {
        g.skip_has_a_row = false
    });
}

/// A second copy of a handler's success arrives after the event is over. Without the guard, the
/// success would be stored for a finished event, or its emits would be pushed again.
#[test]
fn tag_of_what_handlers_have_finished() {
    let bounds = with_handlers(Bounds {
        batch_max: 1,
        outcomes: 1,
        outcome_kinds: &[Special::Finish],
        ..faults(1, &[Fault::RepeatedCall])
    });
    matters("the tag of what is finished", &bounds, NOTHING_KEPT, |g| {
        g.handled_looks_at_the_tag = false
    });
    // The consequence is a second push of the emits: if the next event is held once, its end may
    // also end the record that the second copy has written.
    let bounds = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Hold],
        ..bounds
    };
    let trace = shortest(
        protocol(&bounds, |g| g.handled_looks_at_the_tag = false),
        PUSHED_ONCE,
    );
    assert!(!trace.is_empty(), "the second copy should push twice");
}

/// After a lapse, the same process may have its name again, and its batch under the same tag. So
/// only the token refuses a late copy of a call from before the lapse.
#[test]
fn fence_of_what_handlers_have_finished() {
    let bounds = with_handlers(Bounds {
        events: 1,
        outcomes: 1,
        outcome_kinds: &[Special::Finish],
        ..faults(2, &[Fault::RepeatedCall, Fault::Pause])
    });
    matters(
        "the fence of what is finished",
        &bounds,
        NEWEST_TOKEN,
        |g| g.handled_is_fenced = false,
    );
}

/// A second copy of a handler's success may arrive when the next event of the batch is under way.
/// The record of the next event must stay.
#[test]
fn later_events_of_the_batch_stay() {
    let bounds = with_handlers(Bounds {
        outcomes: 3,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..faults(1, &[Fault::RepeatedCall])
    });
    matters(
        "what is kept of a later event stays",
        &bounds,
        NOTHING_KEPT,
        |g| g.later_stays = false,
    );
    // The consequence is that the successes of the later event are lost.
    let protocol = protocol(&bounds, |g| g.later_stays = false);
    let trace = shortest(protocol, RUNS_ONCE);
    assert!(
        !trace.is_empty(),
        "a handler of the later event should run again"
    );
}

/// An event's emits are pushed in the step that ends the event: not before, not after. The record
/// of the next event of the batch must not overwrite emits that are not pushed yet.
#[test]
fn emits_with_the_commit() {
    let bounds = with_handlers(outcomes(1, &[Special::Emit]));
    for emits_are in [EmitsAre::PushedAtOnce, EmitsAre::NotPushed] {
        matters("the push with the commit", &bounds, PUSHED_ONCE, |g| {
            g.emits_are = emits_are
        });
    }
    let finish = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Finish],
        ..bounds
    };
    matters(
        "what is to be pushed is not written over",
        &finish,
        PUSHED_ONCE,
        |g| g.unpushed_stays = false,
    );
    matters(
        "what is kept goes with the commit",
        &finish,
        NOTHING_KEPT,
        |g| g.handled_goes_with_the_commit = false,
    );
}

/// An operator who skips an event ends it, too. So the skip pushes the emits of the event's
/// handlers, and deletes their record.
#[test]
fn emits_of_a_skipped_event() {
    let bounds = with_handlers(outcomes(3, &[Special::Emit, Special::Wait, Special::Skip]));
    matters(
        "a skip ends what handlers have finished",
        &bounds,
        NOTHING_KEPT,
        |g| g.skip_ends_handled = false,
    );
    matters(
        "a skip pushes what was emitted",
        &bounds,
        PUSHED_ONCE,
        |g| g.skip_ends_handled = false,
    );
}

/// After a crash, a process with another sink ends the event. This process does not know that the
/// event has a record of handlers.
#[test]
fn another_sink_ends_the_event() {
    let bounds = with_handlers(Bounds {
        outcomes: 1,
        outcome_kinds: &[Special::Emit],
        ..faults(1, &[Fault::Crash])
    });
    matters("the word of what comes again", &bounds, NOTHING_KEPT, |g| {
        g.word_of_what_comes_again = false
    });
    // The process may also end an event before the event with the record. Then the record must
    // stay.
    matters("only what ends goes", &bounds, PUSHED_ONCE, |g| {
        g.only_what_ends = false
    });
    let finish = Bounds {
        outcomes: 2,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..bounds
    };
    matters("only what ends goes", &finish, RUNS_ONCE, |g| {
        g.only_what_ends = false
    });
}

/// A process with another sink, started under the same name, rejects an event before the event with
/// the record. The rest of the batch still counts as delivered again, although the rejection does
/// not hand it out again.
#[test]
fn rest_behind_a_rejected_event() {
    let bounds = with_handlers(Bounds {
        processes: vec![(0, 2), (0, 1)],
        attached: 1,
        outcomes: 2,
        outcome_kinds: &[Special::Emit, Special::Reject],
        ..faults(1, &[Fault::Takeover])
    });
    matters("crashes after a rejection", &bounds, NOTHING_KEPT, |g| {
        g.rejection_keeps_crashes = false
    });
    matters("crashes after a rejection", &bounds, PUSHED_ONCE, |g| {
        g.rejection_keeps_crashes = false
    });
}

/// The next process that gets the event reads its record of handlers. A process always reads if the
/// batch was in other hands, or if the process has lapsed.
#[test]
fn what_is_finished_is_read() {
    let bounds = with_handlers(Bounds {
        events: 1,
        outcomes: 2,
        outcome_kinds: &[Special::Finish, Special::Retry],
        ..faults(1, &[Fault::Crash, Fault::Pause])
    });
    matters("what is finished is read", &bounds, RUNS_ONCE, |g| {
        g.handled_is_read = false
    });
    matters(
        "what is finished is read after a lapse",
        &Bounds {
            outcomes: 1,
            ..bounds.clone()
        },
        RUNS_ONCE,
        |g| g.handled_read_after_a_lapse = false,
    );
    matters(
        "a part ends between two events",
        &Bounds {
            events: 2,
            ..bounds
        },
        RUNS_ONCE,
        |g| g.part_between_events = false,
    );
}
