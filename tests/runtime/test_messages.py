"""Entities that talk to each other: the gates `post` and `ask`, across crashes, and never in a circle."""

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import AskCycle, Cantrip, Circle, Companion, Episode, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.gates import post, standard
from cantrip_actors.records.records import MailRefused
from cantrip_actors.runtime.entity.driver import EntityActor
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_depth, max_turns
from tests.exhaustive import part
from tests.loom import postgres
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import done, say

ASK, POST = (standard(name).with_(to=["*"]) for name in ("ask", "post"))


def obeys(context: Any) -> Any:
    """Do what the intent says, as "ask b ask c hello"; answer with the observation, or with the intent."""
    last = context[-1]
    if last.role == "tool":
        return done(last.content)
    verb, _, rest = last.content.partition(" ")
    if verb in ("ask", "post"):
        to, _, message = rest.partition(" ")
        return say(verb, to=to, message=message)
    if verb == "delegate":
        return say("call_agent", intent=rest)
    if verb in ("call", "wait"):
        return say(verb, what=rest)
    return done(last.content)


async def slowly(context: Any) -> Any:
    """Do the same an hour later."""
    return {**obeys(context), "delay": 3600.0}


def spell(*gates: Any, policy: Any = obeys, wards: tuple[Any, ...] = ()) -> Cantrip:
    return Cantrip(scripted(policy, record=False), circle=Circle(["done", ASK, POST, *gates], [max_turns(5), *wards]))


SPELL = spell()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


async def made(runtime: Runtime, *names: str, of: Cantrip = SPELL) -> None:
    """Make idle entities of these names."""
    for name in names:
        await (await runtime.invoke(of, "start", name=name)).episode()


def taken(runtime: Runtime, name: str) -> list[str]:
    """Return the intents that the entity of that name has taken, but for the first."""
    entity = runtime.entity(name)
    assert entity is not None
    return intents(runtime, entity.id)[1:]


def seen(episode: Episode) -> Any:
    """Return the first observation of an episode's last two turns."""
    return episode.thread[-2].gate_calls[0]


# Talking


@pytest.mark.rule("C-16")
async def test_an_entity_asks_another_and_gets_its_answer() -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a", "b", "c")
        episode = await runtime.entity("a").send("ask b ask c hello")
        assert (episode.result, seen(episode).is_error) == ("hello", False)
        assert [taken(runtime, name) for name in "bc"] == [["ask c hello"], ["hello"]]


@pytest.mark.rule("C-16")
async def test_an_entity_that_posts_does_not_wait() -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a")
        await made(runtime, "b", of=spell(policy=slowly))
        began = anyio.current_time()
        episode = await runtime.entity("a").send("post b hello")
        assert (episode.result, seen(episode).is_error) == ("sent to b", False)
        assert anyio.current_time() - began < 1
        await anyio.sleep(1)
        assert taken(runtime, "b") == ["hello"]


@pytest.mark.rule("C-16")
async def test_a_message_names_its_sender() -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a", "b")
        await runtime.entity("a").send("ask b hello")
        *_, record = [r for r in runtime.loom.records(runtime.entity("b").id) if hasattr(r, "intent")]
        assert (record.intent, record.sender) == ("hello", "a")


@pytest.mark.rule("C-16")
async def test_an_asker_hibernates_while_it_waits_and_the_asked_entity_is_loaded() -> None:
    async with Runtime.open(passivate_after=10) as runtime:
        await made(runtime, "a", "c")
        await made(runtime, "b", of=spell(policy=slowly))
        await anyio.sleep(20)
        assert not runtime.entity("b").loaded
        assert (await runtime.entity("a").send("ask b ask c hello")).result == "hello"
        assert anyio.current_time() >= 2 * 3600


