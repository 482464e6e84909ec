//! A worker process whose sink blocks its thread when the harness requests this.
//!
//! The harness starts itself again as this process, with the word `blocking-worker`. To request a
//! block, the harness writes a file with the duration in ms. The next delivery of this process
//! deletes the file, and blocks its thread for this time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use seriatim::sink::{Batch, Context, Delivered, File, Sink};
use seriatim::worker::{EventLog, RetryPolicy, Shutdown, Worker};

use crate::workers::{LEASE, LOG_KEEP, RETRY};

/// First argument of the command line of the blocking worker process.
pub(crate) const WORD: &str = "blocking-worker";
/// Setting `stall_max` of the blocking worker. If a requested block is longer, the process loses
/// its lease.
const STALL_MAX: Duration = Duration::from_secs(2);

struct Blocking {
    file: File,
    request: PathBuf,
}

#[seriatim::async_trait]
impl Sink for Blocking {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        if let Some(time) = take_request(&self.request) {
            std::thread::sleep(time);
        }
        self.file.deliver(batch, cx).await
    }
}

fn take_request(path: &Path) -> Option<Duration> {
    let ms = std::fs::read_to_string(path).ok()?.parse().ok()?;
    // Of several concurrent deliveries, only the one that deletes the file blocks its thread.
    std::fs::remove_file(path).ok()?;
    Some(Duration::from_millis(ms))
}

/// Runs the worker until SIGTERM. `words` are: name, URL, output, number of slots, request file,
/// whether to take over the name, whether one thread runs everything.
pub(crate) fn main(words: &[String]) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let [name, url, output, slots, request, takeover, single] = words else {
        anyhow::bail!("{WORD} needs seven words")
    };
    let mut runtime = match single.as_str() {
        "true" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sink = Blocking {
            file: File::open(output)?,
            request: request.into(),
        };
        let mut log = EventLog::default();
        log.keep = LOG_KEEP;
        let worker = Worker::builder(url)
            .name(name)
            .concurrency(slots.parse().context("slots")?)
            .batch(16)
            .lease(LEASE)
            .stall_max(STALL_MAX)
            .grace(Duration::from_secs(2))
            .retry(RETRY.parse::<RetryPolicy>()?)
            .event_log(log)
            .takeover(takeover == "true")
            .sink(sink);
        let stopped = worker.build()?.run(Shutdown::on_signals()?).await?;
        ensure!(
            !matches!(stopped.reason, seriatim::worker::StopReason::Unreachable),
            "stopped without Redis"
        );
        Ok(())
    })
}
