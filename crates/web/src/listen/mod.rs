//! Everything that listens for HTTP: addresses, connections, TLS, hosts, users, and problem
//! documents.
//!
//! - `address`: the addresses to listen on
//! - `connections`: accepts connections, within limits of number and time
//! - `fair`: limits that users share
//! - `places`: which connection gives way to a new one
//! - `tls`: the certificate
//! - `files`: reads the users file and the certificate again
//! - `hosts`: the hosts for which the server answers
//! - `guard`: the checks that every request must pass before it reaches its route
//! - `asked`: the user, the headers and the parameters of a request that has passed
//! - `parameters`: the parameters that each route takes
//! - `probes`: the routes for probes, which need no check
//! - `metrics`: the route for scrapers, which needs no check
//! - `process`: the figures of this process
//! - `users`: the users file: names, tokens, rights
//! - `problem`: errors as problem documents (RFC 9457)
//!
//! If the process dies during a request, no acknowledged event is lost: a positive answer is sent
//! only after Redis has acknowledged the event.

pub mod address;
pub(crate) mod asked;
pub(crate) mod connections;
pub(crate) mod fair;
mod files;
mod guard;
pub(crate) mod hosts;
mod lingering;
pub mod metrics;
pub(crate) mod parameters;
pub(crate) mod places;
pub mod probes;
pub(crate) mod problem;
mod process;
mod tls;
pub mod users;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::units::time;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::address::Address;
use self::connections::Connections;
use self::files::{Files, Followed, follow};
use self::guard::Guard;
use self::hosts::Hosts;
use self::problem::Problem;
use self::tls::Certificate;
use self::users::Users;

/// Module name for log filters.
const LOG: &str = "seriatim::listen";

/// The most connections of the listener for probes alone.
const PROBES_MAX: u32 = 64;

/// The options of every command that listens.
#[derive(Debug, clap::Args)]
pub(crate) struct ListenArgs {
    /// The address to listen on: HOST:PORT or unix:PATH; may be given more than once
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: Vec<Address>,
    /// The file with the users and their rights. It has a line NAME SHA256 RIGHT[,RIGHT…] [PREFIX…]
    /// for each user, and is read again when it changes. Without a users file, --listen may name only
    /// addresses of this machine, and everybody has all rights
    #[arg(long, env = "SERIATIM_USERS", value_name = "FILE")]
    users: Option<PathBuf>,
    /// Also answer requests whose host is NAME; localhost and IP addresses are always answered; may
    /// be given more than once
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// The PEM file with the server's certificate for TLS, and the certificates of its authorities.
    /// It is read again when it or --tls-key changes
    #[arg(
        long,
        env = "SERIATIM_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// The PEM file with the private key for --tls-cert
    #[arg(
        long,
        env = "SERIATIM_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// A further address, for probes alone: HOST:PORT or unix:PATH. It answers /healthz and /readyz to
    /// anybody, and has places of its own, so other connections never keep probes out
    #[arg(long, value_name = "ADDRESS")]
    probe_listen: Option<Address>,
    /// The most connections at a time: 1 to 100000. If there are more, a connection without a known
    /// user gives way to a new one
    #[arg(long, value_name = "N", default_value_t = 12_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// The longest wait of a graceful stop for requests under way: up to 1h
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = grace)]
    grace: Duration,
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = time(text)?;
    if grace <= Duration::from_secs(60 * 60) {
        Ok(grace)
    } else {
        Err("it must be at most 1h".to_owned())
    }
}

/// The open listeners and the checks of their requests. They do not accept connections before
/// `serve`.
pub struct Listening {
    connections: Connections,
    /// The listener for probes alone.
    probes: Option<Connections>,
    users: Option<Arc<Users>>,
    certificate: Option<Arc<Certificate>>,
    /// The files that are read again.
    followed: Vec<Followed>,
    /// The checks of requests; `None` if the routes check requests themselves, or if everybody may
    /// use all routes.
    guard: Option<Guard>,
    /// Whether there can be several users.
    has_users: bool,
    grace: Duration,
}

impl ListenArgs {
    /// Reads the files and opens the listeners. Every request must pass the checks of the guard.
    pub(crate) async fn open(&self) -> anyhow::Result<Listening> {
        let mut listening = self
            .open_unguarded(self.users.is_some(), "name a users file with --users")
            .await?;
        let users = listening.users().cloned();
        listening.guard = Some(Guard::new(Hosts::new(self.hosts()), users));
        Ok(listening)
    }

