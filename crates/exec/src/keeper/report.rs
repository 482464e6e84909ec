//! The reports of a program on its events, for people: progress and log lines.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Keeper;
use crate::LOG;
use crate::protocol::{Report, Reported};

/// The most lines of reports that are logged in a second.
const LOGGED_PER_SECOND: u32 = 100;

/// Counts the lines of reports that are logged.
pub(super) struct LineCount {
    second: Instant,
    logged: u32,
    left_out: u64,
}

impl LineCount {
    pub(super) fn new() -> Self {
        Self {
            second: Instant::now(),
            logged: 0,
            left_out: 0,
        }
    }

    /// Returns whether one more line may be logged.
    fn take(&mut self, child: usize) -> bool {
        if self.second.elapsed() >= Duration::from_secs(1) {
            if self.left_out > 0 {
                let left_out = self.left_out;
                warn!(target: LOG, child, left_out, "the program reports too many lines for the log");
            }
            *self = Self::new();
        }
        let may = self.logged < LOGGED_PER_SECOND;
        match may {
            true => self.logged += 1,
            false => self.left_out += 1,
        }
        may
    }
}

impl Keeper {
    /// Takes a report. A report on an event that is over, or was given up, has no effect.
    ///
    /// # Errors
    /// If the program never had the batch.
    pub(super) fn report(&mut self, report: Report) -> Result<(), String> {
        let Report { batch, id, what } = report;
        let Some(running) = self.running.get(&batch) else {
            return match batch <= self.highest {
                true => Ok(()),
                false => Err(format!(
                    "it reported on batch {batch}, which it does not have"
                )),
            };
        };
        let is_under_way = running.ids.get(running.done) == Some(&id);
        let Some(call) = running.call.as_ref().filter(|_| is_under_way) else {
            return Ok(());
        };
        match what {
            Reported::Progress(value) => call.cx.progress(id, value.get()),
            Reported::Line(text) => {
                let child = self.settings.child;
                if self.lines.take(child) {
                    let text = seriatim::escape::text(text.trim_end());
                    info!(target: LOG, child, object = %running.object, id, "{text}");
                }
                call.cx.log(id, &text);
            }
        }
        Ok(())
    }
}
