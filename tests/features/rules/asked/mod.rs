//! Calls the scripts directly, for cases that real workers do not reach, because other checks come
//! first.

mod bounds;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::rules::{Kind, Ruled};
use seriatim::control::{By, ControlError};
use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, BatchReply, Bounds, ClaimFirst, Report};

use super::{ADA, lift, selector, set, set_for};
use crate::scene::{self, ATTACH, done};
use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;
use crate::support::operator::assert_wrong_type;

const BOUNDS: Bounds = Bounds {
    markers: 4096,
    ..scene::BOUNDS
};

/// Returns these bounds with another number of claims.
fn claims(claims: usize) -> Bounds {
    Bounds { claims, ..BOUNDS }
}

struct Scene {
    redis: Redis,
    state: State,
    keys: Keys,
    console: Console,
}

/// Attaches a process `w` with two slots.
async fn attached() -> Scene {
    let (redis, mut state) = Redis::start().with_state().await;
    let attached = wire::attach(&mut state.conn, &state.keys, &ATTACH).await;
    attached.expect("attached");
    let (console, keys) = (state.console(), state.keys.clone());
    Scene {
        redis,
        state,
        keys,
        console,
    }
}

/// The result of a call.
struct Answer {
    batches: Vec<BatchReply>,
    more: bool,
    next_due: Option<Duration>,
}

impl Answer {
    fn objects(&self) -> Vec<String> {
        self.batches
            .iter()
            .map(|batch| String::from_utf8_lossy(&batch.object).into_owned())
            .collect()
    }
}

impl Scene {
    fn conn(&mut self) -> &mut MultiplexedConnection {
        &mut self.state.conn
    }

    /// Makes a call that reports a result for the first slot, or names it as free. The call names
    /// the second slot as free.
    async fn call(
        &mut self,
        bounds: Bounds,
        from: ClaimFirst,
        report: Option<&Report>,
    ) -> Result<Answer, wire::ScriptError> {
        let mut call = Advance::new(&self.keys, "w", ATTACH.token, bounds, from);
        match report {
            Some(report) => call.report(0, report),
            None => call.free(0),
        }
        call.free(1);
        match wire::advance(&mut self.state.conn, &call).await? {
            Advanced::Ok {
                batches,
                more,
                next_due,
                ..
            } => Ok(Answer {
                batches,
                more,
                next_due,
            }),
            other => panic!("{other:?}"),
        }
    }

    /// Makes a call that succeeds.
    async fn answer(
        &mut self,
        bounds: Bounds,
        from: ClaimFirst,
        report: Option<&Report>,
    ) -> Answer {
        let answer = self.call(bounds, from, report).await;
        answer.expect("an answer")
    }

    async fn ask(&mut self) -> Answer {
        self.answer(BOUNDS, ClaimFirst::Markers, None).await
    }

    /// Makes a call for these slots. Returns the batches, and whether another call is of use.
    async fn advance(
        &mut self,
        bounds: Bounds,
        fill: impl FnOnce(&mut Advance),
    ) -> (Vec<BatchReply>, bool) {
        let from = ClaimFirst::Markers;
        let mut call = Advance::new(&self.keys, "w", ATTACH.token, bounds, from);
        fill(&mut call);
        match wire::advance(&mut self.state.conn, &call).await {
            Ok(Advanced::Ok { batches, more, .. }) => (batches, more),
            other => panic!("{other:?}"),
        }
    }

    async fn set(&mut self, kind: Kind, text: &str) -> Ruled {
        set(&self.state.conn, &self.keys, kind, text).await
    }

    /// Pauses these objects for so many seconds.
    async fn pause_for(&mut self, text: &str, seconds: u64) {
        let after = Duration::from_secs(seconds);
        set_for(&self.state.conn, &self.keys, Kind::Pause, text, after).await;
    }

