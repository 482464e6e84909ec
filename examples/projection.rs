//! Two projections of the event log: the number of events of each type per day, and the latest
//! event of each object.
//!
//!     cargo run --example worker          # in one terminal; it writes the event log, as `seriatim worker --event-log` does
//!     cargo run --example emit            # in another
//!     cargo run --example projection
//!
//! Each projection continues at its saved position, even after it was killed. With `-- --rebuild`
//! it begins again with the oldest row. `SERIATIM_REDIS` is the URL of Redis; without it, the Redis
//! at 127.0.0.1 is used.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use seriatim::control::{Control, EventStatus, LogEntry};
use seriatim::keys::Keys;
use seriatim::projection::{Gaps, Projection, RedisStore, Runner};
use seriatim::redis;

/// Number of finalized events of each type for each day since 1970, by status.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PerDay(BTreeMap<u64, BTreeMap<String, u64>>);

impl Projection for PerDay {
    fn apply(&mut self, entry: &LogEntry) {
        let event_type = entry
            .member("type")
            .and_then(|json| serde_json::from_str(&json).ok());
        let event_type: String = event_type.unwrap_or_else(|| "none".to_owned());
        let of_day = self.0.entry(entry.finalized_ms / 86_400_000).or_default();
        *of_day
            .entry(format!("{} {event_type}", entry.status))
            .or_default() += 1;
    }
}

/// The latest delivered event of each object.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Latest(BTreeMap<String, (u64, String)>);

impl Projection for Latest {
    fn apply(&mut self, entry: &LogEntry) {
        if let (EventStatus::Completed, Some(id)) = (&entry.status, entry.id) {
            self.0.insert(
                entry.object.clone(),
                (
                    id,
                    String::from_utf8_lossy(entry.event.bytes()).into_owned(),
                ),
            );
        }
    }
}

/// Applies all rows that are present in the log and not yet applied. With `rebuild`, begins again
/// with the oldest row. Returns the state of the projection.
async fn caught_up<P: Projection>(
    name: &str,
    conn: &redis::aio::MultiplexedConnection,
    rebuild: bool,
) -> anyhow::Result<P> {
    let keys = Keys::new();
    let store = RedisStore::new(conn.clone(), keys.clone(), name)?;
    let control = Control::new(conn.clone()).with_keys(keys);
    let mut runner =
        Runner::<P, _>::open(store, control, Duration::from_secs(10), Gaps::Count).await?;
    if rebuild {
        runner.rebuild().await?;
    }
    while runner.step().await?.lag > 0 {}
    let state = runner
        .projection()
        .context("the state is not the saved one")?;
    let state = serde_json::from_slice(&serde_json::to_vec(state)?)?;
    let position = runner.position();
    println!(
        "{name}: {} rows, {} of them trimmed away unseen",
        position.rows, position.missed
    );
    runner.close().await?;
    Ok(state)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let rebuild = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--rebuild") => true,
        Some(other) => anyhow::bail!("unknown option {other}; there is --rebuild"),
    };
    let url =
        std::env::var("SERIATIM_REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let conn = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let PerDay(days) = caught_up("per-day", &conn, rebuild).await?;
    for (day, counts) in days {
        println!("  day {day}: {counts:?}");
    }
    let Latest(objects) = caught_up("latest", &conn, rebuild).await?;
    for (object, (id, event)) in objects.iter().take(20) {
        println!("  {object} {id} {event}");
    }
    Ok(())
}
