//! The worker processes, and the task that starts a worker again after its process has ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use seriatim::keys::Keys;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use crate::blocking;
use crate::http;
use crate::server::Server;

/// Lease of the workers; short, so that many faults fit into a minute.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// Retry policy of failed events.
pub(crate) const RETRY: &str = "exponential:20ms..1m";
/// Number of rows that the event log may have. It is so large that no row is deleted before the
/// harness reads it.
pub(crate) const LOG_KEEP: u64 = 1_000_000_000;
/// Index of the blocking worker (`blocking`). The other workers run the program `seriatim`.
const BLOCKING: usize = 0;
/// Index of the worker that sends to the HTTP receiver (`http`).
const HTTP: usize = 1;
/// Time after SIGTERM after which a worker that still runs counts as hung. It is longer than the
/// grace of the worker.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Deletes the registration of the name and its lease, if this process has the lease. A process that
/// has just started, and has not attached yet, may have fewer slots than the process before it. Without
/// the registration it could not know of the other slots.
const UNREGISTER: &str = "
local lease = redis.call('GET', KEYS[2])
if not lease or not string.find(lease, ' ' .. ARGV[2] .. ' ', 1, true) then
  return 0
end
redis.call('DEL', KEYS[2])
return redis.call('HDEL', KEYS[1], ARGV[1])
";
/// Time after which Redis can no longer lose a registration.
const REGISTERED: Duration = Duration::from_secs(3);
/// Time for a worker to attach again. Other faults may act on Redis meanwhile, and may take the new
/// registration away before it has lasted for `REGISTERED`.
const ATTACH_PATIENCE: Duration = Duration::from_secs(60);

/// Numbers of slots. Each start of a worker takes the next number in turn. So a worker may start
/// with fewer slots than before, and the objects of the absent slots must continue, too.
const SLOTS: [&str; 5] = ["8", "3", "8", "1", "5"];

/// The needs of the blocking worker and of the worker that sends to the HTTP receiver.
pub(crate) struct Own {
    /// The program of the harness, which the blocking worker runs.
    pub(crate) harness: PathBuf,
    pub(crate) receiver_port: u16,
}

pub(crate) struct Workers {
    dir: PathBuf,
    url: String,
    program: PathBuf,
    /// `None` if all workers run the program `seriatim` with a file sink.
    own: Option<Own>,
    /// Further options of `seriatim worker`.
    options: Vec<String>,
    children: Vec<Mutex<Child>>,
    /// For each worker, its output files. The last file is in use.
    outputs: Vec<StdMutex<Vec<PathBuf>>>,
    /// Counter of all starts of workers. It selects the number of slots.
    starts: AtomicUsize,
    /// Unexpected ends of worker processes: for each exit code or signal, how often it was the end.
    ended: StdMutex<BTreeMap<String, u64>>,
    /// Workers that did not attach again after the loss of their registration.
    failed: StdMutex<Vec<String>>,
}

impl Workers {
    /// Starts `count` workers.
    pub(crate) fn start(
        count: usize,
        dir: &Path,
        url: &str,
        program: &Path,
        own: Option<Own>,
        options: &[&str],
    ) -> anyhow::Result<Arc<Self>> {
        let mut workers = Self {
            dir: dir.to_owned(),
            url: url.to_owned(),
            program: program.to_owned(),
            own,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            children: Vec::new(),
            outputs: (0..count)
                .map(|worker| StdMutex::new(vec![Self::output(dir, worker, 0)]))
                .collect(),
            starts: AtomicUsize::new(0),
            ended: StdMutex::default(),
            failed: StdMutex::default(),
        };
        for worker in 0..count {
            workers
                .children
                .push(Mutex::new(workers.spawn(worker, false)?));
        }
        Ok(Arc::new(workers))
    }

    fn output(dir: &Path, worker: usize, generation: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.{generation}.ndjson"))
    }

