//! Reads a file of JSON lines, plain or gzip, into batches of events.
//!
//! The bytes of an event are copied from the line unchanged. So numbers of any size, the order of
//! members and the spacing are kept. The sizes of lines and batches are bounded. If lines come from
//! standard input, a batch is passed on as soon as no further line has arrived.

use std::fmt;
use std::io::{self, BufRead as _, Read as _};
use std::time::SystemTime;

use bytes::Bytes;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use seriatim::event::EVENT_BYTES_MAX;
use seriatim::event::Pointer;
use seriatim::keys::Keys;
use seriatim_console::lines::{Buffered, LINE_BYTES_MAX, unpack, unreadable, without_mark};
use seriatim_console::task;
use tokio::sync::mpsc::Sender;

/// Maximum number of events in a batch.
pub(super) const LINES_MAX: usize = seriatim::emit::CHUNK_EVENTS_MAX;
/// Size of a batch at which it is passed on, in bytes: the names of objects and the events count.
const BATCH_BYTES_MAX: usize = seriatim::emit::CHUNK_BYTES_MAX;

/// A message from the thread that reads the file.
#[derive(Debug)]
pub(super) enum Read {
    Batch(Batch),
    /// This line cannot be emitted. All lines before it were passed on.
    Bad {
        line: u64,
        why: String,
    },
    /// The file cannot be read beyond this line. All lines up to it were passed on.
    Broken {
        after: u64,
        why: String,
    },
    /// The end of the file, with its number of lines.
    End {
        lines: u64,
    },
}

/// The parts of a line: its object, its event, and, if the line is a task, the key and the time of
/// its schedule.
type Parsed = (String, Bytes, Option<(String, SystemTime)>);

/// A batch of lines with events.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<Line>,
    /// Number of the last line that the batch covers. Every line up to this one is in this batch or
    /// an earlier batch, was skipped, or is empty.
    pub(super) through: u64,
}

/// One line with an event.
#[derive(Debug)]
pub(super) struct Line {
    /// Line number, from 1.
    pub(super) number: u64,
    pub(super) object: String,
    pub(super) event: Bytes,
    /// If the line is a task: the key and the time of its schedule.
    pub(super) task: Option<(String, SystemTime)>,
}

/// A file or standard input, opened.
pub(super) struct Source {
    name: String,
    bytes: Option<u64>,
    input: Box<dyn io::Read + Send>,
    /// Whether lines may arrive one by one with pauses, as on standard input.
    trickles: bool,
}

