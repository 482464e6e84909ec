//! Shares over HTTP, and on the pages of the dashboard.

use reqwest::Method;
use serde_json::{Value, json};
use seriatim::control::shares::Share;

use crate::dashboard::rig::{Dash, USERS, path, token, users};
use crate::serving::{Serving, answer};
use crate::support::{Redis, control};

/// Groups a name for the group `work`, and enters objects in hand.
async fn wait(redis: &Redis, name: &str, in_hand: &[&str]) {
    let (console, keys) = (redis.console().await, redis.keys());
    let run = async |words: &[&str]| drop(console.run::<::redis::Value>(words).await);
    run(&["LPUSH", &keys.group_waiting("work"), name]).await;
    run(&["ZADD", &keys.event_groups(), "5", "work"]).await;
    run(&["INCR", &keys.event_groups_waiting()]).await;
    for object in in_hand {
        run(&["ZADD", &keys.objects_in_hand(), "0", &format!("{object}:")]).await;
    }
}

async fn set(redis: &Redis, selector: &str, share: Share) {
    let control = control(&redis.connect().await, redis.keys());
    let by = seriatim::control::By {
        who: "ada",
        why: "a <test>",
    };
    control
        .set_share(by, &selector.parse().expect("a selector"), share)
        .await
        .expect("set");
}

