//! The bounds of each call of an operator: dead letters read, bytes of rows, markers searched.

use std::process::Command;

use seriatim::control::dead::{DeadPage, Settle, Settled};
use seriatim::control::inspect::Standing;
use seriatim::control::{By, Cursor, RowEvent, RowId};
use seriatim::wire;

use crate::support::{Redis, control};

/// Story: `dead list --object` read 20,000 dead letters in one request to show 20. Now a request
/// reads 1,000, and says how to continue.
#[tokio::test]
async fn a_list_of_one_object_looks_at_so_many_and_says_how_to_go_on() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let mut add = redis::pipe();
    for n in 0..1500 {
        let object = if n % 600 == 0 { "rare" } else { "other" };
        add.cmd("XADD")
            .arg(keys.events_dead())
            .arg(format!("{}-0", n + 1))
            .arg(&["id", "7", "object", object, "event", "{}"])
            .ignore();
    }
    add.exec_async(&mut conn).await.expect("added");
    let control = control(&conn, &keys);
    let page = async |newest, after: Option<&Cursor>, count| {
        let page = control.dead_letters_of("rare", newest, after, count).await;
        page.expect("a page")
    };
    let ids = |page: &DeadPage| {
        let letters = page.letters.iter();
        letters
            .map(|letter| letter.dead_id.clone())
            .collect::<Vec<_>>()
    };
    let first = page(false, None, 10).await;
    assert_eq!(ids(&first), ["1-0", "601-0"]);
    let after = first.next.clone().expect("a cursor");
    assert_eq!(after, "1000-0");
    let rest = page(false, Some(&after), 10).await;
    assert_eq!((ids(&rest), &rest.next), (vec!["1201-0".into()], &None));
    // A page ends with the last entry that was requested.
    assert_eq!(ids(&page(true, None, 1).await), ["1201-0"]);
}

/// Story: drops stored whole events. The last thousand actions had up to a gigabyte, so `dead drop`
/// freed no memory. Now an action stores 8 KiB of an event, and one call settles about 1 MiB of
/// events.
#[tokio::test]
async fn a_drop_frees_the_memory_of_large_events() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let large = format!(r#"{{"text":"{}"}}"#, "é".repeat(300_000));
    let mut dead_ids: Vec<RowId> = Vec::new();
    for event in [large.as_str(), &large, &large, "{}"] {
        let mut add = redis::cmd("XADD");
        add.arg(keys.events_dead()).arg(&[
            "*", "id", "7", "object", "work:1", "error", "no", "event", event,
        ]);
        let id: String = add.query_async(&mut conn).await.expect("added");
        dead_ids.push(id.into());
    }
    // One call ends after the second event; `settle` makes further calls.
    let by = By {
        who: "ada",
        why: "large",
    };
    let some = wire::operator::dead(&mut conn, &keys, by, Settle::Drop, &dead_ids)
        .await
        .expect("settled");
    assert_eq!(some, [Settled::Dropped, Settled::Dropped]);
    let control = control(&conn, &keys);
    let all = control.settle(by, Settle::Drop, &dead_ids).await;
    let (gone, dropped) = (Settled::Gone, Settled::Dropped);
    assert_eq!(all.expect("settled"), [gone, gone, dropped, dropped]);
    let kept = control.actions(None, 10).await.expect("actions").actions;
    assert_eq!(kept[0].event, Some(RowEvent::Whole(b"{}".to_vec())));
    for action in &kept[1..] {
        let of = action.event.as_ref().expect("an event");
        let event = std::str::from_utf8(of.bytes()).expect("whole letters");
        assert!(
            (8189..=8192).contains(&event.len()) && large.starts_with(event),
            "{}",
            event.len()
        );
        assert_eq!(of.whole_bytes(), Some(large.len() as u64));
    }
    assert_eq!(kept.len(), 4);
}

