"""An emit inside a transaction of the caller: the positions of its commands, and its outcome."""

from __future__ import annotations

from typing import Any, Union

from redis import exceptions

from ._flows import Draft
from ._replies import Failed, ServerError, command_failed, not_run
from ._transport import server_error
from .errors import OutcomeUnknown


class Appended:
    """An emit that `append_to` has put into a pipeline of the caller.

        replies = pipe.execute(raise_on_error=False)
        placed.outcome(replies)

    The client raises some errors of a transaction in spite of `raise_on_error=False`. Then give this error
    to `outcome`:

        try:
            replies = pipe.execute(raise_on_error=False)
        except redis.RedisError as error:
            replies = error
        placed.outcome(replies)
    """

    def __init__(self, draft: Draft, first: int) -> None:
        self._draft = draft
        self._first = first

    @staticmethod
    def check(pipe: Any) -> None:
        """Checks that a pipeline is a transaction."""
        is_transaction = getattr(pipe, "explicit_transaction", False) or getattr(pipe, "is_transaction", False)
        is_transaction = is_transaction or getattr(pipe, "transaction", False) is True
        is_pipeline = hasattr(pipe, "command_stack") and hasattr(pipe, "connection_pool")
        if not is_pipeline or not is_transaction:
            raise TypeError("append_to takes a pipeline with transaction=True")
        if getattr(pipe, "watching", False) and not pipe.explicit_transaction:
            raise ValueError("the pipeline still watches; call pipe.multi() before append_to")

    @classmethod
    def append(cls, pipe: Any, draft: Draft) -> Appended:
        first = len(pipe.command_stack)
        for command in draft.commands():
            pipe.execute_command(*command)
        return cls(draft, first)

    def outcome(self, replies: Union[list[Any], BaseException, None]) -> None:
        """Raises the error of the emit, if its events are not queued.

        `replies` is the result of `pipe.execute(raise_on_error=False)`, or the error that it has raised.

        - It returns: all events are queued. A command of the caller may still have failed, because Redis
          does not roll back.
        - `OutOfMemory`, `Refused`: no command of the transaction was applied.
        - `WrongType`: a key of the emit has a wrong type. The other commands were applied.
        - `OutcomeUnknown`: there was no reply, or it does not show the outcome.
        """
        draft = self._draft
        if isinstance(replies, BaseException):
            raise self._failed(replies).about(draft.object) from replies
        has_data = draft.data is not None
        end = self._first + 2 + has_data
        if not isinstance(replies, (list, tuple)) or len(replies) < end:
            raise OutcomeUnknown(draft.object, "the reply is not that of the transaction")
        own = replies[self._first : end]
        keys = [draft.keys.data(draft.name)] if has_data else []
        keys += [draft.keys.events(draft.name), draft.keys.markers]
        for at, (reply, key) in enumerate(zip(own, keys)):
            if isinstance(reply, Exception):
                error = server_error(reply)
                if has_data and at == 0:
                    raise OutcomeUnknown(draft.object, str(error))
                raise command_failed(draft.object, error, key)
            if not isinstance(reply, int) and not (has_data and at == 0):
                raise OutcomeUnknown(draft.object, "a command did not return a number")

    @staticmethod
    def _failed(error: BaseException) -> Failed:
        """Classifies an error that the client has raised in place of the replies."""
        if isinstance(error, exceptions.WatchError):
            return Failed("refused", "a watched key has changed")
        if isinstance(error, exceptions.ExecAbortError):
            return not_run(server_error(error))
        if isinstance(error, exceptions.ResponseError):
            # The client raises the first error of a command that Redis has refused. It leaves out whether
            # EXEC was refused, too; Redis always refuses it then. An error of a command that ran comes only
            # with raise_on_error=True, so such an error leaves the outcome open.
            return not_run(_without_place(error))
        return Failed("unknown", str(error) or type(error).__name__)


def _without_place(error: Exception) -> ServerError:
    """Returns the error without the place that the client has written before its text."""
    found = server_error(error)
    _, marker, text = str(error).partition(" of pipeline caused error: ")
    if not marker:
        return found
    code, _, rest = text.partition(" ")
    return ServerError(found.code, text) if found.code else ServerError(code, rest)
