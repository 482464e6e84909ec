//! Texts of times, durations and numbers, and links to objects.

use std::borrow::Cow;

use maud::{Markup, html};
use seriatim::escape;
use seriatim_console::shown;
use url::form_urlencoded;

/// The most characters of a name on a page.
const NAME_CHARS: usize = 80;
/// The longest escaped name for which there is a link, in bytes. A longer link would exceed the limit
/// of a request's head.
pub(in crate::dashboard) const LINKED_BYTES_MAX: usize = 4096;

/// Returns a link to a page of this server. Parameters with an empty value are left out.
pub(in crate::dashboard) fn link(base: &str, path: &str, query: &[(&str, &str)]) -> String {
    let mut serializer = form_urlencoded::Serializer::new(String::new());
    serializer.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
    let query = serializer.finish();
    if query.is_empty() {
        format!("{base}{path}")
    } else {
        format!("{base}{path}?{query}")
    }
}

/// Returns a name as text. `escaped`: its escaped form, or the name if they do not differ.
pub(in crate::dashboard) fn name(escaped: &str) -> Markup {
    let cut = shown::middle_cut(&with_blanks(escaped), NAME_CHARS);
    html! { bdi.name title=[(cut != escaped && escaped.len() <= LINKED_BYTES_MAX).then_some(escaped)] { (cut) } }
}

/// Spells the blanks out that a page would not show: those at both ends of a name, and all but the
/// first of several. Otherwise two objects look the same, and a link to ` ` cannot be seen.
fn with_blanks(escaped: &str) -> Cow<'_, str> {
    if !escaped.starts_with(' ') && !escaped.ends_with(' ') && !escaped.contains("  ") {
        return Cow::Borrowed(escaped);
    }
    let last = escaped.trim_end_matches(' ').len();
    let mut spelled = String::with_capacity(escaped.len() + 16);
    let mut is_after_blank = true;
    for (at, c) in escaped.char_indices() {
        if c == ' ' && (is_after_blank || at >= last) {
            spelled.push_str("\\u{20}")
        } else {
            spelled.push(c)
        }
        is_after_blank = c == ' ';
    }
    Cow::Owned(spelled)
}

/// Returns a link to the page of an object.
pub(in crate::dashboard) fn object(base: &str, escaped: &str) -> Markup {
    if escaped.len() > LINKED_BYTES_MAX {
        return html! { (name(escaped)) " (" (number(escaped.len() as u64)) " bytes, too long for a link)" };
    }
    html! { a.row-link href=(link(base, "/object", &[("name", escaped)])) { (name(escaped)) } }
}

/// Returns a text from Redis on one line, without control characters. If it is longer than
/// `chars_max`, it is cut.
pub(in crate::dashboard) fn text(text: &str, chars_max: usize) -> String {
    shown::shortened(text, chars_max)
}

/// Returns several lines of text from Redis, without other control characters.
pub(in crate::dashboard) fn lines(text: &str) -> String {
    escape::lines(text).into_owned()
}

/// Returns a point in time, with its distance from now: `2026-01-01T12:00:00.000Z, 3 min ago`.
pub(in crate::dashboard) fn time(ms: u64, now_ms: u64) -> Markup {
    let text = shown::time(ms).to_string();
    let distance = if ms > now_ms {
        format!("in {}", shown::duration(ms - now_ms))
    } else {
        format!("{} ago", shown::duration(now_ms - ms))
    };
    html! { time datetime=(text) title=(text) { (distance) } }
}

/// Returns a point in time as `2026-01-01 12:00:00.000`.
pub(in crate::dashboard) fn moment(ms: u64) -> Markup {
    let text = shown::time(ms).to_string();
    html! { time datetime=(text) { (text.replacen('T', " ", 1).trim_end_matches('Z')) } }
}

/// Returns a number with a thin space between groups of three digits.
pub(in crate::dashboard) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 * 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with its noun: `1 event`, `2 events`.
pub(in crate::dashboard) fn count(count: u64, noun: &str) -> String {
    format!(
        "{} {noun}{}",
        number(count),
        if count == 1 { "" } else { "s" }
    )
}

/// Returns a sentence whose commands are between backticks.
pub(in crate::dashboard) fn sentence(text: &str) -> Markup {
    let text = lines(text);
    let parts = text.split('`').enumerate();
    html! { @for (at, part) in parts { @if at % 2 == 1 { code { (part) } } @else { (part) } } }
}

/// Returns the upper bound of a quantile, given in µs.
pub(in crate::dashboard) fn quantile(us: Option<u64>) -> String {
    match us {
        None => "–".to_owned(),
        Some(us @ ..10_000) => format!("{} ms", us.div_ceil(10) as f64 / 100.0),
        Some(us @ ..1_000_000) => format!("{} ms", us / 1000),
        Some(us) => format!("{} s", us / 100_000 / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_groups_and_links_are_encoded() {
        for (n, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1\u{202f}000"),
            (1_234_567, "1\u{202f}234\u{202f}567"),
        ] {
            assert_eq!(number(n), expected);
        }
        assert_eq!(
            link("/q", "/held", &[("prefix", ""), ("why", "")]),
            "/q/held"
        );
        assert_eq!(
            link("", "/object", &[("name", "a b&c=/../é\"")]),
            "/object?name=a+b%26c%3D%2F..%2F%C3%A9%22"
        );
    }

    #[test]
    fn a_sentence_has_commands_and_a_count_its_noun() {
        assert_eq!(
            sentence("a; `b <c>` does").into_string(),
            "a; <code>b &lt;c&gt;</code> does"
        );
        assert_eq!(
            (count(1, "event"), count(0, "event")),
            ("1 event".to_owned(), "0 events".to_owned())
        );
    }

    #[test]
    fn blanks_that_a_page_would_not_show_are_spelled_out() {
        for (name, shown) in [
            ("a b", "a b"),
            (" ", r"\u{20}"),
            (" a  b ", r"\u{20}a \u{20}b\u{20}"),
            ("a ", r"a\u{20}"),
            ("é  é", r"é \u{20}é"),
        ] {
            assert_eq!(with_blanks(name), shown);
            assert_eq!(escape::unescaped(shown).expect("a name"), name.as_bytes());
        }
        assert!(
            object("", " ")
                .into_string()
                .contains("href=\"/object?name=+\"")
        );
    }

    #[test]
    fn a_hostile_name_is_text() {
        let html = object("", "<script>\"'").into_string();
        assert!(
            !html.contains("<script>") && html.contains("&lt;script&gt;&quot;"),
            "{html}"
        );
        assert!(!object("", &"x".repeat(5000)).into_string().contains("href"));
    }
}
