use std::time::Duration;

use bytes::Bytes;

use super::result::{PendingReport, shortened};
use super::{InFlight, Policy, Slot, Step};
use crate::sink::Stop;
use crate::wire::values::Tag;
use crate::wire::{BatchReply, BatchResult, Load, Report};
use crate::worker::serve::deliver::Outcome;
use crate::worker::times::retry::{Backoff, Limit, RetryPolicy, UsedUp};

const RETRY: RetryPolicy = RetryPolicy {
    backoff: Backoff::Fixed(Duration::from_millis(1)),
    jitter: 0,
    ..RetryPolicy::MINUTE
};
const POLICY: Policy<'static> = Policy {
    turn_max: 4,
    stopping: false,
    logs: false,
    unknown_max: Duration::from_secs(3600),
    crashes_held: 3,
    retry_of: &|_| RETRY,
};

fn reply(tag: &str, events: usize) -> BatchReply {
    let events = vec![Bytes::from_static(b"1"); events];
    BatchReply {
        slot: 0,
        object: Bytes::from_static(b"o"),
        tag: self::tag(tag),
        prev: 3,
        events,
    }
}

fn delivering(tag: &str, events: usize) -> Slot {
    Slot::Free
        .next(Step::Ask)
        .next(Step::Answer(Some(reply(tag, events))))
}

fn tag(text: &str) -> Tag {
    text.parse().expect("a tag")
}

/// Returns the step of a delivery that has ended like this.
fn outcome<'a>(count: usize, stop: Option<Stop>, policy: &'a Policy<'a>) -> Step<'a> {
    let waited = Duration::ZERO;
    let outcome = Outcome {
        count,
        stop,
        waited,
    };
    Step::Outcome(outcome, policy)
}

/// Returns the result of a slot.
fn pending(slot: Slot) -> PendingReport {
    match slot {
        Slot::Reported(pending) => pending,
        other => panic!("{other:?}"),
    }
}

fn reported(slot: Slot, count: usize, stop: Option<Stop>) -> Report {
    pending(slot.next(outcome(count, stop, &POLICY))).report
}

/// Tests that handler progress is deleted when its event ends, and not before.
#[test]
fn what_handlers_have_finished_goes_with_their_event() {
    let is_over = |tag: &str, handled: Option<u64>, count: usize, stop: Option<Stop>| {
        let mut slot = delivering(tag, 3);
        if let (Slot::Delivering(in_flight), Some(id)) = (&mut slot, handled) {
            in_flight.handled = Some(id);
        }
        pending(slot.next(outcome(count, stop, &POLICY))).handled
    };
    let (transient, rejected) = (
        || Some(Stop::transient("down")),
        || Some(Stop::rejected("bad")),
    );
    assert!(!is_over("7", None, 3, None));
    assert!(is_over("7", Some(9), 3, None));
    assert!(!is_over("7", Some(8), 1, transient()));
    assert!(is_over("7", Some(7), 1, transient()));
    assert!(is_over("7", Some(8), 1, rejected()));
    assert!(!is_over("7", Some(9), 1, rejected()));
    assert!(!is_over("7", Some(8), 1, None));
    // A worker that had the batch before may have stored progress of the batch's first event.
    assert!(is_over("7 1", None, 3, None) && is_over("7 0 0 1", None, 1, None));
    assert!(!is_over("7 1", None, 0, transient()));
}

#[test]
fn all_delivered_goes_on() {
    let report = reported(delivering("7", 2), 2, None);
    assert_eq!(
        (report.count, report.last, report.then),
        (2, Some(8), BatchResult::Done)
    );
}

