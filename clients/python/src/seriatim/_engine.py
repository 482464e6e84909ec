"""Runs the handlers of the batches that a worker sends over a pipe.

- One thread reads the lines of the worker all the time, so that their end is noticed at once.
- One thread writes the results. All results that wait are one write.
- Blocking handlers run in a pool of threads. A thread runs those of a batch one after another.
- Asynchronous handlers run in the event loop of `run`. A task runs them one after another until one has to wait.
  Then another task goes on with the other batches, and the waiting handler has this task for itself: a cancel, even
  a late one, meets no other handler.

The end of the input means that the worker is dead, or has ended. Then another worker may send the events
in hand again, so all handlers are cancelled at once. If a handler does not end soon, the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Coroutine, Generator
from functools import partial
from io import BufferedReader
from typing import IO, Any, Callable, Optional, cast

from . import _protocol as protocol
from ._batch import Batch, Job, Setting
from ._handlers import Handlers
from ._names import Keys
from ._output import Output
from ._pool import Pool
from ._reports import NoReceiver, Receiver
from .errors import ProgramMismatch, WorkerFailed, shown
from .outcomes import Cancelled, Transient

LOG = logging.getLogger("seriatim")
#: The exit code of a process with a handler that does not end.
STUCK_CODE = 4
#: The most bytes of one read.
_READ_BYTES = 64 * 1024
#: The seconds after which asynchronous handlers that never wait let the event loop do other things.
_SLICE = 0.002


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
        self._out = Output(target)
        self._reports: Receiver = self._out
        self._out.say(protocol.hello(concurrency, _client()))
        self._running: dict[int, Batch] = {}
        self._is_ending = False
        self._quiet = threading.Condition()
        #: The asynchronous handlers that are the next of their batches, and whether a task is on its way to them.
        self._waiting: deque[tuple[Batch, Job]] = deque()
        self._is_called = False
        self._is_coming = False
        self._said_bye = False
        #: The worker's first line, and the reason why the engine has ended before the input.
        self.hello: Optional[protocol.Hello] = None
        self.error: Optional[Exception] = None
        _engines.add(self)

    async def run(self) -> None:
        """Runs until the input has ended and all handlers have ended."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        for work, name in ((self._read, "reader"), (self._out.run, "writer")):
            threading.Thread(target=work, name=f"seriatim-{name}", daemon=True).start()
        await self._over.wait()

    async def over(self) -> None:
        """Waits until the input has ended and all handlers have ended."""
        await self._over.wait()

    def bye(self) -> None:
        """Asks the worker to claim nothing more. Can be called in a signal handler."""
        if not self._said_bye:
            self._said_bye = True
            self._out.say(protocol.bye())

    def cancel_all(self) -> None:
        """Cancels all handlers."""
        for batch in list(self._running.values()):
            self._cancel(batch, None)

    # The thread that reads.

    def _read(self) -> None:
        try:
            source = cast(BufferedReader, self._source)
            begins: list[bytes] = []
            while True:
                read = source.read1(_READ_BYTES)
                if not read:
                    break
                lines = read.split(b"\n")
                if len(lines) == 1:
                    begins.append(read)
                    continue
                if begins:
                    lines[0] = b"".join([*begins, lines[0]])
                    begins = []
                last = lines.pop()
                if last:
                    begins.append(last)
                for raw in lines:
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
            batch = Batch(line, self._setting, self._store, self._reports)
            self._running[batch.number] = batch
            self._go_on(batch, batch.next())
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
            if not line.takes_reports:
                self._reports = NoReceiver()
                LOG.debug("progress and log lines of handlers are dropped: update the program seriatim")
            self.hello = line
            self._setting = Setting(self._setting.handlers, self._setting.keys, line.timeout_ms, line.line_bytes_max)

    def _store(self, number: int, id: int, name: str, value: bytes) -> None:
        """Sends a subtask that is done."""
        members = [("name", protocol.text(name)), ("value", value)]
        self._out.line(number, protocol.with_raw("once", number, id, members))

    def _cancel(self, batch: Batch, id: Optional[int]) -> None:
        job = batch.cancel(id)
        if job is not None and job.handler is not None and job.handler.is_async:
            self._in_loop(partial(_cancel_task, job))

    def _end(self) -> None:
        """Cancels all handlers, and waits for their end."""
        self.cancel_all()
        self._is_ending = True
        with self._quiet:
            is_quiet = self._quiet.wait_for(lambda: not self._running, self._ends_within)
        if not is_quiet:
            for batch in list(self._running.values()):
                job = batch.job
                what = f"{shown(batch.line.object)}, event {job.id if job else '?'}"
                LOG.critical("the handler of %s does not end after a cancel; this process ends", what)
            logging.shutdown()
            os._exit(STUCK_CODE)
        self._out.end()
        self._in_loop(self._over.set)

    def _in_loop(self, call: Callable[[], object]) -> None:
        # A loop that is closed has cancelled all its tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    # Any thread: the events of a batch, one after another.

    def _go_on(self, batch: Batch, job: Optional[Job]) -> None:
        """Runs this event of a batch, and the next ones, in the place that fits its handler."""
        if job is None:
            self._over_with(batch)
        elif job.handler is not None and job.handler.is_async:
            self._waiting.append((batch, job))
            if not self._is_called:
                self._is_called = True
                self._in_loop(self._called)
        else:
            self._pool.submit(partial(self._run_blocking, batch, job))

    def _run_blocking(self, batch: Batch, job: Optional[Job]) -> None:
        """Runs blocking handlers until the batch is over, or until an asynchronous one comes."""
        while job is not None and (job.handler is None or not job.handler.is_async):
            outcome = call(job)
            under_way = job.cx._under_way()
            if under_way is not None:
                under_way.exception()
            self._answer(batch, job, outcome)
            job = batch.next()
        self._go_on(batch, job)

    def _answer(self, batch: Batch, job: Job, outcome: Optional[BaseException]) -> None:
        line = batch.end(job, outcome)
        if line is None:
            self._out.ok(batch.number, job.id)
        else:
            self._out.line(batch.number, line)

    def _over_with(self, batch: Batch) -> None:
        self._running.pop(batch.number, None)
        if self._is_ending:
            with self._quiet:
                self._quiet.notify_all()

    # The event loop.

    def _called(self) -> None:
        self._is_called = False
        if self._waiting and not self._is_coming:
            self._is_coming = True
            self._begin()

    def _send(self) -> None:
        """Sends for another task for the handlers that wait, if none is on its way."""
        if self._waiting and not self._is_coming:
            self._is_coming = True
            # Not at once: the loop may be one whose tasks begin in `create_task`.
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._loop.create_task(self._run_waiting()).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step does not run at all.
        if task.cancelled():
            self._is_coming = False
            self._send()

    async def _run_waiting(self) -> None:
        """Runs asynchronous handlers until one of them has to wait, or a slice of time is over."""
        self._is_coming = False
        task = cast("asyncio.Task[None]", asyncio.current_task())
        end = time.monotonic() + _SLICE
        while self._waiting:
            batch, job = self._waiting.popleft()
            while True:
                has_waited, outcome = False, job.outcome
                if job.handler is not None:
                    if job.cx._is_cancelled:
                        outcome = Cancelled("cancelled before it began")
                    else:
                        running = begin(job)
                        if isinstance(running, _Suspended):
                            self._send()
                            job.task = task
                            outcome = await running
                            job.task = None
                            has_waited = True
                        else:
                            outcome = running
                under_way = job.cx._under_way()
                if under_way is not None:
                    self._send()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([asyncio.wrap_future(under_way)])
                    has_waited = True
                self._answer(batch, job, outcome)
                following = batch.next()
                # A handler may have left a cancel of its own task behind.
                is_done = has_waited or getattr(task, "_must_cancel", False) or time.monotonic() > end
                if following is None or is_done or following.handler is None or not following.handler.is_async:
                    break
                job = following
            if following is not None and following.handler is not None and following.handler.is_async:
                self._waiting.append((batch, following))
            else:
                self._go_on(batch, following)
            if is_done:
                self._send()
                return


