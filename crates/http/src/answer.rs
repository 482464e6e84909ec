//! The meaning of an answer: how the sink treats each HTTP status, and each failure of a request.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::error::HttpError;

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
    /// The receiver asks to be left alone for a time.
    Throttled,
    /// There was no answer: the request timed out, or its connection ended. The receiver may accept
    /// the events later.
    Silent,
    /// The receiver itself fails, or cannot serve this object now.
    Unavailable,
    /// The receiver does not accept the URL or its credentials. If the URL is fixed, this may
    /// concern all events. If the event names the URL, only this event fails.
    Misconfigured,
    /// No connection to the receiver is possible.
    Unreachable,
    /// Nothing was sent, because this process has too many other requests under way.
    Unsent,
    /// The URL is one with which no request can be made.
    Unsendable,
    /// This process cannot send, e.g. because it has too many files open. The receiver is not the
    /// cause.
    Unable,
}

impl Meaning {
    /// Returns the meaning of an answer, if no setting changes it. `asks`: whether the receiver asks
    /// for a wait.
    fn of(status: StatusCode, asks: bool) -> Self {
        match status.as_u16() {
            200..=299 => Self::Delivered,
            502 | 503 => Self::Unavailable,
            401 | 403 | 404 | 405 | 407 => Self::Misconfigured,
            429 if asks => Self::Throttled,
            408 | 425 | 429 => Self::Transient,
            400..=499 => Self::Rejected,
            _ => Self::Transient,
        }
    }
}

/// The meanings of statuses that differ from the usual ones.
///
/// The text form is a list of `CODE=MEANING`, separated by commas, e.g. `404=reject,5xx=transient`.
/// A code is a number from 200 to 599, or `2xx` to `5xx`; a number counts before such a range. The
/// meanings are `delivered`, `transient`, `reject`, `postpone` and `unavailable`.
///
/// ```
/// use seriatim_http::Statuses;
///
/// let statuses: Statuses = "404=reject,5xx=transient".parse()?;
/// # Ok::<(), seriatim_http::HttpError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statuses(Vec<(Codes, Meaning)>);

/// The codes of an entry: one code, or the hundreds of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Codes {
    One(u16),
    Hundreds(u16),
}

impl Statuses {
    pub(super) fn meaning(&self, status: StatusCode, asks: bool) -> Meaning {
        let code = status.as_u16();
        let found = |codes: Codes| {
            self.0
                .iter()
                .find(|(known, _)| *known == codes)
                .map(|(_, meaning)| *meaning)
        };
        found(Codes::One(code))
            .or_else(|| found(Codes::Hundreds(code / 100)))
            .unwrap_or_else(|| Meaning::of(status, asks))
    }

    /// Adds the entries of another list.
    ///
    /// # Errors
    /// [`HttpError::Status`] if a code has two meanings.
    pub fn add(&mut self, other: Self) -> Result<(), HttpError> {
        for (codes, meaning) in other.0 {
            if self.0.iter().any(|(known, _)| *known == codes) {
                return Err(HttpError::Status {
                    why: format!("{codes} has two meanings"),
                });
            }
            self.0.push((codes, meaning));
        }
        Ok(())
    }
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(code) => write!(f, "{code}"),
            Self::Hundreds(digit) => write!(f, "{digit}xx"),
        }
    }
}

