//! Random bytes for every parser of outside data: names, payloads, envelopes, replies of scripts.
//! No parser panics, and every accepted value has the properties of its type. A failure prints the
//! shortest failing input found. The fuzz targets in `fuzz/` test the same properties without end.
#![allow(unreachable_pub)]

#[path = "../support/replies.rs"]
mod replies;

use proptest::prelude::*;
use proptest::sample::select;
use redis::Value;
use replies::every_call;
use seriatim::consume::Envelope;
use seriatim::event::{
    EVENT_BYTES_MAX, Event, EventError, IntoEvent, Json, NAME_BYTES_MAX, ObjectName,
};
use seriatim::keys::Keys;

/// Generates names from pieces of names and keys, and from bytes that no valid name has.
fn name_bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&[u8]> = vec![
        b"a",
        b":",
        b"{",
        b"}",
        b"\0",
        b"\xff",
        b"events",
        b"event.worker:",
        b"\n",
        "é".as_bytes(),
        b"held",
        b" ",
        b"\x7f",
    ];
    prop_oneof![
        4 => prop::collection::vec(select(pieces), 0..8).prop_map(|pieces| pieces.concat()),
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (500..530usize).prop_map(|len| vec![b'x'; len]),
        1 => Just(vec![b'x'; 65_536]),
    ]
}

