//! A system for comparison: one list that is pushed and popped. It has no order per object, no
//! owners and no redelivery. So it shows the limit of Redis itself.

use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::task::JoinSet;

use super::place::{Target, lost, pipelined};
use super::system::{Consumers, Producer, System};
use super::tally::Tally;
use super::workload::Workload;

/// Number of commands in one pipeline of LPUSH.
const DEPTH: usize = 500;
/// Maximum number of events in one RPOP.
const COUNT: usize = 1000;
/// Maximum time that one BRPOP waits for the next event, in seconds.
const BLOCK_S: usize = 1;

pub(super) struct Raw {
    pub(super) place: Target,
}

#[derive(Clone)]
pub(super) struct Pushes {
    conn: MultiplexedConnection,
    key: String,
    payload: Vec<u8>,
}

pub(super) struct Pops {
    popping: JoinSet<anyhow::Error>,
    ready_at: Instant,
}

impl System for Raw {
    type Producer = Pushes;
    type Consumers = Pops;

    const NAME: &'static str = "raw";

    async fn prepare(&self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn producer(&self) -> anyhow::Result<Pushes> {
        Ok(Pushes {
            conn: self.place.writing().await?,
            key: self.place.key("list"),
            payload: Vec::new(),
        })
    }

    async fn consume(&self, tally: &Arc<Tally>) -> anyhow::Result<Pops> {
        let (conn, key, tally) = (
            self.place.reading().await?,
            self.place.key("list"),
            Arc::clone(tally),
        );
        let mut popping = JoinSet::new();
        let ready_at = Instant::now();
        popping.spawn(async move {
            pop(conn, &key, &tally)
                .await
                .err()
                .unwrap_or_else(|| anyhow!("the consumer ended"))
        });
        Ok(Pops { popping, ready_at })
    }
}

impl Pushes {
    fn command(&mut self, load: &Workload, event: usize) -> Cmd {
        self.payload.clear();
        load.write_payload(event, &mut self.payload);
        let mut push = Cmd::with_capacity(3, self.key.len() + self.payload.len() + 8);
        push.arg("LPUSH").arg(&self.key).arg(&self.payload[..]);
        push
    }
}

impl Producer for Pushes {
    async fn push_all(&mut self, load: &Workload) -> anyhow::Result<()> {
        let conn = self.conn.clone();
        pipelined(&conn, load.events(), DEPTH, "LPUSH", |pipe, event| {
            pipe.add_command(self.command(load, event));
        })
        .await
    }

    async fn push(&mut self, load: &Workload, event: usize) -> anyhow::Result<()> {
        let push = self.command(load, event);
        self.conn
            .send_packed_command(&push)
            .await
            .and_then(Value::extract_error)
            .map(|_| ())
            .map_err(lost("LPUSH"))
    }
}

/// Pops many events at once with RPOP. If there is none, waits for one event with BRPOP.
async fn pop(mut conn: MultiplexedConnection, key: &str, tally: &Tally) -> anyhow::Result<()> {
    let (mut many, mut one) = (redis::cmd("RPOP"), redis::cmd("BRPOP"));
    many.arg(key).arg(COUNT);
    one.arg(key).arg(BLOCK_S);
    let mut wait = false;
    loop {
        let ask = if wait { &one } else { &many };
        let answer = conn
            .send_packed_command(ask)
            .await
            .and_then(Value::extract_error)
            .map_err(lost("RPOP"))?;
        // The reply of BRPOP begins with the key of the list, which is not an event.
        let skip = usize::from(wait);
        wait = matches!(answer, Value::Nil);
        if let Value::Array(payloads) = answer {
            for payload in payloads.iter().skip(skip) {
                let Value::BulkString(payload) = payload else {
                    return Err(anyhow!("RPOP returned an unknown reply"));
                };
                tally.take(payload, None);
            }
            tally.add(payloads.len() - skip);
        }
    }
}

impl Consumers for Pops {
    fn ready_at(&self) -> Instant {
        self.ready_at
    }

    async fn failed(&mut self) -> anyhow::Error {
        match self.popping.join_next().await {
            Some(Ok(error)) => error,
            _ => anyhow!("the consumer of the list broke"),
        }
    }

    async fn is_committed(&mut self) -> anyhow::Result<bool> {
        Ok(true)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.popping.shutdown().await;
        Ok(())
    }
}
