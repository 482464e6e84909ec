"""The values of cases (clients/cases/README.md). A member that is not known fails."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Optional

from support import CASES

from seriatim import EventEnd, Json

SURROGATE = "\ud800"
SPECIAL = {
    "nan": [float("nan")],
    "infinity": [float("inf")],
    "minus_infinity": [float("-inf")],
    "lone_surrogate": [SURROGATE],
    "lone_surrogate_key": {SURROGATE: 1},
}


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((CASES / name).read_text(encoding="utf-8"))
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), "each case has a name of its own"
    return cases


def only(found: dict[str, Any], *known: str) -> None:
    unknown = set(found) - set(known)
    assert not unknown, f"the runner does not know {unknown}"


def one(found: dict[str, Any]) -> tuple[str, Any]:
    """Returns the only member."""
    ((name, value),) = found.items()
    return name, value


def text(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    name, value = one(found)
    if name == "special":
        assert value == "lone_surrogate"
        return SURROGATE
    assert name == "repeat"
    return value[0] * value[1]


def event(found: dict[str, Any]) -> Any:
    name, value = one(found)
    if name == "value":
        return value
    if name == "text":
        return Json(value)
    if name == "hex":
        return Json(bytes.fromhex(value))
    if name == "long":
        return "x" * (value - 2)
    assert name == "special"
    return SPECIAL[value]


def events(found: Any) -> list[Any]:
    if isinstance(found, dict):
        name, (times, one_event) = one(found)
        assert name == "times"
        return [event(one_event)] * times
    return [event(one_event) for one_event in found]


def now_ms() -> float:
    return time.time() * 1000


def instant(found: Any) -> float:
    """Returns a point in time in ms."""
    if isinstance(found, dict):
        name, value = one(found)
        assert name == "now_plus_ms"
        return now_ms() + float(value)
    return float(found)


class Expect:
    """Compares what was found with what a case expects."""

    def __init__(self, begin_ms: float, end_ms: float, keys: Optional[dict[str, str]] = None) -> None:
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        self.keys = keys or {}

    def text(self, wanted: str) -> str:
        for at, key in self.keys.items():
            wanted = wanted.replace(f"<key of {at}>", key)
        return wanted

    def same(self, found: bytes, wanted: str, where: str) -> None:
        """Compares a text of a key, which may have the times and the inbox of awaited emits."""
        pattern = re.escape(self.text(wanted)).replace("<us>", "([0-9]{16})")
        pattern = pattern.replace("<inbox>", "[0-9A-Za-z]{1,32} [0-9a-f]{40}")
        match = re.fullmatch(pattern, found.decode())
        assert match, (where, found, wanted)
        for micros in match.groups():
            self.number(int(micros) / 1000, {"now_plus_ms": 0})

    def score(self, found: float, wanted: Any) -> None:
        if wanted == "<queued>":
            found, wanted = (-1e15 - found) / 1000, {"now_plus_ms": 0}
        self.number(found, wanted)

    def number(self, found: Any, wanted: Any) -> None:
        if isinstance(wanted, dict):
            name, plus = one(wanted)
            assert name == "now_plus_ms"
            assert self.begin_ms - 2 <= found - plus <= self.end_ms + 2, (found, wanted, self.begin_ms, self.end_ms)
        else:
            assert found == wanted

    def value(self, found: Any, wanted: Any) -> None:
        if isinstance(wanted, dict) and set(wanted) == {"now_plus_ms"}:
            self.number(found, wanted)
        elif isinstance(wanted, str):
            assert found == self.text(wanted)
        else:
            assert found == wanted

    def dump(self, client: Any, key: str, wanted: dict[str, Any]) -> None:
        """Compares a key of Redis."""
        kind, value = one(wanted)
        encoded = self.text(key).encode()
        if kind == "string":
            self.same(client.get(encoded), value, key)
        elif kind == "list":
            found_list = client.lrange(encoded, 0, -1)
            assert len(found_list) == len(value), (key, found_list)
            for item, wanted_item in zip(found_list, value):
                self.same(item, wanted_item, key)
        elif kind == "list_length":
            assert client.llen(encoded) == value, key
        elif kind == "hash":
            expected = {self.text(field).encode(): self.text(item).encode() for field, item in value.items()}
            assert client.hgetall(encoded) == expected, key
        elif kind == "zset":
            found = dict(client.zrange(encoded, 0, -1, withscores=True))
            assert set(found) == {self.text(member).encode() for member in value}, key
            for member, score in value.items():
                self.score(found[self.text(member).encode()], score)
        else:
            assert kind == "zset_of", f"the runner does not know {kind}"
            assert set(client.zrange(encoded, 0, -1)) == {self.text(member).encode() for member in value}, key


def compare_end(end: EventEnd, wanted: dict[str, Any]) -> None:
    """Compares the end of an awaited event."""
    for name, value in wanted.items():
        if name == "error_has":
            assert value in (end.error or ""), end
        elif name == "result_bytes":
            assert len(json.dumps(end.result, separators=(",", ":"))) == value
        else:
            assert name in ("status", "id", "error", "attempts", "result", "results"), (
                f"the runner does not know {name}"
            )
            assert getattr(end, name) == value, (name, end)
