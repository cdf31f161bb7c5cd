"""The contract of a dispatch: an entity's task, frozen the moment it is dispatched.

A `Contract` that exists is valid (`terms.py` has the rules) and never changes; no operation changes one. Other terms
need another dispatch, made with `superseding`: a new contract, under its own id, with the lessons so far.
Progress and status are not part of a contract: its log has them.

The hash covers the canonical JSON: sorted names, no white space, and only the fields that differ from their defaults,
so that a field of a later version changes no hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn

import orjson

from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.terms import ContractTerms, Violation, check_terms
from cantrip_actors.terms.errors import ImmutableError


class InvalidContract(DispatchError, ValueError):
    """A contract that breaks rules: `violations` has every one of them, and the message lists them all.

    `file` is the name of its file, for the message.
    """

    def __init__(self, violations: tuple[Violation, ...], file: str = "") -> None:
        self.violations = violations
        many = "1 rule is" if len(violations) == 1 else f"{len(violations)} rules are"
        lines = (
            f"{file}{'' if violation.line is None else f':{violation.line}'}: {violation}" if file else f"- {violation}"
            for violation in violations
        )
        super().__init__(f"{file or 'the contract'} is invalid, {many} broken:\n" + "\n".join(lines))

    @property
    def mistakes(self) -> list[Violation]:
        """The violations with texts that name the field, as other errors of files list their mistakes."""
        return [violation._replace(text=str(violation)) for violation in self.violations]


class Contract(ContractTerms):
    """The task of an entity, and its terms: valid, and frozen.

    Text fields are stripped; lists become tuples. `intent` defaults to the objective, `dispatch_id` to one made of
    date, project and title. `outputs` are the paths that will be written, for `overlaps`; `lessons` is what was learned
    before; `steps` (or, without any, `tasks`) are the plan of a `loop`, `depth` selects its phases, with at most
    `max_iterations` attempts at each and `review_cap` rounds of review. `budget` is in US dollars. `gates` and `wards`
    are granted to the worker; `spawned_by` is the turn that dispatched it.

    Raises InvalidContract with all violations, ImmutableError when a field is set afterwards.
    """

    def __post_init__(self) -> None:
        clean, violations = check_terms({field.name: getattr(self, field.name) for field in fields(ContractTerms)})
        if not violations:
            clean["intent"] = clean["intent"] or clean["objective"]
            clean["dispatch_id"] = clean["dispatch_id"] or make_id(clean)
            clean, violations = check_terms(clean)
        if violations:
            raise InvalidContract(violations)
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"a contract is frozen: cannot set {name}; dispatch a new one that supersedes it")

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(f"a contract is frozen: cannot delete {name}; dispatch a new one")

    @cached_property
    def canonical(self) -> bytes:
        """The contract as canonical JSON, which its hash covers."""
        return orjson.dumps(self.as_json(), option=orjson.OPT_SORT_KEYS)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return sha256(self.canonical).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the contract as JSON data: the fields that differ from their defaults."""
        stated: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                stated[field.name] = value
        stated["sources"] = [asdict(source) for source in self.sources]
        if self.steps:
            stated["steps"] = [{name: text for name, text in asdict(step).items() if text} for step in self.steps]
        if self.wards:
            stated["wards"] = [{name: value} for name, value in self.wards]
        return stated


def require_contract(drafted: Contract | tuple[Violation, ...], file: str = "") -> Contract:
    """Return the contract that `draft` or a parser returned. Raises InvalidContract for violations."""
    if isinstance(drafted, Contract):
        return drafted
    raise InvalidContract(drafted, file)


def draft(data: Mapping[str, Any]) -> Contract | tuple[Violation, ...]:
    """Return the contract that `data` (fields to values) describes, or everything that is wrong.

    `needs_approval` may be "yes" or "no", a source or step a mapping, a ward `{max_turns: 10}`. A `status` may be given
    if it is queued.
    """
    clean, violations = check_terms(data)
    return violations or Contract(**clean)


def make_id(terms: Mapping[str, Any]) -> str:
    """Return the default id of a dispatch: its date, its project and the first words of its title.

    >>> make_id({"dispatched_at": "2026-02-26T09:00:00Z", "project": "Notes", "title": "Mend the search, at last!"})
    '2026-02-26-notes-mend-the-search-at-last'
    """
    words = [re.sub(r"[^a-z0-9]+", "-", str(terms[name]).lower()).strip("-") for name in ("project", "title")]
    parts = [str(terms["dispatched_at"])[:10], words[0][:40].rstrip("-"), words[1][:60].rstrip("-")]
    return "-".join(part for part in parts if part)
