//! The post: a record of one slot's deliveries. The watch of the worker process reads it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::report::{Report, line_of};
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
    /// The slot.
    slot: usize,
    /// The report on the event under delivery.
    report: Mutex<Option<Box<Reported>>>,
    /// The number of reports of all deliveries.
    reports: AtomicU64,
}

impl Post {
    /// Returns the post of a slot.
    pub(crate) fn of_slot(slot: usize) -> Self {
        Self {
            slot,
            ..Self::default()
        }
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

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

    /// Records the progress of an event, as JSON text. A report on another event than the one under
    /// delivery is late, and has no effect.
    pub(crate) fn progress(&self, id: u64, json: &str) {
        self.change(id, |report| report.set_progress(json.to_owned()));
    }

    /// Records a log line of an event, as [`Self::progress`].
    pub(crate) fn log(&self, id: u64, text: &str) {
        self.change(id, |report| report.add_line(line_of(text)));
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Report)) {
        let mut kept = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if id != self.id() {
            return;
        }
        let reported = kept.get_or_insert_default();
        if reported.report.id != id {
            reported.report = Report::default();
            reported.report.id = id;
        }
        change(&mut reported.report);
        reported.version = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
    }

    /// Returns what `look` finds in the report on the event under delivery; `None` without a report.
    pub(crate) fn report<T>(&self, look: impl FnOnce(&Reported) -> T) -> Option<T> {
        let kept = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = kept.as_deref()?;
        (reported.report.id == self.id()).then(|| look(reported))
    }
}

/// The report on the event under delivery.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    /// A number that differs after each change, and between the events of a slot.
    pub(crate) version: u64,
    pub(crate) report: Report,
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
        let mut report = self.0.report.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that runs the event may report a little longer.
        self.0.id.store(0, Ordering::Relaxed);
        *report = None;
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
