//! Real worker processes: the program itself, which can be killed and paused.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use seriatim::consume::Envelope;

use super::console::PATIENCE;
use super::{Redis, until};

/// A running `seriatim worker`.
pub struct Process {
    child: Child,
    dir: tempfile::TempDir,
}

/// An event in the output of a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub object: String,
    pub id: u64,
    pub prev: u64,
    pub event: String,
}

impl Process {
    /// Starts a worker process with this sink.
    pub fn start(redis: &Redis, name: &str, sink: &str, options: &[&str]) -> Self {
        Self::start_in(redis, Some(redis.namespace()), name, sink, options)
    }

    /// Starts a worker process in another namespace, or without one.
    pub fn start_in(
        redis: &Redis,
        namespace: Option<&str>,
        name: &str,
        sink: &str,
        options: &[&str],
    ) -> Self {
        Self::spawn(command(redis, namespace, name, sink, options))
    }

    /// Starts a worker process with these environment variables.
    pub fn start_with(
        redis: &Redis,
        name: &str,
        sink: &str,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = command(redis, Some(redis.namespace()), name, sink, options);
        command.envs(variables.iter().copied());
        Self::spawn(command)
    }

    /// Starts a program that starts a worker process with the sink `stdio`. The program gets the
    /// command of the worker as its last arguments.
    pub fn start_parent(redis: &Redis, parent: &[&str], name: &str, options: &[&str]) -> Self {
        let worker = command(redis, Some(redis.namespace()), name, "stdio", options);
        let mut command = Command::new(parent[0]);
        command
            .args(&parent[1..])
            .arg(worker.get_program())
            .args(worker.get_args());
        for (name, value) in worker.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.path().join("log")).expect("a log"))
            .spawn()
            .expect("the program starts");
        Self { child, dir }
    }

    /// Returns the reading end of the process's standard output. As long as nobody reads this end,
    /// a sink `stdout` stands still in an event larger than the pipe (64 KiB).
    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("not taken before")
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be reaped");
    }

    /// Pauses the process with SIGSTOP. The process does not notice.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the paused process with SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the signal is sent");
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        let deadline = std::time::Instant::now() + PATIENCE;
        while status.is_none() {
            assert!(
                std::time::Instant::now() < deadline,
                "it does not end: {}",
                self.log()
            );
            status = self.child.try_wait().expect("it can be asked");
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
        status.expect("it ended")
    }

    /// Returns whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_some()
    }

    /// Returns the log of the process so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }

    /// Waits until the log of the process has this text.
    pub async fn until_logged(&self, text: &str) {
        until(&format!("{text:?} is logged"), PATIENCE, async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }
}

/// Returns the command of a worker.
fn command(
    redis: &Redis,
    namespace: Option<&str>,
    name: &str,
    sink: &str,
    options: &[&str],
) -> Command {
    let mut command = Command::new(super::program());
    command
        .args(["--redis", redis.url(), "--log", "debug"])
        .args(
            namespace
                .into_iter()
                .flat_map(|namespace| ["--namespace", namespace]),
        )
        .args(["worker", "--name", name, "--sink", sink])
        .args(options)
        .env_remove("SERIATIM_REDIS")
        .env_remove("SERIATIM_NAMESPACE")
        .env("SERIATIM_FIRST_ID", "1");
    command
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the output of a file sink. An incomplete last line does not count.
pub fn sent_to(file: &Path) -> Vec<Sent> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let ended = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = bytes[..ended].split_inclusive(|byte| *byte == b'\n');
    lines
        .map(|line| {
            let envelope = Envelope::parse(line).expect("an envelope");
            Sent {
                object: envelope.object.into_owned(),
                id: envelope.id,
                prev: envelope.prev,
                event: envelope.event.get().to_owned(),
            }
        })
        .collect()
}

/// Merges several outputs, by object, in the order of the ids. Fails in these cases:
///
/// - an id was given to two events;
/// - in one file, an object has an id behind a higher one, and the file did not have this id
///   before;
/// - an event's `prev` is not the id of the event before it.
pub fn merged(files: &[PathBuf]) -> HashMap<String, Vec<Sent>> {
    let mut merged: HashMap<String, HashMap<u64, Sent>> = HashMap::new();
    for file in files {
        let mut seen: HashMap<String, Vec<u64>> = HashMap::new();
        for sent in sent_to(file) {
            let ids = seen.entry(sent.object.clone()).or_default();
            let in_order = ids.last().is_none_or(|last| *last < sent.id) || ids.contains(&sent.id);
            assert!(in_order, "reordered in {}: {sent:?}", file.display());
            ids.push(sent.id);
            let other = merged
                .entry(sent.object.clone())
                .or_default()
                .insert(sent.id, sent.clone());
            assert!(
                other.is_none_or(|other| other == sent),
                "an id was given twice: {sent:?}"
            );
        }
    }
    let in_order = |events: HashMap<u64, Sent>| {
        let mut events: Vec<_> = events.into_values().collect();
        events.sort_by_key(|sent| sent.id);
        // The `prev` of every event must be the id of the event before it.
        events.iter().fold(0, |last, sent| {
            assert_eq!(sent.prev, last, "{sent:?}");
            sent.id
        });
        events
    };
    merged
        .into_iter()
        .map(|(object, events)| (object, in_order(events)))
        .collect()
}
