//! `seriatim share`.

use crate::support::Redis;

#[test]
fn shares_are_set_listed_replaced_and_removed() {
    let redis = Redis::start();
    assert_eq!(redis.stdout("share list"), "");
    let first = [
        "share",
        "set",
        "acme:*",
        "--weight",
        "5",
        "--priority",
        "high",
        "--reason",
        "a contract",
        "--actor",
        "ada",
    ];
    assert_eq!(redis.prints(&first), "acme:*: set\n");
    assert_eq!(
        redis.prints("share set acme:batch:* --priority low"),
        "acme:batch:*: set\n"
    );
    let people = redis.prints("share list");
    assert!(people.starts_with("acme:*\n  weight    5\n  priority  high\n  waits     0 names\n  used      0 in hand, 0.0 events/s, 0 events taken\n  by        ada, 2"), "{people}");
    assert!(
        people.contains("\n  why       a contract\nacme:batch:*\n  priority  low\n  waits "),
        "{people}"
    );
    let mut shares = redis.json_lines("share list --json");
    let set_ms = shares[0]["set_ms"].as_u64();
    assert!(set_ms > Some(1_700_000_000_000), "{shares:?}");
    shares[0]["set_ms"] = 7.into();
    let expected = serde_json::json!({
        "selector": "acme:*", "weight": 5, "priority": "high", "in_flight": null, "rate": null, "burst": null, "actor": "ada",
        "reason": "a contract", "set_ms": 7, "waiting": 0, "oldest_ms": null, "in_hand": 0, "taken": 0, "taken_per_second": 0.0
    });
    assert_eq!((shares.len(), &shares[0]), (2, &expected));
    // A set replaces the whole share, so the priority is gone.
    assert_eq!(
        redis.prints("share set acme:* --weight 100"),
        "acme:*: replaced\n"
    );
    let people = redis.prints("share list");
    assert!(
        people.starts_with("acme:*\n  weight    100\n  waits     0 names\n  used ")
            && !people.contains("a contract"),
        "{people}"
    );
    assert_eq!(redis.prints("share remove acme:*"), "acme:*: removed\n");
    let again = redis.refuses("share remove acme:*");
    assert!(
        again.contains("there is no share for acme:*; `seriatim share list` shows them"),
        "{again}"
    );
    assert_eq!(redis.prints("share list --json").lines().count(), 1);
    let kept = redis.json_lines("actions --json");
    let kept: Vec<_> = kept
        .iter()
        .map(|action| (action["action"].as_str(), action["object"].as_str()))
        .collect();
    let (set, remove) = (Some("share-set"), Some("share-remove"));
    let (acme, batch) = (Some("acme:*"), Some("acme:batch:*"));
    assert_eq!(
        kept,
        [(remove, acme), (set, acme), (set, batch), (set, acme)]
    );
}

#[test]
fn a_share_that_cannot_be_set_is_refused_with_the_reason() {
    let redis = Redis::start();
    for (arguments, why) in [
        ("* --weight 5", "for all objects it has no effect"),
        (
            "acme:* --in-flight 0",
            "must be a whole number from 1 to 1000000",
        ),
        (
            "acme:* --rate 50",
            "write the events per second, as in 50/s",
        ),
        (
            "acme:* --rate 0/s",
            "the rate of a share must be from 0.001",
        ),
        (
            "acme:* --rate 5/s,burst=x",
            "write the events per second, as in 50/s",
        ),
        (
            "acme:* --rate 5/s,burst=0",
            "the burst of a share must be a whole number",
        ),
        (
            "acme:* --rate 50/s,burst=1",
            "the burst of a share must be at least 5 for 50 events per second",
        ),
        (
            "acme:1 --weight 5",
            r#"for this one object write "acme:1:*""#,
        ),
        (":* --weight 5", "the prefix is empty"),
        ("ac* --weight 5", "has a star elsewhere than at the end"),
        ("a:b:c:d:e:f:g:h:i:* --weight 5", "has too many colons"),
        ("acme:* --weight 0", "must be a whole number from 1 to 100"),
        (
            "acme:* --weight 101",
            "must be a whole number from 1 to 100",
        ),
        ("acme:* --weight 2.5", "--weight"),
        ("acme:* --priority urgent", "--priority"),
        ("acme:*", "--weight"),
    ] {
        let message = redis.refuses(&format!("share set {arguments}"));
        assert!(message.contains(why), "{arguments}: {message}");
    }
    assert_eq!(redis.stdout("share list"), "");
    assert_eq!(redis.stdout("actions"), "");
    assert_eq!(
        redis.prints("share set a:b:c:d:e:f:g:h:* --weight 1"),
        "a:b:c:d:e:f:g:h:*: set\n"
    );
}

