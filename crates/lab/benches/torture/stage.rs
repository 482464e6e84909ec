//! The stage: all processes of a run, from their start to the verdict.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use seriatim::control::Control;
use seriatim::keys::Keys;
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use crate::event_log::EventLog;
use crate::history::History;
use crate::http::HttpReceiver;
use crate::lost_keys::LostKeys;
use crate::marks::Marks;
use crate::plan::{Appendfsync, Fault, KINDS};
use crate::producers::Producers;
use crate::proxy::{self, Faults, Way};
use crate::receiver::Receiver;
use crate::rules::Rules;
use crate::server::Server;
use crate::shares;
use crate::workers::{Own, Workers};

/// Maximum time after the last fault until everything is delivered.
const DRAIN: Duration = Duration::from_secs(90);
/// Age after which no kill can remove a log row.
const SETTLED: Duration = Duration::from_secs(10);
/// Number of departed names that are registered at the start. Each has 256 slots.
const DEPARTED: u64 = 2_000;
/// Speed of the slow link, bytes per second.
const SLOW_LINK: u64 = 1_000_000;

/// Copies the program `seriatim` to this path.
pub(crate) fn copy_program(to: &Path) -> anyhow::Result<()> {
    let program = crate::program::program();
    std::fs::copy(program, to).with_context(|| format!("cannot copy {}", program.display()))?;
    Ok(())
}

/// The parts on which faults act.
struct Scene {
    history: Arc<History>,
    server: Server,
    proxied: Arc<Faults>,
    workers: Arc<Workers>,
    rules: Rules,
    /// For each kind of fault: `done` counts the faults that took place, and `missed` those that
    /// found nothing to act on.
    done: [AtomicU64; KINDS.len()],
    missed: [AtomicU64; KINDS.len()],
    logs_cut: AtomicU64,
    released: AtomicU64,
    event_log: Arc<tokio::sync::Mutex<EventLog>>,
    marks: tokio::sync::Mutex<Marks>,
    lost_keys: LostKeys,
    http: Arc<HttpReceiver>,
}

pub(crate) struct Stage {
    dir: PathBuf,
    lossy: bool,
    scene: Arc<Scene>,
    producers: Arc<Producers>,
    emitting: JoinHandle<anyhow::Result<()>>,
    /// Background tasks that run until the end.
    beside: JoinSet<anyhow::Result<()>>,
    watching: JoinHandle<anyhow::Result<()>>,
    receiver: Arc<Mutex<Receiver>>,
    worker_count: usize,
}

impl Stage {
    pub(crate) async fn set(
        dir: &Path,
        seed: u64,
        worker_count: usize,
        appendfsync: Appendfsync,
    ) -> anyhow::Result<Self> {
        let history = Arc::new(History::create(&dir.join("history.ndjson"))?);
        let server = Server::start(&dir.join("redis"), appendfsync == Appendfsync::Always).await?;
        let proxied = Arc::new(Faults::default());
        let port = proxy::start(server.port, Arc::clone(&proxied)).await?;
        let url = format!("redis://127.0.0.1:{port}");
        // The programs are copied, so that a build during the run does not change them, and the
        // directory of the run has them.
        let program = dir.join("seriatim");
        copy_program(&program)?;
        let harness = dir.join("torture");
        std::fs::copy(std::env::current_exe()?, &harness).context("cannot copy the harness")?;
        depart(&server).await?;
        let marks = Marks::begin(&mut server.connect(Duration::from_secs(10)).await?).await?;
        let http = HttpReceiver::start(Arc::clone(&history)).await?;
        let own = Own {
            harness,
            receiver_port: http.port,
        };
        let workers = Workers::start(worker_count, dir, &url, &program, Some(own), &[])?;
        let producers = Arc::new(Producers::new(url, Arc::clone(&history), seed));
        let event_log = Arc::new(tokio::sync::Mutex::new(EventLog::default()));
        let lost_keys = LostKeys::new(dir, &program, format!("redis://127.0.0.1:{}", server.port))?;
        let scene = Arc::new(Scene {
            history: Arc::clone(&history),
            server,
            proxied,
            workers: Arc::clone(&workers),
            rules: Rules::default(),
            done: Default::default(),
            missed: Default::default(),
            logs_cut: AtomicU64::new(0),
            released: AtomicU64::new(0),
            event_log: Arc::clone(&event_log),
            marks: tokio::sync::Mutex::new(marks),
            lost_keys,
            http,
        });
        let emitting = tokio::spawn(Arc::clone(&producers).run());
        let watching = tokio::spawn(async move { workers.watch().await });
        let mut beside = JoinSet::new();
        beside.spawn(note_lengths(Arc::clone(&scene)));
        beside.spawn(shorten_log(Arc::clone(&scene)));
        beside.spawn(release(Arc::clone(&scene)));
        beside.spawn(lift_forgotten(Arc::clone(&scene)));
        beside.spawn(read_log(Arc::clone(&scene)));
        beside.spawn(look_at_marks(Arc::clone(&scene)));
        let receiver = Arc::new(Mutex::new(Receiver::default()));
        beside.spawn(receive(Arc::clone(&receiver), Arc::clone(&scene)));
        Ok(Self {
            dir: dir.to_owned(),
            lossy: appendfsync != Appendfsync::Always,
            scene,
            producers,
            emitting,
            beside,
            watching,
            receiver,
            worker_count,
        })
    }

