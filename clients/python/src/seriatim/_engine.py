"""Runs the handlers of the batches that a worker sends over a pipe.

- One thread reads the lines of the worker all the time, so that their end is noticed at once.
- One thread writes the results. All results that wait are one write.
- Blocking handlers run in a pool of threads. Asynchronous ones run in the event loop of `run`.

The end of the input means that the worker is dead, or has ended. Then another worker may send the events
in hand again, so all handlers are cancelled at once. If a handler does not end soon, the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from queue import Empty, SimpleQueue
from typing import IO, Callable, Optional

from . import _protocol as protocol
from ._batch import Batch, Job, Setting
from ._handlers import Handlers
from ._names import Keys
from ._pool import Pool
from .errors import ProgramMismatch, WorkerFailed, shown
from .outcomes import Cancelled, Transient

LOG = logging.getLogger("seriatim")
#: The exit code of a process with a handler that does not end.
STUCK_CODE = 4


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _leave_pipes() -> None:
    """Runs in a process that a handler has forked. The end of a pipe must not depend on this process."""
    for engine in list(_engines):
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, engine._source.fileno(), inheritable=False)
            os.dup2(nothing, engine._target.fileno(), inheritable=False)
            os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_pipes)


class Engine:
    """Runs handlers until the input of the worker ends. May be used once."""

    def __init__(
        self,
        handlers: Handlers,
        keys: Keys,
        concurrency: int,
        *,
        source: IO[bytes],
        target: IO[bytes],
        ends_within: float,
    ) -> None:
        self._setting = Setting(handlers, keys)
        self._source = source
        self._target = target
        #: The seconds from the end of the input to the end of all handlers.
        self._ends_within = ends_within
        self._pool = Pool(concurrency)
        self._out: SimpleQueue[Optional[bytes]] = SimpleQueue()
        self._out.put(protocol.hello(concurrency, _client()))
        self._running: dict[int, Batch] = {}
        self._quiet = threading.Condition()
        self._said_bye = False
        #: The worker's first line, and the reason why the engine has ended before the input.
        self.hello: Optional[protocol.Hello] = None
        self.error: Optional[Exception] = None
        _engines.add(self)

    async def run(self) -> None:
        """Runs until the input has ended and all handlers have ended."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        for work, name in ((self._read, "reader"), (self._write, "writer")):
            threading.Thread(target=work, name=f"seriatim-{name}", daemon=True).start()
        await self._over.wait()

    async def over(self) -> None:
        """Waits until the input has ended and all handlers have ended."""
        await self._over.wait()

    def bye(self) -> None:
        """Asks the worker to claim nothing more. Can be called in a signal handler."""
        if not self._said_bye:
            self._said_bye = True
            self._out.put(protocol.bye())

    def cancel_all(self) -> None:
        """Cancels all handlers."""
        for batch in list(self._running.values()):
            self._cancel(batch, None)

    # The thread that reads.

    def _read(self) -> None:
        try:
            for raw in self._source:
                if not raw.endswith(b"\n"):
                    break
                self._take(protocol.parse(raw))
        except protocol.ProtocolError as error:
            self.error = WorkerFailed(f"the program seriatim does not keep to the protocol: {error}")
        except (ProgramMismatch, OSError, ValueError) as error:
            self.error = error
        finally:
            self._end()

    def _take(self, line: protocol.Line) -> None:
        if isinstance(line, protocol.BatchLine):
            if self.hello is None:
                raise protocol.ProtocolError("a batch came before the hello")
            number = line.batch

            def store(name: str, value: bytes) -> None:
                members = [("name", protocol.text(name)), ("value", value)]
                assert batch.job is not None
                self._out.put(protocol.with_raw("once", number, batch.job.envelope.id, members))

            batch = Batch(line, self._setting, store)
            self._running[number] = batch
            self._go_on(batch)
        elif isinstance(line, protocol.CancelLine):
            cancelled = self._running.get(line.batch)
            if cancelled is not None:
                self._cancel(cancelled, line.id)
        elif isinstance(line, protocol.OnceLine):
            replied = self._running.get(line.batch)
            if replied is not None:
                replied.replied(line.name, line.error)
        elif isinstance(line, protocol.Hello):
            if line.protocol != protocol.VERSION:
                raise ProgramMismatch(
                    f"the program seriatim speaks version {line.protocol} of the handler protocol, and this package "
                    f"speaks version {protocol.VERSION}; update the older one"
                )
            self.hello = line
            self._setting = Setting(self._setting.handlers, self._setting.keys, line.timeout_ms, line.line_bytes_max)

    def _cancel(self, batch: Batch, id: Optional[int]) -> None:
        job = batch.cancel(id)
        task = None if job is None else job.task
        if task is not None:
            self._in_loop(task.cancel)

    def _end(self) -> None:
        """Cancels all handlers, and waits for their end."""
        self.cancel_all()
        with self._quiet:
            is_quiet = self._quiet.wait_for(lambda: not self._running, self._ends_within)
        if not is_quiet:
            for batch in list(self._running.values()):
                job = batch.job
                what = f"{shown(batch.line.object)}, event {job.envelope.id if job else '?'}"
                LOG.critical("the handler of %s does not end after a cancel; this process ends", what)
            logging.shutdown()
            os._exit(STUCK_CODE)
        self._out.put(None)
        self._in_loop(self._over.set)

    def _in_loop(self, call: Callable[[], object]) -> None:
        # A loop that is closed has cancelled all its tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    # The thread that writes.

    def _write(self) -> None:
        is_over = False
        while not is_over:
            lines = [self._out.get()]
            with contextlib.suppress(Empty):
                while True:
                    lines.append(self._out.get_nowait())
            is_over = None in lines
            try:
                self._target.write(b"".join(line for line in lines if line is not None))
                self._target.flush()
            except (OSError, ValueError):
                # The worker is dead. The end of the input says so, too.
                return

    # Any thread: the events of a batch, one after another.

    def _go_on(self, batch: Batch) -> None:
        """Begins the next event of a batch, in the place that fits its handler."""
        job = batch.next()
        if job is None:
            self._over_with(batch)
        elif job.handler is not None and job.handler.is_async:
            self._hand_over(batch, job)
        else:
            self._pool.submit(lambda: self._run_blocking(batch, job))

    def _run_blocking(self, batch: Batch, job: Optional[Job]) -> None:
        """Runs blocking handlers until the batch is over, or until an asynchronous one comes."""
        while job is not None:
            if job.handler is not None and job.handler.is_async:
                self._hand_over(batch, job)
                return
            outcome = call(job)
            under_way = job.ledger.under_way()
            if under_way is not None:
                under_way.exception()
            self._out.put(batch.end(job, outcome))
            job = batch.next()
        self._over_with(batch)

    def _hand_over(self, batch: Batch, job: Job) -> None:
        self._in_loop(lambda: self._start(batch, job))

    def _start(self, batch: Batch, job: Job) -> None:
        # A task that is cancelled before its first step would not run at all.
        if job.cx.cancelled.is_set():
            job.handler, job.outcome = None, Cancelled("cancelled before it began")
        task = self._loop.create_task(self._run_async(batch, job))
        if job.handler is not None:
            job.task = task

    async def _run_async(self, batch: Batch, job: Job) -> None:
        """Runs an asynchronous handler. Each has a task of its own, so a late cancel meets no later event."""
        outcome = await call_async(job)
        job.task = None
        under_way = job.ledger.under_way()
        if under_way is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([asyncio.wrap_future(under_way)])
        self._out.put(batch.end(job, outcome))
        self._go_on(batch)

    def _over_with(self, batch: Batch) -> None:
        with self._quiet:
            self._running.pop(batch.number, None)
            self._quiet.notify_all()


def call(job: Job) -> Optional[BaseException]:
    """Runs a blocking handler. Returns its error."""
    if job.handler is None:
        return job.outcome
    try:
        returned = job.handler.run(job.envelope.event, job.cx)
        if asyncio.iscoroutine(returned):
            returned.close()
            return Transient("the handler returned a coroutine; declare it with `async def`")
    except BaseException as error:  # A handler that calls sys.exit() fails, too.
        return error
    return None


async def call_async(job: Job) -> Optional[BaseException]:
    """Runs an asynchronous handler. Returns its error."""
    if job.handler is None:
        return job.outcome
    try:
        await job.handler.run(job.envelope.event, job.cx)
    except BaseException as error:  # The loop would end with a SystemExit.
        return error
    return None


def _client() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"seriatim-python {version('seriatim')}"
    except PackageNotFoundError:
        return "seriatim-python"
