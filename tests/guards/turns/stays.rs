//! Names that stay, move or go to the end while a share has a limit, and the calls that are of use
//! after them.

use seriatim::control::shares::{Priority, Share};

use super::{GROUPED, all_grouped, claim, grouped};
use crate::limits::{block, blocked, limit, park, set, with_limit};
use crate::scene::Scene;

/// The size of the range of scores that each priority has.
const CLASS: i64 = 1_099_511_627_776;

/// Makes objects count as in hand.
async fn in_hand(scene: &Scene, objects: &[&str]) {
    for object in objects {
        scene
            .add(&format!("ZADD objects.in.hand 0 {object}:"))
            .await;
    }
}

/// Makes a group wait for its limit in the next call: another object of it is in hand.
async fn at_its_limit(scene: &Scene, group: &str, pass: i64) {
    limit(scene, &[group]).await;
    in_hand(scene, &[&format!("{group}:0")]).await;
    scene.add(&format!("queue {group} {pass} {group}:1")).await;
}

/// A name moves to a new group, before a group whose turns the call has read. The call reads that
/// one only once.
#[tokio::test]
async fn a_call_reads_the_turns_of_a_group_once() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    set(&scene, "z:*", Share::new().in_flight(1)).await;
    let given = "queue a 0 a:x:1; names z 5 z:no; queue z 5 z:1..3";
    scene.add(given).await;
    let answer = scene.free(0..1, GROUPED).await;
    assert_eq!(answer.summary(), "z:1, more");
    assert_eq!(all_grouped(&scene).await, "a:x 1: a:x:1; z 6: z:2 z:3; 3");
}

/// A name moves to a group that has already left, because it had no name. The call does not read
/// the turns of this group again, so another call is of use.
#[tokio::test]
async fn a_name_that_moves_to_a_group_that_has_left_asks_for_another_call() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    at_its_limit(&scene, "q", 2).await;
    scene.add("ZADD event.groups 0 a:x; queue a 1 a:x:1").await;
    let answer = scene.free(0..2, GROUPED).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(
        all_grouped(&scene).await,
        "a:x 3: a:x:1; q 4398046511106: q:1; 2"
    );
}

/// The list of a new group has a wrong type, so its name does not move, and is claimed where it is.
/// The only other group is at its limit. So another call is of no use.
#[tokio::test]
async fn a_name_that_cannot_move_asks_for_no_other_call() {
    let scene = with_limit().await;
    set(&scene, "a:*", Share::new().weight(1)).await;
    scene.add("SET event.group:a:waiting x").await;
    at_its_limit(&scene, "q", 0).await;
    scene.add("queue \0rest 0 a:1").await;
    let answer = scene.free(0..2, GROUPED).await;
    assert_eq!(answer.summary(), "a:1");
    let names = [
        scene.list(&scene.keys.group_waiting("q")).await,
        scene.list(&scene.keys.group_waiting("\0rest")).await,
    ];
    assert_eq!(names, [vec!["q:1".to_owned()], vec![]]);
    assert_eq!(scene.at("event.groups.waiting").await, "1");
}

/// A call may look at one name only, and moves it. Another call is of use.
#[tokio::test]
async fn a_call_that_only_moves_a_name_asks_for_another_one() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    scene.add("queue a 0 a:x:1").await;
    let answer = scene.free(0..2, grouped(|b| b.markers = 1)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(all_grouped(&scene).await, "a 0: ; a:x 1: a:x:1; 1");
}

/// While the limit of all objects allows no claim, a name that cannot move stays where it is.
#[tokio::test]
async fn a_name_that_cannot_move_stays_while_all_objects_wait() {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().in_flight(1)).await;
    set(&scene, "a:*", Share::new().weight(1)).await;
    let given = "SET event.group:a:waiting x; names \0rest 0 b:no; queue \0rest 0 b:1 a:1 c:1";
    scene.add(given).await;
    let answer = scene.free(0..3, GROUPED).await;
    assert_eq!(answer.summary(), "b:1");
    assert_eq!(scene.at("event.group:\0rest:waiting").await, "[a:1, c:1]");
    assert_eq!(scene.at("event.groups.waiting").await, "2");
}

