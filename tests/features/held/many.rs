//! Releasing many held objects at once. Story: after an outage of a sink an operator had to release
//! each object by name.

use std::time::Duration;

use seriatim::control::held::{ReleaseFilter, ReleasedAll};
use seriatim::control::{By, Control, ControlError};
use seriatim::wire::operator::{self, Record, ReleasedOne};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;
use crate::support::operator::{Reads, assert_denied, assert_wrong_type};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "known",
};
const DOWN: &str = "retry: connection refused";
const LATER: &str = "99999999999999";

/// Returns the names of the objects that no release has made due.
async fn waiting(console: &Console) -> Vec<String> {
    let held = console.keys.objects_held();
    let words = ["ZRANGEBYSCORE", &held, "5000000000000", "inf"];
    let mut objects: Vec<String> = console.run(&words).await;
    objects.sort();
    objects
}

/// Adds objects that wait for an operator.
async fn wait_for_operator(state: &mut State, objects: usize) {
    for n in 0..objects {
        let (object, why) = (format!("work:{n}"), format!("{} 1 1 0 attempts: x", n + 1));
        state.hold(&object, "inf", &["{}"], &why).await;
    }
}

/// Releases all held objects.
async fn release_all(control: &Control) -> Result<ReleasedAll, ControlError> {
    let all = ReleaseFilter::default();
    control.release_all(ADA, &all, |_| {}).await
}

/// Makes a call that releases these objects, and any reason counts. Returns what it has done to
/// each, and the row of its record.
async fn step(
    state: &mut State,
    until_released: bool,
    row: &str,
    objects: &[&str],
) -> (Vec<ReleasedOne>, String) {
    let filter = operator::ReleaseMany {
        until_released,
        text: "",
        over: Duration::ZERO,
    };
    let selected = b"*";
    let record = Record { selected, row };
    let step =
        operator::release_many(&mut state.conn, &state.keys, ADA, filter, record, objects).await;
    step.expect("an answer")
}

/// Held objects are released by prefix, by reason, by both, or all of them. A paused object stays
/// paused, and an object that is already due is only counted. Each release is recorded with its
/// object, id and reason. One marker per step wakes a worker.
#[tokio::test]
async fn held_objects_are_released_by_prefix_by_reason_and_all() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control) = (state.console(), state.control());
    for (at, (object, due, why)) in [
        ("work:1", LATER, DOWN),
        (
            "work:2",
            "inf",
            "attempts: failed 3 times, at last: connection refused",
        ),
        ("work:3", LATER, "retry: bad gateway"),
        ("page:1", LATER, DOWN),
        (
            "page:2",
            "inf",
            "crashes: died 5 times with this event in hand",
        ),
        ("page:3", LATER, "retry: 50% [off]"),
        ("page:4", "1", "takeover"),
    ]
    .into_iter()
    .enumerate()
    {
        let why = format!("{} 1 1 0 {why}", at + 1);
        state.hold(object, due, &["{}"], &why).await;
    }
    // A rule holds this object. Its entry in `objects.held` is a mistake, so a release must not use
    // it.
    state
        .rule("pause work:9", "1 0 0 3 0 adanot yet", "never")
        .await;
    let paused = "
        SET work:9:event.worker held; ZADD objects.paused 0 work:9
        ZADD objects.held 99999999999999 work:9
    ";
    state.add(paused).await;
    let release = |options: &str| redis.prints(&format!("held release {options}"));
    let refused = "--prefix work: --why refused --until-released --reason 'it is up'";
    assert_eq!(release(refused), "1 released\n");
    assert_eq!(
        waiting(&console).await,
        ["page:1", "page:2", "page:3", "work:1", "work:3", "work:9"]
    );
    let kept = control.recorded(32).await;
    let [kept] = &kept[..] else {
        panic!("{kept:?}")
    };
    let (action, object) = (kept.action.as_str(), kept.object.as_str());
    assert_eq!(
        (action, object, kept.id, kept.why.as_str()),
        ("release", "work:*", None, "it is up")
    );
    let many = kept.many.as_ref().expect("many");
    assert_eq!(
        serde_json::to_value(many).expect("JSON"),
        serde_json::json!({ "count": 1, "first": "work:2", "last": "work:2",
        "began_ms": kept.at_ms, "until_released": true, "held_why": "refused" })
    );
    assert_eq!(
        console.held_id("work:2").await.as_deref(),
        Some("2 1 1 0 attempts: failed 3 times, at last: connection refused")
    );
    // The reason is compared as plain text, not as a pattern.
    assert_eq!(release("--why '50% [off]'"), "1 released\n");
    assert_eq!(
        release("--why 'connection refused'"),
        "2 released, 1 were due already\n"
    );
    assert_eq!(waiting(&console).await, ["page:2", "work:3", "work:9"]);
    assert_eq!(release("--why timeout"), "0 released\n");
    // The record has the first 1,000 bytes of the condition.
    let long = "y".repeat(1500);
    let why = format!("9 1 1 0 attempts: {long}");
    state.hold("long", "inf", &["{}"], &why).await;
    assert_eq!(release(&format!("--why {long}")), "1 released\n");
    let newest = control.recorded(1).await.remove(0);
    let why = newest.many.and_then(|many| many.held_why);
    assert_eq!(why.expect("a reason").len(), 1000);
    assert_eq!(release("--all"), "2 released, 6 were due already\n");
    assert_eq!(waiting(&console).await, ["work:9"]);
    assert_eq!(console.markers().await, [""; 5]);
    assert_eq!(control.recorded(32).await.len(), 5);
    console.add("ZREM objects.held work:9").await;
    console.check().await;
}

