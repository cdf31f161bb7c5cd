"""The report of an evaluation: its trials, what they add up to, and the comparison with an earlier report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cantrip_actors.evals.bootstrap import Interval, bootstrap_mean


@dataclass(frozen=True, slots=True)
class Trial:
    """One case, cast once: how it ended, what it cost, and its scores.

    A trial that ended without an answer scores 0 by every scorer. `problems` says of each missing score why it is
    missing: the scorer raised, or the judge gave no score. `seconds` is the time that its turns took.
    """

    case: str
    repeat: int
    entity_id: str
    reason: str
    detail: str | None
    answer: Any
    turns: int
    tokens: int
    cost: float
    judging_cost: float
    seconds: float
    tags: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """How one score differs from a baseline, over the cases that both have.

    `difference` is the mean of the differences of the cases, with its interval. `better` and `worse` are the ids of
    cases, those that differ most first.
    """

    scorer: str
    before: float
    after: float
    difference: Interval
    better: tuple[str, ...]
    worse: tuple[str, ...]
    same: int

    @property
    def verdict(self) -> str:
        """Return "better" or "worse" if the whole interval lies on that side of 0, else "unclear"."""
        return "better" if self.difference.low > 0 else "worse" if self.difference.high < 0 else "unclear"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A report beside an earlier one. `unpaired` are the ids of cases that only one of the two has."""

    name: str
    baseline: str
    changes: tuple[ScoreChange, ...]
    unpaired: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        """Whether a score is worse by its whole confidence interval."""
        return any(change.verdict == "worse" for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON value."""
        changes = [
            {**asdict(change), "difference": change.difference._asdict(), "verdict": change.verdict}
            for change in self.changes
        ]
        return {"name": self.name, "baseline": self.baseline, "changes": changes, "unpaired": list(self.unpaired)}


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an evaluation. `left` counts the trials and scores that its budget did not allow."""

    name: str
    scorers: tuple[str, ...]
    trials: tuple[Trial, ...]
    left: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every case was cast, and scored as often as asked for."""
        return not self.left

    @property
    def cost(self) -> float:
        """The cost of the answers, in US dollars."""
        return sum(trial.cost for trial in self.trials)

    @property
    def judging_cost(self) -> float:
        """The cost of the judgements, in US dollars."""
        return sum(trial.judging_cost for trial in self.trials)

    @property
    def failures(self) -> dict[str, int]:
        """How many trials ended without an answer, and how many scores are missing, by reason; the most first."""
        reasons = Counter(
            trial.detail or trial.reason if trial.reason == "failed" else trial.reason
            for trial in self.trials
            if trial.reason != "terminated"
        )
        problems = Counter(f"{name}: {why}" for trial in self.trials for name, why in trial.problems.items())
        return dict((reasons + problems).most_common())

    def summarize(self, scorer: str) -> Interval | None:
        """Return the mean of a score with its 95% confidence interval; None without a score.

        The trials of a case count as one value, their mean, since they are not independent.
        """
        means = self.average_by_case(scorer)
        return bootstrap_mean([*means.values()]) if means else None

    def average_by_case(self, scorer: str) -> dict[str, float]:
        """Return the mean score of each case that has one."""
        scores: dict[str, list[float]] = {}
        for trial in self.trials:
            if scorer in trial.scores:
                scores.setdefault(trial.case, []).append(trial.scores[scorer])
        return {case: _average(values) for case, values in scores.items()}

    def filter_by_tag(self, tag: str) -> Report:
        """Return the report of the cases with that tag."""
        return replace(self, trials=tuple(trial for trial in self.trials if tag in trial.tags))

    def compare(self, baseline: Report) -> Comparison:
        """Return which scores and cases are better or worse than in `baseline`, paired by the ids of the cases."""
        changes = [self._compare_score(name, baseline) for name in self.scorers]
        unpaired = {trial.case for trial in self.trials} ^ {trial.case for trial in baseline.trials}
        return Comparison(
            self.name,
            baseline.name,
            tuple(change for change in changes if change is not None),
            tuple(sorted(unpaired)),
        )

    def _compare_score(self, scorer: str, baseline: Report) -> ScoreChange | None:
        after, before = self.average_by_case(scorer), baseline.average_by_case(scorer)
        differences = {case: after[case] - before[case] for case in after if case in before}
        if not differences:
            return None
        ordered = sorted(differences, key=lambda case: -abs(differences[case]))
        return ScoreChange(
            scorer,
            _average([before[case] for case in differences]),
            _average([after[case] for case in differences]),
            bootstrap_mean([*differences.values()]),
            tuple(case for case in ordered if differences[case] > 0),
            tuple(case for case in ordered if differences[case] < 0),
            sum(not difference for difference in differences.values()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON value, for `from_json`; it has the figures of the table, too."""
        summaries = {name: self.summarize(name) for name in self.scorers}
        return {
            "name": self.name,
            "complete": self.is_complete,
            "left": self.left,
            "scores": {name: None if mean is None else mean._asdict() for name, mean in summaries.items()},
            "cost": self.cost,
            "judging_cost": self.judging_cost,
            "failures": self.failures,
            "trials": [asdict(trial) for trial in self.trials],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        """Return the report that `to_json` made. Raises ValueError for another value."""
        try:
            return TypeAdapter(cls).validate_python({**value, "scorers": list(value["scores"])})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ValueError(f"expected the JSON of a report: {problem}") from error
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the JSON of a report: {error}") from error


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
