//! Tests of the record of receivers.

use super::*;

const SLOTS: usize = 64;

fn name(object: &str) -> ObjectName {
    ObjectName::new(object).expect("a name")
}

fn pass<'a>(
    receivers: &'a Receivers,
    origin: &str,
    object: &ObjectName,
    now: Instant,
) -> Result<Permit<'a>, Away> {
    let mut permit = receivers.pass(&origin.into(), object, now, Duration::ZERO)?;
    permit.begin(now).map(|()| permit)
}

/// Lets a delivery pass, and then records that its receiver is down.
fn fail(receivers: &Receivers, origin: &str, object: &ObjectName, now: Instant) -> bool {
    match pass(receivers, origin, object, now) {
        Ok(permit) => {
            receivers.failed(&permit, Failure::Broken, "refused", None, now) == Cause::Receiver
        }
        Err(_) => false,
    }
}

#[test]
fn one_probe_passes_per_second_and_a_success_closes() {
    let (receivers, began, a) = (Receivers::new(SLOTS), Instant::now(), name("a"));
    let at = |ms: u64| began + Duration::from_millis(ms);
    assert!(fail(&receivers, "x", &a, at(0)));
    let passed: Vec<u64> = (0..5000)
        .step_by(10)
        .filter(|ms| fail(&receivers, "x", &a, at(*ms)))
        .collect();
    assert_eq!(passed, [1000, 2000, 3000, 4000]);
    let refused = pass(&receivers, "x", &a, at(4999)).expect_err("down");
    assert_eq!(refused.why, "it is down, and nothing was sent: refused");
    // 100 deliveries per second were refused before.
    assert!(
        !refused.is_busy
            && (Duration::from_secs(1)..Duration::from_secs(8)).contains(&refused.after),
        "{refused:?}"
    );
    assert!(pass(&receivers, "y", &a, at(4999)).is_ok());
    let probe = pass(&receivers, "x", &a, at(5000)).expect("a probe");
    receivers.failed(
        &probe,
        Failure::Refused,
        "503",
        Some(Duration::from_secs(3600)),
        at(5000),
    );
    drop(probe);
    assert!(pass(&receivers, "x", &a, at(64_999)).is_err());
    let probe = pass(&receivers, "x", &a, at(65_000)).expect("a probe");
    receivers.answered(&probe, at(65_000));
    // It has asked for a wait, so its rate grows slowly.
    let passed = (0..10)
        .filter(|_| pass(&receivers, "x", &a, at(65_000)).is_ok())
        .count();
    assert_eq!(passed, 1);
    assert!((0..10).all(|_| pass(&receivers, "x", &a, at(120_000)).is_ok()));
}

/// Tests that a delivery with patience waits for the next probe, that only one of them does so, and
/// that another may wait if the first one is dropped.
#[test]
fn one_delivery_waits_for_the_next_probe() {
    let (receivers, began, a) = (Receivers::one(), Instant::now(), name("a"));
    let (origin, second, patience): (Arc<str>, _, _) =
        ("x".into(), Duration::from_secs(1), Duration::from_secs(5));
    assert!(fail(&receivers, "x", &a, began));
    for _ in 0..3 {
        let waiter = receivers
            .pass(&origin, &a, began, patience)
            .expect("a probe");
        assert_eq!((waiter.wait, waiter.is_probe()), (second, true));
        assert!(
            receivers
                .pass(&origin, &a, began, patience)
                .is_err_and(|away| !away.is_busy)
        );
    }
    let mut waiter = receivers
        .pass(&origin, &a, began, patience)
        .expect("a probe");
    let other = receivers.pass(&origin, &a, began, patience);
    assert!(other.is_err());
    assert!(waiter.begin(began + second).is_ok());
    receivers.failed(&waiter, Failure::Unreachable, "away", None, began + second);
    drop(waiter);
    let mut waiter = receivers
        .pass(&origin, &a, began + second, patience)
        .expect("a probe");
    let asker = pass(&receivers, "x", &a, began + second);
    assert!(
        asker.is_err() && waiter.begin(began + second).is_err(),
        "it is not time yet"
    );
}

