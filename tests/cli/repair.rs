//! `seriatim repair`: its output, its exit codes, and the record of its steps.

use std::process::Output;

use serde_json::Value;

use crate::support::Redis;

fn seriatim(redis: &Redis, arguments: &[&str]) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = redis.run(arguments);
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    (
        status.code().expect("a code"),
        String::from_utf8(stdout).expect("UTF-8"),
    )
}

#[tokio::test]
async fn a_repair_is_shown_first_and_recorded_once() {
    let (redis, mut state) = Redis::start().with_state().await;
    state.clean().await;
    assert_eq!(
        seriatim(&redis, &["repair"]),
        (0, "nothing to repair\n".to_owned())
    );
    state.add("DEL objects.held").await;
    state
        .run("SET", &[&redis.keys().event_worker("odd\u{202e}"), "2"])
        .await;
    let (code, planned) = seriatim(&redis, &["repair", "--limit", "3"]);
    assert_eq!(code, 1, "{planned}");
    let lines: Vec<&str> = planned.lines().collect();
    assert!(
        lines[0].starts_with("held     object work:")
            && lines[0].contains(": is in objects.held again"),
        "{planned}"
    );
    let left = "left     object odd\\u{202e}: its owner 2 is no slot of a worker process of seriatim: \
                if that worker is dead, --dead-owner 2 frees the object";
    let rest = [
        "         and 1 more (--limit)",
        left,
        "4 steps (held 4); nothing was done: --yes does them",
        "left: 1 need a decision",
    ];
    assert_eq!(lines[3..], rest, "{planned}");
    let (code, done) = seriatim(
        &redis,
        &[
            "repair",
            "--yes",
            "--json",
            "--actor",
            "ada",
            "--reason",
            "ticket 812",
        ],
    );
    let done: Value = serde_json::from_str(&done).expect("JSON");
    assert_eq!(code, 1, "an owner is left: {done}");
    assert_eq!(
        (
            &done["dry_run"],
            &done["steps_total"],
            &done["kinds"]["held"],
            &done["left_total"]
        ),
        (&false.into(), &4.into(), &4.into(), &1.into())
    );
    assert_eq!(done["left"][0]["subject"]["object"], "odd\\u{202e}");
    let (code, freed) = seriatim(&redis, &["repair", "--yes", "--dead-owner", "2"]);
    assert_eq!(code, 0, "{freed}");
    assert!(
        freed.contains("freed    object odd\\u{202e}: its owner 2 is dead: it is held, due now"),
        "{freed}"
    );
    let (_, actions) = seriatim(&redis, &["actions", "--json"]);
    let actions: Vec<Value> = actions
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let repairs: Vec<_> = actions
        .iter()
        .filter(|row| row["action"] == "repair")
        .collect();
    assert_eq!(repairs.len(), 2, "{actions:?}");
    let first = repairs
        .iter()
        .find(|row| row["why"] == "ticket 812")
        .expect("a row");
    assert_eq!(
        (&first["who"], &first["many"]["count"]),
        (&"ada".into(), &4.into()),
        "{first}"
    );
    let (code, again) = seriatim(&redis, &["repair", "--yes"]);
    assert_eq!((code, again.as_str()), (0, "nothing to repair\n"));
}

/// Story: `check` printed the worker `C:\new` as `C:\\new` and as `C:\new`, and `--dead-owner` took the
/// second form alone. With the first one nothing was freed, without a word.
#[tokio::test]
async fn a_printed_owner_is_the_one_that_is_freed() {
    for owner in [r"C:\new", "a\u{200b}b", r"\u{41}"] {
        let (redis, mut state) = Redis::start().with_state().await;
        let keys = state.keys.clone();
        state
            .run("SET", &[&keys.event_worker("work:1"), owner])
            .await;
        state.run("LPUSH", &[&keys.worker_event(owner), "1"]).await;
        let shown = &*seriatim::escape::name(owner);
        for command in [&["check"][..], &["inspect", "work:1"], &["repair"]] {
            let printed = seriatim(&redis, command).1;
            let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                printed.contains(&format!("its owner {shown} is no slot of")),
                "{command:?}: {printed}"
            );
        }
        let (code, freed) = seriatim(&redis, &["repair", "--yes", "--dead-owner", shown]);
        let line = format!("freed    object work:1: its owner {shown} is dead");
        assert!(code == 0 && freed.contains(&line), "{freed}");
    }
}

/// Story: a held batch had lost its ids. `held skip` told to release the object, and after a release the
/// object was held again at once.
#[tokio::test]
async fn a_held_batch_without_ids_is_left_to_a_repair() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    state.add("DEL work:5:events.held.id").await;
    for command in ["skip", "release"] {
        let Output { status, stderr, .. } = redis.run(&["held", command, "work:5"]);
        let printed = String::from_utf8(stderr).expect("UTF-8");
        let expected = "the batch of work:5 has lost its ids: nothing was done; \
                        `seriatim repair` gives its events new ids";
        assert!(printed.contains(expected), "{command}: {printed}");
        assert_eq!(status.code(), Some(2), "{command}");
    }
    let Output { stdout, .. } = redis.run(&["inspect", "work:5"]);
    let shown = String::from_utf8(stdout).expect("UTF-8");
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains("the ids of its batch are lost: `seriatim repair`"),
        "{shown}"
    );
}

/// Story: `objects.held` was lost. `inspect` said that an object waits for an operator, while a repair
/// made it due.
#[tokio::test]
async fn an_object_that_lost_its_place_waits_for_no_operator() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    for (given, shown) in [
        ("ZADD objects.held inf work:5", "waiting for an operator"),
        ("DEL objects.held", "waiting"),
    ] {
        state.add(given).await;
        let (_, printed) = seriatim(&redis, &["inspect", "work:5"]);
        assert!(
            printed.contains(&format!("state      {shown}\n")),
            "{printed}"
        );
    }
}
