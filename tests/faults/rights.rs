//! A Redis user loses a right while a worker runs. `connect` finds a missing right only when the
//! worker starts.

use std::collections::BTreeMap;

use redis::Value;
use seriatim::wire::{self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, ScriptError, Suspects, Tag};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

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
/// other slots as free.
async fn call(state: &mut State, reports: &BTreeMap<usize, Report>) -> Result<Vec<wire::BatchReply>, ScriptError> {
    let mut call = Advance::new(&state.keys, "w", "token-of-w", BOUNDS, ClaimFirst::Held);
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

/// Story: a slot took the first event of an object, and Redis refused the command for further
/// events. The call failed and did not record the id of the first event, so two events got the same
/// id. If Redis refused only the last command, the further events were lost.
#[tokio::test]
async fn a_batch_that_cannot_be_filled_loses_no_event_and_shares_no_id() {
    for (command, slot_goes_on) in [("rpop", true), ("lpush", true), ("rpop", false), ("lpush", false)] {
        let redis = Redis::own(&[]);
        let console = redis.console().await;
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        state.register("w", 2).await;
        state.lease("w").await;
        let mut reports = BTreeMap::new();
        if slot_goes_on {
            state.own("w.0", "a", 1, &["0"]).await;
            let (tag, then) = (Tag { first: 1, ..Tag::default() }, BatchResult::Done);
            reports.insert(0, Report { object: "a".into(), tag, count: 1, last: Some(1), then });
        } else {
            // A pop has moved the marker.
            state.run("LPUSH", &[&keys.worker_object("w.0"), "a"]).await;
        }
        state.run("LPUSH", &[&keys.worker_object("w.1"), "b"]).await;
        for object in ["a", "b"] {
            state.run("LPUSH", &[&keys.events(object), "1", "2", "3", "4"]).await;
        }

        allow(&console, &format!("-{command}")).await;
        let failed = call(&mut state, &reports).await.expect_err("it is refused");
        assert!(matches!(failed, ScriptError::Redis(_)), "{failed}");
        allow(&console, "+@all").await;

        let (mut ids, mut events) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
        loop {
            let batches = call(&mut state, &reports).await.expect("an answer");
            reports.clear();
            for batch in batches {
                let (count, first) = (batch.events.len(), batch.tag.first);
                ids.extend(first..first + count as u64);
                let object = String::from_utf8_lossy(&batch.object).into_owned();
                events
                    .entry(object)
                    .or_default()
                    .extend(batch.events.iter().map(|event| String::from_utf8_lossy(event).into_owned()));
                let last = Some(first + count as u64 - 1);
                reports.insert(batch.slot, Report { object: batch.object, tag: batch.tag, count, last, then: BatchResult::Done });
            }
            if reports.is_empty() {
                break;
            }
        }
        for object in ["a", "b"] {
            assert_eq!(events[object], ["1", "2", "3", "4"], "-{command}, a slot goes on: {slot_goes_on}");
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 8, "-{command}, a slot goes on: {slot_goes_on}: {ids:?}");
        console.check().await;
    }
}
