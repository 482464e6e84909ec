//! JSON whose members keep their order, because the bytes of an event depend on it.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Returns a member; `None` if there is none.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.members()
            .iter()
            .find(|(member, _)| member == name)
            .map(|(_, value)| value)
    }

    /// Returns the members of an object; none of any other value.
    pub(super) fn members(&self) -> &[(String, Json)] {
        match self {
            Self::Object(members) => members,
            _ => &[],
        }
    }

    /// Returns the name and the value of an object's only member.
    pub(super) fn only(&self) -> (&str, &Json) {
        match self.members() {
            [(name, value)] => (name, value),
            _ => panic!("not one member: {self:?}"),
        }
    }

    pub(super) fn list(&self) -> &[Json] {
        match self {
            Self::List(list) => list,
            _ => panic!("no list: {self:?}"),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => panic!("no text: {self:?}"),
        }
    }

    pub(super) fn number(&self) -> i64 {
        match self {
            Self::Number(number) => number.as_i64().expect("a whole number"),
            _ => panic!("no number: {self:?}"),
        }
    }

    /// Fails if the object has other members than these.
    pub(super) fn has_only(&self, names: &[&str]) {
        let unknown = self
            .members()
            .iter()
            .find(|(name, _)| !names.contains(&name.as_str()));
        assert!(unknown.is_none(), "this runner does not know {unknown:?}");
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => {
                let mut seq = serializer.serialize_seq(Some(list.len()))?;
                list.iter()
                    .try_for_each(|element| seq.serialize_element(element))?;
                seq.end()
            }
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                members
                    .iter()
                    .try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        let number = serde_json::Number::from_f64(value);
        number
            .map(Json::Number)
            .ok_or_else(|| E::custom("no number"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = seq.next_element()? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}