/// Generates texts that are JSON, or nearly JSON.
fn payload_bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&[u8]> = vec![
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\"a\"",
        b"\\",
        b"1",
        b"9007199254740993",
        b"-0",
        b"1e999",
        b"true",
        b"nul",
        b"null",
        b" ",
        b"\r\n",
        b"\xff",
        b"\0",
        b"\"\\ud800\"",
        "\"é\"".as_bytes(),
        b"{\"a\":1,\"a\":2}",
    ];
    prop_oneof![
        6 => prop::collection::vec(select(pieces), 0..10).prop_map(|pieces| pieces.concat()),
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1..100_000usize).prop_map(|deep| [vec![b'['; deep], vec![b']'; deep]].concat()),
        1 => (1..100_000usize).prop_map(|deep| b"{\"a\":".repeat(deep)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_name_that_is_taken_keeps_the_rules(bytes in name_bytes()) {
        let name = ObjectName::from_bytes(&bytes);
        let text = std::str::from_utf8(&bytes);
        let is_sound = text.is_ok_and(|text| !text.chars().any(char::is_control)) && (1..=NAME_BYTES_MAX).contains(&bytes.len());
        prop_assert_eq!(name.is_ok(), is_sound, "{:?}", name);
        if let Ok(text) = text {
            prop_assert_eq!(Keys::new().object(text).is_ok(), is_sound && !text.starts_with('{'));
        }
    }

    #[test]
    fn an_event_comes_out_of_its_envelope_as_it_went_in(name in name_bytes(), payload in payload_bytes(), id in 1..1u64 << 53) {
        let Ok(object) = ObjectName::from_bytes(&name) else { return Ok(()) };
        let Ok(payload) = Json::new(payload).into_event(EVENT_BYTES_MAX) else { return Ok(()) };
        let event = Event { id, prev: id - 1, object, payload };
        let mut line = Vec::new();
        event.write_envelope(&mut line);
        prop_assert!(!line.contains(&b'\n'));
        let read = Envelope::parse(&line).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!((read.id, read.prev, &*read.object), (id, id - 1, event.object.as_str()));
        let spaced: Vec<u8> = event.payload.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect();
        prop_assert_eq!(read.event.get().as_bytes(), spaced.trim_ascii());
    }

    #[test]
    fn no_bytes_make_the_envelope_parser_panic(bytes in payload_bytes(), id in any::<u64>()) {
        let _ = Envelope::parse(&bytes);
        let around = [format!("{{\"id\":{id},\"prev\":0,\"object\":\"a\",\"event\":").as_bytes(), &bytes, b"}"].concat();
        if let Ok(envelope) = Envelope::parse(&around) {
            prop_assert!(envelope.id < 1 << 53 && envelope.prev < envelope.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_reply_makes_a_call_panic(reply in reply()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(every_call(reply));
    }
}

#[test]
fn an_event_may_have_as_many_bytes_as_the_limit() {
    let text = |len: usize| Json::new(format!("\"{}\"", "x".repeat(len - 2)));
    assert_eq!(
        text(EVENT_BYTES_MAX)
            .into_event(EVENT_BYTES_MAX)
            .expect("at the limit")
            .len(),
        EVENT_BYTES_MAX
    );
    let refused = text(EVENT_BYTES_MAX + 1).into_event(EVENT_BYTES_MAX);
    assert!(
        matches!(refused, Err(EventError::TooLarge { .. })),
        "{refused:?}"
    );
}

/// Generates words and numbers that occur in replies, and invalid values.
fn piece() -> impl Strategy<Value = Value> {
    let words = vec![
        "ok",
        "lapsed",
        "fenced",
        "counter",
        "held",
        "markers",
        "attached",
        "in_use",
        "renewed",
        "detached",
        "swept",
        "schema",
        "kept",
        "unpushed",
        "id",
        "handler:a",
        "emit:a",
        "0",
        "1",
        "-1",
        "12 1",
        "18446744073709551615",
        "9007199254740991",
        "1 2 3 4 5",
        "",
        " ",
        "nan",
    ];
    prop_oneof![
        6 => select(words).prop_map(|word| Value::BulkString(word.into())),
        3 => select(vec![0, 1, -1, i64::MAX, i64::MIN]).prop_map(Value::Int),
        1 => prop::collection::vec(any::<u8>(), 0..8).prop_map(Value::BulkString),
        1 => select(vec![Value::Nil, Value::Okay, Value::Boolean(true), Value::Double(f64::NAN), Value::SimpleString("ok".to_owned())]),
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    piece().prop_recursive(4, 48, 8, |inner| {
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..3);
        prop_oneof![
            6 => prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::Set),
            1 => pairs.prop_map(Value::Map),
        ]
    })
}

/// Generates any tree of values, or a valid reply in which some values are replaced.
fn reply() -> impl Strategy<Value = Value> {
    let text = |text: &str| Value::BulkString(text.into());
    let entry = vec![text("0"), text("a"), text("12 1"), text("7"), text("{}")];
    let advanced = vec![
        text("ok"),
        Value::Int(-1),
        Value::Int(0),
        text("held"),
        Value::Array(vec![Value::Array(entry.clone())]),
        Value::Array(vec![]),
    ];
    let changed = (
        prop::collection::vec((0..6usize, piece()), 0..3),
        prop::collection::vec((0..5usize, piece()), 0..3),
    )
        .prop_map(move |(outer, inner)| {
            let (mut advanced, mut entry) = (advanced.clone(), entry.clone());
            inner.into_iter().for_each(|(at, piece)| entry[at] = piece);
            advanced[4] = Value::Array(vec![Value::Array(entry)]);
            outer
                .into_iter()
                .for_each(|(at, piece)| advanced[at] = piece);
            Value::Array(advanced)
        });
    let begun = |words: &[&'static str], rest: BoxedStrategy<Vec<Value>>| {
        (select(words.to_vec()), rest).prop_map(|(word, rest)| {
            Value::Array([vec![Value::BulkString(word.into())], rest].concat())
        })
    };
    let words = [
        "ok", "attached", "in_use", "renewed", "detached", "swept", "fenced", "lapsed", "counter",
        "schema", "kept",
    ];
    // Generates the counts of emits, valid and invalid.
    let number = || {
        select(vec![
            "0",
            "7",
            "18446744073709551615",
            "18446744073709551616",
            "-1",
            "",
            "a",
        ])
    };
    let emitted = (number(), number())
        .prop_map(|(events, bytes)| Value::BulkString(format!("{events} {bytes}").into()));
    let field = select(vec![
        "id",
        "handler:a",
        "once:a",
        "emit:a",
        "emit:b",
        "emit:",
        "",
    ]);
    let kept = prop::collection::vec((field, prop_oneof![2 => emitted, 1 => piece()]), 0..5)
        .prop_map(|fields| {
            fields
                .into_iter()
                .flat_map(|(field, value)| [Value::BulkString(field.into()), value])
                .collect::<Vec<_>>()
        });
    let plain = prop::collection::vec(tree(), 0..6).boxed();
    prop_oneof![1 => tree(), 2 => changed, 2 => begun(&words, plain), 1 => begun(&["kept", "unpushed", "other"], kept.boxed())]
}
