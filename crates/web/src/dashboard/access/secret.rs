//! Random secrets: tokens of links and sessions. Only their hashes are kept.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use seriatim_console::exit::{Exit, Failure};

use crate::listen::users::hash;

/// The SHA-256 of a secret.
pub(super) type Hash = [u8; 32];

/// Returns a new secret of 256 bits, and its hash.
pub(super) fn new() -> anyhow::Result<(String, Hash)> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Failure::with(Exit::Broken, "the system has no random bytes"))?;
    let secret = URL_SAFE_NO_PAD.encode(bytes);
    let hash = hash(&secret);
    Ok((secret, hash))
}
