//! The receiver. It reads the output files of all workers while they are written, and records each
//! received event in the history.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use seriatim::consume::Envelope;

use crate::history::History;

/// Position up to which each output file is read. Only whole lines are read, because a worker may
/// remove an incomplete line again.
#[derive(Default)]
pub(crate) struct Receiver {
    read: HashMap<PathBuf, u64>,
    /// Number of events received.
    pub(crate) events: u64,
}

impl Receiver {
    /// Records the events that were written to the output files since the last call.
    pub(crate) fn receive(
        &mut self,
        outputs: Vec<PathBuf>,
        history: &History,
    ) -> anyhow::Result<()> {
        outputs
            .into_iter()
            .try_for_each(|path| self.output(path, history))
    }

    fn output(&mut self, path: PathBuf, history: &History) -> anyhow::Result<()> {
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).context("an output cannot be read"),
        };
        file.seek(SeekFrom::Start(self.read.get(&path).copied().unwrap_or(0)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in bytes[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let envelope =
                Envelope::parse(line).with_context(|| format!("in {}", path.display()))?;
            self.events += 1;
            history.came(
                "receive",
                &envelope.object,
                envelope.id,
                envelope.prev,
                &name_in(envelope.event.get())?,
            );
        }
        *self.read.entry(path).or_default() += whole as u64;
        Ok(())
    }
}

/// Returns the name of an event: its member `name`, or what follows `!` in an event that is no JSON.
pub(crate) fn name_in(event: &str) -> anyhow::Result<String> {
    if let Some(name) = event.strip_prefix('!') {
        return Ok(name.to_owned());
    }
    let event: serde_json::Value = serde_json::from_str(event)?;
    let name = event["name"].as_str().map(str::to_owned);
    ensure!(name.is_some(), "an event without a name came: {event}");
    Ok(name.unwrap_or_default())
}
