//! The export of spans to the collector. Spans are counted and sent in requests of bounded size,
//! and few log lines report lost spans.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use serde_json::Value;
use seriatim::escape;
use seriatim::trace::opentelemetry::Context;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::LOG;

/// The most spans that wait in the queue for the collector. If the queue is full, further spans are
/// lost.
pub(super) const WAITING_MAX: usize = 2048;
/// The most spans that are taken from the queue at once.
pub(super) const TAKEN_MAX: usize = 512;
/// The most spans that have ended, are not lost, and are not yet sent: those in the queue and those
/// taken from it.
const UNTAKEN_MAX: u64 = (WAITING_MAX + TAKEN_MAX) as u64;
/// The largest size of a request. The size is the number of links, plus four for each span. A
/// request of this size has about 1 MB.
const REQUEST_MAX: usize = 1500;
/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The most characters of an answer in the log.
const SHOWN_MAX: usize = 200;
/// The largest age of connections to the collector.
const AGE: Duration = Duration::from_secs(120);
/// The least time between two lines about lost spans.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The counts of spans, and the state of the log lines about them.
#[derive(Debug, Default)]
pub(super) struct Spans {
    collector: String,
    ended: AtomicU64,
    /// Number of spans in the requests that have ended.
    taken: AtomicU64,
    /// Number of spans that the collector has accepted.
    sent: AtomicU64,
    state: Mutex<ExportState>,
}

#[derive(Debug, Default)]
struct ExportState {
    /// The reason for the last failed or refused request.
    why: String,
    /// Number of spans of the last request that the collector has refused, although it has accepted
    /// the request.
    rejected: u64,
    /// The time of the last log line about lost spans. `lost`: the number of lost spans in that
    /// line.
    at: Option<Instant>,
    lost: u64,
    /// Whether the last log line says that spans are lost.
    is_away: bool,
}

impl Spans {
    pub(super) fn of(collector: String) -> Self {
        Self {
            collector,
            ..Self::default()
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ExportState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of lost spans: those that have ended and that the collector does not
    /// have. Up to `waiting` of these spans may still be on their way, and do not count.
    fn lost(&self, waiting: u64) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed);
        let not_sent = taken.saturating_sub(self.sent.load(Ordering::Relaxed));
        let not_taken = self.ended.load(Ordering::Relaxed).saturating_sub(taken);
        not_sent + not_taken.saturating_sub(waiting)
    }

    /// Logs the number of lost spans, at most once per minute. If a request succeeds after that,
    /// logs that the collector gets spans again.
    fn tell(&self, has_failed: bool) {
        let lost = self.lost(UNTAKEN_MAX);
        let mut state = self.state();
        let collector = &self.collector;
        if lost > state.lost {
            if state.at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                let why = if has_failed {
                    &state.why
                } else {
                    "more spans end than it takes"
                };
                warn!(target: LOG, collector, lost, why, "traces: the collector does not get all spans; deliveries go on");
                (state.at, state.lost, state.is_away) = (Some(Instant::now()), lost, true);
            }
        } else if !has_failed && state.is_away {
            info!(target: LOG, collector, lost, "traces: the collector gets spans again");
            state.is_away = false;
        }
    }

    /// Logs the number of lost spans when the worker ends.
    pub(super) fn end(&self) {
        let lost = self.lost(0);
        if lost > 0 {
            let why = Some(self.state().why.clone()).filter(|why| !why.is_empty());
            let why = why.unwrap_or_else(|| "it did not take them in time".to_owned());
            warn!(target: LOG, lost, collector = self.collector, why, "traces: the collector does not have all spans");
        }
    }
}

/// A span processor that counts the spans that end, and passes them on to `batches`.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) batches: BatchSpanProcessor,
    pub(super) spans: Arc<Spans>,
}

impl SpanProcessor for Ended {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.batches.on_start(span, cx);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.spans.ended.fetch_add(1, Ordering::Relaxed);
        }
        self.batches.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// A span exporter that sends spans in requests of bounded size, and counts the spans that the
