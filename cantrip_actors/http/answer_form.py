"""The form of an answer that a client asks for (`response_format`, `text.format`, one tool that it has to call). Pure.

A cantrip has an answer of its own form: the argument of its `done`. A client's schema is accepted if every such answer
fits it, or can be made to: members that the schema excludes are left out, and defaults are filled in. Clients write the
schema of one type in many ways, so schemas are compared by what they accept and not by how they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

from cantrip_actors import AnswerMisfit, Cantrip

COMPARISONS: Final = 5_000
"""Pairs of schemas that are compared for one request."""
MOST_ALTERNATIVES: Final = 200
"""Alternatives of one part of a schema, those of its alternatives included."""
DEEPEST: Final = 60
"""Levels of a client's schema, references included."""

_SAYS_NOTHING: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format", "discriminator"}
    | {"$comment", "$defs", "$id", "$schema", "definitions", "contentEncoding", "contentMediaType", "strict"}
)
_JAVASCRIPT_BOUNDS: Final = {"minimum": -(2**53) + 1, "maximum": 2**53 - 1}
"""The bounds that zod adds to every whole number; the types of cantrips lack them, because they are not written for
JavaScript."""
_COMPARED: Final = frozenset({"enum", "type", "properties", "required", "additionalProperties", "items"})

ExpandedSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client has the model call with its answer; `is_named` if the client names it."""

    name: str
    is_named: bool


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A client's schema, and that of the answers of a cantrip. `wrap` is the member that holds an answer, if any.

    `format` is the client's own text, as a response has and repeats it.
    """

    schema: _Part
    own: _Part
    wrap: str | None
    tool: ClientTool | None = None
    format: Mapping[str, Any] | None = None

    def apply(self, result: Any) -> Any:
        """Return an answer in this form. Raises AnswerMisfit for one that is not of the cantrip's own form."""
        value = result if self.wrap is None or self.own.accepts_members_of(result) else {self.wrap: result}
        try:
            shaped = _shape(value, self.schema, self.own)
            if not _is_of_kind(shaped, self.schema.expand()):
                raise ValueError(f"expected an answer of the form that was asked for, got a {type(result).__name__}")
        except ValueError as error:
            raise AnswerMisfit(f"the entity ended without such an answer: {error}") from error
        return shaped


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a schema, and the whole schema, in which its references are resolved."""

    node: Any
    root: Any

    def at(self, node: Any) -> _Part:
        return _Part(node, self.root)

    def expand(self) -> ExpandedSchema:
        """Return the part with its reference resolved, in one normal form, without keywords that have no effect."""
        node = _resolve(self.node, self.root)
        if node is True or node is None:
            return {}
        if not isinstance(node, Mapping):
            return {"not": {}}
        schema = {
            name: value
            for name, value in node.items()
            if name not in _SAYS_NOTHING and not (name in _JAVASCRIPT_BOUNDS and value == _JAVASCRIPT_BOUNDS[name])
        }
        every = schema.get("allOf")
        if isinstance(every, Sequence) and len(every) == 1:
            del schema["allOf"]
            return {**self.at(every[0]).expand(), **schema}
        if "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
        if "const" in schema:
            schema["enum"] = [schema.pop("const")]
        if "enum" in schema:
            schema.pop("type", None)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            del schema["type"]
            each = [{**schema, "type": kind} for kind in kinds]
            return each[0] if len(each) == 1 else {"anyOf": each}
        if "properties" in schema:
            schema.setdefault("type", "object")
        return schema

    def alternatives(self) -> list[_Part]:
        """Return the alternatives of `anyOf`; a part without them is its only one. Raises _TooLarge."""
        todo: list[_Part] = [self]
        each: list[_Part] = []
        for _ in range(MOST_ALTERNATIVES):
            if not todo:
                return each
            part = todo.pop()
            schema = part.expand()
            either = schema.get("anyOf")
            if isinstance(either, list) and len(schema) == 1:
                todo += [part.at(node) for node in reversed(either)]
            else:
                each.append(part)
        raise _TooLarge

    def members(self) -> Mapping[str, Any]:
        """Return the parts of an object by their names, as they are written."""
        members = self.expand().get("properties", {})
        return members if isinstance(members, Mapping) else {}

    def accepts_members_of(self, value: Any) -> bool:
        """Return whether a value is an object that has all required members."""
        return isinstance(value, Mapping) and all(name in value for name in self.expand().get("required", ()))


class _TooLarge(ValueError):
    """A schema needs more comparisons than are made, for example because it refers to itself."""


def _resolve(node: Any, root: Any) -> Any:
    """Return a part of a schema with the target of its reference in its place; what is beside the reference stays."""
    for _ in range(DEEPEST):
        if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
            return node
        target = _find_target(node["$ref"], root)
        beside = {name: value for name, value in node.items() if name != "$ref"}
        node = {**target, **beside} if isinstance(target, Mapping) else target is True  # nothing fits a missing target
    raise _TooLarge


def find_reference_fault(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a reference of a client's schema, or None: each leads to another part of it."""
    return next((fault for part in _walk(schema) if (fault := _find_fault(part, schema)) is not None), None)


