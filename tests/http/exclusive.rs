//! Exclusive requests: no two requests of one object are open at a receiver that keeps its deadline.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim_http::{Allowed, EventUrl, Exclusive, Http, Options};
use tokio::time::{Instant, sleep};

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::{retry, sink};
use crate::support::Redis;
use crate::support::clock::Clock;
use crate::support::process::Process;
use crate::support::running::start;

/// The margin behind the time limit of a request.
const MARGIN: Duration = Duration::from_secs(2);

fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    u64::try_from(now.as_millis()).expect("a time of today")
}

fn number(got: &Got, header: &str) -> u64 {
    got.header(header)
        .parse()
        .unwrap_or_else(|_| panic!("{header} is {:?}", got.header(header)))
}

/// Returns a sink whose requests are exclusive, and take at most this long.
fn exclusive(receiver: &Receiver, timeout: Duration) -> Arc<Http> {
    sink(&receiver.url("/"), |options| {
        (options.exclusive, options.timeout) = (Exclusive::All, timeout);
    })
}

/// Asserts that the second request came only after the time limit and the margin of the first one.
fn assert_apart(got: &[Got], limit: Duration) {
    let between = got[1].at - got[0].at;
    assert!(
        between >= limit + MARGIN - Duration::from_millis(100),
        "{between:?}"
    );
}

/// Tests that an event whose request has timed out comes again only after the time limit and the
/// margin, with a higher number, and that the wait is no attempt.
#[tokio::test]
async fn an_event_comes_again_only_after_its_time() {
    let limit = Duration::from_millis(500);
    let (redis, receiver) = (Redis::start(), Receiver::with(|_| Reply::Stall).await);
    let console = redis.console().await;
    console.emit_all("a", ["1", "2"]).await;
    let worker = start(
        &redis,
        "w",
        &exclusive(&receiver, limit),
        retry("fixed:1ms,attempts=2,then=dead-letter"),
    );
    receiver.until_got(1).await;
    receiver.behave(|_| Reply::Status(200));
    receiver.until_accepted(2).await;
    worker.finish().await;
    console.until_at_rest().await;
    let got = receiver.got();
    assert_eq!(got.len(), 3, "the first one again, and the second one");
    assert_apart(&got, limit);
    let numbers = got.iter().map(|got| number(got, "seriatim-attempt"));
    let numbers: Vec<_> = numbers.collect();
    let rise = numbers.is_sorted_by(|before, after| before < after);
    assert!(rise, "{numbers:?}");
    assert!(number(&got[0], "seriatim-deadline") <= number(&got[1], "seriatim-deadline") - 2000);
    assert!(
        console.dead().await.is_empty(),
        "one attempt has failed, and waits are none"
    );
}

/// Tests that the next worker process does not send the event while the receiver may work on the
/// request of a process that has died, and that an answer ends the request at once.
#[tokio::test]
async fn a_takeover_waits_for_the_open_request() {
    let limit = Duration::from_secs(1);
    let (redis, receiver) = (Redis::start(), Receiver::with(|_| Reply::Stall).await);
    let console = redis.console().await;
    console.emit("a", "1").await;
    let sink = exclusive(&receiver, limit);
    let first = start(&redis, "one", &sink, |_| {});
    receiver.until_got(1).await;
    receiver.behave(|_| Reply::Status(200));
    first.crash().await;
    console.end_lease("one").await;
    let second = start(&redis, "two", &sink, |_| {});
    receiver.until_accepted(1).await;
    // If an answer did not end its request, each of these events would wait for its time.
    console.emit_all("a", (2..100).map(|n| n.to_string())).await;
    receiver.until_accepted(99).await;
    second.finish().await;
    console.until_at_rest().await;
    let got = receiver.got();
    assert_apart(&got, limit);
    assert_eq!(got.len(), 100);
}

/// Tests that a deadline is a time of Redis' clock, so that it means the same for all workers. Here
/// this clock is an hour ahead of the worker's.
#[tokio::test]
async fn a_deadline_is_a_time_of_redis() {
    let clock = Clock::new();
    clock.step_ahead(Duration::from_secs(3600));
    let (redis, receiver) = (
        Redis::with(&[], clock.environment()),
        Receiver::start().await,
    );
    let console = redis.console().await;
    let limit = Duration::from_secs(20);
    let worker = start(&redis, "w", &exclusive(&receiver, limit), |_| {});
    console.emit("a", "1").await;
    receiver.until_accepted(1).await;
    worker.finish().await;
    console.until_at_rest().await;
    let deadline = number(&receiver.got()[0], "seriatim-deadline");
    let ahead_ms = deadline - now_ms();
    assert!(
        (3_600_000..=3_620_000).contains(&ahead_ms),
        "{ahead_ms} ms from now"
    );
}

