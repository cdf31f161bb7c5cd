"""The terms of a contract: how each field is read, and the rules for it. All violations are reported at once.

The thirteen rules come from dispatch files, where they check a text. Here they check values:

    rule                what it asks for
    ------------------  -------------------------------------------------------------------------------------------
    sections            title, objective, acceptance, scope, background, sources, technical_context, tasks and
                        verification are there and say something
    variables           no unresolved {UPPER_CASE} variable, in any text
    acceptance          at least one criterion; each is open, since a criterion is met by evidence and not by a tick
    metadata            project, repo, priority, dispatched_at (a date) and needs_approval are there
    repo                does not begin with ./, ../ or ~: the worker runs elsewhere
    status              queued, if it is said at all
    approval            needs_approval is yes or no (true or false)
    sources             at least one; each with a path that is not relative, and a description
    tasks               at least one
    verification, background, technical_context
                        at least ten characters
    decision            a contract that needs approval names the decision, in at least ten characters

and two of our own: `type` (each field is of its type, and known) and `terms` (what is optional makes sense: an id that
can be a file's name, outputs inside the repository, numbers in their range).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from posixpath import normpath
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_type_hints

from cantrip_actors.terms.arguments import check_kind, is_number, is_whole
from cantrip_actors.terms.errors import suggest_nearest
from cantrip_actors.terms.problems import shorten

DispatchRole: TypeAlias = Literal["orchestrator", "worker", "loop"]
Depth: TypeAlias = Literal["minimal", "standard", "full"]
WardPairs: TypeAlias = tuple[tuple[str, Any], ...]
ContractPath: TypeAlias = tuple[str | int, ...]

SUBSTANCE = 10
"""Characters that background, technical context, verification and a decision need at least."""

_ID = re.compile(r"(?!.*\.\.)[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?")
_VARIABLE = re.compile(r"\{[A-Z][A-Z0-9_]*\}")
_ELSEWHERE = ("./", "../", "~")
_ABSOLUTE = re.compile(r"/|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SOURCE = re.compile(r"`(?P<path>[^`]+)`\s*(?:—|–|-|:)+\s*(?P<description>\S.*)")
_TICKED = re.compile(r"\[[xX]\]\s")
PLACEHOLDERS = frozenset({"tbd", "todo", "n/a", "na", "none", "fixme", "pending", "placeholder", "later", "wip", "xxx"})
"""Words that people write in place of evidence."""

_ORNAMENT = re.compile(r"<!--.*?-->|[\s.…\-–—_*`?:()\[\]<>]+", re.DOTALL)  # the dashes people type


class Rule(StrEnum):
    """The rules, by name; the head of this file explains them."""

    SECTIONS = "sections"
    VARIABLES = "variables"
    ACCEPTANCE = "acceptance"
    METADATA = "metadata"
    REPO = "repo"
    STATUS = "status"
    APPROVAL = "approval"
    SOURCES = "sources"
    TASKS = "tasks"
    VERIFICATION = "verification"
    BACKGROUND = "background"
    TECHNICAL_CONTEXT = "technical_context"
    DECISION = "decision"
    TYPE = "type"
    TERMS = "terms"


class Violation(NamedTuple):
    """A broken rule: the path of the value (`("sources", 1, "path")`, counted from 0), and the problem.

    `line` is that of the value in the text of the contract, from 1; None without one. A mistake in the layout of the
    text has no path.
    """

    rule: Rule
    where: ContractPath
    text: str
    line: int | None = None

    @property
    def field(self) -> str:
        """The path of the value in words: `sources[2].path`, counted from 1."""
        return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in self.where).lstrip(".")

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class Source:
    """A file (or address) that the worker needs, and why."""

    path: str
    description: str


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A planned step of a loop; its output is in the log. Only the purpose is required."""

    purpose: str
    inputs: str = ""
    actions: str = ""
    expected: str = ""
    verification: str = ""


