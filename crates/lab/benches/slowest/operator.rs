//! Cases of the scripts for operators: long lists, large events, many markers.

use std::time::Duration;

use seriatim::control;
use seriatim::control::RowId;
use seriatim::control::dead::Settle;
use seriatim::projection::{Position, RedisStore, STATE_BYTES_MAX, Store as _};
use seriatim::wire;
use seriatim::wire::operator::{By, HeldPart, HeldQuery};

use crate::support::control;
use crate::world::{Case, NAME, TOKEN, World, case, event};

const MIB: usize = 1 << 20;
const BY: By<'static> = By {
    who: "ada@host",
    why: "measured",
};

/// Adds `rows` rows to a stream, each with an event of `bytes` bytes. Returns their ids.
async fn rows(world: &mut World, stream: String, rows: usize, bytes: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..rows {
        let mut add = redis::cmd("XADD");
        add.arg(&stream).arg("*").arg(&[
            "status",
            "completed",
            "id",
            "7",
            "prev",
            "0",
            "object",
            "work:1",
            "event",
        ]);
        add.arg(event(bytes))
            .arg(&["error", "", "attempts", "0"])
            .arg("n")
            .arg(n);
        ids.push(add.query_async(&mut world.conn).await.expect("added"));
    }
    ids
}

/// Fills `event.shares` with the most shares there may be, less one, and `event.groups` with the
/// most groups. Each share sets a priority. Each prefix and each group has 8 parts, and differs
/// from the others in all parts but the first. No share is for one of the groups.
async fn shares(world: &mut World, part_bytes: usize) {
    let name = |first: &str, n: usize| {
        format!(
            "{first}:{}",
            vec![format!("{n:0>part_bytes$}"); 7].join(":")
        )
    };
    let (shares, groups) = (world.keys.event_shares(), world.keys.event_groups());
    let value = format!(
        "5 low - - - 1767225600000 200 {}{}",
        "a".repeat(200),
        "b".repeat(200)
    );
    let mut pipe = redis::pipe();
    pipe.cmd("ZADD").arg(&groups).arg(3).arg("\0rest").ignore();
    for n in 0..2048 {
        if n < 1023 {
            pipe.cmd("HSET")
                .arg(&shares)
                .arg(format!("{}:*", name("else", n)))
                .arg(&value)
                .ignore();
        }
        pipe.cmd("ZADD")
            .arg(&groups)
            .arg(n)
            .arg(name("acme", n))
            .ignore();
    }
    world.pipe(&pipe).await;
}

