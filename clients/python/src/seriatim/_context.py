"""The context of a handler: facts about its event, and what the handler can do."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar, Union, cast, overload

from . import _json
from ._effects import EFFECT_BYTES_MAX, Effects
from ._flows import Core
from ._ledger import SUBTASK_BYTES_MAX, SUBTASK_VALUE_BYTES_MAX, SUBTASKS_MAX, Ledger
from ._reports import Reports
from ._schedule import Instant, Span, later
from .errors import InvalidEvent, shown
from .outcomes import Cancelled, Rejected, Transient

if TYPE_CHECKING:
    from ._batch import Batch

T = TypeVar("T")


class Fence(NamedTuple):
    """The values with which the handler's own store can refuse late writes."""

    #: The token of the worker process.
    token: Optional[str]
    #: The event's id. Within an object ids only grow.
    id: int


class _Context:
    """The parts that few handlers use are made when they are used first, maybe by several threads at once.

    So the end of the handler and a cancel first set a mark, and then look for the part. Who makes a part first
    shows it, and then looks for the mark.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_at",
        "_batch",
        "_event",
        "_has_ended",
        "_is_cancelled",
        "_made_effects",
        "_made_ledger",
        "_made_reports",
        "attempt",
        "crashes",
        "deadline",
        "id",
        "object",
        "prev",
        "token",
        "traceparent",
        "type",
    )

    def __init__(
        self, batch: Batch, at: int, id: int, prev: int, type: Optional[str], traceparent: Optional[str]
    ) -> None:
        line, timeout = batch.line, batch.setting.timeout
        self._batch = batch
        self._at = at
        self._event: Optional[threading.Event] = None
        self._made_effects: Optional[Effects] = None
        self._made_ledger: Optional[Ledger] = None
        self._made_reports: Optional[Reports] = None
        self._has_ended = False
        self._is_cancelled = False
        #: The event's id, and the id of the event of the object that was delivered last before it, or 0.
        self.id = id
        self.prev = prev
        self.object = line.object
        #: The member `type` of the event, if this is a text.
        self.type = type
        #: The number of this attempt, from 1. A crash is not an attempt.
        self.attempt = 1 if at else line.attempts + 1
        #: The number of crashes of programs and workers with this event in hand.
        self.crashes = 0 if at else line.crashes
        #: The token of the worker process.
        self.token = line.token
        #: The member `traceparent` of the event, if this is a text.
        self.traceparent = traceparent
        #: The time, by `time.monotonic()`, at which the handler is cancelled; `None`: never.
        self.deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def payload(self) -> str:
        """The event as text, as it was emitted: without the blanks around it, and with blanks for line ends."""
        return self._batch.line.payload(self._at)

    @property
    def cancelled(self) -> threading.Event:
        """Set when the worker asks for the end of the handler: its time is over, or another worker may have
        the event. Work after that is in vain."""
        event = self._event
        if event is None:
            event = self._event = cast(threading.Event, self.__dict__.setdefault("_event", threading.Event()))
            if self._is_cancelled:
                event.set()
        return event

    @property
    def _effects(self) -> Effects:
        made = self._made_effects
        if made is None:
            used = sum(map(len, self._batch.line.once.values())) if self._at == 0 else 0
            own = Effects(self._batch.setting.keys, used)
            made = self._made_effects = cast(Effects, self.__dict__.setdefault("_effects", own))
            if self._has_ended:
                made.end()
        return made

    @property
    def _ledger(self) -> Ledger:
        made = self._made_ledger
        if made is None:
            batch = self._batch
            done = dict(batch.line.once) if self._at == 0 else {}
            own = Ledger(done, partial(batch.store, batch.number, self.id))
            made = self._made_ledger = cast(Ledger, self.__dict__.setdefault("_ledger", own))
            if self._is_cancelled:
                made.cancel(_cancelled())
        return made

    @property
    def _reports(self) -> Reports:
        made = self._made_reports
        if made is None:
            own = Reports(self._batch.reports, self._batch.number, self.id)
            made = self._made_reports = cast(Reports, self.__dict__.setdefault("_reports", own))
            if self._has_ended:
                made.end()
        return made

    def _fire(self) -> None:
        """Cancels the handler."""
        self._is_cancelled = True
        if self._event is not None:
            self._event.set()
        if self._made_ledger is not None:
            self._made_ledger.cancel(_cancelled())

    def _was_cancelled(self) -> bool:
        event = self._event
        return self._is_cancelled if event is None else event.is_set()

    def _under_way(self) -> Optional[Future[None]]:
        """Returns the store of a subtask that waits for its reply."""
        return None if self._made_ledger is None else self._made_ledger.under_way()

    def _end(self) -> Optional[Effects]:
        """Ends the handler: after this, it can report nothing, and nothing can be added to its effects."""
        self._has_ended = True
        if self._made_reports is not None:
            self._made_reports.end()
        effects = self._made_effects
        if effects is not None:
            effects.end()
        return effects

    @property
    def fence(self) -> Fence:
        return Fence(self.token, self.id)

    @property
    def time_left(self) -> float:
        """The seconds until the handler is cancelled."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raises `Cancelled` if the worker has asked for the end of the handler."""
        if self._was_cancelled():
            raise _cancelled()

    def emit(self, object: str, event: Any) -> None:
        """Emits an event with the success of the handler, exactly once. If the handler fails, nothing is emitted."""
        self._effects.emit(object, event)

    def schedule(
        self,
        object: str,
        event: Any,
        *,
        after: Optional[Span] = None,
        at: Optional[Instant] = None,
        key: Optional[str] = None,
        keep_time: bool = False,
        keep_first: bool = False,
    ) -> str:
        """Schedules an event with the success of the handler. `after` counts from then. Returns the key."""
        draft = later(
            Core(self._batch.setting.keys),
            object,
            event,
            after=after,
            at=at,
            key=key,
            keep_time=keep_time,
            keep_first=keep_first,
        )
        self._effects.schedule(draft)
        return draft.key

    def cancel(self, object: str, key: str) -> None:
        """Cancels a schedule with the success of the handler, before the handler's own schedules are set."""
        self._effects.cancel(object, key)

    def result(self, value: Any) -> None:
        """Sets the result of the handler, at most 64 KiB of JSON. With the event log on, it is in the event's row."""
        self._effects.set_result(value)

    def progress(self, value: Any) -> None:
        """Reports how far the handler is, at most 1 KiB of JSON, for people: `seriatim inspect` shows the last one.

        May be called often. A report is advice: it can be lost, and ends with the run of the handler.
        """
        self._reports.progress(value)

    def log(self, text: str) -> None:
        """Adds a line to the log of the worker, with the object and the id. `seriatim inspect` shows the last ten.

        The first 1,000 bytes are kept. Of lines that come faster than the worker reads, the last 100 are kept.
        """
        self._reports.log(text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.object)} id={self.id} attempt={self.attempt}>"

    def _known(self, name: str) -> Optional[str]:
        """Returns the value of a subtask that is done, as JSON text. Raises if the subtask must not run."""
        size = len(name.encode(errors="replace"))
        if not 1 <= size <= SUBTASK_BYTES_MAX:
            raise Rejected(f"the name of a subtask has 1 to {SUBTASK_BYTES_MAX} bytes, not {size}")
        done = self._ledger.done
        if name not in done and len(done) >= SUBTASKS_MAX:
            raise Transient(
                f"the handlers of one event name at most {SUBTASKS_MAX} subtasks, and this one more was not run: guard "
                "several steps by one subtask, or emit events whose handlers do the rest; subtasks that are done stay "
                f"done; refused: {name!r}"
            )
        return done.get(name)

    def _store(self, name: str, value: Any) -> tuple[Future[None], bytes]:
        try:
            encoded = _json.one_line(_json.encode(value, 1 << 62))
        except InvalidEvent as error:
            raise Rejected(f"the subtask {name!r} has run, but its value is not JSON: {error}") from None
        if len(encoded) > SUBTASK_VALUE_BYTES_MAX:
            raise Rejected(
                f"the subtask {name!r} has run, but its value has {len(encoded)} bytes of JSON, the limit is "
                f"{SUBTASK_VALUE_BYTES_MAX}; keep it in a store, and return a reference"
            )
        if not self._effects.take_value(len(encoded)):
            raise Rejected(
                f"the subtask {name!r} has run, but its value does not fit: the emits, results and values of one event "
                f"have at most {EFFECT_BYTES_MAX} bytes together"
            )
        if self.token is None:
            raise Transient("this worker is too old for subtasks: update the program seriatim")
        return self._ledger.store(name, encoded), encoded


