"""Deferred gates: a call waits until any program delivers its result (V-24)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    CantripError,
    Circle,
    DecidedEvent,
    Gate,
    Image,
    InvalidCantrip,
    InvalidDecision,
    LoomError,
    Request,
    RequestedEvent,
    Retry,
    Runtime,
    UnknownRequest,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_depth, max_turns
from tests.exhaustive import part
from tests.pictures import png
from tests.runtime.kills import attempt
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-24")

WEEK = 7 * 86_400.0


@gate(deferred=True)
async def build(target: str) -> dict[str, int]:
    """Build a target."""
    raise AssertionError("the function of a deferred gate is never called")


CALL = {
    "tools": say("build", target="docs"),
    "python": {"content": "```python\nbefore = 1\nprint(before, build(target='docs'))\n```"},
    "javascript": {"content": "```js\nvar before = 1;\nconsole.log(before, build({target: 'docs'}).size);\n```"},
    "shell": {"content": "```bash\nbefore=1\necho $before $(build docs)\n```"},
}
SHOWN = {"tools": '{"size":7}', "python": "1 {'size': 7}", "javascript": "1 7", "shell": '1 {"size":7}'}


def building(
    *gates: Any, medium: Any = "tools", call: Any = None, circle: tuple[Any, ...] = (), **parts: Any
) -> Cantrip:
    """Return a cantrip that calls `build` for each intent; its answer is what it sees of the result."""

    def policy(context: Any) -> Any:
        last = context[-1]
        if last.role == "user" and last.gate is None:
            return call or CALL[medium]
        if medium == "tools":
            return done(last.content)
        text = repr(str(last.content))
        return {"content": f"```{medium}\ndone({text})\n```"} if medium != "shell" else {"content": SHELL_DONE}

    gates = ("done", *circle, *(gates or (build,)))
    return Cantrip(scripted(policy, record=False), circle=Circle(gates, [max_turns(9), max_depth(1)], medium), **parts)


SHELL_DONE = "```bash\ndone ok\n```"


async def find_request(runtime: Runtime) -> Request:
    """Wait for the next request."""
    async with runtime.requests(follow=True) as feed:
        return await anext(feed)


@asynccontextmanager
async def waiting(cantrip: Cantrip | None = None) -> AsyncIterator[tuple[Runtime, Any, Request]]:
    """Open a runtime in which a call waits for its result."""
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(cantrip or building(), "go")
        yield runtime, entity, await find_request(runtime)


def observe(runtime: Runtime, entity_id: str) -> list[tuple[Any, bool]]:
    """Return the observations of an entity's calls, each with whether it is an error."""
    return [(seen.result, seen.is_error) for turn in runtime.loom.turns(entity_id) for seen in turn.gate_calls]


@pytest.mark.parametrize("medium", ["tools", "python", "javascript", "shell"])
async def test_a_deferred_call_waits_a_week_and_another_process_delivers_its_result(
    medium: str, tmp_path: Path
) -> None:
    url, cantrip = f"jsonl:{tmp_path / 'loom'}", building(medium=medium)
    async with Runtime.open(url, cantrips=[cantrip], passivate_after=60.0, unattended="deny") as runtime:
        entity = await runtime.start(cantrip, "go")
        request = await find_request(runtime)
        await anyio.sleep(WEEK)
        assert not entity.loaded
        assert (request.kind, request.gate, request.args) == ("deferred", "build", {"target": "docs"})
    async with Runtime.open(url) as other:  # it does not know the cantrip
        assert [one.id for one in other.requests()] == [request.id]
        await other.deliver(request.id, {"size": 7}, by="ci")
        assert other.requests() == []
    async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
        await runtime.get_entity(entity.id).episode()
        assert SHOWN[medium] in str(observe(runtime, entity.id)[0 if medium == "tools" else 1]).replace(
            "{'size': 7}", SHOWN["tools"] if medium == "tools" else "{'size': 7}"
        )
        (decided,) = runtime.loom.turns(entity.id)[0].decisions
        assert (decided.decision, decided.by) == ("answer", "ci")


@pytest.mark.parametrize(
    ("delivery", "observed"),
    [
        ({"result": {"size": 7}}, ({"size": 7}, False)),
        ({"result": None}, (None, False)),
        ({"result": False}, (False, False)),
        ({"result": ""}, ("", False)),
        ({"error": "the disk is full"}, ("the disk is full", True)),
    ],
)
async def test_a_delivery_is_the_observation_of_its_call(delivery: Any, observed: Any) -> None:
    async with waiting() as (runtime, entity, request):
        await runtime.deliver(request.id, **delivery)
        await entity.episode()
        assert observe(runtime, entity.id)[0] == observed