    /// Sets a pause, which may be refused.
    async fn try_pause(&mut self, by: By<'_>, text: &str) -> Result<Ruled, ControlError> {
        let control = self.console.control();
        control
            .set_rule(by, Kind::Pause, &selector(text), None)
            .await
    }

    async fn lift(&mut self, kind: Kind, text: &str) -> Ruled {
        lift(&self.state.conn, &self.keys, kind, text).await
    }

    /// Makes an object that a rule has paused.
    async fn pause(&mut self, name: &str) {
        let owner = self.keys.event_worker(name);
        self.state.run("SET", &[&owner, "held"]).await;
        let paused = self.keys.objects_paused();
        self.state.run("ZADD", &[&paused, "0", name]).await;
    }

    async fn paused(&self) -> Vec<String> {
        self.console
            .run(&["ZRANGE", &self.keys.objects_paused(), "0", "-1"])
            .await
    }

    async fn rule(&self, field: &str) -> Option<String> {
        self.console
            .run(&["HGET", &self.keys.event_rules(), field])
            .await
    }
}

/// A selector stands for all objects, for a prefix that ends at a colon, or for one object. It
/// matches no other objects.
#[tokio::test]
async fn a_selector_means_everything_or_a_prefix_at_a_colon_or_one_object() {
    let names = ["a", "a:", "a:b", "a:b:c", "a:bc", "ab:c", "aa", "*"];
    for (text, meant) in [
        ("*", &names[..]),
        ("a:*", &["a:", "a:b", "a:b:c", "a:bc"]),
        ("a:b:*", &["a:b:c"]),
        ("a", &["a"]),
        ("a:b", &["a:b"]),
        ("never:*", &[]),
    ] {
        let mut scene = attached().await;
        scene.set(Kind::Pause, text).await;
        // Emits the matching objects first, so that a call meets them first.
        let others = names.iter().filter(|name| !meant.contains(name));
        for name in meant.iter().chain(others) {
            scene.state.emit(name, "1").await;
        }
        let answer = scene.answer(claims(2), ClaimFirst::Markers, None).await;
        let claimed = answer.objects();
        assert_eq!(claimed.len(), 2.min(names.len() - meant.len()), "{text}");
        assert!(
            claimed.iter().all(|name| !meant.contains(&name.as_str())),
            "{text}: {claimed:?}"
        );
        let paused = scene.paused().await;
        let mut meant = meant.to_vec();
        meant.sort_unstable();
        assert_eq!(paused, meant, "{text}");
        scene.console.check().await;
        // Lifting the rule wakes exactly the objects that it matched. The rule `other` matches none
        // of them.
        scene.set(Kind::Block, "other").await;
        scene.lift(Kind::Pause, text).await;
        scene.answer(claims(0), ClaimFirst::Markers, None).await;
        assert_eq!(scene.paused().await, [""; 0], "{text}");
        assert_eq!(scene.rule(&format!("pause {text}")).await, None);
        for name in &paused {
            assert!(scene.console.due(name).await.is_some(), "{text}: {name}");
        }
        scene.console.check().await;
    }
}

/// A slot has committed its batch, and its object is under a rule. The slot takes no further event
/// of this object, and can claim another object. If the object has no further event, it is idle,
/// not paused.
#[tokio::test]
async fn a_slot_does_not_go_on_with_a_paused_object() {
    for more in [true, false] {
        let mut scene = attached().await;
        let keys = scene.keys.clone();
        scene.state.own("w.0", "work:1", 1, &["1"]).await;
        if more {
            scene.state.add("LPUSH work:1:events 2").await;
        }
        scene.state.emit("other", "3").await;
        scene.set(Kind::Block, "work:1").await;
        let done = done("work:1", 1);
        let answer = scene.answer(BOUNDS, ClaimFirst::Markers, Some(&done)).await;
        assert_eq!(answer.objects(), ["other"]);
        assert_eq!(scene.paused().await.len(), usize::from(more));
        assert_eq!(
            scene.console.owner("work:1").await.as_deref(),
            more.then_some("held")
        );
        assert_eq!(scene.console.last_id("work:1").await, 1);
        assert_eq!(
            scene.console.list(&keys.worker_object("w.0")).await,
            ["other"]
        );
        scene.console.check().await;
    }
}

