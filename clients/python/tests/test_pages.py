"""The blocks in Python of the top README and of the pages for users run, as a reader copies them."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from support import CLIENTS, Server, program, until

from seriatim import Worker

#: Each page, with lines that its handlers print.
PAGES = {
    "README.md": [r"customer:1 \d+ 1200"],
    "docs/guide.md": [r"customer:17 \d+ 1 paid", r"customer:99 \d+ 1 greet", r"ledger:1 \d+ 1 entry"],
    "docs/coming-from.md": ["1200", r"customer:17 \{'type': 'paid'\}"],
    "docs/unordered.md": [r"mail:[0-9a-f-]{36} ada"],
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks, each with the words behind its language."""
    text = (CLIENTS.parent / page).read_text(encoding="utf-8")
    return re.findall(r"^```python *(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)


def test_no_other_page_has_python() -> None:
    for path in (CLIENTS.parent / "docs").glob("*.md"):
        page = f"docs/{path.name}"
        assert page in PAGES or not blocks(page), page


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(
    page: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERIATIM_BIN", program())
    own_run = Worker.run
    runs = 0

    def is_done() -> bool:
        client = redis_server.client
        return not client.keys("*:events") and not client.keys("event.worker:*:event")

    def run(worker: Worker) -> None:
        nonlocal runs
        runs += 1

        def stop() -> None:
            try:
                until(is_done, "no event is left", 60)
            finally:
                worker.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        own_run(worker)
        thread.join()

    monkeypatch.setattr(Worker, "run", run)
    names: dict[str, Any] = {"__name__": "page"}
    for note, block in blocks(page):
        code = compile(block.replace("redis://127.0.0.1", redis_server.url), page, "exec")
        if note:
            assert note.startswith("not run: "), note
        else:
            exec(code, names)
    assert runs
    printed = capsys.readouterr().out.splitlines()
    for line in PAGES[page]:
        assert any(re.fullmatch(line, one) for one in printed), (line, printed)
