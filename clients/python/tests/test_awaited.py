"""Awaited emits where the cases cannot reach: waits at the same time, lost connections, rights, the caller's client."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from ends import finish, looking, names
from proxy import Proxy
from support import Server, until

import seriatim._transport as transport
import seriatim._waits as waits
from seriatim import (
    EmitError,
    Emitter,
    EndRefused,
    EndTimedOut,
    EventFailed,
    Full,
    InvalidTime,
    NotAwaitable,
    Refused,
    WaitClosed,
)

PATIENCE = 20


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(40) as found:
        yield found


def test_a_call_returns_the_result(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Emitter(redis_server.url, namespace="shop") as emitter:
        ends: list[tuple[Any, Any]] = [
            ({"pay": {"n": 1}}, {"n": 1}),
            (None, None),
            ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ]
        for results, wanted in ends:
            redis_server.empty()
            call = pool.submit(emitter.call, "a", {"type": "t"}, PATIENCE)
            ((object, name),) = names(redis_server, 1, "{shop:0}:")
            end: dict[str, Any] = {} if results is None else {"results": results}
            finish(redis_server, object, name, prefix="{shop:0}:", **end)
            assert call.result(PATIENCE) == wanted


def test_an_event_that_was_not_delivered_fails_its_call(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Emitter(redis_server.url) as emitter:
        call = pool.submit(emitter.call, "a", 1, PATIENCE)
        ((object, name),) = names(redis_server, 1)
        finish(redis_server, object, name, status="dead", error="no card", attempts=3, results={"mail": 1})
        with pytest.raises(EventFailed, match="of a is dead: no card") as failed:
            call.result(PATIENCE)
    end = failed.value.end
    assert (end.status, end.id, end.error, end.attempts) == ("dead", 7, "no card", 3)
    assert (end.results, end.result, failed.value.name, failed.value.object) == ({"mail": 1}, 1, name, "a")


def test_an_awaited_emit_has_a_name_and_can_be_awaited_again(redis_server: Server) -> None:
    with Emitter(redis_server.url) as emitter, Emitter(redis_server.url) as other:
        awaited = emitter.emit("a", 1, awaited=True, idempotency_key="k", keep=timedelta(minutes=2))
        assert (awaited.name, awaited.object, awaited.events, awaited.queued) == ("k", "a", 1, 1)
        with pytest.raises(EndTimedOut, match=r'no end of event "k" of a after 0\.2 s: wait again') as late:
            awaited.wait(0.2)
        assert isinstance(late.value, TimeoutError)
        assert (late.value.name, late.value.object, late.value.timeout, late.value.unreachable) == ("k", "a", 0.2, None)
        finish(redis_server, "a", "k", results={"t": 5})
        again = other.emit("a", 1, awaited=True, idempotency_key="k")
        assert again.repeated
        assert [awaited.wait(PATIENCE), awaited.wait(PATIENCE), again.wait(PATIENCE)] == [5, 5, 5]
        assert other.end_of("a", "k", timedelta(seconds=PATIENCE)) == awaited.end(PATIENCE)


def test_threads_wait_at_the_same_time_over_one_connection(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Emitter(redis_server.url, connections_max=1) as emitter:
        awaited = [emitter.emit(f"a{n % 7}", n, awaited=True) for n in range(300)]
        waits = [pool.submit(one.wait, PATIENCE) for one in awaited[:40]]
        until(lambda: looking(redis_server) == 1, "one connection waits")
        # No wait keeps the only connection of the emits.
        assert emitter.emit("b", 1).queued == 1
        threads = [thread.name for thread in threading.enumerate()]
        assert threads.count("seriatim-waits") == 1
        for n, one in enumerate(awaited):
            finish(redis_server, one.object, one.name, tells=n % 2 == 0, results={"t": n})
        assert [wait.result(PATIENCE) for wait in waits] == list(range(40))
        assert [one.wait(PATIENCE) for one in awaited] == list(range(300))
        until(lambda: looking(redis_server) == 0, "the connection is closed")
        until(lambda: "seriatim-waits" not in [thread.name for thread in threading.enumerate()], "the thread ends")


def test_an_end_that_is_told_comes_at_once(
    redis_server: Server, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No second look comes during this test.
    monkeypatch.setattr(waits, "ROUND_S", 300.0)
    monkeypatch.setattr(transport, "READER_TIMEOUT", 400.0)
    with Emitter(redis_server.url) as emitter:
        never = pool.submit(emitter.end_of, "b", "k", PATIENCE)
        until(lambda: looking(redis_server) == 1, "the wait has begun")
        for n in range(20):
            call = pool.submit(emitter.call, "a", n, PATIENCE)
            (name,) = (name for object, name in names(redis_server, 1) if object == "a")
            finish(redis_server, "a", name, results={"t": n})
            assert call.result(PATIENCE) == n
            redis_server.client.delete(f"a\n{name}:event.end")
        emitter.close()
        with pytest.raises(WaitClosed):
            never.result(PATIENCE)
        # The watch would wait for the inbox for a long time.
        redis_server.client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: looking(redis_server) == 0, "the connection is closed")


def test_an_end_that_is_not_told_is_found(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Emitter(redis_server.url) as emitter, Emitter(redis_server.url) as other:
        emitter.emit("a", 1, awaited=True, idempotency_key="k")
        waits = [pool.submit(one.end_of, "a", "k", PATIENCE) for one in (emitter, other)]
        finish(redis_server, "a", "k", tells=False, results={"t": 1})
        assert [wait.result(PATIENCE).result for wait in waits] == [1, 1]


@pytest.mark.parametrize(
    "settings",
    [{"socket_timeout": 0.02}, {"decode_responses": True}, {"protocol": 3}, {"max_connections": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_client_of_the_caller_may_have_its_own_settings(
    redis_server: Server, pool: ThreadPoolExecutor, settings: dict[str, Any]
) -> None:
    client = redis.Redis.from_url(redis_server.url, **settings)
    try:
        emitter = Emitter(client)
        with Emitter(redis_server.url) as other:
            other.emit("é", 1, awaited=True, idempotency_key="é")
        with pytest.raises(EndTimedOut) as late:
            emitter.end_of("é", "é", 0.3)
        assert late.value.unreachable is None
        wait = pool.submit(emitter.end_of, "é", "é", PATIENCE)
        finish(redis_server, "é", "é", results={"t": "é"})
        assert wait.result(PATIENCE).result == "é"
    finally:
        client.close()


def test_an_emit_whose_reply_is_lost_is_repeated_once(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        emitter.emit("warm", 1, idempotency_key="warm")
        for n in range(2):
            (proxy.lose_request_with if n else proxy.lose_reply_to)(b"EVALSHA")
            call = pool.submit(emitter.call, f"a{n}", 1, PATIENCE)
            (name,) = (name for object, name in names(redis_server, n + 1) if object == f"a{n}")
            finish(redis_server, f"a{n}", name, results={"t": n})
            assert call.result(PATIENCE) == n
            assert redis_server.client.llen(f"a{n}:events") == 1
        assert proxy.lost == 2


def test_a_wait_outlives_its_connection(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Proxy(redis_server) as proxy, Emitter(proxy.url) as emitter:
        awaited = emitter.emit("a", 1, awaited=True)
        wait = pool.submit(awaited.wait, PATIENCE)
        proxy.lose_reply_to(b"BLMPOP")
        until(lambda: proxy.lost == 1, "the connection is lost")
        proxy.lose_request_with(b"MGET")
        until(lambda: proxy.lost == 2, "the connection is lost again")
        finish(redis_server, "a", awaited.name, results={"t": 1})
        assert wait.result(PATIENCE) == 1


def test_a_wait_outlives_redis(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    own = Server(str(tmp_path), "--appendonly", "yes", "--appendfsync", "always")
    try:
        with Emitter(own.url) as emitter:
            awaited = emitter.emit("a", 1, awaited=True)
            wait = pool.submit(awaited.wait, PATIENCE)
            until(lambda: looking(own) == 1, "the wait has begun")
            own.kill()
            # It is for sure that nobody can be asked.
            with pytest.raises(EndTimedOut, match=r"after 1 s \(.+\): wait again") as late:
                awaited.wait(1)
            assert late.value.unreachable
            own.start()
            finish(own, "a", awaited.name, results={"t": 1})
            assert wait.result(PATIENCE) == 1
    finally:
        own.close()


def test_a_limit_refuses_a_call(redis_server: Server) -> None:
    redis_server.client.hset("event.limits", "*", '{"queued_max":1}')
    with Emitter(redis_server.url) as emitter:
        emitter.emit("a", 1)
        with pytest.raises(Full):
            emitter.call("a", 1, PATIENCE)
    assert redis_server.client.keys("*event.end") == []


def test_a_refusal_of_redis_ends_a_wait(redis_server: Server) -> None:
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-mget")
    client = redis.Redis.from_url(redis_server.url, username="few", password="x")
    try:
        with pytest.raises(EndRefused, match='refuses to tell the end of event "k" of a: NOPERM') as refused:
            Emitter(client).end_of("a", "k", PATIENCE)
        assert (refused.value.object, refused.value.name) == ("a", "k")
    finally:
        client.close()


def test_without_the_right_to_the_inbox_ends_are_found(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-blmpop")
    client = redis.Redis.from_url(redis_server.url, username="few", password="x")
    try:
        awaited = Emitter(client).emit("a", 1, awaited=True)
        wait = pool.submit(awaited.wait, PATIENCE)
        finish(redis_server, "a", awaited.name, results={"t": 1})
        assert wait.result(PATIENCE) == 1
    finally:
        client.close()


def test_the_rights_of_the_protocol_are_enough(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    protocol = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    (line,) = (line for line in protocol.splitlines() if "ACL SETUSER awaiter " in line)
    words, depth, word = [], 0, ""
    for character in line.partition("awaiter ")[2].replace(">PASSWORD", ">x") + " ":
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == " " and depth == 0:
            words.append(word)
            word = ""
        else:
            word += character
    redis_server.client.execute_command("ACL", "SETUSER", "awaiter", "reset", *words)
    client = redis.Redis.from_url(redis_server.url, username="awaiter", password="x")
    try:
        emitter = Emitter(client, namespace="shop")
        awaited = emitter.emit("a", 1, awaited=True)
        wait = pool.submit(awaited.wait, PATIENCE)
        finish(redis_server, "a", awaited.name, prefix="{shop:0}:", results={"t": 1})
        assert wait.result(PATIENCE) == 1
        with pytest.raises(Refused):
            Emitter(client, namespace="other").call("a", 1)
    finally:
        client.close()


def test_a_closed_emitter_ends_its_waits(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    emitter = Emitter(redis_server.url)
    awaited = emitter.emit("a", 1, awaited=True, idempotency_key="k")
    waits = [pool.submit(awaited.wait, PATIENCE) for _ in range(3)]
    until(lambda: looking(redis_server) == 1, "the waits have begun")
    until(lambda: len(emitter._waits._waiting._futures.get(b"a\nk:event.end", [])) == 3, "three wait")
    emitter.close()
    for wait in waits:
        with pytest.raises(WaitClosed, match='closed during a wait for event "k" of a'):
            wait.result(PATIENCE)
    until(lambda: looking(redis_server) == 0, "the connection is closed")


def test_a_forked_process_has_waits_of_its_own(redis_server: Server, pool: ThreadPoolExecutor) -> None:
    with Emitter(redis_server.url) as emitter:
        awaited = emitter.emit("a", 1, awaited=True)
        wait = pool.submit(awaited.wait, PATIENCE)
        until(lambda: looking(redis_server) == 1, "the wait has begun")
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if emitter.emit("b", 1, awaited=True, idempotency_key="k").wait(PATIENCE) == 2 else 1)
            except BaseException:
                os._exit(2)
        finish(redis_server, "b", "k", results={"t": 2})
        assert os.waitpid(child, 0)[1] == 0
        finish(redis_server, "a", awaited.name, results={"t": 1})
        assert wait.result(PATIENCE) == 1


def test_what_cannot_be_awaited_is_refused(redis_server: Server) -> None:
    with Emitter(redis_server.url) as plain:
        emitter: Any = plain
        for more in ({"subevents": [2]}, {"data": 2}):
            with pytest.raises(NotAwaitable, match="has one event and no data") as refused:
                emitter.emit("a", 1, awaited=True, **more)
            assert isinstance(refused.value, EmitError)
            assert not refused.value.is_unknown
        with pytest.raises(TypeError, match="keep sets the time"):
            emitter.emit("a", 1, awaited=True, idempotency_key="k", window=60)
        with pytest.raises(TypeError, match="belongs to an awaited emit"):
            emitter.emit("a", 1, idempotency_key="k", keep=60)
        for wrong in (-1, float("nan"), float("inf")):
            with pytest.raises(InvalidTime):
                emitter.call("a", 1, wrong)
            with pytest.raises(InvalidTime):
                emitter.end_of("a", "k", wrong)
        for wrong_type in ("5", None, True):
            with pytest.raises(TypeError, match="timeout is a number of seconds"):
                emitter.end_of("a", "k", wrong_type)
    assert redis_server.client.keys() == []
