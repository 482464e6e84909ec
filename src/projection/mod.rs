//! Projections. A projection has a name, and folds the event log into a read model.
//!
//! A [`Runner`] reads the log page by page and applies each row to a [`Projection`]. It saves
//! position and state together, in one step that needs the lease of the projection's name. If the
//! process dies, the rows that were not saved are applied again to the saved state. So each row is
//! in the state once, in the order of finalizing. If rows were trimmed before they were applied,
//! this is reported; such rows are never skipped silently.
//!
//! ```no_run
//! # use std::collections::BTreeMap;
//! # use std::time::Duration;
//! # use seriatim::control::{Control, LogEntry};
//! # use seriatim::projection::{Gaps, Projection, RedisStore, Runner};
//! # use serde::{Deserialize, Serialize};
//! #[derive(Default, Serialize, Deserialize)]
//! struct PerStatus(BTreeMap<String, u64>);
//!
//! impl Projection for PerStatus {
//!     fn apply(&mut self, entry: &LogEntry) {
//!         *self.0.entry(entry.status.to_string()).or_default() += 1;
//!     }
//! }
//!
//! # async fn run(
//! #     conn: seriatim::redis::aio::MultiplexedConnection,
//! #     keys: seriatim::keys::Keys,
//! #     stop: impl Future<Output = ()>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::new(conn.clone(), keys.clone(), "per-status")?;
//! let control = Control::new(conn).with_keys(keys);
//! let lease = Duration::from_secs(10);
//! let runner = Runner::<PerStatus, _>::open(store, control, lease, Gaps::Refuse).await?;
//! runner.run(Duration::from_millis(100), stop).await?;
//! # Ok(()) }
//! ```

mod store;

use std::error::Error;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::store::{
    NameError, Position, RedisStore, RedisStoreError, STATE_BYTES_MAX, Saved, Store,
};
use crate::control::log::PER_CALL_MAX;
use crate::control::{Control, ControlError, Cursor, LogEntry};

/// Minimum length of a lease.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// A projection reads whole events, even if its handle cuts them for others.
const WHOLE: usize = 0;

/// A fold over the log. It has a state, and `apply` changes the state for each row. [`Default`] is
/// the state before the first row. The state is stored as JSON.
///
/// The change must depend only on the state and the row. The reason is that a row may be applied
/// once more after a crash, to the same earlier state.
pub trait Projection: Default + Serialize + DeserializeOwned + Send {
    /// Applies the next row.
    fn apply(&mut self, entry: &LogEntry);
}

/// The reaction to rows that were trimmed before they were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gaps {
    /// Steps return [`ProjectionError::Gap`]. To continue, or to begin anew with
    /// [`Runner::rebuild`], open the projection with [`Gaps::Count`].
    #[default]
    Refuse,
    /// Steps count the trimmed rows in [`Position::missed`], and continue with the rows that still
    /// exist.
    Count,
}

/// The reason why a projection cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// Another process has the lease of the projection. The lease may be free later.
    #[error("another process runs this projection, or has run it since; unsaved rows are dropped")]
    Lost,
    /// Rows were trimmed before they were applied.
    #[error(
        "{missed} rows of the log were trimmed away before they were applied; go on without them (Gaps::Count), or keep more of the log"
    )]
    Gap {
        /// Number of rows that were trimmed too early.
        missed: u64,
    },
    /// The log is not the log that was read before. It was deleted, it has lost rows in a failover,
    /// or rows were removed by hand.
    #[error(
        "the log has {written} rows, but {expected} were expected: it was replaced or has lost rows; rebuild the projection"
    )]
    OtherLog {
        /// Number of rows ever written to the log.
        written: u64,
        /// Minimum number of rows that were expected.
        expected: u64,
    },
    /// The state cannot be read or written as JSON. Usually it belongs to another version of the
    /// projection.
    #[error("the state of the projection is not JSON of its type: {0}; rebuild the projection")]
    State(#[from] serde_json::Error),
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] ControlError),
    /// The store failed. It is unknown whether the store has saved the state. So the next step
    /// reads the saved state again.
    #[error("the store of the projection failed: {0}")]
    Store(Box<dyn Error + Send + Sync>),
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stepped {
    /// Number of rows that the step has applied and saved.
    pub applied: usize,
    /// Number of rows in the log that are not yet applied.
    pub lag: u64,
}

