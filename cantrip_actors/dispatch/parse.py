"""Contracts as people write them: Markdown in the layout of dispatch files, or YAML with the fields' names.

Either a contract comes of it or a list of mistakes, all of them, each with its line. How Markdown is read is
`parse_markdown.py`'s, YAML is read here. What a contract may say is `terms.py`'s, whatever it was written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.mistakes import Mistake, Read, UnreadableContract, settled, status_of
from cantrip_actors.dispatch.parse_markdown import SOURCE, read_markdown
from cantrip_actors.dispatch.terms import READERS, Rule, Where
from cantrip_actors.model.errors import nearest

__all__ = ["Mistake", "UnreadableContract", "from_markdown", "from_yaml", "load_contract", "status_of"]

LARGEST = 1_000_000
"""Bytes. A contract is written by hand; what is larger is another file by mistake."""

DEEPEST = 8
"""How deep a contract in YAML may nest; its fields need three levels."""

MARKDOWN, YAML = (".md", ".markdown"), (".yaml", ".yml", ".json")

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "dispatch": "dispatch_id",
        "dispatched": "dispatched_at",
        "budget_cap": "budget",
        "acceptance_criteria": "acceptance",
        "scope_boundaries": "scope",
        "source_files": "sources",
        "verification_gate": "verification",
    }
)
"""What the Markdown layout calls a field, where that is not the field's name."""

_VALUES = frozenset({"needs_approval", "budget", "max_iterations", "review_cap", "wards"})
"""Fields whose scalars YAML reads; everywhere else a scalar is its text, so that `priority: 1` and dates are texts."""


def load_contract(path: Path) -> Contract:
    """The contract in a file that ends in .md, .yaml, .yml or .json.

    Raises UnreadableContract with every mistake and its line, also where there is no such file.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(path, "this is no text in UTF-8", raw[: error.start].count(b"\n") + 1) from None
    if len(raw) > LARGEST:
        raise _unreadable(path, f"too large for a contract: more than {LARGEST:,} bytes")
    if path.suffix in MARKDOWN:
        found = from_markdown(text)
    elif path.suffix in YAML:
        found = from_yaml(text)
    else:
        raise _unreadable(path, f"a contract is a file that ends in {', '.join((*MARKDOWN, *YAML))}")
    if isinstance(found, Contract):
        return found
    raise UnreadableContract(str(path), found)


def _unreadable(path: Path, text: str, line: int | None = None) -> UnreadableContract:
    return UnreadableContract(str(path), (Mistake(Rule.TYPE, text, line),))


def from_markdown(text: str) -> Contract | tuple[Mistake, ...]:
    """The contract that a Markdown text in the layout of `contract_template` describes, or all its mistakes."""
    return settled(read_markdown(text))


def from_yaml(text: str) -> Contract | tuple[Mistake, ...]:
    """The contract that a YAML text describes, by fields' names, or all its mistakes."""
    read = Read()
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else None
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):  # also what would unfold to more than any memory holds
                read.wrong("an alias (*…): write it out", line)
            if depth > DEEPEST:
                read.wrong("nested too deeply", line)
                break
        if not read.mistakes:
            _fields(yaml.compose(text, yaml.SafeLoader), read)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        read.wrong(f"not valid YAML: {error.problem}", None if mark is None else mark.line + 1)
    except yaml.YAMLError as error:
        read.wrong(f"not valid YAML: {error}", None)
    return settled(read) if read.lines else tuple(read.mistakes)


def _fields(node: yaml.Node | None, read: Read) -> None:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        read.wrong("expected the fields of a contract, each with its name", 1)
        return
    for key, value in node.value:
        line = key.start_mark.line + 1
        said = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        name = said.strip().lower().replace(" ", "_").replace("-", "_")
        name = OTHER_NAMES.get(name, name)
        if name not in READERS:
            read.wrong(f'no contract has a field "{said}"; {nearest(name, READERS)}', line)
        elif (name,) in read.lines:
            read.wrong(f'"{said}" stands here twice, first in line {read.lines[name,]}', line, name)
        else:
            read.put(name, _value(value, (name,), read), line)
    for index, source in enumerate(read.data.get("sources") or ()):
        if isinstance(source, str) and (found := SOURCE.fullmatch(source.strip())):
            read.data["sources"][index] = {"path": found["path"], "description": found["why"]}


def _value(node: yaml.Node, where: Where, read: Read) -> Any:
    """A node as plain data, with the lines of what is in it."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            read.lines[*where, index] = item.start_mark.line + 1
        return [_value(item, (*where, index), read) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        said: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            line = key.start_mark.line + 1
            if name in said or not name:
                read.wrong(f'"{name}" stands here twice' if name else "a key has to be a word", line, str(where[0]))
            read.lines[*where, name] = line
            said[name] = _value(value, (*where, name), read)
        return said
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if where[0] in _VALUES and node.tag.startswith("tag:yaml.org,2002:"):
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node)
        except (ValueError, yaml.YAMLError):  # a number or a date that is none
            return node.value
        finally:
            loader.dispose()
    return node.value
