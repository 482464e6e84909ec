//! Shares of groups: how operators set, list and remove them, and how groups that wait follow them.

use seriatim::control::rules::Selector;
use seriatim::control::shares::{
    PREFIX_BYTES_MAX, Priority, SHARES_MAX, SelectorShare, Share, ShareDone, WEIGHT_MAX,
};
use seriatim::control::{By, Control, ControlError};

use crate::scene::Scene;
use crate::support::operator::Reads;
use crate::support::{Redis, assert_matches, control};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The size of the range of scores that each priority has in `event.groups`.
const CLASS: f64 = 1_099_511_627_776.0;

fn selector(text: &str) -> Selector {
    text.parse().expect("a selector")
}

async fn set(control: &Control, text: &str, share: Share) -> Result<ShareDone, ControlError> {
    control.set_share(BY, &selector(text), share).await
}

async fn give(control: &Control, text: &str, priority: Priority) {
    set(control, text, Share::new().priority(priority))
        .await
        .expect("set");
}

async fn remove(control: &Control, text: &str) -> Result<ShareDone, ControlError> {
    control.remove_share(BY, &selector(text)).await
}

/// Sets a share.
async fn put(control: &Control, text: &str, share: Share) -> ShareDone {
    set(control, text, share).await.expect("set")
}

async fn removed(control: &Control, text: &str) -> ShareDone {
    remove(control, text).await.expect("removed")
}

async fn scene() -> (Scene, Control) {
    let scene = Scene::bare(Redis::start()).await;
    let control = control(&scene.conn().await, &scene.keys);
    (scene, control)
}

/// The number that is added to the score of a group while the group waits for a limit.
const PARKED: f64 = 4.0 * CLASS;

/// Enters groups in `event.groups`.
async fn wait(scene: &Scene, groups: &[(&str, f64)]) {
    let groups = groups
        .iter()
        .map(|(group, score)| format!(" {score} {group}"));
    let groups: String = groups.collect();
    scene.add(&format!("ZADD event.groups{groups}")).await;
}

/// Fails unless these groups wait, each with its score.
async fn assert_groups(scene: &Scene, expected: &[(&str, f64)]) {
    let mut expected = expected.to_vec();
    expected.sort_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(other.0)));
    let found = scene.scores("event.groups").await;
    let found: Vec<_> = found
        .iter()
        .map(|(group, score)| (&**group, *score))
        .collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_share_is_set_replaced_listed_and_removed() {
    let (scene, control) = scene().await;
    assert_eq!(control.shares().await.expect("read"), []);
    let share = Share::new().weight(5).priority(Priority::High);
    assert_eq!(put(&control, "b:*", share).await, ShareDone::New);
    assert_eq!(
        put(&control, "b:*", Share::new().weight(WEIGHT_MAX)).await,
        ShareDone::Again
    );
    assert_eq!(
        put(&control, "a:1:*", Share::new().priority(Priority::Low)).await,
        ShareDone::New
    );
    let shares = control.shares().await.expect("read");
    let parts = |share: &SelectorShare| (share.selector.clone(), share.weight, share.priority);
    let expected = [
        ("a:1:*".to_owned(), None, Some(Priority::Low)),
        ("b:*".to_owned(), Some(WEIGHT_MAX), None),
    ];
    assert_eq!(shares.iter().map(parts).collect::<Vec<_>>(), expected);
    for share in &shares {
        assert_eq!(
            (share.in_flight, share.rate, share.burst),
            (None, None, None)
        );
        assert_eq!(
            (share.actor.as_str(), share.reason.as_str()),
            ("ada", "a test")
        );
    }
    assert_eq!(removed(&control, "a:1:*").await, ShareDone::Removed);
    assert_eq!(removed(&control, "a:1:*").await, ShareDone::NotSet);
    assert_eq!(control.shares().await.expect("read"), shares[1..]);
    let actions = control.recorded(9).await;
    let kept: Vec<_> = actions
        .iter()
        .map(|kept| {
            (
                kept.action.as_str(),
                kept.object.as_str(),
                kept.who.as_str(),
            )
        })
        .collect();
    let expected = [
        ("share-remove", "a:1:*"),
        ("share-set", "a:1:*"),
        ("share-set", "b:*"),
        ("share-set", "b:*"),
    ];
    assert_eq!(
        kept,
        expected.map(|(action, object)| (action, object, "ada"))
    );
    scene.check().await;
}

