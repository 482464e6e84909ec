//! Redis URLs and the settings of their sockets. No error repeats a URL, because a URL may contain
//! a password.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, RedisError,
};

use super::sentinel::Sentinels;

/// Time without traffic after which a peer is probed, to find out whether it is gone. Also the
/// interval of these probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a Redis URL that works here: {reason}; it looks like host[:port], redis[s]://[user:password@]host[:port][/db], \
     redis[s]-sentinel://host:port,host:port/SERVICE or unix:///path"
)]
pub struct UrlError {
    /// The reason, without any part of the URL.
    pub reason: String,
}

/// The parts of a URL that was read.
pub(super) struct Parsed {
    pub(super) place: Target,
    /// User, password and database.
    pub(super) settings: RedisConnectionInfo,
    pub(super) with_tls: bool,
}

/// The address of the server, or the Sentinels that name its address.
pub(super) enum Target {
    Address(ConnectionAddr),
    Sentinels(Sentinels),
}

/// The default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;

/// Reads the URL of a server or of Sentinels.
///
/// # Errors
/// [`UrlError`] with a reason that repeats no part of the URL.
pub(super) fn parse(url: &str) -> Result<Parsed, UrlError> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let with_tls = matches!(
        scheme,
        "rediss" | "valkeys" | "rediss-sentinel" | "valkeys-sentinel"
    );
    if with_tls && rest.contains('#') {
        let reason = "TLS always verifies the server, so there is no #insecure".to_owned();
        return Err(UrlError { reason });
    }
    match scheme {
        "redis-sentinel" | "rediss-sentinel" | "valkey-sentinel" | "valkeys-sentinel" => {
            sentinels(rest, with_tls)
        }
        "rediss" | "valkeys" => address(&format!("redis://{rest}"), with_tls),
        _ => address(url, with_tls),
    }
}

fn address(url: &str, with_tls: bool) -> Result<Parsed, UrlError> {
    let info = connection_info(url)?;
    Ok(Parsed {
        place: Target::Address(info.addr().clone()),
        settings: info.redis_settings().clone(),
        with_tls,
    })
}

/// Reads `[user:password@]host[:port],host[:port]…/SERVICE[/db]`.
fn sentinels(rest: &str, with_tls: bool) -> Result<Parsed, UrlError> {
    let refused = |reason: &str| UrlError {
        reason: reason.to_owned(),
    };
    check_path(rest)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (service, db) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() || service.contains(['?', '#']) {
        return Err(refused(
            "the service is missing: redis-sentinel://host:port,host:port/SERVICE",
        ));
    }
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or((String::new(), authority), |(user, hosts)| {
            (format!("{user}@"), hosts)
        });
    if user.trim_end_matches('@').contains('@') {
        return Err(refused(
            "user and password stand once, before the first host; in a password write %40 for @",
        ));
    }
    let mut found = Vec::new();
    let mut settings = RedisConnectionInfo::default();
    for host in hosts.split(',') {
        let info = connection_info(&format!("redis://{user}{host}/{db}"))?;
        let has_port = host
            .rsplit_once(']')
            .map_or(host, |(_, rest)| rest)
            .contains(':');
        match info.addr() {
            ConnectionAddr::Tcp(name, port) => {
                found.push((name.clone(), if has_port { *port } else { SENTINEL_PORT }))
            }
            _ => return Err(refused("a Sentinel has a host and a port")),
        }
        settings = info.redis_settings().clone();
    }
    found.sort_unstable();
    found.dedup();
    Ok(Parsed {
        place: Target::Sentinels(Sentinels {
            hosts: found,
            service: service.to_owned(),
        }),
        settings,
        with_tls,
    })
}

/// Checks that a password is percent-encoded. If a password contains a raw `/`, `?` or `#`, the
/// part before that character would count as a host name and appear in errors.
fn check_path(rest: &str) -> Result<(), UrlError> {
    let path = rest.find(['/', '?', '#']).map_or("", |at| &rest[at..]);
    if path.contains('@') {
        let reason =
            "an '@' follows a '/', '?' or '#'; in a password write them %40, %2F, %3F, %23"
                .to_owned();
        return Err(UrlError { reason });
    }
    Ok(())
}

