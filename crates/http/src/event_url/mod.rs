//! The sink that sends each event to the URL that the event names.
//!
//! - `allowed`: the URLs and the addresses that events may name
//!
//! Any receiver may be hostile. So the requests run on the sink's own threads. A flood of answers
//! then takes no time from the worker's lease or from its calls to Redis.

mod addresses;
mod allowed;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use seriatim::async_trait;
use seriatim::event::{Event, Pointer};
use seriatim::handlers::{Effects, Stored};
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use allowed::{Allowed, Prefix};

use super::answer::Meaning;
use super::clients::Routes;
use super::effects;
use super::error::HttpError;
use super::exchange::{Answer, Attempt, Exchange, Repeat, To, shown};
use super::exclusive::Record;
use super::options::Options;
use super::receivers::{Away, Cause, PROBE_EVERY, Receivers};
use allowed::Resolver;

/// If the delivery of a batch takes longer than this, the events delivered so far are committed.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// Number of threads for requests.
const THREADS: usize = 2;
/// Maximum number of threads for lookups of host names.
const LOOKUP_THREADS: usize = 256;
/// Default number of deliveries at the same time. It equals the default of a worker.
const SLOTS: usize = 256;

/// A sink that posts each event to the URL that the event names.
///
/// The URL is the text at a JSON pointer of the event. It must begin with a prefix of [`Allowed`].
/// It must not lead to an address that is not public, unless [`Allowed`] has that address. An event
/// without such a URL is rejected. Its dead letter has the reason.
///
/// Answers have the same meaning as for [`Http`](super::Http), except that no answer stops all
/// objects:
///
/// - 401, 403, 404, 405, 407 are [`Stop::Transient`].
/// - 502, 503, 504, no connection and no answer are [`Stop::Transient`]. If the receiver takes no
///   other events meanwhile, they also open the circuit of the receiver, which is identified by
///   scheme, host and port. While the circuit is open, each process sends at most one request per
///   second to that receiver, and the objects take turns. Other events for this receiver are
///   postponed ([`Stop::Postponed`]), without an attempt. Any other answer closes the circuit.
/// - 429 with `Retry-After` is [`Stop::Postponed`], for all events of this receiver. After this time
///   the rate grows slowly.
/// - A slow receiver may have at most a quarter of the slots. A receiver is slow while a request to
///   it is older than 1 s, and for a minute after a timeout. Further events for it are postponed
///   ([`Stop::Postponed`]).
///
/// Redirects are not followed, and no proxy is used.
#[derive(Debug)]
pub struct EventUrl {
    pointer: Pointer,
    allowed: Arc<Allowed>,
    exchange: Arc<Exchange>,
    receivers: Receivers,
    /// The threads on which the requests run; `None` only while the sink is dropped.
    threads: Option<Runtime>,
}

