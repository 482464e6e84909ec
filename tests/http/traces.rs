//! Traces: a span for each delivery attempt, linked to the producers' spans, at a collector.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use serde_json::{Value, json};
use seriatim::handlers::{HandlerContext, Handlers};
use seriatim::trace::TraceField;
use seriatim::trace::opentelemetry::Context;
use seriatim::trace::opentelemetry::global::BoxedTracer;
use seriatim::trace::opentelemetry::trace::{
    SpanContext, TraceContextExt as _, TracerProvider as _,
};
use seriatim::worker::Traces;

use crate::receiver::{Receiver, Reply};
use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::running::start;
use crate::support::{Redis, free_port, until};

const A: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const B: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-11111111111111111111111111111111-2222222222222222-00";

fn event(parent: &str) -> String {
    json!({"type": "made", "traceparent": parent}).to_string()
}

/// A span at the collector.
#[derive(Debug, Clone)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    kind: u64,
    /// The linked spans, as `traceparent`, and the id of the event of each.
    links: Vec<(String, String)>,
    cut_links: u64,
    attributes: Value,
    status: u64,
    resource: Value,
}

impl Span {
    /// Returns the value of an attribute; empty if the span has no such attribute.
    fn at(&self, name: &str) -> String {
        attribute(&self.attributes, name)
    }

