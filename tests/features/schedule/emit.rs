//! Schedules as a producer sees them: which calls make, replace, keep or cancel a schedule.

use std::time::{Duration, SystemTime};

use seriatim::control::schedules::ScheduledEvent;
use seriatim::emit::{Cancelled, Change};
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::{Redis, assert_matches};

const HOUR: Duration = Duration::from_secs(3600);

async fn emitter(redis: &Redis) -> Emitter {
    redis.emitter().await
}

/// Returns the schedules of an object, sorted by key. Asserts that the object's own list and the
/// list of all schedules agree.
async fn schedules_of(redis: &Redis, object: &str) -> Vec<ScheduledEvent> {
    let control = redis.control().await;
    let mut own = control
        .schedules_of(object, None, 100)
        .await
        .expect("listed")
        .schedules;
    let mut all: Vec<_> = control
        .schedules(None, None, None, 100)
        .await
        .expect("listed")
        .schedules;
    all.retain(|schedule| schedule.object == object);
    own.sort_by(|a, b| a.key.cmp(&b.key));
    all.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(own, all);
    own
}

fn text_of(schedule: &ScheduledEvent) -> String {
    String::from_utf8(schedule.event.bytes().to_vec()).expect("text")
}

#[tokio::test]
async fn a_key_replaces_keeps_its_time_or_keeps_the_first() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let at = SystemTime::now() + HOUR;
    let send = async |text: &'static str, add: u64, mode: u8| {
        let schedule = emitter
            .schedule("user:1", Json::new(text))
            .at(at + Duration::from_secs(add))
            .key("renew");
        let schedule = match mode {
            0 => schedule,
            1 => schedule.keep_time(),
            _ => schedule.keep_first(),
        };
        let scheduled = schedule.send().await.expect("scheduled");
        let found = schedules_of(&redis, "user:1").await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].due_ms, Some(scheduled.due_ms));
        (scheduled.change, text_of(&found[0]), scheduled.due_ms)
    };
    let (change, text, first) = send("1", 0, 0).await;
    assert_eq!((change, text.as_str()), (Change::New, "1"));
    assert_eq!(
        send("2", 10, 0).await,
        (Change::Replaced, "2".to_owned(), first + 10_000)
    );
    assert_eq!(
        send("3", 20, 1).await,
        (Change::Replaced, "3".to_owned(), first + 10_000)
    );
    assert_eq!(
        send("4", 30, 2).await,
        (Change::Kept, "3".to_owned(), first + 10_000)
    );
    redis.console().await.check().await;
}

#[tokio::test]
async fn what_is_cancelled_never_fires_and_leaves_nothing() {
    let redis = Redis::start().empty();
    let emitter = emitter(&redis).await;
    emitter
        .schedule("user:1", Json::new("1"))
        .after(HOUR)
        .key("a")
        .send()
        .await
        .expect("scheduled");
    let unnamed = emitter
        .schedule("user:1", Json::new("2"))
        .after(HOUR)
        .send()
        .await
        .expect("scheduled");
    assert!(unnamed.key.as_str().starts_with('-'));
    assert_eq!(
        emitter.cancel("user:1", "a").await.expect("cancelled"),
        Cancelled::Cancelled
    );
    assert_eq!(
        emitter
            .cancel("user:1", "a")
            .await
            .expect("nothing to cancel"),
        Cancelled::NotFound
    );
    assert_eq!(
        emitter
            .cancel("user:2", unnamed.key.as_str())
            .await
            .expect("another object"),
        Cancelled::NotFound
    );
    assert_eq!(
        emitter
            .cancel("user:1", unnamed.key.as_str())
            .await
            .expect("cancelled"),
        Cancelled::Cancelled
    );
    assert_eq!(redis.console().await.left().await, [""; 0]);
}