impl Drop for EventUrl {
    fn drop(&mut self) {
        // A runtime must not be dropped in an async context, so it is shut down in the background.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// A request that runs on the sink's own threads. It ends when this value is dropped.
struct Request(JoinHandle<Answer>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The settings of the sink [`EventUrl`].
#[derive(Debug)]
pub struct EventUrlBuilder {
    pointer: Pointer,
    allowed: Allowed,
    options: Options,
    slots: usize,
    effects_from: Vec<Prefix>,
}

impl EventUrl {
    /// Begins the settings of a sink that takes the URL from the place `pointer` of each event,
    /// e.g. `/url`.
    #[must_use]
    pub fn at(pointer: Pointer, allowed: Allowed) -> EventUrlBuilder {
        EventUrlBuilder {
            pointer,
            allowed,
            options: Options::default(),
            slots: SLOTS,
            effects_from: Vec::new(),
        }
    }

    /// Sends one event. Returns the effects that the receiver asks for.
    async fn send(
        &self,
        event: &Event,
        number: u32,
        record: Option<&Arc<Record>>,
    ) -> Result<Option<Effects>, Stop> {
        let url = self
            .url_of(event)
            .map_err(|why| Stop::Rejected { error: why })?;
        let to = To::new(url);
        let origin = to.origin.clone();
        // A wait in this place would occupy a slot that other receivers need.
        let patience = Duration::ZERO;
        let postponed = |away: Away| Stop::Postponed {
            reason: format!("{origin}: {}", away.why),
            after: away.after,
        };
        let mut permit = self
            .receivers
            .pass(&origin, &event.object, Instant::now(), patience)
            .map_err(postponed)?;
        permit.begin(Instant::now()).map_err(postponed)?;
        let repeat = if permit.is_probe() {
            Repeat::Never
        } else {
            Repeat::Once
        };
        let answer = self
            .post(to, event.clone(), number, repeat, record.cloned())
            .await
            .map_err(Stop::transient)?;
        let (failure, now) = (answer.failure(), Instant::now());
        let Answer {
            meaning,
            effects,
            error,
            retry_after,
            ..
        } = answer;
        if let Some(failure) = failure {
            let cause = self
                .receivers
                .failed(&permit, failure, &error, retry_after, now);
            // For a receiver that fails, the retry policy decides the waits.
            return Err(Stop::Transient {
                error,
                retry_after: retry_after.filter(|_| cause != Cause::Receiver),
            });
        }
        match meaning {
            Meaning::Throttled => {
                let after =
                    self.receivers
                        .throttled(&permit, retry_after.unwrap_or_default(), &error, now);
                return Err(Stop::Postponed {
                    reason: error,
                    after,
                });
            }
            Meaning::Unsent => {
                return Err(Stop::Postponed {
                    reason: error,
                    after: retry_after.unwrap_or(PROBE_EVERY),
                });
            }
            Meaning::Unable => return Err(Stop::Unavailable { error }),
            Meaning::Unsendable => return Err(Stop::Rejected { error }),
            _ => self.receivers.answered(&permit, now),
        }
        match meaning {
            Meaning::Delivered => Ok(effects),
            Meaning::Rejected => Err(Stop::Rejected { error }),
            _ => Err(Stop::Transient { error, retry_after }),
        }
    }

    /// Sends one event. The request runs on the sink's own threads.
    async fn post(
        &self,
        to: To,
        event: Event,
        number: u32,
        repeat: Repeat,
        record: Option<Arc<Record>>,
    ) -> io::Result<Answer> {
        let exchange = self.exchange.clone();
        let Some(threads) = &self.threads else {
            return Err(io::Error::other("the sink is closed"));
        };
        let request = async move {
            let attempt = Attempt {
                number,
                repeat,
                record: record.as_deref(),
            };
            exchange
                .post(&to, std::slice::from_ref(&event), false, attempt)
                .await
        };
        #[cfg(feature = "traces")]
        let request =
            seriatim::trace::opentelemetry::context::FutureExt::with_current_context(request);
        let mut request = Request(threads.spawn(request));
        (&mut request.0)
            .await
            .map_err(|error| io::Error::other(format!("the request has ended: {error}")))
    }

    /// Returns the URL of an event, if it is allowed.
    fn url_of(&self, event: &Event) -> Result<reqwest::Url, String> {
        let document: &RawValue =
            serde_json::from_slice(&event.payload).map_err(|error| format!("not JSON: {error}"))?;
        let pointer = &self.pointer;
        let found = self
            .pointer
            .find(document)
            .ok_or_else(|| format!("the event has no URL at {pointer}"))?;
        let text: String = serde_json::from_str(found.get())
            .map_err(|_| format!("the URL at {pointer} is not a text"))?;
        let url = super::fixed::parse(&text)
            .map_err(|error| format!("the URL at {pointer} is refused: {error}"))?;
        self.allowed
            .check(&url)
            .map_err(|why| format!("{} is refused: {why}", shown(&url)))?;
        Ok(url)
    }
}

impl EventUrlBuilder {
    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the number of deliveries that the worker makes at the same time: the worker's
    /// `concurrency`. Default: 256. A slow receiver may have a quarter of this number.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Sets the prefixes of the URLs whose answers may have effects
    /// ([`Effects`]): events and schedules of any object. Default: none, because an event may name the
    /// URL of a stranger.
    #[must_use]
    pub fn effects_from(mut self, prefixes: Vec<Prefix>) -> Self {
        self.effects_from = prefixes;
        self
    }

    /// Opens the sink, and starts its threads. Does not connect yet.
    ///
    /// # Errors
    /// [`HttpError`] if no URL is allowed, a setting is invalid, TLS is not possible, or no thread can
    /// be started.
    pub fn open(self) -> Result<EventUrl, HttpError> {
        if self.allowed.is_empty() {
            return Err(HttpError::NothingAllowed);
        }
        let allowed = Arc::new(self.allowed);
        let routes = Routes::Checked(Arc::new(Resolver::new(allowed.clone())));
        let exchange = Arc::new(Exchange::new(
            self.options,
            routes,
            allowed.needs_tls(),
            Some(self.effects_from),
        )?);
        let threads = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(LOOKUP_THREADS)
            .thread_name("seriatim-http")
            .enable_all()
            .build()
            .map_err(|error| HttpError::Threads(error.to_string()))?;
        Ok(EventUrl {
            pointer: self.pointer,
            allowed,
            exchange,
            receivers: Receivers::new(self.slots),
            threads: Some(threads),
        })
    }
}

#[async_trait]
impl Sink for EventUrl {
    fn name(&self) -> String {
        "event-url".to_owned()
    }

    /// Reads the files of headers, secrets and authorities again.
    async fn reopen(&self) -> io::Result<bool> {
        self.exchange.read_again().await.map_err(io::Error::other)
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let record = self.exchange.record(cx).map(Arc::new);
        let delivered = self.deliver_each(batch, cx, record.as_ref()).await;
        if let Some(record) = record {
            record.close().await;
        }
        delivered
    }
}

impl EventUrl {
    async fn deliver_each(
        &self,
        batch: &Batch,
        cx: &Context,
        record: Option<&Arc<Record>>,
    ) -> Delivered {
        let stored = match Stored::of(batch, cx).await {
            Ok(stored) if stored.over() > 0 => return Delivered::so_far(stored.over()),
            Ok(stored) => stored,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let (began, together) = (Instant::now(), stored.together(batch.len()));
        for (delivered, event) in batch.events().take(together).enumerate() {
            if delivered > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(delivered);
            }
            cx.begins(event.id);
            let attempt = if delivered == 0 {
                cx.attempts.saturating_add(1)
            } else {
                1
            };
            match self.send(&event, attempt, record).await {
                Ok(None) => {}
                Ok(Some(effects)) => {
                    return effects::store(&effects, &event, delivered, &stored, cx).await;
                }
                Err(stop) => return Delivered::stopped(delivered, stop),
            }
        }
        stored.delivered(batch.len())
    }
}

impl fmt::Display for EventUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event-url:{}", self.pointer)
    }
}
