//! Promotion of schedules, tested one call at a time.

use std::time::Duration;

use seriatim::keys::Keys;
use seriatim::wire::{self, Promoted, ScriptError};

use crate::scene::{Scene, bounds};
use crate::support::{Redis, assert_matches};

const MIB: usize = 1 << 20;

async fn promote(scene: &Scene, events: usize, bytes: usize) -> Promoted {
    let promoted = try_promote(scene, events, bytes).await;
    promoted.expect("a reply")
}

async fn try_promote(scene: &Scene, events: usize, bytes: usize) -> Result<Promoted, ScriptError> {
    wire::promote(&mut scene.conn().await, &scene.keys, events, bytes).await
}

/// Returns the commands that store a schedule as a producer does. The due time is in ms since 1970.
fn schedule(object: &str, key: &str, time: u64, event: &str) -> String {
    let hash = format!("HSET {object}:events.scheduled {key} {event}");
    format!("{hash}; ZADD events.scheduled {time} '{object}\n{key}'; ")
}

/// Returns a scene without a process, with these keys.
async fn given(commands: &str) -> Scene {
    let scene = Scene::bare(Redis::start()).await;
    scene.add(commands).await;
    scene
}

#[tokio::test]
async fn a_call_takes_its_events_and_bytes_and_says_when_the_next_is_due() {
    let small = |n: u64| schedule("work:1", &format!("-{n}"), n, &n.to_string());
    let scene = given(&(1..=5).map(small).collect::<String>()).await;
    let [big, bigger] = ["2", "3"].map(|event| event.repeat(3000));
    scene.add(&schedule("work:2", "-big", 6, &big)).await;
    scene.add(&schedule("work:2", "-bigger", 7, &bigger)).await;
    let late = schedule("work:2", "late", 99_999_999_999_999, "9");
    scene.add(&late).await;
    let first = promote(&scene, 3, MIB).await;
    assert_eq!((first.events, first.markers, first.names), (3, 1, 0));
    assert_eq!(first.next_due, Some(Duration::ZERO));
    assert_eq!(scene.at("work:1:events").await, "[1, 2, 3]");
    // Two small events, and the one that exceeds the bytes.
    assert_eq!(promote(&scene, 100, 2000).await.events, 3);
    let last = promote(&scene, 100, MIB).await;
    assert_eq!(last.events, 1);
    let far = Duration::from_secs(1_000_000);
    assert!(last.next_due.is_some_and(|due| due > far), "{last:?}");
    let markers = "[work:1, work:1, work:2, work:2]";
    assert_eq!(scene.at("objects.with.events").await, markers);
    let lateness = "events.scheduled.lateness";
    assert_eq!(scene.at(lateness).await, "{inf: 7}");
    // A schedule that is due at once has no due time, so no lateness is counted.
    scene.add(&schedule("work:3", "-now", 0, "0")).await;
    assert_eq!(promote(&scene, 100, MIB).await.events, 1);
    assert_eq!(scene.at(lateness).await, "{inf: 7}");
    assert_eq!(promote(&scene, 100, MIB).await.events, 0);
    scene.check().await;
}

