//! Named scenarios: paths that broke, or could have broken, a design. Every property is checked
//! after every step.
use crate::protocol::{Action, Bounds, Fate, Fault, Guards, Jump, OPERATOR, RULES, Report};
use crate::state::*;
use crate::walk::{Walk, advance};

fn bounds(processes: &[(usize, u8)], attached: usize) -> Bounds {
    Bounds {
        objects: 2,
        processes: processes.to_vec(),
        attached,
        faults: 4,
        outcomes: 4,
        crashes_max: 5,
        stall: true,
        ..Bounds::default()
    }
}

/// Returns all guards but the one that `off` turns off.
fn without(off: impl FnOnce(&mut Guards)) -> Guards {
    let mut guards = Guards::default();
    off(&mut guards);
    guards
}

/// A process claims, but the reply is lost. It considers its slot free, so its next call names the
/// slot, and gets the batch.
#[test]
fn idle_process_after_a_lost_reply() {
    let mut walk = Walk::begin(bounds(&[(0, 1)], 1));
    walk.push(0).call(0, 0, Report::Free, Fate::ReplyLost);
    assert_eq!(
        (walk.in_hand(0, 0), walk.state.redis.owned(0)),
        (None, Some(0)),
        "owned, and the owner does not know"
    );
    let before = walk.state.redis;
    walk.claim(0, 0);
    assert_eq!(
        (walk.in_hand(0, 0), walk.state.redis),
        (Some(0), before),
        "the same batch, and nothing changed"
    );
    walk.finish(0, 0);
    assert!(walk.is_applied(0, 0));
}

/// A pop ends after its slot was given another object. The name of the popped object goes back to
/// the markers with the next renewal, or the next call.
#[test]
fn stray_behind_a_busy_slot() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (1, 1)], 2));
    walk.push(0)
        .claim(0, 0)
        .push(1)
        .go(Action::GhostPop { w: 0 });
    assert!(
        walk.state.redis.markers.is_empty() && walk.state.redis.slots[0].objects.contains(2),
        "object 1 waits behind object 0"
    );
    walk.go(Action::Renew { process: 0 });
    assert!(walk.state.redis.markers.contains(2));
    walk.deliver(1, 0);
    assert!(
        walk.is_applied(1, 0) && walk.in_hand(0, 0) == Some(0),
        "object 0 is still under way"
    );
}

/// A process dies between its pop and its call. The popped name has no owner, and goes back to the
/// markers.
#[test]
fn adopt_of_a_name_taken_but_not_owned() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (1, 1)], 2));
    walk.push(0)
        .go(Action::Pop {
            process: 0,
            slot: 0,
        })
        .go(Action::Crash { process: 0 })
        .go(Action::Expire { name: 0 });
    walk.go(Action::Adopt {
        process: 1,
        name: 0,
    });
    let object = walk.state.redis.objects[0];
    assert_eq!(
        (object.owner, object.due),
        (0, Due::Absent),
        "not held: nobody owned it"
    );
    assert!(walk.state.redis.markers.contains(1));
    walk.deliver(1, 0);
}

/// A pop is still under way when its process detaches, and moves a marker later. The name is swept
/// again.
#[test]
fn pop_outstanding_at_detach() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (1, 1)], 2));
    walk.go(Action::Detach {
        process: 0,
        fate: Fate::Answered,
    })
    .go(Action::Adopt {
        process: 1,
        name: 0,
    });
    walk.push(0).go(Action::GhostPop { w: 0 });
    assert!(walk.state.redis.markers.is_empty());
    walk.go(Action::Adopt {
        process: 1,
        name: 0,
    });
    walk.deliver(1, 0);
    assert!(walk.is_applied(0, 0));
}

/// A process that starts with fewer slots holds the batches of the other slots, due now. They keep
/// their ids and `prev`, and count one more crash.
#[test]
fn restart_with_fewer_slots() {
    let mut walk = Walk::begin(bounds(&[(0, 2), (0, 1)], 1));
    walk.push(0).push(1).claim(0, 0).claim(0, 1).send(0, 1);
    let tag = walk.state.redis.slots[1].tag;
    walk.go(Action::Crash { process: 0 }).attach(1);
    let held = walk.state.redis.objects[1];
    assert_eq!(
        (held.owner, held.due, held.held_tag),
        (HELD, Due::Now, Tag { crashes: 1, ..tag })
    );
    assert_eq!(
        walk.state.redis.names[0].slots, 2,
        "the slot count of a registered name never goes down"
    );
    walk.deliver(1, 0);
    assert_eq!(walk.in_hand(1, 0), Some(1));
    walk.finish(1, 0);
    assert_eq!(
        walk.state.received[1].last, tag.first,
        "under the id it had"
    );
}

