//! The connections and the files of HTTP sinks: requests that wait inside the process, and things
//! that change while the process runs.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::sink::Sink as _;
use seriatim::worker::WorkerConfig;
use seriatim_http::Exclusive;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::certificates::Authority;
use crate::receiver::{Got as Request, Receiver, Reply};
use crate::requests::sink;
use crate::secured::{Got, listen, serve};
use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::running::start;
use crate::support::{Redis, until};

/// Makes an event a dead letter after its first attempt.
fn once(config: &mut WorkerConfig) {
    let policy = "fixed:1ms,attempts=1,then=dead-letter";
    config.retry = policy.parse().expect("a policy");
}

/// Returns a new file with this text. It goes with the directory.
fn file_of(name: &str, text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join(name);
    fs::write(&file, text).expect("written");
    (directory, file)
}

/// Returns a file with the authorities of a first authority, and a second authority.
fn two_authorities() -> (TempDir, PathBuf, Authority) {
    let (first, second) = (Authority::new(), Authority::new());
    let (directory, file) = file_of("ca", "");
    fs::copy(first.file(), &file).expect("copied");
    (directory, file, second)
}

/// Returns a secret as a line of a file.
fn secret(letter: &str) -> String {
    format!("whsec_{}\n", letter.repeat(32))
}

/// Returns the reply of a receiver that wants this token.
fn wanting(token: &str, got: &Request) -> Reply {
    let is_right = got.header("authorization") == token;
    Reply::Status(if is_right { 200 } else { 401 })
}

fn count(got: &Got) -> usize {
    got.lock().expect("no panic").len()
}

async fn until_got(got: &Got, requests: usize) {
    until(&format!("{requests} requests come"), PATIENCE, async || {
        (count(got) >= requests).then_some(())
    })
    .await;
}

/// Story: a receiver over HTTP/2 took 100 requests at a time, and answered in half of the time
/// limit. The other requests waited inside the HTTP client, and this wait counted: 530 attempts
/// failed, and 19 events became dead letters although the receiver had taken them.
#[tokio::test]
async fn a_wait_for_the_connection_is_no_attempt() {
    // In the last case, more requests come than 8 connections take. The others wait for a second, and
    // with this wait each of them would take longer than its limit.
    for (streams, objects, delay_ms, limit) in
        [(100, 250, 300, 3), (250, 250, 300, 3), (100, 900, 1000, 2)]
    {
        let (delay, limit) = (Duration::from_millis(delay_ms), Duration::from_secs(limit));
        each_is_taken_once(streams, objects, delay, limit).await;
    }
}

/// A receiver may take fewer requests on a connection than a lane has places at first. A burst of
/// requests then waits inside the client, although their bodies are taken, and their time runs.
#[tokio::test]
async fn a_burst_beyond_the_limit_of_a_receiver_is_no_attempt() {
    each_is_taken_once(20, 250, Duration::from_secs(1), Duration::from_secs(3)).await;
}

/// Sends an event of each object to a receiver that takes so many requests on a connection at a time,
/// and answers after this time. No request may take longer than the limit.
async fn each_is_taken_once(streams: u32, objects: usize, delay: Duration, limit: Duration) {
    let authority = Authority::new();
    let redis = Redis::start();
    let console = redis.console().await;
    let (listener, port) = listen().await;
    let url = format!("https://localhost:{port}/");
    let certificate = authority.certify("localhost");
    let (_task, got) = serve(listener, &certificate, &["h2"], streams, delay);
    for object in 0..objects {
        console.emit(&object.to_string(), "1").await;
    }
    let sink = sink(&url, |options| {
        options.ca_file = Some(authority.file());
        options.timeout = limit;
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = objects;
        once(config);
    });
    until_got(&got, objects).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(
        (count(&got), console.dead().await.len()),
        (objects, 0),
        "{streams} streams"
    );
    let got = got.lock().expect("no panic");
    let mut by_connection: HashMap<usize, usize> = HashMap::new();
    got.iter()
        .for_each(|(connection, ..)| *by_connection.entry(*connection).or_default() += 1);
    println!("{streams} streams: requests by connection {by_connection:?}");
    assert!((2..=8).contains(&by_connection.len()), "{by_connection:?}");
}

