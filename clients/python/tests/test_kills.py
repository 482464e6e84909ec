"""Worker and program are killed again and again. No event is lost, and each emit of a handler comes once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support import Server, program, until

from seriatim import Emitter

KILLED = Path(__file__).parent / "programs" / "killed.py"
OBJECTS, EVENTS, KILLS = 10, 60, 12


def start(folder: Path, server: Server, mode: str, log: int) -> subprocess.Popen[bytes]:
    own = [sys.executable, str(KILLED), str(folder), mode, server.url]
    flags = ["--event-log", "--lease", "500ms", "--crashes-max", "1000", "--batch", "8", "--concurrency", "8"]
    if mode == "serve":
        command = [program(), "worker", "--sink", f"exec:{' '.join(own)}", "--name", "k", *flags]
    else:
        command = own
    environment = {**os.environ, "SERIATIM_BIN": program(), "SERIATIM_REDIS": server.program_url}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=False)
    return [int(child) for child in found.stdout.split()]


@pytest.mark.parametrize("mode", ["run", "serve"])
def test_no_kill_loses_or_repeats_an_emit(redis_server: Server, tmp_path: Path, mode: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    with Emitter(redis_server.url) as emitter:
        emitter.emit_many(
            (f"a{n % OBJECTS}", {"type": random_.choice(["blocking", "async"]), "n": n // OBJECTS})
            for n in range(OBJECTS * EVENTS)
        )

    def done() -> int:
        return int(redis_server.client.xlen("event.log"))

    total = 2 * OBJECTS * EVENTS
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process = start(tmp_path, redis_server, mode, log)
    try:
        for kill in range(KILLS):
            goal = min(total - 1, total * (kill + 1) // (KILLS + 2))
            is_reached = partial(lambda goal: done() >= goal, goal)
            until(is_reached, f"{goal} events are over", 60)
            victims = [process.pid, *children(process.pid)]
            victim = random_.choice(victims)
            number = random_.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            if victim != process.pid:
                number = signal.SIGKILL
            os.kill(victim, number)
            if victim == process.pid or mode == "run":
                process.wait(30)
                process = start(tmp_path, redis_server, mode, log)
        until(lambda: done() >= total, "all events are over", 120)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            assert done() == total
    finally:
        process.terminate()
        process.wait(30)
        os.close(log)
    assert not (tmp_path / "two at once").exists()
    for n in range(OBJECTS):
        lines = [line.split() for line in (tmp_path / f"out:a{n}").read_text().splitlines()]
        # Events of a batch may come again after a death, with the same ids. Each emit has an id of its own.
        first = dict.fromkeys(int(id) for id, _ in lines)
        assert list(first) == sorted(first)
        values = {int(id): int(value) for id, value in lines}
        assert [values[id] for id in first] == list(range(EVENTS))
