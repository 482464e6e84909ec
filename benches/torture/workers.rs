//! The worker processes, and the task that starts them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use crate::blocking;

/// Lease of the workers; short, so that many faults fit into a minute.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// Retry policy of failed events.
pub(crate) const RETRY: &str = "exponential:20ms..1m";
/// Number of log rows that Redis keeps until the harness reads them.
pub(crate) const LOG_KEEP: u64 = 1_000_000_000;
/// Number of the worker with a handler that blocks its thread on request: the first one. The others
/// run the program.
const BLOCKING: usize = 0;
/// Time of a stop after which the worker counts as hung; longer than its grace.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Numbers of slots, in turn from start to start. Objects of slots that no longer exist must
/// continue, too.
const SLOTS: [&str; 5] = ["8", "3", "8", "1", "5"];

pub(crate) struct Workers {
    dir: PathBuf,
    url: String,
    program: PathBuf,
    /// This program, for the worker with a handler; `None` if there is no such worker.
    harness: Option<PathBuf>,
    /// Further options of the program.
    options: Vec<String>,
    children: Vec<Mutex<Child>>,
    /// Outputs of each worker; the last one is in use.
    outputs: Vec<StdMutex<Vec<PathBuf>>>,
    /// Counter of starts, which selects the number of slots.
    starts: AtomicUsize,
    /// Unexpected ends of processes: exit code or signal, and their number.
    ended: StdMutex<BTreeMap<String, u64>>,
}

impl Workers {
    /// Starts `count` workers.
    pub(crate) fn start(
        count: usize,
        dir: &Path,
        url: &str,
        program: &Path,
        harness: Option<&Path>,
        options: &[&str],
    ) -> anyhow::Result<Arc<Self>> {
        let mut workers = Self {
            dir: dir.to_owned(),
            url: url.to_owned(),
            program: program.to_owned(),
            harness: harness.map(Path::to_owned),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            children: Vec::new(),
            outputs: (0..count).map(|worker| StdMutex::new(vec![Self::output(dir, worker, 0)])).collect(),
            starts: AtomicUsize::new(0),
            ended: StdMutex::default(),
        };
        for worker in 0..count {
            workers.children.push(Mutex::new(workers.spawn(worker, false)?));
        }
        Ok(Arc::new(workers))
    }

    fn output(dir: &Path, worker: usize, generation: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.{generation}.ndjson"))
    }

