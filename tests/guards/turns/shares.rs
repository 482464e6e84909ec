//! The groups in whose lists names are grouped, with shares of prefixes and without.

use std::collections::BTreeMap;

use seriatim::control::shares::Share;

use super::{GROUPED, claim, grouped};
use crate::limits::set;
use crate::scene::Scene;

/// The group of an object is its longest prefix with a share. Without one, the worker's number of
/// parts decides; if this number is 0, all names share one list.
#[tokio::test]
async fn the_group_of_an_object_is_its_longest_prefix_with_a_share() {
    const REST: &str = "\0rest";
    for (selectors, group_depth, expected) in [
        (&["*"][..], 0, &[(REST, "a a:b a:b:c:1 d:e:1 d:f:1 f")][..]),
        (
            &["a:*"],
            0,
            &[(REST, "d:e:1 d:f:1 f"), ("a", "a a:b a:b:c:1")],
        ),
        (
            &["a:*", "d:e:*"],
            0,
            &[(REST, "d:f:1 f"), ("a", "a a:b a:b:c:1"), ("d:e", "d:e:1")],
        ),
        (
            &["a:b:*", "d:*"],
            1,
            &[
                ("a", "a"),
                ("a:b", "a:b a:b:c:1"),
                ("d", "d:e:1 d:f:1"),
                ("f", "f"),
            ],
        ),
        (
            &["a:*"],
            2,
            &[
                ("a", "a a:b a:b:c:1"),
                ("d:e", "d:e:1"),
                ("d:f", "d:f:1"),
                ("f", "f"),
            ],
        ),
        (
            &[],
            2,
            &[
                ("a", "a"),
                ("a:b", "a:b a:b:c:1"),
                ("d:e", "d:e:1"),
                ("d:f", "d:f:1"),
                ("f", "f"),
            ],
        ),
        (
            &[],
            1,
            &[("a", "a a:b a:b:c:1"), ("d", "d:e:1 d:f:1"), ("f", "f")],
        ),
    ] {
        let scene = Scene::new().await;
        for selector in selectors {
            let share = if *selector == "*" {
                Share::new().in_flight(1000)
            } else {
                Share::new().weight(1)
            };
            set(&scene, selector, share).await;
        }
        scene.add("each 0 a a:b a:b:c:1 d:e:1 d:f:1 f").await;
        assert_eq!(
            claim(&scene, 1, grouped(|b| b.group_depth = group_depth)).await,
            ["0"],
            "{selectors:?}"
        );
        let groups: Vec<String> = scene
            .run(&["ZRANGE", &scene.keys.event_groups(), "0", "-1"])
            .await;
        let mut names = BTreeMap::new();
        for group in groups.into_iter().filter(|group| group != "0") {
            names.insert(
                group.clone(),
                scene
                    .list(&scene.keys.group_waiting(&group))
                    .await
                    .join(" "),
            );
        }
        let expected = expected
            .iter()
            .map(|(group, names)| ((*group).to_owned(), (*names).to_owned()))
            .collect();
        assert_eq!(names, expected, "{selectors:?}, {group_depth}");
    }
}

/// The names of a group with more than 256 bytes share the list of all other groups.
#[tokio::test]
async fn a_group_with_a_long_name_has_no_list() {
    let scene = Scene::new().await;
    let (short, long) = ("g".repeat(256), "h".repeat(257));
    scene
        .add(&format!("each {short}:1 {long}:1 {long}:2"))
        .await;
    assert_eq!(claim(&scene, 1, GROUPED).await, [format!("{long}:1")]);
    let rest = "\0rest".to_owned();
    for (group, names) in [
        (&short, vec![format!("{short}:1")]),
        (&long, vec![]),
        (&rest, vec![format!("{long}:2")]),
    ] {
        assert_eq!(
            scene.list(&scene.keys.group_waiting(group)).await,
            names,
            "{group}"
        );
    }
}

/// Story: a weight that was no number in a share ended each claim of all workers. It counts as not set, as
/// does any other number with which nothing can be computed.
#[tokio::test]
async fn a_number_of_a_share_that_is_none_stops_no_claim() {
    for share in [
        "nan - - - - 1700 2 me",
        "0 - - - - 1700 2 me",
        "-1 - - - - 1700 2 me",
        "1e300 - - - - 1700 2 me",
        "1 - - nan nan 1700 2 me",
        "1 - - 0 0 1700 2 me",
        "1 - nan inf 5 1700 2 me",
    ] {
        let scene = Scene::given("queue a 0 a:1..3; queue b 0 b:1..3").await;
        let given = format!("HSET event.shares a:* '{share}'; SET event.shares.summary '2 1 1700'");
        scene.add(&given).await;
        let mut claimed = claim(&scene, 8, GROUPED).await;
        claimed.sort_unstable();
        let all = ["a:1", "a:2", "a:3", "b:1", "b:2", "b:3"];
        assert_eq!(claimed, all, "{share}");
    }
}
