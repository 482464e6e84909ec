//! Servers that refuse a connection: they write the reason and close.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::{Redis, free_port, until};

fn run(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(crate::support::program());
    command
        .args(["--redis", url, "--log", "error"])
        .args(arguments)
        .output()
        .expect("run")
}

/// Story: a Redis with `maxclients` connections refuses each further one with the reason. Of 48
/// processes none showed it; they said "Connection reset by peer", or that the password is wrong.
#[tokio::test]
async fn a_full_redis_is_told_with_its_reason() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port, "--appendonly", "yes"]);
    let console = redis.console().await;
    let _: String = console
        .run(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    let _: String = console.run(&["CONFIG", "SET", "maxclients", "1"]).await;
    let urls = [
        redis.url().to_owned(),
        format!("{}?pass=right", redis.url()),
        format!("redis://:right@127.0.0.1:{port}/3"),
    ];
    for url in urls {
        for arguments in [
            &["emit", "work:1", "1"][..],
            &["stats"],
            &["worker", "--sink", "null", "--connect-timeout", "0s"],
        ] {
            for _ in 0..5 {
                let output = run(&url, arguments);
                let message = String::from_utf8_lossy(&output.stderr).into_owned();
                let reasons = message.matches("max number of clients reached").count();
                assert!(
                    output.status.code() == Some(3)
                        && reasons == 1
                        && message.contains("raise its maxclients"),
                    "{message}"
                );
            }
        }
    }
}

/// A worker waits for its place, and logs the reason once.
#[tokio::test]
async fn a_worker_waits_until_redis_has_room() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let _: String = console.run(&["CONFIG", "SET", "maxclients", "1"]).await;
    let worker = Process::start(&redis, "w", "null", &[]);
    worker.until_logged("max number of clients reached").await;
    let refused = async || -> u64 {
        let stats: String = console.run(&["INFO", "stats"]).await;
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("rejected_connections:"))
            .expect("a field");
        line.trim().parse().expect("a number")
    };
    until("it has tried often", PATIENCE, async || {
        (refused().await >= 5).then_some(())
    })
    .await;
    let began = (Instant::now(), refused().await);
    until("it tries again", PATIENCE, async || {
        (refused().await >= began.1 + 3).then_some(())
    })
    .await;
    assert!(
        began.0.elapsed() > Duration::from_millis(300),
        "it waits between two tries: {:?}",
        began.0.elapsed()
    );
    let warnings = worker
        .log()
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("max number of clients"))
        .count();
    assert_eq!(warnings, 1, "{}", worker.log());
    let _: String = console.run(&["CONFIG", "SET", "maxclients", "100"]).await;
    worker.until_logged("recover: attached").await;
}

/// A server that refuses everybody, as Redis does in protected mode.
#[test]
fn the_reason_of_protected_mode_is_told() {
    const DENIED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for \
                          the default user. In this mode connections are only accepted from the loopback interface.\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(DENIED.as_bytes());
        }
    });
    for arguments in [
        &["emit", "work:1", "1"][..],
        &["stats"],
        &["doctor", "--json"],
    ] {
        for _ in 0..5 {
            let output = run(&url, arguments);
            let message =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(
                message.contains("DENIED Redis is running in protected mode"),
                "{message}"
            );
        }
    }
}
