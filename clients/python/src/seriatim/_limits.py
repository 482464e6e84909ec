"""The limits of the queues, as far as an emitter knows them (docs/emit.md)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from ._replies import ServerError

#: The seconds after which the limits are read again: without limits, with limits, after a refusal.
LOOK_WITHOUT, LOOK_WITH, LOOK_REFUSED = 5.0, 1.0, 60.0
_COUNT_MAX = 2**64 - 1


@dataclass(frozen=True)
class Limit:
    """The limits of one object. `None`: any number."""

    queued_max: Optional[int] = None
    markers_max: Optional[int] = None


NO_LIMIT = Limit()


def read_limit(value: bytes) -> Optional[Limit]:
    """Reads a value of `event.limits`, a JSON object. Returns `None` if the value is invalid."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    counts = [found.get("queued_max"), found.get("markers_max")]
    for count in counts:
        is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _COUNT_MAX
        if count is not None and not is_count:
            return None
    return Limit(*counts)


class Limits:
    """The table of limits, and the time of the next look. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[str, Limit] = {}
        self._look_at: Optional[float] = None

    @property
    def is_unread(self) -> bool:
        """Whether the limits were never read."""
        return self._look_at is None

    def is_due(self) -> bool:
        """Returns whether the caller is to read the limits now. Other callers then do not."""
        with self._lock:
            now = time.monotonic()
            if self._look_at is not None and now < self._look_at:
                return False
            self._look_at = now + LOOK_WITH
            return True

    def learn(self, reply: Any) -> None:
        """Takes the reply to HGETALL; `None` if there is none."""
        if isinstance(reply, (list, dict)):
            table = {}
            for selector, value in _pairs(reply):
                limit = read_limit(value)
                try:
                    name = selector.decode()
                except UnicodeDecodeError:
                    continue
                if limit is not None:
                    table[name] = limit
            self._table = table
            wait = LOOK_WITH if table else LOOK_WITHOUT
        elif isinstance(reply, ServerError) and reply.code in ("NOPERM", "WRONGTYPE"):
            wait = LOOK_REFUSED
        else:
            wait = LOOK_WITH
        with self._lock:
            self._look_at = time.monotonic() + wait

    def of(self, object: str) -> Optional[Limit]:
        """Returns the limits of an object. Of the limits of queued events, the longest prefix counts."""
        table = self._table
        if not table:
            return None
        everything = table.get("*", NO_LIMIT)
        queued_max = everything.queued_max
        end = object.rfind(":")
        while end >= 0:
            found = table.get(object[: end + 1] + "*")
            if found is not None:
                queued_max = found.queued_max
                break
            end = object.rfind(":", 0, end)
        limit = Limit(queued_max, everything.markers_max)
        return None if limit == NO_LIMIT else limit


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    if isinstance(reply, dict):
        return reply.items()
    return zip(reply[::2], reply[1::2])
