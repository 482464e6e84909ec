//! `share`: which shares count, and what a change leaves of the other keys.

use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, ShareDone, ShareParts, ShareStep};
use seriatim::wire::values::ShareUsed;

use super::{BY, acted, given};
use crate::scene::Scene;

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

/// Returns a scene with a summary and these keys.
async fn scene(keys: &str) -> Scene {
    given(&format!("SET event.shares.summary '0 0 {SINCE}'; {keys}")).await
}

async fn set_since(
    scene: &Scene,
    selector: &str,
    parts: ShareParts,
    since: u64,
) -> Result<ShareDone, ScriptError> {
    let counted_since = since;
    let step = ShareStep::Set {
        counted_since,
        parts,
    };
    operator::share(&mut scene.conn().await, &scene.keys, BY, selector, step).await
}

async fn set(scene: &Scene, selector: &str, parts: ShareParts) -> ShareDone {
    let done = set_since(scene, selector, parts, SINCE).await;
    done.expect("a reply")
}

async fn remove(scene: &Scene, selector: &str) -> ShareDone {
    let (mut conn, step) = (scene.conn().await, ShareStep::Remove);
    let done = operator::share(&mut conn, &scene.keys, BY, selector, step).await;
    done.expect("a reply")
}

/// Returns the commands that give these groups.
fn groups(groups: &[(&str, i64)]) -> String {
    let group = |(name, score): &(&str, i64)| format!(" {score} {name}");
    let groups: String = groups.iter().map(group).collect();
    format!("ZADD event.groups{groups}; ")
}

/// Returns the change to these groups.
fn groups_are(groups: &[(&str, i64)]) -> String {
    let group = |(name, score): &(&str, i64)| format!("{name}: {score}");
    let groups: Vec<_> = groups.iter().map(group).collect();
    format!("event.groups = <{}>\n", groups.join(", "))
}

/// The changes of each call that sets the share `x:*` to [`WEIGHT`], beside those to all shares.
fn set_x() -> String {
    "objects.with.events = []\n".to_owned() + &acted("share-set", "x:* id ")
}

/// A share without a valid selector, or without a valid value, does not count. A share of all
/// objects gives no group a priority.
#[tokio::test]
async fn only_valid_shares_count() {
    let keys = "
        HSET event.shares * '5 high - - - 7 0 ' a:b:c:d:e:f:g:h:i:* '5 high 9 - - 7 0 '
        HSET event.shares acme '5 high 9 - - 7 0 ' bad:* '5 high 9'
        ZADD event.groups 5 acme 6 a:b:c:d:e:f:g:h:i 7 bad
    ";
    let scene = scene(keys).await;
    assert_eq!(set(&scene, "x:*", WEIGHT).await, ShareDone::New);
    let changes = "
        event.shares = {*: 5 high - - - 7 0 , a:b:c:d:e:f:g:h:i:*: 5 high 9 - - 7 0 , acme: 5 high 9 - - 7 0 , bad:*: 5 high 9, x:*: 2 - - - - NOW 3 adaa test}
        event.shares.summary = 1 1 1700
    ";
    scene.changed(&(changes.to_owned() + &set_x())).await;
}

/// The summary says whether a share has a limit, and how many parts a prefix has. It keeps the time
/// since when objects in hand are counted.
#[tokio::test]
async fn the_summary_follows_each_change() {
    let (in_flight, rate) = (Some(3), Some(2.0));
    let (in_flight, rate) = (
        ShareParts { in_flight, ..NONE },
        ShareParts { rate, ..NONE },
    );
    let scene = scene("").await;
    let summary = "event.shares.summary";
    for (selector, parts, done, expected) in [
        ("*", in_flight, ShareDone::New, "2 0 1700"),
        ("a:b:*", WEIGHT, ShareDone::New, "2 2 1700"),
        ("*", rate, ShareDone::Again, "2 2 1700"),
    ] {
        assert_eq!(set(&scene, selector, parts).await, done, "{selector}");
        assert_eq!(scene.at(summary).await, expected, "{selector}");
    }
    assert_eq!(remove(&scene, "*").await, ShareDone::Removed);
    assert_eq!(scene.at(summary).await, "1 2 1700");
    // Without a valid summary, objects in hand are counted from now on.
    let given = "SET event.shares.summary '1 2'; HSET event.shares b:* '5 high - - - 7 0 '";
    scene.add(given).await;
    assert_eq!(remove(&scene, "a:b:*").await, ShareDone::Removed);
    assert_eq!(scene.at(summary).await, "1 1 NOW");
}

