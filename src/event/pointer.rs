//! JSON pointers (RFC 6901) into a JSON text. The part that a pointer finds is returned byte for
//! byte.

use std::fmt;

use serde_core::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON pointer (RFC 6901). It finds a part of a document and returns it as text, byte for byte.
///
/// ```
/// use seriatim::event::Pointer;
///
/// let pointer: Pointer = "/order/total".parse()?;
/// let event = serde_json::from_str(r#"{"order":{"total":1.50}}"#)?;
/// assert_eq!(pointer.find(event).map(|total| total.get()), Some("1.50"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// The reason why a text is not a JSON pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The text does not begin with a slash.
    #[error("a JSON pointer begins with a slash: /{0}")]
    NoSlash(String),
    /// A tilde is used other than in `~0` or `~1`.
    #[error("in a JSON pointer, ~ is written ~0 and / is written ~1")]
    Tilde,
}

impl Pointer {
    /// Returns a pointer to the top-level member with this name.
    #[must_use]
    pub fn member(name: &str) -> Self {
        let escaped = name.replace('~', "~0").replace('/', "~1");
        Self {
            text: format!("/{escaped}"),
            tokens: vec![name.to_owned()],
        }
    }

    /// Returns a pointer to another member of the object that has the member at this pointer. None
    /// if this pointer is for the whole document.
    pub(crate) fn sibling(&self, name: &str) -> Option<Self> {
        let (_, parents) = self.tokens.split_last()?;
        let mut sibling = Self::member(name);
        let (parent_text, _) = self.text.rsplit_once('/')?;
        sibling.text.insert_str(0, parent_text);
        sibling.tokens.splice(0..0, parents.iter().cloned());
        Some(sibling)
    }

    /// Returns the parts of the pointer, unescaped: each is the name of a member or the position of
    /// an item, from the outside to the inside.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(String::as_str)
    }

    /// Returns the part of the document at this pointer. If several members have the same name, the
    /// last one counts, as in most JSON parsers.
    #[must_use]
    pub fn find<'a>(&self, document: &'a RawValue) -> Option<&'a RawValue> {
        self.tokens.iter().try_fold(document, |part, token| {
            let mut reader = serde_json::Deserializer::from_str(part.get());
            match part.get().as_bytes().first() {
                Some(b'{') => reader.deserialize_map(Member(token)).ok().flatten(),
                Some(b'[') => reader.deserialize_seq(Item(index(token)?)).ok().flatten(),
                _ => None,
            }
        })
    }
}

impl std::str::FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        let Some(rest) = text.strip_prefix('/') else {
            return match text {
                "" => Ok(Self {
                    text: String::new(),
                    tokens: Vec::new(),
                }),
                _ => Err(PointerError::NoSlash(text.to_owned())),
            };
        };
        let tokens = rest.split('/').map(|token| {
            if token
                .split('~')
                .skip(1)
                .any(|part| !part.starts_with(['0', '1']))
            {
                return Err(PointerError::Tilde);
            }
            Ok(token.replace("~1", "/").replace("~0", "~"))
        });
        Ok(Self {
            text: text.to_owned(),
            tokens: tokens.collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            f.write_str("''")
        } else {
            f.write_str(&self.text)
        }
    }
}

/// Parses an array index as RFC 6901 defines it. Leading zeros are not allowed.
fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with('0');
    (plain && token.bytes().all(|b| b.is_ascii_digit()))
        .then(|| token.parse().ok())
        .flatten()
}

struct Member<'t>(&'t str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(same) = map.next_key_seed(Same(self.0))? {
            if same {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

struct Item(usize);

impl<'de> Visitor<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = seq.next_element()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// Compares a name with the name of a member after the escapes of the member's name are decoded.
struct Same<'t>(&'t str);

impl<'de> DeserializeSeed<'de> for Same<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Same<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointer: &str, document: &str) -> Option<String> {
        let document = serde_json::from_str(document).expect("JSON");
        pointer
            .parse::<Pointer>()
            .expect("a pointer")
            .find(document)
            .map(|found| found.get().to_owned())
    }

    #[test]
    fn a_part_is_found_byte_for_byte() {
        let document = r#" {"a": {"b" : [1, 2.50,  90071992547409931e0 ]}, "x/y": 1, "m~n": 2, "": 3, "\u0061\u0062": "\u00e9"} "#;
        assert_eq!(find("/a/b/1", document).as_deref(), Some("2.50"));
        assert_eq!(
            find("/a/b/2", document).as_deref(),
            Some("90071992547409931e0")
        );
        assert_eq!(
            find("/a", document).as_deref(),
            Some(r#"{"b" : [1, 2.50,  90071992547409931e0 ]}"#)
        );
        assert_eq!(find("/x~1y", document).as_deref(), Some("1"));
        assert_eq!(find("/m~0n", document).as_deref(), Some("2"));
        assert_eq!(find("/", document).as_deref(), Some("3"));
        assert_eq!(find("/ab", document).as_deref(), Some(r#""\u00e9""#));
        assert_eq!(find("", document).as_deref(), Some(document.trim()));
        for absent in [
            "/b",
            "/a/b/3",
            "/a/b/-",
            "/a/b/01",
            "/a/b/x",
            "/a/b/0/c",
            "/a/b/99999999999999999999",
        ] {
            assert_eq!(find(absent, document), None, "{absent}");
        }
    }

    #[test]
    fn a_sibling_stands_beside_a_member() {
        let pointer = |text: &str| text.parse::<Pointer>().expect("a pointer");
        assert_eq!(
            pointer("/a~1b/c").sibling("x/y"),
            Some(pointer("/a~1b/x~1y"))
        );
        assert_eq!(pointer("/c").sibling("d"), Some(pointer("/d")));
        assert_eq!(pointer("").sibling("d"), None);
    }

    #[test]
    fn the_tokens_are_not_escaped() {
        let tokens = |text: &str| {
            text.parse::<Pointer>()
                .expect(text)
                .tokens()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(tokens("/a~1b/m~0n/0/"), ["a/b", "m~n", "0", ""]);
        assert!(tokens("").is_empty());
    }

    #[test]
    fn of_members_of_one_name_the_last_counts() {
        assert_eq!(
            find("/a", r#"{"a":1,"b":{"a":2},"a":3}"#).as_deref(),
            Some("3")
        );
    }

    #[test]
    fn a_bad_pointer_is_refused() {
        for bad in ["object", "/a~", "/a~2b"] {
            assert!(bad.parse::<Pointer>().is_err(), "{bad}");
        }
    }
}
