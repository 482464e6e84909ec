"""The wait for replicas, with a master and a replica."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
from support import Server, server, until

from seriatim import AsyncEmitter, ConnectFailed, Emitter, OutcomeUnknown, Schedule, ScheduleManyError, Unreplicated
from seriatim._replicas import ReplicaWait
from seriatim._replies import Failed, ServerError, TooFew

SETTINGS = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "600"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def attached(master: Server) -> None:
    def is_attached() -> bool:
        master.client.set("touched", 1)
        return bool(master.client.wait(1, 100) == 1)

    until(is_attached, "the replica has a write")
    master.client.delete("touched")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    port = str(free_port())
    with server("--port", port, *SETTINGS) as master, server("--replicaof", "127.0.0.1", port) as replica:
        yield master, replica


@pytest.fixture
def master(pair: tuple[Server, Server]) -> Server:
    pair[0].empty()
    attached(pair[0])
    return pair[0]


def waits_of(master: Server) -> int:
    waits: int = master.client.info("commandstats")["cmdstat_wait"]["calls"]
    return waits


class Stopped:
    """Stops the process of a server. Its connections stay open."""

    def __init__(self, server: Server) -> None:
        assert server._process is not None
        self.pid = server._process.pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


async def awaited(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


def run(kind: Any, redis: Any, work: Callable[[Callable[..., Any]], Any], **settings: Any) -> None:
    """Runs `work` with an emitter of this kind. `work` gets a function that makes a call."""

    async def with_emitter() -> None:
        emitter = kind(redis, **settings)

        async def call(name: str, *args: Any, **more: Any) -> Any:
            return await awaited(lambda: getattr(emitter, name)(*args, **more))

        await work(call)
        await awaited(emitter.close)

    asyncio.run(with_emitter())


KINDS = pytest.mark.parametrize("kind", [Emitter, AsyncEmitter], ids=["blocking", "async"])


@KINDS
def test_every_call_waits_until_a_replica_has_it(pair: tuple[Server, Server], master: Server, kind: Any) -> None:
    async def work(call: Callable[..., Any]) -> None:
        # The first call of a script sends its text, too.
        await call("emit", "a", 1, idempotency_key="first")
        begin = waits_of(master)
        assert (await call("emit", "a", 2)).queued == 2
        assert (await call("emit", "a", 3, idempotency_key="k")).queued == 3
        await call("emit_many", [("a", 4), ("b", 5)])
        assert (await call("schedule", "a", 6, at=4e9, key="k")).change == "new"
        await call("schedule_many", [Schedule("a", 7, after=600, key="l"), Schedule("a", 8, at=4e9, key="m")])
        assert await call("cancel", "a", "k") == "cancelled"
        assert waits_of(master) - begin == 6, "each of the calls waits once"
        replica = pair[1].client
        assert [replica.llen("a:events"), replica.hkeys("a:events.scheduled")] == [4, [b"l", b"m"]]

    run(kind, master.url, work, wait=1, wait_timeout=20)


@KINDS
def test_an_emit_that_too_few_replicas_have_is_there(master: Server, kind: Any) -> None:
    async def work(call: Callable[..., Any]) -> None:
        with pytest.raises(Unreplicated, match=r"^the emit for a is queued .* only 1 of 2 replicas have it: ") as one:
            await call("emit", "a", 1)
        error = one.value
        assert (error.object, error.reached, error.wanted, error.not_local) == ("a", 1, 2, False)
        assert (error.is_unknown, error.kind) == (True, "unreplicated")
        with pytest.raises(ScheduleManyError) as many:
            await call("schedule_many", [Schedule("a", 2, key="k", at=4e9)])
        assert (many.value.is_unknown, many.value.scheduled) == (True, [])
        assert master.client.lrange("a:events", 0, -1) == [b"1"]
        assert master.client.hgetall("a:events.scheduled") == {b"k": b"2"}

    # The time limit for a reply is shorter than the wait.
    run(kind, master.url, work, wait=2, wait_timeout=0.5, timeout=0.2)


@KINDS
def test_a_call_names_its_event(master: Server, kind: Any) -> None:
    async def work(call: Callable[..., Any]) -> None:
        with pytest.raises(Unreplicated) as failed:
            await call("call", "a", 1)
        assert failed.value.name is not None
        assert master.client.hkeys("events.emitted") == [b"a\n" + failed.value.name.encode()]
        with pytest.raises(Unreplicated) as other:
            await call("emit", "a", 1)
        assert other.value.name is None

    run(kind, master.url, work, wait=2, wait_timeout=0.01)


def test_a_repeated_emit_waits_for_the_first_one(pair: tuple[Server, Server], master: Server) -> None:
    """A repeated emit writes nothing, and a wait covers only the writes of its own connection."""
    with Stopped(pair[1]):
        Emitter(master.url).emit("a", 1, idempotency_key="k")
        waits = Emitter(master.url, wait=1, wait_timeout=0.1)
        with pytest.raises(Unreplicated):
            waits.emit("a", 1, idempotency_key="k")
    assert Emitter(master.url, wait=1, wait_timeout=20).emit("a", 1, idempotency_key="k").repeated
    assert master.client.llen("a:events") == 1


@KINDS
def test_a_client_of_the_caller_waits_too(master: Server, kind: Any) -> None:
    module: Any = redis.asyncio if kind is AsyncEmitter else redis

    async def main() -> None:
        client = module.Redis.from_url(master.url, socket_timeout=5)
        emitter = kind(client, wait=2, wait_timeout=0.1)
        with pytest.raises(Unreplicated):
            await awaited(lambda: emitter.emit("a", 1))
        with pytest.raises(ValueError, match=r"waits 5 s for a reply, and wait_timeout is 5 s: .* longer socket"):
            kind(client, wait=2, wait_timeout=5)
        await awaited(client.aclose if hasattr(client, "aclose") else client.close)

    asyncio.run(main())


def test_the_master_is_lost_during_the_wait(pair: tuple[Server, Server]) -> None:
    with server() as alone:
        emitter = Emitter(alone.url, wait=1, wait_timeout=20)

        def kill() -> None:
            until(lambda: alone.client.llen("a:events") == 1, "the event is queued")
            alone.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(OutcomeUnknown):
            emitter.emit("a", 1)
        thread.join()


def test_disks_are_waited_for() -> None:
    with server("--appendonly", "yes", "--appendfsync", "always") as alone:
        knows = "aof" in str(alone.client.execute_command("COMMAND LIST", "FILTERBY", "PATTERN", "waitaof"))
        emitter = Emitter(alone.url, wait_local=True)
        if not knows:
            with pytest.raises(ConnectFailed, match=r"no WAITAOF: wait_local needs Redis 7\.2"):
                emitter.emit("a", 1)
            return
        assert emitter.emit("a", 1).queued == 1
        with pytest.raises(Unreplicated, match="0 of 1 replicas have it: it is lost"):
            Emitter(alone.url, wait=1, wait_timeout=0.05, wait_local=True).emit("a", 2)
        alone.client.config_set("appendonly", "no")
        with pytest.raises(ConnectFailed, match="appendonly is disabled; nothing was sent"):
            Emitter(alone.url, wait_local=True).emit("a", 3)
        assert alone.client.llen("a:events") == 2


def test_the_reply_to_a_wait_is_read() -> None:
    """A server without WAITAOF cannot show these replies."""
    local = ReplicaWait.of(1, 50, True)
    replicas = ReplicaWait.of(2, 50, False)
    assert local is not None
    assert replicas is not None
    assert (local.command, replicas.command) == ((b"WAITAOF", b"1", b"1", b"50"), (b"WAIT", b"2", b"50"))
    assert [local.read([1, 1]), local.read([1, 2]), replicas.read(2)] == [None] * 3
    assert [local.read([0, 1]), local.read([1, 0])] == [TooFew(1, 1, True), TooFew(0, 1, False)]
    assert replicas.read(1) == TooFew(1, 2, False)
    for wait, reply in [(local, 1), (local, [1]), (local, None), (replicas, [1, 1]), (replicas, b"2")]:
        with pytest.raises(Failed, match="did not return a number"):
            wait.read(reply)
    with pytest.raises(Failed, match="NOPERM: no"):
        replicas.read(ServerError("NOPERM", "no"))
    text = str(Unreplicated("a", 1, 1, True))
    assert "only 1 of 1 replicas have it, and it is not on the master's disk: it is lost" in text
    assert [wait and wait.timeout_ms for wait in (ReplicaWait.of(1, 0, False), ReplicaWait.of(1, 10**6, False))] == [
        1,
        60_000,
    ]
    assert ReplicaWait.of(0, 50, False) is None


@pytest.mark.parametrize("wait", [-1, True, 1.5, "1"])
def test_a_wait_is_a_number_of_replicas(wait: Any) -> None:
    with pytest.raises(ValueError, match="wait is a number of replicas from 0 on"):
        Emitter("redis://127.0.0.1", wait=wait)
