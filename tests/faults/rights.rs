//! A Redis user loses a right while a worker runs. `connect` finds a missing right only when the
//! worker starts.

use std::collections::BTreeMap;

use redis::Value;
use seriatim::control::check::Invariant;
use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, ScriptError, Suspects, Tag,
};

use crate::state::State;
use crate::support::console::Console;
use crate::support::process::Process;
use crate::support::{Redis, control};

const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 2,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

/// Makes one call for both slots. It reports the result of each slot that has one, and names the
/// other slots as free. `group_depth`: parts of a name that are its group.
async fn call(
    state: &mut State,
    reports: &BTreeMap<usize, Report>,
    group_depth: usize,
) -> Result<Vec<wire::BatchReply>, ScriptError> {
    let mut call = Advance::new(
        &state.keys,
        "w",
        "token-of-w",
        Bounds {
            group_depth,
            ..BOUNDS
        },
        ClaimFirst::Held,
    );
    for slot in 0..2 {
        match reports.get(&slot) {
            Some(report) => call.report(slot, report),
            None => call.free(slot),
        }
    }
    match wire::advance(&mut state.conn, &call).await? {
        Advanced::Ok { batches, .. } => Ok(batches),
        other => panic!("{other:?}"),
    }
}

/// Sets a rule for the default user, such as `-rpop` to deny a command.
async fn allow(console: &Console, rule: &str) {
    let _: Value = console.run(&["ACL", "SETUSER", "default", rule]).await;
}

