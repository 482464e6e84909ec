//! Tests the harness with pages of its own: each fault of a page is found, and a page without a
//! fault has none.

use std::fs;

use serde_json::json;

use crate::axe::axe;
use crate::dashboard::first_url;
use crate::driver::{Driver, Scheme, is_foreign, layout_width, scrolls_sideways};
use crate::element::Key;
use crate::faults::faults;
use crate::filled::Filled;
use crate::site::{Site, page};
use crate::support::control;

#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn each_fault_of_a_page_is_found() {
    // Each page has one fault, and a text that the report of this fault contains.
    let faulty = [
        ("wide", r#"<p class="wide">a</p>"#, "scrolls sideways"),
        ("unnamed", "<button></button>", "axe: button-name"),
        ("marked", "<p>\u{202e}</p>", "direction mark"),
        (
            "large",
            Box::leak(format!("<p>{}</p>", "a ".repeat(500_000)).into_boxed_str()),
            "bytes",
        ),
        (
            "script",
            "<script>alert(1)</script>",
            "Content Security Policy",
        ),
        ("missing", r#"<img src="/none.png" alt="none">"#, "404"),
        (
            "foreign",
            r#"<img src="http://foreign.invalid/x.png" alt="x">"#,
            "foreign request: http://foreign.invalid/x.png",
        ),
    ];
    let good = page("Good", "<p>a</p>").0;
    let replaced = |from: &str, to: &str| {
        assert!(good.contains(from));
        good.replace(from, to)
    };
    let mut pages: Vec<_> = faulty
        .iter()
        .map(|(name, content, _)| (*name, page(name, content).0))
        .collect();
    pages.extend([
        ("good", good.clone()),
        ("headless", replaced("<h1>Good</h1>", "<p>Good</p>")),
        (
            "unscaled",
            replaced(
                r#"<meta name="viewport" content="width=device-width, initial-scale=1">"#,
                "",
            ),
        ),
        ("unskipped", replaced("Skip to content", "Skip")),
    ]);
    let site = Site::serve(&pages).await;
    let driver = Driver::start().await;
    for (name, text) in faulty
        .map(|(name, _, text)| (name, text))
        .into_iter()
        .chain([
            ("headless", "0 elements <h1>"),
            ("unscaled", "laid out for 980 px"),
            ("unskipped", "the first Tab is \"Skip\""),
            ("absent", "status 404"),
        ])
    {
        let found = faults(
            &driver,
            &site.origin,
            &format!("/{name}"),
            360,
            Scheme::Light,
        )
        .await;
        assert!(
            found.iter().any(|fault| fault.contains(text)),
            "{name}: {text:?} is not in {found:#?}"
        );
    }
    for (width, scheme, scripts) in [
        (360, Scheme::Light, true),
        (360, Scheme::Dark, true),
        (1280, Scheme::Light, false),
        (1280, Scheme::Dark, true),
    ] {
        driver.allow_scripts(scripts).await;
        let found = faults(&driver, &site.origin, "/good", width, scheme).await;
        assert!(found.is_empty(), "{width} {scheme:?}: {found:#?}");
        let heading = driver.find("h1").await;
        assert_eq!(
            driver.attribute(&heading, "data-script").await.is_some(),
            scripts
        );
    }
}

/// Tests that the size and the colors really change, and that axe-core examines the colors of each
/// scheme.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn size_and_colors_are_those_of_the_person() {
    // A link that only dark colors make unreadable.
    let faint = page("Faint", "<p>a</p>")
        .0
        .replace("/style.css", "/faint.css");
    let site = Site::serve(&[("faint", faint)]).await;
    let driver = Driver::start().await;
    for (width, scheme, contrast) in [(360, Scheme::Light, true), (1280, Scheme::Dark, false)] {
        driver.resize(width, 700).await;
        driver.prefer(scheme).await;
        driver.open(&site.url("faint")).await;
        let sides = driver
            .execute("return [innerWidth, innerHeight]", &[])
            .await;
        assert_eq!(sides, json!([width, 700]));
        assert_eq!(layout_width(&driver).await, u64::from(width));
        assert!(!scrolls_sideways(&driver).await);
        let broken: Vec<_> = axe(&driver).await.into_iter().map(|one| one.id).collect();
        assert_eq!(broken.is_empty(), contrast, "{scheme:?}: {broken:?}");
        assert!(contrast || broken == ["color-contrast"]);
    }
}