/// The commands show how far shares are used, and which objects wait for them.
#[tokio::test(flavor = "multi_thread")]
async fn commands_show_how_far_shares_are_used() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys());
    redis.prints("share set acme:* --weight 5 --in-flight 2 --rate 20/s,burst=5");
    let run = async |words: &[&str]| drop(console.run::<redis::Value>(words).await);
    run(&["LPUSH", &keys.events("acme:1"), "1"]).await;
    run(&["LPUSH", &keys.group_waiting("acme"), "acme:1", "acme:2"]).await;
    run(&["ZADD", &keys.event_groups(), "5", "acme"]).await;
    run(&["SET", &keys.event_groups_waiting(), "2"]).await;
    run(&[
        "ZADD",
        &keys.objects_in_hand(),
        "0",
        "acme:8:",
        "0",
        "acme:9:",
    ])
    .await;
    run(&["HSET", &keys.event_shares_used(), "acme:*", "120 0 0 0 0"]).await;
    run(&["SET", &keys.event_worker("acme:2"), "held"]).await;
    run(&["ZADD", &keys.objects_held(), "-1", "acme:2"]).await;
    run(&["SET", &keys.events_held_id("acme:2"), "0 0 0 0 yield"]).await;
    let list = redis.prints("share list");
    let figures = "\n  waits     2 names\n  used      2 of 2 in hand, 0.0 of 20 events/s, 120 events taken\n  by ";
    assert!(list.contains(figures), "{list}");
    let stats = redis.prints("stats");
    let flat = stats.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("shares 1 set share acme:*: 2 names, 2 of 2 in hand, 0.0 of 20 events/s, 120 events taken "),
        "{stats}"
    );
    let stats = redis.json("stats --json");
    let shares = &stats["shares"];
    assert_eq!(
        (&shares["total"], &shares["listed"][0]["selector"]),
        (&1.into(), &"acme:*".into()),
        "{shares}"
    );
    assert_eq!(
        (
            &shares["listed"][0]["waiting"],
            &shares["listed"][0]["in_hand"]
        ),
        (&2.into(), &2.into()),
        "{shares}"
    );
    let seen = redis.prints("inspect acme:1");
    let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains(
            "it waits for its share acme:*: 2 of 2 in hand, in its group 'acme': 0 names before it"
        ),
        "{seen}"
    );
    assert!(
        seen.contains("\nshare      acme:*: weight 5, at most 2 in hand, at most 20/s, burst 5\n"),
        "{seen}"
    );
    let seen = redis.json("inspect acme:1 --json");
    assert_eq!(
        seen["waits_for_share"],
        serde_json::json!({ "selector": "acme:*", "in_hand": 2, "in_flight": 2 })
    );
    assert_eq!(
        (&seen["shares"][0]["selector"], &seen["shares"][0]["weight"]),
        (&"acme:*".into(), &5.into())
    );
    let held = redis.prints("held list");
    assert!(
        held.contains("acme:2  yield, due now\n  waits  for its share acme:*: 2 of 2 in hand\n"),
        "{held}"
    );
    let held = redis.json("held list --json");
    assert_eq!(held["waits_for_share"]["selector"], "acme:*");
}
