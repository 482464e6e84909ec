//! The HTTP clients, one for each lane, with their connections.
//!
//! A client is replaced after the largest age of connections. So a host name that leads elsewhere,
//! or a new set of servers behind a balancer, is noticed. Requests under way on the old client end
//! as usual.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::dns::Resolve;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustls::ClientConfig;
use tokio::time::Instant;

use super::error::HttpError;
use super::streams::LANES;
use super::unanswered::causes;

/// The time after which an idle connection is closed. It is shorter than the time after which most
/// servers close it (Node: 5 s). Otherwise a request could be lost, because the server closes the
/// connection just then.
const IDLE: Duration = Duration::from_secs(4);
/// The time after which an idle connection to a receiver that an event names is closed, and the
/// maximum number of idle connections to one such receiver.
const IDLE_CHECKED: Duration = Duration::from_secs(2);
const IDLE_CHECKED_MAX: usize = 16;
/// Interval of pings on an HTTP/2 connection that has a request under way. Also the time limit for
/// the answers to them.
const PING: Duration = Duration::from_secs(10);
/// The part of the largest age by which the ages of the lanes differ, so that not all connections
/// end at the same moment.
const AGE_SPREAD: f64 = 0.25;

/// The routes by which requests may reach a receiver.
#[derive(Clone)]
pub(super) enum Routes {
    /// Any address. If the environment names a proxy (`HTTPS_PROXY`, `NO_PROXY`), requests go
    /// through it.
    Any,
    /// Only the addresses that this resolver returns, without a proxy.
    Checked(Arc<dyn Resolve>),
}

pub(super) struct Clients {
    routes: Routes,
    connect_timeout: Duration,
    /// The largest age of connections.
    age: Duration,
    lanes: [Mutex<Option<Aged>>; LANES],
    /// The number of the next client.
    next: AtomicU64,
}

/// A client, and the time until which it gets requests.
struct Aged {
    client: Client,
    number: u64,
    tls: Arc<ClientConfig>,
    until: Instant,
}

impl Clients {
    pub(super) fn new(routes: Routes, connect_timeout: Duration, age: Duration) -> Self {
        Self {
            routes,
            connect_timeout,
            age,
            lanes: Default::default(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the client of a lane.
    pub(super) fn of_lane(
        &self,
        lane: usize,
        tls: &Arc<ClientConfig>,
    ) -> Result<Client, HttpError> {
        self.aged(lane, tls, |aged| aged.client.clone())
    }

    /// Returns the number of a lane's client; 0 if there can be none.
    pub(super) fn number_of_lane(&self, lane: usize, tls: &Arc<ClientConfig>) -> u64 {
        self.aged(lane, tls, |aged| aged.number).unwrap_or(0)
    }

    /// Looks at the client of a lane. Makes a new one if there is none, if it is too old, or if the
    /// settings of TLS are other ones.
    fn aged<R>(
        &self,
        lane: usize,
        tls: &Arc<ClientConfig>,
        look: impl FnOnce(&Aged) -> R,
    ) -> Result<R, HttpError> {
        let mut place = self.lanes[lane % LANES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(aged) = place
            .as_ref()
            .filter(|aged| now < aged.until && Arc::ptr_eq(&aged.tls, tls))
        {
            return Ok(look(aged));
        }
        let client = self.make(tls)?;
        let age = self
            .age
            .mul_f64(1.0 - AGE_SPREAD * lane as f64 / LANES as f64);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let aged = Aged {
            client,
            number,
            tls: Arc::clone(tls),
            until: now + age,
        };
        Ok(look(place.insert(aged)))
    }

    /// Returns the environment variable that may name a proxy for requests to this URL. `NO_PROXY`
    /// may leave the URL out. The value of the variable may have a password.
    pub(super) fn proxy_of(&self, url: &Url) -> Option<&'static str> {
        let variables = match (&self.routes, url.scheme()) {
            (Routes::Checked(_), _) => return None,
            (_, "https") => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
            _ => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
        };
        variables
            .into_iter()
            .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    }

    fn make(&self, tls: &ClientConfig) -> Result<Client, HttpError> {
        let mut client = Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .user_agent(concat!("seriatim/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(IDLE)
            .tcp_keepalive(PING)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING);
        if let Routes::Checked(resolver) = &self.routes {
            // Each event may name another host. So the client keeps only a few idle connections,
            // and only for a short time.
            client = client
                .no_proxy()
                .dns_resolver(resolver.clone())
                .pool_idle_timeout(IDLE_CHECKED)
                .pool_max_idle_per_host(IDLE_CHECKED_MAX);
        }
        client
            .build()
            .map_err(|error| HttpError::Client(causes(&error)))
    }
}
