//! `mark`: what one call does, at each state of the markers and of `event.marks`.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::values::Mark;
use seriatim::wire::{self, Bounds, Marked, ScriptError, Sweep};

use crate::support::Redis;
use crate::support::console::Console;
use crate::{BOUNDS, ask, attached, objects};

/// A namespace, and the time at which its test has begun.
struct Scene {
    redis: Redis,
    conn: MultiplexedConnection,
    console: Console,
    keys: Keys,
    began_ms: i64,
}

impl Scene {
    async fn new() -> Self {
        let redis = Redis::start();
        let (conn, console, keys) = (
            redis.connect().await,
            redis.console().await,
            redis.keys().clone(),
        );
        let now: (i64, i64) = console.run(&["TIME"]).await;
        Self {
            redis,
            conn,
            console,
            keys,
            began_ms: now.0 * 1000 + now.1 / 1000,
        }
    }

    /// Makes the present time the beginning of the test.
    async fn begin(&mut self) {
        let now: (i64, i64) = self.console.run(&["TIME"]).await;
        self.began_ms = now.0 * 1000 + now.1 / 1000;
    }

    /// Adds a marker.
    async fn marker(&self) {
        self.console.emit("work:1", "1").await;
    }

    /// Replaces `event.marks` by these members, each with a time in ms from now.
    async fn set(&self, members: &[(&str, i64)]) {
        let key = self.keys.event_marks();
        let _: u64 = self.console.run(&["DEL", &key]).await;
        for some in members.chunks(5000) {
            let pairs: Vec<String> = some
                .iter()
                .flat_map(|(member, ms)| [(self.began_ms + ms).to_string(), (*member).to_owned()])
                .collect();
            let mut words = vec!["ZADD", &key];
            words.extend(pairs.iter().map(String::as_str));
            let _: u64 = self.console.run(&words).await;
        }
    }

    /// Returns the members of `event.marks`, with times from the beginning of the test.
    async fn marks(&self) -> Vec<(String, i64)> {
        let all: Vec<(String, i64)> = self
            .console
            .run(&["ZRANGE", &self.keys.event_marks(), "0", "-1", "WITHSCORES"])
            .await;
        all.into_iter()
            .map(|(member, ms)| (member, ms - self.began_ms))
            .collect()
    }

    /// Calls the script. Asserts that a sweep says before the call whether a mark is due, and says
    /// after it that none is.
    async fn mark(&mut self) -> Marked {
        let was_due = self.is_due().await;
        let since = Instant::now();
        let marked = wire::mark(&mut self.conn, &self.keys)
            .await
            .expect("a reply");
        assert_eq!(
            was_due,
            marked != Marked::Kept,
            "a sweep says whether a mark is due"
        );
        // On a busy machine the next mark may be due before the sweep looks.
        let is_due = self.is_due().await;
        assert!(
            !is_due || since.elapsed() > Duration::from_millis(900),
            "nothing is due right after a call"
        );
        marked
    }

    async fn is_due(&mut self) -> bool {
        let (look, forget) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let sweep = Sweep {
            own: "w",
            crashes_max: 5,
            look,
            forget,
            since: None,
            notice: look,
        };
        wire::adopt(&mut self.conn, &self.keys, &sweep)
            .await
            .expect("swept")
            .mark
    }

    /// Returns the times of the marks among the markers, the newest first, from the beginning of
    /// the test.
    async fn listed(&self) -> Vec<i64> {
        let names: Vec<Vec<u8>> = self
            .console
            .run(&["LRANGE", &self.keys.objects_with_events(), "0", "-1"])
            .await;
        names
            .iter()
            .filter_map(|name| Mark::read(name))
            .map(|mark| mark.ms as i64 - self.began_ms)
            .collect()
    }
}

