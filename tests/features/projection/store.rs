//! A projection that keeps its position and state in a user's own store, not in Redis.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use seriatim::control::LogEntry;
use seriatim::projection::{Gaps, Position, Projection, ProjectionError, Runner, Saved, Store};

use crate::state::State;
use crate::support::{Redis, assert_matches};

const LEASE: Duration = Duration::from_secs(600);

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ids(Vec<u64>);

impl Projection for Ids {
    fn apply(&mut self, entry: &LogEntry) {
        self.0.extend(entry.id);
    }
}

/// A table with one row, as in a database: the position as text, the state, the token of the
/// process that has the projection, and the expiry time.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<Row>>);

#[derive(Default)]
struct Row {
    position: Option<String>,
    state: Option<Vec<u8>>,
    had_by: Option<(String, Instant)>,
}

impl Table {
    /// Changes the row in one step if its token is this token. Returns whether this was so.
    fn update(&self, token: &str, change: impl FnOnce(&mut Row)) -> bool {
        let mut row = self.0.lock().expect("no panic");
        let has_it = row.had_by.as_ref().is_some_and(|(by, _)| by == token);
        if has_it {
            change(&mut row);
        }
        has_it
    }
}

impl Store for Table {
    type Error = Infallible;

    async fn open(&mut self, token: &str, lease: Duration) -> Result<Option<Saved>, Infallible> {
        let mut row = self.0.lock().expect("no panic");
        if row
            .had_by
            .as_ref()
            .is_some_and(|(by, until)| by != token && *until > Instant::now())
        {
            return Ok(None);
        }
        row.had_by = Some((token.to_owned(), Instant::now() + lease));
        let position = row
            .position
            .as_deref()
            .and_then(Position::of)
            .unwrap_or_default();
        Ok(Some(Saved {
            position,
            state: row.state.clone(),
        }))
    }

    async fn save(
        &mut self,
        token: &str,
        lease: Duration,
        position: &Position,
        state: &[u8],
    ) -> Result<bool, Infallible> {
        Ok(self.update(token, |row| {
            row.position = Some(position.text());
            row.state = Some(state.to_vec());
            row.had_by = Some((token.to_owned(), Instant::now() + lease));
        }))
    }

    async fn keep(&mut self, token: &str, lease: Duration) -> Result<bool, Infallible> {
        Ok(self.update(token, |row| {
            row.had_by = Some((token.to_owned(), Instant::now() + lease))
        }))
    }

    async fn close(&mut self, token: &str) -> Result<(), Infallible> {
        self.update(token, |row| row.had_by = None);
        Ok(())
    }
}

/// The store saves position and state together. Only one process has the projection, and the next
/// process continues from the saved position. Redis has only the log.
#[tokio::test]
async fn a_projection_is_kept_in_a_store_of_its_own() {
    let redis = Redis::start().empty();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    let table = Table::default();
    let rows = |table: &Table| {
        table
            .0
            .lock()
            .expect("no panic")
            .position
            .as_deref()
            .and_then(Position::of)
            .map(|at| at.rows)
    };
    for (first, last) in [(1_u64, 150_u64), (151, 180)] {
        for id in first..=last {
            state
                .run(
                    "XADD",
                    &[
                        &keys.event_log(),
                        "*",
                        "status",
                        "completed",
                        "id",
                        &id.to_string(),
                    ],
                )
                .await;
        }
        let mut runner: Runner<Ids, _> =
            Runner::open(table.clone(), state.control(), LEASE, Gaps::Refuse)
                .await
                .expect("opened");
        let second =
            Runner::<Ids, _>::open(table.clone(), state.control(), LEASE, Gaps::Refuse).await;
        assert_matches!(second.err(), Some(ProjectionError::Lost));
        while runner.step().await.expect("a step").lag > 0 {}
        assert_eq!(
            (&runner.projection().expect("the saved one").0, rows(&table)),
            (&(1..=last).collect(), Some(last))
        );
        runner.close().await.expect("closed");
    }
    // A process that has lost the projection saves nothing.
    let mut runner: Runner<Ids, _> =
        Runner::open(table.clone(), state.control(), LEASE, Gaps::Refuse)
            .await
            .expect("opened");
    table.0.lock().expect("no panic").had_by = None;
    state.add("XADD event.log * status completed id 181").await;
    assert_matches!(runner.step().await, Err(ProjectionError::Lost));
    assert_eq!(rows(&table), Some(180));
    assert_eq!(redis.console().await.left().await, ["event.log"]);
}
