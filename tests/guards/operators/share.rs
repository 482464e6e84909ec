//! `share`: which shares count, and what a change leaves of the other keys.

use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, ShareDone, ShareParts, ShareStep};
use seriatim::wire::values::ShareUsed;

use super::{BY, Scene};

/// The time since when objects in hand are counted.
const SINCE: u64 = 1700;
/// The size of the range of scores of a priority, and what is added while a group waits for a
/// limit.
const CLASS: i64 = 1_099_511_627_776;
const PARKED: i64 = 4 * CLASS;
const NONE: ShareParts = ShareParts {
    weight: None,
    priority: None,
    in_flight: None,
    rate: None,
    burst: None,
};
const WEIGHT: ShareParts = ShareParts {
    weight: Some(2),
    ..NONE
};

/// Builds a state with a summary and these shares.
async fn scene(shares: &[&str]) -> Scene {
    let mut scene = Scene::new().await;
    scene
        .put("SET", "event.shares.summary", &[&format!("0 0 {SINCE}")])
        .await;
    if !shares.is_empty() {
        scene.put("HSET", "event.shares", shares).await;
    }
    scene
}

async fn set_since(
    scene: &mut Scene,
    selector: &str,
    parts: ShareParts,
    since: u64,
) -> Result<ShareDone, ScriptError> {
    let (keys, step) = (
        scene.state.keys.clone(),
        ShareStep::Set {
            counted_since: since,
            parts,
        },
    );
    operator::share(&mut scene.state.conn, &keys, BY, selector, step).await
}

async fn set(scene: &mut Scene, selector: &str, parts: ShareParts) -> ShareDone {
    set_since(scene, selector, parts, SINCE)
        .await
        .expect("a reply")
}

async fn remove(scene: &mut Scene, selector: &str) -> ShareDone {
    let keys = scene.state.keys.clone();
    operator::share(
        &mut scene.state.conn,
        &keys,
        BY,
        selector,
        ShareStep::Remove,
    )
    .await
    .expect("a reply")
}

/// Returns the lines of a state after one change of a share: those of the shares, then the others.
fn lines(before: &[String], after: &[&str], action: &str) -> Vec<String> {
    let mut lines: Vec<String> = before.to_vec();
    lines.extend(after.iter().map(|line| (*line).to_owned()));
    lines.push("objects.with.events: ".to_owned());
    lines.push(format!("operator.actions: NOW action {action} id "));
    lines
}

fn group(name: &str, score: i64) -> String {
    format!("event.groups: {name} {score}")
}

/// A share without a valid selector, or without a valid value, does not count. A share of all
/// objects gives no group a priority.
#[tokio::test]
async fn only_valid_shares_count() {
    let (nine, valid) = ("a:b:c:d:e:f:g:h:i:*", "5 high 9 - - 7 0 ");
    let mut scene = scene(&[
        "*",
        "5 high - - - 7 0 ",
        nine,
        valid,
        "acme",
        valid,
        "bad:*",
        "5 high 9",
    ])
    .await;
    scene
        .put(
            "ZADD",
            "event.groups",
            &["5", "acme", "6", "a:b:c:d:e:f:g:h:i", "7", "bad"],
        )
        .await;
    assert_eq!(set(&mut scene, "x:*", WEIGHT).await, ShareDone::New);
    let groups = [
        group("acme", 5),
        group("a:b:c:d:e:f:g:h:i", 6),
        group("bad", 7),
    ];
    let shares = [
        "event.shares: * = 5 high - - - 7 0 ",
        "event.shares: a:b:c:d:e:f:g:h:i:* = 5 high 9 - - 7 0 ",
        "event.shares: acme = 5 high 9 - - 7 0 ",
        "event.shares: bad:* = 5 high 9",
        "event.shares: x:* = 2 - - - - NOW 3 adaa test",
        "event.shares.summary: 1 1 1700",
    ];
    assert_eq!(
        scene.shown().await,
        lines(&groups, &shares, "share-set who ada why a test object x:*")
    );
}

