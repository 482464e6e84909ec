"""The lines of this program: one thread writes them, and all that wait are one write."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import IO, Optional, Union

from . import _protocol as protocol
from ._reports import Waiting


class Output:
    """The lines for the worker, each written as soon as the thread of `run` can write.

    An `ok` also covers the events before it in its batch. So of those that wait only the last one is written. The
    reports of an event that wait are one element, which stands before the result of the event.
    """

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._lock = threading.Lock()
        #: The lines that wait. An `ok` is its batch and its id.
        self._lines: list[Union[bytes, list[int], Waiting]] = []
        #: The `ok` of each batch, if it is the last line of the batch.
        self._oks: dict[int, list[int]] = {}
        #: The reports that wait, by batch: those of its last event that has any.
        self._reports: dict[int, Waiting] = {}
        self._is_awake = False
        #: Wakes the thread, and has lines that belong to no batch; `None` is the end.
        self._wakes: SimpleQueue[Optional[bytes]] = SimpleQueue()

    def ok(self, batch: int, id: int) -> None:
        """Writes that an event is delivered."""
        with self._lock:
            last = self._oks.get(batch)
            if last is not None:
                # The thread is awake already.
                last[1] = id
                return
            last = self._oks[batch] = [batch, id]
            self._lines.append(last)
            self._wake()

    def line(self, batch: int, line: bytes) -> None:
        """Writes another line about an event of a batch."""
        with self._lock:
            self._oks.pop(batch, None)
            self._lines.append(line)
            self._wake()

    def progress(self, batch: int, id: int, value: bytes) -> None:
        """Writes the progress of an event, unless a newer one comes before."""
        with self._lock:
            self._waiting(batch, id).progress(value)

    def log(self, batch: int, id: int, text: str) -> None:
        """Writes a line for the log of the worker."""
        with self._lock:
            self._waiting(batch, id).log(text)

    def _waiting(self, batch: int, id: int) -> Waiting:
        waiting = self._reports.get(batch)
        if waiting is None or waiting.id != id:
            waiting = self._reports[batch] = Waiting(batch, id)
            self._oks.pop(batch, None)
            self._lines.append(waiting)
            self._wake()
        return waiting

    def say(self, line: bytes) -> None:
        """Writes a line that belongs to no batch. Can be called in a signal handler, so it takes no lock."""
        self._wakes.put(line)

    def end(self) -> None:
        """Ends the thread when all lines are written."""
        self._wakes.put(None)

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._wakes.put(b"")

    def run(self) -> None:
        is_over = False
        while not is_over:
            said = [self._wakes.get()]
            while not self._wakes.empty():
                said.append(self._wakes.get())
            is_over = None in said
            with self._lock:
                lines, self._lines = self._lines, []
                self._oks.clear()
                self._reports.clear()
                self._is_awake = False
            parts = [one for one in said if one]
            parts += map(_written, lines)
            if not parts:
                continue
            try:
                self._target.write(b"".join(parts))
                self._target.flush()
            except (OSError, ValueError):
                # The worker is dead. The end of the input says so, too.
                return


def _written(line: Union[bytes, list[int], Waiting]) -> bytes:
    if isinstance(line, bytes):
        return line
    return line.lines() if isinstance(line, Waiting) else protocol.ok(line[0], line[1])
