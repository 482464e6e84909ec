//! The post: a record of a slot's deliveries, which the watch of a worker reads.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::event::ObjectName;

/// The record of a slot's deliveries.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// A number that is odd while a delivery is polled. Changes with each poll and each event.
    polls: AtomicU64,
    /// The id of the event under delivery.
    id: AtomicU64,
    object: Mutex<Option<ObjectName>>,
    /// The begin of the delivery; `None` if none is under way.
    began: Mutex<Option<Instant>>,
}

impl Post {
    /// Runs a delivery and records each of its polls. `first` is the id of the first event.
    pub(crate) async fn note<F: Future>(&self, object: &ObjectName, first: u64, delivery: F) -> F::Output {
        *self.object.lock().unwrap_or_else(PoisonError::into_inner) = Some(object.clone());
        self.id.store(first, Ordering::Relaxed);
        let _under_way = UnderWay::begin(self);
        let mut delivery = pin!(delivery);
        poll_fn(|cx| {
            let _polled = Polled::begin(self);
            delivery.as_mut().poll(cx)
        })
        .await
    }

    /// Records that the delivery goes on with this event.
    pub(crate) fn event(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
        self.polls.fetch_add(2, Ordering::Release);
    }

    /// Returns a number that is odd while a delivery is polled. It changes with each poll and each
    /// event.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Acquire)
    }

    /// Returns the begin of the delivery under way, if any.
    pub(crate) fn began(&self) -> Option<Instant> {
        *self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_polled(&self) -> bool {
        !self.polls().is_multiple_of(2)
    }

    /// Returns the id of the event under delivery.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Returns the object of the delivery; empty before the first delivery.
    pub(crate) fn object(&self) -> String {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

/// The guard of a delivery under way. It also ends a delivery that is dropped.
struct UnderWay<'a>(&'a Post);

impl<'a> UnderWay<'a> {
    fn begin(post: &'a Post) -> Self {
        *post.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Self(post)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The guard of a poll under way. It also ends the poll after a panic.
pub(crate) struct Polled<'a>(&'a Post);

impl<'a> Polled<'a> {
    pub(crate) fn begin(post: &'a Post) -> Self {
        post.polls.fetch_add(1, Ordering::Release);
        Self(post)
    }
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        self.0.polls.fetch_add(1, Ordering::Release);
    }
}
