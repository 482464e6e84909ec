//! Releasing many held objects at once. Story: after an outage of a sink an operator had to release
//! each object by name.

use std::process::{Command, Output};
use std::time::Duration;

use seriatim::control::held::ReleaseFilter;
use seriatim::control::{By, ControlError};
use seriatim::wire::operator::{self, Record, ReleasedOne};

use crate::state::State;
use crate::support::{Redis, control};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "known",
};
const DOWN: &str = "retry: connection refused";
const LATER: &str = "99999999999999";

fn seriatim(redis: &Redis, arguments: &[&str]) -> Output {
    let mut program = Command::new(crate::support::program());
    program
        .args([
            "--redis",
            redis.url(),
            "--namespace",
            redis.namespace(),
            "held",
            "release",
        ])
        .args(arguments);
    program
        .env_remove("SERIATIM_REDIS")
        .env_remove("SERIATIM_NAMESPACE")
        .output()
        .expect("the program runs")
}

fn done(redis: &Redis, arguments: &[&str]) -> String {
    let output = seriatim(redis, arguments);
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{output:?}"
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

async fn empty() -> (Redis, State) {
    let redis = Redis::start();
    let state = State::new(redis.connect().await, redis.keys().clone());
    (redis, state)
}

/// Returns the names of the objects that no release has made due.
async fn waiting(redis: &Redis) -> Vec<String> {
    let mut objects: Vec<String> = redis
        .console()
        .await
        .run(&[
            "ZRANGEBYSCORE",
            &redis.keys().objects_held(),
            "5000000000000",
            "inf",
        ])
        .await;
    objects.sort();
    objects
}

/// Held objects are released by prefix, by reason, by both, or all of them. A paused object stays
/// paused, and an object that is already due is only counted. Each release is recorded with its
/// object, id and reason. One marker per step wakes a worker.
#[tokio::test]
async fn held_objects_are_released_by_prefix_by_reason_and_all() {
    let (redis, mut state) = empty().await;
    let keys = redis.keys().clone();
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
        state
            .hold(object, due, &["{}"], &format!("{} 1 1 0 {why}", at + 1))
            .await;
    }
    // A rule holds this object. Its entry in `objects.held` is a mistake, so a release must not use
    // it.
    state
        .rule("pause work:9", "1 0 0 3 0 adanot yet", "never")
        .await;
    state
        .add("SET work:9:event.worker held; ZADD objects.paused 0 work:9")
        .await;
    state
        .run("ZADD", &[&keys.objects_held(), LATER, "work:9"])
        .await;
    assert_eq!(
        done(
            &redis,
            &[
                "--prefix",
                "work:",
                "--why",
                "refused",
                "--until-released",
                "--reason",
                "it is up"
            ]
        ),
        "1 released\n"
    );
    assert_eq!(
        waiting(&redis).await,
        ["page:1", "page:2", "page:3", "work:1", "work:3", "work:9"]
    );
    let kept = control(&state.conn, &keys)
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    let [release] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(
        (
            release.action.as_str(),
            release.object.as_str(),
            release.id,
            release.why.as_str()
        ),
        ("release", "work:*", None, "it is up")
    );
    let many = release.many.as_ref().expect("many");
    assert_eq!(
        serde_json::to_value(many).expect("JSON"),
        serde_json::json!({ "count": 1, "first": "work:2", "last": "work:2",
        "began_ms": release.at_ms, "until_released": true, "held_why": "refused" })
    );
    assert_eq!(
        redis.console().await.held_id("work:2").await.as_deref(),
        Some("2 1 1 0 attempts: failed 3 times, at last: connection refused")
    );
    // The reason is compared as plain text, not as a pattern.
    assert_eq!(done(&redis, &["--why", "50% [off]"]), "1 released\n");
    assert_eq!(
        done(&redis, &["--why", "connection refused"]),
        "2 released, 1 were due already\n"
    );
    assert_eq!(waiting(&redis).await, ["page:2", "work:3", "work:9"]);
    assert_eq!(done(&redis, &["--why", "timeout"]), "0 released\n");
    // The record has the first 1,000 bytes of the condition.
    let long = "y".repeat(1500);
    state
        .hold("long", "inf", &["{}"], &format!("9 1 1 0 attempts: {long}"))
        .await;
    assert_eq!(done(&redis, &["--why", &long]), "1 released\n");
    let newest = control(&state.conn, &keys)
        .actions(None, 1)
        .await
        .expect("the actions")
        .actions
        .remove(0);
    assert_eq!(
        newest
            .many
            .and_then(|many| many.held_why)
            .map_or(0, |why| why.len()),
        1000
    );
    assert_eq!(done(&redis, &["--all"]), "2 released, 6 were due already\n");
    assert_eq!(waiting(&redis).await, ["work:9"]);
    assert_eq!(
        redis
            .console()
            .await
            .list(&keys.objects_with_events())
            .await,
        ["", "", "", "", ""]
    );
    assert_eq!(
        control(&state.conn, &keys)
            .actions(None, 32)
            .await
            .expect("the actions")
            .actions
            .len(),
        5
    );
    redis
        .console()
        .await
        .run::<u64>(&["ZREM", &keys.objects_held(), "work:9"])
        .await;
    redis.console().await.check().await;
}

