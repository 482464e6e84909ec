//! A group of one master, two replicas and three Sentinels. Has several ways to force a failover.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, InfoDict};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::peers;
use crate::server::program;

pub(super) const SERVICE: &str = "shop";
const SERVERS: usize = 3;
const SENTINELS: usize = 3;
/// Time without a reply after which a Sentinel considers a server to be down.
const DOWN_AFTER_MS: u32 = 500;
const PATIENCE: Duration = Duration::from_secs(60);

/// The way in which a master fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// SIGSTOP to the master, and SIGCONT after the failover.
    Stopped,
    /// No byte passes between the master and its replicas and Sentinels, until after the failover.
    CutOff,
    /// A Sentinel is asked for a failover with `SENTINEL FAILOVER`. The master does not fail.
    Asked,
    /// SIGKILL to the master, which is started again after the failover.
    Killed,
}

pub(super) const FAILURES: [Failure; 4] = [
    Failure::Stopped,
    Failure::CutOff,
    Failure::Asked,
    Failure::Killed,
];

struct Node {
    dir: PathBuf,
    /// The port of the server itself.
    port: u16,
    /// The port of the server's proxy. Clients, replicas and Sentinels know only this port.
    announced: u16,
    cut: Arc<AtomicBool>,
    child: Child,
}

pub(super) struct Group {
    nodes: Vec<Node>,
    sentinels: Vec<(u16, Child)>,
    options: Vec<String>,
}

impl Group {
    /// Starts all servers, and waits until both replicas are attached. `options`: options for the
    /// master and for each replica.
    pub(super) async fn start(dir: &Path, options: Vec<String>) -> anyhow::Result<Self> {
        let ports = free_ports(SERVERS * 2 + SENTINELS)?;
        let mut nodes: Vec<Node> = Vec::new();
        for at in 0..SERVERS {
            let (port, announced) = (ports[at], ports[SERVERS + at]);
            let dir = dir.join(format!("redis-{at}"));
            std::fs::create_dir_all(&dir)?;
            let cut = Arc::new(AtomicBool::new(false));
            peers::start(announced, port, Arc::clone(&cut)).await?;
            let master = nodes.first().map(|first| first.announced);
            let child = spawn(&dir, port, announced, master, &options)?;
            nodes.push(Node {
                dir,
                port,
                announced,
                cut,
                child,
            });
        }
        let mut sentinels = Vec::new();
        for (at, port) in ports[SERVERS * 2..].iter().copied().enumerate() {
            let file = dir.join(format!("sentinel-{at}.conf"));
            let master = nodes[0].announced;
            std::fs::write(
                &file,
                format!(
                    "port {port}\nbind 127.0.0.1\nsentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
                     sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\nsentinel failover-timeout {SERVICE} 2000\n\
                     sentinel parallel-syncs {SERVICE} 2\n"
                ),
            )?;
            let log = std::fs::File::create(dir.join(format!("sentinel-{at}.log")))?;
            let child = Command::new(program()?)
                .arg(&file)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .kill_on_drop(true)
                .spawn()
                .context("cannot start a Sentinel")?;
            sentinels.push((port, child));
        }
        let group = Self {
            nodes,
            sentinels,
            options,
        };
        group.hurry().await?;
        group.until_whole().await?;
        Ok(group)
    }

