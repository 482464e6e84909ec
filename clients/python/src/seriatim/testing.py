"""Runs handlers without Redis and without the program `seriatim`, with the code of a worker.

    test = HandlerTest(worker)
    first = test.run("order:1", {"type": "placed", "cents": 1200})
    first.assert_failed("the bank is closed")
    second = test.run("order:1", {"type": "placed", "cents": 1200}, attempt=2)
    second.assert_delivered()
    second.assert_emitted("ledger:1", {"type": "paid"})

An event is known by its object and its id. A second run of the same event is like a retry, or a delivery after
a crash: subtasks under `cx.once` that are done do not run again.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union, cast

from . import _json
from ._batch import Batch, Job, Setting
from ._engine import call, call_async
from ._handlers import Handlers
from ._names import Keys
from ._protocol import BatchLine
from .worker import Worker

#: A value, or a function that tells whether an event matches. A dict matches an event that has its members.
Pattern = Union[Any, Callable[[Any], bool]]
_LINE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class EmittedEvent:
    """An event that a handler has emitted."""

    object: str
    event: Any
    #: The event as it will be queued.
    payload: str


@dataclass(frozen=True)
class ScheduledEvent:
    """An event that a handler has scheduled."""

    object: str
    event: Any
    payload: str
    key: str
    #: The seconds from the end of the handled event, or the point in time in seconds since 1970.
    after: Optional[float]
    at: Optional[float]
    #: `replace`, `keep_time` or `keep_first`.
    mode: str


@dataclass(frozen=True)
class Ran:
    """The outcome of an event. The functions named `assert_…` raise `AssertionError`."""

    #: `ok`, `transient`, `rejected`, `unavailable`, `unknown`, `postponed` or `cancelled`.
    outcome: str
    #: The text of the failure, as the worker gets it.
    error: str = ""
    #: The exception that the handler has raised.
    exception: Optional[BaseException] = None
    #: The wait in seconds that a transient failure or `Postponed` has set.
    after: Optional[float] = None
    emitted: Sequence[EmittedEvent] = ()
    scheduled: Sequence[ScheduledEvent] = ()
    #: The schedules that the handler has cancelled: pairs of object and key.
    cancelled: Sequence[tuple[str, str]] = ()
    result: Any = None
    #: The last progress that the handler has reported, whatever its outcome.
    progress: Any = None
    #: The lines that the handler has logged by `cx.log`, whatever its outcome.
    log: Sequence[str] = ()
    #: The values of all subtasks that are done.
    once: dict[str, Any] = field(default_factory=dict)

    @property
    def is_delivered(self) -> bool:
        return self.outcome == "ok"

    def assert_delivered(self) -> Ran:
        return self._require(self.is_delivered, "the event was not delivered")

    def assert_failed(self, error_part: str = "", *, outcome: str = "transient") -> Ran:
        """Asserts this outcome, with an error that has the text `error_part`."""
        is_so = self.outcome == outcome and error_part in self.error
        return self._require(is_so, f"the event has not failed as {outcome} with {error_part!r}")

    def assert_emitted(self, object: str, pattern: Pattern) -> EmittedEvent:
        """Returns the first emitted event of this object that matches."""
        for one in self.emitted:
            if one.object == object and _matches(pattern, one.event):
                return one
        raise AssertionError(f"no event was emitted for {object} like {pattern!r}\n{self._describe()}")

    def assert_scheduled(self, object: str, pattern: Pattern) -> ScheduledEvent:
        """Returns the first scheduled event of this object that matches."""
        for one in self.scheduled:
            if one.object == object and _matches(pattern, one.event):
                return one
        raise AssertionError(f"no event was scheduled for {object} like {pattern!r}\n{self._describe()}")

    def assert_nothing_emitted(self) -> Ran:
        return self._require(not self.emitted and not self.scheduled, "events were emitted")

    def _require(self, is_so: bool, text: str) -> Ran:
        if not is_so:
            raise AssertionError(f"{text}\n{self._describe()}")
        return self

    def _describe(self) -> str:
        lines = [f"  outcome {self.outcome} {self.error}".rstrip()]
        lines += [f"  emitted {one.object} {one.payload}" for one in self.emitted]
        lines += [f"  scheduled {one.object} {one.payload} key {one.key}" for one in self.scheduled]
        lines += [f"  log {text}" for text in self.log]
        if self.progress is not None:
            lines.append(f"  progress {self.progress!r}")
        return "\n".join(lines)


def _matches(pattern: Pattern, event: Any) -> bool:
    if callable(pattern):
        return bool(pattern(event))
    if isinstance(pattern, dict) and isinstance(event, dict):
        return all(name in event and _matches(value, event[name]) for name, value in pattern.items())
    return bool(pattern == event)


def _line_of(payload: str) -> str:
    return f'{{"events":[{{"event":{payload}}}]}}'


class _Received:
    """The reports of one run."""

    def __init__(self) -> None:
        self.last: Optional[bytes] = None
        self.lines: list[str] = []

    def progress(self, batch: int, id: int, value: bytes) -> None:
        self.last = value

    def log(self, batch: int, id: int, text: str) -> None:
        self.lines.append(text)


class HandlerTest:
    """Runs the handlers of a worker on single events."""

    def __init__(self, worker: Worker) -> None:
        self._handlers: Handlers = worker.handlers
        self._keys = Keys(worker.namespace)
        self._once: dict[tuple[str, int], dict[str, str]] = {}

    def forget(self) -> None:
        """Forgets all subtasks that are done."""
        self._once.clear()

    def run(
        self,
        object: str,
        event: Any,
        *,
        id: int = 1,
        prev: int = 0,
        attempt: int = 1,
        crashes: int = 0,
        timeout: Optional[float] = None,
        cancel_after: Optional[float] = None,
    ) -> Ran:
        """Runs the handler of an event. After `cancel_after` seconds it is cancelled, as by a worker."""
        batch, job = self._begin(object, event, id, prev, attempt, crashes, timeout)
        if job.handler is not None and job.handler.is_async:
            return asyncio.run(self._asynchronous(batch, job, cancel_after))
        timer = None if cancel_after is None else threading.Timer(cancel_after, batch.cancel, (id,))
        if timer is not None:
            timer.daemon = True
            timer.start()
        outcome = call(job)
        if timer is not None:
            timer.cancel()
        return self._end(batch, job, outcome)

    async def run_async(
        self,
        object: str,
        event: Any,
        *,
        id: int = 1,
        prev: int = 0,
        attempt: int = 1,
        crashes: int = 0,
        timeout: Optional[float] = None,
        cancel_after: Optional[float] = None,
    ) -> Ran:
        """As `run`, in the running event loop. A blocking handler runs in a thread."""
        batch, job = self._begin(object, event, id, prev, attempt, crashes, timeout)
        if job.handler is not None and job.handler.is_async:
            return await self._asynchronous(batch, job, cancel_after)
        loop = asyncio.get_running_loop()
        handle = None if cancel_after is None else loop.call_later(cancel_after, batch.cancel, id)
        outcome = await loop.run_in_executor(None, call, job)
        if handle is not None:
            handle.cancel()
        return self._end(batch, job, outcome)

    async def _asynchronous(self, batch: Batch, job: Job, cancel_after: Optional[float]) -> Ran:
        task = asyncio.ensure_future(call_async(job))
        if cancel_after is not None:
            done, _ = await asyncio.wait([task], timeout=cancel_after)
            if not done:
                batch.cancel(job.id)
                task.cancel()
        return self._end(batch, job, await task)

    def _begin(
        self, object: str, event: Any, id: int, prev: int, attempt: int, crashes: int, timeout: Optional[float]
    ) -> tuple[Batch, Job]:
        self._keys.object(object)
        payload = _json.one_line(_json.encode(event)).decode().strip()
        envelope = (id, prev, _json.decode(payload))
        known = self._once.setdefault((object, id), {})
        line = BatchLine(1, object, attempt - 1, crashes, "test", [envelope], known, _line_of(payload))
        timeout_ms = None if timeout is None else int(timeout * 1000)
        setting = Setting(self._handlers, self._keys, timeout_ms, _LINE_BYTES_MAX)
        batch = Batch(line, setting, lambda number, id, name, value: batch.replied(name, None), _Received())
        job = batch.next()
        assert job is not None
        return batch, job

    def _end(self, batch: Batch, job: Job, outcome: Optional[BaseException]) -> Ran:
        done = job.cx._ledger.done
        self._once[batch.line.object, job.id] = done
        raw = batch.end(job, outcome)
        line: dict[str, Any] = {"type": "ok"} if raw is None else json.loads(raw)
        effects, is_ok = job.cx._effects, line["type"] == "ok"
        after_ms = line.get("retry_after_ms", line.get("after_ms"))
        scheduled = [
            ScheduledEvent(
                one.object,
                json.loads(one.event),
                one.event.decode(),
                one.key,
                None if one.after_ms is None else one.after_ms / 1000,
                None if one.at_ms is None else one.at_ms / 1000,
                one.mode,
            )
            for one in effects.schedules
        ]
        received = cast(_Received, batch.reports)
        emitted = [EmittedEvent(object, json.loads(event), event.decode()) for object, event in effects.emits]
        return Ran(
            line["type"],
            line.get("error", ""),
            outcome,
            None if after_ms is None else after_ms / 1000,
            emitted if is_ok else (),
            scheduled if is_ok else (),
            list(effects.cancels) if is_ok else (),
            line.get("result"),
            None if received.last is None else json.loads(received.last),
            received.lines,
            {name: json.loads(value) for name, value in done.items()},
        )
