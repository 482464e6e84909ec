//! Cases of the scripts `connect`, `attach`, `renew`, `detach`, `adopt`, `mark`, `handled`,
//! `sent` and `forget`. The cases of leases are for all slots of a worker name at once.

use std::time::Duration;

use seriatim::handlers::{SUBTASK_BYTES_MAX, SUBTASKS_MAX};
use seriatim::wire::values::Mark;
use seriatim::wire::{self, Attach, BatchReply, Emits, FINISHED, Finished, SlotBatch, Sweep};

use crate::support::control;
use crate::world::{Case, NAME, TOKEN, World, case, event, names};

/// Records the emits of a handler of one event: as many as are allowed. `measured`: whether the
/// call that records them is measured.
async fn keep(world: &mut World, measured: bool) -> (bytes::Bytes, wire::Tag) {
    let batch = world
        .fill(&crate::Settings::default(), 1, 200)
        .await
        .remove(0);
    let mut emits = Emits::default();
    let emitted = event(2000);
    (0..1000).for_each(|n| emits.push(format!("emitted:{n}").as_bytes(), emitted.as_bytes()));
    let value = emits.value(0);
    let hand = SlotBatch {
        name: NAME,
        token: TOKEN,
        slot: batch.slot,
        object: &batch.object,
        tag: batch.tag,
    };
    let finished = Finished {
        id: batch.tag.first,
        field: "handler:a",
        value: FINISHED,
        emits: Some(("emit:a", &value)),
        result: None,
    };
    if measured {
        world.begin().await;
    }
    wire::handled(&mut world.conn, &world.keys, &hand, Some(finished))
        .await
        .expect("kept");
    (batch.object, batch.tag)
}

