"""Dependencies of gates: the right ones in every process, and never those of another user."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    PROVIDED,
    Cantrip,
    Circle,
    DependenciesUnknown,
    EpisodeScope,
    Injected,
    InvalidCantrip,
    Message,
    NameTaken,
    NoAnswer,
    Node,
    Runtime,
    Unavailable,
    gate,
    scripted,
)
from cantrip_actors.runtime.entity.marks import Marks
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_depth, max_turns, timeout
from tests.runtime.spells import say

pytestmark = pytest.mark.rule("Y-02")


class Session:
    """A dependency that exists in one process only."""

    def __init__(self, user: str) -> None:
        self.user = user


@gate(idempotent=True)
async def orders(user: Injected[Any]) -> str:
    """List the orders of the user."""
    return f"tea for {user.user if isinstance(user, Session) else user}"


@gate(idempotent=True)
async def hang(user: Injected[Any]) -> str:
    """Wait, until the process is stopped."""
    await anyio.sleep(3600)
    return f"late tea for {user}"


@cache
def ask(name: str) -> Any:
    async def answer(context: tuple[Message, ...]) -> dict[str, object]:
        last = context[-1]
        return {"content": last.content} if last.role == "tool" else say(name)

    return scripted(answer)


def desk(user: Any = PROVIDED, gate_name: str = "orders", wards: Sequence[Any] = ()) -> Cantrip:
    gates = [one.with_(user=user) for one in (orders, hang)]
    return Cantrip(ask(gate_name), circle=Circle(["done", *gates], [max_turns(5), *wards]), name="desk")


def by_sender(episode: EpisodeScope) -> Mapping[str, Any]:
    return {"user": episode.sender}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


# Provided dependencies


async def test_each_intent_gets_the_dependencies_of_its_sender_whichever_worker_runs_the_entity(url: str) -> None:
    options: dict[str, Any] = {"cantrips": [desk()], "dependencies": by_sender}
    async with Runtime.open(url, **options) as first, Runtime.open(url, **options) as second:
        anna = await first.ensure("notes", desk())
        assert (await anna.send("mine", by="anna")).result == "tea for anna"
        there = second.entity("notes")
        assert there is not None
        assert (await there.send("mine", by="ben", timeout=20)).result == "tea for ben"
        assert not there.loaded
        with_cantrip = second.entity("notes", cantrip=desk())
        assert with_cantrip is not None
        assert (await with_cantrip.send("mine", by="carl", timeout=20)).result == "tea for carl"
        assert (await anna.send("mine", by="anna")).result == "tea for anna"


async def test_a_resumed_job_has_the_dependencies_of_its_own_user(url: str) -> None:
    waiting = desk(gate_name="hang")
    async with Runtime.open(url, cantrips=[waiting], dependencies=by_sender) as runtime:
        for user in ("anna", "ben"):
            await runtime.start(waiting, "go", key=user, by=user)
        await anyio.sleep(1)

    @gate(name="hang", idempotent=True)
    async def mended(user: Injected[Any]) -> str:
        """Wait, until the process is stopped."""
        return f"late tea for {user}"

    gates = [orders.with_(user=PROVIDED), mended.with_(user=PROVIDED)]
    offered = Cantrip(ask("hang"), circle=Circle(["done", *gates], [max_turns(5)]), name="desk")
    assert offered.id == waiting.id
    async with Runtime.open(url, cantrips=[offered], dependencies=by_sender, recover="resume") as later:
        for user in ("anna", "ben"):
            entity = later.begun_with(user)
            assert entity is not None
            assert (await entity.episode()).result == f"late tea for {user}"


async def test_a_work_says_whose_it_is(url: str) -> None:
    works = []

    async def provide(episode: EpisodeScope) -> Mapping[str, Any]:
        works.append(episode)
        return {"user": episode.context["user"], "of no gate": 1}

    async with Runtime.open(url, cantrips=[desk()], dependencies=provide) as runtime:
        tenant = runtime.tenant("acme")
        cast = await tenant.cast(desk(), "go", by="anna", key="k1", context={"user": "u1"})
        assert cast.result == "tea for u1"
        entity = await tenant.ensure("notes", desk())
        assert (await entity.send("go", by="ben", key="k2", context={"user": "u2"})).result == "tea for u2"
    first, second = works
    assert first[:3] == (cast.entity_id, None, "acme")
    assert [first.cantrip.id, first.by, first.key, first.context] == [desk().id, "anna", "k1", {"user": "u1"}]
    assert second[:3] == (entity.id, "notes", "acme")
    assert [second.sender, second.key, second.context] == ["ben", "k2", {"user": "u2"}]


async def test_dependencies_are_cached_by_the_scope_of_a_work_while_the_entity_is_loaded() -> None:
    calls = []

    def provide(episode: EpisodeScope) -> Mapping[str, Any]:
        calls.append(episode.sender)
        return {"user": Session(episode.sender)}

    async with Runtime.open(cantrips=[desk()], dependencies=provide, passivate_after=10) as runtime:
        entity = await runtime.ensure("notes", desk())
        for user in ("anna", "ben", "anna", "ben"):
            assert (await entity.send("go", by=user)).result == f"tea for {user}"
        assert calls == ["anna", "ben"]
        await anyio.sleep(100)
        assert (await entity.send("go", by="ben")).result == "tea for ben"
        assert calls == ["anna", "ben", "ben"]


async def test_a_child_and_a_program_have_the_dependencies_of_their_root() -> None:
    async def answer(context: tuple[Message, ...]) -> dict[str, object]:
        if context[-1].role == "tool":
            return {"content": context[-1].content}
        return say("orders") if context[0].content == "child" else say("call_agent", intent="child")

    circle = Circle(["done", "call_agent", orders.with_(user=PROVIDED)], [max_turns(5), max_depth(1)])
    async with Runtime.open(dependencies=by_sender) as runtime:
        for user in ("anna", "ben"):
            episode = await runtime.cast(Cantrip(scripted(answer), circle=circle), "go", by=user)
            assert "tea for " + user in str(episode.result)
        program = {"code": "done(orders())"}
        coded = Circle(["done", orders.with_(user=PROVIDED)], [max_turns(5)], medium="python")
        entity = await runtime.invoke(Cantrip(scripted(lambda _: program), circle=coded), "go", by="anna")
        assert (await entity.episode()).result == "tea for anna"
        assert (await entity.send("go", by="ben")).result == "tea for ben"


async def test_a_dependency_with_a_default_is_provided_too() -> None:
    @gate
    async def greet(user: Injected[str] = "nobody") -> str:
        """Greet."""
        return f"hello {user}"

    cantrip = Cantrip(ask("greet"), circle=Circle(["done", greet], [max_turns(5)]))
    async with Runtime.open(dependencies=by_sender) as runtime:
        assert (await runtime.cast(cantrip, "go", by="anna")).result == "hello anna"
    async with Runtime.open(dependencies=lambda _: {}) as runtime:
        assert (await runtime.cast(cantrip, "go", by="anna")).result == "hello nobody"


async def test_a_fork_has_the_dependencies_of_its_own_sender() -> None:
    async with Runtime.open(cantrips=[desk()], dependencies=by_sender) as runtime:
        episode = await runtime.cast(desk(), "go", by="anna")
        forked = await runtime.fork(episode.thread[0].id, intent="again", by="ben")
        assert forked.result == "tea for ben"


@pytest.mark.parametrize(
    ("provided", "error", "text"),
    [
        (None, InvalidCantrip, "expected the function to return a mapping"),
        ({}, DependenciesUnknown, "need user, which the function of Runtime.open"),
    ],
)
async def test_an_entity_waits_while_its_dependencies_are_not_provided(
    url: str, provided: Any, error: type[Exception], text: str
) -> None:
    async with Runtime.open(url, cantrips=[desk()], dependencies=lambda _: provided) as runtime:
        entity = await runtime.ensure("notes", desk())
        receipt = await entity.post("go", by="anna", key="k1")
        with pytest.raises(Exception, match=text):
            await receipt.episode(timeout=600)
        if error is DependenciesUnknown:
            with pytest.raises(DependenciesUnknown, match=text):
                await runtime.cast(desk(), "go", by="anna")
        assert receipt.state == "waiting"
    async with Runtime.open(url, cantrips=[desk()], dependencies=by_sender) as later:
        await later.resume(entity.id)
        assert (await later.receipt(entity.id, "k1").episode()).result == "tea for anna"


async def test_a_provider_that_is_unavailable_is_called_again() -> None:
    calls = []

    async def provide(episode: EpisodeScope) -> Mapping[str, Any]:
        calls.append(episode.sender)
        if len(calls) < 3:
            raise Unavailable(retry_after=30)
        return {"user": episode.sender}

    async with Runtime.open(cantrips=[desk()], dependencies=provide) as runtime:
        assert (await runtime.cast(desk(), "go", by="anna")).result == "tea for anna"
    assert len(calls) == 3


class Hanging:
    """A provider that hangs for one sender."""

    hangs = True

    async def __call__(self, episode: EpisodeScope) -> Mapping[str, Any]:
        if self.hangs and episode.sender == "ben":
            await anyio.sleep_forever()
        return by_sender(episode)


@pytest.mark.rule("K-23", "LOOP-4", "V-07")
@pytest.mark.parametrize("how", ["interrupt", "cancel", "undo", "timeout"])
async def test_an_end_at_once_cancels_a_provider_that_hangs(how: str) -> None:
    async with Runtime.open(dependencies=Hanging()) as runtime:
        entity = await runtime.ensure("notes", desk(wards=[timeout(10)] if how == "timeout" else []))
        assert (await entity.send("go", by="anna")).result == "tea for anna"
        work = await entity.post("go", by="ben")
        await anyio.sleep(1)
        with anyio.fail_after(20):
            if how == "interrupt":
                await entity.interrupt(now=True)
            elif how == "undo":
                assert await entity.undo()
            elif how == "cancel":
                assert await work.cancel(now=True) == "withdrawn"
            if how != "cancel":
                assert (await work.result()).reason == ("timeout" if how == "timeout" else "interrupted")
        assert "ben" not in str(runtime.loom.turns(entity.id))
        with anyio.fail_after(20):
            assert (await entity.send("go", by="carl")).result == "tea for carl"


@pytest.mark.rule("K-23", "LOOP-4")
async def test_a_timeout_ends_a_cast_whose_provider_hangs() -> None:
    async with Runtime.open(dependencies=Hanging()) as runtime:
        with anyio.fail_after(20):
            assert (await runtime.cast(desk(wards=[timeout(10)]), "go", by="ben")).reason == "timeout"


@pytest.mark.parametrize("name", [None, "bob"])
async def test_a_caller_leaves_a_beginning_with_a_key_that_then_belongs_to_the_next_caller(
    url: str, name: str | None
) -> None:
    opened = anyio.Event()

    async def provide(episode: EpisodeScope) -> Mapping[str, Any]:
        await opened.wait()
        return {"user": episode.sender}

    async with Runtime.open(url, cantrips=[desk()], dependencies=provide) as runtime:
        more: dict[str, Any] = {"key": "order-1", "by": "anna"}
        begin = partial(runtime.start, desk(), "go", **more)
        if name is not None:
            begin = partial(runtime.invoke, desk(), "go", name=name, **more)
        for _ in range(2):
            with anyio.move_on_after(1) as patience:
                await begin()
            assert patience.cancelled_caught
        if name is not None:
            with anyio.move_on_after(1) as patience:
                await runtime.ensure(name, desk())
            assert patience.cancelled_caught
        opened.set()
        entity = await begin()
        assert (await entity.episode()).result == "tea for anna"
        assert [listed.id for listed in runtime.loom.page()] == [entity.id]
        if name is not None:
            assert (await runtime.ensure(name, desk())).id == entity.id
            with pytest.raises(NameTaken):
                await runtime.invoke(desk(), "go", name=name)


@pytest.mark.rule("K-23", "K-25")
async def test_an_interrupt_cancels_a_provider_that_hangs_when_an_episode_is_resumed(url: str) -> None:
    provide = Hanging()
    provide.hangs = False
    cantrip = desk(gate_name="hang")
    async with Runtime.open(url, dependencies=provide) as runtime:
        await (await runtime.ensure("notes", cantrip)).post("go", by="ben", key="1")
        await anyio.sleep(1)
    provide.hangs = True
    async with Runtime.open(url, cantrips=[cantrip], dependencies=provide, recover="resume") as runtime:
        await anyio.sleep(1)
        with anyio.fail_after(20):
            await runtime.get_entity("notes").interrupt(now=True)
            assert (await runtime.receipt("notes", "1").result()).reason == "interrupted"


async def test_provided_dependencies_need_a_provider() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(DependenciesUnknown, match="need user, which only"):
            await runtime.cast(desk(), "go", by="anna")
    with pytest.raises(ValueError, match="dependencies: expected a function of an EpisodeScope"):
        Runtime.open(dependencies={"user": "anna"})  # type: ignore[arg-type]


# Without a provider


@pytest.mark.parametrize("kind", [str, Session], ids=["plain", "object"])
async def test_an_intent_with_a_cantrip_runs_with_its_dependencies_where_its_sender_is(url: str, kind: Any) -> None:
    service = desk(kind("service"))
    async with Runtime.open(url, cantrips=[service]) as first, Runtime.open(url, cantrips=[service]) as second:
        await (await first.invoke(desk(kind("anna")), "go", name="notes")).episode()
        for worker, user in ((second, "ben"), (first, "anna"), (second, "carl"), (second, "ben"), (first, "dora")):
            mine = worker.entity("notes", cantrip=desk(kind(user)))
            assert mine is not None
            assert (await mine.send("go", timeout=20)).result == f"tea for {user}"


@pytest.mark.parametrize("kind", [str, Session], ids=["plain", "object"])
@pytest.mark.parametrize("offers", [True, False])
async def test_a_job_is_not_resumed_with_the_dependencies_of_somebody_else(url: str, kind: Any, offers: bool) -> None:
    service = desk(kind("service"), "hang")
    async with Runtime.open(url, cantrips=[service] if offers else []) as runtime:
        entity = await runtime.start(desk(kind("anna"), "hang"), "go", key="job")
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[service], recover="resume") as later:
        assert [header.entity_id for header in later.interrupted()] == [entity.id]
        with pytest.raises(DependenciesUnknown, match="dependencies that no cantrip of this process has"):
            await later.resume(entity.id)
        assert (await later.resume(entity.id, cantrip=desk(kind("anna"), "hang"))).loaded


@pytest.mark.parametrize("kind", [str, Session], ids=["plain", "object"])
async def test_a_job_with_offered_dependencies_is_resumed_with_those_of_the_next_process(url: str, kind: Any) -> None:
    async with Runtime.open(url, cantrips=[service := desk(kind("service"), "hang")]) as runtime:
        entity = await runtime.start(service, "go", key="job")
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[desk(kind("newer"), "hang")], recover="resume") as later:
        assert later.find(entity.id).loaded


async def test_equal_values_are_the_same_dependencies_in_every_process(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(desk("anna", "hang"), "go", key="job")
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[desk("anna", "hang")], recover="resume") as later:
        assert later.find(entity.id).loaded


async def test_a_send_without_dependencies_that_are_known_here_is_refused_and_a_post_waits(url: str) -> None:
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(desk("anna"), "go", name="notes")).episode()
    async with Runtime.open(url, cantrips=[desk("service")], stranded_after=10) as later:
        entity = later.entity("notes")
        assert entity is not None
        with pytest.raises(DependenciesUnknown):
            await entity.send("go")
        receipt = await entity.post("go")
        with pytest.raises(DependenciesUnknown):
            await receipt.episode()
        assert receipt.state == "waiting"
        mine = later.entity("notes", cantrip=desk("anna"))
        assert mine is not None
        assert (await mine.send("go")).result == "tea for anna"
        assert (await receipt.episode()).result == "tea for anna"


@pytest.mark.parametrize("service", [None, Node("w1")], ids=["process", "node"])
async def test_a_send_where_other_dependencies_are_known_is_answered_by_a_process_that_serves_the_entity(
    url: str, service: Node | None
) -> None:
    options: dict[str, Any] = {"cantrips": [desk("service")], "node": service, "passivate_after": 0.1}
    async with Runtime.open(url, **options) as worker, Runtime.open(url) as script:
        await (await worker.invoke(desk("service"), "go", name="notes")).episode()
        await script.cast(desk("anna"), "go")
        await anyio.sleep(60)
        notes = script.entity("notes")
        assert notes is not None
        assert not notes.held
        assert (await notes.send("go")).result == "tea for service"


async def test_a_send_where_the_cantrip_is_ambiguous_is_answered_by_a_process_that_serves_the_entity(url: str) -> None:
    options: dict[str, Any] = {"cantrips": [desk("service")], "passivate_after": 0.1}
    async with Runtime.open(url, **options) as worker, Runtime.open(url) as script:
        await (await worker.invoke(desk("service"), "go", name="notes")).episode()
        for user in ("anna", "ben"):
            await script.cast(desk(user), "go")
        await anyio.sleep(1)
        notes = script.entity("notes")
        assert notes is not None
        assert (await notes.send("go", timeout=20)).result == "tea for service"


@pytest.mark.parametrize("is_offered", [True, False])
async def test_a_send_where_other_dependencies_are_known_waits_for_a_full_node_that_has_the_right_ones(
    url: str, is_offered: bool
) -> None:
    hanging = Cantrip(ask("hang"), circle=Circle(["done", hang.with_(user="carl")], [max_turns(5)]))
    async with Runtime.open(url, cantrips=[desk("service")] * is_offered) as program:
        await (await program.invoke(desk("service"), "go", name="notes")).episode()
    options: dict[str, Any] = {"cantrips": [desk("service")], "node": Node("w1", capacity=1)}
    async with Runtime.open(url, **options) as worker, Runtime.open(url, stranded_after=10) as script:
        busy = await worker.start(hanging, "go")
        await script.cast(desk("anna"), "go")
        await anyio.sleep(5)
        notes = script.entity("notes")
        assert notes is not None
        receipt = await notes.post("go")
        with pytest.raises(NoAnswer):
            await receipt.episode(timeout=30)
        await busy.stop()
        assert (await receipt.episode(timeout=30)).result == "tea for service"


async def test_a_sender_gets_an_error_where_all_nodes_have_other_dependencies(url: str) -> None:
    async with Runtime.open(url) as program:
        await (await program.invoke(desk("anna"), "go", name="notes")).episode()
    options: dict[str, Any] = {"cantrips": [desk("service")], "stranded_after": 10}
    async with Runtime.open(url, **options, node=Node("w1")), Runtime.open(url, **options) as script:
        notes = script.entity("notes")
        assert notes is not None
        receipt = await notes.post("go")
        with pytest.raises(DependenciesUnknown):
            await receipt.episode(timeout=60)
        assert [stranded.name for stranded in await script.cluster.stranded()] == ["notes"]


@pytest.mark.parametrize("kind", [str, Session], ids=["plain", "object"])
async def test_an_intent_whose_process_died_waits_for_its_retry(url: str, kind: Any) -> None:
    async with Runtime.open(url, cantrips=[desk("service")], stranded_after=10) as worker:
        notes = await worker.invoke(desk("anna"), "go", name="notes")
        await notes.episode()
        async with Runtime.open(url) as other:
            bens = other.entity("notes", cantrip=desk(kind("ben")))
            assert bens is not None
            await bens.post("go", key="k1")
        await anyio.sleep(2)  # the worker finds the mail
        with pytest.raises(DependenciesUnknown):
            await notes.send("after it", timeout=60)
        retry = worker.entity("notes", cantrip=desk(kind("ben")))
        assert retry is not None
        assert (await retry.send("go", key="k1", timeout=20)).result == "tea for ben"


async def test_a_fork_is_refused_if_its_dependencies_are_not_known(url: str) -> None:
    async with Runtime.open(url) as runtime:
        episode = await runtime.cast(desk("anna"), "go")
    async with Runtime.open(url, cantrips=[desk("service")]) as later:
        with pytest.raises(DependenciesUnknown, match=r"runtime.fork\(…, cantrip=…\)"):
            await later.fork(episode.thread[0].id, intent="again")
        forked = await later.fork(episode.thread[0].id, intent="again", cantrip=desk("ben"))
        assert forked.result == "tea for ben"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "", "1", b"1", Path("1")]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40)
@given(PLAIN, PLAIN)
def test_two_values_have_one_mark_in_all_processes_if_and_only_if_they_are_equal(mine: object, theirs: object) -> None:
    assert Marks(()).has(desk(mine), Marks(()).make_mark(desk(theirs))) == (repr(mine) == repr(theirs))


@pytest.mark.parametrize("secret", [False, True])
def test_objects_and_secrets_have_a_mark_in_one_process_only(secret: bool) -> None:
    @gate
    async def greet(name: Injected[Any], token: Injected[str] = "") -> str:
        """Greet."""
        return f"{name} {token}"

    dependencies = {"name": "anna", "token": "t" * 20} if secret else {"name": [Session("anna")]}
    cantrip = Cantrip(ask("greet"), circle=Circle(["done", greet.with_(**dependencies)], [max_turns(5)]))
    marks = Marks(())
    mark = marks.make_mark(cantrip)
    assert marks.has(cantrip, mark)
    assert not Marks(()).has(cantrip, mark)
    assert not Marks([cantrip]).has(cantrip, mark)
    assert Marks([cantrip]).has(cantrip, Marks([cantrip]).make_mark(cantrip))


# Crashes, and other nodes


async def test_a_crash_at_any_write_mixes_no_users() -> None:
    async def program(process: Process) -> list[object]:
        runtime = Runtime.open("memory:", cantrips=[desk()], dependencies=by_sender, recover="resume")
        async with process.attach(runtime):
            notes = await runtime.ensure("notes", desk())
            return [(await notes.send("go", key=user, by=user)).result for user in ("anna", "ben")] + [
                (await runtime.cast(desk(), "go", key="job", by="carl")).result
            ]

    write, crashes = 1, 1
    while crashes:
        survived = await run_with_crashes(program, [Crash(write), Crash(write)])
        assert survived.value == ["tea for anna", "tea for ben", "tea for carl"]
        crashes, write = survived.crashes, write + 1
    assert write > 8


async def test_a_node_that_takes_over_provides_the_dependencies_of_the_same_user(url: str) -> None:
    options: dict[str, Any] = {"cantrips": [desk()], "dependencies": by_sender}
    async with Runtime.open(url, node=Node("first"), **options) as first:
        notes = await first.ensure("notes", desk())
        assert (await notes.send("go", by="anna")).result == "tea for anna"
        async with Runtime.open(url, node=Node("second"), **options) as second:
            await first.drain(10)
            there = second.entity("notes")
            assert there is not None
            assert (await there.send("go", by="ben", timeout=30)).result == "tea for ben"
            assert there.loaded