/// Tests that the first mark has the present time, as member, as score and in the list.
#[tokio::test]
async fn a_mark_has_the_present_time() {
    let mut scene = Scene::new().await;
    scene.marker().await;
    assert_eq!(scene.mark().await, Marked::Pushed);
    let (marks, listed) = (scene.marks().await, scene.listed().await);
    assert_eq!((marks.len(), listed.len()), (1, 1));
    assert_eq!(
        (marks[0].1, marks[0].0.parse::<i64>().expect("a time")),
        (listed[0], scene.began_ms + listed[0])
    );
    assert!((0..60_000).contains(&listed[0]), "{listed:?}");
    assert_eq!(scene.mark().await, Marked::Kept);
}

/// Tests the distance of marks: 1 s, and 1/4096 of the age of the oldest one.
#[rstest::rstest]
#[case::young(&[("old", -50)], Marked::Kept)]
#[case::a_second(&[("old", -1100)], Marked::Pushed)]
#[case::an_hour(&[("old", -3_600_000), ("new", -50)], Marked::Kept)]
#[case::an_hour_and_a_second(&[("old", -3_600_000), ("new", -1100)], Marked::Pushed)]
#[case::eleven_hours(&[("old", -40_960_000), ("new", -5000)], Marked::Kept)]
#[case::eleven_hours_and_ten_seconds(&[("old", -40_960_000), ("new", -10_200)], Marked::Pushed)]
#[case::fifty_years(&[("old", -1_638_400_000_000), ("new", -399_950_000)], Marked::Kept)]
#[case::fifty_years_and_five_days(&[("old", -1_638_400_000_000), ("new", -400_000_100)], Marked::Pushed)]
#[case::met_eleven_hours_ago(&[("met", -40_960_000), ("new", -5000)], Marked::Kept)]
#[case::met_just_now(&[("met", -50)], Marked::Kept)]
#[case::met_a_second_ago(&[("met", -1100)], Marked::Pushed)]
#[tokio::test]
async fn marks_have_a_distance(#[case] marks: &[(&str, i64)], #[case] expected: Marked) {
    let mut scene = Scene::new().await;
    scene.marker().await;
    scene.begin().await;
    scene.set(marks).await;
    assert_eq!(scene.mark().await, expected);
    let pushed = usize::from(expected == Marked::Pushed);
    assert_eq!(
        (scene.marks().await.len(), scene.listed().await.len()),
        (marks.len() + pushed, pushed)
    );
}

/// Tests that without markers only the time is noted, and that the marks in `event.marks` are
/// removed.
#[rstest::rstest]
#[case::nothing(&[])]
#[case::met(&[("met", -1100)])]
#[case::marks(&[("met", -90_000), ("1", -60_000), ("2", -2000)])]
#[case::no_distance_by_age(&[("1", -40_960_000), ("2", -1500)])]
#[tokio::test]
async fn without_markers_the_time_is_noted(#[case] marks: &[(&str, i64)]) {
    let mut scene = Scene::new().await;
    scene.set(marks).await;
    assert_eq!(scene.mark().await, Marked::Noted);
    let left = scene.marks().await;
    assert_eq!(left.len(), 1);
    assert!(
        left[0].0 == "met" && (0..60_000).contains(&left[0].1),
        "{left:?}"
    );
    assert_eq!(scene.listed().await, [0; 0]);
    // On a busy machine the call may come more than a second after the time that is set.
    loop {
        let since = Instant::now();
        scene.begin().await;
        scene.set(&[("met", -50)]).await;
        match wire::mark(&mut scene.conn, &scene.keys)
            .await
            .expect("a reply")
        {
            Marked::Kept => break,
            marked => assert!(
                since.elapsed() > Duration::from_millis(900),
                "{marked:?}: at most one write per second"
            ),
        }
    }
}

