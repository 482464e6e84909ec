"""`worker.run()` with the program seriatim and a real Redis: stops, deaths and errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Server, program, until

from seriatim import AsyncContext, Context, Emitter, ProgramMismatch, ProgramNotFound, Worker, WorkerError, WorkerFailed

RUNNING = Path(__file__).parent / "programs" / "running.py"


class Running:
    """The program `running.py`."""

    def __init__(self, folder: Path, server: Server, processes: int) -> None:
        self.folder = folder
        self.server = server
        self.log = (folder / "log").open("ab")
        command = [sys.executable, str(RUNNING), str(folder), server.program_url, str(processes)]
        environment = {**os.environ, "SERIATIM_BIN": program()}
        self.process = subprocess.Popen(command, stderr=self.log, env=environment, start_new_session=True)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def noted(self, name: str, count: int = 1, within: float = 20) -> list[str]:
        def are_there() -> bool:
            return len(self.lines(name)) >= count

        until(are_there, f"{count} notes {name!r}", within)
        return self.lines(name)

    def workers(self) -> list[int]:
        """Returns the processes of seriatim, from their leases."""
        keys = self.server.client.keys("event.worker:r*:lease")
        return [int(self.server.client.get(key).split()[2]) for key in keys]

    def ended(self) -> int:
        return self.process.wait(30)


@contextlib.contextmanager
def running(folder: Path, server: Server, processes: int = 1) -> Iterator[Running]:
    found = Running(folder, server, processes)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        found.log.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def emit(server: Server, *types: str, object: str = "a") -> None:
    with Emitter(server.url) as emitter:
        emitter.emit_many((object, {"type": one}) for one in types)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_gracefully(redis_server: Server, tmp_path: Path, number: signal.Signals) -> None:
    emit(redis_server, "until")
    with running(tmp_path, redis_server) as found:
        found.noted("until")
        found.process.send_signal(number)
        found.noted("stopping")
        assert found.process.poll() is None
        (tmp_path / "go").touch()
        assert found.ended() == 0
        found.noted("stopped")
    assert redis_server.client.xlen("event.log") == 1
    assert redis_server.client.keys("event.worker:*:lease") == [], "the worker has detached"


def test_an_operator_sees_reports_while_the_handler_runs(redis_server: Server, tmp_path: Path) -> None:
    def inspect() -> str:
        command = [program(), "inspect", "--redis", redis_server.program_url, "a"]
        return subprocess.run(command, capture_output=True, check=True, timeout=30, text=True).stdout

    emit(redis_server, "reports")
    with running(tmp_path, redis_server) as found:
        until(lambda: '{"done":1,"of":2}' in inspect(), "the progress is shown")
        assert "half of it is done" in inspect()
        assert "half of it is done" in (tmp_path / "log").read_text()
        (tmp_path / "go").touch()
        until(lambda: redis_server.client.xlen("event.log") == 1, "the event is delivered")
        until(lambda: not redis_server.client.exists("event.worker:r:reports"), "the reports end with the event")
        assert '"done"' not in inspect()
        found.process.terminate()
        assert found.ended() == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_ctrl_c_on_the_terminal_stops_gracefully(redis_server: Server, tmp_path: Path, processes: int) -> None:
    emit(redis_server, "until")
    with running(tmp_path, redis_server, processes) as found:
        found.noted("until")
        # A terminal sends the signal to all processes of the group.
        os.killpg(found.process.pid, signal.SIGINT)
        with Emitter(redis_server.url) as emitter:
            until(lambda: not is_claimed(redis_server, emitter), "no worker claims any more")
        assert found.process.poll() is None
        (tmp_path / "go").touch()
        assert found.ended() == 0
        found.noted("stopped")
    assert redis_server.client.hlen("event.workers") > 0
    assert redis_server.client.keys("event.worker:*:lease") == [], "all workers have detached"


def is_claimed(server: Server, emitter: Emitter) -> bool:
    """Emits an event, and returns whether a worker takes it soon."""
    name = f"probe:{server.client.incr('probes')}"
    emitter.emit(name, {"type": "who"})
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if not server.client.exists(f"{name}:events"):
            return True
        time.sleep(0.005)
    return False


def test_a_second_signal_stops_at_once(redis_server: Server, tmp_path: Path) -> None:
    emit(redis_server, "async wait")
    with running(tmp_path, redis_server) as found:
        found.noted("async wait")
        found.process.send_signal(signal.SIGINT)
        found.noted("stopping")
        found.process.send_signal(signal.SIGINT)
        assert found.ended() == 0
        assert found.noted("cancelled") == ["True"]
    assert redis_server.client.exists("event.log") == 0


def test_the_death_of_the_worker_cancels_all_handlers_and_is_an_error(redis_server: Server, tmp_path: Path) -> None:
    emit(redis_server, "async wait")
    with running(tmp_path, redis_server) as found:
        (first,) = found.noted("async wait")
        (worker,) = found.workers()
        os.kill(worker, signal.SIGKILL)
        assert found.ended() == 1
        assert found.noted("cancelled") == ["True"]
        (error,) = found.noted("error")
        assert error == (
            "WorkerFailed: the worker was killed by signal 9 (e.g. out of memory, or an operator); "
            "all handlers were cancelled"
        )
    (tmp_path / "go").touch()
    with running(tmp_path, redis_server) as again:
        assert again.noted("async wait", 2) == [first, first], "the same event comes again"
        until(lambda: redis_server.client.xlen("event.log") == 1, "the event is delivered")


def test_a_handler_that_does_not_end_ends_the_process(redis_server: Server, tmp_path: Path) -> None:
    emit(redis_server, "forever")
    with running(tmp_path, redis_server) as found:
        found.noted("forever")
        (worker,) = found.workers()
        os.kill(worker, signal.SIGKILL)
        assert found.ended() == 4


def test_the_worker_ends_with_its_program(redis_server: Server, tmp_path: Path) -> None:
    emit(redis_server, "until")
    with running(tmp_path, redis_server) as found:
        (first,) = found.noted("until")
        (worker,) = found.workers()
        found.process.kill()
        until(lambda: not is_alive(worker), "the worker has ended")
    (tmp_path / "go").touch()
    with running(tmp_path, redis_server) as again:
        assert again.noted("until", 2) == [first, first]


def test_several_processes_share_the_work(redis_server: Server, tmp_path: Path) -> None:
    with running(tmp_path, redis_server, 2) as found:
        until(lambda: len(found.workers()) == 2, "two workers have attached")
        with Emitter(redis_server.url) as emitter:
            emitter.emit_many((f"a:{n}", {"type": "who"}) for n in range(400))
        lines = found.noted("who", 400)
        assert len({line.split()[0] for line in lines}) == 2
        found.process.send_signal(signal.SIGTERM)
        assert found.ended() == 0
    assert redis_server.client.keys("event.worker:*:lease") == []


def test_if_one_process_fails_all_stop(redis_server: Server, tmp_path: Path) -> None:
    with running(tmp_path, redis_server, 2) as found:
        until(lambda: len(found.workers()) == 2, "two workers have attached")
        os.kill(found.workers()[0], signal.SIGKILL)
        assert found.ended() == 1
        assert any(line.startswith("WorkerFailed: process ") for line in found.noted("error"))
        until(lambda: not any(map(is_alive, found.workers())), "no worker is left")


def test_the_processes_end_with_their_parent(redis_server: Server, tmp_path: Path) -> None:
    with running(tmp_path, redis_server, 2) as found:
        until(lambda: len(found.workers()) == 2, "two workers have attached")
        workers = found.workers()
        found.process.kill()
        until(lambda: not any(map(is_alive, workers)), "no worker is left")
        assert redis_server.client.keys("event.worker:*:lease") == [], "the workers have stopped gracefully"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERIATIM_BIN", program())


def a_worker(server: Server, **settings: Any) -> Worker:
    worker = Worker(server.program_url, name="h", **settings)

    @worker.on("stop")
    def stop(event: Any, cx: Context) -> None:
        worker.stop()

    return worker


@pytest.mark.usefixtures("here")
def test_a_worker_runs_in_a_running_loop(redis_server: Server) -> None:
    worker = a_worker(redis_server)
    loops = []

    @worker.on("loop")
    async def loop(event: Any, cx: AsyncContext) -> None:
        loops.append(asyncio.get_running_loop())

    emit(redis_server, "loop", "stop")

    async def main() -> None:
        await asyncio.wait_for(worker.run_async(), 30)
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


@pytest.mark.usefixtures("here")
def test_a_cancelled_run_cancels_its_handlers(redis_server: Server) -> None:
    worker = a_worker(redis_server)
    began, ended = threading.Event(), threading.Event()

    @worker.on("wait")
    def wait(event: Any, cx: Context) -> None:
        began.set()
        cx.cancelled.wait()
        ended.set()

    emit(redis_server, "wait")

    async def main() -> None:
        task = asyncio.create_task(worker.run_async())
        await asyncio.get_running_loop().run_in_executor(None, began.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


@pytest.mark.usefixtures("here")
def test_a_worker_may_run_again(redis_server: Server) -> None:
    worker = a_worker(redis_server)
    for _ in range(2):
        emit(redis_server, "stop")
        worker.run()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_stop_before_a_run_is_not_lost(redis_server: Server, at_once: bool) -> None:
    worker = a_worker(redis_server)
    worker.stop(at_once=at_once)
    assert worker.is_stopping
    worker.run()
    assert not worker.is_stopping


@pytest.mark.usefixtures("here")
def test_a_timeout_cancels_a_handler(redis_server: Server) -> None:
    worker = a_worker(redis_server, timeout=0.05)
    attempts = []

    @worker.on("slow")
    async def slow(event: Any, cx: AsyncContext) -> None:
        attempts.append(cx.attempt)
        if cx.attempt == 1:
            assert 0 < cx.time_left <= 0.05
            await asyncio.Event().wait()

    emit(redis_server, "slow", "stop")
    worker.run()
    assert attempts == [1, 2]


@pytest.mark.usefixtures("here")
def test_a_handler_that_ignores_its_timeout_ends_the_worker(redis_server: Server) -> None:
    worker = a_worker(redis_server, timeout=0.05)

    @worker.on("slow")
    def slow(event: Any, cx: Context) -> None:
        assert worker._running is not None
        program = worker._running[1]
        until(lambda: not is_running(program.pid), "the worker has ended")
        assert cx.cancelled.is_set()

    emit(redis_server, "slow")
    with pytest.raises(WorkerFailed, match="the worker ended with exit code"):
        worker.run()


def is_running(pid: int) -> bool:
    """Returns whether a process is there, and is no zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.usefixtures("here")
