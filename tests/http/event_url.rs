//! The sink that sends each event to the URL that the event contains.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use seriatim_http::{Allowed, EventUrl, Options};
use tokio::time::{Instant, sleep};

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::{dead_errors, retry};
use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, until};

fn sink(
    prefixes: &[String],
    networks: &[&str],
    change: impl FnOnce(&mut Options),
) -> Arc<EventUrl> {
    let mut options = Options::default();
    change(&mut options);
    let prefixes = prefixes.iter().map(|text| text.parse().expect("a prefix"));
    let networks = networks.iter().map(|text| text.parse().expect("a network"));
    let allowed = Allowed::new(prefixes).networks(networks);
    let sink = EventUrl::at("/url".parse().expect("a pointer"), allowed);
    Arc::new(sink.options(options).open().expect("valid settings"))
}

fn event(url: &str) -> String {
    serde_json::json!({ "url": url }).to_string()
}

async fn until_dead(console: &Console, count: usize) -> Vec<String> {
    until("the dead letters", PATIENCE, async || {
        (console.dead().await.len() >= count).then_some(())
    })
    .await;
    dead_errors(console).await
}

/// Emits an event with the URL of this receiver for each of the objects.
async fn emit_for(console: &Console, receiver: &Receiver, name: &str, objects: usize) {
    for object in 0..objects {
        let event = event(&receiver.url("/"));
        console.emit(&format!("{name}:{object}"), event).await;
    }
}

#[tokio::test]
async fn each_event_goes_to_its_own_url() {
    let (redis, one, other) = (
        Redis::start(),
        Receiver::start().await,
        Receiver::start().await,
    );
    let console = redis.console().await;
    let urls = [one.url("/a?b=c#d"), other.url("/x"), one.url("/b")];
    console
        .emit_all("work:1", urls.iter().map(|url| event(url)))
        .await;
    let sink = sink(&[one.url("/"), other.url("/")], &[], |_| {});
    let worker = start(&redis, "w", &sink, |_| {});
    console.until_at_rest().await;
    worker.finish().await;
    let targets = |receiver: &Receiver| {
        let got = receiver.got();
        let targets: Vec<_> = got.iter().map(|got| &*got.target).collect();
        targets.join(" ")
    };
    assert_eq!(targets(&one), "/a?b=c /b");
    assert_eq!(targets(&other), "/x");
    assert_eq!(
        other.got()[0].events(),
        [(2, 1, "work:1".to_owned(), event(&urls[1]))]
    );
}

/// Tests that a URL is refused if it is not allowed, or if it leads to an address that is not
/// public. Nothing is sent to such a URL.
#[tokio::test]
async fn what_is_not_allowed_is_a_dead_letter_with_the_reason() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let port = receiver.port();
    let (loopback, not_public) = (
        "127.0.0.1 is a loopback address",
        "its host leads to an address that is not public",
    );
    let allow = format!("{loopback}; allow it with --allow-address");
    let long = format!("localhost:{port}/{}", "x".repeat(60_000));
    let on_port = |host: &str| event(&format!("http://{host}:{port}/"));
    let cases = [
        (
            event("https://evil.example/"),
            "begins with none of the allowed prefixes",
        ),
        (on_port("127.0.0.1"), &allow[..]),
        (on_port("2130706433"), loopback),
        (on_port("0x7f.1"), loopback),
        (on_port("[::1]"), "::1 is a loopback address"),
        (on_port("[::ffff:127.0.0.1]"), loopback),
        (on_port("localhost"), not_public),
        (on_port("LocalHost"), not_public),
        (
            on_port("user:hunter2@localhost"),
            "it has a user or a password",
        ),
        (on_port("a{b"), "cannot be sent to"),
        (
            event(&format!("http://{long}")),
            "it has more than 60000 bytes",
        ),
        (
            event("http://localhost:65536/?token=hunter2"),
            "invalid port number",
        ),
        (
            event("file:///etc/passwd"),
            "it must begin with http:// or https://",
        ),
        (event("/relative"), "relative URL without a base"),
        ("{}".to_owned(), "the event has no URL at /url"),
        ("{\"url\":7}".to_owned(), "the URL at /url is not a text"),
    ];
    console
        .emit_all("work:1", cases.iter().map(|(event, _)| event))
        .await;
    let sink = sink(&["http://".to_owned()], &[], |_| {});
    let worker = start(&redis, "w", &sink, |_| {});
    let errors = until_dead(&console, cases.len()).await;
    for (error, (event, reason)) in errors.iter().zip(&cases) {
        assert!(
            error.contains(reason) && !error.contains("hunter2"),
            "{event}: {error}"
        );
    }
    assert_eq!(errors.len(), cases.len());
    assert_eq!(receiver.connections(), 0);
    console.until_at_rest().await;
    worker.finish().await;
}

