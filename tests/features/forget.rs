//! Forgetting idle objects: an operator forgets them by name, or a worker some time after their
//! last event.

use std::io::Write as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use seriatim::consume::{Gate, Start, Verdict};
use seriatim::control::{Action, By, ControlError, Forgot};

use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::operator::{Reads, assert_denied, assert_wrong_type};
use crate::support::recorder::{Act, Gate as Barrier, Recorder};
use crate::support::running::start;
use crate::support::{Redis, assert_matches, control, until};

/// Runs `seriatim forget` against this Redis, with this text on standard input.
fn seriatim(redis: &Redis, arguments: &[&str], input: &[u8]) -> Output {
    let mut program = redis.command("forget");
    program.args(arguments);
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).expect("written");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8(output.stdout.clone())
        .expect("UTF-8")
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The command forgets idle objects, and keeps every other object with a reason. It exits with code
/// 1 if it did not forget all of them.
#[tokio::test]
async fn the_command_forgets_what_is_idle_and_keeps_the_rest() {
    let (redis, mut state) = Redis::start().with_state().await;
    state.clean().await;
    let output = seriatim(
        &redis,
        &["bare", "never", "work:1", "work:2", "work:5"],
        b"",
    );
    let message = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "one was kept: {message}");
    assert!(
        message.contains("never is unknown,") && message.lines().count() == 1,
        "{message}"
    );
    let expected = [
        "bare  forgotten, its last id was 16",
        "never  unknown",
        "work:1  kept: 2 of its events are queued",
        "work:2  kept: worker a.0 has it",
        "work:5  kept: it is held; seriatim inspect shows the reason",
    ];
    assert_eq!(lines(&output), expected);
    assert!(
        !redis
            .console()
            .await
            .left()
            .await
            .contains(&"bare:last.event.id".to_owned())
    );
    let output = seriatim(&redis, &["--json", "bare", "work:1"], b"");
    let expected = [
        r#"{"object":"bare","outcome":"unknown"}"#,
        r#"{"object":"work:1","outcome":"queued","events":2}"#,
    ]
    .map(str::to_owned);
    assert_eq!(
        (lines(&output), output.status.code()),
        (expected.to_vec(), Some(1))
    );
    redis.console().await.check().await;
}

/// Story: a misspelt name once ended with exit code 0, as if the object had been forgotten.
#[tokio::test]
async fn a_name_of_which_nothing_is_known_is_told() {
    let (redis, mut state) = Redis::start().with_state().await;
    state.delivered("work:1", 3).await;
    state.delivered("work:2", 4).await;
    let output = seriatim(&redis, &["work:l", "work:1", "work:I"], b"");
    let message = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(
        (output.status.code(), lines(&output).len()),
        (Some(2), 3),
        "{message}"
    );
    let beginning = "seriatim: 2 of the objects are unknown, so nothing was forgotten for them; the first is work:l: ";
    assert!(
        message.starts_with(beginning) && message.lines().count() == 1,
        "{message}"
    );
    let output = seriatim(&redis, &["--ignore-unknown", "work:l", "work:2"], b"");
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{output:?}"
    );
    assert_eq!(
        lines(&output),
        ["work:l  unknown", "work:2  forgotten, its last id was 4"]
    );
}