@pytest.mark.rule("C-16")
@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("ask nobody hello", "nobody"),
        ("post nobody hello", "nobody"),
        ("ask over hello", "has ended"),
        ("post over hello", "has ended"),
        ("ask secret hello", "may reach"),
        ("post secret hello", "may reach"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_an_error_observation(order: str, text: str) -> None:
    asks, posts = (standard(name).with_(to=["b", "nob*", "over"]) for name in ("ask", "post"))
    careful = Cantrip(scripted(obeys), circle=Circle(["done", asks, posts], [max_turns(5)]))
    async with Runtime.open() as runtime:
        await made(runtime, "a", of=careful)
        await made(runtime, "over", "secret")
        await runtime.entity("over").stop()
        first = seen(await runtime.entity("a").send(order))
        assert first.is_error
        assert text in first.result
        assert (await runtime.entity("a").send("still here")).result == "still here"


@pytest.mark.rule("C-16")
@pytest.mark.parametrize("to", ["archive", "*", 3, ["archive", 3]])
def test_recipients_that_are_not_a_list_of_patterns_are_refused(to: Any) -> None:
    with pytest.raises(InvalidCantrip, match="to: expected a list of names, ids or patterns"):
        post.with_(to=to)


@pytest.mark.rule("C-16")
async def test_a_circle_without_recipients_reaches_no_entity() -> None:
    lonely = Cantrip(scripted(obeys), circle=Circle(["done", "ask", "post"], [max_turns(5)]))
    async with Runtime.open() as runtime:
        await made(runtime, "b")
        await made(runtime, "a", of=lonely)
        for order in ("ask b hello", "post b hello"):
            first = seen(await runtime.entity("a").send(order))
            assert first.is_error
        assert taken(runtime, "b") == []


@pytest.mark.rule("C-16", "C-13")
async def test_a_message_to_a_full_inbox_is_an_error_observation() -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a")
        busy = await runtime.invoke(spell(policy=slowly), "start", name="b")
        runtime._tree.store.max_waiting = 1
        await busy.post("one waits")
        for order in ("ask b hello", "post b hello"):
            first = seen(await runtime.entity("a").send(order))
            assert first.is_error
            assert "b" in first.result or busy.id in first.result
        assert taken(runtime, "b") == []


@pytest.mark.rule("C-16")
@pytest.mark.parametrize("how", ["stop", "interrupt"])
async def test_an_asker_gets_an_error_when_no_answer_can_come(how: str) -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a")
        await made(runtime, "b", of=spell(policy=slowly))
        receipt = await runtime.entity("a").post("ask b hello")
        await anyio.sleep(60)
        b = runtime.entity("b")
        await (b.stop() if how == "stop" else b.interrupt("enough", now=True))
        first = seen(await receipt.episode())
        assert first.is_error
        assert "no answer" in first.result or "ended" in first.result


@pytest.mark.rule("C-16", "C-17")
async def test_an_asker_that_is_interrupted_now_stops_waiting() -> None:
    async with Runtime.open() as runtime:
        await made(runtime, "a", "c")
        await made(runtime, "b", of=spell(policy=slowly))
        a = runtime.entity("a")
        receipt = await a.post("ask b hello")
        await anyio.sleep(60)
        began = anyio.current_time()
        await a.interrupt("enough", now=True)
        episode = await receipt.episode()
        assert (episode.reason, anyio.current_time() - began) == ("interrupted", pytest.approx(0, abs=1))
        assert (await a.send("ask c hello")).result == "hello"
        await anyio.sleep(3600)
        assert (await runtime.entity("b").send("ask a are you there")).result == "are you there"


# Circles


async def circle_of(length: int, runtimes: list[Runtime]) -> Episode:
    """Have entities ask each other in a circle of that length; the episode of the first."""
    names = [f"e{n}" for n in range(length)]
    for n, name in enumerate(names):
        await made(runtimes[n % len(runtimes)], name)
    order = "".join(f"ask {name} " for name in [*names[1:], names[0]]) + "hello"
    return await runtimes[0].entity("e0").send(order)


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("length", [1, 2, 5])
async def test_a_circle_of_askers_is_an_error_observation_that_names_the_path(length: int) -> None:
    async with Runtime.open() as runtime:
        began = anyio.current_time()
        episode = await circle_of(length, [runtime])
        assert anyio.current_time() - began < 1
        names = [f"e{n}" for n in range(length)]
        path = [names[-1], *names]
        assert "no answer can come" in episode.result
        assert " -> ".join(path) in episode.result
        assert seen(episode).is_error == (length == 1)
        for name in names:
            assert (await runtime.entity(name).send("still here")).result == "still here"


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("length", [2, 5])
async def test_a_circle_of_askers_in_two_runtimes_is_an_error_observation(url: str, length: int) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        with anyio.fail_after(10):
            episode = await circle_of(length, [one, two])
        assert "no answer can come" in episode.result
        assert "e0 -> e1" in episode.result


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("runtimes", [1, 2])
async def test_one_of_two_entities_that_ask_each_other_observes_the_cycle(url: str, runtimes: int) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        await made(one, "a")
        await made(one if runtimes == 1 else two, "b")
        results: list[Any] = []

        async def send(runtime: Runtime, name: str, order: str) -> None:
            results.append((await runtime.entity(name).send(order)).result)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, one, "a", "ask b hello")
                tasks.start_soon(send, one if runtimes == 1 else two, "b", "ask a hello")
        assert any("no answer can come" in result for result in results)


