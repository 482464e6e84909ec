//! `scheduled`: which schedules a page has, and what it says of each.

use seriatim::keys::Keys;
use seriatim::wire::operator::{self, Range, ScheduledPage, ScheduledReply};

use super::given;
use crate::scene::Scene;

/// The most bytes of an event that a page has.
const SHOWN: usize = 8192;

/// Returns a scene with schedules of several kinds. Two of them are queued, so they have no due
/// time.
async fn scene() -> Scene {
    let (shown, long) = ("x".repeat(SHOWN), "x".repeat(SHOWN + 1));
    given(&format!(
        "
        ZADD events.scheduled 5 'a\nk1' 6 'a\nk2' 6 'b\nk' 7 'c\nk' 8 odd 9 'd\nk'
        ZADD events.scheduled -1000000000005999 'a\nq' -1000000000000000 'b\nq'
        HSET a:events.scheduled k1 1 q 2 alone 3; HSET b:events.scheduled k {shown} q 2
        HSET c:events.scheduled k {long}; HSET d:events.scheduled k ''
        "
    ))
    .await
}

async fn page(scene: &Scene, range: Range<'_>, count: usize) -> ScheduledPage {
    let page = operator::scheduled(&mut scene.conn().await, &scene.keys, range, count).await;
    page.expect("a page")
}

/// Returns the texts of a page of one object, sorted.
async fn of_object(scene: &Scene, object: &str) -> Vec<String> {
    let (object, cursor) = (object.as_bytes(), 0);
    let found = page(scene, Range::Object { object, cursor }, 100).await;
    assert_eq!(found.cursor, 0);
    let mut rows = read(&found);
    rows.sort();
    rows
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
    let scene = scene().await;
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
            let found = page(&scene, range, count).await;
            let rows = &expected[..count.min(expected.len())];
            assert_eq!(read(&found), rows, "{count} of {range:?}");
            assert!(scene.is_now(found.now_ms), "{found:?}");
            assert_eq!(found.cursor, 0);
        }
    }
}

/// A page of one object has all its schedules, also the queued ones, and an event without a due
/// time. A score between two bounds is a time of queueing.
#[tokio::test]
async fn a_page_of_one_object_has_the_queued_ones() {
    let scene = scene().await;
    let given = "
        ZADD events.scheduled -999999999999999 'a\nlate' -9007199254740991 'a\nlowest'
        ZADD events.scheduled -9007199254740992 'a\nbelow'
        HSET a:events.scheduled late 1 lowest 1 below 1
    ";
    scene.add(given).await;
    let expected = [
        "a/alone  1 1",
        "a/below -9007199254740992 1 1",
        "a/k1 5 1 1",
        "a/late -999999999999999 1 1",
        "a/lowest 8007199254740 1 1 queued",
        "a/q 5 1 1 queued",
    ];
    assert_eq!(of_object(&scene, "a").await, expected);
    let expected = ["b/k 6 8192 8192", "b/q 0 1 1 queued"];
    assert_eq!(of_object(&scene, "b").await, expected);
    assert_eq!(of_object(&scene, "none").await, [""; 0]);
}

/// An object with many schedules takes several pages, which have each schedule once.
#[tokio::test]
async fn the_pages_of_one_object_follow_each_other() {
    let keys: String = (0..1000).map(|n| format!(" k{n} 1")).collect();
    let scene = given(&format!("HSET a:events.scheduled{keys}")).await;
    let (mut rows, mut cursor, mut pages) = (Vec::new(), 0, Vec::new());
    loop {
        let object = &b"a"[..];
        let found = page(&scene, Range::Object { object, cursor }, 10).await;
        let length = found.schedules.len();
        // A bucket of the hash has few keys.
        assert!(length < 60, "{length} schedules");
        assert!(length >= 10 || found.cursor == 0, "{length} schedules");
        rows.extend(read(&found));
        cursor = found.cursor;
        if cursor == 0 {
            break;
        }
        pages.push(length);
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
    let scene = Scene::under(Keys::new()).await;
    let given = "
        ZADD events.scheduled 5 '{x\nk' 6 'x\nk'; HSET {x:events.scheduled k 1
        HSET x:events.scheduled k 1
    ";
    scene.add(given).await;
    let found = page(&scene, all(None, None, None), 9).await;
    assert_eq!(read(&found), ["{x/k 5 none 0", "x/k 6 1 1"]);
}
