"""Evaluations: their questions and costs, their scores, and how one continues after it was killed."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Episode, Response, Runtime, ToolCall, Usage, scripted
from cantrip_actors.evals import Case, InvalidEvaluation, Judge, Report, contains, evaluate, exact, judge, read_report
from cantrip_actors.looms import Rewarded
from cantrip_actors.testing import Crash, Process, run_with_crashes

pytestmark = pytest.mark.rule("Y-50")

COST = 0.01
"""Dollars of an answer."""


def done(answer: Any) -> Response:
    call = ToolCall("call", "done", {"answer": answer})
    return Response(None, (call,), usage=Usage(100, 10, cost=COST))


class Models:
    """A cantrip that answers each intent with `answer`, a judge, and how often both were asked."""

    def __init__(
        self,
        answer: Callable[[str], Any] = str.upper,
        judgement: Any = None,
        name: str = "speller",
        system: str = "Spell.",
    ) -> None:
        self.answers: Counter[str] = Counter()
        self.judgements: Counter[str] = Counter()

        def speak(context: Any) -> Response:
            intent = context[-1].content
            self.answers[intent] += 1
            return done(answer(intent))

        def decide(context: Any) -> Response:
            self.judgements[context[-1].content] += 1
            return done(judgement)

        crystal = scripted(speak, record=False, name="speller")
        self.cantrip = Cantrip(crystal, system=system, max_turns=3, name=name)
        self.judge = judge("Is it right?", crystal=scripted(decide, record=False, name="judge"))


def make_cases(count: int) -> list[Case]:
    return [Case(f"case {number}", f"word {number}", f"WORD {number}") for number in range(count)]


class TestScores:
    async def test_a_report_has_the_answer_the_scores_and_the_cost_of_each_trial(self) -> None:
        models = Models(lambda intent: "no" if intent == "word 1" else intent.upper())
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(
                runtime, models.cantrip, make_cases(2), scorers=[exact(), contains()], repeat=2, name="first"
            )
        assert [(trial.case, trial.repeat) for trial in report.trials] == [
            ("case 0", 0),
            ("case 1", 0),
            ("case 0", 1),
            ("case 1", 1),
        ]
        assert [trial.scores for trial in report.trials[:2]] == [
            {"exact": 1, "contains": 1},
            {"exact": 0, "contains": 0},
        ]
        assert [trial.answer for trial in report.trials[:2]] == ["WORD 0", "no"]
        assert report.cost == pytest.approx(4 * COST)
        assert report.summarize("exact") == (0.5, 0.0, 1.0)
        assert report.is_complete
        assert report.failures == {}

    async def test_scores_are_rewards_in_the_loom(self) -> None:
        models = Models()
        async with Runtime.open("memory:") as runtime:
            for _ in range(2):  # the second call gives no reward twice
                report = await evaluate(runtime, models.cantrip, make_cases(1), scorers=[exact(), contains()], name="a")
            (trial,) = report.trials
            records = runtime.loom.records(trial.entity_id)
            rewards = [(record.by, record.reward) for record in records if isinstance(record, Rewarded)]
            assert rewards == [("eval:a:exact", 1.0), ("eval:a:contains", 1.0)]
            assert runtime.loom.turns(trial.entity_id)[-1].reward == 1.0

    async def test_scoring_again_with_other_scorers_asks_the_cantrip_nothing(self) -> None:
        models = Models(judgement={"score": 0.5, "reason": "half"})
        scale = 1.0

        async def length(case: Case, episode: Episode) -> float:
            await anyio.sleep(1)
            return scale * len(episode.result)

        async with Runtime.open("memory:") as runtime:
            await evaluate(runtime, models.cantrip, make_cases(3), scorers=[length])
            scale = 2.0
            report = await evaluate(runtime, models.cantrip, make_cases(3), scorers=[length, models.judge])
            turn = runtime.loom.turns(report.trials[0].entity_id)[-1]
            await evaluate(runtime, models.cantrip, make_cases(3), scorers=[length, models.judge])
        assert report.trials[0].scores == {"length": 12.0, "judge": 0.5}
        assert turn.reward == 0.5
        assert set(models.answers.values()) == {1}
        assert list(models.judgements.values()) == [1, 1, 1]
        assert report.judging_cost == pytest.approx(3 * COST)

    async def test_a_judge_sees_the_rubric_the_case_and_the_answer(self) -> None:
        models = Models(judgement={"score": 1, "reason": "yes"})
        async with Runtime.open("memory:") as runtime:
            await evaluate(runtime, models.cantrip, make_cases(1), scorers=[models.judge])
        assert list(models.judgements) == ["# Task\n\nword 0\n\n# Expected answer\n\nWORD 0\n\n# Answer\n\nWORD 0"]
        assert "Is it right?" in str(models.judge.cantrip.call.system_prompt)

    async def test_a_judge_with_another_rubric_or_another_expected_answer_is_asked_anew(self) -> None:
        models = Models(judgement={"score": 1, "reason": "yes"})
        other = judge("Is it short?", crystal=models.judge.cantrip.crystal)
        async with Runtime.open("memory:") as runtime:
            for scorer in (models.judge, other, other):
                await evaluate(runtime, models.cantrip, make_cases(1), scorers=[scorer])
            await evaluate(runtime, models.cantrip, [Case("case 0", "word 0", "another word")], scorers=[other])
        assert (models.answers.total(), models.judgements.total()) == (1, 3)

    async def test_an_answer_of_a_type_is_scored_as_a_value_of_that_type_in_each_process(self, tmp_path: Path) -> None:
        def is_last_week(case: Case, episode: Episode) -> bool:
            return bool(episode.result == date(2026, 11, 22))

        cantrip = Cantrip(scripted([done("2026-11-22")]), max_turns=2, answer=date)
        for _ in range(2):
            async with Runtime.open(f"jsonl:{tmp_path / 'loom.jsonl'}") as runtime:
                report = await evaluate(
                    runtime, cantrip, [Case("a", "when?", "2026-11-22")], scorers=[is_last_week, exact()]
                )
            assert report.trials[0].scores == {"is_last_week": 1, "exact": 1}


class TestFailures:
    async def test_a_scorer_that_raises_loses_its_own_score_only(self) -> None:
        def picky(case: Case, episode: Episode) -> float:
            if case.id == "case 1":
                raise RuntimeError("I do not like it")
            return 1

        models = Models()
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, models.cantrip, make_cases(3), scorers=[picky, exact()])
        assert [trial.scores for trial in report.trials] == [
            {"picky": 1, "exact": 1},
            {"exact": 1},
            {"picky": 1, "exact": 1},
        ]
        assert report.failures == {"picky: raised RuntimeError: I do not like it": 1}
        assert report.is_complete

    @pytest.mark.parametrize("value", ["high", None, float("nan"), [1]])
    async def test_a_score_that_is_no_number_is_a_failure_of_that_score(self, value: Any) -> None:
        def odd(case: Case, episode: Episode) -> Any:
            return value

        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, Models().cantrip, make_cases(1), scorers=[odd, exact()])
        assert report.trials[0].scores == {"exact": 1}
        assert "expected True, False or a finite number" in report.trials[0].problems["odd"]

    @pytest.mark.parametrize("scorers", [None, "exact", exact(), 5])
    async def test_scorers_that_are_no_list_are_refused(self, scorers: Any) -> None:
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(ValueError, match="scorers: expected a list"):
                await evaluate(runtime, Models().cantrip, make_cases(1), scorers=scorers)

    @pytest.mark.parametrize("nonsense", ["very good", {"score": 7, "reason": "x"}, {"score": "NaN", "reason": "x"}])
    async def test_a_judge_that_answers_nonsense_loses_its_score_only(self, nonsense: Any) -> None:
        models = Models(judgement=nonsense)
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, models.cantrip, make_cases(2), scorers=[models.judge, exact()])
        assert [trial.scores for trial in report.trials] == [{"exact": 1}, {"exact": 1}]
        assert report.trials[0].problems["judge"].startswith("gave no score: truncated by max_turns(3)")

    @pytest.mark.parametrize("answer", ["0.5", {"score": "high"}, {"points": 1}])
    async def test_a_judge_of_a_users_own_cantrip_that_gives_no_score_loses_its_score_only(self, answer: Any) -> None:
        models = Models()
        own = Judge("own", Models(lambda _: answer, name="own").cantrip)
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, models.cantrip, make_cases(2), scorers=[own, exact()])
        assert [trial.scores for trial in report.trials] == [{"exact": 1}, {"exact": 1}]
        assert report.trials[0].problems["own"].startswith("expected True, False or a finite number")

    async def test_a_judge_that_may_not_be_asked_about_a_long_answer_loses_its_score_only(self) -> None:
        models = Models(judgement={"score": 1, "reason": "x"})
        cases = [Case("a", "word", "x" * 17_000_000), Case("b", "word", "WORD")]
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, models.cantrip, cases, scorers=[models.judge])
        assert [trial.scores for trial in report.trials] == [{}, {"judge": 1}]
        assert report.trials[0].problems["judge"].startswith("could not be asked: the intent")

    @pytest.mark.parametrize(
        ("context", "message"),
        [
            ({1: "a", "b": 2}, "case 1: context: expected a JSON value"),
            ([{1: "a"}], "case 1: context: expected a JSON value"),
            (json.loads("[" * 200 + "]" * 200), 'case "a": context: expected JSON data'),
        ],
    )
    async def test_a_context_that_no_entity_takes_is_a_mistake_of_its_case(self, context: Any, message: str) -> None:
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(InvalidEvaluation, match=message):
                await evaluate(runtime, Models().cantrip, [Case("a", "word", context=context)])

    async def test_a_cantrip_with_a_long_name_needs_no_name_for_its_evaluation(self) -> None:
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, Models(name="n" * 200).cantrip, make_cases(1))
        assert len(report.name) == 200

    async def test_a_trial_without_an_answer_scores_0_and_is_counted_by_its_reason(self) -> None:
        def fail(intent: str) -> Any:
            raise ValueError("no words left")

        models = Models(fail, judgement={"score": 1, "reason": "x"})
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, models.cantrip, make_cases(2), scorers=[exact(), models.judge])
            read = await read_report(runtime, report.name, make_cases(2), scorers=[exact(), models.judge])
        assert report.failures == {"crystal raised ValueError: no words left": 2}
        assert report.trials[0].scores == {"exact": 0, "judge": 0}
        assert read == report
        assert not models.judgements

    async def test_a_repeated_evaluation_asks_again_where_a_crystal_failed_and_nowhere_else(self) -> None:
        broken = {"word 1", "judge"}

        def speak(intent: str) -> Any:
            if intent in broken:
                raise ValueError("there is no key")
            return intent.upper()

        def decide(context: Any) -> Any:
            if "judge" in broken and "WORD 0" in context[-1].content:
                raise ValueError("there is no key for the judge")
            return done({"score": 1, "reason": "x"})

        models = Models(speak)
        scorers = [exact(), judge("Is it right?", crystal=scripted(decide, record=False, name="judge"))]
        async with Runtime.open("memory:") as runtime:
            first = await evaluate(runtime, models.cantrip, make_cases(3), scorers=scorers)
            second = await evaluate(runtime, models.cantrip, make_cases(3), scorers=scorers)
            broken.clear()
            third = await evaluate(runtime, models.cantrip, make_cases(3), scorers=scorers)
            read = await read_report(runtime, third.name, make_cases(3), scorers=scorers)
        assert [trial.reason for trial in first.trials] == ["terminated", "failed", "terminated"]
        assert first.failures == second.failures
        assert (first.left, second.left) == (0, 0)
        assert [trial.scores for trial in third.trials] == [{"exact": 1, "judge": 1}] * 3
        assert read == third
        assert models.answers == {"word 0": 1, "word 1": 3, "word 2": 1}

    async def test_a_name_that_another_version_of_the_cantrip_has_is_refused(self) -> None:
        async with Runtime.open("memory:") as runtime:
            await evaluate(runtime, Models().cantrip, make_cases(1), name="mine")
            with pytest.raises(InvalidEvaluation, match="give this one another name"):
                await evaluate(runtime, Models(system="Spell well.").cantrip, make_cases(1), name="mine")

    async def test_a_changed_cantrip_or_intent_is_asked_anew_without_a_name(self) -> None:
        first, second = Models(), Models(system="Spell well.")
        async with Runtime.open("memory:") as runtime:
            before = await evaluate(runtime, first.cantrip, make_cases(2))
            await evaluate(runtime, first.cantrip, [*make_cases(1), Case("case 1", "another word")])
            after = await evaluate(runtime, second.cantrip, make_cases(2))
        assert first.answers == {"word 0": 1, "word 1": 1, "another word": 1}
        assert second.answers == {"word 0": 1, "word 1": 1}
        assert before.name != after.name

    async def test_long_names_and_ids_are_told_apart(self) -> None:
        long = "\U0001f600" * 199
        models, cases = Models(judgement={"score": 1, "reason": "x"}), [Case(f"{long}{n}", "word") for n in range(2)]
        scorers = [judge("Is it?", crystal=models.judge.cantrip.crystal, name=f"{long}{n}") for n in range(2)]
        async with Runtime.open("memory:") as runtime:
            for number in range(2):
                report = await evaluate(runtime, models.cantrip, cases, scorers=scorers, name=f"{long}{number}")
                assert len(report.trials) == 2
        assert (models.answers.total(), models.judgements.total()) == (4, 8)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"repeat": 0}, "repeat"),
            ({"at_once": 0}, "at_once"),
            ({"budget": 0}, "budget"),
            ({"scorers": [exact(), exact()]}, "scorers"),
            ({"scorers": ["exact"]}, "scorers"),
            ({"cases": 3}, "cases"),
            ({"name": "a\n"}, "name"),
            ({"name": ""}, "name"),
        ],
    )
    async def test_a_wrong_argument_is_named(self, options: dict[str, Any], message: str) -> None:
        options = {"cases": make_cases(1), **options}
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(ValueError, match=f"^{message}"):
                await evaluate(runtime, Models().cantrip, options.pop("cases"), **options)


class TestBudget:
    async def test_a_used_up_budget_ends_cleanly_and_a_larger_one_continues(self) -> None:
        models = Models(judgement={"score": 1, "reason": "x"})
        options: dict[str, Any] = {"scorers": [models.judge], "name": "b"}
        async with Runtime.open("memory:") as runtime:
            first = await evaluate(runtime, models.cantrip, make_cases(6), budget=4 * COST, at_once=1, **options)
            same = await evaluate(runtime, models.cantrip, make_cases(6), budget=4 * COST, at_once=6, **options)
            assert (len(first.trials), first.left, first.is_complete) == (2, 4, False)
            assert same == first
            whole = await evaluate(runtime, models.cantrip, make_cases(6), budget=1, at_once=6, **options)
        assert (len(whole.trials), whole.left) == (6, 0)
        assert set(models.answers.values()) == set(models.judgements.values()) == {1}

    async def test_a_judgement_that_the_budget_does_not_allow_is_missing_until_it_does(self) -> None:
        models = Models(judgement={"score": 1, "reason": "x"})
        options: dict[str, Any] = {"scorers": [models.judge], "at_once": 1}
        async with Runtime.open("memory:") as runtime:
            first = await evaluate(runtime, models.cantrip, make_cases(2), budget=COST, **options)
            assert first.trials[0].problems == {"judge": "not judged: the budget is used up"}
            assert first.left == 2
            # the last judgement is asked for when 3 of the 4 have been paid for, each of them counted once
            whole = await evaluate(runtime, models.cantrip, make_cases(2), budget=3.5 * COST, **options)
        assert [trial.scores for trial in whole.trials] == [{"judge": 1}, {"judge": 1}]
        assert set(models.answers.values()) == set(models.judgements.values()) == {1}

    async def test_at_most_at_once_casts_run_at_a_time(self) -> None:
        running, most = 0, 0

        async def speak(context: Any) -> Response:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(1)
            running -= 1
            return done("x")

        class Slow:
            name = "slow"

            async def invoke(self, context: Any, tools: Any = (), **_: Any) -> Response:
                return await speak(context)

        async with Runtime.open("memory:") as runtime:
            await evaluate(runtime, Cantrip(Slow(), max_turns=2), make_cases(9), at_once=3)  # type: ignore[arg-type]
        assert most == 3


class TestReading:
    async def test_a_report_is_read_from_the_loom_and_asks_nothing(self) -> None:
        models = Models(judgement={"score": 1, "reason": "x"})
        scorers = [exact(), models.judge]
        async with Runtime.open("memory:") as runtime:
            await evaluate(runtime, models.cantrip, make_cases(1), scorers=scorers, name="r")
            report = await read_report(runtime, "r", make_cases(2), scorers=[*scorers, contains()])
        assert [trial.scores for trial in report.trials] == [{"exact": 1, "judge": 1, "contains": 1}]
        assert report.left == 1
        assert (models.answers.total(), models.judgements.total()) == (1, 1)

    async def test_cases_are_read_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "cases.jsonl"
        file.write_text(
            "".join(json.dumps({"id": n, "intent": f"word {n}", "expected": f"WORD {n.upper()}"}) + "\n" for n in "ab")
        )
        async with Runtime.open("memory:") as runtime:
            report = await evaluate(runtime, Models().cantrip, file, scorers=[exact()])
        assert [(trial.case, trial.scores["exact"]) for trial in report.trials] == [("a", 1), ("b", 1)]


class TestCrashes:
    @staticmethod
    def make_program(models: Models, cases: int, at_once: int) -> Callable[[Process], Any]:
        async def program(process: Process) -> tuple[Report, int]:
            async with process.attach(Runtime.open("memory:")) as runtime:
                report = await evaluate(
                    runtime, models.cantrip, make_cases(cases), scorers=[exact()], at_once=at_once, name="long"
                )
                return report, len(runtime.loom.entities())

        return program

    async def test_an_evaluation_of_200_cases_killed_20_times_pays_each_answer_once(self) -> None:
        models = Models()
        crashes = [Crash(22 + number % 5, recorded=True) for number in range(20)]
        survived = await run_with_crashes(self.make_program(models, 200, at_once=1), crashes)
        report, entities = survived.value
        assert survived.crashes == 20
        assert len(models.answers) == 200
        assert set(models.answers.values()) == {1}
        assert (len(report.trials), entities) == (200, 200)
        assert report.summarize("exact") == (1, 1, 1)
        assert report.cost == pytest.approx(200 * COST)

    async def test_a_kill_before_answers_are_recorded_repeats_only_those_under_way(self) -> None:
        models = Models()
        survived = await run_with_crashes(self.make_program(models, 100, at_once=8), [Crash(5)] * 5)
        report, entities = survived.value
        assert survived.crashes == 5
        assert (len(report.trials), entities) == (100, 100)
        assert models.answers.total() <= 100 + 8 * 5
        assert report.cost == pytest.approx(100 * COST)


@pytest.mark.rule("Y-52")
class TestBlocking:
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_synchronous_code_evaluates_and_reads_the_report_again(self, backend: str) -> None:
        models = Models(judgement={"score": 0.5, "reason": "half"})
        scorers = [exact(), models.judge]
        with Runtime.blocking(backend=backend) as runtime:
            report = runtime.run(evaluate, models.cantrip, make_cases(3), scorers=scorers, repeat=2, name="a")
            assert runtime.run(read_report, "a", make_cases(3), scorers=scorers, repeat=2) == report
            with pytest.raises(ValueError, match="budget"):
                runtime.run(evaluate, models.cantrip, make_cases(3), budget=-1)
        assert len(report.trials) == 6
        assert report.judging_cost == pytest.approx(6 * COST)
