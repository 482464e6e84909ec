//! Tells addresses that are not public from public ones.
//!
//! Source: the special-purpose registries of IANA (RFC 6890), as of November 2026. If an IPv6
//! address stands for an IPv4 address, the IPv4 address decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the kind of an address that is not public, e.g. `a private address`. Returns `None` for
/// a public address.
pub(super) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "an address of this host",
        (127, ..) => "a loopback address",
        (10, ..) | (192, 168, _) | (172, 16..=31, _) => "a private address",
        (100, 64..=127, _) => "a shared address of a carrier",
        (169, 254, _) => "a link-local address",
        (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) => "an address for a special purpose",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "an address for documentation",
        (224..=239, ..) => "a multicast address",
        (240..=255, ..) => "a reserved address",
        _ => return None,
    })
}

fn v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        v4(Ipv4Addr::new(a, b, c, d))
    };
    match [a, b, c, d, e, f] {
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_unspecified() => Some("an address of this host"),
        // IPv4-mapped addresses, and translated IPv4 addresses (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => embedded(g, h),
        [0x2002, high, low, ..] => embedded(high, low),
        [0xfc00..=0xfdff, ..] => Some("a private address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("an address for documentation"),
        // Teredo, ORCHID, benchmarks and the like.
        [0x2001, 0..=0x1ff, ..] => Some("an address for a special purpose"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_known() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "192.88.99.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
        ] {
            assert!(
                not_public(text.parse().expect("an address")).is_some(),
                "{text}"
            );
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "169.253.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(
                not_public(text.parse().expect("an address")),
                None,
                "{text}"
            );
        }
    }
}
