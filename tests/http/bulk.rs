//! Actions over many dead letters or held objects, and actions whose outcome is unknown.

use serde_json::json;
use seriatim::sink::Stop;

use crate::serving::Serving;
use crate::support::console::PATIENCE;
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Tests that one request handles many dead letters or held objects, and handles only those that it
/// names.
#[tokio::test]
async fn many_dead_letters_and_held_objects_are_handled_at_once() {
    let redis = Redis::start();
    let console = redis.console().await;
    let serving = Serving::start(&redis, &[]).await;
    let sink = Recorder::with(|offer| match offer.text().as_str() {
        "1" => Act::Stop(Stop::rejected("no")),
        _ => Act::Stop(Stop::transient("busy")),
    });
    for n in 0..50 {
        console.emit(&format!("dead:{n}"), "1").await;
        console.emit(&format!("held:{n}"), "2").await;
    }
    let worker = start(&redis, "w", &sink, |config| {
        config.retry = "fixed:1h".parse().expect("a policy")
    });
    for n in 0..50 {
        console.until_held(&format!("held:{n}"), "retry").await;
    }
    crate::support::until("all are dead", PATIENCE, async || {
        (console.dead().await.len() == 50).then_some(())
    })
    .await;
    worker.stop().await;
    let count =
        async |target: &str, body: serde_json::Value| serving.post(target, &body.to_string()).await;
    for body in [
        json!({}),
        json!({ "all": true, "object": "dead:1" }),
        json!({ "ids": [] }),
        json!({ "all": false }),
    ] {
        assert_eq!(count("/v1/dead/retry", body).await.problem().0, 400);
    }
    assert_eq!(
        count("/v1/dead/drop", json!({ "all": true }))
            .await
            .problem()
            .0,
        400,
        "a drop needs a reason"
    );
    let id = console
        .run::<Vec<(String, Vec<String>)>>(&[
            "XRANGE",
            &console.keys.events_dead(),
            "-",
            "+",
            "COUNT",
            "1",
        ])
        .await;
    let wrong = count("/v1/dead/retry", json!({ "ids": [id[0].0, "x"] })).await;
    assert_eq!(
        (wrong.problem().0, console.dead().await.len()),
        (400, 50),
        "nothing is done"
    );
    assert_eq!(
        count("/v1/dead/retry", json!({ "all": true, "after": "1-1" }))
            .await
            .problem()
            .0,
        400
    );
    assert_eq!(
        count("/v1/dead/retry", json!({ "object": "dead:7" }))
            .await
            .json(),
        json!({ "done": 1, "left": 0, "newer_delivered": 0 })
    );
    let id = console
        .run::<Vec<(String, Vec<String>)>>(&[
            "XRANGE",
            &console.keys.events_dead(),
            "-",
            "+",
            "COUNT",
            "1",
        ])
        .await;
    let some = json!({ "ids": [id[0].0, "1-1"], "reason": "known" });
    assert_eq!(
        count("/v1/dead/drop", some).await.json(),
        json!({ "done": 1, "left": 1, "newer_delivered": 0 })
    );
    assert_eq!(
        count("/v1/dead/retry", json!({ "all": true })).await.json(),
        json!({ "done": 48, "left": 0, "newer_delivered": 0 })
    );
    assert_eq!(console.dead().await.len(), 0);
    for body in [
        json!({}),
        json!({ "all": true, "prefix": "held:" }),
        json!({ "prefix": "" }),
    ] {
        assert_eq!(count("/v1/held/release", body).await.problem().0, 400);
    }
    let some = count(
        "/v1/held/release",
        json!({ "prefix": "held:1", "reason": "it is back" }),
    )
    .await;
    assert_eq!(
        some.json(),
        json!({ "released": 11, "due": 0, "more": false })
    );
    let all = count("/v1/held/release", json!({ "why": "busy" })).await;
    assert_eq!(
        all.json(),
        json!({ "released": 39, "due": 11, "more": false })
    );
}

