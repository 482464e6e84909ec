//! A rule that has held a million objects is lifted, and all of them continue.

use seriatim::control::By;
use seriatim::control::rules::{Kind, Ruled, Selector};

use crate::support::console::PATIENCE;
use crate::support::process::{Process, merged};
use crate::support::{Redis, control, until};

const OBJECTS: usize = 1_000_000;
/// One in this many objects has an event.
const EVENT_EVERY: usize = 500;

/// Lua that makes a million objects, paused as a worker leaves them: their owner is `held`, and
/// they are in `objects.paused`. Some have a queued event.
const PREPARE: &str = r"
local P, from, to, every = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for first = from, to - 1, 1000 do
  local paused, owners = {}, {}
  for n = first, first + 999 do
    local object = string.format('work:%07d', n)
    paused[#paused + 1], paused[#paused + 2] = '0', object
    owners[#owners + 1], owners[#owners + 2] = P .. object .. ':event.worker', 'held'
    if n % every == 0 then
      redis.call('LPUSH', P .. object .. ':events', tostring(n))
    end
  end
  redis.call('ZADD', P .. 'objects.paused', unpack(paused))
  redis.call('MSET', unpack(owners))
end";

/// A million paused objects continue after the pause is lifted, although the worker process that
/// wakes them is killed meanwhile.
#[tokio::test]
async fn a_million_objects_resume_although_the_resumer_is_killed() {
    let redis = Redis::own(&[]);
    let (console, mut conn) = (redis.console().await, redis.connect().await);
    let keys = redis.keys().clone();
    let (by, selector) = (
        By {
            who: "ada@host",
            why: "",
        },
        "work:*".parse::<Selector>().expect("a selector"),
    );
    control(&conn, &keys)
        .set_rule(by, Kind::Pause, &selector, None)
        .await
        .expect("set");
    for from in (0..OBJECTS).step_by(100_000) {
        let mut prepare = redis::cmd("EVAL");
        prepare
            .arg(PREPARE)
            .arg(0)
            .arg(keys.prefix())
            .arg(from)
            .arg(from + 100_000)
            .arg(EVENT_EVERY);
        prepare
            .query_async::<()>(&mut conn)
            .await
            .expect("prepared");
    }
    let paused = async || {
        console
            .run::<usize>(&["ZCARD", &keys.objects_paused()])
            .await
    };
    assert_eq!(paused().await, OBJECTS);
    let lifted = control(&conn, &keys)
        .lift_rule(by, Kind::Pause, &selector)
        .await
        .expect("lifted");
    assert_eq!(lifted, Ruled::Lifted);
    // Lifting only marks the rule; workers wake the objects.
    assert_eq!(paused().await, OBJECTS);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let files = ["a", "b"].map(|name| dir.path().join(name));
    let options = ["--concurrency", "256", "--lease", "1s"];
    let mut resumer = Process::start(
        &redis,
        "a",
        &format!("file:{}", files[0].display()),
        &options,
    );
    until("some are woken", PATIENCE, async || {
        (paused().await < OBJECTS - 20_000).then_some(())
    })
    .await;
    resumer.kill();
    let left = paused().await;
    assert!(left > 0, "killed too late to say anything");
    let mut other = Process::start(
        &redis,
        "b",
        &format!("file:{}", files[1].display()),
        &options,
    );
    until("all are woken", 3 * PATIENCE, async || {
        (paused().await == 0).then_some(())
    })
    .await;
    let rules = keys.event_rules();
    until("the rule is gone", PATIENCE, async || {
        (console.run::<u64>(&["EXISTS", &rules]).await == 0).then_some(())
    })
    .await;
    println!("{left} were left when the resumer was killed");
    let held = keys.objects_held();
    until("nothing is held", PATIENCE, async || {
        (console.run::<u64>(&["ZCARD", &held]).await == 0).then_some(())
    })
    .await;
    until("every event is sent", PATIENCE, async || {
        (merged(&files).len() == OBJECTS / EVENT_EVERY).then_some(())
    })
    .await;
    assert!(merged(&files).values().all(|sent| sent.len() == 1));
    other.terminate();
    assert!(other.ended().await.success());
    assert_eq!(console.run::<u64>(&["ZCARD", &held]).await, 0);
}
