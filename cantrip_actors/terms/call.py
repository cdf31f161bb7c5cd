"""The call: the immutable conditioning of a cantrip (CALL-1 … CALL-5).

It holds the system prompt and the hyperparameters, fixed to the bottom when the cantrip is made. The third part of a
call, the gates as text, is derived from the circle (CALL-3), in `circle.py`. State that changes from turn to turn is
never part of a call: it belongs to the circle, and an entity reaches it through gates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NoReturn

from cantrip_actors.terms.arguments import check, check_choice, check_kind, check_whole, is_number, is_text, read_texts
from cantrip_actors.terms.errors import ImmutableError, InvalidCantrip
from cantrip_actors.terms.json_schema import find_dangling_reference, find_schema_fault
from cantrip_actors.terms.messages import ToolChoice, make_encodable, parse_tool_choice
from cantrip_actors.terms.server_tools import ServerTool, parse_server_tools
from cantrip_actors.terms.value import Immutable

TYPED: Final = (
    "parallel_tool_calls",
    "service_tier",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
    "seed",
    "verbosity",
    "reasoning_summary",
)
"""Settings that two families share."""

_SAMPLING: Final = ("temperature", "top_p", "max_tokens", "stop", "effort", *TYPED)

DEEPEST: Final = 100
"""Levels of nesting that an option may have."""


@dataclass(frozen=True, repr=False)
class _Conditioning(Immutable):
    system_prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    require_done_tool: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    server_tools: tuple[ServerTool, ...] = ()
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: int | None = None
    seed: int | None = None
    verbosity: str | None = None
    reasoning_summary: str | None = None
    effort: str | None = None
    output_schema: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        check_kind("system_prompt", self.system_prompt, str | None, "text", InvalidCantrip)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            fits = value is None or (is_number(value) and low <= value <= high)
            check(fits, name, f"a number from {low:g} to {high:g}", value, InvalidCantrip)
        parse_tool_choice(self.tool_choice)
        object.__setattr__(self, "stop", _stop(self.stop))
        self._check_typed()
        self._read_options()
        expected = 'a level such as "none", "low" or "high"'
        check(self.effort is None or is_text(self.effort), "effort", expected, self.effort, InvalidCantrip)
        object.__setattr__(self, "output_schema", _freeze_schema(self.output_schema))
        object.__setattr__(self, "server_tools", parse_server_tools(self.server_tools))

    def _read_options(self) -> None:
        """Freeze the options. The settings that crystals take among their options are fields here, and are moved."""
        options = _freeze_options(self.options)
        for name in _ALSO_OPTIONS:
            if name in options:
                if getattr(self, name) is not None:
                    raise InvalidCantrip(f"options: {name} is given twice: leave it out of options, and keep {name}=…")
                object.__setattr__(self, name, options[name])
        rest = {name: value for name, value in options.items() if name not in _ALSO_OPTIONS}
        object.__setattr__(self, "options", MappingProxyType(rest))

    def _check_typed(self) -> None:
        check_kind("require_done_tool", self.require_done_tool, bool, "true or false", InvalidCantrip)
        check_kind("parallel_tool_calls", self.parallel_tool_calls, bool | None, "true or false", InvalidCantrip)
        for name, least, most in (("max_tokens", 1, math.inf), ("logprobs", 0, 20), ("seed", 0, 2**63 - 1)):
            check_whole(name, getattr(self, name), least, most, InvalidCantrip, or_none=True)
        for name, words in _WORDS.items():
            check_choice(name, getattr(self, name), (*words, None), InvalidCantrip)
        tier = self.service_tier
        check(tier is None or is_text(tier), "service_tier", "text", tier, InvalidCantrip)


_ALSO_OPTIONS: Final = ("effort", "output_schema")
_RANGES: Final = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
)
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "verbosity": ("low", "medium", "high"),
    "reasoning_summary": ("none", "auto", "concise", "detailed"),
}


def _stop(stop: object) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else stop  # users often write a single string
    return read_texts("stop", texts, "texts that are not empty", InvalidCantrip)


def _freeze_options(options: Any) -> Mapping[str, Any]:
    """Return a read-only copy of the options. Refuse settings that have a field, because fields are checked."""
    fits = isinstance(options, Mapping) and all(isinstance(name, str) for name in options)
    check(fits, "options", "a mapping from names to values", options, InvalidCantrip)
    for own in fields(_Conditioning):
        if own.name in options and own.name not in _ALSO_OPTIONS:
            raise InvalidCantrip(f"options: {own.name} is a field of Call itself: Call({own.name}=…)")
    return MappingProxyType({name: _freeze(value, f"options: {name}") for name, value in options.items()})


def _freeze_schema(schema: object) -> Mapping[str, Any] | None:
    """Return a read-only copy of a schema.

    Raises InvalidCantrip for a schema that no answer can be checked against, before any answer is paid for.
    """
    if schema is None:
        return None
    check(isinstance(schema, Mapping), "output_schema", "a JSON Schema as an object", schema, InvalidCantrip)
    frozen: Mapping[str, Any] = _freeze(schema, "output_schema")
    thawed = _thaw(frozen)
    fault = find_schema_fault(thawed)
    if fault is None and (reference := find_dangling_reference(thawed)) is not None:
        fault = f"{reference!r} is nowhere in it; put what it refers to under $defs"
    if fault is not None:
        raise InvalidCantrip(f"output_schema: expected a valid JSON Schema: {fault}")
    return frozen


def _freeze(value: object, where: str, depth: int = 0) -> Any:
    """Return a JSON value as a read-only one: objects become read-only mappings, lists become tuples."""
    if depth > DEEPEST:
        raise InvalidCantrip(f"{where}: nested more than {DEEPEST} levels deep, or it contains itself")
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return MappingProxyType({name: _freeze(part, f"{where}.{name}", depth + 1) for name, part in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(part, f"{where}[{n}]", depth + 1) for n, part in enumerate(value))
    is_text = isinstance(value, str) and make_encodable(value) == value
    if is_text or value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise InvalidCantrip(f"{where}: expected a JSON value, got {value!r:.200}")


def _thaw(value: Any) -> Any:
    """Return a frozen JSON value as the dicts and lists that an encoder accepts."""
    if isinstance(value, Mapping):
        return {name: _thaw(part) for name, part in value.items()}
    return [_thaw(part) for part in value] if isinstance(value, tuple) else value


_Conditioning.__init__.__qualname__ = "Call.__init__"  # a TypeError for an unknown setting shows it


class Call(_Conditioning):
    """How a crystal is conditioned, before any intent (CALL-1).

    `system_prompt` is the first message of every context, unchanged (CALL-2). `temperature` (0 … 2), `top_p` (0 … 1),
    `max_tokens` (of one utterance) and `stop` are sampling; `options` are JSON values for the provider. `tool_choice`
    is "auto", "required" (CRYSTAL-5), "none", or "gate:NAME" for the gate that every answer has to call. With
    `require_done_tool` a text-only answer does not end the entity (D-004).

    `server_tools` are tools that the provider runs itself, beside the gates: `[web_search(max_uses=3)]`.

    These are translated for each provider. Those that a provider does not support are listed in `metadata["left_out"]`
    of each answer: `parallel_tool_calls` (False for one call at a time), `service_tier`, `frequency_penalty` and
    `presence_penalty` (-2 … 2), `logprobs` (a number: return the log probability of each token and of that many
    alternatives), `seed`, `verbosity` ("low", "medium", "high"), `reasoning_summary` ("none", "auto", "concise",
    "detailed"), `effort` (how much to think: "none", "minimal", "low", "medium", "high", "xhigh", "max", or a level of
    the provider's). `output_schema` is a JSON Schema that a text answer follows; the crystal asks again until it does.

    Raises InvalidCantrip for values out of range, ImmutableError when a field is set afterwards.
    """

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"call is immutable: cannot set {name}; make a new cantrip with a new Call (CALL-1)")

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(f"call is immutable: cannot delete {name}; make a new cantrip with a new Call (CALL-1)")

    @cached_property
    def _set(self) -> Mapping[str, Any]:
        return {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None and value != ()}

    def sampling(self) -> dict[str, Any]:
        """Return a copy of the hyperparameters that were set: what a crystal needs besides messages and tools."""
        set_ = dict(self._set)
        if self.output_schema is not None:
            set_["output_schema"] = _thaw(self.output_schema)
        if self.server_tools:
            set_["server_tools"] = [tool.as_json() for tool in self.server_tools]
        return set_ | _thaw(self.options) if self.options else set_

    def as_json(self) -> dict[str, Any]:
        """Return the call as the loom stores it (CALL-4): only the fields that were set."""
        fields: dict[str, Any] = {}
        if self.system_prompt is not None:
            fields["system_prompt"] = self.system_prompt
        if self.tool_choice is not None:
            fields["tool_choice"] = self.tool_choice
        if self.require_done_tool:
            fields["require_done_tool"] = True
        return fields | self.sampling()
