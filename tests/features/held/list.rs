//! Lists of held and paused objects: the reason of each held object, and the rules over each paused
//! one.

use seriatim::control::held::{HeldObject, WaitsFor};
use seriatim::control::rules::Kind;

use crate::state::State;
use crate::support::Redis;

async fn listed(state: &mut State, until_released: bool, per_page: usize) -> Vec<HeldObject> {
    let control = state.control();
    let (mut all, mut after): (Vec<HeldObject>, _) = (Vec::new(), None);
    loop {
        let page = control
            .held(until_released, after.as_ref(), per_page)
            .await
            .expect("a page");
        assert!(
            page.next.is_none() || page.objects.len() == per_page,
            "{page:?}"
        );
        assert_eq!(page.looked, page.objects.len() as u64);
        all.extend(page.objects);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// The list shows the reason, due time, numbers and last error of each held object.
#[tokio::test]
async fn the_list_says_why_an_object_waits() {
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    state
        .hold(
            "work:10",
            "inf",
            &["{}", "{}"],
            "17 2 3 1 attempts: failed 3 times, at last: down",
        )
        .await;
    state
        .hold("work:11", "5", &["{}"], "19 0 0 1 takeover")
        .await;
    let all = listed(&mut state, false, 100).await;
    let shown: Vec<_> = all
        .iter()
        .map(|held| {
            (
                held.object.as_str(),
                held.waits_for,
                held.due_ms,
                held.id,
                held.events,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("work:5", WaitsFor::Retry, Some(1), Some(15), 1),
            ("work:8", WaitsFor::Yield, Some(1), None, 0),
            ("work:11", WaitsFor::Takeover, Some(5), Some(19), 1),
            (
                "work:6",
                WaitsFor::Retry,
                Some(99_999_999_999_999),
                Some(16),
                1
            ),
            ("work:10", WaitsFor::Operator, None, Some(17), 2),
            ("work:7", WaitsFor::Operator, None, None, 0),
        ]
    );
    assert_eq!(
        (all[4].attempts, all[4].crashes, all[4].why.as_str()),
        (3, 1, "attempts: failed 3 times, at last: down")
    );
    let waiting: Vec<_> = listed(&mut state, true, 100)
        .await
        .into_iter()
        .map(|held| held.object)
        .collect();
    assert_eq!(waiting, ["work:10", "work:7"]);
    // Pages of any size give the same list.
    for per_page in 1..4 {
        assert_eq!(listed(&mut state, false, per_page).await, all);
        assert_eq!(listed(&mut state, true, per_page).await.len(), 2);
    }
}

/// If an object of the first page moves in the list before the second page is read, the second page
/// still has all other objects.
#[tokio::test]
async fn a_page_goes_on_behind_an_object_that_is_gone() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    for n in 0..6 {
        let due = ["3", "7", "7", "inf", "inf", "inf"][n];
        state
            .hold(&format!("o{n}"), due, &["1"], "1 0 1 0 retry: x")
            .await;
    }
    let first = control.held(false, None, 2).await.expect("a page").next;
    state.add("ZADD objects.held inf o1").await;
    let rest = control
        .held(false, first.as_ref(), 10)
        .await
        .expect("a page")
        .objects;
    let rest: Vec<_> = rest.into_iter().map(|held| held.object).collect();
    assert_eq!(rest, ["o2", "o1", "o3", "o4", "o5"]);
}

/// If an object's held batch, or its numbers, have a wrong type, the list still shows the object.
#[tokio::test]
async fn the_list_goes_on_beside_wrong_types() {
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    let keys = state.keys.clone();
    for key in [
        keys.events_held("work:5"),
        keys.events_held_id("work:6"),
        keys.event_worker("work:8"),
    ] {
        state.run("DEL", &[&key]).await;
        state.run("SADD", &[&key, "wrong"]).await;
    }
    let all = listed(&mut state, false, 100).await;
    let shown: Vec<_> = all
        .iter()
        .map(|held| (held.object.as_str(), held.id, held.events))
        .collect();
    assert_eq!(
        shown,
        [
            ("work:5", Some(15), 0),
            ("work:8", None, 0),
            ("work:6", None, 1),
            ("work:7", None, 0)
        ]
    );
}

/// Returns the paused objects, read in pages of this size.
async fn listed_paused(state: &mut State, per_page: usize) -> Vec<HeldObject> {
    let control = state.control();
    let (mut all, mut after): (Vec<HeldObject>, _) = (Vec::new(), None);
    loop {
        let page = control
            .paused(after.as_ref(), per_page)
            .await
            .expect("a page");
        assert_eq!(page.next.is_some(), page.objects.len() == per_page);
        all.extend(page.objects);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// A paused object is listed with every rule that matches it, blocks first, and with the first
/// event of its batch.
#[tokio::test]
async fn the_list_says_under_which_rules_an_object_is_paused() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let keys = state.keys.clone();
    for object in ["a:1", "a:2", "b", "a:1:x", "{", "\u{e9}"] {
        state
            .run("SET", &[&keys.event_worker(object), "held"])
            .await;
        state
            .run("ZADD", &[&keys.objects_paused(), "0", object])
            .await;
    }
    state.add("LPUSH a:2:events.held 1 2").await;
    state
        .add("SET a:2:events.held.id '7 1 2 1 retry: down'")
        .await;
    state.rule("pause a:*", "17 0 0 3 0 adaa look", "0").await;
    state.rule("block a:1", "18 0 0 3 0 bob", "0").await;
    state.rule("block *", "19 0 1 3 0 bob", "0").await;
    let all = listed_paused(&mut state, 100).await;
    let shown: Vec<_> = all
        .iter()
        .map(|held| {
            let rules = held
                .rules
                .iter()
                .map(|rule| format!("{rule}{}", if rule.in_force { "" } else { " lifted" }));
            (held.object.as_str(), rules.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let expected = [
        ("a:1", "block * lifted, block a:1, pause a:*"),
        ("a:1:x", "block * lifted, pause a:*"),
        ("a:2", "block * lifted, pause a:*"),
        ("b", "block * lifted"),
        ("{", "block * lifted"),
        ("\u{e9}", "block * lifted"),
    ];
    assert_eq!(
        shown,
        expected.map(|(object, rules)| (object, rules.to_owned()))
    );
    assert!(
        all.iter()
            .all(|held| (held.waits_for, held.due_ms) == (WaitsFor::Rule, None))
    );
    let HeldObject {
        id,
        attempts,
        crashes,
        events,
        why,
        rules,
        ..
    } = &all[2];
    assert_eq!(
        (*id, *attempts, *crashes, *events, why.as_str()),
        (Some(7), 2, 1, 2, "retry: down")
    );
    assert_eq!(
        (
            rules[1].kind,
            rules[1].actor.as_str(),
            rules[1].reason.as_str()
        ),
        (Kind::Pause, "ada", "a look")
    );
    for per_page in 1..4 {
        assert_eq!(listed_paused(&mut state, per_page).await, all);
    }
    // The paused objects wait for a rule, so the list of held objects does not have them.
    assert_eq!(listed(&mut state, false, 100).await, []);
    // The last object of the first page is gone. The second page still begins behind its place.
    let second = control.paused(None, 2).await.expect("a page").next;
    state.add("ZREM objects.paused a:1:x").await;
    let rest = control
        .paused(second.as_ref(), 2)
        .await
        .expect("a page")
        .objects;
    assert_eq!(rest, all[2..4]);
    // The list is complete even if a held batch, its numbers, and the rules have a wrong type.
    for key in [
        keys.events_held("a:2"),
        keys.events_held_id("a:2"),
        keys.event_rules(),
    ] {
        state.run("DEL", &[&key]).await;
        state.run("SADD", &[&key, "wrong"]).await;
    }
    let all = listed_paused(&mut state, 100).await;
    assert_eq!(
        (
            all.len(),
            all[1].object.as_str(),
            all[1].events,
            all[1].id,
            all[1].rules.len()
        ),
        (5, "a:2", 0, None, 0)
    );
}
