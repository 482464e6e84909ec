//! The exact fields that `inspect` reads, for states with something in each key.

use std::sync::{Arc, Mutex};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;
use seriatim::control::inspect::TEXT_BYTES_MAX;

use super::state::State;
use super::support::Redis;

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
async fn fields(state: &State, object: &str) -> Vec<String> {
    let recording = Recording {
        conn: state.conn.clone(),
        replies: Arc::default(),
    };
    let replies = recording.replies.clone();
    Control::new(recording)
        .with_keys(state.keys.clone())
        .inspect(object)
        .await
        .expect("an inspection");
    let replies = replies.lock().expect("the replies");
    let looks = replies
        .iter()
        .filter_map(|reply| redis::from_redis_value::<Vec<Vec<u8>>>(reply.clone()).ok());
    let look = looks
        .into_iter()
        .find(|look| look.first().is_some_and(|word| word == b"inspected"))
        .expect("a look");
    let text = |value: &[u8]| String::from_utf8_lossy(value).replace(state.keys.prefix(), "");
    let mut told = Vec::new();
    for pair in look[1..].chunks(2) {
        let (field, value) = (text(&pair[0]), text(&pair[1]));
        match field.as_str() {
            "now_ms" => assert!(
                value.parse::<u64>().expect("a time") > 1_700_000_000_000,
                "{value}"
            ),
            "lease_ttl_ms" => {
                assert!(
                    (1..=600_000).contains(&value.parse::<u64>().expect("a time")),
                    "{value}"
                );
                told.push(field);
            }
            _ => told.push(format!("{field} {value}")),
        }
    }
    assert_eq!(text(&look[1]), "now_ms");
    told
}

/// Runs these commands, with `@` for the namespace and `~` for a blank.
async fn run(state: &mut State, commands: &str) {
    for command in commands.split("; ") {
        let words = command
            .split(' ')
            .map(|word| word.replace('@', state.keys.prefix()).replace('~', " "));
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        state.run(words[0], &words[1..]).await;
    }
}

async fn state(redis: &Redis) -> State {
    State::new(redis.connect().await, redis.keys().clone())
}

#[tokio::test]
async fn an_object_in_hand_is_told_with_all_that_it_has() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    state.clean().await;
    let errors: Vec<String> = (1..=21).map(|n| format!("e{n}")).collect();
    run(
        &mut state,
        &format!("RPUSH @work:2:event.errors {}", errors.join(" ")),
    )
    .await;
    run(
        &mut state,
        "HSET @work:2:event.handled emit:x no id 12 result:a one result:b two",
    )
    .await;
    run(
        &mut state,
        "HSET @event.rules block~work:* w pause~work:2 o pause~* a block~work:3 no",
    )
    .await;
    run(
        &mut state,
        "ZADD @objects.in.hand 0 work:2: 0 work:4: 0 works:4: 0 w:1:",
    )
    .await;
    run(&mut state, "HSET @event.shares * star work:* work work:2:* own w:* no; HSET @event.shares.used work:* 1~2").await;
    run(&mut state, "ZADD @event.groups.blocked 0 work").await;
    run(
        &mut state,
        "HSET @work:2:events.scheduled timeless {} due {} queued {}",
    )
    .await;
    state
        .run(
            "ZADD",
            &[
                &state.keys.events_scheduled(),
                "7",
                "work:2\ndue",
                "-1000000000005000",
                "work:2\nqueued",
            ],
        )
        .await;
    let mut expected = vec!["queued 1", "queued_bytes 2", "queued_text {}", "last 11"];
    let errors: Vec<String> = errors[..20]
        .iter()
        .map(|error| format!("error {error}"))
        .collect();
    expected.extend(errors.iter().map(String::as_str));
    expected.extend([
        "result one",
        "result two",
        "handled_id 12",
        "rule 12 block work:*w",
        "rule 7 pause *a",
        "rule 12 pause work:2o",
        "share 4 0 0 0 1 *star",
        "share 2 1 0 3 6 1 2work:*work",
        "share 1 0 0 0 8 work:2:*own",
        "schedules 3",
        "schedule - timeless",
        "schedule 7 due",
        "schedule_queued 5 queued",
        "owner a.0",
        "batch 2",
        "batch_bytes 7",
        "batch_text {\"n\":3}",
        "batch_id 12",
        "lease token-of-a host-1 4711 99",
        "lease_ttl_ms",
    ]);
    assert_eq!(fields(&state, "work:2").await, expected);
    // Others wait for the share, and the count of objects in hand is not to be had.
    run(
        &mut state,
        "DEL @event.groups.blocked @objects.in.hand @event.shares.used",
    )
    .await;
    run(
        &mut state,
        "SET @objects.in.hand x; SET @event.shares.used x",
    )
    .await;
    state
        .run("ZADD", &[&state.keys.event_groups_blocked(), "0", "work\n"])
        .await;
    let told = fields(&state, "work:2").await;
    let shares: Vec<&String> = told
        .iter()
        .filter(|field| field.starts_with("share "))
        .collect();
    assert_eq!(
        shares,
        [
            "share - 0 0 0 1 *star",
            "share - 0 1 0 6 work:*work",
            "share - 0 0 0 8 work:2:*own"
        ]
    );
    run(
        &mut state,
        "DEL @event.groups.blocked; SET @event.groups.blocked x",
    )
    .await;
    let told = fields(&state, "work:2").await;
    assert!(
        told.contains(&"share - 0 0 0 6 work:*work".to_owned()),
        "{told:?}"
    );
}

