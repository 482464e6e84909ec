"""The steps of an emitter's calls, without a connection.

Each call is a generator. It yields `Send` or `Sleep`, and gets the replies. `Emitter` and `AsyncEmitter`
run the same generators, each over its own kind of connection.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NoReturn, Optional, TypeVar, Union

from . import _json
from ._limits import NO_LIMIT, Limit, Limits
from ._names import Keys
from ._replicas import ReplicaWait
from ._replies import Failed, Replies, ServerError, TransportError, number, results, script_reply
from .errors import ConnectFailed, EmitError, Full, KeyReused, OutcomeUnknown, TooLarge

Command = tuple[bytes, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Commands to send at once. The replies come as a list."""

    commands: list[Command]


@dataclass(frozen=True)
class Sleep:
    """A wait in seconds."""

    seconds: float


Flow = Generator[Union[Send, Sleep], Any, T]

SCRIPT_EVENTS_MAX = 1024
SCRIPT_BYTES_MAX = 1024 * 1024
WINDOW_MS = 24 * 3600 * 1000
WINDOW_MS_MIN, WINDOW_MS_MAX = 60 * 1000, 366 * 24 * 3600 * 1000
#: An emit with an idempotency key is sent so often while its outcome is unknown.
TRIES = 4
TRY_AGAIN_S = 0.1


@dataclass(frozen=True)
class Script:
    """A Lua script, as text and as its hash."""

    text: bytes
    sha: bytes

    def call(self, first_key: bytes, arguments: list[bytes], *, with_text: bool) -> Command:
        way = (b"EVAL", self.text) if with_text else (b"EVALSHA", self.sha)
        return (*way, b"1", first_key, *arguments)


@cache
def script(name: str) -> Script:
    """Returns a script of the package."""
    text = (resources.files("seriatim") / "scripts" / f"{name}.lua").read_bytes()
    return Script(text, hashlib.sha1(text).hexdigest().encode())


@dataclass(frozen=True)
class Emitted:
    """An emit that Redis has acknowledged."""

    #: The number of events: the main event and its subevents.
    events: int
    #: The number of events in the object's queue right after the emit.
    queued: int
    #: Whether an emit with the same idempotency key was done before. Then nothing was queued.
    repeated: bool = False


@dataclass(frozen=True)
class Once:
    """The idempotency key of an emit."""

    key: bytes
    window_ms: int
    #: Of an awaited emit: the time in seconds for which its end is kept, and the inbox where it is told.
    awaited: Optional[tuple[int, bytes]] = None


@dataclass
class Core:
    """The settings and the state that all calls of an emitter share."""

    keys: Keys
    event_bytes_max: int = _json.EVENT_BYTES_MAX
    limits: Limits = field(default_factory=Limits)
    #: The wait behind each transaction.
    wait: Optional[ReplicaWait] = None
    #: Whether the user has shown the right to send transactions.
    may_transact: bool = False

    def draft(self, object: str, event: Any, subevents: Any = (), data: Any = None) -> Draft:
        """Checks an emit. Nothing is sent."""
        name = self.keys.object(object)
        if isinstance(subevents, (str, bytes, dict, _json.Json)):
            raise TypeError("subevents is a list of events")
        events = [_json.encode(one, self.event_bytes_max) for one in (event, *subevents)]
        encoded = None if data is None else _json.encode(data, self.event_bytes_max, "the data")
        return Draft(self.keys, object, name, events, encoded)


@dataclass
class Draft:
    """A checked emit."""

    keys: Keys
    object: str
    name: bytes
    events: list[bytes]
    data: Optional[bytes] = None

    def commands(self) -> list[Command]:
        """Returns the commands of the emit, without MULTI and EXEC."""
        push = (b"LPUSH", self.keys.events(self.name), *self.events)
        commands: list[Command] = [push, (b"LPUSH", self.keys.markers, self.name)]
        if self.data is not None:
            commands.insert(0, (b"SET", self.keys.data(self.name), self.data))
        return commands

    def fits_a_script(self) -> None:
        size = sum(map(len, self.events)) + len(self.data or b"")
        if len(self.events) > SCRIPT_EVENTS_MAX or size > SCRIPT_BYTES_MAX:
            raise TooLarge(self.object, len(self.events), size, SCRIPT_EVENTS_MAX, SCRIPT_BYTES_MAX)

    def script(self, once: Optional[Once], limit: Limit, *, with_text: bool, is_part: bool = False) -> Command:
        """Returns the call of the script `emit`. With `is_part` each event is an emit of its own."""
        key, window_ms = (once.key, once.window_ms) if once else (b"", 0)
        if once and once.awaited:
            way, more = b"await", b"%d %s" % once.awaited
        else:
            way, more = b"part" if is_part else b"none" if self.data is None else b"data", self.data or b""
        counts = [b"%d" % count for count in (window_ms, limit.queued_max or 0, limit.markers_max or 0)]
        arguments = [self.keys.prefix, self.name, key, *counts, way, more, *self.events]
        return script("emit").call(self.keys.markers, arguments, with_text=with_text)


def read_script(object: str, key: str, events: int, reply: Any) -> Union[Emitted, tuple[int, Full], None]:
    """Reads the reply of the script `emit`.

    A pair: only so many events fit, and this is the error of the others. `None`: the server does not know
    the script.
    """
    words = script_reply(object, reply)
    if words is None:
        return None
    word, rest = words[0], words[1:]
    if word in ("emitted", "repeated") and rest:
        return Emitted(events, rest[0], word == "repeated")
    if word == "differs":
        raise KeyReused(object, key)
    if word == "part" and len(rest) > 2:
        return rest[2], Full(object, "queue", rest[1], queued=rest[0], events=events - rest[2])
    if word == "full" and len(rest) > 2 and rest[0] == "markers":
        raise Full(object, "markers", rest[2], markers=rest[1])
    if word == "full" and len(rest) > 2:
        raise Full(object, "queue", rest[2], queued=rest[1], events=events)
    raise OutcomeUnknown(object, f"the script has returned the unknown word {word!r}")


