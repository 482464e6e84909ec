//! Requests of an exclusive sink: no request is sent as long as an earlier one with events of the same
//! object may be open at the receiver.
//!
//! Before a request is sent, it is recorded in Redis, with a time limit that begins there. The request
//! ends with this limit, and is not sent after it. So after the limit and a margin, any process may
//! send the next one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{StatusCode, Url};
use seriatim::escape;
use seriatim::sink::{Context, Opened, RequestError};
use tokio::time::Instant;
use tracing::warn;

use super::LOG;
use super::event_url::Prefix;

/// The header with the number of a request.
const NUMBER: &str = "seriatim-attempt";

/// The requests for which a receiver works on one request of an object at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exclusive {
    /// None of them: an event may come again while the receiver still works on it.
    #[default]
    None,
    /// All of them.
    All,
    /// Those to URLs with one of these prefixes.
    Prefixes(Vec<Prefix>),
}

impl Exclusive {
    pub(super) fn has(&self, url: &Url) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Prefixes(prefixes) => prefixes.iter().any(|prefix| prefix.has(url)),
        }
    }
}

/// The record of the requests of one delivery.
#[derive(Debug)]
pub(super) struct Record {
    cx: Context,
    /// Whether Redis has a record of a request of this delivery.
    is_kept: AtomicBool,
    /// Whether the last request is known to be over.
    is_over: AtomicBool,
    /// The number of the last request.
    number: AtomicU64,
}

/// A request that may be sent.
pub(super) struct Open {
    number: u64,
    deadline_ms: u64,
    /// The time at which the request ends, by the clock of this process.
    pub(super) ends: Instant,
}

/// The reason why a request may not be sent.
pub(super) enum NotOpen {
    Earlier(Duration),
    /// Redis took longer than the time limit.
    Late,
    Failed(RequestError),
}

impl Record {
    /// Returns the record of a delivery.
    pub(super) fn new(cx: &Context) -> Self {
        Self {
            cx: cx.clone(),
            is_kept: AtomicBool::new(false),
            is_over: AtomicBool::new(true),
            number: AtomicU64::new(0),
        }
    }

    /// Records a request that is about to be sent. Returns `None` outside of a worker.
    pub(super) async fn open(&self, limit: Duration) -> Result<Option<Open>, NotOpen> {
        // The limit begins here, before it begins in Redis. So this process ends the request first.
        let ends = Instant::now() + limit;
        // A call that fails may have written the record.
        self.is_kept.store(true, Ordering::Relaxed);
        match self.cx.open_request(limit).await.map_err(NotOpen::Failed)? {
            None => Ok(None),
            Some(Opened::Earlier(left)) => {
                self.is_kept.store(false, Ordering::Relaxed);
                Err(NotOpen::Earlier(left))
            }
            Some(Opened::Now { .. }) if Instant::now() >= ends => Err(NotOpen::Late),
            Some(Opened::Now { number, deadline }) => {
                self.is_over.store(false, Ordering::Relaxed);
                self.number.store(number, Ordering::Relaxed);
                let deadline = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
                Ok(Some(Open {
                    number,
                    deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
                    ends,
                }))
            }
        }
    }

    /// Records that the request has not reached the receiver.
    pub(super) fn unsent(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Records an answer. A status that a gateway may have sent does not say that the receiver behind
    /// it has ended its work, unless the answer repeats the number of the request.
    pub(super) fn answered(&self, status: StatusCode, headers: &HeaderMap) {
        let may_be_of_gateway = matches!(status.as_u16(), 408 | 502..=504 | 520..=599);
        let number = headers
            .get(NUMBER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let is_repeated = number == Some(self.number.load(Ordering::Relaxed));
        self.is_over
            .store(!may_be_of_gateway || is_repeated, Ordering::Relaxed);
    }

    /// Records that an answer has not ended, so the receiver may still work.
    pub(super) fn unfinished(&self) {
        self.is_over.store(false, Ordering::Relaxed);
    }

    /// Returns whether the last request is known to be over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the delivery: other requests of the object may follow if the last one is over.
    pub(super) async fn close(&self) {
        if !self.is_kept.load(Ordering::Relaxed) || !self.is_over() {
            return;
        }
        if let Err(error) = self.cx.request_over().await {
            let error = escape::text(&error.to_string()).to_string();
            warn!(
                target: LOG,
                error,
                "deliver: the object waits until the time of its last request is over"
            );
        }
    }
}

impl Open {
    /// Adds the number and the deadline of the request.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        headers.insert(NUMBER, HeaderValue::from(self.number));
        headers.insert("seriatim-deadline", HeaderValue::from(self.deadline_ms));
    }
}
