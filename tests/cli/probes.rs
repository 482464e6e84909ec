//! The probes of a worker, and `seriatim healthcheck`.

use std::io::Read as _;
use std::process::{Command, Output};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::support::console::PATIENCE;
use crate::support::output::command_at;
use crate::support::process::Process;
use crate::support::{Redis, until};

/// Returns the address on which a worker answers probes.
pub(crate) async fn address(worker: &Process) -> String {
    until("it listens", PATIENCE, async || {
        let log = worker.log();
        let (_, rest) = log.split_once("listening address=http://")?;
        rest.contains('\n')
            .then(|| rest.split_whitespace().next().map(str::to_owned))?
    })
    .await
}

/// Requests a path, with a `host` header that names another host. Returns the status and the body.
pub(crate) async fn ask(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: pod.example\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

pub(crate) async fn until_status(address: &str, path: &str, status: u16) {
    let what = format!("{path} is {status}");
    until(&what, PATIENCE, async || {
        (ask(address, path).await.0 == status).then_some(())
    })
    .await;
}

fn healthcheck(args: &[&str]) -> Output {
    let mut program = Command::new(crate::support::program());
    program
        .arg("healthcheck")
        .args(args)
        .output()
        .expect("it runs")
}

/// Tests that a worker is not ready from the moment it gets the signal to stop. It loses no event
/// and counts no attempt.
#[tokio::test]
async fn a_stopping_worker_is_not_ready_at_once() {
    let (redis, console) = Redis::start().with_console().await;
    let mut worker = Process::start(&redis, "w", "stdout", &["--http", "127.0.0.1:0"]);
    let address = address(&worker).await;
    until_status(&address, "/readyz", 200).await;
    assert_eq!(ask(&address, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(ask(&address, "/metrics/no").await.0, 404);
    // The event does not fit into the pipe, so its delivery stands still.
    console
        .emit("work:1", format!("\"{}\"", "x".repeat(200_000)))
        .await;
    console.emit("work:2", "2").await;
    let queue = console.keys.events("work:1");
    until("it is in hand", PATIENCE, async || {
        console.list(&queue).await.is_empty().then_some(())
    })
    .await;
    worker.terminate();
    until_status(&address, "/readyz", 503).await;
    assert!(
        ask(&address, "/readyz")
            .await
            .1
            .contains("the worker stops")
    );
    assert_eq!(ask(&address, "/healthz").await.0, 200);
    // The delivery continues when the test reads the pipe, so no event is held with an attempt.
    let mut out = String::new();
    worker.stdout().read_to_string(&mut out).expect("UTF-8");
    assert!(worker.ended().await.success());
    assert!(
        out.lines()
            .any(|line| line.contains("work:1") && line.len() > 200_000),
        "it is delivered"
    );
}

/// Tests that a worker is healthy although Redis is away, at its start and later for six times
/// `--stall-max`. A wait that doubles with each attempt would exceed `--stall-max` in this time. From
/// its first attach on, the worker is ready.
#[tokio::test]
async fn a_worker_without_redis_is_healthy() {
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    redis.server().kill();
    let options = [
        "--http",
        "127.0.0.1:0",
        "--stall-max",
        "2s",
        "--lease",
        "1s",
        "--response-timeout",
        "500ms",
    ];
    let worker = Process::start(&redis, "w", "null", &options);
    let address = address(&worker).await;
    let is_healthy_for = async |time: Duration| {
        let since = Instant::now();
        while since.elapsed() < time {
            assert_eq!(ask(&address, "/healthz").await.0, 200);
            sleep(Duration::from_millis(50)).await;
        }
    };
    is_healthy_for(Duration::from_secs(4)).await;
    assert_eq!(ask(&address, "/readyz").await.0, 503);
    redis.server().restart();
    until_status(&address, "/readyz", 200).await;
    redis.server().kill();
    is_healthy_for(Duration::from_secs(12)).await;
    redis.server().restart();
    until_status(&address, "/readyz", 200).await;
}

/// Tests that a worker is not healthy while its loop stands still, and is healthy again when the
/// loop turns.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn a_loop_that_stands_still_is_not_healthy() {
    let redis = Redis::start();
    let options = ["--http", "127.0.0.1:0", "--stall-max", "1s"];
    let worker = Process::start_with(
        &redis,
        "w",
        "null",
        &options,
        &[("FAILPOINTS", "advance.before=block@3")],
    );
    let address = address(&worker).await;
    until_status(&address, "/readyz", 200).await;
    assert_eq!(ask(&address, "/healthz").await.0, 200);
    // An idle worker calls rarely, so events make it call.
    let console = redis.console().await;
    console.emit_all("work:1", ["1", "2", "3"]).await;
    until_status(&address, "/healthz", 503).await;
    assert!(
        ask(&address, "/healthz")
            .await
            .1
            .contains("the worker's loop has stood still")
    );
    until_status(&address, "/healthz", 200).await;
}

/// Tests the exit codes and the printed line of `seriatim healthcheck`, over TCP and over a Unix
/// socket.
#[tokio::test]
async fn a_health_check_tells_by_its_exit_code() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let socket = dir.path().join("probes.sock");
    let unix = format!("unix:{}", socket.display());
    let worker = Process::start(&redis, "w", "null", &["--http", &unix]);
    worker.until_logged("attached").await;
    let over_tcp = Process::start(&redis, "v", "null", &["--http", "127.0.0.1:0"]);
    let address = address(&over_tcp).await;
    until_status(&address, "/readyz", 200).await;
    for url in [
        format!("{unix}:/healthz"),
        format!("http://{address}/healthz"),
        format!("http://{address}/readyz"),
    ] {
        let done = healthcheck(&[&url]);
        assert!(
            done.status.success() && done.stderr.is_empty() && done.stdout.is_empty(),
            "{url}: {done:?}"
        );
    }
    let free = format!("http://127.0.0.1:{}/healthz", crate::support::free_port());
    for (url, exit, expected) in [
        (format!("http://{address}/other"), 1, "404 Not Found"),
        (free, 1, "refused"),
        ("localhost:1/healthz".to_owned(), 2, "write http://"),
        ("unix:/no/path".to_owned(), 2, "write unix:SOCKET:/PATH"),
    ] {
        assert_eq!(
            healthcheck(&["--timeout", "2m", &url]).status.code(),
            Some(2)
        );
        let failed = healthcheck(&["--timeout", "2s", &url]);
        let text = String::from_utf8(failed.stderr).expect("UTF-8");
        assert!(
            failed.status.code() == Some(exit) && text.contains(expected),
            "{url}: {:?} {text}",
            failed.status
        );
    }
}

/// Tests a worker that cannot listen on the address of its probes. It ends before it starts its
/// work.
#[test]
fn an_address_in_use_is_told_at_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = taken.local_addr().expect("an address").to_string();
    let worker = format!("--log off worker --sink null --http {address}");
    let output = command_at("localhost:1", &worker).output();
    let output = output.expect("it runs");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    let is_named = message.contains(&format!("--http: cannot listen on {address}"))
        && message.lines().count() == 1
        && message
            .contains("another process listens there; end that process, or name another address");
    // Exit code 1 lets a supervisor start the worker again, because the address may become free.
    assert!(
        output.status.code() == Some(1) && is_named,
        "{:?} {message}",
        output.status
    );
}

