"""The emits, schedules, cancels and the result of a handler. They take effect when its event ends."""

from __future__ import annotations

import threading
from typing import Any, Optional

from . import _json
from ._names import Keys, check_key
from ._schedule import Later
from .errors import HandlerEnded, HandlerFull, InvalidEvent, InvalidResult

EMITS_MAX = 1000
EFFECT_BYTES_MAX = 2 * 1024 * 1024
RESULT_BYTES_MAX = 64 * 1024
#: A schedule and a cancel count as so many emits.
SCHEDULE_EVENTS = 2


def _text(value: str) -> bytes:
    return _json.encode(value)


class Effects:
    """The effects of the handler of one event. May be used by several threads."""

    def __init__(self, keys: Keys, used_bytes: int) -> None:
        self.keys = keys
        self.emits: list[tuple[str, bytes]] = []
        self.schedules: list[Later] = []
        self.cancels: list[tuple[str, str]] = []
        self.result: Optional[bytes] = None
        self._lock = threading.Lock()
        self._events_left = EMITS_MAX
        self._bytes_left = EFFECT_BYTES_MAX - used_bytes
        self._has_ended = False

    def emit(self, object: str, event: Any) -> None:
        name, encoded = self.keys.object(object), _json.encode(event)
        with self._lock:
            self._take(1, len(name) + len(encoded))
            self.emits.append((object, encoded))

    def schedule(self, later: Later) -> None:
        with self._lock:
            self._take(SCHEDULE_EVENTS, len(later.name) + len(later.event) + len(later.key_bytes))
            self.schedules.append(later)

    def cancel(self, object: str, key: str) -> None:
        name, key_bytes = self.keys.object(object), check_key(key)
        with self._lock:
            self._take(SCHEDULE_EVENTS, len(name) + len(key_bytes))
            self.cancels.append((object, key))

    def set_result(self, value: Any) -> None:
        try:
            encoded = _json.encode(value, RESULT_BYTES_MAX, "the result")
        except InvalidEvent as error:
            raise InvalidResult(str(error)) from None
        with self._lock:
            before = len(self.result or b"")
            self._take(0, len(encoded) - before)
            self.result = encoded

    def take_value(self, size: int) -> bool:
        """Takes room for the value of a subtask. Returns whether there was enough."""
        with self._lock:
            if self._has_ended:
                raise HandlerEnded("the handler has ended; its subtasks must end before it")
            if self._bytes_left < size:
                return False
            self._bytes_left -= size
            return True

    def _take(self, events: int, size: int) -> None:
        if self._has_ended:
            raise HandlerEnded("the handler has ended; it must emit before it ends")
        if self._events_left < events or self._bytes_left < size:
            raise HandlerFull(
                f"the handler of an event emits at most {EMITS_MAX} events with {EFFECT_BYTES_MAX} bytes, object names "
                "included: emit fewer, and let the handler of one of them emit the others"
            )
        self._events_left -= events
        self._bytes_left -= size

    def end(self) -> None:
        """After this, nothing can be added."""
        with self._lock:
            self._has_ended = True

    @property
    def is_empty(self) -> bool:
        return not (self.emits or self.schedules or self.cancels or self.result is not None)

    def members(self) -> list[tuple[str, bytes]]:
        """Returns the members of `ok`, as JSON texts."""
        members = []
        if self.emits:
            members.append(("emit", _array([_event(object, event) for object, event in self.emits])))
        if self.schedules:
            members.append(("schedule", _array([_schedule(later) for later in self.schedules])))
        if self.cancels:
            pairs = [b'{"object":' + _text(object) + b',"key":' + _text(key) + b"}" for object, key in self.cancels]
            members.append(("cancel", _array(pairs)))
        if self.result is not None:
            members.append(("result", _json.one_line(self.result)))
        return members


def _array(elements: list[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


def _event(object: str, event: bytes, rest: bytes = b"") -> bytes:
    return b'{"object":' + _text(object) + b',"event":' + _json.one_line(event) + rest + b"}"


def _schedule(later: Later) -> bytes:
    rest = b',"key":' + _text(later.key)
    rest += b',"at_ms":%d' % later.at_ms if later.at_ms is not None else b',"after_ms":%d' % (later.after_ms or 0)
    if later.mode != "replace":
        rest += b',"mode":' + _text(later.mode)
    return _event(later.object, later.event, rest)
