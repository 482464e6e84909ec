//! Events per second of a share: the time up to which its events use the rate, and when a group that
//! waits for the rate is due. The rates are so low that no test gets events in addition to the burst.

use std::time::Duration;

use seriatim::control::shares::Share;
use seriatim::wire::values::ShareUsed;
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::limits::{blocked, pair, set};
use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, ask, attached, done, objects};

/// A rate with which each event takes so many microseconds.
const RATE: f64 = 0.001;
const EVENT_US: u64 = 1_000_000_000;

async fn now_us(state: &State) -> u64 {
    control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time")
        * 1000
}

/// Returns a state with a rate for `a:*`. Its 9 events so far use the rate up to `ahead_us` after now.
/// Also returns this time.
async fn scene(rate: f64, burst: u64, ahead_us: u64) -> (Redis, State, u64) {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    set(&state, "a:*", Share::new().rate(rate).burst(burst)).await;
    let (key, tat_us) = (
        state.keys.event_shares_used(),
        now_us(&state).await + ahead_us,
    );
    state
        .run("HSET", &[&key, "a:*", &format!("9 {tat_us} 0 0 0")])
        .await;
    (redis, state, tat_us)
}

/// Returns the events that were taken, and the time up to which they use the rate.
async fn used(state: &mut State) -> (u64, u64) {
    let mut get = redis::cmd("HGET");
    get.arg(state.keys.event_shares_used()).arg("a:*");
    let value: Vec<u8> = get.query_async(&mut state.conn).await.expect("a value");
    let used = ShareUsed::read(&value);
    (used.taken, used.tat_us)
}

/// Makes a call that claims nothing. Returns the time after which the next call is due.
async fn next_due(state: &mut State) -> Option<Duration> {
    let answer = ask(state, BOUNDS).await.expect("an answer");
    let Advanced::Ok {
        next_due, batches, ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert!(batches.is_empty(), "{batches:?}");
    next_due
}

/// The rate counts each event of a batch, in the call that claims the object, and in a call that goes
/// on with it.
#[tokio::test]
async fn each_event_of_a_batch_uses_the_rate() {
    let (_redis, mut state, tat_us) = scene(RATE, 10, EVENT_US).await;
    for event in ["1", "2", "3", "4", "5"] {
        state.emit("a:1", event).await;
    }
    let three = Bounds { batch: 3, ..BOUNDS };
    assert_eq!(
        objects(&ask(&mut state, three).await.expect("an answer")),
        ["a:1"]
    );
    assert_eq!(used(&mut state).await, (12, tat_us + 3 * EVENT_US));
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", three, ClaimFirst::Markers);
    let mut report = done("a:1", 1);
    (report.count, report.last) = (3, Some(3));
    call.report(0, &report);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["a:1"]);
    assert_eq!(used(&mut state).await, (14, tat_us + 5 * EVENT_US));
}

/// All events of a held batch count when it is claimed. A batch that is larger than the burst only
/// needs the whole burst, and then uses the rate for all of its events.
#[tokio::test]
async fn each_event_of_a_held_batch_uses_the_rate() {
    for (burst, ahead_us, batch) in [
        (10, EVENT_US, &["1", "2", "3"][..]),
        (10, EVENT_US, &["1"]),
        (2, 0, &["1", "2", "3"]),
    ] {
        let (_redis, mut state, tat_us) = scene(RATE, burst, ahead_us).await;
        state.hold("a:1", "1", batch, "1 0 1 0 retry: no").await;
        assert_eq!(
            objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
            ["a:1"]
        );
        let ((taken, now_tat_us), events) = (used(&mut state).await, batch.len() as u64);
        assert_eq!(taken, 9 + events);
        if ahead_us > 0 {
            assert_eq!(now_tat_us, tat_us + events * EVENT_US);
        } else {
            // Time that has passed before the claim is not used later.
            let after_us = now_us(&state).await + 1000;
            assert!(
                (tat_us + 3 * EVENT_US..=after_us + 3 * EVENT_US).contains(&now_tat_us),
                "{now_tat_us} {tat_us}"
            );
        }
    }
}

