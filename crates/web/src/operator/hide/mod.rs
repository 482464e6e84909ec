//! Hides parts of events, and the same values in errors, reasons and results.
//!
//! - `json`: finds the values at JSON pointers in an event
//! - `secret`: finds these values in a text
//!
//! If a part cannot be found with certainty, more is hidden, never less. Values below
//! [`SECRET_BYTES_MIN`] bytes stay in texts, because almost every text has them by chance. A part
//! of a hidden value, e.g. the last digits of a number, also stays in a text, and so does a value
//! in an encoding such as base64.

mod json;
mod secret;

use std::borrow::Cow;

use seriatim::event::Pointer;

use self::secret::Secrets;

/// Text that replaces a hidden value.
const MASK: &str = "***";

/// Minimum size of a value that is hidden in texts, in bytes.
const SECRET_BYTES_MIN: usize = 4;

/// The words before the status of a receiver's answer, in an error of a sink over HTTP.
const ANSWERED: &str = " answered ";

/// Codes of reasons for which objects are held. They are the only texts that are shown if no event
/// is at hand.
const CODES: [&str; 12] = [
    "retry",
    "unknown",
    "rejected",
    "attempts",
    "crashes",
    "yield",
    "stop",
    "slots",
    "takeover",
    "unavailable",
    "quarantine",
    "skip",
];

/// The parts of events that are hidden from view.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hidden {
    pointers: Vec<Pointer>,
    all_events: bool,
}

impl Hidden {
    /// Hides the values at these pointers, or whole events.
    pub(crate) fn new(pointers: Vec<Pointer>, all_events: bool) -> Self {
        Self {
            pointers,
            all_events,
        }
    }

    /// Returns the event with `"***"` in place of each hidden value. All other bytes are unchanged.
    /// `is_cut`: whether the bytes are only the beginning of an event.
    ///
    /// If only the size of the event may be told, or if the hidden values cannot be found, because
    /// the event is cut or is not JSON, the result is a JSON string with the size.
    pub(crate) fn event<'a>(&self, event: &'a [u8], is_cut: bool) -> Cow<'a, [u8]> {
        if self.hides_nothing() {
            return Cow::Borrowed(event);
        }
        let places = if self.all_events || is_cut {
            None
        } else {
            json::places(event, &self.pointers)
        };
        let Some(places) = places else {
            let more = if is_cut { " or more" } else { "" };
            return Cow::Owned(format!("\"{MASK} ({} bytes{more})\"", event.len()).into_bytes());
        };
        if places.is_empty() {
            return Cow::Borrowed(event);
        }
        let mut shown = Vec::with_capacity(event.len());
        let mut from = 0;
        for place in places {
            let start = json::start(event, place);
            shown.extend_from_slice(event.get(from..start).unwrap_or_default());
            shown.extend_from_slice(format!("\"{MASK}\"").as_bytes());
            from = start + place.get().len();
        }
        shown.extend_from_slice(event.get(from..).unwrap_or_default());
        Cow::Owned(shown)
    }

    /// Returns an error, a reason or a result with `***` in place of each hidden value of the
    /// event. This holds for strings, numbers and member names, also if they are escaped, and for
    /// their beginnings if the text ends there. `event` is the whole event to which the text
    /// belongs.
    ///
    /// The answer of a receiver is hidden whole: its request may have had further events, whose
    /// values the answer may repeat.
    ///
    /// If whole events are hidden, or the event is not at hand or is not JSON, only the code of a
    /// reason is left, e.g. `retry (hidden)`. A result that was JSON may not be JSON any more.
    pub(crate) fn text(&self, text: &str, event: Option<&[u8]>) -> String {
        if self.hides_nothing() {
            return text.to_owned();
        }
        let exact = || {
            let event = event.filter(|_| !self.all_events)?;
            let places = json::places(event, &self.pointers)?;
            Secrets::of(&json::leaves(&places)?)?.hide_in(&without_answer(text))
        };
        exact().unwrap_or_else(|| code_of(text))
    }

    /// Returns whether all events and texts are shown unchanged.
    pub(crate) fn hides_nothing(&self) -> bool {
        self.pointers.is_empty() && !self.all_events
    }
}

