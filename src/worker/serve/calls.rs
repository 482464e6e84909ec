//! The calls of `advance` that are under way, and their connections.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::sleep;

use crate::connection::PatientConnection;
use crate::wire::{Advance, Advanced, ScriptError};
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::serve::caller::{CALLS_MAX, FAILED_MAX, FAILED_MIN, send};
use crate::worker::session::connect::{Connection, Redis, give_up};
use crate::worker::session::lease::failed;
use crate::worker::times::growing_wait::GrowingWait;

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
    /// One connection for all calls. With a wait for replicas there are two connections, with one
    /// call each: Redis works on one call while the other call waits for the replicas.
    lines: Vec<Line>,
    under_way: FuturesUnordered<BoxFuture<'static, (usize, Answer)>>,
    backoff: GrowingWait,
    /// The number of the line whose call was last taken from `under_way`.
    answered: usize,
}

/// A connection for calls, or the attempt to make one.
struct Line {
    /// The connection; `None` while a new one is being made.
    conn: Option<Connection>,
    connecting: Option<BoxFuture<'static, Result<Connection, WorkerError>>>,
    calls: usize,
}

impl Calls {
    pub(super) fn new(redis: &Redis) -> Self {
        let line = || Line {
            conn: None,
            connecting: None,
            calls: 0,
        };
        let lines = if redis.wait().is_some() {
            vec![line(), line()]
        } else {
            vec![line()]
        };
        Self {
            redis: redis.clone(),
            lines,
            under_way: FuturesUnordered::new(),
            backoff: GrowingWait::new(FAILED_MIN, FAILED_MAX),
            answered: 0,
        }
    }

    /// Begins to connect each line without a connection.
    pub(super) fn connect(&mut self) {
        for line in &mut self.lines {
            if line.conn.is_none() && line.connecting.is_none() {
                let redis = self.redis.clone();
                line.connecting = Some(Box::pin(async move { redis.reconnect().await }));
            }
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.lines.iter().any(|line| line.conn.is_some())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether a call can begin now.
    pub(super) fn can_begin(&self) -> bool {
        self.free_line().is_some()
    }

    fn free_line(&self) -> Option<usize> {
        let calls_max = CALLS_MAX / self.lines.len();
        self.lines
            .iter()
            .position(|line| line.conn.is_some() && line.calls < calls_max)
    }

    /// Begins a call that names these slots.
    pub(super) fn begin(&mut self, call: Advance, asked: Vec<usize>, had_room: bool) {
        let Some(number) = self.free_line() else {
            return;
        };
        let line = &mut self.lines[number];
        let Some(conn) = &line.conn else { return };
        line.calls += 1;
        let (redis, mut conn): (_, PatientConnection) = (self.redis.clone(), (**conn).clone());
        self.under_way.push(Box::pin(async move {
            let reply = send(&redis, &mut conn, &call).await;
            (
                number,
                Answer {
                    asked,
                    had_room,
                    reply,
                },
            )
        }));
    }

    /// Waits for the result of the next call that ends. Returns `None` if instead a new connection
    /// became ready. Cancellation safe.
    pub(super) async fn next(&mut self) -> Result<Option<Answer>, WorkerError> {
        let lines = &mut self.lines;
        let connected = poll_fn(|cx| {
            for (number, line) in lines.iter_mut().enumerate() {
                if let Some(connecting) = &mut line.connecting
                    && let Poll::Ready(conn) = connecting.as_mut().poll(cx)
                {
                    line.connecting = None;
                    return Poll::Ready((number, conn));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            Some((number, answer)) = self.under_way.next() => {
                self.lines[number].calls -= 1;
                self.answered = number;
                Ok(Some(answer))
            }
            (number, conn) = connected => {
                self.lines[number].conn = Some(conn?);
                Ok(None)
            }
        }
    }

    /// Records a successful call.
    pub(super) fn succeeded(&mut self) {
        self.backoff = GrowingWait::new(FAILED_MIN, FAILED_MAX);
    }

    /// Records that the last call failed, and replaces its connection after a wait.
    pub(super) fn failed(&mut self, config: &Arc<WorkerConfig>, error: ScriptError) {
        let line = &mut self.lines[self.answered];
        let Some(conn) = line.conn.take() else { return };
        let made_at = conn.made_at();
        give_up(conn);
        let (redis, config, delay) = (self.redis.clone(), Arc::clone(config), self.backoff.delay());
        line.connecting = Some(Box::pin(async move {
            failed(&redis, &config, made_at, error).await;
            sleep(delay).await;
            redis.reconnect().await
        }));
    }
}