def test_a_wrong_argument_is_an_error(redis_server: Server) -> None:
    with pytest.raises(WorkerFailed, match=r"has refused its options: unexpected argument '--no-such-flag' found$"):
        a_worker(redis_server, args=["--no-such-flag"]).run()


def a_program(folder: Path, text: str) -> str:
    path = folder / "seriatim"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"retry": "fixed-5x"}, r"invalid value 'fixed-5x' for '--retry <POLICY>': .*"),
        ({"args": ["--batch", "100000000"]}, "--batch is 100000000; it must be 1 to 1000 events"),
    ],
)
def test_a_setting_that_the_program_refuses_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], reason: str
) -> None:
    monkeypatch.setenv("SERIATIM_BIN", program())
    worker = Worker("redis://127.0.0.1:1", **settings)
    worker.on("t")(lambda event, cx: None)
    with pytest.raises(WorkerFailed, match=rf"\) has refused its options: {reason}$") as failed:
        worker.run()
    assert failed.value.code == 2


def test_a_program_of_another_version_is_refused(
    redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        """case $1 in --version) echo seriatim 9.9; exit;; esac; echo '{"type":"hello","protocol":2}'; cat >/dev/null"""
    )
    monkeypatch.setenv("SERIATIM_BIN", a_program(tmp_path, text))
    with pytest.raises(ProgramMismatch, match="speaks version 2 of the handler protocol"):
        a_worker(redis_server).run()
    monkeypatch.setenv("SERIATIM_BIN", a_program(tmp_path, "case $1 in --version) echo seriatim 0.0.1;; esac; exit 2"))
    with pytest.raises(ProgramMismatch, match=r"seriatim 0\.0\.1\) ended with exit code 2: it is too old"):
        a_worker(redis_server).run()
    monkeypatch.setenv("SERIATIM_BIN", a_program(tmp_path, "case $1 in worker) kill -9 $$;; esac"))
    with pytest.raises(WorkerFailed, match=r"killed by signal 9 \(e\.g\. .* operator\) before it was ready$"):
        a_worker(redis_server).run()
    monkeypatch.setenv("SERIATIM_BIN", a_program(tmp_path, "echo nonsense; cat >/dev/null"))
    with pytest.raises(WorkerFailed, match="does not keep to the protocol"):
        a_worker(redis_server).run()


