"""The waits of an emitter for the ends of events. One thread or task looks for all of them, over one connection.

It begins with the first wait, and ends with the last one. Ten times a second it reads the ends of all awaited
events. Between these looks it waits for the inbox: the step that ends an event of this emitter pushes the key of
the end there. The looks find the ends of other emitters' events, and those whose entry in the inbox is lost.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any, Callable, Optional, Union

from ._ends import CLOSED, EventEnd, Found, Named, read_end
from ._flows import Flow, Send, Sleep
from ._names import Keys
from ._replies import ServerError, TransportError
from ._transport import AsyncTransport, Transport, run, run_async

#: The seconds between two looks at the same event. Even the shortest wait has this time.
ROUND_S = 0.1
#: The first and the longest pause after a failure of the connection.
AGAIN_S, AGAIN_MAX_S = 0.1, 1.0
#: The most events of one command. An end has up to 64 KiB for each handler with a result.
PER_LOOK = 32
#: With these codes, the same command would fail again. The client leaves out `ERR`.
_LASTING = frozenset(["NOPERM", "WRONGTYPE", "ERR", ""])

_Future = Union["futures.Future[Found]", "asyncio.Future[Found]"]


class Waiting:
    """The awaited ends, and those who wait for them. May be used by several threads."""

    def __init__(self, keys: Keys) -> None:
        self.inbox = os.urandom(16).hex().encode()
        self.inbox_key = keys.event_ends(self.inbox)
        #: The last error, if Redis could not be asked.
        self.unreachable: Optional[str] = None
        self._lock = threading.Lock()
        self._futures: dict[bytes, list[_Future]] = {}
        self._is_watched = False

    def join(self, key: bytes, future: _Future) -> bool:
        """Begins a wait. Returns whether the caller must start the watch."""
        with self._lock:
            self._futures.setdefault(key, []).append(future)
            begins, self._is_watched = not self._is_watched, True
            return begins

    def leave(self, key: bytes, future: _Future) -> None:
        with self._lock:
            waiting = self._futures.get(key, [])
            if future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._futures[key]

    def keys(self) -> list[bytes]:
        """Returns the keys of the awaited ends. If there are none, the watch must end."""
        with self._lock:
            self._is_watched = bool(self._futures)
            return list(self._futures)

    def tell(self, key: bytes, found: Found) -> None:
        """Ends all waits for this key."""
        with self._lock:
            for future in self._futures.pop(key, []):
                if not future.done():
                    future.set_result(found)

    def close(self) -> None:
        """Ends all waits."""
        with self._lock:
            self._close()

    def stop(self) -> None:
        """Ends all waits, because the watch has stopped. The next wait starts another one."""
        with self._lock:
            self._close()
            self._is_watched = False

    def _close(self) -> None:
        while self._futures:
            for future in self._futures.popitem()[1]:
                if not future.done():
                    future.set_result(CLOSED)


def watch(waiting: Waiting) -> Flow[None]:
    """Looks for ends until nobody waits any more."""
    again, has_inbox = AGAIN_S, True
    while True:
        keys = waiting.keys()
        if not keys:
            return
        try:
            has_inbox = yield from _round(waiting, keys, has_inbox)
            again, waiting.unreachable = AGAIN_S, None
        except TransportError as error:
            waiting.unreachable = str(error)
            yield Sleep(again)
            again = min(2 * again, AGAIN_MAX_S)


def _round(waiting: Waiting, keys: list[bytes], has_inbox: bool) -> Flow[bool]:
    """Looks at all these keys, and then waits for the inbox until the next look is due."""
    due = time.monotonic() + ROUND_S
    for at in range(0, len(keys), PER_LOOK):
        yield from _look(waiting, keys[at : at + PER_LOOK])
    while has_inbox:
        left = due - time.monotonic()
        # A time of zero would block for ever.
        if left < 0.001:
            return has_inbox
        pop = (b"BLMPOP", b"%.3f" % left, b"1", waiting.inbox_key, b"RIGHT", b"COUNT", b"%d" % PER_LOOK)
        told = yield from _ask(pop)
        if isinstance(told, ServerError):
            has_inbox = False
        elif isinstance(told, list) and len(told) == 2:
            yield from _look(waiting, told[1])
    yield Sleep(max(0.0, due - time.monotonic()))
    return has_inbox


def _look(waiting: Waiting, keys: list[bytes]) -> Flow[None]:
    """Reads the ends under these keys, and tells those that are there."""
    values = yield from _ask((b"MGET", *keys))
    if isinstance(values, ServerError):
        for key in keys:
            waiting.tell(key, values)
        return
    for key, value in zip(keys, values):
        end = None if value is None else read_end(value)
        if end is not None:
            waiting.tell(key, end)


def _ask(command: tuple[bytes, ...]) -> Flow[Any]:
    """Returns the reply, or a lasting refusal. Raises `TransportError` for any other error."""
    (reply,) = yield Send([command])
    if isinstance(reply, ServerError) and reply.code not in _LASTING:
        raise TransportError(str(reply), sent=True)
    return reply


class Waits:
    """The waits of an `Emitter`. The watch is a thread."""

    def __init__(self, transport: Transport, keys: Keys) -> None:
        self._transport = transport
        self._keys = keys
        self._own = (os.getpid(), Waiting(keys))

    @property
    def _waiting(self) -> Waiting:
        # A forked process has no watch, and an inbox of its own.
        if self._own[0] != os.getpid():
            self._own = (os.getpid(), Waiting(self._keys))
        return self._own[1]

    @property
    def inbox(self) -> bytes:
        return self._waiting.inbox

    def end(self, named: Named, timeout: float) -> EventEnd:
        """Waits for an end, at most so many seconds."""
        with self.joined(named, is_new=False) as take:
            return take(timeout)

    @contextmanager
    def joined(self, named: Named, *, is_new: bool) -> Iterator[Callable[[float], EventEnd]]:
        """Begins a wait, whose end can be taken. `is_new`: the event is not emitted yet."""
        waiting, future = self._waiting, futures.Future[Found]()

        def take(timeout: float) -> EventEnd:
            due = time.monotonic() + max(timeout, ROUND_S)
            # The watch looks again only when its next look is due, and the event may have ended long ago.
            if not is_new and not begins:
                with suppress(TransportError):
                    run(_look(waiting, [named.key]), self._transport.exchange)
            futures.wait([future], max(due - time.monotonic(), 0))
            return named.end(future.result() if future.done() else None, timeout, waiting.unreachable)

        begins = waiting.join(named.key, future)
        try:
            if begins:
                self._start(waiting)
            yield take
        finally:
            waiting.leave(named.key, future)

    def _start(self, waiting: Waiting) -> None:
        try:
            threading.Thread(target=self._watch, args=(waiting,), name="seriatim-waits", daemon=True).start()
        except RuntimeError:
            # The system has no room for another thread.
            waiting.stop()
            raise

    def _watch(self, waiting: Waiting) -> None:
        try:
            reader = self._transport.reader()
            try:
                run(watch(waiting), reader.exchange)
            finally:
                reader.close()
        except BaseException:
            waiting.stop()
            raise

    def close(self) -> None:
        self._waiting.close()


class AsyncWaits:
    """The waits of an `AsyncEmitter`. The watch is a task."""

    def __init__(self, transport: AsyncTransport, keys: Keys) -> None:
        self._transport = transport
        self._waiting = Waiting(keys)
        self._task: Optional[asyncio.Task[None]] = None

    @property
    def inbox(self) -> bytes:
        return self._waiting.inbox

    async def end(self, named: Named, timeout: float) -> EventEnd:
        """As `Waits.end`."""
        with self.joined(named, is_new=False) as take:
            return await take(timeout)

    @contextmanager
    def joined(self, named: Named, *, is_new: bool) -> Iterator[Callable[[float], Awaitable[EventEnd]]]:
        """As `Waits.joined`."""
        waiting, loop = self._waiting, asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()

        async def take(timeout: float) -> EventEnd:
            await asyncio.wait([future], timeout=max(timeout, ROUND_S))
            return named.end(future.result() if future.done() else None, timeout, waiting.unreachable)

        look = None
        if waiting.join(named.key, future):
            self._task = loop.create_task(self._watch())
        elif not is_new:
            look = loop.create_task(self._look(named.key))
        try:
            yield take
        finally:
            waiting.leave(named.key, future)
            if look is not None:
                look.cancel()

    async def _look(self, key: bytes) -> None:
        """Looks once, as in `Waits.joined`."""
        with suppress(TransportError):
            await run_async(_look(self._waiting, [key]), self._transport.exchange)

    async def _watch(self) -> None:
        try:
            reader = self._transport.reader()
            try:
                await run_async(watch(self._waiting), reader.exchange)
            finally:
                await reader.close()
        except BaseException:
            # The loop ends, or the emitter is closed.
            self._waiting.stop()
            raise

    async def close(self) -> None:
        self._waiting.close()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