/// A group begins to wait while its names are looked at. The turns go on with the group to which
/// one of these names has moved.
#[tokio::test]
async fn a_group_that_waits_leaves_its_turn_to_a_new_group() {
    let scene = with_limit().await;
    limit(&scene, &["p"]).await;
    set(&scene, "q:*", Share::new().weight(1)).await;
    scene.add("names p 0 p:no; queue p 0 p:1 q:1 p:2").await;
    let answer = scene.free(0..4, GROUPED).await;
    assert_eq!(answer.objects(), ["p:1", "q:1"]);
    assert_eq!(all_grouped(&scene).await, "p 4398046511105: p:2; 1");
}

/// A group at its limit gives no name, so a call looks at as many names of the others.
#[tokio::test]
async fn a_group_at_its_limit_gives_no_name() {
    let scene = with_limit().await;
    at_its_limit(&scene, "a", 0).await;
    scene.add("queue b 0 b:1..2").await;
    assert_eq!(
        claim(&scene, 2, grouped(|b| b.markers = 2)).await,
        ["b:1", "b:2"]
    );
    assert_eq!(all_grouped(&scene).await, "b 2: ; a 4398046511104: a:1; 1");
}

/// Groups `a:1` in the group `a`, whose rate allows fewer events than the held batch of `a:1`
/// has.
async fn grouped_above_the_rate(scene: &Scene) {
    set(scene, "a:*", Share::new().rate(0.001).burst(3)).await;
    let at_us = 1000 * scene.now_ms().await + 1_000_000_000;
    scene
        .add(&format!("HSET event.shares.used a:* '1 {at_us} 0 0 0'"))
        .await;
    let given = "hold a:1 -1 '1 0 1 0 retry: down' 1 2 3; names a 0 a:1";
    scene.add(given).await;
}

/// The rate of a group allows fewer events than a held batch has. So the first name of the group
/// stays, and the others behind it.
#[tokio::test]
async fn the_first_name_of_a_call_may_stay() {
    let scene = with_limit().await;
    grouped_above_the_rate(&scene).await;
    scene.add("queue a 0 a:2; queue b 9 b:1").await;
    assert_eq!(claim(&scene, 6, GROUPED).await, ["b:1"]);
    assert_eq!(all_grouped(&scene).await, "a 4398046511104: a:1 a:2; 2");
}

/// A group has left, because its last name is in the chunk, and then waits for its limit. The turns
/// go on with a group to which a name has moved meanwhile.
#[tokio::test]
async fn a_group_that_has_left_may_wait() {
    let scene = with_limit().await;
    grouped_above_the_rate(&scene).await;
    limit(&scene, &["b"]).await;
    set(&scene, "c:*", Share::new().weight(1)).await;
    scene.add("names b 0 b:no; queue b 0 c:1").await;
    assert_eq!(claim(&scene, 6, GROUPED).await, ["c:1"]);
    assert_eq!(all_grouped(&scene).await, "a 4398046511104: a:1; 1");
}

/// Groups of all priorities have turns while a share has a limit. Places of the round of names that
/// stay are given back.
#[tokio::test]
async fn priorities_have_turns_with_limits() {
    let scene = with_limit().await;
    for (selector, priority) in [("h:*", Priority::High), ("l:*", Priority::Low)] {
        set(&scene, selector, Share::new().priority(priority)).await;
    }
    for (group, pass) in [("h", -CLASS), ("n", 0), ("l", CLASS)] {
        scene.add(&format!("queue {group} {pass} {group}:1")).await;
    }
    assert_eq!(claim(&scene, 3, GROUPED).await, ["h:1", "n:1", "l:1"]);
    assert_eq!(all_grouped(&scene).await, "none");
    // The limit of both groups with the prefix `p` has room for one object.
    let scene = with_limit().await;
    for (selector, share) in [
        ("p:a:*", Share::new().priority(Priority::High)),
        ("p:b:*", Share::new().weight(1)),
        ("p:*", Share::new().in_flight(1)),
    ] {
        set(&scene, selector, share).await;
    }
    scene
        .add(&format!(
            "queue p:a -{CLASS} p:a:1; queue p:b 0 p:b:1; queue c 1 c:1"
        ))
        .await;
    let answer = scene.free(0..3, GROUPED).await;
    assert_eq!(answer.summary(), "p:a:1 c:1");
    assert_eq!(
        all_grouped(&scene).await,
        "p:a 3298534883329: ; p:b 4398046511104: p:b:1; 1"
    );
    assert_eq!(scene.at("event.groups.turns").await, "2");
}

