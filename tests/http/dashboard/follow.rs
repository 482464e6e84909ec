//! Pages that follow the event log.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use reqwest::Response;
use tokio::time::timeout;

use super::rig::{Dash, Reply, Scene, USERS, path, token, users};
use crate::support::Redis;
use crate::support::console::PATIENCE;

/// A stream of the dashboard, and the part of it that was not read yet.
struct Stream {
    response: Response,
    rest: String,
}

/// A message: its id and its HTML.
struct Message {
    id: String,
    html: String,
}

impl Message {
    /// Returns the ids of the events in its rows, newest first.
    fn ids(&self) -> Vec<u64> {
        let rows = self
            .html
            .split("<td class=\"id\" data-label=\"Id, prev\">")
            .skip(1);
        rows.map(|row| {
            row.split('<')
                .next()
                .and_then(|id| id.parse().ok())
                .expect("an id")
        })
        .collect()
    }
}

impl Stream {
    async fn open(dash: &Dash, user: &str, target: &str, last: Option<&str>) -> Self {
        let request = dash.page(target).bearer_auth(token(user));
        let request = match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        };
        let response = request.send().await.expect("a stream");
        assert_eq!(response.status(), 200, "{target}");
        Self {
            response,
            rest: String::new(),
        }
    }

    async fn next(&mut self) -> Message {
        loop {
            if let Some((message, rest)) = self.rest.split_once("\n\n") {
                let (id, html) = message
                    .strip_prefix("id: ")
                    .and_then(|message| message.split_once('\n'))
                    .expect("an id");
                let message = Message {
                    id: id.to_owned(),
                    html: html.to_owned(),
                };
                self.rest = rest.to_owned();
                return message;
            }
            let part = timeout(PATIENCE, self.response.chunk())
                .await
                .expect("a message each second")
                .expect("a part");
            self.rest
                .push_str(&String::from_utf8_lossy(&part.expect("no end")));
        }
    }

    /// Returns the next message with rows.
    async fn next_rows(&mut self) -> Message {
        loop {
            let message = self.next().await;
            if message.html.contains("<tr>") {
                return message;
            }
        }
    }
}

/// Returns the path of the stream that a page follows.
fn stream_of(page: &Reply) -> String {
    let (_, rest) = page
        .text
        .split_once("data-stream=\"")
        .unwrap_or_else(|| panic!("{page:?}"));
    rest.split('"')
        .next()
        .expect("a path")
        .replace("&amp;", "&")
}

/// Writes a row for each event of this object.
async fn write(redis: &Redis, object: &str, ids: std::ops::RangeInclusive<u64>) {
    let mut conn: MultiplexedConnection = redis.connect().await;
    let mut rows = redis::pipe();
    rows.atomic();
    for id in ids {
        let event = r#"{"card":{"number":"4000"}}"#;
        let row = [
            "id",
            &id.to_string(),
            "prev",
            "0",
            "object",
            object,
            "event",
            event,
            "status",
            "completed",
            "attempts",
            "0",
        ];
        rows.cmd("XADD")
            .arg(redis.keys().event_log())
            .arg("*")
            .arg(&row)
            .ignore();
    }
    rows.exec_async(&mut conn).await.expect("added");
}

