//! `cron`: what each change of a job writes, and what stays.

use seriatim::keys::Keys;
use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, CronDone, CronQuery, CronReply, CronStep};
use seriatim::wire::values::CronValue;

use super::{BY, acted, given, row, wrong_type};
use crate::scene::Scene;
use crate::support::jobs;

const RESUME: CronStep<'static> = CronStep::Resume {
    id: "id",
    new_id: "new",
    next_ms: Some(9),
};
/// Object, schedule and event of the job of the tests.
const SAME: [&str; 3] = ["work:1", "@every 1h", "1"];
/// The changes of a call that queues the event of the job of the tests.
const QUEUED: &str = "objects.with.events = [work:1]\nwork:1: events = [1]\n";
/// The changes of a call that gives the job a next tick.
const NEXT: &str = "events.cron.next = <job: 9>\nevents.scheduled.wake = <wake: 0>\n";

/// Returns a job. `head`: as for [`jobs::job`].
fn with(head: &str, [object, schedule, event]: [&str; 3]) -> CronValue {
    CronValue {
        schedule: schedule.to_owned(),
        ..jobs::job(head, object, event)
    }
}

/// Returns the commands that give one job with this value. It has fired at 3, and its ticks up to 7
/// are handled.
fn job(value: &str) -> String {
    let next = if value.contains(r#""paused":true"#) {
        ""
    } else {
        "; ZADD events.cron.next 8 job"
    };
    format!("HSET events.cron job '{value}'; HSET events.cron.last job '7 3'{next}\n")
}

