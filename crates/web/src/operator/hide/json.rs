//! Finds values in a JSON text, as parts of this text. No number or string is read and written
//! again.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use seriatim::event::Pointer;

/// Maximum depth of the values within a hidden value. Each level is read once more than the level
/// around it.
const DEPTH_MAX: usize = 128;

/// A member of an object with its name, or an item of an array.
type Child<'a> = (Option<&'a RawValue>, &'a RawValue);

/// Returns the values at these pointers in their order in the text, none within another. All
/// members of the same name count. Returns none if the text is not one JSON document.
pub(super) fn places<'a>(json: &'a [u8], pointers: &[Pointer]) -> Option<Vec<&'a RawValue>> {
    let whole: &RawValue = serde_json::from_slice(json).ok()?;
    let mut found = Vec::new();
    for pointer in pointers {
        let mut values = vec![whole];
        for token in pointer.tokens() {
            let mut next = Vec::new();
            for value in values {
                next.extend(at(value, token)?);
            }
            values = next;
        }
        found.append(&mut values);
    }
    // A value that begins at the same byte as another one is the same value.
    found.sort_by_key(|value| start(json, value));
    let mut end = 0;
    found.retain(|value| {
        let is_outside = start(json, value) >= end;
        end = end.max(start(json, value) + value.get().len());
        is_outside
    });
    Some(found)
}

/// Returns the position of a part of the text.
pub(super) fn start(json: &[u8], part: &RawValue) -> usize {
    (part.get().as_ptr() as usize).saturating_sub(json.as_ptr() as usize)
}

/// Returns all strings and numbers within these values, as they are written. Names of members count
/// as strings. Returns none if the values are nested too deeply.
pub(super) fn leaves<'a>(values: &[&'a RawValue]) -> Option<Vec<&'a str>> {
    let (mut leaves, mut level) = (Vec::new(), values.to_vec());
    for _ in 0..DEPTH_MAX {
        for value in std::mem::take(&mut level) {
            if value
                .get()
                .starts_with(|c| matches!(c, '"' | '-' | '0'..='9'))
            {
                leaves.push(value.get());
            }
            for (name, child) in children(value)? {
                leaves.extend(name.map(RawValue::get));
                level.push(child);
            }
        }
    }
    level.is_empty().then_some(leaves)
}

/// Returns the values with this name or this position in an object or array.
fn at<'a>(value: &'a RawValue, token: &str) -> Option<Vec<&'a RawValue>> {
    // As RFC 6901 defines it, an index has no leading zeros.
    let index = token
        .parse()
        .ok()
        .filter(|n: &usize| n.to_string() == token);
    let is_at = |position: usize| index == Some(position);
    // A name that has half of a surrogate pair has no text, so no pointer leads to it.
    let is_named = |name: &RawValue| {
        serde_json::from_str::<String>(name.get()).is_ok_and(|name| name == token)
    };
    let children = children(value)?.into_iter().enumerate();
    let found = children.filter(|(position, (name, _))| name.map_or(is_at(*position), is_named));
    Some(found.map(|(_, (_, child))| child).collect())
}

/// Returns the members of an object, or the items of an array.
fn children(value: &RawValue) -> Option<Vec<Child<'_>>> {
    let mut json = serde_json::Deserializer::from_str(value.get());
    match value.get().as_bytes().first() {
        Some(b'{') => json.deserialize_map(Children).ok(),
        Some(b'[') => json.deserialize_seq(Children).ok(),
        _ => Some(Vec::new()),
    }
}

struct Children;

impl<'de> Visitor<'de> for Children {
    type Value = Vec<Child<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut children = Vec::new();
        while let Some((name, member)) = map.next_entry()? {
            children.push((Some(name), member));
        }
        Ok(children)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut children = Vec::new();
        while let Some(item) = seq.next_element()? {
            children.push((None, item));
        }
        Ok(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_numbers_are_found() {
        let json = r#"{"a\"":[1.50,-2e+3,true,"x,\\",null,{}]}"#;
        let found = |json| leaves(&[serde_json::from_str(json).expect("JSON")]);
        let expected = [r#""a\"""#, "1.50", "-2e+3", r#""x,\\""#];
        assert_eq!(found(json).as_deref(), Some(&expected[..]));
        assert_eq!(found("-12").as_deref(), Some(&["-12"][..]));
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(found(&deep), None);
    }
}
