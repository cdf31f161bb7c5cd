"""Requests to people: an entity waits for a decision about a call, or for the answer to a question (core.md 4)."""

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    CantripError,
    Circle,
    CrystalError,
    DecidedEvent,
    Gate,
    InboxFull,
    InvalidCantrip,
    InvalidDecision,
    InvalidIntent,
    Refused,
    Request,
    RequestedEvent,
    Runtime,
    RuntimeClosed,
    UnknownRequest,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.gates import ask, question
from cantrip_actors.loom import Store, thread_jsonl
from cantrip_actors.loom.export.atif import trajectory
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.memory.memory import MemoryStore
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_depth, max_tokens, max_turns, timeout
from tests.exhaustive import part
from tests.loom import postgres
from tests.loom.processes import python
from tests.runtime.kills import attempt
from tests.runtime.spells import done, say

WEEK = 7 * 86_400.0

paid: list[int] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


@gate
async def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


PAY = {
    "tools": say("pay", amount=3),
    "python": {"content": "```python\nbefore = 1\nreceipt = pay(amount=3)\nprint(before, receipt)\n```"},
    "javascript": {
        "content": "```js\nvar before = 1;\nvar receipt = pay({amount: 3});\nconsole.log(before, receipt);\n```"
    },
    "shell": {"content": "```bash\nbefore=1\nreceipt=$(pay 3)\necho $before $receipt\n```"},
}
DONE = {
    "tools": done("ok"),
    "python": {"content": "```python\ndone('ok')\n```"},
    "javascript": {"content": "```js\ndone('ok');\n```"},
    "shell": {"content": "```bash\ndone ok\n```"},
}


def policy(first: Any, medium: str = "tools") -> Any:
    """Return a crystal that says `first` to each intent, and is done when it has seen the result."""

    def answer(context: Any) -> Any:
        return DONE[medium] if _has_result(context) else first

    return scripted(answer, record=False)


def _has_result(context: Sequence[Any]) -> bool:
    newest = max(n for n, message in enumerate(context) if message.role == "user" and "go" in (message.content or ""))
    return any(message.role == "assistant" for message in context[newest:])


def asking(*gates: Any, medium: Any = "tools", first: Any = None, wards: tuple[Any, ...] = (), **parts: Any) -> Cantrip:
    """Return a cantrip that pays at once, and asks a person first."""
    circle = Circle(["done", *(gates or (ask_first(pay),))], [max_turns(9), *wards], medium=medium)
    return Cantrip(policy(first or PAY[medium], medium), circle=circle, **parts)


SPELL = asking()


async def request_of(runtime: Runtime) -> Request:
    """Wait for the next request."""
    async with runtime.requests(follow=True) as feed:
        return await anext(feed)


def results(runtime: Runtime, entity_id: str) -> list[str]:
    """Return the observations of an entity."""
    return [seen.content for turn in runtime.loom.turns(entity_id) for seen in turn.gate_calls]


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres.fresh()
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'loom'}"


@pytest.fixture(params=["jsonl", "sqlite", "postgres"])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return postgres.fresh() if request.param == "postgres" else f"{request.param}:{tmp_path / 'loom'}"


# Waiting


@pytest.mark.rule("C-20")
@pytest.mark.parametrize("medium", ["tools", "python", "javascript", "shell"])
async def test_a_gate_runs_once_after_a_week_and_a_restart_when_it_is_allowed(medium: str, tmp_path: Path) -> None:
    url, spell = f"jsonl:{tmp_path / 'loom'}", asking(medium=medium)
    async with Runtime.open(url, cantrips=[spell], passivate_after=60.0) as runtime:
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        await anyio.sleep(WEEK)
        assert not entity.loaded
        assert paid == []
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        assert [one.id for one in runtime.requests()] == [request.id]
        await runtime.decide(request.id, "allow", by="anna")
        episode = await runtime.get_entity(entity.id).episode()
        assert (episode.result, paid, runtime.requests()) == ("ok", [3], [])