/// Tests that a refusal of one object is the fault of this object as soon as the receiver takes
/// another event that was sent after the refusal. If all objects are refused, the receiver is down.
#[test]
fn a_refusal_of_one_object_does_not_open_the_circuit() {
    let (receivers, began) = (Receivers::one(), Instant::now());
    let at = |ms: u64| began + Duration::from_millis(ms);
    let refuse = |object: &str, ms: u64| {
        let permit = pass(&receivers, "x", &name(object), at(ms)).expect("a permit");
        receivers.failed(&permit, Failure::Refused, "404", None, at(ms + 1))
    };
    let old = pass(&receivers, "x", &name("old"), at(0)).expect("a permit");
    assert_eq!(refuse("bad", 1), Cause::Unknown);
    receivers.answered(&old, at(5));
    drop(old);
    assert_eq!(
        refuse("bad", 10),
        Cause::Unknown,
        "the other event was sent before the refusal"
    );
    let good = pass(&receivers, "x", &name("good"), at(20)).expect("a permit");
    receivers.answered(&good, at(21));
    drop(good);
    assert_eq!(refuse("bad", 30), Cause::Event);
    assert_eq!(
        (refuse("bad", 40), refuse("bad", 50)),
        (Cause::Event, Cause::Event),
        "it is known"
    );
    // A second object that is refused twice, without any other answer.
    assert_eq!(refuse("second", 60), Cause::Unknown);
    assert_eq!(refuse("second", 70), Cause::Receiver);
    assert!(pass(&receivers, "x", &name("good"), at(80)).is_err());
    let probe = pass(&receivers, "x", &name("good"), at(1100)).expect("a probe");
    receivers.answered(&probe, at(1101));
    drop(probe);
    assert_eq!(refuse("second", 1200), Cause::Event);
    assert_eq!(receivers.all().refusals.len(), 2);
    let mended = pass(&receivers, "x", &name("bad"), at(1300)).expect("a permit");
    receivers.answered(&mended, at(1301));
    assert_eq!(receivers.all().refusals.len(), 1);
}

/// Tests that a receiver that refuses many objects in a row is down before an object comes again,
/// and that a receiver that takes one event of nine meanwhile is not.
#[test]
fn many_refused_objects_in_a_row_open_the_circuit() {
    for (every, opens) in [(usize::MAX, true), (10, false)] {
        let (receivers, now) = (Receivers::one(), Instant::now());
        let mut causes = Vec::new();
        for n in 0..200 {
            let Ok(permit) = pass(&receivers, "x", &name(&n.to_string()), now) else {
                break;
            };
            match n % every == every - 1 {
                true => receivers.answered(&permit, now),
                false => causes.push(receivers.failed(&permit, Failure::Refused, "503", None, now)),
            }
        }
        assert_eq!(causes.len(), if opens { 32 } else { 180 });
        assert_eq!(
            causes.last(),
            Some(if opens {
                &Cause::Receiver
            } else {
                &Cause::Unknown
            })
        );
    }
}

/// Tests that a timeout of one event is not taken for the state of a receiver that answers others.
#[test]
fn a_timeout_of_one_event_does_not_open_the_circuit() {
    let (receivers, began) = (Receivers::new(SLOTS), Instant::now());
    let at = |second: u64| began + Duration::from_secs(second);
    let stalled = pass(&receivers, "x", &name("stalled"), at(0)).expect("a permit");
    let good = pass(&receivers, "x", &name("good"), at(10)).expect("a permit");
    receivers.answered(&good, at(11));
    assert_eq!(
        receivers.failed(&stalled, Failure::TimedOut, "timeout", None, at(30)),
        Cause::Event
    );
    assert!(pass(&receivers, "x", &name("good"), at(31)).is_ok());
    let stalled = pass(&receivers, "x", &name("stalled"), at(40)).expect("a permit");
    assert_eq!(
        receivers.failed(&stalled, Failure::TimedOut, "timeout", None, at(70)),
        Cause::Receiver
    );
}

