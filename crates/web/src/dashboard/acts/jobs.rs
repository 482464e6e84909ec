//! The jobs under way, the results of the last jobs, and the forms that have started them. They are in
//! memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::sent::{Key, Sent, Use};
use crate::listen::fair::{Fair, Taken};
use crate::listen::problem::Problem;
use crate::listen::users::User;

/// The most results that are remembered, and those of one user.
const JOBS_MAX: usize = 2000;
const ACTS_OF_USER_MAX: usize = 100;
const SEARCHES_OF_USER_MAX: usize = 20;
/// The most acts under way: of all users, and of one.
const ACTS_UNDER_WAY_MAX: usize = 64;
const ACTS_UNDER_WAY_OF_USER: usize = 16;
/// The most searches under way: of all users, of one, and of all together who may only view.
const SEARCHES_UNDER_WAY_MAX: usize = 16;
const SEARCHES_UNDER_WAY_OF_USER: usize = 4;
const SEARCHES_UNDER_WAY_OF_VIEWERS: usize = 12;
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

/// The kind of a job. Each kind has limits of its own, so that searches never stop acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Act,
    Search,
}

impl Kind {
    fn of_user_max(self) -> usize {
        match self {
            Self::Act => ACTS_OF_USER_MAX,
            Self::Search => SEARCHES_OF_USER_MAX,
        }
    }
}

/// An action.
pub(super) struct Job {
    id: String,
    kind: Kind,
    /// The name of the user who has begun it.
    owner: Arc<str>,
    title: String,
    back: String,
    state: Mutex<State>,
    stop: CancellationToken,
    end: CancellationToken,
    /// The place among the jobs under way, until the job has ended.
    place: Mutex<Option<Taken>>,
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
        *(if is_done {
            &mut state.done
        } else {
            &mut state.not_done
        }) += 1;
        if state.lines.len() < LINES_MAX {
            state.lines.push(Line {
                subject: subject.to_owned(),
                is_done,
                text,
            });
        }
    }

    /// Adds a line that counts nothing.
    pub(super) fn note(&self, subject: &str, text: String) {
        let mut state = self.lock();
        state.lines.push(Line {
            subject: subject.to_owned(),
            is_done: true,
            text,
        });
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
        self.place
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
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
pub(in crate::dashboard) struct Jobs {
    kept: Mutex<Kept>,
    acts: Fair,
    searches: Fair,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            acts: Fair::new(
                ACTS_UNDER_WAY_MAX,
                ACTS_UNDER_WAY_OF_USER,
                ACTS_UNDER_WAY_MAX,
            ),
            searches: Fair::new(
                SEARCHES_UNDER_WAY_MAX,
                SEARCHES_UNDER_WAY_OF_USER,
                SEARCHES_UNDER_WAY_OF_VIEWERS,
            ),
        }
    }
}

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
        Some(job.map_or_else(
            || Before::Gone(used.clone()),
            |job| Before::Job(job.clone()),
        ))
    }

    /// Makes room for a further job. The oldest job of the same user and kind that has ended gives
    /// way if there are too many of them. Otherwise a search gives way, that of the user with the most
    /// jobs first.
    fn make_room(&mut self, owner: &str, kind: Kind) {
        let own = |job: &Arc<Job>| job.kind == kind && *job.owner == *owner;
        if self.jobs.iter().filter(|job| own(job)).count() >= kind.of_user_max() {
            if let Some(at) = self
                .jobs
                .iter()
                .position(|job| own(job) && job.lock().has_ended)
            {
                self.jobs.remove(at);
            }
        } else if self.jobs.len() >= JOBS_MAX {
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for job in &self.jobs {
                *counts.entry(job.owner()).or_default() += 1;
            }
            let ended = self
                .jobs
                .iter()
                .enumerate()
                .filter(|(_, job)| job.lock().has_ended);
            // Of several the first is the oldest.
            let gone = ended.min_by_key(|(_, job)| {
                (
                    job.kind == Kind::Act,
                    std::cmp::Reverse(counts.get(job.owner()).copied()),
                )
            });
            if let Some(at) = gone.map(|(at, _)| at) {
                self.jobs.remove(at);
            }
        }
    }
}

