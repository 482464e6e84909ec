//! The keeper of a program: starts it, gives it batches, and starts it again.
//!
//! - `batch`: a delivery, and the batch that a program has
//! - `report`: the reports of a program on its events
//! - `settings`: the settings, and the origin of programs
//! - `subtask`: the subtasks that a program reports
//!
//! One task has all the state. Deliveries send it orders and wait for their results.

mod batch;
mod report;
mod settings;
mod subtask;

use std::collections::{HashMap, VecDeque};
use std::os::unix::process::parent_id;
use std::time::Duration;

use bytes::Bytes;
use seriatim::sink::Stop;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

pub(crate) use batch::{Call, End, Handed};
pub use settings::ParentEnd;
pub(crate) use settings::{Settings, Source};

use self::batch::Running;
use self::report::LineCount;
pub(crate) use self::subtask::Subtask;
use crate::LOG;
use crate::program::{Dead, Program, Received};
use crate::protocol::{self, Answer, Answered, Hello, Message};

/// The wait before a program is started again: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The time from a kill to the end of the program.
const KILLED_WITHIN: Duration = Duration::from_secs(5);
/// The wait between two looks at the unread lines of a program that could have a further batch.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The bytes of unread lines from which on a program gets no further batch.
const UNREAD_MAX: usize = 8 * 1024 * 1024;
/// The time from the end of a program's output to its end.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
/// The time from the end of a parent's output to its end, which takes some milliseconds, and the wait
/// between two looks at it.
const PARENT_ENDS_WITHIN: Duration = Duration::from_millis(100);
const PARENT_AGAIN: Duration = Duration::from_millis(2);

/// An order to a keeper.
pub(crate) enum Order {
    Deliver(Box<Call>),
    /// The delivery with this number was dropped.
    Dropped(u64),
    /// Redis has answered to the report of a subtask.
    Stored(Subtask),
    /// The worker ends.
    Close,
}

/// How a program ended.
enum Ended {
    /// The worker ends, and nothing waits for this program any more.
    Closed,
    /// The program has ended or was killed, for this reason. A parent may live on.
    Dead(String),
    /// The parent has closed the input, for this reason.
    ParentClosed(String),
    /// The program was killed, because it did not give up an event in time.
    Overdue(String, Instant),
    /// The program has said that it ends, and has no batch.
    Bye,
    /// The worker has given up all batches that the program had, so the program was killed.
    GivenUp,
    /// The program could not be started, or has not said hello.
    Unstarted(String),
}

/// The reason why a program is killed.
enum Broken {
    Protocol(String),
    Overdue(String, Instant),
}

/// The reason why no program runs.
enum Unstarted {
    Closed,
    Failed(String),
}

pub(crate) struct Keeper {
    settings: Settings,
    orders: mpsc::UnboundedReceiver<Order>,
    /// The sender of orders, for tasks of the keeper.
    own: mpsc::WeakUnboundedSender<Order>,
    /// Deliveries that no program has.
    waiting: VecDeque<Box<Call>>,
    /// The batches that the program has, by number.
    running: HashMap<u64, Running>,
    /// Lines that ask the program to give up events of dropped deliveries.
    cancels: Vec<Bytes>,
    /// The highest number of a batch that a program has got.
    highest: u64,
    /// The wait before the next start.
    again: Duration,
    is_closed: bool,
    /// Whether the program is ready, and the batches that it has, as last counted.
    counted: (bool, usize),
    lines: LineCount,
}

impl Keeper {
    pub(crate) fn new(
        settings: Settings,
        orders: mpsc::UnboundedReceiver<Order>,
        own: mpsc::WeakUnboundedSender<Order>,
    ) -> Self {
        Self {
            settings,
            orders,
            own,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            cancels: Vec::new(),
            highest: 0,
            again: AGAIN.0,
            is_closed: false,
            counted: (false, 0),
            lines: LineCount::new(),
        }
    }

