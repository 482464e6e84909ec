//! `scheduled`: which schedules a page has, and what it says of each.

use seriatim::keys::Keys;
use seriatim::wire::operator::{self, Range, ScheduledPage, ScheduledReply};

use super::Scene;

/// The most bytes of an event that a page has.
const SHOWN: usize = 8192;

/// Builds a state with schedules of several kinds. Two of them are queued, so they have no due
/// time.
async fn scene() -> Scene {
    let mut scene = Scene::new().await;
    let (shown, long) = ("x".repeat(SHOWN), "x".repeat(SHOWN + 1));
    let due = [
        "5", "a\nk1", "6", "a\nk2", "6", "b\nk", "7", "c\nk", "8", "odd", "9", "d\nk",
    ];
    let queued = ["-1000000000005999", "a\nq", "-1000000000000000", "b\nq"];
    scene
        .put("ZADD", "events.scheduled", &[&due[..], &queued].concat())
        .await;
    scene
        .put(
            "HSET",
            "a:events.scheduled",
            &["k1", "1", "q", "2", "alone", "3"],
        )
        .await;
    scene
        .put("HSET", "b:events.scheduled", &["k", &shown, "q", "2"])
        .await;
    scene.put("HSET", "c:events.scheduled", &["k", &long]).await;
    scene.put("HSET", "d:events.scheduled", &["k", ""]).await;
    scene
}

async fn page(scene: &mut Scene, range: Range<'_>, count: usize) -> ScheduledPage {
    let keys = scene.state.keys.clone();
    operator::scheduled(&mut scene.state.conn, &keys, range, count)
        .await
        .expect("a page")
}

fn all<'a>(from: Option<u64>, to: Option<u64>, after: Option<(&'a str, &'a str)>) -> Range<'a> {
    Range::All {
        from,
        to,
        after: after.map(|(due, member)| (due, member.as_bytes())),
    }
}

/// Returns a text for each schedule: its member, its due time, the size of its event, the size of
/// the event in the page, and whether it is queued.
fn read(page: &ScheduledPage) -> Vec<String> {
    let text = |one: &ScheduledReply| {
        let (member, bytes) = (
            String::from_utf8_lossy(&one.member).replace('\n', "/"),
            one.event_bytes,
        );
        let bytes = bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        format!(
            "{member} {} {bytes} {}{}",
            one.due,
            one.event.len(),
            if one.is_queued { " queued" } else { "" }
        )
    };
    page.schedules.iter().map(text).collect()
}

/// A page of all objects has the schedules between two due times, both included, without those
/// whose event is queued. It begins behind the last one of the page before, also if that one has
/// gone.
#[tokio::test]
async fn a_page_of_all_objects_has_the_schedules_between_two_times() {
    let mut scene = scene().await;
    let rows = [
        "a/k1 5 1 1",
        "a/k2 6 none 0",
        "b/k 6 8192 8192",
        "c/k 7 8193 0",
        "odd 8 none 0",
        "d/k 9 0 0",
    ];
    for (range, expected) in [
        (all(None, None, None), &rows[..]),
        (all(Some(5), None, None), &rows),
        (all(Some(6), None, None), &rows[1..]),
        (all(Some(6), Some(6), None), &rows[1..3]),
        (all(Some(8), Some(8), None), &rows[4..5]),
        (all(Some(10), None, None), &[]),
        (all(None, Some(5), None), &rows[..1]),
        (all(None, Some(4), None), &[]),
        (all(None, Some(8), Some(("5", "a\nk1"))), &rows[1..5]),
        (all(None, None, Some(("6", "a\nk2"))), &rows[2..]),
        (all(None, None, Some(("9", "d\nk"))), &[]),
        // The schedule before the page has gone, or has another due time.
        (all(None, None, Some(("6", "x\nk"))), &rows[1..]),
        (all(None, None, Some(("7", "a\nk1"))), &rows[3..]),
    ] {
        for count in 1..=7 {
            let found = page(&mut scene, range, count).await;
            assert_eq!(
                read(&found),
                expected[..count.min(expected.len())],
                "{count} of {range:?}"
            );
            assert!(
                (scene.began_ms..scene.began_ms + super::LONGEST_MS).contains(&found.now_ms),
                "{found:?}"
            );
            assert_eq!(found.cursor, 0);
        }
    }
}

