//! An HTTP/1.1 server that answers, stalls, resets, throttles and dies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::consume::Envelope;
use seriatim_http::Http;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::support::console::PATIENCE;
use crate::support::until;

/// A request that the server has read.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) at: Instant,
    /// The number of the request, from 0.
    pub(crate) number: usize,
    pub(crate) target: String,
    headers: HashMap<String, String>,
    pub(crate) body: String,
    /// Whether it was answered with 2xx.
    pub(crate) is_accepted: bool,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Returns the id, `prev`, object and event of each envelope.
    pub(crate) fn events(&self) -> Vec<(u64, u64, String, String)> {
        let one = |text: &str| {
            let envelope = Envelope::parse(text.as_bytes()).expect("an envelope");
            (
                envelope.id,
                envelope.prev,
                envelope.object.to_string(),
                envelope.event.to_string(),
            )
        };
        match self.body.starts_with('[') {
            false => vec![one(&self.body)],
            true => {
                let parts: Vec<Box<serde_json::value::RawValue>> =
                    serde_json::from_str(&self.body).expect("a list");
                parts.iter().map(|part| one(part.get())).collect()
            }
        }
    }
}

/// The behaviour of the server for one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(u16),
    /// A status with headers, each `name: value`, and a body.
    With(u16, Vec<String>, String),
    /// A status; then the connection ends, without any header that announces this.
    ThenClose(u16),
    /// A 200 whose body of this many bytes never ends.
    Endless(usize),
    /// A 200 with this header, whose body never ends.
    Unfinished(&'static str),
    /// A 200 after this time.
    Late(Duration),
    /// No answer.
    Stall,
    /// The end of the connection, by RST.
    Reset,
    /// The end of the connection in the middle of the status line.
    Cut,
}

type Rule = dyn Fn(&Got) -> Reply + Send + Sync;

/// A server on a port of its own.
pub(crate) struct Receiver {
    port: u16,
    state: Arc<State>,
    task: Option<JoinHandle<()>>,
}

struct State {
    rule: Mutex<Arc<Rule>>,
    got: Mutex<Vec<Got>>,
    connections: Mutex<usize>,
}

impl Receiver {
    /// Starts a server that accepts everything.
    pub(crate) async fn start() -> Self {
        Self::with(|_| Reply::Status(204)).await
    }

