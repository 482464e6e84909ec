"""Awaited emits with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Callable

import pytest
import redis.asyncio
from ends import finish, looking, names
from proxy import Proxy
from support import Server, until

from seriatim import AsyncEmitter, EndRefused, EndTimedOut, EventFailed, Full, NotAwaitable, WaitClosed

PATIENCE = 20


async def aside(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Runs work that blocks in a thread."""
    return await asyncio.to_thread(work, *args, **more)


async def until_tasks(count: int) -> None:
    """Waits until there are so many tasks. At first, each wait may have one for its own look."""
    for _ in range(1000):
        if len(asyncio.all_tasks()) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(asyncio.all_tasks())} tasks, not {count}")


def run(main: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        await main
        await until_tasks(1)

    asyncio.run(whole())


def test_a_call_returns_the_result_or_the_error(redis_server: Server) -> None:
    async def main() -> None:
        async with AsyncEmitter(redis_server.url) as emitter:
            call = asyncio.create_task(emitter.call("a", 1, PATIENCE))
            ((object, name),) = await aside(names, redis_server, 1)
            await aside(finish, redis_server, object, name, results={"t": [1]})
            assert await call == [1]
            redis_server.empty()
            call = asyncio.create_task(emitter.call("a", 1, PATIENCE))
            ((object, name),) = await aside(names, redis_server, 1)
            await aside(finish, redis_server, object, name, status="cancelled", id=0, error="enough")
            with pytest.raises(EventFailed, match="is cancelled: enough") as failed:
                await call
            assert failed.value.end.id is None

    run(main())


def test_waits_share_one_connection_and_one_task(redis_server: Server) -> None:
    async def main() -> None:
        async with AsyncEmitter(redis_server.url, connections_max=1) as emitter:
            awaited = [await emitter.emit(f"a{n % 7}", n, awaited=True) for n in range(300)]
            before = len(asyncio.all_tasks())
            waits = [asyncio.create_task(one.wait(PATIENCE)) for one in awaited]
            await aside(until, lambda: looking(redis_server) == 1, "one connection waits")
            await until_tasks(before + len(waits) + 1)
            assert (await emitter.emit("b", 1)).queued == 1
            for n, one in enumerate(awaited):
                await aside(finish, redis_server, one.object, one.name, tells=n % 2 == 0, results={"t": n})
            assert await asyncio.gather(*waits) == list(range(300))
            await aside(until, lambda: looking(redis_server) == 0, "the connection is closed")
            await until_tasks(before)

    run(main())


def test_a_cancelled_wait_ends_alone(redis_server: Server) -> None:
    async def main() -> None:
        async with AsyncEmitter(redis_server.url) as emitter:
            awaited = await emitter.emit("a", 1, awaited=True)
            first, second = (asyncio.create_task(awaited.wait(PATIENCE)) for _ in range(2))
            await aside(until, lambda: looking(redis_server) == 1, "the waits have begun")
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await aside(finish, redis_server, "a", awaited.name, results={"t": 1})
            assert await second == 1
            third = asyncio.create_task(emitter.end_of("b", "k", PATIENCE))
            await aside(until, lambda: looking(redis_server) == 1, "the wait has begun")
            third.cancel()
            await aside(until, lambda: looking(redis_server) == 0, "the connection is closed")

    run(main())


@pytest.mark.parametrize("settings", [{"socket_timeout": 0.02}, {"decode_responses": True}, {"max_connections": 1}])
def test_a_client_of_the_caller_may_have_its_own_settings(redis_server: Server, settings: dict[str, Any]) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(redis_server.url, **settings)
        async with AsyncEmitter(redis_server.url) as other:
            name = (await other.emit("a", 1, awaited=True, keep=60)).name
        async with AsyncEmitter(client) as emitter:
            with pytest.raises(EndTimedOut) as late:
                await emitter.end_of("a", name, 0.3)
            assert late.value.unreachable is None
            wait = asyncio.create_task(emitter.end_of("a", name, PATIENCE))
            await aside(finish, redis_server, "a", name, results={"t": 1})
            assert (await wait).result == 1
        await client.connection_pool.disconnect()

    run(main())


def test_a_wait_outlives_its_connection(redis_server: Server) -> None:
    async def main(proxy: Proxy) -> None:
        async with AsyncEmitter(proxy.url) as emitter:
            await emitter.emit("warm", 1, idempotency_key="warm")
            proxy.lose_reply_to(b"EVALSHA")
            awaited = await emitter.emit("a", 1, awaited=True)
            assert (awaited.queued, proxy.lost) == (1, 1)
            wait = asyncio.create_task(awaited.wait(PATIENCE))
            for lost, word in enumerate([b"BLMPOP", b"MGET"], 1):
                proxy.lose_reply_to(word)
                await aside(until, lambda lost=lost: proxy.lost > lost, "the connection is lost")
            await aside(finish, redis_server, "a", awaited.name, results={"t": 1})
            assert await wait == 1

    with Proxy(redis_server) as proxy:
        run(main(proxy))


def test_refusals(redis_server: Server) -> None:
    redis_server.client.hset("event.limits", "*", '{"queued_max":1}')
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-mget")

    async def main() -> None:
        async with AsyncEmitter(redis_server.url) as emitter:
            await emitter.emit("a", 1)
            with pytest.raises(Full):
                await emitter.call("a", 1, PATIENCE)
            untyped: Any = emitter
            with pytest.raises(NotAwaitable):
                await untyped.emit("a", 1, data=2, awaited=True)
        async with AsyncEmitter(redis_server.url.replace("unix://", "unix://few:x@")) as blind:
            with pytest.raises(EndRefused, match="NOPERM"):
                await blind.end_of("a", "k", PATIENCE)

    run(main())


def test_a_closed_emitter_ends_its_waits(redis_server: Server) -> None:
    async def main() -> None:
        emitter = AsyncEmitter(redis_server.url)
        wait = asyncio.create_task(emitter.end_of("a", "k", PATIENCE))
        await aside(until, lambda: looking(redis_server) == 1, "the wait has begun")
        await emitter.close()
        with pytest.raises(WaitClosed):
            await wait
        await aside(until, lambda: looking(redis_server) == 0, "the connection is closed")

    run(main())


def test_the_end_of_the_loop_ends_the_watch(redis_server: Server) -> None:
    emitter = AsyncEmitter(redis_server.url)

    async def main() -> None:
        with pytest.raises(EndTimedOut):
            await emitter.end_of("a", "k", 0.1)

    # Each loop has a watch of its own.
    asyncio.run(main())
    asyncio.run(main())
    until(lambda: looking(redis_server) == 0, "the connection is closed")
