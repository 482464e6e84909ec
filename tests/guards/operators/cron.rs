//! `cron`: what each change of a job writes, and what stays.

use seriatim::keys::Keys;
use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, CronDone, CronQuery, CronReply, CronStep};
use seriatim::wire::values::CronValue;

use super::{BY, Scene};
use crate::support::jobs;

const RESUME: CronStep<'static> = CronStep::Resume {
    id: "id",
    new_id: "new",
    next_ms: Some(9),
};
/// Object, schedule and event of the job of the tests.
const SAME: [&str; 3] = ["work:1", "@every 1h", "1"];

/// Returns a job. `head`: as for [`jobs::job`].
fn with(head: &str, [object, schedule, event]: [&str; 3]) -> CronValue {
    CronValue {
        schedule: schedule.to_owned(),
        ..jobs::job(head, object, event)
    }
}

/// Returns the value of a job whose schedule is set now.
fn set_now(head: &str, parts: [&str; 3]) -> String {
    jobs::text(&with(head, parts)).replace(r#""since_ms":5"#, r#""since_ms":NOW"#)
}

async fn set(scene: &mut Scene, parts: [&str; 3], now: bool) -> Result<CronDone, ScriptError> {
    let step = CronStep::Set {
        job: &with("new 0", parts),
        next_ms: Some(9),
        now,
        jobs_max: 1,
    };
    change(scene, step).await
}

/// Builds a state with one job, which has this value. It has fired at 3, and its ticks up to 7 are
/// handled.
async fn scene(job: &str) -> Scene {
    let mut scene = Scene::new().await;
    scene.put("HSET", "events.cron", &["job", job]).await;
    scene.put("HSET", "events.cron.last", &["job", "7 3"]).await;
    if !job.contains(r#""paused":true"#) {
        scene.put("ZADD", "events.cron.next", &["8", "job"]).await;
    }
    scene
}

async fn change(scene: &mut Scene, step: CronStep<'_>) -> Result<CronDone, ScriptError> {
    let keys = scene.state.keys.clone();
    operator::cron(&mut scene.state.conn, &keys, BY, "job", step).await
}

/// Returns the lines of a state with this job. `next`: its next tick, if it has one.
fn job(value: &str, last: &str, next: Option<u64>) -> Vec<String> {
    let mut lines = vec![
        format!("events.cron: job = {value}"),
        format!("events.cron.last: job = {last}"),
    ];
    lines.extend(next.map(|next| format!("events.cron.next: job {next}")));
    lines
}

const WAKE: &str = "events.scheduled.wake: wake 0";

fn action(action: &str, object: &str) -> String {
    format!("operator.actions: NOW action {action} who ada why a test object {object} id  cron job")
}

/// Returns the lines of a state in which the job's event was queued now.
fn queued(object: &str, event: &str) -> [String; 2] {
    [
        "objects.with.events: ".to_owned() + object,
        format!("{object}:events: {event}"),
    ]
}

#[tokio::test]
async fn a_new_job_is_set() {
    for now in [false, true] {
        let mut scene = Scene::new().await;
        assert_eq!(
            set(&mut scene, SAME, now).await.expect("a reply"),
            CronDone::New
        );
        let mut expected = job(
            &set_now("new 0", SAME),
            if now { "NOW NOW" } else { "NOW 0" },
            Some(9),
        );
        expected.push(WAKE.to_owned());
        if now {
            let [marker, event] = queued("work:1", "1");
            expected.extend([
                marker,
                action("cron-set", "work:1"),
                action("cron-run", "work:1"),
                event,
            ]);
        } else {
            expected.push(action("cron-set", "work:1"));
        }
        assert_eq!(scene.shown().await, expected, "now: {now}");
    }
}

/// Another object or another event keeps the ticks that are due. Another plan, and any change of a
/// paused job, counts them as handled.
#[tokio::test]
async fn another_job_of_the_name_replaces_it() {
    let (to_object, to_event) = (["work:2", SAME[1], "1"], ["work:1", SAME[1], "2"]);
    let to_schedule = ["work:1", "@daily", "1"];
    let (on, off) = (
        &*jobs::value("id 0", "work:1", "1"),
        &*jobs::value("id 1", "work:1", "1"),
    );
    let stays = |parts| jobs::text(&with("new 0", parts));
    let (zone, missed) = (
        on.replace("UTC", "Europe/Berlin"),
        on.replace(r#""all""#, r#""once""#),
    );
    for (before, to, value, last, next) in [
        (on, to_object, stays(to_object), "7 3", Some(8)),
        (on, to_event, stays(to_event), "7 3", Some(8)),
        (
            on,
            to_schedule,
            set_now("new 0", to_schedule),
            "NOW 3",
            Some(9),
        ),
        (off, to_object, set_now("new 1", to_object), "NOW 3", None),
        (
            off,
            to_schedule,
            set_now("new 1", to_schedule),
            "NOW 3",
            None,
        ),
        (&zone, SAME, set_now("new 0", SAME), "NOW 3", Some(9)),
        (&missed, SAME, set_now("new 0", SAME), "NOW 3", Some(9)),
        // An invalid job can be replaced.
        ("odd", SAME, set_now("new 0", SAME), "NOW 3", Some(9)),
    ] {
        let object = to[0];
        for now in [false, true] {
            let mut scene = scene(before).await;
            assert_eq!(
                set(&mut scene, to, now).await.expect("a reply"),
                CronDone::Replaced,
                "{before} {to:?}"
            );
            let handled = last.split(' ').next().expect("a time");
            let last = if now {
                format!("{handled} NOW")
            } else {
                last.to_owned()
            };
            let mut expected = job(&value, &last, next);
            expected.extend((next == Some(9)).then(|| WAKE.to_owned()));
            if now {
                let [marker, event] = queued(object, to[2]);
                expected.extend([
                    marker,
                    action("cron-set", object),
                    action("cron-run", object),
                    event,
                ]);
            } else {
                expected.push(action("cron-set", object));
            }
            assert_eq!(scene.shown().await, expected, "{before} {to:?} now: {now}");
        }
    }
}

/// The same job changes nothing, even if its event is to be queued and its queue has a wrong type.
#[tokio::test]
async fn the_same_job_changes_nothing() {
    for paused in ["id 0", "id 1"] {
        let mut scene = scene(&jobs::value(paused, "work:1", "1")).await;
        scene.put("SET", "work:1:events", &["wrong"]).await;
        let before = scene.shown().await;
        for now in [false, true] {
            assert_eq!(
                set(&mut scene, SAME, now).await.expect("a reply"),
                CronDone::Same
            );
            assert_eq!(scene.shown().await, before, "{paused} now: {now}");
        }
    }
}

/// Only a job that is to be queued at once needs the queue. If the queue has a wrong type, nothing
/// changes.
#[tokio::test]
async fn a_job_that_cannot_be_queued_is_not_set() {
    let mut scene = scene(&jobs::value("id 0", "work:1", "1")).await;
    scene.put("SET", "work:2:events", &["wrong"]).await;
    let before = scene.shown().await;
    for to in [["work:2", SAME[1], "1"], ["work:2", "@daily", "1"]] {
        let refused = set(&mut scene, to, true).await.expect_err("a wrong type");
        assert!(
            matches!(&refused, ScriptError::WrongType { key, .. } if key == "work:2:events"),
            "{refused}"
        );
        assert_eq!(scene.shown().await, before);
    }
    assert_eq!(
        set(&mut scene, ["work:2", SAME[1], "1"], false)
            .await
            .expect("a reply"),
        CronDone::Replaced
    );
    assert_eq!(
        scene.items("events.cron").await,
        [format!("job = {}", jobs::value("new 0", "work:2", "1"))]
    );
}

/// There are so many jobs at most. A job that exists can be replaced even then.
#[tokio::test]
async fn there_are_so_many_jobs() {
    for other in [&*jobs::value("id 0", "work:1", "1"), "odd"] {
        let mut scene = Scene::new().await;
        scene.put("HSET", "events.cron", &["other", other]).await;
        let before = scene.shown().await;
        assert_eq!(
            set(&mut scene, SAME, true).await.expect("a reply"),
            CronDone::TooMany(1)
        );
        assert_eq!(scene.shown().await, before);
    }
}

/// A job is paused, resumed, run and removed. A repeated call changes nothing, except that a job
/// runs again.
#[tokio::test]
async fn each_step_writes_what_it_says() {
    let [on, off, new] = ["id 0", "id 1", "new 0"].map(|head| jobs::value(head, "work:1", "1"));
    let (on, off) = (on.as_str(), off.as_str());
    let ran = |value: &str, next| {
        let [marker, event] = queued("work:1", "1");
        [
            job(value, "7 NOW", next),
            vec![marker, action("cron-run", "work:1"), event],
        ]
        .concat()
    };
    let (paused, resumed) = (
        action("cron-pause", "work:1"),
        action("cron-resume", "work:1"),
    );
    for (before, step, done, expected) in [
        (
            on,
            CronStep::Pause,
            CronDone::Paused,
            [job(off, "NOW 3", None), vec![paused]].concat(),
        ),
        (
            off,
            CronStep::Pause,
            CronDone::Paused,
            job(off, "7 3", None),
        ),
        (on, RESUME, CronDone::Changed, job(on, "7 3", Some(8))),
        (
            off,
            RESUME,
            CronDone::Resumed,
            [job(&new, "NOW 3", Some(9)), vec![WAKE.to_owned(), resumed]].concat(),
        ),
        (on, CronStep::Run, CronDone::Ran, ran(on, Some(8))),
        (off, CronStep::Run, CronDone::Ran, ran(off, None)),
        (
            on,
            CronStep::Remove,
            CronDone::Removed,
            vec![action("cron-remove", "work:1")],
        ),
        (
            "odd",
            CronStep::Remove,
            CronDone::Removed,
            vec![action("cron-remove", "")],
        ),
        (
            "odd",
            CronStep::Pause,
            CronDone::Invalid,
            job("odd", "7 3", Some(8)),
        ),
        ("odd", RESUME, CronDone::Invalid, job("odd", "7 3", Some(8))),
        (
            "odd",
            CronStep::Run,
            CronDone::Invalid,
            job("odd", "7 3", Some(8)),
        ),
    ] {
        let mut scene = scene(before).await;
        assert_eq!(
            change(&mut scene, step).await.expect("a reply"),
            done,
            "{before} {step:?}"
        );
        assert_eq!(scene.shown().await, expected, "{before} {step:?}");
    }
    for step in [CronStep::Pause, RESUME, CronStep::Run, CronStep::Remove] {
        let mut scene = Scene::new().await;
        assert_eq!(
            change(&mut scene, step).await.expect("a reply"),
            CronDone::NotSet,
            "{step:?}"
        );
        assert_eq!(scene.shown().await, [""; 0], "{step:?}");
    }
}

/// The queue of the job has a wrong type, or its name belongs to another namespace. The job does
/// not run, and nothing changes.
#[tokio::test]
async fn a_job_without_a_queue_does_not_run() {
    let mut scene = scene(&jobs::value("id 0", "work:1", "1")).await;
    scene.put("SET", "work:1:events", &["wrong"]).await;
    let before = scene.shown().await;
    let refused = change(&mut scene, CronStep::Run)
        .await
        .expect_err("a wrong type");
    assert!(
        matches!(&refused, ScriptError::WrongType { key, found } if key == "work:1:events" && found == "string"),
        "{refused}"
    );
    assert_eq!(scene.shown().await, before);

    let keys = Keys::new();
    scene
        .state
        .run(
            "HSET",
            &[
                &keys.events_cron(),
                "job",
                &jobs::value("id 0", "{shop:0}:work:1", "1"),
            ],
        )
        .await;
    let ran = operator::cron(&mut scene.state.conn, &keys, BY, "job", CronStep::Run)
        .await
        .expect("a reply");
    assert_eq!(ran, CronDone::Invalid);
    let written = [
        "EXISTS",
        &keys.objects_with_events(),
        &keys.events_cron_last(),
        &keys.operator_actions(),
    ];
    assert_eq!(scene.console.run::<u64>(&written).await, 0);
}

/// A page has 16 KiB of the value of a job, and the size of the whole value. A job may have no
/// tick, and no last run.
#[tokio::test]
async fn a_page_has_the_beginning_of_a_large_job() {
    let mut scene = Scene::new().await;
    let keys = scene.state.keys.clone();
    let large = "x".repeat(16_385);
    scene
        .put(
            "HSET",
            "events.cron",
            &["a", "odd", "b", &large[1..], "c", &large],
        )
        .await;
    scene
        .put("ZADD", "events.cron.next", &["5", "a", "inf", "c"])
        .await;
    scene.put("HSET", "events.cron.last", &["a", "7 3"]).await;
    let job = |name: &str, value_bytes: usize, value: &str, next: &str, last: &str| CronReply {
        name: name.into(),
        value: value.into(),
        value_bytes: value_bytes as u64,
        next: next.into(),
        last: last.into(),
    };
    let all = [
        job("a", 3, "odd", "5", "7 3"),
        job("b", 16_384, &large[1..], "", ""),
        job("c", 16_385, &large[1..], "inf", ""),
    ];
    let one = operator::crons(&mut scene.state.conn, &keys, CronQuery::One(b"a"))
        .await
        .expect("a page");
    assert_eq!((one.1, one.2), (0, all[..1].to_vec()));
    let (now_ms, cursor, mut jobs) =
        operator::crons(&mut scene.state.conn, &keys, CronQuery::All(0, 100))
            .await
            .expect("a page");
    assert!(
        (scene.began_ms..scene.began_ms + super::LONGEST_MS).contains(&now_ms),
        "{now_ms}"
    );
    jobs.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(
        (cursor, &jobs[..]) == (0, &all),
        "{cursor} {:?}",
        jobs.iter().map(|job| job.value_bytes).collect::<Vec<_>>()
    );
    let none = operator::crons(&mut scene.state.conn, &keys, CronQuery::One(b"d"))
        .await
        .expect("a page");
    assert_eq!((none.1, none.2), (0, vec![]));
}
