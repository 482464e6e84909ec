//! The stage of the demo: a Redis, the workers, the producers, and functions that observe these
//! processes from outside.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use redis::aio::MultiplexedConnection;
use rustix::process::Signal;
use seriatim::keys::Keys;
use seriatim_console::exit::{Exit, Failure};
use tokio::task::JoinHandle;

use super::input::Input;
use super::processes::{Pace, Process, Tail};
use super::show::{Show, count, seconds};
use super::watch;
use crate::private::{Guard, Listen, Server};

/// Interval between two looks at the processes.
const TICK: Duration = Duration::from_millis(5);
/// Time without an emit and without a delivery after which the demo fails.
const STALL: Duration = Duration::from_secs(60);
/// Maximum wait for a worker to have a batch in flight.
const HUNT: Duration = Duration::from_secs(5);
/// Maximum time that a worker may take to stop after SIGTERM.
const STOP: Duration = Duration::from_secs(30);

/// All processes of the demo. When the stage is dropped, the processes end.
pub(super) struct Stage {
    home: PathBuf,
    lease: Duration,
    keys: Keys,
    redis: MultiplexedConnection,
    workers: Vec<Process>,
    producers: Vec<Process>,
    feeders: Vec<JoinHandle<anyhow::Result<()>>>,
    pace: Option<Arc<Pace>>,
    shares: [u64; 2],
    outputs: Vec<Tail>,
    moved: (u64, Instant),
    pub(super) show: Show,
    server: Server,
    // The guard must be the last field, so that it is dropped last. It then ends all remaining
    // processes.
    guard: Guard,
}

/// The events in flight of a worker process when it was killed.
pub(super) struct Caught {
    at: Instant,
    events: u64,
    /// Objects in flight, each with the id of its last delivered event.
    objects: Vec<(String, u64)>,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "with {} of {} in hand",
            count(self.events, "event"),
            count(self.objects.len() as u64, "object")
        )
    }
}

/// The times at which the objects of a killed process continued.
pub(super) struct WentOn {
    objects: usize,
    /// The first time is from the kill until any of the objects had a new delivery. The second one
    /// is from the kill until each of the objects had one. `None` if no object was in flight.
    times: Option<(Duration, Duration)>,
}

impl fmt::Display for WentOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times {
            Some((first, _)) if self.objects == 1 => {
                write!(f, "{} after the kill its object went on", seconds(first))
            }
            Some((first, last)) => {
                write!(
                    f,
                    "{} after the kill its objects went on, all {} of them by {}",
                    seconds(first),
                    self.objects,
                    seconds(last)
                )
            }
            None => f.write_str("nothing was in hand"),
        }
    }
}

impl Stage {
    /// Starts Redis, and returns the stage without workers and producers.
    pub(super) async fn set(
        guard: Guard,
        home: PathBuf,
        lease: Duration,
        show: Show,
    ) -> anyhow::Result<Self> {
        let mut guard = guard;
        let (server, redis) = Server::start(&mut guard, Listen::Socket).await?;
        Ok(Self {
            home,
            lease,
            keys: Keys::with_namespace("demo").context("cannot name the keys")?,
            redis,
            workers: Vec::new(),
            producers: Vec::new(),
            feeders: Vec::new(),
            pace: None,
            shares: [0; 2],
            outputs: Vec::new(),
            moved: (0, Instant::now()),
            show,
            server,
            guard,
        })
    }

    /// Starts a worker process, or restarts it. A restarted worker continues the file that it wrote
    /// before.
    pub(super) fn start_worker(&mut self, name: &str) -> anyhow::Result<()> {
        let output = self.output(name);
        if !self.outputs.iter().any(|tail| tail.path == output) {
            self.outputs.push(Tail::new(output.clone()));
        }
        let sink = format!("file:{}", output.display());
        let lease = format!("{}ms", self.lease.as_millis());
        let args = [
            "worker",
            "--name",
            name,
            "--concurrency",
            "16",
            "--batch",
            "32",
            "--lease",
            &lease,
            "--sink",
            &sink,
        ];
        let worker = Process::start(name, &self.server.url, &self.home, &args, Stdio::null())?;
        self.guard.watch(worker.pid());
        self.workers.push(worker);
        Ok(())
    }

    fn output(&self, name: &str) -> PathBuf {
        self.home.join(format!("{name}.ndjson"))
    }

