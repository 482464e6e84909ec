//! Escapes names and errors for people. Escaped text has no line ends and no control sequences of a
//! terminal. An escaped object name can be turned back into its bytes.
//!
//! These characters are escaped: control characters (U+0000 to U+001F, U+007F to U+009F), the
//! separators U+2028 and U+2029, characters that change the direction of text, and characters that
//! are invisible, such as a space of width zero. [`text`] escapes only these characters. [`name`] also escapes backslashes and bytes that are not UTF-8, so that
//! [`unescaped`] returns exactly the bytes of the name. [`lines`] keeps line ends. It is applied
//! last, to every output.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Returns whether this character is escaped in every text.
fn is_escaped(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || is_invisible(c)
}

/// Returns whether this character takes no space, so that two names look the same.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Returns true only if the text certainly needs no escape. The check is fast, because it looks at
/// single bytes. All escaped characters beyond ASCII begin with one of six bytes.
fn is_plain(bytes: &[u8]) -> bool {
    !bytes.iter().any(|byte| {
        matches!(
            byte,
            0..0x20 | 0x7f | 0xc2 | 0xd8 | 0xe1 | 0xe2 | 0xef | 0xf3
        )
    })
}

fn write_escaped(out: &mut impl fmt::Write, c: char) -> fmt::Result {
    if is_escaped(c) {
        write!(out, "{}", c.escape_default())
    } else {
        out.write_char(c)
    }
}

/// Escapes a text so that it fits on one line. Backslashes stay unchanged.
#[must_use]
pub fn text(text: &str) -> impl fmt::Display + '_ {
    Text(text)
}

struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_plain(self.0.as_bytes()) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|c| write_escaped(f, c))
    }
}

/// Escapes the name of an object: `\n`, `\r`, `\t`, `\u{1b}`, `\xff` for a byte that is not UTF-8,
/// `\\` for a backslash. Most names stay unchanged. [`unescaped`] turns an escaped name back into
/// the bytes of the name.
#[must_use]
pub fn name(name: &(impl AsRef<[u8]> + ?Sized)) -> Cow<'_, str> {
    let bytes = name.as_ref();
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains(|c| c == '\\' || is_escaped(c))
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Writing to a string cannot fail.
            let _ = if c == '\\' {
                out.write_str("\\\\")
            } else {
                write_escaped(&mut out, c)
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// Returns the escaped form of a name if it differs from the name; otherwise none. It is for
/// outputs that show both forms.
#[must_use]
pub fn differing(bytes: &[u8]) -> Option<String> {
    match name(bytes) {
        Cow::Borrowed(_) => None,
        Cow::Owned(escaped) => Some(escaped),
    }
}

/// The text is not an escaped name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} has a backslash at character {at} that does not begin an escape; escapes are \\\\ (a backslash), \\n, \\r, \\t, \\0, \\\", \\', \\x1b, \\u{{1b}} and \\u001b"
)]
pub struct EscapeError {
    text: String,
    at: usize,
}

/// Returns the bytes of the name that has this escaped form.
///
/// # Errors
/// [`EscapeError`] if a backslash does not begin an escape.
pub fn unescaped(text: &str) -> Result<Vec<u8>, EscapeError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let behind = &rest[at + 1..];
        rest = one_escape(behind, &mut out).ok_or_else(|| EscapeError {
            text: text.to_owned(),
            at: text.chars().count() - behind.chars().count(),
        })?;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Reads the escape that follows a backslash, and appends its bytes to `out`. Returns the text
/// after the escape; `None` if the escape is invalid.
fn one_escape<'a>(text: &'a str, out: &mut Vec<u8>) -> Option<&'a str> {
    let mut chars = text.chars();
    let byte = match chars.next()? {
        '\\' => b'\\',
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        '0' => 0,
        '"' => b'"',
        '\'' => b'\'',
        'x' => {
            let rest = chars.as_str();
            out.push(u8::from_str_radix(hex(rest.get(..2)?)?, 16).ok()?);
            return rest.get(2..);
        }
        'u' => {
            let rest = chars.as_str();
            let (digits, rest) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once('}')?,
                None => (rest.get(..4)?, rest.get(4..)?),
            };
            let c = char::from_u32(u32::from_str_radix(hex(digits)?, 16).ok()?)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(rest);
        }
        _ => return None,
    };
    out.push(byte);
    Some(chars.as_str())
}

fn hex(digits: &str) -> Option<&str> {
    let is_hex =
        (1..=6).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then_some(digits)
}

