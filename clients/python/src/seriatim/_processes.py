"""Several processes of one worker, for several cores. Each has a worker of its own.

The processes are forked before any thread is started. If one ends with an error, the others stop gracefully. If
the parent is killed, its end of a pipe is closed, and all stop gracefully.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Callable, Optional

from .errors import WorkerError, WorkerFailed

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG = logging.getLogger("seriatim")


def stop_processes(children: set[int], number: int = signal.SIGTERM) -> None:
    """Sends a signal to processes."""
    for child in list(children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def run_processes(count: int, run: Callable[[int], None], children: set[int]) -> None:
    """Runs `run(0)` to `run(count - 1)`, each in a process. `children` has the processes while they run.

    Raises `WorkerFailed` if one fails.
    """
    if not hasattr(os, "fork"):
        raise WorkerError("this system cannot fork; start several programs with processes=1 instead")
    if threading.current_thread() is not threading.main_thread():
        raise WorkerError("several processes are started by the main thread only")
    alive, parent = os.pipe()

    def stop(number: int, _: Optional[FrameType]) -> None:
        stop_processes(children)

    # A child that is not ready keeps a signal until it can stop gracefully.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    failed: Optional[tuple[int, int]] = None
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(count):
            child = os.fork()
            if child == 0:
                os.close(parent)
                children.clear()
                _child(alive, lambda number=number: run(number))  # type: ignore[misc]
            children.add(child)
        os.close(alive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        while children:
            child, status = os.wait()
            if child not in children:
                continue
            children.discard(child)
            code = _exit_code(status)
            if code != 0 and failed is None:
                failed = (child, code)
                LOG.error("process %d of the worker has ended with code %d; the others stop", child, code)
                stop_processes(children)
    finally:
        os.close(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed is not None:
        raise WorkerFailed(f"process {failed[0]} of the worker has ended with code {failed[1]}", failed[1])


def _child(alive: int, run: Callable[[], None]) -> None:
    """Runs in a child, and ends it."""
    code = 1
    try:
        # A Ctrl-C on the terminal reaches only the parent, which stops its children.
        os.setpgid(0, 0)

        def watch() -> None:
            os.read(alive, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="seriatim-parent", daemon=True).start()
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
