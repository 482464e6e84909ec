//! Failed logins: an address may try one wrong token per second. A known token is never refused, so
//! nobody can lock others out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::listen::connections::Peer;
use crate::listen::places::origin;

/// The time between two wrong tokens.
const EVERY: Duration = Duration::from_secs(1);
/// The most addresses that are remembered.
const PEERS_MAX: usize = 1000;

#[derive(Default)]
pub(super) struct Failures(Mutex<HashMap<Option<std::net::IpAddr>, Instant>>);

impl Failures {
    /// Records a wrong token. Returns whether it came too soon after the one before.
    pub(super) fn is_too_soon(&self, peer: Peer) -> bool {
        let address = origin(peer);
        let now = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= PEERS_MAX {
            last.retain(|_, at| now.duration_since(*at) < EVERY);
        }
        if last.len() >= PEERS_MAX && !last.contains_key(&address) {
            return true;
        }
        last.insert(address, now)
            .is_some_and(|at| now.duration_since(at) < EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_may_try_once_per_second() {
        let failures = Failures::default();
        let peer = Peer::Ip([10, 0, 0, 1].into());
        assert!(
            !failures.is_too_soon(peer)
                && failures.is_too_soon(peer)
                && !failures.is_too_soon(Peer::Unix)
        );
        tokio::time::advance(EVERY).await;
        assert!(!failures.is_too_soon(peer));
        for n in 0..2000_u32 {
            failures.is_too_soon(Peer::Ip(std::net::Ipv4Addr::from(n).into()));
        }
        assert!(failures.0.lock().expect("a lock").len() <= PEERS_MAX);
    }
}
