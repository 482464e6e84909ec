//! Strangers at the doors of `serve` and of the dashboard: connections that send nothing, send slowly,
//! or begin no TLS session. They must not keep probes and users out.

use std::time::Duration;

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::certificates::Authority;
use crate::dashboard::rig::{Dash, USERS, path, reply, token, users};
use crate::serving::{Serving, answer, client_of, resident};
use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// The beginnings of requests that strangers send, and never end.
const PARTS: [&[u8]; 4] = [
    b"",
    b"G",
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-",
    b"POST /login HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\ntoken=",
];

fn raise_file_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
}

/// Opens this number of connections that never send a whole request.
async fn strangers(address: &str, count: usize) -> Vec<TcpStream> {
    strangers_with(address, count, &PARTS).await
}

/// Opens this number of connections, each with one of these beginnings.
async fn strangers_with(address: &str, count: usize, parts: &[&[u8]]) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(count);
    for number in 0..count {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        // The server may have closed it already, to make room for others.
        let _ = stream.write_all(parts[number % parts.len()]).await;
        streams.push(stream);
    }
    streams
}

/// A connection that is kept open for several requests.
struct Kept(TcpStream);

impl Kept {
    async fn open(address: &str) -> Self {
        Self(TcpStream::connect(address).await.expect("connected"))
    }

    /// Sends a request. Returns the status of its answer.
    async fn get(&mut self, target: &str, token: &str) -> String {
        let head = format!(
            "GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        self.send(&head).await
    }

    /// Logs in with a form, as a browser does. Returns the status of the answer.
    async fn log_in(&mut self, token: &str) -> String {
        let body = format!("token={token}");
        let kind = "content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: same-origin";
        let length = body.len();
        self.send(&format!("POST /login HTTP/1.1\r\nhost: localhost\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}")).await
    }

    async fn send(&mut self, request: &str) -> String {
        self.0.write_all(request.as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(
                timeout(PATIENCE, self.0.read_u8())
                    .await
                    .expect("an answer in time")
                    .expect("an answer"),
            );
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        self.0.read_exact(&mut body).await.expect("a body");
        head[9..12].to_owned()
    }
}

async fn probe(address: &str, what: &str) {
    for target in ["/healthz", "/readyz"] {
        let mut probe = Kept::open(address).await;
        assert_eq!(probe.get(target, "none").await, "200", "{what}: {target}");
    }
}

/// Story: 256 silent connections shut everybody out of the dashboard, probes included.
#[tokio::test]
async fn silent_connections_keep_nobody_out_of_the_dashboard() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let mut kept = Kept::open(dash.address()).await;
    assert_eq!(kept.get("/rules", &token("viewer")).await, "200");
    let mut held = strangers(dash.address(), 256).await;
    for round in 0..30 {
        probe(dash.address(), &format!("round {round}")).await;
        assert_eq!(
            dash.page_as("viewer", "/rules").await.status,
            200,
            "{round}"
        );
        let cookie = dash.log_in(&token("operator")).await;
        assert_eq!(
            reply(dash.page("/rules").header("cookie", cookie))
                .await
                .status,
            200,
            "{round}"
        );
        held.extend(strangers(dash.address(), 40).await);
    }
    assert_eq!(
        kept.get("/rules", &token("viewer")).await,
        "200",
        "a connection of a user does not give way to strangers"
    );
    // The oldest strangers are closed, and the newest are not.
    let mut nothing = [0];
    assert_eq!(
        timeout(PATIENCE, held[0].read(&mut nothing))
            .await
            .expect("it is closed")
            .unwrap_or(0),
        0
    );
    let newest = held.len() - 4;
    assert!(
        timeout(Duration::from_millis(50), held[newest].read(&mut nothing))
            .await
            .is_err(),
        "it is open"
    );
}

/// Tests that the connection of a login is one of its user at once, so that it does not give way.
#[tokio::test]
async fn a_login_does_not_give_way() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let (mut stranger, mut user) = (
        Kept::open(dash.address()).await,
        Kept::open(dash.address()).await,
    );
    assert_eq!(stranger.get("/healthz", "none").await, "200");
    assert_eq!(user.log_in(&token("operator")).await, "303");
    let _held = strangers(dash.address(), 600).await;
    let mut nothing = [0];
    assert_eq!(
        timeout(PATIENCE, stranger.0.read(&mut nothing))
            .await
            .expect("it is closed")
            .unwrap_or(0),
        0
    );
    // The browser has its cookie now, but has not used it yet.
    assert_eq!(user.get("/healthz", "none").await, "200");
}

