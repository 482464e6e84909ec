//! Held objects in an operator's hands: why they wait, released, rid of the event at their head.
#![cfg(feature = "cli")]

mod many;

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::state::State;
use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::until;
use serde_json::Value;
use seriatim::control::actions::{Action, actions};
use seriatim::control::held::{HeldObject, Released, Skipped, WaitsFor, held, paused, release, skip};
use seriatim::control::rules::Kind;
use seriatim::control::{By, ControlError};
use seriatim::sink::Stop;

const ADA: By<'static> = By { who: "ada@host", why: "known" };

async fn clean() -> (Redis, State) {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    (redis, state)
}

fn seriatim(redis: &Redis, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    program.args(["--redis", redis.url(), "--namespace", redis.namespace()]).args(arguments);
    program.env_remove("SERIATIM_REDIS").env_remove("SERIATIM_NAMESPACE").output().expect("the program runs")
}

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

async fn newest_action(state: &mut State) -> Action {
    let keys = state.keys.clone();
    actions(&mut state.conn, &keys, None, 1).await.expect("the actions").remove(0)
}

async fn listed(state: &mut State, until_released: bool, per_page: usize) -> Vec<HeldObject> {
    let keys = state.keys.clone();
    let mut all: Vec<HeldObject> = Vec::new();
    loop {
        let page = held(&mut state.conn, &keys, until_released, all.last(), per_page).await.expect("a page").objects;
        let len = page.len();
        all.extend(page);
        if len < per_page {
            return all;
        }
    }
}

/// The list says of each object what it waits for, until when, with which numbers and which error.
#[tokio::test]
async fn the_list_says_why_an_object_waits() {
    let (_redis, mut state) = clean().await;
    state.hold("work:10", "inf", &["{}", "{}"], "17 2 3 1 attempts: failed 3 times, at last: down").await;
    state.hold("work:11", "5", &["{}"], "19 0 0 1 takeover").await;
    let all = listed(&mut state, false, 100).await;
    let shown: Vec<_> =
        all.iter().map(|held| (held.object.as_str(), held.waits_for, held.due_ms, held.id, held.events)).collect();
    assert_eq!(
        shown,
        [
            ("work:5", WaitsFor::Retry, Some(1), Some(15), 1),
            ("work:8", WaitsFor::Yield, Some(1), None, 0),
            ("work:11", WaitsFor::Takeover, Some(5), Some(19), 1),
            ("work:6", WaitsFor::Retry, Some(99_999_999_999_999), Some(16), 1),
            ("work:10", WaitsFor::Operator, None, Some(17), 2),
            ("work:7", WaitsFor::Operator, None, None, 0),
        ]
    );
    assert_eq!((all[4].attempts, all[4].crashes, all[4].why.as_str()), (3, 1, "attempts: failed 3 times, at last: down"));
    let waiting: Vec<_> = listed(&mut state, true, 100).await.into_iter().map(|held| held.object).collect();
    assert_eq!(waiting, ["work:10", "work:7"]);
    // In pages of any size they are the same.
    for per_page in 1..4 {
        assert_eq!(listed(&mut state, false, per_page).await, all);
        assert_eq!(listed(&mut state, true, per_page).await.len(), 2);
    }
}

/// An object that goes on between two pages takes no other one with it.
#[tokio::test]
async fn a_page_goes_on_behind_an_object_that_is_gone() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for n in 0..6 {
        let due = ["3", "7", "7", "inf", "inf", "inf"][n];
        state.hold(&format!("o{n}"), due, &["1"], "1 0 1 0 retry: x").await;
    }
    let first = held(&mut state.conn, &keys, false, None, 2).await.expect("a page").objects;
    state.run("ZADD", &[&keys.objects_held(), "inf", "o1"]).await;
    let rest = held(&mut state.conn, &keys, false, first.last(), 10).await.expect("a page").objects;
    let rest: Vec<_> = rest.into_iter().map(|held| held.object).collect();
    assert_eq!(rest, ["o2", "o1", "o3", "o4", "o5"]);
}

