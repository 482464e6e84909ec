//! `advance` as a function of a library, whose Lua values live on between calls.

use seriatim::wire::{self, Advance, BatchResult, Bounds, ClaimFirst, EventLog, Report, Tag};

use crate::scene::done;
use crate::support::Redis;
use crate::support::console::Console;
use crate::{BOUNDS, attached};

/// The bytes of the large text of each slot.
const TEXT_BYTES: usize = 64 << 10;
const SLOTS: usize = 64;

/// Returns the memory of the Lua values of all libraries, in bytes.
async fn memory(console: &Console) -> usize {
    let info: String = console.run(&["INFO", "memory"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_vm_functions:"));
    line.expect("the memory of functions")
        .parse()
        .expect("a number")
}

/// Many slots have had an event with results of handlers, or with a long error. The library keeps
/// these texts no longer than the call.
#[tokio::test]
async fn a_library_keeps_no_results_and_no_errors() {
    for with_results in [true, false] {
        let redis = Redis::own(&[]);
        let (mut state, console) = (attached(&redis).await, redis.console().await);
        let keys = state.keys.clone();
        let bounds = Bounds {
            claims: 0,
            ..BOUNDS
        };
        let mut before = None;
        for slot in 0..SLOTS {
            let (object, id) = (format!("work:{slot}"), slot as u64 + 1);
            state.own(&format!("w.{slot}"), &object, id, &["1"]).await;
            // Lua keeps equal texts only once.
            let text = format!("{slot}{}", "2".repeat(TEXT_BYTES));
            let mut report = done("", id);
            report.object = object.clone().into_bytes().into();
            let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
            call.log(EventLog::default());
            if with_results {
                let (hash, id) = (keys.event_handled(&object), id.to_string());
                let result = format!("\"a\":{text}");
                state
                    .run("HSET", &[&hash, "id", &id, "result:a", &result])
                    .await;
                call.handled(slot);
            } else {
                report = rejected(report, text);
            }
            call.report(slot, &report);
            wire::advance(&mut state.conn, &call).await.expect("a call");
            if before.is_none() {
                before = Some(memory(&console).await);
            }
        }
        // Redis collects the garbage of Lua once in 50 calls.
        for _ in 0..500 {
            let call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
            wire::advance(&mut state.conn, &call).await.expect("a call");
        }
        let kept = memory(&console)
            .await
            .saturating_sub(before.expect("a call"));
        assert!(
            kept < SLOTS * TEXT_BYTES / 4,
            "{kept} bytes are kept; with results: {with_results}"
        );
    }
}

/// Returns the report that the event of this batch is rejected with this error.
fn rejected(report: Report, error: String) -> Report {
    let Tag { first, .. } = report.tag;
    let then = BatchResult::Reject {
        next: None,
        id: first,
        error,
        attempts: 0,
    };
    Report {
        count: 0,
        last: None,
        then,
        ..report
    }
}
