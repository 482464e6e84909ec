"""A program that a worker has started, with a fake worker that plays every case of the protocol."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake import FakeWorker


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeWorker]:
    with FakeWorker(tmp_path) as found:
        hello = found.answer()
        assert (hello["type"], hello["protocol"], hello["concurrency"]) == ("hello", 1, 4)
        assert hello["client"].startswith("seriatim-python")
        yield found


def ok(batch: int, id: int = 10) -> dict[str, Any]:
    return {"type": "ok", "batch": batch, "id": id}


@pytest.mark.parametrize("type_", ["ok", "async ok", "async at once"])
def test_the_events_of_a_batch_are_answered_in_order(fake: FakeWorker, type_: str) -> None:
    batch = fake.batch(*[type_] * 50)
    fake.delivered(batch, 59)
    assert fake.is_silent()


@pytest.mark.parametrize("first", ["ok", "async ok", "async at once"])
@pytest.mark.parametrize("second", ["until", "async until", "forever", "block", "spin", "async spin"])
def test_an_answer_does_not_wait_for_the_next_handler(fake: FakeWorker, first: str, second: str) -> None:
    batch = fake.batch(first, second, first)
    fake.noted(second)
    assert fake.answer() == ok(batch)
    assert not (fake.folder / "spun").exists()


@pytest.mark.parametrize("types", ["ok", "async at once", "ok|async at once|async ok"])
def test_many_batches_are_answered_in_full(fake: FakeWorker, types: str) -> None:
    """As many at a time as the program wants."""
    kinds, last, open_ = types.split("|"), {}, {}
    for at in range(300):
        count = at % 7 + 1
        batch = fake.batch(*[kinds[(at + n) % len(kinds)] for n in range(count)], object=f"o{at}")
        last[batch], open_[batch] = 9 + count, 9
        while len(open_) == 4 or (at == 299 and open_):
            line = fake.answer()
            assert line == ok(line["batch"], line["id"])
            assert open_[line["batch"]] < line["id"] <= last[line["batch"]]
            open_[line["batch"]] = line["id"]
            if line["id"] == last[line["batch"]]:
                del open_[line["batch"]]


def test_asynchronous_handlers_that_never_wait_let_others_run(fake: FakeWorker) -> None:
    long = fake.batch(*["async busy"] * 200)
    fake.noted("async busy")
    short = fake.batch("async ok", object="b")
    ids, is_short = [], False
    while not is_short:
        line = fake.answer()
        is_short = line == ok(short)
        if not is_short:
            assert line["batch"] == long
            ids.append(line["id"])
    assert not ids or ids[-1] < 209
    fake.delivered(long, 209, ids[-1] + 1 if ids else 10)


@pytest.mark.parametrize("type_", ["async cancels itself", "async leaves a cancel"])
def test_a_late_cancel_meets_no_other_handler(fake: FakeWorker, type_: str) -> None:
    """A handler that waits has its task for itself, and one that has cancelled its own task is the last one in it."""
    first = fake.batch(type_, "async until", object="a")
    second = fake.batch("async until", object="b")
    assert fake.answer() == ok(first)
    fake.noted("late")
    (fake.folder / "go").touch()
    answers = [fake.answer(), fake.answer()]
    assert ok(first, 11) in answers
    assert ok(second) in answers
    assert not (fake.folder / "cancelled").exists()


def test_a_task_that_is_cancelled_before_it_begins_leaves_no_event_behind(fake: FakeWorker) -> None:
    first = fake.batch("async cancels tasks", object="a")
    fake.noted("async cancels tasks")
    second = fake.batch("async at once", object="b")
    answers = [fake.answer(), fake.answer()]
    assert ok(first) in answers
    assert ok(second) in answers


def test_a_handler_that_waits_has_a_task_for_itself(fake: FakeWorker) -> None:
    last = {fake.batch(*["async task"] * 5, object=name): 9 for name in "abcd"}
    while set(last.values()) != {14}:
        line = fake.answer()
        assert line == ok(line["batch"], line["id"])
        assert line["id"] > last[line["batch"]]
        last[line["batch"]] = line["id"]
    assert not (fake.folder / "shared task").exists()


@pytest.mark.parametrize("type_", ["payload", "async payload"])
def test_the_text_of_an_event_is_byte_for_byte(fake: FakeWorker, type_: str) -> None:
    texts = [
        f'{{"type":"{type_}","n":1.0e+2,"n":-0}}',
        f'{{ "type" : "{type_}" ,\t"é\\u00e9":["\\"]}}",  1.10] }}',
        f'{{"type":"{type_}","event":{{"id":1,"events":[{{"event":2}}]}}}}',
    ]
    for at, text in enumerate(texts):
        batch = 700 + at
        one = '{"id":%d,"prev":0,"object":"a","event":%s}'
        events = ",".join([one % (10, '{"type":"ok","x":[]}'), one % (11, text), one % (12, '{"type":"ok"}')])
        begin = f'{{"type":"batch","batch":{batch},"object":"a","attempts":0,"crashes":0,"token":"T",'
        fake.raw(f'{begin}"events":[{events}]}}'.encode())
        assert fake.answer() == ok(batch)
        assert fake.answer() == {**ok(batch, 11), "result": text}


def test_a_line_may_come_in_pieces(fake: FakeWorker) -> None:
    assert fake.process.stdin is not None
    line = (
        b'{"type":"batch","batch":1,"object":"\xc3\xa9","attempts":0,"crashes":0,"events":'
        b'[{"id":10,"prev":0,"object":"\xc3\xa9","event":{"type":"ok"}}]}\r\n'
    )
    for at in range(len(line)):
        fake.process.stdin.write(line[at : at + 1])
        fake.process.stdin.flush()
        if at % 16 == 0:
            time.sleep(0.001)
    assert fake.answer() == ok(1)
    fake.process.stdin.write(line[:-2])
    fake.process.stdin.flush()
    assert fake.end() == 0
    assert fake.next() is None, "a line without its end does not count"


def test_a_batch_may_mix_kinds_of_handlers(fake: FakeWorker) -> None:
    batch = fake.batch("ok", "async ok", "ok", "async ok")
    fake.delivered(batch, 13)


def test_several_batches_run_at_the_same_time(fake: FakeWorker) -> None:
    first = fake.batch("wait", object="a")
    second = fake.batch("async wait", object="b")
    fake.noted("wait")
    fake.noted("async wait")
    third = fake.batch("ok", object="c")
    assert fake.answer() == ok(third)
    fake.say(type="cancel", batch=second, id=10)
    assert fake.answer() == {"type": "cancelled", "batch": second, "id": 10}
    fake.say(type="cancel", batch=first, id=10)
    assert fake.answer() == {"type": "cancelled", "batch": first, "id": 10}
    fake.noted("async wait has ended")


@pytest.mark.parametrize("type_", ["until", "async until"])
def test_a_handler_that_ignores_a_cancel_is_answered_when_it_has_ended(fake: FakeWorker, type_: str) -> None:
    batch = fake.batch(type_)
    fake.noted(type_)
    fake.say(type="cancel", batch=batch, id=10)
    assert fake.is_silent()
    (fake.folder / "go").touch()
    assert fake.answer() == ok(batch)


def test_a_cancel_of_a_later_event_is_kept(fake: FakeWorker) -> None:
    batch = fake.batch("until", "ok", "ok")
    fake.noted("until")
    fake.say(type="cancel", batch=batch, id=11)
    assert fake.is_silent()
    (fake.folder / "go").touch()
    assert fake.answer() == ok(batch)
    assert fake.answer() == {"type": "cancelled", "batch": batch, "id": 11}
    assert fake.is_silent(), "the batch is over"


@pytest.mark.parametrize("type_", ["until", "async until"])
def test_after_a_handler_that_ignores_a_cancel_the_next_event_is_not_tried(fake: FakeWorker, type_: str) -> None:
    batch = fake.batch(type_, "forever", "ok")
    fake.noted(type_)
    fake.say(type="cancel", batch=batch, id=10)
    assert fake.is_silent()
    (fake.folder / "go").touch()
    assert fake.answer() == ok(batch)
    error = "the event before it was cancelled"
    assert fake.answer() == {"type": "postponed", "batch": batch, "id": 11, "error": error, "after_ms": 0}
    assert fake.is_silent(), "the batch is over"
    assert not (fake.folder / "forever").exists()


@pytest.mark.parametrize("type_", ["until", "async until"])
def test_no_event_begins_after_the_death_of_the_worker(fake: FakeWorker, type_: str) -> None:
    fake.batch(type_, "forever", "async wait")
    fake.noted(type_)
    assert fake.process.stdin is not None
    fake.process.stdin.close()
    if type_ == "async until":
        fake.noted("cancelled")
    else:
        fake.noted("until was cancelled")
    (fake.folder / "go").touch()
    assert fake.process.wait(10) == 0
    assert not (fake.folder / "forever").exists()


def test_a_cancel_of_an_event_with_a_result_is_ignored(fake: FakeWorker) -> None:
    batch = fake.batch("ok", "until", "ok")
    assert fake.answer() == ok(batch)
    fake.noted("until")
    fake.say(type="cancel", batch=batch, id=10)
    assert fake.is_silent()
    (fake.folder / "go").touch()
    fake.delivered(batch, 12, 11)
    assert not (fake.folder / "until was cancelled").exists()


def test_attempts_and_crashes_are_of_the_first_event(fake: FakeWorker) -> None:
    batch = fake.batch("facts", attempts=2, crashes=1)
    assert fake.answer() == {**ok(batch), "result": [3, 1]}
    batch = fake.batch("ok", "facts", attempts=2, crashes=1)
    assert fake.answer() == ok(batch)
    assert fake.answer() == {**ok(batch, 11), "result": [1, 0]}


@pytest.mark.parametrize("type_", ["leaves once", "async leaves once"])
def test_no_result_comes_before_the_reply_to_a_subtask(fake: FakeWorker, type_: str) -> None:
    batch = fake.batch(type_)
    assert fake.answer()["type"] == "once"
    fake.noted("left")
    assert fake.is_silent()
    fake.say(type="once", batch=batch, id=10, name="x")
    assert fake.answer() == ok(batch)


def test_a_cancel_of_an_unknown_batch_is_ignored(fake: FakeWorker) -> None:
    fake.say(type="cancel", batch=99, id=1)
    assert fake.is_silent()


def test_unknown_lines_and_members_are_ignored(fake: FakeWorker) -> None:
    fake.say(type="weather", wind=[1, {"a": 2}])
    assert fake.is_silent()
    batch = fake.batch("ok", new={"a": [1]})
    assert fake.answer() == ok(batch)


def test_stray_prints_go_to_the_log(fake: FakeWorker) -> None:
    batch = fake.batch("prints")
    assert fake.answer() == ok(batch)
    assert "a stray line" in fake.log.read_text()
    assert "a line of a child" in fake.log.read_text()


def test_a_forked_process_does_not_keep_the_pipes_open(fake: FakeWorker) -> None:
    batch = fake.batch("forks")
    assert fake.answer() == ok(batch)
    child = int((fake.folder / "child").read_text())
    try:
        assert fake.end() == 0
        assert fake.next() is None, "the output has ended"
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_outcomes(fake: FakeWorker) -> None:
    expected: dict[str, dict[str, Any]] = {
        "transient": {"type": "transient", "error": "busy", "retry_after_ms": 1500},
        "rejected": {"type": "rejected", "error": "é" * 500},
        "postponed": {"type": "postponed", "error": "", "after_ms": 366 * 24 * 3600 * 1000},
        "new": {"type": "unknown", "error": 'no handler is registered for events of type "new"'},
        "exit": {"type": "transient", "error": "SystemExit: no"},
        "async exit": {"type": "transient", "error": "SystemExit: no"},
        "surrogate": {"type": "transient", "error": "ValueError: ? no"},
        "lambda": {"type": "transient", "error": "the handler returned a coroutine; declare it with `async def`"},
    }
    for type_, line in expected.items():
        batch = fake.batch(type_, "ok")
        assert fake.answer() == {"batch": batch, "id": 10, **line}
        assert fake.is_silent(), "the batch is over"


def test_the_effects_of_a_handler_are_in_its_ok_and_end_the_batch(fake: FakeWorker) -> None:
    batch = fake.batch("ok", "emit", "ok")
    assert fake.answer() == ok(batch)
    assert fake.answer() == {
        **ok(batch, 11),
        "emit": [{"object": "b", "event": {"n": 1}}],
        "schedule": [
            {"object": "c", "event": [1], "key": "k", "after_ms": 2, "mode": "keep_time"},
            {"object": "c", "event": [2], "key": "l", "at_ms": 4_000_000_000_000, "mode": "keep_first"},
        ],
        "cancel": [{"object": "c", "key": "m"}],
        "result": {"é": 1},
    }
    assert fake.is_silent(), "the batch is over"


def test_a_worker_without_a_token_is_too_old_for_effects(fake: FakeWorker) -> None:
    for type_ in ("emit", "once"):
        batch = fake.batch(type_, token=None)
        answer = fake.answer()
        assert (answer["type"], answer["batch"]) == ("transient", batch)
        assert "too old" in answer["error"]


def test_a_subtask_waits_for_its_reply(fake: FakeWorker) -> None:
    batch = fake.batch("once")
    assert fake.answer() == {"type": "once", "batch": batch, "id": 10, "name": "charge", "value": [1, 2]}
    assert fake.is_silent()
    fake.say(type="once", batch=batch, id=10, name="charge")
    assert fake.answer() == {**ok(batch), "result": [1, 2]}


def test_a_subtask_that_is_not_stored_is_a_transient_failure(fake: FakeWorker) -> None:
    batch = fake.batch("once")
    fake.answer()
    fake.say(type="once", batch=batch, id=10, name="charge", error="out of memory")
    answer = fake.answer()
    assert (answer["type"], "out of memory" in answer["error"]) == ("transient", True)


def test_a_done_subtask_does_not_run(fake: FakeWorker) -> None:
    batch = fake.batch("once", once={"charge": {"a": 1}}, attempts=1)
    assert fake.answer() == {**ok(batch), "result": {"a": 1}}


def test_subtasks_are_of_the_first_event_only(fake: FakeWorker) -> None:
    batch = fake.batch("ok", "once", once={"charge": 5})
    assert fake.answer() == ok(batch)
    assert fake.answer() == {"type": "once", "batch": batch, "id": 11, "name": "charge", "value": [1, 2]}


def test_a_batch_has_one_subtask_without_a_reply(fake: FakeWorker) -> None:
    batch = fake.batch("async onces")
    names = []
    for _ in range(3):
        line = fake.answer()
        assert (line["type"], line["value"]) == ("once", 7)
        names.append(line["name"])
        assert fake.is_silent()
        fake.say(type="once", batch=batch, id=10, name=line["name"])
    assert sorted(names) == ["n0", "n1", "n2"]
    assert fake.answer() == {**ok(batch), "result": [7, 7, 7, 7]}


def test_a_cancel_ends_the_wait_for_a_reply(fake: FakeWorker) -> None:
    for type_ in ("once", "async onces"):
        batch = fake.batch(type_)
        assert fake.answer()["type"] == "once"
        fake.say(type="cancel", batch=batch, id=10)
        assert fake.answer() == {"type": "cancelled", "batch": batch, "id": 10}


def test_a_line_above_the_limit_is_not_sent(tmp_path: Path) -> None:
    with FakeWorker(tmp_path, hello={"line_bytes_max": 1000}) as fake:
        fake.answer()
        batch = fake.batch("large")
        answer = fake.answer()
        assert (answer["type"], answer["batch"]) == ("transient", batch)
        assert "the worker takes 1000" in answer["error"]


def test_an_event_that_python_cannot_read_is_rejected(fake: FakeWorker) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    number = b'{"type":"ok","n":' + b"7" * 5000 + b"}"
    for at, (event, error) in enumerate([(deep, "nested too deeply"), (number, "Exceeds the limit")]):
        begin = b'{"type":"batch","batch":%d,"object":"a","attempts":0,"crashes":0,"token":"T","events":[' % (500 + at)
        fake.raw(begin + b'{"id":10,"prev":0,"object":"a","event":' + event + b"}]}")
        answer = fake.answer()
        assert (answer["type"], answer["batch"]) == ("rejected", 500 + at)
        assert error in answer["error"]
    assert fake.is_silent()


@pytest.mark.parametrize("type_", ["reports", "async reports"])
def test_reports_come_before_the_result_of_their_event(fake: FakeWorker, type_: str) -> None:
    batch = fake.batch(*[{"type": type_, "n": n} for n in range(3)])
    delivered = 9
    logged: dict[int, list[str]] = {10: [], 11: [], 12: []}
    reported: dict[int, Any] = {}
    while delivered < 12:
        line = fake.answer()
        assert (line["batch"], line["id"] > delivered) == (batch, True), "no report comes behind the result"
        if line["type"] == "log":
            logged[line["id"]].append(line["text"])
        elif line["type"] == "progress":
            reported[line["id"]] = line["value"]
        else:
            assert line == ok(batch, line["id"])
            delivered = line["id"]
    assert list(logged.values()) == [["begins", "é\nends"]] * 3
    assert reported == {10: {"n": 0}, 11: {"n": 1}, 12: {"n": 2}}
    assert fake.is_silent()


@pytest.mark.parametrize("capabilities", [None, [], ["later"], "reports"])
@pytest.mark.parametrize("type_", ["reports", "async reports"])
def test_an_older_worker_gets_no_reports(tmp_path: Path, type_: str, capabilities: Any) -> None:
    with FakeWorker(tmp_path, hello={"capabilities": capabilities}) as fake:
        assert fake.answer()["type"] == "hello"
        batch = fake.batch(*[{"type": type_, "n": n} for n in range(3)])
        fake.delivered(batch, 12)
        assert fake.is_silent()


def test_a_report_does_not_wait_for_the_end_of_its_handler(fake: FakeWorker) -> None:
    batch = fake.batch("ok", "reports and waits")
    assert fake.answer() == ok(batch)
    assert fake.answer() == {"type": "progress", "batch": batch, "id": 11, "value": 0.5}
    fake.say(type="cancel", batch=batch, id=11)
    assert fake.answer() == {"type": "progress", "batch": batch, "id": 11, "value": "cancelled"}
    assert fake.answer() == {"type": "cancelled", "batch": batch, "id": 11}
    assert fake.is_silent()


@pytest.mark.parametrize("type_", ["leaves reports", "async leaves reports"])
def test_a_thread_that_a_handler_leaves_behind_reports_nothing_after_the_result(fake: FakeWorker, type_: str) -> None:
    open_ = {fake.batch(*[type_] * 20, object=name): 9 for name in "abc"}
    while set(open_.values()) != {29}:
        line = fake.answer()
        assert line["id"] > open_[line["batch"]], line
        if line["type"] == "ok":
            open_[line["batch"]] = line["id"]
        elif line["type"] == "progress":
            assert line["value"] == line["id"]
        else:
            assert line["type"] == "log"
            assert line["text"] == "goes on" or line["text"].endswith("logs faster than the worker reads")
    for name in "abc":
        for id in range(10, 30):
            fake.noted(f"{name} {id} ended")
    assert fake.is_silent()


def test_the_program_ends_when_the_worker_stops(fake: FakeWorker) -> None:
    fake.say(type="stop", grace_ms=5000)
    assert fake.end() == 0


def test_handlers_are_cancelled_when_the_worker_is_dead(fake: FakeWorker) -> None:
    fake.batch("async wait", object="a")
    fake.batch("wait", object="b")
    fake.noted("async wait")
    fake.noted("wait")
    assert fake.end() == 0
    fake.noted("async wait has ended")


@pytest.mark.parametrize("type_", ["forever", "block"])
def test_the_process_ends_though_a_handler_does_not(fake: FakeWorker, type_: str) -> None:
    fake.batch(type_)
    fake.noted(type_)
    assert fake.end() == 4
    assert "the handler of a, event 10 does not end" in fake.log.read_text()


@pytest.mark.parametrize("line", [b"what?", b'{"type":"batch"}', b'{"type":"batch","batch":1,"events":[]}', b"[1]"])
def test_a_line_that_is_not_of_the_protocol_ends_the_program(fake: FakeWorker, line: bytes) -> None:
    fake.raw(line)
    assert fake.process.wait(10) == 1
    assert "is not of the protocol" in fake.log.read_text()


def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    with FakeWorker(tmp_path, hello={"protocol": 2}) as fake:
        assert fake.process.wait(10) == 1
        assert "version 2 of the handler protocol" in fake.log.read_text()


def test_a_graceful_signal_leaves_the_program_to_its_worker(fake: FakeWorker) -> None:
    fake.process.terminate()
    assert fake.is_silent()