/// A removed share leaves nothing, and the keys of other shares stay. With the last share, all keys
/// go that only shares need.
#[tokio::test]
async fn a_removed_share_leaves_the_keys_of_others() {
    let keys = "
        HSET event.shares a:* '5 high 9 - - 7 0 ' b:* '1 - - - - 7 0 '
        HSET event.shares.used a:* '9 8 7 6 5' b:* '5 4 3 2 1'; SET event.groups.turns 7
        ZADD objects.in.hand 0 b:1:; ZADD event.groups.blocked 5 a
    ";
    let removed = "objects.with.events = []\n".to_owned() + &acted("share-remove", "a:* id ");
    let given_groups = groups(&[("a", 3 - CLASS), ("b", 4)]);
    let scene = scene(&(given_groups.clone() + keys)).await;
    assert_eq!(remove(&scene, "a:*").await, ShareDone::Removed);
    let changes = "
        event.groups = <b: 4, a: 5>
        event.groups.blocked = nil
        event.shares = {b:*: 1 - - - - 7 0 }
        event.shares.summary = 1 1 1700
        event.shares.used = {b:*: 5 4 3 2 1}
    ";
    scene.changed(&(changes.to_owned() + &removed)).await;
    // The share comes back with another priority, so that its group moves once more.
    let back = "
        HSET event.shares a:* '5 high 9 - - 7 0 '; ZADD event.groups.blocked 5 a
        DEL operator.actions; DEL objects.with.events
    ";
    scene.add(&(given_groups + back)).await;
    assert_eq!(remove(&scene, "a:*").await, ShareDone::Removed);
    let changes = "
        event.groups = <b: 4, a: 5>
        event.groups.blocked = nil
        event.shares = {b:*: 1 - - - - 7 0 }
    ";
    scene.changed(&(changes.to_owned() + &removed)).await;
    let last = "
        HDEL event.shares b:*; HSET event.shares a:* '5 high 9 - - 7 0 '
        ZADD event.groups.blocked 5 a; DEL operator.actions; DEL objects.with.events
    ";
    scene.add(&(groups(&[("a", 3 - CLASS)]) + last)).await;
    assert_eq!(remove(&scene, "a:*").await, ShareDone::Removed);
    let changes = "
        event.groups = <b: 4, a: 5>
        event.groups.blocked = nil
        event.groups.turns = nil
        event.shares = nil
        event.shares.summary = nil
        event.shares.used = nil
        objects.in.hand = nil
    ";
    scene.changed(&(changes.to_owned() + &removed)).await;
    // A share that is not set changes nothing.
    assert_eq!(remove(&scene, "a:*").await, ShareDone::NotSet);
    scene.changed("").await;
}

/// Objects in hand are counted from one time on, however often an operator asks. A share is set
/// only if they are counted since the time that the caller has.
#[tokio::test]
async fn a_share_is_set_for_one_count_of_the_objects_in_hand() {
    let scene = given("").await;
    let count = async || {
        let since = operator::count_in_hand(&mut scene.conn().await, &scene.keys, BY).await;
        since.expect("a time")
    };
    assert!(scene.is_now(count().await));
    scene.changed("event.shares.summary = 0 0 NOW").await;
    scene.add("SET event.shares.summary '2 3 1700'").await;
    assert_eq!(count().await, SINCE);
    scene.changed("").await;
    for (summary, since) in [("2 3 1700", SINCE + 1), ("", SINCE)] {
        scene
            .again(&format!("SET event.shares.summary '{summary}'"))
            .await;
        let done = set_since(&scene, "x:*", WEIGHT, since).await;
        assert_eq!(done.expect("a reply"), ShareDone::Restart);
        scene.changed("").await;
    }
}

