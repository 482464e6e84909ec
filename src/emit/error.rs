//! What can go wrong with an emit, and what is known about its effect then.
//!
//! One question decides every variant: *is it certain that nothing was applied?* Redis answers a
//! transaction in three ways. An error in place of the results means that nothing ran. Results with
//! an error among them mean that the other commands did run: Redis does not roll back. No answer
//! means that nobody knows. [`read_answer`] tells them apart; for a transaction that the caller has
//! sent, [`failures_of_commands`] and [`failed`] do.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult, ServerError, ServerErrorKind, Value};

use crate::connection::errors::told;
use crate::event::{EventError, NameError, ObjectName};

/// Why an emit failed, and what is known about its effect.
///
/// Only [`Unknown`](Self::Unknown) leaves open whether events were queued. All others but
/// [`WrongType`](Self::WrongType) mean that nothing was applied, so that the same emit may be tried
/// again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The object's name is refused. Nothing was sent.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event, a subevent or the data is refused. Nothing was sent.
    #[error(transparent)]
    Event(#[from] EventError),
    /// What was given to connect to is not a Redis URL. The URL itself is not repeated, for it may
    /// hold a password.
    #[error(
        "this is not a Redis URL that works here: {reason}; it looks like host[:port], redis://[user:password@]host[:port][/db] or unix:///path"
    )]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// No connection could be made, so nothing was sent. The next call tries again.
    #[error("cannot connect to Redis at {redis}: {}; nothing was sent", told(.source))]
    Connect {
        /// The address, without user and password.
        redis: String,
        /// What the attempt ended with.
        source: RedisError,
    },
    /// The emit was sent and no answer came that tells what became of it: all of it took effect, or
    /// nothing, or it still will. (Where Redis answered a single command with an error that nobody
    /// expects, the source says so, and a part took effect.) It is never sent a second time by
    /// itself. Look at the object (`seriatim inspect OBJECT`) before emitting it again, or emit it
    /// again where an event that comes twice does no harm.
    #[error(
        "the outcome of an emit for {object} is unknown, it may or may not have taken effect: {}; look before emitting it again",
        told(.source)
    )]
    Unknown {
        /// The object.
        object: ObjectName,
        /// What came in place of an answer.
        source: RedisError,
    },
    /// Redis is at its `maxmemory`. Nothing was applied.
    #[error(
        "Redis is out of memory, the emit for {object} was not applied: raise maxmemory, or wait until the workers have drained the queues"
    )]
    OutOfMemory {
        /// The object.
        object: ObjectName,
    },
    /// A key holds something else than the list it should be. Redis ran the other commands of the
    /// transaction all the same:
    ///
    /// - If `key` is the object's list of events, no event was queued. The data, if any, is set,
    ///   and a marker was pushed; a marker of an object without events does no harm.
    /// - If `key` is the list of markers (`objects.with.events`), the events *are* queued, but no
    ///   worker is told: they wait until the key is repaired and the object's next marker comes,
    ///   e.g. with its next event. Do not emit them again.
    #[error(
        "{key} is not a list, so an emit for {object} took effect only in part; see what else writes that key, and remove it"
    )]
    WrongType {
        /// The object.
        object: ObjectName,
        /// The key in the way.
        key: String,
    },
    /// Redis answered that it does not do this: it is a replica, still loading, has lost its master
    /// or its disk, wants another user or password, or keeps the keys on another node. Nothing was
    /// applied.
    #[error("Redis refused the emit for {object}, nothing was applied: {}", told(.source))]
    Refused {
        /// The object.
        object: ObjectName,
        /// Redis's answer.
        source: RedisError,
    },
}

impl EmitError {
    /// Whether it is open what became of the emit: it may have been applied, or may still be.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// What became of a transaction that did not run to its end. It is about no object yet:
/// [`Failed::about`] names one.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// Nothing was sent.
    Connect { redis: String, source: RedisError },
    /// No answer, or one that leaves it open.
    Unknown(RedisError),
    /// Certainly not applied: no memory.
    OutOfMemory,
    /// Certainly not applied, for another reason.
    Refused(RedisError),
}