@pytest.mark.rule("C-15")
async def test_an_entity_asks_another_one_of_another_process_whose_question_it_has_just_answered(url: str) -> None:
    @gate(name="wait")
    async def wait(what: str) -> str:
        """Wait for some seconds."""
        await anyio.sleep(float(what))
        return what

    waits = spell(wait)
    async with Runtime.open(url, cantrips=[waits]) as one, Runtime.open(url) as two:
        await made(one, "a", of=waits)
        await made(two, "b")
        a, b = one.get_entity("a"), two.get_entity("b")
        await a.post("wait 10")
        asking = await b.post("ask a hello")
        await anyio.sleep(2)
        answer = await a.post("ask b are you there?")
        with anyio.fail_after(30):
            assert (await answer.result()).result == "are you there?"
            assert (await asking.result()).result == "hello"


@pytest.mark.rule("C-15")
async def test_a_question_comes_back_to_the_resting_parent_of_a_background_child(url: str) -> None:
    def leave(context: Any) -> Any:
        last = context[-1]
        if last.role == "user" and last.content.startswith("leave "):
            return say("call_agent", intent=last.content.removeprefix("leave "), wait=False)
        return obeys(context)

    parent = spell("background", policy=leave, wards=(max_depth(1),))
    async with Runtime.open(url, cantrips=[parent]) as one, Runtime.open(url) as two:
        await made(one, "p", of=parent)
        await made(two, "q")
        await one.get_entity("p").send("leave ask q ask p hello")
        await anyio.sleep(10)
        last = (await one.messages("p"))[-1]
        assert "hello" in str(last.content)
        assert "no answer can come" not in str(last.content)


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("order", ["delegate ask p hello", "delegate ask q ask p hello", "ask q delegate ask p hello"])
async def test_a_circle_through_a_child_is_an_error_observation(order: str) -> None:
    parent = spell("call_agent", wards=(max_depth(1),))
    async with Runtime.open() as runtime:
        await made(runtime, "p", "q", of=parent)
        began = anyio.current_time()
        episode = await runtime.entity("p").send(order)
        assert anyio.current_time() - began < 1
        assert "no answer can come" in str(episode.result)
        assert "p" in str(episode.result)


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_send_that_would_wait_for_itself_is_refused_before_its_intent_is_posted(timeout: float | None) -> None:
    runtimes: list[Runtime] = []

    @gate(name="call")
    async def call(what: str) -> str:
        """Send an intent to this entity itself."""
        return str((await runtimes[0].get_entity("a").send(what, timeout=timeout)).result)

    async with Runtime.open() as runtime:
        runtimes.append(runtime)
        await made(runtime, "a", of=spell(call))
        assert "no answer can come" in (await runtime.get_entity("a").send("call hello")).result
        await anyio.sleep(10)
        assert taken(runtime, "a") == ["call hello"]


