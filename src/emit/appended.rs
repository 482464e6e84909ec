//! An emit inside a transaction of the caller: the positions of its commands, and its outcome.
//!
//! The caller sends the transaction over any connection. In its error, the Redis client names each
//! failed command by its index in the pipeline. So this module needs only the indexes of the emit's
//! commands.

use std::sync::Arc;

use redis::RedisResult;

use super::error::{EmitError, command_failed, failed, failures_of_commands};
use crate::event::ObjectName;

/// An emit that [`Emit::append_to`](super::Emit::append_to) has put into a pipeline of the caller.
/// Its method [`outcome`](Self::outcome) turns the reply of that pipeline into the outcome of the
/// emit.
///
/// # Example
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::redis::{self, RedisResult};
/// use seriatim::{EmitError, Emitter, event::Json};
///
/// let client = redis::Client::open("redis://127.0.0.1")?;
/// let mut connection = client.get_multiplexed_async_connection().await?;
/// let emitter = Emitter::new(connection.clone());
///
/// let mut pipe = redis::pipe();
/// pipe.incr("orders", 1);
/// let ordered = emitter.event("work:1", Json::new(r#"{"type":"ordered"}"#)).append_to(&mut pipe)?;
/// let reply: RedisResult<(u64,)> = pipe.query_async(&mut connection).await;
/// match ordered.outcome(&reply) {
///     Ok(()) => println!("queued; orders: {}", reply?.0),
///     Err(error @ EmitError::Unknown { .. }) => println!("look before sending it again: {error}"),
///     Err(error) => println!("not queued: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Appended {
    pub(super) object: ObjectName,
    /// Index of the emit's first command in the pipeline.
    pub(super) first: usize,
    /// Index of the LPUSH of the events.
    pub(super) push: usize,
    pub(super) events_key: String,
    pub(super) markers_key: Arc<str>,
}

impl Appended {
    /// Returns the outcome of the emit. `reply` is the reply of the pipeline: the result of
    /// `query_async` or `exec_async`, or of `query` or `exec` on a blocking connection.
    ///
    /// - `Ok`: all events are queued. The reply may still be an error if a command of the caller
    ///   failed, because Redis does not roll back.
    /// - [`EmitError::OutOfMemory`], [`EmitError::Refused`], [`EmitError::Connect`]: no command of
    ///   the transaction was applied, neither of the emit nor of the caller.
    /// - [`EmitError::WrongType`]: a key of the emit is not a list. The other commands of the
    ///   transaction were applied.
    /// - [`EmitError::Unknown`]: there was no reply, or the reply does not show the outcome. A
    ///   reply that does not fit the type `T` also leads to this error, because the client drops
    ///   it.
    ///
    /// One pipeline may contain several emits. Each has its own outcome.
    ///
    /// # Limits
    ///
    /// In two cases, the client drops information that this function needs:
    ///
    /// - Do not set `ignore_errors()` on the pipeline: the errors of the emit's commands would be
    ///   lost.
    /// - Under `WATCH`, let the pipeline return an `Option`, e.g. `Option<(u64,)>`. `Ok(None)`
    ///   means that a watched key has changed, so nothing was applied. Check for `Ok(None)` before
    ///   you call this function.
    ///
    /// - Do not set `ignore_errors()` on the pipeline: errors of the emit's commands would be lost.
    /// - Under `WATCH` ask for an `Option`, e.g. `Option<(u64,)>`. `Ok(None)` means that a watched
    ///   key has changed, so nothing was applied. Check for it before the outcome.
    pub fn outcome<T>(&self, reply: &RedisResult<T>) -> Result<(), EmitError> {
        let Err(error) = reply else { return Ok(()) };
        let mark = self.push + 1;
        let Some(failures) = failures_of_commands(error) else {
            return Err(failed(error.clone(), mark + 1).about(&self.object));
        };
        match failures
            .iter()
            .find(|(at, _)| (self.first..=mark).contains(at))
        {
            None => Ok(()),
            Some((at, error)) if *at == self.push => {
                Err(command_failed(&self.object, error, || {
                    self.events_key.clone()
                }))
            }
            Some((at, error)) if *at == mark => Err(command_failed(&self.object, error, || {
                self.markers_key.to_string()
            })),
            Some((_, error)) => Err(EmitError::Unknown {
                object: self.object.clone(),
                source: error.clone().into(),
            }),
        }
    }
}