/// The command reads any number of names from standard input, one per line. An invalid name is
/// reported with its line number, after the names before it were handled.
#[tokio::test]
async fn names_come_from_standard_input() {
    let (redis, mut state) = Redis::start().with_state().await;
    let mut names = String::new();
    for n in 0..2500 {
        let object = format!("work:{n}");
        state
            .run("SET", &[&state.keys.last_event_id(&object), "7"])
            .await;
        names += &format!("{object}\r\n\n");
    }
    state.given(7).await;
    let output = seriatim(&redis, &["first", "-", "last"], names.as_bytes());
    assert_eq!(
        (output.status.code(), lines(&output).len()),
        (Some(2), 2502)
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("2 of the objects"),
        "{output:?}"
    );
    assert_eq!(redis.console().await.left().await, ["next.event.id"]);

    state.delivered("good", 8).await;
    let output = seriatim(&redis, &["-"], b"good\nb\\d\nnever\n");
    let message = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(
        (output.status.code(), lines(&output)),
        (
            Some(2),
            vec!["good  forgotten, its last id was 8".to_owned()]
        )
    );
    assert!(
        message.contains("line 2 of standard input") && message.lines().count() == 1,
        "{message}"
    );
    for arguments in [&[][..], &[r"a\b"], &[""]] {
        assert_eq!(
            seriatim(&redis, arguments, b"").status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

/// The library forgets objects, too. If a name is invalid, the library forgets no object.
#[tokio::test]
async fn the_library_forgets_in_the_order_of_the_names() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    state.delivered("a", 3).await;
    state.emit("b", "1").await;
    let refused = control.forget(&["a", ""]).await;
    assert_matches!(refused, Err(ControlError::Name(_)));
    let forgot = control.forget(&["b", "a", "c"]).await.expect("an answer");
    assert_eq!(
        forgot,
        [
            Forgot::Queued { events: 1 },
            Forgot::Forgotten {
                last_event_id: "3".to_owned()
            },
            Forgot::Unknown
        ]
    );
    assert_eq!(control.forget(&[""; 0]).await.expect("an answer"), []);
}

const ADA: By<'static> = By {
    who: "ada@host",
    why: "sold",
};

async fn actions(state: &State) -> Vec<Action> {
    let control = state.control();
    control.recorded(32).await
}

/// Forgetting as an operator is recorded with the operator, the reason, the object and its last id.
/// If the object is kept or unknown, nothing is recorded.
#[tokio::test]
async fn an_operator_forgets_with_a_record() {
    let (redis, mut state) = Redis::start().with_state().await;
    state.clean().await;
    let control = state.control();
    for (object, kept) in [
        ("never", Forgot::Unknown),
        ("work:1", Forgot::Queued { events: 2 }),
        (
            "work:2",
            Forgot::Owned {
                owner: "a.0".to_owned(),
            },
        ),
        ("work:5", Forgot::Held),
    ] {
        assert_eq!(
            control.forget_as(ADA, object).await.expect("an answer"),
            kept,
            "{object}"
        );
    }
    state.add("HSET later:events.scheduled k 1").await;
    assert_eq!(
        control.forget_as(ADA, "later").await.expect("an answer"),
        Forgot::Scheduled { events: 1 }
    );
    state.add("DEL later:events.scheduled").await;
    assert_matches!(control.forget_as(ADA, "").await, Err(ControlError::Name(_)));
    assert_eq!(actions(&state).await, []);

    assert_eq!(
        control.forget_as(ADA, "bare").await.expect("an answer"),
        Forgot::Forgotten {
            last_event_id: "16".to_owned()
        }
    );
    assert_eq!(
        control.forget_as(ADA, "bare").await.expect("an answer"),
        Forgot::Unknown
    );
    let done = actions(&state).await;
    let found: Vec<_> = done
        .iter()
        .map(|one| (&*one.action, &*one.who, &*one.why, &*one.object, one.id))
        .collect();
    assert_eq!(found, [("forget", "ada@host", "sold", "bare", Some(16))]);
    assert!(
        !redis
            .console()
            .await
            .left()
            .await
            .contains(&"bare:last.event.id".to_owned())
    );

    // The object's name has any bytes, and its last id was written by hand.
    let odd = b"odd\xff\n";
    let key = [state.keys.prefix().as_bytes(), odd, b":last.event.id"].concat();
    redis::cmd("SET")
        .arg(key)
        .arg("1e5")
        .exec_async(&mut state.conn)
        .await
        .expect("set");
    assert_eq!(
        control.forget_as(ADA, odd).await.expect("an answer"),
        Forgot::Forgotten {
            last_event_id: "1e5".to_owned()
        }
    );
    let done = actions(&state).await;
    assert_eq!(
        (done[0].object_escaped.as_deref(), done[0].id),
        (Some("odd\\xff\\n"), None)
    );
    let rows: Vec<(String, Vec<redis::Value>)> = redis
        .console()
        .await
        .run(&[
            "XREVRANGE",
            &state.keys.operator_actions(),
            "+",
            "-",
            "COUNT",
            "1",
        ])
        .await;
    assert_eq!(
        rows[0].1[9],
        redis::Value::BulkString(Vec::new()),
        "the text that is no id is left out"
    );
    redis.console().await.check().await;
}

/// A missing right, or a key of a wrong type, is found before the first deletion.
#[tokio::test]
async fn an_operator_forgets_with_a_record_or_not_at_all() {
    let (redis, mut state) = Redis::own(&[]).with_state().await;
    let keys = state.keys.clone();
    state.delivered("a", 3).await;
    for command in ["xadd", "del", "hkeys"] {
        let weak = redis.control_without(command).await;
        assert_denied(&weak.forget_as(ADA, "a").await, command);
    }
    let control = state.control();
    for key in [
        keys.objects_held(),
        keys.objects_paused(),
        keys.operator_actions(),
    ] {
        state.run("SET", &[&key, "wrong"]).await;
        assert_wrong_type(&control.forget_as(ADA, "a").await, &key);
        state.run("DEL", &[&key]).await;
    }
    assert_eq!(state.console().last_id("a").await, 3);
    state.add("RPUSH a:event.worker wrong").await;
    let forgot = control.forget_as(ADA, "a").await.expect("an answer");
    let key = "a:event.worker".to_owned();
    assert_eq!(forgot, Forgot::Wrong { key });
    assert_eq!(actions(&state).await, []);
}

/// An operator who forgets objects also needs the right to DEL, as docs/protocol.md says.
#[tokio::test]
async fn an_operator_needs_one_right_more() {
    let (redis, mut state) = Redis::own(&[]).with_state().await;
    let prefix = redis.keys().prefix();
    let rules = format!("on >PASSWORD ~{prefix}* +@read +time +evalsha +script|load");
    redis.set_user("operator", &rules).await;
    state.delivered("a", 3).await;
    let operator = control(&redis.connect_as("operator").await, redis.keys());
    assert!(operator.forget(&["a"]).await.is_err());
    redis.set_user("operator", "+del").await;
    let forgot = operator.forget(&["a"]).await.expect("an answer");
    let last_event_id = "3".to_owned();
    assert_eq!(forgot, [Forgot::Forgotten { last_event_id }]);
}

async fn fades(console: &Console, object: &str) -> i64 {
    console
        .run(&["PTTL", &console.keys.last_event_id(object)])
        .await
}

/// A worker forgets an object some time after its last event, but not while an event is in flight.
/// The object's next event begins a new chain. A receiver that remembers the object applies this
/// event.
#[tokio::test]
async fn a_worker_forgets_after_a_while() {
    let (redis, console) = Redis::start().with_console().await;
    let barrier = Barrier::closed();
    let held_up = barrier.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "2" {
            Act::Wait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.forget_after = Some(Duration::from_secs(1))
    });
    console.emit("work:1", "1").await;
    until("its time begins", PATIENCE, async || {
        (fades(&console, "work:1").await > 0).then_some(())
    })
    .await;
    // The next event comes before the object is forgotten.
    console.emit("work:1", "2").await;
    barrier.until_reached(1).await;
    assert_eq!(
        fades(&console, "work:1").await,
        -1,
        "it does not fade under a batch"
    );
    barrier.open();
    sink.until_sent(2).await;
    until("it is forgotten", PATIENCE, async || {
        (fades(&console, "work:1").await == -2).then_some(())
    })
    .await;
    console.emit("work:1", "3").await;
    sink.until_sent(3).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev))
        .collect();
    assert_eq!(sent, [(1, 0), (2, 1), (3, 0)]);
    // One receiver remembers the object, a second receiver does not.
    for seen in [&sent[..], &sent[2..]] {
        let mut gate = Gate::new(Start::Origin);
        for (id, prev) in seen {
            assert_eq!(
                gate.check("work:1", *id, *prev).await.expect("sound"),
                Verdict::Apply
            );
            gate.applied("work:1", *id, *prev).await.expect("recorded");
        }
    }
    console.until_at_rest().await;
}

/// Without `forget_after`, no last id expires.
#[tokio::test]
async fn a_worker_forgets_nothing_unless_told_to() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(fades(&console, "work:1").await, -1);
}
