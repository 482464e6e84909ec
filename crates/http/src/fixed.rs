//! The sink that sends events to one URL.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use reqwest::Url;
use seriatim::async_trait;
use seriatim::event::Event;
use seriatim::handlers::{Effects, Stored};
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::time::{Instant, sleep};
use url::form_urlencoded;

use super::answer::Meaning;
use super::clients::Routes;
use super::effects;
use super::error::HttpError;
use super::exchange::{Answer, Attempt, Exchange, Repeat, To, shown};
use super::exclusive::Record;
use super::options::Options;
use super::receivers::{Away, Cause, Failure, PROBE_EVERY, Receivers};

/// Maximum number of bytes of a URL. It leaves room for percent-encoding.
const URL_BYTES_MAX: usize = 60_000;
/// Maximum number of events of one request.
const BATCH_MAX: usize = 1000;
/// If the delivery of a batch takes longer than this, the events delivered so far are committed.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// Longest time for which a delivery waits until its request may be sent. There is only one
/// receiver, so the slot has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait of an object while it is not known whether it or the receiver is the cause of a
/// refusal.
const UNCLEAR_MAX: Duration = Duration::from_secs(60);

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
        let refused = |why: &str| HttpError::Url {
            why: why.to_owned(),
        };
        let is_misspelled = |name: &str| name != "batch" && name.eq_ignore_ascii_case("batch");
        if url.query_pairs().any(|(name, _)| is_misspelled(&name)) {
            return Err(refused(
                "the name batch is a setting of the sink; write batch= in lower case",
            ));
        }
        let mut batches = url
            .query_pairs()
            .filter(|(name, _)| name == "batch")
            .map(|(_, value)| value.into_owned());
        let batch = match (batches.next(), batches.next()) {
            (None, _) => None,
            (Some(value), None) => {
                let number = value
                    .parse()
                    .ok()
                    .filter(|number| (1..=BATCH_MAX).contains(number));
                Some(number.ok_or_else(|| refused("batch= must be 1 to 1000"))?)
            }
            (Some(_), Some(_)) => return Err(refused("batch= is there twice")),
        };
        drop(batches);
        if batch.is_some() {
            // The other parameters of the query stay unchanged, byte for byte.
            let is_other = |part: &&str| {
                form_urlencoded::parse(part.as_bytes()).all(|(name, _)| name != "batch")
            };
            let others: Vec<_> = url
                .query()
                .unwrap_or_default()
                .split('&')
                .filter(is_other)
                .collect();
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
        let host = self
            .url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']']);
        (
            host.to_owned(),
            self.url.port_or_known_default().unwrap_or_default(),
        )
    }
}

