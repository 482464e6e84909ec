//! In place of `traces`, in a build without the feature `traces`.

use std::convert::Infallible;

use crate::keys::Keys;
use crate::sink::{self, Batch};
use crate::worker::serve::deliver::Outcome;

/// The traces of a worker. A build without the feature `traces` has none.
#[derive(Debug, Clone)]
pub struct Traces(Infallible);

impl Traces {
    pub(in crate::worker) fn begin(
        &self,
        _: &Batch,
        _: usize,
        _: &sink::Context,
        _: &Keys,
    ) -> Option<Infallible> {
        match self.0 {}
    }
}

pub(in crate::worker) fn inside(
    _: Option<Infallible>,
    delivery: impl Future<Output = Outcome>,
) -> impl Future<Output = Outcome> {
    delivery
}
