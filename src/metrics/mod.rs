//! Metrics for Prometheus, in the form of OpenMetrics (feature `metrics`).
//!
//! This module has two collectors for a registry of `prometheus-client`: [`WorkerMetrics`] for one
//! worker, and [`NamespaceMetrics`] for all objects of a namespace in Redis. No label has the name
//! of an object, an event type, the name of a worker, or an error. So the number of series does not
//! grow with the number of objects.
//!
//! Without a scrape, a collector costs nothing. `docs/operations.md` lists the metrics to watch, and
//! `docs/lab/operations.md` all others.
//!
//! ```no_run
//! use prometheus_client::registry::Registry;
//! use seriatim::metrics::WorkerMetrics;
//!
//! # fn example(worker: &seriatim::worker::Worker) {
//! let mut registry = Registry::with_prefix("seriatim");
//! registry.register_collector(Box::new(WorkerMetrics::new(worker.vitals())));
//! # }
//! ```
//!
//! - `worker`: the metrics of one worker
//! - `namespace`: the metrics of a namespace
//! - `writer`: writes metrics of the usual kinds

mod namespace;
mod worker;
mod writer;

pub use self::namespace::{NamespaceMetrics, PREFIXES_MAX};
pub use self::worker::WorkerMetrics;
pub use prometheus_client;
