//! Formats errors of Redis in one line with advice, the same in every command.

use redis::RedisError;
pub(crate) use seriatim::connection::errors::{advice, is_outage};

/// Returns the error message of Redis, with advice.
pub(crate) fn told(error: &RedisError) -> String {
    seriatim::connection::errors::told(error) + &advice(error)
}
