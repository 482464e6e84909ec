"""Threads for blocking handlers. They are daemons, so a handler that never ends cannot keep the process."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import Callable


class Pool:
    """At most `threads_max` threads, each started when it is first needed.

    Work that waits has one thread on its way to it. This thread sends for the next one before it begins. So short
    works are done by a thread that runs anyway, and a long one does not keep the others waiting.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        #: Whether a thread is on its way.
        self._is_coming = False
        self._calls: SimpleQueue[None] = SimpleQueue()

    def submit(self, work: Callable[[], None]) -> None:
        """Runs `work` in a thread. `work` must not raise."""
        with self._lock:
            self._queue.append(work)
            self._send()

    def _send(self) -> None:
        if self._is_coming or not self._queue:
            return
        if self._idle > 0:
            self._is_coming = True
            self._idle -= 1
            self._calls.put(None)
        elif self._threads < self._threads_max:
            name = f"seriatim-handler-{self._threads + 1}"
            try:
                threading.Thread(target=self._run, name=name, daemon=True).start()
            except RuntimeError:
                # The system has no room for another thread. The others do the work when they can.
                if not self._threads:
                    raise
                return
            self._is_coming = True
            self._threads += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                self._is_coming = False
            while True:
                with self._lock:
                    if not self._queue:
                        self._idle += 1
                        break
                    work = self._queue.popleft()
                    self._send()
                work()
                del work
            self._calls.get()
