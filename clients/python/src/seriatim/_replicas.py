"""The wait for replicas, behind each transaction of an emitter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from ._replies import Failed, ServerError, TooFew
from .errors import ConnectFailed

#: The shortest and the longest wait. A wait of 0 would never end.
WAIT_MS_MIN, WAIT_MS_MAX = 1, 60_000


@dataclass(frozen=True)
class ReplicaWait:
    """Waits until enough replicas have all writes of a connection, or until the time is over."""

    replicas: int
    timeout_ms: int
    #: Whether the writes must be on the disk of the master, too, and on those of the replicas.
    local: bool

    @classmethod
    def of(cls, replicas: int, timeout_ms: int, local: bool) -> Optional[ReplicaWait]:
        """Returns `None` if there is nothing to wait for."""
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
            raise ValueError(f"wait is a number of replicas from 0 on, not {replicas!r}")
        if replicas == 0 and not local:
            return None
        return cls(replicas, min(max(timeout_ms, WAIT_MS_MIN), WAIT_MS_MAX), local)

    @property
    def command(self) -> tuple[bytes, ...]:
        if self.local:
            return (b"WAITAOF", b"1", b"%d" % self.replicas, b"%d" % self.timeout_ms)
        return (b"WAIT", b"%d" % self.replicas, b"%d" % self.timeout_ms)

    @property
    def examines(self) -> tuple[bytes, ...]:
        """A command that ends at once, and shows whether the server can wait so."""
        return (b"WAITAOF", b"1", b"0", b"1") if self.local else (b"WAIT", b"0", b"1")

    def examine(self, reply: Any) -> None:
        if isinstance(reply, ServerError):
            why = str(reply)
            if self.local and "unknown command" in why:
                why = "the server has no WAITAOF: wait_local needs Redis 7.2 or newer, or Valkey"
            raise ConnectFailed(f"cannot connect to Redis: {why}; nothing was sent")

    def read(self, reply: Any) -> Optional[TooFew]:
        """Reads the reply to the wait. Returns `None` if enough replicas have the writes."""
        if isinstance(reply, ServerError):
            raise Failed("unknown", str(reply))
        local, reached = reply if isinstance(reply, list) and len(reply) == 2 else (1, reply)
        if isinstance(reply, list) is not self.local or not isinstance(local, int) or not isinstance(reached, int):
            raise Failed("unknown", "WAIT did not return a number")
        is_enough = reached >= self.replicas and local >= 1
        return None if is_enough else TooFew(reached, self.replicas, local < 1)