class _Suspended:
    """A handler that has to wait. To await it runs it to its end, and gives its error."""

    __slots__ = ("_coroutine", "_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._for = awaited

    def __await__(self) -> Generator[Any, Any, Optional[BaseException]]:
        coroutine, awaited = self._coroutine, self._for
        try:
            while True:
                try:
                    sent = yield awaited
                except GeneratorExit:
                    break
                except BaseException as error:
                    awaited = coroutine.throw(error)
                else:
                    awaited = coroutine.send(sent)
        except StopIteration:
            return None
        except BaseException as error:  # The loop would end with a SystemExit.
            return error
        # The loop is gone.
        coroutine.close()
        raise GeneratorExit


def begin(job: Job) -> Any:
    """Runs an asynchronous handler until it has to wait (`_Suspended`), or to its end. Then returns its error."""
    assert job.handler is not None
    try:
        coroutine = job.handler.run(job.event, job.cx)
        if type(coroutine) is not types.CoroutineType:
            coroutine = _wait_for(coroutine)
    except BaseException as error:
        return error
    try:
        return _Suspended(coroutine, coroutine.send(None))
    except StopIteration:
        return None
    except BaseException as error:  # The loop would end with a SystemExit.
        return error


async def _wait_for(awaitable: Any) -> None:
    await awaitable


def _cancel_task(job: Job) -> None:
    # A handler that has not begun, or has ended, has no task.
    if job.task is not None:
        job.task.cancel()


def call(job: Job) -> Optional[BaseException]:
    """Runs a blocking handler. Returns its error."""
    if job.handler is None:
        return job.outcome
    try:
        returned = job.handler.run(job.event, job.cx)
        if returned is not None and asyncio.iscoroutine(returned):
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
        await job.handler.run(job.event, job.cx)
    except BaseException as error:  # The loop would end with a SystemExit.
        return error
    return None


def _client() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"seriatim-python {version('seriatim')}"
    except PackageNotFoundError:
        return "seriatim-python"
