"""A batch: its events one after another, and the result of each.

`Batch` runs nothing itself. `next` gives the next handler to run, and `end` takes its outcome and returns the
lines for the worker. So threads, the event loop and the test kit share it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import Any, Optional

from . import _json
from ._context import AsyncContext, Context, Facts
from ._handlers import Handler, Handlers
from ._ledger import Ledger, Store
from ._names import Keys
from ._protocol import WAIT_MS_MAX, BatchLine, Envelope, answer, with_raw
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


@dataclass(frozen=True)
class Setting:
    """What the events of all batches share."""

    handlers: Handlers
    keys: Keys
    timeout_ms: Optional[int] = None
    line_bytes_max: int = 1024 * 1024


@dataclass
class Job:
    """A handler to run. Without a handler, `outcome` is already known."""

    envelope: Envelope
    handler: Optional[Handler]
    cx: Any
    ledger: Ledger
    outcome: Optional[BaseException] = None
    #: The task of an asynchronous handler while it runs.
    task: Optional[asyncio.Task[None]] = None


class Batch:
    """The events of an object that the program has in hand. May be used by several threads."""

    def __init__(self, line: BatchLine, setting: Setting, store: Optional[Store] = None) -> None:
        self.line = line
        self.setting = setting
        self.is_over = False
        self.job: Optional[Job] = None
        self._at = 0
        self._store = store
        self._lock = threading.Lock()
        #: The event that was cancelled last; 0: all that the batch has.
        self._cancelled: Optional[int] = None

    @property
    def number(self) -> int:
        return self.line.batch

    def next(self) -> Optional[Job]:
        """Begins the next event. Returns `None` if the batch is over."""
        with self._lock:
            if self.is_over or self._cancelled == 0 or self._at >= len(self.line.events):
                self.is_over = True
                self.job = None
                return None
            self.job = self._job(self.line.events[self._at])
            self._at += 1
            if self._cancelled == self.job.envelope.id:
                self._fire(self.job)
                self.job.handler, self.job.outcome = None, Cancelled("cancelled before it began")
            elif self._cancelled is not None and self._cancelled < self.job.envelope.id:
                # The handler before this one has ignored its cancel. The worker may have given up the batch.
                self.job.handler, self.job.outcome = None, Postponed(0, "the event before it was cancelled")
            return self.job

    def _job(self, envelope: Envelope) -> Job:
        line, is_first, event = self.line, self._at == 0, envelope.event
        type_ = _json.type_of(event)
        handler = self.setting.handlers.of(type_)
        traceparent = event.get("traceparent") if isinstance(event, dict) else None
        facts = Facts(
            id=envelope.id,
            prev=envelope.prev,
            object=line.object,
            type=type_,
            attempt=line.attempts + 1 if is_first else 1,
            crashes=line.crashes if is_first else 0,
            token=line.token,
            payload=envelope.payload,
            traceparent=traceparent if isinstance(traceparent, str) else None,
            timeout_ms=self.setting.timeout_ms,
        )
        ledger = Ledger(dict(line.once) if is_first else {}, self._store or _no_store)
        kind = AsyncContext if handler is not None and handler.is_async else Context
        job = Job(envelope, handler, kind(facts, self.setting.keys, ledger), ledger)
        if isinstance(event, Exception):
            job.handler, job.outcome = None, Rejected(f"Python cannot read the event: {event}")
        elif handler is None:
            which = "events without a type" if type_ is None else f'events of type "{shown(type_)}"'
            job.outcome = Unknown(f"no handler is registered for {which}")
        return job

    def cancel(self, id: Optional[int]) -> Optional[Job]:
        """Cancels this event, or with `None` the whole batch. Returns the handler in hand, if it is concerned."""
        with self._lock:
            job = self.job
            if id is not None and job is not None and id < job.envelope.id:
                return None  # The event has its result.
            self._cancelled = id or 0
            if job is not None and (id is None or job.envelope.id == id):
                self._fire(job)
                return job
            return None

    @staticmethod
    def _fire(job: Job) -> None:
        job.cx.cancelled.set()
        job.ledger.cancel(Cancelled("the handler was cancelled"))

    def replied(self, name: str, error: Optional[str]) -> None:
        """Takes the reply to a subtask."""
        job = self.job
        if job is not None:
            failed = Transient(f"the subtask {name!r} is not stored: {error}") if error is not None else None
            job.ledger.replied(name, failed)

    def end(self, job: Job, outcome: Optional[BaseException]) -> bytes:
        """Ends the event with the outcome of its handler. Returns the line for the worker."""
        effects = job.cx._effects
        effects.end()
        number, id = self.number, job.envelope.id
        if outcome is None and effects.is_empty:
            return answer("ok", number, id)
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
        is_cancel = isinstance(outcome, (Cancelled, asyncio.CancelledError)) and job.cx.cancelled.is_set()
        if is_cancel:
            return answer("cancelled", number, id)
        return self._failed(job, outcome)

    def _failed(self, job: Job, outcome: BaseException) -> bytes:
        number, id, text = self.number, job.envelope.id, str(outcome)
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


def _no_store(name: str, value: bytes) -> None:
    raise RuntimeError(f"there is no store for the subtask {name!r}")
