//! Cursors of lists over HTTP: a user with prefixes learns no name of another object from any answer,
//! and a cursor is for one view.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};
use seriatim::control::By;
use seriatim::control::cron::CronDraft;
use seriatim::control::rules::Kind;
use seriatim::cron::CronSchedule;

use crate::dashboard::rig::{Dash, USERS, held, path, reply, token, users};
use crate::serving::{Answer, Serving, answer};
use crate::support::{Redis, control};

/// A part of every name that the limited user must not see.
const FOREIGN: &str = "xenon";
/// The most pages of a list in these tests.
const PAGES_MAX: usize = 100;

/// Fills all lists with rows of `work:` and of foreign objects, in turn.
async fn fill(redis: &Redis) -> Vec<String> {
    let console = redis.console().await;
    let control = control(&console.conn(), &console.keys);
    let emitter = redis.emitter().await;
    for n in 0..4 {
        for prefix in ["work", FOREIGN] {
            let object = format!("{prefix}:{n}");
            held(redis, &object, 7, &format!("410244480{n}000"), "1", "no").await;
            let paused = format!("{prefix}:paused{n}");
            let letter = format!("id 1 prev 0 object {object} event 1 error no attempts 1");
            let row = format!("id 2 prev 0 object {object} event 1 status completed attempts 1");
            let given = format!(
                "ZADD objects.paused 0 {paused}; SET {paused}:event.worker held
                 XADD events.dead * {letter}; XADD event.log * {row}"
            );
            console.add(&given).await;
            let later = Duration::from_secs(1_000_000 + n);
            for key in ["key", "second"] {
                let schedule = emitter.schedule(&object, &json!(1)).after(later);
                let scheduled = schedule.key(format!("{prefix}-{key}{n}")).send().await;
                scheduled.expect("scheduled");
            }
            let by = By {
                who: "test",
                why: prefix,
            };
            let schedule = CronSchedule::new("0 3 * * *", None).expect("a schedule");
            let event = json!(1);
            let job = CronDraft::new(format!("{prefix}-nightly{n}"), schedule, &object, &event);
            control.set_cron(by, job).await.expect("set");
            let selector = format!("{prefix}:rule{n}").parse().expect("a selector");
            let set = control.set_rule(by, Kind::Pause, &selector, None).await;
            set.expect("set");
            let share = seriatim::control::Share::new().weight(2);
            let selector = format!("{prefix}:s{n}:*").parse().expect("a selector");
            let set = control.set_share(by, &selector, share).await;
            set.expect("set");
        }
    }
    let words = ["XRANGE", &console.keys.events_dead(), "-", "+"];
    let letters: Vec<(String, Vec<String>)> = console.run(&words).await;
    letters.into_iter().map(|(id, _)| id).collect()
}

/// Checks that an answer has no part of a foreign name, also in the bytes of its cursors.
fn check(what: &str, text: &str) {
    assert!(!text.to_lowercase().contains(FOREIGN), "{what}: {text}");
    for word in text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
        .filter(|word| word.len() > 8)
    {
        let bytes = URL_SAFE_NO_PAD.decode(word).unwrap_or_default();
        let mut parts = bytes.windows(FOREIGN.len());
        assert!(
            !parts.any(|part| part == FOREIGN.as_bytes()),
            "{what}: {word}"
        );
    }
}

