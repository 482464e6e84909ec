//! Objects in hand: how they are counted, and how a limit bounds them.

use seriatim::control::shares::Share;
use seriatim::wire::operator::{By, InHand, count_in_hand, in_hand};
use seriatim::wire::{Advance, ClaimFirst};

use crate::limits::{LATER, block, blocked, limit, pair, park, set};
use crate::scene::{BOUNDS, Scene, bounds, done, slots};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// Looks at a page of the objects in hand. Returns the last member of the page.
async fn page(scene: &Scene, since: u64, after: &[u8], count: usize) -> Vec<u8> {
    let look = InHand::Members { after, count };
    let page = in_hand(&mut scene.conn().await, &scene.keys, since, look).await;
    page.expect("a page").expect("still counting")
}

/// A call claims as many objects as the limit allows, and no more.
#[tokio::test]
async fn a_call_claims_what_a_limit_allows() {
    for (limit, claimed) in [(1, "<a:1:: 0>"), (2, "<a:1:: 0, a:2:: 0>")] {
        let scene = Scene::new().await;
        set(&scene, "a:*", Share::new().in_flight(limit)).await;
        scene.add("each a:1..3").await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!(answer.objects(), ["a:1", "a:2"][..limit as usize]);
        assert_eq!(scene.at("objects.in.hand").await, claimed);
    }
}

/// Two groups may each have a name in hand by their own limits, but only one by the limit of both.
#[tokio::test]
async fn groups_with_a_common_limit_share_it_within_a_call() {
    for all in ["*", "p:*"] {
        let scene = Scene::new().await;
        for (selector, share) in [
            ("p:a:*", Share::new().weight(1)),
            ("p:b:*", Share::new().weight(1)),
            (all, Share::new().in_flight(1)),
        ] {
            set(&scene, selector, share).await;
        }
        scene.add("each p:a:1 p:b:1").await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["p:a:1"], "{all}");
    }
}

/// Objects leave their slots in a call. The same call claims the objects that waited for their limits.
#[tokio::test]
async fn objects_that_leave_their_slots_open_the_way_in_the_same_call() {
    for groups in [&["a"][..], &["a", "b"]] {
        let scene = Scene::new().await;
        limit(&scene, groups).await;
        let mut reports = Vec::new();
        for (slot, group) in groups.iter().enumerate() {
            let (object, id) = (format!("{group}:9"), 5 + slot as u64);
            let own = format!("own w.{slot} {object} {id} 1");
            scene
                .add(&format!("{own}; ZADD objects.in.hand 0 {object}:"))
                .await;
            park(&scene, group, 2.0).await;
            block(&scene, group, 2 * LATER - 1).await;
            reports.push(done(&object, id));
        }
        let answer = scene.advance(BOUNDS, slots(&reports, 0..0)).await;
        assert_eq!(answer.objects(), ["a:1", "b:1"][..groups.len()]);
        let in_hand = ["<a:1:: 0>", "<a:1:: 0, b:1:: 0>"][groups.len() - 1];
        assert_eq!(scene.at("objects.in.hand").await, in_hand);
    }
}

/// A rule pauses an object whose slot would go on with it. The object is not in hand any more.
#[tokio::test]
async fn an_object_that_its_slot_pauses_is_not_in_hand() {
    let scene = Scene::new().await;
    set(&scene, "a:*", Share::new().in_flight(2)).await;
    let given = "
        SET next.event.id 5; own w.0 a:1 5 1; ZADD objects.in.hand 0 a:1:; emit a:1 1
        HSET event.rules 'pause a:1' '1 0 0 3 0 adanot yet' next never
    ";
    scene.add(given).await;
    scene.advance(BOUNDS, slots(&[done("a:1", 5)], 0..0)).await;
    assert_eq!(scene.at("a:1:event.worker").await, "held");
    assert_eq!(scene.at("objects.in.hand").await, "nil");
}

