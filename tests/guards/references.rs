//! `advance`: references to events of schedules, whose keys are damaged or may not be used.

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst, Tag};

use crate::state::State;
use crate::support::console::Console;
use crate::support::{Redis, control};
use crate::{BOUNDS, ask, attached, pop};

const REFERENCE: &str = "\0queued 5 key";

/// Returns a state in which the oldest event of `work:1` is a reference.
async fn scene(redis: &Redis) -> (State, Console) {
    let mut state = attached(redis).await;
    state.emit("work:1", REFERENCE).await;
    (state, redis.console().await)
}

async fn now_ms(state: &State) -> u64 {
    control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time")
}

/// A slot takes the event of a reference. Its key stands beside the object, and the tag of the
/// batch says so. A pop may have moved the name to the slot before the call.
#[tokio::test]
async fn a_slot_takes_the_event_of_a_reference() {
    for is_popped in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        let keys = state.keys.clone();
        state
            .run(
                "ZADD",
                &[&keys.events_scheduled(), "-1000000000000005", "work:1\nkey"],
            )
            .await;
        state
            .run(
                "HSET",
                &[&keys.events_scheduled_of("work:1"), "key", "event"],
            )
            .await;
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
        call.free(0);
        if is_popped {
            pop(&mut state, "w.0").await;
        } else {
            state.emit("work:2", "2").await;
            call.free(1);
        }
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { batches, .. } = answer else {
            panic!("{answer:?}")
        };
        let shown: Vec<_> = batches
            .iter()
            .map(|batch| (batch.slot, batch.tag, &batch.events[0][..]))
            .collect();
        let keyed = Tag {
            first: 1,
            is_keyed: true,
            ..Tag::default()
        };
        let both = [
            (0, keyed, &b"event"[..]),
            (
                1,
                Tag {
                    first: 2,
                    ..Tag::default()
                },
                b"2",
            ),
        ];
        assert_eq!(shown, both[..if is_popped { 1 } else { 2 }]);
        assert_eq!(
            console.text(&keys.event_key("work:1")).await.as_deref(),
            Some("1 key")
        );
        assert_eq!(
            console.text(&keys.worker_event_id("w.0")).await.as_deref(),
            Some("1 0")
        );
        assert_eq!(console.list(&keys.worker_event("w.0")).await, ["event"]);
        let left = [keys.events_scheduled(), keys.events_scheduled_of("work:1")];
        assert_eq!(console.run::<u64>(&["EXISTS", &left[0], &left[1]]).await, 0);
        console.check().await;
    }
}

/// The key of all schedules belongs to no single object. So the object is held for a minute, and
/// its event stays queued.
#[tokio::test]
async fn an_object_is_held_for_a_minute_if_the_schedules_cannot_be_read() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    let keys = state.keys.clone();
    state
        .run("HSET", &[&keys.events_scheduled_of("work:1"), "key", "1"])
        .await;
    state.run("SET", &[&keys.events_scheduled(), "wrong"]).await;
    let began = now_ms(&state).await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    let Advanced::Ok {
        batches,
        quarantined,
        more,
        next_due,
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert!(
        batches.is_empty() && quarantined.is_empty() && !more,
        "{batches:?} {quarantined:?}"
    );
    let due = console.due("work:1").await.expect("a held object") as u64;
    assert!(
        (began + 60_000..=now_ms(&state).await + 60_000).contains(&due),
        "{due}"
    );
    assert!(
        next_due.is_some_and(|due| (1..=60).contains(&due.as_secs())),
        "{next_due:?}"
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
    assert_eq!(console.held_id("work:1").await, None);
    assert_eq!(console.list(&keys.events("work:1")).await, [REFERENCE]);
    assert_eq!(
        console.list(&keys.worker_event("w.0")).await,
        Vec::<String>::new()
    );
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        Vec::<String>::new()
    );
}

/// The event of a schedule was evicted. Its entry is deleted together with the reference.
#[tokio::test]
async fn a_reference_without_its_event_is_passed_over() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    let keys = state.keys.clone();
    state
        .run(
            "ZADD",
            &[
                &keys.events_scheduled(),
                "-1000000000000005",
                "work:1\nkey",
                "7",
                "work:1\nother",
            ],
        )
        .await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    let Advanced::Ok {
        batches,
        quarantined,
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert!(
        batches.is_empty() && quarantined.is_empty(),
        "{batches:?} {quarantined:?}"
    );
    let members: Vec<String> = console
        .run(&["ZRANGE", &keys.events_scheduled(), "0", "-1"])
        .await;
    assert_eq!(members, ["work:1\nother"]);
    assert_eq!(
        console.list(&keys.events("work:1")).await,
        Vec::<String>::new()
    );
    assert_eq!(
        console.list(&keys.worker_event("w.0")).await,
        Vec::<String>::new()
    );
    assert_eq!(console.text(&keys.event_worker("work:1")).await, None);
    assert_eq!(console.due("work:1").await, None);
}

