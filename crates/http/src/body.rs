//! The body and the headers of a request.

use std::fmt::Write as _;
use std::str::FromStr;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use seriatim::event::{Event, type_of};

/// The ASCII characters that are percent-encoded in the value of a header, as the HTTP binding of
/// CloudEvents requires (section 3.1.3.2). All characters beyond ASCII are encoded, too.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Maximum length of an event's type that becomes the type of the CloudEvent.
const TYPE_BYTES_MAX: usize = 512;

/// The type of the CloudEvent if the event has no type, or one that is too long.
const TYPE: &str = "seriatim.event";

/// The form in which events are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// One envelope `{"id":12,"prev":7,"object":"work:1","event":{…}}`, or an array of envelopes.
    #[default]
    Envelope,
    /// CloudEvents 1.0: one event in binary mode, or an array of events in batched mode.
    CloudEvents,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "envelope" => Ok(Self::Envelope),
            "cloudevents" => Ok(Self::CloudEvents),
            _ => Err(format!(
                "the format {text:?} does not exist; the formats are envelope and cloudevents"
            )),
        }
    }
}

/// The body and the headers of a request, without its signature.
pub(super) struct Message {
    pub(super) body: Bytes,
    pub(super) headers: HeaderMap,
    /// The message id of Standard Webhooks: the id of the event, or the ids of the first and the
    /// last event.
    pub(super) id: String,
}

/// Returns the message for these events of one object. `events` must have at least one event.
///
/// - `as_list`: whether even a single event is sent as a list
/// - `attempt`: the number of the first event's attempt, counted from 1
/// - `source`: the attribute `source` of the CloudEvents
pub(super) fn message(
    format: Format,
    events: &[Event],
    as_list: bool,
    attempt: u32,
    source: &str,
) -> Message {
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return Message {
            body: Bytes::new(),
            headers: HeaderMap::new(),
            id: String::new(),
        };
    };
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: String| {
        // The values are digits, or percent-encoded. So they are always valid values of a header.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let object = utf8_percent_encode(first.object.as_str(), ENCODED).to_string();
    set("seriatim-id", first.id.to_string());
    set("seriatim-prev", first.prev.to_string());
    set("seriatim-attempt", attempt.to_string());
    if as_list {
        set("seriatim-events", events.len().to_string());
    }
    let (body, content_type) = match (format, as_list) {
        (Format::Envelope, false) => (envelope(first), "application/json"),
        (Format::Envelope, true) => (
            list(events, |event, out| event.write_envelope(out)),
            "application/json",
        ),
        (Format::CloudEvents, false) => {
            set("ce-specversion", "1.0".to_owned());
            set("ce-id", first.id.to_string());
            set(
                "ce-source",
                percent_encode(source.as_bytes(), ENCODED).to_string(),
            );
            set(
                "ce-type",
                utf8_percent_encode(&kind(first), ENCODED).to_string(),
            );
            set("ce-subject", object.clone());
            set("ce-prev", first.prev.to_string());
            (first.payload.clone(), "application/json")
        }
        (Format::CloudEvents, true) => (
            list(events, |event, out| cloud_event(event, source, out)),
            "application/cloudevents-batch+json",
        ),
    };
    set("seriatim-object", object);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut id = first.id.to_string();
    if as_list {
        let _ = write!(id, "-{}", last.id);
    }
    Message { body, headers, id }
}

fn envelope(event: &Event) -> Bytes {
    let mut out = Vec::with_capacity(event.payload.len() + 64 + event.object.as_str().len());
    event.write_envelope(&mut out);
    out.into()
}

fn list(events: &[Event], write: impl Fn(&Event, &mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(events.iter().map(|event| event.payload.len() + 128).sum());
    out.push(b'[');
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(event, &mut out);
    }
    out.push(b']');
    out.into()
}

/// Appends the event in the JSON format of CloudEvents. Integers of a CloudEvent have only 32 bits,
/// so `prev` is a text, like `id`.
fn cloud_event(event: &Event, source: &str, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to a Vec and serializing a string cannot fail.
    let _ = write!(
        out,
        "{{\"specversion\":\"1.0\",\"id\":\"{}\",\"prev\":\"{}\",\"source\":",
        event.id, event.prev
    );
    let _ = serde_json::to_writer(&mut *out, source);
    out.extend_from_slice(b",\"type\":");
    let _ = serde_json::to_writer(&mut *out, &kind(event));
    out.extend_from_slice(b",\"subject\":");
    let _ = serde_json::to_writer(&mut *out, event.object.as_str());
    out.extend_from_slice(b",\"datacontenttype\":\"application/json\",\"data\":");
    out.extend_from_slice(&event.payload);
    out.push(b'}');
}

