"""Events as JSON: values are written once, texts are checked and kept byte for byte."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, Optional, Union

from .errors import InvalidEvent

EVENT_BYTES_MAX = 1024 * 1024


class Json:
    """A text that is JSON already. It is checked, and queued byte for byte."""

    __slots__ = ("text",)

    def __init__(self, text: Union[str, bytes]) -> None:
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"Json takes str or bytes, not {type(text).__name__}")
        self.text = text

    def __repr__(self) -> str:
        return f"Json({self.text!r})"


#: A value that the module `json` can write, or `Json`.
Event = Any


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _nothing(_: str) -> None:
    """Stands for a number. Only the form of the text is checked."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CHECKER = json.JSONDecoder(parse_constant=_refuse, parse_int=_nothing, parse_float=_nothing)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
BLANKS = " \t\n\r"
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_SCALAR = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[-+.\w]+', re.DOTALL)


def encode(event: Event, bytes_max: int = EVENT_BYTES_MAX, what: str = "the event") -> bytes:
    """Returns the JSON text of an event.

    Raises `InvalidEvent` if the event is no JSON or has more bytes than `bytes_max`.
    """
    if isinstance(event, Json):
        text = event.text
        try:
            encoded = text.encode() if isinstance(text, str) else text
        except UnicodeEncodeError as error:
            raise InvalidEvent(f"{what} is not JSON: {error}") from None
        _within(encoded, bytes_max, what)
        try:
            check(encoded)
        except ValueError as error:
            raise InvalidEvent(f"{what} is not JSON: {error}") from None
        return encoded
    try:
        encoded = _ENCODER.encode(event).encode()
    except RecursionError:
        raise InvalidEvent(f"{what} cannot be written as JSON: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidEvent(f"{what} cannot be written as JSON: {error}") from None
    return _within(encoded, bytes_max, what)


def _within(encoded: bytes, bytes_max: int, what: str) -> bytes:
    if len(encoded) > bytes_max:
        raise InvalidEvent(f"{what} has {len(encoded)} bytes, the limit is {bytes_max}")
    return encoded


def check(encoded: bytes) -> None:
    """Checks that the bytes are one JSON document. Raises `ValueError`."""
    try:
        _CHECKER.decode(encoded.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode(text: str) -> Any:
    """Returns the value of a JSON text. Raises `ValueError`."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def one_line(encoded: bytes) -> bytes:
    """Returns a JSON text without line ends. JSON allows them only as blanks."""
    if b"\n" in encoded or b"\r" in encoded:
        return encoded.replace(b"\n", b" ").replace(b"\r", b" ")
    return encoded


def type_of(event: Any) -> Optional[str]:
    """Returns the type of an event: its member `type`, if this is a text."""
    found = event.get("type") if isinstance(event, dict) else None
    return found if isinstance(found, str) else None


def read(text: str, at: int) -> tuple[Any, int]:
    """Reads the JSON value that begins at `at`. Returns the value and its end. Raises `ValueError`."""
    return _DECODER.raw_decode(text, at)


def read_or_skip(text: str, at: int) -> tuple[Any, int]:
    """As `read`; a value that Python cannot read is skipped, and the error is in its place."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        return ValueError("it is nested too deeply"), end_of_value(text, at)
    except ValueError as error:
        return error, end_of_value(text, at)


def end_of_value(text: str, at: int) -> int:
    """Returns the end of the JSON value that begins at `at`. The text is known to be JSON."""
    if text[at] not in "[{":
        scalar = _SCALAR.match(text, at)
        if scalar is None:
            raise ValueError(f"there is no value at character {at}")
        return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(text, at):
        word = token.group()
        depth += 1 if word in "[{" else -1 if word in "]}" else 0
        if depth == 0:
            return token.end()
    raise ValueError("a JSON value has no end")


def skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANKS:
        at += 1
    return at