impl Source {
    pub(super) fn open(from: &str) -> io::Result<Self> {
        if from == "-" {
            let input = Box::new(io::stdin());
            return Ok(Self {
                name: "standard input".to_owned(),
                bytes: None,
                input,
                trickles: true,
            });
        }
        let file = std::fs::File::open(from)?;
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                "it is a directory",
            ));
        }
        let bytes = about.is_file().then_some(about.len());
        Ok(Self {
            name: from.to_owned(),
            bytes,
            input: Box::new(file),
            trickles: !about.is_file(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of the file in bytes; `None` if the size is not known, as for standard
    /// input.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}

/// The settings for reading a file.
pub(super) struct Plan {
    pub(super) object_field: Pointer,
    pub(super) event_field: Pointer,
    pub(super) skip: u64,
    pub(super) keys: Keys,
    /// Whether each line is a task. In a task, the member `key` is the object, the member `id` is
    /// the key of the schedule, and the whole line is the event.
    pub(super) tasks: bool,
}

impl Plan {
    /// Reads the file and sends its batches. Ends at the end of the file, at the first bad line, or
    /// when the receiver is gone.
    pub(super) fn read(&self, source: Source, bar: &ProgressBar, sender: &Sender<Read>) {
        let mut reader = Lines {
            number: 0,
            batch: Batch::default(),
            bytes: 0,
        };
        let end = match unpack(bar.wrap_read(source.input)) {
            Ok(mut input) => self.read_lines(&mut *input, source.trickles, &mut reader, sender),
            Err(error) => Some(Read::Broken {
                after: 0,
                why: unreadable(&error),
            }),
        };
        if reader.hand_on(sender)
            && let Some(end) = end
        {
            // If the receiver is gone, nobody needs this message, so it is dropped.
            let _ = sender.blocking_send(end);
        }
    }

    fn read_lines(
        &self,
        input: &mut dyn Buffered,
        trickles: bool,
        lines: &mut Lines,
        sender: &Sender<Read>,
    ) -> Option<Read> {
        let is_usual = self.object_field == Pointer::member("object")
            && self.event_field == Pointer::member("event")
            && !self.tasks;
        let mut text = Vec::new();
        loop {
            let full = lines.batch.lines.len() >= LINES_MAX || lines.bytes >= BATCH_BYTES_MAX;
            if (full || trickles && !input.has_line()) && !lines.hand_on(sender) {
                return None;
            }
            text.clear();
            let line = lines.number + 1;
            // A skipped line is not parsed, so that a user can skip any bad line with --skip.
            let read = match line > self.skip {
                true => (&mut *input)
                    .take(LINE_BYTES_MAX + 1)
                    .read_until(b'\n', &mut text),
                false => input.skip_until(b'\n'),
            };
            match read {
                Ok(0) => {
                    return Some(Read::End {
                        lines: lines.number,
                    });
                }
                Ok(_) if text.len() as u64 > LINE_BYTES_MAX => {
                    return Some(Read::Bad {
                        line,
                        why: format!("the line has more than {LINE_BYTES_MAX} bytes"),
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    return Some(Read::Broken {
                        after: lines.number,
                        why: unreadable(&error),
                    });
                }
            }
            if line > self.skip {
                match self.line(without_mark(line, &text), is_usual) {
                    Ok(None) => {}
                    Ok(Some((object, event, task))) => {
                        lines.bytes += object.len() + event.len();
                        lines.batch.lines.push(Line {
                            number: line,
                            object,
                            event,
                            task,
                        });
                    }
                    Err(why) => return Some(Read::Bad { line, why }),
                }
            }
            lines.number = line;
            lines.batch.through = line.max(self.skip);
        }
    }

    /// Returns the object, the event, and the task of one line; `None` if the line is empty.
    fn line(&self, text: &[u8], is_usual: bool) -> Result<Option<Parsed>, String> {
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let line: &RawValue = serde_json::from_slice(text).map_err(|error| not_json(&error))?;
        let parts = if is_usual {
            UsualParts::of(line)
        } else {
            UsualParts {
                object: self.object_field.find(line),
                event: self.event_field.find(line),
                unread: None,
            }
        };
        let missing = |what: &str, field: &Pointer| format!("the line has no {what} at {field}");
        let object = parts
            .object
            .ok_or_else(|| missing("object", &self.object_field))?;
        let object: String = serde_json::from_str(object.get()).map_err(|_| {
            format!(
                "the object at {} is not a string: {}",
                self.object_field,
                shortened(object.get())
            )
        })?;
        self.keys
            .object(&object)
            .map_err(|error| error.to_string())?;
        let task = if self.tasks {
            Some(task::parse(line.get().as_bytes()).map(|task| (task.id, task.at))?)
        } else {
            None
        };
        let event = parts
            .event
            .ok_or_else(|| missing("event", &self.event_field))?
            .get();
        if let Some(member) = parts.unread {
            return Err(format!(
                "the line has the member {member:?}, which a file cannot set; emit such a line alone, \
                 or remove the member"
            ));
        }
        if event.len() > EVENT_BYTES_MAX {
            return Err(format!(
                "the event has {} bytes, the limit is {EVENT_BYTES_MAX}",
                event.len()
            ));
        }
        Ok(Some((
            object,
            Bytes::copy_from_slice(event.as_bytes()),
            task,
        )))
    }
}

/// The parts of a line whose object and event have their usual names, read in one pass. Of several
/// members with the same name, the last one counts.
#[derive(Default)]
struct UsualParts<'a> {
    object: Option<&'a RawValue>,
    event: Option<&'a RawValue>,
    /// A further member that is a part of an emit. The emit would miss this part without a word. Other
    /// members are left alone, so that lines of `seriatim log --json` can be emitted.
    unread: Option<&'static str>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Member {
    Object,
    Event,
    Subevents,
    Data,
    IdempotencyKey,
    #[serde(other)]
    Other,
}

impl<'a> UsualParts<'a> {
    /// A line that is no JSON object has no parts.
    fn of(line: &'a RawValue) -> Self {
        serde_json::Deserializer::from_str(line.get())
            .deserialize_map(UsualMembers)
            .unwrap_or_default()
    }
}

struct UsualMembers;

impl<'de> Visitor<'de> for UsualMembers {
    type Value = UsualParts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut parts = UsualParts::default();
        while let Some(member) = members.next_key()? {
            let unread = match member {
                Member::Object => {
                    parts.object = Some(members.next_value()?);
                    continue;
                }
                Member::Event => {
                    parts.event = Some(members.next_value()?);
                    continue;
                }
                Member::Other => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
                Member::Subevents => "subevents",
                Member::Data => "data",
                Member::IdempotencyKey => "idempotency_key",
            };
            // A program may write each member, also those without a value.
            let value: &RawValue = members.next_value()?;
            if !matches!(value.get(), "null" | "[]") {
                parts.unread.get_or_insert(unread);
            }
        }
        Ok(parts)
    }
}

/// The state of the reader: the number of the last line read, and the lines that are not yet passed
/// on.
struct Lines {
    number: u64,
    batch: Batch,
    bytes: usize,
}

impl Lines {
    /// Passes on the collected lines as a batch. Returns false if the receiver is gone.
    fn hand_on(&mut self, sender: &Sender<Read>) -> bool {
        if self.batch.lines.is_empty() {
            return true;
        }
        self.bytes = 0;
        sender
            .blocking_send(Read::Batch(std::mem::take(&mut self.batch)))
            .is_ok()
    }
}

/// Formats an error of the JSON parser. Leaves out its line number, because the parser sees only
/// one line at a time.
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
