//! Guards of the scripts that no schedule of real processes needs, because others stand before them: each is asked directly.
#![cfg(feature = "worker")]

mod state;
mod support;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control;
use seriatim::keys::Keys;
use seriatim::scripts::{
    self, Advance, Advanced, Attach, Attached, Bounds, Detached, Forgot, From, Renewed, Report, Results, Seen, Tag,
};
use state::State;
use support::Redis;

const LEASE: Duration = Duration::from_secs(600);
const BOUNDS: Bounds =
    Bounds { batch: 10, batch_bytes: 1 << 20, reply_bytes: 1 << 20, claims: 10, markers: 100, forget_after: None };

async fn attach(conn: &mut MultiplexedConnection, keys: &Keys, token: &str, displace: &str) -> Attached {
    let args = Attach { name: "w", token, holder: "host 1 1", lease: LEASE, slots: 2, displace, before: "", crashes_max: 5 };
    scripts::attach(conn, keys, &args).await.expect("an answer")
}

/// The name was taken over, and then its new owner's lease ended too: that is not a lapse of the first one.
#[tokio::test]
async fn a_process_that_was_taken_over_is_fenced_even_when_its_successor_is_gone() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let attached = attach(&mut conn, keys, "token-2", "token-1 host 1 1").await;
    assert!(matches!(attached, Attached::Attached { .. }), "{attached:?}");
    redis.console().await.end_lease("w").await;
    let first = scripts::renew(&mut conn, keys, "w", "token-1", LEASE, 2).await.expect("an answer");
    assert_eq!(first, Renewed::Fenced { lease: String::new() });
    let second = scripts::renew(&mut conn, keys, "w", "token-2", LEASE, 2).await.expect("an answer");
    assert_eq!(second, Renewed::Lapsed);
}

/// Only the lease that was read is displaced: meanwhile another process may have attached.
#[tokio::test]
async fn a_lease_that_was_not_seen_is_not_displaced() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let third = attach(&mut conn, keys, "token-3", "token-0 host 1 1").await;
    assert!(matches!(&third, Attached::InUse { lease, .. } if lease == "token-1 host 1 1"), "{third:?}");
}

/// A process that was taken over and stops gives back nothing that is not its own.
#[tokio::test]
async fn a_fenced_process_gives_back_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    attach(&mut conn, keys, "token-2", "token-1 host 1 1").await;
    let lease = "token-2 host 1 1".to_owned();
    let detached = scripts::detach(&mut conn, keys, "w", "token-1").await.expect("an answer");
    assert_eq!(detached, Detached::Fenced { lease: lease.clone() });
    assert_eq!(redis.console().await.text(&keys.worker_lease("w")).await, Some(lease));
}

/// A Redis that was emptied knows nothing; the process has seen more ids than any jump is long.
#[tokio::test]
async fn the_counter_jumps_beyond_every_id_seen() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    // Ahead of the time.
    let seen = Seen { highest: 5_000_000_000_000_000, ..Seen::default() };
    let connected = scripts::connect(&mut conn, keys, "replication-1", seen).await.expect("an answer");
    assert!(connected.changed && connected.counter > seen.highest, "{connected:?}");
}

/// Whoever comes first says which version the data has.
#[tokio::test]
async fn the_version_is_written_down() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    scripts::connect(&mut conn, keys, "replication-1", Seen::default()).await.expect("an answer");
    let version: String = redis.console().await.run(&["HGET", &keys.meta(), "schema"]).await;
    assert_eq!(version, "1");
}

/// An unknown replication id is no other one: the counter stays where it is.
#[tokio::test]
async fn an_unknown_replication_id_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for replication_id in ["replication-1", "", "replication-1"] {
        let connected = scripts::connect(&mut conn, keys, replication_id, Seen::default()).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter), (false, 0));
    }
}

/// A worker that owns `work:1`, behind which its list has a name that it does not own. New names come before the others, so this takes a
/// hand at the keys; the one that is let go of is the one that was meant all the same.
async fn with_a_name_behind(redis: &Redis) -> (State, Report) {
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:2"), "2"]).await;
    state.run("RPUSH", &[&keys.worker_object("w.0"), "work:2"]).await;
    (state, done("work:1", 1))
}

