//! Repairs without a namespace, where any key may belong to another program.

use seriatim::control::Repair;
use seriatim::keys::Keys;

use super::{call, doing, lines, repair};
use crate::check::broken_by;
use crate::scene::Scene;

/// A list becomes a queue only if another key shows that it is one, or if the user says so. A key of
/// another type is left alone, unless the object has keys.
#[tokio::test]
async fn keys_of_other_programs_are_left_alone() {
    let scene = Scene::bare_under(Keys::new()).await;
    let all = Repair {
        all_lists: true,
        ..doing()
    };
    let marked = "marker object x: has 1 events queued: it gets a marker";
    for (commands, with, expected) in [
        (
            "LPUSH x:events 1",
            doing(),
            "left object x: x:events has 1 entries and no marker, but no other key shows that it is a queue of seriatim: --all-lists makes it one",
        ),
        ("LPUSH x:events 1", all, marked),
        ("LPUSH x:events 1; SET x:last.event.id 5", doing(), marked),
        ("SET x:events 1", doing(), ""),
        (
            "SET x:events 1; SET x:last.event.id 5",
            doing(),
            "left object x: x:events is a string, it should be a list: move it away",
        ),
    ] {
        broken_by(&scene, commands).await;
        let expected = Some(expected).filter(|line| !line.is_empty());
        assert_eq!(
            lines(&repair(&scene, &with).await),
            Vec::from_iter(expected),
            "{commands}"
        );
    }
}

/// Story: `event.groups` was lost. A dry run told that each queue whose object is in the list of a group
/// needs `--all-lists`, but the repair put all of them right without this option.
#[tokio::test]
async fn a_dry_run_knows_the_names_of_groups_that_it_would_repair() {
    let scene = Scene::bare_under(Keys::new()).await;
    let commands = "
        LPUSH g:1:events 1; LPUSH g:2:events 1; LPUSH event.group:g:waiting g:1 g:2
        LPUSH other:events 1
    ";
    for dry_run in [true, false] {
        broken_by(&scene, commands).await;
        let with = Repair { dry_run, ..doing() };
        let expected = [
            "group group g: has 2 names that are grouped: it is in event.groups again",
            "left object other: other:events has 1 entries and no marker, but no other key shows that it is a queue of seriatim: --all-lists makes it one",
        ];
        assert_eq!(lines(&repair(&scene, &with).await), expected, "{dry_run}");
    }
}

/// Objects of another namespace are left alone, also in the list of a dead slot.
#[tokio::test]
async fn objects_of_another_namespace_are_left_alone() {
    const OURS: &str = "SET {shop:0}:work:1:event.worker gone.0; LPUSH {shop:0}:work:1:event.errors e; HSET {shop:0}:work:1:events.scheduled k 1";
    let scene = Scene::bare_under(Keys::new()).await;
    for owner in ["", "; DEL {shop:0}:work:1:event.worker"] {
        let list = "
            DEL event.worker:gone.0:object work:4:event.worker
            LPUSH event.worker:gone.0:object {shop:0}:work:1
            SET event.worker:gone.0:event.id '14\n{shop:0}:work:1'
        ";
        broken_by(&scene, &format!("{OURS}{owner}; {list}")).await;
        assert_eq!(call(&scene, &[("object", "{shop:0}:work:1")]).await, []);
        let results = call(
            &scene,
            &[("worker", "gone.0"), ("schedule", "{shop:0}:work:1\nk")],
        )
        .await;
        assert_eq!(results, [(0, "left".to_owned()), (1, "left".to_owned())]);
        let report = repair(&scene, &doing()).await;
        assert_eq!(
            (report.steps_total, report.left_total),
            (0, 2),
            "{report:?}"
        );
    }
}