    /// Returns the output files of all workers, including those that are no longer in use.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.outputs
            .iter()
            .flat_map(|outputs| lock(outputs).clone())
            .collect()
    }

    pub(crate) fn log(dir: &Path, worker: usize) -> PathBuf {
        dir.join(format!("worker-{worker}.log"))
    }

    fn spawn(&self, worker: usize, takeover: bool) -> anyhow::Result<Child> {
        let output = lock(&self.outputs[worker])
            .last()
            .cloned()
            .unwrap_or_default();
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let slots = SLOTS[start % SLOTS.len()];
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(Self::log(&self.dir, worker))?;
        let name = format!("torture-{worker}");
        let mut command = if worker == BLOCKING
            && let Some(own) = &self.own
        {
            let mut command = Command::new(&own.harness);
            command
                .args([blocking::WORD, &name, &self.url])
                .arg(output)
                .arg(slots)
                .arg(self.request());
            // In every second start one thread runs everything. Otherwise there are several
            // threads.
            command.args([takeover, start.is_multiple_of(2)].map(|yes| yes.to_string()));
            command
        } else {
            let mut command = Command::new(&self.program);
            command
                .args(["worker", "--name", &name, "--redis", &self.url])
                .arg("--sink");
            match &self.own {
                Some(own) if worker == HTTP => {
                    // Requests with and without lists of events, and with and without the option
                    // that keeps requests of one object apart.
                    let list = ["?batch=8", ""][start / 2 % 2];
                    command.arg(format!("http://127.0.0.1:{}/{list}", own.receiver_port));
                    command
                        .args(["--sink-timeout", http::TIMEOUT])
                        .args(start.is_multiple_of(2).then_some("--sink-exclusive"));
                }
                _ => drop(command.arg(format!("file:{}", output.display()))),
            }
            command
                .args([
                    "--lease",
                    &format!("{}ms", LEASE.as_millis()),
                    "--grace",
                    "2s",
                    "--retry",
                    RETRY,
                ])
                .args(["--concurrency", slots, "--batch", "16", "--turn-max", "64"])
                // Workers with and without groups run together.
                .args(["--group-depth", ["0", "1"][start % 2]])
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

    /// Returns the path of the request file for the blocking worker.
    fn request(&self) -> PathBuf {
        self.dir.join("block")
    }

    /// Requests that the next delivery of the blocking worker blocks its thread for `time`. Waits
    /// for `time` and 5 s more. Returns whether a delivery took the request in this time.
    pub(crate) async fn block(&self, time: Duration) -> anyhow::Result<bool> {
        let request = self.request();
        // The file is written under another name and then renamed, so that no delivery reads an
        // incomplete number.
        let half = self.dir.join("block.new");
        std::fs::write(&half, time.as_millis().to_string())?;
        std::fs::rename(&half, &request)?;
        sleep(time + Duration::from_secs(5)).await;
        Ok(std::fs::remove_file(&request).is_err())
    }

    /// Starts workers again whose processes have ended by themselves. This loop never ends.
    pub(crate) async fn watch(&self) -> anyhow::Result<()> {
        loop {
            for worker in 0..self.children.len() {
                // If the lock is taken, a fault is acting on this worker. That fault starts the
                // worker again.
                let Ok(mut child) = self.children[worker].try_lock() else {
                    continue;
                };
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

    /// Returns this worker, or the next worker on which no other fault is acting.
    fn idle(&self, worker: usize) -> Option<(usize, MutexGuard<'_, Child>)> {
        let count = self.children.len();
        (worker..worker + count)
            .map(|at| at % count)
            .find_map(|at| self.children[at].try_lock().ok().map(|child| (at, child)))
    }

    pub(crate) async fn kill(&self, worker: usize, down: Duration) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else {
            return Ok(false);
        };
        child.kill().await?;
        sleep(down).await;
        *child = self.spawn(worker, false)?;
        Ok(true)
    }

    /// Kills all workers on which no other fault is acting, and starts them again after `down`.
    /// Returns whether any was killed.
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
        let Some((_, child)) = self.idle(worker) else {
            return Ok(false);
        };
        if !signal(&child, Signal::STOP) {
            return Ok(false);
        }
        sleep(time).await;
        signal(&child, Signal::CONT);
        Ok(true)
    }

    /// Starts a second process, which takes over the worker's name. With `paused`, the first
    /// process is stopped by SIGSTOP for this time. One of the two processes must end. Usually it
    /// is the first, but if Redis loses writes just now, it may be the second.
    pub(crate) async fn displace(
        &self,
        worker: usize,
        paused: Option<Duration>,
    ) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else {
            return Ok(false);
        };
        if paused.is_some() {
            signal(&child, Signal::STOP);
        }
        {
            // The second process gets a new output file, because the first process still has its
            // file open.
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
                // `watch` then starts the worker again, with the output file of the second process.
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

    /// Deletes the lease and the registration of a running worker. It must attach again, and its
    /// process must not end. The blocking worker is left out, because a block may end its process.
    /// No other fault acts on the process until Redis can no longer lose the new registration, or until
    /// `ATTACH_PATIENCE` is over. Returns whether there was a registration to delete.
    pub(crate) async fn unregister(&self, server: &Server, worker: usize) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self
            .idle(worker.max(BLOCKING + 1) % self.children.len())
            .filter(|(worker, _)| *worker != BLOCKING)
        else {
            return Ok(false);
        };
        let (name, keys) = (format!("torture-{worker}"), Keys::new());
        let Ok(mut conn) = server.connect(Duration::from_secs(6)).await else {
            return Ok(false);
        };
        let Some(pid) = child.id() else {
            return Ok(false);
        };
        let mut delete = redis::cmd("EVAL");
        delete
            .arg(UNREGISTER)
            .arg(2)
            .arg(keys.event_workers())
            .arg(keys.worker_lease(&name))
            .arg(&name)
            .arg(pid);
        // If the reply is lost, Redis may have deleted them. The worker must survive that, too.
        if let Ok(false) = delete.query_async(&mut conn).await {
            return Ok(false);
        }
        let (since, mut there, mut has_attached) = (Instant::now(), None, false);
        loop {
            sleep(Duration::from_millis(100)).await;
            if let Some(status) = child.try_wait()? {
                self.fail(format!(
                    "worker {worker} ended ({status}) after it had lost its lease and registration"
                ));
                return Ok(true);
            }
            let registered = match server.connect(Duration::from_secs(2)).await {
                Ok(mut conn) => {
                    let mut look = redis::pipe();
                    look.cmd("HEXISTS")
                        .arg(keys.event_workers())
                        .arg(&name)
                        .cmd("EXISTS")
                        .arg(keys.worker_lease(&name));
                    look.query_async::<(bool, bool)>(&mut conn)
                        .await
                        .is_ok_and(|(named, leased)| named && leased)
                }
                Err(_) => false,
            };
            has_attached |= registered;
            there = if registered {
                there.or_else(|| Some(Instant::now()))
            } else {
                None
            };
            if there.is_some_and(|from: Instant| from.elapsed() > REGISTERED) {
                return Ok(true);
            }
            if since.elapsed() > ATTACH_PATIENCE {
                if !has_attached {
                    self.fail(format!("worker {worker} has not attached again after it had lost its lease and registration"));
                }
                return Ok(true);
            }
        }
    }

    fn fail(&self, what: String) {
        println!("WORKER: {what}; see {}", self.dir.display());
        lock(&self.failed).push(what);
    }

    /// Returns whether no worker has failed after it had lost its registration.
    pub(crate) fn have_attached(&self) -> bool {
        lock(&self.failed).is_empty()
    }

    pub(crate) async fn restart(&self, worker: usize) -> anyhow::Result<bool> {
        let Some((worker, mut child)) = self.idle(worker) else {
            return Ok(false);
        };
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

    /// Waits until the worker process catches SIGTERM, because a process that is just starting
    /// would die of it. Then sends SIGTERM. If the worker does not end in time, records that it
    /// hung, and kills it. Returns whether the process ended with exit code 0.
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

    /// Stops all workers with SIGTERM at the end of the run, when no fault is in force. Returns
    /// whether all ended with exit code 0.
    pub(crate) async fn stop_all(&self) -> anyhow::Result<bool> {
        let mut well = true;
        for (worker, child) in self.children.iter().enumerate() {
            if !self.stop(&mut *child.lock().await).await? {
                println!(
                    "WORKER {worker} did not end well; see {}",
                    Self::log(&self.dir, worker).display()
                );
                well = false;
            }
        }
        Ok(well)
    }
}

/// Returns whether the process catches SIGTERM, or has ended.
fn catches_terminate(child: &Child) -> bool {
    let status = child
        .id()
        .and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let caught = status
        .as_deref()
        .and_then(|status| status.lines().find_map(|line| line.strip_prefix("SigCgt:")));
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
