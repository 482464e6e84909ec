//! The path, end to end.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Shutdown, Worker};

#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<(String, u64, u64, String)>>>);

#[async_trait]
impl Sink for Record {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let mut seen = self.0.lock().expect("no panic");
        for e in batch.events() {
            seen.push((e.object.to_string(), e.id, e.prev, String::from_utf8_lossy(&e.payload).into_owned()));
        }
        Delivered::all()
    }
}

#[tokio::test]
async fn events_come_out_in_order_with_ids_and_prevs() {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::stderr).try_init();
    let redis = support::Redis::start();
    let keys = redis.keys().clone();
    let mut conn = redis.connect().await;
    for n in 0..300 {
        let object = format!("work:{}", n % 7);
        let _: () = redis::pipe()
            .atomic()
            .cmd("LPUSH")
            .arg(keys.events(&object))
            .arg(n)
            .cmd("LPUSH")
            .arg(keys.objects_with_events())
            .arg(&object)
            .query_async(&mut conn)
            .await
            .expect("emit");
    }
    let sink = Record::default();
    let shutdown = Shutdown::new();
    let worker = Worker::builder(redis.url()).keys(keys.clone()).name("w").sink(sink.clone()).build().expect("valid");
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(stop).await });
    assert!(!running.is_finished(), "{:?}", running.await);
    support::until("all is delivered", Duration::from_secs(10), async || {
        (sink.0.lock().expect("no panic").len() == 300).then_some(())
    })
    .await;
    shutdown.stop();
    println!("{:?}", running.await.expect("no panic").expect("graceful"));
    let seen = sink.0.lock().expect("no panic").clone();
    for object in 0..7 {
        let name = format!("work:{object}");
        let mut last = 0;
        let mut next = object;
        for (_, id, prev, payload) in seen.iter().filter(|s| s.0 == name) {
            assert_eq!(*prev, last);
            assert!(id > prev);
            assert_eq!(payload, &next.to_string());
            last = *id;
            next += 7;
        }
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut conn).await.expect("keys");
    println!("{left:?}");
}
