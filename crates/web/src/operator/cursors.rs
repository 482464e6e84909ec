//! Cursors for clients. The cursor of a list may have the name of an object that the user must not
//! see. So clients get sealed cursors: encrypted, authenticated, and made for one view, that is for
//! one user, one list and its filters, in one namespace.
//!
//! The key of a view is derived from a secret that all servers of the namespace share. So a cursor
//! stays valid after a restart, and at another server behind the same balancer. If the secret cannot
//! be shared, the process uses one of its own, and its cursors end with it.
//!
//! A cursor is a nonce, and the encrypted position with its tag, in base64. The position is padded to
//! multiples of 64 bytes, so that the length tells little about the name. Nothing is kept per cursor:
//! 100,000 cursors cost no memory. To seal or to open one takes some microseconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use seriatim::control::{Control, Cursor};
use tokio::time::Instant;
use tracing::info;

use super::errors::control_problem;
use crate::listen::problem::Problem;
use crate::listen::users::User;

/// Module name for log filters.
const LOG: &str = "seriatim::cursors";
/// The length of a position is padded to a multiple of this number of bytes.
const PAD: usize = 64;
/// The byte behind the position; zeros follow.
const END: u8 = 0x80;
/// The time after which a missing secret is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// The shortest time between two questions because of cursors that cannot be opened.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Secret = [u8; 32];

/// The list to which a cursor belongs, as one user sees it.
#[derive(Debug)]
pub(crate) struct View(Vec<u8>);

impl View {
    /// Returns the view of this user. `list`: the name of the list. `filters`: all parameters that
    /// select or order its rows.
    pub(crate) fn new(user: &User, list: &str, filters: &[&[u8]]) -> Self {
        let mut text = Vec::new();
        for part in [user.name.as_bytes(), list.as_bytes()]
            .iter()
            .chain(filters)
        {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part);
        }
        Self(text)
    }

    fn key(&self, secret: &Secret) -> Result<LessSafeKey, Problem> {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &self.0);
        UnboundKey::new(&CHACHA20_POLY1305, tag.as_ref())
            .map(LessSafeKey::new)
            .map_err(|_| broken("no key can be derived"))
    }
}

/// Returns a bound of time as a filter of a view.
pub(super) fn bound(ms: Option<u64>) -> Vec<u8> {
    ms.map_or_else(Vec::new, |ms| ms.to_string().into_bytes())
}

/// Returns the order of a list as a filter of a view.
pub(super) fn order(newest: bool) -> &'static [u8] {
    if newest { b"newest" } else { b"oldest" }
}

fn broken(detail: &str) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}

/// Returns random bytes of the system.
fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| broken("the system has no random bytes"))?;
    Ok(bytes)
}

#[derive(Default)]
struct Secrets {
    /// The one that all servers share, if it is known.
    shared: Option<Secret>,
    /// The one of this process, for the time without a shared one.
    own: Option<Secret>,
    asked_at: Option<Instant>,
    has_told: bool,
}

/// Seals and opens cursors.
#[derive(Clone)]
pub(crate) struct Cursors {
    control: Control,
    /// Whether the process may write the secret.
    may_write: bool,
    secrets: Arc<Mutex<Secrets>>,
    /// One question at a time, so that requests at the start wait for the shared secret.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for Cursors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursors").finish_non_exhaustive()
    }
}

impl Cursors {
    pub(crate) fn new(control: Control, may_write: bool) -> Self {
        Self {
            control,
            may_write,
            secrets: Arc::default(),
            asking: Arc::default(),
        }
    }

    /// Returns the cursor for a client.
    pub(crate) async fn seal(
        &self,
        view: &View,
        cursor: Option<Cursor>,
    ) -> Result<Option<Cursor>, Problem> {
        let Some(cursor) = cursor else {
            return Ok(None);
        };
        Ok(Some(
            sealed(view, &self.present().await?, cursor.as_str())?.into(),
        ))
    }

