//! Reads the state of the workers from Redis, and writes nothing to Redis.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, pipe};
use seriatim::keys::Keys;
use seriatim::worker::Holder;

/// Returns the number of events that a worker process has in flight, and the objects of these
/// events. Each object has the id of its last delivered event.
pub(super) async fn in_hand(
    redis: &mut MultiplexedConnection,
    keys: &Keys,
    name: &str,
) -> RedisResult<(u64, Vec<(String, u64)>)> {
    // The worker process is stopped, but Redis may not yet have read its last commands. Redis reads
    // commands that arrived before a PING at the latest in the same round of its loop. So after two
    // PINGs, all commands of the stopped process have taken effect.
    for _ in 0..2 {
        redis::cmd("PING").query_async::<()>(redis).await?;
    }
    let slots: Option<String> = redis::cmd("HGET")
        .arg(keys.event_workers())
        .arg(name)
        .query_async(redis)
        .await?;
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
        for object in taken
            .into_iter()
            .filter(|object| batch > 0 && !object.is_empty())
        {
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

/// Returns the process ids in the leases of these names.
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
    Ok(leases
        .into_iter()
        .map(|lease| Some(Holder::of_lease(&lease?)?.pid()))
        .collect())
}

/// Returns the id of the last delivered event of each object.
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

/// Returns whether no event is left. An object with events has a marker, or is grouped,
/// or is in a worker's list, or is held. So if at one moment there is no marker, no object
/// in such a list and no held object, no event is left.
pub(super) async fn is_drained(
    redis: &mut MultiplexedConnection,
    keys: &Keys,
) -> RedisResult<bool> {
    let names: Vec<(String, String)> = redis::cmd("HGETALL")
        .arg(keys.event_workers())
        .query_async(redis)
        .await?;
    let mut look = pipe();
    look.atomic();
    look.cmd("LLEN").arg(keys.objects_with_events());
    look.cmd("ZCARD").arg(keys.objects_held());
    look.cmd("ZCARD").arg(keys.objects_paused());
    for worker in names
        .iter()
        .flat_map(|(name, slots)| workers(name, Some(slots)))
    {
        look.cmd("LLEN").arg(keys.worker_object(&worker));
    }
    look.cmd("GET").arg(keys.event_groups_waiting());
    let left: Vec<Option<u64>> = look.query_async(redis).await?;
    Ok(left.iter().all(|left| left.is_none_or(|left| left == 0)))
}

/// Returns the ids `NAME.SLOT` of the workers of a process. `registered`: the value of the name in
/// `event.workers`, which begins with the number of slots.
fn workers<'a>(name: &'a str, registered: Option<&str>) -> impl Iterator<Item = String> + use<'a> {
    let slots: u32 = registered
        .and_then(|text| text.split(' ').next())
        .and_then(|slots| slots.parse().ok())
        .unwrap_or(0);
    (0..slots).map(move |slot| format!("{name}.{slot}"))
}
