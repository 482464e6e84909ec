//! The key of a schedule, and the member that stands for a schedule in Redis.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest key of a schedule, in bytes.
pub const SCHEDULE_KEY_BYTES_MAX: usize = 256;

/// The longest time from now until an event is due: a hundred years, with leap years.
pub const DUE_MAX: Duration = Duration::from_secs(36_600 * 24 * 3600);

/// The due time of a schedule is too far away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an event is due at most 100 years from now; is a number in ms where seconds are expected?"
)]
pub struct DueError;

/// Checks a due time in ms since the epoch, by the clock of this machine.
pub(crate) fn check_due(due_ms: u64) -> Result<(), DueError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    if u128::from(due_ms) > (now + DUE_MAX).as_millis() {
        Err(DueError)
    } else {
        Ok(())
    }
}

/// Checks the time until an event is due.
pub(crate) fn check_after(after: Duration) -> Result<(), DueError> {
    if after > DUE_MAX {
        Err(DueError)
    } else {
        Ok(())
    }
}

/// The key of a schedule, unique among the schedules of its object: 1 to 256 bytes of UTF-8 without
/// control characters, e.g. `reminder`. Clones are cheap enough.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleKey(String);

/// The reason why the key of a schedule is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleKeyError {
    /// The key is empty.
    #[error("a key must not be empty")]
    Empty,
    /// The key has more than 256 bytes; the field is its length.
    #[error("a key has at most {SCHEDULE_KEY_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The key has a control character; the fields are its code point and its byte position.
    #[error("a key has no control characters, this one has U+{0:04X} at byte {1}")]
    Control(u32, usize),
}

impl ScheduleKey {
    /// Checks a key.
    ///
    /// # Errors
    /// [`ScheduleKeyError`] with the first broken rule.
    pub fn new(key: impl Into<String>) -> Result<Self, ScheduleKeyError> {
        let key = key.into();
        if key.is_empty() {
            return Err(ScheduleKeyError::Empty);
        }
        if key.len() > SCHEDULE_KEY_BYTES_MAX {
            return Err(ScheduleKeyError::TooLong(key.len()));
        }
        if let Some((at, c)) = key.char_indices().find(|(_, c)| c.is_control()) {
            return Err(ScheduleKeyError::Control(c as u32, at));
        }
        Ok(Self(key))
    }

    /// Returns a new key, `-MS-COUNT-RANDOM`, that no other schedule has. If one process makes two
    /// keys, the later one is greater in the order of bytes. So schedules of one object that are
    /// due in the same millisecond come in the order in which their process made them.
    pub(crate) fn unique() -> Self {
        static RANDOM: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static STARTED_MS: LazyLock<u128> = LazyLock::new(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis()
        });
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(format!("-{:013}-{count:012}-{:016x}", *STARTED_MS, *RANDOM))
    }

    /// Returns whether a user has chosen the key. Otherwise the key was made by an emitter.
    pub(crate) fn is_chosen(&self) -> bool {
        !self.0.starts_with('-')
    }

    /// Returns the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the member of `events.scheduled` that stands for this key of the object.
    pub(crate) fn member(&self, object: &str) -> String {
        [object, "\n", &self.0].concat()
    }
}

/// Splits a member of `events.scheduled` into object and key; `None` if it has no line feed.
pub(crate) fn object_and_key(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = member.iter().rposition(|byte| *byte == b'\n')?;
    Some((&member[..at], &member[at + 1..]))
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_keys_are_refused() {
        assert_eq!(ScheduleKey::new(""), Err(ScheduleKeyError::Empty));
        assert_eq!(
            ScheduleKey::new("a\nb"),
            Err(ScheduleKeyError::Control(10, 1))
        );
        assert_eq!(
            ScheduleKey::new("x".repeat(257)),
            Err(ScheduleKeyError::TooLong(257))
        );
        assert_eq!(
            ScheduleKey::new("renew subscription").map(|key| key.to_string()),
            Ok("renew subscription".to_owned())
        );
    }

    #[test]
    fn unique_keys_grow() {
        let keys: Vec<_> = (0..1000).map(|_| ScheduleKey::unique()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ScheduleKey::new(keys[0].as_str()).is_ok());
    }

    #[test]
    fn a_member_leads_back_to_object_and_key() {
        let key = ScheduleKey::new("renew").expect("a key");
        assert_eq!(
            object_and_key(key.member("user:1").as_bytes()),
            Some((&b"user:1"[..], &b"renew"[..]))
        );
        // A producer that writes to Redis itself may have used an invalid object name, e.g. with a
        // line feed.
        assert_eq!(
            object_and_key(b"a\nb\nrenew"),
            Some((&b"a\nb"[..], &b"renew"[..]))
        );
        assert_eq!(object_and_key(b"work:1"), None);
    }
}