/// Wrong schedules stop no other schedule. The queue of `bad:1` and the hash of schedules of
/// `bad:2` have a wrong type. Other entries have no event, or name no object.
#[tokio::test]
async fn an_event_that_cannot_be_queued_stays_and_stops_no_other() {
    let keys = "
        SET bad:1:events x; SET bad:2:events.scheduled x
        ZADD events.scheduled 2 'bad:2\nk' 3 'gone:1\nk' 4 odd 5 '\nk'
    ";
    let scene = given(keys).await;
    scene.add(&schedule("bad:1", "k", 1, "1")).await;
    scene.add(&schedule("work:1", "k", 6, "6")).await;
    let done = promote(&scene, 100, MIB).await;
    assert_eq!((done.events, done.wrong_count), (1, 5));
    let wrong = done.wrong.iter().map(|(member, why)| {
        let why = why.split(' ').next().unwrap_or_default();
        format!("{} {why}", String::from_utf8_lossy(member))
    });
    let expected = [
        "bad:1\nk wrong",
        "bad:2\nk wrong",
        "gone:1\nk absent",
        "odd name",
        "\nk name",
    ];
    assert_eq!(wrong.collect::<Vec<_>>(), expected);
    let due = done.next_due.expect("a time");
    assert!((55..=60).contains(&due.as_secs()), "{due:?}");
    assert_eq!(scene.at("work:1:events").await, "[\\0queued NOW_US k]");
    let left = scene.scores("events.scheduled").await;
    let left: Vec<_> = left.iter().map(|(member, _)| member.as_str()).collect();
    assert_eq!(left, ["work:1\nk", "bad:1\nk", "bad:2\nk"]);
    // An operator deletes the queue of a wrong type.
    let repaired = "DEL bad:1:events; ZADD events.scheduled 1 'bad:1\nk'";
    scene.add(repaired).await;
    assert_eq!(promote(&scene, 100, MIB).await.events, 1);
    assert_eq!(scene.at("bad:1:events").await, "[\\0queued NOW_US k]");
}

/// For a worker without a namespace, a name that begins with a brace may be an object of a
/// namespace. Its schedule is not promoted.
#[tokio::test]
async fn the_schedules_of_another_namespace_are_left_alone() {
    let scene = Scene::bare_under(Keys::new()).await;
    let other = "HSET {shop:0}:work:1:events.scheduled k 1";
    let schedule = "ZADD events.scheduled 1 '{shop:0}:work:1\nk'";
    scene.add(&format!("{other}; {schedule}")).await;
    let done = promote(&scene, 10, MIB).await;
    assert_eq!((done.events, done.wrong.len(), done.next_due), (0, 1, None));
    scene.changed("events.scheduled = nil").await;
}

/// Story: a million overdue events were queued before a slow worker, 256 events ten times a second.
/// An event that was emitted later waited behind all of them.
#[tokio::test]
async fn with_many_markers_few_schedules_are_promoted() {
    let schedule = |n| schedule(&format!("work:{n}"), "k", 1, "1");
    let scene = given(&(0..300).map(schedule).collect::<String>()).await;
    let markers = " busy:1".repeat(900);
    scene
        .add(&format!("LPUSH objects.with.events{markers}"))
        .await;
    let first = promote(&scene, 256, MIB).await;
    // There are up to 1,000 markers.
    assert_eq!((first.events, first.markers), (100, 1000));
    assert_eq!(promote(&scene, 256, MIB).await.events, 8);
}

/// Story: for a queue of a wrong type, 256 schedules of 1 MiB each took Redis a second, every
/// minute. The worker's log had a line for each of them.
#[tokio::test]
async fn events_that_cannot_be_queued_are_not_read() {
    let scene = Scene::bare(Redis::own(&[])).await;
    let schedule = |n| schedule("bad:1", &format!("k{n}"), 1, "1");
    scene.add(&(0..100).map(schedule).collect::<String>()).await;
    scene.add("SET bad:1:events x").await;
    scene.count_calls().await;
    let done = promote(&scene, 256, MIB).await;
    assert_eq!((done.events, done.wrong_count), (0, 100));
    assert_eq!(done.wrong.len(), 16);
    assert_eq!(scene.calls_of("hget").await, 0);
}

/// Story: if the key of a statistic had a wrong type, no schedule was promoted. And each of many
/// wakes cost one call.
#[tokio::test]
async fn a_wrong_statistic_and_many_wakes_stop_nothing() {
    let wakes: String = (0..50).map(|n| format!(" 0 {n}")).collect();
    let wakes = format!("ZADD events.scheduled.wake{wakes}; ");
    let scene = given(&(wakes + &schedule("work:1", "k", 1, "1"))).await;
    scene.add("SET events.scheduled.lateness x").await;
    assert_eq!(promote(&scene, 256, MIB).await.events, 1);
    assert_eq!(scene.at("events.scheduled.wake").await, "nil");
}