def is_endless(schema: Any) -> bool:
    """Return whether a reference of a schema leads to itself, so that no value could be compared with it."""
    return any(_find_fault(part, schema) == _ENDLESS for part in _walk(schema))


_ENDLESS: Final = "a reference that leads to itself"


def _walk(schema: Any) -> Iterator[Any]:
    """Yield a schema and all of its parts."""
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        yield part
        todo += part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ()


def _find_fault(part: Any, root: Any) -> str | None:
    for _ in range(DEEPEST):
        reference = _get_reference(part)
        if not reference:
            return None
        target = _find_target(reference, root)
        if (reference != "#" and not reference.startswith("#/")) or not isinstance(target, Mapping | bool):
            return f"the reference {reference!r:.100} leads to no part of it"
        part = target
    return _ENDLESS


def _find_target(reference: str, root: Any) -> Any:
    """Return the part of a schema to which a reference leads; None if there is none."""
    target = root
    for name in reference.removeprefix("#").split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list | tuple) and key.isdecimal() and len(key) < 10 and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def _get_reference(node: Any) -> str:
    reference = node.get("$ref") if isinstance(node, Mapping) else None
    return reference if isinstance(reference, str) else ""


class _Comparison:
    def __init__(self) -> None:
        self._left = COMPARISONS
        self._assumed: set[tuple[str, str]] = set()
        """The references that are being compared: a type that contains itself accepts itself."""

    def accepts(self, wanted: _Part, own: _Part, depth: int = 0) -> bool:
        """Return whether each value of `own` fits `wanted`, or can be made to."""
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise _TooLarge
        pair = (_get_reference(wanted.node), _get_reference(own.node))
        is_recursive = "" not in pair
        if is_recursive and pair in self._assumed:
            return True
        self._assumed.add(pair)
        try:
            return all(
                any(self._accepts_one(each, alternative, depth + 1) for each in wanted.alternatives())
                for alternative in own.alternatives()
            )
        finally:
            self._assumed.discard(pair)

    def _accepts_one(self, wanted: _Part, own: _Part, depth: int) -> bool:
        one, two = wanted.expand(), own.expand()
        if "enum" in one and not ("enum" in two and all(value in one["enum"] for value in two["enum"])):
            return False
        kind = one.get("type")
        if kind is not None and not _has_kind(two, kind):
            return False
        if any(two.get(name) != value for name, value in one.items() if name not in _COMPARED):
            return False
        if kind == "object":
            return self._accepts_members(wanted, own, depth)
        if kind == "array" and "items" in one:
            return "items" in two and self.accepts(wanted.at(one["items"]), own.at(two["items"]), depth)
        return True

    def _accepts_members(self, wanted: _Part, own: _Part, depth: int) -> bool:
        one, two = wanted.expand(), own.expand()
        members, own_members = wanted.members(), own.members()
        for name in one.get("required", ()):
            if name not in own_members:
                return False
            is_optional = name not in two.get("required", ())
            if is_optional and not _has_default(own_members[name]) and not _is_nullable(wanted.at(members.get(name))):
                return False
        for name, node in members.items():
            if name in own_members:
                if not self.accepts(wanted.at(node), own.at(own_members[name]), depth):
                    return False
            elif two.get("additionalProperties", True) is not False and wanted.at(node).expand():
                return False
        more = one.get("additionalProperties", True)
        left = [name for name in own_members if name not in members]
        if more is False:
            return not left and not isinstance(two.get("additionalProperties"), Mapping)
        if more is True or more == {}:
            return True
        own_more = two.get("additionalProperties", True)
        named = all(self.accepts(wanted.at(more), own.at(own_members[name]), depth) for name in left)
        return named and (own_more is False or self.accepts(wanted.at(more), own.at(own_more), depth))


def _has_kind(schema: ExpandedSchema, kind: str) -> bool:
    if "enum" in schema:
        return all(_is_of_kind(value, {"type": kind}) for value in schema["enum"])
    return schema.get("type") == kind or (kind == "number" and schema.get("type") == "integer")


def _has_default(node: Any) -> bool:
    return isinstance(node, Mapping) and "default" in node


def _is_nullable(part: _Part) -> bool:
    return any(_is_of_kind(None, each.expand()) for each in part.alternatives())


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
}


