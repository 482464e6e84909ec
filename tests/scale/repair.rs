//! A repair of 100,000 objects, beside workers and producers.

use seriatim::control::{By, Repair};

use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, control};

const OBJECTS: usize = 10_000;

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
    let redis = Redis::own(&[]);
    let (console, mut conn) = (redis.console().await, redis.connect().await);
    let keys = redis.keys().clone();
    let given: u64 =
        redis::cmd("EVAL").arg(PREPARE).arg(0).arg(keys.prefix()).arg(OBJECTS).query_async(&mut conn).await.expect("prepared");
    console.run::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"]).await;
    console.run::<()>(&["SLOWLOG", "RESET"]).await;
    let by = By { who: "ada@host", why: "an index is lost" };
    let control = control(&conn, &keys);
    let planned = control.repair(by, &Repair { share: 1.0, ..Repair::default() }).await.expect("a report");
    assert_eq!((planned.steps_total, planned.left_total), (OBJECTS as u64, 0), "{:?}", planned.kinds);
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 256);
    console.emit("new", "1").await;
    let done = control.repair(by, &Repair { dry_run: false, share: 1.0, ..Repair::default() }).await.expect("a report");
    assert_eq!((done.kinds["held"], done.left_total), (OBJECTS as u64 / 2, 0), "{:?}", done.kinds);
    // A worker may have claimed some of the objects without a marker, after it got another one.
    assert_eq!(done.kinds["marker"], OBJECTS as u64 / 2);
    sink.until_sent(3 * OBJECTS + 1).await;
    console.until_at_rest().await;
    let sent = sink.sent();
    for n in [1, 2, 3, OBJECTS / 2 - 1, OBJECTS / 2, OBJECTS - 1, OBJECTS] {
        let object = format!("work:{n:06}");
        assert_eq!(sink.sent_of(&object), ["1", "2", "3"], "{object}");
        let first = sent.iter().find(|sent| sent.object == object).expect("sent").id;
        let is_known = n % 2 == 1;
        assert_eq!(first == 2 * n as u64 - 1, is_known, "{object}: {first}");
        assert!(is_known || first > given, "{object}: {first}");
    }
    assert_eq!(sent.len(), 3 * OBJECTS + 1, "each event once");
    console.check().await;
    let slow: Vec<Vec<redis::Value>> = console.run(&["SLOWLOG", "GET", "-1"]).await;
    let slowest_us = slow.iter().filter_map(|entry| redis::from_redis_value::<u64>(entry[2].clone()).ok()).max().unwrap_or(0);
    println!(
        "{OBJECTS} objects: the slowest command took {slowest_us} us; the slowest call with its way {:?}",
        done.slowest_call
    );
    assert!(slowest_us < 50_000, "{slowest_us} us");
    worker.finish().await;
}
