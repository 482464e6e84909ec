//! Turns errors of Redis into one line of text, with advice. The library and all commands use the
//! same words.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

/// Returns an error of Redis in one line, with its code: `CODE details`.
pub fn describe(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    text.replace(['\r', '\n'], " ")
}

/// Returns advice to append to the text of the error; empty if there is no advice.
pub fn advice(error: &RedisError) -> String {
    let text = error.to_string();
    let says = |word: &str| error.code() == Some(word) || text.contains(word);
    if says("NOAUTH") {
        return "; Redis wants a password: check user and password in --redis or SERIATIM_REDIS"
            .to_owned();
    }
    if says("WRONGPASS") || error.kind() == ErrorKind::AuthenticationFailed {
        return "; the password is wrong, or the user is unknown: check user and password in --redis or SERIATIM_REDIS, or the file of --redis-password-file"
            .to_owned();
    }
    if says("NOPERM")
        || text.contains("The user executing the script")
        || text.contains("ACL failure in script")
    {
        let right = missing_right(&text);
        return format!(
            "; the user lacks {right}: docs/protocol.md, \"Permissions\", lists the required rights"
        );
    }
    let known = if says("max number of clients") {
        "Redis has as many connections as it allows: raise its maxclients, or run fewer processes"
    } else if says("DENIED") && text.contains("protected mode") {
        "Redis accepts only its own machine until it has a password: give it one (requirepass, or an ACL user)"
    } else if text.contains("unknown command")
        || text.contains("acl_check_cmd() script")
        || text.contains("Invalid command passed to redis.acl_check_cmd")
    {
        "a command is renamed or disabled on this Redis (rename-command), or Redis is older than 7.0; seriatim needs every command of \
         docs/protocol.md, \"Permissions\", under its own name"
    } else if says("CROSSSLOT")
        || text.contains("do not hash to the same slot")
        || text.contains("non local key")
    {
        "this is a Redis Cluster: with --namespace NAME all keys are in one slot"
    } else if says("MOVED") {
        return format!(
            "; this is a Redis Cluster, and another node has the keys: use {}, with --namespace, which keeps all keys on one node",
            moved_to(&describe(error))
        );
    } else if says("NOREPLICAS") {
        "the master has fewer replicas in reach than min-replicas-to-write, so it refuses writes: look at its replicas"
    } else if text.contains("invalid peer certificate") {
        bad_certificate(&text)
    } else if text.contains("received fatal alert") {
        "the server refused TLS; if it wants a certificate of the client, --redis-cert and --redis-key name it"
    } else if matches!(
        io_kind(error),
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected)
    ) {
        // These error texts are written by seriatim and already contain advice.
        return String::new();
    } else if says("CLUSTERDOWN") {
        "this is a Redis Cluster that is not complete: every slot needs a node (redis-cli --cluster check)"
    } else if says("LOADING") {
        "Redis is loading its data: try again when that is done"
    } else if error.is_connection_refusal() || error.is_timeout() || error.is_io_error() {
        "is it running? --redis or SERIATIM_REDIS names another"
    } else {
        return String::new();
    };
    format!("; {known}")
}

/// Returns whether the error may end with time: Redis cannot be reached, or cannot reply yet.
pub fn is_outage(error: &RedisError) -> bool {
    match error.code() {
        Some(
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY"
            | "NOREPLICAS" | "MISCONF",
        ) => true,
        // SCRIPT FLUSH ran between the load of a script and its call. A new connection loads the
        // script again.
        Some("NOSCRIPT") => true,
        // Invalid settings and invalid certificates do not become valid with time.
        _ if matches!(
            io_kind(error),
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        ) =>
        {
            false
        }
        _ => {
            error.is_io_error()
                || error.is_timeout()
                || is_cut_off(error)
                || error.to_string().contains("max number of clients")
        }
    }
}

/// Longest text, in characters, of the last words of a server in an error.
const WORDS_MAX: usize = 200;

