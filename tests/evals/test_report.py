"""Reports: confidence intervals, comparisons, and what people and programs read."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from cantrip_actors.evals import Report, Trial, bootstrap_mean
from cantrip_actors.evals.rendering import render_html, render_lines

pytestmark = pytest.mark.rule("Y-50")


# the intervals of scipy 1.17.1: bootstrap((differences,), mean, method="percentile", n_resamples=400_000)
SCIPY = [
    (
        [
            0.49,
            0.53,
            0.12,
            -0.13,
            -0.23,
            0.11,
            -0.21,
            -0.33,
            0.16,
            0.14,
            0.26,
            -0.17,
            0.1,
            0.08,
            -0.35,
            0.26,
            0.2,
            0.82,
            0.16,
            0.06,
            0.47,
            0.16,
            0.37,
            -0.01,
            0.17,
            0.41,
            0.31,
            0.14,
            -0.22,
            0.23,
        ],
        0.0427,
        0.2317,
    ),
    ([0.13, 0.13, 0.12, 0.31, 0.17, 0.01, 0.91, 0.41, 0.51, 0.1, 2.45, 0.98, 0.06, 0.2, 0.64], 0.2227, 0.8213),
]


def make_trial(case: str, score: float | None, repeat: int = 0, **fields: Any) -> Trial:
    scores = {} if score is None else {"exact": score}
    facts: dict[str, Any] = {"reason": "terminated", "detail": None, "answer": "x", "turns": 2, "tokens": 10}
    facts |= {"entity_id": f"id of {case}", "cost": 0.5, "judging_cost": 0.25, "seconds": 3.0, **fields}
    return Trial(case, repeat, scores=scores, **facts)


def make_report(name: str, scores: dict[str, float], **fields: Any) -> Report:
    return Report(name, ("exact",), tuple(make_trial(case, score) for case, score in scores.items()), **fields)


class TestBootstrap:
    def test_an_interval_equals_that_of_all_resamples_of_a_small_sample(self) -> None:
        # the 27 means of three of 0, 0 and 1: 8/27 are 0, so are the lowest 2.5%; 1/27 (3.7%) are 1
        assert bootstrap_mean([0.0, 0.0, 1.0]) == (pytest.approx(1 / 3), 0.0, 1.0)
        # 13 of the 256 means of four are 0.75 or more, and only one is 1
        assert bootstrap_mean([0.0, 0.0, 0.0, 1.0]).high == 0.75

    @pytest.mark.parametrize(
        ("differences", "low", "high"),
        SCIPY,
    )
    def test_a_paired_interval_agrees_with_that_of_scipy(
        self, differences: list[float], low: float, high: float
    ) -> None:
        spread = high - low
        for seed in range(3):
            interval = bootstrap_mean(differences, seed=seed)
            assert interval.mean == pytest.approx(sum(differences) / len(differences))
            assert interval.low == pytest.approx(low, abs=0.05 * spread)
            assert interval.high == pytest.approx(high, abs=0.05 * spread)

    def test_the_same_seed_gives_the_same_interval_and_another_seed_another(self) -> None:
        values = [number**0.5 for number in range(20)]
        assert bootstrap_mean(values) == bootstrap_mean(values)
        assert bootstrap_mean(values) != bootstrap_mean(values, seed=1)

    def test_equal_values_have_no_width(self) -> None:
        assert bootstrap_mean([0.5] * 3) == (0.5, 0.5, 0.5)

    def test_no_values_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^values: expected at least one number"):
            bootstrap_mean([])


class TestReport:
    def test_repeats_of_a_case_count_as_one_value(self) -> None:
        trials = (make_trial("a", 1, 0), make_trial("a", 0, 1), make_trial("b", 0, 0), make_trial("b", None, 1))
        report = Report("r", ("exact",), trials)
        assert report.average_by_case("exact") == {"a": 0.5, "b": 0}
        assert report.summarize("exact") == (0.25, 0.0, 0.5)
        assert report.summarize("other") is None

    def test_failures_are_counted_by_reason_the_most_frequent_first(self) -> None:
        trials = (
            make_trial("a", 0, reason="truncated"),
            make_trial("b", None, problems={"exact": "raised ValueError: x"}),
            make_trial("c", None, problems={"exact": "raised ValueError: x"}),
        )
        assert list(Report("r", ("exact",), trials).failures.items()) == [
            ("exact: raised ValueError: x", 2),
            ("truncated", 1),
        ]

    def test_a_report_survives_json(self) -> None:
        report = Report("r", ("exact",), (make_trial("a", 1, tags=("short",)), make_trial("b", 0)), left=3)
        value = json.loads(json.dumps(report.to_json()))
        assert Report.from_json(value) == report
        assert value["scores"] == {"exact": {"mean": 0.5, "low": 0.0, "high": 1.0}}
        assert (value["complete"], value["cost"], value["judging_cost"]) == (False, 1.0, 0.5)

    @pytest.mark.parametrize(
        "value",
        [
            {},
            [1],
            {"trials": [1]},
            {"name": "a", "scores": {}, "left": 0, "trials": [{}]},
            {**Report("r", ("s",), ()).to_json(), "trials": [{**asdict(make_trial("a", 1)), "scores": {"s": "high"}}]},
            {**Report("r", ("s",), ()).to_json(), "trials": [{**asdict(make_trial("a", 1)), "scores": None}]},
        ],
    )
    def test_other_json_is_no_report(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"^expected the JSON of a report"):
            Report.from_json(value)

    def test_a_report_can_be_limited_to_a_tag(self) -> None:
        report = Report("r", ("exact",), (make_trial("a", 1, tags=("short",)), make_trial("b", 0)))
        assert report.filter_by_tag("short").summarize("exact") == (1, 1, 1)


class TestComparison:
    def test_cases_are_paired_and_those_that_differ_are_named(self) -> None:
        before = make_report("old", {"a": 0.75, "b": 1, "c": 0.5, "d": 0.25, "only old": 1})
        after = make_report("new", {"a": 1, "b": 0.5, "c": 0.5, "d": 1, "only new": 0})
        comparison = after.compare(before)
        (change,) = comparison.changes
        assert (change.before, change.after) == (0.625, 0.75)
        assert change.difference.mean == 0.125
        assert (change.better, change.worse, change.same) == (("d", "a"), ("b",), 1)
        assert comparison.unpaired == ("only new", "only old")
        assert change.verdict == "unclear"

    @pytest.mark.parametrize(("after", "verdict"), [(1.0, "better"), (0.0, "worse"), (0.5, "unclear")])
    def test_a_difference_is_better_or_worse_if_its_whole_interval_is(self, after: float, verdict: str) -> None:
        cases = [str(number) for number in range(10)]
        comparison = make_report("new", dict.fromkeys(cases, after)).compare(
            make_report("old", dict.fromkeys(cases, 0.5))
        )
        assert [change.verdict for change in comparison.changes] == [verdict]
        assert comparison.is_worse is (verdict == "worse")

    def test_a_score_that_only_one_report_has_is_left_out(self) -> None:
        assert make_report("new", {"a": 1}).compare(Report("old", (), ())).changes == ()


class TestRendering:
    def test_the_lines_have_the_scores_the_figures_the_failures_and_the_changes(self) -> None:
        trials = (make_trial("a", 1), make_trial("b", 0, reason="truncated"))
        report = Report("new", ("exact",), trials, left=2)
        lines = render_lines(report, report.compare(make_report("old", {"a": 0, "b": 0})))
        assert lines == [
            "new: 2 trials of 2 cases, not complete",
            "",
            "SCORE  MEAN   95% INTERVAL",
            "exact  0.500  [0.000, 1.000]",
            "",
            "cost     $1.0000 (and judges $0.5000)",
            "tokens   20",
            "turns    2.0 on average",
            "latency  3.00 s at the median, 3.00 s at the 95th percentile",
            "failed: truncated (1)",
            "left: 2 answers and judgements; a larger budget continues",
            "",
            "compared with old:",
            "SCORE  BEFORE  AFTER  DIFFERENCE             IS",
            "exact  0.000   0.500  +0.500 [0.000, 1.000]  unclear",
            "exact better in 1: a",
        ]

    def test_the_page_shows_texts_of_models_as_text(self) -> None:
        evil = "<script>alert(1)</script>"
        trials = (
            make_trial(evil, 1, answer=evil),
            make_trial("b", None, problems={"exact": evil}),
            make_trial("c", 0, reason="failed", detail=evil),
        )
        report = Report(evil, ("exact",), trials)
        page = render_html(report, report.compare(make_report(evil, {evil: 0})))
        assert "<script" not in page
        assert page.count("&lt;script&gt;") >= 6

    def test_a_line_of_a_terminal_has_no_control_characters(self) -> None:
        trials = (make_trial("a", None, problems={"exact": "raised E: \x1b[2J\nfake"}),)
        assert all(line.isprintable() for line in render_lines(Report("r", ("exact",), trials)))

    def test_an_empty_report_is_rendered(self) -> None:
        report = Report("r", ("exact",), (), left=1)
        assert "exact  -     -" in render_lines(report)
        assert "<h2>Trials</h2>" in render_html(report)
