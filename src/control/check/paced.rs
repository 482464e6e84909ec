//! A connection that pauses after each call, so that a long walk takes only a part of Redis' time.

use std::future::Future;
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};
use tokio::time::sleep;

/// Longest time that Redis itself is assumed to need for a call. Over a slow link, most of the time
/// of a call is not time of Redis.
const CALL_MOST: Duration = Duration::from_millis(2);

/// A connection with pauses.
pub(super) struct Paced<C> {
    inner: C,
    share: f64,
}

impl<C> Paced<C> {
    /// `share`: the part of Redis' time that the calls may take, above 0 and at most 1.
    pub(super) fn new(inner: C, share: f64) -> Self {
        Self { inner, share }
    }
}

/// Returns the pause after a call that took `took`.
fn pause(took: Duration, share: f64) -> Duration {
    took.min(CALL_MOST).mul_f64((1.0 - share) / share)
}

async fn paused<T>(call: impl Future<Output = RedisResult<T>>, share: f64) -> RedisResult<T> {
    let began = Instant::now();
    let answer = call.await?;
    sleep(pause(began.elapsed(), share)).await;
    Ok(answer)
}

impl<C: ConnectionLike> ConnectionLike for Paced<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(paused(self.inner.req_packed_command(cmd), self.share))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(paused(
            self.inner.req_packed_commands(pipe, offset, count),
            self.share,
        ))
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_followed_by_its_pause() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1), 0.5), ms(1));
        assert_eq!(pause(ms(1), 0.2), ms(4));
        assert_eq!(pause(ms(1), 1.0), ms(0));
        assert_eq!(pause(ms(300), 0.5), CALL_MOST);
    }
}