/// Runs a projection. While its lease lasts, no other process can run the projection of the same
/// name. Each step renews the lease.
pub struct Runner<P, S> {
    store: S,
    control: Control,
    token: String,
    lease: Duration,
    gaps: Gaps,
    position: Position,
    projection: P,
    /// Whether the state in memory may differ from the saved state.
    stale: bool,
}

impl<P: Projection, S: Store> Runner<P, S> {
    /// Opens the projection at its saved position, or at the beginning if none is saved. `control`
    /// reads the log. `lease` is the time, at least 1 s, for which the name stays taken after the
    /// last step.
    ///
    /// # Errors
    /// [`ProjectionError::Lost`] if another process has the lease of the name. Other errors if the
    /// store or the stored state cannot be read.
    pub async fn open(
        store: S,
        control: Control,
        lease: Duration,
        gaps: Gaps,
    ) -> Result<Self, ProjectionError> {
        let token = uuid::Uuid::new_v4().to_string();
        let lease = lease.max(LEASE_MIN);
        let (position, projection) = (Position::default(), P::default());
        let control = control.with_event_bytes_max(WHOLE);
        let mut runner = Self {
            store,
            control,
            token,
            lease,
            gaps,
            position,
            projection,
            stale: true,
        };
        runner.load().await?;
        Ok(runner)
    }

    /// Opens the projection and begins anew, as [`Runner::rebuild`] does. This works even if the
    /// saved state cannot be read.
    ///
    /// # Errors
    /// As [`Runner::open`].
    pub async fn anew(
        mut store: S,
        control: Control,
        lease: Duration,
        gaps: Gaps,
    ) -> Result<Self, ProjectionError> {
        let token = uuid::Uuid::new_v4().to_string();
        let lease = lease.max(LEASE_MIN);
        let opened = store
            .open(&token, lease)
            .await
            .map_err(|error| ProjectionError::Store(error.into()))?;
        opened.ok_or(ProjectionError::Lost)?;
        let (position, projection) = (Position::default(), P::default());
        let control = control.with_event_bytes_max(WHOLE);
        let mut runner = Self {
            store,
            control,
            token,
            lease,
            gaps,
            position,
            projection,
            stale: true,
        };
        runner.rebuild().await?;
        Ok(runner)
    }

    /// Returns the saved state, which belongs to [`Runner::position`]. None after an error or a
    /// dropped step, because then the state in memory may differ from the saved one. The next
    /// [`Runner::step`] loads the saved state again.
    pub fn projection(&self) -> Option<&P> {
        (!self.stale).then_some(&self.projection)
    }

    /// Returns the saved position in the log, as far as this process knows it.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Reads the next page of the log, applies it, and saves position and state. The save takes
    /// effect as a whole or not at all. An empty page is not an error.
    ///
    /// If the future is dropped, or after an error, nothing is lost: the next step begins with the
    /// saved state.
    ///
    /// # Errors
    /// [`ProjectionError`]; in particular [`Lost`](ProjectionError::Lost) if another process now
    /// has the lease of the name.
    pub async fn step(&mut self) -> Result<Stepped, ProjectionError> {
        if self.stale {
            self.load().await?;
        }
        let log_id = Some(self.position.log_id.as_str()).filter(|log_id| !log_id.is_empty());
        let page = self
            .control
            .log(log_id.map(Cursor::from).as_ref(), PER_CALL_MAX)
            .await?;
        let trimmed = page.written.saturating_sub(page.kept);
        let missed = trimmed.saturating_sub(self.position.rows);
        let rows = self.position.rows + missed + page.entries.len() as u64;
        if page.written < rows || page.next.is_none() && page.written > rows {
            return Err(ProjectionError::OtherLog {
                written: page.written,
                expected: rows,
            });
        } else if missed > 0 && self.gaps == Gaps::Refuse {
            return Err(ProjectionError::Gap { missed });
        }
        let Some(last) = page.entries.last() else {
            self.kept(missed).await?;
            return Ok(Stepped { applied: 0, lag: 0 });
        };
        let position = Position {
            log_id: last.log_id.to_string(),
            rows,
            missed: self.position.missed + missed,
        };
        self.stale = true;
        page.entries
            .iter()
            .for_each(|entry| self.projection.apply(entry));
        self.save(position).await?;
        Ok(Stepped {
            applied: page.entries.len(),
            lag: page.written - rows,
        })
    }

