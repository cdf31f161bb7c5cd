"""A record as one line: `encode` and `decode`, the loom's format on every disk and wire.

A line is one JSON object without a newline inside. `kind` comes first, then `entity` and, where there is one, `turn`,
so that a reader of a whole file can skip the rest of most lines. A field with its default is left out.

msgspec writes and reads almost everything. The standard library does what msgspec cannot do (lone surrogates) or does
wrongly (NaN and the infinities become null), and such a line is marked `"wide":true`. A value that JSON cannot express
is refused, because a log that cannot be read again is useless.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import orjson

from cantrip_actors.records import records
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import Record
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.image_header import KINDS_OF_IMAGES

V = TypeVar("V")

SCHEMA: int = records.SCHEMA
"""The version of this format. Lines of a later version are refused; lines of an earlier one are read through `UPCASTS`.
"""

UPCASTS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()
"""The conversions of a line of version 1, 2, … to the next version: for each, a pure function of the parsed line.

A stored line is never rewritten. Add a function here with every change of the format that would misread older lines.
"""

DEEPEST: Final = 500
"""How many levels a value may nest: readers must be able to parse it at any depth of the call stack."""

_DIGEST = re.compile("[0-9a-f]{40}")
_IMAGE_DIGEST = re.compile("[0-9a-f]{64}")
_ATOMS: Final = frozenset({str, bool, type(None)})


class Newer(LoomError):
    """A sound line that a later version wrote."""


def encode(record: Record) -> bytes:
    """Return `record` as one line, without its newline. Raises LoomError for a value that JSON cannot express."""
    if record.__class__ not in _FREE_FORM:
        raise LoomError(f"encode: expected a record of a loom, got {type(record).__name__}")
    find = _FREE_FORM[record.__class__]
    line = encode_value(record, () if find is None else find(record))
    if SCHEMA > 1 and b'"schema":' not in line:
        line = b'%b,"schema":%d}' % (line[:-1], SCHEMA)
    return line


def encode_value(value: msgspec.Struct, free: Sequence[Any]) -> bytes:
    """Return a Struct as one line; `free` are its values that may be any JSON. Raises LoomError as `encode` does."""
    try:
        for part in free:
            # orjson refuses values that msgspec would silently change. Both write null for NaN and the infinities.
            if (
                part.__class__ not in _ATOMS
                and b"null" in orjson.dumps(part, default=_convert)
                and not _is_finite(part)
            ):
                break
        else:
            return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        pass  # the standard library can write the value, or says what is wrong with it
    return _encode_wide(value, free)


def decode_value(line: bytes, decoder: msgspec.json.Decoder[V], what: str) -> V:
    """Return the Struct of a line that `encode_value` wrote. Raises LoomError for another line, by the name `what`."""
    try:
        if b'"wide":' not in line:
            return decoder.decode(line)
        return msgspec.convert(json.loads(line), decoder.type, dec_hook=convert_from_json)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LoomError(f"{_cut_excerpt(line)} is not a {what}: {error}") from error


def decode(line: bytes) -> Record:
    """Return the record of one line, with or without its newline.

    Raises LoomError for a line that is not a record, and Newer for one that a later version wrote.
    """
    if line.__class__ is bytes and b'"wide":' not in line:
        try:
            if not line.isascii():
                line.decode()  # msgspec does not check the texts that it skips
            record: Record = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return _decode_carefully(line)  # this error says what is wrong
        if record.__class__ is records.Header:
            if record.schema == SCHEMA:
                return record
        elif SCHEMA == 1 and b'"schema":' not in line:
            return record
    return _decode_carefully(line)


def dump_json(value: Mapping[str, Any], *, mark: bool = True) -> bytes:
    """Return an object as compact JSON on one line.

    orjson writes it or, marked as wide, the standard library. Without the mark it is for other programs, which JSON
    allows neither NaN nor the infinities: they become their names ("NaN"), as in programs (`circle/plain.py`).

    Raises LoomError for a value that JSON cannot express.
    """
    try:
        line = orjson.dumps(value, default=_convert)
    except TypeError:
        return _dump_wide(value, mark=mark)
    if b"null" in line and not _is_finite(value):
        return _dump_wide(value, mark=mark)
    return line


def _decode_carefully(line: bytes) -> Record:
    check_kind("decode", line, bytes, "a line of a loom as bytes", LoomError)
    try:
        parsed = json.loads(line) if b'"wide"' in line else orjson.loads(line)
    except (ValueError, RecursionError) as error:
        raise LoomError(f"{_cut_excerpt(line)} is not a record of a loom: {error}") from error
    if not isinstance(parsed, dict):
        raise LoomError(f"{_cut_excerpt(line)} is not a record of a loom: expected a JSON object")
    try:
        version = parsed.get("schema", 1)
        if version > SCHEMA:
            raise Newer(f"is of schema {version}, this version reads up to {SCHEMA}: use a newer cantrip-actors")
        for upcast in UPCASTS[version - 1 :]:
            parsed = upcast(parsed)
        if "gone" in parsed:  # a tombstone (`tombstone.py`)
            parsed = {**_EMPTY.get(parsed.get("kind", ""), {}), **parsed}
        record: Record = msgspec.convert(parsed, _RECORD, dec_hook=convert_from_json)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LoomError(f"{_cut_excerpt(line)} is not a record of a loom: {_describe_fault(error, parsed)}") from error
    return record


# ------------------------------------------------------------------------------------------------- JSON beyond msgspec


def _convert(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _convert_wide(value: Any) -> Any:
    """Return the JSON form of a value that orjson knows and the standard library does not: dates, ids, dataclasses."""
    return dict(value) if isinstance(value, Mapping) else orjson.loads(orjson.dumps(value))


def _is_finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_convert_wide)
    except ValueError:
        return False
    return True


def _encode_wide(value: msgspec.Struct, free: Sequence[Any]) -> bytes:
    kind = value.__struct_config__.tag or type(value).__name__.lower()
    for part in free:  # `to_builtins` would turn a set into a list
        _dump_wide({"kind": kind, "value": part}, mark=False)
    return _dump_wide(msgspec.to_builtins(value, enc_hook=_convert_to_json), mark=True)


def _dump_wide(value: Mapping[str, Any], *, mark: bool) -> bytes:
    try:
        _check(value)
        value = {**value, "wide": True} if mark else _name_non_finite(value)
        text = json.dumps(value, separators=(",", ":"), default=_convert_wide)
    except (TypeError, ValueError) as error:
        raise LoomError(
            f"the loom cannot store a {value.get('kind', 'value')} that JSON cannot express: {error}; expected text, "
            f"numbers, true, false, null, and lists and string-keyed objects of them"
        ) from error
    return text.encode()


def _name_non_finite(value: Any) -> Any:
    """Return a value in which NaN and the infinities are their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _name_non_finite(part) for name, part in value.items()}
    return list(map(_name_non_finite, value)) if isinstance(value, (list, tuple)) else value


