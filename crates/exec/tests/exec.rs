//! The sink `exec` with real programs: shell scripts that speak the protocol, or break it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rstest::rstest;
use seriatim::event::ObjectName;
use seriatim::sink::{Batch, Context, Delivered, Sink as _, Stop};
use seriatim_exec::{Exec, ExecError, Options};

/// The longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(40);
const MS: fn(u64) -> Duration = Duration::from_millis;

/// The functions of every script: `hello N` begins with the concurrency N, `member NAME` prints a
/// member of the line that was read, and `say TYPE ID [MEMBER]` answers an event of its batch.
const FUNCTIONS: &str = r#"
hello() { echo "{\"type\":\"hello\",\"protocol\":1,\"concurrency\":$1}"; }
member() { rest=${line#*\"$1\":}; rest=${rest%%[,\}]*}; echo "${rest#\"}" | tr -d '"'; }
say() { echo "{\"type\":\"$1\",\"batch\":$(member batch),\"id\":$2$3}"; }
is() { case $line in *"\"type\":\"$1\""*) return 0;; esac; return 1; }
read -r line
"#;

fn options() -> Options {
    let mut options = Options::default();
    options.hello = PATIENCE;
    options
}

/// The sink, and the directory of its script.
struct Opened {
    exec: Exec,
    _dir: tempfile::TempDir,
}

impl std::ops::Deref for Opened {
    type Target = Exec;

    fn deref(&self) -> &Exec {
        &self.exec
    }
}

/// Starts programs that run this script of the shell.
fn open_with(script: &str, options: Options) -> Opened {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("program");
    std::fs::write(&path, format!("{FUNCTIONS}{script}")).expect("written");
    let command = format!("sh '{}'", path.display());
    let exec = Exec::open(command.parse().expect("a command"), options).expect("started");
    Opened { exec, _dir: dir }
}

fn open(script: &str) -> Opened {
    open_with(script, options())
}

fn batch(object: &str, first: u64, events: usize) -> Batch {
    let object = ObjectName::new(object).expect("a name");
    Batch::new(
        object,
        first,
        0,
        vec![Bytes::from_static(b"{\"n\":1}"); events],
    )
}

fn context(crashes: u32) -> Context {
    let mut cx = Context::detached();
    cx.crashes = crashes;
    cx
}

async fn deliver(exec: &Exec, batch: &Batch, crashes: u32) -> Delivered {
    let cx = context(crashes);
    tokio::time::timeout(PATIENCE, exec.deliver(batch, &cx))
        .await
        .expect("a result in time")
}

/// Returns the number of delivered events and the text of the stop.
async fn outcome(exec: &Exec, events: usize) -> (usize, String) {
    let delivered = deliver(exec, &batch("o", 1, events), 0).await;
    let stop = delivered
        .stop()
        .map_or_else(String::new, |stop| format!("{stop:?}"));
    (delivered.count(events), stop)
}

/// A program that delivers all events.
const DELIVERS: &str = r#"
hello 8
while read -r line; do is batch && say ok "$(member id)"; done
"#;

#[tokio::test]
async fn a_program_delivers_batches_and_ends_with_the_sink() {
    let exec = open(DELIVERS);
    for first in 1..20 {
        assert_eq!(
            deliver(&exec, &batch("o", first, 1), 0).await,
            Delivered::all()
        );
    }
    assert_eq!(exec.name(), "exec:sh …");
    let began = Instant::now();
    exec.close().await;
    assert!(
        began.elapsed() < Options::default().stop,
        "it had to be killed"
    );
    let closed = deliver(&exec, &batch("o", 1, 1), 0).await;
    assert_eq!(
        closed,
        Delivered::stopped(0, Stop::unavailable("the sink is closed"))
    );
}

/// One result may stand for all events up to it. Every other result stands for its event alone.
#[rstest]
#[case("ok 3", 3, "")]
#[case("ok 1; say ok 3", 3, "")]
#[case(
    "ok 2; say rejected 3 ',\"error\":\"bad\"'",
    2,
    "Rejected { error: \"bad\" }"
)]
#[case(
    "transient 1 ',\"error\":\"x\",\"retry_after_ms\":5'",
    0,
    "Transient { error: \"x\", retry_after: Some(5ms) }"
)]
#[case(
    "postponed 1 ',\"error\":\"x\",\"after_ms\":7'",
    0,
    "Postponed { reason: \"x\", after: 7ms }"
)]
#[case("ok 1 ',\"emit\":[]'", 1, "")]
#[case("ok 2 ',\"result\":null'", 2, "")]
#[case(
    "ok 3 ',\"emit\":[{\"obj\":1}]'",
    2,
    "Transient { error: \"the answer is not valid: unknown field `obj`, expected `object` or `event` at line 1 column 15\", retry_after: None }"
)]
#[case("unknown 1 ',\"error\":\"x\"'", 0, "Unknown { error: \"x\" }")]
#[case("unavailable 1 ',\"error\":\"x\"'", 0, "Unavailable { error: \"x\" }")]
#[case(
    "cancelled 1",
    0,
    "Transient { error: \"the program has given it up\", retry_after: None }"
)]
#[tokio::test]
async fn every_result_is_passed_on(#[case] says: &str, #[case] count: usize, #[case] stop: &str) {
    let exec = open(&format!("hello 1\nread -r line\nsay {says}\nread -r line"));
    assert_eq!(outcome(&exec, 3).await, (count, stop.to_owned()));
}

