"""Runs clients/cases/workers.json with the program seriatim, with blocking and with asynchronous handlers."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from typing import Any

import pytest
from case_values import Expect, compare_end, load, only
from scripts import Scripts, emit_args, end_of_args, expanded, schedule_args
from support import Server, program, until

from seriatim import Emitter, WaitError, Worker

WORKERS = load("workers.json")
Case = dict[str, Any]


def prefix(case: Case) -> str:
    return "{" + case["namespace"] + ":0}:" if "namespace" in case else ""


def emit_all(emitter: Emitter, events: list[Case]) -> None:
    for members in events:
        if "after_ms" in members or "at_ms" in members:
            args, more = schedule_args(members)
            emitter.schedule(*args, **more)
        else:
            args, more = emit_args(members)
            emitter.emit(*args, **more)


def compare_ends(emitter: Emitter, ends: list[Case]) -> None:
    for members in ends:
        asked = {name: value for name, value in members.items() if name not in ("end", "error")}
        error = None
        try:
            end = emitter.end_of(*end_of_args(asked))
        except WaitError as failed:
            error = failed.kind
        assert error == members.get("error"), members
        if error is None:
            compare_end(end, members["end"])


def rows(server: Server, case: Case) -> dict[str, list[Case]]:
    """Returns the rows of the event log, by object."""
    found: dict[str, list[Case]] = defaultdict(list)
    for _, row in server.client.xrange(prefix(case) + "event.log"):
        found[row[b"object"].decode()].append({name.decode(): value.decode() for name, value in row.items()})
    return found


def compare_row(found: Case, wanted: Case) -> None:
    results = json.loads(found.get("results", "{}"))
    for name, value in wanted.items():
        if name == "event":
            assert json.loads(found["event"]) == value
        elif name == "attempts":
            assert int(found["attempts"]) == value, found
        elif name == "error_has":
            assert value in found["error"]
        elif name == "result":
            assert list(results.values()) == [value]
        elif name == "result_bytes":
            (result,) = results.values()
            assert len(json.dumps(result, separators=(",", ":"))) == value
        elif name == "no_result":
            assert results == {}
        else:
            assert name in ("status", "error"), f"the runner does not know {name}"
            assert found[name] == value, found


def compare_prevs(found: list[Case]) -> None:
    last = 0
    for row in found:
        assert int(row["prev"]) == last, row
        if row["status"] == "completed":
            last = int(row["id"])


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("case", WORKERS, ids=[case["name"] for case in WORKERS])
def test_case(redis_server: Server, case: Case, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERIATIM_BIN", program())
    only(case, "name", "namespace", "worker", "given", "emit", "handlers", "then")
    then = case["then"]
    only(then, "calls", "log", "held", "keys", "ends")
    client, begin = redis_server.client, prefix(case)
    for command in case.get("given", []):
        client.execute_command(*command)
    seconds, micros = client.time()
    with Emitter(redis_server.url, namespace=case.get("namespace")) as emitter:
        emit_all(emitter, case["emit"])
    scripts = Scripts(case["handlers"])
    worker = Worker(
        redis_server.program_url,
        name="w",
        namespace=case.get("namespace"),
        concurrency=4,
        args=["--event-log", "--batch", "16", *case.get("worker", [])],
    )
    scripts.register(worker, is_async=is_async)
    log = {object: expanded(wanted) for object, wanted in then["log"].items()}
    held = then.get("held", {})
    failed: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    def is_done() -> bool:
        is_logged = client.xlen(begin + "event.log") >= sum(map(len, log.values()))
        return bool(failed) or (is_logged and client.zcard(begin + "objects.held") >= len(held))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(is_done, "the events have ended", 60)
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert failed == []
    end_seconds, end_micros = client.time()
    assert scripts.wrong == []
    assert scripts.calls == {object: expanded(lines) for object, lines in then["calls"].items()}
    found = rows(redis_server, case)
    assert {object: len(one) for object, one in found.items()} == {object: len(one) for object, one in log.items()}
    for object, wanted in log.items():
        compare_prevs(found[object])
        for row, one in zip(found[object], wanted):
            compare_row(row, one)
    assert {member.decode() for member in client.zrange(begin + "objects.held", 0, -1)} == set(held)
    with Emitter(redis_server.url, namespace=case.get("namespace")) as emitter:
        compare_ends(emitter, then.get("ends", []))
    for object, why in held.items():
        assert why in (client.get(f"{begin}{object}:events.held.id") or b"").decode()
    expect = Expect(seconds * 1000 + micros / 1000, end_seconds * 1000 + end_micros / 1000)
    for key, dump in then.get("keys", {}).items():
        if dump is None:
            assert not client.exists(key), key
        else:
            expect.dump(client, key, dump)


def test_there_are_so_many_cases() -> None:
    assert len(WORKERS) >= 55
