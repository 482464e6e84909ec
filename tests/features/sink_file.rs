//! The sink `file:PATH` with real files: its lines, the removal of torn lines, refused files, and a
//! full disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rstest::rstest;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seriatim::consume::{Envelope, Gate, Start, Verdict};
use seriatim::event::ObjectName;
use seriatim::sink::{Batch, Context, Delivered, File, Sink, SinkError, Stop};

use crate::support::assert_matches;

/// The environment variable that tells a child test process its file.
const CHILD_FILE: &str = "SERIATIM_TEST_SINK_FILE";

fn batch(object: &str, first: u64, prev: u64, payloads: &[&str]) -> Batch {
    let payloads = payloads
        .iter()
        .map(|payload| Bytes::copy_from_slice(payload.as_bytes()))
        .collect();
    Batch::new(
        ObjectName::new(object).expect("a name"),
        first,
        prev,
        payloads,
    )
}

async fn deliver(sink: &File, batch: &Batch) -> Delivered {
    sink.deliver(batch, &Context::detached()).await
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the file")
}

fn line(id: u64) -> String {
    format!("{{\"id\":{id},\"prev\":0,\"object\":\"o\",\"event\":{{}}}}\n")
}

/// Runs one test of this file in a process of its own. The shell first runs the text `shell`.
fn child(test: &str, shell: &str, file: &Path) -> Output {
    Command::new("sh")
        .arg("-c")
        .arg(format!(
            "{shell} exec \"$0\" --exact sink_file::{test} --nocapture"
        ))
        .arg(std::env::current_exe().expect("this program"))
        .env(CHILD_FILE, file)
        .output()
        .expect("sh runs")
}

#[track_caller]
fn passed(output: &Output) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{:?}: {text}",
        output.status
    );
}

#[tokio::test]
async fn each_event_is_one_line_exactly() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let sink = File::open(&path).expect("opens");
    assert_eq!(
        deliver(
            &sink,
            &batch("work:\"1\"", 12, 7, &["{\"a\":\r\n 1}", "[ 2 ]"])
        )
        .await,
        Delivered::all()
    );
    // A delivered event is in the file at once, although the sink is not closed or dropped yet.
    let expected = "{\"id\":12,\"prev\":7,\"object\":\"work:\\\"1\\\"\",\"event\":{\"a\":   1}}\n\
                    {\"id\":13,\"prev\":12,\"object\":\"work:\\\"1\\\"\",\"event\":[ 2 ]}\n";
    assert_eq!(read(&path), expected);
    assert_eq!(
        deliver(&sink, &batch("é", 14, 0, &["null"])).await,
        Delivered::all()
    );
    assert_eq!(
        read(&path),
        expected.to_owned() + "{\"id\":14,\"prev\":0,\"object\":\"é\",\"event\":null}\n"
    );
    let mode = fs::metadata(&path).expect("the file").permissions().mode();
    assert_eq!(mode & 0o133, 0, "{mode:o} lets others write or run it");
}

#[rstest]
#[case("", "", "")]
#[case("{\"id\":1}\n", "", "{\"id\":1}\n")]
#[case("{\"id\":1}\n", "{\"id\":2,\"prev\":1,\"obj", "{\"id\":1}\n")]
#[case("{\"id\":1}\n", "{", "{\"id\":1}\n")]
#[case("", "{\"id\":2", "")]
#[case("{\"id\":1}\n", "\0\0\0", "{\"id\":1}\n")]
#[tokio::test]
async fn a_torn_last_line_is_cut(#[case] whole: &str, #[case] torn: &str, #[case] kept: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    fs::write(&path, whole.to_owned() + torn).expect("written");
    let sink = File::open(&path).expect("opens");
    assert_eq!(read(&path), kept);
    assert_eq!(
        deliver(&sink, &batch("o", 2, 0, &["{}"])).await,
        Delivered::all()
    );
    assert_eq!(read(&path), kept.to_owned() + &line(2));
}

#[test]
fn a_torn_line_longer_than_a_block_is_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    fs::write(
        &path,
        line(1) + "{\"id\":2,\"event\":\"" + &"x".repeat(300_000),
    )
    .expect("written");
    drop(File::open(&path).expect("opens"));
    assert_eq!(read(&path), line(1));
}

