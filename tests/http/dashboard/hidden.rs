//! `--hide` and `--hide-events`: no page, no route and no log line shows a hidden part. Passwords
//! and tokens are never shown.

use rstest::rstest;
use serde_json::json;
use seriatim::async_trait;
use seriatim::emit::Emitter;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use seriatim::worker::EventLog;

use super::rig::{Dash, Reply, Scene, USERS, path, reply, token, users};
use crate::requests::retry;
use crate::support::console::PATIENCE;
use crate::support::running::start;
use crate::support::{Redis, free_port, until};

/// The hidden part of each event.
const SECRET: &str = "zq4111222233334444zq";

/// A sink whose errors repeat the event.
#[derive(Clone)]
struct Repeating;

#[async_trait]
impl Sink for Repeating {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        for (at, event) in batch.events().enumerate() {
            let text = String::from_utf8_lossy(&event.payload).into_owned();
            let error = format!("no: {text}");
            let stop = match text {
                text if text.contains("\"retry\"") || text.contains("\"errors\"") => {
                    Stop::transient(error)
                }
                text if text.contains("\"dead\"") => Stop::rejected(error),
                text if text.contains("\"hang\"") => std::future::pending().await,
                _ => continue,
            };
            return Delivered::stopped(at, stop);
        }
        Delivered::all()
    }

    fn name(&self) -> String {
        "repeating".to_owned()
    }
}

/// Adds events that a worker takes: held, dead, completed with errors, and in flight.
async fn work(scene: &Scene) -> crate::support::running::Running {
    let conn = scene.redis.connect().await;
    let emitter = Emitter::new(conn).with_keys(scene.redis.keys().clone());
    for object in ["work", "user"] {
        for kind in ["done", "errors", "dead", "retry", "hang"] {
            let event =
                json!({ "type": kind, "card": { "number": SECRET, "name": "Ada" }, "data": ["é"] });
            emitter
                .emit(format!("{object}-{kind}:1"), &event)
                .await
                .expect("emitted");
        }
        // The lists cut this event before the hidden part.
        let long =
            json!({ "a": "a".repeat(10_000), "card": { "number": SECRET }, "type": "retry" });
        emitter
            .emit(format!("{object}-long:1"), &long)
            .await
            .expect("emitted");
    }
    let worker = start(&scene.redis, "busy", &Repeating, |config| {
        config.event_log = Some(EventLog::default());
        config.first_id = 1000;
        config.concurrency = 8;
        retry("fixed:1h")(config);
        let errors = "fixed:1ms,attempts=1,then=complete-with-errors";
        config
            .retry_types
            .insert("errors".to_owned(), errors.parse().expect("a policy"));
    });
    until("the events have their states", PATIENCE, async || {
        let stats = scene.control.stats().await.expect("the counts");
        let is_over =
            stats.dead_letters >= 5 && stats.held.total >= 8 && stats.events_in_flight >= 3;
        (is_over
            && scene
                .control
                .log(None, 100)
                .await
                .expect("the log")
                .entries
                .len()
                >= 8)
            .then_some(())
    })
    .await;
    worker
}

/// The hidden part of the second event of a held batch.
const OTHER: &str = "zq9999888877776666zq";

/// Holds a second event behind the one of `work:held`. An error of the whole batch repeats its part.
async fn hold_a_second(scene: &Scene) {
    let (console, keys) = (scene.redis.console().await, scene.redis.keys());
    let event = json!({ "type": "moved", "card": { "number": OTHER } }).to_string();
    let why = format!("7 0 4 0 retry: the list with {OTHER} is refused");
    let _: u64 = console
        .run(&["LPUSH", &keys.events_held("work:held"), &event])
        .await;
    let _: String = console
        .run(&["SET", &keys.events_held_id("work:held"), &why])
        .await;
    let error = format!("1767225600001 2 the list with {OTHER} is refused");
    let _: u64 = console
        .run(&["LPUSH", &keys.event_errors("work:held"), &error])
        .await;
}

