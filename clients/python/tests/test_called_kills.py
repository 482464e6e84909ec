"""Calls over a worker that is killed and started again: each gets its own result, and each event ends once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import Server, program, until

from seriatim import AsyncEmitter, Emitter

CALLED = Path(__file__).parent / "programs" / "called.py"
WAITERS, CALLS, OBJECTS, KILLS = 20, 10, 17, 2
TYPES = ["double", "double blocking"]
PATIENCE = 60


def call_of(waiter: int, call: int) -> tuple[str, dict[str, Any], int]:
    """Returns the object, the event and the result of a call."""
    n = waiter * CALLS + call
    return f"a{n % OBJECTS}", {"type": TYPES[n % 2], "n": n}, 2 * n


def by_threads(server: Server) -> list[bool]:
    with Emitter(server.url) as emitter, ThreadPoolExecutor(WAITERS) as pool:

        def wait(waiter: int) -> bool:
            calls = [call_of(waiter, call) for call in range(CALLS)]
            awaited = [emitter.emit(object, event, awaited=True) for object, event, _ in calls]
            return [one.wait(PATIENCE) for one in awaited] == [result for *_, result in calls]

        return list(pool.map(wait, range(WAITERS)))


def by_tasks(server: Server) -> list[bool]:
    async def main() -> list[bool]:
        async with AsyncEmitter(server.url) as emitter:

            async def wait(waiter: int) -> bool:
                calls = [call_of(waiter, call) for call in range(CALLS)]
                results = [emitter.call(object, event, PATIENCE) for object, event, _ in calls]
                return await asyncio.gather(*results) == [result for *_, result in calls]

            return await asyncio.gather(*map(wait, range(WAITERS)))

    return asyncio.run(main())


@pytest.mark.parametrize("calls", [by_threads, by_tasks])
def test_each_call_returns_its_result_though_the_worker_is_killed(
    redis_server: Server, tmp_path: Path, calls: Any
) -> None:
    environment = {**os.environ, "SERIATIM_BIN": program()}
    command = [sys.executable, str(CALLED), redis_server.program_url]
    total = WAITERS * CALLS

    def ended() -> int:
        return int(redis_server.client.xlen("event.log"))

    with (tmp_path / "log").open("wb") as log, ThreadPoolExecutor(1) as pool:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            waits = pool.submit(calls, redis_server)
            for kill in range(1, KILLS + 1):
                is_reached = partial(lambda goal: ended() >= goal, total * kill // (KILLS + 1))
                until(is_reached, "some calls have ended", PATIENCE)
                assert ended() < total, "the kill comes in between"
                process.kill()
                process.wait()
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            assert waits.result(PATIENCE) == [True] * WAITERS
        finally:
            process.terminate()
            process.wait(30)
    rows = [row for _, row in redis_server.client.xrange("event.log")]
    assert {row[b"status"] for row in rows} == {b"completed"}
    assert sorted(json.loads(row[b"event"])["n"] for row in rows) == list(range(total))
    assert redis_server.client.keys("*:events") == []
