//! A producer needs only Redis. In these tests, plain `MULTI` transactions are typed into
//! `redis-cli`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::Redis;
use crate::support::recorder::Recorder;
use crate::support::running::start;

/// Types these lines into `redis-cli`. Returns its output.
fn redis_cli(redis: &Redis, lines: &str) -> String {
    let socket = redis
        .url()
        .strip_prefix("unix://")
        .expect("a server of this test's own");
    let program = ["redis-cli", "valkey-cli"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
        .expect("this test needs redis-cli or valkey-cli on the PATH; it comes with the server");
    let mut cli = Command::new(program)
        .args(["-s", socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    cli.stdin
        .take()
        .expect("a pipe")
        .write_all(lines.as_bytes())
        .expect("it reads");
    let out = cli.wait_with_output().expect("it ends");
    assert!(out.status.success());
    String::from_utf8(out.stdout).expect("text")
}

/// With the rights that docs/protocol.md lists, a user can schedule and cancel, and cannot write
/// other keys.
#[tokio::test]
async fn the_schedules_of_the_protocol_work_with_redis_cli_and_its_rights() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let p = console.keys.prefix();
    let protocol =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol.md"))
            .expect("the protocol");
    let line = protocol
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("ACL SETUSER scheduler "))
        .expect("its rights");
    redis_cli(&redis, &format!("{}\n", line.replace("{shop:0}:", p)));
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    // The commands make one schedule and replace it by one that is due at once. They make another
    // schedule and cancel it.
    let said = redis_cli(
        &redis,
        &format!(
            r#"
AUTH scheduler PASSWORD
MULTI
HSET {p}user:1:events.scheduled renew '{{"type":"monthly"}}'
ZADD {p}events.scheduled 99999999999999 "user:1\nrenew"
EXEC
MULTI
HSET {p}user:1:events.scheduled renew '{{"type":"yearly"}}'
ZADD {p}events.scheduled 1 "user:1\nrenew"
ZADD {p}events.scheduled.wake 0 wake
EXEC
MULTI
HSET {p}user:2:events.scheduled renew '{{"type":"monthly"}}'
ZADD {p}events.scheduled 99999999999999 "user:2\nrenew"
EXEC
MULTI
HDEL {p}user:2:events.scheduled renew
ZREM {p}events.scheduled "user:2\nrenew"
EXEC
"#
        ),
    );
    assert!(
        !said.contains("ERR") && !said.contains("NOPERM") && said.contains("QUEUED"),
        "{said}"
    );
    let refused = redis_cli(
        &redis,
        &format!("AUTH scheduler PASSWORD\nZADD {p}objects.held 1 x\nLPUSH {p}user:1:events 1\n"),
    );
    assert_eq!(refused.matches("NOPERM").count(), 2, "{refused}");
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("user:1"), [r#"{"type":"yearly"}"#]);
    console.check().await;
    let left: u64 = console
        .run(&["ZCARD", &console.keys.events_scheduled()])
        .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_multi_typed_into_redis_cli_is_an_emit() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let p = console.keys.prefix();
    let said = redis_cli(
        &redis,
        &format!(
            r#"
MULTI
SET {p}work:1:data '{{"title":"Faust"}}'
LPUSH {p}work:1:events '{{"created":"work:1"}}' '{{"author":"Goethe"}}'
LPUSH {p}objects.with.events work:1
EXEC
MULTI
LPUSH {p}work:1:events '{{"title":"Faust II"}}'
LPUSH {p}objects.with.events work:1
EXEC
LPUSH {p}objects.with.events ""
"#
        ),
    );
    assert!(!said.contains("ERR") && said.contains("QUEUED"), "{said}");
    sink.until_sent(3).await;
    console
        .run::<u64>(&["DEL", &console.keys.data("work:1")])
        .await;
    console.until_at_rest().await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev))
        .collect();
    let events = [
        (r#"{"created":"work:1"}"#, 1, 0),
        (r#"{"author":"Goethe"}"#, 2, 1),
        (r#"{"title":"Faust II"}"#, 3, 2),
    ];
    assert_eq!(
        sent,
        events.map(|(event, id, prev)| (event.to_owned(), id, prev))
    );
    assert_eq!(
        redis_cli(&redis, &format!("GET {p}work:1:last.event.id\n")).trim(),
        "3"
    );
}