/// The summary says whether a share has a limit, and how many parts a prefix has. It keeps the time
/// since when objects in hand are counted.
#[tokio::test]
async fn the_summary_follows_each_change() {
    let mut scene = scene(&[]).await;
    for (selector, parts, done, summary) in [
        (
            "*",
            ShareParts {
                in_flight: Some(3),
                ..NONE
            },
            ShareDone::New,
            "2 0 1700",
        ),
        ("a:b:*", WEIGHT, ShareDone::New, "2 2 1700"),
        (
            "*",
            ShareParts {
                rate: Some(2.0),
                ..NONE
            },
            ShareDone::Again,
            "2 2 1700",
        ),
    ] {
        assert_eq!(set(&mut scene, selector, parts).await, done, "{selector}");
        assert_eq!(
            scene.items("event.shares.summary").await,
            [summary],
            "{selector}"
        );
    }
    assert_eq!(remove(&mut scene, "*").await, ShareDone::Removed);
    assert_eq!(scene.items("event.shares.summary").await, ["1 2 1700"]);
    // Without a valid summary, objects in hand are counted from now on.
    scene.put("SET", "event.shares.summary", &["1 2"]).await;
    scene
        .put("HSET", "event.shares", &["b:*", "5 high - - - 7 0 "])
        .await;
    assert_eq!(remove(&mut scene, "a:b:*").await, ShareDone::Removed);
    assert_eq!(scene.items("event.shares.summary").await, ["1 1 NOW"]);
}

/// A removed share leaves nothing, and the keys of other shares stay. With the last share, all keys
/// go that only shares need.
#[tokio::test]
async fn a_removed_share_leaves_the_keys_of_others() {
    let mut scene = scene(&["a:*", "5 high 9 - - 7 0 ", "b:*", "1 - - - - 7 0 "]).await;
    scene
        .put(
            "HSET",
            "event.shares.used",
            &["a:*", "9 8 7 6 5", "b:*", "5 4 3 2 1"],
        )
        .await;
    scene.put("SET", "event.groups.turns", &["7"]).await;
    scene.put("ZADD", "objects.in.hand", &["0", "b:1:"]).await;
    scene
        .put(
            "ZADD",
            "event.groups",
            &[&(3 - CLASS).to_string(), "a", "4", "b"],
        )
        .await;
    for _ in 0..2 {
        scene.put("ZADD", "event.groups.blocked", &["5", "a"]).await;
        let expected = [
            "event.groups: b 4",
            "event.groups: a 5",
            "event.groups.turns: 7",
            "event.shares: b:* = 1 - - - - 7 0 ",
            "event.shares.summary: 1 1 1700",
            "event.shares.used: b:* = 5 4 3 2 1",
            "objects.in.hand: b:1: 0",
        ];
        assert_eq!(remove(&mut scene, "a:*").await, ShareDone::Removed);
        assert_eq!(
            scene.shown().await,
            lines(&[], &expected, "share-remove who ada why a test object a:*")
        );
        // The share comes back with another priority, so that its group moves once more.
        scene.put("DEL", "operator.actions", &[]).await;
        scene.put("DEL", "objects.with.events", &[]).await;
        scene
            .put("HSET", "event.shares", &["a:*", "5 high 9 - - 7 0 "])
            .await;
        scene
            .put("ZADD", "event.groups", &[&(3 - CLASS).to_string(), "a"])
            .await;
    }
    scene.put("DEL", "event.groups.blocked", &[]).await;
    scene.put("HDEL", "event.shares", &["b:*"]).await;
    scene.put("ZADD", "event.groups.blocked", &["5", "a"]).await;
    assert_eq!(remove(&mut scene, "a:*").await, ShareDone::Removed);
    let expected = ["event.groups: b 4", "event.groups: a 5"];
    assert_eq!(
        scene.shown().await,
        lines(&[], &expected, "share-remove who ada why a test object a:*")
    );
    // A share that is not set changes nothing.
    assert_eq!(remove(&mut scene, "a:*").await, ShareDone::NotSet);
    assert_eq!(
        scene.shown().await,
        lines(&[], &expected, "share-remove who ada why a test object a:*")
    );
}

/// Objects in hand are counted from one time on, however often an operator asks. A share is set
/// only if they are counted since the time that the caller has.
#[tokio::test]
async fn a_share_is_set_for_one_count_of_the_objects_in_hand() {
    let mut scene = Scene::new().await;
    let keys = scene.state.keys.clone();
    let since = operator::count_in_hand(&mut scene.state.conn, &keys, BY)
        .await
        .expect("a time");
    assert!(
        (scene.began_ms..scene.began_ms + super::LONGEST_MS).contains(&since),
        "{since}"
    );
    assert_eq!(scene.shown().await, ["event.shares.summary: 0 0 NOW"]);
    scene
        .put("SET", "event.shares.summary", &["2 3 1700"])
        .await;
    assert_eq!(
        operator::count_in_hand(&mut scene.state.conn, &keys, BY)
            .await
            .expect("a time"),
        SINCE
    );
    for (summary, since) in [("2 3 1700", SINCE + 1), ("", SINCE)] {
        scene.put("SET", "event.shares.summary", &[summary]).await;
        assert_eq!(
            set_since(&mut scene, "x:*", WEIGHT, since)
                .await
                .expect("a reply"),
            ShareDone::Restart
        );
        assert_eq!(
            scene.shown().await,
            [format!("event.shares.summary: {summary}")]
        );
    }
}