def calling(runtimes: list[Runtime], how: str) -> Any:
    """Return a gate whose Python code waits for another entity."""

    @gate(name="call")
    async def call(what: str) -> str:
        """Call an entity from Python."""
        runtime = runtimes[0]
        to, _, message = what.partition(" ")
        if how == "cast":
            return (await runtime.cast(SPELL, f"ask {to} {message}")).result
        if how == "start":
            return (await (await runtime.start(SPELL, f"ask {to} {message}")).episode()).result
        if how == "invoke":
            return (await (await runtime.invoke(SPELL, f"ask {to} {message}")).episode()).result
        entity = runtime.entity(to)
        assert entity is not None
        if how == "episode":
            await entity.post(message)
            await anyio.sleep(0.01)
            return (await entity.episode()).result
        if how == "receipt":
            return (await (await entity.post(message)).episode()).result
        return (await entity.send(message, key=f"to {message}" if how == "keyed" else None)).result

    return call


HOWS = ["send", "keyed", "receipt", "episode", "cast", "start", "invoke"]


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "order",
    [
        "call a hello",
        "call b ask a hello",
        "ask b ask c call a hello",
        "call b call b hello",
        "call b call c call b hello",
        "call b call c call c hello",
    ],
)
async def test_a_circle_through_the_code_of_a_gate_is_an_error_observation(how: str, order: str) -> None:
    runtimes: list[Runtime] = []
    calls = spell(calling(runtimes, how))
    async with Runtime.open() as runtime:
        runtimes.append(runtime)
        await made(runtime, "a", "b", "c", of=calls)
        with anyio.fail_after(1):
            episode = await runtime.entity("a").send(order)
        assert "no answer can come" in str(episode.result)
        assert "a" in str(episode.result)
        assert (await runtime.entity("a").send("call b still here")).result == "still here"


@pytest.mark.rule("C-15", "V-07")
async def test_a_gate_that_would_wait_until_its_own_query_is_folded_gets_the_cycle(url: str) -> None:
    runtimes: list[Runtime] = []

    @gate(name="call")
    async def call(what: str) -> str:
        """Fold the memory of an entity."""
        return str(await runtimes[0].get_entity(what).compact())

    async with Runtime.open(url) as runtime:
        runtimes.append(runtime)
        await made(runtime, "a", "b", of=spell(call))
        with anyio.fail_after(10):
            assert "no answer can come" in (await runtime.get_entity("a").send("call a")).result
            assert "no answer can come" in (await runtime.get_entity("a").send("ask b call a")).result
            assert (await runtime.get_entity("a").send("call b")).result == "True"


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("where", ["begins", "ends", "crystal"])
async def test_a_send_to_its_own_entity_is_refused_in_a_companion_and_in_a_crystal(url: str, where: str) -> None:
    errors: list[str] = []

    async def send_to_itself(place: str) -> None:
        if place == where:
            with pytest.raises(AskCycle) as refused:
                await runtime.get_entity("a").send("hello")
            errors.append(str(refused.value))

    class Follower(Companion):
        async def begins(self, here: Any) -> None:
            await send_to_itself("begins")

        async def ends(self, here: Any, outcome: Any) -> None:
            await send_to_itself("ends")

    async def think(context: Any) -> Any:
        await send_to_itself("crystal")
        return done(len(context))

    circle = Circle(["done"], [max_turns(3)], companion=Follower())
    async with Runtime.open(url) as runtime:
        with anyio.fail_after(10):
            await (await runtime.ensure("a", Cantrip(scripted(think), circle=circle))).send("go")
    assert errors == ["no answer can come, because each of these waits for the next: a -> a"]


