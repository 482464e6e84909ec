//! The call of `lua/check.lua`. The call sends subjects, and the reply has findings.

use redis::aio::ConnectionLike;

use super::super::{ControlError, reply};
use super::report::{Invariant, Subject};
use crate::escape;
use crate::keys::Keys;
use crate::wire;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Object,
    Worker,
    Name,
    Group,
    Schedule,
    Cron,
    /// An idempotency key. Only the script `repair` knows this kind.
    Emitted,
    Shared,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Worker => "worker",
            Self::Name => "name",
            Self::Group => "group",
            Self::Schedule => "schedule",
            Self::Cron => "cron",
            Self::Emitted => "emitted",
            Self::Shared => "shared",
        }
    }

    pub(super) fn subject(self, name: &[u8]) -> Subject {
        let name = escape::name(name).into_owned();
        match self {
            Self::Object => Subject::Object(name),
            Self::Worker => Subject::Worker(name),
            Self::Name => Subject::Name(name),
            Self::Group => Subject::Group(name),
            Self::Schedule => Subject::Schedule(name),
            Self::Cron => Subject::Cron(name),
            Self::Emitted => Subject::Emitted(name),
            Self::Shared => Subject::Shared,
        }
    }
}

/// A finding of the script about one subject.
pub(super) struct Finding {
    pub(super) position: usize,
    pub(super) word: String,
    pub(super) what: String,
}

impl Finding {
    /// Returns whether the finding says that the object is uncovered. Only a search can confirm
    /// such a finding.
    pub(super) fn is_of_cover(&self) -> bool {
        matches!(self.word.as_str(), "I1" | "foreign")
    }
}

impl Finding {
    /// Returns the broken invariant.
    pub(super) fn invariant(&self) -> Result<Invariant, ControlError> {
        Ok(match self.word.as_str() {
            "I1" => Invariant::I1,
            "I2" => Invariant::I2,
            "I3" => Invariant::I3,
            "I4" => Invariant::I4,
            "I5" => Invariant::I5,
            "I6" => Invariant::I6,
            "I8" => Invariant::I8,
            "I9" => Invariant::I9,
            "I10" => Invariant::I10,
            "layout" => Invariant::Layout,
            other => {
                return Err(ControlError::reply(
                    "lua/check.lua",
                    format!("it finds {other:?}"),
                ));
            }
        })
    }
}

/// Returns the text of the finding that says that the object is uncovered; none if no finding says
/// so.
pub(super) fn uncovered(findings: &[Finding]) -> Option<String> {
    findings
        .iter()
        .find(|finding| finding.is_of_cover())
        .map(|finding| finding.what.clone())
}

/// The reply of the script: its findings, and the objects in the lists of the workers that it has
/// read.
pub(super) struct Reply {
    pub(super) findings: Vec<Finding>,
    pub(super) in_lists: Vec<Vec<u8>>,
}

/// Calls the script once. Each subject has a hint for the script: `covered`, `searched` or
/// `unknown`.
pub(super) async fn look<'s>(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    subjects: impl IntoIterator<Item = (Kind, &'s [u8], &'s str)>,
) -> Result<Reply, ControlError> {
    const WHAT: &str = "lua/check.lua";
    let mut call = wire::CHECK.invoke();
    call.key(keys.event_workers());
    call.arg(keys.prefix());
    for (kind, name, hint) in subjects {
        call.arg(kind.word()).arg(name).arg(hint);
    }
    let mut reply = reply::ask(conn, WHAT, &call, "looked").await?;
    let (mut flat, mut names) = (reply.array()?, reply.array()?);
    let (mut findings, mut in_lists) = (Vec::new(), Vec::new());
    while flat.len() > 0 {
        findings.push(Finding {
            position: usize::try_from(flat.count()?).unwrap_or(usize::MAX),
            word: flat.text()?,
            what: flat.escaped()?,
        });
    }
    while names.len() > 0 {
        in_lists.push(names.bytes()?);
    }
    Ok(Reply { findings, in_lists })
}
