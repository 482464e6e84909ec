"""The lines of this program: one thread writes them, and all that wait are one write."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import IO, Optional, Union

from . import _protocol as protocol


class Output:
    """The lines for the worker, each written as soon as the thread of `run` can write.

    An `ok` also covers the events before it in its batch. So of those that wait only the last one is written.
    """

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._lock = threading.Lock()
        #: The lines that wait. An `ok` is its batch and its id.
        self._lines: list[Union[bytes, list[int]]] = []
        #: The `ok` of each batch, if it is the last line of the batch.
        self._oks: dict[int, list[int]] = {}
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
                self._is_awake = False
            parts = [one for one in said if one]
            parts += [one if isinstance(one, bytes) else protocol.ok(one[0], one[1]) for one in lines]
            if not parts:
                continue
            try:
                self._target.write(b"".join(parts))
                self._target.flush()
            except (OSError, ValueError):
                # The worker is dead. The end of the input says so, too.
                return
