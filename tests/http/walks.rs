//! The routes over all objects: the longest queues, the count by prefix, and the check.

use futures_util::future::join_all;
use redis::cmd;
use serde_json::json;

use crate::serving::Serving;
use crate::support::Redis;
use crate::support::proxy::Proxy;

#[tokio::test]
async fn the_longest_queues_under_work_come_first() {
    let redis = Redis::start();
    let (console, serving) = (redis.console().await, Serving::start(&redis, &[]).await);
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let none = serving.get("/v1/queues").await.json();
    assert_eq!(
        none,
        json!({ "objects": [], "slots_read": 0, "more_slots": false })
    );
    for (slot, events) in [(0, 2), (1, 5), (2, 3)] {
        let (object, worker) = (format!("work:{slot}"), format!("w.{slot}"));
        console.emit_all(&object, (0..events).map(|_| "1")).await;
        redis::pipe()
            .cmd("HSET")
            .arg(keys.event_workers())
            .arg("w")
            .arg("3 token 1767225600000")
            .cmd("LPUSH")
            .arg(keys.worker_object(&worker))
            .arg(&object)
            .cmd("SET")
            .arg(keys.event_worker(&object))
            .arg(&worker)
            .exec_async(&mut conn)
            .await
            .expect("set");
    }
    let found = serving.get("/v1/queues?limit=2").await.json();
    let row = |slot: u64, queued: u64| json!({ "object": format!("work:{slot}"), "worker": format!("w.{slot}"), "queued": queued, "id": null });
    assert_eq!(
        found,
        json!({ "objects": [row(1, 5), row(2, 3)], "slots_read": 3, "more_slots": false })
    );
}

/// Tests that the steps together count every queued event once.
#[tokio::test]
async fn the_steps_of_a_count_have_all_events() {
    let redis = Redis::own(&[]);
    let serving = Serving::start(&redis, &[]).await;
    let mut emits = redis::pipe();
    for n in 0..3000 {
        emits
            .cmd("RPUSH")
            .arg(redis.keys().events(&format!("p{}:{n}", n % 3)))
            .arg(vec!["1"; 1 + n % 3])
            .ignore();
    }
    let long = "x".repeat(513);
    emits
        .cmd("RPUSH")
        .arg(redis.keys().events(&long))
        .arg(&["1", "2", "3", "4"])
        .ignore();
    // A key that ends like a queue, but is none.
    emits
        .cmd("SET")
        .arg(redis.keys().events("wrong"))
        .arg("1")
        .ignore();
    emits
        .exec_async(&mut redis.connect().await)
        .await
        .expect("pushed");
    let (mut after, mut steps, mut events, mut objects) = (String::new(), 0, 0, 0);
    let (mut of_prefix, mut longest) =
        (std::collections::BTreeMap::<String, u64>::new(), Vec::new());
    loop {
        let step = serving
            .get(&format!("/v1/depth?limit=1{after}"))
            .await
            .json();
        steps += 1;
        events += step["events_queued"].as_u64().expect("a number");
        objects += step["objects_with_events"].as_u64().expect("a number");
        for row in step["by_prefix"].as_array().expect("rows") {
            let prefix = row["prefix"].as_str().expect("a prefix").to_owned();
            *of_prefix.entry(prefix).or_default() += row["events"].as_u64().expect("a number");
        }
        let top = step["top"].as_array().expect("rows");
        assert!(top.len() <= 1);
        longest.extend(
            top.iter()
                .map(|row| row["events"].as_u64().expect("a number")),
        );
        match step.get("next") {
            Some(next) => after = format!("&after={}", next.as_str().expect("a cursor")),
            None => break,
        }
    }
    assert!(steps >= 3, "{steps}");
    assert_eq!(
        (events, objects, longest.iter().max()),
        (6004, 3001, Some(&4))
    );
    let expected = [("", 4), ("p0", 1000), ("p1", 2000), ("p2", 3000)]
        .map(|(prefix, events)| (prefix.to_owned(), events));
    assert_eq!(of_prefix, expected.into_iter().collect());
    for bad in ["0", "x", "-1", "1-1", "18446744073709551616"] {
        assert_eq!(
            serving
                .get(&format!("/v1/depth?after={bad}"))
                .await
                .problem(),
            (400, "invalid".to_owned()),
            "{bad}"
        );
    }
    for target in [
        "/v1/depth?limit=0",
        "/v1/depth?limit=101",
        "/v1/queues?limit=101",
    ] {
        assert_eq!(serving.get(target).await.problem().0, 400, "{target}");
    }
}

/// Tests that the check finds the violations that the command finds, and that one check runs at a
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_reports_violations_and_runs_once_at_a_time() {
    let redis = Redis::own(&[]);
    let proxy = Proxy::before(&redis);
    let serving = Serving::start_behind(&proxy, &redis).await;
    assert_eq!(serving.get("/v1/check").await.json()["violations_total"], 0);
    let () = cmd("SET")
        .arg(redis.keys().events("work:1"))
        .arg("x")
        .query_async(&mut redis.connect().await)
        .await
        .expect("set");
    let report = serving.get("/v1/check").await.json();
    assert_eq!(
        report["violations"].as_array().map(Vec::len),
        Some(1),
        "{report}"
    );
    assert!(
        report["violations"][0].to_string().contains("work:1") && report["warnings"].is_array(),
        "{report}"
    );
    // Over a slow link the first check is still under way when the others come.
    proxy.slow_down(2 * 1024);
    let found = join_all((0..4).map(|_| serving.get("/v1/check"))).await;
    proxy.slow_down(0);
    let done = found.iter().filter(|answer| answer.status == 200).count();
    let busy = found
        .iter()
        .filter(|answer| answer.status == 503 && answer.retry_after.is_some())
        .count();
    assert_eq!((done, busy), (1, 3), "{found:?}");
    assert_eq!(serving.get("/v1/check").await.status, 200);
}
