//! Any bytes as the name of an object: what is taken keeps the rules, and no key of it is a key of
//! something else.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seriatim::event::{NAME_BYTES_MAX, ObjectName};
use seriatim::keys::{Keys, OBJECT_KINDS, SHARED_KINDS};

fuzz_target!(|bytes: &[u8]| {
    let Ok(name) = ObjectName::from_bytes(bytes) else { return };
    assert!((1..=NAME_BYTES_MAX).contains(&bytes.len()));
    assert!(!name.as_str().chars().any(char::is_control));
    if Keys::new().object(name.as_str()).is_ok() {
        for (_, suffix) in OBJECT_KINDS {
            let key = [name.as_str(), suffix].concat();
            assert!(!key.starts_with('{'));
            assert!(SHARED_KINDS.iter().all(|(_, shared)| *shared != key));
        }
    }
});
