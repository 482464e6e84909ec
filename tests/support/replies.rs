//! A Redis that returns one fixed value for every call; for the tests, and for `fuzz/`.

use std::time::Duration;

use bytes::Bytes;
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, By, Settle};
use seriatim::wire::{
    self, Advance, Advanced, Attach, Bounds, ClaimFirst, Connect, FINISHED, Finished, Handled,
    SlotBatch, Suspects, Sweep, Tag,
};

/// A connection that returns the same value for everything.
#[derive(Clone)]
struct Same(Value);

impl ConnectionLike for Same {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        let value = self.0.clone();
        Box::pin(async move { Ok(value) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let values = vec![self.0.clone(); count];
        Box::pin(async move { Ok(values) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Calls every script over a connection that returns `reply` to everything. Whatever the reply is,
/// no call panics, and accepted values are usable.
pub async fn every_call(reply: Value) {
    let (mut conn, keys, lease) = (Same(reply), Keys::new(), Duration::from_secs(1));
    let bounds = Bounds {
        batch: 1,
        batch_bytes: 1,
        reply_bytes: 1,
        claims: 1,
        markers: 1,
        forget_after: None,
        suspects: Suspects::NONE,
        group_depth: 0,
    };
    let mut call = Advance::new(&keys, "w", "token", bounds, ClaimFirst::Held);
    call.free(0);
    if let Ok(Advanced::Ok { batches, .. }) = wire::advance(&mut conn, &call).await {
        for batch in batches {
            assert!(!batch.events.is_empty());
            // The ids computed from the reply stay valid.
            let rest = batch.tag.after(batch.events.len(), 1).failed();
            assert!(rest.first > batch.tag.first);
            let _: Bytes = batch.object;
        }
    }
    let args = Attach {
        name: "w",
        token: "t",
        holder: "h 1 1",
        lease,
        slots: 1,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    let _ = wire::attach(&mut conn, &keys, &args).await;
    let _ = wire::renew(&mut conn, &keys, "w", "t", lease, 1).await;
    let _ = wire::detach(&mut conn, &keys, "w", "t").await;
    let sweep = Sweep {
        own: "w",
        crashes_max: 5,
        look: lease,
        forget: lease,
        since: Some(lease),
        notice: lease,
    };
    let _ = wire::adopt(&mut conn, &keys, &sweep).await;
    let _ = wire::connect(&mut conn, &keys, "id", Connect::default()).await;
    let batch = SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"o",
        tag: Tag {
            first: 1,
            ..Tag::default()
        },
    };
    if let Ok(Handled::Kept { finished, .. }) = wire::handled(&mut conn, &keys, &batch, None).await
    {
        // The field `id` and the `emit:` fields are not read as finished handlers.
        assert!(
            finished
                .keys()
                .all(|field| field != "id" && !field.starts_with("emit:"))
        );
    }
    let finished = Finished {
        id: 1,
        field: "handler:a",
        value: FINISHED,
        emits: Some(("emit:a", b"0 1 3 1 2 o{}")),
        result: None,
    };
    let _ = wire::handled(&mut conn, &keys, &batch, Some(finished)).await;
    let _ = wire::sent(&mut conn, &keys, &batch, "request", lease, 0).await;
    let _ = wire::request_over(&mut conn, &keys, b"o", "request").await;
    let by = By {
        who: "ada",
        why: "",
    };
    for settle in [Settle::Retry, Settle::Drop] {
        let _ = operator::dead(&mut conn, &keys, by, settle, &["1-1"]).await;
    }
    let _ = operator::release(&mut conn, &keys, by, b"o").await;
    let _ = operator::skip(&mut conn, &keys, by, b"o", Some(1)).await;
    let control = Control::new(conn).with_keys(keys);
    let _ = control.held(false, None, 1).await;
    let _ = control.dead_letters(None, 1).await;
    let _ = control.actions(None, 1).await;
}
