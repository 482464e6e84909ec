"""Lost requests and replies: nothing is sent twice, and the outcome is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from proxy import Proxy
from redis.backoff import NoBackoff
from redis.retry import Retry
from support import Server, until

from seriatim import (
    AsyncEmitter,
    EmitManyError,
    Emitter,
    OutcomeUnknown,
)


def test_a_lost_reply_leaves_the_outcome_unknown_and_nothing_is_sent_twice(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("a", 1)
        proxy.lose_reply_to(b"LPUSH")
        with pytest.raises(OutcomeUnknown, match="it is unknown whether the call for a has taken effect") as error:
            emitter.emit("a", 2)
        assert error.value.is_unknown
        assert emitter.emit("a", 3).queued == 3
    assert redis_server.client.lrange("a:events", 0, -1) == [b"3", b"2", b"1"]


def test_a_lost_request_leaves_the_outcome_unknown(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("a", 1)
        proxy.lose_request_with(b"LPUSH")
        with pytest.raises(OutcomeUnknown):
            emitter.emit("a", 2)
        assert emitter.emit("a", 3).queued == 2


def test_an_emit_with_a_key_is_repeated_and_queued_once(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("a", 1, idempotency_key="warm")
        proxy.lose_reply_to(b"EVALSHA")
        emitted = emitter.emit("a", 2, idempotency_key="k")
        assert (emitted.queued, emitted.repeated) == (2, True)
        proxy.lose_request_with(b"EVALSHA")
        emitted = emitter.emit("a", 3, idempotency_key="l")
        assert (emitted.queued, emitted.repeated) == (3, False)
    assert redis_server.client.lrange("a:events", 0, -1) == [b"3", b"2", b"1"]


def test_an_emit_with_a_key_is_sent_four_times_at_most(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("a", 1, idempotency_key="warm")
        proxy.lose_request_with(b"EVALSHA", times=100)
        with pytest.raises(OutcomeUnknown):
            emitter.emit("a", 2, idempotency_key="k")
        assert proxy.lost == 4


def test_an_earlier_unknown_outcome_counts(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("a", 1, idempotency_key="warm")
        proxy.lose_all_after_reply_to(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            emitter.emit("a", 2, idempotency_key="k")
    assert redis_server.client.lrange("a:events", 0, -1) == [b"2", b"1"]


def test_a_late_reply_meets_no_other_call(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url, connections_max=1, timeout=0.5) as emitter:
        emitter.emit_many(("a", n) for n in range(5))
        proxy.hold()
        with pytest.raises(OutcomeUnknown, match="Timeout"):
            emitter.emit("a", 5)
        proxy.is_holding.clear()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(emitter.emit, "b", 1)
            proxy.is_holding.wait(10)
            proxy.go_on()
            assert other.result().queued == 1
        until(lambda: redis_server.client.llen("a:events") == 6, "the late emit takes effect")


def test_a_late_reply_meets_no_other_call_of_asyncio(redis_server: Server) -> None:
    async def main(proxy: Proxy) -> None:
        async with AsyncEmitter(proxy.url, connections_max=1, timeout=0.5) as emitter:
            await emitter.emit_many(("a", n) for n in range(5))
            proxy.hold()
            with pytest.raises(OutcomeUnknown, match="Timeout"):
                await emitter.emit("a", 5)
            proxy.is_holding.clear()
            other = asyncio.create_task(emitter.emit("b", 1))
            await asyncio.get_running_loop().run_in_executor(None, proxy.is_holding.wait, 10)
            proxy.go_on()
            assert (await other).queued == 1

    with Proxy(redis_server) as proxy:
        asyncio.run(main(proxy))


def test_the_asynchronous_emitter_does_the_same(redis_server: Server) -> None:
    async def main(proxy: Proxy) -> None:
        async with AsyncEmitter(proxy.url) as emitter:
            await emitter.emit("a", 1, idempotency_key="warm")
            proxy.lose_reply_to(b"LPUSH")
            with pytest.raises(OutcomeUnknown):
                await emitter.emit("a", 2)
            proxy.lose_reply_to(b"EVALSHA")
            assert (await emitter.emit("a", 3, idempotency_key="k")).repeated

    with Proxy(redis_server) as proxy:
        asyncio.run(main(proxy))
    assert redis_server.client.lrange("a:events", 0, -1) == [b"3", b"2", b"1"]


def test_many_events_stop_at_an_unknown_outcome(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url, chunk_events_max=2) as emitter:
        emitter.emit("a", 0)
        proxy.lose_reply_to(b"LPUSH")
        with pytest.raises(EmitManyError) as error:
            emitter.emit_many(("a", n) for n in range(1, 10))
    assert (error.value.acknowledged, error.value.stopped, error.value.is_unknown) == (0, 2, True)
    assert redis_server.client.llen("a:events") == 3


def test_a_cancelled_emit_leaves_no_reply_behind(redis_server: Server) -> None:
    async def main(proxy: Proxy) -> None:
        async with AsyncEmitter(proxy.url, connections_max=1) as emitter:
            await emitter.emit("a", 1)
            for _ in range(3):
                proxy.hold()
                task = asyncio.create_task(emitter.emit("a", 2))
                await asyncio.get_running_loop().run_in_executor(None, proxy.is_holding.wait, 10)
                # Up to Python 3.11 a cancel is lost if it meets the end of a write. So the task takes this step.
                for _ in range(10):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                proxy.go_on()
                assert await emitter.cancel("b", "k") == "not_found"
                assert (await emitter.emit("b", 1)).events == 1

    with Proxy(redis_server) as proxy:
        asyncio.run(main(proxy))


def test_the_outcome_of_a_transaction_whose_reply_is_lost(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(redis_server.url) as emitter:
        client = redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0))
        with client.pipeline(transaction=True) as pipe:
            appended = emitter.append_to(pipe, "a", 1)
            proxy.lose_reply_to(b"LPUSH")
            with pytest.raises(redis.ConnectionError) as error:
                pipe.execute(raise_on_error=False)
            with pytest.raises(OutcomeUnknown):
                appended.outcome(error.value)
        client.close()
    assert redis_server.client.llen("a:events") == 1


def test_an_emitter_waits_for_a_free_connection(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url, connections_max=1, timeout=10) as emitter:
        emitter.emit("a", 1)
        proxy.hold()
        first = threading.Thread(target=emitter.emit, args=("a", 2))
        first.start()
        assert proxy.is_holding.wait(10)
        second = threading.Thread(target=emitter.emit, args=("a", 3))
        second.start()
        proxy.go_on()
        first.join(10)
        second.join(10)
    assert redis_server.client.lrange("a:events", 0, -1) == [b"3", b"2", b"1"]
