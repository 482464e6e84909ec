//! The notices that a service sends to systemd: ready, status, stopping, and signs of life
//! (watchdog).
//!
//! A separate thread sends the notices, because the socket blocks as long as systemd does not read.
//! A notice that cannot be sent is dropped. Only the first such failure is logged.

use std::env;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;
use tracing::warn;

/// Module name for log filters.
const LOG: &str = "seriatim::notify";

/// The most notices that wait to be sent. Further notices are dropped.
const WAITING_MAX: usize = 16;

/// The notices of one service. Without systemd (`NOTIFY_SOCKET`), nothing is sent.
pub struct Notices {
    sender: Option<SyncSender<Notice>>,
    sent: Option<Notice>,
    /// The interval of the signs of life, if systemd waits for them.
    feed_every: Option<Duration>,
    fed_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// The service works for the first time.
    Ready,
    Working,
    Waiting,
    Stopping,
    Lives,
}

impl Notices {
    /// Returns whether a systemd waits for notices, which it shows by the variable `NOTIFY_SOCKET`.
    pub fn are_wanted() -> bool {
        env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
    }

    /// Reads the variables by which systemd asks for notices. If it wants notices, starts the
    /// thread that sends them.
    pub fn begin() -> Self {
        let sender = Self::are_wanted().then(|| {
            let (sender, waiting) = sync_channel(WAITING_MAX);
            let send = move || {
                let mut has_told = false;
                for notice in waiting {
                    if let Err(error) = send(notice)
                        && !std::mem::replace(&mut has_told, true)
                    {
                        warn!(target: LOG, %error, "systemd cannot be told anything: the socket in NOTIFY_SOCKET does not work");
                    }
                }
            };
            // If the thread cannot be started, the notices are lost.
            let _ = thread::Builder::new().name("seriatim-notify".to_owned()).spawn(send);
            sender
        });
        Self {
            sender,
            sent: None,
            feed_every: sd_notify::watchdog_enabled().map(|within| within / 4),
            fed_at: None,
        }
    }

    /// Sends a notice if the state of the service has changed. When the service works for the first
    /// time, systemd learns that it is ready.
    pub fn tell(&mut self, works: bool, is_stopping: bool) {
        let now = match (works, is_stopping, self.sent) {
            (_, true, _) => Notice::Stopping,
            (true, _, None | Some(Notice::Ready)) => Notice::Ready,
            (true, ..) => Notice::Working,
            // The service is not ready yet, so systemd learns nothing.
            (false, _, None) => return,
            (false, ..) => Notice::Waiting,
        };
        if self.sent != Some(now) {
            self.sent = Some(now);
            self.send(now);
        }
    }

    /// Gives a sign of life, if one is due.
    pub fn feed(&mut self) {
        let Some(every) = self.feed_every else { return };
        if self.fed_at.is_none_or(|fed_at| fed_at.elapsed() >= every) {
            self.fed_at = Some(Instant::now());
            self.send(Notice::Lives);
        }
    }

    fn send(&self, notice: Notice) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(notice);
        }
    }
}

fn send(notice: Notice) -> io::Result<()> {
    let working = NotifyState::Status("working");
    let notices: &[NotifyState<'_>] = match notice {
        Notice::Ready => &[NotifyState::Ready, working],
        Notice::Working => &[working],
        Notice::Waiting => &[NotifyState::Status("waiting for Redis, or for its name")],
        Notice::Stopping => &[
            NotifyState::Stopping,
            NotifyState::Status("finishing what is in hand"),
        ],
        Notice::Lives => &[NotifyState::Watchdog],
    };
    sd_notify::notify(notices)
}
