//! A running program of a tool. It reads a command per line, and replies with a line of JSON.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use seriatim_console::exit::{Exit, Failure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::rows::Row;
use crate::private::{Guard, last_line};

/// Maximum wait for the end of a program that has closed its output.
const END_WAIT: Duration = Duration::from_secs(1);

/// The program of a row. When it is dropped, it is killed with the processes that it has started.
pub(super) struct Program {
    pub(super) row: &'static Row,
    child: Child,
    /// The process, which is also the group of its processes.
    group: Option<Pid>,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    limit: Duration,
}

/// Returns the error of a row.
pub(super) fn failed(name: &str, why: &str) -> anyhow::Error {
    Failure::with(Exit::Broken, format!("{name}: {why}"))
}

impl Program {
    /// Starts a program. `limit`: the longest wait for a reply.
    pub(super) fn start(
        row: &'static Row,
        mut command: Command,
        guard: &mut Guard,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let log = guard
            .dir()
            .join(format!("{}.{}.log", row.script, row.arguments.concat()));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).context("cannot write to the temporary directory")?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(row.name, &format!("its program does not start: {error}")))?;
        guard.watch(child.id().unwrap_or_default());
        let (commands, replies) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            row,
            group: child.id().and_then(|pid| Pid::from_raw(pid as i32)),
            commands: commands.context("a program without input")?,
            replies: BufReader::new(replies.context("a program without output")?).lines(),
            child,
            log,
            limit,
        })
    }

    /// Sends a command, and returns the reply.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, command: &str) -> anyhow::Result<T> {
        let what = command.split(' ').next().unwrap_or_default();
        // If the program has died, there is no reply either.
        let line = format!("{command}\n");
        let _ = self.commands.write_all(line.as_bytes()).await;
        match timeout(self.limit, self.replies.next_line()).await {
            Err(_) => {
                let seconds = self.limit.as_secs();
                let why = format!(
                    "no reply to {what:?} after {seconds} s; raise --time-limit, or leave it out of --against"
                );
                Err(failed(self.row.name, &why))
            }
            Ok(Ok(Some(reply))) => serde_json::from_str(&reply).map_err(|_| {
                let shown: String = reply.chars().take(60).collect();
                failed(
                    self.row.name,
                    &format!("its reply to {what:?} is {shown:?}"),
                )
            }),
            Ok(Ok(None) | Err(_)) => {
                let status = timeout(END_WAIT, self.child.wait()).await;
                let how = match status {
                    Ok(Ok(status)) => ended(status),
                    _ => "has closed its output".to_owned(),
                };
                let log = last_line(&self.log);
                let why = format!("its program {how} at {what:?}; its log ends: {log}");
                Err(failed(self.row.name, &why))
            }
        }
    }

    /// Ends the program.
    pub(super) async fn end(mut self, guard: &mut Guard) {
        self.kill();
        let pid = self.child.id().unwrap_or_default();
        let _ = self.child.wait().await;
        guard.ended(pid);
    }

    /// Kills the program and the processes that it has started.
    fn kill(&self) {
        if let Some(group) = self.group {
            // The group is gone if all of its processes have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("has ended with exit code {code}"),
        None => format!("was killed ({status})"),
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // After `end` the group is gone, and its id may be that of another one.
        if self.child.id().is_some() {
            self.kill();
        }
    }
}
