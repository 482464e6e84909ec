//! The sink `exec-each` with real processes.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rstest::rstest;
use seriatim::event::ObjectName;
use seriatim::sink::{Batch, Context, Delivered, Sink as _, Stop};
use seriatim_exec::{ExecEach, ExecError, Options};

/// The longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(40);
const MS: fn(u64) -> Duration = Duration::from_millis;

/// Returns the sink for this script of the shell. Its only argument is the directory.
fn open(script: &str, dir: &Path, options: Options) -> ExecEach {
    let path = dir.join("script");
    std::fs::write(&path, script).expect("written");
    let command = format!("sh '{}' '{}'", path.display(), dir.display());
    let command = command.parse().expect("a command");
    ExecEach::open(command, options).expect("a shell")
}

fn batch(events: &[&'static str]) -> Batch {
    let events = events
        .iter()
        .map(|event| Bytes::from_static(event.as_bytes()));
    let object = ObjectName::new("o").expect("a name");
    Batch::new(object, 7, 3, events.collect())
}

async fn deliver(sink: &ExecEach, events: &[&'static str]) -> Delivered {
    let (batch, cx) = (batch(events), Context::detached());
    let delivered = tokio::time::timeout(PATIENCE, sink.deliver(&batch, &cx));
    delivered.await.expect("a result in time")
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default()
}

#[tokio::test]
async fn each_event_has_a_process_of_its_own_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "cat >> \"$1/seen\"; echo $$ >> \"$1/pids\"";
    let sink = open(script, dir.path(), Options::default());
    assert_eq!(
        deliver(&sink, &["1", "{\"a\":\r\n2}"]).await,
        Delivered::all()
    );
    let lines = [
        "{\"id\":7,\"prev\":3,\"object\":\"o\",\"event\":1}\n",
        "{\"id\":8,\"prev\":7,\"object\":\"o\",\"event\":{\"a\":  2}}\n",
    ];
    assert_eq!(read(dir.path(), "seen"), lines.concat());
    let pids = read(dir.path(), "pids");
    let pids: Vec<_> = pids.lines().collect();
    assert!(pids.len() == 2 && pids[0] != pids[1], "{pids:?}");
    assert_eq!(sink.name(), "exec-each:sh …");
}

#[rstest]
#[case("exit 75", Stop::transient("exit status: 75"))]
#[case("echo away >&2; exit 69", Stop::unavailable("exit status: 69: away"))]
#[case(
    "echo no; echo bad >&2; echo 'card é' >&2; exit 1",
    Stop::rejected("exit status: 1: bad card é")
)]
#[case("kill -9 $$", Stop::crashed("signal: 9 (SIGKILL)"))]
#[case("exit 137", Stop::crashed("exit status: 137"))]
#[case("exec no-such-program 2>&-", Stop::unavailable("exit status: 127"))]
#[case("exec 0<&-; exit 3", Stop::rejected("exit status: 3"))]
#[tokio::test]
async fn the_end_of_the_process_is_the_result(#[case] script: &str, #[case] stop: Stop) {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("grep -q second || exit 0\n{script}");
    let sink = open(&script, dir.path(), Options::default());
    let delivered = deliver(&sink, &["\"first\"", "\"second\"", "\"third\""]).await;
    assert_eq!(delivered, Delivered::stopped(1, stop));
}

/// A long standard error is cut at its beginning, and a large event that nobody reads is no failure.
#[tokio::test]
async fn the_end_of_a_long_output_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1";
    let sink = open(script, dir.path(), Options::default());
    let large: &'static str = Box::leak(format!("\"{}\"", "x".repeat(1 << 19)).into_boxed_str());
    let delivered = deliver(&sink, &[large]).await;
    let Some(Stop::Rejected { error }) = delivered.stop() else {
        panic!("{delivered:?}");
    };
    assert!(
        error.ends_with("line 2998 line 2999") && error.len() < 1100,
        "{error}"
    );
}

/// A process that is late gets SIGTERM first. If it goes on, it is killed, with the processes that it has
/// started.
#[rstest]
#[case("trap 'echo done > $1/end; exit 0' TERM; sleep 100 & wait", "done\n")]
#[case(
    "trap '' TERM; sleep 100 & echo $! > $1/child; while :; do sleep 1; done",
    ""
)]
#[tokio::test]
async fn a_late_process_is_ended(#[case] script: &str, #[case] end: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = Options::default();
    (options.timeout, options.cancel) = (MS(700), MS(700));
    let sink = open(script, dir.path(), options);
    let began = Instant::now();
    let delivered = deliver(&sink, &["1"]).await;
    assert_eq!(
        delivered,
        Delivered::stopped(0, Stop::transient("no end within 700ms"))
    );
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(read(dir.path(), "end"), end);
    until_dead(read(dir.path(), "child").trim()).await;
}

/// A delivery that is dropped kills its process, and so does the end of a process with a child.
#[tokio::test]
async fn no_process_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "sleep 100 & echo $! > $1/child; grep -q wait && wait; exit 0";
    let sink = open(script, dir.path(), Options::default());
    assert_eq!(deliver(&sink, &["1"]).await, Delivered::all());
    until_dead(read(dir.path(), "child").trim()).await;
    std::fs::remove_file(dir.path().join("child")).expect("removed");
    let (batch, cx) = (batch(&["\"wait\""]), Context::detached());
    let began = async {
        while !read(dir.path(), "child").ends_with('\n') {
            tokio::time::sleep(MS(5)).await;
        }
    };
    tokio::select! {
        delivered = sink.deliver(&batch, &cx) => panic!("{delivered:?}"),
        began = tokio::time::timeout(PATIENCE, began) => began.expect("it begins"),
    }
    until_dead(read(dir.path(), "child").trim()).await;
}

/// Waits until no process has this number, or it is a zombie.
async fn until_dead(pid: &str) {
    let began = Instant::now();
    while !pid.is_empty() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{stat}");
        tokio::time::sleep(MS(5)).await;
    }
}

#[test]
fn what_cannot_be_started_is_refused() {
    let open = |text: &str| ExecEach::open(text.parse().expect("a command"), Options::default());
    let file = tempfile::NamedTempFile::new().expect("a file");
    for program in ["no-such-program", "/", &file.path().display().to_string()] {
        let error = open(program).expect_err("no program");
        assert!(
            matches!(&error, ExecError::Start { .. }),
            "{program}: {error}"
        );
    }
}