/// Tests that an action does not retry an event a second time if the event dies again while the
/// action runs.
#[tokio::test]
async fn what_dies_again_is_not_retried_again() {
    let redis = Redis::start();
    let console = redis.console().await;
    let serving = Serving::start(&redis, &[]).await;
    let sink = Recorder::with(|_| Act::Stop(Stop::rejected("no")));
    for n in 0..300 {
        console.emit(&format!("dead:{n}"), "1").await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    until("all are dead", PATIENCE, async || {
        (console.dead().await.len() == 300).then_some(())
    })
    .await;
    let retried = serving
        .post("/v1/dead/retry", &json!({ "all": true }).to_string())
        .await;
    assert_eq!(
        retried.json(),
        json!({ "done": 300, "left": 0, "newer_delivered": 0 })
    );
    until("all are dead again", PATIENCE, async || {
        (console.dead().await.len() == 300).then_some(())
    })
    .await;
    worker.finish().await;
}

/// Tests that an action that fails in the middle reports how much is done, and that a further
/// request can continue it.
#[tokio::test]
async fn an_action_that_fails_in_the_middle_can_go_on() {
    let redis = Redis::start();
    let console = redis.console().await;
    let proxy = Proxy::before(&redis);
    let serving = Serving::start_behind(&proxy, &redis).await;
    let sink = Recorder::with(|_| Act::Stop(Stop::rejected("no")));
    for n in 0..200 {
        console.emit(&format!("dead:{n}"), "1").await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    until("all are dead", PATIENCE, async || {
        (console.dead().await.len() == 200).then_some(())
    })
    .await;
    worker.stop().await;
    // After these requests Redis has loaded the scripts.
    assert_eq!(serving.get("/v1/dead").await.status, 200);
    let drop_some = json!({ "object": "dead:7", "reason": "known" }).to_string();
    assert_eq!(
        serving.post("/v1/dead/drop", &drop_some).await.json()["done"],
        1
    );
    let mut calls = 0;
    proxy.lose(move |request| {
        let is_script = request.windows(4).any(|part| part == b"EVAL");
        calls += usize::from(is_script);
        (is_script && calls == 6).then_some(Lose::Request)
    });
    let all = json!({ "all": true, "reason": "known" });
    let failed = serving.post("/v1/dead/drop", &all.to_string()).await;
    assert_eq!(
        failed.problem(),
        (504, "partly-done".to_owned()),
        "{failed:?}"
    );
    let part = failed.json();
    let done = part["done"].as_u64().expect("a number");
    assert!(
        done > 0 && console.dead().await.len() as u64 == 199 - done,
        "{part}"
    );
    let rest = json!({ "all": true, "reason": "known", "after": part["next"] });
    assert_eq!(
        serving
            .post("/v1/dead/drop", &rest.to_string())
            .await
            .json(),
        json!({ "done": 199 - done, "left": 0, "newer_delivered": 0 })
    );
}

/// Tests that an action whose reply is lost is not reported as undone.
#[tokio::test]
async fn an_action_whose_reply_is_lost_has_an_unknown_outcome() {
    let redis = Redis::start();
    let proxy = Proxy::before(&redis);
    let serving = Serving::start_behind(&proxy, &redis).await;
    let rule = |selector: &str| json!({ "kind": "pause", "selector": selector }).to_string();
    assert_eq!(
        serving.post("/v1/rules", &rule("other:*")).await.status,
        200,
        "Redis has the script"
    );
    let rule = rule("work:*");
    proxy.lose(|request| {
        request
            .windows(4)
            .any(|part| part == b"EVAL")
            .then_some(Lose::Reply)
    });
    let lost = serving.post("/v1/rules", &rule).await;
    assert_eq!(lost.problem(), (504, "outcome-unknown".to_owned()));
    proxy.lose(|_| None);
    assert_eq!(
        serving.post("/v1/rules", &rule).await.json()["was_set"],
        true,
        "it was done"
    );
    drop(proxy);
    crate::support::until("it is refused", PATIENCE, async || {
        (serving.post("/v1/rules", &rule).await.problem() == (503, "redis".to_owned()))
            .then_some(())
    })
    .await;
}
