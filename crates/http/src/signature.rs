//! Signatures of requests, as Standard Webhooks defines them
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).
//!
//! A signature is the HMAC-SHA256 of `ID.TIMESTAMP.BODY`. The header `webhook-signature` has one
//! text `v1,BASE64` per secret, separated by spaces.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::error::HttpError;

/// Largest accepted difference between the timestamp of a request and the clock of its receiver.
pub(super) const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// A secret of Standard Webhooks. A sink signs requests with it, and a receiver verifies them with
/// it.
///
/// The text of a secret is `whsec_` and the base64 form of 24 to 64 bytes; `whsec_` may be missing.
/// The `Debug` output does not show the secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// The reason why a receiver does not accept a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The header `webhook-timestamp` is not a number of seconds.
    #[error("the header webhook-timestamp is not a Unix time in seconds")]
    Timestamp,
    /// The timestamp of the request is more than 5 minutes before or after the present time.
    #[error("the request was signed more than 5 minutes before or after the present time")]
    Expired,
    /// No signature in the header belongs to one of the secrets.
    #[error("no signature in the header webhook-signature belongs to the secret and the body")]
    Mismatch,
}

impl Secret {
    /// Returns the signature `v1,BASE64` of a request.
    ///
    /// - `id`: the value of the header `webhook-id`
    /// - `timestamp`: the value of the header `webhook-timestamp`, in Unix seconds
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        format!(
            "v1,{}",
            STANDARD.encode(hmac::sign(
                &self.0,
                &signed(id, &timestamp.to_string(), body)
            ))
        )
    }

    /// Verifies a request against the present time. The first three arguments are the values of the
    /// headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. Signatures are compared
    /// in constant time.
    ///
    /// # Errors
    /// [`SignatureError`] if the timestamp is too far from the present time, or if no signature
    /// fits.
    pub fn verify(
        &self,
        id: &str,
        timestamp: &str,
        signatures: &str,
        body: &[u8],
    ) -> Result<(), SignatureError> {
        self.verify_at(SystemTime::now(), id, timestamp, signatures, body)
    }

    fn verify_at(
        &self,
        now: SystemTime,
        id: &str,
        timestamp: &str,
        signatures: &str,
        body: &[u8],
    ) -> Result<(), SignatureError> {
        let seconds: u64 = timestamp.parse().map_err(|_| SignatureError::Timestamp)?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if now.abs_diff(seconds) > TOLERANCE.as_secs() {
            return Err(SignatureError::Expired);
        }
        let signed = signed(id, timestamp, body);
        let fits = signatures
            .split(' ')
            .filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok())
            .any(|signature| hmac::verify(&self.0, &signed, &signature).is_ok());
        if fits {
            Ok(())
        } else {
            Err(SignatureError::Mismatch)
        }
    }
}

fn signed(id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat()
}

impl FromStr for Secret {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let refused = |why: &str| HttpError::Secret {
            why: why.to_owned(),
        };
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|_| refused("it is not base64"))?;
        if !(24..=64).contains(&bytes.len()) {
            return Err(refused(&format!("it has {} bytes", bytes.len())));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        text.parse().expect("a secret")
    }

    /// Tests the example of the reference libraries of Standard Webhooks (Svix' documentation).
    #[test]
    fn the_signature_is_that_of_the_reference() {
        let secret = secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signature = secret.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_request_is_verified() {
        let (new, old) = (
            secret(&STANDARD.encode([1; 24])),
            secret(&STANDARD.encode([2; 64])),
        );
        let at = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let both = format!(
            "v1a,bm8= v1,!! {} {}",
            new.sign("7", 1_800_000_000, b"{}"),
            old.sign("7", 1_800_000_000, b"{}")
        );
        for secret in [&new, &old] {
            assert_eq!(
                secret.verify_at(at, "7", "1800000000", &both, b"{}"),
                Ok(())
            );
            assert_eq!(
                secret.verify_at(at + TOLERANCE, "7", "1800000000", &both, b"{}"),
                Ok(())
            );
        }
        let later = at + TOLERANCE + Duration::from_secs(1);
        assert_eq!(
            new.verify_at(later, "7", "1800000000", &both, b"{}"),
            Err(SignatureError::Expired)
        );
        assert_eq!(
            new.verify_at(at, "7", "1800000301", &both, b"{}"),
            Err(SignatureError::Expired)
        );
        assert_eq!(
            new.verify_at(at, "7", "soon", &both, b"{}"),
            Err(SignatureError::Timestamp)
        );
        assert_eq!(
            new.verify_at(at, "8", "1800000000", &both, b"{}"),
            Err(SignatureError::Mismatch)
        );
        assert_eq!(
            new.verify_at(at, "7", "1800000001", &both, b"{}"),
            Err(SignatureError::Mismatch)
        );
        assert_eq!(
            new.verify_at(at, "7", "1800000000", &both, b"[]"),
            Err(SignatureError::Mismatch)
        );
        assert_eq!(
            new.verify_at(at, "7", "1800000000", "", b"{}"),
            Err(SignatureError::Mismatch)
        );
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for text in [
            "",
            "whsec_",
            "hunter2",
            "whsec_c2hvcnQ=",
            &STANDARD.encode([0; 23]),
            &STANDARD.encode([0; 65]),
        ] {
            assert!(
                matches!(text.parse::<Secret>(), Err(HttpError::Secret { .. })),
                "{text}"
            );
        }
        assert_eq!(
            format!("{:?}", secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")),
            "Secret"
        );
    }
}
