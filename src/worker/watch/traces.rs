//! Spans of OpenTelemetry: one for each delivery of events with a sampled trace context.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};

use crate::event::Pointer;
use crate::keys::Keys;
use crate::sink::{self, Batch, Stop};
use crate::trace::TraceField;
use crate::worker::serve::deliver::Outcome;

/// The most characters of an error in a span.
const ERROR_MAX: usize = 1000;

/// The traces of a worker: which events are part of traces, and where spans go.
///
/// Each delivery attempt of a batch is one span of the kind *consumer*, the root of a new trace.
/// For each of its events with a sampled context, the span has a link to the producer's span;
/// OpenTelemetry keeps the first 128 links. If no event of the batch has a sampled context, there
/// is no span. While the sink is polled, the span is the current span of
/// [`opentelemetry::Context::current`]. So spans of handlers become its children, and HTTP sinks
/// send the `traceparent` of the span.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::sink::Null;
/// use seriatim::worker::{Traces, Worker};
///
/// let traces = Traces::new("/traceparent".parse()?);
/// let worker = Worker::builder("redis://127.0.0.1").traces(traces).sink(Null);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Traces {
    field: TraceField,
    tracer: Arc<BoxedTracer>,
    is_child: bool,
}

impl Traces {
    /// Reads the context of an event at this pointer, e.g. `/traceparent`. Spans go to the global
    /// tracer provider: set it before this call.
    #[must_use]
    pub fn new(pointer: Pointer) -> Self {
        let scope = InstrumentationScope::builder("seriatim")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self {
            field: TraceField::new(pointer),
            tracer: Arc::new(global::tracer_with_scope(scope)),
            is_child: false,
        }
    }

    /// Sets the tracer that makes the spans. Default: the global one.
    #[must_use]
    pub fn tracer(mut self, tracer: BoxedTracer) -> Self {
        self.tracer = Arc::new(tracer);
        self
    }

    /// Sets whether the span of a delivery of only one event is a child of the producer's span, in
    /// the producer's trace. A delivery of several events begins a new trace in any case. Default:
    /// no.
    #[must_use]
    pub fn child_spans(mut self, is_child: bool) -> Self {
        self.is_child = is_child;
        self
    }

    /// Begins the span of a delivery of the first `offered` events, if one of them has a sampled
    /// context.
    pub(in crate::worker) fn begin(
        &self,
        batch: &Batch,
        offered: usize,
        cx: &sink::Context,
        keys: &Keys,
    ) -> Option<DeliverySpan> {
        let events = &batch.payloads[..offered];
        let sampled = |(at, event): (usize, &Bytes)| {
            Some((
                batch.first + at as u64 * batch.stride,
                self.field.sampled(event)?,
            ))
        };
        let links: Vec<Link> = events
            .iter()
            .enumerate()
            .filter_map(sampled)
            .map(link)
            .collect();
        if links.is_empty() {
            return None;
        }
        let mut parent = Context::new();
        if let [event] = events
            && self.is_child
            && let Some(context) = self.field.context(event)
        {
            parent = parent.with_remote_span_context(context);
        }
        let mut attributes = vec![
            KeyValue::new("messaging.system", "seriatim"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.client.id", cx.worker.to_string()),
            KeyValue::new("seriatim.object", batch.object.to_string()),
            KeyValue::new("seriatim.prev", number(batch.prev)),
            KeyValue::new("seriatim.attempt", i64::from(cx.attempts) + 1),
        ];
        match offered {
            1 => attributes.push(KeyValue::new(
                "messaging.message.id",
                batch.first.to_string(),
            )),
            events => attributes.push(KeyValue::new(
                "messaging.batch.message_count",
                number(events as u64),
            )),
        }
        if cx.crashes > 0 {
            attributes.push(KeyValue::new("seriatim.crashes", i64::from(cx.crashes)));
        }
        let mut name = "process".to_owned();
        if let Some(namespace) = keys.namespace() {
            attributes.push(KeyValue::new(
                "messaging.destination.name",
                namespace.to_owned(),
            ));
            name = format!("process {namespace}");
        }
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .with_links(links);
        let span = self.tracer.build_with_context(builder, &parent);
        Some(DeliverySpan(Context::new().with_span(span)))
    }
}

/// Runs a delivery inside its span, if it has one.
pub(in crate::worker) async fn inside(
    span: Option<DeliverySpan>,
    delivery: impl Future<Output = Outcome>,
) -> Outcome {
    let mut delivery = pin!(delivery);
    let outcome = poll_fn(|cx| {
        let _current = span.as_ref().map(|span| span.0.clone().attach());
        delivery.as_mut().poll(cx)
    })
    .await;
    if let Some(span) = span {
        span.end(&outcome);
    }
    outcome
}

fn link((id, context): (u64, SpanContext)) -> Link {
    Link::new(
        context,
        vec![KeyValue::new("messaging.message.id", id.to_string())],
        0,
    )
}

/// Returns a number in the type that OpenTelemetry uses for numbers.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The span of a delivery under way. A delivery that is dropped counts as cancelled.
pub(in crate::worker) struct DeliverySpan(Context);

impl DeliverySpan {
    fn end(self, outcome: &Outcome) {
        let (word, error) = match &outcome.stop {
            None => ("delivered", None),
            Some(Stop::Postponed { .. }) => ("postponed", None),
            Some(Stop::Transient { error, .. }) => ("transient", Some(error)),
            Some(Stop::Rejected { error }) => ("rejected", Some(error)),
            Some(Stop::Unknown { error }) => ("unknown", Some(error)),
            Some(Stop::Crashed { error }) => ("crashed", Some(error)),
            Some(Stop::Unavailable { error }) => ("unavailable", Some(error)),
        };
        self.set(word, outcome.count, error.map(String::as_str));
    }

    fn set(&self, outcome: &'static str, count: usize, error: Option<&str>) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("seriatim.outcome", outcome));
        span.set_attribute(KeyValue::new("seriatim.delivered", number(count as u64)));
        if let Some(error) = error {
            span.set_attribute(KeyValue::new("error.type", outcome));
            span.set_status(Status::error(
                error.chars().take(ERROR_MAX).collect::<String>(),
            ));
        }
        span.end();
    }
}

impl Drop for DeliverySpan {
    fn drop(&mut self) {
        // If the span has already ended, it ignores this.
        self.set(
            "cancelled",
            0,
            Some("the delivery was cancelled: the lease is lost, or the worker stopped"),
        );
    }
}