/// A batch of one event of which all is delivered.
fn done(object: &'static str, id: u64) -> Report {
    let tag = Tag { first: id, ..Tag::default() };
    Report { object: object.into(), tag, count: 1, last: Some(id), then: Results::Done }
}

/// Reports for slot 0, and answers the objects and their owners.
async fn told(state: &mut State, report: &Report) -> [Option<String>; 2] {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Held);
    call.report(0, report);
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert!(matches!(answer, Advanced::Ok { .. }), "{answer:?}");
    let checked = control::check(&mut state.conn, &keys).await.expect("checked");
    assert!(checked.is_clean(), "{:#?}", checked.violations);
    let mut owners = redis::cmd("MGET");
    owners.arg(keys.event_worker("work:1")).arg(keys.event_worker("work:2"));
    owners.query_async(&mut state.conn).await.expect("owners")
}

#[tokio::test]
async fn an_object_is_released_by_its_name() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    assert_eq!(told(&mut state, &report).await, [None, None]);
    assert_eq!(redis.console().await.list(&state.keys.worker_object("w.0")).await, ["work:2"]);
    assert_eq!(objects(&ask(&mut state, BOUNDS).await.expect("an answer")), ["work:2"]);
}

/// Its next object takes its place at the end of the list that was pushed first. What a pop has moved there meanwhile stays before that, for the next look.
#[tokio::test]
async fn the_next_object_takes_the_place_of_the_one_that_was_left() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    state.emit("work:3", "1").await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let report = done("work:1", 1);
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Markers);
    call.report(0, &report);
    assert_eq!(objects(&scripts::advance(&mut state.conn, &call).await.expect("an answer")), ["work:3"]);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:3", "work:2"]);
    console.check().await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Markers);
    call.look(0);
    scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:3"]);
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:2"]);
    console.check().await;
}

/// A slot reports while a pop for it is over: what the pop moved is a marker again, what the slot has just left is not.
#[tokio::test]
async fn a_look_at_a_slot_that_reports_returns_only_what_was_popped() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let mut call = Advance::new(&keys, "w", "token-1", Bounds { claims: 0, ..BOUNDS }, From::Markers);
    call.report(0, &done("work:1", 1));
    call.look(0);
    scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:2"]);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, Vec::<String>::new());
    console.check().await;
}

/// The same where another slot of the call goes on with more of its object.
#[tokio::test]
async fn an_object_is_released_by_its_name_while_another_one_goes_on() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let keys = state.keys.clone();
    state.own("w.1", "work:3", 2, &["3"]).await;
    state.run("LPUSH", &[&keys.events("work:3"), "4"]).await;
    let other = Report { object: "work:3".into(), tag: Tag { first: 2, ..Tag::default() }, last: Some(2), ..report.clone() };
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Held);
    call.report(0, &report);
    call.report(1, &other);
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:3"]);
    let console = redis.console().await;
    assert_eq!(console.text(&keys.event_worker("work:1")).await, None);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:2"]);
    console.check().await;
}

#[tokio::test]
async fn an_object_is_held_by_its_name() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let then = Results::Hold { rest: report.tag.failed(), delay: Some(LEASE), why: "retry: down".to_owned() };
    let report = Report { count: 0, last: None, then, ..report };
    assert_eq!(told(&mut state, &report).await, [Some("held".to_owned()), Some("w.0".to_owned())]);
}

/// A key of a wrong type under an owner's name says that nobody owns the object: its name is a stray, and renewal goes on.
#[tokio::test]
async fn a_name_whose_owner_has_a_wrong_type_is_a_stray() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.run("LPUSH", &[&keys.event_worker("work:1"), "wrong"]).await;
    state.run("LPUSH", &[&keys.worker_object("w.0"), "work:1"]).await;
    let renewed = scripts::renew(&mut state.conn, keys, "w", "token-1", LEASE, 2).await.expect("an answer");
    assert_eq!(renewed, Renewed::Renewed { strays: 1 });
    assert_eq!(redis.console().await.list(&keys.objects_with_events()).await, ["work:1"]);
}

