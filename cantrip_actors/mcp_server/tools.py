"""The tools of the server: for each cantrip `NAME`, `NAME_send` and `NAME_fork`, in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mcp import types
from pydantic import BaseModel, ConfigDict, Field

from cantrip_actors import Cantrip, InvalidCantrip

LONGEST: Final = 128
"""The maximum characters of a tool's name (SEP-986)."""
DESCRIPTION: Final = 2_000


class _ToolArguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    intent: str = Field(min_length=1, description="The intent of the entity.")
    context: dict[str, Any] = Field(default_factory=dict, description="Data for the entity, beside the intent.")


class CastArguments(_ToolArguments):
    """Arguments of `NAME`."""


class SendArguments(_ToolArguments):
    """Arguments of `NAME_send`."""

    entity_id: str = Field(default="", description="The entity, from an earlier result; left out: a new one.")


class ForkArguments(_ToolArguments):
    """Arguments of `NAME_fork`."""

    at: str = Field(min_length=1, description="The id of a turn; or that of an entity, for its last turn.")


class ContinueArguments(BaseModel):
    """Arguments of `continue`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, description="The `id` in `waits` of the earlier result.")


CONTINUE: Final = "continue"
"""The tool that returns the result of a call which waited for a person."""

CONTINUE_TOOL: Final = types.Tool(
    name=CONTINUE,
    description="Return the result of an earlier call that waited for a person. If it still waits, say so again.",
    input_schema=ContinueArguments.model_json_schema(),
    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)

_KINDS: Final[Mapping[str, tuple[type[_ToolArguments], str, str, str]]] = {
    "cast": (CastArguments, "", "", "cast"),
    "send": (
        SendArguments,
        "_send",
        "Give an intent to a long-lived entity, which remembers what was said before. Without `entity_id`, begin one. ",
        "send",
    ),
    "fork": (ForkArguments, "_fork", "Continue from an earlier turn with a new long-lived entity. ", "cast"),
}
"""For each kind of tool: its arguments, the end of its name, the beginning of its description, the scope it needs."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: the name of its cantrip, its kind, and its definition."""

    cantrip: str
    kind: Literal["cast", "send", "fork"]
    arguments: type[_ToolArguments]
    scope: str
    tool: types.Tool


def offers_of(cantrips: Mapping[str, Cantrip]) -> dict[str, Offer]:
    """Return the tools of cantrips by their names, in order. Raises InvalidCantrip if two have one name."""
    offers: dict[str, Offer] = {}
    for name, cantrip in cantrips.items():
        for kind, (arguments, ending, purpose, scope) in _KINDS.items():
            called = re.sub(r"[^A-Za-z0-9._-]", "_", name)[: LONGEST - len(ending)] + ending
            if called == CONTINUE:
                raise InvalidCantrip(
                    f'"{name}" would make a tool called "{CONTINUE}", which every server has: rename it'
                )
            if called in offers:
                raise InvalidCantrip(
                    f'"{offers[called].cantrip}" and "{name}" both make a tool called "{called}": rename one of them'
                )
            tool = types.Tool(
                name=called,
                description=(purpose + _build_description(name, cantrip))[:DESCRIPTION],
                input_schema=arguments.model_json_schema(),
                output_schema=_build_output_schema(cantrip),
                annotations=_build_annotations(cantrip),
            )
            offers[called] = Offer(name, kind, arguments, scope, tool)  # type: ignore[arg-type]  # the keys of _KINDS
    return offers


def _build_annotations(cantrip: Cantrip) -> types.ToolAnnotations:
    """Return the hints for clients: a tool only reads if every gate of its cantrip does."""
    gates = [gate for gate in cantrip.circle.open_gates.values() if gate.kind == "function"]
    is_safe = not cantrip.circle.has_programs and not cantrip.circle.servers and all(gate.read_only for gate in gates)
    is_open = bool(cantrip.circle.risks["way_out"] or cantrip.circle.risks["untrusted_content"])
    return types.ToolAnnotations(read_only_hint=is_safe, open_world_hint=is_open)


def prompts_of(offers: Iterable[Offer]) -> dict[str, types.Prompt]:
    """Return a prompt for each tool that begins an entity, by its name: a person picks it and writes the intent."""
    fields = CastArguments.model_json_schema()["properties"]
    return {
        offer.tool.name: types.Prompt(
            name=offer.tool.name,
            description=offer.tool.description,
            arguments=[types.PromptArgument(name="intent", description=fields["intent"]["description"], required=True)],
        )
        for offer in offers
        if offer.kind == "cast"
    }


def make_prompt(name: str, intent: str) -> types.GetPromptResult:
    """Return the message of a prompt, which has the client's model call the tool."""
    text = f"Call the tool {name} with exactly this intent, and report its result:\n\n{intent}"
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(messages=[message])


def _build_description(name: str, cantrip: Cantrip) -> str:
    """Return the description of a cantrip for clients: its own, and its gates. Its system prompt is private."""
    gates = ", ".join(definition.name for definition in cantrip.circle.definitions if definition.name != "done")
    parts = [
        cantrip.description or f"Have the cantrip {name} achieve an intent.",
        f"Its gates: {gates}." if gates else "",
    ]
    return " ".join(part for part in parts if part)


def _build_output_schema(cantrip: Cantrip) -> dict[str, Any]:
    result, definitions = _build_result_schema(cantrip)
    schema = {
        "type": "object",
        "properties": {
            "result": result,
            "entity_id": {"type": "string"},
            "turns": {"type": "integer"},
            "tokens": {"type": "integer"},
            "cost": {"type": "number", "description": "In US dollars, the entity's children included."},
            "cut_off": {
                "enum": ["length", "filter"],
                "description": "Why the provider ended the answer before the model did.",
            },
            "waits": {"type": "object", "description": "In place of a result: the requests that a person decides."},
        },
        "required": ["entity_id", "turns", "tokens", "cost"],
        "anyOf": [{"required": ["result"]}, {"required": ["waits"]}],
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _build_result_schema(cantrip: Cantrip) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of the answer, and the definitions that it refers to.

    Without the obligation to call `done` (D-004), a plain text also ends an entity: then the schema allows anything.
    """
    done = cantrip.circle.open_gates.get("done")
    if done is None or not cantrip.requires_done:
        return {}, {}
    parameters = dict(done.parameters)
    definitions = parameters.pop("$defs", {})
    fields = parameters.get("properties", {})
    if "answer" not in fields and len(fields) > 1 and done.function is not None:
        return parameters, definitions
    return dict(fields.get("answer") or next(iter(fields.values()), {})), definitions
