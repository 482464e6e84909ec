//! Bad weather: a receiver that stalls, resets, throttles, dies and returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::sink;
use crate::support::Redis;
use crate::support::running::start;

const OBJECTS: usize = 12;
const EVENTS: usize = 40;

/// Returns numbers from a seed (xorshift).
pub(crate) fn random(seed: u64) -> impl Fn() -> u64 {
    let state = AtomicU64::new(seed | 1);
    move || {
        let mut x = state.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.store(x, Ordering::Relaxed);
        x
    }
}

/// Tests that each object's events arrive in order and without loss, whatever the receiver does. An
/// event may arrive twice if it was accepted and the answer was lost.
#[tokio::test]
async fn nothing_is_lost_or_reordered_in_bad_weather() {
    let seed = std::env::var("SERIATIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("after 1970")
                .subsec_nanos()
                .into()
        });
    println!("SERIATIM_SEED={seed}");
    for batch in ["", "?batch=7"] {
        let random = random(seed);
        let storm = move |_: &Got| match random() % 24 {
            0 => Reply::Stall,
            1 | 2 => Reply::Reset,
            3 => Reply::Cut,
            4 => Reply::With(429, vec!["retry-after: 0".to_owned()], String::new()),
            5 | 6 => Reply::Status(500),
            7 => Reply::ThenClose(200),
            8 => Reply::ThenClose(500),
            _ => Reply::Status(200),
        };
        let (redis, mut receiver) = (Redis::start(), Receiver::with(storm).await);
        let console = redis.console().await;
        for object in 0..OBJECTS {
            console
                .emit_all(
                    &format!("work:{object}"),
                    (0..EVENTS).map(|n| n.to_string()),
                )
                .await;
        }
        let sink = sink(&receiver.url(&format!("/{batch}")), |options| {
            options.timeout = Duration::from_millis(150)
        });
        let worker = start(&redis, "w", &sink, |config| config.concurrency = 8);
        for part in 1..=3 {
            receiver.until_accepted(part * OBJECTS * EVENTS / 4).await;
            receiver.die().await;
            sleep(Duration::from_millis(300)).await;
            receiver.revive().await;
        }
        receiver.until_accepted(OBJECTS * EVENTS).await;
        console.until_at_rest().await;
        worker.finish().await;
        let applied = receiver.applied();
        let expected: Vec<_> = (0..EVENTS).map(|n| n.to_string()).collect();
        assert!(
            applied.len() == OBJECTS && applied.values().all(|events| *events == expected),
            "{applied:?}"
        );
        assert!(console.dead().await.is_empty());
        console.check().await;
    }
}

/// Tests the requests while the receiver is away: at most one per second, whatever the number of
/// slots. After its return, the first request comes within 2 s, and the others follow without such
/// waits.
#[tokio::test]
async fn an_absent_receiver_gets_one_request_per_second_and_all_of_them_when_it_returns() {
    let (redis, mut receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let worker = start(&redis, "w", &receiver.sink("/"), |config| {
        config.concurrency = 64;
        config.probe_max = seriatim::worker::WorkerConfig::default().probe_max;
    });
    receiver.behave(|_| Reply::Status(503));
    for object in 0..200 {
        console.emit_all(&object.to_string(), ["1", "2"]).await;
    }
    receiver.until_got(1).await;
    // Deliveries that began at the same time may all be answered with 503.
    let began = Instant::now();
    sleep(Duration::from_millis(4500)).await;
    let times: Vec<_> = receiver
        .got()
        .iter()
        .map(|got| got.at)
        .filter(|at| *at > began + Duration::from_millis(200))
        .collect();
    assert!(
        (3..=5).contains(&times.len()),
        "{} requests in 4.3 s",
        times.len()
    );
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        gaps.iter().all(|gap| *gap >= Duration::from_millis(990)),
        "{gaps:?}"
    );
    receiver.die().await;
    sleep(Duration::from_millis(1500)).await;
    receiver.behave(|_| Reply::Status(200));
    let returned = Instant::now();
    receiver.revive().await;
    receiver.until_accepted(400).await;
    let times = receiver.got().into_iter().map(|got| got.at);
    let times: Vec<_> = times.filter(|at| *at > returned).collect();
    let first = times[0] - returned;
    assert!(first < Duration::from_secs(2), "{first:?}");
    // The others follow at once, and not one per second.
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.max().expect("several requests");
    assert!(longest < Duration::from_millis(900), "{longest:?}");
    console.until_at_rest().await;
    worker.finish().await;
}