#[tokio::test]
async fn an_object_without_a_slot_is_told_with_what_it_waits_for() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    state.clean().await;
    let queue = ["queued 1", "queued_bytes 2", "queued_text {}"];
    let held = [
        "held 1",
        "held_bytes 7",
        "held_text {\"n\":5}",
        "held_id 15 1 3 0 retry: connection refused",
    ];
    let expected = [&queue[..], &held, &["due_ms 1", "owner held"]].concat();
    assert_eq!(fields(&state, "work:5").await, expected);
    assert_eq!(
        fields(&state, "work:9").await,
        [
            "paused 1",
            "rule 12 pause work:91 0 0 3 0 adanot yet",
            "owner held"
        ]
    );
    // The worker's list has this object, but nothing covers its event.
    assert_eq!(fields(&state, "work:3").await, queue);
    assert_eq!(fields(&state, "nothing").await, [""; 0]);
    // An owner that is no worker id is told with the lease and the batch of this name.
    run(&mut state, "SET @x:event.worker odd; SET @event.worker:odd:lease l PX 9000; LPUSH @event.worker:odd:event {}").await;
    let of_owner = [
        "owner odd",
        "batch 1",
        "batch_bytes 2",
        "batch_text {}",
        "owner_unknown 1",
    ];
    assert_eq!(
        fields(&state, "x").await,
        [&of_owner[..], &["lease l", "lease_ttl_ms"]].concat()
    );
    run(&mut state, "DEL @event.worker:odd:lease").await;
    assert_eq!(
        fields(&state, "x").await,
        [
            "owner odd",
            "batch 1",
            "batch_bytes 2",
            "batch_text {}",
            "owner_unknown 1"
        ]
    );
}

/// Results are told up to 64 KiB together, and schedules up to 100.
#[tokio::test]
async fn results_schedules_and_events_are_told_up_to_a_limit() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let (handled, hash) = (
        state.keys.event_handled("x"),
        state.keys.events_scheduled_of("x"),
    );
    state
        .run("HSET", &[&handled, "result:a", &"a".repeat(65_536)])
        .await;
    assert_eq!(fields(&state, "x").await.len(), 1, "64 KiB");
    // The order of a hash with large values is open.
    for (first, second, results) in [(65_535, 1, 2), (65_536, 1, 1), (65_537, 65_537, 0)] {
        state
            .run(
                "HSET",
                &[
                    &handled,
                    "result:a",
                    &"a".repeat(first),
                    "result:b",
                    &"b".repeat(second),
                ],
            )
            .await;
        assert_eq!(
            fields(&state, "x").await.len(),
            results,
            "{first} and {second} bytes"
        );
    }
    run(&mut state, "DEL @x:event.handled").await;
    for n in 0..101 {
        state.run("HSET", &[&hash, &format!("k{n}"), "{}"]).await;
    }
    let told = fields(&state, "x").await;
    assert_eq!(
        (told.len(), told[0].as_str(), told[100].as_str()),
        (101, "schedules 101", "schedule - k99")
    );
    run(
        &mut state,
        "DEL @x:events.scheduled; SET @events.scheduled x; HSET @x:events.scheduled k {}",
    )
    .await;
    let wrong = "wrong events.scheduled is a string, it should be a zset";
    assert_eq!(
        fields(&state, "x").await,
        ["schedules 1", wrong, "schedule - k"]
    );
    run(&mut state, "DEL @x:events.scheduled").await;
    let long = "e".repeat(TEXT_BYTES_MAX + 1);
    state
        .run("LPUSH", &[&state.keys.events("x"), &long, "newer"])
        .await;
    let told = fields(&state, "x").await;
    assert_eq!(
        told[..2],
        [
            "queued 2".to_owned(),
            format!("queued_bytes {}", long.len())
        ]
    );
    assert_eq!(told[2].len(), "queued_text ".len() + TEXT_BYTES_MAX);
}

