//! Limits that users share, so that nobody can take all of them: one user has at most a part, and so
//! have all users together who may only view. So a look never stops an act.
//!
//! - [`Fair`]: a number of places or bytes. If none is left for the user, the request is refused.
//! - [`Gate`]: the looks under way. A look waits until it has a place.
//!
//! Cost: an entry of about 100 bytes for each user with something taken; 10 MB for 100,000 users.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::Problem;
use super::users::User;

/// The most looks of one user at a time, and of all users together who may only view. A look takes
/// up to 2 ms of Redis' time, so an act waits for those before it for about 0.1 s at most.
const LOOKS_OF_USER: usize = 16;
const LOOKS_OF_VIEWERS: usize = 48;
/// The longest wait of a look for its place.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The number of users from which on those without a look are forgotten.
const USERS_KEPT: usize = 1000;

#[derive(Default)]
struct Amounts {
    all: usize,
    viewers: usize,
    users: HashMap<Arc<str>, usize>,
}

/// A limit that users share. Clones share it, too.
#[derive(Clone)]
pub(crate) struct Fair {
    all: usize,
    of_user: usize,
    of_viewers: usize,
    amounts: Arc<Mutex<Amounts>>,
}

impl Fair {
    /// Returns a limit of which one user has at most `of_user`, and all users together who may only
    /// view at most `of_viewers`.
    pub(crate) fn new(all: usize, of_user: usize, of_viewers: usize) -> Self {
        Self {
            all,
            of_user,
            of_viewers,
            amounts: Arc::default(),
        }
    }

    /// Returns a limit of which one user has at most three quarters, if there can be several users.
    pub(crate) fn among(all: usize, has_users: bool) -> Self {
        let part = if has_users { all * 3 / 4 } else { all };
        Self::new(all, part, part)
    }

    /// Takes this amount for the user; `None` if it is not left.
    pub(crate) fn take(&self, user: &User, amount: usize) -> Option<Taken> {
        let is_viewer = user.is_viewer();
        let mut amounts = self.lock();
        let (all, viewers) = (
            amounts.all + amount,
            amounts.viewers + if is_viewer { amount } else { 0 },
        );
        let taken = amounts.users.get_mut(&user.name);
        let own = taken.as_deref().copied().unwrap_or(0) + amount;
        if all > self.all || own > self.of_user || viewers > self.of_viewers {
            return None;
        }
        match taken {
            Some(taken) => *taken = own,
            None => drop(amounts.users.insert(user.name.clone(), own)),
        }
        (amounts.all, amounts.viewers) = (all, viewers);
        drop(amounts);
        Some(Taken {
            fair: self.clone(),
            user: user.name.clone(),
            is_viewer,
            amount,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Amounts> {
        self.amounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An amount that a user has taken. It is given back when this value is dropped.
pub(crate) struct Taken {
    fair: Fair,
    user: Arc<str>,
    is_viewer: bool,
    amount: usize,
}

impl Taken {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Adds an amount that the same user has taken from the same limit.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Splits a part off.
    pub(crate) fn split(&mut self, amount: usize) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self {
            fair: self.fair.clone(),
            user: self.user.clone(),
            is_viewer: self.is_viewer,
            amount,
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut amounts = self.fair.lock();
        amounts.all -= self.amount;
        amounts.viewers -= if self.is_viewer { self.amount } else { 0 };
        if let Some(own) = amounts.users.get_mut(&self.user) {
            *own -= self.amount;
            if *own == 0 {
                amounts.users.remove(&self.user);
            }
        }
    }
}

/// The looks under way, of all users.
pub(crate) struct Gate {
    users: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
    viewers: Arc<Semaphore>,
}

/// A look under way.
pub(crate) struct Looking {
    _own: Option<OwnedSemaphorePermit>,
    _viewer: Option<OwnedSemaphorePermit>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            users: Mutex::default(),
            viewers: Arc::new(Semaphore::new(LOOKS_OF_VIEWERS)),
        }
    }
}

impl Gate {
    /// Waits until the user may look.
    pub(crate) async fn enter(&self, user: &User) -> Result<Looking, Problem> {
        let own = self.of(&user.name);
        // The semaphores are never closed, so an error cannot come.
        let place = async {
            let own = own.acquire_owned().await.ok();
            let viewer = if user.is_viewer() {
                self.viewers.clone().acquire_owned().await.ok()
            } else {
                None
            };
            Looking {
                _own: own,
                _viewer: viewer,
            }
        };
        timeout(WAIT_MAX, place).await.map_err(|_| {
            let detail = format!(
                "{} has too many looks under way, or all users have who may only view",
                user.name
            );
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
        })
    }

    fn of(&self, user: &Arc<str>) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = users.get(user).and_then(Weak::upgrade) {
            return own;
        }
        if users.len() >= USERS_KEPT {
            users.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(LOOKS_OF_USER));
        users.insert(user.clone(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::users::Right;

    fn viewer(name: &str) -> User {
        User::with_rights(name, vec![Right::View])
    }

    fn operator(name: &str) -> User {
        User::with_rights(name, vec![Right::View, Right::Operate])
    }

    #[test]
    fn nobody_takes_all() {
        let fair = Fair::new(16, 4, 12);
        let takes = |user: &User, count: usize| {
            (0..count)
                .filter_map(|_| fair.take(user, 1))
                .collect::<Vec<_>>()
        };
        let eve = takes(&viewer("eve"), 10);
        assert_eq!(eve.len(), 4, "one user has a part");
        let others: Vec<_> = (0..5)
            .flat_map(|n| takes(&viewer(&n.to_string()), 4))
            .collect();
        assert_eq!(others.len(), 8, "those who may only view have a part");
        let ada = takes(&operator("ada"), 9);
        assert_eq!(ada.len(), 4);
        assert!(fair.take(&operator("bob"), 1).is_none(), "all are taken");
        drop(eve);
        assert!(
            fair.take(&operator("bob"), 4).is_some() && fair.take(&operator("bob"), 5).is_none()
        );
        drop((others, ada));
        assert!(fair.lock().all == 0 && fair.lock().viewers == 0 && fair.lock().users.is_empty());
        assert!(Fair::among(8, false).take(&operator("ada"), 8).is_some());
        assert!(Fair::among(8, true).take(&operator("ada"), 7).is_none());
    }

    #[test]
    fn amounts_are_merged_and_split() {
        let fair = Fair::among(100, false);
        let ada = operator("ada");
        let mut taken = fair.take(&ada, 60).expect("left");
        taken.merge(fair.take(&ada, 40).expect("left"));
        assert!(taken.amount() == 100 && fair.take(&ada, 1).is_none());
        let part = taken.split(30);
        drop(taken);
        assert_eq!((part.amount(), fair.lock().all), (30, 30));
        drop(part);
        assert_eq!(fair.lock().all, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_waits_for_its_user_alone() {
        let gate = Gate::default();
        let mut looks = Vec::new();
        for user in 0..3 {
            for _ in 0..LOOKS_OF_USER {
                looks.push(
                    gate.enter(&viewer(&user.to_string()))
                        .await
                        .expect("a place"),
                );
            }
        }
        assert!(gate.enter(&viewer("0")).await.is_err() && gate.enter(&viewer("3")).await.is_err());
        assert!(gate.enter(&operator("ada")).await.is_ok());
        looks.pop();
        assert!(gate.enter(&viewer("0")).await.is_err() && gate.enter(&viewer("3")).await.is_ok());
    }
}
