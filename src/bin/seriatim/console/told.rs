//! Errors of Redis in one line, with what to do about them; the same words in every command.

use redis::RedisError;
pub(crate) use seriatim::connection::errors::{advice, is_outage};

/// What Redis said, and what to do.
pub(crate) fn told(error: &RedisError) -> String {
    seriatim::connection::errors::told(error) + &advice(error)
}