/// Regression: one call wrote the log rows of all slots, 32,768 with default settings. Now each
/// result states its work, and a call takes only a limited amount.
#[test]
fn a_result_tells_its_work() {
    let load_of = |slot: Slot, count: usize, stop: Option<Stop>, logs: bool| {
        pending(slot.next(outcome(count, stop, &Policy { logs, ..POLICY }))).load
    };
    let delivered = Load::of_batch(3, 3);
    assert_eq!(load_of(delivering("7", 3), 3, None, false), delivered);
    assert_eq!(
        load_of(delivering("7", 3), 3, None, true),
        delivered.with_rows(3, 3)
    );
    let failed = load_of(delivering("7", 3), 1, Some(Stop::transient("down")), true);
    assert_eq!(failed, Load::of_batch(1, 1).with_rest().with_rows(1, 1));
    let buried = load_of(delivering("7", 3), 2, Some(Stop::rejected("bad")), true);
    assert_eq!(buried, delivered.with_rest().with_rows(3, 3));
    // Regression: one call pushed 8 MiB for the handlers of each of 16 slots.
    let mut slot = delivering("7", 3);
    if let Slot::Delivering(in_flight) = &mut slot {
        (in_flight.handled, in_flight.emitted) = (Some(9), (1000, 1 << 20));
    }
    assert_eq!(
        load_of(slot, 3, None, false),
        delivered.with_emits(1000, 1 << 20)
    );
    // Regression: one call read 1,000 subtasks of each of 128 slots. If the result does not end the
    // event, its subtasks are not read.
    let remembers = |id: u64| {
        let mut slot = delivering("7", 3);
        if let Slot::Delivering(in_flight) = &mut slot {
            (in_flight.handled, in_flight.finished) = (Some(id), 1000);
        }
        slot
    };
    assert_eq!(
        load_of(remembers(9), 3, None, false),
        delivered.with_finished(1000)
    );
    let goes_on = load_of(remembers(8), 1, Some(Stop::transient("down")), false);
    assert_eq!(goes_on, Load::of_batch(1, 1).with_rest());
}

#[test]
fn a_long_turn_yields() {
    assert_eq!(
        reported(delivering("7", 4), 4, None).then,
        BatchResult::Yield
    );
}

/// Regression: a slot yielded and got the same object back in the same call, but the turn did not
/// begin anew. From then on, every batch of the object yielded.
#[test]
fn a_turn_begins_anew_after_it_was_yielded() {
    let yielded = delivering("7", 4).next(outcome(4, None, &POLICY));
    let again = yielded
        .next(Step::Ask)
        .next(Step::Answer(Some(reply("11 1", 2))));
    assert_eq!(reported(again, 2, None).then, BatchResult::Done);
}

