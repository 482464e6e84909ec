//! The gate: the receiver's rule over a store that remembers the last id applied per object.
//!
//! Owns no events and applies nothing itself: it says what to do and records what was done. What a
//! crash costs depends on the store, see [`GateStore`].

use std::collections::HashMap;
use std::convert::Infallible;

use super::{NumbersError, Verdict, check_numbers, judge};

/// Where a consumer begins with an object of which its store knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Start {
    /// At the object's first event: everything else is early until that one came. For a consumer
    /// that is there from the start.
    #[default]
    Origin,
    /// At the first event that comes, taking its `prev` as applied. For a consumer that joins late,
    /// or whose memory does not outlive it.
    FirstSeen,
}

impl Start {
    /// What `last` is when the first event that comes of an object has this `prev`.
    pub fn last(self, prev: u64) -> u64 {
        match self {
            Self::Origin => 0,
            Self::FirstSeen => prev,
        }
    }
}

/// Where a [`Gate`] keeps `last`, the highest id applied, per object.
///
/// To apply each event exactly once, keep `last` in the same place as the effect and change both in
/// one transaction; the store then borrows the transaction, and there is a gate per transaction:
///
/// - **Postgres**, table `gate (object text primary key, last bigint not null)`; `last`: `INSERT
///   INTO gate VALUES ($1, $2) ON CONFLICT DO NOTHING`, then `SELECT last FROM gate WHERE object =
///   $1 FOR UPDATE`; `advance`: `UPDATE gate SET last = $3 WHERE object = $1 AND last >= $2 AND
///   last < $3`, and whether it changed a row. The consumer's own writes go between the two, its
///   COMMIT after.
/// - **Redis**: `last`: `SET KEY first NX GET`, where nil means `first`; `advance`: a script with
///   the same condition.
///
/// With a store apart from the effect, an event whose effect took place before a crash is applied
/// again after it.
///
/// Both calls may be dropped at any await if the store allows it; the gate itself keeps nothing in
/// between.
pub trait GateStore: Send {
    /// How the store fails.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The object's `last`. Where there is none yet, `first` is recorded and answered, in one
    /// atomic step.
    fn last(&mut self, object: &str, first: u64) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Sets the object's `last` to `id` if `prev <= last < id`, in one atomic step, and answers
    /// whether it did.
    fn advance(&mut self, object: &str, prev: u64, id: u64) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

impl<S: GateStore> GateStore for &mut S {
    type Error = S::Error;

    fn last(&mut self, object: &str, first: u64) -> impl Future<Output = Result<u64, S::Error>> + Send {
        (**self).last(object, first)
    }

    fn advance(&mut self, object: &str, prev: u64, id: u64) -> impl Future<Output = Result<bool, S::Error>> + Send {
        (**self).advance(object, prev, id)
    }
}

/// A store in memory: about 100 bytes and the name for each object, for as long as it lives; never
/// fails and never waits.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    last: HashMap<Box<str>, u64>,
}

impl Memory {
    /// How many objects it knows.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether it knows none.
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

/// Why the gate cannot say, or cannot record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError<E: std::error::Error + 'static> {
    /// The numbers cannot be an event's; what sent them does not speak the protocol.
    #[error(transparent)]
    Numbers(#[from] NumbersError),
    /// The store failed.
    #[error("the gate's store failed: {0}")]
    Store(#[source] E),
    /// The event may not be recorded now: another consumer with the same store was faster, or the
    /// verdict was not `Apply`.
    #[error(
        "event {id} of {object} cannot be recorded: it is not the next one any more; undo what was done for it and ask again"
    )]
    Overtaken {
        /// The event's object.
        object: String,
        /// The event's id.
        id: u64,
    },
}

/// Lets the events of each object through in order, once each.
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
    /// A gate that remembers in memory.
    pub fn new(start: Start) -> Self {
        Self::over(Memory::default(), start)
    }
}

impl<S: GateStore> Gate<S> {
    /// A gate over this store.
    pub fn over(store: S, start: Start) -> Self {
        Self { store, start }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What to do with an event. Records nothing but where an object unknown so far begins, so it
    /// may be asked again, and may be dropped at any await.
    pub async fn check(&mut self, object: &str, id: u64, prev: u64) -> Result<Verdict, GateError<S::Error>> {
        // Nonsense must not reach the store: it could become the object's beginning.
        check_numbers(id, prev)?;
        let last = self.store.last(object, self.start.last(prev)).await.map_err(GateError::Store)?;
        Ok(judge(last, id, prev)?)
    }

    /// Records that the event was applied, after [`Verdict::Apply`]. Dropped before it answers, it
    /// may or may not have recorded it: `check` tells.
    pub async fn applied(&mut self, object: &str, id: u64, prev: u64) -> Result<(), GateError<S::Error>> {
        check_numbers(id, prev)?;
        if self.store.advance(object, prev, id).await.map_err(GateError::Store)? {
            return Ok(());
        }
        Err(GateError::Overtaken { object: object.to_owned(), id })
    }
}
