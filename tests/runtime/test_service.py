"""A runtime in a service: many requests, cancelled anywhere, one after the other."""

import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import anyio
import pytest
from anyio import from_thread, to_thread
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, ValidationError

from cantrip_actors import (
    PROVIDED,
    Cantrip,
    CantripError,
    Circle,
    Companion,
    Folding,
    Image,
    Injected,
    InvalidIntent,
    LoomError,
    Runtime,
    RuntimeClosed,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.crystal.query import Query
from cantrip_actors.crystals import fallback, limited
from cantrip_actors.machine.project import find_outcome
from cantrip_actors.records.records import IntentGiven
from cantrip_actors.runtime.entity import known_cantrips as known
from cantrip_actors.terms.messages import Invocation, Message, as_text
from cantrip_actors.wards import max_turns
from tests.pictures import png
from tests.runtime.spells import cantrip, say

QUERY = Query(Invocation([Message("user", "go")]))


class Model:
    """A crystal that has to be waited for."""

    name = "model"

    async def invoke(self, messages):
        await checkpoint()
        return {"content": "here"}


async def cancelled_after(checkpoints, work):
    """Run `work` in a task that is cancelled after so many checkpoints of the caller."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in range(checkpoints):
            await checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.rule("PROD-2")
@pytest.mark.parametrize("checkpoints", range(12))
async def test_a_request_cancelled_anywhere_does_not_affect_the_next_one(checkpoints):
    async with Runtime.open() as runtime:
        model = Model()
        for crystal in (model, fallback(model, limited(Model(), concurrency=2))):
            spell = cantrip(crystal)

            async def cast(spell=spell):
                await runtime.cast(spell, "go")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancelled_after, checkpoints, cast)
                for _ in range(checkpoints):
                    await checkpoint()
                assert (await runtime.cast(spell, "go")).result == "here"


@pytest.mark.rule("LOOM-7")
@pytest.mark.parametrize("checkpoints", range(16))
@pytest.mark.parametrize("how", ["cast", "start"])
async def test_the_work_of_a_cancelled_request_has_ended_once_its_wait_is_over(checkpoints, how):
    async with Runtime.open() as runtime:
        cast, started = getattr(runtime, how), []
        spell = cantrip(taking(1000).crystal)

        async def request():
            started.append(await cast(spell, "go"))

        await cancelled_after(checkpoints, request)
        for entity in started:
            await entity.stop()
        assert len(runtime._tree.living) == 0
        assert {runtime.loom.state(one) for one in runtime.loom.entities()} <= {"cancelled", "failed"}


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("checkpoints", range(16))
async def test_an_invoke_that_is_cancelled_leaves_no_entity_and_no_name(checkpoints):
    async with Runtime.open() as runtime:
        made = []

        async def request():
            made.append(await runtime.invoke(taking(1000), "go", name="notes"))

        await cancelled_after(checkpoints, request)
        assert (runtime.entity("notes") is not None) == bool(made)
        assert runtime.interrupted() == []
        for entity in made:
            await entity.stop()
        assert (await (await runtime.invoke(taking(1), "go", name="notes")).episode()).result == "here"


@pytest.mark.rule("D-001", "K-02")
@pytest.mark.real_time
async def test_an_invoke_that_is_cancelled_while_a_disk_writes_its_beginning_leaves_no_work(tmp_path, monkeypatch):
    async with Runtime.open(f"jsonl:{tmp_path}/loom.jsonl?durability=power") as runtime:
        store = runtime._tree.store
        write = store.append

        def write_slowly(*facts, **more):
            time.sleep(0.01)
            write(*facts, **more)

        monkeypatch.setattr(store, "append", write_slowly)
        for checkpoints in range(25):
            await cancelled_after(checkpoints, partial(runtime.invoke, taking(1000), "go"))
        await anyio.sleep(0.1)
        states = {runtime.loom.state(entity_id) for entity_id in runtime.loom.entities()}
        assert states <= {"cancelled", "abandoned"}
        assert len(runtime._tree.living) == 0


@pytest.mark.rule("PROD-2")
@pytest.mark.parametrize("checkpoints", range(8))
async def test_a_question_cancelled_anywhere_does_not_affect_the_next_one(checkpoints):
    async with Runtime.open() as runtime:
        model = Model()

        async def ask():
            await runtime.ask(model, QUERY)

        await cancelled_after(checkpoints, ask)
        assert (await runtime.ask(model, QUERY)).content == "here"
        assert runtime._tree.crystals.find(model).users == 0


class Unusable(Model):
    """A crystal whose actor cannot start."""

    @property
    def hedge(self):
        raise OSError("no settings")


@pytest.mark.rule("PROD-2")
async def test_an_entity_that_could_not_start_releases_its_crystal():
    """A crystal that is held for good keeps its actor, and a program that makes one for each cast would fill up."""
    async with Runtime.open() as runtime:
        crystals, model = runtime._tree.crystals, Model()
        spell = cantrip(model, folding=Folding(1, summary=Unusable()))
        with pytest.raises(CantripError):
            await runtime.cast(spell, "go")
        assert [crystals.find(one).users for one in (model, spell.folding.summary)] == [0, 0]
        assert (await runtime.cast(cantrip(model), "go")).result == "here"


@pytest.mark.rule("PROD-2", "D-011")
async def test_a_killed_entity_releases_its_crystal():
    async with Runtime.open() as runtime:
        crystals, spell = runtime._tree.crystals, taking(1000)
        entity = await runtime.invoke(spell, "go")
        await anyio.sleep(1)
        runtime._tree.living.get(entity.id).actor.kill()
        await anyio.sleep(10)
        await entity.stop()
        assert crystals.find(spell.crystal).users == 0


@pytest.mark.rule("PROD-2", "D-011")
@pytest.mark.parametrize("pause", [100, 1.1], ids=["seldom", "often"])
async def test_an_entity_that_is_killed_while_it_rests_goes_on_and_releases_its_crystal_when_it_ends(pause):
    async with Runtime.open() as runtime:
        crystals, spell = runtime._tree.crystals, taking(0)
        entity = await runtime.invoke(spell, "go")
        await entity.result()
        for _ in range(8):
            await anyio.sleep(pause)
            runtime._tree.living.get(entity.id).actor.kill()
        await anyio.sleep(60)
        assert entity.loaded
        await entity.stop()
        await anyio.sleep(1)
        assert crystals.find(spell.crystal).users == 0


# ------------------------------------------------------------------------------------ the dependencies of each request


class Session:
    """A session that a service opens for a request."""

    def __init__(self, user):
        self.user = user

    async def greet(self) -> str:
        """Greet the user."""
        return self.user


@gate
async def whoami(session: Injected[Session]) -> str:
    """Who is asking?"""
    return session.user


def asks(context):
    return say("whoami") if context[-1].role == "user" else {"content": context[-1].content}


POLICY = scripted(asks)
NOBODY = Session("nobody")
POLICY_SPELL = cantrip(POLICY, whoami.with_(session=NOBODY))


def for_user(user, *, crystal=POLICY):
    return cantrip(crystal, whoami.with_(session=Session(user)))


@pytest.mark.rule("CIRCLE-10", "CANTRIP-2")
async def test_an_unloaded_entity_is_loaded_with_its_own_dependencies():
    async with Runtime.open(passivate_after=10) as runtime:
        anna = await runtime.invoke(for_user("anna"), "go", name="anna")
        await runtime.cast(for_user("ben"), "go")
        await anyio.sleep(100)
        assert not anna.loaded
        assert (await anna.send("again")).result == "anna"
        await anyio.sleep(100)
        assert (await runtime.entity("anna").send("again")).result == "anna"


@pytest.mark.rule("CIRCLE-10", "CANTRIP-2")
@pytest.mark.parametrize("apart", ["dependency", "closure", "method", "step", "crystal"])
async def test_an_entity_is_never_loaded_with_dependencies_of_another_one(apart, monkeypatch):
    monkeypatch.setattr(known, "UNLOADED", 0)  # as if that many others had been unloaded since

    def spell(user):
        match apart:
            case "dependency":
                return for_user(user)
            case "closure":

                @gate(name="whoami")
                async def own() -> str:
                    """Who is asking?"""
                    return user

                return cantrip(POLICY, own)
            case "method":
                return cantrip(POLICY, gate(name="whoami")(Session(user).greet))
            case "step":
                return cantrip(POLICY, wrap(whoami.with_(session=NOBODY), pre=[lambda call: None], name="step"))
            case _:
                return cantrip(scripted(asks), whoami.with_(session=NOBODY))

    async with Runtime.open(passivate_after=10) as runtime:
        first = await runtime.invoke(spell("anna"), "go", name="anna")
        turn = (await first.episode()).thread[0].id
        await runtime.cast(spell("ben"), "go")
        await anyio.sleep(100)
        with pytest.raises(LoomError, match="several crystals or dependencies: say with which"):
            await runtime.entity("anna").send("again")
        with pytest.raises(LoomError, match="several crystals or dependencies"):
            await runtime.fork(turn, intent="again")
        if apart == "crystal":
            assert (await runtime.fork(turn, intent="again", crystal=POLICY)).result == "nobody"
        else:
            with pytest.raises(LoomError, match="several crystals or dependencies"):
                await runtime.fork(turn, intent="again", crystal=POLICY)
        assert (await runtime.fork(turn, intent="again", cantrip=spell("carl"))).terminated


@pytest.mark.rule("CANTRIP-2")
async def test_a_cantrip_rebuilt_from_the_same_dependencies_continues_its_entity():
    session = Session("anna")

    def spell():
        return cantrip(POLICY, whoami.with_(session=session), gate(name="greet")(session.greet))

    async with Runtime.open(passivate_after=10) as runtime:
        await runtime.invoke(spell(), "go", name="anna")
        await runtime.cast(spell(), "go")
        await anyio.sleep(100)
        assert (await runtime.entity("anna").send("again")).result == "anna"


@pytest.mark.rule("CIRCLE-10")
@pytest.mark.parametrize("pause", [0, 5, 100], ids=["at once", "idle", "asleep"])
async def test_each_send_uses_the_dependencies_that_it_comes_with(pause):
    async with Runtime.open(passivate_after=10) as runtime:
        await runtime.invoke(for_user("anna"), "go", name="shared")
        for user in ("ben", "ben", "carl", "anna"):
            await anyio.sleep(pause)
            mine = runtime.entity("shared", cantrip=for_user(user))
            assert (await mine.send("who?")).result == user
        assert len(runtime.loom.turns(mine.id)) == 10


@pytest.mark.rule("CIRCLE-10")
async def test_sends_with_dependencies_of_their_own_may_be_concurrent():
    async with Runtime.open(passivate_after=10) as runtime:
        await runtime.invoke(for_user("anna"), "go", name="shared")
        seen = {}

        async def send(user):
            seen[user] = (await runtime.entity("shared", cantrip=for_user(user)).send("who?")).result

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(send, f"user {number}")
        assert seen == {f"user {number}": f"user {number}" for number in range(20)}


@pytest.mark.rule("CIRCLE-10")
async def test_a_sender_that_waits_for_unloading_gets_an_error_when_the_runtime_closes():
    async def slow(context):
        return {"content": "late", "delay": 1000.0}

    told = []

    async def send(entity):
        try:
            await entity.send("who?")
        except CantripError as error:
            told.append(type(error))

    async with anyio.create_task_group() as tasks, Runtime.open() as runtime:
        crystal = scripted(slow)
        await runtime.invoke(for_user("anna", crystal=crystal), "go", name="shared")
        for user in ("ben", "carl"):
            tasks.start_soon(send, runtime.entity("shared", cantrip=for_user(user, crystal=crystal)))
        await anyio.sleep(1)
    assert told == [RuntimeClosed, RuntimeClosed]


# -------------------------------------------------------------------------------------------------------- typed answers


class Invoice(BaseModel):
    total: int
    items: list[str] = []


@gate(name="done")
async def invoiced(answer: Invoice) -> None:
    """Finish with the invoice."""


@pytest.mark.rule("CIRCLE-8")
async def test_a_typed_answer_is_requested_until_it_fits():
    script = [say("done", answer={"total": "much"}), say("done", answer={"total": 3, "items": ["tea"]})]
    spell = Cantrip(scripted(script), circle=Circle([invoiced], [max_turns(5)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        again = find_outcome(runtime.loom.records(episode.entity_id))
    assert 'argument "answer.total": input should be a valid integer' in episode.thread[0].observation
    assert episode.result == again.result == {"total": 3, "items": ["tea"]}
    assert episode.result_as(Invoice) == Invoice(total=3, items=["tea"])


@pytest.mark.rule("CIRCLE-8")
async def test_an_answer_of_another_type_fails_validation():
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([{"content": "three"}]), "go")
    assert episode.result_as(str) == "three"
    with pytest.raises(ValidationError, match="Invoice"):
        episode.result_as(Invoice)


# ------------------------------------------------------------------------------------------------------ data to work on


@dataclass
class Point:
    x: int


@pytest.mark.rule("D-005", "INTENT-2")
@pytest.mark.parametrize(
    ("data", "read"),
    [
        (Invoice(total=1), {"total": 1, "items": []}),
        ({"at": [Point(2)], 3: Decimal("1.50")}, {"at": [{"x": 2}], "3": "1.50"}),
        ({"b", "a"}, ["a", "b"]),
        (b"raw", "raw"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    ],
    ids=["model", "nested", "set", "bytes", "date"],
)
async def test_data_may_be_any_value_that_a_gate_can_return(data, read):
    model = scripted(lambda context: {"content": context[-1].content})
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip(model), "go", context=data)
        (given,) = [one for one in runtime.loom.records(episode.entity_id) if isinstance(one, IntentGiven)]
    assert given.context == read
    assert episode.result == f"context:\n{as_text(read)}"


@pytest.mark.rule("INTENT-1")
@pytest.mark.parametrize("data", [object(), {"deep": [object()]}, anyio.Event])
async def test_data_that_json_cannot_represent_is_refused_before_an_entity_is_made(data):
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match=r"context: expected .* got "):
            await runtime.cast(cantrip([]), "go", context=data)
        assert runtime.loom.entities() == []


@pytest.mark.rule("D-005")
async def test_images_are_found_anywhere_in_data():
    class Photo(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        image: Image

    picture = Image(png())
    model = scripted(lambda context: {"content": f"{len(context[0].images)}"})
    async with Runtime.open() as runtime:
        assert (await runtime.cast(cantrip(model), "go", context=Photo(image=picture))).result == "1"


# ---------------------------------------------------------------------------------------------------- context variables

REQUEST = ContextVar("REQUEST", default="no request")


@gate
async def request() -> str:
    """Which request is this?"""
    return REQUEST.get()


@gate
def request_in_a_thread() -> str:
    """Which request is this?"""
    return REQUEST.get()


class Asking:
    """A crystal that has both gates called, and names the request that it was queried for."""

    name = "asking"

    async def invoke(self, messages):
        await checkpoint()
        if messages[-1].role == "user":
            return {**say("request"), "content": REQUEST.get()}
        if messages[-1].gate == "request":
            return {**say("request_in_a_thread"), "content": REQUEST.get()}
        return {"content": REQUEST.get()}


def seen_in(episode):
    """Return the requests that the crystal and the gates of an episode saw."""
    return {said for turn in episode.thread for said in (turn.content, turn.observation) if said}


ASKING = cantrip(Asking(), request, request_in_a_thread)


@pytest.mark.rule("CIRCLE-4")
async def test_gates_and_crystals_see_the_context_of_the_caster():
    async with Runtime.open() as runtime:

        async def serve(number):
            REQUEST.set(f"request {number}")
            assert seen_in(await runtime.cast(ASKING, "go")) == {f"request {number}"}
            assert REQUEST.get() == f"request {number}"

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(serve, number)
        assert seen_in(await runtime.cast(ASKING, "go")) == {"no request"}


@pytest.mark.rule("CIRCLE-4")
@pytest.mark.parametrize("pause", [0, 5, 100], ids=["at once", "idle", "asleep"])
async def test_each_send_runs_in_the_context_of_its_sender(pause):
    async with Runtime.open(passivate_after=10) as runtime:
        seen = []

        async def send(number):
            if number:
                REQUEST.set(f"request {number}")
            seen.append((await runtime.entity("notes").send("go")).result)

        await (await runtime.invoke(ASKING, "go", name="notes")).episode()
        for number in (1, 0, 2):
            await anyio.sleep(pause)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, number)
        assert seen == ["request 1", "no request", "request 2"]


async def _post(entity):
    return await (await entity.post("go")).result()


async def _stream(entity):
    async with entity.stream("go") as run:
        return await run.result()


async def _send_with_a_timeout(entity):
    return await entity.send("go", timeout=60)


@pytest.mark.rule("K-05")
@pytest.mark.parametrize("pause", [0, 100], ids=["at once", "asleep"])
@pytest.mark.parametrize("give", [_post, _stream, _send_with_a_timeout])
async def test_an_intent_is_worked_on_in_the_context_of_its_sender_however_it_is_given(give, pause):
    async with Runtime.open(passivate_after=10) as runtime:
        seen = []

        async def serve(number):
            REQUEST.set(f"request {number}")
            seen.append((await give(runtime.entity("notes"))).result)

        await (await runtime.invoke(ASKING, "go", name="notes")).episode()
        await anyio.sleep(pause)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(serve, number)
        assert sorted(seen) == ["request 0", "request 1", "request 2"]


@pytest.mark.rule("K-05")
async def test_an_intent_that_could_not_be_sent_leaves_nothing_of_its_sender(monkeypatch):
    def fail(*_):
        raise LoomError("the loom cannot be reached")

    async with Runtime.open(passivate_after=10) as runtime:
        await (await runtime.invoke(ASKING, "go", name="notes")).episode()
        await anyio.sleep(100)
        REQUEST.set("request")
        tree, entity = runtime._tree, runtime.entity("notes")
        monkeypatch.setattr(tree.store, "post", fail)
        for _ in range(3):
            with pytest.raises(LoomError, match="cannot be reached"):
                await entity.post("go")
        assert not tree.inboxes._inboxes


@pytest.mark.rule("K-05")
async def test_an_intent_keeps_the_context_of_its_sender_while_its_entity_moves_to_other_dependencies():
    @gate
    async def name_request(user: Injected[str]) -> str:
        """Name the user and the request."""
        return f"{user}, {REQUEST.get()}"

    def policy(context):
        last = context[-1]
        return say("name_request") if last.role == "user" else {"content": last.content}

    circle = Circle(["done", name_request.with_(user=PROVIDED)], [max_turns(5)])
    desk = Cantrip(scripted(policy), circle=circle, name="desk")
    provide = {"dependencies": lambda scope: {"user": scope.sender}}
    async with Runtime.open(cantrips=[desk], **provide) as runtime:
        entity = await runtime.ensure("desk", desk)
        works = []
        for user in ("anna", "ben", "anna"):
            REQUEST.set(f"request of {user}")
            works.append(await entity.post("go", by=user))
        REQUEST.set("of none")
        results = [(await work.result()).result for work in works]
    assert results == ["anna, request of anna", "ben, request of ben", "anna, request of anna"]


@pytest.mark.rule("COMP-2")
async def test_children_see_the_context_of_their_parents():
    def policy(context):
        if context[0].content == "ask":
            return say("call_agent", intent="go") if context[-1].role == "user" else {"content": context[-1].content}
        return say("request") if context[-1].role == "user" else {"content": context[-1].content}

    async with Runtime.open() as runtime:
        REQUEST.set("the parent's")
        assert (await runtime.cast(cantrip(policy, "call_agent", request), "ask")).result == "the parent's"


@pytest.mark.rule("CIRCLE-4")
async def test_a_context_variable_that_a_gate_sets_stays_in_the_gate():
    @gate
    async def spoil() -> str:
        """Set it."""
        before = REQUEST.get()
        REQUEST.set("spoilt")
        return before

    async with Runtime.open() as runtime:
        REQUEST.set("mine")
        episode = await runtime.cast(cantrip([say("spoil"), say("spoil"), {"content": "done"}], spoil), "go")
    assert [turn.observation for turn in episode.thread[:2]] == ["mine", "mine"]
    assert REQUEST.get() == "mine"


@pytest.mark.rule("CIRCLE-4")
async def test_companions_and_log_lines_have_the_context():
    seen = []

    class Watching(Companion):
        async def begins(self, here):
            seen.append(REQUEST.get())

        async def ends(self, here, outcome):
            seen.append(REQUEST.get())

    circle = Circle(["done"], [max_turns(2)], companion=Watching())
    async with Runtime.open() as runtime:
        REQUEST.set("mine")
        await runtime.cast(Cantrip(scripted([{"content": "done"}]), circle=circle), "go")
    assert seen == ["mine", "mine"]


@pytest.mark.rule("PROD-2")
async def test_a_question_without_an_entity_has_the_context_of_the_asker():
    async with Runtime.open() as runtime:
        REQUEST.set("mine")
        for crystal in (Asking(), fallback(Asking(), Asking())):
            assert (await runtime.ask(crystal, QUERY)).content == "mine"


@pytest.mark.rule("CIRCLE-4")
async def test_a_parent_that_hibernated_continues_in_its_context():
    async def policy(context):
        if context[0].content == "ask":
            return say("call_agent", intent="go") if context[-1].role == "user" else asked_at_last(context)
        return {"content": "back", "delay": 1000.0}

    def asked_at_last(context):
        return say("request") if context[-1].gate == "call_agent" else {"content": context[-1].content}

    async with Runtime.open() as runtime:
        REQUEST.set("mine")
        assert (await runtime.cast(cantrip(policy, "call_agent", request), "ask")).result == "mine"


# -------------------------------------------------------------------------------------------------- in which event loop


@pytest.mark.rule("PROD-2")
@pytest.mark.real_time
async def test_a_runtime_refuses_calls_from_another_event_loop():
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(ASKING, "go", name="here")
        await entity.episode()
        asks = [
            partial(runtime.cast, ASKING, "go"),
            partial(entity.send, "go"),
            partial(runtime.ask, Asking(), QUERY),
        ]

        async def elsewhere(asked):
            with pytest.raises(RuntimeClosed, match="opened in another event loop: open one in each"):
                await asked()

        for asked in asks:
            await to_thread.run_sync(partial(anyio.run, elsewhere, asked))
        told = await to_thread.run_sync(partial(from_thread.run, partial(runtime.cast, ASKING, "go")))
        assert (await entity.send("go")).terminated
        assert told.terminated


# -------------------------------------------------------------------------------------------------------- shutting down


def taking(seconds):
    """Return a cantrip whose crystal takes so many seconds for its answer."""

    class Taking:
        name = "taking"

        async def invoke(self, messages):
            await anyio.sleep(seconds)
            return {"content": "here"}

    return cantrip(Taking())


@pytest.mark.rule("PROD-2")
async def test_a_runtime_that_drains_refuses_new_work_and_finishes_its_own():
    told = []
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        notes = await runtime.invoke(taking(10), "go", name="notes")
        idle = await runtime.invoke(taking(0), "go", name="idle")
        await idle.episode()
        started = await runtime.start(taking(20), "go")

        async def cast():
            told.append((await runtime.cast(taking(5), "go")).result)

        async def drain():
            told.append(await runtime.drain(grace=60))

        tasks.start_soon(cast)
        tasks.start_soon(notes.send, "more")
        await anyio.sleep(1)
        tasks.start_soon(drain)
        await anyio.sleep(1)
        for refused in (partial(runtime.cast, taking(0), "go"), partial(idle.send, "go"), partial(notes.send, "go")):
            with pytest.raises(RuntimeClosed, match="drains: it accepts no new"):
                await refused()
    assert told == ["here", True]
    assert runtime.loom.state(started.id) == "terminated"
    assert len(runtime.loom.turns(notes.id)) == 2


@pytest.mark.rule("PROD-2")
async def test_an_episode_longer_than_the_grace_is_stopped_when_the_runtime_closes():
    async with Runtime.open() as runtime:
        quick, slow = await runtime.start(taking(5), "go"), await runtime.start(taking(50), "go")
        assert await runtime.drain(grace=10) is False
        assert (quick.loaded, slow.loaded) == (False, True)
    assert [runtime.loom.state(one.id) for one in (quick, slow)] == ["terminated", "cancelled"]


@pytest.mark.rule("PROD-2")
async def test_draining_an_idle_runtime_takes_no_time():
    async with Runtime.open() as runtime:
        assert await runtime.drain()
        assert await runtime.drain(0)
    with pytest.raises(RuntimeClosed):
        await runtime.drain()


@pytest.mark.rule("PROD-2")
async def test_a_drain_without_a_grace_is_refused_in_a_gate_because_it_would_wait_for_its_own_entity():
    @gate
    async def shut_down(grace: int | None) -> bool:
        """Drain the service."""
        return await runtime.drain(grace)

    script = [{"tool_calls": [{"gate": "shut_down", "args": {"grace": grace}}]} for grace in (None, 5)] + [
        {"tool_calls": [{"gate": "done", "args": {"answer": "over"}}]}
    ]
    spell = Cantrip(scripted(script), circle=Circle(gates=["done", shut_down], wards=[max_turns(5)]))
    async with Runtime.open() as runtime:
        with anyio.fail_after(60):
            entity = await runtime.start(spell, "go")
            assert (await entity.episode()).result == "over"
        first, second, _ = [turn.observations[0] for turn in runtime.loom.turns(entity.id)]
    assert first.is_error
    assert "drain in a task of your program" in str(first.content)
    assert (second.is_error, second.content) == (False, "false")


# --------------------------------------------------------------------------------------------- found by another request


@pytest.mark.rule("LOOM-7")
async def test_an_entity_is_found_by_its_id_in_any_state(tmp_path):
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[POLICY_SPELL], passivate_after=10) as runtime:
        started = await runtime.start(taking(5), "go")
        notes = await runtime.invoke(POLICY_SPELL, "go", name="notes")
        under_way = runtime.get_entity(started.id)
        assert under_way.loaded
        assert (await under_way.episode()).result == "here"
        assert (await runtime.get_entity(started.id).episode()).result == "here"
        assert runtime.get_entity(notes.id).name == "notes"
        assert (await runtime.get_entity(notes.id).send("again")).terminated
        assert runtime.get_entity("notes").id == notes.id
    async with Runtime.open(url, cantrips=[POLICY_SPELL]) as runtime:
        assert (await runtime.get_entity(started.id).episode()).result == "here"
        assert (await runtime.get_entity(notes.id).send("again")).terminated


@pytest.mark.rule("COMP-8")
async def test_a_child_that_is_found_may_be_stopped():
    class Parent:
        name = "parent"

        async def invoke(self, messages):
            if messages[0].content == "wait":
                await anyio.sleep(1000)
            if messages[-1].role == "user":
                return say("call_agent_batch", intents=["wait", "go"])
            return {"content": messages[-1].content}

    async with Runtime.open() as runtime:
        family = await runtime.start(cantrip(Parent(), "call_agent_batch", wards=(max_turns(3),)), "ask")
        await anyio.sleep(1)
        waits = next(one for one in runtime.loom.subtree(family.id) if runtime.loom.header(one).depth == 1)
        await runtime.get_entity(waits).stop()
        assert runtime.loom.state(waits) == "cancelled"
        with anyio.fail_after(10):
            await family.stop()


@pytest.mark.rule("CIRCLE-4")
@pytest.mark.real_time
def test_a_blocking_runtime_finds_entities_and_passes_the_context_on():
    before = REQUEST.set("the thread's")
    with Runtime.blocking() as runtime:
        assert seen_in(runtime.cast(ASKING, "go")) == {"the thread's"}
        notes = runtime.invoke(ASKING, "go", name="notes")
        notes.episode()
        assert runtime.entity("notes", cantrip=ASKING).id == runtime.get_entity(notes.id).id == notes.id
        assert runtime.entity("nobody") is None
    REQUEST.reset(before)  # later tests begin in this thread
