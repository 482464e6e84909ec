//! One request and its answer.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use reqwest::dns::Resolve;
use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use tokio::time::timeout;

use super::answer::{Meaning, retry_after};
use super::body::{Message, message};
use super::error::HttpError;
use super::options::Options;
use super::receivers::Failure;
use crate::connection::https;
use crate::escape;
use crate::event::Event;

/// The time after which an idle connection is closed. It is shorter than the time after which most
/// servers close it (Node: 5 s). Otherwise a request could be lost, because the server closes the
/// connection just then.
const IDLE: Duration = Duration::from_secs(4);
/// The time after which an idle connection to a receiver that an event names is closed, and the
/// maximum number of idle connections to one such receiver.
const IDLE_CHECKED: Duration = Duration::from_secs(2);
const IDLE_CHECKED_MAX: usize = 16;
/// Interval of pings on an HTTP/2 connection that has a request under way. Also the time limit for
/// the answers to them.
const PING: Duration = Duration::from_secs(10);
/// Number of bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Longest time for which the rest of an answer is read.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Number of characters of an answer, or of a path, that an error shows.
const SHOWN_MAX: usize = 200;
/// Minimum length, in bytes, of a value of a header or a query that errors leave out.
const SECRET_BYTES_MIN: usize = 4;

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) meaning: Meaning,
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
        Self { meaning: Meaning::Rejected, error, retry_after: None, is_timeout: false }
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

/// The HTTP client, and the settings of requests.
pub(super) struct Exchange {
    client: Client,
    options: Options,
}

/// The routes by which requests may reach a receiver.
pub(super) enum Routes {
    /// Any address. If the environment names a proxy (`HTTPS_PROXY`, `NO_PROXY`), requests go
    /// through it.
    Any,
    /// Only the addresses that this resolver returns, without a proxy.
    Checked(Arc<dyn Resolve>),
}

impl Exchange {
    /// `needs_tls` says whether a URL begins with `https`.
    pub(super) fn new(options: Options, routes: Routes, needs_tls: bool) -> Result<Self, HttpError> {
        options.validate()?;
        let tls = https(options.ca_file.as_deref(), needs_tls, "--sink-ca").map_err(HttpError::Tls)?;
        let mut client = Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("seriatim/", env!("CARGO_PKG_VERSION")))
            .default_headers(options.headers().clone())
            .redirect(Policy::none())
            .timeout(options.timeout)
            .connect_timeout(options.connect_timeout.min(options.timeout / 2))
            .pool_idle_timeout(IDLE)
            .tcp_keepalive(PING)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING);
        if let Routes::Checked(resolver) = routes {
            // Each event may name another host. So the client keeps only a few idle connections,
            // and only for a short time.
            client =
                client.no_proxy().dns_resolver(resolver).pool_idle_timeout(IDLE_CHECKED).pool_max_idle_per_host(IDLE_CHECKED_MAX);
        }
        let client = client.build().map_err(|error| HttpError::Client(causes(&error)))?;
        Ok(Self { client, options })
    }

    /// Sends these events of one object in one request.
    ///
    /// If the connection ends before the answer, the request may be sent once more, on a new
    /// connection. The usual cause is that the server has just closed an idle connection.
    ///
    /// Cancellation: if the future is dropped, the receiver may or may not have got the events.
    pub(super) async fn post(&self, url: &Url, events: &[Event], as_list: bool, attempt: u32, repeat: Repeat) -> Answer {
        let message = message(self.options.format, events, as_list, attempt, &self.options.source);
        let mut sent = self.send(url, &message).await;
        if repeat == Repeat::Once && sent.as_ref().is_err_and(is_broken) {
            sent = self.send(url, &message).await;
        }
        match sent {
            Ok(response) => self.answer(url, response).await,
            Err(error) => failure(url, &error),
        }
    }

    async fn send(&self, url: &Url, message: &Message) -> Result<Response, reqwest::Error> {
        let mut headers = message.headers.clone();
        if !self.options.secrets.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let signatures: Vec<_> =
                self.options.secrets.iter().map(|secret| secret.sign(&message.id, now, &message.body)).collect();
            headers.insert("webhook-timestamp", HeaderValue::from(now));
            // An id consists of digits, and a signature of base64. So both are valid values of a
            // header.
            if let (Ok(id), Ok(signatures)) = (HeaderValue::from_str(&message.id), HeaderValue::try_from(signatures.join(" "))) {
                headers.insert("webhook-id", id);
                headers.insert("webhook-signature", signatures);
            }
        }
        #[cfg(feature = "traces")]
        for (name, value) in crate::trace::current() {
            // Timestamp and values consist of printable ASCII characters, so they are valid.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        self.client.post(url.clone()).headers(headers).body(message.body.clone()).send().await
    }
}