/// Parses the URL of a receiver.
pub(super) fn parse(text: &str) -> Result<Url, HttpError> {
    let refused = |why: &str| HttpError::Url {
        why: why.to_owned(),
    };
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
        self.batch
            .map_or(Ok(()), |batch| write!(f, "?batch={batch}"))
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
/// | 2xx | delivered. With the type `application/vnd.seriatim+json` it has [`Effects`](seriatim::handlers::Effects) |
/// | 408, 425, 429, 504, 3xx, other 5xx; a timeout; a connection that ends before the answer, twice | [`Stop::Transient`]; `Retry-After` replaces the backoff |
/// | 429 with `Retry-After` | [`Stop::Unavailable`] for this time, at most 1 h. After it, the rate grows slowly |
/// | 401, 403, 404, 405, 407, 502, 503 | [`Stop::Transient`] if the receiver accepts events of other objects meanwhile, else [`Stop::Unavailable`]. Until this is known, [`Stop::Postponed`] |
/// | no connection | [`Stop::Unavailable`] |
/// | other 4xx | [`Stop::Rejected`]; the events of a list are sent again one by one |
///
/// [`Options::statuses`] changes the meanings. While the receiver is unavailable, each process sends
/// it one request per second. If the answer has `Retry-After`, the process waits for that time, at
/// most one minute. Redirects are not followed.
#[derive(Debug)]
pub struct Http {
    exchange: Exchange,
    to: To,
    batch: Option<usize>,
    receivers: Receivers,
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
    /// use seriatim_http::Http;
    ///
    /// let sink = Http::to("https://billing.example/events?batch=100".parse()?).open()?;
    /// # fn is_sink(_: impl seriatim::sink::Sink) {}
    /// # is_sink(sink);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to(target: Target) -> HttpBuilder {
        HttpBuilder {
            target,
            options: Options::default(),
        }
    }

    /// Sends one request, if the receiver may get one now. Returns the effects that the receiver asks
    /// for.
    async fn send(
        &self,
        events: &[Event],
        number: u32,
        record: Option<&Record>,
        cx: &Context,
    ) -> Result<Option<Effects>, Stop> {
        let away = |away: Away| match away.is_busy {
            true => Stop::Postponed {
                reason: away.why,
                after: away.after,
            },
            false => Stop::Unavailable { error: away.why },
        };
        let object = &events[0].object;
        let mut permit = self
            .receivers
            .pass(&self.to.origin, object, Instant::now(), PATIENCE)
            .map_err(away)?;
        if !permit.wait.is_zero() {
            sleep(permit.wait).await;
            // The process may have stood still meanwhile.
            if cx.may_be_lost() {
                return Err(Stop::not_begun());
            }
        }
        permit.begin(Instant::now()).map_err(away)?;
        let repeat = if permit.is_probe() {
            Repeat::Never
        } else {
            Repeat::Once
        };
        let attempt = Attempt {
            number,
            repeat,
            record,
        };
        let answer = self
            .exchange
            .post(&self.to, events, self.batch.is_some(), attempt)
            .await;
        let Answer {
            meaning,
            effects,
            error,
            retry_after,
            ..
        } = answer;
        let now = Instant::now();
        let failed = |failure| {
            self.receivers
                .failed(&permit, failure, &error, retry_after, now)
        };
        let cause = match meaning {
            Meaning::Delivered | Meaning::Transient | Meaning::Rejected => {
                self.receivers.answered(&permit, now);
                Cause::Event
            }
            // A timeout or a lost connection shows nothing about a receiver that is down.
            Meaning::Silent if permit.is_probe() => Cause::Receiver,
            Meaning::Silent => Cause::Event,
            Meaning::Unavailable | Meaning::Misconfigured => failed(Failure::Refused),
            Meaning::Unreachable | Meaning::Unsendable | Meaning::Unable => {
                failed(Failure::Unreachable)
            }
            Meaning::Throttled => {
                self.receivers
                    .throttled(&permit, retry_after.unwrap_or_default(), &error, now);
                Cause::Receiver
            }
            Meaning::Unsent => {
                return Err(Stop::Postponed {
                    reason: error,
                    after: retry_after.unwrap_or(PROBE_EVERY),
                });
            }
        };
        match (meaning, cause) {
            (Meaning::Delivered, _) => Ok(effects),
            (Meaning::Rejected, _) => Err(Stop::Rejected { error }),
            (_, Cause::Event) => Err(Stop::Transient { error, retry_after }),
            (_, Cause::Unknown) => Err(Stop::Postponed {
                reason: error,
                after: unclear_for(retry_after),
            }),
            (_, Cause::Receiver) => Err(Stop::Unavailable { error }),
        }
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
    /// [`HttpError`] if a setting is invalid, or TLS is not possible.
    pub fn open(self) -> Result<Http, HttpError> {
        let Target { url, batch } = self.target;
        let exchange = Exchange::new(self.options, Routes::Any, url.scheme() == "https", None)?;
        Ok(Http {
            exchange,
            to: To::new(url),
            batch,
            receivers: Receivers::one(),
        })
    }
}

#[async_trait]
impl Sink for Http {
    fn name(&self) -> String {
        shown(&self.to.url)
    }

    /// Reads the files of headers, secrets and authorities again.
    async fn reopen(&self) -> io::Result<bool> {
        self.exchange.read_again().await.map_err(io::Error::other)
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let record = self.exchange.record(cx);
        let delivered = self.deliver_each(batch, cx, record.as_ref()).await;
        if let Some(record) = record {
            record.close().await;
        }
        delivered
    }
}

impl Http {
    async fn deliver_each(
        &self,
        batch: &Batch,
        cx: &Context,
        record: Option<&Record>,
    ) -> Delivered {
        let stored = match Stored::of(batch, cx).await {
            Ok(stored) if stored.over() > 0 => return Delivered::so_far(stored.over()),
            Ok(stored) => stored,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let events: Vec<_> = batch.events().collect();
        let began = Instant::now();
        let mut delivered = 0;
        // The end of a list that the receiver has rejected. The events up to this end are sent one
        // by one.
        let mut single_until = 0;
        while delivered < stored.together(events.len()) {
            if delivered > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(delivered);
            }
            let size = if delivered < single_until {
                1
            } else {
                self.batch.unwrap_or(1)
            };
            let part = &events[delivered..stored.together(events.len()).min(delivered + size)];
            cx.begins(part[0].id);
            let attempt = if delivered == 0 {
                cx.attempts.saturating_add(1)
            } else {
                1
            };
            match self.send(part, attempt, record, cx).await {
                Ok(None) => delivered += part.len(),
                // The effects of a list are those of its last event.
                Ok(Some(effects)) => {
                    let last = delivered + part.len() - 1;
                    return effects::store(&effects, &events[last], last, &stored, cx).await;
                }
                Err(Stop::Rejected { .. }) if part.len() > 1 => {
                    single_until = delivered + part.len()
                }
                Err(stop) => return Delivered::stopped(delivered, stop),
            }
        }
        stored.delivered(events.len())
    }
}

/// Returns the wait of an object while the cause of its refusal is not known.
fn unclear_for(retry_after: Option<Duration>) -> Duration {
    retry_after
        .unwrap_or_default()
        .clamp(PROBE_EVERY, UNCLEAR_MAX)
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
            (
                "https://host/a?b=%20&batch=10&c#d",
                "https://host/a?b=%20&c",
                Some(10),
            ),
            ("http://host", "http://host/", None),
            ("http://host?batch=1", "http://host/", Some(1)),
            ("http://host/?batches=2", "http://host/?batches=2", None),
        ] {
            let target: Target = text.parse().expect("a target");
            assert_eq!((target.url.as_str(), target.batch), (url, batch), "{text}");
        }
        let target: Target = "https://user:hunter2@host:8443/a?token=hunter2&batch=5"
            .parse()
            .expect("a target");
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
            "http://host/?Batch=5",
            "http://user:hunter2@host/?batch=2&batch=2",
        ] {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(
                !error.contains("hunter2") && error.contains("write e.g."),
                "{error}"
            );
        }
    }
}
