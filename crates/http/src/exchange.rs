//! One request and its answer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Body, RequestBuilder, Response, StatusCode, Url};
use seriatim::escape;
use seriatim::event::Event;
use seriatim::handlers::Effects;
use seriatim::sink::Context;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::answer::{Meaning, retry_after};
use super::body::{Message, message};
use super::clients::{Clients, Routes};
use super::effects::{self, NoEffects};
use super::error::HttpError;
use super::event_url::Prefix;
use super::exclusive::{Exclusive, Record};
use super::options::Options;
use super::receivers::Failure;
use super::sending::{Sending, Sent};
use super::settings::{Current, Settings};
use super::streams::{Permit, Streams};
use super::unanswered::{Unanswered, is_broken, is_refused};

/// The time after which a request that is not sent may be moved to another connection.
const QUEUED: Duration = Duration::from_millis(250);
/// The part of its time limit for which an exclusive request may wait behind others. Then it is
/// recorded anew, so that the receiver has the rest of a limit.
const QUEUED_PART: f64 = 0.25;
/// Number of bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Longest time for which the rest of an answer is read.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Number of characters of an answer, or of a path, that an error shows.
const SHOWN_MAX: usize = 200;
/// Minimum length, in bytes, of a value of a header or a query that errors leave out.
const SECRET_BYTES_MIN: usize = 4;

/// The result of a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) meaning: Meaning,
    /// The effects that the receiver asks for; none if the events are not delivered.
    pub(super) effects: Option<Effects>,
    /// The error text; empty if the events are delivered.
    pub(super) error: String,
    /// The wait that the receiver asks for.
    pub(super) retry_after: Option<Duration>,
    /// Whether the request has timed out.
    pub(super) is_timeout: bool,
}

/// Whether a request is sent again if its connection ends before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Once,
    /// The request is never sent again, because it is the only one that may go to a receiver that
    /// is down.
    Never,
}

impl Answer {
    pub(super) fn rejected(error: String) -> Self {
        Self {
            meaning: Meaning::Rejected,
            effects: None,
            error,
            retry_after: None,
            is_timeout: false,
        }
    }

    /// Returns the kind of failure if the receiver may be down.
    pub(super) fn failure(&self) -> Option<Failure> {
        match self.meaning {
            Meaning::Silent | Meaning::Transient if self.is_timeout => Some(Failure::TimedOut),
            Meaning::Silent => Some(Failure::Broken),
            Meaning::Unavailable => Some(Failure::Refused),
            Meaning::Unreachable => Some(Failure::Unreachable),
            _ => None,
        }
    }
}

/// How a request is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    /// The number of the first event's attempt, counted from 1.
    pub(super) number: u32,
    pub(super) repeat: Repeat,
    /// The record of the delivery, if its requests are exclusive.
    pub(super) record: Option<&'a Record>,
}

/// The receiver of a request.
#[derive(Debug, Clone)]
pub(super) struct To {
    pub(super) url: Url,
    /// Scheme, host and port.
    pub(super) origin: Arc<str>,
}

impl To {
    pub(super) fn new(url: Url) -> Self {
        Self {
            origin: url.origin().ascii_serialization().into(),
            url,
        }
    }
}

/// The HTTP clients, and the settings of requests.
pub(super) struct Exchange {
    clients: Clients,
    streams: Streams,
    settings: Settings,
    options: Options,
    /// The prefixes of the URLs whose answers may have effects; `None`: all URLs.
    effects_from: Option<Vec<Prefix>>,
}

/// The times of a request.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// The time until which the request may wait inside this process.
    waits_until: Instant,
    /// The time after which the request is not sent any more if it waits behind others, but begins
    /// anew; `None` if its time limit begins when it is sent.
    fresh_until: Option<Instant>,
    /// The end of its time limit; `None` if the limit begins when it is sent.
    ends: Option<Instant>,
}

/// The end of a request.
enum Ended<'a> {
    Answered(Response, Permit<'a>),
    /// The receiver has not got the request.
    Unsent(Unanswered),
    /// The receiver has not got the request, which needs a new place.
    Moved,
    /// The receiver may have got the request, and may still work on it.
    Failed(Unanswered),
}

impl Exchange {
    /// `needs_tls` says whether a URL begins with `https`. `effects_from`: the prefixes of the URLs
    /// whose answers may have effects; `None`: all URLs.
    pub(super) fn new(
        options: Options,
        routes: Routes,
        needs_tls: bool,
        effects_from: Option<Vec<Prefix>>,
    ) -> Result<Self, HttpError> {
        options.validate()?;
        let connect_timeout = options.connect_timeout.min(options.timeout / 2);
        let clients = Clients::new(routes, connect_timeout, options.connection_age);
        let settings = Settings::open(&options, needs_tls)?;
        clients.of_lane(0, &settings.now().tls)?;
        Ok(Self {
            clients,
            streams: Streams::default(),
            settings,
            options,
            effects_from,
        })
    }