/// Returns an error of a sink over HTTP without the text of the receiver's answer. Such an error is
/// `URL answered STATUS: TEXT`.
fn without_answer(text: &str) -> Cow<'_, str> {
    let answer = text
        .find(ANSWERED)
        .and_then(|at| Some(at + text.get(at..)?.find(": ")?));
    match answer.and_then(|at| text.get(..at)) {
        Some(before) => Cow::Owned(format!("{before}: (hidden)")),
        None => Cow::Borrowed(text),
    }
}

/// Returns the code of a reason, and says that the rest is hidden. A text may begin with a hidden
/// value, so words other than known codes are hidden, too.
fn code_of(text: &str) -> String {
    let (code, rest) = text
        .split_once(':')
        .map_or((text, None), |(code, rest)| (code, Some(rest)));
    match rest {
        _ if !CODES.contains(&code) && !text.is_empty() => "(hidden)".to_owned(),
        None => code.to_owned(),
        Some(_) => format!("{code} (hidden)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    fn hidden(pointers: &[&str]) -> Hidden {
        Hidden::new(
            pointers
                .iter()
                .map(|pointer| pointer.parse().expect("a pointer"))
                .collect(),
            false,
        )
    }

    #[rstest]
    #[case(
        "http://a/ answered 500 Internal Server Error: no 4111",
        "http://a/ answered 500 Internal Server Error: (hidden)"
    )]
    #[case(
        "retry: http://a/ answered 503: x answered 1: y",
        "retry: http://a/ answered 503: (hidden)"
    )]
    #[case("http://a/ answered 503", "http://a/ answered 503")]
    #[case("no answer: timeout", "no answer: timeout")]
    fn the_answer_of_a_receiver_is_hidden(#[case] error: &str, #[case] shown: &str) {
        assert_eq!(
            hidden(&["/card"]).text(error, Some(br#"{"card":"secret"}"#)),
            shown
        );
        assert_eq!(hidden(&["/card"]).text(error, Some(br#"{"n":1}"#)), shown);
        assert_eq!(hidden(&[]).text(error, None), error);
    }

    fn event(pointers: &[&str], event: &str) -> String {
        String::from_utf8(hidden(pointers).event(event.as_bytes(), false).into_owned())
            .expect("UTF-8")
    }

    #[rstest]
    #[case(&["/a"], r#"{"a":1,"b":90071992547409931.50e0}"#, r#"{"a":"***","b":90071992547409931.50e0}"#)]
    // All members of the same name are hidden, however the name is written.
    #[case(&["/a"], r#"{"a":1,"b":2, "\u0061" : {"x":[3]} ,"a":"4"}"#, r#"{"a":"***","b":2, "\u0061" : "***" ,"a":"***"}"#)]
    #[case(&["/a/b"], r#"{"a":{"b":1},"a":[{"b":1}],"a":{"b":2,"c":3}}"#, r#"{"a":{"b":"***"},"a":[{"b":1}],"a":{"b":"***","c":3}}"#)]
    #[case(&["/a/1/b"], r#"{"a":[{"b":1},{"b":2},{"b":3}]}"#, r#"{"a":[{"b":1},{"b":"***"},{"b":3}]}"#)]
    #[case(&["/0", "/2"], " [1 , [2] , {} ]\n", " [\"***\" , [2] , \"***\" ]\n")]
    #[case(&["/a/-", "/a/01", "/a/9", "/b", "/a/0/x", "/a/"], r#"{"a":["}",2]}"#, r#"{"a":["}",2]}"#)]
    #[case(&["/x~1y/m~0n", "/"], r#"{"x/y":{"m~n":null},"":true}"#, r#"{"x/y":{"m~n":"***"},"":"***"}"#)]
    // A pointer into a hidden value, and the same pointer twice.
    #[case(&["/a/b", "/a", "/a"], r#"{"a":{"b":"\"]}"},"c":"\\"}"#, r#"{"a":"***","c":"\\"}"#)]
    #[case(&[""], " {\"a\":1} ", " \"***\" ")]
    #[case(&["/subevents/0/n", "/data/card"], r#"{"data":{"card":"4111"},"subevents":[{"n":1}]}"#, r#"{"data":{"card":"***"},"subevents":[{"n":"***"}]}"#)]
    #[case(&["/0"], r#"{"0":1}"#, r#"{"0":"***"}"#)]
    // Neither JSON nor a name of UTF-8.
    #[case(&["/a"], r#"{"a":1"#, r#""*** (6 bytes)""#)]
    #[case(&["/a"], r#"{"\ud800":1,"a":2}"#, r#"{"\ud800":1,"a":"***"}"#)]
    #[case(&[], r#"{"a":1"#, r#"{"a":1"#)]
    fn values_of_an_event_are_hidden(
        #[case] pointers: &[&str],
        #[case] given: &str,
        #[case] shown: &str,
    ) {
        assert_eq!(event(pointers, given), shown);
    }

    #[test]
    fn an_event_that_is_cut_or_hidden_shows_its_size() {
        assert_eq!(
            hidden(&["/b"]).event(b"{\"a\":1}", true),
            &b"\"*** (7 bytes or more)\""[..]
        );
        assert_eq!(
            hidden(&["/a"]).event(b"\"\xff\"", false),
            &b"\"*** (3 bytes)\""[..]
        );
        assert_eq!(
            Hidden::new(Vec::new(), true).event(b"{}", false),
            &b"\"*** (2 bytes)\""[..]
        );
        assert_eq!(hidden(&[]).event(b"\xff{", true), &b"\xff{"[..]);
    }

    /// Deep nesting is no reason to fail, because no value is read by recursion.
    #[test]
    fn a_deep_event_is_hidden_like_any_other() {
        let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
        let deep = format!("{{\"a\":{open}{close},\"b\":12}}");
        assert_eq!(
            event(&["/b"], &deep),
            format!("{{\"a\":{open}{close},\"b\":\"***\"}}")
        );
        assert_eq!(event(&["/a"], &deep), "{\"a\":\"***\",\"b\":12}");
        let pointer = "/0".repeat(50);
        assert!(event(&[&pointer], &format!("{open}{close}")).contains("[\"***\"]"));
    }

    #[rstest]
    #[case("retry: card 41112222 is refused", "retry: card *** is refused")]
    #[case("bad é\"x\\y", "bad ***")]
    #[case(r#"{"who":"\u00e9\"x\\y"}"#, r#"{"who":"***"}"#)]
    // A string within a string.
    #[case(r#"at "{\"who\":\"\\u00E9\\\"x\\\\y\"}""#, r#"at "{\"who\":\"***\"}""#)]
    #[case("GET /?q=%C3%A9%22x%5Cy&z", "GET /?q=***&z")]
    #[case("1234.50 is 1234.5", "*** is ***")]
    #[case("-98765 or 98765 euros", "*** or *** euros")]
    #[case("cut: é\"x…", "cut: ***…")]
    #[case("cut: 4111222", "cut: ***")]
    #[case("cut: 411", "cut: 411")]
    #[case("member-1 is absent, abc is short", "*** is absent, abc is short")]
    #[case("nothing to hide", "nothing to hide")]
    fn hidden_values_are_hidden_in_a_text(#[case] text: &str, #[case] shown: &str) {
        let event = r#"{"a":{"n":1234.50,"m":-98765,"s":"abc","t":true,"member-1":[41112222]},"b":"\u00e9\"x\\y"}"#;
        assert_eq!(
            hidden(&["/a", "/b"]).text(text, Some(event.as_bytes())),
            shown
        );
    }

    #[rstest]
    #[case("retry: no such card", "retry (hidden)")]
    #[case("yield", "yield")]
    #[case("4111222: no such card", "(hidden)")]
    #[case("no such card", "(hidden)")]
    #[case("", "")]
    fn without_the_event_only_a_code_is_shown(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(hidden(&["/a"]).text(text, None), shown);
        assert_eq!(hidden(&["/a"]).text(text, Some(b"{\"a\":")), shown);
        assert_eq!(Hidden::new(Vec::new(), true).text(text, Some(b"{}")), shown);
        assert_eq!(hidden(&[]).text(text, None), text);
    }

    /// A text and an event made to need many comparisons are hidden whole.
    #[test]
    fn the_work_for_a_text_is_bounded() {
        let event = format!("{{\"a\":\"{}b\"}}", "a".repeat(100_000));
        let text = format!("retry: {}c", "a".repeat(100_000));
        assert_eq!(
            hidden(&["/a"]).text(&text, Some(event.as_bytes())),
            "retry (hidden)"
        );
        let backslashes = "\\".repeat(100_000);
        let event = serde_json::json!({ "a": format!("{backslashes}x") }).to_string();
        assert_eq!(
            hidden(&["/a"]).text(&backslashes, Some(event.as_bytes())),
            "(hidden)"
        );
        let event = format!("{{\"a\":[{}1]}}", "12345678,".repeat(100_000));
        assert_eq!(
            hidden(&["/a"]).text("12345678: 1", Some(event.as_bytes())),
            "***: 1"
        );
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,8}[\"\\\\\n]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[ab/~é\"\\\\0]{0,2}", inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Returns the pointers of all values within a value.
    fn pointers(value: &Value, to: &str, all: &mut Vec<String>) {
        all.push(to.to_owned());
        match value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(at, item)| pointers(item, &format!("{to}/{at}"), all)),
            Value::Object(members) => members.iter().for_each(|(name, member)| {
                pointers(
                    member,
                    &format!("{to}/{}", name.replace('~', "~0").replace('/', "~1")),
                    all,
                );
            }),
            _ => {}
        }
    }

    /// Writes a text as JSON in ASCII.
    fn ascii(text: &str) -> String {
        let mut units = [0; 2];
        let escape = |c: char| -> String {
            c.encode_utf16(&mut units)
                .iter()
                .map(|unit| format!("\\u{unit:04X}"))
                .collect()
        };
        text.chars().map(escape).collect()
    }

    proptest! {
        #[test]
        fn only_the_value_at_the_pointer_changes(value in value(), pretty: bool, which: prop::sample::Index) {
            let mut all = Vec::new();
            pointers(&value, "", &mut all);
            let pointer = which.get(&all);
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("JSON");
            let found = pointer.parse::<Pointer>().expect(pointer).find(serde_json::from_str(&text).expect("JSON")).expect("found").get();
            let start = found.as_ptr() as usize - text.as_ptr() as usize;
            let shown = format!("{}\"***\"{}", &text[..start], &text[start + found.len()..]);
            prop_assert_eq!(event(&[pointer], &text), shown);
        }

        #[test]
        fn no_hidden_value_survives(
            secrets in prop::collection::vec("[A-Z0-9é日\u{1f600}\"\\\\/\n\t\u{1b}&%+' ]{4,12}", 1..4),
            form in 0..7, before in "[a-z:, ]{0,20}[a-z]", after in "z[a-z:, ]{0,20}",
        ) {
            let event = serde_json::json!({ "open": "x", "deep": [{ "secret": secrets }] }).to_string();
            let hidden = hidden(&["/deep/0/secret"]);
            for secret in &secrets {
                let quoted = |text: String| text[1..text.len() - 1].to_owned();
                let json = quoted(Value::from(secret.as_str()).to_string());
                let written = match form {
                    0 => secret.clone(),
                    1 => json,
                    2 => quoted(format!("{secret:?}")),
                    3 => ascii(secret),
                    4 => quoted(Value::from(json).to_string()),
                    5 => utf8_percent_encode(&json, NON_ALPHANUMERIC).to_string(),
                    _ => utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
                };
                let text = format!("{before}{written}{after}");
                prop_assert_eq!(hidden.text(&text, Some(event.as_bytes())), format!("{before}***{after}"), "{}", text);
                let shown = hidden.event(event.as_bytes(), false);
                prop_assert!(!String::from_utf8_lossy(&shown).contains(secret.as_str()));
            }
        }

        #[test]
        fn numbers_do_not_survive_as_they_are_written(number in "-?[1-9][0-9]{3,20}(\\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?", more in "[a-z ]{0,9}") {
            let event = format!("{{\"n\":{number},\"other\":{number}}}");
            let hidden = hidden(&["/n"]);
            prop_assert_eq!(hidden.text(&format!("{more} {number} {more}"), Some(event.as_bytes())), format!("{more} *** {more}"));
            prop_assert_eq!(
                hidden.event(event.as_bytes(), false).into_owned(),
                format!("{{\"n\":\"***\",\"other\":{number}}}").into_bytes()
            );
        }

        #[test]
        fn no_input_panics(event in prop::collection::vec(any::<u8>(), 0..60), text in "\\PC{0,20}[\\\\u%{0d…\u{fffd}]{0,20}", pointer in "(/[a-c0-2]?){0,3}") {
            let hidden = hidden(&[&pointer]);
            let _ = hidden.event(&event, false);
            let _ = hidden.text(&text, Some(&event));
            let secret = serde_json::json!({ "a": [text, event] }).to_string();
            let _ = hidden.text(&text, Some(secret.as_bytes()));
        }
    }
}
