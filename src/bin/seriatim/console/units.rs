//! Durations, times and sizes on the command line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses a duration: 250ms, 5s, 1m 30s.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 250ms, 5s or 1m"))
}

/// The last second of the year 9999.
const SECONDS_MAX: u64 = 253_402_300_799;

/// Parses a point in time: RFC 3339, e.g. 2026-12-24T18:00:00+01:00, or Unix seconds.
pub(crate) fn instant(text: &str) -> Result<SystemTime, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX);
        let at = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        return at.ok_or_else(|| "it is after the year 9999: a number is Unix seconds, not ms".to_owned());
    }
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed.map(SystemTime::from).map_err(|_| "write 2026-12-24T18:00:00Z, with another zone +01:00, or Unix seconds".to_owned())
}

/// Parses a number of bytes: 65536, 64KiB, 8MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        _ => None,
    };
    let product = factor.and_then(|factor| number.parse::<usize>().ok()?.checked_mul(factor));
    product.ok_or_else(|| "write 65536, 64KiB or 8MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rfc_3339_or_unix_seconds() {
        let at = UNIX_EPOCH + Duration::from_secs(1_798_131_600);
        for text in ["2026-12-24T18:00:00+01:00", "2026-12-24T17:00:00Z", "2026-12-24 17:00:00Z", "1798131600"] {
            assert_eq!(instant(text), Ok(at), "{text}");
        }
        for text in [
            "",
            "soon",
            "2026-12-24",
            "2026-12-24T18:00:00",
            "-1",
            "99999999999999999999",
            "18446744073709551615",
            "1798131600000",
        ] {
            assert!(instant(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (text, expected) in [("65536", 65_536), ("64KiB", 65_536), ("8MiB", 8 << 20), ("8 m", 8 << 20), ("0", 0)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "8MB", "99999999999999999999", "18446744073709551615k"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
