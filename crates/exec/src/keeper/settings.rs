//! The settings of a keeper.

use std::sync::Arc;
use std::time::Duration;

use crate::command::Command;
use crate::figures::Counts;

/// The settings of a keeper.
pub(crate) struct Settings {
    pub(crate) source: Source,
    /// The number of the program among its like.
    pub(crate) child: usize,
    /// The longest time from the beginning of an event to its result.
    pub(crate) timeout: Duration,
    /// The longest time from `cancel` to the result.
    pub(crate) cancel: Duration,
    /// The longest time from the start of the program to its hello.
    pub(crate) hello: Duration,
    /// The longest time from `stop` to the end of the program.
    pub(crate) stop: Duration,
    /// The counts of all programs of the sink.
    pub(crate) counts: Arc<Counts>,
}

/// The origin of programs.
pub(crate) enum Source {
    /// This command starts them.
    Command(Command),
    /// The program is the parent of this process. The function gets its end. The number is the id of the
    /// parent process.
    Parent(Box<dyn Fn(ParentEnd) + Send + Sync>, u32),
}

/// The end of a parent of this process, which has the events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParentEnd {
    /// The parent wants to end. The worker should stop gracefully.
    Bye,
    /// The parent has closed the input, for this reason. The worker should stop gracefully, and report the
    /// reason. If the parent process is dead, each event that it had begun counts a crash, and all others
    /// are given back. If it lives, [`Broken`](Self::Broken) follows.
    Closed(String),
    /// The parent has said no hello, breaks the protocol, or has closed the input and lives, for this
    /// reason. It may go on with its events. This process must end at once, without detaching, so that no
    /// other worker takes them before the lease ends. Each of them counts a crash.
    Broken(String),
}
