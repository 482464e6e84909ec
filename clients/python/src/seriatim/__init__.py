"""Serializes the events of many producers, per object, through Redis.

- `Emitter`, `AsyncEmitter`: emit, schedule and cancel events, and await their ends
- `Worker`: runs handlers for events, with the program `seriatim`
- `seriatim.testing`: runs handlers without Redis
"""

from ._appended import Appended
from ._async_emitter import AsyncEmitter
from ._awaited import AsyncAwaited, Awaited
from ._context import AsyncContext, Context, Fence
from ._emitter import Emitter
from ._ends import EventEnd
from ._flows import Emitted
from ._json import Json
from ._many import EmittedMany
from ._schedule import Schedule, Scheduled
from .errors import (
    ConnectFailed,
    EmitError,
    EmitManyError,
    EndRefused,
    EndTimedOut,
    EventFailed,
    Full,
    HandlerEnded,
    HandlerFull,
    InvalidEvent,
    InvalidKey,
    InvalidName,
    InvalidNamespace,
    InvalidProgress,
    InvalidResult,
    InvalidTime,
    KeyReused,
    NotAwaitable,
    ObjectFailed,
    OutcomeUnknown,
    OutOfMemory,
    ProgramMismatch,
    ProgramNotFound,
    Refused,
    RepeatWarning,
    ScheduleManyError,
    SeriatimError,
    TooLarge,
    Unreplicated,
    WaitClosed,
    WaitError,
    WorkerError,
    WorkerFailed,
    WrongType,
)
from .outcomes import Cancelled, Outcome, Postponed, Rejected, Transient, Unavailable, Unknown
from .worker import Worker

__all__ = [
    "Appended",
    "AsyncAwaited",
    "AsyncContext",
    "AsyncEmitter",
    "Awaited",
    "Cancelled",
    "ConnectFailed",
    "Context",
    "EmitError",
    "EmitManyError",
    "Emitted",
    "EmittedMany",
    "Emitter",
    "EndRefused",
    "EndTimedOut",
    "EventEnd",
    "EventFailed",
    "Fence",
    "Full",
    "HandlerEnded",
    "HandlerFull",
    "InvalidEvent",
    "InvalidKey",
    "InvalidName",
    "InvalidNamespace",
    "InvalidProgress",
    "InvalidResult",
    "InvalidTime",
    "Json",
    "KeyReused",
    "NotAwaitable",
    "ObjectFailed",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "Postponed",
    "ProgramMismatch",
    "ProgramNotFound",
    "Refused",
    "Rejected",
    "RepeatWarning",
    "Schedule",
    "ScheduleManyError",
    "Scheduled",
    "SeriatimError",
    "TooLarge",
    "Transient",
    "Unavailable",
    "Unknown",
    "Unreplicated",
    "WaitClosed",
    "WaitError",
    "Worker",
    "WorkerError",
    "WorkerFailed",
    "WrongType",
]
