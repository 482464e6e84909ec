"""Handlers that emit, and note if two of one object ever run at the same time. Killed at random."""

from __future__ import annotations

import asyncio
import fcntl
import sys
from pathlib import Path
from typing import Any

from seriatim import AsyncContext, Context, Worker

FOLDER, MODE, URL = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
ARGS = ["--event-log", "--lease", "500ms", "--crashes-max", "1000", "--batch", "8"]
worker = Worker(URL, name="k", concurrency=8, args=ARGS)


class Alone:
    """Holds the lock of an object. The system frees it when the process dies."""

    def __init__(self, object: str) -> None:
        self._object = object

    def __enter__(self) -> None:
        self._file = (FOLDER / f"lock {self._object}").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (FOLDER / "two at once").write_text(self._object)

    def __exit__(self, *_: object) -> None:
        self._file.close()


@worker.on("blocking")
def blocking(event: Any, cx: Context) -> None:
    with Alone(cx.object):
        cx.once("step", lambda: cx.cancelled.wait(0.002))
        cx.emit(f"out:{cx.object}", event["n"])


@worker.on("async")
async def asynchronous(event: Any, cx: AsyncContext) -> None:
    with Alone(cx.object):
        await cx.once("step", lambda: asyncio.sleep(0.002))
        cx.emit(f"out:{cx.object}", event["n"])


@worker.on_other
def out(event: Any, cx: Context) -> None:
    with Alone(cx.object), (FOLDER / cx.object).open("a") as file:
        file.write(f"{cx.id} {event}\n")


if MODE == "run":
    worker.run()
else:
    worker.serve()