    /// Keeps a program until the sink is closed. `first` is the program, which was just started.
    pub(crate) async fn keep(mut self, first: Program) {
        let mut started = Ok(first);
        loop {
            let begun = match started {
                Ok(program) => {
                    self.settings.counts.started();
                    self.begin(program).await
                }
                Err(error) => Err(Unstarted::Failed(error)),
            };
            let ended = match begun {
                Ok((program, hello)) => {
                    let ended = self.serve(program, &hello).await;
                    self.count(false);
                    ended
                }
                Err(Unstarted::Closed) => return,
                Err(Unstarted::Failed(error)) => {
                    self.unavailable(&error);
                    Ended::Unstarted(error)
                }
            };
            if let Source::Parent(end, parent) = &self.settings.source {
                match ended {
                    Ended::ParentClosed(why) => {
                        // The worker claims no more before it gets its events back.
                        end(ParentEnd::Closed(why.clone()));
                        if has_parent_ended(*parent).await {
                            self.crashed(&why, None);
                            self.until_closed().await;
                        } else {
                            end(ParentEnd::Broken(why));
                        }
                    }
                    Ended::Dead(why) | Ended::Overdue(why, _) | Ended::Unstarted(why) => {
                        end(ParentEnd::Broken(why));
                    }
                    Ended::Closed | Ended::Bye | Ended::GivenUp => {}
                }
                return;
            }
            match ended {
                Ended::Closed | Ended::ParentClosed(_) => return,
                Ended::Dead(why) => self.died(&why, None),
                Ended::Overdue(why, at) => self.died(&why, Some(at)),
                Ended::Bye | Ended::GivenUp | Ended::Unstarted(_) => {}
            }
            if !self.wait_for_start().await {
                return;
            }
            started = self.start();
        }
    }

    /// Starts a program again.
    fn start(&self) -> Result<Program, String> {
        let Settings { source, child, .. } = &self.settings;
        match source {
            Source::Command(command) => Program::start(command, *child)
                .map_err(|error| format!("cannot start {command}: {error}")),
            Source::Parent(..) => Err("there is only one parent".to_owned()),
        }
    }

    /// Waits for the program's hello.
    async fn begin(&mut self, mut program: Program) -> Result<(Program, Hello), Unstarted> {
        let Settings {
            child,
            timeout,
            cancel,
            hello,
            ..
        } = self.settings;
        program.send(protocol::hello(child, timeout, cancel));
        let deadline = Instant::now() + hello;
        loop {
            let failed = tokio::select! {
                biased;
                received = program.next() => match received {
                    Some(Ok(Message::Hello(hello))) => return Ok((program, hello)),
                    None if self.is_parent() => {
                        let error = "standard input ended without a hello";
                        return Err(Unstarted::Failed(error.to_owned()));
                    }
                    Some(Ok(_)) => "its first line is no hello".to_owned(),
                    Some(Err(error)) => error,
                    None => {
                        let Dead { status, .. } = self.end(program).await;
                        return Err(Unstarted::Failed(format!("the program ended without a hello ({status})")));
                    }
                },
                order = self.orders.recv() => {
                    self.take(order, None);
                    if self.is_closed {
                        self.end(program).await;
                        return Err(Unstarted::Closed);
                    }
                    continue;
                }
                () = sleep_until(deadline) => format!("it said no hello within {hello:?}"),
            };
            self.end(program).await;
            let error = match self.is_parent() {
                true => {
                    format!("the program at standard input and output broke the protocol: {failed}")
                }
                false => format!("the program was killed: {failed}"),
            };
            return Err(Unstarted::Failed(error));
        }
    }