/// A key of a wrong type is found before anything is given back: half a detach would leave objects held by a process that still delivers them.
#[tokio::test]
async fn a_detach_that_meets_a_wrong_type_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("SET", &[&keys.worker_object("w.1"), "wrong"]).await;
    let refused = scripts::detach(&mut state.conn, keys, "w", "token-1").await.expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
    let console = redis.console().await;
    assert_eq!(console.text(&keys.event_worker("work:1")).await.as_deref(), Some("w.0"));
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
    assert!(console.text(&keys.worker_lease("w")).await.is_some());
}

/// What a process gives back is due at once, but the others wait for markers: the empty name wakes one of them.
#[tokio::test]
async fn a_detach_that_gives_something_back_wakes_a_worker() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    for (held, markers) in [(0, vec![]), (1, vec![""])] {
        attach(&mut conn, keys, "token-1", "").await;
        let mut state = State::new(conn.clone(), keys.clone());
        if held == 1 {
            state.own("w.0", "work:1", 1, &["1"]).await;
        }
        let detached = scripts::detach(&mut state.conn, keys, "w", "token-1").await.expect("an answer");
        assert_eq!(detached, Detached::Detached { held });
        assert_eq!(console.list(&keys.objects_with_events()).await, markers);
    }
}

/// A pop has moved a marker, and by now its slot may claim nothing: the marker goes back, or its events would wait for a renewal.
#[tokio::test]
async fn a_name_that_may_not_be_claimed_becomes_a_marker_again() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.emit("work:1", "1").await;
    state.run("LMOVE", &[&keys.objects_with_events(), &keys.worker_object("w.0"), "RIGHT", "LEFT"]).await;
    let mut call = Advance::new(keys, "w", "token-1", Bounds { claims: 0, ..BOUNDS }, From::Held);
    call.free(0);
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert!(matches!(&answer, Advanced::Ok { batches, .. } if batches.is_empty()), "{answer:?}");
    let console = redis.console().await;
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:1"]);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, Vec::<String>::new());
}

/// A result of an earlier hand-out, late: the batch begins with the same id, and is not the one that was delivered.
#[tokio::test]
async fn a_result_of_an_earlier_hand_out_is_ignored() {
    let redis = Redis::start();
    let (mut state, report) = with_a_name_behind(&redis).await;
    let (w, keys) = ("w.0", state.keys.clone());
    state.run("SET", &[&keys.worker_event_id(w), "1 1"]).await;
    assert_eq!(told(&mut state, &report).await, [Some(w.to_owned()), None]);
    let console = redis.console().await;
    assert_eq!(console.list(&keys.worker_event(w)).await, ["1"]);
    assert_eq!(console.text(&keys.last_event_id("work:1")).await, None);
}

/// An attached process with two slots, and what is to be done to Redis before it calls.
async fn attached(redis: &Redis) -> State {
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    State::new(conn, keys.clone())
}

/// A call for free slots 0 and 1 within these bounds.
async fn ask(state: &mut State, bounds: Bounds) -> Result<Advanced, scripts::ScriptError> {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, From::Markers);
    call.free(0);
    call.free(1);
    scripts::advance(&mut state.conn, &call).await
}

/// The objects of the batches that a call gave.
fn objects(answer: &Advanced) -> Vec<&str> {
    let Advanced::Ok { batches, .. } = answer else { panic!("{answer:?}") };
    batches.iter().map(|batch| std::str::from_utf8(&batch.object).expect("a name")).collect()
}

/// Moves the oldest marker into the slot's list, as a pop does.
async fn pop(state: &mut State, worker: &str) {
    let (markers, taken) = (state.keys.objects_with_events(), state.keys.worker_object(worker));
    state.run("LMOVE", &[&markers, &taken, "RIGHT", "LEFT"]).await;
}

/// A call failed after it had taken a batch away, and no event has come since: the slot owns an object that has nothing. It lets go of it, or
/// whatever is pushed later would wait behind an owner that does nothing.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.run("SET", &[&state.keys.event_worker("work:1"), "w.0"]).await;
    state.run("LPUSH", &[&state.keys.worker_object("w.0"), "work:1"]).await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await, None);
    assert_eq!(console.list(&state.keys.worker_object("w.0")).await, Vec::<String>::new());
    state.emit("work:1", "1").await;
    assert_eq!(objects(&ask(&mut state, BOUNDS).await.expect("an answer")), ["work:1"]);
    console.check().await;
}

