"""The part of an emitter that sends nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

from . import _names
from ._appended import Appended
from ._ends import KEEP_MS, Named, keep_ms
from ._flows import WINDOW_MS, WINDOW_MS_MAX, WINDOW_MS_MIN, Core, Draft, Emitted, Flow, Once, emit
from ._names import Keys
from ._replicas import ReplicaWait
from ._schedule import Span, span_ms
from ._transport import repeats
from .errors import EmitError, NotAwaitable, RepeatWarning

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

#: The time limit in seconds for a connection, and for a reply.
TIMEOUT = 5.0
#: The most connections of an emitter. Further calls wait for a free one.
CONNECTIONS_MAX = 16
#: The time in seconds of a wait for the end of an event, and of one for replicas.
WAIT = 30.0
REPLICAS_WAIT = 1.0
_NO_WINDOW = "an awaited emit has no window; keep sets the time for which Redis keeps its name and its end"
_NO_KEEP = "keep belongs to an awaited emit: give awaited=True, or a window"
_NOT_APPENDED = (
    "an emit in your own transaction has no idempotency key: write a key of your own in the transaction, "
    "and look at it under WATCH"
)


def check_times(awaited: bool, window: Optional[Span], keep: Optional[Span]) -> None:
    if awaited and window is not None:
        raise TypeError(_NO_WINDOW)
    if not awaited and keep is not None:
        raise TypeError(_NO_KEEP)


class Base:
    """The part of an emitter that sends nothing."""

    def __init__(
        self,
        namespace: Optional[str],
        event_bytes_max: int,
        chunk_events_max: int,
        chunk_bytes_max: int,
        wait: Optional[ReplicaWait],
    ) -> None:
        self._core = Core(Keys(namespace), event_bytes_max, wait=wait)
        self._chunk = (max(1, chunk_events_max), chunk_bytes_max)

    @property
    def namespace(self) -> Optional[str]:
        return self._core.keys.namespace

    def _emit(self, draft: Draft, idempotency_key: Optional[str], window: Optional[Span]) -> Flow[Emitted]:
        if idempotency_key is None:
            if window is not None:
                raise TypeError("a window belongs to an idempotency_key")
            return emit(self._core, draft, None)
        key = _names.check_key(idempotency_key)
        window_ms = WINDOW_MS if window is None else span_ms(window, "window")
        return emit(self._core, draft, Once(key, min(max(window_ms, WINDOW_MS_MIN), WINDOW_MS_MAX)))

    def _await(
        self, draft: Draft, idempotency_key: Optional[str], keep: Optional[Span], inbox: bytes
    ) -> tuple[Named, Flow[Emitted]]:
        """Returns the event that an awaited emit queues, and the emit. Its errors have the name of the event."""
        if len(draft.events) > 1 or draft.data is not None:
            raise NotAwaitable(draft.object)
        name = _names.make_key() if idempotency_key is None else idempotency_key
        key = _names.check_awaited(name)
        window_ms = keep_ms(keep, KEEP_MS if idempotency_key is None else WINDOW_MS)
        once = Once(key, window_ms, (window_ms // 1000, inbox))
        named = Named(draft.object, name, self._core.keys.event_end(draft.name, key))
        return named, _with_name(name, emit(self._core, draft, once))

    def _named(self, object: str, name: str) -> Named:
        key = self._core.keys.event_end(self._core.keys.object(object), _names.check_key(name))
        return Named(object, name, key)

    def append_to(
        self,
        pipe: Union[Pipeline, AsyncPipeline],
        object: str,
        event: Any,
        *,
        subevents: Iterable[Any] = (),
        data: Any = None,
        **unknown: NoReturn,
    ) -> Appended:
        """Appends the commands of an emit to a transaction of the caller, so that both take effect together.

        `Appended.outcome` reads the reply of the transaction. After an error here the pipeline is
        unchanged. Limits do not bind this emit, and it does not wait for replicas.
        """
        for name in unknown:
            raise TypeError(_unknown(f"{type(self).__name__}.append_to()", name))
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


def _unknown(call: str, name: str) -> str:
    """Returns the error of an argument that `append_to` does not have."""
    text = f"{call} got an unexpected keyword argument {name!r}"
    if name in ("idempotency_key", "window"):
        return f"{text}: {_NOT_APPENDED}"
    if name in ("awaited", "keep"):
        return f"{text}: its end cannot be awaited, because {_NOT_APPENDED}"
    return text


def _with_name(name: str, flow: Flow[Emitted]) -> Flow[Emitted]:
    try:
        return (yield from flow)
    except EmitError as error:
        error.name = name
        raise