/// Story: a receiver over HTTP/2 took 3 requests at a time, and answered in half of the time limit. The
/// HTTP client took the bodies of many requests at once, and sent 3 of them. The others seemed to be
/// sent, and timed out inside the client.
#[tokio::test]
async fn a_wait_for_one_of_a_few_streams_is_no_attempt() {
    let authority = Authority::new();
    for (streams, objects, exclusive) in [
        (3, 64, Exclusive::None),
        (3, 64, Exclusive::All),
        (1, 24, Exclusive::None),
        (1, 24, Exclusive::All),
    ] {
        let redis = Redis::start();
        let console = redis.console().await;
        let (listener, port) = listen().await;
        let url = format!("https://localhost:{port}/");
        let limit = Duration::from_secs(2);
        let certificate = authority.certify("localhost");
        let (_task, got) = serve(listener, &certificate, &["h2"], streams, limit / 2);
        for object in 0..objects {
            console.emit(&object.to_string(), "1").await;
        }
        let sink = sink(&url, |options| {
            options.ca_file = Some(authority.file());
            (options.timeout, options.exclusive) = (limit, exclusive.clone());
        });
        let worker = start(&redis, "w", &sink, |config| {
            config.concurrency = 64;
            once(config);
        });
        let began = Instant::now();
        until_got(&got, objects).await;
        console.until_at_rest().await;
        println!(
            "{streams} streams, {exclusive:?}: {objects} requests in {:?}",
            began.elapsed()
        );
        worker.finish().await;
        assert_eq!(
            (count(&got), console.dead().await.len()),
            (objects, 0),
            "{streams} streams, {exclusive:?}"
        );
    }
}

