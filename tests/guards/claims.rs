//! `advance`: the names that a slot claims, and the treatment of all other names.

use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, ask, attach, attached, objects, pop};

/// A call failed after it had removed a batch, and no event has come since: the slot owns an object
/// without events. The next call releases it; otherwise later events would wait behind an idle
/// owner.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state
        .run("SET", &[&state.keys.event_worker("work:1"), "w.0"])
        .await;
    state
        .run("LPUSH", &[&state.keys.worker_object("w.0"), "work:1"])
        .await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await, None);
    assert_eq!(
        console.list(&state.keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
    state.emit("work:1", "1").await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["work:1"]
    );
    console.check().await;
}

/// A reply was lost, and a pop has moved another name into the slot's list since. The slot gets the
/// lost batch again, as a batch of the object that the slot owns.
#[tokio::test]
async fn a_lost_batch_is_of_the_object_the_slot_owns() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    let keys = state.keys.clone();
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
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
}

/// The empty name only wakes a worker. It is not an object, even if a program has pushed events
/// under it.
#[tokio::test]
async fn the_empty_name_is_no_object() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("", "1").await;
    state.emit("", "2").await;
    pop(&mut state, "w.0").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    let left = [
        console.list(&state.keys.objects_with_events()).await,
        console.list(&state.keys.worker_object("w.0")).await,
    ];
    assert_eq!(left, [Vec::<String>::new(), Vec::new()]);
    assert_eq!(console.list(&state.keys.events("")).await, ["1", "2"]);
}

/// Two pops have moved two names into one slot's list. The slot takes one object, and the name of
/// the other object becomes a marker.
#[tokio::test]
async fn a_slot_takes_one_of_two_names() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.0").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1", "work:2"]);
    let console = redis.console().await;
    assert_eq!(
        console
            .text(&state.keys.event_worker("work:1"))
            .await
            .as_deref(),
        Some("w.0")
    );
    assert_eq!(
        console
            .text(&state.keys.event_worker("work:2"))
            .await
            .as_deref(),
        Some("w.1")
    );
    console.check().await;
}

/// Two pops have moved the same name, for two slots. One slot gets the object.
#[tokio::test]
async fn of_two_slots_with_one_name_the_first_gets_the_object() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:1", "2").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.1").await;
    let answer = ask(&mut state, Bounds { batch: 1, ..BOUNDS })
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let console = redis.console().await;
    assert_eq!(
        console
            .text(&state.keys.event_worker("work:1"))
            .await
            .as_deref(),
        Some("w.0")
    );
    assert_eq!(console.list(&state.keys.events("work:1")).await, ["2"]);
    console.check().await;
}

/// A pop has moved a marker, but its slot may claim nothing now. The marker goes back to the other
/// markers; otherwise the object's events would wait for a renewal.
#[tokio::test]
async fn a_name_that_may_not_be_claimed_becomes_a_marker_again() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.emit("work:1", "1").await;
    state
        .run(
            "LMOVE",
            &[
                &keys.objects_with_events(),
                &keys.worker_object("w.0"),
                "RIGHT",
                "LEFT",
            ],
        )
        .await;
    let mut call = Advance::new(
        keys,
        "w",
        "token-1",
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        ClaimFirst::Held,
    );
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert!(
        matches!(&answer, Advanced::Ok { batches, .. } if batches.is_empty()),
        "{answer:?}"
    );
    let console = redis.console().await;
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:1"]);
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
}