@pytest.mark.rule("X-23")
@pytest.mark.parametrize(
    ("door", "words"),
    [
        ("", "anna, according to a program without authentication"),
        ("terminal:anna", "anna, at a terminal"),
        ("terminal:root", "anna, as root said at a terminal"),
        ("token:phone", "anna with the token phone"),
    ],
)
async def test_a_decision_names_its_person_and_its_door(url: str, door: str, words: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(asking(), "go")
        request = await request_of(runtime)
        with pytest.raises(InvalidDecision, match='door: expected "terminal:<name>"'):
            await runtime.decide(request.id, "allow", by="anna", door="window")
        await runtime.decide(request.id, "allow", by="anna", note="one is broken", door=door)
        await entity.episode()
        (decided,) = runtime.loom.turns(entity.id)[0].decisions
        assert (decided.decision, decided.by, decided.door, decided.decider) == ("allow", "anna", door, words)
        line = json.loads(thread_jsonl(runtime.loom.turns(entity.id)).splitlines()[0])
        assert [(one["by"], one["door"], one["note"]) for one in line["decisions"]] == [("anna", door, "one is broken")]
        assert json.dumps(words)[1:-1] in b"".join(html_page(runtime.loom)).decode()
        steps = trajectory(runtime.loom, entity.id)["steps"]
        assert [one["by"] for step in steps for one in step.get("extra", {}).get("decisions", [])] == ["anna"]


@pytest.mark.rule("C-20")
async def test_a_request_has_the_details_that_a_person_needs(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(asking(ask_first(pay, when=lambda args: f"more than {args['amount'] - 1}")), "go")
        (request,) = [await request_of(runtime)]
        assert (request.kind, request.entity, request.gate) == ("approval", entity.id, "pay")
        assert (request.args, request.text, request.schema, request.expires_at) == (
            {"amount": 3},
            "more than 2",
            None,
            None,
        )
        assert request.id == f"{entity.id}:{request.turn}:{request.call}"
        assert runtime.loom.state(entity.id) == "waiting"


@pytest.mark.rule("C-20")
async def test_a_long_lived_entity_takes_its_next_intent_after_the_decision(url: str) -> None:
    async with Runtime.open(url, passivate_after=5.0) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        request = await request_of(runtime)
        receipt = await entity.post("go again")
        await anyio.sleep(100)
        assert receipt.state == "waiting"
        await runtime.decide(request.id, "allow")
        second = await request_of(runtime)
        await runtime.decide(second.id, "deny", by="anna", note="once is enough")
        assert (await receipt.episode()).result == "ok"
        assert paid == [3]
        assert "pay was not run: anna denied it: once is enough" in results(runtime, entity.id)


class Life:
    """Processes that are killed at one write after the other, until the entity has paid."""

    def __init__(self, url: str, spell: Cantrip) -> None:
        self.url, self.spell = url, spell
        self.entity_id: str | None = None

    async def until_paid(self, at: int, *, durable: bool) -> list[str]:
        """Live twice, killed at that write of each life, and once to the end; return the observations."""
        for _ in range(2):
            async with Runtime.open(self.url, cantrips=[self.spell], recover="resume") as runtime:
                Process(Crash(at, durable)).attach(runtime)
                await attempt(self._live(runtime))
        async with Runtime.open(self.url, cantrips=[self.spell], recover="resume") as runtime:
            await self._live(runtime)
            (entity_id,) = [one.entity_id for one in runtime.loom.headers() if one.parent_entity is None]
            assert (await runtime.get_entity(entity_id).episode()).result == "ok"
            return results(runtime, entity_id)

    async def _live(self, runtime: Runtime) -> None:
        """Allow each request, until the entity has ended or its process is long dead."""
        entity = await runtime.start(self.spell, "go", key="only")
        with anyio.move_on_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._allow, runtime)
                await attempt(entity.episode())
                tasks.cancel_scope.cancel()

    async def _allow(self, runtime: Runtime) -> None:
        async with runtime.requests(follow=True) as feed:
            async for request in feed:
                await attempt(runtime.decide(request.id, "allow"))


@pytest.mark.rule("C-20")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 8), 2))
async def test_a_process_killed_at_any_write_pays_at_most_once_and_never_without_being_allowed(
    lasting_url: str, at: int, durable: bool
) -> None:
    seen = await Life(lasting_url, SPELL).until_paid(at, durable=durable)
    assert paid == [3] or (paid == [] and "outcome unknown" in seen[0])
    assert seen[0].startswith(("paid 3", "outcome unknown"))


@pytest.mark.rule("C-20")
@pytest.mark.parametrize("medium", ["python", "javascript", "shell"])
@pytest.mark.parametrize("at", part(range(1, 9), 3))
async def test_a_waiting_program_is_resumed_after_its_process_is_killed_at_any_write(
    tmp_path: Path, medium: str, at: int
) -> None:
    seen = await Life(f"sqlite:{tmp_path / 'loom'}", asking(medium=medium)).until_paid(at, durable=True)
    assert paid == [3] or (paid == [] and "outcome unknown" in seen[0])


@pytest.mark.rule("C-20")
async def test_closing_the_runtime_leaves_a_one_shot_entity_waiting_and_its_caller_gets_its_id(url: str) -> None:
    errors: list[CantripError] = []

    async def cast(runtime: Runtime) -> None:
        try:
            await runtime.cast(SPELL, "go")
        except CantripError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, Runtime.open(url) as runtime:
        tasks.start_soon(cast, runtime)
        request = await request_of(runtime)
        assert await runtime.drain(grace=1.0)
        loom = runtime.loom
        assert loom.state(str(request.entity)) == "waiting"
    (error,) = errors
    assert isinstance(error, RuntimeClosed)
    assert error.entity_id == request.entity


