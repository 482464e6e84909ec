//! Tests object names that other programs pushed: in log lines, in outputs and on the command line.
//! Also tests names that look like keys of a namespace.

use std::process::Output;

use redis::aio::MultiplexedConnection;
use serde_json::Value;

use crate::support::console::PATIENCE;
use crate::support::output::command_at;
use crate::support::process::{Process, sent_to};
use crate::support::{Redis, until};

/// Names that the library refuses to emit. Workers hold such objects, and only an operator can
/// handle their events.
const UNFIT: [(&[u8], &str); 5] = [
    (b"work:1\n", r"work:1\n"),
    (
        b"a\n2026-01-01T00:00:00Z ERROR seriatim: forged",
        r"a\n2026-01-01T00:00:00Z ERROR seriatim: forged",
    ),
    (b"\x1b[2J\x1b[31mred\x7f", r"\u{1b}[2J\u{1b}[31mred\u{7f}"),
    (b"bad\xff", r"bad\xff"),
    ("next\u{85}line".as_bytes(), r"next\u{85}line"),
];
/// Valid names that are shown escaped, or contain a character that an escape also uses.
const ODD: [(&str, &str); 4] = [
    ("a\u{200b}b\u{feff}", r"a\u{200b}b\u{feff}"),
    ("a\u{2028}b\u{2029}c", r"a\u{2028}b\u{2029}c"),
    (
        "user\u{202e}gpj.exe\u{2066}",
        r"user\u{202e}gpj.exe\u{2066}",
    ),
    (r"C:\new", r"C:\\new"),
];

async fn push(conn: &mut MultiplexedConnection, object: &[u8], event: &str) {
    let queue = [object, b":events"].concat();
    let mut multi = redis::pipe();
    multi
        .atomic()
        .cmd("LPUSH")
        .arg(queue)
        .arg(event)
        .cmd("LPUSH")
        .arg("objects.with.events")
        .arg(object);
    multi.query_async::<()>(conn).await.expect("an emit");
}

fn seriatim(redis: &Redis, args: &[&str]) -> Output {
    let output = command_at(redis.url(), args).output();
    let output = output.expect("the program runs");
    for text in [&output.stdout, &output.stderr] {
        shows_nothing_raw(std::str::from_utf8(text).expect("UTF-8"));
    }
    output
}