/// Tests that times in the future become the present time.
#[tokio::test]
async fn times_in_the_future_become_the_present_time() {
    let mut scene = Scene::new().await;
    scene.marker().await;
    scene
        .set(&[("met", -5000), ("1", 3_600_000), ("2", 3_690_000)])
        .await;
    let _: u64 = scene
        .console
        .run(&["ZADD", &scene.keys.event_marks(), "+inf", "3"])
        .await;
    assert_eq!(scene.mark().await, Marked::Noted);
    let marks = scene.marks().await;
    assert_eq!(marks[0], ("met".to_owned(), -5000));
    assert_eq!(marks.len(), 4);
    assert!(
        marks[1..]
            .iter()
            .all(|(_, ms)| *ms == marks[1].1 && (0..60_000).contains(ms)),
        "{marks:?}"
    );
    assert_eq!(scene.listed().await, [0; 0]);
    // A mark that is taken next stays until the times are right.
    let list = scene.keys.objects_with_events();
    let _: u64 = scene.console.run(&["RPUSH", &list, "\0t1"]).await;
    scene.set(&[("1", 3_600_000)]).await;
    assert_eq!(
        wire::mark(&mut scene.conn, &scene.keys)
            .await
            .expect("a reply"),
        Marked::Noted
    );
    assert_eq!(scene.console.list(&list).await, ["\0t1", "work:1"]);
    let marks = scene.marks().await;
    assert!(
        marks.len() == 1 && (0..60_000).contains(&marks[0].1),
        "{marks:?}"
    );
}

/// Tests that no more than 50,000 marks wait.
#[tokio::test]
async fn the_number_of_marks_is_bounded() {
    let mut scene = Scene::new().await;
    scene.marker().await;
    let names: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
    let marks: Vec<(&str, i64)> = names
        .iter()
        .zip(0..)
        .map(|(name, n)| (&name[..], -n - 90_000))
        .collect();
    scene.set(&marks[1..]).await;
    assert_eq!(
        wire::mark(&mut scene.conn, &scene.keys)
            .await
            .expect("a reply"),
        Marked::Pushed
    );
    scene.set(&marks).await;
    assert_eq!(
        wire::mark(&mut scene.conn, &scene.keys)
            .await
            .expect("a reply"),
        Marked::Noted
    );
    assert_eq!(scene.listed().await.len(), 1);
}

/// Story: all slots were busy when the last marker was taken. The marks behind it stayed, and the
/// next marker seemed to have waited as long as they had.
#[tokio::test]
async fn marks_without_a_marker_before_them_go() {
    let mut scene = Scene::new().await;
    let list = scene.keys.objects_with_events();
    let times = [
        scene.began_ms - 30_000,
        scene.began_ms - 20_000,
        scene.began_ms - 10_000,
    ];
    let members: Vec<String> = times.iter().map(i64::to_string).collect();
    scene
        .set(&[
            (&members[0], -30_000),
            (&members[1], -20_000),
            (&members[2], -10_000),
        ])
        .await;
    for time in &members[..2] {
        let _: u64 = scene
            .console
            .run(&["LPUSH", &list, &format!("\0t{time}")])
            .await;
    }
    scene.marker().await;
    let _: u64 = scene
        .console
        .run(&["LPUSH", &list, &format!("\0t{}", members[2])])
        .await;
    assert_eq!(scene.mark().await, Marked::Pushed);
    let marks = scene.marks().await;
    assert_eq!(
        marks[..2],
        [("met".to_owned(), -20_000), (members[2].clone(), -10_000)]
    );
    assert_eq!(
        (marks.len(), scene.listed().await[1..].to_vec()),
        (3, vec![-10_000])
    );
    // With only marks in the list, the list becomes empty, and the time is noted.
    let _: u64 = scene.console.run(&["LREM", &list, "0", "work:1"]).await;
    assert_eq!(scene.mark().await, Marked::Noted);
    let marks = scene.marks().await;
    assert!(marks.len() == 1 && marks[0].0 == "met", "{marks:?}");
    assert_eq!(scene.console.run::<u64>(&["EXISTS", &list]).await, 0);
    // So it is with a single mark.
    let _: u64 = scene
        .console
        .run(&["LPUSH", &list, &format!("\0t{}", members[0])])
        .await;
    scene.set(&[(&members[0], -30_000)]).await;
    assert_eq!(scene.mark().await, Marked::Noted);
    assert_eq!(scene.console.run::<u64>(&["EXISTS", &list]).await, 0);
}

