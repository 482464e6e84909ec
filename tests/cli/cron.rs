//! `seriatim cron`.

use serde_json::Value;

use crate::support::Redis;

#[test]
fn a_job_is_added_listed_paused_resumed_run_and_removed() {
    let redis = Redis::start();
    let add = [
        "cron",
        "add",
        "report",
        "30 9 * * MON-FRI",
        "reports",
        "{\"type\":\"daily\"}",
        "--tz",
        "Europe/Berlin",
    ];
    assert_eq!(redis.prints(&add), "report: added\n");
    assert_eq!(redis.prints(&add), "report: unchanged\n");
    assert_eq!(
        redis.prints(&[&add[..], &["--missed", "skip"]].concat()),
        "report: replaced\n"
    );
    redis.prints("cron add 'a b' '@every 90m' sync:1 7 --now --reason 'a test'");
    let people = redis.prints("cron list");
    let (first, second) = people.split_once("report  ").expect("both jobs");
    assert!(
        first.starts_with(
            "a b  @every 90m  UTC\n  object  sync:1, missed ticks: once\n  event   7\n  last    "
        ),
        "{people}"
    );
    assert!(
        first.contains(" ago\n  next    ") && first.contains(", in 1 h"),
        "{people}"
    );
    assert!(
        second.starts_with(
            "30 9 * * MON-FRI  Europe/Berlin\n  object  reports, missed ticks: skip\n"
        ),
        "{people}"
    );
    assert!(second.contains("last    never\n  next    "), "{people}");
    let jobs = redis.json_lines("cron list --json");
    assert_eq!(
        (
            &jobs[1]["name"],
            &jobs[1]["event"]["type"],
            &jobs[1]["missed"]
        ),
        (&"report".into(), &"daily".into(), &"skip".into())
    );
    assert_eq!(
        (&jobs[1]["last_ms"], jobs[1]["next_ms"].is_u64()),
        (&Value::Null, true)
    );
    assert_eq!(redis.prints("cron pause report"), "report: paused\n");
    assert!(
        redis
            .prints("cron list")
            .contains("last    never\n  next    paused\n")
    );
    let stats = redis.prints("stats");
    assert!(
        stats.contains("cron jobs     2: 0 due, 1 paused, the next in "),
        "{stats}"
    );
    assert!(redis.prints("check").contains("2 cron jobs"));
    assert_eq!(
        redis.prints("cron run-now report"),
        "report: queued its event\n"
    );
    assert_eq!(redis.prints("cron resume report"), "report: resumed\n");
    assert_eq!(redis.prints("cron remove report"), "report: removed\n");
    let missing = redis.refuses("cron run-now report");
    assert!(
        missing.contains("there is no cron job \"report\"; `seriatim cron list` shows the jobs"),
        "{missing}"
    );
    let actions = redis.prints("actions");
    assert!(
        actions.contains("cron-run  sync:1  cron job a b\n") && actions.contains("why    a test"),
        "{actions}"
    );
}

#[test]
fn wrong_schedules_and_zones_are_told() {
    let redis = Redis::start();
    let add = |schedule: &str, zone: &str| {
        redis.refuses(&["cron", "add", "a", schedule, "work:1", "1", "--tz", zone])
    };
    for (schedule, zone, expected) in [
        ("* * * *", "UTC", "is not a cron schedule"),
        ("@every 1mo", "UTC", "is not an interval"),
        ("@daily", "Mars/Olympus", "is not a time zone"),
        ("0 0 30 2 *", "UTC", "has no time in the future"),
    ] {
        let error = add(schedule, zone);
        assert!(
            error.contains(expected) && error.trim_end().lines().count() == 1,
            "{error}"
        );
    }
    assert_eq!(redis.stdout("cron list --json"), "");
}
