"""A program for `--sink exec:`, with handlers that do what its tests need."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from seriatim import AsyncContext, Context, HandlerEnded, Json, Postponed, Rejected, Transient, Worker

worker = Worker(concurrency=4)
FOLDER = Path(sys.argv[1])
forever = threading.Event()
tasks: list[asyncio.Task[int]] = []


def note(name: str) -> None:
    (FOLDER / name).touch()


@worker.on("ok")
def ok(event: Any, cx: Context) -> None:
    pass


@worker.on("async ok")
async def async_ok(event: Any, cx: AsyncContext) -> None:
    await asyncio.sleep(0)


@worker.on("async at once")
async def async_at_once(event: Any, cx: AsyncContext) -> None:
    """Waits for nothing."""


def spin(seconds: float) -> None:
    """Keeps the interpreter."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@worker.on("spin")
def spins(event: Any, cx: Context) -> None:
    note("spin")
    spin(1)
    note("spun")


@worker.on("async spin")
async def async_spins(event: Any, cx: AsyncContext) -> None:
    note("async spin")
    spin(1)
    note("spun")


@worker.on("async busy")
async def async_busy(event: Any, cx: AsyncContext) -> None:
    note("async busy")
    spin(0.003)


@worker.on("async cancels itself")
async def async_cancels(event: Any, cx: AsyncContext) -> None:
    """Ends before its cancel has an effect."""
    own_task().cancel()
    note("late")


@worker.on("async leaves a cancel")
async def async_leaves_a_cancel(event: Any, cx: AsyncContext) -> None:
    """Cancels its task when it has ended."""
    task = own_task()

    def late() -> None:
        task.cancel()
        note("late")

    asyncio.get_running_loop().call_later(0.05, late)
    await asyncio.sleep(0)


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@worker.on("async cancels tasks")
async def async_cancels_tasks(event: Any, cx: AsyncContext) -> None:
    """Cancels other tasks before they begin."""
    note("async cancels tasks")
    count = 0
    while count < 10:
        for task in asyncio.all_tasks() - {own_task()}:
            if "_run_waiting" in repr(task.get_coro()):
                task.cancel()
                count += 1
        await asyncio.sleep(0)


used: list[asyncio.Task[Any]] = []


@worker.on("async task")
async def async_task(event: Any, cx: AsyncContext) -> None:
    task = own_task()
    await asyncio.sleep(0)
    if task in used or task is not own_task():
        note("shared task")
    used.append(task)


@worker.on("payload")
def payload(event: Any, cx: Context) -> None:
    cx.result(cx.payload)


@worker.on("async payload")
async def async_payload(event: Any, cx: AsyncContext) -> None:
    cx.result(cx.payload)


@worker.on("prints")
def prints(event: Any, cx: Context) -> None:
    print("a stray line")
    subprocess.run(["sh", "-c", "echo a line of a child; cat"], check=True)


@worker.on("wait")
def wait(event: Any, cx: Context) -> None:
    note("wait")
    cx.cancelled.wait()
    cx.raise_if_cancelled()


@worker.on("async wait")
async def async_wait(event: Any, cx: AsyncContext) -> None:
    note("async wait")
    try:
        await asyncio.Event().wait()
    finally:
        note("async wait has ended")


@worker.on("until")
def until(event: Any, cx: Context) -> None:
    """Ignores a cancel, and ends when the test wants."""
    note("until")
    while not (FOLDER / "go").exists():
        forever.wait(0.005)
        if cx.cancelled.is_set():
            note("until was cancelled")


@worker.on("async until")
async def async_until(event: Any, cx: AsyncContext) -> None:
    """Ignores a cancel, and ends when the test wants."""
    note("async until")
    while not (FOLDER / "go").exists():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note("cancelled")


@worker.on("forever")
def stuck(event: Any, cx: Context) -> None:
    note("forever")
    forever.wait()


@worker.on("block")
async def block(event: Any, cx: AsyncContext) -> None:
    """Blocks the event loop."""
    note("block")
    forever.wait()


@worker.on("once")
def once(event: Any, cx: Context) -> None:
    value = cx.once("charge", lambda: (1, 2))
    cx.result(value)


