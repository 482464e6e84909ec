//! Formats errors of Redis in one line, with advice. Every command uses the same texts.

use redis::RedisError;
pub use seriatim::connection::errors::{advice, is_outage};

/// Returns the error message of Redis, with advice.
pub fn describe(error: &RedisError) -> String {
    seriatim::connection::errors::describe(error) + &advice(error)
}
