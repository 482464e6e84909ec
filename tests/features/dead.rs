//! Dead letters and operators: dead letters are listed, retried as new events, or dropped. Each of
//! these actions is recorded.

use serde_json::Value;
use seriatim::control::dead::{Settle, Settled};
use seriatim::control::held::Skipped;
use seriatim::control::{By, Control, ControlError, Cursor, RowEvent, RowId};
use seriatim::sink::Stop;

use crate::support::operator::{Reads, assert_denied, assert_wrong_type};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, assert_matches};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "fixed upstream",
};

/// Retries or drops dead letters.
async fn settle(control: &Control, settle: Settle, ids: &[&str]) -> Vec<Settled> {
    let ids: Vec<RowId> = ids.iter().map(|id| RowId::from(*id)).collect();
    let settled = control.settle(ADA, settle, &ids).await;
    settled.expect("an answer")
}

/// Retries or drops all dead letters, or those of an object. Returns how many it has settled, and
/// how many it has left.
async fn settle_all(control: &Control, settle: Settle, object: Option<&str>) -> (u64, u64) {
    let all = control
        .settle_all(ADA, settle, object.map(str::as_bytes))
        .await;
    let all = all.expect("an answer");
    (all.done, all.left)
}

/// Returns the ids of the existing dead letters, oldest first.
async fn dead_ids(control: &Control) -> Vec<RowId> {
    let (mut all, mut after): (Vec<RowId>, _) = (Vec::new(), None);
    loop {
        let page = control.dead_letters(after.as_ref(), 32).await;
        let page = page.expect("a page");
        all.extend(page.letters.into_iter().map(|letter| letter.dead_id));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// A retried dead letter is a new event with a new id, behind all queued events. Its marker leads a
/// worker to it.
#[tokio::test]
async fn a_retried_dead_letter_is_a_new_event_at_the_end_of_the_queue() {
    let (redis, console) = Redis::start().with_console().await;
    let control = console.control();
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.id) {
        ("1", 1) => Act::Stop(Stop::rejected("no")),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
    let dead = dead_ids(&control).await;
    console.emit("work:1", "3").await;
    let settled = control.settle(ADA, Settle::Retry, &dead).await;
    // The event 2 was delivered since.
    assert_eq!(settled.expect("an answer"), [Settled::RetriedLate]);
    assert_eq!(dead_ids(&control).await.len(), 0);
    assert_eq!(console.queue("work:1").await, ["3", "1"]);
    assert_eq!(console.markers().await, ["work:1", "work:1"]);
    console.check().await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    let sent = sink.sent().into_iter();
    let sent = sent.map(|offer| format!("{} {} {}", offer.text(), offer.id, offer.prev));
    assert!(sent.eq(["2 2 0", "3 3 2", "1 4 3"]), "{:?}", sink.sent());
    console.until_at_rest().await;
}

/// The reply to a retry is lost, and the retry is repeated. The second call pushes no event.
#[tokio::test]
async fn a_retry_made_twice_pushes_once() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let (console, control) = (state.console(), state.control());
    state.dead_letter("1700-0", "work:1", b"{\"n\" :1}").await;
    for expected in [Settled::Retried, Settled::Gone] {
        let settled = settle(&control, Settle::Retry, &["1700-0"]).await;
        assert_eq!(settled, [expected]);
    }
    assert_eq!(console.queue("work:1").await, ["{\"n\" :1}"]);
    assert_eq!(console.markers().await, ["work:1"]);
    assert_eq!(control.recorded(32).await.len(), 1);
}

/// Dead letters are retried in the order in which the caller names them, even if this takes several
/// calls.
#[tokio::test]
async fn retries_keep_the_order_they_are_named_in() {
    let (_redis, mut state) = Redis::start().with_state().await;
    state.dead_letters("1700", 0..70, "work:1").await;
    let named: Vec<RowId> = (0..70).rev().map(|n| format!("1700-{n}").into()).collect();
    let settled = state.control().settle(ADA, Settle::Retry, &named).await;
    assert_eq!(settled.expect("an answer"), [Settled::Retried; 70]);
    let expected: Vec<String> = (0..70).rev().map(|n| n.to_string()).collect();
    assert_eq!(state.console().queue("work:1").await, expected);
}

/// The record of a drop has the operator, the reason, and the event.
#[tokio::test]
async fn a_drop_is_logged_with_who_and_why_and_the_event() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let (console, control) = (state.console(), state.control());
    let secret = b"{\"secret\":1}";
    state.dead_letter("1700-0", "work:1", secret).await;
    state.dead_letter("1700-1", "work:2", b"2").await;
    let settled = settle(&control, Settle::Drop, &["1700-0", "1700-7"]).await;
    assert_eq!(settled, [Settled::Dropped, Settled::Gone]);
    assert_eq!(dead_ids(&control).await, ["1700-1"]);
    let kept = control.recorded(32).await;
    let [drop] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(
        serde_json::to_value(drop).expect("JSON")["event"],
        serde_json::json!({"secret": 1})
    );
    assert_eq!(
        (drop.action.as_str(), drop.who.as_str(), drop.why.as_str()),
        ("drop", "ada@host", "fixed upstream")
    );
    let dead_id = drop.dead_id.as_ref().map(RowId::as_str);
    assert_eq!(
        (drop.object.as_str(), drop.id, dead_id),
        ("work:1", Some(12), Some("1700-0"))
    );
    let event = drop.event.as_ref().map(RowEvent::bytes);
    assert_eq!(
        (drop.error.as_deref(), event),
        (Some("no\nway"), Some(&secret[..]))
    );
    let (now_s, _): (u64, u64) = console.run(&["TIME"]).await;
    assert!(now_s.abs_diff(drop.at_ms / 1000) < 60, "{drop:?}");
    assert_eq!(console.markers().await, [""; 0]);
}

