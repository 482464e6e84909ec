//! `advance`: the results of a slot, and the object that it leaves.

use seriatim::wire::{self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, Tag};

use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, LEASE, ask, attach, attached, done, objects, pop};

/// Makes a worker that owns `work:1`. Behind `work:1`, its list has the name of an object that it
/// does not own. Usually new names come first in a list, so the keys are set by hand. The slot must
/// release the object of its report all the same.
async fn with_a_name_behind(redis: &Redis) -> (State, Report) {
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:2"), "2"]).await;
    state
        .run("RPUSH", &[&keys.worker_object("w.0"), "work:2"])
        .await;
    (state, done("work:1", 1))
}

/// Reports for slot 0. Returns the owners of the two objects.
async fn told(state: &mut State, report: &Report) -> [Option<String>; 2] {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.report(0, report);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert!(matches!(answer, Advanced::Ok { .. }), "{answer:?}");
    let checked = control(&state.conn, &keys).check().await.expect("checked");
    assert!(checked.is_clean(), "{:#?}", checked.violations);
    let mut owners = redis::cmd("MGET");
    owners
        .arg(keys.event_worker("work:1"))
        .arg(keys.event_worker("work:2"));
    owners.query_async(&mut state.conn).await.expect("owners")
}

#[tokio::test]
async fn an_object_is_released_by_its_name() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    assert_eq!(told(&mut state, &report).await, [None, None]);
    assert_eq!(
        redis
            .console()
            .await
            .list(&state.keys.worker_object("w.0"))
            .await,
        ["work:2"]
    );
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["work:2"]
    );
}

/// A slot leaves its object and claims another one. In the slot's list, the name of the new object
/// replaces the former name, at the end. Names that pops have moved there stay before it, for the
/// next look.
#[tokio::test]
async fn the_next_object_takes_the_place_of_the_one_that_was_left() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    state.emit("work:3", "1").await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let report = done("work:1", 1);
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.report(0, &report);
    assert_eq!(
        objects(
            &wire::advance(&mut state.conn, &call)
                .await
                .expect("an answer")
        ),
        ["work:3"]
    );
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        ["work:3", "work:2"]
    );
    console.check().await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.look(0);
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:3"]);
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:2"]);
    console.check().await;
}

/// A slot reports after a pop for it has ended. The popped name becomes a marker again; the object
/// just left does not.
#[tokio::test]
async fn a_look_at_a_slot_that_reports_returns_only_what_was_popped() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
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
    call.report(0, &done("work:1", 1));
    call.look(0);
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:2"]);
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
    console.check().await;
}

/// A slot releases its object, although another name is behind it in the list. Another slot of the
/// same call goes on with its object.
#[tokio::test]
async fn an_object_is_released_by_its_name_while_another_one_goes_on() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let keys = state.keys.clone();
    state.own("w.1", "work:3", 2, &["3"]).await;
    state.run("LPUSH", &[&keys.events("work:3"), "4"]).await;
    let other = Report {
        object: "work:3".into(),
        tag: Tag {
            first: 2,
            ..Tag::default()
        },
        last: Some(2),
        ..report.clone()
    };
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.report(0, &report);
    call.report(1, &other);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:3"]);
    let console = redis.console().await;
    assert_eq!(console.text(&keys.event_worker("work:1")).await, None);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:2"]);
    console.check().await;
}

#[tokio::test]
async fn an_object_is_held_by_its_name() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let then = BatchResult::Hold {
        rest: report.tag.failed(),
        delay: Some(LEASE),
        reason: "retry: down".into(),
    };
    let report = Report {
        count: 0,
        last: None,
        then,
        ..report
    };
    assert_eq!(
        told(&mut state, &report).await,
        [Some("held".to_owned()), Some("w.0".to_owned())]
    );
}

/// A late result is about an earlier hand-out. The batch in flight begins with the same id, but it
/// is not the delivered batch.
#[tokio::test]
async fn a_result_of_an_earlier_hand_out_is_ignored() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let (w, keys) = ("w.0", state.keys.clone());
    state.run("SET", &[&keys.worker_event_id(w), "1 1"]).await;
    assert_eq!(told(&mut state, &report).await, [Some(w.to_owned()), None]);
    let console = redis.console().await;
    assert_eq!(console.list(&keys.worker_event(w)).await, ["1"]);
    assert_eq!(console.text(&keys.last_event_id("work:1")).await, None);
}

