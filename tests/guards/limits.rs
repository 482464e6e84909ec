//! Groups that wait for a limit of a share: which of them a call looks at.

use seriatim::control::By;
use seriatim::control::shares::{Priority, Share};

use crate::scene::{BOUNDS, Scene, bounds};
use crate::support::control;

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The number that is added to the score of a group while the group waits for a limit.
const PARKED: f64 = 4_398_046_511_104.0;
/// The number that is added to the time, in ms, since when a group waits for an object in hand.
pub(crate) const LATER: u64 = 1_000_000_000_000_000;
/// The most groups of a shorter prefix, and the most shorter prefixes, that a call looks at.
const CHILDREN_MAX: usize = 16;
const PREFIXES_MAX: usize = 4;

pub(crate) async fn set(scene: &Scene, selector: &str, share: Share) {
    let selector = selector.parse().expect("a selector");
    let control = control(&scene.conn().await, &scene.keys);
    control.set_share(BY, &selector, share).await.expect("set");
}

/// Returns a scene with a share of all objects, so that names wait in the lists of groups.
pub(crate) async fn with_limit() -> Scene {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().in_flight(1000)).await;
    scene
}

/// Sets a limit for each of these groups.
pub(crate) async fn limit(scene: &Scene, groups: &[impl AsRef<str>]) {
    for group in groups {
        let selector = format!("{}:*", group.as_ref());
        set(scene, &selector, Share::new().in_flight(1)).await;
    }
}

/// Makes a group wait, with this pass and an object that has an event. A later change of a share ends
/// the wait.
pub(crate) async fn park(scene: &Scene, group: &str, pass: f64) {
    let score = PARKED + pass;
    scene.add(&format!("queue {group} {score} {group}:1")).await;
}

pub(crate) async fn block(scene: &Scene, member: &str, score: u64) {
    scene
        .add(&format!("ZADD event.groups.blocked {score} '{member}'"))
        .await;
}

/// Makes an object count as in hand.
async fn in_hand(scene: &Scene, object: &str) {
    scene
        .add(&format!("ZADD objects.in.hand 0 {object}:"))
        .await;
}

/// Makes a call that claims one object at most. Returns its objects, and whether a further call is of
/// use.
async fn call(scene: &Scene) -> String {
    let answer = scene.free(0..2, bounds(|b| b.claims = 1)).await;
    assert_eq!(answer.texts(), [""; 0]);
    let more = if answer.more { ", more" } else { "" };
    format!("{}{more}", answer.objects().join(" "))
}

/// Returns the passes of the groups that still wait.
async fn waiting(scene: &Scene) -> Vec<(String, f64)> {
    let all = scene.scores("event.groups").await.into_iter();
    let parked = all.filter(|(_, score)| *score >= PARKED / 2.0);
    parked
        .map(|(group, score)| (group, score - PARKED))
        .collect()
}

pub(crate) async fn blocked(scene: &Scene) -> Vec<(String, f64)> {
    scene.scores("event.groups.blocked").await
}

/// Returns the groups in `event.groups.blocked`, and of each whether its score is above this one.
async fn blocked_above(scene: &Scene, score: u64) -> Vec<(String, bool)> {
    let all = blocked(scene).await.into_iter();
    all.map(|(member, at)| (member, at > score as f64))
        .collect()
}

pub(crate) fn pair(name: &str, number: f64) -> (String, f64) {
    (name.to_owned(), number)
}

#[tokio::test]
async fn a_call_looks_at_all_groups_that_are_due() {
    let scene = with_limit().await;
    limit(&scene, &["a", "b", "c"]).await;
    for (group, pass) in [("a", 2.0), ("b", 5.0), ("c", 9.0)] {
        park(&scene, group, pass).await;
    }
    for group in ["a", "b", "c"] {
        block(&scene, group, 0).await;
    }
    assert_eq!(call(&scene).await, "a:1, more");
    assert_eq!(waiting(&scene).await, []);
    assert_eq!(blocked(&scene).await, []);
}

/// Of groups that wait for an object in hand, a call looks at those that have waited for a second. A
/// time that is too far ahead comes from another clock.
#[tokio::test]
async fn a_call_looks_at_groups_that_have_waited_for_long() {
    let scene = with_limit().await;
    limit(&scene, &["long", "fresh", "soon", "far"]).await;
    let now = scene.now_ms().await;
    let members = [
        ("long", LATER + now - 1000),
        ("fresh", LATER + now + 900),
        ("soon", now + 15_000),
        ("far", now + 25_000),
    ];
    for (pass, (group, score)) in (2..).zip(members) {
        park(&scene, group, f64::from(pass)).await;
        block(&scene, group, score).await;
    }
    assert_eq!(call(&scene).await, "long:1, more");
    assert_eq!(
        waiting(&scene).await,
        [pair("fresh", 3.0), pair("soon", 4.0)]
    );
    let members = blocked(&scene).await.into_iter().map(|(member, _)| member);
    assert_eq!(members.collect::<Vec<_>>(), ["soon", "fresh"]);
}

