"""Emits whose end their producer awaits."""

from __future__ import annotations

from typing import Any

from ._base import WAIT
from ._ends import EventEnd, Named, timeout_s
from ._flows import Emitted
from ._schedule import Span
from ._waits import AsyncWaits, Waits


class Awaited:
    """An awaited emit that Redis has acknowledged."""

    def __init__(self, waits: Waits, named: Named, emitted: Emitted) -> None:
        self._waits = waits
        self._named = named
        self.object = named.object
        #: The idempotency key, or a made one. With the name, any process can await the end: `end_of`.
        self.name = named.name
        self.events = emitted.events
        self.queued = emitted.queued
        #: Whether an emit with this name was done before. Then nothing was queued, and the end is that of its event.
        self.repeated = emitted.repeated

    def wait(self, timeout: Span = WAIT) -> Any:
        """Waits until the event has ended, at most `timeout` (seconds or timedelta), and returns the result.

        The result and the errors are those of `Emitter.call`. May be called any number of times.
        """
        return self._named.result(self.end(timeout))

    def end(self, timeout: Span = WAIT) -> EventEnd:
        """As `wait`, but returns how the event has ended, also if it was not delivered."""
        return self._waits.end(self._named, timeout_s(timeout))


class AsyncAwaited:
    """As `Awaited`, with asyncio."""

    def __init__(self, waits: AsyncWaits, named: Named, emitted: Emitted) -> None:
        self._waits = waits
        self._named = named
        self.object = named.object
        #: The idempotency key, or a made one. With the name, any process can await the end: `end_of`.
        self.name = named.name
        self.events = emitted.events
        self.queued = emitted.queued
        #: Whether an emit with this name was done before. Then nothing was queued, and the end is that of its event.
        self.repeated = emitted.repeated

    async def wait(self, timeout: Span = WAIT) -> Any:
        """As `Awaited.wait`. If it is cancelled, only the wait ends."""
        return self._named.result(await self.end(timeout))

    async def end(self, timeout: Span = WAIT) -> EventEnd:
        """As `Awaited.end`."""
        return await self._waits.end(self._named, timeout_s(timeout))