def _is_of_kind(value: Any, schema: ExpandedSchema) -> bool:
    """Return whether a value has the type that a schema names, or is one of its values."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(_is_of_kind(value, _Part(node, schema).expand()) for node in schema["anyOf"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return kind is None or isinstance(value, _KINDS.get(kind, ()))


def _shape(value: Any, wanted: _Part, own: _Part) -> Any:
    """Return a value of `own` without the members that `wanted` excludes, and with those that it requires."""
    wanted, own = _choose(value, wanted), _choose(value, own)
    schema, own_schema = wanted.expand(), own.expand()
    if isinstance(value, Mapping) and schema.get("type") == "object":
        return dict(_shape_members(value, wanted, own))
    if isinstance(value, (list, tuple)) and "items" in schema:
        inner, own_inner = wanted.at(schema["items"]), own.at(own_schema.get("items"))
        return [_shape(each, inner, own_inner) for each in value]
    return value


def _shape_members(value: Mapping[str, Any], wanted: _Part, own: _Part) -> Iterator[tuple[str, Any]]:
    schema, members, own_members = wanted.expand(), wanted.members(), own.members()
    for name, node in members.items():
        own_node = own_members.get(name)
        if name in value:
            yield name, _shape(value[name], wanted.at(node), own.at(own_node))
        elif name in schema.get("required", ()):
            default = own_node.get("default") if isinstance(own_node, Mapping) else None
            yield name, _shape(default, wanted.at(node), own.at(own_node))
    more = schema.get("additionalProperties", True)
    if more is not False:
        own_more = own.expand().get("additionalProperties")
        rest = {name: inner for name, inner in value.items() if name not in members}
        yield from ((name, _shape(inner, wanted.at(more), own.at(own_more))) for name, inner in rest.items())


def _choose(value: Any, part: _Part) -> _Part:
    """Return the alternative of a part that a value is of; the first one if none fits."""
    alternatives = part.alternatives()
    fits = [each for each in alternatives if _is_of_kind(value, each.expand())]
    if isinstance(value, Mapping):
        fits = [each for each in fits if each.accepts_members_of(value) and _names_fit(value, each)] or fits
    return (fits or alternatives or [part])[0]


def _names_fit(value: Mapping[str, Any], part: _Part) -> bool:
    """Return whether the members of an object that have a fixed value have it: this tells alternatives apart."""
    fixed = {name: part.at(node).expand().get("enum") for name, node in part.members().items()}
    return all(name not in value or values is None or value[name] in values for name, values in fixed.items())


def find_form(cantrip: Cantrip | None, schema: Any, tool: ClientTool | None = None) -> AnswerForm | None:
    """Return the form in which the answers of a cantrip fit a client's schema; None if they do not fit it."""
    done = None if cantrip is None else cantrip.circle.open_gates.get("done")
    return None if done is None else _fit(done.definition.parameters, schema, tool)


def _fit(parameters: Any, schema: Any, tool: ClientTool | None) -> AnswerForm | None:
    """Return the form in which the answers of a `done` with these parameters fit a client's schema, if they do."""
    if not isinstance(schema, Mapping):
        return None
    wanted, whole = _Part(schema, schema), _Part(parameters, parameters)
    try:
        for own, wrap in _list_own_forms(whole):
            if (wrap is None or wrap in wanted.members()) and _Comparison().accepts(wanted, own):
                return AnswerForm(wanted, own, wrap, tool)
    except (_TooLarge, RecursionError, TypeError, AttributeError):  # not a schema, or one that is costly on purpose
        return None
    return None


def make_form(schema: Mapping[str, Any], tool: ClientTool | None = None) -> AnswerForm:
    """Return the form of answers that are held to a client's schema themselves."""
    part = _Part(schema, schema)
    return AnswerForm(part, part, None, tool)


def write_note(form: AnswerForm | None) -> dict[str, Any] | None:
    """Return the note from which `read_note` makes a form again."""
    if form is None:
        return None
    tool = None if form.tool is None else {"name": form.tool.name, "is_named": form.tool.is_named}
    note = {"format": form.format, "tool": tool, "schema": None if form.format else form.schema.node}
    return {"answer_form": {name: value for name, value in note.items() if value is not None}}


def read_note(note: Any, parameters: Any) -> AnswerForm | None:
    """Return the form that a note describes, for answers of a `done` with these parameters; None for other notes."""
    match note:
        case {"answer_form": {"format": {"type": "json_object"} as format}}:
            schema: Any = {"type": "object"}
        case {"answer_form": {"format": {"schema": schema} as format}}:
            pass
        case {"answer_form": {"schema": schema}}:
            format = None
        case _:
            return None
    named = note["answer_form"].get("tool")
    tool = None if named is None else ClientTool(**named)
    return replace(_fit(parameters, schema, tool) or make_form(schema, tool), format=format)


def _list_own_forms(whole: _Part) -> Iterator[tuple[_Part, str | None]]:
    """Yield the schemas that an answer of `done` has, each with the member in which it has to be put."""
    members = whole.members()
    name = "answer" if "answer" in members else next(iter(members), None)
    if name is None:
        return
    if name == "answer" or len(members) == 1:
        yield whole.at(members[name]), None
    if len(members) == 1:
        yield whole, name
    elif name != "answer":
        required = whole.expand().get("required", ())
        yield whole, required[0] if len(required) == 1 else None
