//! Finds hidden values in a text, however the text writes them.
//!
//! An error may contain a value as it is, as JSON, as JSON in a string of JSON, in the notation of
//! a programming language, or in a URL. So the text is read in every way that it may be meant.

use std::collections::BTreeSet;

use super::{MASK, SECRET_BYTES_MIN};

/// Maximum number of comparisons of characters for one text. They take less than 0.1 s. A text of 500
/// bytes and 4,000 hidden values need that many.
const COMPARISONS_MAX: usize = 2_000_000;

/// Maximum length of a run of backslashes before an escape. This is enough for a string that is
/// escaped six times.
const BACKSLASHES_MAX: usize = 64;

/// The hidden values of one event.
pub(super) struct Secrets(Vec<Vec<char>>);

/// A way to read the text at a position: the character, and the position behind it.
type Reading = (char, usize);

impl Secrets {
    /// Returns the values of these JSON strings and numbers. Returns none if a string cannot be
    /// decoded.
    pub(super) fn of(leaves: &[&str]) -> Option<Self> {
        let mut secrets = BTreeSet::new();
        for leaf in leaves {
            if leaf.starts_with('"') {
                secrets.insert(serde_json::from_str::<String>(leaf).ok()?);
                continue;
            }
            let unsigned = leaf.trim_start_matches('-');
            secrets.extend([(*leaf).to_owned(), unsigned.to_owned()]);
            // Programs may print 1234.50 as 1234.5, and 1e3 as 1000.
            let parsed = unsigned.parse().ok().filter(|n: &f64| n.is_finite());
            secrets.extend(parsed.map(|parsed| parsed.to_string()));
        }
        secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
        let secrets = secrets.iter().map(|secret| with_single_backslashes(secret));
        Some(Self(secrets.collect()))
    }

    /// Returns the text with a mask in place of each hidden value. Returns none if this would take
    /// too many comparisons.
    pub(super) fn hide_in(&self, text: &str) -> Option<String> {
        let chars: Vec<char> = text.chars().collect();
        let mut left = COMPARISONS_MAX;
        let mut shown = String::with_capacity(text.len());
        // All characters before `hidden_to` that are not yet shown are hidden.
        let mut hidden_to = 0;
        for (at, c) in chars.iter().enumerate() {
            let mut end = at;
            for secret in &self.0 {
                end = end.max(matched(secret, &chars, at, &mut left)?);
            }
            if end > at {
                // Matches that touch or overlap get one mask.
                if at > hidden_to || hidden_to == 0 {
                    shown.push_str(MASK);
                }
                hidden_to = hidden_to.max(end);
            }
            if at >= hidden_to {
                shown.push(*c);
            }
        }
        Some(shown)
    }
}

/// Replaces each run of backslashes by one, because a text may escape a backslash any number of
/// times.
fn with_single_backslashes(secret: &str) -> Vec<char> {
    let mut chars: Vec<char> = secret.chars().collect();
    chars.dedup_by(|a, b| *a == '\\' && *b == '\\');
    chars
}

/// Returns the end of the value if it stands in the text at this position; otherwise returns the
/// position. The beginning of the value is enough if the text is cut behind it. Returns none if no
/// comparisons are left.
fn matched(secret: &[char], text: &[char], start: usize, left: &mut usize) -> Option<usize> {
    // Most positions end here.
    let is_possible = |c: &char| secret.first() == Some(c) || matches!(c, '\\' | '%' | '+');
    if !text.get(start).is_some_and(is_possible) {
        *left = left.checked_sub(1)?;
        return Some(start);
    }
    // A text can be read in more than one way at backslashes and at a percent sign, so there may be
    // several positions behind the last character.
    let mut ways = vec![start];
    let (mut bytes, mut farthest) = (0, start);
    for wanted in secret {
        let mut next = Vec::new();
        while let Some(at) = ways.pop() {
            *left = left.checked_sub(1 + next.len())?;
            for (_, behind) in readings(text, at).filter(|(read, _)| read == wanted) {
                if !next.contains(&behind) {
                    next.push(behind);
                    // One backslash of the value stands for any number of them.
                    if *wanted == '\\' {
                        ways.push(behind);
                    }
                }
            }
            if bytes >= SECRET_BYTES_MIN {
                farthest = farthest.max(cut(text, at).unwrap_or(start));
            }
        }
        if next.is_empty() {
            return Some(farthest);
        }
        ways = next;
        bytes += wanted.len_utf8();
    }
    Some(ways.into_iter().fold(farthest, usize::max))
}

