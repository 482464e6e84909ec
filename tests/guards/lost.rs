//! Keys that belong together, one of which was deleted by hand or evicted. Real processes reach most of
//! these states only after such a loss.

use std::time::Duration;

use seriatim::wire::{
    self, Advance, Advanced, Attach, Attached, BatchResult, ClaimFirst, Renewed, Report, Suspects,
    Tag,
};

use crate::state::State;
use crate::support::Redis;
use crate::support::sweep::sweep;
use crate::{BOUNDS, attached, done, objects};

/// Makes a call with these results; the slots `free` are free.
async fn advance(state: &mut State, results: &[(usize, Report)], free: &[usize]) -> Advanced {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    results
        .iter()
        .for_each(|(slot, report)| call.report(*slot, report));
    free.iter().for_each(|slot| call.free(*slot));
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
}

/// Returns what the call has told: names and texts.
fn told(answer: &Advanced) -> Vec<(&str, &str)> {
    let Advanced::Ok { quarantined, .. } = answer else {
        panic!("{answer:?}")
    };
    quarantined
        .iter()
        .map(|(name, what)| (name.as_str(), what.as_str()))
        .collect()
}

/// Attaches as another process, as after a restart. Returns the batches kept, the objects held, and
/// what was told.
async fn restart(state: &mut State) -> (u64, u64, Vec<(String, String)>) {
    let keys = state.keys.clone();
    let lease: String = redis::cmd("GET")
        .arg(keys.worker_lease("w"))
        .query_async(&mut state.conn)
        .await
        .expect("a lease");
    let args = Attach {
        name: "w",
        token: "token-2",
        holder: "host 1 1",
        lease: Duration::from_secs(600),
        slots: 2,
        displace: &lease,
        before: "",
        crashes_max: 5,
        suspects: Suspects::of(5, false),
    };
    match wire::attach(&mut state.conn, &keys, &args)
        .await
        .expect("an answer")
    {
        Attached::Attached { kept, held, lost } => (kept, held, lost),
        Attached::InUse { lease, .. } => panic!("{lease}"),
    }
}

const LOST: &str = "lost: the object of the batch in event.worker:w.0:lost is not known";

/// Story: the tag of a slot was deleted. The next object's batch got the events that were in the slot:
/// 12 of 48 events came under another object's name, and 10 ids came twice. Now a process that has a
/// result of the batch writes the tag again.
#[tokio::test]
async fn a_lost_tag_is_written_again_for_the_result_of_its_batch() {
    for text in NO_TAGS {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 7, &["1"]).await;
        lose_tag(&mut state, text).await;
        state.emit("work:2", "2").await;
        let answer = advance(&mut state, &[(0, done("work:1", 7))], &[]).await;
        assert_eq!(
            told(&answer),
            [("event.worker:w.0:event.id", "mended: the tag was absent")],
            "{text:?}"
        );
        assert_eq!(objects(&answer), ["work:2"]);
        assert_eq!(
            console.text(&keys.last_event_id("work:1")).await.as_deref(),
            Some("7")
        );
        assert_eq!(console.text(&keys.event_worker("work:1")).await, None);
        assert_eq!(console.list(&keys.worker_event("w.0")).await, ["2"]);
        console.check().await;
    }
}

/// Texts in the place of a lost tag: none, and texts that are no tag.
const NO_TAGS: [Option<&str>; 3] = [None, Some("x"), Some("")];

/// Deletes the tag of the slot 0, or writes this text in its place.
async fn lose_tag(state: &mut State, text: Option<&str>) {
    let key = state.keys.worker_event_id("w.0");
    match text {
        Some(text) => state.run("SET", &[&key, text]).await,
        None => state.run("DEL", &[&key]).await,
    }
}

