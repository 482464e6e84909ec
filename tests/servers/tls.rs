//! TLS to a real redis-server, even if the other tests use another server.

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use seriatim::control::Control;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter, Server};

use crate::certificates::{Authority, Certificate};
use crate::other_servers::Sentinel;
use crate::support::recorder::{Offer, Recorder};
use crate::support::running::start_at;
use crate::support::{Redis, free_port, until};

/// A redis-server with TLS, and the authority of its certificate.
struct Secured {
    redis: Redis,
    authority: Authority,
    port: u16,
}

impl Secured {
    fn start(certify: impl FnOnce(&Authority) -> Certificate, clients: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (authority, port) = (Authority::new(), free_port());
        let options = certify(&authority).server_options(port, &authority.file(), clients);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self {
            redis: Redis::with_tls(&options),
            authority,
            port,
        }
    }

    fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    fn server(&self) -> Server {
        Server::new(self.url()).ca_file(self.authority.file())
    }
}

async fn refused(server: Server) -> String {
    match Emitter::connect(server).await {
        Err(error @ EmitError::Connect { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn workers_emitters_and_control_use_a_private_authority() {
    let secured = Secured::start(|authority| authority.certify("127.0.0.1"), "no");
    let keys = secured.redis.keys();
    let emitter = Emitter::builder(secured.server())
        .keys(keys.clone())
        .connect()
        .await
        .expect("connected");
    let sink = Recorder::new();
    let worker = start_at(secured.server(), &secured.redis, "a", &sink, |_| {});
    for n in 0..100 {
        emitter
            .emit(format!("work:{}", n % 7), Json::new(n.to_string()))
            .await
            .expect("emitted");
    }
    sink.until_sent(100).await;
    let control = Control::connect(secured.server())
        .await
        .expect("connected")
        .with_keys(keys.clone());
    assert_eq!(control.stats().await.expect("figures").held.total, 0);
    worker.finish().await;
}

#[tokio::test]
async fn a_client_certificate_is_sent() {
    let secured = Secured::start(|authority| authority.certify("127.0.0.1"), "yes");
    let client = secured.authority.certify("client.example");
    let error = refused(secured.server()).await;
    assert!(error.contains("cannot connect"), "{error}");
    Emitter::connect(
        secured
            .server()
            .identity_files(&client.certificate, &client.key),
    )
    .await
    .expect("connected");
}

#[tokio::test]
async fn bad_certificates_are_refused_with_the_reason() {
    let other = Authority::new();
    let wrong_host = Secured::start(|authority| authority.certify("elsewhere.example"), "no");
    let message = refused(wrong_host.server()).await;
    assert!(message.contains("elsewhere.example"), "{message}");
    let expired = Secured::start(|authority| authority.certify_until_2020("127.0.0.1"), "no");
    let message = refused(expired.server()).await;
    assert!(message.contains("xpired"), "{message}");
    let unknown = Server::new(wrong_host.url()).ca_file(other.file());
    let message = refused(unknown).await;
    assert!(message.contains("UnknownIssuer"), "{message}");
    // Without a file of authorities, only the authorities of the system count.
    let message = Emitter::connect(wrong_host.url())
        .await
        .expect_err("refused")
        .to_string();
    assert!(
        message.contains("UnknownIssuer") || message.contains("no certificates of authorities"),
        "{message}"
    );
}

#[tokio::test]
async fn a_plain_server_and_missing_files_are_told() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let port = free_port();
    let redis = Redis::own(&["--port", &port.to_string()]);
    let authority = Authority::new();
    let message =
        refused(Server::new(format!("rediss://127.0.0.1:{port}")).ca_file(authority.file())).await;
    assert!(message.contains("cannot connect"), "{message}");
    let missing = Server::new("rediss://127.0.0.1").ca_file("/does/not/exist.pem");
    let message = Emitter::connect(missing)
        .await
        .expect_err("no file")
        .to_string();
    assert!(
        message.contains("TLS to Redis is not possible") && message.contains("/does/not/exist.pem"),
        "{message}"
    );
    let without_tls = Server::new(redis.url()).ca_file(authority.file());
    let message = Emitter::connect(without_tls)
        .await
        .expect_err("no TLS")
        .to_string();
    assert!(message.contains("rediss://"), "{message}");
}

/// Tests that Sentinels are asked over TLS, with the same authority as the master.
#[tokio::test]
async fn sentinels_are_asked_over_tls() {
    let secured = Secured::start(|authority| authority.certify("127.0.0.1"), "no");
    let (port, ca) = (free_port(), secured.authority.file());
    let options = secured
        .authority
        .certify("127.0.0.1")
        .server_options(port, &ca, "no");
    let option = |pair: &[String]| format!("{} {}\n", pair[0].trim_start_matches('-'), pair[1]);
    let lines: String = options
        .chunks(2)
        .map(option)
        .chain(["port 0\ntls-replication yes\n".to_owned()])
        .collect();
    let sentinel = Sentinel::start_with("redis-server", secured.port, port, &lines).await;
    let url = format!("rediss-sentinel://127.0.0.1:{}/shop", sentinel.port);
    let server = Server::new(&url).ca_file(&ca);
    let emitter = Emitter::builder(&server)
        .keys(secured.redis.keys().clone())
        .connect()
        .await
        .expect("connected");
    emitter
        .emit("work:1", Json::new("1"))
        .await
        .expect("emitted");
    let sink = Recorder::new();
    let worker = start_at(&server, &secured.redis, "a", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
    let message = refused(Server::new(&url).ca_file(Authority::new().file())).await;
    assert!(message.contains("UnknownIssuer"), "{message}");
    let message = refused(Server::new(url.replace("rediss", "redis"))).await;
    assert!(message.contains("cannot connect"), "{message}");
}

/// The password changes under load: the file first, then the server, which also closes all
/// connections. Nothing is lost, and no process starts again.
#[tokio::test]
async fn a_password_file_may_change_under_load() {
    let secured = Secured::start(|authority| authority.certify("127.0.0.1"), "no");
    let console = secured.redis.console().await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    let change = async |password: &str| {
        std::fs::write(&file, format!("{password}\n")).expect("written");
        let _: String = console
            .run(&["CONFIG", "SET", "requirepass", password])
            .await;
        let _: u64 = console
            .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
    };
    change("first").await;
    let server = secured.server().password_file(&file);
    let emitter = Emitter::builder(&server)
        .keys(secured.redis.keys().clone())
        .connect()
        .await
        .expect("connected");
    let sink = Recorder::new();
    let worker = start_at(&server, &secured.redis, "a", &sink, |_| {});
    let mut acknowledged = Vec::new();
    for round in 0..5 {
        for n in 0..50 {
            let event = (round * 50 + n).to_string();
            if emitter
                .emit(format!("work:{}", n % 5), Json::new(event.clone()))
                .await
                .is_ok()
            {
                acknowledged.push(event);
            }
        }
        change(&format!("next-{round}")).await;
    }
    assert!(acknowledged.len() >= 200, "{acknowledged:?}");
    until(
        "every acknowledged event is delivered",
        Duration::from_secs(30),
        async || {
            let sent: HashSet<String> = sink.sent().iter().map(Offer::text).collect();
            acknowledged
                .iter()
                .all(|event| sent.contains(event))
                .then_some(())
        },
    )
    .await;
    worker.finish().await;
    sink.applied();
}

#[test]
fn commands_take_the_options() {
    let secured = Secured::start(|authority| authority.certify("127.0.0.1"), "yes");
    let client = secured.authority.certify("client.example");
    let run = |options: &[&str]| {
        let mut command = Command::new(crate::support::program());
        command
            .args(["--redis", &secured.url(), "--redis-ca"])
            .arg(secured.authority.file());
        command.args(options).args(["stats"]).output().expect("run")
    };
    let (certificate, key) = (
        client.certificate.display().to_string(),
        client.key.display().to_string(),
    );
    let output = run(&["--redis-cert", &certificate, "--redis-key", &key]);
    assert!(output.status.success(), "{output:?}");
    let output = run(&["--redis-cert", &certificate]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = run(&["--redis-cert", &certificate, "--redis-key", &certificate]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && text.contains("cannot be read"),
        "{text}"
    );
}