@pytest.mark.rule("C-20")
@pytest.mark.parametrize("kind", ["long-lived", "one-shot", "child"])
async def test_a_drain_does_not_wait_for_an_entity_that_asks_one_that_waits_for_a_person(
    tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"

    def answer(context: Any) -> Any:
        last = context[-1]
        if last.role == "tool":
            return done(last.content)
        return say("call_agent", intent="ask") if last.content == "delegate" else say("ask", to="payer", message="go")

    crystal = scripted(answer, record=False)
    asker = Cantrip(crystal, circle=Circle(["done", "call_agent", ask.with_(to=["payer"])], [max_turns(9)]))
    async with Runtime.open(url) as runtime:
        payer = await runtime.invoke(SPELL, "go", name="payer")
        first = await request_of(runtime)
        await runtime.decide(first.id, "allow", by="anna")
        await payer.episode()
        begin = runtime.invoke if kind == "long-lived" else runtime.start
        entity = await begin(asker, "delegate" if kind == "child" else "begin")
        request = await request_of(runtime)
        begun = anyio.current_time()
        assert await runtime.drain(grace=60.0)
        assert anyio.current_time() - begun < 1.0
    async with Runtime.open(url, cantrips=[SPELL, asker], recover="resume") as runtime:
        await runtime.decide(request.id, "allow", by="anna")
        with anyio.fail_after(30):
            assert (await runtime.get_entity(entity.id).episode()).result == "ok"


@pytest.mark.rule("C-20")
async def test_an_entity_that_waits_is_not_interrupted_and_not_abandoned(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(SPELL, "go")
        request = await request_of(runtime)
    async with Runtime.open(url, recover="abandon") as runtime:
        assert runtime.interrupted() == []
        assert [one.id for one in runtime.requests()] == [request.id]
        assert runtime.loom.state(entity.id) == "waiting"


@pytest.mark.rule("C-20")
async def test_another_process_decides_without_the_cantrip(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.start(SPELL, "go")
        await request_of(runtime)
        async with Runtime.open(url) as other:
            (request,) = other.requests()
            await other.decide(request.id, "allow")
        assert (await entity.episode()).result == "ok"


SERVICE = """
import signal, sys
import anyio
from cantrip_actors import Runtime
from tests.runtime.test_requests import SPELL

async def main():
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Runtime.open(sys.argv[1]) as runtime:
            await runtime.start(SPELL, "go")
            async with runtime.requests(follow=True) as feed:
                print((await anext(feed)).id, flush=True)
            async for _ in signals:
                print(await runtime.drain(5.0), flush=True)
                return

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.rule("C-20")
async def test_a_service_drains_on_sigterm_and_the_request_is_decided_later(
    lasting_url: str, anyio_backend_name: str
) -> None:
    with python(SERVICE, lasting_url, anyio_backend_name) as service:
        assert service.stdout is not None
        request_id = service.stdout.readline().strip()
        service.terminate()
        assert service.stdout.read() == "True\n"
        assert service.wait() == 0
    async with Runtime.open(lasting_url, cantrips=[SPELL]) as runtime:
        (request,) = runtime.requests()
        assert request.id == request_id
        await runtime.decide(request.id, "allow")
        assert request.entity is not None
        assert (await runtime.get_entity(request.entity).episode()).result == "ok"
    assert paid == [3]


@pytest.mark.rule("C-20")
async def test_an_interrupt_ends_the_wait_and_nothing_runs(url: str) -> None:
    async with Runtime.open(url, passivate_after=1.0) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        request = await request_of(runtime)
        await anyio.sleep(100)
        await entity.interrupt("enough")
        episode = await entity.episode()
        assert (episode.truncated, paid) == (True, [])
        assert results(runtime, entity.id) == ["not run: interrupted (enough)"]
        with pytest.raises(AlreadyDecided):
            await runtime.decide(request.id, "allow")


@pytest.mark.rule("C-20")
async def test_of_two_equal_decisions_with_one_key_at_the_same_moment_one_says_that_it_repeats(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        request = await request_of(runtime)
        repeats: list[bool] = []

        async def decide() -> None:
            repeats.append(await runtime.decide(request.id, "allow", by="anna", key="k"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide)
            tasks.start_soon(decide)
        assert sorted(repeats) == [False, True]
        await entity.episode()
        assert len(paid) == 1


@pytest.mark.rule("C-20")
async def test_cancelling_a_cast_that_waits_ends_its_entity(url: str) -> None:
    async with Runtime.open(url, passivate_after=1.0) as runtime:
        with anyio.move_on_after(50):
            await runtime.cast(SPELL, "go")
        (entity_id,) = runtime.loom.entities()
        assert runtime.loom.is_over(entity_id)
        assert runtime.requests() == []


@pytest.mark.rule("C-20")
async def test_the_timeout_ward_does_not_count_the_wait_for_a_person(url: str) -> None:
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.start(asking(wards=(timeout(20.0),)), "go")
        request = await request_of(runtime)
        await anyio.sleep(100)
        await runtime.decide(request.id, "allow")
        assert (await entity.episode()).result == "ok"


@pytest.mark.rule("C-20")
async def test_a_timeout_that_counts_the_wait_ends_an_entity_that_is_not_loaded(url: str) -> None:
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.start(asking(wards=(timeout(60.0, while_waiting=True),)), "go")
        await request_of(runtime)
        await anyio.sleep(50)
        assert not entity.loaded
        await anyio.sleep(50)
        episode = await entity.episode()
        assert (episode.ward, episode.truncated, runtime.requests()) == ("timeout", True, [])
    assert paid == []


@pytest.mark.rule("C-20", "LOOP-4")
async def test_a_timeout_that_counts_the_wait_ends_each_such_episode_of_a_long_lived_entity(url: str) -> None:
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.invoke(asking(wards=(timeout(60.0, while_waiting=True),)), "go", name="till")
        assert (await entity.episode()).ward == "timeout"
        assert (await entity.send("go again")).ward == "timeout"
        receipt = await entity.post("go once more")
        await runtime.decide((await request_of(runtime)).id, "allow")
        assert (await receipt.episode()).result == "ok"
        await anyio.sleep(100)
        assert runtime.loom.state(entity.id) == "idle"
    assert paid == [3]


@pytest.mark.rule("C-20", "C-23")
async def test_a_parent_that_ends_while_its_child_waits_leaves_no_request(url: str) -> None:
    def parent(context: Any) -> Any:
        return done(context[-1].content) if context[-1].role == "tool" else say("call_agent", intent="go")

    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(9), timeout(60.0, while_waiting=True)])
    spell = Cantrip(scripted(parent), circle=circle, child_crystal=policy(PAY["tools"]))
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.start(spell, "go")
        await request_of(runtime)
        await anyio.sleep(100)
        assert (await entity.episode()).ward == "timeout"
        assert runtime.requests() == []
        assert [one for one in runtime.loom.subtree(entity.id) if not runtime.loom.is_over(one)] == []


# Decisions


@pytest.mark.rule("C-21")
async def test_a_denial_is_an_error_observation_with_its_note(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(SPELL, "go")
        await runtime.decide((await request_of(runtime)).id, "deny", by="anna", note="too much")
        await entity.episode()
        (turn, _) = runtime.loom.turns(entity.id)
        assert [(seen.is_error, seen.content) for seen in turn.gate_calls] == [
            (True, "pay was not run: anna denied it: too much")
        ]
        assert paid == []


@pytest.mark.rule("C-21")
@pytest.mark.parametrize("medium", ["tools", "python", "javascript", "shell"])
async def test_changed_arguments_replace_those_of_the_call(medium: str) -> None:
    spell = asking(medium=medium)
    async with Runtime.open() as runtime:
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        with pytest.raises(InvalidDecision, match="amount"):
            await runtime.decide(request.id, "allow", args={"amount": "much"})
        await runtime.decide(request.id, "allow", args={"amount": 2})
        await entity.episode()
    assert paid == [2]


@pytest.mark.rule("C-21")
async def test_steps_before_a_gate_check_the_arguments_that_a_person_changed() -> None:
    def at_most_ten(call: Any) -> Refused | None:
        return Refused("at most 10") if call.args["amount"] > 10 else None

    async with Runtime.open() as runtime:
        entity = await runtime.start(asking(ask_first(wrap(pay, pre=[at_most_ten]))), "go")
        await runtime.decide((await request_of(runtime)).id, "allow", args={"amount": 11})
        await entity.episode()
        assert results(runtime, entity.id)[0] == "at most 10"
    assert paid == []


@pytest.mark.rule("C-21")
async def test_the_first_decision_counts_and_the_second_caller_gets_it(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(SPELL, "go")
        request = await request_of(runtime)
        outcomes: list[Any] = []

        async def decide(decision: Any, by: str) -> None:
            outcomes.append(await attempt(runtime.decide(request.id, decision, by=by)))

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(decide, "allow" if n % 2 else "deny", f"person {n}")
        await entity.episode()
        (first,) = [n for n, outcome in enumerate(outcomes) if outcome is False]
        others = [outcome for outcome in outcomes if outcome is not False]
        assert {type(error) for error in others} == {AlreadyDecided}
        assert len({(error.by, error.decision) for error in others}) == 1
        assert others[0].decision == ("allow" if paid else "deny")
        assert first >= 0


@pytest.mark.rule("C-21")
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_request_that_expires_is_denied(url: str, is_loaded: bool) -> None:
    async with Runtime.open(url, passivate_after=1000.0 if is_loaded else 5.0) as runtime:
        entity = await runtime.start(asking(ask_first(pay, expires=60.0)), "go")
        request = await request_of(runtime)
        assert request.expires_at is not None
        await anyio.sleep(30)
        assert (entity.loaded, len(runtime.requests())) == (is_loaded, 1)
        await anyio.sleep(60)
        await entity.episode()
        assert results(runtime, entity.id)[0] == "pay was not run: nobody decided in time"
        with pytest.raises(AlreadyDecided) as error:
            await runtime.decide(request.id, "allow")
        assert error.value.decision == "expired"
        assert "is not open any more at" in str(error.value)
    assert paid == []


@pytest.mark.rule("C-21")
async def test_a_request_that_is_decided_in_time_does_not_expire(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(asking(ask_first(pay, expires=60.0)), "go", name="x")
        await runtime.decide((await request_of(runtime)).id, "allow")
        await entity.episode()
        before = len(runtime.loom.records(entity.id))
        await anyio.sleep(100)
        assert len(runtime.loom.records(entity.id)) == before
    assert paid == [3]


@pytest.mark.rule("C-21")
async def test_no_timer_of_a_decided_request_is_left_if_the_next_request_follows_at_once() -> None:
    pays = {"tool_calls": PAY["tools"]["tool_calls"] * 2}
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(asking(ask_first(pay, expires=60.0), first=pays), "go")
        for _ in range(2):
            await runtime.decide((await request_of(runtime)).id, "deny", by="anna")
        await entity.episode()
        assert runtime._tree.store.timers(entity.id) == []


@pytest.mark.rule("C-21")
async def test_a_request_expires_over_a_restart(lasting_url: str) -> None:
    spell = asking(ask_first(pay, expires=0.5))
    async with Runtime.open(lasting_url) as runtime:
        entity = await runtime.start(spell, "go")
        await request_of(runtime)
    async with Runtime.open(lasting_url, cantrips=[spell]) as runtime:
        await anyio.sleep(1)
        await runtime.get_entity(entity.id).episode()
        assert results(runtime, entity.id)[0] == "pay was not run: nobody decided in time"


@pytest.mark.rule("C-21")
async def test_a_decision_of_an_unknown_request_is_refused(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(SPELL, "go")
        await request_of(runtime)
        for unknown in ("", "nonsense", f"{entity.id}:x:y", "a:b:c"):
            with pytest.raises(UnknownRequest, match=r"expected one of runtime\.requests"):
                await runtime.decide(unknown, "allow")
        assert len(runtime.requests()) == 1


@pytest.mark.rule("C-21")
@pytest.mark.parametrize(
    ("decision", "options"),
    [
        (None, {}),
        ("maybe", {}),
        (None, {"answer": "x"}),
        ("deny", {"args": {"amount": 1}}),
        ("allow", {"args": [1]}),
        ("allow", {"remember": "always"}),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused_and_changes_nothing(decision: Any, options: Any) -> None:
    async with Runtime.open() as runtime:
        await runtime.start(SPELL, "go")
        request = await request_of(runtime)
        with pytest.raises(InvalidDecision):
            await runtime.decide(request.id, decision, **options)
        assert [one.id for one in runtime.requests()] == [request.id]


@pytest.mark.rule("V-38")
async def test_a_decision_needs_a_name_and_a_shallow_value() -> None:
    deep: Any = 1
    for _ in range(3_000):
        deep = MappingProxyType({"a": deep})
    async with Runtime.open() as runtime:
        await runtime.start(SPELL, "go")
        request = await request_of(runtime)
        for by in ("", " ", None, 3):
            with pytest.raises(InvalidDecision, match="by: expected the name of the person or program that decides"):
                await runtime.decide(request.id, "allow", by=by)
        with pytest.raises(InvalidDecision, match="args: expected a value of at most 100 levels"):
            await runtime.decide(request.id, "allow", args={"amount": deep})
        await runtime.decide(request.id, "deny")
        await runtime.get_entity(request.entity).episode()
        assert runtime.loom.turns(request.entity)[0].decisions[0].by == "program"


@pytest.mark.rule("V-38", "V-30")
@pytest.mark.parametrize("kind", [dict, MappingProxyType])
async def test_a_deep_value_is_refused_with_an_error_of_its_door(kind: Any) -> None:
    deep: Any = 1
    for _ in range(3_000):
        deep = kind({"a": deep})

    class DeepCrystal:
        """Answers with a value that nests deeply in one of its parts."""

        def __init__(self, **part: Any) -> None:
            self.part = part

        async def invoke(self, messages: Any, tools: Any) -> Any:
            return {"content": "end"} if messages[-1].role == "tool" else self.part

    async def cast(**part: Any) -> Any:
        circle = Circle(["done", pay], [max_turns(2)])
        return await runtime.cast(Cantrip(DeepCrystal(**part), circle=circle), "go")

    parameters = {"type": "object", "properties": {"a": deep}}
    async with Runtime.open() as runtime:
        for error, refused in (
            (InvalidIntent, runtime.cast(SPELL, deep)),
            (InvalidIntent, runtime.cast(SPELL, "go", context={"a": deep})),
            (CrystalError, cast(content="x", metadata={"a": deep})),
            (CrystalError, cast(content="x", blocks=[deep])),
            (CrystalError, cast(tool_calls=[deep])),
        ):
            with pytest.raises(error):
                await refused
        with pytest.raises(InvalidCantrip, match="parameters are not a JSON Schema: it has more than 100 levels"):
            Gate.of(lambda: 1, name="g", description="", parameters=parameters)
        assert (await cast(tool_calls=[{"gate": "pay", "args": {"amount": deep}}])).result == "end"
    assert paid == []


@pytest.mark.rule("C-21")
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_remembered_decision_holds_for_calls_with_the_same_reason(decision: Any, url: str) -> None:
    def answer(context: Any) -> Any:
        seen = sum(message.role == "tool" for message in context)
        return done("ok") if seen == 4 else say("pay", amount=(30, 40, 3, 500)[seen])

    def why(args: Any) -> str | bool:
        return "large" if args["amount"] > 100 else "medium" if args["amount"] > 10 else False

    spell = Cantrip(scripted(answer), circle=Circle(["done", ask_first(pay, when=why)], [max_turns(9)]))
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(spell, "go")
        first = await request_of(runtime)
        await runtime.decide(first.id, decision, remember="entity")
        second = await request_of(runtime)
        assert (first.text, second.text) == ("medium", "large")
        await runtime.decide(second.id, "deny")
        await entity.episode()
    assert paid == ([30, 40, 3] if decision == "allow" else [3])


@pytest.mark.rule("C-21")
async def test_a_remembered_decision_does_not_hold_for_a_fork(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.start(SPELL, "go")
        await runtime.decide((await request_of(runtime)).id, "allow", remember="entity")
        episode = await entity.episode()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(runtime.fork, episode.thread[0].id, intent="go again"))
            request = await request_of(runtime)
            assert request.entity != entity.id
            await runtime.decide(request.id, "deny")
    assert paid == [3]


@pytest.mark.rule("C-21")
@pytest.mark.parametrize("own", [False, True], ids=["by the runtime", "by the gate"])
async def test_unattended_requests_are_denied_at_once_when_the_runtime_denies_them(own: bool) -> None:
    spell = asking(ask_first(pay, unattended="deny" if own else None))
    async with Runtime.open(unattended="wait" if own else "deny") as runtime:
        episode = await runtime.cast(spell, "go")
        assert (
            results(runtime, episode.entity_id)[0]
            == "pay was not run: the runtime denied it: no program follows requests"
        )
        async with runtime.requests(follow=True) as feed:
            entity = await runtime.start(spell, "go")
            await runtime.decide((await anext(feed)).id, "allow")
            await entity.episode()
    assert paid == [3]


# Questions

QUESTION = asking(
    "question", first=say("question", text="Which city?", schema={"type": "object", "required": ["city"]})
)


@pytest.mark.rule("C-21")
async def test_the_answer_to_a_question_is_its_observation(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(QUESTION, "go")
        request = await request_of(runtime)
        assert (request.kind, request.text, request.schema) == (
            "question",
            "Which city?",
            {"type": "object", "required": ["city"]},
        )
        for wrong in ("allow", None):
            with pytest.raises(InvalidDecision):
                await runtime.decide(request.id, wrong)
        with pytest.raises(InvalidDecision, match="city"):
            await runtime.decide(request.id, answer={"town": "Oslo"})
        await runtime.decide(request.id, answer={"city": "Oslo"}, by="anna")
        await entity.episode()
        assert results(runtime, entity.id)[0] == '{"city":"Oslo"}'


@pytest.mark.rule("C-21", "V-02")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [("half \ud83d", "half \\ud83d"), (["\ud83d"], '["\\\\ud83d"]'), ({1, 2}, "[1,2]"), (2**70, str(2**70))],
)
async def test_an_answer_is_taken_as_the_result_of_a_gate_is(answer: Any, expected: str) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(asking("question", first=say("question", text="?")), "go")
        await runtime.decide((await request_of(runtime)).id, answer=answer, by="anna")
        await entity.episode()
        assert results(runtime, entity.id)[0] == expected


@pytest.mark.rule("C-21")
@pytest.mark.parametrize("answer", [object(), {"a": len}, [[object()]]])
async def test_an_answer_that_no_gate_may_return_is_refused_and_changes_nothing(answer: Any) -> None:
    async with Runtime.open() as runtime:
        await runtime.start(asking("question", first=say("question", text="?")), "go")
        request = await request_of(runtime)
        with pytest.raises(InvalidDecision, match="answer: expected a JSON value"):
            await runtime.decide(request.id, answer=answer, by="anna")
        assert [one.id for one in runtime.requests()] == [request.id]


@pytest.mark.rule("C-21")
async def test_a_question_with_an_invalid_schema_is_an_error_observation() -> None:
    spell = asking("question", first=say("question", text="?", schema={"type": 3}))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        assert "expected a JSON Schema: 3 is not valid" in results(runtime, episode.entity_id)[0]


@pytest.mark.rule("C-13", "C-21")
@pytest.mark.parametrize("how", ["decide", "interrupt", "expire"])
async def test_a_request_is_settled_although_steering_messages_fill_the_inbox(url: str, how: str) -> None:
    spell = asking(ask_first(pay, expires=60))
    async with Runtime.open(url, max_waiting=3, passivate_after=5.0) as runtime:
        entity = await runtime.invoke(spell, "go", name="x")
        request = await request_of(runtime)
        for n in range(3):
            await entity.steer(f"{n}")
        with pytest.raises(InboxFull):
            await entity.steer("more")
        if how == "decide":
            await runtime.decide(request.id, "allow")
        elif how == "interrupt":
            await entity.interrupt("enough")
        else:
            await anyio.sleep(61)
        reason = (await entity.episode()).reason
        assert reason == ("interrupted" if how == "interrupt" else "terminated")
    assert paid == ([3] if how == "decide" else [])


# Children, other gates


@pytest.mark.rule("C-20", "C-23")
@pytest.mark.parametrize("seconds", [0, 1])
async def test_closing_the_runtime_leaves_a_tree_in_which_one_child_waits_and_another_works(
    lasting_url: str, seconds: int
) -> None:
    def parent(context: Any) -> Any:
        if context[-1].role == "tool":
            return done(context[-1].content)
        return say("call_agent_batch", intents=["pay", "work"])

    async def child(context: Any) -> Any:
        if context[0].content == "work":
            await anyio.sleep(10)
        elif context[-1].role != "tool":
            return say("pay", amount=7)
        return done(f"{context[0].content} is done")

    circle = Circle(["done", "call_agent_batch", ask_first(pay)], [max_turns(9), max_depth(1)])
    spell = Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child), name="boss")
    async with Runtime.open(lasting_url) as runtime:
        entity = await runtime.start(spell, "go")
        asked = await request_of(runtime)
        await anyio.sleep(seconds)
    async with Runtime.open(lasting_url, cantrips=[spell], recover="resume") as runtime:
        (request,) = runtime.requests()
        assert request.id == asked.id
        await runtime.decide(request.id, "allow")
        episode = await runtime.find(entity.id).episode()
    assert (episode.reason, episode.result) == ("terminated", '["pay is done","work is done"]')
    assert paid == [7]


@pytest.mark.rule("C-23")
async def test_one_of_20_batched_children_waits_and_the_others_continue(url: str) -> None:
    def parent(context: Any) -> Any:
        if context[-1].role == "tool":
            return done(context[-1].content)
        return say("call_agent_batch", intents=[f"child {n}" for n in range(20)])

    def child(context: Any) -> Any:
        if context[0].content == "child 7" and context[-1].role != "tool":
            return say("pay", amount=7)
        return done(context[0].content)

    circle = Circle(["done", "call_agent_batch", ask_first(pay)], [max_turns(9), max_depth(1)])
    spell = Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child))
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        await anyio.sleep(5)
        loom = runtime.loom
        over = [one for one in loom.below(entity.id) if loom.is_over(one)]
        assert len(over) == 19
        await anyio.sleep(100)
        assert not entity.loaded
        await runtime.decide(request.id, "allow")
        episode = await entity.episode()
        assert all(f"child {n}" in str(episode.result) for n in range(20))
    assert paid == [7]


@pytest.mark.rule("C-23")
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 8, 12, 16, 20])
async def test_a_decision_at_the_moment_of_unloading_continues_the_tree(tmp_path: Path, steps: int) -> None:
    def parent(context: Any) -> Any:
        return done(context[-1].content) if context[-1].role == "tool" else say("call_agent", intent="go")

    events: list[float] = []
    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(9)])
    spell = Cantrip(scripted(parent), circle=circle, child_crystal=policy(PAY["tools"]))
    async with Runtime.open(f"jsonl:{tmp_path / 'loom'}", passivate_after=5.0) as runtime:
        runtime.watch_actors(lambda _: events.append(anyio.current_time()))
        begun = anyio.current_time()
        first = await runtime.start(spell, "go")
        request = await request_of(runtime)
        await anyio.sleep(100.0)
        assert not first.loaded
        unloads = max(events) - begun  # the ends of its actors
        await runtime.decide(request.id, "allow")
        await first.episode()
        begun = anyio.current_time()
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        await anyio.sleep_until(begun + unloads)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await runtime.decide(request.id, "allow")
        with anyio.fail_after(100):
            assert (await entity.episode()).result == "ok"
    assert paid == [3, 3]


@pytest.mark.rule("C-23")
async def test_a_child_of_a_child_waits_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"

    def parent(context: Any) -> Any:
        return done(context[-1].content) if context[-1].role == "tool" else say("call_agent", intent="deeper")

    def child(context: Any) -> Any:
        if context[-1].role == "tool":
            return done(context[-1].content)
        return say("pay", amount=1) if context[0].content == "deepest" else say("call_agent", intent="deepest")

    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(9), max_depth(2)])
    spell = Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child))
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        assert request.entity != entity.id
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        assert runtime.interrupted() == []
        await runtime.decide(request.id, "allow")
        assert (await runtime.get_entity(entity.id).episode()).result == "paid 1"


@pytest.mark.rule("C-24")
async def test_ask_first_works_for_done(url: str) -> None:
    spell = Cantrip(
        scripted(lambda context: done(sum(message.role == "tool" for message in context)), record=False),
        circle=Circle([ask_first("done")], [max_turns(9)]),
    )
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(spell, "go")
        await runtime.decide((await request_of(runtime)).id, "deny", note="look again")
        await runtime.decide((await request_of(runtime)).id, "allow")
        assert (await entity.episode()).result == 1


@pytest.mark.rule("C-24")
async def test_a_request_that_is_decided_while_requests_are_read_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, seen = MemoryStore.newest, []

    def read_once(store: Store, *what: Any) -> Any:
        seen.append(read(store, *what))
        return seen[0]

    spell = Cantrip(scripted(lambda _: done("ok"), record=False), circle=Circle([ask_first("done")], [max_turns(9)]))
    async with Runtime.open() as runtime:
        entity = await runtime.start(spell, "go")
        first = await request_of(runtime)
        monkeypatch.setattr(MemoryStore, "newest", read_once)
        assert runtime.requests() == [first]
        await runtime.decide(first.id, "deny")
        while not any(turn.gate_calls for turn in runtime.loom.turns(entity.id)):
            await anyio.sleep(1.0)
        await anyio.sleep(1.0)
        assert runtime.requests() == []


@pytest.mark.rule("C-24")
@pytest.mark.parametrize("medium", ["tools", "python"])
async def test_ask_first_works_for_a_delegation(medium: Any) -> None:
    first = {
        "tools": say("call_agent", intent="go on"),
        "python": {"content": "```python\ncall_agent('go on')\n```"},
    }[medium]
    circle = Circle(["done", ask_first("call_agent")], [max_turns(9), max_depth(1)], medium=medium)
    spell = Cantrip(policy(first, medium), circle=circle, child_crystal=policy(DONE[medium], medium))
    async with Runtime.open() as runtime:
        entity = await runtime.start(spell, "go")
        request = await request_of(runtime)
        assert runtime.loom.below(entity.id) == ()
        await runtime.decide(request.id, "allow")
        assert (await entity.episode()).result == "ok"
        assert len(runtime.loom.below(entity.id)) == 1


@pytest.mark.rule("C-24")
async def test_steps_of_wrap_run_before_the_request_and_after_the_gate() -> None:
    steps: list[str] = []

    def before(call: Any) -> None:
        steps.append(f"before {call.args['amount']} {call.id.count(':')}")

    def after(call: Any, seen: Any) -> str:
        steps.append(f"after {seen.result}")
        return "noted"

    wrapped = asking(ask_first(wrap(pay, pre=[before], post=[after])))
    async with Runtime.open() as runtime:
        entity = await runtime.start(wrapped, "go")
        request = await request_of(runtime)
        assert steps == ["before 3 2"]
        await runtime.decide(request.id, "allow")
        await entity.episode()
        assert steps == ["before 3 2", "after paid 3"]
        assert results(runtime, entity.id)[0] == "paid 3\n[noted]"


@pytest.mark.rule("C-24")
async def test_a_condition_that_fails_refuses_the_call() -> None:
    spell = asking(ask_first(pay, when=lambda args: args["nothing"]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        assert "the condition of ask_first failed: KeyError" in results(runtime, episode.entity_id)[0]
    assert paid == []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ask_first(pay, when="yes"), "when"),
        (lambda: ask_first(pay, expires=0), "expires: expected seconds > 0, at most 3,162,240,000, or None"),
        (lambda: ask_first(pay, expires=float("inf")), "expires"),
        (lambda: ask_first(pay, expires=1e12), "expires"),
        (lambda: question.with_(expires="soon"), "question: expires"),
        (lambda: question.with_(unattended="allow"), "question: unattended"),
        (lambda: ask_first(pay, unattended="allow"), "unattended"),
        (lambda: Circle([ask_first(ask_first(pay))]), "asks a person already"),
        (lambda: Circle([ask_first("question")]), "asks a person already"),
    ],
)
def test_an_invalid_option_is_refused_when_the_circle_is_made(make: Any, expected: str) -> None:
    with pytest.raises(InvalidCantrip, match=expected):
        make()


# Following


@pytest.mark.rule("C-21")
async def test_events_include_requests_and_decisions(url: str) -> None:
    async with Runtime.open(url) as runtime:
        events = runtime.events(lambda event: isinstance(event, (RequestedEvent, DecidedEvent)))
        entity = await runtime.start(SPELL, "go")
        requested = await anext(events)
        assert isinstance(requested, RequestedEvent)
        assert (requested.gate, requested.args) == ("pay", {"amount": 3})
        await runtime.decide(requested.request_id, "allow", by="anna", note="fine")
        decided = await anext(events)
        assert isinstance(decided, DecidedEvent)
        assert (decided.request_id, decided.decision, decided.by, decided.note) == (
            requested.request_id,
            "allow",
            "anna",
            "fine",
        )
        await entity.episode()


@pytest.mark.rule("C-20")
async def test_a_feed_shows_the_open_requests_and_then_those_of_other_processes(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url) as watching, Runtime.open(url) as working:
        first = await working.start(SPELL, "go")
        async with watching.requests(follow=True) as feed:
            assert (await anext(feed)).entity == first.id
            second = await working.start(SPELL, "go")
            assert (await anext(feed)).entity == second.id


@pytest.mark.rule("C-22")
async def test_waiting_entities_use_at_most_a_kilobyte_each_once_they_are_unloaded(tmp_path: Path) -> None:
    many = 100
    async with Runtime.open(f"sqlite:{tmp_path / 'loom'}", passivate_after=5.0) as runtime:

        async def begin() -> int:
            ids = [(await runtime.start(SPELL, "go")).id for _ in range(many)]
            while any(runtime.get_entity(one).loaded for one in ids):
                await anyio.sleep(1)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            before = await begin()  # the event loop's own tables have grown to their size, too
            after = await begin()
        finally:
            tracemalloc.stop()
        assert len(runtime.requests()) == 2 * many
    assert (after - before) / many <= 1024


@pytest.mark.rule("C-22")
async def test_a_long_lived_entity_unloads_while_its_first_intent_waits_for_a_person(url: str) -> None:
    async with Runtime.open(url, passivate_after=10.0) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        request = await request_of(runtime)
        with anyio.move_on_after(20):
            await entity.episode()
        await anyio.sleep(20)
        assert not entity.loaded
        await runtime.decide(request.id, "allow")
        assert (await entity.episode()).result == "ok"
        assert (await entity.send("stop")).result == "ok"
        assert len((await entity.episode()).thread) == 2  # still that of the first intent
        other = await runtime.invoke(SPELL, "go", name="y")
        await request_of(runtime)
        await anyio.sleep(20)
        assert not other.loaded
    with pytest.raises(RuntimeClosed):
        await other.episode()
    assert paid == [3]


IMPORTING = """
import sys, threading
import anyio
from cantrip_actors import Cantrip, Circle, Runtime, ask_first, gate, scripted
from cantrip_actors.wards import max_turns

threads = set()

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jsonschema", "referencing"):
            threads.add(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Noting())

@gate
async def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

says = [{"tool_calls": [{"gate": "pay", "args": {"amount": 9}}]}, {"content": "Paid."}]
payer = Cantrip(scripted(says), circle=Circle(["done", ask_first(pay)], [max_turns(5)]))

async def main():
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(payer, "pay")
        async for request in runtime.requests(follow=True):
            assert not threads, "imported before anything was decided"
            await runtime.decide(request.id, "allow", args={"amount": 2})
            break
        await entity.result()

anyio.run(main, backend=BACKEND)
print(threads)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_first_edited_arguments_do_not_import_jsonschema_in_the_event_loop(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING.replace("BACKEND", repr(backend))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.strip() == "{False}"


ANSWERING = """
import sys
import anyio
from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns

says = [{"tool_calls": [{"gate": "question", "args": {"text": "Which city?"}}]}, {"content": "Oslo it is."}]
asker = Cantrip(scripted(says), circle=Circle(["done", "question"], [max_turns(5)]))

async def main():
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(asker, "ask")
        async for request in runtime.requests(follow=True):
            await runtime.decide(request.id, answer="Oslo")
            break
        await entity.result()

anyio.run(main)
print("jsonschema" in sys.modules)
"""


def test_an_answer_to_a_question_without_a_schema_does_not_import_jsonschema() -> None:
    ended = subprocess.run([sys.executable, "-c", ANSWERING], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "False"


@pytest.mark.rule("C-01", "C-20")
@pytest.mark.parametrize("passivate_after", [5, 10_000], ids=["unloaded", "kept"])
async def test_a_budget_counts_a_child_that_waits_for_people_whether_or_not_its_parent_is_unloaded(
    lasting_url: str, passivate_after: float
) -> None:
    def answer(context: Any) -> dict[str, object]:
        calls = sum(message.role == "assistant" for message in context)
        if any(message.content == "child" for message in context):
            turn = say("pay", amount=calls) if calls < 5 else done("ok")
        else:
            turn = done("ok") if calls else say("call_agent", intent="child")
        return {**turn, "usage": {"prompt_tokens": 100}}

    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(9), max_depth(1), max_tokens(650)])
    spell = Cantrip(scripted(answer, record=False), circle=circle)
    async with Runtime.open(lasting_url, cantrips=[spell], passivate_after=passivate_after) as runtime:
        entity = await runtime.start(spell, "go")
        for _ in range(5):
            await anyio.sleep(60)
            (request,) = runtime.requests()
            await runtime.decide(request.id, "allow")
        episode = await runtime.get_entity(entity.id).episode()
    assert (episode.reason, episode.ward) == ("truncated", "max_tokens")
    assert episode.subtree_usage.total_tokens == 700


@pytest.mark.rule("C-20")
async def test_a_second_decision_gets_the_first_one_also_in_a_process_with_smaller_inboxes(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        await runtime.start(SPELL, "go")
        request = await request_of(runtime)
    async with Runtime.open(url) as first, Runtime.open(url, max_waiting=1) as second:
        await first.get_entity(request.entity or "").steer("be quick")
        await first.decide(request.id, "allow", by="anna")
        with pytest.raises(AlreadyDecided, match="by anna"):
            await second.decide(request.id, "deny", by="ben")
