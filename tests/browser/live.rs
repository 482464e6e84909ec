//! Pages that change while someone looks at them, and the cost of the looks.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, Response};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::dashboard::{Dashboard, Users};
use crate::driver::Driver;
use crate::element::Key;
use crate::filled::Filled;
use crate::pages::named;
use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::Proxy;
use crate::support::{Redis, control, until};

/// Returns the figure above this text on the overview.
async fn figure(driver: &Driver, what: &str) -> String {
    let script = "const all = [...document.querySelectorAll('.figures li')];
        return all.find(one => one.querySelector('span').textContent === arguments[0]).querySelector('b').textContent;";
    driver
        .execute(script, &[json!(what)])
        .await
        .as_str()
        .expect("a figure")
        .replace('\u{202f}', "")
}

async fn wait_for_figure(driver: &Driver, what: &str, expected: &str) {
    driver
        .wait_for(&format!("{what}: {expected}"), async || {
            (figure(driver, what).await == expected).then_some(())
        })
        .await;
}

/// Waits until the page has got a message from the server since this call.
async fn wait_for_message(driver: &Driver) {
    let wait = "const source = new EventSource('/live');
        return new Promise(done => source.onmessage = () => { source.close(); setTimeout(() => done(true), 50); });";
    for _ in 0..2 {
        assert_eq!(driver.execute(wait, &[]).await, json!(true));
    }
}

/// Tests that the figures change while one looks, and that the button stops and continues this.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn the_overview_changes_until_it_is_told_to_stop() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let dashboard = Dashboard::start(&redis, &[]).await;
    let driver = Driver::start().await;
    driver.resize(1280, 800).await;
    dashboard.log_in(&driver).await;
    wait_for_figure(&driver, "markers waiting", "0").await;
    for number in 0..1234 {
        console.emit(&format!("work:{number}"), "1").await;
    }
    wait_for_figure(&driver, "markers waiting", "1234").await;
    driver
        .wait_for_text("No worker process is running, and objects wait.")
        .await;
    // The count by prefix was made when the viewer came, or a little later.
    driver.wait_for_text(" objects, counted ").await;

    // A part in which someone works stays as it is. The other parts change.
    driver
        .execute("document.querySelector('.figures a').focus()", &[])
        .await;
    let active = driver.active().await;
    console.emit("work:x", "1").await;
    wait_for_message(&driver).await;
    assert_eq!(driver.active().await, active, "the focus is lost");
    driver.press(Key::Tab).await;
    driver.execute("document.activeElement.blur()", &[]).await;
    wait_for_figure(&driver, "markers waiting", "1235").await;
    // Open figures of a chart stay open.
    let chart = driver
        .find("[data-part=charts] details:first-of-type summary")
        .await;
    driver.click(&chart).await;
    driver.execute("document.activeElement.blur()", &[]).await;
    console.emit("work:y", "1").await;
    wait_for_figure(&driver, "markers waiting", "1236").await;
    wait_for_message(&driver).await;
    assert_eq!(
        driver
            .execute(
                "return document.querySelectorAll('[data-part=charts] details[open]').length",
                &[]
            )
            .await,
        json!(1)
    );

    driver
        .click(&driver.find_button("Stop updates").await)
        .await;
    let stopped = driver.find_button("Updates are stopped").await;
    assert_eq!(
        driver.attribute(&stopped, "aria-pressed").await.as_deref(),
        Some("true")
    );
    console.emit("work:z", "1").await;
    wait_for_message(&driver).await;
    assert_eq!(figure(&driver, "markers waiting").await, "1236");
    driver.click(&stopped).await;
    wait_for_figure(&driver, "markers waiting", "1237").await;
    assert!(driver.console().await.is_empty());
}

