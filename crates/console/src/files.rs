//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files of this process to this number, if that is allowed. Returns the
/// limit that then applies; `None` if there is no limit.
pub fn raise_limit(wanted: u64) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let present = current?;
    if present >= wanted {
        return Some(present);
    }
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(raised),
            maximum,
        },
    ) {
        Ok(()) => Some(raised),
        Err(_) => Some(present),
    }
}
