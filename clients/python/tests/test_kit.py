"""The test kit: handlers without Redis and without the program."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from seriatim import (
    AsyncContext,
    Cancelled,
    Context,
    HandlerEnded,
    HandlerFull,
    InvalidProgress,
    Json,
    Postponed,
    Rejected,
    Transient,
    Worker,
)
from seriatim.testing import HandlerTest

worker = Worker(namespace="shop")
kept: list[Context] = []


@worker.on("placed")
def placed(event: Any, cx: Context) -> None:
    receipt = cx.once("charge", lambda: {"receipt": event["cents"]})
    if cx.attempt < 2:
        raise Transient("the bank is closed", retry_after=5)
    cx.emit("ledger:1", {"type": "paid", "cents": event["cents"], "by": {"card": 1}})
    cx.schedule("user:1", Json("[1]"), after=60, key="k", keep_first=True)
    cx.cancel("user:2", "k")
    cx.result(receipt)
    kept.append(cx)


@worker.on("waits")
async def waits(event: Any, cx: AsyncContext) -> None:
    await asyncio.Event().wait()


@worker.on("watches")
def watches(event: Any, cx: Context) -> None:
    cx.cancelled.wait()
    cx.raise_if_cancelled()


@worker.on("once")
async def once(event: Any, cx: AsyncContext) -> None:
    cx.result([await cx.once("a", lambda: asyncio.sleep(0, 1)), await cx.once("b", lambda: 2)])


@worker.on("later")
def later(event: Any, cx: Context) -> None:
    raise Postponed(1.5, "not now")


@worker.on("facts")
def facts(event: Any, cx: Context) -> None:
    cx.result([cx.id, cx.prev, cx.object, cx.type, cx.attempt, cx.crashes, cx.payload, cx.traceparent, cx.fence])


@worker.on("room")
def room(event: Any, cx: Context) -> None:
    """Fills the room for bytes, except for 10. The name has one byte, the quotes two."""
    cx.emit("a", "x" * (1024 * 1024 - 3))
    cx.emit("a", "x" * (1024 * 1024 - 3 - 10))
    cx.result("x" * 8)
    with pytest.raises(HandlerFull):
        cx.result("x" * 9)
    with pytest.raises(HandlerFull):
        cx.emit("a", 1)
    cx.result("x" * 7)
    with pytest.raises(HandlerFull):
        cx.emit("a", 1)
    cx.result("x" * 6)
    cx.emit("a", 1)


@worker.on("many onces")
def many_onces(event: Any, cx: Context) -> None:
    for n in range(event["n"]):
        cx.once(str(n), lambda n=n: "x" * event["size"])  # type: ignore[misc]


PLACED = {"type": "placed", "cents": 12}


def test_a_retry_does_not_repeat_a_subtask() -> None:
    test = HandlerTest(worker)
    first = test.run("order:1", PLACED)
    first.assert_failed("the bank is closed").assert_nothing_emitted()
    assert (first.outcome, first.after, first.once) == ("transient", 5, {"charge": {"receipt": 12}})
    second = test.run("order:1", {**PLACED, "cents": 99}, attempt=2)
    second.assert_delivered()
    assert second.result == {"receipt": 12}
    assert test.run("order:1", {**PLACED, "cents": 99}, attempt=2, id=2).result == {"receipt": 99}
    test.forget()
    assert test.run("order:1", {**PLACED, "cents": 99}, attempt=2).result == {"receipt": 99}


def test_effects_are_found() -> None:
    ran = HandlerTest(worker).run("order:1", PLACED, attempt=2)
    assert ran.assert_emitted("ledger:1", {"by": {"card": 1}}).event["cents"] == 12
    ran.assert_emitted("ledger:1", lambda event: event["cents"] > 10)
    scheduled = ran.assert_scheduled("user:1", [1])
    assert (scheduled.key, scheduled.after, scheduled.at, scheduled.mode) == ("k", 60, None, "keep_first")
    assert ran.cancelled == [("user:2", "k")]
    with pytest.raises(HandlerEnded, match="the handler has ended"):
        kept[-1].emit("a", 1)


def test_a_wrong_assertion_fails_and_shows_what_was() -> None:
    ran = HandlerTest(worker).run("order:1", PLACED, attempt=2)
    for wrong in (
        lambda: ran.assert_failed(),
        lambda: ran.assert_emitted("ledger:1", {"by": {"card": 2}}),
        lambda: ran.assert_emitted("ledger:2", {}),
        lambda: ran.assert_scheduled("user:1", [2]),
        lambda: ran.assert_nothing_emitted(),
        lambda: HandlerTest(worker).run("order:1", PLACED).assert_delivered(),
        lambda: HandlerTest(worker).run("order:1", PLACED).assert_failed("open"),
    ):
        with pytest.raises(AssertionError, match=r"\n  outcome "):
            wrong()


@pytest.mark.parametrize("type_", ["waits", "watches"])
def test_a_handler_is_cancelled(type_: str) -> None:
    assert HandlerTest(worker).run("a", {"type": type_}, cancel_after=0.01).outcome == "cancelled"
    ran = asyncio.run(HandlerTest(worker).run_async("a", {"type": type_}, cancel_after=0.01))
    assert ran.outcome == "cancelled"


def test_handlers_of_both_kinds_run_in_a_loop() -> None:
    test = HandlerTest(worker)

    async def main() -> None:
        assert (await test.run_async("a", {"type": "once"})).result == [1, 2]
        assert (await test.run_async("a", PLACED, id=2, attempt=2)).is_delivered

    asyncio.run(main())
    assert test.run("b", {"type": "once"}).once == {"a": 1, "b": 2}


def test_other_outcomes() -> None:
    test = HandlerTest(worker)
    test.run("a", {"type": "new"}).assert_failed("no handler is registered", outcome="unknown")
    assert test.run("a", {"type": "later"}).assert_failed("not now", outcome="postponed").after == 1.5


def test_effects_share_the_room() -> None:
    HandlerTest(worker).run("a", {"type": "room"}).assert_delivered()


def test_an_event_has_so_many_subtasks() -> None:
    test = HandlerTest(worker)
    test.run("a", {"type": "many onces", "n": 1000, "size": 1}).assert_delivered()
    ran = test.run("a", {"type": "many onces", "n": 1001, "size": 1})
    ran.assert_failed("name at most 1000 subtasks, and this one more was not run")
    assert len(ran.once) == 1000
    test.run("b", {"type": "many onces", "n": 32, "size": 65_500}).assert_delivered()
    ran = test.run("c", {"type": "many onces", "n": 33, "size": 65_534})
    ran.assert_failed("have at most 2097152 bytes together", outcome="rejected")
    assert len(ran.once) == 32


def test_the_facts_of_an_event() -> None:
    text = '{"type": "facts", "traceparent": "00-1"}'
    ran = HandlerTest(worker).run("order:1", Json(text), id=12, prev=7, attempt=3, crashes=1)
    assert ran.result == [12, 7, "order:1", "facts", 3, 1, text, "00-1", ["test", 12]]


def test_parts_of_the_context_that_are_made_late() -> None:
    worker, kept = Worker(), []

    @worker.on("plain")
    def plain(event: Any, cx: Context) -> None:
        kept.append(cx)

    @worker.on("looks")
    def looks(event: Any, cx: Context) -> None:
        try:
            while True:
                cx.raise_if_cancelled()
        finally:
            assert cx.cancelled.is_set()
            with pytest.raises(Cancelled):
                cx.once("a", lambda: 1)
            with pytest.raises(Cancelled):
                cx._store("a", 1)[0].result()

    test = HandlerTest(worker)
    test.run("a", {"type": "plain"}).assert_delivered()
    with pytest.raises(HandlerEnded):
        kept[0].emit("a", 1)
    assert not kept[0].cancelled.is_set()
    assert test.run("a", {"type": "looks"}, cancel_after=0.01).outcome == "cancelled"


def test_threads_of_a_handler_share_its_context() -> None:
    worker = Worker()

    @worker.on_other
    def shares(event: Any, cx: Context) -> None:
        cx.own = 1  # type: ignore[attr-defined]
        start, found = threading.Barrier(8), []

        def look() -> None:
            start.wait()
            found.append((cx.cancelled, cx._ledger, cx._effects, cx._reports, cx._lock("a")))

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cx.result([len(found), len(set(found))])

    test = HandlerTest(worker)
    for id in range(1, 51):
        assert test.run("a", {}, id=id).result == [8, 1]


@worker.on("reports")
def reports(event: Any, cx: Context) -> None:
    cx.progress({"done": 1})
    cx.log("begins")
    cx.progress(event["progress"])
    cx.log("x" * 1001)
    kept.append(cx)
    if "error" in event:
        raise Rejected(event["error"])


def test_a_run_has_its_reports() -> None:
    test = HandlerTest(worker)
    ran = test.run("a", {"type": "reports", "progress": [2, 3]})
    assert (ran.progress, ran.log, ran.result) == ([2, 3], ["begins", "x" * 1000], None)
    ran.assert_delivered().assert_nothing_emitted()
    failed = test.run("a", {"type": "reports", "progress": "half", "error": "no"}, id=2)
    failed.assert_failed("no", outcome="rejected")
    assert (failed.progress, len(failed.log)) == ("half", 2)
    with pytest.raises(AssertionError, match=r"\n  log begins\n  log xx*\n  progress \[2, 3\]$"):
        ran.assert_failed()
    with pytest.raises(HandlerEnded, match="the handler has ended; it must report before it ends"):
        kept[-1].progress(1)
    with pytest.raises(HandlerEnded, match="the handler has ended; it must report before it ends"):
        kept[-1].log("late")
    assert (failed.progress, len(failed.log)) == ("half", 2)
    silent = test.run("a", {"type": "later"})
    assert (silent.progress, list(silent.log)) == (None, [])


def test_a_progress_is_at_most_a_kilobyte_of_json() -> None:
    worker = Worker()

    @worker.on_other
    def reports(event: Any, cx: Context) -> None:
        cx.progress("é" * 511)
        for wrong, why in (
            ("x" + "é" * 511, r"the progress has 1025 bytes, the limit is 1024; report a number or a short text"),
            (float("nan"), "the progress cannot be written as JSON"),
            ("\ud800", "the progress cannot be written as JSON"),
            ({1, 2}, "the progress cannot be written as JSON"),
            (Json("{"), "the progress is not JSON"),
        ):
            with pytest.raises(InvalidProgress, match=why):
                cx.progress(wrong)
            with pytest.raises(ValueError, match=why):
                cx.progress(wrong)
        with pytest.raises(TypeError, match="takes a str, not bytes"):
            cx.log(b"a")  # type: ignore[arg-type]

    ran = HandlerTest(worker).run("a", {})
    assert ran.assert_delivered().progress == "é" * 511


def test_the_first_report_may_come_after_the_end() -> None:
    worker, kept = Worker(), []

    @worker.on_other
    def plain(event: Any, cx: Context) -> None:
        kept.append(cx)

    ran = HandlerTest(worker).run("a", {})
    with pytest.raises(HandlerEnded):
        kept[0].progress(1)
    assert (ran.progress, list(ran.log)) == (None, [])


def test_input_is_checked_as_by_an_emitter() -> None:
    with pytest.raises(ValueError, match="an object name must not be empty"):
        HandlerTest(worker).run("", {})
    with pytest.raises(ValueError, match="is not JSON"):
        HandlerTest(worker).run("a", Json("{"))