/// Checks that a URL has no part that would be ignored. Without this check, `redis://host?db=3` would
/// mean database 0.
fn check_parameters(url: &str) -> Result<(), UrlError> {
    let refused = |reason: &str| UrlError {
        reason: reason.to_owned(),
    };
    if url.contains('#') {
        return Err(refused("it has a '#'; in a password or a path write %23"));
    }
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let (known, reason): (&[&str], &str) = if scheme.contains("unix") {
        (
            &["db", "user", "pass", "protocol"],
            "it has an unknown parameter; a socket has db, user, pass and protocol: unix:///path?db=3",
        )
    } else {
        (
            &["protocol"],
            "it has an unknown parameter; the database is no parameter: redis://host/3",
        )
    };
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut names = query
        .split('&')
        .map(|one| one.split('=').next().unwrap_or_default());
    if names.any(|name| !name.is_empty() && !known.contains(&name)) {
        return Err(refused(reason));
    }
    Ok(())
}

/// Reads a URL of a server without TLS. The text may also be a host with or without a port, or the
/// path of a socket.
///
/// # Errors
/// [`UrlError`] with a reason that repeats no part of the URL.
pub fn connection_info(url: &str) -> Result<ConnectionInfo, UrlError> {
    let has_scheme =
        url.contains("://") || url.starts_with("unix:/") || url.starts_with("redis+unix:/");
    let with_scheme = match url {
        "" => {
            return Err(UrlError {
                reason: "it is empty".to_owned(),
            });
        }
        path if path.starts_with('/') => format!("unix://{path}"),
        url if has_scheme => url.to_owned(),
        host => format!("redis://{host}"),
    };
    let url = with_scheme.as_str();
    if let Some((scheme, rest)) = url.split_once("://")
        && !scheme.contains("unix")
    {
        check_path(rest)?;
    }
    check_parameters(url)?;
    // The text of the error may repeat parts of the URL, including the password. So only the
    // category of the error is used.
    url.into_connection_info()
        .map_err(|error: RedisError| UrlError {
            reason: error.category().to_owned(),
        })
}

/// Reads `HOST:PORT`; an IPv6 address stands in brackets.
///
/// # Errors
/// The reason, for people.
pub fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let after_host = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
    let has_port = after_host
        .split_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    let has_more =
        text.contains(['/', '@', '?', '#', '=', ',']) || text.contains(char::is_whitespace);
    match connection_info(text).map(|info| info.addr().clone()) {
        Ok(ConnectionAddr::Tcp(host, port))
            if has_port && !has_more && !host.is_empty() && port > 0 =>
        {
            Ok((host, port))
        }
        _ => Err(format!(
            "{text:?} is no address; write HOST:PORT, e.g. 10.0.0.1:6379 or [::1]:6379"
        )),
    }
}

