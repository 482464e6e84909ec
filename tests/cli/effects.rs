//! The effects of handlers outside of the worker: emits, schedules, cancelled schedules, results and
//! subtasks of `--sink exec` and `--sink stdio`.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::{Redis, until};

/// A program whose events say what to do: `effects` to answer, a subtask to do `once`, `fail` until
/// the third attempt, or `kill` the worker right after the answer.
const WORK: &str = r#"
import os, random, sys, time
sys.path.insert(0, sys.argv[1])
import handlers

seen = open(sys.argv[2], "a", buffering=1)

def work(name, event, cx):
    seen.write(f"begin {name} {event.get('n')}\n")
    if "once" in event:
        def step():
            seen.write(f"step {name} {event['once']}\n")
            return {"paid": 12345678901234567890}
        value = handlers.once(cx, event["once"], step)
        seen.write(f"value {value['paid']}\n")
    tries = open(sys.argv[2]).read().count(f"begin {name} {event.get('n')}\n")
    if "fail" in event and tries < 3:
        raise OSError("busy")
    if "away" in event and tries < 3:
        raise OSError("away")
    return event.get("effects")

def say(**line):
    if "away" in line.get("error", ""):
        line["type"] = "unavailable"
    plain(**line)
    if line.get("emit") and "kill" in line["emit"][0]["event"]:
        time.sleep(random.random() * 0.004)
        os.kill(os.getppid(), 9)

plain, handlers.say = handlers.say, say
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

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn worker(&self, options: &[&str]) -> Process {
        let sink = format!(
            "exec:python3 -B '{}' '{}/examples' '{}'",
            self.path("work.py").display(),
            env!("CARGO_MANIFEST_DIR"),
            self.path("seen").display()
        );
        Process::start(&self.redis, "w", &sink, options)
    }

    fn seen(&self) -> Vec<String> {
        let seen = std::fs::read_to_string(self.path("seen")).unwrap_or_default();
        seen.lines().map(str::to_owned).collect()
    }
}

fn event(n: u32, more: Value) -> String {
    let mut event = json!({ "n": n });
    let (Value::Object(event_members), Value::Object(more)) = (&mut event, more) else {
        panic!("no objects");
    };
    event_members.extend(more);
    event.to_string()
}

