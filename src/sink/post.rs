//! The post: a record of one slot's deliveries. The watch of the worker process reads it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::event::ObjectName;

/// The record of one slot's deliveries.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// A number that is odd while a delivery is polled. It changes with each poll, and with each
    /// event of a delivery.
    polls: AtomicU64,
    /// The id of the event under delivery.
    id: AtomicU64,
    object: Mutex<Option<ObjectName>>,
    /// Time at which the delivery under way began; `None` if none is under way.
    began: Mutex<Option<Instant>>,
}

impl Post {
    /// Runs a delivery and records each of its polls. `first` is the id of its first event.
    pub(crate) async fn note<F: Future>(
        &self,
        object: &ObjectName,
        first: u64,
        delivery: F,
    ) -> F::Output {
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

    /// Records that the delivery has now reached this event.
    pub(crate) fn event(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
        self.polls.fetch_add(2, Ordering::Release);
    }

    /// Returns a number that is odd while a delivery is polled. It changes with each poll, and with
    /// each event of a delivery.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Acquire)
    }

    /// Returns the time at which the delivery under way began; `None` if none is under way.
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

    /// Returns the object of the latest delivery; empty before the first delivery.
    pub(crate) fn object(&self) -> String {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

/// The guard of a delivery under way. Its drop records the end of the delivery, even if the
/// delivery itself is dropped.
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

/// The guard of a poll under way. Its drop records the end of the poll, even after a panic.
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
