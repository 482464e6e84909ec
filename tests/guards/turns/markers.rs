//! Markers that lead to no claim, and marks between markers, while groups take no turns.

use seriatim::keys::Keys;
use seriatim::wire::ClaimFirst;

use super::{GROUPED, claim, emit, words};
use crate::scene::{BOUNDS, Scene, bounds};
use crate::support::Redis;

/// A rule has just ended, no marker waits and no held object is due. The turn stays with the held
/// objects.
#[tokio::test]
async fn without_a_marker_the_turn_stays() {
    let given = "HSET event.rules 'pause a:1' '1 5 0 3 0 ada' next 5";
    let scene = Scene::given(given).await;
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, |call| call.free(0))
        .await;
    assert_eq!(answer.from, ClaimFirst::Held);
}

/// After a claim from the last marker, held objects have the next turn. If a marker of another
/// worker's object is behind it, the markers have it.
#[tokio::test]
async fn the_last_marker_says_who_has_the_next_turn() {
    for has_other in [false, true] {
        let scene = Scene::given("SET b:1:event.worker x.0").await;
        scene
            .add(if has_other {
                "each a:1 b:1"
            } else {
                "each a:1"
            })
            .await;
        let answer = scene.free(0..3, BOUNDS).await;
        assert_eq!(answer.objects(), ["a:1"]);
        let next = if has_other {
            ClaimFirst::Markers
        } else {
            ClaimFirst::Held
        };
        assert_eq!((answer.from, answer.more), (next, false));
        assert_eq!(scene.at("objects.with.events").await, "nil");
    }
}

/// A mark is met when it leaves the markers, and not before.
#[tokio::test]
async fn a_mark_is_met_when_it_leaves_the_markers() {
    for (reply_bytes, met, left) in [(1, None, &["\0t5", "b:1"][..]), (1 << 20, Some(5), &[])] {
        let given = "ZADD event.marks 5 5; each a:1 \0t5 b:1";
        let scene = Scene::given(given).await;
        claim(&scene, 3, bounds(|b| b.reply_bytes = reply_bytes)).await;
        assert_eq!(scene.list(&scene.keys.objects_with_events()).await, left);
        assert_eq!(
            scene
                .run::<Option<u64>>(&["ZSCORE", &scene.keys.event_marks(), "met"])
                .await,
            met
        );
    }
}

/// A mark is a NUL, the letter `t` and a time. An object whose name is only like a mark is claimed.
#[tokio::test]
async fn an_object_whose_name_is_like_a_mark_is_claimed() {
    let names = ["\0", "\0b", "\0t", "\0t5x", "\x005", "x\0t5"];
    let scene = Scene::given(&format!("each {}", names.join(" "))).await;
    assert_eq!(claim(&scene, 9, BOUNDS).await, names);
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// The marker of an object whose owner key has a wrong type comes with the marker of another
/// worker's object. The first object is held, so it is not claimed.
#[tokio::test]
async fn a_wrong_owner_key_is_found_beside_an_owner() {
    for others in 1..=2 {
        let given = "
            hold a:1 9999999999999 '7 0 1 0 retry: soon' 1; delivered a:1 6; DEL a:1:event.worker
            LPUSH a:1:event.worker wrong
        ";
        let scene = Scene::given(given).await;
        for n in 1..=others {
            let given = format!("SET x:{n}:event.worker x.0; each x:{n}");
            scene.add(&given).await;
        }
        scene.add("each a:1").await;
        assert_eq!(claim(&scene, 4, BOUNDS).await, [""; 0]);
        assert_eq!(scene.due("a:1").await, Some(f64::INFINITY), "{others}");
        assert_eq!(scene.at("a:1:events").await, "[1]");
    }
}

/// Markers without events come before one with events, which is claimed wherever it is among them.
#[tokio::test]
async fn a_marker_behind_others_without_events_is_claimed() {
    for before in 0..8 {
        let scene = Scene::new().await;
        for n in 0..10 {
            let object = if n == before {
                "a:1".to_owned()
            } else {
                format!("no:{n}")
            };
            scene
                .add(&format!("LPUSH objects.with.events {object}"))
                .await;
        }
        scene.add("LPUSH a:1:events 1").await;
        assert_eq!(claim(&scene, 1, BOUNDS).await, ["a:1"]);
        let left = scene.list(&scene.keys.objects_with_events()).await;
        assert_eq!(left.first(), Some(&format!("no:{}", before + 1)));
    }
}

/// While an object is held, a call asks for the scores of the names of a chunk only if one of them has
/// events. It finds a held object without its owner key in such a chunk.
#[tokio::test]
async fn held_objects_cost_nothing_among_markers_without_events() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene
        .add(
            "hold a:1 9999999999999 '7 0 1 0 retry: soon' 1; delivered a:1 6; DEL a:1:event.worker",
        )
        .await;
    // The chunks have 1, 2, 4, 8 and 16 markers, and the last one has the rest.
    let none = (0..40).map(|n| format!("no:{n}"));
    scene
        .add(&format!("LPUSH objects.with.events {}", words(none)))
        .await;
    scene.add("each a:1 b:1").await;
    scene.count_calls().await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, ["b:1"]);
    // For the first chunk, and for the last one.
    assert_eq!(scene.calls_of("zmscore").await, 2);
    assert_eq!(scene.at("a:1:event.worker").await, "held");
}