/// A call passes over 255 references whose schedules were replaced. At the next one the object is
/// held, due now, and the reply counts as full. The next call goes on.
#[tokio::test]
async fn a_call_passes_over_so_many_references() {
    for (stale, first, then) in [
        (255, vec!["work:1", "work:2"], vec![]),
        (256, vec![], vec!["work:1", "work:2"]),
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state
            .run(
                "LPUSH",
                &[
                    &[keys.events("work:1").as_str()],
                    &vec![REFERENCE; stale][..],
                ]
                .concat(),
            )
            .await;
        state.emit("work:1", "1").await;
        state.emit("work:2", "2").await;
        for expected in [first, then] {
            let answer = ask(&mut state, Bounds { batch: 1, ..BOUNDS })
                .await
                .expect("an answer");
            let Advanced::Ok { batches, more, .. } = answer else {
                panic!("{answer:?}")
            };
            let mut taken: Vec<_> = batches
                .iter()
                .map(|batch| std::str::from_utf8(&batch.object).expect("a name"))
                .collect();
            taken.sort_unstable();
            if stale == 256 && expected.is_empty() {
                assert!(more, "the object is due");
                assert_eq!(console.list(&keys.events("work:1")).await, ["1"]);
                assert_eq!(
                    console.text(&keys.event_worker("work:1")).await.as_deref(),
                    Some("held")
                );
                let now = now_ms(&state).await;
                assert!(
                    console
                        .due("work:1")
                        .await
                        .is_some_and(|due| due as u64 <= now)
                );
            }
            if stale == 256 || !expected.is_empty() {
                assert_eq!(taken, expected, "{stale} references");
            }
        }
        console.check().await;
    }
}

/// The Redis user has lost the right to ZREM. The call fails with this error, and the reference is
/// in the queue again.
#[tokio::test]
async fn a_reference_goes_back_if_its_entry_cannot_be_deleted() {
    let redis = Redis::own(&[]);
    let (mut state, console) = scene(&redis).await;
    let keys = state.keys.clone();
    state
        .run(
            "ZADD",
            &[&keys.events_scheduled(), "-1000000000000005", "work:1\nkey"],
        )
        .await;
    console
        .run::<()>(&[
            "ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-zrem",
        ])
        .await;
    state.run("AUTH", &["weak", "weak"]).await;
    let error = ask(&mut state, BOUNDS)
        .await
        .expect_err("a right is missing")
        .to_string();
    // The error of Redis, or of Valkey.
    let is_refused = |words: &&str| error.contains(*words);
    assert!(
        [
            "can't run this command",
            "no permissions to run the 'zrem' command"
        ]
        .iter()
        .any(is_refused),
        "{error}"
    );
    assert_eq!(console.list(&keys.events("work:1")).await, [REFERENCE]);
    assert_eq!(
        console.list(&keys.worker_event("w.0")).await,
        Vec::<String>::new()
    );
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:1"]);
    assert_eq!(
        console
            .run::<u64>(&["ZCARD", &keys.events_scheduled()])
            .await,
        1
    );
}

/// A held object has a batch, but its numbers were evicted. The object waits for an operator, and
/// keeps its batch.
#[tokio::test]
async fn a_held_batch_without_numbers_waits_for_an_operator() {
    for (numbers, kind) in [(None, "absent"), (Some("0 0 0 0 yield"), "a string")] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state
            .hold("work:1", "1", &["1"], "1 0 1 0 retry: down")
            .await;
        match numbers {
            None => state.run("DEL", &[&keys.events_held_id("work:1")]).await,
            Some(numbers) => {
                state
                    .run("SET", &[&keys.events_held_id("work:1"), numbers])
                    .await
            }
        }
        state.run("LPUSH", &[&keys.events("work:1"), "2"]).await;
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        let Advanced::Ok {
            batches,
            quarantined,
            next_due,
            ..
        } = answer
        else {
            panic!("{answer:?}")
        };
        assert!(
            batches.is_empty() && next_due.is_none(),
            "{batches:?} {next_due:?}"
        );
        let why = format!("quarantine: work:1:events.held.id is {kind} and tells no ids");
        assert_eq!(quarantined, [("work:1".to_owned(), why)]);
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
        assert_eq!(
            console.text(&keys.event_worker("work:1")).await.as_deref(),
            Some("held")
        );
        assert_eq!(console.list(&keys.events_held("work:1")).await, ["1"]);
        assert_eq!(console.list(&keys.events("work:1")).await, ["2"]);
    }
}
