"""Runs examples/python: customers order and pay over HTTP, while the worker and its Python process are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Optional
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support import CLIENTS, Server, program, until

EXAMPLE = CLIENTS.parent / "examples" / "python"
CUSTOMERS = ["ada", "ben", "cleo", "dan", "eva"]
ORDERS = 6
#: The cents with which the provider's library kills the process.
POISON = 2_000_000_000


class Example:
    """The service and the worker of the example, on a Redis."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._client, self._folder = server.client, folder
        self._environment = {
            **os.environ,
            "REDIS_URL": server.url,
            "SERIATIM_REDIS": server.program_url,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._service = self._start("service", sys.executable, "-m", "uvicorn", "service:app", "--port", "0")
        self._address = until(self._served, "the service listens").group(1)
        self.start_worker()

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / name).open("ab") as log:
            return subprocess.Popen(command, cwd=EXAMPLE, env=self._environment, stdout=log, stderr=log)

    def _served(self) -> Optional[re.Match[str]]:
        return re.search(r"running on (http://\S+)", self.log("service"))

    def log(self, name: str) -> str:
        return (self._folder / name).read_text()

    def start_worker(self) -> None:
        sink = f"exec:'{sys.executable}' worker.py"
        flags = ["--name", "orders-a", "--sink", sink, "--event-log"]
        self.worker = self._start("worker", program(), "worker", *flags)

    def handlers(self) -> int:
        """Returns the pid of the Python process that the worker has started."""
        ps = ["ps", "-o", "pid=", "--ppid", str(self.worker.pid)]
        return int(until(lambda: subprocess.run(ps, capture_output=True, check=False).stdout, "the handlers run"))

    def stop(self) -> None:
        """Stops the worker gracefully."""
        self.worker.terminate()
        assert self.worker.wait(30) == 0, self.log("worker")

    def kill(self) -> None:
        for process in (self.worker, self._service):
            process.kill()
            process.wait()

    def post(self, path: str, body: Any = None) -> Any:
        data = json.dumps(body or {}).encode()
        request = Request(self._address + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def order(self, customer: str, cents: int, remind_after: float = 3600) -> str:
        return str(self.post(f"/orders/{customer}", {"cents": cents, "remind_after": remind_after})["order"])

    def pay(self, customer: str, number: str) -> None:
        # A payment that is sent twice counts once.
        for _ in range(2):
            self.post(f"/orders/{customer}/{number}/payment")

    def rows(self) -> dict[str, list[tuple[str, str, str]]]:
        """Returns the rows of the event log by object: status, type or subject of the mail, and order."""
        found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for _, row in self._client.xrange("event.log"):
            event = json.loads(row[b"event"])
            about = event.get("about", event["type"])
            found[row[b"object"].decode()].append((row[b"status"].decode(), about, event["order"]))
        return found

    def _is_unlogged(self) -> bool:
        """Returns whether an account has an event that the worker has not committed."""
        logged = {row[b"id"] for _, row in self._client.xrange("event.log")}
        counted = {self._client.hget(account, "event") for account in self._client.keys("account:*")}
        return not counted <= logged

    def kill_worker_before_commit(self) -> None:
        """Kills the worker when a handler has done its work, and the worker has not committed it."""

        def is_caught() -> bool:
            self.worker.send_signal(signal.SIGSTOP)
            if any(self._is_unlogged() for _ in range(10)):
                return True
            self.worker.send_signal(signal.SIGCONT)
            return False

        until(is_caught, "a handler has done its work before the commit", 60)
        self.worker.kill()
        self.worker.wait()

    def over(self) -> int:
        """Returns the number of events that are over."""
        return int(self._client.xlen("event.log"))

    def schedules(self) -> list[Any]:
        command = [program(), "schedule", "list", "--json"]
        found = subprocess.run(command, env=self._environment, capture_output=True, check=True, timeout=30)
        return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.fixture
def example(redis_server: Server, tmp_path: Path) -> Iterator[Example]:
    found = Example(redis_server, tmp_path)
    try:
        yield found
    finally:
        found.kill()


def test_no_kill_loses_repeats_or_reorders_an_effect(example: Example, redis_server: Server) -> None:
    client, over = redis_server.client, example.over
    total = len(CUSTOMERS) * ORDERS * 4  # ordered, paid, and a mail for each

    def buy(customer: str) -> list[str]:
        numbers = []
        for cents in range(1, ORDERS + 1):
            numbers.append(example.order(customer, cents))
            example.pay(customer, numbers[-1])
        return numbers

    with ThreadPoolExecutor(len(CUSTOMERS)) as pool:
        buying = [pool.submit(buy, customer) for customer in CUSTOMERS]
        for goal in (total // 6, total // 3, total // 2, total * 2 // 3):
            until(partial(lambda goal: over() >= goal, goal), f"{goal} events are over: {example.log('worker')}", 60)
            assert over() < total, "the kill comes in the middle"
            if goal in (total // 3, total * 2 // 3):
                example.kill_worker_before_commit()
                example.start_worker()
            else:
                os.kill(example.handlers(), signal.SIGKILL)
        bought = dict(zip(CUSTOMERS, [one.result() for one in buying]))
    until(lambda: over() >= total, "all events are over", 60)
    rows = example.rows()
    for customer, numbers in bought.items():
        wanted = [("completed", about, number) for number in numbers for about in ("ordered", "paid")]
        assert rows[f"customer:{customer}"] == wanted
        assert rows[f"mail:{customer}"] == wanted
        assert client.hget(f"account:customer:{customer}", "owed") == b"0"
    assert over() == total
    charges = {number.encode(): b"%d" % cents for numbers in bought.values() for cents, number in enumerate(numbers, 1)}
    assert client.hgetall("provider:charges") == charges
    # The provider was busy at the first try of each payment.
    assert min(map(int, client.hvals("provider:tries"))) >= 2
    assert example.schedules() == [], "no reminder of a paid order can come"
    example.stop()


def test_a_reminder_comes_only_without_a_payment(example: Example, redis_server: Server) -> None:
    paid = example.order("ada", 5)
    example.pay("ada", paid)
    until(lambda: example.over() >= 4, "the payment and its mail are over")
    assert example.schedules() == [], "no reminder of a paid order is left"
    unpaid = example.order("ada", 7, remind_after=0.05)
    wanted = [("ordered", paid), ("paid", paid), ("ordered", unpaid), ("remind", unpaid)]
    until(lambda: example.over() >= 2 * len(wanted), "the reminder and its mail are over")
    rows = [("completed", about, number) for about, number in wanted]
    assert example.rows() == {"customer:ada": rows, "mail:ada": rows}
    assert redis_server.client.hget("account:customer:ada", "owed") == b"7"
    with pytest.raises(HTTPError, match="404"):
        example.post("/orders/ada/unknown/payment")
    example.stop()


def test_poison_stops_only_its_customer(example: Example, redis_server: Server) -> None:
    example.pay("mallory", example.order("mallory", POISON))

    def why_held() -> bytes:
        return bytes(redis_server.client.get("customer:mallory:events.held.id") or b"")

    until(lambda: b"crashes: died 5 times" in why_held(), "the customer waits for an operator", 60)
    number = example.order("ada", 3)
    example.pay("ada", number)
    until(lambda: len(example.rows()["mail:ada"]) >= 2, "another customer goes on")
    assert example.rows()["customer:ada"] == [("completed", "ordered", number), ("completed", "paid", number)]
    assert [about for _, about, _ in example.rows()["customer:mallory"]] == ["ordered"]
    example.stop()


@pytest.mark.parametrize("file", ["service.py", "worker.py", "provider.py"])
def test_the_files_of_the_example_are_short(file: str) -> None:
    assert len((EXAMPLE / file).read_text().splitlines()) <= 40