/// An answer with effects ends the batch, so the next events of the object come after its commit. They
/// are carried out with the end of the event: emits in their order, cancels before schedules.
#[tokio::test]
async fn effects_are_carried_out_with_the_end_of_the_event() {
    let scene = Scene::new().await;
    let console = &scene.console;
    console
        .add("HSET b:events.scheduled gone 1; ZADD events.scheduled 9e12 'b\ngone'")
        .await;
    let effects = json!({
        "emit": [{"object": "c", "event": {"n": 1}}, {"object": "c", "event": {"n": 2}}],
        "cancel": [{"object": "b", "key": "gone"}],
        "schedule": [{"object": "b", "key": "later", "event": {"n": 3}, "at_ms": 4_000_000_000_000_u64}],
        "result": {"receipt": 7},
    });
    let events = [
        event(0, json!({})),
        event(1, json!({ "effects": effects })),
        event(2, json!({"effects": {"result": [1]}})),
        event(3, json!({})),
    ];
    console.emit_all("a", events).await;
    let _worker = scene.worker(&["--event-log"]);
    let begun = ["begin a 0", "begin a 1", "begin a 2", "begin a 3"];
    until("all is delivered", PATIENCE, async || {
        let is_over = console.owner("a").await.is_none() && console.owner("c").await.is_none();
        (is_over && scene.seen().len() == 6).then_some(())
    })
    .await;
    let seen = scene.seen();
    let of = |object: &str| {
        let begin = format!("begin {object} ");
        let seen = seen.iter().filter(|line| line.starts_with(&begin));
        seen.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("a"), begun);
    assert_eq!(of("c"), ["begin c 1", "begin c 2"]);
    let scheduled: HashMap<String, String> = console
        .run(&["HGETALL", &console.keys.events_scheduled_of("b")])
        .await;
    assert_eq!(
        scheduled,
        HashMap::from([("later".to_owned(), r#"{"n": 3}"#.to_owned())])
    );
    type Row = (String, HashMap<String, String>);
    let log: Vec<Row> = console
        .run(&["XRANGE", &console.keys.event_log(), "-", "+"])
        .await;
    let of_a = log.iter().filter(|(_, row)| row["object"] == "a");
    let results: Vec<_> = of_a
        .map(|(_, row)| row.get("results").map_or("", String::as_str))
        .collect();
    assert_eq!(
        results,
        ["", r#"{"answer":{"receipt": 7}}"#, r#"{"answer":[1]}"#, ""]
    );
    console.check().await;
}

/// A step runs once although the event comes again, and its value comes back exactly.
#[tokio::test]
async fn a_step_of_an_event_runs_once() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let events = [
        event(0, json!({"once": "charge é", "fail": true})),
        event(1, json!({"once": "charge é"})),
    ];
    console.emit_all("a", events).await;
    let _worker = scene.worker(&["--retry", "fixed:10ms"]);
    console.until_at_rest().await;
    let seen = scene.seen();
    let count = |line: &str| seen.iter().filter(|seen| *seen == line).count();
    assert_eq!(count("begin a 0"), 3, "{seen:?}");
    assert_eq!(count("begin a 1"), 1, "{seen:?}");
    assert_eq!(count("step a charge é"), 2, "{seen:?}");
    assert_eq!(count("value 12345678901234567890"), 4, "{seen:?}");
    console.check().await;
}

/// A step is also kept if the program is then unavailable, whether its event was the first of its batch or
/// not.
#[tokio::test]
async fn a_step_runs_once_although_the_program_is_unavailable() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let steps = |n| event(n, json!({"once": "charge", "away": true}));
    console
        .emit_all("a", [event(0, json!({})), steps(1), event(2, json!({}))])
        .await;
    console.emit_all("b", [steps(0)]).await;
    let _worker = scene.worker(&[]);
    console.until_at_rest().await;
    let seen = scene.seen();
    let count = |line: &str| seen.iter().filter(|seen| *seen == line).count();
    for (object, n) in [("a", 1), ("b", 0)] {
        assert_eq!(count(&format!("begin {object} {n}")), 3, "{seen:?}");
        assert_eq!(count(&format!("step {object} charge")), 1, "{seen:?}");
    }
    assert_eq!(count("begin a 2"), 1, "{seen:?}");
    console.check().await;
}

/// Wrong effects fail their event, with the reason. The other events are not concerned.
#[tokio::test]
async fn wrong_effects_fail_the_event_and_say_why() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let cases = [
        (
            json!({"emit": [{"object": "", "event": 1}]}),
            "the answer has a wrong emit[0]: an object name must not be empty",
        ),
        (
            json!({"emit": [{"object": "b"}]}),
            "the answer is not valid: missing field `event`",
        ),
        (
            json!({"schedule": [{"object": "b", "event": 1}]}),
            "the answer has a wrong schedule[0]: it needs either at_ms or after_ms",
        ),
        (
            json!({"schedule": [{"object": "b", "event": 1, "after_ms": 1, "key": ""}]}),
            "the answer has a wrong schedule[0]: a key must not be empty",
        ),
        (
            json!({"cancel": [{"object": "b", "key": "\n"}]}),
            "the answer has a wrong cancel[0]: a key has no control characters, this one has U+000A at byte 0",
        ),
        (
            json!({"result": "x".repeat(70_000)}),
            "the answer has a wrong result: the result has 70002 bytes of JSON, the limit is 65536",
        ),
        (
            json!({"emit": vec![json!({"object": "b", "event": 1}); 1001]}),
            "the answer has a wrong emit[1000]: the handlers of one event emit at most 1000 events",
        ),
    ];
    for (n, (effects, _)) in cases.iter().enumerate() {
        console
            .emit(&format!("a:{n}"), event(0, json!({ "effects": effects })))
            .await;
    }
    let worker = scene.worker(&["--retry", "fixed:10ms,attempts=1,then=dead-letter"]);
    console.until_at_rest().await;
    let dead = console.dead().await;
    assert_eq!(dead.len(), cases.len());
    for (n, (_, why)) in cases.iter().enumerate() {
        let object = format!("a:{n}");
        let field = |row: &[(String, Vec<u8>)], name: &str| {
            let found = row.iter().find(|(field, _)| field == name);
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let row = dead
            .iter()
            .find(|row| field(row, "object").as_deref() == Some(&object));
        let error = row.and_then(|row| field(row, "error")).unwrap_or_default();
        assert!(error.starts_with(why), "{n}: {error:?}");
    }
    drop(worker);
    console.check().await;
}

/// Story: the program kills its worker between its answer and the commit, again and again. Each event
/// that it has emitted is there exactly once.
#[tokio::test]
async fn an_emit_is_there_once_whenever_the_worker_is_killed() {
    let scene = Scene::new().await;
    let kills =
        std::env::var("SERIATIM_KILLS").map_or(12, |kills| kills.parse().expect("a number"));
    let console = &scene.console;
    let events = (0..kills).map(|n| {
        let emit = json!({"object": "out", "event": {"n": n, "kill": true}});
        event(n, json!({"effects": {"emit": [emit]}}))
    });
    console.emit_all("a", events).await;
    // The emitted events stay in the queue, because another worker owns their object.
    console.add("SET out:event.worker other.0").await;
    let worker = || scene.worker(&["--crashes-max", "100"]);
    let running = Mutex::new(worker());
    let last = u64::from(kills);
    until(
        "all events are over",
        PATIENCE * 3.max(kills / 10),
        async || {
            if let Ok(mut running) = running.lock()
                && running.has_ended()
            {
                *running = worker();
            }
            (console.last_id("a").await == last && console.owner("a").await.is_none()).then_some(())
        },
    )
    .await;
    drop(running);
    let queued = console.queue("out").await;
    let mut numbers: Vec<u64> = queued
        .iter()
        .map(|text| {
            serde_json::from_str::<Value>(text).expect("JSON")["n"]
                .as_u64()
                .expect("n")
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..u64::from(kills)).collect::<Vec<_>>());
}

/// A worker with the sink `stdio`, whose parent is this test.
struct Parent {
    worker: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    log: PathBuf,
}

impl Parent {
    fn start(scene: &Scene, options: &[&str]) -> Self {
        let log = scene.path("log");
        let mut worker = Command::new(crate::support::program())
            .args([
                "--redis",
                scene.redis.url(),
                "--namespace",
                scene.redis.namespace(),
            ])
            .args([
                "worker",
                "--name",
                "w",
                "--sink",
                "stdio",
                "--concurrency",
                "4",
            ])
            .args(options)
            .env("SERIATIM_FIRST_ID", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("the program starts");
        let output = BufReader::new(worker.stdout.take().expect("an output"));
        let input = worker.stdin.take();
        Self {
            worker,
            input,
            output,
            log,
        }
    }

    /// Says hello, and reads that of the worker.
    fn greet(&mut self) {
        self.write(r#"{"type":"hello","protocol":1,"concurrency":4}"#);
        let hello = self.read();
        assert_eq!(
            (&hello["type"], &hello["protocol"]),
            (&json!("hello"), &json!(1))
        );
    }

    fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is open");
        input
            .write_all(format!("{line}\n").as_bytes())
            .expect("written");
    }

    /// Returns the next line of the worker; null at the end of its output.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_default()
    }

    fn answer(&mut self, batch: &Value, word: &str) {
        let id = &batch["events"]
            .as_array()
            .and_then(|events| events.last())
            .expect("events")["id"];
        self.write(&json!({"type": word, "batch": batch["batch"], "id": id}).to_string());
    }

    /// Waits for the end of the worker. Returns its exit code, and the last line of its log.
    fn ended(mut self) -> (Option<i32>, String) {
        let status = self.worker.wait().expect("it ends");
        let log = std::fs::read_to_string(&self.log).expect("a log");
        (
            status.code(),
            log.lines().last().unwrap_or_default().to_owned(),
        )
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// `bye` is a graceful stop: the batch in hand is finished, the next event stays in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_says_bye_finishes_what_it_has() {
    let scene = Scene::new().await;
    let console = &scene.console;
    console.emit("a", r#"{"n":1}"#).await;
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    let batch = parent.read();
    assert_eq!(
        batch["events"],
        json!([{"id": 1, "prev": 0, "object": "a", "event": {"n": 1}}])
    );
    assert!(
        batch["token"]
            .as_str()
            .is_some_and(|token| token.len() == 36),
        "{batch}"
    );
    parent.write(r#"{"type":"bye"}"#);
    console.emit("a", r#"{"n":2}"#).await;
    parent.answer(&batch, "ok");
    assert_eq!(parent.read()["type"], "stop");
    assert_eq!(parent.read(), Value::Null);
    let (code, log) = parent.ended();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(console.last_id("a").await, 1);
    assert_eq!(console.queue("a").await, [r#"{"n":2}"#]);
    assert_ne!(console.owner("a").await.as_deref(), Some("w.0"));
    console.check().await;
}

/// Starts its worker, takes two batches at a time, and never answers.
const SILENT_PARENT: &str = r#"
import subprocess, sys
worker = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdin.write(b'{"type":"hello","protocol":1,"concurrency":2}\n')
worker.stdin.flush()
for line in worker.stdout:
    print(line.decode(), end="", flush=True)
"#;

/// Story: each death of a program that starts its worker charged all events of the worker. So objects
/// that no handler had begun waited for an operator together with the one that killed the program.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_a_dead_parent_had_counts_a_crash() {
    let scene = Scene::new().await;
    let console = &scene.console;
    let objects = ["a", "b", "c"];
    for object in objects {
        console.emit(object, "1").await;
    }
    let parent = ["python3", "-c", SILENT_PARENT];
    let mut dead = Process::start_parent(&scene.redis, &parent, "w", &["--concurrency", "4"]);
    let mut lines = BufReader::new(dead.stdout()).lines();
    let mut begun = Vec::new();
    while begun.len() < 2 {
        let line = lines.next().expect("a line").expect("UTF-8");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        begun.extend(line["events"][0]["object"].as_str().map(str::to_owned));
    }
    let are_owned = async |wanted: bool| {
        for object in objects {
            let owner = console.owner(object).await;
            if owner.is_some_and(|owner| owner.starts_with("w.")) != wanted {
                return None;
            }
        }
        Some(())
    };
    until("all are claimed", PATIENCE, async || are_owned(true).await).await;
    dead.kill();
    until("all are given back", PATIENCE, async || {
        are_owned(false).await
    })
    .await;
    dead.until_logged("the program has died: standard input ended without `bye`")
        .await;
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    for _ in objects {
        let batch = parent.read();
        let object = batch["events"][0]["object"].as_str().expect("an object");
        let crashes = usize::from(begun.iter().any(|one| one == object));
        assert_eq!(batch["crashes"], json!(crashes), "{batch}");
        parent.answer(&batch, "ok");
    }
    console.until_at_rest().await;
}

/// A parent that closes the input without `bye` and lives on, or breaks the protocol, is a crash of the
/// worker: it ends at once, and keeps its name and the event. The next start under the same name goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_dies_or_errs_is_a_crash() {
    let scene = Scene::new().await;
    let console = &scene.console;
    console.emit("a", "1").await;
    let broke =
        "seriatim: --sink stdio: the program at standard input and output broke the protocol: ";
    let ends: [(Option<&str>, String); 4] = [
        (
            None,
            "seriatim: --sink stdio: the program has died: standard input ended without `bye`"
                .to_owned(),
        ),
        (
            Some("Traceback"),
            format!("{broke}the line \"Traceback\" is not of the protocol: it is no JSON object"),
        ),
        (
            Some(r#"{"type":"ok","batch":1,"id":9}"#),
            format!("{broke}it answered event 9, which is not open in batch 1"),
        ),
        (
            Some(""),
            format!("{broke}it did not give up event 1 within 5s"),
        ),
    ];
    for (crashes, (line, why)) in ends.into_iter().enumerate() {
        let mut parent = Parent::start(&scene, &["--exec-timeout", "10ms"]);
        parent.greet();
        let batch = parent.read();
        assert_eq!(
            (&batch["events"][0]["id"], &batch["crashes"]),
            (&json!(1), &json!(crashes))
        );
        match line {
            None => parent.input = None,
            // It says nothing more.
            Some("") => assert_eq!(parent.read()["type"], "cancel"),
            Some(line) => parent.write(line),
        }
        assert_eq!(parent.ended(), (Some(1), why));
        assert_eq!(console.owner("a").await.as_deref(), Some("w.0"));
    }
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    let batch = parent.read();
    assert_eq!(batch["crashes"], json!(4));
    parent.answer(&batch, "ok");
    console.until_at_rest().await;
}

/// Story: a parent that crashed at its start, again and again, took events with it that it never had. After
/// some starts their objects waited for an operator.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_without_a_hello_takes_no_events() {
    let scene = Scene::new().await;
    let console = &scene.console;
    console.emit("a", "1").await;
    for _ in 0..3 {
        let mut parent = Parent::start(&scene, &["--crashes-max", "1"]);
        assert_eq!(parent.read()["type"], "hello");
        parent.input = None;
        assert_eq!(parent.ended().0, Some(1));
    }
    assert_eq!(console.owner("a").await, None);
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    let batch = parent.read();
    assert_eq!(batch["crashes"], json!(0));
    parent.answer(&batch, "ok");
    console.until_at_rest().await;
}

/// Says hello, and dies.
const SHORT_PARENT: &str = r#"
import subprocess, sys
worker = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdin.write(b'{"type":"hello","protocol":1,"concurrency":2}\n')
"#;

/// Story: the worker of a parent that died right after its hello claimed events while it looked whether
/// the parent lives, and charged them.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_dies_after_its_hello_takes_no_events() {
    let scene = Scene::new().await;
    let console = &scene.console;
    for n in 0..20 {
        console.emit(&format!("a{n}"), "1").await;
    }
    let parent = ["python3", "-c", SHORT_PARENT];
    for _ in 0..3 {
        let dead = Process::start_parent(&scene.redis, &parent, "w", &["--crashes-max", "1"]);
        dead.until_logged("the program has died: standard input ended without `bye`")
            .await;
    }
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    for _ in 0..20 {
        let batch = parent.read();
        assert_eq!(batch["crashes"], json!(0), "{batch}");
        parent.answer(&batch, "ok");
    }
    console.until_at_rest().await;
}

/// Story: SIGTERM counted as the second signal if the parent had said `bye` or had died. So the worker
/// dropped the events in hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_after_bye_lets_the_parent_finish() {
    let scene = Scene::new().await;
    let console = &scene.console;
    console.emit("a", "1").await;
    let mut parent = Parent::start(&scene, &[]);
    parent.greet();
    let batch = parent.read();
    parent.write(r#"{"type":"bye"}"#);
    // The reply shows that the worker has read the line before.
    let step =
        json!({"type": "once", "batch": batch["batch"], "id": 1, "name": "step", "value": 1});
    parent.write(&step.to_string());
    assert_eq!(parent.read()["name"], "step");
    kill_process(Pid::from_child(&parent.worker), Signal::TERM).expect("it runs");
    until("the signal is seen", PATIENCE, async || {
        let log = std::fs::read_to_string(&parent.log).expect("a log");
        log.contains("a second signal stops at once").then_some(())
    })
    .await;
    parent.answer(&batch, "ok");
    let (code, log) = parent.ended();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(console.last_id("a").await, 1);
    console.check().await;
}

/// A parent that dies before its hello, or that is a terminal, is told so.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_parent_is_refused() {
    let scene = Scene::new().await;
    let mut parent = Parent::start(&scene, &[]);
    parent.input = None;
    let why = "seriatim: --sink stdio: standard input ended without a hello";
    assert_eq!(parent.ended(), (Some(1), why.to_owned()));
    let mut parent = Parent::start(&scene, &[]);
    parent.write(r#"{"type":"hello","protocol":2}"#);
    let (code, log) = parent.ended();
    assert_eq!(code, Some(1));
    assert!(log.ends_with("it speaks version 2 of the protocol, and this worker speaks version 1; update the older one"), "{log}");
    let line = format!(
        "'{}' --redis {} worker --sink stdio",
        crate::support::program().display(),
        scene.redis.url()
    );
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output();
    let text = String::from_utf8(output.expect("a terminal").stdout).expect("UTF-8");
    assert!(
        text.contains("seriatim: --sink: standard input and output must be pipes"),
        "{text}"
    );
}
