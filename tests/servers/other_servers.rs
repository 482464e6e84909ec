//! A URL that leads to a replica, a Sentinel, or a node that does not have the keys; and a server
//! that becomes a replica.

use std::process::Command;
use std::time::Duration;

use seriatim::event::Json;
use seriatim::worker::{Shutdown, Worker};
use seriatim::{EmitError, Emitter, Server};

use crate::support::recorder::Recorder;
use crate::support::running::{config, start_at};
use crate::support::{Redis, Server as PrivateServer, free_port, until};

/// Returns the error with which a worker ends at its start.
pub(crate) async fn error_at_start(redis: &Redis, url: &str) -> String {
    let mut config = config(redis, "a");
    config.connect_timeout = Duration::from_millis(300);
    let worker = Worker::builder(url)
        .config(config)
        .sink(Recorder::new())
        .build()
        .expect("settings");
    worker
        .run(Shutdown::new())
        .await
        .expect_err("an error")
        .to_string()
}

fn emit(redis: &Redis, url: &str) -> String {
    let mut command = Command::new(crate::support::program());
    command.args([
        "--redis",
        url,
        "--namespace",
        redis.namespace(),
        "emit",
        "work:1",
        "1",
    ]);
    String::from_utf8_lossy(&command.output().expect("run").stderr).into_owned()
}

#[tokio::test]
async fn a_replica_tells_its_master() {
    let (port, port_of_replica) = (free_port(), free_port().to_string());
    let master = Redis::own(&["--port", &port.to_string()]);
    let replica = PrivateServer::start(&[
        "--port",
        &port_of_replica,
        "--replicaof",
        "127.0.0.1",
        &port.to_string(),
    ]);
    let right = format!("redis://127.0.0.1:{port}");
    let message = error_at_start(&master, &replica.url()).await;
    assert!(
        message.contains("READONLY") && message.contains(&right),
        "{message}"
    );
    let message = emit(&master, &replica.url());
    assert!(
        message.contains("READONLY") && message.contains(&right),
        "{message}"
    );
}

/// A Sentinel of one server.
pub(crate) struct Sentinel {
    child: std::process::Child,
    _dir: tempfile::TempDir,
    pub(crate) port: u16,
}

impl Sentinel {
    pub(crate) async fn start(master: u16) -> Self {
        let port = free_port();
        Self::start_with(
            &crate::support::redis_server(),
            master,
            port,
            &format!("port {port}\n"),
        )
        .await
    }

