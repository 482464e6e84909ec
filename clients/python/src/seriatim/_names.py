"""Names of objects, keys of schedules, due times, and the keys in Redis, with the rules of all producers."""

from __future__ import annotations

import itertools
import os
import re
import time
import unicodedata
from typing import Optional

from .errors import InvalidKey, InvalidName, InvalidNamespace, InvalidTime, shown

NAME_BYTES_MAX = 512
KEY_BYTES_MAX = 256
#: The event `NAME` has the key `?SECONDS NAME`, with at most 604,800 seconds.
AWAITED_BYTES_MAX = KEY_BYTES_MAX - len("?604800 ")
NAMESPACE_BYTES_MAX = 64
#: The longest time until an event is due: a hundred years, with leap years.
DUE_MS_MAX = 36_600 * 24 * 3600 * 1000

_MADE_COUNT = itertools.count()
_MADE_START_MS = int(time.time() * 1000)
#: A forked process makes keys of its own.
_made_random = (0, "")


def _control(text: str) -> Optional[tuple[int, int]]:
    """Returns the code point and the byte position of the first control character."""
    if text.isprintable():
        return None
    for at, character in enumerate(text):
        if unicodedata.category(character) == "Cc":
            return ord(character), len(text[:at].encode())
    return None


def _encoded(text: object, what: str, error: type[InvalidName] | type[InvalidKey]) -> bytes:
    if not isinstance(text, str):
        raise error(f"{what} is a str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as bad:
        raise error(f"{what} is UTF-8, this one has a lone surrogate at character {bad.start}") from None


def _checked(text: str, what: str, bytes_max: int, error: type[InvalidName] | type[InvalidKey]) -> bytes:
    encoded = _encoded(text, what, error)
    if not encoded:
        raise error(f"{what} must not be empty")
    if len(encoded) > bytes_max:
        raise error(f"{what} has at most {bytes_max} bytes, this one has {len(encoded)}")
    control = _control(text)
    if control:
        raise error(f"{what} has no control characters, this one has U+{control[0]:04X} at byte {control[1]}")
    return encoded


def check_name(name: str) -> bytes:
    """Checks the name of an object, apart from the rule about braces. Returns its bytes."""
    return _checked(name, "an object name", NAME_BYTES_MAX, InvalidName)


def check_key(key: str) -> bytes:
    """Checks the key of a schedule, or an idempotency key. Returns its bytes."""
    return _checked(key, "a key", KEY_BYTES_MAX, InvalidKey)


def check_awaited(name: str) -> bytes:
    """Checks the name of an awaited event. Its event is queued under a longer key. Returns its bytes."""
    return _checked(name, "the name of an awaited event", AWAITED_BYTES_MAX, InvalidKey)


def make_key() -> str:
    """Returns a key that no other schedule or awaited event has. Later keys of a process are greater."""
    global _made_random
    if _made_random[0] != os.getpid():
        _made_random = (os.getpid(), os.urandom(8).hex())
    return f"-{_MADE_START_MS:013d}-{next(_MADE_COUNT):012d}-{_made_random[1]}"


def check_due(due_ms: int) -> None:
    """Checks a point in time, in ms since 1970, by the clock of this machine."""
    check_after(due_ms - int(time.time() * 1000))


def check_after(after_ms: int) -> None:
    """Checks the time until an event is due, in ms."""
    if after_ms > DUE_MS_MAX:
        raise InvalidTime("an event is due at most 100 years from now; is a number in ms where seconds are expected?")


class Keys:
    """Spells the keys of one namespace."""

    def __init__(self, namespace: Optional[str] = None) -> None:
        self.namespace = namespace
        if namespace is None:
            self.prefix = b""
        elif not re.fullmatch(f"[A-Za-z0-9_.-]{{1,{NAMESPACE_BYTES_MAX}}}", namespace):
            raise InvalidNamespace(
                f"namespace {shown(namespace)!r} is not 1 to {NAMESPACE_BYTES_MAX} of the characters A-Z a-z 0-9 _ . -"
            )
        else:
            self.prefix = b"{" + namespace.encode() + b":0}:"

    def object(self, name: str) -> bytes:
        """Checks the name of an object for use under these keys. Returns its bytes."""
        encoded = check_name(name)
        if not self.prefix and encoded.startswith(b"{"):
            raise InvalidName(
                f"without a namespace, an object name must not begin with '{{': \"{shown(name)}\"; "
                "choose another name or use a namespace"
            )
        return encoded

    def events(self, object: bytes) -> bytes:
        return self.prefix + object + b":events"

    def data(self, object: bytes) -> bytes:
        return self.prefix + object + b":data"

    def event_key(self, object: bytes) -> bytes:
        return self.prefix + object + b":event.key"

    def scheduled_of(self, object: bytes) -> bytes:
        return self.prefix + object + b":events.scheduled"

    def event_end(self, object: bytes, name: bytes) -> bytes:
        return self.prefix + object + b"\n" + name + b":event.end"

    def event_ends(self, inbox: bytes) -> bytes:
        return self.prefix + b"\n" + inbox + b":event.ends"

    @property
    def markers(self) -> bytes:
        return self.prefix + b"objects.with.events"

    @property
    def held(self) -> bytes:
        return self.prefix + b"objects.held"

    @property
    def limits(self) -> bytes:
        return self.prefix + b"event.limits"

    @property
    def scheduled(self) -> bytes:
        return self.prefix + b"events.scheduled"

    @property
    def wake(self) -> bytes:
        return self.prefix + b"events.scheduled.wake"
