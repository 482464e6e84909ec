//! The sink that sends events to one URL.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;
use tokio::time::{Instant, sleep};
use url::form_urlencoded;

use super::answer::Meaning;
use super::error::HttpError;
use super::exchange::{Exchange, Repeat, Routes, shown};
use super::options::Options;
use crate::sink::{Batch, Context, Delivered, Sink, SinkError, Stop};

/// Maximum number of bytes of a URL. It leaves room for percent-encoding.
const URL_BYTES_MAX: usize = 60_000;
/// Maximum number of events of one request.
const BATCH_MAX: usize = 1000;
/// If the delivery of a batch takes longer than this, the events delivered so far are committed.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// Shortest time between two requests to an unavailable receiver.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for which an unavailable receiver can ask.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// The URL of the sink [`Http`], and the number of events in a request.
///
/// The text is a URL. Its query parameter `batch=N`, 1 to 1000, is a setting of the sink and is not
/// sent. With `batch`, each request has a list of up to N events. User and password in the URL are
/// sent as basic authentication, and are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    url: Url,
    batch: Option<usize>,
}

impl FromStr for Target {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let mut url = parse(text)?;
        let refused = |why: &str| HttpError::Url { why: why.to_owned() };
        let mut batches = url.query_pairs().filter(|(name, _)| name == "batch").map(|(_, value)| value.into_owned());
        let batch = match (batches.next(), batches.next()) {
            (None, _) => None,
            (Some(value), None) => {
                let number = value.parse().ok().filter(|number| (1..=BATCH_MAX).contains(number));
                Some(number.ok_or_else(|| refused("batch= must be 1 to 1000"))?)
            }
            (Some(_), Some(_)) => return Err(refused("batch= is there twice")),
        };
        drop(batches);
        if batch.is_some() {
            // The other parameters of the query stay unchanged, byte for byte.
            let is_other = |part: &&str| form_urlencoded::parse(part.as_bytes()).all(|(name, _)| name != "batch");
            let others: Vec<_> = url.query().unwrap_or_default().split('&').filter(is_other).collect();
            let others = others.join("&");
            url.set_query(Some(others.as_str()).filter(|others| !others.is_empty()));
        }
        Ok(Self { url, batch })
    }
}

impl Target {
    /// Returns the host and the port.
    #[must_use]
    pub fn address(&self) -> (String, u16) {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        (host.to_owned(), self.url.port_or_known_default().unwrap_or_default())
    }
}

/// Parses the URL of a receiver.
pub(super) fn parse(text: &str) -> Result<Url, HttpError> {
    let refused = |why: &str| HttpError::Url { why: why.to_owned() };
    let mut url = Url::parse(text).map_err(|error| refused(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("it must begin with http:// or https://"));
    }
    if text.len() > URL_BYTES_MAX {
        return Err(refused("it has more than 60000 bytes"));
    }
    url.set_fragment(None);
    Ok(url)
}

/// Shows the URL without user, password and query.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.url))?;
        self.batch.map_or(Ok(()), |batch| write!(f, "?batch={batch}"))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// A sink that posts events to one URL.
///
/// Without `batch`, a request has one envelope. With `batch`, a request has a list of envelopes of
/// one object. The answers have these meanings:
///
/// | answer | result |
/// |---|---|
/// | 2xx | delivered |
/// | 408, 425, 429, 504, 3xx, other 5xx; a timeout; a connection that ends before the answer, twice | [`Stop::Transient`]; `Retry-After` replaces the backoff |
/// | 502, 503; no connection; 401, 403, 404, 405, 407 | [`Stop::Unavailable`] |
/// | other 4xx | [`Stop::Rejected`]; the events of a list are sent again one by one |
///
/// While the receiver is unavailable, each process sends it one request per second. If the answer
/// has `Retry-After`, the process waits for that time, at most one minute. Redirects are not
/// followed.
#[derive(Debug)]
pub struct Http {
    exchange: Exchange,
    url: Url,
    batch: Option<usize>,
    gate: Gate,
}