async def test_a_delivered_image_is_shown_to_the_crystal() -> None:
    async with waiting() as (runtime, entity, request):
        await runtime.deliver(request.id, Image(png(2, 2)))
        await entity.episode()
        (seen,) = runtime.loom.turns(entity.id)[0].gate_calls
        assert [image.media_type for image in seen.images] == ["image/png"]


async def test_results_of_later_calls_come_with_that_of_the_first_call_and_are_not_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    names = ("first", "approved", "pictured", "failed")
    gates = {"approved": "checked"}
    calls = [{"id": name, "gate": gates.get(name, "build"), "args": {"target": name}} for name in names]
    checked = ask_first(Gate.of(None, name="checked", parameters=build.parameters, kind="deferred"))
    cantrip = building(build, checked, call={"tool_calls": calls})
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.start(cantrip, "go", key="only")
        request = await find_request(runtime)
        later = {
            "approved": {"result": 2},
            "pictured": {"result": ["look", Image(png(2, 2))]},
            "failed": {"error": "disk"},
        }
        await runtime.deliver(request.id, Image(png(3, 3)), later=later)
        approval = await find_request(runtime)
        assert (approval.kind, approval.gate) == ("approval", "checked")
    async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
        await runtime.decide(approval.id, "allow", by="anna")
        await runtime.get_entity(entity.id).episode()
        assert runtime.requests() == []
        seen = runtime.loom.turns(entity.id)[0].gate_calls
        assert [(call.is_error, [image.width for image in call.images]) for call in seen] == [
            (False, [3]),
            (False, []),
            (False, [2]),
            (True, []),
        ]
        assert [seen[1].result, seen[3].result] == [2, "disk"]


async def test_a_second_delivery_gets_the_first_one_and_a_repeated_key_counts_once() -> None:
    async with waiting() as (runtime, entity, request):
        await runtime.deliver(request.id, 1, by="ci", key="job-17")
        await runtime.deliver(request.id, 1, by="ci", key="job-17")
        with pytest.raises(AlreadyDecided, match=r"decided before by ci at .*: answer") as refused:
            await runtime.deliver(request.id, 2, by="ann")
        assert refused.value.decision == "answer"
        await entity.episode()
        with pytest.raises(AlreadyDecided):
            await runtime.deliver(request.id, error="late")
        assert observe(runtime, entity.id)[0] == (1, False)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda runtime, id: runtime.deliver(id, object()), "expected a JSON value, or what a gate may return"),
        (lambda runtime, id: runtime.deliver(id, 1, error="both"), "expected a result or an error, got both"),
        (lambda runtime, id: runtime.deliver(id, error=" "), "error: expected a text that says what failed"),
        (lambda runtime, id: runtime.deliver(id, 1, later=[2]), "later: expected an object of results"),
        (lambda runtime, id: runtime.deliver(id, 1, later={"c": 2}), "later: c: expected {"),
        (lambda runtime, id: runtime.deliver(id, 1, by=" "), "by: expected the name of the person or program"),
        (lambda runtime, id: runtime.decide(id, "allow"), "waits for the result of build"),
        (lambda runtime, id: runtime.decide(id, "deny", remember="entity"), "waits for the result of build"),
        (lambda runtime, id: runtime.deliver(f"{id}x", 1), "no request has the id"),
        (lambda runtime, _: runtime.deliver(7, 1), "call_id: expected a text"),
    ],
)
async def test_a_delivery_that_does_not_fit_is_refused_and_changes_nothing(work: Any, expected: str) -> None:
    async with waiting() as (runtime, _, request):
        with pytest.raises((InvalidDecision, UnknownRequest), match=expected):
            await work(runtime, request.id)
        assert [one.id for one in runtime.requests()] == [request.id]


async def test_an_approval_takes_no_result() -> None:
    async with waiting(building(ask_first(build))) as (runtime, _, request):
        with pytest.raises(InvalidDecision, match="waits for a person: decide it"):
            await runtime.deliver(request.id, 1)


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_deferred_call_that_expires_is_an_error_observation(is_loaded: bool) -> None:
    async with Runtime.open("memory:", passivate_after=WEEK if is_loaded else 5.0) as runtime:
        entity = await runtime.start(building(build.with_(expires=3600)), "go")
        request = await find_request(runtime)
        await anyio.sleep(3599)
        assert entity.loaded is is_loaded
        await anyio.sleep(2)
        await entity.episode()
        assert observe(runtime, entity.id)[0] == ("build has no result: none was delivered in time", True)
        with pytest.raises(AlreadyDecided):
            await runtime.deliver(request.id, 1)