/// Escapes whole lines, but keeps line ends. The lines are for people or are JSON. The escape
/// `\u001b` is valid in JSON, too, and in JSON such characters occur only inside strings.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    if bytes.split(|byte| *byte == b'\n').all(is_plain)
        || !text.contains(|c| c != '\n' && is_escaped(c))
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if c != '\n' && is_escaped(c) {
            // JSON has two escapes for a character beyond U+FFFF.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(b"work:1", "work:1")]
    #[case("é:日本".as_bytes(), "é:日本")]
    #[case(b"work:1\n", r"work:1\n")]
    #[case(b"\x1b[2J\x7f", r"\u{1b}[2J\u{7f}")]
    #[case("a\u{85}b\u{2028}c\u{202e}d".as_bytes(), r"a\u{85}b\u{2028}c\u{202e}d")]
    #[case("a\u{ad}b\u{180e}\u{200b}\u{2064}\u{206f}\u{feff}d\u{e0001}\u{e007f}".as_bytes(), r"a\u{ad}b\u{180e}\u{200b}\u{2064}\u{206f}\u{feff}d\u{e0001}\u{e007f}")]
    #[case("\u{200a}\u{2070}\u{180d}\u{e0080}\u{ae}".as_bytes(), "\u{200a}\u{2070}\u{180d}\u{e0080}\u{ae}")]
    #[case(br"C:\n", r"C:\\n")]
    #[case(b"a\xff\xc2", r"a\xff\xc2")]
    fn a_name_is_escaped(#[case] bytes: &[u8], #[case] escaped: &str) {
        assert_eq!(name(bytes), escaped);
        assert_eq!(unescaped(escaped).as_deref(), Ok(bytes));
        assert_eq!(differing(bytes).is_some(), escaped.as_bytes() != bytes);
    }

    #[rstest]
    #[case(r"\x1b\u001b\u{1b}", b"\x1b\x1b\x1b")]
    #[case(r#"\0\t\r\"\'"#, b"\0\t\r\"'")]
    fn all_escapes_are_read(#[case] escaped: &str, #[case] bytes: &[u8]) {
        assert_eq!(unescaped(escaped).as_deref(), Ok(bytes));
    }

    #[rstest]
    #[case(r"work\1", 5)]
    #[case(r"é\", 2)]
    #[case(r"\x1", 1)]
    #[case(r"\x+1", 1)]
    #[case(r"\u{}", 1)]
    #[case(r"\u{d800}", 1)]
    #[case(r"\u12", 1)]
    #[case("\\xé", 1)]
    fn no_escape_is_an_error(#[case] text: &str, #[case] at: usize) {
        assert_eq!(
            unescaped(text),
            Err(EscapeError {
                text: text.to_owned(),
                at
            })
        );
    }

    #[test]
    fn lines_keep_their_ends_and_stay_json() {
        assert_eq!(lines("a\nb\u{e9}\n"), "a\nb\u{e9}\n");
        let json =
            serde_json::to_string("\u{7f}\u{85}\u{9f}\u{2028}\u{202e}\u{1b}é").expect("text");
        let shown = lines(&json).into_owned();
        assert_eq!(shown, r#""\u007f\u0085\u009f\u2028\u202e\u001bé""#);
        assert_eq!(
            serde_json::from_str::<String>(&shown).expect("JSON"),
            "\u{7f}\u{85}\u{9f}\u{2028}\u{202e}\u{1b}é"
        );
        // Characters beyond U+FFFF stay JSON, too.
        let json = serde_json::to_string("a\u{feff}\u{e0041}\u{1f600}").expect("text");
        assert_eq!(lines(&json), "\"a\\ufeff\\udb40\\udc41\u{1f600}\"");
        assert_eq!(
            serde_json::from_str::<String>(&lines(&json)).expect("JSON"),
            "a\u{feff}\u{e0041}\u{1f600}"
        );
        for c in ['\u{ad}', '\u{180e}', '\u{200b}', '\u{feff}', '\u{e0020}'] {
            assert_eq!(
                text(&c.to_string()).to_string(),
                c.escape_default().to_string()
            );
        }
        assert_eq!(lines("\u{1b}[31m\rx\n"), "\\u001b[31m\\u000dx\n");
        assert_eq!(text("a\nb\\c\u{202e}").to_string(), r"a\nb\c\u{202e}");
    }

    proptest! {
        #[test]
        fn an_escaped_name_leads_back(bytes in prop::collection::vec(any::<u8>(), 0..40), chars in "\\PC{0,10}[\\x00-\\x20\\\\x\u{80}-\u{a0}\u{2028}]{0,10}[\u{ad}\u{180e}\u{200b}\u{feff}\u{e0001}]{0,3}") {
            for bytes in [bytes, chars.into_bytes()] {
                let escaped = name(&bytes).into_owned();
                prop_assert_eq!(unescaped(&escaped), Ok(bytes));
                prop_assert!(!escaped.contains(is_escaped));
                prop_assert_eq!(lines(&escaped), &escaped[..]);
            }
        }
    }
}
