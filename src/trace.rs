//! Trace contexts in events (feature `traces`). They connect the span of a producer with the span
//! of a delivery.
//!
//! An event has the context of its producer as a member `traceparent`, in the form of [W3C Trace
//! Context](https://www.w3.org/TR/trace-context/). The optional member `tracestate` stands beside
//! it. seriatim never changes an event, so the producer itself puts these members into the event:
//!
//! ```
//! let mut event = serde_json::json!({"type": "created"});
//! // Without a current span this call does nothing.
//! seriatim::trace::put(&mut event);
//! ```
//!
//! A worker with `WorkerBuilder::traces` (feature `worker`) makes a span for each delivery.
//! [`TraceField`] reads the context of an event, for consumers and for claims by hand.

use std::str::FromStr as _;

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::event::Pointer;

pub use opentelemetry;

/// The names of the members in an event, and also of the HTTP headers.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Number of bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;
/// Maximum number of bytes of a `tracestate` that is read. W3C says that at least 512 bytes should
/// be passed on.
const TRACESTATE_BYTES_MAX: usize = 512;
/// Maximum number of members of a `tracestate`, as W3C defines it.
const TRACESTATE_MEMBERS_MAX: usize = 32;

/// Puts the context of the current span into an event, as the members `traceparent` and
/// `tracestate`. Returns whether it has done so. It does nothing if there is no current span, or if
/// the event is not a JSON object.
///
/// The current span is the span of [`Context::current`]. It can be a span of `tracing` if the layer
/// of `tracing-opentelemetry` activates the contexts of its spans, which it does by default.
pub fn put(event: &mut Value) -> bool {
    let Value::Object(members) = event else {
        return false;
    };
    let mut current = current().peekable();
    if current.peek().is_none() {
        return false;
    }
    // A `tracestate` that belongs to another context would be wrong here, so it is removed.
    members.remove(TRACESTATE);
    members.extend(current.map(|(name, value)| (name.to_owned(), value.into())));
    true
}

/// Returns the `traceparent` of the current span, and its `tracestate` if it has one. Empty if
/// there is no current span.
#[doc(hidden)]
pub fn current() -> impl Iterator<Item = (&'static str, String)> {
    let context = Context::map_current(|cx| cx.span().span_context().clone());
    let parent = context.is_valid().then(|| traceparent(&context));
    let state = parent
        .as_ref()
        .map(|_| context.trace_state().header())
        .filter(|state| !state.is_empty());
    parent
        .map(|parent| (TRACEPARENT, parent))
        .into_iter()
        .chain(state.map(|state| (TRACESTATE, state)))
}

fn traceparent(context: &SpanContext) -> String {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        flags
    )
}

/// The place of `traceparent` in events, as a JSON pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceField {
    parent: Pointer,
    state: Option<Pointer>,
}

impl TraceField {
    /// Returns the field at this pointer. `tracestate` is read from the member beside it.
    #[must_use]
    pub fn new(pointer: Pointer) -> Self {
        Self {
            state: pointer.sibling(TRACESTATE),
            parent: pointer,
        }
    }

    /// Returns the context that an event has. The context is marked as remote.
    ///
    /// None if the event is not JSON, has no member at this place, or has one that is not a valid
    /// `traceparent`. A `tracestate` that is invalid, or has more than 512 bytes, is left out.
    #[must_use]
    pub fn context(&self, event: &[u8]) -> Option<SpanContext> {
        let document: &RawValue = serde_json::from_slice(event).ok()?;
        let (trace, span, flags) = self.ids(document)?;
        let state = self
            .state
            .as_ref()
            .and_then(|state| string(state, document));
        let state = state.filter(|state| is_state(state));
        let state = state
            .and_then(|state| TraceState::from_str(&state).ok())
            .unwrap_or_default();
        Some(SpanContext::new(trace, span, flags, true, state))
    }

    /// Returns the context that an event has, without its `tracestate`. None if the context is not
    /// sampled.
    pub(crate) fn sampled(&self, event: &[u8]) -> Option<SpanContext> {
        let (trace, span, flags) = self.ids(serde_json::from_slice(event).ok()?)?;
        flags
            .is_sampled()
            .then(|| SpanContext::new(trace, span, flags, true, TraceState::NONE))
    }

    fn ids(&self, document: &RawValue) -> Option<(TraceId, SpanId, TraceFlags)> {
        parse(string(&self.parent, document)?.as_bytes())
    }
}

/// Returns whether a text has the form of a `tracestate`. This is checked because the text also
/// becomes a header of requests.
fn is_state(text: &str) -> bool {
    let is_key = |key: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        key.len() <= 256
            && key.bytes().next().is_some_and(is_plain)
            && key
                .bytes()
                .all(|byte| is_plain(byte) || b"_-*/@".contains(&byte))
    };
    let is_value = |value: &str| {
        let is_shown = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'=';
        (1..=256).contains(&value.len()) && value.bytes().all(is_shown) && !value.ends_with(' ')
    };
    let mut keys = Vec::new();
    text.len() <= TRACESTATE_BYTES_MAX
        && text.split(',').all(|member| {
            let Some((key, value)) = member.trim_matches([' ', '\t']).split_once('=') else {
                return false;
            };
            let is_new = !keys.contains(&key);
            keys.push(key);
            is_new && is_key(key) && is_value(value)
        })
        && keys.len() <= TRACESTATE_MEMBERS_MAX
}

/// Returns the text at a pointer of a document.
fn string(pointer: &Pointer, document: &RawValue) -> Option<String> {
    serde_json::from_str(pointer.find(document)?.get()).ok()
}