/// Tests that an update of an object's page keeps an open form with its typed reason.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn an_update_keeps_an_open_form() {
    let filled = Filled::start().await;
    let dashboard = Dashboard::start(&filled.redis, &[]).await;
    let driver = Driver::start().await;
    dashboard.log_in(&driver).await;
    let name = "many:7";
    driver
        .open(&dashboard.url(&named("/object", name.as_bytes())))
        .await;
    // The updates of this page come every 5 s; the test does not wait for them.
    driver
        .execute("document.body.dataset.every = '0.1'", &[])
        .await;
    driver.type_text("u").await;
    driver.type_text("u").await;
    driver
        .click(&driver.find_button(&format!("Pause {name}")).await)
        .await;
    driver
        .fill(
            &driver.find("details[open] input[name=reason]").await,
            "half a rea",
        )
        .await;
    let operator = control(&filled.redis.connect().await, filled.redis.keys());
    let by = seriatim::control::By {
        who: "bob",
        why: "the upstream is gone",
    };
    let block = seriatim::control::rules::Kind::Block;
    operator
        .set_rule(by, block, &"many:*".parse().expect("a selector"), None)
        .await
        .expect("set");
    driver.wait_for_text("set by bob").await;
    let field = driver.active().await;
    assert_eq!(
        driver
            .execute("return document.activeElement.value", &[])
            .await,
        json!("half a rea")
    );
    driver.type_text("son").await;
    assert_eq!(driver.active().await, field);
    driver.press(Key::Enter).await;
    driver.wait_for_path("/job").await;
    let action = operator
        .actions(None, 1)
        .await
        .expect("the actions")
        .actions
        .remove(0);
    assert_eq!(
        (action.action.as_str(), action.why.as_str()),
        ("pause", "half a reason")
    );
}

/// Tests that a page says that its figures are old, if Redis or the dashboard is away.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn a_page_without_new_figures_says_so() {
    const OLD: &str = "No new figures since ";
    let redis = Redis::own(&[]);
    redis.console().await.emit("work:1", "1").await;
    let proxy = Proxy::before(&redis);
    let dashboard = Dashboard::start_at(&proxy.url(), Some(redis.namespace()), &[]).await;
    let driver = Driver::start().await;
    dashboard.log_in(&driver).await;
    driver.open(&dashboard.url("/object?name=work:1")).await;
    let wait_for_old = async || {
        until("the page says so", PATIENCE, async || {
            driver.page_text().await.contains(OLD).then_some(())
        })
        .await
    };
    proxy.close();
    wait_for_old().await;
    proxy.open();
    driver
        .wait_for("new figures", async || {
            (!driver.page_text().await.contains(OLD)).then_some(())
        })
        .await;
    driver.open(&dashboard.url("/")).await;
    wait_for_figure(&driver, "markers waiting", "1").await;
    drop(dashboard);
    wait_for_old().await;
    driver.type_text("u").await;
    assert!(
        !driver.page_text().await.contains(OLD),
        "the user has stopped the updates"
    );
}