/// The targets that show events, errors or results.
fn targets(scene: &Scene) -> Vec<String> {
    let mut targets: Vec<String> = [
        "/",
        "/held",
        "/held?why=operator",
        "/paused",
        "/dead",
        "/dead?order=oldest",
        "/dead?object=work:dead",
    ]
    .into_iter()
    .chain([
        "/workers",
        "/worker?name=w",
        "/worker?name=busy",
        "/rules",
        "/schedules",
        "/cron",
        "/log",
        "/log?follow=true",
        "/actions",
        "/check",
    ])
    .chain([
        "/v1/stats",
        "/v1/held",
        "/v1/paused",
        "/v1/dead",
        "/v1/dead?newest=true",
        "/v1/schedule",
        "/v1/rules",
        "/v1/actions",
    ])
    .chain([
        "/v1/log",
        "/v1/log?newest=true",
        "/v1/cron",
        "/v1/workers",
        "/v1/worker?name=w",
        "/v1/worker?name=busy",
        "/v1/queues",
        "/v1/depth",
        "/v1/check",
    ])
    .map(str::to_owned)
    .collect();
    let states = [
        "queued", "held", "retry", "dead", "done", "later", "cron", "flight", "idle",
    ]
    .map(|state| format!("work:{state}"));
    let worked =
        ["done", "errors", "dead", "retry", "hang", "long"].map(|kind| format!("work-{kind}:1"));
    for object in states.iter().chain(&worked) {
        targets.extend([
            format!("/object?name={object}"),
            format!("/v1/objects/{object}"),
        ]);
        targets.extend([
            format!("/v1/objects/{object}/chain"),
            format!("/v1/objects/{object}/schedule"),
        ]);
    }
    targets.push(format!("/v1/dead/{}", scene.dead[0]));
    targets
}

/// Returns all answers of the dashboard: its pages, its routes, the results of actions, and its log.
async fn all_answers(scene: &Scene, dash: &Dash) -> Vec<(String, Reply)> {
    let mut answers = Vec::new();
    let act = async |fields: &[(&str, &str)]| {
        let mut form = fields.to_vec();
        form.push(("reason", "because"));
        let begun = dash.post_as("operator", "/act", &form).await;
        assert_eq!(begun.status, 303, "{form:?}: {begun:?}");
        (
            format!("{form:?}"),
            dash.page_as("operator", begun.header("location")).await,
        )
    };
    assert_eq!(dash.post_as("operator", "/check", &[]).await.status, 303);
    until("the check is over", PATIENCE, async || {
        let page = dash.page_as("operator", "/check").await;
        page.text.contains("Last check").then_some(())
    })
    .await;
    for round in 0..2 {
        for target in targets(scene) {
            let found = dash.page_as("operator", &target).await;
            assert_eq!(found.status, 200, "{target}: {found:?}");
            answers.push((target, found));
        }
        if round == 0 {
            for fields in [
                &[
                    ("act", "release"),
                    ("row", "- user:held"),
                    ("row", "- user:none"),
                ][..],
                &[
                    ("act", "skip"),
                    ("row", "9 user:retry"),
                    ("row", "9 user:none"),
                ],
                &[("act", "drop"), ("row", &scene.dead[1])],
                &[("act", "retry"), ("row", &scene.dead[1])],
                &[("act", "drop-all"), ("object", "user-dead:1")],
                &[("act", "run-cron"), ("name", "user-nightly")],
                &[
                    ("act", "cancel"),
                    ("object", "user:later"),
                    ("key", "later"),
                ],
                &[("act", "forget"), ("object", "user:held")],
                &[("act", "pause"), ("selector", "user:*")],
            ] {
                answers.push(act(fields).await);
            }
        }
    }
    let text = format!("{}\n{}", dash.log(), dash.out());
    answers.push((
        "the log".to_owned(),
        Reply {
            status: 0,
            headers: Default::default(),
            text,
        },
    ));
    answers
}

