//! Promotion: a million schedules that are due at once, and large events.

use seriatim::control;
use seriatim::wire::{self, PROMOTED_MAX};

use crate::support;
use crate::world::{Case, World, case, event};

const MIB: usize = 1 << 20;

/// Stores schedules, due at times that differ by 1 ms.
async fn schedule(world: &mut World, count: usize, objects: usize, bytes: usize, first_ms: u64) {
    let set = world.keys.events_scheduled();
    let at_once = (16 * MIB / bytes).clamp(1, 1000);
    for from in (0..count).step_by(at_once) {
        let mut pipe = redis::pipe();
        for n in from..(from + at_once).min(count) {
            let object = format!("work:{}", n % objects);
            pipe.cmd("HSET").arg(world.keys.events_scheduled_of(&object)).arg(format!("k{n}")).arg(event(bytes)).ignore();
            pipe.cmd("ZADD").arg(&set).arg(first_ms + n as u64).arg(format!("{object}\nk{n}")).ignore();
        }
        world.pipe(&pipe).await;
    }
}

/// Promotes until nothing is due.
async fn promote_all(world: &mut World) {
    loop {
        let promoted = wire::promote(&mut world.conn, &world.keys, PROMOTED_MAX, MIB).await.expect("promoted");
        if promoted.events == 0 {
            return;
        }
    }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("promote", "1,000,000 schedules of 100,000 objects, all due", |world, _| {
            Box::pin(async move {
                schedule(world, 1_000_000, 100_000, 100, 1).await;
                world.begin().await;
                promote_all(world).await;
            })
        }),
        case("promote", "100,000 schedules of one object, all due", |world, _| {
            Box::pin(async move {
                schedule(world, 100_000, 1, 100, 1).await;
                world.begin().await;
                promote_all(world).await;
            })
        }),
        case("promote", "events of 1 MiB", |world, _| {
            Box::pin(async move {
                schedule(world, 100, 100, MIB, 1).await;
                world.begin().await;
                promote_all(world).await;
            })
        }),
        case("promote", "events of 1 MiB for a queue of a wrong type", |world, _| {
            Box::pin(async move {
                schedule(world, 256, 1, MIB, 1).await;
                world.cmd(redis::cmd("SET").arg(world.keys.events("work:0")).arg("x")).await;
                world.begin().await;
                promote_all(world).await;
            })
        }),
        case("inspect", "an object with 256 schedules of 1 MiB", |world, _| {
            Box::pin(async move {
                schedule(world, 256, 1, MIB, 1).await;
                world.begin().await;
                support::control(&world.conn, &world.keys).inspect("work:0").await.expect("inspected");
            })
        }),
        case("operator/scheduled", "an object with 256 schedules of 1 MiB", |world, _| {
            Box::pin(async move {
                schedule(world, 256, 1, MIB, 1).await;
                world.begin().await;
                let control = support::control(&world.conn, &world.keys);
                control.schedules_of("work:0", None, control::schedules::PER_CALL_MAX).await.expect("a page");
            })
        }),
        case("operator/scheduled", "a page of 100,000 schedules, events of 8 KiB", |world, _| {
            Box::pin(async move {
                schedule(world, 100_000, 10_000, 10, 1_000_000).await;
                schedule(world, 1000, 1000, 8192, 1).await;
                world.begin().await;
                let control = support::control(&world.conn, &world.keys);
                let page = control.schedules(None, None, None, control::schedules::PER_CALL_MAX).await.expect("a page");
                control.schedules(None, None, page.next.as_ref(), control::schedules::PER_CALL_MAX).await.expect("a page");
            })
        }),
    ]
}
