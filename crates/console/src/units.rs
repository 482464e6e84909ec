//! Durations, times and sizes on the command line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses a duration: 250ms, 5s, 1m 30s. Refuses `M`, which stands for months in the library that
/// parses durations: who writes 30M probably means minutes.
pub fn time(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    if units.any(|unit| unit == "M") {
        return Err("M is no unit of time; write 30m for minutes, 30d for days".to_owned());
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 250ms, 5s or 1m"))
}

/// The error of a time after the last one that can be written as a date.
const TOO_LATE: &str =
    "it is after 9999-12-30T22:00:00Z, the latest time; a number is Unix seconds, not ms";

/// Parses a point in time: RFC 3339, e.g. 2026-12-24T18:00:00+01:00, or Unix seconds, which may have a
/// fraction.
pub fn instant(text: &str) -> Result<SystemTime, String> {
    const WRITE: &str = "write 2026-12-24T18:00:00Z, with another zone +01:00, or Unix seconds";
    if let Some(since) = unix_seconds(text) {
        let latest = u64::try_from(jiff::Timestamp::MAX.as_second()).unwrap_or_default();
        let at = since
            .filter(|since| since.as_secs() <= latest)
            .and_then(|since| UNIX_EPOCH.checked_add(since));
        return at.ok_or_else(|| TOO_LATE.to_owned());
    }
    if let Some(odd) = odd_clock(text) {
        return Err(format!("{odd}; {WRITE}"));
    }
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed.map(SystemTime::from).map_err(|_| {
        if text.starts_with("9999-12-3") {
            TOO_LATE
        } else {
            WRITE
        }
        .to_owned()
    })
}

/// Returns what is wrong with the time of day, although the parser takes it: it reads the second 60 as
/// 59, because the time may be that of a leap second, and it reads offsets of 24 and 25 hours, which RFC
/// 3339 does not allow.
fn odd_clock(text: &str) -> Option<&'static str> {
    // The name of a zone may follow in brackets.
    let text = text.split('[').next().unwrap_or_default();
    let (_, clock) = text.split_once(['T', 't', ' '])?;
    let seconds = match clock.contains(':') {
        true => clock.get(6..8),
        false => clock.get(4..6),
    };
    if seconds == Some("60") {
        return Some("a minute has no second 60");
    }
    let (_, offset) = clock.rsplit_once(['+', '-'])?;
    let hours: u8 = offset.get(..2)?.parse().ok()?;
    (hours > 23).then_some("a zone is less than 24 hours from UTC")
}

/// Parses a number of seconds. The outer value is none if the text is no number, the inner one if the
/// number is too large.
fn unix_seconds(text: &str) -> Option<Option<Duration>> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if are_digits(whole) && are_digits(fraction) {
        let nanos = format!("{fraction:0<9}")
            .get(..9)
            .and_then(|nanos| nanos.parse().ok())
            .unwrap_or(0);
        return Some(
            whole
                .parse()
                .ok()
                .map(|seconds| Duration::new(seconds, nanos)),
        );
    }
    // A program may write a number as 1.8e9.
    let has_exponent = text.starts_with(|c: char| c.is_ascii_digit())
        && text.contains(['e', 'E'])
        && !text.contains(':');
    has_exponent.then(|| {
        text.parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    })
}

/// Parses a number of bytes: 65536, 64KiB, 8MiB.
pub fn bytes(text: &str) -> Result<usize, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
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
        for text in [
            "2026-12-24T18:00:00+01:00",
            "2026-12-24T17:00:00Z",
            "2026-12-24 17:00:00Z",
            "1798131600",
            "1798131600.0",
            "1.7981316e9",
        ] {
            assert_eq!(instant(text), Ok(at), "{text}");
        }
        assert_eq!(
            instant("1798131600.25"),
            Ok(at + Duration::from_millis(250))
        );
        assert_eq!(instant("1798131600.000000000999"), Ok(at));
        // A date and a number have the same latest time.
        for latest in ["9999-12-30T22:00:00Z", "253402207200"] {
            assert_eq!(
                instant(latest),
                Ok(UNIX_EPOCH + Duration::from_secs(253_402_207_200))
            );
        }
        for late in [
            "9999-12-31T00:00:00Z",
            "253402214400",
            "253402207201",
            "1e300",
        ] {
            assert_eq!(instant(late), Err(TOO_LATE.to_owned()), "{late}");
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
            "1798131600.",
            ".5",
            "1.2.3",
            "1e",
            "0x10",
        ] {
            assert!(instant(text).is_err(), "{text}");
        }
        for (text, why) in [
            ("2026-12-24T18:00:60Z", "no second 60"),
            ("2026-12-24 18:00:60+01:00", "no second 60"),
            ("20261224T180060Z", "no second 60"),
            ("2026-12-24T18:00:00+25:00", "less than 24 hours"),
            (
                "2026-12-24T18:00:00+25:00[America/Port-au-Prince]",
                "less than 24 hours",
            ),
            ("2026-12-24T18:00:00.5-24:00", "less than 24 hours"),
        ] {
            let error = instant(text).expect_err("it is no time");
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(instant("2026-12-24T18:00:00-23:30").is_ok());
    }

    /// Story: `pause --for 30M` paused for 30 months.
    #[test]
    fn a_capital_m_is_no_unit_of_time() {
        for (text, seconds) in [
            ("250ms", 0.25),
            ("30m", 1800.0),
            ("1h30m", 5400.0),
            ("1m 30s", 90.0),
            ("2days", 172_800.0),
            ("10years", 315_576_000.0),
        ] {
            let found = time(text).map(|time| time.as_secs_f64());
            assert_eq!(found, Ok(seconds), "{text}");
        }
        for text in ["30M", "1h 30M", "1M30s", "1M 2d"] {
            let error = time(text).expect_err("it has an M");
            assert!(error.contains("30m for minutes"), "{text}: {error}");
        }
        for text in ["", "5", "5x", "30MS", "1H"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (text, expected) in [
            ("65536", 65_536),
            ("64KiB", 65_536),
            ("8MiB", 8 << 20),
            ("8 m", 8 << 20),
            ("0", 0),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "1.5MiB",
            "8MB",
            "99999999999999999999",
            "18446744073709551615k",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
