//! Cases with 1,000 rules. The object names have the maximum number of colons, and no two names
//! share a prefix.

use seriatim::control::rules::{Kind, RULES_MAX, Selector};
use seriatim::wire::operator::By;
use seriatim::wire::{self, Advance, Bounds, ClaimFirst};

use crate::support::control;
use crate::world::{Case, NAME, TOKEN, World, case, deep, done};

fn by(why: &str) -> By<'_> {
    By {
        who: "ada@host",
        why,
    }
}

/// Sets as many rules as are allowed, less one. Their selectors are long and match no object.
pub(crate) async fn many(world: &mut World) {
    let value = format!("1 0 0 3 0 ada{}", "w".repeat(1000));
    let mut rules = redis::cmd("HSET");
    rules.arg(world.keys.event_rules()).arg(&["next", "never"]);
    for n in 1..RULES_MAX {
        rules
            .arg(format!("pause {}{n:04}", "x".repeat(500)))
            .arg(&value);
    }
    world.cmd(&mut rules).await;
}

async fn over_all(world: &mut World) {
    let all: Selector = "*".parse().expect("a selector");
    control(&world.conn, &world.keys)
        .set_rule(by(""), Kind::Pause, &all, None)
        .await
        .expect("set");
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case(
            "advance",
            "rules: 1,000, over none of the objects; no two objects share a prefix",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&(0..1024).map(deep).collect::<Vec<_>>(), 1, 200)
                        .await;
                    many(world).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "rules: 1,000, one of them over all of 1,024 objects",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&(0..1024).map(deep).collect::<Vec<_>>(), 1, 200)
                        .await;
                    many(world).await;
                    over_all(world).await;
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "rules: waking, while 999 others are in force",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&(0..2048).map(deep).collect::<Vec<_>>(), 1, 200)
                        .await;
                    many(world).await;
                    over_all(world).await;
                    for _ in 0..4 {
                        let call = world.free(settings, ClaimFirst::Markers);
                        world.advance(&call).await;
                    }
                    let all: Selector = "*".parse().expect("a selector");
                    control(&world.conn, &world.keys)
                        .lift_rule(by(""), Kind::Pause, &all)
                        .await
                        .expect("lifted");
                    let call = world.free(settings, ClaimFirst::Markers);
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case(
            "advance",
            "rules: 1,000, all slots go on with their objects",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&(0..settings.slots()).map(deep).collect::<Vec<_>>(), 2, 200)
                        .await;
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
                    (0..settings.slots()).for_each(|slot| call.free(slot));
                    let batches = world.advance(&call).await;
                    many(world).await;
                    let mut call = Advance::new(
                        &world.keys,
                        NAME,
                        TOKEN,
                        settings.bounds(),
                        ClaimFirst::Markers,
                    );
                    batches
                        .iter()
                        .for_each(|batch| call.report(batch.slot, &done(batch)));
                    world.begin().await;
                    world.advance(&call).await;
                })
            },
        ),
        case("check", "1,000 rules", |world, _| {
            Box::pin(async move {
                many(world).await;
                world.begin().await;
                control(&world.conn, &world.keys)
                    .check()
                    .await
                    .expect("checked");
            })
        }),
        case("operator/rule", "set: the last of 1,000", |world, _| {
            Box::pin(async move {
                many(world).await;
                world.begin().await;
                over_all(world).await;
            })
        }),
        case(
            "operator/paused",
            "a page, under 1,000 rules",
            |world, settings| {
                Box::pin(async move {
                    world.attach(settings.slots()).await;
                    world
                        .emit(&(0..1024).map(deep).collect::<Vec<_>>(), 1, 200)
                        .await;
                    many(world).await;
                    over_all(world).await;
                    for _ in 0..4 {
                        let call = world.free(settings, ClaimFirst::Markers);
                        world.advance(&call).await;
                    }
                    world.begin().await;
                    let count = seriatim::control::held::PER_CALL_MAX;
                    wire::operator::paused(&mut world.conn, &world.keys, b"", None, count)
                        .await
                        .expect("a page");
                })
            },
        ),
    ]
}
