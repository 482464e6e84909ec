"""The errors of an emit, a schedule and a cancel. Each says whether its events are queued."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Optional

if TYPE_CHECKING:
    from ._ends import EventEnd
    from ._schedule import Scheduled

_INVISIBLE = frozenset(
    [
        *(0xAD, 0x61C, 0x180E, 0x2028, 0x2029, 0xFEFF),
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2065),
        *range(0x2066, 0x2070),
        *range(0xE0000, 0xE0080),
    ]
)


def shown(name: str) -> str:
    """Returns a name as the commands of seriatim print it and take it."""
    if name.isprintable() and "\\" not in name:
        return name
    short = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

    def one(character: str) -> str:
        code = ord(character)
        if character in short:
            return short[character]
        if unicodedata.category(character) in ("Cc", "Cs") or code in _INVISIBLE:
            return f"\\u{{{code:x}}}"
        return character

    return "".join(map(one, name))


class SeriatimError(Exception):
    """The base of all errors of this package."""


class EmitError(SeriatimError):
    """An emit, a schedule or a cancel has failed.

    Only after `OutcomeUnknown` and `Unreplicated` it is open whether events are queued. After `WrongType` the
    call took effect in part. After any other error nothing was applied, so the call may be repeated.
    """

    #: A word for the error, the same in all languages.
    kind: ClassVar[str] = "error"
    #: Of `call`: the name of its event. If the event is queued, `end_of` waits for its end.
    name: Optional[str] = None

    @property
    def is_unknown(self) -> bool:
        """Whether the events may be queued now or later."""
        return False


class InvalidName(EmitError, ValueError):
    """The object's name is invalid. Nothing was sent."""

    kind = "name"


class InvalidNamespace(EmitError, ValueError):
    """The name of the namespace is invalid."""

    kind = "namespace"


class InvalidEvent(EmitError, ValueError):
    """The event, a subevent or the data is invalid. Nothing was sent."""

    kind = "event"


class InvalidKey(EmitError, ValueError):
    """The key of a schedule or an idempotency key is invalid. Nothing was sent."""

    kind = "key"


class NotAwaitable(EmitError, ValueError):
    """An awaited emit has subevents or data. Nothing was sent."""

    kind = "not_awaitable"

    def __init__(self, object: str) -> None:
        super().__init__(
            f"an awaited emit has one event and no data; that of {shown(object)} has more: await an event of its own"
        )
        self.object = object


class InvalidTime(EmitError, ValueError):
    """The due time of a schedule is invalid or too far away. Nothing was sent."""

    kind = "due"


class ConnectFailed(EmitError):
    """There is no connection to Redis, so nothing was sent. The next call connects again."""

    kind = "connect"


class OutcomeUnknown(EmitError):
    """The call was sent, but no reply shows its outcome.

    Look at the object (`seriatim inspect OBJECT`) before you repeat the call. If a duplicate does no
    harm, or if the emit has an idempotency key, repeat it without a look.
    """

    kind = "unknown"

    def __init__(self, object: str, why: str) -> None:
        super().__init__(
            f"it is unknown whether the call for {shown(object)} has taken effect: {why}; look before you repeat it"
        )
        self.object = object

    @property
    def is_unknown(self) -> bool:
        return True


class Unreplicated(EmitError):
    """The call has taken effect on the master, but too few replicas had it at the end of the wait.

    Workers deliver the event, unless the master is lost before a replica has it. So the outcome is unknown.
    """

    kind = "unreplicated"

    def __init__(self, object: str, reached: int, wanted: int, not_local: bool) -> None:
        disk = ", and it is not on the master's disk" if not_local else ""
        super().__init__(
            f"the emit for {shown(object)} is queued on the master, but only {reached} of {wanted} replicas have "
            f"it{disk}: it is lost if the master is lost now"
        )
        self.object = object
        #: The number of replicas that have it, and of those that should have it.
        self.reached = reached
        self.wanted = wanted
        #: Whether it should be on the disk of the master, but is not.
        self.not_local = not_local

    @property
    def is_unknown(self) -> bool:
        return True