/// The first event of a batch becomes a dead letter. The rest comes with a new first id, and its
/// prev is the last delivered event.
#[test]
fn dead_lettered_head() {
    let mut walk = Walk::begin(bounds(&[(0, 1)], 1));
    walk.push(0)
        .push(0)
        .claim(0, 0)
        .report(0, 0, Outcome::Reject(0));
    let hand = walk.state.processes[0].hand[0];
    assert_eq!(
        (hand.tag.first, hand.prev, hand.batch),
        (2, 0, walk.state.redis.slots[0].batch)
    );
    // A call about the old batch does not apply to the rest.
    walk.finish(0, 0);
    assert_eq!(
        (
            walk.state.received[0].last,
            walk.state.redis.objects[0].last
        ),
        (2, 2)
    );
    assert_eq!(
        walk.state.redis.places(event(0, 0)),
        1,
        "among the dead letters"
    );
}

/// An event has failed for the last time, but had arrived. An operator skips it. The rest of the
/// batch keeps its ids, and its prev is the last event delivered before. A receiver that has the
/// skipped event applies the next one, too. A second copy of the call that held the event has no
/// effect.
#[test]
fn skipped_head_of_a_held_batch() {
    let mut walk = Walk::begin(Bounds {
        outcome_kinds: OPERATOR,
        ..bounds(&[(0, 1), (1, 1)], 2)
    });
    walk.push(0).push(0).claim(0, 0).send(0, 0).call(
        0,
        0,
        Report::Is(Outcome::Wait(0)),
        Fate::Repeated,
    );
    assert_eq!(walk.state.redis.objects[0].due, Due::Never);
    walk.go(Action::Skip { object: 0 });
    let held = walk.state.redis.objects[0];
    assert_eq!(
        (held.held_tag, held.due, held.last),
        (
            Tag {
                first: 2,
                ..Tag::default()
            },
            Due::Now,
            0
        )
    );
    walk.claim(0, 0);
    let before = walk.state.redis;
    walk.go(Action::Late {
        markers_first: false,
    });
    assert_eq!(walk.state.redis, before, "ignored: it names another batch");
    walk.finish(0, 0);
    assert_eq!(
        (
            walk.state.received[0].last,
            walk.state.redis.objects[0].last
        ),
        (2, 2)
    );
    assert_eq!(
        walk.state.redis.places(event(0, 0)),
        1,
        "among the dead letters"
    );
    walk.go(Action::Again { object: 0 }).deliver(1, 0);
    assert!(walk.is_applied(0, 2), "as a new event");
}

/// A second copy of a call that holds an object arrives late. By then the object was released and
/// handed out again, to the same slot, under the same first id.
#[test]
fn late_duplicate_of_a_hold() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (1, 1)], 2));
    walk.push(0)
        .claim(0, 0)
        .call(0, 0, Report::Is(Outcome::Retry(0)), Fate::Repeated);
    walk.go(Action::Due { object: 0 }).claim(0, 0);
    let before = walk.state.redis;
    walk.go(Action::Late {
        markers_first: false,
    });
    assert_eq!(
        walk.state.redis, before,
        "ignored: it names another hand-out"
    );
    walk.finish(0, 0);
}

/// A claim comes before, between or after the steps in which a rule is lifted. In each case the
/// object of the rule is claimed or woken.
#[test]
fn pause_lifted_while_a_claim_is_under_way() {
    for claim_at in 0..3 {
        let mut walk = Walk::begin(bounds(&[(0, 1)], 1));
        walk.push(0).go(Action::Pause { object: 0 });
        for (at, step) in [Action::Lift { object: 0 }, Action::Wake { object: 0 }]
            .into_iter()
            .enumerate()
        {
            if claim_at == at {
                walk.claim(0, 0);
            }
            walk.go(step);
        }
        if walk.in_hand(0, 0).is_none() {
            walk.claim(0, 0);
        }
        walk.finish(0, 0);
        assert!(walk.is_applied(0, 0), "claim at {claim_at}");
    }
    // A call that uses its own old copy of the rules pauses an object that nobody will ever wake.
    let guards = without(|g| g.rules_in_script = false);
    let mut walk = Walk::begin_with(bounds(&[(0, 1)], 1), guards);
    walk.push(0)
        .go(Action::Pause { object: 0 })
        .go(Action::ReadRules { process: 0 });
    walk.go(Action::Lift { object: 0 })
        .go(Action::Wake { object: 0 });
    let broken = walk.try_go(advance(0, 0, Report::Free, Fate::Answered));
    assert!(broken.contains(&"L1 nothing waits for ever"), "{broken:?}");
}