/// Records finished subtasks of the first event of a batch: as many as are allowed, with names of
/// maximum length.
pub(crate) async fn remember(world: &mut World, batch: &BatchReply) {
    let mut handled = redis::cmd("HSET");
    handled
        .arg(
            world
                .keys
                .event_handled(&String::from_utf8_lossy(&batch.object)),
        )
        .arg("id")
        .arg(batch.tag.first);
    for n in 0..SUBTASKS_MAX {
        handled.arg(format!("once:{n:0SUBTASK_BYTES_MAX$}")).arg(1);
    }
    world.cmd(&mut handled).await;
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("connect", "to another server", |world, _| {
            Box::pin(async move {
                let seen = wire::Connect {
                    highest: 7,
                    ..Default::default()
                };
                for server in ["one", "two"] {
                    world.begin().await;
                    wire::connect(&mut world.conn, &world.keys, server, seen)
                        .await
                        .expect("connected");
                }
            })
        }),
        case(
            "attach",
            "all slots have a batch in flight, the process has died",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    let lease: String = redis::cmd("GET")
                        .arg(world.keys.worker_lease(NAME))
                        .query_async(&mut world.conn)
                        .await
                        .expect("a lease");
                    let args = Attach {
                        name: NAME,
                        token: "token-2",
                        holder: "host 2 2",
                        lease: Duration::from_secs(600),
                        slots: 1,
                        displace: &lease,
                        before: "",
                        crashes_max: 5,
                        suspects: wire::Suspects::NONE,
                    };
                    world.begin().await;
                    wire::attach(&mut world.conn, &world.keys, &args)
                        .await
                        .expect("attached");
                })
            },
        ),
        case(
            "renew",
            "all slots have a batch in flight",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    world.begin().await;
                    let lease = Duration::from_secs(5);
                    wire::renew(
                        &mut world.conn,
                        &world.keys,
                        NAME,
                        TOKEN,
                        lease,
                        settings.slots(),
                    )
                    .await
                    .expect("renewed");
                })
            },
        ),
        case(
            "detach",
            "all slots have a batch in flight",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    world.begin().await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                })
            },
        ),
        case(
            "adopt",
            "all slots of a dead process have a batch in flight",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, 2, 200).await;
                    world
                        .cmd(redis::cmd("DEL").arg(world.keys.worker_lease(NAME)))
                        .await;
                    world.begin().await;
                    let (look, forget) = (Duration::from_millis(1), Duration::from_secs(86_400));
                    let sweep = Sweep {
                        own: "other",
                        crashes_max: 5,
                        look,
                        forget,
                        since: None,
                        notice: look,
                    };
                    while wire::adopt(&mut world.conn, &world.keys, &sweep)
                        .await
                        .expect("swept")
                        .more
                    {}
                })
            },
        ),
        case(
            "adopt",
            "the clock has stepped back, under 1,000 rules and 100,000 held objects",
            |world, _| {
                Box::pin(async move {
                    let now_ms = control(&world.conn, &world.keys)
                        .now_ms()
                        .await
                        .expect("a time");
                    crate::rules::many(world).await;
                    for n in 0..100 {
                        let mut held = redis::cmd("ZADD");
                        held.arg(world.keys.objects_held());
                        for m in 0..1000 {
                            held.arg(now_ms + 3_600_000 + n)
                                .arg(format!("work:held:{n}:{m}"));
                        }
                        world.cmd(&mut held).await;
                    }
                    let mut clock = redis::cmd("HSET");
                    world
                        .cmd(
                            clock
                                .arg(world.keys.meta())
                                .arg("clock")
                                .arg(now_ms + 3_600_000),
                        )
                        .await;
                    world.begin().await;
                    let (look, forget) = (Duration::from_secs(1), Duration::from_secs(86_400));
                    let sweep = Sweep {
                        own: "other",
                        crashes_max: 5,
                        look,
                        forget,
                        since: None,
                        notice: look,
                    };
                    while wire::adopt(&mut world.conn, &world.keys, &sweep)
                        .await
                        .expect("swept")
                        .more
                    {}
                })
            },
        ),
        case(
            "mark",
            "the last marker was taken, and 50,000 marks are left",
            |world, _| {
                Box::pin(async move {
                    marks(world, 50_000, false).await;
                    world.begin().await;
                    wire::mark(&mut world.conn, &world.keys)
                        .await
                        .expect("marked");
                })
            },
        ),
        case(
            "mark",
            "50,000 marks have no marker before them",
            |world, _| {
                Box::pin(async move {
                    marks(world, 50_000, true).await;
                    world.begin().await;
                    wire::mark(&mut world.conn, &world.keys)
                        .await
                        .expect("marked");
                })
            },
        ),
        case(
            "handled",
            "a handler has emitted 1,000 events of 2 MiB together",
            |world, _| {
                Box::pin(async move {
                    keep(world, true).await;
                })
            },
        ),
        case("handled", "the same emits are read", |world, _| {
            Box::pin(async move {
                let (object, tag) = keep(world, false).await;
                let slot = 0;
                let hand = SlotBatch {
                    name: NAME,
                    token: TOKEN,
                    slot,
                    object: &object,
                    tag,
                };
                world.begin().await;
                wire::handled(&mut world.conn, &world.keys, &hand, None)
                    .await
                    .expect("read");
            })
        }),
        case(
            "handled",
            "1,000 subtasks with long names are read, then written over",
            |world, settings| {
                Box::pin(async move {
                    let batch = world.fill(settings, 2, 200).await.remove(0);
                    remember(world, &batch).await;
                    let hand = SlotBatch {
                        name: NAME,
                        token: TOKEN,
                        slot: batch.slot,
                        object: &batch.object,
                        tag: batch.tag,
                    };
                    world.begin().await;
                    wire::handled(&mut world.conn, &world.keys, &hand, None)
                        .await
                        .expect("read");
                    let finished = Finished {
                        id: batch.tag.first + 1,
                        field: "handler:a",
                        value: FINISHED,
                        emits: None,
                        result: None,
                    };
                    wire::handled(&mut world.conn, &world.keys, &hand, Some(finished))
                        .await
                        .expect("kept");
                })
            },
        ),
        case(
            "sent",
            "a request is recorded, found open, and over",
            |world, settings| {
                Box::pin(async move {
                    let batch = world.fill(settings, 2, 200).await.remove(0);
                    let hand = SlotBatch {
                        name: NAME,
                        token: TOKEN,
                        slot: batch.slot,
                        object: &batch.object,
                        tag: batch.tag,
                    };
                    let limit = Duration::from_secs(30);
                    world.begin().await;
                    for request in ["one", "two"] {
                        wire::sent(&mut world.conn, &world.keys, &hand, request, limit, 0)
                            .await
                            .expect("an answer");
                    }
                    wire::request_over(&mut world.conn, &world.keys, &batch.object, "one")
                        .await
                        .expect("over");
                })
            },
        ),
        case("forget", "a call's objects, all idle", |world, _| {
            Box::pin(async move {
                let objects = names(wire::OBJECTS_MAX, "work");
                let mut pipe = redis::pipe();
                for object in &objects {
                    pipe.cmd("SET")
                        .arg(world.keys.last_event_id(object))
                        .arg(7)
                        .ignore();
                }
                world.pipe(&pipe).await;
                world.begin().await;
                let names: Vec<&str> = objects.iter().map(String::as_str).collect();
                wire::forget(&mut world.conn, &world.keys, &names)
                    .await
                    .expect("forgotten");
            })
        }),
    ]
}

/// Adds marks to `event.marks`. Their times are 1 s apart. If `listed`, also pushes the marks to
/// the list of markers.
pub(crate) async fn marks(world: &mut World, count: u64, listed: bool) {
    let now_ms = control(&world.conn, &world.keys)
        .now_ms()
        .await
        .expect("a time");
    let times: Vec<u64> = (1..=count).rev().map(|n| now_ms - n * 1000).collect();
    for some in times.chunks(10_000) {
        let (mut add, mut push) = (redis::cmd("ZADD"), redis::cmd("LPUSH"));
        add.arg(world.keys.event_marks());
        push.arg(world.keys.objects_with_events());
        for ms in some {
            add.arg(ms).arg(ms);
            push.arg(Mark { ms: *ms }.name());
        }
        world.cmd(&mut add).await;
        if listed {
            world.cmd(&mut push).await;
        }
    }
}
