//! Any text as the tag of a batch: what is taken is written as it was read, and the ids computed
//! from it are ids.
#![no_main]

use libfuzzer_sys::fuzz_target;
use seriatim::wire::Tag;

fuzz_target!(|text: &str| {
    let Ok(tag) = text.parse::<Tag>() else { return };
    assert_eq!(tag.to_string().parse(), Ok(tag));
    assert!(tag.after(1000, 1).failed().first > tag.first);
});
