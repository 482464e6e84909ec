//! The exact findings of `check` for a state that is broken in one place, and states without
//! findings.

mod vanished;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;

use super::state::State;
use super::support::Redis;
use crate::support::{control, jobs};

/// Returns the findings, without the namespace.
pub(super) async fn told(state: &mut State) -> Vec<String> {
    let keys = state.keys.clone();
    let report = control(&state.conn, &keys).check().await.expect("a report");
    let text = |what: &str| what.replace(keys.prefix(), "");
    report
        .violations
        .iter()
        .map(|found| {
            format!(
                "{} {}: {}",
                found.invariant,
                found.subject,
                text(&found.what)
            )
        })
        .collect()
}

/// Makes a clean state, then runs these commands, with `@` for the namespace and `~` for a blank.
pub(super) async fn broken_by(state: &mut State, commands: &str) {
    state.run("FLUSHDB", &[]).await;
    state.clean().await;
    for command in commands.split("; ") {
        let words: Vec<String> = command
            .split(' ')
            .map(|word| word.replace('@', state.keys.prefix()).replace('~', " "))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        state.run(words[0], &words[1..]).await;
    }
}

pub(super) async fn each(cases: &[(&str, &str)]) {
    // The test flushes its server, so this server is shared with no other test.
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (commands, expected) in cases {
        broken_by(&mut state, commands).await;
        assert_eq!(told(&mut state).await, [*expected], "{commands}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_object_is_told() {
    each(&[
        (
            "LPUSH @x:events {} {}",
            "I1 object x: has 2 events queued, but no marker, no worker that has it, and is not held",
        ),
        (
            "LPUSH @x:events {}; SET @x:last.event.id 5",
            "I1 object x: has 1 events queued behind id 5, but no marker, no worker that has it, and is not held",
        ),
        (
            "SET @x:event.worker a.1; LPUSH @event.worker:a.1:object x",
            "I10 object x: its owner is a.1, which has no event of it, and none is queued",
        ),
        ("SET @x:event.worker a.1", "I2 object x: its owner is a.1, but event.worker:a.1:object lacks it"),
        (
            "SET @x:event.worker b.0",
            "I2 object x: its owner b.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object",
        ),
        (
            "SET @x:event.worker a.3",
            "I2 object x: its owner a.3 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object",
        ),
        (
            "SET @x:event.worker held",
            "I2 object x: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back",
        ),
        (
            "SET @x:event.worker held; ZADD @objects.held 1 x; ZADD @objects.paused 0 x",
            "I2 object x: is held, but is in both objects.held and objects.paused",
        ),
        ("ZADD @objects.held 1 x", "I2 object x: is in objects.held, but its owner is nobody"),
        ("ZADD @objects.paused 0 work:2", "I2 object work:2: is in objects.paused, but its owner is a.0"),
        (
            "SET @x:event.worker held; ZADD @objects.paused 0 x",
            "I2 object x: is in objects.paused, but no rule is over it: nothing will wake it",
        ),
        ("SET @x:last.event.id 1e3", "layout object x: x:last.event.id is not an id"),
        ("SET @x:last.event.id 17", "I5 object x: :last.event.id is 17, but next.event.id is 16: ids would be given twice"),
        (
            "HSET @bare:event.handled a b",
            "layout object bare: :event.handled tells what handlers have finished, but no event of the object is in hand",
        ),
        (
            "LPUSH @work:2:event.errors x",
            "layout object work:2: :event.errors tells how an event has failed, but the object has none in hand that has",
        ),
        ("DEL @work:1:events; SET @work:1:events 1", "layout object work:1: work:1:events is a string, it should be a list"),
    ])
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_a_held_batch_is_told() {
    each(&[
        (
            "LPUSH @work:2:events.held {}; SET @work:2:events.held.id 16~0~0~0~stop",
            "I4 object work:2: has 1 events in a held batch, but its owner is a.0",
        ),
        (
            "LPUSH @x:events.held {}; SET @x:events.held.id 16~0~0~0~stop",
            "I4 object x: has 1 events in a held batch, but its owner is nobody",
        ),
        (
            "SET @work:7:events.held.id 12~0~0~0~stop",
            "I4 object work:7: :events.held.id names a held batch that begins with id 12, but there is none",
        ),
        (
            "DEL @work:6:events.held.id",
            "I4 object work:6: has 1 events in a held batch, but :events.held.id names no id for them",
        ),
        (
            "SET @work:6:events.held.id 0~0~0~0~stop",
            "I4 object work:6: has 1 events in a held batch, but :events.held.id names no id for them",
        ),
        ("SET @work:6:events.held.id 16~stop", "layout object work:6: work:6:events.held.id is not four numbers and a reason"),
        (
            "SET @work:5:last.event.id 15",
            "I5 object work:5: its held batch begins with id 15, but id 15 of the object is delivered already",
        ),
        (
            "LPUSH @work:6:events.held {}",
            "I5 object work:6: its held batch has ids up to 17, but next.event.id is 16: ids would be given twice",
        ),
    ])
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_a_worker_is_told() {
    const NO_TAG: &str =
        "layout worker a.0: event.worker:a.0:event.id is not an id and up to three counts";
    each(&[
        (
            "LPUSH @event.worker:a.1:event {} {}; SET @event.worker:a.1:event.id 3",
            "I3 worker a.1: has a batch of 2 events, but owns no object in event.worker:a.1:object",
        ),
        (
            "SET @x:event.worker a.0; LPUSH @event.worker:a.0:object x",
            "I3 worker a.0: owns 2 objects at once, x and work:2 among them",
        ),
        (
            "SET @event.worker:a.1:event.id 12~1",
            "I4 worker a.1: :event.id names a batch that begins with id 12, but there is none",
        ),
        // Without a batch there are no ids that the counter could be behind.
        (
            "SET @event.worker:a.1:event.id 19~1",
            "I4 worker a.1: :event.id names a batch that begins with id 19, but there is none",
        ),
        ("DEL @event.worker:a.0:event.id", "I4 worker a.0: has a batch of 2 events, but no :event.id that names its id"),
        (
            "SET @work:2:last.event.id 12",
            "I5 worker a.0: its batch begins with id 12, but id 12 of the object is delivered already",
        ),
        (
            "LPUSH @event.worker:a.0:event {} {} {}; SET @event.worker:a.0:event.id 13",
            "I5 worker a.0: its batch has ids up to 17, but next.event.id is 16: ids would be given twice",
        ),
        (
            "RPUSH @event.worker:a.1:lost 12 {} {}",
            "I3 worker a.1: event.worker:a.1:lost has 2 events of an object that is not known, because a key was lost; perhaps that whose owner is a.1",
        ),
        ("SET @event.worker:a.0:event.id twelve", NO_TAG),
        ("SET @event.worker:a.0:event.id 12~1~1~1~1", NO_TAG),
        ("SET @event.worker:a.0:event.id 0~1", NO_TAG),
    ])
    .await;
}

#[tokio::test]
async fn a_schedule_has_an_event_and_a_due_time() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    let (hash, set) = (
        state.keys.events_scheduled_of("x"),
        state.keys.events_scheduled(),
    );
    state.run("HSET", &[&hash, "whole", "{}"]).await;
    state.run("ZADD", &[&set, "1", "x\nwhole"]).await;
    assert_eq!(told(&mut state).await, Vec::<String>::new());
    state.run("HSET", &[&hash, "timeless", "{}"]).await;
    let never = "I8 schedule x\\ntimeless: has an event, but no due time in events.scheduled: it will never be queued; schedule or cancel it";
    assert_eq!(told(&mut state).await, [never]);
    state.run("HDEL", &[&hash, "timeless"]).await;
    state.run("HSET", &[&hash, "never", "{}"]).await;
    state.run("ZADD", &[&set, "inf", "x\nnever"]).await;
    let never =
        "I8 schedule x\\nnever: is due at inf, a time that never comes; schedule or cancel it";
    assert_eq!(told(&mut state).await, [never]);
    // Scores at the edges of the times at which an event can be due or have been queued.
    state.emit("x", "{}").await;
    for (score, is_found) in [
        ("-9007199254740992", true),
        ("-9007199254740991", false),
        ("9007199254740991", false),
        ("9007199254740992", true),
    ] {
        state.run("ZADD", &[&set, score, "x\nnever"]).await;
        let never = format!(
            "I8 schedule x\\nnever: is due at {score}, a time that never comes; schedule or cancel it"
        );
        assert_eq!(told(&mut state).await, is_found.then_some(never).as_slice());
    }
    state.run("HDEL", &[&hash, "never"]).await;
    state.run("ZREM", &[&set, "x\nnever"]).await;
    state
        .run("ZADD", &[&set, "1", "x\nempty", "2", "odd"])
        .await;
    let mut found = told(&mut state).await;
    found.sort();
    let empty = "I8 schedule x\\nempty: is due, but x:events.scheduled has no event for it: workers will remove it";
    assert_eq!(
        found,
        [
            "I8 schedule odd: events.scheduled has an entry that is not an object and a key",
            empty
        ]
    );
}

#[tokio::test]
async fn a_cron_job_that_is_not_paused_has_a_next_tick() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    let (jobs, ticks) = (state.keys.events_cron(), state.keys.events_cron_next());
    state
        .run(
            "HSET",
            &[
                &jobs,
                "good",
                &jobs::value("1 0", "x:1", "1"),
                "paused",
                &jobs::value("1 1", "x:1", "1"),
            ],
        )
        .await;
    state.run("ZADD", &[&ticks, "inf", "good"]).await;
    assert_eq!(told(&mut state).await, Vec::<String>::new());
    state.run("ZREM", &[&ticks, "good"]).await;
    state
        .run("ZADD", &[&ticks, "7", "paused", "8", "gone"])
        .await;
    state.run("HSET", &[&jobs, "odd", "odd"]).await;
    let mut found = told(&mut state).await;
    found.sort();
    let expected = [
        "I9 cron job gone: has a next tick, but events.cron has no such job: workers will remove it",
        "I9 cron job good: has no next tick in events.cron.next: it will never fire; pause it and resume it",
        "I9 cron job paused: is paused, but has a next tick: workers will remove that",
        "layout cron job odd: events.cron has a value that is no cron job: set or remove it",
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn what_is_wrong_with_a_name_or_a_rule_is_told() {
    const NO_SHARE: &str = "layout shared key: event.shares has a field a:* that is no share: delete that field, and set the share again";
    const NO_VALUE: &str = "layout name b: its value in event.workers is not slots, token and time";
    each(&[
        (
            "SET @event.worker:a:lease another~h~1~1",
            "I6 name a: its lease is held by token another, but the last to attach was token-of-a",
        ),
        ("HSET @event.workers b many~token~0", NO_VALUE),
        ("HSET @event.workers b 0~token~0", NO_VALUE),
        ("HSET @event.workers b 65537~token~0", NO_VALUE),
        ("HSET @event.workers b 1~token", NO_VALUE),
        (
            "HSET @seriatim.meta names.indexed 1; ZADD @event.workers.watched 1 a",
            "layout name gone: it is in neither event.workers.watched nor event.workers.departed: nobody looks at it",
        ),
        (
            "HSET @seriatim.meta names.indexed 1; ZADD @event.workers.watched 1 a 1 gone; ZADD @event.workers.departed 1 gone",
            "layout name gone: it is in event.workers.watched and in event.workers.departed",
        ),
        ("HSET @event.rules pause~* 1~0~0~3~ada", "layout shared key: event.rules has a field pause * that is no rule"),
        ("HSET @event.rules other~* 1~0~0~3~0~ada", "layout shared key: event.rules has a field other * that is no rule"),
        ("ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 0~-~-~-~-~1700~3~ada; SET @event.shares.summary 1~1~1700", NO_SHARE),
        ("ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 101~-~-~-~-~1700~3~ada; SET @event.shares.summary 1~1~1700", NO_SHARE),
        ("ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 5~urgent~-~-~-~1700~3~ada; SET @event.shares.summary 1~1~1700", NO_SHARE),
        ("ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 5~high~-~-~-~1700~4~ada; SET @event.shares.summary 1~1~1700", NO_SHARE),
        ("ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 5~high~-~-~1700~3~ada", NO_SHARE),
        (
            "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:b:c:d:e:f:g:h:i:* 5~-~-~-~-~1700~3~ada",
            "layout shared key: event.shares has a field a:b:c:d:e:f:g:h:i:* that is no share: delete that field, and set the share again",
        ),
        (
            "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares :* 5~-~-~-~-~1700~3~ada",
            "layout shared key: event.shares has a field :* that is no share: delete that field, and set the share again",
        ),
        (
            "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:b:* 5~-~-~-~-~1700~3~ada; SET @event.shares.summary 1~1~1700",
            "layout shared key: event.shares.summary is 1 1 1700, it should begin with 1 2: set any share",
        ),
        (
            "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares * -~-~5~-~-~1700~3~ada; SET @event.shares.summary 1~0~1700",
            "layout shared key: event.shares.summary is 1 0 1700, it should begin with 2 0: set any share",
        ),
        (
            "ZADD @objects.in.hand 0 work:5:",
            "layout object work:5: is in objects.in.hand, but no slot owns it, so limits count it for ever: `seriatim repair` removes it",
        ),
        (
            "ZADD @objects.in.hand 0 work:4:; HSET @event.shares a:* 5~-~-~-~-~1700~3~ada; SET @event.shares.summary 1~1~1700",
            "layout object work:2: is in hand, but is not in objects.in.hand, by which limits count: set any share again",
        ),
        (
            "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:* 5~-~-~-~-~1700~3~ada",
            "layout shared key: event.shares.summary is absent, it should begin with 1 1: set any share",
        ),
        ("SET @event.shares.summary 1~1~7", "layout shared key: event.shares.summary is 1 1 7, it should begin with 0 0: set any share"),
        (
            "HSET @event.rules pause~* 1~5~0~3~0~ada",
            "layout shared key: event.rules says that rules are to be looked at next at never, it should be 5",
        ),
        (
            "HDEL @event.rules next",
            "layout shared key: event.rules says that rules are to be looked at next at no time, it should be never",
        ),
        (
            "SET @event.shares x; SET @event.shares.summary 1~1~1700",
            "layout shared key: event.shares is a string, it should be a hash",
        ),
        (
            "ZADD @event.marks 1 wrong",
            "layout shared key: event.marks has a member wrong that is no mark: remove that member",
        ),
    ])
    .await;
}

/// The check of the shared keys alone also compares the numbers of names, and looks at the objects
/// that count as in hand.
/// Each wrong member alone makes a limit invalid, also for Rust.
#[tokio::test]
async fn a_limit_with_a_wrong_member_is_told() {
    const NO_LIMIT: &str =
        "layout shared key: event.limits has a field * that is no limit: set or remove that limit";
    const LIMIT: &str =
        r#"{"queued_max":0,"markers_max":0,"set_ms":1700,"actor":"ada","reason":""}"#;
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let control = control(&state.conn, &state.keys);
    for (right, wrong) in [
        ("", ""),
        (LIMIT, "5"),
        (LIMIT, "[]"),
        (LIMIT, "odd"),
        (r#""queued_max":0"#, r#""queued_max":"0""#),
        (r#""queued_max":0"#, r#""queued_max":-1"#),
        (r#""markers_max":0"#, r#""markers_max":0.5"#),
        (r#""set_ms":1700,"#, ""),
        (r#""ada""#, "7"),
        (r#""reason":"""#, r#""reason":null"#),
    ] {
        let value = LIMIT.replace(right, wrong);
        broken_by(&mut state, &format!("HSET @event.limits * {value}")).await;
        let expected: &[&str] = if right.is_empty() { &[] } else { &[NO_LIMIT] };
        assert_eq!(told(&mut state).await, expected, "{value}");
        assert_eq!(
            control.limits().await.expect("read").len(),
            usize::from(right.is_empty()),
            "{value}"
        );
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_lengths_of_shared_keys_is_told() {
    const NO_SLOT: &str = "but no slot owns this object: `seriatim repair` removes it";
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for (commands, expected) in [
        ("ZADD @objects.in.hand 0 work:2:", None),
        (
            "ZADD @objects.in.hand 0 work:5:",
            Some(format!("objects.in.hand has a member work:5:, {NO_SLOT}")),
        ),
        (
            "ZADD @objects.in.hand 0 x:",
            Some(format!("objects.in.hand has a member x:, {NO_SLOT}")),
        ),
        (
            "HSET @seriatim.meta names.indexed 1; ZADD @event.workers.watched 1 a; ZADD @event.workers.departed 1 gone",
            None,
        ),
        (
            "DEL @event.rules",
            Some("objects.paused has 1 objects, but there is no rule".to_owned()),
        ),
        (
            "HSET @seriatim.meta names.indexed 1; ZADD @event.workers.watched 1 a",
            Some("event.workers has 2 names, but sweeps look at 1".to_owned()),
        ),
    ] {
        broken_by(&mut state, commands).await;
        let found = control(&state.conn, &keys)
            .check_shared()
            .await
            .expect("a reply");
        let found: Vec<_> = found.into_iter().map(|one| one.what).collect();
        assert_eq!(
            found,
            expected.into_iter().collect::<Vec<_>>(),
            "{commands}"
        );
    }
}

/// Neither an invalid owner, nor a worker whose list lacks the object, covers queued events.
#[tokio::test]
async fn what_nobody_has_is_told_with_what_is_queued() {
    const QUEUED: &str =
        "I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held";
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (owner, found) in [
        (
            "held",
            "is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back",
        ),
        (
            "b.0",
            "its owner b.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object",
        ),
        (
            "a.1",
            "its owner is a.1, but event.worker:a.1:object lacks it",
        ),
    ] {
        broken_by(
            &mut state,
            &format!("LPUSH @x:events {{}}; SET @x:event.worker {owner}"),
        )
        .await;
        assert_eq!(
            told(&mut state).await,
            [format!("I2 object x: {found}"), QUEUED.to_owned()],
            "{owner}"
        );
    }
}

/// Values at the very edge of validity give no finding.
#[tokio::test]
async fn what_is_just_right_is_not_told() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for commands in [
        "SET @x:last.event.id 16",
        "SET @x:last.event.id 9007199254740991; SET @next.event.id 9007199254740991",
        "LPUSH @event.worker:a.0:event {} {} {}",
        "SET @event.worker:a.0:event.id 12~0~0~0",
        "LPUSH @event.worker:a.0:object work:2",
        "SET @work:5:last.event.id 14",
        "HSET @work:2:event.handled a b",
        "LPUSH @work:2:event.errors x; SET @event.worker:a.0:event.id 12~0~1",
        "LPUSH @work:5:event.errors x",
        "HSET @event.workers b 65536~token~0",
        r#"HSET @event.limits * {"queued_max":1,"markers_max":null,"set_ms":1700,"actor":"ada","reason":""} a:* {"queued_max":2,"set_ms":1700,"actor":"ada","reason":"x"}"#,
        "ZADD @objects.in.hand 0 work:2: 0 work:4:; HSET @event.shares a:b:* 1~low~-~-~-~1700~3~ada a:* 100~-~3~2.5~1~1700~0~ * -~-~7~-~-~1700~0~; SET @event.shares.summary 2~2~1700",
        "HSET @seriatim.meta names.indexed 1 names.cursor 7",
        // Without the times, a mark may be in the list.
        "ZADD @event.marks 5 5; ZADD @event.groups 3 g; LPUSH @event.group:g:waiting x y; SET @event.groups.waiting 1",
        "ZADD @event.marks 5 5; ZADD @event.groups 3 g; LPUSH @event.group:g:waiting x y; SET @event.groups.waiting 2",
        "HSET @event.groups.times g 1~1~1; ZADD @event.groups 3 g; LPUSH @event.group:g:waiting x y; SET @event.groups.waiting 1",
        "SET @x:event.worker held; ZADD @objects.paused 0 x; HSET @event.rules block~x 1~0~0~3~0~ada",
    ] {
        broken_by(&mut state, commands).await;
        assert_eq!(told(&mut state).await, [""; 0], "{commands}");
    }
}

/// The check reads the first 1,000 names in the list of a slot. It also searches the last 1,000
/// names for an object that the slot owns.
#[tokio::test]
async fn an_object_behind_many_names_in_a_list_is_found() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let list = state.keys.worker_object("a.1");
    let without =
        "I3 worker a.1: has a batch of 1 events, but owns no object in event.worker:a.1:object";
    for (before, batch, expected) in [
        (999, true, &[] as &[&str]),
        (1000, true, &[without]),
        (1500, false, &[]),
    ] {
        broken_by(&mut state, "SET @x:event.worker a.1; LPUSH @x:events {}").await;
        let names: Vec<String> = (0..before).map(|n| format!("stray:{n}")).collect();
        let names: Vec<&str> = [list.as_str()]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .chain(["x"])
            .collect();
        state.run("RPUSH", &names).await;
        if batch {
            state.batch("a.1", 16, &["{}"]).await;
        }
        assert_eq!(told(&mut state).await, expected, "behind {before} names");
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_lists_of_groups_is_told() {
    const QUEUED: &str =
        "I1 object g:1: has 1 events queued, but no marker, no worker that has it, and is not held";
    const STRANDED: &str = "layout group g: has 1 names that are grouped, but is not in event.groups: no worker takes these names; \
                            add the group to event.groups with score 0";
    each(&[
        (
            "LPUSH @event.group:g:waiting x; ZADD @event.groups 3 g",
            "layout shared key: event.groups.waiting is 0, but the lists of all groups have 1 names: set it to 1",
        ),
        (
            "SET @event.groups.waiting 2; LPUSH @event.group:g:waiting x; ZADD @event.groups 3 g 3 empty",
            "layout shared key: event.groups.waiting is 2, but the lists of all groups have 1 names: set it to 1",
        ),
        (
            "SET @event.groups.waiting many",
            "layout shared key: event.groups.waiting is many, but the lists of all groups have 0 names: set it to 0",
        ),
        ("LPUSH @event.group:g:waiting x", STRANDED),
        (
            "SET @event.group:g:waiting x; ZADD @event.groups 3 g",
            "layout group g: event.group:g:waiting is a string, it should be a list",
        ),
        (
            "HSET @event.groups.times g 1~1~0; ZADD @event.marks 5 5; LPUSH @event.group:g:waiting x; ZADD @event.groups 3 g",
            "layout shared key: event.groups.waiting is 0, but the lists of all groups have 1 names: set it to 1",
        ),
        (
            "SET @event.groups x; SET @event.groups.waiting 2",
            "layout shared key: event.groups is a string, it should be a zset",
        ),
        ("SET @event.groups x", "layout shared key: event.groups is a string, it should be a zset"),
        ("LPUSH @event.groups.waiting x", "layout shared key: event.groups.waiting is a list, it should be a string"),
    ])
    .await;
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    broken_by(
        &mut state,
        "LPUSH @g:1:events {}; LPUSH @event.group:g:waiting g:1",
    )
    .await;
    assert_eq!(
        told(&mut state).await,
        [STRANDED, QUEUED],
        "a list that is not in event.groups covers nothing"
    );
    let many: Vec<String> = (0..2050)
        .flat_map(|n| ["0".to_owned(), format!("g{n}")])
        .collect();
    broken_by(&mut state, "PING").await;
    let groups = state.keys.event_groups();
    let many: Vec<&str> = [groups.as_str()]
        .into_iter()
        .chain(many.iter().map(String::as_str))
        .collect();
    state.run("ZADD", &many[..many.len() - 2]).await;
    assert_eq!(told(&mut state).await, [""; 0], "2,049 groups");
    state.run("ZADD", &many).await;
    assert_eq!(
        told(&mut state).await,
        ["layout shared key: event.groups has more than 2049 groups"]
    );
}

/// An object is covered by the list of each group to which it can belong, in the walk and in the
/// search. The search finds an object that the walk did not see, because a name moved meanwhile.
#[tokio::test]
async fn a_name_that_is_grouped_covers_its_object() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for group in [
        "a",
        "a:b",
        "a:b:c:d:e:f:g:h",
        "a:b:c:d:e:f:g:h:i:j",
        "\0rest",
    ] {
        broken_by(
            &mut state,
            "SET @event.groups.waiting 3; LPUSH @a:b:c:d:e:f:g:h:i:j:events {}",
        )
        .await;
        state.run("ZADD", &[&keys.event_groups(), "1", group]).await;
        state
            .run(
                "LPUSH",
                &[&keys.group_waiting(group), "x", "a:b:c:d:e:f:g:h:i:j", "y"],
            )
            .await;
        // The name of the object is the member of a held object with a negative score, too.
        state
            .run("ZADD", &[&keys.objects_held(), "XX", "-5", "work:5"])
            .await;
        let report = control(&state.conn, &keys).check().await.expect("a report");
        assert!(report.is_clean(), "{group}: {report:#?}");
        assert_eq!(
            (
                report.looked_at.groups,
                report.looked_at.grouped,
                report.looked_at.suspicions
            ),
            (1, 3, 0),
            "{group}"
        );
        // The walk does not see the list. Then the search sees it, or only the script does.
        for blind in [1, usize::MAX] {
            let conn = Blind {
                conn: state.conn.clone(),
                blind,
            };
            let report = Control::new(conn)
                .with_keys(keys.clone())
                .check()
                .await
                .expect("a report");
            assert!(report.is_clean(), "{group}: {report:#?}");
            assert_eq!(
                (report.looked_at.groups, report.looked_at.suspicions),
                (0, 1),
                "{group}"
            );
        }
    }
}

/// A connection that returns no groups, the first `blind` times.
#[derive(Clone)]
struct Blind {
    conn: MultiplexedConnection,
    blind: usize,
}

impl ConnectionLike for Blind {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let words = cmd.args_iter().filter_map(|arg| {
            if let redis::Arg::Simple(word) = arg {
                Some(word)
            } else {
                None
            }
        });
        let words: Vec<&[u8]> = words.take(2).collect();
        if self.blind > 0 && words[0] == b"ZRANGE" && words[1].ends_with(b"event.groups") {
            self.blind -= 1;
            return Box::pin(async { Ok(Value::Array(Vec::new())) });
        }
        self.conn.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.conn.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.conn.get_db()
    }
}
