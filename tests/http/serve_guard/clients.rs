//! Hostile clients: very many connections, and bodies that never end or are refused.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::serving::{Serving, resident};
use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// Reads the status line of an answer up to the status.
async fn status_line(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("an answer");
    String::from_utf8_lossy(&line).into_owned()
}

/// Tests that 10,000 connections that send nothing, or a byte now and then, do not stop the server,
/// and that its memory stays bounded.
#[tokio::test]
async fn ten_thousand_idle_and_dribbling_connections_do_not_stop_it() {
    const CONNECTIONS: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    assert_eq!(serving.post("/v1/objects/a/events", "1").await.status, 202);
    let before = resident(serving.pid());
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        let mut stream = serving.connect().await;
        let part: &[u8] = match number % 4 {
            0 => b"",
            1 => b"POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\nx-",
            2 => b"POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n\"",
            _ => b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"obj\r\n",
        };
        stream.write_all(part).await.expect("sent");
        streams.push(stream);
    }
    for stream in streams.iter_mut().step_by(7) {
        let _ = stream.write_all(b"a").await;
    }
    assert_eq!(serving.post("/v1/objects/a/events", "2").await.status, 202);
    let after = resident(serving.pid());
    let (kib, kib_after) = (before / 1024, after / 1024);
    println!("{kib} KiB before, {kib_after} KiB with {CONNECTIONS} connections");
    assert!(
        after - before < CONNECTIONS as u64 * 48 * 1024,
        "{before} {after}"
    );
    drop(streams);
    assert_eq!(serving.post("/v1/objects/a/events", "3").await.status, 202);
}

/// Tests that a connection above the limit takes the place of the one that was unused for longest.
#[tokio::test]
async fn a_connection_above_the_limit_takes_the_place_of_an_unused_one() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &["--connections", "4"]).await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut stream = serving.connect().await;
        stream
            .write_all(b"GET /v1/rules HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .expect("sent");
        assert_eq!(status_line(&mut stream).await, "HTTP/1.1 200");
        kept.push(stream);
    }
    // One of the four places is for new connections.
    for (at, stream) in kept.iter_mut().enumerate() {
        let mut rest = Vec::new();
        let patience = if at == 0 {
            PATIENCE
        } else {
            Duration::from_millis(50)
        };
        let read = timeout(patience, stream.read_to_end(&mut rest)).await;
        assert_eq!(read.is_ok(), at == 0, "{at}");
    }
}

/// Tests that bodies that never end take a bounded part of the memory, and that requests work
/// afterwards.
#[tokio::test]
async fn bodies_have_a_bounded_part_of_the_memory() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let part = vec![b' '; 2_000_000];
    let head = "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2000001\r\n\r\n";
    let (mut waiting, mut refused) = (Vec::new(), 0);
    for _ in 0..200 {
        let mut stream = serving.connect().await;
        stream.write_all(head.as_bytes()).await.expect("written");
        // The server may close a refused connection before the whole part is written.
        let _ = stream.write_all(&part).await;
        match timeout(Duration::from_millis(20), status_line(&mut stream)).await {
            Ok(status) => {
                assert_eq!(status, "HTTP/1.1 503");
                refused += 1;
            }
            Err(_) => waiting.push(stream),
        }
    }
    // On a busy machine an answer may come later.
    let mut late = Vec::new();
    for mut stream in waiting {
        let mut answer = [0; 12];
        match timeout(Duration::from_millis(20), stream.read_exact(&mut answer)).await {
            Ok(_) => refused += 1,
            Err(_) => late.push(stream),
        }
    }
    let waiting = late;
    assert!(
        refused >= 40 && waiting.len() >= 100,
        "{refused} refused, {} waiting",
        waiting.len()
    );
    let bytes = resident(serving.pid());
    assert!(bytes < 700 << 20, "{bytes}");
    drop(waiting);
    until("a request has room", PATIENCE, async || {
        (serving.post("/v1/objects/a/events", "1").await.status == 202).then_some(())
    })
    .await;
}

/// Tests that a client that sends a large body before it reads gets the answer all the same.
#[tokio::test]
async fn a_refused_body_does_not_hide_the_answer() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    for (kind, status) in [("text/plain", "415"), ("application/json", "413")] {
        let mut stream = serving.connect().await;
        let head = format!(
            "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 20000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        for _ in 0..200 {
            let written = stream.write_all(&[b' '; 100_000]).await;
            written.expect("it is read");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
}

/// Tests that a body in another coding is refused: its bytes are not the event.
#[tokio::test]
async fn a_transfer_coding_other_than_chunked_is_refused() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    for coding in ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let mut stream = serving.connect().await;
        let head = format!(
            "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: {coding}\r\n\r\n1\r\n1\r\n0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        let status = status_line(&mut stream).await;
        assert_eq!(status, "HTTP/1.1 501", "{coding}");
    }
}