/// A popped object under a rule is paused, and so is an owned object without a batch. Both leave
/// the slot's list. If such an object has no events, it is idle.
#[tokio::test]
async fn a_name_that_was_popped_is_paused() {
    for (owned, events) in [(false, true), (true, true), (false, false)] {
        let mut scene = attached().await;
        let keys = scene.keys.clone();
        let (console, list) = (&scene.console, "event.worker:w.0:object");
        console.add(&format!("LPUSH {list} work:1")).await;
        if owned {
            console.add("SET work:1:event.worker w.0").await;
        }
        if events {
            console.add("LPUSH work:1:events 1").await;
        }
        scene.set(Kind::Pause, "*").await;
        assert_eq!(scene.ask().await.objects(), [""; 0]);
        assert_eq!(scene.paused().await.len(), usize::from(events));
        assert_eq!(
            scene.console.owner("work:1").await.as_deref(),
            events.then_some("held")
        );
        assert_eq!(
            scene.console.list(&keys.worker_object("w.0")).await,
            [""; 0]
        );
        scene.console.check().await;
    }
}

/// If a held batch is due and under a rule, it is paused and keeps its numbers. A held batch that
/// is not due yet waits for its time first. A held batch that waits for an operator continues to
/// wait.
#[tokio::test]
async fn a_held_batch_is_paused_with_its_numbers_when_it_is_due() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    for (object, due, batch, why) in [
        ("due", "1", &["1", "2"][..], "1 2 3 1 retry: x"),
        ("later", "99999999999999", &["3"], "3 0 1 0 retry: y"),
        ("operator", "inf", &["4"], "4 0 1 0 attempts: z"),
    ] {
        scene.state.hold(object, due, batch, why).await;
    }
    scene.set(Kind::Pause, "*").await;
    assert_eq!(scene.ask().await.objects(), [""; 0]);
    assert_eq!(
        (scene.paused().await, scene.console.due("due").await),
        (vec!["due".to_owned()], None)
    );
    assert_eq!(
        scene.console.list(&keys.events_held("due")).await,
        ["1", "2"]
    );
    assert_eq!(
        scene.console.held_id("due").await.as_deref(),
        Some("1 2 3 1 retry: x")
    );
    assert_eq!(scene.console.due("operator").await, Some(f64::INFINITY));
    scene.console.check().await;
    scene.lift(Kind::Pause, "*").await;
    let answer = scene.ask().await;
    assert_eq!(answer.objects(), ["due"]);
    assert_eq!(answer.batches[0].tag.to_string(), "1 3 3 1");
    assert_eq!(scene.console.due("operator").await, Some(f64::INFINITY));
}

/// Each call wakes a limited number of objects, and reports if there are more. The next call, of
/// any process, continues from there. Objects under another rule stay paused, even if they use up
/// the whole limit of a call.
#[tokio::test]
async fn waking_goes_on_where_another_call_has_left_off() {
    let mut scene = attached().await;
    let name = |n: usize| format!("{}:{n:04}", if n < 300 { "kept" } else { "work" });
    for n in 0..700 {
        scene.pause(&name(n)).await;
    }
    scene.set(Kind::Block, "kept:*").await;
    scene.set(Kind::Pause, "*").await;
    assert_eq!(scene.lift(Kind::Pause, "*").await, Ruled::Lifted);
    let mut left = Vec::new();
    loop {
        let answer = scene.answer(claims(0), ClaimFirst::Markers, None).await;
        left.push(scene.paused().await.len());
        scene.console.check().await;
        assert_eq!(answer.more, scene.rule("pause *").await.is_some());
        if !answer.more {
            break;
        }
        assert_eq!(answer.next_due, Some(Duration::ZERO));
        assert_eq!(scene.lift(Kind::Pause, "*").await, Ruled::Lifting);
    }
    assert_eq!(
        left,
        [700, 700, 700, 700, 680, 616, 552, 488, 424, 360, 300]
    );
    assert_eq!(scene.paused().await[0], "kept:0000");
    assert!(scene.rule("block kept:*").await.is_some());
    assert_eq!(scene.rule("next").await.as_deref(), Some("never"));
}