#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn forms_work_by_mouse_and_keyboard_with_and_without_scripts() {
    let form = r#"<form method="post" action="/posted" enctype="text/plain">
        <label for="why">It's the "reason"</label><input id="why" name="why">
        <label>Sure <input type="checkbox" name="sure"></label>
        <button>Send</button></form>"#;
    let site = Site::serve(&[("form", page("Form", form).0)]).await;
    let driver = Driver::start().await;
    for scripts in [true, false, true] {
        driver.allow_scripts(scripts).await;
        driver.open(&site.url("form")).await;
        let heading = driver.find("h1").await;
        assert_eq!(
            driver.attribute(&heading, "data-script").await.is_some(),
            scripts
        );
        assert_eq!(driver.title().await, "Form");

        driver
            .fill(&driver.find_label("It's the \"reason\"").await, "by mouse")
            .await;
        driver.click(&driver.find_label("Sure").await).await;
        driver.click(&driver.find_button("Send").await).await;
        driver.wait_for_text("why=by mouse sure=on").await;
        assert_eq!(driver.path().await, "/posted");

        driver.open(&site.url("form")).await;
        driver.press(Key::Tab).await;
        assert_eq!(
            driver.active().await,
            driver.find_link("Skip to content").await
        );
        driver.press(Key::Enter).await;
        driver
            .tab_to("field", 3, async |element| {
                driver.role(element).await == "textbox"
            })
            .await;
        driver.type_text("by keys").await;
        driver.press(Key::Tab).await;
        driver.press(Key::Space).await;
        let send = driver
            .tab_to("button", 3, async |element| {
                driver.role(element).await == "button"
            })
            .await;
        assert_eq!(driver.name(&send).await, "Send");
        driver.press(Key::TabBack).await;
        assert_eq!(driver.role(&driver.active().await).await, "checkbox");
        driver.press(Key::Tab).await;
        driver.press(Key::Enter).await;
        driver.wait_for_path("/posted").await;
        driver.wait_for_text("why=by keys sure=on").await;
        assert_eq!(
            driver.text(&driver.find_text("Posted").await).await,
            "Posted"
        );
    }
}

/// Tests the Redis that the pages show: each state is there, and `check` finds only the names that
/// were pushed by hand.
#[tokio::test]
async fn a_filled_redis_has_every_state() {
    let filled = Filled::start().await;
    let operator = control(&filled.redis.connect().await, filled.redis.keys());
    for name in Filled::objects() {
        operator
            .inspect(&name)
            .await
            .unwrap_or_else(|error| panic!("{:?}: {error}", String::from_utf8_lossy(&name)));
    }
    let report = operator.check().await.expect("checked");
    let unfit = report
        .violations
        .iter()
        .filter(|one| one.what.contains("workers hold such an object"));
    assert_eq!(
        (report.violations.len(), unfit.count()),
        (5, 5),
        "{:#?}",
        report.violations
    );
}

/// Tests the list of requests, cookies, and the picture.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn requests_cookies_and_pictures_are_seen() {
    let site = Site::serve(&[("good", page("Good", "<p>a</p>").0)]).await;
    let driver = Driver::start().await;
    driver.requests().await;
    driver.open(&site.url("good")).await;
    let requests = driver.requests().await;
    let seen: Vec<_> = requests
        .iter()
        .map(|one| {
            (
                one.url.replace(&site.origin, ""),
                one.kind.as_str(),
                one.status,
            )
        })
        .collect();
    for wanted in [
        ("/good", "Document"),
        ("/style.css", "Stylesheet"),
        ("/script.js", "Script"),
    ] {
        assert!(
            seen.contains(&(wanted.0.to_owned(), wanted.1, Some(200))),
            "{wanted:?}: {seen:?}"
        );
    }
    let mut later = driver.requests().await;
    // The browser asks for an icon when the page is loaded.
    later.retain(|request| request.url != site.url("favicon.ico"));
    assert_eq!(later, []);
    assert!(driver.console().await.is_empty());

    driver.execute("document.cookie = 'a=b'", &[]).await;
    let cookies = driver.cookies().await;
    assert_eq!(
        (cookies.len(), &cookies[0]["name"], &cookies[0]["value"]),
        (1, &json!("a"), &json!("b"))
    );
    driver.delete_cookies().await;
    assert!(driver.cookies().await.is_empty());

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("page.png");
    driver.resize(360, 640).await;
    driver.screenshot(&file).await;
    let picture = fs::read(&file).expect("a picture");
    assert_eq!(&picture[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(
        (&picture[16..20], &picture[20..24]),
        (&360_u32.to_be_bytes()[..], &640_u32.to_be_bytes()[..])
    );
}

#[test]
fn a_printed_link_is_read_from_a_whole_line() {
    let line = "Open http://127.0.0.1:8480/link?token=abc to log in";
    assert_eq!(first_url(line), None);
    assert_eq!(
        first_url(&format!("seriatim\n{line}\n")).as_deref(),
        Some("http://127.0.0.1:8480/link?token=abc")
    );
    assert_eq!(
        first_url("INFO listening address=http://127.0.0.1:80 x\n").as_deref(),
        Some("http://127.0.0.1:80")
    );
}

#[test]
fn only_other_origins_are_foreign() {
    let origin = "http://127.0.0.1:80";
    for own in [
        "http://127.0.0.1:80",
        "http://127.0.0.1:80/",
        "http://127.0.0.1:80?a",
        "data:image/png;base64,",
        "about:blank",
    ] {
        assert!(!is_foreign(own, origin), "{own}");
    }
    for foreign in [
        "http://127.0.0.1:8080/",
        "https://127.0.0.1:80/",
        "http://127.0.0.1/",
        "http://127.0.0.1:80.example.com/",
        "",
    ] {
        assert!(is_foreign(foreign, origin), "{foreign}");
    }
}