/// Groups that wait for a limit rise to the lowest pass of those that have turns, also with the
/// first pass of their priority. Each priority counts alone.
#[tokio::test]
async fn groups_with_the_first_pass_of_a_priority_have_turns_again() {
    let mut scene = scene(&["high:*", "- high - - - 7 0 "]).await;
    let waiting = [
        ("high:1", PARKED - CLASS),
        ("high:2", PARKED - CLASS + 3),
        ("high:3", 10 - CLASS),
        ("a", PARKED),
        ("b", 2),
    ];
    for (name, score) in waiting {
        scene
            .put("ZADD", "event.groups", &[&score.to_string(), name])
            .await;
    }
    assert_eq!(set(&mut scene, "x:*", WEIGHT).await, ShareDone::New);
    let expected = [
        ("high:1", 10 - CLASS),
        ("high:3", 10 - CLASS),
        ("high:2", 13 - CLASS),
        ("a", 2),
        ("b", 2),
    ];
    assert_eq!(
        scene.items("event.groups").await,
        expected.map(|(name, score)| format!("{name} {score}"))
    );
}

/// A part of a prefix may be empty. The share of such a prefix has an effect on the group.
#[tokio::test]
async fn a_prefix_with_an_empty_part_gives_its_priority() {
    let mut scene = scene(&["a::*", "- high - - - 7 0 ", ":b:*", "- low - - - 7 0 "]).await;
    scene
        .put(
            "ZADD",
            "event.groups",
            &["5", "a::x", "6", "a:", "7", "a:x", "8", ":b:1", "9", "b:1"],
        )
        .await;
    assert_eq!(set(&mut scene, "x:*", WEIGHT).await, ShareDone::New);
    let expected = [
        ("a:", -CLASS),
        ("a::x", -CLASS),
        ("a:x", 7),
        ("b:1", 9),
        (":b:1", CLASS),
    ];
    assert_eq!(
        scene.items("event.groups").await,
        expected.map(|(name, score)| format!("{name} {score}"))
    );
}

/// A new rate waits at most for its burst: without one, for one event. No other value of the events
/// that were taken changes.
#[tokio::test]
async fn a_new_rate_without_a_burst_waits_for_one_event() {
    // An event takes 10^12 us, so that one millionth of it is a second.
    let (rate, event_us) = (
        ShareParts {
            rate: Some(0.000_001),
            ..NONE
        },
        1_000_000_000_000,
    );
    let mut scene = scene(&[]).await;
    assert_eq!(set(&mut scene, "a:*", rate).await, ShareDone::New);
    assert_eq!(scene.items("event.shares.used").await, [""; 0]);
    let used = [
        "b:*",
        "9 9000000000000000 3 2 1",
        "a:*",
        "9 9000000000000000 3 2 1",
    ];
    scene.put("HSET", "event.shares.used", &used).await;
    assert_eq!(set(&mut scene, "a:*", WEIGHT).await, ShareDone::Again);
    assert_eq!(
        scene.items("event.shares.used").await,
        [format!("a:* = {}", used[1]), format!("b:* = {}", used[1])]
    );
    let key = scene.state.keys.event_shares_used();
    let before_ms = scene.now_ms().await;
    for parts in [
        rate,
        ShareParts {
            burst: Some(1),
            ..rate
        },
    ] {
        assert_eq!(set(&mut scene, "a:*", parts).await, ShareDone::Again);
        let value: Vec<u8> = scene.console.run(&["HGET", &key, "a:*"]).await;
        let (text, after_ms) = (
            String::from_utf8_lossy(&value).into_owned(),
            scene.now_ms().await,
        );
        assert_eq!(ShareUsed::read(&value).taken, 9, "{text}");
        let tat_us: u64 = text
            .split(' ')
            .nth(1)
            .and_then(|tat| tat.parse().ok())
            .expect("a time");
        assert!(
            (before_ms * 1000 + event_us..=after_ms * 1000 + event_us).contains(&tat_us),
            "{text}"
        );
    }
    assert_eq!(
        scene.items("event.shares.used").await[1],
        format!("b:* = {}", used[1])
    );
}
