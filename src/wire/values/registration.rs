//! The registration of a worker name.

use std::fmt;
use std::str::FromStr;

/// The value of a name in `event.workers`: `SLOTS TOKEN LAST_SEEN_MS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The highest number of slots that the name has ever had.
    pub slots: u32,
    /// The token of the last process that attached.
    pub token: String,
    /// The time of the name's last sign of life, in ms since the epoch.
    pub last_seen_ms: u64,
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.slots, self.token, self.last_seen_ms)
    }
}

/// The text is not a registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the registration of a worker name: {0:?}")]
pub struct RegistrationError(String);

impl FromStr for Registration {
    type Err = RegistrationError;

    fn from_str(text: &str) -> Result<Self, RegistrationError> {
        let read = || {
            let mut parts = text.split(' ');
            let (slots, token, last_seen_ms) = (
                parts.next()?.parse().ok()?,
                parts.next()?,
                parts.next()?.parse().ok()?,
            );
            let is_whole = !token.is_empty() && parts.next().is_none();
            is_whole.then(|| Self {
                slots,
                token: token.to_owned(),
                last_seen_ms,
            })
        };
        read().ok_or_else(|| RegistrationError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_read_as_it_is_printed() {
        let text = "4 token-1 1767225600000";
        assert_eq!(text.parse::<Registration>().expect(text).to_string(), text);
        for text in [
            "",
            "4",
            "4 token",
            "4 token x",
            "x token 1",
            "4  1",
            "4 token 1 1",
        ] {
            assert!(text.parse::<Registration>().is_err(), "{text:?}");
        }
    }
}
