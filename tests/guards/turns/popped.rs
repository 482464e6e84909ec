//! Names in the lists of free slots, to which pops have moved markers.

use seriatim::control::shares::Share;
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use super::{GROUPED, aside, ask, claim, queue_aside, rig};
use crate::limits::set;
use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, objects};

/// Adds names to the list of a slot, as pops do. The first one is the oldest.
async fn popped(state: &mut State, slot: &str, names: &[&str]) {
    let list = state.keys.worker_object(slot);
    state
        .run("LPUSH", &[&[list.as_str()], names].concat())
        .await;
}

/// A pop has moved a mark. The slot removes it, and the mark counts as met.
#[tokio::test]
async fn a_mark_that_was_popped_is_met() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state
        .run("ZADD", &[&keys.event_marks(), "5", "5", "7", "7"])
        .await;
    popped(&mut state, "w.0", &["\0t5"]).await;
    assert_eq!(claim(&mut state, 2, BOUNDS).await, Vec::<String>::new());
    let marks: Vec<(String, u64)> = console
        .run(&["ZRANGE", &keys.event_marks(), "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(marks, [("met".to_owned(), 5), ("7".to_owned(), 7)]);
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
}

/// Two pops have moved the same name into one list. The second copy becomes no marker.
#[tokio::test]
async fn a_name_that_was_popped_twice_is_claimed_once() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.run("LPUSH", &[&keys.events("a:1"), "1", "2"]).await;
    popped(&mut state, "w.0", &["a:1", "a:1"]).await;
    assert_eq!(
        claim(&mut state, 1, Bounds { batch: 1, ..BOUNDS }).await,
        ["a:1"]
    );
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        Vec::<String>::new()
    );
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["a:1"]);
    assert_eq!(console.list(&keys.events("a:1")).await, ["2"]);
}

/// A pop has moved the name of an object that another worker has, and that has no last id yet. The
/// slot removes the name.
#[tokio::test]
async fn the_name_of_anothers_object_is_removed() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.event_worker("a:1"), "x.0"]).await;
    state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
    popped(&mut state, "w.0", &["a:1"]).await;
    assert_eq!(claim(&mut state, 1, BOUNDS).await, Vec::<String>::new());
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        Vec::<String>::new()
    );
    assert_eq!(
        console.text(&keys.event_worker("a:1")).await.as_deref(),
        Some("x.0")
    );
}

/// A call with room for one claim, or for one byte, claims the oldest of two names that pops have
/// moved. The other one becomes a marker.
#[tokio::test]
async fn the_oldest_name_that_was_popped_is_claimed() {
    for reply_bytes in [1, 1 << 20] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        for object in ["a:1", "b:1"] {
            state.run("LPUSH", &[&keys.events(object), "1"]).await;
        }
        popped(&mut state, "w.0", &["a:1", "b:1"]).await;
        assert_eq!(
            claim(
                &mut state,
                1,
                Bounds {
                    reply_bytes,
                    ..BOUNDS
                }
            )
            .await,
            ["a:1"]
        );
        assert_eq!(console.list(&keys.objects_with_events()).await, ["b:1"]);
    }
}

/// A name that goes back is one marker. So as many markers wait as the call can claim, and the
/// groups take no turns.
#[tokio::test]
async fn a_name_that_goes_back_is_one_marker() {
    for looks in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state.run("LPUSH", &[&keys.events("b:1"), "1"]).await;
        let mut call = Advance::new(&keys, "w", "token-1", GROUPED, ClaimFirst::Markers);
        if looks {
            state.own("w.0", "a:1", 1, &["1"]).await;
            popped(&mut state, "w.0", &["b:1"]).await;
            call.look(0);
        } else {
            state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
            popped(&mut state, "w.0", &["a:1", "b:1"]).await;
            call.free(0);
        }
        call.free(1);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(objects(&answer).last(), Some(&"b:1"));
        assert!(
            matches!(
                answer,
                Advanced::Ok {
                    from: ClaimFirst::Held,
                    more: false,
                    ..
                }
            ),
            "{answer:?}"
        );
        assert_eq!(console.list(&keys.worker_object("w.0")).await, ["a:1"]);
        assert_eq!(
            console.list(&keys.objects_with_events()).await,
            Vec::<String>::new()
        );
    }
}

/// One slot has a batch whose reply was lost, and the list of another one has a name. This one
/// claims the object, although a third one is free.
#[tokio::test]
async fn the_slot_whose_list_has_the_name_claims_it() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.own("w.2", "c:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
    popped(&mut state, "w.0", &["a:1"]).await;
    let answer = ask(&mut state, 3, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["c:1", "a:1"]);
    assert_eq!(
        console.text(&keys.event_worker("a:1")).await.as_deref(),
        Some("w.0")
    );
}

/// The owner key of a held object has a wrong type, and a pop has moved its name. The object is put
/// aside, and the next name in the list is claimed.
#[tokio::test]
async fn a_popped_object_with_a_wrong_owner_key_is_put_aside() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state
        .hold("a:1", "9999999999999", &["1"], "7 0 1 0 retry: soon")
        .await;
    state.delivered("a:1", 6).await;
    state.run("DEL", &[&keys.event_worker("a:1")]).await;
    state
        .run("LPUSH", &[&keys.event_worker("a:1"), "wrong"])
        .await;
    for object in ["a:1", "b:1"] {
        state.run("LPUSH", &[&keys.events(object), "2"]).await;
    }
    popped(&mut state, "w.0", &["a:1", "b:1"]).await;
    assert_eq!(claim(&mut state, 1, BOUNDS).await, ["b:1"]);
    assert_eq!(console.due("a:1").await, Some(f64::INFINITY));
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["b:1"]);
}

/// A share has a limit, and the reply to the claim of an object was lost before its batch was
/// taken. The slot goes on with its object, although another group has the next turn.
#[tokio::test]
async fn a_slot_goes_on_with_its_object_at_a_limit() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    set(&state, "*", Share::new().in_flight(1000)).await;
    state.run("SET", &[&keys.event_worker("a:1"), "w.0"]).await;
    state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
    popped(&mut state, "w.0", &["a:1"]).await;
    queue_aside(&mut state, "b", 0, &["b:1"]).await;
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:1"]);
    assert_eq!(aside(&console).await, "b 0: b:1; 1");
}
