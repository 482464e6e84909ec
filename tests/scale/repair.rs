//! A repair of many objects, beside workers and producers, and the time of its slowest call.

use seriatim::control::{By, Repair};

use crate::cost::{log_commands, within};
use crate::support::console::Console;
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, control};

/// The usual number of objects; `SERIATIM_REPAIR_OBJECTS` sets another one.
const OBJECTS: usize = 10_000;
const WHO: &str = "ada@host";
/// The longest call, µs.
const CALL_US: u64 = 50_000;

/// Lua that makes objects which only a lost index knew: those of an odd number are held with a batch
/// of two events, the others have two events queued, and no marker. Returns the highest id.
const PREPARE: &str = r"
local P, objects = ARGV[1], tonumber(ARGV[2])
for n = 1, objects do
  local base = P .. string.format('work:%06d', n)
  if n % 2 == 1 then
    redis.call('SET', base .. ':event.worker', 'held')
    redis.call('LPUSH', base .. ':events.held', '1', '2')
    redis.call('SET', base .. ':events.held.id', string.format('%d 0 1 0 retry: down', 2 * n - 1))
  else
    redis.call('LPUSH', base .. ':events', '1', '2')
  end
  redis.call('LPUSH', base .. ':events', '3')
end
redis.call('SET', P .. 'next.event.id', 2 * objects)
return 2 * objects";

/// Every event is delivered once, in order, with its id if that is known. Each call of the repair is
/// short: the time of the slowest is read from the server's slow log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_objects_are_repaired_in_short_calls() {
    let objects = std::env::var("SERIATIM_REPAIR_OBJECTS")
        .map_or(OBJECTS, |text| text.parse().expect("a number of objects"));
    let redis = Redis::own(&[]);
    let (console, mut conn) = (redis.console().await, redis.connect().await);
    let keys = redis.keys().clone();
    let given: u64 = redis::cmd("EVAL")
        .arg(PREPARE)
        .arg(0)
        .arg(keys.prefix())
        .arg(objects)
        .query_async(&mut conn)
        .await
        .expect("prepared");
    log_commands(&console, 1000).await;
    let by = By {
        who: WHO,
        why: "an index is lost",
    };
    let control = control(&conn, &keys);
    let repair = async |dry_run| {
        let repair = Repair {
            dry_run,
            share: 1.0,
            ..Repair::default()
        };
        control.repair(by, &repair).await.expect("a report")
    };
    let planned = repair(true).await;
    assert_eq!(
        (planned.steps_total, planned.left_total),
        (objects as u64, 0),
        "{:?}",
        planned.kinds
    );
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 256);
    console.emit("new", "1").await;
    let done = repair(false).await;
    assert_eq!(
        (done.kinds["held"], done.left_total),
        (objects as u64 / 2, 0),
        "{:?}",
        done.kinds
    );
    // A worker may have claimed some of the objects without a marker, after it got another one.
    assert_eq!(done.kinds["marker"], objects as u64 / 2);
    sink.until_sent(3 * objects + 1).await;
    console.until_at_rest().await;
    let sent = sink.sent();
    for n in [1, 2, 3, objects / 2 - 1, objects / 2, objects - 1, objects] {
        let object = format!("work:{n:06}");
        assert_eq!(sink.sent_of(&object), ["1", "2", "3"], "{object}");
        let first = sent
            .iter()
            .find(|sent| sent.object == object)
            .expect("sent")
            .id;
        let is_known = n % 2 == 1;
        assert_eq!(first == 2 * n as u64 - 1, is_known, "{object}: {first}");
        assert!(is_known || first > given, "{object}: {first}");
    }
    assert_eq!(sent.len(), 3 * objects + 1, "each event once");
    console.check().await;
    let slowest_us = slowest_us(&console).await;
    println!(
        "{objects} objects: the slowest call took {slowest_us} us; the slowest call with its way {:?}",
        done.slowest_call
    );
    assert!(
        within(&console, slowest_us, CALL_US).await,
        "{slowest_us} us"
    );
    worker.finish().await;
}

