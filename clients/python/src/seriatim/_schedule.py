"""Schedules and cancels: plain transactions, and the script `cancel` for events that wait for a retry."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

from . import _json, _names
from ._flows import Command, Core, Flow, errors_for, ready, script, transact_for
from ._names import Keys
from ._replies import number, script_reply
from .errors import EmitError, InvalidTime, OutcomeUnknown, ScheduleManyError

#: A schedule that is due within this time wakes a worker. The local clock may be wrong by almost as much.
WAKE_MS = 60_000
#: The score of a queued event of a schedule is this number minus the time of queueing, in microseconds.
QUEUED = -1e15

#: A time span in seconds, or as a `timedelta`.
Span = Union[int, float, datetime.timedelta]
#: A point in time: seconds since 1970, or a `datetime` with a time zone.
Instant = Union[int, float, datetime.datetime]


@dataclass(frozen=True)
class Scheduled:
    """A schedule that Redis has acknowledged."""

    #: The given key, or a new one that begins with `-`.
    key: str
    #: The time at which the event is due by Redis' clock, in ms since 1970.
    due_ms: int
    #: `new`; `replaced`: the former event does not come; `kept`: nothing was changed (`keep_first`);
    #: `running`: a worker has the former event, and one more event comes.
    change: str


@dataclass(frozen=True)
class Schedule:
    """A schedule for `schedule_many`: the arguments of `Emitter.schedule`."""

    object: str
    event: Any
    after: Optional[Span] = None
    at: Optional[Instant] = None
    key: Optional[str] = None
    keep_time: bool = False
    keep_first: bool = False

    def _later(self, core: Core) -> Later:
        return later(
            core,
            self.object,
            self.event,
            after=self.after,
            at=self.at,
            key=self.key,
            keep_time=self.keep_time,
            keep_first=self.keep_first,
        )


@dataclass(frozen=True)
class Later:
    """A checked schedule."""

    object: str
    name: bytes
    event: bytes
    key: str
    key_bytes: bytes
    at_ms: Optional[int]
    after_ms: Optional[int]
    #: `replace`, `keep_time` or `keep_first`.
    mode: str

    @property
    def keeps(self) -> bool:
        """Whether something of an earlier schedule with this key stays."""
        return self.mode != "replace"

    @property
    def is_chosen(self) -> bool:
        return not self.key.startswith("-")

    @property
    def member(self) -> bytes:
        return self.name + b"\n" + self.key_bytes


def span_ms(span: Span, what: str = "after") -> int:
    """Returns a time span in ms, rounded up, so that no event is early."""
    seconds = span.total_seconds() if isinstance(span, datetime.timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{what} is a number of seconds or a timedelta, not {type(span).__name__}")
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidTime(f"{what} is a number of seconds from 0 on, not {seconds}")
    # A float such as 0.3 is a little above 300 ms, so only more than a microsecond counts.
    return math.ceil(round(seconds * 1000, 3))


def instant_ms(at: Instant) -> int:
    """Returns a point in time in ms since 1970. A time before 1970 is 0."""
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise InvalidTime("the time `at` has no time zone; give a datetime with tzinfo, or seconds since 1970")
        at = at.timestamp()
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        raise TypeError(f"at is a datetime or a number of seconds since 1970, not {type(at).__name__}")
    if not math.isfinite(at):
        raise InvalidTime(f"at is a finite number of seconds since 1970, not {at}")
    return max(0, math.ceil(round(at * 1000, 3)))


def later(
    core: Core,
    object: str,
    event: Any,
    *,
    after: Optional[Span],
    at: Optional[Instant],
    key: Optional[str],
    keep_time: bool,
    keep_first: bool,
) -> Later:
    """Checks a schedule. Nothing is sent."""
    name = core.keys.object(object)
    encoded = _json.encode(event, core.event_bytes_max)
    if after is not None and at is not None:
        raise TypeError("a schedule has `after` or `at`, not both")
    if keep_time and keep_first:
        raise TypeError("a schedule has `keep_time` or `keep_first`, not both")
    after_ms = None if after is None else span_ms(after)
    at_ms = None if at is None else instant_ms(at)
    if after_ms is not None:
        _names.check_after(after_ms)
    elif at_ms is not None:
        _names.check_due(at_ms)
    else:
        at_ms = 0
    mode = "keep_time" if keep_time else "keep_first" if keep_first else "replace"
    key_bytes = None if key is None else _names.check_key(key)
    if key is None or key_bytes is None:
        key = _names.make_key()
        key_bytes = key.encode()
    return Later(object, name, encoded, key, key_bytes, at_ms, after_ms, mode)


@dataclass(frozen=True)
class _Ready:
    """A checked schedule, with its time."""

    later: Later
    due_ms: int
    #: Whether the schedule must wake a worker.
    wakes: bool

    def commands(self, keys: Keys) -> list[Command]:
        later = self.later
        put = b"HSETNX" if later.mode == "keep_first" else b"HSET"
        commands: list[Command] = [
            (put, keys.scheduled_of(later.name), later.key_bytes, later.event),
            (b"ZADD", keys.scheduled, *((b"NX",) if later.keeps else ()), b"%d" % self.due_ms, later.member),
        ]
        if later.keeps:
            commands.append((b"ZSCORE", keys.scheduled, later.member))
        if later.is_chosen:
            commands.append((b"GET", keys.event_key(later.name)))
        return commands

    def read(self, keys: Keys, answers: Iterator[Any]) -> tuple[Scheduled, Optional[bytes]]:
        """Reads the replies to the commands. Also returns the id of an event with this key that a worker has taken."""
        later, object = self.later, self.later.object
        put, added = next(answers), next(answers)
        score = next(answers) if later.keeps else None
        taken = _taken_id(next(answers), later.key_bytes) if later.is_chosen else None
        is_new = number(object, put, keys.scheduled_of(later.name)) > 0
        number(object, added, keys.scheduled)
        due_ms = _due_of(object, score) if later.keeps else self.due_ms
        change = "new" if is_new else "kept" if later.mode == "keep_first" else "replaced"
        return Scheduled(later.key, due_ms, change), taken


class _Clock:
    """The time of Redis at the beginning of a call. It is asked for at most once."""

    def __init__(self) -> None:
        self._now_ms: Optional[int] = None

    def now_ms(self, core: Core, object: str) -> Flow[int]:
        if self._now_ms is None:
            with errors_for(object):
                yield from ready(core)
            self._now_ms = yield from redis_ms(core, object)
        return self._now_ms


def _at(core: Core, later: Later, clock: _Clock) -> Flow[_Ready]:
    """Computes the time of a schedule."""
    if later.after_ms is None:
        due_ms = later.at_ms or 0
        return _Ready(later, due_ms, due_ms < time.time() * 1000 + WAKE_MS)
    now_ms = yield from clock.now_ms(core, later.object)
    return _Ready(later, now_ms + later.after_ms, later.after_ms < WAKE_MS)


def schedule(core: Core, later: Later) -> Flow[Scheduled]:
    """Stores a schedule. Ends a former event of the key that waits for a retry."""
    scheduled: list[Scheduled] = []
    one = yield from _at(core, later, _Clock())
    yield from _send(core, [one], scheduled)
    return scheduled[0]


def schedule_many(core: Core, schedules: Iterable[Schedule], chunk: tuple[int, int]) -> Flow[list[Scheduled]]:
    """Stores many schedules. The transactions take effect one by one, and the first failure ends the call."""
    (events_max, bytes_max), clock = chunk, _Clock()
    scheduled: list[Scheduled] = []
    waiting: list[_Ready] = []
    size = 0
    try:
        for one in schedules:
            try:
                later = one._later(core)
                waiting.append((yield from _at(core, later, clock)))
            except EmitError:
                # The schedules before the invalid one are sent.
                yield from _send(core, waiting, scheduled)
                raise
            size += len(later.event) + len(later.member)
            if len(waiting) >= events_max or size >= bytes_max:
                sent, waiting, size = waiting, [], 0
                yield from _send(core, sent, scheduled)
        yield from _send(core, waiting, scheduled)
    except EmitError as error:
        raise ScheduleManyError(scheduled, error) from error
    return scheduled


def _send(core: Core, chunk: list[_Ready], scheduled: list[Scheduled]) -> Flow[None]:
    """Stores these schedules in one transaction, and adds them to `scheduled`."""
    if not chunk:
        return
    keys, first = core.keys, chunk[0].later.object
    with errors_for(first):
        yield from ready(core)
    commands = [command for one in chunk for command in one.commands(keys)]
    if any(one.wakes for one in chunk):
        commands.append((b"ZADD", keys.wake, b"0", b"wake"))
    replies = yield from transact_for(core, first, commands)
    answers, begin = iter(replies.results), len(scheduled)
    ends: list[tuple[int, Later, bytes]] = []
    unread: Optional[EmitError] = None
    for one in chunk:
        try:
            done, taken = one.read(keys, answers)
        except EmitError as error:
            unread = error
            break
        if taken is not None and one.later.mode != "keep_first":
            ends.append((len(scheduled), one.later, taken))
        elif taken is not None and done.change == "new":
            done = replace(done, change="running")
        scheduled.append(done)
    if len(scheduled) > begin and replies.too_few is not None:
        del scheduled[begin:]
        replies.check(first)
    # These schedules are stored by now. Former events with their keys may still wait for a retry.
    for at, later, taken in ends:
        try:
            word = yield from cancel_taken(core, later.object, later.name, later.key_bytes, taken)
        except EmitError:
            # To complete the call, the caller sends the schedules from this one on again.
            del scheduled[at:]
            raise
        change = {"running": "running", "cancelled": "replaced"}.get(word, scheduled[at].change)
        scheduled[at] = replace(scheduled[at], change=change)
    if unread is not None:
        raise unread


def cancel(core: Core, object: str, key: str) -> Flow[str]:
    """Cancels a schedule. Returns `cancelled`, `running` or `not_found`."""
    name, key_bytes = core.keys.object(object), _names.check_key(key)
    with errors_for(object):
        yield from ready(core)
    of_object = core.keys.scheduled_of(name)
    commands: list[Command] = [
        (b"HDEL", of_object, key_bytes),
        (b"ZREM", core.keys.scheduled, name + b"\n" + key_bytes),
    ]
    is_chosen = not key.startswith("-")
    if is_chosen:
        commands.append((b"GET", core.keys.event_key(name)))
    replies = yield from transact_for(core, object, commands)
    answers = replies.results
    removed = number(object, answers[0], of_object) + number(object, answers[1], core.keys.scheduled)
    replies.check(object)
    was_there = "cancelled" if removed > 0 else "not_found"
    taken = _taken_id(answers[2], key_bytes) if is_chosen else None
    if taken is None:
        return was_there
    word = yield from cancel_taken(core, object, name, key_bytes, taken)
    return word if word in ("cancelled", "running") else was_there


def cancel_taken(core: Core, object: str, name: bytes, key: bytes, taken: bytes) -> Flow[str]:
    """Ends the event with this key and this id if it waits for a retry or an operator."""
    for with_text in (False, True):
        command = script("cancel").call(core.keys.held, [core.keys.prefix, name, key, taken], with_text=with_text)
        replies = yield from transact_for(core, object, [command])
        words = script_reply(object, replies.results[0])
        if words is not None and words[0] in ("cancelled", "running", "absent"):
            replies.check(object)
            return str(words[0])
        if words is not None:
            raise OutcomeUnknown(object, f"the script has returned the unknown word {words[0]!r}")
    raise OutcomeUnknown(object, "the reply is not that of the script")


def redis_ms(core: Core, object: str) -> Flow[int]:
    """Asks Redis for its time, in ms since 1970, rounded up."""
    replies = yield from transact_for(core, object, [(b"TIME",)], waits=False)
    try:
        seconds, micros = (int(part) for part in replies.results[0])
    except (TypeError, ValueError):
        raise OutcomeUnknown(object, "TIME did not return a time") from None
    return seconds * 1000 + -(-micros // 1000)


def _due_of(object: str, score: Any) -> int:
    try:
        due = float(score)
    except (TypeError, ValueError):
        raise OutcomeUnknown(object, "ZSCORE did not return a time") from None
    return int((QUEUED - due) / 1000) if due <= QUEUED else int(max(due, 0))


def _taken_id(value: Any, key: bytes) -> Optional[bytes]:
    """Returns the id in the value of `OBJ:event.key`, `ID KEY`, if it names this key."""
    if not isinstance(value, bytes):
        return None
    taken, blank, found = value.partition(b" ")
    return taken if blank and found == key else None