/// Returns the type of the CloudEvent.
fn kind(event: &Event) -> String {
    let found =
        type_of(&event.payload).filter(|kind| !kind.is_empty() && kind.len() <= TYPE_BYTES_MAX);
    found.unwrap_or_else(|| TYPE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim::event::ObjectName;

    fn event(id: u64, object: &str, payload: &'static str) -> Event {
        Event {
            id,
            prev: id - 1,
            object: ObjectName::new(object).expect("a name"),
            payload: payload.into(),
        }
    }

    fn header<'a>(message: &'a Message, name: &str) -> &'a str {
        message
            .headers
            .get(name)
            .map_or("", |value| value.to_str().expect("text"))
    }

    #[test]
    fn one_event_is_one_envelope() {
        let message = message(
            Format::Envelope,
            &[event(
                7,
                "é \"%\n/a".replace('\n', "").as_str(),
                "{\"a\":1}",
            )],
            false,
            3,
            "",
        );
        assert_eq!(
            message.body,
            r#"{"id":7,"prev":6,"object":"é \"%/a","event":{"a":1}}"#
        );
        let found = [
            "seriatim-id",
            "seriatim-prev",
            "seriatim-object",
            "seriatim-attempt",
            "seriatim-events",
            "content-type",
        ];
        assert_eq!(
            found.map(|name| header(&message, name)),
            ["7", "6", "%C3%A9%20%22%25/a", "3", "", "application/json"]
        );
        assert_eq!(message.id, "7");
    }

    #[test]
    fn a_list_has_the_envelopes_in_order() {
        let events = [event(7, "a", "1"), event(8, "a", "2")];
        let both = message(Format::Envelope, &events, true, 1, "");
        assert_eq!(
            both.body,
            r#"[{"id":7,"prev":6,"object":"a","event":1},{"id":8,"prev":7,"object":"a","event":2}]"#
        );
        assert_eq!(
            (both.id.as_str(), header(&both, "seriatim-events")),
            ("7-8", "2")
        );
        let one = message(Format::Envelope, &events[..1], true, 1, "");
        assert_eq!(
            (one.id.as_str(), &one.body[..]),
            ("7-7", &br#"[{"id":7,"prev":6,"object":"a","event":1}]"#[..])
        );
    }

    #[test]
    fn a_cloud_event_is_the_event_and_its_attributes() {
        let moved = event(7, "work é", r#"{"type":"mo\u0020ved"}"#);
        let binary = message(
            Format::CloudEvents,
            std::slice::from_ref(&moved),
            false,
            1,
            "/seriatim",
        );
        assert_eq!(binary.body, r#"{"type":"mo\u0020ved"}"#);
        let names = [
            "ce-specversion",
            "ce-id",
            "ce-source",
            "ce-type",
            "ce-subject",
            "ce-prev",
            "content-type",
        ];
        let found = names.map(|name| header(&binary, name));
        assert_eq!(
            found,
            [
                "1.0",
                "7",
                "/seriatim",
                "mo%20ved",
                "work%20%C3%A9",
                "6",
                "application/json"
            ]
        );
        let batched = message(
            Format::CloudEvents,
            &[moved, event(8, "work é", "[1]")],
            true,
            1,
            "/seriatim",
        );
        assert_eq!(
            header(&batched, "content-type"),
            "application/cloudevents-batch+json"
        );
        assert_eq!(
            batched.body,
            concat!(
                r#"[{"specversion":"1.0","id":"7","prev":"6","source":"/seriatim","type":"mo ved","subject":"work é","#,
                r#""datacontenttype":"application/json","data":{"type":"mo\u0020ved"}},"#,
                r#"{"specversion":"1.0","id":"8","prev":"7","source":"/seriatim","type":"seriatim.event","subject":"work é","#,
                r#""datacontenttype":"application/json","data":[1]}]"#
            )
        );
    }
}
