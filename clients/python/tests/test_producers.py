"""Runs clients/cases/producers.json with the emitter and with the asynchronous emitter."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any, Callable, Optional, Union

import pytest
import redis
import redis.asyncio
from case_values import Expect, compare_end, event, load, now_ms, one, only, text
from redis.backoff import NoBackoff
from redis.retry import Retry
from scripts import emit_args, end_of_args, schedule_args
from support import Server

from seriatim import AsyncEmitter, EmitError, EmitManyError, Emitter, Schedule, ScheduleManyError, WaitError

PRODUCERS = load("producers.json")
Case = dict[str, Any]


class Runner:
    """Runs the operations of a case, with an emitter of either kind."""

    def __init__(self, server: Server, case: Case, *, is_async: bool) -> None:
        only(case, "name", "namespace", "emitter", "given", "do", "then", "keys")
        settings = case.get("emitter", {})
        only(settings, "event_bytes_max", "chunk_events_max", "chunk_bytes_max", "wait", "wait_timeout_ms")
        settings = {name: value for name, value in settings.items() if name != "wait_timeout_ms"}
        if "wait" in settings:
            settings["wait_timeout"] = case["emitter"]["wait_timeout_ms"] / 1000
        kind: Any = AsyncEmitter if is_async else Emitter
        self.server = server
        self.case = case
        self.is_async = is_async
        self.emitter = kind(server.url, namespace=case.get("namespace"), **settings)
        self.keys: dict[str, str] = {}

    async def run(self) -> None:
        for command in self.case.get("given", []):
            self.server.client.execute_command(*map(argument, command))
        begin = self.redis_ms()
        found = []
        for at, operation in enumerate(self.case["do"]):
            result = await self.operation(operation)
            error = result.get("error")
            scheduled = error.scheduled if isinstance(error, ScheduleManyError) else result.get("scheduled", [])
            made = {str(at): result.get("key", ""), **{f"{at}.{n}": one.key for n, one in enumerate(scheduled)}}
            self.keys.update((place, key) for place, key in made.items() if key.startswith("-"))
            found.append(result)
        expect = Expect(begin, self.redis_ms(), self.keys)
        closed = self.emitter.close()
        if inspect.isawaitable(closed):
            await closed
        assert len(found) == len(self.case["then"])
        for result, wanted in zip(found, self.case["then"]):
            compare(expect, result, wanted)
        wanted_keys = {expect.text(key) for key in self.case["keys"]}
        assert {key.decode() for key in self.server.client.keys()} == wanted_keys
        for key, wanted in self.case["keys"].items():
            expect.dump(self.server.client, key, wanted)

    def redis_ms(self) -> float:
        seconds, micros = self.server.client.time()
        return float(seconds * 1000 + micros / 1000)

    async def operation(self, operation: Case) -> Case:
        name, members = one(operation)
        known: dict[str, Callable[[Case], Any]] = {
            "emit": self.emit,
            "end_of": self.end_of,
            "emit_many": self.emit_many,
            "schedule": self.schedule,
            "schedule_many": self.schedule_many,
            "cancel": self.cancel,
            "transaction": self.transaction,
            "redis": self.redis,
        }
        try:
            result: Case = await known[name](members)
        except (EmitError, WaitError) as error:
            result = {"error": error}
        return result

    async def call(self, function: Callable[..., Any], *args: Any, **members: Any) -> Any:
        result = function(*args, **members)
        return await result if inspect.isawaitable(result) else result

    async def call_with(self, function: Callable[..., Any], arguments: tuple[Any, Case]) -> Any:
        return await self.call(function, *arguments[0], **arguments[1])

    async def emit(self, members: Case) -> Case:
        emitted = await self.call_with(self.emitter.emit, emit_args(members))
        result = {"events": emitted.events, "queued": emitted.queued, "repeated": emitted.repeated}
        if "awaited" in members:
            result["key"] = emitted.name
        return result

    async def end_of(self, members: Case) -> Case:
        return {"end": await self.call(self.emitter.end_of, *end_of_args(members))}

    async def emit_many(self, members: Case) -> Case:
        only(members, "events")
        pairs = [(text(object), event(one_event)) for object, one_event in members["events"]]
        emitted = await self.call(self.emitter.emit_many, iter(pairs))
        return {"events": emitted.events, "chunks": emitted.chunks}

    async def schedule(self, members: Case) -> Case:
        scheduled = await self.call_with(self.emitter.schedule, schedule_args(members))
        return {"key": scheduled.key, "due_ms": scheduled.due_ms, "change": scheduled.change}

    async def schedule_many(self, members: Case) -> Case:
        only(members, "schedules")
        schedules = [Schedule(*args, **more) for args, more in map(schedule_args, members["schedules"])]
        return {"scheduled": await self.call(self.emitter.schedule_many, iter(schedules))}

    async def cancel(self, members: Case) -> Case:
        only(members, "object", "key")
        key = text(members["key"])
        for at, made in self.keys.items():
            key = key.replace(f"<key of {at}>", made)
        return {"cancelled": await self.call(self.emitter.cancel, text(members["object"]), key)}

    async def redis(self, members: Case) -> Case:
        only(members, "command")
        self.server.client.execute_command(*map(argument, members["command"]))
        return {}

    async def transaction(self, members: Case) -> Case:
        only(members, "steps")
        outcomes: list[Any] = []
        client: Any = (redis.asyncio.Redis if self.is_async else redis.Redis).from_url(
            self.server.url, retry=retry(self.is_async)
        )
        pipe: Any = client.pipeline(transaction=True)
        for step in members["steps"]:
            name, value = one(step)
            if name == "command":
                pipe.execute_command(*map(argument, value))
                continue
            assert name == "emit"
            only(value, "object", "event", "subevents", "data")
            try:
                args, more = emit_args(value)
                outcomes.append(self.emitter.append_to(pipe, *args, **more))
            except EmitError as error:
                outcomes.append({"error": error})
        replies: Any
        try:
            replies = await self.call(pipe.execute, raise_on_error=False)
        except redis.RedisError as error:
            replies = error
        await self.call(client.aclose if hasattr(client, "aclose") else client.close)
        for at, appended in enumerate(outcomes):
            if not isinstance(appended, dict):
                outcomes[at] = "ok"
                try:
                    appended.outcome(replies)
                except EmitError as error:
                    outcomes[at] = {"error": error}
        return {"outcomes": outcomes}


def retry(is_async: bool) -> Any:
    from redis.asyncio.retry import Retry as AsyncRetry

    return (AsyncRetry if is_async else Retry)(NoBackoff(), 0)


def argument(found: Any) -> Any:
    if isinstance(found, dict):
        name, value = one(found)
        assert name == "limits"
        return json.dumps(value, separators=(",", ":"))
    return found


def compare(expect: Expect, found: Case, wanted: Case) -> None:
    error: Optional[Union[EmitError, WaitError]] = found.get("error")
    if error is not None:
        compare_error(expect, error, wanted)
        return
    assert "error" not in wanted, found
    for name, value in wanted.items():
        if name == "end":
            compare_end(found[name], value)
            continue
        if name == "scheduled":
            compare_scheduled(expect, found[name], value)
            continue
        if name != "outcomes":
            expect.value(found[name], value)
            continue
        assert len(found[name]) == len(value)
        for outcome, one_wanted in zip(found[name], value):
            if isinstance(one_wanted, str):
                assert outcome == one_wanted
            else:
                compare(expect, outcome, one_wanted)


def compare_scheduled(expect: Expect, found: list[Any], wanted: list[Case]) -> None:
    assert len(found) == len(wanted), found
    for one_found, one_wanted in zip(found, wanted):
        for name, value in one_wanted.items():
            assert name in ("key", "due_ms", "change"), f"the runner does not know {name}"
            expect.value(getattr(one_found, name), value)


def compare_error(expect: Expect, error: Union[EmitError, WaitError], wanted: Case) -> None:
    assert wanted.get("error") == error.kind, f"{error!r} is not {wanted}"
    for name, value in wanted.items():
        if name == "message":
            assert str(error) == value
        elif name == "message_has":
            assert value in str(error)
        elif name == "failed":
            assert isinstance(error, EmitManyError)
            found = [{"object": one.object, "first": one.first, "error": one.error.kind} for one in error.failed]
            assert found == value
        elif name == "scheduled":
            assert isinstance(error, ScheduleManyError)
            compare_scheduled(expect, error.scheduled, value)
        elif name == "next":
            assert isinstance(error, ScheduleManyError)
            assert error.error.kind == value
        elif name != "error":
            assert getattr(error, name) == value
    if isinstance(error, EmitManyError):
        assert error.stopped == wanted.get("stopped")


async def run(server: Server, case: Case, *, is_async: bool) -> None:
    # With Python 3.9 the client of Redis belongs to the event loop in which it is made.
    await Runner(server, case, is_async=is_async).run()


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("case", PRODUCERS, ids=[case["name"] for case in PRODUCERS])
def test_case(redis_server: Server, case: Case, is_async: bool) -> None:
    asyncio.run(run(redis_server, case, is_async=is_async))


def test_there_are_so_many_cases() -> None:
    assert len(PRODUCERS) >= 150


def test_a_case_with_an_unknown_member_fails(redis_server: Server) -> None:
    case = {"name": "x", "do": [{"emit": {"object": "a", "event": {"value": 1}, "new": 1}}], "then": [{}], "keys": {}}
    with pytest.raises(AssertionError, match="does not know"):
        asyncio.run(run(redis_server, case, is_async=False))


def test_a_time_of_an_expectation_is_compared(redis_server: Server) -> None:
    expect = Expect(now_ms(), now_ms())
    expect.number(now_ms() + 500, {"now_plus_ms": 500})
    with pytest.raises(AssertionError):
        expect.number(now_ms() + 600, {"now_plus_ms": 500})


def test_the_markers_of_awaited_emits_are_compared(redis_server: Server) -> None:
    expect = Expect(now_ms(), now_ms())
    micros = int(now_ms() * 1000)
    expect.same(b"\x00queued %d ?60 k" % micros, "\0queued <us> ?60 k", "a")
    expect.score(-1e15 - micros, "<queued>")
    expect.same(b"?0aZ " + b"0f" * 20, "?<inbox>", "a")
    wrong = [(b"\x00queued %d ?60 k" % (micros + 5_000_000), "\0queued <us> ?60 k"), (b"?", "?<inbox>")]
    for found, wanted in [*wrong, (b"?a b", "?<inbox>"), (b"x", "."), (b"\x00queued 1 k", "\0queued <us> k")]:
        with pytest.raises(AssertionError):
            expect.same(found, wanted, "a")
    for score in (-1e15 - micros - 5_000_000, micros):
        with pytest.raises(AssertionError):
            expect.score(score, "<queued>")