@pytest.mark.rule("C-15")
@pytest.mark.parametrize("where", ["gate", "companion", "crystal"])
async def test_a_task_that_outlives_the_code_that_started_it_may_send_to_the_entity(url: str, where: str) -> None:
    answers: list[Any] = []
    places = [where]

    async def send_later() -> None:
        await anyio.sleep(60)
        answers.append((await runtime.get_entity("a").send("later")).result)

    def start(place: str) -> None:
        if place in places:
            places.remove(place)
            tasks.start_soon(send_later)

    class Follower(Companion):
        async def begins(self, here: Any) -> None:
            start("companion")

    @gate(name="call")
    async def call(what: str) -> str:
        """Start a task."""
        start("gate")
        return what

    def think(context: Any) -> Any:
        start("crystal")
        return obeys(context)

    circle = Circle(["done", call], [max_turns(3)], companion=Follower())
    async with Runtime.open(url) as runtime, anyio.create_task_group() as tasks:
        await (await runtime.invoke(Cantrip(scripted(think), circle=circle), "call x", name="a")).episode()
        with anyio.fail_after(90):
            while not answers:
                await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    assert answers == ["later"]


@pytest.mark.rule("C-15")
async def test_an_entity_may_wait_for_its_own_finished_intent() -> None:
    """A gate may read the receipt of an earlier intent of its own entity."""
    runtimes: list[Runtime] = []

    @gate(name="call")
    async def call(what: str) -> str:
        """Read a receipt."""
        return (await runtimes[0].receipt("a", what).episode()).result

    async with Runtime.open() as runtime:
        runtimes.append(runtime)
        await made(runtime, "a", of=spell(call))
        await runtime.entity("a").send("earlier", key="k")
        assert (await runtime.entity("a").send("call k")).result == "earlier"


# Crashes


async def talk_with_kills(url: str, order: str, at: int, *, durable: bool, policy: Any = obeys) -> tuple[Any, Runtime]:
    """Kill the process of two entities at a write while one talks to the other; return the result in the next."""
    own = spell(policy=policy)
    async with Runtime.open(url, cantrips=[own]) as runtime:
        await made(runtime, "a", "b", of=own)
        Process(Crash(at, durable)).attach(runtime)
        await attempt(runtime.entity("a").send(order, key="k"))
    async with Runtime.open(url, cantrips=[own], recover="resume") as runtime:
        a, b = runtime.entity("a"), runtime.entity("b")
        episode = await a.send(order, key="k")
        assert (await b.send("last")).result == "last"
        assert taken(runtime, "a") == [order]
        assert taken(runtime, "b") == ["hello", "last"]
        assert not [r for r in runtime.loom.records(b.id) if isinstance(r, MailRefused)]
        return episode, runtime


@pytest.mark.rule("C-16", "C-10")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 14), 2))
@pytest.mark.parametrize("store", part(["sqlite", "jsonl"], 2))
async def test_a_question_arrives_once_and_is_answered_when_the_process_is_killed_at_any_write(
    tmp_path: Path, store: str, at: int, durable: bool
) -> None:
    episode, _ = await talk_with_kills(f"{store}:{tmp_path / 'loom'}", "ask b hello", at, durable=durable)
    assert (episode.result, seen(episode).is_error) == ("hello", False)


@pytest.mark.rule("C-16", "C-10", "N-36")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 12), 2))
@pytest.mark.parametrize("store", part(["sqlite", "jsonl"], 2))
async def test_a_posted_message_arrives_once_when_the_process_is_killed_at_any_write(
    tmp_path: Path, store: str, at: int, durable: bool
) -> None:
    episode, _ = await talk_with_kills(f"{store}:{tmp_path / 'loom'}", "post b hello", at, durable=durable)
    assert (episode.result, seen(episode).is_error) == ("sent to b", False)


@pytest.mark.rule("C-16", "C-10")
async def test_a_question_is_answered_when_a_process_on_postgres_is_killed() -> None:
    episode, _ = await talk_with_kills(postgres.fresh(), "ask b hello", 5, durable=True)
    assert episode.result == "hello"