/// The next call goes on with the prefixes that this one has no time for.
#[tokio::test]
async fn a_call_looks_at_so_many_shorter_prefixes() {
    let scene = with_limit().await;
    let prefixes: Vec<String> = (0..=PREFIXES_MAX).map(|n| format!("p{n}")).collect();
    for prefix in &prefixes {
        set(&scene, &format!("{prefix}:*"), Share::new().in_flight(1)).await;
        set(&scene, &format!("{prefix}:x:*"), Share::new().weight(1)).await;
    }
    for prefix in &prefixes {
        park(&scene, &format!("{prefix}:x"), 2.0).await;
        block(&scene, &format!("{prefix}\n"), 0).await;
    }
    assert!(call(&scene).await.ends_with(", more"));
    assert_eq!(waiting(&scene).await, [pair("p4:x", 2.0)]);
    assert_eq!(blocked(&scene).await, [pair("p4\n", 0.0)]);
    call(&scene).await;
    assert_eq!(waiting(&scene).await, []);
    assert_eq!(blocked(&scene).await, []);
}

/// The next call goes on with the groups of a prefix that this one has no time for.
#[tokio::test]
async fn a_call_looks_at_so_many_groups_of_a_prefix() {
    for deleted in [false, true] {
        let scene = with_limit().await;
        set(&scene, "p:*", Share::new().in_flight(1000)).await;
        for n in 0..CHILDREN_MAX + 3 {
            set(&scene, &format!("p:{n}:*"), Share::new().weight(1)).await;
        }
        for n in 0..CHILDREN_MAX + 3 {
            park(&scene, &format!("p:{n}"), 2.0 + n as f64).await;
        }
        // Without the key, a call looks at groups that wait, whatever they wait for.
        if !deleted {
            block(&scene, "p\n", 0).await;
            block(&scene, "other", LATER * 2 - 1).await;
        }
        assert_eq!(call(&scene).await, "p:0:1, more");
        let left = [pair("p:16", 18.0), pair("p:17", 19.0), pair("p:18", 20.0)];
        assert_eq!(waiting(&scene).await, left);
        assert_eq!(blocked(&scene).await.contains(&pair("p\n", 0.0)), !deleted);
        call(&scene).await;
        assert_eq!(waiting(&scene).await, []);
        assert!(!blocked(&scene).await.contains(&pair("p\n", 0.0)));
    }
}

/// Groups that have waited go before the others by half a claim, and keep their order.
#[tokio::test]
async fn groups_that_have_waited_come_back_half_a_claim_before_the_others() {
    let scene = with_limit().await;
    limit(&scene, &["a", "b", "c"]).await;
    for (group, pass) in [("a", 2.0), ("b", 5.0), ("c", 20.0)] {
        park(&scene, group, pass).await;
    }
    scene.add("ZADD event.groups 20 c").await;
    for group in ["a", "b"] {
        block(&scene, group, 0).await;
    }
    assert_eq!(call(&scene).await, "a:1, more");
    assert_eq!(
        scene.scores("event.groups").await,
        [pair("c", 20.0), pair("a", 20.5), pair("b", 22.5)]
    );
}

/// A call that claims all that it may claim says whether it had no time for other groups that wait.
#[tokio::test]
async fn a_call_says_whether_other_groups_may_have_turns() {
    for further in [false, true] {
        let scene = with_limit().await;
        let prefixes: Vec<String> = (0..PREFIXES_MAX + usize::from(further))
            .map(|n| format!("p{n}"))
            .collect();
        for prefix in &prefixes {
            set(&scene, &format!("{prefix}:*"), Share::new().in_flight(1)).await;
            set(&scene, &format!("{prefix}:x:*"), Share::new().weight(1)).await;
        }
        for prefix in &prefixes {
            park(&scene, &format!("{prefix}:x"), 2.0).await;
            block(&scene, &format!("{prefix}\n"), 0).await;
            if prefix != "p4" {
                in_hand(&scene, &format!("{prefix}:x:9")).await;
            }
        }
        scene.add("emit z:1 1").await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!((answer.objects(), answer.more), (vec!["z:1"], further));
        // This worker has a free slot, so it needs no other one.
        assert_eq!(scene.list(&scene.keys.objects_with_events()).await, [""; 0]);
        assert_eq!(waiting(&scene).await.len(), prefixes.len());
        if further {
            let answer = scene.free(0..2, BOUNDS).await;
            assert_eq!(answer.objects(), ["z:1", "p4:x:1"]);
        }
    }
}