    /// Returns the record of a delivery; `None` if no request is exclusive.
    pub(super) fn record(&self, cx: &Context) -> Option<Record> {
        (self.options.exclusive != Exclusive::None).then(|| Record::new(cx))
    }

    /// Reads the files of the settings again. Returns whether there are any.
    pub(super) async fn read_again(&self) -> Result<bool, HttpError> {
        self.settings
            .read_again()
            .await
            .map(|()| self.settings.has_files())
    }

    /// Sends these events of one object in one request.
    ///
    /// If the connection ends before the answer, the request may be sent once more, on a new
    /// connection. The usual cause is that the server has just closed an idle connection. If the
    /// answer is 401, and the files of the settings have other headers or secrets by now, the
    /// request is sent once more, too.
    ///
    /// Cancellation: if the future is dropped, the receiver may or may not have got the events.
    pub(super) async fn post(
        &self,
        to: &To,
        events: &[Event],
        as_list: bool,
        attempt: Attempt<'_>,
    ) -> Answer {
        let Attempt {
            number,
            repeat,
            record,
        } = attempt;
        let record = record.filter(|_| self.options.exclusive.has(&to.url));
        let message = message(
            self.options.format,
            events,
            as_list,
            number,
            &self.options.source,
        );
        self.settings.look().await;
        let mut settings = self.settings.now();
        let mut sent = self.send(to, &message, &settings, record).await;
        // A receiver may still work on an exclusive request whose connection has ended.
        let may_repeat = repeat == Repeat::Once && record.is_none_or(Record::is_over);
        if may_repeat && matches!(&sent, Err(Unanswered::Failed(error)) if is_broken(error)) {
            sent = self.send(to, &message, &settings, record).await;
        }
        if matches!(&sent, Ok((response, _)) if response.status() == StatusCode::UNAUTHORIZED)
            && self.settings.differ_from(&settings).await
        {
            settings = self.settings.now();
            sent = self.send(to, &message, &settings, record).await;
        }
        match sent {
            Ok((response, place)) => {
                self.answer(&to.url, response, &place, &settings, record)
                    .await
            }
            Err(unanswered) => {
                let mut answer = unanswered.answer(&to.url, self.options.timeout);
                if let Some(variable) = self.clients.proxy_of(&to.url)
                    && answer.meaning == Meaning::Unreachable
                {
                    // The error does not tell whether the proxy or the receiver failed.
                    answer.error +=
                        &format!("; requests may go through the proxy that {variable} names");
                }
                answer
            }
        }
    }

    /// Sends a request, as soon as there is a place for it on a connection. Its time begins when it
    /// is sent; that of an exclusive request begins when it is recorded. Returns the answer, and the
    /// place, which the request needs until the answer is read.
    async fn send(
        &self,
        to: &To,
        message: &Message,
        settings: &Current,
        record: Option<&Record>,
    ) -> Result<(Response, Permit<'_>), Unanswered> {
        // Waits inside this process also end.
        let waits_until = Instant::now() + self.options.timeout;
        while Instant::now() < waits_until {
            let client = |lane| self.clients.number_of_lane(lane, &settings.tls);
            let place = self
                .streams
                .place(&to.origin, to.url.scheme() == "https", client);
            let place = timeout_at(waits_until, place)
                .await
                .map_err(|_| Unanswered::Unsent)?;
            let client = self
                .clients
                .of_lane(place.lane, &settings.tls)
                .map_err(Unanswered::NoClient)?;
            let mut headers = headers(message, settings);
            let mut ends = None;
            if let Some(record) = record
                && let Some(open) = record
                    .open(self.options.timeout)
                    .await
                    .map_err(Unanswered::NotOpen)?
            {
                open.add_to(&mut headers);
                ends = Some(open.ends);
            }
            let request = client.post(to.url.clone()).headers(headers);
            let times = Times {
                waits_until: ends.unwrap_or(waits_until),
                fresh_until: ends.map(|ends| self.fresh_until(ends)),
                ends,
            };
            let ended = self
                .send_in(place, request, message.body.clone(), times)
                .await;
            if let Some(record) = record {
                match &ended {
                    Ended::Answered(response, _) => {
                        record.answered(response.status(), response.headers())
                    }
                    Ended::Unsent(_) | Ended::Moved => record.unsent(),
                    Ended::Failed(_) => {}
                }
            }
            match ended {
                Ended::Answered(response, place) => return Ok((response, place)),
                Ended::Unsent(unanswered) | Ended::Failed(unanswered) => return Err(unanswered),
                Ended::Moved => {}
            }
        }
        Err(Unanswered::Unsent)
    }