def _check(value: Any) -> None:
    """Raise for a value that the standard library would not read back as it was."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if depth > DEEPEST:
            raise ValueError(f"it nests deeper than {DEEPEST} levels")
        if isinstance(item, Mapping):
            for key, part in item.items():
                if not isinstance(key, str):
                    raise TypeError(f"a key of type {type(key).__name__}: {key!r}")
                todo.append((part, depth + 1))
        elif isinstance(item, (list, tuple)):
            todo.extend((part, depth + 1) for part in item)


def _cut_excerpt(line: bytes) -> str:
    text = line[:60].decode(errors="replace")
    return repr(text + "…" if len(line) > 60 else text)


def _describe_fault(error: Exception, parsed: Mapping[str, Any]) -> str:
    kind = parsed.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"unknown kind {kind!r}; known: {', '.join(_KINDS)}"
    return str(error)


# ---------------------------------------------------------------------------------------------- images and snapshots


def _convert_to_json(value: object) -> Any:
    """Return the JSON form of the values that msgspec does not know."""
    if isinstance(value, File):
        return get_image_facts(value)
    if isinstance(value, Snapshot):
        return value.digest
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def get_image_facts(image: File) -> dict[str, Any]:
    """Return the facts of an image or another file; its bytes are a blob under its digest."""
    facts: dict[str, Any] = {"type": image.media_type}
    if image.filename is not None:
        facts["filename"] = image.filename
    if image.url is not None:
        facts["url"] = image.url
    elif image.file_id is not None:
        facts["provider"], facts["file_id"] = image.provider, image.file_id
    else:
        facts["digest"] = image.digest
        facts["size"] = image.size
        if image.width and image.height:
            facts["width"], facts["height"] = image.width, image.height
    if image.detail is not None:
        facts["detail"] = image.detail
    if image.after is not None:
        facts["after"] = image.after
    return facts


def convert_from_json(kind: type, value: Any) -> Any:
    """Return a snapshot, an image or another file of its JSON form: the hook of msgspec's decoders."""
    if kind in (File, Image):
        return make_image(value)
    if not (isinstance(value, str) and _DIGEST.fullmatch(value)):
        raise ValueError(f'"snapshot": expected a digest of 40 hexadecimal digits, got {value!r}')
    return Snapshot(value)