/// Regression: if `--http` or `--listen` named a file, or a link to a file, the program deleted it.
/// Only a socket that a dead process left may be deleted.
#[test]
fn a_path_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, link) = (dir.path().join("precious.txt"), dir.path().join("link"));
    std::fs::write(&file, "precious").expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    for (command, option) in [("worker --sink null", "--http"), ("serve", "--listen")] {
        for path in [&file, &link, &dir.path().to_owned()] {
            let mut program = command_at("localhost:1", command);
            program.arg(option).arg(format!("unix:{}", path.display()));
            let output = program.output().expect("it runs");
            let message = String::from_utf8(output.stderr).expect("UTF-8");
            assert!(
                output.status.code() == Some(2) && message.contains("is not a socket"),
                "{:?} {message}",
                output.status
            );
        }
    }
    assert_eq!(
        std::fs::read_to_string(&link).expect("still there"),
        "precious"
    );
}

/// Regression: an error of the sink, after the listener was open, ended in a panic. The text of the
/// error was lost.
#[test]
fn an_error_of_the_sink_is_told_beside_probes() {
    let worker = "worker --sink file:/nonexistent/x --http 127.0.0.1:0";
    let output = command_at("localhost:1", worker).output();
    let output = output.expect("it runs");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        output.status.code() == Some(1) && message.contains("cannot open /nonexistent/x"),
        "{:?} {message}",
        output.status
    );
}

/// Regression: 256 connections that sent nothing kept all probes out.
#[tokio::test]
async fn silent_connections_keep_no_probe_out() {
    let redis = Redis::start();
    let worker = Process::start(&redis, "w", "null", &["--http", "127.0.0.1:0"]);
    let address = address(&worker).await;
    let mut silent = Vec::new();
    for number in 0..1000 {
        silent.push(TcpStream::connect(&address).await.expect("it listens"));
        if number % 10 == 0 {
            assert_eq!(ask(&address, "/healthz").await.0, 200, "{number}");
        }
    }
    // The worker closes a silent connection after some time.
    let mut last = silent.pop().expect("a connection");
    let read = tokio::time::timeout(PATIENCE, last.read(&mut [0]))
        .await
        .expect("it is closed");
    assert_eq!(read.unwrap_or(0), 0);
}

/// Tests that `healthcheck` needs no root certificates and follows no redirect. It reads no more of
/// a response than it prints.
#[tokio::test]
async fn a_health_check_is_modest() {
    let answers = |head: &'static str, body: Vec<u8>| async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 1000];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(head.as_bytes()).await;
            let mut written = 0;
            while stream.write_all(&body).await.is_ok() && !body.is_empty() {
                written += body.len();
            }
            written
        });
        (format!("http://user:hush@{address}/healthz"), serving)
    };
    let check = |url: String| {
        tokio::task::spawn_blocking(move || {
            let mut program = Command::new(crate::support::program());
            program
                .env("SSL_CERT_FILE", "/dev/null")
                .env("SSL_CERT_DIR", "/nonexistent")
                .args(["healthcheck", &url]);
            let output = program.output().expect("it runs");
            (
                output.status.code(),
                String::from_utf8(output.stderr).expect("UTF-8"),
            )
        })
    };
    let (url, _) = answers("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Vec::new()).await;
    assert_eq!(check(url).await.expect("it runs"), (Some(0), String::new()));
    let (url, _) = answers(
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        Vec::new(),
    )
    .await;
    let (code, message) = check(url).await.expect("it runs");
    assert!(
        code == Some(1) && message.contains("302 Found") && message.contains("user:***@"),
        "{message}"
    );
    let (url, serving) = answers("HTTP/1.1 503 No\r\n\r\n", vec![b'x'; 100_000]).await;
    let (code, message) = check(url).await.expect("it runs");
    let written = serving.await.expect("served");
    assert!(
        code == Some(1) && message.contains("503") && message.len() < 500 && written < 20_000_000,
        "{written} {message}"
    );
}
