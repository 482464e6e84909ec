//! Writes the history of a run, which `seriatim verify --history` judges later. All its times are
//! from one clock.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use seriatim::control::Control;
use seriatim::control::dead::PER_CALL_MAX;

use crate::receiver::name_in;

/// The file of the history, and its clock. No two times of this clock are equal.
pub(crate) struct History {
    began: Instant,
    last: AtomicU64,
    file: Mutex<BufWriter<File>>,
    /// The times of the calls of all emits, by their numbers.
    invoked: Mutex<Vec<u64>>,
    /// Whether Redis' clock may be wrong at present. Producers then make no schedules, because a
    /// schedule could be due only in an hour.
    pub(crate) is_clock_wrong: AtomicBool,
}

impl History {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = Mutex::new(BufWriter::new(File::create(path)?));
        Ok(Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
            file,
            invoked: Mutex::default(),
            is_clock_wrong: AtomicBool::new(false),
        })
    }

    /// Returns the nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        let now = self.began.elapsed().as_nanos() as u64;
        let last = self.last.fetch_max(now, Ordering::SeqCst);
        if now > last {
            now
        } else {
            self.last.fetch_add(1, Ordering::SeqCst) + 1
        }
    }

    fn write(&self, line: &Value) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{line}").expect("the history can be written");
    }

    pub(crate) fn invoke(&self, emit: &str, object: &str, events: &[String]) {
        let t = self.now();
        self.note_call(emit, t);
        self.write(
            &json!({"op": "invoke", "t": t, "emit": emit, "object": object, "events": events}),
        );
    }

    fn note_call(&self, emit: &str, t: u64) {
        let mut invoked = self.invoked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(emit) = emit.parse::<usize>() {
            let len = invoked.len().max(emit + 1);
            invoked.resize(len, u64::MAX);
            invoked[emit] = t;
        }
    }

    /// Returns the time of the call that has emitted the event with this name, or the event whose
    /// handlers have emitted it.
    pub(crate) fn called_at(&self, event: &str) -> Option<u64> {
        let emit: usize = event.split('.').next()?.parse().ok()?;
        let invoked = self.invoked.lock().unwrap_or_else(PoisonError::into_inner);
        invoked.get(emit).copied()
    }

    /// Records the call for a schedule that is due `after` this time. The due time counts from
    /// Redis' time, which the call reads later than now, rounded down to ms. So the recorded due
    /// time is 1 ms earlier.
    pub(crate) fn invoke_later(
        &self,
        emit: &str,
        object: &str,
        events: &[String],
        after: Duration,
    ) {
        let t = self.now();
        self.note_call(emit, t);
        let due = t + (after.as_nanos() as u64).saturating_sub(1_000_000);
        self.write(&json!({"op": "invoke", "t": t, "emit": emit, "object": object, "events": events, "due": due}));
    }

    /// Records that a schedule is stored, with its due time by Redis' clock.
    pub(crate) fn scheduled(&self, emit: &str, due_ms: u64) {
        self.write(&json!({"op": "ok", "t": self.now(), "emit": emit, "due_ms": due_ms}));
    }

    /// Records that Redis' clock is about to be set ahead.
    pub(crate) fn clock_ahead(&self, by: Duration) {
        self.write(&json!({"op": "clock_ahead", "t": self.now(), "by": by.as_nanos() as u64}));
    }

    /// Records the result of an emit, with the present time, so it is called when the reply has
    /// come. `op` is `ok`, `failed` or `unknown`.
    pub(crate) fn done(&self, op: &str, emit: &str) {
        self.write(&json!({"op": op, "t": self.now(), "emit": emit}));
    }

    /// Records that an event was received, or became a dead letter. `op` is `receive` or `dead`.
    pub(crate) fn came(&self, op: &str, object: &str, id: u64, prev: u64, event: &str) {
        let t = self.now();
        self.write(
            &json!({"op": op, "t": t, "object": object, "id": id, "prev": prev, "event": event}),
        );
    }

    /// Reads all dead letters from Redis, and writes a line to the history for each.
    pub(crate) async fn dead_letters(&self, conn: &MultiplexedConnection) -> anyhow::Result<()> {
        let (control, mut after) = (Control::new(conn.clone()), None);
        loop {
            let page = control.dead_letters(after.as_ref(), PER_CALL_MAX).await?;
            for letter in &page.letters {
                let (id, prev) = letter
                    .id
                    .zip(letter.prev)
                    .context("a dead letter without numbers")?;
                let event = name_in(&String::from_utf8_lossy(letter.event.bytes()))?;
                self.came("dead", &letter.object, id, prev, &event);
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Records that Redis may have lost writes. The window begins `before` earlier than `t`, and
    /// ends now.
    pub(crate) fn redis_lost(&self, t: u64, before: Duration) {
        let from = t.saturating_sub(before.as_nanos() as u64);
        self.write(&json!({"op": "redis_lost", "from": from, "to": self.now()}));
    }

    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        Ok(self
            .file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flush()?)
    }
}