    /// Returns all outputs, current and former.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.outputs.iter().flat_map(|outputs| lock(outputs).clone()).collect()
    }

    pub(crate) fn log(dir: &Path, worker: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.log"))
    }

    fn spawn(&self, worker: usize, takeover: bool) -> anyhow::Result<Child> {
        let output = lock(&self.outputs[worker]).last().cloned().unwrap_or_default();
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let slots = SLOTS[start % SLOTS.len()];
        let log = std::fs::OpenOptions::new().create(true).append(true).open(Self::log(&self.dir, worker))?;
        let name = format!("torture-{worker}");
        let mut command = if worker == BLOCKING
            && let Some(harness) = &self.harness
        {
            let mut command = Command::new(harness);
            command.args([blocking::WORD, &name, &self.url]).arg(output).arg(slots).arg(self.request());
            // Alternates between one thread that runs everything and several threads.
            command.args([takeover, start.is_multiple_of(2)].map(|yes| yes.to_string()));
            command
        } else {
            let mut command = Command::new(&self.program);
            command
                .args(["worker", "--name", &name, "--redis", &self.url])
                .arg("--sink")
                .arg(format!("file:{}", output.display()))
                .args(["--lease", &format!("{}ms", LEASE.as_millis()), "--grace", "2s", "--retry", RETRY])
                .args(["--concurrency", slots, "--batch", "16", "--turn-max", "64"])
                .args(["--event-log", "--event-log-keep", &LOG_KEEP.to_string()])
                .args(&self.options)
                .args(takeover.then_some("--takeover"));
            command
        };
        command
            .env("SERIATIM_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// Returns the request file for the worker with a handler.
    fn request(&self) -> PathBuf {
        self.dir.join("block")
    }

    /// Lets the next delivery of the worker with a handler block its thread for `time`. Returns
    /// whether one did within that time and 5 s more.
    pub(crate) async fn block(&self, time: Duration) -> anyhow::Result<bool> {
        let request = self.request();
        // Renamed, so that no delivery reads half a number.
        let half = self.dir.join("block.new");
        std::fs::write(&half, time.as_millis().to_string())?;
        std::fs::rename(&half, &request)?;
        sleep(time + Duration::from_secs(5)).await;
        Ok(std::fs::remove_file(&request).is_err())
    }

    /// Restarts, for ever, workers that have ended by themselves.
    pub(crate) async fn watch(&self) -> anyhow::Result<()> {
        loop {
            for worker in 0..self.children.len() {
                // A worker that a fault is handling is left to that fault.
                let Ok(mut child) = self.children[worker].try_lock() else { continue };
                if let Some(status) = child.try_wait()? {
                    self.note_end(status);
                    *child = self.spawn(worker, false)?;
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn note_end(&self, status: ExitStatus) {
        let how = match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        };
        self.note(how);
    }

    fn note(&self, how: String) {
        *lock(&self.ended).entry(how).or_default() += 1;
    }

    pub(crate) fn ended(&self) -> BTreeMap<String, u64> {
        lock(&self.ended).clone()
    }

    /// Returns this worker, or the next one that no other fault is handling.
    fn idle(&self, worker: usize) -> Option<(usize, MutexGuard<'_, Child>)> {
        let count = self.children.len();
        (worker..worker + count).map(|at| at % count).find_map(|at| self.children[at].try_lock().ok().map(|child| (at, child)))
    }

    pub(crate) async fn kill(&self, worker: usize, down: Duration) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else { return Ok(false) };
        child.kill().await?;
        sleep(down).await;
        *child = self.spawn(worker, false)?;
        Ok(true)
    }

    /// Kills all workers that no other fault is handling.
    pub(crate) async fn kill_all(&self, down: Duration) -> anyhow::Result<bool> {
        let mut killed = Vec::new();
        for (worker, child) in self.children.iter().enumerate() {
            if let Ok(mut child) = child.try_lock() {
                child.kill().await?;
                killed.push((worker, child));
            }
        }
        sleep(down).await;
        let any = !killed.is_empty();
        for (worker, mut child) in killed {
            *child = self.spawn(worker, false)?;
        }
        Ok(any)
    }

    pub(crate) async fn pause(&self, worker: usize, time: Duration) -> anyhow::Result<bool> {
        let Some((_, child)) = self.idle(worker) else { return Ok(false) };
        if !signal(&child, Signal::STOP) {
            return Ok(false);
        }
        sleep(time).await;
        signal(&child, Signal::CONT);
        Ok(true)
    }

    /// Starts another process under the worker's name, while the worker runs or is stopped for
    /// `paused`. One of the two must stop. If Redis goes back to an earlier state just now, either
    /// may be the one.
    pub(crate) async fn displace(&self, worker: usize, paused: Option<Duration>) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else { return Ok(false) };
        if paused.is_some() {
            signal(&child, Signal::STOP);
        }
        {
            // The file belongs to the process that has it open.
            let mut outputs = lock(&self.outputs[worker]);
            let generation = outputs.len();
            outputs.push(Self::output(&self.dir, worker, generation));
        }
        let mut successor = self.spawn(worker, true)?;
        if let Some(time) = paused {
            sleep(time).await;
            signal(&child, Signal::CONT);
        }
        let how = tokio::select! {
            status = child.wait() => {
                *child = successor;
                status?.code().map_or("displaced, killed".to_owned(), |code| format!("displaced, exit code {code}"))
            }
            status = successor.wait() => {
                // The watch restarts it with the output of its successor.
                child.kill().await?;
                status?.code().map_or("displacing, killed".to_owned(), |code| format!("displacing, exit code {code}"))
            }
            () = sleep(STOP_PATIENCE) => {
                child.kill().await?;
                *child = successor;
                "displaced, and did not stop".to_owned()
            }
        };
        self.note(how);
        Ok(true)
    }

    pub(crate) async fn restart(&self, worker: usize) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else { return Ok(false) };
        self.stop(&mut child).await?;
        *child = self.spawn(worker, false)?;
        Ok(true)
    }

    pub(crate) async fn rolling_restart(&self) -> anyhow::Result<bool> {
        for (worker, child) in self.children.iter().enumerate() {
            let mut child = child.lock().await;
            self.stop(&mut child).await?;
            *child = self.spawn(worker, false)?;
        }
        Ok(true)
    }

    /// Sends SIGTERM as soon as the worker catches it: a process that starts just now would die of
    /// it. A hung worker is recorded and killed. Returns whether it ended well.
    async fn stop(&self, child: &mut Child) -> anyhow::Result<bool> {
        let started = Instant::now();
        while !catches_terminate(child) && started.elapsed() < STOP_PATIENCE {
            sleep(Duration::from_millis(5)).await;
        }
        signal(child, Signal::TERM);
        match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
            Ok(status) => Ok(status?.success()),
            Err(_) => {
                self.note("hung at SIGTERM".to_owned());
                child.kill().await?;
                Ok(false)
            }
        }
    }

    /// Sends SIGTERM to all workers at the end, when no fault is in force. Returns whether all
    /// ended well.
    pub(crate) async fn stop_all(&self) -> anyhow::Result<bool> {
        let mut well = true;
        for (worker, child) in self.children.iter().enumerate() {
            if !self.stop(&mut *child.lock().await).await? {
                println!("WORKER {worker} did not end well; see {}", Self::log(&self.dir, worker).display());
                well = false;
            }
        }
        Ok(well)
    }
}

/// Returns whether the process has a handler for SIGTERM, or has ended.
fn catches_terminate(child: &Child) -> bool {
    let status = child.id().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let caught = status.as_deref().and_then(|status| status.lines().find_map(|line| line.strip_prefix("SigCgt:")));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_none_or(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}

fn signal(child: &Child, signal: Signal) -> bool {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
