"""Handlers whose results are awaited. Killed in between."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from seriatim import AsyncContext, Context, Worker

ARGS = ["--event-log", "--lease", "500ms", "--crashes-max", "1000", "--log", "error"]
worker = Worker(sys.argv[1], name="called", concurrency=8, args=ARGS)


@worker.on("double")
async def double(event: Any, cx: AsyncContext) -> None:
    await asyncio.sleep(0.01)
    cx.result(2 * event["n"])


@worker.on("double blocking")
def double_blocking(event: Any, cx: Context) -> None:
    cx.cancelled.wait(0.01)
    cx.result(2 * event["n"])


worker.run()
