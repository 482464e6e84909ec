//! Looks at the system with the rights of a user. A user with prefixes sees only the rows of objects
//! whose names begin with one of them. Hidden parts of events are replaced.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use seriatim::control::chain::ChainPage;
use seriatim::control::check::VIOLATIONS_MAX;
use seriatim::control::depth::DepthStep;
use seriatim::control::ended::EndedEvent;
use seriatim::control::held::HeldFilter;
use seriatim::control::stats::NameStats;
use seriatim::control::workers::{WorkerSlots, WorkersPage};
use seriatim::control::{
    Action, Control, ControlError, CronJob, Cursor, DeadLetter, HeldObject, Inspection, LogEntry,
    LogPage, RowEvent, RowId, Rules, ScheduledEvent, ShareFigures, Stats, UnderWork,
};
use seriatim::control::{dead, log};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::cursors::{Cursors, View, bound, order};
use super::errors::control_problem;
use super::hide::Hidden;
use super::pages::{Checked, Inspected, Page};
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// The part of Redis' time that a check takes.
const CHECK_SHARE: f64 = 0.2;
/// The longest time of a check. It is enough for some ten million keys.
const CHECK_TIME_MAX: Duration = Duration::from_secs(600);

/// Reads the system for users.
#[derive(Debug, Clone)]
pub(crate) struct Looks {
    control: Control,
    hidden: Arc<Hidden>,
    cursors: Cursors,
    /// The limit of checks: one at a time.
    checks: Arc<Semaphore>,
}

fn or_problem<T>(result: Result<T, ControlError>) -> Result<T, Problem> {
    result.map_err(control_problem)
}

/// Returns whether the user may see this object of a list. `escaped`: its escaped name, if the name
/// is not plain text.
pub(crate) fn shows(user: &User, object: &str, escaped: Option<&str>) -> bool {
    match escaped.map(seriatim::escape::unescaped) {
        Some(Ok(bytes)) => user.has(&bytes),
        _ => user.has(object.as_bytes()),
    }
}

impl Looks {
    pub(crate) fn new(control: Control, hidden: Arc<Hidden>, cursors: Cursors) -> Self {
        Self {
            control,
            hidden,
            cursors,
            checks: Arc::new(Semaphore::new(1)),
        }
    }

    /// Seals the positions in lists that clients get.
    pub(crate) fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// Returns whether parts of events are hidden.
    pub(crate) fn hides(&self) -> bool {
        !self.hidden.hides_nothing()
    }

    pub(crate) async fn object(&self, user: &User, object: &[u8]) -> Result<Inspected, Problem> {
        let inspection = self.inspection(user, object).await?;
        let mut ended = or_problem(self.control.ended(object).await)?;
        ended.events = ended
            .events
            .into_iter()
            .map(|event| self.ended_event(event))
            .collect();
        Ok(Inspected { inspection, ended })
    }

    pub(crate) async fn inspection(
        &self,
        user: &User,
        object: &[u8],
    ) -> Result<Inspection, Problem> {
        user.may(Right::View, object)?;
        let mut found = or_problem(self.control.inspect(object).await)?;
        if self.hidden.hides_nothing() {
            return Ok(found);
        }
        let event = found.next_event.take();
        // Errors and results may repeat a hidden part of the event. If the event was cut, its parts
        // are not known.
        let whole = event
            .as_ref()
            .filter(|event| event.bytes == event.text.len() as u64)
            .map(|event| event.text.as_bytes());
        let is_cut = whole.is_none();
        // An error of a whole batch may also repeat parts of its other events, which are not at hand.
        let whole = whole.filter(|_| found.events_held + found.events_in_flight <= 1);
        for failed in &mut found.errors {
            failed.error = self.hidden.text(&failed.error, whole);
        }
        if let Some(kept) = &mut found.kept_results {
            kept.results = None;
        }
        // A report may be on another event than the first one, and repeat its parts.
        found.report = None;
        if let Some(why) = &found.held_why {
            found.why = found
                .why
                .replace(why.as_str(), &self.hidden.text(why, whole));
            found.held_why = Some(self.hidden.text(why, whole));
        }
        found.next_event = event.map(|mut event| {
            event.text = String::from_utf8_lossy(&self.hidden.event(event.text.as_bytes(), is_cut))
                .into_owned();
            event
        });
        Ok(found)
    }