/// The tag is lost, and the process has no result of the batch, or one that cannot be of this batch:
/// it has another number of events, the object is not that of the slot, or has a last id that is not
/// below the ids. The object is held with the batch, without ids, and `check` names it.
#[tokio::test]
async fn a_batch_without_a_tag_is_held_without_ids() {
    let cases = ["free", "count", "object", "last", "restart", "sweep"];
    for (case, text) in NO_TAGS
        .iter()
        .flat_map(|text| cases.map(|case| (case, *text)))
    {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 7, &["1"]).await;
        lose_tag(&mut state, text).await;
        state.emit("work:2", "2").await;
        let why = "quarantine: event.worker:w.0:event.id is absent";
        let report = match case {
            "count" => Report {
                count: 2,
                last: Some(8),
                ..done("work:1", 7)
            },
            "object" => done("work:3", 7),
            _ => done("work:1", 7),
        };
        if case == "last" {
            state.delivered("work:1", 7).await;
        }
        if case == "restart" {
            assert_eq!(
                restart(&mut state).await,
                (0, 1, vec![("work:1".to_owned(), why.to_owned())])
            );
        } else if case == "sweep" {
            state.run("DEL", &[&keys.worker_lease("w")]).await;
            let forget = Duration::from_secs(600);
            let swept = sweep(&mut state.conn, &keys, "other", 5, forget).await;
            assert_eq!(swept.expect("an answer").held, 1, "{text:?}");
        } else {
            let results = [(0, report)];
            let (results, free) = if case == "free" {
                (&[][..], &[0][..])
            } else {
                (&results[..], &[][..])
            };
            let answer = advance(&mut state, results, free).await;
            assert_eq!(told(&answer), [("work:1", why)], "{case}");
            assert_eq!(objects(&answer), ["work:2"], "{case}");
            assert_eq!(
                console.list(&keys.worker_event("w.0")).await,
                ["2"],
                "{case}"
            );
        }
        assert_eq!(
            console.list(&keys.events_held("work:1")).await,
            ["1"],
            "{case}"
        );
        assert_eq!(
            console.text(&keys.events_held_id("work:1")).await,
            Some(format!("0 0 0 0 {why}")),
            "{case}"
        );
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY), "{case}");
        let report = crate::support::control(&state.conn, &keys)
            .check()
            .await
            .expect("checked");
        assert!(!report.is_clean(), "{case}");
    }
}

/// A result comes again after the commit, because the reply was lost. The slot has no batch, so no tag
/// is written.
#[tokio::test]
async fn a_repeated_result_writes_no_tag() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    for _ in 0..2 {
        let answer = advance(&mut state, &[(0, done("work:1", 7))], &[]).await;
        assert_eq!(told(&answer), []);
    }
    assert_eq!(console.text(&keys.worker_event_id("w.0")).await, None);
    console.check().await;
}

/// The slot's list is lost. The result of the batch in hand counts, and the next object's name
/// begins a new list, whether it comes from a marker or from the held objects. The object that the
/// slot has left may be the next one, if it also has a held batch.
#[tokio::test]
async fn a_slot_without_its_list_goes_on() {
    for (next, is_held) in [("work:2", false), ("work:2", true), ("work:1", true)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        if is_held {
            state.hold(next, "1", &["2"], "8 0 1 0 retry: down").await;
        } else {
            state.emit(next, "2").await;
        }
        state.own("w.0", "work:1", 7, &["1"]).await;
        state.run("DEL", &[&keys.worker_object("w.0")]).await;
        let answer = advance(&mut state, &[(0, done("work:1", 7))], &[]).await;
        assert_eq!(objects(&answer), [next]);
        assert_eq!(console.list(&keys.worker_object("w.0")).await, [next]);
        assert_eq!(
            console.text(&keys.last_event_id("work:1")).await.as_deref(),
            Some("7")
        );
        console.check().await;
    }
}

/// The slot's list is lost, and the process starts again. Nothing tells the object of the batch. So the
/// batch leaves the slot, and no other object gets its events. `check` names it. A second batch of
/// the same slot stays there, and the slot is busy.
#[tokio::test]
async fn a_batch_of_an_unknown_object_is_kept() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state.run("DEL", &[&keys.worker_object("w.0")]).await;
    assert_eq!(
        restart(&mut state).await,
        (0, 0, vec![("event.worker:w.0".to_owned(), LOST.to_owned())])
    );
    assert_eq!(console.list(&keys.worker_lost("w.0")).await, ["1", "7"]);
    assert_eq!(console.text(&keys.worker_event_id("w.0")).await, None);
    let report = crate::support::control(&state.conn, &keys)
        .check()
        .await
        .expect("checked");
    assert!(
        report
            .violations
            .iter()
            .any(|found| format!("{found:?}").contains(":lost")),
        "{:?}",
        report.violations
    );
    let lease = state.keys.worker_lease("w");
    state.run("SET", &[&lease, "token-1 host 1 1"]).await;
    state.batch("w.0", 8, &["2"]).await;
    state.emit("work:2", "3").await;
    // A pop has moved the name of another object to the list of this slot.
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
    let answer = advance(&mut state, &[], &[0]).await;
    assert!(
        matches!(&told(&answer)[..], [("event.worker:w.0", what)] if what.starts_with("stuck: ")),
        "{answer:?}"
    );
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["2"]);
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:2"]);
    // The next call can do no more, so a further one is of no use.
    let answer = advance(&mut state, &[], &[0]).await;
    assert!(
        matches!(&answer, Advanced::Ok { more: false, .. }),
        "{answer:?}"
    );
}

