//! The sink `file:PATH`: envelopes as lines of a file.
//!
//! This module opens and locks the file, and ensures that it consists of whole lines. A batch
//! counts as delivered when its lines are written *and* synced. If the process dies during a write,
//! the file may end in a part of a line. The next opening cuts this part off. Events whose whole
//! lines were written but did not count as delivered come again with the same ids.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::writer::{Output, Writer};
use super::{Batch, Context, Delivered, Sink, SinkError};

/// Longest wait for the lock. A process that was just killed, or a sink that was just dropped, may
/// have the lock until its last sync ends.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Size of a block. The search for the last line end reads the file backwards, in such blocks.
const BLOCK_BYTES: usize = 64 * 1024;

/// The first bytes of every line that this sink writes.
const LINE_START: &[u8] = b"{\"id\":";

/// Appends one envelope per line to a file (NDJSON). A batch counts as delivered only after a sync.
///
/// The sink's own thread writes the batches of many slots at once, with one sync (`fdatasync`). CR
/// and LF inside a payload become spaces. Only one sink at a time can lock the file: opening it a
/// second time is an error.
///
/// - **Full disk, or any error of a write or sync:** the file is cut back to its length before that
///   write, and every batch in the write returns `Unavailable`. The next delivery tries again.
///   After a failed sync the kernel may have dropped pages, so everything since the last good sync
///   is cut and sent again. If even the cut fails, the sink stays unavailable until a cut succeeds.
/// - **Rotation:** PATH may no longer name the open file, because the file was renamed or deleted.
///   Then the next delivery or [`reopen`](Sink::reopen) (SIGHUP) opens PATH anew. Rotation with
///   `mv` needs no restart and loses nothing; lines in a deleted file are lost. After the reopen,
///   the sink does not write to the renamed file any more, so the file can be compressed.
/// - **Cancellation:** if `deliver` is dropped before the thread takes its batch, nothing is
///   written. If it is dropped later, the batch is written; when the batch is sent again, it is in
///   the file twice.
/// - **Closing:** if the sink is dropped, its thread ends after the write under way, and unlocks
///   the file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    writer: Writer,
}

impl File {
    /// Opens the file, creates it if absent (mode 0644 under the umask), locks it, and cuts off a
    /// torn last line.
    ///
    /// The call blocks the thread: for the disk, and up to 1 s for the lock.
    ///
    /// # Errors
    /// [`SinkError::NotOurs`] if the file ends in a part of a line that is not an envelope. Such a
    /// file probably belongs to another program. Also [`SinkError::Locked`],
    /// [`SinkError::NotAFile`] and [`SinkError::File`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SinkError> {
        let given = path.as_ref();
        // An absolute path stays right even if the working directory changes before a rotation.
        let path = std::path::absolute(given).map_err(|error| failed("find", given, error))?;
        let file = LockedFile::open(&path)?;
        let writer = Writer::start(Lines::new(OnDisk {
            path: path.clone(),
            file,
        }))
        .map_err(SinkError::Thread)?;
        Ok(Self { path, writer })
    }

    /// Returns the file's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[async_trait]
impl Sink for File {
    fn name(&self) -> String {
        format!("file:{}", self.path.display())
    }

    async fn deliver(&self, batch: &Batch, _cx: &Context) -> Delivered {
        self.writer.deliver(batch).await
    }