fn stdout(output: Output) -> String {
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[track_caller]
fn shows_nothing_raw(text: &str) {
    let raw = |c: char| {
        c != '\n' && c.is_control() || "\u{200b}\u{2028}\u{2029}\u{202e}\u{2066}".contains(c)
    };
    assert!(!text.contains(raw), "{text:?}");
}

/// Returns the objects that `held list` prints. Each object begins a line.
fn held(redis: &Redis) -> Vec<String> {
    let listed = stdout(seriatim(redis, &["held", "list"]));
    let names = listed.lines().filter(|line| !line.starts_with("  "));
    names
        .map(|line| {
            line.rsplit_once("  operator,")
                .expect("until released")
                .0
                .to_owned()
        })
        .collect()
}

/// Story: a worker delivered the events of an object whose name ended with a line break from a
/// shell. No command could name that object, and `check` said "clean". Names and errors went
/// unescaped into the log: a name could forge log lines and send escape sequences to the terminal.
#[tokio::test]
async fn names_that_no_output_can_show_are_held_and_escaped() {
    let redis = Redis::own(&[]);
    let mut conn = redis.connect().await;
    for (name, _) in UNFIT {
        push(&mut conn, name, "1").await;
        push(&mut conn, name, "\"\u{9b}31m\"").await;
    }
    let long = "x".repeat(513);
    push(&mut conn, long.as_bytes(), "1").await;
    for (name, _) in ODD {
        push(&mut conn, name.as_bytes(), "1").await;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("sent");
    let sink = format!("file:{}", file.display());
    let worker = Process::start_in(&redis, None, "w", &sink, &[]);
    until("all are held or delivered", PATIENCE, async || {
        (held(&redis).len() == UNFIT.len() + 1 && sent_to(&file).len() == ODD.len()).then_some(())
    })
    .await;
    let mut sent: Vec<String> = sent_to(&file).into_iter().map(|sent| sent.object).collect();
    sent.sort_unstable();
    let mut expected = ODD.map(|(name, _)| name.to_owned());
    expected.sort_unstable();
    assert_eq!(sent, expected);

    let log = worker.log();
    shows_nothing_raw(&log);
    assert!(
        log.lines().all(|line| line.starts_with("20")
            && !line.contains("Z ERROR seriatim: forged")
            || line.contains(r"a\n2026")),
        "{log}"
    );
    let checked = seriatim(&redis, &["check"]);
    assert_eq!(checked.status.code(), Some(1));
    let checked = stdout(checked);
    let mut listed = held(&redis);
    for (name, escaped) in UNFIT
        .map(|(name, escaped)| (name.to_vec(), escaped))
        .into_iter()
        .chain([(long.clone().into_bytes(), &*long)])
    {
        assert!(log.contains(escaped), "{escaped}: {log}");
        assert!(
            checked.contains(&format!("object {}", &escaped[..escaped.len().min(100)])),
            "{escaped}: {checked}"
        );
        assert!(
            listed.iter().any(|shown| shown == escaped),
            "{escaped}: {listed:?}"
        );
        // The queue of the object has lost no event.
        let left: u64 = redis::cmd("LLEN")
            .arg([&name[..], b":events.held"].concat())
            .query_async(&mut conn)
            .await
            .expect("LLEN");
        assert!(left > 0);
    }
    as_json(&redis);

    // Each printed name, given to a command, selects its object. The loop ends when no object is
    // held.
    while !listed.is_empty() {
        for name in &listed {
            let seen = stdout(seriatim(&redis, &["inspect", name]));
            assert!(seen.starts_with(&format!("object     {name}\n")), "{seen}");
            seriatim(&redis, &["held", "release", name]);
        }
        until("they are held again", PATIENCE, async || {
            (held(&redis).len() == listed.len()).then_some(())
        })
        .await;
        for name in &listed {
            assert_eq!(
                seriatim(&redis, &["held", "skip", name]).status.code(),
                Some(0),
                "{name}"
            );
        }
        let skipped = listed.len();
        listed = until("they are held again, or gone", PATIENCE, async || {
            let held = held_settled(&redis, &mut redis.connect().await).await?;
            Some(held)
        })
        .await;
        assert!(listed.len() <= skipped);
    }
    let dead = stdout(seriatim(&redis, &["dead", "list"]));
    assert!(
        UNFIT
            .iter()
            .all(|(_, escaped)| dead.matches(escaped).count() >= 2),
        "{dead}"
    );
    for (name, escaped) in ODD {
        let forgotten = stdout(seriatim(&redis, &["forget", escaped]));
        assert!(
            forgotten.starts_with(&format!("{escaped}  forgotten")),
            "{name:?}: {forgotten}"
        );
    }
    assert_eq!(seriatim(&redis, &["check"]).status.code(), Some(0));
}

/// Returns the held objects if each of them waits for an operator, or else `None`.
async fn held_settled(redis: &Redis, conn: &mut MultiplexedConnection) -> Option<Vec<String>> {
    let owned: Vec<String> = redis::cmd("KEYS")
        .arg("*:event.worker")
        .query_async::<Vec<Vec<u8>>>(conn)
        .await
        .ok()
        .map(|keys| {
            keys.into_iter()
                .map(|key| String::from_utf8_lossy(&key).into_owned())
                .collect()
        })?;
    let listed = stdout(seriatim(redis, &["held", "list", "--until-released"]));
    let waiting = listed
        .lines()
        .filter(|line| !line.starts_with("  "))
        .count();
    (waiting == owned.len()).then(|| held(redis))
}

/// JSON has the name of each object, with invalid UTF-8 replaced. If needed, a second field has the
/// escaped name.
fn as_json(redis: &Redis) {
    let lines = stdout(seriatim(redis, &["held", "list", "--json"]));
    let held: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for (name, escaped) in UNFIT {
        let object = held
            .iter()
            .find(|object| object["object_escaped"] == escaped)
            .expect("it is listed");
        assert_eq!(object["object"], String::from_utf8_lossy(name).into_owned());
    }
    assert!(
        held.iter()
            .any(|object| object.get("object_escaped").is_none()),
        "the long name is plain"
    );
}

/// Story: a producer without the library pushed a marker with the full key of an object in
/// namespace `shop`. A worker without a namespace then drained the queue of this object.
#[tokio::test]
async fn a_worker_without_a_namespace_leaves_those_of_others_alone() {
    let redis = Redis::own(&[]);
    let mut conn = redis.connect().await;
    let foreign = "{shop:0}:work:1";
    let real: Vec<&str> = vec!["3", "2", "1"];
    redis::cmd("RPUSH")
        .arg(format!("{foreign}:events"))
        .arg(&real)
        .exec_async(&mut conn)
        .await
        .expect("RPUSH");
    redis::cmd("LPUSH")
        .arg("objects.with.events")
        .arg(foreign)
        .exec_async(&mut conn)
        .await
        .expect("LPUSH");
    let checked = stdout(seriatim(&redis, &["check"]));
    assert!(
        checked.contains("object {shop:0}:work:1: it may be an object of another namespace"),
        "{checked}"
    );
    let mut worker = Process::start_in(&redis, None, "w", "stdout", &[]);
    worker
        .until_logged(
            r#"object={shop:0}:work:1 why="foreign: it may be an object of another namespace"#,
        )
        .await;
    push(&mut conn, b"work:2", "4").await;
    until("the worker goes on", PATIENCE, async || {
        redis::cmd("EXISTS")
            .arg("work:2:last.event.id")
            .query_async::<bool>(&mut conn.clone())
            .await
            .expect("EXISTS")
            .then_some(())
    })
    .await;
    worker.terminate();
    worker.ended().await;
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("{shop*")
        .query_async(&mut conn)
        .await
        .expect("KEYS");
    assert_eq!(keys, [format!("{foreign}:events")]);
    let left: Vec<String> = redis::cmd("LRANGE")
        .arg(&keys[0])
        .arg(0)
        .arg(-1)
        .query_async(&mut conn)
        .await
        .expect("a list");
    assert_eq!(left, real);
    assert_eq!(seriatim(&redis, &["check"]).status.code(), Some(0));
    for refused in [
        &["held", "release"][..],
        &["held", "skip"],
        &["inspect"],
        &["forget"],
        &["emit"],
    ] {
        let event = if refused == ["emit"] { &["1"][..] } else { &[] };
        let output = seriatim(&redis, &[refused, &[foreign], event].concat());
        assert_eq!(output.status.code(), Some(2), "{refused:?}: {output:?}");
    }
}
