"""The lines of the handler protocol, version 1 (docs/handlers-protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Union

from . import _json

VERSION = 1
ERROR_BYTES_MAX = 1000
#: The longest line of this program if the worker does not say otherwise.
LINE_BYTES_MAX = 1024 * 1024
#: The longest wait that an outcome may ask for: 366 days.
WAIT_MS_MAX = 366 * 24 * 3600 * 1000


class ProtocolError(Exception):
    """A line of the worker is not of the protocol."""


@dataclass(frozen=True)
class Hello:
    protocol: int
    line_bytes_max: int
    timeout_ms: Optional[int]
    cancel_ms: int


@dataclass(frozen=True)
class Envelope:
    """An event of a batch."""

    id: int
    prev: int
    #: The event as text, and its value. The value is an exception if Python cannot read the text.
    payload: str
    event: Any


@dataclass(frozen=True)
class BatchLine:
    batch: int
    object: str
    attempts: int
    crashes: int
    token: Optional[str]
    events: list[Envelope]
    #: The subtasks of the first event that are done, with their values as JSON texts.
    once: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CancelLine:
    batch: int
    id: int


@dataclass(frozen=True)
class OnceLine:
    batch: int
    id: int
    name: str
    error: Optional[str]


@dataclass(frozen=True)
class StopLine:
    grace_ms: int


Line = Union[Hello, BatchLine, CancelLine, OnceLine, StopLine, None]


class _Found(NamedTuple):
    """A member of an object: its value, and its place in the text."""

    value: Any
    begin: int
    end: int


#: Reads a value that begins at a place. Returns the value and its end.
_Read = Callable[[str, int], tuple[Any, int]]


def parse(raw: bytes) -> Line:
    """Reads a line of the worker. Returns `None` for a line of an unknown type."""
    try:
        text = raw.decode()
        found, end = _members(text, _json.skip_blanks(text, 0), {"events": _envelopes, "once": _texts})
        if _json.skip_blanks(text, end) != len(text):
            raise ValueError(f"the line goes on behind character {end}")
        return _line({name: one.value for name, one in found.items()})
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        begin = raw[:60].decode(errors="replace")
        raise ProtocolError(f"the line {begin!r} is not of the protocol: {type(error).__name__}: {error}") from None


def _line(line: dict[str, Any]) -> Line:
    kind = line["type"]
    if kind == "hello":
        return Hello(
            int(line["protocol"]),
            int(line.get("line_bytes_max", LINE_BYTES_MAX)),
            line.get("timeout_ms"),
            int(line.get("cancel_ms", 5000)),
        )
    if kind == "batch":
        if not line["events"]:
            raise ValueError("a batch has no events")
        return BatchLine(
            int(line["batch"]),
            line["object"],
            int(line["attempts"]),
            int(line["crashes"]),
            line.get("token"),
            line["events"],
            line.get("once", {}),
        )
    if kind == "cancel":
        return CancelLine(int(line["batch"]), int(line["id"]))
    if kind == "once":
        return OnceLine(int(line["batch"]), int(line["id"]), line["name"], line.get("error"))
    if kind == "stop":
        return StopLine(int(line.get("grace_ms", 0)))
    return None


def _members(text: str, at: int, special: dict[str, _Read]) -> tuple[dict[str, _Found], int]:
    """Reads a JSON object. The members in `special` have their own way to be read."""
    at = _sign(text, at, "{")
    members: dict[str, _Found] = {}
    while text[at] != "}":
        if text[at] != '"':
            raise ValueError(f"there is no name at character {at}")
        name, at = _json.read(text, at)
        at = _sign(text, at, ":")
        value, end = special.get(name, _json.read)(text, at)
        members[name] = _Found(value, at, end)
        at = _behind(text, end, "}")
    return members, at + 1


def _envelopes(text: str, at: int) -> tuple[list[Envelope], int]:
    """Reads the events of a batch. Each stays byte for byte."""
    at = _sign(text, at, "[")
    envelopes = []
    while text[at] != "]":
        found, end = _members(text, at, {"event": _json.read_or_skip})
        event = found["event"]
        payload = text[event.begin : event.end]
        envelopes.append(Envelope(int(found["id"].value), int(found["prev"].value), payload, event.value))
        at = _behind(text, end, "]")
    return envelopes, at + 1


def _texts(text: str, at: int) -> tuple[dict[str, str], int]:
    """Reads a JSON object whose values stay texts."""
    found, end = _members(text, at, {})
    return {name: text[one.begin : one.end] for name, one in found.items()}, end


def _sign(text: str, at: int, sign: str) -> int:
    """Returns the place behind a sign and the blanks around it."""
    at = _json.skip_blanks(text, at)
    if text[at] != sign:
        raise ValueError(f"there is no {sign} at character {at}")
    return _json.skip_blanks(text, at + 1)


def _behind(text: str, end: int, close: str) -> int:
    """Returns the begin of the next element, or the place of the closing bracket."""
    at = _json.skip_blanks(text, end)
    if text[at] == close:
        return at
    at = _sign(text, at, ",")
    if text[at] == close:
        raise ValueError(f"there is a comma before the end at character {at}")
    return at


def line(**members: Any) -> bytes:
    """Returns a line of this program."""
    return _json.encode(members, 1 << 62) + b"\n"


def hello(concurrency: int, client: str) -> bytes:
    return line(type="hello", protocol=VERSION, concurrency=concurrency, client=client)


def bye() -> bytes:
    return line(type="bye")


def answer(kind: str, batch: int, id: int, error: Optional[str] = None, **members: int) -> bytes:
    """Returns the result of an event."""
    if error is not None:
        encoded = error.encode(errors="replace")[:ERROR_BYTES_MAX].decode(errors="ignore")
        return line(type=kind, batch=batch, id=id, error=encoded, **members)
    return line(type=kind, batch=batch, id=id, **members)


def with_raw(kind: str, batch: int, id: int, members: list[tuple[str, bytes]]) -> bytes:
    """Returns a line whose further members are JSON texts."""
    begin = line(type=kind, batch=batch, id=id)[:-2]
    parts = [b',"' + name.encode() + b'":' + value for name, value in members]
    return b"".join([begin, *parts, b"}\n"])


def text(value: str) -> bytes:
    """Returns a text as JSON."""
    return _json.encode(value)
