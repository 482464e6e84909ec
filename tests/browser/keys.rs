//! The keys of the pages: each of them leads where the help says.

use serde_json::json;

use crate::dashboard::Dashboard;
use crate::driver::Driver;
use crate::element::Key;
use crate::filled::Filled;

const PAGES: [(&str, &str); 11] = [
    ("h", "/held"),
    ("p", "/paused"),
    ("d", "/dead"),
    ("w", "/workers"),
    ("r", "/rules"),
    ("s", "/schedules"),
    ("c", "/cron"),
    ("l", "/log"),
    ("a", "/actions"),
    ("k", "/check"),
    ("o", "/"),
];

#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn each_key_does_as_the_help_says() {
    let filled = Filled::start().await;
    let dashboard = Dashboard::start(&filled.redis, &[]).await;
    let driver = Driver::start().await;
    driver.resize(1280, 800).await;
    dashboard.log_in(&driver).await;
    for (key, path) in PAGES {
        driver.type_text("g").await;
        driver.type_text(key).await;
        driver.wait_for_path(path).await;
    }

    // Search, and typing in a field without any effect of the keys.
    driver.type_text("/").await;
    driver.type_text("g?xujk:1/").await;
    let field = driver
        .execute(
            "return document.activeElement.id + ' ' + document.activeElement.value",
            &[],
        )
        .await;
    assert_eq!(field, json!("search g?xujk:1/"));
    driver.press(Key::Enter).await;
    driver.wait_for_path("/object").await;
    assert!(
        driver.url().await.ends_with("?name=g%3Fxujk%3A1%2F"),
        "{}",
        driver.url().await
    );

    // The rows of a list.
    driver.open(&dashboard.url("/held?prefix=many%3A5")).await;
    let focused = async || driver.text(&driver.active().await).await;
    for (key, row) in [("j", 1), ("j", 2), ("j", 3), ("k", 2)] {
        driver.type_text(key).await;
        let expected = driver
            .text(
                &driver
                    .find(&format!("tbody tr:nth-child({row}) a.row-link"))
                    .await,
            )
            .await;
        assert_eq!(focused().await, expected, "{key} {row}");
    }
    driver.type_text("x").await;
    let ticked = "return [...document.querySelectorAll('tbody tr')].map(row => row.querySelector('input:checked') !== null)";
    let ticked = driver.execute(ticked, &[]).await;
    let rows = ticked.as_array().expect("rows");
    assert!(
        rows.iter()
            .enumerate()
            .all(|(at, is_ticked)| *is_ticked == json!(at == 1)),
        "{rows:?}"
    );
    let name = focused().await;
    driver.press(Key::Enter).await;
    driver.wait_for_path("/object").await;
    assert!(driver.title().await.contains(&name), "{name}");

    // The help opens, keeps the keys, and closes.
    driver.type_text("?").await;
    driver.wait_for_text("search for an object").await;
    driver.type_text("gh").await;
    assert_eq!(driver.path().await, "/object");
    let close = driver
        .tab_to("Close", 5, async |active| {
            driver.text(active).await == "Close"
        })
        .await;
    assert_eq!(driver.role(&close).await, "button");
    driver.press(Key::Enter).await;
    driver
        .wait_for("the help is closed", async || {
            (!driver.page_text().await.contains("search for an object")).then_some(())
        })
        .await;

    driver.type_text("u").await;
    driver.find_button("Updates are stopped").await;
    driver.type_text("u").await;
    driver.find_button("Stop updates").await;
    assert!(driver.console().await.is_empty());
}
