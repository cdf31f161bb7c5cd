"""The OpenAPI 3.1 document, made from the table of routes and its models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from cantrip_actors.http.table import ApiRoute

_REF = "#/components/schemas/{model}"

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "A problem (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": True,
}


def document(rows: Iterable[ApiRoute]) -> dict[str, Any]:
    """Return the document of these routes."""
    rows = list(rows)
    refs, schemas = models_json_schema(list(dict.fromkeys(_describe_models(rows))), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(plain_path(row.path), {})[row.method.lower()] = _describe_operation(row, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "cantrip", "version": version("cantrip-actors")},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def plain_path(path: str) -> str:
    """Return a path without the converters of its parameters."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _describe_models(rows: Iterable[ApiRoute]) -> Iterator[tuple[type[BaseModel], JsonSchemaMode]]:
    for row in rows:
        yield from ((model, "serialization") for model in row.answers.values() if isinstance(model, type))
        if row.body is not None:
            yield row.body, "validation"


def _describe_operation(row: ApiRoute, refs: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in row.answers.items():
        description: dict[str, Any] = {"description": "Success."}
        if isinstance(model, str):
            description["content"] = {model: {"schema": {"type": "string"}}}
        elif model is not None:
            description["content"] = {"application/json": {"schema": refs[model, "serialization"]}}
        responses[str(status)] = description
    kind, schema = ("application/problem+json", {"$ref": _REF.format(model="Problem")})
    if row.style == "openai":
        kind, schema = "application/json", {"type": "object"}
    responses["default"] = {"description": "What went wrong.", "content": {kind: {"schema": schema}}}
    operation: dict[str, Any] = {
        "operationId": row.work.__name__,
        "summary": row.summary,
        "parameters": list(_describe_parameters(row)),
        "responses": responses,
        "security": [] if row.scope is None else [{"bearer": [row.scope]}],
    }
    if row.body is not None:
        content = {"application/json": {"schema": refs[row.body, "validation"]}}
        operation["requestBody"] = {"required": row.needs_body, "content": content}
    return operation


def _describe_parameters(row: ApiRoute) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)(?::\w+)?\}", row.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    schema = row.query.model_json_schema(ref_template=_REF)
    for name, property_schema in schema.get("properties", {}).items():
        yield {"name": name, "in": "query", "required": False, "schema": property_schema}
    if row.method == "POST":
        schema = {"type": "string", "minLength": 1, "maxLength": 255}
        yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}
