//! The errors of emits and of workers, with exit codes and advice.

use seriatim::event::EventError;
use seriatim::worker::WorkerError;
use seriatim::{EmitError, ScriptError};

use crate::describe::{advice, describe};
use crate::exit::{Exit, Failure};

/// Turns the error of an emit into one line with advice, and an exit code.
pub fn emit(error: EmitError) -> anyhow::Error {
    Failure::with(emit_exit(&error), format!("{error}{}", emit_hint(&error)))
}

/// Returns the advice that is appended to the text of the error.
pub fn emit_hint(error: &EmitError) -> String {
    match error {
        EmitError::Connect { source, .. } | EmitError::Refused { source, .. } => advice(source),
        EmitError::Event(EventError::NotJson(_)) => {
            "; in a shell, quote it: '{\"type\":\"created\"}', a string '\"created\"'".to_owned()
        }
        _ => String::new(),
    }
}

/// Returns the exit code of the error of an emit.
pub fn emit_exit(error: &EmitError) -> Exit {
    match error {
        EmitError::Name(_)
        | EmitError::Event(_)
        | EmitError::Key(_)
        | EmitError::Due(_)
        | EmitError::KeyReused { .. }
        | EmitError::TooLarge { .. }
        | EmitError::Url { .. }
        | EmitError::Tls { .. }
        | EmitError::Sentinels { .. } => Exit::Input,
        EmitError::Unknown { .. } | EmitError::Unreplicated { .. } => Exit::Unknown,
        _ => Exit::Redis,
    }
}

/// Turns the error of a worker into one line with advice, and an exit code.
pub fn worker(error: WorkerError) -> anyhow::Error {
    let exit = match &error {
        WorkerError::Config(_)
        | WorkerError::Url(_)
        | WorkerError::Tls(_)
        | WorkerError::Sentinels(_)
        | WorkerError::NoSink => Exit::Input,
        WorkerError::Connect { .. } => Exit::Redis,
        _ => Exit::Worker,
    };
    match &error {
        WorkerError::Connect { address, source } => Failure::with(
            exit,
            format!("cannot connect to Redis at {address}: {}", describe(source)),
        ),
        WorkerError::Script(ScriptError::Redis(source)) => {
            Failure::with(exit, format!("{error}{}", advice(source)))
        }
        _ => Failure::with(exit, error),
    }
}
