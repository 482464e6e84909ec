//! The tag of a batch: its first id and what happened to it so far.

use std::fmt;
use std::str::FromStr;

use crate::event::ID_END;

/// Names a batch in flight: no two hand-outs of a namespace have the same first id and number of
/// hand-outs.
///
/// In Redis it is `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`, trailing zeros left out, and compared as
/// text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag {
    /// The id of the first event.
    pub first: u64,
    /// How often the batch was handed out before: held and claimed again.
    pub handouts: u32,
    /// How often its first event has failed.
    pub attempts: u32,
    /// How often a worker died with the batch in flight.
    pub crashes: u32,
}

impl Tag {
    /// What remains after the first `count` events, with ids `stride` apart.
    ///
    /// The attempts were those of the first event. Of the crashes one stays: the event that killed
    /// the worker may still be ahead, and as long as there is one, events are delivered one at a
    /// time.
    pub fn after(self, count: usize, stride: u64) -> Self {
        match count {
            0 => self,
            _ => Self {
                first: self.first + count as u64 * stride,
                attempts: 0,
                crashes: self.crashes.min(1),
                handouts: self.handouts,
            },
        }
    }

    /// The same batch with one failure more of its first event.
    pub fn failed(self) -> Self {
        Self { attempts: self.attempts.saturating_add(1), ..self }
    }

    /// Whether the first event is to be delivered alone.
    pub fn is_suspect(self) -> bool {
        self.attempts > 0 || self.crashes > 0
    }

    /// Whether the batch may have been in other hands before.
    pub fn is_again(self) -> bool {
        self.handouts > 0 || self.is_suspect()
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        let rest = [self.handouts, self.attempts, self.crashes];
        let shown = rest.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        rest[..shown].iter().try_for_each(|n| write!(f, " {n}"))
    }
}

/// The text is no tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a tag: {0:?}")]
pub struct TagError(String);

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        let wrong = || TagError(text.to_owned());
        let mut parts = text.split(' ');
        // The ids of the whole batch are computed from the first: one that is none must not get
        // further than here.
        let first = parts.next().and_then(|n| n.parse().ok()).filter(|first| (1..ID_END).contains(first)).ok_or_else(wrong)?;
        let mut rest = [0; 3];
        for (slot, part) in rest.iter_mut().zip(&mut parts) {
            *slot = part.parse().map_err(|_| wrong())?;
        }
        let [handouts, attempts, crashes] = rest;
        parts.next().map_or(Ok(Self { first, handouts, attempts, crashes }), |_| Err(wrong()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tag_is_what_its_text_says(first in 1u64..1 << 53, handouts in 0u32..3, attempts in 0u32..3, crashes in 0u32..3) {
            let tag = Tag { first, handouts, attempts, crashes };
            let text = tag.to_string();
            prop_assert_eq!(text.parse::<Tag>(), Ok(tag));
            prop_assert!(!text.ends_with(" 0"));
        }
    }

    #[test]
    fn what_remains_of_a_suspect_batch_stays_suspect() {
        let tag = Tag { first: 10, handouts: 1, attempts: 2, crashes: 3 };
        assert_eq!(tag.after(1, 1), Tag { first: 11, handouts: 1, attempts: 0, crashes: 1 });
        assert_eq!(tag.after(0, 1), tag);
        assert_eq!(Tag { crashes: 0, ..tag }.after(2, 1).to_string(), "12 1");
    }

    /// A tag with a first id beyond 2^53 was taken, and the ids computed from it overflowed.
    #[test]
    fn other_text_is_refused() {
        for text in ["", "a", "1 ", "1 2 3 4 5", "-1", "0", "9007199254740992", "18446744073709551615"] {
            assert!(text.parse::<Tag>().is_err(), "{text:?}");
        }
    }
}