/// A rule is being lifted and is set again. Then it holds objects again. If it is lifted once more,
/// all its objects are woken, from the first one on.
#[tokio::test]
async fn a_rule_that_is_set_again_begins_anew() {
    let mut scene = attached().await;
    for n in 0..300 {
        scene.pause(&format!("work:{n:03}")).await;
    }
    let none = claims(0);
    scene.set(Kind::Pause, "work:*").await;
    scene.lift(Kind::Pause, "work:*").await;
    assert!(scene.answer(none, ClaimFirst::Held, None).await.more);
    assert_eq!(scene.set(Kind::Pause, "work:*").await, Ruled::Revived);
    // The woken objects are due, so the call pauses them again. They are more objects than the
    // process can claim at once.
    let answer = scene.answer(BOUNDS, ClaimFirst::Held, None).await;
    assert_eq!(answer.objects(), [""; 0]);
    assert_eq!(scene.paused().await.len(), 300);
    scene.console.check().await;
    scene.lift(Kind::Pause, "work:*").await;
    while scene.answer(none, ClaimFirst::Held, None).await.more {}
    assert_eq!(
        (scene.paused().await.len(), scene.rule("next").await),
        (0, None)
    );
}

/// Story: a call looked up the rules of a held batch, and this was the last lookup that its limit
/// allowed. The batch went into a slot, but not into the reply. So the process considered the slot
/// free.
#[tokio::test]
async fn a_slot_has_a_batch_only_if_the_reply_has_it() {
    const OBJECTS: usize = 200;
    let name = |n: usize| format!("{n}:1:2:3:4:5:6:7:8");
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    scene.set(Kind::Pause, "other").await;
    for n in 0..OBJECTS {
        let (object, why) = (name(n), format!("{} 0 0 0 stop", n + 1));
        scene.state.hold(&object, "1", &["1"], &why).await;
    }
    let (token, bounds) = (ATTACH.token, claims(OBJECTS));
    let mut call = Advance::new(&keys, "w", token, bounds, ClaimFirst::Held);
    (0..OBJECTS).for_each(|slot| call.free(slot));
    let answer = wire::advance(scene.conn(), &call).await.expect("an answer");
    let Advanced::Ok { batches, more, .. } = answer else {
        panic!("{answer:?}")
    };
    let mut owned = 0;
    for n in 0..OBJECTS {
        let owner = scene.console.owner(&name(n)).await.expect("an owner");
        owned += usize::from(owner != "held");
    }
    assert!(
        (1..OBJECTS).contains(&owned) && more,
        "{owned} are owned, more: {more}"
    );
    assert_eq!(batches.len(), owned);
}

/// A rule past its end holds no object, and its objects are woken as after a lifting. Before the
/// end, a call returns the time left.
#[tokio::test]
async fn a_rule_past_its_end_is_woken() {
    let mut scene = attached().await;
    scene.pause_for("*", 3600).await;
    scene.set(Kind::Block, "other").await;
    scene.state.emit("work:1", "1").await;
    let answer = scene.ask().await;
    let due = answer.next_due.expect("a time");
    assert!(
        due > Duration::from_secs(3000) && due <= Duration::from_secs(3600),
        "{due:?}"
    );
    assert_eq!(scene.paused().await, ["work:1"]);
    // The rule ends before the held object is due. So the call returns the time until the end of
    // the rule.
    scene
        .state
        .hold("later", "99999999999999", &["3"], "3 0 1 0 retry: y")
        .await;
    assert!(scene.ask().await.next_due.expect("a time") <= Duration::from_secs(3600));
    let value = scene.rule("pause *").await.expect("a rule");
    let mut numbers: Vec<&str> = value.splitn(3, ' ').collect();
    numbers[1] = "5";
    scene.state.rule("pause *", &numbers.join(" "), "5").await;
    assert_eq!(scene.ask().await.objects(), ["work:1"]);
    assert_eq!(scene.rule("pause *").await, None);
    assert_eq!(scene.rule("next").await.as_deref(), Some("never"));
    scene.console.check().await;
}

