//! Reads NDJSON, plain or gzip, line by line with line numbers. The command `emit` reads in
//! batches, and uses some functions of this file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, stdin};
use std::path::Path;

use anyhow::{Context as _, bail};
use flate2::bufread::MultiGzDecoder;
use serde_json::value::RawValue;

use seriatim::event::Pointer;

use crate::exit::{Exit, Failure};

/// Maximum length of a line in bytes, so that a file without line breaks does not fill the memory.
pub const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An input that shows whether the next line has already arrived.
pub trait Buffered: BufRead {
    fn has_line(&self) -> bool;
}

impl<R: io::Read> Buffered for BufReader<R> {
    fn has_line(&self) -> bool {
        self.buffer().contains(&b'\n')
    }
}

/// Returns a reader of the plain text of an input. If the first two bytes are those of gzip, the
/// input is unpacked. A gzip input may have several members.
pub fn unpack(mut input: impl io::Read + Send + 'static) -> io::Result<Box<dyn Buffered + Send>> {
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    (&mut input)
        .take(GZIP_MAGIC.len() as u64)
        .read_to_end(&mut start)?;
    let gzip = start == GZIP_MAGIC;
    let input = io::Cursor::new(start).chain(input);
    Ok(if gzip {
        let packed = BufReader::with_capacity(BUFFER_BYTES, input);
        Box::new(BufReader::with_capacity(
            BUFFER_BYTES,
            MultiGzDecoder::new(packed),
        ))
    } else {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, input))
    })
}

/// Describes why a file cannot be read further.
pub fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the gzip data ends too early".to_owned(),
        _ => error.to_string(),
    }
}

/// Removes the byte order mark that some programs put before the first line.
pub fn without_mark(number: u64, text: &[u8]) -> &[u8] {
    if number == 1 {
        text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
    } else {
        text
    }
}

/// The lines of one file.
pub struct Lines {
    name: String,
    reader: Box<dyn Buffered + Send>,
    text: Vec<u8>,
    number: u64,
}

/// One line.
pub struct Line<'a> {
    /// Line number, from 1.
    pub number: u64,
    /// The line without its line break.
    pub text: &'a [u8],
    /// Whether the line ended in a line break. Only the last line of a file may have none.
    pub ended: bool,
}

impl Lines {
    /// Opens a file, plain or gzip; `-` is standard input.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let opened = if path == Path::new("-") {
            unpack(stdin())
        } else {
            File::open(path).and_then(unpack)
        };
        let reader = opened.map_err(|error| {
            Failure::with(
                Exit::Input,
                format!("cannot read {name}: {}", unreadable(&error)),
            )
        })?;
        Ok(Self {
            name,
            reader,
            text: Vec::new(),
            number: 0,
        })
    }

    /// Returns the name of the file for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the next line; `None` at the end.
    pub fn next_line(&mut self) -> anyhow::Result<Option<Line<'_>>> {
        self.text.clear();
        let read = self
            .reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut self.text);
        let name = &self.name;
        let after = self.number;
        let read = read.map_err(|error| {
            Failure::with(
                Exit::Input,
                format!(
                    "cannot read {name} after line {after}: {}",
                    unreadable(&error)
                ),
            )
        })?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let ended = self.text.ends_with(b"\n");
        if !ended && read as u64 == LINE_BYTES_MAX {
            let number = self.number;
            return Err(Failure::with(
                Exit::Input,
                format!("{name}:{number} is longer than {LINE_BYTES_MAX} bytes"),
            ));
        }
        let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
        let text = without_mark(self.number, text.strip_suffix(b"\r").unwrap_or(text));
        Ok(Some(Line {
            number: self.number,
            text,
            ended,
        }))
    }
}

/// The options that say where an input line has the object and the event.
#[derive(Debug, Clone, clap::Args)]
pub struct Fields {
    /// The place of the object's name in an input line, as a JSON pointer
    #[arg(long, default_value = "/object", value_name = "POINTER")]
    pub object_field: Pointer,
    /// The place of the event in an input line, as a JSON pointer
    #[arg(long, default_value = "/event", value_name = "POINTER")]
    pub event_field: Pointer,
}

impl Fields {
    /// Returns the two default fields.
    pub fn plain() -> Self {
        Self {
            object_field: Pointer::member("object"),
            event_field: Pointer::member("event"),
        }
    }

    /// Returns the object and the event of an input line.
    pub fn of<'a>(&self, line: &'a [u8]) -> anyhow::Result<(String, &'a [u8])> {
        let line: &RawValue = serde_json::from_slice(line).context("it is not JSON")?;
        let Some(object) = self.object_field.find(line) else {
            bail!("it has no object at --object-field");
        };
        let object: String =
            serde_json::from_str(object.get()).context("its object is not a string")?;
        let Some(event) = self.event_field.find(line) else {
            bail!("it has no event at --event-field");
        };
        Ok((object, event.get().as_bytes()))
    }
}
