//! A chromedriver process with one session, and the plain WebDriver protocol.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::{Client, Method};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::console::PATIENCE;
use crate::support::until;

/// Longest time of one command. Loading a page is one command.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// A browser of its own, with an empty profile. Browser and chromedriver end when the value is
/// dropped.
pub(crate) struct Session {
    chromedriver: Child,
    /// The browser's process. It may outlive chromedriver.
    browser: Option<Pid>,
    /// URL of the session.
    url: String,
    client: Client,
    /// The profile of the browser, and the log of chromedriver.
    dir: TempDir,
}

impl Session {
    /// Starts chromedriver on a free port, and a browser.
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let chromedriver = chromedriver(&dir);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .no_proxy()
            .timeout(COMMAND_MAX)
            .build()
            .expect("a client");
        let mut this = Self {
            chromedriver,
            browser: None,
            url: String::new(),
            client,
            dir,
        };
        let port = until("chromedriver listens", PATIENCE, || {
            std::future::ready(this.port())
        })
        .await;
        this.url = format!("http://127.0.0.1:{port}/session");
        let capabilities = json!({ "capabilities": { "alwaysMatch": this.capabilities() } });
        let made = this.post("", capabilities).await.expect("a browser starts");
        let browser = made["capabilities"]["goog:processID"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        this.browser = browser.and_then(Pid::from_raw);
        this.url = format!(
            "{}/{}",
            this.url,
            made["sessionId"].as_str().expect("a session")
        );
        this
    }

    /// Returns the port of chromedriver as soon as it listens.
    ///
    /// chromedriver takes a free port of `::1`, and then the same port of `127.0.0.1`. If another
    /// process has the latter, chromedriver exits, and another one is started.
    fn port(&mut self) -> Option<u16> {
        // The exit is looked for first: after it, the log is whole.
        let exit = self.chromedriver.try_wait().expect("a status");
        let log = std::fs::read_to_string(log(&self.dir)).expect("a log");
        if let Some(exit) = exit {
            assert!(
                log.contains("IPv4 port not available"),
                "chromedriver: {exit}: {log}"
            );
            self.chromedriver = chromedriver(&self.dir);
            return None;
        }
        let (_, port) = log.split_once("started successfully on port ")?;
        port.split_once('.')?.0.parse().ok()
    }

    fn capabilities(&self) -> Value {
        let profile = format!(
            "--user-data-dir={}",
            self.dir.path().join("profile").display()
        );
        let arguments = [
            "--headless=new",
            // Root cannot use the sandbox. All pages are those of the tests.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            // A page must not reach other machines. A try is still reported as a request.
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            // A scroll bar would take a part of the width.
            "--hide-scrollbars",
            &profile,
        ];
        json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        })
    }

    /// Sends a command of the WebDriver protocol. Returns its value, or the text of the error.
    pub(crate) async fn send(
        &self,
        method: Method,
        command: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let mut request = self
            .client
            .request(method, format!("{}{command}", self.url));
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await.map_err(|error| error.to_string())?;
        let done = response.status().is_success();
        let text = response.text().await.map_err(|error| error.to_string())?;
        let mut answer: Value =
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let value = answer["value"].take();
        if done {
            return Ok(value);
        }
        // The rest of the message is a trace of the stack.
        let message = value["message"]
            .as_str()
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default();
        Err(format!(
            "{}: {message}",
            value["error"].as_str().unwrap_or(&text)
        ))
    }

    pub(crate) async fn get(&self, command: &str) -> Result<Value, String> {
        self.send(Method::GET, command, None).await
    }

    pub(crate) async fn post(&self, command: &str, body: Value) -> Result<Value, String> {
        self.send(Method::POST, command, Some(body)).await
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.post("/goog/cdp/execute", body)
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }
}

/// Starts chromedriver.
fn chromedriver(dir: &TempDir) -> Child {
    Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(File::create(log(dir)).expect("a log"))
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver is on the PATH: scripts/test-browser installs it")
}

/// Returns the path of the log of chromedriver.
fn log(dir: &TempDir) -> PathBuf {
    dir.path().join("log")
}

impl Drop for Session {
    fn drop(&mut self) {
        // chromedriver would leave the browser behind.
        if let Some(browser) = self.browser {
            let _ = kill_process(browser, Signal::KILL);
        }
        let _ = self.chromedriver.kill();
        let _ = self.chromedriver.wait();
    }
}
