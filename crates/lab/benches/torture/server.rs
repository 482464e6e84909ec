//! The Redis server of the run, which faults kill and start again. It has an append-only file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, InfoDict};
use seriatim::keys::Keys;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::event_log::EventLog;
use crate::history::History;
use crate::proxy::Faults;
use crate::receiver::name_in;

/// With `appendfsync everysec`, a kill may lose the writes of this time before it.
const MAY_LOSE: Duration = Duration::from_secs(2);
/// A Redis that restarts empty loses all waiting events. The history counts the emits of this time
/// as possibly lost, and those since the call of the oldest event that waits in Redis. A backlog of
/// a busy host may be older than this time.
const MAY_WAIT: Duration = Duration::from_secs(60);

/// Returns all events of queues, batches and schedules. In a queue the last is not always the one
/// called first: an event of a schedule was called before events that were emitted ahead of it.
const WAITING: &str = "
local found = {}
for _, pattern in ipairs({ '*:events', '*:events.held', 'event.worker:*:event', '*:events.scheduled' }) do
  for _, key in ipairs(redis.call('KEYS', pattern)) do
    local kind, events = redis.call('TYPE', key).ok, {}
    if kind == 'list' then
      events = redis.call('LRANGE', key, '0', '-1')
    elseif kind == 'hash' then
      events = redis.call('HVALS', key)
    end
    for _, event in ipairs(events) do
      found[#found + 1] = event
    end
  end
end
return found";

/// Returns the time of the call that has emitted the oldest event that waits in Redis.
async fn oldest(
    conn: &mut MultiplexedConnection,
    history: &History,
) -> anyhow::Result<Option<u64>> {
    let mut waiting = redis::cmd("EVAL");
    let events: Vec<Vec<u8>> = waiting.arg(WAITING).arg(0).query_async(conn).await?;
    let names = events.iter().filter_map(|event| {
        // A reference to a schedule has no name, but the schedule has the event.
        name_in(std::str::from_utf8(event).ok()?).ok()
    });
    let calls = names.filter_map(|name| history.called_at(&name));
    Ok(calls.min())
}

pub(crate) struct Server {
    dir: PathBuf,
    pub(crate) port: u16,
    child: tokio::sync::Mutex<Running>,
    /// The append-only file and its length, at several times in the last seconds.
    noted: Mutex<Vec<(Instant, Log)>>,
    /// The clock that Redis reads.
    clock: Clock,
    /// Lock that allows no kill during a clock step. After a kill the counter of ids jumps. If it
    /// jumps while the clock is ahead, the counter stays ahead of the clock for an hour. If two
    /// such jumps in a row are then lost, and no process remembers the ids, new ids may be below
    /// earlier ids.
    clock_or_kill: tokio::sync::Mutex<()>,
}

/// A part of the append-only file, and its length in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Log {
    path: PathBuf,
    length: u64,
}

/// Time after which Redis has run every command that was sent before the proxy stopped.
const SETTLED: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
/// A time that is longer than a producer waits for Redis' time when it makes a schedule.
const CALL_MAX: Duration = Duration::from_secs(2);

/// Length of the append-only file, in bytes, above which Redis rewrites the file. Without rewrites
/// each start of Redis would take longer than the one before.
const LOG_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The setting `maxclients` of Redis outside of faults.
const CLIENTS_MAX: &str = "1000";

struct Running {
    child: Child,
    always: bool,
}

impl Server {
    pub(crate) async fn start(dir: &Path, always: bool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let clock = Clock::new();
        let child = spawn(dir, port, always, &clock)?;
        let child = tokio::sync::Mutex::new(Running { child, always });
        let clock_or_kill = tokio::sync::Mutex::default();
        let server = Self {
            dir: dir.to_owned(),
            port,
            child,
            noted: Mutex::default(),
            clock,
            clock_or_kill,
        };
        server.until_up().await?;
        Ok(server)
    }