    /// Returns the time until which a request that ends then may wait behind others. The receiver
    /// needs most of the time for its work.
    fn fresh_until(&self, ends: Instant) -> Instant {
        ends.checked_sub(self.options.timeout.mul_f64(1.0 - QUEUED_PART))
            .unwrap_or(ends)
    }

    /// Sends a request that has a place, and waits for the answer.
    async fn send_in<'a>(
        &self,
        place: Permit<'a>,
        request: RequestBuilder,
        body: Bytes,
        times: Times,
    ) -> Ended<'a> {
        let turn =
            match timeout_at(times.fresh_until.unwrap_or(times.waits_until), place.turn()).await {
                Ok(Some(turn)) => turn,
                Ok(None) => return Ended::Moved,
                Err(_) if times.fresh_until.is_some() => return Ended::Moved,
                Err(_) => return Ended::Unsent(Unanswered::Unsent),
            };
        let (body, sent) = Sending::new(body, times.ends, turn);
        let request = request.body(Body::wrap(body)).send();
        self.answer_to(pin!(request), sent, place, times).await
    }

    /// Waits for the answer to a request that the client has begun.
    async fn answer_to<'a>(
        &self,
        mut request: Pin<&mut impl Future<Output = reqwest::Result<Response>>>,
        mut sent: Sent,
        mut place: Permit<'a>,
        times: Times,
    ) -> Ended<'a> {
        let mut is_sent = true;
        loop {
            tokio::select! {
                biased;
                was_sent = sent.wait() => {
                    is_sent = was_sent;
                    break;
                }
                answered = &mut request => return match answered {
                    Ok(response) => Ended::Answered(response, place),
                    // The body may be taken since the last look.
                    Err(error) if sent.take_back() || is_refused(&error) => Ended::Unsent(Unanswered::Failed(error)),
                    Err(error) => Ended::Failed(Unanswered::Failed(error)),
                },
                () = sleep_until(times.waits_until.min(Instant::now() + QUEUED)) => {
                    let now = Instant::now();
                    let is_over = now >= times.waits_until;
                    if is_over || place.is_full(times.fresh_until.is_some_and(|until| now >= until)) {
                        match sent.take_back() {
                            true if is_over => return Ended::Unsent(Unanswered::Unsent),
                            true => return Ended::Moved,
                            false => break,
                        }
                    }
                },
            }
        }
        place.sent();
        let ends = times
            .ends
            .unwrap_or_else(|| Instant::now() + self.options.timeout);
        match timeout_at(ends, request).await {
            Ok(Ok(response)) => Ended::Answered(response, place),
            // The client has dropped the body.
            Ok(Err(_)) if !is_sent && Instant::now() >= ends => Ended::Unsent(Unanswered::Unsent),
            Ok(Err(error)) if !is_sent || is_refused(&error) => {
                Ended::Unsent(Unanswered::Failed(error))
            }
            Ok(Err(error)) => Ended::Failed(Unanswered::Failed(error)),
            Err(_) => Ended::Failed(Unanswered::Late),
        }
    }
}

