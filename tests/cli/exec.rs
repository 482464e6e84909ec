//! Handlers in another language: `seriatim worker --sink exec:COMMAND`.

use std::path::{Path, PathBuf};
use std::process::Command;

use rstest::rstest;

use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::{Redis, until};

/// A program that records the beginning and the end of each event's work in a file, and does what the
/// event says. It is the example with other work.
const WORK: &str = r#"
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import handlers

seen = open(sys.argv[2], "a", buffering=1)

def work(name, event, cx):
    seen.write(f"begin {name} {event.get('n')}\n")
    if "sleep" in event:
        time.sleep(event["sleep"])
    if "die" in event:
        os.kill(os.getpid(), 9)
    if "bad" in event:
        raise ValueError("bad")
    if event.get("flaky") and pathlib.Path(sys.argv[2]).read_text().count(f"begin {name} ") < 3:
        raise OSError("busy")
    seen.write(f"end {name} {event.get('n')}\n")

handlers.run(work)
"#;

struct Scene {
    redis: Redis,
    console: Console,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let (redis, console) = Redis::start().with_console().await;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("work.py"), WORK).expect("written");
        Self {
            redis,
            console,
            dir,
        }
    }

    fn seen_file(&self) -> PathBuf {
        self.dir.path().join("seen")
    }

    fn worker(&self, options: &[&str]) -> Process {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let sink = format!(
            "exec:python3 -B '{}' '{}' '{}'",
            self.dir.path().join("work.py").display(),
            examples.display(),
            self.seen_file().display()
        );
        Process::start(&self.redis, "w", &sink, options)
    }

    /// Returns the lines that the programs have written.
    fn seen(&self) -> Vec<String> {
        let seen = std::fs::read_to_string(self.seen_file()).unwrap_or_default();
        seen.lines().map(str::to_owned).collect()
    }

    async fn until_seen(&self, line: &str) {
        until(&format!("{line:?} is seen"), PATIENCE, async || {
            self.seen().iter().any(|seen| seen == line).then_some(())
        })
        .await;
    }

    /// Returns the numbers of the events of this object whose work has ended.
    fn ended(&self, object: &str) -> Vec<u32> {
        let of = format!("end {object} ");
        let seen = self.seen();
        let numbers = seen.iter().filter_map(|line| line.strip_prefix(&of));
        numbers.map(|n| n.parse().expect("a number")).collect()
    }
}