    /// Returns a connection that bypasses the proxy.
    pub(crate) async fn connect(
        &self,
        patience: Duration,
    ) -> anyhow::Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience));
        let client = Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        Ok(client
            .get_multiplexed_async_connection_with_config(&config)
            .await?)
    }

    /// Runs one command, bypassing the proxy.
    pub(crate) async fn command(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut conn = self.connect(Duration::from_secs(6)).await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.exec_async(&mut conn).await?)
    }

    async fn until_up(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = match self.connect(Duration::from_secs(1)).await {
                Ok(mut conn) => redis::cmd("PING")
                    .exec_async(&mut conn)
                    .await
                    .map_err(anyhow::Error::from),
                Err(error) => Err(error),
            };
            match answer {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(
                    Instant::now() < deadline,
                    "Redis does not answer: {error:#}; see redis.log"
                ),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Records the length of the append-only file. Called every few milliseconds.
    pub(crate) fn note_length(&self) {
        let Some(log) = log_of(&self.dir) else { return };
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        noted.push((now, log));
        noted.retain(|(at, _)| now - *at < Duration::from_secs(3));
    }

    /// Lets Redis rewrite its append-only file if the file is longer than `LOG_BYTES_MAX`.
    pub(crate) async fn shorten_log(&self) {
        if log_of(&self.dir).is_some_and(|log| log.length > LOG_BYTES_MAX) {
            // This fails if Redis is down, or during a rewrite. The next call tries again.
            let _ = self.command(&["BGREWRITEAOF"]).await;
        }
    }

    /// Kills Redis with SIGKILL and starts it again. If the append-only file was synced only every
    /// second, records the possible loss in the history. If `cut` is also given, cuts the file to
    /// the length that it had this long before the kill. Returns whether the file was cut.
    pub(crate) async fn kill(
        &self,
        down: Duration,
        cut: Option<Duration>,
        always: bool,
        history: &History,
    ) -> anyhow::Result<bool> {
        let _alone = self.clock_or_kill.lock().await;
        let mut running = self.child.lock().await;
        let (killed_at, before) = (Instant::now(), history.now());
        running.child.kill().await?;
        let mut was_cut = false;
        if !running.always {
            if let Some(log) = cut.and_then(|cut| self.log_at(killed_at - cut)) {
                std::fs::OpenOptions::new()
                    .write(true)
                    .open(&log.path)?
                    .set_len(log.length)?;
                was_cut = true;
            }
            history.redis_lost(before, MAY_LOSE);
        }
        if let Some(log) = end_at_whole_step(&self.dir).await? {
            self.noted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|(_, noted)| noted.length <= log.length);
        }
        tokio::time::sleep(down).await;
        *running = Running {
            child: spawn(&self.dir, self.port, always, &self.clock)?,
            always,
        };
        self.until_up().await?;
        Ok(was_cut)
    }

    /// Kills Redis with SIGKILL and starts it again without data. Before the kill, reads the dead
    /// letters and the log rows; nothing passes the proxy during this time. If they cannot be read
    /// because of another fault, does not kill Redis. Returns whether Redis was killed.
    pub(crate) async fn empty(
        &self,
        down: Duration,
        history: &History,
        event_log: &mut EventLog,
        proxied: &Faults,
    ) -> anyhow::Result<bool> {
        let _alone = self.clock_or_kill.lock().await;
        if !self.is_in_time().await.unwrap_or(false) {
            println!(
                "Redis keeps its data: ids are ahead of its clock, or nobody has connected since the last kill"
            );
            return Ok(false);
        }
        let mut running = self.child.lock().await;
        proxied.stop(true);
        // After this sleep, calls that were sent earlier have ended, or wait for a marker, which
        // nobody can push now.
        tokio::time::sleep(SETTLED).await;
        let looked = async {
            let mut conn = self.connect(Duration::from_secs(3)).await?;
            history.dead_letters(&conn).await?;
            event_log.read(&mut conn, None).await?;
            oldest(&mut conn, history).await
        };
        let oldest = match looked.await {
            Ok(oldest) => oldest,
            Err(error) => {
                println!("Redis keeps its data: {error:#}");
                proxied.stop(false);
                return Ok(false);
            }
        };
        let before = history.now();
        running.child.kill().await?;
        std::fs::remove_dir_all(self.dir.join("appendonlydir"))?;
        self.noted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let waited = Duration::from_nanos(oldest.map_or(0, |t| before.saturating_sub(t)));
        history.redis_lost(before, waited.max(MAY_WAIT));
        event_log.emptied();
        proxied.stop(false);
        tokio::time::sleep(down).await;
        let always = running.always;
        *running = Running {
            child: spawn(&self.dir, self.port, always, &self.clock)?,
            always,
        };
        self.until_up().await?;
        Ok(true)
    }

    /// Prevents kills of Redis and of connections, and steps of the clock, while the guard exists.
    pub(crate) async fn no_kill(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.clock_or_kill.lock().await
    }

    /// Disconnects all clients, and lets Redis refuse new ones for `time`. Returns whether Redis did
    /// so.
    pub(crate) async fn fill(&self, time: Duration) -> bool {
        let Ok(mut conn) = self.connect(Duration::from_secs(30)).await else {
            return false;
        };
        let mut fill = redis::pipe();
        fill.cmd("CONFIG")
            .arg("SET")
            .arg("maxclients")
            .arg(1)
            .ignore();
        fill.cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .ignore();
        let filled = {
            let _alone = self.clock_or_kill.lock().await;
            fill.exec_async(&mut conn).await.is_ok()
        };
        tokio::time::sleep(time).await;
        // This connection is one of the clients that Redis still has. If it has failed, Redis was
        // killed, and has its setting of the start again.
        let mut lift = redis::cmd("CONFIG");
        let _ = lift
            .arg("SET")
            .arg("maxclients")
            .arg(CLIENTS_MAX)
            .exec_async(&mut conn)
            .await;
        filled
    }

    /// Returns whether a worker process or an emitter has connected since the last kill, and the
    /// counter of ids is not ahead of the clock. Otherwise the counter could jump while the clock
    /// is wrong. The counter would then stay ahead of the clock, because each kill makes it jump
    /// further. Ids after a loss of all data would be lower than earlier ids.
    pub(crate) async fn is_in_time(&self) -> anyhow::Result<bool> {
        let mut conn = self.connect(Duration::from_secs(3)).await?;
        let (info, noted, counter, (seconds, _)): (
            InfoDict,
            Option<String>,
            Option<u64>,
            (u64, u64),
        ) = redis::pipe()
            .cmd("INFO")
            .arg("replication")
            .cmd("HGET")
            .arg(Keys::new().meta())
            .arg("replication.id")
            .cmd("GET")
            .arg(Keys::new().next_event_id())
            .cmd("TIME")
            .query_async(&mut conn)
            .await?;
        let server: Option<String> = info.get("master_replid");
        Ok(noted.is_some()
            && noted == server
            && counter.is_some_and(|counter| counter / 1_000_000 <= seconds))
    }

    /// Steps the clock of Redis by an hour, and sets it right again after `time`. Does nothing if
    /// [`is_in_time`](Self::is_in_time) is false. Returns whether the clock was stepped.
    ///
    /// The flag `is_clock_wrong` of the history is set during this time. It is set before any call
    /// of a producer can see the step.
    pub(crate) async fn step_clock(&self, back: bool, time: Duration, history: &History) -> bool {
        let _alone = self.clock_or_kill.lock().await;
        if !self.is_in_time().await.unwrap_or(false) {
            return false;
        }
        history.is_clock_wrong.store(true, Ordering::SeqCst);
        // A producer that has read the flag before it was set asks Redis for the time within
        // `CALL_MAX`, so before the step.
        tokio::time::sleep(CALL_MAX).await;
        if back {
            self.clock.step_back(HOUR);
        } else {
            history.clock_ahead(HOUR);
            self.clock.step_ahead(HOUR);
        }
        tokio::time::sleep(time).await;
        if back {
            history.clock_ahead(HOUR);
        }
        self.clock.step_back(Duration::ZERO);
        history.is_clock_wrong.store(false, Ordering::SeqCst);
        true
    }

    /// Returns the append-only file with its length at that time. Returns `None` if no length of
    /// that time is known, or if Redis has rewritten the file since.
    fn log_at(&self, at: Instant) -> Option<Log> {
        let present = log_of(&self.dir)?;
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, log) = noted.iter().rev().find(|(noted, _)| *noted <= at)?;
        (log.path == present.path && log.length <= present.length).then(|| log.clone())
    }
}

