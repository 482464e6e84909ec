//! The calls under way, and their connection.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::sleep;

use crate::connection::PatientConnection;
use crate::wire::{Advance, Advanced, ScriptError};
use crate::worker::caller::{CALLS_MAX, FAILED_MAX, FAILED_MIN, send};
use crate::worker::config::WorkerConfig;
use crate::worker::connect::{Connection, Redis, give_up};
use crate::worker::error::WorkerError;
use crate::worker::growing_wait::GrowingWait;
use crate::worker::lease::failed;
use crate::worker::pending::ready;

/// The result of a call that has ended.
pub(super) struct Answer {
    /// The slots that the call named.
    pub(super) asked: Vec<usize>,
    /// Whether the call was allowed to take suspects.
    pub(super) had_room: bool,
    pub(super) reply: Result<Advanced, ScriptError>,
}

pub(super) struct Calls {
    redis: Redis,
    /// The connection; `None` while a new one is being made.
    conn: Option<Connection>,
    connecting: Option<BoxFuture<'static, Result<Connection, WorkerError>>>,
    under_way: FuturesUnordered<BoxFuture<'static, Answer>>,
    backoff: GrowingWait,
}

impl Calls {
    pub(super) fn new(redis: &Redis) -> Self {
        Self {
            redis: redis.clone(),
            conn: None,
            connecting: None,
            under_way: FuturesUnordered::new(),
            backoff: GrowingWait::new(FAILED_MIN, FAILED_MAX),
        }
    }

    /// Begins to connect, unless there is a connection.
    pub(super) fn connect(&mut self) {
        if self.conn.is_none() && self.connecting.is_none() {
            let redis = self.redis.clone();
            self.connecting = Some(Box::pin(async move { redis.reconnect().await }));
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether a call can begin now.
    pub(super) fn can_begin(&self) -> bool {
        self.conn.is_some() && self.under_way.len() < CALLS_MAX
    }

    /// Begins a call that names these slots.
    pub(super) fn begin(&mut self, call: Advance, asked: Vec<usize>, had_room: bool) {
        let Some(conn) = &self.conn else { return };
        let (redis, mut conn): (_, PatientConnection) = (self.redis.clone(), (**conn).clone());
        self.under_way.push(Box::pin(async move {
            let reply = send(&redis, &mut conn, &call).await;
            Answer { asked, had_room, reply }
        }));
    }

    /// Waits for the next result. `None`: a new connection is ready. Cancellation safe.
    pub(super) async fn next(&mut self) -> Result<Option<Answer>, WorkerError> {
        tokio::select! {
            biased;
            Some(answer) = self.under_way.next() => Ok(Some(answer)),
            conn = ready(self.connecting.as_mut()) => {
                self.connecting = None;
                self.conn = Some(conn?);
                Ok(None)
            }
        }
    }

    /// Records a successful call.
    pub(super) fn succeeded(&mut self) {
        self.backoff = GrowingWait::new(FAILED_MIN, FAILED_MAX);
    }

    /// Records a failed call, and replaces its connection after a wait.
    pub(super) fn failed(&mut self, config: &Arc<WorkerConfig>, error: ScriptError) {
        let Some(conn) = self.conn.take() else { return };
        let made_at = conn.made_at();
        give_up(conn);
        let (redis, config, delay) = (self.redis.clone(), Arc::clone(config), self.backoff.delay());
        self.connecting = Some(Box::pin(async move {
            failed(&redis, &config, made_at, error).await;
            sleep(delay).await;
            redis.reconnect().await
        }));
    }
}
