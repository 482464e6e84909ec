//! A URL that leads to a replica, a Sentinel, or a node that does not have the keys; and a server
//! that becomes a replica.

use std::process::Command;
use std::time::Duration;

use seriatim::worker::{Shutdown, Worker};

use crate::support::recorder::Recorder;
use crate::support::running::{config, start_at};
use crate::support::{Redis, Server, free_port, until};

/// Returns the error with which a worker ends at its start.
async fn error_at_start(redis: &Redis, url: &str) -> String {
    let mut config = config(redis, "a");
    config.connect_timeout = Duration::from_millis(300);
    let worker = Worker::builder(url).config(config).sink(Recorder::new()).build().expect("settings");
    worker.run(Shutdown::new()).await.expect_err("an error").to_string()
}

fn emit(redis: &Redis, url: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.args(["--redis", url, "--namespace", redis.namespace(), "emit", "work:1", "1"]);
    String::from_utf8_lossy(&command.output().expect("run").stderr).into_owned()
}

#[tokio::test]
async fn a_replica_tells_its_master() {
    let (port, port_of_replica) = (free_port(), free_port().to_string());
    let master = Redis::own(&["--port", &port.to_string()]);
    let replica = Server::start(&["--port", &port_of_replica, "--replicaof", "127.0.0.1", &port.to_string()]);
    let right = format!("redis://127.0.0.1:{port}");
    let told = error_at_start(&master, &replica.url()).await;
    assert!(told.contains("READONLY") && told.contains(&right), "{told}");
    let told = emit(&master, &replica.url());
    assert!(told.contains("READONLY") && told.contains(&right), "{told}");
}

#[tokio::test]
async fn a_sentinel_tells_its_services() {
    let (port, sentinel) = (free_port(), free_port());
    let master = Redis::own(&["--port", &port.to_string()]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sentinel.conf");
    std::fs::write(&file, format!("port {sentinel}\nsentinel monitor shop 127.0.0.1 {port} 1\n")).expect("written");
    let mut child = Command::new(crate::support::program())
        .arg(&file)
        .arg("--sentinel")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a Sentinel");
    let here = format!("127.0.0.1:{sentinel}");
    until("the Sentinel listens", Duration::from_secs(20), async || std::net::TcpStream::connect(&here).ok()).await;
    let right = format!("redis-sentinel://{here}/shop");
    let told = error_at_start(&master, &here).await;
    assert!(told.contains(&right), "{told}");
    let told = emit(&master, &here);
    assert!(told.contains(&right), "{told}");
    let told = error_at_start(&master, &format!("redis-sentinel://{here}/market")).await;
    assert!(told.contains("no service market") && told.contains("shop"), "{told}");
    let told = error_at_start(&master, &format!("redis-sentinel://127.0.0.1:{port}/shop")).await;
    assert!(told.contains("this is no Sentinel"), "{told}");
    assert_eq!(emit(&master, &right), "");
    child.kill().and_then(|()| child.wait()).expect("killed");
}

#[tokio::test]
async fn a_node_of_a_cluster_tells_the_one_with_the_keys() {
    let ports = [free_port().to_string(), free_port().to_string()];
    let options = |port: &String| ["--port", port, "--cluster-enabled", "yes", "--cluster-port", "0"].map(str::to_owned);
    let [without, with] = ports.each_ref().map(|port| {
        let options = options(port);
        Redis::cluster_node(&options.each_ref().map(String::as_str))
    });
    let console = with.console().await;
    let _: String = console.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let _: String = console.run(&["CLUSTER", "MEET", "127.0.0.1", &ports[0]]).await;
    let asked = without.console().await;
    until("the node knows who has the slots", Duration::from_secs(20), async || {
        let slots: Vec<redis::Value> = asked.run(&["CLUSTER", "SLOTS"]).await;
        let info: String = asked.run(&["CLUSTER", "INFO"]).await;
        (!slots.is_empty() && info.contains("cluster_state:ok")).then_some(())
    })
    .await;
    let right = format!("redis://127.0.0.1:{}", ports[1]);
    let told = error_at_start(&without, without.url()).await;
    assert!(told.contains("MOVED") && told.contains(&right), "{told}");
    let told = emit(&without, without.url());
    assert!(told.contains("MOVED") && told.contains(&right), "{told}");
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
    let _: String = console.run(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!worker.is_over());
    let _: String = console.run(&["REPLICAOF", "NO", "ONE"]).await;
    console.emit("work:1", "2").await;
    sink.until_sent(2).await;
    worker.finish().await;
    assert!(redis.server().pid() > 0);
}
