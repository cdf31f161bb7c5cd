"""An evaluation as a YAML or TOML file: its cantrip, cases and scorers, for `cantrip eval`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cantrip_actors import Cantrip, InvalidCantrip
from cantrip_actors.evals.cases import (
    Case,
    InvalidEvaluation,
    build_cases,
    list_document_rows,
    load_cases,
    read_document,
)
from cantrip_actors.evals.scorers import AnyScorer, Judge, Scorer, check_scorers, contains, exact, judge
from cantrip_actors.recipes import load_recipe
from cantrip_actors.recipes.reader import RecipeReader, describe, find_path
from cantrip_actors.terms.arguments import is_positive, is_short_name, is_whole
from cantrip_actors.terms.imports import import_part

_KINDS: Final[Mapping[str, type]] = {"cantrip": str, "scorers": list, "name": str}
_KEYS: Final = ("cantrip", "cases", "scorers", "repeat", "at_once", "budget", "name")
_JUDGE_KINDS: Final[Mapping[str, type]] = {"judge": str, "crystal": str, "name": str}
_SCORERS: Final[Mapping[str, Callable[[], Scorer]]] = {"exact": exact, "contains": contains}
_CHECKS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "repeat": (lambda value: is_whole(value, 1), "a whole number from 1 on"),
    "at_once": (lambda value: is_whole(value, 1), "a whole number from 1 on"),
    "budget": (is_positive, "US dollars above 0"),
    "name": (is_short_name, "a text of 1 to 200 characters"),
}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The content of an evaluation's file. `options` are further arguments of `evaluate`."""

    cantrip: Cantrip
    cases: list[Case]
    scorers: list[Scorer | Judge]
    options: Mapping[str, Any]


def load_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """Return the evaluation that a file describes: `cantrip`, `cases` and `scorers`, and arguments of `evaluate`.

    `cantrip` is the path of a recipe or `module:attribute`, `cases` a path or a list, a scorer `exact`, `contains`,
    `python:module:function` or `{judge: rubric, crystal: …}`. Paths and modules are relative to the file's folder.

    Raises InvalidEvaluation with every mistake of the file, or of its file of cases; InvalidRecipe for its recipe.
    """
    file = Path(path)
    reader = _EvaluationReader(read_document(file, "file of an evaluation"))
    evaluation = reader.evaluation()
    if evaluation is None:
        raise InvalidEvaluation(file, sorted(reader.mistakes, key=lambda mistake: mistake.line or 0))
    return evaluation


class _EvaluationReader(RecipeReader):
    """Reads the file of an evaluation."""

    def evaluation(self) -> Evaluation | None:
        """Return the evaluation, or None if there are mistakes."""
        data = self.document.data
        if not isinstance(data, dict):
            self.wrong((), f"expected a mapping with cantrip, cases and scorers, got {describe(data)}", line=1)
            return None
        parts = self.keep_typed(self.keep_known(data, _KEYS, (), ""), _KINDS, ())
        for name in ("cantrip", "cases"):
            if data.get(name) is None:
                self.wrong((), f"{name} is missing: expected at least cantrip, cases and scorers")
        for name, (fits, expected) in _CHECKS.items():
            if name in parts and not fits(parts[name]):
                self.wrong((name,), f"{name}: expected {expected}, got {describe(parts[name])}")
        scorers = [self._scorer(item, index) for index, item in enumerate(parts.pop("scorers", ["exact"]))]
        with self.at(("scorers",)):
            checked = _name_scorers([scorer for scorer in scorers if scorer is not None])
        cases = self._cases(parts.pop("cases", None)) if "cases" in parts else []
        source = parts.pop("cantrip", None)
        cantrip = None
        if source is not None:
            with self.at(("cantrip",)):
                cantrip = self._cantrip(source)
        return None if self.mistakes or cantrip is None else Evaluation(cantrip, cases, checked, parts)

    def _cases(self, value: Any) -> list[Case]:
        if isinstance(value, str):
            return load_cases(find_path(self.folder, value))
        return build_cases(list_document_rows(self.document, value, ("cases",), self.mistakes), self.mistakes)

    def _cantrip(self, source: str) -> Cantrip:
        module, has_attribute, _ = source.partition(":")
        is_module = bool(has_attribute) and all(map(str.isidentifier, module.split(".")))
        if not is_module:
            return load_recipe(find_path(self.folder, source))
        cantrip = self._import(source)
        if not isinstance(cantrip, Cantrip):
            raise InvalidCantrip(f"{source}: expected a cantrip, got {describe(cantrip)}")
        return cantrip

    def _scorer(self, item: Any, index: int) -> AnyScorer | None:
        where = ("scorers", index)
        with self.at(where):
            if isinstance(item, str) and item in _SCORERS:
                return _SCORERS[item]()
            if isinstance(item, str) and item.startswith("python:"):
                scorer = self._import(item.removeprefix("python:"))
                return _check_function(item, scorer)
            if isinstance(item, dict) and {"judge", "crystal"} <= item.keys():
                values = self.keep_typed(self.keep_known(item, _JUDGE_KINDS, where, "a judge"), _JUDGE_KINDS, where)
                if values.keys() == item.keys():
                    return judge(values.pop("judge"), **values)
                return None
            expected = "exact, contains, python:module:function or {judge: rubric, crystal: …}"
            self.wrong(where, f"a scorer: expected {expected}, got {describe(item)}")
        return None

    def _import(self, source: str) -> Any:
        """Return the attribute that `module:attribute` names. Raises InvalidCantrip."""
        self.make_importable()
        return import_part(source, source)


def _check_function(source: str, scorer: Any) -> AnyScorer:
    if not callable(scorer) and not isinstance(scorer, Scorer | Judge):
        raise InvalidCantrip(f"{source}: expected a function, got {describe(scorer)}")
    checked: AnyScorer = scorer
    return checked


def _name_scorers(scorers: list[AnyScorer]) -> list[Scorer | Judge]:
    try:
        return check_scorers(scorers)
    except ValueError as error:
        raise InvalidCantrip(str(error)) from error
