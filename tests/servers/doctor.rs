//! `seriatim doctor`: its findings about a Redis, and its exit code.

use std::process::{Command, Output};

use serde_json::Value;

use crate::certificates::Authority;
use crate::support::{Redis, Server, free_port};

fn doctor(redis: &Redis, url: &str, options: &[&str]) -> Output {
    let mut command = Command::new(crate::support::program());
    command
        .args(["--redis", url, "--namespace", redis.namespace(), "doctor"])
        .args(options)
        .output()
        .expect("run")
}

/// Returns the exit code of `doctor`, and the verdict and the text of its finding about `what`.
fn found(redis: &Redis, url: &str, what: &str, options: &[&str]) -> (Option<i32>, String, String) {
    let output = doctor(redis, url, &[options, &["--json"]].concat());
    let finding: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = finding["findings"].as_array().expect("findings");
    let of = findings
        .iter()
        .find(|finding| finding["what"] == what)
        .unwrap_or_else(|| panic!("{what}: {finding}"));
    let text = |field: &str| of[field].as_str().expect("text").to_owned();
    assert_eq!(
        finding["fits"] != Value::Bool(false),
        output.status.code() == Some(0),
        "{finding}"
    );
    (output.status.code(), text("verdict"), text("text"))
}

#[tokio::test]
async fn a_sound_redis_passes_and_each_fault_is_told() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    let console = redis.console().await;
    let output = doctor(&redis, redis.url(), &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        output
            .stdout
            .split(|byte| *byte == b'\n')
            .all(|line| line.len() <= 80),
        "{output:?}"
    );
    let set = async |option: &str, value: &str| {
        let _: String = console.run(&["CONFIG", "SET", option, value]).await;
    };
    set("maxmemory-policy", "allkeys-lru").await;
    let (code, verdict, finding) = found(&redis, redis.url(), "memory", &[]);
    assert!(
        code == Some(1) && verdict == "wrong" && finding.contains("noeviction"),
        "{finding}"
    );
    set("maxmemory-policy", "noeviction").await;
    set("appendonly", "no").await;
    let (code, verdict, finding) = found(&redis, redis.url(), "persistence", &[]);
    assert!(
        code == Some(1) && verdict == "wrong" && finding.contains("appendonly yes"),
        "{finding}"
    );
    // `doctor` has written nothing.
    let keys: Vec<String> = console.run(&["KEYS", "*meta"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn missing_rights_are_named() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    let console = redis.console().await;
    let rights = [
        "ACL", "SETUSER", "worker", "on", ">p", "~*", "+@all", "-lmove",
    ];
    let _: String = console.run(&rights).await;
    let url = redis.url().replace("unix://", "unix://worker:p@");
    let url = if url.contains("worker:p@/") {
        format!("{}?user=worker&pass=p", redis.url())
    } else {
        url
    };
    let (code, verdict, finding) = found(&redis, &url, "rights", &[]);
    assert!(
        code == Some(1) && verdict == "wrong" && finding.contains("LMOVE"),
        "{finding}"
    );
    let without_info = ["ACL", "SETUSER", "worker", "+lmove", "-info"];
    let _: String = console.run(&without_info).await;
    let (code, verdict, _) = found(&redis, &url, "settings", &[]);
    assert_eq!((code, verdict.as_str()), (Some(0), "unknown"));
}

/// `doctor` says in which way workers run, and lists libraries of other versions.
#[tokio::test]
async fn old_libraries_are_listed() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    let console = redis.console().await;
    let (code, verdict, finding) = found(&redis, redis.url(), "functions", &[]);
    assert!(
        code == Some(0) && verdict == "good" && finding.contains("not loaded"),
        "{finding}"
    );
    let old = "#!lua name=seriatim_0123456789ab\nredis.register_function('old', function() end)";
    let _: String = console.run(&["FUNCTION", "LOAD", old]).await;
    let output = doctor(&redis, redis.url(), &[]);
    let finding = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    let finding: Vec<_> = finding.split_whitespace().collect();
    assert!(
        output.status.success()
            && finding
                .join(" ")
                .contains("FUNCTION DELETE seriatim_0123456789ab"),
        "{finding:?}"
    );
    let rights = [
        "ACL", "SETUSER", "worker", "on", ">p", "~*", "+@all", "-fcall",
    ];
    let _: String = console.run(&rights).await;
    let url = format!("{}?user=worker&pass=p", redis.url());
    let (code, verdict, finding) = found(&redis, &url, "functions", &[]);
    assert!(
        code == Some(0) && verdict == "good" && finding.contains("may not use FCALL"),
        "{finding}"
    );
}

