//! A dashboard that is killed in the middle of an action on many rows.

use redis::{cmd, pipe};

use super::rig::{Dash, USERS, path, token, users};
use crate::support::console::PATIENCE;
use crate::support::proxy::Proxy;
use crate::support::{Redis, control, until};

const OBJECTS: usize = 2000;
const REASON: &str = "the upstream is back";

/// Holds many objects, each with one event, until an operator releases them.
async fn hold(redis: &Redis) {
    let keys = redis.keys();
    let mut all = pipe();
    for number in 1..=OBJECTS {
        let object = format!("work:{number}");
        all.cmd("LPUSH")
            .arg(keys.events_held(&object))
            .arg("1")
            .ignore();
        all.cmd("SET")
            .arg(keys.events_held_id(&object))
            .arg(format!("{number} 0 3 0 stop: refused"))
            .ignore();
        all.cmd("SET")
            .arg(keys.event_worker(&object))
            .arg("held")
            .ignore();
        all.cmd("ZADD")
            .arg(keys.objects_held())
            .arg("inf")
            .arg(&object)
            .ignore();
    }
    all.cmd("SET")
        .arg(keys.next_event_id())
        .arg(OBJECTS)
        .ignore();
    all.exec_async(&mut redis.connect().await)
        .await
        .expect("held");
}

/// Returns the numbers of released objects, and of those that wait for an operator.
async fn counts(redis: &Redis) -> (usize, usize) {
    let held = redis.keys().objects_held();
    let mut both = pipe();
    both.cmd("ZCOUNT")
        .arg(&held)
        .arg("-inf")
        .arg("(inf")
        .cmd("ZCOUNT")
        .arg(&held)
        .arg("inf")
        .arg("inf");
    both.query_async(&mut redis.connect().await)
        .await
        .expect("the counts")
}

/// Tests that each object is either released or held if the dashboard dies during the release of all
/// objects, that the record has the steps that were done, and that a new dashboard can go on.
#[tokio::test]
async fn a_dashboard_that_dies_leaves_whole_steps_behind() {
    let (redis, file) = (Redis::own(&[]), users(&USERS));
    hold(&redis).await;
    let console = redis.console().await;
    console.check().await;
    let conn = redis.connect().await;
    let clients = async || -> usize {
        let list: String = cmd("CLIENT")
            .arg("LIST")
            .query_async(&mut conn.clone())
            .await
            .expect("the clients");
        list.lines().count()
    };
    let before = clients().await;
    let proxy = Proxy::before(&redis);
    let mut dash = Dash::start_to(&proxy.url(), &redis, &["--users", path(&file)]).await;
    // The link is so slow that a step takes some 10 ms.
    proxy.slow_down(500_000);
    let form = [
        ("act", "release-all"),
        ("prefix", "work:"),
        ("reason", REASON),
    ];
    let acting = tokio::spawn(
        dash.form("/act", &form)
            .bearer_auth(token("operator"))
            .send(),
    );
    until("some steps are done", PATIENCE, async || {
        (counts(&redis).await.0 >= OBJECTS / 10).then_some(())
    })
    .await;
    dash.kill();
    let answer = acting.await.expect("no panic");
    assert!(answer.is_err(), "the action was not over: {answer:?}");
    // A step that Redis has got may still be under way.
    proxy.close();
    until("the dashboard is not connected", PATIENCE, async || {
        (clients().await <= before).then_some(())
    })
    .await;
    let (released, waiting) = counts(&redis).await;
    assert!(
        released + waiting == OBJECTS && released > 0 && waiting > 0,
        "{released} released, {waiting} wait"
    );
    console.check().await;
    // The record has what was done. A row may stand for one object, or for all objects of a step.
    let control = control(&redis.connect().await, redis.keys());
    let actions = control
        .actions(None, 100)
        .await
        .expect("the actions")
        .actions;
    let is_ours = |action: &seriatim::control::Action| {
        (&*action.action, &*action.who, &*action.why) == ("release", "operator", REASON)
    };
    assert!(
        !actions.is_empty() && actions.len() <= released && actions.iter().all(is_ours),
        "{actions:?}"
    );

    let dash = Dash::start(&redis, &["--users", path(&file)]).await;
    let page = async |target: &str| dash.page_as("operator", target).await;
    let gone = page("/job?id=1").await;
    assert!(
        gone.status == 404 && gone.text.contains("the page Actions shows the steps done"),
        "{gone:?}"
    );
    assert!(page("/actions").await.text.contains(REASON));
    let held = dash.page_as("operator", "/v1/stats").await;
    let figures: serde_json::Value = serde_json::from_str(&held.text).expect("figures");
    let held = &figures["held"];
    assert_eq!(
        (held["total"].as_u64(), held["until_released"].as_u64()),
        (Some(OBJECTS as u64), Some(waiting as u64)),
        "{held}"
    );
    // The same action releases the rest.
    let begun = dash.post_as("operator", "/act", &form).await;
    let ended = until("the action has ended", PATIENCE, async || {
        let job = page(begun.header("location")).await;
        job.text.contains("The action has ended").then_some(job)
    })
    .await;
    // Numbers on pages have thin spaces.
    let text = ended.text.replace('\u{202f}', "");
    assert!(
        text.contains(&format!(
            "<b>{waiting}</b> done, <b>{released}</b> not done"
        )),
        "{waiting} waited: {ended:?}"
    );
    assert_eq!(counts(&redis).await, (OBJECTS, 0));
    console.check().await;
}
