//! Reading what Redis answers, by hand: the types of `redis` for streams are a feature that nothing else here needs.

use redis::Value;

/// The bytes of a string, whichever way Redis sent it.
pub(super) fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        Value::Okay => Some(b"OK".to_vec()),
        _ => None,
    }
}

/// The same as text; bytes that are not UTF-8 become U+FFFD, for these texts are only shown.
pub(super) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A whole number that is not negative.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    }
}

/// The items of an array.
pub(super) fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) | Value::Set(items) => Some(items),
        _ => None,
    }
}

/// An entry of a stream: its id and its fields.
pub(super) type Entry = (String, Vec<(String, Value)>);

/// The entries of a stream as `XRANGE` answers them.
pub(super) fn entries(value: Value) -> Option<Vec<Entry>> {
    let entry = |entry: Value| {
        let [id, flat] = <[Value; 2]>::try_from(array(entry)?).ok()?;
        let mut flat = array(flat)?.into_iter();
        let mut fields = Vec::with_capacity(flat.len() / 2);
        while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
            fields.push((text(&field)?, value));
        }
        Some((text(&id)?, fields))
    };
    array(value)?.into_iter().map(entry).collect()
}

/// The items of an array whose first is this word, without it.
pub(super) fn after(status: &str, value: Value) -> Result<Vec<Value>, String> {
    let mut items = array(value).ok_or("no array")?.into_iter();
    match items.next().as_ref().and_then(text) {
        Some(word) if word == status => Ok(items.collect()),
        Some(word) => Err(format!("it begins with {word:?}, not {status:?}")),
        None => Err("it is empty".to_owned()),
    }
}
