//! `attach`, `renew`, `detach`, `adopt`, `handled`, `forget`: all slots of a name at once.

use std::time::Duration;

use seriatim::scripts::{self, Attach};

use crate::world::{Case, NAME, TOKEN, case, names};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("attach", "all slots have a batch in flight, the process has died", |world, settings| {
            Box::pin(async move {
                world.fill(settings, 2, 200).await;
                let lease: String =
                    redis::cmd("GET").arg(world.keys.worker_lease(NAME)).query_async(&mut world.conn).await.expect("a lease");
                let args = Attach {
                    name: NAME,
                    token: "token-2",
                    holder: "host 2 2",
                    lease: Duration::from_secs(600),
                    slots: 1,
                    displace: &lease,
                    before: "",
                    crashes_max: 5,
                    suspects: scripts::Suspects::NONE,
                };
                world.begin().await;
                scripts::attach(&mut world.conn, &world.keys, &args).await.expect("attached");
            })
        }),
        case("renew", "all slots have a batch in flight", |world, settings| {
            Box::pin(async move {
                world.fill(settings, 2, 200).await;
                world.begin().await;
                let lease = Duration::from_secs(5);
                scripts::renew(&mut world.conn, &world.keys, NAME, TOKEN, lease, settings.slots()).await.expect("renewed");
            })
        }),
        case("detach", "all slots have a batch in flight", |world, settings| {
            Box::pin(async move {
                world.fill(settings, 2, 200).await;
                world.begin().await;
                scripts::detach(&mut world.conn, &world.keys, NAME, TOKEN).await.expect("detached");
            })
        }),
        case("forget", "a call's objects, all idle", |world, _| {
            Box::pin(async move {
                let objects = names(scripts::OBJECTS_MAX, "work");
                let mut pipe = redis::pipe();
                for object in &objects {
                    pipe.cmd("SET").arg(world.keys.last_event_id(object)).arg(7).ignore();
                }
                world.pipe(&pipe).await;
                world.begin().await;
                let names: Vec<&str> = objects.iter().map(String::as_str).collect();
                scripts::forget(&mut world.conn, &world.keys, &names).await.expect("forgotten");
            })
        }),
    ]
}
