"""The input and the output of a crystal: messages, tool definitions, responses, usage.

This file knows no provider. An adapter translates between a provider's wire format and these values (CRYSTAL-6), and
only `Response.of` accepts loose shapes: the suite's `{"tool_calls": [{"gate": …, "args": …}]}` and what a user's own
crystal returns. After that everything is frozen and trusted.

A message can be read as `message.role` and as `message["role"]`: hand-written scripted policies tend to use the first
form, and policies ported from a provider's examples the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, overload

import msgspec
import orjson
from msgspec.structs import replace

from cantrip_actors.terms.arguments import render
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, suggest_nearest
from cantrip_actors.terms.exact_json import copy_json, read_arguments
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES, Image, select_files
from cantrip_actors.terms.usage import NO_USAGE, Usage
from cantrip_actors.terms.value import Value, is_mapping

__all__ = ["NO_USAGE", "Usage"]

Role = Literal["system", "user", "assistant", "tool"]
ToolChoice = str
"""Whether a crystal calls gates: "auto", "required", "none", or "gate:NAME" for the one gate that it has to call."""

_CHOICES: Final = ("auto", "required", "none")
_NAMED: Final = "gate:"

ALIASES: Mapping[str, str] = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
"""Names that are accepted only when a response is parsed (D-002)."""


class _Readable:
    """Allow `value["name"]` as well as `value.name` for the fields of a frozen value."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    def __getitem__(self, name: str) -> Any:
        if name in self.__struct_fields__:
            return getattr(self, name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field `name`, or `default` for an unknown name."""
        return getattr(self, name) if name in self.__struct_fields__ else default


class ToolCall(_Readable, Value, frozen=True, gc=False):
    """One gate call of an utterance (CRYSTAL-4).

    `id` is "" until the loop assigns one, if the crystal gave none. `args` is None if the arguments were not a JSON
    object; `raw` then holds what the crystal sent, and the call becomes an error observation. The crystal made a call
    that is `by_name` through `use_gate` (`on_demand.py`).
    """

    id: str
    gate: str
    args: Mapping[str, Any] | None
    raw: str | None = None
    by_name: bool = False

    @property
    def arguments(self) -> str:
        """The arguments as a JSON string."""
        return self.raw if self.args is None and self.raw is not None else as_text(self.args or {})

    @classmethod
    def of(cls, value: object) -> ToolCall:
        """Return a `ToolCall` from `{"id"?, "gate", "args"}` (args: an object, or a JSON string of one).

        Raises CrystalError if `value` is not a tool call or names no gate.
        """
        if not is_mapping(value):
            if not isinstance(value, ToolCall):
                kind = type(value).__name__
                raise CrystalError(f"crystal returned a tool call of type {kind}: expected {{'gate': …, 'args': …}}")
            if value.is_sound():
                return value
            value = {"id": value.id, "gate": value.gate, "args": value.raw if value.args is None else value.args}
        gate = value.get("gate") or value.get("name", value.get("gate"))
        if not isinstance(gate, str):
            raise CrystalError(f"crystal returned a tool call without a gate's name: {render(value)}")
        arguments = value.get("args", value.get("arguments"))
        args, raw = read_arguments(arguments), None
        if args is None or not _is_json(args):
            text = arguments.decode(errors="replace") if isinstance(arguments, bytes) else arguments
            args, raw = None, make_encodable(text if isinstance(text, str) else render(text))
        name = make_encodable(str(value.get("id") or ""))
        return cls(id=name, gate=make_encodable(ALIASES.get(gate, gate)), args=args, raw=raw)

    def is_sound(self) -> bool:
        """Whether the fields are what they should be: a crystal of the user's may have made this without `of`."""
        return (
            _is_text(self.id)
            and _is_text(self.gate)
            and self.gate not in ALIASES
            and (self.raw is None or _is_text(self.raw))
            and isinstance(self.by_name, bool)
            and (self.args is None or (isinstance(self.args, dict) and _is_json(self.args)))
        )


class Message(_Readable, Value, frozen=True, gc=False):
    """One message of a context.

    `content` is its text. An assistant message carries the `tool_calls` of its utterance and its `thinking`; a tool
    message the result of one call: `tool_call_id`, the `gate` that was called, and whether that failed. A user message
    with the answer of a child in the background has these, too: `tool_call_id` is the child's id.
    """

    role: Role
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    gate: str | None = None
    is_error: bool = False
    thinking: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The provider's own blocks, byte-exact, replayed to that provider only."""
    images: tuple[File, ...] = NO_IMAGES
    """Images and other files. `content` is still text; each image or file has its own position in it.

    An assistant message has the images that the entity made; `content` has their handles."""
    is_steering: bool = False
    """Whether a user message is no intent and no data of one: a steering message, or a reminder of the loop."""
    is_pinned: bool = False
    """Whether the message stays in the context when the turns around it are folded."""

    @property
    def files(self) -> tuple[File, ...]:
        """The members of `images` that are not images."""
        return select_files(self.images)


class ThreadMessage(Message, frozen=True, gc=False):
    """A message of an entity's thread, as it is read from the loom: who said it, when, and in which turn."""

    by: str = ""
    """The sender of an intent or a steering message, "" if it gave no name; else the entity's name, or its id."""
    at: str = ""
    """When it was recorded, ISO 8601 in UTC. What the entity says has the time at which its turn was committed."""
    turn_id: str | None = None
    """The turn that the message is part of, to fork from; None for an intent and for steering."""
    is_folded: bool = False
    """Whether a fold has taken it out of the entity's context."""


class ToolDefinition(_Readable, Value, frozen=True):
    """A gate as the crystal sees it: derived from the circle, never written by hand (CALL-3).

    A model is held to the parameters of one that `is_strict`, if its provider can do so.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_strict: bool = False


class Response(Value, frozen=True, gc=False):
    """A crystal's answer, normalised (CRYSTAL-6).

    At least one of `content`, `tool_calls`, `code` and `images` is not empty (CRYSTAL-3). `code` is the program for a
    code circle, `images` are those that the crystal made. `metadata` holds the provider's own fields (model,
    stop reason); nothing in the runtime needs them.

    A crystal that accepts a query and answers hours later (a batch) returns a `handle`, a JSON value, and nothing else.
    The runtime records it, and awaits `crystal.collect(handle)` for the answer, after a restart too.
    """

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = NO_USAGE
    thinking: str | None = None
    code: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    handle: Any = None
    images: tuple[Image, ...] = ()

    @classmethod
    def of(cls, value: object) -> Response:
        """Return a checked `Response` from what a crystal returned: a Response, its fields as a mapping, or bare text.

        Raises CrystalError if it breaks the contract: no content and no call (CRYSTAL-3), two calls with one id
        (CRYSTAL-4), unknown fields. The error has the usage that was reported.
        """
        if isinstance(value, str):
            value = {"content": value}
        if is_mapping(value) or not isinstance(value, Response):
            value = cls.from_fields(value)
        elif not value.is_sound():
            value = cls.from_fields({name: getattr(value, name) for name in cls.__struct_fields__})
        if not (value.content or value.tool_calls or value.code or value.images or value.handle is not None):
            raise CrystalError(
                "crystal returned neither content nor tool_calls: expected text, at least one tool call, or both",
                usage=value.usage,
            )
        ids = [call.id for call in value.tool_calls if call.id]
        if len(ids) != len(set(ids)):
            twice = next(i for i in ids if ids.count(i) > 1)
            problem = f'duplicate tool call ID "{twice}": every call of an utterance needs its own'
            raise CrystalError(problem, usage=value.usage)
        return value.copy()

    @classmethod
    def from_fields(cls, value: object) -> Response:
        """Return a `Response` from its fields as a mapping: well-formed, but possibly empty or with a repeated id.

        Raises CrystalError for fields that are unknown or of a wrong type.
        """
        if not is_mapping(value):
            kind = type(value).__name__
            raise CrystalError(f"crystal returned {kind}: expected a Response, a mapping with its fields, or text")
        fields: dict[str, Any] = {"usage": Usage.of(value.get("usage"))}
        try:
            for name, field in value.items():
                read = _READERS.get(name)
                if read is None:
                    if name != "usage":
                        names = cls.__struct_fields__
                        raise CrystalError(
                            f'crystal returned an unknown field "{name}": {suggest_nearest(str(name), names)}'
                        )
                elif field is not None:
                    fields[name] = read(name, field)
        except CrystalError as error:
            error.usage = fields["usage"]
            raise
        return cls(**fields)

    def copy(self) -> Response:
        """Return a response that shares no list and no mapping with this one, which its maker may change later."""
        if not (self.tool_calls or self.blocks or self.metadata or self.handle):
            return self
        return replace(
            self,
            tool_calls=tuple(
                call if not call.args else replace(call, args=copy_json(call.args)) for call in self.tool_calls
            ),
            blocks=tuple(map(copy_json, self.blocks)),
            metadata=copy_json(self.metadata),
            handle=copy_json(self.handle),
        )

    def is_sound(self) -> bool:
        """Whether the fields are what they should be: a crystal of the user's may have made this without `of`."""
        return (
            (self.content is None or _is_text(self.content))
            and (self.code is None or _is_text(self.code))
            and (self.thinking is None or _is_text(self.thinking))
            and isinstance(self.tool_calls, tuple)
            and all(isinstance(call, ToolCall) and call.is_sound() for call in self.tool_calls)
            and isinstance(self.usage, Usage)
            and self.usage.is_sound()
            and isinstance(self.blocks, tuple)
            and (not self.blocks or (all(map(is_mapping, self.blocks)) and _is_json(self.blocks)))
            and isinstance(self.metadata, dict)
            and (not self.metadata or _is_json(self.metadata))
            and (self.handle is None or _is_json(self.handle))
            and isinstance(self.images, tuple)
            and _are_pictures(self.images)
        )

    def with_ids(self, utterance: int) -> Response:
        """Return the response with an id for each call that has none: `call_<utterance>_<n>`, both counted from 1."""
        ids = {call.id for call in self.tool_calls}
        if "" not in ids:
            return self
        calls: list[ToolCall] = []
        for n, call in enumerate(self.tool_calls, 1):
            if call.id:
                calls.append(call)
                continue
            new_id = f"call_{utterance}_{n}"
            while new_id in ids:
                new_id += "_"
            ids.add(new_id)
            calls.append(replace(call, id=new_id))
        return replace(self, tool_calls=tuple(calls))


