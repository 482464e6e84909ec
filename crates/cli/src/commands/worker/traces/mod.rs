//! The traces of `seriatim worker`. Its spans are sent to a collector, with OTLP over HTTP, as
//! JSON.
//!
//! - `export`: counts spans and sends them to the collector

mod export;

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opentelemetry_otlp::{
    Protocol, SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use seriatim::event::Pointer;
use seriatim::trace::opentelemetry::global::BoxedTracer;
use seriatim::trace::opentelemetry::trace::TracerProvider as _;
use seriatim::trace::opentelemetry::{InstrumentationScope, KeyValue};
use seriatim::worker::{Shutdown, Traces, WorkerConfig};
use seriatim_console::exit::{Exit, Failure};
use seriatim_http::https;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::export::{Counted, Ended, Http, Renewed, Spans, TAKEN_MAX, WAITING_MAX};
use super::LOG;

/// The URL of the collector, if neither the option nor a variable names one.
const COLLECTOR: &str = "http://localhost:4318";
/// The path of a collector's URL that takes traces.
const PATH: &str = "/v1/traces";
/// The interval at which the waiting spans are sent. They are sent earlier if there are many.
const SEND_EVERY: Duration = Duration::from_secs(5);
/// The longest time of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that the end of the worker waits until the last spans are sent. `END_AT_ONCE`:
/// this time after a stop at once.
const END: Duration = Duration::from_secs(2);
const END_AT_ONCE: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of traces")]
pub(super) struct TraceArgs {
    /// Make an OpenTelemetry span for each delivery that has events with a sampled trace context.
    /// The JSON pointer says where events have their W3C traceparent, e.g. /traceparent
    #[arg(long, env = "SERIATIM_TRACE_FIELD", value_name = "POINTER")]
    trace_field: Option<Pointer>,
    /// With --trace-field: if a delivery has a single event, make its span a child of the
    /// producer's span. Without this option each span begins a new trace, which has links to the
    /// producers' spans
    #[arg(long, requires = "trace_field")]
    trace_child: bool,
    /// With --trace-field: the URL of the collector that gets the spans, by OTLP over HTTP
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318]
    #[arg(long, env = "SERIATIM_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
}

/// The collector to which spans are sent.
struct Collector {
    /// The URL, without user and password.
    url: Url,
    client: Renewed,
}

impl TraceArgs {
    /// Checks the settings of traces. Does not connect to the collector.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.trace_field
            .as_ref()
            .map_or(Ok(()), |_| self.collector().map(drop))
    }

    /// If traces are wanted, starts their export and adds it to the worker's settings. Otherwise
    /// returns `None`.
    pub(super) fn begin(&self, config: &mut WorkerConfig) -> anyhow::Result<Option<Exporting>> {
        let Some(field) = &self.trace_field else {
            if self.otlp_endpoint.is_some() {
                warn!(target: LOG, "traces: a collector without --trace-field gets no spans");
            }
            return Ok(None);
        };
        let Collector { url, client } = self.collector()?;
        if let Some((name, value)) = turned_off() {
            info!(target: LOG, "traces: there are no spans, because {name} is {value}");
            return Ok(None);
        }
        if let Some(protocol) =
            variable("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|protocol| protocol != "http/json")
        {
            warn!(target: LOG, protocol, "traces: spans go by http/json; the port of a collector for HTTP is often 4318");
        }
        let spans = Arc::new(Spans::of(url.origin().ascii_serialization()));
        let http = Http {
            client,
            runtime: Handle::current(),
            spans: Arc::clone(&spans),
        };
        let otlp = Otlp::builder()
            .with_http()
            .with_http_client(http)
            .with_protocol(Protocol::HttpJson);
        let otlp = otlp
            .with_endpoint(url)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| invalid(&error.to_string()))?;
        let waiting = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING_MAX)
            .with_max_export_batch_size(TAKEN_MAX)
            .with_scheduled_delay(SEND_EVERY)
            .build();
        let counted = Counted {
            otlp,
            spans: Arc::clone(&spans),
        };
        let batches = BatchSpanProcessor::builder(counted)
            .with_batch_config(waiting)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Ended {
                batches,
                spans: Arc::clone(&spans),
            })
            .with_resource(resource(&config.name))
            .build();
        let scope = InstrumentationScope::builder("seriatim")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracer = BoxedTracer::new(Box::new(provider.tracer_with_scope(scope)));
        config.traces = Some(
            Traces::new(field.clone())
                .tracer(tracer)
                .child_spans(self.trace_child),
        );
        Ok(Some(Exporting { provider, spans }))
    }

    /// Returns the collector that the option names, or else the variables of OpenTelemetry.
    fn collector(&self) -> anyhow::Result<Collector> {
        let (text, is_whole) = match (
            &self.otlp_endpoint,
            variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ) {
            (Some(endpoint), _) => (endpoint.clone(), false),
            (None, Some(whole)) => (whole, true),
            (None, None) => (
                variable("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| COLLECTOR.to_owned()),
                false,
            ),
        };
        let mut url = Url::parse(&text).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid(&format!("its scheme is {}", url.scheme())));
        }
        let path = url.path().trim_end_matches('/');
        if !is_whole && !path.ends_with(PATH) {
            url.set_path(&format!("{path}{PATH}"));
        }
        let headers = take_authorization(&mut url);
        let place = url.clone();
        let make = move || client(&place, headers.clone());
        let client = Renewed::new(make()?, move || make().ok());
        Ok(Collector { url, client })
    }
}

