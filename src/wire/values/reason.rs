//! The reason why an object is held.

use std::fmt;

/// A reason: a code for programs and a text for people. Stored as `CODE`, or `CODE: TEXT`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reason {
    /// The code.
    pub code: ReasonCode,
    /// The details, if there are any.
    pub text: Option<String>,
}

/// The code of a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasonCode {
    /// The event has failed and will be retried.
    Retry,
    /// The worker does not know the event, e.g. its type. The object waits for another worker.
    Unknown,
    /// The event was rejected, and the retry policy holds such events.
    Rejected,
    /// The attempts of the event are used up.
    Attempts,
    /// Too many workers died with the event in hand.
    Crashes,
    /// The object yields to other objects.
    Yield,
    /// The worker was stopped.
    Stop,
    /// The worker was started again with fewer slots, or found too many suspects in its slots.
    Slots,
    /// The worker died.
    Takeover,
    /// The sink of the worker was unavailable for a long time.
    Unavailable,
    /// A key of the object has a wrong type, or no sink can get an object of its name.
    Quarantine,
    /// An operator has skipped an event of the object.
    Skip,
    /// A code of another version; empty if there is no reason.
    Other(String),
}

impl ReasonCode {
    const WORDS: [(&'static str, Self); 12] = [
        ("retry", Self::Retry),
        ("unknown", Self::Unknown),
        ("rejected", Self::Rejected),
        ("attempts", Self::Attempts),
        ("crashes", Self::Crashes),
        ("yield", Self::Yield),
        ("stop", Self::Stop),
        ("slots", Self::Slots),
        ("takeover", Self::Takeover),
        ("unavailable", Self::Unavailable),
        ("quarantine", Self::Quarantine),
        ("skip", Self::Skip),
    ];

    /// Returns the word stored in Redis.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(word) => word,
            known => Self::WORDS
                .iter()
                .find(|(_, code)| code == known)
                .map_or("", |(word, _)| word),
        }
    }
}

impl Default for ReasonCode {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl Reason {
    /// Returns a reason with details.
    pub fn new(code: ReasonCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: Some(text.into()),
        }
    }

    /// Reads a reason. Every text is valid.
    pub fn of(text: &str) -> Self {
        let (word, text) = text
            .split_once(": ")
            .map_or((text, None), |(word, text)| (word, Some(text.to_owned())));
        let known = ReasonCode::WORDS.iter().find(|(known, _)| *known == word);
        let code = known.map_or_else(
            || ReasonCode::Other(word.to_owned()),
            |(_, code)| code.clone(),
        );
        Self { code, text }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::of(text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::of(&text)
    }
}

/// A reason without details.
impl From<ReasonCode> for Reason {
    fn from(code: ReasonCode) -> Self {
        Self { code, text: None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.as_str())?;
        self.text
            .as_ref()
            .map_or(Ok(()), |text| write!(f, ": {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_code_and_text() {
        for (text, code, details) in [
            ("yield", ReasonCode::Yield, None),
            ("retry: stop: it", ReasonCode::Retry, Some("stop: it")),
            ("retry: ", ReasonCode::Retry, Some("")),
            ("later: x", ReasonCode::Other("later".to_owned()), Some("x")),
            ("", ReasonCode::default(), None),
        ] {
            let reason = Reason::of(text);
            assert_eq!(
                (reason.to_string().as_str(), &reason),
                (
                    text,
                    &Reason {
                        code,
                        text: details.map(str::to_owned)
                    }
                )
            );
        }
    }
}
