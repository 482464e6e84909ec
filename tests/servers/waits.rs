//! The start of long-running commands while Redis is away.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// A running command; killed when it is dropped.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn start(url: &str, arguments: &[&str], log: &Path) -> Running {
    let mut command = Command::new(crate::support::program());
    command
        .args(["--redis", url])
        .args(arguments)
        .stdout(File::create(log.with_extension("out")).expect("a file"));
    Running(
        command
            .stderr(File::create(log).expect("a log"))
            .spawn()
            .expect("it starts"),
    )
}

/// Returns the status of a path at this address.
fn status(address: &str, path: &str) -> Option<u16> {
    status_of(address, "GET", path, "")
}

/// Returns the status of a request to this address.
pub(crate) fn status_of(address: &str, method: &str, path: &str, body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    stream
        .write_all(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.get(9..12)?.parse().ok()
}

/// Waits until the log names the address at which the command listens, and returns it.
pub(crate) async fn listening(log: &Path) -> String {
    until("it listens", PATIENCE, async || {
        let log = std::fs::read_to_string(log).expect("a log");
        let (_, rest) = log.split_once("listening address=http://")?;
        rest.contains('\n')
            .then(|| rest.split_whitespace().next().map(str::to_owned))?
    })
    .await
}

const COMMANDS: [&[&str]; 4] = [
    &["serve", "--listen", "127.0.0.1:0"],
    &["dashboard", "--listen", "127.0.0.1:0"],
    &["exporter", "--listen", "127.0.0.1:0"],
    &[
        "worker",
        "--name",
        "w",
        "--sink",
        "null",
        "--http",
        "127.0.0.1:0",
    ],
];

/// Story: `serve` ended with exit code 3 if Redis was away at its start, while the dashboard waited.
#[tokio::test]
async fn every_long_running_command_waits_for_redis_and_is_not_ready() {
    for arguments in COMMANDS {
        let mut redis = Redis::own(&["--appendonly", "yes"]);
        redis.server().kill();
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let mut running = start(redis.url(), arguments, &log);
        let text = || std::fs::read_to_string(&log).expect("a log");
        let address = listening(&log).await;
        let is = async |path: &str, wanted: u16| {
            until(
                &format!("{arguments:?}: {path} is {wanted}"),
                PATIENCE,
                async || (status(&address, path) == Some(wanted)).then_some(()),
            )
            .await;
        };
        is("/readyz", 503).await;
        is("/healthz", 200).await;
        assert_eq!(running.0.try_wait().expect("asked"), None, "{}", text());
        redis.server().restart();
        is("/readyz", 200).await;
        let warnings = text()
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("waiting for"))
            .count();
        assert_eq!(warnings, 1, "{arguments:?}: {}", text());
        // Time does not repair a password.
        let wrong = format!("{}?pass=wrong", redis.url());
        let mut refused = start(&wrong, arguments, &log);
        let code = refused.0.wait().expect("it ends");
        assert_eq!(code.code(), Some(3), "{arguments:?}: {}", text());
    }
}
