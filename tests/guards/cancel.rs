//! `cancel`: refusals before the first write, and the row in the event log.

use seriatim::control::By;
use seriatim::control::schedules::CancelledSchedule;
use seriatim::wire::{self, CancelReply};

use crate::scene::Scene;
use crate::support::Redis;

const OBJECT: &str = "user:1";

/// Makes an object whose event 7 with the key `k` waits for a retry, with these fields of its
/// handlers. The event log is on.
async fn waiting(redis: Redis, handled: &str) -> Scene {
    let scene = Scene::bare(redis).await;
    let given = "hold user:1 9999999999999 '7 0 1 0 retry: no' '\"bad\"'; delivered user:1 5";
    scene.add(given).await;
    let given = "SET user:1:event.key '7 k'; HSET seriatim.meta event.log on";
    scene.add(given).await;
    if !handled.is_empty() {
        scene
            .add(&format!("HSET user:1:event.handled {handled}"))
            .await;
    }
    scene
}

async fn cancel(scene: &Scene) -> Result<CancelReply, redis::RedisError> {
    let cmd = wire::cancel(&scene.keys, OBJECT.as_bytes(), "k", "7", true);
    CancelReply::read(&cmd.query_async(&mut scene.conn().await).await?)
}

/// A key that the script reads or writes has a wrong type. The error names the key, and the call
/// changes nothing.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_and_nothing_changes() {
    for key in [
        "objects.held",
        "objects.paused",
        "objects.with.events",
        "user:1:events.held",
        "user:1:event.handled",
        "seriatim.meta",
        "event.log",
        "other:1:events",
        "other:2:events.scheduled",
        "events.scheduled",
        "events.scheduled.wake",
    ] {
        let emits = "id 7 emit:h '0 2 12 7 1 other:11s7 1 1 r+5 other:22x'";
        let scene = waiting(Redis::start(), emits).await;
        scene.add(&format!("DEL {key}; SET {key} wrong")).await;
        let refused = cancel(&scene).await.expect_err("a wrong type");
        assert_eq!(refused.code(), Some("WRONGTYPE"), "{key}: {refused}");
        let detail = format!("{}{key} is a string", scene.keys.prefix());
        assert_eq!(refused.detail(), Some(&*detail), "{refused}");
        scene.changed("").await;
    }
}

/// The emits of the event's handlers cannot be read, a held batch begins with another event than the
/// one with the key, or a slot has the event in hand although the numbers of its held batch are left.
/// The call changes nothing.
#[tokio::test]
async fn an_event_that_cannot_end_here_stays() {
    let scene = waiting(Redis::start(), "id 7 emit:h nonsense").await;
    let refused = cancel(&scene).await.expect_err("no emits");
    let handled = scene.keys.event_handled(OBJECT);
    let detail = format!("{handled} is a hash that cannot be read");
    assert_eq!(refused.detail(), Some(&*detail), "{refused}");
    scene.changed("").await;
    let given = "SET user:1:events.held.id '8 0 1 0 retry: no'";
    scene.add(given).await;
    assert_eq!(cancel(&scene).await.expect("a reply"), CancelReply::Absent);
    scene.changed("").await;
    let scene = waiting(Redis::start(), "").await;
    let given = "SET user:1:event.worker w.0; SET event.worker:w.0:event.id '7 1 1'";
    scene.add(given).await;
    assert_eq!(cancel(&scene).await.expect("a reply"), CancelReply::Running);
    scene.changed("").await;
}

/// The row of the event has the results of its handlers. Progress that is left from an earlier
/// event does not count.
#[tokio::test]
async fn the_row_of_a_cancelled_event_has_its_results() {
    let row = "status cancelled id 7 prev 5 object user:1 event \"bad\" error cancelled: retry: no attempts 1";
    for (of, results) in [("7", " results {\"a\":1,\"b\":2}"), ("6", "")] {
        let handled = format!("id {of} result:b '\"b\":2' result:a '\"a\":1'");
        let scene = waiting(Redis::start(), &handled).await;
        assert_eq!(
            cancel(&scene).await.expect("a reply"),
            CancelReply::Cancelled
        );
        let log = scene.keys.event_log();
        let rows: Vec<(String, Vec<String>)> = scene.run(&["XRANGE", &log, "-", "+"]).await;
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(_, fields)| fields.join(" "))
            .collect();
        assert_eq!(rows, [format!("{row}{results}")], "progress of event {of}");
        scene.check().await;
    }
}

