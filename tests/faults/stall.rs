//! Handlers that block their thread. The process keeps its lease, other objects continue, and a
//! handler that blocks for ever counts as a crash.

use std::collections::HashMap;
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rstest::rstest;
use seriatim::async_trait;
use seriatim::handlers::Handlers;
use seriatim::keys::Keys;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Shutdown, Stopped, Worker, WorkerConfig, WorkerError};

use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::recorder::Recorder;
use crate::support::running::{config, start};
use crate::support::{Redis, until};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A gate that blocks the calling thread as long as it is closed.
#[derive(Clone, Default)]
struct Block(Arc<(Mutex<bool>, Condvar)>);

impl Block {
    fn open(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.0.lock().expect("no panic");
        let (_open, waited) = self
            .0
            .1
            .wait_timeout_while(open, PATIENCE, |open| !*open)
            .expect("no panic");
        assert!(!waited.timed_out(), "nobody opened");
    }
}

/// A sink that blocks its thread for objects whose names begin with `block:`. It records its
/// deliveries.
#[derive(Clone, Default)]
struct Blocks {
    block: Block,
    given: Arc<Mutex<Vec<(String, u32, u32)>>>,
}

impl Blocks {
    fn given(&self) -> Vec<(String, u32, u32)> {
        self.given.lock().expect("no panic").clone()
    }

    async fn until_given(&self, batches: usize) {
        until("the sink has them", PATIENCE, async || {
            (self.given().len() >= batches).then_some(())
        })
        .await;
    }
}

#[async_trait]
impl Sink for Blocks {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        self.given.lock().expect("no panic").push((
            batch.object().to_string(),
            cx.attempts,
            cx.crashes,
        ));
        if batch.object().as_str().starts_with("block:") {
            self.block.pass();
        }
        Delivered::all()
    }

    fn timeout_max(&self) -> Duration {
        PATIENCE
    }
}

/// Starts a worker in a runtime of its own, so that its sink can block this runtime.
fn apart(
    config: WorkerConfig,
    redis: &Redis,
    sink: impl Sink,
    threads: usize,
) -> (Shutdown, Ended) {
    let (url, shutdown) = (redis.url().to_owned(), Shutdown::new());
    let stopping = shutdown.clone();
    let run = move || {
        let runtime = match threads {
            1 => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build(),
            threads => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .enable_all()
                .build(),
        };
        let worker = Worker::builder(url)
            .config(config)
            .sink(sink)
            .build()
            .expect("valid settings");
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async { tokio::spawn(worker.run(stopping)).await.expect("no panic") })
    };
    (shutdown, std::thread::spawn(run))
}

type Ended = std::thread::JoinHandle<Result<Stopped, WorkerError>>;

async fn until_ended(thread: Ended) -> Stopped {
    until("it ends", PATIENCE, async || {
        thread.is_finished().then_some(())
    })
    .await;
    thread.join().expect("no panic").expect("a graceful stop")
}

/// Waits until the lease was renewed this many times. Panics if the lease is absent in between.
async fn until_renewed(console: &Console, name: &str, times: usize) {
    let key = console.keys.worker_lease(name);
    let (mut renewals, mut left) = (0, i64::MAX);
    let deadline = Instant::now() + PATIENCE;
    while renewals < times {
        assert!(Instant::now() < deadline, "the lease is not renewed");
        let now: i64 = console.run(&["PTTL", &key]).await;
        assert!(now > 0, "the lease is there all the time");
        renewals += usize::from(now > left);
        left = now;
        tokio::time::sleep(MS(3)).await;
    }
}

/// Story: a handler that slept for 6 s on its thread lost the lease of 5 s. Its event, and every
/// other event in flight, ran again for ever, each time as a first attempt. Now a separate thread
/// renews the lease.
#[rstest]
#[case::current_thread(1)]
#[case::multi_thread(2)]
#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_the_lease(#[case] threads: usize) {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Blocks::default();
    let mut config = config(&redis, "w");
    // A busy host may keep the whole process waiting for a second.
    config.lease = MS(3000);
    let (shutdown, ended) = apart(config, &redis, sink.clone(), threads);
    console.emit("block:1", "1").await;
    sink.until_given(1).await;
    let other = Recorder::new();
    let sweeper = start(&redis, "sweeper", &other, |config| config.concurrency = 1);
    // The time of five renewals is longer than the lease.
    until_renewed(&console, "w", 5).await;
    if threads > 1 {
        sweeper.finish().await;
        console.emit("work:2", "2").await;
        sink.until_given(2).await;
    } else {
        console.emit("work:2", "2").await;
        other.until_sent(1).await;
        sweeper.finish().await;
    }
    sink.block.open();
    console.until_at_rest().await;
    shutdown.stop();
    until_ended(ended).await;
    let mut given = sink.given();
    given.sort();
    let (blocked, free) = (("block:1".to_owned(), 0, 0), ("work:2".to_owned(), 0, 0));
    assert_eq!(
        given,
        if threads > 1 {
            vec![blocked, free]
        } else {
            vec![blocked]
        },
        "each once"
    );
    assert!(
        other.sent().iter().all(|offer| offer.object == "work:2"),
        "nobody took it over"
    );
}

