//! The scripted run with three processes. `gone` dies with batches in flight. `first`, the process
//! with the faults, takes over these batches. It delivers whole batches and parts of batches, an
//! event that fails once, and an event that is rejected. It also waits for markers. It is stopped
//! while one delivery hangs. `last`, without faults, takes the rest. At the end every event must be
//! delivered, except the rejected one, in order and with one chain per object.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use seriatim::keys::Keys;
use seriatim::verify::Judge;
use seriatim::wire::values::CronValue;

use super::child::{FAILED, FINISHED};
use super::fault::Fault;
use crate::support::console::Console;
use crate::support::process::sent_to;
use crate::support::{Redis, control, jobs};

/// The longest wait for any state.
const PATIENCE: Duration = Duration::from_secs(30);
const SIGABRT: i32 = 6;
/// The objects with the events that are emitted before the start. The last word of an event may be
/// an instruction for the sink.
const EVENTS: [(&str, &[&str]); 5] = [
    ("plain", &["1", "2", "3", "4", "5", "6", "7"]),
    ("again", &["1", "2 retry", "3", "4"]),
    ("parts", &["1", "2 part", "3", "4"]),
    ("wrong", &["1", "2 reject", "3"]),
    ("stuck", &["1", "2 stuck"]),
];

static SCENES: AtomicU32 = AtomicU32::new(0);

/// Counts of all successful runs.
#[derive(Debug, Default)]
pub struct Figures {
    pub runs: u64,
    pub faults: u64,
    pub aborts: u64,
    pub errors: u64,
    pub events: u64,
    pub duplicates: u64,
}

impl Figures {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.faults += other.faults;
        self.aborts += other.aborts;
        self.errors += other.errors;
        self.events += other.events;
        self.duplicates += other.duplicates;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            faults,
            aborts,
            errors,
            events,
            duplicates,
            ..
        } = self;
        write!(
            f,
            "{faults} faults, {aborts} processes aborted, {errors} ended with their error, "
        )?;
        write!(
            f,
            "{events} events checked, {duplicates} duplicates, 0 lost, 0 reordered, 0 forked"
        )
    }
}

/// One process of the scene.
struct Player {
    child: Child,
    log: PathBuf,
}

impl Player {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it can be asked")
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Scene<'a> {
    redis: &'a Redis,
    console: Console,
    namespace: String,
    dir: tempfile::TempDir,
    /// Faults that have not happened yet.
    faults: Vec<Fault>,
    single: bool,
    emitted: BTreeMap<&'static str, Vec<String>>,
    files: Vec<PathBuf>,
    figures: Figures,
}

impl<'a> Scene<'a> {
    pub async fn new(redis: &'a Redis, faults: Vec<Fault>) -> Self {
        let namespace = format!("scene{}", SCENES.fetch_add(1, Ordering::Relaxed));
        let mut console = redis.console().await;
        console.keys = Keys::with_namespace(&namespace).expect("a namespace");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (single, files) = (faults.len() == 1, Vec::new());
        Self {
            redis,
            console,
            namespace,
            dir,
            faults,
            single,
            emitted: BTreeMap::new(),
            files,
            figures: Figures::default(),
        }
    }

    /// Makes the whole run. Returns the counts, or a description of the failure.
    pub async fn play(mut self) -> Result<Figures, String> {
        for (object, events) in EVENTS {
            for event in events {
                self.emit(object, event).await;
            }
        }
        let mut gone = self.start("gone", "deliver.after=abort");
        let status = self.ended(&mut gone).await?;
        if status.signal() != Some(SIGABRT) {
            return Err(format!(
                "`gone` should be aborted: {status}\n{}",
                gone.log()
            ));
        }
        // Makes Redis forget every script.
        self.console.run::<()>(&["SCRIPT", "FLUSH"]).await;
        for event in ["1", "2", "3"] {
            self.schedule("due", event).await;
        }
        self.set_cron("ticks").await;
        let mut first = self.start_first();
        self.until_quiet(&mut first).await?;
        self.emit("plain", "8").await;
        self.emit("later", "1").await;
        self.until_quiet(&mut first).await?;
        self.until_over(&mut first).await?;
        self.stop(&mut first, "first").await?;
        drop(first);

        let mut last = self.start("last", "");
        let wait = self.console.clone();
        self.wait_for("everything is delivered", &mut last, async || {
            Self::rest(&wait).await.is_empty()
        })
        .await?;
        self.stop(&mut last, "last").await?;
        self.judge().await
    }

    async fn emit(&mut self, object: &'static str, event: &str) {
        let event = format!("{:?}", format!("{object} {event}"));
        self.console.emit(object, &event).await;
        self.emitted.entry(object).or_default().push(event);
    }

