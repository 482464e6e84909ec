//! Tests that every command prints a name in one form, takes it in this form, and means the same name.

use std::process::Output;

use redis::aio::MultiplexedConnection;
use serde_json::Value;
use seriatim::escape;

use crate::support::Redis;
use crate::support::output::command_at;

/// Valid names that look different when they are escaped, or look like escapes.
const HOSTILE: [&str; 9] = [
    r"C:\new",
    r"a\\b",
    r"tail\",
    "a\u{200b}b\u{feff}",
    "user\u{202e}gpj.exe",
    "line\u{2028}end",
    "two  words \"quoted\" 'twice'",
    r"\u{41}",
    "é:日本",
];

fn run(redis: &Redis, args: &[&str]) -> Output {
    let output = command_at(redis.url(), args).output();
    output.expect("the program runs")
}

/// Returns the output of a command that must succeed.
#[track_caller]
fn done(redis: &Redis, args: &[&str]) -> String {
    let output = run(redis, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

async fn fields(conn: &mut MultiplexedConnection, key: &str) -> Vec<String> {
    let all: Vec<String> = redis::cmd("HKEYS")
        .arg(key)
        .query_async(conn)
        .await
        .expect("HKEYS");
    // Rules have a further field, with the time of the next end.
    all.into_iter().filter(|field| field != "next").collect()
}

/// Story: `inspect` printed the object `C:\new` as `C:\\new`. `pause 'C:\\new'`, copied from there,
/// paused another object whose name has two backslashes, with exit code 0. `block`, `share`, `limit`,
/// `emit`, `schedule` and `cron` did the same.
#[tokio::test]
async fn a_printed_name_given_to_any_command_means_the_same_object() {
    let redis = Redis::own(&[]);
    let mut conn = redis.connect().await;
    for name in HOSTILE {
        let shown = &*escape::name(name);
        done(&redis, &["emit", shown, "1"]);
        let queued: u64 = redis::cmd("LLEN")
            .arg(format!("{name}:events"))
            .query_async(&mut conn)
            .await
            .expect("LLEN");
        assert_eq!(queued, 1, "emit {shown}");
        let seen = done(&redis, &["inspect", shown]);
        let printed = seen
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("object     "))
            .expect("a name");
        assert_eq!(printed, shown);

        for (set, lift) in [("pause", "resume"), ("block", "unblock")] {
            assert!(done(&redis, &[set, "--exact", printed]).starts_with(&format!("{shown} is ")));
            assert_eq!(
                fields(&mut conn, "event.rules").await,
                [format!("{set} {name}")]
            );
            let rules = done(&redis, &["rules"]);
            let printed = rules
                .lines()
                .next()
                .and_then(|line| line.strip_prefix(set)?.strip_prefix(' '))
                .expect("a rule");
            assert!(
                done(&redis, &["inspect", printed])
                    .contains(&format!("rule       {set} {shown}\n"))
            );
            done(&redis, &[lift, printed]);
            conn_del(&mut conn, "event.rules").await;
        }

        let added = done(
            &redis,
            &["schedule", "add", shown, "1", "--in", "1h", "--key", shown],
        );
        assert!(
            added.contains(&format!("  {shown}  {shown}  (new)")),
            "{added}"
        );
        assert_eq!(
            fields(&mut conn, &format!("{name}:events.scheduled")).await,
            [name]
        );
        let listed = done(&redis, &["schedule", "list"]);
        assert_eq!(listed.lines().next(), Some(&*format!("{shown}  {shown}")));
        assert_eq!(
            done(&redis, &["schedule", "list", "--object", shown])
                .lines()
                .next(),
            listed.lines().next()
        );
        let line: Value =
            serde_json::from_str(&done(&redis, &["schedule", "list", "--json"])).expect("JSON");
        assert_eq!(
            (&line["object"], &line["key"]),
            (&name.into(), &name.into())
        );
        let escaped = escape::differing(name.as_bytes()).map_or(Value::Null, Value::from);
        assert_eq!(
            (&line["object_escaped"], &line["key_escaped"]),
            (&escaped, &escaped)
        );
        assert!(done(&redis, &["inspect", shown]).contains(&format!(": {shown}\n")));
        done(&redis, &["schedule", "cancel", shown, shown]);
        assert_eq!(
            run(&redis, &["schedule", "cancel", shown, shown])
                .status
                .code(),
            Some(2)
        );

        assert_eq!(
            done(&redis, &["cron", "add", shown, "@daily", shown, "1"]),
            format!("{shown}: added\n")
        );
        assert_eq!(fields(&mut conn, "events.cron").await, [name]);
        let listed = done(&redis, &["cron", "list"]);
        assert!(
            listed.starts_with(&format!("{shown}  @daily"))
                && listed.contains(&format!("object  {shown}, ")),
            "{listed}"
        );
        let job: Value =
            serde_json::from_str(&done(&redis, &["cron", "list", "--json"])).expect("JSON");
        assert_eq!(
            (&job["name"], &job["object"], &job["name_escaped"]),
            (&name.into(), &name.into(), &escaped)
        );
        for (step, word) in [
            ("pause", "paused"),
            ("resume", "resumed"),
            ("run-now", "queued its event"),
            ("remove", "removed"),
        ] {
            assert_eq!(
                done(&redis, &["cron", step, shown]),
                format!("{shown}: {word}\n")
            );
        }
        assert_eq!(
            run(&redis, &["cron", "remove", shown]).status.code(),
            Some(2)
        );

        let (selector, shown_selector) = (format!("{name}:*"), format!("{shown}:*"));
        for (command, option, key) in [
            ("limit", "--queued", "event.limits"),
            ("share", "--weight", "event.shares"),
        ] {
            assert_eq!(
                done(&redis, &[command, "set", &shown_selector, option, "7"]),
                format!("{shown_selector}: set\n")
            );
            assert_eq!(
                fields(&mut conn, key).await,
                std::slice::from_ref(&selector)
            );
            assert_eq!(
                done(&redis, &[command, "list"]).lines().next(),
                Some(&*shown_selector)
            );
            done(&redis, &[command, "remove", &shown_selector]);
        }
        let actions = done(&redis, &["actions"]);
        for line in [
            format!("pause  {shown}\n"),
            format!("limit-set  {shown_selector}\n"),
            format!("cron-remove  {shown}  cron job {shown}\n"),
        ] {
            assert!(actions.contains(&line), "{line:?} is not in {actions}");
        }
        held(&redis, &mut conn, name, shown).await;
        conn_del(&mut conn, &format!("{name}:events")).await;
        conn_del(&mut conn, "objects.with.events").await;
    }
}

async fn conn_del(conn: &mut MultiplexedConnection, key: &str) {
    redis::cmd("DEL")
        .arg(key)
        .exec_async(conn)
        .await
        .expect("DEL");
}

/// Holds the object, and releases it by its name and by its prefix.
async fn held(redis: &Redis, conn: &mut MultiplexedConnection, name: &str, shown: &str) {
    for release in [
        &["held", "release", shown][..],
        &["held", "release", "--prefix", shown],
    ] {
        let mut multi = redis::pipe();
        multi
            .atomic()
            .cmd("ZADD")
            .arg("objects.held")
            .arg("inf")
            .arg(name);
        multi
            .cmd("SET")
            .arg(format!("{name}:event.worker"))
            .arg("held");
        multi.query_async::<()>(conn).await.expect("it is held");
        let listed = done(redis, &["held", "list"]);
        assert!(
            listed.starts_with(&format!("{shown}  operator, ")),
            "{listed}"
        );
        assert!(done(redis, release).contains("released"), "{release:?}");
        let score: f64 = redis::cmd("ZSCORE")
            .arg("objects.held")
            .arg(name)
            .query_async(conn)
            .await
            .expect("ZSCORE");
        assert!(score.is_finite(), "{release:?}");
    }
    conn_del(conn, "objects.held").await;
    conn_del(conn, &format!("{name}:event.worker")).await;
}

/// Tests that a backslash that begins no escape is an error of every command, before anything is done.
#[tokio::test]
async fn a_backslash_that_begins_no_escape_is_an_error_everywhere() {
    let redis = Redis::own(&[]);
    const BAD: &str = r"a\q";
    for args in [
        &["emit", BAD, "1"][..],
        &["inspect", BAD],
        &["pause", BAD],
        &["pause", "--exact", BAD],
        &["block", BAD],
        &["resume", BAD],
        &["unblock", BAD],
        &["limit", "set", BAD, "--queued", "1"],
        &["limit", "remove", BAD],
        &["share", "set", BAD, "--weight", "1"],
        &["share", "remove", BAD],
        &["schedule", "add", BAD, "1", "--in", "1h"],
        &["schedule", "add", "a", "1", "--in", "1h", "--key", BAD],
        &["schedule", "list", "--object", BAD],
        &["schedule", "cancel", BAD, "k"],
        &["schedule", "cancel", "a", BAD],
        &["cron", "add", BAD, "@daily", "a", "1"],
        &["cron", "add", "a", "@daily", BAD, "1"],
        &["cron", "remove", BAD],
        &["cron", "pause", BAD],
        &["held", "release", BAD],
        &["held", "release", "--prefix", BAD],
        &["held", "skip", BAD],
        &["dead", "list", "--object", BAD],
        &["dead", "retry", "--all", "--object", BAD],
        &["log", "--object", BAD],
        &["forget", BAD],
        &["token", "new", "ada", "--prefix", BAD],
    ] {
        let output = run(&redis, args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(said.contains("backslash"), "{args:?}: {said}");
    }
    let mut conn = redis.connect().await;
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("[^{]*")
        .query_async(&mut conn)
        .await
        .expect("KEYS");
    assert_eq!(keys, [""; 0]);
}