    pub(crate) async fn with(rule: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> Self {
        let state = State {
            rule: Mutex::new(Arc::new(rule)),
            got: Mutex::default(),
            connections: Mutex::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut this = Self {
            port,
            state: Arc::new(state),
            task: None,
        };
        this.serve(listener);
        this
    }

    /// Changes the behaviour of the server.
    pub(crate) fn behave(&self, rule: impl Fn(&Got) -> Reply + Send + Sync + 'static) {
        *self.state.rule.lock().expect("no panic") = Arc::new(rule);
    }

    fn serve(&mut self, listener: TcpListener) {
        let state = self.state.clone();
        self.task = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                *state.connections.lock().expect("no panic") += 1;
                connections.spawn(serve(stream, state.clone()));
            }
        }));
    }

    /// Ends the server and all of its connections.
    pub(crate) async fn die(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Starts the server again on the same port.
    pub(crate) async fn revive(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port))
            .await
            .expect("its port");
        self.serve(listener);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns a sink for this target of the receiver, with the usual settings.
    pub(crate) fn sink(&self, target: &str) -> Arc<Http> {
        crate::requests::sink(&self.url(target), |_| {})
    }

    pub(crate) fn url(&self, rest: &str) -> String {
        format!("http://127.0.0.1:{}{rest}", self.port)
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.state.got.lock().expect("no panic").clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.state.connections.lock().expect("no panic")
    }

    /// Returns the accepted events of each object, applied by the receiver's rule: an event whose
    /// id is not above the last one is a repetition. Fails if an event is early.
    pub(crate) fn applied(&self) -> HashMap<String, Vec<String>> {
        let mut applied: HashMap<String, (u64, Vec<String>)> = HashMap::new();
        for (id, prev, object, event) in self
            .got()
            .iter()
            .filter(|got| got.is_accepted)
            .flat_map(Got::events)
        {
            let (last, events) = applied.entry(object.clone()).or_default();
            if id > *last {
                assert!(
                    prev <= *last,
                    "{object}: {id} after {prev} came before {prev}"
                );
                *last = id;
                events.push(event);
            }
        }
        applied
            .into_iter()
            .map(|(object, (_, events))| (object, events))
            .collect()
    }

    pub(crate) fn accepted(&self) -> usize {
        self.applied().values().map(Vec::len).sum()
    }

    /// Waits until this number of different events is accepted.
    pub(crate) async fn until_accepted(&self, events: usize) {
        until(
            &format!("{events} events are accepted"),
            PATIENCE,
            async || (self.accepted() >= events).then_some(()),
        )
        .await;
    }

    /// Waits until this number of requests has come.
    pub(crate) async fn until_got(&self, requests: usize) {
        until(&format!("{requests} requests come"), PATIENCE, async || {
            (self.got().len() >= requests).then_some(())
        })
        .await;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    while let Some((target, headers, body)) = read(&mut stream).await {
        let (at, rule) = (Instant::now(), state.rule.lock().expect("no panic").clone());
        let mut got = Got {
            at,
            number: 0,
            target,
            headers,
            body,
            is_accepted: false,
        };
        let reply = {
            let mut all = state.got.lock().expect("no panic");
            got.number = all.len();
            let reply = rule(&got);
            got.is_accepted = matches!(
                &reply,
                Reply::Status(200..=299)
                    | Reply::With(200..=299, ..)
                    | Reply::ThenClose(200..=299)
                    | Reply::Endless(_)
                    | Reply::Unfinished(_)
                    | Reply::Late(_)
            );
            all.push(got);
            reply
        };
        let (status, headers, text, closes) = match reply {
            Reply::Status(status) => (status, Vec::new(), String::new(), false),
            Reply::With(status, headers, text) => (status, headers, text, false),
            Reply::ThenClose(status) => (status, Vec::new(), String::new(), true),
            Reply::Endless(_) | Reply::Unfinished(_) => {
                let (header, bytes) = match reply {
                    Reply::Unfinished(header) => (header, 1),
                    Reply::Endless(bytes) => ("a: b", bytes),
                    _ => ("a: b", 0),
                };
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n{header}\r\n\r\n{}",
                    "{".repeat(bytes)
                );
                let _ = stream.get_mut().write_all(answer.as_bytes()).await;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                return;
            }
            Reply::Late(time) => {
                tokio::time::sleep(time).await;
                (200, Vec::new(), String::new(), false)
            }
            Reply::Stall => {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                return;
            }
            Reply::Reset => {
                let _ = stream.get_ref().set_zero_linger();
                return;
            }
            Reply::Cut => {
                let _ = stream.get_mut().write_all(b"HTTP/1.1 2").await;
                return;
            }
        };
        let length = if status == 204 {
            String::new()
        } else {
            format!("content-length: {}\r\n", text.len())
        };
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let answer = format!("HTTP/1.1 {status} Some Words\r\n{length}{headers}\r\n{text}");
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() || closes {
            return;
        }
    }
}

/// Reads a request: its target, its headers and its body.
async fn read(
    stream: &mut BufReader<TcpStream>,
) -> Option<(String, HashMap<String, String>, String)> {
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .await
        .ok()
        .filter(|bytes| *bytes > 0)?;
    let target = line.split(' ').nth(1)?.to_owned();
    assert!(line.starts_with("POST "), "{line}");
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream
            .read_line(&mut line)
            .await
            .ok()
            .filter(|bytes| *bytes > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some((target, headers, String::from_utf8(body).ok()?))
}
