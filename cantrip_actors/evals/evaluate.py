"""Run an evaluation: cast, score, reward. Everything that it knows is in the loom.

Each trial is cast with a key made of the evaluation's name, the case and the repeat; each judgement with a key made of
the trial's and what the judge is given. So a repeated run finds the existing answers and judgements, and asks only for
missing ones. An attempt that failed, because a provider had no key or was down, says nothing about the cantrip: the
next run makes another one, with its number in the key.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_actors import Cantrip, CantripError, Episode, InvalidIntent, Runtime, Turn
from cantrip_actors.evals.cases import Case, InvalidEvaluation, check_cases, load_cases
from cantrip_actors.evals.report import Report, Trial
from cantrip_actors.evals.scorers import AnyScorer, Judge, Scorer, check_scorers, render_judge_intent
from cantrip_actors.looms import Rewarded
from cantrip_actors.recipes import Mistake
from cantrip_actors.terms.arguments import SHORT, check, check_kind, check_whole, is_finite, is_positive, is_short_name
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.problems import shorten
from cantrip_actors.user_code import Failure, attempt, text_of

LONGEST_PROBLEM: Final = 200
"""The most characters of a problem that a report has."""

READABLE: Final = 40
"""Characters of a name in a key, for people who read it; a digest of the whole name makes the key unique."""

Cases = str | os.PathLike[str] | Iterable[Case | Mapping[str, Any]]
"""The path of a file of cases, or cases."""


async def evaluate(
    runtime: Runtime,
    cantrip: Cantrip,
    cases: Cases,
    *,
    scorers: Iterable[AnyScorer] = (),
    repeat: int = 1,
    at_once: int = 10,
    budget: float | None = None,
    name: str | None = None,
) -> Report:
    """Cast a cantrip on each case, score the answers, and return the report.

    Each case is cast `repeat` times, at most `at_once` casts at a time. What was answered, judged and rewarded before
    is read from the loom: repeating the call continues an evaluation that was killed, asks again where a crystal
    failed, and scores anew, with other scorers, without casting anew. Each score is a reward of the last turn, `by` the
    evaluation and the scorer; the last of the scorers has the reward that counts.

    With a `budget` in US dollars nothing more is asked once all answers and judgements of the evaluation have cost
    that much; what runs then ends. `report.left` says how much is missing; a call with a larger budget continues.

    `name` names the evaluation in the loom. Left out, it is made from the cantrip's name and content, so a changed
    cantrip is a new evaluation. A changed intent or context is a new case.

    A scorer that raises, or a judge that gives no score, leaves out that score and ends nothing else.

    Raises InvalidEvaluation for mistakes in the cases, or a `name` that another cantrip has; ValueError for other
    arguments; LoomError, RuntimeClosed, AllowanceSpent.
    """
    check_kind("cantrip", cantrip, Cantrip, "a Cantrip")
    check(budget is None or is_positive(budget), "budget", "US dollars above 0, or None", budget)
    if name is None:
        name = f"{(cantrip.name or 'cantrip')[: SHORT - 9]}-{cantrip.id[:8]}"
    run = _EvaluationRun(runtime, name, check_scorers(scorers), cantrip, budget)
    return await run.report(await _read_cases(cases), repeat, at_once)


async def read_report(
    runtime: Runtime, name: str, cases: Cases, *, scorers: Iterable[AnyScorer] = (), repeat: int = 1
) -> Report:
    """Return the report of an earlier evaluation of these cases from the loom. It asks nothing and writes nothing.

    It has the trials that have ended, and `left` counts the other ones. Functions score anew; of judges it has the
    scores that they gave then. Raises as `evaluate`.
    """
    return await _EvaluationRun(runtime, name, check_scorers(scorers)).report(await _read_cases(cases), repeat, 1)


async def _read_cases(cases: Cases) -> list[Case]:
    if isinstance(cases, (str, os.PathLike)):
        return await anyio.to_thread.run_sync(load_cases, cases)
    check_kind("cases", cases, Iterable, "the path of a file, or cases")
    return await anyio.to_thread.run_sync(check_cases, [*cases])  # their JSON may be large


class _Job(NamedTuple):
    """A trial to make, and its place in the report."""

    place: int
    case: Case
    repeat: int
    key: str


class _Answered(NamedTuple):
    """An entity that has ended, as the loom has it."""

    key: str
    entity_id: str
    cantrip_id: str
    outcome: Outcome
    turns: list[Turn]
    rewards: dict[str, float]
    """The last reward of each sender."""
    cost: float
    """The cost of it and of the failed attempts before it."""


class _Question(NamedTuple):
    """The question to a judge about an answer, and the key of its judgement."""

    key: str
    intent: str


class _NotScored(Exception):
    """There is no score; the text says why."""


class _EvaluationRun:
    """One run of an evaluation; without a cantrip it only reads."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        scorers: Sequence[Scorer | Judge],
        cantrip: Cantrip | None = None,
        budget: float | None = None,
    ) -> None:
        check_kind("runtime", runtime, Runtime, "a Runtime")
        check(is_short_name(name), "name", "a text of 1 to 200 characters", name, InvalidIntent)
        self._runtime = runtime
        self._name = name
        self._scorers = scorers
        self._judges = [scorer for scorer in scorers if isinstance(scorer, Judge)]
        self._cantrip = cantrip
        self._budget = math.inf if budget is None else budget
        self._may_ask = False
        self._costs: dict[str, float] = {}
        """The cost of each answer and judgement, by its key."""
        self._spent = 0.0
        self._trials: dict[int, Trial] = {}
        self._refused: dict[str, _Job] = {}
        """The trials that lack an answer or a judgement, by the key of the missing one."""

    async def report(self, cases: Sequence[Case], repeat: int, at_once: int) -> Report:
        """Make every trial that is missing, and return the report."""
        check_whole("repeat", repeat, 1)
        check_whole("at_once", at_once, 1)
        pairs = [(case, number) for number in range(repeat) for case in cases]
        # a key is made when its job begins: making all at once would hold up the event loop
        jobs = (_Job(place, *pair, self._make_key(*pair)) for place, pair in enumerate(pairs))
        # what earlier runs have paid for is summed up before anything is asked
        await self._work(jobs, min(at_once, len(pairs)))
        if self._cantrip is not None and self._refused:
            self._may_ask = True
            missing = sorted({job.place: job for job in self._refused.values()}.values())
            self._refused.clear()
            await self._work(missing, min(at_once, len(missing)))
        trials = tuple(self._trials[place] for place in sorted(self._trials))
        return Report(self._name, tuple(scorer.name for scorer in self._scorers), trials, len(self._refused))

    def _make_key(self, case: Case, repeat: int) -> str:
        content = _digest([self._name, case.id, repeat, case.intent, case.context])
        return f"eval:{self._name[:READABLE]}:{case.id[:READABLE]}:{repeat}:{content}"

    async def _work(self, jobs: Iterable[_Job], workers: int) -> None:
        waiting, errors = iter(jobs), list[CantripError]()

        async def work() -> None:
            for job in waiting:
                await anyio.lowlevel.checkpoint()  # reading a loom in memory or a file does not wait
                try:
                    await self._try(job)
                except CantripError as error:
                    errors.append(error)
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(work)
        if errors:
            raise errors[0]

    async def _try(self, job: _Job) -> None:
        """Add a trial to the report, unless it may not be asked for."""
        case = job.case
        try:
            answered = await self._ask(job, job.key, self._cantrip, case.intent, case.context)
        except InvalidIntent as refused:
            raise InvalidEvaluation(Path("cases"), [Mistake(f'case "{case.id}": {refused}')]) from refused
        if answered is None:
            return
        self._check_cantrip(answered)
        outcome, turns = answered.outcome, answered.turns
        trial = Trial(
            case.id,
            job.repeat,
            answered.entity_id,
            outcome.reason,
            outcome.error or outcome.summary,
            outcome.result,
            len(turns),
            outcome.subtree_usage.total_tokens,
            answered.cost,
            0.0,
            sum(turn.metadata.duration_ms for turn in turns) / 1000,
            case.tags,
        )
        scores: dict[str, float] = {}
        problems: dict[str, str] = {}
        questions = {judge.name: self._make_question(judge, job, outcome) for judge in self._judges}
        for scorer in self._scorers:
            try:
                if not outcome.terminated:
                    scores[scorer.name] = 0.0
                elif isinstance(scorer, Judge):
                    scores[scorer.name] = await self._judge(scorer, job, questions[scorer.name])
                else:
                    scores[scorer.name] = await self._call_scorer(scorer, job, answered)
            except _NotScored as problem:
                problems[scorer.name] = str(problem)
        judging = sum(self._costs.get(question.key, 0.0) for question in questions.values())
        self._trials[job.place] = replace(trial, scores=scores, problems=problems, judging_cost=judging)
        if self._cantrip is not None:
            await self._reward(answered, scores)

    def _check_cantrip(self, answered: _Answered) -> None:
        """Raise InvalidEvaluation if another cantrip has answered: its answers would be taken for those of this one."""
        cantrip = self._cantrip
        if cantrip is not None and cantrip.circle.is_complete and answered.cantrip_id != cantrip.id:
            text = f'"{self._name}" is the evaluation of another version of the cantrip: give this one another name'
            raise InvalidEvaluation(Path("evaluation"), [Mistake(text)])

    async def _ask(
        self, job: _Job, key: str, cantrip: Cantrip | None, intent: str, context: Any = None
    ) -> _Answered | None:
        """Return the answer with that key; ask for one that is missing or failed, if the budget allows."""
        find = partial(self._find_answered, key)
        answered, missing = await self._runtime.read(find)
        if missing is not None and cantrip is not None and self._may_ask and self._spent < self._budget:
            try:
                await self._runtime.cast(cantrip, intent, context=context, key=missing, by=f"eval:{self._name}")
            except CantripError:
                answered, still_missing = await self._runtime.read(find)
                if still_missing == missing:  # not the entity's failure, but that of the runtime
                    raise
            else:
                answered, _ = await self._runtime.read(find)
        elif answered is None or (missing is not None and self._cantrip is not None and not self._may_ask):
            self._refused[key] = job
        if answered is not None:
            self._spent += answered.cost - self._costs.get(key, 0.0)
            self._costs[key] = answered.cost
        return answered

    def _find_answered(self, key: str) -> tuple[_Answered | None, str | None]:
        """Return the last attempt that has ended, and the key of the next one; None if that answer is no failure."""
        runtime, loom = self._runtime, self._runtime.loom
        answered, cost = None, 0.0
        for number in itertools.count(1):
            attempt_key = key if number == 1 else f"{key}:{number}"
            entity_id = runtime.id_of_key(attempt_key)
            outcome = loom.outcome(entity_id) if loom.has_begun(entity_id) else None
            if outcome is None:
                return answered, attempt_key
            cost += outcome.subtree_usage.cost
            rewards = {record.by: record.reward for record in loom.records(entity_id) if isinstance(record, Rewarded)}
            facts = loom.header(entity_id).cantrip_id, outcome, loom.turns(entity_id), rewards, cost
            answered = _Answered(attempt_key, entity_id, *facts)
            if outcome.reason != "failed":
                break
        return answered, None

    async def _call_scorer(self, scorer: Scorer, job: _Job, answered: _Answered) -> float:
        """Return the score of a function. Raises _NotScored."""
        episode = await self._read_episode(job, answered)

        async def call() -> object:
            result: Any = scorer.function(job.case, episode)
            return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result

        value = await attempt(call)
        if isinstance(value, Failure):
            raise _NotScored(f"raised {type(value.exception).__name__}: {_cut(text_of(value.exception))}")
        return _check_score(value)

    async def _read_episode(self, job: _Job, answered: _Answered) -> Episode:
        cantrip, case = self._cantrip, job.case
        if cantrip is not None and cantrip.answer is not None:  # so that the answer is a value of that type
            return await self._runtime.cast(cantrip, case.intent, context=case.context, key=answered.key)
        entity = await self._runtime.read(lambda: self._runtime.get_entity(answered.entity_id))
        return await entity.episode()

    async def _judge(self, judge: Judge, job: _Job, question: _Question) -> float:
        """Return the score of a judge. Raises _NotScored."""
        try:
            judgement = await self._ask(job, question.key, judge.cantrip, question.intent)
        except InvalidIntent as refused:  # a long answer, for example
            raise _NotScored(f"could not be asked: {_cut(str(refused))}") from refused
        if judgement is None:
            raise _NotScored("not judged: the budget is used up" if self._cantrip else "not judged")
        outcome = judgement.outcome
        if not outcome.terminated:
            raise _NotScored(f"gave no score: {_cut(outcome.error or outcome.summary or outcome.reason)}")
        result = outcome.result
        return _check_score(result.get("score") if isinstance(result, Mapping) else result)

    @staticmethod
    def _make_question(judge: Judge, job: _Job, outcome: Outcome) -> _Question:
        intent = render_judge_intent(job.case, outcome.result)
        digest = _digest([judge.name, judge.cantrip.id, intent])
        return _Question(f"{job.key}:{judge.name[:READABLE]}:{digest}", intent)

    async def _reward(self, answered: _Answered, scores: Mapping[str, float]) -> None:
        """Reward the last turn with each score, unless the last reward of this scorer is the same."""
        turn_id = answered.outcome.last_turn
        for scorer, value in scores.items():
            by = f"eval:{self._name}:{scorer}"
            if turn_id is not None and answered.rewards.get(by) != value:
                await self._runtime.loom.reward(turn_id, value, by=by)


def _check_score(value: object) -> float:
    """Return a score. Raises _NotScored for any other value."""
    if not isinstance(value, bool) and not is_finite(value):
        raise _NotScored(f"expected True, False or a finite number, got {shorten(value)}")
    return float(cast("float", value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_PROBLEM else f"{text[:LONGEST_PROBLEM]}…"


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