#[tokio::test]
async fn a_share_that_cannot_be_set_is_refused() {
    let (scene, control) = scene().await;
    let share = Share::new().weight(5);
    let long = Selector::existing("a:b:c:d:e:f:g:h:i:*").expect("a selector of an older version");
    for (selector, why) in [
        (
            selector("acme:1"),
            r#"for this one object write "acme:1:*", because a share for PREFIX:* also covers the object"#,
        ),
        (selector(":*"), "the prefix is empty"),
        (long, "more than 8 parts"),
        (
            selector(&format!("{}:*", "x".repeat(PREFIX_BYTES_MAX + 1))),
            "the prefix has 257 bytes; at most 256 are allowed",
        ),
    ] {
        for refused in [
            control.set_share(BY, &selector, share).await,
            control.remove_share(BY, &selector).await,
        ] {
            let error = refused.expect_err("refused");
            assert!(
                matches!(&error, ControlError::ShareSelector { .. })
                    && error.to_string().contains(why),
                "{error}"
            );
        }
    }
    for (text, share, why) in [
        (
            "acme:*",
            Share::new().weight(0),
            "the weight of a share must be a whole number from 1 to 100",
        ),
        (
            "acme:*",
            Share::new().weight(WEIGHT_MAX + 1),
            "the weight of a share must be a whole number from 1 to 100",
        ),
        (
            "acme:*",
            Share::new().in_flight(0),
            "the number of objects in hand of a share must be a whole number from 1 to 1000000",
        ),
        (
            "acme:*",
            Share::new().rate(0.0),
            "the rate of a share must be from 0.001 to 1000000 events per second",
        ),
        (
            "acme:*",
            Share::new().rate(f64::NAN),
            "the rate of a share must be from",
        ),
        (
            "acme:*",
            Share::new().rate(1.0).burst(0),
            "the burst of a share must be a whole number from 1 to 1000000",
        ),
        (
            "acme:*",
            Share::new().rate(50.0).burst(4),
            "the burst of a share must be at least 5 for 50 events per second",
        ),
        (
            "acme:*",
            Share::new().rate(20.1).burst(2),
            "the burst of a share must be at least 3 for",
        ),
        (
            "acme:*",
            Share::new().rate(2.1).burst(1),
            "the burst of a share must be at least 2 for",
        ),
        (
            "acme:*",
            Share::new().burst(1),
            "a burst of a share must be set together with a rate",
        ),
        (
            "*",
            Share::new().weight(5),
            "for all objects it has no effect",
        ),
        (
            "*",
            Share::new().in_flight(5).priority(Priority::High),
            "for all objects it has no effect",
        ),
    ] {
        let error = set(&control, text, share).await.expect_err("refused");
        assert!(
            matches!(&error, ControlError::SharePart { .. }) && error.to_string().contains(why),
            "{error}"
        );
    }
    assert_matches!(
        set(&control, "acme:*", Share::new()).await,
        Err(ControlError::ShareEmpty)
    );
    scene.changed("").await;
    assert_eq!(
        put(&control, "a:b:c:d:e:f:g:h:*", share).await,
        ShareDone::New
    );
    for (rate, burst) in [
        (2.0, 1),
        (0.001, 1),
        (10.0, 2),
        (50.0, 5),
        (1000.0, 100),
        (1_000_000.0, 100_000),
    ] {
        put(&control, "acme:*", Share::new().rate(rate).burst(burst)).await;
    }
    for (rate, burst) in [
        (0.001, 1),
        (2.0, 1),
        (2.1, 2),
        (3.9, 2),
        (4.0, 2),
        (50.0, 14),
        (1_000_000.0, 250_001),
    ] {
        put(&control, "acme:*", Share::new().rate(rate)).await;
        let listed = control.shares().await.expect("listed");
        let share = listed
            .iter()
            .find(|share| share.selector == "acme:*")
            .expect("a share");
        assert_eq!(share.burst, Some(burst), "{rate}");
    }
    let longest = format!("{}:*", "x".repeat(PREFIX_BYTES_MAX));
    assert_eq!(put(&control, &longest, share).await, ShareDone::New);
}

