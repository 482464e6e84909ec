"""Many events at once: a few large transactions in place of many small ones.

A transaction has one LPUSH for each object and one LPUSH of markers. Only one is under way at a time. If
an event fails, the later events of its object are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

from . import _json
from ._flows import Command, Core, Draft, Emitted, Flow, read_script, ready, transact
from ._replies import Failed, Replies, ServerError, number
from .errors import ConnectFailed, EmitError, EmitManyError, ObjectFailed, OutcomeUnknown

CHUNK_EVENTS_MAX = 1024
CHUNK_BYTES_MAX = 1024 * 1024
#: The most objects with limits in a transaction. Their emits are scripts, which take longer.
SCRIPTS_PER_CHUNK = 128


@dataclass(frozen=True)
class EmittedMany:
    """All events of `emit_many` are queued."""

    events: int
    #: The number of transactions.
    chunks: int


@dataclass
class _Group:
    """The events of one object in a transaction."""

    draft: Draft
    #: The positions of these events.
    positions: list[int] = field(default_factory=list)
    by_script: bool = False


class _Progress:
    def __init__(self, core: Core, events: Iterator[tuple[str, Any]], chunk: tuple[int, int]) -> None:
        self.core = core
        self.events = events
        self.events_max, self.bytes_max = chunk
        self.position = 0
        self.acknowledged = 0
        self.chunks = 0
        self.failed: dict[str, ObjectFailed] = {}
        self.stopped: Optional[int] = None
        self.is_over = False

    def gather(self) -> dict[str, _Group]:
        """Takes events until a transaction is full. Refused events count, too."""
        groups: dict[str, _Group] = {}
        size = scripts = 0
        for _ in range(self.events_max):
            try:
                object, event = next(self.events)
            except StopIteration:
                self.is_over = True
                break
            at = self.position
            self.position += 1
            if object in self.failed:
                continue
            try:
                group = groups.get(object)
                if group is None:
                    group = _Group(Draft(self.core.keys, object, self.core.keys.object(object), []))
                encoded = _json.encode(event, self.core.event_bytes_max)
            except EmitError as error:
                self.fail(object, at, error)
                continue
            if object not in groups:
                groups[object] = group
                scripts += self.core.limits.of(object) is not None
            group.draft.events.append(encoded)
            group.positions.append(at)
            size += len(group.draft.name) + len(encoded)
            if size >= self.bytes_max or scripts >= SCRIPTS_PER_CHUNK:
                break
        return groups

    def fail(self, object: str, first: int, error: EmitError) -> None:
        """Records that an object failed. Of two errors, the one at the earlier position counts."""
        before = self.failed.get(object)
        if before is None or before.first > first:
            self.failed[object] = ObjectFailed(object, first, error)

    def commands(self, groups: Iterable[_Group]) -> list[Command]:
        commands: list[Command] = []
        marks: list[bytes] = []
        has_text = False
        for group in groups:
            limit = self.core.limits.of(group.draft.object)
            group.by_script = limit is not None
            if limit is None:
                commands.append((b"LPUSH", self.core.keys.events(group.draft.name), *group.draft.events))
                marks.append(group.draft.name)
            else:
                # The first call has the text of the script, so the others can name it by its hash.
                commands.append(group.draft.script(None, limit, with_text=not has_text, is_part=True))
                has_text = True
        if marks:
            commands.append((b"LPUSH", self.core.keys.markers, *marks))
        return commands

    def settle(self, groups: list[_Group], replies: Replies) -> None:
        """Records the outcome of a transaction."""
        self.chunks += 1
        answers = replies.results
        mark = answers[-1]
        has_marks = any(not group.by_script for group in groups)
        for group, answer in zip(groups, answers):
            object, events = group.draft.object, len(group.positions)
            try:
                if group.by_script:
                    self.settle_script(group, answer, replies)
                    continue
                number(object, answer, self.core.keys.events(group.draft.name))
                number(object, mark, self.core.keys.markers)
                replies.check(object)
                self.acknowledged += events
            except EmitError as error:
                self.fail(object, group.positions[0], error)
        if replies.too_few is not None or (has_marks and isinstance(mark, ServerError)):
            self.stop()

    def settle_script(self, group: _Group, answer: Any, replies: Replies) -> None:
        object, events = group.draft.object, len(group.positions)
        done = read_script(object, "", events, answer)
        if done is None:
            raise OutcomeUnknown(object, "the reply is not that of the script")
        replies.check(object)
        if isinstance(done, Emitted):
            self.acknowledged += events
            return
        some, error = done
        self.acknowledged += some
        self.fail(object, group.positions[min(some, events - 1)], error)

    def stop(self) -> None:
        self.stopped = self.position

    def answer(self) -> EmittedMany:
        if not self.failed:
            return EmittedMany(self.acknowledged, self.chunks)
        failed = sorted(self.failed.values(), key=lambda one: one.first)
        raise EmitManyError(self.acknowledged, failed, self.stopped)


def emit_many(core: Core, events: Iterable[tuple[str, Any]], chunk: tuple[int, int]) -> Flow[EmittedMany]:
    """Emits many events. The transactions take effect one by one."""
    progress = _Progress(core, iter(events), chunk)
    # The first events must know the limits. If this fails, the first transaction reports the error.
    with suppress(Failed, ConnectFailed):
        yield from ready(core)
    while not progress.is_over and progress.stopped is None:
        groups = list(progress.gather().values())
        if not groups:
            continue
        try:
            yield from ready(core)
            replies = yield from transact(core, progress.commands(groups))
        except (Failed, ConnectFailed) as error:
            for group in groups:
                object = group.draft.object
                about = error.about(object) if isinstance(error, Failed) else error
                progress.fail(object, group.positions[0], about)
            progress.stop()
        else:
            progress.settle(groups, replies)
    return progress.answer()