/// A rule that is set twice is one rule, with the values of the second call. Lifting an absent rule
/// changes nothing.
#[tokio::test]
async fn a_rule_that_is_set_twice_is_one_rule() {
    let mut scene = attached().await;
    assert_eq!(scene.lift(Kind::Pause, "*").await, Ruled::NotSet);
    scene.pause_for("work:*", 60).await;
    let bob = By {
        who: "bob the \u{e9}",
        why: "3 4 5",
    };
    let again = scene.try_pause(bob, "work:*").await;
    assert_eq!(again.expect("set"), Ruled::Again);
    scene.set(Kind::Block, "z").await;
    let all = scene.console.control().rules().await.expect("rules").rules;
    let shown = all.iter().map(|rule| {
        assert!(rule.in_force && rule.set_ms > 1_500_000_000_000);
        assert_eq!(rule.end_ms, None);
        format!("{rule}: {}: {}", rule.actor, rule.reason)
    });
    let expected = [
        "block z: ada@host: not now",
        "pause work:*: bob the \u{e9}: 3 4 5",
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(scene.lift(Kind::Block, "work:*").await, Ruled::NotSet);
    // Only the first lifting pushes an empty marker, which wakes a worker.
    assert_eq!(scene.lift(Kind::Block, "z").await, Ruled::Lifted);
    assert_eq!(scene.lift(Kind::Block, "z").await, Ruled::Lifting);
    assert_eq!(scene.console.markers().await, [""]);
    assert!(!scene.console.control().rules().await.expect("rules").rules[0].in_force);
}

/// An invalid rule holds no object. Lifting replaces it by a lifted rule without an end.
#[tokio::test]
async fn an_invalid_rule_is_lifted() {
    let mut scene = attached().await;
    scene.state.rule("pause work:*", "nonsense", "never").await;
    assert_eq!(scene.lift(Kind::Pause, "work:*").await, Ruled::Lifted);
    assert_eq!(
        scene.rule("pause work:*").await.as_deref(),
        Some("0 0 1 0 0 ")
    );
    assert!(!scene.ask().await.more);
    assert_eq!(scene.rule("pause work:*").await, None);
}

/// If the key of the rules has a wrong type, a call stops before its first write. If rules are set,
/// a wrong type of `objects.paused` also stops it.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_noticed_first() {
    for (rules_wrong, paused_wrong) in [(true, false), (false, true)] {
        let mut scene = attached().await;
        let keys = scene.keys.clone();
        scene.state.emit("work:1", "1").await;
        scene.state.own("w.0", "work:2", 1, &["1"]).await;
        if rules_wrong {
            scene.state.add("SADD event.rules wrong").await;
            let refused = scene.try_pause(ADA, "*").await;
            assert_wrong_type(&refused, &keys.event_rules());
        }
        if paused_wrong {
            scene.set(Kind::Pause, "*").await;
            scene.state.add("SADD objects.paused wrong").await;
        }
        let done = done("work:2", 1);
        let Err(refused) = scene.call(BOUNDS, ClaimFirst::Markers, Some(&done)).await else {
            panic!("a wrong type")
        };
        assert!(refused.is_wrong_type(), "{refused}");
        assert_eq!(scene.console.list(&keys.worker_event("w.0")).await, ["1"]);
        assert_eq!(scene.console.markers().await, ["work:1"]);
    }
}

