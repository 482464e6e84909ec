"""Sends commands over connections of the package `redis`, each command once.

The client's own way of sending may repeat a command after a loss of the connection. Then an emit could be
queued twice. So the transports here write to a connection of the client's pool, and read the replies.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable
from typing import Any, Callable, Optional, TypeVar, Union

import redis
import redis.asyncio
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._flows import Command, Flow, Sleep
from ._replies import ServerError, TransportError

T = TypeVar("T")
#: Errors of the server that the client treats as errors of the connection.
_OF_SERVER = (exceptions.AuthenticationError, exceptions.BusyLoadingError, exceptions.MasterDownError)
_CODES: list[tuple[type[Exception], str]] = [
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ExecAbortError, "EXECABORT"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
]
#: The shortest time limit in seconds for a reply to a `Reader`, and the longest one for its connection.
READER_TIMEOUT = 5.0
_UPPER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def server_error(error: Exception) -> ServerError:
    """Returns the code and the text of an error that Redis has returned. The client drops some codes."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ServerError(code, str(error))
    code, _, text = str(error).partition(" ")
    return ServerError(code, text) if code and _UPPER.issuperset(code) else ServerError("", str(error))


def plain(reply: Any) -> Any:
    """Returns a reply whose errors are `ServerError`."""
    if isinstance(reply, list):
        return [plain(one) for one in reply]
    return server_error(reply) if isinstance(reply, Exception) else reply


def _arguments_of_get(pool: Any) -> tuple[str, ...]:
    """Early versions of the client want the name of a command."""
    parameter = inspect.signature(pool.get_connection).parameters.get("command_name")
    return ("MULTI",) if parameter is not None and parameter.default is inspect.Parameter.empty else ()


def repeats(client: Any) -> bool:
    """Returns whether a client, or a pipeline, repeats a transaction after a loss of the connection."""
    retry = client.connection_pool.connection_kwargs.get("retry")
    if retry is None:
        return bool(client.connection_pool.connection_kwargs.get("retry_on_timeout"))
    count = getattr(retry, "get_retries", None)
    return bool(count() if count is not None else getattr(retry, "_retries", 0))


def _unsent(error: BaseException) -> TransportError:
    return TransportError(str(error) or type(error).__name__, sent=False)


def _lost(error: BaseException) -> TransportError:
    return TransportError(str(error) or type(error).__name__, sent=True)


def run(flow: Flow[T], exchange: Callable[[list[Command]], list[Any]]) -> T:
    """Runs a flow to its end. `exchange` sends its commands."""
    reply: Any = None
    error: Optional[TransportError] = None
    while True:
        try:
            request = flow.send(reply) if error is None else flow.throw(error)
        except StopIteration as over:
            result: T = over.value
            return result
        reply = error = None
        if isinstance(request, Sleep):
            time.sleep(request.seconds)
            continue
        try:
            reply = exchange(request.commands)
        except TransportError as failed:
            error = failed


async def run_async(flow: Flow[T], exchange: Callable[[list[Command]], Awaitable[list[Any]]]) -> T:
    """As `run`, with asyncio."""
    reply: Any = None
    error: Optional[TransportError] = None
    while True:
        try:
            request = flow.send(reply) if error is None else flow.throw(error)
        except StopIteration as over:
            result: T = over.value
            return result
        reply = error = None
        if isinstance(request, Sleep):
            await asyncio.sleep(request.seconds)
            continue
        try:
            reply = await exchange(request.commands)
        except TransportError as failed:
            error = failed