/// Returns the part of the append-only file that Redis now writes, and its length. It is the part
/// with the highest number.
fn log_of(dir: &Path) -> Option<Log> {
    let parts = std::fs::read_dir(dir.join("appendonlydir")).ok()?.flatten();
    let numbered = parts.filter_map(|part| {
        let name = part.file_name().into_string().ok()?;
        let number: u64 = name
            .strip_prefix("appendonly.aof.")?
            .strip_suffix(".incr.aof")?
            .parse()
            .ok()?;
        Some((number, part.path()))
    });
    let (_, path) = numbered.max()?;
    let length = path.metadata().ok()?.len();
    Some(Log { path, length })
}

/// Cuts the beginning of a transaction off the end of the append-only file. Returns the file. Redis cuts
/// off only the last command if that is incomplete, and leaves the commands before it in the file. After
/// one more restart it runs these as a part of the next transaction (valkey-io/valkey, pull request 4342).
/// A script would then have half of its effects.
async fn end_at_whole_step(dir: &Path) -> anyhow::Result<Option<Log>> {
    let files = dir.join("appendonlydir/appendonly.aof.manifest");
    if !files.exists() {
        return Ok(None);
    }
    let server = program()?;
    let check = server
        .strip_suffix("-server")
        .map(|family| format!("{family}-check-aof"))
        .with_context(|| format!("no program checks the files of {server}"))?;
    let mut child = Command::new(&check)
        .arg("--fix")
        .arg(&files)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{check} does not start"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The program asks only if there is something to cut off, so it may have ended.
        let _ = stdin.write_all(b"y\n").await;
    }
    let status = child.wait().await?;
    ensure!(
        status.success(),
        "{check} --fix {}: {status}",
        files.display()
    );
    Ok(log_of(dir))
}

fn spawn(dir: &Path, port: u16, always: bool, clock: &Clock) -> anyhow::Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("redis.log"))?;
    let appendfsync = if always { "always" } else { "everysec" };
    Command::new(program()?)
        .envs(clock.environment())
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
            appendfsync,
            "--auto-aof-rewrite-percentage",
            "0",
        ])
        .args(["--enable-debug-command", "yes", "--maxclients", CLIENTS_MAX])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start redis-server")
}

/// Returns the Redis server program that `SERIATIM_REDIS_SERVER` names. If the variable is not set,
/// returns `redis-server` or `valkey-server`, whichever is found first.
pub(crate) fn program() -> anyhow::Result<String> {
    if let Some(named) = std::env::var("SERIATIM_REDIS_SERVER")
        .ok()
        .filter(|named| !named.is_empty())
    {
        return Ok(named);
    }
    let is_there = |program: &String| {
        std::process::Command::new(program)
            .arg("--version")
            .output()
            .is_ok()
    };
    let program = ["redis-server", "valkey-server"]
        .map(str::to_owned)
        .into_iter()
        .find(is_there);
    program.context("redis-server >= 7.0 or valkey-server must be on the PATH")
}
