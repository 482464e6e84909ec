//! The seeds of random runs, and the numbers of the environment that repeat or lengthen a run.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number in an environment variable.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

/// Returns a seed that no earlier run had.
pub(crate) fn fresh() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock after 1970").as_nanos() as u64
}