/// The slot's list has a wrong type. The call fails, and the object that the slot should claim next
/// stays unchanged.
#[tokio::test]
async fn what_cannot_be_listed_is_as_it_was() {
    for held in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.own("w.0", "work:1", 1, &["1"]).await;
        state
            .run("SET", &[&state.keys.worker_object("w.0"), "wrong"])
            .await;
        match held {
            false => state.emit("work:2", "2").await,
            true => {
                state
                    .hold("work:2", "1", &["2"], "2 0 1 0 retry: down")
                    .await
            }
        }
        let keys = state.keys.clone();
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
        call.report(0, &done("work:1", 1));
        wire::advance(&mut state.conn, &call)
            .await
            .expect_err("a wrong type");
        let console = redis.console().await;
        let (queue, batch) = (keys.events("work:2"), keys.events_held("work:2"));
        assert_eq!(
            [console.list(&queue).await, console.list(&batch).await].concat(),
            ["2"]
        );
        assert_eq!(
            console.list(&keys.worker_event("w.0")).await,
            Vec::<String>::new()
        );
        let there = if held {
            console.run::<u64>(&["ZCARD", &keys.objects_held()]).await
        } else {
            console.list(&keys.objects_with_events()).await.len() as u64
        };
        assert_eq!(there, 1, "held: {held}");
    }
}

/// The second slot's batch key has a wrong type. The call fails, but the first slot keeps the batch
/// that the call has already given to it.
#[tokio::test]
async fn a_call_that_fails_half_way_writes_down_what_it_did() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for object in ["work:1", "work:2", "work:3"] {
        state.emit(object, "1").await;
    }
    state
        .run("SET", &[&state.keys.worker_event("w.1"), "wrong"])
        .await;
    ask(&mut state, BOUNDS).await.expect_err("a wrong type");
    let console = redis.console().await;
    assert_eq!(console.number(&state.keys.next_event_id()).await, 1);
    let markers: Vec<_> = console.list(&state.keys.objects_with_events()).await;
    assert_eq!(markers, ["work:2", "work:3"]);
    assert_eq!(console.list(&state.keys.worker_event("w.0")).await, ["1"]);
    assert_eq!(
        console
            .text(&state.keys.worker_event_id("w.0"))
            .await
            .as_deref(),
        Some("1")
    );
    assert_eq!(
        console
            .text(&state.keys.event_worker("work:1"))
            .await
            .as_deref(),
        Some("w.0")
    );
}

/// The second slot's batch has a wrong type, so the call fails before any slot takes more events. The
/// first slot keeps its object, because the object has more events. Without an owner and a marker,
/// no slot would take these events.
#[tokio::test]
async fn a_call_that_fails_leaves_objects_with_events_to_their_slots() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "2"]).await;
    state.own("w.1", "work:2", 2, &["1"]).await;
    state.run("DEL", &[&keys.worker_event("w.1")]).await;
    state
        .run("SET", &[&keys.worker_event("w.1"), "wrong"])
        .await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.report(0, &done("work:1", 1));
    let tag = Tag {
        first: 2,
        ..Tag::default()
    };
    let then = BatchResult::Part {
        next: Tag { first: 3, ..tag },
    };
    call.report(
        1,
        &Report {
            object: "work:2".into(),
            tag,
            count: 1,
            last: Some(2),
            then,
        },
    );
    wire::advance(&mut state.conn, &call)
        .await
        .expect_err("a batch of a wrong type");
    let console = redis.console().await;
    assert_eq!(console.number(&keys.last_event_id("work:1")).await, 1);
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.0")
    );
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:1"]);
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(0);
    assert_eq!(
        objects(
            &wire::advance(&mut state.conn, &call)
                .await
                .expect("an answer")
        ),
        ["work:1"]
    );
}

/// The last event of a batch becomes a dead letter, and then the call fails on a key of another
/// slot. The first slot then has no batch and no tag.
#[tokio::test]
async fn a_call_that_fails_behind_a_dead_letter_leaves_no_tag() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.own("w.1", "work:2", 2, &["2"]).await;
    state.run("DEL", &[&state.keys.worker_event("w.1")]).await;
    state
        .run("SET", &[&state.keys.worker_event("w.1"), "wrong"])
        .await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    let [first, second] = [1, 2].map(|first| Tag {
        first,
        ..Tag::default()
    });
    let then = BatchResult::Reject {
        next: None,
        id: 1,
        error: "no".to_owned(),
        attempts: 1,
    };
    call.report(
        0,
        &Report {
            object: "work:1".into(),
            tag: first,
            count: 0,
            last: None,
            then,
        },
    );
    let then = BatchResult::Part {
        next: Tag {
            first: 3,
            ..Tag::default()
        },
    };
    call.report(
        1,
        &Report {
            object: "work:2".into(),
            tag: second,
            count: 1,
            last: Some(2),
            then,
        },
    );
    wire::advance(&mut state.conn, &call)
        .await
        .expect_err("a wrong type");
    let console = redis.console().await;
    assert_eq!(console.dead().await.len(), 1);
    assert_eq!(console.text(&keys.worker_event_id("w.0")).await, None);
}
