//! Handlers in another program, in bad weather: programs, workers and Redis are killed and paused at
//! random, and programs break the protocol in every way. `SERIATIM_CHAOS_SECONDS=300` makes it longer.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use seriatim::control::{EventStatus, LogEntry};
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};
use tokio::task::JoinHandle;

use crate::support::Redis;
use crate::support::console::Console;
use crate::support::process::Process;

/// A program that emits one event for each event, exactly once, and that misbehaves now and then. Each
/// event's work holds a lock on the file of its object, which the kernel frees if the program dies. So
/// the program itself notices another handler of this object. With more arguments it starts a worker by
/// them.
const WORK: &str = r#"
import fcntl, io, os, random, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import handlers

folder = sys.argv[2]
seen = open(folder + "/seen", "a", buffering=1)

def misbehave():
    out = handlers.OUTPUT
    way = random.randrange(6)
    if way == 0:
        out.write("garbage\n")
    elif way == 1:
        out.write('{"type":"ok","batch":')
        out.flush()
        os._exit(0)
    elif way == 2:
        out.write('{"type":"ok","batch":1,"id":1}\n')
    elif way == 3:
        out.write("x" * 100_000_000)
    elif way == 4:
        time.sleep(3600)
    out.flush()

def work(name, event, cx):
    with open(folder + "/" + name, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            seen.write(f"overlap {name} {event}\n")
        if "of" in event:
            return None
        if "poison" in event:
            seen.write("poison\n")
            os.kill(os.getpid(), 9)
        time.sleep(random.random() * 0.004)
        roll = random.random()
        if roll < 0.002:
            misbehave()
        mail = {"object": f"mail:{event['n'] % 5}", "event": {"of": name, "n": event["n"]}}
        twice = roll > 0.998
    if twice:
        handlers.say(type="ok", batch=cx["batch"], id=cx["id"], emit=[mail])
    return {"emit": [mail]}

if sys.argv[3:]:
    worker = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    handlers.INPUT, handlers.OUTPUT = worker.stdout, io.TextIOWrapper(worker.stdin)
handlers.run(work)
"#;

/// The workers. The programs of all but `PARENT` are children of the worker; `PARENT` is a program that
/// has started its worker itself (`--sink stdio`).
const WORKERS: [&str; 3] = ["a", "b", PARENT];
const PARENT: &str = "parent";
/// The objects of the producer.
const OBJECTS: usize = 12;
/// Longer than any pause of a worker, so that a paused worker keeps its objects.
const LEASE: &str = "4s";
const PAUSE_MAX: u64 = 1500;
/// The time in which everything is delivered when the weather is fine again.
const PATIENCE: Duration = Duration::from_secs(30);

struct Scene {
    redis: Redis,
    dir: tempfile::TempDir,
    workers: Vec<Process>,
    random: Rng,
    /// The number of times that each thing was done.
    done: BTreeMap<&'static str, u32>,
}

impl Scene {
    fn start(&self, name: &str) -> Process {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let script = self.dir.path().join("work.py");
        let [script, examples, dir] = [&script, &examples, self.dir.path()]
            .map(|path| path.to_str().expect("a path in UTF-8"));
        let program = ["python3", "-B", script, examples, dir];
        let options = ["--exec-timeout", "1s", "--lease", LEASE, "--event-log"];
        if name == PARENT {
            return Process::start_parent(&self.redis, &program, name, &options);
        }
        let sink = format!("exec:{}", program.map(|word| format!("'{word}'")).join(" "));
        let options = [&options[..], &["--exec-children", "2"]].concat();
        Process::start(&self.redis, name, &sink, &options)
    }

    fn seen(&self) -> Vec<String> {
        let seen = std::fs::read_to_string(self.dir.path().join("seen")).unwrap_or_default();
        seen.lines().map(str::to_owned).collect()
    }

    /// Starts the parent again if it has ended, as a service manager does: it ends with its worker.
    fn start_ended_parent(&mut self) {
        let at = WORKERS.len() - 1;
        if self.workers[at].has_ended() {
            self.workers[at] = self.start(PARENT);
            *self.done.entry("started the parent").or_default() += 1;
        }
    }

    /// Does one thing to a process.
    async fn weather(&mut self) {
        let at = self.random.usize(0..self.workers.len());
        let worker = self.workers[at].pid();
        let children = children_of(worker);
        let child = (!children.is_empty()).then(|| children[self.random.usize(0..children.len())]);
        let pause = Duration::from_millis(self.random.u64(50..PAUSE_MAX));
        let what = match (self.random.u32(0..100), child) {
            (0..35, Some(child)) => {
                let _ = kill_process(child, Signal::KILL);
                "killed a program"
            }
            (35..55, Some(child)) => {
                let _ = kill_process(child, Signal::STOP);
                tokio::time::sleep(pause).await;
                let _ = kill_process(child, Signal::CONT);
                "paused a program"
            }
            (55..75, _) => {
                self.workers[at].pause();
                tokio::time::sleep(pause).await;
                self.workers[at].go_on();
                "paused a worker"
            }
            (75..93, _) => {
                self.workers[at].kill();
                self.workers[at] = self.start(WORKERS[at]);
                "killed a worker"
            }
            (93.., _) => {
                self.redis.server().kill();
                tokio::time::sleep(pause / 4).await;
                self.redis.server().restart();
                "killed Redis"
            }
            _ => return,
        };
        *self.done.entry(what).or_default() += 1;
    }
}

/// Returns the processes that this process has started.
fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let of_parent = |dir: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(dir.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let is_child = rest.split_whitespace().nth(1)? == parent;
        let pid = dir.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(pid).filter(|_| is_child)
    };
    all.filter_map(of_parent).collect()
}

