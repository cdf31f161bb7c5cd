"""Contracts as people write them: Markdown in the layout of dispatch files, or YAML with the fields' names.

The result is a contract, or all mistakes, each with its line. `parse_markdown.py` parses Markdown, this file YAML;
`terms.py` has the rules for both.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import yaml

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.mistakes import Mistake, Parsed, UnreadableContract, build_contract
from cantrip_actors.dispatch.parse_markdown import SOURCE, read_markdown
from cantrip_actors.dispatch.terms import ContractPath, Rule, find_field
from cantrip_actors.terms.arguments import check_kind

LARGEST = 1_000_000
"""Bytes. A contract is written by hand; a larger file is not a contract."""

DEEPEST = 8
"""How deep a contract in YAML may nest; its fields need three levels."""

MARKDOWN, YAML = (".md", ".markdown"), (".yaml", ".yml", ".json")

_VALUES = frozenset({"needs_approval", "budget", "max_iterations", "review_cap", "wards"})
"""Fields whose scalars YAML converts; all others are texts, so that `priority: 1` and dates are texts."""


def load_contract(path: str | os.PathLike[str]) -> Contract:
    """Return the contract in a file that ends in .md, .yaml, .yml or .json.

    Raises UnreadableContract with every mistake and its line, also for a missing file.
    """
    check_kind("load_contract", path, str | os.PathLike, "the path of a file")
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise _make_unreadable(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _make_unreadable(path, "this is not text in UTF-8", raw[: error.start].count(b"\n") + 1) from None
    if len(raw) > LARGEST:
        raise _make_unreadable(path, f"too large for a contract: more than {LARGEST:,} bytes")
    if path.suffix in MARKDOWN:
        contract = from_markdown(text)
    elif path.suffix in YAML:
        contract = from_yaml(text)
    else:
        raise _make_unreadable(path, f"a contract is a file that ends in {', '.join((*MARKDOWN, *YAML))}")
    if isinstance(contract, Contract):
        return contract
    raise UnreadableContract(str(path), contract)


def _make_unreadable(path: Path, text: str, line: int | None = None) -> UnreadableContract:
    return UnreadableContract(str(path), (Mistake(Rule.TYPE, text, line),))


def from_markdown(text: str) -> Contract | tuple[Mistake, ...]:
    """Return the contract of a Markdown text in the layout of `contract_template`, or all its mistakes."""
    check_kind("from_markdown", text, str, "a text")
    return build_contract(read_markdown(text))


def from_yaml(text: str) -> Contract | tuple[Mistake, ...]:
    """Return the contract of a YAML text with fields' names, or all its mistakes."""
    check_kind("from_yaml", text, str, "a text")
    read = Parsed()
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else None
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):  # even one that would expand to more than fits into memory
                read.note_mistake("an alias (*…): write it out", line)
            if depth > DEEPEST:
                read.note_mistake("nested too deeply", line)
                break
        if not read.mistakes:
            _read_fields(yaml.compose(text, yaml.SafeLoader), read)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        read.note_mistake(f"not valid YAML: {error.problem}", None if mark is None else mark.line + 1)
    except yaml.YAMLError as error:
        read.note_mistake(f"not valid YAML: {error}", None)
    return build_contract(read) if read.lines else tuple(read.mistakes)


def _read_fields(node: yaml.Node | None, read: Parsed) -> None:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        read.note_mistake("expected the fields of a contract, each with its name", 1)
        return
    read.data = _read_value(node, (), read)
    listed = read.data.get("sources")
    sources: list[Any] = listed if isinstance(listed, list) else []
    for index, source in enumerate(sources):
        if isinstance(source, str) and (match := SOURCE.fullmatch(source.strip())):
            sources[index] = {"path": match["path"], "description": match["why"]}


def _read_value(node: yaml.Node, where: ContractPath, read: Parsed) -> Any:
    """Return a node as plain data, and note the lines of the values in it."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            read.lines[*where, index] = item.start_mark.line + 1
        return [_read_value(item, (*where, index), read) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            place = (*where, name if where else find_field(name))
            line = key.start_mark.line + 1
            if not name:
                read.note_mistake("a key has to be a word", line, str(place[0]))
            elif place in read.lines:
                read.note_mistake(f'"{name}" stands here twice, first in line {read.lines[place]}', line, str(place[0]))
            else:
                read.lines[place] = line
                fields[str(place[-1])] = _read_value(value, place, read)
        return fields
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if where[0] in _VALUES and node.tag.startswith("tag:yaml.org,2002:"):
        # only if it looks like a number or a date; PyYAML raises the last two for `!!bool maybe` and `!!timestamp x`
        with contextlib.suppress(ValueError, yaml.YAMLError, KeyError, AttributeError):
            return yaml.constructor.SafeConstructor().construct_object(node)
    return node.value