/// Tests few places, because connections come to fill them before a silent one ends by itself.
#[tokio::test]
async fn silent_connections_in_all_places_keep_nobody_out_of_serve() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let options = ["--users", path(&file), "--connections", "256"];
    let serving = Serving::start(&redis, &options).await;
    let address = serving.url.strip_prefix("http://").expect("http");
    let _held = strangers_with(address, 300, &PARTS[..3]).await;
    probe(address, "with 300 silent connections").await;
    let mut user = Kept::open(address).await;
    assert_eq!(user.get("/v1/rules", &token("viewer")).await, "200");
}

/// Story: 12,000 silent connections shut everybody out of `serve`; 0 of 145 probes were answered in
/// 45 s.
#[tokio::test]
async fn silent_connections_keep_nobody_out_of_serve() {
    raise_file_limit();
    let (redis, file) = (Redis::start(), users(&USERS));
    let serving = Serving::start(&redis, &["--users", path(&file)]).await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("http")
        .to_owned();
    let mut kept = Kept::open(&address).await;
    assert_eq!(kept.get("/v1/rules", &token("viewer")).await, "200");
    let before = resident(serving.pid());
    let mut held = Vec::new();
    for _ in 0..12 {
        // `serve` has no login: it answers such a request at once, and its place is free again.
        held.extend(strangers_with(&address, 1000, &PARTS[..3]).await);
        // An idle connection of a user ends after 30 s.
        assert_eq!(kept.get("/v1/rules", &token("viewer")).await, "200");
    }
    let after = resident(serving.pid());
    println!("{} bytes per silent connection", (after - before) / 12_000);
    assert!(after - before < 12_000 * 48 * 1024, "{before} {after}");
    for round in 0..75 {
        probe(&address, &format!("round {round}")).await;
        if round % 10 == 0 {
            let status = kept.get("/v1/rules", &token("viewer")).await;
            assert_eq!(
                status, "200",
                "a connection of a user does not give way to strangers"
            );
        }
        // A part of the strangers comes again at once.
        for at in 0..40 {
            let fresh = TcpStream::connect(&address).await.expect("connected");
            held[(round * 40 + at) % 12_000] = fresh;
        }
    }
}

/// Tests the listener for probes alone: it has places of its own, and answers nothing else.
#[tokio::test]
async fn probes_have_a_listener_of_their_own() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let serving = Serving::start(
        &redis,
        &[
            "--users",
            path(&file),
            "--probe-listen",
            "127.0.0.1:0",
            "--connections",
            "1",
        ],
    )
    .await;
    serving
        .until_logged("listening for probes address=http://")
        .await;
    let log = serving.log();
    let (_, rest) = log
        .split_once("listening for probes address=http://")
        .expect("an address");
    let address = rest
        .split_whitespace()
        .next()
        .expect("an address")
        .to_owned();
    let held = strangers(&address, 200).await;
    probe(&address, "its own listener").await;
    let mut other = Kept::open(&address).await;
    assert_eq!(other.get("/v1/rules", &token("operator")).await, "404");
    drop(held);
}

