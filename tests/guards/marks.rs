//! `mark`: what one call does, at each state of the markers and of `event.marks`.

use std::time::{Duration, Instant};

use seriatim::wire::values::Mark;
use seriatim::wire::{self, Marked, ScriptError, Sweep};

use crate::scene::{BOUNDS, Scene, bounds};
use crate::support::Redis;

/// A scene without a process, and the time at which its test has begun.
struct Marks {
    scene: Scene,
    began_ms: i64,
}

impl Marks {
    async fn new() -> Self {
        let mut marks = Self {
            scene: Scene::bare(Redis::start()).await,
            began_ms: 0,
        };
        marks.begin().await;
        marks
    }

    /// Makes the present time the beginning of the test.
    async fn begin(&mut self) {
        self.began_ms = self.scene.now_ms().await as i64;
    }

    /// Replaces `event.marks` by these members, each with a time in ms from now.
    async fn set(&self, members: &[(&str, i64)]) {
        self.scene.add("DEL event.marks").await;
        for some in members.chunks(5000) {
            let pair = |(member, ms): &(&str, i64)| format!(" {} {member}", self.began_ms + ms);
            let pairs: String = some.iter().map(pair).collect();
            self.scene.add(&format!("ZADD event.marks{pairs}")).await;
        }
    }

    /// Returns the members of `event.marks`, with times from the beginning of the test.
    async fn all(&self) -> Vec<(String, i64)> {
        let all = self.scene.scores("event.marks").await.into_iter();
        all.map(|(member, ms)| (member, ms as i64 - self.began_ms))
            .collect()
    }

    /// Calls the script. Asserts that a sweep says before the call whether a mark is due, and says
    /// after it that none is.
    async fn mark(&self) -> Marked {
        let was_due = self.is_due().await;
        let since = Instant::now();
        let marked = self.mark_only().await;
        let expected = marked != Marked::Kept;
        assert_eq!(was_due, expected, "a sweep says whether a mark is due");
        // On a busy machine the next mark may be due before the sweep looks.
        let is_due = self.is_due().await && since.elapsed() < Duration::from_millis(900);
        assert!(!is_due, "nothing is due right after a call");
        marked
    }

    /// Calls the script.
    async fn mark_only(&self) -> Marked {
        let marked = wire::mark(&mut self.scene.conn().await, &self.scene.keys).await;
        marked.expect("a reply")
    }

    async fn is_due(&self) -> bool {
        let (look, forget) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let sweep = Sweep {
            own: "w",
            crashes_max: 5,
            look,
            forget,
            since: None,
            notice: look,
        };
        let adopted = wire::adopt(&mut self.scene.conn().await, &self.scene.keys, &sweep).await;
        adopted.expect("swept").mark
    }

    /// Returns the times of the marks among the markers, the newest first, from the beginning of
    /// the test.
    async fn listed(&self) -> Vec<i64> {
        let names = self
            .scene
            .list(&self.scene.keys.objects_with_events())
            .await;
        let marks = names
            .iter()
            .rev()
            .filter_map(|name| Mark::read(name.as_bytes()));
        marks.map(|mark| mark.ms as i64 - self.began_ms).collect()
    }
}