@pytest.mark.rule("C-16", "C-10")
@pytest.mark.parametrize("side", ["asker", "asked"])
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 8), 2))
async def test_a_question_is_answered_when_one_of_two_processes_is_killed(
    url: str, side: str, durable: bool, at: int
) -> None:
    """Each process offers the cantrip of its own entity only, and the one that was killed is started again."""
    asker, asked = spell(policy=obeys), spell("echo", policy=obeys)
    own = asker if side == "asker" else asked
    async with Runtime.open(url, cantrips=[asked if side == "asker" else asker]) as living:
        async with Runtime.open(url, cantrips=[own]) as dying:
            asks, answers = (dying, living) if side == "asker" else (living, dying)
            await made(answers, "b", of=asked)
            await made(asks, "a", of=asker)
            Process(Crash(at, durable)).attach(dying)
            receipt = await attempt(asks.entity("a").post("ask b hello", key="k"))
            await anyio.sleep(3)
        async with Runtime.open(url, cantrips=[own], recover="resume") as again:
            a = again.entity("a")
            if isinstance(receipt, Exception):
                await a.post("ask b hello", key="k")
            with anyio.fail_after(60):
                episode = await again.receipt("a", "k").episode()
            assert episode.result == "hello"
            assert taken(again, "a") == ["ask b hello"]
            assert taken(again, "b") == ["hello"]


# Restarts


def asks_a_person(context: Any) -> Any:
    """Ask a person what the intent says; answer with the answer."""
    return done(context[-1].content) if context[-1].role != "user" else say("question", text=context[-1].content)


ASKING = spell("call_agent", wards=(max_depth(1),))
ANSWERING = spell("question", policy=asks_a_person)


async def ask_until_restart(url: str, order: str = "ask b how are you") -> tuple[str, str]:
    """Have a cast ask "b", which asks a person, until its runtime closes; return the cast's id and the request's."""
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING]) as runtime:
        b = await runtime.invoke(ANSWERING, "start", name="b")
        await anyio.sleep(1)
        await runtime.decide(runtime.requests()[0].id, answer="ready")
        await b.episode()
        asker = await runtime.start(ASKING, order)
        await anyio.sleep(10)
        (request,) = runtime.requests()
        return asker.id, request.id


async def wait_for_end(runtime: Runtime, entity_id: str) -> Any:
    """Wait until an entity that nothing else loads has ended, and return its result."""
    with anyio.fail_after(5):
        while runtime.loom.state(entity_id) == "active":
            await anyio.sleep(0.1)
    return runtime.loom.turns(entity_id)[-1].gate_calls[0].result


@pytest.mark.rule("C-16", "C-10")
@pytest.mark.parametrize("order", ["ask b how are you", "delegate ask b how are you"])
@pytest.mark.parametrize("recover", ["list", "resume"])
@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
async def test_an_answer_loads_its_asker_after_a_restart(tmp_path: Path, store: str, recover: Any, order: str) -> None:
    url = f"{store}:{tmp_path / 'loom'}"
    asker, request = await ask_until_restart(url, order)
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING], recover=recover) as runtime:
        await runtime.decide(request, answer="well")
        assert await wait_for_end(runtime, asker) == "well"


@pytest.mark.rule("C-16", "C-10")
async def test_an_asker_is_loaded_when_the_loom_is_opened_if_its_answer_came_before(url: str) -> None:
    asker, request = await ask_until_restart(url)
    async with Runtime.open(url, cantrips=[ANSWERING]) as runtime:  # cannot run the asker
        await runtime.decide(request, answer="well")
        await anyio.sleep(10)
        assert runtime.loom.state(asker) == "active"
    async with Runtime.open(url, cantrips=[ASKING]) as runtime:
        assert await wait_for_end(runtime, asker) == "well"


@pytest.mark.rule("C-16", "C-10")
async def test_an_answer_of_another_process_loads_its_asker_after_a_restart(url: str) -> None:
    asker, request = await ask_until_restart(url)
    async with Runtime.open(url, cantrips=[ASKING]) as asks, Runtime.open(url, cantrips=[ANSWERING]) as answers:
        await answers.decide(request, answer="well")
        assert await wait_for_end(asks, asker) == "well"


