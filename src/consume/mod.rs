//! The receiving side: reading envelopes, and the receiver's rule, by which a consumer knows from
//! two numbers whether an event is next.
//!
//! - [`Envelope`]: what a sink wrote, parsed
//! - [`judge`]: the rule itself
//! - [`Gate`]: the rule over a store that remembers the last id applied per object
//!
//! The rule holds through resends, dead letters, gaps between ids and late sends of a worker that
//! lost its lease: what passes is, per object, in the order it was emitted, each event once, none
//! left out but dead letters. If the consumer dies between applying an event and recording it, the
//! event is applied again; only a store that does both at once (a transaction) rules that out.

mod envelope;
mod gate;

pub use envelope::{Envelope, EnvelopeError};
pub use gate::{Gate, GateError, GateStore, Memory, Start};

pub use crate::event::ID_END;

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is the object's next event: apply it, then record it.
    Apply,
    /// It, or a later event of the object, was applied before: drop it and acknowledge it.
    Duplicate,
    /// An event before it is still to come: do not apply it now, and do not lose it. Either have it
    /// delivered again later (do not acknowledge it), or keep it and ask again after the object's
    /// next event was applied.
    Early,
}

/// Why two numbers cannot be an event's `id` and `prev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NumbersError {
    /// The id is 0, which means "no event".
    #[error("an event's id is at least 1, this one is 0")]
    IdZero,
    /// The id is 2^53 or more.
    #[error("an event's id is below 2^53, this one is {0}")]
    IdTooLarge(u64),
    /// The event claims to come before its predecessor, or to be it.
    #[error("an event's prev is below its id, here prev is {prev} and id is {id}")]
    PrevNotBelow {
        /// The event's id.
        id: u64,
        /// The id of its predecessor, as it says.
        prev: u64,
    },
}

/// Whether the numbers can be an event's: `1 <= id < 2^53` and `prev < id`.
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

/// The receiver's rule: apply if `prev <= last < id`; duplicate if `id <= last`; early if `prev >
/// last`. `last` is the highest id applied for the object, 0 if there is none.
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
    #[case(7, 12, 5, Verdict::Apply)] // what is between 5 and 7 was sent, and dead-lettered when it came again
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
