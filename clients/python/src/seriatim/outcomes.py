"""The outcomes that a handler raises. Any other exception is a transient failure."""

from __future__ import annotations

from typing import Optional

from ._schedule import Span, span_ms
from .errors import SeriatimError


class Outcome(SeriatimError):
    """The base of the outcomes. The text is recorded with the event; its first 1,000 bytes are kept."""


class Transient(Outcome):
    """The event failed and may succeed later. It is tried again after `retry_after`, or as the retry policy says."""

    def __init__(self, error: str = "", *, retry_after: Optional[Span] = None) -> None:
        super().__init__(error)
        self.retry_after_ms = None if retry_after is None else span_ms(retry_after, "retry_after")


class Rejected(Outcome):
    """The event will never succeed. By default it becomes a dead letter."""


class Unavailable(Outcome):
    """No event can be handled now. The worker claims no more objects, and tries again."""


class Unknown(Outcome):
    """Another worker may know this event. Its object waits, and no attempt is counted."""


class Postponed(Outcome):
    """The event was not tried. Its object waits for this time, and no attempt is counted."""

    def __init__(self, after: Span, error: str = "") -> None:
        super().__init__(error)
        self.after_ms = span_ms(after)


class Cancelled(SeriatimError):
    """The worker has asked for the end of this handler. See `cx.cancelled`."""
