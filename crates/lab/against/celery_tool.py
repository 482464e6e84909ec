"""Celery: one worker with concurrency 1, which keeps the order of all tasks, and so that of each key.

The pool `solo` handles tasks in the process of the worker. Results are ignored, and the worker exchanges no messages
with others. Its prefetch multiplier is high, as Celery's documentation advises for short tasks.
"""

import time
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from driver import URL, Event, Notes, drive

PREFETCH = 128
app = Celery("bench", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=PREFETCH,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
)


class Tool:
    notes: Notes

    def enqueue(self, events: Iterable[Event]) -> None:
        with app.producer_or_acquire() as producer:
            for args in events:
                handle.apply_async(args, producer=producer)

    def emit(self, key: str, event: dict[str, Any]) -> None:
        handle.delay(key, event)

    def work(self, notes: Notes) -> None:
        self.notes = notes
        worker_ready.connect(lambda **_: notes.ready(), weak=False)
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        app.worker_main(["--quiet", "worker", "--pool=solo", "--concurrency=1", *quiet])


tool = Tool()


@app.task
def handle(key: str, event: dict[str, Any]) -> None:
    takes = tool.notes.begin(key, event)
    if tool.notes.ms:
        time.sleep(takes)
        tool.notes.end(event)


if __name__ == "__main__":
    drive(tool)
