"""A program with `worker.run()`, for tests of its stops and deaths."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from seriatim import AsyncContext, Context, Worker

FOLDER, URL, PROCESSES = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
worker = Worker(
    URL, name="r", concurrency=4, processes=PROCESSES, args=["--event-log", "--lease", "1s", "--grace", "20s"]
)
forever = threading.Event()


def note(name: str, text: str = "") -> None:
    with (FOLDER / name).open("a") as file:
        file.write(text + "\n")


@worker.on("who")
def who(event: Any, cx: Context) -> None:
    note("who", f"{os.getpid()} {cx.object}")


@worker.on("until")
def until(event: Any, cx: Context) -> None:
    note("until", str(cx.id))
    while not (FOLDER / "go").exists():
        forever.wait(0.005)


@worker.on("reports")
def reports(event: Any, cx: Context) -> None:
    cx.progress({"done": 1, "of": 2})
    cx.log("half of it is done")
    until(event, cx)


@worker.on("async wait")
async def wait(event: Any, cx: AsyncContext) -> None:
    note("async wait", str(cx.id))
    if (FOLDER / "go").exists():
        return
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled", str(cx.cancelled.is_set()))
        raise


@worker.on("forever")
def stuck(event: Any, cx: Context) -> None:
    note("forever")
    forever.wait()


def watch() -> None:
    while not worker.is_stopping:
        forever.wait(0.005)
    note("stopping")


note("pid", str(os.getpid()))
if PROCESSES == 1:
    threading.Thread(target=watch, daemon=True).start()
try:
    worker.run()
except BaseException as error:
    note("error", f"{type(error).__name__}: {error}")
    raise
note("stopped")