/// Tests that the first mark has the present time, as member, as score and in the list.
#[tokio::test]
async fn a_mark_has_the_present_time() {
    let marks = Marks::new().await;
    marks.scene.emit("work:1", "1").await;
    assert_eq!(marks.mark().await, Marked::Pushed);
    let (all, listed) = (marks.all().await, marks.listed().await);
    assert_eq!((all.len(), listed.len()), (1, 1));
    let member = (marks.began_ms + listed[0]).to_string();
    assert_eq!(all[0], (member, listed[0]));
    assert!((0..60_000).contains(&listed[0]), "{listed:?}");
    assert_eq!(marks.mark().await, Marked::Kept);
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
async fn marks_have_a_distance(#[case] given: &[(&str, i64)], #[case] expected: Marked) {
    let mut marks = Marks::new().await;
    marks.scene.emit("work:1", "1").await;
    marks.begin().await;
    marks.set(given).await;
    assert_eq!(marks.mark().await, expected);
    let pushed = usize::from(expected == Marked::Pushed);
    assert_eq!(marks.all().await.len(), given.len() + pushed);
    assert_eq!(marks.listed().await.len(), pushed);
}

/// Tests that without markers only the time is noted, and that the marks in `event.marks` are
/// removed.
#[rstest::rstest]
#[case::nothing(&[])]
#[case::met(&[("met", -1100)])]
#[case::marks(&[("met", -90_000), ("1", -60_000), ("2", -2000)])]
#[case::no_distance_by_age(&[("1", -40_960_000), ("2", -1500)])]
#[tokio::test]
async fn without_markers_the_time_is_noted(#[case] given: &[(&str, i64)]) {
    let mut marks = Marks::new().await;
    marks.set(given).await;
    assert_eq!(marks.mark().await, Marked::Noted);
    let left = marks.all().await;
    assert_eq!((left.len(), left[0].0.as_str()), (1, "met"));
    assert!((0..60_000).contains(&left[0].1), "{left:?}");
    assert_eq!(marks.listed().await, [0; 0]);
    // On a busy machine the call may come more than a second after the time that is set.
    loop {
        let since = Instant::now();
        marks.begin().await;
        marks.set(&[("met", -50)]).await;
        match marks.mark_only().await {
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
    let marks = Marks::new().await;
    marks.scene.emit("work:1", "1").await;
    marks
        .set(&[("met", -5000), ("1", 3_600_000), ("2", 3_690_000)])
        .await;
    marks.scene.add("ZADD event.marks +inf 3").await;
    assert_eq!(marks.mark().await, Marked::Noted);
    let all = marks.all().await;
    assert_eq!((all.len(), &all[0]), (4, &("met".to_owned(), -5000)));
    let is_now = |(_, ms): &(String, i64)| *ms == all[1].1 && (0..60_000).contains(ms);
    assert!(all[1..].iter().all(is_now), "{all:?}");
    assert_eq!(marks.listed().await, [0; 0]);
    // A mark that is taken next stays until the times are right.
    marks.scene.add("RPUSH objects.with.events \0t1").await;
    marks.set(&[("1", 3_600_000)]).await;
    assert_eq!(marks.mark_only().await, Marked::Noted);
    let list = marks.scene.keys.objects_with_events();
    assert_eq!(marks.scene.list(&list).await, ["\0t1", "work:1"]);
    let all = marks.all().await;
    assert!(all.len() == 1 && (0..60_000).contains(&all[0].1), "{all:?}");
}

/// Tests that no more than 50,000 marks wait.
#[tokio::test]
async fn the_number_of_marks_is_bounded() {
    let marks = Marks::new().await;
    marks.scene.emit("work:1", "1").await;
    let names: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
    let given = names
        .iter()
        .zip(0..)
        .map(|(name, n)| (&name[..], -n - 90_000));
    let given: Vec<(&str, i64)> = given.collect();
    marks.set(&given[1..]).await;
    assert_eq!(marks.mark_only().await, Marked::Pushed);
    marks.set(&given).await;
    assert_eq!(marks.mark_only().await, Marked::Noted);
    assert_eq!(marks.listed().await.len(), 1);
}

/// Story: all slots were busy when the last marker was taken. The marks behind it stayed, and the
/// next marker seemed to have waited as long as they had.
#[tokio::test]
async fn marks_without_a_marker_before_them_go() {
    let marks = Marks::new().await;
    let [old, met, new] = [-30_000, -20_000, -10_000].map(|ms| marks.began_ms + ms);
    let [a, b, c] = [old, met, new].map(|at| at.to_string());
    marks
        .set(&[(&a, -30_000), (&b, -20_000), (&c, -10_000)])
        .await;
    let push = |at| format!("LPUSH objects.with.events \0t{at}");
    let given = format!("{}; {}; emit work:1 1; {}", push(old), push(met), push(new));
    marks.scene.add(&given).await;
    assert_eq!(marks.mark().await, Marked::Pushed);
    let all = marks.all().await;
    assert_eq!(all[..2], [("met".to_owned(), -20_000), (c, -10_000)]);
    assert_eq!((all.len(), &marks.listed().await[1..]), (3, &[-10_000][..]));
    // With only marks in the list, the list becomes empty, and the time is noted.
    marks.scene.add("LREM objects.with.events 0 work:1").await;
    assert_eq!(marks.mark().await, Marked::Noted);
    let all = marks.all().await;
    assert!(all.len() == 1 && all[0].0 == "met", "{all:?}");
    assert_eq!(marks.scene.at("objects.with.events").await, "nil");
    // So it is with a single mark.
    marks.scene.add(&push(old)).await;
    marks.set(&[(&a, -30_000)]).await;
    assert_eq!(marks.mark().await, Marked::Noted);
    assert_eq!(marks.scene.at("objects.with.events").await, "nil");
}

/// A call removes 500 marks that are taken next. The next call removes the others.
#[tokio::test]
async fn a_call_removes_500_marks_that_are_taken_next() {
    let marks = Marks::new().await;
    let push: String = (1..=600).map(|ms| format!(" \0t{ms}")).collect();
    marks
        .scene
        .add(&format!("LPUSH objects.with.events{push}"))
        .await;
    marks
        .scene
        .add(&format!("ZADD event.marks{}", pairs(1..=600)))
        .await;
    assert_eq!(marks.mark_only().await, Marked::Noted);
    let left: Vec<String> = (501..=600).map(|ms| format!("\0t{ms}")).collect();
    let list = marks.scene.keys.objects_with_events();
    assert_eq!(marks.scene.list(&list).await, left);
    let members = marks.all().await.into_iter().map(|(member, _)| member);
    let expected = ["met".to_owned()]
        .into_iter()
        .chain((501..=600).map(|ms| ms.to_string()));
    assert!(members.eq(expected));
    assert_eq!(marks.mark().await, Marked::Noted);
    assert_eq!(marks.scene.at("objects.with.events").await, "nil");
}

/// Returns the words that add marks with these times.
fn pairs(times: impl Iterator<Item = u64>) -> String {
    times.map(|ms| format!(" {ms} {ms}")).collect()
}

/// A call that meets a mark removes up to 10,000 older ones. An older mark that it has also met
/// changes nothing.
#[tokio::test]
async fn a_mark_takes_10000_older_marks_with_it() {
    let scene = Scene::new().await;
    for from in [10_000, 14_000, 18_000] {
        scene
            .add(&format!("ZADD event.marks{}", pairs(from..from + 4000)))
            .await;
    }
    let given = "RPUSH objects.with.events \0t21000 \0t21998";
    scene.add(given).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    let members = scene
        .scores("event.marks")
        .await
        .into_iter()
        .map(|(member, _)| member);
    let expected = (20_000..=21_998).map(|ms| ms.to_string());
    assert!(members.eq(expected.chain(["met".to_owned(), "21999".to_owned()])));
    let met: u64 = scene
        .run(&["ZSCORE", &scene.keys.event_marks(), "met"])
        .await;
    assert_eq!(met, 21_998);
}

/// Tests that a call that meets a mark also removes all older marks, even if they are many.
#[tokio::test]
async fn many_old_marks_go_with_a_newer_one() {
    let scene = Scene::new().await;
    scene
        .add(&format!("ZADD event.marks 500 met{}", pairs(1000..6000)))
        .await;
    let given = "LPUSH objects.with.events \0t5998; emit work:1 1";
    scene.add(given).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["work:1"]);
    assert_eq!(scene.at("event.marks").await, "<met: 5998, 5999: 5999>");
}

/// Tests that a user without one of the rights changes nothing, and that a key of a wrong type is
/// left alone.
#[tokio::test]
async fn without_rights_nothing_is_changed() {
    for command in ["zadd", "zrem", "lpush", "rpop"] {
        let scene = Scene::bare(Redis::own(&[])).await;
        scene.add("emit work:1 1; ZADD event.marks 1000 met").await;
        scene.login(&format!("~* +@all -{command}")).await;
        match wire::mark(&mut scene.conn().await, &scene.keys).await {
            Err(ScriptError::Denied(denied)) => assert_eq!(denied.to_lowercase(), command),
            other => panic!("{command}: {other:?}"),
        }
        scene.changed("").await;
    }
    for key in ["event.marks", "objects.with.events"] {
        let scene = Scene::bare(Redis::start()).await;
        scene
            .add(&format!("emit work:1 1; DEL {key}; SADD {key} wrong"))
            .await;
        let marked = wire::mark(&mut scene.conn().await, &scene.keys).await;
        assert_eq!(marked.expect("a reply"), Marked::Kept, "{key}");
    }
}

/// Tests that a call still meets a mark of `event.marks` if it reads a mark of another program
/// together with this mark.
#[tokio::test]
async fn a_mark_of_somebody_else_hides_no_other() {
    let scene = Scene::new().await;
    scene.add("ZADD event.marks 1000 1000 3000 3000").await;
    let given = "LPUSH objects.with.events \0t1000 \0t2000; emit work:1 1";
    scene.add(given).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["work:1"]);
    assert_eq!(scene.at("event.marks").await, "<met: 1000, 3000: 3000>");
}

/// A mark is met when it is taken from the list. The reply is full after the marker before the
/// mark, so the mark stays in the list, and is not met.
#[tokio::test]
async fn a_mark_that_stays_in_the_list_is_not_met() {
    let given = "
        emit work:1 1; LPUSH objects.with.events \0t1000; ZADD event.marks 1000 1000
        emit work:2 1
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, bounds(|b| b.reply_bytes = 1)).await;
    assert_eq!(answer.objects(), ["work:1"]);
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1; object = [work:1]
        next.event.id = 1
        objects.with.events = [\\0t1000, work:2]
        work:1: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// Story: names that returned from the list of a slot to the markers had changed the order of two
/// marks. A call met the newer mark first, and the older mark last. It noted only the older one, so
/// the newer one seemed to wait.
#[tokio::test]
async fn the_newest_mark_counts_whatever_the_order_of_marks() {
    let given = "RPUSH objects.with.events \0t1000 \0t2000; ZADD event.marks 1000 1000 2000 2000";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), [""; 0]);
    assert_eq!(scene.at("event.marks").await, "<met: 2000>");
}
