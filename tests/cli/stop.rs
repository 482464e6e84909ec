//! A worker that stops under load.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::probes::{address, ask, until_status};
use crate::support::console::PATIENCE;
use crate::support::operator::Reads;
use crate::support::process::{Process, merged, sent_to};
use crate::support::{Redis, until};

const OBJECTS: usize = 50;
const EVENTS: usize = 1000;

/// Tests a SIGTERM while many deliveries are under way and the reader of the sink is slow. The
/// worker is not ready within a second. Each event is delivered once or still waits, and no object
/// has an attempt or a crash.
#[tokio::test]
async fn a_stop_under_load_loses_nothing_and_counts_no_attempt() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let console = redis.console().await;
    let objects: Vec<String> = (0..OBJECTS).map(|n| format!("work:{n}")).collect();
    for (n, object) in objects.iter().enumerate() {
        // 16 events fill the pipe, so that deliveries wait for the reader.
        let events = (0..EVENTS / OBJECTS).map(|m| format!("\"{n} {m} {}\"", "x".repeat(4000)));
        console.emit_all(object, events).await;
    }
    let options = [
        "--http",
        "127.0.0.1:0",
        "--concurrency",
        "16",
        "--batch",
        "4",
    ];
    let mut worker = Process::start(&redis, "w", "stdout", &options);
    let address = address(&worker).await;
    until_status(&address, "/readyz", 200).await;
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let (read, stdout, file) = (
        Arc::new(AtomicUsize::new(0)),
        worker.stdout(),
        first.clone(),
    );
    let counter = read.clone();
    let reader = std::thread::spawn(move || {
        let mut file = std::fs::File::create(file).expect("a file");
        for line in BufReader::new(stdout).split(b'\n') {
            file.write_all(&[&line.expect("a line")[..], b"\n"].concat())
                .expect("written");
            counter.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    until("200 events are read", PATIENCE, async || {
        (read.load(Ordering::Relaxed) >= 200).then_some(())
    })
    .await;
    worker.terminate();
    let since = Instant::now();
    until_status(&address, "/readyz", 503).await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(ask(&address, "/healthz").await.0, 200);
    let read_then = read.load(Ordering::Relaxed);
    assert!(worker.ended().await.success(), "{}", worker.log());
    reader.join().expect("it reads to the end");
    let delivered = sent_to(&first);
    assert!(
        delivered.len() > read_then,
        "deliveries were under way: {read_then} of {}",
        delivered.len()
    );
    assert_eq!(
        delivered
            .iter()
            .map(|sent| sent.id)
            .collect::<HashSet<_>>()
            .len(),
        delivered.len(),
        "none is there twice"
    );

    let (control, mut left) = (redis.control().await, 0);
    for object in &objects {
        let seen = control.inspection_of(object).await;
        assert_eq!(seen.events_in_flight, 0, "{object}: {}", seen.why);
        assert!(
            seen.tries
                .as_ref()
                .is_none_or(|tries| tries.attempts == 0 && tries.crashes == 0),
            "{object}: {:?}",
            seen.tries
        );
        left += seen.events_queued + seen.events_held;
    }
    println!(
        "not ready after {took:?}; {} delivered, {left} left",
        delivered.len()
    );
    assert!(left > 0, "the worker stopped under load");
    assert_eq!(
        delivered.len() + usize::try_from(left).expect("few"),
        EVENTS
    );
    assert!(console.dead().await.is_empty());
    console.check().await;

    // Another worker delivers the rest, and nothing that was delivered before.
    let sink = format!("file:{}", second.display());
    let _other = Process::start(&redis, "v", &sink, &[]);
    console.until_at_rest().await;
    let (all, rest) = (merged(&[first, second.clone()]), sent_to(&second).len());
    assert_eq!(
        (all.len(), all.values().map(Vec::len).sum::<usize>()),
        (OBJECTS, EVENTS)
    );
    assert_eq!(delivered.len() + rest, EVENTS, "nothing is delivered twice");
}
