//! The value of a lease, and the process that holds the lease.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The value of `event.worker:NAME:lease`: `TOKEN HOST PID START LENGTHms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The token: a fresh UUID per attach. The fence compares it.
    pub token: String,
    /// The process that holds the lease.
    pub holder: Holder,
    /// The time for which the lease is valid without a renewal; `None` if an older version wrote
    /// the lease. The value states this time because Redis itself keeps only the time at which a
    /// lease ends, and Redis' clock may step.
    pub length: Option<Duration>,
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => write!(f, "{} {}", self.token, self.holder.with_length(length)),
            None => write!(f, "{} {}", self.token, self.holder),
        }
    }
}

/// The text is not a lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a lease: {0:?}")]
pub struct LeaseError(String);

impl FromStr for Lease {
    type Err = LeaseError;

    fn from_str(text: &str) -> Result<Self, LeaseError> {
        let read = || {
            let mut parts = text.split(' ');
            let token = parts.next()?.to_owned();
            let (host, pid, start) = (
                parts.next()?.to_owned(),
                parts.next()?.parse().ok()?,
                parts.next()?.parse().ok()?,
            );
            let length = parts
                .next()
                .and_then(|length| length.strip_suffix("ms")?.parse().ok())
                .map(Duration::from_millis);
            Some(Self {
                token,
                holder: Holder { host, pid, start },
                length,
            })
        };
        read().ok_or_else(|| LeaseError(text.to_owned()))
    }
}

/// The process that holds a lease, `host pid start`. With these three values, another process of
/// the same host can see whether the holder is gone.
///
/// The value `host` consists of the host's name, the boot id and the process namespace. Only a
/// process that shares all three can check the holder's process id. A container with the same host
/// name has another process namespace, so it waits for the lease to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    host: String,
    pid: u32,
    start: u64,
}

/// Returns the host's name; empty if the host has none.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

impl Holder {
    /// Returns the holder for this process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self {
            host: host(),
            pid,
            start: started(pid).unwrap_or(0),
        }
    }

    /// Returns the part of a lease's value that follows the token.
    pub fn with_length(&self, length: Duration) -> String {
        format!("{self} {}ms", length.as_millis())
    }

    /// Returns whether the holder certainly does not run any more. This can be known only if the
    /// holder was a process of the same host, boot and process namespace.
    pub fn is_gone(&self) -> bool {
        // Without a start time (no /proc), a process id proves nothing.
        self.start != 0
            && self.host == host()
            && started(std::process::id()).is_some()
            && started(self.pid) != Some(self.start)
    }

    /// Returns the holder in a lease, `token host pid start`; `None` if the text is no lease.
    pub fn of_lease(lease: &str) -> Option<Self> {
        lease.parse::<Lease>().ok().map(|lease| lease.holder)
    }

    /// Returns only the host's name, for people.
    pub fn host_name(&self) -> &str {
        self.host.split('/').next().unwrap_or_default()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.host, self.pid, self.start)
    }
}

fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let namespace: String = namespace
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let name: String = host_name()
        .chars()
        .map(|c| {
            if c.is_whitespace() || c == '/' {
                '-'
            } else {
                c
            }
        })
        .collect();
    format!(
        "{name}/{}/{namespace}",
        boot.trim().get(..8).unwrap_or_default()
    )
}

/// Returns the start time of the process, in ticks since boot; `None` if it does not run. A zombie
/// counts as a process that does not run.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The line has the command's name in parentheses. The name may contain any character, so the
    // last parenthesis counts.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    // `state` is field 3 of the line, and the start time is field 22.
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_is_not_gone_and_a_dead_one_is() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts");
        let lease = format!(
            "token {}",
            Holder {
                pid: child.id(),
                start: started(child.id()).expect("it runs"),
                ..Holder::current()
            }
        );
        let holder = Holder::of_lease(&lease).expect("a lease");
        assert!(!holder.is_gone());
        child.kill().expect("it can be killed");
        // Until it is reaped, the child is a zombie, which counts as gone.
        while std::fs::read_to_string(format!("/proc/{}/stat", child.id()))
            .is_ok_and(|s| !s.contains(") Z"))
        {
            std::thread::yield_now();
        }
        assert!(holder.is_gone());
        child.wait().expect("it can be reaped");
        assert!(holder.is_gone());
    }

    #[test]
    fn a_lease_is_read_as_it_is_printed() {
        for text in ["token host/1/2 7 8 5000ms", "token host 7 8"] {
            assert_eq!(text.parse::<Lease>().expect(text).to_string(), text);
        }
        for text in ["", "token", "token host 7", "token host x 8"] {
            assert!(text.parse::<Lease>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_process_of_another_host_proves_nothing() {
        let far = Holder {
            host: "elsewhere/1/2".to_owned(),
            pid: 1,
            start: 1,
        };
        assert!(!far.is_gone());
        assert_eq!(Holder::of_lease("token"), None);
    }
}