/// Returns the change to a job with this value. `since`: the time at which its schedule was set.
fn job_is(value: &CronValue, since: &str) -> String {
    let value = jobs::text(value).replace(r#""since_ms":5"#, &format!(r#""since_ms":{since}"#));
    format!("events.cron = {{job: {}}}\n", value.escape_debug())
}

async fn set(scene: &Scene, parts: [&str; 3], now: bool) -> Result<CronDone, ScriptError> {
    let step = CronStep::Set {
        job: &with("new 0", parts),
        next_ms: Some(9),
        now,
        jobs_max: 1,
    };
    change(scene, step).await
}

async fn change(scene: &Scene, step: CronStep<'_>) -> Result<CronDone, ScriptError> {
    operator::cron(&mut scene.conn().await, &scene.keys, BY, "job", step).await
}

async fn page(scene: &Scene, query: CronQuery<'_>) -> (u64, u64, Vec<CronReply>) {
    let page = operator::crons(&mut scene.conn().await, &scene.keys, query).await;
    page.expect("a page")
}

/// Returns the changes of a call that sets a job for this object, and perhaps queues its event.
fn set_for([object, _, event]: [&str; 3], now: bool) -> String {
    let of_job = format!("{object} id  cron job");
    let (set, run) = (row("cron-set", &of_job), row("cron-run", &of_job));
    match now {
        false => acted("cron-set", &of_job),
        true => format!(
            "objects.with.events = [{object}]\n{object}: events = [{event}]\noperator.actions = {{{set}, {run}}}\n"
        ),
    }
}

#[tokio::test]
async fn a_new_job_is_set() {
    let scene = given("").await;
    for (now, last) in [(false, "NOW 0"), (true, "NOW NOW")] {
        scene.again("").await;
        let done = set(&scene, SAME, now).await.expect("a reply");
        assert_eq!(done, CronDone::New);
        let job = job_is(&with("new 0", SAME), "NOW") + &set_for(SAME, now) + NEXT;
        scene
            .changed(&format!("{job}events.cron.last = {{job: {last}}}"))
            .await;
    }
}

/// Another object or another event keeps the ticks that are due. Another plan, and any change of a
/// paused job, counts them as handled.
#[tokio::test]
async fn another_job_of_the_name_replaces_it() {
    let (to_object, to_event) = (["work:2", SAME[1], "1"], ["work:1", SAME[1], "2"]);
    let to_schedule = ["work:1", "@daily", "1"];
    let [on, off] = ["id 0", "id 1"].map(|head| jobs::value(head, "work:1", "1"));
    let zone = on.replace("UTC", "Europe/Berlin");
    let missed = on.replace(r#""all""#, r#""once""#);
    let scene = given("").await;
    for (before, to, head, is_kept) in [
        (&*on, to_object, "new 0", true),
        (&on, to_event, "new 0", true),
        (&on, to_schedule, "new 0", false),
        (&off, to_object, "new 1", false),
        (&off, to_schedule, "new 1", false),
        (&zone, SAME, "new 0", false),
        (&missed, SAME, "new 0", false),
        // An invalid job can be replaced.
        ("odd", SAME, "new 0", false),
    ] {
        for now in [false, true] {
            scene.again(&job(before)).await;
            let done = set(&scene, to, now).await.expect("a reply");
            assert_eq!(done, CronDone::Replaced, "{before} {to:?}");
            let mut changes = job_is(&with(head, to), if is_kept { "5" } else { "NOW" });
            if !is_kept && head == "new 0" {
                changes += NEXT;
            }
            let (handled, fired) = (
                if is_kept { "7" } else { "NOW" },
                if now { "NOW" } else { "3" },
            );
            if (handled, fired) != ("7", "3") {
                changes += &format!("events.cron.last = {{job: {handled} {fired}}}\n");
            }
            scene.changed(&(changes + &set_for(to, now))).await;
        }
    }
}

/// The same job changes nothing, even if its event is to be queued and its queue has a wrong type.
#[tokio::test]
async fn the_same_job_changes_nothing() {
    for paused in ["id 0", "id 1"] {
        let scene = given(&job(&jobs::value(paused, "work:1", "1"))).await;
        scene.add("SET work:1:events wrong").await;
        for now in [false, true] {
            let done = set(&scene, SAME, now).await.expect("a reply");
            assert_eq!(done, CronDone::Same);
            scene.changed("").await;
        }
    }
}

/// Only a job that is to be queued at once needs the queue. If the queue has a wrong type, nothing
/// changes.
#[tokio::test]
async fn a_job_that_cannot_be_queued_is_not_set() {
    let scene = given(&job(&jobs::value("id 0", "work:1", "1"))).await;
    scene.add("SET work:2:events wrong").await;
    let to = ["work:2", SAME[1], "1"];
    for to in [to, ["work:2", "@daily", "1"]] {
        let refused = set(&scene, to, true).await;
        assert_eq!(wrong_type(&scene, refused), "work:2:events is a string");
        scene.changed("").await;
    }
    let done = set(&scene, to, false).await.expect("a reply");
    assert_eq!(done, CronDone::Replaced);
    let changes = job_is(&with("new 0", to), "5") + &set_for(to, false);
    scene.changed(&changes).await;
}

/// There are so many jobs at most. A job that exists can be replaced even then.
#[tokio::test]
async fn there_are_so_many_jobs() {
    for other in [&*jobs::value("id 0", "work:1", "1"), "odd"] {
        let scene = given(&format!("HSET events.cron other '{other}'")).await;
        let done = set(&scene, SAME, true).await.expect("a reply");
        assert_eq!(done, CronDone::TooMany(1));
        scene.changed("").await;
    }
}

/// A job is paused, resumed, run and removed. A repeated call changes nothing, except that a job
/// runs again.
#[tokio::test]
async fn each_step_writes_what_it_says() {
    let [on, off] = ["id 0", "id 1"].map(|head| jobs::value(head, "work:1", "1"));
    let is = |head, since| job_is(&with(head, SAME), since);
    let by = |action| acted(action, "work:1 id  cron job");
    let last = |last| format!("events.cron.last = {last}\n");
    let ran = || QUEUED.to_owned() + &last("{job: 7 NOW}") + &by("cron-run");
    let paused = is("id 1", "5") + &last("{job: NOW 3}") + "events.cron.next = nil\n";
    let resumed = is("new 0", "5") + &last("{job: NOW 3}") + NEXT;
    let removed = format!("events.cron = nil\nevents.cron.next = nil\n{}", last("nil"));
    let removed_odd = acted("cron-remove", " id  cron job");
    let none = String::new;
    let scene = given("").await;
    for (before, step, done, changes) in [
        (
            &*on,
            CronStep::Pause,
            CronDone::Paused,
            paused + &by("cron-pause"),
        ),
        (&off, CronStep::Pause, CronDone::Paused, none()),
        (&on, RESUME, CronDone::Changed, none()),
        (
            &off,
            RESUME,
            CronDone::Resumed,
            resumed + &by("cron-resume"),
        ),
        (&on, CronStep::Run, CronDone::Ran, ran()),
        (&off, CronStep::Run, CronDone::Ran, ran()),
        (
            &on,
            CronStep::Remove,
            CronDone::Removed,
            removed.clone() + &by("cron-remove"),
        ),
        (
            "odd",
            CronStep::Remove,
            CronDone::Removed,
            removed + &removed_odd,
        ),
        ("odd", CronStep::Pause, CronDone::Invalid, none()),
        ("odd", RESUME, CronDone::Invalid, none()),
        ("odd", CronStep::Run, CronDone::Invalid, none()),
    ] {
        scene.again(&job(before)).await;
        let found = change(&scene, step).await.expect("a reply");
        assert_eq!(found, done, "{before} {step:?}");
        scene.changed(&changes).await;
    }
    scene.again("").await;
    for step in [CronStep::Pause, RESUME, CronStep::Run, CronStep::Remove] {
        let done = change(&scene, step).await.expect("a reply");
        assert_eq!(done, CronDone::NotSet, "{step:?}");
        scene.changed("").await;
    }
}

/// The queue of the job has a wrong type, or its name belongs to another namespace. The job does
/// not run, and nothing changes.
#[tokio::test]
async fn a_job_without_a_queue_does_not_run() {
    let scene = given(&job(&jobs::value("id 0", "work:1", "1"))).await;
    scene.add("SET work:1:events wrong").await;
    let refused = change(&scene, CronStep::Run).await;
    assert_eq!(wrong_type(&scene, refused), "work:1:events is a string");
    scene.changed("").await;

    let scene = Scene::under(Keys::new()).await;
    scene
        .add(&job(&jobs::value("id 0", "{shop:0}:work:1", "1")))
        .await;
    let ran = change(&scene, CronStep::Run).await.expect("a reply");
    assert_eq!(ran, CronDone::Invalid);
    scene.changed("").await;
}

/// A page has 16 KiB of the value of a job, and the size of the whole value. A job may have no
/// tick, and no last run.
#[tokio::test]
async fn a_page_has_the_beginning_of_a_large_job() {
    let large = "x".repeat(16_385);
    let scene = given(&format!(
        "
        HSET events.cron a odd b {} c {large}; ZADD events.cron.next 5 a inf c
        HSET events.cron.last a '7 3'
        ",
        &large[1..]
    ))
    .await;
    let job = |name: &str, value_bytes, value: &str, next: &str, last: &str| CronReply {
        name: name.into(),
        value: value.into(),
        value_bytes,
        next: next.into(),
        last: last.into(),
    };
    let all = [
        job("a", 3, "odd", "5", "7 3"),
        job("b", 16_384, &large[1..], "", ""),
        job("c", 16_385, &large[1..], "inf", ""),
    ];
    let (_, cursor, jobs) = page(&scene, CronQuery::One(b"a")).await;
    assert_eq!((cursor, &jobs[..]), (0, &all[..1]));
    let (now_ms, cursor, mut jobs) = page(&scene, CronQuery::All(0, 100)).await;
    assert!(scene.is_now(now_ms), "{now_ms}");
    jobs.sort_by(|one, other| one.name.cmp(&other.name));
    let sizes: Vec<_> = jobs.iter().map(|job| job.value_bytes).collect();
    assert!((cursor, &jobs[..]) == (0, &all), "{cursor} {sizes:?}");
    let (_, cursor, jobs) = page(&scene, CronQuery::One(b"d")).await;
    assert_eq!((cursor, jobs), (0, vec![]));
}