@dataclass(frozen=True, kw_only=True)
class ContractTerms:
    """The fields of a contract, with their types and defaults; `Contract` has the checks and the meaning."""

    title: str
    project: str
    repo: str
    priority: str
    dispatched_at: str
    needs_approval: bool
    objective: str
    acceptance: tuple[str, ...]
    scope: tuple[str, ...]
    background: str
    sources: tuple[Source, ...]
    technical_context: str
    tasks: tuple[str, ...]
    verification: str
    dispatch_id: str = ""
    intent: str = ""
    role: DispatchRole = "worker"
    decision_needed: str = ""
    budget: float | None = None
    type: str = ""
    source: str = ""
    skill_chain: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    wards: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str, ...] = ()
    supersedes: str = ""
    lessons: tuple[str, ...] = ()
    steps: tuple[PlannedStep, ...] = ()
    depth: Depth | None = None
    max_iterations: int = 5
    review_cap: int = 3
    entity_id: str = ""
    cantrip_id: str = ""
    parent_entity_id: str = ""
    spawned_by: str = ""

    def __post_init__(self) -> None:
        """Do nothing: `Contract` checks its fields here."""


class InvalidValue(Exception):
    """A value that its reader refuses."""

    def __init__(self, text: str, rule: Rule = Rule.TYPE, where: ContractPath = ()) -> None:
        self.text, self.rule, self.where = text, rule, where


