//! A worker process whose handler blocks its thread when the harness requests it.
//!
//! The harness starts itself with the word `blocking-worker`. The request is a file with the
//! duration in ms. The next delivery deletes the file and sleeps on its thread.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use seriatim::sink::{Batch, Context, Delivered, File, Sink};
use seriatim::worker::{EventLog, RetryPolicy, Shutdown, Worker};

use crate::workers::{LEASE, LOG_KEEP, RETRY};

/// First word of the command line of such a process.
pub(crate) const WORD: &str = "blocking-worker";
/// Limit for a standstill. Some requested blocks are longer, and the process loses its lease.
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
    // Only one of several concurrent deliveries takes the request.
    std::fs::remove_file(path).ok()?;
    Some(Duration::from_millis(ms))
}

/// Works until SIGTERM. Words: name, URL, output, slots, request file, whether to take over,
/// whether one thread runs everything.
pub(crate) fn main(words: &[String]) -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let [name, url, output, slots, request, takeover, single] = words else { anyhow::bail!("{WORD} needs seven words") };
    let mut runtime = match single.as_str() {
        "true" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let sink = Blocking { file: File::open(output)?, request: request.into() };
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
        ensure!(!matches!(stopped.reason, seriatim::worker::StopReason::Unreachable), "stopped without Redis");
        Ok(())
    })
}