def test_a_missing_program_is_named(redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERIATIM_BIN", str(tmp_path / "none"))
    with pytest.raises(ProgramNotFound, match="SERIATIM_BIN is "):
        a_worker(redis_server).run()
    monkeypatch.delenv("SERIATIM_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramNotFound, match="set SERIATIM_BIN to its path, install"):
        a_worker(redis_server).run()
    path = a_program(tmp_path, "exit 3")
    with pytest.raises(WorkerFailed, match="exit code 3 before it was ready"):
        a_worker(redis_server).run()
    (tmp_path / "seriatim_bin.py").write_text(f"def path(): return {path!r}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(WorkerFailed, match="exit code 3 before it was ready"):
        a_worker(redis_server).run()


def test_settings_are_checked() -> None:
    with pytest.raises(WorkerError, match="there is no handler"):
        Worker().run()
    with pytest.raises(ValueError, match="concurrency is 1 to 1024, not 0"):
        Worker(concurrency=0)
    with pytest.raises(ValueError, match="processes is 1 to 64"):
        Worker(processes=65)
    with pytest.raises(TypeError, match="args is a list"):
        Worker(args="--event-log")
    worker = Worker()
    worker.on("a")(lambda event, cx: None)
    with pytest.raises(ValueError, match="already a handler for events of type 'a'"):
        worker.on("a")(lambda event, cx: None)
    worker.on_other(lambda event, cx: None)
    with pytest.raises(ValueError, match="already a handler for other events"):
        worker.on_other(lambda event, cx: None)
    with pytest.raises(TypeError, match="types of events"):
        worker.on()