    /// Schedules an event. Its due time is its number, long ago.
    async fn schedule(&mut self, object: &'static str, number: &str) {
        let event = format!("{:?}", format!("{object} {number}"));
        let (hash, set) = (
            self.console.keys.events_scheduled_of(object),
            self.console.keys.events_scheduled(),
        );
        self.console
            .run::<()>(&["HSET", &hash, number, &event])
            .await;
        self.console
            .run::<()>(&["ZADD", &set, number, &format!("{object}\n{number}")])
            .await;
        self.emitted.entry(object).or_default().push(event);
    }

    /// Sets a cron job with one tick, an hour ago.
    async fn set_cron(&mut self, object: &'static str) {
        let event = format!("{:?}", format!("{object} 1"));
        let (seconds, _): (u64, u64) = self.console.run(&["TIME"]).await;
        let since_ms = (seconds - 5400) * 1000;
        let value = jobs::text(&CronValue {
            since_ms,
            ..jobs::job("1 0", object, &event)
        });
        let keys = self.console.keys.clone();
        self.console
            .run::<()>(&["HSET", &keys.events_cron(), "job", &value])
            .await;
        self.console
            .run::<()>(&[
                "HSET",
                &keys.events_cron_last(),
                "job",
                &format!("{since_ms} 0"),
            ])
            .await;
        self.console
            .run::<()>(&[
                "ZADD",
                &keys.events_cron_next(),
                &(since_ms + 3_600_000).to_string(),
                "job",
            ])
            .await;
        self.emitted.entry(object).or_default().push(event);
    }

    fn start_first(&mut self) -> Player {
        let settings: Vec<_> = self.faults.iter().map(ToString::to_string).collect();
        self.start("first", &settings.join(","))
    }

    fn start(&mut self, name: &str, faults: &str) -> Player {
        let stem = format!("{}-{name}", self.files.len());
        let (file, log) = (
            self.dir.path().join(format!("{stem}.ndjson")),
            self.dir.path().join(format!("{stem}.log")),
        );
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "failpoints::worker_process",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(
                "SERIATIM_CHILD",
                format!(
                    "{}|{}|{name}|{}",
                    self.redis.url(),
                    self.namespace,
                    file.display()
                ),
            )
            .env("FAILPOINTS", faults)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("the program starts");
        self.files.push(file);
        Player { child, log }
    }

