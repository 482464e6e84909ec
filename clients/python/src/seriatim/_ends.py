"""The end of an awaited event, and the times of a wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _json
from ._replies import ServerError
from ._schedule import Span, span_ms
from .errors import EndRefused, EndTimedOut, EventFailed, WaitClosed

#: The default time in ms for which the end is kept. Then the shortest and the longest one.
KEEP_MS = 60 * 60 * 1000
KEEP_MS_MIN, KEEP_MS_MAX = 60 * 1000, 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True)
class EventEnd:
    """How an awaited event has ended."""

    #: `completed`, `completed_with_errors`, `dead` or `cancelled`. Only `completed` events were delivered.
    status: str
    #: `None` if an operator has cancelled the event before a worker took it.
    id: Optional[int] = None
    #: The last error; `None` if the event was delivered.
    error: Optional[str] = None
    #: The number of failed attempts.
    attempts: int = 0
    #: The results of its handlers, by handler id. `None` if they have set none.
    results: Optional[dict[str, Any]] = None

    @property
    def result(self) -> Any:
        """The result of the only handler with a result; `None` without one; a dict by id if several have one."""
        results = self.results
        if results is not None and len(results) == 1:
            (only,) = results.values()
            return only
        return results


@dataclass(frozen=True)
class Named:
    """An awaited event: its object, its name, and the key in Redis of its end."""

    object: str
    name: str
    key: bytes

    def end(self, found: Found, timeout: float, unreachable: Optional[str]) -> EventEnd:
        """Returns the end that a wait has found, or raises its error."""
        if isinstance(found, EventEnd):
            return found
        if isinstance(found, ServerError):
            raise EndRefused(self.object, self.name, str(found))
        if found is CLOSED:
            raise WaitClosed(self.object, self.name)
        raise EndTimedOut(self.object, self.name, timeout, unreachable)

    def result(self, end: EventEnd) -> Any:
        """Returns the result of a delivered event. Raises `EventFailed` for any other end."""
        if end.status != "completed":
            raise EventFailed(self.object, self.name, end)
        return end.result


class _Closed:
    pass


#: The emitter was closed.
CLOSED = _Closed()
#: What a wait has found: the end, the refusal of Redis, or `CLOSED`; `None` if its time is over.
Found = Union[EventEnd, ServerError, _Closed, None]


def read_end(value: bytes) -> Optional[EventEnd]:
    """Reads the value of the key of an end. Returns `None` if the event has not ended.

    A value that somebody else has written ends the wait, with an empty status.
    """
    if value.startswith(b"?"):
        return None
    try:
        found = _json.decode(value.decode(errors="replace"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {}
    status, id, error, attempts, results = map(found.get, ("status", "id", "error", "attempts", "results"))
    return EventEnd(
        status if isinstance(status, str) else "",
        id if isinstance(id, int) and id > 0 else None,
        error if isinstance(error, str) else None,
        attempts if isinstance(attempts, int) else 0,
        results if isinstance(results, dict) else None,
    )


def keep_ms(keep: Optional[Span], default_ms: int) -> int:
    """Returns the time for which an end is kept. Other times are cut to the range."""
    found = default_ms if keep is None else span_ms(keep, "keep")
    return min(max(found, KEEP_MS_MIN), KEEP_MS_MAX)


def timeout_s(timeout: Span) -> float:
    """Returns the time of a wait in seconds."""
    return min(span_ms(timeout, "timeout") / 1000, threading.TIMEOUT_MAX)
