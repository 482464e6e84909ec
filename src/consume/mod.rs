//! For receivers of events: envelopes, and the receiver's rule. With `id` and `prev` a consumer
//! decides alone whether an event is next.
//!
//! - [`Envelope`]: a parsed line of a sink
//! - [`judge`]: the rule itself
//! - [`Gate`]: the rule with a store that records the last id applied for each object
//!
//! The rule works in spite of resends, dead letters, gaps between ids, and late sends of a worker
//! that has lost its lease. It lets each event of an object pass once, in the order in which the
//! events were emitted. Only dead letters and events completed with errors are left out.
//!
//! If the consumer dies after it has applied an event and before it has recorded the event, the
//! event is applied again. To prevent this, a store must apply and record in one transaction.

mod envelope;
mod gate;

pub use envelope::{Envelope, EnvelopeError};
pub use gate::{Gate, GateError, GateStore, Memory, Start};

pub use crate::event::ID_END;

/// The verdict on an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// This is the object's next event. Apply it, then record it.
    Apply,
    /// This event, or a later event of the object, was applied before. Drop this event and
    /// acknowledge it.
    Duplicate,
    /// An earlier event of the object is still to come. Do not apply this event now, and do not
    /// lose it. Either do not acknowledge it, so that it is delivered again later. Or keep it, and
    /// judge it again when the object's next event was applied.
    Early,
}

/// The reason why two numbers cannot be an event's `id` and `prev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NumbersError {
    /// The id is 0, which means "no event".
    #[error("an event's id is at least 1, this one is 0")]
    IdZero,
    /// The id is 2^53 or more.
    #[error("an event's id is below 2^53, this one is {0}")]
    IdTooLarge(u64),
    /// `prev` is not below the id.
    #[error("an event's prev is below its id, here prev is {prev} and id is {id}")]
    PrevNotBelow {
        /// The event's id.
        id: u64,
        /// The `prev` that the event states.
        prev: u64,
    },
}

/// Checks that the numbers can be `id` and `prev` of an event: `1 <= id < 2^53` and `prev < id`.
///
/// # Errors
/// [`NumbersError`] with the first broken condition.
pub fn check_numbers(id: u64, prev: u64) -> Result<(), NumbersError> {
    if id == 0 {
        return Err(NumbersError::IdZero);
    }
    if id >= ID_END {
        return Err(NumbersError::IdTooLarge(id));
    }
    if prev >= id {
        return Err(NumbersError::PrevNotBelow { id, prev });
    }
    Ok(())
}

/// Returns the verdict of the receiver's rule: apply if `prev <= last < id`; duplicate if `id <=
/// last`; early if `prev > last`. `last` is the highest id applied for the object; 0 if no event
/// was applied.
///
/// # Errors
/// [`NumbersError`] if `id` and `prev` are invalid.
pub fn judge(last: u64, id: u64, prev: u64) -> Result<Verdict, NumbersError> {
    check_numbers(id, prev)?;
    Ok(if id <= last {
        Verdict::Duplicate
    } else if prev > last {
        Verdict::Early
    } else {
        Verdict::Apply
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 1, 0, Verdict::Apply)]
    #[case(7, 12, 7, Verdict::Apply)]
    #[case(7, 12, 5, Verdict::Apply)] // the event between 5 and 7 was sent, and became a dead letter when it came again
    #[case(12, 12, 7, Verdict::Duplicate)]
    #[case(13, 12, 7, Verdict::Duplicate)]
    #[case(6, 12, 7, Verdict::Early)]
    #[case(0, 12, 7, Verdict::Early)]
    #[case(0, ID_END - 1, ID_END - 2, Verdict::Early)]
    #[case(u64::MAX, ID_END - 1, 0, Verdict::Duplicate)]
    fn the_rule(#[case] last: u64, #[case] id: u64, #[case] prev: u64, #[case] verdict: Verdict) {
        assert_eq!(judge(last, id, prev), Ok(verdict));
    }

    #[rstest]
    #[case(0, 0, NumbersError::IdZero)]
    #[case(ID_END, 0, NumbersError::IdTooLarge(ID_END))]
    #[case(u64::MAX, u64::MAX, NumbersError::IdTooLarge(u64::MAX))]
    #[case(3, 3, NumbersError::PrevNotBelow { id: 3, prev: 3 })]
    #[case(3, 4, NumbersError::PrevNotBelow { id: 3, prev: 4 })]
    fn nonsense_is_refused(#[case] id: u64, #[case] prev: u64, #[case] why: NumbersError) {
        assert_eq!(judge(0, id, prev), Err(why));
    }
}
