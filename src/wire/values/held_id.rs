//! The value that records a held batch and the reason of the hold.

use std::fmt;
use std::str::FromStr;

use super::reason::Reason;
use super::tag::Tag;

/// The value of `OBJ:events.held.id`: `FIRST HANDOUTS ATTEMPTS CRASHES REASON`. If an object is
/// held without a batch, the four numbers are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldId {
    /// The tag of the held batch; `None` if the object is held without a batch.
    pub tag: Option<Tag>,
    /// The reason why the object is held.
    pub reason: Reason,
}

impl fmt::Display for HeldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag {
            first,
            handouts,
            attempts,
            crashes,
            ..
        } = self.tag.unwrap_or_default();
        write!(f, "{first} {handouts} {attempts} {crashes} {}", self.reason)
    }
}

/// The text is not four numbers and a reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the numbers of a held batch and a reason: {0:?}")]
pub struct HeldIdError(String);

impl FromStr for HeldId {
    type Err = HeldIdError;

    fn from_str(text: &str) -> Result<Self, HeldIdError> {
        let wrong = || HeldIdError(text.to_owned());
        let mut parts = text.splitn(5, ' ');
        let numbers: Vec<_> = parts.by_ref().take(4).collect();
        if numbers.len() < 4
            || !numbers
                .iter()
                .all(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return Err(wrong());
        }
        let tag = if numbers[0] == "0" {
            None
        } else {
            Some(numbers.join(" ").parse().map_err(|_| wrong())?)
        };
        Ok(Self {
            tag,
            reason: Reason::of(parts.next().unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_id_is_read_as_it_is_printed() {
        for text in [
            "7 0 0 0 stop",
            "7 1 2 3 retry: down: at 5",
            "0 0 0 0 quarantine: o:events is a string",
            "7 0 0 0 ",
        ] {
            assert_eq!(text.parse::<HeldId>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "7",
            "7 0 0",
            "7 0 0 x stop",
            "-7 0 0 0 stop",
            "9007199254740992 0 0 0 stop",
            "7  0 0 stop",
        ] {
            assert!(text.parse::<HeldId>().is_err(), "{text:?}");
        }
    }
}