#[rstest]
#[case("a text that somebody forgot to end")]
#[case("{\"id\":1}\n{\"settings\":true}")]
#[case("{}")]
fn a_file_that_is_not_ours_is_not_cut(#[case] content: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notes");
    fs::write(&path, content).expect("written");
    let error = File::open(&path).expect_err("refused");
    assert_matches!(error, SinkError::NotOurs { .. });
    assert_eq!(read(&path), content);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in [dir.path(), Path::new("/dev/full"), Path::new("/dev/null")] {
        let error = File::open(path).expect_err("refused");
        assert_matches!(error, SinkError::NotAFile { .. });
    }
    let missing = dir.path().join("no/such/out.ndjson");
    let error = File::open(&missing).expect_err("refused").to_string();
    let expected = format!(
        "cannot open {}: No such file or directory",
        missing.display()
    );
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_second_sink_is_refused_and_the_file_is_free_again_after_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let first = File::open(&path).expect("opens");
    let error = File::open(&path).expect_err("locked");
    let expected = format!(
        "{} is locked by another worker process; stop it, or give each process a file of its own",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    passed(&child("child_is_refused", "", &path));
    drop(first);
    drop(File::open(&path).expect("free again"));
}

/// The test above runs this test in a child process. In any other run it does nothing.
#[test]
fn child_is_refused() {
    let Some(path) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let error = File::open(path).expect_err("locked");
    assert_matches!(error, SinkError::Locked { .. });
}

/// A limit on the size of files simulates a full disk: one part of a write succeeds, and the rest
/// fails.
#[test]
fn a_full_disk_makes_the_sink_unavailable_and_cuts_the_partial_write() {
    let dir = tempfile::tempdir().expect("a directory");
    // Ignores the signal SIGXFSZ of the limit, which would end the process.
    passed(&child(
        "child_with_a_full_disk",
        "trap '' XFSZ;",
        &dir.path().join("out.ndjson"),
    ));
}

/// The test above runs this test in a child process, because the limit applies to a whole process.
#[tokio::test]
async fn child_with_a_full_disk() {
    let Some(path) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let path = Path::new(&path);
    let sink = Arc::new(File::open(path).expect("opens"));
    let before = getrlimit(Resource::Fsize);
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: Some(10_000),
            maximum: before.maximum,
        },
    )
    .expect("a lower limit");

    assert_eq!(
        deliver(&sink, &batch("o", 1, 0, &["{}"])).await,
        Delivered::all()
    );
    let large = format!("\"{}\"", "x".repeat(20_000));
    for _ in 0..3 {
        let delivered = deliver(&sink, &batch("large", 2, 0, &["1", &large])).await;
        assert_eq!(delivered.count(2), 0);
        let Some(Stop::Unavailable { error }) = delivered.stop() else {
            panic!("{delivered:?}")
        };
        let expected = format!("cannot write to {}: File too large", path.display());
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(read(path), line(1));
    }
    // Events that still fit below the limit are delivered.
    assert_eq!(
        deliver(&sink, &batch("o", 4, 0, &["{}"])).await,
        Delivered::all()
    );
    setrlimit(Resource::Fsize, before).expect("the old limit");
    assert_eq!(
        deliver(&sink, &batch("large", 2, 0, &["1", &large])).await,
        Delivered::all()
    );
    let text = read(path);
    assert!(
        text.starts_with(&(line(1) + &line(4))),
        "{:?}",
        &text[..200]
    );
    assert_eq!(text.lines().count(), 4);
}

#[rstest]
#[case::renamed(true)]
#[case::deleted(false)]
#[tokio::test]
async fn a_file_that_is_taken_away_is_opened_anew(#[case] renamed: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, old) = (dir.path().join("out.ndjson"), dir.path().join("old.ndjson"));
    let sink = File::open(&path).expect("opens");
    assert_eq!(
        deliver(&sink, &batch("o", 1, 0, &["{}"])).await,
        Delivered::all()
    );
    if renamed {
        fs::rename(&path, &old).expect("renamed");
    } else {
        fs::remove_file(&path).expect("deleted");
    }
    assert_eq!(
        deliver(&sink, &batch("o", 2, 0, &["{}"])).await,
        Delivered::all()
    );
    assert_eq!(read(&path), line(2));
    assert!(!renamed || read(&old) == line(1));
    assert_matches!(
        File::open(&path),
        Err(SinkError::Locked { .. }),
        "the new file is not locked"
    );
}