/// Emits until it is told to stop. Returns the number of events of each object.
fn produce(
    emitter: Emitter,
    stop: tokio_util::sync::CancellationToken,
) -> JoinHandle<[u64; OBJECTS]> {
    tokio::spawn(async move {
        let mut next = [0; OBJECTS];
        while !stop.is_cancelled() {
            for (of, n) in next.iter_mut().enumerate() {
                let object = format!("o:{of}");
                // Under the same key the emit can be repeated until its outcome is known.
                loop {
                    let event = Json::new(format!(r#"{{"n":{n}}}"#));
                    let emit = emitter
                        .event(&object, event)
                        .idempotency_key(format!("{n}"));
                    match emit.send().await {
                        Ok(_) => break,
                        Err(EmitError::Unknown { .. } | EmitError::Connect { .. }) => {}
                        // Redis loads its data.
                        Err(EmitError::Refused { .. }) => {
                            tokio::time::sleep(Duration::from_millis(20)).await
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                *n += 1;
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        next
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_bad_weather_lose_double_and_reorder_nothing() {
    let seconds = std::env::var("SERIATIM_CHAOS_SECONDS").ok();
    let seconds = seconds.map_or(12, |seconds| seconds.parse().expect("a number of seconds"));
    let seed = std::env::var("SERIATIM_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("SERIATIM_SEED={seed}");
    let redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("work.py"), WORK).expect("written");
    let mut scene = Scene {
        redis,
        dir,
        workers: Vec::new(),
        random: Rng::with_seed(seed),
        done: BTreeMap::new(),
    };
    for name in WORKERS {
        let worker = scene.start(name);
        scene.workers.push(worker);
    }
    let emitter = scene.redis.emitter().await;
    let poison = Json::new(r#"{"poison":true}"#);
    emitter.emit("poison", poison).await.expect("queued");
    let stop = tokio_util::sync::CancellationToken::new();
    let producer = produce(emitter, stop.clone());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let calm = Duration::from_millis(scene.random.u64(50..500));
        tokio::time::sleep(calm).await;
        scene.weather().await;
        scene.start_ended_parent();
    }
    stop.cancel();
    let emitted = producer.await.expect("no panic");
    println!("{:?}, emitted {}", scene.done, emitted.iter().sum::<u64>());
    check(&scene, emitted).await;
}

/// Checks that each event, and each event that its handler has emitted, was delivered once and in its
/// order.
async fn check(scene: &Scene, emitted: [u64; OBJECTS]) {
    let console: Console = scene.redis.console().await;
    let all = 2 * emitted.iter().sum::<u64>() as usize;
    let (began, objects_held) = (Instant::now(), console.keys.objects_held());
    let rows = loop {
        let rows = rows(&console).await;
        if rows.len() >= all {
            break rows;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{} of {all} are delivered, {:?} are held:\n{}",
            rows.len(),
            console
                .run::<Vec<String>>(&["ZRANGE", &objects_held, "0", "-1"])
                .await,
            scene.workers.iter().map(Process::log).collect::<String>(),
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("all was delivered {:?} later", began.elapsed());
    console.until_held("poison", "crashes: ").await;
    console.until_idle(2).await;

    let seen = scene.seen();
    let overlaps: Vec<_> = seen
        .iter()
        .filter(|line| line.starts_with("overlap"))
        .collect();
    assert!(overlaps.is_empty(), "{overlaps:#?}");
    // Its program, or its worker, may also have been killed before it was.
    let deaths = seen.iter().filter(|line| *line == "poison").count();
    let held_id = console.held_id("poison").await.expect("it is held");
    assert_eq!(held_id.split(' ').nth(3), Some("5"), "{held_id}");
    assert!((1..=5).contains(&deaths), "{deaths} deaths, {held_id}");
    let held: Vec<String> = console.run(&["ZRANGE", &objects_held, "0", "-1"]).await;
    assert_eq!(held, ["poison"]);

    assert_eq!(rows.len(), all);
    let mut mails = BTreeMap::<String, Vec<u64>>::new();
    for (of, emitted) in emitted.into_iter().enumerate() {
        let object = format!("o:{of}");
        let numbers = rows.iter().filter(|row| row.object == object).map(number);
        let in_order: Vec<_> = (0..emitted).collect();
        assert_eq!(numbers.collect::<Vec<_>>(), in_order, "{object}");
        mails.insert(object, in_order);
    }
    for (object, expected) in mails {
        let is_of = |row: &&LogEntry| {
            row.object.starts_with("mail:") && row.member("of") == Some(format!("{object:?}"))
        };
        let mut numbers: Vec<_> = rows.iter().filter(is_of).map(number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, expected, "the events that {object} has emitted");
    }
    console.check().await;
}

fn number(row: &LogEntry) -> u64 {
    assert_eq!(row.status, EventStatus::Completed, "{row:?}");
    row.member("n")
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

async fn rows(console: &Console) -> Vec<LogEntry> {
    let control = console.control();
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = control.log(after.as_ref(), 100).await.expect("the log");
        rows.extend(page.entries);
        match page.next {
            Some(next) => after = Some(next),
            None => return rows,
        }
    }
}
