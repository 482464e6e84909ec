//! The cost of looks at the whole system: of `stats`, and so of each scrape of an exporter.

use crate::cost::{Least, worked};
use crate::support::console::Console;
use crate::support::{Redis, control};

pub(crate) const MARKERS: u64 = 1_000_000;
const HELD: u64 = 200_000;
const PAUSED: u64 = 300_000;
const DEAD: u64 = 100_000;
/// The most time of Redis for a look, for one at the objects in hand, and for a command, µs.
const LOOK_US: u64 = 2000;
const IN_HAND_US: u64 = 1000;
const COMMAND_US: u64 = 5000;

/// Fills the shared keys. A look reads no key of a single object, so those are left out.
const FILL: &str = "
    local name, from = ARGV[1], tonumber(ARGV[2])
    for n = from, from + 9999 do
        if name == 'markers' then redis.call('LPUSH', KEYS[1], 'work:' .. n)
        elseif name == 'dead' then redis.call('XADD', KEYS[1], '*', 'id', n, 'object', 'work:' .. n, 'event', '{}', 'error', 'no')
        elseif name == 'held' then redis.call('ZADD', KEYS[1], n % 3 == 0 and 'inf' or n, 'held:' .. n)
        else redis.call('ZADD', KEYS[1], 0, 'paused:' .. n) end
    end";

async fn fill(console: &Console, what: &str, key: &str, count: u64) {
    for from in (0..count).step_by(10_000) {
        let _: Option<String> = console
            .run(&["EVAL", FILL, "1", key, what, &from.to_string()])
            .await;
    }
}

/// Fills the shared keys with all markers, held objects, paused objects and dead letters.
pub(crate) async fn fill_all(console: &Console) {
    let keys = &console.keys;
    fill(console, "markers", &keys.objects_with_events(), MARKERS).await;
    fill(console, "held", &keys.objects_held(), HELD).await;
    fill(console, "paused", &keys.objects_paused(), PAUSED).await;
    fill(console, "dead", &keys.events_dead(), DEAD).await;
}

/// Tests that a look at millions of objects takes at most 2 ms of Redis' time, and no command 5 ms.
#[tokio::test]
async fn a_look_at_millions_of_objects_is_cheap() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let keys = redis.keys();
    fill_all(&console).await;
    let control = control(&redis.connect().await, keys);
    // The first look loads the scripts.
    control.stats().await.expect("stats");
    let _: () = console
        .run(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])
        .await;
    let mut fastest = Least::within(LOOK_US);
    let mut longest = Least::within(COMMAND_US);
    // The best of several looks counts, because other processes may slow down a single look.
    for _ in 0..20 {
        let _: () = console.run(&["SLOWLOG", "RESET"]).await;
        let (before, _) = worked(&console).await;
        let seen = control.stats().await.expect("stats");
        let (after, slow) = worked(&console).await;
        assert_eq!(
            (
                seen.markers,
                seen.held.total,
                seen.paused,
                seen.streams.dead.rows
            ),
            (MARKERS, HELD, PAUSED, DEAD)
        );
        assert_eq!(
            (seen.held.until_released, seen.held.due),
            (66_667, HELD - 66_667)
        );
        fastest.add(&console, after - before).await;
        longest.add(&console, slow).await;
    }
    let costs = format!(
        "a look takes {} µs of Redis' time; the longest command above 1 ms: {} µs",
        fastest.us, longest.us
    );
    println!("{costs}");
    assert!(fastest.is_within && longest.is_within, "{costs}");
}

/// Story: many names of restarted workers came before a live worker in the order of the alphabet.
/// The look counted their empty slots, and not the batch of the live worker.
#[tokio::test]
async fn a_look_counts_the_batches_of_live_workers_first() {
    let (redis, console) = Redis::start().with_console().await;
    let (control, keys) = (control(&redis.connect().await, redis.keys()), redis.keys());
    let _: u64 = console
        .run(&["HSET", &keys.meta(), "names.indexed", "1"])
        .await;
    for n in 0..100 {
        let name = format!("host-{n:04}");
        let _: u64 = console
            .run(&[
                "HSET",
                &keys.event_workers(),
                &name,
                "256 token 1700000000000",
            ])
            .await;
        let _: u64 = console
            .run(&["ZADD", &keys.event_workers_departed(), "1", &name])
            .await;
    }
    let _: u64 = console
        .run(&["HSET", &keys.event_workers(), "zz", "4 token 1700000000000"])
        .await;
    let _: u64 = console
        .run(&["ZADD", &keys.event_workers_watched(), "1", "zz"])
        .await;
    let _: u64 = console
        .run(&["LPUSH", &keys.worker_event("zz.0"), "1", "2"])
        .await;
    let stats = control.stats().await.expect("stats");
    assert_eq!((stats.workers.len(), stats.events_in_flight), (101, 2));
    let last = stats.workers.last().expect("a worker");
    assert_eq!((&last.name[..], last.slots_busy), ("zz", 1));
}

