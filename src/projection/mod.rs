//! Projections: named folds over the event log into a read model.
//!
//! A [`Runner`] reads the log a page at a time, applies each row to a [`Projection`], and saves its
//! place and the state together, in one step that only the process that has the name can take. If
//! it dies anywhere, what was not saved is applied again to what was: each row is in the state
//! once, in the order in which events were finalized. A row that was trimmed away before it was
//! applied is told, never passed over in silence.

mod store;

use std::error::Error;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::store::{NameError, Position, RedisStore, RedisStoreError, STATE_BYTES_MAX, Saved, Store};
use crate::control::log::PER_CALL_MAX;
use crate::control::{Control, ControlError, Cursor, LogEntry};

/// The shortest lease.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// A fold over the log: a state, and what a row does to it. [`Default`] is the state before the
/// first row; it is kept as JSON.
///
/// What it does must depend on nothing but the state and the row, for after a crash a row may be
/// applied once more to the state before it.
pub trait Projection: Default + Serialize + DeserializeOwned + Send {
    /// Takes in the next row.
    fn apply(&mut self, entry: &LogEntry);
}

/// What follows where rows were trimmed away that had not been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gaps {
    /// [`ProjectionError::Gap`], until this is changed or [`Runner::rebuild`] is called with
    /// [`Gaps::Count`].
    #[default]
    Refuse,
    /// They are counted in [`Position::missed`], and it goes on with what is there.
    Count,
}

/// Why a projection cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// Another process has it; at a later moment it may not.
    #[error("another process runs this projection, or did since; what was not saved is dropped")]
    Lost,
    /// Rows were trimmed away before they were applied.
    #[error(
        "{missed} rows of the log were trimmed away before they were applied; go on without them (Gaps::Count), or keep more of the log"
    )]
    Gap {
        /// How many.
        missed: u64,
    },
    /// The log is not the one that was read before: it was deleted, lost rows in a failover, or
    /// rows were removed by hand.
    #[error(
        "the log has {written} rows where {expected} were expected: it was replaced or has lost some; rebuild the projection"
    )]
    OtherLog {
        /// How many were ever written to it.
        written: u64,
        /// How many there must have been.
        expected: u64,
    },
    /// The state cannot be read or written as JSON: it is another version's.
    #[error("the state of the projection is no JSON of its type: {0}; rebuild it")]
    State(#[from] serde_json::Error),
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] ControlError),
    /// The store failed. Whether it saved is unknown; the next step asks it.
    #[error("the store of the projection failed: {0}")]
    Store(Box<dyn Error + Send + Sync>),
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stepped {
    /// How many rows were applied and saved.
    pub applied: usize,
    /// How many were written behind them by then.
    pub lag: u64,
}

/// Runs a projection. Only one process at a time runs the one of a name, as long as its lease
/// lasts; each step renews it.
pub struct Runner<P, S> {
    store: S,
    control: Control,
    token: String,
    lease: Duration,
    gaps: Gaps,
    position: Position,
    projection: P,
    /// What is here may be other than what is saved.
    stale: bool,
}

impl<P: Projection, S: Store> Runner<P, S> {
    /// Opens the projection where it was left, or at the beginning. The log is read by `control`.
    /// `lease` is how long the name is kept without a step, 1 s or more.
    ///
    /// # Errors
    /// [`ProjectionError::Lost`] where another process has it, others if the store or its state
    /// cannot be read.
    pub async fn open(store: S, control: Control, lease: Duration, gaps: Gaps) -> Result<Self, ProjectionError> {
        let token = uuid::Uuid::new_v4().to_string();
        let lease = lease.max(LEASE_MIN);
        let (position, projection) = (Position::default(), P::default());
        let mut runner = Self { store, control, token, lease, gaps, position, projection, stale: true };
        runner.load().await?;
        Ok(runner)
    }

    /// The same, but begins anew whatever is saved, also what cannot be read: see
    /// [`Runner::rebuild`].
    ///
    /// # Errors
    /// As [`Runner::open`].
    pub async fn anew(mut store: S, control: Control, lease: Duration, gaps: Gaps) -> Result<Self, ProjectionError> {
        let token = uuid::Uuid::new_v4().to_string();
        let lease = lease.max(LEASE_MIN);
        let opened = store.open(&token, lease).await.map_err(|error| ProjectionError::Store(error.into()))?;
        opened.ok_or(ProjectionError::Lost)?;
        let (position, projection) = (Position::default(), P::default());
        let mut runner = Self { store, control, token, lease, gaps, position, projection, stale: true };
        runner.rebuild().await?;
        Ok(runner)
    }