    /// Gives batches to the program until it ends.
    async fn serve(&mut self, mut program: Program, hello: &Hello) -> Ended {
        let Hello {
            concurrency,
            client,
        } = hello;
        info!(target: LOG, child = self.settings.child, concurrency, client = %seriatim::escape::text(client), "the program is ready");
        let (mut is_leaving, mut full_since) = (false, None);
        let broken = loop {
            if self.is_closed {
                self.close(program).await;
                return Ended::Closed;
            }
            if self.has_given_up() && !self.is_parent() {
                info!(target: LOG, child = self.settings.child, "the worker has given up its events, so the program is killed");
                self.end(program).await;
                self.running.clear();
                return Ended::GivenUp;
            }
            if is_leaving && self.running.is_empty() && !self.is_parent() {
                program.close_input();
                let _ = timeout(self.settings.stop, program.ended()).await;
                self.end(program).await;
                return Ended::Bye;
            }
            for line in self.cancels.drain(..) {
                program.send(line);
            }
            let has_room = !is_leaving || self.is_parent();
            if has_room {
                self.hand_out(&program, *concurrency);
            }
            self.count(true);
            // A flood of lines delays neither a time limit nor an order: the select is not biased, and
            // limits that are over come first.
            let mut deadline = self.running.values().map(|running| running.deadline).min();
            let is_full = has_room
                && !self.waiting.is_empty()
                && self.running.len() < *concurrency
                && program.unread() >= UNREAD_MAX;
            if is_full {
                let soon = Instant::now() + LOOK_AGAIN;
                deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
            }
            if is_full && self.running.is_empty() {
                let since = *full_since.get_or_insert_with(Instant::now);
                if since.elapsed() > self.settings.timeout {
                    break Some(Broken::Protocol("it does not read its input".to_owned()));
                }
            } else {
                full_since = None;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now())
                && let Err(broken) = self.overdue(&program)
            {
                break Some(Broken::Overdue(broken, Instant::now()));
            }
            tokio::select! {
                received = program.next() => match received {
                    Some(Ok(Message::Bye)) if is_leaving => {
                        break Some(Broken::Protocol("it said bye twice".to_owned()));
                    }
                    Some(Ok(Message::Bye)) => {
                        is_leaving = true;
                        // The worker stops. Until then, the parent handles what is in hand.
                        if let Source::Parent(end, _) = &self.settings.source {
                            end(ParentEnd::Bye);
                        }
                    }
                    Some(received) => if let Err(broken) = self.receive(received, program.unread()) {
                        break Some(Broken::Protocol(broken));
                    },
                    // A parent that has said bye has no more to say once nothing is in hand.
                    None if is_leaving && self.is_parent() && self.running.is_empty() && self.waiting.is_empty() => {
                        self.end(program).await;
                        self.until_closed().await;
                        return Ended::Closed;
                    }
                    None => break None,
                },
                order = self.orders.recv() => self.take(order, Some(&program)),
                () = until(deadline) => {}
            }
        };
        // A program that has only closed its output is killed, too.
        let has_ended = broken.is_none()
            && !self.is_parent()
            && timeout(ENDS_WITHIN, program.ended()).await.is_ok();
        let Dead { status, received } = self.end(program).await;
        // The answers that a program has written before its end count, but no line behind a wrong one.
        if !matches!(broken, Some(Broken::Protocol(_))) {
            for received in received {
                if self.receive(received, 0).is_err() {
                    break;
                }
            }
        }
        match broken {
            Some(Broken::Overdue(why, _) | Broken::Protocol(why)) if self.is_parent() => {
                Ended::Dead(format!(
                    "the program at standard input and output broke the protocol: {why}"
                ))
            }
            Some(Broken::Overdue(why, at)) => {
                Ended::Overdue(format!("the program was killed: {why}"), at)
            }
            Some(Broken::Protocol(why)) => Ended::Dead(format!("the program was killed: {why}")),
            None if self.is_parent() => {
                let when = if is_leaving {
                    "before it had answered all events"
                } else {
                    "without `bye`"
                };
                Ended::ParentClosed(format!("the program has died: standard input ended {when}"))
            }
            None if has_ended => Ended::Dead(format!("the program ended ({status})")),
            None => Ended::Dead("the program was killed: it closed its standard output".to_owned()),
        }
    }

    /// Kills the program, and waits until it is dead. If it cannot be killed, e.g. because it has taken
    /// the rights of another user, the sink is unavailable: another program could handle the same
    /// events beside it.
    async fn end(&mut self, program: Program) -> Dead {
        let mut ending = std::pin::pin!(program.end());
        let mut late = Instant::now() + KILLED_WITHIN;
        loop {
            tokio::select! {
                biased;
                dead = &mut ending => return dead,
                order = self.orders.recv(), if !self.is_closed => self.take(order, None),
                () = sleep_until(late) => {
                    self.unavailable("the program was killed, but it does not end");
                    late = Instant::now() + KILLED_WITHIN;
                    if self.is_closed {
                        return Dead { status: "alive".to_owned(), received: Vec::new() };
                    }
                }
            }
        }
    }

    /// Waits until the worker has ended. Its deliveries find no program.
    async fn until_closed(&mut self) {
        while !self.is_closed {
            self.give_back("the program has ended");
            let order = self.orders.recv().await;
            self.take(order, None);
        }
    }

    /// Asks the program to end, and kills it if it does not.
    async fn close(&mut self, mut program: Program) {
        // Other workers may send its events at any moment.
        if self.running.is_empty() {
            program.send(protocol::stop(self.settings.stop));
            program.close_input();
            let _ = timeout(self.settings.stop, program.ended()).await;
        }
        self.end(program).await;
    }

