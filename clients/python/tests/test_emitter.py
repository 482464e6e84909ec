"""The emitters where the cases cannot reach: rights, threads, the caller's client."""

from __future__ import annotations

import asyncio
import datetime
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from support import Server, server, until

import seriatim._limits as limits
from seriatim import (
    AsyncEmitter,
    ConnectFailed,
    EmitManyError,
    Emitter,
    Full,
    InvalidEvent,
    InvalidNamespace,
    InvalidTime,
    OutcomeUnknown,
    OutOfMemory,
    Refused,
    RepeatWarning,
)


def test_without_a_connection_nothing_was_sent(tmp_path: Any) -> None:
    with Emitter(f"unix://{tmp_path}/none") as emitter:
        with pytest.raises(ConnectFailed, match="nothing was sent") as error:
            emitter.emit("a", 1)
        assert not error.value.is_unknown
        with pytest.raises(ConnectFailed):
            emitter.schedule("a", 1, after=1)
        with pytest.raises(EmitManyError) as many:
            emitter.emit_many([("a", 1)])
        assert [one.error.kind for one in many.value.failed] == ["connect"]
        with pytest.raises(ConnectFailed):
            emitter.emit("a", 1, idempotency_key="k")


def test_an_emitter_connects_again(tmp_path: Any) -> None:
    own = Server(str(tmp_path))
    with Emitter(own.url) as emitter:
        emitter.emit("a", 1)
        own.kill()
        with pytest.raises(ConnectFailed):
            emitter.emit("a", 2)
        own.start()
        assert emitter.emit("a", 3).queued == 1
    own.close()


@pytest.mark.parametrize("right", ["multi", "exec", "lpush"])
def test_a_missing_right_refuses_the_whole_emit(redis_server: Server, right: str) -> None:
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", f"-{right}")
    client = redis.Redis.from_url(redis_server.url, username="few", password="x")
    try:
        with pytest.raises(Refused, match="nothing was applied"):
            Emitter(client).emit("a", 1, data=1)
    finally:
        client.close()
    assert redis_server.client.keys() == []


def test_the_rights_of_the_protocol_are_enough(redis_server: Server) -> None:
    rules = (
        "+multi +exec +time (~{shop:0}:*:events ~{shop:0}:objects.with.events +eval +evalsha +type +llen +lpush) "
        "(~{shop:0}:*:data +set) (~{shop:0}:events.emitted +type +hget +hset +hdel) "
        "(~{shop:0}:events.emitted.ends +type +zscore +zadd +zrange +zrem) (~{shop:0}:event.limits +hgetall) "
        "(~{shop:0}:event.marks +zcard) (~{shop:0}:event.groups.waiting +get) "
        "(~{shop:0}:*:events.scheduled +hset +hsetnx +hdel) (~{shop:0}:events.scheduled +zadd +zrem +zscore) "
        "(~{shop:0}:events.scheduled.wake +zadd) (%R~{shop:0}:*:event.key +get)"
    )
    words, depth, word = [], 0, ""
    for character in rules + " ":
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == " " and depth == 0:
            words.append(word)
            word = ""
        else:
            word += character
    redis_server.client.execute_command("ACL", "SETUSER", "producer", "reset", "on", ">x", *words)
    client = redis.Redis.from_url(redis_server.url, username="producer", password="x")
    try:
        emitter = Emitter(client, namespace="shop")
        assert emitter.emit("a", 1, data=2).queued == 1
        assert emitter.emit("a", 1, idempotency_key="k").queued == 2
        assert emitter.schedule("a", 1, after=1, key="k", keep_time=True).change == "new"
        assert emitter.cancel("a", "k") == "cancelled"
        with pytest.raises(Refused):
            Emitter(client, namespace="other").emit("a", 1)
    finally:
        client.close()


def test_a_replica_refuses_an_emit(redis_server: Server) -> None:
    with server("--replicaof", "127.0.0.1", "1") as replica:
        emitter = Emitter(replica.url)
        with pytest.raises(Refused, match="READONLY"):
            emitter.emit("a", 1)
        emitter.close()


def test_a_password_that_is_missing_or_wrong(redis_server: Server) -> None:
    with server("--requirepass", "x") as locked_out:
        with Emitter(locked_out.url) as emitter, pytest.raises((Refused, ConnectFailed)):
            emitter.emit("a", 1)
        with Emitter(locked_out.url.replace("unix://", "unix://:no@")) as emitter, pytest.raises(ConnectFailed):
            emitter.emit("a", 1)