/// Thousands of objects are released in bounded steps, and the library reports each step. A
/// repeated call releases no object.
#[tokio::test]
async fn thousands_are_released_in_steps() {
    let (redis, mut state) = empty().await;
    let keys = redis.keys().clone();
    let mut fill = redis::pipe();
    for n in 0..2500 {
        let object = format!("work:{n}");
        fill.cmd("ZADD")
            .arg(keys.objects_held())
            .arg("inf")
            .arg(&object)
            .ignore();
        fill.cmd("SET")
            .arg(keys.event_worker(&object))
            .arg("held")
            .ignore();
        fill.cmd("SET")
            .arg(keys.events_held_id(&object))
            .arg("0 0 0 0 crashes: died 5 times with this event in hand")
            .ignore();
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
    let which = ReleaseFilter {
        until_released: true,
        ..ReleaseFilter::default()
    };
    let mut steps = Vec::new();
    let all = control(&state.conn, &keys)
        .release_all(ADA, &which, |all| steps.push(all.released))
        .await
        .expect("released");
    assert_eq!((all.released, all.due), (2500, 0));
    let mut before = 0;
    for released in &steps {
        assert!(released - before <= 100, "{steps:?}");
        before = *released;
    }
    assert_eq!((before, waiting(&redis).await.len()), (2500, 0));
    // All steps together leave one record, and a call that releases nothing leaves none.
    let again = control(&state.conn, &keys)
        .release_all(ADA, &ReleaseFilter::default(), |_| {})
        .await
        .expect("released");
    assert_eq!((again.released, again.due), (0, 2500));
    let kept = control(&state.conn, &keys)
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    let [release] = &kept[..] else {
        panic!("{kept:?}")
    };
    let many = release.many.as_ref().expect("many");
    assert_eq!(
        (
            release.object.as_str(),
            many.count,
            many.until_released,
            &many.held_why
        ),
        ("*", 2500, true, &None)
    );
    assert!(
        many.first.starts_with("work:")
            && many.last.starts_with("work:")
            && many.first != many.last,
        "{many:?}"
    );
    assert!(
        many.began_ms < release.at_ms && release.at_ms - many.began_ms < 60_000,
        "{many:?}"
    );
    let output = Command::new(crate::support::program())
        .args([
            "--redis",
            redis.url(),
            "--namespace",
            redis.namespace(),
            "actions",
        ])
        .output()
        .expect("the program runs");
    let did = format!(
        "  did    2500: {} to {}; only those that waited for an operator\n",
        many.first, many.last
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.starts_with("release  *\n") && printed.contains(&did),
        "{printed}"
    );
    redis.console().await.check().await;
}

/// The script checks each object in the step that releases it. The state may have changed since the
/// caller read it.
#[tokio::test]
async fn each_object_is_judged_in_the_step_that_releases_it() {
    let (redis, mut state) = empty().await;
    let keys = redis.keys().clone();
    state
        .hold("operator", "inf", &["{}"], "1 1 1 0 attempts: x")
        .await;
    state
        .hold("retry", LATER, &["{}"], "2 1 1 0 retry: x")
        .await;
    state.hold("due", "1", &["{}"], "3 1 1 0 retry: x").await;
    let objects = ["gone", "retry", "due", "operator"];
    let record = |row| Record {
        selected: b"*",
        row,
    };
    let step =
        operator::release_many(&mut state.conn, &keys, ADA, now(true), record(""), &objects).await;
    let (words, row) = step.expect("an answer");
    assert_eq!(
        words,
        [
            ReleasedOne::NotHeld,
            ReleasedOne::Other,
            ReleasedOne::Other,
            ReleasedOne::Released
        ]
    );
    let step = operator::release_many(
        &mut state.conn,
        &keys,
        ADA,
        now(false),
        record(&row),
        &objects,
    )
    .await;
    let (words, next) = step.expect("an answer");
    assert_eq!(
        words,
        [
            ReleasedOne::NotHeld,
            ReleasedOne::Released,
            ReleasedOne::Due,
            ReleasedOne::Due
        ]
    );
    // A step that does nothing leaves the record as it is.
    let step = operator::release_many(
        &mut state.conn,
        &keys,
        ADA,
        now(false),
        record(&next),
        &["gone"],
    )
    .await;
    assert_eq!(
        step.expect("an answer"),
        (vec![ReleasedOne::NotHeld], next.clone())
    );
    let kept = control(&state.conn, &keys)
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    let [release] = &kept[..] else {
        panic!("{kept:?}")
    };
    let many = release.many.as_ref().expect("many");
    assert_eq!(
        (many.count, &many.first[..], &many.last[..]),
        (2, "operator", "retry")
    );
    assert_eq!(
        (
            release.action_id.as_str(),
            format!("{}", many.began_ms).as_str()
        ),
        (&next[..], row.split('-').next().expect("ms"))
    );
    assert_eq!(redis.console().await.due("gone").await, None);
    redis.console().await.check().await;
}

/// A wrong type or a missing right is found before the first object is released.
#[tokio::test]
async fn what_stands_in_the_way_is_told_first() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    state
        .hold("work:1", LATER, &["{}"], "1 1 1 0 retry: x")
        .await;
    state.add("SET operator.actions 'no stream'").await;
    let refused = control(&state.conn, &keys)
        .release_all(ADA, &ReleaseFilter::default(), |_| {})
        .await
        .expect_err("a wrong type");
    assert!(
        matches!(&refused, ControlError::WrongType { key, .. } if *key == keys.operator_actions()),
        "{refused}"
    );
    state
        .add("DEL operator.actions; SET objects.paused 'no set'")
        .await;
    let refused = control(&state.conn, &keys)
        .release_all(ADA, &ReleaseFilter::default(), |_| {})
        .await
        .expect_err("a wrong type");
    assert!(
        matches!(&refused, ControlError::WrongType { key, .. } if *key == keys.objects_paused()),
        "{refused}"
    );
    state.add("DEL objects.paused").await;
    state
        .run(
            "ACL",
            &[
                "SETUSER", "weak", "reset", "on", ">weak", "~*", "+@all", "-xadd",
            ],
        )
        .await;
    let client =
        redis::Client::open(format!("{}?user=weak&pass=weak", redis.url())).expect("a URL");
    let weak = client
        .get_multiplexed_async_connection_with_config(&crate::support::patient())
        .await
        .expect("Redis answers");
    let refused = control(&weak, &keys)
        .release_all(ADA, &ReleaseFilter::default(), |_| {})
        .await
        .expect_err("no right");
    assert!(
        matches!(&refused, ControlError::Denied(told) if told.eq_ignore_ascii_case("xadd")),
        "{refused}"
    );
    assert_eq!(waiting(&redis).await, ["work:1"]);
    for bad in [
        &[][..],
        &["--until-released"],
        &["work:1", "--all"],
        &["work:1", "--until-released"],
        &["--all", "--prefix", "work:"],
        // An unset shell variable gives an empty prefix.
        &["--prefix", ""],
        // The prefix is written like the selector of a pause.
        &["--prefix", "work:*"],
        &["--why", ""],
    ] {
        assert_eq!(seriatim(&redis, bad).status.code(), Some(2), "{bad:?}");
    }
    assert_eq!(waiting(&redis).await, ["work:1"]);
}