/// If the loop stands still for `stall_max`, the process gives up its lease, and each of its
/// batches counts a crash. Story: this lapse once counted no crash.
#[tokio::test]
async fn a_lease_that_was_let_go_counts_a_crash() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Blocks::default();
    let mut config = config(&redis, "w");
    (config.lease, config.stall_max) = (MS(300), MS(1000));
    let (shutdown, ended) = apart(config, &redis, sink.clone(), 1);
    console.emit("block:1", "1").await;
    sink.until_given(1).await;
    let key = console.keys.worker_lease("w");
    until("the lease ends", PATIENCE, async || {
        console.text(&key).await.is_none().then_some(())
    })
    .await;
    sink.block.open();
    sink.until_given(2).await;
    console.until_at_rest().await;
    shutdown.stop();
    until_ended(ended).await;
    let given = |crashes| ("block:1".to_owned(), 0, crashes);
    assert_eq!(sink.given(), [given(0), given(1)]);
}

/// A process that is paused for longer than `stall_max` has not given up its lease, so its batches
/// count no crash.
#[tokio::test]
async fn a_paused_process_counts_no_crash() {
    let (redis, console) = Redis::start().with_console().await;
    let process = Process::start(
        &redis,
        "w",
        "stdout",
        &["--lease", "300ms", "--stall-max", "1s"],
    );
    console
        .emit("work:1", format!("{:?}", "x".repeat(200_000)))
        .await;
    until("it has the event", PATIENCE, async || {
        console.text(&console.keys.event_worker("work:1")).await
    })
    .await;
    process.pause();
    // A fixed wait: the pause must be longer than `stall_max` and than the lease.
    tokio::time::sleep(MS(2500)).await;
    process.go_on();
    process.until_logged("attaching again").await;
    process.until_logged("kept=1").await;
    let owner = console
        .text(&console.keys.event_worker("work:1"))
        .await
        .expect("an owner");
    let tag = console.tag(&owner).await.expect("a tag");
    assert_eq!(tag.split(' ').nth(3), None, "{tag}");
}

/// The environment variable that tells a child test process its Redis.
const CHILD: &str = "SERIATIM_TEST_STALL";

/// Runs a worker whose handler blocks for ever. This is the program of the child process.
#[test]
fn child() {
    let Ok(variable) = std::env::var(CHILD) else {
        return;
    };
    let (url, namespace) = variable.split_once('|').expect("a URL and a namespace");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let handlers = Handlers::builder().timeout(MS(50)).register_type(
        "block",
        "blocks",
        |_: HashMap<String, String>, _| async {
            std::thread::sleep(PATIENCE);
            Ok(())
        },
    );
    let handlers = handlers
        .register_other("works", |_: HashMap<String, String>, _| async { Ok(()) })
        .build()
        .expect("a set");
    let mut config = WorkerConfig::default();
    config.keys = Keys::with_namespace(namespace).expect("a namespace");
    (config.name, config.crashes_max, config.stall_max) = ("w".to_owned(), 3, MS(1000));
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().expect("signals");
        let worker = Worker::builder(url)
            .config(config)
            .sink(handlers)
            .build()
            .expect("valid settings");
        worker.run(shutdown).await.expect("a graceful stop");
    });
}

fn start_child(redis: &Redis) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "stall::child", "--nocapture"])
        .env(CHILD, format!("{}|{}", redis.url(), redis.namespace()));
    command
}

/// Story: a handler that blocked for ever also blocked its process for ever, and no crash was
/// counted. Now the process ends itself and logs the event, and the event counts a crash. After
/// `crashes_max` crashes the event is held, and the other events are delivered.
#[tokio::test]
async fn a_handler_that_blocks_for_ever_is_quarantined() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit("work:1", r#"{"type":"block"}"#).await;
    for crashes in 1..=3 {
        let Output { status, stderr, .. } = start_child(&redis).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(4), "{stderr}");
        let message = stderr
            .lines()
            .find(|line| line.contains("of work:1 (for "))
            .unwrap_or_default();
        assert!(
            message.starts_with("seriatim: the delivery of event "),
            "crash {crashes}: {stderr}"
        );
        if crashes == 1 {
            console.emit("work:2", "{}").await;
        }
    }
    let mut last = start_child(&redis).spawn().expect("it runs");
    console
        .until_held("work:1", "crashes: died 3 times with this event in hand")
        .await;
    let neighbour = console.keys.last_event_id("work:2");
    until("the neighbour is delivered", PATIENCE, async || {
        console.text(&neighbour).await
    })
    .await;
    last.kill().expect("it can be killed");
    last.wait().expect("it can be reaped");
}

/// Returns the number of lease threads of this process.
fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.trim_end() == "seriatim-lease")
        .count()
}

/// Returns true if this process runs only this test. Otherwise runs the test in a process of its
/// own, which must succeed, and returns false.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "SERIATIM_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(
        status.success() && text.contains("1 passed"),
        "{status:?}: {text}"
    );
    false
}

/// The lease thread ends together with its session: if the worker stops, if its lease lapses, and
/// if its future is dropped. Other tests have lease threads, too. So the test counts the threads in
/// a process of its own.
#[tokio::test]
async fn no_thread_is_left() {
    if !is_alone("stall::no_thread_is_left") {
        return;
    }
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    for turn in 0..5 {
        let worker = start(&redis, "w", &sink, |_| {});
        let first = console.until_lease("w").await;
        until("a thread", PATIENCE, async || {
            (keepers() == 1).then_some(())
        })
        .await;
        console.end_lease("w").await;
        until("another session", PATIENCE, async || {
            console
                .text(&console.keys.worker_lease("w"))
                .await
                .filter(|lease| *lease != first)
        })
        .await;
        until("one thread", PATIENCE, async || {
            (keepers() == 1).then_some(())
        })
        .await;
        if turn % 2 == 0 {
            worker.finish().await;
        } else {
            worker.crash().await;
            console.end_lease("w").await;
        }
        until("no thread", PATIENCE, async || {
            (keepers() == 0).then_some(())
        })
        .await;
    }
}