/// A paused object has a held batch and a marker, and its owner key gets a wrong type. No worker
/// takes a queued event before this batch, whether or not the pause rule still exists.
#[tokio::test]
async fn a_paused_batch_is_not_passed_over_where_its_owner_cannot_be_told() {
    for ruled in [true, false] {
        let mut scene = attached().await;
        let keys = scene.keys.clone();
        scene
            .state
            .hold("work:1", "1", &["1"], "1 0 1 0 retry: x")
            .await;
        scene.set(Kind::Pause, "work:1").await;
        scene.answer(BOUNDS, ClaimFirst::Held, None).await;
        scene.state.add("DEL work:1:event.worker").await;
        scene.state.add("SADD work:1:event.worker wrong").await;
        scene.state.emit("work:1", "2").await;
        if !ruled {
            scene.state.add("DEL event.rules").await;
        }
        assert_eq!(scene.ask().await.objects(), [""; 0]);
        assert_eq!(scene.console.owner("work:1").await.as_deref(), Some("held"));
        assert_eq!(scene.console.list(&keys.events_held("work:1")).await, ["1"]);
        assert_eq!(scene.console.queue("work:1").await, ["2"]);
        assert_eq!(scene.paused().await.len(), usize::from(ruled));
        assert_eq!(scene.console.due("work:1").await.is_some(), !ruled);
        scene.console.check().await;
    }
}

/// A paused object has an owner key and a queue of a wrong type. The object is then held for an
/// operator, and leaves `objects.paused`.
#[tokio::test]
async fn a_paused_object_that_is_quarantined_is_paused_no_more() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    scene.state.add("ZADD objects.paused 0 work:1").await;
    for key in [keys.event_worker("work:1"), keys.events("work:1")] {
        scene.state.run("HSET", &[&key, "wrong", "type"]).await;
    }
    scene.state.add("LPUSH objects.with.events work:1").await;
    assert_eq!(scene.ask().await.objects(), [""; 0]);
    assert_eq!(scene.paused().await, [""; 0]);
    assert_eq!(scene.console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(scene.console.owner("work:1").await.as_deref(), Some("held"));
}

/// A held object is under a rule and has a marker, and its owner key has a wrong type. It is held
/// for an operator and is not paused, so it is not in both sets.
#[tokio::test]
async fn a_held_object_whose_owner_cannot_be_told_is_not_paused() {
    let mut scene = attached().await;
    scene
        .state
        .hold("work:1", "99999999999999", &["1"], "1 0 1 0 retry: x")
        .await;
    scene.set(Kind::Pause, "work:1").await;
    scene.state.add("DEL work:1:event.worker").await;
    scene.state.add("SADD work:1:event.worker wrong").await;
    scene.state.emit("work:1", "2").await;
    scene.ask().await;
    assert_eq!(scene.paused().await, [""; 0]);
    assert_eq!(scene.console.due("work:1").await, Some(f64::INFINITY));
    scene.console.check().await;
}

/// A paused object is not idle, so its last id does not expire.
#[tokio::test]
async fn the_last_id_of_a_paused_object_does_not_expire() {
    let mut scene = attached().await;
    let keys = scene.keys.clone();
    scene.state.delivered("work:1", 7).await;
    scene.state.add("PEXPIRE work:1:last.event.id 600000").await;
    scene.state.emit("work:1", "1").await;
    scene.set(Kind::Pause, "*").await;
    let forgets = Bounds {
        forget_after: Some(Duration::from_secs(60)),
        ..BOUNDS
    };
    scene.answer(forgets, ClaimFirst::Markers, None).await;
    let last = keys.last_event_id("work:1");
    assert_eq!(scene.console.run::<i64>(&["PTTL", &last]).await, -1);
    assert_eq!(scene.console.last_id("work:1").await, 7);
}