    /// Reads the files and opens the listeners. The routes check every request themselves. If
    /// `is_guarded` is false, only addresses of this machine are allowed. `guards`: the options that
    /// guard the requests, for the error of another address.
    pub(crate) async fn open_unguarded(
        &self,
        is_guarded: bool,
        guards: &'static str,
    ) -> anyhow::Result<Listening> {
        let input = |error: String| Failure::with(Exit::Input, error);
        let mut followed = Vec::new();
        let mut users = None;
        if let Some(path) = self.users.clone() {
            let files = Files::new("users", [path.clone()]);
            let read = users
                .insert(Arc::new(Users::read(&path).map_err(input)?))
                .clone();
            followed.push(files.read_by(move || read.read_again(&path)));
        }
        let mut certificate = None;
        if let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let files = Files::new("certificate", [chain.clone(), key.clone()]);
            let read = certificate
                .insert(Arc::new(Certificate::read(chain, key).map_err(input)?))
                .clone();
            followed.push(files.read_by(move || read.read_again()));
        }
        let mut connections =
            Connections::new(self.connections, certificate.clone()).with_guards(guards);
        for address in &self.listen {
            connections.open(address, is_guarded).await?;
        }
        let probes = match &self.probe_listen {
            Some(address) => {
                let mut probes = Connections::for_probes(PROBES_MAX, "--probe-listen");
                probes.open(address, true).await?;
                Some(probes)
            }
            None => None,
        };
        let grace = self.grace;
        Ok(Listening {
            connections,
            probes,
            users,
            certificate,
            followed,
            guard: None,
            has_users: is_guarded,
            grace,
        })
    }

    /// Returns the names of `--host`.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.host.iter().map(String::as_str)
    }

    /// Returns whether a users file is given.
    pub(crate) fn has_users(&self) -> bool {
        self.users.is_some()
    }
}

impl Listening {
    /// Returns the users, if a users file is given.
    pub(crate) fn users(&self) -> Option<&Arc<Users>> {
        self.users.as_ref()
    }

    /// Returns whether there can be several users.
    pub(crate) fn has_users(&self) -> bool {
        self.has_users
    }

    /// Returns whether requests come over TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.certificate.is_some()
    }

    /// Returns the addresses on which it listens, as URLs or `unix:PATH`.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.connections.addresses()
    }

    /// Opens a listener for probes and scrapers. Its requests are not checked: anybody may send
    /// them.
    pub async fn for_probes(address: &Address, connections_max: u32) -> anyhow::Result<Self> {
        let mut connections = Connections::for_probes(connections_max, "the same option");
        connections.open(address, true).await?;
        Ok(Self {
            connections,
            probes: None,
            users: None,
            certificate: None,
            followed: Vec::new(),
            guard: None,
            has_users: false,
            grace: Duration::ZERO,
        })
    }

    /// Serves these routes until `stop` is cancelled. After that, requests under way have at most
    /// the grace to end. New requests are refused, except those of probes and scrapers.
    pub async fn serve(self, routes: Router, stop: CancellationToken) -> anyhow::Result<()> {
        for address in self.connections.addresses() {
            info!(target: LOG, %address, "listening");
        }
        for address in self.probes.iter().flat_map(Connections::addresses) {
            info!(target: LOG, %address, "listening for probes");
        }
        let rereading = tokio::spawn(follow(self.followed, signal(SignalKind::hangup())?));
        let routes = routes.layer(from_fn_with_state(stop.clone(), refuse_if_stopping));
        let routes = match self.guard {
            Some(guard) => guard.around(routes),
            None => routes,
        };
        // A stopping process answers probes until its last request has ended.
        let ended = CancellationToken::new();
        let (connections, probes, grace, has_users) =
            (self.connections, self.probes, self.grace, self.has_users);
        let probing = async {
            if let Some(probes) = probes {
                probes
                    .serve(
                        routes.clone().layer(from_fn(only_probes)),
                        ended.clone(),
                        Duration::ZERO,
                        false,
                    )
                    .await;
            }
        };
        let serving = async {
            connections
                .serve(routes.clone(), stop, grace, has_users)
                .await;
            ended.cancel();
        };
        tokio::join!(serving, probing);
        rereading.abort();
        Ok(())
    }
}

async fn refuse_if_stopping(
    State(stop): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    if stop.is_cancelled() && !probes::is_one_or_scrape(request.method(), request.uri().path()) {
        return Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the server stops; send the request to another one, or again",
        )
        .into_response();
    }
    next.run(request).await
}

/// Refuses all requests but those of probes.
async fn only_probes(request: Request, next: Next) -> Response {
    match probes::is_one(request.method(), request.uri().path()) {
        true => next.run(request).await,
        false => Problem::not_found("this address is for probes alone: /healthz and /readyz")
            .into_response(),
    }
}