def _cancelled() -> Cancelled:
    return Cancelled("the handler was cancelled")


class Context(_Context):
    """The context of a handler that is a plain function. It runs in a thread."""

    __slots__ = ()

    def _lock(self, name: str) -> threading.Lock:
        """Returns the lock of a subtask."""
        locks: dict[str, threading.Lock] = self.__dict__.setdefault("_locks", {})
        return locks.setdefault(name, threading.Lock())

    def once(self, name: str, run: Callable[[], T]) -> T:
        """Runs a subtask and returns its value. If the subtask is done, returns its stored value.

        The value is stored at once, at most 64 KiB of JSON. So the subtask succeeds once, unless the
        process dies between the success and the store. The value comes back as JSON gives it: a tuple is
        then a list.
        """
        with self._lock(name):
            known = self._known(name)
            if known is None:
                self.raise_if_cancelled()
                stored, value = self._store(name, run())
                stored.result()
                known = value.decode()
            return cast(T, _json.decode(known))


class AsyncContext(_Context):
    """The context of a handler that is an `async def` function. It runs in the event loop."""

    __slots__ = ()

    def _lock(self, name: str) -> asyncio.Lock:
        """Returns the lock of a subtask."""
        locks: dict[str, asyncio.Lock] = self.__dict__.setdefault("_locks", {})
        return locks.setdefault(name, asyncio.Lock())

    @overload
    async def once(self, name: str, run: Callable[[], Awaitable[T]]) -> T: ...
    @overload
    async def once(self, name: str, run: Callable[[], T]) -> T: ...
    async def once(self, name: str, run: Callable[[], Union[Awaitable[T], T]]) -> T:
        """As `Context.once`. `run` may return an awaitable."""
        async with self._lock(name):
            known = self._known(name)
            if known is None:
                returned = run()
                stored, value = self._store(name, await returned if inspect.isawaitable(returned) else returned)
                await asyncio.wrap_future(stored)
                known = value.decode()
            return cast(T, _json.decode(known))
