"""The part that the programs of both Python tools share. It speaks the protocol that driver.mjs describes.

The bench runs `python TOOL.py URL KEYS BYTES`. For each drain, the program starts itself again as a worker:
`python TOOL.py URL KEYS BYTES work N FILE MS`. The worker makes FILE.ready when it is ready, and FILE at the end.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

URL, KEYS_FILE, BYTES = sys.argv[1:4]
Event = tuple[str, dict[str, Any]]


def now() -> float:
    """Returns the time in ms. Its clock is the same in all processes."""
    return time.monotonic_ns() / 1e6


class Notes:
    """The notes of the handlers of one worker."""

    def __init__(self, wanted: int, file: str, ms: float) -> None:
        self.wanted, self.file, self.ms = wanted, Path(file), ms
        self.lines: list[str] = []
        self.count = 0

    def ready(self) -> None:
        self.began = now()
        self.file.with_suffix(".ready").touch()

    def begin(self, key: str, event: dict[str, Any]) -> float:
        """Notes that a handler begins. Returns the time that it takes, in seconds."""
        self.lines.append(f"+{event['seq']} {key} {now()}")
        if self.ms == 0:
            self.took()
        return random.random() * self.ms / 1000

    def end(self, event: dict[str, Any]) -> None:
        self.lines.append(f"-{event['seq']}")
        self.took()

    def took(self) -> None:
        self.count += 1
        if self.count == self.wanted:
            unnamed = self.file.with_suffix(".part")
            unnamed.write_text("\n".join([f"={self.began}", *self.lines, ""]))
            unnamed.rename(self.file)


class Tool(Protocol):
    def enqueue(self, events: Iterable[Event]) -> object: ...

    def emit(self, key: str, event: dict[str, Any]) -> object: ...

    def work(self, notes: Notes) -> object:
        """Handles events until a SIGTERM."""


def events(count: int) -> list[Event]:
    keys = Path(KEYS_FILE).read_text().split()
    return [(keys[seq], {"seq": seq, "text": "x" * (int(BYTES) - 18 - len(str(seq)))}) for seq in range(count)]


def until_there(file: Path, worker: "subprocess.Popen[bytes]") -> None:
    while not file.exists():
        if worker.poll() is not None:
            sys.exit(f"the worker has ended with exit code {worker.returncode}")
        time.sleep(0.01)


def paced(tool: Tool, count: int, rate: float) -> list[float]:
    times = []
    all_events, began = events(count), now()
    for at, (key, event) in enumerate(all_events):
        time.sleep(max(0.0, began + at * 1000 / rate - now()) / 1000)
        times.append(now())
        tool.emit(key, event)
    return times


def handled(tool: Tool, count: str, file: str, ms: str, rate: float = 0) -> object:
    """Handles events in a worker, while this process emits them if there is a rate."""
    command = [sys.executable, *sys.argv, "work", count, file, ms]
    # Only replies may come on standard output.
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr)
    until_there(Path(file).with_suffix(".ready"), worker)
    reply = paced(tool, int(count), rate) if rate else None
    until_there(Path(file), worker)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    return reply


def run(tool: Tool, command: str, count: str, *rest: str) -> object:
    if command == "enqueue":
        all_events, began = events(int(count)), now()
        tool.enqueue(all_events)
        return now() - began
    if command == "drain":
        return handled(tool, count, rest[0], rest[1])
    return handled(tool, count, rest[0], "0", float(rest[1]))


def drive(tool: Tool) -> None:
    if sys.argv[4:5] == ["work"]:
        # A worker does not outlive the process that has started it.
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
        count, file, ms = sys.argv[5:]
        tool.work(Notes(int(count), file, float(ms)))
        return
    for line in sys.stdin:
        print(json.dumps(run(tool, *line.split())), flush=True)
