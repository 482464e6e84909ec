//! Markers that lead to no claim, and marks between markers, while groups take no turns.

use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use super::{ask, claim, emit, rig};
use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, objects};

/// A rule has just ended, no marker waits and no held object is due. The turn stays with the held
/// objects.
#[tokio::test]
async fn without_a_marker_the_turn_stays() {
    let redis = Redis::start();
    let (mut state, _) = rig(&redis).await;
    let keys = state.keys.clone();
    state.rule("pause a:1", "1 5 0 3 0 ada", "5").await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert!(
        matches!(
            answer,
            Advanced::Ok {
                from: ClaimFirst::Held,
                ..
            }
        ),
        "{answer:?}"
    );
}

/// After a claim from the last marker, held objects have the next turn. If a marker of another
/// worker's object is behind it, the markers have it.
#[tokio::test]
async fn the_last_marker_says_who_has_the_next_turn() {
    for has_other in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state.run("SET", &[&keys.event_worker("b:1"), "x.0"]).await;
        emit(
            &mut state,
            if has_other {
                &["a:1", "b:1"][..]
            } else {
                &["a:1"]
            },
        )
        .await;
        let answer = ask(&mut state, 3, BOUNDS).await.expect("an answer");
        assert_eq!(objects(&answer), ["a:1"]);
        let Advanced::Ok { from, more, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            (matches!(from, ClaimFirst::Markers), more),
            (has_other, false)
        );
        assert_eq!(
            console.list(&keys.objects_with_events()).await,
            Vec::<String>::new()
        );
    }
}

/// A mark is met when it leaves the markers, and not before.
#[tokio::test]
async fn a_mark_is_met_when_it_leaves_the_markers() {
    for (reply_bytes, met, left) in [(1, None, &["\0t5", "b:1"][..]), (1 << 20, Some(5), &[])] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state.run("ZADD", &[&keys.event_marks(), "5", "5"]).await;
        emit(&mut state, ["a:1", "\0t5", "b:1"]).await;
        claim(
            &mut state,
            3,
            Bounds {
                reply_bytes,
                ..BOUNDS
            },
        )
        .await;
        assert_eq!(console.list(&keys.objects_with_events()).await, left);
        assert_eq!(
            console
                .run::<Option<u64>>(&["ZSCORE", &keys.event_marks(), "met"])
                .await,
            met
        );
    }
}

/// The marker of an object whose owner key has a wrong type comes with the marker of another
/// worker's object. The first object is held, so it is not claimed.
#[tokio::test]
async fn a_wrong_owner_key_is_found_beside_an_owner() {
    for others in 1..=2 {
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
        for n in 1..=others {
            state
                .run("SET", &[&keys.event_worker(&format!("x:{n}")), "x.0"])
                .await;
            emit(&mut state, [format!("x:{n}")]).await;
        }
        emit(&mut state, ["a:1"]).await;
        assert_eq!(claim(&mut state, 4, BOUNDS).await, Vec::<String>::new());
        assert_eq!(console.due("a:1").await, Some(f64::INFINITY), "{others}");
        assert_eq!(console.list(&keys.events("a:1")).await, ["1"]);
    }
}

/// Markers without events come before one with events, which is claimed wherever it is among them.
#[tokio::test]
async fn a_marker_behind_others_without_events_is_claimed() {
    for before in 0..8 {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        for n in 0..10 {
            let object = if n == before {
                "a:1".to_owned()
            } else {
                format!("no:{n}")
            };
            state
                .run("LPUSH", &[&keys.objects_with_events(), &object])
                .await;
        }
        state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
        assert_eq!(claim(&mut state, 1, BOUNDS).await, ["a:1"]);
        let left = console.list(&keys.objects_with_events()).await;
        assert_eq!(left.first(), Some(&format!("no:{}", before + 1)));
    }
}

/// Two markers of an object lead to one claim.
#[tokio::test]
async fn two_markers_of_an_object_lead_to_one_claim() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, ["a:1", "a:1", "b:1"]).await;
    assert_eq!(
        claim(&mut state, 4, Bounds { batch: 1, ..BOUNDS }).await,
        ["a:1", "b:1"]
    );
    assert_eq!(console.list(&state.keys.events("a:1")).await, ["1"]);
}

/// A call may look at one marker only, and it leads to another worker's object. The marker behind
/// it stays.
#[tokio::test]
async fn a_marker_that_no_call_has_looked_at_stays() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.event_worker("x:1"), "x.0"]).await;
    emit(&mut state, ["x:1", "a:1", "b:1"]).await;
    assert_eq!(
        claim(
            &mut state,
            1,
            Bounds {
                markers: 1,
                ..BOUNDS
            }
        )
        .await,
        Vec::<String>::new()
    );
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        ["a:1", "b:1"]
    );
}

/// The last id of an object has a wrong type. Its marker leads to no claim, whether it comes alone
/// or with another one.
#[tokio::test]
async fn a_marker_of_an_object_with_a_wrong_last_id_leads_to_no_claim() {
    for markers in [&["a:1"][..], &["a:1", "b:1"], &["b:1", "a:1"]] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state
            .run("LPUSH", &[&keys.last_event_id("a:1"), "wrong"])
            .await;
        emit(&mut state, markers).await;
        let others: Vec<_> = markers
            .iter()
            .filter(|object| **object != "a:1")
            .copied()
            .collect();
        let answer = ask(&mut state, 3, BOUNDS).await.expect("an answer");
        assert_eq!(objects(&answer), others);
        let Advanced::Ok { quarantined, .. } = answer else {
            panic!("{answer:?}")
        };
        let why = "quarantine: a:1:last.event.id is a list".to_owned();
        assert_eq!(quarantined, [("a:1".to_owned(), why.clone())]);
        assert_eq!(console.held_id("a:1").await, Some(format!("0 0 0 0 {why}")));
        assert_eq!(console.due("a:1").await, Some(f64::INFINITY));
        assert_eq!(console.list(&keys.events("a:1")).await, ["1"]);
    }
}

/// The reply names 64 objects of other namespaces, and 512 bytes of each name.
#[tokio::test]
async fn a_call_names_so_many_objects_of_other_namespaces() {
    for names in [63, 64, 65] {
        let redis = Redis::own(&[]);
        let (mut conn, keys) = (redis.connect().await, Keys::new());
        crate::attach(&mut conn, &keys, "token-1", "").await;
        let mut state = State::new(conn, keys);
        emit(&mut state, (0..names).map(|n| format!("{{{n:0600}"))).await;
        let answer = ask(&mut state, 100, BOUNDS).await.expect("an answer");
        let Advanced::Ok {
            quarantined,
            batches,
            ..
        } = answer
        else {
            panic!("{answer:?}")
        };
        assert_eq!((quarantined.len(), batches.len()), (names.min(64), 0));
        assert!(
            quarantined
                .iter()
                .all(|(name, why)| name.len() == 512 && why.starts_with("foreign: ")),
            "{quarantined:?}"
        );
    }
}