@pytest.mark.rule("C-16", "C-10")
async def test_the_end_of_an_asked_entity_loads_its_asker_after_a_restart(url: str) -> None:
    asker, _ = await ask_until_restart(url)
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING]) as runtime:
        await runtime.entity("b").stop("no longer needed")
        assert "no answer" in await wait_for_end(runtime, asker)


@pytest.mark.rule("C-16")
async def test_an_interrupted_asker_stays_listed_until_its_answer_comes(url: str) -> None:
    asker, _ = await ask_until_restart(url)
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING]) as runtime:
        await anyio.sleep(100)
        assert [one.entity_id for one in runtime.interrupted()] == [asker]
        assert runtime.requests()


# An asker that stops while its runtime stays open


async def begin_to_ask(runtime: Runtime, order: str = "ask b how are you") -> tuple[str, str]:
    """Have an entity ask "b", which asks a person; return the ids of the asker and of the request."""
    b = await runtime.invoke(ANSWERING, "start", name="b")
    await anyio.sleep(1)
    await runtime.decide(runtime.requests()[0].id, answer="ready")
    await b.episode()
    asker = await runtime.invoke(ASKING, "start", name="a")
    await asker.episode()
    await asker.post(order)
    await anyio.sleep(10)
    (request,) = runtime.requests()
    return asker.id, request.id


async def strike(runtime: Runtime, asker: str) -> None:
    """Kill the loom's actor, which stops all entities."""
    tree: Any = runtime._tree
    tree.writer.kill()
    await anyio.sleep(1)
    assert tree.living.get(asker) is None


@pytest.mark.rule("C-16", "C-10")
@pytest.mark.parametrize("store", ["memory", "jsonl", "sqlite"])
async def test_an_answer_loads_an_asker_that_stopped_with_the_loom_actor(tmp_path: Path, store: str) -> None:
    url = "memory:" if store == "memory" else f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING]) as runtime:
        asker, request = await begin_to_ask(runtime)
        await strike(runtime, asker)
        await anyio.sleep(100)
        assert [one.entity_id for one in runtime.interrupted()] == [asker]
        await runtime.decide(request, answer="well")
        await anyio.sleep(5)
        assert runtime.interrupted() == []
        assert runtime.loom.turns(asker)[-1].gate_calls[0].result == "well"


@pytest.mark.rule("C-16", "C-10")
@pytest.mark.parametrize("ticks", part(range(0, 60, 4), 2))
async def test_an_answer_that_comes_while_its_asker_stops_loads_it(ticks: int) -> None:
    async with Runtime.open(cantrips=[ASKING, ANSWERING]) as runtime:
        asker, request = await begin_to_ask(runtime)
        tree: Any = runtime._tree
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(runtime.decide, request, answer="well"))
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            tree.writer.kill()
        await anyio.sleep(5)
        assert runtime.loom.turns(asker)[-1].gate_calls[0].result == "well"


@pytest.mark.rule("C-16")
async def test_an_asker_that_was_resumed_and_works_on_something_else_is_not_disturbed_by_a_late_answer() -> None:
    async with Runtime.open(cantrips=[ASKING, ANSWERING], passivate_after=5) as runtime:
        asker, request = await begin_to_ask(runtime)
        await strike(runtime, asker)
        a = await runtime.resume(asker)
        await a.interrupt("never mind", now=True)
        await anyio.sleep(20)
        assert not runtime.entity("a").loaded
        await runtime.decide(request, answer="well")
        await anyio.sleep(2)
        assert not runtime.entity("a").loaded


@pytest.mark.rule("C-16")
async def test_an_answered_asker_that_cannot_start_is_tried_twice(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime.open(url, cantrips=[ASKING, ANSWERING]) as runtime:
        asker, request = await begin_to_ask(runtime)
        await strike(runtime, asker)
        begun = 0

        whole = EntityActor.run

        async def run(actor: Any) -> None:
            nonlocal begun
            if actor._cell.entity_id == asker:
                begun += 1
                raise MemoryError("no room")
            await whole(actor)

        monkeypatch.setattr(EntityActor, "run", run)
        await runtime.decide(request, answer="well")
        await anyio.sleep(600)
        assert begun == 2