    fn parent_header(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

/// Returns an attribute of OTLP as text.
fn attribute(attributes: &Value, name: &str) -> String {
    let found = attributes
        .as_array()
        .into_iter()
        .flatten()
        .find(|attribute| attribute["key"] == name);
    let Some((_, value)) = found.and_then(|found| found["value"].as_object()?.iter().next()) else {
        return String::new();
    };
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the spans that a collector has got.
fn spans(collector: &Receiver) -> Vec<Span> {
    let mut spans = Vec::new();
    for got in collector.got().iter().filter(|got| got.is_accepted) {
        assert_eq!(
            (got.target.as_str(), got.header("content-type")),
            ("/v1/traces", "application/json")
        );
        let body: Value = serde_json::from_str(&got.body).expect("OTLP as JSON");
        for resource in body["resourceSpans"].as_array().expect("resources") {
            for scope in resource["scopeSpans"].as_array().expect("scopes") {
                assert_eq!(scope["scope"]["name"], "seriatim");
                let parts = scope["spans"].as_array().expect("spans");
                spans.extend(
                    parts
                        .iter()
                        .map(|json| span(json, &resource["resource"]["attributes"])),
                );
            }
        }
    }
    spans
}

fn span(json: &Value, resource: &Value) -> Span {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let link = |link: &Value| {
        let parent = format!("00-{}-{}-01", text(&link["traceId"]), text(&link["spanId"]));
        (
            parent,
            attribute(&link["attributes"], "messaging.message.id"),
        )
    };
    Span {
        name: text(&json["name"]),
        trace: text(&json["traceId"]),
        id: text(&json["spanId"]),
        parent: text(&json["parentSpanId"]),
        kind: json["kind"].as_u64().expect("a kind"),
        links: json["links"]
            .as_array()
            .into_iter()
            .flatten()
            .map(link)
            .collect(),
        cut_links: json["droppedLinksCount"].as_u64().unwrap_or_default(),
        attributes: json["attributes"].clone(),
        status: json["status"]["code"].as_u64().unwrap_or_default(),
        resource: resource.clone(),
    }
}

fn options<'a>(collector: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let field = ["--trace-field", "/traceparent"];
    let others = ["--otlp-endpoint", collector, "--retry", "fixed:20ms"];
    [&field[..], &others, more].concat()
}

/// Stops a worker process, which must end well.
async fn stop(worker: &mut Process) {
    worker.terminate();
    assert!(worker.ended().await.success(), "{}", worker.log());
}

/// Tests that each attempt is a span of a new trace, linked to its producer's span, and that the
/// receiver gets its `traceparent`. Events without a sampled context have no span.
#[tokio::test]
async fn each_attempt_has_a_span_that_is_linked_to_its_producer() {
    let redis = Redis::start();
    let collector = Receiver::with(|_| Reply::With(200, Vec::new(), "{}".to_owned())).await;
    let target = Receiver::with(|got| Reply::Status(if got.number == 0 { 500 } else { 200 })).await;
    let console = redis.console().await;
    console.emit("a", &event(A)).await;
    let url = collector.url("");
    let mut worker = Process::start(&redis, "w", &target.url("/"), &options(&url, &[]));
    target.until_got(2).await;
    console.emit("b", &event(UNSAMPLED)).await;
    console.emit("c", &event("00-malformed")).await;
    console.emit("d", "7").await;
    target.until_got(5).await;
    stop(&mut worker).await;

    let spans = spans(&collector);
    assert_eq!(spans.len(), 2, "{spans:#?}");
    let id = target.got()[0].events()[0].0.to_string();
    for (at, (span, (outcome, status, delivered))) in spans
        .iter()
        .zip([("transient", 2, "0"), ("delivered", 0, "1")])
        .enumerate()
    {
        assert_eq!(
            (span.name.clone(), span.kind),
            (format!("process {}", redis.namespace()), 5),
            "a consumer"
        );
        assert_eq!(span.links, [(A.to_owned(), id.clone())]);
        assert_eq!(span.parent, "", "a root");
        for (name, value) in [
            ("seriatim.object", "a"),
            ("messaging.message.id", &*id),
            ("seriatim.attempt", &*(at + 1).to_string()),
            ("seriatim.outcome", outcome),
            ("seriatim.delivered", delivered),
        ] {
            assert_eq!(span.at(name), value, "{name}");
        }
        assert_eq!(span.status, status);
        assert_eq!(target.got()[at].header("traceparent"), span.parent_header());
        assert_eq!(attribute(&span.resource, "service.name"), "seriatim");
        assert_eq!(attribute(&span.resource, "service.instance.id"), "w");
    }
    assert_ne!(spans[0].trace, spans[1].trace);
    assert!(spans.iter().all(|span| !A.contains(&span.trace)));
    let mut others = target.got()[2..].to_vec().into_iter();
    assert!(others.all(|got| got.header("traceparent").is_empty()));
}

/// Tests that a list of events has one span, linked to each sampled producer, at most 128.
#[tokio::test]
async fn a_list_has_one_span_with_a_link_for_each_sampled_event() {
    let redis = Redis::start();
    let collector = Receiver::start().await;
    let target = Receiver::start().await;
    let console = redis.console().await;
    console
        .emit_all("a", [event(A), event(UNSAMPLED), event(B), "3".to_owned()])
        .await;
    console.emit_all("many", (0..200).map(|_| event(A))).await;
    let url = collector.url("/");
    let (sink, options) = (
        target.url("/?batch=1000"),
        options(&url, &["--trace-child"]),
    );
    let mut worker = Process::start(&redis, "w", &sink, &options);
    target.until_accepted(204).await;
    stop(&mut worker).await;
    let spans = spans(&collector);
    let of = |object: &str| {
        let mut spans = spans.iter();
        let span = spans.find(|span| span.at("seriatim.object") == object);
        span.expect("a span")
    };
    assert_eq!(spans.len(), 2, "{spans:#?}");
    let got = target.got();
    let request = got.iter().find(|got| got.events()[0].2 == "a");
    let ids = request.expect("its request").events();
    let link = |parent: &str, at: usize| (parent.to_owned(), ids[at].0.to_string());
    assert_eq!(of("a").links, [link(A, 0), link(B, 2)]);
    assert_eq!(of("a").at("messaging.batch.message_count"), "4");
    assert_eq!(of("a").parent, "", "a list is no child");
    let many = of("many");
    assert_eq!(
        (
            many.links.len(),
            many.cut_links,
            many.at("seriatim.delivered").as_str()
        ),
        (128, 72, "200")
    );
}

/// Tests that the span of a single event is a child of its producer's span, if the settings ask for
/// it.
#[tokio::test]
async fn a_span_can_be_a_child() {
    let redis = Redis::start();
    let (collector, target) = (Receiver::start().await, Receiver::start().await);
    let event = json!({"traceparent": A, "tracestate": "x=1", "url": target.url("/")});
    let console = redis.console().await;
    console.emit("a", &event.to_string()).await;
    let (url, port) = (collector.url(""), target.url(""));
    let allow = ["--allow", &port, "--allow-address", "127.0.0.1"];
    let more = [&["--trace-child"], &allow[..]].concat();
    let mut worker = Process::start(&redis, "w", "event-url", &options(&url, &more));
    target.until_accepted(1).await;
    stop(&mut worker).await;
    let spans = spans(&collector);
    assert_eq!(spans.len(), 1);
    assert_eq!(format!("00-{}-{}-01", spans[0].trace, spans[0].parent), A);
    assert_eq!(spans[0].links.len(), 1);
    let got = target.got().remove(0);
    assert_eq!(
        (got.header("traceparent"), got.header("tracestate")),
        (spans[0].parent_header().as_str(), "x=1")
    );
}

/// Tests that a collector that is away, or does not answer, delays no delivery and hardly the stop.
#[tokio::test]
async fn a_collector_that_is_away_delays_nothing() {
    for stalls in [false, true] {
        let redis = Redis::start();
        let collector = Receiver::with(|_| Reply::Stall).await;
        let url = if stalls {
            collector.url("")
        } else {
            format!("http://127.0.0.1:{}", free_port())
        };
        let target = Receiver::start().await;
        let console = redis.console().await;
        let mut worker = Process::start(&redis, "w", &target.url("/"), &options(&url, &[]));
        for object in 0..20 {
            console.emit(&format!("o{object}"), &event(A)).await;
        }
        target.until_accepted(20).await;
        let began = Instant::now();
        stop(&mut worker).await;
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{stalls}: {:?}",
            began.elapsed()
        );
        let log = worker.log();
        assert!(
            log.contains("does not have all spans") && log.contains("lost=20"),
            "{stalls}: {log}"
        );
        let why = if stalls {
            "it did not take them in time"
        } else {
            "refused"
        };
        assert!(log.contains(why), "{stalls}: {log}");
    }
}

/// Tests that a second signal shortens the wait for the last spans.
#[tokio::test]
async fn a_second_signal_shortens_the_wait_for_the_last_spans() {
    let redis = Redis::start();
    let (collector, target) = (
        Receiver::with(|_| Reply::Stall).await,
        Receiver::start().await,
    );
    redis.console().await.emit("a", &event(A)).await;
    let url = collector.url("");
    let mut worker = Process::start(&redis, "w", &target.url("/"), &options(&url, &[]));
    target.until_accepted(1).await;
    redis.console().await.until_at_rest().await;
    worker.terminate();
    collector.until_got(1).await;
    let began = Instant::now();
    stop(&mut worker).await;
    assert!(
        began.elapsed() < Duration::from_millis(1800),
        "{:?}",
        began.elapsed()
    );
}

/// Tests that spans go in requests of bounded size, and that lost and refused spans are counted.
#[tokio::test]
async fn spans_go_in_requests_of_bounded_size() {
    let redis = Redis::start();
    let refused = r#"{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too\nmany"}}"#;
    let collector = Receiver::with(move |got| match got.number {
        0 => Reply::With(200, Vec::new(), refused.to_owned()),
        _ => Reply::Status(200),
    })
    .await;
    let target = Receiver::start().await;
    let console = redis.console().await;
    for object in 0..60 {
        console
            .emit_all(&format!("o{object}"), (0..128).map(|_| event(A)))
            .await;
    }
    let url = collector.url("");
    let url = url.replace("http://", "http://ada:hunter%402@");
    let (sink, options) = (
        target.url("/?batch=1000"),
        options(&url, &["--batch", "128"]),
    );
    let mut worker = Process::start(&redis, "w", &sink, &options);
    target.until_accepted(60 * 128).await;
    stop(&mut worker).await;
    let (log, got) = (worker.log(), collector.got());
    assert!(spans(&collector).iter().all(|span| span.links.len() == 128));
    assert!(
        got.len() >= 5 && got.iter().all(|got| got.body.len() < 1 << 20),
        "{:?}",
        got.iter().map(|got| got.body.len()).collect::<Vec<_>>()
    );
    assert!(
        got.iter()
            .all(|got| got.header("authorization") == "Basic YWRhOmh1bnRlckAy")
    );
    assert!(
        log.contains(r"it refused spans: too\\nmany")
            && log.contains("lost=2")
            && !log.contains("hunter"),
        "{log}"
    );
}

/// Tests the variables of OpenTelemetry that turn spans off, or change how they are sent.
#[tokio::test]
async fn the_variables_of_opentelemetry_count() {
    let redis = Redis::start();
    let (collector, target) = (Receiver::start().await, Receiver::start().await);
    let (endpoint, console) = (collector.url(""), redis.console().await);
    let field = ["--trace-field", "/traceparent"];
    let (mut events, mut requests) = (0, 0);
    for (more, spans_at_the_end, logged) in [
        (
            &[("OTEL_SDK_DISABLED", "true")][..],
            false,
            "OTEL_SDK_DISABLED is true",
        ),
        (
            &[("OTEL_TRACES_EXPORTER", "none")],
            false,
            "OTEL_TRACES_EXPORTER is none",
        ),
        (
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", ""),
            ],
            true,
            "spans go by http/json",
        ),
        (
            &[
                ("OTEL_BSP_SCHEDULE_DELAY", "0"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod1"),
            ],
            true,
            "stopped",
        ),
    ] {
        console.emit("a", &event(A)).await;
        events += 1;
        let variables = [&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())], more].concat();
        let mut worker = Process::start_with(&redis, "w", &target.url("/"), &field, &variables);
        target.until_accepted(events).await;
        stop(&mut worker).await;
        assert!(worker.log().contains(logged), "{more:?}: {}", worker.log());
        requests += usize::from(spans_at_the_end);
        assert_eq!(collector.got().len(), requests, "{more:?}");
    }
    let last = spans(&collector).pop().expect("a span");
    assert_eq!(attribute(&last.resource, "service.instance.id"), "pod1");
    assert_eq!(attribute(&last.resource, "service.name"), "seriatim");
}