/// The same for the groups of one prefix.
#[tokio::test]
async fn a_call_says_whether_other_groups_of_a_prefix_may_have_turns() {
    for groups in [CHILDREN_MAX, CHILDREN_MAX + 1] {
        let scene = with_limit().await;
        set(&scene, "p:*", Share::new().in_flight(1)).await;
        for n in 0..groups {
            set(&scene, &format!("p:{n}:*"), Share::new().weight(1)).await;
        }
        in_hand(&scene, "p:9").await;
        for n in 0..groups {
            park(&scene, &format!("p:{n}"), 2.0).await;
        }
        block(&scene, "p\n", 0).await;
        scene.add("emit z:1 1").await;
        let answer = scene.free(0..2, BOUNDS).await;
        let more = groups > CHILDREN_MAX;
        assert_eq!((answer.objects(), answer.more), (vec!["z:1"], more));
        assert_eq!(waiting(&scene).await.len(), groups);
    }
}

/// A group that waits costs a call nothing until its time has come. The call wakes no other worker.
#[tokio::test]
async fn a_call_leaves_groups_that_are_not_due() {
    let scene = with_limit().await;
    let now = scene.now_ms().await;
    limit(&scene, &["a", "b"]).await;
    for (group, score) in [("a", LATER + now + 5000), ("b", now + 15_000)] {
        park(&scene, group, 2.0).await;
        block(&scene, group, score).await;
    }
    scene.add("each z:1..3").await;
    let before = (waiting(&scene).await, blocked(&scene).await);
    assert_eq!(call(&scene).await, "z:1, more");
    assert_eq!((waiting(&scene).await, blocked(&scene).await), before);
    assert_eq!(scene.list(&scene.keys.objects_with_events()).await, [""; 0]);
}

/// A call that leaves groups behind which it has let have turns wakes another worker.
#[tokio::test]
async fn a_call_wakes_another_worker_for_groups_that_are_due() {
    for (claims, woken) in [(1, &[""][..]), (2, &[])] {
        let scene = with_limit().await;
        limit(&scene, &["a", "b"]).await;
        for group in ["a", "b"] {
            park(&scene, group, 2.0).await;
        }
        for group in ["a", "b"] {
            block(&scene, group, 0).await;
        }
        let answer = scene.free(0..2, bounds(|b| b.claims = claims)).await;
        assert_eq!(answer.objects(), ["a:1", "b:1"][..claims]);
        assert_eq!(scene.list(&scene.keys.objects_with_events()).await, woken);
    }
}

/// Of several limits that allow no claim, a group waits for the one that it exceeds by most.
#[tokio::test]
async fn a_group_waits_for_the_limit_that_it_exceeds_by_most() {
    let scene = with_limit().await;
    set(&scene, "a:x:*", Share::new().in_flight(1)).await;
    scene.add("emit a:x:1 1").await;
    for (limit, member) in [(3, "a:x"), (1, "a\n")] {
        set(&scene, "a:*", Share::new().in_flight(limit)).await;
        scene
            .add("ZADD objects.in.hand 0 a:x:7: 0 a:x:8: 0 a:x:9:")
            .await;
        assert_eq!(call(&scene).await, "");
        let expected = [(member.to_owned(), true)];
        assert_eq!(blocked_above(&scene, LATER).await, expected);
    }
}

/// A call looks at so many groups that are due, and at so many that have waited for long. Those with the
/// lowest times come first.
#[tokio::test]
async fn a_call_looks_at_so_many_groups() {
    for (time, most) in [(1, 64), (LATER, 16)] {
        let scene = with_limit().await;
        for n in 0..most + 2 {
            park(&scene, &format!("a{n}"), 2.0).await;
            block(&scene, &format!("a{n}"), time + n).await;
        }
        call(&scene).await;
        let left = [most, most + 1].map(|n| (format!("a{n}"), (time + n) as f64));
        assert_eq!(blocked(&scene).await, left);
        assert_eq!(waiting(&scene).await, left.map(|(group, _)| (group, 2.0)));
    }
}