/// Story: the name of a receiver led to another address, but a busy HTTP/2 connection to the old
/// address stayed for ever. Of 3,060 requests none came to the new address.
#[tokio::test]
async fn a_busy_connection_is_replaced() {
    let authority = Authority::new();
    let certificate = authority.certify("localhost");
    let redis = Redis::start();
    let console = redis.console().await;
    let (listener, port) = listen().await;
    let delay = Duration::from_millis(5);
    let (old_task, old) = serve(listener, &certificate, &["h2"], 100, delay);
    let sink = sink(&format!("https://localhost:{port}/"), |options| {
        options.ca_file = Some(authority.file());
        options.connection_age = Duration::from_secs(1);
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit_all("a", (0..600).map(|n| n.to_string())).await;
    until_got(&old, 10).await;
    old_task.abort();
    let _ = old_task.await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.expect("its port");
    let (_task, new) = serve(listener, &certificate, &["h2"], 100, Duration::ZERO);
    until_got(&new, 10).await;
    let at_old = count(&old);
    until_got(&new, 100).await;
    assert_eq!(
        count(&old),
        at_old,
        "no request goes to the old address any more"
    );
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(count(&old) + count(&new), 600);
}

/// Story: the receiver wanted a new token. The file of the headers had it, but the worker had read
/// this file at its start. Of 10 events none was delivered until a restart.
#[tokio::test]
async fn a_new_token_is_read() {
    let (_directory, file) = file_of("headers", "Authorization: Bearer old\n");
    let accepted = Arc::new(Mutex::new("Bearer old"));
    let wanted = accepted.clone();
    let receiver = Receiver::with(move |got| wanting(&wanted.lock().expect("no panic"), got)).await;
    let redis = Redis::start();
    let console = redis.console().await;
    let sink = sink(&receiver.url("/"), |options| {
        options.header_file = Some(file.clone())
    });
    let worker = start(&redis, "w", &sink, once);
    console.emit_all("a", ["1", "2"]).await;
    receiver.until_accepted(2).await;
    *accepted.lock().expect("no panic") = "Bearer new";
    console.emit_all("a", ["3", "4"]).await;
    receiver.until_got(4).await;
    fs::write(&file, "Authorization: Bearer new\n").expect("written");
    receiver.until_accepted(4).await;
    // A file with a mistake changes nothing.
    fs::write(&file, "Authorization\n").expect("written");
    let error = sink.reopen().await.expect_err("a mistake").to_string();
    let what = "headers: a header is invalid: write NAME: VALUE";
    assert!(error.contains(what), "{error}");
    console.emit_all("a", ["5"]).await;
    receiver.until_accepted(5).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert!(console.dead().await.is_empty());
    let is_first = |got: &Request| got.header("seriatim-attempt") == "1";
    assert!(receiver.got().iter().all(is_first));
}

/// Writes a text of the same length. The time, the length and the inode of the file stay.
fn replace_unseen(file: &Path, text: &str) {
    let before = fs::metadata(file).expect("a file");
    assert_eq!(before.len(), text.len() as u64);
    fs::write(file, text).expect("written");
    let open = fs::File::options().write(true).open(file).expect("opened");
    open.set_modified(before.modified().expect("a time"))
        .expect("set");
}

/// Tests that a 401 makes the sink read its files, even if they look as before.
#[tokio::test]
async fn a_token_is_read_after_a_401() {
    let (_directory, file) = file_of("headers", "Authorization: Bearer old\n");
    let receiver = Receiver::with(|got| wanting("Bearer new", got)).await;
    let redis = Redis::start();
    let console = redis.console().await;
    let sink = sink(&receiver.url("/"), |options| {
        options.header_file = Some(file.clone())
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("a", "1").await;
    receiver.until_got(1).await;
    replace_unseen(&file, "Authorization: Bearer new\n");
    receiver.until_accepted(1).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert!(console.dead().await.is_empty());
}

/// Tests that the program passes the files to its sink, and that SIGHUP makes it read them, even if
/// they look as before.
#[tokio::test]
async fn files_are_read_again_at_sighup() {
    let (_headers, headers) = file_of("headers", "X-Token: old\n");
    let (_secrets, secrets) = file_of("secrets", &secret("A"));
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let path = |file: &Path| file.to_str().expect("a path").to_owned();
    let (of_headers, of_secrets) = (path(&headers), path(&secrets));
    let files = [
        "--sink-header-file",
        &of_headers,
        "--sink-secret-file",
        &of_secrets,
    ];
    let worker = Process::start(&redis, "w", &receiver.url("/"), &files);
    console.emit("a", "1").await;
    receiver.until_accepted(1).await;
    replace_unseen(&headers, "X-Token: new\n");
    replace_unseen(&secrets, &secret("B"));
    worker.hang_up();
    worker
        .until_logged("the files of the HTTP sink are read again")
        .await;
    console.emit("b", "2").await;
    receiver.until_accepted(2).await;
    let [first, second] = &receiver.got()[..] else {
        panic!("{:?}", receiver.got())
    };
    assert_eq!(
        (first.header("x-token"), second.header("x-token")),
        ("old", "new")
    );
    let signed_with = |got: &Request, letter: &str| {
        let secret: seriatim_http::Secret = secret(letter).trim().parse().expect("a secret");
        let at = got.header("webhook-timestamp").parse().expect("a time");
        got.header("webhook-signature")
            == secret.sign(got.header("webhook-id"), at, got.body.as_bytes())
    };
    assert!(
        signed_with(first, "A") && signed_with(second, "B"),
        "{first:?} {second:?}"
    );
}

/// Tests that a second secret in the file signs requests, without a restart and without an answer
/// that asks for it.
#[tokio::test]
async fn a_second_secret_is_read() {
    let (_directory, file) = file_of("secrets", &secret("A"));
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let sink = sink(&receiver.url("/"), |options| {
        options.secret_file = Some(file.clone())
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("a", "1").await;
    receiver.until_accepted(1).await;
    fs::write(&file, secret("A") + &secret("B")).expect("written");
    let two = || {
        let got = receiver.got();
        got.last()
            .is_some_and(|got| got.header("webhook-signature").contains(' '))
    };
    until("two signatures", PATIENCE, async || {
        console.emit("a", "2").await;
        two().then_some(())
    })
    .await;
    fs::write(&file, secret("B")).expect("written");
    assert!(sink.reopen().await.expect("valid"));
    console.emit("b", "3").await;
    until("the last event", PATIENCE, async || {
        receiver.applied().contains_key("b").then_some(())
    })
    .await;
    assert!(!two());
    console.until_at_rest().await;
    worker.finish().await;
}

/// Story: a proxy was away, and the error blamed the receiver. The proxy may have a password.
#[tokio::test]
async fn the_error_of_a_proxy_that_is_away_names_it() {
    let redis = Redis::start();
    let console = redis.console().await;
    console.emit("a", "1").await;
    let closed = format!("http://u:hush@127.0.0.1:{}", crate::support::free_port());
    let proxy = [("HTTP_PROXY", &*closed), ("NO_PROXY", "")];
    let url = "http://receiver.example/";
    let worker = Process::start_with(&redis, "w", url, &[], &proxy);
    worker
        .until_logged("requests may go through the proxy that HTTP_PROXY names")
        .await;
    assert!(!worker.log().contains("hush"), "{}", worker.log());
    let key = format!("{}event.worker:w:status", console.keys.prefix());
    let status = until("the status is written", PATIENCE, async || {
        console.text(&key).await
    })
    .await;
    assert!(!status.contains("hush"), "{status}");
}

/// Story: the look at the files was made beside a request. So the first request after a pause had the
/// secret of before, and a receiver that answers 400 to it made its event a dead letter.
#[tokio::test]
async fn the_first_requests_after_a_pause_have_the_present_secret() {
    const OBJECTS: usize = 8;
    let (_directory, file) = file_of("secrets", &secret("A"));
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    let sink = sink(&receiver.url("/"), |options| {
        options.secret_file = Some(file.clone())
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = OBJECTS);
    console.emit("a", "1").await;
    receiver.until_accepted(1).await;
    fs::write(&file, secret("A") + &secret("B")).expect("written");
    // The next look is due a second after the last one.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for object in 0..OBJECTS {
        console.emit(&object.to_string(), "2").await;
    }
    receiver.until_accepted(1 + OBJECTS).await;
    worker.finish().await;
    let signatures = |got: &Request| got.header("webhook-signature").split(' ').count();
    let counts: Vec<_> = receiver.got()[1..].iter().map(signatures).collect();
    assert_eq!(counts, [2; OBJECTS]);
}

/// Tests that a new authority is accepted without a restart.
#[tokio::test]
async fn a_new_authority_is_read() {
    let (_directory, file, second) = two_authorities();
    let redis = Redis::start();
    let console = redis.console().await;
    let (listener, port) = listen().await;
    let certificate = second.certify("localhost");
    let (_task, got) = serve(listener, &certificate, &["h2"], 100, Duration::ZERO);
    let sink = sink(&format!("https://localhost:{port}/"), |options| {
        options.ca_file = Some(file.clone())
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("a", "1").await;
    until("it is unavailable", PATIENCE, async || {
        worker.vitals.figures().sink.down_for.map(drop)
    })
    .await;
    fs::copy(second.file(), &file).expect("copied");
    until_got(&got, 1).await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// Story: a process read the authorities of the system once. After an update of the system, a worker
/// refused the receiver's new certificate until a restart.
#[tokio::test]
async fn a_new_authority_of_the_system_is_read_at_sighup() {
    let (_directory, file, second) = two_authorities();
    let redis = Redis::start();
    let console = redis.console().await;
    let (listener, port) = listen().await;
    let url = format!("https://localhost:{port}/");
    let certificate = second.certify("localhost");
    let (_task, got) = serve(listener, &certificate, &["h2"], 100, Duration::ZERO);
    let variables = [("SSL_CERT_FILE", file.to_str().expect("a path"))];
    let worker = Process::start_with(&redis, "w", &url, &[], &variables);
    console.emit("a", "1").await;
    worker.until_logged("unavailable").await;
    fs::copy(second.file(), &file).expect("copied");
    // The process does not read the authorities again within 10 s.
    until("the event is accepted", PATIENCE, async || {
        worker.hang_up();
        tokio::time::sleep(Duration::from_millis(500)).await;
        (count(&got) > 0).then_some(())
    })
    .await;
    console.until_at_rest().await;
}
