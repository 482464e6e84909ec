"""Handlers that do what a case of workers.json says."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any, Callable, Optional

from case_values import event, events, instant, one, only, text

from seriatim import EmitError, Postponed, Rejected, Transient, Unavailable, Unknown, Worker

Action = dict[str, Any]


def expanded(elements: list[Any]) -> list[Any]:
    """Returns the elements of a list in which `times` stands for several."""
    out: list[Any] = []
    for element in elements:
        if isinstance(element, dict) and set(element) == {"times"}:
            times, repeated = element["times"]
            out += [repeated] * times
        else:
            out.append(element)
    return out


class Scripts:
    """The handlers of a case, and what they have done."""

    def __init__(self, handlers: dict[str, list[list[Action]]]) -> None:
        self.handlers = {type_: [expanded(script) for script in scripts] for type_, scripts in handlers.items()}
        self.calls: dict[str, list[str]] = defaultdict(list)
        self.wrong: list[str] = []
        self._runs: Counter[tuple[str, int]] = Counter()
        self._busy: set[str] = set()
        #: The contexts of the handlers in hand and of those before them, by object.
        self._contexts: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}
        self._lock = threading.Lock()

    def register(self, worker: Worker, *, is_async: bool) -> None:
        for type_, scripts in self.handlers.items():
            register = worker.on_other if type_ == "*" else worker.on(type_)
            register(self._asynchronous(type_, scripts) if is_async else self._blocking(type_, scripts))

    def _blocking(self, type_: str, scripts: list[list[Action]]) -> Callable[[Any, Any], None]:
        def run(value: Any, cx: Any) -> None:
            for action in self._begin(type_, scripts, value, cx):
                name, members = one(action)
                if name in ("once", "fails_once"):
                    subtask, arguments = self._once(type_, cx, name, members)
                    self._returned(cx, members, name, cx.once(arguments, subtask))
                else:
                    self._act(cx, value, name, members)
            self._end(cx)

        return self._guarded(run)

    def _asynchronous(self, type_: str, scripts: list[list[Action]]) -> Callable[[Any, Any], Any]:
        async def run(value: Any, cx: Any) -> None:
            try:
                for action in self._begin(type_, scripts, value, cx):
                    name, members = one(action)
                    if name in ("once", "fails_once"):
                        subtask, arguments = self._once(type_, cx, name, members)

                        async def later(subtask: Callable[[], Any] = subtask) -> Any:
                            return subtask()

                        self._returned(cx, members, name, await cx.once(arguments, later))
                    else:
                        self._act(cx, value, name, members)
            finally:
                self._end(cx)

        return run

    def _guarded(self, run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def guarded(value: Any, cx: Any) -> None:
            try:
                run(value, cx)
            finally:
                self._end(cx)

        return guarded

    def _begin(self, type_: str, scripts: list[list[Action]], value: Any, cx: Any) -> list[Action]:
        with self._lock:
            if cx.object in self._busy:
                self.wrong.append(f"two handlers of {cx.object} run at the same time")
            self._busy.add(cx.object)
            self._runs[cx.object, cx.id] += 1
            self._ended[cx.object] = self._contexts.get(cx.object)
            self._contexts[cx.object] = cx
        self.calls[cx.object].append(f"{type_} {cx.attempt}")
        return scripts[min(cx.attempt, len(scripts)) - 1]

    def _end(self, cx: Any) -> None:
        with self._lock:
            self._busy.discard(cx.object)

    def _once(self, type_: str, cx: Any, name: str, members: Action) -> tuple[Callable[[], Any], str]:
        only(members, "name", *(["error"] if name == "fails_once" else ["value", "long", "returns"]))
        subtask: str = text(members["name"])

        def run() -> Any:
            self.calls[cx.object].append(f"{type_} {cx.attempt} once {subtask}")
            if name == "fails_once":
                raise RuntimeError(members["error"])
            return event({"long": members["long"]}) if "long" in members else members["value"]

        return run, subtask

    def _returned(self, cx: Any, members: Action, name: str, found: Any) -> None:
        wanted = members.get("returns", members.get("value"))
        if name == "once" and found != wanted:
            self.wrong.append(f"{cx!r}: the subtask {members['name']!r} returned {found!r}, not {wanted!r}")

    def _act(self, cx: Any, value: Any, name: str, members: Any) -> None:
        if name in ("emit", "schedule", "cancel", "result", "progress", "log"):
            self._effect(cx, name, members)
        elif name == "refused":
            self._refused(cx, dict(members))
        elif name == "late":
            self._refused(self._ended[cx.object], dict(members))
        elif name == "expect":
            self._expect(cx, value, members)
        elif name == "throw":
            raise RuntimeError(members)
        else:
            self._fail(cx, name, members)

    def _effect(self, cx: Any, name: str, members: Action) -> None:
        if name == "emit":
            only(members, "object", "event")
            cx.emit(text(members["object"]), event(members["event"]))
        elif name == "cancel":
            only(members, "object", "key")
            cx.cancel(text(members["object"]), text(members["key"]))
        elif name == "result":
            cx.result(event(members))
        elif name == "progress":
            cx.progress(event(members))
        elif name == "log":
            cx.log(text(members))
        else:
            args, more = schedule_args(members)
            cx.schedule(*args, **more)

    def _refused(self, cx: Any, members: Action) -> None:
        kind = members.pop("error")
        try:
            self._effect(cx, *one(members))
        except EmitError as error:
            if error.kind != kind:
                self.wrong.append(f"{members} is refused as {error.kind}, not as {kind}: {error}")
        else:
            self.wrong.append(f"{members} is not refused")

    def _expect(self, cx: Any, value: Any, members: Action) -> None:
        facts = {name: getattr(cx, name) for name in ("object", "type", "attempt", "crashes", "traceparent", "payload")}
        facts.update(event=value, has_prev=cx.prev > 0, has_token=bool(cx.token))
        only(members, *facts)
        for name, wanted in members.items():
            if facts[name] != wanted:
                self.wrong.append(f"{cx!r}: {name} is {facts[name]!r}, not {wanted!r}")

    def _fail(self, cx: Any, name: str, members: Action) -> None:
        times: Optional[int] = members.get("times")
        if times is not None and self._runs[cx.object, cx.id] > times:
            return
        error = members["error"]
        if name == "transient":
            only(members, "error", "retry_after_ms", "times")
            after = members.get("retry_after_ms")
            raise Transient(error, retry_after=None if after is None else after / 1000)
        if name == "postponed":
            only(members, "error", "after_ms", "times")
            raise Postponed(members["after_ms"] / 1000, error)
        only(members, "error", "times")
        raise {"rejected": Rejected, "unknown": Unknown, "unavailable": Unavailable}[name](error)


def schedule_args(members: Action) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Returns the arguments of a schedule."""
    only(members, "object", "event", "after_ms", "at_ms", "key", "mode")
    more: dict[str, Any] = {}
    if "after_ms" in members:
        more["after"] = members["after_ms"] / 1000
    if "at_ms" in members:
        more["at"] = instant(members["at_ms"]) / 1000
    if "key" in members:
        more["key"] = text(members["key"])
    if "mode" in members:
        assert members["mode"] in ("keep_time", "keep_first")
        more[members["mode"]] = True
    return (text(members["object"]), event(members["event"])), more


def emit_args(members: Action) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Returns the arguments of an emit."""
    only(members, "object", "event", "subevents", "data", "key", "window_ms", "awaited", "keep_ms")
    more: dict[str, Any] = {}
    if "subevents" in members:
        more["subevents"] = events(members["subevents"])
    if "data" in members:
        more["data"] = event(members["data"])
    if "key" in members:
        more["idempotency_key"] = text(members["key"])
    if "window_ms" in members:
        more["window"] = members["window_ms"] / 1000
    if "awaited" in members:
        more["awaited"] = members["awaited"]
    if "keep_ms" in members:
        more["keep"] = members["keep_ms"] / 1000
    return (text(members["object"]), event(members["event"])), more


def end_of_args(members: Action) -> tuple[Any, Any, float]:
    """Returns the arguments of a wait."""
    only(members, "object", "name", "within_ms")
    return text(members["object"]), text(members["name"]), members.get("within_ms", 10_000) / 1000