def _are_pictures(values: Sequence[object]) -> bool:
    return all(isinstance(value, Image) for value in values)


def _read_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise CrystalError(f"crystal returned {name} of type {type(text).__name__}: expected text or null")
    return make_encodable(text)


def _read_list(name: str, values: object) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)):
        raise CrystalError(f"crystal returned {name} of type {type(values).__name__}: expected a list or null")
    return values


def _read_calls(name: str, calls: object) -> tuple[ToolCall, ...]:
    return tuple([ToolCall.of(call) for call in _read_list(name, calls)])


def _read_blocks(name: str, blocks: object) -> tuple[Mapping[str, Any], ...]:
    if not all(map(is_mapping, _read_list(name, blocks))):
        raise CrystalError(f"crystal returned blocks that are not objects: {render(blocks):.200}")
    return tuple(_read_json(name, blocks))


def _read_images(name: str, images: object) -> tuple[Image, ...]:
    if not _are_pictures(_read_list(name, images)):
        raise CrystalError(f"crystal returned images that are not an Image: {render(images):.200}")
    return tuple(_read_list(name, images))


def _read_metadata(name: str, metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise CrystalError(f"crystal returned metadata of type {type(metadata).__name__}: expected a mapping or null")
    return dict(_read_json(name, metadata))


def _read_json(name: str, value: object) -> Any:
    if not _is_json(value):
        raise CrystalError(f"crystal returned {name} that are not JSON: {render(value):.200}")
    return value


_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "content": _read_text,
    "tool_calls": _read_calls,
    "thinking": _read_text,
    "code": _read_text,
    "blocks": _read_blocks,
    "metadata": _read_metadata,
    "handle": _read_json,
    "images": _read_images,
}
"""The functions that check and convert each field but the usage, which is read first: errors carry it. They take the
field's name and its value, which is not null."""


