//! The errors of an emit, and whether its events were queued.
//!
//! The important question about each error is: *is it certain that nothing was applied?* There are
//! three cases for a transaction. If Redis returns an error in place of the results, no command
//! ran. If the results contain an error, the other commands ran, because Redis does not roll back.
//! If there is no reply, the outcome is unknown. [`read_answer`] tells these cases apart. For a
//! transaction that the caller has sent, [`failures_of_commands`] and [`failed`] do so.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult, ServerError, ServerErrorKind, Value};

use super::idempotent::{SCRIPT_BYTES_MAX, SCRIPT_EVENTS_MAX};
use crate::connection::TooFew;
use crate::connection::errors::describe;
use crate::connection::url::UrlError;
use crate::escape;
use crate::event::{DueError, EventError, NameError, ObjectName, ScheduleKeyError};

/// The reason why an emit failed, and whether its events were queued.
///
/// Only after [`Unknown`](Self::Unknown) and [`Unreplicated`](Self::Unreplicated) it is open
/// whether events were queued. After [`WrongType`](Self::WrongType) the emit has taken effect in
/// part. After any other error nothing was applied, so the same emit may be tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The object's name is invalid. Nothing was sent.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event, a subevent or the data is invalid. Nothing was sent.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The key of a schedule is invalid. Nothing was sent.
    #[error(transparent)]
    Key(#[from] ScheduleKeyError),
    /// The due time of a schedule is more than a hundred years away. Nothing was sent.
    #[error(transparent)]
    Due(#[from] DueError),
    /// The given text is not a Redis URL. The message does not repeat the URL, because it may
    /// contain a password.
    #[error("{}", UrlError { reason: reason.clone() })]
    Url {
        /// Defect of the URL.
        reason: String,
    },
    /// The settings of TLS cannot be used: the process has no rustls provider, or a file is
    /// missing or invalid. Nothing was sent.
    #[error("TLS to Redis is not possible: {reason}")]
    Tls {
        /// The reason.
        reason: String,
    },
    /// The map of the addresses that Sentinels announce is invalid. Nothing was sent.
    #[error("the map of Sentinel addresses cannot be used: {reason}")]
    Sentinels {
        /// The reason.
        reason: String,
    },
    /// No connection could be made, so nothing was sent. The next call tries to connect again.
    #[error("cannot connect to Redis at {redis}: {}; nothing was sent", describe(.source))]
    Connect {
        /// The address, without user and password.
        redis: String,
        /// Error of the connection attempt.
        source: RedisError,
    },
    /// The emit was sent, but no reply shows its outcome. Either the whole emit took effect, or
    /// nothing did, or the emit will take effect later. (If Redis returned an unexpected error for
    /// a single command, a part took effect; the source says so.) The emitter never sends the emit
    /// again by itself. Look at the object (`seriatim inspect OBJECT`) before you emit again. If a
    /// duplicate event does no harm, emit again without a look.
    #[error(
        "it is unknown whether the call for {} has taken effect: {}; look before you repeat it",
        shown(.object), describe(.source)
    )]
    Unknown {
        /// The object.
        object: ObjectName,
        /// Error that came in place of a reply.
        source: RedisError,
    },
    /// The emit is queued on the master, but too few replicas had it at the end of the
    /// [wait](crate::emit::EmitterBuilder::wait). Workers deliver it, unless the master is lost
    /// before a replica has it. So the outcome is unknown.
    #[error("the emit for {} is queued on the master, but only {}: it is lost if the master is lost now", shown(.object), TooFew {
        reached: *reached, wanted: *wanted, not_local: *not_local
    })]
    Unreplicated {
        /// The object.
        object: ObjectName,
        /// Number of replicas that have the emit.
        reached: u64,
        /// Number of replicas that should have the emit.
        wanted: u32,
        /// True if the emit should be on the master's disk, but is not.
        not_local: bool,
    },
    /// The idempotency key was used before for other events or data of this object. Nothing was
    /// applied.
    #[error("the idempotency key {key:?} of {} was used for another emit; nothing was applied", shown(.object))]
    KeyReused {
        /// The object.
        object: ObjectName,
        /// The key.
        key: String,
    },
    /// The end of an emit with subevents or data cannot be awaited. Nothing was sent.
    #[error("an awaited emit has one event and no data; that of {} has more: await an event of its own", shown(.object))]
    NotAwaitable {
        /// The object.
        object: ObjectName,
    },
    /// An emit has too many events or bytes for a script. Emits with an idempotency key, and emits
    /// of objects with limits, are scripts. Nothing was sent.
    #[error(
        "an emit for {} has {events} events with {bytes} bytes; with an idempotency key or limits it has at most \
         {SCRIPT_EVENTS_MAX} with {SCRIPT_BYTES_MAX} bytes: split it",
        shown(.object)
    )]
    TooLarge {
        /// The object.
        object: ObjectName,
        /// Number of events.
        events: usize,
        /// Number of bytes of all events and of the data.
        bytes: usize,
    },
    /// A limit of the queues is reached. Nothing was applied. Try again when workers have drained
    /// the queue.
    #[error("the emit for {} was not applied: {full}; try again later, or see `seriatim limit list`", shown(.object))]
    Full {
        /// The object.
        object: ObjectName,
        /// The queue or list that is full.
        full: Full,
    },
    /// The memory of Redis has reached `maxmemory`. Nothing was applied.
    #[error(
        "Redis is out of memory, the call for {} was not applied: raise maxmemory, or wait until the workers have drained the queues",
        shown(.object)
    )]
    OutOfMemory {
        /// The object.
        object: ObjectName,
    },
    /// A key of the emit has a wrong type. Redis ran the other commands of the transaction:
    ///
    /// - If `key` is the object's list of events, no event was queued. The data, if any, is set,
    ///   and a marker was pushed. A marker of an object without events does no harm.
    /// - If `key` is the list of markers (`objects.with.events`), the events *are* queued, but no
    ///   worker is notified. They wait until the key is repaired and the object's next marker
    ///   comes, e.g. with its next event. Do not emit them again.
    /// - If `key` is `OBJ:events.scheduled`, no event was scheduled, but a due time was stored.
    ///   Workers remove this due time when it has come. If `key` is `events.scheduled`, the event
    ///   is stored, but has no due time.
    #[error(
        "{} has a wrong type, so the call for {} took effect only in part; see what else writes that key, and remove it",
        escape::name(.key), shown(.object)
    )]
    WrongType {
        /// The object.
        object: ObjectName,
        /// The key of a wrong type.
        key: String,
    },
    /// Redis refused the emit, and nothing was applied. The server is a replica; is loading; has
    /// lost its master, its disk or its replicas; wants another user or password; or keeps the keys
    /// on another node.
    #[error("Redis refused the call for {}, nothing was applied: {}", shown(.object), describe(.source))]
    Refused {
        /// The object.
        object: ObjectName,
        /// Error returned by Redis.
        source: RedisError,
    },
}

