//! The exact fields that `inspect` reads, for states with something in each key.

use std::sync::{Arc, Mutex};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;
use seriatim::control::inspect::TEXT_BYTES_MAX;

use crate::scene::Scene;
use crate::support::Redis;

/// A connection that keeps the replies to single commands.
#[derive(Clone)]
struct Recording {
    conn: MultiplexedConnection,
    replies: Arc<Mutex<Vec<Value>>>,
}

impl ConnectionLike for Recording {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let answer = self.conn.req_packed_command(cmd).await;
            self.replies
                .lock()
                .expect("the replies")
                .extend(answer.clone().ok());
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.conn.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.conn.get_db()
    }
}

/// Returns the fields of the first look at the object, each with its value, without the namespace.
/// The times of the server must be plausible. Their values are left out.
async fn fields(scene: &Scene, object: &str) -> Vec<String> {
    let recording = Recording {
        conn: scene.conn().await,
        replies: Arc::default(),
    };
    let replies = recording.replies.clone();
    let control = Control::new(recording).with_keys(scene.keys.clone());
    control.inspect(object).await.expect("an inspection");
    let replies = replies.lock().expect("the replies");
    let looks = replies.iter();
    let mut looks = looks.filter_map(|reply| redis::from_redis_value(reply.clone()).ok());
    let is_look = |look: &Vec<Vec<u8>>| look.first().is_some_and(|word| word == b"inspected");
    let look = looks.find(is_look).expect("a look");
    let text = |value: &[u8]| String::from_utf8_lossy(value).replace(scene.keys.prefix(), "");
    let mut shown = Vec::new();
    for pair in look[1..].chunks(2) {
        let (field, value) = (text(&pair[0]), text(&pair[1]));
        let number = value.parse::<u64>().unwrap_or_default();
        match field.as_str() {
            "now_ms" => assert!(number > 1_700_000_000_000, "{value}"),
            "lease_ttl_ms" => {
                assert!((1..=600_000).contains(&number), "{value}");
                shown.push(field);
            }
            _ => shown.push(format!("{field} {value}")),
        }
    }
    assert_eq!(text(&look[1]), "now_ms");
    shown
}

/// Fails unless these are the fields, one in each line.
async fn assert_told(scene: &Scene, object: &str, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(str::trim).collect();
    let expected: Vec<_> = expected
        .into_iter()
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(fields(scene, object).await, expected);
}

async fn scene() -> Scene {
    Scene::bare(Redis::start()).await
}