/// The settings of the sink [`Http`].
#[derive(Debug)]
pub struct HttpBuilder {
    target: Target,
    options: Options,
}

impl Http {
    /// Begins the settings of a sink for this URL.
    ///
    /// ```
    /// use seriatim::sink::http::Http;
    ///
    /// let sink = Http::to("https://billing.example/events?batch=100".parse()?).open()?;
    /// # fn is_sink(_: impl seriatim::sink::Sink) {}
    /// # is_sink(sink);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to(target: Target) -> HttpBuilder {
        HttpBuilder { target, options: Options::default() }
    }

    /// Sends one request, and returns the number of events that are delivered.
    async fn send(&self, events: &[crate::event::Event], attempt: u32, repeat: Repeat) -> (usize, Option<Stop>) {
        let answer = self.exchange.post(&self.url, events, self.batch.is_some(), attempt, repeat).await;
        let error = answer.error;
        let stop = match answer.meaning {
            Meaning::Delivered => None,
            Meaning::Transient => Some(Stop::Transient { error, retry_after: answer.retry_after }),
            // A timeout or a lost connection does not open the gate. Only an answer shows that the
            // receiver is available again.
            Meaning::Silent => return (0, Some(Stop::transient(error))),
            Meaning::Rejected => Some(Stop::Rejected { error }),
            Meaning::Unavailable | Meaning::Misconfigured | Meaning::Unsendable | Meaning::Unable => {
                let wait = answer.retry_after.unwrap_or_default().clamp(PROBE_EVERY, AWAY_MAX);
                self.gate.close(wait, &error);
                return (0, Some(Stop::Unavailable { error }));
            }
        };
        self.gate.open();
        (if stop.is_none() { events.len() } else { 0 }, stop)
    }
}

impl HttpBuilder {
    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Opens the sink. Does not connect yet.
    ///
    /// # Errors
    /// [`SinkError::Http`] if a setting is invalid, or TLS is not possible.
    pub fn open(self) -> Result<Http, SinkError> {
        let Target { url, batch } = self.target;
        let exchange = Exchange::new(self.options, Routes::Any, url.scheme() == "https")?;
        Ok(Http { exchange, url, batch, gate: Gate::default() })
    }
}

#[async_trait]
impl Sink for Http {
    fn name(&self) -> String {
        shown(&self.url)
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let mut repeat = match self.gate.pass().await {
            Ok(repeat) => repeat,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let events: Vec<_> = batch.events().collect();
        let began = Instant::now();
        let mut delivered = 0;
        // The end of a list that the receiver has rejected. The events up to this end are sent one
        // by one.
        let mut single_until = 0;
        while delivered < events.len() {
            if delivered > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(delivered);
            }
            let size = if delivered < single_until { 1 } else { self.batch.unwrap_or(1) };
            let part = &events[delivered..events.len().min(delivered + size)];
            cx.begins(part[0].id);
            let attempt = if delivered == 0 { cx.attempts.saturating_add(1) } else { 1 };
            let sent = self.send(part, attempt, repeat).await;
            repeat = Repeat::Once;
            match sent {
                (count, None) => delivered += count,
                (_, Some(Stop::Rejected { .. })) if part.len() > 1 => single_until = delivered + part.len(),
                (_, Some(stop)) => return Delivered::stopped(delivered, stop),
            }
        }
        Delivered::all()
    }
}

/// The gate before an unavailable receiver. It lets one delivery pass per second.
#[derive(Debug, Default)]
struct Gate(Mutex<Option<Closed>>);

#[derive(Debug)]
struct Closed {
    until: Instant,
    error: String,
    /// Whether a delivery already waits until `until`.
    has_waiter: bool,
}

