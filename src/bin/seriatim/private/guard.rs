//! Cleans up whatever happens: a shell that waits for the end of this process, however it ends,
//! SIGKILL included, then kills the processes that were started and removes the temporary
//! directory.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

/// It is told of each process that starts and ends; when its input ends, so have we.
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

/// Owns the temporary directory and watches over the processes. Dropping it ends them and removes
/// the directory.
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
            // A Ctrl-C goes to the whole group of the terminal; this one has to outlive it.
            .process_group(0)
            .spawn()
            .context("cannot start /bin/sh")?;
        Ok(Self { dir, shell })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// From now on the process ends with us.
    pub(crate) fn watch(&mut self, pid: u32) {
        self.tell("start", pid);
    }

    /// The process has ended and its id may be given to another one.
    pub(crate) fn ended(&mut self, pid: u32) {
        self.tell("end", pid);
    }

    fn tell(&mut self, word: &str, pid: u32) {
        if let Some(pipe) = &mut self.shell.stdin {
            // If the shell is gone there is nobody to tell: the processes still end in the usual
            // way.
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

/// The path of a socket has at most about 100 bytes, so a long TMPDIR will not do.
fn temporary_dir() -> std::io::Result<TempDir> {
    let dirs = tempfile::Builder::new().prefix("seriatim-").to_owned();
    if std::env::temp_dir().as_os_str().len() > 60 { dirs.tempdir_in("/tmp") } else { dirs.tempdir() }
}