@pytest.mark.parametrize("settings", [{"decode_responses": True}, {"protocol": 3}, {"encoding": "latin-1"}])
def test_a_client_of_the_caller_may_have_its_own_settings(redis_server: Server, settings: dict[str, Any]) -> None:
    redis_server.client.hset("event.limits", "*", '{"queued_max":2}')
    client = redis.Redis.from_url(redis_server.url, **settings)
    try:
        emitter = Emitter(client)
        assert emitter.emit("é", "é").queued == 1
        assert emitter.emit("é", "é", idempotency_key="é").queued == 2
        with pytest.raises(Full):
            emitter.emit("é", 1)
        assert emitter.schedule("é", 1, at=5, key="k").due_ms == 5000
        assert emitter.schedule("é", 1, after=5, key="k", keep_time=True).due_ms == 5000
    finally:
        client.close()
    assert redis_server.client.lrange("é:events", 0, -1) == ['"é"'.encode()] * 2


def test_other_clients_are_refused() -> None:
    wrong: Any = redis.asyncio.Redis()
    with pytest.raises(TypeError, match=r"takes a Redis URL or a redis\.Redis, not redis\.asyncio"):
        Emitter(wrong)
    wrong = redis.Redis()
    with pytest.raises(TypeError, match=r"takes a Redis URL or a redis\.asyncio\.Redis, not redis"):
        AsyncEmitter(wrong)
    with pytest.raises(InvalidNamespace, match="is not 1 to 64 of the characters"):
        Emitter("redis://127.0.0.1", namespace="a b")


def test_threads_share_an_emitter(redis_server: Server) -> None:
    with Emitter(redis_server.url, connections_max=4) as emitter:

        def emit(thread: int) -> None:
            for n in range(50):
                emitter.emit(f"a:{thread}", n)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(emit, range(16)))
    for thread in range(16):
        assert redis_server.client.lrange(f"a:{thread}:events", 0, -1) == [b"%d" % n for n in range(49, -1, -1)]
    assert redis_server.client.info("clients")["connected_clients"] <= 6


def test_a_forked_process_emits_over_its_own_connection(redis_server: Server) -> None:
    with Emitter(redis_server.url) as emitter:
        emitter.emit("a", 0)
        keys = {emitter.schedule("a", 1, after=60).key}
        child = os.fork()
        if child == 0:
            for n in range(100):
                emitter.emit("b", n)
            emitter.schedule("a", 1, after=60)
            os._exit(0)
        for n in range(100):
            emitter.emit("c", n)
        keys.add(emitter.schedule("a", 1, after=60).key)
        assert os.waitpid(child, 0)[1] == 0
    assert redis_server.client.llen("b:events") == redis_server.client.llen("c:events") == 100
    assert redis_server.client.hlen("a:events.scheduled") == 3


def test_an_emitter_learns_of_limits_while_it_is_used(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_WITHOUT", 0.01)
    monkeypatch.setattr(limits, "LOOK_WITH", 0.01)
    with Emitter(redis_server.url) as emitter:
        emitter.emit("a", 0)
        redis_server.client.hset("event.limits", "*", '{"queued_max":1}')

        def is_full() -> bool:
            try:
                emitter.emit("a", 1)
            except Full:
                return True
            return False

        until(is_full, "the limit binds")
        redis_server.client.delete("event.limits")
        until(lambda: not is_full(), "the limit no longer binds")


def test_a_user_without_the_right_to_limits_is_not_bound(redis_server: Server) -> None:
    redis_server.client.hset("event.limits", "*", '{"queued_max":1}')
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-hgetall")
    client = redis.Redis.from_url(redis_server.url, username="few", password="x")
    try:
        emitter = Emitter(client)
        assert [emitter.emit("a", n).queued for n in range(3)] == [1, 2, 3]
    finally:
        client.close()


def test_a_client_that_repeats_is_warned_of(redis_server: Server) -> None:
    with Emitter(redis_server.url) as emitter:
        client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 3))
        with client.pipeline(transaction=True) as pipe, pytest.warns(RepeatWarning, match="may be queued twice"):
            emitter.append_to(pipe, "a", 1)
        client.close()
        client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0))
        with client.pipeline(transaction=True) as pipe, warnings.catch_warnings():
            warnings.simplefilter("error")
            emitter.append_to(pipe, "a", 1)
        client.close()


def test_a_pipeline_must_be_a_transaction(redis_server: Server) -> None:
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0))
    with Emitter(redis_server.url) as emitter:
        with client.pipeline(transaction=False) as pipe, pytest.raises(TypeError, match="transaction=True"):
            emitter.append_to(pipe, "a", 1)
        with client.pipeline(transaction=True) as pipe:
            watched: Any = pipe
            watched.watch("w")
            with pytest.raises(ValueError, match=r"call pipe\.multi\(\)"):
                emitter.append_to(pipe, "a", 1)
            pipe.multi()
            appended = emitter.append_to(pipe, "a", 1)
            redis_server.client.set("w", 1)
            with pytest.raises(redis.WatchError) as error:
                pipe.execute(raise_on_error=False)
            with pytest.raises(Refused, match="a watched key has changed"):
                appended.outcome(error.value)
    client.close()
    assert redis_server.client.keys() == [b"w"]


