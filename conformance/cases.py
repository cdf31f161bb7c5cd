"""Reading a suite: its cases, and the parts of them that this runner does not know.

docs/conformance.md describes the format. A key that is missing in the tables below is a fault of the case: the runner
would not do or not check what it says. Values are not judged here: some cases are about an impossible cantrip, and the
product has to report it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from conformance.facts import knows
from conformance.match import PATTERN

__all__ = ["Case", "NoSuite", "read_suite", "steps"]

T = TypeVar("T")


class NoSuite(Exception):
    """A file is not a suite: it is missing, not YAML, or not a list of cases."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `faults` lists the errors in its text, before anything is run."""

    rule: str
    name: str
    file: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    action: Any = None
    expect: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False
    faults: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether the case is only text: it does nothing and expects nothing."""
        return self.action is None and not self.expect and not self.setup and not self.skip

    @property
    def medium(self) -> str:
        """The medium of its circle, by the product's name."""
        circle = self.setup.get("circle")
        if not isinstance(circle, Mapping) or circle.get("type") != "code":
            return "tools"
        return str(circle.get("language", "javascript"))


FastLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, where PyYAML has it: suites are long."""


def read_suite(path: str | Path) -> list[Case]:
    """Return the cases of a file, in order. Raises NoSuite."""
    try:
        cases = yaml.load(Path(path).read_text(encoding="utf-8"), FastLoader)  # noqa: S506  # it is a safe one
    except OSError as error:
        raise NoSuite(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoSuite(f"{path}: is not YAML: {error}") from error
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise NoSuite(f"{path}: expected a list of cases, each a mapping")
    return [_case(case, Path(path).name) for case in cases]


def _case(case: Mapping[str, Any], file: str) -> Case:
    faults = list(_faults(case))
    return Case(
        rule=str(case.get("rule", "?")),
        name=" ".join(str(case.get("name", "?")).split()),
        file=file,
        setup=_value_of_kind(case.get("setup"), dict, {}),
        action=case.get("action"),
        expect=_value_of_kind(case.get("expect"), dict, {}),
        skip=case.get("skip") is True,
        faults=tuple(faults),
    )


def _value_of_kind(value: Any, kind: type[T], default: T) -> T:
    return value if isinstance(value, kind) else default


# ------------------------------------------------------------------------------------------------- what may stand where


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CRYSTAL_KEY = re.compile(r"^(crystal|crystal_\w+|\w+_crystal|child_crystal_l[1-9])$")

_CASE = _words("rule name setup action expect skip")
_SETUP = _words("circle call folding retry filesystem cantrip crystals loom")
_CRYSTAL = _words(
    "responses type record_inputs stateless retry_behavior usage provider raw_response name context_window"
)
_RESPONSE = _words("content tool_calls code error usage thinking delay_ms times")
_TOOL_CALL = _words("id gate args")
_ERROR = _words("status message retry_after")
_USAGE = _words("prompt_tokens completion_tokens cached_tokens cost")
_CIRCLE = _words("gates wards type language")
_GATE = _words("name parameters description behavior delay_ms result error dependencies ephemeral visible_for timeout")
_CALL = _words("system_prompt temperature top_p max_tokens stop tool_choice require_done_tool options")
_FOLDING = _words("trigger_after_turns trigger_at keep_turns")
_RETRY = _words("max_retries retryable_status_codes base_delay max_delay")
_CANTRIP = _words("require_done_tool name")
_BEHAVIORS = frozenset(("delay", "throw", "hang", "unserializable"))

_STEPS: Mapping[str, frozenset[str] | None] = {
    # None: the value is not a mapping
    "construct_cantrip": None,
    "cast": _words("intent context crystal at_once"),
    "invoke": _words("intent context crystal name"),
    "send": _words("intent context to"),
    "mutate_call": _CALL,
    "delete_turn": None,
    "replace_turn": None,
    "annotate_reward": _words("turn reward of"),
    "fork": _words("from_turn crystal intent context of"),
    "extract_thread": None,
    "reopen": None,
}


def steps(action: Any) -> Iterator[tuple[str, Any]]:
    """Yield the steps of an action, in order: a mapping's keys, then those below `then`, or a list of such mappings."""
    if isinstance(action, list):
        for step in action:
            yield from steps(step)
    elif isinstance(action, Mapping):
        for key, value in action.items():
            if key == "then":
                yield from steps(value)
            else:
                yield str(key), value


