//! The traces of `seriatim worker`: its spans go to a collector, by OTLP over HTTP, as JSON.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use reqwest::Url;
use reqwest::redirect::Policy;
use seriatim::connection::https;
use seriatim::event::Pointer;
use seriatim::trace::opentelemetry::trace::TracerProvider as _;
use seriatim::trace::opentelemetry::{Context, KeyValue, global::BoxedTracer};
use seriatim::worker::{Traces, WorkerConfig};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{info, warn};

use super::LOG;
use crate::console::exit::{Exit, Failure};

/// The collector, if nothing names another one.
const COLLECTOR: &str = "http://localhost:4318";
/// The path of traces at a collector.
const PATH: &str = "/v1/traces";
/// The most spans that wait for the collector. Further ones are lost.
const WAITING_MAX: usize = 2048;
/// The longest time of a request with spans.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The longest wait for the last spans after a stop, and after a stop at once.
const END: Duration = Duration::from_secs(2);
const END_AT_ONCE: Duration = Duration::from_millis(300);
/// The interval of log lines while the collector gets no spans.
const TELL_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of traces")]
pub(super) struct TraceArgs {
    /// Make a span of OpenTelemetry for each delivery of events with a sampled trace context. The
    /// JSON pointer names the W3C traceparent in events, e.g. /traceparent
    #[arg(long, env = "SERIATIM_TRACE_FIELD", value_name = "POINTER")]
    trace_field: Option<Pointer>,
    /// With --trace-field: make the span of a single event a child of its producer's span. Without
    /// this option each span begins a new trace, and is linked to the producers' spans
    #[arg(long, requires = "trace_field")]
    trace_child: bool,
    /// With --trace-field: the collector of spans, for OTLP over HTTP [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318]
    #[arg(long, env = "SERIATIM_OTLP_ENDPOINT", value_name = "URL", requires = "trace_field")]
    otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// Checks the settings. Opens nothing.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.trace_field.as_ref().map_or(Ok(()), |_| self.collector().and_then(|url| client(&url)).map(drop))
    }

    /// Makes the worker's traces, if they are wanted.
    pub(super) fn begin(&self, config: &mut WorkerConfig) -> anyhow::Result<Option<Exporting>> {
        let Some(field) = &self.trace_field else { return Ok(None) };
        let url = self.collector()?;
        let spans = Arc::new(Spans { collector: url.origin().ascii_serialization(), ..Spans::default() });
        let http = Http { client: client(&url)?, runtime: Handle::current(), spans: Arc::clone(&spans) };
        let otlp = Otlp::builder().with_http().with_http_client(http).with_protocol(Protocol::HttpJson);
        let otlp = otlp.with_endpoint(url).with_timeout(TIMEOUT).build().map_err(|error| invalid(&error.to_string()))?;
        let waiting = BatchConfigBuilder::default().with_max_queue_size(WAITING_MAX).build();
        let counted = Counted { otlp, spans: Arc::clone(&spans) };
        let batches = BatchSpanProcessor::builder(counted).with_batch_config(waiting).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Ended { batches, spans: Arc::clone(&spans) })
            .with_resource(resource(&config.name))
            .build();
        let tracer = BoxedTracer::new(Box::new(provider.tracer("seriatim")));
        config.traces = Some(Traces::new(field.clone()).tracer(tracer).child_spans(self.trace_child));
        Ok(Some(Exporting { provider, spans }))
    }

    /// Returns the URL of the collector's traces: of the option, or of the variables of
    /// OpenTelemetry.
    fn collector(&self) -> anyhow::Result<Url> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let (text, is_whole) = match (&self.otlp_endpoint, variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) {
            (Some(endpoint), _) => (endpoint.clone(), false),
            (None, Some(whole)) => (whole, true),
            (None, None) => (variable("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| COLLECTOR.to_owned()), false),
        };
        let mut url = Url::parse(&text).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid(&format!("its scheme is {}", url.scheme())));
        }
        let path = url.path().trim_end_matches('/');
        if !is_whole && !path.ends_with(PATH) {
            url.set_path(&format!("{path}{PATH}"));
        }
        Ok(url)
    }
}

fn invalid(why: &str) -> anyhow::Error {
    let message = format!("the URL of the collector (--otlp-endpoint) cannot be used: {why}; write e.g. {COLLECTOR}");
    Failure::with(Exit::Input, message)
}

fn client(url: &Url) -> anyhow::Result<reqwest::Client> {
    let ca_file = env::var_os("OTEL_EXPORTER_OTLP_CERTIFICATE").map(std::path::PathBuf::from);
    let tls = https(ca_file.as_deref(), url.scheme() == "https", "OTEL_EXPORTER_OTLP_CERTIFICATE");
    let tls = tls.map_err(|error| invalid(&error))?;
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).timeout(TIMEOUT);
    client.build().map_err(|error| invalid(&error.to_string()))
}