    /// Waits for a state. If a fault has ended the process `first`, restarts it without that fault.
    async fn wait_for(
        &mut self,
        what: &str,
        player: &mut Player,
        mut ready: impl AsyncFnMut() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !ready().await {
            self.see_to(player)?;
            if Instant::now() > deadline {
                let rest = Self::rest(&self.console).await;
                return Err(format!(
                    "in vain for {PATIENCE:?}: {what}\nleft: {rest:?}\n{}",
                    player.log()
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn see_to(&mut self, player: &mut Player) -> Result<(), String> {
        if let Some(status) = player.has_ended() {
            self.excuse(status, player)?;
            *player = self.start_first();
        }
        Ok(())
    }

    /// Checks that a process had a reason to end early: a fault that kills, or a fault before the
    /// process had its name.
    fn excuse(&mut self, status: ExitStatus, player: &Player) -> Result<(), String> {
        let log = player.log();
        let happened = self.happened(&log);
        let killed = status.signal() == Some(SIGABRT)
            && happened.iter().any(|fault| fault.action == "abort");
        let refused = status.code() == Some(FAILED)
            && !happened.is_empty()
            && !log.contains("recover: attached");
        // The URL was right and Redis was running. So only these errors may end a start.
        let typed = ["ended: Connect {", "ended: Script(Redis("]
            .iter()
            .any(|error| log.contains(error));
        if killed {
            self.figures.aborts += 1;
        } else if refused && typed {
            self.figures.errors += 1;
        } else {
            return Err(format!("it ended, {status}\n{log}"));
        }
        Ok(())
    }

    /// Returns the faults that happened in this process. They do not happen again after a restart.
    fn happened(&mut self, log: &str) -> Vec<Fault> {
        let (happened, left): (Vec<_>, Vec<_>) =
            self.faults.drain(..).partition(|fault| fault.is_in(log));
        self.faults = left;
        self.figures.faults += happened.len() as u64;
        happened
    }

    /// Waits until `first` has delivered every event that it can deliver.
    async fn until_quiet(&mut self, first: &mut Player) -> Result<(), String> {
        let wanted: HashSet<_> = self
            .emitted
            .iter()
            .flat_map(|(object, events)| events.iter().map(|event| (*object, event.clone())))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sent: HashSet<_> = self
                .files
                .iter()
                .flat_map(|file| sent_to(file))
                .map(|sent| (sent.object, sent.event))
                .collect();
            let missing: Vec<_> = wanted
                .iter()
                .filter(|(object, event)| {
                    !event.ends_with(" stuck\"")
                        && !event.ends_with(" reject\"")
                        && !sent.contains(&((*object).to_owned(), event.clone()))
                })
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "in vain for {PATIENCE:?}: not sent {missing:?}\n{}",
                    first.log()
                ));
            }
            self.see_to(first)?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until every fault has happened, except faults of a detach. If the run has two faults,
    /// one of them may never happen.
    async fn until_over(&mut self, first: &mut Player) -> Result<(), String> {
        let patience = if self.single {
            PATIENCE
        } else {
            Duration::from_millis(300)
        };
        let deadline = Instant::now() + patience;
        loop {
            let log = first.log();
            let open: Vec<_> = self
                .faults
                .iter()
                .filter(|fault| !fault.point.starts_with("detach") && !fault.is_in(&log))
                .collect();
            if open.is_empty() || !self.single && Instant::now() > deadline {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the run never came to {open:?}\n{log}"));
            }
            self.see_to(first)?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends SIGTERM, and checks how the process ends.
    async fn stop(&mut self, player: &mut Player, name: &str) -> Result<(), String> {
        if player.has_ended().is_none() {
            let _ = kill_process(Pid::from_child(&player.child), Signal::TERM);
        }
        let status = self.ended(player).await?;
        let log = player.log();
        if status.code() == Some(FINISHED) {
            self.happened(&log);
        } else {
            self.excuse(status, player)?;
        }
        match self.faults.first() {
            Some(open) if self.single && name == "first" => {
                Err(format!("the run never came to {open}\n{log}"))
            }
            _ => Ok(()),
        }
    }

    async fn ended(&self, player: &mut Player) -> Result<ExitStatus, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = player.has_ended() {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("it does not end\n{}", player.log()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the keys that must not exist when all work is done.
    async fn rest(console: &Console) -> Vec<String> {
        let mut rest = console.left().await;
        let lasting = [
            "next.event.id",
            "seriatim.meta",
            "events.dead",
            "events.scheduled.lateness",
        ];
        let lasts = |key: &String| {
            key.ends_with(":last.event.id")
                || key.ends_with(":lease")
                || key.starts_with("event.workers")
                || key.starts_with("events.cron")
                || lasting.contains(&key.as_str())
        };
        rest.retain(|key| !lasts(key));
        rest
    }

    /// Checks that no event is lost, reordered or forked, that the invariants hold, and that the
    /// only dead letter is the rejected event.
    async fn judge(mut self) -> Result<Figures, String> {
        let mut judge = Judge::new();
        judge.never_forgotten();
        let input = judge.file("input");
        for (line, (object, event)) in self
            .emitted
            .iter()
            .flat_map(|(object, events)| events.iter().map(move |event| (object, event)))
            .enumerate()
        {
            judge.expect(input, line as u64 + 1, object, event.as_bytes());
        }
        for path in &self.files {
            let file = judge.file(path.display().to_string());
            let bytes = std::fs::read(path).unwrap_or_default();
            for (line, text) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
                let ended = text.ends_with(b"\n");
                judge.output(
                    file,
                    line as u64 + 1,
                    text.strip_suffix(b"\n").unwrap_or(text),
                    ended,
                );
            }
        }
        let dead = self.console.dead().await;
        let file = judge.file("dead letters");
        let mut rejected = Vec::new();
        for (line, fields) in dead.iter().enumerate() {
            let field = |name: &str| {
                fields
                    .iter()
                    .find(|(field, _)| field == name)
                    .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            };
            let (id, object, event) = (field("id"), field("object"), field("event"));
            let (Some(id), Some(object), Some(event)) = (id, object, event) else {
                return Err(format!("a dead letter without its fields: {fields:?}"));
            };
            judge
                .dead(
                    file,
                    line as u64 + 1,
                    format!("{{\"id\":{id},\"object\":{object:?},\"event\":{event}}}").as_bytes(),
                )
                .map_err(|error| error.to_string())?;
            rejected.push(event);
        }
        if rejected != ["\"wrong 2 reject\""] {
            return Err(format!("dead letters: {rejected:?}"));
        }
        let verdict = judge.finish();
        let rest = Self::rest(&self.console).await;
        let checked = control(&self.redis.connect().await, &self.console.keys)
            .check()
            .await
            .map_err(|error| error.to_string())?;
        if !verdict.is_clean() || !checked.is_clean() || !rest.is_empty() {
            let logs: Vec<_> = self
                .files
                .iter()
                .map(|file| std::fs::read_to_string(file.with_extension("log")).unwrap_or_default())
                .collect();
            return Err(format!(
                "{verdict:#?}\n{:#?}\nleft: {rest:?}\n{}",
                checked.violations,
                logs.join("\n----\n")
            ));
        }
        self.figures.runs += 1;
        self.figures.events += verdict.events;
        self.figures.duplicates += verdict.duplicates;
        Ok(self.figures)
    }
}
