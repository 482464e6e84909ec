//! Where the deliveries of a slot are noted, for the watch of a worker.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::event::ObjectName;

/// Where the deliveries of a slot are noted.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// Odd while a delivery is polled; another number with each poll and each event.
    polls: AtomicU64,
    /// The event under delivery.
    id: AtomicU64,
    object: Mutex<Option<ObjectName>>,
}

impl Post {
    /// Notes each poll of the delivery of this object's events, which begin with `first`.
    pub(crate) async fn note<F: Future>(&self, object: &ObjectName, first: u64, delivery: F) -> F::Output {
        *self.object.lock().unwrap_or_else(PoisonError::into_inner) = Some(object.clone());
        self.id.store(first, Ordering::Relaxed);
        let mut delivery = pin!(delivery);
        poll_fn(|cx| {
            let _polled = Polled::begin(self);
            delivery.as_mut().poll(cx)
        })
        .await
    }

    /// The delivery goes on with this event.
    pub(crate) fn event(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
        self.polls.fetch_add(2, Ordering::Release);
    }

    /// A number that is odd while a delivery is polled; another one with each poll and each event.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Acquire)
    }

    pub(crate) fn is_polled(&self) -> bool {
        !self.polls().is_multiple_of(2)
    }

    /// The id of the event under delivery.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// The object of the delivery; empty before the first.
    pub(crate) fn object(&self) -> String {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

/// A poll under way, also where it panics.
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
