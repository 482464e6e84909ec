//! An emit under construction, as commands.

use bytes::Bytes;
use redis::{Cmd, Pipeline};

use crate::event::ObjectName;

/// The commands of one emit.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) object: ObjectName,
    /// The command that queues the events.
    pub(super) push: Cmd,
    /// Number of events.
    pub(super) events: usize,
    /// Total size of the events in bytes.
    pub(super) bytes: usize,
    /// Key of the object's state, and the state itself.
    pub(super) data: Option<(String, Bytes)>,
}

impl Draft {
    /// Turns the emit into a transaction of its own.
    pub(super) fn into_pipeline(self, markers_key: &str) -> Pipeline {
        let mut pipe = Pipeline::with_capacity(3);
        pipe.atomic();
        self.append(markers_key, &mut pipe);
        pipe
    }

    /// Appends the commands of the emit to a pipeline.
    pub(super) fn append(self, markers_key: &str, pipe: &mut Pipeline) {
        if let Some((key, data)) = &self.data {
            pipe.cmd("SET").arg(key).arg(&data[..]).ignore();
        }
        pipe.add_command(self.push).ignore();
        pipe.cmd("LPUSH")
            .arg(markers_key)
            .arg(self.object.as_str())
            .ignore();
    }
}
