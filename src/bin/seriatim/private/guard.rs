//! Cleans up even after SIGKILL: a shell waits for the end of this process. Then it kills the
//! started processes and removes the temporary directory.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

/// The shell script. Its input names each process that starts and ends. The end of its input is the
/// end of this process.
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

/// Owns the temporary directory and the list of processes. Dropping it ends the processes and
/// removes the directory.
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
            // A Ctrl-C goes to the whole process group of the terminal; the shell must survive it.
            .process_group(0)
            .spawn()
            .context("cannot start /bin/sh")?;
        Ok(Self { dir, shell })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Adds a process that must end with this one.
    pub(crate) fn watch(&mut self, pid: u32) {
        self.tell("start", pid);
    }

    /// Removes a process that has ended, because its id may be reused.
    pub(crate) fn ended(&mut self, pid: u32) {
        self.tell("end", pid);
    }

    fn tell(&mut self, word: &str, pid: u32) {
        if let Some(pipe) = &mut self.shell.stdin {
            // If the shell is gone, the message is dropped. The processes still end in the usual
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

/// Creates the directory. Avoids a long TMPDIR, because the path of a socket has at most about 100
/// bytes.
fn temporary_dir() -> std::io::Result<TempDir> {
    let dirs = tempfile::Builder::new().prefix("seriatim-").to_owned();
    if std::env::temp_dir().as_os_str().len() > 60 { dirs.tempdir_in("/tmp") } else { dirs.tempdir() }
}