/// A reply was lost, and a pop has moved another name into the slot's list since: the batch is of the object that the slot owns.
#[tokio::test]
async fn a_lost_batch_is_of_the_object_the_slot_owns() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", Bounds { claims: 0, ..BOUNDS }, From::Markers);
    call.free(0);
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
}

/// The empty name only wakes: even where somebody has pushed events without a name, it is no object.
#[tokio::test]
async fn the_empty_name_is_no_object() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("", "1").await;
    state.emit("", "2").await;
    pop(&mut state, "w.0").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    let left = [console.list(&state.keys.objects_with_events()).await, console.list(&state.keys.worker_object("w.0")).await];
    assert_eq!(left, [Vec::<String>::new(), Vec::new()]);
    assert_eq!(console.list(&state.keys.events("")).await, ["1", "2"]);
}

/// Two pops have filled one slot's list: the slot takes one object, and the other one is there for others.
#[tokio::test]
async fn a_slot_takes_one_of_two_names() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.0").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1", "work:2"]);
    let console = redis.console().await;
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await.as_deref(), Some("w.0"));
    assert_eq!(console.text(&state.keys.event_worker("work:2")).await.as_deref(), Some("w.1"));
    console.check().await;
}

/// Two pops have moved the same name, for two slots: one of them gets the object.
#[tokio::test]
async fn of_two_slots_with_one_name_the_first_gets_the_object() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:1", "2").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.1").await;
    let answer = ask(&mut state, Bounds { batch: 1, ..BOUNDS }).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let console = redis.console().await;
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await.as_deref(), Some("w.0"));
    assert_eq!(console.list(&state.keys.events("work:1")).await, ["2"]);
    console.check().await;
}

/// The slot's list has a wrong type: the call fails, and the object that was to take the place of the one before is as it was.
#[tokio::test]
async fn what_cannot_be_listed_is_as_it_was() {
    for held in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.own("w.0", "work:1", 1, &["1"]).await;
        state.run("SET", &[&state.keys.worker_object("w.0"), "wrong"]).await;
        match held {
            false => state.emit("work:2", "2").await,
            true => state.hold("work:2", "1", &["2"], "2 0 1 0 retry: down").await,
        }
        let keys = state.keys.clone();
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Markers);
        call.report(0, &done("work:1", 1));
        scripts::advance(&mut state.conn, &call).await.expect_err("a wrong type");
        let console = redis.console().await;
        let (queue, batch) = (keys.events("work:2"), keys.events_held("work:2"));
        assert_eq!([console.list(&queue).await, console.list(&batch).await].concat(), ["2"]);
        assert_eq!(console.list(&keys.worker_event("w.0")).await, Vec::<String>::new());
        let there = if held {
            console.run::<u64>(&["ZCARD", &keys.objects_held()]).await
        } else {
            console.list(&keys.objects_with_events()).await.len() as u64
        };
        assert_eq!(there, 1, "held: {held}");
    }
}

/// A due held object is put aside, for nobody can tell its owner. The marker of it that the call has read leads nowhere from then on.
#[tokio::test]
async fn what_was_put_aside_is_told_once() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.hold("work:2", "1", &["2"], "2 0 1 0 retry: down").await;
    let owner = state.keys.event_worker("work:2");
    state.run("DEL", &[&owner]).await;
    state.run("LPUSH", &[&owner, "wrong"]).await;
    state.emit("work:2", "3").await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let Advanced::Ok { quarantined, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(quarantined.len(), 1, "{quarantined:?}");
}

/// The reply is full before the second slot's turn: the name in its list is there for others.
#[tokio::test]
async fn a_name_for_which_the_reply_has_no_room_becomes_a_marker_again() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state.emit("work:2", "1").await;
    pop(&mut state, "w.0").await;
    pop(&mut state, "w.1").await;
    let answer = ask(&mut state, Bounds { reply_bytes: 1, ..BOUNDS }).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    let console = redis.console().await;
    assert_eq!(console.list(&state.keys.objects_with_events()).await, ["work:2"]);
    console.check().await;
}