@worker.on("async onces")
async def onces(event: Any, cx: AsyncContext) -> None:
    async def slow() -> int:
        await asyncio.sleep(0)
        return 7

    values = await asyncio.gather(*(cx.once(f"n{n}", slow) for n in range(3)), cx.once("n0", slow))
    cx.result(values)


@worker.on("leaves once")
def leaves(event: Any, cx: Context) -> None:
    """Ends while a subtask is being stored."""
    threading.Thread(target=cx.once, args=("x", lambda: 1), daemon=True).start()
    while cx._ledger.under_way() is None:
        forever.wait(0.001)
    note("left")


@worker.on("async leaves once")
async def async_leaves(event: Any, cx: AsyncContext) -> None:
    tasks.append(asyncio.create_task(cx.once("x", lambda: 1)))
    while cx._ledger.under_way() is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    note("left")


@worker.on("reports")
def reports(event: Any, cx: Context) -> None:
    cx.log("begins")
    thread = threading.Thread(target=cx.progress, args=({"n": event.get("n")},))
    thread.start()
    thread.join()
    cx.log("é\nends")


@worker.on("async reports")
async def async_reports(event: Any, cx: AsyncContext) -> None:
    cx.log("begins")
    await asyncio.sleep(0)
    cx.progress({"n": event.get("n")})
    cx.log("é\nends")


@worker.on("reports and waits")
def reports_and_waits(event: Any, cx: Context) -> None:
    cx.progress(0.5)
    cx.cancelled.wait()
    cx.progress("cancelled")
    cx.raise_if_cancelled()


def reports_on(cx: Any) -> None:
    """Reports until the handler has ended."""
    try:
        while True:
            cx.progress(cx.id)
            cx.log("goes on")
    except HandlerEnded as error:
        note(f"{cx.object} {cx.id} {error.kind}")


@worker.on("leaves reports")
def leaves_reports(event: Any, cx: Context) -> None:
    threading.Thread(target=reports_on, args=(cx,), daemon=True).start()
    forever.wait(0.002)


@worker.on("async leaves reports")
async def async_leaves_reports(event: Any, cx: AsyncContext) -> None:
    threading.Thread(target=reports_on, args=(cx,), daemon=True).start()
    await asyncio.sleep(0.002)


@worker.on("facts")
def facts(event: Any, cx: Context) -> None:
    cx.result([cx.attempt, cx.crashes])


@worker.on("emit")
def emit(event: Any, cx: Context) -> None:
    cx.emit("b", Json('{"n":\r\n1}'))
    cx.schedule("c", [1], after=0.0015, key="k", keep_time=True)
    cx.schedule("c", [2], at=4e9, key="l", keep_first=True)
    cx.cancel("c", "m")
    cx.result({"é": 1})


@worker.on("large")
def large(event: Any, cx: Context) -> None:
    cx.emit("b", "x" * 1_000_000)


@worker.on("exit")
def exits(event: Any, cx: Context) -> None:
    sys.exit("no")


@worker.on("async exit")
async def async_exits(event: Any, cx: AsyncContext) -> None:
    sys.exit("no")


@worker.on("surrogate")
def surrogate(event: Any, cx: Context) -> None:
    raise ValueError("\ud800 no")


@worker.on("transient")
def transient(event: Any, cx: Context) -> None:
    raise Transient("busy", retry_after=1.5)


@worker.on("rejected")
async def rejected(event: Any, cx: AsyncContext) -> None:
    raise Rejected("é" * 2000)


@worker.on("postponed")
def postponed(event: Any, cx: Context) -> None:
    raise Postponed(10**12)


@worker.on("lambda")
def forgotten(event: Any, cx: Context) -> Any:
    return async_ok(event, cx)  # type: ignore[arg-type]


@worker.on("forks")
def forks(event: Any, cx: Context) -> None:
    """Leaves a process behind that outlives this one."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    (FOLDER / "child").write_text(str(child))


@worker.on("crash")
def crash(event: Any, cx: Context) -> None:
    os._exit(9)


worker.serve()
