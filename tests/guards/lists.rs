//! `held` and `paused`: the entry of an object in a page has all stored values, and a page has each
//! rule once.

use seriatim::wire::operator::{self, HeldPart, HeldQuery, HeldReply};

use crate::state::State;
use crate::support::Redis;

/// A page has the owner, the numbers and the reason of a listed object, each from its own key. An
/// absent key reads as an empty text.
#[tokio::test]
async fn an_entry_has_the_owner_and_the_reason() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for (object, due) in [("a:1", "5"), ("a:2", "6"), ("a:3", "7")] {
        state
            .run("ZADD", &[&keys.objects_held(), due, object])
            .await;
        state
            .run("ZADD", &[&keys.objects_paused(), "0", object])
            .await;
    }
    state.run("SET", &[&keys.event_worker("a:1"), "w.0"]).await;
    state
        .run("SET", &[&keys.events_held_id("a:2"), "7 0 1 0 retry: down"])
        .await;
    state
        .run("RPUSH", &[&keys.events_held("a:2"), "1", "2"])
        .await;
    let entry = |object: &str, due: &str, owner: &str, held_id: &str, events| HeldReply {
        object: object.into(),
        due: due.into(),
        owner: owner.into(),
        held_id: held_id.into(),
        events,
    };
    let expected = |due: [&str; 3]| {
        [
            entry("a:1", due[0], "w.0", "", 0),
            entry("a:2", due[1], "", "7 0 1 0 retry: down", 2),
            entry("a:3", due[2], "", "", 0),
        ]
    };

    let query = HeldQuery {
        part: HeldPart::All,
        prefix: b"",
        after: None,
        count: 10,
    };
    let held = operator::held(&mut state.conn, &keys, &query)
        .await
        .expect("a page");
    assert_eq!(held.objects, expected(["5", "6", "7"]));
    let paused = operator::paused(&mut state.conn, &keys, b"", None, 10)
        .await
        .expect("a page");
    let paused: Vec<_> = paused
        .objects
        .into_iter()
        .map(|(object, _)| object)
        .collect();
    assert_eq!(paused, expected(["", "", ""]));
}

/// If a rule holds several objects of a page, the reply has the value of the rule only once.
#[tokio::test]
async fn a_page_has_each_rule_once() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let rules = [
        ("block *", "17 0 0 3 0 ada"),
        ("pause a:*", "18 0 0 3 0 bob"),
    ];
    for (field, value) in rules {
        state.rule(field, value, "0").await;
    }
    for object in ["a:1", "a:2", "a:3"] {
        state
            .run("ZADD", &[&keys.objects_paused(), "0", object])
            .await;
    }
    let page = operator::paused(&mut state.conn, &keys, b"", None, 10)
        .await
        .expect("a page");
    assert_eq!(
        page.rules,
        rules.map(|(field, value)| (field.into(), value.into()))
    );
    let fields = rules.map(|(field, _)| field.as_bytes().to_vec());
    assert!(
        page.objects.len() == 3 && page.objects.iter().all(|(_, of)| *of == fields),
        "{page:?}"
    );
}
