//! The sink.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, IsTerminal as _};
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use seriatim::async_trait;
use seriatim::handlers::Stored;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::command::Command;
use crate::figures::{Counts, Figures};
use crate::keeper::{Call, End, Handed, Keeper, Order, ParentEnd, Settings, Source};
use crate::program::Program;

/// The settings of the sink.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The number of programs: 1 to 64, by default 1. All batches of an object go to the same one.
    pub children: usize,
    /// The longest time from the beginning of an event to its result: 10 ms to 24 h, by default 5
    /// min. Then the program is asked to give the event up.
    pub timeout: Duration,
    /// The longest time from this question to the result: 10 ms to 1 h, by default 5 s. Then the
    /// program is killed.
    pub cancel: Duration,
    /// The longest time from the start of a program to its first line: 10 ms to 1 h, by default 30 s.
    pub hello: Duration,
    /// The longest time from the end of the worker's work to the end of a program: up to 1 h, by
    /// default 5 s. Then the program is killed.
    pub stop: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            children: 1,
            timeout: Duration::from_secs(300),
            cancel: Duration::from_secs(5),
            hello: Duration::from_secs(30),
            stop: Duration::from_secs(5),
        }
    }
}

/// The reason why the sink cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A setting is out of its range.
    #[error("{setting} is {value}; {range}")]
    Range {
        /// The name of the setting.
        setting: &'static str,
        /// The value.
        value: String,
        /// The range.
        range: &'static str,
    },
    /// The program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program, without its arguments.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Standard input or standard output is a terminal.
    #[error(
        "standard input and output must be pipes of a program that speaks the handler protocol, and one of them is a terminal"
    )]
    Terminal,
}

impl Options {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`ExecError::Range`].
    pub fn check(&self) -> Result<(), ExecError> {
        const SHORTEST: Duration = Duration::from_millis(10);
        const HOUR: Duration = Duration::from_secs(3600);
        let within = |time: Duration, most: Duration| (SHORTEST..=most).contains(&time);
        let checks = [
            (
                "children",
                self.children.to_string(),
                (1..=64).contains(&self.children),
                "it is 1 to 64",
            ),
            (
                "timeout",
                format!("{:?}", self.timeout),
                within(self.timeout, 24 * HOUR),
                "it is 10ms to 24h",
            ),
            (
                "cancel",
                format!("{:?}", self.cancel),
                within(self.cancel, HOUR),
                "it is 10ms to 1h",
            ),
            (
                "hello",
                format!("{:?}", self.hello),
                within(self.hello, HOUR),
                "it is 10ms to 1h",
            ),
            (
                "stop",
                format!("{:?}", self.stop),
                self.stop <= HOUR,
                "it is at most 1h",
            ),
        ];
        let wrong = checks.into_iter().find(|(_, _, is_right, _)| !is_right);
        match wrong {
            None => Ok(()),
            Some((setting, value, _, range)) => Err(ExecError::Range {
                setting,
                value,
                range,
            }),
        }
    }
}

/// Hands the events to programs over their standard input, and reads results from their standard
/// output. A clone is the same sink.
#[derive(Clone)]
pub struct Exec(Arc<Inner>);

struct Inner {
    name: String,
    /// The orders of each program.
    children: Vec<mpsc::UnboundedSender<Order>>,
    keepers: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
    counts: Arc<Counts>,
}

impl Exec {
    /// Starts the programs. Must be called in a runtime of tokio.
    ///
    /// # Errors
    /// [`ExecError::Range`] if a setting is out of its range. [`ExecError::Start`] if the program
    /// cannot be started, e.g. because there is none at this path.
    pub fn open(command: Command, options: Options) -> Result<Self, ExecError> {
        options.check()?;
        let name = format!("exec:{command}");
        let mut programs = Vec::new();
        for child in 0..options.children {
            let first = Program::start(&command, child).map_err(|source| ExecError::Start {
                program: command.program.clone(),
                source,
            })?;
            programs.push((first, Source::Command(command.clone())));
        }
        Ok(Self::over(name, programs, &options))
    }

