"""The emitter for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, Union, overload

from . import _json
from ._awaited import AsyncAwaited
from ._base import CONNECTIONS_MAX, REPLICAS_WAIT, TIMEOUT, WAIT, Base, check_times
from ._ends import EventEnd, timeout_s
from ._flows import Emitted, Flow
from ._many import CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX, EmittedMany, emit_many
from ._replicas import ReplicaWait
from ._schedule import Instant, Schedule, Scheduled, Span, cancel, later, schedule, schedule_many, span_ms
from ._transport import connect_async, run_async
from ._waits import AsyncWaits

if TYPE_CHECKING:
    import redis
    import redis.asyncio

T = TypeVar("T")


class AsyncEmitter(Base):
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
        wait: int = 0,
        wait_timeout: Span = REPLICAS_WAIT,
        wait_local: bool = False,
    ) -> None:
        replicas = ReplicaWait.of(wait, span_ms(wait_timeout, "wait_timeout"), wait_local)
        super().__init__(namespace, event_bytes_max, chunk_events_max, chunk_bytes_max, replicas)
        blocks = 0.0 if replicas is None else replicas.timeout_ms / 1000
        self._transport, self._is_own = connect_async(redis, timeout, connections_max, blocks)
        self._waits = AsyncWaits(self._transport, self._core.keys)

    @overload
    async def emit(
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
    async def emit(
        self,
        object: str,
        event: Any,
        *,
        idempotency_key: Optional[str] = ...,
        awaited: Literal[True],
        keep: Optional[Span] = ...,
    ) -> AsyncAwaited: ...

    async def emit(
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
    ) -> Union[Emitted, AsyncAwaited]:
        """As `Emitter.emit`."""
        check_times(awaited, window, keep)
        draft = self._core.draft(object, event, subevents, data)
        if not awaited:
            return await self._run(self._emit(draft, idempotency_key, window))
        named, flow = self._await(draft, idempotency_key, keep, self._waits.inbox)
        return AsyncAwaited(self._waits, named, await self._run(flow))

    async def call(self, object: str, event: Any, timeout: Span = WAIT) -> Any:
        """As `Emitter.call`. If the call is cancelled, the event may be queued; then it goes on."""
        seconds = timeout_s(timeout)
        named, flow = self._await(self._core.draft(object, event), None, None, self._waits.inbox)
        # No earlier event has this name. So the wait may begin before the emit.
        with self._waits.joined(named, is_new=True) as end:
            await self._run(flow)
            return named.result(await end(seconds))

    async def end_of(self, object: str, name: str, timeout: Span = WAIT) -> EventEnd:
        """As `Emitter.end_of`."""
        return await self._waits.end(self._named(object, name), timeout_s(timeout))

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

    async def schedule_many(self, schedules: Iterable[Schedule]) -> list[Scheduled]:
        """As `Emitter.schedule_many`."""
        return await self._run(schedule_many(self._core, schedules, self._chunk))

    async def cancel(self, object: str, key: str) -> str:
        """As `Emitter.cancel`."""
        return await self._run(cancel(self._core, object, key))

    async def close(self) -> None:
        """As `Emitter.close`."""
        await self._waits.close()
        if self._is_own:
            await self._transport.pool.disconnect()

    async def __aenter__(self) -> AsyncEmitter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._transport.exchange)