    /// Returns the paths of the output files of all workers.
    pub(super) fn outputs(&self) -> Vec<PathBuf> {
        self.outputs.iter().map(|tail| tail.path.clone()).collect()
    }

    /// Waits until each worker process has the lease of its name and handles signals.
    pub(super) async fn until_attached(&mut self) -> anyhow::Result<()> {
        loop {
            let names = self.workers.iter().map(|worker| worker.name.as_str());
            let holders = watch::lease_holders(&mut self.redis, &self.keys, names).await?;
            if self
                .workers
                .iter()
                .zip(holders)
                .all(|(worker, holder)| holder == Some(worker.pid()))
            {
                return Ok(());
            }
            self.tick().await?;
        }
    }

    /// Starts the two producers, and begins to send their lines.
    pub(super) fn start_producers(&mut self, input: &Input) -> anyhow::Result<()> {
        let pace = Pace::start();
        self.shares = input.shares;
        for (path, share) in input.producers.iter().zip(input.shares) {
            let name = path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
                .unwrap_or_default();
            let mut producer = Process::start(
                &name,
                &self.server.url,
                &self.home,
                &["emit", "--from", "-"],
                Stdio::piped(),
            )?;
            self.guard.watch(producer.pid());
            let stdin = producer
                .child
                .stdin
                .take()
                .ok_or_else(|| anyhow!("{name} has no input"))?;
            self.feeders
                .push(tokio::spawn(pace.clone().feed(path.clone(), share, stdin)));
            self.producers.push(producer);
        }
        self.pace = Some(pace);
        Ok(())
    }

    /// Waits until this percentage of the events has been sent to the producers, or until all
    /// events before the burst have been sent. With few events in total, there may be none before
    /// the burst.
    pub(super) async fn until_fed(&mut self, percent: u64) -> anyhow::Result<()> {
        while self.fed() * 100 < self.events() * percent
            && self
                .pace
                .as_ref()
                .is_some_and(|pace| !pace.has_paced(&self.shares))
        {
            self.tick().await?;
        }
        Ok(())
    }

    /// Kills a worker process at a moment when it has events in flight. The process is stopped with
    /// SIGSTOP first, and its events are read from Redis before the kill. Commands that the process
    /// sent before SIGSTOP still take effect.
    pub(super) async fn kill_at_work(&mut self, name: &str) -> anyhow::Result<Caught> {
        let at = self
            .workers
            .iter()
            .position(|worker| worker.name == name)
            .ok_or_else(|| anyhow!("no worker {name}"))?;
        let deadline = Instant::now() + HUNT;
        let (events, objects) = loop {
            let before = self.written(name);
            self.tick().await?;
            let hunting = Instant::now() < deadline;
            if hunting && self.written(name) == before {
                continue;
            }
            self.workers[at].signal(Signal::STOP)?;
            let in_hand = watch::in_hand(&mut self.redis, &self.keys, name).await?;
            if in_hand.0 > 0 || !hunting {
                break in_hand;
            }
            self.workers[at].signal(Signal::CONT)?;
        };
        let mut worker = self.workers.remove(at);
        worker.signal(Signal::KILL)?;
        let caught = Caught {
            at: Instant::now(),
            events,
            objects,
        };
        let pid = worker.pid();
        worker.child.wait().await?;
        self.guard.ended(pid);
        Ok(caught)
    }

    fn written(&self, name: &str) -> u64 {
        let output = self.output(name);
        self.outputs
            .iter()
            .filter(|tail| tail.path == output)
            .map(|tail| tail.lines)
            .sum()
    }

    /// Waits until each object of the killed process has had a new delivery.
    pub(super) async fn until_gone_on(&mut self, caught: Caught) -> anyhow::Result<WentOn> {
        let objects = caught.objects.len();
        let mut waiting = caught.objects;
        let mut times = None;
        while !waiting.is_empty() {
            self.tick().await?;
            let last_ids = watch::last_event_ids(&mut self.redis, &self.keys, &waiting).await?;
            let mut last_ids = last_ids.into_iter();
            let before = waiting.len();
            waiting.retain(|(_, last_id)| last_ids.next().is_none_or(|now| now <= *last_id));
            if waiting.len() < before {
                let now = caught.at.elapsed();
                times = Some(times.map_or((now, now), |(first, _)| (first, now)));
            }
        }
        Ok(WentOn { objects, times })
    }

