"""Ends events without a worker, as the step of a worker does."""

from __future__ import annotations

import json
from typing import Any

from support import Server, until


def pending(server: Server, object: str, name: str, prefix: str = "") -> str:
    """Returns the inbox of an awaited event that has not ended. Waits until it is awaited."""
    key = f"{prefix}{object}\n{name}:event.end"
    value: bytes = until(lambda: server.client.get(key), f"{name} of {object} is awaited")
    assert value.startswith(b"?")
    return value[1:].decode().split(" ")[1]


def names(server: Server, count: int, prefix: str = "") -> list[tuple[str, str]]:
    """Returns the objects and names of so many awaited events. Waits until they are queued."""

    def found() -> list[bytes]:
        keys: list[bytes] = server.client.keys("*:event.end")
        return keys if len(keys) >= count else []

    begin, end = len(prefix), -len(":event.end")
    keys = until(found, f"{count} events are awaited")
    return [tuple(key.decode()[begin:end].split("\n")) for key in keys]


def finish(server: Server, object: str, name: str, *, tells: bool = True, prefix: str = "", **end: Any) -> None:
    """Writes an end. With `tells`, also to the inbox."""
    key = f"{prefix}{object}\n{name}:event.end"
    inbox = pending(server, object, name, prefix)
    server.client.set(key, json.dumps({"status": "completed", "id": 7, "attempts": 0, **end}))
    if tells and inbox:
        server.client.lpush(f"{prefix}\n{inbox}:event.ends", key)


def looking(server: Server) -> int:
    """Returns the number of connections that wait for their inboxes."""
    return sum(client["cmd"] == "blmpop" for client in server.client.client_list())
