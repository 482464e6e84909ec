//! The faults that no page may have.

use crate::axe::axe;
use crate::driver::{Driver, Scheme, is_foreign, layout_width, scrolls_sideways};
use crate::element::Key;

/// Maximum size of a page in bytes. A page must shorten longer names and events.
const PAGE_BYTES_MAX: usize = 1_000_000;

/// Characters that could forge the text around them.
const RAW: [char; 5] = ['\u{200b}', '\u{202e}', '\u{2066}', '\u{1b}', '\u{0}'];

/// Opens a page, and returns its faults, in words.
pub(crate) async fn faults(
    driver: &Driver,
    origin: &str,
    target: &str,
    width: u32,
    scheme: Scheme,
) -> Vec<String> {
    faults_of_answer(driver, origin, target, width, scheme, 200).await
}

/// Opens a page that has this status, and returns its faults, in words.
pub(crate) async fn faults_of_answer(
    driver: &Driver,
    origin: &str,
    target: &str,
    width: u32,
    scheme: Scheme,
    expected: u64,
) -> Vec<String> {
    let mut found = Vec::new();
    driver.resize(width, 800).await;
    driver.prefer(scheme).await;
    // Leaves the page before, so that no line or request of it is seen below.
    driver.open("about:blank").await;
    driver.console().await;
    driver.requests().await;
    let url = format!("{origin}{target}");
    driver.open(&url).await;

    if scrolls_sideways(driver).await {
        found.push("it scrolls sideways".to_owned());
    }
    let laid_out = layout_width(driver).await;
    if laid_out != u64::from(width) {
        found.push(format!("it is laid out for {laid_out} px"));
    }
    let headings = driver.find_all("h1").await.len();
    if headings != 1 {
        found.push(format!("{headings} elements <h1>"));
    }
    driver.press(Key::Tab).await;
    let first = driver.text(&driver.active().await).await;
    if first != "Skip to content" {
        let first: String = first.chars().take(80).collect();
        found.push(format!("the first Tab is {first:?}"));
    }
    // Values of hidden fields are for the server, and nobody sees them.
    let html = "const page = document.documentElement.cloneNode(true);
        page.querySelectorAll('input[type=hidden]').forEach(field => field.remove());
        return page.outerHTML;";
    let html = driver.execute(html, &[]).await;
    let html = html.as_str().expect("HTML");
    if html.len() > PAGE_BYTES_MAX {
        found.push(format!("it has {} bytes", html.len()));
    }
    if let Some(at) = html.find(RAW) {
        found.push(format!(
            "a raw control character or direction mark behind {:?}",
            html[..at].lines().next_back()
        ));
    }
    found.extend(axe(driver).await.iter().map(ToString::to_string));

    let requests = driver.requests().await;
    let status = requests
        .iter()
        .find(|request| request.url == url && request.kind == "Document")
        .and_then(|one| one.status);
    if status != Some(expected) {
        found.push(format!(
            "status {}",
            status.map_or("none".to_owned(), |status| status.to_string())
        ));
    }
    let foreign = requests
        .iter()
        .filter(|request| is_foreign(&request.url, origin));
    found.extend(foreign.map(|request| format!("foreign request: {}", request.url)));
    // The browser itself reports the status of an error page.
    let reported =
        format!("Failed to load resource: the server responded with a status of {expected}");
    let mut console = driver.console().await;
    console.retain(|line| expected < 400 || !line.text.contains(&reported));
    found.extend(
        console
            .iter()
            .map(|line| format!("console, {}: {}", line.level, line.text)),
    );
    found
}
