//! Redis URLs: reading one without ever repeating it, for it may hold a password; and how sockets
//! behave that are opened by one.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionInfo, IntoConnectionInfo as _, RedisError};

/// A peer that vanished without a word is noticed after this long without traffic, and then this
/// often.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// What is wrong with a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a Redis URL that works here: {reason}; it looks like host[:port], redis://[user:password@]host[:port][/db] or unix:///path"
)]
pub struct UrlError {
    /// The reason, without any part of the URL.
    pub reason: String,
}

/// Refuses what cannot be a URL of ours: one with TLS, and one whose password was not
/// percent-encoded. What follows a `/`, `?` or `#` in such a password would be taken for something
/// else, what stands before for a host name, and would show in errors.
pub fn check_url(url: &str) -> Result<(), UrlError> {
    let refused = |reason: &str| Err(UrlError { reason: reason.to_owned() });
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(()) };
    if matches!(scheme, "rediss" | "valkeys") {
        return refused("TLS (rediss://) is not built in yet, use redis:// through a tunnel such as stunnel");
    }
    let path = if scheme.contains("unix") { "" } else { rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]) };
    if path.contains('@') {
        return refused("an '@' follows a '/', '?' or '#'; in a password write them %40, %2F, %3F, %23");
    }
    Ok(())
}

/// Reads a URL, a host with or without a port, or the path of a socket. The error tells no part of
/// it.
pub fn connection_info(url: &str) -> Result<ConnectionInfo, UrlError> {
    let has_scheme = url.contains("://") || url.starts_with("unix:/") || url.starts_with("redis+unix:/");
    let with_scheme = match url {
        "" => return Err(UrlError { reason: "it is empty".to_owned() }),
        path if path.starts_with('/') => format!("unix://{path}"),
        url if has_scheme => url.to_owned(),
        host => format!("redis://{host}"),
    };
    let url = with_scheme.as_str();
    check_url(url)?;
    // The error's own text may repeat parts of the URL, and with them the password: only its
    // category is told.
    url.into_connection_info().map_err(|error: RedisError| UrlError { reason: error.category().to_owned() })
}

/// A socket that sends at once what is written, and notices a peer that is gone: for bytes that
/// nobody acknowledges, after twice the response timeout.
pub fn tcp_settings(response_timeout: Duration) -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(response_timeout.saturating_mul(2));
    tcp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for url in [
            "redis://:hush#hush@host",
            "redis://u:hush/hush@host:6379",
            "redis://u:1?hush@host",
            "rediss://u:hush@host",
            "http://u:hush@host",
            "hush:hush",
            "u:hush/hush@host",
            "hu sh",
            "redis://u:hush@host:port",
            "redis://u:hush@host/db",
        ] {
            let error = connection_info(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains("not a Redis URL") && !error.contains("hush"), "{url}: {error}");
            assert_eq!(error.contains("TLS"), url.starts_with("rediss:"), "{error}");
        }
        for url in ["redis://u:p%40@host:6379/3", "unix:///a@b/redis.sock", "redis://host"] {
            connection_info(url).expect(url);
        }
    }

    /// `--redis localhost` and `--redis 127.0.0.1:7100` ended in "invalid client config".
    #[test]
    fn a_host_needs_no_scheme() {
        for (url, address) in [
            ("localhost", "localhost:6379"),
            ("127.0.0.1:7100", "127.0.0.1:7100"),
            ("redis:6379", "redis:6379"),
            ("redis", "redis:6379"),
            ("[::1]:7100", "::1:7100"),
            ("user:p%40@host:7100/3", "host:7100"),
            ("/run/redis.sock", "/run/redis.sock"),
            ("unix:///run/redis.sock", "/run/redis.sock"),
        ] {
            let told = connection_info(url).expect(url).addr().to_string();
            assert!(told == address || told == address.replace("::1", "[::1]"), "{url}: {told}");
        }
        assert!(connection_info("").is_err());
    }
}