/// Tests that nothing passes while a receiver wants to be left alone, and that the rate grows
/// slowly after that time.
#[test]
fn a_receiver_is_left_alone_and_gets_its_rate_back_slowly() {
    let (receivers, began) = (Receivers::new(SLOTS), Instant::now());
    let at = |ms: u64| began + Duration::from_millis(ms);
    let permits: Vec<_> = (0..SLOTS)
        .map(|n| pass(&receivers, "x", &name(&n.to_string()), at(0)).expect("a permit"))
        .collect();
    for permit in &permits {
        let after = receivers.throttled(permit, Duration::from_secs(30), "429", at(10));
        assert!(
            (Duration::from_secs(30)..Duration::from_secs(34)).contains(&after),
            "{after:?}"
        );
    }
    // An answer to an older request does not end the wait.
    receivers.answered(&permits[0], at(20));
    drop(permits);
    let passed = |second: u64| {
        let times = (0..1000).map(|ms| at(10 + second * 1000 + ms));
        times
            .filter(|now| {
                pass(&receivers, "x", &name("a"), *now)
                    .map(|permit| receivers.answered(&permit, *now))
                    .is_ok()
            })
            .count()
    };
    let counts: Vec<_> = (0..34).map(passed).collect();
    assert_eq!(counts[..30], [0; 30]);
    assert!(
        counts[30..]
            .iter()
            .zip([10, 20, 32, 35])
            .all(|(count, expected)| count.abs_diff(expected) <= 3),
        "{counts:?}"
    );
    assert!(pass(&receivers, "y", &name("a"), at(20)).is_ok());
}

/// Tests that all objects get their turn for a probe, even if they always come in the same
/// order.
#[test]
fn probes_rotate_over_objects() {
    let (receivers, began) = (Receivers::new(SLOTS), Instant::now());
    fail(&receivers, "x", &name("first"), began);
    let objects: Vec<_> = (0..20).map(|n| name(&n.to_string())).collect();
    let mut probes = vec![0; 20];
    for second in 1..=60 {
        let now = began + Duration::from_secs(second);
        for (at, object) in objects.iter().enumerate() {
            probes[at] += u32::from(fail(&receivers, "x", object, now));
        }
    }
    assert!(probes.iter().all(|count| *count >= 1), "{probes:?}");
    assert!(probes.iter().sum::<u32>() >= 30, "{probes:?}");
}

/// Tests that an object that has had a probe yields to one that was refused before the last probe,
/// although no other object has come since then.
#[test]
fn a_probe_waits_for_an_object_that_had_none() {
    let (receivers, began, [a, b, c]) = (
        Receivers::new(SLOTS),
        Instant::now(),
        ["a", "b", "c"].map(name),
    );
    let at = |ms: u64| began + Duration::from_millis(ms);
    fail(&receivers, "x", &a, at(0));
    assert!(!fail(&receivers, "x", &b, at(500)) && !fail(&receivers, "x", &c, at(900)));
    let turns = [
        (&a, 1000, true),
        (&b, 2000, true),
        (&a, 3000, false),
        (&b, 3100, false),
        (&c, 3200, true),
    ];
    for (object, ms, passes) in turns {
        assert_eq!(
            fail(&receivers, "x", object, at(ms)),
            passes,
            "{object} at {ms}"
        );
    }
    // All had a probe. From then on they take turns anew, and the last one comes last.
    let turns = [
        (&a, 3300, false),
        (&b, 3400, false),
        (&c, 4200, false),
        (&b, 4300, true),
        (&c, 5300, false),
        (&a, 5400, true),
    ];
    for (object, ms, passes) in turns {
        assert_eq!(
            fail(&receivers, "x", object, at(ms)),
            passes,
            "{object} at {ms}"
        );
    }
    // Now only two of them come, in turn.
    let turns = [
        (&b, 6000, false),
        (&a, 6400, false),
        (&b, 6500, true),
        (&a, 7000, false),
        (&b, 7500, false),
        (&a, 7600, true),
    ];
    for (object, ms, passes) in turns {
        assert_eq!(
            fail(&receivers, "x", object, at(ms)),
            passes,
            "{object} at {ms}"
        );
    }
}

