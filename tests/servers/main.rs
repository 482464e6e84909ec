//! Servers in production: TLS, replicas, Sentinels, and servers that are not the right one.

#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/mod.rs"]
mod support;

mod announced;
mod doctor;
mod first_start;
mod other_servers;
mod proxies;
mod refusals;
mod replicas;
mod tls;
mod waits;
