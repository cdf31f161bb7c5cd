"""The base of crystals that wrap another one: it passes on the name, the size, the accepted files and the secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from cantrip_actors.crystal.query import AnsweringCrystal
from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.file import File
from cantrip_actors.terms.server_tools import ServerTool


class CrystalWrapper:
    """A crystal that wraps another one. `name` is a prefix to the inner crystal's name."""

    def __init__(self, crystal: Crystal, name: str = "") -> None:
        self.crystal = crystal
        self.name: str = f"{name}{get_crystal_name(crystal)}"
        window = getattr(crystal, "context_window", None)
        self.context_window: int | None = window if isinstance(window, int) else None
        self.image_tokens: Callable[[File], int] | None = getattr(crystal, "image_tokens", None)
        self.why_not: Callable[[File], str | None] | None = getattr(crystal, "why_not", None)
        self.has_prices: bool | None = getattr(crystal, "has_prices", None)

    def keep_connections(self) -> AbstractAsyncContextManager[object] | None:
        """Return the block of the inner crystal."""
        return self.crystal.keep_connections() if isinstance(self.crystal, AnsweringCrystal) else None

    def check_server_tools(self, tools: Sequence[ServerTool]) -> None:
        """Raise InvalidCantrip if the crystal does not accept one of the tools."""
        check = getattr(self.crystal, "check_server_tools", None)
        if callable(check):
            check(tools)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The secrets of the inner crystal."""
        secrets = getattr(self.crystal, "secrets", None)
        return secrets if isinstance(secrets, Mapping) else {}

    def __repr__(self) -> str:
        return f"<crystal {self.name}>"