/// Returns the name of an object as the commands print it and take it.
fn shown(object: &ObjectName) -> Cow<'_, str> {
    escape::name(object.as_str())
}

/// The queue or list that has reached a [limit](crate::emit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// The object would have more queued events than its limit.
    #[error(
        "the object has {queued} events queued, and {events} more would exceed the limit of {limit}"
    )]
    Queue {
        /// Number of queued events.
        queued: u64,
        /// Number of events of the emit. If only some events of the emit were queued: number of the
        /// others.
        events: u64,
        /// The limit.
        limit: u64,
    },
    /// The list of markers has reached its limit.
    #[error("there are {markers} markers, the limit is {limit}")]
    Markers {
        /// Number of markers.
        markers: u64,
        /// The limit.
        limit: u64,
    },
}

impl EmitError {
    /// Returns whether the outcome is unknown: the emit may have been applied, or may be applied
    /// later.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Unreplicated { .. })
    }
}

/// The results of a transaction that Redis ran.
#[derive(Debug, Clone)]
pub(super) struct Replies {
    /// The result of each command.
    pub(super) results: Vec<Value>,
    /// Present if the emitter waits for replicas, and too few have the transaction.
    pub(super) too_few: Option<TooFew>,
}

impl Replies {
    /// Returns an error if too few replicas have the transaction. Call it after the results were
    /// read: their errors show that the call was not applied, or only in part.
    pub(super) fn check(&self, object: &ObjectName) -> Result<(), EmitError> {
        match self.too_few {
            None => Ok(()),
            Some(TooFew {
                reached,
                wanted,
                not_local,
            }) => Err(EmitError::Unreplicated {
                object: object.clone(),
                reached,
                wanted,
                not_local,
            }),
        }
    }
}

