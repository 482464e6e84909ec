//! The sink `stdout` with a real pipe: a slow reader, and a reader that closes the pipe.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use seriatim::consume::Envelope;
use seriatim::event::ObjectName;
use seriatim::sink::{self, Batch, Context, Delivered, Sink as _, Stop};

use crate::support::assert_matches;

/// The environment variable that tells a child process how many events to write.
const CHILD: &str = "SERIATIM_TEST_SINK_STDOUT";

fn start(events: u64) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "sink_stdout::child_writes", "--nocapture"])
        .env(CHILD, events.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// The tests below run this test in a child process, and read its standard output.
#[tokio::test]
async fn child_writes() {
    let Ok(events) = std::env::var(CHILD) else {
        return;
    };
    let events: u64 = events.parse().expect("a number");
    let sink = sink::stdout().expect("opens");
    let mut last = 0;
    while last < events {
        let payloads = vec![format!("\"{}\"", "x".repeat(1000)).into(), "1".into()];
        let batch = Batch::new(
            ObjectName::new("work:1").expect("a name"),
            last + 1,
            last,
            payloads,
        );
        let delivered = sink.deliver(&batch, &Context::detached()).await;
        if delivered != Delivered::all() {
            assert_eq!(delivered.count(2), 0);
            assert_matches!(
                delivered.stop(),
                Some(Stop::Unavailable { .. }),
                "{delivered:?}"
            );
            assert!(sink.closed().is_cancelled());
            eprintln!("closed");
            return;
        }
        assert!(!sink.closed().is_cancelled());
        last += 2;
    }
}

#[test]
fn lines_reach_the_reader_whole_and_in_order() {
    let mut child = start(2000);
    let out = child.stdout.take().expect("a pipe");
    let mut next = 1;
    // The test program also prints to standard output: between the lines of the sink, never inside
    // one.
    for line in BufReader::new(out).lines().map(|line| line.expect("text")) {
        let Some(at) = line.find("{\"id\"") else {
            continue;
        };
        let envelope = Envelope::parse(&line.as_bytes()[at..]).expect("a whole line");
        assert_eq!((envelope.id, envelope.prev), (next, next - 1));
        next += 1;
    }
    assert_eq!(next, 2001);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_reader_that_leaves_makes_the_sink_unavailable_and_closes_it() {
    let mut child = start(u64::MAX);
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("\"id\":3,") {
        line.clear();
        assert!(
            out.read_line(&mut line).expect("text") > 0,
            "it ended early"
        );
    }
    drop(out);
    let mut message = String::new();
    child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut message)
        .expect("text");
    child.wait().expect("it ends");
    assert!(message.contains("closed"), "{message}");
}