class KeyReused(EmitError):
    """The idempotency key was used before, for other events or data of this object. Nothing was applied."""

    kind = "key_reused"

    def __init__(self, object: str, key: str) -> None:
        super().__init__(
            f'the idempotency key "{shown(key)}" of {shown(object)} was used for another emit; nothing was applied'
        )
        self.object = object
        self.key = key


class TooLarge(EmitError):
    """The emit has too many events or bytes for a script. Nothing was sent.

    Emits with an idempotency key, and emits of objects with limits, are scripts.
    """

    kind = "too_large"

    def __init__(self, object: str, events: int, bytes: int, events_max: int, bytes_max: int) -> None:
        super().__init__(
            f"an emit for {shown(object)} has {events} events with {bytes} bytes; with an idempotency key or limits "
            f"it has at most {events_max} with {bytes_max} bytes: split it"
        )
        self.object = object
        self.events = events
        self.bytes = bytes


class Full(EmitError):
    """A limit of the queues is reached. Nothing was applied. Try again when workers have drained the queue."""

    kind = "full"

    def __init__(
        self,
        object: str,
        what: str,
        limit: int,
        *,
        queued: Optional[int] = None,
        events: Optional[int] = None,
        markers: Optional[int] = None,
    ) -> None:
        if what == "queue":
            full = f"the object has {queued} events queued, and {events} more would exceed the limit of {limit}"
        else:
            full = f"there are {markers} markers, the limit is {limit}"
        super().__init__(
            f"the emit for {shown(object)} was not applied: {full}; try again later, or see `seriatim limit list`"
        )
        self.object = object
        #: `queue` or `markers`.
        self.what = what
        self.limit = limit
        #: The events in the queue, and those of the emit that did not fit.
        self.queued = queued
        self.events = events
        #: The number of markers.
        self.markers = markers


class OutOfMemory(EmitError):
    """The memory of Redis has reached `maxmemory`. Nothing was applied."""

    kind = "out_of_memory"

    def __init__(self, object: str) -> None:
        super().__init__(
            f"Redis is out of memory, the call for {shown(object)} was not applied: "
            "raise maxmemory, or wait until the workers have drained the queues"
        )
        self.object = object


class WrongType(EmitError):
    """A key of the call has a wrong type. Redis ran the other commands of the transaction.

    If `key` is the queue of the object, no event is queued. If it is the list of markers, the events
    are queued, but no worker is notified: do not emit them again.
    """

    kind = "wrong_type"

    def __init__(self, object: str, key: str) -> None:
        super().__init__(
            f"{shown(key)} has a wrong type, so the call for {shown(object)} took effect only in part; "
            "see what else writes that key, and remove it"
        )
        self.object = object
        self.key = key


class Refused(EmitError):
    """Redis refused the call, and nothing was applied: e.g. a replica, a missing right, a full disk."""

    kind = "refused"

    def __init__(self, object: str, why: str) -> None:
        super().__init__(f"Redis refused the call for {shown(object)}, nothing was applied: {why}")
        self.object = object


@dataclass(frozen=True)
class ObjectFailed:
    """The failure of one object in `emit_many`."""

    object: str
    #: The position of its first event that is not acknowledged. Positions count from 0.
    first: int
    error: EmitError


class EmitManyError(EmitError):
    """Some events of `emit_many` are not acknowledged.

    Each failed object is in `failed`. Its events before `first` are acknowledged; later ones were not
    sent, except those in the same transaction. All events of other objects before `stopped` are
    acknowledged. From `stopped` on, nothing was sent.
    """

    kind = "many"

    def __init__(self, acknowledged: int, failed: list[ObjectFailed], stopped: Optional[int]) -> None:
        text = f"{acknowledged} events are acknowledged, events of {len(failed)} objects are not"
        if stopped is not None:
            text += f", nothing was sent from position {stopped} on"
        if failed:
            text += f"; the first, at position {failed[0].first}: {failed[0].error}"
        super().__init__(text)
        self.acknowledged = acknowledged
        self.failed = failed
        self.stopped = stopped

    @property
    def is_unknown(self) -> bool:
        return any(failed.error.is_unknown for failed in self.failed)