/// The rule over all objects is lifted and woken in steps, and the claiming process crashes
/// meanwhile. One object is also under a rule of its own. This object stays paused until that rule
/// is lifted, too.
#[test]
fn one_of_two_rules_is_lifted_in_steps() {
    let mut walk = Walk::begin(Bounds {
        outcome_kinds: RULES,
        objects: 2,
        outcomes: 2,
        ..bounds(&[(0, 1), (1, 1)], 2)
    });
    walk.push(0)
        .push(1)
        .go(Action::Pause { object: 0 })
        .go(Action::PauseAll);
    walk.claim(0, 0);
    assert!(walk.state.redis.objects.iter().all(|object| object.paused));
    walk.go(Action::LiftAll)
        .go(Action::WakeNext)
        .go(Action::Crash { process: 0 })
        .go(Action::WakeNext);
    assert_eq!(
        walk.state.redis.all,
        Rule::Lifted,
        "it goes with the step that finds nothing"
    );
    walk.go(Action::WakeNext);
    assert_eq!(
        (walk.state.redis.all, walk.state.redis.objects[0].paused),
        (Rule::Absent, true)
    );
    walk.deliver(1, 0);
    assert!(walk.is_applied(1, 0) && !walk.is_applied(0, 0));
    walk.go(Action::Lift { object: 0 })
        .go(Action::Wake { object: 0 })
        .deliver(1, 0);
    assert!(walk.is_applied(0, 0));
}

/// A paused process loses its lease, and a successor takes its name. The first process may still
/// send, but its calls are refused.
#[test]
fn lapsed_process_against_its_successor() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (0, 1)], 1));
    walk.push(0)
        .claim(0, 0)
        .go(Action::Expire { name: 0 })
        .attach(1)
        .claim(1, 0)
        .send(1, 0);
    walk.send(0, 0);
    assert_eq!(
        walk.state.received[0].last, 1,
        "the late send is a duplicate"
    );
    let before = walk.state.redis;
    walk.report(0, 0, Outcome::Done(1));
    assert_eq!(
        (walk.state.processes[0].mode, walk.state.redis),
        (Mode::Stopped, before),
        "fenced, not lapsed"
    );
    walk.report(1, 0, Outcome::Done(1));

    // Without a successor, the process lapses and gets its batch again under the same numbers. No
    // crash is counted.
    let mut walk = Walk::begin(bounds(&[(0, 1)], 1));
    walk.push(0)
        .claim(0, 0)
        .go(Action::Expire { name: 0 })
        .report_refused(0);
    walk.attach(0).claim(0, 0);
    assert_eq!(
        walk.state.processes[0].hand[0].tag,
        Tag {
            first: 1,
            ..Tag::default()
        }
    );
    walk.finish(0, 0);
}

impl Walk {
    /// A renewal finds no lease.
    fn report_refused(&mut self, process: usize) -> &mut Self {
        self.go(Action::Renew { process });
        assert_eq!(self.state.processes[process].mode, Mode::Lapsed);
        self
    }
}

/// Found by this model. A pop of the former process moves a marker to a slot that its successor
/// does not run. No sweep comes, because the name has a lease. So renewal must look at every slot
/// registered in `event.workers` for the name, not only at those of the process.
#[test]
fn pop_for_a_slot_that_the_successor_does_not_run() {
    let path = [
        Action::Crash { process: 0 },
        Action::Attach {
            process: 1,
            fate: Fate::Answered,
        },
        Action::Push { object: 0 },
    ];
    let mut walk = Walk::begin(bounds(&[(0, 2), (0, 1)], 1));
    path.into_iter().for_each(|action| {
        walk.go(action);
    });
    walk.go(Action::GhostPop { w: 1 })
        .go(Action::Renew { process: 1 });
    assert!(walk.state.redis.markers.contains(1));

    let guards = without(|g| g.renew_every_slot = false);
    let mut walk = Walk::begin_with(bounds(&[(0, 2), (0, 1)], 1), guards);
    path.into_iter().for_each(|action| {
        walk.go(action);
    });
    assert!(
        walk.try_go(Action::GhostPop { w: 1 })
            .contains(&"L1 nothing waits for ever")
    );
}