/// An answer that a program has written before its death counts. The next event counts the crash.
#[rstest]
#[case("kill -9 $$", 0, "the program ended (signal: 9 (SIGKILL))")]
#[case("say ok 1; say ok 2; exit 3", 2, "the program ended (exit status: 3)")]
#[case(
    "say ok 1; printf '{\"type\":\"ok\",'; exit 0",
    1,
    "the program ended (exit status: 0)"
)]
#[case(
    "say ok 1; exec >&-; sleep 100",
    1,
    "the program was killed: it closed its standard output"
)]
// A process that the program has started keeps the pipe open.
#[case(
    "sleep 100 & say ok 1; exit 4",
    1,
    "the program ended (exit status: 4)"
)]
#[case(
    "echo garbage",
    0,
    "the program was killed: the line \"garbage\" is not of the protocol"
)]
#[case(
    "say ok 1; say ok 1",
    1,
    "it answered event 1, which is not open in batch 1"
)]
#[case("say ok 9", 0, "it answered event 9, which is not open in batch 1")]
#[case("say transient 2", 0, "it answered event 2 of batch 1 before event 1")]
#[case(
    "echo '{\"type\":\"ok\",\"batch\":7,\"id\":1}'",
    0,
    "it answered batch 7, which it does not have"
)]
#[case("hello 1", 0, "it said hello twice")]
#[case("while :; do echo '{\"type\":\"bye\"}'; done", 0, "it said bye twice")]
#[case(
    "head -c 4200000 /dev/zero; sleep 100",
    0,
    "a line is longer than 4194304 bytes"
)]
#[tokio::test]
async fn a_program_that_dies_or_errs_counts_a_crash(
    #[case] acts: &str,
    #[case] count: usize,
    #[case] why: &str,
) {
    let exec = open(&format!("hello 1\nread -r line\n{acts}\nread -r line"));
    let (delivered, stop) = outcome(&exec, 3).await;
    assert_eq!(delivered, count, "{stop}");
    let (stop, why) = (stop.replace("\\\"", "\""), why.replace("\\\"", "\""));
    assert!(stop.starts_with("Crashed") && stop.contains(&why), "{stop}");
}

/// A program that never begins the protocol has begun no event.
#[rstest]
#[case("exit 7", "the program ended without a hello (exit status: 7)")]
#[case(
    "echo '{\"type\":\"hello\",\"protocol\":2}'; sleep 100",
    "it speaks version 2 of the protocol, and this worker speaks version 1"
)]
#[case("echo '{\"type\":\"bye\"}'; sleep 100", "its first line is no hello")]
#[case("sleep 100", "it said no hello within 300ms")]
#[tokio::test]
async fn a_program_that_says_no_hello_makes_the_sink_unavailable(
    #[case] acts: &str,
    #[case] why: &str,
) {
    let mut options = options();
    if acts == "sleep 100" {
        options.hello = MS(300);
    }
    let exec = open_with(acts, options);
    let (count, stop) = outcome(&exec, 1).await;
    assert_eq!(count, 0);
    assert!(
        stop.starts_with("Unavailable") && stop.contains(why),
        "{stop}"
    );
}