#[tokio::test]
async fn a_file_that_is_emptied_goes_on_at_its_beginning() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let sink = File::open(&path).expect("opens");
    assert_eq!(
        deliver(&sink, &batch("o", 1, 0, &["{}"])).await,
        Delivered::all()
    );
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opens")
        .set_len(0)
        .expect("emptied");
    assert_eq!(
        deliver(&sink, &batch("o", 2, 0, &["{}"])).await,
        Delivered::all()
    );
    assert_eq!(read(&path), line(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_slots_at_once_never_interleave_and_each_object_keeps_its_order() {
    const SLOTS: u64 = 64;
    const BATCHES: u64 = 40;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let sink = Arc::new(File::open(&path).expect("opens"));
    let slots: Vec<_> = (0..SLOTS)
        .map(|slot| {
            let sink = sink.clone();
            tokio::spawn(async move {
                let payload = format!("\"{}\"", "x".repeat(slot as usize * 50));
                let mut last = 0;
                for n in 0..BATCHES {
                    let first = 1 + n * 1000 + slot;
                    let batch = batch(
                        &format!("o:{slot}"),
                        first,
                        last,
                        &[&payload, "1", &payload],
                    );
                    assert_eq!(deliver(&sink, &batch).await, Delivered::all());
                    last = first + 2;
                }
            })
        })
        .collect();
    for slot in slots {
        slot.await.expect("the slot");
    }
    let text = read(&path);
    assert_eq!(text.lines().count() as u64, SLOTS * BATCHES * 3);
    let mut gate = Gate::new(Start::Origin);
    for line in text.lines() {
        let envelope = Envelope::parse(line.as_bytes()).expect("a whole line");
        let verdict = gate
            .check(&envelope.object, envelope.id, envelope.prev)
            .await
            .expect("sound");
        assert_eq!(verdict, Verdict::Apply, "{line}");
        gate.applied(&envelope.object, envelope.id, envelope.prev)
            .await
            .expect("the next one");
    }
}

#[tokio::test]
async fn a_dropped_delivery_leaves_whole_lines_and_a_working_sink() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let sink = File::open(&path).expect("opens");
    for id in 1..=100 {
        let dropped = batch("dropped", id, id - 1, &["{}"]);
        let mut delivery = std::pin::pin!(deliver(&sink, &dropped));
        // Polls the delivery once, so that it has begun. Then it is dropped.
        let _ = futures_util::poll!(&mut delivery);
    }
    assert_eq!(
        deliver(&sink, &batch("o", 1, 0, &["{}"])).await,
        Delivered::all()
    );
    let text = read(&path);
    assert!(text.ends_with(&line(1)));
    let mut last = 0;
    for line in text.lines() {
        let envelope = Envelope::parse(line.as_bytes()).expect("a whole line");
        if envelope.object == "dropped" {
            assert!(envelope.id > last, "out of order: {line}");
            last = envelope.id;
        }
    }
}

/// The lock of a killed process may exist for a moment after its death. `File::open` waits for its
/// end.
#[test]
fn a_killed_process_leaves_a_file_that_opens() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.ndjson");
    let mut holder = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "sink_file::child_holds_the_file", "--nocapture"])
        .env(CHILD_FILE, &path)
        .spawn()
        .expect("starts");
    let ready = || async { (fs::metadata(&path).ok()?.len() > 0).then_some(()) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(crate::support::until(
        "the child has written",
        Duration::from_secs(20),
        ready,
    ));
    assert_matches!(File::open(&path), Err(SinkError::Locked { .. }));
    holder.kill().expect("SIGKILL");
    let sink = File::open(&path).expect("opens");
    holder.wait().expect("it ends");
    assert_eq!(
        runtime.block_on(deliver(&sink, &batch("o", 2, 0, &["{}"]))),
        Delivered::all()
    );
    assert_eq!(read(&path), line(1) + &line(2));
}

/// The test above runs this test in a child process, and kills it.
#[tokio::test]
async fn child_holds_the_file() {
    let Some(path) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let sink = File::open(path).expect("opens");
    assert_eq!(
        deliver(&sink, &batch("o", 1, 0, &["{}"])).await,
        Delivered::all()
    );
    // The parent kills this process. The time limit is needed only if the parent has died.
    tokio::time::sleep(Duration::from_secs(60)).await;
}