    /// The saved state, which belongs to [`Runner::position`]. None after an error or a step that
    /// was dropped, because the state may then be other than the saved one; the next
    /// [`Runner::step`] loads the saved one again.
    pub fn projection(&self) -> Option<&P> {
        (!self.stale).then_some(&self.projection)
    }

    /// The saved position in the log, as far as this process knows.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Reads the next page, applies it, and saves: all of it or nothing. Nothing to do is no error.
    ///
    /// Dropping the future, or an error, loses nothing: the next step begins with what is saved.
    ///
    /// # Errors
    /// [`ProjectionError`]; [`Lost`](ProjectionError::Lost) where another process has the name by
    /// now.
    pub async fn step(&mut self) -> Result<Stepped, ProjectionError> {
        if self.stale {
            self.load().await?;
        }
        let log_id = Some(self.position.log_id.as_str()).filter(|log_id| !log_id.is_empty());
        let page = self.control.log(log_id.map(Cursor::from).as_ref(), PER_CALL_MAX).await?;
        let trimmed = page.written.saturating_sub(page.kept);
        let missed = trimmed.saturating_sub(self.position.rows);
        let rows = self.position.rows + missed + page.entries.len() as u64;
        if page.written < rows || page.next.is_none() && page.written > rows {
            return Err(ProjectionError::OtherLog { written: page.written, expected: rows });
        } else if missed > 0 && self.gaps == Gaps::Refuse {
            return Err(ProjectionError::Gap { missed });
        }
        let Some(last) = page.entries.last() else {
            self.kept(missed).await?;
            return Ok(Stepped { applied: 0, lag: 0 });
        };
        let position = Position { log_id: last.log_id.to_string(), rows, missed: self.position.missed + missed };
        self.stale = true;
        page.entries.iter().for_each(|entry| self.projection.apply(entry));
        self.save(position).await?;
        Ok(Stepped { applied: page.entries.len(), lag: page.written - rows })
    }

    /// Steps until `stop` is ready, and then gives the name back; answers the state. Where there is
    /// nothing to do it looks again after `idle`, which is less than the lease.
    ///
    /// Dropping the future is as a crash: the name is free when the lease is over.
    ///
    /// # Errors
    /// As [`Runner::step`]. It ends at the first error, also if a connection failed.
    pub async fn run(mut self, idle: Duration, stop: impl Future<Output = ()>) -> Result<P, ProjectionError> {
        let idle = idle.min(self.lease / 3);
        tokio::pin!(stop);
        loop {
            let stepped = tokio::select! {
                biased;
                () = &mut stop => break,
                stepped = self.step() => stepped?,
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
        self.store.close(&self.token).await.map_err(|error| ProjectionError::Store(error.into()))?;
        Ok(self.projection)
    }

    /// Begins anew at the oldest row there is, with the state before the first. Where rows are gone
    /// by now, [`Gaps`] says what follows.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub async fn rebuild(&mut self) -> Result<(), ProjectionError> {
        self.stale = true;
        self.projection = P::default();
        self.save(Position::default()).await
    }

    /// Gives the name back, so that another process need not wait for the lease to end.
    ///
    /// # Errors
    /// [`ProjectionError::Store`].
    pub async fn close(mut self) -> Result<(), ProjectionError> {
        self.store.close(&self.token).await.map_err(|error| ProjectionError::Store(error.into()))
    }

    async fn load(&mut self) -> Result<(), ProjectionError> {
        let opened = self.store.open(&self.token, self.lease).await.map_err(|error| ProjectionError::Store(error.into()))?;
        let saved = opened.ok_or(ProjectionError::Lost)?;
        self.projection = saved.state.map_or_else(|| Ok(P::default()), |state| serde_json::from_slice(&state))?;
        (self.position, self.stale) = (saved.position, false);
        Ok(())
    }

    async fn save(&mut self, position: Position) -> Result<(), ProjectionError> {
        let state = serde_json::to_vec(&self.projection)?;
        let saved = self.store.save(&self.token, self.lease, &position, &state).await;
        if !saved.map_err(|error| ProjectionError::Store(error.into()))? {
            return Err(ProjectionError::Lost);
        }
        (self.position, self.stale) = (position, false);
        Ok(())
    }

    /// There is nothing to apply: the name is kept, and what is gone is written down.
    async fn kept(&mut self, missed: u64) -> Result<(), ProjectionError> {
        if missed > 0 {
            let Position { log_id, rows, missed: before } = self.position.clone();
            self.stale = true;
            return self.save(Position { log_id, rows: rows + missed, missed: before + missed }).await;
        }
        let kept = self.store.keep(&self.token, self.lease).await.map_err(|error| ProjectionError::Store(error.into()))?;
        self.stale |= !kept;
        if kept { Ok(()) } else { Err(ProjectionError::Lost) }
    }
}
