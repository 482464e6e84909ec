//! Errors of Redis in one line, with what to do about them; the same words in every command.

use redis::{ErrorKind, RedisError};

/// What Redis said, and what to do.
pub(crate) fn told(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    text.replace(['\r', '\n'], " ") + &advice(error)
}

/// What to do, to stand behind the error; empty where nobody knows.
pub(crate) fn advice(error: &RedisError) -> String {
    let text = error.to_string();
    let says = |word: &str| error.code() == Some(word) || text.contains(word);
    if says("NOAUTH") || says("WRONGPASS") || error.kind() == ErrorKind::AuthenticationFailed {
        return "; check user and password in --redis or SERIATIM_REDIS".to_owned();
    }
    if says("NOPERM") || text.contains("The user executing the script") || text.contains("ACL failure in script") {
        let right = missing_right(&text);
        return format!("; the user lacks {right}: docs/protocol.md, \"Permissions\", lists what it needs");
    }
    let unreachable = error.is_connection_refusal() || error.is_timeout() || error.is_io_error();
    if unreachable { "; is it running? --redis or SERIATIM_REDIS names another".to_owned() } else { String::new() }
}

/// Whether Redis cannot be reached, or cannot answer yet: it may later.
pub(crate) fn is_outage(error: &RedisError) -> bool {
    let is_unreachable =
        error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || error.is_connection_refusal();
    is_unreachable || matches!(error.code(), Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY"))
}

/// The right that an ACL error of Redis is about, as `ACL SETUSER` writes it.
fn missing_right(text: &str) -> String {
    let quoted = text.split_once("run the '").and_then(|(_, rest)| rest.split_once('\'')).map(|(command, _)| command);
    match quoted {
        Some(command) => format!("+{command}"),
        None if text.contains("keys") => "the keys (~PATTERN)".to_owned(),
        None if text.contains("channel") => "the channels (&PATTERN)".to_owned(),
        None => "a command or a key that a script uses".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_that_is_missing_is_named() {
        for (text, right) in [
            ("NOPERM: this user has no permissions to run the 'xrange' command", "+xrange"),
            ("NOPERM: User u has no permissions to run the 'client|setinfo' command", "+client|setinfo"),
            ("NOPERM: this user has no permissions to access one of the keys used as arguments", "the keys (~PATTERN)"),
            ("ERR The user executing the script can't run this command or subcommand", "a command or a key that a script uses"),
        ] {
            assert_eq!(missing_right(text), right);
        }
    }
}
