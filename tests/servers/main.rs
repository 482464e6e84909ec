//! Servers in production: TLS, replicas, Sentinels, and servers that are not the right one.
#![cfg(feature = "cli")]

#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/mod.rs"]
mod support;

mod doctor;
mod other_servers;
mod replicas;
mod tls;
