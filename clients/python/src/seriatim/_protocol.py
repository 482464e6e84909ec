"""The lines of the handler protocol, version 1 (docs/handlers-protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional, Union

from . import _json

VERSION = 1
ERROR_BYTES_MAX = 1000
LOG_BYTES_MAX = 1000
#: The longest text of a log line as JSON. So such a line has less than 4 KiB.
_LOG_JSON_BYTES_MAX = 3900
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
    #: Whether the worker takes the lines `progress` and `log`. To an earlier worker they break the protocol.
    takes_reports: bool = False


#: An event of a batch: its id, the id before it, and its value. The value is an exception if Python cannot read it.
Envelope = tuple[int, int, Any]


class BatchLine:
    __slots__ = ("_payloads", "_text", "attempts", "batch", "crashes", "events", "object", "once", "token")

    def __init__(
        self,
        batch: int,
        object: str,
        attempts: int,
        crashes: int,
        token: Optional[str],
        events: list[Envelope],
        once: dict[str, str],
        text: str,
    ) -> None:
        self.batch = batch
        self.object = object
        self.attempts = attempts
        self.crashes = crashes
        self.token = token
        self.events = events
        #: The subtasks of the first event that are done, with their values as JSON texts.
        self.once = once
        self._text = text
        self._payloads: Optional[list[str]] = None

    def payload(self, at: int) -> str:
        """Returns the text of an event, byte for byte. Few handlers ask for it, so it is found only then."""
        if self._payloads is None:
            self._payloads = _members(self._text, _json.skip_blanks(self._text, 0), {"events": _payloads})[0][
                "events"
            ].value
        return self._payloads[at]


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
        return _line(_fast(text) or _slow(text), text)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        begin = raw[:60].decode(errors="replace")
        raise ProtocolError(f"the line {begin!r} is not of the protocol: {type(error).__name__}: {error}") from None


def _fast(text: str) -> Optional[dict[str, Any]]:
    """Reads a line as a whole. Returns `None` if this is not enough to know its members."""
    try:
        line, end = _json.read(text, 0)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or "once" in line or (end != len(text) and text[end:].strip(_json.BLANKS)):
        return None
    events = line.get("events")
    if events is not None:
        if not isinstance(events, list):
            return None
        line["events"] = [(int(one["id"]), int(one["prev"]), one["event"]) for one in events]
    return line


def _slow(text: str) -> dict[str, Any]:
    """Reads a line member by member. An event that Python cannot read, and the values of subtasks, need this."""
    found, end = _members(text, _json.skip_blanks(text, 0), {"events": _envelopes, "once": _texts})
    if _json.skip_blanks(text, end) != len(text):
        raise ValueError(f"the line goes on behind character {end}")
    return {name: one.value for name, one in found.items()}


def _line(line: dict[str, Any], text: str) -> Line:
    kind = line["type"]
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
            text,
        )
    if kind == "hello":
        capabilities = line.get("capabilities")
        return Hello(
            int(line["protocol"]),
            int(line.get("line_bytes_max", LINE_BYTES_MAX)),
            line.get("timeout_ms"),
            int(line.get("cancel_ms", 5000)),
            isinstance(capabilities, list) and "reports" in capabilities,
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


def _elements(text: str, at: int) -> tuple[list[dict[str, _Found]], int]:
    """Reads the events of a batch, member by member."""
    at = _sign(text, at, "[")
    elements = []
    while text[at] != "]":
        found, end = _members(text, at, {"event": _json.read_or_skip})
        elements.append(found)
        at = _behind(text, end, "]")
    return elements, at + 1


def _envelopes(text: str, at: int) -> tuple[list[Envelope], int]:
    found, end = _elements(text, at)
    return [(int(one["id"].value), int(one["prev"].value), one["event"].value) for one in found], end


def _payloads(text: str, at: int) -> tuple[list[str], int]:
    found, end = _elements(text, at)
    return [text[one["event"].begin : one["event"].end] for one in found], end


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


def ok(batch: int, id: int) -> bytes:
    """Returns the result of delivered events: of this one, and of those before it in the batch."""
    return b'{"type":"ok","batch":%d,"id":%d}\n' % (batch, id)


def bye() -> bytes:
    return line(type="bye")


def answer(kind: str, batch: int, id: int, error: Optional[str] = None, **members: int) -> bytes:
    """Returns the result of an event."""
    if error is not None:
        return line(type=kind, batch=batch, id=id, error=_cut(error, ERROR_BYTES_MAX), **members)
    return line(type=kind, batch=batch, id=id, **members)


def with_raw(kind: str, batch: int, id: int, members: list[tuple[str, bytes]]) -> bytes:
    """Returns a line whose further members are JSON texts."""
    begin = line(type=kind, batch=batch, id=id)[:-2]
    parts = [b',"' + name.encode() + b'":' + value for name, value in members]
    return b"".join([begin, *parts, b"}\n"])


def text(value: str) -> bytes:
    """Returns a text as JSON."""
    return _json.encode(value)


def progress(batch: int, id: int, value: bytes) -> bytes:
    """Returns the progress of an event, whose value is JSON text."""
    return with_raw("progress", batch, id, [("value", value)])


def log(batch: int, id: int, value: str) -> bytes:
    """Returns a line for the log of the worker. `value` is a text from `cut`."""
    return with_raw("log", batch, id, [("text", text(value))])


def cut(value: str) -> str:
    """Returns as much of a text as a line of the log has."""
    kept = _cut(value, LOG_BYTES_MAX)
    # JSON has six bytes for each control character.
    return kept if len(text(kept)) <= _LOG_JSON_BYTES_MAX else _cut(kept, _LOG_JSON_BYTES_MAX // 6)


def _cut(value: str, bytes_max: int) -> str:
    """Returns the begin of a text, cut between characters. The result can be written as UTF-8."""
    return value[:bytes_max].encode(errors="replace")[:bytes_max].decode(errors="ignore")