impl Jobs {
    /// Adds a job, unless its form was sent before. An older job that has ended makes room for it.
    pub(super) fn begin(
        &self,
        kind: Kind,
        user: &User,
        title: String,
        back: String,
        form: Option<Key>,
    ) -> Result<Begun, Problem> {
        let owner = &user.name;
        let mut kept = self.lock();
        if let Some(before) = form.as_ref().and_then(|form| kept.before(form)) {
            return Ok(Begun::Before(before));
        }
        let (places, what) = match kind {
            Kind::Act => (&self.acts, "actions"),
            Kind::Search => (&self.searches, "searches"),
        };
        let Some(place) = places.take(user, 1) else {
            let detail = format!(
                "too many {what} are under way: nothing was done; try again when one of them has ended"
            );
            return Err(
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1),
            );
        };
        kept.make_room(owner, kind);
        let Kept { jobs, sent } = &mut *kept;
        let job = Arc::new(Job {
            id: Uuid::new_v4().simple().to_string(),
            kind,
            owner: owner.clone(),
            title,
            back,
            state: Mutex::default(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            place: Mutex::new(Some(place)),
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
        self.lock()
            .jobs
            .iter()
            .filter(|job| !job.lock().has_ended)
            .count()
    }

    pub(super) fn of(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().jobs.iter().find(|job| job.id == id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::form::Form;
    use crate::listen::users::Right;

    fn user(name: &str, right: Right) -> User {
        User::with_rights(name, vec![Right::View, right])
    }

    fn begin(jobs: &Jobs, form: Option<Key>) -> Option<Begun> {
        jobs.begin(
            Kind::Act,
            &user("ada", Right::Operate),
            "Release".to_owned(),
            "/".to_owned(),
            form,
        )
        .ok()
    }

    fn begun(jobs: &Jobs) -> Arc<Job> {
        let Some(Begun::New(job)) = begin(jobs, None) else {
            panic!("no new job")
        };
        job
    }

    fn searched(jobs: &Jobs, name: &str) -> Option<Arc<Job>> {
        match jobs.begin(
            Kind::Search,
            &user(name, Right::View),
            "Search".to_owned(),
            "/".to_owned(),
            None,
        ) {
            Ok(Begun::New(job)) => Some(job),
            _ => None,
        }
    }

    #[test]
    fn jobs_have_a_bounded_number() {
        let jobs = Jobs::default();
        let first = begun(&jobs);
        for _ in 1..ACTS_UNDER_WAY_OF_USER {
            begun(&jobs);
        }
        assert!(begin(&jobs, None).is_none());
        first.add("work:1", Ok("released".to_owned()));
        first.add("work:2", Err("not held".to_owned()));
        first.end();
        assert!(
            jobs.of(first.id())
                .is_some_and(|job| job.state().done == 1 && job.state().not_done == 1)
        );
        for _ in 0..2 * ACTS_OF_USER_MAX {
            begun(&jobs).end();
        }
        assert!(jobs.of(first.id()).is_none() && jobs.lock().jobs.len() <= ACTS_OF_USER_MAX);
    }

    #[test]
    fn searches_stop_no_act_and_push_out_no_result_of_others() {
        let jobs = Jobs::default();
        let first = begun(&jobs);
        first.end();
        let searches: Vec<_> = (0..40)
            .filter_map(|n| searched(&jobs, &format!("viewer{}", n % 5)))
            .collect();
        assert_eq!(searches.len(), SEARCHES_UNDER_WAY_OF_VIEWERS);
        for _ in 0..ACTS_UNDER_WAY_OF_USER {
            begun(&jobs);
        }
        searches.iter().for_each(|search| search.end());
        for n in 0..JOBS_MAX + 200 {
            searched(&jobs, &format!("viewer{}", n % 300))
                .expect("a place")
                .end();
        }
        assert!(jobs.lock().jobs.len() <= JOBS_MAX && jobs.of(first.id()).is_some());
    }

    #[test]
    fn a_form_begins_one_job() {
        let jobs = Jobs::default();
        let form = Form::of(&[
            ("act", "release"),
            ("once", "0123456789abcdef0123456789abcdef"),
        ]);
        let key = Key::of("ada", &form).unwrap_or_default().expect("a key");
        assert!(jobs.before(Some(&key)).is_none() && jobs.before(None).is_none());
        let Some(Begun::New(first)) = begin(&jobs, Some(key)) else {
            panic!("no new job")
        };
        // The form leads to its job, also if no further job may begin.
        for _ in 1..ACTS_UNDER_WAY_OF_USER {
            begun(&jobs);
        }
        let Some(Begun::Before(Before::Job(same))) = begin(&jobs, Some(key)) else {
            panic!("another job")
        };
        assert_eq!(same.id(), first.id());
        first.end();
        // The others are still under way, so only one more fits at a time.
        for _ in 0..2 * ACTS_OF_USER_MAX {
            begun(&jobs).end();
        }
        let Some(Begun::Before(Before::Gone(used))) = begin(&jobs, Some(key)) else {
            panic!("another job")
        };
        let problem = used.problem();
        assert!(
            problem.status() == StatusCode::CONFLICT && problem.detail().contains("by ada"),
            "{problem:?}"
        );
        assert!(matches!(jobs.before(Some(&key)), Some(Before::Gone(_))));
    }
}
