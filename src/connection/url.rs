//! Redis URLs and the settings of their sockets. No error repeats a URL, because it may have a
//! password.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionInfo, IntoConnectionInfo as _, RedisError};

/// The time without traffic after which a vanished peer is probed, and the interval of the probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a Redis URL that works here: {reason}; it looks like host[:port], redis://[user:password@]host[:port][/db] or unix:///path"
)]
pub struct UrlError {
    /// The reason, without any part of the URL.
    pub reason: String,
}

/// Checks that a URL has no TLS scheme, and that its password is percent-encoded. With a raw `/`,
/// `?` or `#` in the password, the part before would count as a host name and appear in errors.
///
/// # Errors
/// [`UrlError`] with the reason.
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

/// Reads a URL, a host with or without a port, or the path of a socket.
///
/// # Errors
/// [`UrlError`] with a reason that repeats no part of the URL.
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
    // The error's own text may repeat parts of the URL, and with them the password. So only its
    // category is used.
    url.into_connection_info().map_err(|error: RedisError| UrlError { reason: error.category().to_owned() })
}

/// Returns settings for a socket that sends written bytes at once and notices a dead peer. If bytes
/// stay unacknowledged, it notices after twice the response timeout.
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

    /// Regression: `--redis localhost` and `--redis 127.0.0.1:7100` failed with "invalid client
    /// config".
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
