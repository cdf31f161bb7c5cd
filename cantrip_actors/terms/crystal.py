"""The crystal of a cantrip: any object with `invoke`, or a text "family:model" (SPEC 2.1)."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest

_WRAPPERS: Final = frozenset({"batch", "background"})
"""Families whose names go on with the name of another crystal: `batch:anthropic:MODEL`."""
FAMILY_NAMES: Final = _WRAPPERS | {
    *("scripted", "python", "replay"),
    *("anthropic", "openai", "openai-chat", "google", "openrouter", "xai", "mistral", "cohere"),
    *("bedrock", "vertex", "azure", "ollama", "local"),
}
"""The families of crystals that a text may name; `crystal/resolve.py` has a function for each."""


@runtime_checkable
class Crystal(Protocol):
    """Anything with `invoke`: messages in, a response out, no state between invocations (CRYSTAL-1).

    `invoke(messages, tools, tool_choice)` is awaited and returns a Response or its fields as a mapping. It takes any
    number of messages (CRYSTAL-2); if they are too long, it raises a CrystalError that `overflows`. An object may also
    have `name`, `context_window` (tokens), `call` (a `Call` for children that it drives, instead of their
    parent's), and take `options` (the call's sampling parameters); see `crystal/signature.py`. If an answer has no
    usage, its tokens are estimated. If `has_prices` is False, `max_cost` as the only bound is refused.
    `check_server_tools(tools)`, if the object has it, raises InvalidCantrip for each of `Call(server_tools=…)` that it
    does not support.
    """

    @property
    def invoke(self) -> Any:
        """Answer one query."""
        ...


def get_crystal_name(crystal: Crystal | str) -> str:
    """Return the name of a crystal in the loom: its `name`, else its class."""
    if isinstance(crystal, str):
        return crystal
    name = getattr(crystal, "name", None)
    return name if isinstance(name, str) else type(crystal).__name__


def check_crystal(what: str, crystal: object) -> None:
    """Raise InvalidCantrip for a value that is not a crystal; `what` names the argument that has the value."""
    if isinstance(crystal, str) and ":" in crystal.strip(":"):
        _check_family(what, crystal)
        return
    if isinstance(crystal, str) or not callable(getattr(crystal, "invoke", None)):
        raise InvalidCantrip(
            f"cantrip requires a crystal: {what}: expected 'family:model', which names a model, "
            f"or an object with invoke, got {crystal!r}{_hint(crystal)}"
        )


def _hint(crystal: object) -> str:
    """Return what to write in place of a value that is not a crystal."""
    if not isinstance(crystal, str):
        return "; as a script: scripted(…)" if callable(crystal) or isinstance(crystal, list) else ""
    family, slash, model = crystal.partition("/")
    if slash and family in FAMILY_NAMES:
        return f": did you mean '{family}:{model}'?"
    return f"; families: {', '.join(sorted(FAMILY_NAMES))}"


def _check_family(what: str, crystal: str) -> None:
    """Raise InvalidCantrip for a name whose family does not exist."""
    name = crystal
    while True:
        family, _, name = name.partition(":")
        if family not in FAMILY_NAMES:
            raise InvalidCantrip(
                f'{what}: no crystal family "{family}" (in "{crystal}"): {suggest_nearest(family, FAMILY_NAMES)}'
            )
        if family not in _WRAPPERS:
            return
