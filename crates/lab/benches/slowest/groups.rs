//! Cases of `advance.lua` with groups: a call groups as much as it may, and fills all slots.

use std::time::Duration;

use seriatim::wire::{self, Advance, Bounds, ClaimFirst};

use crate::world::{Case, NAME, Settings, TOKEN, World, case, names};

/// As many as a call groups. With more markers, the call claims fewer objects.
const MARKERS: usize = 2048;
/// More due held objects than a call groups.
const HELD: usize = 1024;
const EVENT_BYTES: usize = 200;

/// Pushes an event and a marker for each of these names, in one transaction per 64.
async fn emit(world: &mut World, objects: Vec<String>) {
    world.emit(&objects, 1, EVENT_BYTES).await;
}

fn call(world: &World, settings: &Settings) -> Advance {
    let bounds = Bounds {
        group_depth: 1,
        ..settings.bounds()
    };
    let mut call = Advance::new(&world.keys, NAME, TOKEN, bounds, ClaimFirst::Markers);
    (0..settings.slots()).for_each(|slot| call.free(slot));
    call
}

/// Measures a call with these markers.
async fn measure(world: &mut World, settings: &Settings, objects: Vec<String>) {
    world.attach(settings.slots()).await;
    emit(world, objects).await;
    let call = call(world, settings);
    world.begin().await;
    world.advance(&call).await;
}

/// Returns names of maximum length in this many groups.
fn long(groups: usize) -> Vec<String> {
    (0..MARKERS)
        .map(|n| format!("{:04}{}:{n:07}", n % groups, "x".repeat(500)))
        .collect()
}

/// Makes held objects of many groups that are due, each with a batch.
async fn hold(world: &mut World) {
    let mut pipe = redis::pipe();
    for object in (0..HELD).map(|n| format!("held{n}:1")) {
        pipe.cmd("LPUSH")
            .arg(world.keys.events_held(&object))
            .arg("1")
            .ignore();
        pipe.cmd("SET")
            .arg(world.keys.events_held_id(&object))
            .arg("1 1 0 0 retry: no")
            .ignore();
        pipe.cmd("SET")
            .arg(world.keys.event_worker(&object))
            .arg("held")
            .ignore();
        pipe.cmd("ZADD")
            .arg(world.keys.objects_held())
            .arg(1)
            .arg(&object)
            .ignore();
    }
    world.pipe(&pipe).await;
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case(
            "advance",
            "groups: all slots, one group",
            |world, settings| {
                Box::pin(async move { measure(world, settings, names(MARKERS, "work")).await })
            },
        ),
        case(
            "advance",
            "groups: all slots, 1,000 groups",
            |world, settings| {
                Box::pin(async move {
                    measure(
                        world,
                        settings,
                        (0..MARKERS).map(|n| format!("g{}:{n}", n % 1000)).collect(),
                    )
                    .await
                })
            },
        ),
        case(
            "advance",
            "groups: all slots, each object is a group",
            |world, settings| {
                Box::pin(async move {
                    measure(
                        world,
                        settings,
                        (0..MARKERS).map(|n| format!("g{n}:1")).collect(),
                    )
                    .await
                })
            },
        ),
        case(
            "advance",
            "groups: all slots, 1,000 groups, names of 512 bytes",
            |world, settings| Box::pin(async move { measure(world, settings, long(1000)).await }),
        ),
        case(
            "advance",
            "no groups: all slots, the same names of 512 bytes",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    emit(world, long(1000)).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "groups: all slots, each object is a group, and 256 due held objects",
            |world, settings| {
                Box::pin(async move {
                    hold(world).await;
                    measure(
                        world,
                        settings,
                        (0..MARKERS).map(|n| format!("g{n}:1")).collect(),
                    )
                    .await;
                })
            },
        ),
        case(
            "advance",
            "groups: 1,024 groups without names before the one with names",
            |world, settings| {
                Box::pin(async move {
                    let mut add = redis::cmd("ZADD");
                    add.arg(world.keys.event_groups());
                    (0..1024).for_each(|n| {
                        add.arg(0).arg(format!("empty{n}"));
                    });
                    world.cmd(&mut add).await;
                    measure(
                        world,
                        settings,
                        (0..MARKERS).map(|n| format!("g{n}:1")).collect(),
                    )
                    .await;
                })
            },
        ),
        case(
            "advance",
            "groups: names that lead to no event",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    let objects = (0..MARKERS)
                        .map(|n| format!("g{}:{n}", n % 1000))
                        .collect::<Vec<_>>();
                    for some in objects.chunks(1000) {
                        world
                            .cmd(
                                redis::cmd("LPUSH")
                                    .arg(world.keys.objects_with_events())
                                    .arg(some),
                            )
                            .await;
                    }
                    let call = call(world, settings);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "groups: all slots, held batches that are due",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                    emit(world, (0..MARKERS).map(|n| format!("g{n}:1")).collect()).await;
                    world.attach(settings.slots()).await;
                    // Held objects are due after the present millisecond.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    let call = call(world, settings);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
    ]
}
