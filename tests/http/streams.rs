//! Streams of lines that go wrong: their memory, their number, and their end.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::serving::{Serving, resident};
use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::proxy::Proxy;

/// Opens a stream, and sends these lines.
async fn open(serving: &Serving, lines: &str) -> TcpStream {
    let address = serving.url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("written");
    send(&mut stream, lines).await;
    stream
}

async fn send(stream: &mut TcpStream, lines: &str) {
    stream
        .write_all(format!("{:x}\r\n{lines}\r\n", lines.len()).as_bytes())
        .await
        .expect("written");
}

/// Reads until the answers have this text.
async fn until_answered(stream: &mut TcpStream, text: &str) -> String {
    let mut answers = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&answers).contains(text) {
            assert!(
                stream.read_buf(&mut answers).await.expect("it is open") > 0,
                "{text} never came"
            );
        }
    };
    timeout(PATIENCE, read)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {text}"));
    String::from_utf8(answers).expect("UTF-8")
}

/// Tests that lines with long invalid names are not kept.
#[tokio::test]
async fn long_names_take_no_memory() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let mut stream = open(&serving, "{\"object\":\"a\",\"event\":1}\n").await;
    until_answered(&mut stream, "\"status\":202").await;
    let before = resident(serving.pid());
    let name = "n".repeat(1_900_000);
    for n in 0..80 {
        send(
            &mut stream,
            &format!("{{\"object\":\"{n}{name}\",\"event\":1}}\n"),
        )
        .await;
        until_answered(&mut stream, "\"status\":400").await;
    }
    let after = resident(serving.pid());
    assert!(after < before + (60 << 20), "{before} {after}");
    send(&mut stream, "{\"object\":\"a\",\"event\":2}\n").await;
    until_answered(&mut stream, "\"status\":202").await;
}

/// Tests that the answers end with the line that Redis did not take, although the client sends
/// nothing more.
#[tokio::test]
async fn answers_end_when_redis_is_away() {
    let redis = Redis::start();
    let proxy = Proxy::before(&redis);
    let serving = Serving::start_behind(&proxy, &redis).await;
    let mut stream = open(&serving, "{\"object\":\"a\",\"event\":1}\n").await;
    until_answered(&mut stream, "\"status\":202").await;
    drop(proxy);
    send(&mut stream, "{\"object\":\"a\",\"event\":2}\n").await;
    // The answers end with the last chunk.
    let rest = until_answered(&mut stream, "\r\n0\r\n\r\n").await;
    assert!(
        rest.contains("{\"line\":2,") && rest.contains("\"status\":50"),
        "{rest}"
    );
}

/// Tests that streams have a bounded number, and that single emits work beside them.
#[tokio::test]
async fn one_stream_too_many_is_refused() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let mut streams = Vec::new();
    for _ in 0..1000 {
        let mut stream = open(&serving, "{").await;
        until_answered(&mut stream, "HTTP/1.1 200").await;
        streams.push(stream);
    }
    let mut more = open(&serving, "{").await;
    assert!(
        until_answered(&mut more, "busy")
            .await
            .starts_with("HTTP/1.1 503")
    );
    assert_eq!(serving.post("/v1/objects/a/events", "1").await.status, 202);
    drop(streams);
    let again = async {
        while serving
            .posted("/v1/events", "")
            .send()
            .await
            .expect("an answer")
            .status()
            != 200
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, again).await.expect("there is room again");
}
