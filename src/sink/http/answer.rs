//! The meaning of an answer: how the sink treats each HTTP status, and each failure of a request.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Longest wait that a receiver can ask for with `Retry-After`. It equals the longest wait of a
/// retry policy.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The meaning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The receiver has accepted the events.
    Delivered,
    /// The receiver has refused the events now, but may accept them later.
    Transient,
    /// The receiver will never take these events.
    Rejected,
    /// There was no answer: the request timed out, or its connection ended. The receiver may accept
    /// the events later.
    Silent,
    /// The receiver itself fails.
    Unavailable,
    /// The receiver does not accept the URL or its credentials. If the URL is fixed, no event can
    /// succeed. If the event names the URL, only this event fails.
    Misconfigured,
    /// The URL is one with which no request can be made.
    Unsendable,
    /// This process cannot send, e.g. because it has too many files open. The receiver is not the
    /// cause.
    Unable,
}

impl Meaning {
    pub(super) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=299 => Self::Delivered,
            502 | 503 => Self::Unavailable,
            401 | 403 | 404 | 405 | 407 => Self::Misconfigured,
            408 | 425 | 429 => Self::Transient,
            400..=499 => Self::Rejected,
            _ => Self::Transient,
        }
    }
}

/// Returns the wait that the receiver asks for, as a number of seconds or as an HTTP date. The wait
/// is at most 24 h. An invalid header does not count. A wait of 0 does not count either, because it
/// would make a busy loop.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        // A number that is too large for u64 asks for a very long wait.
        true => Duration::from_secs(text.parse().unwrap_or(u64::MAX)),
        false => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_MAX)).filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_meaning() {
        let meant = |meaning: Meaning| -> Vec<u16> {
            let all = (100..=599).filter(|code| Meaning::of(StatusCode::from_u16(*code).expect("a status")) == meaning);
            all.filter(|code| *code >= 200).collect()
        };
        assert_eq!(meant(Meaning::Delivered), (200..300).collect::<Vec<_>>());
        assert_eq!(meant(Meaning::Unavailable), [502, 503]);
        assert_eq!(meant(Meaning::Misconfigured), [401, 403, 404, 405, 407]);
        let transient = meant(Meaning::Transient);
        let named = [408, 425, 429, 500, 501, 504, 507, 511, 300, 301, 302, 304, 307, 308];
        assert!(named.iter().all(|code| transient.contains(code)), "{transient:?}");
        assert_eq!(transient.len(), 100 + 3 + 98);
        assert_eq!(meant(Meaning::Rejected).len(), 100 - 3 - 5);
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Fri, 01 Jan 2027 00:00:00 GMT").expect("a date");
        let wait = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().expect("a value"));
            retry_after(&headers, now)
        };
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(wait("99999999999999999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(wait("Fri, 01 Jan 2027 00:01:00 GMT"), Some(Duration::from_secs(60)));
        for text in ["", "soon", "-1", "1.5", "0", "Thu, 31 Dec 2026 00:00:00 GMT"] {
            assert_eq!(wait(text), None, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