/// The user may read a key that the script writes, but not write to it, or may use a command only
/// on some of the keys. The call is refused, and changes nothing. The right to write to exactly
/// these keys is enough.
#[tokio::test]
async fn without_a_right_to_one_key_nothing_changes() {
    // Redis itself refuses a call without the right to write to the key of the call.
    let read = "objects.held user:1:event.worker user:1:last.event.id objects.paused seriatim.meta";
    let always = "objects.with.events event.log user:1:event.key user:1:events.held \
                  user:1:events.held.id user:1:event.handled user:1:event.errors other:1:events";
    let scheduled = "other:2:events.scheduled events.scheduled events.scheduled.wake";
    let limited = [
        "~* +@all -lpush (~@other:* +lpush)",
        "~* +@all -zscore (~@objects.paused +zscore)",
    ];
    // Handlers have emitted and scheduled one event each, or have emitted for two objects.
    for (emits, more, users) in [
        (
            "0 2 12 7 1 other:11s7 1 1 r+5 other:22x",
            scheduled,
            &limited[..],
        ),
        ("0 2 12 7 1 other:117 1 other:33", "other:3:events", &[]),
    ] {
        let written: Vec<_> = always.split_whitespace().chain(more.split(' ')).collect();
        let writes = |except: &str| {
            let keys = written.iter().copied().chain(read.split(' '));
            let of_key = |key| {
                if key == except {
                    format!(" %R~@{key}")
                } else {
                    format!(" ~@{key}")
                }
            };
            format!("+@all{}", keys.map(of_key).collect::<String>())
        };
        let mut users: Vec<_> = users.iter().map(|user| (*user).to_owned()).collect();
        users.extend(written.iter().map(|key| writes(key)));
        for user in users {
            let scene = waiting(Redis::own(&[]), &format!("id 7 emit:h '{emits}'")).await;
            let refused = weak(&scene, &user).await.expect_err("no right");
            assert_eq!(refused.code(), Some("NOPERM"), "{user}: {refused}");
            let detail = refused.detail().unwrap_or_default();
            assert!(
                detail.starts_with("the user may not use "),
                "{user}: {refused}"
            );
            scene.changed("").await;
        }
        let scene = waiting(Redis::own(&[]), &format!("id 7 emit:h '{emits}'")).await;
        let cancelled = weak(&scene, &writes("")).await;
        assert_eq!(
            cancelled.expect("a reply"),
            CancelReply::Cancelled,
            "{emits}"
        );
    }
}

/// The key of the owner is lost, so the call also needs the right to write it. It still needs all others.
#[tokio::test]
async fn with_a_lost_owner_all_rights_are_needed() {
    for (log, missing) in [
        ("on", "set"),
        ("on", "xadd"),
        ("on", "rpush"),
        ("", "zscore"),
        ("", "rpush"),
    ] {
        let scene = waiting(Redis::own(&[]), "").await;
        let given = match log {
            "" => "DEL user:1:event.worker; HDEL seriatim.meta event.log",
            _ => "DEL user:1:event.worker",
        };
        scene.add(given).await;
        let user = match missing {
            "zscore" => "~* +@all -zscore (~@objects.held +zscore)".to_owned(),
            _ => format!("~* +@all -{missing}"),
        };
        let refused = weak(&scene, &user).await.expect_err("no right");
        assert_eq!(refused.code(), Some("NOPERM"), "{user}: {refused}");
        scene.changed("").await;
    }
}

/// Cancels as a user with these rights, in which `@` is the prefix of all keys after a `~`.
async fn weak(scene: &Scene, rights: &str) -> Result<CancelReply, redis::RedisError> {
    let (reset, prefix) = ("ACL SETUSER weak reset on >weak", scene.keys.prefix());
    let rights = rights.replace("~@", &format!("~{prefix}"));
    let (keys, of_command) = rights.split_once(" (").unwrap_or((&rights, ""));
    let mut words: Vec<_> = reset.split(' ').chain(keys.split(' ')).collect();
    let of_command = format!("({of_command}");
    words.extend((of_command.len() > 1).then_some(&*of_command));
    scene.conn().await;
    scene.run::<()>(&words).await;
    let url = format!("{}?user=weak&pass=weak", scene.redis.url());
    let client = redis::Client::open(url).expect("a URL");
    let mut conn = client
        .get_multiplexed_async_connection_with_config(&crate::support::patient())
        .await
        .expect("Redis answers");
    let cmd = wire::cancel(&scene.keys, OBJECT.as_bytes(), "k", "7", true);
    CancelReply::read(&cmd.query_async(&mut conn).await?)
}

/// `OBJ:last.event.id` is above the id of the held event, so that the value of `OBJ:event.key` has
/// no meaning. The call changes nothing.
#[tokio::test]
async fn an_event_below_the_last_id_is_not_cancelled() {
    let scene = waiting(Redis::start(), "").await;
    scene.add("delivered user:1 9").await;
    assert_eq!(cancel(&scene).await.expect("a reply"), CancelReply::Absent);
    scene.changed("").await;
}

/// Story: an event waited for a retry, and the key of its object's owner was deleted by hand. The
/// reply was that there is no such event. Two seconds later it was delivered.
#[tokio::test]
async fn a_held_event_is_cancelled_although_the_owner_key_is_lost() {
    for by_operator in [false, true] {
        let scene = waiting(Redis::own(&[]), "").await;
        scene.add("DEL user:1:event.worker").await;
        scene.changes().await;
        if by_operator {
            let refused = scene.redis.control_without("set").await;
            let by = By {
                who: "ada",
                why: "",
            };
            let refused = refused.cancel_schedule(by, OBJECT, "k").await;
            assert!(refused.expect_err("no right").to_string().contains("SET"));
            scene.changed("").await;
            let control = crate::support::control(&scene.conn().await, &scene.keys);
            let cancelled = control.cancel_schedule(by, OBJECT, "k").await;
            assert_eq!(
                cancelled.expect("a reply"),
                CancelledSchedule::Cancelled { id: Some(7) }
            );
        } else {
            let mut conn = scene.redis.connect_without("set").await;
            let cmd = wire::cancel(&scene.keys, OBJECT.as_bytes(), "k", "7", true);
            let refused = cmd.query_async(&mut conn).await;
            let refused = refused.and_then(|reply| CancelReply::read(&reply));
            assert_eq!(refused.expect_err("no right").code(), Some("NOPERM"));
            scene.changed("").await;
            assert_eq!(
                cancel(&scene).await.expect("a reply"),
                CancelReply::Cancelled
            );
        }
        assert_eq!(scene.at("user:1:event.worker").await, "held");
        assert_eq!(scene.at("objects.held").await, "<user:1: 0>");
        scene.check().await;
    }
}
