//! Forms that are sent twice, and forms that are refused.

use futures_util::future::join_all;
use redis::cmd;
use reqwest::Method;

use super::rig::{Dash, Reply, Scene, reply, token};
use crate::support::Redis;

/// Returns the value `once` of a page's forms. All forms of a page have the same value.
fn once(page: &Reply) -> String {
    let mut values = page
        .text
        .split("name=\"once\" value=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().expect("a value"));
    let first = values.next().unwrap_or_else(|| panic!("{page:?}"));
    assert!(values.all(|value| value == first), "{page:?}");
    first.to_owned()
}

async fn sent(dash: &Dash, user: &str, fields: &[(&str, &str)]) -> Reply {
    dash.post_as(user, "/act", fields).await
}

async fn get(dash: &Dash, target: &str) -> Reply {
    dash.page_as("operator", target).await
}

async fn queued(redis: &Redis, object: &str) -> u64 {
    cmd("LLEN")
        .arg(redis.keys().events(object))
        .query_async(&mut redis.connect().await)
        .await
        .expect("a length")
}

/// Story: a double click on `Run now` queued two events.
#[tokio::test]
async fn a_form_that_is_sent_twice_acts_once() {
    let (scene, dash) = Scene::with_dash().await;
    let (first, second) = (
        once(&get(&dash, "/cron").await),
        once(&get(&dash, "/cron").await),
    );
    assert_ne!(first, second);
    let form = |once, reason| {
        [
            ("act", "run-cron"),
            ("name", "work-nightly"),
            ("back", "/cron"),
            ("once", once),
            ("reason", reason),
        ]
    };
    // A refused form does not use its value up.
    for reason in ["", " "] {
        assert_eq!(
            sent(&dash, "operator", &form(&first, reason)).await.status,
            400
        );
    }
    let fields = form(&first, "because");
    let clicks = join_all((0..5).map(|_| sent(&dash, "operator", &fields))).await;
    let later = sent(&dash, "operator", &form(&first, "another reason")).await;
    for click in clicks.iter().chain([&later]) {
        assert_eq!(
            (click.status, click.header("location")),
            (303, clicks[0].header("location")),
            "{click:?}"
        );
    }
    assert_eq!(queued(&scene.redis, "work:cron").await, 1);
    let other = sent(&dash, "operator", &form(&second, "because")).await;
    assert!(
        other.status == 303 && other.header("location") != later.header("location"),
        "{other:?}"
    );
    assert_eq!(queued(&scene.redis, "work:cron").await, 2);
    // A value of a page before a restart is accepted once. A program sends no value.
    let unknown = "0123456789abcdef0123456789abcdef";
    for (once, events) in [(unknown, 3), (unknown, 3)] {
        assert_eq!(
            sent(&dash, "operator", &form(once, "because")).await.status,
            303
        );
        assert_eq!(queued(&scene.redis, "work:cron").await, events);
    }
    for events in [4, 5] {
        let form = [
            ("act", "run-cron"),
            ("name", "work-nightly"),
            ("reason", "because"),
        ];
        assert_eq!(sent(&dash, "operator", &form).await.status, 303);
        assert_eq!(queued(&scene.redis, "work:cron").await, events);
    }
    for bad in ["", "1", "0123456789ABCDEF0123456789ABCDEF"] {
        assert_eq!(
            sent(&dash, "operator", &form(bad, "because")).await.status,
            400,
            "{bad:?}"
        );
    }
}

/// Tests that a value is of one user, and of one action on the same subjects: a user may go back and
/// select other rows.
#[tokio::test]
async fn a_value_is_of_one_user_and_one_selection() {
    let (scene, dash) = Scene::with_dash().await;
    let once = once(&get(&dash, "/dead").await);
    let form = |act, row| {
        [
            ("act", act),
            ("row", row),
            ("once", &*once),
            ("reason", "because"),
        ]
        .map(|(name, value)| (name, value))
    };
    let mut locations = Vec::new();
    for (user, act, selector) in [
        ("operator", "pause", "work:1"),
        ("pauser", "pause", "work:1"),
        ("operator", "pause", "work:2"),
        ("operator", "resume", "work:1"),
    ] {
        let fields = [
            ("act", act),
            ("selector", selector),
            ("once", &*once),
            ("reason", "because"),
        ];
        let found = sent(&dash, user, &fields).await;
        assert_eq!(found.status, 303, "{user} {act} {selector}: {found:?}");
        locations.push(found.header("location").to_owned());
        assert_eq!(
            sent(&dash, user, &fields).await.header("location"),
            locations[locations.len() - 1]
        );
    }
    // The letter of a user with prefixes is looked at first. It is gone when the form comes again.
    for _ in 0..2 {
        let found = sent(&dash, "bound", &form("drop", &scene.dead[0])).await;
        assert_eq!(found.status, 303, "{found:?}");
        locations.push(found.header("location").to_owned());
    }
    assert_eq!(locations.pop(), locations.last().cloned());
    assert_eq!(
        locations
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        5
    );
    let actions = scene
        .control
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    assert_eq!(
        actions
            .iter()
            .filter(|action| ["pause", "resume", "drop"].contains(&action.action.as_str()))
            .count(),
        6
    );
}

/// Tests the answer to a form whose result is no longer remembered.
#[tokio::test]
async fn a_repeated_form_without_a_result_says_when_it_was_done() {
    let (scene, dash) = Scene::with_dash().await;
    let once = once(&get(&dash, "/cron").await);
    let fields = [
        ("act", "run-cron"),
        ("name", "work-nightly"),
        ("back", "/cron"),
        ("once", &*once),
        ("reason", "because"),
    ];
    assert_eq!(sent(&dash, "operator", &fields).await.status, 303);
    for _ in 0..200 {
        let other = [
            ("act", "resume"),
            ("selector", "none"),
            ("reason", "because"),
        ];
        assert_eq!(sent(&dash, "operator", &other).await.status, 303);
    }
    let found = sent(&dash, "operator", &fields).await;
    let says = found.text.contains("already done at 20")
        && found.text.contains("by operator: nothing was done again");
    assert!(found.status == 409 && says, "{found:?}");
    assert_eq!(queued(&scene.redis, "work:cron").await, 1);
}

/// Tests that the script gets a page with the value that the page has. Otherwise each update would
/// replace all forms.
#[tokio::test]
async fn an_update_keeps_the_value_of_the_page() {
    let (_scene, dash) = Scene::with_dash().await;
    let target = "/object?name=work:dead";
    let page = get(&dash, target).await;
    let value = once(&page);
    assert!(
        page.text.contains(&format!("data-once=\"{value}\"")),
        "{page:?}"
    );
    let update = |value| {
        reply(
            dash.page(target)
                .bearer_auth(token("operator"))
                .header("seriatim-once", value),
        )
    };
    assert_eq!(once(&update(value.clone()).await), value);
    assert_ne!(once(&update("\"><script>".to_owned()).await), value);
    assert_eq!(
        get(&dash, "/log").await.text.matches("data-once").count(),
        0
    );
}

/// A form that is refused: its fields, and parts of the page that shows it again.
type Refusal = (
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static [&'static str],
);

const REFUSALS: [Refusal; 10] = [
    (
        &[
            ("act", "pause"),
            ("selector", "work:held"),
            ("exact", "true"),
            ("for", "1 parsec"),
            ("reason", "a <reason>"),
            ("back", "/object?name=work%3Aheld"),
        ],
        "the time: ",
        &[
            "<details class=\"act\" open>",
            "value=\"1 parsec\"",
            "value=\"a &lt;reason&gt;\"",
        ],
    ),
    (
        &[
            ("act", "skip"),
            ("row", "7 work:held"),
            ("reason", " "),
            ("back", "/object?name=work%3Aheld"),
        ],
        "1 to 500 characters",
        &["<details class=\"act\" open>", "value=\" \""],
    ),
    (
        &[
            ("act", "release"),
            ("row", "7 work:held"),
            ("row", "7 user:held"),
            ("reason", ""),
            ("back", "/held?prefix="),
        ],
        "the field reason is missing",
        &[
            "value=\"7 work:held\" checked",
            "value=\"7 user:held\" checked",
        ],
    ),
    (
        &[("act", "release"), ("reason", "typed"), ("back", "/held")],
        "no row is selected",
        &["value=\"typed\""],
    ),
    (
        &[
            ("act", "release-all"),
            ("prefix", ""),
            ("until_released", "true"),
            ("reason", ""),
            ("back", "/held"),
        ],
        "the field reason is missing",
        &[
            "<details class=\"act\" open>",
            "name=\"until_released\" value=\"true\" checked",
        ],
    ),
    (
        &[
            ("act", "drop-all"),
            ("object", ""),
            ("reason", "\t"),
            ("back", "/dead"),
        ],
        "1 to 500",
        &["<details class=\"act\" open>"],
    ),
    (
        &[
            ("act", "block"),
            ("selector", "work *"),
            ("for", "1h"),
            ("reason", "typed"),
            ("back", "/rules"),
        ],
        "the selector: ",
        &["value=\"work *\"", "value=\"1h\"", "value=\"typed\""],
    ),
    (
        &[
            ("act", "block"),
            ("selector", "work:*"),
            ("for", "30M"),
            ("reason", "typed"),
            ("back", "/rules"),
        ],
        "write 30m for minutes",
        &["value=\"work:*\"", "value=\"30M\"", "value=\"typed\""],
    ),
    (
        &[
            ("act", "cancel"),
            ("object", "work:later"),
            ("key", "later"),
            ("reason", ""),
            ("back", "/schedules"),
        ],
        "the field reason",
        &["<details class=\"act\" open>"],
    ),
    (
        &[
            ("act", "run-cron"),
            ("name", "work-nightly"),
            ("reason", ""),
            ("back", "/cron"),
        ],
        "the field reason",
        &["<details class=\"act\" open>"],
    ),
];

/// Story: after an error, the page with the form had to be opened again, and the reason be typed again.
#[tokio::test]
async fn a_refused_form_keeps_what_was_typed() {
    let (scene, dash) = Scene::with_dash().await;
    let before = scene.dump().await;
    for (fields, why, parts) in REFUSALS {
        let (_, back) = fields[fields.len() - 1];
        let once = once(&get(&dash, back).await);
        let form: Vec<_> = fields.iter().copied().chain([("once", &*once)]).collect();
        let found = sent(&dash, "operator", &form).await;
        assert_eq!(found.status, 400, "{fields:?}: {found:?}");
        let error = found
            .text
            .split("<p class=\"problem\" id=\"refused\" role=\"alert\">")
            .nth(1);
        let error = error.unwrap_or_else(|| panic!("no error beside the form: {found:?}"));
        assert!(
            error.starts_with(why)
                || error
                    .split('<')
                    .next()
                    .is_some_and(|error| error.contains(why)),
            "{why}: {error}"
        );
        for part in parts {
            assert!(found.text.contains(part), "{part}: {found:?}");
        }
        assert_eq!(found.text.matches("role=\"alert\"").count(), 1, "{found:?}");
        assert!(
            found.text.contains("aria-label=\"Pages\"") && !found.text.contains("data-every"),
            "{found:?}"
        );
        assert_eq!(self::once(&found), once, "the value is not used up");
        // A form that is not on the page any more: the error is at the beginning of the page.
        if fields[0].1 != "release" {
            let other: Vec<_> = form
                .iter()
                .map(|(name, value)| (*name, if *name == "act" { "retry-none" } else { value }))
                .collect();
            let found = sent(&dash, "operator", &other).await;
            assert!(
                found.status == 400
                    && found
                        .text
                        .contains("tabindex=\"-1\"><p class=\"problem\" role=\"alert\">"),
                "{found:?}"
            );
        }
        // A program gets a document.
        let program = dash
            .form("/act", &form)
            .bearer_auth(token("operator"))
            .header("accept", "application/json");
        let mut request = program.build().expect("a request");
        request
            .headers_mut()
            .insert("accept", "application/json".parse().expect("a value"));
        let found = reqwest::Client::new()
            .execute(request)
            .await
            .expect("an answer");
        assert_eq!(
            (found.status().as_u16(), &found.headers()["content-type"]),
            (400, &"application/problem+json".parse().expect("a value"))
        );
    }
    // A page that cannot be shown is not shown.
    for back in [
        "/object?name=%5C",
        "/nothing",
        "//evil.example",
        "/log",
        "/held?why=nothing",
    ] {
        let fields = [
            ("act", "pause"),
            ("selector", "work:1"),
            ("reason", ""),
            ("back", back),
        ];
        let found = sent(&dash, "operator", &fields).await;
        assert!(
            found.status == 400 && found.text.contains("the field reason is missing"),
            "{back}: {found:?}"
        );
    }
    assert_eq!(scene.dump().await, before);
}

#[tokio::test]
async fn an_error_has_the_navigation_if_the_user_is_known() {
    let (_scene, dash) = Scene::with_dash().await;
    for (target, status) in [
        ("/nothing", 404),
        ("/held?why=nothing", 400),
        ("/job?id=1", 404),
        ("/act", 405),
    ] {
        let found = get(&dash, target).await;
        assert!(
            found.status == status
                && found.text.contains("aria-label=\"Pages\"")
                && found.text.contains("Log out"),
            "{found:?}"
        );
    }
    let found = dash.page_as("emitter", "/held").await;
    assert!(
        found.status == 403 && found.text.contains("Log out"),
        "{found:?}"
    );
    for request in [
        dash.page("/nothing"),
        dash.page("/held").bearer_auth("wrong"),
    ] {
        let found = reply(request).await;
        assert!(
            found.status == 401 && !found.text.contains("Log out"),
            "{found:?}"
        );
    }
}

/// Tests that 50 rows with the longest names that have a box fit into a form.
#[tokio::test]
async fn fifty_rows_with_long_names_fit_into_a_form() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let rows: Vec<String> = (0..50)
        .map(|n| format!("18446744073709551{n:03} {}", "é".repeat(2048)))
        .collect();
    let mut fields: Vec<(&str, &str)> = rows.iter().map(|row| ("row", row.as_str())).collect();
    fields.extend([("act", "release"), ("reason", "because"), ("back", "/held")]);
    assert_eq!(sent(&dash, "operator", &fields).await.status, 303);
}

#[tokio::test]
async fn a_head_of_the_link_needs_no_login() {
    let redis = Redis::start();
    let dash = Dash::start(&redis, &[]).await;
    let target = format!("/link?token={}", dash.link_token());
    for method in [Method::HEAD, Method::GET] {
        let found = reply(dash.request(method.clone(), &target)).await;
        assert_eq!(
            (found.status, found.text.is_empty()),
            (200, method == Method::HEAD),
            "{method}: {found:?}"
        );
    }
}