/// The program also says how to continue: in words, and as a last line of JSON.
#[tokio::test]
async fn the_program_says_how_to_go_on() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    for stream in [keys.events_dead(), keys.event_log()] {
        let mut add = redis::pipe();
        for n in 1..=1200 {
            let object = if n == 1100 { "rare" } else { "other" };
            add.cmd("XADD")
                .arg(&stream)
                .arg(format!("{n}-0"))
                .arg(&["id", "7", "object", object, "event", "{}"])
                .ignore();
        }
        add.exec_async(&mut conn).await.expect("added");
    }
    let run = |arguments: &[&str]| {
        let mut program = Command::new(crate::support::program());
        program
            .args(["--redis", redis.url(), "--namespace", redis.namespace()])
            .args(arguments);
        let output = program
            .env_remove("SERIATIM_REDIS")
            .env_remove("SERIATIM_NAMESPACE")
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (text(output.stdout), text(output.stderr))
    };
    let last = "1000-0";
    for command in [&["dead", "list"][..], &["log"]] {
        let list = |more: &[&str]| run(&[command, &["--object", "rare"], more].concat());
        let (shown, notice) = list(&[]);
        assert!(
            shown.is_empty() && notice.contains(&format!("continue with --after {last}")),
            "{shown} {notice}"
        );
        assert_eq!(list(&["--json"]).0, format!("{{\"after\":\"{last}\"}}\n"));
        let (shown, _) = list(&["--json", "--after", last]);
        assert!(
            shown.contains("\"1100-0\"") && !shown.contains("\"after\""),
            "{shown}"
        );
    }
}

/// Story: a page of 100 rows of 1 MB took 250 ms in one call. Now a page ends with the row that
/// brings it to 1 MiB, and says that there are more.
#[tokio::test]
async fn a_page_of_large_rows_ends_early() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(400_000));
    for stream in [keys.event_log(), keys.events_dead()] {
        for n in 1..=7 {
            let mut add = redis::cmd("XADD");
            add.arg(&stream).arg(format!("{n}-0"));
            add.arg(&["id", "7", "object", "work:1", "status", "completed"]);
            add.arg(&["event", &large]);
            add.exec_async(&mut conn).await.expect("added");
        }
    }
    let control = control(&conn, &keys);
    let first = control.log(None, 100).await.expect("a page");
    assert_eq!(
        (first.entries.len(), first.next.is_some(), first.written),
        (3, true, 7)
    );
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = control.newest_log(after.as_ref(), 100).await;
        let page = page.expect("a page");
        ids.extend(page.entries.iter().map(|row| row.log_id.clone()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(ids, ["7-0", "6-0", "5-0", "4-0", "3-0", "2-0", "1-0"]);
    // A page with the requested number of rows is complete, whatever their bytes.
    let whole = control.log(None, 3).await.expect("a page");
    assert_eq!(whole.entries.len(), 3);
    // A reader that needs a number of entries reads further pages by itself.
    let dead = control.dead_letters(None, 32).await.expect("letters");
    assert_eq!(dead.letters.len(), 7);
    let found = control.ended("work:2").await.expect("looked");
    assert_eq!(
        (found.log_rows, found.dead_letters, found.complete),
        (7, 7, true)
    );
}

/// Story: `inspect` searched all markers for an object that had none: a million took 31 ms. Now it
/// searches the 10,000 that are taken next, and says so.
#[tokio::test]
async fn inspect_searches_so_many_markers_and_says_so() {
    let (redis, console) = Redis::start().with_console().await;
    let control = control(&redis.connect().await, redis.keys());
    let inspect = async |object| control.inspect(object).await.expect("inspected");
    let others = " other".repeat(9999);
    let given = "LPUSH work:1:events {}; LPUSH objects.with.events";
    console.add(&format!("{given}{others} work:1")).await;
    let seen = inspect("work:1").await;
    assert_eq!(
        (seen.markers_before, seen.markers_beyond),
        (Some(9999), false)
    );
    console.add("RPUSH objects.with.events other").await;
    let seen = inspect("work:1").await;
    assert_eq!(
        (seen.markers_before, seen.markers_beyond, seen.standing),
        (None, true, Standing::Marked)
    );
    assert!(
        seen.why.contains("more than 10000 other markers"),
        "{}",
        seen.why
    );
    // An object without events waits for no marker, so an incomplete search does not matter.
    let idle = inspect("work:2").await;
    assert_eq!(
        (idle.markers_beyond, idle.standing),
        (true, Standing::Unknown)
    );
}