/// A held batch of a wrong type counts as one event. So its object soon waits for an operator.
#[tokio::test]
async fn a_held_batch_of_a_wrong_type_counts_as_one_event() {
    let (redis, mut state, tat_us) = scene(RATE, 3, 2 * EVENT_US).await;
    state.hold("a:1", "1", &[], "1 0 1 0 retry: no").await;
    let held = state.keys.events_held("a:1");
    state.run("SET", &[&held, "wrong"]).await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        [""; 0]
    );
    assert_eq!(redis.console().await.due("a:1").await, Some(f64::INFINITY));
    assert_eq!(used(&mut state).await, (9, tat_us));
}

/// A group is due again when its rate allows what waits: one event, a held batch as a whole, or the
/// burst if the batch is larger. It waits for the events of 20 ms at the least.
#[tokio::test]
async fn a_group_is_due_when_its_rate_allows_what_waits() {
    const SOON_US: u64 = 9_000_000;
    let (three, seven) = (
        &["1", "2", "3"][..],
        &["1", "2", "3", "4", "5", "6", "7"][..],
    );
    // Of each case: the rate, the burst, the held batch if there is one, and the time that is waited for.
    for (rate, burst, batch, asked_us) in [
        (0.01, 5, &[][..], 100_000_000),
        (0.01, 5, three, 300_000_000),
        (0.01, 5, seven, 500_000_000),
        (RATE, 1_000_000, &[], EVENT_US),
        (100.0, 1_000_000, &[], 20_000),
    ] {
        let before_us = (burst as f64 * 1e6 / rate) as u64 - asked_us;
        let (_redis, mut state, tat_us) = scene(rate, burst, before_us + SOON_US).await;
        if batch.is_empty() {
            state.emit("a:1", "1").await;
        } else {
            state.hold("a:1", "1", batch, "1 0 1 0 retry: no").await;
        }
        assert_eq!(
            objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
            [""; 0],
            "{rate} {burst}"
        );
        assert_eq!(
            blocked(&mut state).await,
            [pair("a", ((tat_us - before_us) / 1000) as f64)],
            "{rate} {burst}"
        );
        assert_eq!(used(&mut state).await, (9, tat_us), "{rate} {burst}");
    }
}

/// A share with both limits waits for its rate as long as its objects in hand allow a further one.
#[tokio::test]
async fn a_share_with_both_limits_waits_for_the_one_that_allows_nothing() {
    for (in_hand, is_due) in [(&["a:8:"][..], true), (&["a:8:", "a:9:"], false)] {
        let (_redis, mut state, tat_us) = scene(0.01, 1, 9_000_000).await;
        set(&state, "a:*", Share::new().rate(0.01).burst(1).in_flight(2)).await;
        let key = state.keys.objects_in_hand();
        for member in in_hand {
            state.run("ZADD", &[&key, "0", member]).await;
        }
        state.emit("a:1", "1").await;
        assert_eq!(
            objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
            [""; 0]
        );
        let blocked = blocked(&mut state).await;
        assert_eq!(
            blocked == [pair("a", (tat_us / 1000) as f64)],
            is_due,
            "{blocked:?}"
        );
    }
}

/// If no event has used the rate, the whole burst may be taken at once, and one event without a burst.
#[tokio::test]
async fn a_batch_has_at_most_the_events_of_the_burst() {
    let (_redis, mut state, _) = scene(20.0, 2, 0).await;
    state
        .hold("a:1", "1", &["1", "2"], "1 0 1 0 retry: no")
        .await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["a:1"]
    );
    for (burst, events) in [("3", 3), ("-", 1)] {
        let (_redis, mut state, _) = scene(RATE, 3, 0).await;
        let key = state.keys.event_shares();
        state
            .run(
                "HSET",
                &[&key, "a:*", &format!("- - - {RATE} {burst} 0 0 ")],
            )
            .await;
        for event in ["1", "2", "3", "4"] {
            state.emit("a:1", event).await;
        }
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        let Advanced::Ok { batches, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            batches
                .iter()
                .map(|batch| batch.events.len())
                .collect::<Vec<_>>(),
            [events],
            "{burst}"
        );
    }
}