/// Tests that new rows of the log come at the top, and that earlier ones stay.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn the_log_is_followed() {
    let filled = Filled::start().await;
    let console = filled.redis.console().await;
    let dashboard = Dashboard::start(&filled.redis, &[]).await;
    let driver = Driver::start().await;
    dashboard.log_in(&driver).await;
    driver.open(&dashboard.url("/log?status=completed")).await;
    driver.click(&driver.find_button("Follow").await).await;
    driver.find_link("Stop following").await;
    let rows = async || {
        let script = "return [...document.querySelectorAll('[data-part=new] tr')].map(row => row.querySelector('.name').textContent)";
        driver.execute(script, &[]).await
    };
    for number in 1..=3 {
        console
            .emit(&format!("followed:{number}"), r#"{"type":"done"}"#)
            .await;
        // Events of another status are left out.
        console
            .emit(&format!("left:{number}"), r#"{"type":"dead","text":"no"}"#)
            .await;
        let newest = json!(format!("followed:{number}"));
        driver
            .wait_for("the newest row is at the top", async || {
                (rows().await[0] == newest).then_some(())
            })
            .await;
    }
    // A row that comes while the updates are stopped is shown when they go on.
    driver.type_text("u").await;
    console.emit("followed:4", r#"{"type":"done"}"#).await;
    until("the row is in the log", PATIENCE, async || {
        let page = control(&filled.redis.connect().await, filled.redis.keys())
            .newest_log(None, 1)
            .await
            .expect("the log");
        page.entries
            .first()
            .is_some_and(|row| row.object == "followed:4")
            .then_some(())
    })
    .await;
    driver.type_text("u").await;
    driver
        .wait_for("the missed row", async || {
            (rows().await[0] == json!("followed:4")).then_some(())
        })
        .await;
    assert_eq!(
        rows().await,
        json!(["followed:4", "followed:3", "followed:2", "followed:1"])
    );
    assert!(driver.console().await.is_empty());
}

/// The work of Redis so far, apart from that for this test.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    commands: u64,
    us: u64,
    bytes: u64,
}

impl Work {
    async fn so_far(console: &Console) -> Self {
        let stats: String = console.run(&["INFO", "commandstats", "stats"]).await;
        let figure = |line: &str, name: &str| -> u64 {
            let (_, rest) = line.split_once(name).expect("the figure");
            rest.split(',')
                .next()
                .and_then(|figure| figure.parse().ok())
                .expect("a number")
        };
        let mut work = Self {
            commands: 0,
            us: 0,
            bytes: 0,
        };
        for line in stats.lines() {
            if line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info:") {
                work.commands += figure(line, "calls=");
                work.us += figure(line, "usec=");
            }
            // The reply to INFO is part of the bytes that are sent.
            if line.starts_with("total_net_input_bytes:") {
                work.bytes = figure(line, ":");
            }
        }
        work
    }

    fn since(self, before: Self) -> Self {
        Self {
            commands: self.commands - before.commands,
            us: self.us - before.us,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// Reads the streams for a time, and returns the work of Redis in it.
async fn work_for(viewers: &mut Vec<Response>, time: Duration, console: &Console) -> Work {
    let before = Work::so_far(console).await;
    let reading = viewers.drain(..).map(|mut viewer| {
        tokio::spawn(async move {
            let (end, mut messages) = (Instant::now() + time, 0);
            while let Ok(Ok(Some(_))) = timeout_at(end, viewer.chunk()).await {
                messages += 1;
            }
            (viewer, messages)
        })
    });
    let mut read = Vec::new();
    for viewer in join_all(reading).await {
        let (viewer, messages) = viewer.expect("no panic");
        assert!(
            messages >= time.as_secs() / 2,
            "each viewer gets messages, not {messages}"
        );
        read.push(viewer);
    }
    let work = Work::so_far(console).await.since(before);
    println!("{} viewers, {time:?}: {work:?}", read.len());
    *viewers = read;
    work
}

/// Tests that nothing is read without viewers, and that many viewers cost Redis as many commands and
/// bytes as one. Its time depends on the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for 24 s; scripts/test-browser runs it"]
async fn many_viewers_cost_as_much_as_one() {
    // One user may have at most 75 streams.
    const VIEWERS: usize = 50;
    const TIME: Duration = Duration::from_secs(8);
    let (redis, console) = Redis::own(&[]).with_console().await;
    for number in 0..100 {
        console.emit(&format!("work:{number}"), "1").await;
    }
    let users = Users::new(&[("ada", "view")]);
    let dashboard = Dashboard::start(&redis, &users.arguments()).await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().no_proxy().build().expect("a client");
    let open = async || -> Response {
        let request = client
            .get(dashboard.url("/live"))
            .bearer_auth(users.token("ada"));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        response
    };

    let before = Work::so_far(&console).await;
    tokio::time::sleep(TIME).await;
    let idle = Work::so_far(&console).await.since(before);
    assert_eq!((idle.commands, idle.us), (0, 0), "without viewers");

    let mut viewers = vec![open().await];
    // The first look loads the scripts.
    assert!(viewers[0].chunk().await.expect("a message").is_some());
    let one = work_for(&mut viewers, TIME, &console).await;
    while viewers.len() < VIEWERS {
        viewers.push(open().await);
    }
    for viewer in &mut viewers {
        assert!(viewer.chunk().await.expect("a message").is_some());
    }
    let many = work_for(&mut viewers, TIME, &console).await;
    assert!(one.commands > 0, "the figures are read");
    // The ends of a period may divide a look: one look of eight more.
    assert!(4 * many.commands <= 5 * one.commands, "{many:?}, {one:?}");
    assert!(4 * many.bytes <= 5 * one.bytes, "{many:?}, {one:?}");
}