/// Tests that connections whose TLS handshake does not end keep nobody out.
#[tokio::test]
async fn unfinished_handshakes_keep_nobody_out() {
    let (redis, file, authority) = (Redis::start(), users(&USERS), Authority::new());
    let certificate = authority.certify("127.0.0.1");
    let trusted = reqwest::Certificate::from_pem(&std::fs::read(authority.file()).expect("a file"))
        .expect("a certificate");
    let client = client_of(|client| client.tls_certs_only([trusted]).pool_max_idle_per_host(0));
    let (cert, key) = (
        certificate.certificate.to_str().expect("a path"),
        certificate.key.to_str().expect("a path"),
    );
    let options = [
        "--users",
        path(&file),
        "--tls-cert",
        cert,
        "--tls-key",
        key,
        "--connections",
        "256",
    ];
    let serving = Serving::start_at(&redis, "127.0.0.1:0", &options, client).await;
    let address = serving
        .url
        .strip_prefix("https://")
        .expect("https")
        .to_owned();
    let mut held = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(&address).await.expect("connected");
        // Half of them send the beginning of a handshake.
        let _ = stream
            .write_all(if number % 2 == 0 {
                b""
            } else {
                b"\x16\x03\x01\x02\x00\x01"
            })
            .await;
        held.push(stream);
        if number % 10 == 0 {
            assert_eq!(serving.get("/healthz").await.status, 200, "{number}");
            let rules = serving
                .request(reqwest::Method::GET, "/v1/rules")
                .bearer_auth(token("viewer"));
            assert_eq!(crate::serving::answer(rules).await.status, 200, "{number}");
        }
    }
}

/// Tests that users share the places: one user has at most three quarters of those of all users.
#[tokio::test]
async fn a_user_leaves_places_to_others() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let dash = Dash::start(&redis, &["--users", path(&file), "--connections", "64"]).await;
    let mut idle = Vec::new();
    for _ in 0..60 {
        let mut kept = Kept::open(dash.address()).await;
        assert_eq!(kept.get("/rules", &token("viewer")).await, "200");
        idle.push(kept);
    }
    let mut own = Kept::open(dash.address()).await;
    assert_eq!(own.get("/rules", &token("operator")).await, "200");
    for _ in 0..60 {
        let mut kept = Kept::open(dash.address()).await;
        assert_eq!(kept.get("/rules", &token("viewer")).await, "200");
        idle.push(kept);
    }
    assert_eq!(own.get("/rules", &token("operator")).await, "200");
    // The connections that were unused for the longest time gave way, those of the same user first.
    let mut nothing = [0];
    assert_eq!(
        timeout(PATIENCE, idle[0].0.read(&mut nothing))
            .await
            .expect("it is closed")
            .unwrap_or(0),
        0
    );
    assert_eq!(idle[119].get("/rules", &token("viewer")).await, "200");
}

/// Looks of a user who may only view wait while Redis is slow. The act of another user does not wait
/// behind them, and is not refused.
#[tokio::test]
async fn looks_of_a_viewer_stop_no_act_of_serve() {
    let (mut redis, file) = (Redis::own(&[]), users(&USERS));
    let serving = Serving::start(&redis, &["--users", path(&file)]).await;
    let pid = i32::try_from(redis.server().pid()).expect("a pid");
    let redis_pid = Pid::from_raw(pid).expect("a pid");
    kill_process(redis_pid, Signal::STOP).expect("stopped");
    let looks = (0..200).map(|_| {
        let look = serving.request(Method::GET, "/v1/object?object=work:1");
        tokio::spawn(answer(look.bearer_auth(token("viewer"))))
    });
    let looks: Vec<_> = looks.collect();
    until("the looks have arrived", PATIENCE, async || {
        let refused = looks.iter().filter(|look| look.is_finished()).count();
        (refused >= 100).then_some(())
    })
    .await;
    let rule = r#"{"kind":"pause","selector":"work:1","reason":"because"}"#;
    let act = serving.posted("/v1/rules", rule);
    let act = tokio::spawn(answer(act.bearer_auth(token("operator"))));
    tokio::time::sleep(Duration::from_millis(500)).await;
    kill_process(redis_pid, Signal::CONT).expect("continued");
    let act = act.await.expect("an answer");
    assert!((200..300).contains(&act.status), "{act:?}");
    for look in looks {
        let look = look.await.expect("an answer");
        assert!(matches!(look.status, 200 | 503), "{look:?}");
    }
}
