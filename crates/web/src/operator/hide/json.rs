//! Finds values in a JSON text, as ranges of bytes. No number or string is read and written again.
//!
//! The text is checked first. So the code here only has to find its way through valid JSON. It uses
//! no recursion, and it never leaves the text.

use std::ops::Range;

use serde_json::value::RawValue;
use seriatim::event::Pointer;

/// Returns the ranges of the values at these pointers, sorted, none within another. All members of
/// the same name count. Returns none if the text is not one JSON document.
pub(super) fn places(json: &[u8], pointers: &[Pointer]) -> Option<Vec<Range<usize>>> {
    serde_json::from_slice::<&RawValue>(json).ok()?;
    let start = skip_blank(json, 0);
    let whole = start..value_end(json, start);
    let mut found = Vec::new();
    for pointer in pointers {
        let mut places = vec![whole.clone()];
        for token in pointer.tokens() {
            places = places
                .into_iter()
                .flat_map(|place| children(json, place.start, token))
                .collect();
        }
        found.append(&mut places);
    }
    // A value that begins at the same byte as another one is the same value.
    found.sort_by_key(|place| place.start);
    let mut end = 0;
    found.retain(|place| {
        let is_outside = place.start >= end;
        end = end.max(place.end);
        is_outside
    });
    Some(found)
}

/// A string or a number, as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaf<'a> {
    /// A string with its quotes. Names of members count as strings.
    Text(&'a [u8]),
    Number(&'a [u8]),
}

/// Returns all strings and numbers within this value.
pub(super) fn leaves(json: &[u8], place: Range<usize>) -> Vec<Leaf<'_>> {
    let mut leaves = Vec::new();
    let mut at = place.start;
    while at < place.end {
        let start = at;
        at += 1;
        match json.get(start) {
            Some(b'"') => {
                at = string_end(json, start);
                leaves.push(Leaf::Text(json.get(start..at).unwrap_or_default()));
            }
            Some(b'-' | b'0'..=b'9') => {
                at = value_end(json, start);
                leaves.push(Leaf::Number(json.get(start..at).unwrap_or_default()));
            }
            _ => {}
        }
    }
    leaves
}

/// Returns the values with this name or this position, in the object or array that begins at
/// `start`.
fn children(json: &[u8], start: usize, token: &str) -> Vec<Range<usize>> {
    let is_object = match json.get(start) {
        Some(b'{') => true,
        Some(b'[') => false,
        _ => return Vec::new(),
    };
    let index = index(token);
    let mut found = Vec::new();
    let mut at = skip_blank(json, start + 1);
    for position in 0..json.len() {
        if matches!(json.get(at), None | Some(b'}' | b']')) {
            break;
        }
        let mut is_same = index == Some(position);
        if is_object {
            let name_end = string_end(json, at);
            is_same = json
                .get(at..name_end)
                .and_then(decoded)
                .is_some_and(|name| name == token);
            // The colon stands between the name and the value.
            at = skip_blank(json, skip_blank(json, name_end) + 1);
        }
        let end = value_end(json, at);
        if is_same {
            found.push(at..end);
        }
        // A comma, or the end of the object or array.
        let behind = skip_blank(json, end);
        if json.get(behind) != Some(&b',') {
            break;
        }
        at = skip_blank(json, behind + 1);
    }
    found
}

/// Parses an array index as RFC 6901 defines it. Leading zeros are not allowed.
fn index(token: &str) -> Option<usize> {
    let is_plain = token == "0" || !token.starts_with('0');
    (is_plain && token.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| token.parse().ok())
        .flatten()
}

/// Decodes a string with its quotes; none if it has half of a surrogate pair.
pub(super) fn decoded(string: &[u8]) -> Option<String> {
    serde_json::from_slice(string).ok()
}

fn skip_blank(json: &[u8], at: usize) -> usize {
    let rest = json.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count()
}

/// Returns the position after the string that begins at `start`.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Returns the position after the value that begins at `start`.
fn value_end(json: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at),
            b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
            // The end of the object or array around a number or a word.
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => (depth, at) = (depth - 1, at + 1),
            b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return at;
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_numbers_are_found() {
        let json = br#"{"a\"":[1.50,-2e+3,true,"x,\\",null,{}]}"#;
        let text = |text: &'static str| Leaf::Text(text.as_bytes());
        let number = |text: &'static str| Leaf::Number(text.as_bytes());
        let expected = [
            text(r#""a\"""#),
            number("1.50"),
            number("-2e+3"),
            text(r#""x,\\""#),
        ];
        assert_eq!(leaves(json, 0..json.len()), expected);
        assert_eq!(leaves(b"-12", 0..3), [number("-12")]);
    }
}
