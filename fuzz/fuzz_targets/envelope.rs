//! Any bytes as an envelope: what is taken has sound numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seriatim::consume::Envelope;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(envelope) = Envelope::parse(bytes) {
        assert!(envelope.id < 1 << 53 && envelope.prev < envelope.id);
    }
});