/// Lua that breaks objects and workers so that each needs as many commands as one step may take: batches
/// without ids, batches that were overtaken, batches of unknown objects, schedules without due times
/// behind long queues, and workers with long lists.
const LONG: &str = r"
local P, count, size = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local event = string.rep('e', size)
local many = {}
for n = 1, 1000 do many[n] = event end
local call = redis.call
call('SET', P .. 'next.event.id', 5000)
call('HSET', P .. 'event.workers', 'w', count .. ' t 0')
for n = 1, count do
  local function base(kind) return P .. kind .. ':' .. n end
  call('SET', base('ids') .. ':event.worker', 'held')
  call('LPUSH', base('ids') .. ':events.held', unpack(many))
  call('SET', base('late') .. ':event.worker', 'held')
  call('LPUSH', base('late') .. ':events.held', unpack(many))
  call('SET', base('late') .. ':events.held.id', '1 0 0 0 retry: down')
  call('SET', base('late') .. ':last.event.id', '3000')
  call('LPUSH', P .. 'event.worker:w.' .. (n - 1) .. ':lost', unpack(many))
  call('LPUSH', P .. 'event.worker:w.' .. (n - 1) .. ':lost', '4000')
  call('LPUSH', base('later') .. ':events', unpack(many))
  call('HSET', base('later') .. ':events.scheduled', 'k', event)
  call('LPUSH', P .. 'objects.with.events', 'later:' .. n)
  for name = 1, 1000 do
    call('LPUSH', P .. 'event.worker:w.' .. (n - 1) .. ':object', 'none:' .. name)
  end
end";

/// Each call is short, too, if each of its objects has a thousand events to move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_batches_are_repaired_in_short_calls() {
    for size in [10, 2000] {
        let redis = Redis::own(&[]);
        let (console, mut conn) = (redis.console().await, redis.connect().await);
        let keys = redis.keys().clone();
        let () = redis::cmd("EVAL")
            .arg(LONG)
            .arg(0)
            .arg(keys.prefix())
            .arg(64)
            .arg(size)
            .query_async(&mut conn)
            .await
            .expect("made");
        log_commands(&console, 1000).await;
        let by = By {
            who: WHO,
            why: "keys are lost",
        };
        let control = control(&conn, &keys);
        let with = Repair {
            share: 1.0,
            schedules_due_ms: Some(99_999_999_999_999),
            ..Repair::default()
        };
        let planned = control.repair(by, &with).await.expect("a report");
        let plan_us = slowest_us(&console).await;
        console.run::<()>(&["SLOWLOG", "RESET"]).await;
        let done = control
            .repair(
                by,
                &Repair {
                    dry_run: false,
                    ..with
                },
            )
            .await
            .expect("a report");
        let slowest_us = slowest_us(&console).await;
        println!(
            "events of {size} bytes: {:?}, {:?}; the slowest call of the dry run took {plan_us} us, of the repair {slowest_us} us",
            planned.kinds, done.kinds
        );
        assert_eq!(done.left_total, 0, "{:?}", done.left);
        let us = plan_us.max(slowest_us);
        assert!(
            within(&console, us, CALL_US).await,
            "{size} bytes: {plan_us} us, {slowest_us} us"
        );
    }
}

/// Returns the time of the slowest call of the repair in the server's slow log, except the three slowest:
/// on a busy machine, other programs take the CPU in the middle of a call. Each kind of long call comes
/// more than three times.
async fn slowest_us(console: &Console) -> u64 {
    let slow: Vec<Vec<redis::Value>> = console.run(&["SLOWLOG", "GET", "-1"]).await;
    let mut times = Vec::new();
    for mut entry in slow {
        entry.truncate(4);
        let entry =
            redis::from_redis_value(redis::Value::Array(entry)).expect("an entry of the slow log");
        let (_, _, us, words): (u64, u64, u64, Vec<Vec<u8>>) = entry;
        // `KEYS` of the test itself takes longer.
        if words.iter().any(|word| word == WHO.as_bytes()) {
            times.push(us);
        }
    }
    times.sort_unstable();
    println!(
        "{} calls above 1 ms, the slowest {:?} us",
        times.len(),
        &times[times.len().saturating_sub(4)..]
    );
    times.iter().nth_back(3).copied().unwrap_or(0)
}
