//! Examines every page of the dashboard, wide and narrow, light and dark, over a Redis full of
//! hostile texts.

use reqwest::Url;
use rstest::rstest;
use seriatim::escape;

use crate::dashboard::{Dashboard, Users};
use crate::driver::{Driver, Scheme};
use crate::element::button_path;
use crate::faults::{faults, faults_of_answer};
use crate::filled::{Filled, HOSTILE};
use crate::person::{Hand, Person, field_path};
use crate::support::Redis;

/// Pages that need no name.
const PLAIN: [&str; 11] = [
    "/",
    "/held",
    "/paused",
    "/dead",
    "/workers",
    "/rules",
    "/schedules",
    "/cron",
    "/log",
    "/actions",
    "/check",
];

/// Pages with a filter, and pages that have no rows.
const FILTERED: [&str; 12] = [
    "/held?why=operator",
    "/held?why=retry&prefix=many%3A",
    "/held?why=due",
    "/held?why=takeover&prefix=none%3A",
    "/paused?prefix=paused%3A%3Cscript%3E",
    "/paused?prefix=none%3A",
    "/dead?object=raw%3A1&order=oldest",
    "/dead?object=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    "/log?status=completed_with_errors",
    "/log?object=none%3A1",
    "/log?follow=true",
    "/object?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
];

/// Pages of errors, with their status.
const ERRORS: [(&str, u64); 4] = [
    ("/none", 404),
    ("/job?id=%3Cscript%3E", 404),
    ("/worker?name=%3Cscript%3E", 404),
    ("/held?why=%3Cscript%3E", 400),
];

/// Returns every page that a person can reach without an action.
fn targets() -> Vec<String> {
    let mut targets: Vec<_> = PLAIN
        .into_iter()
        .chain(FILTERED)
        .map(str::to_owned)
        .collect();
    targets.extend(Filled::objects().iter().map(|name| named("/object", name)));
    targets.extend(["busy", "down", HOSTILE[0]].map(|name| named("/worker", name.as_bytes())));
    targets
}

/// Returns the target of the page about one object or worker. The name is escaped, as in all
/// outputs.
pub(crate) fn named(path: &str, name: &[u8]) -> String {
    let mut url: Url = format!("http://host{path}").parse().expect("a URL");
    url.query_pairs_mut()
        .append_pair("name", &escape::name(name));
    format!("{path}?{}", url.query().expect("a query"))
}

