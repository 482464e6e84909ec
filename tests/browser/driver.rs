//! A person at a browser: opens pages, finds elements, clicks, types. Also the person's tools: the
//! console, the list of requests, the size of the window.
//!
//! A method panics if it cannot do its work. Methods that find an element wait for it.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::requests::{Request, Requests};
use crate::session::Session;
use crate::support::until;

/// Longest wait for a state of a page.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);

/// Windows below this width are those of a phone: there the page's `viewport` counts.
const PHONE_BELOW: u32 = 600;

/// A browser with one window.
pub(crate) struct Driver {
    pub(crate) session: Session,
    /// Whether pages may run scripts.
    scripts: Cell<bool>,
}

/// The colors that the person prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

/// A line of the console. Errors of scripts, refused requests and violations of the
/// Content-Security-Policy are such lines.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) level: String,
    pub(crate) text: String,
}

impl Driver {
    /// Starts a browser, with an empty page.
    pub(crate) async fn start() -> Self {
        let this = Self {
            session: Session::start().await,
            scripts: Cell::new(true),
        };
        // The first page is the browser's own, and loads scripts for seconds.
        this.open("about:blank").await;
        this
    }

    /// Opens a URL of another page or of the same one, and waits until it is loaded, with its
    /// styles.
    pub(crate) async fn open(&self, url: &str) {
        self.execute("window.isLeft = true", &[]).await;
        self.post("/url", json!({ "url": url })).await;
        // On a busy machine chromedriver may take the end of an earlier load for the end of this
        // one. Then the page has no style yet.
        let loaded = "return !window.isLeft && document.readyState === 'complete'";
        self.wait_for(&format!("{url} is loaded"), async || {
            (self.execute(loaded, &[]).await == true).then_some(())
        })
        .await;
    }

    /// Returns the URL of the page.
    pub(crate) async fn url(&self) -> String {
        as_text(&self.get("/url").await)
    }

    /// Returns the path of the page, without the query.
    pub(crate) async fn path(&self) -> String {
        self.url()
            .await
            .parse::<reqwest::Url>()
            .expect("a URL")
            .path()
            .to_owned()
    }

    /// Returns the title of the page.
    pub(crate) async fn title(&self) -> String {
        as_text(&self.get("/title").await)
    }