/// The oldest event is a reference to a schedule. The event of the schedule is told instead, if the
/// reference counts.
#[tokio::test]
async fn a_reference_is_told_as_the_event_of_its_schedule() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let (queue, hash, set) = (
        state.keys.events("x"),
        state.keys.events_scheduled_of("x"),
        state.keys.events_scheduled(),
    );
    state.run("LPUSH", &[&queue, "\0queued 7000 key"]).await;
    let told = |bytes: usize, text: &str| {
        [
            "queued 1".to_owned(),
            format!("queued_bytes {bytes}"),
            format!("queued_text {text}"),
        ]
    };
    let (replaced, reference) = ("replaced or cancelled: key", "\0queued 7000 key");
    assert_eq!(
        fields(&state, "x").await,
        told(26, replaced),
        "without a schedule"
    );
    state.run("SET", &[&set, "wrong"]).await;
    assert_eq!(
        fields(&state, "x").await,
        told(26, replaced),
        "schedules of a wrong type"
    );
    state.run("DEL", &[&set]).await;
    state
        .run("ZADD", &[&set, "-1000000000007000", "x\nkey"])
        .await;
    assert_eq!(
        fields(&state, "x").await,
        told(16, reference),
        "without an event"
    );
    state.run("SET", &[&hash, "wrong"]).await;
    let wrong = vec!["wrong x:events.scheduled is a string, it should be a hash".to_owned()];
    assert_eq!(
        fields(&state, "x").await,
        [told(16, reference).to_vec(), wrong].concat(),
        "an event of a wrong type"
    );
    state.run("DEL", &[&hash]).await;
    state.run("HSET", &[&hash, "key", "{\"a\":1}"]).await;
    assert_eq!(
        fields(&state, "x").await[..3],
        told(7, "{\"a\":1}"),
        "the event"
    );
    state
        .run("ZADD", &[&set, "-1000000000007001", "x\nkey"])
        .await;
    assert_eq!(
        fields(&state, "x").await[..3],
        told(26, replaced),
        "queued at another time"
    );
}

#[tokio::test]
async fn each_key_of_a_wrong_type_is_told() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let lists = [
        "x:events",
        "x:events.held",
        "x:event.errors",
        "objects.with.events",
        "event.group:x:waiting",
        "event.worker:w.0:event",
    ];
    let strings = [
        "x:events.held.id",
        "x:last.event.id",
        "event.worker:w.0:event.id",
        "event.worker:w:lease",
    ];
    let zsets = ["objects.held", "objects.paused", "events.scheduled"];
    let hashes = ["event.rules", "event.shares"];
    run(&mut state, "SET @x:event.worker w.0; ZADD @event.groups 0 x; HSET @x:events.scheduled k {}; SET @x:event.handled x")
        .await;
    let mut expected = Vec::new();
    for (keys, kind, wrong) in [
        (&lists[..], "list", "string"),
        (&strings, "string", "list"),
        (&zsets, "zset", "string"),
        (&hashes, "hash", "string"),
    ] {
        for key in keys {
            run(
                &mut state,
                &format!("{} @{key} x", if wrong == "list" { "LPUSH" } else { "SET" }),
            )
            .await;
            expected.push(format!("wrong {key} is a {wrong}, it should be a {kind}"));
        }
    }
    expected.extend(
        [
            "groups 1",
            "owner w.0",
            "owner_unknown 1",
            "schedule - k",
            "schedules 1",
        ]
        .map(str::to_owned),
    );
    expected.sort();
    let mut told = fields(&state, "x").await;
    told.sort();
    assert_eq!(told, expected);
    run(
        &mut state,
        "DEL @event.groups @x:events.scheduled @x:event.worker",
    )
    .await;
    run(
        &mut state,
        "SET @event.groups x; SET @x:events.scheduled x; LPUSH @x:event.worker x",
    )
    .await;
    let told = fields(&state, "x").await;
    for (key, found, kind) in [
        ("event.groups", "string", "zset"),
        ("x:events.scheduled", "string", "hash"),
        ("x:event.worker", "list", "string"),
    ] {
        let wrong = format!("wrong {key} is a {found}, it should be a {kind}");
        assert!(told.contains(&wrong), "{key}: {told:?}");
    }
    assert!(
        told.iter().all(|field| field.starts_with("wrong ")),
        "{told:?}"
    );
}