/// A call failed after it had taken a batch away: its slot owns an object without a batch. Where it may claim nothing, the object is held for
/// others; as a marker of an object that has an owner it would be dropped.
#[tokio::test]
async fn an_owned_object_that_may_not_be_claimed_is_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.run("SET", &[&state.keys.event_worker("work:1"), "w.0"]).await;
    state.run("LPUSH", &[&state.keys.worker_object("w.0"), "work:1"]).await;
    state.run("LPUSH", &[&state.keys.events("work:1"), "1"]).await;
    let answer = ask(&mut state, Bounds { claims: 0, ..BOUNDS }).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await.as_deref(), Some("held"));
    console.check().await;
}

/// A name in `objects.held` whose object is not held, left by hand or by another program: it would be due for ever.
#[tokio::test]
async fn a_due_name_that_is_not_held_is_dropped() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&state.keys.events("work:2"), "2"]).await;
    state.run("ZADD", &[&state.keys.objects_held(), "0", "work:1", "0", "work:2"]).await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Held);
    call.free(1);
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    let console = redis.console().await;
    assert_eq!(console.run::<u64>(&["ZCARD", &keys.objects_held()]).await, 0);
    assert_eq!(console.text(&keys.event_worker("work:1")).await.as_deref(), Some("w.0"));
}

/// The second slot's batch key has a wrong type: the call fails, and what it had given the first slot until then was given.
#[tokio::test]
async fn a_call_that_fails_half_way_writes_down_what_it_did() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for object in ["work:1", "work:2", "work:3"] {
        state.emit(object, "1").await;
    }
    state.run("SET", &[&state.keys.worker_event("w.1"), "wrong"]).await;
    ask(&mut state, BOUNDS).await.expect_err("a wrong type");
    let console = redis.console().await;
    assert_eq!(console.number(&state.keys.next_event_id()).await, 1);
    let markers: Vec<_> = console.list(&state.keys.objects_with_events()).await;
    assert_eq!(markers, ["work:2", "work:3"]);
    assert_eq!(console.list(&state.keys.worker_event("w.0")).await, ["1"]);
    assert_eq!(console.text(&state.keys.worker_event_id("w.0")).await.as_deref(), Some("1"));
    assert_eq!(console.text(&state.keys.event_worker("work:1")).await.as_deref(), Some("w.0"));
}

/// The last event of a batch becomes a dead letter, and then the call fails on a key of another slot: nothing is in flight, and no tag tells of it.
#[tokio::test]
async fn a_call_that_fails_behind_a_dead_letter_leaves_no_tag() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.own("w.1", "work:2", 2, &["2"]).await;
    state.run("DEL", &[&state.keys.worker_event("w.1")]).await;
    state.run("SET", &[&state.keys.worker_event("w.1"), "wrong"]).await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Held);
    let [first, second] = [1, 2].map(|first| Tag { first, ..Tag::default() });
    let then = Results::Reject { next: None, id: 1, error: "no".to_owned(), attempts: 1 };
    call.report(0, &Report { object: "work:1".into(), tag: first, count: 0, last: None, then });
    let then = Results::Part { next: Tag { first: 3, ..Tag::default() } };
    call.report(1, &Report { object: "work:2".into(), tag: second, count: 1, last: Some(2), then });
    scripts::advance(&mut state.conn, &call).await.expect_err("a wrong type");
    let console = redis.console().await;
    assert_eq!(console.dead().await.len(), 1);
    assert_eq!(console.text(&keys.worker_event_id("w.0")).await, None);
}

/// A name whose slots were taken over lives for a day from then on: a pop of its process may still move a marker.
#[tokio::test]
async fn a_takeover_is_a_sign_of_life() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    console.end_lease("w").await;
    let _: u64 = console.run(&["HSET", &keys.event_workers(), "w", "2 token-1 7"]).await;
    scripts::adopt(&mut state.conn, &keys, "other", "0", 5, LEASE).await.expect("an answer");
    let registered: String = console.run(&["HGET", &keys.event_workers(), "w"]).await;
    let at_ms: u64 = registered.strip_prefix("2 token-1 ").and_then(|at| at.parse().ok()).expect("a time");
    assert!(at_ms > 7, "{registered}");
}