/// Due objects without a batch use the rate when slots claim them.
#[tokio::test]
async fn each_due_object_without_a_batch_uses_the_rate() {
    let (_redis, mut state, _) = scene(RATE, 1, 0).await;
    for object in ["a:1", "a:2"] {
        state.hold(object, "1", &[], "0 0 0 0 yield").await;
        let queue = state.keys.events(object);
        state.run("LPUSH", &[&queue, "1"]).await;
    }
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["a:1"]
    );
}

/// A slot goes on with its object if the rate allows one event. Otherwise the object is held, due
/// now. An object without further events is released in any case.
#[tokio::test]
async fn a_slot_goes_on_if_the_rate_allows_an_event() {
    for (ahead_us, taken) in [(EVENT_US, 1), (2 * EVENT_US, 0)] {
        let (redis, mut state, _) = scene(RATE, 2, ahead_us).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "a:1", 1, &["1"]).await;
        state.run("LPUSH", &[&keys.events("a:1"), "2", "3"]).await;
        state.own("w.1", "a:2", 2, &["1"]).await;
        state
            .run("ZADD", &[&keys.objects_in_hand(), "0", "a:1:", "0", "a:2:"])
            .await;
        let mut call = Advance::new(
            &keys,
            "w",
            "token-1",
            Bounds {
                claims: 0,
                ..BOUNDS
            },
            ClaimFirst::Markers,
        );
        call.report(0, &done("a:1", 1));
        call.report(1, &done("a:2", 2));
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { batches, .. } = &answer else {
            panic!("{answer:?}")
        };
        let events: Vec<_> = batches
            .iter()
            .map(|batch| (batch.slot, batch.events.len()))
            .collect();
        assert_eq!(events, [(0, taken)][..taken]);
        let owners = [
            console.text(&keys.event_worker("a:1")).await,
            console.text(&keys.event_worker("a:2")).await,
        ];
        let owner = if taken == 1 { "w.0" } else { "held" };
        assert_eq!(owners, [Some(owner.to_owned()), None]);
        assert_eq!(console.list(&keys.events("a:1")).await, ["2", "3"][taken..]);
        console.check().await;
    }
}

/// A worker looks after 20 ms at groups that the present call has no time for.
#[tokio::test]
async fn a_worker_looks_soon_at_groups_that_are_due() {
    let (_redis, mut state, _) = scene(RATE, 1, EVENT_US).await;
    let groups = state.keys.event_groups_blocked();
    state.emit("a:1", "1").await;
    // Of five prefixes, a call leaves one for the next call.
    for n in 0..5 {
        state.run("ZADD", &[&groups, "1", &format!("p{n}\n")]).await;
    }
    assert_eq!(next_due(&mut state).await, Some(Duration::from_millis(20)));
}

/// A worker looks again after 10 s, however slow a rate is. A held object that is due earlier comes
/// first. Without an object that waits, there is no time.
#[tokio::test]
async fn a_worker_looks_at_a_slow_rate_after_10_seconds() {
    for selector in ["a:*", "*"] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        set(&state, selector, Share::new().rate(RATE).burst(1)).await;
        let (key, tat_us) = (
            state.keys.event_shares_used(),
            now_us(&state).await + EVENT_US,
        );
        state
            .run("HSET", &[&key, selector, &format!("9 {tat_us} 0 0 0")])
            .await;
        assert_eq!(next_due(&mut state).await, None, "{selector}");
        state.emit("a:1", "1").await;
        let next = next_due(&mut state).await.expect("a time");
        assert!(
            (Duration::from_millis(10_000)..=Duration::from_millis(10_001)).contains(&next),
            "{next:?}"
        );
        let due_ms = now_us(&state).await / 1000 + 9_000;
        state
            .hold("b:1", &due_ms.to_string(), &["1"], "1 0 1 0 retry: no")
            .await;
        let next = next_due(&mut state).await.expect("a time");
        assert!(next <= Duration::from_millis(9_000), "{next:?}");
    }
}

