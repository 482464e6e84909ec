//! What Redis tells of the workers, read and never written.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, pipe};
use seriatim::keys::Keys;
use seriatim::worker::Holder;

/// How many events a worker process has in hand, and of which objects, with the id of the last
/// event delivered.
pub(super) async fn in_hand(
    redis: &mut MultiplexedConnection,
    keys: &Keys,
    name: &str,
) -> RedisResult<(u64, Vec<(String, u64)>)> {
    // The server reads what came in before our first command no later than in one round with it:
    // after two rounds, everything that a stopped process had sent has taken effect.
    for _ in 0..2 {
        redis::cmd("PING").query_async::<()>(redis).await?;
    }
    let slots: Option<String> = redis::cmd("HGET").arg(keys.event_workers()).arg(name).query_async(redis).await?;
    let mut events = 0;
    let mut objects = Vec::new();
    for worker in workers(name, slots.as_deref()) {
        let (taken, batch): (Vec<String>, u64) = pipe()
            .atomic()
            .cmd("LRANGE")
            .arg(keys.worker_object(&worker))
            .arg(0)
            .arg(-1)
            .cmd("LLEN")
            .arg(keys.worker_event(&worker))
            .query_async(redis)
            .await?;
        for object in taken.into_iter().filter(|object| batch > 0 && !object.is_empty()) {
            let (owner, last_id): (Option<String>, Option<u64>) = pipe()
                .cmd("GET")
                .arg(keys.event_worker(&object))
                .cmd("GET")
                .arg(keys.last_event_id(&object))
                .query_async(redis)
                .await?;
            if owner.as_deref() == Some(&worker) {
                events += batch;
                objects.push((object, last_id.unwrap_or_default()));
            }
        }
    }
    Ok((events, objects))
}

/// The process ids that the leases of these names hold.
pub(super) async fn lease_holders<'a>(
    redis: &mut MultiplexedConnection,
    keys: &Keys,
    names: impl Iterator<Item = &'a str>,
) -> RedisResult<Vec<Option<u32>>> {
    let mut get = redis::cmd("MGET");
    for name in names {
        get.arg(keys.worker_lease(name));
    }
    let leases: Vec<Option<String>> = get.query_async(redis).await?;
    Ok(leases.into_iter().map(|lease| Some(Holder::of_lease(&lease?)?.pid())).collect())
}

/// The id of the last event delivered, of each of these objects.
pub(super) async fn last_event_ids(
    redis: &mut MultiplexedConnection,
    keys: &Keys,
    objects: &[(String, u64)],
) -> RedisResult<Vec<u64>> {
    let mut get = redis::cmd("MGET");
    for (object, _) in objects {
        get.arg(keys.last_event_id(object));
    }
    let ids: Vec<Option<u64>> = get.query_async(redis).await?;
    Ok(ids.into_iter().map(Option::unwrap_or_default).collect())
}

/// Whether no event is left. An object with events has a marker, or a worker has taken it, or it is
/// held: if there is none of the three, at one moment, nothing is left.
pub(super) async fn is_drained(redis: &mut MultiplexedConnection, keys: &Keys) -> RedisResult<bool> {
    let names: Vec<(String, String)> = redis::cmd("HGETALL").arg(keys.event_workers()).query_async(redis).await?;
    let mut look = pipe();
    look.atomic();
    look.cmd("LLEN").arg(keys.objects_with_events());
    look.cmd("ZCARD").arg(keys.objects_held());
    look.cmd("ZCARD").arg(keys.objects_paused());
    for worker in names.iter().flat_map(|(name, slots)| workers(name, Some(slots))) {
        look.cmd("LLEN").arg(keys.worker_object(&worker));
    }
    let left: Vec<u64> = look.query_async(redis).await?;
    Ok(left.iter().all(|left| *left == 0))
}

/// The ids of a process's workers, from what `event.workers` says of it: slots first.
fn workers<'a>(name: &'a str, registered: Option<&str>) -> impl Iterator<Item = String> + use<'a> {
    let slots: u32 = registered.and_then(|text| text.split(' ').next()).and_then(|slots| slots.parse().ok()).unwrap_or(0);
    (0..slots).map(move |slot| format!("{name}.{slot}"))
}