/// Story: a Redis user lost the right to HDEL. So an event was pushed without a marker, and was
/// pushed again later.
#[tokio::test]
async fn without_a_right_nothing_is_pushed() {
    let scene = Scene::bare(Redis::own(&[])).await;
    scene.add(&schedule("work:1", "k", 1, "1")).await;
    scene.login("~* +@all -hdel").await;
    let denied = try_promote(&scene, 10, MIB).await;
    assert_matches!(denied, Err(ScriptError::Denied(command)) if command == "HDEL");
    scene.changed("").await;
}

/// A Redis user may not write to the queue of one object. The error names the refused command, and
/// the schedule stays.
#[tokio::test]
async fn a_push_that_is_refused_is_told() {
    let scene = Scene::bare(Redis::own(&[])).await;
    scene.add(&schedule("work:1", "-1", 1, "1")).await;
    let schedules = scene.keys.events_scheduled();
    scene.login(&format!("+@all %R~* ~{schedules}*")).await;
    let refused = try_promote(&scene, 10, MIB).await;
    let refused = refused.expect_err("it may not push").to_string();
    // Redis and Valkey word this error differently.
    let words = ["access", "ermission", "NOPERM"];
    assert!(words.iter().any(|word| refused.contains(word)), "{refused}");
    assert_eq!(scene.at("work:1:events").await, "nil");
    assert_eq!(scene.scores("events.scheduled").await.len(), 1);
}

/// Story: the object was paused, and its key was replaced again and again after the event was
/// queued. Each time a reference stayed in the queue. A call removes only a bounded number of such
/// references, and loses no event behind them.
#[tokio::test]
async fn references_that_lead_nowhere_are_passed_over_in_bounded_calls() {
    let references: String = (0..700).map(|n| format!(" '\0queued {n} k'")).collect();
    let queue = format!("LPUSH work:1:events{references} 1 2");
    let scene = Scene::given(&format!("{queue}; LPUSH objects.with.events work:1")).await;
    let four = bounds(|b| b.claims = 4);
    for queued in [446, 190, 0] {
        let answer = scene.free(0..4, four).await;
        let words = ["LLEN", &scene.keys.events("work:1")];
        let left: usize = scene.run(&words).await;
        assert_eq!((left, answer.more), (queued, queued > 0));
        let expected: &[&str] = if queued > 0 {
            &[]
        } else {
            &["0 work:1 1 after 0: 1 2"]
        };
        assert_eq!(answer.batches(), expected);
    }
    // The bound is for the whole call, not for each object.
    let object = |n| {
        let queue = format!("LPUSH user:{n}:events '\0queued 1 k' '\0queued 2 k'");
        format!("{queue}; LPUSH objects.with.events user:{n}; ")
    };
    scene.add(&(0..300).map(object).collect::<String>()).await;
    let many = bounds(|b| (b.claims, b.markers) = (512, 4096));
    scene.free(1..512, many).await;
    let words = ["LLEN", &scene.keys.objects_with_events()];
    let markers: usize = scene.run(&words).await;
    // Two references of each object, 256 in all.
    assert_eq!(markers, 300 - 128);
}

/// A key comes due again. Its new reference replaces an older one only if the older one is the
/// newest entry of the queue.
#[tokio::test]
async fn a_key_that_is_due_again_leaves_one_reference_if_nothing_was_queued_between() {
    let scene = given("").await;
    for key in ["k", "k", "other", "k", "k"] {
        scene.add(&schedule("work:1", key, 1, "1")).await;
        assert_eq!(promote(&scene, 10, MIB).await.events, 1);
    }
    let queue = "[\\0queued NOW_US k, \\0queued NOW_US other, \\0queued NOW_US k]";
    assert_eq!(scene.at("work:1:events").await, queue);
    scene.check().await;
}
