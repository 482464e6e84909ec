//! The worker processes, and who starts them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};

/// Short, so that many faults fit into a minute.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// A stop that takes longer than its grace by so much counts as hung.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

pub(crate) struct Workers {
    dir: PathBuf,
    url: String,
    program: PathBuf,
    children: Vec<Mutex<Child>>,
    /// How processes ended that nobody had told to: exit code or signal, and how often.
    ended: StdMutex<BTreeMap<String, u64>>,
}

impl Workers {
    /// Starts so many, and whoever watches over them.
    pub(crate) fn start(count: usize, dir: &Path, url: &str, program: &Path) -> anyhow::Result<Arc<Self>> {
        let mut workers = Self {
            dir: dir.to_owned(),
            url: url.to_owned(),
            program: program.to_owned(),
            children: Vec::new(),
            ended: StdMutex::default(),
        };
        for worker in 0..count {
            workers.children.push(Mutex::new(workers.spawn(worker)?));
        }
        Ok(Arc::new(workers))
    }

    pub(crate) fn output(dir: &Path, worker: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.ndjson"))
    }

    pub(crate) fn log(dir: &Path, worker: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.log"))
    }

    fn spawn(&self, worker: usize) -> anyhow::Result<Child> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(Self::log(&self.dir, worker))?;
        Command::new(&self.program)
            .args(["worker", "--name", &format!("torture-{worker}"), "--redis", &self.url])
            .arg("--sink")
            .arg(format!("file:{}", Self::output(&self.dir, worker).display()))
            .args(["--lease", &format!("{}ms", LEASE.as_millis()), "--grace", "2s", "--retry-min", "20ms"])
            .args(["--concurrency", "8", "--batch", "16", "--turn-max", "64"])
            .env("SERIATIM_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// Starts again, for ever, what ended by itself.
    pub(crate) async fn watch(&self) -> anyhow::Result<()> {
        loop {
            for worker in 0..self.children.len() {
                // One that is being seen to by a fault is left to it.
                let Ok(mut child) = self.children[worker].try_lock() else { continue };
                if let Some(status) = child.try_wait()? {
                    self.note_end(status);
                    *child = self.spawn(worker)?;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn note_end(&self, status: ExitStatus) {
        let how = match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        };
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry(how).or_default() += 1;
    }

    pub(crate) fn ended(&self) -> BTreeMap<String, u64> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This worker, or the next one that no other fault has in hand.
    fn idle(&self, worker: usize) -> Option<(usize, MutexGuard<'_, Child>)> {
        let count = self.children.len();
        (worker..worker + count).map(|at| at % count).find_map(|at| self.children[at].try_lock().ok().map(|child| (at, child)))
    }

    pub(crate) async fn kill(&self, worker: usize, down: Duration) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else { return Ok(false) };
        child.kill().await?;
        tokio::time::sleep(down).await;
        *child = self.spawn(worker)?;
        Ok(true)
    }

    /// All that no other fault has in hand.
    pub(crate) async fn kill_all(&self, down: Duration) -> anyhow::Result<bool> {
        let mut killed = Vec::new();
        for (worker, child) in self.children.iter().enumerate() {
            if let Ok(mut child) = child.try_lock() {
                child.kill().await?;
                killed.push((worker, child));
            }
        }
        tokio::time::sleep(down).await;
        let any = !killed.is_empty();
        for (worker, mut child) in killed {
            *child = self.spawn(worker)?;
        }
        Ok(any)
    }

    pub(crate) async fn pause(&self, worker: usize, time: Duration) -> anyhow::Result<bool> {
        let Some((_, child)) = self.idle(worker) else { return Ok(false) };
        if !signal(&child, Signal::STOP) {
            return Ok(false);
        }
        tokio::time::sleep(time).await;
        signal(&child, Signal::CONT);
        Ok(true)
    }

    pub(crate) async fn restart(&self, worker: usize) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else { return Ok(false) };
        self.stop(&mut child, true).await?;
        *child = self.spawn(worker)?;
        Ok(true)
    }

    pub(crate) async fn rolling_restart(&self) -> anyhow::Result<bool> {
        for (worker, child) in self.children.iter().enumerate() {
            let mut child = child.lock().await;
            self.stop(&mut child, true).await?;
            *child = self.spawn(worker)?;
        }
        Ok(true)
    }

    /// SIGTERM. One that hangs is noted and killed.
    async fn stop(&self, child: &mut Child, may_fail: bool) -> anyhow::Result<()> {
        signal(child, Signal::TERM);
        match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
            Ok(status) => {
                let status = status?;
                if !status.success() && !may_fail {
                    self.note_end(status);
                }
            }
            Err(_) => {
                *self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry("hung at SIGTERM".to_owned()).or_default() += 1;
                child.kill().await?;
            }
        }
        Ok(())
    }

    /// At the end: SIGTERM to all.
    pub(crate) async fn stop_all(&self) -> anyhow::Result<()> {
        for child in &self.children {
            self.stop(&mut *child.lock().await, false).await?;
        }
        Ok(())
    }
}

fn signal(child: &Child, signal: Signal) -> bool {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}
