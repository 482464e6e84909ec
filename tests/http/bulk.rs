//! Actions over many dead letters or held objects, and actions whose outcome is unknown.

use serde_json::{Value, json};
use seriatim::sink::Stop;

use crate::requests::retry;
use crate::serving::Serving;
use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

async fn until_dead(console: &Console, count: usize) {
    until(&format!("{count} are dead"), PATIENCE, async || {
        (console.dead().await.len() == count).then_some(())
    })
    .await;
}

/// Returns the id of the oldest dead letter.
async fn first_dead(console: &Console) -> String {
    let dead = console.keys.events_dead();
    let words = ["XRANGE", &dead, "-", "+", "COUNT", "1"];
    let mut entries: Vec<(String, Vec<String>)> = console.run(&words).await;
    entries.remove(0).0
}

/// Returns the reply to a retry or a drop of dead letters.
fn done(done: u64, left: u64) -> Value {
    json!({ "done": done, "left": left, "newer_delivered": 0 })
}

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
    let worker = start(&redis, "w", &sink, retry("fixed:1h"));
    for n in 0..50 {
        console.until_held(&format!("held:{n}"), "retry").await;
    }
    until_dead(&console, 50).await;
    worker.stop().await;
    let post = async |target: &str, body: Value| serving.post(target, &body.to_string()).await;
    for body in [
        json!({}),
        json!({ "all": true, "object": "dead:1" }),
        json!({ "ids": [] }),
        json!({ "all": false }),
    ] {
        assert_eq!(post("/v1/dead/retry", body).await.problem().0, 400);
    }
    let without = post("/v1/dead/drop", json!({ "all": true })).await;
    assert_eq!(without.problem().0, 400, "a drop needs a reason");
    let id = first_dead(&console).await;
    let wrong = post("/v1/dead/retry", json!({ "ids": [id, "x"] })).await;
    assert_eq!(
        (wrong.problem().0, console.dead().await.len()),
        (400, 50),
        "nothing is done"
    );
    let after = post("/v1/dead/retry", json!({ "all": true, "after": "1-1" })).await;
    assert_eq!(after.problem().0, 400);
    let one = post("/v1/dead/retry", json!({ "object": "dead:7" })).await;
    assert_eq!(one.json(), done(1, 0));
    let id = first_dead(&console).await;
    let some = json!({ "ids": [id, "1-1"], "reason": "known" });
    assert_eq!(post("/v1/dead/drop", some).await.json(), done(1, 1));
    assert_eq!(
        post("/v1/dead/retry", json!({ "all": true })).await.json(),
        done(48, 0)
    );
    assert_eq!(console.dead().await.len(), 0);
    for body in [
        json!({}),
        json!({ "all": true, "prefix": "held:" }),
        json!({ "prefix": "" }),
    ] {
        assert_eq!(post("/v1/held/release", body).await.problem().0, 400);
    }
    let some = json!({ "prefix": "held:1", "reason": "it is back" });
    let some = post("/v1/held/release", some).await;
    let expected = json!({ "released": 11, "due": 0, "more": false });
    assert_eq!(some.json(), expected);
    let all = post("/v1/held/release", json!({ "why": "busy" })).await;
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
    until_dead(&console, 300).await;
    let all = json!({ "all": true }).to_string();
    let retried = serving.post("/v1/dead/retry", &all).await;
    assert_eq!(retried.json(), done(300, 0));
    until_dead(&console, 300).await;
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
    until_dead(&console, 200).await;
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
    let rest = serving.post("/v1/dead/drop", &rest.to_string()).await;
    assert_eq!(rest.json(), self::done(199 - done, 0));
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
    until("it is refused", PATIENCE, async || {
        (serving.post("/v1/rules", &rule).await.problem() == (503, "redis".to_owned()))
            .then_some(())
    })
    .await;
}