    /// Counts the program and its batches.
    fn count(&mut self, is_ready: bool) {
        let batches = if is_ready { self.running.len() } else { 0 };
        let before = std::mem::replace(&mut self.counted, (is_ready, batches));
        self.settings.counts.change(before, self.counted);
    }

    fn is_parent(&self) -> bool {
        matches!(self.settings.source, Source::Parent(..))
    }

    /// Returns whether all deliveries of the program's batches were dropped. This happens if the lease
    /// is lost, or the grace of a stop is over. Then other workers may send these events at any moment,
    /// so the program must not go on.
    fn has_given_up(&self) -> bool {
        let mut running = self.running.values();
        !self.running.is_empty() && running.all(|running| running.call.is_none())
    }

    /// Takes an order. `program`: the program that runs, if any.
    fn take(&mut self, order: Option<Order>, program: Option<&Program>) {
        match order {
            Some(Order::Deliver(call)) => self.waiting.push_back(call),
            Some(Order::Dropped(number)) => {
                self.waiting.retain(|call| call.number != number);
                if let Some(running) = self.running.get_mut(&number) {
                    running.call = None;
                    if let Some(program) = program {
                        running.cancel(program, number, self.settings.cancel);
                    }
                }
            }
            Some(Order::Stored(subtask)) => self.stored(&subtask, program),
            Some(Order::Close) | None => self.is_closed = true,
        }
    }

    /// Gives the program the batches that it may have now.
    fn hand_out(&mut self, program: &Program, concurrency: usize) {
        // The deliveries of a lost lease are dropped one after another.
        self.waiting
            .retain(|call| !call.answer.is_closed() && !call.cx.cancelled.is_cancelled());
        while self.running.len() < concurrency && program.unread() < UNREAD_MAX {
            let has_suspect = self.running.values().any(|running| running.is_suspect);
            // An object waits while the program still has a batch of it.
            let is_free = |call: &Call| {
                !self
                    .running
                    .values()
                    .any(|running| running.object == call.object)
            };
            let Some(at) = self.waiting.iter().position(|call| is_free(call)) else {
                return;
            };
            if has_suspect || self.waiting[at].is_suspect() && !self.running.is_empty() {
                return;
            }
            let Some(call) = self.waiting.remove(at) else {
                return;
            };
            // The process may have stood still while the batch waited for the program.
            if call.cx.may_be_lost() {
                call.end(0, Some(Stop::not_begun()), Vec::new());
                continue;
            }
            let ids: Vec<u64> = call.events.iter().map(|event| event.id).collect();
            let first = ids.first().copied().unwrap_or_default();
            call.cx.begins(first);
            let done = call.stored.done(first);
            program.send(protocol::batch(call.number, &call.cx, &call.events, done));
            let number = call.number;
            let running = Running {
                object: call.object.clone(),
                is_suspect: call.is_suspect(),
                ids,
                handler: None,
                is_storing: false,
                stores: Vec::new(),
                done: 0,
                deadline: Instant::now() + self.settings.timeout,
                is_cancelled: false,
                call: Some(call),
            };
            self.highest = self.highest.max(number);
            self.running.insert(number, running);
        }
    }