def make_image(facts: Mapping[str, Any]) -> File:
    """Return the image or the file with these facts.

    Raises TypeError if `facts` is no mapping, and ValueError for an invalid digest.
    """
    if not isinstance(facts, Mapping):
        raise TypeError(f'"images": expected an object for each image, got a {type(facts).__name__}')
    get = facts.get
    digest, url, file_id = get("digest", ""), get("url"), get("file_id")
    if url is None and file_id is None and not (isinstance(digest, str) and _IMAGE_DIGEST.fullmatch(digest)):
        raise ValueError(f'"images": expected a digest of 64 hexadecimal digits, got {digest!r}')
    is_picture = file_id is None and facts["type"] in KINDS_OF_IMAGES
    return (Image if is_picture else File).from_facts(
        facts["type"],
        digest,
        get("size", 0),
        get("width"),
        get("height"),
        get("detail"),
        url=url,
        after=get("after"),
        filename=get("filename"),
        provider=get("provider"),
        file_id=file_id,
    )


_RECORD: Any = Record
_ENCODER = msgspec.json.Encoder(enc_hook=_convert_to_json)
_DECODER = msgspec.json.Decoder(_RECORD, dec_hook=convert_from_json)
_KINDS = tuple(kind.__struct_config__.tag for kind in get_args(Record))
KINDS = frozenset(_KINDS)


def _make_empty_value(kind: Any) -> Any:
    """Return the empty value of a field's type: of a Literal the last value, which is the most neutral one
    ("expired").
    """
    if get_origin(kind) is Literal:
        return get_args(kind)[-1]
    return kind() if kind in (str, int, float) else None if kind is Any else {}


_EMPTY: Mapping[str, Mapping[str, Any]] = {
    kind.__struct_config__.tag: {
        field.encode_name: _make_empty_value(field.type) for field in msgspec.structs.fields(kind) if field.required
    }
    for kind in get_args(Record)
}
"""For each kind of record, the fields that a line must have, with empty values."""


def _find_free_values(kind: type) -> Callable[[Any], Sequence[Any]] | None:
    names = [field.name for field in msgspec.structs.fields(kind) if field.type in _ANY_JSON]
    if len(names) == 1:
        get = attrgetter(names[0])
        return lambda record: (get(record),)
    return attrgetter(*names) if names else None


_get_args = attrgetter("args")


def _find_utterance_values(record: records.Utterance) -> Sequence[Any]:
    values: list[Any] = [*map(_get_args, record.tool_calls)]
    if record.blocks or record.metadata:
        values += (*record.blocks, record.metadata)
    return values


def _find_intent_values(record: records.IntentGiven) -> Sequence[Any]:
    if not record.history:
        return (record.context,)
    parts = ((*map(_get_args, message.tool_calls), *message.blocks) for message in record.history)
    return (record.context, *(value for values in parts for value in values))


_ANY_JSON: Final = (Any, Mapping[str, Any], Mapping[str, Any] | None)
_FREE_FORM: Mapping[type, Callable[[Any], Sequence[Any]] | None] = {
    **{kind: _find_free_values(kind) for kind in get_args(Record)},
    records.IntentGiven: _find_intent_values,
    records.Utterance: _find_utterance_values,
    records.Rewarded: lambda r: (r.reward,),
}
"""For each kind of record, its values that may be any JSON."""