    /// Gives the page this size. Below 600 px the window is that of a phone.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE_BELOW });
        self.session
            .devtools("Emulation.setDeviceMetricsOverride", size)
            .await;
    }

    /// Lets the person prefer dark or light colors. The person also prefers no motion, so that a
    /// test sees the end of each transition.
    pub(crate) async fn prefer(&self, scheme: Scheme) {
        let value = if scheme == Scheme::Dark {
            "dark"
        } else {
            "light"
        };
        let feature = |name, value| json!({ "name": name, "value": value });
        let features = [
            feature("prefers-color-scheme", value),
            feature("prefers-reduced-motion", "reduce"),
        ];
        let media = json!({ "features": features });
        self.session
            .devtools("Emulation.setEmulatedMedia", media)
            .await;
    }

    /// Allows or forbids the scripts of pages. Counts from the next page on.
    pub(crate) async fn allow_scripts(&self, allowed: bool) {
        self.session
            .devtools(
                "Emulation.setScriptExecutionDisabled",
                json!({ "value": !allowed }),
            )
            .await;
        self.scripts.set(allowed);
    }

    /// Returns whether pages may run scripts.
    pub(crate) fn scripts_are_allowed(&self) -> bool {
        self.scripts.get()
    }

    /// Runs the body of a function in the page, and returns its result. If this is a promise,
    /// returns the result of the promise. The page's Content-Security-Policy has no effect on it.
    pub(crate) async fn execute(&self, script: &str, arguments: &[Value]) -> Value {
        self.post(
            "/execute/sync",
            json!({ "script": script, "args": arguments }),
        )
        .await
    }

    /// Waits until `ready` returns a value, at most 10 s.
    pub(crate) async fn wait_for<T, F>(&self, what: &str, ready: impl FnMut() -> F) -> T
    where
        F: Future<Output = Option<T>>,
    {
        until(what, WAIT_MAX, ready).await
    }

    /// Waits until the page has this path.
    pub(crate) async fn wait_for_path(&self, path: &str) {
        self.wait_for(&format!("the path is {path}"), async || {
            (self.path().await == path).then_some(())
        })
        .await;
    }

    /// Waits until the page shows this text.
    pub(crate) async fn wait_for_text(&self, text: &str) {
        self.wait_for(&format!("the page shows {text:?}"), async || {
            self.page_text().await.contains(text).then_some(())
        })
        .await;
    }

    /// Returns the text of the page, as the person sees it.
    pub(crate) async fn page_text(&self) -> String {
        let body = self.find("body").await;
        // The page may be replaced at this moment.
        self.session
            .get(&format!("/element/{}/text", body.0))
            .await
            .map(|text| as_text(&text))
            .unwrap_or_default()
    }

    /// Returns the lines of the console since the last call.
    pub(crate) async fn console(&self) -> Vec<Line> {
        let lines = self.post("/se/log", json!({ "type": "browser" })).await;
        let line = |line: &Value| Line {
            level: as_text(&line["level"]),
            text: as_text(&line["message"]),
        };
        lines.as_array().expect("lines").iter().map(line).collect()
    }

    /// Returns the requests of pages since the last call, in their order. Waits until each has an
    /// answer. Requests that the browser refused are also there; those of its own pages are not.
    pub(crate) async fn requests(&self) -> Vec<Request> {
        let seen = RefCell::new(Requests::default());
        // The log of the browser may follow the page.
        until("each request has an answer", WAIT_MAX, async || {
            let lines = self.post("/se/log", json!({ "type": "performance" })).await;
            let mut seen = seen.borrow_mut();
            for line in lines.as_array().expect("lines") {
                let line: Value =
                    serde_json::from_str(line["message"].as_str().expect("a message"))
                        .expect("JSON");
                seen.add(&line["message"]);
            }
            seen.are_answered().then_some(())
        })
        .await;
        seen.into_inner().into_vec()
    }

    /// Returns the cookies of the page, as WebDriver describes them.
    pub(crate) async fn cookies(&self) -> Vec<Value> {
        self.get("/cookie")
            .await
            .as_array()
            .expect("cookies")
            .clone()
    }

    /// Deletes the cookies of the page.
    pub(crate) async fn delete_cookies(&self) {
        self.session
            .send(Method::DELETE, "/cookie", None)
            .await
            .expect("deleted");
    }

    /// Writes a picture of the visible part of the page, as PNG.
    pub(crate) async fn screenshot(&self, file: &Path) {
        let picture = BASE64_STANDARD
            .decode(as_text(&self.get("/screenshot").await))
            .expect("base64");
        std::fs::write(file, picture).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    pub(crate) async fn get(&self, command: &str) -> Value {
        self.session
            .get(command)
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub(crate) async fn post(&self, command: &str, body: Value) -> Value {
        self.session
            .post(command, body)
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }
}

/// Returns whether a URL is of another origin, and reaches for the network.
pub(crate) fn is_foreign(url: &str, origin: &str) -> bool {
    let inside = ["data:", "blob:", "about:"]
        .iter()
        .any(|scheme| url.starts_with(scheme));
    !inside
        && url
            .strip_prefix(origin)
            .is_none_or(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#']))
}

/// Returns whether the page is wider than the window.
pub(crate) async fn scrolls_sideways(driver: &Driver) -> bool {
    let root = "const root = document.documentElement; return root.scrollWidth > root.clientWidth;";
    driver
        .execute(root, &[])
        .await
        .as_bool()
        .expect("a boolean")
}

/// Returns the width for which the page is laid out. On a phone it differs from the width of the
/// window if the page has no `viewport`.
pub(crate) async fn layout_width(driver: &Driver) -> u64 {
    driver
        .execute("return document.documentElement.clientWidth", &[])
        .await
        .as_u64()
        .expect("a width")
}

/// Returns a string of JSON; for other values, an empty text.
pub(crate) fn as_text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
