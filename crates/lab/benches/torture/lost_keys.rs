//! Loses keys of the protocol, as an operator who deletes them by hand, and repairs some seconds
//! later.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use seriatim::keys::{Keys, OBJECT_KINDS, SHARED_KINDS, WORKER_KINDS};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::excused::Excused;
use crate::receiver::name_in;
use crate::server::Server;

/// The kinds that are never lost:
///
/// - `last_event_id`: the next event has `prev` 0. The checker must take this for a fork, because
///   the run forgets no object.
/// - `data`: no worker reads the key.
/// - `event_workers`: a worker that is killed before it has registered again may come back with
///   fewer slots. Then only an operator can know that its other slots are dead. The fault
///   `WorkerUnregistered` deletes one registration, and lets nobody kill the worker meanwhile.
/// - `events_dead`, `event_log`: the harness reads dead letters and rows from these streams. They are
///   the evidence for the verdict, and nothing else has their contents.
/// - `event_worker`: without the owner of an object in hand, another slot may take later events before
///   the next renewal (docs/design.md, lost keys). So an order that breaks then proves nothing.
const NEVER_LOST: [&str; 6] = [
    "last_event_id",
    "data",
    "event_workers",
    "events_dead",
    "event_log",
    "event_worker",
];

/// Deletes `KEYS[1]`. Returns whether it existed, and the events that `KEYS[2]` had. The members of a
/// sorted set are those of `events.scheduled`.
const LOSE: &str = "
local key, source = KEYS[1], KEYS[2]
local kind, found = redis.call('TYPE', source).ok, {}
if kind == 'list' then
  found = redis.call('LRANGE', source, '0', '-1')
elseif kind == 'hash' then
  found = redis.call('HVALS', source)
elseif kind == 'zset' then
  for _, member in ipairs(redis.call('ZRANGE', source, '0', '-1')) do
    local object, field = string.match(member, '^(.-)\\n(.*)$')
    local event = object and redis.call('HGET', object .. ':events.scheduled', field)
    if event then
      found[#found + 1] = event
    end
  end
end
return { redis.call('DEL', key), found }
";

/// Time that Redis may take for the reply. It is longer than all pauses of a run.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for the repair of one loss, and for the last repair.
const REPAIR_PATIENCE: Duration = Duration::from_secs(60);
/// A time in the past, for schedules that have lost their due time.
const DUE: &str = "2026-01-01T00:00:00Z";

/// The events that are lost or changed with a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    None,
    /// The events in the key are lost.
    Gone,
    /// The events in another key lose their ids, or the events of the key their due times.
    Anew,
}

/// A key of a known kind.
#[derive(Debug, Clone)]
struct Lost {
    kind: &'static str,
    key: String,
    harm: Harm,
    /// The key that has the harmed events.
    source: String,
}

impl Lost {
    fn of(key: &str) -> Option<Self> {
        let find = |kinds: &'static [(&'static str, &'static str)], end: &str| {
            kinds
                .iter()
                .find(|(_, suffix)| *suffix == end)
                .map(|(kind, _)| *kind)
        };
        let kind = match key.rsplit_once(':') {
            None => find(SHARED_KINDS, key)?,
            Some((start, _)) if key.starts_with("event.worker:") => {
                find(WORKER_KINDS, &key[start.len()..])?
            }
            Some(_) if key.starts_with("event.group:") => "group_waiting",
            Some((start, _)) => find(OBJECT_KINDS, &key[start.len()..])?,
        };
        if NEVER_LOST.contains(&kind) {
            return None;
        }
        let (harm, source) = match kind {
            "events" | "events_held" | "events_scheduled_of" | "worker_event" | "worker_lost" => {
                (Harm::Gone, key)
            }
            // Without `.id` the key of a tag is the key of its batch.
            "events_held_id" | "worker_event_id" => (Harm::Anew, key.strip_suffix(".id")?),
            "events_scheduled" => (Harm::Anew, key),
            _ => (Harm::None, ""),
        };
        Some(Self {
            kind,
            key: key.to_owned(),
            harm,
            source: source.to_owned(),
        })
    }
}