    /// Processes a line of the program. `unread`: the bytes that the program has not read.
    ///
    /// # Errors
    /// If the line breaks the protocol.
    fn receive(&mut self, received: Received, unread: usize) -> Result<(), String> {
        let Answer { batch, id, result } = match received? {
            Message::Answer(answer) => answer,
            Message::Once(once) => return self.store(once, unread),
            Message::Report(report) => return self.report(report),
            Message::Hello(_) => return Err("it said hello twice".to_owned()),
            Message::Bye => return Ok(()),
        };
        let is_cancelled = matches!(result, Answered::Cancelled);
        let Some(running) = self.running.get_mut(&batch) else {
            // The question to give up an event and its result may have crossed.
            if is_cancelled && batch <= self.highest {
                return Ok(());
            }
            return Err(format!("it answered batch {batch}, which it does not have"));
        };
        let (over, left) = running.ids.split_at(running.done);
        if is_cancelled && over.contains(&id) {
            return Ok(());
        }
        let Some(at) = left.iter().position(|one| *one == id) else {
            return Err(format!(
                "it answered event {id}, which is not open in batch {batch}"
            ));
        };
        // Progress of the program shows that it works.
        self.again = AGAIN.0;
        let stop = match result {
            Answered::Ok => {
                if let Some(next) = running.advance(at + 1) {
                    if let Some(call) = &running.call {
                        call.cx.begins(next);
                        running.is_cancelled = false;
                        running.deadline = Instant::now() + self.settings.timeout;
                    } else {
                        // The delivery was dropped, so all its events are given up.
                        self.cancels.push(protocol::cancel(batch, next));
                    }
                    return Ok(());
                }
                None
            }
            Answered::Effects(_) | Answered::Wrong(_) => {
                if at > 0 {
                    running.advance(at);
                }
                if let Some(running) = self.running.remove(&batch) {
                    match result {
                        Answered::Effects(effects) => running.over_with(effects),
                        Answered::Wrong(error) => running.over(Some(Stop::transient(error))),
                        _ => {}
                    }
                }
                return Ok(());
            }
            _ if at > 0 => {
                return Err(format!(
                    "it answered event {id} of batch {batch} before event {}",
                    left[0]
                ));
            }
            // An event with a subtask is read again only if its object is held.
            Answered::Stop(Stop::Unavailable { error })
                if running.done > 0 && running.has_stored() =>
            {
                Some(Stop::Postponed {
                    reason: error,
                    after: Duration::ZERO,
                })
            }
            Answered::Stop(stop) => Some(stop),
            Answered::Cancelled if running.is_cancelled => {
                let limit = self.settings.timeout;
                Some(Stop::transient(format!("no result within {limit:?}")))
            }
            Answered::Cancelled => Some(Stop::transient("the program has given it up")),
        };
        if let Some(running) = self.running.remove(&batch) {
            running.over(stop);
        }
        Ok(())
    }

    /// Asks the program to give up events that take too long.
    ///
    /// # Errors
    /// If the program was asked before, and did not answer in time.
    fn overdue(&mut self, program: &Program) -> Result<(), String> {
        let now = Instant::now();
        for (number, running) in &mut self.running {
            if running.deadline > now {
                continue;
            }
            if running.is_cancelled {
                let (id, within) = (running.ids[running.done], self.settings.cancel);
                return Err(format!("it did not give up event {id} within {within:?}"));
            }
            running.cancel(program, *number, self.settings.cancel);
        }
        Ok(())
    }

    /// Logs the end of a program that is started again, and counts the crashes.
    fn died(&mut self, why: &str, at: Option<Instant>) {
        let child = self.settings.child;
        warn!(target: LOG, child, batches = self.running.len(), again_in = ?self.again, "{}", seriatim::escape::text(why));
        self.crashed(why, at);
    }

    /// Counts a crash for each event that the dead program had. If it was killed because of events
    /// without a result in time, only the events count a crash whose time was over `at` that moment.
    fn crashed(&mut self, why: &str, at: Option<Instant>) {
        self.cancels.clear();
        if !self.running.is_empty() {
            self.settings.counts.crashed();
        }
        for (_, running) in self.running.drain() {
            let counts = at.is_none_or(|at| running.is_cancelled && running.deadline <= at);
            running.over(Some(if counts {
                Stop::crashed(why)
            } else {
                Stop::Postponed {
                    reason: why.to_owned(),
                    after: Duration::ZERO,
                }
            }));
        }
    }

    /// Gives back all deliveries, because the program cannot be started.
    fn unavailable(&mut self, error: &str) {
        warn!(target: LOG, child = self.settings.child, again_in = ?self.again, "{}", seriatim::escape::text(error));
        self.give_back(error);
    }

    fn give_back(&mut self, error: &str) {
        for call in self.waiting.drain(..) {
            call.end(0, Some(Stop::unavailable(error)), Vec::new());
        }
    }

    /// Waits until the program may be started again. Returns false if the sink was closed.
    async fn wait_for_start(&mut self) -> bool {
        let at = Instant::now() + self.again;
        self.again = (self.again * 2).min(AGAIN.1);
        loop {
            if self.is_closed {
                return false;
            }
            tokio::select! {
                biased;
                order = self.orders.recv() => self.take(order, None),
                () = sleep_until(at) => return true,
            }
        }
    }
}

/// Returns whether `parent`, which was the parent of this process at its start, has ended. It closes its
/// end of the pipe shortly before. The end of a program that has started this process through a shell is
/// not seen.
async fn has_parent_ended(parent: u32) -> bool {
    let late = Instant::now() + PARENT_ENDS_WITHIN;
    while parent_id() == parent {
        if Instant::now() >= late {
            return false;
        }
        sleep(PARENT_AGAIN).await;
    }
    true
}

/// Waits until this time; for ever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
