//! The record of the requests that may be open at a receiver (`lua/sent.lua`).
//!
//! A request counts as open until the sink says that it is over, or until its time is over. If the
//! process dies, the record stays. So the next worker that gets the object does not send a request
//! before the time of the last one is over.

use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use uuid::Uuid;

use crate::failpoints::around;
use crate::sink::{Opened, RequestError, Requests};
use crate::wire::{self, Sent};
use crate::worker::serve::caller::replicated;
use crate::worker::serve::ledger::{BatchLedger, CallError};
use crate::worker::watch::figures::Call;

impl BatchLedger {
    /// Returns the name of a request, which follows this number of requests that are over.
    fn request(&self, over: u64) -> String {
        format!(
            "{}.{over}",
            self.requests.0.get_or_init(Uuid::new_v4).simple()
        )
    }

    fn refused(&self, error: CallError) -> RequestError {
        let object = String::from_utf8_lossy(self.slot_batch().object).into_owned();
        RequestError::Failed(
            error.describe(|error| {
                format!("{}: {error}", self.session.config.keys.event_sent(&object))
            }),
        )
    }
}

#[async_trait]
impl Requests for BatchLedger {
    async fn open(&self, limit: Duration) -> Result<Opened, RequestError> {
        let (keys, batch, redis) = (
            &self.session.config.keys,
            &self.slot_batch(),
            &self.session.redis,
        );
        let request = &*self.request(self.requests.1.load(Ordering::Relaxed));
        let called = self.session.repeated(Call::Sent, |mut conn| async move {
            let sent = around!(
                "sent",
                wire::sent(&mut conn, keys, batch, request, limit, redis.highest())
            )
            .await?;
            // A failover must not lose the record of a request that is sent.
            if matches!(sent, Sent::Sent { .. }) {
                replicated(redis, &mut conn).await?;
            }
            Ok(sent)
        });
        match called.await.map_err(|error| self.refused(error))? {
            Sent::Sent {
                number,
                deadline_ms,
            } => {
                redis.saw(number);
                Ok(Opened::Now {
                    number,
                    deadline: UNIX_EPOCH + Duration::from_millis(deadline_ms),
                })
            }
            Sent::Earlier(left) => Ok(Opened::Earlier(left)),
            Sent::Other | Sent::Lapsed | Sent::Fenced { .. } => Err(RequestError::Lost),
        }
    }

    async fn over(&self) -> Result<(), RequestError> {
        // If this call arrives late, it does not end the next request, which has another name.
        let request = &*self.request(self.requests.1.fetch_add(1, Ordering::Relaxed));
        let (keys, object) = (&self.session.config.keys, self.slot_batch().object);
        let called = self.session.repeated(Call::Sent, |mut conn| async move {
            around!("sent", wire::request_over(&mut conn, keys, object, request)).await
        });
        called.await.map_err(|error| self.refused(error))
    }
}