#[rstest]
#[case::a_pointer(&["--hide", "/card/number"])]
#[case::two_pointers(&["--hide", "/other", "--hide", "/card"])]
#[case::all_events(&["--hide-events"])]
#[case::nothing(&[])]
#[tokio::test]
async fn hidden_parts_are_nowhere(#[case] hiding: &[&str]) {
    let (scene, file) = (Scene::over(Redis::own(&[]), SECRET).await, users(&USERS));
    let _worker = work(&scene).await;
    hold_a_second(&scene).await;
    let mut options = vec!["--users", path(&file), "--log", "trace"];
    options.extend(hiding);
    let dash = Dash::start(&scene.redis, &options).await;
    let answers = all_answers(&scene, &dash).await;
    let showing: Vec<&str> = answers
        .iter()
        .filter(|(_, found)| [SECRET, OTHER].iter().any(|part| found.text.contains(part)))
        .map(|(target, _)| target.as_str())
        .collect();
    if hiding.is_empty() {
        // The test can fail: without the option most pages show the part.
        for target in [
            "/",
            "/held",
            "/dead",
            "/workers",
            "/schedules",
            "/cron",
            "/log",
            "/actions",
            "/v1/log",
            "/object?name=work:flight",
        ] {
            assert!(showing.contains(&target), "{target}: {showing:?}");
        }
        assert!(
            showing.iter().any(|target| target.contains("release")),
            "{showing:?}"
        );
        assert!(!showing.contains(&"the log"), "{}", dash.log());
    } else {
        assert_eq!(showing, Vec::<&str>::new());
    }
    if hiding == ["--hide-events"] {
        assert!(
            answers.iter().all(|(_, found)| !found.text.contains("Ada")),
            "an event is shown"
        );
    }
    // The stream of the overview shows the same parts as the page.
    let mut stream = dash
        .request(reqwest::Method::GET, "/live")
        .bearer_auth(token("operator"))
        .send()
        .await
        .expect("a stream");
    let mut live = String::new();
    while !live.contains("What needs somebody") || !live.ends_with("\n\n") {
        live.push_str(&String::from_utf8_lossy(
            &stream.chunk().await.expect("a part").expect("no end"),
        ));
    }
    assert_eq!(live.contains(SECRET), hiding.is_empty(), "{live}");
}

/// Tests that tokens, passwords, and the values of cookies are in no page and in no log line.
#[tokio::test]
async fn no_password_and_no_token_is_shown() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port]);
    let console = redis.console().await;
    let _: String = console
        .run(&["ACL", "SETUSER", "dash", "on", ">zqpassword", "~*", "+@all"])
        .await;
    let (scene, file) = (Scene::over(redis, "payload").await, users(&USERS));
    let url = format!("redis://dash:zqpassword@127.0.0.1:{port}");
    let _worker = work(&scene).await;
    let dash = Dash::start_to(
        &url,
        &scene.redis,
        &["--users", path(&file), "--log", "trace"],
    )
    .await;
    let cookie = dash.log_in(&token("operator")).await;
    assert_eq!(
        reply(dash.page("/rules").header("cookie", &cookie))
            .await
            .status,
        200
    );
    let wrong = reply(dash.form("/login", &[("token", "zqwrong")])).await;
    let mut answers = all_answers(&scene, &dash).await;
    let _: i64 = console.run(&["ACL", "DELUSER", "dash"]).await;
    for target in ["/", "/held", "/v1/stats", "/readyz"] {
        answers.push((
            format!("{target} without the Redis user"),
            dash.page_as("operator", target).await,
        ));
    }
    answers.push(("wrong".to_owned(), wrong));
    let secrets = [
        "zqpassword",
        "zqwrong",
        "token-of-",
        cookie.split_once('=').expect("a cookie").1,
    ];
    for (target, found) in &answers {
        let log = dash.log();
        let shown: Vec<_> = secrets
            .iter()
            .filter(|secret| found.text.contains(**secret) || log.contains(**secret))
            .collect();
        assert!(shown.is_empty(), "{target} shows {shown:?}: {}", found.text);
    }
    let process =
        std::fs::read_to_string(format!("/proc/{}/cmdline", dash.pid())).expect("a command line");
    assert!(process.contains("--users") && !process.contains("token-of-"));
}