    /// Runs all faults, each at its time. Waits until all are over.
    pub(crate) async fn play(&mut self, plan: &[(Duration, Fault)]) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut under_way = JoinSet::new();
        for (at, fault) in plan.iter().copied() {
            let due = sleep_until(began + at);
            tokio::pin!(due);
            loop {
                tokio::select! {
                    () = &mut due => break,
                    failed = self.beside.join_next() => bail!("the harness itself failed: {failed:?}"),
                    Some(done) = under_way.join_next() => done??,
                }
            }
            let scene = Arc::clone(&self.scene);
            under_way.spawn(async move { scene.act(fault).await });
        }
        while let Some(done) = under_way.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Lifts all faults and stops the producers. Then lifts all rules, removes all shares, and waits
    /// until no event is queued or scheduled, no object is owned, held or paused, and no rule and no
    /// share is left.
    pub(crate) async fn drain(&mut self) -> anyhow::Result<()> {
        self.scene.proxied.lift();
        self.scene.server.command(&["CLIENT", "UNPAUSE"]).await?;
        self.scene
            .server
            .command(&["CONFIG", "SET", "maxmemory", "0"])
            .await?;
        self.producers.stop.store(true, Ordering::Relaxed);
        let ended = tokio::time::timeout(Duration::from_secs(20), &mut self.emitting).await;
        ended.context("a producer hangs")???;
        self.scene.lost_keys.finish().await?;
        let deadline = Instant::now() + DRAIN;
        let conn = self.scene.server.connect(Duration::from_secs(10)).await?;
        loop {
            let seen = Control::new(conn.clone()).check_up_to(1).await?.looked_at;
            let rules = self.scene.rules.lift_all(&conn).await?;
            let shares = shares::remove_all(&conn).await?;
            if seen.objects_with_events
                + seen.objects_owned
                + seen.objects_held
                + seen.schedules
                + rules
                + shares
                == 0
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "after {DRAIN:?} {} objects have events, {} are owned, {} are held or paused, {} schedules, {rules} rules and {shares} shares are there",
                    seen.objects_with_events,
                    seen.objects_owned,
                    seen.objects_held,
                    seen.schedules
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Stops the workers and judges the run. Returns whether no check found a fault.
    pub(crate) async fn end(&mut self) -> anyhow::Result<bool> {
        self.watching.abort();
        let _ = (&mut self.watching).await;
        let stopped = self.scene.workers.stop_all().await?;
        self.beside.shutdown().await;
        receive_once(&self.receiver, &self.scene)?;
        let mut conn = self.scene.server.connect(Duration::from_secs(10)).await?;
        self.scene.history.dead_letters(&conn).await?;
        self.scene.history.flush()?;
        let url = format!("redis://127.0.0.1:{}", self.scene.server.port);
        let program = self.dir.join("seriatim");
        let check = Command::new(&program)
            .args(["check", "--redis", &url])
            .status()
            .await?;
        let mut verify = Command::new(&program);
        let (mut history, excused) = (
            self.dir.join("history.ndjson"),
            self.scene.lost_keys.excused(),
        );
        if !excused.is_empty() {
            let judged = self.dir.join("judged.ndjson");
            excused.free(&history, &judged)?;
            history = judged;
        }
        verify
            .args(["verify", "--history", "--never-forgotten"])
            .args(self.lossy.then_some("--lossy"))
            .arg(history);
        let verify = verify.status().await?;
        let mut event_log = self.scene.event_log.lock().await;
        event_log.read(&mut conn, None).await?;
        let logged = event_log.judge(&self.dir.join("history.ndjson"), self.lossy, &excused)?;
        let mut marks = self.scene.marks.lock().await;
        marks.look(&mut conn).await?;
        let marked = marks.judge();
        let attached = self.scene.workers.have_attached();
        let requested = self.scene.http.judge();
        let judged = check.success() && verify.success();
        Ok(stopped && attached && requested && judged && logged && marked && self.panics()? == 0)
    }

    fn panics(&self) -> anyhow::Result<usize> {
        let mut panics = 0;
        for worker in 0..self.worker_count {
            let path = Workers::log(&self.dir, worker);
            let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            let lines = log.lines().filter(|line| line.contains("panicked"));
            panics += lines
                .inspect(|line| println!("PANIC in {}: {line}", path.display()))
                .count();
        }
        Ok(panics)
    }

    /// Prints for each kind of fault how many took place, and other counts of the run.
    pub(crate) fn print(&self) {
        let scene = &self.scene;
        println!("faults:");
        for (kind, name) in KINDS.into_iter().enumerate() {
            let [done, missed] =
                [&scene.done, &scene.missed].map(|counts| counts[kind].load(Ordering::Relaxed));
            let missed = if missed > 0 {
                format!("  ({missed} more found nothing to act on)")
            } else {
                String::new()
            };
            println!("  {name:<32} {done:>6}{missed}");
        }
        let [requests, replies] =
            [0, 1].map(|way: usize| scene.proxied.cut[way].load(Ordering::Relaxed));
        let half_open = scene.proxied.half_opened.load(Ordering::Relaxed);
        println!(
            "  of which connections: {requests} cut in a request, {replies} in a reply, {half_open} half-open"
        );
        println!(
            "  of which logs cut at a Redis kill: {}",
            scene.logs_cut.load(Ordering::Relaxed)
        );
        println!(
            "  objects released after 5 crashes: {}",
            scene.released.load(Ordering::Relaxed)
        );
        println!(
            "  rules that were still there when nobody wanted them, and lifted again: {}",
            scene.rules.lifted_again.load(Ordering::Relaxed)
        );
        scene.lost_keys.print();
        for (how, count) in scene.workers.ended() {
            println!("  workers that ended by themselves, {how}: {count}");
        }
    }
}

impl Scene {
    async fn act(&self, fault: Fault) -> anyhow::Result<()> {
        let done = match fault {
            Fault::WorkerKilled { worker, down } => self.workers.kill(worker, down).await?,
            Fault::WorkerPaused { worker, time } => self.workers.pause(worker, time).await?,
            Fault::WorkerDisplaced { worker, paused } => {
                self.workers.displace(worker, paused).await?
            }
            Fault::WorkerStopped { worker } => self.workers.restart(worker).await?,
            Fault::RollingRestart => self.workers.rolling_restart().await?,
            Fault::RedisKilled { down, cut, always } => {
                let was_cut = self.server.kill(down, cut, always, &self.history).await?;
                self.logs_cut
                    .fetch_add(u64::from(was_cut), Ordering::Relaxed);
                true
            }
            Fault::PowerLost { down, cut, always } => {
                let killed = self.workers.kill_all(down);
                let (killed, was_cut) =
                    tokio::join!(killed, self.server.kill(down, cut, always, &self.history));
                self.logs_cut
                    .fetch_add(u64::from(was_cut?), Ordering::Relaxed);
                killed?
            }
            Fault::RedisAsleep { time } => {
                self.command(&["DEBUG", "SLEEP", &time.as_secs_f64().to_string()])
                    .await
            }
            Fault::ClientsPaused { time, all } => {
                let mode = if all { "ALL" } else { "WRITE" };
                // A pause ends at a time of Redis' clock. A pause that begins while this clock is an
                // hour ahead would last for an hour.
                let _right = self.server.no_kill().await;
                self.command(&["CLIENT", "PAUSE", &time.as_millis().to_string(), mode])
                    .await
            }
            Fault::ScriptsFlushed => self.command(&["SCRIPT", "FLUSH"]).await,
            Fault::OutOfMemory { time } => self.fill_memory(time).await,
            Fault::RequestCut { bytes } => {
                self.proxied.cut(Way::Request, bytes);
                true
            }
            Fault::ReplyCut { bytes } => {
                self.proxied.cut(Way::Reply, bytes);
                true
            }
            Fault::Latency { delay, time } => {
                self.proxied.latency(delay);
                sleep(time).await;
                self.proxied.latency(Duration::ZERO);
                true
            }
            Fault::Ruled { rule, time, ends } => {
                self.rules.hold(&self.server, rule, time, ends).await
            }
            Fault::Shared { share, time } => shares::hold(&self.server, share, time).await,
            Fault::HandlerBlocked { time } => self.workers.block(time).await?,
            Fault::LinkSlow { time } => {
                self.proxied.rate(SLOW_LINK);
                sleep(time).await;
                self.proxied.rate(0);
                true
            }
            Fault::RedisEmptied { down } => {
                let mut event_log = self.event_log.lock().await;
                self.server
                    .empty(down, &self.history, &mut event_log, &self.proxied)
                    .await?
            }
            Fault::KeyLost { pick, wait } => self.lost_keys.lose(&self.server, pick, wait).await?,
            Fault::ClientsFull { time } => self.server.fill(time).await,
            Fault::WorkerUnregistered { worker } => {
                self.workers.unregister(&self.server, worker).await?
            }
            Fault::ReceiverBad { bad, time } => self.http.hold(bad, time).await,
            Fault::ClockStepped { back, time } => {
                self.server.step_clock(back, time, &self.history).await
            }
            Fault::HalfOpen => {
                self.proxied.half_open();
                true
            }
        };
        let counts = if done { &self.done } else { &self.missed };
        counts[fault.kind()].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Lets Redis reach its `maxmemory` for `time`. Returns whether Redis did so.
    async fn fill_memory(&self, time: Duration) -> bool {
        let done = self.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        sleep(time).await;
        // If this fails, Redis was killed, and its restart also lifts the limit.
        self.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        done
    }

    /// Runs a command. Returns whether Redis has run the command.
    async fn command(&self, words: &[&str]) -> bool {
        self.server.command(words).await.is_ok()
    }
}

async fn note_lengths(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        scene.server.note_length();
        sleep(Duration::from_millis(25)).await;
    }
}

async fn shorten_log(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        scene.server.shorten_log().await;
        sleep(Duration::from_secs(5)).await;
    }
}

/// Acts as an operator: releases the objects that wait for an operator after 5 crashes.
async fn release(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        sleep(Duration::from_millis(500)).await;
        let Ok(mut conn) = scene.server.connect(Duration::from_secs(2)).await else {
            continue;
        };
        let held = redis::cmd("ZRANGEBYSCORE")
            .arg("objects.held")
            .arg("+inf")
            .arg("+inf")
            .to_owned();
        let held: Vec<String> = held.query_async(&mut conn).await.unwrap_or_default();
        for object in held {
            let mut release = redis::cmd("ZADD");
            release.arg("objects.held").arg("XX").arg(0).arg(&object);
            if release.exec_async(&mut conn).await.is_ok() {
                scene.released.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Acts as an operator: lifts each rule that no fault wants any more. Such a rule is still set
/// because Redis was down when it should be lifted, or has lost that write.
async fn lift_forgotten(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        sleep(Duration::from_millis(500)).await;
        if let Ok(conn) = scene.server.connect(Duration::from_secs(2)).await {
            let _ = scene.rules.lift_forgotten(&conn).await;
        }
    }
}

/// Reads the rows of the event log that Redis can no longer lose, and deletes them. If the rows
/// stayed, Redis would take longer and longer to start.
async fn read_log(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        sleep(Duration::from_secs(1)).await;
        // The lock is taken before the connection is made, because a restart of Redis without data
        // takes the same lock. So such a restart cannot come between the connection and the read.
        let mut event_log = scene.event_log.lock().await;
        if let Ok(mut conn) = scene.server.connect(Duration::from_secs(2)).await {
            // This fails if Redis was just killed. The next round tries again.
            let _ = event_log.read(&mut conn, Some(SETTLED)).await;
        }
    }
}

/// Looks at the marks again and again.
async fn look_at_marks(scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        sleep(Duration::from_millis(200)).await;
        if let Ok(mut conn) = scene.server.connect(Duration::from_secs(2)).await {
            // This fails if Redis was just killed. The next round tries again.
            let _ = scene.marks.lock().await.look(&mut conn).await;
        }
    }
}

/// Registers departed names, as they are in a Redis after many worker processes with random names.
async fn depart(server: &Server) -> anyhow::Result<()> {
    let mut conn = server.connect(Duration::from_secs(10)).await?;
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut conn).await?;
    let mut register = redis::cmd("HSET");
    register.arg(Keys::new().event_workers());
    for name in 0..DEPARTED {
        register.arg(format!("departed-{name}")).arg(format!(
            "256 00000000-0000-4000-8000-{name:012} {}",
            (seconds - name) * 1000
        ));
    }
    Ok(register.exec_async(&mut conn).await?)
}

async fn receive(receiver: Arc<Mutex<Receiver>>, scene: Arc<Scene>) -> anyhow::Result<()> {
    loop {
        receive_once(&receiver, &scene)?;
        sleep(Duration::from_millis(20)).await;
    }
}

fn receive_once(receiver: &Mutex<Receiver>, scene: &Scene) -> anyhow::Result<()> {
    let mut receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
    receiver.receive(scene.workers.outputs(), &scene.history)
}
