"""The emitters: the same calls, blocking and for asyncio."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from . import _json, _names
from ._appended import Appended
from ._flows import (
    WINDOW_MS,
    WINDOW_MS_MAX,
    WINDOW_MS_MIN,
    Core,
    Draft,
    Emitted,
    Flow,
    Sleep,
    emit,
)
from ._many import CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX, EmittedMany, emit_many
from ._names import Keys
from ._replies import TransportError
from ._schedule import Instant, Scheduled, Span, cancel, later, schedule, span_ms
from ._transport import connect, connect_async, repeats
from .errors import RepeatWarning

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

T = TypeVar("T")
#: The time limit in seconds for a connection, and for a reply.
TIMEOUT = 5.0
#: The most connections of an emitter. Further calls wait for a free one.
CONNECTIONS_MAX = 16


class _Base:
    """The part of an emitter that sends nothing."""

    def __init__(
        self, namespace: Optional[str], event_bytes_max: int, chunk_events_max: int, chunk_bytes_max: int
    ) -> None:
        self._core = Core(Keys(namespace), event_bytes_max)
        self._chunk = (max(1, chunk_events_max), chunk_bytes_max)

    @property
    def namespace(self) -> Optional[str]:
        return self._core.keys.namespace

    def _emit(
        self,
        object: str,
        event: Any,
        subevents: Iterable[Any],
        data: Any,
        idempotency_key: Optional[str],
        window: Optional[Span],
    ) -> Flow[Emitted]:
        draft = self._core.draft(object, event, subevents, data)
        key = None if idempotency_key is None else _names.check_key(idempotency_key)
        if window is not None and key is None:
            raise TypeError("a window belongs to an idempotency_key")
        window_ms = WINDOW_MS if window is None else span_ms(window, "window")
        return emit(self._core, draft, key, min(max(window_ms, WINDOW_MS_MIN), WINDOW_MS_MAX))

    def append_to(
        self,
        pipe: Union[Pipeline, AsyncPipeline],
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = (),
        data: Any = None,
    ) -> Appended:
        """Appends the commands of an emit to a transaction of the caller, so that both take effect together.

        `Appended.outcome` reads the reply of the transaction. After an error here the pipeline is
        unchanged. Limits do not bind this emit.
        """
        Appended.check(pipe)
        draft: Draft = self._core.draft(object, event, subevents, data)
        if repeats(pipe):
            warnings.warn(
                "the Redis client repeats a transaction by itself if its connection is lost, so this emit may be "
                "queued twice; make the client with retry=Retry(NoBackoff(), 0)",
                RepeatWarning,
                stacklevel=2,
            )
        return Appended.append(pipe, draft)


class Emitter(_Base):
    """Emits events for objects over blocking connections. May be used by several threads.

    If an emit has returned, it comes before every emit of the same object that begins later.

    `redis` is a Redis URL or a `redis.Redis`. The emitter sends each call once: if a connection is lost,
    the outcome of the call is unknown (`OutcomeUnknown`). Only an emit with an idempotency key is sent again.
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
    ) -> None:
        super().__init__(namespace, event_bytes_max, chunk_events_max, chunk_bytes_max)
        self._transport, self._is_own = connect(redis, timeout, connections_max)

    def emit(
        self,
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = (),
        data: Any = None,
        idempotency_key: Optional[str] = None,
        window: Optional[Span] = None,
    ) -> Emitted:
        """Emits one event: a value that `json` can write, or a `Json` text.

        `subevents` follow the event, and no event of another emit comes between them. `data` is stored
        as the object's state. With an `idempotency_key` a repeated emit is queued once, within `window`
        (seconds or timedelta: 1 minute to 366 days, by default 24 hours).
        """
        return self._run(self._emit(object, event, subevents, data, idempotency_key, window))

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

    def cancel(self, object: str, key: str) -> str:
        """Cancels the event with this key.

        Returns `cancelled`; `running`: a worker has the event, and it goes on; or `not_found`.
        """
        return self._run(cancel(self._core, object, key))

    def close(self) -> None:
        """Closes the emitter's own connections. A client of the caller stays open."""
        if self._is_own:
            self._transport.pool.disconnect()

    def __enter__(self) -> Emitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        reply: Any = None
        error: Optional[TransportError] = None
        while True:
            try:
                request = flow.send(reply) if error is None else flow.throw(error)
            except StopIteration as over:
                result: T = over.value
                return result
            reply = error = None
            if isinstance(request, Sleep):
                time.sleep(request.seconds)
                continue
            try:
                reply = self._transport.exchange(request.commands)
            except TransportError as failed:
                error = failed


class AsyncEmitter(_Base):
    """Emits events for objects with asyncio: the calls of `Emitter`, to be awaited.

    If a call is cancelled, its outcome is unknown.
    """

    def __init__(
        self,
        redis: Union[str, redis.asyncio.Redis],
        *,
        namespace: Optional[str] = None,
        timeout: float = TIMEOUT,
        connections_max: int = CONNECTIONS_MAX,
        event_bytes_max: int = _json.EVENT_BYTES_MAX,
        chunk_events_max: int = CHUNK_EVENTS_MAX,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        super().__init__(namespace, event_bytes_max, chunk_events_max, chunk_bytes_max)
        self._transport, self._is_own = connect_async(redis, timeout, connections_max)

    async def emit(
        self,
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = (),
        data: Any = None,
        idempotency_key: Optional[str] = None,
        window: Optional[Span] = None,
    ) -> Emitted:
        """As `Emitter.emit`."""
        return await self._run(self._emit(object, event, subevents, data, idempotency_key, window))

    async def emit_many(self, events: Iterable[tuple[str, Any]]) -> EmittedMany:
        """As `Emitter.emit_many`."""
        return await self._run(emit_many(self._core, events, self._chunk))

    async def schedule(
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
        """As `Emitter.schedule`."""
        draft = later(
            self._core, object, event, after=after, at=at, key=key, keep_time=keep_time, keep_first=keep_first
        )
        return await self._run(schedule(self._core, draft))

    async def cancel(self, object: str, key: str) -> str:
        """As `Emitter.cancel`."""
        return await self._run(cancel(self._core, object, key))

    async def close(self) -> None:
        """Closes the emitter's own connections. A client of the caller stays open."""
        if self._is_own:
            await self._transport.pool.disconnect()

    async def __aenter__(self) -> AsyncEmitter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        reply: Any = None
        error: Optional[TransportError] = None
        while True:
            try:
                request = flow.send(reply) if error is None else flow.throw(error)
            except StopIteration as over:
                result: T = over.value
                return result
            reply = error = None
            if isinstance(request, Sleep):
                await asyncio.sleep(request.seconds)
                continue
            try:
                reply = await self._transport.exchange(request.commands)
            except TransportError as failed:
                error = failed
