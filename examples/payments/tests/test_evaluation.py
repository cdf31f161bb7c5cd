"""The agent answers the cases of the evaluation, and no worse than the last release."""

import json
from pathlib import Path

from cantrip_actors.evals import Report, evaluate, load_evaluation

EVALUATION = Path(__file__).parent.parent / "evaluation"


async def test_the_agent_is_no_worse_than_the_baseline(runtime):
    evaluation = load_evaluation(EVALUATION / "desk.yaml")
    report = await evaluate(runtime, evaluation.cantrip, evaluation.cases, scorers=evaluation.scorers)
    baseline = Report.from_json(json.loads((EVALUATION / "baseline.json").read_text(encoding="utf-8")))
    comparison = report.compare(baseline)
    assert not comparison.is_worse, comparison
    exact, _ = comparison.changes
    assert exact.better == ("send",)
