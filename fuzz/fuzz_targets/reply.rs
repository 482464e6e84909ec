//! Any bytes as the reply of every script: no call panics, and what a call takes can be worked
//! with.
#![no_main]

#[path = "../../tests/support/replies.rs"]
mod replies;

use std::pin::pin;
use std::task::{Context, Waker};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    // Nothing waits: every call is answered at once.
    let calls = pin!(replies::every_call(value));
    assert!(calls.poll(&mut Context::from_waker(Waker::noop())).is_ready());
});