#[tokio::test]
async fn shares_are_set_listed_and_removed_over_http() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    assert_eq!(
        serving.get("/v1/shares").await.json(),
        json!({ "shares": [] })
    );
    let share = json!({
        "selector": "work:*", "weight": 5, "priority": "high", "in_flight": 2, "rate": 20.5, "burst": 3, "reason": "a contract"
    });
    assert_eq!(
        serving.post("/v1/shares", &share.to_string()).await.json(),
        json!({ "selector": "work:*", "was_set": false })
    );
    assert_eq!(
        serving.post("/v1/shares", &share.to_string()).await.json()["was_set"],
        true
    );
    wait(&redis, "work:1", &["work:7"]).await;
    let mut shares = serving.get("/v1/shares").await.json();
    assert!(
        shares["shares"][0]["set_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 1_700_000_000_000),
        "{shares}"
    );
    shares["shares"][0]["set_ms"] = 7.into();
    let expected = json!({
        "selector": "work:*", "weight": 5, "priority": "high", "in_flight": 2, "rate": 20.5, "burst": 3, "actor": "http",
        "reason": "a contract", "set_ms": 7, "waiting": 1, "oldest_ms": null, "in_hand": 1, "taken": 0, "taken_per_second": 0.0
    });
    assert_eq!(shares, json!({ "shares": [expected] }));
    for (body, why) in [
        (json!({ "selector": "work:*" }), "a share needs a weight"),
        (
            json!({ "selector": "work:1", "weight": 5 }),
            "a share is for a prefix",
        ),
        (
            json!({ "selector": "*", "weight": 5 }),
            "for all objects it has no effect",
        ),
        (
            json!({ "selector": "work:*", "weight": 101 }),
            "from 1 to 100",
        ),
        (
            json!({ "selector": "work:*", "priority": "urgent" }),
            "the priorities are high, normal and low",
        ),
        (json!({ "selector": "wo*", "weight": 5 }), "the selector"),
        (
            json!({ "selector": "work:*", "weight": 5, "other": 1 }),
            "other",
        ),
    ] {
        let refused = serving.post("/v1/shares", &body.to_string()).await;
        assert!(
            refused.problem().0 == 400 && refused.text.contains(why),
            "{body}: {refused:?}"
        );
    }
    assert_eq!(serving.delete("/v1/shares").await.problem().0, 400);
    let removed = serving
        .delete("/v1/shares?selector=work:*&reason=over")
        .await
        .json();
    assert_eq!(removed, json!({ "selector": "work:*", "removed": true }));
    assert_eq!(
        serving
            .delete("/v1/shares?selector=work:*")
            .await
            .problem()
            .0,
        404
    );
    let actions = serving.get("/v1/actions").await.json();
    let row_of = |row: &Value| [row["action"].clone(), row["why"].clone()];
    let listed: Vec<_> = actions["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(row_of)
        .collect();
    assert_eq!(
        json!(listed),
        json!([
            ["share-remove", "over"],
            ["share-set", "a contract"],
            ["share-set", "a contract"]
        ])
    );
}

/// A user with prefixes sees the shares of the own objects, and figures only of these. Such a user
/// sets no share, because it would change the turns of others.
#[tokio::test]
async fn prefixes_bind_who_sees_and_sets_shares() {
    let redis = Redis::start();
    for selector in ["*", "work:*", "work:a:*", "user:*"] {
        set(&redis, selector, Share::new().in_flight(2)).await;
    }
    wait(&redis, "work:1", &["work:7", "user:1"]).await;
    let file = users(&[
        ("bound", "view,operate work:"),
        ("narrow", "view work:a:"),
        ("pauser", "view,pause"),
    ]);
    let serving = Serving::start(&redis, &["--users", path(&file)]).await;
    let seen = async |name: &str| {
        let found = answer(
            serving
                .request(Method::GET, "/v1/shares")
                .bearer_auth(token(name)),
        )
        .await
        .json();
        let row = |row: &Value| {
            (
                row["selector"].as_str().unwrap_or_default().to_owned(),
                row["in_hand"].as_u64(),
            )
        };
        found["shares"]
            .as_array()
            .expect("shares")
            .iter()
            .map(row)
            .collect::<Vec<_>>()
    };
    let rows = |rows: &[(&str, Option<u64>)]| {
        rows.iter()
            .map(|(of, n)| ((*of).to_owned(), *n))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen("bound").await,
        rows(&[("*", None), ("work:*", Some(1)), ("work:a:*", Some(0))])
    );
    assert_eq!(
        seen("narrow").await,
        rows(&[("*", None), ("work:*", None), ("work:a:*", Some(0))])
    );
    assert_eq!(
        seen("pauser").await,
        rows(&[
            ("*", Some(2)),
            ("user:*", Some(1)),
            ("work:*", Some(1)),
            ("work:a:*", Some(0))
        ])
    );
    let share = json!({ "selector": "work:a:*", "weight": 9 }).to_string();
    for name in ["bound", "narrow", "pauser"] {
        let set = answer(
            serving
                .posted("/v1/shares", &share)
                .bearer_auth(token(name)),
        )
        .await;
        assert_eq!(set.problem().0, 403, "{name}");
        let remove = serving
            .request(Method::DELETE, "/v1/shares?selector=work:a:*")
            .bearer_auth(token(name));
        assert_eq!(answer(remove).await.problem().0, 403, "{name}");
    }
    let control = control(&redis.connect().await, redis.keys());
    assert!(
        control
            .shares()
            .await
            .expect("shares")
            .iter()
            .all(|share| share.in_flight == Some(2))
    );
}

/// The pages show the shares, and which share an object waits for.
#[tokio::test]
async fn pages_of_the_dashboard_show_shares() {
    let redis = Redis::start();
    set(&redis, "work:*", Share::new().in_flight(2).weight(5)).await;
    let (console, keys) = (redis.console().await, redis.keys());
    let run = async |words: &[&str]| drop(console.run::<::redis::Value>(words).await);
    run(&["SET", &keys.event_worker("work:1"), "held"]).await;
    run(&["SET", &keys.events_held_id("work:1"), "0 0 0 0 yield"]).await;
    run(&["ZADD", &keys.objects_held(), "-1", "work:1"]).await;
    run(&["LPUSH", &keys.events("work:1"), "1"]).await;
    wait(&redis, "work:1", &["work:7", "work:8"]).await;
    let file = users(&USERS);
    let dash = Dash::start(&redis, &["--users", path(&file)]).await;
    let page = async |target: &str| dash.page_as("viewer", target).await.text;
    let rules = page("/rules").await;
    for part in [
        "<h2>Shares</h2>",
        "<b>work:*</b>",
        "weight 5, at most 2 in hand",
        "a &lt;test&gt;",
    ] {
        assert!(rules.contains(part), "{part}: {rules}");
    }
    let wait = "its share work:*: 2 of 2 in hand";
    for (target, part) in [
        ("/held", wait),
        ("/object?name=work:1", wait),
        ("/object?name=work:1", "work:*: weight 5, at most 2"),
    ] {
        let found = page(target).await;
        assert!(found.contains(part), "{target}: {part}: {found}");
    }
    let control = control(&redis.connect().await, redis.keys());
    let by = seriatim::control::By {
        who: "ada",
        why: "over",
    };
    control
        .remove_share(by, &"work:*".parse().expect("a selector"))
        .await
        .expect("removed");
    assert!(!page("/rules").await.contains("<h2>Shares</h2>"));
    assert!(!page("/held").await.contains("its share"));
}