    /// Sends the rest of the events at once. Returns the time of this, and the number of these
    /// events.
    pub(super) async fn burst(&mut self) -> anyhow::Result<(Instant, u64)> {
        let Some(pace) = self.pace.clone() else {
            return Ok((Instant::now(), 0));
        };
        while !pace.has_paced(&self.shares) {
            self.tick().await?;
        }
        let rest = self.events() - pace.fed();
        pace.burst();
        Ok((Instant::now(), rest))
    }

    /// Waits until all events are emitted and delivered. Returns the time of this, and the duration
    /// since the first emit.
    pub(super) async fn until_drained(&mut self) -> anyhow::Result<(Instant, Duration)> {
        while !self.producers.is_empty() {
            self.tick().await?;
        }
        for feeder in self.feeders.drain(..) {
            feeder.await??;
        }
        while !watch::is_drained(&mut self.redis, &self.keys).await? {
            self.tick().await?;
        }
        let now = Instant::now();
        let started = self.pace.as_ref().map_or(now, |pace| pace.started());
        Ok((now, now - started))
    }

    /// Sends SIGTERM to all workers, and waits until they have stopped.
    pub(super) async fn stop_workers(&mut self) -> anyhow::Result<()> {
        for worker in &self.workers {
            worker.signal(Signal::TERM)?;
        }
        for mut worker in self.workers.drain(..) {
            let pid = worker.pid();
            let Ok(status) = tokio::time::timeout(STOP, worker.child.wait()).await else {
                let what = format!(
                    "{} did not stop within {} of SIGTERM",
                    worker.name,
                    seconds(STOP)
                );
                return Err(Failure::with(Exit::Broken, what));
            };
            let status = status?;
            self.guard.ended(pid);
            if !status.success() {
                return Err(worker.ended_badly(status));
            }
        }
        self.show.end();
        Ok(())
    }

    pub(super) fn say(&self, what: &str) {
        self.show.say(what);
    }

    fn events(&self) -> u64 {
        self.shares.iter().sum()
    }

    fn fed(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.fed())
    }

    /// Waits a moment, updates the bars, and fails if a process has ended too early.
    async fn tick(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(TICK).await;
        let mut delivered = 0;
        for output in &mut self.outputs {
            output.read()?;
            delivered += output.lines;
        }
        let (fed, events) = (self.fed(), self.events());
        if events > 0 {
            self.show.progress(fed, delivered.min(events), events);
        }
        if self.moved.0 != fed + delivered {
            self.moved = (fed + delivered, Instant::now());
        } else if self.moved.1.elapsed() > STALL {
            let what = format!(
                "nothing moves: {fed} of {events} events emitted, {delivered} delivered; --keep DIR keeps the logs"
            );
            return Err(Failure::with(Exit::Broken, what));
        }
        self.nobody_ended_badly()
    }

    fn nobody_ended_badly(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.server.child.try_wait()? {
            return Err(Failure::with(
                Exit::Redis,
                format!("the private Redis ended with {status}"),
            ));
        }
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait()? {
                return Err(worker.ended_badly(status));
            }
        }
        let mut at = 0;
        while at < self.producers.len() {
            let producer = &mut self.producers[at];
            let pid = producer.pid();
            match producer.child.try_wait()? {
                None => at += 1,
                Some(status) if status.success() => {
                    self.guard.ended(pid);
                    self.producers.remove(at);
                }
                Some(status) => return Err(producer.ended_badly(status)),
            }
        }
        Ok(())
    }
}

/// Returns the directory for input, outputs and logs: the directory of `--keep`, or else a
/// directory that the guard removes.
pub(super) fn home(keep: Option<&Path>, guard: &Guard) -> anyhow::Result<PathBuf> {
    let Some(keep) = keep else {
        let home = guard.dir().join("run");
        std::fs::create_dir(&home).context("cannot write to the temporary directory")?;
        return Ok(home);
    };
    let cannot = |error: std::io::Error| {
        Failure::with(
            Exit::Input,
            format!("--keep: cannot use {}: {error}", keep.display()),
        )
    };
    std::fs::create_dir_all(keep).map_err(cannot)?;
    if std::fs::read_dir(keep).map_err(cannot)?.next().is_some() {
        return Err(Failure::with(
            Exit::Input,
            format!(
                "--keep: {} is not empty; name a new directory",
                keep.display()
            ),
        ));
    }
    keep.canonicalize().map_err(cannot)
}
