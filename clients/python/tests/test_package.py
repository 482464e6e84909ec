"""The package itself: its scripts, its guide, its names."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support import CLIENTS, Server, program, until

import seriatim
from seriatim import Worker

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("name", ["emit.lua", "cancel.lua"])
def test_the_scripts_are_those_of_the_program(name: str) -> None:
    own = (resources.files("seriatim") / "scripts" / name).read_bytes()
    assert own == (CLIENTS / "scripts" / name).read_bytes()


def test_all_names_exist() -> None:
    assert sorted(seriatim.__all__) == list(seriatim.__all__)
    for name in seriatim.__all__:
        assert hasattr(seriatim, name)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_guide_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 235
    assert "```" not in re.sub(r"```python\n.*?```", "", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_block_of_the_guide_runs(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERIATIM_BIN", program())
    own_run = Worker.run
    names: dict[str, Any] = {"__name__": "guide"}

    def is_done() -> bool:
        client = redis_server.client
        return not client.keys("{shop:0}:*:events") and not client.keys("{shop:0}:event.worker:*:event")

    def run(worker: Worker) -> None:
        def stop() -> None:
            with suppress(Exception):
                names["called"] = names["charge_now"]("order:9", 9)
            until(is_done, "no event is left", 60)
            worker.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        own_run(worker)
        thread.join()

    monkeypatch.setattr(Worker, "run", run)
    for block in blocks():
        text = block.replace("redis://127.0.0.1", redis_server.url)
        exec(compile(text, "README.md", "exec"), names)
    assert names["called"] == {"receipt": "receipt for 9"}
    assert names["sent"].wait(20) == {"receipt": "receipt for 3"}
    names["em"].close()
    names["client"].close()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "queued"
    assert sum(line.startswith("ledger:1 ") and line.endswith(" entry") for line in printed) == 1005
    assert any(re.fullmatch(r"order:1 \d+ packed", line) for line in printed)


def test_the_clock_of_a_made_key_does_not_matter() -> None:
    from seriatim._names import make_key

    keys = [make_key() for _ in range(1000)]
    assert sorted(keys) == keys
    assert all(re.fullmatch(r"-\d{13}-\d{12}-[0-9a-f]{16}", key) for key in keys)
    assert abs(int(keys[0].split("-")[1]) / 1000 - time.time()) < 3600
