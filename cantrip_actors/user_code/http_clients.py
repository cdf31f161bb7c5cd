"""HTTP clients of users: those of httpx, and of its successor httpx2, which has the same interface and other classes.

Neither library is imported here, because a user who has a client has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

LIBRARIES: Final = ("httpx", "httpx2")


def is_http_client(value: object) -> bool:
    """Return whether a value is an `AsyncClient` of one of the libraries."""
    return isinstance(value, tuple(library.AsyncClient for library in _list_imported()))


def get_http_errors(*names: str) -> tuple[type[Exception], ...]:
    """Return the exceptions of these names, of each library that is imported, for an `except`."""
    return tuple(getattr(library, name) for library in _list_imported() for name in names)


def _list_imported() -> Iterator[Any]:
    return (library for name in LIBRARIES if (library := sys.modules.get(name)) is not None)