#[rstest]
#[case::narrow_light(360, Scheme::Light, true)]
#[case::narrow_dark(360, Scheme::Dark, true)]
#[case::wide_light(1280, Scheme::Light, true)]
#[case::wide_dark(1280, Scheme::Dark, true)]
#[case::narrow_without_scripts(360, Scheme::Dark, false)]
#[case::wide_without_scripts(1280, Scheme::Light, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn no_page_has_a_fault(#[case] width: u32, #[case] scheme: Scheme, #[case] scripts: bool) {
    let filled = Filled::start().await;
    let users = Users::new(&[("ada", "view,pause,operate"), ("mute", "emit")]);
    let dashboard = Dashboard::start(&filled.redis, &users.arguments()).await;
    let driver = Driver::start().await;
    driver.allow_scripts(scripts).await;
    let mut found = Vec::new();
    let add = |found: &mut Vec<String>, target: &str, here: Vec<String>| {
        let target: String = target.chars().take(80).collect();
        found.extend(here.iter().map(|fault| format!("{target}: {fault}")));
    };
    add(
        &mut found,
        "/login",
        faults(&driver, &dashboard.origin, "/login", width, scheme).await,
    );
    add(
        &mut found,
        "/ without login",
        faults_of_answer(&driver, &dashboard.origin, "/", width, scheme, 401).await,
    );
    dashboard.log_in_with(&driver, users.token("mute")).await;
    for target in ["/", "/held", "/check"] {
        add(
            &mut found,
            target,
            faults_of_answer(&driver, &dashboard.origin, target, width, scheme, 403).await,
        );
    }
    dashboard.log_in_with(&driver, users.token("ada")).await;
    let mut next_pages = 0;
    for target in targets() {
        add(
            &mut found,
            &target,
            faults(&driver, &dashboard.origin, &target, width, scheme).await,
        );
        if let Some(next) = driver.find_all("main a[rel=next]").await.first() {
            let next = driver.attribute(next, "href").await.expect("a target");
            add(
                &mut found,
                &next,
                faults(&driver, &dashboard.origin, &next, width, scheme).await,
            );
            next_pages += 1;
        }
    }
    assert!(
        next_pages >= 3,
        "only {next_pages} lists have a further page"
    );
    for (target, status) in ERRORS {
        add(
            &mut found,
            target,
            faults_of_answer(&driver, &dashboard.origin, target, width, scheme, status).await,
        );
    }
    let job = release_all(&driver, &dashboard).await;
    add(
        &mut found,
        "/job",
        faults(&driver, &dashboard.origin, &job, width, scheme).await,
    );
    check(&driver, &dashboard).await;
    add(
        &mut found,
        "/check",
        faults(&driver, &dashboard.origin, "/check", width, scheme).await,
    );
    assert!(
        found.is_empty(),
        "{width} px, {scheme:?}: {} faults\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Selects all rows of a page of held objects, and releases them with a hostile reason. Returns the
/// target of the page with the results.
async fn release_all(driver: &Driver, dashboard: &Dashboard) -> String {
    driver.open(&dashboard.url("/held?why=operator")).await;
    for row in driver.find_all("input[name=row]").await {
        driver.click(&row).await;
    }
    driver
        .fill(&driver.find_label("Reason").await, HOSTILE[0])
        .await;
    driver.click(&driver.find_button("Release").await).await;
    driver.wait_for_path("/job").await;
    driver.wait_for_text("The action has ended").await;
    let url = driver.url().await;
    url.strip_prefix(&dashboard.origin)
        .expect("a page of the dashboard")
        .to_owned()
}

/// Checks the invariants, and waits for the result.
async fn check(driver: &Driver, dashboard: &Dashboard) {
    driver.open(&dashboard.url("/check")).await;
    driver.click(&driver.find_button("Check now").await).await;
    // A page that is opened too early would cancel the form that is under way.
    driver
        .wait_for("the check has begun", async || {
            let text = driver.page_text().await;
            (text.contains("A check is under way") || text.contains("It ended")).then_some(())
        })
        .await;
    driver
        .wait_for("the check is over", async || {
            driver.open(&dashboard.url("/check")).await;
            driver.page_text().await.contains("It ended").then_some(())
        })
        .await;
}

/// Tests the page of the printed link, and the login by its button.
#[rstest]
#[case::narrow_light(360, Scheme::Light)]
#[case::wide_dark(1280, Scheme::Dark)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn the_printed_link_has_no_fault_and_logs_in(#[case] width: u32, #[case] scheme: Scheme) {
    let redis = Redis::own(&[]);
    let dashboard = Dashboard::start(&redis, &[]).await;
    let driver = Driver::start().await;
    let link = dashboard.link.as_ref().expect("a link");
    let target = link
        .strip_prefix(&dashboard.origin)
        .expect("a link to this dashboard");
    let mut found = faults(&driver, &dashboard.origin, target, width, scheme).await;
    dashboard.log_in(&driver).await;
    found.extend(faults(&driver, &dashboard.origin, "/", width, scheme).await);
    assert!(
        found.is_empty(),
        "{width} px, {scheme:?}:\n{}",
        found.join("\n")
    );
}

