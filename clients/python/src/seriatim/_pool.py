"""Threads for blocking handlers. They are daemons, so a handler that never ends cannot keep the process."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Callable


class Pool:
    """At most `threads_max` threads, each started when it is first needed."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Runs `work` in a thread. `work` must not raise."""
        self._queue.put(work)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._threads >= self._threads_max:
                return
            self._threads += 1
            name = f"seriatim-handler-{self._threads}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._queue.get()()
            self._idle.release()
