//! The lists of the program: an empty list prints a message with the reason, and `log --follow`
//! survives a restart of Redis.

use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::output::command_at;

/// Story: an empty list once printed nothing. With the event log off, the empty output of `log`
/// looked as if no event had been finalized.
#[tokio::test]
async fn an_empty_list_says_so_on_standard_error() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, seriatim::keys::Keys::new());
    let printed = |arguments: &str| -> String {
        let output: Output = command_at(redis.url(), arguments)
            .output()
            .expect("the program runs");
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(0), 0),
            "{output:?}"
        );
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let off = "the event log is off, and has only events completed with errors; workers write all events with --event-log\n";
    for (arguments, expected) in [
        ("log", format!("seriatim: the event log has no row: {off}")),
        (
            "log --json --object work:1 --since 1h",
            format!("seriatim: the event log has no row of work:1 since then: {off}"),
        ),
        (
            "dead list",
            "seriatim: there is no dead letter\n".to_owned(),
        ),
        (
            "dead list --object work:1 --after 1-1",
            "seriatim: there is no dead letter of work:1 behind 1-1\n".to_owned(),
        ),
        (
            "held list",
            "seriatim: no object is held, paused or blocked\n".to_owned(),
        ),
        (
            "held list --paused",
            "seriatim: no object is paused or blocked\n".to_owned(),
        ),
        (
            "held list --until-released --json",
            "seriatim: no object waits for an operator\n".to_owned(),
        ),
        (
            "actions",
            "seriatim: there are no actions of operators yet\n".to_owned(),
        ),
        // The command asks for 0 rows, so it prints no message.
        ("dead list --limit 0", String::new()),
    ] {
        assert_eq!(printed(arguments), expected, "{arguments}");
    }
    state
        .run("HSET", &["seriatim.meta", "event.log", "on"])
        .await;
    assert_eq!(printed("log"), "seriatim: the event log has no row\n");
    // With `--log-format json`, the message is a JSON line.
    let line: serde_json::Value =
        serde_json::from_str(&printed("held list --log-format json")).expect("JSON");
    assert_eq!(
        (&line["level"], &line["fields"]["message"]),
        (
            &"INFO".into(),
            &"no object is held, paused or blocked".into()
        )
    );
}

/// A running `log --follow` with its rows and messages.
struct Follow {
    child: std::process::Child,
    rows: BufReader<std::process::ChildStdout>,
    messages: BufReader<std::process::ChildStderr>,
}

impl Follow {
    fn start(url: &str) -> Self {
        // Loads the script of `log` into Redis, so that the first call of `log --follow` succeeds.
        let warmed = command_at(url, "log").output().expect("the program runs");
        assert!(warmed.status.success(), "{warmed:?}");
        let mut child = command_at(url, "log --follow --json");
        let mut child = child
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let (rows, messages) = (
            child.stdout.take().expect("piped"),
            child.stderr.take().expect("piped"),
        );
        Self {
            child,
            rows: BufReader::new(rows),
            messages: BufReader::new(messages),
        }
    }

    /// Waits for the next row, and returns the id of its event.
    fn row(&mut self) -> u64 {
        let mut line = String::new();
        self.rows.read_line(&mut line).expect("UTF-8");
        let row: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        row["id"].as_u64().expect("an id")
    }

