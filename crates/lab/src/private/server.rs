//! A private Redis. It listens on a socket in the temporary directory, or on a port of the loopback
//! interface.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use seriatim_console::exit::{Exit, Failure};
use tokio::process::{Child, Command};

use super::guard::Guard;

/// Maximum wait until the server has started, and for each of its replies.
const PATIENCE: Duration = Duration::from_secs(10);
/// The oldest usable version: from this version on, Redis can run scripts when its memory is full.
const VERSION_MIN: (u32, u32) = (7, 0);

/// The address of a private server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// A socket in the temporary directory.
    Socket,
    /// A free port of the loopback interface. The server also has the socket, but clients use the
    /// port: a measurement needs TCP, which most users have.
    Loopback,
}

/// The running server. It ends at the latest when its guard is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Server {
    /// Starts a server and waits until it replies.
    pub(crate) async fn start(
        guard: &mut Guard,
        listen: Listen,
    ) -> anyhow::Result<(Self, MultiplexedConnection)> {
        let program = program().await?;
        let dir = guard.dir().to_owned();
        let socket = dir.join("redis.sock");
        let port = match listen {
            Listen::Socket => 0,
            // The system chose a free port, and the listener is closed again at once. If another
            // program takes this port now, the server does not start, and the error says so.
            Listen::Loopback => TcpListener::bind("127.0.0.1:0")
                .and_then(|it| it.local_addr())
                .context("no free port")?
                .port(),
        };
        let child = Command::new(&program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args([
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--unixsocket",
            ])
            .arg(&socket)
            .arg("--dir")
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(
                File::create(dir.join("redis.log"))
                    .context("cannot write to the temporary directory")?,
            )
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        guard.watch(child.id().unwrap_or_default());
        let url = match listen {
            Listen::Socket => format!("unix://{}", socket.display()),
            Listen::Loopback => format!("redis://127.0.0.1:{port}"),
        };
        let mut server = Self { child, url };
        let connection = server.until_it_answers(&program, &dir).await?;
        Ok((server, connection))
    }

    async fn until_it_answers(
        &mut self,
        program: &str,
        dir: &Path,
    ) -> anyhow::Result<MultiplexedConnection> {
        let client = Client::open(self.url.as_str())?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let refused = match client
                .get_multiplexed_async_connection_with_config(&config)
                .await
            {
                Ok(connection) => return Ok(connection),
                Err(refused) => refused,
            };
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = last_line(&dir.join("redis.log"));
                return Err(Failure::with(
                    Exit::Redis,
                    format!("the private {program} does not start: {refused}; its log ends: {log}"),
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns the last non-empty line of a log.
pub(crate) fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("(nothing)")
        .to_owned()
}

/// Returns the server program that `SERIATIM_REDIS_SERVER` names, or else the first one that is on
/// the PATH. It is an error if its version is older than `VERSION_MIN`.
async fn program() -> anyhow::Result<String> {
    let named = std::env::var("SERIATIM_REDIS_SERVER")
        .ok()
        .filter(|named| !named.is_empty());
    let tried = named.as_ref().map_or_else(
        || vec!["redis-server", "valkey-server"],
        |named| vec![named.as_str()],
    );
    let mut found = Vec::new();
    for name in tried {
        let Ok(output) = Command::new(name)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .await
        else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match version(&text) {
            Some(version) if version >= VERSION_MIN => return Ok(name.to_owned()),
            _ => found.push(text.trim().to_owned()),
        }
    }
    let too_old = if found.is_empty() {
        String::new()
    } else {
        format!(" (found: {})", found.join("; "))
    };
    let what = match &named {
        Some(named) => {
            format!(
                "SERIATIM_REDIS_SERVER names {named}, which is not a redis-server >= 7.0 or valkey-server that runs here"
            )
        }
        None => {
            "this needs redis-server >= 7.0 or valkey-server on the PATH; scripts/demo installs one"
                .to_owned()
        }
    };
    Err(Failure::with(Exit::Redis, format!("{what}{too_old}")))
}

/// Parses major and minor from `Redis server v=7.0.15 sha=…`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text
        .split_once("v=")?
        .1
        .split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_read() {
        assert_eq!(
            super::version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"),
            Some((7, 0))
        );
        assert_eq!(super::version("Valkey server v=8.1.1 sha=0"), Some((8, 1)));
        assert_eq!(super::version("bash: not found"), None);
    }
}
