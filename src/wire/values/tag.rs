//! The tag of a batch: the id of its first event, and the counts of its hand-outs, attempts and
//! crashes.

use std::fmt;
use std::str::FromStr;

use crate::event::ID_END;

/// Identifies a batch in flight. No two hand-outs in a namespace have the same first id and the
/// same number of hand-outs.
///
/// Redis stores the tag as `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]` without trailing zeros, and behind a
/// line feed the object of the batch. The one exception is the first hand-out of a schedule's event
/// with a key, whose tag is `FIRST 0`. The scripts compare tags as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag {
    /// The id of the first event.
    pub first: u64,
    /// The number of earlier hand-outs of the batch. It grows when the batch was held and is
    /// claimed again.
    pub handouts: u32,
    /// The number of failed deliveries of the first event.
    pub attempts: u32,
    /// The number of deaths with the batch in flight, since the last failure of the first event.
    pub crashes: u32,
    /// Whether this is the first hand-out of the event of a schedule with a key.
    pub is_keyed: bool,
}

impl Tag {
    /// Returns the value of `event.worker:W:event.id` for a batch of this object.
    pub fn stored(self, object: &[u8]) -> Vec<u8> {
        [format!("{self}\n").as_bytes(), object].concat()
    }

    /// Returns the tag in a value of `event.worker:W:event.id`; `None` if the value has no tag.
    pub fn of_stored(value: &str) -> Option<Self> {
        let (tag, _) = value.split_once('\n').unwrap_or((value, ""));
        tag.parse().ok()
    }

    /// Returns the tag of the rest after the first `count` events. Ids are `stride` apart.
    ///
    /// The attempts belonged to the first event, so the rest has 0 attempts. If the batch has
    /// crashes, the rest keeps one crash, because the event that killed the worker may be in the
    /// rest. As long as a batch has a crash, its events are delivered one at a time.
    pub fn after(self, count: usize, stride: u64) -> Self {
        match count {
            0 => self,
            _ => Self {
                first: self.first + count as u64 * stride,
                attempts: 0,
                crashes: self.crashes.min(1),
                handouts: self.handouts,
                is_keyed: false,
            },
        }
    }

    /// Returns the tag after one more failure of the first event.
    ///
    /// The process has survived the event. So its crashes may come from other events that were in the
    /// process, and from kills. One crash stays, because some events kill only now and then.
    pub fn failed(self) -> Self {
        Self {
            attempts: self.attempts.saturating_add(1),
            crashes: self.crashes.min(1),
            is_keyed: false,
            ..self
        }
    }

    /// Returns the tag after one more crash of the program that handles the first event.
    pub fn crashed(self) -> Self {
        Self {
            crashes: self.crashes.saturating_add(1),
            is_keyed: false,
            ..self
        }
    }

    /// Returns whether the first event must be delivered alone.
    pub fn is_suspect(self) -> bool {
        self.attempts > 0 || self.crashes > 0
    }

    /// Returns whether the batch may have been in hand before, in another worker or in an earlier
    /// hand-out.
    pub fn is_again(self) -> bool {
        self.handouts > 0 || self.is_suspect()
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        let rest = [self.handouts, self.attempts, self.crashes];
        let shown = rest
            .iter()
            .rposition(|n| *n > 0)
            .map_or(usize::from(self.is_keyed), |last| last + 1);
        rest[..shown].iter().try_for_each(|n| write!(f, " {n}"))
    }
}

/// The text is not a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a tag: {0:?}")]
pub struct TagError(String);

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        let wrong = || TagError(text.to_owned());
        let mut parts = text.split(' ');
        // The ids of the whole batch are computed from the first id, so an invalid first id is
        // refused here.
        let first = parts
            .next()
            .and_then(|n| n.parse().ok())
            .filter(|first| (1..ID_END).contains(first))
            .ok_or_else(wrong)?;
        let mut rest = [0; 3];
        for (slot, part) in rest.iter_mut().zip(&mut parts) {
            *slot = part.parse().map_err(|_| wrong())?;
        }
        let [handouts, attempts, crashes] = rest;
        let is_keyed = rest == [0; 3] && text.bytes().filter(|byte| *byte == b' ').count() == 1;
        parts.next().map_or(
            Ok(Self {
                first,
                handouts,
                attempts,
                crashes,
                is_keyed,
            }),
            |_| Err(wrong()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tag_is_what_its_text_says(first in 1u64..1 << 53, handouts in 0u32..3, attempts in 0u32..3, crashes in 0u32..3) {
            let tag = Tag { first, handouts, attempts, crashes, is_keyed: false };
            let text = tag.to_string();
            prop_assert_eq!(text.parse::<Tag>(), Ok(tag));
            prop_assert_eq!(Tag::of_stored(&text), Some(tag));
            prop_assert_eq!(Tag::of_stored(&format!("{text}\nwork 2\n3")), Some(tag));
            prop_assert!(!text.ends_with(" 0"));
            let keyed = Tag { first, is_keyed: true, ..Tag::default() };
            prop_assert_eq!(keyed.to_string(), format!("{first} 0"));
            prop_assert_eq!(keyed.to_string().parse::<Tag>(), Ok(keyed));
        }
    }

    #[test]
    fn what_remains_of_a_suspect_batch_stays_suspect() {
        let tag = Tag {
            first: 10,
            handouts: 1,
            attempts: 2,
            crashes: 3,
            is_keyed: false,
        };
        assert_eq!(
            tag.after(1, 1),
            Tag {
                first: 11,
                handouts: 1,
                attempts: 0,
                crashes: 1,
                is_keyed: false
            }
        );
        assert_eq!(tag.after(0, 1), tag);
        assert_eq!(Tag { crashes: 0, ..tag }.after(2, 1).to_string(), "12 1");
        assert_eq!(tag.failed().to_string(), "10 1 3 1");
        assert_eq!(tag.crashed().failed().crashed().crashes, 2);
    }

    /// Regression: a first id above 2^53 was accepted, and the ids computed from it overflowed.
    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "a",
            "1 ",
            "1 2 3 4 5",
            "-1",
            "0",
            "9007199254740992",
            "18446744073709551615",
        ] {
            assert!(text.parse::<Tag>().is_err(), "{text:?}");
        }
    }
}
