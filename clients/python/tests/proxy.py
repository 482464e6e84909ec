"""A proxy before Redis that loses requests and replies."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from typing import Optional

from support import Server


class Proxy:
    """Passes bytes on, over a unix socket. A loss closes the connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="seriatim-proxy-")
        path = os.path.join(self._folder.name, "proxy.sock")
        self.url = f"unix://{path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._sockets: list[socket.socket] = []
        self._lose_request: Optional[bytes] = None
        self._lose_reply: Optional[bytes] = None
        self._times = 0
        self._ends = False
        self._go = threading.Event()
        self._go.set()
        #: Set while a request is held back.
        self.is_holding = threading.Event()
        #: The number of losses.
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._listener.close()
        _close(*self._sockets)
        self._folder.cleanup()

    def lose_request_with(self, word: bytes, times: int = 1) -> None:
        """Closes the connection at the next request with this word. Redis does not get the request."""
        self._lose_request, self._times = word, times

    def lose_reply_to(self, word: bytes) -> None:
        """Closes the connection when Redis has answered the next request with this word."""
        self._lose_reply, self._times = word, 1

    def lose_all_after_reply_to(self, word: bytes) -> None:
        """As `lose_reply_to`. Then there is no connection any more."""
        self._ends = True
        self.lose_reply_to(word)

    def hold(self) -> None:
        """Holds all requests back until `go_on`."""
        self.is_holding.clear()
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                redis = socket.socket(socket.AF_UNIX)
                redis.connect(self._server.path)
                self._sockets += [client, redis]
                threading.Thread(target=self._serve, args=(client, redis), daemon=True).start()

    def _serve(self, client: socket.socket, redis: socket.socket) -> None:
        """Passes requests on. Another thread passes the replies back."""
        loses = threading.Event()
        threading.Thread(target=self._reply, args=(client, redis, loses), daemon=True).start()
        with contextlib.suppress(OSError):
            while True:
                request = client.recv(1 << 20)
                if request and not self._go.is_set():
                    self.is_holding.set()
                    self._go.wait()
                if not request or self._is_lost(self._lose_request, request):
                    break
                if self._is_lost(self._lose_reply, request):
                    loses.set()
                redis.sendall(request)
        _close(client, redis)

    def _reply(self, client: socket.socket, redis: socket.socket, loses: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while True:
                replies = redis.recv(1 << 20)
                if not replies or loses.is_set():
                    break
                client.sendall(replies)
        _close(client, redis)

    def _is_lost(self, word: Optional[bytes], request: bytes) -> bool:
        if word is None or word not in request or self._times == 0:
            return False
        self._times -= 1
        if self._ends:
            os.unlink(self._listener.getsockname())
        self.lost += 1
        return True


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