/// The owner key of an object in hand was evicted, and the reply to its claim was lost. So the object
/// of the slot's batch is not known. The batch leaves the slot, and no event of another object gets
/// into it.
#[tokio::test]
async fn a_batch_of_no_object_leaves_its_slot() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state.emit("work:2", "2").await;
    let answer = advance(&mut state, &[], &[0]).await;
    assert_eq!(objects(&answer), ["work:2"]);
    let Advanced::Ok { quarantined, .. } = &answer else {
        panic!("{answer:?}")
    };
    assert!(quarantined[0].1.starts_with("lost: "), "{quarantined:?}");
    assert_eq!(console.list(&keys.worker_lost("w.0")).await, ["1", "1"]);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["2"]);
}

/// The owner key of an object in hand is lost, and the tag of its slot, too. The batch leaves the
/// slot without ids, and the slot is free for the next object. A name that a pop has moved to
/// another slot is claimed there.
#[tokio::test]
async fn a_batch_without_a_tag_and_an_object_leaves_its_slot() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state
        .run(
            "DEL",
            &[&keys.worker_event_id("w.0"), &keys.event_worker("work:1")],
        )
        .await;
    state.emit("work:2", "2").await;
    crate::pop(&mut state, "w.1").await;
    state.emit("work:3", "3").await;
    let answer = advance(&mut state, &[], &[0, 1]).await;
    assert_eq!(told(&answer), [("event.worker:w.0", LOST)]);
    assert_eq!(objects(&answer), ["work:2", "work:3"]);
    assert_eq!(console.list(&keys.worker_lost("w.0")).await, ["1", "0"]);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["3"]);
    assert_eq!(console.list(&keys.worker_event("w.1")).await, ["2"]);
}

/// The slot behind a free one has lost its tag and its object, and cannot give its batch away,
/// because it has lost another one. The name that a pop has moved to the free slot is claimed
/// there.
#[tokio::test]
async fn a_slot_that_keeps_its_lost_batch_is_busy() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.run("LPUSH", &[&keys.worker_event("w.1"), "1"]).await;
    state
        .run("RPUSH", &[&keys.worker_lost("w.1"), "0", "2"])
        .await;
    state.emit("work:2", "3").await;
    crate::pop(&mut state, "w.0").await;
    let answer = advance(&mut state, &[], &[0, 1]).await;
    assert!(
        matches!(&told(&answer)[..], [("event.worker:w.1", what)] if what.starts_with("stuck: ")),
        "{answer:?}"
    );
    assert_eq!(objects(&answer), ["work:2"]);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["3"]);
    assert_eq!(console.list(&keys.worker_event("w.1")).await, ["1"]);
}

/// One slot has lost its tag and its object, while another one yields. Only the lost batch is told.
#[tokio::test]
async fn a_batch_that_is_over_is_not_lost() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "2"]).await;
    state.run("LPUSH", &[&keys.worker_event("w.1"), "3"]).await;
    let report = Report {
        then: BatchResult::Yield,
        ..done("work:1", 7)
    };
    let answer = advance(&mut state, &[(0, report)], &[1]).await;
    let what = "lost: the object of the batch in event.worker:w.1:lost is not known";
    assert_eq!(told(&answer), [("event.worker:w.1", what)]);
    assert_eq!(objects(&answer), ["work:1"]);
    assert_eq!(console.list(&keys.worker_lost("w.1")).await, ["3", "0"]);
}

/// Tag and batch are gone, or the tag is alone: the slot is free.
#[tokio::test]
async fn a_tag_without_a_batch_and_an_object_goes() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.given(7).await;
    for expected in [vec![], vec!["work:2"]] {
        state.run("SET", &[&keys.worker_event_id("w.0"), "7"]).await;
        if !expected.is_empty() {
            state.emit("work:2", "2").await;
        }
        let answer = advance(&mut state, &[], &[0]).await;
        assert_eq!((objects(&answer), told(&answer)), (expected, vec![]));
        let tag = redis
            .console()
            .await
            .text(&keys.worker_event_id("w.0"))
            .await;
        assert_eq!(tag.is_some(), !objects(&answer).is_empty());
    }
}