/// Tests that each row is shown once: rows that come between the page and its stream, and while the
/// connection is cut.
#[tokio::test]
async fn no_row_is_lost_before_the_stream_and_while_it_is_cut() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(
        &scene.redis,
        &["--users", path(&file), "--hide", "/card/number"],
    )
    .await;
    write(&scene.redis, "work:a", 1001..=1003).await;
    let page = dash
        .page_as("viewer", "/log?follow=true&status=completed")
        .await;
    assert!(page.text.contains(">1003<br>"), "{page:?}");
    write(&scene.redis, "work:a", 1004..=1005).await;
    let target = stream_of(&page);
    let mut stream = Stream::open(&dash, "viewer", &target, None).await;
    let first = stream.next().await;
    assert_eq!(first.ids(), [1005, 1004], "{}", first.html);
    assert!(
        !first.html.contains("4000") && !first.html.contains("passed over"),
        "{}",
        first.html
    );
    write(&scene.redis, "work:a", 1006..=1006).await;
    let second = stream.next_rows().await;
    assert_eq!(second.ids(), [1006]);
    let own = stream_of(
        &dash
            .page_as("bound", "/log?follow=true&status=completed")
            .await,
    );
    // The connection is cut. Without followers nobody reads the log.
    drop(stream);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    write(&scene.redis, "work:a", 1007..=1200).await;
    write(&scene.redis, "other:b", 1201..=1201).await;
    let mut stream = Stream::open(&dash, "viewer", &target, Some(&second.id)).await;
    let missed = stream.next().await;
    assert_eq!(missed.ids(), (1007..=1201).rev().collect::<Vec<_>>());
    assert!(!missed.html.contains("passed over"));
    // Another user sees other rows, and cannot use this position. The parameter has the same effect.
    let target = target.replace(target.rsplit('=').next().expect("a position"), &second.id);
    assert_eq!(dash.page_as("bound", &target).await.status, 400);
    let mut bound = Stream::open(&dash, "bound", &own, None).await;
    assert_eq!(
        bound.next().await.ids(),
        (1007..=1200).rev().collect::<Vec<_>>()
    );
    let mut other = Stream::open(&dash, "viewer", &format!("{target}&object=other:b"), None).await;
    assert_eq!(other.next().await.ids(), [1201]);
    write(&scene.redis, "other:b", 1202..=1202).await;
    assert_eq!(
        (
            stream.next_rows().await.ids(),
            other.next_rows().await.ids()
        ),
        (vec![1202], vec![1202])
    );
    for bad in ["x", "1-1", "1-1.x"] {
        let found = dash
            .page_as("viewer", &format!("/log/stream?after={bad}"))
            .await;
        assert_eq!(found.status, 400, "{found:?}");
    }
}

/// Tests that a page gets at most 100 rows per second, and the number of the others.
#[tokio::test]
async fn a_followed_log_has_at_most_100_rows_per_second() {
    let (scene, dash) = Scene::with_dash().await;
    let mut stream = Stream::open(&dash, "viewer", "/log/stream?object=many", None).await;
    assert!(
        !stream.next().await.html.contains("<tr>"),
        "the stream begins at the end of the log"
    );
    write(&scene.redis, "many", 1..=180).await;
    let found = stream.next_rows().await;
    assert_eq!(found.ids(), (81..=180).rev().collect::<Vec<_>>());
    assert!(
        found.html.contains("80 rows were passed over here"),
        "{}",
        found.html
    );
    // A look reads at most 200 rows. If more have come, it reads the newest 100.
    write(&scene.redis, "many", 181..=1000).await;
    let found = stream.next_rows().await;
    assert_eq!(found.ids(), (901..=1000).rev().collect::<Vec<_>>());
    assert!(
        found
            .html
            .contains("720 rows of the whole log were passed over here"),
        "{}",
        found.html
    );
    write(&scene.redis, "many", 1001..=1001).await;
    let last = stream.next_rows().await;
    assert!(
        last.ids() == [1001] && !last.html.contains("passed over"),
        "{}",
        last.html
    );
    // After a long cut, there are 300 rows, and the number of the others.
    drop(stream);
    tokio::time::sleep(Duration::from_millis(3500)).await;
    write(&scene.redis, "many", 1002..=2000).await;
    let mut stream = Stream::open(&dash, "viewer", "/log/stream", Some(&last.id)).await;
    let found = stream.next().await;
    assert_eq!(found.ids(), (1701..=2000).rev().collect::<Vec<_>>());
    assert!(
        found
            .html
            .contains("699 rows of the whole log were passed over here"),
        "{}",
        found.html
    );
    // Redis loses the log. Its clock runs behind the lost rows.
    let mut conn = scene.redis.connect().await;
    let log = scene.redis.keys().event_log();
    let () = redis::pipe()
        .cmd("DEL")
        .arg(&log)
        .ignore()
        .query_async(&mut conn)
        .await
        .expect("deleted");
    let row = [
        "id",
        "7",
        "prev",
        "0",
        "object",
        "many",
        "event",
        "1",
        "status",
        "completed",
        "attempts",
        "0",
    ];
    let _: String = redis::cmd("XADD")
        .arg(&log)
        .arg("1000-0")
        .arg(&row)
        .query_async(&mut conn)
        .await
        .expect("added");
    let found = stream.next_rows().await;
    assert!(
        found.html.contains("Redis has lost rows here"),
        "{}",
        found.html
    );
    let _: String = redis::cmd("XADD")
        .arg(&log)
        .arg("1001-0")
        .arg(&row)
        .query_async(&mut conn)
        .await
        .expect("added");
    assert_eq!(stream.next_rows().await.ids(), [7]);
}
