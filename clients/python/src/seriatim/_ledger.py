"""The subtasks of an event that are done, with their values."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Callable, Optional

SUBTASKS_MAX = 1000
SUBTASK_BYTES_MAX = 256
SUBTASK_VALUE_BYTES_MAX = 64 * 1024

#: Sends a subtask that is done: its name and its value as JSON text.
Store = Callable[[str, bytes], None]


class Ledger:
    """The subtasks of one event. A store waits for the reply to the store before it."""

    def __init__(self, done: dict[str, str], store: Store) -> None:
        self.done = done
        self._store = store
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes, Future[None]]] = deque()
        self._under_way: Optional[tuple[str, bytes, Future[None]]] = None
        self._cancelled: Optional[BaseException] = None

    def store(self, name: str, value: bytes) -> Future[None]:
        """Stores that a subtask is done. The future ends with the reply."""
        future: Future[None] = Future()
        with self._lock:
            if self._cancelled is not None:
                future.set_exception(self._cancelled)
                return future
            self._waiting.append((name, value, future))
        self._send()
        return future

    def replied(self, name: str, error: Optional[BaseException]) -> None:
        """Takes a reply."""
        with self._lock:
            if self._under_way is None or self._under_way[0] != name:
                return
            (_, value, future), self._under_way = self._under_way, None
            if error is None:
                self.done[name] = value.decode()
        _settle(future, error)
        self._send()

    def cancel(self, error: BaseException) -> None:
        """Ends all waits with this error."""
        with self._lock:
            self._cancelled = error
            ended = [future for _, _, future in self._waiting]
            self._waiting.clear()
            if self._under_way is not None:
                ended.append(self._under_way[2])
        for future in ended:
            _settle(future, error)

    def under_way(self) -> Optional[Future[None]]:
        """Returns the store that waits for its reply. No result may be sent before this reply."""
        with self._lock:
            return None if self._under_way is None else self._under_way[2]

    def _send(self) -> None:
        with self._lock:
            if self._under_way is not None or not self._waiting:
                return
            self._under_way = self._waiting.popleft()
            name, value, _ = self._under_way
        self._store(name, value)


def _settle(future: Future[None], error: Optional[BaseException]) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
