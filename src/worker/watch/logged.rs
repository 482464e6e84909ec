//! Log lines about objects and batches.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, error, warn};

use crate::escape;
use crate::event::ObjectName;
use crate::wire::{BatchResult, Report};

/// The most log lines per second of each kind: events that will be retried, events that ended or are
/// held, and objects that a call has quarantined. Without this limit, each of 100,000 objects could
/// have its line, and those that are retried again and again.
const LINES_PER_SECOND: u32 = 20;

/// The most bytes of an escaped name in a log line. A name in Redis may have any length.
const NAME_BYTES_MAX: usize = 200;

/// The most different lost keys that are logged.
const LOST_MAX: usize = 1024;

/// The lost keys that this process has logged.
static LOST: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

static RETRIED: Lines = Lines::new("more events failed and will be retried; not all are logged");
static ENDED: Lines = Lines::new(
    "more events became dead letters, ended with errors or are held; not all are logged",
);
static QUARANTINED: Lines =
    Lines::new("more objects are held, or more markers are dropped; not all are logged");

/// The log lines of one kind in the present second.
struct Lines {
    /// Says that some have no line.
    left_out: &'static str,
    second: Mutex<Option<Second>>,
}

struct Second {
    began: Instant,
    lines: u32,
    left_out: u32,
}

/// Whether an event or object gets a log line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// It gets a log line. `left_out`: the number of those without a line in the second before, if
    /// this is the first line of a second; otherwise 0.
    Described {
        left_out: u32,
    },
    LeftOut,
}

impl Lines {
    const fn new(left_out: &'static str) -> Self {
        Self {
            left_out,
            second: Mutex::new(None),
        }
    }

    /// Returns whether there may be one more line now. Says how many were left out before.
    fn has_room(&self) -> bool {
        match self.begin(Instant::now()) {
            Line::Described { left_out: 0 } => true,
            Line::Described { left_out } => {
                warn!(left_out, "{}", self.left_out);
                true
            }
            Line::LeftOut => false,
        }
    }

    fn begin(&self, now: Instant) -> Line {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *second {
            Some(present) if now.duration_since(present.began) < Duration::from_secs(1) => {
                if present.lines >= LINES_PER_SECOND {
                    present.left_out = present.left_out.saturating_add(1);
                    return Line::LeftOut;
                }
                present.lines += 1;
                Line::Described { left_out: 0 }
            }
            _ => {
                let left_out = second.as_ref().map_or(0, |before| before.left_out);
                *second = Some(Second {
                    began: now,
                    lines: 1,
                    left_out: 0,
                });
                Line::Described { left_out }
            }
        }
    }
}

/// Logs a line with its level if its kind has room for it, and otherwise as a detail.
macro_rules! log {
    ($kind:ident, $level:ident, $($line:tt)*) => {
        if $kind.has_room() {
            $level!($($line)*)
        } else {
            debug!($($line)*)
        }
    };
}

/// Returns an escaped name for a log line. A long name is cut, and its number of bytes is added.
pub(crate) fn cut(escaped: &str) -> Cow<'_, str> {
    if escaped.len() <= NAME_BYTES_MAX {
        return Cow::Borrowed(escaped);
    }
    let end = (0..=NAME_BYTES_MAX)
        .rev()
        .find(|at| escaped.is_char_boundary(*at))
        .unwrap_or(0);
    let bytes = escape::unescaped(escaped).map_or(escaped.len(), |name| name.len());
    Cow::Owned(format!("{}... ({bytes} bytes)", &escaped[..end]))
}

/// Logs an object that a call has held because of a wrong type, a lost key or an invalid name, a lost
/// key, or a marker that the call has dropped. `object` is escaped. Returns whether a key was lost.
pub(crate) fn quarantined(object: &str, why: &str) -> bool {
    let name = cut(object);
    match why.split(": ").next() {
        Some("foreign") => {
            log!(QUARANTINED, warn, object = %name, why, "claim: the marker is dropped")
        }
        Some("mended") => warn!(key = %name, why, "claim: a key was lost, and is written again"),
        Some("lost" | "stuck") => {
            // A call may say the same again and again.
            let mut logged = LOST.lock().unwrap_or_else(PoisonError::into_inner);
            if logged.len() >= LOST_MAX || !logged.insert(format!("{object} {why}")) {
                return false;
            }
            error!(key = %name, why, "claim: a key was lost; run `seriatim check`");
        }
        _ => {
            log!(QUARANTINED, error, object = %name, why, "claim: the object is held until an operator releases it");
            return why.ends_with(" is absent") || why.ends_with(" is absent and tells no ids");
        }
    }
    !why.starts_with("foreign: ")
}

/// Logs all of these. Returns the number of lost keys among them.
pub(crate) fn quarantined_all(texts: &[(String, String)]) -> u64 {
    texts
        .iter()
        .map(|(object, why)| u64::from(quarantined(object, why)))
        .sum()
}

/// Logs the result of a batch.
pub(crate) fn result(object: &ObjectName, report: &Report) {
    let escaped = escape::name(object.as_str());
    let object = cut(&escaped);
    match &report.then {
        BatchResult::Hold {
            rest,
            delay: Some(delay),
            reason,
        } => {
            let (id, attempts) = (rest.first, rest.attempts);
            log!(RETRIED, warn, %object, id, why = %reason, attempts, ?delay, "deliver: failed, will be retried");
        }
        BatchResult::Hold {
            rest,
            delay: None,
            reason,
        } => {
            log!(ENDED, error, %object, id = rest.first, why = %reason, "deliver: the object is held until an operator releases it or skips the event");
        }
        BatchResult::Reject {
            id,
            error,
            attempts,
            ..
        } => log!(ENDED, warn, %object, id, error, attempts, "deliver: a dead letter"),
        BatchResult::Complete {
            id,
            error,
            attempts,
            ..
        } => {
            log!(ENDED, warn, %object, id, error, attempts, "deliver: completed with errors")
        }
        _ => debug!(%object, events = report.count, "deliver"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(cut(&"x".repeat(200)), "x".repeat(200));
        assert_eq!(
            cut(&"x".repeat(1 << 20)),
            format!("{}... (1048576 bytes)", "x".repeat(200))
        );
        assert_eq!(
            cut(&format!("x{}", "é".repeat(200))),
            format!("x{}... (401 bytes)", "é".repeat(99))
        );
        // The number is that of the name, not that of its escaped form.
        assert_eq!(
            cut(&escape::name(&[0xff; 100])),
            format!("{}... (100 bytes)", r"\xff".repeat(50))
        );
    }

    #[test]
    fn a_kind_has_some_lines_per_second() {
        let (failures, began) = (Lines::new("more failed"), Instant::now());
        let lines = (0..100)
            .filter(|_| failures.begin(began) != Line::LeftOut)
            .count();
        assert_eq!(lines, LINES_PER_SECOND as usize);
        assert_eq!(
            failures.begin(began + Duration::from_secs(1)),
            Line::Described { left_out: 80 }
        );
        assert_eq!(
            failures.begin(began + Duration::from_secs(1)),
            Line::Described { left_out: 0 }
        );
    }
}
