//! Tests Redis servers whose settings differ from the user's expectation. The program prints the
//! remedy.

use std::process::Output;

use crate::support::console::{Console, PATIENCE};
use crate::support::free_port;
use crate::support::output::command_at;
use crate::support::process::Process;
use crate::support::{Redis, Server, until};

fn run(url: &str, arguments: &[&str]) -> Output {
    let mut program = command_at(url, "--log error");
    program.args(arguments).output().expect("the program runs")
}

/// Checks for exit code 3, and returns the one line on standard error.
#[track_caller]
fn refused(url: &str, arguments: &[&str]) -> String {
    let output = run(url, arguments);
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        output.status.code() == Some(3) && message.lines().count() == 1,
        "{arguments:?}: {:?} {message}",
        output.status
    );
    message
}

const WORKER: [&str; 5] = ["worker", "--sink", "null", "--connect-timeout", "0s"];

/// Story: `--redis localhost` and `--redis 127.0.0.1:7100` failed with "invalid client config".
#[test]
fn a_host_and_a_port_are_enough() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port, "--bind", "127.0.0.1"]);
    let socket = redis.url().strip_prefix("unix://").expect("a socket");
    for url in [
        &format!("127.0.0.1:{port}"),
        &format!("localhost:{port}"),
        socket,
    ] {
        let output = run(url, &["emit", "work:1", "1"]);
        assert_eq!(output.status.code(), Some(0), "{url}: {output:?}");
        assert_eq!(run(url, &["check"]).status.code(), Some(0), "{url}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_in_words() {
    let redis = Redis::own(&[]);
    let _: () = redis
        .console()
        .await
        .run(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    for arguments in [&WORKER[..], &["check"], &["emit", "x", "1"], &["stats"]] {
        let message = refused(redis.url(), arguments);
        let in_words = ["Redis wants a password", "the password is wrong"]
            .iter()
            .any(|words| message.contains(words));
        assert!(
            in_words && message.contains("check user and password in --redis"),
            "{arguments:?}: {message}"
        );
        let message = refused(&format!("{}?pass=wrong", redis.url()), arguments);
        assert!(
            message.contains("the password is wrong, or the user is unknown"),
            "{arguments:?}: {message}"
        );
    }
}

/// Story: on a cluster without a namespace, commands printed raw errors of scripts. Now they say
/// that a namespace is needed. With a namespace they work.
#[tokio::test]
async fn a_cluster_needs_a_namespace() {
    let (port, bus) = (free_port().to_string(), free_port().to_string());
    let server = Server::start(&[
        "--cluster-enabled",
        "yes",
        "--port",
        &port,
        "--cluster-port",
        &bus,
        "--bind",
        "127.0.0.1",
    ]);
    let url = server.url();
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let conn = client
        .get_multiplexed_async_connection_with_config(&crate::support::patient())
        .await
        .expect("Redis answers");
    let ask = async |words: &[&str]| {
        let answer = redis::cmd(words[0])
            .arg(&words[1..])
            .query_async::<Option<String>>(&mut conn.clone())
            .await;
        answer.expect("an answer").unwrap_or_default()
    };
    ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    until("the cluster is up", PATIENCE, async || {
        ask(&["CLUSTER", "INFO"])
            .await
            .contains("cluster_state:ok")
            .then_some(())
    })
    .await;
    for arguments in [
        &WORKER[..],
        &["emit", "x", "1"],
        &["inspect", "x"],
        &["pause", "x"],
    ] {
        let message = refused(&url, arguments);
        assert!(
            message.contains(
                "this is a Redis Cluster: with --namespace NAME all keys are in one slot"
            ),
            "{arguments:?}: {message}"
        );
    }
    let mut program = command_at(&url, "--namespace shop --log off");
    program.args(WORKER);
    let mut worker = program.spawn().expect("the program runs");
    let emit = run(&url, &["--namespace", "shop", "emit", "x", "1"]);
    assert_eq!(emit.status.code(), Some(0), "{emit:?}");
    until("it is delivered", PATIENCE, async || {
        (!ask(&["GET", "{shop:0}:x:last.event.id"]).await.is_empty()).then_some(())
    })
    .await;
    worker.kill().expect("it runs");
    worker.wait().expect("it can be reaped");
}

/// Managed services and cautious operators rename commands of Redis. The error must say that a
/// command is renamed or disabled.
#[tokio::test]
async fn a_renamed_command_is_told_in_words() {
    for command in ["EVALSHA", "XTRIM"] {
        let redis = Redis::own(&["--rename-command", command, "HIDDEN"]);
        let message = refused(redis.url(), &WORKER);
        assert!(
            message.contains("a command is renamed or disabled on this Redis (rename-command)"),
            "{command}: {message}"
        );
    }
    let redis = Redis::own(&["--rename-command", "LPUSH", "HIDDEN"]);
    let message = refused(redis.url(), &["emit", "x", "1"]);
    assert!(
        message.contains("LPUSH") && message.contains("renamed or disabled"),
        "{message}"
    );
}

/// A worker works although `INFO` is renamed, as it works for a user without the right to `INFO`.
#[tokio::test]
async fn a_worker_does_without_info() {
    let redis = Redis::own(&["--rename-command", "INFO", "HIDDEN"]);
    let console = redis.console().await;
    let worker = Process::start(&redis, "w", "null", &[]);
    worker
        .until_logged("INFO is not allowed on this Redis")
        .await;
    let last = console.keys.last_event_id("x");
    for round in 1..=3 {
        console.emit("x", "1").await;
        let delivered = async || {
            (console.queue("x").await.is_empty() && console.number(&last).await > 0).then_some(())
        };
        until(&format!("event {round} is delivered"), PATIENCE, delivered).await;
        let _: i64 = console
            .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
    }
    // Story: each connection logged the warning, and each new one after a loss.
    console.emit("x", "1").await;
    until("it is delivered", PATIENCE, async || {
        console.queue("x").await.is_empty().then_some(())
    })
    .await;
    let warnings = worker
        .log()
        .matches("INFO is not allowed on this Redis")
        .count();
    assert_eq!(warnings, 1, "{}", worker.log());
}

async fn warned(redis: &Redis, console: &Console) -> Vec<String> {
    let output = run(redis.url(), &["--namespace", redis.namespace(), "check"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let worker = Process::start(redis, "w", "null", &[]);
    let warnings: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("warning: "))
        .map(str::to_owned)
        .collect();
    for warning in &warnings {
        worker
            .until_logged(&format!("WARN seriatim::worker: {warning}"))
            .await;
    }
    console.until_lease("w").await;
    warnings
}

/// Story: users lost events to an evicting policy and to a Redis without persistence, without any
/// warning.
#[tokio::test]
async fn settings_that_break_the_promise_are_told() {
    let redis = Redis::own(&["--maxmemory-policy", "allkeys-lru"]);
    let console = redis.console().await;
    let warnings = warned(&redis, &console).await;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("maxmemory-policy is allkeys-lru"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].starts_with("persistence is off"),
        "{warnings:?}"
    );
    let output = run(
        redis.url(),
        &["--namespace", redis.namespace(), "check", "--json"],
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["warnings"], serde_json::json!(warnings));

    let sound = Redis::own(&["--appendonly", "yes"]);
    let console = sound.console().await;
    assert_eq!(warned(&sound, &console).await, [""; 0]);
    let saving = Redis::own(&["--save", "3600", "1"]);
    let console = saving.console().await;
    assert_eq!(warned(&saving, &console).await, [""; 0]);
}