/// Groups that wait for a limit rise to the lowest pass of those that have turns, also with the
/// first pass of their priority. Each priority counts alone.
#[tokio::test]
async fn groups_with_the_first_pass_of_a_priority_have_turns_again() {
    let waiting = groups(&[
        ("high:1", PARKED - CLASS),
        ("high:2", PARKED - CLASS + 3),
        ("high:3", 10 - CLASS),
        ("a", PARKED),
        ("b", 2),
    ]);
    let scene = scene(&(waiting + "HSET event.shares high:* '- high - - - 7 0 '")).await;
    assert_eq!(set(&scene, "x:*", WEIGHT).await, ShareDone::New);
    let expected = groups_are(&[
        ("high:1", 10 - CLASS),
        ("high:3", 10 - CLASS),
        ("high:2", 13 - CLASS),
        ("a", 2),
        ("b", 2),
    ]);
    let changes = "
        event.shares = {high:*: - high - - - 7 0 , x:*: 2 - - - - NOW 3 adaa test}
        event.shares.summary = 1 1 1700
    ";
    scene.changed(&(expected + changes + &set_x())).await;
}

/// A part of a prefix may be empty. The share of such a prefix has an effect on the group.
#[tokio::test]
async fn a_prefix_with_an_empty_part_gives_its_priority() {
    let keys = "
        HSET event.shares a::* '- high - - - 7 0 ' :b:* '- low - - - 7 0 '
        ZADD event.groups 5 a::x 6 a: 7 a:x 8 :b:1 9 b:1
    ";
    let scene = scene(keys).await;
    assert_eq!(set(&scene, "x:*", WEIGHT).await, ShareDone::New);
    let expected = groups_are(&[
        ("a:", -CLASS),
        ("a::x", -CLASS),
        ("a:x", 7),
        ("b:1", 9),
        (":b:1", CLASS),
    ]);
    let changes = "
        event.shares = {:b:*: - low - - - 7 0 , a::*: - high - - - 7 0 , x:*: 2 - - - - NOW 3 adaa test}
        event.shares.summary = 1 2 1700
    ";
    scene.changed(&(expected + changes + &set_x())).await;
}

/// A new rate waits at most for its burst: without one, for one event. No other value of the events
/// that were taken changes.
#[tokio::test]
async fn a_new_rate_without_a_burst_waits_for_one_event() {
    // An event takes 10^12 us, so that one millionth of it is a second.
    let (rate, event_us) = (Some(0.000_001), 1_000_000_000_000);
    let rate = ShareParts { rate, ..NONE };
    let scene = scene("").await;
    assert_eq!(set(&scene, "a:*", rate).await, ShareDone::New);
    assert_eq!(scene.at("event.shares.used").await, "nil");
    let used = "9 9000000000000000 3 2 1";
    let given = format!("HSET event.shares.used b:* '{used}' a:* '{used}'");
    scene.add(&given).await;
    assert_eq!(set(&scene, "a:*", WEIGHT).await, ShareDone::Again);
    let both = format!("{{a:*: {used}, b:*: {used}}}");
    assert_eq!(scene.at("event.shares.used").await, both);
    let burst = Some(1);
    let before_ms = scene.now_ms().await;
    for parts in [rate, ShareParts { burst, ..rate }] {
        assert_eq!(set(&scene, "a:*", parts).await, ShareDone::Again);
        let key = scene.keys.event_shares_used();
        let all: Vec<(String, String)> = scene.run(&["HGETALL", &key]).await;
        let of = |selector: &str| all.iter().find(|(field, _)| field == selector);
        let (text, after_ms) = (&of("a:*").expect("a value").1, scene.now_ms().await);
        assert_eq!(ShareUsed::read(text.as_bytes()).taken, 9, "{text}");
        let tat_us = text.split(' ').nth(1).and_then(|tat| tat.parse().ok());
        let times = before_ms * 1000 + event_us..=after_ms * 1000 + event_us;
        assert!(times.contains(&tat_us.expect("a time")), "{text}");
        assert_eq!((all.len(), &of("b:*").expect("a value").1[..]), (2, used));
    }
}