    async fn reopen(&self) -> io::Result<bool> {
        self.writer.reopen().await.map(|()| true)
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> SinkError {
    SinkError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

/// An open, locked file. Drop unlocks the file explicitly, because closing it is not enough. A
/// child process that is just being started has a copy of the file descriptor until its exec, and
/// that copy keeps the lock.
#[derive(Debug)]
struct LockedFile(fs::File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl LockedFile {
    fn open(path: &Path) -> Result<Self, SinkError> {
        // The type is checked before opening, because opening a device or a pipe may already have
        // an effect.
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => {
                return Err(SinkError::NotAFile {
                    path: path.to_owned(),
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("open", path, error)),
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o644)
            .open(path)
            .map_err(|error| failed("open", path, error))?;
        lock(&file, path)?;
        let file = Self(file);
        file.cut_torn_line(path)?;
        Ok(file)
    }

    /// Cuts off a torn last line, and ensures that the name and the content of the file survive a
    /// power loss.
    fn cut_torn_line(&self, path: &Path) -> Result<(), SinkError> {
        let length = self
            .0
            .metadata()
            .map_err(|error| failed("read", path, error))?
            .len();
        if length == 0 {
            // The file may be new. Without this sync of the directory, a power loss could remove
            // the file's name, and all synced lines with it.
            return sync_directory(path)
                .map_err(|error| failed("sync the directory of", path, error));
        }
        let keep = whole_lines(&self.0, length).map_err(|error| failed("read", path, error))?;
        if keep < length {
            let mut start = [0; LINE_START.len()];
            let start = &mut start[..LINE_START.len().min((length - keep) as usize)];
            self.0
                .read_exact_at(start, keep)
                .map_err(|error| failed("read", path, error))?;
            // After a power loss, a torn line may consist of zeros. So zeros are cut off, too.
            if !LINE_START.starts_with(start) && start[0] != 0 {
                return Err(SinkError::NotOurs {
                    path: path.to_owned(),
                });
            }
            self.0
                .set_len(keep)
                .map_err(|error| failed("cut the torn last line of", path, error))?;
            tracing::warn!(path = %path.display(), bytes = length - keep, "cut a torn last line; its event comes again");
        }
        self.0
            .sync_all()
            .map_err(|error| failed("sync", path, error))
    }
}

fn lock(file: &fs::File, path: &Path) -> Result<(), SinkError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(TryLockError::WouldBlock) => {
                return Err(SinkError::Locked {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", path, error)),
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    // The real path is needed, because `path` may be a link into another directory.
    match fs::canonicalize(path)?.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the length of the file up to and including its last line end.
fn whole_lines(file: &fs::File, length: u64) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES as u64);
        let block = &mut block[..(end - start) as usize];
        file.read_exact_at(block, start)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The file operations that [`Lines`] needs. They form a trait so that tests can make each step
/// fail.
trait Disk: Send + 'static {
    /// Opens the path anew if the path no longer names the open file.
    fn follow(&mut self) -> io::Result<()>;
    /// Returns the length of the file in bytes.
    fn length(&mut self) -> io::Result<u64>;
    /// Appends bytes. After an error, the file may have any part of these bytes.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
    /// Syncs the appended bytes. After an error, any part of them may be lost.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to this length if it is longer.
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// Returns the name of the file, for error texts.
    fn name(&self) -> String;
}

struct OnDisk {
    path: PathBuf,
    file: LockedFile,
}

impl Disk for OnDisk {
    fn follow(&mut self) -> io::Result<()> {
        let open = self.file.0.metadata()?;
        match fs::metadata(&self.path) {
            Ok(named) if (named.dev(), named.ino()) == (open.dev(), open.ino()) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = LockedFile::open(&self.path).map_err(io::Error::other)?;
        tracing::info!(path = %self.path.display(), "opened anew: the file was renamed or deleted");
        Ok(())
    }

    fn length(&mut self) -> io::Result<u64> {
        self.file.0.metadata().map(|found| found.len())
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.0.write_all(lines)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.0.sync_data()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        // Another program may have emptied the file. Then `set_len` would make the file longer, so
        // it is not called.
        if self.length()? > length {
            self.file.0.set_len(length)
        } else {
            Ok(())
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Ensures that a file consists of whole lines: each write is either complete and synced, or cut
/// off.
struct Lines<D> {
    disk: D,
    /// The length to which the file must be cut before the next write. It is set from the start of
    /// a write until the sync of this write succeeds.
    cut_to: Option<u64>,
}

impl<D: Disk> Lines<D> {
    fn new(disk: D) -> Self {
        Self { disk, cut_to: None }
    }

    fn mend(&mut self) -> io::Result<()> {
        if let Some(length) = self.cut_to {
            self.disk.cut(length)?;
            self.cut_to = None;
        }
        Ok(())
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.mend()?;
        self.disk.follow()?;
        self.cut_to = Some(self.disk.length()?);
        self.disk.append(lines)?;
        self.disk.sync()?;
        self.cut_to = None;
        Ok(())
    }
}

impl<D: Disk> Output for Lines<D> {
    fn reopen(&mut self) -> io::Result<()> {
        // The file is cut before the path is opened anew, because the bytes to cut are in the file
        // that is open now.
        self.mend()?;
        self.disk.follow()
    }

    fn write(&mut self, lines: &[u8]) -> Result<(), String> {
        self.append(lines).map_err(|error| {
            // If this cut fails too, `cut_to` stays set, and the next write begins with the cut.
            let cut = self.mend();
            let name = self.disk.name();
            match cut {
                Ok(()) => format!("cannot write to {name}: {error}; this write was cut away, it is tried again"),
                Err(cut) => format!("cannot write to {name}: {error}; cannot cut this write away: {cut}; it is tried again"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A disk in memory: the written bytes, the number of synced bytes, and the numbers of the
    /// steps that will fail.
    #[derive(Default)]
    struct Fake {
        bytes: Vec<u8>,
        synced: usize,
        steps: usize,
        faults: Vec<usize>,
    }

    impl Fake {
        fn step(&mut self) -> io::Result<()> {
            self.steps += 1;
            if self.faults.contains(&self.steps) {
                Err(io::Error::from_raw_os_error(28))
            } else {
                Ok(())
            }
        }
    }

    impl Disk for Fake {
        fn follow(&mut self) -> io::Result<()> {
            self.step()
        }
        fn length(&mut self) -> io::Result<u64> {
            self.step().map(|()| self.bytes.len() as u64)
        }
        fn append(&mut self, lines: &[u8]) -> io::Result<()> {
            let done = self.step();
            let part = if done.is_ok() {
                lines.len()
            } else {
                lines.len() / 2
            };
            self.bytes.extend_from_slice(&lines[..part]);
            done
        }
        fn sync(&mut self) -> io::Result<()> {
            let done = self.step();
            if done.is_ok() {
                self.synced = self.bytes.len();
            } else {
                // A failed sync loses the pages, and later syncs do not report the loss.
                self.bytes[self.synced..].fill(0);
            }
            done
        }
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.step()?;
            self.bytes.truncate(length as usize);
            Ok(())
        }
        fn name(&self) -> String {
            "out".to_owned()
        }
    }

    proptest! {
        /// Tests random faults. After every successful write, the file has exactly the data of all
        /// successful writes, and all of it is synced.
        #[test]
        fn only_whole_synced_writes_stay(faults in prop::collection::vec(1usize..60, 0..30)) {
            let mut lines = Lines::new(Fake { faults, ..Fake::default() });
            let mut expected = Vec::new();
            for n in 0..100 {
                let line = format!("line {n}\n");
                if lines.write(line.as_bytes()).is_ok() {
                    expected.extend_from_slice(line.as_bytes());
                    prop_assert_eq!(&lines.disk.bytes, &expected);
                    prop_assert_eq!(lines.disk.synced, expected.len());
                }
            }
            prop_assert!(lines.write(b"end\n").is_ok(), "does not recover");
        }
    }

    #[test]
    fn a_failed_sync_is_not_delivered_and_its_lines_are_cut() {
        let mut lines = Lines::new(Fake {
            faults: vec![4],
            ..Fake::default()
        });
        let error = lines.write(b"one\n").expect_err("the sync fails");
        assert_eq!(
            error,
            "cannot write to out: No space left on device (os error 28); this write was cut away, it is tried again"
        );
        assert!(lines.disk.bytes.is_empty());
        assert_eq!(lines.write(b"one\n"), Ok(()));
        assert_eq!(lines.disk.bytes, b"one\n");
    }

    #[test]
    fn the_last_line_end_is_found_across_blocks() {
        let file = tempfile::tempfile().expect("a temporary file");
        for (whole, torn) in [
            (0, 0),
            (0, 5),
            (10, 0),
            (10, BLOCK_BYTES - 1),
            (10, BLOCK_BYTES),
            (BLOCK_BYTES, 3 * BLOCK_BYTES + 1),
        ] {
            let mut bytes = vec![b'x'; whole + torn];
            if whole > 0 {
                bytes[whole - 1] = b'\n';
            }
            file.set_len(0).expect("emptied");
            file.write_all_at(&bytes, 0).expect("written");
            assert_eq!(
                whole_lines(&file, bytes.len() as u64).expect("read"),
                whole as u64,
                "{whole} and {torn}"
            );
        }
    }
}
