//! Cases of `advance.lua`: most calls are for all slots at once, with full batches.

use std::time::Duration;

use seriatim::handlers::SUBTASKS_MAX;
use seriatim::wire::values::{Due, Later, LaterMode, Mark};
use seriatim::wire::{
    self, Advance, BatchReply, BatchResult, Bounds, ClaimFirst, Emits, EventLog, FINISHED,
    Finished, Load, Room, SlotBatch,
};

use crate::leases::marks;
use crate::world::{Case, NAME, Settings, TOKEN, World, case, done, event, names};

const EVENT_BYTES: usize = 200;
const MIB: usize = 1 << 20;

/// Adds results of batches to the call, as many as a worker process puts into one call.
fn report_all(call: &mut Advance, batches: &[BatchReply], more: fn(Load, usize, usize) -> Load) {
    let mut room = Room::of_call();
    for batch in batches {
        let bytes = batch.events.iter().map(|event| event.len()).sum();
        if !room.admits(more(
            Load::of_batch(batch.events.len(), bytes),
            batch.events.len(),
            bytes,
        )) {
            break;
        }
        call.report(batch.slot, &done(batch));
    }
}

/// Commits one event per slot, for as many slots as one call may have. The handlers of each event
/// have emitted or scheduled as much as they may.
async fn commit_emits(world: &mut World, settings: &Settings, later: bool) {
    let batches = world.fill(settings, 1, EVENT_BYTES).await;
    let mut call = Advance::new(
        &world.keys,
        NAME,
        TOKEN,
        settings.bounds(),
        ClaimFirst::Markers,
    );
    let mut room = Room::of_call();
    for batch in &batches {
        let mut emits = Emits::default();
        let (count, bytes) = if later { (500, 4000) } else { (1000, 2000) };
        let emitted = event(bytes);
        for n in 0..count {
            let object = format!("emitted:{}:{n}", batch.slot);
            let schedule = Later {
                key: b"key",
                mode: LaterMode::KeepTime,
                due: Due::After(5),
            };
            match later {
                true => emits.push_later(object.as_bytes(), emitted.as_bytes(), schedule),
                false => emits.push(object.as_bytes(), emitted.as_bytes()),
            }
        }
        if !room.admits(Load::of_batch(1, EVENT_BYTES).with_emits(emits.events(), emits.bytes())) {
            break;
        }
        let hand = SlotBatch {
            name: NAME,
            token: TOKEN,
            slot: batch.slot,
            object: &batch.object,
            tag: batch.tag,
        };
        let value = emits.value(0);
        let finished = Finished {
            id: batch.tag.first,
            field: "handler:a",
            value: FINISHED,
            emits: Some(("emit:a", &value)),
            result: None,
        };
        wire::handled(&mut world.conn, &world.keys, &hand, Some(finished))
            .await
            .expect("kept");
        call.handled(batch.slot);
        call.report(batch.slot, &done(batch));
    }
    world.begin().await;
    world.advance(&call).await;
}

/// Commits a batch of one event in all slots. The objects of the slots have more events.
async fn commit_singles(world: &mut World, settings: &Settings, with_log: bool) {
    world.attach(settings.slots()).await;
    world
        .emit(&names(settings.slots(), "work"), 12, EVENT_BYTES)
        .await;
    let mut batches: Vec<BatchReply> = Vec::new();
    while batches.len() < settings.slots() {
        let mut call = Advance::new(
            &world.keys,
            NAME,
            TOKEN,
            Bounds {
                batch: 1,
                ..settings.bounds()
            },
            ClaimFirst::Markers,
        );
        (batches.len()..settings.slots()).for_each(|slot| call.free(slot));
        batches.extend(world.advance(&call).await);
    }
    let mut call = Advance::new(
        &world.keys,
        NAME,
        TOKEN,
        settings.bounds(),
        ClaimFirst::Markers,
    );
    if with_log {
        call.log(EventLog::default());
    }
    report_all(
        &mut call,
        &batches,
        if with_log {
            Load::with_rows
        } else {
            |load, _, _| load
        },
    );
    world.begin().await;
    world.advance(&call).await;
}