#[tokio::test]
async fn a_name_that_leads_to_an_allowed_address_is_used() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let url = format!("http://localhost:{}/", receiver.port());
    console.emit("work:1", event(&url)).await;
    let worker = start(&redis, "w", &sink(&[url], &["127.0.0.0/8"], |_| {}), |_| {});
    receiver.until_accepted(1).await;
    worker.finish().await;
}

/// Tests that a receiver that is down holds only its own objects. It gets at most one request per
/// second over all objects, each time of another object.
#[tokio::test]
async fn a_receiver_that_is_down_holds_its_own_objects_only() {
    let (redis, good, bad) = (
        Redis::start(),
        Receiver::start().await,
        Receiver::with(|_| Reply::Status(503)).await,
    );
    let console = redis.console().await;
    for object in 0..10 {
        for (receiver, name) in [(&bad, "bad"), (&good, "good")] {
            let events = vec![event(&receiver.url("/")); 2];
            console.emit_all(&format!("{name}:{object}"), events).await;
        }
    }
    let sink = sink(&[good.url("/"), bad.url("/")], &[], |_| {});
    // With one slot, the first answer is known before the next request.
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        retry("exponential:50ms..300ms")(config);
    });
    good.until_accepted(20).await;
    // The first object that is refused twice opens the circuit. All later requests are probes.
    let probes = until("5 probes", PATIENCE, async || {
        let got = bad.got();
        let is_second = |got: &Got| got.header("seriatim-attempt") == "2";
        let opened = got.iter().position(is_second)?;
        got.get(opened + 1..opened + 6).map(<[_]>::to_vec)
    });
    let probes = probes.await;
    let apart = probes.windows(2).map(|pair| pair[1].at - pair[0].at);
    assert!(
        apart.clone().all(|time| time >= Duration::from_millis(990)),
        "{:?}",
        apart.collect::<Vec<_>>()
    );
    let objects = probes.iter().map(|got| got.header("seriatim-object"));
    let objects: Vec<_> = objects.collect();
    let different: HashSet<_> = objects.iter().collect();
    assert_eq!(different.len(), 5, "probes rotate: {objects:?}");
    bad.behave(|_| Reply::Status(200));
    bad.until_accepted(20).await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// Story: of 1,000 dead letters, 736 had never been offered to their receiver. Its circuit was open,
/// and each wait behind the circuit counted as an attempt.
#[tokio::test]
async fn a_wait_behind_an_open_circuit_is_no_attempt() {
    let (redis, bad) = (Redis::start(), Receiver::with(|_| Reply::Status(503)).await);
    let console = redis.console().await;
    emit_for(&console, &bad, "bad", 20).await;
    let worker = start(&redis, "w", &sink(&[bad.url("/")], &[], |_| {}), |config| {
        config.concurrency = 1;
        retry("fixed:20ms,attempts=3,then=dead-letter")(config);
    });
    // Each object has one request, and one of them a second one. Then the circuit is open.
    bad.until_got(24).await;
    let requests = |object: String| {
        let got = bad.got().into_iter();
        got.filter(|got| got.header("seriatim-object") == object)
            .count()
    };
    let dead = console.dead().await.len();
    let objects = (0..20).map(|object| format!("bad:{object}"));
    let offered = objects
        .filter(|object| requests(object.clone()) >= 3)
        .count();
    assert!(
        dead <= offered,
        "{dead} dead letters, but only {offered} events were offered 3 times"
    );
    bad.behave(|_| Reply::Status(200));
    console.until_at_rest().await;
    worker.finish().await;
    let mut attempts: HashMap<_, Vec<_>> = HashMap::new();
    for got in bad.got() {
        let (object, attempt) = ["seriatim-object", "seriatim-attempt"]
            .map(|name| got.header(name).to_owned())
            .into();
        attempts.entry(object).or_default().push(attempt);
    }
    for (object, attempts) in attempts {
        let counted = (1..=attempts.len()).map(|attempt| attempt.to_string());
        let counted: Vec<_> = counted.collect();
        assert_eq!(
            attempts, counted,
            "{object}: each request counts, and nothing else"
        );
    }
}