/// A batch of a wrong type, or numbers of one, are no reason to show nothing.
#[tokio::test]
async fn the_list_goes_on_beside_wrong_types() {
    let (_redis, mut state) = clean().await;
    let keys = state.keys.clone();
    for key in [keys.events_held("work:5"), keys.events_held_id("work:6"), keys.event_worker("work:8")] {
        state.run("DEL", &[&key]).await;
        state.run("SADD", &[&key, "wrong"]).await;
    }
    let all = listed(&mut state, false, 100).await;
    let shown: Vec<_> = all.iter().map(|held| (held.object.as_str(), held.id, held.events)).collect();
    assert_eq!(shown, [("work:5", Some(15), 0), ("work:8", None, 0), ("work:6", None, 1), ("work:7", None, 0)]);
}

/// The paused objects, in pages of this size.
async fn listed_paused(state: &mut State, per_page: usize) -> Vec<HeldObject> {
    let keys = state.keys.clone();
    let mut all: Vec<HeldObject> = Vec::new();
    loop {
        let page = paused(&mut state.conn, &keys, all.last(), per_page).await.expect("a page").objects;
        let len = page.len();
        all.extend(page);
        if len < per_page {
            return all;
        }
    }
}

/// A paused object is told with every rule that is over it, blocks first, and with the event it has in hand.
#[tokio::test]
async fn the_list_says_under_which_rules_an_object_is_paused() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for object in ["a:1", "a:2", "b", "a:1:x", "{", "\u{e9}"] {
        state.run("SET", &[&keys.event_worker(object), "held"]).await;
        state.run("ZADD", &[&keys.objects_paused(), "0", object]).await;
    }
    state.run("LPUSH", &[&keys.events_held("a:2"), "1", "2"]).await;
    state.run("SET", &[&keys.events_held_id("a:2"), "7 1 2 1 retry: down"]).await;
    state.rule("pause a:*", "17 0 0 3 0 adaa look", "0").await;
    state.rule("block a:1", "18 0 0 3 0 bob", "0").await;
    state.rule("block *", "19 0 1 3 0 bob", "0").await;
    let all = listed_paused(&mut state, 100).await;
    let shown: Vec<_> = all
        .iter()
        .map(|held| {
            let rules = held.rules.iter().map(|rule| format!("{rule}{}", if rule.in_force { "" } else { " lifted" }));
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
    assert_eq!(shown, expected.map(|(object, rules)| (object, rules.to_owned())));
    assert!(all.iter().all(|held| (held.waits_for, held.due_ms) == (WaitsFor::Rule, None)));
    let HeldObject { id, attempts, crashes, events, why, rules, .. } = &all[2];
    assert_eq!((*id, *attempts, *crashes, *events, why.as_str()), (Some(7), 2, 1, 2, "retry: down"));
    assert_eq!((rules[1].kind, rules[1].actor.as_str(), rules[1].reason.as_str()), (Kind::Pause, "ada", "a look"));
    for per_page in 1..4 {
        assert_eq!(listed_paused(&mut state, per_page).await, all);
    }
    // None of them waits for a time or an operator.
    assert_eq!(listed(&mut state, false, 100).await, []);
    // A page goes on behind an object that is gone.
    state.run("ZREM", &[&keys.objects_paused(), "a:1:x"]).await;
    let rest = paused(&mut state.conn, &keys, Some(&all[1]), 2).await.expect("a page").objects;
    assert_eq!(rest, all[2..4]);
    // Beside wrong types it goes on: of a batch, of numbers, of the rules.
    for key in [keys.events_held("a:2"), keys.events_held_id("a:2"), keys.event_rules()] {
        state.run("DEL", &[&key]).await;
        state.run("SADD", &[&key, "wrong"]).await;
    }
    let all = listed_paused(&mut state, 100).await;
    assert_eq!((all.len(), all[1].object.as_str(), all[1].events, all[1].id, all[1].rules.len()), (5, "a:2", 0, None, 0));
}

/// Whatever it waits for, a released object is due now, with the numbers it has; a worker that is idle is woken.
#[tokio::test]
async fn a_released_object_is_tried_at_once_and_stays_counted() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let sink = Recorder::with(move |_| match is_down.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::transient("down")),
        false => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit("work:1", "1").await;
    console.until_held("work:1", "retry: down").await;
    down.store(false, Ordering::SeqCst);
    let released = release(&mut state.conn, &keys, ADA, "work:1").await.expect("an answer");
    assert_eq!(released, Released::Released("retry: down".to_owned()));
    sink.until_sent(1).await;
    assert_eq!((sink.sent()[0].attempts, sink.sent()[0].id), (1, 1));
    worker.finish().await;
    let kept = newest_action(&mut state).await;
    assert_eq!((kept.action.as_str(), kept.who.as_str(), kept.why.as_str()), ("release", "ada@host", "known"));
    assert_eq!((kept.object.as_str(), kept.id, kept.error.as_deref()), ("work:1", Some(1), Some("retry: down")));
    console.until_at_rest().await;
}

