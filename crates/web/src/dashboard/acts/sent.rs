//! The forms that were sent already, so that a form that is sent twice acts once.
//!
//! Each form has the value `once`, which the server makes when it makes the page. Only used values are
//! remembered, in memory. So after a restart a form of an older page is accepted, and acts once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use seriatim_console::shown;
use tokio::time::Instant;
use url::form_urlencoded::Serializer;

use crate::dashboard::form::Form;
use crate::dashboard::html::acts::{ONCE, is_once};
use crate::dashboard::now_ms;
use crate::listen::problem::Problem;
use crate::listen::users::hash;

/// The most forms of a user that are remembered.
const OF_USER_MAX: usize = 200;
/// The most forms that are remembered.
const SENT_MAX: usize = 10_000;
/// The time for which a form is remembered.
const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The hash of a form: of its user, its value `once`, its action and its subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Returns the key of a form; `None` for the form of a program, which has no value `once`.
    ///
    /// The reason and the page to go back to are left out: the same action for another reason is the
    /// same form. The subjects count, because a user may go back and select other rows.
    pub(super) fn of(user: &str, form: &Form) -> Result<Option<Self>, Problem> {
        match form.one(ONCE)? {
            None => Ok(None),
            Some(once) if is_once(&once) => {
                let fields = form
                    .fields()
                    .filter(|(name, _)| !["reason", "back"].contains(name));
                let text = Serializer::new(String::new())
                    .append_pair("user", user)
                    .extend_pairs(fields)
                    .finish();
                Ok(Some(Self(hash(&text))))
            }
            Some(_) => Err(Problem::bad_request(
                "the field once is not a value that a page has: nothing was done",
            )),
        }
    }
}

/// A form that has started an action.
#[derive(Debug, Clone)]
pub(super) struct Use {
    key: Key,
    user: Arc<str>,
    at: Instant,
    at_ms: u64,
    pub(super) job: String,
}

impl Use {
    /// Returns the answer to the form if the result of its action is no longer remembered.
    pub(super) fn problem(&self) -> Problem {
        let (at, user) = (shown::time(self.at_ms), &self.user);
        let detail = format!(
            "this was already done at {at} by {user}: nothing was done again. The page Actions shows the steps done; to repeat \
             the action, load the page with the form again"
        );
        Problem::new(StatusCode::CONFLICT, "repeated", detail)
    }
}

/// The used forms, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sent(VecDeque<Use>);

impl Sent {
    pub(super) fn find(&self, key: &Key) -> Option<&Use> {
        self.0
            .iter()
            .rev()
            .find(|used| used.key == *key && used.at.elapsed() < AGE_MAX)
    }

    /// Remembers a form. The oldest form of the same user makes room for it if the user has too many,
    /// or else that of the user with the most.
    pub(super) fn add(&mut self, key: Key, user: &Arc<str>, job: &str) {
        while self
            .0
            .front()
            .is_some_and(|used| used.at.elapsed() >= AGE_MAX)
        {
            self.0.pop_front();
        }
        let of_user = |used: &Use| used.user == *user;
        if self.0.iter().filter(|used| of_user(used)).count() >= OF_USER_MAX
            && let Some(at) = self.0.iter().position(of_user)
        {
            self.0.remove(at);
        }
        if self.0.len() >= SENT_MAX {
            // A user with few forms keeps them.
            let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
            for used in &self.0 {
                *counts.entry(&used.user).or_default() += 1;
            }
            let most = counts.values().copied().max();
            if let Some(at) = self
                .0
                .iter()
                .position(|used| counts.get(&used.user).copied() == most)
            {
                self.0.remove(at);
            }
        }
        self.0.push_back(Use {
            key,
            user: user.clone(),
            at: Instant::now(),
            at_ms: now_ms(),
            job: job.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        Key(hash(&n.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn used_forms_have_a_bounded_number_and_age() {
        let (mut sent, ada, bob) = (Sent::default(), Arc::from("ada"), Arc::from("bob"));
        sent.add(key(0), &bob, "job");
        for n in 1..=10_000 {
            sent.add(key(n), &ada, "job");
        }
        assert_eq!(sent.0.len(), OF_USER_MAX + 1);
        assert!(
            sent.find(&key(0)).is_some() && sent.find(&key(10_000)).is_some(),
            "the forms of others and the last ones stay"
        );
        assert!(
            sent.find(&key(10_001 - OF_USER_MAX as u32)).is_some()
                && sent.find(&key(10_000 - OF_USER_MAX as u32)).is_none()
        );
        for n in 10_001..20_500 {
            sent.add(key(n), &Arc::from(n.to_string()), "job");
        }
        assert_eq!(sent.0.len(), SENT_MAX);
        tokio::time::advance(AGE_MAX - Duration::from_millis(1)).await;
        assert!(sent.find(&key(20_499)).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(sent.find(&key(20_499)).is_none());
        sent.add(key(1), &ada, "job");
        assert_eq!(sent.0.len(), 1);
    }

    #[test]
    fn a_key_is_of_user_value_action_and_subjects() {
        let once = "0123456789abcdef0123456789abcdef";
        let of = |user: &str, fields: &[(&str, &str)]| {
            Key::of(user, &Form::of(fields)).map_err(|problem| problem.status().as_u16())
        };
        let first = of(
            "ada",
            &[
                ("act", "release"),
                ("row", "- a"),
                (ONCE, once),
                ("reason", "1"),
                ("back", "/held"),
            ],
        );
        assert!(matches!(first, Ok(Some(_))));
        assert_eq!(
            of(
                "ada",
                &[
                    ("act", "release"),
                    ("row", "- a"),
                    (ONCE, once),
                    ("reason", "2")
                ]
            ),
            first
        );
        for (user, act, row, once) in [
            ("bob", "release", "- a", once),
            ("ada", "skip", "- a", once),
            ("ada", "release", "- b", once),
            ("ada", "release", "- a", "1123456789abcdef0123456789abcdef"),
        ] {
            let other = of(user, &[("act", act), ("row", row), (ONCE, once)]);
            assert!(
                matches!(other, Ok(Some(_))) && other != first,
                "{user} {act} {row} {once}"
            );
        }
        assert_eq!(of("ada", &[("act", "release")]), Ok(None));
        for bad in [
            "",
            "1",
            &once[1..],
            &format!("{once}0"),
            &once.replace('0', "G"),
        ] {
            assert_eq!(of("ada", &[(ONCE, bad)]), Err(400), "{bad:?}");
        }
        assert_eq!(of("ada", &[(ONCE, once), (ONCE, once)]), Err(400));
    }
}