/// Returns a 503 with the number of the request plus `more`.
fn repeated(got: &Got, more: u64) -> Reply {
    let header = format!(
        "seriatim-attempt: {}",
        number(got, "seriatim-attempt") + more
    );
    Reply::With(503, vec![header], String::new())
}

/// Tests which ends of a request are known to be its end: an answer is, one of a gateway is not, and
/// neither is a lost connection.
#[tokio::test]
async fn the_answer_of_a_gateway_is_no_end() {
    type First = fn(&Got) -> Reply;
    let firsts: [(&str, First, bool); 8] = [
        ("500", |_| Reply::Status(500), true),
        ("520", |_| Reply::Status(520), false),
        ("502", |_| Reply::Status(502), false),
        ("504", |_| Reply::Status(504), false),
        ("503 with its number", |got| repeated(got, 0), true),
        ("503 with another number", |got| repeated(got, 1), false),
        ("a reset", |_| Reply::Reset, false),
        ("500, then the end", |_| Reply::ThenClose(500), true),
    ];
    let limit = Duration::from_millis(200);
    for (what, answer, is_end) in firsts {
        let first = move |got: &Got| match got.number {
            0 => answer(got),
            _ => Reply::Status(200),
        };
        let (redis, receiver) = (Redis::start(), Receiver::with(first).await);
        let console = redis.console().await;
        console.emit("a", "1").await;
        let worker = start(&redis, "w", &exclusive(&receiver, limit), |_| {});
        receiver.until_accepted(1).await;
        worker.finish().await;
        console.until_at_rest().await;
        let got = receiver.got();
        let between = got[1].at - got[0].at;
        assert_eq!(
            (got.len(), between < MARGIN),
            (2, is_end),
            "{what}: {between:?}"
        );
    }
}

/// Returns the target of each request, and whether it has a deadline.
fn with_deadlines(got: &[Got]) -> Vec<(&str, bool)> {
    let has = |got: &Got| !got.header("seriatim-deadline").is_empty();
    got.iter().map(|got| (&*got.target, has(got))).collect()
}

/// Tests that only requests to URLs with the prefix are exclusive.
#[tokio::test]
async fn a_prefix_names_the_exclusive_urls() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let event = |path: &str| format!(r#"{{"url":"{}"}}"#, receiver.url(path));
    console
        .emit_all("a", [event("/one/x"), event("/many"), event("/one/y")])
        .await;
    let mut options = Options::default();
    options.exclusive = Exclusive::Prefixes(vec![receiver.url("/one/").parse().expect("a prefix")]);
    let allowed = Allowed::new([receiver.url("/").parse().expect("a prefix")]);
    let pointer = "/url".parse().expect("a pointer");
    let sink = EventUrl::at(pointer, allowed).options(options).open();
    let sink = Arc::new(sink.expect("valid settings"));
    let worker = start(&redis, "w", &sink, |_| {});
    receiver.until_accepted(3).await;
    worker.finish().await;
    console.until_at_rest().await;
    let got = receiver.got();
    let expected = [("/one/x", true), ("/many", false), ("/one/y", true)];
    assert_eq!(with_deadlines(&got), expected);
}

