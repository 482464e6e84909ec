from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import Server, server


@pytest.fixture(scope="session")
def shared() -> Iterator[Server]:
    with server() as found:
        yield found


@pytest.fixture
def redis_server(shared: Server) -> Server:
    """An empty Redis."""
    shared.empty()
    return shared
