//! The name of the user in a header of a trusted proxy, which has checked who the user is.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::listen::connections::Peer;
use crate::listen::users::{Right, User, check_name};

/// A peer whose header counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrustedPeer {
    /// An address, or a network as `10.0.0.0/8`.
    Net(IpNet),
    /// A process that uses a socket in the file system.
    Unix,
}

impl FromStr for TrustedPeer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        let net = text
            .parse::<IpNet>()
            .ok()
            .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        net.map(Self::Net)
            .ok_or_else(|| "write an address, a network as 10.0.0.0/8, or unix".to_owned())
    }
}

/// The trusted header, the peers from which it counts, and the rights of its users.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    pub(crate) header: HeaderName,
    pub(crate) from: Vec<TrustedPeer>,
    pub(crate) rights: Vec<Right>,
}

impl Trust {
    /// Returns the user whom the header names. `None` if another peer has sent it, or if there is
    /// not exactly one valid name.
    pub(super) fn user(&self, peer: Peer, headers: &HeaderMap) -> Option<User> {
        let is_trusted = self.from.iter().any(|from| match (from, peer) {
            (TrustedPeer::Net(net), Peer::Ip(address)) => net.contains(&address),
            (TrustedPeer::Unix, Peer::Unix) => true,
            _ => false,
        });
        let mut values = headers.get_all(&self.header).iter();
        let (Some(name), None, true) = (values.next(), values.next(), is_trusted) else {
            return None;
        };
        let name = name.to_str().ok()?;
        check_name(name).ok()?;
        Some(User::with_rights(name, self.rights.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_counts_only_from_a_trusted_peer_and_once() {
        let from = vec![
            "10.0.0.0/8".parse().expect("a network"),
            "::1".parse().expect("an address"),
        ];
        let trust = Trust {
            header: HeaderName::from_static("x-forwarded-user"),
            from,
            rights: vec![Right::View],
        };
        let mut headers = HeaderMap::new();
        assert!(
            trust
                .user(Peer::Ip([10, 1, 2, 3].into()), &headers)
                .is_none()
        );
        headers.append("X-Forwarded-User", "ada".parse().expect("a value"));
        let ada = trust
            .user(Peer::Ip([10, 1, 2, 3].into()), &headers)
            .expect("trusted");
        assert!(
            &*ada.name == "ada"
                && ada.may_all(Right::View).is_ok()
                && ada.may_all(Right::Pause).is_err()
        );
        assert!(
            trust
                .user(Peer::Ip(std::net::Ipv6Addr::LOCALHOST.into()), &headers)
                .is_some()
        );
        assert!(
            trust
                .user(Peer::Ip([11, 1, 2, 3].into()), &headers)
                .is_none()
        );
        assert!(trust.user(Peer::Unix, &headers).is_none());
        headers.append("X-Forwarded-User", "eve".parse().expect("a value"));
        assert!(
            trust
                .user(Peer::Ip([10, 1, 2, 3].into()), &headers)
                .is_none()
        );
        for bad in ["", "a b", "#a"] {
            let mut headers = HeaderMap::new();
            headers.append("X-Forwarded-User", bad.parse().expect("a value"));
            assert!(
                trust
                    .user(Peer::Ip([10, 1, 2, 3].into()), &headers)
                    .is_none(),
                "{bad}"
            );
        }
        assert!(
            "10.0.0.0/40".parse::<TrustedPeer>().is_err()
                && "unix".parse() == Ok(TrustedPeer::Unix)
        );
    }
}