/// An event is completed with errors: the log has it and the dead letters have not, and the next one follows on what was delivered before. Where the log
/// cannot be written, it is held with its numbers.
#[tokio::test]
async fn what_completes_with_errors_is_in_the_log() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.delivered("work:1", 4).await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    state.own("w.1", "work:2", 7, &["7"]).await;
    state.run("SET", &[&keys.worker_event_id("w.1"), "7 3 1 2"]).await;
    let complete = |object: &str, tag: Tag, next| {
        let then = Results::Complete { next, id: tag.first, error: "no".to_owned(), attempts: 2 };
        Report { object: object.to_owned().into(), tag, count: 0, last: None, then }
    };
    let console = redis.console().await;
    let mut call = Advance::new(&keys, "w", "token-1", Bounds { claims: 0, ..BOUNDS }, From::Held);
    call.report(0, &complete("work:1", Tag { first: 5, ..Tag::default() }, Some(Tag { first: 6, ..Tag::default() })));
    let answer = scripts::advance(&mut state.conn, &call).await.expect("an answer");
    let Advanced::Ok { batches, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((batches[0].tag.to_string().as_str(), batches[0].prev), ("6", 4));
    let kept: Vec<(String, Vec<String>)> = console.run(&["XRANGE", &keys.event_log(), "-", "+"]).await;
    let fields = "status completed_with_errors id 5 prev 4 object work:1 event 5 error no attempts 2";
    assert_eq!((kept[0].1.join(" ").as_str(), console.dead().await.len()), (fields, 0));

    state.run("DEL", &[&keys.event_log()]).await;
    state.run("SET", &[&keys.event_log(), "wrong"]).await;
    let mut call = Advance::new(&keys, "w", "token-1", Bounds { claims: 0, ..BOUNDS }, From::Held);
    call.report(1, &complete("work:2", Tag { first: 7, handouts: 3, attempts: 1, crashes: 2 }, None));
    scripts::advance(&mut state.conn, &call).await.expect("an answer");
    let held = console.held_id("work:2").await.expect("held");
    assert!(held.starts_with("7 3 2 2 quarantine: event.log: WRONGTYPE "), "{held}");
}

/// However many events complete with errors, the log keeps about a thousand.
#[tokio::test]
async fn the_log_is_bounded() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    let mut fill = redis::pipe();
    for _ in 0..1500 {
        fill.cmd("XADD").arg(keys.event_log()).arg(&["*", "a", "b"]).ignore();
    }
    fill.query_async::<()>(&mut state.conn).await.expect("filled");
    state.own("w.0", "work:1", 1, &["1"]).await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, From::Held);
    let then = Results::Complete { next: None, id: 1, error: "no".to_owned(), attempts: 1 };
    call.report(0, &Report { object: "work:1".into(), tag: Tag { first: 1, ..Tag::default() }, count: 0, last: None, then });
    scripts::advance(&mut state.conn, &call).await.expect("an answer");
    let kept: usize = redis.console().await.run(&["XLEN", &keys.event_log()]).await;
    assert!((1000..1200).contains(&kept), "{kept}");
}

/// A process whose lease has ended sweeps before it has noticed: what it has itself is not what a dead one has left.
#[tokio::test]
async fn a_sweep_leaves_the_own_name_alone() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 1, &["1"]).await;
    redis.console().await.end_lease("w").await;
    for (own, held) in [("w", 0), ("other", 1)] {
        let adopted = scripts::adopt(&mut state.conn, &keys, own, "0", 5, LEASE).await.expect("an answer");
        assert_eq!(adopted.held, held, "for {own}");
    }
}

/// The time to live of the last id of `work:1`, in ms; -1: for ever.
async fn fades(state: &State) -> i64 {
    let key = state.keys.last_event_id("work:1");
    redis::cmd("PTTL").arg(key).query_async(&mut state.conn.clone()).await.expect("PTTL")
}

const FORGET: Bounds = Bounds { forget_after: Some(LEASE), ..BOUNDS };