    /// Runs steps until `stop` is ready, then releases the name and returns the state. If there is
    /// no new row, waits `idle` before the next step, but at most a third of the lease.
    ///
    /// Dropping the future acts like a crash: the name stays taken until the lease ends.
    ///
    /// # Errors
    /// As [`Runner::step`]. The call ends at the first error, even if only a connection has failed. It
    /// does not end if the lease has ended and no other process has the name: then the next step takes
    /// the name again, and begins with the saved state.
    pub async fn run(
        mut self,
        idle: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<P, ProjectionError> {
        let idle = idle.min(self.lease / 3);
        tokio::pin!(stop);
        loop {
            let was_open = !self.stale;
            let stepped = tokio::select! {
                biased;
                () = &mut stop => break,
                stepped = self.step() => match stepped {
                    Err(ProjectionError::Lost) if was_open => continue,
                    stepped => stepped?,
                },
            };
            if stepped.lag == 0 {
                tokio::select! {
                    () = &mut stop => break,
                    () = tokio::time::sleep(idle) => {}
                }
            }
        }
        if self.stale {
            self.load().await?;
        }
        self.store
            .close(&self.token)
            .await
            .map_err(|error| ProjectionError::Store(error.into()))?;
        Ok(self.projection)
    }

    /// Begins anew at the oldest existing row, with the initial state. If rows were trimmed,
    /// [`Gaps`] decides whether the next step is an error.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub async fn rebuild(&mut self) -> Result<(), ProjectionError> {
        self.stale = true;
        self.projection = P::default();
        self.save(Position::default()).await
    }

    /// Releases the name, so that another process does not have to wait for the end of the lease.
    ///
    /// # Errors
    /// [`ProjectionError::Store`] if the store fails.
    pub async fn close(mut self) -> Result<(), ProjectionError> {
        self.store
            .close(&self.token)
            .await
            .map_err(|error| ProjectionError::Store(error.into()))
    }

    async fn load(&mut self) -> Result<(), ProjectionError> {
        let opened = self
            .store
            .open(&self.token, self.lease)
            .await
            .map_err(|error| ProjectionError::Store(error.into()))?;
        let saved = opened.ok_or(ProjectionError::Lost)?;
        self.projection = saved
            .state
            .map_or_else(|| Ok(P::default()), |state| serde_json::from_slice(&state))?;
        (self.position, self.stale) = (saved.position, false);
        Ok(())
    }

    async fn save(&mut self, position: Position) -> Result<(), ProjectionError> {
        let state = serde_json::to_vec(&self.projection)?;
        let saved = self
            .store
            .save(&self.token, self.lease, &position, &state)
            .await;
        if !saved.map_err(|error| ProjectionError::Store(error.into()))? {
            return Err(ProjectionError::Lost);
        }
        (self.position, self.stale) = (position, false);
        Ok(())
    }

    /// Handles a page without rows: renews the lease, and saves the number of missed rows.
    async fn kept(&mut self, missed: u64) -> Result<(), ProjectionError> {
        if missed > 0 {
            let Position {
                log_id,
                rows,
                missed: before,
            } = self.position.clone();
            self.stale = true;
            return self
                .save(Position {
                    log_id,
                    rows: rows + missed,
                    missed: before + missed,
                })
                .await;
        }
        let kept = self
            .store
            .keep(&self.token, self.lease)
            .await
            .map_err(|error| ProjectionError::Store(error.into()))?;
        self.stale |= !kept;
        if kept {
            Ok(())
        } else {
            Err(ProjectionError::Lost)
        }
    }
}
