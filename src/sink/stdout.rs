//! The sink `stdout`: envelopes as lines on standard output.
//!
//! This module writes whole lines only. Other parts of the program may also write to standard
//! output. If the process dies during a write, the reader may get a part of a line. The event of
//! this line comes again.

use std::io::{self, Write};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::writer::{Output, Writer};
use super::{Batch, Context, Delivered, Sink, SinkError};

/// The wait if standard output takes no more bytes. This can happen if another program has made it
/// non-blocking.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Writes one envelope per line to standard output (NDJSON).
///
/// A batch counts as delivered when the kernel has taken its lines. If the reader of a pipe ends,
/// it loses the lines that it has not read. A slow reader slows the worker down but blocks no task,
/// because the sink writes in its own thread.
///
/// - **The reader is gone** (`seriatim worker --sink stdout | head`): no reader can come back to
///   this pipe. So the batch in hand returns `Unavailable`, and the token [`Stdout::closed`] is
///   cancelled. The program should then stop gracefully, so that the other events stay in Redis.
/// - **Another error** (e.g. standard output is a file on a full disk): the batch returns
///   `Unavailable`. If a line was cut off, its rest is written before anything else, so that lines
///   stay whole. The batch comes again, so its first lines may be in the output twice.
/// - **Cancellation:** if `deliver` is dropped before the thread takes its batch, nothing is
///   written. If it is dropped later, the batch is written.
#[derive(Debug)]
pub struct Stdout {
    closed: CancellationToken,
    writer: Writer,
}

/// Opens the sink `stdout`.
///
/// # Errors
/// [`SinkError::Thread`] if no thread can be started.
pub fn stdout() -> Result<Stdout, SinkError> {
    let closed = CancellationToken::new();
    let lines = Lines {
        out: Raw,
        owed: Vec::new(),
        closed: closed.clone(),
    };
    let writer = Writer::start(lines).map_err(SinkError::Thread)?;
    Ok(Stdout { closed, writer })
}

impl Stdout {
    /// Returns a token. It is cancelled when a delivery finds that standard output has no reader
    /// any more.
    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }
}

#[async_trait]
impl Sink for Stdout {
    fn name(&self) -> String {
        "stdout".to_owned()
    }

    async fn deliver(&self, batch: &Batch, _cx: &Context) -> Delivered {
        self.writer.deliver(batch).await
    }
}

/// Standard output without the buffer of [`io::Stdout`]. That buffer would hide how many bytes of a
/// failed write were sent.
struct Raw;

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Lines<W> {
    out: W,
    /// The rest of a line whose first part was written before an error.
    owed: Vec<u8>,
    closed: CancellationToken,
}

impl<W: Write> Lines<W> {
    fn lines(&mut self, lines: &[u8]) -> io::Result<()> {
        // The lock prevents other prints of the program from getting between these lines. Bytes of
        // such prints that are still in the buffer are written first.
        let mut lock = io::stdout().lock();
        lock.flush()?;
        let (sent, owed) = send(&mut self.out, &self.owed);
        self.owed.drain(..sent);
        owed?;
        let (sent, done) = send(&mut self.out, lines);
        if sent > 0 && lines[sent - 1] != b'\n' {
            let end = lines[sent..]
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(lines.len(), |at| sent + at + 1);
            self.owed.extend_from_slice(&lines[sent..end]);
        }
        done
    }
}

/// Writes all bytes. Returns the number of bytes written, and the error if not all were written.
fn send(out: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut sent = 0;
    while sent < bytes.len() {
        match out.write(&bytes[sent..]) {
            Ok(0) => return (sent, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(FULL_PAUSE)
            }
            Err(error) => return (sent, Err(error)),
        }
    }
    (sent, Ok(()))
}

impl<W: Write + Send + 'static> Output for Lines<W> {
    fn write(&mut self, lines: &[u8]) -> Result<(), String> {
        self.lines(lines).map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.closed.cancel();
                return "standard output has no reader any more; restart the worker with a reader"
                    .to_owned();
            }
            format!("cannot write to standard output: {error}; it is tried again")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that takes `room` bytes and then returns `error`.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
        error: io::ErrorKind,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room - self.taken.len());
            if count == 0 {
                return Err(self.error.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn narrow(room: usize, error: io::ErrorKind) -> Lines<Narrow> {
        Lines {
            out: Narrow {
                taken: Vec::new(),
                room,
                error,
            },
            owed: Vec::new(),
            closed: CancellationToken::new(),
        }
    }

    #[test]
    fn lines_stay_whole_wherever_a_write_fails() {
        for room in 0..=12 {
            let mut lines = narrow(room, io::ErrorKind::StorageFull);
            let fails = lines.write(b"first\nlast\n").is_err();
            assert_eq!(fails, room < 11);
            assert!(!lines.closed.is_cancelled());
            lines.out.room = 1000;
            assert_eq!(lines.write(b"first\nlast\n"), Ok(()));
            let all = String::from_utf8(lines.out.taken).expect("text");
            assert!(all.ends_with("first\nlast\n"), "{all:?}");
            assert!(
                all.lines().all(|line| line == "first" || line == "last"),
                "room for {room}: {all:?}"
            );
        }
    }

    #[test]
    fn an_owed_line_can_itself_be_cut_again() {
        let mut lines = narrow(2, io::ErrorKind::StorageFull);
        assert!(lines.write(b"first\n").is_err());
        lines.out.room = 4;
        assert!(lines.write(b"first\n").is_err());
        lines.out.room = 100;
        assert_eq!(lines.write(b"first\n"), Ok(()));
        assert_eq!(lines.out.taken, b"first\nfirst\n");
    }

    #[test]
    fn a_reader_that_is_gone_is_told_apart() {
        let mut lines = narrow(3, io::ErrorKind::BrokenPipe);
        assert!(lines.write(b"first\n").is_err());
        assert!(lines.closed.is_cancelled());
    }
}
