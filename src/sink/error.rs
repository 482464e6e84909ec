//! The error of opening a sink.

use std::io;
use std::path::PathBuf;

/// The reason why a sink cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// An operation on the file failed.
    #[error("cannot {action} {}: {source}; check the path, its permissions and the disk", path.display())]
    File {
        /// The operation, e.g. `open`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another sink has locked the file.
    #[error("{} is locked by another worker process; stop it, or give each process a file of its own", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The path names a directory, a device, a pipe or a socket.
    #[error("{} is not a regular file; name one, or use the sink stdout and a redirection", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file ends in a part of a line that no sink has written. So the sink does not cut this
    /// part off.
    #[error("{} ends in the middle of a line that is not an envelope; name another file, or end its last line", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The sink's thread cannot be started.
    #[error("cannot start the sink's writer thread: {0}; check the limits on threads and memory")]
    Thread(#[source] io::Error),
}
