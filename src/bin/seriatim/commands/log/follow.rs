//! Following the log over outages of Redis: waits, and goes on behind the last row shown.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::log::is_before;
use seriatim::control::{ControlError, LogPage};

use crate::console::global::Global;
use crate::console::shown::{self, Level};
use crate::console::told::{is_outage, told};

/// How long to wait before the next try to connect.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The state of following.
pub(super) struct Follower<'a> {
    global: &'a Global,
    /// No row before this one is shown.
    since: Option<String>,
    /// How many rows had been written when the log was read last.
    written: u64,
    /// The id of the last row then.
    last_id: String,
    /// Redis is away, which was said.
    is_away: bool,
}

impl<'a> Follower<'a> {
    pub(super) fn new(global: &'a Global, since: Option<String>) -> Self {
        Self { global, since, written: 0, last_id: String::new(), is_away: false }
    }

    /// Notes how long the log is.
    pub(super) fn has_seen(&mut self, page: &LogPage) {
        (self.written, self.last_id) = (page.written, page.last_id.clone());
    }

    /// Waits until Redis can be reached again, after this error. An error that is no outage is
    /// returned.
    pub(super) async fn wait(&mut self, error: ControlError) -> anyhow::Result<MultiplexedConnection> {
        let ControlError::Redis { source, .. } = &error else { return Err(shown::failure(error)) };
        if !is_outage(source) {
            return Err(shown::failure(error));
        }
        if !self.is_away {
            self.is_away = true;
            shown::tell(Level::Warn, &format!("Redis does not answer ({}); waiting for it", told(source)));
        }
        loop {
            tokio::time::sleep(TRY_AGAIN).await;
            match self.global.try_connect().await {
                Ok(conn) => return Ok(conn),
                Err(error) if is_outage(&error) => {}
                Err(error) => return Err(self.global.cannot_connect(&error)),
            }
        }
    }

    /// Whether the log went back since it was read last, because Redis lost rows or was emptied.
    /// Says so, and moves `after` to where there is something to read.
    pub(super) fn went_back(&mut self, page: &LogPage, after: &mut Option<String>) -> bool {
        if std::mem::take(&mut self.is_away) {
            shown::tell(Level::Info, "Redis answers again");
        }
        let went_back = page.written < self.written || is_before(&page.last_id, &self.last_id);
        if went_back {
            let (had, has) = (self.written, page.written);
            let what = format!(
                "the event log went back: {had} rows had been written to it, now {has}; going on with the rows there are"
            );
            shown::tell(Level::Warn, &what);
            if after.as_ref().is_some_and(|after| is_before(&page.last_id, after)) {
                let is_later = |since: &String| is_before(&page.last_id, since);
                *after = self.since.clone().filter(is_later).or_else(|| Some(page.last_id.clone()));
            }
        }
        self.has_seen(page);
        went_back
    }
}