/// A call may claim for one slot only. The name in the other slot's list becomes a marker, and
/// another call can claim its object now.
#[tokio::test]
async fn a_name_beyond_the_claims_of_a_call_asks_for_another_call() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for (object, slot) in [("work:1", "w.0"), ("work:2", "w.1")] {
        state.emit(object, "1").await;
        pop(&mut state, slot).await;
    }
    let answer = ask(
        &mut state,
        Bounds {
            claims: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    assert!(
        matches!(answer, Advanced::Ok { more: true, .. }),
        "{answer:?}"
    );
    assert_eq!(
        redis
            .console()
            .await
            .list(&state.keys.objects_with_events())
            .await,
        ["work:2"]
    );
}

/// The reply is full before the second slot's turn. The name in its list becomes a marker.
#[tokio::test]
async fn a_name_for_which_the_reply_has_no_room_becomes_a_marker_again() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.1").await;
    let answer = ask(
        &mut state,
        Bounds {
            reply_bytes: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let console = redis.console().await;
    assert_eq!(
        console.list(&state.keys.objects_with_events()).await,
        ["work:2"]
    );
    console.check().await;
}

/// A call failed after it had removed a batch: its slot owns an object without a batch. If the slot
/// may claim nothing, the object is held. A marker would be dropped, because the object has an
/// owner.
#[tokio::test]
async fn an_owned_object_that_may_not_be_claimed_is_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state
        .run("SET", &[&state.keys.event_worker("work:1"), "w.0"])
        .await;
    state
        .run("LPUSH", &[&state.keys.worker_object("w.0"), "work:1"])
        .await;
    state
        .run("LPUSH", &[&state.keys.events("work:1"), "1"])
        .await;
    let answer = ask(
        &mut state,
        Bounds {
            claims: 0,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert!(
        matches!(
            answer,
            Advanced::Ok {
                next_due: Some(Duration::ZERO),
                ..
            }
        ),
        "{answer:?}"
    );
    let console = redis.console().await;
    assert_eq!(
        console
            .text(&state.keys.event_worker("work:1"))
            .await
            .as_deref(),
        Some("held")
    );
    console.check().await;
}

/// A name in `objects.held` whose object belongs to a slot, left by hand or by another program, is
/// dropped. Otherwise it would be due for ever. If the object has no owner, its owner key is lost:
/// the object is held, and has no other cover.
#[tokio::test]
async fn a_due_name_of_an_owned_object_is_dropped() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state
        .run("LPUSH", &[&state.keys.events("work:2"), "2"])
        .await;
    state
        .run(
            "ZADD",
            &[&state.keys.objects_held(), "0", "work:1", "0", "work:2"],
        )
        .await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(1);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:2"]);
    let console = redis.console().await;
    assert_eq!(
        console.run::<u64>(&["ZCARD", &keys.objects_held()]).await,
        0
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.0")
    );
}

/// Story: the owner key of a held object was evicted. Later events were delivered before the batch,
/// with higher ids, and the batch was never delivered.
#[tokio::test]
async fn a_held_batch_whose_owner_was_evicted_comes_first() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state
        .hold("work:1", "1", &["1"], "7 0 1 0 retry: down")
        .await;
    state
        .run("DEL", &[&state.keys.event_worker("work:1")])
        .await;
    state.emit("work:1", "2").await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(1);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = &answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        batches
            .iter()
            .map(|batch| (batch.tag.first, batch.events.len()))
            .collect::<Vec<_>>(),
        [(7, 1)]
    );
    assert_eq!(
        redis
            .console()
            .await
            .text(&keys.event_worker("work:1"))
            .await
            .as_deref(),
        Some("w.1")
    );
}

/// The owner key of a held object was evicted after the object's name was set aside for its group, or
/// before that. The held batch still comes first. If the queue is empty, the batch is claimed, too.
///
/// Story: the name led to the queue, as a marker does. Later events were delivered before the batch.
#[tokio::test]
async fn a_held_batch_that_is_set_aside_comes_first_without_its_owner_key() {
    for (is_set_aside, has_more) in [(false, true), (true, true), (true, false)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        state
            .hold(
                "work:1",
                if is_set_aside { "-1" } else { "1" },
                &["1"],
                "7 0 1 0 retry: down",
            )
            .await;
        if is_set_aside {
            set_aside(&mut state, &["work:1"]).await;
        }
        state.run("DEL", &[&keys.event_worker("work:1")]).await;
        if has_more {
            state.emit("work:1", "2").await;
        }
        state.emit("work:2", "3").await;
        let bounds = Bounds {
            group_depth: 1,
            claims: 1,
            ..BOUNDS
        };
        let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
        call.free(0);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { batches, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            batches
                .iter()
                .map(|batch| (batch.tag.first, batch.events.len()))
                .collect::<Vec<_>>(),
            [(7, 1)]
        );
        assert_eq!(
            redis
                .console()
                .await
                .text(&keys.event_worker("work:1"))
                .await
                .as_deref(),
            Some("w.0")
        );
    }
}

/// The owner key of a held object was evicted. Its marker was read before a slot claimed the held
/// batch, so the marker seemed to lead to an object without an owner. It gives no other slot the
/// object.
#[tokio::test]
async fn a_held_batch_whose_owner_was_evicted_has_one_slot() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state
        .hold("work:2", "1", &["2"], "7 0 1 0 retry: down")
        .await;
    state
        .run("DEL", &[&state.keys.event_worker("work:2")])
        .await;
    state.emit("work:2", "3").await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    (0..3).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:1", "work:2"]);
    assert_eq!(
        console.text(&keys.event_worker("work:2")).await.as_deref(),
        Some("w.1")
    );
    assert_eq!(console.list(&keys.events("work:2")).await, ["3"]);
}

