//! The longest queues of objects that workers have in hand.

use seriatim::control::UnderWork;

use crate::support::Redis;

/// Returns object, worker, length of the queue and id of each object.
fn rows(seen: &UnderWork) -> Vec<(&str, &str, u64, Option<u64>)> {
    seen.objects
        .iter()
        .map(|one| (&one.object[..], &one.worker[..], one.queued, one.id))
        .collect()
}

/// Tests that only owned objects count, also those of a process without a lease, and that a stray or
/// an object that was only just taken is left out.
#[tokio::test]
async fn the_longest_queues_in_hand_come_first() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = redis.control().await;
    assert_eq!(
        control.under_work(10).await.expect("a look"),
        UnderWork::default()
    );
    state.clean().await;
    state
        .add("LPUSH work:4:events 1 2 3; LPUSH event.worker:a.1:object work:1")
        .await;
    let seen = control.under_work(10).await.expect("a look");
    assert_eq!(
        rows(&seen),
        [
            ("work:4", "gone.0", 3, Some(14)),
            ("work:2", "a.0", 1, Some(12))
        ]
    );
    assert_eq!((seen.slots_read, seen.more_slots), (4, false));
    let seen = control.under_work(1).await.expect("a look");
    assert_eq!(rows(&seen), [("work:4", "gone.0", 3, Some(14))]);
    assert!(
        control
            .under_work(0)
            .await
            .expect("a look")
            .objects
            .is_empty()
    );
}

/// Tests names that are not UTF-8 or have control characters, and keys of a wrong type.
#[tokio::test]
async fn strange_names_and_keys_do_no_harm() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (control, keys) = (redis.control().await, redis.keys());
    state.register("w", 4).await;
    let strange = b"work:\xff\n\0";
    let key = |suffix: &[u8]| [keys.prefix().as_bytes(), strange, suffix].concat();
    let mut pipe = redis::pipe();
    pipe.cmd("LPUSH")
        .arg(keys.worker_object("w.0"))
        .arg(&strange[..])
        .ignore();
    pipe.cmd("SET")
        .arg(key(b":event.worker"))
        .arg("w.0")
        .ignore();
    pipe.cmd("LPUSH")
        .arg(key(b":events"))
        .arg("1")
        .arg("2")
        .ignore();
    pipe.query_async::<()>(&mut state.conn)
        .await
        .expect("pushed");
    state.add("SET event.worker:w.1:object 'a string'").await;
    state.own("w.2", "work:2", 7, &["1"]).await;
    state.add("SET work:2:events 'a string'").await;
    state.own("w.3", "work:3", 8, &["1"]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.3"), &"9".repeat(1000)])
        .await;
    let seen = control.under_work(10).await.expect("a look");
    assert_eq!(
        rows(&seen),
        [
            ("work:\u{fffd}\n\0", "w.0", 2, None),
            ("work:2", "w.2", 0, Some(7)),
            ("work:3", "w.3", 0, None)
        ]
    );
    assert_eq!(
        seen.objects[0].object_escaped.as_deref(),
        Some(r"work:\xff\n\u{0}")
    );
}

/// Tests that a look reads a bounded number of slots, some of each name, and says that there are
/// more.
#[tokio::test]
async fn a_look_reads_some_slots_of_each_name() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = redis.control().await;
    for name in ["a", "b", "c"] {
        state.register(name, 1000).await;
    }
    state.own("c.0", "work:1", 1, &["1"]).await;
    state.add("LPUSH work:1:events 2").await;
    let seen = control.under_work(10).await.expect("a look");
    assert_eq!(
        (rows(&seen), seen.slots_read, seen.more_slots),
        (vec![("work:1", "c.0", 1, Some(1))], 512, true)
    );
    // After the first pass over the names, departed names are not read.
    state.add("HSET seriatim.meta names.indexed 1").await;
    state.add("ZADD event.workers.departed 1 a 1 b").await;
    state
        .add("HSET event.workers c '512 token 0'; ZADD event.workers.watched 1 c")
        .await;
    let seen = control.under_work(10).await.expect("a look");
    assert_eq!(
        (seen.objects.len(), seen.slots_read, seen.more_slots),
        (1, 512, false)
    );
}