/// Workers look for shares of prefixes with so many parts as the summary says.
#[tokio::test]
async fn the_summary_has_the_most_parts_of_a_prefix() {
    let (scene, control) = scene().await;
    let keys = &scene.keys;
    let summary = async || {
        let text = scene
            .text(&keys.event_shares_summary())
            .await
            .expect("a summary");
        let (parts, since) = text.rsplit_once(' ').expect("three numbers");
        assert!(
            since.parse::<u64>().is_ok_and(|ms| ms > 1_700_000_000_000),
            "{text}"
        );
        parts.to_owned()
    };
    scene.add("SET event.groups.turns 7").await;
    for (text, parts) in [
        ("a:*", "1 1"),
        ("a:b:c:*", "1 3"),
        ("x:y:*", "1 3"),
        ("a:b:c:d:e:f:g:h:*", "1 8"),
    ] {
        put(&control, text, Share::new().weight(2)).await;
        assert_eq!(summary().await, parts, "{text}");
    }
    for (text, parts) in [
        ("a:b:c:d:e:f:g:h:*", "1 3"),
        ("a:*", "1 3"),
        ("a:b:c:*", "1 2"),
    ] {
        removed(&control, text).await;
        assert_eq!(summary().await, parts, "{text}");
        assert_eq!(scene.number(&keys.event_groups_turns()).await, 7);
    }
    scene.check().await;
    removed(&control, "x:y:*").await;
    for key in ["event.shares", "event.shares.summary", "event.groups.turns"] {
        assert_eq!(scene.at(key).await, "nil");
    }
    scene.check().await;
}

/// A group whose priority changes begins one claim behind the first group of its new priority. The
/// shared list of further groups never moves.
#[tokio::test]
async fn groups_that_wait_follow_a_change_of_their_priority() {
    let (scene, control) = scene().await;
    let waiting = [
        ("acme", 10.5),
        ("acme:1", 40.0),
        ("acme:1:x", 41.0),
        ("acmeb", 20.0),
        ("other", 30.25),
        ("\0rest", 3.0),
    ];
    wait(&scene, &waiting).await;
    // A weight moves no group.
    put(&control, "acme:*", Share::new().weight(9)).await;
    assert_groups(&scene, &waiting).await;
    // No group had this priority, so all begin at its first score.
    give(&control, "acme:*", Priority::High).await;
    let (rest, other) = (("\0rest", 3.0), ("other", 30.25));
    let high = [("acme", -CLASS), ("acme:1", -CLASS), ("acme:1:x", -CLASS)];
    assert_groups(
        &scene,
        &[&high[..], &[("acmeb", 20.0), rest, other]].concat(),
    )
    .await;
    // The longest prefix that sets a priority counts.
    wait(&scene, &[("acme", -CLASS + 8.0)]).await;
    give(&control, "acme:1:*", Priority::Low).await;
    let now = [
        ("acme", -CLASS + 8.0),
        ("acme:1", CLASS),
        ("acme:1:x", CLASS),
        ("acmeb", 20.0),
        rest,
        other,
    ];
    assert_groups(&scene, &now).await;
    // In each priority there is a group already, so the others begin one claim behind it.
    wait(
        &scene,
        &[("acme:1:x", CLASS + 4.125), ("acme:1", CLASS + 5.0)],
    )
    .await;
    give(&control, "other:*", Priority::High).await;
    give(&control, "acmeb:*", Priority::Low).await;
    let now = [
        ("acme", -CLASS + 8.0),
        ("acme:1", CLASS + 5.0),
        ("acme:1:x", CLASS + 4.125),
        rest,
    ];
    assert_groups(
        &scene,
        &[
            &now[..],
            &[("other", -CLASS + 9.0), ("acmeb", CLASS + 5.125)],
        ]
        .concat(),
    )
    .await;
    // Without its own share, a group has the priority of the shorter prefix.
    removed(&control, "acme:1:*").await;
    let now = [
        ("acme", -CLASS + 8.0),
        ("acme:1", -CLASS + 9.0),
        ("acme:1:x", -CLASS + 9.0),
        rest,
    ];
    assert_groups(
        &scene,
        &[
            &now[..],
            &[("other", -CLASS + 9.0), ("acmeb", CLASS + 5.125)],
        ]
        .concat(),
    )
    .await;
    // The shared list has the lowest pass of its priority.
    for text in ["acme:*", "other:*", "acmeb:*"] {
        removed(&control, text).await;
    }
    let now = ["acme", "acme:1", "acme:1:x", "acmeb", "other"].map(|group| (group, 4.0));
    assert_groups(&scene, &[&now[..], &[rest]].concat()).await;
}

