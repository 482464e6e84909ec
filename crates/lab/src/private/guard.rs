//! Cleans up after this process, even if it is killed with SIGKILL. A shell process waits for the
//! end of this process. Then the shell kills the processes that this process has started, and
//! removes the temporary directory.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

/// The script of the shell. Its standard input has a line for each process that starts or ends. The
/// input ends when this process ends.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
pids=
while read -r word pid; do
  case $word in
    start) pids="$pids $pid" ;;
    end)
      left=
      for other in $pids; do [ "$other" = "$pid" ] || left="$left $other"; done
      pids=$left ;;
  esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
rm -rf -- "$1"
"#;

/// The guard owns the temporary directory and the list of started processes. When it is dropped,
/// the processes are killed and the directory is removed.
pub(crate) struct Guard {
    dir: TempDir,
    shell: Child,
}

impl Guard {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let dir = temporary_dir().context("cannot make a temporary directory")?;
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "seriatim-private"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The shell gets its own process group. A Ctrl-C goes to the whole process group of the
            // terminal, and the shell must survive it.
            .process_group(0)
            .spawn()
            .context("cannot start /bin/sh")?;
        Ok(Self { dir, shell })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Adds a process to the list. It is killed when this process ends.
    pub(crate) fn watch(&mut self, pid: u32) {
        self.tell("start", pid);
    }

    /// Removes a process that has ended from the list. Otherwise the shell could kill another
    /// process that has got the same id.
    pub(crate) fn ended(&mut self, pid: u32) {
        self.tell("end", pid);
    }

    fn tell(&mut self, word: &str, pid: u32) {
        if let Some(pipe) = &mut self.shell.stdin {
            // If the shell is gone, this fails and is ignored. The processes then still end if this
            // process ends normally.
            let _ = writeln!(pipe, "{word} {pid}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Creates the temporary directory. If TMPDIR is long, creates it in /tmp instead, because the path
/// of a socket may have at most about 100 bytes.
fn temporary_dir() -> std::io::Result<TempDir> {
    let dirs = tempfile::Builder::new().prefix("seriatim-").to_owned();
    if std::env::temp_dir().as_os_str().len() > 60 {
        dirs.tempdir_in("/tmp")
    } else {
        dirs.tempdir()
    }
}