/// A group of a high priority may have the lowest score of all that wait. A group that has turns keeps
/// its pass, although event.groups.blocked has it.
#[tokio::test]
async fn only_groups_that_wait_come_back() {
    const CLASS: f64 = PARKED / 4.0;
    let scene = with_limit().await;
    set(&scene, "a:*", Share::new().priority(Priority::High)).await;
    park(&scene, "a", -CLASS).await;
    for group in ["b", "c"] {
        park(&scene, group, 40.0).await;
    }
    scene.add("ZADD event.groups 20 b").await;
    for group in ["a", "b", "c"] {
        block(&scene, group, 0).await;
    }
    assert_eq!(call(&scene).await, "a:1, more");
    assert_eq!(
        scene.scores("event.groups").await,
        [pair("a", 1.0 - CLASS), pair("b", 20.0), pair("c", 40.0)]
    );
}

/// The members of groups that wait were lost. As soon as the key is empty, a call looks at groups that
/// wait, also if only one name does.
#[tokio::test]
async fn groups_whose_members_were_lost_come_back() {
    let scene = with_limit().await;
    limit(&scene, &["other"]).await;
    for group in ["a", "b"] {
        park(&scene, group, 2.0).await;
    }
    block(&scene, "a", 0).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(
        (answer.objects(), waiting(&scene).await),
        (vec!["a:1"], vec![pair("b", 2.0)])
    );
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(
        (answer.objects(), waiting(&scene).await),
        (vec!["a:1", "b:1"], vec![])
    );
}

/// Story: 16 groups waited for their own limits, and had lower passes than a group that waited for the
/// limit of the prefix. Each call looked at the same 16, so that group waited as long as they did.
#[tokio::test]
async fn groups_that_wait_for_their_own_limits_stop_no_group_behind_them() {
    let scene = with_limit().await;
    set(&scene, "p:*", Share::new().in_flight(100)).await;
    set(&scene, "p:free:*", Share::new().weight(1)).await;
    let groups: Vec<String> = (0..CHILDREN_MAX).map(|n| format!("p:{n}")).collect();
    limit(&scene, &groups).await;
    for (pass, group) in (2..).zip(&groups) {
        park(&scene, group, f64::from(pass)).await;
        in_hand(&scene, &format!("{group}:9")).await;
    }
    park(&scene, "p:free", 50.0).await;
    block(&scene, "p\n", 0).await;
    assert_eq!(call(&scene).await, ", more");
    assert_eq!(call(&scene).await, "p:free:1, more");
}

/// Story: the groups of four prefixes waited for rates, and a call had no time for all of them. Each call
/// looked at these prefixes again, although their rates allowed nothing, and never at a fifth one.
#[tokio::test]
async fn prefixes_that_wait_for_their_rates_stop_no_other_prefix() {
    let scene = with_limit().await;
    let prefixes: Vec<(String, usize)> = (0..=PREFIXES_MAX)
        .map(|n| (format!("p{n}"), if n < PREFIXES_MAX { 5 } else { 1 }))
        .collect();
    for (prefix, groups) in &prefixes {
        set(&scene, &format!("{prefix}:*"), Share::new().rate(0.001)).await;
        for n in 0..*groups {
            set(&scene, &format!("{prefix}:{n}:*"), Share::new().weight(1)).await;
        }
    }
    let now = scene.now_ms().await;
    for (prefix, groups) in &prefixes {
        for n in 0..*groups {
            park(&scene, &format!("{prefix}:{n}"), 2.0 + n as f64).await;
        }
        if *groups > 1 {
            let until_us = (now + 600_000) * 1000;
            let used = format!("HSET event.shares.used {prefix}:* '9 {until_us} 0 0 0'");
            scene.add(&used).await;
        }
    }
    for (prefix, _) in &prefixes {
        block(&scene, &format!("{prefix}\n"), 0).await;
    }
    assert_eq!(call(&scene).await, ", more");
    let due = blocked_above(&scene, now).await;
    let expected = [
        ("p4\n", false),
        ("p0\n", true),
        ("p1\n", true),
        ("p2\n", true),
        ("p3\n", true),
    ];
    assert_eq!(
        due,
        expected.map(|(member, is_later)| (member.to_owned(), is_later))
    );
    assert_eq!(call(&scene).await, "p4:0:1, more");
}

/// Without names, no group is left. That is no loss.
#[tokio::test]
async fn a_call_without_names_tells_of_no_lost_group() {
    let scene = with_limit().await;
    assert_eq!(call(&scene).await, "");
}
