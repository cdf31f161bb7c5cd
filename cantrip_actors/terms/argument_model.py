"""The arguments of a gate, and typed answers, as models of pydantic.

The import of pydantic takes as long as that of everything else here, so a program imports this module with its first
gate that is made of annotations: one that only reads looms does not.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError, to_json

from cantrip_actors.terms.errors import AnswerMisfit, InvalidCantrip
from cantrip_actors.terms.gate import LEFT_OUT, BoundArguments, Gate, Refused, provide_binder
from cantrip_actors.terms.json_schema import strip_titles
from cantrip_actors.terms.problems import describe, leave_out_nulls


class GateArguments(BaseModel):
    """The arguments of a gate without a function."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _FiniteSchema(GenerateJsonSchema):
    """Leaves out a default that JSON has no number for: requests would have null instead, which is no valid value."""

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return encoded


def make_model(
    name: str, fields: dict[str, Any], *, others: Any = None, advice: str = ""
) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return the model of a gate's arguments, and its JSON Schema. `others` is the annotation of its `**others`, or
    None.

    A text in the `Annotated` of a parameter is its description. Raises InvalidCantrip, with `advice`, for an annotation
    without a schema, and for a name that no field of a model can have.
    """
    for field in fields:
        if field.startswith("_") or (field.startswith("model_") and hasattr(BaseModel, field)):
            raise InvalidCantrip(f"gate {name}: a parameter cannot be called {field}; rename it")
    described = {field: (_describe_hint(hint, default), default) for field, (hint, default) in fields.items()}
    try:
        with warnings.catch_warnings():
            # a parameter called `json` or `copy` hides a method that is not called here; a default that is not JSON is
            # left out of the schema
            warnings.simplefilter("ignore")
            model, schema = _make_schema(name, described, others)
    except _NO_SCHEMA as error:
        where, why = _find_fault(described, error)
        raise InvalidCantrip(
            f"gate {name}: no JSON Schema can be made of its annotations: {where}{why}{advice}"
        ) from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return model, schema


_NO_SCHEMA: Final = (PydanticUserError, SchemaError, NameError, TypeError)


def _make_schema(name: str, fields: Mapping[str, Any], others: Any) -> tuple[type[BaseModel], dict[str, Any]]:
    if any(_has_dict(hint) for hint, _ in fields.values()):  # pydantic would take it for a schema of its core
        raise TypeError("a dict, such as a JSON Schema, is not a type: write a pydantic model or a TypedDict")
    extra: Literal["forbid", "allow"] = "forbid" if others is None else "allow"
    config = ConfigDict(extra=extra, arbitrary_types_allowed=False, protected_namespaces=())
    namespace = {"__module__": __name__, "__annotations__": {}, "model_config": config}
    if others not in (None, Any):
        namespace["__annotations__"] = {"__pydantic_extra__": dict[str, others]}
    base: type[BaseModel] = type("Arguments", (BaseModel,), namespace)
    model = create_model(f"{name}Arguments", __base__=base, **dict(fields))
    return model, strip_titles(model.model_json_schema(schema_generator=_FiniteSchema))


def _has_dict(hint: Any) -> bool:
    """Return whether an annotation is a dict, or has one in the place of a type."""
    types = {Annotated: get_args(hint)[:1], Literal: ()}.get(get_origin(hint), get_args(hint))
    return isinstance(hint, dict) or any(map(_has_dict, types))


def _find_fault(fields: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    """Return which of several parameters has no schema, and why it has none, without pydantic's pages."""
    for field, definition in fields.items() if len(fields) > 1 else ():
        try:
            _make_schema("", {field: definition}, None)
        except _NO_SCHEMA as alone:
            return f"{field}: ", _explain(alone)
    return "", _explain(error)


def _explain(error: Exception) -> str:
    """Return pydantic's reason without the address of a page, and without its advice about the settings of models."""
    if isinstance(error, SchemaError):  # the lines before name the validators around the one that is wrong
        return " ".join(re.split("(?:Schema|Value)Error: ", str(error))[-1].split())
    return str(error).partition("\n")[0].partition(". Set `")[0].rstrip(".")


def _describe_hint(hint: Any, default: Any) -> Any:
    """Return an annotation with the text of its `Annotated` as its description, unless it has one."""
    if get_origin(hint) is not Annotated:
        return hint
    text = next((mark for mark in hint.__metadata__ if isinstance(mark, str)), None)
    fields = [mark for mark in (*hint.__metadata__, default) if isinstance(mark, FieldInfo)]
    if text is None or any(field.description is not None for field in fields):
        return hint
    return Annotated[hint, Field(description=text)]


def bind_arguments(gate: Gate, model: type[BaseModel], args: Mapping[str, Any]) -> BoundArguments | Refused:
    """Return arguments as the gate's function accepts them, or a refusal. A validator may raise anything.

    Many models give null for what they leave out. Where null is not valid, a value with a default has its default.
    """
    try:
        return _bind(gate, model, args)
    except ValidationError as errors:
        problems = errors.errors(include_url=False)
        fewer = leave_out_nulls(problems, args)
        if fewer is not None:
            with suppress(ValidationError):
                return _bind(gate, model, fewer)
        return Refused(f"{gate.name}: {'; '.join(describe(problems, args))}; expected {gate.signature}")


def _bind(gate: Gate, model: type[BaseModel], args: Mapping[str, Any]) -> BoundArguments | Refused:
    """Return arguments as the gate's function accepts them. Raises ValidationError for others."""
    if gate.has_typed_answer:
        return BoundArguments(_make_plain_answer(model, args))
    checked = model.model_validate(args)
    if gate.kind == "done" and gate.function is not None:  # its arguments are the answer, which is JSON (D-005)
        try:
            return BoundArguments(checked.model_dump(mode="json", by_alias=True))
        except PydanticSerializationError as error:
            return Refused(f"{gate.name}: its answer cannot be written as JSON: {error}")
    own = {name: value for name, value in checked.__dict__.items() if value is not LEFT_OUT}
    return BoundArguments(own | (checked.__pydantic_extra__ or {}))


def _make_plain_answer(model: type[BaseModel], args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return valid arguments as JSON that validates to the same value; raises ValidationError for invalid ones.

    That is how pydantic writes the value, with all defaults. Where a validator changes what it has made before, or
    pydantic cannot write the value, it is the arguments as they came.
    """
    answer = model.model_validate_json(to_json(args))
    try:
        plain = _dump_answer(answer)
        is_stable = _dump_answer(model.model_validate_json(to_json(plain))) == plain
    except Exception:  # the author's validator expects the entity's arguments, not those that pydantic writes
        return args
    return plain if is_stable else args


def _dump_answer(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


def read_answer(model: type[BaseModel], answer: Any) -> Any:
    """Return an answer, read from the loom, as a value of its type. Raises AnswerMisfit if it is not of the type.

    `model` is the model of the gate that `make_typed_done` returned.
    """
    try:
        return model.model_validate_json(to_json({"answer": answer})).__dict__["answer"]
    except ValidationError as error:
        why = "; ".join(describe(error.errors(), {"answer": answer}))
        raise AnswerMisfit(
            f"the answer is not of the type that the cantrip has now, because another version of it gave it: {why}; "
            "`raw_result` of the episode has the answer as JSON"
        ) from error


def read_answer_of(kind: Any, answer: Any) -> Any:
    """Return an answer, read from the loom, as a value of a type, without the gate. Raises AnswerMisfit."""
    return read_answer(make_model("done", {"answer": (kind, ...)})[0], answer)


provide_binder(bind_arguments)