/// One command writes at most 1,000 items. The groups behind each prefix of each object that a call lets
/// go are due.
#[tokio::test]
async fn many_objects_open_the_way_for_all_their_prefixes() {
    let scene = Scene::new().await;
    limit(&scene, &["x"]).await;
    let mut reports = Vec::new();
    for slot in 0..40 {
        let (object, id) = (format!("a{slot}:b:c:d:e:f:g:h"), 5 + slot);
        scene.add(&format!("own w.{slot} {object} {id} 1")).await;
        for at in object
            .match_indices(':')
            .map(|(at, _)| at)
            .chain([object.len()])
        {
            block(&scene, &object[..at], 2 * LATER - 1).await;
            block(&scene, &format!("{}\n", &object[..at]), 2 * LATER - 1).await;
        }
        reports.push(done(&object, id));
    }
    scene
        .advance(bounds(|b| b.claims = 0), slots(&reports, 0..0))
        .await;
    let due = ["ZCOUNT", &scene.keys.event_groups_blocked(), "0", "0"];
    assert_eq!(scene.run::<usize>(&due).await, 40 * 8 * 2);
}

/// Members that no slot owns are removed page by page. Only a full page has a page after it.
#[tokio::test]
async fn pages_of_objects_in_hand_follow_each_other() {
    let scene = Scene::new().await;
    let since = count_in_hand(&mut scene.conn().await, &scene.keys, BY)
        .await
        .expect("counting");
    scene
        .add("own w.0 a:3 5 1; ZADD objects.in.hand 0 a:1: 0 a:2: 0 a:3: 0 a:4: 0 a:5:")
        .await;
    let mut after = Vec::new();
    for (last, left) in [
        ("a:2:", "<a:3:: 0, a:4:: 0, a:5:: 0>"),
        ("a:4:", "<a:3:: 0, a:5:: 0>"),
        ("", "<a:3:: 0>"),
    ] {
        after = page(&scene, since, &after, 2).await;
        assert_eq!(String::from_utf8_lossy(&after), last);
        assert_eq!(scene.at("objects.in.hand").await, left);
    }
}

/// An object that no slot owns leaves the objects in hand. The groups that wait for it are due, and
/// those of an object in hand wait on.
#[tokio::test]
async fn an_object_that_leaves_the_count_opens_the_way() {
    let scene = Scene::new().await;
    let since = count_in_hand(&mut scene.conn().await, &scene.keys, BY)
        .await
        .expect("counting");
    scene
        .add("own w.0 b:1 5 1; ZADD objects.in.hand 0 a:1: 0 b:1:")
        .await;
    for member in ["a", "a\n", "b", "b\n"] {
        block(&scene, member, 2 * LATER - 1).await;
    }
    page(&scene, since, b"", 9).await;
    let later = (2 * LATER - 1) as f64;
    let expected = [
        pair("a", 0.0),
        pair("a\n", 0.0),
        pair("b", later),
        pair("b\n", later),
    ];
    assert_eq!(blocked(&scene).await, expected);
}

/// A key of the shares has a wrong type. The call fails before the first write, so the slot still has
/// its batch.
#[tokio::test]
async fn a_share_key_of_a_wrong_type_ends_a_call_before_its_first_write() {
    let scene = Scene::new().await;
    set(&scene, "a:*", Share::new().in_flight(1)).await;
    scene.add("own w.0 a:1 5 1; emit a:2 1").await;
    for key in [
        "event.shares",
        "event.shares.used",
        "objects.in.hand",
        "event.groups.blocked",
    ] {
        let full = format!("{}{key}", scene.keys.prefix());
        let kept: Option<Vec<u8>> = scene.run(&["DUMP", &full]).await;
        scene.add(&format!("DEL {key}; SET {key} wrong")).await;
        let fill = |call: &mut Advance| call.report(0, &done("a:1", 5));
        let refused = scene.try_advance(ClaimFirst::Markers, BOUNDS, fill).await;
        let refused = refused.expect_err("a wrong type").to_string();
        assert!(refused.contains("WRONGTYPE"), "{key}: {refused}");
        scene.changed("").await;
        scene.add(&format!("DEL {key}")).await;
        if let Some(kept) = kept {
            let mut restore = redis::cmd("RESTORE");
            let restore = restore.arg(full).arg(0).arg(kept);
            restore
                .exec_async(&mut scene.conn().await)
                .await
                .expect("restored");
        }
    }
}