/// If a dead letter cannot be retried, nothing changes and the dead letter stays.
#[tokio::test]
async fn what_cannot_be_retried_stays() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    state.dead_letter("1700-0", "wrong", b"1").await;
    let others = "
        XADD events.dead 1700-1 foo bar; XADD events.dead 1700-2 object x
        XADD events.dead 1700-3 event x; SET wrong:events 'no list'
    ";
    state.add(others).await;
    let ids = ["1700-0", "1700-1", "1700-2", "1700-3"];
    let settled = settle(&control, Settle::Retry, &ids).await;
    assert_eq!(settled[0], Settled::WrongType);
    assert_eq!(settled[1..], [Settled::Unreadable; 3]);
    assert_eq!(settle_all(&control, Settle::Retry, None).await, (0, 4));
    let (dead, actions) = (dead_ids(&control).await, control.recorded(32).await);
    assert_eq!((dead.len(), actions.len()), (4, 0));
    assert_eq!(console.markers().await, [""; 0]);
    for key in [keys.objects_with_events(), keys.operator_actions()] {
        state.run("SET", &[&key, "wrong"]).await;
        let refused = control
            .settle(ADA, Settle::Drop, &ids.map(RowId::from))
            .await;
        assert_wrong_type(&refused, &key);
        state.run("DEL", &[&key]).await;
    }
    let wrong = ["1700-0".into(), "1700".into()];
    let refused = control.settle(ADA, Settle::Drop, &wrong).await;
    assert_matches!(refused, Err(ControlError::DeadId(id)) if id == "1700");
    assert_eq!(dead_ids(&control).await.len(), 4);
    // A dead letter that cannot be retried can be dropped.
    let settled = settle(&control, Settle::Drop, &ids).await;
    assert_eq!(settled, [Settled::Dropped; 4]);
}