/// Returns the position at which the text ends, or was cut when it was written, if this is here or
/// behind an escape that is incomplete.
fn cut(text: &[char], at: usize) -> Option<usize> {
    let is_part =
        |c: &&char| matches!(**c, '\\' | '%' | 'u' | 'U' | 'x' | '{') || c.is_ascii_hexdigit();
    let end = match text.get(at..) {
        Some(rest @ ['\\' | '%', ..]) => {
            at + rest
                .iter()
                .take(BACKSLASHES_MAX)
                .take_while(is_part)
                .count()
        }
        _ => at,
    };
    matches!(text.get(end), None | Some('…' | '\u{fffd}')).then_some(end)
}

/// Returns all ways to read the text at this position.
fn readings(text: &[char], at: usize) -> impl Iterator<Item = Reading> {
    let (last, end) = backslashes(text, at);
    let plain = text.get(at).copied();
    let readings = [
        plain.filter(|c| *c != '\\').map(|c| (c, at + 1)),
        // As in the query of a URL.
        plain.filter(|c| *c == '+').map(|_| (' ', at + 1)),
        // A run of backslashes is one backslash. The last of them may belong to an escape.
        (end > at).then_some(('\\', end)),
        (last > at).then_some(('\\', last)),
        (end > at).then(|| escaped(text, end)).flatten(),
        percent(text, end),
    ];
    readings.into_iter().flatten()
}

/// Reads a run of backslashes, which may be empty. A URL writes a backslash as `%5C`. Returns the
/// position of the last backslash, and the end of the run.
fn backslashes(text: &[char], start: usize) -> (usize, usize) {
    let (mut last, mut end) = (start, start);
    for _ in 0..BACKSLASHES_MAX {
        let width = match text.get(end..) {
            Some(['\\', ..]) => 1,
            Some(['%', '5', 'C' | 'c', ..]) => 3,
            _ => break,
        };
        (last, end) = (end, end + width);
    }
    (last, end)
}

/// Reads a character as a URL writes its bytes, e.g. `%C3%A9`.
fn percent(text: &[char], start: usize) -> Option<Reading> {
    let mut bytes = Vec::new();
    for at in (start..).step_by(3).take(4) {
        if text.get(at) != Some(&'%') {
            return None;
        }
        bytes.push(u8::try_from(hex(text, at + 1, 2)?).ok()?);
        if let Ok(read) = std::str::from_utf8(&bytes) {
            return Some((read.chars().next()?, at + 3));
        }
    }
    None
}

/// Reads the escape whose backslashes end before `at`.
fn escaped(text: &[char], at: usize) -> Option<Reading> {
    let plain = match text.get(at)? {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '0' => '\0',
        'e' => '\u{1b}',
        'u' | 'x' | 'U' => return coded(text, at),
        other => Some(*other).filter(char::is_ascii_punctuation)?,
    };
    Some((plain, at + 1))
}

/// Reads the code of a character: `u00e9`, `ud83d\ude00`, `u{e9}`, `U000000e9` or `xe9`.
fn coded(text: &[char], at: usize) -> Option<Reading> {
    let digits = match (text.get(at), text.get(at + 1)) {
        (Some('u'), Some('{')) => {
            let digits = text.iter().skip(at + 2).take(7).position(|c| *c == '}')?;
            let code = hex(text, at + 2, digits)?;
            return Some((char::from_u32(code)?, at + 3 + digits));
        }
        (Some('x'), _) => 2,
        (Some('U'), _) => 8,
        _ => 4,
    };
    let (code, end) = (hex(text, at + 1, digits)?, at + 1 + digits);
    if let Some(read) = char::from_u32(code) {
        return Some((read, end));
    }
    let (_, low_at) = backslashes(text, end);
    if low_at == end || text.get(low_at) != Some(&'u') {
        return None;
    }
    let pair = [code, hex(text, low_at + 1, 4)?].map(|half| half as u16);
    let read = char::decode_utf16(pair).next()?.ok()?;
    Some((read, low_at + 5))
}

/// Reads a number of so many hexadecimal digits.
fn hex(text: &[char], at: usize, digits: usize) -> Option<u32> {
    let mut chars = text.get(at..at + digits)?.iter();
    chars.try_fold(0, |number: u32, c| {
        Some(number.wrapping_mul(16).wrapping_add(c.to_digit(16)?))
    })
}
