//! A system for comparison: static partitions on Redis Streams. A hash of the object's name gives
//! the partition. The system keeps the order per object, as seriatim does, but does no more. Events
//! of a dead consumer would wait until somebody claims them, and each partition waits for its
//! slowest event.
//!
//! Each partition has one task and one connection. The task sends one pipeline after another. A
//! pipeline acknowledges the last batch, and reads the next one.

use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::task::JoinSet;

use super::place::{Target, lost, pipelined, send};
use super::system::{Consumers, Producer, System};
use super::tally::Tally;
use super::workload::Workload;

/// Number of partitions. Each is one stream with one consumer.
pub(super) const PARTITIONS: usize = 16;
/// Maximum number of entries in one XREADGROUP.
const COUNT: usize = 100;
/// Number of entries in one pipeline of XADD.
const DEPTH: usize = 500;
/// Maximum time that one XREADGROUP waits for the next entry, in milliseconds.
const BLOCK_MS: usize = 1000;
const GROUP: &str = "bench";
/// Names of the two fields of an entry. All entries have the same fields, so a stream stores these
/// names only once per node.
const OBJECT: &[u8] = b"object";
const EVENT: &[u8] = b"event";

pub(super) struct Streams {
    pub(super) place: Target,
}

#[derive(Clone)]
pub(super) struct Adds {
    conn: MultiplexedConnection,
    keys: Arc<[String]>,
    payload: Vec<u8>,
}

pub(super) struct Readers {
    reading: JoinSet<anyhow::Error>,
    keys: Arc<[String]>,
    conn: MultiplexedConnection,
    ready_at: Instant,
}

impl Streams {
    fn keys(&self) -> Arc<[String]> {
        (0..PARTITIONS)
            .map(|n| self.place.key(&format!("stream:{n}")))
            .collect()
    }
}

impl System for Streams {
    type Producer = Adds;
    type Consumers = Readers;

    const NAME: &'static str = "streams";

    async fn prepare(&self) -> anyhow::Result<()> {
        let mut pipe = redis::pipe();
        for key in &*self.keys() {
            pipe.cmd("XGROUP")
                .arg("CREATE")
                .arg(key)
                .arg(GROUP)
                .arg("0")
                .arg("MKSTREAM");
        }
        send(&mut self.place.conn.clone(), &pipe, "XGROUP")
            .await
            .map(|_| ())
    }

    async fn producer(&self) -> anyhow::Result<Adds> {
        Ok(Adds {
            conn: self.place.writing().await?,
            keys: self.keys(),
            payload: Vec::new(),
        })
    }

    async fn consume(&self, tally: &Arc<Tally>) -> anyhow::Result<Readers> {
        let keys = self.keys();
        let mut conns = Vec::with_capacity(keys.len());
        for _ in &*keys {
            conns.push(self.place.reading().await?);
        }
        let mut reading = JoinSet::new();
        let ready_at = Instant::now();
        for (key, conn) in keys.iter().zip(conns) {
            let (key, tally) = (key.clone(), Arc::clone(tally));
            reading.spawn(async move {
                read(conn, &key, &tally)
                    .await
                    .err()
                    .unwrap_or_else(|| anyhow!("a reader ended"))
            });
        }
        Ok(Readers {
            reading,
            keys,
            conn: self.place.conn.clone(),
            ready_at,
        })
    }
}

impl Adds {
    fn add(&mut self, load: &Workload, event: usize) -> Cmd {
        let object = load.object(event).as_bytes();
        self.payload.clear();
        load.write_payload(event, &mut self.payload);
        let key = &self.keys[partition(object)];
        let mut add = Cmd::with_capacity(7, key.len() + object.len() + self.payload.len() + 24);
        add.arg("XADD")
            .arg(key)
            .arg("*")
            .arg(OBJECT)
            .arg(object)
            .arg(EVENT)
            .arg(&self.payload[..]);
        add
    }
}

impl Producer for Adds {
    async fn push_all(&mut self, load: &Workload) -> anyhow::Result<()> {
        let conn = self.conn.clone();
        pipelined(&conn, load.events(), DEPTH, "XADD", |pipe, event| {
            pipe.add_command(self.add(load, event));
        })
        .await
    }