/// Reports the batch of `work:1` in slot 0, ids `first` to `last`, as delivered.
async fn reported(state: &mut State, bounds: Bounds, first: u64, count: usize) -> Advanced {
    let keys = state.keys.clone();
    let tag = Tag { first, ..Tag::default() };
    let last = Some(first + count as u64 - 1);
    let report = Report { object: "work:1".into(), tag, count, last, then: Results::Done };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, From::Markers);
    call.report(0, &report);
    scripts::advance(&mut state.conn, &call).await.expect("an answer")
}

/// The last id of a released object is forgotten after a while, one that is in hand is not: neither where the object goes on, nor where it is claimed
/// again before the time is over.
#[tokio::test]
async fn only_what_is_released_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for event in ["1", "2"] {
        state.emit("work:1", event).await;
    }
    let one = Bounds { batch: 1, ..FORGET };
    assert_eq!(objects(&ask(&mut state, one).await.expect("an answer")), ["work:1"]);
    assert_eq!(objects(&reported(&mut state, one, 1, 1).await), ["work:1"]);
    assert_eq!(fades(&state).await, -1, "it goes on");
    assert!(objects(&reported(&mut state, one, 2, 1).await).is_empty());
    let left = fades(&state).await;
    assert!((1..=600_000).contains(&left), "released: {left}");
    state.emit("work:1", "3").await;
    assert_eq!(objects(&ask(&mut state, one).await.expect("an answer")), ["work:1"]);
    assert_eq!(fades(&state).await, -1, "claimed by a marker");
    assert!(objects(&reported(&mut state, one, 3, 1).await).is_empty());
    assert!(fades(&state).await > 0, "released while another call goes on with nothing");
    // By a pop, too.
    state.emit("work:1", "4").await;
    pop(&mut state, "w.0").await;
    assert_eq!(objects(&ask(&mut state, one).await.expect("an answer")), ["work:1"]);
    assert_eq!(fades(&state).await, -1, "claimed by a pop");
    // Without the setting, it stays.
    assert!(objects(&reported(&mut state, BOUNDS, 4, 1).await).is_empty());
    assert_eq!(fades(&state).await, -1, "nobody forgets");
}

/// Where another slot of the same call goes on, the object that is released is forgotten all the same.
#[tokio::test]
async fn what_is_released_beside_another_object_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for object in ["work:1", "work:2", "work:2"] {
        state.emit(object, "1").await;
    }
    let bounds = Bounds { batch: 1, ..FORGET };
    assert_eq!(objects(&ask(&mut state, bounds).await.expect("an answer")), ["work:1", "work:2"]);
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, From::Markers);
    for (slot, object) in ["work:1", "work:2"].into_iter().enumerate() {
        let first = slot as u64 + 1;
        let tag = Tag { first, ..Tag::default() };
        call.report(slot, &Report { object: object.into(), tag, count: 1, last: Some(first), then: Results::Done });
    }
    assert_eq!(objects(&scripts::advance(&mut state.conn, &call).await.expect("an answer")), ["work:2"]);
    assert!(fades(&state).await > 0);
    let other: i64 = redis::cmd("PTTL").arg(keys.last_event_id("work:2")).query_async(&mut state.conn).await.expect("PTTL");
    assert_eq!(other, -1);
}

/// A held object whose queue is empty is let go of when it is due, and forgotten from then on; so is an owned one that has nothing.
#[tokio::test]
async fn what_is_let_go_of_without_events_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.delivered("work:1", 7).await;
    state.hold("work:1", "1", &[], "0 0 0 0 yield").await;
    assert!(objects(&ask(&mut state, FORGET).await.expect("an answer")).is_empty());
    assert!(fades(&state).await > 0, "held");
    state.delivered("work:1", 7).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.event_worker("work:1"), "w.0"]).await;
    state.run("LPUSH", &[&keys.worker_object("w.0"), "work:1"]).await;
    assert!(objects(&ask(&mut state, FORGET).await.expect("an answer")).is_empty());
    assert!(fades(&state).await > 0, "owned");
}

/// As many slots as there can be claim in one call, each with an id to keep: one command writes all of that down.
#[tokio::test]
async fn a_call_of_all_slots_keeps_all_last_ids() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for n in 0..1024 {
        state.delivered(&format!("work:{n}"), n + 1).await;
        state.emit(&format!("work:{n}"), "1").await;
    }
    let keys = state.keys.clone();
    let bounds = Bounds { batch: 1, claims: 1024, markers: 4096, ..FORGET };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, From::Markers);
    (0..1024).for_each(|slot| call.free(slot));
    assert_eq!(objects(&scripts::advance(&mut state.conn, &call).await.expect("an answer")).len(), 1024);
}