    /// Waits for the next message, and returns it.
    fn message(&mut self) -> String {
        let mut line = String::new();
        self.messages.read_line(&mut line).expect("UTF-8");
        line
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn row(redis: &Redis, id: u64) {
    redis
        .console()
        .await
        .run::<String>(&[
            "XADD",
            "event.log",
            "*",
            "status",
            "completed",
            "object",
            "x",
            "id",
            &id.to_string(),
        ])
        .await;
}

/// Story: `log --follow` once ended when Redis was restarted. Now it reports the outage once,
/// waits, and continues behind the last row shown. If Redis has kept its rows, each row is shown
/// exactly once. This includes rows written before the command reconnected.
#[tokio::test]
async fn following_the_log_outlives_a_restart() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    redis
        .console()
        .await
        .run::<u64>(&["HSET", "seriatim.meta", "event.log", "on"])
        .await;
    row(&redis, 1).await;
    let mut follow = Follow::start(redis.url());
    following(&redis, &mut follow).await;
    row(&redis, 3).await;
    assert_eq!(follow.row(), 3);
    redis.server().kill();
    let message = follow.message();
    assert!(
        message.starts_with("seriatim: Redis does not answer (")
            && message.ends_with("; waiting for it\n"),
        "{message}"
    );
    redis.server().restart();
    row(&redis, 4).await;
    assert_eq!(follow.message(), "seriatim: Redis answers again\n");
    assert_eq!(follow.row(), 4);
    row(&redis, 5).await;
    assert_eq!(follow.row(), 5);
}

/// Redis comes back empty. The command reports that rows are lost, and shows the new rows.
#[tokio::test]
async fn following_the_log_goes_on_in_an_emptied_redis() {
    let mut redis = Redis::own(&[]);
    redis
        .console()
        .await
        .run::<u64>(&["HSET", "seriatim.meta", "event.log", "on"])
        .await;
    row(&redis, 1).await;
    let mut follow = Follow::start(redis.url());
    following(&redis, &mut follow).await;
    redis.server().restart();
    assert!(follow.message().contains("Redis does not answer"));
    assert_eq!(follow.message(), "seriatim: Redis answers again\n");
    let message = follow.message();
    let beginning = "seriatim: the event log went back: 2 rows had been written to it, now ";
    assert!(
        message.starts_with(beginning)
            && message.ends_with("; continuing with the existing rows\n"),
        "{message}"
    );
    row(&redis, 7).await;
    assert_eq!(follow.row(), 7);
    // The event log begins anew, and its first row has a time before the last row shown.
    let console = redis.console().await;
    console.run::<u64>(&["DEL", "event.log"]).await;
    assert!(
        follow
            .message()
            .contains("1 rows had been written to it, now 0;"),
        "it says so again"
    );
    console
        .run::<String>(&[
            "XADD",
            "event.log",
            "5-1",
            "status",
            "completed",
            "object",
            "x",
            "id",
            "8",
        ])
        .await;
    assert_eq!(follow.row(), 8);
}

/// Story: `log --follow` once ended when its user lost a right, or when the log had another type for a
/// moment. A user who follows the log must not miss what comes after that.
#[tokio::test]
async fn following_the_log_outlives_a_refusal() {
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    console
        .run::<u64>(&["HSET", "seriatim.meta", "event.log", "on"])
        .await;
    row(&redis, 1).await;
    let mut follow = Follow::start(redis.url());
    following(&redis, &mut follow).await;
    // The user loses a right, and gets it again. Then the log has another type for a moment.
    let aside =
        "redis.call('RENAME', 'event.log', 'kept') return redis.call('SET', 'event.log', 'x')";
    let back = "return redis.call('RENAME', 'kept', 'event.log')";
    let refusals: [(&[&str], &[&str]); 2] = [
        (
            &["ACL", "SETUSER", "default", "-xinfo"],
            &["ACL", "SETUSER", "default", "+xinfo"],
        ),
        (&["EVAL", aside, "0"], &["EVAL", back, "0"]),
    ];
    for (id, (refuse, restore)) in (3..).zip(refusals) {
        console.run::<redis::Value>(refuse).await;
        let message = follow.message();
        assert!(
            message.starts_with("seriatim: Redis refuses to read the log (")
                && message.ends_with("; waiting for it\n"),
            "{message}"
        );
        console.run::<redis::Value>(restore).await;
        assert_eq!(follow.message(), "seriatim: the log can be read again\n");
        row(&redis, id).await;
        assert_eq!(follow.row(), id);
    }
    // A new password, and an old connection that ends: the reason is reported, not only the outage.
    console
        .run::<String>(&["ACL", "SETUSER", "default", "resetpass", ">new"])
        .await;
    console
        .run::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    let mut message = follow.message();
    // The end of the connection may be reported first, as an outage.
    if message.contains("does not answer") {
        message = follow.message();
    }
    assert!(message.contains("refuses to read the log"), "{message}");
    console
        .run::<String>(&["ACL", "SETUSER", "default", "nopass"])
        .await;
    assert_eq!(follow.message(), "seriatim: the log can be read again\n");
}

/// Waits until the command has read the event log to its end, so that it shows the next row.
async fn following(redis: &Redis, follow: &mut Follow) {
    crate::support::until("it follows", PATIENCE, async || {
        let clients: String = redis.console().await.run(&["CLIENT", "LIST"]).await;
        (clients
            .lines()
            .filter(|line| line.contains(" cmd=evalsha "))
            .count()
            >= 1)
            .then_some(())
    })
    .await;
    row(redis, 2).await;
    assert_eq!(follow.row(), 2);
}