impl Failed {
    /// The same as the error of an emit for this object.
    pub(super) fn about(&self, object: &ObjectName) -> EmitError {
        let object = object.clone();
        match self.clone() {
            Self::Connect { redis, source } => EmitError::Connect { redis, source },
            Self::Unknown(source) => EmitError::Unknown { object, source },
            Self::OutOfMemory => EmitError::OutOfMemory { object },
            Self::Refused(source) => EmitError::Refused { object, source },
        }
    }

    /// Whether the connection should be made anew before the next call: it is gone or may answer
    /// late, or it leads to a server that no longer is the right one, or the server forgot who we
    /// are.
    pub(super) fn spoils_connection(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Unknown(_) => true,
            Self::OutOfMemory => false,
            Self::Refused(error) => matches!(error.code(), Some("READONLY" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "MASTERDOWN")),
        }
    }
}

/// Reads the answer to `MULTI`, `commands` commands and `EXEC`: the result of each command, or what
/// became of the whole.
pub(super) fn read_answer(answer: RedisResult<Vec<Value>>, commands: usize) -> Result<Vec<Value>, Failed> {
    match answer.map(|mut values| (values.pop(), values.is_empty())) {
        Ok((Some(Value::Array(results)), true)) if results.len() == commands => Ok(results),
        // EXEC answers with nil where a key under WATCH changed: the connection is the caller's,
        // and so was the WATCH.
        Ok((Some(Value::Nil), true)) => {
            Err(Failed::Refused(RedisError::from((ErrorKind::Client, "a key watched on this connection has changed"))))
        }
        Ok((Some(Value::ServerError(error)), true)) => Err(not_run(error)),
        Ok(_) => {
            Err(Failed::Unknown(RedisError::from((ErrorKind::UnexpectedReturnType, "the answer is not that of a transaction"))))
        }
        Err(error) => Err(failed(error, commands)),
    }
}

/// The error of an emit for this object of which Redis ran the transaction, but not this command.
pub(super) fn command_failed(object: &ObjectName, error: &ServerError, key: impl FnOnce() -> String) -> EmitError {
    match error.code() {
        "WRONGTYPE" => EmitError::WrongType { object: object.clone(), key: key() },
        _ => EmitError::Unknown { object: object.clone(), source: error.clone().into() },
    }
}

/// The failed commands of a transaction that ran, by their index in its pipeline. None if the error
/// is of another kind: the transaction was not run, or nobody knows.
pub(super) fn failures_of_commands(error: &RedisError) -> Option<Arc<[(usize, ServerError)]>> {
    let errors = error.clone().into_server_errors()?;
    let (_, first) = errors.first()?;
    // The client has three kinds of errors with server errors in them: of a discarded transaction,
    // of a reply that is an error as a whole, and this one.
    let is_whole_reply = *error == RedisError::from(first.clone());
    (!was_discarded(error, first) && !is_whole_reply).then_some(errors)
}

/// The refused commands of a transaction of so many pushes and the markers, which Redis has
/// discarded because of them. None if the markers or MULTI were refused, or the error is of another
/// kind: then it concerns all.
pub(super) fn refused_commands(error: &RedisError, pushes: usize) -> Option<Arc<[(usize, ServerError)]>> {
    let errors = error.clone().into_server_errors()?;
    let (_, first) = errors.first()?;
    (was_discarded(error, first) && errors.iter().all(|(at, _)| *at < pushes)).then_some(errors)
}

/// The failure of an emit whose command was refused while the transaction was being queued.
pub(super) fn refused(error: &ServerError) -> Failed {
    if out_of_memory(error) { Failed::OutOfMemory } else { Failed::Refused(error.clone().into()) }
}

/// Whether Redis has discarded the transaction. A script of the caller's may return an EXECABORT of
/// its own; the client numbers commands and has no such error of a command that is only queued.
fn was_discarded(error: &RedisError, first: &ServerError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) && first.code() != "EXECABORT"
}