/// Thousands of objects are released in bounded steps, and the library reports each step. A
/// repeated call releases no object.
#[tokio::test]
async fn thousands_are_released_in_steps() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    let mut fill = redis::pipe();
    for n in 0..2500 {
        let object = format!("work:{n}");
        let why = "0 0 0 0 crashes: died 5 times with this event in hand";
        fill.zadd(keys.objects_held(), &object, "inf").ignore();
        fill.set(keys.event_worker(&object), "held").ignore();
        fill.set(keys.events_held_id(&object), why).ignore();
    }
    fill.exec_async(&mut state.conn).await.expect("filled");
    let which = ReleaseFilter {
        until_released: true,
        ..ReleaseFilter::default()
    };
    let mut steps = Vec::new();
    let all = control
        .release_all(ADA, &which, |all| steps.push(all.released))
        .await
        .expect("released");
    assert_eq!((all.released, all.due), (2500, 0));
    let mut before = 0;
    for released in &steps {
        assert!(released - before <= 100, "{steps:?}");
        before = *released;
    }
    assert_eq!((before, waiting(&console).await.len()), (2500, 0));
    // All steps together leave one record, and a call that releases nothing leaves none.
    let again = release_all(&control).await.expect("released");
    assert_eq!((again.released, again.due), (0, 2500));
    let kept = control.recorded(32).await;
    let [release] = &kept[..] else {
        panic!("{kept:?}")
    };
    let many = release.many.as_ref().expect("many");
    assert_eq!((&release.object[..], many.count), ("*", 2500));
    assert_eq!((many.until_released, &many.held_why), (true, &None));
    assert!(many.first.starts_with("work:") && many.last.starts_with("work:"));
    assert_ne!(many.first, many.last);
    assert!(
        many.began_ms < release.at_ms && release.at_ms - many.began_ms < 60_000,
        "{many:?}"
    );
    let did = format!(
        "  did    2500: {} to {}; only those that waited for an operator\n",
        many.first, many.last
    );
    let printed = redis.prints("actions");
    assert!(
        printed.starts_with("release  *\n") && printed.contains(&did),
        "{printed}"
    );
    console.check().await;
}

/// The script checks each object in the step that releases it. The state may have changed since the
/// caller read it.
#[tokio::test]
async fn each_object_is_judged_in_the_step_that_releases_it() {
    use ReleasedOne::{Due, NotHeld, Other, Released};
    let (_redis, mut state) = Redis::start().with_state().await;
    let (console, control) = (state.console(), state.control());
    for (object, due, why) in [
        ("operator", "inf", "1 1 1 0 attempts: x"),
        ("retry", LATER, "2 1 1 0 retry: x"),
        ("due", "1", "3 1 1 0 retry: x"),
    ] {
        state.hold(object, due, &["{}"], why).await;
    }
    let objects = ["gone", "retry", "due", "operator"];
    let (words, row) = step(&mut state, true, "", &objects).await;
    assert_eq!(words, [NotHeld, Other, Other, Released]);
    let (words, next) = step(&mut state, false, &row, &objects).await;
    assert_eq!(words, [NotHeld, Released, Due, Due]);
    // A step that does nothing leaves the record as it is.
    let nothing = step(&mut state, false, &next, &["gone"]).await;
    assert_eq!(nothing, (vec![NotHeld], next.clone()));
    let kept = control.recorded(32).await;
    let [release] = &kept[..] else {
        panic!("{kept:?}")
    };
    let many = release.many.as_ref().expect("many");
    assert_eq!(
        (many.count, &many.first[..], &many.last[..]),
        (2, "operator", "retry")
    );
    assert_eq!(release.action_id.as_str(), next);
    assert!(row.starts_with(&format!("{}-", many.began_ms)), "{row}");
    assert_eq!(console.due("gone").await, None);
    console.check().await;
}

/// A wrong type or a missing right is found before the first object is released.
#[tokio::test]
async fn what_stands_in_the_way_is_told_first() {
    let (redis, mut state) = Redis::own(&[]).with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    state
        .hold("work:1", LATER, &["{}"], "1 1 1 0 retry: x")
        .await;
    for key in [keys.operator_actions(), keys.objects_paused()] {
        state.run("SET", &[&key, "wrong"]).await;
        assert_wrong_type(&release_all(&control).await, &key);
        state.run("DEL", &[&key]).await;
    }
    let weak = redis.control_without("xadd").await;
    assert_denied(&release_all(&weak).await, "xadd");
    assert_eq!(waiting(&console).await, ["work:1"]);
    for bad in [
        "",
        "--until-released",
        "work:1 --all",
        "work:1 --until-released",
        "--all --prefix work:",
        // An unset shell variable gives an empty prefix.
        "--prefix ''",
        // The prefix is written like the selector of a pause.
        "--prefix work:*",
        "--why ''",
    ] {
        assert_eq!(
            redis.exits(&format!("held release {bad}")),
            Some(2),
            "{bad}"
        );
    }
    assert_eq!(waiting(&console).await, ["work:1"]);
}