    /// Hands the events to the parent of this process, over the standard input and output of this
    /// process. So a program can start a worker for itself. `ends` gets the end of the parent. Must be
    /// called in a runtime of tokio, at most once, and nothing else may use these streams.
    ///
    /// # Errors
    /// [`ExecError::Range`] if a setting is out of its range. [`ExecError::Terminal`] if one of the
    /// streams is a terminal.
    pub fn parent(
        options: Options,
        ends: impl Fn(ParentEnd) + Send + Sync + 'static,
    ) -> Result<Self, ExecError> {
        options.check()?;
        if io::stdin().is_terminal() || io::stdout().is_terminal() {
            return Err(ExecError::Terminal);
        }
        let source = Source::Parent(Box::new(ends), parent_id());
        let programs = vec![(Program::parent(), source)];
        Ok(Self::over("stdio".to_owned(), programs, &options))
    }

    fn over(name: String, programs: Vec<(Program, Source)>, options: &Options) -> Self {
        let (mut children, mut keepers, counts) = (Vec::new(), Vec::new(), Arc::default());
        for (child, (first, source)) in programs.into_iter().enumerate() {
            let settings = Settings {
                source,
                child,
                timeout: options.timeout,
                cancel: options.cancel,
                hello: options.hello,
                stop: options.stop,
                counts: Arc::clone(&counts),
            };
            let (orders, taken) = mpsc::unbounded_channel();
            let keeper = Keeper::new(settings, taken, orders.downgrade());
            keepers.push(tokio::spawn(keeper.keep(first)));
            children.push(orders);
        }
        Self(Arc::new(Inner {
            name,
            children,
            keepers: Mutex::new(keepers),
            next: AtomicU64::new(1),
            counts,
        }))
    }

    /// Returns the figures of the programs.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.counts.read(self.0.children.len())
    }

    /// Waits until a program has said hello. A worker that should claim nothing before, begins after this
    /// call.
    pub async fn ready(&self) {
        self.0.counts.until_ready().await;
    }

    /// Asks the programs to end, and kills those that do not end in time. Call it after the worker
    /// has ended. Without this call the same begins when the last clone is dropped, as long as the runtime
    /// lives.
    pub async fn close(&self) {
        for orders in &self.0.children {
            let _ = orders.send(Order::Close);
        }
        let keepers = std::mem::take(
            &mut *self
                .0
                .keepers
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for keeper in keepers {
            let _ = keeper.await;
        }
    }
}

/// Tells the keeper that a delivery was dropped before it had a result.
struct Guard<'a> {
    orders: &'a mpsc::UnboundedSender<Order>,
    number: u64,
    is_over: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.orders.send(Order::Dropped(self.number));
        }
    }
}

#[async_trait]
impl Sink for Exec {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        if batch.is_empty() {
            return Delivered::all();
        }
        let stored = match Stored::of(batch, cx).await {
            Ok(stored) if stored.over() > 0 => return Delivered::so_far(stored.over()),
            Ok(stored) => stored,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let inner = &*self.0;
        let mut hasher = DefaultHasher::new();
        batch.object().as_str().hash(&mut hasher);
        let child = usize::try_from(hasher.finish() % inner.children.len() as u64).unwrap_or(0);
        let orders = &inner.children[child];
        let number = inner.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let together = stored.together(batch.len());
        let call = Call {
            number,
            object: batch.object().clone(),
            events: batch.events().take(together).collect(),
            events_of_batch: batch.len(),
            stored,
            cx: cx.clone(),
            answer,
        };
        let mut guard = Guard {
            orders,
            number,
            is_over: orders.send(Order::Deliver(Box::new(call))).is_err(),
        };
        let handed = answered.await;
        guard.is_over = true;
        let Ok(Handed { stores, end }) = handed else {
            return Delivered::stopped(0, Stop::unavailable("the sink is closed"));
        };
        for store in stores {
            let _ = store.await;
        }
        match end {
            End::Over(delivered) => delivered,
            // The program has no event of the batch any more.
            End::Effects {
                before,
                handler,
                effects,
            } => match handler.succeed(&effects).await {
                Ok(()) => Delivered::so_far(before + 1),
                Err(stop) => Delivered::stopped(before, stop),
            },
        }
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}
