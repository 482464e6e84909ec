//! `seriatim limit` and `seriatim emit --idempotency-key`.

use crate::support::Redis;

#[test]
fn limits_are_set_listed_obeyed_and_removed() {
    let redis = Redis::start();
    assert_eq!(
        redis.prints("limit set work:* --queued 2 --reason memory"),
        "work:*: set\n"
    );
    assert_eq!(redis.prints("limit set * --markers 9"), "*: set\n");
    let people = redis.prints("limit list");
    assert!(
        people.starts_with("*\n  queued   any number\n  markers  9\n  by       "),
        "{people}"
    );
    assert!(
        people.contains("work:*\n  queued   2\n  by       ")
            && people.ends_with("  why      memory\n"),
        "{people}"
    );
    let limits = redis.json_lines("limit list --json");
    assert_eq!(
        (&limits[1]["selector"], &limits[1]["queued_max"]),
        (&"work:*".into(), &2.into())
    );
    redis.prints("emit work:1 1 2");
    let full = redis.run("emit work:1 3");
    let error = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(
        !full.status.success()
            && error
                .contains("the object has 2 events queued, and 1 more would exceed the limit of 2"),
        "{error}"
    );
    assert_eq!(redis.prints("limit remove work:*"), "work:*: removed\n");
    redis.prints("emit work:1 3");
    assert!(
        redis
            .refuses("limit remove work:*")
            .contains("there is no limit for work:*")
    );
    assert!(
        redis
            .refuses("limit set work:1 --queued 2")
            .contains("cannot have this limit")
    );
    // Story: this advised --exact, which the command does not have.
    for command in ["limit set", "share set"] {
        let refused = redis.refuses(&format!(
            "{command} a* --{}",
            match command {
                "limit set" => "queued 2",
                _ => "weight 2",
            }
        ));
        assert!(
            refused.contains("a prefix as in work:*") && !refused.contains("--exact"),
            "{command}: {refused}"
        );
    }
    assert!(
        redis
            .refuses("limit set work:* --queued 0")
            .contains("--queued")
    );
}

#[test]
fn an_emit_with_a_key_can_be_repeated() {
    let redis = Redis::start();
    let emit =
        |event: &str| redis.run(&["emit", "user:1", event, "--idempotency-key", "payment 1"]);
    for (event, code, expected) in [
        ("1", 0, ""),
        ("1", 0, "was done before, or by an earlier try"),
        ("2", 2, "was used for another emit"),
    ] {
        let output = emit(event);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code)
                && error.contains(expected)
                && (expected.is_empty() == error.is_empty()),
            "{error}"
        );
    }
    let stats = redis.prints("stats");
    assert!(
        stats.contains("emit keys     1, ") && stats.contains(" bytes\n"),
        "{stats}"
    );
}

/// Story: after a full queue, the advice once was to skip fewer lines than were acknowledged.
#[test]
fn a_file_with_a_full_object_tells_which_lines_are_not_emitted() {
    let redis = Redis::start();
    redis.prints("limit set full:* --queued 2");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("events.ndjson");
    let lines: Vec<_> = (0..900)
        .map(|n| match n % 300 {
            7 => r#"{"object":"full:1","event":1}"#.to_owned(),
            _ => format!(r#"{{"object":"other:{}","event":{n}}}"#, n % 200),
        })
        .collect();
    std::fs::write(&file, lines.join("\n")).expect("a file");
    let output = redis.run(&["emit", "--from", file.to_str().expect("a path")]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("of full:1 are not emitted, all other lines up to 900 are acknowledged"),
        "{error}"
    );
    assert!(error.contains("continue with --skip 900"), "{error}");
}