/// A step adds to no record of another operator or of another kind, and not to one that is gone.
#[tokio::test]
async fn a_step_adds_only_to_the_record_of_its_action() {
    let (redis, mut state) = empty().await;
    let keys = redis.keys().clone();
    let fields = |action: &'static str, who: &'static str, count: &'static [&'static str]| {
        [
            &[
                "action", action, "who", who, "why", "", "object", "*", "id", "",
            ][..],
            count,
        ]
        .concat()
    };
    let others = [
        (
            "1-0",
            fields("release", "bob", &["count", "7", "first", "a", "last", "b"]),
        ),
        (
            "2-0",
            fields("retry", "ada", &["count", "7", "first", "a", "last", "b"]),
        ),
        ("3-0", fields("release", "ada", &[])),
    ];
    for (row, fields) in &others {
        let stream = keys.operator_actions();
        state
            .run("XADD", &[&[&stream[..], row][..], fields].concat())
            .await;
    }
    for (n, row) in ["1-0", "2-0", "3-0", "4-0", ""].iter().enumerate() {
        let object = format!("work:{n}");
        state
            .hold(
                &object,
                "inf",
                &["{}"],
                &format!("{} 1 1 0 attempts: x", n + 1),
            )
            .await;
        let record = Record {
            selected: b"*",
            row,
        };
        let step =
            operator::release_many(&mut state.conn, &keys, ADA, now(false), record, &[&object])
                .await;
        assert_eq!(step.expect("an answer").0, [ReleasedOne::Released]);
    }
    let kept = control(&state.conn, &keys)
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    let counts: Vec<_> = kept
        .iter()
        .map(|action| action.many.as_ref().map_or(0, |many| many.count))
        .collect();
    assert_eq!(counts, [1, 1, 1, 1, 1, 0, 7, 7]);
}

