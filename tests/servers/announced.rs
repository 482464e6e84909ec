//! Sentinels that announce an address which cannot be reached from here, as behind NAT.

use std::process::{Command, Output};

use seriatim::event::Json;
use seriatim::{EmitError, Emitter, Server};

use crate::other_servers::{Sentinel, error_at_start};
use crate::support::recorder::Recorder;
use crate::support::running::start_at;
use crate::support::{Redis, free_port};

fn run(redis: &Redis, options: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new(crate::support::program());
    command
        .args(options)
        .args(["--namespace", redis.namespace()])
        .args(arguments)
        .output()
        .expect("run")
}

/// Story: the Sentinel announced an unreachable address, and the error blamed the Sentinel.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_address_is_named_and_can_be_mapped() {
    let (port, closed) = (free_port(), free_port());
    let redis = Redis::own(&["--port", &port.to_string()]);
    let sentinel = Sentinel::start(closed).await;
    let url = format!("redis-sentinel://127.0.0.1:{}/shop", sentinel.port);
    let (announced, reachable) = (format!("127.0.0.1:{closed}"), format!("127.0.0.1:{port}"));
    let named = format!("the master that the Sentinels announce, {announced}, cannot be reached");
    let advice = format!("--sentinel-map {announced}=HOST:PORT");
    for arguments in [&["emit", "work:1", "1"][..], &["stats"]] {
        let output = run(&redis, &["--redis", &url], arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(3)
                && message.contains(&named)
                && message.contains(&advice),
            "{message}"
        );
    }
    let message = error_at_start(&redis, &url).await;
    assert!(
        message.contains(&named) && message.contains(&advice),
        "{message}"
    );

    let map = format!("{announced}={reachable}");
    let other = format!("10.255.255.1:1={reachable}");
    let output = run(
        &redis,
        &[
            "--redis",
            &url,
            "--sentinel-map",
            &other,
            "--sentinel-map",
            &map,
        ],
        &["emit", "work:1", "1"],
    );
    assert!(output.status.success(), "{output:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        file.path(),
        format!("redis = '{url}'\nsentinel-map = ['{other}', '{map}']\n"),
    )
    .expect("written");
    let output = run(
        &redis,
        &["--config", &file.path().display().to_string()],
        &["emit", "work:1", "2"],
    );
    assert!(output.status.success(), "{output:?}");
    let mut command = Command::new(crate::support::program());
    command.args([
        "--redis",
        &url,
        "--namespace",
        redis.namespace(),
        "emit",
        "work:1",
        "3",
    ]);
    let output = command
        .env("SERIATIM_SENTINEL_MAP", format!("{other},{map}"))
        .output()
        .expect("run");
    assert!(output.status.success(), "{output:?}");
    let server = Server::new(&url).sentinel_map(&announced, &reachable);
    let sink = Recorder::new();
    let worker = start_at(server, &redis, "a", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;

    // The mapped address is wrong: the error names both.
    let wrong = format!("127.0.0.1:{}", free_port());
    let output = run(
        &redis,
        &[
            "--redis",
            &url,
            "--sentinel-map",
            &format!("{announced}={wrong}"),
        ],
        &["stats"],
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(3) && message.contains(&announced) && message.contains(&wrong),
        "{message}"
    );
}

#[tokio::test]
async fn a_wrong_map_is_refused_before_anything_is_sent() {
    let redis = Redis::own(&[]);
    let url = "redis-sentinel://127.0.0.1:1/shop";
    for (url, maps, expected) in [
        (url, vec!["10.0.0.1:6379"], "ANNOUNCED=REACHABLE"),
        (url, vec!["10.0.0.1=localhost:1"], "HOST:PORT"),
        (url, vec!["10.0.0.1:6379=localhost"], "HOST:PORT"),
        (
            url,
            vec!["10.0.0.1:1=a:1", "10.0.0.1:1=b:1"],
            "two reachable addresses",
        ),
        (
            redis.url(),
            vec!["10.0.0.1:6379=localhost:1"],
            "redis-sentinel://",
        ),
    ] {
        let options: Vec<&str> = ["--redis", url]
            .into_iter()
            .chain(maps.iter().flat_map(|map| ["--sentinel-map", *map]))
            .collect();
        let output = run(&redis, &options, &["stats"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2)
                && error.contains(expected)
                && error.contains("sentinel-map"),
            "{maps:?}: {error}"
        );
    }
    let server = Server::new(redis.url()).sentinel_map("a:1", "b:1");
    let error = Emitter::builder(server)
        .connect()
        .await
        .expect_err("refused");
    assert!(matches!(error, EmitError::Sentinels { .. }), "{error}");
    let error = Emitter::builder(Server::new(url).sentinel_map("a", "b:1"))
        .connect()
        .await
        .expect_err("refused");
    assert!(
        matches!(&error, EmitError::Sentinels { reason } if reason.contains("HOST:PORT")),
        "{error}"
    );
    assert!(
        Emitter::builder(Server::new(redis.url()))
            .connect()
            .await
            .expect("connected")
            .emit("a", Json::new("1"))
            .await
            .is_ok()
    );
}