/// A missing right is found before the first write. Half a retry would duplicate or lose the event.
#[tokio::test]
async fn a_right_that_is_missing_leaves_everything_as_it_is() {
    let (redis, mut state) = Redis::own(&[]).with_state().await;
    state.dead_letter("1700-0", "work:1", b"1").await;
    for command in ["lpush", "xdel", "xadd", "xrange"] {
        let weak = redis.control_without(command).await;
        let refused = weak.settle(ADA, Settle::Retry, &["1700-0".into()]).await;
        assert_denied(&refused, command);
    }
    let control = state.control();
    let (dead, actions) = (dead_ids(&control).await, control.recorded(32).await);
    assert_eq!((dead.len(), actions.len()), (1, 0));
    assert_eq!(state.console().queue("work:1").await, [""; 0]);
}

/// Tests an action on all dead letters of one object, and an action on all dead letters.
#[tokio::test]
async fn all_of_an_object_or_all_there_are_are_retried() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    for n in 0..100 {
        let object = if n % 4 == 0 { "work:1" } else { "work:2" };
        state.dead_letters("1700", [n], object).await;
    }
    let one = settle_all(&control, Settle::Retry, Some("work:1")).await;
    assert_eq!((one, dead_ids(&control).await.len()), ((25, 0), 75));
    let expected: Vec<String> = (0..100).step_by(4).map(|n| n.to_string()).collect();
    assert_eq!(state.console().queue("work:1").await, expected);
    let all = settle_all(&control, Settle::Drop, None).await;
    assert_eq!((all, dead_ids(&control).await.len()), ((75, 0), 0));
    assert_eq!(settle_all(&control, Settle::Retry, None).await, (0, 0));
    // The steps of an action leave one record.
    let kept = control.recorded(32).await;
    let shown = kept.iter().map(|action| {
        assert_eq!(action.event, None);
        let many = action.many.as_ref().expect("many");
        let (count, first, last) = (many.count, &many.first, &many.last);
        format!("{} {} {count} {first} {last}", action.action, action.object)
    });
    let expected = ["drop * 75 1700-1 1700-99", "retry work:1 25 1700-0 1700-96"];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    let of = control.actions_of("work:1", None, 32).await;
    assert_eq!(of.expect("the actions").actions, kept[1..]);
}

/// An action on all dead letters takes several steps. The steps end at the dead letter that was the
/// last one when the first step began.
#[tokio::test]
async fn steps_end_at_the_last_dead_letter_of_the_first_step() {
    let (_redis, mut state) = Redis::start().with_state().await;
    state.dead_letters("1700", 0..40, "work:1").await;
    let control = state.control();
    let step = async |next: Option<&Cursor>| {
        let step = control.settle_step(ADA, Settle::Retry, None, next).await;
        step.expect("an answer")
    };
    let first = step(None).await;
    assert_eq!(
        (first.done, first.left, first.next.is_some()),
        (32, 0, true)
    );
    state.dead_letter("1800-0", "work:1", b"1").await;
    // The second step is called twice, as after a lost reply. The repeated call retries no dead
    // letter.
    for done in [8, 0] {
        let second = step(first.next.as_ref()).await;
        assert_eq!((second.done, second.left, second.next), (done, 0, None));
    }
    assert_eq!(dead_ids(&control).await, ["1800-0"]);
    let kept = control.recorded(32).await.into_iter();
    let counts = kept.map(|action| action.many.map(|many| many.count));
    assert_eq!(counts.collect::<Vec<_>>(), [Some(40)]);
    let wrong = "1700-0 .. 1700-0..x 1700-0..1700-0.. 1700-0..1700-0..x";
    for cursor in wrong.split(' ') {
        let next = Some(&cursor.into());
        let refused = control.settle_step(ADA, Settle::Retry, None, next).await;
        assert_matches!(refused, Err(ControlError::Cursor(text)) if text == cursor);
    }
}

