//! `held`: the order of the objects that are grouped, and where a page goes on.

use seriatim::wire::operator::{self, HELD_LOOKED_MAX, HeldPart, HeldQuery, HeldReplyPage};

use super::given;
use crate::scene::Scene;

/// Reads a page of the objects whose names begin with the prefix, after this object.
async fn page(
    scene: &Scene,
    part: HeldPart,
    prefix: &str,
    after: Option<(&str, &str)>,
    count: usize,
) -> HeldReplyPage {
    let query = HeldQuery {
        part,
        prefix: prefix.as_bytes(),
        after: after.map(|(due, object)| (due, object.as_bytes())),
        count,
    };
    let page = operator::held(&mut scene.conn().await, &scene.keys, &query).await;
    page.expect("a page")
}

/// Returns the names of the objects in a page, and then the last object of the page and its due
/// time.
fn read(page: &HeldReplyPage) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let names: Vec<String> = page.objects.iter().map(|held| text(&held.object)).collect();
    let last = page.last.as_ref();
    let last = last.map(|(due, object)| format!("{due} {}", text(object)));
    (names.join(" "), last.unwrap_or_default())
}

/// Objects that are grouped come first, the longest due first. A page goes on behind its last
/// object, also if this object has left the list or has another due time.
#[tokio::test]
async fn a_page_goes_on_behind_objects_that_are_grouped() {
    let scene = given("ZADD objects.held -4 d -3 c -2 b2 -2 b -1 a 5 e 6 f inf g").await;
    let all = ["a", "b2", "b", "c", "d", "e", "f", "g"];
    let dues = ["-1", "-2", "-2", "-3", "-4", "5", "6", "inf"];
    for count in 1..=9 {
        for begin in 0..=all.len() {
            let after = begin.checked_sub(1).map(|at| (dues[at], all[at]));
            let found = page(&scene, HeldPart::All, "", after, count).await;
            let end = all.len().min(begin + count);
            let last = match end < all.len() {
                true => format!("{} {}", dues[end - 1], all[end - 1]),
                false => String::new(),
            };
            let expected = (all[begin..end].join(" "), last);
            assert_eq!(read(&found), expected, "{count} after {after:?}");
            assert_eq!(found.looked, (end - begin) as u64);
            let shown: Vec<&str> = found.objects.iter().map(|held| held.due.as_str()).collect();
            assert_eq!(shown, dues[begin..end], "{count} after {after:?}");
        }
    }
    // The object has left, or has become due at another time.
    for (due, gone, expected) in [
        ("-1", "x", "a b2 b c d e f g"),
        ("-3", "x", "c d e f g"),
        ("-9", "d", "e f g"),
        ("5", "x", "e f g"),
        ("5", "d", "e f g"),
    ] {
        let found = page(&scene, HeldPart::All, "", Some((due, gone)), 9).await;
        assert_eq!(read(&found).0, expected, "after {gone} at {due}");
    }
    for (part, expected) in [
        (HeldPart::UntilReleased, "g"),
        (HeldPart::Timed, "a b2 b c d e f"),
        (HeldPart::Due, "a b2 b c d e f"),
    ] {
        let found = read(&page(&scene, part, "", None, 9).await);
        assert_eq!(found, (expected.to_owned(), String::new()), "{part:?}");
    }
}

/// The objects of a page have the beginning of its names, and the page ends with the last one that
/// it has room for.
#[tokio::test]
async fn a_page_of_names_with_a_beginning_ends_when_it_is_full() {
    let scene = given("ZADD objects.held 1 a1 2 b1 3 a2 4 b2 5 ba 6 a3 7 b3").await;
    for (prefix, count, names, last, looked) in [
        ("a", 1, "a1", "1 a1", 1),
        ("a", 2, "a1 a2", "3 a2", 3),
        ("a", 3, "a1 a2 a3", "6 a3", 6),
        ("a", 4, "a1 a2 a3", "", 7),
        ("c", 1, "", "", 7),
    ] {
        let found = page(&scene, HeldPart::All, prefix, None, count).await;
        let expected = (names.to_owned(), last.to_owned());
        assert_eq!((read(&found), found.looked), (expected, looked), "{count}");
    }
}

/// A call looks at so many objects, also if they are grouped.
#[tokio::test]
async fn a_call_looks_at_so_many_objects_that_are_grouped() {
    let names = (1..=HELD_LOOKED_MAX + 2).map(|n| format!(" -{n} o{n}"));
    let scene = given(&format!("ZADD objects.held{}", names.collect::<String>())).await;
    let last = format!("-{HELD_LOOKED_MAX} o{HELD_LOOKED_MAX}");
    let found = page(&scene, HeldPart::All, "x", None, 1).await;
    assert_eq!(read(&found), (String::new(), last));
    assert_eq!(found.looked, HELD_LOOKED_MAX as u64);
    for (after, looked) in [
        ("-1 o1", HELD_LOOKED_MAX),
        ("-2 o2", HELD_LOOKED_MAX),
        ("-3 o3", HELD_LOOKED_MAX - 1),
    ] {
        let found = page(&scene, HeldPart::All, "x", after.split_once(' '), 1).await;
        let expected = (looked as u64, after == "-1 o1");
        assert_eq!((found.looked, found.last.is_some()), expected, "{after}");
    }
}

/// The prefixes of a name end at its first 8 colons, also at the beginning of the name, and after
/// another colon. A page has the rules of each paused object, blocks first.
#[tokio::test]
async fn the_rules_of_a_paused_object_have_its_prefixes() {
    let rules = [
        "block *",
        "pause :*",
        "block :a:*",
        "pause a:*",
        "pause a::*",
        "block a:b:*",
        "pause a:b:c:d:e:f:g:*",
        "pause a:b:c:d:e:f:g:h:*",
        "pause a:b:c:d:e:f:g:h:i:*",
        "block a:b:c:d:e:f:g:h:i:j",
    ];
    let rules = rules
        .map(|rule| format!(" '{rule}' '5 0 0 3 0 bob'"))
        .concat();
    let scene = given("").await;
    for (object, expected) in [
        ("a", "block *"),
        (":a", "block *, pause :*"),
        (":a:1", "block *, block :a:*, pause :*"),
        ("a::", "block *, pause a:*, pause a::*"),
        (
            "a:b:c:d:e:f:g:h:i:j",
            "block *, block a:b:*, block a:b:c:d:e:f:g:h:i:j, pause a:*, pause a:b:c:d:e:f:g:*, pause a:b:c:d:e:f:g:h:*",
        ),
    ] {
        let given = format!("HSET event.rules{rules}; ZADD objects.paused 0 {object}");
        scene.again(&given).await;
        let mut conn = scene.conn().await;
        let page = operator::paused(&mut conn, &scene.keys, b"", None, 9).await;
        let page = page.expect("a page");
        let fields = page.objects[0].1.iter();
        let fields: Vec<_> = fields.map(|field| String::from_utf8_lossy(field)).collect();
        assert_eq!(fields.join(", "), expected, "{object}");
        assert_eq!(page.rules.len(), fields.len(), "{object}");
    }
}