pub(crate) fn cases() -> Vec<Case> {
    let mut large = case("advance", "claim: events of 1 MiB", |world, settings| {
        Box::pin(async move {
            world.attach(settings.slots()).await;
            world.emit(&names(64, "work"), 2, MIB).await;
            let call = world.free(settings, ClaimFirst::Markers);
            world.begin().await;
            world.advance(&call).await;
        })
    });
    large.more_ms = 3.0;
    let title = "commit: handlers of one event have emitted 1,000 events of 2 MiB together";
    let mut emits = case("advance", title, |world, settings| {
        Box::pin(commit_emits(world, settings, false))
    });
    emits.more_ms = 2.0 * 3.0;
    let title = "commit: handlers of one event have scheduled 500 events of 2 MiB together";
    let mut later = case("advance", title, |world, settings| {
        Box::pin(commit_emits(world, settings, true))
    });
    later.more_ms = 2.0 * 3.0;
    vec![
        case(
            "advance",
            "claim: all slots, full batches",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(
                            &names(settings.slots(), "work"),
                            settings.batch(),
                            EVENT_BYTES,
                        )
                        .await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: all slots, full batches of 8 bytes",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&names(settings.slots(), "work"), settings.batch(), 12)
                        .await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: all slots, one event each",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&names(settings.slots(), "work"), 1, EVENT_BYTES)
                        .await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        large,
        case(
            "advance",
            "claim: marks of somebody else",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    marks(world, 1000, false).await;
                    let mut push = redis::cmd("LPUSH");
                    push.arg(world.keys.objects_with_events());
                    for ms in 0..4096 {
                        push.arg(Mark { ms }.name());
                    }
                    world.cmd(&mut push).await;
                    world
                        .emit(&names(settings.slots(), "work"), 1, EVENT_BYTES)
                        .await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: markers that lead to no event",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world.emit(&names(1024, "work"), 1, EVENT_BYTES).await;
                    let mut pipe = redis::pipe();
                    for object in names(1024, "work") {
                        pipe.cmd("DEL").arg(world.keys.events(&object)).ignore();
                    }
                    world.pipe(&pipe).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: 10,000 due objects whose batches are absent",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    for some in names(10_000, "work").chunks(1000) {
                        let mut pipe = redis::pipe();
                        for object in some {
                            pipe.cmd("ZADD")
                                .arg(world.keys.objects_held())
                                .arg(1)
                                .arg(object)
                                .ignore();
                            pipe.cmd("SET")
                                .arg(world.keys.event_worker(object))
                                .arg("held")
                                .ignore();
                            pipe.cmd("SET")
                                .arg(world.keys.events_held_id(object))
                                .arg("7 0 0 0 stop")
                                .ignore();
                        }
                        world.pipe(&pipe).await;
                    }
                    let call = world.free(settings, ClaimFirst::Held);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: 10,000 due objects that are not held",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    for some in names(10_000, "work").chunks(1000) {
                        let mut held = redis::cmd("ZADD");
                        held.arg(world.keys.objects_held());
                        for object in some {
                            held.arg(1).arg(object);
                        }
                        world.cmd(&mut held).await;
                    }
                    let call = world.free(settings, ClaimFirst::Held);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: markers of objects whose queues have a wrong type",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    let mut pipe = redis::pipe();
                    for object in names(1024, "work") {
                        pipe.cmd("SET")
                            .arg(world.keys.events(&object))
                            .arg("wrong")
                            .ignore();
                        pipe.cmd("LPUSH")
                            .arg(world.keys.objects_with_events())
                            .arg(object)
                            .ignore();
                    }
                    world.pipe(&pipe).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "commit and go on: all slots, full batches",
            |world, settings| {
                Box::pin(async move {
                    let batches = world
                        .fill(settings, 2 * settings.batch(), EVENT_BYTES)
                        .await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    report_all(&mut call, &batches, |load, _, _| load);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "commit and go on: all slots, one event each",
            |world, settings| Box::pin(async move { commit_singles(world, settings, false).await }),
        ),
        case(
            "advance",
            "commit and go on: all slots, one event each, with the event log",
            |world, settings| Box::pin(async move { commit_singles(world, settings, true).await }),
        ),
        case(
            "advance",
            "commit: all slots, batches of 1 MiB",
            |world, settings| {
                Box::pin(async move {
                    let batches = world
                        .fill(
                            settings,
                            if settings.largest() { 8 } else { 256 },
                            if settings.largest() { 1 << 18 } else { 4096 },
                        )
                        .await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    report_all(&mut call, &batches, |load, _, _| load);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "commit: all slots, with the event log",
            |world, settings| {
                Box::pin(async move {
                    let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    call.log(EventLog::default());
                    report_all(&mut call, &batches, Load::with_rows);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        emits,
        later,
        case(
            "advance",
            "commit: all slots, 1,000 finished subtasks, with the log",
            |world, settings| {
                Box::pin(async move {
                    let batches = world.fill(settings, 1, EVENT_BYTES).await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    call.log(EventLog::default());
                    let mut room = Room::of_call();
                    for batch in &batches {
                        let load = Load::of_batch(1, EVENT_BYTES)
                            .with_rows(1, EVENT_BYTES)
                            .with_finished(SUBTASKS_MAX);
                        if !room.admits(load) {
                            break;
                        }
                        crate::leases::remember(world, batch).await;
                        call.handled(batch.slot);
                        call.report(batch.slot, &done(batch));
                    }
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "hold: all slots, each event has failed",
            |world, settings| {
                Box::pin(async move {
                    let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    let mut room = Room::of_call();
                    for batch in &batches {
                        if !room.admits(Load::of_batch(1, EVENT_BYTES).with_rest()) {
                            break;
                        }
                        let mut report = done(batch);
                        (report.count, report.last) = (0, None);
                        let rest = seriatim::wire::Tag {
                            attempts: 1,
                            ..batch.tag
                        };
                        let why = format!("retry: {}", event(1000));
                        report.then = BatchResult::Hold {
                            rest,
                            delay: Some(Duration::from_secs(1)),
                            reason: why.into(),
                        };
                        call.report(batch.slot, &report);
                    }
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "dead letters: all slots, each event is rejected",
            |world, settings| {
                Box::pin(async move {
                    let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    let mut room = Room::of_call();
                    for batch in &batches {
                        if !room.admits(Load::of_batch(1, EVENT_BYTES).with_rest()) {
                            break;
                        }
                        let mut report = done(batch);
                        (report.count, report.last) = (0, None);
                        let next = (batch.events.len() > 1).then(|| wire::Tag {
                            first: batch.tag.first + 1,
                            ..batch.tag
                        });
                        report.then = BatchResult::Reject {
                            next,
                            id: batch.tag.first,
                            error: event(1000),
                            attempts: 0,
                        };
                        call.report(batch.slot, &report);
                    }
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim again: all slots, batches in flight",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "claim: all slots, held batches that are due",
            |world, settings| {
                Box::pin(async move {
                    world.fill(settings, settings.batch(), EVENT_BYTES).await;
                    seriatim::wire::detach(&mut world.conn, &world.keys, NAME, TOKEN)
                        .await
                        .expect("detached");
                    world.attach(settings.slots()).await;
                    let call = world.free(settings, ClaimFirst::Held);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
    ]
}