/// The place of a marker counts the markers that are taken before it, without the marks between.
#[tokio::test]
async fn the_place_of_a_marker_is_told_without_the_marks() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let (markers, marks) = (state.keys.objects_with_events(), state.keys.event_marks());
    state
        .run("ZADD", &[&marks, "10", "10", "20", "20", "30", "30"])
        .await;
    state
        .run(
            "LPUSH",
            &[&markers, "a", "\0t10", "b", "a", "\0t20", "c", "\0t30", "d"],
        )
        .await;
    for met in [false, true] {
        if met {
            state.run("ZADD", &[&marks, "5", "met"]).await;
        }
        for (object, before, mark) in [
            ("a", 0, Some(10)),
            ("b", 1, Some(20)),
            ("c", 3, Some(30)),
            ("d", 4, None),
        ] {
            let mut expected: Vec<String> = mark
                .iter()
                .map(|mark| format!("marked_before_ms {mark}"))
                .collect();
            expected.push(format!("markers_before {before}"));
            assert_eq!(fields(&state, object).await, expected, "{object}");
        }
    }
    state.run("DEL", &[&marks]).await;
    state.run("SET", &[&marks, "wrong"]).await;
    let wrong = "wrong event.marks is a string, it should be a zset";
    assert_eq!(fields(&state, "b").await, [wrong, "markers_before 2"]);
}

/// The search ends after 10,000 markers, and after 10,000 names in the list of a group.
#[tokio::test]
async fn what_is_behind_10_000_names_is_beyond_the_search() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let (markers, list) = (
        state.keys.objects_with_events(),
        state.keys.group_waiting("g"),
    );
    let others: Vec<String> = (0..9999).map(|n| format!("o{n}")).collect();
    state
        .run(
            "ZADD",
            &[
                &state.keys.event_groups(),
                "3298534883328",
                "g",
                "3298534883327",
                "g:x",
            ],
        )
        .await;
    for key in [&markers, &list] {
        let mut names = vec![key.as_str()];
        names.extend(others.iter().map(String::as_str));
        state.run("LPUSH", &names).await;
        state.run("LPUSH", &[key, "g:x"]).await;
    }
    let found = [
        "markers_before 9999",
        "groups 2",
        "group g",
        "group_before 9999",
        "group_parked 1",
    ];
    assert_eq!(fields(&state, "g:x").await, found);
    assert_eq!(fields(&state, "g:y").await, ["groups 2"], "all is searched");
    for key in [&markers, &list] {
        state.run("RPUSH", &[key, "first"]).await;
    }
    assert_eq!(
        fields(&state, "g:x").await,
        [
            "markers_beyond 1",
            "groups 2",
            "group_beyond g",
            "group_parked 1"
        ]
    );
    state
        .run("LPUSH", &[&state.keys.group_waiting("g:x"), "g:x"])
        .await;
    assert_eq!(
        fields(&state, "g:x").await,
        [
            "markers_beyond 1",
            "groups 2",
            "group g:x",
            "group_before 0"
        ]
    );
}

/// A name is looked for in the list of each group to which it can belong, those with many parts
/// first. Two lists are longer than the search: the first is told.
#[tokio::test]
async fn a_name_is_found_in_the_list_of_each_of_its_groups() {
    let redis = Redis::start();
    let mut state = state(&redis).await;
    let object = "a:b:c:d:e:f:g:h:i:j";
    let groups = [
        object,
        "a:b:c:d:e:f:g:h",
        "a:b:c:d:e:f:g",
        "a:b:c:d:e:f",
        "a:b:c:d:e",
        "a:b:c:d",
        "a:b:c",
        "a:b",
        "a",
        "\0rest",
    ];
    for group in groups {
        state
            .run("ZADD", &[&state.keys.event_groups(), "0", group])
            .await;
        state
            .run(
                "RPUSH",
                &[&state.keys.group_waiting(group), "x", object, "y", "z"],
            )
            .await;
    }
    state
        .run(
            "RPUSH",
            &[&state.keys.group_waiting("a:b:c:d:e:f:g:h:i"), object],
        )
        .await;
    for (n, group) in groups.iter().enumerate() {
        let expected = [
            format!("groups {}", 10 - n),
            format!("group {group}"),
            "group_before 2".to_owned(),
        ];
        assert_eq!(fields(&state, object).await, expected);
        // No worker takes names from a list that is not in event.groups.
        state
            .run("ZREM", &[&state.keys.event_groups(), group])
            .await;
    }
    assert_eq!(fields(&state, object).await, [""; 0]);
    let many: Vec<String> = (0..10_001).map(|n| format!("o{n}")).collect();
    for group in ["a:b", "a"] {
        let list = state.keys.group_waiting(group);
        state.run("DEL", &[&list]).await;
        state
            .run("ZADD", &[&state.keys.event_groups(), "0", group])
            .await;
        state
            .run(
                "RPUSH",
                &[
                    &[list.as_str()],
                    many.iter()
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .as_slice(),
                ]
                .concat(),
            )
            .await;
    }
    assert_eq!(
        fields(&state, object).await,
        ["groups 2", "group_beyond a:b"]
    );
}