/// Tests the forms that change nothing: the search, the filters, and the logout.
#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_keyboard_without_scripts(Hand::Keyboard, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn search_and_filters_show_the_wanted_rows(#[case] hand: Hand, #[case] scripts: bool) {
    let filled = Filled::start().await;
    let users = Users::new(&[("ada", "view,pause,operate")]);
    let dashboard = Dashboard::start(&filled.redis, &users.arguments()).await;
    let driver = Driver::start().await;
    driver.resize(1280, 800).await;
    driver.allow_scripts(scripts).await;
    // The login leads to the page that was wanted.
    driver.open(&dashboard.url("/held?why=operator")).await;
    let person = Person {
        driver: &driver,
        hand,
    };
    person
        .write("//input[@id='token']", users.token("ada"))
        .await;
    person.push(&button_path("Log in")).await;
    driver.wait_for_path("/held").await;
    assert!(
        driver.url().await.ends_with("/held?why=operator"),
        "{}",
        driver.url().await
    );

    let name = format!("operator:{}", HOSTILE[0]);
    person.write("//input[@id='search']", &name).await;
    person.push(&button_path("Open")).await;
    driver.wait_for_path("/object").await;
    driver.wait_for_text(&name).await;

    let rows = async || driver.find_all("main tbody tr").await.len();
    for (path, fields, count) in [
        (
            "/held",
            &[("Name begins with", "operator:")][..],
            HOSTILE.len(),
        ),
        ("/held", &[("Name begins with", "none:")], 0),
        ("/paused", &[("Name begins with", "blocked:1")], 1),
        ("/dead", &[("Object", "none:1")], 0),
        ("/log", &[("Object", "none:1")], HOSTILE.len()),
    ] {
        driver.open(&dashboard.url(path)).await;
        for (label, text) in fields {
            person
                .write(&format!("//main{}", field_path(label)), text)
                .await;
        }
        person.push(&button_path("Show")).await;
        let answer = format!("{path}?");
        driver
            .wait_for("the filtered list", async || {
                driver.url().await.contains(&answer).then_some(())
            })
            .await;
        driver
            .wait_for(&format!("{path} {fields:?}: {count} rows"), async || {
                (rows().await == count).then_some(())
            })
            .await;
    }
    driver.open(&dashboard.url("/held")).await;
    driver
        .click(&driver.find("select[name=why] option[value=operator]").await)
        .await;
    person.push(&button_path("Show")).await;
    driver
        .wait_for("the filtered list", async || {
            driver.url().await.contains("why=operator").then_some(())
        })
        .await;
    driver
        .wait_for("only such objects", async || {
            (!driver.page_text().await.contains("many:")).then_some(())
        })
        .await;
    assert!(rows().await >= HOSTILE.len());

    person.push(&button_path("Log out")).await;
    driver.wait_for_path("/login").await;
    driver.open(&dashboard.url("/held")).await;
    driver.find_button("Log in").await;
}

/// Tests that the hostile texts are on the pages at all, as text.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn hostile_texts_are_shown_as_text() {
    let filled = Filled::start().await;
    let dashboard = Dashboard::start(&filled.redis, &[]).await;
    let driver = Driver::start().await;
    dashboard.log_in(&driver).await;
    // The newest dead letter has 1 MiB, which ends the first page.
    for path in [
        "/paused",
        "/dead?order=oldest",
        "/workers",
        "/rules",
        "/schedules",
        "/cron",
        "/log",
        "/actions",
    ] {
        driver.open(&dashboard.url(path)).await;
        driver.wait_for_text("<script>alert(1)</script>").await;
    }
    for name in HOSTILE {
        let name = format!("operator:{name}");
        driver
            .open(&dashboard.url(&named("/object", name.as_bytes())))
            .await;
        driver.wait_for_text(&escape::name(&name)).await;
    }
    // The state has the color that belongs to it.
    driver.open(&dashboard.url("/log?status=dead")).await;
    driver.find("td .mark.bad").await;
    driver
        .open(&dashboard.url(&named("/object", b"bad\0name")))
        .await;
    driver.find(".why .mark.warn").await;
    driver.wait_for_text(r"bad\u{0}name").await;
}
