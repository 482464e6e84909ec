//! The sink that starts a process for each event.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use seriatim::async_trait;
use seriatim::event::Event;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command as Start};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::LOG;
use crate::command::Command;
use crate::exec::{ExecError, Options};
use crate::program::log;

/// The exit code of sysexits.h for a transient failure.
const TRANSIENT: i32 = 75;
/// The exit codes for a sink that is unavailable: that of sysexits.h, and those with which shells and `env`
/// say that a program cannot be executed or is not there.
const UNAVAILABLE: [i32; 3] = [69, 126, 127];
/// A shell ends with this number and the number of the signal that has ended its program.
const SIGNAL: i32 = 128;
/// If the delivery of a batch takes longer than this, the events delivered so far are committed.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// The time for which the standard error of a process that has ended is read.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Starts a process for each event, which reads the event's envelope from its standard input. Its exit
/// code is the result:
///
/// | end of the process | result |
/// |---|---|
/// | exit code 0 | delivered |
/// | 75 (`EX_TEMPFAIL`) | [`Stop::Transient`] |
/// | 69 (`EX_UNAVAILABLE`); 126 and 127 (a shell cannot start the program) | [`Stop::Unavailable`] |
/// | a signal; 129 to 192 (a shell whose program has ended by a signal) | [`Stop::Crashed`] |
/// | any other exit code | [`Stop::Rejected`], with the end of its standard error |
/// | none within [`Options::timeout`] | it gets SIGTERM and, after [`Options::cancel`], SIGKILL: [`Stop::Transient`] |
///
/// The lines of its standard output and standard error are logged. If a delivery is dropped, its process
/// is killed.
pub struct ExecEach {
    command: Command,
    options: Options,
}

impl ExecEach {
    /// Checks the settings, and that there is such a program. Starts nothing yet.
    ///
    /// # Errors
    /// [`ExecError::Range`] if a setting is out of its range. [`ExecError::Start`] if there is no such
    /// program, or this user cannot execute it.
    pub fn open(command: Command, options: Options) -> Result<Self, ExecError> {
        options.check()?;
        command.find().map_err(|source| ExecError::Start {
            program: command.program.clone(),
            source,
        })?;
        Ok(Self { command, options })
    }

    /// Handles one event.
    async fn run(&self, event: &Event) -> Result<(), Stop> {
        let cannot = |error: std::io::Error| {
            Stop::unavailable(format!("cannot start {}: {error}", self.command))
        };
        let mut child = Start::new(&self.command.program)
            .args(&self.command.args)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let group = Group::of(&child);
        let (stdin, mut logs) = (child.stdin.take(), JoinSet::new());
        if let Some(stdout) = child.stdout.take() {
            logs.spawn(async {
                log(stdout, 0).await;
                None
            });
        }
        if let Some(stderr) = child.stderr.take() {
            logs.spawn(async { Some(log(stderr, 0).await) });
        }
        let mut line = Vec::new();
        event.write_envelope(&mut line);
        line.push(b'\n');
        let write = async {
            // A process that does not read its input may be right.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&line).await;
            }
        };
        let (status, is_late) = self.ended(&mut child, &group, write).await;
        // Other processes of its group may still have its output. The system gives the number of a group
        // to another one only after all other numbers.
        drop(group);
        let mut said = String::new();
        let read = async {
            while let Some(ended) = logs.join_next().await {
                said = ended.ok().flatten().unwrap_or(said);
            }
            said
        };
        let said = timeout(REST_WITHIN, read).await.unwrap_or_default();
        if is_late {
            let limit = self.options.timeout;
            return Err(Stop::transient(format!("no end within {limit:?}")));
        }
        meaning(status.map_err(cannot)?, &said)
    }

    /// Waits for the end of a process. Returns its status, and whether its time was over.
    async fn ended(
        &self,
        child: &mut Child,
        group: &Group,
        write: impl Future<Output = ()>,
    ) -> (std::io::Result<ExitStatus>, bool) {
        // The input is written as long as the process runs.
        let ended = async {
            let mut write = std::pin::pin!(write);
            let mut is_written = false;
            loop {
                tokio::select! {
                    () = &mut write, if !is_written => is_written = true,
                    status = child.wait() => return status,
                }
            }
        };
        if let Ok(status) = timeout(self.options.timeout, ended).await {
            return (status, false);
        }
        group.signal(Signal::TERM);
        if let Ok(status) = timeout(self.options.cancel, child.wait()).await {
            return (status, true);
        }
        group.signal(Signal::KILL);
        (child.wait().await, true)
    }
}

/// The form without secrets: the arguments of the command may have some.
impl fmt::Debug for ExecEach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecEach({})", self.command)
    }
}

/// The processes of an event. They are killed when this is dropped.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Sends a signal to all processes of the group. If none is left, this does nothing.
    fn signal(&self, signal: Signal) {
        let sent = self
            .0
            .map_or(Ok(()), |group| kill_process_group(group, signal));
        if let Err(error) = sent
            && error != Errno::SRCH
        {
            warn!(target: LOG, %error, "the process of an event cannot be killed");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Returns the result that the end of a process means. `said`: the end of its standard error.
fn meaning(status: ExitStatus, said: &str) -> Result<(), Stop> {
    let separator = if said.is_empty() { "" } else { ": " };
    let error = format!("{status}{separator}{said}");
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(TRANSIENT), _) => Err(Stop::transient(error)),
        (Some(code), _) if UNAVAILABLE.contains(&code) => Err(Stop::unavailable(error)),
        (Some(code), _) if (SIGNAL + 1..SIGNAL + 65).contains(&code) => Err(Stop::crashed(error)),
        (_, Some(_)) => Err(Stop::crashed(error)),
        _ => Err(Stop::rejected(error)),
    }
}

#[async_trait]
impl Sink for ExecEach {
    fn name(&self) -> String {
        format!("exec-each:{}", self.command)
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let began = Instant::now();
        for (delivered, event) in batch.events().enumerate() {
            if delivered > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(delivered);
            }
            cx.begins(event.id);
            if let Err(stop) = self.run(&event).await {
                return Delivered::stopped(delivered, stop);
            }
        }
        Delivered::all()
    }
}