/// A worker that waits for markers is woken by an empty one.
#[tokio::test]
async fn a_release_wakes_a_worker() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.hold("work:1", "inf", &["1"], "1 0 1 0 attempts: failed 1 times, at last: x").await;
    release(&mut state.conn, &keys, ADA, "work:1").await.expect("released");
    assert_eq!((console.due("work:1").await, console.list(&keys.objects_with_events()).await), (Some(0.0), vec![String::new()]));
    assert_eq!(console.held_id("work:1").await.as_deref(), Some("1 0 1 0 attempts: failed 1 times, at last: x"));
    console.check().await;
}

/// Only what is held is released. Nothing else is touched, and nothing is kept of it.
#[tokio::test]
async fn what_is_not_held_is_not_released() {
    let (redis, mut state) = clean().await;
    let keys = redis.keys().clone();
    state.run("LPUSH", &[&keys.events_held("work:9"), "{}"]).await;
    state.run("SET", &[&keys.events_held_id("work:9"), "16 0 0 0 rule"]).await;
    for (object, owner) in [("work:2", "a.0"), ("work:1", ""), ("never", "")] {
        let refused = release(&mut state.conn, &keys, ADA, object).await.expect("an answer");
        assert_eq!(refused, Released::NotHeld(owner.to_owned()));
        let refused = skip(&mut state.conn, &keys, ADA, object, None).await.expect("an answer");
        assert_eq!(refused, Skipped::NotHeld(owner.to_owned()));
    }
    // It waits for a rule to be lifted, not for a time.
    assert_eq!(release(&mut state.conn, &keys, ADA, "work:9").await.expect("an answer"), Released::Paused);
    assert_eq!(skip(&mut state.conn, &keys, ADA, "work:9", None).await.expect("an answer"), Skipped::Paused);
    let console = redis.console().await;
    assert_eq!((console.due("work:2").await, console.due("work:9").await), (None, None));
    assert_eq!(console.list(&keys.worker_event("a.0")).await.len(), 2);
    assert_eq!(actions(&mut state.conn, &keys, None, 1).await.expect("the actions"), []);
    console.check().await;
}