/// Tests that a look at the objects in hand of 512 busy slots takes at most 1 ms of Redis' time.
#[tokio::test]
async fn a_look_at_the_objects_in_hand_is_cheap() {
    const BUSY: &str = "
        for slot = 0, 599 do
            local object, worker = 'work:' .. slot, 'w.' .. slot
            local keys = { KEYS[1] .. object, KEYS[1] .. 'event.worker:' .. worker }
            redis.call('SET', keys[1] .. ':event.worker', worker)
            redis.call('LPUSH', keys[2] .. ':object', object)
            redis.call('LPUSH', keys[2] .. ':event', '1')
            redis.call('SET', keys[2] .. ':event.id', slot + 1)
            for n = 0, slot % 7 do redis.call('LPUSH', keys[1] .. ':events', n) end
        end";
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let control = control(&redis.connect().await, keys);
    let _: u64 = console
        .run(&[
            "HSET",
            &keys.event_workers(),
            "w",
            "600 token 1700000000000",
        ])
        .await;
    let _: Option<String> = console.run(&["EVAL", BUSY, "1", keys.prefix()]).await;
    let mut fastest = Least::within(IN_HAND_US);
    // The fastest of several looks counts, because other processes may slow down a single look.
    for _ in 0..20 {
        let (before, _) = worked(&console).await;
        let seen = control.under_work(10).await.expect("a look");
        let (after, _) = worked(&console).await;
        fastest.add(&console, after - before).await;
        assert_eq!(
            (
                seen.objects.len(),
                seen.objects[0].queued,
                seen.slots_read,
                seen.more_slots
            ),
            (10, 7, 512, true)
        );
    }
    let us = fastest.us;
    println!("a look at the objects in hand takes {us} µs of Redis' time");
    assert!(fastest.is_within, "{us} µs");
}

/// Tests that a page of 20,000 names, and the slots of a large name, take at most 2 ms of Redis'
/// time.
#[tokio::test]
async fn a_page_of_many_workers_is_cheap() {
    const NAMES: &str = "
        for n = 1, 20000 do
            local name = string.format('host-%05d', n)
            redis.call('HSET', KEYS[1], name, '4 token 1700000000000')
            redis.call('ZADD', n <= 300 and KEYS[2] or KEYS[3], n, name)
        end
        redis.call('HSET', KEYS[1], 'big', '20000 token 1700000000000')
        redis.call('HSET', KEYS[4], 'names.indexed', 1)
        for slot = 0, 999 do
            local worker = KEYS[5] .. 'event.worker:big.' .. slot
            redis.call('LPUSH', worker .. ':object', 'work:' .. slot)
            redis.call('LPUSH', worker .. ':event', '1')
            redis.call('SET', worker .. ':event.id', slot + 1)
        end";
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let control = control(&redis.connect().await, keys);
    let [names, watched, departed, meta] = [
        keys.event_workers(),
        keys.event_workers_watched(),
        keys.event_workers_departed(),
        keys.meta(),
    ];
    let _: Option<String> = console
        .run(&[
            "EVAL",
            NAMES,
            "5",
            &names,
            &watched,
            &departed,
            &meta,
            keys.prefix(),
        ])
        .await;
    let mut page_cost = Least::within(LOOK_US);
    let mut slots_cost = Least::within(LOOK_US);
    // The fastest of several looks counts, because other processes may slow down a single look.
    for _ in 0..20 {
        let (before, _) = worked(&console).await;
        let page = control.workers(None, 256).await.expect("a page");
        let (between, _) = worked(&console).await;
        let big = control
            .worker("big", None, 256)
            .await
            .expect("a look")
            .expect("registered");
        let (after, _) = worked(&console).await;
        page_cost.add(&console, between - before).await;
        slots_cost.add(&console, after - between).await;
        assert_eq!((page.workers.len() >= 200, page.registered), (true, 20_001));
        assert_eq!(
            (
                big.slots.len(),
                big.worker.slots_busy,
                big.worker.slots_read
            ),
            (256, 1000, 1000)
        );
    }
    let costs = format!(
        "a page of names takes {} µs of Redis' time, the slots of a name {} µs",
        page_cost.us, slots_cost.us
    );
    println!("{costs}");
    assert!(page_cost.is_within && slots_cost.is_within, "{costs}");
}