/// A step adds to no record of another operator or of another kind, and not to one that is gone.
#[tokio::test]
async fn a_step_adds_only_to_the_record_of_its_action() {
    let (_redis, mut state) = Redis::start().with_state().await;
    for (row, action, who, count) in [
        ("1-0", "release", "bob", "count 7 first a last b"),
        ("2-0", "retry", "ada", "count 7 first a last b"),
        ("3-0", "release", "ada", ""),
    ] {
        let fields = format!("action {action} who {who} why '' object * id '' {count}");
        let row = format!("XADD operator.actions {row} {fields}");
        state.add(&row).await;
    }
    wait_for_operator(&mut state, 5).await;
    for (n, row) in ["1-0", "2-0", "3-0", "4-0", ""].into_iter().enumerate() {
        let object = format!("work:{n}");
        let (words, _) = step(&mut state, false, row, &[&object]).await;
        assert_eq!(words, [ReleasedOne::Released]);
    }
    let kept = state.control().recorded(32).await;
    let counts = kept.iter().map(|action| action.many.as_ref());
    let counts: Vec<_> = counts
        .map(|many| many.map_or(0, |many| many.count))
        .collect();
    assert_eq!(counts, [1, 1, 1, 1, 1, 0, 7, 7]);
}

/// After `held release --all`, the receiver got the events of all objects in the same second. The
/// due times are now spread over a time, by default over 10 ms for each object.
#[tokio::test]
async fn released_objects_become_due_one_after_the_other() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    wait_for_operator(&mut state, 1000).await;
    let now_ms = async || console.run::<(f64, f64)>(&["TIME"]).await.0 * 1000.0;
    let began = now_ms().await;
    let all = release_all(&control).await.expect("released");
    let ended = now_ms().await + 1000.0;
    assert_eq!((all.released, all.over), (1000, Duration::from_secs(10)));
    let members: Vec<(String, f64)> = console
        .run(&["ZRANGE", &keys.objects_held(), "0", "-1", "WITHSCORES"])
        .await;
    let dues = || members.iter().map(|(_, due)| *due);
    assert!(
        dues().all(|due| due >= began && due <= ended + 10_000.0),
        "{began} {ended} {members:?}"
    );
    let mut seconds = std::collections::BTreeMap::new();
    dues().for_each(|due| *seconds.entry((due / 1000.0) as u64).or_insert(0) += 1);
    assert!(
        seconds.len() >= 10 && seconds.values().all(|objects| *objects <= 200),
        "{seconds:?}"
    );
    // A second call changes nothing, because all objects are due within this time.
    let over = async |over: Duration| {
        let filter = ReleaseFilter {
            over: Some(over),
            ..ReleaseFilter::default()
        };
        let all = control.release_all(ADA, &filter, |_| {}).await;
        all.expect("released")
    };
    let again = over(all.over + Duration::from_secs(60)).await;
    assert_eq!((again.released, again.due), (0, 1000));
    over(Duration::ZERO).await;
    let soon = (now_ms().await + 1000.0).to_string();
    let words = ["ZCOUNT", &keys.objects_held(), "-inf", &soon];
    assert_eq!(console.run::<u64>(&words).await, 1000);
}

/// The command spreads the due times, too, and --over sets the time.
#[tokio::test]
async fn the_command_spreads_the_due_times() {
    for (over, spread_ms) in [("", 2_000.0), ("--over 2m", 120_000.0), ("--over 0s", 0.0)] {
        let (redis, mut state) = Redis::start().with_state().await;
        wait_for_operator(&mut state, 200).await;
        let output = redis.run(&format!("held release --all {over}"));
        let [printed, progress] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
        assert!(printed.starts_with("200 released"), "{over}: {printed}");
        // On a slow host, the command prints its progress.
        assert!(
            progress
                .lines()
                .all(|line| line.ends_with(" released so far")),
            "{progress}"
        );
        assert_eq!(output.status.code(), Some(0));
        let console = redis.console().await;
        let ends = async |at: &str| -> f64 {
            let member: Vec<(String, f64)> = console
                .run(&["ZRANGE", &redis.keys().objects_held(), at, at, "WITHSCORES"])
                .await;
            member[0].1
        };
        let width = ends("-1").await - ends("0").await;
        // The objects of a step are due at different times between 0 and `over` from this step on.
        assert!(
            width >= 0.8 * spread_ms && width <= spread_ms + 2_000.0,
            "{over}: {width} ms"
        );
    }
}
