"""A batch: its events one after another, and the result of each.

`Batch` runs nothing itself. `next` gives the next handler to run, and `end` takes its outcome and returns the
lines for the worker. So threads, the event loop and the test kit share it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Callable, Optional

from ._context import AsyncContext, Context
from ._handlers import Handler, Handlers
from ._names import Keys
from ._protocol import WAIT_MS_MAX, BatchLine, Envelope, answer, with_raw
from ._reports import Receiver
from .errors import shown
from .outcomes import Cancelled, Outcome, Postponed, Rejected, Transient, Unavailable, Unknown

LOG = logging.getLogger("seriatim")
_KINDS: dict[type[Outcome], str] = {
    Transient: "transient",
    Rejected: "rejected",
    Unavailable: "unavailable",
    Unknown: "unknown",
    Postponed: "postponed",
}


#: Sends a subtask that is done: the batch, the id of the event, the name and the value as JSON text.
Store = Callable[[int, int, str, bytes], None]


class Setting:
    """What the events of all batches share."""

    __slots__ = ("handlers", "keys", "line_bytes_max", "timeout")

    def __init__(
        self, handlers: Handlers, keys: Keys, timeout_ms: Optional[int] = None, line_bytes_max: int = 1024 * 1024
    ) -> None:
        self.handlers = handlers
        self.keys = keys
        #: The longest time of a handler, in seconds.
        self.timeout = None if timeout_ms is None else timeout_ms / 1000
        self.line_bytes_max = line_bytes_max


class Job:
    """A handler to run. Without a handler, `outcome` is already known."""

    __slots__ = ("cx", "event", "handler", "id", "outcome", "task")

    def __init__(self, id: int, event: Any, handler: Optional[Handler], cx: Any) -> None:
        self.id = id
        self.event = event
        self.handler = handler
        self.cx = cx
        self.outcome: Optional[BaseException] = None
        #: The task of an asynchronous handler while it waits for something.
        self.task: Optional[asyncio.Task[None]] = None

    def give_up(self, outcome: BaseException) -> None:
        """Does not run the handler."""
        self.handler, self.outcome = None, outcome


class Batch:
    """The events of an object that the program has in hand. May be used by several threads."""

    __slots__ = ("_at", "_cancelled", "_lock", "is_over", "job", "line", "number", "reports", "setting", "store")

    def __init__(self, line: BatchLine, setting: Setting, store: Store, reports: Receiver) -> None:
        self.line = line
        self.number = line.batch
        self.setting = setting
        self.store = store
        self.reports = reports
        self.is_over = False
        self.job: Optional[Job] = None
        self._at = 0
        self._lock = threading.Lock()
        #: The event that was cancelled last; 0: all that the batch has.
        self._cancelled: Optional[int] = None

    def next(self) -> Optional[Job]:
        """Begins the next event. Returns `None` if the batch is over."""
        with self._lock:
            at, events, cancelled = self._at, self.line.events, self._cancelled
            if self.is_over or cancelled == 0 or at >= len(events):
                self.is_over = True
                self.job = None
                return None
            self._at = at + 1
            job = self.job = self._job(at, events[at])
            if cancelled is None:
                return job
            if cancelled == job.id:
                job.cx._fire()
                job.give_up(Cancelled("cancelled before it began"))
            elif cancelled < job.id:
                # The handler before this one has ignored its cancel. The worker may have given up the batch.
                job.give_up(Postponed(0, "the event before it was cancelled"))
            return job

    def _job(self, at: int, envelope: Envelope) -> Job:
        id, prev, event = envelope
        type_ = traceparent = None
        if isinstance(event, dict):
            type_, traceparent = event.get("type"), event.get("traceparent")
            if not isinstance(type_, str):
                type_ = None
            if not isinstance(traceparent, str):
                traceparent = None
        handler = self.setting.handlers.of(type_)
        kind = AsyncContext if handler is not None and handler.is_async else Context
        job = Job(id, event, handler, kind(self, at, id, prev, type_, traceparent))
        if isinstance(event, Exception):
            job.give_up(Rejected(f"Python cannot read the event: {event}"))
        elif handler is None:
            which = "events without a type" if type_ is None else f'events of type "{shown(type_)}"'
            job.outcome = Unknown(f"no handler is registered for {which}")
        return job

    def cancel(self, id: Optional[int]) -> Optional[Job]:
        """Cancels this event, or with `None` the whole batch. Returns the handler in hand, if it is concerned."""
        with self._lock:
            job = self.job
            if id is not None and job is not None and id < job.id:
                return None  # The event has its result.
            self._cancelled = id or 0
            if job is not None and (id is None or job.id == id):
                job.cx._fire()
                return job
            return None

    def replied(self, name: str, error: Optional[str]) -> None:
        """Takes the reply to a subtask."""
        job = self.job
        if job is not None:
            failed = Transient(f"the subtask {name!r} is not stored: {error}") if error is not None else None
            job.cx._ledger.replied(name, failed)

    def end(self, job: Job, outcome: Optional[BaseException]) -> Optional[bytes]:
        """Ends the event with the outcome of its handler. Returns the line for the worker; `None`: a plain `ok`."""
        effects = job.cx._end()
        has_effects = effects is not None and not effects.is_empty
        if outcome is None and not has_effects:
            return None
        number, id = self.number, job.id
        if outcome is None and job.cx.token is None:
            outcome = Transient("this worker is too old for emits, schedules and results: update the program seriatim")
        if outcome is None:
            line = with_raw("ok", number, id, effects.members())
            if len(line) <= self.setting.line_bytes_max:
                self.is_over = True
                return line
            size, limit = len(line), self.setting.line_bytes_max
            outcome = Transient(f"the emits and the result are a line of {size} bytes, the worker takes {limit}")
        self.is_over = True
        is_cancel = isinstance(outcome, (Cancelled, asyncio.CancelledError)) and job.cx._was_cancelled()
        if is_cancel:
            return answer("cancelled", number, id)
        return self._failed(job, outcome)

    def _failed(self, job: Job, outcome: BaseException) -> bytes:
        number, id, text = self.number, job.id, str(outcome)
        for kind, word in _KINDS.items():
            if isinstance(outcome, kind):
                members = {}
                if isinstance(outcome, Transient) and outcome.retry_after_ms is not None:
                    members["retry_after_ms"] = min(outcome.retry_after_ms, WAIT_MS_MAX)
                if isinstance(outcome, Postponed):
                    members["after_ms"] = min(outcome.after_ms, WAIT_MS_MAX)
                return answer(word, number, id, text, **members)
        LOG.error("the handler of %s, event %d, has failed", shown(self.line.object), id, exc_info=outcome)
        name = type(outcome).__name__
        return answer("transient", number, id, f"{name}: {text}" if text else name)