#[tokio::test]
async fn every_outcome_of_a_handler_has_its_effect() {
    let scene = Scene::new().await;
    let worker = scene.worker(&["--retry", "fixed:10ms"]);
    let console = &scene.console;
    console
        .emit_all("a", (0..50).map(|n| format!("{{\"n\":{n}}}")))
        .await;
    console
        .emit_all("b", [r#"{"n":0,"bad":1}"#, r#"{"n":1}"#])
        .await;
    console
        .emit_all("c", [r#"{"n":0,"flaky":true}"#, r#"{"n":1}"#])
        .await;
    console.until_at_rest().await;
    assert_eq!(scene.ended("a"), (0..50).collect::<Vec<_>>());
    assert_eq!(scene.ended("b"), [1]);
    assert_eq!(scene.ended("c"), [0, 1]);
    assert_eq!(
        scene
            .seen()
            .iter()
            .filter(|line| *line == "begin c 0")
            .count(),
        3
    );
    assert_eq!(console.dead().await.len(), 1);
    worker.until_logged("the program is ready").await;
    console.check().await;
}

/// The event that kills its program is held after exactly so many deaths. The events that were in
/// hand beside it come again, and no other object is held.
#[tokio::test]
async fn an_event_that_kills_its_program_is_held_and_no_other() {
    let scene = Scene::new().await;
    let console = &scene.console;
    for object in 0..10 {
        console
            .emit_all(
                &format!("o:{object}"),
                (0..5).map(|n| format!("{{\"n\":{n}}}")),
            )
            .await;
    }
    console
        .emit_all(
            "poison",
            [r#"{"n":0}"#, r#"{"n":1,"die":true}"#, r#"{"n":2}"#],
        )
        .await;
    let worker = scene.worker(&["--crashes-max", "3", "--exec-children", "2"]);
    let why = "crashes: died 3 times with this event in hand, at last: the program ended (signal: 9 (SIGKILL))";
    let held = console.until_held("poison", why).await;
    assert!(held.contains(" 0 3 crashes: "), "{held}");
    for object in 0..10 {
        let object = format!("o:{object}");
        until(&format!("{object} is delivered"), PATIENCE, async || {
            (scene.ended(&object).last() == Some(&4)).then_some(())
        })
        .await;
        // An event whose program died before its answer may come twice, but none is passed over.
        let mut ended = scene.ended(&object);
        ended.dedup();
        assert_eq!(ended, [0, 1, 2, 3, 4], "{object}");
    }
    let seen = scene.seen();
    let deaths = seen.iter().filter(|line| *line == "begin poison 1").count();
    assert_eq!(deaths, 3, "{seen:?}");
    assert_eq!(scene.ended("poison"), [0]);
    until("all others are at rest", PATIENCE, async || {
        let held: u64 = console.run(&["ZCARD", &console.keys.objects_held()]).await;
        (held == 1).then_some(())
    })
    .await;
    drop(worker);
    console.check().await;
}

/// A graceful stop waits for the event in hand, and counts neither an attempt nor a crash. Then the
/// program has ended, too.
#[tokio::test]
async fn a_stop_waits_for_the_handler_and_ends_the_program() {
    let scene = Scene::new().await;
    let mut worker = scene.worker(&[]);
    scene
        .console
        .emit_all("a", [r#"{"n":0,"sleep":0.7}"#])
        .await;
    scene.until_seen("begin a 0").await;
    worker.terminate();
    assert!(worker.ended().await.success(), "{}", worker.log());
    assert_eq!(scene.ended("a"), [0]);
    assert_eq!(scene.console.last_id("a").await, 1);
    assert!(
        !worker.log().contains("the program ended"),
        "{}",
        worker.log()
    );
    scene.console.check().await;
}

/// The program ends with the input that its worker has closed by its death.
#[tokio::test]
async fn a_handler_ends_with_its_worker() {
    let scene = Scene::new().await;
    let mut worker = scene.worker(&[]);
    scene.console.emit_all("a", [r#"{"n":0,"sleep":2}"#]).await;
    scene.until_seen("begin a 0").await;
    worker.kill();
    let _again = scene.worker(&[]);
    scene.console.until_at_rest().await;
    assert_eq!(scene.seen(), ["begin a 0", "begin a 0", "end a 0"]);
}

/// A worker is paused while batches wait in it for the busy program. Its lease ends, and another worker
/// delivers their events. After the pause the program becomes free, and gets none of them.
#[tokio::test]
async fn a_paused_worker_hands_out_no_batch_that_has_waited() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let paused = scene.worker(&["--lease", "1s", "--concurrency", "8"]);
    console.emit_all("busy", [r#"{"n":0,"sleep":2}"#]).await;
    scene.until_seen("begin busy 0").await;
    let waiting = ["a", "b", "c", "d"];
    for object in waiting {
        console.emit_all(object, [r#"{"n":0}"#]).await;
    }
    until("the worker has all batches", PATIENCE, async || {
        for object in waiting {
            console.owner(object).await?;
        }
        Some(())
    })
    .await;
    paused.pause();
    scene.until_seen("end busy 0").await;
    let lease = console.keys.worker_lease("w");
    until("its lease is over", PATIENCE, async || {
        console.text(&lease).await.is_none().then_some(())
    })
    .await;
    let mut other = Process::start(&scene.redis, "other", "null", &[]);
    console.until_at_rest().await;
    other.terminate();
    assert!(other.ended().await.success());
    paused.go_on();
    paused.until_logged("attaching again").await;
    console.emit_all("fresh", [r#"{"n":0}"#]).await;
    scene.until_seen("end fresh 0").await;
    let seen = scene.seen();
    let expected = ["begin busy 0", "end busy 0", "begin fresh 0", "end fresh 0"];
    assert_eq!(seen, expected, "{}", paused.log());
    console.check().await;
}

/// `inspect` shows the progress and the last lines of the event in hand, and the log has the lines. They
/// end with the event.
#[tokio::test]
async fn a_program_reports_its_progress() {
    const REPORTS: &str = r#"
import json, os, sys, time

def say(**line):
    print(json.dumps(line), flush=True)

parent = os.getppid()
say(type="hello", protocol=1)
for line in sys.stdin:
    line = json.loads(line)
    if line["type"] != "batch":
        continue
    of = {"batch": line["batch"], "id": line["events"][0]["id"]}
    for done in range(1000):
        say(type="progress", value={"done": done}, **of)
    for number in range(12):
        say(type="log", text=f"step\n{number}", **of)
    say(type="progress", value={"done": "late"}, batch=of["batch"], id=of["id"] + 1)
    while not os.path.exists(sys.argv[1]):
        # The worker of a test that fails is killed.
        if os.getppid() != parent:
            sys.exit()
        time.sleep(0.01)
    say(type="ok", **of)
    say(type="log", text="too late", **of)
"#;
    let scene = Scene::new().await;
    let (console, dir) = (&scene.console, scene.dir.path().display());
    std::fs::write(scene.dir.path().join("reports.py"), REPORTS).expect("written");
    let sink = format!("exec:python3 -B '{dir}/reports.py' '{dir}/go'");
    let worker = Process::start(&scene.redis, "w", &sink, &[]);
    console.emit("a", "1").await;
    let (key, control) = (
        console.keys.worker_reports("w"),
        scene.redis.control().await,
    );
    let report = until("the report is there", PATIENCE, async || {
        let report = control.inspect("a").await.expect("read").report?;
        (report.log.back()?.text == "step 11").then_some(report)
    })
    .await;
    assert_eq!(report.progress.as_deref(), Some(r#"{"done": 999}"#));
    let texts: Vec<_> = report.log.iter().map(|line| line.text.as_str()).collect();
    assert_eq!((texts[0], texts[9]), ("step 2", "step 11"));
    let ttl: i64 = console.run(&["PTTL", &key]).await;
    assert!((1..=5000).contains(&ttl), "{ttl}");
    let shown = scene.redis.prints(&["inspect", "a"]);
    let ends = |start: &str, end: &str| {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.is_some_and(|line| line.ends_with(end))
    };
    assert!(
        ends("progress   id 1, ", r#" ago: {"done": 999}"#),
        "{shown}"
    );
    assert!(ends("log        ", " ago: step 2"), "{shown}");
    worker.until_logged("step\\n11").await;
    std::fs::write(scene.dir.path().join("go"), "").expect("written");
    console.until_at_rest().await;
    until("the report is over", PATIENCE, async || {
        let left: u64 = console.run(&["EXISTS", &key]).await;
        (left == 0).then_some(())
    })
    .await;
    assert!(!worker.log().contains("too late"), "{}", worker.log());
    assert!(!worker.log().contains("was killed"), "{}", worker.log());
    console.check().await;
}

/// Each event has a process of its own. A flaky one is tried again, and one that dies is held.
#[tokio::test]
async fn each_event_is_a_process() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let script = r#"
        line=$(cat)
        echo "$line" >> "$1"
        case $line in
            *flaky*) [ "$(grep -c flaky "$1")" -ge 3 ] || exit 75;;
            *bad*) echo "no such card" >&2; exit 1;;
            *die*) kill -9 $$;;
        esac
    "#;
    std::fs::write(scene.dir.path().join("each.sh"), script).expect("written");
    let path = scene.dir.path().display();
    let sink = format!("exec-each:sh {path}/each.sh {path}/seen");
    console
        .emit_all("a", ["1", "\"flaky\"", "\"bad\"", "2"])
        .await;
    console.emit("b", "\"die\"").await;
    let options = ["--retry", "fixed:10ms", "--crashes-max", "2"];
    let _worker = Process::start(&scene.redis, "w", &sink, &options);
    let why = "crashes: died 2 times with this event in hand, at last: signal: 9 (SIGKILL)";
    console.until_held("b", why).await;
    until("all others are over", PATIENCE, async || {
        (console.owner("a").await.is_none() && console.queue("a").await.is_empty()).then_some(())
    })
    .await;
    let seen = scene.seen();
    let of_a = seen.iter().filter_map(|line| {
        let (_, event) = line.split_once("\"a\",\"event\":")?;
        event.strip_suffix('}')
    });
    let expected = ["1", "\"flaky\"", "\"flaky\"", "\"flaky\"", "\"bad\"", "2"];
    assert_eq!(of_a.collect::<Vec<_>>(), expected);
    assert_eq!(console.dead().await.len(), 1);
    console.check().await;
}

/// A handler that takes longer than several leases keeps its object, although another worker is free.
#[tokio::test]
async fn a_long_handler_keeps_its_object() {
    let scene = Scene::new().await;
    let _worker = scene.worker(&["--lease", "300ms"]);
    scene.console.emit_all("a", [r#"{"n":0,"sleep":3}"#]).await;
    scene.until_seen("begin a 0").await;
    let other = Process::start(&scene.redis, "other", "null", &["--lease", "300ms"]);
    other.until_logged("attached").await;
    scene.until_seen("end a 0").await;
    scene.console.until_at_rest().await;
    assert_eq!(scene.seen(), ["begin a 0", "end a 0"]);
    assert!(!other.log().contains("batch="), "{}", other.log());
}

#[rstest]
#[case(&["--sink", "exec:"], "--sink: the sink exec: is invalid: there is no command; write e.g. python3 handlers.py")]
#[case(&["--sink", "exec:a 'b"], "--sink: the sink exec: is invalid: a quote or a backslash has no end")]
#[case(&["--sink", "exec:/no/such --key=secret"], "--sink: cannot start /no/such: No such file or directory (os error 2)")]
#[case(&["--sink", "exec:/"], "--sink: cannot start /: Permission denied (os error 13)")]
#[case(&["--sink", "exec:true", "--exec-children", "65"], "--exec-children is 65; it is 1 to 64")]
#[case(&["--sink", "exec:true", "--exec-timeout", "1ms"], "--exec-timeout is 1ms; it is 10ms to 24h")]
#[case(&["--sink", "null", "--exec-children", "2"], "--exec-children is only for --sink exec; the sink is null")]
#[case(&["--sink", "exec:true", "--sink-timeout", "1s"], "--sink-timeout is only for an HTTP sink; the sink is exec:true")]
#[case(&["--sink", "exec-each:"], "--sink: the sink exec-each: is invalid: there is no command; write e.g. python3 handlers.py")]
#[case(&["--sink", "exec-each:/no/such"], "--sink: cannot start /no/such: No such file or directory (os error 2)")]
#[case(&["--sink", "exec-each:true", "--exec-children", "2"], "--exec-children is only for --sink exec; the sink is exec-each:true")]
#[case(&["--sink", "exec-each:true", "--exec-timeout", "1ms"], "--exec-timeout is 1ms; it is 10ms to 24h")]
#[case(&["--sink", "stdio", "--exec-children", "2"], "--exec-children is only for --sink exec; the sink is stdio")]
fn what_is_wrong_is_refused(#[case] args: &[&str], #[case] why: &str) {
    let output = Command::new(crate::support::program())
        .args(["--redis", "redis://127.0.0.1:1", "--log", "off", "worker"])
        .args(args)
        .output()
        .expect("the program runs");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [format!("seriatim: {why}")]
    );
}

/// An event is in hand at five deaths of its process. The log of the next process names the object.
#[tokio::test]
async fn the_log_names_an_object_that_is_held_after_deaths() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit("work:1", "1").await;
    let options = ["--concurrency", "1"];
    for deaths in ["0", "1", "2", "3", "4"] {
        let mut worker = Process::start(&redis, "w", "exec-each:sleep 2", &options);
        until(&format!("{deaths} deaths"), PATIENCE, async || {
            let tag = console.tag("w.0").await?;
            (tag.split(' ').nth(3).unwrap_or("0") == deaths).then_some(())
        })
        .await;
        worker.kill();
    }
    let worker = Process::start(&redis, "w", "null", &options);
    worker
        .until_logged("the object is held until an operator releases it")
        .await;
    let log = worker.log();
    let line = log.lines().find(|line| line.contains("died 5 times"));
    assert!(line.is_some_and(|line| line.contains("work:1")), "{log}");
}
