//! A worker process for the scene. It is the test program itself, configured by environment
//! variables.

use std::time::Duration;

use bytes::Bytes;
use seriatim::async_trait;
use seriatim::keys::Keys;
use seriatim::sink::{Batch, Context, Delivered, File, Sink, Stop};
use seriatim::worker::{Shutdown, Worker, WorkerConfig};

/// The exit code after a requested stop.
pub const FINISHED: i32 = 0;
/// The exit code after an error of the worker. The error is in its log.
pub const FAILED: i32 = 3;

/// A sink that writes events to a file. Some events contain an instruction, which the sink follows
/// instead.
struct Obedient {
    file: File,
    stuck: bool,
}

#[async_trait]
impl Sink for Obedient {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        for (at, event) in batch.events().enumerate() {
            let text = String::from_utf8_lossy(&event.payload).into_owned();
            let stop = match text.rsplit(' ').next().unwrap_or_default() {
                "retry\"" if at > 0 || cx.attempts == 0 => Stop::transient("not yet"),
                "part\"" if at > 0 => Stop::unavailable("a pause"),
                "reject\"" => Stop::rejected("never"),
                "stuck\"" if self.stuck => {
                    let _ = self.send(batch, at, cx).await;
                    std::future::pending().await
                }
                _ => continue,
            };
            return match self.send(batch, at, cx).await {
                sent if sent.stop().is_some() => sent,
                _ => Delivered::stopped(at, stop),
            };
        }
        self.send(batch, batch.len(), cx).await
    }
}

impl Obedient {
    /// Writes the first `count` events of the batch.
    async fn send(&self, batch: &Batch, count: usize, cx: &Context) -> Delivered {
        let Some(first) = batch.events().next().filter(|_| count > 0) else {
            return Delivered::all();
        };
        let payloads: Vec<Bytes> = batch
            .events()
            .take(count)
            .map(|event| event.payload)
            .collect();
        self.file
            .deliver(
                &Batch::new(batch.object().clone(), first.id, first.prev, payloads),
                cx,
            )
            .await
    }
}

/// Runs the worker until SIGTERM if `SERIATIM_CHILD` is set. Otherwise returns at once.
pub fn run() {
    let Ok(variable) = std::env::var("SERIATIM_CHILD") else {
        return;
    };
    let variable: Vec<&str> = variable.split('|').collect();
    let [url, namespace, name, file] = variable[..] else {
        panic!("SERIATIM_CHILD: url|namespace|name|file")
    };
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let code = runtime.block_on(async {
        let ms = Duration::from_millis;
        let mut config = WorkerConfig::default();
        config.name = name.to_owned();
        config.keys = Keys::with_namespace(namespace).expect("a namespace");
        config.concurrency = 3;
        config.batch = 3;
        config.lease = ms(500);
        config.block = ms(50);
        config.sweep = ms(50);
        config.grace = ms(100);
        // A long timeout, so that only faults lose replies, and a busy machine does not.
        config.response_timeout = Duration::from_secs(20);
        config.retry = "exponential:5ms..50ms".parse().expect("a policy");
        config.probe_max = ms(100);
        let sink = Obedient {
            file: File::open(file).expect("a file"),
            stuck: name == "first",
        };
        let worker = Worker::builder(url)
            .config(config)
            .sink(sink)
            .build()
            .expect("valid settings");
        let shutdown = Shutdown::new();
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .expect("a handler");
        let stop = shutdown.clone();
        tokio::spawn(async move {
            terminate.recv().await;
            stop.stop();
        });
        match worker.run(shutdown).await {
            Ok(stopped) => {
                eprintln!("ended: {stopped:?}");
                FINISHED
            }
            Err(error) => {
                eprintln!("ended: {error:?}");
                FAILED
            }
        }
    });
    std::process::exit(code)
}