/// While groups take turns and an object is held, a call asks once for the scores of a chunk of names.
#[tokio::test]
async fn held_objects_are_looked_for_once_among_names_of_groups() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene
        .add("hold a:1 9999999999999 '7 0 1 0 retry: soon' 1")
        .await;
    scene.add("LPUSH b:1:events 1; names b 0 b:1").await;
    scene.count_calls().await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["b:1"]);
    assert_eq!(scene.calls_of("zmscore").await, 1);
}

/// After a chunk of new objects, a call asks whether the next objects are new, too, and reads their last
/// ids only if they are not.
#[tokio::test]
async fn last_ids_of_new_objects_are_not_read() {
    for (id, reads) in [(0, 1), (7, 2)] {
        let scene = Scene::on(Redis::own(&[])).await;
        if id > 0 {
            let last = format!("SET next.event.id {id}; SET b:1:last.event.id {id}");
            scene.add(&last).await;
        }
        // The first chunk is the name without events, and the second one has the other names.
        scene
            .add("LPUSH objects.with.events no:1; each b:1 c:1")
            .await;
        scene.count_calls().await;
        let answer = scene.free(0..1, BOUNDS).await;
        let batch = format!("0 b:1 {} after {id}: 1", id + 1);
        assert_eq!(answer.batches(), [batch]);
        // The call also reads its lease and other texts by two such commands, because there are markers.
        assert_eq!(scene.calls_of("mget").await, 2 + reads);
    }
}

/// Two markers of an object lead to one claim.
#[tokio::test]
async fn two_markers_of_an_object_lead_to_one_claim() {
    let scene = Scene::given("each a:1 a:1 b:1").await;
    assert_eq!(
        claim(&scene, 4, bounds(|b| b.batch = 1)).await,
        ["a:1", "b:1"]
    );
    assert_eq!(scene.at("a:1:events").await, "[1]");
}

/// A call may look at one marker only, and it leads to another worker's object. The marker behind
/// it stays.
#[tokio::test]
async fn a_marker_that_no_call_has_looked_at_stays() {
    let given = "SET x:1:event.worker x.0; each x:1 a:1 b:1";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, bounds(|b| b.markers = 1)).await, [""; 0]);
    assert_eq!(scene.at("objects.with.events").await, "[a:1, b:1]");
}

/// The last id of an object has a wrong type. Its marker leads to no claim, whether it comes alone
/// or with another one.
#[tokio::test]
async fn a_marker_of_an_object_with_a_wrong_last_id_leads_to_no_claim() {
    for markers in [&["a:1"][..], &["a:1", "b:1"], &["b:1", "a:1"]] {
        let scene = Scene::given("LPUSH a:1:last.event.id wrong").await;
        emit(&scene, markers).await;
        let others: Vec<_> = markers
            .iter()
            .filter(|object| **object != "a:1")
            .copied()
            .collect();
        let answer = scene.free(0..3, BOUNDS).await;
        assert_eq!(answer.objects(), others);
        let why = "quarantine: a:1:last.event.id is a list".to_owned();
        assert_eq!(answer.texts(), [format!("a:1: {why}")]);
        assert_eq!(scene.held_id("a:1").await, Some(format!("0 0 0 0 {why}")));
        assert_eq!(scene.due("a:1").await, Some(f64::INFINITY));
        assert_eq!(scene.at("a:1:events").await, "[1]");
    }
}

/// The reply names 64 objects of other namespaces, and 512 bytes of each name.
#[tokio::test]
async fn a_call_names_so_many_objects_of_other_namespaces() {
    for names in [63, 64, 65] {
        let scene = Scene::under(Keys::new()).await;
        emit(&scene, (0..names).map(|n| format!("{{{n:0600}"))).await;
        let answer = scene.free(0..100, BOUNDS).await;
        let texts = answer.texts();
        assert_eq!((texts.len(), answer.batches.len()), (names.min(64), 0));
        let is_cut = |text: &String| text[512..].starts_with(": foreign: ");
        assert!(texts.iter().all(is_cut), "{texts:?}");
    }
}
