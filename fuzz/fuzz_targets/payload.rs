//! Any bytes as an event: what is taken comes out of its envelope as it went in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seriatim::consume::Envelope;
use seriatim::event::{EVENT_BYTES_MAX, Event, IntoEvent, Json, ObjectName};

fuzz_target!(|bytes: &[u8]| {
    let Ok(payload) = Json::new(bytes.to_vec()).into_event(EVENT_BYTES_MAX) else { return };
    let object = ObjectName::new("work:1").expect("a sound name");
    let event = Event { id: 2, prev: 1, object, payload };
    let mut line = Vec::new();
    event.write_envelope(&mut line);
    assert!(!line.contains(&b'\n'));
    let read = Envelope::parse(&line).expect("an envelope");
    let spaced: Vec<u8> = bytes.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect();
    assert_eq!(read.event.get().as_bytes(), spaced.trim_ascii());
});