/// Two pops have moved two names into one slot's list. The first object is held, but its owner key
/// has a wrong type. It is put aside, and its name leaves the list.
#[tokio::test]
async fn a_name_that_is_put_aside_leaves_the_list() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .hold("work:1", "1", &["1"], "1 0 1 0 retry: soon")
        .await;
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state
        .run("LPUSH", &[&keys.event_worker("work:1"), "wrong"])
        .await;
    for object in ["work:1", "work:2"] {
        state.emit(object, "2").await;
        pop(&mut state, "w.0").await;
    }
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:2"]);
    assert!(
        matches!(answer, Advanced::Ok { next_due: None, .. }),
        "no object is due any more: {answer:?}"
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:2"]);
}

/// A paused object lost its owner key, and another key of it has a wrong type. It is held for an
/// operator, and paused no more: an object is in one of the two sets.
#[tokio::test]
async fn a_paused_object_that_is_put_aside_is_held_only() {
    for wrong in ["queue", "owner"] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state
            .run("ZADD", &[&keys.objects_paused(), "0", "work:1"])
            .await;
        state.emit("work:1", "1").await;
        if wrong == "queue" {
            state.run("SET", &[&keys.events("work:1"), "wrong"]).await;
        } else {
            state
                .run("LPUSH", &[&keys.event_worker("work:1"), "wrong"])
                .await;
        }
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        assert_eq!(objects(&answer), Vec::<&str>::new());
        assert_eq!(
            console.text(&keys.event_worker("work:1")).await.as_deref(),
            Some("held")
        );
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY), "{wrong}");
        assert_eq!(
            console.run::<u64>(&["ZCARD", &keys.objects_paused()]).await,
            0,
            "{wrong}"
        );
    }
}

/// An object without events is owned or held. The call that releases it gives its last id a time to
/// live, as after the last event.
#[tokio::test]
async fn the_last_id_of_an_object_without_events_gets_a_time_to_live() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .run("SET", &[&keys.event_worker("work:1"), "w.0"])
        .await;
    state
        .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
        .await;
    state.hold("work:2", "1", &[], "0 0 0 0 yield").await;
    for object in ["work:1", "work:2"] {
        state.delivered(object, 7).await;
    }
    let forget_after = Some(Duration::from_secs(600));
    let answer = ask(
        &mut state,
        Bounds {
            forget_after,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    for object in ["work:1", "work:2"] {
        assert_eq!(
            console.text(&keys.event_worker(object)).await,
            None,
            "{object}"
        );
        let left_ms: i64 = console.run(&["PTTL", &keys.last_event_id(object)]).await;
        assert!((1..=600_000).contains(&left_ms), "{object}: {left_ms}");
    }
}

/// A due held object is quarantined, because its owner cannot be read. The same call then reads the
/// object's marker. The marker leads to no event and to no second report.
#[tokio::test]
async fn what_was_put_aside_is_told_once() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state
        .hold("work:2", "1", &["2"], "2 0 1 0 retry: down")
        .await;
    let owner = state.keys.event_worker("work:2");
    state.run("DEL", &[&owner]).await;
    state.run("LPUSH", &[&owner, "wrong"]).await;
    state.emit("work:2", "3").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let Advanced::Ok { quarantined, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(quarantined.len(), 1, "{quarantined:?}");
}

/// A call takes at most 4,096 events; the first event of each batch counts as four. Otherwise calls
/// with one event per object would take longest. An object whose batch has only the first event
/// gets its other events in later batches.
#[tokio::test]
async fn the_first_event_of_a_batch_counts_as_four() {
    const OBJECTS: usize = 100;
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for n in 0..OBJECTS {
        let events: Vec<String> = (0..309).map(|event| event.to_string()).collect();
        let mut push = redis::cmd("LPUSH");
        push.arg(state.keys.events(&format!("work:{n}")))
            .arg(events)
            .exec_async(&mut state.conn)
            .await
            .expect("LPUSH");
        state
            .run(
                "LPUSH",
                &[&state.keys.objects_with_events(), &format!("work:{n}")],
            )
            .await;
    }
    let keys = state.keys.clone();
    let bounds = Bounds {
        batch: 309,
        claims: OBJECTS,
        markers: 4096,
        ..BOUNDS
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..OBJECTS).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    let counts: Vec<usize> = batches.iter().map(|batch| batch.events.len()).collect();
    // 100 first events count as 400, and 12 times 308 more are exactly the rest of the limit.
    assert_eq!(counts, [vec![309; 12], vec![1; OBJECTS - 12]].concat());
}

/// Story: thousands of objects were due, but none could be claimed: their owner keys were evicted,
/// or their batches were absent. One call released all of them, and Redis did nothing else
/// meanwhile.
#[tokio::test]
async fn a_call_lets_so_many_due_objects_go_and_no_more() {
    for (why, most) in [("evicted", 64), ("batch gone", 64)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        for n in 0..1000 {
            let object = format!("work:{n}");
            state
                .run("ZADD", &[&state.keys.objects_held(), "1", &object])
                .await;
            if why == "batch gone" {
                state
                    .run("SET", &[&state.keys.event_worker(&object), "held"])
                    .await;
                state
                    .run(
                        "SET",
                        &[&state.keys.events_held_id(&object), "7 0 0 0 stop"],
                    )
                    .await;
            }
        }
        let keys = state.keys.clone();
        let due = async |state: &mut State| -> usize {
            let ask = redis::cmd("ZCOUNT")
                .arg(keys.objects_held())
                .arg("-inf")
                .arg(2)
                .to_owned();
            ask.query_async(&mut state.conn).await.expect("a count")
        };
        let mut left = 1000;
        while left > 0 {
            let answer = ask(&mut state, BOUNDS).await.expect("an answer");
            let Advanced::Ok {
                batches,
                more,
                next_due,
                ..
            } = answer
            else {
                panic!("{answer:?}")
            };
            let now_left = due(&mut state).await;
            assert_eq!(
                (batches.len(), left - now_left),
                (0, most.min(left)),
                "{why}"
            );
            assert_eq!(
                (more, next_due),
                (now_left > 0, (now_left > 0).then_some(Duration::ZERO)),
                "{why}"
            );
            left = now_left;
        }
    }
}

/// Sets these names aside, the oldest first.
async fn set_aside(state: &mut State, names: &[&str]) {
    let keys = state.keys.clone();
    state
        .run(
            "LPUSH",
            &[&[&keys.group_waiting("work")[..]], names].concat(),
        )
        .await;
    state
        .run("ZADD", &[&keys.event_groups(), "0", "work"])
        .await;
    state
        .run(
            "SET",
            &[&keys.event_groups_waiting(), &names.len().to_string()],
        )
        .await;
}

/// Three objects without owner keys are set aside: one with a held batch, one with a marker only, and
/// one that was held without a batch. The first gets its held batch, the others their queues.
#[tokio::test]
async fn only_a_held_batch_that_is_set_aside_comes_before_the_queue() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state
        .hold("work:1", "-1", &["1"], "7 0 1 0 retry: down")
        .await;
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state
        .run("ZADD", &[&keys.objects_held(), "-1", "work:3"])
        .await;
    for object in ["work:2", "work:3"] {
        state.run("LPUSH", &[&keys.events(object), "2"]).await;
    }
    set_aside(&mut state, &["work:1", "work:2", "work:3"]).await;
    let bounds = Bounds {
        group_depth: 1,
        claims: 3,
        ..BOUNDS
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..3).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = &answer else {
        panic!("{answer:?}")
    };
    let mut given: Vec<_> = batches
        .iter()
        .map(|batch| (&batch.object[..], &batch.events[0][..]))
        .collect();
    given.sort_unstable();
    assert_eq!(
        given,
        [
            (&b"work:1"[..], &b"1"[..]),
            (b"work:2", b"2"),
            (b"work:3", b"2")
        ]
    );
}