/// Returns the error of a connection that the server has closed during the login. `received` is the
/// beginning of the bytes that the server has sent. If they are one error, this error is the reason
/// of the server.
pub(super) fn refused(error: RedisError, received: Vec<u8>) -> RedisError {
    let text = String::from_utf8_lossy(&received);
    let Some(words) = text
        .strip_prefix('-')
        .map(|words| words.strip_suffix("\r\n").unwrap_or(words))
    else {
        return error;
    };
    let first = words.lines().next().unwrap_or_default();
    let is_login = error.kind() == ErrorKind::AuthenticationFailed;
    let is_refusal = first.contains("max number of clients") || first.starts_with("DENIED");
    // The client library may send a command that the server does not know or allow, and ignores its
    // error. So such an error is not the reason.
    let is_reply = words.contains("SETINFO") || words.contains("client|");
    let words: String = first
        .trim_end_matches('.')
        .chars()
        .take(WORDS_MAX)
        .collect();
    if is_refusal
        || !is_login && !is_reply && is_broken(&error) && first.len() == text.trim_end().len() - 1
    {
        return io::Error::new(
            io::ErrorKind::NotConnected,
            format!("Redis refused the connection: {words}"),
        )
        .into();
    }
    match is_login {
        true => (ErrorKind::AuthenticationFailed, "login failed", words).into(),
        false => error,
    }
}

/// Adds the address that the Sentinels announce to the error of an attempt to connect to it.
/// `mapped` is the address that was tried instead, if there is one.
pub(super) fn at_master(error: RedisError, announced: &str, mapped: Option<&str>) -> RedisError {
    let place = match mapped {
        Some(mapped) => {
            format!("the master that the Sentinels announce, {announced} (mapped to {mapped})")
        }
        None => format!("the master that the Sentinels announce, {announced}"),
    };
    let text = describe(&error);
    if error.kind() == ErrorKind::AuthenticationFailed {
        return (
            ErrorKind::AuthenticationFailed,
            "login failed",
            format!("at {place}: {text}"),
        )
            .into();
    }
    let Some(kind) = io_kind(&error) else {
        return error;
    };
    let (kind, advice) = match kind {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::NotConnected => {
            (kind, String::new())
        }
        _ if mapped.is_some() => (io::ErrorKind::NotConnected, String::new()),
        // This text is the advice, so the error gets a kind without further advice.
        _ => (
            io::ErrorKind::NotConnected,
            format!(
                "; if it has another address from here, name it with --sentinel-map {announced}=HOST:PORT"
            ),
        ),
    };
    io::Error::new(kind, format!("{place}, cannot be reached: {text}{advice}")).into()
}

fn io_kind(error: &RedisError) -> Option<io::ErrorKind> {
    // The redis crate keeps the original error in an Arc. The Arc itself is an error, too, so both
    // types are tried.
    let source = std::error::Error::source(error)?;
    let inner = source
        .downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()
        .and_then(|inner| inner.downcast_ref::<io::Error>());
    inner
        .or_else(|| source.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

/// Returns the URL of the node that an error `MOVED SLOT HOST:PORT` of a cluster names.
fn moved_to(text: &str) -> String {
    let address = text
        .split_once("MOVED ")
        .and_then(|(_, rest)| rest.split_whitespace().nth(1));
    address.map_or_else(
        || "the URL of that node".to_owned(),
        |address| format!("redis://{address}"),
    )
}

/// Returns advice for a certificate that was not accepted.
fn bad_certificate(text: &str) -> &'static str {
    if text.contains("UnknownIssuer") {
        "the certificate comes from an authority that is not known here: --redis-ca names a file with the right one"
    } else if text.contains("NotValidForName") || text.contains("not valid for") {
        "the server's certificate is for another host: connect to a name that it has"
    } else if text.contains("xpired") || text.contains("not valid yet") {
        "renew the server's certificate, and look at the clocks"
    } else {
        "the server's certificate is not accepted"
    }
}

/// Returns whether the connection ended in the middle of a reply.
fn is_cut_off(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || error.kind() == ErrorKind::Parse && error.to_string().contains("end of input")
}

/// Returns whether the connection failed, or could not be made.
pub fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || is_cut_off(error)
}

