"""Reads the replies of Redis, and tells what took effect.

If Redis returns an error in place of the results of a transaction, no command ran. If the results
contain an error, the other commands ran. If there is no reply, the outcome is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .errors import EmitError, OutcomeUnknown, OutOfMemory, Refused, Unreplicated, WrongType


@dataclass(frozen=True)
class ServerError:
    """An error that Redis has returned."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.code else self.text

    @property
    def is_memory(self) -> bool:
        return self.code == "OOM" or (self.code == "EXECABORT" and "OOM " in self.text)


class TransportError(Exception):
    """No replies. `sent` tells whether the commands may have reached Redis."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


@dataclass(frozen=True)
class TooFew:
    """Too few replicas have a transaction."""

    reached: int
    wanted: int
    #: Whether the transaction should be on the disk of the master, but is not.
    not_local: bool


@dataclass(frozen=True)
class Replies:
    """The results of a transaction that Redis ran."""

    #: The result of each command.
    results: list[Any]
    #: If the emitter waits for replicas, and too few have the transaction.
    too_few: Optional[TooFew] = None

    def check(self, object: str) -> None:
        """Raises an error if too few replicas have the transaction.

        Call it after the results were read: their errors show that the call was not applied, or only in part.
        """
        if self.too_few is not None:
            raise Unreplicated(object, self.too_few.reached, self.too_few.wanted, self.too_few.not_local)


class Failed(Exception):
    """The failure of a whole transaction, for any object."""

    def __init__(self, kind: str, why: str = "") -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why

    def about(self, object: str) -> EmitError:
        """Returns the error of a call for this object."""
        if self.kind == "memory":
            return OutOfMemory(object)
        if self.kind == "refused":
            return Refused(object, self.why)
        return OutcomeUnknown(object, self.why)


#: Redis returns these errors only before it runs a command.
_NOT_RUN = frozenset(
    "EXECABORT LOADING READONLY NOAUTH NOPERM WRONGPASS MOVED ASK TRYAGAIN CROSSSLOT CLUSTERDOWN "
    "MASTERDOWN MISCONF NOREPLICAS BUSY".split()
)


def not_run(error: ServerError) -> Failed:
    """Classifies an error that came in place of the results of a transaction."""
    if error.is_memory:
        return Failed("memory")
    return Failed("refused" if error.code in _NOT_RUN else "unknown", str(error))


def results(replies: list[Any], commands: int) -> list[Any]:
    """Reads the replies to MULTI, to `commands` commands and to EXEC. Returns the result of each command.

    A connection that Redis has refused may end early: then the list is shorter, and its last reply is an
    error. Raises `Failed`.
    """
    refusals = [(at, reply) for at, reply in enumerate(replies[: commands + 1]) if isinstance(reply, ServerError)]
    if len(replies) < commands + 2:
        # The client has closed the connection at an error that concerns the connection itself.
        if refusals and (refusals[0][0] > 0 or refusals[0][1].code == "NOAUTH"):
            raise _refused([error for _, error in refusals])
        raise Failed("unknown", str(refusals[0][1]) if refusals else "the reply is not that of a transaction")
    executed = replies[commands + 1]
    if refusals and refusals[0][0] == 0 and len(refusals) <= commands:
        # Without MULTI, each command that Redis did not refuse ran at once, by itself.
        raise Failed("unknown", str(refusals[0][1]))
    if isinstance(executed, ServerError):
        raise _refused([error for _, error in refusals]) if refusals else not_run(executed)
    if executed is None and not refusals:
        raise Failed("refused", "a key watched on this connection has changed")
    if refusals or not isinstance(executed, list) or len(executed) != commands:
        raise Failed("unknown", "the reply is not that of a transaction")
    return executed


def _refused(errors: list[ServerError]) -> Failed:
    memory = any(error.is_memory for error in errors)
    return Failed("memory") if memory else Failed("refused", str(errors[0]))


def number(object: str, reply: Any, key: bytes) -> int:
    """Reads the reply to a command of a transaction that returns a number."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, ServerError):
        raise command_failed(object, reply, key)
    raise OutcomeUnknown(object, "a command did not return a number")


def command_failed(object: str, error: ServerError, key: bytes) -> EmitError:
    """Returns the error of a call whose transaction ran, except that this command failed."""
    if error.code == "WRONGTYPE":
        return WrongType(object, key.decode(errors="replace"))
    return OutcomeUnknown(object, str(error))


def script_reply(object: str, reply: Any) -> Optional[list[Any]]:
    """Reads the reply of a script. Returns `None` if the server does not know the script.

    A script checks types and rights before it writes, so its errors have changed nothing.
    """
    if isinstance(reply, ServerError):
        if reply.code == "NOSCRIPT":
            return None
        if reply.is_memory:
            raise OutOfMemory(object)
        raise (Refused if reply.code in ("WRONGTYPE", "NOPERM") else OutcomeUnknown)(object, str(reply))
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], bytes):
        raise OutcomeUnknown(object, "the reply is not that of the script")
    words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in reply]
    if words[0] == "denied":
        raise Refused(object, f"NOPERM: the user may not use {words[1:2]}")
    if words[0] == "wrong_type" and len(words) > 2:
        raise Refused(object, f"WRONGTYPE: {words[1]} is a {words[2]}")
    return words
