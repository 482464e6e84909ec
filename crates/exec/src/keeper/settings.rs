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
    /// The program is the parent of this process. The function gets its end.
    Parent(Box<dyn Fn(ParentEnd) + Send + Sync>),
}

/// The end of a parent of this process, which has the events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParentEnd {
    /// The parent wants to end. The worker should stop gracefully.
    Bye,
    /// The parent is dead, or breaks the protocol, for this reason. This process must end at once,
    /// without detaching, so that its events count a crash.
    Dead(String),
}