/// A call removes 500 marks that are taken next. The next call removes the others.
#[tokio::test]
async fn a_call_removes_500_marks_that_are_taken_next() {
    let mut scene = Scene::new().await;
    let list = scene.keys.objects_with_events();
    let names: Vec<String> = (1..=600).map(|ms| format!("\0t{ms}")).collect();
    let push: Vec<&str> = ["LPUSH", &list]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    let _: u64 = scene.console.run(&push).await;
    let (times, key): (Vec<String>, _) = (
        (1..=600).map(|ms: u64| ms.to_string()).collect(),
        scene.keys.event_marks(),
    );
    let add: Vec<&str> = ["ZADD", &key]
        .into_iter()
        .chain(times.iter().flat_map(|ms| [&ms[..], &ms[..]]))
        .collect();
    let _: u64 = scene.console.run(&add).await;
    assert_eq!(
        wire::mark(&mut scene.conn, &scene.keys)
            .await
            .expect("a reply"),
        Marked::Noted
    );
    assert_eq!(scene.console.list(&list).await, names[500..]);
    let left: Vec<String> = scene.console.run(&["ZRANGE", &key, "0", "-1"]).await;
    let expected: Vec<&str> = ["met"]
        .into_iter()
        .chain(times[500..].iter().map(String::as_str))
        .collect();
    assert_eq!(left, expected);
    assert_eq!(scene.mark().await, Marked::Noted);
    assert_eq!(scene.console.run::<u64>(&["EXISTS", &list]).await, 0);
}

/// A call that meets a mark removes up to 10,000 older ones. An older mark that it has also met
/// changes nothing.
#[tokio::test]
async fn a_mark_takes_10000_older_marks_with_it() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (list, marks) = (state.keys.objects_with_events(), state.keys.event_marks());
    let times: Vec<String> = (10_000..22_000).map(|ms| ms.to_string()).collect();
    for some in times.chunks(4000) {
        let pairs: Vec<&str> = some.iter().flat_map(|ms| [&ms[..], &ms[..]]).collect();
        state
            .run("ZADD", &[&[&marks[..]], &pairs[..]].concat())
            .await;
    }
    state.run("RPUSH", &[&list, "\0t21000", "\0t21998"]).await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        Vec::<&str>::new()
    );
    let left: Vec<(String, u64)> = redis
        .console()
        .await
        .run(&["ZRANGE", &marks, "0", "-1", "WITHSCORES"])
        .await;
    let expected: Vec<_> = (20_000..=21_998).map(|ms| (ms.to_string(), ms)).collect();
    assert_eq!(left[..left.len() - 2], expected);
    assert_eq!(
        left[left.len() - 2..],
        [("met".to_owned(), 21_998), ("21999".to_owned(), 21_999)]
    );
}