/// The first name that is taken leads to an object of another worker, so no name of the chunk is left.
/// The held object behind it is claimed.
#[tokio::test]
async fn a_name_of_anothers_object_hides_no_held_object_that_is_set_aside() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state
        .run("SET", &[&keys.event_worker("work:1"), "other.0"])
        .await;
    state
        .hold("work:2", "-1", &["1"], "7 0 1 0 retry: down")
        .await;
    set_aside(&mut state, &["work:1", "work:2"]).await;
    let bounds = Bounds {
        group_depth: 1,
        claims: 1,
        ..BOUNDS
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:2"]);
}

/// With each claim, a new group of one object comes. The group that has waited longer still has a turn
/// for each round of the others.
///
/// Story: each new group began with the lowest pass, like the new groups before it. So the large group
/// had no turn as long as new groups came.
#[tokio::test]
async fn a_large_group_has_its_turns_although_new_groups_keep_coming() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    for n in 0..60 {
        state.emit(&format!("large:{n}"), "1").await;
    }
    for n in 0..5 {
        state.emit(&format!("new{n}"), "1").await;
    }
    let mut claimed = Vec::new();
    for n in 0..60 {
        let bounds = Bounds {
            group_depth: 1,
            claims: 1,
            ..BOUNDS
        };
        let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
        call.free(n);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        claimed.extend(objects(&answer).iter().map(|object| (*object).to_owned()));
        state.emit(&format!("new{}", 5 + n), "1").await;
    }
    let of_large = claimed
        .iter()
        .filter(|object| object.starts_with("large"))
        .count();
    assert_eq!(claimed.len(), 60);
    assert_eq!(of_large, 8, "{claimed:?}");
}
