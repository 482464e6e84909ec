//! `advance.lua`: all slots at once, with full batches.

use std::time::Duration;

use seriatim::scripts::{self, Advance, BatchReply, Emits, EventLog, Finished, From, InHand, Load, Results, Room};

use crate::world::{Case, NAME, Settings, TOKEN, case, done, event, names};

const EVENT_BYTES: usize = 200;
const MIB: usize = 1 << 20;

/// Reports as many batches as a process puts into one call.
fn report_all(call: &mut Advance, settings: &Settings, batches: &[BatchReply], more: fn(Load, usize, usize) -> Load) {
    let mut room = Room::of_call();
    for batch in batches {
        let bytes = batch.events.iter().map(|event| event.len()).sum();
        if !room.admits(more(Load::of_batch(batch.events.len(), bytes), batch.events.len(), bytes)) {
            break;
        }
        call.report(batch.slot, &done(batch));
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut large = case("advance", "claim: events of 1 MiB", |world, settings| {
        Box::pin(async move {
            world.attach(settings.slots()).await;
            world.emit(&names(64, "work"), 2, MIB).await;
            let call = world.free(settings, From::Markers);
            world.begin().await;
            world.advance(&call).await;
        })
    });
    large.more_ms = 3.0;
    vec![
        case("advance", "claim: all slots, full batches", |world, settings| {
            Box::pin(async move {
                world.attach(settings.slots()).await;
                world.emit(&names(settings.slots(), "work"), settings.batch(), EVENT_BYTES).await;
                let call = world.free(settings, From::Markers);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "claim: all slots, full batches of 8 bytes", |world, settings| {
            Box::pin(async move {
                world.attach(settings.slots()).await;
                world.emit(&names(settings.slots(), "work"), settings.batch(), 12).await;
                let call = world.free(settings, From::Markers);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "claim: all slots, one event each", |world, settings| {
            Box::pin(async move {
                world.attach(settings.slots()).await;
                world.emit(&names(settings.slots(), "work"), 1, EVENT_BYTES).await;
                let call = world.free(settings, From::Markers);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        large,
        case("advance", "claim: markers that lead nowhere", |world, settings| {
            Box::pin(async move {
                world.attach(settings.slots()).await;
                world.emit(&names(1024, "work"), 1, EVENT_BYTES).await;
                let mut pipe = redis::pipe();
                for object in names(1024, "work") {
                    pipe.cmd("DEL").arg(world.keys.events(&object)).ignore();
                }
                world.pipe(&pipe).await;
                let call = world.free(settings, From::Markers);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "commit and go on: all slots, full batches", |world, settings| {
            Box::pin(async move {
                let batches = world.fill(settings, 2 * settings.batch(), EVENT_BYTES).await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                report_all(&mut call, settings, &batches, |load, _, _| load);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "commit: all slots, batches of 1 MiB", |world, settings| {
            Box::pin(async move {
                let batches = world
                    .fill(settings, if settings.is_largest { 8 } else { 256 }, if settings.is_largest { 1 << 18 } else { 4096 })
                    .await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                report_all(&mut call, settings, &batches, |load, _, _| load);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "commit: all slots, with the event log", |world, settings| {
            Box::pin(async move {
                let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                call.log(EventLog::default());
                report_all(&mut call, settings, &batches, Load::with_rows);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "commit: handlers have emitted 1,000 events of 2 MiB together for each batch", |world, settings| {
            Box::pin(async move {
                let batches = world.fill(settings, 1, EVENT_BYTES).await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                let (mut room, emitted) = (Room::of_call(), event(2000));
                for batch in &batches {
                    let mut emits = Emits::default();
                    (0..1000).for_each(|n| emits.push(format!("emitted:{}:{n}", batch.slot).as_bytes(), emitted.as_bytes()));
                    if !room.admits(Load::of_batch(1, EVENT_BYTES).with_emits(emits.events(), emits.bytes())) {
                        break;
                    }
                    let hand = InHand { name: NAME, token: TOKEN, slot: batch.slot, object: &batch.object, tag: batch.tag };
                    let value = emits.value(0);
                    let finished =
                        Finished { id: batch.tag.first, field: "handler:a", emits: Some(("emit:a", &value)), result: None };
                    scripts::handled(&mut world.conn, &world.keys, &hand, Some(finished)).await.expect("kept");
                    call.handled(batch.slot);
                    call.report(batch.slot, &done(batch));
                }
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "hold: all slots, each event has failed", |world, settings| {
            Box::pin(async move {
                let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                let mut room = Room::of_call();
                for batch in &batches {
                    if !room.admits(Load::of_batch(1, EVENT_BYTES).with_rest()) {
                        break;
                    }
                    let mut report = done(batch);
                    (report.count, report.last) = (0, None);
                    let rest = seriatim::scripts::Tag { attempts: 1, ..batch.tag };
                    let why = format!("retry: {}", event(1000));
                    report.then = Results::Hold { rest, delay: Some(Duration::from_secs(1)), why };
                    call.report(batch.slot, &report);
                }
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "bury: all slots, each event is rejected", |world, settings| {
            Box::pin(async move {
                let batches = world.fill(settings, settings.batch(), EVENT_BYTES).await;
                let mut call = Advance::new(&world.keys, NAME, TOKEN, settings.bounds(), From::Markers);
                let mut room = Room::of_call();
                for batch in &batches {
                    if !room.admits(Load::of_batch(1, EVENT_BYTES).with_rest()) {
                        break;
                    }
                    let mut report = done(batch);
                    (report.count, report.last) = (0, None);
                    let next = Some(seriatim::scripts::Tag { first: batch.tag.first + 1, ..batch.tag });
                    report.then = Results::Reject { next, id: batch.tag.first, error: event(1000), attempts: 0 };
                    call.report(batch.slot, &report);
                }
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "claim again: all slots, batches in flight", |world, settings| {
            Box::pin(async move {
                world.fill(settings, settings.batch(), EVENT_BYTES).await;
                let call = world.free(settings, From::Markers);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
        case("advance", "claim: all slots, held batches that are due", |world, settings| {
            Box::pin(async move {
                world.fill(settings, settings.batch(), EVENT_BYTES).await;
                seriatim::scripts::detach(&mut world.conn, &world.keys, NAME, TOKEN).await.expect("detached");
                world.attach(settings.slots()).await;
                let call = world.free(settings, From::Held);
                world.begin().await;
                world.advance(&call).await;
            })
        }),
    ]
}