    /// Starts a Sentinel on this port. `lines`: the part of its configuration that sets the port.
    pub(crate) async fn start_with(program: &str, master: u16, port: u16, lines: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sentinel.conf");
        std::fs::write(
            &file,
            format!("{lines}sentinel monitor shop 127.0.0.1 {master} 1\n"),
        )
        .expect("written");
        let mut command = Command::new(program);
        let child = command
            .arg(&file)
            .arg("--sentinel")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a Sentinel");
        let here = format!("127.0.0.1:{port}");
        until(
            "the Sentinel listens",
            Duration::from_secs(20),
            async || std::net::TcpStream::connect(&here).ok(),
        )
        .await;
        Self {
            child,
            _dir: dir,
            port,
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_sentinel_tells_its_services() {
    let port = free_port();
    let master = Redis::own(&["--port", &port.to_string()]);
    let sentinel = Sentinel::start(port).await;
    let here = format!("127.0.0.1:{}", sentinel.port);
    let right = format!("redis-sentinel://{here}/shop");
    let message = error_at_start(&master, &here).await;
    assert!(message.contains(&right), "{message}");
    let message = emit(&master, &here);
    assert!(message.contains(&right), "{message}");
    let stats = Command::new(crate::support::program())
        .args(["--redis", &here, "stats"])
        .output()
        .expect("run");
    let message = String::from_utf8_lossy(&stats.stderr).into_owned();
    assert!(
        stats.status.code() == Some(3) && message.contains(&right),
        "{message}"
    );
    let message = error_at_start(&master, &format!("redis-sentinel://{here}/market")).await;
    assert!(
        message.contains("no service market") && message.contains("shop"),
        "{message}"
    );
    let message = error_at_start(&master, &format!("redis-sentinel://127.0.0.1:{port}/shop")).await;
    assert!(message.contains("this is no Sentinel"), "{message}");
    assert_eq!(emit(&master, &right), "");
}

/// The rights in docs/protocol.md are enough, and no other right is given. There are two users: a
/// producer that waits for replicas and finds its master through Sentinels, and a user of the
/// Sentinels.
#[tokio::test]
async fn the_rights_in_the_documents_are_enough() {
    let port = free_port();
    let master = Redis::own(&["--port", &port.to_string()]);
    let sentinel = Sentinel::start(port).await;
    let prefix = master.keys().prefix();
    let user = [
        "ACL", "SETUSER", "producer", "on", ">p", "+multi", "+exec", "+wait", "+role",
    ];
    let keys = [format!(
        "(~{prefix}*:events ~{prefix}objects.with.events +lpush)"
    )];
    let words: Vec<&str> = user
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    let _: String = master.console().await.run(&words).await;
    let url = format!("redis://127.0.0.1:{}", sentinel.port);
    let mut conn = redis::Client::open(url)
        .and_then(|client| client.get_connection())
        .expect("a connection");
    let rights = [
        "SETUSER",
        "seriatim",
        "on",
        ">s",
        "+sentinel|master",
        "+sentinel|get-master-addr-by-name",
    ];
    redis::cmd("ACL")
        .arg(&rights)
        .exec(&mut conn)
        .expect("a user");
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let server = Server::new(format!(
        "redis-sentinel://producer@127.0.0.1:{}/shop",
        sentinel.port
    ))
    .password_file(file("redis", "p\r\n"))
    .sentinel_user("seriatim")
    .sentinel_password_file(file("sentinel", "s"));
    let emitter = Emitter::builder(server)
        .keys(master.keys().clone())
        .wait(1, Duration::from_millis(20))
        .connect()
        .await;
    let error = emitter
        .expect("connected")
        .emit("work:1", Json::new("1"))
        .await
        .expect_err("no replica");
    assert!(matches!(error, EmitError::Unreplicated { .. }), "{error}");
}

#[tokio::test]
async fn a_node_of_a_cluster_tells_the_one_with_the_keys() {
    let ports = [free_port().to_string(), free_port().to_string()];
    let options = |port: &String| {
        [
            "--port",
            port,
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            "0",
        ]
        .map(str::to_owned)
    };
    let [without, with] = ports.each_ref().map(|port| {
        let options = options(port);
        Redis::cluster_node(&options.each_ref().map(String::as_str))
    });
    let console = with.console().await;
    let _: String = console
        .run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .await;
    let _: String = console
        .run(&["CLUSTER", "MEET", "127.0.0.1", &ports[0]])
        .await;
    let asked = without.console().await;
    until(
        "the node knows who has the slots",
        Duration::from_secs(20),
        async || {
            let slots: Vec<redis::Value> = asked.run(&["CLUSTER", "SLOTS"]).await;
            let info: String = asked.run(&["CLUSTER", "INFO"]).await;
            (!slots.is_empty() && info.contains("cluster_state:ok")).then_some(())
        },
    )
    .await;
    let right = format!("redis://127.0.0.1:{}", ports[1]);
    let message = error_at_start(&without, without.url()).await;
    assert!(
        message.contains("MOVED") && message.contains(&right),
        "{message}"
    );
    let message = emit(&without, without.url());
    assert!(
        message.contains("MOVED") && message.contains(&right),
        "{message}"
    );
}

/// Story: at a fixed address, a failover makes the server a replica. The worker must neither end
/// nor go on with the connections that it has.
#[tokio::test]
async fn a_worker_waits_while_its_server_is_a_replica() {
    let mut redis = Redis::own(&[]);
    let console = redis.console().await;
    let sink = Recorder::new();
    let worker = start_at(redis.url(), &redis, "a", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    let _: String = console
        .run(&["REPLICAOF", "127.0.0.1", &free_port().to_string()])
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!worker.is_over());
    let _: String = console.run(&["REPLICAOF", "NO", "ONE"]).await;
    console.emit("work:1", "2").await;
    sink.until_sent(2).await;
    worker.finish().await;
    assert!(redis.server().pid() > 0);
}
