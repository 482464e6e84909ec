//! Events that handlers have emitted and scheduled, when an operator skips or cancels their event.

use seriatim::wire::operator::{self, Skipped};

use super::{BY, Scene};

/// Skips the event 7 of the object `a`, whose handlers have these emits. Returns the lines of all
/// keys but those of the object and of the dead letters.
async fn skip(scene: &mut Scene, emits: &[(&str, &str)]) -> Vec<String> {
    scene
        .state
        .hold("a", "inf", &["1"], "7 0 1 0 retry: x")
        .await;
    let fields: Vec<&str> = emits
        .iter()
        .flat_map(|(handler, value)| [*handler, *value])
        .collect();
    scene
        .put(
            "HSET",
            "a:event.handled",
            &[&["id", "7"], &fields[..]].concat(),
        )
        .await;
    let keys = scene.state.keys.clone();
    let skipped = operator::skip(&mut scene.state.conn, &keys, BY, b"a", Some(7))
        .await
        .expect("a reply");
    assert!(
        matches!(skipped, Skipped::Skipped { id: 7, left: 0, .. }),
        "{skipped:?}"
    );
    let mut lines = scene.shown().await;
    lines.retain(|line| {
        !["a:", "events.dead: ", "operator.", "objects.held: "]
            .iter()
            .any(|begin| line.starts_with(begin))
    });
    lines
}

/// Events are queued in the order of their handlers, and of their emits. Handlers with the same
/// place come in the order of their names. Each object has one marker.
#[tokio::test]
async fn emits_are_queued_in_the_order_of_their_handlers() {
    let mut scene = Scene::new().await;
    let [first, second, last] = [
        "0 2 8 3 1 o:1A3 1 o:2B",
        "0 1 4 3 1 o:1C",
        "10 3 12 3 1 o:3D3 2 o:1EE3 0 o:4",
    ];
    let lines = skip(
        &mut scene,
        &[
            ("emit:a", last),
            ("emit:c", second),
            ("emit:b", first),
            ("emit:d", "9 1 4 3 1 o:1F"),
        ],
    )
    .await;
    let expected = [
        "o:1:events: EE",
        "o:1:events: F",
        "o:1:events: C",
        "o:1:events: A",
        "o:2:events: B",
        "o:3:events: D",
        "o:4:events: ",
        "objects.with.events: o:4",
        "objects.with.events: o:3",
        "objects.with.events: o:2",
        "objects.with.events: o:1",
        "objects.with.events: ",
    ];
    assert_eq!(lines, expected);
}

/// A schedule replaces an earlier one with its key, keeps the time of the earlier one, or keeps the
/// earlier one as it is.
#[tokio::test]
async fn schedules_replace_or_keep_earlier_ones() {
    let schedules =
        ["r", "t", "f"].map(|mode| format!("s3 3 3 {mode}@99999999999999 o:1newk-{mode}"));
    for is_there in [false, true] {
        let mut scene = Scene::new().await;
        for mode in ["r", "t", "f"].into_iter().filter(|_| is_there) {
            scene
                .put(
                    "ZADD",
                    "events.scheduled",
                    &["9999999999999", &format!("o:1\nk-{mode}")],
                )
                .await;
            scene
                .put(
                    "HSET",
                    "o:1:events.scheduled",
                    &[&format!("k-{mode}"), "old"],
                )
                .await;
        }
        let lines = skip(
            &mut scene,
            &[("emit:h", &format!("0 3 9 {}", schedules.concat()))],
        )
        .await;
        let kept = if is_there {
            "9999999999999"
        } else {
            "99999999999999"
        };
        let mut members = [("f", kept), ("r", "99999999999999"), ("t", kept)];
        members.sort_by_key(|(mode, due)| (due.len(), *mode));
        let mut expected = members
            .map(|(mode, due)| format!("events.scheduled: o:1\nk-{mode} {due}"))
            .to_vec();
        let first = if is_there { "old" } else { "new" };
        expected.extend(
            [("f", first), ("r", "new"), ("t", "new")]
                .map(|(mode, event)| format!("o:1:events.scheduled: k-{mode} = {event}")),
        );
        expected.push("objects.with.events: ".to_owned());
        assert_eq!(lines, expected, "{is_there}");
    }
}

/// A schedule that is due within a minute wakes a worker, but not one that keeps an earlier time.
/// No due time is above the highest id.
#[tokio::test]
async fn a_schedule_that_is_due_soon_wakes_a_worker() {
    for (due, shown, wakes) in [
        ("+0", "NOW", true),
        ("+59999", "NOW", true),
        ("+60000", "NOW", false),
        ("@5", "5", true),
        ("@99999999999999999999", "9007199254740991", false),
        ("+99999999999999999999", "9007199254740991", false),
    ] {
        for is_there in [false, true] {
            let mut scene = Scene::new().await;
            if is_there {
                scene
                    .put("ZADD", "events.scheduled", &["9999999999999", "o:1\nk"])
                    .await;
            }
            let lines = skip(
                &mut scene,
                &[("emit:h", &format!("0 1 9 s3 1 1 t{due} o:11k"))],
            )
            .await;
            let shown = if is_there { "9999999999999" } else { shown };
            let mut expected = vec![format!("events.scheduled: o:1\nk {shown}")];
            expected
                .extend((wakes && !is_there).then(|| "events.scheduled.wake: wake 0".to_owned()));
            expected.extend(
                ["o:1:events.scheduled: k = 1", "objects.with.events: "].map(str::to_owned),
            );
            assert_eq!(lines, expected, "{due} {is_there}");
        }
    }
    // One schedule of several that is due soon is enough.
    let mut scene = Scene::new().await;
    let emits = "0 2 9 s3 1 1 r@5 o:11ks3 1 1 r+99999 o:11l";
    assert!(
        skip(&mut scene, &[("emit:h", emits)])
            .await
            .contains(&"events.scheduled.wake: wake 0".to_owned())
    );
}

/// The markers of many objects take several commands, and each object has one.
#[tokio::test]
async fn many_objects_have_one_marker_each() {
    let mut scene = Scene::new().await;
    let objects: Vec<String> = (0..2001).map(|n| format!("o:{n}")).collect();
    let emits: String = objects
        .iter()
        .map(|object| format!("{} 1 {object}1", object.len()))
        .collect();
    skip(&mut scene, &[("emit:h", &format!("0 2001 9 {emits}"))]).await;
    let mut markers = scene.items("objects.with.events").await;
    assert_eq!(markers.pop().as_deref(), Some(""));
    markers.reverse();
    assert_eq!(markers, objects);
}
