"""The replies of Redis, and what took effect. The table is the one of the Rust emitter."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions

from seriatim._limits import Limit, Limits, read_limit
from seriatim._replies import Failed, ServerError, results
from seriatim._transport import server_error


def an_error(line: str) -> ServerError:
    code, _, text = line.partition(" ")
    return ServerError(code, text)


def failure(replies: list[Any]) -> str:
    """Returns the word for the failure of a transaction of two commands."""
    with pytest.raises(Failed) as failed:
        results(replies, 2)
    return failed.value.kind


NO, ALONE = an_error("NOPERM no"), an_error("ERR EXEC without MULTI")
OOM, ABORTED = an_error("OOM full"), an_error("EXECABORT discarded")


@pytest.mark.parametrize(
    ("replies", "kind"),
    [
        ([NO, b"", b"", ALONE], "unknown"),
        ([NO, NO, b"", ALONE], "unknown"),
        ([NO, NO, NO, NO], "refused"),
        ([b"", b"", NO, ABORTED], "refused"),
        ([b"", NO, OOM, ABORTED], "memory"),
        ([b"", b"", b"", NO], "refused"),
        ([b"", b"", b"", b""], "unknown"),
        ([b"", b"", b"", None], "refused"),
        ([b"", b"", b"", [1]], "unknown"),
        ([], "unknown"),
        ([b""], "unknown"),
        # The client has closed the connection at an error.
        ([an_error("NOAUTH no")], "refused"),
        ([an_error("LOADING later")], "unknown"),
        ([b"", an_error("LOADING later")], "refused"),
        ([b"", an_error("MASTERDOWN no")], "refused"),
    ],
)
def test_a_refusal_among_the_replies_shows_what_ran(replies: list[Any], kind: str) -> None:
    assert failure(replies) == kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("EXECABORT Transaction discarded because of previous errors.", "refused"),
        ("EXECABORT Transaction discarded because of: OOM command not allowed when …", "memory"),
        ("READONLY You can't write against a read only replica.", "refused"),
        ("LOADING Redis is loading the dataset in memory", "refused"),
        ("MOVED 3999 127.0.0.1:6381", "refused"),
        ("ERR EXEC without MULTI", "unknown"),
        ("SOMETHING new", "unknown"),
    ],
)
def test_an_error_in_place_of_the_results_is_read_by_its_code(line: str, kind: str) -> None:
    assert failure([b"OK", b"QUEUED", b"QUEUED", an_error(line)]) == kind


def test_the_results_of_a_transaction() -> None:
    assert results([b"OK", b"QUEUED", b"QUEUED", [1, NO]], 2) == [1, NO]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.OutOfMemoryError("command not allowed"), "OOM"),
        (exceptions.NoPermissionError("no"), "NOPERM"),
        (exceptions.ReadOnlyError("no"), "READONLY"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), "WRONGTYPE"),
        (exceptions.ResponseError("MISCONF no"), "MISCONF"),
        (exceptions.ResponseError("unknown command"), ""),
        (exceptions.ResponseError(""), ""),
    ],
)
def test_the_codes_that_the_client_drops_are_found(error: Exception, code: str) -> None:
    assert server_error(error).code == code


def test_a_limit_is_read() -> None:
    assert read_limit(b'{"queued_max":5,"markers_max":null,"reason":"x"}') == Limit(5, None)
    assert read_limit(b'{"markers_max":18446744073709551615}') == Limit(None, 2**64 - 1)
    for value in (b"", b"5", b"[]", b'{"queued_max":-1}', b'{"queued_max":"5"}', b'{"queued_max":true}', b"\xff"):
        assert read_limit(value) is None


def test_the_longest_selector_counts() -> None:
    known = Limits()
    known.learn([b"*", b'{"queued_max":10,"markers_max":99}', b"a:*", b'{"queued_max":5}', b"a:b:*", b"{}"])
    assert known.of("x") == Limit(10, 99)
    assert known.of("a:1") == Limit(5, 99)
    assert known.of("a:c:1:2") == Limit(5, 99)
    assert known.of("a:b:1") == Limit(None, 99)
    known.learn({b"a:*": b'{"queued_max":5}'})
    assert (known.of("a"), known.of("b:a:"), known.of("a:")) == (None, None, Limit(5))
    known.learn([])
    assert known.of("a:1") is None
