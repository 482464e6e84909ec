//! Reads a file of JSON lines, plain or gzip, into batches of events.
//!
//! An event's bytes are taken out of the line as they are: numbers of any size, order of members and spacing are kept. Lines are
//! bounded, batches are bounded, and a batch from standard input is handed on as soon as no further line has arrived.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use seriatim::event::EVENT_BYTES_MAX;
use seriatim::keys::Keys;
use tokio::sync::mpsc::Sender;

/// A batch has at most this many events.
pub(super) const LINES_MAX: usize = seriatim::emit::CHUNK_EVENTS_MAX;
/// A batch is handed on once its names and events have this many bytes.
const BATCH_BYTES_MAX: usize = seriatim::emit::CHUNK_BYTES_MAX;
/// The longest line: room for the largest event and for much around it. What is longer is hardly a file of lines.
const LINE_BYTES_MAX: usize = 16 * EVENT_BYTES_MAX;
const BUFFER_BYTES: usize = 64 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What the reader hands on.
#[derive(Debug)]
pub(super) enum Read {
    Batch(Batch),
    /// This line cannot be emitted; all before it were handed on.
    Bad {
        line: u64,
        why: String,
    },
    /// The end of the file, which has this many lines.
    End {
        lines: u64,
    },
}

/// Some lines with events.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<Line>,
    /// All lines up to this number are in this batch or an earlier one, or empty.
    pub(super) through: u64,
}

/// One line with an event.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number, from 1.
    pub(super) number: u64,
    pub(super) object: String,
    pub(super) event: Bytes,
}

/// A file or standard input, opened.
pub(super) struct Source {
    name: String,
    bytes: Option<u64>,
    input: Box<dyn io::Read + Send>,
    /// Whether lines may come one by one, with time between them.
    trickles: bool,
}

impl Source {
    pub(super) fn open(from: &str) -> io::Result<Self> {
        if from == "-" {
            let input = Box::new(io::stdin());
            return Ok(Self { name: "standard input".to_owned(), bytes: None, input, trickles: true });
        }
        let file = std::fs::File::open(from)?;
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
        }
        let bytes = about.is_file().then_some(about.len());
        Ok(Self { name: from.to_owned(), bytes, input: Box::new(file), trickles: !about.is_file() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its size, where it has one.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}

/// How to read a file.
pub(super) struct Plan {
    pub(super) object_field: Pointer,
    pub(super) event_field: Pointer,
    pub(super) skip: u64,
    pub(super) keys: Keys,
}

impl Plan {
    /// Reads to the end, to the first bad line, or until nobody receives any more.
    pub(super) fn read(&self, source: Source, bar: &ProgressBar, sender: &Sender<Read>) {
        let mut reader = Lines { number: 0, batch: Batch::default(), bytes: 0 };
        let end = match unpack(bar.wrap_read(source.input)) {
            Ok(mut input) => self.read_lines(&mut *input, source.trickles, &mut reader, sender),
            Err(error) => Some(Read::Bad { line: 1, why: unreadable(&error) }),
        };
        if reader.hand_on(sender)
            && let Some(end) = end
        {
            // If nobody receives it, nobody wants to know.
            let _ = sender.blocking_send(end);
        }
    }

    fn read_lines(&self, input: &mut dyn Buffered, trickles: bool, lines: &mut Lines, sender: &Sender<Read>) -> Option<Read> {
        let mut text = Vec::new();
        loop {
            let full = lines.batch.lines.len() >= LINES_MAX || lines.bytes >= BATCH_BYTES_MAX;
            if (full || trickles && !input.has_line()) && !lines.hand_on(sender) {
                return None;
            }
            text.clear();
            let line = lines.number + 1;
            // A line left out is not looked at, so that a bad one can be left out whatever is wrong with it.
            let read = match line > self.skip {
                true => (&mut *input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut text),
                false => input.skip_until(b'\n'),
            };
            match read {
                Ok(0) => return Some(Read::End { lines: lines.number }),
                Ok(_) if text.len() > LINE_BYTES_MAX => {
                    return Some(Read::Bad { line, why: format!("the line has more than {LINE_BYTES_MAX} bytes") });
                }
                Ok(_) => {}
                Err(error) => return Some(Read::Bad { line, why: unreadable(&error) }),
            }
            if line > self.skip {
                let text = if line == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text) } else { &text };
                match self.line(text) {
                    Ok(None) => {}
                    Ok(Some((object, event))) => {
                        lines.bytes += object.len() + event.len();
                        lines.batch.lines.push(Line { number: line, object, event });
                    }
                    Err(why) => return Some(Read::Bad { line, why }),
                }
            }
            lines.number = line;
            lines.batch.through = line.max(self.skip);
        }
    }

    /// The object and the event of one line; nothing if it is empty.
    fn line(&self, text: &[u8]) -> Result<Option<(String, Bytes)>, String> {
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let line: &RawValue = serde_json::from_slice(text).map_err(|error| not_json(&error))?;
        let missing = |what: &str, field: &Pointer| format!("the line has no {what} at {field}");
        let object = self.object_field.find(line).ok_or_else(|| missing("object", &self.object_field))?;
        let object: String = serde_json::from_str(object.get())
            .map_err(|_| format!("the object at {} is not a string: {}", self.object_field, shortened(object.get())))?;
        self.keys.object(&object).map_err(|error| error.to_string())?;
        let event = self.event_field.find(line).ok_or_else(|| missing("event", &self.event_field))?.get();
        if event.len() > EVENT_BYTES_MAX {
            return Err(format!("the event has {} bytes, the limit is {EVENT_BYTES_MAX}", event.len()));
        }
        Ok(Some((object, Bytes::copy_from_slice(event.as_bytes()))))
    }
}

