//! The processes of the demo. Workers and producers are processes of this program, started as a
//! user would start them.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use seriatim_console::exit::{Exit, Failure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use crate::private::last_line;

/// Percentage of events that the producers emit evenly during the time `PACED`, so that a person
/// can watch. The other events are emitted at once.
const PACED_SHARE: u64 = 70;
const PACED: Duration = Duration::from_secs(8);
/// Interval at which a producer gets its next lines on standard input.
const FEED_EVERY: Duration = Duration::from_millis(10);

/// A worker or a producer process.
pub(super) struct Process {
    pub(super) name: String,
    pub(super) child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `seriatim --redis URL ARGS…`. The log of the process goes to the file `NAME.log`.
    pub(super) fn start(
        name: &str,
        url: &str,
        dir: &Path,
        args: &[&str],
        stdin: Stdio,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(&log)
                .with_context(|| format!("cannot write {}", log.display()))
        };
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let child = Command::new(program)
            .args(["--redis", url, "--namespace", "demo"])
            .args(args)
            .env_remove("SERIATIM_REDIS")
            .env_remove("SERIATIM_NAMESPACE")
            .stdin(stdin)
            .stdout(open()?)
            .stderr(open()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| anyhow!("{} has ended already", self.name))?;
        kill_process(pid, signal).with_context(|| format!("cannot send a signal to {}", self.name))
    }

    /// Returns the error for an unexpected end of the process.
    pub(super) fn ended_badly(&self, status: ExitStatus) -> anyhow::Error {
        Failure::with(
            Exit::Broken,
            format!(
                "{} ended with {status}; its log ends: {}",
                self.name,
                last_line(&self.log)
            ),
        )
    }
}

/// Sends lines to the producers. First it sends them at a steady pace. After [`Pace::burst`] it
/// sends all remaining lines at once.
pub(super) struct Pace {
    started: Instant,
    burst: AtomicBool,
    fed: AtomicU64,
}

impl Pace {
    pub(super) fn start() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            burst: AtomicBool::new(false),
            fed: AtomicU64::new(0),
        })
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn burst(&self) {
        self.burst.store(true, Ordering::Relaxed);
    }

    /// Returns the number of events sent to all producers so far.
    pub(super) fn fed(&self) -> u64 {
        self.fed.load(Ordering::Relaxed)
    }

    /// Returns whether all events that come before the burst have been sent. `shares`: the number
    /// of events of each producer.
    pub(super) fn has_paced(&self, shares: &[u64]) -> bool {
        self.fed() >= shares.iter().map(|share| share * PACED_SHARE / 100).sum()
    }

    /// Returns how many lines a producer may have got by now. `share`: the number of all its lines.
    fn allowed(&self, share: u64) -> u64 {
        if self.burst.load(Ordering::Relaxed) {
            return share;
        }
        let part = (self.started.elapsed().as_secs_f64() / PACED.as_secs_f64()).min(1.0);
        ((share * PACED_SHARE / 100) as f64 * part) as u64
    }

    /// Writes the lines of a file to the standard input of a producer, then closes this input.
    pub(super) async fn feed(
        self: Arc<Self>,
        path: PathBuf,
        share: u64,
        mut producer: ChildStdin,
    ) -> anyhow::Result<()> {
        let mut lines = BufReader::new(File::open(&path)?);
        let mut given = 0;
        let mut text = Vec::new();
        while given < share {
            let allowed = self.allowed(share);
            while given < allowed {
                text.clear();
                let mut count = 0;
                while given + count < allowed && text.len() < 1 << 16 {
                    lines.read_until(b'\n', &mut text)?;
                    count += 1;
                }
                // If the write fails, the producer has ended. Its exit code is checked elsewhere.
                if producer.write_all(&text).await.is_err() {
                    return Ok(());
                }
                given += count;
                self.fed.fetch_add(count, Ordering::Relaxed);
            }
            tokio::time::sleep(FEED_EVERY).await;
        }
        Ok(())
    }
}

/// Counts the lines of an output file while it grows.
pub(super) struct Tail {
    pub(super) path: PathBuf,
    offset: u64,
    pub(super) lines: u64,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            offset: 0,
            lines: 0,
        }
    }

    pub(super) fn read(&mut self) -> anyhow::Result<()> {
        // Before the worker has started, its file does not exist.
        let Ok(mut file) = File::open(&self.path) else {
            return Ok(());
        };
        // A restarted worker removes an incomplete last line from its file. Such a line was not
        // counted, so the offset may move back to the new end of the file.
        self.offset = self.offset.min(file.metadata()?.len());
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        self.offset += text.len() as u64;
        self.lines += text.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(())
    }
}