/// Tests that the program passes `--sink-exclusive=PREFIX` and `--sink-status` to its sink.
#[tokio::test]
async fn the_options_of_the_program_reach_the_sink() {
    let receiver =
        Receiver::with(|got| Reply::Status(if got.target == "/one/gone" { 404 } else { 200 }))
            .await;
    let redis = Redis::start();
    let console = redis.console().await;
    let (allowed, prefixes) = (
        receiver.url("/"),
        ["/one/", "/two/"].map(|path| receiver.url(path)),
    );
    let exclusive = prefixes.map(|prefix| format!("--sink-exclusive={prefix}"));
    let options = [
        &exclusive[0],
        &exclusive[1],
        "--allow",
        &allowed,
        "--allow-address",
        "127.0.0.1",
        "--sink-status",
        "404=reject",
    ];
    let _worker = Process::start(&redis, "w", "event-url", &options);
    let event = |path: &str| format!(r#"{{"url":"{}"}}"#, receiver.url(path));
    console
        .emit_all("a", ["/one/x", "/many", "/one/gone", "/two/y"].map(event))
        .await;
    receiver.until_accepted(3).await;
    let got = receiver.got();
    let expected = [
        ("/one/x", true),
        ("/many", false),
        ("/one/gone", true),
        ("/two/y", true),
    ];
    assert_eq!(with_deadlines(&got), expected);
    assert_eq!(console.dead().await.len(), 1);
}

/// The work of a receiver on one request.
#[derive(Debug, Clone, Copy)]
struct Work {
    number: u64,
    begins_ms: u64,
    ends_ms: u64,
}

/// The works of a receiver that keeps its deadlines, by object.
type Works = Arc<Mutex<HashMap<String, Vec<Work>>>>;

/// Returns the behaviour of a receiver that takes 100 ms to 3 s for a request, and stops its work at
/// the deadline.
fn slow(
    works: Works,
    random: impl Fn() -> u64 + Send + Sync + 'static,
) -> impl Fn(&Got) -> Reply + Send + Sync {
    move |got| {
        let (now, deadline) = (now_ms(), number(got, "seriatim-deadline"));
        if now >= deadline {
            return Reply::Status(503);
        }
        let takes = if random().is_multiple_of(8) {
            3000
        } else {
            100 + random() % 900
        };
        let is_done = now + takes < deadline;
        let work = Work {
            number: number(got, "seriatim-attempt"),
            begins_ms: now,
            ends_ms: if is_done { now + takes } else { deadline },
        };
        works
            .lock()
            .expect("no panic")
            .entry(got.header("seriatim-object").to_owned())
            .or_default()
            .push(work);
        match is_done {
            true => Reply::Late(Duration::from_millis(takes)),
            false => Reply::Stall,
        }
    }
}

/// Tests kills, takeovers, restarts under the same name, timeouts and SIGSTOP, for 20 s or
/// `SERIATIM_EXCLUSIVE_SECONDS`.
#[tokio::test]
async fn no_two_requests_of_an_object_are_open() {
    let seconds = std::env::var("SERIATIM_EXCLUSIVE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let seed = std::env::var("SERIATIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(now_ms);
    println!("SERIATIM_SEED={seed}");
    let (works, random) = (Works::default(), crate::weather::random(seed));
    let (redis, receiver) = (
        Redis::start(),
        Receiver::with(slow(works.clone(), crate::weather::random(seed + 1))).await,
    );
    let console = redis.console().await;
    let url = receiver.url("/");
    let options = [
        "--sink-exclusive",
        "--sink-timeout",
        "2s",
        "--lease",
        "1s",
        "--concurrency",
        "8",
        "--retry",
        "fixed:50ms",
        // In 10 minutes, five processes may well die with the same event in hand.
        "--crashes-max",
        "1000",
    ];
    let begin = |name: &str| Process::start(&redis, name, &url, &options);
    let names = ["one", "two", "three"];
    let mut processes: Vec<_> = names.iter().map(|name| begin(name)).collect();
    let (began, mut emitted) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        if 12 * emitted < receiver.accepted() + 60 {
            for object in 0..12 {
                console
                    .emit(&format!("o:{object}"), emitted.to_string())
                    .await;
            }
            emitted += 1;
        }
        let (at, pause) = (
            usize::try_from(random() % 3).expect("below 3"),
            Duration::from_millis(random() % 2500),
        );
        match random() % 5 {
            0 => processes[at].kill(),
            1 => processes[at].terminate(),
            2 => {
                processes[at].pause();
                sleep(pause).await;
                processes[at].go_on();
                continue;
            }
            _ => {
                sleep(pause).await;
                continue;
            }
        }
        // Sometimes the same name begins at once, and sometimes another process takes over first.
        if random().is_multiple_of(2) {
            sleep(pause).await;
        }
        processes[at] = begin(names[at]);
    }
    processes.clear();
    processes.extend(names.iter().map(|name| begin(name)));
    // All events that are left may be of one object, and take some seconds each.
    while receiver.accepted() < 12 * emitted {
        receiver.until_accepted(receiver.accepted() + 1).await;
    }
    console.until_at_rest().await;
    drop(processes);
    let applied = receiver.applied();
    let expected: Vec<_> = (0..emitted).map(|n| n.to_string()).collect();
    assert!(
        applied.len() == 12 && applied.values().all(|events| *events == expected),
        "{applied:?}"
    );
    assert!(console.dead().await.is_empty());
    console.check().await;
    let works = works.lock().expect("no panic");
    for (object, works) in &*works {
        for pair in works.windows(2) {
            assert!(
                pair[0].ends_ms <= pair[1].begins_ms && pair[0].number < pair[1].number,
                "{object}: {pair:?}"
            );
        }
    }
    let late = works
        .values()
        .flatten()
        .filter(|work| work.ends_ms - work.begins_ms > 1000)
        .count();
    println!(
        "{} requests, {late} without an answer, {} events",
        works.values().map(Vec::len).sum::<usize>(),
        12 * emitted
    );
}