/// The failure of a whole transaction. It does not name an object. [`Failed::about`] adds the
/// object.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// No connection could be made, so nothing was sent.
    Connect { redis: String, source: RedisError },
    /// There was no reply, or the reply does not show the outcome.
    Unknown(RedisError),
    /// The transaction was certainly not applied, because Redis is out of memory.
    OutOfMemory,
    /// The transaction was certainly not applied, for a reason other than memory.
    Refused(RedisError),
}

impl Failed {
    /// Returns the failure of an emit whose reply is missing or unusable.
    pub(super) fn no_reply() -> Self {
        Self::Unknown(RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "the reply is not that of the script",
        )))
    }

    /// Turns the failure into the error of an emit for this object.
    pub(super) fn about(&self, object: &ObjectName) -> EmitError {
        let object = object.clone();
        match self.clone() {
            Self::Connect { redis, source } => EmitError::Connect { redis, source },
            Self::Unknown(source) => EmitError::Unknown { object, source },
            Self::OutOfMemory => EmitError::OutOfMemory { object },
            Self::Refused(source) => EmitError::Refused { object, source },
        }
    }

    /// Returns whether the next call should make a new connection. That is so if the connection is
    /// gone or may deliver a late reply, if its server is no longer the right one, or if the server
    /// has forgotten the login.
    pub(super) fn spoils_connection(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Unknown(_) => true,
            Self::OutOfMemory => false,
            Self::Refused(error) => matches!(
                error.code(),
                Some("READONLY" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "MASTERDOWN")
            ),
        }
    }
}

/// Reads the replies to `MULTI`, to `commands` commands and to `EXEC`. Returns the result of each
/// command, or the failure of the whole transaction.
///
/// The client would skip the replies before that of `EXEC`. But it counts a refused `MULTI` with an
/// index below zero, and panics in a debug build. So all replies are read here.
pub(super) fn read_answer(
    answer: RedisResult<Vec<Value>>,
    commands: usize,
) -> Result<Vec<Value>, Failed> {
    let mut replies = answer.map_err(|error| failed(error, commands))?;
    let executed = replies.pop();
    let refusals = refusals(&replies);
    match (executed, refusals.first()) {
        (executed, _) if replies.len() != commands + 1 => Err(match executed {
            // A connection of the caller may return one error in place of all replies.
            Some(Value::ServerError(error)) if replies.is_empty() => not_run(error),
            _ => unreadable(),
        }),
        // Without MULTI, each command that Redis did not refuse ran at once, by itself.
        (_, Some((0, error))) if refusals.len() <= commands => {
            Err(Failed::Unknown(error.clone().into()))
        }
        (Some(Value::ServerError(_)), Some((_, first))) => {
            let memory = refusals.iter().find(|(_, error)| out_of_memory(error));
            Err(refused(memory.map_or(first, |(_, error)| error)))
        }
        (Some(Value::ServerError(error)), None) => Err(not_run(error)),
        (Some(Value::Array(results)), None) if results.len() == commands => Ok(results),
        // EXEC returns nil if a key watched on this connection has changed. Only a connection that
        // the caller provides can have a WATCH.
        (Some(Value::Nil), None) => Err(Failed::Refused(RedisError::from((
            ErrorKind::Client,
            "a key watched on this connection has changed",
        )))),
        _ => Err(unreadable()),
    }
}

/// Joins the results of a transaction with the outcome of the wait for replicas.
pub(super) fn replies(
    results: Result<Vec<Value>, Failed>,
    waited: Result<Option<TooFew>, Failed>,
) -> Result<Replies, Failed> {
    let results = results?;
    let too_few = waited?;
    Ok(Replies { results, too_few })
}

/// Returns the errors among replies, by their index.
fn refusals(replies: &[Value]) -> Vec<(usize, ServerError)> {
    let errors = replies.iter().enumerate();
    errors
        .filter_map(|(at, reply)| match reply {
            Value::ServerError(error) => Some((at, error.clone())),
            _ => None,
        })
        .collect()
}

fn unreadable() -> Failed {
    Failed::Unknown(RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the reply is not that of a transaction",
    )))
}

/// Returns the error of an emit whose transaction ran, except that this command failed.
pub(super) fn command_failed(
    object: &ObjectName,
    error: &ServerError,
    key: impl FnOnce() -> String,
) -> EmitError {
    match error.code() {
        "WRONGTYPE" => EmitError::WrongType {
            object: object.clone(),
            key: key(),
        },
        _ => EmitError::Unknown {
            object: object.clone(),
            source: error.clone().into(),
        },
    }
}

