"""A state machine of Hypothesis for the entities of a cantrip: `EntityMachine`.

    class ClerkMachine(EntityMachine):
        def make_cantrip(self):
            return clerk

    TestClerk = ClerkMachine.TestCase

Theory of operation. Each rule is a step of a process that may crash and starts again (`restarted_process.py`). A rule
gives a key with everything that it sends, so it is simply repeated after a crash, and no law needs an exception for it.
The laws are in `entity_laws.py`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import anyio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.scripted import scripted
from cantrip_actors.loom import InboxFull
from cantrip_actors.runtime.face.entity import Entity
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.runtime.face.work import Work
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.errors import AlreadyDecided, CantripError, EntityEnded, UnknownRequest
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Response, Usage
from cantrip_actors.testing.entity_laws import ANSWERED, LawChecker
from cantrip_actors.testing.json_values import make_value
from cantrip_actors.testing.models import wild
from cantrip_actors.testing.restarted_process import RestartedProcess

T = TypeVar("T")

Answers = Sequence[Mapping[str, Any]]

NAME = "machine"
"""The name of the long-lived entity."""

ROUNDS = 60
"""How often, at the end, the open requests are decided and an hour passes. Then everything has to rest."""

_machine: st.SearchStrategy[Any] = st.runner()
_intent = _machine.flatmap(lambda machine: machine.draws_intents)
_script = _machine.flatmap(lambda machine: machine.draws_scripts)
_numbers = st.integers(0, 9)


class EntityMachine(RuleBasedStateMachine):
    """A state machine of Hypothesis that talks to the entities of a cantrip, and crashes their process.

    Subclass it, and return your cantrip from `make_cantrip`. Add rules, invariants and `check_end` of your own; set a
    rule to None to leave it out. `TestName = Name.TestCase` makes it a test.

    Its rules send intents to a long-lived entity and cast others, with answers of a model that does anything; they
    decide requests, interrupt, steer, undo, withdraw, fork and unload; they let time pass, and let the process crash at
    any of its writes and waits. After each rule and at the end the laws hold: each accepted intent has one answer, or a
    refusal with its reason; the log of each entity folds to its state, and only grows; the loom verifies; its tokens
    are those that the crystal gave; each query is a conversation that providers take; and no gate runs for an entity
    whose end was reported.

    A rule of yours calls async functions with `run`. Keep in the machine what outlives the process, as a database does,
    and make in `make_cantrip` what the process loses. A gate in a thread takes real time, so an example with one is
    not always the same.
    """

    backend: ClassVar[Literal["asyncio", "trio"]] = "asyncio"
    """The event loop, in virtual time."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Options of `Runtime.open`, such as `passivate_after`."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime: Runtime
        """The open runtime of the process."""
        self.entity: Entity[Any]
        """The long-lived entity."""
        self.cantrip: Cantrip[Any]
        """The cantrip, with a crystal that gives the answers of the rules."""
        self._laws = LawChecker()
        self._script: deque[Mapping[str, Any]] = deque()
        self._works: list[str] = []
        self._posted: dict[str, tuple[str, str]] = {}
        self._keys = self._intents = 0
        self._outer_error = sys.exception()
        self._process = RestartedProcess(self.backend, self._make_runtime, self._prepare, self._laws)
        answers = self.answers()
        self._is_scripted = answers is not None
        self.draws_intents: st.SearchStrategy[str] = self.intents()
        self.draws_scripts: st.SearchStrategy[list[Mapping[str, Any]]] = (
            st.just([]) if answers is None else st.lists(answers, max_size=3)
        )

    # --- for a subclass to define

    def make_cantrip(self) -> Cantrip[Any]:
        """Return the cantrip, with new gates and companions: called at each start of the process."""
        raise NotImplementedError(
            f"{type(self).__name__}: define make_cantrip(self), which returns the cantrip to test"
        )

    def intents(self) -> st.SearchStrategy[str]:
        """Return a strategy of intents; by default "intent 1", "intent 2" and so on."""
        return st.builds(self._number_intent)

    def answers(self) -> st.SearchStrategy[Mapping[str, Any]] | None:
        """Return a strategy of the model's answers; by default `wild`. None: the cantrip's own crystal answers."""
        return wild(self.cantrip.circle)

    def check_end(self) -> None:
        """Check your own laws once no process has work left; by default this checks nothing."""

    # --- for rules

    @property
    def crashes(self) -> int:
        """How often the process has crashed."""
        return self._process.crashes

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call an async function in the process, and return its result.

        If the process crashes meanwhile, it is started again, and so is the function: give keys to calls that must
        happen once, and read `self.runtime` and `self.entity` in the function.
        """
        return self._process.run(function, *args)

    # --- the process

    def _make_runtime(self) -> Runtime:
        cantrip = self.make_cantrip()
        crystal = scripted(partial(self._answer, cantrip), name=get_crystal_name(cantrip.crystal), record=False)
        self.cantrip = cantrip.with_crystal(crystal)
        return Runtime.open("memory:", **{"cantrips": [self.cantrip], "recover": "resume", **self.options})

    async def _prepare(self, runtime: Runtime) -> None:
        self.runtime, self.entity = runtime, await runtime.ensure(NAME, self.cantrip)

    async def _answer(self, cantrip: Cantrip[Any], context: Invocation) -> Response:
        self._laws.note_query(context)
        if self._is_scripted:
            response = Response.of(self._script.popleft() if self._script else _make_end(cantrip))
        else:
            crystal = resolve(cantrip.crystal)
            response = Response.of(await crystal.invoke(context, context.tools, context.tool_choice))
        if response.usage is NO_USAGE:
            response = replace(response, usage=Usage(len(context), 1))
        self._laws.note_answer(response.usage)
        return response

    def _make_key(self) -> str:
        self._keys += 1
        return f"key {self._keys}"

    def _number_intent(self) -> str:
        self._intents += 1
        return f"intent {self._intents}"

    def _accept(self, work: Work[Any] | None) -> None:
        if work is not None and work.id not in self._works:
            self._works.append(work.id)

    def _list_works(self) -> list[Work[Any]]:
        return [self.runtime.get_work(work) for work in self._works]

    # --- rules

    @rule(intent=_intent, answers=_script)
    def send(self, intent: str, answers: Answers) -> None:
        """Send an intent to the long-lived entity."""
        self._script.extend(answers)
        self._accept(self.run(self._post, intent, self._make_key()))

    async def _post(self, intent: str, key: str) -> Work[Any] | None:
        with suppress(EntityEnded, InboxFull):
            work = await self.entity.post(intent, key=key)
            self._posted[work.id] = (intent, key)
            return work
        return None

    @rule(number=_numbers)
    def send_again(self, number: int) -> None:
        """Repeat a send with its key, as a client does that lost its connection."""
        if self._posted:
            before, (intent, key) = _choose(list(self._posted.items()), number)
            work = self.run(self._post, intent, key)
            assert work is None or work.id == before, f"the intent {before} was sent again, and is {work.id}"

    @rule(intent=_intent, answers=_script)
    def cast(self, intent: str, answers: Answers) -> None:
        """Cast the cantrip on an intent."""
        self._script.extend(answers)
        key = self._make_key()
        self._accept(self.run(lambda: self.runtime.start(self.cantrip, intent, key=key)).work)

    @rule(number=_numbers, intent=_intent, answers=_script)
    def fork(self, number: int, intent: str, answers: Answers) -> None:
        """Continue from a turn of the long-lived entity with a new entity."""
        if turns := self.runtime.loom.turns(self.entity.id):
            self._script.extend(answers)
            turn, key = _choose(turns, number).id, self._make_key()
            fork = self.run(lambda: self.runtime.start_fork(turn, intent=intent, cantrip=self.cantrip, key=key))
            self._accept(fork.work)

    @rule(text=_intent)
    def steer(self, text: str) -> None:
        """Insert a message before the next query of the long-lived entity."""
        key = self._make_key()
        self.run(self._mail, lambda: self.entity.steer(text, key=key))

    @staticmethod
    async def _mail(send: Callable[[], Awaitable[object]]) -> None:
        with suppress(EntityEnded, InboxFull):
            await send()

    @rule(now=st.booleans())
    def interrupt(self, now: bool) -> None:
        """End the present episode of the long-lived entity: at once, or before its next turn."""
        key = self._make_key()
        self.run(self._mail, lambda: self.entity.interrupt(now=now, key=key))

    @rule()
    def undo(self) -> None:
        """Take back the last intent of the long-lived entity."""
        key = self._make_key()
        self.run(self._mail, lambda: self.entity.undo(key=key))

    @rule(number=_numbers)
    def withdraw(self, number: int) -> None:
        """Withdraw an intent, which has an effect while that waits."""
        if self._works:
            work_id = _choose(self._works, number)
            self.run(lambda: self.runtime.get_work(work_id).withdraw())

    @rule()
    def unload(self) -> None:
        """Unload the long-lived entity as soon as it is idle."""
        self.run(self._unload)

    async def _unload(self) -> None:
        self.entity.unload()

    @rule(number=_numbers, allows=st.booleans())
    def decide(self, number: int, allows: bool) -> None:
        """Decide a request: allow or deny a call, answer a question, or deliver a result or an error."""
        self.run(self._decide_next, number, allows, self._make_key())

    async def _decide_next(self, number: int, allows: bool, key: str) -> None:
        if requests := self.runtime.requests():
            await self._decide(_choose(requests, number), allows, key)

    async def _decide(self, request: Request, allows: bool, key: str) -> None:
        with suppress(AlreadyDecided, UnknownRequest, EntityEnded):
            if request.kind == "deferred":
                error = None if allows else "not delivered"
                await self.runtime.deliver(request.id, "delivered" if allows else None, error=error, key=key)
            elif request.kind == "question" and allows:
                await self.runtime.decide(request.id, answer=make_value(request.schema or {}), key=key)
            else:
                await self.runtime.decide(request.id, "allow" if allows else "deny", key=key)

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0, 3600.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.run(anyio.sleep, seconds)

    @rule(points=st.integers(1, 12))
    def crash(self, points: int) -> None:
        """Let time pass until the process has come to its n-th write or wait from now on, and dies."""
        self._process.crash(points, within=3600.0)

    @rule(points=st.integers(0, 12))
    def crash_later(self, points: int) -> None:
        """Let the process die at its n-th write or wait from now on, while it does what the next rules ask."""
        self._process.crash(points)

    @rule()
    def restart(self) -> None:
        """Close the runtime in order, and open it again."""
        self._process.restart()

    # --- laws

    @invariant()
    def laws_hold(self) -> None:
        """Check the laws between two rules."""
        self._process.revive()
        self._laws.check(self.runtime.loom, self._process.store)
        self._laws.check_answers(self._list_works())

    def teardown(self) -> None:
        """Let everything come to rest and check the laws of the end, unless the example has failed already."""
        try:
            if sys.exception() is self._outer_error:
                self._rest()
                self.laws_hold()
                self._laws.check_end(self._list_works(), self._process.store)
                self.run(self._compare_results)
                self.check_end()
        finally:
            self._process.close()

    def _rest(self) -> None:
        """Decide all requests and let time pass until no entity works or waits."""
        self._process.cancel_crash()
        for _ in range(ROUNDS):
            self.run(self._decide_all)
            self.run(anyio.sleep, 3600)
            works = self._list_works()
            if not self.runtime.loom.unfinished(idle=False) and all(work.state in ANSWERED for work in works):
                return
        active = ", ".join(self.runtime.loom.unfinished(idle=False)) or "none"
        raise AssertionError(f"after {ROUNDS} hours work is still open; entities that are active: {active}")

    async def _decide_all(self) -> None:
        for request in self.runtime.requests():
            await self._decide(request, True, self._make_key())

    async def _compare_results(self) -> None:
        """Compare the result of a caller with the loom."""
        for work in self._list_works():
            if work.state == "settled":
                outcome = work.find_outcome()
                with suppress(CantripError):  # the error of the crystal, which ended it
                    assert outcome is not None
                    assert (await work.result()).reason == outcome.reason


def _choose(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def _make_end(cantrip: Cantrip[Any]) -> Mapping[str, Any]:
    """Return the answer with which a model ends."""
    if cantrip.circle.medium != "tools":
        return {"content": "done('done')"}
    done = next((gate for gate in cantrip.circle.open_gates.values() if gate.kind == "done"), None)
    if done is None:
        return {"content": "done"}
    return {"tool_calls": [{"gate": done.name, "args": make_value(done.definition.parameters)}]}