/// collector has accepted.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) otlp: Otlp,
    pub(super) spans: Arc<Spans>,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut result = Ok(());
        let mut rest = batch.into_iter().peekable();
        while rest.peek().is_some() {
            let mut size = 0;
            let mut request = Vec::new();
            while let Some(span) =
                rest.next_if(|span| request.is_empty() || size + weight(span) <= REQUEST_MAX)
            {
                size += weight(&span);
                request.push(span);
            }
            let count = request.len() as u64;
            let sent = self.otlp.export(request).await;
            let rejected = std::mem::take(&mut self.spans.state().rejected);
            let accepted = if sent.is_ok() {
                count.saturating_sub(rejected)
            } else {
                0
            };
            self.spans.taken.fetch_add(count, Ordering::Relaxed);
            self.spans.sent.fetch_add(accepted, Ordering::Relaxed);
            self.spans.tell(accepted < count);
            result = result.and(sent);
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

fn weight(span: &SpanData) -> usize {
    4 + span.links.len()
}

/// The HTTP client of the collector. It is made anew after `AGE`, so that spans follow a name that
/// leads elsewhere, and a new file of authorities is read.
pub(super) struct Renewed {
    make: Box<dyn Fn() -> Option<reqwest::Client> + Send + Sync>,
    present: Mutex<(reqwest::Client, Instant)>,
}

impl Renewed {
    /// `make`: makes a new client; `None` if this is not possible now.
    pub(super) fn new(
        client: reqwest::Client,
        make: impl Fn() -> Option<reqwest::Client> + Send + Sync + 'static,
    ) -> Self {
        Self {
            make: Box::new(make),
            present: Mutex::new((client, Instant::now())),
        }
    }

    fn now(&self) -> reqwest::Client {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if present.1.elapsed() >= AGE {
            let client = (self.make)().unwrap_or_else(|| present.0.clone());
            *present = (client, Instant::now());
        }
        present.0.clone()
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Renewed")
    }
}

/// The HTTP client of the exporter. The thread of the exporter has no runtime, so this client sends
/// its requests on the runtime of the worker.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) client: Renewed,
    pub(super) runtime: Handle,
    pub(super) spans: Arc<Spans>,
}

#[seriatim::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::from))?;
        let client = self.client.now();
        let answered = self
            .runtime
            .spawn(async move { answer(client.execute(request).await?).await })
            .await?;
        let (rejected, why) = match &answered {
            Ok(response) if response.status().is_success() => rejected(response.body()),
            Ok(response) => (0, format!("it answered {}", response.status())),
            Err(error) => (0, innermost(error)),
        };
        let mut state = self.spans.state();
        state.rejected = rejected;
        if !why.is_empty() {
            state.why = why;
        }
        Ok(answered?)
    }
}

/// Reads an answer, up to about `ANSWER_BYTES_MAX` bytes.
async fn answer(mut response: reqwest::Response) -> Result<Response<Bytes>, reqwest::Error> {
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    let mut read = Response::new(Bytes::from(body));
    *read.status_mut() = response.status();
    *read.headers_mut() = std::mem::take(response.headers_mut());
    Ok(read)
}

/// Parses the answer to an accepted request. Returns the number of spans that the collector has
/// refused all the same, and the reason.
fn rejected(body: &[u8]) -> (u64, String) {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    // The JSON form of OTLP writes a 64-bit number as a text. A plain number is accepted as well.
    let spans = &partial["rejectedSpans"];
    let spans = spans
        .as_u64()
        .or_else(|| spans.as_str()?.parse().ok())
        .unwrap_or(0);
    if spans == 0 {
        return (0, String::new());
    }
    let why: String = partial["errorMessage"]
        .as_str()
        .unwrap_or_default()
        .chars()
        .take(SHOWN_MAX)
        .collect();
    (spans, format!("it refused spans: {}", escape::text(&why)))
}

/// Returns the innermost cause, which names the problem.
fn innermost(error: &reqwest::Error) -> String {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |cause| cause.source())
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ended: u64, taken: u64, sent: u64) -> Spans {
        Spans {
            ended: ended.into(),
            taken: taken.into(),
            sent: sent.into(),
            ..Spans::default()
        }
    }

    #[test]
    fn a_span_is_lost_if_its_request_failed_or_the_queue_was_full() {
        for (spans, lost, lost_at_the_end) in [
            (counts(10, 10, 10), 0, 0),
            (counts(10, 10, 3), 7, 7),
            (counts(2560 + 10, 10, 10), 0, 2560),
            (counts(2560 + 15, 10, 7), 3 + 5, 2560 + 5 + 3),
        ] {
            assert_eq!(
                (spans.lost(UNTAKEN_MAX), spans.lost(0)),
                (lost, lost_at_the_end),
                "{spans:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_comes_and_goes_has_few_lines() {
        let spans = counts(0, 0, 0);
        let mut lines = 0;
        for second in 0..600 {
            let fails = second % 2 == 0;
            spans.taken.fetch_add(2, Ordering::Relaxed);
            spans
                .sent
                .fetch_add(if fails { 0 } else { 2 }, Ordering::Relaxed);
            let state = || {
                let state = spans.state();
                (state.at, state.is_away)
            };
            let before = state();
            spans.tell(fails);
            lines += u32::from(state() != before);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((10..=22).contains(&lines), "{lines} lines in 10 minutes");
    }

    #[test]
    fn a_partial_success_tells_what_was_refused() {
        for body in [
            r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too\nlarge"}}"#,
            r#"{"partialSuccess":{"rejectedSpans":3,"errorMessage":"too\nlarge"}}"#,
        ] {
            assert_eq!(
                rejected(body.as_bytes()),
                (3, r"it refused spans: too\nlarge".to_owned())
            );
        }
        for body in [
            "",
            "{}",
            "[",
            r#"{"partialSuccess":{"rejectedSpans":"0","errorMessage":"slow down"}}"#,
        ] {
            assert_eq!(rejected(body.as_bytes()), (0, String::new()), "{body}");
        }
    }
}
