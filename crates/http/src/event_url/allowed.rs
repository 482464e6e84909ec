//! The URLs and the addresses that events may name.
//!
//! A URL is parsed once, as browsers do it (`127.1`, `0x7f000001` and `2130706433` are one
//! address). The parsed form is checked and then used. The step that resolves a host name also
//! checks its addresses, and the connection goes to a checked address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::watch;
use url::Host;

use super::super::error::HttpError;
use super::super::unanswered::ResolveError;
use super::addresses::not_public;

/// Maximum number of lookups under way.
const LOOKUPS_MAX: usize = 256;
/// Maximum number of lookups under way for names that share their last two labels, e.g.
/// `evil.example`. So a name server that does not answer cannot take all lookups.
const LOOKUPS_OF_DOMAIN_MAX: usize = 32;

/// The URLs that events may name, and the addresses that are allowed in addition to public ones.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    prefixes: Vec<Prefix>,
    networks: Vec<IpNet>,
}

/// The beginning of URLs that events may name, e.g. `https://billing.internal/hooks/`.
///
/// A URL must have the scheme, host and port of the prefix. Its path must begin with the path of
/// the prefix, up to a slash. `https://` and `http://` alone stand for all hosts. If the host of
/// the prefix is an address, this address is allowed for these URLs even if it is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    scheme: &'static str,
    /// Host, port and path; `None` if the prefix allows all of them.
    place: Option<(Host, u16, String)>,
}

impl Allowed {
    /// Allows the URLs with these prefixes.
    pub fn new(prefixes: impl IntoIterator<Item = Prefix>) -> Self {
        Self {
            prefixes: prefixes.into_iter().collect(),
            networks: Vec::new(),
        }
    }

