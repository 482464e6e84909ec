//! The hosts for which this server answers.
//!
//! A web page from elsewhere may use a foreign name that resolves to this machine. Its requests then
//! have this name as host, and are refused.

use std::net::IpAddr;

use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode, Uri};

use super::problem::Problem;

/// The names of `--host`, in lower case. `localhost` and IP addresses are always known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(str::to_ascii_lowercase).collect())
    }

    /// Checks that the request is for this server.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_known(uri, headers) {
            return Ok(());
        }
        let detail = "the header Host names another server; --host NAME makes a name known";
        Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown-host",
            detail,
        ))
    }

    /// Returns whether the request is for this server: its host must be `localhost`, an IP address,
    /// or a name of `--host`.
    fn is_known(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(HOST).iter();
        let (host, more) = (named.next(), named.next());
        let text = match (host, more, uri.authority()) {
            (Some(host), None, None) => host.to_str().ok(),
            // The target has a host as well, as in requests to a proxy. It must be the same as the
            // header `Host`.
            (Some(host), None, Some(authority)) => host
                .to_str()
                .ok()
                .filter(|host| *host == authority.as_str()),
            _ => None,
        };
        let Some(text) = text else { return false };
        let name = match text.rsplit_once(':') {
            Some((name, port))
                if port.bytes().all(|byte| byte.is_ascii_digit()) && !text.ends_with(']') =>
            {
                name
            }
            _ => text,
        };
        let name = name.to_ascii_lowercase();
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(&name);
        name == "localhost" || bare.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_known(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().expect("a value"));
        Hosts::new(["Events.Example"]).is_known(&Uri::from_static("/"), &headers)
    }

    #[test]
    fn a_host_is_local_an_address_or_named() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:80",
            "[::1]",
            "events.example:443",
        ] {
            assert!(is_known(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "events.example.evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "a b",
        ] {
            assert!(!is_known(host), "{host}");
        }
        let hosts = Hosts::default();
        assert!(!hosts.is_known(&Uri::from_static("/"), &HeaderMap::new()));
        let mut twice = HeaderMap::new();
        twice.append(HOST, "localhost".parse().expect("a value"));
        twice.append(HOST, "evil.example".parse().expect("a value"));
        assert!(!hosts.is_known(&Uri::from_static("/"), &twice));
    }
}
