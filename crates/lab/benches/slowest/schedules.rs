//! Cases of schedules and cron jobs: a million schedules that are due at once, and large events.

use seriatim::control;
use seriatim::wire::{self, ClaimFirst, PROMOTED_MAX};

use crate::support::{self, jobs};
use crate::world::{Case, World, case, event};

const MIB: usize = 1 << 20;
/// Promoted schedules of a million: a state with few schedules is not the worst one.
const FIRST: u64 = 100_000;

/// Stores the schedules of the objects `from` to `to`, as [`schedule`] does.
const SCHEDULE: &str = "
local set, before, after, key, event = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local count, objects, first_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
for n = tonumber(ARGV[8]), ARGV[9] - 1 do
    local object, fields, members = 'work:' .. n, {}, {}
    for m = n, count - 1, objects do
        fields[#fields + 1], fields[#fields + 2] = key .. m, event
        members[#members + 1], members[#members + 2] = string.format('%.0f', first_ms + m), object .. '\\n' .. key .. m
        if #fields == 200 or m + objects >= count then
            redis.call('HSET', before .. object .. after, unpack(fields))
            redis.call('ZADD', set, unpack(members))
            fields, members = {}, {}
        end
    end
end";

/// Stores `count` schedules. Their due times begin at `first_ms` and are 1 ms apart. `key` is the
/// beginning of their keys; a key that does not begin with `-` is one that a user has chosen.
async fn schedule(
    world: &mut World,
    key: &str,
    count: usize,
    objects: usize,
    bytes: usize,
    first_ms: u64,
) {
    let of = world.keys.events_scheduled_of("work:0");
    let (before, after) = of.split_once("work:0").expect("the name of the object");
    let at_once = (100_000 * objects / count).max(1);
    for from in (0..objects).step_by(at_once) {
        let mut fill = redis::cmd("EVAL");
        fill.arg(SCHEDULE)
            .arg(1)
            .arg(world.keys.events_scheduled())
            .arg(before)
            .arg(after)
            .arg(key)
            .arg(event(bytes));
        fill.arg(count)
            .arg(objects)
            .arg(first_ms)
            .arg(from)
            .arg(objects.min(from + at_once));
        world.cmd(&mut fill).await;
    }
}

/// Promotes schedules until none is due.
async fn promote_all(world: &mut World) {
    promote(world, u64::MAX).await;
}

/// Promotes so many schedules, if so many are due.
async fn promote(world: &mut World, count: u64) {
    let mut left = count;
    while left > 0 {
        let promoted = wire::promote(&mut world.conn, &world.keys, PROMOTED_MAX, MIB)
            .await
            .expect("promoted");
        if promoted.events == 0 {
            return;
        }
        left = left.saturating_sub(promoted.events);
    }
}

/// Stores cron jobs that are due, with events of this size.
async fn set_jobs(world: &mut World, count: usize, bytes: usize) {
    for n in 0..count {
        let name = format!("job {n}");
        let value = jobs::value("1 0", &format!("work:{n}"), &event(bytes));
        world
            .cmd(
                redis::cmd("HSET")
                    .arg(world.keys.events_cron())
                    .arg(&name)
                    .arg(value),
            )
            .await;
        world
            .cmd(
                redis::cmd("HSET")
                    .arg(world.keys.events_cron_last())
                    .arg(&name)
                    .arg("5 0"),
            )
            .await;
        world
            .cmd(
                redis::cmd("ZADD")
                    .arg(world.keys.events_cron_next())
                    .arg(n + 1)
                    .arg(name),
            )
            .await;
    }
}

/// Stores a million idempotency keys that are old enough to be deleted.
async fn emit_keys(world: &mut World) {
    for from in (0..1_000_000).step_by(10_000) {
        let (mut hash, mut ends) = (redis::cmd("HSET"), redis::cmd("ZADD"));
        hash.arg(world.keys.events_emitted());
        ends.arg(world.keys.events_emitted_ends());
        for n in from..from + 10_000 {
            let member = format!("work:{n}\nkey {n}");
            hash.arg(&member)
                .arg("0123456789012345678901234567890123456789");
            ends.arg(n).arg(member);
        }
        world.cmd(&mut hash).await;
        world.cmd(&mut ends).await;
    }
}

/// Reads the cron jobs that are due, and queues the event of each job `events` times.
async fn fire(world: &mut World, events: usize) {
    let due = wire::cron(&mut world.conn, &world.keys, &[])
        .await
        .expect("a reply")
        .due;
    let ticks = |job| wire::Ticks {
        job,
        handled_ms: 6,
        next_ms: None,
        events: Some(events),
    };
    let ticks: Vec<_> = due.into_iter().map(ticks).collect();
    let fired = wire::cron(&mut world.conn, &world.keys, &ticks)
        .await
        .expect("a reply");
    assert_eq!(fired.events, (ticks.len() * events) as u64);
}

/// Makes an object whose event of 1 MiB has the key `k` and waits for a retry. Its handlers have
/// emitted 1,000 events of 1 KiB.
async fn held_with_emits(world: &mut World) {
    let keys = world.keys.clone();
    let one = format!("7 1024 other:1{}", event(1024));
    let emits = format!("0 1000 {} ", 1000 * 1031) + &one.repeat(1000);
    let mut pipe = redis::pipe();
    pipe.cmd("SET")
        .arg(keys.event_key("work:1"))
        .arg("7 k")
        .cmd("SET")
        .arg(keys.event_worker("work:1"))
        .arg("held");
    pipe.cmd("SET")
        .arg(keys.events_held_id("work:1"))
        .arg("7 0 1 0 retry: x");
    pipe.cmd("LPUSH")
        .arg(keys.events_held("work:1"))
        .arg(event(MIB))
        .cmd("ZADD")
        .arg(keys.objects_held())
        .arg(9e12)
        .arg("work:1");
    pipe.cmd("HSET")
        .arg(keys.event_handled("work:1"))
        .arg("id")
        .arg(7)
        .arg("emit:h")
        .arg(emits);
    pipe.cmd("HSET").arg(keys.meta()).arg("event.log").arg("on");
    world.pipe(&pipe).await;
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cancel = case(
        "cancel",
        "an event of 1 MiB whose handlers have emitted 1,000 events of 1 KiB",
        |world, _| {
            Box::pin(async move {
                let keys = world.keys.clone();
                held_with_emits(world).await;
                world.begin().await;
                let done: redis::Value = wire::cancel(&keys, b"work:1", "k", "7", true)
                    .query_async(&mut world.conn)
                    .await
                    .expect("a reply");
                assert_eq!(
                    wire::CancelReply::read(&done).expect("a reply"),
                    wire::CancelReply::Cancelled
                );
            })
        },
    );
    cancel.more_ms = 2.0 * 3.0;
    let mut by_operator = case(
        "operator/cancel",
        "an event of 1 MiB whose handlers have emitted 1,000 events of 1 KiB",
        |world, _| {
            Box::pin(async move {
                held_with_emits(world).await;
                world.begin().await;
                let control = support::control(&world.conn, &world.keys);
                let by = control::By {
                    who: "ada",
                    why: "a test",
                };
                let cancelled = control
                    .cancel_schedule(by, "work:1", "k")
                    .await
                    .expect("an answer");
                assert_eq!(
                    cancelled,
                    control::CancelledSchedule::Cancelled { id: Some(7) }
                );
            })
        },
    );
    by_operator.more_ms = 2.0 * 3.0;
    vec![
        case(
            "operator/cancel",
            "one of 1,000,000 schedules, of 100,000 objects",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "k", 1_000_000, 100_000, 100, 1).await;
                    world.begin().await;
                    let control = support::control(&world.conn, &world.keys);
                    let by = control::By {
                        who: "ada",
                        why: "a test",
                    };
                    let cancelled = control
                        .cancel_schedule(by, "work:7", "k500007")
                        .await
                        .expect("an answer");
                    assert_eq!(
                        cancelled,
                        control::CancelledSchedule::Cancelled { id: None }
                    );
                })
            },
        ),
        by_operator,
        case(
            "promote",
            "1,000,000 schedules of 100,000 objects, all due",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 1_000_000, 100_000, 100, 1).await;
                    world.begin().await;
                    promote(world, FIRST).await;
                })
            },
        ),
        case(
            "promote",
            "1,000,000 schedules with keys of 100,000 objects, all due",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "k", 1_000_000, 100_000, 100, 1).await;
                    world.begin().await;
                    promote(world, FIRST).await;
                })
            },
        ),
        case(
            "advance",
            "claim: all slots, an event with a key each, 1,000,000 schedules",
            |world, settings| {
                Box::pin(async move {
                    let slots = settings.slots();
                    world.attach(slots).await;
                    schedule(world, "-", 1_000_000, 10_000, 10, 9_000_000_000_000).await;
                    schedule(world, &"k".repeat(250), slots, slots, 1000, 1).await;
                    promote_all(world).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: references that lead nowhere, 100 of each object",
            |world, settings| {
                Box::pin(async move {
                    let slots = settings.slots();
                    world.attach(slots).await;
                    schedule(world, "k", 100 * slots, slots, 10, 1).await;
                    promote_all(world).await;
                    world
                        .cmd(redis::cmd("DEL").arg(world.keys.events_scheduled()))
                        .await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        cancel,
        case(
            "promote",
            "100,000 schedules of one object, all due",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 100_000, 1, 100, 1).await;
                    world.begin().await;
                    promote_all(world).await;
                })
            },
        ),
        case("promote", "events of 1 MiB", |world, _| {
            Box::pin(async move {
                schedule(world, "-", 100, 100, MIB, 1).await;
                world.begin().await;
                promote_all(world).await;
            })
        }),
        case(
            "promote",
            "events of 1 MiB for a queue of a wrong type",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 256, 1, MIB, 1).await;
                    world
                        .cmd(redis::cmd("SET").arg(world.keys.events("work:0")).arg("x"))
                        .await;
                    world.begin().await;
                    promote_all(world).await;
                })
            },
        ),
        case("cron", "10,000 jobs due, 16 fire", |world, _| {
            Box::pin(async move {
                set_jobs(world, 10_000, 1000).await;
                world.begin().await;
                fire(world, 1).await;
            })
        }),
        case(
            "cron",
            "1,000 ticks of one job, events of 1 KiB",
            |world, _| {
                Box::pin(async move {
                    set_jobs(world, 1, 1024).await;
                    world.begin().await;
                    fire(world, 1000).await;
                })
            },
        ),
        case("cron", "jobs with events of 1 MiB", |world, _| {
            Box::pin(async move {
                set_jobs(world, 32, MIB).await;
                world.begin().await;
                fire(world, 1).await;
            })
        }),
        case(
            "emit",
            "a key, 1,000 events of 1 KiB, and 1,000,000 keys",
            |world, _| {
                Box::pin(async move {
                    emit_keys(world).await;
                    world.begin().await;
                    let emitter =
                        seriatim::Emitter::new(world.conn.clone()).with_keys(world.keys.clone());
                    let mut emit = emitter.event("work:1", seriatim::event::Json::new(event(1024)));
                    for _ in 1..1000 {
                        emit = emit.sub(seriatim::event::Json::new(event(1024)));
                    }
                    emit.idempotency_key("new").send().await.expect("queued");
                })
            },
        ),
        case(
            "operator/crons",
            "a page of 10,000 jobs with events of 8 KiB",
            |world, _| {
                Box::pin(async move {
                    set_jobs(world, 10_000, 8192).await;
                    world.begin().await;
                    support::control(&world.conn, &world.keys)
                        .crons(None, 100)
                        .await
                        .expect("a page");
                })
            },
        ),
        case(
            "operator/cron",
            "a job with an event of 1 MiB, 10,000 others",
            |world, _| {
                Box::pin(async move {
                    set_jobs(world, 10_000, 100).await;
                    let control = support::control(&world.conn, &world.keys);
                    let schedule =
                        seriatim::cron::CronSchedule::new("@hourly", None).expect("a schedule");
                    let event = seriatim::event::Json::new(event(MIB - 100));
                    let job = control::CronDraft::new("job 1", schedule, "work:1", event).now();
                    world.begin().await;
                    control
                        .set_cron(
                            control::By {
                                who: "ada",
                                why: "a test",
                            },
                            job,
                        )
                        .await
                        .expect("set");
                })
            },
        ),
        case(
            "inspect",
            "an object with 256 schedules of 1 MiB",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 256, 1, MIB, 1).await;
                    world.begin().await;
                    support::control(&world.conn, &world.keys)
                        .inspect("work:0")
                        .await
                        .expect("inspected");
                })
            },
        ),
        case(
            "operator/scheduled",
            "an object with 256 schedules of 1 MiB",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 256, 1, MIB, 1).await;
                    world.begin().await;
                    let control = support::control(&world.conn, &world.keys);
                    control
                        .schedules_of("work:0", None, control::schedules::PER_CALL_MAX)
                        .await
                        .expect("a page");
                })
            },
        ),
        case(
            "operator/scheduled",
            "a page of 100,000 schedules, events of 8 KiB",
            |world, _| {
                Box::pin(async move {
                    schedule(world, "-", 100_000, 10_000, 10, 1_000_000).await;
                    schedule(world, "-", 1000, 1000, 8192, 1).await;
                    world.begin().await;
                    let control = support::control(&world.conn, &world.keys);
                    let page = control
                        .schedules(None, None, None, control::schedules::PER_CALL_MAX)
                        .await
                        .expect("a page");
                    control
                        .schedules(
                            None,
                            None,
                            page.next.as_ref(),
                            control::schedules::PER_CALL_MAX,
                        )
                        .await
                        .expect("a page");
                })
            },
        ),
    ]
}
