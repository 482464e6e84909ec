//! A running `seriatim serve`, and requests to it.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};

use reqwest::{Client, ClientBuilder, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::console::PATIENCE;
use crate::support::proxy::Proxy;
use crate::support::{Redis, until};

/// A server process; killed when it is dropped.
pub(crate) struct Serving {
    child: Child,
    dir: tempfile::TempDir,
    pub(crate) url: String,
    client: Client,
}

/// The status and the body of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) retry_after: Option<String>,
    pub(crate) replayed: bool,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the status and the word of a problem document.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status, "{self:?}");
        assert!(
            document["title"].is_string() && document["detail"].is_string(),
            "{self:?}"
        );
        let kind = document["type"].as_str().expect("a type");
        (
            self.status,
            kind.strip_prefix("urn:seriatim:")
                .expect("a URN")
                .to_owned(),
        )
    }
}

impl Serving {
    /// Starts a server on a free port, and waits until it listens.
    pub(crate) async fn start(redis: &Redis, options: &[&str]) -> Self {
        Self::start_at(redis, "127.0.0.1:0", options, client()).await
    }

    pub(crate) async fn start_at(
        redis: &Redis,
        address: &str,
        options: &[&str],
        client: Client,
    ) -> Self {
        Self::spawn(command(redis, options), address, client).await
    }

    /// Starts a server behind a proxy, on a free port.
    pub(crate) async fn start_behind(proxy: &Proxy, redis: &Redis) -> Self {
        Self::spawn(
            command_to(&proxy.url(), redis, &[]),
            "127.0.0.1:0",
            client(),
        )
        .await
    }

    async fn spawn(mut command: Command, address: &str, client: Client) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let child = command
            .args(["--listen", address])
            .stderr(File::create(dir.path().join("log")).expect("a log"))
            .spawn()
            .expect("the program starts");
        let mut this = Self {
            child,
            dir,
            url: String::new(),
            client,
        };
        this.url = until("it listens", PATIENCE, async || {
            let log = this.log();
            let (_, rest) = log.split_once("listening address=")?;
            Some(rest.split_whitespace().next()?.to_owned()).filter(|_| rest.contains('\n'))
        })
        .await;
        this
    }

    pub(crate) fn request(&self, method: Method, target: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{target}", self.url))
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        answer(self.request(Method::GET, target)).await
    }

    pub(crate) async fn delete(&self, target: &str) -> Answer {
        answer(self.request(Method::DELETE, target)).await
    }

    pub(crate) async fn post(&self, target: &str, body: &str) -> Answer {
        answer(self.posted(target, body)).await
    }

    pub(crate) fn posted(&self, target: &str, body: &str) -> RequestBuilder {
        self.request(Method::POST, target)
            .header("content-type", "application/json")
            .body(body.to_owned())
    }

    /// Sends lines, and returns the answers.
    pub(crate) async fn lines(&self, lines: &str) -> Vec<Value> {
        let request = self
            .request(Method::POST, "/v1/events")
            .header("content-type", "application/x-ndjson");
        let answer = answer(request.body(lines.to_owned())).await;
        assert_eq!(
            (answer.status, answer.content_type.as_str()),
            (200, "application/x-ndjson"),
            "{answer:?}"
        );
        answer
            .text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// Opens a connection without TLS.
    pub(crate) async fn connect(&self) -> TcpStream {
        let address = self.url.strip_prefix("http://").expect("no TLS");
        TcpStream::connect(address).await.expect("a connection")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the signal is sent");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }

    pub(crate) async fn until_logged(&self, text: &str) {
        until(&format!("{text:?} is logged"), PATIENCE, async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.child);
        until("it ends", PATIENCE, async || {
            child.borrow_mut().try_wait().expect("it can be asked")
        })
        .await
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a client for a server without TLS.
pub(crate) fn client() -> Client {
    client_of(|client| client)
}

/// Makes a client with these settings.
pub(crate) fn client_of(settings: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    settings(Client::builder()).build().expect("a client")
}

pub(crate) fn command(redis: &Redis, options: &[&str]) -> Command {
    command_to(redis.url(), redis, options)
}

fn command_to(url: &str, redis: &Redis, options: &[&str]) -> Command {
    let mut command = Command::new(crate::support::program());
    command
        .args(["--redis", url, "--namespace", redis.namespace(), "serve"])
        .args(options);
    command
        .env_remove("SERIATIM_REDIS")
        .env_remove("SERIATIM_NAMESPACE")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

pub(crate) async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let header = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    Answer {
        status: response.status().as_u16(),
        content_type: header("content-type").unwrap_or_default(),
        retry_after: header("retry-after"),
        replayed: header("idempotency-replayed").is_some(),
        text: response.text().await.expect("a body"),
    }
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a size");
    line.split_whitespace()
        .nth(1)
        .expect("a number")
        .parse::<u64>()
        .expect("a number")
        * 1024
}