/// Reads the error that came in place of the results of a transaction of so many commands.
pub(super) fn failed(error: RedisError, commands: usize) -> Failed {
    match error.kind() {
        // Only an attempt to connect ends with these, so nothing was sent. The address is known to
        // the connection's owner.
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => {
            Failed::Connect { redis: "its address".to_owned(), source: error }
        }
        _ if error.is_connection_refusal() => Failed::Connect { redis: "its address".to_owned(), source: error },
        // The client itself refused to send it.
        ErrorKind::Client => Failed::Refused(error),
        _ => match error.clone().into_server_errors() {
            Some(errors) if multi_failed(&errors, commands) => Failed::Unknown(error),
            Some(errors) => {
                let memory = errors.iter().any(|(_, error)| out_of_memory(error));
                match errors.first() {
                    _ if memory => Failed::OutOfMemory,
                    // A command was refused while the transaction was being queued, so EXEC
                    // discarded it: whatever the code was.
                    Some((_, first)) if error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) => refused(first),
                    Some((_, first)) => not_run(first.clone()),
                    None => Failed::Unknown(error),
                }
            }
            None => Failed::Unknown(error),
        },
    }
}

/// Whether MULTI was refused and a command after it was not: then that command ran at once and
/// alone. The client numbers commands from 0 after MULTI, and MULTI itself with one less than 0.
fn multi_failed(errors: &[(usize, ServerError)], commands: usize) -> bool {
    let multi = errors.iter().any(|(at, _)| *at == usize::MAX);
    multi && (0..commands).any(|command| errors.iter().all(|(at, _)| *at != command))
}

/// An error in place of the results of EXEC: nothing ran, if it is one of those that Redis answers
/// before it runs anything.
fn not_run(error: ServerError) -> Failed {
    if out_of_memory(&error) {
        return Failed::OutOfMemory;
    }
    match error.code() {
        "EXECABORT" | "LOADING" | "READONLY" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT"
        | "CLUSTERDOWN" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS" | "BUSY" => Failed::Refused(error.into()),
        _ => Failed::Unknown(error.into()),
    }
}

fn out_of_memory(error: &ServerError) -> bool {
    error.code() == "OOM" || (error.code() == "EXECABORT" && error.details().is_some_and(|text| text.contains("OOM ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn server_error(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[rstest]
    #[case("EXECABORT Transaction discarded because of previous errors.", "refused")]
    #[case("EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.", "memory")]
    #[case("READONLY You can't write against a read only replica.", "refused")]
    #[case("LOADING Redis is loading the dataset in memory", "refused")]
    #[case("MOVED 3999 127.0.0.1:6381", "refused")]
    #[case("ERR EXEC without MULTI", "unknown")]
    #[case("SOMETHING new", "unknown")]
    fn an_error_in_place_of_the_results_is_read_by_its_code(#[case] line: &str, #[case] what: &str) {
        let as_value = read_answer(Ok(vec![Value::ServerError(server_error(line))]), 2);
        let as_error = read_answer(Err(server_error(line).into()), 2);
        for answer in [as_value, as_error] {
            let found = match answer {
                Err(Failed::Refused(_)) => "refused",
                Err(Failed::OutOfMemory) => "memory",
                Err(Failed::Unknown(_)) => "unknown",
                other => panic!("{line}: {other:?}"),
            };
            assert_eq!(found, what, "{line}");
        }
    }

    #[test]
    fn without_an_answer_the_outcome_is_unknown() {
        for kind in [std::io::ErrorKind::TimedOut, std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset] {
            let answer = read_answer(Err(std::io::Error::from(kind).into()), 2);
            assert!(matches!(answer, Err(Failed::Unknown(_))), "{kind}: {answer:?}");
        }
        for answer in [vec![], vec![Value::Okay], vec![Value::Array(vec![Value::Int(1)])]] {
            assert!(matches!(read_answer(Ok(answer), 2), Err(Failed::Unknown(_))));
        }
    }

    #[test]
    fn a_refused_connection_means_that_nothing_was_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(matches!(read_answer(Err(refused.into()), 2), Err(Failed::Connect { .. })));
    }

    /// A user who may LPUSH but not MULTI: the commands ran without a transaction, so "not applied"
    /// would be wrong.
    #[test]
    fn commands_that_ran_without_their_multi_are_unknown() {
        let denied = |at: usize| (at, server_error("NOPERM no"));
        assert!(multi_failed(&[denied(usize::MAX)], 2));
        assert!(!multi_failed(&[denied(usize::MAX), denied(0), denied(1)], 2));
        assert!(!multi_failed(&[denied(0)], 2));
    }
}