/// Each priority begins with its first score. So a group with this score has the priority, and stays.
#[tokio::test]
async fn groups_with_the_first_score_of_a_priority_stay() {
    let (scene, control) = scene().await;
    for (text, priority) in [("high:*", Priority::High), ("low:*", Priority::Low)] {
        give(&control, text, priority).await;
    }
    let waiting = [
        ("high:1", -CLASS),
        ("high:2", -0.5),
        ("a", 0.0),
        ("b", 0.5),
        ("c", 3.0),
        ("low:1", CLASS),
        ("low:2", CLASS + 7.0),
    ];
    wait(&scene, &waiting).await;
    put(&control, "x:*", Share::new().weight(2)).await;
    assert_groups(&scene, &waiting).await;
}

/// Groups that wait for a limit have turns again, in their order, beside the groups that have turns. If
/// all groups of a priority wait, their passes stay.
#[tokio::test]
async fn groups_that_wait_for_a_limit_have_turns_again_after_a_change() {
    let (scene, control) = scene().await;
    give(&control, "low:*", Priority::Low).await;
    let waiting = [
        ("a", PARKED + 2.0),
        ("b", PARKED + 5.0),
        ("c", 10.5),
        ("low", PARKED + CLASS + 7.0),
    ];
    wait(&scene, &waiting).await;
    scene.add("ZADD event.groups.blocked 5 a").await;
    put(&control, "x:*", Share::new().weight(2)).await;
    let expected = [("a", 10.5), ("c", 10.5), ("b", 13.5), ("low", CLASS + 7.0)];
    assert_groups(&scene, &expected).await;
    assert_eq!(scene.at("event.groups.blocked").await, "nil");
}

/// The only group of a priority leaves it, while others come. They do not begin behind the group that
/// leaves.
#[tokio::test]
async fn a_group_that_leaves_a_priority_is_not_the_first_there() {
    let (scene, control) = scene().await;
    give(&control, "new:*", Priority::High).await;
    // An older worker has entered both groups, and knows no shares.
    wait(
        &scene,
        &[("new", 5.0), ("stray", -CLASS + 7.0), ("normal", 90.0)],
    )
    .await;
    put(&control, "x:*", Share::new().weight(2)).await;
    let expected = [("new", -CLASS), ("normal", 90.0), ("stray", 91.0)];
    assert_groups(&scene, &expected).await;
}

/// Each prefix of up to 8 parts counts, and the longest one that sets a priority decides. The shared
/// list stays even at a score that it cannot have.
#[tokio::test]
async fn a_prefix_of_8_parts_decides() {
    let (scene, control) = scene().await;
    wait(
        &scene,
        &[
            ("a:b:c:d:e:f:g:h", 5.0),
            ("a:b:c:d:e:f:g", 6.0),
            ("a:b", 7.0),
            ("\0rest", CLASS + 3.0),
        ],
    )
    .await;
    give(&control, "a:b:c:d:e:f:g:h:*", Priority::High).await;
    give(&control, "a:b:c:*", Priority::Low).await;
    let expected = [
        ("a:b:c:d:e:f:g:h", -CLASS),
        ("a:b", 7.0),
        ("\0rest", CLASS + 3.0),
        ("a:b:c:d:e:f:g", CLASS + 4.0),
    ];
    assert_groups(&scene, &expected).await;
}

#[tokio::test]
async fn a_check_finds_nothing_in_shares_of_each_priority() {
    let (scene, control) = scene().await;
    for (text, priority) in [
        ("a:*", Priority::High),
        ("b:*", Priority::Normal),
        ("c:*", Priority::Low),
    ] {
        give(&control, text, priority).await;
    }
    scene.check().await;
}