/// Tests that an unavailable receiver is left alone for as long as it asks.
#[tokio::test]
async fn an_absent_receiver_is_left_alone_for_its_retry_after() {
    let receiver = Receiver::with(|got| match got.number {
        0 => Reply::With(503, vec!["retry-after: 3".to_owned()], String::new()),
        _ => Reply::Status(200),
    })
    .await;
    let redis = Redis::start();
    redis.console().await.emit("a", "1").await;
    let worker = start(&redis, "w", &receiver.sink("/"), |_| {});
    receiver.until_accepted(1).await;
    worker.finish().await;
    let got = receiver.got();
    let wait = got[1].at - got[0].at;
    assert!(
        wait >= Duration::from_secs(3) && wait < Duration::from_secs(6),
        "{wait:?}"
    );
}

/// Tests that an object with a stalling event does not delay other objects.
#[tokio::test]
async fn a_stall_delays_one_object_only() {
    let stall = |got: &Got| {
        if got.body.contains("slow") {
            Reply::Stall
        } else {
            Reply::Status(200)
        }
    };
    let (redis, receiver) = (Redis::start(), Receiver::with(stall).await);
    let console = redis.console().await;
    console.emit("slow", "\"slow\"").await;
    let sink = sink(&receiver.url("/"), |options| {
        options.timeout = Duration::from_secs(60)
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 2);
    receiver.until_got(1).await;
    for object in 0..50 {
        console.emit(&object.to_string(), "1").await;
    }
    receiver.until_accepted(50).await;
    worker.crash().await;
}

/// Tests that a worker commits delivered events of a slow receiver while it delivers the next
/// events. So after a crash only few events come again.
#[tokio::test]
async fn delivered_events_are_committed_within_about_a_second() {
    let redis = Redis::start();
    let receiver = Arc::new(Receiver::start().await);
    receiver.behave(|_| {
        std::thread::sleep(Duration::from_millis(30));
        Reply::Status(200)
    });
    let console = redis.console().await;
    console.emit_all("a", (0..100).map(|n| n.to_string())).await;
    let worker = start(&redis, "w", &receiver.sink("/"), |_| {});
    receiver.until_got(80).await;
    worker.crash().await;
    console.end_lease("w").await;
    receiver.behave(|_| Reply::Status(200));
    let worker = start(&redis, "v", &receiver.sink("/"), |_| {});
    console.until_at_rest().await;
    worker.finish().await;
    let requests = receiver.got().len();
    assert!(
        (100..160).contains(&requests),
        "{requests} requests for 100 events"
    );
    assert_eq!(receiver.accepted(), 100);
}

/// Story: with a short timeout, a receiver that accepted no connection counted as a receiver that
/// does not answer. Its events went to the dead letters.
#[tokio::test]
async fn a_receiver_that_takes_no_connection_is_unavailable() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("bound");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    // The kernel answers no further connection once its queue is full.
    while let Ok(stream) = tokio::time::timeout(
        Duration::from_millis(300),
        tokio::net::TcpStream::connect(address),
    )
    .await
    {
        waiting.push(stream.expect("connected"));
        assert!(waiting.len() < 100);
    }
    let sink = sink(&format!("http://{address}/"), |options| {
        options.timeout = Duration::from_millis(500)
    });
    let object = seriatim::event::ObjectName::new("work:1").expect("a name");
    let batch = seriatim::sink::Batch::new(object, 1, 0, vec!["1".into()]);
    let delivered =
        seriatim::sink::Sink::deliver(&*sink, &batch, &seriatim::sink::Context::detached()).await;
    assert!(
        matches!(
            delivered.stop(),
            Some(seriatim::sink::Stop::Unavailable { .. })
        ),
        "{delivered:?}"
    );
}
