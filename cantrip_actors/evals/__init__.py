"""Evaluations: cast a cantrip on many cases, score the answers, and compare with an earlier evaluation.

    report = await evaluate(runtime, cantrip, "cases.jsonl", scorers=[exact(), judge("Is it polite?", crystal=…)])

Each case is an entity in the loom and each score a reward, so an evaluation that was killed continues where it stood,
and pays for no answer twice. `docs/evals.md` shows how to use it.
"""

from cantrip_actors.evals.bootstrap import Interval, bootstrap_mean
from cantrip_actors.evals.cases import Case, InvalidEvaluation, load_cases
from cantrip_actors.evals.evaluate import evaluate, read_report
from cantrip_actors.evals.evaluation_file import Evaluation, load_evaluation
from cantrip_actors.evals.report import Comparison, Report, ScoreChange, Trial
from cantrip_actors.evals.scorers import Judge, Scorer, contains, exact, judge

__all__ = [
    "Case",
    "Comparison",
    "Evaluation",
    "Interval",
    "InvalidEvaluation",
    "Judge",
    "Report",
    "ScoreChange",
    "Scorer",
    "Trial",
    "bootstrap_mean",
    "contains",
    "evaluate",
    "exact",
    "judge",
    "load_cases",
    "load_evaluation",
    "read_report",
]