/// The only delivery that waits at the gate. If it is dropped, another delivery may wait.
struct Waiter<'a>(&'a Gate);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(closed) = &mut *self.0.state() {
            closed.has_waiter = false;
        }
    }
}

impl Gate {
    /// Waits until a request may be sent. Returns whether the request may be repeated: only if the
    /// gate is open. Returns [`Stop::Unavailable`] at once if the wait would be longer than a
    /// second, or if another delivery already waits.
    async fn pass(&self) -> Result<Repeat, Stop> {
        let (_waiter, wait) = {
            let mut state = self.state();
            let Some(closed) = &mut *state else { return Ok(Repeat::Once) };
            let wait = closed.until.saturating_duration_since(Instant::now());
            if closed.has_waiter || wait > PROBE_EVERY {
                return Err(Stop::unavailable(&closed.error));
            }
            closed.has_waiter = true;
            (Waiter(self), wait)
        };
        sleep(wait).await;
        let now = Instant::now();
        if let Some(closed) = &mut *self.state() {
            // During this wait, the receiver may have asked for more time.
            if closed.until > now {
                return Err(Stop::unavailable(&closed.error));
            }
            closed.until = now + PROBE_EVERY;
            return Ok(Repeat::Never);
        }
        Ok(Repeat::Once)
    }

    fn close(&self, wait: Duration, error: &str) {
        let mut state = self.state();
        let has_waiter = state.as_ref().is_some_and(|closed| closed.has_waiter);
        *state = Some(Closed { until: Instant::now() + wait, error: error.to_owned(), has_waiter });
    }

    fn open(&self) {
        let mut state = self.state();
        if state.is_some() {
            *state = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<Closed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_and_the_size_of_its_lists() {
        for (text, url, batch) in [
            ("https://host/a?b=%20&batch=10&c#d", "https://host/a?b=%20&c", Some(10)),
            ("http://host", "http://host/", None),
            ("http://host?batch=1", "http://host/", Some(1)),
            ("http://host/?batches=2", "http://host/?batches=2", None),
        ] {
            let target: Target = text.parse().expect("a target");
            assert_eq!((target.url.as_str(), target.batch), (url, batch), "{text}");
        }
        let target: Target = "https://user:hunter2@host:8443/a?token=hunter2&batch=5".parse().expect("a target");
        assert_eq!(target.to_string(), "https://host:8443/a?batch=5");
        assert!(!format!("{target:?}").contains("hunter2"));
    }

    #[test]
    fn what_is_no_target_is_refused_without_its_password() {
        for text in [
            "http://",
            "ftp://user:hunter2@host/",
            "http://user:hunter2@host:99999/",
            "http://host/?batch=0",
            "http://host/?batch=1001",
            "http://host/?batch=x",
            "http://user:hunter2@host/?batch=2&batch=2",
        ] {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(!error.contains("hunter2") && error.contains("write e.g."), "{error}");
        }
    }

    /// Tests that a closed gate lets one delivery pass per second. This holds for any number of
    /// deliveries, and even if some of them are dropped.
    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_lets_one_delivery_pass_per_second() {
        let (gate, began) = (Gate::default(), Instant::now());
        assert_eq!(gate.pass().await, Ok(Repeat::Once));
        gate.close(PROBE_EVERY, "away");
        for second in 1..=5 {
            assert!(tokio::time::timeout(Duration::from_millis(10), gate.pass()).await.is_err(), "it waits");
            let (first, second_one) = tokio::join!(gate.pass(), gate.pass());
            assert_eq!((first, second_one), (Ok(Repeat::Never), Err(Stop::unavailable("away"))));
            assert_eq!(began.elapsed().as_secs(), second);
        }
        gate.close(AWAY_MAX, "later");
        assert_eq!(gate.pass().await, Err(Stop::unavailable("later")));
        gate.open();
        assert_eq!(tokio::join!(gate.pass(), gate.pass()), (Ok(Repeat::Once), Ok(Repeat::Once)));
    }
}
