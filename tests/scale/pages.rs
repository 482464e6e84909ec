//! The cost of the lists that a page about the system shows: each reads a bounded amount, whatever
//! Redis has.

use std::future::Future;

use seriatim::control::held::{HeldFilter, PER_CALL_MAX, WaitsFor};
use seriatim::control::{Control, ControlError, Cursor};

use super::cost::Least;
use super::looks::fill_all;
use crate::support::console::Console;
use crate::support::{Redis, control};

/// Fills the event log with rows of usual size, the actions with records of large drops, and the
/// numbers of some held objects.
const FILL: &str = "
    for n = 1, 20000 do
        redis.call('XADD', KEYS[1], '*', 'status', 'completed', 'id', n, 'prev', n - 1, 'object', n % 4 == 0 and 'busy' or 'work:' .. n,
            'event', string.rep('x', 200), 'error', '', 'attempts', '0', 'taken', '1767225600000')
    end
    for n = 1, 1000 do
        redis.call('XADD', KEYS[2], '*', 'action', 'drop', 'who', 'ada@host', 'why', 'no', 'object', 'work:' .. n, 'id', n,
            'dead_id', '1-0', 'error', 'no', 'event', string.rep('x', 8192), 'event_bytes', '10000')
    end
    for n = 0, 3000 do
        redis.call('SET', ARGV[1] .. 'held:' .. n .. ':events.held.id', '1 0 1 0 retry: connection refused')
        redis.call('RPUSH', ARGV[1] .. 'held:' .. n .. ':events.held', 'x')
        redis.call('SET', ARGV[1] .. 'held:' .. n .. ':event.worker', 'held')
    end";

/// The most time of Redis for a list, µs.
const LIST_US: u64 = 2000;

/// Returns the time in µs that scripts have taken.
async fn in_scripts(console: &Console) -> u64 {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
        .expect("a script was called");
    line.split_once("usec=")
        .and_then(|(_, rest)| rest.split(',').next()?.parse().ok())
        .expect("a number")
}

/// Measures the time of Redis for an operation ten times. The least one counts, because other processes
/// may slow down a single call.
async fn cost<T, F>(console: &Console, what: &str, mut ask: impl FnMut() -> F) -> Least
where
    F: Future<Output = Result<T, ControlError>>,
{
    // The first call loads the script.
    ask().await.expect(what);
    let mut least = Least::within(LIST_US);
    for _ in 0..10 {
        let before = in_scripts(console).await;
        ask().await.expect(what);
        let us = in_scripts(console).await - before;
        least.add(console, us).await;
    }
    println!("{what}: {} µs", least.us);
    least
}

/// Tests that each list takes at most 2 ms of Redis' time, and so no command 5 ms. The objects that
/// are looked for are among the last ones, or absent.
#[tokio::test]
async fn each_list_of_a_page_is_cheap() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let keys = redis.keys();
    fill_all(&console).await;
    let (log, actions) = (keys.event_log(), keys.operator_actions());
    let prefix = keys
        .event_log()
        .strip_suffix("event.log")
        .expect("a prefix")
        .to_owned();
    let _: Option<String> = console
        .run(&["EVAL", FILL, "2", &log, &actions, &prefix])
        .await;
    let control: Control = control(&redis.connect().await, keys).with_event_bytes_max(4096);
    let (by_prefix, by_reason) = (
        HeldFilter {
            prefix: b"none",
            ..HeldFilter::default()
        },
        HeldFilter {
            waits_for: Some(WaitsFor::Stop),
            ..HeldFilter::default()
        },
    );
    let due = HeldFilter {
        due: true,
        ..HeldFilter::default()
    };
    let middle = Cursor::from("due 150000 held:150000");
    let control = &control;
    let costs = [
        cost(&console, "log", || control.newest_log(None, 50)).await,
        cost(&console, "dead letters", || {
            control.newest_dead_letters(None, 32)
        })
        .await,
        cost(&console, "dead letters of an object", || {
            control.dead_letters_of("work:0", true, None, 32)
        })
        .await,
        cost(&console, "chain, none found", || {
            control.chain("none", None, 50)
        })
        .await,
        cost(&console, "chain, a full page", || {
            control.chain("busy", None, 50)
        })
        .await,
        cost(&console, "actions of an object", || {
            control.actions_of("none", None, 32)
        })
        .await,
        cost(&console, "held", || control.held(false, None, PER_CALL_MAX)).await,
        cost(&console, "held by prefix, none found", || {
            control.held_where(&by_prefix, Some(&middle), 50)
        })
        .await,
        cost(&console, "held by prefix and reason, none found", || {
            control.held_where(&by_reason, None, 50)
        })
        .await,
        cost(&console, "held, due", || {
            control.held_where(&due, Some(&middle), 50)
        })
        .await,
        cost(&console, "paused by prefix", || {
            control.paused_where("paused:29", None, 50)
        })
        .await,
    ];
    assert!(costs.iter().all(|cost| cost.is_within), "{costs:?}");
}
