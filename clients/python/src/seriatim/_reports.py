"""The progress and the log lines of a handler. They are advice for people, and end with the run of the handler."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Optional, Protocol

from . import _json
from . import _protocol as protocol
from .errors import HandlerEnded, InvalidEvent, InvalidProgress

PROGRESS_BYTES_MAX = 1024
#: The most log lines of an event that wait to be written.
LINES_MAX = 100


class Receiver(Protocol):
    """Takes the reports of all events: the numbers of the batch and of the event, and JSON or a text."""

    def progress(self, batch: int, id: int, value: bytes) -> None: ...

    def log(self, batch: int, id: int, text: str) -> None: ...


class NoReceiver:
    """Drops all reports."""

    def progress(self, batch: int, id: int, value: bytes) -> None:
        pass

    def log(self, batch: int, id: int, text: str) -> None:
        pass


class Reports:
    """The reports of the handler of one event. May be used by several threads."""

    def __init__(self, receiver: Receiver, batch: int, id: int) -> None:
        self._receiver = receiver
        self._batch = batch
        self._id = id
        self._lock = threading.Lock()
        self._has_ended = False

    def progress(self, value: Any) -> None:
        try:
            encoded = _json.one_line(_json.encode(value, PROGRESS_BYTES_MAX, "the progress"))
        except InvalidEvent as error:
            raise InvalidProgress(f"{error}; report a number or a short text") from None
        with self._lock:
            self._check_open()
            self._receiver.progress(self._batch, self._id, encoded)

    def log(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"log() takes a str, not {type(text).__name__}")
        kept = protocol.cut(text)
        with self._lock:
            self._check_open()
            self._receiver.log(self._batch, self._id, kept)

    def _check_open(self) -> None:
        if self._has_ended:
            raise HandlerEnded("the handler has ended; it must report before it ends")

    def end(self) -> None:
        """After this, nothing can be reported. So no report comes behind the result of its event."""
        with self._lock:
            self._has_ended = True


class Waiting:
    """The reports of an event that wait to be written: the newest progress, and the newest log lines."""

    __slots__ = ("_batch", "_dropped", "_lines", "_progress", "id")

    def __init__(self, batch: int, id: int) -> None:
        self.id = id
        self._batch = batch
        self._progress: Optional[bytes] = None
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._dropped = 0

    def progress(self, value: bytes) -> None:
        self._progress = value

    def log(self, text: str) -> None:
        if len(self._lines) == LINES_MAX:
            self._dropped += 1
        self._lines.append(text)

    def lines(self) -> bytes:
        """Returns the lines for the worker."""
        lines = []
        if self._dropped:
            text = f"{self._dropped} lines before this one were dropped: the handler logs faster than the worker reads"
            lines.append(protocol.log(self._batch, self.id, text))
        lines += [protocol.log(self._batch, self.id, text) for text in self._lines]
        if self._progress is not None:
            lines.append(protocol.progress(self._batch, self.id, self._progress))
        return b"".join(lines)
