"""The threads of an engine: those of blocking handlers, and the one that writes."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

from support import until

from seriatim._output import Output
from seriatim._pool import Pool


def test_work_that_blocks_does_not_keep_other_work_waiting() -> None:
    pool, all_run = Pool(8), threading.Barrier(9)

    def work() -> None:
        all_run.wait(10)

    for _ in range(20):
        for _ in range(8):
            pool.submit(work)
        all_run.wait(10)


def test_a_pool_has_so_many_threads() -> None:
    pool, go, lock = Pool(3), threading.Event(), threading.Lock()
    running, most, done = [0], [0], [0]

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        go.wait(10)
        with lock:
            running[0] -= 1
            done[0] += 1

    for _ in range(10):
        pool.submit(work)
    until(lambda: running[0] == 3, "three works run")
    go.set()
    until(lambda: done[0] == 10, "all works are done")
    assert most[0] == 3


def test_no_work_is_lost() -> None:
    pool, lock, done = Pool(4), threading.Lock(), [0]

    def work() -> None:
        with lock:
            done[0] += 1

    def submit() -> None:
        for _ in range(5000):
            pool.submit(work)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: done[0] == 15_000, "all works are done")


class Slow(io.BytesIO):
    """Waits in each write until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.may = threading.Semaphore(0)

    def write(self, text: Any) -> int:
        self.writes += 1
        self.may.acquire()
        return super().write(text)


def test_the_last_ok_of_a_batch_is_written_for_those_before_it() -> None:
    target = Slow()
    out = Output(target)
    thread = threading.Thread(target=out.run)
    thread.start()
    out.say(b'"hello"\n')
    until(lambda: target.writes == 1, "the first write has begun")
    for id in (1, 2, 3):
        out.ok(7, id)
        out.ok(8, 10 + id)
    out.line(7, b'"once of 4"\n')
    out.ok(7, 4)
    out.ok(8, 14)
    out.say(b'"bye"\n')
    out.ok(7, 5)
    out.line(8, b'"rejected of 15"\n')
    out.end()
    for _ in range(3):
        target.may.release()
    thread.join(10)
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [line for line in lines if isinstance(line, str)] == ["hello", "bye", "once of 4", "rejected of 15"]
    rest = [line if isinstance(line, str) else (line["batch"], line["id"]) for line in lines[2:]]
    assert rest == [(7, 3), (8, 14), "once of 4", (7, 5), "rejected of 15"]
    assert target.writes <= 3


def test_reports_that_wait_are_few() -> None:
    target = Slow()
    out = Output(target)
    thread = threading.Thread(target=out.run)
    thread.start()
    out.log(7, 1, "early")
    until(lambda: target.writes == 1, "the first write has begun")
    out.log(7, 1, "late")
    out.ok(7, 1)
    out.ok(7, 2)
    for n in range(150):
        out.progress(7, 3, b"%d" % n)
        out.log(7, 3, str(n))
        out.progress(8, 9, b"[%d]" % n)
    out.ok(7, 3)
    out.ok(7, 4)
    out.log(7, 5, "last")
    out.line(7, b'{"type":"rejected","id":5}\n')
    out.end()
    for _ in range(2):
        target.may.release()
    thread.join(10)
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    found = [(line["type"], line["id"], line.get("text", line.get("value"))) for line in lines]
    dropped = "50 lines before this one were dropped: the handler logs faster than the worker reads"
    assert found == [
        ("log", 1, "early"),
        ("log", 1, "late"),
        ("ok", 2, None),
        ("log", 3, dropped),
        *(("log", 3, str(n)) for n in range(50, 150)),
        ("progress", 3, 149),
        ("progress", 9, [149]),
        ("ok", 4, None),
        ("log", 5, "last"),
        ("rejected", 5, None),
    ]
    assert target.writes == 2


def test_no_ok_is_lost_or_repeated() -> None:
    target = io.BytesIO()
    out = Output(target)
    writer = threading.Thread(target=out.run)
    writer.start()

    def say(batch: int) -> None:
        for id in range(1, 5001):
            out.ok(batch, id)

    threads = [threading.Thread(target=say, args=(batch,)) for batch in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.end()
    writer.join(10)
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for text in target.getvalue().splitlines():
        line = json.loads(text)
        ids[line["batch"]].append(line["id"])
    for found in ids.values():
        assert found == sorted(set(found))
        assert found[-1] == 5000