/// Tests that a call that meets a mark also removes all older marks, even if they are many.
#[tokio::test]
async fn many_old_marks_go_with_a_newer_one() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (list, marks) = (state.keys.objects_with_events(), state.keys.event_marks());
    let times: Vec<String> = (1000..6000).map(|ms| ms.to_string()).collect();
    let pairs: Vec<&str> = times.iter().flat_map(|ms| [&ms[..], &ms[..]]).collect();
    state
        .run("ZADD", &[&[&marks[..], "500", "met"], &pairs[..]].concat())
        .await;
    state.run("LPUSH", &[&list, "\0t5998"]).await;
    state.emit("work:1", "1").await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["work:1"]
    );
    let left: Vec<(String, u64)> = redis
        .console()
        .await
        .run(&["ZRANGE", &marks, "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(left, [("met".to_owned(), 5998), ("5999".to_owned(), 5999)]);
}

/// Tests that a user without one of the rights changes nothing, and that a key of a wrong type is
/// left alone.
#[tokio::test]
async fn without_rights_nothing_is_changed() {
    let mut scene = Scene::new().await;
    scene.redis = Redis::own(&[]);
    let (console, keys) = (scene.redis.console().await, scene.redis.keys().clone());
    console.emit("work:1", "1").await;
    let _: u64 = console
        .run(&["ZADD", &keys.event_marks(), "1000", "met"])
        .await;
    for command in ["zadd", "zrem", "lpush", "rpop"] {
        console
            .run::<()>(&[
                "ACL",
                "SETUSER",
                "reader",
                "reset",
                "on",
                "nopass",
                "~*",
                "+@all",
                &format!("-{command}"),
            ])
            .await;
        let mut conn = scene.redis.connect().await;
        redis::cmd("AUTH")
            .arg("reader")
            .arg("none")
            .exec_async(&mut conn)
            .await
            .expect("a user");
        match wire::mark(&mut conn, &keys).await {
            Err(ScriptError::Denied(denied)) => assert_eq!(denied.to_lowercase(), command),
            other => panic!("{command}: {other:?}"),
        }
    }
    let markers: u64 = console.run(&["LLEN", &keys.objects_with_events()]).await;
    assert_eq!(
        (
            markers,
            console.run::<u64>(&["ZCARD", &keys.event_marks()]).await
        ),
        (1, 1)
    );
    let mut conn = scene.redis.connect().await;
    for key in [keys.event_marks(), keys.objects_with_events()] {
        let _: u64 = console.run(&["DEL", &key]).await;
        let _: u64 = console.run(&["SADD", &key, "wrong"]).await;
        assert_eq!(
            wire::mark(&mut conn, &keys).await.expect("a reply"),
            Marked::Kept,
            "{key}"
        );
        let _: u64 = console.run(&["DEL", &key]).await;
    }
}

/// Tests that a call still meets a mark of `event.marks` if it reads a mark of another program
/// together with this mark.
#[tokio::test]
async fn a_mark_of_somebody_else_hides_no_other() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (list, marks) = (state.keys.objects_with_events(), state.keys.event_marks());
    state
        .run("ZADD", &[&marks, "1000", "1000", "3000", "3000"])
        .await;
    state.run("LPUSH", &[&list, "\0t1000", "\0t2000"]).await;
    state.emit("work:1", "1").await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["work:1"]
    );
    let left: Vec<(String, u64)> = redis
        .console()
        .await
        .run(&["ZRANGE", &marks, "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(left, [("met".to_owned(), 1000), ("3000".to_owned(), 3000)]);
}

/// A mark is met when it is taken from the list. The reply is full after the marker before the
/// mark, so the mark stays in the list, and is not met.
#[tokio::test]
async fn a_mark_that_stays_in_the_list_is_not_met() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.emit("work:1", "1").await;
    state
        .run("LPUSH", &[&keys.objects_with_events(), "\0t1000"])
        .await;
    state
        .run("ZADD", &[&keys.event_marks(), "1000", "1000"])
        .await;
    state.emit("work:2", "1").await;
    let answer = ask(
        &mut state,
        Bounds {
            reply_bytes: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), ["work:1"]);
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        ["\0t1000", "work:2"]
    );
    assert_eq!(
        console
            .run::<Vec<String>>(&["ZRANGE", &keys.event_marks(), "0", "-1"])
            .await,
        ["1000"]
    );
}

/// Story: names that returned from the list of a slot to the markers had changed the order of two
/// marks. A call met the newer mark first, and the older mark last. It noted only the older one, so
/// the newer one seemed to wait.
#[tokio::test]
async fn the_newest_mark_counts_whatever_the_order_of_marks() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .run(
            "RPUSH",
            &[&keys.objects_with_events(), "\0t1000", "\0t2000"],
        )
        .await;
    state
        .run(
            "ZADD",
            &[&keys.event_marks(), "1000", "1000", "2000", "2000"],
        )
        .await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(
        console
            .run::<Vec<String>>(&["ZRANGE", &keys.event_marks(), "0", "-1", "WITHSCORES"])
            .await,
        ["met", "2000"]
    );
}