/// Tests lists that begin at the lowest or the highest possible id.
#[tokio::test]
async fn a_list_can_begin_at_either_end_of_all_ids() {
    let (_redis, mut state) = Redis::start().with_state().await;
    state.dead_letter("1700-0", "work:1", b"1").await;
    let control = state.control();
    settle(&control, Settle::Drop, &["1700-0"]).await;
    state.dead_letter("1701-0", "work:1", b"1").await;
    let last = format!("{0}-{0}", u64::MAX);
    for (from, oldest, newest) in [("0-0", 1, 0), ("00-00", 1, 0), (last.as_str(), 0, 1)] {
        let from = Some(&from.into());
        let page = control.dead_letters(from, 10).await.expect("a page");
        assert_eq!(page.letters.len(), oldest);
        let page = control.newest_dead_letters(from, 10).await;
        assert_eq!(page.expect("a page").letters.len(), newest);
        let page = control.actions(from, 10).await.expect("a page");
        assert_eq!(page.actions.len(), newest);
        assert!(control.log(from, 10).await.is_ok() && control.newest_log(from, 10).await.is_ok());
    }
}

/// Without free memory, an operator can still drop a dead letter, retry one, and skip an event. A
/// retry takes no more memory than it frees.
#[tokio::test]
async fn an_operator_can_act_when_memory_has_run_out() {
    let (_redis, mut state) = Redis::own(&[]).with_state().await;
    let (console, control) = (state.console(), state.control());
    state.dead_letters("1700", 0..2, "work:1").await;
    state
        .hold("work:2", "inf", &["1", "2"], "1 0 1 0 attempts: x")
        .await;
    state.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    let refused = console.try_run::<String>(&["SET", "x", "1"]).await;
    let refused = refused.expect_err("out of memory");
    assert_eq!(refused.code(), Some("OOM"));
    for (settles, id, expected) in [
        (Settle::Drop, "1700-0", Settled::Dropped),
        (Settle::Retry, "1700-1", Settled::Retried),
    ] {
        assert_eq!(settle(&control, settles, &[id]).await, [expected]);
    }
    let skipped = control.skip(ADA, "work:2", Some(1)).await;
    assert_matches!(skipped, Ok(Skipped::Skipped { left: 1, .. }));
}

/// The reason of an action is cut at 1,000 bytes. Redis keeps about 1,000 actions.
#[tokio::test]
async fn what_is_kept_of_actions_is_bounded() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    let mut fill = redis::pipe();
    let ids: Vec<RowId> = (1..=1500)
        .map(|n| RowId::from(format!("1700-{n}")))
        .collect();
    for n in 1..=1500 {
        fill.cmd("XADD")
            .arg(keys.events_dead())
            .arg(format!("1700-{n}"))
            .arg(&["object", "o", "event", "1"])
            .ignore();
    }
    fill.exec_async(&mut state.conn).await.expect("filled");
    let long = "é".repeat(5000);
    let by = By {
        who: &long,
        why: &long,
    };
    let settled = control.settle(by, Settle::Drop, &ids).await;
    settled.expect("an answer");
    let kept: usize = console.run(&["XLEN", &keys.operator_actions()]).await;
    assert!((1000..1200).contains(&kept), "{kept}");
    let newest = control.recorded(1).await.remove(0);
    let dead_id = newest.dead_id.as_ref().map(RowId::as_str);
    assert_eq!(
        (dead_id, newest.who.len(), newest.why.len()),
        (Some("1700-1500"), 1000, 1000)
    );
    let after = Cursor::from(&newest.action_id);
    let before = control.actions(Some(&after), 1).await.expect("a page");
    let dead_id = before.actions[0].dead_id.as_ref().map(RowId::as_str);
    assert_eq!(dead_id, Some("1700-1499"));
}

