//! The supervision of a worker: answers probes and scrapers, and sends notices to systemd.
//!
//! A separate thread watches the worker's loop. This thread answers even if a handler blocks all
//! threads of the worker's runtime.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use seriatim::metrics::WorkerMetrics;
use seriatim::metrics::prometheus_client::registry::Registry;
use seriatim::worker::Vitals;
use seriatim_console::exit::{self, Failure};
use seriatim_console::notify::Notices;
use seriatim_console::stop::stop_signals;
use seriatim_exec::Exec;
use seriatim_web::listen::address::Address;
use seriatim_web::listen::{Listening, metrics, probes};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::error;

use super::LOG;
use super::programs::ProgramMetrics;

/// The most open connections of probes and scrapers.
const CONNECTIONS_MAX: u32 = 256;
/// The interval between two looks at the worker's loop.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The supervision before it has begun, with its open listener, if any. The listener answers only
/// after [`Self::watch`].
pub(super) struct Supervised {
    runtime: Apart,
    listening: Option<Listening>,
    stall_max: Duration,
}

/// The runtime of the separate thread. It is shut down in the background, so that a task of another
/// runtime may also drop it.
struct Apart(Option<Runtime>);

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Supervised {
    /// Opens the listener. Returns `None` if there is no address and no systemd that waits for
    /// notices.
    pub(super) fn open(
        address: Option<&Address>,
        stall_max: Duration,
    ) -> anyhow::Result<Option<Self>> {
        if address.is_none() && !Notices::are_wanted() {
            return Ok(None);
        }
        let runtime = Apart(Some(Builder::new_current_thread().enable_all().build()?));
        let Some(address) = address else {
            return Ok(Some(Self {
                listening: None,
                runtime,
                stall_max,
            }));
        };
        // The listener is opened in a new thread, because `block_on` would panic in this thread,
        // which already has a runtime.
        let open = || {
            runtime
                .0
                .as_ref()
                .map(|runtime| runtime.block_on(Listening::for_probes(address, CONNECTIONS_MAX)))
        };
        let opened = thread::scope(|scope| scope.spawn(open).join());
        let listening = match opened {
            Ok(listening) => listening
                .transpose()
                .map_err(|error| Failure::with(exit::of(&error), format!("--http: {error}")))?,
            Err(_) => anyhow::bail!("--http: its thread has panicked"),
        };
        Ok(Some(Self {
            listening,
            runtime,
            stall_max,
        }))
    }

    /// Starts the thread that answers probes and sends notices. `exec`: the sink, if it has programs. The thread stops when the returned
    /// guard is dropped.
    pub(super) fn watch(
        self,
        vitals: Vitals,
        exec: Option<Exec>,
        namespace: Option<&str>,
    ) -> anyhow::Result<DropGuard> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let Self {
            runtime,
            listening,
            stall_max,
        } = self;
        let metrics = WorkerMetrics::new(vitals.clone());
        let registry = metrics::registry(namespace, |registry| {
            registry.register_collector(Box::new(metrics));
            if let Some(exec) = exec {
                registry.register_collector(Box::new(ProgramMetrics(exec)));
            }
        });
        thread::Builder::new()
            .name("seriatim-http".to_owned())
            .spawn(move || {
                let Some(runtime) = &runtime.0 else { return };
                runtime.block_on(async {
                    let state = Arc::new(State {
                        vitals,
                        stall_max,
                        seen: Mutex::default(),
                        registry,
                    });
                    let serving = async {
                        match listening {
                            Some(listening) => listening.serve(routes(&state), stop.clone()).await,
                            None => {
                                stop.cancelled().await;
                                Ok(())
                            }
                        }
                    };
                    tokio::select! {
                        served = serving => {
                            if let Err(error) = served {
                                error!(target: LOG, %error, "the probes are not answered any more");
                            }
                        }
                        () = state.look() => {}
                    }
                });
            })?;
        Ok(guard)
    }
}

fn routes(state: &Arc<State>) -> Router {
    let (healthy, ready, scraped) = (state.clone(), state.clone(), state.clone());
    Router::new()
        .route(
            metrics::METRICS,
            get(async move || metrics::answer(&scraped.registry)),
        )
        .route(
            probes::HEALTH,
            get(async move || probes::answer(healthy.healthy())),
        )
        .route(
            probes::READY,
            get(async move || probes::answer(ready.ready())),
        )
}

struct State {
    vitals: Vitals,
    stall_max: Duration,
    seen: Mutex<Observed>,
    registry: Registry,
}

/// The results of the looks so far.
#[derive(Default)]
struct Observed {
    turns: u64,
    stood_still: Duration,
    is_stopping: bool,
}

impl Observed {
    /// Records the number of turns of the worker's loop, and the time since the last look. A long
    /// time counts only as two intervals, because the whole process was probably paused.
    fn look(&mut self, turns: u64, passed: Duration) {
        self.stood_still = if turns == self.turns {
            self.stood_still + passed.min(2 * LOOK_EVERY)
        } else {
            Duration::ZERO
        };
        self.turns = turns;
    }
}

impl State {
    /// Looks at the worker's loop again and again, and waits for stop signals. The worker also
    /// waits for these signals, but its threads may be blocked.
    async fn look(&self) {
        let Ok(mut stopping) = stop_signals() else {
            return std::future::pending().await;
        };
        let mut notices = Notices::begin();
        let mut last = Instant::now();
        loop {
            let is_stopping = tokio::select! {
                () = stopping.next() => true,
                () = sleep(LOOK_EVERY) => false,
            };
            let (is_stopping, turns_now) = {
                let mut seen = self.seen();
                seen.is_stopping |= is_stopping;
                seen.look(self.vitals.turns(), last.elapsed());
                (seen.is_stopping, seen.stood_still.is_zero())
            };
            last = Instant::now();
            notices.tell(self.vitals.is_attached(), is_stopping);
            if turns_now {
                notices.feed();
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Observed> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn healthy(&self) -> Result<(), String> {
        let stood_still = self.seen().stood_still;
        match stood_still < self.stall_max {
            true => Ok(()),
            false => Err(format!(
                "the worker's loop has stood still for {} s",
                stood_still.as_secs()
            )),
        }
    }

    fn ready(&self) -> Result<(), &'static str> {
        match () {
            () if self.seen().is_stopping => Err("the worker stops"),
            () if !self.vitals.is_attached() => Err("the worker does not have its name"),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_seen_and_a_paused_process_is_not() {
        let mut seen = Observed::default();
        for turns in 1..10 {
            seen.look(turns, LOOK_EVERY);
            assert_eq!(seen.stood_still, Duration::ZERO);
        }
        seen.look(9, Duration::from_secs(3600));
        assert_eq!(seen.stood_still, 2 * LOOK_EVERY);
        for _ in 0..10 {
            seen.look(9, LOOK_EVERY);
        }
        assert_eq!(seen.stood_still, 12 * LOOK_EVERY);
        seen.look(10, LOOK_EVERY);
        assert_eq!(seen.stood_still, Duration::ZERO);
    }
}
