//! A running program: its process and its pipes. Or the parent of this process, at the other end of
//! this process's standard input and output.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, Command as Start};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::LOG;
use crate::command::Command;
use crate::protocol::{self, LINE_BYTES_MAX, Message};

/// The most lines that were read and wait for the keeper.
const LINES_MAX: usize = 8;
/// The bytes that one write to the program has, unless its first line is longer.
const WRITE_BYTES: usize = 256 * 1024;
/// The longest line of standard error that is logged whole, in bytes. Longer ones are cut.
const LOGGED_MAX: usize = 4096;
/// The longest text of the last lines of an output, in bytes.
const END_BYTES_MAX: usize = 1000;
/// The most lines of a dead program that are read, and their most bytes. A pipe has at most 1 MiB, and a
/// line at most 4 MiB.
const REST_MAX: usize = 16_384;
const REST_BYTES_MAX: usize = 8 << 20;
/// The time from a failed write to the report that the program has closed its input. A program that
/// has ended has closed it, too, and its end is reported first.
const CLOSED_AFTER: Duration = Duration::from_secs(1);
/// The most lines of standard error that are logged in a second.
const LOGGED_PER_SECOND: u32 = 100;
/// The time for which the lines of a dead program are read. Its processes are dead, so this takes no
/// longer than reading what is in the pipe.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// A message of the program, or the text of an error if a line breaks the protocol.
pub(crate) type Received = Result<Message, String>;

/// A program that has ended.
pub(crate) struct Dead {
    /// The exit code or the signal, for people.
    pub(crate) status: String,
    /// The lines that it had written.
    pub(crate) received: Vec<Received>,
}

/// The process of a program, with its group.
struct Process {
    child: Child,
    group: Option<Pid>,
    /// The task that logs standard error.
    log: JoinSet<String>,
}

/// A program with its pipes. If it is dropped, all processes of its group are killed.
pub(crate) struct Program {
    /// `None`: the program is the parent of this process.
    process: Option<Process>,
    /// The lines to write; `None` after the input was closed.
    input: Option<mpsc::UnboundedSender<Bytes>>,
    /// The bytes of the lines that the program has not read.
    unread: Arc<AtomicUsize>,
    received: mpsc::Receiver<Received>,
    /// The bytes of all lines that were read.
    bytes: Arc<AtomicUsize>,
    /// The tasks of the pipes. They end with this value.
    writer: JoinSet<()>,
    _reader: JoinSet<()>,
}

impl Program {
    /// Starts the program in a process group of its own, so that a Ctrl-C on the terminal reaches
    /// only the worker. `child`: the number of the program among its like, for the log.
    ///
    /// # Errors
    /// If the system cannot start the program.
    pub(crate) fn start(command: &Command, child: usize) -> io::Result<Self> {
        let mut process = Start::new(&command.program);
        process
            .args(&command.args)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut started = process.spawn()?;
        let group = started
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let no_pipe = || io::Error::other("the program has no pipes");
        let (stdin, stdout, stderr) = (
            started.stdin.take().ok_or_else(no_pipe)?,
            started.stdout.take().ok_or_else(no_pipe)?,
            started.stderr.take().ok_or_else(no_pipe)?,
        );
        let mut logs = JoinSet::new();
        logs.spawn(log(stderr, child));
        let process = Process {
            child: started,
            group,
            log: logs,
        };
        Ok(Self::over(stdout, stdin, Some(process)))
    }

    /// Returns the parent of this process, which reads this process's standard output and writes to its
    /// standard input.
    pub(crate) fn parent() -> Self {
        Self::over(tokio::io::stdin(), tokio::io::stdout(), None)
    }

    fn over(
        output: impl AsyncRead + Unpin + Send + 'static,
        input: impl AsyncWrite + Unpin + Send + 'static,
        process: Option<Process>,
    ) -> Self {
        let ((lines, to_write), (messages, received)) =
            (mpsc::unbounded_channel(), mpsc::channel(LINES_MAX));
        let (mut writer, mut reader, unread) = (JoinSet::new(), JoinSet::new(), Arc::default());
        let weak = messages.downgrade();
        writer.spawn(write(input, to_write, Arc::clone(&unread), weak));
        let bytes = Arc::default();
        reader.spawn(read(output, messages, Arc::clone(&bytes)));
        Self {
            process,
            bytes,
            input: Some(lines),
            unread,
            received,
            writer,
            _reader: reader,
        }
    }

    /// Sends a line. A line that a dead program does not get is of no use.
    pub(crate) fn send(&self, line: Bytes) {
        if let Some(input) = &self.input {
            self.unread.fetch_add(line.len(), Ordering::Relaxed);
            let _ = input.send(line);
        }
    }