#[tokio::test]
async fn a_program_that_died_is_started_again() {
    let mark = tempfile::tempdir().expect("a directory");
    let exec = open(&format!(
        "cd '{}'; hello 1; read -r line; [ -e died ] || {{ touch died; exit 1; }}; say ok 1; read -r line",
        mark.path().display()
    ));
    assert!(matches!(outcome(&exec, 1).await, (0, stop) if stop.starts_with("Crashed")));
    assert_eq!(outcome(&exec, 1).await, (1, String::new()));
}

/// A program that says bye gets no further batch, and is no crash.
#[tokio::test]
async fn a_program_may_leave() {
    let exec = open(
        r#"hello 8; read -r line; echo '{"type":"bye"}'; say ok "$(member id)"; read -r line; exit 0"#,
    );
    for first in 1..4 {
        assert_eq!(
            deliver(&exec, &batch("o", first, 1), 0).await,
            Delivered::all()
        );
    }
}

/// If two suspects were in a program together, its death would count for both.
#[tokio::test]
async fn an_event_with_a_crash_is_alone_in_its_program() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let exec = Arc::new(open(&format!(
        r#"exec 9>>'{}'; hello 8
        while read -r line; do
            is batch || continue
            echo "begin $(member object)" >&9
            ( sleep 0.2; echo "end $(member object)" >&9; say ok 1 ) &
        done"#,
        log.path().display()
    )));
    let mut deliveries = tokio::task::JoinSet::new();
    for (object, crashes) in [("a", 0), ("b", 0), ("suspect", 1), ("c", 0), ("d", 0)] {
        let exec = Arc::clone(&exec);
        deliveries.spawn(async move { deliver(&exec, &batch(object, 1, 1), crashes).await });
        tokio::time::sleep(MS(20)).await;
    }
    for delivered in deliveries.join_all().await {
        assert_eq!(delivered, Delivered::all());
    }
    let log = std::fs::read_to_string(log.path()).expect("the log");
    let lines: Vec<&str> = log.lines().collect();
    let at = lines
        .iter()
        .position(|line| *line == "begin suspect")
        .expect("begun");
    assert_eq!(lines[at + 1], "end suspect", "{lines:?}");
    let open = |lines: &[&str]| {
        let count = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
        count("begin") - count("end")
    };
    assert_eq!(open(&lines[..at]), 0, "{lines:?}");
    // The others were in the program together.
    assert_eq!(
        (&lines[0][..5], &lines[1][..5]),
        ("begin", "begin"),
        "{lines:?}"
    );
}

/// After its time limit an event is given up, or its program is killed.
#[tokio::test]
async fn an_event_without_a_result_is_cancelled_and_then_its_program_is_killed() {
    let mut options = options();
    (options.timeout, options.cancel) = (MS(300), PATIENCE);
    let gives_up = "hello 1; while read -r line; do is cancel && say cancelled 1; done";
    let (count, stop) = outcome(&open_with(gives_up, options.clone()), 2).await;
    assert_eq!(
        (count, &*stop),
        (
            0,
            "Transient { error: \"no result within 300ms\", retry_after: None }"
        )
    );
    let ends = "hello 1; while read -r line; do is cancel && say ok 1; done";
    // The next event has the whole time again, and gets a cancel of its own batch.
    let (count, _) = outcome(&open_with(ends, options.clone()), 1).await;
    assert_eq!(count, 1);
    options.cancel = MS(100);
    let (count, stop) = outcome(&open_with("hello 1; read -r line; sleep 100", options), 2).await;
    assert_eq!(count, 0);
    assert!(
        stop.contains("it did not give up event 1 within 100ms"),
        "{stop}"
    );
}

/// The time limit is of each event, also after one that was late.
#[tokio::test]
async fn an_event_behind_a_late_one_has_the_whole_time() {
    let mut options = options();
    (options.timeout, options.cancel) = (MS(1000), MS(1000));
    // The program reads the question to give up event 1 after its result, and answers it.
    let exec = open_with(
        "hello 1; read -r line; sleep 1.5; say ok 1; sleep 0.8; say ok 2; read -r line; say cancelled 1; read -r line; say ok 3",
        options,
    );
    assert_eq!(outcome(&exec, 2).await, (2, String::new()));
    let next = deliver(&exec, &batch("o", 3, 1), 0).await;
    assert_eq!(next, Delivered::all());
}

