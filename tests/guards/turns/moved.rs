//! Names in the lists of other groups, and groups that begin to wait, while a share has a limit.

use seriatim::control::shares::Share;

use super::{GROUPED, all_grouped, claim, grouped};
use crate::limits::{blocked, set, with_limit};
use crate::scene::Scene;

/// Makes objects count as in hand.
async fn in_hand(scene: &Scene, object: &str) {
    scene
        .add(&format!("ZADD objects.in.hand 0 {object}:"))
        .await;
}

/// A call claims 128 objects at most.
#[tokio::test]
async fn a_call_with_limits_claims_so_many_objects() {
    let scene = with_limit().await;
    scene.add("queue a 0 a:1..140").await;
    let answer = scene.free(0..140, GROUPED).await;
    assert_eq!(
        (answer.objects().len(), answer.of_use()),
        (128, (true, false))
    );
}

/// 128 groups begin to wait in a call. Another call is of use after it, because it may look at others.
#[tokio::test]
async fn so_many_groups_begin_to_wait_in_a_call() {
    for (groups, waiting, is_of_use) in [(127, 127, false), (128, 128, true), (129, 128, true)] {
        let scene = with_limit().await;
        set(&scene, "p:*", Share::new().in_flight(1)).await;
        in_hand(&scene, "p:9").await;
        for n in 0..groups {
            scene.add(&format!("queue p:{n} {n} p:{n}:1")).await;
        }
        let answer = scene.free(0..2, GROUPED).await;
        assert_eq!(
            (answer.objects(), answer.of_use()),
            (vec![], (is_of_use, false)),
            "{groups}"
        );
        let groups_key = scene.keys.event_groups();
        let count = ["ZCOUNT", &groups_key, "4000000000000", "+inf"];
        assert_eq!(scene.run::<usize>(&count).await, waiting, "{groups}");
        let answer = scene.free(0..2, GROUPED).await;
        assert_eq!(answer.summary(), "", "{groups}");
        assert_eq!(scene.run::<usize>(&count).await, groups, "{groups}");
        assert_eq!(blocked(&scene).await.len(), 1);
    }
}

/// A name whose group has a share of its own is moved to the list of this group, and claimed in its
/// turn, in the same call. Other names are claimed from the list where they are.
#[tokio::test]
async fn a_name_of_a_new_group_is_moved_and_claimed() {
    for was_there in [false, true] {
        let scene = with_limit().await;
        set(&scene, "a:x:*", Share::new().weight(1)).await;
        if was_there {
            // The group has no name left, and gives its turn up first.
            scene.add("ZADD event.groups 0 a:x").await;
        }
        scene.add("queue a 0 a:x:1 a:2 b:1 a:x:2 a:3").await;
        let (first, then, left) = if was_there {
            (
                ["a:2", "a:x:1"],
                vec!["b:1", "a:3", "a:x:2"],
                "a 1: b:1 a:x:2 a:3; 3",
            )
        } else {
            (
                ["a:2", "b:1"],
                vec!["a:x:1", "a:3", "a:x:2"],
                "a:x 1: a:x:1; a 2: a:x:2 a:3; 3",
            )
        };
        assert_eq!(claim(&scene, 2, GROUPED).await, first);
        assert_eq!(all_grouped(&scene).await, left);
        let answer = scene.free(2..8, GROUPED).await;
        assert_eq!((answer.objects(), answer.of_use()), (then, (false, false)));
        assert_eq!(all_grouped(&scene).await, "none");
    }
}

/// A name goes to the end of the shared list if its group has no list, and its limit allows no claim.
/// Another call is of use only if this one has claimed an object.
#[tokio::test]
async fn a_name_that_cannot_be_moved_goes_to_the_end() {
    for others in [false, true] {
        let scene = with_limit().await;
        set(&scene, "a:*", Share::new().in_flight(1)).await;
        in_hand(&scene, "a:9").await;
        let given = "SET event.group:a:waiting x; queue \0rest 0 a:1 a:2";
        scene.add(given).await;
        if others {
            scene.add("queue \0rest 0 b:1 b:2").await;
        }
        let answer = scene.free(0..1, GROUPED).await;
        let names = scene.list(&scene.keys.group_waiting("\0rest")).await;
        let passes = scene.scores("event.groups").await;
        let expected = if others {
            (vec!["b:1"], (true, false))
        } else {
            (vec![], (false, false))
        };
        assert_eq!((answer.objects(), answer.of_use()), expected);
        assert_eq!(
            names,
            if others {
                &["b:2", "a:1", "a:2"][..]
            } else {
                &["a:1", "a:2"]
            }
        );
        assert_eq!(
            passes[0],
            ("\0rest".to_owned(), if others { 1.0 } else { 0.0 })
        );
        assert_eq!(blocked(&scene).await, []);
    }
}

/// A group gives a chunk no more names than its limit allows. So the names of other groups follow, and the
/// group does not begin to wait before its next turn.
#[tokio::test]
async fn a_group_gives_no_more_names_than_its_limit_allows() {
    let scene = with_limit().await;
    set(&scene, "a:*", Share::new().in_flight(2)).await;
    scene.add("queue a 0 a:1..6; queue b 9 b:1..4").await;
    assert_eq!(
        claim(&scene, 4, GROUPED).await,
        ["a:1", "a:2", "b:1", "b:2"]
    );
    assert_eq!(
        all_grouped(&scene).await,
        "a 2: a:3 a:4 a:5 a:6; b 11: b:3 b:4; 6"
    );
    assert_eq!(blocked(&scene).await, []);
    let answer = scene.free(4..8, GROUPED).await;
    assert_eq!(answer.summary(), "b:3 b:4");
    assert_eq!(
        all_grouped(&scene).await,
        "a 4398046511106: a:3 a:4 a:5 a:6; 4"
    );
}