    /// Lets the Sentinels look at the servers more often, so that more failovers fit into a minute.
    async fn hurry(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for (port, _) in &self.sentinels {
            let mut debug = redis::cmd("SENTINEL");
            debug.arg("DEBUG").arg(&[
                "info-period",
                "300",
                "publish-period",
                "500",
                "ask-period",
                "300",
                "ping-period",
                "200",
            ]);
            while let Err(error) = async {
                Ok::<_, anyhow::Error>(debug.exec_async(&mut connect(*port).await?).await?)
            }
            .await
            {
                ensure!(
                    Instant::now() < deadline,
                    "a Sentinel does not reply: {error:#}"
                );
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Returns the URL for workers and emitters.
    pub(super) fn url(&self) -> String {
        let hosts: Vec<_> = self
            .sentinels
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// Returns a connection to the present master, past its proxy.
    pub(super) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(self.nodes[self.master().await?].port).await
    }

    /// Returns the index of the master in `nodes`. It is an error if the Sentinels do not all name
    /// the same master.
    async fn master(&self) -> anyhow::Result<usize> {
        let mut masters = Vec::new();
        for (port, _) in &self.sentinels {
            let mut conn = connect(*port).await?;
            let (_, master): (String, u16) = redis::cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg(SERVICE)
                .query_async(&mut conn)
                .await?;
            masters.push(master);
        }
        masters.dedup();
        ensure!(masters.len() == 1, "the Sentinels do not agree");
        self.nodes
            .iter()
            .position(|node| node.announced == masters[0])
            .context("an unknown master")
    }

    /// Waits until both replicas are attached to the master that the Sentinels name.
    pub(super) async fn until_attached(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_attached().await.unwrap_or(false) {
            ensure!(
                Instant::now() < deadline,
                "the replicas are not attached after {PATIENCE:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn is_attached(&self) -> anyhow::Result<bool> {
        let mut conn = connect(self.nodes[self.master().await?].port).await?;
        let info: InfoDict = redis::cmd("INFO")
            .arg("replication")
            .query_async(&mut conn)
            .await?;
        let online = (0..SERVERS).filter(|at| {
            let replica: Option<String> = info.get(&format!("slave{at}"));
            replica.is_some_and(|replica| replica.contains("state=online"))
        });
        Ok(
            info.get::<String>("role").as_deref() == Some("master")
                && online.count() == SERVERS - 1,
        )
    }

    /// Waits until both replicas are attached to the master, and all Sentinels list both replicas
    /// as up and linked to it.
    pub(super) async fn until_whole(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_whole().await.unwrap_or(false) {
            ensure!(
                Instant::now() < deadline,
                "the servers are not in step after {PATIENCE:?}"
            );
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn is_whole(&self) -> anyhow::Result<bool> {
        if !self.is_attached().await? {
            return Ok(false);
        }
        for (port, _) in &self.sentinels {
            let mut conn = connect(*port).await?;
            let replicas: Vec<std::collections::HashMap<String, String>> = redis::cmd("SENTINEL")
                .arg("REPLICAS")
                .arg(SERVICE)
                .query_async(&mut conn)
                .await?;
            let sound = replicas.iter().filter(|replica| {
                replica.get("flags").is_some_and(|flags| flags == "slave")
                    && replica
                        .get("master-link-status")
                        .is_some_and(|status| status == "ok")
            });
            if sound.count() != SERVERS - 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the master fail, and waits until the Sentinels name another master. After `hold`, ends
    /// the failure, and waits until both replicas are attached to the new master.
    pub(super) async fn fail_over(
        &mut self,
        failure: Failure,
        hold: Duration,
    ) -> anyhow::Result<()> {
        let old = self.master().await?;
        match failure {
            Failure::Stopped => signal(&self.nodes[old].child, Signal::STOP),
            Failure::CutOff => self.nodes[old].cut.store(true, Ordering::SeqCst),
            Failure::Killed => self.nodes[old].child.kill().await?,
            Failure::Asked => self.ask().await?,
        }
        let deadline = Instant::now() + PATIENCE;
        let replaced = loop {
            match self.master().await {
                Ok(master) if master != old => break true,
                _ if Instant::now() > deadline => break false,
                _ => sleep(Duration::from_millis(20)).await,
            }
        };
        sleep(hold).await;
        match failure {
            Failure::Stopped => signal(&self.nodes[old].child, Signal::CONT),
            Failure::CutOff => self.nodes[old].cut.store(false, Ordering::SeqCst),
            Failure::Killed => {
                let master = self.nodes[self.master().await?].announced;
                let Node {
                    dir,
                    port,
                    announced,
                    ..
                } = &self.nodes[old];
                let child = spawn(dir, *port, *announced, Some(master), &self.options)?;
                self.nodes[old].child = child;
            }
            Failure::Asked => {}
        }
        if !replaced {
            bail!("no failover within {PATIENCE:?} after {failure:?}");
        }
        self.until_attached().await
    }

    /// Asks a Sentinel for a failover. Tries again if the Sentinel refuses, as it does shortly
    /// after another failover.
    async fn ask(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut conn = connect(self.sentinels[0].0).await?;
            let asked: redis::RedisResult<()> = redis::cmd("SENTINEL")
                .arg("FAILOVER")
                .arg(SERVICE)
                .query_async(&mut conn)
                .await;
            match asked {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(Instant::now() < deadline, "no failover on request: {error}"),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}

fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let listeners: Vec<_> = (0..count)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .context("no free port")?;
    Ok(listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port()))
        .collect::<Result<_, _>>()?)
}

async fn connect(port: u16) -> anyhow::Result<MultiplexedConnection> {
    let patience = Some(Duration::from_secs(2));
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(patience)
        .set_response_timeout(patience);
    Ok(Client::open(format!("redis://127.0.0.1:{port}"))?
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

fn spawn(
    dir: &Path,
    port: u16,
    announced: u16,
    master: Option<u16>,
    options: &[String],
) -> anyhow::Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("redis.log"))?;
    let mut command = Command::new(program()?);
    command
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--daemonize",
            "no",
        ])
        .args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--repl-diskless-sync-delay",
            "0",
        ])
        .args([
            "--replica-announce-ip",
            "127.0.0.1",
            "--replica-announce-port",
            &announced.to_string(),
        ])
        .args(["--repl-backlog-size", "16mb"])
        .args(options)
        .arg("--dir")
        .arg(dir);
    if let Some(master) = master {
        command.args(["--replicaof", "127.0.0.1", &master.to_string()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start redis-server")
}