/// If a program is killed because of one event, the events beside it count nothing.
#[tokio::test]
async fn only_the_event_that_takes_too_long_counts_a_crash() {
    let mut options = options();
    (options.timeout, options.cancel) = (MS(1500), MS(200));
    let exec = open_with("hello 2; read -r line; sleep 100", options);
    let (slow, other, cx) = (batch("slow", 1, 1), batch("other", 1, 1), context(0));
    let mut slow = Box::pin(exec.deliver(&slow, &cx));
    assert!(tokio::time::timeout(MS(1000), &mut slow).await.is_err());
    let (slow, other) = tokio::join!(slow, exec.deliver(&other, &cx));
    assert!(
        matches!(slow.stop(), Some(Stop::Crashed { .. })),
        "{slow:?}"
    );
    assert!(
        matches!(other.stop(), Some(Stop::Postponed { .. })),
        "{other:?}"
    );
}

#[tokio::test]
async fn a_program_that_closes_its_input_is_killed() {
    let exec = open("exec <&-; hello 2; sleep 100");
    let (count, stop) = outcome(&exec, 1).await;
    assert!(
        count == 0 && stop.contains("it closed its standard input"),
        "{stop}"
    );
}

/// A program may answer batches that it has not read. Then it gets no further batch, so that the unread
/// lines are bounded.
#[tokio::test]
async fn a_program_that_answers_without_reading_gets_no_further_batch() {
    let mut options = options();
    options.timeout = MS(300);
    let exec = open_with(
        r#"hello 1; n=1; while :; do echo "{\"type\":\"ok\",\"batch\":$n,\"id\":1}"; n=$((n+1)); sleep 0.05; done"#,
        options,
    );
    let event = Bytes::from(format!("\"{}\"", "x".repeat(1 << 20)));
    let mut stopped = None;
    for _ in 0..100 {
        let object = ObjectName::new("large").expect("a name");
        let large = Batch::new(object, 1, 0, vec![event.clone()]);
        let delivered = deliver(&exec, &large, 0).await;
        if let Some(stop) = delivered.stop() {
            stopped = Some(stop.clone());
            break;
        }
    }
    assert!(stopped.is_some(), "it was given more than 100 MB");
}

/// Deliveries are dropped if the worker has lost its lease. Another worker may then send their events,
/// so their program must not go on.
#[tokio::test]
async fn a_program_whose_events_were_given_up_is_killed() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let exec = open(&format!(
        r#"exec 9>>'{}'; hello 8
        while read -r line; do
            is batch || continue
            echo "begin $(member id)" >&9
            [ "$(member id)" = 2 ] || {{ sleep 100; echo over >&9; }}
            say ok "$(member id)"
        done"#,
        log.path().display()
    ));
    let read = || std::fs::read_to_string(log.path()).expect("the log");
    let (first, cx) = (batch("o", 1, 1), context(0));
    let mut dropped = Box::pin(exec.deliver(&first, &cx));
    while !read().contains("begin 1") {
        assert!(tokio::time::timeout(MS(10), &mut dropped).await.is_err());
    }
    drop(dropped);
    assert_eq!(deliver(&exec, &batch("o", 2, 1), 0).await, Delivered::all());
    assert_eq!(read(), "begin 1\nbegin 2\n");
}

/// As long as a program has other events, it is asked to give up a dropped one, and its object waits.
#[tokio::test]
async fn an_object_waits_until_its_dropped_event_is_over() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let exec = open(&format!(
        r#"exec 9>>'{}'; hello 8
        while read -r line; do
            if is cancel; then sleep 0.3; echo over >&9; say cancelled 1; fi
            if is batch; then
                echo "begin $(member object)" >&9
                [ "$(member id)" = 1 ] || say ok "$(member id)"
            fi
        done"#,
        log.path().display()
    ));
    let read = || std::fs::read_to_string(log.path()).expect("the log");
    let (first, other, cx) = (batch("o", 1, 1), batch("other", 1, 1), context(0));
    let mut others = Box::pin(exec.deliver(&other, &cx));
    let mut dropped = Box::pin(exec.deliver(&first, &cx));
    while read().lines().count() < 2 {
        assert!(tokio::time::timeout(MS(10), &mut others).await.is_err());
        assert!(tokio::time::timeout(MS(10), &mut dropped).await.is_err());
    }
    drop(dropped);
    assert_eq!(deliver(&exec, &batch("o", 2, 1), 0).await, Delivered::all());
    assert_eq!(read(), "begin other\nbegin o\nover\nbegin o\n");
    drop(others);
}