/// Returns the right that is missing according to an ACL error of Redis, in the form that
/// `ACL SETUSER` needs.
fn missing_right(text: &str) -> String {
    let quoted = text
        .split_once("run the '")
        .and_then(|(_, rest)| rest.split_once('\''))
        .map(|(command, _)| command);
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

    /// Regression: two errors ended a worker at its start, although a new connection would have
    /// helped. In one, the connection was cut in the middle of the first reply. In the other,
    /// SCRIPT FLUSH ran between the load of a script and its call.
    #[test]
    fn a_reply_that_was_cut_off_is_an_outage() {
        let cut = redis::parse_redis_value(b"$40\r\nredis_version").expect_err("half a reply");
        assert!(is_outage(&cut), "{cut}");
        let flushed =
            redis::parse_redis_value(b"-NOSCRIPT No matching script. Please use EVAL.\r\n")
                .and_then(redis::Value::extract_error);
        assert!(is_outage(&flushed.expect_err("an error")));
        let denied =
            redis::parse_redis_value(b"-NOPERM no\r\n").and_then(redis::Value::extract_error);
        assert!(!is_outage(&denied.expect_err("an error")));
    }

    /// Story: at maxclients the error was "Connection reset by peer" or "the password is wrong".
    #[test]
    fn the_last_words_of_a_server_are_the_reason() {
        let broken = || RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        let login = || {
            RedisError::from((
                ErrorKind::AuthenticationFailed,
                "Password authentication failed",
            ))
        };
        let full = b"-ERR max number of clients reached\r\n";
        for error in [
            refused(broken(), full.to_vec()),
            refused(login(), full.to_vec()),
        ] {
            assert!(
                is_outage(&error) && describe(&error).contains("max number of clients"),
                "{error}"
            );
            assert!(advice(&error).contains("maxclients"), "{error}");
        }
        let denied = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set";
        let error = refused(broken(), denied.to_vec());
        assert!(
            is_outage(&error)
                && describe(&error).contains("DENIED")
                && advice(&error).contains("requirepass"),
            "{error}"
        );
        let wrong = refused(
            login(),
            b"-WRONGPASS invalid username-password pair or user is disabled.\r\n".to_vec(),
        );
        assert!(
            !is_outage(&wrong) && advice(&wrong).contains("password is wrong"),
            "{wrong}"
        );
        let unread = [
            &b""[..],
            b"+OK\r\n",
            b"-ERR unknown subcommand 'SETINFO'\r\n",
            b"-NOPERM User u has no permissions to run the 'client|setinfo' command\r\n",
            b"-ERR one\r\n-ERR two\r\n",
        ];
        for received in unread {
            let error = refused(broken(), received.to_vec());
            assert!(
                !describe(&error).contains("refused the connection"),
                "{error}"
            );
        }
    }

    #[test]
    fn wrong_settings_and_certificates_are_no_outage() {
        for (kind, outage) in [
            (io::ErrorKind::InvalidInput, false),
            (io::ErrorKind::InvalidData, false),
            (io::ErrorKind::NotConnected, true),
        ] {
            assert_eq!(
                is_outage(&io::Error::new(kind, "what").into()),
                outage,
                "{kind}"
            );
        }
    }

    #[test]
    fn the_right_that_is_missing_is_named() {
        for (text, right) in [
            (
                "NOPERM: this user has no permissions to run the 'xrange' command",
                "+xrange",
            ),
            (
                "NOPERM: User u has no permissions to run the 'client|setinfo' command",
                "+client|setinfo",
            ),
            (
                "NOPERM: this user has no permissions to access one of the keys used as arguments",
                "the keys (~PATTERN)",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "a command or a key that a script uses",
            ),
        ] {
            assert_eq!(missing_right(text), right);
        }
    }
}
