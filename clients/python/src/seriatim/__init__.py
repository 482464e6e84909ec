"""Serializes the events of many producers, per object, through Redis.

- `Emitter`, `AsyncEmitter`: emit, schedule and cancel events
- `Worker`: runs handlers for events, with the program `seriatim`
- `seriatim.testing`: runs handlers without Redis
"""

from ._appended import Appended
from ._context import AsyncContext, Context, Fence
from ._emitter import AsyncEmitter, Emitter
from ._flows import Emitted
from ._json import Json
from ._many import EmittedMany
from ._schedule import Scheduled
from .errors import (
    ConnectFailed,
    EmitError,
    EmitManyError,
    Full,
    HandlerEnded,
    HandlerFull,
    InvalidEvent,
    InvalidKey,
    InvalidName,
    InvalidNamespace,
    InvalidResult,
    InvalidTime,
    KeyReused,
    ObjectFailed,
    OutcomeUnknown,
    OutOfMemory,
    ProgramMismatch,
    ProgramNotFound,
    Refused,
    RepeatWarning,
    SeriatimError,
    TooLarge,
    WorkerError,
    WorkerFailed,
    WrongType,
)
from .outcomes import Cancelled, Outcome, Postponed, Rejected, Transient, Unavailable, Unknown
from .worker import Worker

__all__ = [
    "Appended",
    "AsyncContext",
    "AsyncEmitter",
    "Cancelled",
    "ConnectFailed",
    "Context",
    "EmitError",
    "EmitManyError",
    "Emitted",
    "EmittedMany",
    "Emitter",
    "Fence",
    "Full",
    "HandlerEnded",
    "HandlerFull",
    "InvalidEvent",
    "InvalidKey",
    "InvalidName",
    "InvalidNamespace",
    "InvalidResult",
    "InvalidTime",
    "Json",
    "KeyReused",
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
    "Scheduled",
    "SeriatimError",
    "TooLarge",
    "Transient",
    "Unavailable",
    "Unknown",
    "Worker",
    "WorkerError",
    "WorkerFailed",
    "WrongType",
]