/// The list can be read in both directions, in pages with a cursor. One dead letter can be found by
/// its id.
#[tokio::test]
async fn the_list_goes_both_ways() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    state.dead_letters("1700", 0..5, "work:1").await;
    let after = Some(&"1700-3".into());
    let newest = control.newest_dead_letters(after, 2).await.expect("a page");
    let ids = newest.letters.iter().map(|letter| letter.dead_id.as_str());
    assert_eq!(ids.collect::<Vec<_>>(), ["1700-2", "1700-1"]);
    let found = async |id: &str| control.dead_letter(&id.into()).await.expect("an answer");
    let letter = found("1700-4").await.expect("it is there");
    assert_eq!((letter.dead_id.as_str(), letter.id), ("1700-4", Some(12)));
    assert_eq!(found("1701-0").await, None);
    for (options, expected) in [
        ("--newest --limit 2", &["1700-4", "1700-3"][..]),
        ("--newest --after 1700-1", &["1700-0"]),
        ("--after 1700-2", &["1700-3", "1700-4"]),
    ] {
        let rows = redis.json_lines(&format!("dead list --json {options}"));
        let ids: Vec<_> = rows.iter().map(|row| row["dead_id"].clone()).collect();
        assert_eq!(ids, expected, "{options}");
    }
}

/// Tests the output and exit codes of the commands.
#[tokio::test]
async fn the_commands_show_retry_and_drop() {
    let (redis, mut state) = Redis::start().with_state().await;
    let console = redis.console().await;
    let long = format!("{{\"long\":\"{}\"}}", "x".repeat(500));
    state.dead_letter("1700-0", "work:1", long.as_bytes()).await;
    state.dead_letters("1700", 1..=3, "work:2").await;
    let shown = redis.prints("dead show 1700-0");
    assert!(
        shown.starts_with("1700-0  work:1  id 12, prev 7, 3 failed attempts\n  error  no\\nway\n"),
        "{shown}"
    );
    assert!(shown.contains(&long), "the whole event: {shown}");
    let shown = redis.json("dead show --json 1700-1");
    assert_eq!(
        (&shown["event"], &shown["object"]),
        (&Value::from(1), &Value::from("work:2"))
    );

    assert_eq!(redis.prints("dead retry 1700-0"), "1700-0  retried\n");
    assert_eq!(console.queue("work:1").await, [long]);
    let drop = "dead drop 1700-1 --reason 'never mind' --actor bob";
    assert_eq!(redis.prints(drop), "1700-1  dropped\n");
    let again = redis.run(drop);
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&again.stdout), "1700-1  absent\n");
    let all = "dead retry --all --object work:2 --reason again";
    assert_eq!(redis.prints(all), "2 retried\n");

    for bad in [
        "show 1700-9",
        "show x",
        "retry",
        "retry 1700-0 --all",
        "retry 1700-0 --object work:1",
        "drop 1700-0",
        "list --after yesterday",
    ] {
        assert_eq!(redis.exits(&format!("dead {bad}")), Some(2), "{bad}");
    }
    let printed = redis.prints("actions");
    assert!(
        printed.contains("drop  work:2  id 12  dead letter 1700-1\n  by     bob, "),
        "{printed}"
    );
    assert!(
        printed.contains("  why    never mind\n  error  no\\nway\n  event  1\n"),
        "{printed}"
    );
    let kept = redis.json_lines("actions --json");
    let words: Vec<_> = kept.iter().map(|action| &action["action"]).collect();
    assert_eq!(words, ["retry", "drop", "retry"]);
    // Story: the record of a drop once had its event as a string here, although `dead list --json`
    // shows events as JSON.
    assert_eq!(
        (&kept[0]["event"], &kept[1]["event"]),
        (&Value::Null, &Value::from(1))
    );
    assert!(
        kept[2]["who"].as_str().expect("a name").contains('@'),
        "the user and the host: {}",
        kept[2]
    );
    let many = &kept[0]["many"];
    assert_eq!(
        (&kept[0]["object"], &many["count"], &many["first"]),
        (&"work:2".into(), &2.into(), &"1700-2".into())
    );
    assert!(
        kept[1].get("many").is_none() && printed.contains("  did    2: 1700-2 to 1700-3\n"),
        "{printed}"
    );
    let printed = redis.prints("actions --limit 1");
    let rows = printed.lines().filter(|line| !line.starts_with(' '));
    assert_eq!(rows.count(), 1);
}