/// The steps of one repair, and the subjects that need a decision.
#[derive(Debug, Deserialize)]
struct Report {
    steps_total: u64,
    left_total: u64,
}

/// The counts of a run.
#[derive(Debug, Default)]
struct Counts {
    by_kind: BTreeMap<&'static str, u64>,
    steps: u64,
    /// Losses before which a key was broken already, although the loss before it was repaired.
    broken_before: u64,
}

pub(crate) struct LostKeys {
    program: PathBuf,
    url: String,
    log: Mutex<File>,
    excused: Mutex<Excused>,
    counts: Mutex<Counts>,
    /// Lock that lets each loss be repaired before the next one. Some pairs of keys tell of each
    /// other, and nothing else tells of them.
    one: tokio::sync::Mutex<()>,
}

impl LostKeys {
    /// `url` bypasses the proxy. The file `repair.log` in `dir` gets each loss and each repair.
    pub(crate) fn new(dir: &Path, program: &Path, url: String) -> anyhow::Result<Self> {
        let log = Mutex::new(File::create(dir.join("repair.log"))?);
        let (excused, counts, one) = Default::default();
        Ok(Self {
            program: program.to_owned(),
            url,
            log,
            excused,
            counts,
            one,
        })
    }

    pub(crate) fn excused(&self) -> Excused {
        lock(&self.excused).clone()
    }

    /// Deletes one key of a kind that exists. After `wait`, repairs as an operator does: a dry run,
    /// then the repair, until nothing needs a decision. Returns whether a key was deleted.
    pub(crate) async fn lose(
        &self,
        server: &Server,
        pick: u64,
        wait: Duration,
    ) -> anyhow::Result<bool> {
        let Ok(_one) = self.one.try_lock() else {
            return Ok(false);
        };
        self.look_before().await;
        if !self.delete(server, pick).await? {
            return Ok(false);
        }
        sleep(wait).await;
        if self.repair_once().await {
            return Ok(true);
        }
        // Redis is killed so often that a repair may never come to its end. So no kill comes between
        // from now on. A repair still fails if Redis is paused or takes no more clients.
        let _quiet = server.no_kill().await;
        let until = Instant::now() + REPAIR_PATIENCE;
        while !self.repair_once().await && Instant::now() < until {
            sleep(Duration::from_secs(1)).await;
        }
        Ok(true)
    }

    /// Makes a dry run, and then a repair. Returns whether both came to their end, and no subject
    /// needs a decision.
    async fn repair_once(&self) -> bool {
        self.repair(false).await.is_some()
            && self
                .repair(true)
                .await
                .is_some_and(|report| report.left_total == 0)
    }

    /// Counts a key that is broken before a loss. A living worker may still put it right, so this
    /// looks three times.
    async fn look_before(&self) {
        for _ in 0..3 {
            match self.repair(false).await {
                Some(report) if report.steps_total + report.left_total > 0 => {
                    sleep(Duration::from_secs(1)).await
                }
                _ => return,
            }
        }
        lock(&self.counts).broken_before += 1;
    }

