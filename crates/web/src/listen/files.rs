//! The files of a server: its users and its certificate. They are read again when they change, and at
//! SIGHUP.
//!
//! If a file has a mistake, its former content stays in use, and the mistake is logged once. The file
//! is then read at each look until it is valid. So a file that is half written when it is read, or a
//! certificate that is there before its key, needs no second change.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::LOG;

/// Interval at which the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The properties of a file of which one changes with its content: the times of its content (which can be
/// set to any time) and of its last change, its size, and its number.
type Stamp = ([i64; 4], u64, u64, u64);

/// Files that are read together.
pub(super) struct Files {
    /// Name of the content in log lines.
    what: &'static str,
    paths: Vec<PathBuf>,
    /// The files as they were when they were read last; `None` for a file that was absent.
    seen: Vec<Option<Stamp>>,
}

/// Files, and the function that reads them.
pub(super) struct Followed {
    files: Files,
    read: Box<dyn Fn() -> Result<(), String> + Send>,
    /// The error of the last read, if it failed.
    failed: Option<String>,
}

impl Files {
    /// Call this before the first read. Then no change after that read is missed.
    pub(super) fn new(what: &'static str, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let seen = stamps(&paths);
        Self { what, paths, seen }
    }

    /// `read`: reads the files again. If it fails, the former content must stay.
    pub(super) fn read_by(
        self,
        read: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> Followed {
        Followed {
            files: self,
            read: Box::new(read),
            failed: None,
        }
    }

    /// Returns whether a file has changed since the last call.
    fn have_changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        std::mem::replace(&mut self.seen, now.clone()) != now
    }
}

impl Followed {
    /// Reads the files if they have changed, or if the last read failed. `is_asked`: reads them in any
    /// case, and logs the result.
    fn look(&mut self, is_asked: bool) {
        let is_due = self.files.have_changed() || self.failed.is_some() || is_asked;
        if !is_due {
            return;
        }
        let what = self.files.what;
        match (self.read)() {
            Ok(()) => {
                self.failed = None;
                info!(target: LOG, what, "read again");
            }
            Err(error) => {
                if is_asked || self.failed.as_ref() != Some(&error) {
                    warn!(target: LOG, what, error, "not read again; the ones before stay");
                }
                self.failed = Some(error);
            }
        }
    }
}

/// Follows the files until the process ends. Cancellation safe between two looks.
pub(super) async fn follow(mut all: Vec<Followed>, mut hang_up: Signal) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            asked = hang_up.recv() => match asked {
                Some(()) => true,
                None => return,
            },
            _ = looks.tick(), if !all.is_empty() => false,
        };
        // A file system may be slow.
        let looked = spawn_blocking(move || {
            all.iter_mut().for_each(|files| files.look(is_asked));
            all
        });
        match looked.await {
            Ok(same) => all = same,
            Err(_) => return,
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((
            [
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ],
            file.len(),
            file.ino(),
            file.dev(),
        ))
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_file_is_read_when_it_changes_or_has_a_mistake() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let write = |text: &str| {
            // A new file each time, as most programs that replace secrets make one.
            std::fs::write(directory.path().join("new"), text).expect("written");
            std::fs::rename(directory.path().join("new"), &path).expect("renamed");
        };
        write("good");
        let files = Files::new("file", [path.clone()]);
        let reads = Arc::new(AtomicUsize::new(0));
        let (counted, read) = (reads.clone(), path.clone());
        let mut followed = files.read_by(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let text = std::fs::read_to_string(&read).map_err(|error| error.to_string())?;
            if text.starts_with("good") {
                Ok(())
            } else {
                Err(text)
            }
        });
        let mut look = |is_asked| {
            followed.look(is_asked);
            (reads.swap(0, Ordering::Relaxed), followed.failed.is_some())
        };
        assert_eq!(look(false), (0, false));
        assert_eq!(look(true), (1, false));
        write("good too");
        assert_eq!([look(false), look(false)], [(1, false), (0, false)]);
        // A program may keep the size and the time of the content, as `rsync --inplace -t`. Clocks of
        // file systems have ticks of some ms.
        let before = stamps(std::slice::from_ref(&path));
        let modified = std::fs::metadata(&path).and_then(|file| file.modified());
        let modified = modified.expect("a time");
        let began = std::time::Instant::now();
        while stamps(std::slice::from_ref(&path)) == before {
            assert!(began.elapsed() < Duration::from_secs(10), "it has changed");
            std::fs::write(&path, "good TOO").expect("written");
            let file = std::fs::File::options().append(true).open(&path);
            file.and_then(|file| file.set_modified(modified))
                .expect("set");
        }
        assert_eq!([look(false), look(false)], [(1, false), (0, false)]);
        write("bad");
        assert_eq!([look(false), look(false)], [(1, true), (1, true)]);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(look(false), (1, true));
        write("good");
        assert_eq!([look(false), look(false)], [(1, false), (0, false)]);
    }
}
