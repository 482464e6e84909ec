//! Rules with real worker processes, under load.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use seriatim::control::Cursor;

use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, merged, sent_to};
use crate::support::{Redis, control, until};

const OBJECTS: usize = 24;
/// Time in ms within which a rule takes effect on all processes.
const PROMISED_MS: u64 = 1000;

/// Returns the time of Redis in ms.
async fn now_ms(console: &Console) -> u64 {
    let (s, us): (u64, u64) = console.run(&["TIME"]).await;
    s * 1000 + us / 1000
}

/// Emits events for all objects until this time by Redis' clock. The events are numbered from
/// `next` on.
async fn load(console: &Console, next: &mut usize, until_ms: u64) {
    while now_ms(console).await < until_ms {
        for object in 0..OBJECTS {
            for prefix in ["work", "other"] {
                console
                    .emit(&format!("{prefix}:{object}"), next.to_string())
                    .await;
                *next += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns for each event id the object, and the time at which the batch of the event was taken, in
/// ms by Redis' clock.
async fn taken(redis: &Redis) -> HashMap<u64, (u64, String)> {
    let conn = redis.connect().await;
    let (mut taken, mut after) = (HashMap::new(), None);
    loop {
        let page = control(&conn, redis.keys())
            .log(after.as_ref(), 100)
            .await
            .expect("the log");
        let Some(last) = page.entries.last() else {
            return taken;
        };
        after = Some(Cursor::from(&last.log_id));
        for row in page.entries {
            let twice = taken.insert(
                row.id.expect("an id"),
                (row.taken_ms.expect("a time"), row.object),
            );
            assert_eq!(twice, None);
        }
    }
}

/// Within a second after `pause` or `block` has returned, no process takes another batch of a
/// matching object, although all processes are busy and producers emit. The processes continue with
/// the other objects. After the rule is lifted, every event is delivered, once and in order.
#[tokio::test]
async fn a_rule_takes_effect_within_a_second_on_all_processes() {
    let (redis, console) = Redis::start().with_console().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let files: Vec<PathBuf> = ["a", "b", "c"]
        .iter()
        .map(|name| dir.path().join(name))
        .collect();
    let options = [
        "--concurrency",
        "6",
        "--batch",
        "4",
        "--event-log",
        "--event-log-keep",
        "10000000",
    ];
    let start = |name: &str| {
        Process::start(
            &redis,
            name,
            &format!("file:{}", dir.path().join(name).display()),
            &options,
        )
    };
    let mut processes: Vec<_> = ["a", "b", "c"].into_iter().map(start).collect();
    for process in &processes {
        process.until_logged("attached").await;
    }
    let mut emitted = 0;
    for (set, selector, lift) in [("pause", "work:*", "resume"), ("block", "*", "unblock")] {
        let before: Vec<_> = files.iter().map(|file| sent_to(file).len()).collect();
        let deadline = Instant::now() + PATIENCE;
        while !files
            .iter()
            .zip(&before)
            .all(|(file, before)| sent_to(file).len() > before + 20)
        {
            assert!(Instant::now() < deadline, "not every process is busy");
            load(&console, &mut emitted, now_ms(&console).await + 1).await;
        }
        redis.prints(&[set, selector, "--reason", "a look"]);
        let ruled_ms = now_ms(&console).await;
        load(&console, &mut emitted, ruled_ms + PROMISED_MS + 300).await;
        // The other objects got events all the time, and all of these events are taken.
        if selector != "*" {
            let queued = async || {
                let queues =
                    (0..OBJECTS).map(|object| console.keys.events(&format!("other:{object}")));
                let mut pipe = redis::pipe();
                for queue in queues {
                    pipe.cmd("LLEN").arg(queue);
                }
                let queued: Vec<u64> = pipe
                    .query_async(&mut redis.connect().await)
                    .await
                    .expect("lengths");
                queued.iter().sum::<u64>()
            };
            until("the others are taken", PATIENCE, async || {
                (queued().await == 0).then_some(())
            })
            .await;
        }
        let taken = taken(&redis).await;
        let is_meant = |object: &str| selector == "*" || object.starts_with("work:");
        let late: Vec<_> = taken
            .values()
            .filter(|(at_ms, object)| is_meant(object) && *at_ms > ruled_ms + PROMISED_MS)
            .collect();
        assert_eq!(
            late.len(),
            0,
            "{selector} was set until {ruled_ms} ms, and then were taken: {:?}",
            late.iter().take(5)
        );
        let last = taken
            .values()
            .filter(|(_, object)| is_meant(object))
            .map(|(at_ms, _)| *at_ms as i64 - ruled_ms as i64)
            .max();
        println!("{set} {selector}: the last batch was taken {last:?} ms after it had returned");
        for file in &files {
            let went_on = sent_to(file).iter().any(|sent| {
                taken
                    .get(&sent.id)
                    .is_some_and(|(at_ms, _)| *at_ms > ruled_ms + PROMISED_MS)
            });
            assert_eq!(went_on, selector != "*", "{}", file.display());
        }
        // Events of matching objects were emitted all the time, so some of them wait.
        let waits: u64 = console.run(&["LLEN", &console.keys.events("work:1")]).await;
        assert!(waits > 0);
        redis.prints(&[lift, selector]);
    }
    console.until_at_rest_after(emitted as u64).await;
    for process in &mut processes {
        process.terminate();
        assert!(process.ended().await.success(), "{}", process.log());
    }
    assert_eq!(taken(&redis).await.len(), emitted);
    let merged = merged(&files);
    assert_eq!(merged.values().map(Vec::len).sum::<usize>(), emitted);
    for sent in merged.values() {
        assert!(
            sent.iter()
                .map(|sent| sent.event.parse::<usize>().expect("a number"))
                .is_sorted()
        );
    }
}