impl FromStr for Statuses {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let mut statuses = Self::default();
        for entry in text.split(',') {
            let refused = |why: String| HttpError::Status { why };
            let (codes, meaning) = entry
                .split_once('=')
                .ok_or_else(|| refused(format!("{entry:?} is not CODE=MEANING")))?;
            let (codes, meaning) = (codes.trim(), meaning.trim());
            let hundreds = codes
                .strip_suffix("xx")
                .and_then(|digit| digit.parse().ok())
                .filter(|digit| (2..=5).contains(digit));
            let one = || {
                codes
                    .parse()
                    .ok()
                    .filter(|code| (200..=599).contains(code))
                    .map(Codes::One)
            };
            let codes = hundreds.map(Codes::Hundreds).or_else(one);
            let codes = codes.ok_or_else(|| {
                refused(format!(
                    "{entry:?} begins with no code from 200 to 599 or range such as 5xx"
                ))
            })?;
            let meaning = match meaning {
                "delivered" => Meaning::Delivered,
                "transient" => Meaning::Transient,
                "reject" | "rejected" => Meaning::Rejected,
                "postpone" | "postponed" => Meaning::Throttled,
                "unavailable" => Meaning::Unavailable,
                _ => {
                    let meanings = "delivered, transient, reject, postpone and unavailable";
                    return Err(refused(format!(
                        "{meaning:?} is no meaning; the meanings are {meanings}"
                    )));
                }
            };
            statuses.add(Self(vec![(codes, meaning)]))?;
        }
        Ok(statuses)
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
        false => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_MAX)).filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_meaning() {
        let meant = |meaning: Meaning| -> Vec<u16> {
            let all = (100..=599).filter(|code| {
                Meaning::of(StatusCode::from_u16(*code).expect("a status"), false) == meaning
            });
            all.filter(|code| *code >= 200).collect()
        };
        assert_eq!(meant(Meaning::Delivered), (200..300).collect::<Vec<_>>());
        assert_eq!(meant(Meaning::Unavailable), [502, 503]);
        assert_eq!(meant(Meaning::Misconfigured), [401, 403, 404, 405, 407]);
        let transient = meant(Meaning::Transient);
        let named = [
            408, 425, 429, 500, 501, 504, 507, 511, 300, 301, 302, 304, 307, 308,
        ];
        assert!(
            named.iter().all(|code| transient.contains(code)),
            "{transient:?}"
        );
        assert_eq!(transient.len(), 100 + 3 + 98);
        assert_eq!(meant(Meaning::Rejected).len(), 100 - 3 - 5);
        assert_eq!(
            Meaning::of(StatusCode::TOO_MANY_REQUESTS, true),
            Meaning::Throttled
        );
    }

    #[test]
    fn a_setting_changes_meanings() {
        let statuses: Statuses =
            "404=reject, 5xx=transient,503=unavailable,429=postpone,409=delivered"
                .parse()
                .expect("valid");
        let meaning = |code| statuses.meaning(StatusCode::from_u16(code).expect("a status"), false);
        let expected = [
            (404, Meaning::Rejected),
            (500, Meaning::Transient),
            (502, Meaning::Transient),
            (503, Meaning::Unavailable),
        ];
        assert_eq!(expected.map(|(code, _)| (code, meaning(code))), expected);
        assert_eq!(
            [429, 409, 401, 200].map(meaning),
            [
                Meaning::Throttled,
                Meaning::Delivered,
                Meaning::Misconfigured,
                Meaning::Delivered
            ]
        );
    }

    #[test]
    fn an_invalid_setting_is_explained() {
        for (text, why) in [
            ("", "is not CODE=MEANING"),
            ("404", "is not CODE=MEANING"),
            ("99=reject", "no code from 200 to 599"),
            ("600=reject", "no code from 200 to 599"),
            ("6xx=reject", "no code from 200 to 599"),
            ("=reject", "no code from 200 to 599"),
            ("404=dead", "\"dead\" is no meaning"),
            ("404=", "\"\" is no meaning"),
            ("404=reject,404=transient", "404 has two meanings"),
            ("5xx=reject,5xx=reject", "5xx has two meanings"),
        ] {
            let error = text.parse::<Statuses>().expect_err(text).to_string();
            assert!(
                error.contains(why) && error.contains("write e.g. 404=reject,5xx=transient"),
                "{error}"
            );
        }
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
        assert_eq!(
            wait("Fri, 01 Jan 2027 00:01:00 GMT"),
            Some(Duration::from_secs(60))
        );
        for text in [
            "",
            "soon",
            "-1",
            "1.5",
            "0",
            "Thu, 31 Dec 2026 00:00:00 GMT",
        ] {
            assert_eq!(wait(text), None, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