def check_terms(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """Return the fields of a contract in `data`, as far as they can be read, and all mistakes.

    A field that is None is missing. The fields are a contract's only if there are no mistakes.
    """
    check_kind("contract", data, Mapping, "a mapping of fields")
    clean: dict[str, Any] = {}
    violations: list[Violation] = []
    for name, value in data.items():
        if name not in READERS:
            hint = suggest_nearest(str(name), READERS)
            violations.append(Violation(Rule.TYPE, (str(name),), f"no contract has this field; {hint}"))
        elif value is not None:
            try:
                clean[name] = READERS[name](value)
            except InvalidValue as bad:
                violations.append(Violation(bad.rule, (name, *bad.where), bad.text))
    unread = {violation.where[0] for violation in violations}
    for rule in RULES:
        violations += (violation for violation in rule(clean) if violation.where[0] not in unread)
    clean.pop("status", None)
    order = {name: at for at, name in enumerate(READERS)}
    violations.sort(key=lambda violation: order.get(str(violation.where[0]), len(order)))
    return clean, tuple(dict.fromkeys(violations))


# ------------------------------------------------------------------------------------------------------ reading fields


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"expected text, got {shorten(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue("expected text that UTF-8 can say, got half a surrogate pair") from None
    return value.strip()


def _read_list(value: object, read: Callable[[Any], Any], what: str) -> tuple[Any, ...]:
    """Return the items of a list, each as `read` returns it; `what` describes them."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidValue(f"expected a list of {what}, got {shorten(value)}")
    items = []
    for index, item in enumerate(value):
        try:
            items.append(read(item))
        except InvalidValue as bad:
            raise InvalidValue(bad.text, bad.rule, (index, *bad.where)) from None
    return tuple(items)


def read_texts(value: object) -> tuple[str, ...]:
    """Return the texts of a list, or the one text. Raises InvalidValue."""
    return _read_list((value,) if isinstance(value, str) else value, _read_text, "texts")


def _read_source(value: object) -> Source:
    if isinstance(value, Source):
        value = {"path": value.path, "description": value.description}
    elif isinstance(value, str) and (match := _SOURCE.fullmatch(" ".join(value.split()))):
        value = match.groupdict()
    if not isinstance(value, Mapping) or set(value) != {"path", "description"}:
        raise InvalidValue(f"expected `/path/in/full` — why it matters, got {shorten(value)}", Rule.SOURCES)
    return Source(_read_text(value["path"]), _read_text(value["description"]))


def _read_step(value: object) -> PlannedStep:
    if isinstance(value, PlannedStep):
        return value
    if isinstance(value, str):
        return PlannedStep(_read_text(value))
    names = PlannedStep.__dataclass_fields__
    if not isinstance(value, Mapping) or "purpose" not in value:
        raise InvalidValue(f"expected a step with its purpose, got {shorten(value)}")
    for name in value:
        if name not in names:
            raise InvalidValue(f"no step has a field {shorten(name)}; {suggest_nearest(str(name), names)}")
    return PlannedStep(**{name: _read_text(text) for name, text in value.items()})


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("yes", "no"):
        return value.strip().lower() == "yes"
    raise InvalidValue(f"expected yes or no, got {shorten(value)}", Rule.APPROVAL)


def _read_count(value: object) -> int:
    if not is_whole(value, 1, 10_000):
        raise InvalidValue(f"expected a whole number from 1 to 10,000, got {shorten(value)}", Rule.TERMS)
    return value


def _read_amount(value: object) -> float:
    if not is_number(value) or not 0 < value <= sys.float_info.max:
        raise InvalidValue(f"expected an amount in US dollars > 0, got {shorten(value)}", Rule.TERMS)
    return float(value)


def _read_one_of(value: object, allowed: tuple[str, ...]) -> str:
    text = _read_text(value).lower()
    if text not in allowed:
        raise InvalidValue(f"expected one of {', '.join(allowed)}, got {shorten(value)}", Rule.TERMS)
    return text


def _read_wards(value: object) -> WardPairs:
    """Read wards from `{max_turns: 10}`, `[{max_turns: 10}]`, `["require_done_tool"]` or pairs."""
    items = tuple(value.items()) if isinstance(value, Mapping) else value
    return _read_list(items, _read_ward, "wards, such as {max_turns: 10}")


def _read_ward(value: object) -> tuple[str, Any]:
    if isinstance(value, str):
        value = (value, True)
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, number),) = value.items()
        value = (name, number)
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], (str, int, float, bool)):
        raise InvalidValue(f"expected one ward and its value, such as {{max_turns: 10}}, got {shorten(value)}")
    if isinstance(value[1], float) and not abs(value[1]) < float("inf"):
        raise InvalidValue(f"expected a finite number, got {shorten(value[1])}")
    if isinstance(value[1], int) and not abs(value[1]) < 1 << 63:
        raise InvalidValue(f"expected a number of at most 64 bits, got {shorten(value[1])}")
    return _read_text(value[0]), _read_text(value[1]) if isinstance(value[1], str) else value[1]


_READERS_OF_TYPES: Mapping[Any, Callable[[Any], Any]] = {
    str: _read_text,
    bool: _read_flag,
    int: _read_count,
    float | None: _read_amount,
    DispatchRole: partial(_read_one_of, allowed=get_args(DispatchRole)),
    Depth | None: partial(_read_one_of, allowed=get_args(Depth)),
    tuple[str, ...]: read_texts,
    tuple[Source, ...]: partial(_read_list, read=_read_source, what="sources, each with path and description"),
    tuple[PlannedStep, ...]: partial(_read_list, read=_read_step, what="steps, each a text or with its purpose"),
    WardPairs: _read_wards,
}
READERS: Mapping[str, Callable[[Any], Any]] = {
    **{name: _READERS_OF_TYPES[kind] for name, kind in get_type_hints(ContractTerms).items()},
    "status": _read_text,
}
"""How each field is read, by its type; and the status, which may be given if it is queued."""

ROWS = (
    "Dispatch",
    "Project",
    "Repo",
    "Priority",
    "Dispatched",
    "Status",
    "Needs Approval",
    "Decision Needed",
    "Role",
    "Intent",
    "Type",
    "Source",
    "Skill Chain",
    "Gates",
    "Wards",
    "Budget Cap",
    "Supersedes",
    "Depth",
    "Max Iterations",
    "Review Cap",
    "Parent Entity",
    "Spawned By",
    "Entity",
    "Cantrip",
)
"""The titles of the metadata rows in Markdown, in their order."""

_TITLES = {
    "dispatch": "dispatch_id",
    "dispatched": "dispatched_at",
    "budget_cap": "budget",
    "entity": "entity_id",
    "cantrip": "cantrip_id",
    "parent_entity": "parent_entity_id",
    "acceptance_criteria": "acceptance",
    "scope_boundaries": "scope",
    "source_files": "sources",
    "verification_gate": "verification",
}


def find_field(title: str) -> str:
    """Return the field that people call `title`: "Budget Cap" is `budget`; an unknown title is returned unchanged."""
    name = title.strip().lower().replace(" ", "_").replace("-", "_")
    return _TITLES.get(name, name)


# --------------------------------------------------------------------------------------------------------------- rules

ContractFields: TypeAlias = dict[str, Any]

SECTIONS = ("title", "objective", "acceptance", "scope", "background", "sources", "technical_context", "tasks")
METADATA = ("project", "repo", "priority", "dispatched_at")
_AT_LEAST_ONE: Mapping[str, tuple[Rule, str]] = {
    "acceptance": (Rule.ACCEPTANCE, "expected at least one criterion, got none"),
    "scope": (Rule.SECTIONS, "is empty: say what is not addressed"),
    "sources": (Rule.SOURCES, "expected at least one file to begin with, got none"),
    "tasks": (Rule.TASKS, "expected at least one step, got none"),
}
_NEVER_BLANK: Mapping[str, tuple[Rule, str]] = {
    "acceptance": (Rule.ACCEPTANCE, "is empty: a criterion says what can be checked"),
    "scope": (Rule.SECTIONS, "is empty: say what is not addressed"),
    "tasks": (Rule.TASKS, "is empty"),
    **dict.fromkeys(("gates", "skill_chain", "lessons"), (Rule.TERMS, "is empty")),
}


def _check_sections(fields: ContractFields) -> Iterator[Violation]:
    for name in (*SECTIONS, "verification"):
        if name not in fields:
            yield Violation(Rule.SECTIONS, (name,), "is missing: a contract has to say it")
        elif name in ("title", "objective") and not fields[name]:
            yield Violation(Rule.SECTIONS, (name,), "is empty: a contract has to say it")
    for name, (rule, what) in _AT_LEAST_ONE.items():
        if fields.get(name) == ():
            yield Violation(rule, (name,), what)
    for name, (rule, what) in _NEVER_BLANK.items():
        for index, text in enumerate(fields.get(name, ())):
            if not text:
                yield Violation(rule, (name, index), what)


def _check_variables(fields: ContractFields) -> Iterator[Violation]:
    for name, value in fields.items():
        for where, text in () if name == "lessons" else _list_texts((name,), value):  # a lesson may quote variables
            for variable in dict.fromkeys(_VARIABLE.findall(text)):
                yield Violation(Rule.VARIABLES, where, f"the variable {variable} was left open: fill it in")


def _list_texts(where: ContractPath, value: object) -> Iterator[tuple[ContractPath, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, (Source, PlannedStep)):
        for part in value.__dataclass_fields__:
            yield (*where, part), getattr(value, part)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _list_texts((*where, index), item)


def _check_acceptance(fields: ContractFields) -> Iterator[Violation]:
    for index, text in enumerate(fields.get("acceptance", ())):
        if _TICKED.match(text):
            yield Violation(Rule.ACCEPTANCE, ("acceptance", index), "is ticked already: evidence meets it, not a tick")


def _check_metadata(fields: ContractFields) -> Iterator[Violation]:
    for name in (*METADATA, "needs_approval"):
        if fields.get(name, "") == "":
            yield Violation(Rule.METADATA, (name,), "is missing")
    if when := fields.get("dispatched_at"):
        try:
            datetime.fromisoformat(when)
        except ValueError:
            text = f"expected a date such as 2026-02-26, or with a time, got {shorten(when)}"
            yield Violation(Rule.METADATA, ("dispatched_at",), text)


def _check_repo(fields: ContractFields) -> Iterator[Violation]:
    if fields.get("repo", "").startswith(_ELSEWHERE) or fields.get("repo") in (".", ".."):
        text = f"expected a place that is the same everywhere, got {shorten(fields['repo'])}: write it in full"
        yield Violation(Rule.REPO, ("repo",), text)


def _check_status(fields: ContractFields) -> Iterator[Violation]:
    if fields.get("status", "queued").lower() != "queued":
        text = f"expected queued, got {shorten(fields['status'])}: every dispatch begins so, and its log has the rest"
        yield Violation(Rule.STATUS, ("status",), text)


def _check_sources(fields: ContractFields) -> Iterator[Violation]:
    for index, source in enumerate(fields.get("sources", ())):
        if not _ABSOLUTE.match(source.path):
            text = f"expected a path in full, got {shorten(source.path)}"
            yield Violation(Rule.SOURCES, ("sources", index, "path"), text)
        if not source.description:
            text = "is empty: say why the file matters"
            yield Violation(Rule.SOURCES, ("sources", index, "description"), text)


def _check_substance(fields: ContractFields) -> Iterator[Violation]:
    for name in ("verification", "background", "technical_context"):
        if name in fields and len(fields[name]) < SUBSTANCE:
            text = f"expected at least {SUBSTANCE} characters, got {shorten(fields[name])}"
            yield Violation(Rule(name), (name,), text)


def _check_decision(fields: ContractFields) -> Iterator[Violation]:
    decision = fields.get("decision_needed", "")
    if fields.get("needs_approval") and len(decision) < SUBSTANCE:
        text = f"what needs approval says which decision is needed, in at least {SUBSTANCE} characters"
        yield Violation(Rule.DECISION, ("decision_needed",), f"{text}; got {shorten(decision)}")


def _check_all_terms(fields: ContractFields) -> Iterator[Violation]:
    for name in ("dispatch_id", "supersedes"):
        if fields.get(name) and not is_id(fields[name]):
            text = f"expected small letters, digits, '-', '_' and '.', at most 128, got {shorten(fields[name])}"
            yield Violation(Rule.TERMS, (name,), text)
    if fields.get("supersedes") and fields.get("supersedes") == fields.get("dispatch_id"):
        yield Violation(Rule.TERMS, ("supersedes",), "a dispatch cannot supersede itself: give it an id of its own")
    for index, path in enumerate(fields.get("outputs", ())):
        if not path or path.startswith("~") or normpath(path).split("/")[0] == ".." or normpath(path) == ".":
            text = f"expected a path in the repository, or in full, got {shorten(path)}"
            yield Violation(Rule.TERMS, ("outputs", index), text)
    for index, step in enumerate(fields.get("steps", ())):
        if not step.purpose:
            yield Violation(Rule.TERMS, ("steps", index, "purpose"), "is empty")


RULES: tuple[Callable[[ContractFields], Iterator[Violation]], ...] = (
    _check_sections,
    _check_variables,
    _check_acceptance,
    _check_metadata,
    _check_repo,
    _check_status,
    _check_sources,
    _check_substance,
    _check_decision,
    _check_all_terms,
)


def is_id(text: str) -> bool:
    """Return whether `text` can be the id of a dispatch, and with it the name of a file."""
    return _ID.fullmatch(text) is not None


def is_placeholder(text: str) -> bool:
    """Return whether `text` says nothing: empty, only punctuation, or a word such as TBD with any decoration.

    >>> is_placeholder(" - "), is_placeholder("**TODO**..."), is_placeholder("todo list is tested")
    (True, True, False)
    """
    words = _ORNAMENT.sub(" ", text).strip().lower()
    return not words or words in PLACEHOLDERS