async fn get(serving: &Serving, user: &str, target: &str) -> Answer {
    let request = || {
        let request = serving.request(Method::GET, target);
        request.bearer_auth(token(user))
    };
    let response = request().send().await.expect("an answer");
    for (name, value) in response.headers() {
        check(target, &format!("{name}: {value:?}"));
    }
    drop(response);
    answer(request()).await
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Reads all pages of a list. Returns the rows and the cursors.
async fn walk(serving: &Serving, user: &str, target: &str) -> (Vec<Value>, Vec<String>) {
    let (mut rows, mut cursors) = (Vec::new(), Vec::new());
    let mut at = target.to_owned();
    for _ in 0..PAGES_MAX {
        let page = get(serving, user, &at).await;
        if user == "bound" {
            check(&at, &page.text);
        }
        if page.status != 200 {
            assert_eq!(page.status, 403, "{at}: {page:?}");
            return (rows, cursors);
        }
        let page = page.json();
        rows.extend(page["rows"].as_array().cloned().unwrap_or_default());
        let Some(next) = page["next"].as_str() else {
            return (rows, cursors);
        };
        cursors.push(next.to_owned());
        let and = if target.contains('?') { "&" } else { "?" };
        at = format!("{target}{and}after={}", encoded(next));
    }
    panic!("{target}: {PAGES_MAX} pages, {rows:?}");
}

/// Story: a user limited to `work:` read the names, keys and due times of all objects in the member
/// `next` of a page.
#[tokio::test]
async fn no_answer_has_a_foreign_name() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let dead = fill(&redis).await;
    let serving = Serving::start(&redis, &["--users", path(&file)]).await;
    let document = include_str!("../../crates/web/src/serve/openapi.json");
    let document: Value = serde_json::from_str(document).expect("JSON");
    let (mut lists, mut seen) = (0, 0);
    for (route, methods) in document["paths"].as_object().expect("paths") {
        let Some(operation) = methods.get("get") else {
            continue;
        };
        let parameters = operation["parameters"].to_string();
        let mut queries = vec!["?object=work:1&name=w".to_owned()];
        if parameters.contains("/after") {
            queries = [
                "",
                "&newest=true",
                "&until_released=true",
                "&due=true",
                "&prefix=work:",
                "&prefix=w",
                "&prefix=xen",
            ]
            .iter()
            .flat_map(|more| {
                [
                    format!("?limit=1{more}"),
                    format!("?object=work:1&name=w&limit=1{more}"),
                    format!("?limit=3{more}"),
                ]
            })
            .collect();
            lists += 1;
        }
        for id in &dead[..if route.contains("{id}") { 2 } else { 1 }] {
            let path = route.replace("{object}", "work:1").replace("{id}", id);
            for query in &queries {
                let target = format!("{path}{query}");
                let answer = get(&serving, "bound", &target).await;
                check(&target, &answer.text);
                if answer.status == 200 && parameters.contains("/after") {
                    seen += walk(&serving, "bound", &target).await.0.len();
                }
            }
        }
    }
    assert!(lists >= 12 && seen >= 100, "{lists} lists, {seen} rows");
    // All own rows are there, and the user without prefixes has all rows.
    for (list, own) in [
        ("schedule", 8),
        ("held", 4),
        ("paused", 4),
        ("dead", 4),
        ("log", 4),
        ("cron", 4),
    ] {
        for limit in [1, 3, 100] {
            let target = format!("/v1/{list}?limit={limit}");
            for (user, rows) in [("bound", own), ("viewer", 2 * own)] {
                let found = walk(&serving, user, &target).await.0.len();
                assert_eq!(found, rows, "{user} {target}");
            }
        }
    }
}

/// Tests the pages of the dashboard as the routes of `serve`.
#[tokio::test]
async fn no_page_has_a_foreign_name() {
    let (redis, file) = (Redis::start(), users(&USERS));
    fill(&redis).await;
    // They fill the first page of the schedules, which then has no row and leads to a next page.
    let emitter = redis.emitter().await;
    for n in 0..60 {
        let schedule = emitter.schedule(format!("{FOREIGN}:more{n}"), &json!(1));
        let schedule = schedule.after(Duration::from_secs(900_000));
        let scheduled = schedule.key(format!("{FOREIGN}-key")).send().await;
        scheduled.expect("scheduled");
    }
    let dash = Dash::start(&redis, &["--users", path(&file)]).await;
    let mut followed = 0;
    for page in [
        "/",
        "/held",
        "/paused",
        "/dead",
        "/schedules",
        "/cron",
        "/log",
        "/log?follow=true",
        "/rules",
        "/object?name=work:1",
    ] {
        let mut at = page.to_owned();
        for _ in 0..10 {
            let found = dash.page_as("bound", &at).await;
            for (name, value) in &found.headers {
                check(&at, &format!("{name}: {value:?}"));
            }
            // The page of an error names the path, which has no foreign name either.
            check(&at, &found.text);
            let next = found
                .text
                .split("href=\"")
                .map(|rest| rest.split('"').next().unwrap_or_default());
            let Some(next) = next.filter(|link| link.contains("after=")).last() else {
                break;
            };
            followed += 1;
            at = next.replace("&amp;", "&");
        }
    }
    assert!(followed >= 1, "{followed}");
}