/// The event that stands in the way goes to the dead letters with its error, and the rest of the batch goes on as it is: the same ids, the last
/// delivered event as `prev`, its own attempts, and one crash, for the killer may be among them.
#[tokio::test]
async fn a_skipped_event_is_a_dead_letter_and_the_rest_goes_on() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.delivered("work:1", 9).await;
    state.hold("work:1", "inf", &["{\"n\":1}", "2", "3"], "12 4 3 5 crashes: died 5 times with this event in hand").await;
    state.run("LPUSH", &[&keys.events("work:1"), "4"]).await;
    let skipped = skip(&mut state.conn, &keys, ADA, "work:1", Some(12)).await.expect("an answer");
    let Skipped::Skipped { id: 12, dead_id, left: 2 } = skipped else { panic!("{skipped:?}") };
    let dead = seriatim::control::dead::dead_letter(&mut state.conn, &keys, &dead_id).await.expect("asked").expect("it is there");
    assert_eq!((dead.id, dead.prev, dead.object.as_str(), &dead.event[..]), (Some(12), Some(9), "work:1", &b"{\"n\":1}"[..]));
    let error = "skipped: crashes: died 5 times with this event in hand";
    assert_eq!((dead.error.as_str(), dead.attempts), (error, Some(3)));
    assert_eq!(console.held_id("work:1").await.as_deref(), Some("13 4 0 1 skip"));
    assert_eq!(
        (console.list(&keys.events_held("work:1")).await, console.due("work:1").await),
        (vec!["2".to_owned(), "3".to_owned()], Some(0.0))
    );
    assert_eq!(console.list(&keys.objects_with_events()).await, [""]);
    console.check().await;
    // Made again, it finds another event there.
    let again = skip(&mut state.conn, &keys, ADA, "work:1", Some(12)).await.expect("an answer");
    assert_eq!(again, Skipped::Other(13));
    let kept = newest_action(&mut state).await;
    assert_eq!((kept.action.as_str(), kept.id, kept.dead_id.as_deref()), ("skip", Some(12), Some(dead_id.as_str())));

    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    let sent: Vec<_> = sink.sent().into_iter().map(|offer| (offer.text(), offer.prev, offer.attempts, offer.crashes)).collect();
    assert_eq!(sent, [("2".to_owned(), 9, 0, 1), ("3".to_owned(), 13, 0, 1), ("4".to_owned(), 14, 0, 0)]);
    let ids: Vec<_> = sink.sent().into_iter().map(|offer| offer.id).collect();
    assert_eq!(ids, [13, 14, 15]);
    console.until_at_rest().await;
}

/// The last event of a batch: what is queued goes on, and where nothing is queued, the object comes to rest.
#[tokio::test]
async fn skipping_the_last_event_of_a_batch_leaves_no_batch() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    for (object, first) in [("more", 1), ("none", 2)] {
        state.hold(object, "inf", &["1"], &format!("{first} 0 1 0 attempts: failed 1 times, at last: x")).await;
    }
    state.run("LPUSH", &[&keys.events("more"), "2"]).await;
    for object in ["more", "none"] {
        let skipped = skip(&mut state.conn, &keys, ADA, object, None).await.expect("an answer");
        assert!(matches!(skipped, Skipped::Skipped { left: 0, .. }), "{skipped:?}");
        assert_eq!((console.held_id(object).await, console.due(object).await), (None, Some(0.0)));
        // It has nothing in hand any more.
        let again = skip(&mut state.conn, &keys, ADA, object, None).await.expect("an answer");
        assert_eq!(again, Skipped::NoBatch(String::new()));
    }
    console.check().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!((sink.sent()[0].text(), sink.sent()[0].id, sink.sent()[0].prev), ("2".to_owned(), 3, 0));
    assert_eq!(console.dead().await.len(), 2);
    console.until_at_rest().await;
    console.check().await;
}