    /// Returns the cursor that a client has sent.
    pub(crate) async fn open(
        &self,
        view: &View,
        cursor: Option<&Cursor>,
    ) -> Result<Option<Cursor>, Problem> {
        let Some(cursor) = cursor else {
            return Ok(None);
        };
        let invalid = || {
            let detail = "the cursor is not the member next of a page of this list for this user and these parameters; \
                          read the list from its beginning";
            Problem::bad_request(detail)
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(cursor.as_str())
            .map_err(|_| invalid())?;
        self.present().await?;
        if let Some(position) = self.opened(view, &bytes)? {
            return Ok(Some(position.into()));
        }
        // Another server may have written a new secret, or the one of this process is older.
        if self.may_ask(LOOK_AGAIN) {
            self.ask().await?;
            if let Some(position) = self.opened(view, &bytes)? {
                return Ok(Some(position.into()));
            }
        }
        Err(invalid())
    }

    fn opened(&self, view: &View, bytes: &[u8]) -> Result<Option<String>, Problem> {
        let (shared, own) = self.with(|secrets| (secrets.shared, secrets.own));
        for secret in shared.iter().chain(&own) {
            if let Some(position) = opened(view, secret, bytes)? {
                return Ok(Some(position));
            }
        }
        Ok(None)
    }

    /// Returns the secret for new cursors.
    async fn present(&self) -> Result<Secret, Problem> {
        if let Some(shared) = self.with(|secrets| secrets.shared) {
            return Ok(shared);
        }
        let asking = self.asking.lock().await;
        if self.with(|secrets| secrets.shared.is_none()) && self.may_ask(ASK_AGAIN) {
            self.ask().await?;
        }
        drop(asking);
        let fresh = random()?;
        Ok(self.with(|secrets| {
            secrets
                .shared
                .unwrap_or_else(|| *secrets.own.get_or_insert(fresh))
        }))
    }

    /// Returns whether the last question is at least this old. If so, it counts as asked now.
    fn may_ask(&self, age: Duration) -> bool {
        self.with(|secrets| {
            let is_old = secrets.asked_at.is_none_or(|at| at.elapsed() >= age);
            if is_old {
                secrets.asked_at = Some(Instant::now());
            }
            is_old
        })
    }

    /// Asks for the shared secret.
    async fn ask(&self) -> Result<(), Problem> {
        let fresh = random()?;
        let found = self
            .control
            .cursor_secret(self.may_write.then_some(&fresh))
            .await;
        let found = found
            .inspect_err(|_| self.with(|secrets| secrets.asked_at = None))
            .map_err(control_problem)?;
        let is_news = self.with(|secrets| {
            if found.is_some() {
                secrets.shared = found;
            }
            secrets.shared.is_none() && !std::mem::replace(&mut secrets.has_told, true)
        });
        if is_news {
            info!(target: LOG, "no secret for cursors is shared: the cursors of lists end with this process, and other servers refuse them");
        }
        Ok(())
    }

    fn with<T>(&self, part: impl FnOnce(&mut Secrets) -> T) -> T {
        part(&mut self.secrets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn sealed(view: &View, secret: &Secret, position: &str) -> Result<String, Problem> {
    let nonce: [u8; NONCE_LEN] = random()?;
    let mut text = position.as_bytes().to_vec();
    text.push(END);
    text.resize(text.len().next_multiple_of(PAD), 0);
    let sealing = view.key(secret)?.seal_in_place_append_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::empty(),
        &mut text,
    );
    sealing.map_err(|_| broken("a cursor cannot be sealed"))?;
    Ok(URL_SAFE_NO_PAD.encode([nonce.as_slice(), &text].concat()))
}

fn opened(view: &View, secret: &Secret, bytes: &[u8]) -> Result<Option<String>, Problem> {
    let Some((nonce, text)) = bytes.split_first_chunk::<NONCE_LEN>() else {
        return Ok(None);
    };
    let mut text = text.to_vec();
    let opening = view.key(secret)?;
    let Ok(padded) = opening.open_in_place(
        Nonce::assume_unique_for_key(*nonce),
        Aad::empty(),
        &mut text,
    ) else {
        return Ok(None);
    };
    let end = padded
        .iter()
        .rposition(|byte| *byte != 0)
        .filter(|at| padded[*at] == END);
    Ok(end.and_then(|end| String::from_utf8(padded[..end].to_vec()).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_one_view_and_cannot_be_changed() {
        let user = |name: &str| User::with_rights(name, Vec::new());
        let view = View::new(&user("ada"), "held", &[b"work:", b""]);
        let secret = [7; 32];
        for position in ["", "due 17 user:secret", &"n".repeat(1000), "\u{80}\0"] {
            let cursor = sealed(&view, &secret, position).unwrap_or_default();
            let bytes = URL_SAFE_NO_PAD.decode(&cursor).expect("base64");
            assert_eq!(
                bytes.len(),
                12 + 16 + (position.len() + 1).next_multiple_of(PAD)
            );
            assert_ne!(sealed(&view, &secret, position).unwrap_or_default(), cursor);
            let open = |view: &View, secret: &Secret, bytes: &[u8]| {
                opened(view, secret, bytes).unwrap_or_default()
            };
            assert_eq!(open(&view, &secret, &bytes).as_deref(), Some(position));
            for other in [
                View::new(&user("eve"), "held", &[b"work:", b""]),
                View::new(&user("ada"), "paused", &[b"work:", b""]),
                View::new(&user("ada"), "held", &[b"", b"work:"]),
                View::new(&user("ada"), "held", &[b"work:"]),
                View::new(&user("adaheld"), "", &[b"work:", b""]),
            ] {
                assert_eq!(open(&other, &secret, &bytes), None, "{other:?}");
            }
            assert_eq!(open(&view, &[8; 32], &bytes), None);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(open(&view, &secret, &changed), None, "{at}");
            }
            assert_eq!(open(&view, &secret, &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(opened(&view, &secret, &[]).unwrap_or_default(), None);
    }
}