#[tokio::test]
async fn an_object_in_hand_is_told_with_all_that_it_has() {
    let scene = scene().await;
    let given = "
        clean; HSET work:2:event.handled emit:x no id 12 result:a one result:b two
        HSET event.rules 'block work:*' w 'pause work:2' o 'pause *' a 'block work:3' no
        ZADD objects.in.hand 0 work:2: 0 work:4: 0 works:4: 0 w:1:
        HSET event.shares * star work:* work work:2:* own w:* no
        HSET event.shares.used work:* '1 2'; ZADD event.groups.blocked 0 work
        HSET work:2:events.scheduled timeless {} due {} queued {}
        ZADD events.scheduled 7 'work:2\ndue' -1000000000005000 'work:2\nqueued'
    ";
    scene.add(given).await;
    let errors: String = (1..=21).map(|n| format!(" e{n}")).collect();
    scene
        .add(&format!("RPUSH work:2:event.errors{errors}"))
        .await;
    let errors: String = (1..=20).map(|n| format!("error e{n}\n")).collect();
    let rest = "
        result one
        result two
        handled_id 12
        rule 12 block work:*w
        rule 7 pause *a
        rule 12 pause work:2o
        share 4 0 0 0 1 *star
        share 2 1 0 3 6 1 2work:*work
        share 1 0 0 0 8 work:2:*own
        schedules 3
        schedule - timeless
        schedule 7 due
        schedule_queued 5 queued
        owner a.0
        batch 2
        batch_bytes 7
        batch_text {\"n\":3}
        batch_id 12
        lease token-of-a host-1 4711 99
        lease_ttl_ms
    ";
    let expected = format!("queued 1\nqueued_bytes 2\nqueued_text {{}}\nlast 11\n{errors}{rest}");
    assert_told(&scene, "work:2", &expected).await;
    // Others wait for the share, and the count of objects in hand is not to be had.
    let given = "
        DEL event.groups.blocked; DEL objects.in.hand; DEL event.shares.used
        SET objects.in.hand x; SET event.shares.used x; ZADD event.groups.blocked 0 'work\n'
    ";
    scene.add(given).await;
    let mut shown = fields(&scene, "work:2").await;
    shown.retain(|field| field.starts_with("share "));
    let shares = [
        "share - 0 0 0 1 *star",
        "share - 0 1 0 6 work:*work",
        "share - 0 0 0 8 work:2:*own",
    ];
    assert_eq!(shown, shares);
    let given = "DEL event.groups.blocked; SET event.groups.blocked x";
    scene.add(given).await;
    let shown = fields(&scene, "work:2").await;
    let share = "share - 0 0 0 6 work:*work".to_owned();
    assert!(shown.contains(&share), "{shown:?}");
}

#[tokio::test]
async fn an_object_without_a_slot_is_told_with_what_it_waits_for() {
    let scene = scene().await;
    scene.add("clean").await;
    let queue = "queued 1\nqueued_bytes 2\nqueued_text {}\n";
    let held = "
        held 1
        held_bytes 7
        held_text {\"n\":5}
        held_id 15 1 3 0 retry: connection refused
        due_ms 1
        owner held
    ";
    assert_told(&scene, "work:5", &format!("{queue}{held}")).await;
    let paused = "
        paused 1
        rule 12 pause work:91 0 0 3 0 adanot yet
        owner held
    ";
    assert_told(&scene, "work:9", paused).await;
    // The worker's list has this object, but nothing covers its event.
    assert_told(&scene, "work:3", queue).await;
    assert_told(&scene, "nothing", "").await;
    // An owner that is no worker id is told with the lease and the batch of this name.
    let given = "SET x:event.worker odd; LPUSH event.worker:odd:event {}";
    scene.add(given).await;
    scene.add("SET event.worker:odd:lease l PX 9000").await;
    let owner = "owner odd\nbatch 1\nbatch_bytes 2\nbatch_text {}\nowner_unknown 1\n";
    assert_told(&scene, "x", &format!("{owner}lease l\nlease_ttl_ms")).await;
    scene.add("DEL event.worker:odd:lease").await;
    assert_told(&scene, "x", owner).await;
    // The name is registered, with any number of slots.
    scene.add("HSET event.workers odd '1 t 1'").await;
    let known = owner.replace("owner_unknown 1\n", "");
    assert_told(&scene, "x", &known).await;
}

/// Results are told up to 64 KiB together, and schedules up to 100.
#[tokio::test]
async fn results_schedules_and_events_are_told_up_to_a_limit() {
    let scene = scene().await;
    scene
        .add(&format!(
            "HSET x:event.handled result:a {}",
            "a".repeat(65_536)
        ))
        .await;
    assert_eq!(fields(&scene, "x").await.len(), 1, "64 KiB");
    // The order of a hash with large values is open.
    for (first, second, results) in [(65_535, 1, 2), (65_536, 1, 1), (65_537, 65_537, 0)] {
        let (a, b) = ("a".repeat(first), "b".repeat(second));
        scene
            .add(&format!("HSET x:event.handled result:a {a} result:b {b}"))
            .await;
        let shown = fields(&scene, "x").await.len();
        assert_eq!(shown, results, "{first} and {second} bytes");
    }
    let schedules: String = (0..101).map(|n| format!(" k{n} {{}}")).collect();
    scene
        .add(&format!(
            "DEL x:event.handled; HSET x:events.scheduled{schedules}"
        ))
        .await;
    let shown = fields(&scene, "x").await;
    assert_eq!((shown.len(), shown[0].as_str()), (101, "schedules 101"));
    assert_eq!(shown[100], "schedule - k99");
    let given = "DEL x:events.scheduled; SET events.scheduled x";
    scene.add(given).await;
    scene.add("HSET x:events.scheduled k {}").await;
    let expected = "
        schedules 1
        wrong events.scheduled is a string, it should be a zset
        schedule - k
    ";
    assert_told(&scene, "x", expected).await;
    let long = "e".repeat(TEXT_BYTES_MAX + 1);
    scene
        .add(&format!(
            "DEL x:events.scheduled; LPUSH x:events {long} newer"
        ))
        .await;
    let shown = fields(&scene, "x").await;
    let bytes = format!("queued_bytes {}", long.len());
    assert_eq!(shown[..2], ["queued 2".to_owned(), bytes]);
    assert_eq!(shown[2].len(), "queued_text ".len() + TEXT_BYTES_MAX);
}

/// The oldest event is a reference to a schedule. The event of the schedule is told instead, if the
/// reference counts.
#[tokio::test]
async fn a_reference_is_told_as_the_event_of_its_schedule() {
    let (replaced, reference) = (
        "26\nqueued_text replaced or cancelled: key",
        "\0queued 7000 key",
    );
    let reference = format!("16\nqueued_text {reference}");
    let entry = "ZADD events.scheduled -1000000000007000 'x\nkey'";
    let event = "HSET x:events.scheduled key {\"a\":1}";
    let (later, wrong) = (
        entry.replace("7000 ", "7001 "),
        "SET x:events.scheduled wrong",
    );
    let of_event = "7\nqueued_text {\"a\":1}";
    let told_wrong = "wrong x:events.scheduled is a string, it should be a hash";
    // Of each case: what is given, and the first fields.
    for (given, expected) in [
        ("", replaced),
        ("SET events.scheduled wrong", replaced),
        (entry, &reference),
        (
            &format!("{entry}; {wrong}"),
            &format!("{reference}\n{told_wrong}"),
        ),
        (&format!("{entry}; {event}"), of_event),
        (&format!("{later}; {event}"), replaced),
    ] {
        let scene = scene().await;
        scene
            .add(&format!("LPUSH x:events '\0queued 7000 key'; {given}"))
            .await;
        let shown = fields(&scene, "x").await.join("\n");
        let expected = format!("queued 1\nqueued_bytes {expected}");
        // With an event, the schedule itself is also told.
        let is_named = match given.contains("HSET") {
            true => shown.starts_with(&expected),
            false => shown == expected,
        };
        assert!(is_named, "{given}: {shown}");
    }
}

#[tokio::test]
async fn each_key_of_a_wrong_type_is_told() {
    let scene = scene().await;
    let lists = "x:events x:events.held x:event.errors objects.with.events event.group:x:waiting \
                 event.worker:w.0:event";
    let strings = "x:events.held.id x:last.event.id event.worker:w.0:event.id event.worker:w:lease";
    let given = "SET x:event.worker w.0; ZADD event.groups 0 x";
    scene.add(given).await;
    let given = "HSET x:events.scheduled k {}; SET x:event.handled x";
    scene.add(given).await;
    let mut expected = Vec::new();
    for (keys, kind, wrong, command) in [
        (lists, "list", "string", "SET"),
        (strings, "string", "list", "LPUSH"),
        (
            "objects.held objects.paused events.scheduled",
            "zset",
            "string",
            "SET",
        ),
        ("event.rules event.shares", "hash", "string", "SET"),
    ] {
        for key in keys.split_whitespace() {
            scene.add(&format!("{command} {key} x")).await;
            expected.push(format!("wrong {key} is a {wrong}, it should be a {kind}"));
        }
    }
    let others = [
        "groups 1",
        "owner w.0",
        "owner_unknown 1",
        "schedule - k",
        "schedules 1",
    ];
    expected.extend(others.map(str::to_owned));
    expected.sort();
    let mut shown = fields(&scene, "x").await;
    shown.sort();
    assert_eq!(shown, expected);
    let given = "
        DEL event.groups; DEL x:events.scheduled; DEL x:event.worker
        SET event.groups x; SET x:events.scheduled x; LPUSH x:event.worker x
    ";
    scene.add(given).await;
    let shown = fields(&scene, "x").await;
    for (key, found, kind) in [
        ("event.groups", "string", "zset"),
        ("x:events.scheduled", "string", "hash"),
        ("x:event.worker", "list", "string"),
    ] {
        let wrong = format!("wrong {key} is a {found}, it should be a {kind}");
        assert!(shown.contains(&wrong), "{key}: {shown:?}");
    }
    let is_wrong = |field: &String| field.starts_with("wrong ");
    assert!(shown.iter().all(is_wrong), "{shown:?}");
}

/// The place of a marker counts the markers that are taken before it, without the marks between.
#[tokio::test]
async fn the_place_of_a_marker_is_told_without_the_marks() {
    let scene = scene().await;
    let given = "LPUSH objects.with.events a \0t10 b a \0t20 c \0t30 d";
    scene.add(given).await;
    scene.add("ZADD event.marks 10 10 20 20 30 30").await;
    for met in ["", "ZADD event.marks 5 met"] {
        scene.add(met).await;
        for (object, expected) in [
            ("a", "marked_before_ms 10\nmarkers_before 0"),
            ("b", "marked_before_ms 20\nmarkers_before 1"),
            ("c", "marked_before_ms 30\nmarkers_before 3"),
            ("d", "markers_before 4"),
        ] {
            assert_told(&scene, object, expected).await;
        }
    }
    scene.add("DEL event.marks; SET event.marks wrong").await;
    let wrong = "wrong event.marks is a string, it should be a zset";
    assert_told(&scene, "b", &format!("{wrong}\nmarkers_before 2")).await;
}

/// The search ends after 10,000 markers, and after 10,000 names in the list of a group.
#[tokio::test]
async fn what_is_behind_10_000_names_is_beyond_the_search() {
    let scene = scene().await;
    let others: String = (0..9999).map(|n| format!(" o{n}")).collect();
    let given = "ZADD event.groups 3298534883328 g 3298534883327 g:x";
    scene.add(given).await;
    for key in ["objects.with.events", "event.group:g:waiting"] {
        scene
            .add(&format!("LPUSH {key}{others}; LPUSH {key} g:x"))
            .await;
    }
    let found = "
        markers_before 9999
        groups 2
        group g
        group_before 9999
        group_parked 1
    ";
    assert_told(&scene, "g:x", found).await;
    // All is searched.
    assert_told(&scene, "g:y", "groups 2").await;
    let given = "RPUSH objects.with.events first; RPUSH event.group:g:waiting first";
    scene.add(given).await;
    let beyond = "markers_beyond 1\ngroups 2\n";
    assert_told(
        &scene,
        "g:x",
        &format!("{beyond}group_beyond g\ngroup_parked 1"),
    )
    .await;
    scene.add("LPUSH event.group:g:x:waiting g:x").await;
    assert_told(&scene, "g:x", &format!("{beyond}group g:x\ngroup_before 0")).await;
}

/// A name is looked for in the list of each group to which it can belong, those with many parts
/// first. Two lists are longer than the search: the first is told.
#[tokio::test]
async fn a_name_is_found_in_the_list_of_each_of_its_groups() {
    let scene = scene().await;
    let object = "a:b:c:d:e:f:g:h:i:j";
    // All beginnings of the name but the one with nine parts, those with many parts first.
    let mut groups: Vec<_> = (0..8).rev().map(|n| &object[..2 * n + 1]).collect();
    groups.insert(0, object);
    groups.push("\0rest");
    for group in &groups {
        let list = format!("RPUSH event.group:{group}:waiting x {object} y z");
        scene
            .add(&format!("ZADD event.groups 0 {group}; {list}"))
            .await;
    }
    scene
        .add(&format!(
            "RPUSH event.group:a:b:c:d:e:f:g:h:i:waiting {object}"
        ))
        .await;
    for (n, group) in groups.iter().enumerate() {
        let expected = format!("groups {}\ngroup {group}\ngroup_before 2", 10 - n);
        assert_told(&scene, object, &expected).await;
        // No worker takes names from a list that is not in event.groups.
        scene.add(&format!("ZREM event.groups {group}")).await;
    }
    assert_told(&scene, object, "").await;
    let many: String = (0..10_001).map(|n| format!(" o{n}")).collect();
    for group in ["a:b", "a"] {
        let list = format!("event.group:{group}:waiting");
        scene
            .add(&format!(
                "DEL {list}; ZADD event.groups 0 {group}; RPUSH {list}{many}"
            ))
            .await;
    }
    assert_told(&scene, object, "groups 2\ngroup_beyond a:b").await;
}