/// Returns the error of an emit that is a script. The script checks types and rights before it
/// writes. So after such an error nothing was applied.
pub(super) fn script_failed(object: &ObjectName, error: RedisError) -> EmitError {
    let object = object.clone();
    match error.clone().into_server_errors().as_deref() {
        Some([(_, first), ..]) if out_of_memory(first) => EmitError::OutOfMemory { object },
        Some(_) if matches!(error.code(), Some("WRONGTYPE" | "NOPERM")) => EmitError::Refused {
            object,
            source: error,
        },
        _ => EmitError::Unknown {
            object,
            source: error,
        },
    }
}

/// Returns the failed commands of a transaction that ran, by their index in its pipeline. None for
/// any other kind of error: then the transaction did not run, or its outcome is unknown.
pub(super) fn failures_of_commands(error: &RedisError) -> Option<Arc<[(usize, ServerError)]>> {
    let errors = error.clone().into_server_errors()?;
    let (_, first) = errors.first()?;
    // An error of the client contains errors of the server in three cases: Redis discarded the
    // transaction, the whole reply is an error, or commands of the transaction failed.
    let is_whole_reply = *error == RedisError::from(first.clone());
    (!was_discarded(error, first) && !is_whole_reply).then_some(errors)
}

/// Returns the refused commands of a discarded transaction that has `pushes` pushes and one push of
/// markers, by their index among the pushes. `answer` has the replies to `MULTI`, to the commands and
/// to `EXEC`. Empty if Redis refused MULTI or the push of markers, or if the transaction failed in
/// another way. In these cases the error concerns all emits of the transaction.
pub(super) fn refused_commands(
    answer: &RedisResult<Vec<Value>>,
    pushes: usize,
) -> Vec<(usize, ServerError)> {
    let Ok([replies @ .., Value::ServerError(_)]) = answer.as_deref() else {
        return Vec::new();
    };
    let refusals = refusals(replies);
    if replies.len() != pushes + 2 || refusals.iter().any(|(at, _)| !(1..=pushes).contains(at)) {
        return Vec::new();
    }
    let refusals = refusals.into_iter();
    refusals.map(|(at, error)| (at - 1, error)).collect()
}

/// Returns the failure of an emit whose command was refused while Redis queued the transaction.
pub(super) fn refused(error: &ServerError) -> Failed {
    if out_of_memory(error) {
        Failed::OutOfMemory
    } else {
        Failed::Refused(error.clone().into())
    }
}

/// Returns whether Redis has discarded the transaction. The code EXECABORT alone does not prove it,
/// because a script of the caller may return that code as the error of its command. In a discarded
/// transaction Redis has only queued the commands, so no command has this error.
fn was_discarded(error: &RedisError, first: &ServerError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) && first.code() != "EXECABORT"
}

/// Classifies an error that came in place of the results of a transaction with `commands` commands.
pub(super) fn failed(error: RedisError, commands: usize) -> Failed {
    match error.kind() {
        // Only a connection attempt ends with such an error, so nothing was sent. The owner of the
        // connection fills in the address later.
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Failed::Connect {
            redis: "its address".to_owned(),
            source: error,
        },
        _ if error.is_connection_refusal() => Failed::Connect {
            redis: "its address".to_owned(),
            source: error,
        },
        // The client refused to send the transaction.
        ErrorKind::Client => Failed::Refused(error),
        _ => match error.clone().into_server_errors() {
            Some(errors) if multi_failed(&errors, commands) => Failed::Unknown(error),
            Some(errors) => {
                let memory = errors.iter().any(|(_, error)| out_of_memory(error));
                match errors.first() {
                    _ if memory => Failed::OutOfMemory,
                    // Redis refused a command when it queued the transaction, so EXEC discarded the
                    // transaction. In this case the code of the error does not matter.
                    Some((_, first))
                        if error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort) =>
                    {
                        refused(first)
                    }
                    Some((_, first)) => not_run(first.clone()),
                    None => Failed::Unknown(error),
                }
            }
            None => Failed::Unknown(error),
        },
    }
}

