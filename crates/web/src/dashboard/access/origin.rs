//! The origin of a request that changes something. A page of another site must not act in the name
//! of a user who is logged in.
//!
//! Browsers send `Sec-Fetch-Site` since 2023, and `Origin` with every POST. A client that sends
//! neither is not a browser; it must send a bearer token, which no page of another site knows.

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};

/// The origin under which browsers know this server.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnOrigin {
    /// The origin of `--public-url`, as `https://ops.example`.
    pub(super) public: Option<String>,
}

impl OwnOrigin {
    /// Returns whether a page of this server has made the request, or a client with a bearer token
    /// that is not a browser.
    pub(super) fn has_sent(&self, headers: &HeaderMap, has_bearer: bool) -> bool {
        let one = |name: &str| {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (None, _) => Ok(None),
                (Some(value), None) => value.to_str().map(Some).map_err(drop),
                _ => Err(()),
            }
        };
        match (one("sec-fetch-site"), one(ORIGIN.as_str())) {
            (Ok(Some(site)), Ok(_)) => site == "same-origin",
            (Ok(None), Ok(Some(origin))) => self.is(origin, headers),
            (Ok(None), Ok(None)) => has_bearer,
            _ => false,
        }
    }

    fn is(&self, origin: &str, headers: &HeaderMap) -> bool {
        if self.public.as_deref() == Some(origin) {
            return true;
        }
        // The guard has checked before that the host is one of this server.
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let authority = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        host.is_some() && authority == host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_pages_and_clients_with_a_token_act() {
        let own = OwnOrigin {
            public: Some("https://ops.example".to_owned()),
        };
        let sent = |pairs: &[(&'static str, &str)], bearer| {
            let mut headers = HeaderMap::new();
            headers.append(HOST, "localhost:8480".parse().expect("a value"));
            for (name, value) in pairs {
                headers.append(*name, value.parse().expect("a value"));
            }
            own.has_sent(&headers, bearer)
        };
        assert!(sent(&[("sec-fetch-site", "same-origin")], false));
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(
                !sent(
                    &[
                        ("sec-fetch-site", site),
                        ("origin", "http://localhost:8480")
                    ],
                    true
                ),
                "{site}"
            );
        }
        assert!(
            sent(&[("origin", "http://localhost:8480")], false)
                && sent(&[("origin", "https://ops.example")], false)
        );
        for origin in [
            "http://localhost",
            "http://evil.example",
            "null",
            "https://ops.example.evil",
            "localhost:8480",
        ] {
            assert!(!sent(&[("origin", origin)], true), "{origin}");
        }
        assert!(sent(&[], true) && !sent(&[], false));
        assert!(!sent(
            &[
                ("origin", "http://localhost:8480"),
                ("origin", "http://localhost:8480")
            ],
            true
        ));
    }
}
