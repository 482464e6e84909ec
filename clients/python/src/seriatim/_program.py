"""The program `seriatim`: where it is, and its process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from .errors import ProgramMismatch, ProgramNotFound, WorkerFailed

#: The exit code of the program for a wrong command line.
USAGE_CODE = 2


def main() -> None:
    """Replaces this process by the program: the command `seriatim`."""
    try:
        program = find()
    except ProgramNotFound as error:
        sys.exit(f"seriatim: {error}")
    os.execv(program, ["seriatim", *sys.argv[1:]])


def find() -> str:
    """Returns the path of the program: `SERIATIM_BIN`, the package `seriatim_bin`, or `seriatim` on the PATH."""
    named = os.environ.get("SERIATIM_BIN")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ProgramNotFound(f"SERIATIM_BIN is {named!r}, and there is no program; correct it, or unset it")
        return found
    try:
        import seriatim_bin  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        pass
    else:
        return str(seriatim_bin.path())
    for folder in os.get_exec_path():
        found = shutil.which("seriatim", path=folder)
        if found is not None and not _is_command(found):
            return found
    raise ProgramNotFound(
        "the program seriatim is not there: set SERIATIM_BIN to its path, install the package seriatim-bin, "
        "or put it on the PATH"
    )


def _is_command(path: str) -> bool:
    """Returns whether this is the command of this package, a script that calls `main`: it would only look again."""
    with open(path, "rb") as file:
        return b"seriatim._program" in file.read(1024)


class Program:
    """A worker that this process has started, with its pipes."""

    def __init__(self, path: str, arguments: Sequence[str], redis: Optional[str]) -> None:
        environment = dict(os.environ)
        if redis is not None:
            # The arguments of a process can be read by every user, and a URL may have a password.
            environment["SERIATIM_REDIS"] = redis
        self.path = path
        self._command = [path, "worker", "--sink", "stdio", *arguments]
        self._environment = environment
        try:
            # A session of its own: a Ctrl-C on the terminal reaches only this process.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                bufsize=64 * 1024,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramNotFound(f"cannot start {path}: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.input, self.output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def ended(self, within: float) -> int:
        """Waits for the end of the process, and kills it after this time. Returns the exit code."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        # A thread that still writes to a dead process gets an error.
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        return code

    def failure(self, code: int, *, has_spoken: bool) -> Exception:
        """Returns the error of a worker that has ended though nobody has asked for it."""
        how, hint = f"ended with exit code {code}", "; its log has the reason"
        if code == -signal.SIGKILL:
            # A killed program can write no reason.
            how, hint = f"was killed by signal {-code} (e.g. out of memory, or an operator)", ""
        elif code < 0:
            how = f"was killed by signal {-code}"
        if has_spoken:
            return WorkerFailed(f"the worker {how}; all handlers were cancelled{hint}", code)
        if code == USAGE_CODE:
            refusal = self._usage_error()
            if refusal is not None:
                return WorkerFailed(f"{self.path} ({self._version()}) has refused its options: {refusal}", code)
            return ProgramMismatch(
                f"{self.path} ({self._version()}) {how}: it is too old for this package, or an argument is wrong; "
                "its log has the reason. Update it, or set SERIATIM_BIN to another program"
            )
        return WorkerFailed(f"{self.path} ({self._version()}) {how} before it was ready{hint}", code)

    def _usage_error(self) -> Optional[str]:
        """Returns the error of a program that has refused its options. Its standard error is that of this process.

        To have it, starts the program once more: it refuses the same options again, before it does anything.
        """
        try:
            again = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment,
                timeout=5,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        lines = [line for line in again.stderr.decode(errors="replace").splitlines() if line.strip()]
        if again.returncode != USAGE_CODE or not lines:
            return None
        # Behind an error of the command line comes a hint at the help.
        error = next((line for line in lines if line.startswith("error: ")), lines[-1])
        return re.sub("^(error|seriatim): ", "", error)

    def _version(self) -> str:
        try:
            found = subprocess.run([self.path, "--version"], capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.SubprocessError):
            return "of an unknown version"
        return found.stdout.decode(errors="replace").strip()[:100] or "of an unknown version"
