//! The receiver: reads what all workers write, as it is written, and logs it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::value::RawValue;
use seriatim::consume::Envelope;

use crate::history::History;

/// One output, and how far it was read. Only whole lines count: a torn one may be cut off again.
pub(crate) struct Output {
    path: PathBuf,
    read: u64,
}

impl Output {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// Logs what is new.
    pub(crate) fn receive(&mut self, history: &History) -> anyhow::Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).context("an output cannot be read"),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let envelope = Envelope::parse(line).with_context(|| format!("in {}", self.path.display()))?;
            history.came("receive", &envelope.object, envelope.id, envelope.prev, &name_of(envelope.event)?);
        }
        self.read += whole as u64;
        Ok(())
    }
}

fn name_of(event: &RawValue) -> anyhow::Result<String> {
    let event: serde_json::Value = serde_json::from_str(event.get())?;
    let name = event["name"].as_str().map(str::to_owned);
    ensure!(name.is_some(), "an event without a name came: {event}");
    Ok(name.unwrap_or_default())
}
