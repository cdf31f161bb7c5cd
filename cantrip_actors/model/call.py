"""The call: the immutable conditioning of a cantrip (CALL-1 … CALL-5).

System prompt and hyperparameters, fixed when the cantrip is made. The third part of a call, the gates as text, is
derived from the circle (CALL-3) and so lies in `circle.py`. What changes from turn to turn is never part of a call: it
is circle state, reached through gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NoReturn

from cantrip_actors.model.errors import ImmutableError, InvalidCantrip
from cantrip_actors.model.messages import ToolChoice, tool_choice_of

__all__ = ["Call"]


@dataclass(frozen=True)
class _Conditioning:
    system_prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    require_done_tool: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise InvalidCantrip(f"system_prompt: expected text, got {type(self.system_prompt).__name__}")
        for name, low, high in (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and low <= value <= high):
                raise InvalidCantrip(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
        whole = isinstance(self.max_tokens, int) and not isinstance(self.max_tokens, bool)
        if self.max_tokens is not None and not (whole and self.max_tokens >= 1):
            raise InvalidCantrip(f"max_tokens: expected a whole number >= 1, got {self.max_tokens!r}")
        tool_choice_of(self.tool_choice)
        if not isinstance(self.require_done_tool, bool):
            raise InvalidCantrip(f"require_done_tool: expected true or false, got {self.require_done_tool!r}")
        object.__setattr__(self, "stop", _stop(self.stop))
        object.__setattr__(self, "options", _options(self.options))


def _stop(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):  # one alone is what people write
        return (stop,)
    stops = tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if not all(isinstance(one, str) for one in stops):
        raise InvalidCantrip(f"stop: expected texts, got {stop!r}")
    return stops


def _options(options: object) -> Mapping[str, Any]:
    """A copy that nobody can change; what has a field of its own has to come by that field, where it is checked."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidCantrip(f"options: expected a mapping from names to values, got {options!r}")
    for own in fields(_Conditioning):
        if own.name in options:
            raise InvalidCantrip(f"options: {own.name} is a field of Call itself: Call({own.name}=…)")
    return MappingProxyType(dict(options))


class Call(_Conditioning):
    """How a crystal is conditioned, before any intent (CALL-1).

    `system_prompt` is the first message of every context, unchanged (CALL-2). `temperature` (0 … 2), `top_p` (0 … 1),
    `max_tokens` (of one utterance) and `stop` are sampling; `options` goes to the provider as it is. `tool_choice` is
    "auto", "required" (CRYSTAL-5) or "none". With `require_done_tool` a text-only answer does not end the entity
    (D-004).

    Raises InvalidCantrip for values out of range, ImmutableError when a field is set afterwards.
    """

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"call is immutable: cannot set {name}; make a new cantrip with a new Call (CALL-1)")

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(f"call is immutable: cannot delete {name}; make a new cantrip with a new Call (CALL-1)")

    def sampling(self) -> dict[str, Any]:
        """What a crystal needs beside messages and tools: the hyperparameters that were set."""
        set_ = {
            name: getattr(self, name)
            for name in ("temperature", "top_p", "max_tokens", "stop")
            if getattr(self, name) not in (None, ())
        }
        return {**set_, **self.options}

    def as_json(self) -> dict[str, Any]:
        """The call as the loom keeps it (CALL-4): only what was set."""
        kept: dict[str, Any] = {}
        if self.system_prompt is not None:
            kept["system_prompt"] = self.system_prompt
        if self.tool_choice is not None:
            kept["tool_choice"] = self.tool_choice
        if self.require_done_tool:
            kept["require_done_tool"] = True
        return kept | self.sampling()