/// Whatever there is of an object but its last id keeps it, each by itself, and the last id too; a marker does not.
#[tokio::test]
async fn only_an_idle_object_is_forgotten() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let key = |suffix: &str| Forgot::Wrong { key: format!("work:1{suffix}") };
    let reserved = |suffix: &str| Forgot::Reserved { key: format!("work:1{suffix}") };
    for (command, args, expected) in [
        ("LPUSH", [keys.events("work:1"), "1".into(), "2".into()], Forgot::Queued { events: 2 }),
        ("SET", [keys.event_worker("work:1"), "w.0".into(), String::new()], Forgot::Owned { owner: "w.0".into() }),
        ("SET", [keys.event_worker("work:1"), "held".into(), String::new()], Forgot::Held),
        ("LPUSH", [keys.events_held("work:1"), "1".into(), String::new()], Forgot::Held),
        ("SET", [keys.events_held_id("work:1"), "7 0 0 0 stop".into(), String::new()], Forgot::Held),
        ("ZADD", [keys.objects_held(), "1".into(), "work:1".into()], Forgot::Held),
        ("ZADD", [keys.objects_paused(), "0".into(), "work:1".into()], Forgot::Held),
        ("HSET", [keys.events_scheduled_of("work:1"), "a".into(), "b".into()], reserved(":events.scheduled")),
        ("HSET", [keys.events("work:1"), "a".into(), "b".into()], key(":events")),
        ("HSET", [keys.event_worker("work:1"), "a".into(), "b".into()], key(":event.worker")),
        ("HSET", [keys.last_event_id("work:1"), "a".into(), "b".into()], key(":last.event.id")),
    ] {
        state.delivered("work:1", 7).await;
        if args[0] == keys.last_event_id("work:1") {
            state.run("DEL", &[&args[0]]).await;
        }
        let given: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.is_empty()).collect();
        state.run(command, &given).await;
        let forgot = scripts::forget(&mut state.conn, &keys, &["work:1"]).await.expect("an answer");
        assert_eq!(forgot, [expected], "{command} {given:?}");
        let left: u64 =
            redis::cmd("EXISTS").arg(keys.last_event_id("work:1")).query_async(&mut state.conn).await.expect("EXISTS");
        assert_eq!(left, 1, "{command} {given:?}");
        state.run("DEL", &[&args[0], &keys.last_event_id("work:1")]).await;
    }
    state.delivered("work:1", 7).await;
    state.run("LPUSH", &[&keys.objects_with_events(), "work:1"]).await;
    state.run("LPUSH", &[&keys.worker_object("w.0"), "work:1"]).await;
    state.run("HSET", &[&keys.event_handled("work:1"), "id", "6"]).await;
    let forgot = scripts::forget(&mut state.conn, &keys, &["other", "work:1", "work:1"]).await.expect("an answer");
    assert_eq!(forgot, [Forgot::Unknown, Forgot::Forgotten { last_event_id: "7".into() }, Forgot::Unknown]);
    // What handlers had finished of an event that is in nobody's hands goes with it.
    let left: u64 = redis::cmd("EXISTS").arg(keys.event_handled("work:1")).query_async(&mut state.conn).await.expect("EXISTS");
    assert_eq!(left, 0);
}

/// A shared key of a wrong type is found before anything is forgotten.
#[tokio::test]
async fn nothing_is_forgotten_beside_a_wrong_type() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for shared in [keys.objects_held(), keys.objects_paused()] {
        state.delivered("work:1", 7).await;
        state.run("SET", &[&shared, "1"]).await;
        let forgot = scripts::forget(&mut state.conn, &keys, &["work:1", "work:2"]).await;
        assert!(forgot.as_ref().is_err_and(scripts::ScriptError::is_wrong_type), "{forgot:?}");
        assert_eq!(redis.console().await.text(&keys.last_event_id("work:1")).await.as_deref(), Some("7"));
        state.run("DEL", &[&shared]).await;
    }
}
