//! Errors of Redis in one line, with what to do about them; the same words in every command.

use redis::RedisError;
pub(crate) use seriatim::told::{advice, is_outage};

/// What Redis said, and what to do.
pub(crate) fn told(error: &RedisError) -> String {
    seriatim::told::told(error) + &advice(error)
}
