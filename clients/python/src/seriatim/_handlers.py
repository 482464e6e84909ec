"""The handlers of a program, by the type of their events."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar, Union

from ._context import AsyncContext, Context

SyncHandler = Callable[[Any, Context], Any]
AsyncHandler = Callable[[Any, AsyncContext], Awaitable[Any]]
AnyHandler = TypeVar("AnyHandler", bound=Union[SyncHandler, AsyncHandler])


@dataclass(frozen=True)
class Handler:
    run: Callable[[Any, Any], Any]
    is_async: bool


def _is_async(run: Any) -> bool:
    while isinstance(run, functools.partial):
        run = run.func
    return inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(getattr(run, "__call__", None))  # noqa: B004


class Handlers:
    """The handlers: one for each type, and one for all other events."""

    def __init__(self) -> None:
        self._of_type: dict[str, Handler] = {}
        self._other: Optional[Handler] = None

    def on(self, *types: str) -> Callable[[AnyHandler], AnyHandler]:
        """Registers the decorated function for events of these types."""
        if not types or not all(isinstance(one, str) for one in types):
            raise TypeError('on() takes types of events, e.g. @worker.on("placed")')

        def register(run: AnyHandler) -> AnyHandler:
            for one in types:
                if one in self._of_type:
                    raise ValueError(f"there is already a handler for events of type {one!r}")
            self._of_type.update(dict.fromkeys(types, Handler(run, _is_async(run))))
            return run

        return register

    def on_other(self, run: AnyHandler) -> AnyHandler:
        """Registers the decorated function for all events that no other handler takes."""
        if self._other is not None:
            raise ValueError("there is already a handler for other events")
        self._other = Handler(run, _is_async(run))
        return run

    def of(self, type: Optional[str]) -> Optional[Handler]:
        found = None if type is None else self._of_type.get(type)
        return found or self._other

    @property
    def is_empty(self) -> bool:
        return not self._of_type and self._other is None
