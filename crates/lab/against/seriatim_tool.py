"""seriatim with handlers in Python. The package starts the program that SERIATIM_BIN names."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

from driver import URL, Event, Notes, drive
from redis import Redis

from seriatim import AsyncContext, Emitter, Worker

NAME = "bench"


class Tool:
    def __init__(self) -> None:
        self.emitter = Emitter(URL)

    def enqueue(self, events: Iterable[Event]) -> None:
        self.emitter.emit_many(events)

    def emit(self, key: str, event: dict[str, Any]) -> None:
        self.emitter.emit(key, event)

    def work(self, notes: Notes) -> None:
        worker = Worker(URL, name=NAME)

        @worker.on_other
        async def handle(event: dict[str, Any], cx: AsyncContext) -> None:
            takes = notes.begin(cx.object, event)
            if notes.ms:
                await asyncio.sleep(takes)
                notes.end(event)

        threading.Thread(target=ready, args=[notes], daemon=True).start()
        worker.run()


def ready(notes: Notes) -> None:
    redis = Redis.from_url(URL)
    while not redis.exists(f"event.worker:{NAME}:lease"):
        pass
    notes.ready()


if __name__ == "__main__":
    drive(Tool())