/// A sink that had applied the event all the same, and a receiver that has it: what follows is in order for both.
#[tokio::test]
async fn a_receiver_that_has_the_skipped_event_applies_the_next() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let applied = Arc::new(AtomicBool::new(false));
    let has = Arc::clone(&applied);
    let sink = Recorder::with(move |offer| match offer.text().as_str() {
        "2" => {
            has.store(true, Ordering::SeqCst);
            Act::Stop(Stop::transient("no answer"))
        }
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit_all("work:1", ["1", "2", "3"]).await;
    console.until_held("work:1", "retry: no answer").await;
    skip(&mut state.conn, &keys, ADA, "work:1", Some(2)).await.expect("an answer");
    sink.until_sent(2).await;
    worker.finish().await;
    let third = sink.sent()[1].clone();
    // The receiver's rule, for one that has applied event 2 and for one that has not.
    for last in [1, 2] {
        assert_eq!(seriatim::consume::judge(last, third.id, third.prev), Ok(seriatim::consume::Verdict::Apply), "{third:?}");
    }
    assert!(applied.load(Ordering::SeqCst));
    console.until_at_rest().await;
}

/// An object that is held without a batch, for a turn of others or because of a key of a wrong type, has no event to skip.
#[tokio::test]
async fn what_has_no_batch_is_not_skipped() {
    let (redis, mut state) = clean().await;
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.hold("gone", "inf", &[], "18 0 0 0 quarantine: gone:events.held is a none").await;
    for (object, why) in [
        ("work:8", ""),
        ("work:7", "crashes: died 5 times with this event in hand"),
        ("gone", "quarantine: gone:events.held is a none"),
    ] {
        let refused = skip(&mut state.conn, &keys, ADA, object, None).await.expect("an answer");
        assert_eq!(refused, Skipped::NoBatch(why.to_owned()), "{object}");
    }
    // A batch whose ids nobody knows, because its numbers are gone, or are none.
    state.hold("lost", "inf", &["1"], "19 0 1 0 retry: x").await;
    for numbers in ["9007199254740993 0 1 0 retry: x", "1 retry: x", ""] {
        state.run("SET", &[&keys.events_held_id("lost"), numbers]).await;
        let refused = skip(&mut state.conn, &keys, ADA, "lost", None).await.expect("an answer");
        assert!(matches!(refused, Skipped::NoBatch(_)), "{numbers:?}: {refused:?}");
    }
    assert_eq!(console.dead().await.len(), 0);
    // One that is not among those that wait is not held, whatever its owner's key says.
    state.hold("astray", "1", &["1"], "20 0 1 0 retry: x").await;
    state.run("ZREM", &[&keys.objects_held(), "astray"]).await;
    let refused = skip(&mut state.conn, &keys, ADA, "astray", None).await.expect("an answer");
    assert_eq!(refused, Skipped::NotHeld("held".to_owned()));
    assert_eq!(console.dead().await.len(), 0);
    // They can be released.
    assert_eq!(release(&mut state.conn, &keys, ADA, "work:8").await.expect("an answer"), Released::Released(String::new()));
}

/// A key of a wrong type is told before anything is done: half a skip would lose the event, or have it twice.
#[tokio::test]
async fn a_key_of_a_wrong_type_leaves_everything_as_it_is() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.hold("work:1", "inf", &["1", "2"], "1 0 1 0 attempts: failed 1 times, at last: x").await;
    state.run("SET", &[&keys.last_event_id("work:1"), "0"]).await;
    let both = [keys.objects_held(), keys.objects_with_events(), keys.operator_actions(), keys.objects_paused()];
    let [batch, numbers] = [keys.events_held("work:1"), keys.events_held_id("work:1")];
    let skips = [keys.events_dead(), batch, numbers, keys.last_event_id("work:1"), keys.event_handled("work:1")];
    for (at, key) in both.iter().chain(&skips).enumerate() {
        let was: bool = console.run(&["EXISTS", key]).await;
        if was {
            state.run("RENAME", &[key, "aside"]).await;
        }
        state.run("SADD", &[key, "wrong"]).await;
        let refused = skip(&mut state.conn, &keys, ADA, "work:1", None).await.expect_err("a wrong type");
        assert!(matches!(&refused, ControlError::WrongType { key: told, .. } if told == key), "{key}: {refused}");
        if at < both.len() {
            let refused = release(&mut state.conn, &keys, ADA, "work:1").await.expect_err("a wrong type");
            assert!(matches!(&refused, ControlError::WrongType { key: told, .. } if told == key), "{key}: {refused}");
        }
        state.run("DEL", &[key]).await;
        if was {
            state.run("RENAME", &["aside", key]).await;
        }
        assert_eq!(console.list(&keys.events_held("work:1")).await, ["1", "2"], "{key}");
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY), "{key}");
    }
    assert_eq!((console.dead().await.len(), console.list(&keys.objects_with_events()).await.len()), (0, 0));
    // The owner's key of a wrong type says that nobody holds it.
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state.run("SADD", &[&keys.event_worker("work:1"), "wrong"]).await;
    let refused = skip(&mut state.conn, &keys, ADA, "work:1", None).await.expect("an answer");
    assert_eq!(refused, Skipped::NotHeld(String::new()));
}