/// A worker that waits for markers must look at the groups again.
#[tokio::test]
async fn a_change_of_a_share_wakes_a_worker() {
    let (scene, control) = scene().await;
    let markers = scene.keys.objects_with_events();
    assert_eq!(removed(&control, "acme:*").await, ShareDone::NotSet);
    assert_eq!(scene.list(&markers).await, [""; 0]);
    give(&control, "acme:*", Priority::Low).await;
    assert_eq!(scene.list(&markers).await, [""]);
    removed(&control, "acme:*").await;
    assert_eq!(scene.list(&markers).await, ["", ""]);
}

/// A key of a wrong type is named before the first write, and everything stays as it is.
#[tokio::test]
async fn a_key_of_a_wrong_type_changes_no_share() {
    let (scene, control) = scene().await;
    let keys = &scene.keys;
    give(&control, "acme:*", Priority::Low).await;
    for key in [
        "event.groups",
        "event.shares.summary",
        "event.groups.turns",
        "operator.actions",
        "event.shares",
    ] {
        let aside = format!("{}aside", keys.prefix());
        let named = format!("{}{key}", keys.prefix());
        // The key may be absent.
        let is_there = scene
            .try_run::<()>(&["RENAME", &named, &aside])
            .await
            .is_ok();
        scene.add(&format!("SADD {key} wrong")).await;
        scene.changes().await;
        let again = Share::new().priority(Priority::High);
        for refused in [
            set(&control, "acme:*", again).await,
            remove(&control, "acme:*").await,
        ] {
            let is_named = matches!(&refused, Err(ControlError::WrongType { key: wrong, .. }) if *wrong == named);
            assert!(is_named, "{key}: {refused:?}");
            scene.changed("").await;
        }
        if key == "event.shares" {
            let error = control.shares().await.expect_err("no hash").to_string();
            assert!(error.contains(key), "{error}");
        }
        scene.add(&format!("DEL {key}")).await;
        if is_there {
            let () = scene.run(&["RENAME", &aside, &named]).await;
        }
    }
}

/// There are at most 1,024 shares, because a call reads all of them. An existing share can be
/// changed even then.
#[tokio::test]
async fn there_are_at_most_1024_shares() {
    let (scene, control) = scene().await;
    let share = |n| format!(" work{n}:* '1 - - - - 5 0 '");
    let shares: String = (1..SHARES_MAX).map(share).collect();
    scene.add(&format!("HSET event.shares{shares}")).await;
    assert_eq!(
        put(&control, "last:*", Share::new().weight(5)).await,
        ShareDone::New
    );
    let refused = set(&control, "more:*", Share::new().weight(5))
        .await
        .expect_err("too many");
    assert_matches!(refused, ControlError::Shares(SHARES_MAX));
    assert_eq!(
        put(&control, "last:*", Share::new().weight(6)).await,
        ShareDone::Again
    );
    assert_eq!(
        control.shares().await.expect("read").len() as u64,
        SHARES_MAX
    );
    assert_eq!(removed(&control, "work1:*").await, ShareDone::Removed);
    assert_eq!(
        put(&control, "more:*", Share::new().weight(5)).await,
        ShareDone::New
    );
}

/// The rights of an operator in the protocol are enough to set and remove a share.
#[tokio::test]
async fn the_rights_of_an_operator_are_enough_for_shares() {
    let scene = Scene::bare(Redis::own(&[])).await;
    wait(&scene, &[("acme", 5.0)]).await;
    let operator = scene.redis.documented_control().await;
    give(&operator, "acme:*", Priority::High).await;
    assert_groups(&scene, &[("acme", -CLASS)]).await;
    assert_eq!(removed(&operator, "acme:*").await, ShareDone::Removed);
    assert_groups(&scene, &[("acme", 0.0)]).await;
    assert_eq!(operator.shares().await.expect("read"), []);
    scene.redis.set_user("operator", "-zrem").await;
    let refused = set(&operator, "acme:*", Share::new().weight(2)).await;
    assert_matches!(refused, Err(ControlError::Denied(command)) if command == "ZREM");
    assert_eq!(operator.shares().await.expect("read"), []);
}