/// Tests that an object that has had a probe gets another one if no other object comes, even
/// though others were refused earlier.
#[test]
fn a_probe_is_not_kept_for_ever() {
    let (receivers, began, a, b) = (Receivers::new(SLOTS), Instant::now(), name("a"), name("b"));
    let at = |second: u64| began + Duration::from_secs(second);
    fail(&receivers, "x", &a, at(0));
    assert!(pass(&receivers, "x", &a, at(1)).is_ok());
    assert!(pass(&receivers, "x", &b, at(1)).is_err());
    assert!(pass(&receivers, "x", &a, at(2)).is_err());
    assert!(pass(&receivers, "x", &a, at(7)).is_ok());
}

/// Tests that a receiver that stalls has one probe at a time, and that a dropped probe makes
/// room for the next one. A permit that was given before the circuit opened does not make room.
#[test]
fn one_probe_is_under_way_at_a_time() {
    let (receivers, began, a, b) = (Receivers::new(SLOTS), Instant::now(), name("a"), name("b"));
    let at = |second: u64| began + Duration::from_secs(second);
    let old = pass(&receivers, "x", &b, at(0)).expect("a permit");
    let first = pass(&receivers, "x", &a, at(0)).expect("a permit");
    receivers.failed(&first, Failure::TimedOut, "timeout", None, at(0));
    drop(first);
    let probe = pass(&receivers, "x", &a, at(1));
    drop(old);
    assert!(probe.is_ok() && pass(&receivers, "x", &b, at(20)).is_err());
    drop(probe);
    assert!(pass(&receivers, "x", &b, at(20)).is_ok());
}

/// Tests that probes of many receivers together occupy at most a quarter of the slots.
#[test]
fn probes_together_occupy_a_quarter_of_the_slots() {
    let (receivers, began, a) = (Receivers::new(SLOTS), Instant::now(), name("a"));
    let origins: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    for origin in &origins {
        fail(&receivers, origin, &a, began);
    }
    let later = began + Duration::from_secs(2);
    let probes: Vec<_> = origins
        .iter()
        .filter_map(|origin| pass(&receivers, origin, &a, later).ok())
        .collect();
    assert_eq!(probes.len(), SLOTS / 4);
    drop(probes);
    assert!(pass(&receivers, "99", &a, later).is_ok());
}

/// Tests that a fast receiver may have all slots. A slow one may have a quarter of them, even
/// after a quick answer in between.
#[test]
fn a_slow_receiver_has_a_quarter_of_the_slots() {
    let (receivers, began, a) = (Receivers::new(SLOTS), Instant::now(), name("a"));
    let at = |ms: u64| began + Duration::from_millis(ms);
    let fast: Vec<_> = (0..SLOTS)
        .filter_map(|_| pass(&receivers, "x", &a, at(0)).ok())
        .collect();
    assert_eq!(fast.len(), SLOTS);
    assert!(pass(&receivers, "x", &a, at(999)).is_ok());
    assert!(
        pass(&receivers, "x", &a, at(1000)).is_err() && pass(&receivers, "y", &a, at(1000)).is_ok()
    );
    receivers.failed(&fast[0], Failure::TimedOut, "timeout", None, at(1000));
    drop(fast);
    let probe = pass(&receivers, "x", &a, at(2000)).expect("a probe");
    receivers.answered(&probe, at(2000));
    drop(probe);
    let again: Vec<_> = (0..SLOTS)
        .filter_map(|_| pass(&receivers, "x", &a, at(2100)).ok())
        .collect();
    assert_eq!(again.len(), SLOTS / 4);
    drop(again);
    assert_eq!(
        (0..SLOTS)
            .filter_map(|_| pass(&receivers, "x", &a, at(62_000)).ok())
            .count(),
        SLOTS
    );
}

#[test]
fn receivers_are_bounded() {
    let (receivers, began, a) = (Receivers::new(SLOTS), Instant::now(), name("a"));
    for n in 0..RECEIVERS_MAX as u64 + 10 {
        fail(
            &receivers,
            &n.to_string(),
            &a,
            began + Duration::from_millis(n),
        );
    }
    assert!(receivers.all().by_origin.len() <= RECEIVERS_MAX + 1);
    assert!(pass(&receivers, "0", &a, began).is_ok());
    assert!(pass(&receivers, "10009", &a, began).is_err());
    // A receiver that is neither down nor slow, and has no request under way, has no entry.
    drop(pass(&receivers, "fresh", &a, began));
    assert!(!receivers.all().by_origin.contains_key("fresh"));
}
