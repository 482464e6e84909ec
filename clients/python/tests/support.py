"""Servers and programs for the tests. Each test has its own, and stops only these."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import redis

CLIENTS = Path(__file__).resolve().parents[2]
CASES = CLIENTS / "cases"


def program() -> str:
    """Returns the path of the program `seriatim` under test."""
    named = os.environ.get("SERIATIM_BIN")
    path = Path(named) if named else CLIENTS.parent / "target" / "debug" / "seriatim"
    assert path.exists(), f"{path} is not there: build seriatim, or set SERIATIM_BIN"
    return str(path)


def until(true: Callable[[], Any], what: str, within: float = 20.0) -> Any:
    """Waits for a state. Fails with `what` if it does not come."""
    end = time.monotonic() + within
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(0.005)


class Server:
    """A private Redis on a unix socket."""

    def __init__(self, folder: str, *options: str) -> None:
        self.path = os.path.join(folder, "redis.sock")
        self.url = f"unix://{self.path}"
        #: The same address, as the program seriatim writes it.
        self.program_url = f"redis+unix://{self.path}"
        server = os.environ.get("SERIATIM_REDIS_SERVER") or shutil.which("redis-server") or "redis-server"
        self._command = [server, "--port", "0", "--unixsocket", self.path]
        self._command += ["--save", "", "--dir", folder, "--loglevel", "warning", *options]
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.client: Any = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

        def is_up() -> bool:
            try:
                return bool(self.client.ping())
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False

        try:
            until(is_up, "redis-server answers")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def empty(self) -> None:
        self.client.config_set("maxmemory", "0")
        self.client.flushall()
        self.client.script_flush()

    def close(self) -> None:
        self.client.close()
        self.kill()


@contextlib.contextmanager
def server(*options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="seriatim-") as folder:
        found = Server(folder, *options)
        try:
            yield found
        finally:
            found.close()