/// Parses a `traceparent`: version, trace id, span id and flags, as lower-case hex digits with `-`
/// between them. In a version later than 00, more text may follow. Version ff does not exist.
fn parse(text: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (head, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
    let (version, trace, span, flags) = (&head[..2], &head[3..35], &head[36..52], &head[53..]);
    if [head[2], head[35], head[52]] != *b"---" || version == b"ff" || hex(version).is_none() {
        return None;
    }
    if !rest.is_empty() && (version == b"00" || rest[0] != b'-') {
        return None;
    }
    let (trace, span) = (hex(trace)?, u64::try_from(hex(span)?).ok()?);
    let flags = u8::try_from(hex(flags)?).ok()?;
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    (trace != 0 && span != 0).then(|| (trace.into(), span.into(), flags))
}

/// Parses at most 32 lower-case hex digits as a number.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn field(pointer: &str) -> TraceField {
        TraceField::new(pointer.parse().expect("a pointer"))
    }

    /// Returns the context that the propagator of the OpenTelemetry SDK reads from this
    /// `traceparent`.
    fn propagated(parent: &str) -> Option<SpanContext> {
        let headers = HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        let cx = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        Some(cx.span().span_context().clone()).filter(SpanContext::is_valid)
    }

    fn read(parent: &str) -> Option<SpanContext> {
        field("/traceparent").context(json!({"traceparent": parent}).to_string().as_bytes())
    }

    #[test]
    fn a_context_has_one_form() {
        for (parent, is_sampled) in [
            (PARENT, true),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                false,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
                true,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe",
                false,
            ),
            (
                "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                true,
            ),
            (
                "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                true,
            ),
        ] {
            let context = read(parent).expect(parent);
            assert_eq!(
                (context.is_sampled(), context.is_remote()),
                (is_sampled, true),
                "{parent}"
            );
            let ids = format!("{}-{}", context.trace_id(), context.span_id());
            assert_eq!(
                ids, "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                "{parent}"
            );
            assert_eq!(
                field("/t")
                    .sampled(json!({"t": parent}).to_string().as_bytes())
                    .is_some(),
                is_sampled,
                "{parent}"
            );
        }
        for parent in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "",
            "é0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        ] {
            assert_eq!(read(parent), None, "{parent}");
        }
    }

    proptest! {
        /// Compares with the SDK only if this parser accepts the text. The SDK also accepts some
        /// texts that are not valid by W3C.
        #[test]
        fn a_context_is_the_one_that_the_sdk_reads(parent in "00[-_][0-9a-f]{32}-[0-9a-f]{16}-[01][0-3]") {
            if let Some(context) = read(&parent) {
                prop_assert_eq!(Some(context), propagated(&parent));
            }
        }

        #[test]
        fn a_printed_context_is_read_again(trace in 1_u128.., span in 1_u64.., flags in 0_u8..2) {
            let flags = TraceFlags::new(flags);
            let context = SpanContext::new(trace.into(), span.into(), flags, true, TraceState::NONE);
            prop_assert_eq!(read(&traceparent(&context)), Some(context));
        }
    }

    #[test]
    fn a_state_is_read_beside_its_parent() {
        let context = |state: serde_json::Value| {
            let event = json!({"meta": {"parent": PARENT, "tracestate": state}}).to_string();
            field("/meta/parent")
                .context(event.as_bytes())
                .expect("a context")
                .trace_state()
                .header()
        };
        assert_eq!(context(json!("a=1")), "a=1");
        assert_eq!(context(json!(format!("a={}", "x".repeat(510)))), "");
        assert_eq!(
            context(json!("a=1, b_-*/@9=x y\t,\tc=!~")),
            "a=1,b_-*/@9=x y,c=!~"
        );
        for other in [
            "no list",
            "",
            ",",
            "=,=",
            "a=",
            "=1",
            "A=1",
            "a=é",
            "a=x\ty",
            "a=1,a=2",
            "a=1\r\nx: y",
            "a=\0b",
            "é=1",
        ] {
            assert_eq!(context(json!(other)), "", "{other:?}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("a{n}=1")).collect();
        assert_eq!(context(json!(many[..32].join(","))), many[..32].join(","));
        assert_eq!(context(json!(many.join(","))), "");
        for other in [json!(7), json!(null)] {
            assert_eq!(context(other), "");
        }
    }

    #[test]
    fn what_is_no_context_is_none() {
        for event in [
            &b"{"[..],
            b"",
            b"7",
            b"{}",
            br#"{"traceparent":7}"#,
            b"\xff",
        ] {
            assert_eq!(field("/traceparent").context(event), None);
        }
        let whole = serde_json::to_vec(PARENT).expect("JSON");
        assert!(field("").context(&whole).is_some());
    }

    #[test]
    fn the_current_span_is_put_into_an_event() {
        let mut event = json!({"type": "created", "tracestate": "old=1"});
        assert!(!put(&mut event), "there is no span");
        assert_eq!(event["tracestate"], "old=1");
        let given = json!({"traceparent": PARENT, "tracestate": "a=1"}).to_string();
        let given = field("/traceparent")
            .context(given.as_bytes())
            .expect("a context");
        let _current = Context::new()
            .with_remote_span_context(given.clone())
            .attach();
        assert!(put(&mut event));
        assert_eq!(
            event,
            json!({"type": "created", "traceparent": PARENT, "tracestate": "a=1"})
        );
        assert_eq!(
            field("/traceparent").context(event.to_string().as_bytes()),
            Some(given)
        );
        assert!(!put(&mut json!([1])), "not an object");
    }
}