/// Returns whether Redis refused MULTI but accepted a later command. That command then ran outside
/// of a transaction. The client numbers commands from 0 after MULTI. MULTI itself has the number
/// `usize::MAX`.
fn multi_failed(errors: &[(usize, ServerError)], commands: usize) -> bool {
    let multi = errors.iter().any(|(at, _)| *at == usize::MAX);
    multi && (0..commands).any(|command| errors.iter().all(|(at, _)| *at != command))
}

/// Classifies an error that came in place of the results of EXEC. If Redis returns this error only
/// before it runs a command, no command ran.
fn not_run(error: ServerError) -> Failed {
    if out_of_memory(&error) {
        return Failed::OutOfMemory;
    }
    match error.code() {
        "EXECABORT" | "LOADING" | "READONLY" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "MOVED"
        | "ASK" | "TRYAGAIN" | "CROSSSLOT" | "CLUSTERDOWN" | "MASTERDOWN" | "MISCONF"
        | "NOREPLICAS" | "BUSY" => Failed::Refused(error.into()),
        _ => Failed::Unknown(error.into()),
    }
}

fn out_of_memory(error: &ServerError) -> bool {
    error.code() == "OOM"
        || (error.code() == "EXECABORT"
            && error.details().is_some_and(|text| text.contains("OOM ")))
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
    #[case(
        "EXECABORT Transaction discarded because of previous errors.",
        "refused"
    )]
    #[case(
        "EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.",
        "memory"
    )]
    #[case("READONLY You can't write against a read only replica.", "refused")]
    #[case("LOADING Redis is loading the dataset in memory", "refused")]
    #[case("MOVED 3999 127.0.0.1:6381", "refused")]
    #[case("ERR EXEC without MULTI", "unknown")]
    #[case("SOMETHING new", "unknown")]
    fn an_error_in_place_of_the_results_is_read_by_its_code(
        #[case] line: &str,
        #[case] what: &str,
    ) {
        let queued = || Value::SimpleString("QUEUED".to_owned());
        let executed = Value::ServerError(server_error(line));
        let as_value = read_answer(Ok(vec![Value::Okay, queued(), queued(), executed]), 2);
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
        for kind in [
            std::io::ErrorKind::TimedOut,
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
        ] {
            let answer = read_answer(Err(std::io::Error::from(kind).into()), 2);
            assert!(
                matches!(answer, Err(Failed::Unknown(_))),
                "{kind}: {answer:?}"
            );
        }
        for answer in [
            vec![],
            vec![Value::Okay],
            vec![Value::Array(vec![Value::Int(1)])],
        ] {
            assert!(matches!(
                read_answer(Ok(answer), 2),
                Err(Failed::Unknown(_))
            ));
        }
    }

    #[test]
    fn a_refused_connection_means_that_nothing_was_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(matches!(
            read_answer(Err(refused.into()), 2),
            Err(Failed::Connect { .. })
        ));
    }

    /// A user may have the right to LPUSH but not to MULTI. Then the commands ran without a
    /// transaction. So the error must not say "not applied".
    #[test]
    fn commands_that_ran_without_their_multi_are_unknown() {
        let denied = |at: usize| (at, server_error("NOPERM no"));
        assert!(multi_failed(&[denied(usize::MAX)], 2));
        assert!(!multi_failed(
            &[denied(usize::MAX), denied(0), denied(1)],
            2
        ));
        assert!(!multi_failed(&[denied(0)], 2));
    }

    /// Returns the word for the failure of a transaction of two commands with these replies.
    fn failure(replies: [&str; 4]) -> &'static str {
        let replies = replies.map(|reply| match reply {
            "" => Value::Okay,
            error => Value::ServerError(server_error(error)),
        });
        match read_answer(Ok(replies.to_vec()), 2) {
            Err(Failed::Refused(_)) => "refused",
            Err(Failed::OutOfMemory) => "memory",
            Err(Failed::Unknown(_)) => "unknown",
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_among_the_replies_shows_what_ran() {
        let (no, alone) = ("NOPERM no", "ERR EXEC without MULTI");
        let (oom, aborted) = ("OOM full", "EXECABORT discarded");
        assert_eq!(failure([no, "", "", alone]), "unknown");
        assert_eq!(failure([no, no, "", alone]), "unknown");
        assert_eq!(failure([no, no, no, no]), "refused");
        assert_eq!(failure(["", "", no, aborted]), "refused");
        assert_eq!(failure(["", no, oom, aborted]), "memory");
        assert_eq!(failure(["", "", "", no]), "refused");
        assert_eq!(failure(["", "", "", ""]), "unknown");
    }
}
