//! Proxies that do not know all commands, and managed servers that do not tell all settings.

use std::process::{Command, Output};

use serde_json::Value;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::answering::{Answering, bulk};
use crate::support::console::PATIENCE;
use crate::support::recorder::Recorder;
use crate::support::running::start_at;
use crate::support::{Redis, until};
use crate::waits::{listening, start, status_of};

fn run(redis: &Redis, url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(crate::support::program());
    command
        .args(["--redis", url, "--namespace", redis.namespace()])
        .args(arguments)
        .output()
        .expect("run")
}

/// Returns the exit code of `doctor`, and the verdict and the text of its finding about `what`.
fn found(redis: &Redis, url: &str, what: &str) -> (Option<i32>, String, String) {
    let output = run(redis, url, &["doctor", "--json"]);
    let finding: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = finding["findings"].as_array().expect("findings");
    let of = findings
        .iter()
        .find(|finding| finding["what"] == what)
        .unwrap_or_else(|| panic!("{what}: {finding}"));
    let text = |field: &str| of[field].as_str().expect("text").to_owned();
    (output.status.code(), text("verdict"), text("text"))
}

/// Story: behind a proxy without `HELLO`, emits and `serve` failed, and `doctor` said that all is
/// well. Emits used RESP3, which begins with `HELLO`; the other parts used RESP2.
#[tokio::test(flavor = "multi_thread")]
async fn every_part_works_behind_a_proxy_without_hello() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    let proxy = Answering::without(&redis, &["HELLO"]);
    let output = run(&redis, &proxy.url(), &["emit", "work:1", "1"]);
    assert!(output.status.success(), "{output:?}");
    let with_resp3 = format!("{}?protocol=resp3", proxy.url());
    let emitter = Emitter::builder(with_resp3)
        .keys(redis.keys().clone())
        .connect()
        .await
        .expect("connected");
    emitter
        .emit("work:1", Json::new("2"))
        .await
        .expect("emitted");
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "a", &sink, |_| {});
    sink.until_sent(2).await;
    let due = ["schedule", "add", "work:1", "3", "--in", "1ms"];
    let output = run(&redis, &proxy.url(), &due);
    assert!(output.status.success(), "{output:?}");
    sink.until_sent(3).await;
    let events = "/v1/objects/work:1/events";
    for (command, method, path) in [
        ("serve", "POST", events),
        ("dashboard", "GET", "/readyz"),
        ("exporter", "GET", "/metrics"),
    ] {
        let log = tempfile::NamedTempFile::new().expect("a log");
        let of = [
            "--namespace",
            redis.namespace(),
            command,
            "--listen",
            "127.0.0.1:0",
        ];
        let _running = start(&proxy.url(), &of, log.path());
        let address = listening(log.path()).await;
        until(&format!("{command} answers"), PATIENCE, async || {
            let status = status_of(&address, method, path, "4")?;
            matches!(status, 200 | 202).then_some(())
        })
        .await;
    }
    sink.until_sent(4).await;
    worker.finish().await;
    let output = run(&redis, &proxy.url(), &["stats"]);
    assert!(output.status.success(), "{output:?}");
    let (code, verdict, finding) = found(&redis, &proxy.url(), "emits");
    assert!(code == Some(0) && verdict == "good", "{finding}");
}

/// Tests that the emitter still finds a lost connection before it emits, although it does not use
/// RESP3 any more.
#[tokio::test]
async fn an_unused_connection_that_was_closed_is_replaced() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let emitter = Emitter::builder(redis.url())
        .keys(redis.keys().clone())
        .connect()
        .await
        .expect("connected");
    for event in ["1", "2", "3"] {
        let _: i64 = console
            .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        crate::support::until(
            "it is noticed",
            std::time::Duration::from_secs(20),
            async || (!emitter.is_connected()).then_some(()),
        )
        .await;
        emitter
            .emit("work:1", Json::new(event))
            .await
            .expect("emitted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tries_each_way_of_talking_to_redis() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    for (unknown, what, word) in [
        (&["MULTI"][..], "transactions", "MULTI"),
        (&["BLMOVE"], "waits", "BLMOVE"),
    ] {
        let proxy = Answering::without(&redis, unknown);
        let (code, verdict, finding) = found(&redis, &proxy.url(), what);
        assert!(
            code == Some(1)
                && verdict == "wrong"
                && finding.contains(word)
                && finding.contains("proxy"),
            "{finding}"
        );
    }
    for what in ["transactions", "waits", "emits"] {
        let (code, verdict, finding) = found(&redis, redis.url(), what);
        assert!(code == Some(0) && verdict == "good", "{finding}");
    }
    let wrong = format!("{}?pass=wrong", redis.url());
    let console = redis.console().await;
    let _: String = console
        .run(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    let error = Emitter::builder(&wrong)
        .connect()
        .await
        .expect_err("refused");
    assert!(
        matches!(&error, EmitError::Connect { .. }) && error.to_string().contains("WRONGPASS"),
        "{error}"
    );
}

/// Story: a managed Redis does not tell its `maxmemory_policy`; `doctor` said "good", and with an
/// empty value it said "maxmemory-policy is :".
#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_the_server_does_not_tell_is_unknown() {
    let redis = Redis::own(&["--appendonly", "yes"]);
    let answers = |info: &'static str| {
        Answering::before(&redis, move |words| match words[0].as_str() {
            "INFO" => Some(bulk(info)),
            "CONFIG" => Some("-ERR unknown command 'CONFIG'\r\n".to_owned()),
            _ => None,
        })
    };
    let proxy = answers(
        "redis_version:7.2.4\r\nrole:master\r\nconnected_slaves:0\r\naof_enabled:1\r\nmaxmemory_policy:\r\n",
    );
    let (code, verdict, finding) = found(&redis, &proxy.url(), "memory");
    assert!(
        code == Some(0) && verdict == "unknown" && finding.contains("must be noeviction"),
        "{finding}"
    );
    // Nothing is wrong, but nobody knows whether this Redis is fit.
    let doctor = run(&redis, &proxy.url(), &["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    assert!(doctor["fits"].is_null(), "{doctor}");
    let stats = run(&redis, &proxy.url(), &["stats"]);
    assert!(
        String::from_utf8_lossy(&stats.stdout).contains("maxmemory-policy is unknown"),
        "{stats:?}"
    );
    let proxy = answers("nothing:0\r\n");
    for what in ["version", "role", "memory", "persistence", "replicas"] {
        let (_, verdict, finding) = found(&redis, &proxy.url(), what);
        assert!(verdict == "unknown", "{what}: {finding}");
    }
    let sink = Recorder::new();
    redis.console().await.emit("work:1", "1").await;
    let worker = start_at(proxy.url(), &redis, "a", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
}
