"""The worker of a program: its handlers, and the two ways to run them."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Callable, Optional, Union

from ._engine import Engine
from ._handlers import AnyHandler, Handlers
from ._names import Keys
from ._processes import STOP_SIGNALS, run_processes, stop_processes
from ._program import Program, find
from ._schedule import Span, span_ms
from .errors import WorkerError

LOG = logging.getLogger("seriatim")
CONCURRENCY, CONCURRENCY_MAX = 32, 1024
#: The seconds from the end of the worker to the end of all handlers; after them this process ends.
ENDS_WITHIN = 5.0
#: The same if the worker is the parent of this process. Then it may be dead, and another one sends the events.
SERVE_ENDS_WITHIN = 0.5
#: The seconds from the end of the worker's output to its end.
EXITS_WITHIN = 5.0


class Worker:
    """Runs handlers for events.

        worker = Worker("redis://127.0.0.1", name="billing-a", retry="fixed-5m-2", concurrency=64)

        @worker.on("placed")
        async def charge(event, cx): ...

        worker.run()

    A handler is a plain function, which runs in a thread, or an `async def` function, which runs in the
    event loop. It gets the event as a value, and a context. `concurrency` is the number of objects whose
    events are handled at the same time, 1 to 1024.

    `redis` is a Redis URL; `None`: `SERIATIM_REDIS`, or the program's default. `retry` and `retry_types` are
    policies of `--retry` and `--retry-type`. `timeout` is the longest time of a handler (seconds or
    timedelta, by default 5 minutes). `args` are further arguments of `seriatim worker`.
    """

    def __init__(
        self,
        redis: Optional[str] = None,
        *,
        name: Optional[str] = None,
        namespace: Optional[str] = None,
        concurrency: int = CONCURRENCY,
        processes: int = 1,
        retry: Optional[str] = None,
        retry_types: Optional[Mapping[str, str]] = None,
        timeout: Optional[Span] = None,
        args: Sequence[str] = (),
    ) -> None:
        if redis is not None and not isinstance(redis, str):
            raise TypeError(f"a worker takes a Redis URL, not {type(redis).__name__}")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}")
        if not 1 <= processes <= 64:
            raise ValueError(f"processes is 1 to 64, not {processes}")
        if isinstance(args, str):
            raise TypeError("args is a list of arguments, not a str")
        self._keys = Keys(namespace)
        self._handlers = Handlers()
        # The two ways to write the path of a socket mean the same.
        is_socket = redis is not None and redis.startswith("unix://")
        self._redis = f"redis+{redis}" if is_socket else redis
        self._name = name
        self._concurrency = concurrency
        self._processes = processes
        self._args = ["--concurrency", str(concurrency)]
        if namespace is not None:
            self._args += ["--namespace", namespace]
        if retry is not None:
            self._args += ["--retry", retry]
        for type_, policy in (retry_types or {}).items():
            self._args += ["--retry-type", f"{type_}={policy}"]
        if timeout is not None:
            self._args += ["--exec-timeout", f"{span_ms(timeout, 'timeout')}ms"]
        self._args += args
        self._lock = threading.Lock()
        self._running: Optional[tuple[Engine, Program]] = None
        self._stops = 0
        #: The processes of `run` with `processes` above 1.
        self._children: set[int] = set()

    @property
    def handlers(self) -> Handlers:
        """The registered handlers, for the test kit."""
        return self._handlers

    @property
    def namespace(self) -> Optional[str]:
        return self._keys.namespace

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for. A long handler may end early then, e.g. with `Postponed(0)`."""
        return self._stops > 0

    def on(self, *types: str) -> Callable[[AnyHandler], AnyHandler]:
        """Registers the decorated function for events of these types (the member `type`)."""
        return self._handlers.on(*types)

    def on_other(self, run: AnyHandler) -> AnyHandler:
        """Registers the decorated function for all events that no other handler takes."""
        return self._handlers.on_other(run)

    def run(self) -> None:
        """Starts `seriatim worker`, and runs until a stop: SIGTERM, Ctrl-C, or `stop()`.

        The first signal stops gracefully: events in hand are finished. A second one stops at once. If the
        worker ends by itself, all handlers are cancelled, and `WorkerFailed` is raised. If a handler then
        does not end within 5 s, this process ends with the exit code 4, because another worker may already
        handle the same event.
        """
        self._check()
        if self._processes > 1:
            try:
                run_processes(self._processes, self._run_one, self._children)
            finally:
                self._stops = 0
        else:
            self._run_one(None)

    def _run_one(self, number: Optional[int]) -> None:
        with _signals(self._on_signal):
            if number is not None:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            asyncio.run(self._serve_worker(number))

    async def run_async(self) -> None:
        """As `run`, in the running event loop, and without handlers for signals: use `stop()`."""
        self._check()
        if self._processes > 1:
            raise ValueError("run_async() runs in this process; use run() for several processes")
        await self._serve_worker(None)

    def stop(self, *, at_once: bool = False) -> None:
        """Stops the worker gracefully; or at once: all handlers are cancelled. For any thread.

        If the worker does not run, its next run stops as soon as it has begun.
        """
        self._stops = max(self._stops, 2 if at_once else 1)
        running = self._running
        stop_processes(self._children)
        if at_once:
            # The second signal must be another one: two equal signals may be delivered as one.
            stop_processes(self._children, signal.SIGINT)
        if running is not None:
            _stop(*running, at_once=at_once)

    def serve(self) -> None:
        """Runs the handlers for the worker that has started this program: `--sink 'exec:python3 app.py'`.

        Standard input and output belong to the worker. So `print()` and programs that a handler starts write
        to the worker's log instead. Returns when the worker stops. If the worker dies, all handlers are
        cancelled, and the process ends at once.
        """
        self._check()
        if self._processes > 1:
            raise ValueError("serve() is one process; start more with --exec-children")
        # The worker closes the input instead.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.flush()
        source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        # A line of a print() must not wait for others, and not be lost if the process is killed.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        with source, target:
            engine = Engine(
                self._handlers,
                self._keys,
                self._concurrency,
                source=source,
                target=target,
                ends_within=SERVE_ENDS_WITHIN,
            )
            asyncio.run(engine.run())
        if engine.error is not None:
            raise engine.error

    def _check(self) -> None:
        if self._handlers.is_empty:
            raise WorkerError("there is no handler; register one with @worker.on(TYPE) or @worker.on_other")

    async def _serve_worker(self, number: Optional[int]) -> None:
        arguments = list(self._args)
        if self._name is not None:
            arguments += ["--name", self._name if number is None else f"{self._name}-{number}"]
        with self._lock:
            if self._running is not None:
                raise WorkerError("this worker runs already")
            program = Program(find(), arguments, self._redis)
            engine = Engine(
                self._handlers,
                self._keys,
                self._concurrency,
                source=program.output,
                target=program.input,
                ends_within=ENDS_WITHIN,
            )
            self._running = (engine, program)
        try:
            if self._stops:
                _stop(engine, program, at_once=self._stops > 1)
            await engine.run()
        except BaseException:
            # The task of run_async was cancelled. Handlers must not outlive it.
            program.kill()
            await engine.over()
            raise
        finally:
            if engine.error is not None:
                program.kill()
            code = program.ended(EXITS_WITHIN)
            stops, self._stops, self._running = self._stops, 0, None
        if engine.error is not None:
            raise engine.error
        if stops > 1:
            return
        if code != 0 or not stops:
            raise program.failure(code, has_spoken=engine.hello is not None)

    def _on_signal(self, number: int, _: Optional[FrameType]) -> Any:
        self.stop(at_once=self._stops > 0)


def _stop(engine: Engine, program: Program, *, at_once: bool) -> None:
    if at_once:
        # The end of the program's output then cancels all handlers.
        program.kill()
    else:
        engine.bye()


class _signals:
    """Sets the handlers of SIGTERM and SIGINT, in the main thread only."""

    def __init__(self, handler: Callable[[int, Optional[FrameType]], Any]) -> None:
        self._handler = handler
        self._before: dict[int, Union[Callable[[int, Optional[FrameType]], Any], int, None]] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._handler)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
