//! Follows the event log across outages of Redis. During an outage it waits, and then it continues
//! after the last row shown. It also waits while Redis refuses: the user has lost a right, or the log has
//! another type. An operator may put this right.

use std::time::Duration;

use seriatim::control::{Control, ControlError, Cursor, LogPage};
use seriatim_console::describe::{describe, is_outage};
use seriatim_console::global::{Global, cannot_connect, open};
use seriatim_console::shown::{self, Level};

/// Wait before the next connection attempt.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The reason why the log cannot be read.
#[derive(PartialEq, Eq)]
enum Away {
    /// Redis does not answer. The texts of such errors differ from one try to the next.
    Outage,
    /// Redis refuses with this text.
    Refused(String),
}

/// The state of `seriatim log --follow`.
pub(super) struct Follower<'a> {
    global: &'a Global,
    /// The position before which no row is shown.
    since: Option<Cursor>,
    /// Number of rows that had ever been written to the log, as of its last read.
    written: u64,
    /// Position of the end of the log, as of its last read.
    end: Option<Cursor>,
    /// The last report that the log cannot be read; after it can be read again none.
    away: Option<Away>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(global: &'a Global, since: Option<Cursor>) -> Self {
        Self {
            global,
            since,
            written: 0,
            end: None,
            away: None,
        }
    }

    /// Records the number of rows ever written, and the end of the log.
    pub(super) fn has_seen(&mut self, page: &LogPage) {
        (self.written, self.end) = (page.written, Some(page.end.clone()));
    }

    /// Waits until Redis can be reached, and returns a new connection. Reports an outage once, and each
    /// new reason of a refusal: a user may have lost a right, or have a new password.
    pub(super) async fn wait(&mut self, error: ControlError) -> anyhow::Result<Control> {
        let ControlError::Redis { source, .. } = &error else {
            return Err(shown::failure(error));
        };
        self.is_away(is_outage(source), describe(source));
        let route = self.global.route()?;
        loop {
            tokio::time::sleep(TRY_AGAIN).await;
            match open(&route).await {
                Ok(conn) => return Ok(Control::new(conn).with_keys(self.global.keys()?)),
                Err(error) => {
                    let text = cannot_connect(&route, &error).to_string();
                    self.is_away(is_outage(&error), text);
                }
            }
        }
    }

    /// Reports why the log cannot be read, if that is new.
    fn is_away(&mut self, is_outage: bool, text: String) {
        let (away, what) = match is_outage {
            true => (Away::Outage, "Redis does not answer"),
            false => (Away::Refused(text.clone()), "Redis refuses to read the log"),
        };
        if self.away.as_ref() != Some(&away) {
            shown::tell(Level::Warn, &format!("{what} ({text}); waiting for it"));
            self.away = Some(away);
        }
    }

    /// Returns whether the log went back since the last read, because Redis lost rows or was
    /// emptied. If so, reports this, and moves `after` back to a position that exists in the log.
    pub(super) fn went_back(&mut self, page: &LogPage, after: &mut Option<Cursor>) -> bool {
        match self.away.take() {
            Some(Away::Outage) => shown::tell(Level::Info, "Redis answers again"),
            Some(Away::Refused(_)) => shown::tell(Level::Info, "the log can be read again"),
            None => {}
        }
        let went_back = page.written < self.written
            || self.end.as_ref().is_some_and(|end| page.ends_before(end));
        if went_back {
            let (had, has) = (self.written, page.written);
            let what = format!(
                "the event log went back: {had} rows had been written to it, now {has}; continuing with the existing rows"
            );
            shown::tell(Level::Warn, &what);
            if after.as_ref().is_some_and(|after| page.ends_before(after)) {
                *after = self
                    .since
                    .clone()
                    .filter(|since| page.ends_before(since))
                    .or_else(|| Some(page.end.clone()));
            }
        }
        self.has_seen(page);
        went_back
    }
}
