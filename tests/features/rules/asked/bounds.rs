//! The limits of one call, tested directly: the fields of rules that it looks up, the objects that
//! it pauses. Also the limit of the number of rules.

use futures_util::StreamExt as _;
use seriatim::control::ControlError;
use seriatim::control::rules::{self, Kind, Ruled, Selector};
use seriatim::wire::{self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, Tag};

use super::super::{ADA, lift, selector, set};
use super::{BOUNDS, attached};
use crate::support::control;

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
    set(scene.conn(), &keys, Kind::Pause, "never:*").await;
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
    set(scene.conn(), &keys, Kind::Block, &eighth).await;
    scene.state.emit(&format!("{name}2"), "1").await;
    scene.ask().await;
    assert_eq!(scene.paused().await, [format!("{name}2")]);
    scene.console.check().await;
}

/// One call pauses at most 256 objects, due or marked. If there are more, the next call continues.
#[tokio::test]
async fn a_call_pauses_so_many_objects_and_no_more() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    for n in 0..300 {
        scene
            .state
            .hold(&format!("o{n}"), "1", &[], "0 0 0 0 ")
            .await;
    }
    set(scene.conn(), &keys, Kind::Block, "*").await;
    let first = scene
        .call(BOUNDS, ClaimFirst::Held, None)
        .await
        .expect("an answer");
    assert_eq!((scene.paused().await.len(), first.more), (256, true));
    let second = scene
        .call(BOUNDS, ClaimFirst::Held, None)
        .await
        .expect("an answer");
    assert_eq!((scene.paused().await.len(), second.more), (300, false));
    for n in 0..300 {
        scene.state.emit(&format!("marked{n}"), "1").await;
    }
    let third = scene
        .call(BOUNDS, ClaimFirst::Markers, None)
        .await
        .expect("an answer");
    assert_eq!((scene.paused().await.len(), third.more), (556, true));
    let fourth = scene
        .call(BOUNDS, ClaimFirst::Markers, None)
        .await
        .expect("an answer");
    assert_eq!((scene.paused().await.len(), fourth.more), (600, false));
    for n in 0..150 {
        scene
            .state
            .hold(&format!("due{n}"), "1", &[], "0 0 0 0 ")
            .await;
        scene.state.emit(&format!("new{n}"), "1").await;
    }
    let both = scene
        .call(BOUNDS, ClaimFirst::Held, None)
        .await
        .expect("an answer");
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
    let keys = scene.keys.clone();
    let mut call = Advance::new(
        &keys,
        "w",
        "t",
        Bounds {
            claims: 1 + PAUSED,
            ..BOUNDS
        },
        ClaimFirst::Markers,
    );
    for slot in 0..PAUSED {
        let (object, first) = (format!("a:{slot}"), 1 + slot as u64);
        scene
            .state
            .own(&format!("w.{slot}"), &object, first, &["1"])
            .await;
        scene
            .state
            .run("LPUSH", &[&keys.events(&object), "2"])
            .await;
        let (tag, last) = (
            Tag {
                first,
                ..Tag::default()
            },
            Some(first),
        );
        call.report(
            slot,
            &Report {
                object: object.into_bytes().into(),
                tag,
                count: 1,
                last,
                then: BatchResult::Done,
            },
        );
    }
    call.free(PAUSED);
    scene.state.emit("other", "1").await;
    set(scene.conn(), &keys, Kind::Block, "a:*").await;
    let answer = wire::advance(scene.conn(), &call).await.expect("an answer");
    let Advanced::Ok { batches, more, .. } = answer else {
        panic!("{answer:?}")
    };
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
    let refused = control(scene.conn(), &keys)
        .set_rule(ADA, Kind::Pause, &selector("more"), None)
        .await
        .expect_err("too many");
    assert!(
        matches!(refused, ControlError::Rules(rules::RULES_MAX)),
        "{refused}"
    );
    assert_eq!(
        set(scene.conn(), &keys, Kind::Pause, "o7").await,
        Ruled::Again
    );
}

/// A call looks up at most about 2,048 fields of rules. If each object has other prefixes, it needs
/// 18 fields. So a call ends before it has claimed all objects, and reports that there are more.
/// The next call continues.
#[tokio::test]
async fn a_call_asks_for_so_many_fields_of_rules_at_most() {
    const OBJECTS: usize = 600;
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    set(scene.conn(), &keys, Kind::Pause, "other").await;
    for n in 0..OBJECTS {
        scene
            .state
            .emit(&format!("{n}:1:2:3:4:5:6:7:8:9"), "1")
            .await;
    }
    let bounds = Bounds {
        claims: OBJECTS,
        ..BOUNDS
    };
    let mut calls = Vec::new();
    let (mut slots, mut claimed) = (0..OBJECTS, 0);
    loop {
        let mut call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Markers);
        slots.clone().for_each(|slot| call.free(slot));
        let Advanced::Ok { batches, more, .. } =
            wire::advance(scene.conn(), &call).await.expect("an answer")
        else {
            panic!("the call was refused")
        };
        claimed += batches.len();
        slots.start = claimed;
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
    let keys = scene.keys.clone();
    for n in 0..64 {
        let name = format!("woken{n}");
        scene
            .state
            .run("SET", &[&keys.event_worker(&name), "held"])
            .await;
        scene
            .state
            .run("ZADD", &[&keys.objects_paused(), "0", &name])
            .await;
    }
    for n in 0..200 {
        scene
            .state
            .emit(&format!("other:{n}:1:2:3:4:5:6:7:8"), "1")
            .await;
    }
    set(scene.conn(), &keys, Kind::Pause, "none").await;
    set(scene.conn(), &keys, Kind::Pause, "*").await;
    assert_eq!(
        lift(scene.conn(), &keys, Kind::Pause, "*").await,
        Ruled::Lifted
    );
    let bounds = Bounds {
        claims: 200,
        ..BOUNDS
    };
    let mut call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Markers);
    (0..200).for_each(|slot| call.free(slot));
    let answer = wire::advance(scene.conn(), &call).await.expect("an answer");
    let Advanced::Ok { batches, more, .. } = answer else {
        panic!("{answer:?}")
    };
    assert!(
        (1..100).contains(&batches.len()) && more,
        "{} batches, more: {more}",
        batches.len()
    );
    assert!(scene.paused().await.is_empty());
}