    /// Returns the bytes of the lines that the program has not read.
    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Closes the program's standard input.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for the next line. Returns `None` if the program has ended, or has closed its standard
    /// output.
    ///
    /// Cancellation: no line is lost.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        let Some(process) = &mut self.process else {
            return self.received.recv().await;
        };
        tokio::select! {
            biased;
            received = self.received.recv() => received,
            _ = process.child.wait() => None,
        }
    }

    /// Waits until the program has ended. Other processes of its group may still run. For the parent,
    /// waits until all lines are written to it, after [`Self::close_input`].
    ///
    /// Cancellation: can be called again.
    pub(crate) async fn ended(&mut self) {
        match &mut self.process {
            Some(process) => drop(process.child.wait().await),
            None => drop(self.writer.join_next().await),
        }
    }

    /// Kills all processes of the group, and waits until the program is dead. A parent lives on.
    pub(crate) async fn end(mut self) -> Dead {
        self.close_input();
        let status = match &mut self.process {
            Some(process) => {
                process.kill();
                let status = process.child.wait().await;
                // The number of a dead group may be used again.
                process.group = None;
                status.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            None => "its pipe is closed".to_owned(),
        };
        let mut received = Vec::new();
        if let Some(process) = &mut self.process {
            let before = self.bytes.load(Ordering::Relaxed);
            let rest = || self.bytes.load(Ordering::Relaxed).wrapping_sub(before);
            let read = async {
                // Another process that has left the group may still write.
                while let Some(line) = self.received.recv().await
                    && received.len() < REST_MAX
                    && rest() < REST_BYTES_MAX
                {
                    received.push(line);
                }
            };
            let _ = timeout(REST_WITHIN, read).await;
            // The last lines often say why the program has ended.
            let _ = timeout(REST_WITHIN, process.log.join_next()).await;
        }
        Dead { status, received }
    }
}

impl Process {
    fn kill(&mut self) {
        let killed = self
            .group
            .map_or(Ok(()), |group| kill_process_group(group, Signal::KILL));
        // No process of the group may be left.
        if let Err(error) = killed
            && error != Errno::SRCH
        {
            warn!(target: LOG, process = self.child.id(), %error, "the program cannot be killed");
        }
        let _ = self.child.start_kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes lines until the program reads no more.
async fn write(
    mut stdin: impl AsyncWrite + Unpin,
    mut lines: mpsc::UnboundedReceiver<Bytes>,
    unread: Arc<AtomicUsize>,
    messages: mpsc::WeakSender<Received>,
) {
    let mut bytes = Vec::new();
    while let Some(line) = lines.recv().await {
        bytes.clear();
        bytes.extend_from_slice(&line);
        while bytes.len() < WRITE_BYTES {
            let Ok(line) = lines.try_recv() else { break };
            bytes.extend_from_slice(&line);
        }
        let written = async {
            stdin.write_all(&bytes).await?;
            stdin.flush().await
        };
        if written.await.is_err() {
            sleep(CLOSED_AFTER).await;
            let closed = "it closed its standard input".to_owned();
            // The messages end with the program's output.
            if let Some(messages) = messages.upgrade() {
                let _ = messages.send(Err(closed)).await;
            }
            return;
        }
        unread.fetch_sub(bytes.len(), Ordering::Relaxed);
        bytes.shrink_to(WRITE_BYTES);
    }
}

/// Reads lines until the end of the output, or until a line breaks the protocol.
/// `bytes`: counts the bytes of the lines.
async fn read(
    stdout: impl AsyncRead + Unpin,
    messages: mpsc::Sender<Received>,
    bytes: Arc<AtomicUsize>,
) {
    let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut stdout).take(LINE_BYTES_MAX as u64 + 1);
        // A program that ends in the middle of a line has not said this line.
        if bounded.read_until(b'\n', &mut line).await.is_err() || line.is_empty() {
            return;
        }
        let received = match line.strip_suffix(b"\n") {
            Some(line) => protocol::parse(line),
            None if line.len() > LINE_BYTES_MAX => {
                Err(format!("a line is longer than {LINE_BYTES_MAX} bytes"))
            }
            None => return,
        };
        let is_wrong = received.is_err();
        bytes.fetch_add(line.len(), Ordering::Relaxed);
        if messages.send(received).await.is_err() || is_wrong {
            return;
        }
        line.shrink_to(64 * 1024);
    }
}

/// Logs the lines of an output. Returns the last of them, cut at its beginning.
pub(crate) async fn log(output: impl AsyncRead + Unpin, child: usize) -> String {
    let (mut output, mut end) = (BufReader::new(output), String::new());
    let (mut second, mut logged, mut left_out) = (Instant::now(), 0, 0_u64);
    let mut line = Vec::new();
    // The rest of a line that was cut is not logged.
    let mut is_rest = false;
    loop {
        line.clear();
        let mut bounded = (&mut output).take(LOGGED_MAX as u64);
        let is_over = bounded.read_until(b'\n', &mut line).await.is_err() || line.is_empty();
        let is_whole = line.last() == Some(&b'\n');
        if is_over || second.elapsed() >= Duration::from_secs(1) {
            if left_out > 0 {
                warn!(target: LOG, child, left_out, "the program writes too many lines for the log");
            }
            (second, logged, left_out) = (Instant::now(), 0, 0);
        }
        if is_over {
            return end;
        }
        keep_end(&mut end, &line);
        if !is_rest && logged >= LOGGED_PER_SECOND {
            left_out += 1;
        } else if !is_rest {
            logged += 1;
            let text = String::from_utf8_lossy(&line);
            let text = seriatim::escape::text(text.trim_end());
            info!(target: LOG, child, cut = (!is_whole).then_some(true), "{text}");
        }
        is_rest = !is_whole;
    }
}

/// Adds a line to the last ones, and cuts them at their beginning.
fn keep_end(end: &mut String, line: &[u8]) {
    if !end.is_empty() {
        end.push(' ');
    }
    end.push_str(String::from_utf8_lossy(line).trim_end());
    let from = end.len().saturating_sub(END_BYTES_MAX);
    let from = (from..=end.len()).find(|at| end.is_char_boundary(*at));
    end.drain(..from.unwrap_or(0));
}