/// Returns what spans say of this process.
fn resource(name: &str) -> Resource {
    let resource = Resource::builder().build();
    let is_named = resource.get(&"service.name".into()).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let attributes =
        [KeyValue::new("service.instance.id", name.to_owned()), KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))];
    let builder = Resource::builder().with_attributes(attributes);
    if is_named { builder.build() } else { builder.with_service_name("seriatim").build() }
}

/// The export of spans, until it is ended.
pub(super) struct Exporting {
    provider: SdkTracerProvider,
    spans: Arc<Spans>,
}

impl Exporting {
    /// Sends the last spans, within a time.
    pub(super) async fn end(self, at_once: bool) {
        let patience = if at_once { END_AT_ONCE } else { END };
        let provider = self.provider;
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience)).await;
        let lost = self.spans.lost();
        if lost > 0 {
            warn!(target: LOG, lost, collector = self.spans.collector, "traces: spans are lost, the collector does not have them");
        }
    }
}

/// The counts of spans, and whether the collector is away.
#[derive(Debug, Default)]
struct Spans {
    collector: String,
    ended: AtomicU64,
    sent: AtomicU64,
    /// The error of the last request.
    error: Mutex<String>,
    told: Mutex<Told>,
}

/// What the log has.
#[derive(Debug, Default)]
struct Told {
    /// The time of the last line about an outage under way.
    away: Option<Instant>,
    /// The time of the last line about lost spans, and their number then.
    lost: Option<Instant>,
    lost_spans: u64,
}

impl Spans {
    /// Returns the number of ended spans that the collector does not have.
    fn lost(&self) -> u64 {
        self.ended.load(Ordering::Relaxed).saturating_sub(self.sent.load(Ordering::Relaxed))
    }

    /// Logs the beginning and the end of an outage, and lost spans; a line per minute meanwhile.
    fn tell(&self, sent: &OTelSdkResult) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let collector = &self.collector;
        let is_due = |last: Option<Instant>| last.is_none_or(|last| last.elapsed() >= TELL_EVERY);
        // The others may still wait.
        let lost = self.lost().saturating_sub(WAITING_MAX as u64);
        match (sent, told.away) {
            (Ok(()), Some(_)) => {
                told.away = None;
                info!(target: LOG, collector, lost, "traces: the collector gets spans again");
                told.lost_spans = lost;
            }
            (Ok(()), None) => {
                if lost > told.lost_spans && is_due(told.lost) {
                    (told.lost, told.lost_spans) = (Some(Instant::now()), lost);
                    warn!(target: LOG, collector, lost, "traces: spans are lost, the collector is too slow; let producers sample fewer traces");
                }
            }
            (Err(_), Some(last)) if !is_due(Some(last)) => {}
            (Err(error), _) => {
                told.away = Some(Instant::now());
                let why = std::mem::take(&mut *self.error.lock().unwrap_or_else(PoisonError::into_inner));
                let why = if why.is_empty() { error.to_string() } else { why };
                warn!(target: LOG, collector, why, "traces: the collector gets no spans; deliveries go on");
            }
        }
    }
}

/// Counts the spans that end.
#[derive(Debug)]
struct Ended {
    batches: BatchSpanProcessor,
    spans: Arc<Spans>,
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

/// Counts the spans that the collector has taken.
#[derive(Debug)]
struct Counted {
    otlp: Otlp,
    spans: Arc<Spans>,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let sent = self.otlp.export(batch).await;
        if sent.is_ok() {
            self.spans.sent.fetch_add(count, Ordering::Relaxed);
        }
        self.spans.tell(&sent);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

/// Sends the requests of the exporter, whose thread has no runtime, on the runtime of the worker.
#[derive(Debug)]
struct Http {
    client: reqwest::Client,
    runtime: Handle,
    spans: Arc<Spans>,
}

#[seriatim::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::from))?;
        let client = self.client.clone();
        let answered = self.runtime.spawn(async move { answer(client.execute(request).await?).await }).await?;
        let error = match &answered {
            Ok(response) if response.status().is_success() => String::new(),
            Ok(response) => format!("it answered {}", response.status()),
            Err(error) => innermost(error),
        };
        *self.spans.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        Ok(answered?)
    }
}

/// Reads an answer, within a limit.
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

/// Returns the innermost cause, which names the problem.
fn innermost(error: &reqwest::Error) -> String {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |cause| cause.source()).last().map(ToString::to_string).unwrap_or_default()
}