/// Tests that a cursor is of one user, one list and its filters, and cannot be made up.
#[tokio::test]
async fn a_cursor_is_of_one_view() {
    let (redis, file) = (Redis::start(), users(&USERS));
    fill(&redis).await;
    let serving = Serving::start(&redis, &["--users", path(&file)]).await;
    let lists = ["schedule", "held", "paused", "dead", "log"];
    for list in lists {
        let target = format!("/v1/{list}?limit=1");
        let cursor = walk(&serving, "viewer", &target).await.1.remove(0);
        let with = |query: &str, cursor: &str| format!("/v1/{query}after={}", encoded(cursor));
        let more = with(&format!("{list}?limit=7&"), &cursor);
        assert_eq!(get(&serving, "viewer", &more).await.status, 200, "{list}");
        let mut others = vec![
            ("bound", with(&format!("{list}?"), &cursor)),
            ("viewer", with(&format!("{list}?"), "4102444800000 xenon:1")),
            ("viewer", with(&format!("{list}?"), "1-1")),
            ("viewer", with(&format!("{list}?"), &cursor[1..])),
            ("viewer", with("objects/work:1/schedule?", &cursor)),
            (
                "viewer",
                with(&format!("{list}?newest=true&prefix=w&from=1&"), &cursor),
            ),
        ];
        let other_lists = lists.iter().filter(|other| **other != list);
        others.extend(other_lists.map(|other| ("viewer", with(&format!("{other}?"), &cursor))));
        for (user, target) in others {
            let found = get(&serving, user, &target).await;
            // Each list ignores or refuses the filters of others; a refused one is 400, too.
            assert_eq!(found.status, 400, "{user} {target}: {found:?}");
            assert!(!found.text.contains("xenon"), "{target}: {found:?}");
        }
    }
    let elsewhere = Redis::start();
    fill(&elsewhere).await;
    let target = "/v1/held?limit=1";
    let cursor = walk(&serving, "viewer", target).await.1.remove(0);
    let other = Serving::start(&elsewhere, &["--users", path(&file)]).await;
    let target = format!("{target}&after={}", encoded(&cursor));
    let found = get(&other, "viewer", &target).await;
    assert_eq!(found.problem(), (400, "invalid".to_owned()));
}

/// Tests that a cursor stays valid after a restart, and at another server of the namespace.
#[tokio::test]
async fn a_cursor_is_for_all_servers_of_the_namespace() {
    let (redis, file) = (Redis::start(), users(&USERS));
    fill(&redis).await;
    let options = ["--users", path(&file)];
    let console = redis.console().await;
    console.add("HSETNX seriatim.meta schema 1").await;
    let (first, second) = (
        Serving::start(&redis, &options).await,
        Serving::start(&redis, &options).await,
    );
    let cursor = walk(&first, "viewer", "/v1/held?limit=1").await.1.remove(0);
    let target = format!("/v1/held?limit=1&after={}", encoded(&cursor));
    assert_eq!(get(&second, "viewer", &target).await.status, 200);
    drop((first, second));
    let again = Serving::start(&redis, &options).await;
    assert_eq!(get(&again, "viewer", &target).await.status, 200);
    let dash = Dash::start(&redis, &["--users", path(&file), "--read-only"]).await;
    let request = dash.request(Method::GET, &target);
    let found = reply(request.bearer_auth(token("viewer"))).await;
    assert_eq!(found.status, 200);
    // If the secret is lost, old cursors are refused and new ones work.
    console.add("HDEL seriatim.meta cursors.secret").await;
    let fresh = Serving::start(&redis, &options).await;
    assert_eq!(
        get(&fresh, "viewer", &target).await.problem(),
        (400, "invalid".to_owned())
    );
    assert_eq!(walk(&fresh, "viewer", "/v1/held?limit=1").await.0.len(), 8);
}

/// Tests that a client that has read the whole log gets the rows that come later.
#[tokio::test]
async fn the_last_page_of_the_log_leads_to_later_rows() {
    let redis = Redis::start();
    fill(&redis).await;
    let serving = Serving::start(&redis, &[]).await;
    let later = serving.get("/v1/log").await.json()["later"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    let target = format!("/v1/log?after={}", encoded(&later));
    assert_eq!(serving.get(&target).await.json()["rows"], json!([]));
    let row = "id 9 prev 0 object work:late event 1 status completed attempts 1";
    let console = redis.console().await;
    console.add(&format!("XADD event.log * {row}")).await;
    let rows = serving.get(&target).await.json()["rows"].clone();
    assert_eq!(rows[0]["object"], "work:late");
}