/// Returns the headers of a request, with its signatures.
fn headers(message: &Message, settings: &Current) -> HeaderMap {
    let mut headers = message.headers.clone();
    if !settings.headers.is_empty() {
        headers = settings.headers.clone();
        headers.extend(message.headers.clone());
    }
    if !settings.secrets.is_empty() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let signatures: Vec<_> = settings
            .secrets
            .iter()
            .map(|secret| secret.sign(&message.id, now, &message.body))
            .collect();
        headers.insert("webhook-timestamp", HeaderValue::from(now));
        // An id consists of digits, and a signature of base64. So both are valid values of a
        // header.
        if let (Ok(id), Ok(signatures)) = (
            HeaderValue::from_str(&message.id),
            HeaderValue::try_from(signatures.join(" ")),
        ) {
            headers.insert("webhook-id", id);
            headers.insert("webhook-signature", signatures);
        }
    }
    #[cfg(feature = "traces")]
    for (name, value) in seriatim::trace::current() {
        // Timestamp and values consist of printable ASCII characters, so they are valid.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

impl Exchange {
    async fn answer(
        &self,
        url: &Url,
        mut response: Response,
        place: &Permit<'_>,
        settings: &Current,
        record: Option<&Record>,
    ) -> Answer {
        place.answered(response.version());
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let meaning = self.options.statuses.meaning(status, retry_after.is_some());
        if meaning == Meaning::Delivered && effects::are_in(&response) && self.may_have_effects(url)
        {
            let effects = effects::read(&mut response, self.options.timeout).await;
            if let (Err(NoEffects::Unfinished), Some(record)) = (&effects, record) {
                record.unfinished();
            }
            return with_effects(url, status, effects, settings);
        }
        let text = read(&mut response).await;
        let error = match meaning {
            Meaning::Delivered => String::new(),
            _ => describe(url, status, &without_secrets(settings, url, &text)),
        };
        let is_timeout = status == StatusCode::GATEWAY_TIMEOUT;
        Answer {
            meaning,
            effects: None,
            error,
            retry_after,
            is_timeout,
        }
    }

    fn may_have_effects(&self, url: &Url) -> bool {
        let prefixes = self.effects_from.as_ref();
        prefixes.is_none_or(|prefixes| prefixes.iter().any(|prefix| prefix.has(url)))
    }
}

/// Returns the answer of a receiver that asks for effects. Effects that are not valid fail the event.
fn with_effects(
    url: &Url,
    status: StatusCode,
    effects: Result<Effects, NoEffects>,
    settings: &Current,
) -> Answer {
    let (meaning, effects, error) = match effects {
        Ok(effects) => (Meaning::Delivered, Some(effects), String::new()),
        Err(NoEffects::Unfinished) => {
            let error = format!("{} answered {status}, but not to the end", shown(url));
            (Meaning::Silent, None, error)
        }
        Err(NoEffects::Wrong(why)) => {
            // The reason may repeat parts of the answer.
            let why = without_secrets(settings, url, why.as_bytes());
            let why: String = why.chars().take(SHOWN_MAX).collect();
            let error = format!(
                "{} answered {status}, but the answer is not valid: {}",
                shown(url),
                escape::text(&why)
            );
            (Meaning::Transient, None, error)
        }
    };
    Answer {
        meaning,
        effects,
        error,
        retry_after: None,
        is_timeout: false,
    }
}

/// Returns the text of an answer. A receiver may repeat parts of the request in its answer. So
/// the values of headers, the query and the password are replaced.
fn without_secrets(settings: &Current, url: &Url, text: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(text).into_owned();
    let mut secrets: Vec<String> = Vec::new();
    for value in settings
        .headers
        .values()
        .filter_map(|value| value.to_str().ok())
    {
        secrets.push(value.to_owned());
        secrets.extend(value.split_whitespace().map(str::to_owned));
    }
    let query = url.query().unwrap_or_default();
    secrets.push(query.to_owned());
    secrets.extend(
        query
            .split('&')
            .filter_map(|part| part.split_once('='))
            .map(|(_, value)| value.to_owned()),
    );
    secrets.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
    if let Some(password) = url.password() {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, plain) = (decoded(url.username()), decoded(password));
        secrets.push(STANDARD.encode(format!("{user}:{plain}")));
        secrets.extend([password.to_owned(), plain]);
    }
    // Longer secrets are replaced first. Otherwise a secret that is part of a longer one would
    // be replaced alone, and the rest of the longer one would be shown.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets
        .iter()
        .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
    {
        text = text.replace(secret.as_str(), "***");
    }
    text
}

/// Reads the rest of the answer, within limits, and returns its beginning.
async fn read(response: &mut Response) -> Vec<u8> {
    let mut text = Vec::new();
    if response.content_length() == Some(0) {
        return text;
    }
    let all = async {
        let mut bytes = 0;
        while bytes <= ANSWER_BYTES_MAX
            && let Ok(Some(chunk)) = response.chunk().await
        {
            bytes += chunk.len();
            let room = (4 * SHOWN_MAX).saturating_sub(text.len());
            text.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    let _ = timeout(ANSWER_TIME_MAX, all).await;
    text
}

fn describe(url: &Url, status: StatusCode, text: &str) -> String {
    let text: String = text.trim().chars().take(SHOWN_MAX).collect();
    let colon = if text.is_empty() { "" } else { ": " };
    format!(
        "{} answered {status}{colon}{}",
        shown(url),
        escape::text(&text)
    )
}

/// Returns the URL in a form for people. User, password and query are left out, because they may be
/// secret.
pub(super) fn shown(url: &Url) -> String {
    let path = url.path();
    let end = path
        .char_indices()
        .nth(SHOWN_MAX)
        .map_or(path.len(), |(end, _)| end);
    format!(
        "{}{}{}",
        url.origin().ascii_serialization(),
        &path[..end],
        if end < path.len() { "…" } else { "" }
    )
}