/// How far the reader has come.
struct Lines {
    number: u64,
    batch: Batch,
    bytes: usize,
}

impl Lines {
    /// Hands on what has gathered; false if nobody receives it.
    fn hand_on(&mut self, sender: &Sender<Read>) -> bool {
        if self.batch.lines.is_empty() {
            return true;
        }
        self.bytes = 0;
        sender.blocking_send(Read::Batch(std::mem::take(&mut self.batch))).is_ok()
    }
}

/// An input that can tell whether the next line is here already.
trait Buffered: BufRead {
    fn has_line(&self) -> bool;
}

impl<R: io::Read> Buffered for BufReader<R> {
    fn has_line(&self) -> bool {
        self.buffer().contains(&b'\n')
    }
}

/// The text behind an input: gzip, in any number of members, is known by its first two bytes.
fn unpack(mut input: impl io::Read + 'static) -> io::Result<Box<dyn Buffered>> {
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    (&mut input).take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
    let gzip = start == GZIP_MAGIC;
    let input = io::Cursor::new(start).chain(input);
    Ok(if gzip {
        let packed = BufReader::with_capacity(BUFFER_BYTES, input);
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(packed)))
    } else {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, input))
    })
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the gzip data ends too early".to_owned(),
        _ => format!("cannot read on: {error}"),
    }
}

/// The reader of JSON counts lines from the one it was given: only the column says something here.
fn not_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let why = text.split(" at line ").next().unwrap_or_default();
    format!("the line is not JSON: {why} at column {}", error.column())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A JSON pointer (RFC 6901). It finds a part of a document as text, byte for byte.
#[derive(Debug, Clone)]
pub(super) struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return match text {
                "" => Ok(Self { text: String::new(), tokens: Vec::new() }),
                _ => Err(format!("a JSON pointer begins with a slash: /{text}")),
            };
        };
        let tokens = rest.split('/').map(|token| {
            if token.split('~').skip(1).any(|part| !part.starts_with(['0', '1'])) {
                return Err("in a JSON pointer, ~ is written ~0 and / is written ~1".to_owned());
            }
            Ok(token.replace("~1", "/").replace("~0", "~"))
        });
        Ok(Self { text: text.to_owned(), tokens: tokens.collect::<Result<_, _>>()? })
    }

    /// The part it points to. Of members of the same name the last counts, as with most readers of JSON.
    fn find<'a>(&self, document: &'a RawValue) -> Option<&'a RawValue> {
        self.tokens.iter().try_fold(document, |part, token| {
            let mut reader = serde_json::Deserializer::from_str(part.get());
            match part.get().as_bytes().first() {
                Some(b'{') => reader.deserialize_map(Member(token)).ok().flatten(),
                Some(b'[') => reader.deserialize_seq(Item(index(token)?)).ok().flatten(),
                _ => None,
            }
        })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str("''") } else { f.write_str(&self.text) }
    }
}

/// An index as RFC 6901 writes it: without leading zeros.
fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with('0');
    (plain && token.bytes().all(|b| b.is_ascii_digit())).then(|| token.parse().ok()).flatten()
}

struct Member<'t>(&'t str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(same) = map.next_key_seed(Same(self.0))? {
            if same {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

struct Item(usize);

impl<'de> Visitor<'de> for Item {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = seq.next_element()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// Whether a member's name, as it reads without escapes, is this one.
struct Same<'t>(&'t str);

impl<'de> serde::de::DeserializeSeed<'de> for Same<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Same<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointer: &str, document: &str) -> Option<String> {
        let document = serde_json::from_str(document).expect("JSON");
        Pointer::parse(pointer).expect("a pointer").find(document).map(|found| found.get().to_owned())
    }

    #[test]
    fn a_part_is_found_byte_for_byte() {
        let document =
            r#" {"a": {"b" : [1, 2.50,  90071992547409931e0 ]}, "x/y": 1, "m~n": 2, "": 3, "\u0061\u0062": "\u00e9"} "#;
        assert_eq!(find("/a/b/1", document).as_deref(), Some("2.50"));
        assert_eq!(find("/a/b/2", document).as_deref(), Some("90071992547409931e0"));
        assert_eq!(find("/a", document).as_deref(), Some(r#"{"b" : [1, 2.50,  90071992547409931e0 ]}"#));
        assert_eq!(find("/x~1y", document).as_deref(), Some("1"));
        assert_eq!(find("/m~0n", document).as_deref(), Some("2"));
        assert_eq!(find("/", document).as_deref(), Some("3"));
        assert_eq!(find("/ab", document).as_deref(), Some(r#""\u00e9""#));
        assert_eq!(find("", document).as_deref(), Some(document.trim()));
        for absent in ["/b", "/a/b/3", "/a/b/-", "/a/b/01", "/a/b/x", "/a/b/0/c", "/a/b/99999999999999999999"] {
            assert_eq!(find(absent, document), None, "{absent}");
        }
    }

    #[test]
    fn of_members_of_one_name_the_last_counts() {
        assert_eq!(find("/a", r#"{"a":1,"b":{"a":2},"a":3}"#).as_deref(), Some("3"));
    }

    #[test]
    fn a_bad_pointer_is_refused() {
        for bad in ["object", "/a~", "/a~2b"] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
    }
}