/// All events of an object go to the same program.
#[tokio::test]
async fn each_object_stays_with_one_program() {
    let mut options = options();
    options.children = 3;
    let exec = open_with(
        r#"hello 8; while read -r line; do say transient 1 ",\"error\":\"$$\""; done"#,
        options,
    );
    let mut programs = std::collections::HashSet::new();
    for object in 0..30 {
        let object = format!("o:{object}");
        let mut of_object = std::collections::HashSet::new();
        for _ in 0..2 {
            let delivered = deliver(&exec, &batch(&object, 1, 1), 0).await;
            of_object.insert(delivered.stop().expect("a stop").error().to_owned());
        }
        assert_eq!(of_object.len(), 1);
        programs.extend(of_object);
    }
    assert_eq!(programs.len(), 3);
}

/// A program that does not read blocks no other delivery for ever: it is killed after the limits.
#[tokio::test]
async fn a_program_that_reads_nothing_is_killed() {
    let mut options = options();
    (options.timeout, options.cancel) = (MS(200), MS(200));
    let exec = open_with("hello 4; sleep 100", options);
    let object = ObjectName::new("large").expect("a name");
    let event = Bytes::from(format!("\"{}\"", "x".repeat(1 << 20)));
    let large = Batch::new(object, 1, 0, vec![event]);
    let stop = deliver(&exec, &large, 0).await.stop().cloned();
    assert!(matches!(&stop, Some(Stop::Crashed { .. })), "{stop:?}");
}

/// No process of a program is left after the sink.
#[tokio::test]
async fn a_program_that_does_not_stop_is_killed_with_its_processes() {
    let mut options = options();
    options.stop = MS(200);
    let pids = tempfile::NamedTempFile::new().expect("a file");
    let exec = open_with(
        &format!(
            "trap '' TERM HUP; sleep 1000 & echo $! $$ > '{}'; hello 1; while :; do sleep 1; done",
            pids.path().display()
        ),
        options,
    );
    let _ = tokio::time::timeout(MS(500), exec.deliver(&batch("o", 1, 1), &context(0))).await;
    exec.close().await;
    let pids = std::fs::read_to_string(pids.path()).expect("the pids");
    let began = Instant::now();
    let is_alive = |pid: &str| {
        // A dead process whose parent has not asked for it yet is a zombie.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    };
    assert_eq!(pids.split_whitespace().count(), 2);
    while pids.split_whitespace().any(is_alive) {
        assert!(began.elapsed() < PATIENCE, "{pids}");
        tokio::time::sleep(MS(10)).await;
    }
}

#[tokio::test]
async fn what_cannot_be_started_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().display().to_string();
    for (command, why) in [
        ("/no/such/program", "No such file or directory"),
        ("/", "Permission denied"),
        (&file, "Permission denied"),
    ] {
        let command = command.parse().expect("a command");
        let Err(error) = Exec::open(command, Options::default()) else {
            panic!("it was started");
        };
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn settings_out_of_range_are_refused() {
    let refused = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        let opened = Exec::open("sh".parse().expect("a command"), options).err();
        assert!(matches!(&opened, Some(ExecError::Range { .. })));
        opened.map(|error| error.to_string())
    };
    assert_eq!(
        refused(|options| options.children = 0).as_deref(),
        Some("children is 0; it is 1 to 64")
    );
    refused(|options| options.children = 65);
    refused(|options| options.timeout = Duration::ZERO);
    refused(|options| options.cancel = Duration::from_secs(3601));
    refused(|options| options.hello = MS(9));
    refused(|options| options.stop = Duration::from_secs(3601));
}