def unsent(error: TransportError) -> ConnectFailed:
    return ConnectFailed(f"cannot connect to Redis: {error}; nothing was sent")


@contextmanager
def errors_for(object: str) -> Iterator[None]:
    """Turns the failure of a transaction into the error of a call for this object."""
    try:
        yield
    except Failed as failed:
        raise failed.about(object) from None


def ready(core: Core) -> Flow[None]:
    """Examines the user's right to transactions, and reads the limits for the first time."""
    if core.may_transact and not core.limits.is_unread:
        return
    try:
        # Without the right to EXEC a transaction would never end. So EXEC goes first, alone.
        examined: list[list[Command]] = [[(b"EXEC",)], [(b"MULTI",), (b"EXEC",)]]
        for commands in examined:
            replies = yield Send(commands)
            if isinstance(replies[0], ServerError) and replies[0].code in ("NOPERM", "NOAUTH"):
                raise Failed("refused", str(replies[0]))
        examines = [] if core.wait is None else [core.wait.examines]
        replies = yield Send([(b"HGETALL", core.keys.limits), *examines])
    except TransportError as error:
        # Nothing that the caller wants was sent.
        raise unsent(error) from None
    if core.wait is not None:
        core.wait.examine(replies[-1])
    core.limits.learn(replies[0])
    core.may_transact = True


def transact(core: Core, commands: list[Command], *, waits: bool = True) -> Flow[Replies]:
    """Sends a transaction once. Returns the results, or raises `Failed`.

    With `waits`, an emitter that waits for replicas waits until they have the transaction.
    """
    looks = core.limits.is_due()
    wait = core.wait if waits else None
    sent: list[Command] = [(b"MULTI",), *commands, (b"EXEC",)]
    if wait is not None:
        sent.append(wait.command)
    if looks:
        sent.append((b"HGETALL", core.keys.limits))
    try:
        replies = yield Send(sent)
    except TransportError as error:
        if not error.sent:
            raise unsent(error) from None
        raise Failed("unknown", str(error)) from None
    if looks:
        core.limits.learn(replies[-1] if len(replies) == len(sent) else None)
    behind = len(commands) + 2
    found = results(replies[:behind], len(commands))
    return Replies(found, None if wait is None else wait.read(replies[behind] if len(replies) > behind else None))


def transact_for(core: Core, object: str, commands: list[Command], *, waits: bool = True) -> Flow[Replies]:
    """As `transact`, with errors for this object."""
    with errors_for(object):
        return (yield from transact(core, commands, waits=waits))


def emit(core: Core, draft: Draft, once: Optional[Once]) -> Flow[Emitted]:
    """Emits. With an idempotency key, and for an object with limits, by the script."""
    if once is not None:
        draft.fits_a_script()
    with errors_for(draft.object):
        yield from ready(core)
    limit = core.limits.of(draft.object)
    if once is not None:
        return (yield from emit_once(core, draft, once, limit or NO_LIMIT))
    if limit is not None:
        draft.fits_a_script()
        return (yield from call_script(core, draft, None, limit))
    replies = yield from transact_for(core, draft.object, draft.commands())
    answers = replies.results
    if draft.data is not None and isinstance(answers[0], ServerError):
        raise OutcomeUnknown(draft.object, str(answers[0]))
    queued = number(draft.object, answers[-2], core.keys.events(draft.name))
    number(draft.object, answers[-1], core.keys.markers)
    replies.check(draft.object)
    return Emitted(len(draft.events), queued)


def call_script(core: Core, draft: Draft, once: Optional[Once], limit: Limit) -> Flow[Emitted]:
    """Calls the script `emit` once. If the server does not know the script, sends its text."""
    key = "" if once is None else once.key.decode()
    for with_text in (False, True):
        command = draft.script(once, limit, with_text=with_text)
        replies = yield from transact_for(core, draft.object, [command])
        done = read_script(draft.object, key, len(draft.events), replies.results[0])
        if isinstance(done, Emitted):
            replies.check(draft.object)
            if done.repeated and core.wait is not None:
                # A wait covers only the writes of its own connection. So this writes a marker, which does no harm.
                replies = yield from transact_for(core, draft.object, [(b"LPUSH", core.keys.markers, draft.name)])
                replies.check(draft.object)
            return done
    _no_reply(draft.object)


def _no_reply(object: str) -> NoReturn:
    raise OutcomeUnknown(object, "the reply is not that of the script")


def emit_once(core: Core, draft: Draft, once: Once, limit: Limit) -> Flow[Emitted]:
    """Sends an emit with an idempotency key until its outcome is known, at most four times."""
    wait, began, unknown = TRY_AGAIN_S, time.monotonic(), None
    for tries in range(1, TRIES + 1):
        try:
            return (yield from call_script(core, draft, once, limit))
        except KeyReused:
            raise
        except EmitError as error:
            if error.is_unknown:
                unknown = error
            elif unknown is None:
                raise
            # This try had no effect, but an earlier one may have had one: its outcome counts. A repeat is
            # safe only while the key of the first try is stored.
            if tries == TRIES or time.monotonic() - began > once.window_ms / 4000:
                break
        yield Sleep(wait)
        wait *= 2
    assert unknown is not None
    raise unknown
