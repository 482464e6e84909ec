//! The calls of a process of a [`Scene`], and the parts of the calls and of the replies.

use std::ops::Range;
use std::time::Duration;

use seriatim::wire::{
    self, Advance, Advanced, Attach, Attached, BatchReply, BatchResult, Bounds, ClaimFirst,
    Detached, Renewed, Report, ScriptError, Suspects, Tag,
};

use super::Scene;

/// Limits that no test reaches by chance.
pub const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 10,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

/// The length of the lease of the process of a scene.
pub const LEASE: Duration = Duration::from_secs(600);

/// The arguments with which the process of a scene attaches.
pub const ATTACH: Attach<'static> = Attach {
    name: "w",
    token: "token-1",
    holder: "host 1 1",
    lease: LEASE,
    slots: 2,
    displace: "",
    before: "",
    crashes_max: 5,
    suspects: Suspects::NONE,
};

impl Scene {
    /// Attaches a process.
    pub async fn attach(&self, args: &Attach<'_>) -> Attached {
        let attached = wire::attach(&mut self.conn().await, &self.keys, args).await;
        attached.expect("an answer")
    }

    /// Renews the lease of `w`.
    pub async fn renew(&self, token: &str) -> Renewed {
        let (mut conn, keys) = (self.conn().await, &self.keys);
        let renewed = wire::renew(&mut conn, keys, "w", token, LEASE, 2).await;
        renewed.expect("an answer")
    }

    /// Gives the name `w` back.
    pub async fn detach(&self, token: &str) -> Result<Detached, ScriptError> {
        wire::detach(&mut self.conn().await, &self.keys, "w", token).await
    }

    /// Makes a call of `advance` as the process `w`. `fill` adds slots. If `w` may claim, it takes
    /// markers first.
    pub async fn advance(&self, bounds: Bounds, fill: impl FnOnce(&mut Advance)) -> Answer {
        self.advance_from(ClaimFirst::Markers, bounds, fill).await
    }

    /// Makes a call of `advance` that claims from this source first.
    pub async fn advance_from(
        &self,
        from: ClaimFirst,
        bounds: Bounds,
        fill: impl FnOnce(&mut Advance),
    ) -> Answer {
        let answer = self.try_advance(from, bounds, fill).await;
        Answer::of(answer.expect("an answer"))
    }

    /// Makes a call of `advance` that may fail.
    pub async fn try_advance(
        &self,
        from: ClaimFirst,
        bounds: Bounds,
        fill: impl FnOnce(&mut Advance),
    ) -> Result<Advanced, ScriptError> {
        let mut call = Advance::new(&self.keys, "w", "token-1", bounds, from);
        fill(&mut call);
        wire::advance(&mut self.conn().await, &call).await
    }

    /// Makes a call that fails.
    pub async fn fails(&self, bounds: Bounds, fill: impl FnOnce(&mut Advance)) -> ScriptError {
        let answer = self.try_advance(ClaimFirst::Markers, bounds, fill).await;
        answer.expect_err("a call that fails")
    }

    /// Makes a call for these free slots.
    pub async fn free(&self, slots: Range<usize>, bounds: Bounds) -> Answer {
        let fill = |call: &mut Advance| slots.for_each(|slot| call.free(slot));
        self.advance(bounds, fill).await
    }

    /// Makes a call with one result.
    pub async fn report(&self, slot: usize, report: &Report, bounds: Bounds) -> Answer {
        self.advance(bounds, |call| call.report(slot, report)).await
    }
}

/// The reply to a call of `advance`.
#[derive(Debug)]
pub struct Answer {
    pub batches: Vec<BatchReply>,
    pub next_due: Option<Duration>,
    pub more: bool,
    pub unsorted: bool,
    pub from: ClaimFirst,
    quarantined: Vec<(String, String)>,
}

impl Answer {
    fn of(answer: Advanced) -> Self {
        match answer {
            Advanced::Ok {
                batches,
                next_due,
                more,
                unsorted,
                from,
                quarantined,
            } => Self {
                batches,
                next_due,
                more,
                unsorted,
                from,
                quarantined,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Returns the objects of the batches.
    pub fn objects(&self) -> Vec<&str> {
        self.batches
            .iter()
            .map(|batch| std::str::from_utf8(&batch.object).expect("a name"))
            .collect()
    }

    /// Returns the batches, each as `SLOT OBJECT TAG after PREV: EVENT…`.
    pub fn batches(&self) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let batch = |batch: &BatchReply| {
            let events: Vec<_> = batch.events.iter().map(|event| text(event)).collect();
            let (slot, object, tag) = (batch.slot, text(&batch.object), batch.tag);
            format!(
                "{slot} {object} {tag} after {}: {}",
                batch.prev,
                events.join(" ")
            )
        };
        self.batches.iter().map(batch).collect()
    }

    /// Returns the objects of the batches, and the words `more` and `unsorted` if another call is of
    /// use, or is of use even without a free slot.
    pub fn summary(&self) -> String {
        let more = if self.more { ", more" } else { "" };
        let unsorted = if self.unsorted { ", unsorted" } else { "" };
        format!("{}{more}{unsorted}", self.objects().join(" "))
    }

    /// Returns whether another call is of use, and whether it is of use even without a free slot.
    pub fn of_use(&self) -> (bool, bool) {
        (self.more, self.unsorted)
    }

    /// Returns the number of events of each batch.
    pub fn lengths(&self) -> Vec<usize> {
        self.batches
            .iter()
            .map(|batch| batch.events.len())
            .collect()
    }

    /// Returns what the call has told about keys, each as `NAME: TEXT`.
    pub fn texts(&self) -> Vec<String> {
        let rows = self.quarantined.iter();
        rows.map(|(name, text)| format!("{name}: {text}")).collect()
    }
}

/// Returns [`BOUNDS`] with a change.
pub fn bounds(change: impl FnOnce(&mut Bounds)) -> Bounds {
    let mut bounds = BOUNDS;
    change(&mut bounds);
    bounds
}

/// Returns the result of a batch with this tag, of which so many events are delivered.
pub fn result(object: &str, tag: &str, count: usize, then: BatchResult) -> Report {
    let tag: Tag = tag.parse().expect("a tag");
    Report {
        object: object.to_owned().into(),
        tag,
        count,
        last: (count > 0).then(|| tag.first + count as u64 - 1),
        then,
    }
}

/// Adds slots to a call: results for the first ones, and then free ones.
pub fn slots(results: &[Report], free: Range<usize>) -> impl FnOnce(&mut Advance) {
    move |call| {
        (0..)
            .zip(results)
            .for_each(|(slot, result)| call.report(slot, result));
        free.for_each(|slot| call.free(slot));
    }
}

/// Returns the result that holds a batch with this rest, due after `delay`.
pub fn hold(rest: &str, delay: Option<Duration>, reason: &str) -> BatchResult {
    BatchResult::Hold {
        rest: rest.parse().expect("a tag"),
        delay,
        reason: reason.into(),
    }
}

/// Returns the result that makes the event with this id a dead letter.
pub fn reject(next: Option<&str>, id: u64, attempts: u32) -> BatchResult {
    BatchResult::Reject {
        next: next.map(|next| next.parse().expect("a tag")),
        id,
        error: "no".to_owned(),
        attempts,
    }
}

/// Returns the report of a batch of one delivered event.
pub fn done(object: &str, id: u64) -> Report {
    result(object, &id.to_string(), 1, BatchResult::Done)
}
