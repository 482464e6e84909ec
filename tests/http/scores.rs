//! Scores that are no times: no page, no list and no figure shows them as a time in 1970.

use std::process::Command;

use redis::cmd;

use crate::dashboard::rig::{Dash, USERS, path, users};
use crate::serving::Serving;
use crate::support::{Redis, jobs};

/// Makes an object for each score of `objects.held` with a meaning of its own, schedules that are due at
/// once, and a cron job that has never fired and has no next tick.
async fn fill(redis: &Redis) {
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let mut pipe = redis::pipe();
    for (at, (object, score)) in [
        ("work:once", "0"),
        ("work:aside", "-1"),
        ("work:operator", "inf"),
    ]
    .into_iter()
    .enumerate()
    {
        pipe.cmd("SET").arg(keys.event_worker(object)).arg("held");
        pipe.cmd("ZADD")
            .arg(keys.objects_held())
            .arg(score)
            .arg(object);
        pipe.cmd("SET")
            .arg(keys.events_held_id(object))
            .arg(format!("{} 1 1 0 retry: down", at + 1));
        pipe.cmd("LPUSH").arg(keys.events_held(object)).arg("1");
    }
    pipe.cmd("SET").arg(keys.next_event_id()).arg(9);
    pipe.cmd("LPUSH")
        .arg(keys.group_waiting("work"))
        .arg("work:aside");
    pipe.cmd("ZADD").arg(keys.event_groups()).arg(1).arg("work");
    pipe.cmd("SET").arg(keys.event_groups_waiting()).arg(1);
    pipe.cmd("HSET")
        .arg(keys.events_scheduled_of("work:once"))
        .arg("k")
        .arg("1");
    pipe.cmd("ZADD")
        .arg(keys.events_scheduled())
        .arg(0)
        .arg("work:once\nk");
    let job = jobs::value("id 0", "work:1", "1").replace("@every 1h", "0 0 30 2 *");
    pipe.cmd("HSET")
        .arg(keys.events_cron())
        .arg("never")
        .arg(job);
    pipe.cmd("ZADD")
        .arg(keys.events_cron_next())
        .arg("inf")
        .arg("never");
    pipe.query_async::<()>(&mut conn).await.expect("filled");
    let all: u64 = cmd("ZCARD")
        .arg(keys.objects_held())
        .query_async(&mut conn)
        .await
        .expect("counted");
    assert_eq!(all, 3);
}

/// Checks that a text has no time of 1970, and no age since then: `20783 d`, or the same in ms.
fn check(what: &str, text: &str) {
    assert!(!text.contains("1970-01-01"), "{what}: {text}");
    let words: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    for pair in words.windows(2) {
        let number = pair[0].parse::<u64>().unwrap_or(0);
        assert!(
            !(number > 10_000 && pair[1] == "d"),
            "{what}: {pair:?} in {text}"
        );
        let (is_age, number) = (
            pair[0].ends_with("overdue_ms"),
            pair[1].parse::<u64>().unwrap_or(0),
        );
        assert!(
            !(is_age && number > 1_000_000_000),
            "{what}: {pair:?} in {text}"
        );
        assert!(
            pair != ["due_ms", "0"] && pair != ["due_ms", "1"] && pair != ["next_ms", "0"],
            "{what}: {pair:?} in {text}"
        );
    }
}

/// Story: after `held release` the score 0 was shown as "overdue 20783 d".
#[tokio::test]
async fn no_list_page_or_command_shows_a_score_that_is_no_time() {
    let redis = Redis::start();
    fill(&redis).await;
    let serving = Serving::start(&redis, &[]).await;
    for target in [
        "stats",
        "held",
        "held?due=true",
        "paused",
        "schedule",
        "objects/work:once/schedule",
        "objects/work:once",
        "objects/work:aside",
        "objects/work:operator",
        "cron",
    ] {
        let found = serving.get(&format!("/v1/{target}")).await;
        assert_eq!(found.status, 200, "{target}: {found:?}");
        check(target, &found.text);
    }
    let file = users(&USERS);
    let dash = Dash::start(&redis, &["--users", path(&file)]).await;
    for page in [
        "/",
        "/held",
        "/paused",
        "/schedules",
        "/cron",
        "/object?name=work:once",
        "/object?name=work:aside",
        "/object?name=work:operator",
    ] {
        let found = dash.page_as("operator", page).await;
        assert_eq!(found.status, 200, "{page}: {found:?}");
        check(page, &found.text);
    }
    for words in [
        "stats",
        "held list",
        "inspect work:once",
        "inspect work:aside",
        "inspect work:operator",
        "schedule list",
        "cron list",
    ] {
        for more in [None, Some("--json")] {
            let mut program = Command::new(crate::support::program());
            program
                .args(["--redis", redis.url(), "--namespace", redis.namespace()])
                .args(words.split(' '))
                .args(more);
            let output = program.output().expect("it runs");
            assert!(output.status.success(), "{words}: {output:?}");
            check(words, &String::from_utf8_lossy(&output.stdout));
        }
    }
}