/// Sets and removes the last share. Each changes the priority of all groups.
async fn change_share(world: &mut World) {
    let (control, selector) = (
        control(&world.conn, &world.keys),
        "acme:*".parse().expect("a selector"),
    );
    let share = control::Share::new().priority(control::Priority::High);
    let high = redis::cmd("ZCOUNT")
        .arg(world.keys.event_groups())
        .arg("-inf")
        .arg("(0")
        .clone();
    world.begin().await;
    control.set_share(BY, &selector, share).await.expect("set");
    assert_eq!(world.cmd(&mut high.clone()).await, redis::Value::Int(2048));
    control.remove_share(BY, &selector).await.expect("removed");
    assert_eq!(world.cmd(&mut high.clone()).await, redis::Value::Int(0));
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case(
            "inspect",
            "no marker of the object among 1,000,000",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    for _ in 0..1000 {
                        world
                            .cmd(
                                redis::cmd("LPUSH")
                                    .arg(world.keys.objects_with_events())
                                    .arg(vec!["work:some:other:object"; 1000]),
                            )
                            .await;
                    }
                    world.begin().await;
                    control(&world.conn, &world.keys)
                        .inspect("work:none")
                        .await
                        .expect("inspected");
                })
            },
        ),
        case(
            "check",
            "an object without a marker among 1,000,000",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    for _ in 0..1000 {
                        world
                            .cmd(
                                redis::cmd("LPUSH")
                                    .arg(world.keys.objects_with_events())
                                    .arg(vec!["work:some:other:object"; 1000]),
                            )
                            .await;
                    }
                    for n in 0..300 {
                        world
                            .cmd(
                                redis::cmd("LPUSH")
                                    .arg(world.keys.events(&format!("lost:{n}")))
                                    .arg("{}"),
                            )
                            .await;
                    }
                    world.begin().await;
                    control(&world.conn, &world.keys)
                        .check()
                        .await
                        .expect("checked");
                })
            },
        ),
        case(
            "taken",
            "all slots of a name have a batch in flight",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    world.begin().await;
                    control(&world.conn, &world.keys)
                        .inspect("work:none")
                        .await
                        .expect("inspected");
                })
            },
        ),
        case(
            "projection/position",
            "a state of 4 MiB is saved, then read",
            |world, _| {
                Box::pin(async move {
                    let state = vec![b'x'; STATE_BYTES_MAX];
                    let position = Position::default();
                    let mut store = RedisStore::new(world.conn.clone(), world.keys.clone(), "p")
                        .expect("a name");
                    let lease = Duration::from_secs(5);
                    world.begin().await;
                    store.open("t", lease).await.expect("opened");
                    store
                        .save("t", lease, &position, &state)
                        .await
                        .expect("saved");
                    store
                        .open("t", lease)
                        .await
                        .expect("opened")
                        .expect("saved");
                })
            },
        ),
        case("operator/log", "rows of 1 MB", |world, _| {
            Box::pin(async move {
                rows(world, world.keys.event_log(), 120, 1_000_000).await;
                world.begin().await;
                control(&world.conn, &world.keys)
                    .log(None, 100)
                    .await
                    .expect("a page");
            })
        }),
        case("operator/stream", "rows of 1 MB", |world, _| {
            Box::pin(async move {
                for stream in [
                    world.keys.event_log(),
                    world.keys.events_dead(),
                    world.keys.operator_actions(),
                ] {
                    rows(world, stream, 2, 1_000_000).await;
                }
                world.begin().await;
                control(&world.conn, &world.keys)
                    .stats()
                    .await
                    .expect("stats");
            })
        }),
        case("operator/of_object", "rows of 1 MB", |world, _| {
            Box::pin(async move {
                rows(world, world.keys.event_log(), 120, 1_000_000).await;
                world.begin().await;
                control(&world.conn, &world.keys)
                    .ended("work:2")
                    .await
                    .expect("a page");
            })
        }),
        case("operator/dead", "retry: events of 1 MiB", |world, _| {
            Box::pin(async move {
                let ids: Vec<RowId> = rows(world, world.keys.events_dead(), 32, MIB)
                    .await
                    .into_iter()
                    .map(RowId::from)
                    .collect();
                world.begin().await;
                control(&world.conn, &world.keys)
                    .settle(BY, Settle::Retry, &ids)
                    .await
                    .expect("settled");
            })
        }),
        case("operator/dead", "drop: events of 1 MiB", |world, _| {
            Box::pin(async move {
                let ids: Vec<RowId> = rows(world, world.keys.events_dead(), 32, MIB)
                    .await
                    .into_iter()
                    .map(RowId::from)
                    .collect();
                world.begin().await;
                control(&world.conn, &world.keys)
                    .settle(BY, Settle::Drop, &ids)
                    .await
                    .expect("settled");
            })
        }),
        case("operator/held", "a page", |world, settings| {
            Box::pin(async move {
                for _ in 0..4 {
                    world.fill(settings, 2, 200).await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                }
                world.begin().await;
                let count = control::held::PER_CALL_MAX;
                let query = HeldQuery {
                    part: HeldPart::All,
                    prefix: b"",
                    after: None,
                    count,
                };
                wire::operator::held(&mut world.conn, &world.keys, &query)
                    .await
                    .expect("a page");
            })
        }),
        case(
            "operator/release",
            "one of 1,024 objects, with a reason of 10 KB",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                    let held_id = world.keys.events_held_id("work:1");
                    world
                        .cmd(
                            redis::cmd("SET")
                                .arg(held_id)
                                .arg(format!("7 1 1 0 retry: {}", "x".repeat(10_000))),
                        )
                        .await;
                    world.begin().await;
                    wire::operator::release(&mut world.conn, &world.keys, BY, b"work:1")
                        .await
                        .expect("released");
                })
            },
        ),
        case(
            "operator/release_many",
            "the most objects of one call",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                    let objects = crate::world::names(wire::operator::RELEASE_PER_CALL_MAX, "work");
                    let record = wire::operator::Record {
                        selected: b"*",
                        row: "",
                    };
                    world.begin().await;
                    let which = wire::operator::ReleaseMany {
                        until_released: false,
                        text: "",
                        over: std::time::Duration::ZERO,
                    };
                    let released = wire::operator::release_many(
                        &mut world.conn,
                        &world.keys,
                        BY,
                        which,
                        record,
                        &objects,
                    )
                    .await;
                    assert!(!released.expect("released").0.is_empty());
                })
            },
        ),
        case(
            "operator/forget",
            "all that remains of an object, with the progress of 1,000 handlers",
            |world, _| {
                Box::pin(async move {
                    let (handled, errors) = (
                        world.keys.event_handled("work:1"),
                        world.keys.event_errors("work:1"),
                    );
                    world
                        .cmd(
                            redis::cmd("SET")
                                .arg(world.keys.last_event_id("work:1"))
                                .arg(7),
                        )
                        .await;
                    world
                        .cmd(
                            redis::cmd("RPUSH")
                                .arg(errors)
                                .arg(vec!["x".repeat(500); 20]),
                        )
                        .await;
                    let mut handlers = redis::cmd("HSET");
                    handlers.arg(handled).arg("id").arg(7);
                    for n in 0..1000 {
                        handlers
                            .arg(format!("handler:{n}"))
                            .arg("")
                            .arg(format!("result:{n}"))
                            .arg("x".repeat(1000));
                    }
                    world.cmd(&mut handlers).await;
                    world.begin().await;
                    let forgot = control(&world.conn, &world.keys)
                        .forget_as(BY, "work:1")
                        .await
                        .expect("an answer");
                    assert!(
                        matches!(forgot, control::Forgot::Forgotten { .. }),
                        "{forgot:?}"
                    );
                })
            },
        ),
        case(
            "operator/skip",
            "of a batch of 1,000 events",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, settings.batch(), 200).await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                    world.begin().await;
                    wire::operator::skip(&mut world.conn, &world.keys, BY, b"work:1", None)
                        .await
                        .expect("skipped");
                })
            },
        ),
        case(
            "operator/share",
            "the last of 1,024, all of 8 parts; 2,048 groups change their priority",
            |world, _| {
                Box::pin(async move {
                    shares(world, 4).await;
                    change_share(world).await;
                })
            },
        ),
        case(
            "operator/share",
            "the same, with prefixes and names of 256 bytes",
            |world, _| {
                Box::pin(async move {
                    shares(world, 35).await;
                    change_share(world).await;
                })
            },
        ),
    ]
}