#[tokio::test]
async fn the_list_has_pages_by_time_and_by_object() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let base = SystemTime::now() + HOUR;
    let schedules = (0..250).map(|n| {
        // Each due time is shared by 100 schedules, except the last.
        let at = base + Duration::from_secs(n / 100);
        emitter
            .schedule(format!("work:{}", n % 2), Json::new(format!("{n}")))
            .at(at)
    });
    emitter.schedule_many(schedules).await.expect("scheduled");
    let control = redis.control().await;
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = control
            .schedules(None, None, after.as_ref(), 60)
            .await
            .expect("a page");
        all.extend(page.schedules);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(all.len(), 250);
    assert!(all.windows(2).all(|pair| pair[0].due_ms <= pair[1].due_ms));
    let due = |n: usize| all[n].due_ms.expect("a due time");
    let middle = control
        .schedules(Some(due(100)), Some(due(100)), None, 100)
        .await
        .expect("a page");
    assert_eq!(middle.schedules.len(), 100);
    assert_eq!(
        control
            .schedules(Some(due(249) + 1), None, None, 100)
            .await
            .expect("a page")
            .schedules,
        []
    );
    let (mut own, mut after) = (Vec::new(), None);
    loop {
        let page = control
            .schedules_of("work:1", after.as_ref(), 50)
            .await
            .expect("a page");
        own.extend(page.schedules);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    own.sort_by_key(|schedule| schedule.key.clone());
    own.dedup();
    assert_eq!(own.len(), 125);
    assert!(own.iter().all(|schedule| schedule.object == "work:1"));
}

/// Redis returns many fields of a hash in parts, and the parts may have fields in common.
#[tokio::test]
async fn the_pages_of_an_object_with_many_schedules_have_all_of_them() {
    const SCHEDULES: usize = 1500;
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let schedules = (0..SCHEDULES).map(|n| {
        emitter
            .schedule("work:1", Json::new("1"))
            .key(format!("k{n}"))
            .after(HOUR)
    });
    emitter.schedule_many(schedules).await.expect("scheduled");
    let control = redis.control().await;
    let (mut keys, mut after, mut pages) = (std::collections::HashSet::new(), None, 0);
    loop {
        let page = control
            .schedules_of("work:1", after.as_ref(), 100)
            .await
            .expect("a page");
        assert!(
            page.schedules.len() < SCHEDULES / 2,
            "{} schedules on a page",
            page.schedules.len()
        );
        keys.extend(page.schedules.into_iter().map(|schedule| schedule.key));
        (after, pages) = (page.next, pages + 1);
        if after.is_none() || pages > SCHEDULES {
            break;
        }
    }
    assert_eq!(keys.len(), SCHEDULES);
}

#[tokio::test]
async fn bad_schedules_are_refused_and_those_before_are_sent() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let refused = emitter
        .schedule("user:1", Json::new("1"))
        .key("a\nb")
        .send()
        .await;
    assert_matches!(refused, Err(EmitError::Key(_)));
    let refused = emitter.schedule("user:1", Json::new("{")).send().await;
    assert_matches!(refused, Err(EmitError::Event(_)));
    let far = HOUR * (101 * 366 * 24);
    let at = SystemTime::now() + far;
    let schedule = || emitter.schedule("user:1", Json::new("1"));
    for schedule in [schedule().after(far), schedule().at(at)] {
        let refused = schedule.send().await;
        assert_matches!(refused, Err(EmitError::Due(_)));
    }
    let many =
        ["1", "2", "{", "4"].map(|text| emitter.schedule("user:1", Json::new(text)).after(HOUR));
    let error = emitter
        .schedule_many(many)
        .await
        .expect_err("the third is no JSON");
    assert_matches!(error.error, EmitError::Event(_), "{error:?}");
    assert_eq!(error.scheduled.len(), 2);
    assert_eq!(schedules_of(&redis, "user:1").await.len(), 2);
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    let (redis, console) = Redis::start().with_console().await;
    let emitter = emitter(&redis).await;
    console
        .run::<()>(&["SET", &redis.keys().events_scheduled_of("user:1"), "x"])
        .await;
    let failed = emitter
        .schedule("user:1", Json::new("1"))
        .after(HOUR)
        .send()
        .await;
    let key = redis.keys().events_scheduled_of("user:1");
    assert_matches!(failed, Err(EmitError::WrongType { key: found, .. }) if *found == key);
}