    /// Reads the finalized events of an object, newest first.
    pub(crate) async fn chain(
        &self,
        user: &User,
        object: &[u8],
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<ChainPage, Problem> {
        user.may(Right::View, object)?;
        let view = View::new(user, "chain", &[object]);
        let after = self.cursors.open(&view, after).await?;
        let mut page = or_problem(self.control.chain(object, after.as_ref(), limit).await)?;
        page.rows = page
            .rows
            .into_iter()
            .map(|event| self.ended_event(event))
            .collect();
        page.next = self.cursors.seal(&view, page.next.take()).await?;
        Ok(page)
    }

    pub(crate) async fn stats(&self, user: &User) -> Result<Stats, Problem> {
        user.may_all(Right::View)?;
        let mut stats = or_problem(self.control.stats().await)?;
        self.hide_sinks(&mut stats.workers);
        Ok(stats)
    }

    /// Finds the longest queues among the objects that workers have in hand.
    pub(crate) async fn queues(&self, user: &User, limit: usize) -> Result<UnderWork, Problem> {
        user.may_all(Right::View)?;
        or_problem(self.control.under_work(limit).await)
    }

    /// Counts the queued events of some objects, in one step of a walk over all objects.
    pub(crate) async fn depth(
        &self,
        user: &User,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<DepthStep, Problem> {
        user.may_all(Right::View)?;
        let view = View::new(user, "depth", &[]);
        let after = self.cursors.open(&view, after).await?;
        let mut step = or_problem(self.control.depth_step(after.as_ref(), limit).await)?;
        step.next = self.cursors.seal(&view, step.next.take()).await?;
        Ok(step)
    }

    /// Returns the permit for a check, if none is under way.
    pub(crate) fn may_check(&self, user: &User) -> Result<OwnedSemaphorePermit, Problem> {
        user.may_all(Right::Operate)?;
        self.checks.clone().try_acquire_owned().map_err(|_| {
            let detail = "a check is under way already; try again when it has ended";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(10)
        })
    }

    /// Checks the invariants. If the future is dropped, the check ends.
    pub(crate) async fn check(&self, user: &User) -> Result<Checked, Problem> {
        let _permit = self.may_check(user)?;
        let found = timeout(
            CHECK_TIME_MAX,
            self.control.paced_check(VIOLATIONS_MAX, CHECK_SHARE),
        )
        .await;
        let late = |_| {
            let detail =
                "the check did not end within 10 min; the command `seriatim check` has no limit";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-long", detail)
        };
        let report = or_problem(found.map_err(late)?)?;
        Ok(Checked {
            report,
            warnings: self.control.known_warnings().await,
        })
    }

    pub(crate) async fn schedules_of(
        &self,
        user: &User,
        object: &[u8],
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<ScheduledEvent>, Problem> {
        user.may(Right::View, object)?;
        let view = View::new(user, "schedules of", &[object]);
        let after = self.cursors.open(&view, after).await?;
        let page = or_problem(
            self.control
                .schedules_of(object, after.as_ref(), limit)
                .await,
        )?;
        let next = self.cursors.seal(&view, page.next).await?;
        Ok(Page::new(
            page.schedules.into_iter().map(|row| self.schedule(row)),
            next,
        )
        .at(page.now_ms))
    }

    pub(crate) async fn schedules(
        &self,
        user: &User,
        (from_ms, to_ms): (Option<u64>, Option<u64>),
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<ScheduledEvent>, Problem> {
        user.may_some(Right::View)?;
        let view = View::new(user, "schedules", &[&bound(from_ms), &bound(to_ms)]);
        let after = self.cursors.open(&view, after).await?;
        let page = or_problem(
            self.control
                .schedules(from_ms, to_ms, after.as_ref(), limit)
                .await,
        )?;
        let next = self.cursors.seal(&view, page.next).await?;
        let rows = page
            .schedules
            .into_iter()
            .filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        Ok(Page::new(rows.map(|row| self.schedule(row)), next).at(page.now_ms))
    }

    pub(crate) async fn held(
        &self,
        user: &User,
        filter: &HeldFilter<'_>,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<HeldObject>, Problem> {
        user.may_some(Right::View)?;
        let waits_for = format!("{:?}", filter.waits_for);
        let view = View::new(
            user,
            "held",
            &[
                filter.prefix,
                waits_for.as_bytes(),
                if filter.due { b"due" } else { b"" },
            ],
        );
        let after = self.cursors.open(&view, after).await?;
        let Some(prefix) = user.narrowed(filter.prefix) else {
            return Ok(Page::new([], None));
        };
        let page = or_problem(
            self.control
                .held_where(&HeldFilter { prefix, ..*filter }, after.as_ref(), limit)
                .await,
        )?;
        let next = self.cursors.seal(&view, page.next).await?;
        let rows = page
            .objects
            .into_iter()
            .filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        let looked_at = Some(page.looked).filter(|_| !user.is_limited());
        Ok(Page {
            looked_at,
            ..Page::new(rows.map(|row| self.held_object(row)), next).at(page.now_ms)
        })
    }

    pub(crate) async fn paused(
        &self,
        user: &User,
        prefix: &[u8],
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<HeldObject>, Problem> {
        user.may_some(Right::View)?;
        let view = View::new(user, "paused", &[prefix]);
        let after = self.cursors.open(&view, after).await?;
        let Some(prefix) = user.narrowed(prefix) else {
            return Ok(Page::new([], None));
        };
        let page = or_problem(
            self.control
                .paused_where(prefix, after.as_ref(), limit)
                .await,
        )?;
        let next = self.cursors.seal(&view, page.next).await?;
        let rows = page
            .objects
            .into_iter()
            .filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        Ok(Page::new(rows.map(|row| self.held_object(row)), next).at(page.now_ms))
    }

    /// Reads dead letters, of one object if `object` names one.
    pub(crate) async fn dead_letters(
        &self,
        user: &User,
        object: Option<&[u8]>,
        newest: bool,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<DeadLetter>, Problem> {
        match object {
            Some(object) => user.may(Right::View, object)?,
            None => user.may_some(Right::View)?,
        }
        let view = View::new(user, "dead", &[order(newest), object.unwrap_or_default()]);
        let after = self.cursors.open(&view, after).await?;
        let page = match (object, after.as_ref()) {
            (Some(object), after) => {
                self.control
                    .dead_letters_of(object, newest, after, limit)
                    .await
            }
            (None, after) if newest => self.control.newest_dead_letters(after, limit).await,
            (None, after) => self.control.dead_letters(after, limit).await,
        };
        let page = or_problem(page)?;
        let is_cut = object.is_none()
            && page.next.is_some()
            && page.letters.len() < limit.min(dead::PER_CALL_MAX);
        let rows = page
            .letters
            .into_iter()
            .filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        let next = self.cursors.seal(&view, page.next).await?;
        Ok(Page {
            is_cut,
            ..Page::new(rows.map(|row| self.letter(row)), next)
        })
    }

    /// Reads one dead letter. If the user may not see its object, the result is the same as for a
    /// dead letter that does not exist.
    pub(crate) async fn dead_letter(&self, user: &User, id: &RowId) -> Result<DeadLetter, Problem> {
        user.may_some(Right::View)?;
        let found = or_problem(self.control.dead_letter(id).await)?;
        let found = found.filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        found
            .map(|row| self.letter(row))
            .ok_or_else(|| Problem::not_found(format!("there is no dead letter {id}")))
    }

    /// Reads the rules that can concern an object of the user.
    pub(crate) async fn rules(&self, user: &User) -> Result<Rules, Problem> {
        user.may_some(Right::View)?;
        let mut rules = or_problem(self.control.rules().await)?;
        rules
            .rules
            .retain(|rule| match rule.selector.as_str().strip_suffix('*') {
                Some(beginning) => user.has_some(beginning.as_bytes()),
                None => user.has(rule.selector.as_str().as_bytes()),
            });
        Ok(rules)
    }

    /// Reads the shares that can concern an object of the user. A share that also concerns other objects
    /// is without its figures.
    pub(crate) async fn shares(&self, user: &User) -> Result<Vec<ShareFigures>, Problem> {
        user.may_some(Right::View)?;
        let mut shares = or_problem(self.control.share_figures().await)?;
        let beginning = |of: &ShareFigures| {
            of.share
                .selector
                .strip_suffix('*')
                .unwrap_or(&of.share.selector)
                .as_bytes()
                .to_vec()
        };
        shares.retain(|of| user.has_some(&beginning(of)));
        for of in shares.iter_mut().filter(|of| !user.has(&beginning(of))) {
            (
                of.waiting,
                of.oldest_ms,
                of.in_hand,
                of.taken,
                of.taken_per_second,
            ) = (None, None, None, None, None);
        }
        Ok(shares)
    }

    /// Returns for each of these rules the number of objects that wait and that it selects; `None` if
    /// it is not known, or if the rule also selects objects that the user must not see.
    pub(crate) async fn held_by(
        &self,
        user: &User,
        rules: &Rules,
    ) -> Result<Vec<Option<u64>>, Problem> {
        let selectors: Vec<_> = rules.rules.iter().map(|rule| &rule.selector).collect();
        let counts = or_problem(self.control.count_paused(&selectors).await)?;
        let has = |text: &str| user.has(text.strip_suffix('*').unwrap_or(text).as_bytes());
        Ok(counts
            .into_iter()
            .zip(selectors)
            .map(|(count, selector)| count.filter(|_| has(selector.as_str())))
            .collect())
    }

    pub(crate) async fn actions(
        &self,
        user: &User,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<Action>, Problem> {
        user.may_all(Right::View)?;
        let view = View::new(user, "actions", &[]);
        let after = self.cursors.open(&view, after).await?;
        let page = or_problem(self.control.actions(after.as_ref(), limit).await)?;
        let next = self.cursors.seal(&view, page.next).await?;
        Ok(Page::new(
            page.actions.into_iter().map(|row| self.action(row)),
            next,
        ))
    }

    /// Reads the actions on one object. Looks at the next 32 actions on all objects, up to `steps`
    /// times, until it has found one.
    pub(crate) async fn actions_of(
        &self,
        user: &User,
        object: &[u8],
        after: Option<&Cursor>,
        limit: usize,
        steps: usize,
    ) -> Result<Page<Action>, Problem> {
        user.may(Right::View, object)?;
        let view = View::new(user, "actions of", &[object]);
        let after = self.cursors.open(&view, after).await?;
        let mut page = or_problem(self.control.actions_of(object, after.as_ref(), limit).await)?;
        for _ in 1..steps {
            match page.next.take() {
                Some(next) if page.actions.is_empty() => {
                    page = or_problem(self.control.actions_of(object, Some(&next), limit).await)?
                }
                next => {
                    page.next = next;
                    break;
                }
            }
        }
        let next = self.cursors.seal(&view, page.next).await?;
        Ok(Page::new(
            page.actions.into_iter().map(|row| self.action(row)),
            next,
        ))
    }

    /// Reads rows of the event log.
    pub(crate) async fn log(
        &self,
        user: &User,
        newest: bool,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LogEntry>, Problem> {
        user.may_some(Right::View)?;
        let view = View::new(user, "log", &[order(newest)]);
        let after = self.cursors.open(&view, after).await?;
        let page = self.log_of_all(newest, after.as_ref(), limit).await?;
        let looked_at = Some(page.entries.len() as u64).filter(|_| !user.is_limited());
        // Behind the last page, a program reads the rows that come later.
        let later = Some(&page.end)
            .filter(|_| !newest && page.next.is_none())
            .cloned();
        let later = self.cursors.seal(&view, later).await?;
        let log_end = Some((page.end, page.written));
        let is_cut = page.next.is_some() && page.entries.len() < limit.min(log::PER_CALL_MAX);
        let rows = page
            .entries
            .into_iter()
            .filter(|row| shows(user, &row.object, row.object_escaped.as_deref()));
        let next = self.cursors.seal(&view, page.next).await?;
        Ok(Page {
            looked_at,
            later,
            log_end,
            is_cut,
            ..Page::new(rows, next)
        })
    }

    /// Reads rows of the event log for several users. The caller shows a user only the rows that
    /// [`shows`] allows.
    pub(crate) async fn log_of_all(
        &self,
        newest: bool,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<LogPage, Problem> {
        let page = match newest {
            true => self.control.newest_log(after, limit).await,
            false => self.control.log(after, limit).await,
        };
        let mut page = or_problem(page)?;
        page.entries = page
            .entries
            .into_iter()
            .map(|row| self.log_entry(row))
            .collect();
        Ok(page)
    }

    pub(crate) async fn crons(
        &self,
        user: &User,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<CronJob>, Problem> {
        user.may_some(Right::View)?;
        let view = View::new(user, "cron", &[]);
        let after = self.cursors.open(&view, after).await?;
        let page = or_problem(self.control.crons(after.as_ref(), limit).await)?;
        let next = self.cursors.seal(&view, page.next).await?;
        let rows = page.jobs.into_iter().filter(|job| match &job.detail {
            Some(detail) => shows(user, &detail.object, detail.object_escaped.as_deref()),
            None => user.may_all(Right::View).is_ok(),
        });
        Ok(Page::new(rows.map(|row| self.cron_job(row)), next).at(page.now_ms))
    }

    pub(crate) async fn workers(
        &self,
        user: &User,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<WorkersPage, Problem> {
        user.may_all(Right::View)?;
        let view = View::new(user, "workers", &[]);
        let after = self.cursors.open(&view, after).await?;
        let mut page = or_problem(self.control.workers(after.as_ref(), limit).await)?;
        page.next = self.cursors.seal(&view, page.next.take()).await?;
        self.hide_sinks(&mut page.workers);
        Ok(page)
    }

    pub(crate) async fn worker(
        &self,
        user: &User,
        name: &str,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<WorkerSlots, Problem> {
        user.may_all(Right::View)?;
        let view = View::new(user, "worker", &[name.as_bytes()]);
        let after = self.cursors.open(&view, after).await?;
        let mut found = or_problem(self.control.worker(name, after.as_ref(), limit).await)?;
        if let Some(found) = &mut found {
            found.next = self.cursors.seal(&view, found.next.take()).await?;
            self.hide_sinks(std::slice::from_mut(&mut found.worker));
        }
        found.ok_or_else(|| Problem::not_found("no worker process has registered this name"))
    }

    /// Returns the reason of a hold. It may repeat parts of an event that is not at hand.
    pub(crate) fn reason(&self, why: &str) -> String {
        self.hidden.text(why, None)
    }

    /// Hides the errors of sinks: they may repeat parts of any event.
    pub(crate) fn hide_sinks(&self, workers: &mut [NameStats]) {
        for status in workers
            .iter_mut()
            .filter_map(|worker| worker.status.as_mut())
        {
            status.sink_error = self.hidden.text(&status.sink_error, None);
        }
    }

    /// Replaces hidden parts of an event, and of a text that may repeat them.
    fn hide(&self, event: Option<&mut RowEvent>, text: Option<&mut String>) {
        if self.hidden.hides_nothing() {
            return;
        }
        let whole = event.as_ref().filter(|event| event.is_whole());
        if let Some(text) = text {
            *text = self.hidden.text(text, whole.map(|event| event.bytes()));
        }
        let is_cut = whole.is_none();
        if let Some(bytes) = event.and_then(RowEvent::bytes_mut) {
            *bytes = self.hidden.event(bytes, is_cut).into_owned();
        }
    }

    fn ended_event(&self, mut row: EndedEvent) -> EndedEvent {
        row.results = row.results.filter(|_| self.hidden.hides_nothing());
        self.hide(row.event.as_mut(), row.error.as_mut());
        row
    }

    fn letter(&self, mut row: DeadLetter) -> DeadLetter {
        self.hide(Some(&mut row.event), Some(&mut row.error));
        row
    }

    fn log_entry(&self, mut row: LogEntry) -> LogEntry {
        row.results = row.results.filter(|_| self.hidden.hides_nothing());
        self.hide(Some(&mut row.event), row.error.as_mut());
        row
    }

    fn action(&self, mut row: Action) -> Action {
        self.hide(row.event.as_mut(), row.error.as_mut());
        row
    }

    fn held_object(&self, mut row: HeldObject) -> HeldObject {
        // The event is not at hand, so a text that may repeat a part of it is not shown.
        if !self.hidden.hides_nothing() {
            row.why = self.hidden.text(&row.why, None);
        }
        row
    }

    fn schedule(&self, mut row: ScheduledEvent) -> ScheduledEvent {
        self.hide(Some(&mut row.event), None);
        row
    }

    fn cron_job(&self, mut row: CronJob) -> CronJob {
        self.hide(row.detail.as_mut().map(|detail| &mut detail.event), None);
        row
    }
}
