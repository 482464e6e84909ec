//! The sessions of browsers that have logged in. They are in memory, so they end with the process.
//!
//! A session keeps the hash of the user's token, not the user. So if a user is removed from the users
//! file, the sessions of this user end, too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::secret::{self, Hash};

/// The most sessions. A further login ends a session of the user with the most: the one that was
/// unused for the longest time.
const SESSIONS_MAX: usize = 1000;
/// The most sessions of one user.
const OF_USER_MAX: usize = 100;
/// The time without a request after which a session ends.
const IDLE_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// The age at which a session ends.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The login of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Login {
    /// A token of the users file; the value is its hash.
    Token(Hash),
    /// A one-time link.
    Link,
}

struct Session {
    login: Login,
    begun: Instant,
    used: Instant,
}

/// All sessions, by the hash of the cookie's value.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Hash, Session>>);

impl Sessions {
    /// Begins a session. Returns the value of its cookie.
    pub(super) fn begin(&self, login: Login) -> anyhow::Result<String> {
        let (value, hash) = secret::new()?;
        let now = Instant::now();
        let mut sessions = self.lock();
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, session| session.is_alive(now));
        }
        let mut counts: HashMap<Login, usize> = HashMap::new();
        for session in sessions.values() {
            *counts.entry(session.login).or_default() += 1;
        }
        let own = counts.get(&login).copied().unwrap_or(0);
        let most = counts
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(most, _)| most);
        let from = if own >= OF_USER_MAX {
            Some(login)
        } else {
            most.filter(|_| sessions.len() >= SESSIONS_MAX)
        };
        let of_user = sessions
            .iter()
            .filter(|(_, session)| Some(session.login) == from);
        if let Some(oldest) = of_user
            .min_by_key(|(_, session)| session.used)
            .map(|(hash, _)| *hash)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(
            hash,
            Session {
                login,
                begun: now,
                used: now,
            },
        );
        Ok(value)
    }

    /// Returns the login of the session with this cookie.
    pub(super) fn of(&self, hash: &Hash) -> Option<Login> {
        let now = Instant::now();
        let mut sessions = self.lock();
        let session = sessions.get_mut(hash)?;
        if !session.is_alive(now) {
            sessions.remove(hash);
            return None;
        }
        session.used = now;
        Some(session.login)
    }

    pub(super) fn end(&self, hash: &Hash) {
        self.lock().remove(hash);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE_MAX && now.duration_since(self.begun) < AGE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::users::hash;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_is_unused_or_old() {
        let sessions = Sessions::default();
        let value = hash(&sessions.begin(Login::Link).expect("a session"));
        assert_eq!(sessions.of(&value), Some(Login::Link));
        for _ in 0..14 {
            tokio::time::advance(IDLE_MAX - Duration::from_secs(1)).await;
            assert_eq!(sessions.of(&value), Some(Login::Link));
        }
        tokio::time::advance(Duration::from_secs(14)).await;
        assert_eq!(sessions.of(&value), None, "it is a week old");
        let value = hash(&sessions.begin(Login::Link).expect("a session"));
        tokio::time::advance(IDLE_MAX).await;
        assert_eq!(sessions.of(&value), None, "it was not used for 12 h");
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_too_many_ends_the_session_that_was_unused_for_longest() {
        let sessions = Sessions::default();
        let mut first = Vec::new();
        for _ in 0..OF_USER_MAX {
            first.push(hash(&sessions.begin(Login::Link).expect("a session")));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(sessions.of(&first[0]).is_some());
        sessions.begin(Login::Link).expect("a session");
        assert!(
            sessions.of(&first[1]).is_none()
                && sessions.of(&first[0]).is_some()
                && sessions.of(&first[2]).is_some()
        );
        sessions.end(&first[0]);
        assert!(sessions.of(&first[0]).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_user_with_the_most_sessions_loses_one() {
        let sessions = Sessions::default();
        let ada = hash(&sessions.begin(Login::Token([0; 32])).expect("a session"));
        for user in 1..=20 {
            for _ in 0..OF_USER_MAX {
                sessions.begin(Login::Token([user; 32])).expect("a session");
            }
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert!(
            sessions.of(&ada).is_some(),
            "the logins of others do not end it"
        );
    }
}
