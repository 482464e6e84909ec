//! The gate applies the receiver's rule. Its store records the last id applied for each object.
//!
//! The gate does not apply events itself: it returns a verdict on an event, and later records that
//! the event was applied. What a crash does in between depends on the store: see [`GateStore`].

use std::collections::HashMap;
use std::convert::Infallible;

use super::{NumbersError, Verdict, check_numbers, judge};

/// Decides which event a consumer accepts first, for an object that its store does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Start {
    /// The object's very first event, with `prev` 0. Any other event is early until that one has
    /// come. Suits a consumer that runs from the beginning.
    #[default]
    Origin,
    /// The event that comes first. Its `prev` counts as applied. Suits a consumer that joins late,
    /// or whose memory ends with its process.
    FirstSeen,
}

impl Start {
    /// Returns the initial `last` of an object. `prev` belongs to the event that comes first.
    pub fn last(self, prev: u64) -> u64 {
        match self {
            Self::Origin => 0,
            Self::FirstSeen => prev,
        }
    }
}

/// A store that has `last` for each object: the highest id applied.
///
/// To apply each event exactly once, keep `last` in the same database as the effect, and change
/// both in one transaction. The store then borrows the transaction, and each transaction has its
/// own gate:
///
/// - **Postgres**, table `gate (object text primary key, last bigint not null)`; `last`: `INSERT
///   INTO gate VALUES ($1, $2) ON CONFLICT DO NOTHING`, then `SELECT last FROM gate WHERE object =
///   $1 FOR UPDATE`; `advance`: `UPDATE gate SET last = $3 WHERE object = $1 AND last >= $2 AND
///   last < $3`, and return whether a row has changed. The consumer's own writes go between the
///   call of `last` and the call of `advance`, and its COMMIT after both.
/// - **Redis**: `last`: `SET KEY first NX GET`, and nil means `first`; `advance`: a script with the
///   condition `prev <= last < id`.
///
/// If `last` is stored apart from the effect, a crash between the two writes makes an event apply
/// again.
///
/// Cancellation: both calls may be dropped at any await if the store allows that. The gate itself
/// has no state between the two calls.
pub trait GateStore: Send {
    /// The error of the store.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the object's `last`. If the object has no `last` yet, records `first` and returns
    /// it, in one atomic step.
    fn last(
        &mut self,
        object: &str,
        first: u64,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Sets the object's `last` to `id` if `prev <= last < id`, in one atomic step. Returns whether
    /// `last` was set.
    fn advance(
        &mut self,
        object: &str,
        prev: u64,
        id: u64,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

impl<S: GateStore> GateStore for &mut S {
    type Error = S::Error;

    fn last(
        &mut self,
        object: &str,
        first: u64,
    ) -> impl Future<Output = Result<u64, S::Error>> + Send {
        (**self).last(object, first)
    }

    fn advance(
        &mut self,
        object: &str,
        prev: u64,
        id: u64,
    ) -> impl Future<Output = Result<bool, S::Error>> + Send {
        (**self).advance(object, prev, id)
    }
}

/// A store in memory. It takes about 100 bytes and the name for each object, until the store is
/// dropped. It never fails and never waits.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    last: HashMap<Box<str>, u64>,
}

impl Memory {
    /// Returns the number of objects in the store.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Returns whether the store has no object.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}

impl GateStore for Memory {
    type Error = Infallible;

    async fn last(&mut self, object: &str, first: u64) -> Result<u64, Infallible> {
        if let Some(last) = self.last.get(object) {
            return Ok(*last);
        }
        self.last.insert(object.into(), first);
        Ok(first)
    }

    async fn advance(&mut self, object: &str, prev: u64, id: u64) -> Result<bool, Infallible> {
        match self.last.get_mut(object) {
            Some(last) if prev <= *last && *last < id => {
                *last = id;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// The reason why the gate returns no verdict, or cannot record an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError<E: std::error::Error + 'static> {
    /// The id and `prev` are invalid, so their sender does not follow the protocol.
    #[error(transparent)]
    Numbers(#[from] NumbersError),
    /// The store failed.
    #[error("the gate's store failed: {0}")]
    Store(#[source] E),
    /// The event is not the object's next event any more, because another consumer with the same
    /// store was faster. Or the verdict on the event was not `Apply`.
    #[error(
        "event {id} of {object} cannot be recorded: it is not the next one any more; undo its effect and check it again"
    )]
    Overtaken {
        /// The event's object.
        object: String,
        /// The event's id.
        id: u64,
    },
}

/// Lets the events of each object pass in order, each event once.
///
/// ```
/// use seriatim::consume::{Gate, Start, Verdict};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let mut gate = Gate::new(Start::Origin);
/// assert_eq!(gate.check("work:1", 12, 7).await?, Verdict::Early);
/// assert_eq!(gate.check("work:1", 7, 0).await?, Verdict::Apply);
/// // ... apply it, and then:
/// gate.applied("work:1", 7, 0).await?;
/// assert_eq!(gate.check("work:1", 7, 0).await?, Verdict::Duplicate);
/// assert_eq!(gate.check("work:1", 12, 7).await?, Verdict::Apply);
/// # Ok(()) })
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Gate<S = Memory> {
    store: S,
    start: Start,
}

impl Gate {
    /// Returns a gate with a store in memory.
    pub fn new(start: Start) -> Self {
        Self::over(Memory::default(), start)
    }
}

impl<S: GateStore> Gate<S> {
    /// Returns a gate with this store.
    pub fn over(store: S, start: Start) -> Self {
        Self { store, start }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the verdict on an event. The call may be repeated: it writes nothing, except the
    /// initial `last` of an unknown object.
    ///
    /// Cancellation: the future may be dropped at any await.
    ///
    /// # Errors
    /// [`GateError::Numbers`] and [`GateError::Store`].
    pub async fn check(
        &mut self,
        object: &str,
        id: u64,
        prev: u64,
    ) -> Result<Verdict, GateError<S::Error>> {
        // Invalid numbers must not reach the store, because `prev` could become the object's
        // initial `last`.
        check_numbers(id, prev)?;
        let last = self
            .store
            .last(object, self.start.last(prev))
            .await
            .map_err(GateError::Store)?;
        Ok(judge(last, id, prev)?)
    }

    /// Records that the event was applied. Call it after the verdict [`Verdict::Apply`].
    ///
    /// Cancellation: if the future is dropped, the event may or may not be recorded. `check` shows
    /// whether it is.
    ///
    /// # Errors
    /// [`GateError`] if the event is not the next one any more, if its numbers are invalid, or if
    /// the store fails.
    pub async fn applied(
        &mut self,
        object: &str,
        id: u64,
        prev: u64,
    ) -> Result<(), GateError<S::Error>> {
        check_numbers(id, prev)?;
        if self
            .store
            .advance(object, prev, id)
            .await
            .map_err(GateError::Store)?
        {
            return Ok(());
        }
        Err(GateError::Overtaken {
            object: object.to_owned(),
            id,
        })
    }
}
