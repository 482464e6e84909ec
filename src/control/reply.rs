//! Parses replies of Redis by hand. The stream types of the `redis` crate belong to an optional
//! feature, and nothing else in this crate needs this feature.

use std::collections::BTreeMap;

use redis::aio::ConnectionLike;
use redis::{ScriptInvocation, Value};
use serde_json::value::RawValue;

use super::ControlError;
use super::rows::Fields;
pub(super) use crate::sink::as_json;
use crate::wire::{Reply, ScriptError};

/// Returns the time of Redis, ms since the epoch.
pub(super) async fn now_ms<C: ConnectionLike>(conn: &mut C) -> Result<u64, ControlError> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME")
        .query_async(conn)
        .await
        .map_err(ControlError::redis("TIME"))?;
    Ok(seconds * 1000 + micros / 1000)
}

/// Returns the bytes of a string reply. Redis sends strings in either of two encodings.
pub(super) fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        Value::Okay => Some(b"OK".to_vec()),
        _ => None,
    }
}

/// Returns a string reply as text. Bytes that are not UTF-8 become U+FFFD. This does no harm,
/// because the text is only shown.
pub(super) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a reply that is a whole number and not negative.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    }
}

/// Returns the items of an array.
pub(super) fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) | Value::Set(items) => Some(items),
        _ => None,
    }
}

/// An entry of a stream: its id and its fields.
pub(super) type Entry = (String, Fields);

/// Parses the entries of a stream from the reply of `XRANGE`.
pub(super) fn entries(value: Value) -> Option<Vec<Entry>> {
    let entry = |entry: Value| {
        let [id, flat] = <[Value; 2]>::try_from(array(entry)?).ok()?;
        let mut flat = array(flat)?.into_iter();
        let mut fields = Vec::with_capacity(flat.len() / 2);
        while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
            fields.push((text(&field)?, bytes(&value)?));
        }
        Some((text(&id)?, Fields(fields)))
    };
    array(value)?.into_iter().map(entry).collect()
}

/// Returns the time in the id of a stream entry, ms since the epoch.
pub(super) fn ms_of(id: &str) -> u64 {
    id.split('-')
        .next()
        .and_then(|ms| ms.parse().ok())
        .unwrap_or(0)
}

/// Returns whether the text is a complete id of a stream entry.
pub(super) fn is_entry_id(id: &str) -> bool {
    parts(id).is_some()
}

/// Returns one bound of a range that begins after this entry. It serves ranges in both directions.
///
/// Redis refuses a range that begins after the first or the last possible id. No entry has one of
/// these two ids. So a range may begin at such an id instead of after it.
pub(super) fn behind(id: &str) -> String {
    let is_end = parts(id).is_some_and(|parts| parts == (0, 0) || parts == (u64::MAX, u64::MAX));
    if is_end {
        id.to_owned()
    } else {
        format!("({id}")
    }
}

fn parts(id: &str) -> Option<(u64, u64)> {
    let number = |part: &str| {
        part.parse::<u64>()
            .ok()
            .filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (ms, n) = id.split_once('-')?;
    Some((number(ms)?, number(n)?))
}

/// Returns the members of a JSON object, each as text on one line. Empty if the text is not a JSON
/// object.
pub(crate) fn members(text: &str) -> BTreeMap<String, String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    members
        .into_iter()
        .map(|(name, value)| (name, value.get().replace(['\r', '\n'], " ")))
        .collect()
}

/// Calls a script that reads. Returns the elements of the reply after its first word, which must be
/// `status`.
pub(super) async fn ask<C: ConnectionLike>(
    conn: &mut C,
    what: &'static str,
    call: &ScriptInvocation<'_>,
    status: &str,
) -> Result<Reply, ControlError> {
    let answer: Value = call
        .invoke_async(conn)
        .await
        .map_err(ControlError::redis(what))?;
    let wrong = |error: ScriptError| ControlError::reply(what, error.to_string());
    let mut reply = Reply::of(what, answer).map_err(wrong)?;
    match reply.text().map_err(wrong)? {
        word if word == status => Ok(reply),
        word => Err(ControlError::reply(
            what,
            format!("it begins with {word:?}, not {status:?}"),
        )),
    }
}
