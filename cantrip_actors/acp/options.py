"""The choices that an editor offers for a session: which model, and how freely the entity may act.

A choice gives the session's entity another cantrip, recorded with its next intent (CALL-1); this module has no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal, get_args

from cantrip_actors import Cantrip, Circle, Refused, ask_first, wrap
from cantrip_actors.acp.jsonrpc import INVALID_PARAMS, RequestError
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.tool_server import ToolServer
from cantrip_actors.terms.wrapper import AskFirst, GateCall, Wrapper

Mode = Literal["auto", "ask", "read-only"]
Effort = Literal["none", "low", "medium", "high"]

_MODES: Final[Mapping[Mode, tuple[str, str]]] = {
    "auto": ("Auto", "Asks before the calls that the recipe wants a decision about"),
    "ask": ("Ask", "Asks before every call that can change something"),
    "read-only": ("Read only", "Refuses every call that can change something"),
}


@dataclass(frozen=True, slots=True)
class Choices:
    """The chosen options. `model` names one of the cantrip's crystals, None its own; `effort` None is the recipe's."""

    model: str | None = None
    mode: Mode = "auto"
    effort: Effort | None = None

    def change(self, cantrip: Cantrip, option: str, value: Any) -> Choices:
        """Return the choices with one changed. Raises RequestError for an option or a value that is not offered."""
        offered = next((listed for listed in config_options(cantrip, self) if listed["id"] == option), None)
        if offered is None:
            raise RequestError(INVALID_PARAMS, f"configId: no option is called {option!r}")
        values = [choice["value"] for choice in offered["options"]]
        if value not in values:
            raise RequestError(INVALID_PARAMS, f"value: expected one of {', '.join(values)}, got {value!r}")
        match option:
            case "model":
                return replace(self, model=None if value == get_crystal_name(cantrip.crystal) else value)
            case "mode":
                return replace(self, mode=value)
            case _:
                return replace(self, effort=None if value == "default" else value)


def _list_models(cantrip: Cantrip) -> list[str]:
    own = get_crystal_name(cantrip.crystal)
    return [own, *(name for name in cantrip.crystals if isinstance(name, str) and name != own)]


def list_choices(cantrip: Cantrip) -> Iterator[Choices]:
    """Yield all combinations of the options, that of a new session first."""
    others = _list_models(cantrip)[1:]
    for mode, model, effort in product(get_args(Mode), (None, *others), (None, *get_args(Effort))):
        yield Choices(model, mode, effort)


def config_options(cantrip: Cantrip, choices: Choices) -> list[dict[str, Any]]:
    """Return all options with their present values."""
    models = _list_models(cantrip)
    own = models[0]
    efforts = ["default", *get_args(Effort)]
    return [
        _select("mode", "Mode", "mode", choices.mode, {mode: name for mode, (name, _) in _MODES.items()}),
        _select("model", "Model", "model", choices.model or own, {name: name for name in models}),
        _select(
            "thought_level",
            "Thinking",
            "thought_level",
            choices.effort or "default",
            {effort: effort.capitalize() for effort in efforts},
        ),
    ]


def _select(id: str, name: str, category: str, current: str, options: Mapping[str, str]) -> dict[str, Any]:
    choices = [{"value": value, "name": shown} for value, shown in options.items()]
    return {"id": id, "name": name, "category": category, "type": "select", "currentValue": current, "options": choices}


def modes(choices: Choices) -> dict[str, Any]:
    """Return the modes, for editors without support for options."""
    available = [{"id": mode, "name": name, "description": text} for mode, (name, text) in _MODES.items()]
    return {"currentModeId": choices.mode, "availableModes": available}


def with_choices(cantrip: Cantrip, choices: Choices) -> Cantrip:
    """Return the cantrip with the chosen options."""
    crystal = cantrip.crystal if choices.model is None else cantrip.crystals[choices.model]
    call = cantrip.call if choices.effort is None else replace(cantrip.call, effort=choices.effort)
    circle = cantrip.circle
    if choices.mode != "auto":
        gates: list[Any] = [_guard(gate, choices.mode) for gate in circle.gates]
        guard = _GUARDS[choices.mode]
        circle = replace_gates(circle, gates, [replace(server, guard=guard) for server in circle.servers])
    return replace(cantrip, crystal=crystal, call=call, circle=circle)


def _guard(gate: Gate, mode: Mode) -> Any:
    if gate.kind in ("done", "question", "delegate", "deferred") or gate.read_only or mode == "auto":
        return gate
    if mode == "ask":
        return gate if gate.ask_first is not None else ask_first(gate)
    return wrap(gate, pre=[refuse_changes], name="read-only")


def refuse_changes(call: GateCall) -> Refused:
    """Refuse a call: the editor's user has chosen a mode without changes."""
    return Refused(
        f"{call.gate} can change something, and the user has chosen to have nothing changed: say what you would do"
    )


_GUARDS: Final[Mapping[Mode, Wrapper]] = {
    "ask": Wrapper("ask_first", ask=AskFirst()),
    "read-only": Wrapper("read-only", pre=(refuse_changes,)),
}
"""The wrappers that the modes put around the tools of servers."""


def replace_gates(circle: Circle, gates: list[Any], servers: Sequence[ToolServer]) -> Circle:
    """Return a circle with other gates and other servers of tools."""
    return Circle(gates, circle.wards, circle.medium, circle.companion, circle.jail, servers)
