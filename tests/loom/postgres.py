"""The tests' Postgres server, one a process of tests, started when it is first asked for.

Where no server is installed, tests that need one are skipped and say so; in CI that is a failure.
"""

import atexit
import functools
import os
import uuid

import pytest

from conformance.postgres import MISSING, Server, programs


@functools.cache
def running() -> Server:
    """The server."""
    if programs() is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    started = Server().__enter__()
    atexit.register(started.close)
    return started


def server() -> str:
    """The URL of a running server."""
    return running().url


def restart() -> None:
    """Stop the server as a crash would, and start it again."""
    running().stop()
    running().start()


def fresh() -> str:
    """Return the URL of an unused loom."""
    return f"{server()}&schema=loom_{uuid.uuid4().hex}"