/// Tests that a receiver that stalls gets one request at a time after its first timeouts, so that
/// it does not occupy all slots.
#[tokio::test]
async fn a_receiver_that_stalls_does_not_occupy_the_slots() {
    let (redis, good, bad) = (
        Redis::start(),
        Receiver::start().await,
        Receiver::with(|_| Reply::Stall).await,
    );
    let console = redis.console().await;
    emit_for(&console, &bad, "bad", 50).await;
    let sink = sink(&[good.url("/"), bad.url("/")], &[], |options| {
        options.timeout = Duration::from_millis(500)
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 4);
    bad.until_got(4).await;
    emit_for(&console, &good, "good", 50).await;
    let began = Instant::now();
    good.until_accepted(50).await;
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    assert!(
        bad.got().len() <= 4 + 2 + began.elapsed().as_secs() as usize,
        "{} requests",
        bad.got().len()
    );
    worker.crash().await;
}

/// Tests that a wrong path or token holds only the object of the event. Events of other objects are
/// still sent to the same receiver.
#[tokio::test]
async fn a_receiver_that_refuses_a_url_holds_that_object() {
    let refuse = |got: &Got| Reply::Status(if got.target == "/gone" { 404 } else { 200 });
    let (redis, receiver) = (Redis::start(), Receiver::with(refuse).await);
    let console = redis.console().await;
    console.emit("a", event(&receiver.url("/gone"))).await;
    console.emit("b", event(&receiver.url("/there"))).await;
    let sink = sink(&[receiver.url("/")], &[], |_| {});
    let worker = start(&redis, "w", &sink, retry("fixed:1h"));
    receiver.until_accepted(1).await;
    console.until_held("a", "retry").await;
    worker.finish().await;
}

/// Tests that a receiver that resets connections, as a balancer without a backend does, gets one
/// request per second, and that a reset does not close its circuit.
#[tokio::test]
async fn a_receiver_that_resets_has_an_open_circuit() {
    let (redis, bad) = (Redis::start(), Receiver::with(|_| Reply::Reset).await);
    let console = redis.console().await;
    emit_for(&console, &bad, "bad", 50).await;
    let worker = start(&redis, "w", &sink(&[bad.url("/")], &[], |_| {}), |config| {
        config.concurrency = 4;
        retry("fixed:100ms")(config);
    });
    // The first requests come together, each of them twice.
    bad.until_got(1).await;
    let began = Instant::now();
    sleep(Duration::from_millis(4200)).await;
    let (got, since) = (bad.got(), began + Duration::from_millis(200));
    let late = got.iter().filter(|got| got.at > since).count();
    assert!((2..=5).contains(&late), "{late} requests in 4 s");
    bad.behave(|_| Reply::Status(200));
    bad.until_accepted(50).await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// Tests that events for a slow receiver wait without attempts.
#[tokio::test]
async fn a_slow_receiver_costs_no_attempts() {
    let (redis, slow) = (
        Redis::start(),
        Receiver::with(|_| Reply::Late(Duration::from_millis(1500))).await,
    );
    let console = redis.console().await;
    emit_for(&console, &slow, "slow", 12).await;
    let sink = EventUrl::at(
        "/url".parse().expect("a pointer"),
        Allowed::new([slow.url("/").parse().expect("a prefix")]),
    );
    let worker = start(
        &redis,
        "w",
        &Arc::new(sink.slots(8).open().expect("a sink")),
        |config| {
            config.concurrency = 8;
            retry("fixed:100ms,attempts=1,then=dead-letter")(config);
        },
    );
    slow.until_accepted(12).await;
    console.until_at_rest().await;
    assert!(
        slow.got()
            .iter()
            .all(|got| got.header("seriatim-attempt") == "1")
    );
    assert_eq!(console.dead().await.len(), 0);
    worker.finish().await;
}

/// Tests that an error does not keep parts of an answer that repeat possible secrets of the
/// request.
#[tokio::test]
async fn secrets_that_an_answer_repeats_are_left_out() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let echo = "token hunter2, bearer hunter4, basic Ym9iOmh1bnRlcjM=, password hunter3";
    receiver.behave(move |_| Reply::With(400, Vec::new(), echo.to_owned()));
    let console = redis.console().await;
    console.emit("a", "1").await;
    let url = format!(
        "http://bob:hunter3@127.0.0.1:{}/?user=1&token=hunter2",
        receiver.port()
    );
    let mut options = Options::default();
    options.header("x-key", "Bearer hunter4").expect("a header");
    let sink = seriatim_http::Http::to(url.parse().expect("a target"))
        .options(options)
        .open()
        .expect("a sink");
    let worker = start(&redis, "w", &Arc::new(sink), |_| {});
    let errors = until_dead(&console, 1).await;
    assert!(
        errors[0].contains("token ***, bearer ***, basic ***, password ***"),
        "{errors:?}"
    );
    worker.finish().await;
}
