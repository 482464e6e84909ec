//! Receivers that answer before they have read the body, and close.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::requests::sink;
use crate::support::Redis;
use crate::support::running::start;

/// A server that reads only the head of each request, answers, and resets the connection.
async fn impatient(status: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|part| part == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                // Unread bytes are left, so the system resets the connection.
            });
        }
    });
    port
}

/// Story: a receiver refused large events with 413 and closed. If the sink was still writing, the
/// error was "connection reset", and the event was sent again and again.
#[tokio::test]
async fn an_answer_that_comes_before_the_end_of_the_body_counts() {
    let redis = Redis::start();
    let port = impatient("413 Payload Too Large").await;
    let console = redis.console().await;
    let large = format!("\"{}\"", "x".repeat(900_000));
    for object in 0..20 {
        console.emit(&format!("work:{object}"), &large).await;
    }
    let url = format!("http://127.0.0.1:{port}/");
    let worker = start(
        &redis,
        "w",
        &sink(&url, |options| options.timeout = Duration::from_secs(20)),
        |_| {},
    );
    console.until_at_rest().await;
    worker.finish().await;
    let letters = console.dead().await;
    assert_eq!(letters.len(), 20);
    for letter in letters {
        let of = |name: &str| {
            let found = letter
                .iter()
                .find(|(field, _)| field == name)
                .expect("a field");
            String::from_utf8(found.1.clone()).expect("UTF-8")
        };
        assert!(
            of("error").contains("413") && of("error").contains("too large"),
            "{}",
            of("error")
        );
        assert_eq!(of("attempts"), "0", "a rejection is no failed attempt");
    }
}