/// After `held release --all`, the receiver got the events of all objects in the same second. The
/// due times are now spread over a time, by default over 10 ms for each object.
#[tokio::test]
async fn released_objects_become_due_one_after_the_other() {
    let (redis, mut state) = empty().await;
    let keys = redis.keys().clone();
    for n in 0..1000 {
        state
            .hold(
                &format!("work:{n}"),
                "inf",
                &["{}"],
                &format!("{} 1 1 0 attempts: x", n + 1),
            )
            .await;
    }
    let console = redis.console().await;
    let now_ms = async || console.run::<(f64, f64)>(&["TIME"]).await.0 * 1000.0;
    let began = now_ms().await;
    let all = control(&state.conn, &keys)
        .release_all(ADA, &ReleaseFilter::default(), |_| {})
        .await
        .expect("released");
    let ended = now_ms().await + 1000.0;
    assert_eq!((all.released, all.over), (1000, Duration::from_secs(10)));
    let members: Vec<(String, f64)> = console
        .run(&["ZRANGE", &keys.objects_held(), "0", "-1", "WITHSCORES"])
        .await;
    assert!(
        members
            .iter()
            .all(|(_, due)| *due >= began && *due <= ended + 10_000.0),
        "{began} {ended} {members:?}"
    );
    let mut seconds = std::collections::BTreeMap::new();
    members
        .iter()
        .for_each(|(_, due)| *seconds.entry((*due / 1000.0) as u64).or_insert(0) += 1);
    assert!(
        seconds.len() >= 10 && seconds.values().all(|objects| *objects <= 200),
        "{seconds:?}"
    );
    // A second call changes nothing, because all objects are due within this time.
    let longer = ReleaseFilter {
        over: Some(all.over + Duration::from_secs(60)),
        ..ReleaseFilter::default()
    };
    let again = control(&state.conn, &keys)
        .release_all(ADA, &longer, |_| {})
        .await
        .expect("nothing to do");
    assert_eq!((again.released, again.due), (0, 1000));
    let at_once = ReleaseFilter {
        over: Some(Duration::ZERO),
        ..ReleaseFilter::default()
    };
    control(&state.conn, &keys)
        .release_all(ADA, &at_once, |_| {})
        .await
        .expect("released");
    let due: u64 = console
        .run(&[
            "ZCOUNT",
            &keys.objects_held(),
            "-inf",
            &format!("{}", now_ms().await + 1000.0),
        ])
        .await;
    assert_eq!(due, 1000);
}

/// The command spreads the due times, too, and --over sets the time.
#[tokio::test]
async fn the_command_spreads_the_due_times() {
    for (over, spread_ms) in [(None, 2_000.0), (Some("2m"), 120_000.0), (Some("0s"), 0.0)] {
        let (redis, mut state) = empty().await;
        for n in 0..200 {
            state
                .hold(
                    &format!("work:{n}"),
                    "inf",
                    &["{}"],
                    &format!("{} 1 1 0 attempts: x", n + 1),
                )
                .await;
        }
        let mut arguments = vec!["--all"];
        arguments.extend(over.iter().flat_map(|over| ["--over", over]));
        assert!(
            done(&redis, &arguments).starts_with("200 released"),
            "{over:?}"
        );
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
            "{over:?}: {width} ms"
        );
    }
}

/// Returns the conditions of a release of objects with any reason, due at once.
fn now(until_released: bool) -> operator::ReleaseMany<'static> {
    operator::ReleaseMany {
        until_released,
        text: "",
        over: Duration::ZERO,
    }
}