/// Tests that the event that was in hand counts the crash, and no event behind it.
#[test]
fn a_program_that_died_counts_a_crash_of_its_event() {
    let result = |tag: &str, count: usize, crashes_held: u32| {
        let policy = Policy {
            crashes_held,
            ..POLICY
        };
        let stop = Some(Stop::crashed("signal 9"));
        let report = pending(delivering(tag, 3).next(outcome(count, stop, &policy))).report;
        assert_eq!(report.count, count);
        match report.then {
            BatchResult::Hold {
                rest,
                delay,
                reason,
            } => (rest.to_string(), delay, reason.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let at_once = |rest: &str| {
        let reason = "retry: signal 9".to_owned();
        (rest.to_owned(), Some(Duration::ZERO), reason)
    };
    assert_eq!(result("7", 0, 3), at_once("7 0 0 1"));
    assert_eq!(result("7", 2, 3), at_once("9 0 0 1"));
    // The attempts are those of the event in hand.
    assert_eq!(result("7 4 2 1", 0, 3), at_once("7 4 2 2"));
    let held = "crashes: died 3 times with this event in hand, at last: signal 9".to_owned();
    assert_eq!(result("7 4 2 2", 0, 3), ("7 4 2 3".to_owned(), None, held));
    assert_eq!(result("7 4 2 2", 0, 0), at_once("7 4 2 3"));
}

#[test]
fn a_failure_holds_the_rest_and_counts() {
    let report = reported(delivering("7", 3), 1, Some(Stop::transient("down")));
    let rest = tag("8 0 1");
    let then = BatchResult::Hold {
        rest,
        delay: Some(Duration::from_millis(1)),
        reason: "retry: down".into(),
    };
    assert_eq!((report.count, report.last, report.then), (1, Some(7), then));
}

#[test]
fn a_postponed_event_holds_the_rest_and_does_not_count() {
    let after = Duration::from_secs(9);
    let stop = || {
        Some(Stop::Postponed {
            reason: "slow".to_owned(),
            after,
        })
    };
    let held = |rest| BatchResult::Hold {
        rest,
        delay: Some(after),
        reason: "retry: slow".into(),
    };
    let first = reported(delivering("7 2 3", 3), 0, stop());
    assert_eq!((first.count, first.then), (0, held(tag("7 2 3"))));
    let later = reported(delivering("7 2 3", 3), 1, stop());
    assert_eq!((later.count, later.then), (1, held(tag("8 2"))));
}

/// Tests that the attempt that has just failed counts towards the limit. A wait that the sink
/// states (`retry_after`) does not raise the limit.
#[test]
fn the_last_attempt_is_followed_by_what_the_policy_says() {
    let last = |then: UsedUp, tag: &str, count: usize| {
        let retry_of = |_: &[u8]| RetryPolicy {
            limit: Some(Limit { attempts: 3, then }),
            ..RETRY
        };
        let stop = Stop::Transient {
            error: "down".to_owned(),
            retry_after: Some(Duration::from_secs(9)),
        };
        let policy = Policy {
            retry_of: &retry_of,
            ..POLICY
        };
        pending(delivering(tag, 3).next(outcome(count, Some(stop), &policy)))
            .report
            .then
    };
    let rest = tag("7 2 2");
    let again = BatchResult::Hold {
        rest,
        delay: Some(Duration::from_secs(9)),
        reason: "retry: down".into(),
    };
    assert_eq!(last(UsedUp::DeadLetter, "7 2 1", 0), again);
    let (next, error) = (Some(tag("8 2")), "down".to_owned());
    let dead = BatchResult::Reject {
        next,
        id: 7,
        error: error.clone(),
        attempts: 3,
    };
    assert_eq!(last(UsedUp::DeadLetter, "7 2 2", 0), dead);
    let complete = BatchResult::Complete {
        next,
        id: 7,
        error,
        attempts: 3,
    };
    assert_eq!(last(UsedUp::CompleteWithErrors, "7 2 2", 0), complete);
    let reason = "attempts: failed 3 times, at last: down".into();
    let held = BatchResult::Hold {
        rest: Tag {
            attempts: 3,
            ..rest
        },
        delay: None,
        reason,
    };
    assert_eq!(last(UsedUp::Hold, "7 2 2", 0), held);
    // The attempts in the tag belong to the first event only. Crashes do not count as attempts.
    assert!(
        matches!(last(UsedUp::DeadLetter, "7 2 2", 1), BatchResult::Hold { rest, .. } if rest.attempts == 1)
    );
    assert!(
        matches!(last(UsedUp::DeadLetter, "7 2 0 4", 0), BatchResult::Hold { rest, .. } if rest.attempts == 1)
    );
}

/// Tests that the retry policy of the event that failed applies, not the policy of the batch's
/// first event.
#[test]
fn the_event_that_failed_is_asked_for_its_policy() {
    let retry_of = |payload: &[u8]| {
        assert_eq!(payload, b"2");
        RETRY
    };
    let events = ["1", "2", "3"]
        .map(|event| Bytes::from_static(event.as_bytes()))
        .to_vec();
    let slot = Slot::Free
        .next(Step::Ask)
        .next(Step::Answer(Some(BatchReply {
            events,
            ..reply("7", 3)
        })));
    let policy = Policy {
        retry_of: &retry_of,
        ..POLICY
    };
    let slot = slot.next(outcome(1, Some(Stop::transient("down")), &policy));
    assert!(
        matches!(slot, Slot::Reported(pending) if matches!(pending.report.then, BatchResult::Hold { .. }))
    );
}

#[test]
fn a_rejected_event_leaves_the_rest() {
    let report = reported(delivering("7 1 2", 3), 0, Some(Stop::rejected("bad")));
    let next = Some(tag("8 1"));
    assert_eq!(
        report.then,
        BatchResult::Reject {
            next,
            id: 7,
            error: "bad".to_owned(),
            attempts: 2
        }
    );
    assert_eq!((report.count, report.last), (0, None));
    let report = reported(delivering("7", 1), 0, Some(Stop::rejected("bad")));
    assert!(matches!(
        report.then,
        BatchResult::Reject {
            next: None,
            id: 7,
            ..
        }
    ));
    let report = reported(delivering("7", 4), 2, Some(Stop::rejected("bad")));
    let next = Some(tag("10"));
    assert_eq!(
        report.then,
        BatchResult::Reject {
            next,
            id: 9,
            error: "bad".to_owned(),
            attempts: 0
        }
    );
}

#[test]
fn a_suspect_is_delivered_alone() {
    let slot = delivering("7 1 0 2", 3);
    let Slot::Delivering(in_flight) = &slot else {
        panic!()
    };
    assert_eq!(in_flight.offered(), 1);
    let next = tag("8 1 0 1");
    assert_eq!(reported(slot, 1, None).then, BatchResult::Part { next });
}

/// Tests that an event that has killed too many workers is settled without a delivery. The events
/// after it stay suspect.
#[test]
fn a_killer_is_settled_as_it_is_said() {
    let settled = |then| {
        let pending = pending(delivering("7 1 2 5", 3).next(Step::Settle(then)));
        (pending.report.count, pending.handled, pending.report.then)
    };
    let (next, error) = (
        Some(tag("8 1 0 1")),
        "crashes: died 5 times with this event in hand",
    );
    let dead = BatchResult::Reject {
        next,
        id: 7,
        error: error.to_owned(),
        attempts: 2,
    };
    assert_eq!(settled(UsedUp::DeadLetter), (0, true, dead));
    let complete = BatchResult::Complete {
        next,
        id: 7,
        error: error.to_owned(),
        attempts: 2,
    };
    assert_eq!(settled(UsedUp::CompleteWithErrors), (0, true, complete));
}

/// Tests the number of crashes of a slot's batch. After a reported result only the rest of the
/// batch counts, not the events that the result ends.
#[test]
fn the_crashes_in_hand_are_those_of_what_stays() {
    let tag = "7 1 0 3";
    assert_eq!(delivering(tag, 2).crashes(), 3);
    assert_eq!(delivering(tag, 2).next(Step::Park).crashes(), 3);
    let part = delivering(tag, 2).next(outcome(1, None, &POLICY));
    assert_eq!((part.crashes(), part.next(Step::Ask).crashes()), (1, 1));
    let done = delivering(tag, 1).next(outcome(1, None, &POLICY));
    assert_eq!((done.crashes(), Slot::Free.crashes()), (0, 0));
}

#[test]
fn an_unavailable_sink_parks_the_batch_and_counts_nothing() {
    let unavailable = || Some(Stop::unavailable("down"));
    let parked = delivering("7", 2).next(outcome(0, unavailable(), &POLICY));
    assert!(matches!(&parked, Slot::Parked(in_flight) if in_flight.tag.attempts == 0));
    assert!(matches!(parked.next(Step::Resume), Slot::Delivering(_)));
    assert!(
        matches!(reported(delivering("7", 2), 1, unavailable()).then, BatchResult::Part { next } if next.to_string() == "8")
    );
}

#[test]
fn a_lost_reply_keeps_the_result() {
    let slot = delivering("7", 1).next(outcome(1, None, &POLICY));
    let slot = slot.next(Step::Ask).next(Step::Unanswered);
    assert!(matches!(&slot, Slot::Reported(pending) if pending.report.then == BatchResult::Done));
    assert!(matches!(
        Slot::Free.next(Step::Ask).next(Step::Unanswered),
        Slot::Free
    ));
}

/// Tests every step on every state: the steps that fit change the slot, all others leave it as it
/// is.
#[test]
fn only_steps_that_fit_change_a_slot() {
    let slots: [fn() -> Slot; 6] = [
        || Slot::Free,
        || Slot::Free.next(Step::Ask),
        || delivering("7", 2),
        || delivering("7", 2).next(Step::Park),
        || delivering("7", 2).next(outcome(2, None, &POLICY)),
        || {
            delivering("7", 2)
                .next(outcome(2, None, &POLICY))
                .next(Step::Ask)
        },
    ];
    let steps: [fn() -> Step<'static>; 10] = [
        || Step::Ask,
        || Step::Answer(None),
        || Step::Answer(Some(reply("9", 1))),
        || Step::Unanswered,
        || outcome(2, None, &POLICY),
        || Step::Park,
        || Step::Resume,
        || Step::Refuse("no".into()),
        || Step::Settle(UsedUp::DeadLetter),
        || Step::GiveBack,
    ];
    let kind = |slot: Slot| match slot {
        Slot::Free => "free",
        Slot::Asked(None) => "asked",
        Slot::Asked(Some(_)) => "answered",
        Slot::Delivering(in_flight) if in_flight.tag.first == 9 => "new",
        Slot::Delivering(_) => "has",
        Slot::Parked(_) => "parked",
        Slot::Reported(_) => "result",
    };
    // One row per slot above: its state after each of the steps.
    let expected = [
        [
            "asked", "free", "free", "free", "free", "free", "free", "free", "free", "free",
        ],
        [
            "asked", "free", "new", "free", "asked", "asked", "asked", "asked", "asked", "asked",
        ],
        [
            "has", "has", "has", "has", "result", "parked", "has", "result", "result", "has",
        ],
        [
            "parked", "parked", "parked", "parked", "parked", "parked", "has", "parked", "parked",
            "result",
        ],
        [
            "answered", "result", "result", "result", "result", "result", "result", "result",
            "result", "result",
        ],
        [
            "answered", "free", "new", "result", "answered", "answered", "answered", "answered",
            "answered", "answered",
        ],
    ];
    let found = slots.map(|slot| steps.map(|step| kind(slot().next(step()))));
    assert_eq!(found, expected);
}

#[test]
fn a_turn_begins_anew_with_another_object() {
    let pending = delivering("7", 3).next(outcome(3, None, &POLICY));
    let other = BatchReply {
        object: Bytes::from_static(b"other"),
        ..reply("10", 3)
    };
    let slot = pending.next(Step::Ask).next(Step::Answer(Some(other)));
    assert_eq!(reported(slot, 3, None).then, BatchResult::Done);
}

#[test]
fn a_process_that_stops_goes_on_with_nothing() {
    let policy = Policy {
        stopping: true,
        ..POLICY
    };
    let slot = delivering("7", 1).next(outcome(1, None, &policy));
    assert!(matches!(slot, Slot::Reported(pending) if pending.report.then == BatchResult::Yield));
}

#[test]
fn what_cannot_be_offered_waits_for_an_operator() {
    let slot = Slot::Free.next(Step::Ask);
    let slot = slot.next(Step::Answer(Some(BatchReply {
        object: Bytes::from_static(b"\xff"),
        ..reply("7 1 2", 1)
    })));
    let Slot::Delivering(in_flight) = &slot else {
        panic!("{slot:?}")
    };
    let reason = in_flight.unfit().expect("not UTF-8");
    assert_eq!(
        reason.to_string(),
        "quarantine: an object name is UTF-8, this one is invalid at byte 0"
    );
    let Slot::Reported(pending) = slot.next(Step::Refuse(reason.clone())) else {
        panic!("no result")
    };
    let rest = tag("7 1 2");
    assert_eq!(
        pending.report.then,
        BatchResult::Hold {
            rest,
            delay: None,
            reason
        }
    );
    let Slot::Delivering(sound) = delivering("7", 1) else {
        panic!("no batch")
    };
    assert_eq!(sound.unfit(), None);
    let unfit = |name: &[u8]| {
        InFlight::new(
            BatchReply {
                object: Bytes::copy_from_slice(name),
                ..reply("7", 1)
            },
            0,
        )
        .unfit()
    };
    for fit in ["work 1", "é:日本", "a\\b", &"x".repeat(512)] {
        assert_eq!(unfit(fit.as_bytes()), None, "{fit:?}");
    }
    for (name, why) in [
        (
            &b"work:1\n"[..],
            "no control characters, this one has U+000A at byte 6",
        ),
        (
            b"\x7f",
            "no control characters, this one has U+007F at byte 0",
        ),
        (
            "a\u{85}".as_bytes(),
            "no control characters, this one has U+0085 at byte 1",
        ),
        (&[b'x'; 513], "at most 512 bytes, this one has 513"),
    ] {
        let found = unfit(name).expect("unfit").to_string();
        assert!(
            found.starts_with("quarantine: an object name ") && found.ends_with(why),
            "{found}"
        );
    }
}

#[test]
fn errors_are_shortened_between_letters() {
    assert_eq!(shortened(&"é".repeat(600)).len(), 1000);
    assert_eq!(shortened(&format!("a{}", "é".repeat(600))).len(), 999);
}