/// A result of an earlier hand-out that comes late, after its event was skipped, says nothing about what follows.
#[tokio::test]
async fn a_late_result_of_a_skipped_event_is_ignored() {
    use seriatim::scripts::{self, Advance, Advanced, Attach, Bounds, From, Report, Results, Suspects, Tag};
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let lease = Duration::from_secs(600);
    let args = Attach {
        name: "w",
        token: "t",
        holder: "h 1 1",
        lease,
        slots: 1,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    scripts::attach(&mut state.conn, &keys, &args).await.expect("attached");
    state.own("w.0", "work:1", 1, &["1", "2", "3"]).await;
    let bounds = Bounds {
        batch: 10,
        batch_bytes: 1 << 20,
        reply_bytes: 1 << 20,
        claims: 10,
        markers: 100,
        forget_after: None,
        suspects: Suspects::NONE,
    };
    let tag = Tag { first: 1, ..Tag::default() };
    let hold = Results::Hold { rest: tag.failed(), delay: None, why: "attempts: x".to_owned() };
    let hold = Report { object: "work:1".into(), tag, count: 0, last: None, then: hold };
    let tell = |report: Option<&Report>, claims: usize| {
        let mut call = Advance::new(&keys, "w", "t", Bounds { claims, ..bounds }, From::Held);
        match report {
            Some(report) => call.report(0, report),
            None => call.free(0),
        }
        call
    };
    scripts::advance(&mut state.conn, &tell(Some(&hold), 0)).await.expect("held");
    skip(&mut state.conn, &keys, ADA, "work:1", Some(1)).await.expect("skipped");
    let answer = scripts::advance(&mut state.conn, &tell(None, 10)).await.expect("claimed");
    let Advanced::Ok { batches, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((batches[0].tag.to_string().as_str(), batches[0].prev, batches[0].events.len()), ("2 1", 0, 2));
    // The hold once more, and a delivery of the whole of the first hand-out.
    let all = Report { count: 3, last: Some(3), then: Results::Done, ..hold.clone() };
    for late in [&hold, &all] {
        let answer = scripts::advance(&mut state.conn, &tell(Some(late), 0)).await.expect("an answer");
        let Advanced::Ok { batches, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(batches[0].tag.to_string(), "2 1");
    }
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["2", "3"]);
    console.check().await;
}

/// The commands: what they print, and how they end.
#[tokio::test]
async fn the_commands_list_release_and_skip() {
    let (redis, _state) = clean().await;
    let printed = done(&seriatim(&redis, &["held", "list"]));
    let expected = "work:5  retry, due now\n  event  id 15, 3 failed attempts, 0 crashes, 1 events in hand\n  why    retry: connection refused\n";
    assert!(printed.starts_with(expected), "{printed}");
    let (operator, ruled) = printed.split_once("work:9  ").expect("the paused one");
    assert!(
        operator.ends_with("work:7  operator, until released\n  why    crashes: died 5 times with this event in hand\n"),
        "{printed}"
    );
    assert!(ruled.starts_with("paused, until resumed\n  rule   pause work:9\n         by     ada, "), "{printed}");
    assert!(ruled.ends_with(" ago, until it is lifted\n         why    not yet\n"), "{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    let one: Value = serde_json::from_str(&done(&seriatim(&redis, &["held", "list", "--json", "--limit", "1"]))).expect("JSON");
    assert_eq!(
        (&one["object"], &one["waits_for"], &one["attempts"]),
        (&Value::from("work:5"), &Value::from("retry"), &Value::from(3))
    );
    let waiting = done(&seriatim(&redis, &["held", "list", "--until-released"]));
    assert!(waiting.starts_with("work:7  operator") && !waiting.contains("work:9"), "{waiting}");
    let paused = done(&seriatim(&redis, &["held", "list", "--paused"]));
    assert_eq!(paused, format!("work:9  {ruled}"));
    let paused: Value = serde_json::from_str(&done(&seriatim(&redis, &["held", "list", "--paused", "--json"]))).expect("JSON");
    assert_eq!((&paused["waits_for"], &paused["due_ms"]), (&Value::from("rule"), &Value::Null));
    assert_eq!((&paused["rules"][0]["kind"], &paused["rules"][0]["selector"]), (&Value::from("pause"), &Value::from("work:9")));
    let all = done(&seriatim(&redis, &["held", "list", "--json"]));
    assert_eq!((all.lines().count(), all.lines().filter(|line| line.contains(r#""waits_for":"rule""#)).count()), (5, 1));
    assert_eq!(done(&seriatim(&redis, &["held", "list", "--json", "--limit", "4"])).lines().count(), 4);
    assert_eq!(seriatim(&redis, &["held", "list", "--paused", "--until-released"]).status.code(), Some(2));
    done(&seriatim(&redis, &["block", "*"]));
    assert!(
        done(&seriatim(&redis, &["held", "list", "--paused"]))
            .starts_with("work:9  blocked, until unblocked\n  rule   block *\n")
    );
    done(&seriatim(&redis, &["unblock", "*"]));

    let released = done(&seriatim(&redis, &["held", "release", "work:6", "--reason", "now", "--actor", "bob"]));
    assert_eq!(released, "released, it was held: retry: soon\n");
    let skipped = done(&seriatim(&redis, &["held", "skip", "work:5", "--id", "15"]));
    assert!(skipped.starts_with("event 15 is dead letter ") && skipped.ends_with("; 0 events of its batch go on\n"), "{skipped}");
    for (arguments, why) in [
        (&["held", "release", "work:2"][..], "work:2 is not held, worker a.0 has it"),
        (&["held", "release", "never"], "never is not held, nobody has it"),
        (&["held", "skip", "work:8"], "no event of it is in hand"),
        (&["held", "release", "work:9"], "a rule holds work:9"),
        (&["held", "skip", "work:9"], "a rule holds work:9"),
        (&["held", "skip", "work:6", "--id", "15"], "the id 16"),
        (&["held", "release", ""], "must not be empty"),
    ] {
        let output = seriatim(&redis, arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && message.contains(why) && message.lines().count() == 1,
            "{arguments:?}: {message}"
        );
    }
    let kept = done(&seriatim(&redis, &["actions"]));
    assert!(kept.contains("release  work:6  id 16\n  by     bob, ") && kept.contains("  why    now\n"), "{kept}");
    let report = done(&seriatim(&redis, &["check"]));
    assert!(report.ends_with("as far as Redis can show it\n"), "{report}");
}

/// A retry that is waiting, and an operator who is quicker: the attempts go on being counted through it, to the end of the policy.
#[tokio::test]
async fn releases_do_not_lift_the_limit() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let sink = Recorder::with(|_| Act::Stop(Stop::transient("down")));
    let worker =
        start(&redis, "w", &sink, |config| config.retry = "fixed:1h,attempts=3,then=dead-letter".parse().expect("a policy"));
    console.emit("work:1", "1").await;
    for attempts in 1..3 {
        until("it has failed", PATIENCE, async || {
            let held = console.held_id("work:1").await?;
            (held.split(' ').nth(2) == Some(attempts.to_string().as_str())).then_some(())
        })
        .await;
        release(&mut state.conn, &keys, ADA, "work:1").await.expect("released");
    }
    until("it is dead", PATIENCE, async || (console.dead().await.len() == 1).then_some(())).await;
    worker.finish().await;
    assert_eq!(sink.offered().len(), 3);
}

/// The set of held objects was evicted, and they waited for ever: each emit's marker was dropped, for they were held, and no command released them.
#[tokio::test]
async fn an_object_that_is_held_and_in_no_set_is_released() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.hold("work:1", "inf", &["1"], "7 0 1 0 attempts: 5: down").await;
    state.run("DEL", &[&state.keys.objects_held()]).await;
    let keys = state.keys.clone();
    let released = release(&mut state.conn, &keys, ADA, "work:1").await.expect("an answer");
    assert_eq!(released, Released::Released("attempts: 5: down".to_owned()));
    let sink = Recorder::with(|_| Act::Send);
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
}
