"""A small worker that starts a program with handlers, and talks with it over pipes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Optional

from support import until

PROGRAMS = Path(__file__).parent / "programs"
Line = dict[str, Any]


class FakeWorker:
    """Has one program. Each read has a time limit, so that a test cannot hang.

    `hello` has members of the first line; one that is `None` is absent.
    """

    def __init__(self, folder: Path, *, hello: Optional[Line] = None, program: str = "served.py") -> None:
        self.folder = folder
        self.log = folder / "log"
        self._log = self.log.open("wb")
        # Without this variable, a line that is not flushed stays in the program.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._lines: queue.Queue[Optional[Line]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._batch = 0
        greeting = {"type": "hello", "protocol": 1, "child": 0, "line_bytes_max": 4 << 20, "timeout_ms": 300000}
        greeting = {**greeting, "cancel_ms": 5000, "capabilities": ["reports"], **(hello or {})}
        self.say(**{name: value for name, value in greeting.items() if value is not None})

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._reader.join(5)
        self._log.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            self._lines.put(json.loads(raw))
        self._lines.put(None)

    def say(self, **line: Any) -> None:
        self.raw(json.dumps(line, ensure_ascii=False).encode())

    def raw(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + b"\n")
        self.process.stdin.flush()

    def batch(self, *events: Any, object: str = "a", **members: Any) -> int:
        """Sends a batch. A text stands for an event of this type. Ids begin at 10."""
        self._batch += 1
        envelopes = [
            {"id": 10 + at, "prev": 9 + at, "object": object, "event": {"type": one} if isinstance(one, str) else one}
            for at, one in enumerate(events)
        ]
        line = {"type": "batch", "batch": self._batch, "object": object, "attempts": 0, "crashes": 0}
        self.say(**{**line, "events": envelopes, "token": "T", **members})
        return self._batch

    def next(self, within: float = 10) -> Optional[Line]:
        """Returns the next line of the program; `None` at its end."""
        return self._lines.get(timeout=within)

    def answer(self, within: float = 10) -> Line:
        line = self.next(within)
        assert line is not None, self.log.read_text()
        return line

    def delivered(self, batch: int, last: int, first: int = 10) -> list[int]:
        """Reads an `ok` for each event from `first` to `last`. It may cover those before it. Returns the ids."""
        ids = [first - 1]
        while ids[-1] < last:
            line = self.answer()
            assert line == {"type": "ok", "batch": batch, "id": line["id"]}
            assert ids[-1] < line["id"] <= last
            ids.append(line["id"])
        return ids[1:]

    def is_silent(self) -> bool:
        """Returns whether there is no line after a later batch has been answered."""
        number = self.batch("ok", object="silent")
        line = self.answer()
        return line == {"type": "ok", "batch": number, "id": 10}

    def noted(self, name: str) -> None:
        """Waits for a note of a handler."""
        until((self.folder / name).exists, f"the handler notes {name!r}")

    def end(self) -> int:
        """Closes the program's input, and returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)
