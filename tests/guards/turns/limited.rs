//! The names that groups give within a call, while a share has a limit.

use seriatim::control::shares::Share;

use super::{GROUPED, NO_SLOT, all_grouped, claim, counts};
use crate::limits::{block, blocked, limit, pair, park, set, with_limit};
use crate::scene::Scene;

/// Without limits, a call claims as many objects as it has slots.
#[tokio::test]
async fn a_call_without_limits_claims_more_objects() {
    let scene = Scene::given("queue a 0 a:1..140").await;
    assert_eq!(claim(&scene, 135, GROUPED).await.len(), 135);
    assert_eq!(counts(&scene).await, (5, 0, 0));
}

/// A call without a free slot groups names, but lets no group have turns again.
#[tokio::test]
async fn a_call_without_a_slot_leaves_waiting_groups() {
    let scene = with_limit().await;
    limit(&scene, &["a"]).await;
    park(&scene, "a", 2.0).await;
    block(&scene, "a", 0).await;
    scene.add("each b:1").await;
    let answer = scene.free(0..0, NO_SLOT).await;
    assert_eq!(answer.summary(), "");
    assert_eq!(blocked(&scene).await, [pair("a", 0.0)]);
    assert_eq!(
        all_grouped(&scene).await,
        "b 3: b:1; a 4398046511106: a:1; 2"
    );
}

/// A call without a free slot, and without anything new, leaves all groups and says nothing of them.
#[tokio::test]
async fn a_call_without_a_slot_and_without_news_says_nothing() {
    let scene = with_limit().await;
    scene.add("queue b 0 b:1..2").await;
    let answer = scene.free(0..0, NO_SLOT).await;
    assert_eq!(answer.summary(), "");
    assert_eq!(all_grouped(&scene).await, "b 0: b:1 b:2; 2");
}

/// While the limit of all objects allows no claim, no round begins.
#[tokio::test]
async fn no_round_begins_while_all_objects_wait() {
    for in_hand in [false, true] {
        let scene = Scene::new().await;
        set(&scene, "*", Share::new().in_flight(1)).await;
        set(&scene, "other:*", Share::new().weight(1)).await;
        if in_hand {
            scene.add("ZADD objects.in.hand 0 x:1:").await;
        }
        let given = "queue a 0 a:1..2; queue b 1099511627776 b:1..2";
        scene.add(given).await;
        let answer = scene.free(0..2, GROUPED).await;
        let place = scene.text(&scene.keys.event_groups_turns()).await;
        let left = if in_hand {
            "a 0: a:1 a:2; b 1099511627776: b:1 b:2; 4"
        } else {
            "a 1: a:2; b 1099511627776: b:1 b:2; 3"
        };
        assert_eq!(all_grouped(&scene).await, left);
        assert_eq!(answer.summary(), if in_hand { "" } else { "a:1" });
        assert_eq!(place.as_deref(), (!in_hand).then_some("1"));
    }
}

/// A group gives no name for which its limit has no room. So it does not begin to wait while the
/// names of other groups use the slots.
#[tokio::test]
async fn a_group_gives_names_while_its_limit_has_room() {
    for (room, slots, others, claimed, left) in [
        (
            1,
            4,
            &[("b", 4)][..],
            "a:1 b:1 b:2 b:3",
            "a 1: a:2 a:3 a:4 a:5; b 3: b:4; 5",
        ),
        (
            2,
            4,
            &[("b", 2)],
            "a:1 a:2 b:1 b:2",
            "a 2: a:3 a:4 a:5; b 2: ; 3",
        ),
        (
            3,
            8,
            &[("b", 3), ("c", 1), ("d", 1)],
            "a:1 a:2 b:1 b:2 c:1 d:1 a:3 b:3",
            "a 3: a:4 a:5; b 3: ; 2",
        ),
    ] {
        let scene = with_limit().await;
        set(&scene, "a:*", Share::new().in_flight(room)).await;
        scene.add("queue a 0 a:1..5").await;
        for (group, names) in others {
            scene
                .add(&format!("queue {group} 0 {group}:1..{names}"))
                .await;
        }
        assert_eq!(claim(&scene, slots, GROUPED).await.join(" "), claimed);
        assert_eq!(all_grouped(&scene).await, left);
        assert_eq!(blocked(&scene).await, []);
    }
}

/// A group whose names have led to a claim gives no more names to the next chunk than its limit
/// allows.
#[tokio::test]
async fn a_group_gives_as_many_names_after_a_claim() {
    let scene = with_limit().await;
    set(&scene, "a:*", Share::new().in_flight(2)).await;
    let given = "queue a 0 a:1; names a 0 a:no; queue a 0 a:2..5";
    scene.add(given).await;
    scene.add("names b 9 b:no; queue b 9 b:1..5").await;
    assert_eq!(
        claim(&scene, 4, GROUPED).await,
        ["a:1", "b:1", "a:2", "b:2"]
    );
    assert_eq!(
        all_grouped(&scene).await,
        "a 2: a:3 a:4 a:5; b 11: b:3 b:4 b:5; 6"
    );
    assert_eq!(blocked(&scene).await, []);
}

/// The owner key of a held object has a wrong type, and its name is grouped. No slot claims the object,
/// because a claim would pass over its held batch.
#[tokio::test]
async fn a_wrong_owner_key_of_a_grouped_object_is_found_at_a_limit() {
    let scene = with_limit().await;
    let given = "
        hold a:1 9999999999999 '7 0 1 0 retry: soon' 1; DEL a:1:event.worker; LPUSH a:1:event.worker wrong
        queue a 0 a:1
    ";
    scene.add(given).await;
    assert_eq!(claim(&scene, 2, GROUPED).await, [""; 0]);
    assert_eq!(scene.due("a:1").await, Some(f64::INFINITY));
}