/// Tests that the program says what is wrong with the URL of a collector, in one line.
#[tokio::test]
async fn a_wrong_collector_is_refused() {
    let redis = Redis::start();
    for url in [
        "collector:4318",
        "",
        "http://",
        "ftp://user:hunter2@collector",
    ] {
        let options = ["--trace-field", "/traceparent", "--otlp-endpoint", url];
        let mut worker = Process::start(&redis, "w", "null", &options);
        let (status, log) = (worker.ended().await, worker.log());
        assert_eq!(
            (status.code(), log.lines().count()),
            (Some(2), 1),
            "{url}: {log}"
        );
        assert!(
            log.contains("--otlp-endpoint") && !log.contains("hunter2"),
            "{log}"
        );
    }
}

/// Tests that handlers run inside the span of their delivery, and that the events which they emit
/// continue its trace.
#[tokio::test]
async fn handlers_run_inside_the_span() {
    let redis = Redis::start();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let tracer = Arc::new(provider.tracer("test"));
    let seen = Arc::new(std::sync::Mutex::new(Vec::<SpanContext>::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        move |event: Value, cx: HandlerContext| {
            let seen = Arc::clone(&seen);
            async move {
                // The context stays across awaits.
                tokio::time::sleep(Duration::from_millis(5)).await;
                seen.lock()
                    .expect("no panic")
                    .push(Context::current().span().span_context().clone());
                if event["type"] == "made" {
                    let mut next = json!({"type": "next"});
                    assert!(seriatim::trace::put(&mut next));
                    cx.emit("b", &next)?;
                }
                Ok(())
            }
        }
    };
    let sink = Handlers::builder()
        .register_all("it", handler)
        .build()
        .expect("a set");
    let boxed = BoxedTracer::new(Box::new((*tracer).clone()));
    let traces = Traces::new("/traceparent".parse().expect("a pointer")).tracer(boxed);
    redis.console().await.emit("a", &event(A)).await;
    let worker = start(&redis, "w", &Arc::new(sink), |config| {
        config.traces = Some(traces)
    });
    let finished = until("both spans end", PATIENCE, async || {
        Some(exporter.get_finished_spans().expect("spans")).filter(|spans| spans.len() == 2)
    });
    let finished = finished.await;
    worker.finish().await;
    let seen = seen.lock().expect("no panic").clone();
    let contexts = finished.iter().map(|span| span.span_context.clone());
    assert_eq!(seen, contexts.collect::<Vec<_>>());
    let field = TraceField::new("/traceparent".parse().expect("a pointer"));
    let given = field.context(event(A).as_bytes()).expect("a context");
    assert_eq!(finished[0].links.links[0].span_context, given);
    let linked = &finished[1].links.links[0].span_context;
    assert_eq!(
        (linked.trace_id(), linked.span_id()),
        (seen[0].trace_id(), seen[0].span_id())
    );
    let traces: HashSet<_> = seen.iter().map(SpanContext::trace_id).collect();
    assert_eq!(traces.len(), 2, "each delivery has its own trace");
}

/// Tests that a delivery that is given up ends its span.
#[tokio::test]
async fn a_cancelled_delivery_has_a_span() {
    let redis = Redis::start();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let tracer = BoxedTracer::new(Box::new(provider.tracer("test")));
    let target = Receiver::with(|_| Reply::Stall).await;
    redis.console().await.emit("a", &event(A)).await;
    let traces = Traces::new("/traceparent".parse().expect("a pointer")).tracer(tracer);
    let sink = target.sink("/");
    let worker = start(&redis, "w", &sink, |config| config.traces = Some(traces));
    target.until_got(1).await;
    worker.crash().await;
    let spans = until("the span ends", PATIENCE, async || {
        Some(exporter.get_finished_spans().expect("spans")).filter(|spans| !spans.is_empty())
    });
    let shown = format!("{:?}", spans.await[0]);
    assert!(shown.contains("cancelled"), "{shown}");
}
