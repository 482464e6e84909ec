//! The limits of one call, tested directly: the fields of rules that it looks up, the objects that
//! it pauses. Also the limit of the number of rules.

use futures_util::StreamExt as _;
use seriatim::control::ControlError;
use seriatim::control::rules::{self, Kind, Ruled, Selector};
use seriatim::wire::ClaimFirst;

use super::super::ADA;
use super::{BOUNDS, attached, claims};
use crate::scene::{done, slots};
use crate::support::assert_matches;

/// Story: for each object a worker looked up every prefix that ends at a colon. A valid name has up
/// to 508 colons. So with any rule set, such an object cost 1,016 lookups, and a call of all slots
/// stopped Redis for a second. Now only the first 8 colons of a name count, and the prefix of a
/// rule may not have more.
#[tokio::test]
async fn colons_of_a_name_cost_eight_lookups_at_most() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    let (name, eighth) = (":".repeat(508), format!("{}*", ":".repeat(8)));
    assert!(format!("{}*", ":".repeat(9)).parse::<Selector>().is_err());
    scene.set(Kind::Pause, "never:*").await;
    scene.state.emit(&name, "1").await;
    let client = redis::Client::open(scene.redis.url()).expect("a URL");
    let monitor = client.get_async_monitor().await.expect("a monitor");
    assert_eq!(scene.ask().await.objects(), [name.as_str()]);
    let _: String = scene.console.run(&["ECHO", "that was all"]).await;
    let ran: Vec<String> = monitor
        .into_on_message()
        .take_while(|line: &String| std::future::ready(!line.contains("that was all")))
        .collect()
        .await;
    let of_rules = ran
        .iter()
        .filter(|line| line.contains(r#""HMGET""#) && line.contains(&keys.event_rules()));
    let fields: Vec<usize> = of_rules
        .map(|line| line.matches(r#"" ""#).count() - 1)
        .collect();
    assert_eq!(
        fields,
        [20],
        "for each kind: everything, eight prefixes, the object"
    );
    // A rule with the longest allowed prefix matches the object.
    scene.set(Kind::Block, &eighth).await;
    scene.state.emit(&format!("{name}2"), "1").await;
    scene.ask().await;
    assert_eq!(scene.paused().await, [format!("{name}2")]);
    scene.console.check().await;
}

/// One call pauses at most 256 objects, due or marked. If there are more, the next call continues.
#[tokio::test]
async fn a_call_pauses_so_many_objects_and_no_more() {
    let mut scene = attached().await;
    for n in 0..300 {
        let object = format!("o{n}");
        scene.state.hold(&object, "1", &[], "0 0 0 0 ").await;
    }
    scene.set(Kind::Block, "*").await;
    let first = scene.answer(BOUNDS, ClaimFirst::Held, None).await;
    assert_eq!((scene.paused().await.len(), first.more), (256, true));
    let second = scene.answer(BOUNDS, ClaimFirst::Held, None).await;
    assert_eq!((scene.paused().await.len(), second.more), (300, false));
    for n in 0..300 {
        scene.state.emit(&format!("marked{n}"), "1").await;
    }
    let third = scene.answer(BOUNDS, ClaimFirst::Markers, None).await;
    assert_eq!((scene.paused().await.len(), third.more), (556, true));
    let fourth = scene.answer(BOUNDS, ClaimFirst::Markers, None).await;
    assert_eq!((scene.paused().await.len(), fourth.more), (600, false));
    for n in 0..150 {
        let object = format!("due{n}");
        scene.state.hold(&object, "1", &[], "0 0 0 0 ").await;
        scene.state.emit(&format!("new{n}"), "1").await;
    }
    let both = scene.answer(BOUNDS, ClaimFirst::Held, None).await;
    assert_eq!(
        (scene.paused().await.len(), both.more),
        (856, true),
        "due and marked objects together"
    );
}

/// Story: 256 slots of a call went on with objects under a rule, so the call paused these objects.
/// Each of the slots then counted as free for a claim. So the call claimed up to 512 further
/// objects.
#[tokio::test]
async fn a_call_that_pauses_the_objects_of_its_slots_claims_no_more() {
    const PAUSED: usize = 256;
    let mut scene = attached().await;
    let mut results = Vec::new();
    for slot in 0..PAUSED {
        let (object, first) = (format!("a:{slot}"), 1 + slot as u64);
        let worker = format!("w.{slot}");
        scene.state.own(&worker, &object, first, &["1"]).await;
        scene.state.add(&format!("LPUSH {object}:events 2")).await;
        results.push(done(&object, first));
    }
    scene.state.emit("other", "1").await;
    scene.set(Kind::Block, "a:*").await;
    let fill = slots(&results, PAUSED..PAUSED + 1);
    let (batches, more) = scene.advance(claims(1 + PAUSED), fill).await;
    assert_eq!(
        (scene.paused().await.len(), batches.len(), more),
        (PAUSED, 0, true)
    );
    assert_eq!(scene.ask().await.objects(), ["other"]);
}

/// The number of rules is limited, because some scripts read all rules at once. An existing rule
/// can be changed even at the limit.
#[tokio::test]
async fn there_are_so_many_rules_and_no_more() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    let mut fields = redis::cmd("HSET");
    fields.arg(keys.event_rules());
    for n in 0..rules::RULES_MAX {
        fields.arg(format!("pause o{n}")).arg("1 0 0 0 0 ");
    }
    fields.arg("next").arg("never");
    fields.query_async::<u64>(scene.conn()).await.expect("HSET");
    let refused = scene.try_pause(ADA, "more").await;
    assert_matches!(refused, Err(ControlError::Rules(rules::RULES_MAX)));
    assert_eq!(scene.set(Kind::Pause, "o7").await, Ruled::Again);
}

/// A call looks up at most about 2,048 fields of rules. If each object has other prefixes, it needs
/// 18 fields. So a call ends before it has claimed all objects, and reports that there are more.
/// The next call continues.
#[tokio::test]
async fn a_call_asks_for_so_many_fields_of_rules_at_most() {
    const OBJECTS: usize = 600;
    let mut scene = attached().await;
    scene.set(Kind::Pause, "other").await;
    for n in 0..OBJECTS {
        let object = format!("{n}:1:2:3:4:5:6:7:8:9");
        scene.state.emit(&object, "1").await;
    }
    let mut calls = Vec::new();
    let mut claimed = 0;
    loop {
        let free = slots(&[], claimed..OBJECTS);
        let (batches, more) = scene.advance(claims(OBJECTS), free).await;
        claimed += batches.len();
        calls.push((batches.len(), more));
        if !more {
            break;
        }
    }
    let per_call = 2048_usize.div_ceil(18);
    assert_eq!(
        calls[..2],
        [(per_call, true), (per_call, true)],
        "{calls:?}"
    );
    assert_eq!(claimed, OBJECTS, "{calls:?}");
}

/// A call that wakes objects claims fewer objects, because both take Redis' time.
#[tokio::test]
async fn a_call_that_wakes_claims_fewer() {
    let mut scene = attached().await;
    for n in 0..64 {
        scene.pause(&format!("woken{n}")).await;
    }
    for n in 0..200 {
        let object = format!("other:{n}:1:2:3:4:5:6:7:8");
        scene.state.emit(&object, "1").await;
    }
    scene.set(Kind::Pause, "none").await;
    scene.set(Kind::Pause, "*").await;
    assert_eq!(scene.lift(Kind::Pause, "*").await, Ruled::Lifted);
    let (batches, more) = scene.advance(claims(200), slots(&[], 0..200)).await;
    assert!(
        (1..100).contains(&batches.len()) && more,
        "{} batches, more: {more}",
        batches.len()
    );
    assert!(scene.paused().await.is_empty());
}