    async fn delete(&self, server: &Server, pick: u64) -> anyhow::Result<bool> {
        // No kill comes between the deletion and its reply, so the lost events are known.
        let _quiet = server.no_kill().await;
        let Ok(mut conn) = server.connect(PATIENCE).await else {
            return Ok(false);
        };
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut conn)
            .await
            .context("KEYS")?;
        let mut by_kind = BTreeMap::<&str, Vec<Lost>>::new();
        let mut there: Vec<_> = keys.iter().filter_map(|key| Lost::of(key)).collect();
        there.sort_by(|a, b| a.key.cmp(&b.key));
        there
            .into_iter()
            .for_each(|lost| by_kind.entry(lost.kind).or_default().push(lost));
        let kinds: Vec<_> = by_kind.into_values().collect();
        let Some(of_kind) = kinds.get(pick as usize % kinds.len().max(1)) else {
            return Ok(false);
        };
        let lost = of_kind[(pick >> 32) as usize % of_kind.len()].clone();
        // As with an emptied Redis: new ids are above all earlier ones only if these are not ahead of
        // the clock.
        if lost.key == Keys::new().next_event_id() && !server.is_in_time().await.unwrap_or(false) {
            return Ok(false);
        }
        let mut command = redis::cmd("EVAL");
        command.arg(LOSE).arg(2).arg(&lost.key).arg(&lost.source);
        let (deleted, texts): (bool, Vec<String>) = command
            .query_async(&mut conn)
            .await
            .with_context(|| format!("the loss of {}", lost.key))?;
        let names = names(&lost, &texts)?;
        self.note(&format!(
            "lost {:?}, deleted {deleted}, events {names:?}",
            lost
        ));
        if deleted {
            *lock(&self.counts).by_kind.entry(lost.kind).or_default() += 1;
            let mut excused = lock(&self.excused);
            match lost.harm {
                Harm::None => {}
                Harm::Gone => excused.gone.extend(names),
                Harm::Anew => excused.anew.extend(names),
            }
        }
        Ok(deleted)
    }

    /// Runs `seriatim repair`. Returns `None` if it failed.
    async fn repair(&self, doing: bool) -> Option<Report> {
        let mut command = Command::new(&self.program);
        command.args([
            "repair",
            "--redis",
            &self.url,
            "--json",
            "--schedules-due",
            DUE,
            "--reason",
            "torture",
        ]);
        command
            .args(doing.then_some("--yes"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output())
            .await
            .ok()?
            .ok()?;
        let (text, error) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        self.note(&format!(
            "repair, doing {doing}: {} {text}{error}",
            output.status
        ));
        let report: Report = serde_json::from_str(&text).ok()?;
        if doing {
            lock(&self.counts).steps += report.steps_total;
        }
        Some(report)
    }

    /// Repairs until nothing is left to do. Redis may have lost the writes of an earlier repair.
    pub(crate) async fn finish(&self) -> anyhow::Result<()> {
        if lock(&self.counts).by_kind.is_empty() {
            return Ok(());
        }
        let until = Instant::now() + REPAIR_PATIENCE;
        while Instant::now() < until {
            if self
                .repair(false)
                .await
                .is_some_and(|report| report.steps_total + report.left_total == 0)
            {
                return Ok(());
            }
            self.repair(true).await;
            sleep(Duration::from_secs(1)).await;
        }
        bail!("the repair finds no end; see repair.log")
    }

    /// Prints the counts of the run.
    pub(crate) fn print(&self) {
        let (counts, excused) = (lock(&self.counts), lock(&self.excused));
        let Counts {
            by_kind,
            steps,
            broken_before,
        } = &*counts;
        println!("  keys lost: {by_kind:?}");
        println!(
            "    {} events lost with their keys, {} with their ids or due times",
            excused.gone.len(),
            excused.anew.len()
        );
        println!(
            "    {steps} steps of repairs; {broken_before} times a key was broken before a loss"
        );
    }

    fn note(&self, text: &str) {
        // A log that cannot be written does not change the verdict.
        let _ = writeln!(lock(&self.log), "{:?} {text}", std::time::SystemTime::now());
    }
}

/// Returns the names of the events with these texts.
fn names(lost: &Lost, texts: &[String]) -> anyhow::Result<Vec<String>> {
    // The first entry of such a list is a tag.
    let skipped = usize::from(lost.kind == "worker_lost");
    let named = texts
        .iter()
        .skip(skipped)
        .map(|text| match text.strip_prefix("\0queued ") {
            // A reference of a schedule with a key. Its event has the name of its emit in the key.
            Some(reference) => reference
                .split_once(" key of ")
                .map(|(_, emit)| format!("{emit}.0"))
                .context("a reference"),
            None => name_in(text),
        });
    named
        .collect::<Result<_, _>>()
        .with_context(|| format!("the events of {lost:?}"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
