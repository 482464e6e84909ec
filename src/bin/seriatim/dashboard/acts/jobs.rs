//! The jobs under way, the results of the last jobs, and the forms that have started them. They are in
//! memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::sent::{Key, Sent, Use};
use crate::listen::problem::Problem;

/// The most jobs that are remembered.
const JOBS_MAX: usize = 200;
/// The most jobs under way.
const UNDER_WAY_MAX: usize = 16;
/// The most lines of a job.
const LINES_MAX: usize = 100;

/// The result of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The escaped name of the object, or the id of the dead letter.
    pub(super) subject: String,
    pub(super) is_done: bool,
    pub(super) text: String,
}

/// The state of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) done: u64,
    pub(super) not_done: u64,
    /// The reason why a job without lines has left subjects out.
    pub(super) why_not: &'static str,
    pub(super) lines: Vec<Line>,
    /// How far a job is that only reads.
    pub(super) progress: Option<String>,
    /// The error that has ended the job before its end.
    pub(super) error: Option<String>,
    pub(super) has_ended: bool,
    pub(super) was_stopped: bool,
}

/// An action.
pub(super) struct Job {
    id: String,
    /// The name of the user who has begun it.
    owner: Arc<str>,
    title: String,
    back: String,
    state: Mutex<State>,
    stop: CancellationToken,
    end: CancellationToken,
}

impl Job {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn back(&self) -> &str {
        &self.back
    }

    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    /// Adds the result of a row.
    pub(super) fn add(&self, subject: &str, result: Result<String, String>) {
        let mut state = self.lock();
        let (is_done, text) = match result {
            Ok(text) => (true, text),
            Err(text) => (false, text),
        };
        *(if is_done { &mut state.done } else { &mut state.not_done }) += 1;
        if state.lines.len() < LINES_MAX {
            state.lines.push(Line { subject: subject.to_owned(), is_done, text });
        }
    }

    /// Adds a line that counts nothing.
    pub(super) fn note(&self, subject: &str, text: String) {
        let mut state = self.lock();
        state.lines.push(Line { subject: subject.to_owned(), is_done: true, text });
    }

    /// Sets the numbers of a job without lines, and the reason why subjects were left out.
    pub(super) fn count(&self, done: u64, not_done: u64, why_not: &'static str) {
        let mut state = self.lock();
        (state.done, state.not_done, state.why_not) = (done, not_done, why_not);
    }

    /// Sets how far a job is that only reads.
    pub(super) fn tell(&self, progress: String) {
        self.lock().progress = Some(progress);
    }

    pub(super) fn fail(&self, error: String) {
        self.lock().error = Some(error);
    }

    /// Stops the job. A step that Redis has got already still takes effect.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.was_stopped |= !state.has_ended;
        drop(state);
        self.stop.cancel();
    }

    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.end.cancel();
    }

    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All jobs, oldest first, and the forms that have started them.
#[derive(Default)]
pub(in crate::dashboard) struct Jobs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    jobs: VecDeque<Arc<Job>>,
    sent: Sent,
}

/// The job of a form.
pub(super) enum Begun {
    New(Arc<Job>),
    /// The form was sent before.
    Before(Before),
}

/// The action that a form has started when it was sent before.
pub(super) enum Before {
    Job(Arc<Job>),
    /// The job is no longer remembered.
    Gone(Use),
}

impl Kept {
    fn before(&self, form: &Key) -> Option<Before> {
        let used = self.sent.find(form)?;
        let job = self.jobs.iter().find(|job| job.id == used.job);
        Some(job.map_or_else(|| Before::Gone(used.clone()), |job| Before::Job(job.clone())))
    }
}

impl Jobs {
    /// Adds a job, unless its form was sent before. The oldest job that has ended makes room for it.
    pub(super) fn begin(&self, owner: &Arc<str>, title: String, back: String, form: Option<Key>) -> Result<Begun, Problem> {
        let mut kept = self.lock();
        if let Some(before) = form.as_ref().and_then(|form| kept.before(form)) {
            return Ok(Begun::Before(before));
        }
        let Kept { jobs, sent } = &mut *kept;
        if jobs.iter().filter(|job| !job.lock().has_ended).count() >= UNDER_WAY_MAX {
            let detail = "too many actions are under way: nothing was done; try again when one of them has ended";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1));
        }
        if jobs.len() >= JOBS_MAX
            && let Some(at) = jobs.iter().position(|job| job.lock().has_ended)
        {
            jobs.remove(at);
        }
        let job = Arc::new(Job {
            id: Uuid::new_v4().simple().to_string(),
            owner: owner.clone(),
            title,
            back,
            state: Mutex::default(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
        });
        jobs.push_back(job.clone());
        if let Some(form) = form {
            sent.add(form, owner, &job.id);
        }
        Ok(Begun::New(job))
    }

    /// Returns the action that this form has started.
    pub(super) fn before(&self, form: Option<&Key>) -> Option<Before> {
        self.lock().before(form?)
    }

    /// Returns the number of jobs under way.
    pub(in crate::dashboard) fn under_way(&self) -> usize {
        self.lock().jobs.iter().filter(|job| !job.lock().has_ended).count()
    }

    pub(super) fn of(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().jobs.iter().find(|job| job.id == id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::form::Form;

    fn begin(jobs: &Jobs, form: Option<Key>) -> Option<Begun> {
        jobs.begin(&Arc::from("ada"), "Release".to_owned(), "/".to_owned(), form).ok()
    }

    fn begun(jobs: &Jobs) -> Arc<Job> {
        let Some(Begun::New(job)) = begin(jobs, None) else { panic!("no new job") };
        job
    }

    #[test]
    fn jobs_have_a_bounded_number() {
        let jobs = Jobs::default();
        let first = begun(&jobs);
        for _ in 1..UNDER_WAY_MAX {
            begun(&jobs);
        }
        assert!(begin(&jobs, None).is_none());
        first.add("work:1", Ok("released".to_owned()));
        first.add("work:2", Err("not held".to_owned()));
        first.end();
        assert!(jobs.of(first.id()).is_some_and(|job| job.state().done == 1 && job.state().not_done == 1));
        for _ in 0..2 * JOBS_MAX {
            begun(&jobs).end();
        }
        assert!(jobs.of(first.id()).is_none() && jobs.lock().jobs.len() <= JOBS_MAX);
    }

    #[test]
    fn a_form_begins_one_job() {
        let jobs = Jobs::default();
        let form = Form::of(&[("act", "release"), ("once", "0123456789abcdef0123456789abcdef")]);
        let key = Key::of("ada", &form).unwrap_or_default().expect("a key");
        assert!(jobs.before(Some(&key)).is_none() && jobs.before(None).is_none());
        let Some(Begun::New(first)) = begin(&jobs, Some(key)) else { panic!("no new job") };
        // The form leads to its job, also if no further job may begin.
        for _ in 1..UNDER_WAY_MAX {
            begun(&jobs);
        }
        let Some(Begun::Before(Before::Job(same))) = begin(&jobs, Some(key)) else { panic!("another job") };
        assert_eq!(same.id(), first.id());
        first.end();
        for _ in 0..2 * JOBS_MAX {
            begun(&jobs).end();
        }
        let Some(Begun::Before(Before::Gone(used))) = begin(&jobs, Some(key)) else { panic!("another job") };
        let problem = used.problem();
        assert!(problem.status() == StatusCode::CONFLICT && problem.detail().contains("by ada"), "{problem:?}");
        assert!(matches!(jobs.before(Some(&key)), Some(Before::Gone(_))));
    }
}
