//! The reasons why a request has no answer, and their meanings.

use std::error::Error as _;
use std::time::Duration;

use reqwest::Url;
use seriatim::escape;

use super::answer::Meaning;
use super::error::HttpError;
use super::exchange::{Answer, shown};
use super::exclusive::NotOpen;

/// The reason why a request has no answer.
pub(super) enum Unanswered {
    Failed(reqwest::Error),
    /// The client cannot be made.
    NoClient(HttpError),
    /// The request was sent, and there was no answer in time.
    Late,
    /// The request was not sent, because it waited too long inside this process.
    Unsent,
    /// The request was not sent, because an earlier one may be open.
    NotOpen(NotOpen),
}

/// An error of the resolver that does not come from DNS.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// The address is not allowed.
    #[error("{0}")]
    Refused(String),
    /// Too many lookups are under way.
    #[error("too many lookups of hosts are under way; DNS is slow")]
    Busy,
}

impl Unanswered {
    pub(super) fn answer(&self, url: &Url, limit: Duration) -> Answer {
        let (meaning, is_timeout) = match self {
            Self::Failed(error) => return failure(url, error),
            Self::NotOpen(why) => return not_open(url, why),
            Self::NoClient(_) => (Meaning::Unable, false),
            Self::Late => (Meaning::Silent, true),
            Self::Unsent => (Meaning::Unsent, false),
        };
        let what = match self {
            Self::NoClient(error) => format!("cannot be reached from this process: {error}"),
            Self::Late => format!("has not answered in time: no answer within {limit:?}"),
            _ => "takes no more requests at a time; nothing was sent".to_owned(),
        };
        Answer {
            meaning,
            effects: None,
            error: format!("{} {what}", shown(url)),
            retry_after: None,
            is_timeout,
        }
    }
}

fn not_open(url: &Url, why: &NotOpen) -> Answer {
    let (error, retry_after) = match why {
        NotOpen::Earlier(left) => (
            format!(
                "{} may still work on an earlier request of this object; nothing was sent",
                shown(url)
            ),
            Some(*left),
        ),
        NotOpen::Late => (
            format!(
                "Redis took longer than the time limit to record a request to {}; nothing was sent",
                shown(url)
            ),
            None,
        ),
        NotOpen::Failed(error) => (format!("nothing was sent to {}: {error}", shown(url)), None),
    };
    Answer {
        meaning: Meaning::Unsent,
        effects: None,
        error,
        retry_after,
        is_timeout: false,
    }
}

fn failure(url: &Url, error: &reqwest::Error) -> Answer {
    let resolved = causes_of(error).find_map(|cause| cause.downcast_ref());
    if let Some(ResolveError::Refused(why)) = resolved {
        return Answer::rejected(format!("{} is refused: {why}", shown(url)));
    }
    let is_timeout = error.is_timeout();
    let (meaning, what) = if is_refused(error) {
        (Meaning::Unsent, "takes no more requests at a time")
    } else if error.is_builder() {
        (Meaning::Unsendable, "cannot be sent to")
    } else if resolved.is_some() {
        (Meaning::Unsent, "cannot be looked up")
    } else if is_own_fault(error) {
        (Meaning::Unable, "cannot be reached from this process")
    } else if error.is_connect() || causes(error).contains("received fatal alert") {
        // With TLS 1.3, a server may refuse the client's certificate only after the handshake.
        (Meaning::Unreachable, "cannot be reached")
    } else if is_timeout {
        (Meaning::Silent, "has not answered in time")
    } else {
        (Meaning::Silent, "has not answered")
    };
    Answer {
        meaning,
        effects: None,
        error: format!("{} {what}: {}", shown(url), causes(error)),
        retry_after: None,
        is_timeout,
    }
}

/// Returns whether the error came because this process has too many open files, or too little
/// memory.
fn is_own_fault(error: &reqwest::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    causes_of(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
        .any(|code| own.iter().any(|errno| errno.raw_os_error() == code))
}

/// Returns whether an HTTP/2 server has refused the stream. It does so only before it processes the
/// request.
pub(super) fn is_refused(error: &reqwest::Error) -> bool {
    causes(error).contains("refused stream before processing")
}

/// Returns whether the connection ended before the answer.
pub(super) fn is_broken(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder()
}

fn causes_of(error: &reqwest::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Returns the innermost cause, because it names the problem. The outer causes only say that a
/// request failed.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let innermost = causes_of(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string);
    escape::text(&innermost).to_string()
}