/// After a group whose limit is used up, the turns go on with groups that were not among the first 64.
#[tokio::test]
async fn groups_at_their_limits_leave_their_turns_to_further_groups() {
    let scene = with_limit().await;
    let groups: Vec<String> = (10..76).map(|n| format!("g{n}")).collect();
    for group in &groups {
        set(&scene, &format!("{group}:*"), Share::new().in_flight(1)).await;
    }
    for group in &groups {
        scene.add(&format!("queue {group} 5 {group}:1..2")).await;
    }
    let expected: Vec<String> = groups.iter().map(|group| format!("{group}:1")).collect();
    assert_eq!(claim(&scene, 66, GROUPED).await, expected);
    assert_eq!(scene.at("event.groups.waiting").await, "66");
}

/// Two groups have a common limit, which a claim within the call uses up. The name behind it stays in
/// its list, and the group waits. Names of other groups are claimed and removed.
#[tokio::test]
async fn a_name_that_stays_is_counted_and_kept() {
    for (others, markers) in [(false, 100), (true, 100), (true, 3)] {
        let scene = with_limit().await;
        for (selector, share) in [
            ("p:a:*", Share::new().weight(1)),
            ("p:b:*", Share::new().weight(1)),
            ("p:*", Share::new().in_flight(1)),
        ] {
            set(&scene, selector, share).await;
        }
        let given = "queue p:a 0 p:a:1..3; queue p:b 1 p:b:1..3";
        scene.add(given).await;
        if others {
            scene.add("queue c 2 \0b c:2 c:3").await;
        }
        let bounds = grouped(|b| b.markers = markers);
        let answer = scene.free(0..3, bounds).await;
        let waiting = "p:a 4398046511105: p:a:2 p:a:3; p:b 4398046511105: p:b:1 p:b:2 p:b:3";
        if markers == 3 {
            assert_eq!(
                (answer.objects(), answer.of_use()),
                (vec!["p:a:1", "\0b"], (true, false))
            );
            // The first group begins to wait at its next turn.
            let left = "p:a 1: p:a:2 p:a:3; c 3: c:2 c:3; p:b 4398046511105: p:b:1 p:b:2 p:b:3; 7";
            assert_eq!(all_grouped(&scene).await, left);
        } else if others {
            assert_eq!(
                (answer.objects(), answer.of_use()),
                (vec!["p:a:1", "\0b", "c:2"], (true, false))
            );
            assert_eq!(all_grouped(&scene).await, format!("c 4: c:3; {waiting}; 6"));
        } else {
            assert_eq!(answer.summary(), "p:a:1");
            assert_eq!(all_grouped(&scene).await, format!("{waiting}; 5"));
        }
        let members = blocked(&scene).await.into_iter();
        assert_eq!(
            members.map(|(member, _)| member).collect::<Vec<_>>(),
            ["p\n"]
        );
    }
}

/// While the names of a group with a limit lead to no claim, it gives four times as many names to each
/// chunk as to the one before, up to 64.
#[tokio::test]
async fn a_group_gives_more_names_while_they_lead_nowhere() {
    for (markers, of_group) in [(40, 1), (120, 5), (280, 21), (600, 85), (1112, 149)] {
        let scene = with_limit().await;
        set(&scene, "a:*", Share::new().in_flight(1)).await;
        let given = "names a 0 a:1..400; names b 1000 b:1..1200";
        scene.add(given).await;
        let answer = scene.free(0..40, grouped(|b| b.markers = markers)).await;
        assert_eq!(answer.summary(), ", more", "{markers}");
        for (group, left) in [("a", 400 - of_group), ("b", 1200 + of_group - markers)] {
            let list = scene.keys.group_waiting(group);
            let names: usize = scene.run(&["LLEN", &list]).await;
            assert_eq!(names, left, "{markers} {group}");
        }
    }
}

/// A name moves behind the names that are in the list of its group.
#[tokio::test]
async fn a_name_moves_behind_the_names_of_its_group() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    scene.add("queue a:x 9 a:x:0; queue a 0 a:x:1 a:2").await;
    assert_eq!(claim(&scene, 1, grouped(|b| b.markers = 2)).await, ["a:2"]);
    assert_eq!(all_grouped(&scene).await, "a 1: ; a:x 9: a:x:0 a:x:1; 2");
}

/// Names move to a group that has given its turn up, and the call may look at no further name. The
/// group keeps its place among the groups.
#[tokio::test]
async fn a_group_to_which_names_have_moved_keeps_its_place() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().weight(1)).await;
    let given = "ZADD event.groups 0 a:x; queue a 1 a:x:1 a:x:2";
    scene.add(given).await;
    let answer = scene.free(0..2, grouped(|b| b.markers = 2)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(all_grouped(&scene).await, "a:x 0: a:x:1 a:x:2; a 1: ; 2");
}
