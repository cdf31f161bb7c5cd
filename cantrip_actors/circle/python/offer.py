"""Python as an offer: known by its name wherever circles are, and had where the interpreter is installed."""

from __future__ import annotations

from cantrip_actors.circle.medium import Medium
from cantrip_actors.terms.errors import InvalidCantrip

__all__ = ["make"]


def make() -> Medium:
    """The medium. Raises InvalidCantrip, naming the extra, where the interpreter is not installed."""
    try:
        from cantrip_actors.circle.python.medium import PythonMedium
    except ModuleNotFoundError as missing:
        if missing.name != "pydantic_monty":
            raise
        raise InvalidCantrip(
            'medium "python" needs the interpreter Monty: pip install "cantrip-actors[python]"'
        ) from missing
    return PythonMedium()
