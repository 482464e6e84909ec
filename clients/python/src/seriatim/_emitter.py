"""The emitter over blocking connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, Union, overload

from . import _json
from ._awaited import Awaited
from ._base import CONNECTIONS_MAX, REPLICAS_WAIT, TIMEOUT, WAIT, Base, check_times
from ._ends import EventEnd, timeout_s
from ._flows import Emitted, Flow
from ._many import CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX, EmittedMany, emit_many
from ._replicas import ReplicaWait
from ._schedule import Instant, Schedule, Scheduled, Span, cancel, later, schedule, schedule_many, span_ms
from ._transport import connect, run
from ._waits import Waits

if TYPE_CHECKING:
    import redis

T = TypeVar("T")


class Emitter(Base):
    """Emits events for objects over blocking connections. May be used by several threads.

    If an emit has returned, it comes before every emit of the same object that begins later.

    `redis` is a Redis URL or a `redis.Redis`. The emitter sends each call once: if a connection is lost,
    the outcome of the call is unknown (`OutcomeUnknown`). Only an emit with an idempotency key is sent again.

    With `wait`, each call waits until this number of replicas has its events, at most for `wait_timeout` (1 ms to
    1 minute). Otherwise it raises `Unreplicated`, and its events are queued nevertheless. With `wait_local`, the
    events must be on the disks of the master and of these replicas (`WAITAOF`, Redis 7.2 or Valkey).
    """

    def __init__(
        self,
        redis: Union[str, redis.Redis],
        *,
        namespace: Optional[str] = None,
        timeout: float = TIMEOUT,
        connections_max: int = CONNECTIONS_MAX,
        event_bytes_max: int = _json.EVENT_BYTES_MAX,
        chunk_events_max: int = CHUNK_EVENTS_MAX,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
        wait: int = 0,
        wait_timeout: Span = REPLICAS_WAIT,
        wait_local: bool = False,
    ) -> None:
        replicas = ReplicaWait.of(wait, span_ms(wait_timeout, "wait_timeout"), wait_local)
        super().__init__(namespace, event_bytes_max, chunk_events_max, chunk_bytes_max, replicas)
        blocks = 0.0 if replicas is None else replicas.timeout_ms / 1000
        self._transport, self._is_own = connect(redis, timeout, connections_max, blocks)
        self._waits = Waits(self._transport, self._core.keys)

    @overload
    def emit(
        self,
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = ...,
        data: Any = ...,
        idempotency_key: Optional[str] = ...,
        window: Optional[Span] = ...,
        awaited: Literal[False] = ...,
    ) -> Emitted: ...

    @overload
    def emit(
        self,
        object: str,
        event: Any,
        *,
        idempotency_key: Optional[str] = ...,
        awaited: Literal[True],
        keep: Optional[Span] = ...,
    ) -> Awaited: ...

    def emit(
        self,
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = (),
        data: Any = None,
        idempotency_key: Optional[str] = None,
        window: Optional[Span] = None,
        awaited: bool = False,
        keep: Optional[Span] = None,
    ) -> Union[Emitted, Awaited]:
        """Emits one event: a value that `json` can write, or a `Json` text.

        `subevents` follow the event, and no event of another emit comes between them. `data` is stored
        as the object's state. With an `idempotency_key` a repeated emit is queued once, within `window`
        (seconds or timedelta: 1 minute to 366 days, by default 24 hours).

        With `awaited` the end of the event can be awaited. Such an emit has one event and no data. Redis keeps
        the end for the time `keep` (1 minute to 7 days, by default 1 hour, or 24 hours with an `idempotency_key`).
        """
        check_times(awaited, window, keep)
        draft = self._core.draft(object, event, subevents, data)
        if not awaited:
            return self._run(self._emit(draft, idempotency_key, window))
        named, flow = self._await(draft, idempotency_key, keep, self._waits.inbox)
        return Awaited(self._waits, named, self._run(flow))

    def call(self, object: str, event: Any, timeout: Span = WAIT) -> Any:
        """Emits one event, waits until it has ended, at most `timeout` (seconds or timedelta), and returns the result.

        This is the result of the only handler with a result; `None` without one; a dict by handler id if several
        have one. Raises `EmitError` if the event is not queued, `EventFailed` if it was not delivered, and
        `EndTimedOut` or another `WaitError` if its end is not known: the event goes on.
        """
        seconds = timeout_s(timeout)
        named, flow = self._await(self._core.draft(object, event), None, None, self._waits.inbox)
        # No earlier event has this name. So the wait may begin before the emit.
        with self._waits.joined(named, is_new=True) as end:
            self._run(flow)
            return named.result(end(seconds))

    def end_of(self, object: str, name: str, timeout: Span = WAIT) -> EventEnd:
        """Waits until the event with this name has ended, and returns how it has ended.

        The name is that of an awaited emit, also of another process. `timeout` has at least 0.1 s. All waits share
        one connection. The end of an event of this emitter comes at once, any other within 0.1 s. Raises
        `EndTimedOut`, or another `WaitError`.
        """
        return self._waits.end(self._named(object, name), timeout_s(timeout))

    def emit_many(self, events: Iterable[tuple[str, Any]]) -> EmittedMany:
        """Emits many pairs of object and event, in transactions of up to 1,024 events or 1 MiB.

        The events of an object keep their order. Raises `EmitManyError` if an event is not
        acknowledged. If `events` raises, its error passes on; the earlier transactions have taken effect.
        """
        return self._run(emit_many(self._core, events, self._chunk))

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
    ) -> Scheduled:
        """Schedules an event: it is queued when it is due. Without `after` and `at` it is due at once.

        A later schedule of the object with the same key replaces this one. With `keep_time` it replaces
        only the event, and with `keep_first` nothing.
        """
        draft = later(
            self._core, object, event, after=after, at=at, key=key, keep_time=keep_time, keep_first=keep_first
        )
        return self._run(schedule(self._core, draft))

    def schedule_many(self, schedules: Iterable[Schedule]) -> list[Scheduled]:
        """Schedules many events, in transactions of up to 1,024 events or 1 MiB.

        All times `after` count from the beginning of the call. Raises `ScheduleManyError` at the first failure: a
        schedule with a key can be sent again safely. If `schedules` raises, its error passes on; the earlier
        transactions have taken effect.
        """
        return self._run(schedule_many(self._core, schedules, self._chunk))

    def cancel(self, object: str, key: str) -> str:
        """Cancels the event with this key.

        Returns `cancelled`; `running`: a worker has the event, and it goes on; or `not_found`.
        """
        return self._run(cancel(self._core, object, key))

    def close(self) -> None:
        """Ends all waits, and closes the emitter's own connections. A client of the caller stays open."""
        self._waits.close()
        if self._is_own:
            self._transport.pool.disconnect()

    def __enter__(self) -> Emitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        return run(flow, self._transport.exchange)