/// Story: a running worker ended with exit code 4 at once when its user lost a right, although it
/// waits for a password that was changed. So a mistake in a list of rights stopped all workers.
#[tokio::test]
async fn a_right_that_comes_back_is_waited_for() {
    for right in ["exists", "zadd", "@read"] {
        let (redis, console) = Redis::own(&[]).with_console().await;
        let mut worker = Process::start(&redis, "w", "null", &[]);
        console.emit("work:1", "1").await;
        console.until_at_rest_after(1).await;
        allow(&console, &format!("-{right}")).await;
        // Every new connection examines the rights.
        let _: u64 = console.run(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        worker.until_logged("the Redis user may not use ").await;
        allow(&console, &format!("+{right}")).await;
        console.emit("work:1", "2").await;
        worker.until_logged("Redis answers again").await;
        console.until_at_rest_after(2).await;
        worker.terminate();
        assert!(worker.ended().await.success(), "{}", worker.log());
    }
}

/// Story: a slot took the first event of an object, and Redis refused the command for further
/// events. The call failed and did not record the id of the first event, so two events got the same
/// id. If Redis refused only the last command, the further events were lost.
#[tokio::test]
async fn a_batch_that_cannot_be_filled_loses_no_event_and_shares_no_id() {
    for (command, slot_goes_on) in [
        ("rpop", true),
        ("lpush", true),
        ("rpop", false),
        ("lpush", false),
    ] {
        let (redis, console) = Redis::own(&[]).with_console().await;
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        state.register("w", 2).await;
        state.lease("w").await;
        let mut reports = BTreeMap::new();
        if slot_goes_on {
            state.own("w.0", "a", 1, &["0"]).await;
            let (tag, then) = (
                Tag {
                    first: 1,
                    ..Tag::default()
                },
                BatchResult::Done,
            );
            reports.insert(
                0,
                Report {
                    object: "a".into(),
                    tag,
                    count: 1,
                    last: Some(1),
                    then,
                },
            );
        } else {
            // A pop has moved the marker.
            state.add("LPUSH event.worker:w.0:object a").await;
        }
        state.add("LPUSH event.worker:w.1:object b").await;
        for object in ["a", "b"] {
            state
                .run("LPUSH", &[&keys.events(object), "1", "2", "3", "4"])
                .await;
        }

        allow(&console, &format!("-{command}")).await;
        let failed = call(&mut state, &reports, 0)
            .await
            .expect_err("it is refused");
        assert!(matches!(failed, ScriptError::Redis(_)), "{failed}");
        allow(&console, "+@all").await;

        let (mut ids, mut events) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
        loop {
            let batches = call(&mut state, &reports, 0).await.expect("an answer");
            reports.clear();
            for batch in batches {
                let (count, first) = (batch.events.len(), batch.tag.first);
                ids.extend(first..first + count as u64);
                let object = String::from_utf8_lossy(&batch.object).into_owned();
                events.entry(object).or_default().extend(
                    batch
                        .events
                        .iter()
                        .map(|event| String::from_utf8_lossy(event).into_owned()),
                );
                let last = Some(first + count as u64 - 1);
                reports.insert(
                    batch.slot,
                    Report {
                        object: batch.object,
                        tag: batch.tag,
                        count,
                        last,
                        then: BatchResult::Done,
                    },
                );
            }
            if reports.is_empty() {
                break;
            }
        }
        for object in ["a", "b"] {
            assert_eq!(
                events[object],
                ["1", "2", "3", "4"],
                "-{command}, a slot goes on: {slot_goes_on}"
            );
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(
            ids.len(),
            8,
            "-{command}, a slot goes on: {slot_goes_on}: {ids:?}"
        );
        console.check().await;
    }
}

/// Takes the batches of a reply: counts their events, and reports them in the next call.
fn deliver(
    batches: Vec<wire::BatchReply>,
    reports: &mut BTreeMap<usize, Report>,
    events: &mut BTreeMap<String, usize>,
) {
    reports.clear();
    for wire::BatchReply {
        slot,
        object,
        tag,
        events: sent,
        ..
    } in batches
    {
        let (count, last) = (sent.len(), Some(tag.first + sent.len() as u64 - 1));
        *events
            .entry(String::from_utf8_lossy(&object).into_owned())
            .or_default() += count;
        reports.insert(
            slot,
            Report {
                object,
                tag,
                count,
                last,
                then: BatchResult::Done,
            },
        );
    }
}

/// A call loses a right in the middle, while it claims objects, also for groups. Each object keeps a
/// marker or a name in a list, and each event comes once.
///
/// Story: a call took names from the list of a group, and Redis refused to put back those that it did
/// not use. A call without groups could not trim the markers, so claimed events had no ids.
#[tokio::test]
async fn objects_that_cannot_be_claimed_or_grouped_are_not_lost() {
    const COMMANDS: [&str; 10] = [
        "lpush", "rpush", "rpop", "ltrim", "lrange", "lmove", "zadd", "zrem", "zmscore", "exists",
    ];
    for (command, group_depth) in COMMANDS
        .into_iter()
        .flat_map(|command| [(command, 0), (command, 1)])
    {
        let (redis, console) = Redis::own(&[]).with_console().await;
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        state.register("w", 2).await;
        state.lease("w").await;
        let objects: Vec<String> = (0..16)
            .map(|n| format!("{}:{n:02}", ["a", "b", "c"][n % 3]))
            .collect();
        let (mut reports, mut events) = (BTreeMap::new(), BTreeMap::new());
        // In the second round, names are grouped already.
        for objects in objects.chunks(8) {
            for object in objects {
                console.emit(object, "1").await;
            }
            allow(&console, &format!("-{command}")).await;
            let refused = call(&mut state, &reports, group_depth).await;
            allow(&console, "+@all").await;
            if let Ok(batches) = refused {
                deliver(batches, &mut reports, &mut events);
            }
            let report = control(&state.conn, &state.keys)
                .check()
                .await
                .expect("a check");
            let uncovered: Vec<_> = report
                .violations
                .iter()
                .filter(|one| one.invariant == Invariant::I1)
                .collect();
            assert!(
                uncovered.is_empty(),
                "-{command}, depth {group_depth}: {uncovered:?}"
            );
            let batches = call(&mut state, &reports, group_depth)
                .await
                .expect("an answer");
            deliver(batches, &mut reports, &mut events);
        }
        while !reports.is_empty() {
            let batches = call(&mut state, &reports, group_depth)
                .await
                .expect("an answer");
            deliver(batches, &mut reports, &mut events);
        }
        let mut wanted: Vec<_> = objects.into_iter().map(|object| (object, 1)).collect();
        wanted.sort();
        assert_eq!(
            events.into_iter().collect::<Vec<_>>(),
            wanted,
            "-{command}, depth {group_depth}"
        );
        console.check().await;
    }
}