/// Found by this model. A late pop of a second marker puts the name of an owned object into its
/// owner's list twice. A death still counts one crash: a script that walks over the list must
/// handle an owned object once.
#[test]
fn owned_name_twice_in_the_list() {
    let until_crash = |guards: Guards| {
        let mut walk = Walk::begin_with(bounds(&[(0, 1)], 1), guards);
        walk.push(0)
            .claim(0, 0)
            .push(0)
            .go(Action::GhostPop { w: 0 })
            .go(Action::Crash { process: 0 });
        walk
    };
    let mut walk = until_crash(Guards::default());
    walk.attach(0);
    assert_eq!(walk.state.redis.slots[0].tag.crashes, 1);
    let mut walk = until_crash(without(|g| g.owned_once = false));
    let broken = walk.try_go(Action::Attach {
        process: 0,
        fate: Fate::Answered,
    });
    assert!(
        broken.contains(&"a death counts as one crash"),
        "{broken:?}"
    );
}

/// Found by this model. Two markers of one object are in the list of a free slot: the pop of an
/// abandoned connection moved the first, the next pop the second. The call claims the object by the
/// first name. If a script then holds the second as an object without events, the batch is left
/// behind: another worker claims the object and overtakes it.
#[test]
fn two_markers_of_one_object_in_one_slot() {
    let popped = |guards: Guards| {
        let mut walk = Walk::begin_with(
            Bounds {
                batch_max: 1,
                ..bounds(&[(0, 1), (1, 1)], 2)
            },
            guards,
        );
        walk.push(0)
            .push(0)
            .go(Action::Pop {
                process: 0,
                slot: 0,
            })
            .go(Action::GhostPop { w: 0 });
        assert_eq!(
            walk.state.redis.slots[0].objects,
            [1, 1].into_iter().collect()
        );
        walk
    };
    let mut walk = popped(Guards::default());
    walk.claim(0, 0).claim(1, 0);
    assert_eq!((walk.in_hand(0, 0), walk.in_hand(1, 0)), (Some(0), None));
    walk.finish(0, 0).finish(0, 0);

    let mut walk = popped(without(|g| g.claimed_once = false));
    let claim = |process| advance(process, 0, Report::Free, Fate::Answered);
    assert!(
        walk.try_go(claim(0))
            .contains(&"I3 who owns nothing has an empty batch")
    );
    walk.try_go(claim(1));
    assert!(
        walk.try_go(Action::Send {
            process: 1,
            slot: 0
        })
        .contains(&"I5 none is skipped"),
        "it has overtaken the first event"
    );
}

/// Found by this model. A second failover undoes the jump of the first, and the process that
/// connects first has not seen the ids given in between. A jump of the same length gives them
/// again.
#[test]
fn two_failovers_that_jump_equally_far() {
    let first_id_after_both = |guards: Guards| {
        let bounds = Bounds {
            objects: 2,
            events: 1,
            faults: 2,
            fault_kinds: &[Fault::Rollback],
            ..Bounds::default()
        };
        let mut walk = Walk::begin_with(bounds, guards);
        walk.go(Action::Snapshot)
            .go(Action::Rollback)
            .go(Action::Expire { name: 0 })
            .go(Action::Expire { name: 1 });
        walk.go(Action::Snapshot)
            .push(0)
            .go(Action::Connect { process: 0 })
            .attach(0)
            .claim(0, 0);
        walk.go(Action::Rollback)
            .push(1)
            .go(Action::Connect { process: 1 })
            .attach(1);
        walk.try_go(advance(1, 0, Report::Free, Fate::Answered))
    };
    assert!(first_id_after_both(Guards::default()).is_empty());
    let broken = first_id_after_both(without(|g| g.jump = Jump::AsFar));
    assert!(
        broken.contains(&"I5 no two events share an id"),
        "{broken:?}"
    );
}

/// A forgotten object begins a new chain, with `prev` 0. A receiver that still remembers the object
/// applies its next event, and drops older events that come late.
#[test]
fn forgotten_and_emitted_again() {
    let mut walk = Walk::begin(bounds(&[(0, 1), (1, 1)], 2));
    walk.push(0)
        .claim(0, 0)
        .go(Action::GiveUp {
            process: 0,
            slot: 0,
        })
        .go(Action::Crash { process: 0 });
    walk.go(Action::Expire { name: 0 }).go(Action::Adopt {
        process: 1,
        name: 0,
    });
    walk.deliver(1, 0).go(Action::Forget { object: 0 });
    assert_eq!(
        (
            walk.state.redis.objects[0].last,
            walk.state.received[0].last
        ),
        (0, 1)
    );
    walk.push(0).claim(1, 0);
    assert_eq!(walk.state.processes[1].hand[0].prev, 0);
    walk.send(1, 0)
        .go(Action::Arrive)
        .report(1, 0, Outcome::Done(1));
    assert_eq!(
        walk.state.received[0].last, 2,
        "the late send is a duplicate"
    );
}