class ScheduleManyError(EmitError):
    """Some schedules of `schedule_many` are not acknowledged.

    Later schedules of the same transaction as the first of them may have failed, too. No later transaction was sent.
    """

    kind = "schedule_many"

    def __init__(self, scheduled: list[Scheduled], error: EmitError) -> None:
        super().__init__(f"{len(scheduled)} schedules are acknowledged, the next ones are not: {error}")
        #: The acknowledged schedules, in their order.
        self.scheduled = scheduled
        #: The error of the first schedule that is not acknowledged.
        self.error = error

    @property
    def is_unknown(self) -> bool:
        return self.error.is_unknown


class EventFailed(SeriatimError):
    """An awaited event has ended, but was not delivered. `end` tells its status, error, attempts and results."""

    def __init__(self, object: str, name: str, end: EventEnd) -> None:
        why = end.error or "without an error"
        super().__init__(f'event "{shown(name)}" of {shown(object)} is {end.status or "over"}: {why}')
        self.object = object
        self.name = name
        self.end = end


class WaitError(SeriatimError):
    """A wait for the end of an event has failed. The event goes on: wait again by its object and name."""

    #: A word for the error, the same in all languages.
    kind: ClassVar[str] = "wait"

    def __init__(self, object: str, name: str, text: str) -> None:
        super().__init__(text)
        self.object = object
        self.name = name


class EndTimedOut(WaitError, TimeoutError):
    """The event has not ended in time, or its end is forgotten, or no emit with this name was awaited."""

    kind = "timed_out"

    def __init__(self, object: str, name: str, timeout: float, unreachable: Optional[str]) -> None:
        why = f" ({unreachable})" if unreachable else ""
        text = f'no end of event "{shown(name)}" of {shown(object)} after {timeout:g} s{why}'
        super().__init__(object, name, f"{text}: wait again, or look at the object with `seriatim inspect`")
        #: The time of the wait in seconds.
        self.timeout = timeout
        #: The last error, if Redis could not be asked at the end of this time.
        self.unreachable = unreachable


class EndRefused(WaitError):
    """Redis refuses to tell the end: the user lacks the right to `MGET`."""

    kind = "end_refused"

    def __init__(self, object: str, name: str, why: str) -> None:
        text = f'Redis refuses to tell the end of event "{shown(name)}" of {shown(object)}: {why}'
        super().__init__(object, name, f"{text}; give the user the rights of docs/protocol.md")


class WaitClosed(WaitError):
    """The emitter was closed during the wait."""

    kind = "closed"

    def __init__(self, object: str, name: str) -> None:
        text = f'the emitter was closed during a wait for event "{shown(name)}" of {shown(object)}'
        super().__init__(object, name, f"{text}; wait again with another emitter")


class HandlerFull(EmitError):
    """The handler of an event emits more than it may: 1,000 events and 2 MiB, with its result and subtasks."""

    kind = "full"


class HandlerEnded(EmitError):
    """The handler has ended. It must emit before it ends."""

    kind = "ended"


class InvalidResult(EmitError, ValueError):
    """The result of a handler is no JSON, or has more than 64 KiB."""

    kind = "result"


class InvalidProgress(EmitError, ValueError):
    """The progress of a handler is no JSON, or has more than 1 KiB."""

    kind = "progress"


class WorkerError(SeriatimError):
    """The worker cannot start, or has ended with an error."""


class ProgramNotFound(WorkerError):
    """There is no program `seriatim`."""


class ProgramMismatch(WorkerError):
    """The program `seriatim` is of another version than this package."""


class WorkerFailed(WorkerError):
    """The worker process has ended, though nobody has asked for it. All handlers were cancelled."""

    def __init__(self, text: str, code: Optional[int] = None) -> None:
        super().__init__(text)
        #: The exit code; negative for a signal.
        self.code = code


class RepeatWarning(RuntimeWarning):
    """The Redis client of a transaction repeats it if the connection is lost, so events may be queued twice."""