/// A page of one object has all its schedules, also the queued ones, and an event without a due
/// time. A score between two bounds is a time of queueing.
#[tokio::test]
async fn a_page_of_one_object_has_the_queued_ones() {
    let mut scene = scene().await;
    let [lowest, below] = ["-9007199254740991", "-9007199254740992"];
    let scores = ["-999999999999999", "late", lowest, "lowest", below, "below"];
    for pair in scores.chunks(2) {
        scene
            .put(
                "ZADD",
                "events.scheduled",
                &[pair[0], &format!("a\n{}", pair[1])],
            )
            .await;
        scene
            .put("HSET", "a:events.scheduled", &[pair[1], "1"])
            .await;
    }
    let found = page(
        &mut scene,
        Range::Object {
            object: b"a",
            cursor: 0,
        },
        100,
    )
    .await;
    let mut rows = read(&found);
    rows.sort();
    let expected = [
        "a/alone  1 1",
        "a/below -9007199254740992 1 1",
        "a/k1 5 1 1",
        "a/late -999999999999999 1 1",
        "a/lowest 8007199254740 1 1 queued",
        "a/q 5 1 1 queued",
    ];
    assert_eq!(
        (rows, found.cursor),
        (expected.map(str::to_owned).to_vec(), 0)
    );
    let found = page(
        &mut scene,
        Range::Object {
            object: b"b",
            cursor: 0,
        },
        100,
    )
    .await;
    let mut rows = read(&found);
    rows.sort();
    assert_eq!(rows, ["b/k 6 8192 8192", "b/q 0 1 1 queued"]);
    assert_eq!(
        read(
            &page(
                &mut scene,
                Range::Object {
                    object: b"none",
                    cursor: 0
                },
                1
            )
            .await
        ),
        [""; 0]
    );
}

/// An object with many schedules takes several pages, which have each schedule once.
#[tokio::test]
async fn the_pages_of_one_object_follow_each_other() {
    let mut scene = Scene::new().await;
    let mut fill = redis::cmd("HSET");
    fill.arg(scene.state.keys.events_scheduled_of("a"));
    for n in 0..1000 {
        fill.arg(format!("k{n}")).arg("1");
    }
    fill.query_async::<u64>(&mut scene.state.conn)
        .await
        .expect("filled");
    let (mut rows, mut cursor, mut pages) = (Vec::new(), 0, Vec::new());
    loop {
        let found = page(
            &mut scene,
            Range::Object {
                object: b"a",
                cursor,
            },
            10,
        )
        .await;
        // A bucket of the hash has few keys.
        assert!(
            found.schedules.len() < 60,
            "{} schedules",
            found.schedules.len()
        );
        assert!(
            found.schedules.len() >= 10 || found.cursor == 0,
            "{} schedules",
            found.schedules.len()
        );
        rows.extend(read(&found));
        cursor = found.cursor;
        if cursor == 0 {
            break;
        }
        pages.push(found.schedules.len());
    }
    rows.sort();
    rows.dedup();
    assert_eq!((rows.len(), pages.len() > 15), (1000, true));
    // A page ends as soon as it has the number that was asked for.
    assert!(pages.contains(&10), "{pages:?}");
}

/// Without a namespace, a name that begins with a brace belongs to another one. Its event is not
/// read.
#[tokio::test]
async fn the_event_of_a_foreign_name_is_not_read() {
    let mut scene = Scene::new().await;
    let keys = Keys::new();
    scene
        .state
        .run(
            "ZADD",
            &[&keys.events_scheduled(), "5", "{x\nk", "6", "x\nk"],
        )
        .await;
    for object in ["{x", "x"] {
        scene
            .state
            .run("HSET", &[&keys.events_scheduled_of(object), "k", "1"])
            .await;
    }
    let range = all(None, None, None);
    let found = operator::scheduled(&mut scene.state.conn, &keys, range, 9)
        .await
        .expect("a page");
    assert_eq!(read(&found), ["{x/k 5 none 0", "x/k 6 1 1"]);
}