#[tokio::test]
async fn replicas_and_their_settings_are_told() {
    let port = free_port();
    let redis = Redis::own(&[
        "--appendonly",
        "yes",
        "--port",
        &port.to_string(),
        "--repl-diskless-sync-delay",
        "0",
    ]);
    let replica = Server::start(&[
        "--appendonly",
        "yes",
        "--replicaof",
        "127.0.0.1",
        &port.to_string(),
    ]);
    let console = redis.console().await;
    crate::support::until(
        "the replica is attached",
        std::time::Duration::from_secs(20),
        async || {
            console
                .run::<String>(&["INFO", "replication"])
                .await
                .contains("state=online")
                .then_some(())
        },
    )
    .await;
    let (code, verdict, finding) = found(&redis, redis.url(), "replicas", &[]);
    assert!(
        code == Some(0) && verdict == "warning" && finding.contains("min-replicas-to-write 1"),
        "{finding}"
    );
    let mut stats = Command::new(crate::support::program());
    let stats = stats
        .args(["--redis", redis.url(), "stats"])
        .output()
        .expect("run");
    assert!(
        String::from_utf8_lossy(&stats.stdout).contains("min-replicas-to-write is 0"),
        "{stats:?}"
    );
    let (code, verdict, finding) = found(&redis, &replica.url(), "role", &[]);
    assert!(
        code == Some(1) && verdict == "wrong" && finding.contains(&port.to_string()),
        "{finding}"
    );
    let _: String = console
        .run(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let (_, verdict, finding) = found(&redis, redis.url(), "replicas", &[]);
    assert!(
        verdict == "good" && finding.contains("1 attached"),
        "{finding}"
    );
    let _: String = console
        .run(&["CONFIG", "SET", "min-replicas-to-write", "2"])
        .await;
    let (code, verdict, finding) = found(&redis, redis.url(), "replicas", &[]);
    assert!(
        code == Some(1) && verdict == "wrong" && finding.contains("NOREPLICAS"),
        "{finding}"
    );
}

#[test]
fn the_sink_and_the_connection_are_examined() {
    let authority = Authority::new();
    let port = free_port();
    let options = authority
        .certify("127.0.0.1")
        .server_options(port, &authority.file(), "no");
    let options: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(["--appendonly", "yes"])
        .collect();
    let redis = Redis::with_tls(&options);
    let (ca, url) = (
        authority.file().display().to_string(),
        format!("rediss://127.0.0.1:{port}"),
    );
    let (_, verdict, finding) = found(&redis, &url, "connection", &["--redis-ca", &ca]);
    assert!(verdict == "good" && finding.contains("TLS"), "{finding}");
    let dir = tempfile::tempdir().expect("a directory");
    let sink = |path: &str| format!("file:{}/{path}", dir.path().display());
    let (code, verdict, _) = found(
        &redis,
        redis.url(),
        "sink",
        &["--sink", &sink("out.ndjson")],
    );
    assert_eq!((code, verdict.as_str()), (Some(0), "good"));
    assert!(!dir.path().join("out.ndjson").exists());
    let (code, verdict, finding) = found(
        &redis,
        redis.url(),
        "sink",
        &["--sink", &sink("no/out.ndjson")],
    );
    assert!(code == Some(1) && verdict == "wrong", "{finding}");
    let exec = |command: &str| {
        let sink = format!("exec:{command} --token=secret");
        found(&redis, redis.url(), "sink", &["--sink", &sink])
    };
    let (code, verdict, finding) = exec("sh");
    assert!(
        code == Some(0) && verdict == "good" && finding.ends_with("/sh can be started; it was not"),
        "{finding}"
    );
    let (code, verdict, finding) = exec("/no/such");
    assert!(code == Some(1) && verdict == "wrong", "{finding}");
    assert_eq!(
        finding,
        "/no/such … cannot be started: No such file or directory (os error 2)"
    );
}
