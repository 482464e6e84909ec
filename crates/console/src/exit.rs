//! Exit codes, and the line on standard error that says why a command failed.

use std::fmt;
use std::process::ExitCode;

/// The text about exit codes at the end of `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  a check failed (check, doctor, verify, demo, bench), an object was kept (forget), a file
     or an address cannot be used now, or an unexpected error
  2  invalid usage or input, or an unknown object (forget)
  3  Redis cannot be reached, or refuses
  4  a worker cannot start or continue: its name is in use, or it was fenced
  5  the outcome is unknown: the connection was lost after the command was sent, or too few replicas
     have it";

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Broken = 1,
    Input = 2,
    Redis = 3,
    Worker = 4,
    Unknown = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// Returns an error for `anyhow` with this exit code. The message says what has failed, for
    /// which thing, and what the user can do.
    pub fn with(exit: Exit, message: impl fmt::Display) -> anyhow::Error {
        anyhow::Error::new(Self {
            exit,
            message: message.to_string(),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Returns the exit code of an error.
pub fn of(error: &anyhow::Error) -> Exit {
    error
        .downcast_ref::<Failure>()
        .map_or(Exit::Broken, |failure| failure.exit)
}

/// Prints the error in one line on standard error. Returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    crate::shown::tell(crate::shown::Level::Error, &format!("{error:#}"));
    of(error).into()
}