impl Exchange {
    async fn answer(&self, url: &Url, mut response: Response) -> Answer {
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let meaning = self.options.statuses.meaning(status, retry_after.is_some());
        let text = read(&mut response).await;
        let error = match meaning {
            Meaning::Delivered => String::new(),
            _ => told(url, status, &self.without_secrets(url, &text)),
        };
        let is_timeout = status == StatusCode::GATEWAY_TIMEOUT;
        Answer { meaning, error, retry_after, is_timeout }
    }

    /// Returns the text of an answer. A receiver may repeat parts of the request in its answer. So
    /// the values of headers, the query and the password are replaced.
    fn without_secrets(&self, url: &Url, text: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(text).into_owned();
        let mut secrets: Vec<String> = Vec::new();
        for value in self.options.headers().values().filter_map(|value| value.to_str().ok()) {
            secrets.push(value.to_owned());
            secrets.extend(value.split_whitespace().map(str::to_owned));
        }
        let query = url.query().unwrap_or_default();
        secrets.push(query.to_owned());
        secrets.extend(query.split('&').filter_map(|part| part.split_once('=')).map(|(_, value)| value.to_owned()));
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
        for secret in secrets.iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            text = text.replace(secret.as_str(), "***");
        }
        text
    }
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

fn told(url: &Url, status: StatusCode, text: &str) -> String {
    let text: String = text.trim().chars().take(SHOWN_MAX).collect();
    let colon = if text.is_empty() { "" } else { ": " };
    format!("{} answered {status}{colon}{}", shown(url), escape::text(&text))
}

/// Returns the URL in a form for people. User, password and query are left out, because they may be
/// secret.
pub(super) fn shown(url: &Url) -> String {
    let path = url.path();
    let end = path.char_indices().nth(SHOWN_MAX).map_or(path.len(), |(end, _)| end);
    format!("{}{}{}", url.origin().ascii_serialization(), &path[..end], if end < path.len() { "…" } else { "" })
}

/// An error of the resolver that does not come from DNS.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// The address is not allowed.
    #[error("{0}")]
    Refused(String),
    /// Too many lookups are under way.
    #[error("too many lookups of hosts are under way; DNS is slow")]
    Busy,
}

fn failure(url: &Url, error: &reqwest::Error) -> Answer {
    let resolved = causes_of(error).find_map(|cause| cause.downcast_ref());
    if let Some(ResolveError::Refused(why)) = resolved {
        return Answer::rejected(format!("{} is refused: {why}", shown(url)));
    }
    let is_timeout = error.is_timeout();
    let (meaning, what) = if error.is_builder() {
        (Meaning::Unsendable, "cannot be sent to")
    } else if resolved.is_some() {
        (Meaning::Unsent, "cannot be looked up")
    } else if is_own_fault(error) {
        (Meaning::Unable, "cannot be reached from this process")
    } else if error.is_connect() || causes(error).contains("received fatal alert") {
        // With TLS 1.3, a server may refuse the client's certificate only after the handshake.
        (Meaning::Unreachable, "cannot be reached")
    } else if is_timeout {
        (Meaning::Silent, "has not answered in time")
    } else {
        (Meaning::Silent, "has not answered")
    };
    Answer { meaning, error: format!("{} {what}: {}", shown(url), causes(error)), retry_after: None, is_timeout }
}

/// Returns whether the error came because this process has too many open files, or too little
/// memory.
fn is_own_fault(error: &reqwest::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    causes_of(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
        .any(|code| own.iter().any(|errno| errno.raw_os_error() == code))
}

/// Returns whether the connection ended before the answer.
fn is_broken(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder()
}

fn causes_of(error: &reqwest::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Returns the innermost cause, because it names the problem. The outer causes only say that a
/// request failed.
fn causes(error: &reqwest::Error) -> String {
    let innermost = causes_of(error).last().map_or_else(|| error.to_string(), ToString::to_string);
    escape::text(&innermost).to_string()
}