async def test_a_person_may_refuse_a_deferred_call_and_answer_it() -> None:
    async with waiting() as (runtime, entity, request):
        await runtime.decide(request.id, "deny", by="anna", note="not today")
        await entity.episode()
        assert observe(runtime, entity.id)[0] == ("build has no result: anna refused it: not today", True)
    async with waiting() as (runtime, entity, request):
        await runtime.decide(request.id, answer=[1], by="anna")
        await entity.episode()
        assert observe(runtime, entity.id)[0] == ([1], False)


async def test_a_person_allows_the_call_first_and_steps_around_it_run() -> None:
    started: list[tuple[str, Any]] = []

    def submit(call: Any) -> None:
        started.append((call.id, call.args["target"]))

    wrapped = wrap(ask_first(build), pre=[submit], post=[lambda call, seen: f"{call.gate}: {seen.result}"])
    async with waiting(building(wrapped)) as (runtime, entity, approval):
        await runtime.decide(approval.id, "allow", by="anna", args={"target": "site"})
        request = await find_request(runtime)
        assert (request.kind, request.args) == ("deferred", {"target": "site"})
        assert started[-1] == (
            approval.id,
            "site",
        )  # the step has started the job with the arguments that a person gave
        await runtime.deliver(started[-1][0], "7 pages", by="ci")
        await entity.episode()
        assert observe(runtime, entity.id)[0] == ("7 pages\n[build: 7 pages]", False)


@pytest.mark.parametrize("how", ["interrupt", "stop"])
async def test_an_entity_that_is_ended_while_a_call_waits_leaves_no_request(how: str) -> None:
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(building(), "go")
        request = await find_request(runtime)
        await (entity.interrupt() if how == "interrupt" else entity.stop())
        await attempt(entity.episode())
        assert runtime.requests() == []
        with pytest.raises(AlreadyDecided):
            await runtime.deliver(request.id, 1)
        (seen,) = observe(runtime, entity.id)
        assert seen[0].startswith("outcome unknown")


async def test_a_child_waits_for_a_result_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"

    def policy(context: Any) -> Any:
        last = context[-1]
        if last.role == "tool":
            return done(last.content)
        return say("call_agent", intent="below") if last.content == "go" else CALL["tools"]

    circle = Circle(["done", "call_agent", build], [max_turns(9), max_depth(1)])
    cantrip = Cantrip(scripted(policy, record=False), circle=circle)
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.start(cantrip, "go", key="only")
        request = await find_request(runtime)
        assert request.entity != entity.id
    async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
        await runtime.deliver(request.id, "built below")
        assert (await runtime.get_entity(entity.id).episode()).result == "built below"


async def test_a_long_lived_entity_is_forked_and_undoes_an_intent_with_delivered_results() -> None:
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        entity = await runtime.invoke(building(), "go")
        await runtime.deliver((await find_request(runtime)).id, "first")
        await entity.episode()
        receipt = await entity.post("go again")
        second = await find_request(runtime)
        branches: list[Any] = []

        async def fork() -> None:
            branches.append(await runtime.fork(runtime.loom.turns(entity.id)[-1].id, intent="other"))

        tasks.start_soon(fork)
        async with runtime.requests(follow=True) as feed:
            branched = next(one for one in [await anext(feed), await anext(feed)] if one.id != second.id)
        await runtime.deliver(branched.id, "of the branch")  # the call that waits stays with its entity
        await runtime.deliver(second.id, "second")
        assert (await receipt.episode()).result == "second"
        assert await entity.undo()
        again = await entity.post("go on")
        await runtime.deliver((await find_request(runtime)).id, "third")
        assert (await again.episode()).result == "third"
    assert [branch.result for branch in branches] == ["of the branch"]


async def test_events_show_what_is_waited_for_and_what_was_delivered() -> None:
    async with Runtime.open("memory:") as runtime:
        events = runtime.events(lambda event: isinstance(event, RequestedEvent | DecidedEvent))
        entity = await runtime.start(building(), "go")
        requested = await anext(events)
        assert (requested.is_deferred, requested.gate) == (True, "build")
        await runtime.deliver(requested.request_id, error="no", by="ci")
        decided = await anext(events)
        assert (decided.decision, decided.by, decided.request_id) == ("error", "ci", requested.request_id)
        await entity.episode()