    async fn push(&mut self, load: &Workload, event: usize) -> anyhow::Result<()> {
        let add = self.add(load, event);
        self.conn
            .send_packed_command(&add)
            .await
            .and_then(Value::extract_error)
            .map(|_| ())
            .map_err(lost("XADD"))
    }
}

/// Returns the partition of an object: the FNV-1a hash of its name with a final mix. Without the
/// mix, names that differ only at the end would often have the same partition.
fn partition(object: &[u8]) -> usize {
    let hash = object.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    fastrand::Rng::with_seed(hash).usize(..PARTITIONS)
}

/// Reads one partition until it fails.
async fn read(mut conn: MultiplexedConnection, key: &str, tally: &Tally) -> anyhow::Result<()> {
    let mut ids: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut pipe = Pipeline::with_capacity(2);
        if !ids.is_empty() {
            let mut ack = Cmd::with_capacity(3 + ids.len(), key.len() + 24 * ids.len() + 16);
            ack.arg("XACK").arg(key).arg(GROUP).arg(&ids);
            pipe.add_command(ack);
        }
        pipe.cmd("XREADGROUP")
            .arg("GROUP")
            .arg(GROUP)
            .arg("reader")
            .arg("COUNT")
            .arg(COUNT)
            .arg("BLOCK")
            .arg(BLOCK_MS);
        pipe.arg("STREAMS").arg(key).arg(">");
        let answer = send(&mut conn, &pipe, "XREADGROUP").await?.pop();
        ids.clear();
        for entry in
            entries(answer).ok_or_else(|| anyhow!("XREADGROUP returned an unknown reply"))?
        {
            let (id, object, payload) = parts(entry)
                .ok_or_else(|| anyhow!("XREADGROUP returned an entry of another program"))?;
            tally.take(&payload, Some(&object));
            ids.push(id);
        }
        tally.add(ids.len());
    }
}

/// Returns the entries in a reply of XREADGROUP, which has one stream; an empty list if the wait
/// has timed out. Returns `None` if the reply has another form.
fn entries(answer: Option<Value>) -> Option<Vec<Value>> {
    let of_stream = match answer? {
        Value::Nil => return Some(Vec::new()),
        Value::Array(mut streams) => match streams.pop()? {
            Value::Array(mut pair) => pair.pop()?,
            _ => return None,
        },
        Value::Map(mut streams) => streams.pop()?.1,
        _ => return None,
    };
    if let Value::Array(entries) = of_stream {
        Some(entries)
    } else {
        None
    }
}

/// Returns the id, the object and the payload of an entry.
fn parts(entry: Value) -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let Value::Array(pair) = entry else {
        return None;
    };
    let Ok([Value::BulkString(id), Value::Array(fields)]) = <[Value; 2]>::try_from(pair) else {
        return None;
    };
    match <[Value; 4]>::try_from(fields) {
        Ok(
            [
                Value::BulkString(_),
                Value::BulkString(object),
                Value::BulkString(_),
                Value::BulkString(payload),
            ],
        ) => Some((id, object, payload)),
        _ => None,
    }
}

impl Consumers for Readers {
    fn ready_at(&self) -> Instant {
        self.ready_at
    }

    async fn failed(&mut self) -> anyhow::Error {
        match self.reading.join_next().await {
            Some(Ok(error)) => error,
            _ => anyhow!("a reader of streams broke"),
        }
    }

    async fn is_committed(&mut self) -> anyhow::Result<bool> {
        let mut pipe = redis::pipe();
        for key in &*self.keys {
            pipe.cmd("XPENDING").arg(key).arg(GROUP);
        }
        let answers = send(&mut self.conn, &pipe, "XPENDING").await?;
        let none = |answer: &Value| matches!(answer, Value::Array(parts) if matches!(parts.first(), Some(Value::Int(0))));
        Ok(answers.iter().all(none))
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.reading.shutdown().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn objects_spread_over_all_partitions() {
        let mut counts = [0; super::PARTITIONS];
        for n in 0..16_000 {
            counts[super::partition(format!("work:{n}").as_bytes())] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}