fn invalid(why: &str) -> anyhow::Error {
    let message = format!(
        "the URL of the collector (--otlp-endpoint) cannot be used: {why}; write e.g. {COLLECTOR}"
    );
    Failure::with(Exit::Input, message)
}

/// Returns the value of an environment variable, if it is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the name and the value of the environment variable that turns traces off, if any.
fn turned_off() -> Option<(&'static str, String)> {
    let is = |name, off: &str| {
        Some((
            name,
            variable(name).filter(|value| value.eq_ignore_ascii_case(off))?,
        ))
    };
    is("OTEL_SDK_DISABLED", "true").or_else(|| is("OTEL_TRACES_EXPORTER", "none"))
}

/// Removes user and password from a URL. Returns them as a header `Authorization`; no header if
/// there are none.
fn take_authorization(url: &mut Url) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if !url.username().is_empty() || url.password().is_some() {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let basic = STANDARD.encode(format!(
            "{}:{}",
            decoded(url.username()),
            decoded(url.password().unwrap_or_default())
        ));
        // Base64 is always a valid value of a header.
        if let Ok(mut value) = HeaderValue::try_from(format!("Basic {basic}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // The two calls fail only if a URL has no host, but a URL of HTTP has one.
        let _ = (url.set_username(""), url.set_password(None));
    }
    headers
}

fn client(url: &Url, headers: HeaderMap) -> anyhow::Result<reqwest::Client> {
    let is_needed = url.scheme() == "https";
    let (option, file) = [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
    ]
    .into_iter()
    .find_map(|name| Some((name, Some(variable(name).filter(|_| is_needed)?))))
    .unwrap_or(("OTEL_EXPORTER_OTLP_CERTIFICATE", None));
    let tls = https(file.as_deref().map(Path::new), is_needed, option).map_err(|error| {
        Failure::with(
            Exit::Input,
            format!("TLS to the collector of spans is not possible: {error}"),
        )
    })?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .default_headers(headers);
    client
        .redirect(Policy::none())
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| invalid(&error.to_string()))
}

/// Returns the resource attributes that spans have for this process. An attribute from the
/// variables of OpenTelemetry replaces the own one.
fn resource(name: &str) -> Resource {
    let given = Resource::builder().build();
    let is_given = |key: &'static str| {
        given
            .get(&key.into())
            .is_some_and(|value| !value.as_str().starts_with("unknown_service"))
    };
    let own = [
        ("service.name", "seriatim".to_owned()),
        ("service.instance.id", name.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let own = own
        .into_iter()
        .filter(|(key, _)| !is_given(key))
        .map(|(key, value)| KeyValue::new(key, value));
    Resource::builder().with_attributes(own).build()
}

/// The running export of spans. Call [`end`](Self::end) when the worker has stopped.
pub(super) struct Exporting {
    provider: SdkTracerProvider,
    spans: Arc<Spans>,
}

impl Exporting {
    /// Sends the last spans. Waits for this at most `END`, and after a stop at once at most
    /// `END_AT_ONCE`. Then logs the number of lost spans.
    pub(super) async fn end(self, shutdown: &Shutdown) {
        let provider = self.provider;
        let sending = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(END));
        let at_once = async {
            shutdown.stopped_at_once().await;
            sleep(END_AT_ONCE).await;
        };
        tokio::select! {
            _ = timeout(END, sending) => {}
            () = at_once => {}
        }
        self.spans.end();
    }
}