async def _deliver_each(runtime: Runtime) -> None:
    async with runtime.requests(follow=True) as feed:
        async for request in feed:
            await attempt(runtime.deliver(request.id, {"size": 7}, key="job"))


@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 8), 2))
@pytest.mark.parametrize("medium", ["tools", "python"])
async def test_a_result_is_delivered_once_although_processes_are_killed_at_any_write(
    tmp_path: Path, at: int, durable: bool, medium: str
) -> None:
    cantrip = building(medium=medium)
    for dies in (True, True, False):
        async with Runtime.open(f"sqlite:{tmp_path / 'loom'}", cantrips=[cantrip], recover="resume") as runtime:
            if dies:
                Process(Crash(at, durable)).attach(runtime)
            with anyio.move_on_after(120):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_deliver_each, runtime)
                    entity = await attempt(runtime.start(cantrip, "go", key="only"))
                    if not isinstance(entity, CantripError):
                        await attempt(entity.episode())
                    tasks.cancel_scope.cancel()
            if not dies:
                shown = observe(runtime, entity.id)
                assert sum(result == {"size": 7} for result, _ in shown) == 1
                assert not any(is_error for _, is_error in shown)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: gate(deferred=True, timeout=3)(_plain), "timeout has no effect on a deferred gate: expires=…"),
        (lambda: gate(deferred=True, idempotent=True)(_plain), "idempotent has no effect on a deferred gate"),
        (
            lambda: gate(deferred=True, read_only=True, retry=Retry(on=(OSError,)))(_plain),
            "retry has no effect on a deferred gate",
        ),
        (lambda: gate(deferred=True, expires=0)(_plain), "expires: expected seconds > 0"),
        (lambda: gate(expires=3)(_plain), "expires is for deferred=True"),
        (lambda: gate(deferred="yes")(_plain), "deferred: expected True or False"),  # type: ignore[call-overload]
        (lambda: Circle([gate(name="done", deferred=True)(_plain)], [max_turns(1)]), "cannot be deferred: rename it"),
    ],
)
def test_a_setting_that_a_deferred_gate_cannot_have_is_refused(make: Any, expected: str) -> None:
    with pytest.raises(InvalidCantrip, match=expected):
        make()


def _plain(target: str) -> None:
    """Build."""


def test_a_deferred_gate_is_another_cantrip_than_one_that_runs_here() -> None:
    deferred = Gate.of(None, name="build", parameters={"type": "object"}, kind="deferred")
    called = Gate.of(lambda: None, name="build", parameters={"type": "object"})
    ids = {Cantrip(scripted([]), circle=Circle(["done", one], [max_turns(1)])).id for one in (deferred, called)}
    assert len(ids) == 2


async def test_a_waiting_entity_moves_to_another_cantrip_and_gets_the_results_of_its_calls_there() -> None:
    """Also of a gate that the other cantrip does not have."""
    seen: list[Any] = []

    def policy(context: Any) -> Any:
        last = context[-1]
        if last.role == "user":
            return {"tool_calls": [{"gate": "build", "args": {"target": name}} for name in ("docs", "wheel")]}
        seen.append([tool.name for tool in context.tools])
        return done([message.content for message in context if message.role == "tool"])

    def make(*gates: Any) -> Cantrip:
        return Cantrip(scripted(policy, record=False), circle=Circle(["done", *gates], [max_turns(9)]))

    async with waiting(make(build)) as (runtime, entity, request):
        later = runtime.loom.newest_round(entity.id).utterance.tool_calls[1].id
        resumed = await runtime.resume(entity.id, cantrip=make())
        assert [open_request.id for open_request in runtime.requests()] == [request.id]
        await runtime.deliver(request.id, "built 1", later={later: {"result": "built 2"}})
        assert (await resumed.episode()).result == ["built 1", "built 2"]
        assert (await entity.episode()).result == ["built 1", "built 2"]
        assert seen == [["done"]]


async def test_an_entity_that_works_is_not_moved_to_another_cantrip() -> None:
    async with Runtime.open("memory:") as runtime:
        slow = Cantrip(scripted([{**done(1), "delay": 5}]), circle=Circle(["done"], [max_turns(9)]))
        entity = await runtime.start(slow, "go")
        await anyio.sleep(1)
        with pytest.raises(LoomError, match="loaded with another cantrip"):
            await runtime.resume(entity.id, cantrip=building())
        assert (await entity.episode()).result == 1