class Invocation(Sequence[Message]):
    """One query as the crystal received it: a sequence of messages that also knows its tools and tool choice.

    A scripted policy is called with it (`ctx[-1].content`, `len(ctx)`, `ctx.tools`), and `.invocations` of a scripted
    crystal holds them. It shares the entity's context instead of copying it.
    """

    __slots__ = ("messages", "tool_choice", "tools")

    def __init__(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice | None = None,
    ) -> None:
        self.messages = messages
        self.tools = tools
        self.tool_choice = tool_choice

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, str):
            if index in self.__slots__:
                return getattr(self, index)
            raise KeyError(index)
        return self.messages[index]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        tools = [tool.name for tool in self.tools]
        return f"<Invocation of {len(self.messages)} messages, tools={tools}, tool_choice={self.tool_choice!r}>"


def make_encodable(text: str) -> str:
    """Return the text with lone surrogates, which no encoding can carry (half an emoji), written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or make_encodable(value) == value)


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:
        return _is_wide_json(value)
    return True


def _is_wide_json(value: Any) -> bool:
    """Return whether a value that orjson refuses is JSON: integers over 64 bits are, and `as_text` writes them."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, dict) and depth < _DEEPEST and all(isinstance(key, str) for key in item):
            todo.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, (list, tuple)) and depth < _DEEPEST:
            todo.extend((part, depth + 1) for part in item)
        elif isinstance(item, str):
            if not _is_text(item):
                return False
        elif isinstance(item, int):
            if not -_TOO_LARGE < item < _TOO_LARGE:
                return False
        elif item is not None and not isinstance(item, float):
            return False
    return True


_DEEPEST: Final = 200
"""Levels of nesting, about as many as orjson takes."""

_TOO_LARGE: Final = 10**4_300
"""The first whole number that is too large: Python writes and reads 4,300 decimal digits and no more."""


def as_text(value: Any) -> str:
    """Return a result as the crystal reads it: text unchanged, everything else as compact JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers over 64 bits and lone surrogates, which orjson does not support
        import json

        return json.dumps(value, ensure_ascii=True, default=str)


def find_named_gate(choice: object) -> str | None:
    """Return the gate that a tool choice names ("gate:search" names search), None for every other choice."""
    named = isinstance(choice, str) and choice.startswith(_NAMED)
    return str(choice)[len(_NAMED) :] or None if named else None


def must_call(choice: object) -> bool:
    """Return whether a tool choice requires a call: of any gate, or of the one that it names."""
    return choice == "required" or find_named_gate(choice) is not None


def parse_tool_choice(value: str | None) -> ToolChoice | None:
    """Return a checked tool choice. Raises InvalidCantrip for an unknown one."""
    if value is None or value in _CHOICES or find_named_gate(value):
        return value
    raise InvalidCantrip(f'tool_choice "{value}": expected "auto", "required" or "none"')