def _faults(case: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(case, _CASE, "")
    for key in ("rule", "name"):
        if not isinstance(case.get(key), str) or not case[key].strip():
            yield f"{key}: expected a text, got {case.get(key)!r}"
    if "skip" in case and case["skip"] is not True:
        yield f"skip: expected true, got {case['skip']!r}"
    if case.get("skip") is True and ("action" in case or "expect" in case):
        yield "skip: expected a case without action and expectations, got one with both"
    if "action" in case and not case.get("expect"):
        yield "expect: expected expectations for the case's action, got none"
    if "expect" in case and "action" not in case:
        yield "action: expected an action for the case's expectations, got none"
    yield from _setup_faults(case.get("setup"))
    yield from _action_faults(case.get("action"))
    yield from _expect_faults(case.get("expect"))


def _unknown(value: Any, known_keys: frozenset[str], where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where}: expected a mapping, got {value!r}"
        return
    for key in value:
        if key not in known_keys:
            inner = f"{where}.{key}" if where else str(key)
            yield f"{inner}: the runner knows no such key; known here: {', '.join(sorted(known_keys))}"


def _setup_faults(setup: Any) -> Iterator[str]:
    if setup is None:
        return
    if not isinstance(setup, Mapping):
        yield f"setup: expected a mapping, got {setup!r}"
        return
    for key, value in setup.items():
        where = f"setup.{key}"
        if CRYSTAL_KEY.match(str(key)):
            yield from _crystal_faults(value, where)
        elif key not in _SETUP:
            yield f"{where}: the runner knows no such key; known here: a crystal, {', '.join(sorted(_SETUP))}"
        elif key == "crystals" and isinstance(value, Mapping):
            for name, crystal in value.items():
                yield from _crystal_faults(crystal, f"{where}.{name}")
        elif key == "circle":
            yield from _circle_faults(value)
        elif key in _FLAT:
            yield from _unknown(value, _FLAT[key], where)
        elif key == "loom" and value not in ("memory", "jsonl"):
            yield f"{where}: expected memory or jsonl, got {value!r}"


_FLAT: Mapping[str, frozenset[str]] = {"call": _CALL, "folding": _FOLDING, "retry": _RETRY, "cantrip": _CANTRIP}


def _crystal_faults(crystal: Any, where: str) -> Iterator[str]:
    if crystal is None or isinstance(crystal, str):
        return
    yield from _unknown(crystal, _CRYSTAL, where)
    if not isinstance(crystal, Mapping):
        return
    if ("provider" in crystal) != ("raw_response" in crystal) or ("provider" in crystal) == ("responses" in crystal):
        yield f"{where}: expected responses, or a provider and its raw_response"
    if "type" in crystal and crystal["type"] != "code_circle":
        yield f"{where}.type: expected code_circle, got {crystal['type']!r}"
    if "usage" in crystal:
        yield from _unknown(crystal["usage"], _USAGE, f"{where}.usage")
    for flag in ("record_inputs", "stateless", "retry_behavior"):
        if flag in crystal and crystal[flag] is not True:
            yield f"{where}.{flag}: expected true, got {crystal[flag]!r}"
    for n, response in enumerate(crystal.get("responses") or ()):
        yield from _response_faults(response, f"{where}.responses[{n}]")


def _response_faults(response: Any, where: str) -> Iterator[str]:
    yield from _unknown(response, _RESPONSE, where)
    if not isinstance(response, Mapping):
        return
    if response.get("error") is not None:
        yield from _unknown(response["error"], _ERROR, f"{where}.error")
    if response.get("usage") is not None:
        yield from _unknown(response["usage"], _USAGE, f"{where}.usage")
    for n, call in enumerate(response.get("tool_calls") or ()):
        yield from _unknown(call, _TOOL_CALL, f"{where}.tool_calls[{n}]")


def _circle_faults(circle: Any) -> Iterator[str]:
    if circle is None:
        return
    yield from _unknown(circle, _CIRCLE, "setup.circle")
    if not isinstance(circle, Mapping):
        return
    if "type" in circle and circle["type"] != "code":
        yield f"setup.circle.type: expected code, got {circle['type']!r}"
    for n, gate in enumerate(circle.get("gates") or ()):
        if isinstance(gate, str):
            continue
        where = f"setup.circle.gates[{n}]"
        yield from _unknown(gate, _GATE, where)
        if isinstance(gate, Mapping) and gate.get("behavior", "delay") not in _BEHAVIORS:
            yield f"{where}.behavior: expected one of {', '.join(sorted(_BEHAVIORS))}, got {gate['behavior']!r}"


def _action_faults(action: Any) -> Iterator[str]:
    if action is None:
        return
    all_steps = list(steps(action))
    if not all_steps:
        yield f"action: expected steps, got {action!r}"
    for name, value in all_steps:
        if name not in _STEPS:
            yield f"action.{name}: the runner knows no such step; known: {', '.join(sorted(_STEPS))}"
        elif (step_keys := _STEPS[name]) is not None:
            yield from _unknown(value, step_keys, f"action.{name}")


def _expect_faults(expect: Any) -> Iterator[str]:
    if expect is None:
        return
    if not isinstance(expect, Mapping):
        yield f"expect: expected a mapping, got {expect!r}"
        return
    for key, value in expect.items():
        if not knows(key):
            yield f"expect.{key}: the runner knows no such key"
        yield from _vacuous(str(key), value, f"expect.{key}")


_LOOKED_FOR = re.compile(r"(_contains|_includes?|_excludes?)$")
"""Keys whose value is a text to look for, or a list of such."""

_FIRST_ONES = re.compile(r"crystal\w*_received$|^crystal_received$|^expect\.loom\.turns$")
"""Keys whose list may be followed by further items, so that an empty list states nothing."""

_ALWAYS_THERE = _words("loom thread call each first last last_turn first_message last_message")
"""Keys whose subject is never null."""


def _vacuous(key: str, value: Any, where: str) -> Iterator[str]:
    """Yield the statements that no run of the product could contradict."""
    if value == {} and isinstance(value, Mapping):
        yield f"{where}: states nothing: expected what has to hold, got an empty mapping"
    elif isinstance(value, Mapping):
        for inner, part in value.items():
            if inner != "args":  # those of a call may be none
                yield from _vacuous(str(inner), part, f"{where}.{inner}")
    elif isinstance(value, list):
        if not value and (_LOOKED_FOR.search(key) or _FIRST_ONES.search(key) or _FIRST_ONES.search(where)):
            yield f"{where}: states nothing: expected what has to be there, got an empty list"
        for n, part in enumerate(value):
            if part != {}:  # an item that may be anything still counts
                yield from _vacuous("", part, f"{where}[{n}]")
    elif value == "not_null" and key in _ALWAYS_THERE:
        yield f"{where}: states nothing: it is never null"
    elif isinstance(value, str) and (pattern := PATTERN.match(value)) and _matches_anything(pattern[1]):
        yield f"{where}: states nothing: {value} matches any text"


def _matches_anything(pattern: str) -> bool:
    try:
        return all(re.search(pattern, text) for text in ("", "x", "another text\n"))
    except re.error:
        return False
