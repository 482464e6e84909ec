"""Schedules and cancels: plain transactions, and the script `cancel` for events that wait for a retry."""

from __future__ import annotations

import datetime
import math
import time
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _json, _names
from ._flows import Command, Core, Flow, errors_for, ready, script, transact_for
from ._replies import number, script_reply
from .errors import InvalidTime, OutcomeUnknown

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


def schedule(core: Core, draft: Later) -> Flow[Scheduled]:
    """Stores a schedule. Ends a former event of the key that waits for a retry."""
    object, keys = draft.object, core.keys
    with errors_for(object):
        yield from ready(core)
    if draft.after_ms is None:
        due_ms = draft.at_ms or 0
        wakes = due_ms < time.time() * 1000 + WAKE_MS
    else:
        due_ms = (yield from redis_ms(core, object)) + draft.after_ms
        wakes = draft.after_ms < WAKE_MS
    of_object, keeps = keys.scheduled_of(draft.name), draft.mode != "replace"
    put = b"HSETNX" if draft.mode == "keep_first" else b"HSET"
    commands: list[Command] = [
        (put, of_object, draft.key_bytes, draft.event),
        (b"ZADD", keys.scheduled, *((b"NX",) if keeps else ()), b"%d" % due_ms, draft.member),
    ]
    if keeps:
        commands.append((b"ZSCORE", keys.scheduled, draft.member))
    if draft.is_chosen:
        commands.append((b"GET", keys.event_key(draft.name)))
    if wakes:
        commands.append((b"ZADD", keys.wake, b"0", b"wake"))
    answers = yield from transact_for(core, object, commands)
    is_new = number(object, answers[0], of_object) > 0
    number(object, answers[1], keys.scheduled)
    if keeps:
        due_ms = _due_of(object, answers[2])
    change = "new" if is_new else "kept" if draft.mode == "keep_first" else "replaced"
    taken = _taken_id(answers[3 if keeps else 2], draft.key_bytes) if draft.is_chosen else None
    if taken is not None and draft.mode == "keep_first":
        change = "running" if change == "new" else change
    elif taken is not None:
        # The schedule is stored by now. The former event with its key may still wait for a retry.
        word = yield from cancel_taken(core, object, draft.name, draft.key_bytes, taken)
        change = {"running": "running", "cancelled": "replaced"}.get(word, change)
    return Scheduled(draft.key, due_ms, change)


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
    answers = yield from transact_for(core, object, commands)
    removed = number(object, answers[0], of_object) + number(object, answers[1], core.keys.scheduled)
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
        answers = yield from transact_for(core, object, [command])
        words = script_reply(object, answers[0])
        if words is not None and words[0] in ("cancelled", "running", "absent"):
            return str(words[0])
        if words is not None:
            raise OutcomeUnknown(object, f"the script has returned the unknown word {words[0]!r}")
    raise OutcomeUnknown(object, "the reply is not that of the script")


def redis_ms(core: Core, object: str) -> Flow[int]:
    """Asks Redis for its time, in ms since 1970, rounded up."""
    answers = yield from transact_for(core, object, [(b"TIME",)])
    try:
        seconds, micros = (int(part) for part in answers[0])
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