/// Returns settings for a socket. The socket sends written bytes at once and notices a dead peer.
/// If bytes stay unacknowledged, it notices this after twice the response timeout.
pub fn tcp_settings(response_timeout: Duration) -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
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
            "http://u:hush@host",
            "hush:hush",
            "u:hush/hush@host",
            "hu sh",
            "redis://u:hush@host:port",
            "redis://u:hush@host/db",
        ] {
            let error = connection_info(url).map(|_| ()).expect_err(url).to_string();
            assert!(
                error.contains("not a Redis URL") && !error.contains("hush"),
                "{url}: {error}"
            );
        }
        for url in [
            "redis://u:p%40@host:6379/3",
            "unix:///a@b/redis.sock",
            "redis://host",
        ] {
            connection_info(url).expect(url);
        }
    }

    /// Story: `redis://host?db=3` and `unix:///path?dbb=3` used database 0 without a word.
    #[test]
    fn a_part_that_would_be_ignored_is_refused() {
        for (url, text) in [
            ("redis://host?db=3", "redis://host/3"),
            ("redis://host/3?protcol=resp3", "unknown parameter"),
            ("host:6379?protocol=resp3&x", "unknown parameter"),
            ("unix:///path?dbb=3", "db, user, pass and protocol"),
            ("unix:/path?db=3&hush=1", "unknown parameter"),
            ("/run/redis.sock?usr=hush", "unknown parameter"),
            ("redis://host/3#hush", "'#'"),
            ("/run/hush#1.sock", "'#'"),
        ] {
            let error = connection_info(url).map(|_| ()).expect_err(url).to_string();
            assert!(
                error.contains(text) && !error.contains("hush"),
                "{url}: {error}"
            );
        }
        for (url, db) in [
            ("redis://host/3?protocol=resp3", 3),
            ("redis://host?", 0),
            ("unix:///path?db=3&user=u&pass=p&protocol=resp3", 3),
            ("/run/redis.sock?db=3", 3),
        ] {
            let info = connection_info(url).expect(url);
            assert_eq!(info.redis_settings().db(), db, "{url}");
        }
        assert!(parse("redis-sentinel://a/shop/3?db=3").is_err());
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
            let found = connection_info(url).expect(url).addr().to_string();
            assert!(
                found == address || found == address.replace("::1", "[::1]"),
                "{url}: {found}"
            );
        }
        assert!(connection_info("").is_err());
    }

    #[test]
    fn sentinels_have_hosts_and_a_service() {
        let hosts = |url: &str| match parse(url).map(|parsed| parsed.place) {
            Ok(Target::Sentinels(Sentinels { hosts, service })) => Ok((hosts, service)),
            Ok(Target::Address(address)) => panic!("{url}: {address}"),
            Err(error) => Err(error.to_string()),
        };
        let host = |name: &str, port: u16| (name.to_owned(), port);
        assert_eq!(
            hosts("redis-sentinel://a/shop"),
            Ok((vec![host("a", 26379)], "shop".to_owned()))
        );
        let three = vec![host("::1", 26379), host("a", 1), host("b", 6379)];
        assert_eq!(
            hosts("redis-sentinel://u:p%40@b:6379,a:1,[::1],a:1/shop/3"),
            Ok((three, "shop".to_owned()))
        );
        let parsed = parse("rediss-sentinel://u:p%40@b,a/shop/3").expect("a URL");
        let settings = (
            parsed.settings.username(),
            parsed.settings.password(),
            parsed.settings.db(),
            parsed.with_tls,
        );
        assert_eq!(settings, (Some("u"), Some("p@"), 3, true));
        for bad in [
            "redis-sentinel://hush",
            "redis-sentinel://a,/shop",
            "redis-sentinel://u:hush/x@a/shop",
            "redis-sentinel://:hush@a:x/shop",
            "redis-sentinel:///shop",
        ] {
            let error = hosts(bad).expect_err(bad);
            assert!(
                error.contains("not a Redis URL") && !error.contains("hush"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, host, port) in [
            ("10.0.0.1:6379", "10.0.0.1", 6379),
            ("[::1]:7", "::1", 7),
            ("redis.internal:1", "redis.internal", 1),
        ] {
            assert_eq!(host_and_port(text), Ok((host.to_owned(), port)), "{text}");
        }
        for bad in [
            "",
            "host",
            ":6379",
            "host:",
            "host:x",
            "host:0",
            "host:70000",
            "::1",
            "[::1]",
            "u@host:1",
            "host:1/2",
            "redis://host:1",
            "a b:1",
        ] {
            assert!(
                host_and_port(bad).is_err_and(|error| error.contains("HOST:PORT")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_url_with_tls_has_the_same_form() {
        let parsed = parse("rediss://u:p%40@host/3").expect("a URL");
        let Target::Address(address) = parsed.place else {
            panic!("an address")
        };
        assert_eq!(
            (
                address.to_string().as_str(),
                parsed.settings.db(),
                parsed.with_tls
            ),
            ("host:6379", 3, true)
        );
        assert!(parse("rediss://u:hush/x@host").is_err());
    }
}