class Reader:
    """A blocking connection outside of the pool. It connects when it is used."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def exchange(self, commands: list[Command]) -> list[Any]:
        """Sends commands once and returns their replies. After an error of the connection there are fewer."""
        replies: list[Any] = []
        is_whole = False
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            for _ in commands:
                replies.append(self._read())
            is_whole = True
        except _OF_SERVER as error:
            replies.append(server_error(error))
        except (exceptions.RedisError, OSError) as error:
            raise _lost(error) from None
        finally:
            # A late reply must not meet another call.
            if not is_whole:
                self.close()
        return replies

    def _read(self) -> Any:
        try:
            return plain(self._connection.read_response(disable_decoding=True, disconnect_on_error=False))
        except exceptions.ResponseError as error:
            return server_error(error)

    def close(self) -> None:
        self._connection.disconnect()


class AsyncReader:
    """As `Reader`, with asyncio."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def exchange(self, commands: list[Command]) -> list[Any]:
        """As `Reader.exchange`.

        Cancellation: the connection is closed, and the outcome of the commands is unknown.
        """
        replies: list[Any] = []
        is_whole = False
        try:
            await self._connection.send_packed_command(self._connection.pack_commands(commands))
            for _ in commands:
                replies.append(await self._read())
            is_whole = True
        except _OF_SERVER as error:
            replies.append(server_error(error))
        except (exceptions.RedisError, OSError) as error:
            raise _lost(error) from None
        finally:
            if not is_whole:
                await self.close()
        return replies

    async def _read(self) -> Any:
        try:
            return plain(await self._connection.read_response(disable_decoding=True, disconnect_on_error=False))
        except exceptions.ResponseError as error:
            return server_error(error)

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class Transport:
    """Blocking connections."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.pool: Any = client.connection_pool
        self._get = _arguments_of_get(self.pool)

    def exchange(self, commands: list[Command]) -> list[Any]:
        """Sends commands once, over a connection of the pool. See `Reader.exchange`."""
        try:
            connection: Any = self.pool.get_connection(*self._get)
        except (exceptions.RedisError, OSError) as error:
            raise _unsent(error) from None
        try:
            return Reader(connection).exchange(commands)
        finally:
            self.pool.release(connection)

    def reader(self) -> Reader:
        """Returns a connection of its own, which may block for some time."""
        return Reader(self.pool.connection_class(**_patient(self.pool, Retry(NoBackoff(), 0))))


class AsyncTransport:
    """Connections of asyncio."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self.pool: Any = client.connection_pool
        self._get = _arguments_of_get(self.pool)

    async def exchange(self, commands: list[Command]) -> list[Any]:
        """Sends commands once, over a connection of the pool. See `AsyncReader.exchange`."""
        try:
            connection: Any = await self.pool.get_connection(*self._get)
        except (exceptions.RedisError, OSError) as error:
            raise _unsent(error) from None
        try:
            return await AsyncReader(connection).exchange(commands)
        finally:
            await self.pool.release(connection)

    def reader(self) -> AsyncReader:
        """Returns a connection of its own, which may block for some time."""
        return AsyncReader(self.pool.connection_class(**_patient(self.pool, _async_retry())))


def _patient(pool: Any, retry: Any) -> dict[str, Any]:
    """Returns the settings of a pool for a connection that may block longer than the caller's timeout allows."""
    # The pool's own state in these settings must not reach a connection outside of the pool.
    settings = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith("maint_")}
    settings.update(socket_timeout=max(settings.get("socket_timeout") or 0, READER_TIMEOUT), retry=retry)
    settings["socket_connect_timeout"] = min(settings.get("socket_connect_timeout") or READER_TIMEOUT, READER_TIMEOUT)
    return settings


def _settings(timeout: float, connections_max: int, blocks: float) -> dict[str, Any]:
    return {
        "max_connections": connections_max,
        "timeout": timeout,
        "socket_timeout": timeout + blocks,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
    }


def connect(
    redis_: Union[str, redis.Redis], timeout: float, connections_max: int, blocks: float
) -> tuple[Transport, bool]:
    """Returns a transport, and whether the emitter owns its client. A command may block for the seconds `blocks`."""
    if isinstance(redis_, str):
        pool = redis.BlockingConnectionPool.from_url(_url(redis_), **_settings(timeout, connections_max, blocks))
        return Transport(redis.Redis(connection_pool=pool)), True
    if isinstance(redis_, redis.Redis):
        _check_patience(redis_, blocks)
        return Transport(redis_), False
    raise TypeError(_wrong("redis.Redis", redis_))


def connect_async(
    redis_: Union[str, redis.asyncio.Redis], timeout: float, connections_max: int, blocks: float
) -> tuple[AsyncTransport, bool]:
    """As `connect`, with asyncio."""
    if isinstance(redis_, str):
        settings = _settings(timeout, connections_max, blocks)
        settings["retry"] = _async_retry()
        pool = redis.asyncio.BlockingConnectionPool.from_url(_url(redis_), **settings)
        return AsyncTransport(redis.asyncio.Redis(connection_pool=pool)), True
    if isinstance(redis_, redis.asyncio.Redis):
        _check_patience(redis_, blocks)
        return AsyncTransport(redis_), False
    raise TypeError(_wrong("redis.asyncio.Redis", redis_))


def _check_patience(client: Any, blocks: float) -> None:
    """Refuses a client that gives up before the wait for replicas ends."""
    patience = client.connection_pool.connection_kwargs.get("socket_timeout")
    if blocks and patience is not None and patience <= blocks:
        raise ValueError(
            f"the Redis client waits {patience:g} s for a reply, and wait_timeout is {blocks:g} s: "
            "give the client a longer socket_timeout"
        )


def _url(url: str) -> str:
    """The two ways to write the path of a socket mean the same."""
    return url[len("redis+") :] if url.startswith("redis+unix://") else url


def _async_retry() -> Any:
    from redis.asyncio.retry import Retry as AsyncRetry

    return AsyncRetry(NoBackoff(), 0)


def _wrong(wanted: str, found: Optional[object]) -> str:
    return f"an emitter takes a Redis URL or a {wanted}, not {type(found).__module__}.{type(found).__name__}"