@pytest.mark.parametrize("make", [Emitter, AsyncEmitter])
def test_an_emit_in_a_transaction_says_why_it_has_no_key(make: Any) -> None:
    async def check() -> None:
        append_to = make("redis://127.0.0.1:1").append_to
        name = rf"^{make.__name__}\.append_to\(\) got an unexpected keyword argument"
        why = (
            "an emit in your own transaction has no idempotency key: "
            "write a key of your own in the transaction, and look at it under WATCH$"
        )
        with pytest.raises(TypeError, match=f"{name} 'idempotency_key': {why}"):
            append_to(None, "a", 1, idempotency_key="k")
        with pytest.raises(TypeError, match=f"{name} 'awaited': its end cannot be awaited, because {why}"):
            append_to(None, "a", 1, awaited=True)
        with pytest.raises(TypeError, match=f"{name} 'subevent'$"):
            append_to(None, "a", 1, subevent=[])

    asyncio.run(check())


def test_the_outcome_without_raise_on_error_false(redis_server: Server) -> None:
    client = redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0))
    with Emitter(redis_server.url) as emitter, client.pipeline(transaction=True) as pipe:
        redis_server.client.config_set("maxmemory", "1")
        appended = emitter.append_to(pipe, "a", 1)
        with pytest.raises(redis.ResponseError) as error:
            pipe.execute()
        with pytest.raises(OutOfMemory):
            appended.outcome(error.value)
        redis_server.client.config_set("maxmemory", "0")
        pipe.reset()
        appended = emitter.append_to(pipe, "a", 1)
        pipe.get("a:events")
        with pytest.raises(redis.ResponseError) as error:
            pipe.execute()
        with pytest.raises(OutcomeUnknown):
            appended.outcome(error.value)
        for reply in (None, [], [1]):
            with pytest.raises(OutcomeUnknown, match="not that of the transaction"):
                appended.outcome(reply)
    client.close()


def test_times_are_rounded_up_and_checked(redis_server: Server) -> None:
    utc = datetime.timezone.utc
    at = datetime.datetime(2040, 1, 1, 0, 0, 0, 300_000, utc)
    with Emitter(redis_server.url) as emitter:
        assert emitter.schedule("a", 1, at=at, key="k").due_ms == 2_208_988_800_300
        assert emitter.schedule("a", 1, at=1.0001, key="k").due_ms == 1001
        assert emitter.schedule("a", 1, at=-5, key="k").due_ms == 0
        day = datetime.timedelta(days=1)
        seconds, micros = redis_server.client.time()
        due_ms = emitter.schedule("a", 1, after=day, key="k").due_ms
        assert 0 <= due_ms - (seconds * 1000 + micros / 1000) - 86_400_000 < 10_000
        with pytest.raises(InvalidTime, match="has no time zone"):
            emitter.schedule("a", 1, at=datetime.datetime(2040, 1, 1))
        for wrong in (float("nan"), float("inf"), -1):
            with pytest.raises(InvalidTime):
                emitter.schedule("a", 1, after=wrong)
        with pytest.raises(TypeError, match="not both"):
            emitter.schedule("a", 1, after=1, at=1)
        with pytest.raises(TypeError, match="not both"):
            emitter.schedule("a", 1, after=1, keep_time=True, keep_first=True)
        with pytest.raises(TypeError, match="belongs to an idempotency_key"):
            emitter.emit("a", 1, window=5)
        with pytest.raises(TypeError, match="a list of events"):
            emitter.emit("a", 1, subevents="abc")


def test_values_that_json_cannot_write(redis_server: Server) -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with Emitter(redis_server.url) as emitter:
        for wrong in (object(), {1, 2}, b"bytes", loop, deep, {(1, 2): 3}):
            with pytest.raises(InvalidEvent, match="cannot be written as JSON"):
                emitter.emit("a", wrong)
    assert redis_server.client.keys() == []


def test_an_error_of_the_iterable_passes_on(redis_server: Server) -> None:
    def events() -> Any:
        yield "a", 1
        yield "a", 2
        yield "a", 3
        raise RuntimeError("no more")

    with Emitter(redis_server.url, chunk_events_max=2) as emitter, pytest.raises(RuntimeError, match="no more"):
        emitter.emit_many(events())
    assert redis_server.client.lrange("a:events", 0, -1) == [b"2", b"1"]