/// No time wakes a worker for a group that waits for an object in hand, even if the group has a held
/// object that is due. A held object that is due later has its time.
#[tokio::test]
async fn a_worker_has_no_time_for_groups_that_wait_for_objects_in_hand() {
    for is_held in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        set(&state, "a:*", Share::new().in_flight(1)).await;
        let in_hand = state.keys.objects_in_hand();
        state.run("ZADD", &[&in_hand, "0", "a:9:"]).await;
        if is_held {
            state.hold("a:1", "1", &["1"], "1 0 1 0 retry: no").await;
        } else {
            state.emit("a:1", "1").await;
        }
        assert_eq!(next_due(&mut state).await, None);
        let due_ms = now_us(&state).await / 1000 + 9_000;
        state
            .hold("b:1", &due_ms.to_string(), &["1"], "1 0 1 0 retry: no")
            .await;
        let next = next_due(&mut state).await.expect("a time");
        let least = Duration::from_millis(due_ms.saturating_sub(now_us(&state).await / 1000));
        assert!(
            (least..=Duration::from_millis(9_000)).contains(&next),
            "{next:?}"
        );
    }
}

/// A time that is too far ahead comes from a clock that has stepped back. The share then waits for its
/// burst and 1,000 events, and no event counts as taken.
#[tokio::test]
async fn after_a_step_back_a_share_waits_for_its_burst_and_1000_events() {
    let (_redis, mut state, _) = scene(RATE, 3, 5000 * EVENT_US).await;
    state.emit("a:1", "1").await;
    let (before_us, wait_us) = (now_us(&state).await, 1003 * EVENT_US);
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        [""; 0]
    );
    let after_us = now_us(&state).await + 1000;
    let (taken, tat_us) = used(&mut state).await;
    assert_eq!(taken, 9);
    assert!(
        (before_us + wait_us..=after_us + wait_us).contains(&tat_us),
        "{before_us} {tat_us} {after_us}"
    );
}

/// A new rate keeps the number of events that were taken, and waits at most for one burst.
#[tokio::test]
async fn a_new_rate_keeps_the_events_that_were_taken() {
    let (_redis, mut state, tat_us) = scene(RATE, 7, 4 * EVENT_US).await;
    set(&state, "a:*", Share::new().rate(RATE).burst(5)).await;
    assert_eq!(used(&mut state).await, (9, tat_us));
    let before_us = now_us(&state).await;
    set(&state, "a:*", Share::new().rate(RATE).burst(2)).await;
    let after_us = now_us(&state).await + 1000;
    let (taken, tat_us) = used(&mut state).await;
    assert_eq!(taken, 9);
    // The time is one of a call in ms, so it may be lower by 1 ms.
    assert!(
        (before_us + 2 * EVENT_US..=after_us + 2 * EVENT_US).contains(&tat_us),
        "{before_us} {tat_us} {after_us}"
    );
}

/// One command reads or writes at most 500 fields, so a call with more shares makes several. Each share
/// counts each event once.
#[tokio::test]
async fn more_than_500_shares_count_their_events_once() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    set(&state, "x:b:c:d:e:f:g:h:*", Share::new().weight(1)).await;
    let objects: Vec<String> = (0..70).map(|n| format!("a{n}:b:c:d:e:f:g:h:1")).collect();
    let selectors: Vec<String> = objects
        .iter()
        .flat_map(|object| {
            object
                .match_indices(':')
                .map(|(at, _)| format!("{}:*", &object[..at]))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(selectors.len(), 560);
    let fields: Vec<&str> = selectors
        .iter()
        .flat_map(|selector| [selector.as_str(), "1 - - - - 0 0 "])
        .collect();
    state
        .run(
            "HSET",
            &[&[keys.event_shares().as_str()], &fields[..]].concat(),
        )
        .await;
    let mut call = Advance::new(
        &keys,
        "w",
        "token-1",
        Bounds {
            claims: 100,
            ..BOUNDS
        },
        ClaimFirst::Markers,
    );
    for (slot, object) in objects.iter().enumerate() {
        state.emit(object, "1").await;
        call.free(slot);
    }
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(crate::objects(&answer).len(), 70);
    let used: Vec<Vec<u8>> = redis
        .console()
        .await
        .run(&["HVALS", &keys.event_shares_used()])
        .await;
    assert_eq!(
        used.iter()
            .map(|value| ShareUsed::read(value).taken)
            .collect::<Vec<_>>(),
        [1; 560]
    );
}