/// The batch of an object in hand is lost. The object waits for an operator, and nothing is left of
/// its event.
#[tokio::test]
async fn nothing_is_left_of_a_lost_batch() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), "1 1 down"])
        .await;
    state.run("SET", &[&keys.event_key("work:1"), "7 k"]).await;
    state.run("DEL", &[&keys.worker_event("w.0")]).await;
    let answer = advance(&mut state, &[], &[0]).await;
    let why = "quarantine: event.worker:w.0:event is absent";
    assert_eq!(told(&answer), [("work:1", why)]);
    let left: u64 = console
        .run(&[
            "EXISTS",
            &keys.event_errors("work:1"),
            &keys.event_key("work:1"),
        ])
        .await;
    assert_eq!(left, 0);
}

/// The owner key of an object in hand is lost. A renewal writes it again, before another slot takes
/// later events of the object. After a restart the object is held with its batch for an operator. A
/// second copy of the name, which two pops have moved, goes.
#[tokio::test]
async fn a_lost_owner_of_an_object_in_hand() {
    for is_restart in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 7, &["1"]).await;
        // Late pops have added another name, and a second copy.
        state
            .run("LPUSH", &[&keys.worker_object("w.0"), "work:1", "work:3"])
            .await;
        state.run("DEL", &[&keys.event_worker("work:1")]).await;
        if is_restart {
            let why = "quarantine: work:1:event.worker is absent".to_owned();
            assert_eq!(
                restart(&mut state).await,
                (0, 0, vec![("work:1".to_owned(), why)])
            );
            assert_eq!(
                console
                    .text(&keys.events_held_id("work:1"))
                    .await
                    .as_deref(),
                Some("7 0 0 0 quarantine: work:1:event.worker is absent")
            );
            assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
            assert_eq!(console.list(&keys.worker_object("w.0")).await, [""; 0]);
            assert_eq!(console.list(&keys.objects_with_events()).await, ["work:3"]);
        } else {
            let renewed = wire::renew(
                &mut state.conn,
                &keys,
                "w",
                "token-1",
                Duration::from_secs(600),
                2,
            )
            .await
            .expect("an answer");
            let lost = vec![(
                "work:1:event.worker".to_owned(),
                "mended: the owner of an object in hand was absent".to_owned(),
            )];
            assert_eq!(renewed, Renewed::Renewed { strays: 1, lost });
            assert_eq!(
                console.text(&keys.event_worker("work:1")).await.as_deref(),
                Some("w.0")
            );
            assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:1"]);
        }
        console.check().await;
    }
}

/// A name is not the object of the slot's batch if it has an owner or an owner key of a wrong type,
/// if the list has the owned object, if the slot has no batch, or if it is a mark or the empty
/// name.
#[tokio::test]
async fn only_the_object_of_a_batch_gets_its_owner_again() {
    for case in [
        "owned before it",
        "no batch",
        "no tag",
        "mark",
        "empty",
        "other owner",
        "wrong owner",
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        let name = match case {
            "mark" => "\0t5",
            "empty" => "",
            _ => "work:2",
        };
        state
            .run("LPUSH", &[&keys.worker_object("w.0"), name])
            .await;
        if case != "no batch" && case != "no tag" {
            state.batch("w.0", 7, &["1"]).await;
        }
        match case {
            "owned before it" => {
                state
                    .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
                    .await;
                state
                    .run("SET", &[&keys.event_worker("work:1"), "w.0"])
                    .await;
            }
            "no batch" => state.run("SET", &[&keys.worker_event_id("w.0"), "7"]).await,
            "no tag" => state.run("LPUSH", &[&keys.worker_event("w.0"), "1"]).await,
            "other owner" => {
                state
                    .run("SET", &[&keys.event_worker("work:2"), "w.1"])
                    .await
            }
            "wrong owner" => {
                state
                    .run("LPUSH", &[&keys.event_worker("work:2"), "w.0"])
                    .await
            }
            _ => {}
        }
        let renewed = wire::renew(
            &mut state.conn,
            &keys,
            "w",
            "token-1",
            Duration::from_secs(600),
            2,
        )
        .await
        .expect("an answer");
        assert_eq!(
            renewed,
            Renewed::Renewed {
                strays: 1,
                lost: Vec::new()
            },
            "{case}"
        );
        let kind: String = console.run(&["TYPE", &keys.event_worker(name)]).await;
        let expected = match case {
            "other owner" => "string",
            "wrong owner" => "list",
            _ => "none",
        };
        assert_eq!(kind, expected, "{case}");
    }
}

