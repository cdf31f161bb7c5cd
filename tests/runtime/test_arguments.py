"""Texts that a caller gives are checked before anything is recorded, and every store gives the same answer."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import (
    CantripError,
    InvalidCantrip,
    InvalidDecision,
    InvalidIntent,
    InvalidSchedule,
    Invocation,
    LoomError,
    Queue,
    Runtime,
)
from cantrip_actors.crystals import Query
from cantrip_actors.loom import verify_loom
from tests.loom.test_store import KINDS, Place
from tests.runtime.spells import cantrip, done, say

ECHO = cantrip(lambda context: done(context[-1].content), name="echo")
INCOMPRESSIBLE = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(10_000))
NAN = float("nan")
NOT_NAMES = ["", " ", "a\x00b", "acme\x1fjob", "\ud800", 5, b"key", True, INCOMPRESSIBLE, "k" * 1_001]

LOOKUPS = (
    *("header", "header_in_force", "has", "has_begun", "records", "records_since", "checkpoint", "facts", "turns"),
    *("state", "is_over", "is_forgotten", "named", "below", "usage", "subtree", "subtree_usage"),
    *("turn", "owner", "header_at", "children", "forks", "__getitem__"),
)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    here = Place(request.param, tmp_path)
    yield here
    here.clear()


@pytest.mark.rule("C-11", "C-18")
async def test_a_key_that_not_every_store_keeps_is_refused_by_all(place: Place) -> None:
    async with Runtime.open(place.url, cantrips=[ECHO]) as runtime:
        entity = await runtime.invoke(ECHO, "go", name="echo")
        (turn,) = (await entity.episode()).thread
        for key in NOT_NAMES:
            given: Any = key
            for refused in (
                runtime.cast(ECHO, "go", key=given),
                runtime.start(ECHO, "go", key=given),
                runtime.invoke(ECHO, "go", key=given),
                runtime.fork(turn.id, intent="go", key=given),
                runtime.submit("echo", "go", key=given),
                entity.send("go", key=given),
                entity.post("go", key=given),
                entity.steer("go", key=given),
                entity.interrupt(key=given),
            ):
                with pytest.raises(InvalidIntent, match="key: expected a text"):
                    await refused
            with pytest.raises(InvalidDecision, match="key: expected a text"):
                await runtime.decide("a:b:c", "allow", key=given)
            with pytest.raises(InvalidIntent, match="name: expected a text"):
                await runtime.invoke(ECHO, "go", name=given)
            with pytest.raises(InvalidSchedule, match="id: expected a text"):
                await runtime.schedule("echo", "go", every=60, id=given)
        assert (await entity.send("and on", key="k" * 1_000)).result == "and on"
        assert len(runtime.loom.entities()) == 1


@pytest.mark.rule("C-53")
async def test_a_person_or_a_reason_that_is_not_a_text_is_refused(place: Place) -> None:
    asks = cantrip([say("question", text="Which?"), done(1)], "question")
    async with Runtime.open(place.url, cantrips=[ECHO]) as runtime:
        entity = await runtime.invoke(ECHO, "go", name="echo")
        (turn,) = (await entity.episode()).thread
        await runtime.start(asks, "go")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        for given in (5, None, b"anna", ["anna"]):
            no_text: Any = given
            for acts in (
                runtime.cast(ECHO, "go", by=no_text),
                runtime.start(ECHO, "go", by=no_text),
                runtime.invoke(ECHO, "go", by=no_text),
                runtime.fork(turn.id, intent="go", by=no_text),
                entity.send("go", by=no_text),
                entity.post("go", by=no_text),
                entity.steer("go", by=no_text),
                entity.interrupt(by=no_text),
                entity.interrupt(no_text),
                entity.stop(by=no_text),
                entity.stop(no_text),
                runtime.abandon(entity.id, by=no_text),
                runtime.forget(entity, by=no_text),
                runtime.forget(entity, why=no_text),
            ):
                with pytest.raises(InvalidIntent, match=r"(by|why|reason): expected a text, got"):
                    await acts
            for decides in (
                runtime.decide(request.id, answer="x", by=no_text),
                runtime.decide(request.id, answer="x", note=no_text),
            ):
                with pytest.raises(InvalidDecision, match=r"(by|note): expected (a text|the name of .*), got"):
                    await decides
            with pytest.raises(LoomError, match="by: expected a text, got"):
                await runtime.loom.reward(turn.id, 1.0, by=no_text)
        assert (await entity.send("and on", by="5")).result == "and on"
    if place.lasts:
        async with Runtime.open(place.url, cantrips=[ECHO]) as runtime:
            assert verify_loom(runtime._tree.store).faults == []


TEXT_EXPECTED = r"^((entity|name|turn|key): expected a text|turn: expected the id of a turn, such as turn.id), got"


@pytest.mark.rule("LOOM-10")
@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_lookup_takes_texts_only(place: Place, tenant: str | None) -> None:
    async with Runtime.open(place.url, cantrips=[ECHO]) as opened:
        runtime = opened if tenant is None else opened.tenant(tenant)
        entity = await runtime.invoke(ECHO, "go", name="echo")
        await entity.episode()
        loom = runtime.loom
        for no_text in (5, None, b"echo", ["echo"], True):
            given: Any = no_text
            for look in (
                lambda given=given: runtime.get_entity(given),
                lambda given=given: runtime.entity(given),
                lambda given=given: runtime.receipt(given, "k"),
                lambda given=given: runtime.receipt(entity, given),
                lambda given=given: runtime.has_mail(given, "k"),
                lambda given=given: runtime.has_mail(entity, given),
                *(partial(getattr(loom, name), given) for name in LOOKUPS),
            ):
                with pytest.raises(LoomError, match=TEXT_EXPECTED):
                    look()
            for acts in (
                runtime.resume(given),
                runtime.abandon(given),
                runtime.forget(given),
                runtime.fork(given, intent="go"),
                loom.reward(given, 1.0),
            ):
                with pytest.raises(LoomError, match=TEXT_EXPECTED):
                    await acts
            for keyed in (runtime.id_of_key, runtime.begun_with):
                with pytest.raises(InvalidIntent, match="key: expected a text"):
                    keyed(given)
            assert given not in loom
        with pytest.raises(LoomError, match="is not in this loom"):
            runtime.get_entity("a\x00b")


async def test_a_key_with_the_separator_of_tenants_finds_no_entity_of_a_tenant() -> None:
    async with Runtime.open() as runtime:
        await runtime.tenant("acme").cast(ECHO, "private", key="job")
        with pytest.raises(CantripError, match="key: expected a text that is not empty, without control characters"):
            await runtime.cast(ECHO, "private", key="acme\x1fjob")


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"url": None}, LoomError, "expected the URL of a loom, as in sqlite:loom.db"),
        ({"url": 3}, LoomError, "or a path, got 3"),
        ({"cantrips": ECHO}, InvalidCantrip, "cantrips: expected a list of cantrips, got Cantrip"),
        ({"retention": "90d"}, ValueError, r"retention: expected durations by kind.* got '90d'"),
        ({"passivate_after": -1}, ValueError, "passivate_after: expected seconds, as a number >= 0, got -1"),
        ({"passivate_after": NAN}, ValueError, "passivate_after: expected seconds, as a number >= 0, got nan"),
        ({"passivate_after": True}, ValueError, "passivate_after: expected seconds, as a number >= 0, got True"),
        ({"keep_keys": True}, ValueError, "keep_keys: expected seconds, as a number >= 0, got True"),
        ({"stranded_after": True}, ValueError, "stranded_after: expected seconds, as a number > 0, got True"),
        ({"repair": "no"}, ValueError, "repair: expected True or False, got str"),
        ({"telemetry": 1}, ValueError, "telemetry: expected an observe.Telemetry, got int"),
        ({"node": "w1"}, ValueError, r"node: expected Node\(…\), got str"),
        ({"seal_key": 1}, ValueError, "seal_key: expected secret bytes, a text of them, or a pathlib.Path, got int"),
        ({"queues": Queue("a")}, ValueError, r"queues: expected a list of Queue\(…\)"),
        ({"queues": ["a"]}, ValueError, r"queues: expected a list of Queue\(…\), got str"),
        ({"secrets": "one-secret"}, ValueError, "secrets: expected a list of texts, .*got str"),
    ],
)
def test_an_option_of_another_type_is_refused_when_a_runtime_is_made(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        Runtime.open(**options)


@pytest.mark.rule("PROD-2")
@pytest.mark.parametrize("grace", ["10", NAN, -1, True])
async def test_a_grace_that_is_not_a_number_is_refused_and_begins_no_drain(grace: Any) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValueError, match="grace: expected seconds, as a number >= 0, got"):
            await runtime.drain(grace)
        assert (await runtime.cast(ECHO, "go")).result == "go"


async def test_arguments_of_the_wrong_kind_are_refused_with_what_was_expected() -> None:
    async with Runtime.open(cantrips=[ECHO]) as runtime:
        entity = await runtime.invoke(ECHO, "go", name="echo")
        await entity.episode()
        given: Any
        for given in ([], {}, 3, None):
            with pytest.raises(InvalidDecision, match="request_id: expected a text, got "):
                await runtime.decide(given, "allow")
            with pytest.raises(InvalidDecision, match="door: expected a text, got "):
                await runtime.decide("r", "allow", door=given)
        for given in ("echo", 3, object()):
            with pytest.raises(InvalidCantrip, match="resume: expected a Cantrip, got "):
                await runtime.resume(entity.id, cantrip=given)
        for given in (3, None, b"copy.db"):
            with pytest.raises(ValueError, match="file: expected the path of a new file, got "):
                await runtime.backup(given)
        with pytest.raises(ValueError, match="expected a duration"):
            await runtime.prune(10**400)
        with pytest.raises(ValueError, match="timeout: expected a finite number of seconds"):
            await entity.send("go", timeout=10**400)


@pytest.mark.parametrize("lasting", ["", "no", 1, 10**400, None, object()])
async def test_a_fork_that_is_neither_lasting_nor_not_is_refused_before_it_is_recorded(lasting: Any) -> None:
    """A header with another value than a bool could not be read again."""
    async with Runtime.open() as runtime:
        (turn,) = (await runtime.cast(ECHO, "go")).thread
        with pytest.raises(ValueError, match="lasting: expected True or False, got "):
            await runtime.start_fork(turn.id, intent="go", lasting=lasting)
        assert len(runtime.loom.entities()) == 1


@pytest.mark.parametrize("given", [None, 3, "entities"])
async def test_work_that_is_not_a_function_is_refused(given: Any) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValueError, match="read: expected a function without parameters, got "):
            await runtime.read(given)
        with pytest.raises(ValueError, match="sink: expected a function of an event, got "):
            runtime.watch_actors(given)


async def test_the_function_that_stops_watching_actors_does_nothing_the_second_time() -> None:
    async with Runtime.open() as runtime:
        seen: list[object] = []
        stop, stop_other = runtime.watch_actors(seen.append), runtime.watch_actors(seen.append)
        stop()
        stop()
        await runtime.cast(ECHO, "go")
        assert len(seen) > 0
        stop_other()
        seen.clear()
        await runtime.cast(ECHO, "go")
        assert seen == []


@pytest.mark.parametrize("given", [3, float("nan"), object(), b"x"])
async def test_arguments_of_a_runtime_of_the_wrong_kind_are_refused_where_they_are_given(given: Any) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(ECHO, "go", name="echo")
        await entity.episode()
        query = Query(Invocation((), ()))
        for refused in (
            lambda: runtime.ask(given, query),
            lambda: runtime.ask(ECHO.crystal, given),
            lambda: runtime.batch(given, ["go"], key="k"),
            lambda: runtime.resume(entity.id, by=given),
            lambda: runtime.prune("1d", dry_run=given),
            lambda: entity.interrupt(now=given),
        ):
            with pytest.raises(ValueError, match="expected "):
                await refused()
        for use in (
            lambda: runtime.derive_key(given),
            lambda: runtime.entity("echo", cantrip=given),
            lambda: runtime.get_entity(entity.id, cantrip=given),
            lambda: runtime.requests(follow=given),
            lambda: runtime.add_request_source(given),
            lambda: runtime.events(given),
            lambda: runtime.events(entity=given),
            lambda: runtime.use_server(given),
            lambda: runtime.watch(given),
        ):
            with pytest.raises(ValueError, match="expected "):
                use()
        loom = runtime.loom
        for read in (
            lambda: loom.records(entity.id, after=given) if given != 3 else loom.records(entity.id, after=-2),
            lambda: loom.records_since(entity.id, given) if given != 3 else loom.records_since(entity.id, -2),
            lambda: loom.check_chain(entity.id, after=given) if given != 3 else loom.check_chain(entity.id, after=-2),
            lambda: loom.attach(given),
        ):
            with pytest.raises(LoomError, match="expected "):
                read()
        assert (await entity.send("again")).result == "again"
