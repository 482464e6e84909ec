//! Finds hidden values in a text, however the text writes them.
//!
//! An error may contain a value as it is, as JSON, as JSON in a string of JSON, in the notation of
//! a programming language, or in a URL. So each character of a value is compared with a character of
//! the text or with an escape of it.

use std::collections::BTreeSet;
use std::ops::Range;

use super::json::{Leaf, decoded, leaves};
use super::{MASK, SECRET_BYTES_MIN};

/// Maximum number of comparisons of characters for one text. They take less than 0.1 s. A text of 500
/// bytes and 4,000 hidden values need that many.
const COMPARISONS_MAX: usize = 2_000_000;

/// The hidden values of one event.
pub(super) struct Secrets(Vec<Vec<char>>);

/// The result of comparing one character of a value with the text at a position.
enum Compared {
    /// Another character.
    Other,
    /// The same character. The comparison goes on at this position.
    Same(usize),
    /// The text is cut at this position.
    Cut(usize),
}

impl Secrets {
    /// Returns the strings and numbers at these places of an event. Returns none if a string cannot
    /// be decoded.
    pub(super) fn of(event: &[u8], places: &[Range<usize>]) -> Option<Self> {
        let mut secrets = BTreeSet::new();
        let mut add = |value: String| {
            if value.len() >= SECRET_BYTES_MIN {
                secrets.insert(value);
            }
        };
        for leaf in places.iter().flat_map(|place| leaves(event, place.clone())) {
            match leaf {
                Leaf::Text(string) => add(decoded(string)?),
                Leaf::Number(number) => {
                    let number = std::str::from_utf8(number).ok()?;
                    let unsigned = number.trim_start_matches('-');
                    add(number.to_owned());
                    add(unsigned.to_owned());
                    // Programs may print 1234.50 as 1234.5, and 1e3 as 1000.
                    if let Some(parsed) = unsigned
                        .parse::<f64>()
                        .ok()
                        .filter(|parsed| parsed.is_finite())
                    {
                        add(parsed.to_string());
                    }
                }
            }
        }
        Some(Self(
            secrets
                .iter()
                .map(|secret| with_single_backslashes(secret))
                .collect(),
        ))
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
    if !secret.first().is_some_and(|first| {
        text.get(start)
            .is_some_and(|c| c == first || matches!(c, '\\' | '%' | '+'))
    }) {
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
            for compared in [
                literal(*wanted, text, at),
                backslash(*wanted, text, at),
                escaped(*wanted, text, at),
            ] {
                match compared {
                    Compared::Same(behind) if !next.contains(&behind) => {
                        next.push(behind);
                        // One backslash of the value stands for any number of them.
                        if *wanted == '\\' {
                            ways.push(behind);
                        }
                    }
                    Compared::Cut(behind) if bytes >= SECRET_BYTES_MIN => {
                        farthest = farthest.max(behind)
                    }
                    _ => {}
                }
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

/// Returns whether the text ends here, or was cut here when it was written.
fn is_cut(text: &[char], at: usize) -> bool {
    matches!(text.get(at), None | Some('…' | '\u{fffd}'))
}

/// Compares with a character that is not escaped.
fn literal(wanted: char, text: &[char], at: usize) -> Compared {
    let behind = backslashes(text, at).end;
    match text.get(at) {
        _ if wanted == '\\' && behind > at => Compared::Same(behind),
        Some(c) if *c == wanted => Compared::Same(at + 1),
        // As in the query of a URL.
        Some('+') if wanted == ' ' => Compared::Same(at + 1),
        _ if is_cut(text, at) => Compared::Cut(at),
        _ => Compared::Other,
    }
}

/// Compares with a backslash before an escape. The last backslash of the run belongs to this escape.
fn backslash(wanted: char, text: &[char], at: usize) -> Compared {
    let last = backslashes(text, at).last;
    if wanted == '\\' && last > at {
        Compared::Same(last)
    } else {
        Compared::Other
    }
}

/// Compares with an escape: one or more backslashes, or a percent sign.
fn escaped(wanted: char, text: &[char], at: usize) -> Compared {
    match backslashes(text, at).end {
        behind if behind > at && text.get(behind) == Some(&'%') => percent(wanted, text, behind),
        behind if behind > at => after_backslashes(wanted, text, behind),
        _ if text.get(at) == Some(&'%') => percent(wanted, text, at),
        _ => Compared::Other,
    }
}

/// Compares with the bytes of a character as a URL writes them, e.g. `%C3%A9`.
fn percent(wanted: char, text: &[char], start: usize) -> Compared {
    let mut at = start;
    let mut utf8 = [0; 4];
    for byte in wanted.encode_utf8(&mut utf8).bytes() {
        match text.get(at) {
            Some('%') => {}
            _ if is_cut(text, at) => return Compared::Cut(at),
            _ => return Compared::Other,
        }
        match hex(text, at + 1, 2) {
            Ok(found) if found == u32::from(byte) => at += 3,
            Err(Some(cut)) => return Compared::Cut(cut),
            _ => return Compared::Other,
        }
    }
    Compared::Same(at)
}

/// Compares with the escape whose backslashes end before `at`.
fn after_backslashes(wanted: char, text: &[char], at: usize) -> Compared {
    let Some(letter) = text.get(at).filter(|_| !is_cut(text, at)) else {
        return Compared::Cut(at);
    };
    let plain = match letter {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '0' => '\0',
        'e' => '\u{1b}',
        'u' | 'x' | 'U' => return coded(wanted, text, at),
        other if other.is_ascii_punctuation() => *other,
        _ => return Compared::Other,
    };
    if plain == wanted {
        Compared::Same(at + 1)
    } else {
        Compared::Other
    }
}

/// Compares with the code of a character: `u00e9`, `ud83d\ude00`, `u{e9}`, `U000000e9` or `xe9`.
fn coded(wanted: char, text: &[char], at: usize) -> Compared {
    let wanted_code = u32::from(wanted);
    let same = |found: u32, behind: usize| {
        if found == wanted_code {
            Compared::Same(behind)
        } else {
            Compared::Other
        }
    };
    let digits = match (text.get(at), text.get(at + 1)) {
        (Some('u'), Some('{')) => {
            let digits = text
                .iter()
                .skip(at + 2)
                .take(7)
                .take_while(|c| c.is_ascii_hexdigit())
                .count();
            let end = at + 2 + digits;
            return match (hex(text, at + 2, digits), text.get(end)) {
                (Ok(found), Some('}')) => same(found, end + 1),
                _ if is_cut(text, end) => Compared::Cut(end),
                _ => Compared::Other,
            };
        }
        (Some('x'), _) => 2,
        (Some('U'), _) => 8,
        _ => 4,
    };
    let end = at + 1 + digits;
    match hex(text, at + 1, digits) {
        Ok(high @ 0xd800..=0xdbff) => {
            let low_at = backslashes(text, end).end;
            if is_cut(text, low_at) {
                return Compared::Cut(low_at);
            }
            match hex(text, low_at + 1, 4) {
                Ok(low @ 0xdc00..=0xdfff) if low_at > end && text.get(low_at) == Some(&'u') => {
                    same(
                        0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                        low_at + 5,
                    )
                }
                Err(Some(cut)) => Compared::Cut(cut),
                _ => Compared::Other,
            }
        }
        Ok(found) => same(found, end),
        Err(Some(cut)) => Compared::Cut(cut),
        Err(None) => Compared::Other,
    }
}

/// Reads a number of so many hexadecimal digits. The error is the position at which the text is cut;
/// none if there is another character.
fn hex(text: &[char], at: usize, digits: usize) -> Result<u32, Option<usize>> {
    let mut number = 0_u32;
    for at in at..at + digits {
        match text.get(at).and_then(|c| c.to_digit(16)) {
            Some(digit) => number = number.wrapping_mul(16).wrapping_add(digit),
            None => return Err(is_cut(text, at).then_some(at)),
        }
    }
    Ok(number)
}

/// Maximum length of a run of backslashes before an escape. This is enough for a string that is
/// escaped six times.
const BACKSLASHES_MAX: usize = 64;

/// A run of backslashes, which may be empty. A URL writes a backslash as `%5C`.
struct Backslashes {
    /// Position of the last backslash; the beginning if there is none.
    last: usize,
    end: usize,
}

fn backslashes(text: &[char], start: usize) -> Backslashes {
    let mut run = Backslashes {
        last: start,
        end: start,
    };
    for _ in 0..BACKSLASHES_MAX {
        let width = match text.get(run.end..) {
            Some(['\\', ..]) => 1,
            Some(['%', '5', 'C' | 'c', ..]) => 3,
            _ => break,
        };
        run = Backslashes {
            last: run.end,
            end: run.end + width,
        };
    }
    run
}