/// The owner key of a held object is lost. A marker, or a name that a pop has moved, leads to its queue.
/// Story: later events overtook the held batch, and the next hold overwrote it.
#[tokio::test]
async fn a_held_object_without_an_owner_key_stays_held() {
    for is_popped in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.delivered("work:1", 6).await;
        state
            .hold("work:1", "99999999999999", &["1"], "7 0 1 0 retry: down")
            .await;
        state.run("DEL", &[&keys.event_worker("work:1")]).await;
        state.emit("work:1", "2").await;
        if is_popped {
            crate::pop(&mut state, "w.0").await;
        }
        let answer = advance(&mut state, &[], &[0]).await;
        assert_eq!(objects(&answer), Vec::<&str>::new());
        assert_eq!(
            told(&answer),
            [(
                "work:1:event.worker",
                "mended: the owner of a held object was absent"
            )]
        );
        assert_eq!(console.list(&keys.events("work:1")).await, ["2"]);
        console.check().await;
    }
}

/// Held objects without owner keys stand among the markers. The markers of one chunk are all used,
/// and the reply tells of at most 64 lost keys.
#[tokio::test]
async fn held_objects_without_owner_keys_are_passed_over() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    for n in 1..=65 {
        let object = format!("held:{n}");
        state
            .hold(&object, "99999999999999", &["1"], "7 0 1 0 retry: down")
            .await;
        state.run("DEL", &[&keys.event_worker(&object)]).await;
        state.emit(&object, "2").await;
    }
    state.emit("work:1", "3").await;
    let answer = advance(&mut state, &[], &[0]).await;
    assert_eq!(objects(&answer), ["work:1"]);
    assert_eq!(told(&answer).len(), 64);
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.0")
    );
    assert_eq!(console.list(&keys.objects_with_events()).await, [""; 0]);
}

/// The held batch is lost, but not its numbers. After a release the object goes on with its queue, and
/// nothing is left of the lost event.
#[tokio::test]
async fn an_object_whose_held_batch_is_lost_goes_on_after_a_release() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .hold("work:1", "1", &["1"], "7 1 1 0 retry: down")
        .await;
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), "1 1 down"])
        .await;
    state.run("SET", &[&keys.event_key("work:1"), "7 k"]).await;
    state.run("DEL", &[&keys.events_held("work:1")]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "2"]).await;
    let answer = advance(&mut state, &[], &[0]).await;
    assert_eq!(
        told(&answer),
        [("work:1", "quarantine: work:1:events.held is absent")]
    );
    assert_eq!(
        console
            .text(&keys.events_held_id("work:1"))
            .await
            .as_deref(),
        Some("0 0 0 0 quarantine: work:1:events.held is absent")
    );
    console.check().await;
    state
        .run("ZADD", &[&keys.objects_held(), "XX", "0", "work:1"])
        .await;
    let answer = advance(&mut state, &[], &[0]).await;
    assert_eq!(objects(&answer), ["work:1"]);
    assert_eq!(console.text(&keys.event_key("work:1")).await, None);
    console.check().await;
}

/// The list is lost while a part of the batch stays in hand, or the rest is held.
#[tokio::test]
async fn a_part_of_a_batch_counts_without_the_list() {
    for is_hold in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 7, &["1", "2"]).await;
        state.run("DEL", &[&keys.worker_object("w.0")]).await;
        let tag: Tag = "7".parse().expect("a tag");
        let next = tag.after(1, 1);
        let then = match is_hold {
            true => BatchResult::Hold {
                rest: next,
                delay: Some(Duration::ZERO),
                reason: "retry: no".into(),
            },
            false => BatchResult::Part { next },
        };
        let report = Report {
            object: "work:1".into(),
            tag,
            count: 1,
            last: Some(7),
            then,
        };
        let answer = advance(&mut state, &[(0, report)], &[]).await;
        assert_eq!(objects(&answer), ["work:1"]);
        assert_eq!(
            console.text(&keys.last_event_id("work:1")).await.as_deref(),
            Some("7")
        );
        advance(&mut state, &[(0, done("work:1", 8))], &[]).await;
        assert_eq!(
            console.list(&keys.worker_event("w.0")).await.len(),
            usize::from(is_hold)
        );
    }
}
