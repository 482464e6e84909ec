//! Stores the position of a projection in the log, together with its state.

use std::error::Error;
use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::ScriptError;
use crate::wire::position::{PositionStep, position};
pub use crate::wire::values::Position;

/// The stored data of a projection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saved {
    /// Position in the log. It is the beginning of the log if no position is stored.
    pub position: Position,
    /// State of the projection; none if no state is stored.
    pub state: Option<Vec<u8>>,
}

/// Stores a projection's position and state together. Only one process at a time can have the
/// projection.
///
/// To implement a store with a database, keep one row per projection name. Its columns are the
/// position, the state, a token, and an expiry time. `open` takes the row if the expiry time is
/// over, or if the row has the same token. `save` is a transaction that changes the row `WHERE
/// token = …`, and returns whether it has changed a row. A read model is written in the same
/// transaction.
pub trait Store: Send {
    /// The error of the store.
    type Error: Error + Send + Sync + 'static;

    /// Takes the projection for `token` for the time `lease`, and reads the stored data. None if
    /// another token has the projection. The call may be repeated.
    fn open(
        &mut self,
        token: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<Saved>, Self::Error>> + Send;

    /// Writes position and state in one atomic step if `token` still has the projection, and renews
    /// the lease. Returns whether `token` still has the projection.
    fn save(
        &mut self,
        token: &str,
        lease: Duration,
        position: &Position,
        state: &[u8],
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Renews the lease if `token` has the projection. Returns whether `token` has it.
    fn keep(
        &mut self,
        token: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Releases the projection if `token` has it.
    fn close(&mut self, token: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Maximum size of a state in a [`RedisStore`], in bytes: 4 MiB. While Redis reads or writes a
/// state, it runs no other command. That takes 2 to 3 ms per MiB.
pub const STATE_BYTES_MAX: usize = 4 << 20;

/// Stores position and state in Redis, next to the log. The state has up to [`STATE_BYTES_MAX`]
/// bytes. A larger state is not saved ([`RedisStoreError::TooLarge`]). The futures may be dropped
/// at any time. A command that was already sent may still take effect.
pub struct RedisStore<C> {
    conn: C,
    keys: Keys,
    name: String,
}

/// The reason why a [`RedisStore`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisStoreError {
    /// The state is larger than [`STATE_BYTES_MAX`]. Nothing was written.
    #[error(
        "the state of the projection has {bytes} bytes, RedisStore keeps {max} at most; keep it in a Store of your own"
    )]
    TooLarge {
        /// Size of the state in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The call to Redis failed.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// The error that a name is not a valid name of a projection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name of a projection: write 1 to 64 of the characters A-Z a-z 0-9 _ -")]
pub struct NameError(pub String);

impl<C: ConnectionLike + Send> RedisStore<C> {
    /// Returns the store of the projection with this name. The name has 1 to 64 of the characters
    /// `A-Z a-z 0-9 _ -`.
    ///
    /// # Errors
    /// [`NameError`] for an invalid name.
    pub fn new(conn: C, keys: Keys, name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        match (1..=64).contains(&name.len()) && name.bytes().all(fits) {
            true => Ok(Self { conn, keys, name }),
            false => Err(NameError(name)),
        }
    }

    async fn call(
        &mut self,
        token: &str,
        lease: Duration,
        step: PositionStep<'_>,
    ) -> Result<Option<(String, Vec<u8>)>, ScriptError> {
        position(&mut self.conn, &self.keys, &self.name, token, lease, step).await
    }
}

impl<C: ConnectionLike + Send> Store for RedisStore<C> {
    type Error = RedisStoreError;

    async fn open(
        &mut self,
        token: &str,
        lease: Duration,
    ) -> Result<Option<Saved>, RedisStoreError> {
        let Some((text, state)) = self.call(token, lease, PositionStep::Open).await? else {
            return Ok(None);
        };
        if text.is_empty() {
            return Ok(Some(Saved::default()));
        }
        let wrong = || ScriptError::Protocol {
            script: "position",
            what: format!("{text:?} is not a position in the log"),
        };
        let position = Position::of(&text).ok_or_else(wrong)?;
        Ok(Some(Saved {
            position,
            state: Some(state),
        }))
    }

    async fn save(
        &mut self,
        token: &str,
        lease: Duration,
        position: &Position,
        state: &[u8],
    ) -> Result<bool, RedisStoreError> {
        if state.len() > STATE_BYTES_MAX {
            return Err(RedisStoreError::TooLarge {
                bytes: state.len(),
                max: STATE_BYTES_MAX,
            });
        }
        let position = &position.text();
        Ok(self
            .call(token, lease, PositionStep::Save { position, state })
            .await?
            .is_some())
    }

    async fn keep(&mut self, token: &str, lease: Duration) -> Result<bool, RedisStoreError> {
        Ok(self.call(token, lease, PositionStep::Keep).await?.is_some())
    }

    async fn close(&mut self, token: &str) -> Result<(), RedisStoreError> {
        Ok(self
            .call(token, Duration::ZERO, PositionStep::Close)
            .await
            .map(drop)?)
    }
}