/// The call ends after its last claim, while the only group that is left is at its limit: another
/// call is of use. It is of no use if the call could have claimed one more object.
#[tokio::test]
async fn a_call_that_ends_with_its_last_claim_asks_for_another_one() {
    for (slots, reply_bytes, is_of_use) in [
        (1, 1 << 20, true),
        (2, 1 << 20, false),
        (2, 2, false),
        (2, 1, true),
    ] {
        let scene = with_limit().await;
        at_its_limit(&scene, "p", 0).await;
        scene.add("names b 1 b:no; queue b 1 b:1").await;
        let answer = scene
            .free(0..slots, grouped(|b| b.reply_bytes = reply_bytes))
            .await;
        let expected = if is_of_use { "b:1, more" } else { "b:1" };
        assert_eq!(answer.summary(), expected, "{slots} {reply_bytes}");
        assert_eq!(scene.at("event.groups.waiting").await, "1");
    }
    // The call may look at one name more, but no further group has a turn.
    let scene = with_limit().await;
    at_its_limit(&scene, "p", 0).await;
    scene.add("names b 1 b:no").await;
    let answer = scene.free(0..2, grouped(|b| b.markers = 2)).await;
    assert_eq!(answer.summary(), "");
}

/// A name has moved to a new group, and then the limit of all objects is used up. Another call is
/// of no use.
#[tokio::test]
async fn a_call_that_uses_up_the_limit_of_all_objects_asks_for_no_other_one() {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().in_flight(1)).await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    scene.add("queue a 0 a:x:1 a:1 a:2").await;
    let answer = scene.free(0..3, GROUPED).await;
    assert_eq!(answer.summary(), "a:1");
    assert_eq!(all_grouped(&scene).await, "a 1: a:2; a:x 1: a:x:1; 2");
}

/// A call looks at the groups of 4 prefixes that are due, and leaves the fifth prefix. All these
/// groups are at their limits again, and so is the group of a new marker. Another call is of use
/// for the fifth prefix.
#[tokio::test]
async fn a_prefix_that_is_left_asks_for_another_call() {
    for prefixes in [4, 5] {
        let scene = with_limit().await;
        let names: Vec<String> = (1..=prefixes).map(|n| format!("p{n}")).collect();
        for prefix in &names {
            limit(&scene, &[prefix]).await;
            set(&scene, &format!("{prefix}:a:*"), Share::new().weight(1)).await;
        }
        limit(&scene, &["r"]).await;
        in_hand(&scene, &["r:0"]).await;
        for prefix in &names {
            in_hand(&scene, &[&format!("{prefix}:0")]).await;
            park(&scene, &format!("{prefix}:a"), 3.0).await;
            block(&scene, &format!("{prefix}\n"), 0).await;
        }
        scene.add("each r:1").await;
        let answer = scene.free(0..2, GROUPED).await;
        assert_eq!(
            (answer.objects(), answer.of_use()),
            (vec![], (prefixes > 4, false)),
            "{prefixes}"
        );
        assert_eq!(blocked(&scene).await.len(), prefixes + 1);
        assert_eq!(
            scene.number(&scene.keys.event_groups_waiting()).await,
            prefixes as u64 + 1
        );
    }
}

/// A call claims an object or none, and 127 groups begin to wait. No other group is left, so
/// another call is of no use. After 128 groups, others may be left.
#[tokio::test]
async fn a_call_that_looks_at_all_groups_asks_for_no_other_one() {
    for (claimed, groups, is_of_use) in [
        (true, 127, false),
        (true, 128, true),
        (false, 127, false),
        (false, 128, true),
    ] {
        let scene = with_limit().await;
        limit(&scene, &["p"]).await;
        in_hand(&scene, &["p:0"]).await;
        // To look at a marker would be of use, too.
        scene.add("DEL objects.with.events").await;
        if claimed {
            scene.add("queue b 0 b:1").await;
        }
        for n in 1..=groups {
            scene.add(&format!("queue p:{n} {n} p:{n}:1")).await;
        }
        let answer = scene.free(0..3, grouped(|b| b.group_depth = 2)).await;
        let expected = if claimed { vec!["b:1"] } else { vec![] };
        assert_eq!(
            (answer.objects(), answer.of_use()),
            (expected, (is_of_use, false)),
            "{claimed} {groups}"
        );
    }
}

/// The rate of all objects still allows a claim after a call, so no time of another call is told.
#[tokio::test]
async fn a_call_that_leaves_room_for_a_claim_tells_no_time() {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().rate(0.001).burst(1)).await;
    scene.add("names a 0 a:no a:neither").await;
    let answer = scene.free(0..2, grouped(|b| b.markers = 1)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(answer.next_due, None);
}
