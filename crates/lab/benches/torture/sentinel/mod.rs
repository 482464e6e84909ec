//! Makes failovers under load. There are one master, two replicas and three Sentinels. Producers
//! and workers find the master through the Sentinels.
//!
//! If emits and workers wait for both replicas, nothing may be lost. If they wait for fewer
//! replicas, writes may be lost. But even then no id may be given twice, and no receiver may apply
//! an older event after a newer one.

mod group;
mod peers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use seriatim::control::Control;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::group::{FAILURES, Group};
use crate::history::History;
use crate::producers::Producers;
use crate::random::{Draw as _, Random};
use crate::receiver::Receiver;
use crate::stage::copy_program;
use crate::workers::Workers;

/// Maximum time from the end of a failover to the next received event. If it takes longer, the run
/// fails.
const FIRST_MAX: Duration = Duration::from_secs(3);
/// A failover may lose the writes of this time before it.
const MAY_LOSE: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(60);
/// The number of replicas.
const REPLICAS: u32 = 2;

/// The settings of a run.
pub(crate) struct Plan {
    pub(crate) failovers: usize,
    pub(crate) wait: u32,
    pub(crate) min_replicas: bool,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
}

/// Runs all failovers and judges the run. Returns whether it passed.
pub(crate) async fn run(plan: &Plan, dir: &Path) -> anyhow::Result<bool> {
    let mut random = Random::with_seed(plan.seed);
    let options: &[&str] = if plan.min_replicas {
        &[
            "--min-replicas-to-write",
            "1",
            "--min-replicas-max-lag",
            "2",
        ]
    } else {
        &[]
    };
    let mut group = Group::start(
        dir,
        options.iter().map(|option| (*option).to_owned()).collect(),
    )
    .await?;
    let history = Arc::new(History::create(&dir.join("history.ndjson"))?);
    let program = dir.join("seriatim");
    copy_program(&program)?;
    let wait = plan.wait.to_string();
    let workers = Workers::start(
        plan.workers,
        dir,
        &group.url(),
        &program,
        None,
        &["--wait", &wait, "--wait-timeout", "500ms"],
    )?;
    let producers =
        Producers::new(group.url(), Arc::clone(&history), plan.seed).waiting_for(plan.wait);
    let producers = Arc::new(producers);
    let emitting = tokio::spawn(Arc::clone(&producers).run());
    let watching = tokio::spawn({
        let workers = Arc::clone(&workers);
        async move { workers.watch().await }
    });
    let receiver = Arc::new(Mutex::new(Receiver::default()));
    let mut beside: JoinSet<anyhow::Result<()>> = JoinSet::new();
    beside.spawn({
        let (receiver, workers, history) = (
            Arc::clone(&receiver),
            Arc::clone(&workers),
            Arc::clone(&history),
        );
        async move {
            loop {
                receive(&receiver, &workers, &history)?;
                sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let (enough, enough_kills) = oneshot::channel();
    let killing = tokio::spawn(kill_workers(
        Arc::clone(&workers),
        Random::with_seed(plan.seed + 1),
        enough_kills,
    ));
    sleep(Duration::from_secs(1)).await;
    let (mut kinds, mut firsts) = (BTreeMap::new(), Vec::new());
    for number in 0..plan.failovers {
        let failure = FAILURES[number % FAILURES.len()];
        let began = history.now();
        group
            .fail_over(failure, random.ms(0, 3000))
            .await
            .with_context(|| format!("failover {number}, {failure:?}"))?;
        let (attached_at, seen) = (Instant::now(), count(&receiver));
        while count(&receiver) == seen {
            if let Some(failed) = beside.try_join_next() {
                bail!("the harness itself failed: {failed:?}");
            }
            if attached_at.elapsed() > 10 * FIRST_MAX {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        firsts.push(attached_at.elapsed());
        group.until_whole().await?;
        if plan.wait < REPLICAS {
            history.redis_lost(began, MAY_LOSE);
        }
        *kinds.entry(format!("{failure:?}")).or_insert(0) += 1;
        sleep(random.ms(0, 1500)).await;
    }
    producers.stop.store(true, Ordering::Relaxed);
    tokio::time::timeout(Duration::from_secs(60), emitting)
        .await
        .context("a producer hangs")???;
    // The kills end first, because every worker must be running when all workers are told to stop.
    let _ = enough.send(());
    killing.await??;
    let drained = drain(&group).await;
    watching.abort();
    let _ = watching.await;
    let stopped = workers.stop_all().await?;
    beside.shutdown().await;
    receive(&receiver, &workers, &history)?;
    history.dead_letters(&group.connect().await?).await?;
    history.flush()?;
    firsts.sort_unstable();
    println!("failovers: {kinds:?}");
    let slowest = firsts.last().copied().unwrap_or_default();
    println!(
        "from the end of a failover to the next event: median {:?}, slowest {slowest:?}",
        firsts[firsts.len() / 2]
    );
    for (how, count) in workers.ended() {
        println!("workers that ended by themselves, {how}: {count}");
    }
    let check = Command::new(&program)
        .args(["check", "--redis", &group.url()])
        .status()
        .await?;
    let mut verify = Command::new(&program);
    verify
        .args(["verify", "--history", "--never-forgotten"])
        .args((plan.wait < REPLICAS).then_some("--lossy"));
    let verify = verify.arg(dir.join("history.ndjson")).status().await?;
    if let Err(error) = &drained {
        println!("NOT DRAINED: {error:#}");
    }
    if slowest > FIRST_MAX {
        println!("TOO SLOW: the next event came after more than {FIRST_MAX:?}");
    }
    let alive = workers.ended().is_empty();
    Ok(drained.is_ok()
        && stopped
        && check.success()
        && verify.success()
        && slowest <= FIRST_MAX
        && alive)
}

fn count(receiver: &Mutex<Receiver>) -> u64 {
    receiver
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .events
}

fn receive(receiver: &Mutex<Receiver>, workers: &Workers, history: &History) -> anyhow::Result<()> {
    receiver
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .receive(workers.outputs(), history)
}

/// Kills a worker every few seconds and starts it again, until `enough` gets a message.
async fn kill_workers(
    workers: Arc<Workers>,
    mut random: Random,
    mut enough: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            _ = &mut enough => return Ok(()),
            () = sleep(random.ms(1000, 6000)) => {}
        }
        workers
            .kill(random.below(64) as usize, random.ms(0, 1500))
            .await?;
    }
}

/// Waits until no event is queued or scheduled, and no object is owned or held.
async fn drain(group: &Group) -> anyhow::Result<()> {
    let deadline = Instant::now() + DRAIN;
    loop {
        let seen = Control::new(group.connect().await?)
            .check_up_to(1)
            .await?
            .looked_at;
        if seen.objects_with_events + seen.objects_owned + seen.objects_held + seen.schedules == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            let (queued, owned, held) = (
                seen.objects_with_events,
                seen.objects_owned,
                seen.objects_held,
            );
            bail!(
                "after {DRAIN:?} {queued} objects have events, {owned} are owned, {held} are held"
            );
        }
        sleep(Duration::from_millis(200)).await;
    }
}