    /// Also allows addresses that are not public, e.g. `10.0.0.0/8`.
    #[must_use]
    pub fn networks(mut self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        self.networks.extend(networks);
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    pub(super) fn needs_tls(&self) -> bool {
        self.prefixes.iter().any(|prefix| prefix.scheme == "https")
    }

    /// Checks a URL. If its host is an address, also checks this address.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it has a user or a password".to_owned());
        }
        let mut matching = self
            .prefixes
            .iter()
            .filter(|prefix| prefix.has(url))
            .peekable();
        if matching.peek().is_none() {
            return Err("it begins with none of the allowed prefixes".to_owned());
        }
        let address: IpAddr = match url.host() {
            Some(Host::Ipv4(address)) => address.into(),
            Some(Host::Ipv6(address)) => address.into(),
            _ => return Ok(()),
        };
        // If a matching prefix has a host, it names this very address. So the address is allowed.
        if matching.any(|prefix| prefix.place.is_some()) {
            Ok(())
        } else {
            self.check_address(address)
        }
    }

    fn check_address(&self, address: IpAddr) -> Result<(), String> {
        let address = address.to_canonical();
        match not_public(address) {
            Some(kind)
                if !self
                    .networks
                    .iter()
                    .any(|network| network.contains(&address)) =>
            {
                Err(format!(
                    "{address} is {kind}; allow it with --allow-address {address}"
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Prefix {
    /// Returns whether the prefix stands for all hosts: `https://` or `http://`.
    #[must_use]
    pub fn is_any_host(&self) -> bool {
        self.place.is_none()
    }

    /// Returns whether a URL may begin with both prefixes.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let are_beginnings =
            |(host, port, path): &(Host, u16, String),
             (host_2, port_2, path_2): &(Host, u16, String)| {
                (host, port) == (host_2, port_2)
                    && (path.starts_with(path_2.as_str()) || path_2.starts_with(path.as_str()))
            };
        self.scheme == other.scheme
            && match (&self.place, &other.place) {
                (Some(place), Some(place_2)) => are_beginnings(place, place_2),
                _ => true,
            }
    }

    pub(crate) fn has(&self, url: &Url) -> bool {
        if url.scheme() != self.scheme {
            return false;
        }
        let Some((host, port, path)) = &self.place else {
            return true;
        };
        let Some(rest) = url.path().strip_prefix(path.as_str()) else {
            return false;
        };
        let is_there = path.ends_with('/') || rest.is_empty() || rest.starts_with('/');
        // Some servers decode a slash or a dot, once or twice, before they look for `..`. Some
        // servers leave out the text after a semicolon. So such a path could leave the prefix.
        let lower = rest.to_ascii_lowercase();
        let may_leave = path != "/"
            && ["%2f", "%5c", "%2e", "%25", "..;"]
                .iter()
                .any(|code| lower.contains(code));
        url.host().is_some_and(|found| found.to_owned() == *host)
            && url.port_or_known_default() == Some(*port)
            && is_there
            && !may_leave
    }
}

impl FromStr for Prefix {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let refused = |why: String| HttpError::Prefix { why };
        match text {
            "https://" => {
                return Ok(Self {
                    scheme: "https",
                    place: None,
                });
            }
            "http://" => {
                return Ok(Self {
                    scheme: "http",
                    place: None,
                });
            }
            _ => {}
        }
        let url = Url::parse(text).map_err(|error| refused(error.to_string()))?;
        let scheme = match url.scheme() {
            "https" => "https",
            "http" => "http",
            _ => return Err(refused("it must begin with http:// or https://".to_owned())),
        };
        if !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(refused(
                "it must have no user, password, query or fragment".to_owned(),
            ));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(refused("it has no host".to_owned()));
        };
        Ok(Self {
            scheme,
            place: Some((host.to_owned(), port, url.path().to_owned())),
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        self.place.as_ref().map_or(Ok(()), |(host, port, path)| {
            write!(f, "{host}:{port}{path}")
        })
    }
}

/// Resolves host names to addresses that are allowed.
///
/// A lookup by the operating system cannot be cancelled, and may take a thread for a long time. So
/// there is at most one lookup under way for each name. All requests for that name wait for this
/// lookup.
pub(super) struct Resolver {
    allowed: Arc<Allowed>,
    under_way: Arc<Mutex<HashMap<String, Lookup>>>,
}

/// The result of a lookup, as soon as the lookup has ended.
type Lookup = watch::Receiver<Option<Result<Vec<IpAddr>, String>>>;

impl Resolver {
    pub(super) fn new(allowed: Arc<Allowed>) -> Self {
        Self {
            allowed,
            under_way: Arc::default(),
        }
    }

    /// Returns the lookup of this name: the lookup under way, or a new one.
    fn lookup(&self, name: &str) -> Result<Lookup, ResolveError> {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(lookup) = under_way.get(name) {
            return Ok(lookup.clone());
        }
        let of_domain = || {
            under_way
                .keys()
                .filter(|other| domain(other) == domain(name))
                .count()
        };
        if under_way.len() >= LOOKUPS_MAX || of_domain() >= LOOKUPS_OF_DOMAIN_MAX {
            return Err(ResolveError::Busy);
        }
        let (result, lookup) = watch::channel(None);
        under_way.insert(name.to_owned(), lookup.clone());
        let (all, name) = (self.under_way.clone(), name.to_owned());
        tokio::spawn(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found = found
                .map(|found| found.map(|address| address.ip()).collect())
                .map_err(|error| error.to_string());
            all.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&name);
            let _ = result.send(Some(found));
        });
        Ok(lookup)
    }
}

/// Returns the last two labels of a name.
fn domain(name: &str) -> &str {
    let name = name.strip_suffix('.').unwrap_or(name);
    let begin = name
        .rmatch_indices('.')
        .nth(1)
        .map_or(0, |(dot, _)| dot + 1);
    &name[begin..]
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, lookup) = (self.allowed.clone(), self.lookup(name.as_str()));
        Box::pin(async move {
            let mut lookup = lookup?;
            let found = lookup
                .wait_for(Option::is_some)
                .await?
                .clone()
                .unwrap_or_else(|| Ok(Vec::new()))?;
            let (good, refused): (Vec<_>, Vec<_>) = found
                .into_iter()
                .map(|found| (found, allowed.check_address(found)))
                .partition(|(_, checked)| checked.is_ok());
            match (
                good.is_empty(),
                refused.into_iter().find_map(|(_, checked)| checked.err()),
            ) {
                (true, Some(why)) => {
                    let why = format!("its host leads to an address that is not public: {why}");
                    Err(ResolveError::Refused(why).into())
                }
                _ => Ok(Box::new(
                    good.into_iter()
                        .map(|(address, _)| SocketAddr::new(address, 0)),
                ) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(prefixes: &[&str], networks: &[&str]) -> Allowed {
        let networks = networks
            .iter()
            .map(|network| network.parse().expect("a network"));
        Allowed::new(
            prefixes
                .iter()
                .map(|prefix| prefix.parse().expect("a prefix")),
        )
        .networks(networks)
    }

    fn is_allowed(allowed: &Allowed, url: &str) -> bool {
        allowed.check(&Url::parse(url).expect(url)).is_ok()
    }

    #[test]
    fn a_url_must_begin_with_an_allowed_prefix() {
        let some = allowed(
            &[
                "https://billing.example/hooks/",
                "http://other.example:8080/a",
            ],
            &[],
        );
        for url in [
            "https://billing.example/hooks/",
            "https://billing.example/hooks/1?x=..%2f",
            "https://BILLING.example:443/hooks/a/../b",
            "http://other.example:8080/a",
            "http://other.example:8080/a/b",
            "http://other.example:8080/a?b",
        ] {
            assert!(is_allowed(&some, url), "{url}");
        }
        for url in [
            "https://billing.example/",
            "https://billing.example/hook",
            "https://billing.example/hooks",
            "https://billing.example/hooks/../admin",
            "https://billing.example/hooks/%2e%2e/admin",
            "https://billing.example/hooks/..%2Fadmin",
            "https://billing.example/hooks/a%5c..%5cadmin",
            "https://billing.example/hooks/%252e%252e/admin",
            "https://billing.example/hooks/..;/admin",
            "https://billing.example/hooks\\..\\admin",
            "http://billing.example/hooks/",
            "https://billing.example:444/hooks/",
            "https://billing.example./hooks/",
            "https://billing.example.evil.example/hooks/",
            "https://billing.example@evil.example/hooks/",
            "https://user:password@billing.example/hooks/",
            "https://evil.example/https://billing.example/hooks/",
            "http://other.example:8080/ab",
            "http://other.example/a",
        ] {
            assert!(!is_allowed(&some, url), "{url}");
        }
    }

    #[test]
    fn an_address_in_any_form_must_be_public_or_allowed() {
        let all = allowed(&["https://", "http://"], &[]);
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://127.0.0.1./",
            "http://0/",
            "http://①②⑦.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[0:0:0:0:0:ffff:a00:1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[fe80::1]/",
            "http://169.254.169.254/latest/meta-data/",
        ] {
            assert!(!is_allowed(&all, url), "{url}");
        }
        for url in [
            "http://1.1.1.1/",
            "https://[2606:4700:4700::1111]/",
            "https://any.example/",
        ] {
            assert!(is_allowed(&all, url), "{url}");
        }
        let some = allowed(&["http://"], &["127.0.0.0/8", "fd00::/8"]);
        assert!(
            is_allowed(&some, "http://2130706433/")
                && is_allowed(&some, "http://[::ffff:127.0.0.1]/")
        );
        assert!(is_allowed(&some, "http://[fd00::1]/") && !is_allowed(&some, "http://[::1]/"));
        let named = allowed(&["http://10.0.0.1:8080/", "http://[::1]/"], &[]);
        assert!(
            is_allowed(&named, "http://10.0.0.1:8080/a") && is_allowed(&named, "http://[::1]/")
        );
        assert!(
            !is_allowed(&named, "http://10.0.0.2:8080/a")
                && !is_allowed(&named, "http://10.0.0.1/")
        );
        let wide = allowed(&["http://", "http://10.0.0.1:8080/hooks/"], &[]);
        assert!(
            is_allowed(&wide, "http://10.0.0.1:8080/hooks/a")
                && is_allowed(&wide, "http://1.1.1.1/")
        );
        assert!(
            !is_allowed(&wide, "http://10.0.0.1:8080/admin")
                && !is_allowed(&wide, "http://10.0.0.1:22/hooks/")
        );
    }

    /// Tests that a name is resolved to allowed addresses only. The test uses `localhost`, which
    /// every system knows.
    #[tokio::test]
    async fn a_name_must_lead_to_an_allowed_address() {
        let name = || "localhost".parse::<Name>().expect("a name");
        let resolver =
            |networks: &[&str]| Resolver::new(Arc::new(allowed(&["http://localhost/"], networks)));
        let Err(refused) = resolver(&[]).resolve(name()).await else {
            panic!("it is refused")
        };
        let refused = refused.downcast_ref();
        assert!(
            matches!(refused, Some(ResolveError::Refused(why)) if why.contains("a loopback address")),
            "{refused:?}"
        );
        let some = resolver(&["127.0.0.1/32"]);
        let found: Vec<_> = some
            .resolve(name())
            .await
            .expect("allowed")
            .map(|address| address.ip())
            .collect();
        assert!(
            found
                .iter()
                .all(|address| *address == IpAddr::from([127, 0, 0, 1]))
                && !found.is_empty(),
            "{found:?}"
        );
    }

    /// Tests that lookups are bounded, and that each name has at most one lookup at a time.
    #[tokio::test]
    async fn lookups_are_bounded() {
        let resolver = Resolver::new(Arc::new(allowed(&["http://"], &[])));
        let name = |n: usize| format!("{n}.{}.invalid", n / LOOKUPS_OF_DOMAIN_MAX);
        let mut lookups: Vec<_> = (0..LOOKUPS_OF_DOMAIN_MAX)
            .map(|n| resolver.lookup(&name(n)))
            .collect();
        assert!(matches!(
            resolver.lookup("more.0.invalid"),
            Err(ResolveError::Busy)
        ));
        lookups.extend((LOOKUPS_OF_DOMAIN_MAX..LOOKUPS_MAX).map(|n| resolver.lookup(&name(n))));
        assert!(lookups.iter().all(Result::is_ok) && resolver.lookup(&name(0)).is_ok());
        assert!(matches!(
            resolver.lookup("more.invalid"),
            Err(ResolveError::Busy)
        ));
        for lookup in lookups {
            let _ = lookup.expect("begun").wait_for(Option::is_some).await;
        }
        assert!(resolver.lookup("more.invalid").is_ok());
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in [
            "",
            "billing.example",
            "ftp://host/",
            "https://user@host/",
            "https://host/?a",
            "https://host/#a",
            "https:///",
        ] {
            assert!(
                matches!(text.parse::<Prefix>(), Err(HttpError::Prefix { .. })),
                "{text}"
            );
        }
        assert_eq!(
            "https://host/a"
                .parse::<Prefix>()
                .expect("a prefix")
                .to_string(),
            "https://host:443/a"
        );
    }
}
